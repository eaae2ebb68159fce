/* For tests of the allocator: an index with types of its own on a pool, tasks with a pin, epochs that pass. */
#ifndef TESTS_POOL_ALLOC_RIG_H
#define TESTS_POOL_ALLOC_RIG_H

#include "fabric/fabric.h"
#include "pool/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PLAIN, WIDE, LINE, STABLE, SLOW, HOOKED, TYPES };

static unsigned put_offs; /* how often the hook says "not yet" */
static unsigned hook_calls, recover_calls;


static inline int reclaim_hook(far_task *t, far_index *index, far_addr addr, uint64_t size, uint64_t *cookie) {
    (void)t, (void)index, (void)size;
    hook_calls++;
    if (put_offs > 0) {
        put_offs--;
        return 1;
    }
    *cookie = addr ^ 0xc00c1e;
    return 0;
}


static inline int recover_hook(far_task *t, far_index *index, far_addr addr, uint64_t size, uint64_t *cookie) {
    (void)index, (void)size;
    recover_calls++;
    uint64_t word;
    int err = far_read_word(t, addr, &word);
    *cookie = word + 1;
    return err;
}


static const far_type types[TYPES] = {
    [PLAIN] = {.name = "plain", .align = 16},
    [WIDE] = {.name = "wide", .align = 32},
    [LINE] = {.name = "line", .align = 64},
    [STABLE] = {.name = "stable", .align = 16, .stable = true},
    [SLOW] = {.name = "slow", .align = 16, .extra_epochs = 3},
    [HOOKED] = {.name = "hooked", .align = 16, .stable = true, .reclaim = reclaim_hook, .recover = recover_hook},
};
static const far_index_kind kind = {.name = "test", .types = types, .type_count = TYPES};
static const far_reserve reserve[] = {{PLAIN, 4000, 3}, {STABLE, 64, 2}};
static const far_index_kind frugal_kind = {
    .name = "frugal", .types = types, .type_count = TYPES, .reserve = reserve, .reserve_count = 2};


typedef struct bench {
    far_pool *pool;
    far_session *session, *maker;
    far_index *listed[2]; /* what stands in the catalog: memory of an index that does not is freed */
    far_index index;      /* the same to the allocator, with types of our own */
    int (*run)(far_task *t, struct bench *b);
    void *arg;
} bench;


static inline void set_up(bench *b, const char *uri, const far_index_kind *k) {
    *b = (bench){0};
    assert_int_equal(far_pool_open(uri, NULL, &b->pool), 0);
    assert_int_equal(far_session_open(b->pool, &b->session), 0);
    b->index.kind = k;
    b->index.pool = b->pool;
    assert_int_equal(far_session_open(b->pool, &b->maker), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(far_index_create(b->maker, i ? "b" : "a", "toy", "slots=2", &b->listed[i]), 0);
    b->index.uid = b->listed[0]->uid;
    put_offs = hook_calls = recover_calls = 0;
}


static inline void tear_down(bench *b) {
    for (unsigned i = 0; i < 2; i++)
        far_index_close(b->listed[i]);
    far_session_close(b->maker);
    far_session_close(b->session);
    far_pool_close(b->pool);
}


static inline int run_pinned(far_task *t, void *arg) {
    bench *b = arg;
    int err = far_pin_take(t);
    if (err == 0)
        err = b->run(t, b);
    far_pin_drop(t);
    return err;
}


static inline int call(bench *b, far_session *s, int (*run)(far_task *t, bench *b), void *arg) {
    b->run = run;
    b->arg = arg;
    return far_session_call(s, FAR_STATS_OTHER, false, run_pinned, b);
}


static inline int run_stat(far_task *t, void *arg) {
    return far_memory_stat(t, arg);
}


static inline far_pool_usage stat_of(bench *b) {
    far_pool_usage usage = {0};
    assert_int_equal(far_session_call(b->session, FAR_STATS_OTHER, false, run_stat, &usage), 0);
    assert_int_equal(usage.total, usage.used + usage.retired + usage.free + usage.leaked);
    return usage;
}


/* Lets the epoch move and everybody tick. */
static inline int pass_epochs(far_task *t, void *arg) {
    for (unsigned i = 0; i < *(unsigned *)arg; i++) {
        int err = far_wait_epochs(t, 1);
        if (err == 0)
            err = far_memory_tick(t);
        if (err < 0)
            return err;
    }
    return 0;
}


static inline void epochs(bench *b, unsigned count) {
    assert_int_equal(far_session_call(b->session, FAR_STATS_OTHER, false, pass_epochs, &count), 0);
}


static inline int by_address(const void *a, const void *b) {
    far_addr x = ((const far_object *)a)->addr, y = ((const far_object *)b)->addr;
    return (x > y) - (x < y);
}


typedef struct fill {
    unsigned type;
    uint64_t size;
    far_object *objects;
    unsigned count, room;
    unsigned flags;
} fill;


static inline int fill_pool(far_task *t, bench *b) {
    fill *f = b->arg;
    int err = 0;
    while (f->count < f->room &&
           (err = far_alloc(t, &b->index, f->type, f->size, FAR_NODE_ANY, f->flags, &f->objects[f->count])) == 0)
        f->count++;
    return err;
}


static inline int empty_pool(far_task *t, bench *b) {
    fill *f = b->arg;
    while (f->count > 0) {
        f->count--;
        far_free(t, &b->index, f->type, f->objects[f->count].addr, f->size);
    }
    return 0;
}


static inline fill new_fill(unsigned type, uint64_t size) {
    return (fill){.type = type, .size = size, .objects = calloc(600000, sizeof(far_object)), .room = 600000};
}

#endif
