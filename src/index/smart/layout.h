/* clang-format off */
/* The bytes of SMART in far memory: slot words, nodes, leaves, redo records and the root. All other files of the folder
 * read and build these words through the inline functions below.
 *
 * All integers are little-endian; every object is 32-byte aligned. "name n" is a field of n bits; the first field
 * begins at bit 0. "partial key" is the paper's term for the byte of a key that selects a slot of a node; here it may
 * also be EOK, "the key ends here".
 *
 *    slot word    address / 32 43 | partial key 8 | eok 1 | kind 2 | bound 1 | frozen 1 | hint 7 | 0 1
 *      all zero     The slot is unbound: it never belonged to a partial key. A list binds its slots in index order; a
 *                   full list has no unbound slot.
 *      bound        The slot belongs to its partial key for ever.
 *      kind none    If bound, the word is a tombstone: the partial key has no child, and keeps the slot.
 *      frozen       No CAS succeeds on this word any more. A word with only this bit is a frozen unbound slot.
 *      hint         Of a leaf: its size class, or a fingerprint of its key if all leaves of the index have one size.
 *                   Of a node: read type 5, which says how many bytes to READ, and gap0 1, which says that the child's
 *                   prefix is one byte longer than that of the node with this slot, without compressed bytes.
 *
 *    node         ctl, fp, info, slots
 *      ctl          kind 4 | state 3 | recycled 1 | layout 4 | incarnation 13 | tag 39. Only the state ever changes.
 *      fp           hash of the full prefix, 61 bits
 *      info         depth 12 | tail length 4 | tail 48: the last bytes of the prefix, the last one in the low byte
 *
 *    leaf         ctl first
 *      ctl          kind 4 | state 3 | recycled 1 | incarnation 56.
 *                   REPLACED leaves contain, instead of the incarnation, the successor: class 13 | address / 32 43
 *      C8           ctl, chk, key 8 bytes, value 8 bytes
 *      VW           ctl, chk, value 8 bytes, meta, key
 *      VR           ctl, chk, meta, key, value
 *      VI           ctl, meta, chk, key, value, unused bytes, lock in the last 8 bytes of the size class
 *      meta         key length 12 | class 7 | value length 24 | version 21
 *
 *    redo record  {owner, lock word, leaf, bytes, chk} and the bytes to be written to leaf + 8, without the lock
 *
 *    root         256 slots, selected by the first byte of the key. Slot b is word b / n of the stripe on memory node
 *                 b % n. They are bound when the index is created, so none is ever zero, and they are never frozen. */
/* clang-format on */
#ifndef FAR_INDEX_SMART_LAYOUT_H
#define FAR_INDEX_SMART_LAYOUT_H

#include "index/index.h"

enum { SMART_TYPE_ROOT, SMART_TYPE_STRIPE, SMART_TYPE_NODE, SMART_TYPE_LEAF, SMART_TYPE_REDO, SMART_TYPES };

#define SMART_MAGIC      0x74726174ull
#define SMART_KEY_MAX    4095u
#define SMART_PART_EOK   256u /* the partial key "the key ends here"; the others are 0 to 255 */
#define SMART_PARTS      257u
#define SMART_TAIL_MAX   6u
#define SMART_HEADER     24u
#define SMART_ROOT_SLOTS 256u
/* Number of additional epochs for which the memory of a retired node stays unchanged. During this time a handle that
 * saw the node linked needs no READ of its header (node_keeps_memory in find_cached.c). */
#define SMART_NODE_EPOCHS 12

typedef enum { SMART_NONE, SMART_LEAF, SMART_NODE } smart_word_kind;
typedef enum { SMART_C8 = 1, SMART_VW, SMART_VI, SMART_VR, SMART_INTERNAL_NODE = 10 } smart_kind;
typedef enum { SMART_PENDING, SMART_LIVE, SMART_FROZEN, SMART_DEAD, SMART_REPLACED } smart_object_state;
typedef enum { SMART_L128, SMART_L256, SMART_L512, SMART_DIR, SMART_PAPER, SMART_LAYOUTS } smart_layout;

/* Slot words. */

#define SMART_ADDR_MASK  ((1ull << 43) - 1)
#define SMART_FROZEN_BIT (1ull << 55)
#define SMART_BOUND      (1ull << 54)
#define SMART_GAP0       (1ull << 61)
#define SMART_READ_DIR   31u


static inline uint64_t smart_word(far_addr addr, unsigned part, smart_word_kind kind, unsigned hint) {
    return addr / 32 | (uint64_t)part << 43 | (uint64_t)kind << 52 | SMART_BOUND | (uint64_t)hint << 56;
}


static inline uint64_t smart_tombstone(unsigned part) {
    return smart_word(0, part, SMART_NONE, 0);
}


static inline far_addr smart_word_addr(uint64_t word) {
    return (word & SMART_ADDR_MASK) * 32;
}


static inline unsigned smart_word_part(uint64_t word) {
    return (unsigned)(word >> 43) & 0x1ff;
}


static inline smart_word_kind smart_word_kind_of(uint64_t word) {
    return (smart_word_kind)(word >> 52 & 3);
}


static inline unsigned smart_word_hint(uint64_t word) {
    return (unsigned)(word >> 56) & 0x7f;
}


static inline unsigned smart_word_read_type(uint64_t word) {
    return (unsigned)(word >> 56) & 31;
}


static inline uint64_t smart_word_with_part(uint64_t word, unsigned part) {
    return (word & ~(0x1ffull << 43)) | (uint64_t)part << 43;
}


static inline uint64_t smart_word_with_gap0(uint64_t word, bool gap0) {
    return gap0 ? word | SMART_GAP0 : word & ~SMART_GAP0;
}


static inline uint64_t smart_word_with_read_type(uint64_t word, unsigned type) {
    return (word & ~(31ull << 56)) | (uint64_t)type << 56;
}


/* Returns whether the layout allows this word as a slot word. Other words must not be used. */
static inline bool smart_word_is_sound(uint64_t word) {
    unsigned part = smart_word_part(word), kind = (unsigned)smart_word_kind_of(word);
    if ((word & ~SMART_FROZEN_BIT) == 0)
        return true;
    return (word & SMART_BOUND) && word >> 63 == 0 && part <= SMART_PART_EOK && kind <= SMART_NODE &&
           (kind == SMART_NONE) == (smart_word_addr(word) == 0);
}


/* Returns the rank of a partial key in key order: a key that ends at this depth precedes all keys that continue. */
static inline unsigned smart_part_rank(unsigned part) {
    return part == SMART_PART_EOK ? 0 : part + 1;
}


/* Returns the partial key of a key at this depth. */
static inline unsigned smart_part(far_bytes key, unsigned depth) {
    return depth < key.length ? ((const uint8_t *)key.data)[depth] : SMART_PART_EOK;
}


/* Nodes. */

static inline uint64_t smart_node_ctl(smart_object_state state, bool recycled, smart_layout layout,
                                      unsigned incarnation, uint64_t tag) {
    return (uint64_t)SMART_INTERNAL_NODE | (uint64_t)state << 4 | (uint64_t)recycled << 7 | (uint64_t)layout << 8 |
           (uint64_t)(incarnation & 0x1fff) << 12 | tag << 25;
}


static inline unsigned smart_ctl_kind(uint64_t ctl) {
    return (unsigned)ctl & 15;
}


static inline smart_object_state smart_ctl_state(uint64_t ctl) {
    return (smart_object_state)(ctl >> 4 & 7);
}


static inline bool smart_ctl_is_recycled(uint64_t ctl) {
    return ctl >> 7 & 1;
}


static inline uint64_t smart_ctl_with_state(uint64_t ctl, smart_object_state state) {
    return (ctl & ~(7ull << 4)) | (uint64_t)state << 4;
}


static inline unsigned smart_ctl_layout(uint64_t ctl) {
    return (unsigned)(ctl >> 8) & 15;
}


static inline uint64_t smart_ctl_tag(uint64_t ctl) {
    return ctl >> 25;
}


static inline unsigned smart_layout_slots(unsigned layout) {
    static const uint16_t slots[SMART_LAYOUTS] = {13, 29, 61, 257, 258};
    return slots[layout];
}


static inline unsigned smart_layout_bytes(unsigned layout) {
    return SMART_HEADER + 8 * smart_layout_slots(layout);
}


static inline uint64_t smart_info(const uint8_t *prefix, unsigned depth) {
    unsigned tail = depth < SMART_TAIL_MAX ? depth : SMART_TAIL_MAX;
    uint64_t bytes = 0;
    for (unsigned i = depth - tail; i < depth; i++)
        bytes = bytes << 8 | prefix[i];
    return depth | (uint64_t)tail << 12 | bytes << 16;
}


static inline unsigned smart_info_depth(uint64_t info) {
    return (unsigned)info & 0xfff;
}


static inline unsigned smart_info_tail(uint64_t info) {
    return (unsigned)(info >> 12) & 15;
}


/* Returns byte i of the prefix; i must be one of the last smart_info_tail bytes. */
static inline uint8_t smart_info_byte(uint64_t info, unsigned i) {
    return (uint8_t)(info >> (16 + 8 * (smart_info_depth(info) - 1 - i)));
}


/* A list node is READ in one of ten sizes; the number of the size is the read type of the node. */
#define SMART_READ_TYPES 10u


static inline unsigned smart_read_bytes(unsigned type) {
    static const uint16_t bytes[SMART_READ_TYPES] = {64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2088};
    return bytes[type < SMART_READ_TYPES ? type : SMART_READ_TYPES - 1];
}


/* Returns whether the option node_types=`types` uses this read type. The largest read type is always in use. */
static inline bool smart_read_type_in_use(unsigned type, unsigned types) {
    return (type + 1) * types / SMART_READ_TYPES != type * types / SMART_READ_TYPES;
}


/* Returns the smallest read type in use that covers `words` slots or the whole node. Callers pass the number of
 * children plus one, so that the READ also returns the first unbound slot. */
static inline unsigned smart_read_type_for(unsigned words, unsigned layout, unsigned types) {
    if (layout == SMART_DIR)
        return SMART_READ_DIR;
    unsigned bytes = SMART_HEADER + 8 * words, type = 0;
    while (type + 1 < SMART_READ_TYPES && (smart_read_bytes(type) < bytes || !smart_read_type_in_use(type, types)) &&
           smart_read_bytes(type) < smart_layout_bytes(layout))
        type++;
    return type;
}


/* Leaves. */

static inline uint64_t smart_leaf_ctl(smart_kind kind, smart_object_state state, bool recycled, uint64_t incarnation) {
    return (uint64_t)kind | (uint64_t)state << 4 | (uint64_t)recycled << 7 | incarnation << 8;
}


static inline uint64_t smart_ctl_incarnation(uint64_t ctl) {
    return ctl >> 8;
}


static inline uint64_t smart_ctl_replaced(uint64_t ctl, far_addr by, unsigned class) {
    return (ctl & 0x8f) | (uint64_t)SMART_REPLACED << 4 | (uint64_t) class << 8 | by / 32 << 21;
}


static inline far_addr smart_ctl_forward(uint64_t ctl) {
    return (ctl >> 21) * 32;
}


static inline unsigned smart_ctl_forward_class(uint64_t ctl) {
    return (unsigned)(ctl >> 8) & 0x7f;
}


/* Size classes of leaves: steps of 8 bytes from 32 to 128 bytes, then 8 steps per doubling up to 72 KiB. */
#define SMART_CLASSES 86u


static inline unsigned smart_class_bytes(unsigned class) {
    return class < 4 ? 32 + 8 * class : (8 + (class - 4) % 8) << (3 + (class - 4) / 8);
}


static inline unsigned smart_class_for(uint64_t bytes) {
    if (bytes <= 64)
        return bytes <= 32 ? 0 : (unsigned)(bytes - 32 + 7) / 8;
    unsigned doubling = 63 - (unsigned)__builtin_clzll(bytes - 1); /* 2^doubling < bytes <= 2^(doubling + 1) */
    unsigned step = (unsigned)((bytes - (1ull << doubling) + (1ull << (doubling - 3)) - 1) >> (doubling - 3));
    return 4 + 8 * (doubling - 6) + step;
}


static inline uint64_t smart_meta(unsigned key_length, unsigned class, uint64_t value_length, unsigned version) {
    return key_length | (uint64_t) class << 12 | value_length << 19 | (uint64_t)(version & 0x1fffff) << 43;
}


static inline unsigned smart_meta_key(uint64_t meta) {
    return (unsigned)meta & 0xfff;
}


static inline unsigned smart_meta_class(uint64_t meta) {
    return (unsigned)(meta >> 12) & 0x7f;
}


static inline uint64_t smart_meta_value(uint64_t meta) {
    return meta >> 19 & 0xffffff;
}


static inline unsigned smart_meta_version(uint64_t meta) {
    return (unsigned)(meta >> 43);
}


/* Byte offsets of the fields in a leaf of this kind. The value of a C8 or VW leaf is one word. */
static inline unsigned smart_key_offset(unsigned kind) {
    return kind == SMART_C8 ? 16 : kind == SMART_VW ? 32 : 24;
}


static inline unsigned smart_meta_offset(unsigned kind) {
    return kind == SMART_VW ? 24 : kind == SMART_VI ? 8 : 16;
}


static inline unsigned smart_chk_offset(unsigned kind) {
    return kind == SMART_VI ? 16 : 8;
}


static inline unsigned smart_value_offset(unsigned kind, unsigned key_length) {
    return kind == SMART_C8 ? 24 : kind == SMART_VW ? 16 : 24 + key_length;
}


static inline uint64_t smart_leaf_bytes(unsigned kind, uint64_t key_length, uint64_t value_length) {
    switch (kind) {
    case SMART_C8:
        return 32;
    case SMART_VW:
        return 32 + key_length;
    case SMART_VI:
        return 24 + key_length + value_length + 8;
    default:
        return 24 + key_length + value_length;
    }
}


/* The lock word of a VI leaf is 0 if the lock is free. Usually it contains the address / 32 of the holder's redo record
 * and a version, so that no lock word appears twice. If all bytes that an update writes are in one tearing granule, no
 * redo record is needed; then the word is SMART_LOCK_OWNER and the owner (pool/format/owner.h). */
#define SMART_LOCK_OWNER (1ull << 63)


static inline uint64_t smart_lock_redo(far_addr redo, unsigned version) {
    return redo / 32 | (uint64_t)(version & 0xfffff) << 43;
}


static inline far_addr smart_lock_record(uint64_t lock) {
    return (lock & SMART_ADDR_MASK) * 32;
}


/* A redo record. The bytes to be written follow. */
typedef struct smart_redo {
    /* the session that must complete the update: its writer, or a session that took the update over by CAS */
    uint64_t owner;
    uint64_t lock;  /* the lock word that names this record */
    uint64_t leaf;  /* address of the leaf */
    uint64_t bytes; /* number of bytes to be written from leaf + 8 on */
    uint64_t chk;   /* checksum of all fields except owner, and of the bytes */
    uint64_t unused;
} smart_redo;


/* The descriptor of the index. */
typedef struct smart_root {
    uint64_t magic;
    uint64_t stripes;  /* number of stripes, one per memory node */
    uint64_t stripe[]; /* addresses of the stripes */
} smart_root;

_Static_assert(sizeof(smart_redo) == 48 && sizeof(smart_root) == 16, "no padding");
_Static_assert(FAR_NODES_MAX <= SMART_ROOT_SLOTS, "every stripe has a slot");

/* Prefix hashes are polynomials modulo 2^61 - 1 in a secret base. Each step adds one byte, so one pass over the key
 * yields the hashes of all its prefixes. */
#define SMART_HASH_PRIME ((1ull << 61) - 1)


static inline uint64_t smart_hash_step(uint64_t hash, uint8_t byte, uint64_t base) {
    unsigned __int128 x = (unsigned __int128)hash * base + byte + 1;
    uint64_t sum = (uint64_t)(x & SMART_HASH_PRIME) + (uint64_t)(x >> 61);
    return sum >= SMART_HASH_PRIME ? sum - SMART_HASH_PRIME : sum;
}

#endif
