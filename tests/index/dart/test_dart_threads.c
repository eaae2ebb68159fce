/* DART on real threads: 8 threads with 64 operations in flight each, on a hot key, on the keys of one node that are
 * inserted and deleted, and on all keys. At the end each key has the value of its last operation. This test is run with
 * the address and thread sanitizers, too. */
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

enum { THREADS = 8, DEPTH = 64, OPS = FAR_TSAN ? 6000 : 20000, HOT = 24, OWN = 64 };

typedef struct slot { /* one operation in flight */
    far_op op;
    char key[32];
    uint64_t value[4];
} slot;

typedef struct worker {
    far_pool *pool;
    far_index *index;
    unsigned number;
    /* Last values of the keys that only this thread writes; -1 if the key is absent, -2 if the value is unknown. */
    int own[OWN];
    bool busy[OWN];
    atomic_uint *wrong;
} worker;


static void fill_pool(worker *w, far_random *random, slot *s) {
    unsigned pick = (unsigned)far_random_below(random, 10);
    memset(&s->op, 0, sizeof(s->op));
    s->op.index = w->index;
    s->op.key = s->key;
    s->op.value = s->value;
    s->op.user = s;
    if (pick < 3) { /* the hot key, which always exists */
        s->op.key_len = (size_t)sprintf(s->key, "hot");
        s->op.kind = pick == 0 ? FAR_OP_GET : pick == 1 ? FAR_OP_UPDATE : FAR_OP_PUT;
    } else if (pick < 7) { /* inserts and deletes in one node */
        s->op.key_len = (size_t)sprintf(s->key, "churn%c", (char)('a' + far_random_below(random, HOT)));
        s->op.kind = pick == 3 ? FAR_OP_GET : pick == 4 ? FAR_OP_INSERT : pick == 5 ? FAR_OP_DELETE : FAR_OP_PUT;
    } else {
        unsigned n = (unsigned)far_random_below(random, OWN);
        if (w->busy[n])
            n = OWN;
        else
            w->busy[n] = true;
        s->op.key_len = (size_t)sprintf(s->key, "own%u/%u", w->number, n);
        s->op.kind = n == OWN || pick == 7 ? FAR_OP_GET : pick == 8 ? FAR_OP_PUT : FAR_OP_DELETE;
    }
    for (unsigned i = 0; i < 4; i++) /* all words of a value are equal */
        s->value[i] = far_random_next(random) % 1000000 * 0x0000000100000001ull + 1;
    for (unsigned i = 1; i < 4; i++)
        s->value[i] = s->value[0];
    if (s->op.kind == FAR_OP_GET)
        s->op.capacity = sizeof(s->value);
    else
        s->op.value_len = sizeof(s->value);
}


static bool is_right(worker *w, slot *s) {
    unsigned number, n;
    int result = s->op.result;
    if (s->op.kind == FAR_OP_GET && result == 0 &&
        (s->op.value_len != sizeof(s->value) || s->value[1] != s->value[0] || s->value[2] != s->value[0] ||
         s->value[3] != s->value[0]))
        return false;
    if (strcmp(s->key, "hot") == 0)
        return result == 0;
    if (sscanf(s->key, "own%u/%u", &number, &n) != 2)
        return result == 0 || result == FAR_ERR_EXISTS || result == FAR_ERR_NOT_FOUND;
    if (n == OWN)
        return result == FAR_ERR_NOT_FOUND;
    w->busy[n] = false;
    int value = (int)(s->value[0] & 0xffffff), before = w->own[n];
    if (s->op.kind == FAR_OP_GET)
        return before < 0 ? result == FAR_ERR_NOT_FOUND : result == 0 && value == before;
    if (s->op.kind == FAR_OP_DELETE) {
        w->own[n] = -1;
        return result == (before < 0 ? FAR_ERR_NOT_FOUND : 0);
    }
    w->own[n] = value;
    return result == 0;
}


static void *run_worker(void *arg) {
    worker *w = arg;
    far_session *session;
    far_random random;
    static _Thread_local slot slots[DEPTH];
    far_op *done[DEPTH];
    unsigned started = 0, ended = 0;
    far_random_seed(&random, w->number + 1);
    if (far_session_open(w->pool, &session) < 0) {
        atomic_fetch_add_explicit(w->wrong, 1, memory_order_relaxed);
        return NULL;
    }
    for (; started < DEPTH; started++) {
        far_op *op = &slots[started].op;
        fill_pool(w, &random, &slots[started]);
        if (far_submit(session, &op, 1) != 1)
            atomic_fetch_add_explicit(w->wrong, 1, memory_order_relaxed);
    }
    while (ended < started) {
        int count = far_reap(session, done, DEPTH, 1);
        for (int i = 0; i < count; i++, ended++) {
            slot *s = done[i]->user;
            if (!is_right(w, s))
                atomic_fetch_add_explicit(w->wrong, 1, memory_order_relaxed);
            if (started == OPS)
                continue;
            far_op *op = &s->op;
            fill_pool(w, &random, s);
            started++;
            if (far_submit(session, &op, 1) != 1)
                atomic_fetch_add_explicit(w->wrong, 1, memory_order_relaxed);
        }
    }
    far_session_close(session);
    return NULL;
}


static void run_threads(const char *options, int rdwc) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_session *s;
    far_index *index;
    pthread_t threads[THREADS];
    static worker workers[THREADS];
    atomic_uint wrong = 0;
    uint64_t value[4] = {1, 1, 1, 1};
    pool_options.rdwc = rdwc ? 1 : -1;
    assert_int_equal(far_pool_open("local:2x128M", &pool_options, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    assert_int_equal(far_index_create(s, "map", "dart", options, &index), 0);
    assert_int_equal(far_put(s, index, "hot", 3, value, sizeof(value)), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){.pool = pool, .index = index, .number = i, .wrong = &wrong};
        for (unsigned n = 0; n < OWN; n++)
            workers[i].own[n] = -1;
        assert_int_equal(pthread_create(&threads[i], NULL, run_worker, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(wrong, 0);
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned n = 0; n < OWN; n++) {
            char key[32];
            int result = far_get(s, index, key, (size_t)sprintf(key, "own%u/%u", i, n), value, sizeof(value), NULL);
            assert_int_equal(result, workers[i].own[n] < 0 ? FAR_ERR_NOT_FOUND : 0);
            assert_true(result < 0 || (int)(value[0] & 0xffffff) == workers[i].own[n]);
        }
    assert_int_equal(far_index_check(s, index, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_check(s, 1, fail_at_problem, NULL), 0);
    far_index_close(index);
    far_session_close(s);
    far_pool_close(pool);
}


/* Proves that concurrent threads leave the last written values, without the skip table. */
TEST(threads_share_a_tree) {
    run_threads("est=0", 1);
    run_threads("est=0,masked_freeze=0,bucket=8", 0);
}


/* Proves that concurrent threads leave the last written values, with the skip table. */
TEST(threads_share_a_tree_with_its_skip_table) {
    run_threads("est=1", 1);
    run_threads("est=1,directory_bits=0,express_cache=4096", 0);
}
