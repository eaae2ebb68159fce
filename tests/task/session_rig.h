/* A session on the local fabric without a pool around it, for tests of tasks and verbs. */
#ifndef FAR_TESTS_SESSION_RIG_H
#define FAR_TESTS_SESSION_RIG_H

#include "pool/handle.h"
#include "task/session.h"

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


static inline int set_up(void **state) {
    return set_up_with(state, "local:2x1M");
}


static inline int set_up_slow(void **state) {
    return set_up_with(state, "local:2x1M?rtt=200us");
}


static inline int tear_down(void **state) {
    ground *g = *state;
    far_session_free(g->session);
    g->pool.fabric->ops->close(g->pool.fabric);
    return 0;
}


static const far_addr A = 4096, B = 8192;
enum { WORDS = 11 }; /* a line, a pair and one */

#endif
