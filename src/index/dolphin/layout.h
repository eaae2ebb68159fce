/* clang-format off */
/* Dolphin as bytes. All integers little-endian; nodes and leaves are 64-byte aligned. "name n": a field of n bits, from
 * bit 0 on.
 *
 *   position    of a key at depth d: 0 when the key ends there (END), else the byte + 1; so 0 .. 256, in key order
 *
 *   entry       address / 64 42 | tag 9 | lb 9 | kind 4: one child of a node, for the positions from lb on
 *                 all zero      unused
 *                 NULL          no key; the last of its positions stands in the low 9 bits
 *                 LEAF          its header says for which positions it is
 *                 NODE + class  for the position lb alone; class 0 is not used
 *
 *   node        lock, ident, prefix word, prefix bytes if depth > 8, entries in no order
 *     lock        tag 9 | LIVE 1 | FROZEN 1 | 0 5 | owner 38 (0: free)
 *     ident       depth 9 | class 3 | 0 28 | magic 24
 *     prefix word depth <= 8: the bytes of the prefix, zero padded; else a hash of them
 *
 *   root        a node of the largest class with an entry per byte, then a lock word per byte in place of its own
 *
 *   leaf        spear, ident, prefix word, lock, cut, parted, 0 0, a key word per slot, a value word per slot
 *     spear       tag 9 | LIVE 1 | FROZEN 1 | ticket 19 | CALM 1 | writers inside 18 | sum 15: the top field carries into
 *                 nothing
 *       CALM        calm_after: hot updates are not counted; a replacement of the leaf waits for epochs. Until its life ends
 *       ticket      insert=ticket: the next slot that is given out. Tickets beyond the slots are given back: there are
 *                   never more of them than clients
 *       sum         insert=ticket: of the keys that the slots were given out to (dolphin_key_sum), modulo 2^15
 *     ident       depth 9 | lo 9 | hi 9 | slots 7 | NARROWED 1 | 0 5 | magic 24: the positions lo .. hi of keys with that
 *                 prefix; NARROWED: hi was greater in this life
 *     lock        sync=exclusive: owner 38, or 0
 *     parted      a bit per slot: its key has the position `cut` or a greater one, and goes into another leaf. Written
 *                 before the entries of a node with key blocks change: of a leaf that is half replaced it tells whose the
 *                 blocks are
 *     key word    payload 56 | length 4 | state 4
 *                   length 0 .. 7   the rest of the key from the leaf's depth on, the first byte on top
 *                   length 8 .. 15  size class of a key block; payload: address / 16 44 | fingerprint 12
 *     value word  value_size=8: the value; POISON while the slot is empty
 *                 else 0 none; top byte 1 .. 8: that minus 1 bytes, from the low byte on;
 *                 0x80: address / 16 44 | size code 12 of a value block;
 *                 bit 62, hot_updates=on: FROZEN, like its leaf; it never becomes another one
 *
 *   key block   length 16 | bytes
 *   value block length 32 | hash of its key 32 | bytes */
/* clang-format on */
#ifndef FAR_INDEX_DOLPHIN_LAYOUT_H
#define FAR_INDEX_DOLPHIN_LAYOUT_H

#include "index/index.h"
#include "pool/owner.h"

#include <assert.h>
#include <string.h>

enum { DOLPHIN_TYPE_ROOT, DOLPHIN_TYPE_NODE, DOLPHIN_TYPE_LEAF, DOLPHIN_TYPE_KEY, DOLPHIN_TYPE_VALUE, DOLPHIN_TYPES };

#define DOLPHIN_MAGIC      0x336e6968706c6f64ull /* "dolphin3": the layout's version */
#define DOLPHIN_NODE_MAGIC 0x646e6full
#define DOLPHIN_LEAF_MAGIC 0x66616cull
#define DOLPHIN_POSITIONS  257u
#define DOLPHIN_LAST       256u /* position */
#define DOLPHIN_SLOTS_MAX  64u

/* Retired nodes and leaves are reused after so many epochs more; a pointer that was READ is used for so many epochs.
 * 9000 / (4 + 14) = 500 reuses at most fall into the life of a pointer, fewer than there are tags. */
#define DOLPHIN_EXTRA_EPOCHS 14u
#define DOLPHIN_POINTER_LIFE 9000u
#define DOLPHIN_TAGS         512u

typedef struct dolphin_root {           /* what index->descriptor names */
    uint64_t magic, root, slots, words; /* root: the entry word of the root node */
} dolphin_root;


/* Positions. */

static inline unsigned dolphin_position(far_bytes key, unsigned depth) {
    return depth < key.length ? ((const uint8_t *)key.data)[depth] + 1u : 0;
}


/* Entries. */

enum { DOLPHIN_UNUSED = 0, DOLPHIN_NULL = 1, DOLPHIN_LEAF = 2, DOLPHIN_NODE = 8 };

#define DOLPHIN_ADDR_MASK ((1ull << 42) - 1)
#define DOLPHIN_LB_MASK   (0x1ffull << 51)


static inline uint64_t dolphin_entry(far_addr addr, unsigned tag, unsigned lb, unsigned kind) {
    assert(addr % 64 == 0 && tag < 1u << 9 && lb < 1u << 9 && kind < 1u << 4);
    return (addr / 64 & DOLPHIN_ADDR_MASK) | (uint64_t)tag << 42 | (uint64_t)lb << 51 | (uint64_t)kind << 60;
}


static inline uint64_t dolphin_null(unsigned lb, unsigned hi) {
    assert(lb < 1u << 9 && hi < 1u << 9);
    return (uint64_t)hi | (uint64_t)lb << 51 | (uint64_t)DOLPHIN_NULL << 60;
}


static inline unsigned dolphin_entry_kind(uint64_t entry) {
    return (unsigned)(entry >> 60);
}


static inline bool dolphin_entry_is_node(uint64_t entry) {
    return entry >> 60 >= DOLPHIN_NODE;
}


static inline unsigned dolphin_entry_class(uint64_t entry) {
    return (unsigned)(entry >> 60) - DOLPHIN_NODE;
}


static inline unsigned dolphin_entry_lb(uint64_t entry) {
    return (unsigned)(entry >> 51) & 0x1ff;
}


static inline unsigned dolphin_entry_hi(uint64_t entry) { /* of a NULL */
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


/* Both entries name one object in one life. */
static inline bool dolphin_entry_same(uint64_t a, uint64_t b) {
    return ((a ^ b) & ~DOLPHIN_LB_MASK) == 0;
}


/* The entry itself says that it is not for this position. A leaf's positions stand in the leaf. */
static inline bool dolphin_entry_may_cover(uint64_t entry, unsigned position) {
    unsigned kind = dolphin_entry_kind(entry), lb = dolphin_entry_lb(entry);
    if (kind == DOLPHIN_NULL)
        return lb <= position && position <= dolphin_entry_hi(entry);
    if (kind == DOLPHIN_LEAF)
        return lb <= position;
    return kind >= DOLPHIN_NODE && lb == position;
}


#define DOLPHIN_CLASSES 6u


static inline bool dolphin_entry_is_sound(uint64_t entry) {
    unsigned kind = dolphin_entry_kind(entry), lb = dolphin_entry_lb(entry);
    if (entry == 0)
        return true;
    if (lb > DOLPHIN_LAST)
        return false;
    if (kind == DOLPHIN_NULL)
        return dolphin_entry_hi(entry) >= lb && dolphin_entry_hi(entry) <= DOLPHIN_LAST;
    return (kind == DOLPHIN_LEAF || (kind > DOLPHIN_NODE && kind < DOLPHIN_NODE + DOLPHIN_CLASSES)) &&
           dolphin_entry_addr(entry) != 0;
}


/* The control words of nodes and leaves. */

#define DOLPHIN_TAG_MASK    0x1ffull
#define DOLPHIN_LIVE        (1ull << 9)
#define DOLPHIN_FROZEN      (1ull << 10)
#define DOLPHIN_OWNER_SHIFT 16
#define DOLPHIN_TICKET      (1ull << 11)
#define DOLPHIN_CALM        (1ull << 30)
#define DOLPHIN_ENTER       (1ull << 31)
#define DOLPHIN_EXIT        (0 - DOLPHIN_ENTER)
#define DOLPHIN_SUM         (1ull << 49)
#define DOLPHIN_COUNT_MASK  (DOLPHIN_SUM - DOLPHIN_ENTER) /* of a spear word */


static inline unsigned dolphin_tag(uint64_t word) {
    return (unsigned)(word & DOLPHIN_TAG_MASK);
}


static inline unsigned dolphin_count(uint64_t spear) {
    return (unsigned)((spear & DOLPHIN_COUNT_MASK) / DOLPHIN_ENTER);
}


static inline uint64_t dolphin_ticket(uint64_t spear) {
    return spear % DOLPHIN_CALM / DOLPHIN_TICKET;
}


/* The control word is that of the object that the entry names, in that life; frozen or not. */
static inline bool dolphin_is_life(uint64_t word, uint64_t entry) {
    return (word & DOLPHIN_LIVE) && dolphin_tag(word) == dolphin_entry_tag(entry);
}


static inline uint64_t dolphin_lock_owner(uint64_t lock) {
    return lock >> DOLPHIN_OWNER_SHIFT & FAR_OWNER_MASK;
}


static inline uint64_t dolphin_lock_free(uint64_t entry) { /* the lock word of the node that it names, unlocked */
    return dolphin_entry_tag(entry) | DOLPHIN_LIVE;
}


/* Of that life, and nothing stands in it that nobody writes. */
static inline bool dolphin_lock_is_sound(uint64_t lock, uint64_t entry) {
    uint64_t owner = FAR_OWNER_MASK << DOLPHIN_OWNER_SHIFT;
    return (lock & ~(owner | DOLPHIN_FROZEN)) == dolphin_lock_free(entry);
}


/* The tag of the next life of memory whose control word this is. */
static inline unsigned dolphin_next_tag(uint64_t word) {
    return (dolphin_tag(word) + 1) % DOLPHIN_TAGS;
}


/* Nodes. */

#define DOLPHIN_NODE_HEADER 24u
#define DOLPHIN_EXACT       8u /* depth up to which the prefix word holds the prefix itself */


static inline unsigned dolphin_class_bytes(unsigned class) {
    static const uint16_t bytes[DOLPHIN_CLASSES] = {64, 128, 256, 512, 1088, 2368};
    assert(class < DOLPHIN_CLASSES);
    return bytes[class];
}


#define DOLPHIN_ROOT_CLASS (DOLPHIN_CLASSES - 1)
#define DOLPHIN_ROOT_LOCKS 2368u /* where they begin */
#define DOLPHIN_ROOT_BYTES (DOLPHIN_ROOT_LOCKS + 8 * 256u)


static inline unsigned dolphin_prefix_bytes(unsigned depth) { /* those that a node stores behind its header */
    return depth > DOLPHIN_EXACT ? (depth + 7) / 8 * 8 : 0;
}


static inline unsigned dolphin_capacity(unsigned class, unsigned depth) {
    unsigned used = DOLPHIN_NODE_HEADER + dolphin_prefix_bytes(depth);
    return dolphin_class_bytes(class) > used ? (dolphin_class_bytes(class) - used) / 8 : 0;
}


/* The smallest class with room for so many entries, not smaller than `least`. The largest has room for all. */
static inline unsigned dolphin_class_for(unsigned entries, unsigned depth, unsigned least) {
    unsigned class = least;
    while (class + 1 < DOLPHIN_CLASSES && dolphin_capacity(class, depth) < entries)
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
#define DOLPHIN_LEAF_CUT    32u /* `parted` stands behind it */


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


static inline uint64_t dolphin_leaf_narrowed(uint64_t ident, unsigned hi) {
    return (ident & ~(0x1ffull << 18)) | (uint64_t)hi << 18 | DOLPHIN_NARROWED;
}


static inline bool dolphin_leaf_ident_is_sound(uint64_t ident, unsigned slots) {
    return ident >> 40 == DOLPHIN_LEAF_MAGIC && dolphin_ident_depth(ident) <= FAR_KEY_MAX &&
           dolphin_ident_lo(ident) <= dolphin_ident_hi(ident) && dolphin_ident_hi(ident) <= DOLPHIN_LAST &&
           dolphin_ident_slots(ident) == slots;
}


static inline far_addr dolphin_key_at(far_addr leaf, unsigned slot) {
    return leaf + DOLPHIN_LEAF_HEADER + 8ull * slot;
}


static inline far_addr dolphin_value_at(far_addr leaf, unsigned slots, unsigned slot) {
    return leaf + DOLPHIN_LEAF_HEADER + 8ull * (slots + slot);
}


/* Key words. */

typedef enum { DOLPHIN_EMPTY, DOLPHIN_RESERVED, DOLPHIN_HELD, DOLPHIN_DEAD } dolphin_slot_state; /* HELD: LIVE */

#define DOLPHIN_INLINE_MAX 7u
#define DOLPHIN_BLOCK      8u /* lengths from here on: a key block */
#define DOLPHIN_PAYLOAD    ((1ull << 56) - 1)
#define DOLPHIN_BLOCK_ADDR ((1ull << 44) - 1)
#define DOLPHIN_KEY_MASK   ((1ull << 60) - 1) /* all but the state */


static inline dolphin_slot_state dolphin_state_of_slot(uint64_t kword) {
    return (dolphin_slot_state)(kword >> 60);
}


static inline uint64_t dolphin_with_state(uint64_t kword, dolphin_slot_state state) {
    return (kword & DOLPHIN_KEY_MASK) | (uint64_t)state << 60;
}


#define DOLPHIN_HOLE ((uint64_t)DOLPHIN_DEAD << 60) /* a slot that was given out, and that nobody will use */


static inline unsigned dolphin_kword_length(uint64_t kword) {
    return (unsigned)(kword >> 56) & 15;
}


static inline bool dolphin_kword_is_block(uint64_t kword) {
    return dolphin_kword_length(kword) >= DOLPHIN_BLOCK;
}


/* The rest of the key from `depth` on, at most 7 bytes; without a state. Those of one leaf compare as the keys do:
 * payload, then length. */
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


#define DOLPHIN_KEY_CLASSES 8u


static inline unsigned dolphin_key_block_bytes(unsigned class) {
    static const uint16_t bytes[DOLPHIN_KEY_CLASSES] = {16, 32, 48, 64, 96, 128, 192, 272};
    return bytes[class];
}


static inline unsigned dolphin_key_class(size_t length) {
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


/* What a key adds to the sum of its leaf, in the place of that field: the same for equal keys of one leaf. */
static inline uint64_t dolphin_key_sum(uint64_t kword) {
    uint64_t key = dolphin_kword_is_block(kword) ? (kword & DOLPHIN_KEY_MASK) / (DOLPHIN_BLOCK_ADDR + 1)
                                                 : kword & DOLPHIN_KEY_MASK;
    return (key * 0x9e3779b97f4a7c15ull) / DOLPHIN_SUM * DOLPHIN_SUM;
}


static inline bool dolphin_kword_is_sound(uint64_t kword) {
    unsigned length = dolphin_kword_length(kword);
    if (kword >> 60 > DOLPHIN_DEAD || (kword >> 60 == DOLPHIN_EMPTY && kword != 0))
        return false;
    return length >= DOLPHIN_BLOCK ? dolphin_kword_block(kword) != 0
                                   : (kword & DOLPHIN_PAYLOAD & ((1ull << (56 - 8 * length)) - 1)) == 0;
}


/* Value words of any size. */

#define DOLPHIN_VALUE_BLOCK  (0x80ull << 56)
#define DOLPHIN_VALUE_FROZEN (1ull << 62)


static inline uint64_t dolphin_value_thawed(uint64_t word) {
    return word & ~DOLPHIN_VALUE_FROZEN;
}


static inline bool dolphin_value_is_block(uint64_t word) {
    return dolphin_value_thawed(word) >> 56 == 0x80;
}


static inline unsigned dolphin_value_inline_bytes(uint64_t word) { /* of one that is no block, and not 0 */
    return (unsigned)(dolphin_value_thawed(word) >> 56) - 1;
}


static inline far_addr dolphin_value_block(uint64_t word) {
    return (word & DOLPHIN_BLOCK_ADDR) * 16;
}


static inline uint64_t dolphin_code_bytes(unsigned code) {
    return code < 2048 ? 16ull * code : 32768 + 64ull * (code - 2048);
}


static inline uint64_t dolphin_value_block_bytes(uint64_t word) {
    return dolphin_code_bytes((unsigned)(word >> 44) & 0xfff);
}


static inline unsigned dolphin_value_code(size_t length) {
    size_t bytes = length + 8;
    return (unsigned)(bytes < 32768 ? (bytes + 15) / 16 : 2048 + (bytes - 32768 + 63) / 64);
}


static inline uint64_t dolphin_block_value(far_addr block, unsigned code) {
    return DOLPHIN_VALUE_BLOCK | (uint64_t)code << 44 | block / 16;
}


/* The first word of a value block. A word that was damaged leads to a block of another key: the hash tells. */
static inline uint64_t dolphin_value_head(size_t length, uint64_t key_hash) {
    return (uint32_t)length | key_hash << 32;
}


static inline uint64_t dolphin_head_length(uint64_t head) {
    return (uint32_t)head;
}


static inline bool dolphin_head_is_of(uint64_t head, uint64_t key_hash) {
    return head >> 32 == (uint32_t)key_hash;
}


static inline bool dolphin_value_is_sound(uint64_t word) {
    unsigned top = (unsigned)(dolphin_value_thawed(word) >> 56);
    if (top == 0)
        return word == 0;
    if (top <= 8)
        return (word & DOLPHIN_PAYLOAD) >> 8 * (top - 1) == 0;
    return top == 0x80 && dolphin_value_block(word) != 0 && dolphin_value_block_bytes(word) >= 16;
}


_Static_assert(sizeof(dolphin_root) == 32, "the descriptor");

#endif
