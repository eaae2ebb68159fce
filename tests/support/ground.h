/* The smallest environment for tests of public functions: a pool, a session, and an index of the kind toy. */
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

void open_small_environment(ground *g, const char *uri, const char *options);
void close_small_environment(ground *g);
/* Asserts that the error message of the operation contains `word`. */
void assert_op_error_contains(ground *g, const far_op *op, const char *word);

#endif
