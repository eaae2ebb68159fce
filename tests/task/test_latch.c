/* Latches: one task of a handle at a time, in the order in which they came, over threads, sessions and lost ones. */
#include "base/sanitizer.h"
#include "pool/handle.h"
#include "task/latch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define THREADS   6
#define TASKS     40
#define TURNS     (FAR_TSAN || FAR_ASAN ? 50 : 300)
#define ADDRESSES 3

static far_pool pool;
static far_session *one, *two;


static int set_up(void **state) {
    (void)state;
    memset(&pool, 0, sizeof(pool));
    if (far_fabric_open("local:1M", &pool.fabric) < 0)
        return -1;
    pool.geometry.capabilities = pool.fabric->capabilities;
    pool.team.latches = far_latches_new();
    if (far_pool_session_new(&pool, &one) < 0 || far_pool_session_new(&pool, &two) < 0)
        return -1;
    far_session_enter(one);
    far_session_enter(two);
    return 0;
}


static int tear_down(void **state) {
    (void)state;
    far_session_leave(one);
    far_session_leave(two);
    far_session_free(one);
    far_session_free(two);
    far_latches_free(pool.team.latches);
    pool.fabric->ops->close(pool.fabric);
    return 0;
}


static void settle(void) {
    for (int i = 0; i < 20; i++) {
        far_session_step(one);
        far_session_step(two);
    }
}


/* One task that holds an address until it is told to let go. */
typedef struct holder {
    far_addr addr;
    bool holds, let_go, ended;
    unsigned turn; /* the how-manieth it was */
} holder;

static unsigned turns;


static void hold(far_task *t, void *arg) {
    holder *h = arg;
    far_latch(t, h->addr);
    h->holds = true;
    h->turn = ++turns;
    while (!h->let_go)
        far_yield(t);
    far_unlatch(t, h->addr);
    h->ended = true;
}


static void those_who_wait_are_served_in_their_order(void **state) {
    (void)state;
    holder holders[9] = {0};
    turns = 0;
    for (unsigned i = 0; i < 9; i++) {
        holders[i].addr = 64;
        assert_non_null(far_task_new(i % 2 ? one : two, FAR_STATS_OTHER, hold, &holders[i]));
        settle();
    }
    for (unsigned i = 0; i < 9; i++) {
        for (unsigned j = 0; j < 9; j++)
            assert_int_equal(holders[j].holds, j <= i);
        holders[i].let_go = true;
        settle();
        assert_true(holders[i].ended);
        assert_int_equal(holders[i].turn, i + 1);
    }
}


static far_task *seen_next;
static uint64_t found[FAR_GIFT_WORDS];
static bool was_gift;


static void give(far_task *t, void *arg) {
    holder *h = arg;
    static const uint64_t gift[FAR_GIFT_WORDS] = {1, 2, 3, 4, 5};
    far_latch(t, h->addr);
    h->holds = true;
    while (!h->let_go)
        far_yield(t);
    seen_next = far_latch_next(t, h->addr);
    if (seen_next)
        far_unlatch_gift(t, h->addr, gift);
    else
        far_unlatch(t, h->addr);
    h->ended = true;
}


static void take(far_task *t, void *arg) {
    holder *h = arg;
    far_latch(t, h->addr);
    was_gift = far_latch_gift(t, h->addr, found);
    far_unlatch(t, h->addr);
    h->ended = true;
}


/* The next one is known before it is given anything, and what it gets it gives to nobody else by itself. */
static void a_gift_goes_to_the_next_one(void **state) {
    (void)state;
    for (unsigned waiting = 0; waiting < 3; waiting++) {
        holder first = {.addr = 64}, others[2] = {{.addr = 64}, {.addr = 64}};
        far_task *tasks[2] = {NULL, NULL};
        assert_non_null(far_task_new(one, FAR_STATS_OTHER, give, &first));
        settle();
        for (unsigned i = 0; i < waiting; i++) {
            tasks[i] = far_task_new(i % 2 ? one : two, FAR_STATS_OTHER, i ? take : give, &others[i]);
            others[i].let_go = true;
            settle();
        }
        was_gift = false;
        memset(found, 0, sizeof(found));
        first.let_go = true;
        settle();
        assert_true(first.ended);
        assert_ptr_equal(seen_next, waiting == 2 ? tasks[1] : NULL); /* what the last giver saw */
        assert_int_equal(was_gift, waiting == 2);
        assert_true(waiting < 2 || (found[0] == 1 && found[3] == 4));
    }
    holder last = {.addr = 64};
    assert_non_null(far_task_new(one, FAR_STATS_OTHER, take, &last));
    settle();
    assert_true(last.ended && !was_gift);
}


static void addresses_are_independent(void **state) {
    (void)state;
    static holder holders[200]; /* some of them share a bucket */
    uint64_t seed = 1;
    memset(holders, 0, sizeof(holders));
    for (unsigned i = 0; i < 200; i++) {
        holders[i].addr = 8 * (1 + far_splitmix(&seed) % (1 << 30));
        assert_non_null(far_task_new(i % 2 ? one : two, FAR_STATS_OTHER, hold, &holders[i]));
    }
    settle();
    for (unsigned i = 0; i < 200; i++) {
        assert_true(holders[i].holds);
        holders[i].let_go = true;
    }
    settle();
    for (unsigned i = 0; i < 200; i++)
        assert_true(holders[i].ended);
}


static void try_both(far_task *t, void *arg) {
    bool *got = arg;
    got[0] = far_latch_try(t, 64);
    got[1] = far_latch_try(t, 72);
    for (unsigned i = 0; i < 2; i++)
        if (got[i])
            far_unlatch(t, 64 + 8 * i);
}


static void trying_does_not_wait(void **state) {
    (void)state;
    holder h = {.addr = 64};
    bool got[2] = {true, false};
    assert_non_null(far_task_new(one, FAR_STATS_OTHER, hold, &h));
    settle();
    assert_non_null(far_task_new(two, FAR_STATS_OTHER, try_both, got));
    settle();
    assert_false(got[0]);
    assert_true(got[1]);
    h.let_go = true;
    settle();
    assert_non_null(far_task_new(two, FAR_STATS_OTHER, try_both, got));
    settle();
    assert_true(got[0] && got[1]);
}


static void hold_many(far_task *t, void *arg) {
    for (unsigned i = 0; i < FAR_LATCHES_HELD_MAX; i++)
        far_latch(t, 64 + 8 * i);
    far_yield(t);
    for (unsigned i = 0; i < FAR_LATCHES_HELD_MAX; i++)
        far_unlatch(t, 64 + 8 * i);
    ++*(unsigned *)arg;
}


static void a_task_holds_several_taken_in_order(void **state) {
    (void)state;
    unsigned ended = 0;
    for (unsigned i = 0; i < 20; i++)
        assert_non_null(far_task_new(i % 2 ? one : two, FAR_STATS_OTHER, hold_many, &ended));
    for (unsigned i = 0; i < 30; i++)
        settle();
    assert_int_equal(ended, 20);
}


/* Stray wake-ups must not let anybody in. */
static void stray(far_task *t, void *arg) {
    (void)t;
    for (unsigned i = 0; i < one->task_count; i++)
        if (one->tasks[i]->state == FAR_TASK_WAITING)
            far_task_wake(one->tasks[i]);
    *(bool *)arg = true;
}


static void an_early_wake_up_lets_nobody_in(void **state) {
    (void)state;
    holder first = {.addr = 64}, second = {.addr = 64};
    bool ran = false;
    far_task_new(two, FAR_STATS_OTHER, hold, &first);
    settle();
    far_task_new(one, FAR_STATS_OTHER, hold, &second);
    settle();
    far_task_new(two, FAR_STATS_OTHER, stray, &ran);
    settle();
    assert_true(ran);
    assert_false(second.holds);
    first.let_go = second.let_go = true;
    settle();
    assert_true(second.ended);
}


#ifdef NDEBUG /* otherwise an assertion says so */
static void forget(far_task *t, void *arg) {
    (void)arg;
    far_latch(t, 64);
}


static void what_a_task_forgets_is_given_back_when_it_ends(void **state) {
    (void)state;
    holder h = {.addr = 64, .let_go = true};
    far_task_new(two, FAR_STATS_OTHER, forget, NULL);
    settle();
    far_task_new(one, FAR_STATS_OTHER, hold, &h);
    settle();
    assert_true(h.ended);
}
#endif


/* Threads. */

static struct {
    unsigned count; /* not atomic: the latch protects it */
    atomic_uint inside;
} guarded[ADDRESSES];
static atomic_uint failures;


static void take_turns(far_task *t, void *arg) {
    unsigned which = *(unsigned *)arg % ADDRESSES;
    far_addr addr = 64 + 8 * which;
    for (unsigned i = 0; i < TURNS; i++) {
        if (i % 8 || !far_latch_try(t, addr))
            far_latch(t, addr);
        if (atomic_fetch_add_explicit(&guarded[which].inside, 1, memory_order_relaxed) != 0)
            atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
        guarded[which].count++;
        if (i % 4 == 0)
            far_yield(t);
        atomic_fetch_sub_explicit(&guarded[which].inside, 1, memory_order_relaxed);
        far_unlatch(t, addr);
    }
}


static void run_thread(void *arg) {
    (void)arg;
    far_session *s;
    unsigned numbers[TASKS];
    if (far_pool_session_new(&pool, &s) < 0) {
        atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
        return;
    }
    far_session_enter(s);
    for (unsigned i = 0; i < TASKS; i++) {
        numbers[i] = i;
        if (!far_task_new(s, FAR_STATS_OTHER, take_turns, &numbers[i]))
            atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
    }
    far_session_drain(s);
    far_session_leave(s);
    far_session_free(s); /* at once: whoever woke its tasks must be through */
}


static void threads_exclude_each_other_and_no_wake_up_is_lost(void **state) {
    (void)state;
    far_thread *threads[THREADS];
    far_host *host = &far_host_threads;
    memset(guarded, 0, sizeof(guarded));
    atomic_store_explicit(&failures, 0, memory_order_relaxed);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(host->ops->start(host, run_thread, NULL, &threads[i]), 0);
    for (unsigned i = 0; i < THREADS; i++)
        host->ops->join(host, threads[i]);
    assert_int_equal(atomic_load_explicit(&failures, memory_order_relaxed), 0);
    unsigned sum = 0;
    for (unsigned i = 0; i < ADDRESSES; i++)
        sum += guarded[i].count;
    assert_int_equal(sum, THREADS * TASKS * TURNS);
}


#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(those_who_wait_are_served_in_their_order),
        TEST(a_gift_goes_to_the_next_one),
        TEST(addresses_are_independent),
        TEST(trying_does_not_wait),
        TEST(a_task_holds_several_taken_in_order),
        TEST(an_early_wake_up_lets_nobody_in),
#ifdef NDEBUG
        TEST(what_a_task_forgets_is_given_back_when_it_ends),
#endif
        TEST(threads_exclude_each_other_and_no_wake_up_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
