/* The fixture of tests of tasks and verbs: a session on the local fabric, without a formatted pool. */
#ifndef FAR_TESTS_SESSION_RIG_H
#define FAR_TESTS_SESSION_RIG_H

#include "pool/handle.h"
#include "task/session.h"
#include "test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

typedef struct ground {
    far_pool pool;
    far_session *session;
} ground;


static inline int set_up_with(void **state, const char *uri) {
    static ground g;
    memset(&g, 0, sizeof(g));
    if (far_fabric_open(uri, &g.pool.fabric) < 0)
        return -1;
    g.pool.geometry.capabilities = g.pool.fabric->capabilities;
    *state = &g;
    return far_pool_session_new(&g.pool, &g.session);
}


TEST_FIXTURE(set_up) {
    return set_up_with(state, "local:2x1M");
}


TEST_FIXTURE(set_up_slow) {
    return set_up_with(state, "local:2x1M?rtt=200us");
}


TEST_FIXTURE(tear_down) {
    ground *g = *state;
    far_session_free(g->session);
    g->pool.fabric->ops->close(g->pool.fabric);
    return 0;
}


static const far_addr A = 4096, B = 8192;
enum { WORDS = 11 }; /* 8 words (a cache line), a pair, and one more: the lengths that are copied in different ways */

#endif
