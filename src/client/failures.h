/* Error messages of submitted operations that failed, for far_op_error. Each session stores them until the operation is
 * submitted again. The list has a lock, because a user thread reads it outside the session while housekeeping may
 * finish another operation inside the session. */
#ifndef FAR_CLIENT_FAILURES_H
#define FAR_CLIENT_FAILURES_H

#include "farindex.h"

#include <pthread.h>

typedef struct far_failure far_failure;

typedef struct far_failures {
    pthread_mutex_t lock;
    far_failure *newest, *oldest;
    unsigned count; /* number of messages; changed inside the session only */
} far_failures;

void far_failures_open(far_failures *failures);
void far_failures_close(far_failures *failures);

/* Stores a copy of the message `words` for this operation. Removes the oldest message if the list is full. */
void far_failures_add(far_failures *failures, const far_op *op, const char *words);
void far_failures_remove(far_failures *failures, const far_op *op);
/* Returns the message of this operation, or "" if none is stored. */
const char *far_failures_find(far_failures *failures, const far_op *op);

#endif
