/* The bytes of the toy map in far memory. "name: n << s" is a field of n bits that begins at bit s.
 *
 *     root (the descriptor)   {magic, slots, stripes, slot bytes} and the address of every stripe
 *     stripe                  one per memory node, or more if they would not fit into blocks; slot i of the map is slot i / stripes of stripe i % stripes
 *     slot                    the word, followed by a lock word if the index has locks
 *       word                  address / 16: 44 << 0 | bytes / 16: 20 << 44 of the slot's bucket object; 0: no keys
 *       lock                  0: free; otherwise the owner (pool/format/owner.h)
 *     bucket                  {count, bytes} and all pairs of keys that hash to the slot, sorted by key; immutable
 *       pair                  {key length, value length}, key, value, each padded with zeros to a multiple of 8 */
#ifndef FAR_INDEX_TOY_LAYOUT_H
#define FAR_INDEX_TOY_LAYOUT_H

#include "index/index.h"

enum { TOY_TYPE_ROOT, TOY_TYPE_STRIPE, TOY_TYPE_BUCKET, TOY_TYPES };

#define TOY_MAGIC      0x70616d796f74ull
#define TOY_BUCKET_MAX ((1u << 24) - FAR_GRANULE) /* largest bucket in bytes: 20 bits of granules */
/* Bucket objects of up to TOY_CLASS_MAX bytes have sizes that are powers of two, so that an object that one bucket
 * frees can be reused for another bucket. */
#define TOY_CLASS_MIN 64u
#define TOY_CLASS_MAX (32u << 10) /* in bytes; larger bucket objects have the exact size of their bucket */

typedef struct toy_root {
    uint64_t magic;
    uint64_t slots;
    uint32_t stripes, slot_bytes;
    uint64_t unused;
    uint64_t stripe[]; /* address of each stripe */
} toy_root;

typedef struct toy_bucket {
    uint32_t count; /* number of pairs */
    uint32_t bytes; /* size of the whole bucket, a multiple of 16; its object may be larger */
} toy_bucket;

typedef struct toy_pair {
    uint32_t key_length, value_length;
} toy_pair;

_Static_assert(sizeof(toy_root) == 32 && sizeof(toy_bucket) == 8 && sizeof(toy_pair) == 8, "no padding");


static inline uint64_t toy_word(far_addr bucket, uint64_t bytes) {
    return bucket / FAR_GRANULE | bytes / FAR_GRANULE << 44;
}


static inline far_addr toy_word_addr(uint64_t word) {
    return (word & ((1ull << 44) - 1)) * FAR_GRANULE;
}


static inline uint64_t toy_word_bytes(uint64_t word) {
    return (word >> 44) * FAR_GRANULE;
}


/* The size of the object that is allocated for a bucket of so many bytes. */
static inline uint64_t toy_object_bytes(uint64_t bytes) {
    uint64_t size = TOY_CLASS_MIN;
    if (bytes > TOY_CLASS_MAX)
        return bytes;
    while (size < bytes)
        size *= 2;
    return size;
}


static inline uint64_t toy_round(uint64_t bytes, uint64_t step) {
    return (bytes + step - 1) / step * step;
}


static inline uint64_t toy_pair_bytes(uint64_t key_length, uint64_t value_length) {
    return sizeof(toy_pair) + toy_round(key_length, 8) + toy_round(value_length, 8);
}

#endif
