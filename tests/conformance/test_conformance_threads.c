/* Real threads: a session each, disjoint and shared keys; sessions that move; calls beside closes. */
#include "conform.h"
#include "workload/value.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define THREADS 8

/* What one thread works on. Threads never assert: they count what went wrong, and the test looks at it after the join.
 */
typedef struct worker {
    const rig *r;
    far_session *session;
    uint64_t number;
    atomic_int *barrier;
    atomic_int *won; /* per key: how many threads won it */
    unsigned wrong;
    char first_wrong[256];
} worker;


static void note_wrong(worker *w, const char *what, int64_t result) {
    if (w->wrong++ == 0)
        snprintf(w->first_wrong, sizeof(w->first_wrong), "%s gave %lld (%s)", what, (long long)result,
                 far_last_error());
}


#define expect(w, condition, result)                                                                                   \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            note_wrong(w, #condition, result);                                                                         \
    } while (0)


static void meet(atomic_int *barrier) {
    atomic_fetch_add_explicit(barrier, 1, memory_order_acq_rel);
    while (atomic_load_explicit(barrier, memory_order_acquire) < THREADS)
        sched_yield();
}


/* Runs `work` in all threads, each with a session of its own: over the handles, in turn. */
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


static void *work_on_own_keys(void *arg) {
    worker *w = arg;
    uint8_t key[8], value[300];
    meet(w->barrier);
    for (uint64_t round = 0; round < OWN_ROUNDS; round++)
        for (uint64_t i = 0; i < OWN_KEYS; i++) {
            number_key(i * THREADS + w->number, key); /* neighbours in the order belong to other threads */
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


static void threads_with_own_keys_do_not_disturb_each_other(const conform *c) {
    rig r;
    rig_up(&r, c);
    run_workers((const rig *const[]){&r}, 1, work_on_own_keys, NULL);
    assert_own_keys(&r);
    rig_down(&r);
}


static void threads_of_several_handles_do_not_disturb_each_other(const conform *c) {
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


/* Everybody writes everywhere, values of two sizes: what is read must be whole, and belong to its key. */
static void *work_on_shared_keys(void *arg) {
    worker *w = arg;
    uint8_t key[8], value[600];
    meet(w->barrier);
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


static void shared_keys_always_hold_a_whole_value(const conform *c) {
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
        assert_int_equal(version % 1000, SHARED_ROUNDS - 1); /* the last one of some thread */
    }
    rig_close(&second);
    rig_down(&r);
}


enum { RACE_KEYS = 200 };


/* All insert all keys, then all delete all keys: each is won once. */
static void *race_for_keys(void *arg) {
    worker *w = arg;
    uint8_t key[8];
    meet(w->barrier);
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


static void of_racing_inserts_and_deletes_one_wins_each_turn(const conform *c) {
    rig r, second;
    rig_up(&r, c);
    rig_join(&second, &r);
    atomic_int won[RACE_KEYS] = {0};
    run_workers((const rig *const[]){&r, &second}, 2, race_for_keys, won);
    for (size_t i = 0; i < RACE_KEYS; i++) { /* a late insert may win the key again, after a delete */
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
    meet(w->barrier);
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


static void threads_have_many_in_flight(const conform *c) {
    rig r;
    rig_up(&r, c);
    run_workers((const rig *const[]){&r}, 1, submit_and_reap, NULL);
    far_usage usage = {0};
    assert_ok(far_index_usage(r.session, r.index, &usage));
    assert_int_equal(usage.keys, 100 * THREADS);
    rig_down(&r);
}


/* A session that moves: part of the work in each thread, operations in flight across the move. */
static void *reap_here(void *arg) {
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


static void a_session_moves_between_threads(const conform *c) {
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
        assert_int_equal(pthread_create(&thread, NULL, reap_here, &w), 0);
        pthread_join(thread, NULL);
        if (w.wrong)
            fail_msg("%s", w.first_wrong);
        assert_proof(r.session, r.index, "moved", 5, 50, round);
    }
    rig_down(&r);
}


/* Inside one thread after the other finds its own words. */
static void *fail_here(void *arg) {
    worker *w = arg;
    expect(w, strcmp(far_last_error(), "") == 0, 0); /* a new thread has not failed yet */
    int result = far_get(w->session, w->r->index, NULL, 1, NULL, 0, NULL);
    expect(w, result == FAR_ERR_INVALID && strstr(far_last_error(), "key"), result);
    return NULL;
}


static void each_thread_has_its_own_last_error(const conform *c) {
    rig r;
    rig_up(&r, c);
    worker w = {.r = &r, .session = r.session};
    pthread_t thread;
    assert_refused("index", far_get(r.session, NULL, "k", 1, NULL, 0, NULL));
    assert_int_equal(pthread_create(&thread, NULL, fail_here, &w), 0);
    pthread_join(thread, NULL);
    if (w.wrong)
        fail_msg("%s", w.first_wrong);
    assert_non_null(strstr(far_last_error(), "index"));
    rig_down(&r);
}


/* A reader whose thread stays away with operations in flight holds nobody up: others reuse memory meanwhile. */
static void a_session_left_alone_holds_nobody_up(const conform *c) {
    rig r;
    rig_up_with(&r, c, "8M", NULL, c->options);
    far_session *away = NULL;
    far_op op = {.kind = FAR_OP_PUT, .index = r.index, .key = "away", .key_len = 4, .value = "v", .value_len = 1};
    far_op *pointer = &op, *done = NULL;
    assert_ok(far_session_open(r.pool, &away));
    assert_code(1, far_submit(away, &pointer, 1));
    for (uint64_t i = 0; i < 600; i++) /* several times the pool's size */
        assert_ok(put_proof(r.session, r.index, "k", 1, 60000, i));
    assert_code(1, far_reap(away, &done, 1, 1));
    assert_ok(op.result);
    far_session_close(away);
    assert_text(&r, "away", "v");
    rig_down(&r);
}


enum { MANY_KEYS = 3000, MANY_ROUNDS = 3, MANY_PAUSE = 300 };


/* Long enough for housekeeping to tick: it frees what was retired, runs the index's hooks, and empties a cache that is
 * too small. */
static void let_housekeeping_run(void) {
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}


/* One thread, but never alone: what grows, shrinks and is cached is looked after by another meanwhile. */
static void one_thread_beside_housekeeping_finds_what_it_wrote(const conform *c) {
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


static const behaviour behaviours[] = {
    BEHAVIOUR_FOR(threads_with_own_keys_do_not_disturb_each_other, FOR_THREADS),
    BEHAVIOUR_FOR(threads_of_several_handles_do_not_disturb_each_other, FOR_THREADS),
    BEHAVIOUR_FOR(shared_keys_always_hold_a_whole_value, FOR_THREADS),
    BEHAVIOUR_FOR(of_racing_inserts_and_deletes_one_wins_each_turn, FOR_THREADS),
    BEHAVIOUR_FOR(threads_have_many_in_flight, FOR_THREADS),
    BEHAVIOUR_FOR(a_session_moves_between_threads, FOR_THREADS),
    BEHAVIOUR_FOR(each_thread_has_its_own_last_error, FOR_THREADS),
    BEHAVIOUR(a_session_left_alone_holds_nobody_up),
    BEHAVIOUR_FOR(one_thread_beside_housekeeping_finds_what_it_wrote, FOR_THREADS | IN_TURN),
};


int main(int argc, char **argv) {
    return conform_main(argc, argv, "threads", behaviours, COUNT_OF(behaviours));
}
