/* The words of submitted operations that failed, kept by the session until the operation is submitted again. Whoever
 * asks for them is outside the session, where housekeeping may just finish another operation: so they have a lock. */
#ifndef FAR_CLIENT_FAILURES_H
#define FAR_CLIENT_FAILURES_H

#include "farindex.h"

#include <pthread.h>

typedef struct far_failure far_failure;

typedef struct far_failures {
    pthread_mutex_t lock;
    far_failure *newest, *oldest;
    unsigned count; /* changed inside the session only */
} far_failures;

void far_failures_open(far_failures *failures);
void far_failures_close(far_failures *failures);

void far_failures_keep(far_failures *failures, const far_op *op,
                       const char *words); /* the oldest go when there are many */
void far_failures_forget(far_failures *failures, const far_op *op);
const char *far_failures_words(far_failures *failures, const far_op *op); /* "": there are none */

#endif
