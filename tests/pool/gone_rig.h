/* A keeper and two other compute nodes on one simulated pool, for tests of what is left of indexes that are gone. */
#ifndef TESTS_POOL_GONE_RIG_H
#define TESTS_POOL_GONE_RIG_H

#include "fabric/sim/sim.h"
#include "pool/catalog_layout.h"
#include "pool/handle.h"
#include "pool/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct player {
    far_pool *pool;
    far_session *session, *other;
    far_index *index;
    bool stop;
    int result;
    far_sim_client *client;
} player;

typedef struct cast {
    far_sim_world *world;
    player keeper; /* has a thread, checks at the end, lives longest */
    player a, b;
} cast;


static inline void enter(cast *c, player *p, bool thread) {
    static unsigned serial;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    char uri[96];
    options.no_thread = !thread;
    serial += p == &c->keeper;
    snprintf(uri, sizeof(uri), "sim:seed=%u,name=gone%u,size=16M,limit=10s", serial, serial);
    *p = (player){.result = 77};
    assert_int_equal(far_pool_open(uri, &options, &p->pool), 0);
    assert_int_equal(far_session_open(p->pool, &p->session), 0);
}


static inline void set_up(cast *c, bool a_has_a_thread, bool b_has_a_thread) {
    enter(c, &c->keeper, true);
    enter(c, &c->a, a_has_a_thread);
    enter(c, &c->b, b_has_a_thread);
    c->world = far_sim_world_of(c->keeper.pool->fabric);
}


static inline int fail_at_problem(void *ctx, const char *what) {
    (void)ctx;
    fail_msg("%s", what);
    return 0;
}


static inline uint64_t leaked(far_session *s) {
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_check(s, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(s, &usage), 0);
    return usage.leaked;
}


static inline void leave(player *p) {
    far_index_close(p->index);
    far_session_close(p->session);
    far_session_close(p->other);
    far_pool_close(p->pool);
    *p = (player){0};
}


static inline void tear_down(cast *c) {
    leave(&c->a);
    leave(&c->b);
    assert_int_equal(leaked(c->keeper.session), 0);
    if (far_sim_watch_errors(c->world))
        fail_msg("%s", far_sim_watch_error(c->world, 0));
    leave(&c->keeper);
}


static inline void *bytes_at(cast *c, far_addr addr) {
    return (char *)far_sim_memory(c->world, far_addr_node(addr)) + far_addr_offset(addr);
}


/* Pages and runs of an index in the whole pool. */
static inline unsigned count_of(cast *c, uint32_t uid) {
    const far_geometry *g = &c->keeper.pool->geometry;
    unsigned count = 0;
    for (unsigned n = 0; n < g->nodes; n++)
        for (uint32_t i = 0; i < g->node[n].blocks; i++) {
            far_block_id id = {n, i};
            far_block_state s = far_block_unpack(*(uint64_t *)bytes_at(c, far_block_entry(g, id)));
            count += s.kind == FAR_BLOCK_RUN && s.uid == uid;
            for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
                far_page_state page = far_page_unpack(*(uint64_t *)bytes_at(c, far_block_page(g, id, p)));
                count += page.in_use && page.uid == uid;
            }
        }
    return count;
}


static inline bool block_has(cast *c, far_block_id id, uint32_t uid) {
    const far_geometry *g = &c->keeper.pool->geometry;
    bool found = false;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        found |= far_page_unpack(*(uint64_t *)bytes_at(c, far_block_page(g, id, p))).uid == uid;
    return found;
}


static inline bool share_a_block(cast *c, const uint32_t uid[2]) {
    bool found = false;
    for (uint32_t i = 0; i < c->keeper.pool->geometry.node[0].blocks; i++)
        found |= block_has(c, (far_block_id){0, i}, uid[0]) && block_has(c, (far_block_id){0, i}, uid[1]);
    return found;
}


/* Creates an index and closes it; with many keys it has slabs of many sizes. Returns its uid. */
static inline uint32_t make_some(far_session *s, const char *name, const char *kind, unsigned keys) {
    static const char value[3000];
    far_index *index;
    assert_int_equal(far_index_create(s, name, kind, NULL, &index), 0);
    for (unsigned i = 0; i < keys; i++)
        assert_int_equal(far_put(s, index, &i, sizeof(i), value, i * 73 % sizeof(value)), 0);
    uint32_t uid = index->uid;
    far_index_close(index);
    return uid;
}


static inline uint32_t make(far_session *s, const char *name, const char *kind) {
    return make_some(s, name, kind, 40);
}


/* ---- Clients ---- */

static inline void poll_main(void *arg) {
    player *p = arg;
    far_sim_world *world = far_sim_world_of(p->pool->fabric);
    while (!p->stop) {
        p->result = far_pool_poll(p->pool);
        far_sim_sleep(world, 50000);
    }
}


static inline void check_main(void *arg) {
    player *p = arg;
    p->result = far_pool_check(p->session, 0, fail_at_problem, NULL);
}


static inline void close_session_main(void *arg) {
    player *p = arg;
    far_session_close(p->session);
    p->session = NULL;
}


static inline void close_pool_main(void *arg) {
    player *p = arg;
    far_pool_close(p->pool);
}


static inline void start(cast *c, player *p, const char *name, void (*main)(void *arg)) {
    p->client = far_sim_start(c->keeper.pool->fabric, name, main, p);
}


/* The n-th change of the sweep word by its client: 1 begins, 2 tells of the quarantine, 3 ends it. */
static inline far_sim_match sweep_word(unsigned nth) {
    return (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_SWEEP, .to = FAR_SUPER_SWEEP + 8, .nth = nth};
}


static inline void poll_until_asleep(cast *c, player *p) {
    do {
        far_sim_sleep(c->world, 100000);
        assert_int_equal(far_pool_poll(p->pool), 0);
    } while (far_epoch_is_awake(p->pool));
}

#endif
