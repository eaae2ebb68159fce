/* For stories of the table of open indexes: one handle, without a thread so that nothing is repaired unseen, with a session
 * that is lost and one that goes on; another handle, which drops. */
#ifndef TESTS_OPEN_TABLE_RIG_H
#define TESTS_OPEN_TABLE_RIG_H

#include "../support/problem.h"
#include "../support/world.h"
#include "pool/catalog.h"
#include "pool/catalog_layout.h"

#include <stdio.h>
#include <string.h>

typedef struct story {
    far_sim_world *world;
    far_pool *pool, *other;
    far_session *lost, *next, *dropper; /* two of pool, one of other */
    far_sim_client *client;             /* what is under way */
    far_index *index;                   /* its result */
    int result;
    char words[256]; /* why an opener was refused */
    char uri[WORLD_URI];
} story;


static inline void set_up(story *s, unsigned seed) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_index *index;
    *s = (story){.result = 77};
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


/* By a session of the handle without a thread, while there is one: it moves epochs itself. */
static inline void nothing_is_lost(far_session *session) {
    world_assert_nothing_lost(session);
}


static inline void tear_down(story *s) {
    far_session_close(s->lost);
    far_session_close(s->next);
    far_pool_close(s->pool);
    nothing_is_lost(s->dropper);
    world_assert_watch_is_content(s->world);
    far_session_close(s->dropper);
    far_pool_close(s->other);
}


/* What clients do. */

static inline void open_x(void *arg) {
    story *s = arg;
    s->result = far_index_open(s->lost, "x", &s->index);
    if (s->result < 0)
        snprintf(s->words, sizeof(s->words), "%s", far_last_error());
}


static inline void drop_x_elsewhere(void *arg) {
    story *s = arg;
    s->result = far_index_drop(s->dropper, "x");
}


static inline void release(story *s, far_sim_hold *hold) {
    far_sim_release(hold);
    far_sim_sleep(s->world, 100000);
}


static inline uint64_t word_at(story *s, far_addr addr) {
    return world_word(s->world, addr);
}


/* From outside, at once. */

static inline far_index *open_next(story *s, const char *name) {
    far_index *index;
    assert_int_equal(far_index_open(s->next, name, &index), 0);
    assert_int_equal(far_put(s->next, index, "k", 1, "v", 1), 0);
    return index;
}


/* A walk has x open. */

typedef struct walking {
    uint32_t uid;
    far_index *index;
} walking;


static inline int begin_walk(far_task *t, void *arg) {
    walking *w = arg;
    return far_catalog_open_uid(t, w->uid, &w->index);
}


static inline int end_walk(far_task *t, void *arg) {
    far_catalog_close_uid(t, ((walking *)arg)->index);
    return 0;
}


static inline walking walk_x(story *s) {
    far_index *x = open_next(s, "x");
    walking w = {.uid = x->uid};
    far_index_close(x);
    assert_int_equal(far_session_call(s->next, FAR_STATS_OTHER, true, begin_walk, &w), 0);
    return w;
}

#endif
