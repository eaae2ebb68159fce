/* For the named interleavings of DART: a few compute nodes with a session each on one simulated pool, whose operations
 * are started, stopped at named points and resumed by hand. */
#ifndef TESTS_INDEX_DART_RIG_H
#define TESTS_INDEX_DART_RIG_H

#include "fabric/sim/sim.h"
#include "farindex.h"
#include "index/index.h"
#include "pool/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { ACTORS = 3, PAIRS_MAX = 512, TEXT_MAX = 300 };

typedef struct actor {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_sim_client *client;
    far_op_kind kind;
    char key[TEXT_MAX], value[TEXT_MAX], got[8192];
    size_t got_length;
    int64_t result;
    bool ended;
} actor;

typedef struct stage {
    far_sim_world *world;
    actor a, b, c;
} stage;


static inline actor *actor_at(stage *s, unsigned i) {
    return i == 0 ? &s->a : i == 1 ? &s->b : &s->c;
}


static inline void set_up(stage *s, const char *sim, const char *options) {
    static unsigned serial; /* a test that failed leaves its world behind */
    char uri[256];
    snprintf(uri, sizeof(uri), "sim:name=dart%u,seed=1,faults=none,%s%s", ++serial,
             strstr(sim, "size=") ? "" : "size=32M,memory_nodes=2,", sim);
    memset(s, 0, sizeof(*s));
    for (unsigned i = 0; i < ACTORS; i++) {
        actor *a = actor_at(s, i);
        far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
        pool_options.rdwc = -1;
        assert_int_equal(far_pool_open(uri, &pool_options, &a->pool), 0);
        assert_int_equal(far_session_open(a->pool, &a->session), 0);
        if (i == 0)
            assert_int_equal(far_index_create(a->session, "map", "dart", options, &a->index), 0);
        else
            assert_int_equal(far_index_open(a->session, "map", &a->index), 0);
    }
    s->world = far_sim_world_of(s->a.pool->fabric);
}


static inline int fail_at_problem(void *ctx, const char *what) {
    (void)ctx;
    fail_msg("%s", what);
    return 1;
}


/* By a client that was not killed: the tree is sound, no byte is lost, nobody touched free memory. */
static inline void is_sound(stage *s, actor *a) {
    far_pool_usage usage;
    bool all_live = true;
    for (unsigned i = 0; i < ACTORS; i++)
        all_live &= !far_sim_killed(actor_at(s, i)->pool->fabric);
    assert_int_equal(far_index_check(a->session, a->index, fail_at_problem, NULL), 0);
    if (all_live) { /* then nothing may be lost at all; otherwise the sweep finds it */
        assert_int_equal(far_pool_check(a->session, 0, fail_at_problem, NULL), 0);
        assert_int_equal(far_pool_stat(a->session, &usage), 0);
        assert_int_equal(usage.leaked, 0);
    }
    assert_int_equal(far_pool_check(a->session, 1, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_check(a->session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
    if (far_sim_watch_errors(s->world))
        fail_msg("%s", far_sim_watch_error(s->world, 0));
}


static inline void tear_down(stage *s) {
    for (unsigned i = 0; i < ACTORS; i++) {
        actor *a = actor_at(s, i);
        far_index_close(a->index);
        far_session_close(a->session);
        far_pool_close(a->pool);
    }
}


static inline int collect_keys(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    actor *a = ctx;
    (void)value, (void)value_len;
    assert_true(a->got_length + key_len + 2 < sizeof(a->got));
    memcpy(a->got + a->got_length, key, key_len);
    a->got_length += key_len;
    a->got[a->got_length++] = ' ';
    a->got[a->got_length] = '\0';
    return 0;
}


static inline int64_t operate(actor *a) {
    size_t key_len = strlen(a->key), value_len = strlen(a->value);
    a->got_length = 0;
    a->got[0] = '\0';
    switch (a->kind) {
    case FAR_OP_GET:
        return far_get(a->session, a->index, a->key, key_len, a->got, sizeof(a->got), &a->got_length);
    case FAR_OP_INSERT:
        return far_insert(a->session, a->index, a->key, key_len, a->value, value_len);
    case FAR_OP_UPDATE:
        return far_update(a->session, a->index, a->key, key_len, a->value, value_len);
    case FAR_OP_PUT:
        return far_put(a->session, a->index, a->key, key_len, a->value, value_len);
    case FAR_OP_DELETE:
        return far_delete(a->session, a->index, a->key, key_len);
    default:
        return far_scan(a->session, a->index, a->key, key_len, a->value, value_len, 0, collect_keys, a);
    }
}


/* After a delete the client stays inside calls for a while, so that its background work runs in it. */
static inline void run_actor(void *arg) {
    actor *a = arg;
    char byte;
    a->result = operate(a);
    for (unsigned i = 0; a->kind == FAR_OP_DELETE && i < 24; i++)
        far_get(a->session, a->index, "zzzz", 4, &byte, 1, NULL);
    a->ended = true;
}


static inline void prepare(actor *a, far_op_kind kind, const char *key, const char *value) {
    a->kind = kind;
    snprintf(a->key, sizeof(a->key), "%s", key);
    snprintf(a->value, sizeof(a->value), "%s", value);
    a->ended = false;
    a->result = 999;
}


static inline void start(actor *a, const char *name, far_op_kind kind, const char *key, const char *value) {
    prepare(a, kind, key, value);
    a->client = far_sim_start(a->pool->fabric, name, run_actor, a);
    assert_non_null(a->client);
}


/* Starts it and lets it run up to the nth time at the point. */
static inline void start_to(actor *a, const char *name, far_op_kind kind, const char *key, const char *value,
                            const char *point, unsigned nth) {
    start(a, name, kind, key, value);
    far_sim_stop_before(a->client, (far_sim_match){.point = point, .nth = nth});
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_STOPPED);
}


static inline void resume_to(actor *a, const char *point, unsigned nth) {
    far_sim_stop_before(a->client, (far_sim_match){.point = point, .nth = nth});
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_STOPPED);
}


static inline void finish(actor *a, int64_t expected) {
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_ENDED);
    assert_int_equal(a->result, expected);
}


/* From outside, at once. */
static inline int64_t does(actor *a, far_op_kind kind, const char *key, const char *value) {
    prepare(a, kind, key, value);
    return operate(a);
}


static inline void load(actor *a, const char *const keys[], size_t count) {
    for (size_t i = 0; i < count; i++)
        assert_int_equal(does(a, FAR_OP_INSERT, keys[i], keys[i]), 0);
}

#define LOAD(actor, ...)                                                                                               \
    load(actor, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))


static inline void reads(actor *a, const char *key, const char *value) {
    if (!value) {
        assert_int_equal(does(a, FAR_OP_GET, key, ""), FAR_ERR_NOT_FOUND);
        return;
    }
    assert_int_equal(does(a, FAR_OP_GET, key, ""), 0);
    assert_int_equal(a->got_length, strlen(value));
    assert_memory_equal(a->got, value, a->got_length);
}


/* All keys there are, in order, each followed by a blank. */
static inline void holds(actor *a, const char *keys) {
    int64_t count = 0;
    for (const char *p = keys; *p; p++)
        count += *p == ' ';
    a->got_length = 0;
    a->got[0] = '\0';
    assert_int_equal(far_scan(a->session, a->index, NULL, 0, NULL, 0, 0, collect_keys, a), count);
    assert_string_equal(a->got, keys);
}


/* Every test runs with and without masked CAS, with units of 64 and 8 bytes. */
static const char *const fabrics[] = {"masked_cas=on", "masked_cas=off", "masked_cas=on,atomic_bytes=8",
                                      "masked_cas=off,atomic_bytes=8"};

#define RACE(name)                                                                                                     \
    static void name##_on(const char *sim, const char *options);                                                       \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        for (unsigned i_ = 0; i_ < 2 * sizeof(fabrics) / sizeof(fabrics[0]); i_++)                                     \
            name##_on(fabrics[i_ / 2], i_ % 2 ? "est=1" : "est=0");                                                    \
    }                                                                                                                  \
    static void name##_on(const char *sim, const char *options)

#endif
