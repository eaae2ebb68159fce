/* The smallest ground that a test of calls can stand on: a pool, a session of it, and a toy map in it. */
#ifndef TESTS_SUPPORT_GROUND_H
#define TESTS_SUPPORT_GROUND_H

#include "farindex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

typedef struct ground {
    far_pool *pool;
    far_session *session;
    far_index *index;
} ground;

void open_ground(ground *g, const char *uri, const char *options);
void close_ground(ground *g);
/* The words of an operation that failed have this one in them. */
void op_says(ground *g, const far_op *op, const char *word);

#endif
