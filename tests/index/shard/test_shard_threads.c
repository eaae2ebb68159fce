/* Eight threads with 64 operations in flight each use one table that grows from empty. No key is lost or duplicated,
 * and the sanitizers report nothing. */
#include "../support/problem.h"
#include "base/sanitizer.h"
#include "client/op.h"
#include "farindex.h"
#include "index/index.h"
#include "test.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, DEPTH = 64, KEYS_EACH = FAR_TSAN ? 1000 : FAR_ASAN ? 8000 : 20000 };

static uint64_t keys_each = KEYS_EACH; /* SHARD_KEYS in the environment sets the total number of keys of all threads */

typedef struct worker {
    far_pool *pool;
    far_index *index;
    unsigned number;
    uint64_t wrong;
    pthread_t thread;
} worker;

typedef struct slot {
    far_op op;
    uint64_t key, value, n;
    unsigned step; /* insert, get, delete of every fourth key, second insert of every eighth key */
} slot;


/* Takes the next step of a key. Returns false if the key is finished. */
static bool next_step(slot *s) {
    static const far_op_kind steps[] = {FAR_OP_INSERT, FAR_OP_GET,    FAR_OP_UPDATE,
                                        FAR_OP_GET,    FAR_OP_DELETE, FAR_OP_PUT};
    unsigned last = s->n % 8 == 0 ? 6 : s->n % 4 == 0 ? 5 : 4;
    if (s->step == last)
        return false;
    s->op.kind = steps[s->step++];
    if (s->op.kind != FAR_OP_GET)
        s->value = s->n * 8 + s->step;
    s->op.value = &s->value;
    s->op.value_len = s->op.capacity = 8;
    return true;
}


static bool went_well(const slot *s) {
    uint64_t expected = s->n * 8 + (s->step == 2 ? 1 : 3);
    return s->op.result == 0 && (s->op.kind != FAR_OP_GET || (s->op.value_len == 8 && s->value == expected));
}


static void *run_thread(void *arg) {
    worker *w = arg;
    far_session *session;
    slot *slots = calloc(DEPTH, sizeof(*slots));
    if (far_session_open(w->pool, &session) != 0) {
        w->wrong++;
        return NULL;
    }
    uint64_t next = 0, busy = 0;
    far_op *list[DEPTH], *done[DEPTH];
    size_t count = 0;
    for (; next < DEPTH; next++) {
        slots[next] = (slot){.n = next * THREADS + w->number, .op = {.index = w->index, .key_len = 8}};
        list[count++] = &slots[next].op;
    }
    for (size_t i = 0; i < count; i++) {
        slot *s = &slots[i];
        s->key = s->n * 0x9e3779b97f4a7c15ull;
        s->op.key = &s->key;
        s->op.user = s;
        next_step(s);
    }
    while (count || busy) {
        int taken = far_submit(session, list, count);
        memmove(list, list + taken, (count - (size_t)taken) * sizeof(*list));
        count -= (size_t)taken;
        busy += (uint64_t)taken;
        int reaped = far_reap(session, done, DEPTH, 1);
        busy -= (uint64_t)reaped;
        for (int i = 0; i < reaped; i++) {
            slot *s = done[i]->user;
            w->wrong += !went_well(s);
            if (!next_step(s)) {
                if (next == keys_each)
                    continue;
                s->n = next++ * THREADS + w->number;
                s->key = s->n * 0x9e3779b97f4a7c15ull;
                s->step = 0;
                next_step(s);
            }
            list[count++] = &s->op;
        }
    }
    far_session_close(session);
    free(slots);
    return NULL;
}


static void grow_from_empty(const char *options) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    worker workers[THREADS];
    far_load before, after;
    assert_int_equal(far_pool_open(keys_each > KEYS_EACH ? "local:2x2G" : "local:2x512M", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "t", "shard", options, &index), 0);
    assert_int_equal(far_index_load(session, index, &before), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){pool, index, i, 0, 0};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, run_thread, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].wrong, 0);
    }
    uint64_t present = 0;
    for (uint64_t n = 0; n < keys_each * THREADS; n++) {
        uint64_t key = n * 0x9e3779b97f4a7c15ull, value;
        size_t length;
        bool there = n % 4 != 0 || n % 8 == 0;
        present += there;
        assert_int_equal(far_get(session, index, &key, 8, &value, 8, &length), there ? 0 : FAR_ERR_NOT_FOUND);
        if (there)
            assert_int_equal(value, n * 8 + (n % 8 == 0 ? 6 : 3));
    }
    far_usage usage;
    assert_int_equal(far_index_check(session, index, fail_at_problem, NULL), 0);
    assert_int_equal(far_index_usage(session, index, &usage), 0);
    assert_int_equal(usage.keys, present);
    assert_int_equal(far_index_load(session, index, &after), 0);
    assert_int_equal(after.keys[0] + after.keys[1] + after.keys[2], present);
    assert_true((after.slots > before.slots || keys_each < 8000) && after.local_bytes < 64 * 1024);
    /* The local memory does not depend on the number of keys, threads and operations, except for the cached addresses of
     * tables that consist of extents: 8 bytes for each half block, and a header for each table. */
    assert_in_range(after.local_bytes - before.local_bytes, 0, 256 + after.slots / 1024);
    assert_int_equal(far_pool_check(session, 0, fail_at_problem, NULL), 0);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


TEST(pointer_table_grows_under_threads) {
    grow_from_empty("partitions=4,bits=2,layout=pointer");
}


TEST(inline_table_grows_under_threads) {
    grow_from_empty("key_size=8,value_size=8,partitions=64,bits=4");
}


TEST_ARGUMENTS(argc, argv) {
    if (getenv("SHARD_KEYS"))
        keys_each = strtoull(getenv("SHARD_KEYS"), NULL, 10) / THREADS;
    if (argc > 1)
        test_set_pattern(argv[1]);
    return TEST_CONTINUE;
}
