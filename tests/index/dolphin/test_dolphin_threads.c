/* Dolphin on real threads: 8 threads with 64 operations in flight each, in leaves that are split, merged and written at
 * the same time. Each thread knows the values of its own keys. Meant to run under the address and thread sanitizers. */
#include "../support/flights.h"
#include "../support/problem.h"
#include "base/random.h"
#include "base/sanitizer.h"
#include "farindex.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 8, DEPTH = FLIGHTS_MAX, OPS = FAR_TSAN ? 5000 : 20000, OWN = 256, HOT = 3 };

typedef struct flight { /* one operation in flight */
    far_op op;
    char key[24];
    uint64_t value;
    unsigned own; /* number of the thread's own key; OWN stands for one of the hot keys that all threads write */
} flight;

typedef struct worker {
    far_pool *pool;
    far_index *index;
    unsigned number;
    uint64_t holds[OWN]; /* value of each own key; 0: absent */
    bool busy[OWN];
    far_random random;
    atomic_uint *wrong;
} worker;


static void fill(void *arg, far_op *op) {
    worker *w = arg;
    flight *f = op->user;
    far_random *random = &w->random;
    unsigned pick = (unsigned)far_random_below(random, 10);
    *op = (far_op){.user = f};
    f->own = (unsigned)far_random_below(random, OWN);
    if (pick < 3 || w->busy[f->own])
        f->own = OWN;
    else
        w->busy[f->own] = true;
    size_t length = f->own == OWN
                        ? (size_t)snprintf(f->key, sizeof(f->key), "k%u", (unsigned)far_random_below(random, HOT))
                        : (size_t)snprintf(f->key, sizeof(f->key), "k%02x-%u", f->own, w->number);
    f->value = far_random_next(random) | 1;
    f->op.index = w->index;
    f->op.key = f->key;
    f->op.key_len = length;
    f->op.value = &f->value;
    f->op.kind = f->own == OWN ? (pick == 0 ? FAR_OP_GET : FAR_OP_PUT)
                 : pick < 5    ? FAR_OP_GET
                 : pick < 8    ? FAR_OP_PUT
                               : FAR_OP_DELETE;
    if (f->op.kind == FAR_OP_GET)
        f->op.capacity = 8;
    else if (f->op.kind == FAR_OP_PUT)
        f->op.value_len = 8;
}


static bool is_right(void *arg, far_op *op) {
    worker *w = arg;
    flight *f = op->user;
    int result = f->op.result;
    if (f->own == OWN)
        return result == 0;
    w->busy[f->own] = false;
    uint64_t held = w->holds[f->own];
    if (f->op.kind == FAR_OP_GET)
        return held ? result == 0 && f->value == held : result == FAR_ERR_NOT_FOUND;
    w->holds[f->own] = f->op.kind == FAR_OP_PUT ? f->value : 0;
    return result == (f->op.kind == FAR_OP_PUT || held ? 0 : FAR_ERR_NOT_FOUND);
}


static void *work(void *arg) {
    worker *w = arg;
    static _Thread_local flight all[DEPTH];
    far_op *ops[DEPTH];
    far_random_seed(&w->random, w->number + 1);
    for (unsigned i = 0; i < DEPTH; i++)
        ops[i] = &all[i].op, all[i].op.user = &all[i];
    unsigned wrong = flights_run(w->pool, &(flights){DEPTH, OPS, fill, is_right, w}, ops);
    atomic_fetch_add_explicit(w->wrong, wrong, memory_order_relaxed);
    return NULL;
}


static void run(const char *options) {
    static worker workers[THREADS];
    pthread_t threads[THREADS];
    atomic_uint wrong = 0;
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_pool_usage usage;
    assert_int_equal(far_pool_open("local:2x64M", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "map", "dolphin", options, &index), 0);
    for (unsigned i = 0; i < HOT; i++) {
        char key[8];
        size_t length = (size_t)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(far_put(session, index, key, length, "8 bytes.", 8), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        memset(&workers[i], 0, sizeof(workers[i]));
        workers[i].pool = pool;
        workers[i].index = index;
        workers[i].number = i;
        workers[i].wrong = &wrong;
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&wrong), 0);
    assert_int_equal(far_index_check(session, index, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_check(session, 1, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


/* Runs the threads with values of 8 bytes, in large and in small leaves. */
TEST(values_in_leaves) {
    run("value_size=8");
    run("value_size=8,leaf_slots=4");
}


/* Runs the threads with values in value blocks. */
TEST(values_in_blocks) {
    run("leaf_slots=8");
}


/* Runs the threads with the options sync=exclusive, coverage=lastbyte and insert=ticket. */
TEST(exclusive_and_last_byte) {
    run("value_size=8,leaf_slots=8,sync=exclusive");
    run("leaf_slots=8,coverage=lastbyte");
    run("value_size=8,leaf_slots=16,insert=ticket");
}
