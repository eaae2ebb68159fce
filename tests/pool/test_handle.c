/* Tests of opening and closing handles and sessions: error texts, calls after a close, ids that are freed, and work
 * that a thread has left unfinished. */
#include "test.h"
#include "base/error.h"
#include "client/client.h"
#include "pool/handle.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>


static void sleep_ms(unsigned ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}


static void expect_open_fails(const char *uri, const far_pool_options *options, int code, const char *words) {
    far_pool *pool = (far_pool *)&pool;
    far_fail_clear();
    int err = far_pool_open(uri, options, &pool);
    if (err != code || !strstr(far_last_error(), words))
        fail_msg("open of '%s' gave %d (%s)", uri ? uri : "NULL", err, far_last_error());
    assert_null(pool);
}


/* Invalid URIs, options and pointers are refused with the right error and a text that names the bad argument. */
TEST(bad_arguments_are_named) {
    expect_open_fails(NULL, NULL, FAR_ERR_INVALID, "uri");
    expect_open_fails("", NULL, FAR_ERR_INVALID, "uri");
    expect_open_fails("nonsense", NULL, FAR_ERR_INVALID, "nonsense");
    expect_open_fails("local:", NULL, FAR_ERR_INVALID, "local:");
    expect_open_fails("local:12Q", NULL, FAR_ERR_INVALID, "12Q");
    expect_open_fails("local:0x1G", NULL, FAR_ERR_INVALID, "memory nodes");
    expect_open_fails("local:1G?nam=x", NULL, FAR_ERR_INVALID, "nam");
    expect_open_fails("local:4K", NULL, FAR_ERR_INVALID, "too small");
    expect_open_fails("local:256x4K", NULL, FAR_ERR_INVALID, "too small");
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.rdwc = 2;
    expect_open_fails("local:2M", &options, FAR_ERR_INVALID, "rdwc");
    options.rdwc = -1;
    options.no_thread = -1;
    expect_open_fails("local:2M", &options, FAR_ERR_INVALID, "no_thread");
    far_fail_clear();
    assert_int_equal(far_pool_open("local:2M", NULL, NULL), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "pool"));
    far_session *s;
    far_fail_clear();
    assert_int_equal(far_session_open(NULL, &s), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "pool"));
    assert_null(s);
    assert_int_equal(far_pool_poll(NULL), FAR_ERR_INVALID);
    far_pool *pool;
    assert_int_equal(far_pool_open("local:2M", NULL, &pool), 0);
    far_fail_clear();
    assert_int_equal(far_session_open(pool, NULL), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "session"));
    far_pool_close(pool);
    far_pool_close(NULL);
    far_session_close(NULL);
}


/* A pool of 1 MiB can be formatted, and unset options get their default values. */
TEST(the_smallest_pool_opens) {
    far_pool *pool;
    assert_int_equal(far_pool_open("local:1M", NULL, &pool), 0);
    assert_int_equal(pool->options.cache_bytes, 64 << 20);
    assert_int_equal(pool->options.rdwc, 1);
    far_pool_close(pool);
}


/* Options that are all zero have the same meaning as the default options. */
TEST(zeroed_options_are_the_defaults) {
    static const struct { int asked, merges; } cases[] = {{0, 1}, {1, 1}, {-1, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        far_pool *pool;
        far_pool_options options = {.rdwc = cases[i].asked};
        assert_int_equal(far_pool_open("local:1M", &options, &pool), 0);
        assert_int_equal(pool->options.cache_bytes, 64 << 20);
        assert_int_equal(pool->rdwc != NULL, cases[i].merges);
        far_pool_close(pool);
    }
}


/* With must_exist, opening unformatted memory fails with FAR_ERR_NOT_FOUND and creates neither a pool nor a file. An
 * existing pool opens. */
TEST(a_pool_that_must_exist_is_not_created) {
    char uri[96], path[64];
    far_pool *pool, *again;
    far_pool_options options = {.must_exist = 1};
    expect_open_fails("local:1M?name=must_exist", &options, FAR_ERR_NOT_FOUND, "there is no pool");
    assert_int_equal(far_pool_open("local:1M?name=must_exist", NULL, &pool), 0);
    assert_int_equal(far_pool_open("local:1M?name=must_exist", &options, &again), 0);
    far_pool_close(again);
    far_pool_close(pool);
    snprintf(path, sizeof(path), "/dev/shm/farindex-must-exist-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=1M", path);
    expect_open_fails(uri, &options, FAR_ERR_NOT_FOUND, "there is no pool");
    assert_true(access(path, F_OK) != 0);
    assert_int_equal(far_pool_open(uri, NULL, &pool), 0);
    far_pool_close(pool);
    assert_int_equal(far_pool_open(uri, &options, &again), 0);
    far_pool_close(again);
    unlink(path);
}


static int run_count_live(far_task *t, void *arg) {
    return far_clients_live(t, arg);
}


static unsigned count_live_clients(far_pool *pool) {
    unsigned count;
    assert_int_equal(far_session_call(pool->team.own, FAR_STATS_OTHER, true, run_count_live, &count), 0);
    return count;
}


/* Closing a session frees its id. Closing a handle frees the ids of all its sessions, and refuses later calls with the
 * open ones. */
TEST(closes_give_their_ids_back) {
    far_pool *watcher, *pool;
    far_session *s[10];
    assert_int_equal(far_pool_open("local:2M?name=handle", NULL, &watcher), 0);
    assert_int_equal(far_pool_open("local:2M?name=handle", NULL, &pool), 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(far_session_open(pool, &s[i]), 0);
    assert_int_equal(count_live_clients(watcher), 12);
    for (int i = 0; i < 4; i++)
        far_session_close(s[i]);
    assert_int_equal(count_live_clients(watcher), 8);
    far_pool_close(pool); /* this also closes the six sessions that are still open */
    assert_int_equal(count_live_clients(watcher), 1);
    for (int i = 4; i < 10; i++) {
        assert_int_equal(far_call_enter(s[i]), FAR_ERR_INVALID);
        far_session_close(s[i]);
    }
    far_pool_close(watcher);
}


/* After far_pool_close, calls with a session of the handle or with the handle fail with FAR_ERR_INVALID until the
 * session is closed. */
TEST(a_closed_pool_refuses_calls_until_its_sessions_are_closed) {
    far_pool *pool;
    far_session *s, *more;
    assert_int_equal(far_pool_open("local:2M", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    assert_int_equal(far_call_enter(s), 0);
    far_call_leave(s);
    far_pool_close(pool);
    far_fail_clear();
    assert_int_equal(far_call_enter(s), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "closed"));
    assert_int_equal(far_session_open(pool, &more), FAR_ERR_INVALID);
    assert_int_equal(far_pool_poll(pool), FAR_ERR_INVALID);
    far_pool_close(pool);
    assert_int_equal(far_call_enter(NULL), FAR_ERR_INVALID);
    far_session_close(s);
}


/* A reference keeps the memory of a closed handle allocated, and the handle refuses calls. */
TEST(the_memory_of_a_handle_with_an_open_index_outlives_its_close) {
    far_pool *pool;
    assert_int_equal(far_pool_open("local:2M", NULL, &pool), 0);
    far_pool_reference(pool);
    far_pool_close(pool);
    assert_int_equal(far_pool_enter(pool), FAR_ERR_INVALID);
    far_pool_release(pool);
}


static void *close_pool(void *arg) {
    far_pool_close(arg);
    return NULL;
}


/* far_pool_close waits until a call in progress has returned. */
TEST(a_close_waits_for_calls_in_progress) {
    far_pool *pool;
    far_session *s;
    pthread_t closer;
    assert_int_equal(far_pool_open("local:2M", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    assert_int_equal(far_call_enter(s), 0);
    assert_int_equal(pthread_create(&closer, NULL, close_pool, pool), 0);
    while (!atomic_load(&pool->closed))
        sleep_ms(1);
    sleep_ms(20);
    assert_false(atomic_load(&pool->finished));
    far_call_leave(s);
    pthread_join(closer, NULL);
    assert_true(atomic_load(&pool->finished));
    far_session_close(s);
}


static void lose_session(far_session *s) {
    far_session_enter(s);
    far_session_lose(s, FAR_ERR_FENCED);
    far_session_leave(s);
}


/* If all sessions of a handle are fenced, it can be closed, before or after its session. */
TEST(a_failed_handle_closes_without_hanging) {
    for (int sessions_first = 0; sessions_first < 2; sessions_first++) {
        far_pool *pool;
        far_session *s;
        assert_int_equal(far_pool_open("local:2M", NULL, &pool), 0);
        assert_int_equal(far_session_open(pool, &s), 0);
        lose_session(s);
        lose_session(pool->team.own);
        if (sessions_first)
            far_session_close(s);
        far_pool_close(pool);
        if (!sessions_first)
            far_session_close(s);
    }
}


/* ---- Work that its thread has left unfinished ---- */

typedef struct work_item {
    atomic_int steps;
    atomic_bool done;
} work_item;


static void run_work_item(far_task *t, void *arg) {
    work_item *e = arg;
    uint64_t word;
    for (int i = 0; i < 10; i++) {
        far_read_word(t, FAR_SUPER_EPOCH, &word);
        if (i % 3 == 0)
            far_back_off(t, 0);
        atomic_fetch_add(&e->steps, 1);
    }
    atomic_store(&e->done, true);
}


static void leave_work_unfinished(far_session *s, work_item *e) {
    far_session_enter(s);
    assert_non_null(far_task_new(s, FAR_STATS_OTHER, run_work_item, e));
    far_session_step(s);
    far_session_leave(s);
    assert_false(atomic_load(&e->done));
}


/* If a thread leaves its session with an unfinished task, the housekeeping thread completes the task. */
TEST(housekeeping_finishes_work_that_a_thread_left_unfinished) {
    far_pool *pool;
    far_session *s;
    work_item e = {0};
    assert_int_equal(far_pool_open("local:2M?rtt=200us", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    leave_work_unfinished(s, &e);
    far_pool_wake(pool);
    while (!atomic_load(&e.done))
        sleep_ms(1);
    far_session_close(s);
    far_pool_close(pool);
}


/* Without a housekeeping thread, a task that its thread left unfinished makes no progress by itself. far_pool_poll
 * completes the task. */
TEST(without_a_thread_polling_finishes_unfinished_work) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    far_pool *pool;
    far_session *s;
    work_item e = {0};
    assert_int_equal(far_pool_open("local:2M?rtt=200us", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    leave_work_unfinished(s, &e);
    int steps = atomic_load(&e.steps);
    sleep_ms(20);
    assert_int_equal(atomic_load(&e.steps), steps);
    while (!atomic_load(&e.done)) {
        assert_int_equal(far_pool_poll(pool), 0);
        sleep_ms(1);
    }
    far_session_close(s);
    far_pool_close(pool);
}


/* Closing a session or a handle completes its unfinished tasks. */
TEST(a_close_finishes_unfinished_work) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    far_pool *pool;
    far_session *s[2];
    work_item e[2] = {{0}};
    assert_int_equal(far_pool_open("local:2M?rtt=200us", &options, &pool), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(far_session_open(pool, &s[i]), 0);
        leave_work_unfinished(s[i], &e[i]);
    }
    far_session_close(s[0]);
    assert_true(atomic_load(&e[0].done));
    far_pool_close(pool);
    assert_true(atomic_load(&e[1].done));
    far_session_close(s[1]);
}


/* A task that takes a pin. In the system session it activates the handle, and only a close runs it. */
static void run_pinned(far_task *t, void *arg) {
    atomic_bool *done = arg;
    assert_int_equal(far_pin_take(t), 0);
    atomic_store(done, true);
}


/* The system session is activating the handle, and a user's session waits for that. Closing the
 * user's session, or the handle, runs both sessions until their tasks have ended. Fails if a close runs only the
 * session that is closed. */
TEST(sessions_that_wait_for_each_other_are_closed_together) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    for (int pool_first = 0; pool_first < 2; pool_first++) {
        far_pool *pool;
        far_session *s;
        assert_int_equal(far_pool_open("local:2M?rtt=200us", &options, &pool), 0);
        assert_int_equal(far_session_open(pool, &s), 0);
        /* The state is the same as after housekeeping has ended: tasks rely on other threads to run the sessions. */
        atomic_store(&pool->team.unattended, false);
        atomic_bool waker = false, waiter = false;
        far_session_enter(pool->team.own);
        assert_non_null(far_task_new(pool->team.own, FAR_STATS_OTHER, run_pinned, &waker));
        /* The verbs of the system session are in flight, and the session holds the lock of the epoch state. */
        far_session_step(pool->team.own);
        far_session_leave(pool->team.own);
        far_session_enter(s);
        assert_non_null(far_task_new(s, FAR_STATS_OTHER, run_pinned, &waiter));
        far_session_step(s);
        far_session_leave(s);
        assert_false(atomic_load(&waker) || atomic_load(&waiter));
        if (pool_first)
            far_pool_close(pool);
        far_session_close(s);
        assert_true(atomic_load(&waker) && atomic_load(&waiter));
        if (!pool_first)
            far_pool_close(pool);
    }
}


/* ---- Many threads ---- */

static void *open_and_close(void *arg) {
    far_pool *pool = arg;
    for (int i = 0; i < 200; i++) {
        far_session *s[3];
        for (int j = 0; j < 3; j++)
            if (far_session_open(pool, &s[j]) < 0)
                return (void *)1;
        for (int j = 0; j < 3; j++)
            far_session_close(s[j]);
    }
    return NULL;
}


/* Four threads open and close sessions of one handle. At the end only the system session is registered. */
TEST(sessions_come_and_go_on_many_threads) {
    far_pool *pool;
    pthread_t threads[4];
    assert_int_equal(far_pool_open("local:2M", NULL, &pool), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, pool), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(count_live_clients(pool), 1);
    far_pool_close(pool);
}
