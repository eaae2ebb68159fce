/* CHIME: the layout of its objects in far memory, as constants and pure encoding functions. Every other file of the
 * folder uses them; no other file contains a bit position.
 *
 * A node is either a leaf or an inner node; both have the same format. A node is an array of 64-byte lines, each with
 * up to three slots, followed by one tail line:
 *
 *     line    slot 3i: key word, value word | H0 | H1 | slot 3i+1 | slot 3i+2
 *             values of 9 to 16 bytes:  slot 2i: key word, 2 value words | H0 | H1 | slot 2i+1
 *             values of 17 to 40 bytes: slot i: key word, 5 value words | H0 | H1
 *     H0      hop bitmaps of the line's slots, 16 bits each | self tag 15 << 48 | valid 1 << 63
 *     H1      sibling address >> 6, 42 bits | sibling tag 15 << 42 | nv 4 << 57 | occupied 3 << 61
 *     tail    H0': level 8, tag, valid | H1': sibling, nv | low | high | absorber | V | S | L
 *
 * A leaf is a hopscotch hash table. The hash of a key selects its home slot; the key may be stored in any slot of its
 * neighbourhood, which is the home slot and the slots that follow it. The hop bitmap of a home slot records which slots
 * of the neighbourhood hold keys of that home slot. In an inner node a slot holds a pivot and a child pointer, in any
 * order.
 *
 * The tail describes the whole node. `low` is the smallest key that the node may hold, `high` the first key that it may
 * not hold; both are called fences. `absorber` names the left neighbour into which the node was merged, or is 0. V, S
 * and L are described below, at their functions. nv is the node version of the paper, which changes when the node is
 * split or absorbs its sibling.
 *
 * A pointer to a node carries the incarnation tag of that node, which changes each time the memory is allocated. A
 * reader compares it with the self tag of each line, so an outdated pointer is detected. All words that describe a line
 * are stored in the line itself. Therefore a reader sees a line in one consistent state if the fabric does not tear
 * lines. */
#ifndef FAR_INDEX_CHIME_LAYOUT_H
#define FAR_INDEX_CHIME_LAYOUT_H

#include "pool/format/owner.h"

/* Format "CHIME01": items are stored in pair blocks, unless key and value have exactly 8 bytes each. */
#define CHIME_MAGIC 0x3130454d494843ull
/* format "CHIME02": keys and values of up to 8 bytes are stored in the slots */
#define CHIME_MAGIC_02 0x3230454d494843ull
/* Format "CHIME03": values of 9 to 40 bytes are stored in the slots too, with fewer slots per line. */
#define CHIME_MAGIC_03 0x3330454d494843ull
#define CHIME_KEY_MAX  1024u
#define CHIME_HOP_MAX  16u
#define CHIME_SPAN_MAX 510u
/* number of bits of the occupancy map; each bit represents one slot, or a group of slots */
#define CHIME_MAP_BITS    63u
#define CHIME_LINE        64u
#define CHIME_PER_LINE    3u  /* largest number of slots of a line, with values of one word */
#define CHIME_VALUE_WORDS 5u  /* number of value words of a slot that fills its line alone */
#define CHIME_LEVELS      32u /* limit of the height; a tree of this height would have 63^32 keys */

enum { CHIME_TYPE_ROOT, CHIME_TYPE_NODE, CHIME_TYPE_BLOCK, CHIME_TYPE_KEY, CHIME_TYPES };

/* The descriptor of an index. It is written once at creation; afterwards only its last word changes, by CAS. */
typedef struct chime_root {
    uint64_t magic, span, hop, home_slots, inline_items, unit, masked_cas, root;
} chime_root;

_Static_assert(sizeof(chime_root) == 64, "the descriptor is one line");
#define CHIME_ROOT_WORD offsetof(chime_root, root)


/* Pointer to a node: address >> 6, 42 bits << 22 | tag 15 << 7 | low 7. In a pointer to a node the low bits are 0. The
 * root word stores the level of the root in them, and the hotspot buffer the distance of the key from its home slot. */

typedef uint64_t chime_ptr;

#define CHIME_TAG_MASK 0x7fffu


static inline chime_ptr chime_ptr_make(far_addr addr, unsigned tag, unsigned low) {
    return (addr >> 6) << 22 | (uint64_t)(tag & CHIME_TAG_MASK) << 7 | (low & 0x7f);
}


static inline far_addr chime_ptr_addr(chime_ptr p) {
    return (p >> 22) << 6;
}


static inline unsigned chime_ptr_tag(chime_ptr p) {
    return (unsigned)(p >> 7) & CHIME_TAG_MASK;
}


static inline unsigned chime_ptr_low(chime_ptr p) {
    return (unsigned)p & 0x7f;
}


static inline chime_ptr chime_ptr_without_low(chime_ptr p) {
    return p & ~0x7full;
}


/* Lines. `per_line` is the number of slots of a line: 3, 2 or 1, depending on the size of the values. */

static inline unsigned chime_per_line(uint64_t value_bytes) {
    return value_bytes <= 8 ? 3 : value_bytes <= 16 ? 2 : 1;
}


static inline unsigned chime_slot_bytes(unsigned per_line) {
    return per_line == 3 ? 16 : 48u >> (per_line - 1);
}


static inline unsigned chime_line_of(unsigned per_line, unsigned slot) {
    return per_line == 3 ? slot / 3 : slot >> (per_line - 1);
}


static inline unsigned chime_slot_in_line(unsigned per_line, unsigned slot) {
    return slot - chime_line_of(per_line, slot) * per_line;
}


static inline unsigned chime_node_bytes(unsigned per_line, unsigned span) {
    return (chime_line_of(per_line, span) + 1) * CHIME_LINE;
}


/* Byte offsets within a node. The two header words H0 and H1 of a line follow its first slot. */

static inline unsigned chime_slot_offset(unsigned per_line, unsigned slot) {
    unsigned in_line = chime_slot_in_line(per_line, slot);
    return chime_line_of(per_line, slot) * CHIME_LINE + in_line * chime_slot_bytes(per_line) + (in_line ? 16 : 0);
}


static inline unsigned chime_h0_offset(unsigned per_line, unsigned line) {
    return line * CHIME_LINE + chime_slot_bytes(per_line);
}


static inline unsigned chime_h1_offset(unsigned per_line, unsigned line) {
    return chime_h0_offset(per_line, line) + 8;
}


/* A READ that covers the slots first..last of a node and the headers of all their lines extends from
 * chime_read_begin(first) to chime_read_end(last), exclusive. A header follows the first slot of its line, so a READ
 * that begins at another slot of the line starts at the header. */
static inline unsigned chime_read_begin(unsigned per_line, unsigned first) {
    return chime_line_of(per_line, first) * CHIME_LINE +
           (chime_slot_in_line(per_line, first) ? chime_slot_bytes(per_line) : 0);
}


static inline unsigned chime_read_end(unsigned per_line, unsigned last) {
    return chime_line_of(per_line, last) * CHIME_LINE + 16 +
           (chime_slot_in_line(per_line, last) + 1) * chime_slot_bytes(per_line);
}


enum {
    CHIME_TAIL_H0,
    CHIME_TAIL_H1,
    CHIME_TAIL_LOW,
    CHIME_TAIL_HIGH,
    CHIME_TAIL_ABSORBER,
    CHIME_TAIL_V,
    CHIME_TAIL_S,
    CHIME_TAIL_L
};


static inline unsigned chime_tail_offset(unsigned per_line, unsigned span) {
    return chime_line_of(per_line, span) * CHIME_LINE;
}


/* H0, the first header word of a line: hop bitmaps, incarnation tag, and whether the line is valid. All lines of a node
 * become invalid when its left neighbour absorbs it. */

#define CHIME_VALID (1ull << 63)


static inline uint64_t chime_h0_make(uint64_t maps, unsigned tag, bool valid) {
    return (maps & 0xffffffffffffull) | (uint64_t)(tag & CHIME_TAG_MASK) << 48 | (valid ? CHIME_VALID : 0);
}


static inline unsigned chime_h0_hop_bitmap(uint64_t h0, unsigned which) {
    return (unsigned)(h0 >> 16 * which) & 0xffff;
}


static inline uint64_t chime_h0_with_hop_bitmap(uint64_t h0, unsigned which, unsigned map) {
    return (h0 & ~(0xffffull << 16 * which)) | (uint64_t)(map & 0xffff) << 16 * which;
}


static inline unsigned chime_h0_tag(uint64_t h0) {
    return (unsigned)(h0 >> 48) & CHIME_TAG_MASK;
}


static inline bool chime_h0_valid(uint64_t h0) {
    return h0 & CHIME_VALID;
}


/* Returns the level of the node. `h0` must be the H0 of the tail, because only the tail stores a level there. */
static inline unsigned chime_h0_level(uint64_t h0) {
    return (unsigned)h0 & 0xff;
}


/* H1, the second header word of a line: the right sibling, the node version, and one bit per slot that is set if the
 * slot is occupied. */

static inline uint64_t chime_h1_make(chime_ptr sibling, unsigned nv, unsigned occupied) {
    return chime_ptr_addr(sibling) >> 6 | (uint64_t)chime_ptr_tag(sibling) << 42 | (uint64_t)(nv & 15) << 57 |
           (uint64_t)(occupied & 7) << 61;
}


static inline chime_ptr chime_h1_sibling(uint64_t h1) {
    return chime_ptr_make((h1 & 0x3ffffffffffull) << 6, (unsigned)(h1 >> 42) & CHIME_TAG_MASK, 0);
}


static inline unsigned chime_h1_nv(uint64_t h1) {
    return (unsigned)(h1 >> 57) & 15;
}


static inline unsigned chime_h1_occupied(uint64_t h1) {
    return (unsigned)(h1 >> 61);
}


static inline uint64_t chime_h1_with_occupied(uint64_t h1, unsigned occupied) {
    return (h1 & ~(7ull << 61)) | (uint64_t)(occupied & 7) << 61;
}


/* Sibling and node version together. They are equal in all lines of a node unless a split or merge is being written. */
static inline uint64_t chime_h1_sibling_nv(uint64_t h1) {
    return h1 & ~(7ull << 61);
}


/* L, the lock word of a node.
 *
 *     free    occupancy map << 1; 0 where the fabric has no masked CAS, because the map is in V then
 *     held    1 | owner 38 << 1 | nonce 18 << 39 | planned handovers 6 << 57
 *     dead    all ones: the node was unlinked and can never be locked again
 *
 * The planned handovers are the number of tasks of the owner's compute node, at most 32, that will get the lock next
 * without freeing it in between. */

#define CHIME_LOCK_DEAD (~0ull)


static inline bool chime_lock_is_held(uint64_t lock) {
    return lock & 1;
}


static inline uint64_t chime_lock_make(uint64_t owner, uint64_t nonce, unsigned behind) {
    return 1 | (owner & FAR_OWNER_MASK) << 1 | (nonce & 0x3ffff) << 39 | (uint64_t)(behind & 63) << 57;
}


static inline unsigned chime_lock_handovers(uint64_t lock) {
    return (unsigned)(lock >> 57);
}


static inline uint64_t chime_lock_owner(uint64_t lock) {
    return lock >> 1 & FAR_OWNER_MASK;
}


static inline uint64_t chime_map_to_word(uint64_t map) {
    return map << 1;
}


static inline uint64_t chime_map_from_word(uint64_t word) {
    return word >> 1;
}


/* S, the structure nonce: busy 1 | counter 41 << 1 | client 14 << 42 | generation 8 << 56. A client that changes slots
 * or headers of a node stores a value in S that was never used before. So two equal values of S, read before and after
 * a READ of the node, prove that at most one change overlapped that READ. */

static inline uint64_t chime_nonce_make(unsigned client, unsigned generation, uint64_t counter, bool busy) {
    return (uint64_t)busy | (counter & 0x1ffffffffffull) << 1 | (uint64_t)(client & 0x3fff) << 42 |
           (uint64_t)(generation & 0xff) << 56;
}


static inline bool chime_nonce_busy(uint64_t s) {
    return s & 1;
}


/* The value word of a leaf slot, if the full key and the value are stored in a pair block: pair block address >> 4, 44
 * bits << 20 | size class 6 << 14 | distance from the home slot 4 << 10 | fingerprint of the key 10. */

static inline uint64_t chime_value_word(far_addr block, unsigned class, unsigned distance, unsigned print) {
    return (block >> 4) << 20 | (uint64_t)(class & 63) << 14 | (uint64_t)(distance & 15) << 10 | (print & 1023);
}


static inline far_addr chime_value_block(uint64_t word) {
    return word >> 20 << 4;
}


static inline unsigned chime_value_class(uint64_t word) {
    return (unsigned)(word >> 14) & 63;
}


static inline unsigned chime_value_distance(uint64_t word) {
    return (unsigned)(word >> 10) & 15;
}


static inline unsigned chime_value_fingerprint(uint64_t word) {
    return (unsigned)word & 1023;
}


static inline uint64_t chime_value_with_distance(uint64_t word, unsigned distance) {
    return (word & ~(15ull << 10)) | (uint64_t)(distance & 15) << 10;
}


/* Returns the value word without the distance from the home slot, which changes when the item moves to another slot. */
static inline uint64_t chime_value_identity(uint64_t word) {
    return word & ~(15ull << 10);
}


/* Pair blocks: key length 16 | value length 32 << 16, then the key and the value. There are four size classes per
 * doubling, from 32 bytes to 128 KiB. */

#define CHIME_CLASSES    49u
#define CHIME_BLOCK_HEAD 8u


static inline uint32_t chime_class_bytes(unsigned class) {
    uint32_t base = 32u << class / 4;
    return base + base / 4 * (class % 4);
}


static inline unsigned chime_class_for(uint64_t bytes) {
    unsigned class = 0;
    while (class < CHIME_CLASSES && chime_class_bytes(class) < bytes)
        class ++;
    return class;
}


static inline uint64_t chime_block_head(size_t key_length, size_t value_length) {
    return (uint64_t)key_length | (uint64_t)value_length << 16;
}


static inline size_t chime_block_key_length(uint64_t head) {
    return head & 0xffff;
}


static inline size_t chime_block_value_length(uint64_t head) {
    return head >> 16 & 0xffffffff;
}


/* Fences and pivots are one word each. In an index that stores its items in the slots, the word is the key as a
 * big-endian number. Otherwise the word is a reference: 0 for the empty key; for up to 7 bytes the key itself (bytes 56
 * << 8 | length 3 << 1 | 1); otherwise a key block (address >> 4, 44 bits << 20 | length 11 << 1). */

/* Marks a fence that was rebuilt from the node cache: its bytes are available, but its word in far memory is unknown.
 */
#define CHIME_REF_LOCAL 2ull


static inline bool chime_ref_is_inline(uint64_t ref) {
    return ref == 0 || (ref & 1);
}


static inline uint64_t chime_ref_inline(const uint8_t *bytes, size_t length) {
    uint64_t word = 0;
    for (size_t i = 0; i < length; i++)
        word |= (uint64_t)bytes[i] << (56 - 8 * i);
    return length ? word | (uint64_t)length << 1 | 1 : 0;
}


static inline uint64_t chime_ref_block(far_addr addr, size_t length) {
    return (addr >> 4) << 20 | (uint64_t)length << 1;
}


static inline far_addr chime_ref_addr(uint64_t ref) {
    return ref >> 20 << 4;
}


static inline size_t chime_ref_length(uint64_t ref) {
    return (ref & 1) ? (ref >> 1 & 7) : (ref >> 1 & 0x7ffff);
}


static inline uint64_t chime_key_block_bytes(size_t length) {
    return (length + 15) / 16 * 16;
}

#endif
