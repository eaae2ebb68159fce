/* For tests of the sweep: three compute nodes on one simulated pool that work on keys of their own, sweep, leak and
 * die. After a sweep nothing is lost and nothing is taken from anybody. */
#ifndef TESTS_POOL_SWEEP_RIG_H
#define TESTS_POOL_SWEEP_RIG_H

#include "fabric/sim/sim.h"
#include "index/report.h"
#include "pool/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NODES = 3, KEYS = 40, VERBS_MAX = 20000 };

typedef struct actor { /* a client of one compute node, with keys of its own */
    unsigned number;
    far_pool *pool;
    far_session *session;
    far_sim_client *client;
    far_index *index;
    uint8_t versions[KEYS]; /* 0: absent */
    unsigned steps;
    int result;
    far_sweep_result swept;
    bool all, repair;
    far_addr object;
} actor;

typedef struct stage {
    far_sim_world *world;
    actor actors[NODES];
} stage;


/* More of them on request. */
static inline unsigned seeds(unsigned usual) {
    const char *wish = getenv("FARINDEX_SEEDS");
    return wish != NULL ? (unsigned)strtoul(wish, NULL, 10) : usual;
}


static inline void set_up_with(stage *s, unsigned seed, const char *faults, unsigned sleepers) {
    char uri[160];
    memset(s, 0, sizeof(*s));
    static unsigned serial;
    snprintf(uri, sizeof(uri), "sim:name=sweep%u,seed=%u,size=4M,memory_nodes=2,faults=none,limit=200s", serial++,
             seed);
    for (unsigned i = 0; i < NODES; i++) {
        far_pool_options options = FAR_POOL_OPTIONS_INIT;
        options.no_thread = sleepers >> i & 1;
        actor *a = &s->actors[i];
        a->number = i;
        assert_int_equal(far_pool_open(uri, &options, &a->pool), 0);
        assert_int_equal(far_session_open(a->pool, &a->session), 0);
        if (i == 0)
            assert_int_equal(far_index_create(a->session, "x", "toy", "slots=16", &a->index), 0);
        else
            assert_int_equal(far_index_open(a->session, "x", &a->index), 0);
    }
    s->world = far_sim_world_of(s->actors[0].pool->fabric);
    if (strcmp(faults, "all") == 0)
        far_sim_set_faults(s->world, FAR_SIM_ALL_FAULTS);
}


static inline void set_up(stage *s, unsigned seed, const char *faults) {
    set_up_with(s, seed, faults, 0);
}


static inline void tear_down(stage *s) {
    for (unsigned i = 0; i < NODES; i++) {
        far_index_close(s->actors[i].index);
        far_session_close(s->actors[i].session);
    }
    if (far_sim_watch_errors(s->world))
        fail_msg("seed %llu: %s", (unsigned long long)far_sim_seed(s->world), far_sim_watch_error(s->world, 0));
    for (unsigned i = 0; i < NODES; i++)
        far_pool_close(s->actors[i].pool);
}


static inline void start(actor *a, const char *name, void (*run)(void *arg)) {
    a->result = 77;
    a->client = far_sim_start(a->pool->fabric, name, run, a);
    assert_non_null(a->client);
}


/* What actors do. */

static inline int put_key(actor *a, unsigned k, uint8_t version) {
    char key[8], value[600];
    size_t length = 8 + (k * 37u + version * 101u) % 592;
    snprintf(key, sizeof(key), "%u.%03u", a->number, k);
    memset(value, version, length);
    return far_put(a->session, a->index, key, 5, value, length);
}


static inline int delete_key(actor *a, unsigned k) {
    char key[8];
    snprintf(key, sizeof(key), "%u.%03u", a->number, k);
    return far_delete(a->session, a->index, key, 5);
}


static inline void work(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = 0; i < a->steps && a->result == 0; i++) {
        unsigned k = (unsigned)far_random_below(&a->session->random, KEYS);
        if (a->versions[k] != 0 && far_random_chance(&a->session->random, 1, 3)) {
            a->result = delete_key(a, k);
            a->versions[k] = 0;
        } else {
            uint8_t version = (uint8_t)(1 + far_random_below(&a->session->random, 255));
            a->result = put_key(a, k, version);
            a->versions[k] = version;
        }
    }
}


/* By `reader`: the keys of `a` are as it left them. */
static inline void assert_keys(actor *reader, const actor *a) {
    for (unsigned k = 0; k < KEYS; k++) {
        char key[8], value[600];
        size_t length = 0;
        snprintf(key, sizeof(key), "%u.%03u", a->number, k);
        int err = far_get(reader->session, reader->index, key, 5, value, sizeof(value), &length);
        if (a->versions[k] == 0) {
            assert_int_equal(err, FAR_ERR_NOT_FOUND);
            continue;
        }
        assert_int_equal(err, 0);
        assert_int_equal(length, 8 + (k * 37u + a->versions[k] * 101u) % 592);
        for (size_t i = 0; i < length; i++)
            assert_int_equal((uint8_t)value[i], a->versions[k]);
    }
}


static inline int run_sweep(far_task *t, void *arg) {
    actor *a = arg;
    return far_sweep(t, a->all, a->repair, &a->swept);
}


static inline int sweep(actor *a, bool all, bool repair) {
    a->all = all;
    a->repair = repair;
    return far_session_call(a->session, FAR_STATS_OTHER, true, run_sweep, a);
}


/* From outside: the housekeeping of another handle may be sweeping. */
static inline int sweep_in_turn(actor *a, bool all, bool repair) {
    int err = FAR_ERR_BUSY;
    for (unsigned i = 0; i < 1000 && err == FAR_ERR_BUSY; i++) {
        err = sweep(a, all, repair);
        if (err == FAR_ERR_BUSY)
            far_sim_sleep(far_sim_world_of(a->pool->fabric), 1000000);
    }
    return err;
}


static inline void sweep_and_tell(void *arg) {
    actor *a = arg;
    a->result = sweep(a, a->all, a->repair);
}


/* Objects that are linked nowhere: some of the index's, some of the pool's own, and a run. */
static inline int leak(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 10 && err == 0; i++)
        err = far_alloc(t, a->index, 0, 100 + 50 * i, FAR_NODE_ANY, 0, &object);
    if (err == 0)
        err = far_alloc(t, NULL, 5, 100, FAR_NODE_ANY, 0, &object);
    if (err == 0)
        err = far_alloc(t, a->index, 0, 100000, FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


static inline int run_check(far_task *t, void *arg) {
    return far_memory_check(t, arg);
}


static inline int print_problem(void *ctx, const char *what) {
    (void)ctx;
    print_message("%s\n", what);
    return 0;
}


static inline void assert_tables_sound(actor *a) {
    far_report report = {0};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, run_check, &report), 0);
    assert_int_equal(far_report_tell(&report, print_problem, NULL), 0);
    far_report_free(&report);
}


/* By a survivor: everything the dead and the careless left is found, and then there is nothing more. */
static inline void assert_nothing_lost(stage *s, actor *a) {
    int err = sweep_in_turn(a, true, true);
    if (err != 0)
        fail_msg("seed %llu: the sweep gave %d: %s", (unsigned long long)far_sim_seed(s->world), err, far_last_error());
    assert_int_equal(a->swept.leaked_bytes, a->swept.repaired_bytes);
    assert_int_equal(sweep_in_turn(a, true, false), 0);
    if (a->swept.leaked_bytes != 0)
        fail_msg("seed %llu: %llu bytes are still lost", (unsigned long long)far_sim_seed(s->world),
                 (unsigned long long)a->swept.leaked_bytes);
    assert_tables_sound(a);
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
}


static inline void run_all(stage *s) {
    far_sim_result result = far_sim_run(s->world);
    if (result != FAR_SIM_ENDED)
        fail_msg("seed %llu: %s", (unsigned long long)far_sim_seed(s->world), far_sim_result_name(result));
}


/* After a while of quiet, in which everybody has told what it holds. */
static inline uint64_t used_bytes(actor *a) {
    far_pool_usage usage = {0};
    far_sim_sleep(far_sim_world_of(a->pool->fabric), 2000000);
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    assert_int_equal(usage.total, usage.used + usage.retired + usage.free + usage.leaked);
    return usage.used;
}

#endif
