/* Opening and closing handles and sessions: errors in words, use after close, what is given back, and housekeeping of
 * the absent. */
#include "base/error.h"
#include "client/client.h"
#include "pool/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>


static void sleep_ms(unsigned ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}


static void open_fails(const char *uri, const far_pool_options *options, int code, const char *words) {
    far_pool *pool = (far_pool *)&pool;
    far_fail_clear();
    int err = far_pool_open(uri, options, &pool);
    if (err != code || !strstr(far_last_error(), words))
        fail_msg("open of '%s' gave %d (%s)", uri ? uri : "NULL", err, far_last_error());
    assert_null(pool);
}


static void bad_arguments_are_named(void **state) {
    (void)state;
    open_fails(NULL, NULL, FAR_ERR_INVALID, "uri");
    open_fails("", NULL, FAR_ERR_INVALID, "uri");
    open_fails("nonsense", NULL, FAR_ERR_INVALID, "nonsense");
    open_fails("local:", NULL, FAR_ERR_INVALID, "local:");
    open_fails("local:12Q", NULL, FAR_ERR_INVALID, "12Q");
    open_fails("local:0x1G", NULL, FAR_ERR_INVALID, "memory nodes");
    open_fails("local:1G?nam=x", NULL, FAR_ERR_INVALID, "nam");
    open_fails("local:4K", NULL, FAR_ERR_INVALID, "too small");
    open_fails("local:256x4K", NULL, FAR_ERR_INVALID, "too small");
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.rdwc = 2;
    open_fails("local:2M", &options, FAR_ERR_INVALID, "rdwc");
    options.rdwc = -1;
    options.no_thread = -1;
    open_fails("local:2M", &options, FAR_ERR_INVALID, "no_thread");
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


static void the_smallest_pool_opens(void **state) {
    (void)state;
    far_pool *pool;
    assert_int_equal(far_pool_open("local:1M", NULL, &pool), 0);
    assert_int_equal(pool->options.cache_bytes, 64 << 20);
    assert_int_equal(pool->options.rdwc, 1);
    far_pool_close(pool);
}


static void zeroed_options_are_the_defaults(void **state) {
    (void)state;
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


static void a_pool_that_must_exist_is_not_made(void **state) {
    (void)state;
    char uri[96], path[64];
    far_pool *pool, *again;
    far_pool_options options = {.must_exist = 1};
    open_fails("local:1M?name=must_exist", &options, FAR_ERR_NOT_FOUND, "there is no pool");
    assert_int_equal(far_pool_open("local:1M?name=must_exist", NULL, &pool), 0);
    assert_int_equal(far_pool_open("local:1M?name=must_exist", &options, &again), 0);
    far_pool_close(again);
    far_pool_close(pool);
    snprintf(path, sizeof(path), "/dev/shm/farindex-must-exist-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=1M", path);
    open_fails(uri, &options, FAR_ERR_NOT_FOUND, "there is no pool");
    assert_true(access(path, F_OK) != 0);
    assert_int_equal(far_pool_open(uri, NULL, &pool), 0);
    far_pool_close(pool);
    assert_int_equal(far_pool_open(uri, &options, &again), 0);
    far_pool_close(again);
    unlink(path);
}


static int count_live(far_task *t, void *arg) {
    return far_clients_live(t, arg);
}


static unsigned live(far_pool *pool) {
    unsigned count;
    assert_int_equal(far_session_call(pool->team.own, FAR_STATS_OTHER, true, count_live, &count), 0);
    return count;
}


static void closes_give_their_ids_back(void **state) {
    (void)state;
    far_pool *watcher, *pool;
    far_session *s[10];
    assert_int_equal(far_pool_open("local:2M?name=handle", NULL, &watcher), 0);
    assert_int_equal(far_pool_open("local:2M?name=handle", NULL, &pool), 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(far_session_open(pool, &s[i]), 0);
    assert_int_equal(live(watcher), 12);
    for (int i = 0; i < 4; i++)
        far_session_close(s[i]);
    assert_int_equal(live(watcher), 8);
    far_pool_close(pool); /* on behalf of the six that are still open, too */
    assert_int_equal(live(watcher), 1);
    for (int i = 4; i < 10; i++) {
        assert_int_equal(far_call_enter(s[i]), FAR_ERR_INVALID);
        far_session_close(s[i]);
    }
    far_pool_close(watcher);
}


static void a_closed_pool_says_so_until_its_sessions_are_closed(void **state) {
    (void)state;
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


static void a_handle_held_by_an_open_index_outlives_its_close(void **state) {
    (void)state;
    far_pool *pool;
    assert_int_equal(far_pool_open("local:2M", NULL, &pool), 0);
    far_pool_reference(pool);
    far_pool_close(pool);
    assert_int_equal(far_pool_enter(pool), FAR_ERR_INVALID);
    far_pool_release(pool);
}


static void *close_it(void *arg) {
    far_pool_close(arg);
    return NULL;
}


static void a_close_waits_for_calls_in_progress(void **state) {
    (void)state;
    far_pool *pool;
    far_session *s;
    pthread_t closer;
    assert_int_equal(far_pool_open("local:2M", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    assert_int_equal(far_call_enter(s), 0);
    assert_int_equal(pthread_create(&closer, NULL, close_it, pool), 0);
    while (!atomic_load(&pool->closed))
        sleep_ms(1);
    sleep_ms(20);
    assert_false(atomic_load(&pool->finished));
    far_call_leave(s);
    pthread_join(closer, NULL);
    assert_true(atomic_load(&pool->finished));
    far_session_close(s);
}


static void lose(far_session *s) {
    far_session_enter(s);
    far_session_lose(s, FAR_ERR_FENCED);
    far_session_leave(s);
}


static void a_dead_compute_node_closes_without_hanging(void **state) {
    (void)state;
    for (int sessions_first = 0; sessions_first < 2; sessions_first++) {
        far_pool *pool;
        far_session *s;
        assert_int_equal(far_pool_open("local:2M", NULL, &pool), 0);
        assert_int_equal(far_session_open(pool, &s), 0);
        lose(s);
        lose(pool->team.own);
        if (sessions_first)
            far_session_close(s);
        far_pool_close(pool);
        if (!sessions_first)
            far_session_close(s);
    }
}


/* ---- Work that its thread left behind ---- */

typedef struct errand {
    atomic_int steps;
    atomic_bool done;
} errand;


static void run_errand(far_task *t, void *arg) {
    errand *e = arg;
    uint64_t word;
    for (int i = 0; i < 10; i++) {
        far_read_word(t, FAR_SUPER_EPOCH, &word);
        if (i % 3 == 0)
            far_back_off(t, 0);
        atomic_fetch_add(&e->steps, 1);
    }
    atomic_store(&e->done, true);
}


static void leave_behind(far_session *s, errand *e) {
    far_session_enter(s);
    assert_non_null(far_task_new(s, FAR_STATS_OTHER, run_errand, e));
    far_session_step(s);
    far_session_leave(s);
    assert_false(atomic_load(&e->done));
}


static void housekeeping_finishes_what_a_thread_left_under_way(void **state) {
    (void)state;
    far_pool *pool;
    far_session *s;
    errand e = {0};
    assert_int_equal(far_pool_open("local:2M?rtt=200us", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    leave_behind(s, &e);
    far_pool_wake(pool);
    while (!atomic_load(&e.done))
        sleep_ms(1);
    far_session_close(s);
    far_pool_close(pool);
}


static void without_a_thread_polling_finishes_it(void **state) {
    (void)state;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    far_pool *pool;
    far_session *s;
    errand e = {0};
    assert_int_equal(far_pool_open("local:2M?rtt=200us", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    leave_behind(s, &e);
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


static void a_close_finishes_it_too(void **state) {
    (void)state;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    far_pool *pool;
    far_session *s[2];
    errand e[2] = {{0}};
    assert_int_equal(far_pool_open("local:2M?rtt=200us", &options, &pool), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(far_session_open(pool, &s[i]), 0);
        leave_behind(s[i], &e[i]);
    }
    far_session_close(s[0]);
    assert_true(atomic_load(&e[0].done));
    far_pool_close(pool);
    assert_true(atomic_load(&e[1].done));
    far_session_close(s[1]);
}


/* A handle's own session is in the middle of waking the handle; nobody is there to drive it but the close. */
static void run_pinned(far_task *t, void *arg) {
    atomic_bool *done = arg;
    assert_int_equal(far_pin_take(t), 0);
    atomic_store(done, true);
}


static void sessions_that_wait_for_each_other_are_closed_together(void **state) {
    (void)state;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    for (int pool_first = 0; pool_first < 2; pool_first++) {
        far_pool *pool;
        far_session *s;
        assert_int_equal(far_pool_open("local:2M?rtt=200us", &options, &pool), 0);
        assert_int_equal(far_session_open(pool, &s), 0);
        atomic_store(&pool->team.unattended,
                     false); /* as when housekeeping has stopped: tasks count on others to be driven */
        atomic_bool waker = false, waiter = false;
        far_session_enter(pool->team.own);
        assert_non_null(far_task_new(pool->team.own, FAR_STATS_OTHER, run_pinned, &waker));
        far_session_step(pool->team.own); /* its verbs are on their way; it holds the flag */
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


/* ---- Many at once ---- */

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


static void sessions_come_and_go_on_many_threads(void **state) {
    (void)state;
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
    assert_int_equal(live(pool), 1);
    far_pool_close(pool);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(the_smallest_pool_opens),
        cmocka_unit_test(zeroed_options_are_the_defaults),
        cmocka_unit_test(a_pool_that_must_exist_is_not_made),
        cmocka_unit_test(closes_give_their_ids_back),
        cmocka_unit_test(a_closed_pool_says_so_until_its_sessions_are_closed),
        cmocka_unit_test(a_handle_held_by_an_open_index_outlives_its_close),
        cmocka_unit_test(a_close_waits_for_calls_in_progress),
        cmocka_unit_test(a_dead_compute_node_closes_without_hanging),
        cmocka_unit_test(housekeeping_finishes_what_a_thread_left_under_way),
        cmocka_unit_test(without_a_thread_polling_finishes_it),
        cmocka_unit_test(a_close_finishes_it_too),
        cmocka_unit_test(sessions_that_wait_for_each_other_are_closed_together),
        cmocka_unit_test(sessions_come_and_go_on_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
