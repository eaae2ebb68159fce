/* Self-checking values. The bytes of a value are a function of its key, size and version. So a reader can check that
 * the value belongs to the key and is complete, and can determine its version, without a record of the writes.
 *
 *     size 0        nothing to check
 *     1..7          bytes of a hash of key and size; no version
 *     8..15         u32 version (masked by the hash), u32 hash of key and size mixed with the version, then bytes
 *                   derived from both
 *     16 and more   u64 hash of key and size mixed with the version, u64 version, then words derived from both
 *
 * With 8 bytes or more, every single flipped bit is detected. So is a value that contains words of two versions,
 * because each word is a bijection of the version and therefore differs between any two versions. */
#ifndef FAR_WORKLOAD_VALUE_H
#define FAR_WORKLOAD_VALUE_H

#include <stddef.h>
#include <stdint.h>

void far_value_fill(void *buffer, size_t size, const void *key, size_t key_len, uint64_t version);

/* Returns 1 if far_value_fill made the value for this key and size, otherwise 0. *version (if not NULL) receives the
 * version: the whole version if the value has 16 bytes or more, its low 32 bits if the value has 8 to 15 bytes,
 * otherwise 0. */
int far_value_check(const void *buffer, size_t size, const void *key, size_t key_len, uint64_t *version);

#endif
