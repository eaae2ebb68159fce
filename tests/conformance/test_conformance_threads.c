/* Behaviours with real threads: one session per thread, on disjoint and on shared keys; sessions that move between
 * threads; calls concurrent with closes. */
#include "conform.h"
#include "workload/value.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define THREADS 8

/* State of one thread. Threads never assert: they count failures, and the test checks the count after it has joined the
 * threads. */
typedef struct worker {
    const rig *r;
    far_session *session;
    uint64_t number;
    atomic_int *barrier;
    /* for each key, the number of successful inserts plus 1000 times the number of successful deletes */
    atomic_int *won;
    unsigned wrong;
    char first_wrong[256];
} worker;


static void record_failure(worker *w, const char *what, int64_t result) {
    if (w->wrong++ == 0)
        snprintf(w->first_wrong, sizeof(w->first_wrong), "%s gave %lld (%s)", what, (long long)result,
                 far_last_error());
}


#define expect(w, condition, result)                                                                                   \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            record_failure(w, #condition, result);                                                                     \
    } while (0)


static void wait_at_barrier(atomic_int *barrier) {
    atomic_fetch_add_explicit(barrier, 1, memory_order_acq_rel);
    while (atomic_load_explicit(barrier, memory_order_acquire) < THREADS)
        sched_yield();
}


/* Runs `work` in all threads. Each thread has its own session, and the sessions are distributed over the handles. */
static void run_workers(const rig *const rigs[], size_t rig_count, void *(*work)(void *), atomic_int *won) {
    pthread_t threads[THREADS];
    worker workers[THREADS] = {0};
    atomic_int barrier = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){.r = rigs[i % rig_count], .number = i, .barrier = &barrier, .won = won};
        assert_ok(far_session_open(workers[i].r->pool, &workers[i].session));
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < THREADS; i++) {
        if (workers[i].wrong)
            fail_msg("thread %u: %u wrong results, the first: %s", i, workers[i].wrong, workers[i].first_wrong);
        far_session_close(workers[i].session);
    }
}


enum { OWN_KEYS = 40, OWN_ROUNDS = 6 };


static size_t own_length(uint64_t number, uint64_t i, uint64_t round) {
    return (number * 131 + i * 17 + round * 71) % 300;
}


/* Puts, reads and deletes the thread's own keys and checks every result. */
static void *work_on_own_keys(void *arg) {
    worker *w = arg;
    uint8_t key[8], value[300];
    wait_at_barrier(w->barrier);
    for (uint64_t round = 0; round < OWN_ROUNDS; round++)
        for (uint64_t i = 0; i < OWN_KEYS; i++) {
            /* Keys that are adjacent in the key order belong to different threads. */
            number_key(i * THREADS + w->number, key);
            int result = put_proof(w->session, w->r->index, key, 8, own_length(w->number, i, round), round);
            expect(w, result == FAR_OK, result);
            size_t length = 0;
            result = far_get(w->session, w->r->index, key, 8, value, sizeof(value), &length);
            expect(w, result == FAR_OK && length == own_length(w->number, i, round), result);
            expect(w, far_value_check(value, length, key, 8, NULL), result);
            if (i % 3 == 0) {
                result = far_delete(w->session, w->r->index, key, 8);
                expect(w, result == FAR_OK, result);
                result = far_get(w->session, w->r->index, key, 8, NULL, 0, NULL);
                expect(w, result == FAR_ERR_NOT_FOUND, result);
            }
        }
    return NULL;
}


/* Asserts that the keys of all threads have the values of the last round. */
static void assert_own_keys(const rig *r) {
    uint8_t key[8];
    for (uint64_t number = 0; number < THREADS; number++)
        for (uint64_t i = 0; i < OWN_KEYS; i++) {
            number_key(i * THREADS + number, key);
            if (i % 3 == 0)
                assert_code(FAR_ERR_NOT_FOUND, far_get(r->session, r->index, key, 8, NULL, 0, NULL));
            else
                assert_proof(r->session, r->index, key, 8, own_length(number, i, OWN_ROUNDS - 1), OWN_ROUNDS - 1);
        }
}


/* Threads of one handle that use adjacent but different keys find exactly their own writes. */
BEHAVIOUR_FOR(threads_with_own_keys_do_not_disturb_each_other, FOR_THREADS) {
    rig r;
    rig_up(&r, c);
    run_workers((const rig *const[]){&r}, 1, work_on_own_keys, NULL);
    assert_own_keys(&r);
    rig_down(&r);
}


/* Threads of three handles that use adjacent but different keys find exactly their own writes. */
BEHAVIOUR_FOR(threads_of_several_handles_do_not_disturb_each_other, FOR_THREADS) {
    rig r, second, third;
    rig_up(&r, c);
    rig_join(&second, &r);
    rig_join(&third, &r);
    run_workers((const rig *const[]){&r, &second, &third}, 3, work_on_own_keys, NULL);
    assert_own_keys(&r);
    assert_own_keys(&third);
    rig_close(&third);
    rig_close(&second);
    rig_down(&r);
}


enum { SHARED_KEYS = 12, SHARED_ROUNDS = 40 };


/* All threads write all keys, with values of two sizes. Each value read must be complete and belong to its key. */
static void *work_on_shared_keys(void *arg) {
    worker *w = arg;
    uint8_t key[8], value[600];
    wait_at_barrier(w->barrier);
    for (uint64_t round = 0; round < SHARED_ROUNDS; round++)
        for (uint64_t i = 0; i < SHARED_KEYS; i++) {
            number_key(i, key);
            size_t length = 0, size = (w->number + round) % 2 ? 48 : 600;
            int result = put_proof(w->session, w->r->index, key, 8, size, w->number * 1000 + round);
            expect(w, result == FAR_OK, result);
            result = far_get(w->session, w->r->index, key, 8, value, sizeof(value), &length);
            expect(w, result == FAR_OK && (length == 48 || length == 600), result);
            expect(w, far_value_check(value, length, key, 8, NULL), result);
        }
    return NULL;
}


/* Threads write values of two sizes to the same keys. Every value that is read is complete and belongs to its key. */
BEHAVIOUR_FOR(a_shared_key_always_has_one_complete_value, FOR_THREADS) {
    rig r, second;
    rig_up(&r, c);
    rig_join(&second, &r);
    run_workers((const rig *const[]){&r, &second}, 2, work_on_shared_keys, NULL);
    uint8_t key[8], value[600];
    for (uint64_t i = 0; i < SHARED_KEYS; i++) {
        size_t length = 0;
        uint64_t version = 0;
        number_key(i, key);
        assert_ok(far_get(r.session, r.index, key, 8, value, sizeof(value), &length));
        assert_true(far_value_check(value, length, key, 8, &version));
        /* The remaining value is the last one that some thread has written. */
        assert_int_equal(version % 1000, SHARED_ROUNDS - 1);
    }
    rig_close(&second);
    rig_down(&r);
}


enum { RACE_KEYS = 200 };


/* Inserts all keys, then deletes all keys, concurrently with the other threads. Usually one insert and one delete of
 * each key succeed. If a slow thread inserts a key that was already deleted, further inserts and deletes of this key
 * succeed in turn. */
static void *race_for_keys(void *arg) {
    worker *w = arg;
    uint8_t key[8];
    wait_at_barrier(w->barrier);
    for (int turn = 0; turn < 2; turn++)
        for (uint64_t i = 0; i < RACE_KEYS; i++) {
            number_key(i, key);
            int result = turn == 0 ? far_insert(w->session, w->r->index, key, 8, &w->number, 8)
                                   : far_delete(w->session, w->r->index, key, 8);
            expect(w, result == FAR_OK || result == (turn == 0 ? FAR_ERR_EXISTS : FAR_ERR_NOT_FOUND), result);
            if (result == FAR_OK)
                atomic_fetch_add_explicit(&w->won[i], turn == 0 ? 1 : 1000, memory_order_relaxed);
        }
    return NULL;
}


/* If all threads insert or delete the same key, the numbers of successful inserts and deletes match the final state. */
BEHAVIOUR_FOR(one_of_several_racing_inserts_or_deletes_wins, FOR_THREADS) {
    rig r, second;
    rig_up(&r, c);
    rig_join(&second, &r);
    atomic_int won[RACE_KEYS] = {0};
    run_workers((const rig *const[]){&r, &second}, 2, race_for_keys, won);
    for (size_t i = 0; i < RACE_KEYS; i++) { /* A late insert may succeed again after a delete. */
        int count = atomic_load_explicit(&won[i], memory_order_relaxed), inserts = count % 1000, deletes = count / 1000;
        uint8_t key[8];
        number_key(i, key);
        int present = far_get(r.session, r.index, key, 8, NULL, 0, NULL) != FAR_ERR_NOT_FOUND;
        assert_true(inserts >= 1);
        assert_int_equal(inserts - deletes, present);
    }
    rig_close(&second);
    rig_down(&r);
}


static void *submit_and_reap(void *arg) {
    worker *w = arg;
    enum { OPS = 100 };
    far_op ops[OPS], *pointers[OPS], *done[OPS];
    uint8_t keys[OPS][8];
    wait_at_barrier(w->barrier);
    for (int round = 0; round < 4; round++) {
        for (uint64_t i = 0; i < OPS; i++) {
            number_key(i * THREADS + w->number, keys[i]);
            ops[i] = (far_op){.kind = FAR_OP_PUT,
                              .index = w->r->index,
                              .key = keys[i],
                              .key_len = 8,
                              .value = keys[i],
                              .value_len = 8};
            pointers[i] = &ops[i];
        }
        int result = far_submit(w->session, pointers, OPS);
        expect(w, result == OPS, result);
        result = far_reap(w->session, done, OPS, OPS);
        expect(w, result == OPS, result);
        for (uint64_t i = 0; i < OPS; i++)
            expect(w, ops[i].result == FAR_OK, ops[i].result);
    }
    return NULL;
}


/* Several threads each keep many operations in flight, and all finish with right results. */
BEHAVIOUR_FOR(threads_run_many_operations_in_flight, FOR_THREADS) {
    rig r;
    rig_up(&r, c);
    run_workers((const rig *const[]){&r}, 1, submit_and_reap, NULL);
    far_usage usage = {0};
    assert_ok(far_index_usage(r.session, r.index, &usage));
    assert_int_equal(usage.keys, 100 * THREADS);
    rig_down(&r);
}


/* A session moves to another thread: each thread does a part of the work, and operations are in flight during the move.
 */
static void *reap_in_thread(void *arg) {
    worker *w = arg;
    far_op *done[100];
    int result = far_reap(w->session, done, 100, 100);
    expect(w, result == 100, result);
    for (int i = 0; i < result; i++)
        expect(w, done[i]->result == FAR_OK, done[i]->result);
    result = put_proof(w->session, w->r->index, "moved", 5, 50, w->number);
    expect(w, result == FAR_OK, result);
    return NULL;
}


/* A session may be used by one thread after another, even with operations in flight. */
BEHAVIOUR_FOR(a_session_moves_between_threads, FOR_THREADS) {
    rig r;
    rig_up(&r, c);
    far_op ops[100], *pointers[100];
    uint8_t keys[100][8];
    for (uint64_t i = 0; i < 100; i++) {
        number_key(i, keys[i]);
        ops[i] = (far_op){
            .kind = FAR_OP_PUT, .index = r.index, .key = keys[i], .key_len = 8, .value = keys[i], .value_len = 8};
        pointers[i] = &ops[i];
    }
    for (uint64_t round = 0; round < 5; round++) {
        worker w = {.r = &r, .session = r.session, .number = round};
        pthread_t thread;
        assert_code(100, far_submit(r.session, pointers, 100));
        assert_int_equal(pthread_create(&thread, NULL, reap_in_thread, &w), 0);
        pthread_join(thread, NULL);
        if (w.wrong)
            fail_msg("%s", w.first_wrong);
        assert_proof(r.session, r.index, "moved", 5, 50, round);
    }
    rig_down(&r);
}


/* Each thread receives the message of its own failure. */
static void *fail_in_thread(void *arg) {
    worker *w = arg;
    expect(w, strcmp(far_last_error(), "") == 0, 0); /* No call of a new thread has failed yet. */
    int result = far_get(w->session, w->r->index, NULL, 1, NULL, 0, NULL);
    expect(w, result == FAR_ERR_INVALID && strstr(far_last_error(), "key"), result);
    return NULL;
}


/* far_last_error returns the message of the calling thread, and "" in a thread without a failure. */
BEHAVIOUR_FOR(each_thread_has_its_own_last_error, FOR_THREADS) {
    rig r;
    rig_up(&r, c);
    worker w = {.r = &r, .session = r.session};
    pthread_t thread;
    assert_refused("index", far_get(r.session, NULL, "k", 1, NULL, 0, NULL));
    assert_int_equal(pthread_create(&thread, NULL, fail_in_thread, &w), 0);
    pthread_join(thread, NULL);
    if (w.wrong)
        fail_msg("%s", w.first_wrong);
    assert_non_null(strstr(far_last_error(), "index"));
    rig_down(&r);
}


/* The thread of session A has gets in flight and makes no further call. Other sessions can nevertheless write several
 * times the size of the pool, because housekeeping finishes A's gets, so that A's pin does not prevent the reuse of
 * memory. */
BEHAVIOUR(an_absent_thread_does_not_block_other_clients) {
    rig r;
    rig_up_with(&r, c, "8M", NULL, c->options);
    far_session *away = NULL;
    far_op op = {.kind = FAR_OP_PUT, .index = r.index, .key = "away", .key_len = 4, .value = "v", .value_len = 1};
    far_op *pointer = &op, *done = NULL;
    assert_ok(far_session_open(r.pool, &away));
    assert_code(1, far_submit(away, &pointer, 1));
    for (uint64_t i = 0; i < 600; i++) /* The puts together write several times the size of the pool. */
        assert_ok(put_proof(r.session, r.index, "k", 1, 60000, i));
    assert_code(1, far_reap(away, &done, 1, 1));
    assert_ok(op.result);
    far_session_close(away);
    assert_text(&r, "away", "v");
    rig_down(&r);
}


enum { MANY_KEYS = 3000, MANY_ROUNDS = 3, MANY_PAUSE = 300 };


/* Sleeps long enough for some ticks of housekeeping. Housekeeping frees retired memory, calls the idle hooks of the
 * index, and evicts entries of a cache that exceeds its budget. */
static void let_housekeeping_run(void) {
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}


/* One thread writes and reads while housekeeping restructures the index, reclaims memory and evicts cache entries. */
BEHAVIOUR_FOR(a_thread_reads_its_own_writes_while_housekeeping_runs, FOR_THREADS | IN_TURN) {
    rig r;
    uint8_t key[8];
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.cache_bytes = 64 << 10;
    rig_up_with(&r, c, RIG_SIZE, &options, c->options);
    for (uint64_t round = 0; round < MANY_ROUNDS; round++) {
        for (uint64_t i = 0; i < MANY_KEYS; i++) {
            number_key(i * 0x9e3779b97f4a7c15ull, key);
            assert_ok(put_proof(r.session, r.index, key, 8, 40 + 20 * round, round));
            if (i % MANY_PAUSE == 0)
                let_housekeeping_run();
        }
        for (uint64_t i = 0; i < MANY_KEYS; i++) {
            number_key(i * 0x9e3779b97f4a7c15ull, key);
            assert_proof(r.session, r.index, key, 8, 40 + 20 * round, round);
            if (i % 3 == round)
                assert_ok(far_delete(r.session, r.index, key, 8));
            if (i % MANY_PAUSE == 0)
                let_housekeeping_run();
        }
    }
    far_usage usage = {0};
    assert_ok(far_index_usage(r.session, r.index, &usage));
    assert_int_equal(usage.keys, MANY_KEYS - MANY_KEYS / 3);
    rig_down(&r);
}
