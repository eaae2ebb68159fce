/* CHIME on real threads: 8 threads with 64 operations in flight each work on keys that all threads share, in a few
 * small leaves that are split and merged all the time, and on keys of their own. Proves that in the end each key has
 * the value of the last operation on it. This test is also run under the address and thread sanitizers. */
#include "../support/flights.h"
#include "../support/problem.h"
#include "base/random.h"
#include "base/sanitizer.h"
#include "farindex.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum { THREADS = 8, DEPTH = FLIGHTS_MAX, OPS = FAR_TSAN ? 4000 : 15000, SHARED = 96, OWN = 64 };

typedef struct flight { /* one operation in flight */
    far_op op;
    uint8_t key[8];
    uint64_t value, number;
} flight;

typedef struct worker {
    far_pool *pool;
    far_index *index;
    unsigned thread;
    uint64_t own[OWN]; /* value of each key that only this thread writes; 0: the key is absent */
    bool busy[OWN];
    far_random random;
    atomic_uint *wrong;
} worker;


static void set_key(flight *f, uint64_t number) {
    uint64_t x = number * 0x9e3779b97f4a7c15ull;
    f->number = number;
    for (unsigned i = 0; i < 8; i++)
        f->key[i] = (uint8_t)(x >> (56 - 8 * i));
}


/* Chooses the next operation. Shared keys have numbers below SHARED, and the keys of each thread follow. */
static void prepare(void *arg, far_op *op) {
    worker *w = arg;
    flight *f = op->user;
    far_random *random = &w->random;
    unsigned pick = (unsigned)far_random_below(random, 12);
    *op = (far_op){.user = f};
    f->value = far_random_next(random) | 1;
    if (pick < 7) {
        static const far_op_kind kinds[] = {FAR_OP_GET, FAR_OP_GET,    FAR_OP_INSERT, FAR_OP_DELETE,
                                            FAR_OP_PUT, FAR_OP_UPDATE, FAR_OP_DELETE};
        set_key(f, far_random_below(random, SHARED));
        f->op.kind = kinds[pick];
    } else {
        unsigned n = (unsigned)far_random_below(random, OWN);
        while (w->busy[n])
            n = (n + 1) % OWN;
        w->busy[n] = true;
        set_key(f, SHARED + w->thread * OWN + n);
        f->op.kind = pick < 9 ? FAR_OP_GET : pick < 11 ? FAR_OP_PUT : FAR_OP_DELETE;
    }
    f->op.index = w->index;
    f->op.key = f->key;
    f->op.key_len = 8;
    f->op.value = &f->value;
    if (f->op.kind == FAR_OP_GET)
        f->op.capacity = 8;
    else
        f->op.value_len = 8;
}


static bool value_is_right(void *arg, far_op *op) {
    worker *w = arg;
    flight *f = op->user;
    int result = f->op.result;
    if (f->number < SHARED)
        return result == 0 || result == FAR_ERR_EXISTS || result == FAR_ERR_NOT_FOUND;
    unsigned n = (unsigned)(f->number - SHARED) % OWN;
    uint64_t before = w->own[n];
    w->busy[n] = false;
    if (f->op.kind == FAR_OP_GET)
        return before ? result == 0 && f->value == before : result == FAR_ERR_NOT_FOUND;
    w->own[n] = f->op.kind == FAR_OP_PUT ? f->value : 0;
    return result == (f->op.kind == FAR_OP_PUT || before ? 0 : FAR_ERR_NOT_FOUND);
}


static void *work(void *arg) {
    worker *w = arg;
    static _Thread_local flight all[DEPTH];
    far_op *ops[DEPTH];
    far_random_seed(&w->random, w->thread + 1);
    for (unsigned i = 0; i < DEPTH; i++)
        ops[i] = &all[i].op, all[i].op.user = &all[i];
    unsigned wrong = flights_run(w->pool, &(flights){DEPTH - 1, OPS, prepare, value_is_right, w}, ops);
    atomic_fetch_add_explicit(w->wrong, wrong, memory_order_relaxed);
    return NULL;
}


static void run_threads(const char *options, int rdwc, size_t cache_bytes) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_session *s;
    far_index *index;
    pthread_t threads[THREADS];
    static worker workers[THREADS];
    atomic_uint wrong = 0;
    pool_options.rdwc = rdwc ? 1 : -1;
    pool_options.cache_bytes = cache_bytes;
    assert_int_equal(far_pool_open("local:2x128M", &pool_options, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    assert_int_equal(far_index_create(s, "map", "chime", options, &index), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){.pool = pool, .index = index, .thread = i, .wrong = &wrong};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(wrong, 0);
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned n = 0; n < OWN; n++) {
            flight f;
            uint64_t value = 0;
            set_key(&f, SHARED + i * OWN + n);
            int result = far_get(s, index, f.key, 8, &value, 8, NULL);
            assert_int_equal(result, workers[i].own[n] ? 0 : FAR_ERR_NOT_FOUND);
            assert_true(value == workers[i].own[n]);
        }
    assert_int_equal(far_index_check(s, index, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_check(s, 1, fail_at_problem, NULL), 0);
    far_index_close(index);
    far_session_close(s);
    far_pool_close(pool);
}


TEST(threads_share_a_tree) {
    run_threads("key_size=8,value_size=8,span=12,hop=4,merge=sparse", 0, 0);
    run_threads("key_size=8,value_size=8,hotspot=64K", 1, 0);
}


TEST(threads_share_a_tree_of_blocks) {
    run_threads("span=12,hop=4,merge=sparse,hotspot=16K", 0, 64 << 10);
    run_threads("", 1, 0);
}
