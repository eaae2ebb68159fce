/* For tests of memory that is short: sessions of one or two handles on a small simulated pool with one index. */
#ifndef TESTS_POOL_HUNGER_RIG_H
#define TESTS_POOL_HUNGER_RIG_H

#include "fabric/sim/sim.h"
#include "index/index.h"
#include "pool/handle.h"
#include "pool/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SESSIONS_MAX 6
#define LARGE        60000 /* nearly a block */
#define HALF         30000
#define SMALL        1900


typedef struct room room;

typedef struct guest {
    room *room;
    far_session *session;
    far_index *index; /* as its handle opened it */
    char key[8];
    unsigned puts, wanted; /* done, to be done */
    size_t bytes;
    int result; /* of the first that failed */
    far_sim_client *client;
} guest;

struct room {
    far_pool *pool[2];
    far_index *index[2];
    guest guests[SESSIONS_MAX];
    unsigned handles, count;
    far_sim_world *world;
};


/* options: NULL, or those of each handle. */
static inline void open_room_with(room *r, unsigned seed, unsigned handles, unsigned sessions, const char *size,
                                  const far_pool_options *options) {
    char uri[96];
    *r = (room){.handles = handles, .count = sessions};
    snprintf(uri, sizeof(uri), "sim:seed=%u,name=hunger%u,size=%s", seed, seed, size);
    for (unsigned h = 0; h < handles; h++)
        assert_int_equal(far_pool_open(uri, options == NULL ? NULL : &options[h], &r->pool[h]), 0);
    r->world = far_sim_world_of(r->pool[0]->fabric);
    for (unsigned i = 0; i < sessions; i++) {
        guest *g = &r->guests[i];
        unsigned h = i % handles;
        assert_int_equal(far_session_open(r->pool[h], &g->session), 0);
        if (i == 0)
            assert_int_equal(far_index_create(g->session, "x", "toy", "slots=4096", &r->index[0]), 0);
        else if (r->index[h] == NULL)
            assert_int_equal(far_index_open(g->session, "x", &r->index[h]), 0);
        g->room = r;
        g->index = r->index[h];
        snprintf(g->key, sizeof(g->key), "key%u", i);
    }
}


static inline void open_room(room *r, unsigned seed, unsigned handles, unsigned sessions, const char *size) {
    open_room_with(r, seed, handles, sessions, size, NULL);
}


static inline int fail_at_problem(void *ctx, const char *what) {
    (void)ctx;
    fail_msg("%s", what);
    return 0;
}


static inline void leave_room(room *r) {
    for (unsigned h = 0; h < r->handles; h++)
        far_index_close(r->index[h]);
    for (unsigned i = 0; i < r->count; i++)
        far_session_close(r->guests[i].session);
    for (unsigned h = 0; h < r->handles; h++)
        far_pool_close(r->pool[h]);
}


static inline void close_room(room *r) {
    assert_int_equal(far_pool_check(r->guests[0].session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_sim_watch_errors(r->world), 0);
    leave_room(r);
}


static inline int put(guest *g, const char *key, size_t bytes) {
    static const char value[FAR_VALUE_MAX];
    return far_put(g->session, g->index, key, strlen(key), value, bytes);
}


static inline void keep_putting(void *arg) {
    guest *g = arg;
    while (g->puts < g->wanted && (g->result = put(g, g->key, g->bytes)) == 0)
        g->puts++;
}


static inline void start(room *r, unsigned i, unsigned puts, size_t bytes) {
    guest *g = &r->guests[i];
    g->wanted = puts;
    g->bytes = bytes;
    g->client = far_sim_start(g->session->pool->fabric, "guest", keep_putting, g);
    assert_non_null(g->client);
}


static inline unsigned fill(guest *g, const char *prefix, size_t bytes) {
    char key[32];
    unsigned count = 0;
    for (int result = 0; result == 0; count += result == 0) {
        snprintf(key, sizeof(key), "%s%u", prefix, count);
        result = put(g, key, bytes);
        assert_true(result == 0 || result == FAR_ERR_NO_MEMORY);
    }
    return count;
}


static inline void delete_key(guest *g, const char *prefix, unsigned number) {
    char key[32];
    snprintf(key, sizeof(key), "%s%u", prefix, number);
    assert_int_equal(far_delete(g->session, g->index, key, strlen(key)), 0);
}


static inline int wait_and_tick(far_task *t, void *arg) {
    (void)arg;
    int err = far_wait_epochs(t, 5);
    return err < 0 ? err : far_memory_tick(t);
}


/* Nothing that it retired is not past its time. */
static inline void pass_epochs(guest *g) {
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, true, wait_and_tick, NULL), 0);
}

#endif
