/* A rig for tests of the allocator without an index kind. It provides an index with types of its own, tasks that hold a
 * pin, epochs that pass, and functions that fill and empty the pool. */
#ifndef TESTS_POOL_ALLOC_RIG_H
#define TESTS_POOL_ALLOC_RIG_H

#include "pool_rig.h"

enum { PLAIN, WIDE, LINE, STABLE, SLOW, SWAPPED, TYPES };

static const far_type types[TYPES] = {
    [PLAIN] = {.name = "plain", .align = 16},
    [WIDE] = {.name = "wide", .align = 32},
    [LINE] = {.name = "line", .align = 64},
    [STABLE] = {.name = "stable", .align = 16, .stable = true},
    [SLOW] = {.name = "slow", .align = 16, .extra_epochs = 3},
    [SWAPPED] = {.name = "swapped", .align = 16, .swapped = true},
};
static const far_index_kind kind = {.name = "test", .types = types, .type_count = TYPES};
static const far_reserve reserve[] = {{PLAIN, 4000, 3}, {STABLE, 64, 2}};
static const far_index_kind frugal_kind = {
    .name = "frugal", .types = types, .type_count = TYPES, .reserve = reserve, .reserve_count = 2};


typedef struct bench {
    far_pool *pool;
    far_session *session, *maker;
    far_index *listed[2]; /* indexes in the catalog; a collection would free memory of an index that is not listed */
    /* an index with the uid of listed[0] that the test passes to the allocator, with the types above */
    far_index index;
    int (*run)(far_task *t, struct bench *b);
    void *arg;
} bench;


static inline void open_bench(bench *b, const char *uri, const far_index_kind *k) {
    *b = (bench){0};
    assert_int_equal(far_pool_open(uri, NULL, &b->pool), 0);
    assert_int_equal(far_session_open(b->pool, &b->session), 0);
    b->index.kind = k;
    b->index.pool = b->pool;
    assert_int_equal(far_session_open(b->pool, &b->maker), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(far_index_create(b->maker, i ? "b" : "a", "toy", "slots=2", &b->listed[i]), 0);
    b->index.uid = b->listed[0]->uid;
    if (strncmp(uri, "sim:", 4) == 0)
        world_await_status_record(far_sim_world_of(b->pool->fabric), b->pool);
}


static inline void close_bench(bench *b) {
    for (unsigned i = 0; i < 2; i++)
        far_index_close(b->listed[i]);
    far_session_close(b->maker);
    far_session_close(b->session);
    far_pool_close(b->pool);
}


static inline int run_bench(far_task *t, void *arg) {
    bench *b = arg;
    int err = far_pin_take(t);
    if (err == 0)
        err = b->run(t, b);
    far_pin_drop(t);
    return err;
}


static inline int bench_call(bench *b, far_session *s, int (*run)(far_task *t, bench *b), void *arg) {
    b->run = run;
    b->arg = arg;
    return far_session_call(s, FAR_STATS_OTHER, false, run_bench, b);
}


static inline int run_bench_stat(far_task *t, void *arg) {
    return far_memory_stat(t, arg, NULL, NULL);
}


static inline far_pool_usage bench_stat(bench *b) {
    far_pool_usage usage = {0};
    assert_int_equal(far_session_call(b->session, FAR_STATS_OTHER, false, run_bench_stat, &usage), 0);
    assert_int_equal(usage.total, usage.used + usage.retired + usage.free + usage.leaked);
    return usage;
}


/* Waits for *arg epochs one by one, and executes a tick of the handle's memory after each epoch. */
static inline int bench_pass_epochs(far_task *t, void *arg) {
    for (unsigned i = 0; i < *(unsigned *)arg; i++) {
        int err = far_wait_epochs_until(t, 1, FAR_TIME_NEVER);
        if (err == 0)
            err = far_memory_tick(t);
        if (err < 0)
            return err;
    }
    return 0;
}


static inline void bench_epochs(bench *b, unsigned count) {
    assert_int_equal(far_session_call(b->session, FAR_STATS_OTHER, false, bench_pass_epochs, &count), 0);
}


static inline int by_address(const void *a, const void *b) {
    far_addr x = ((const far_object *)a)->addr, y = ((const far_object *)b)->addr;
    return (x > y) - (x < y);
}


typedef struct filling {
    unsigned type;
    uint64_t size;
    far_object *objects;
    unsigned count, room;
    unsigned flags;
} filling;


static inline int fill_pool(far_task *t, bench *b) {
    filling *f = b->arg;
    int err = 0;
    while (f->count < f->room &&
           (err = far_alloc(t, &b->index, f->type, f->size, FAR_NODE_ANY, f->flags, &f->objects[f->count])) == 0)
        f->count++;
    return err;
}


static inline int empty_pool(far_task *t, bench *b) {
    filling *f = b->arg;
    while (f->count > 0) {
        f->count--;
        far_free(t, &b->index, f->type, f->objects[f->count].addr, f->size);
    }
    return 0;
}


static inline filling new_filling(unsigned type, uint64_t size) {
    return (filling){.type = type, .size = size, .objects = calloc(600000, sizeof(far_object)), .room = 600000};
}


#endif
