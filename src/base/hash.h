/* The hash of a byte string: XXH3 as an inline function. Strings of 8 bytes, the most frequent length of keys, are
 * hashed without a function call. */
#ifndef FAR_BASE_HASH_H
#define FAR_BASE_HASH_H

#define XXH_INLINE_ALL

#include "base/bytes.h"

#include <xxhash.h>


static inline uint64_t far_hash(far_bytes bytes, uint64_t seed) {
    return bytes.length == 8 ? XXH3_64bits_withSeed(bytes.data, 8, seed)
                             : XXH3_64bits_withSeed(bytes.data, bytes.length, seed);
}

#endif
