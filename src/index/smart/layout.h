/* clang-format off */
/* SMART as bytes. All integers little-endian; every object is 32-byte aligned. "name n": a field of n bits, from bit 0 on.
 *
 *   slot word   address / 32 43 | partial 8 | eok 1 | kind 2 | bound 1 | F 1 | hint 7 | 0
 *                 all zero      never bound: the first such word of a list is its frontier; a full list has none
 *                 bound, none   a tombstone: the partial key keeps the slot for ever
 *                 F             frozen: no CAS succeeds on this word any more; F alone: a frozen frontier
 *                 hint          leaf: size class; node: read type 5 | gap0 1 (the child is one byte deeper than the owner)
 *
 *   node        ctl, fp, info, slots
 *     ctl         kind 4 | state 3 | rec 1 | layout 4 | life 13 | tag 39: the only word of the header that changes
 *     fp          hash of the full prefix, 61 bits
 *     info        depth 12 | tail length 4 | tail 48: the last bytes of the prefix, the last one in the low byte
 *
 *   leaf        ctl first
 *     ctl         kind 4 | state 3 | rec 1 | life 56; REPLACED: instead of the life class 13 | forward address / 32 43
 *     C8          ctl, chk, key 8 bytes, value 8 bytes
 *     VW          ctl, chk, value 8 bytes, meta, key
 *     VR          ctl, chk, meta, key, value
 *     VI          ctl, meta, chk, key, value, ..., lock in the last 8 bytes of the class
 *     meta        key length 12 | class 7 | value length 24 | version 21
 *
 *   redo        {owner, lock word, leaf, bytes, chk} and the bytes that go to leaf + 8, without the lock
 *   root        256 slots by the first byte of the key; slot b is word b / n of the stripe on node b % n; no F; all bound
 *               from the beginning, so that none of them is ever zero */
/* clang-format on */
#ifndef FAR_INDEX_SMART_LAYOUT_H
#define FAR_INDEX_SMART_LAYOUT_H

#include "index/index.h"

enum { SMART_TYPE_ROOT, SMART_TYPE_STRIPE, SMART_TYPE_NODE, SMART_TYPE_LEAF, SMART_TYPE_REDO, SMART_TYPES };

#define SMART_MAGIC      0x74726174ull
#define SMART_KEY_MAX    4095u
#define SMART_PART_EOK   256u /* a partial key: a byte, or "the key ends here" */
#define SMART_PARTS      257u
#define SMART_TAIL_MAX   6u
#define SMART_HEADER     24u
#define SMART_ROOT_SLOTS 256u

typedef enum { SMART_NONE, SMART_LEAF, SMART_NODE } smart_word_kind;
typedef enum { SMART_C8 = 1, SMART_VW, SMART_VI, SMART_VR, SMART_INNER = 10 } smart_kind;
typedef enum { SMART_PENDING, SMART_LIVE, SMART_FROZEN, SMART_DEAD, SMART_REPLACED } smart_object_state;
typedef enum { SMART_L128, SMART_L256, SMART_L512, SMART_DIR, SMART_PAPER, SMART_LAYOUTS } smart_layout;

/* Slot words. */

#define SMART_ADDR_MASK ((1ull << 43) - 1)
#define SMART_F         (1ull << 55)
#define SMART_BOUND     (1ull << 54)
#define SMART_GAP0      (1ull << 61)
#define SMART_READ_DIR  31u


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


static inline smart_word_kind smart_word_is(uint64_t word) {
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


/* Nothing can come of this word but what the layout says. */
static inline bool smart_word_is_sound(uint64_t word) {
    unsigned part = smart_word_part(word), kind = (unsigned)smart_word_is(word);
    if ((word & ~SMART_F) == 0)
        return true;
    return (word & SMART_BOUND) && word >> 63 == 0 && part <= SMART_PART_EOK && kind <= SMART_NODE &&
           (kind == SMART_NONE) == (smart_word_addr(word) == 0);
}


/* The order of partial keys: a key that ends comes before all that go on. */
static inline unsigned smart_part_rank(unsigned part) {
    return part == SMART_PART_EOK ? 0 : part + 1;
}


static inline unsigned smart_part(far_bytes key, unsigned depth) {
    return depth < key.length ? ((const uint8_t *)key.data)[depth] : SMART_PART_EOK;
}


/* Nodes. */

static inline uint64_t smart_node_ctl(smart_object_state state, bool rec, smart_layout layout, unsigned life,
                                      uint64_t tag) {
    return (uint64_t)SMART_INNER | (uint64_t)state << 4 | (uint64_t)rec << 7 | (uint64_t)layout << 8 |
           (uint64_t)(life & 0x1fff) << 12 | tag << 25;
}


static inline unsigned smart_ctl_kind(uint64_t ctl) {
    return (unsigned)ctl & 15;
}


static inline smart_object_state smart_ctl_state(uint64_t ctl) {
    return (smart_object_state)(ctl >> 4 & 7);
}


static inline bool smart_ctl_rec(uint64_t ctl) {
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


/* Byte i of the prefix; i is one of the last smart_info_tail bytes. */
static inline uint8_t smart_info_byte(uint64_t info, unsigned i) {
    return (uint8_t)(info >> (16 + 8 * (smart_info_depth(info) - 1 - i)));
}


/* How much of a list is READ: ten sizes. */
#define SMART_READ_TYPES 10u


static inline unsigned smart_read_bytes(unsigned type) {
    static const uint16_t bytes[SMART_READ_TYPES] = {64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2088};
    return bytes[type < SMART_READ_TYPES ? type : SMART_READ_TYPES - 1];
}


/* With `types` of them in use; the largest always is. */
static inline bool smart_read_type_in_use(unsigned type, unsigned types) {
    return (type + 1) * types / SMART_READ_TYPES != type * types / SMART_READ_TYPES;
}


/* The smallest type in use whose READ shows `words` slots (the children and one more), or the whole node. */
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

static inline uint64_t smart_leaf_ctl(smart_kind kind, smart_object_state state, bool rec, uint64_t life) {
    return (uint64_t)kind | (uint64_t)state << 4 | (uint64_t)rec << 7 | life << 8;
}


static inline uint64_t smart_ctl_life(uint64_t ctl) {
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


/* Sizes: steps of 8 bytes from 32 to 128, then 8 steps per doubling to 72 KiB. */
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


/* Where key, value and meta lie. Values of C8 and VW are one word. */
static inline unsigned smart_key_at(unsigned kind) {
    return kind == SMART_C8 ? 16 : kind == SMART_VW ? 32 : 24;
}


static inline unsigned smart_meta_at(unsigned kind) {
    return kind == SMART_VW ? 24 : kind == SMART_VI ? 8 : 16;
}


static inline unsigned smart_chk_at(unsigned kind) {
    return kind == SMART_VI ? 16 : 8;
}


static inline unsigned smart_value_at(unsigned kind, unsigned key_length) {
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


/* Locks of VI leaves. With a redo record: its address / 32 | a version so that no word comes twice; without one
 * (everything that is written lies in one atomic unit): this bit and the owner (pool/owner.h). */
#define SMART_LOCK_OWNER (1ull << 63)


static inline uint64_t smart_lock_redo(far_addr redo, unsigned version) {
    return redo / 32 | (uint64_t)(version & 0xfffff) << 43;
}


static inline far_addr smart_lock_record(uint64_t lock) {
    return (lock & SMART_ADDR_MASK) * 32;
}


typedef struct smart_redo { /* before the bytes */
    uint64_t owner;         /* the session that wrote it, or completes it: by CAS when that one is dead */
    uint64_t lock;          /* the lock word it belongs to */
    uint64_t leaf, bytes;
    uint64_t chk; /* of all this but the owner, and the bytes */
    uint64_t unused;
} smart_redo;


typedef struct smart_root { /* the descriptor */
    uint64_t magic;
    uint64_t stripes;
    uint64_t stripe[]; /* addresses */
} smart_root;

_Static_assert(sizeof(smart_redo) == 48 && sizeof(smart_root) == 16, "no padding");
_Static_assert(FAR_NODES_MAX <= SMART_ROOT_SLOTS, "every stripe has a slot");

/* Prefix hashes: a polynomial modulo 2^61 - 1 in a secret base, so that all depths of a key come in one pass. */
#define SMART_HASH_PRIME ((1ull << 61) - 1)


static inline uint64_t smart_hash_step(uint64_t hash, uint8_t byte, uint64_t base) {
    unsigned __int128 x = (unsigned __int128)hash * base + byte + 1;
    uint64_t sum = (uint64_t)(x & SMART_HASH_PRIME) + (uint64_t)(x >> 61);
    return sum >= SMART_HASH_PRIME ? sum - SMART_HASH_PRIME : sum;
}

#endif
