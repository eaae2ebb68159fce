/* Values that prove themselves: the bytes are a function of key, size and version, so that whoever reads a value can
 * tell whether it belongs to this key, is whole, and which version it is, without knowing what was written.
 *
 *   size 0        nothing to check
 *   1..7          bytes of a hash of key and size; no version
 *   8..15         u32 version (masked by the hash), u32 hash of key and size mixed with the version, then bytes
 *                 derived from both
 *   16 and more   u64 hash of key and size mixed with the version, u64 version, then words derived from both
 *
 * From 8 bytes on every single flipped bit is found, and so is a value put together from words of two versions (the
 * words of two versions differ everywhere: each is a bijection of the version). */
#ifndef FAR_WORKLOAD_VALUE_H
#define FAR_WORKLOAD_VALUE_H

#include <stddef.h>
#include <stdint.h>

void far_value_fill(void *buffer, size_t size, const void *key, size_t key_len, uint64_t version);

/* 1: the value is one that far_value_fill made for this key and size; *version (if not NULL) is its version: all of it
 * from 16 bytes on, its low 32 bits from 8 bytes on, else 0. 0: it is not. */
int far_value_check(const void *buffer, size_t size, const void *key, size_t key_len, uint64_t *version);

#endif
