/* Key sets: the key of every record number, made on the fly. A key is a function of the seed and the record number
 * alone, and no two records of a set have the same key, by construction; so records that are inserted later always get
 * new keys.
 *
 *   u64        8 random bytes: a bijection of the 64-bit record number (see far_splitmix), big-endian
 *   seq        the record number, 8 bytes big-endian
 *   u64:SIZE   the same 8 bytes, then bytes that follow from them: keys of 8..FAR_KEY_MAX bytes; also seq:SIZE
 *   email      addresses with the domain first ("com.gmail@maria.kato"): up to 32 bytes, mean about 18; see email.c
 *   prefix     keys that are prefixes of each other and hold NULs, 1..40 bytes: for torture
 *   file:PATH  the lines of a file, in its order, without their newline and otherwise as they are */
#ifndef FAR_WORKLOAD_KEYSET_H
#define FAR_WORKLOAD_KEYSET_H

#include <stddef.h>
#include <stdint.h>

typedef struct far_keyset far_keyset;

/* FAR_ERR_INVALID (unknown set; an empty, oversized or repeated line), FAR_ERR_NOT_FOUND (the file cannot be read) or
 * FAR_ERR_NO_MEMORY, with one line in error (may be NULL). A key set is read-only then: any number of threads may use
 * it. */
int far_keyset_open(const char *spec, uint64_t seed, far_keyset **set, char *error, size_t error_size);
void far_keyset_close(far_keyset *set);

/* Writes the key of a record below far_keyset_count_limit; returns its length. The buffer has room for FAR_KEY_MAX
 * bytes. */
size_t far_keyset_key(const far_keyset *set, uint64_t record, void *buffer);

uint64_t far_keyset_count_limit(
    const far_keyset *set); /* how many records have a key: the lines of a file; else UINT64_MAX, email 2^44 */
size_t far_keyset_fixed_size(const far_keyset *set); /* of every key, by its kind (u64, seq); else 0 */
const char *far_keyset_name(const far_keyset *set);  /* the spec */

#endif
