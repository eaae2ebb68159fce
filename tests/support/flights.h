/* Keeps a number of operations in flight in a session that it opens for this purpose. When an operation ends, its
 * result is checked and its far_op is used for the next operation. */
#ifndef TESTS_SUPPORT_FLIGHTS_H
#define TESTS_SUPPORT_FLIGHTS_H

#include "farindex.h"

#include <stdbool.h>

#define FLIGHTS_MAX 64

typedef struct flights {
    /* number of operations in flight at once, at most FLIGHTS_MAX; number of operations in total */
    unsigned depth, total;
    void (*prepare)(void *ctx, far_op *op);  /* callback that fills in the next operation */
    /* callback that returns whether the result of a finished operation is allowed */
    bool (*is_right)(void *ctx, far_op *op);
    void *ctx;
} flights;

/* Runs the operations. `ops` points to `depth` operations. Returns the number of results that were not allowed,
 * including operations that were not accepted, or 1 if no session could be opened. */
unsigned flights_run(far_pool *pool, const flights *f, far_op *const ops[]);

#endif
