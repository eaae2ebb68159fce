/* Keeps a number of operations of one session in flight, which it opens for them: whichever ends is looked at, and begins anew as another one. */
#ifndef TESTS_SUPPORT_FLIGHTS_H
#define TESTS_SUPPORT_FLIGHTS_H

#include "farindex.h"

#include <stdbool.h>

#define FLIGHTS_MAX 64

typedef struct flights {
    unsigned depth, total;                   /* in flight at once, at most FLIGHTS_MAX; and all together */
    void (*prepare)(void *ctx, far_op *op);  /* sets all of it */
    bool (*is_right)(void *ctx, far_op *op); /* has ended: is that a result it may have? */
    void *ctx;
} flights;

/* ops: `depth` of them. Returns how many were not right, or refused; 1 if there is no session. */
unsigned flights_run(far_pool *pool, const flights *f, far_op *const ops[]);

#endif
