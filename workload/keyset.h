/* Key sets are functions from record numbers to keys, computed on demand. A key depends only on the seed and the record
 * number. By construction, different records have different keys, so records that are inserted later always get new
 * keys.
 *
 *     u64        8 random bytes: a bijection of the 64-bit record number (far_splitmix), big-endian
 *     seq        the record number, 8 bytes, big-endian
 *     u64:SIZE   the same 8 bytes, followed by bytes that are derived from them: keys of 8..FAR_KEY_MAX bytes
 *     seq:SIZE   likewise
 *     email      addresses with the domain first ("com.gmail@maria.kato"), up to 32 bytes, mean about 18 (email.c)
 *     prefix     keys of 1..40 bytes that are prefixes of each other and contain NULs, for torture
 *     file:PATH  the lines of a file, in its order, without the newline */
#ifndef FAR_WORKLOAD_KEYSET_H
#define FAR_WORKLOAD_KEYSET_H

#include <stddef.h>
#include <stdint.h>

typedef struct far_keyset far_keyset;

/* Opens a key set. Returns FAR_ERR_INVALID (unknown set, or a line that is empty, too long or repeated),
 * FAR_ERR_NOT_FOUND (the file cannot be read) or FAR_ERR_NO_MEMORY, and writes a line of explanation to `error` (may be
 * NULL). An open key set is read-only, so any number of threads may use it. */
int far_keyset_open(const char *spec, uint64_t seed, far_keyset **set, char *error, size_t error_size);
void far_keyset_close(far_keyset *set);

/* Writes the key of a record below far_keyset_count_limit and returns its length. The buffer must have FAR_KEY_MAX
 * bytes. */
size_t far_keyset_key(const far_keyset *set, uint64_t record, void *buffer);

/* Returns the number of records that have a key: the number of lines of a file, 2^44 for email, and otherwise
 * UINT64_MAX. */
uint64_t far_keyset_count_limit(const far_keyset *set);
size_t far_keyset_fixed_size(const far_keyset *set); /* returns the size of every key for u64 and seq, otherwise 0 */
const char *far_keyset_name(const far_keyset *set);  /* returns the specification with which it was opened */

#endif
