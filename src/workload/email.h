/* Generated e-mail addresses: the key set "email" (see keyset.h). */
#ifndef FAR_WORKLOAD_EMAIL_H
#define FAR_WORKLOAD_EMAIL_H

#include <stddef.h>
#include <stdint.h>

#define FAR_EMAIL_MAX     32
#define FAR_EMAIL_RECORDS (1ull << 44)

typedef struct far_email far_email;

far_email *far_email_new(uint64_t seed); /* NULL: out of memory */
void far_email_free(far_email *email);
size_t far_email_key(const far_email *email, uint64_t record,
                     uint8_t *key); /* record < FAR_EMAIL_RECORDS; key has FAR_EMAIL_MAX bytes */

#endif
