/* Generated e-mail addresses, which are the key set "email" (keyset.h). */
#ifndef FAR_WORKLOAD_EMAIL_H
#define FAR_WORKLOAD_EMAIL_H

#include <stddef.h>
#include <stdint.h>

#define FAR_EMAIL_MAX     32
#define FAR_EMAIL_RECORDS (1ull << 44)

typedef struct far_email far_email;

far_email *far_email_new(uint64_t seed); /* NULL: out of memory */
void far_email_free(far_email *email);
/* Writes the address of record number `record`, which must be below FAR_EMAIL_RECORDS, to `key`, which has room for
 * FAR_EMAIL_MAX bytes. Returns its length. */
size_t far_email_key(const far_email *email, uint64_t record, uint8_t *key);

#endif
