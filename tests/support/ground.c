/* A pool with a session and an index of the kind toy (ground.h). */
#include "ground.h"

#include <string.h>


void open_small_environment(ground *g, const char *uri, const char *options) {
    assert_int_equal(far_pool_open(uri, NULL, &g->pool), 0);
    assert_int_equal(far_session_open(g->pool, &g->session), 0);
    assert_int_equal(far_index_create(g->session, "map", "toy", options, &g->index), 0);
}


void close_small_environment(ground *g) {
    far_index_close(g->index);
    far_session_close(g->session);
    far_pool_close(g->pool);
}


void assert_op_error_contains(ground *g, const far_op *op, const char *word) {
    if (!strstr(far_op_error(g->session, op), word))
        fail_msg("the operation's words '%s' do not say '%s'", far_op_error(g->session, op), word);
}
