/* Helpers for tests of the table of open indexes. One handle (`pool`) has no housekeeping thread, so that nothing is
 * repaired unless the test polls it; it has a session that will be lost and another one that continues. A second handle
 * (`other`) drops indexes. The pool contains the indexes x and y. */
#ifndef TESTS_OPEN_TABLE_RIG_H
#define TESTS_OPEN_TABLE_RIG_H

#include "../support/problem.h"
#include "../support/world.h"
#include "pool/catalog/catalog.h"
#include "pool/catalog/layout.h"

#include <stdio.h>
#include <string.h>

typedef struct scenario {
    far_sim_world *world;
    far_pool *pool, *other;
    /* `lost` and `next` are sessions of `pool`; `dropper` is a session of `other` */
    far_session *lost, *next, *dropper;
    far_sim_client *client; /* simulated client that runs the action in progress */
    far_index *index;       /* index that the action opened */
    int result;
    char words[256]; /* error text of a refused open */
    char uri[WORLD_URI];
} scenario;


static inline void set_up(scenario *s, unsigned seed) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_index *index;
    *s = (scenario){.result = 77};
    world_uri(s->uri, "seed=%u,size=32M,memory_nodes=2", seed);
    s->world = world_join(s->uri, NULL, &s->other, &s->dropper);
    options.no_thread = 1;
    world_join(s->uri, &options, &s->pool, &s->lost);
    assert_int_equal(far_session_open(s->pool, &s->next), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(far_index_create(s->dropper, i ? "y" : "x", "toy", "slots=4", &index), 0);
        far_index_close(index);
    }
}


/* Asserts that no memory is leaked. While the handle without a housekeeping thread is open, call this function with a
 * session of that handle, because its check must advance the epochs itself. */
static inline void assert_nothing_leaked(far_session *session) {
    world_assert_nothing_leaked_after_collection(session);
}


static inline void tear_down(scenario *s) {
    far_session_close(s->lost);
    far_session_close(s->next);
    far_pool_close(s->pool);
    assert_nothing_leaked(s->dropper);
    world_assert_no_checker_error(s->world);
    far_session_close(s->dropper);
    far_pool_close(s->other);
}


/* ---- Actions of simulated clients ---- */

static inline void open_x_in_lost(void *arg) {
    scenario *s = arg;
    s->result = far_index_open(s->lost, "x", &s->index);
    if (s->result < 0)
        snprintf(s->words, sizeof(s->words), "%s", far_last_error());
}


static inline void drop_x_in_dropper(void *arg) {
    scenario *s = arg;
    s->result = far_index_drop(s->dropper, "x");
}


static inline void release_hold(scenario *s, far_sim_hold *hold) {
    far_sim_release(hold);
    far_sim_sleep(s->world, 100000);
}


static inline uint64_t read_word_at(scenario *s, far_addr addr) {
    return world_word(s->world, addr);
}


/* ---- Calls that complete before they return ---- */

static inline far_index *open_in_next(scenario *s, const char *name) {
    far_index *index;
    assert_int_equal(far_index_open(s->next, name, &index), 0);
    assert_int_equal(far_put(s->next, index, "k", 1, "v", 1), 0);
    return index;
}


/* ---- An index walk that has x open ---- */

typedef struct open_walk {
    uint32_t uid;
    far_index *index;
} open_walk;


static inline int run_begin_walk(far_task *t, void *arg) {
    open_walk *w = arg;
    return far_catalog_open_uid(t, w->uid, &w->index);
}


static inline int run_end_walk(far_task *t, void *arg) {
    far_catalog_close_uid(t, ((open_walk *)arg)->index);
    return 0;
}


static inline open_walk open_x_as_walk(scenario *s) {
    far_index *x = open_in_next(s, "x");
    open_walk w = {.uid = x->uid};
    far_index_close(x);
    assert_int_equal(far_session_call(s->next, FAR_STATS_OTHER, true, run_begin_walk, &w), 0);
    return w;
}

#endif
