/* CHIME: what lies in far memory. A node (leaf or inner) is a row of 64-byte lines with three slots each, and a tail
 * line:
 *
 *   line    slot 3i: key word, value word | H0 | H1 | slot 3i+1 | slot 3i+2
 *           values of 9 to 16 bytes: slot 2i: key word, 2 value words | H0 | H1 | slot 2i+1
 *           values of 17 to 40 bytes: slot i: key word, 5 value words | H0 | H1
 *   H0      hop bitmaps of the slots, 16 each | self tag 15 << 48 | valid << 63
 *   H1      sibling's address >> 6, 42 | its tag 15 << 42 | nv 4 << 57 | occupied 3 << 61
 *   tail    H0': level 8, tag, valid | H1': sibling, nv | low | high | aux | V | S | L
 *
 * A pointer to a node carries the incarnation (tag) of that node, so one that is out of date is found out. All words
 * that describe a line lie in it: the state of a line is seen at one instant where the fabric's unit is a line. */
#ifndef FAR_INDEX_CHIME_LAYOUT_H
#define FAR_INDEX_CHIME_LAYOUT_H

#include "pool/owner.h"

#define CHIME_MAGIC       0x3130454d494843ull /* "CHIME01": pairs of less than words lie in blocks, if there are such */
#define CHIME_MAGIC_02    0x3230454d494843ull /* "CHIME02": they lie in the slots */
#define CHIME_MAGIC_03    0x3330454d494843ull /* "CHIME03": values of 9 to 40 bytes too, with fewer slots a line */
#define CHIME_KEY_MAX     1024u
#define CHIME_HOP_MAX     16u
#define CHIME_SPAN_MAX    510u
#define CHIME_MAP_BITS    63u /* of the map of free slots: one for each slot, or for a group of them */
#define CHIME_LINE        64u
#define CHIME_PER_LINE    3u  /* slots, at most: with values of a word */
#define CHIME_VALUE_WORDS 5u  /* of a slot that has a line for itself */
#define CHIME_LEVELS      32u /* more than any tree has: 63^32 keys */

enum { CHIME_TYPE_ROOT, CHIME_TYPE_NODE, CHIME_TYPE_BLOCK, CHIME_TYPE_KEY, CHIME_TYPES };

typedef struct chime_root { /* the descriptor: written once but for its last word */
    uint64_t magic, span, hop, homes, fixed, unit, masked, root;
} chime_root;

_Static_assert(sizeof(chime_root) == 64, "the descriptor is one line");
#define CHIME_ROOT_WORD offsetof(chime_root, root)


/* Pointer to a node: address >> 6, 42 << 22 | tag 15 << 7 | low 7 (0; the level in the root word; the distance in the
 * hotspot buffer). */

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


static inline chime_ptr chime_ptr_plain(chime_ptr p) {
    return p & ~0x7full;
}


/* Lines. per_line: the slots of one, 3, 2 or 1, as the size of values wants it. */

static inline unsigned chime_per_line(uint64_t value_bytes) {
    return value_bytes <= 8 ? 3 : value_bytes <= 16 ? 2 : 1;
}


static inline unsigned chime_slot_bytes(unsigned per_line) {
    return per_line == 3 ? 16 : 48u >> (per_line - 1);
}


static inline unsigned chime_line_of(unsigned per_line, unsigned slot) {
    return per_line == 3 ? slot / 3 : slot >> (per_line - 1);
}


static inline unsigned chime_in_line(unsigned per_line, unsigned slot) {
    return slot - chime_line_of(per_line, slot) * per_line;
}


static inline unsigned chime_node_bytes(unsigned per_line, unsigned span) {
    return (chime_line_of(per_line, span) + 1) * CHIME_LINE;
}


/* Byte offsets inside a node. The headers of a line lie behind its first slot. */

static inline unsigned chime_slot_at(unsigned per_line, unsigned slot) {
    unsigned in_line = chime_in_line(per_line, slot);
    return chime_line_of(per_line, slot) * CHIME_LINE + in_line * chime_slot_bytes(per_line) + (in_line ? 16 : 0);
}


static inline unsigned chime_h0_at(unsigned per_line, unsigned line) {
    return line * CHIME_LINE + chime_slot_bytes(per_line);
}


static inline unsigned chime_h1_at(unsigned per_line, unsigned line) {
    return chime_h0_at(per_line, line) + 8;
}


/* A READ of the slots first..last of a node, with the headers of all their lines, goes from .. up to ... */
static inline unsigned chime_read_from(unsigned per_line, unsigned first) {
    return chime_line_of(per_line, first) * CHIME_LINE +
           (chime_in_line(per_line, first) ? chime_slot_bytes(per_line) : 0);
}


static inline unsigned chime_read_end(unsigned per_line, unsigned last) {
    return chime_line_of(per_line, last) * CHIME_LINE + 16 +
           (chime_in_line(per_line, last) + 1) * chime_slot_bytes(per_line);
}


enum {
    CHIME_TAIL_H0,
    CHIME_TAIL_H1,
    CHIME_TAIL_LOW,
    CHIME_TAIL_HIGH,
    CHIME_TAIL_AUX,
    CHIME_TAIL_V,
    CHIME_TAIL_S,
    CHIME_TAIL_L
};


static inline unsigned chime_tail_at(unsigned per_line, unsigned span) {
    return chime_line_of(per_line, span) * CHIME_LINE;
}


/* H0. */

#define CHIME_VALID (1ull << 63)


static inline uint64_t chime_h0_make(uint64_t maps, unsigned tag, bool valid) {
    return (maps & 0xffffffffffffull) | (uint64_t)(tag & CHIME_TAG_MASK) << 48 | (valid ? CHIME_VALID : 0);
}


static inline unsigned chime_h0_map(uint64_t h0, unsigned which) {
    return (unsigned)(h0 >> 16 * which) & 0xffff;
}


static inline uint64_t chime_h0_with_map(uint64_t h0, unsigned which, unsigned map) {
    return (h0 & ~(0xffffull << 16 * which)) | (uint64_t)(map & 0xffff) << 16 * which;
}


static inline unsigned chime_h0_tag(uint64_t h0) {
    return (unsigned)(h0 >> 48) & CHIME_TAG_MASK;
}


static inline bool chime_h0_valid(uint64_t h0) {
    return h0 & CHIME_VALID;
}


static inline unsigned chime_h0_level(uint64_t h0) { /* of a tail */
    return (unsigned)h0 & 0xff;
}


/* H1. */

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


static inline uint64_t chime_h1_shape(uint64_t h1) { /* sibling and nv: the same in all lines of a node at rest */
    return h1 & ~(7ull << 61);
}


/* L, the lock word. Free: the map of occupied slots << 1 (0 where the fabric has no masked CAS: there the map is V).
 * Held: 1 | owner 38 << 1 | nonce 18 << 39 | how many it will be handed on to (32 at most), 6 << 57. Of a node
 * that is no longer linked: all ones. */

#define CHIME_LOCK_DEAD (~0ull)


static inline bool chime_lock_is_held(uint64_t lock) {
    return lock & 1;
}


static inline uint64_t chime_lock_make(uint64_t owner, uint64_t nonce, unsigned behind) {
    return 1 | (owner & FAR_OWNER_MASK) << 1 | (nonce & 0x3ffff) << 39 | (uint64_t)(behind & 63) << 57;
}


static inline unsigned chime_lock_behind(uint64_t lock) {
    return (unsigned)(lock >> 57);
}


static inline uint64_t chime_lock_owner(uint64_t lock) {
    return lock >> 1 & FAR_OWNER_MASK;
}


static inline uint64_t chime_map_word(uint64_t map) {
    return map << 1;
}


static inline uint64_t chime_word_map(uint64_t word) {
    return word >> 1;
}


/* S, the structural nonce: busy 1 | counter 41 << 1 | client 14 << 42 | generation 8 << 56. Whoever changes slots or
 * headers leaves one that was never there before. */

static inline uint64_t chime_nonce_make(unsigned client, unsigned generation, uint64_t counter, bool busy) {
    return (uint64_t)busy | (counter & 0x1ffffffffffull) << 1 | (uint64_t)(client & 0x3fff) << 42 |
           (uint64_t)(generation & 0xff) << 56;
}


static inline bool chime_nonce_busy(uint64_t s) {
    return s & 1;
}


/* The value word of a leaf where keys or values are not 8 bytes: the block with key and value, address >> 4, 44 << 20 |
 * size class 6 << 14 | slot - home 4 << 10 | fingerprint 10. */

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


static inline unsigned chime_value_print(uint64_t word) {
    return (unsigned)word & 1023;
}


static inline uint64_t chime_value_with_distance(uint64_t word, unsigned distance) {
    return (word & ~(15ull << 10)) | (uint64_t)(distance & 15) << 10;
}


static inline uint64_t chime_value_identity(uint64_t word) { /* without the bits that say where the item lies */
    return word & ~(15ull << 10);
}


/* Blocks: klen 16 | vlen 32 << 16, then key and value. Four size classes per doubling, from 32 bytes to 128 KiB. */

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


/* Fences and pivots. Keys of 8 bytes: the key as a number. Else a reference: 0 = the empty key; up to 7 bytes in the
 * word itself (bytes 56 << 8 | length 3 << 1 | 1); or a key block (address >> 4, 44 << 20 | length 11 << 1). */

#define CHIME_REF_ELSEWHERE 2ull /* of a fence in local memory alone: its bytes are at hand, but not its word */


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
