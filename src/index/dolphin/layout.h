/* clang-format off */
/* The layout of Dolphin in far memory, and the pure functions that encode and decode it. This file contains no verbs.
 *
 * All integers are little-endian. Nodes and leaves are aligned to 64 bytes. "name n" stands for a field of n bits; the
 * first field of a word begins at bit 0.
 *
 * A key has a position at each depth d (number of bytes from the start of the key): 0 (called END) if the key has
 * exactly d bytes, otherwise its byte d plus 1. Positions are 0 .. 256, and their order is the order of the keys.
 *
 *     entry       address / 64 42 | tag 9 | lower bound 9 | kind 4
 *                 One child of a node. It owns the positions from its lower bound (lb) to the next greater lower
 *                 bound in the node, minus 1. The kinds are:
 *                   unused        the whole word is zero
 *                   NULL          no key exists in the interval; the low 9 bits hold its last position (hi)
 *                   LEAF          the header of the leaf holds its interval
 *                   NODE + class  a node, which always owns exactly one position, lb; class 0 is not used
 *
 *     node        lock, ident, prefix word, the prefix bytes if depth > 8, then entries in any order
 *       lock        tag 9 | LIVE 1 | FROZEN 1 | 0 5 | owner 38 (0: unlocked)
 *       ident       depth 9 | class 3 | 0 28 | magic 24
 *       prefix word depth <= 8: the bytes of the prefix, zero padded; otherwise a hash of the prefix
 *
 *     root        a node of the largest class, with one entry per position. It is followed by one lock word for each
 *                 of the 256 first bytes. These words are used instead of the lock of the node.
 *
 *     leaf        spear, ident, prefix word, lock, cut, moved, 0 0, one key word per slot, one value word per slot
 *       spear       tag 9 | LIVE 1 | FROZEN 1 | ticket 19 | UNCOUNTED 1 | number of writers inside 18 | sum 15
 *                   The sum is the highest field, so its overflow cannot change another field.
 *         UNCOUNTED   calm_after: hot updates of this leaf do not change the number of writers, so a client that
 *                     replaces the leaf must wait until all pins are newer. Set until the incarnation ends.
 *         ticket      insert=ticket: the slot number that the next insert draws. A client that draws a number beyond
 *                     the last slot returns it, so the excess never exceeds the number of clients.
 *         sum         insert=ticket: the sum of dolphin_key_sum over the keys that drew tickets, modulo 2^15
 *       ident       depth 9 | lo 9 | hi 9 | slots 7 | NARROWED 1 | 0 5 | magic 24
 *                   The leaf owns the keys with its prefix whose positions are lo .. hi. NARROWED: recovery has
 *                   reduced hi during this incarnation.
 *       lock        sync=exclusive: owner 38, or 0
 *       cut, moved  written before a split changes the first entry, if the leaf has key blocks. `moved` has one bit per
 *                   slot: the position of its key is `cut` or greater, so the key goes to another leaf. In a leaf whose
 *                   replacement was interrupted, they show which key blocks this leaf still owns.
 *       key word    payload 56 | length 4 | state 4
 *                     length 0 .. 7   the payload is the key from the depth of the leaf on, with the first byte on top
 *                     length 8 .. 15  8 + size class of a key block; the payload is: address / 16 44 | fingerprint 12
 *       value word  value_size=8: the value itself; POISON (a random word of the index) while the slot is empty.
 *                   Otherwise 0: no value; top byte n = 1 .. 8: an inline value of n - 1 bytes, in the low bytes;
 *                   top byte 0x80: a value block: address / 16 44 | size code 12.
 *                   Bit 62, with hot_updates=on: FROZEN. A frozen value word cannot be changed by a hot update.
 *
 *     key block   length 16 | bytes of the whole key
 *     value block length 32 | hash of the key 32 | bytes of the value
 *
 * The memory of a node or leaf is used only for nodes or leaves. Each use of the memory is an incarnation of the
 * object. The tag in its control word (the lock word of a node, the spear word of a leaf) increases by 1, modulo 512,
 * with each incarnation, and entries hold the tag of the incarnation that they name. LIVE is set while the object is in
 * use. */
/* clang-format on */
#ifndef FAR_INDEX_DOLPHIN_LAYOUT_H
#define FAR_INDEX_DOLPHIN_LAYOUT_H

#include "index/index.h"
#include "pool/format/owner.h"

#include <assert.h>
#include <string.h>

enum { DOLPHIN_TYPE_ROOT, DOLPHIN_TYPE_NODE, DOLPHIN_TYPE_LEAF, DOLPHIN_TYPE_KEY, DOLPHIN_TYPE_VALUE, DOLPHIN_TYPES };

#define DOLPHIN_MAGIC         0x336e6968706c6f64ull /* ASCII "dolphin3", which includes the version of the layout */
#define DOLPHIN_NODE_MAGIC    0x646e6full
#define DOLPHIN_LEAF_MAGIC    0x66616cull
#define DOLPHIN_POSITIONS     257u
#define DOLPHIN_LAST_POSITION 256u /* the greatest position, that of the byte FF */
#define DOLPHIN_SLOTS_MAX     64u

/* A retired node or leaf is reused at the earliest 4 + DOLPHIN_EXTRA_EPOCHS = 18 epochs later. A pointer from a cache
 * is used for at most DOLPHIN_POINTER_MAX_AGE epochs. So at most 9000 / 18 = 500 incarnations can begin during the use
 * of one pointer. This is less than the number of tags, so an equal tag proves that it is still the same incarnation.
 */
#define DOLPHIN_EXTRA_EPOCHS    14u
#define DOLPHIN_POINTER_MAX_AGE 9000u
#define DOLPHIN_TAGS            512u

typedef struct dolphin_root { /* the descriptor of the index, at index->descriptor */
    /* root: entry word of the root node; slots and raw_values: as in dolphin_state */
    uint64_t magic, root, slots, raw_values;
} dolphin_root;


/* Positions of keys. */

static inline unsigned dolphin_position(far_bytes key, unsigned depth) {
    return depth < key.length ? ((const uint8_t *)key.data)[depth] + 1u : 0;
}


/* Entries of nodes. */

enum { DOLPHIN_KIND_UNUSED = 0, DOLPHIN_KIND_NULL = 1, DOLPHIN_KIND_LEAF = 2, DOLPHIN_KIND_NODE = 8 };

#define DOLPHIN_ADDR_MASK ((1ull << 42) - 1)
#define DOLPHIN_LB_MASK   (0x1ffull << 51)


static inline uint64_t dolphin_entry(far_addr addr, unsigned tag, unsigned lb, unsigned kind) {
    assert(addr % 64 == 0 && tag < 1u << 9 && lb < 1u << 9 && kind < 1u << 4);
    return (addr / 64 & DOLPHIN_ADDR_MASK) | (uint64_t)tag << 42 | (uint64_t)lb << 51 | (uint64_t)kind << 60;
}


static inline uint64_t dolphin_null_entry(unsigned lb, unsigned hi) {
    assert(lb < 1u << 9 && hi < 1u << 9);
    return (uint64_t)hi | (uint64_t)lb << 51 | (uint64_t)DOLPHIN_KIND_NULL << 60;
}


static inline unsigned dolphin_entry_kind(uint64_t entry) {
    return (unsigned)(entry >> 60);
}


static inline bool dolphin_entry_is_node(uint64_t entry) {
    return entry >> 60 >= DOLPHIN_KIND_NODE;
}


static inline unsigned dolphin_entry_class(uint64_t entry) {
    return (unsigned)(entry >> 60) - DOLPHIN_KIND_NODE;
}


static inline unsigned dolphin_entry_lb(uint64_t entry) {
    return (unsigned)(entry >> 51) & 0x1ff;
}


static inline unsigned dolphin_entry_hi(uint64_t entry) { /* the last position of a NULL interval */
    return (unsigned)entry & 0x1ff;
}


static inline unsigned dolphin_entry_tag(uint64_t entry) {
    return (unsigned)(entry >> 42) & 0x1ff;
}


static inline far_addr dolphin_entry_addr(uint64_t entry) {
    return (entry & DOLPHIN_ADDR_MASK) * 64;
}


static inline uint64_t dolphin_entry_with_lb(uint64_t entry, unsigned lb) {
    return (entry & ~DOLPHIN_LB_MASK) | (uint64_t)lb << 51;
}


/* Returns true if both entries name the same incarnation of the same object. Their lower bounds may differ. */
static inline bool dolphin_entries_match(uint64_t a, uint64_t b) {
    return ((a ^ b) & ~DOLPHIN_LB_MASK) == 0;
}


/* Returns false if the entry alone shows that it does not own the position. For a leaf the upper bound is not known
 * from the entry, because it is stored in the header of the leaf. */
static inline bool dolphin_entry_may_cover(uint64_t entry, unsigned position) {
    unsigned kind = dolphin_entry_kind(entry), lb = dolphin_entry_lb(entry);
    if (kind == DOLPHIN_KIND_NULL)
        return lb <= position && position <= dolphin_entry_hi(entry);
    if (kind == DOLPHIN_KIND_LEAF)
        return lb <= position;
    return kind >= DOLPHIN_KIND_NODE && lb == position;
}


#define DOLPHIN_CLASSES 6u


static inline bool dolphin_entry_is_sound(uint64_t entry) {
    unsigned kind = dolphin_entry_kind(entry), lb = dolphin_entry_lb(entry);
    if (entry == 0)
        return true;
    if (lb > DOLPHIN_LAST_POSITION)
        return false;
    if (kind == DOLPHIN_KIND_NULL)
        return dolphin_entry_hi(entry) >= lb && dolphin_entry_hi(entry) <= DOLPHIN_LAST_POSITION;
    return (kind == DOLPHIN_KIND_LEAF || (kind > DOLPHIN_KIND_NODE && kind < DOLPHIN_KIND_NODE + DOLPHIN_CLASSES)) &&
           dolphin_entry_addr(entry) != 0;
}


/* The control words of nodes (lock word) and leaves (spear word). */

#define DOLPHIN_TAG_MASK    0x1ffull
#define DOLPHIN_LIVE        (1ull << 9)
#define DOLPHIN_FROZEN      (1ull << 10)
#define DOLPHIN_OWNER_SHIFT 16
#define DOLPHIN_TICKET      (1ull << 11)
#define DOLPHIN_UNCOUNTED   (1ull << 30)
#define DOLPHIN_ENTER       (1ull << 31)
#define DOLPHIN_EXIT        (0 - DOLPHIN_ENTER)
#define DOLPHIN_SUM         (1ull << 49)
#define DOLPHIN_COUNT_MASK  (DOLPHIN_SUM - DOLPHIN_ENTER) /* mask of the number of writers in a spear word */


static inline unsigned dolphin_tag(uint64_t word) {
    return (unsigned)(word & DOLPHIN_TAG_MASK);
}


static inline unsigned dolphin_writer_count(uint64_t spear) {
    return (unsigned)((spear & DOLPHIN_COUNT_MASK) / DOLPHIN_ENTER);
}


static inline uint64_t dolphin_ticket(uint64_t spear) {
    return spear % DOLPHIN_UNCOUNTED / DOLPHIN_TICKET;
}


/* Returns true if the control word belongs to the incarnation that the entry names, frozen or not. */
static inline bool dolphin_control_matches(uint64_t word, uint64_t entry) {
    return (word & DOLPHIN_LIVE) && dolphin_tag(word) == dolphin_entry_tag(entry);
}


static inline uint64_t dolphin_lock_owner(uint64_t lock) {
    return lock >> DOLPHIN_OWNER_SHIFT & FAR_OWNER_MASK;
}


/* Returns the lock word that this node has while it is unlocked. */
static inline uint64_t dolphin_unlocked_word(uint64_t entry) {
    return dolphin_entry_tag(entry) | DOLPHIN_LIVE;
}


/* Returns true if the lock word belongs to the named incarnation and all unused bits are zero. */
static inline bool dolphin_lock_is_sound(uint64_t lock, uint64_t entry) {
    uint64_t owner = FAR_OWNER_MASK << DOLPHIN_OWNER_SHIFT;
    return (lock & ~(owner | DOLPHIN_FROZEN)) == dolphin_unlocked_word(entry);
}


/* Returns the tag of the incarnation after the one with this control word. */
static inline unsigned dolphin_tag_after(uint64_t word) {
    return (dolphin_tag(word) + 1) % DOLPHIN_TAGS;
}


/* Inner nodes. */

#define DOLPHIN_NODE_HEADER 24u
/* Greatest depth at which the prefix word holds the prefix itself instead of a hash. */
#define DOLPHIN_INLINE_PREFIX_MAX 8u


static inline unsigned dolphin_class_bytes(unsigned class) {
    static const uint16_t bytes[DOLPHIN_CLASSES] = {64, 128, 256, 512, 1088, 2368};
    assert(class < DOLPHIN_CLASSES);
    return bytes[class];
}


#define DOLPHIN_ROOT_CLASS (DOLPHIN_CLASSES - 1)
#define DOLPHIN_ROOT_LOCKS 2368u /* offset of the 256 lock words in the root */
#define DOLPHIN_ROOT_BYTES (DOLPHIN_ROOT_LOCKS + 8 * 256u)


/* Returns the number of bytes that the stored prefix occupies after the header. */
static inline unsigned dolphin_stored_prefix_bytes(unsigned depth) {
    return depth > DOLPHIN_INLINE_PREFIX_MAX ? (depth + 7) / 8 * 8 : 0;
}


static inline unsigned dolphin_node_capacity(unsigned class, unsigned depth) {
    unsigned used = DOLPHIN_NODE_HEADER + dolphin_stored_prefix_bytes(depth);
    return dolphin_class_bytes(class) > used ? (dolphin_class_bytes(class) - used) / 8 : 0;
}


/* Returns the smallest class that is not below `least` and has room for this number of entries. The largest class has
 * room for one entry per position at every depth. */
static inline unsigned dolphin_class_with_room(unsigned entries, unsigned depth, unsigned least) {
    unsigned class = least;
    while (class + 1 < DOLPHIN_CLASSES && dolphin_node_capacity(class, depth) < entries)
        class ++;
    return class;
}


static inline uint64_t dolphin_node_ident(unsigned depth, unsigned class) {
    return depth | (uint64_t) class << 9 | DOLPHIN_NODE_MAGIC << 40;
}


static inline unsigned dolphin_ident_depth(uint64_t ident) {
    return (unsigned)ident & 0x1ff;
}


static inline unsigned dolphin_ident_class(uint64_t ident) {
    return (unsigned)(ident >> 9) & 7;
}


/* Leaves. */

#define DOLPHIN_LEAF_HEADER 64u
#define DOLPHIN_LEAF_LOCK   24u
#define DOLPHIN_LEAF_CUT    32u /* offset of the word `cut` in a leaf; `moved` is the next word */


static inline unsigned dolphin_leaf_bytes(unsigned slots) {
    return DOLPHIN_LEAF_HEADER + 16 * slots;
}


static inline uint64_t dolphin_leaf_ident(unsigned depth, unsigned lo, unsigned hi, unsigned slots) {
    assert(lo <= hi && hi < 1u << 9 && slots < 1u << 7);
    return depth | (uint64_t)lo << 9 | (uint64_t)hi << 18 | (uint64_t)slots << 27 | DOLPHIN_LEAF_MAGIC << 40;
}


static inline unsigned dolphin_ident_lo(uint64_t ident) {
    return (unsigned)(ident >> 9) & 0x1ff;
}


static inline unsigned dolphin_ident_hi(uint64_t ident) {
    return (unsigned)(ident >> 18) & 0x1ff;
}


static inline unsigned dolphin_ident_slots(uint64_t ident) {
    return (unsigned)(ident >> 27) & 0x7f;
}


#define DOLPHIN_NARROWED (1ull << 34)


static inline uint64_t dolphin_narrowed_ident(uint64_t ident, unsigned hi) {
    return (ident & ~(0x1ffull << 18)) | (uint64_t)hi << 18 | DOLPHIN_NARROWED;
}


static inline bool dolphin_leaf_ident_is_sound(uint64_t ident, unsigned slots) {
    return ident >> 40 == DOLPHIN_LEAF_MAGIC && dolphin_ident_depth(ident) <= FAR_KEY_MAX &&
           dolphin_ident_lo(ident) <= dolphin_ident_hi(ident) && dolphin_ident_hi(ident) <= DOLPHIN_LAST_POSITION &&
           dolphin_ident_slots(ident) == slots;
}


static inline far_addr dolphin_kword_addr(far_addr leaf, unsigned slot) {
    return leaf + DOLPHIN_LEAF_HEADER + 8ull * slot;
}


static inline far_addr dolphin_vword_addr(far_addr leaf, unsigned slots, unsigned slot) {
    return leaf + DOLPHIN_LEAF_HEADER + 8ull * (slots + slot);
}


/* Key words. */

typedef enum { DOLPHIN_SLOT_EMPTY, DOLPHIN_SLOT_RESERVED, DOLPHIN_SLOT_LIVE, DOLPHIN_SLOT_DEAD } dolphin_slot_state;

#define DOLPHIN_INLINE_MAX 7u
#define DOLPHIN_BLOCK      8u /* a length of 8 or more means that the key is in a key block */
#define DOLPHIN_PAYLOAD    ((1ull << 56) - 1)
#define DOLPHIN_BLOCK_ADDR ((1ull << 44) - 1)
#define DOLPHIN_KEY_MASK   ((1ull << 60) - 1) /* mask of all bits of a key word except the state */


static inline dolphin_slot_state dolphin_slot_state_of(uint64_t kword) {
    return (dolphin_slot_state)(kword >> 60);
}


static inline uint64_t dolphin_kword_with_state(uint64_t kword, dolphin_slot_state state) {
    return (kword & DOLPHIN_KEY_MASK) | (uint64_t)state << 60;
}


/* The key word of a slot that was drawn with a ticket, and that no insert will use. */
#define DOLPHIN_SLOT_HOLE ((uint64_t)DOLPHIN_SLOT_DEAD << 60)


static inline unsigned dolphin_kword_length(uint64_t kword) {
    return (unsigned)(kword >> 56) & 15;
}


static inline bool dolphin_kword_is_block(uint64_t kword) {
    return dolphin_kword_length(kword) >= DOLPHIN_BLOCK;
}


/* Returns true if the slot is LIVE and the key is in the key word. */
static inline bool dolphin_kword_is_live_inline(uint64_t kword) {
    return kword >> 59 == DOLPHIN_SLOT_LIVE << 1;
}


/* Returns true if the slot is LIVE and the key is in a key block. */
static inline bool dolphin_kword_is_live_block(uint64_t kword) {
    return kword >> 59 == (DOLPHIN_SLOT_LIVE << 1 | 1);
}


/* Returns the key word for the suffix of the key that begins at `depth`, which must have at most 7 bytes. The state
 * field of the word is 0. Within one leaf the payloads, and then the lengths, compare in the order of the keys. */
static inline uint64_t dolphin_inline_kword(far_bytes key, unsigned depth) {
    uint64_t payload = 0;
    unsigned length = (unsigned)key.length - depth;
    for (unsigned i = 0; i < length; i++)
        payload |= (uint64_t)((const uint8_t *)key.data)[depth + i] << (48 - 8 * i);
    return payload | (uint64_t)length << 56;
}


static inline void dolphin_inline_bytes(uint64_t kword, uint8_t bytes[DOLPHIN_INLINE_MAX]) {
    for (unsigned i = 0; i < DOLPHIN_INLINE_MAX; i++)
        bytes[i] = (uint8_t)(kword >> (48 - 8 * i));
}


static inline unsigned dolphin_inline_position(uint64_t kword) {
    return dolphin_kword_length(kword) == 0 ? 0 : ((unsigned)(kword >> 48) & 0xff) + 1;
}


/* Order words. The order word of a key in a leaf contains the first 7 bytes of the suffix of the key in the bits 4 to
 * 59, and the length of the suffix, at most 8, in the bits 0 to 3. Within one leaf the order words compare as the keys,
 * except that two keys with suffixes of more than 7 bytes can have the same order word. */

#define DOLPHIN_ORDER_LONG 8ull /* set if the suffix has more than 7 bytes, so the key is in a key block */


/* Returns the order word of an inline key. */
static inline uint64_t dolphin_kword_order(uint64_t kword) {
    return (kword & DOLPHIN_PAYLOAD) << 4 | dolphin_kword_length(kword);
}


/* Returns the order word of any key in a leaf of this depth; 0 if the key is shorter than the prefix of the leaf. */
static inline uint64_t dolphin_order_word(far_bytes key, unsigned depth) {
    uint64_t bytes;
    if (key.length <= depth)
        return 0;
    if (key.length - depth <= DOLPHIN_INLINE_MAX)
        return dolphin_kword_order(dolphin_inline_kword(key, depth));
    memcpy(&bytes, (const uint8_t *)key.data + depth, 8);
    return __builtin_bswap64(bytes) >> 8 << 4 | DOLPHIN_ORDER_LONG;
}


/* Returns the greatest order word of the keys with positions up to `hi`. A position is the first byte plus 1. */
static inline uint64_t dolphin_last_order_word(unsigned hi) {
    return hi ? ((uint64_t)hi << 52) - 1 : 0;
}


#define DOLPHIN_KEY_CLASSES 8u


static inline unsigned dolphin_key_block_bytes(unsigned class) {
    static const uint16_t bytes[DOLPHIN_KEY_CLASSES] = {16, 32, 48, 64, 96, 128, 192, 272};
    return bytes[class];
}


static inline unsigned dolphin_key_block_class(size_t length) {
    unsigned class = 0;
    while (dolphin_key_block_bytes(class) < length + 2)
        class ++;
    return class;
}


static inline uint64_t dolphin_block_kword(far_addr block, unsigned class, unsigned fingerprint) {
    return block / 16 | (uint64_t)(fingerprint & 0xfff) << 44 | (uint64_t)(DOLPHIN_BLOCK + class) << 56;
}


static inline far_addr dolphin_kword_block(uint64_t kword) {
    return (kword & DOLPHIN_BLOCK_ADDR) * 16;
}


static inline unsigned dolphin_kword_fingerprint(uint64_t kword) {
    return (unsigned)(kword >> 44) & 0xfff;
}


static inline unsigned dolphin_kword_block_bytes(uint64_t kword) {
    return dolphin_key_block_bytes(dolphin_kword_length(kword) - DOLPHIN_BLOCK);
}


/* Returns the contribution of a key to the sum of its leaf, shifted to the place of that field in the spear word. Equal
 * keys in one leaf have equal contributions. */
static inline uint64_t dolphin_key_sum(uint64_t kword) {
    uint64_t key = dolphin_kword_is_block(kword) ? (kword & DOLPHIN_KEY_MASK) / (DOLPHIN_BLOCK_ADDR + 1)
                                                 : kword & DOLPHIN_KEY_MASK;
    return (key * 0x9e3779b97f4a7c15ull) / DOLPHIN_SUM * DOLPHIN_SUM;
}


/* Returns the bytes of an inline key word beyond the suffix, which are all zero in a sound word. */
static inline uint64_t dolphin_bytes_beyond_suffix(uint64_t kword) {
    return kword << 8 << 8 * dolphin_kword_length(kword) % 64;
}


static inline bool dolphin_kword_is_sound(uint64_t kword) {
    unsigned length = dolphin_kword_length(kword);
    if (kword >> 60 > DOLPHIN_SLOT_DEAD || (kword >> 60 == DOLPHIN_SLOT_EMPTY && kword != 0))
        return false;
    return length >= DOLPHIN_BLOCK ? dolphin_kword_block(kword) != 0 : dolphin_bytes_beyond_suffix(kword) == 0;
}


/* Value words of variable size (without value_size=8). */

#define DOLPHIN_VALUE_BLOCK  (0x80ull << 56)
#define DOLPHIN_VALUE_FROZEN (1ull << 62)


static inline uint64_t dolphin_value_unfrozen(uint64_t word) {
    return word & ~DOLPHIN_VALUE_FROZEN;
}


static inline bool dolphin_value_is_block(uint64_t word) {
    return dolphin_value_unfrozen(word) >> 56 == 0x80;
}


/* Only for a word that is not 0 and names no value block. */
static inline unsigned dolphin_value_inline_bytes(uint64_t word) {
    return (unsigned)(dolphin_value_unfrozen(word) >> 56) - 1;
}


static inline far_addr dolphin_value_block(uint64_t word) {
    return (word & DOLPHIN_BLOCK_ADDR) * 16;
}


static inline uint64_t dolphin_code_bytes(unsigned code) {
    return code < 2048 ? 16ull * code : 32768 + 64ull * (code - 2048);
}


/* The size code of the value block that the word names. Each code stands for another number of bytes. */
static inline unsigned dolphin_value_block_code(uint64_t word) {
    return (unsigned)(word >> 44) & 0xfff;
}


static inline uint64_t dolphin_value_block_bytes(uint64_t word) {
    return dolphin_code_bytes(dolphin_value_block_code(word));
}


static inline unsigned dolphin_value_code(size_t length) {
    size_t bytes = length + 8;
    return (unsigned)(bytes < 32768 ? (bytes + 15) / 16 : 2048 + (bytes - 32768 + 63) / 64);
}


static inline uint64_t dolphin_block_value(far_addr block, unsigned code) {
    return DOLPHIN_VALUE_BLOCK | (uint64_t)code << 44 | block / 16;
}


/* The first word of a value block. The hash reveals a damaged value word that leads to the block of another key. */
static inline uint64_t dolphin_value_block_head(size_t length, uint64_t key_hash) {
    return (uint32_t)length | key_hash << 32;
}


static inline uint64_t dolphin_value_head_length(uint64_t head) {
    return (uint32_t)head;
}


static inline bool dolphin_value_head_has_hash(uint64_t head, uint64_t key_hash) {
    return head >> 32 == (uint32_t)key_hash;
}


static inline bool dolphin_value_is_sound(uint64_t word) {
    unsigned top = (unsigned)(dolphin_value_unfrozen(word) >> 56);
    if (top == 0)
        return word == 0;
    if (top <= 8)
        return (word & DOLPHIN_PAYLOAD) >> 8 * (top - 1) == 0;
    return top == 0x80 && dolphin_value_block(word) != 0 && dolphin_value_block_bytes(word) >= 16;
}


_Static_assert(sizeof(dolphin_root) == 32, "the descriptor");

#endif
