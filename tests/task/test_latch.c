/* Latches (task/latch.h): mutual exclusion and order among the tasks of one handle, in several sessions and threads. */
#include "base/sanitizer.h"
#include "pool/handle.h"
#include "task/latch.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#define THREADS   6
#define TASKS     40
#define TURNS     (FAR_TSAN || FAR_ASAN ? 50 : 300)
#define ADDRESSES 3

static far_pool pool;
static far_session *one, *two;


TEST_FIXTURE(set_up) {
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


TEST_FIXTURE(tear_down) {
    far_session_leave(one);
    far_session_leave(two);
    far_session_free(one);
    far_session_free(two);
    far_latches_free(pool.team.latches);
    pool.fabric->ops->close(pool.fabric);
    return 0;
}


static void run_both_sessions(void) {
    for (int i = 0; i < 20; i++) {
        far_session_step(one);
        far_session_step(two);
    }
}


/* The state of one task that takes a latch. */
typedef struct holder {
    far_addr addr;
    bool holds, let_go, ended;
    unsigned turn; /* its place in the order in which the latches were granted; the first one is 1 */
} holder;

static unsigned turns;


/* A task that holds the latch until the test sets let_go. */
static void hold_until_released(far_task *t, void *arg) {
    holder *h = arg;
    far_latch(t, h->addr);
    h->holds = true;
    h->turn = ++turns;
    while (!h->let_go)
        far_yield(t);
    far_unlatch(t, h->addr);
    h->ended = true;
}


/* Nine tasks of two sessions want one latch. They get it one after the other, in the order in which they asked for it.
 */
TEST_WITH(waiting_tasks_are_served_in_order, set_up, tear_down) {
    holder holders[9] = {0};
    turns = 0;
    for (unsigned i = 0; i < 9; i++) {
        holders[i].addr = 64;
        assert_non_null(far_task_new(i % 2 ? one : two, FAR_STATS_OTHER, hold_until_released, &holders[i]));
        run_both_sessions();
    }
    for (unsigned i = 0; i < 9; i++) {
        for (unsigned j = 0; j < 9; j++)
            assert_int_equal(holders[j].holds, j <= i);
        holders[i].let_go = true;
        run_both_sessions();
        assert_true(holders[i].ended);
        assert_int_equal(holders[i].turn, i + 1);
    }
}


static far_task *seen_next;
static uint64_t received[FAR_HANDOVER_WORDS];
static bool has_received;


/* Holds the latch, and passes five words of handover state to the next holder if there is one. */
static void pass_handover(far_task *t, void *arg) {
    holder *h = arg;
    static const uint64_t gift[FAR_HANDOVER_WORDS] = {1, 2, 3, 4, 5};
    far_latch(t, h->addr);
    h->holds = true;
    while (!h->let_go)
        far_yield(t);
    seen_next = far_latch_next(t, h->addr);
    if (seen_next)
        far_unlatch_handover(t, h->addr, gift);
    else
        far_unlatch(t, h->addr);
    h->ended = true;
}


/* Takes the latch and the handover state, and releases the latch without handover state. */
static void take_handover(far_task *t, void *arg) {
    holder *h = arg;
    far_latch(t, h->addr);
    has_received = far_latch_take_handover(t, h->addr, received);
    far_unlatch(t, h->addr);
    h->ended = true;
}


/* The holder knows the next task before it releases the latch. Only this task receives the handover state; the task
 * after it receives none. */
TEST_WITH(handover_state_goes_to_the_next_holder, set_up, tear_down) {
    for (unsigned waiting = 0; waiting < 3; waiting++) {
        holder first = {.addr = 64}, others[2] = {{.addr = 64}, {.addr = 64}};
        far_task *tasks[2] = {NULL, NULL};
        assert_non_null(far_task_new(one, FAR_STATS_OTHER, pass_handover, &first));
        run_both_sessions();
        for (unsigned i = 0; i < waiting; i++) {
            tasks[i] = far_task_new(i % 2 ? one : two, FAR_STATS_OTHER, i ? take_handover : pass_handover, &others[i]);
            others[i].let_go = true;
            run_both_sessions();
        }
        has_received = false;
        memset(received, 0, sizeof(received));
        first.let_go = true;
        run_both_sessions();
        assert_true(first.ended);
        assert_ptr_equal(seen_next, waiting == 2
                                        ? tasks[1]
                                        : NULL); /* the task that the last pass_handover found next in the queue */
        assert_int_equal(has_received, waiting == 2);
        assert_true(waiting < 2 || (received[0] == 1 && received[3] == 4));
    }
    holder last = {.addr = 64};
    assert_non_null(far_task_new(one, FAR_STATS_OTHER, take_handover, &last));
    run_both_sessions();
    assert_true(last.ended && !has_received);
}


/* 200 latches can be held at the same time, although some latches share a bucket. */
TEST_WITH(addresses_are_independent, set_up, tear_down) {
    static holder holders[200]; /* more latches than fit into separate buckets */
    uint64_t seed = 1;
    memset(holders, 0, sizeof(holders));
    for (unsigned i = 0; i < 200; i++) {
        holders[i].addr = 8 * (1 + far_splitmix(&seed) % (1 << 30));
        assert_non_null(far_task_new(i % 2 ? one : two, FAR_STATS_OTHER, hold_until_released, &holders[i]));
    }
    run_both_sessions();
    for (unsigned i = 0; i < 200; i++) {
        assert_true(holders[i].holds);
        holders[i].let_go = true;
    }
    run_both_sessions();
    for (unsigned i = 0; i < 200; i++)
        assert_true(holders[i].ended);
}


static void try_two_latches(far_task *t, void *arg) {
    bool *got = arg;
    got[0] = far_latch_try(t, 64);
    got[1] = far_latch_try(t, 72);
    for (unsigned i = 0; i < 2; i++)
        if (got[i])
            far_unlatch(t, 64 + 8 * i);
}


/* far_latch_try returns at once. It fails for a held latch and succeeds for a free one. */
TEST_WITH(trying_does_not_wait, set_up, tear_down) {
    holder h = {.addr = 64};
    bool got[2] = {true, false};
    assert_non_null(far_task_new(one, FAR_STATS_OTHER, hold_until_released, &h));
    run_both_sessions();
    assert_non_null(far_task_new(two, FAR_STATS_OTHER, try_two_latches, got));
    run_both_sessions();
    assert_false(got[0]);
    assert_true(got[1]);
    h.let_go = true;
    run_both_sessions();
    assert_non_null(far_task_new(two, FAR_STATS_OTHER, try_two_latches, got));
    run_both_sessions();
    assert_true(got[0] && got[1]);
}


/* Takes as many latches as a task may hold, in ascending order of their addresses. */
static void hold_all_latches(far_task *t, void *arg) {
    for (unsigned i = 0; i < FAR_LATCHES_HELD_MAX; i++)
        far_latch(t, 64 + 8 * i);
    far_yield(t);
    for (unsigned i = 0; i < FAR_LATCHES_HELD_MAX; i++)
        far_unlatch(t, 64 + 8 * i);
    ++*(unsigned *)arg;
}


/* Twenty tasks take the same ten latches in ascending order. No deadlock occurs. */
TEST_WITH(a_task_holds_several_latches_taken_in_order, set_up, tear_down) {
    unsigned ended = 0;
    for (unsigned i = 0; i < 20; i++)
        assert_non_null(far_task_new(i % 2 ? one : two, FAR_STATS_OTHER, hold_all_latches, &ended));
    for (unsigned i = 0; i < 30; i++)
        run_both_sessions();
    assert_int_equal(ended, 20);
}


/* Wakes all waiting tasks of the first session, without a reason. */
static void wake_all_waiting_tasks(far_task *t, void *arg) {
    (void)t;
    for (unsigned i = 0; i < one->task_count; i++)
        if (one->tasks[i]->state == FAR_TASK_WAITING)
            far_task_wake(one->tasks[i]);
    *(bool *)arg = true;
}


/* A wake-up before the latch was released must not grant the latch. The task gets it later. */
TEST_WITH(an_early_wake_up_grants_no_latch, set_up, tear_down) {
    holder first = {.addr = 64}, second = {.addr = 64};
    bool ran = false;
    far_task_new(two, FAR_STATS_OTHER, hold_until_released, &first);
    run_both_sessions();
    far_task_new(one, FAR_STATS_OTHER, hold_until_released, &second);
    run_both_sessions();
    far_task_new(two, FAR_STATS_OTHER, wake_all_waiting_tasks, &ran);
    run_both_sessions();
    assert_true(ran);
    assert_false(second.holds);
    first.let_go = second.let_go = true;
    run_both_sessions();
    assert_true(second.ended);
}


#ifdef NDEBUG /* with asserts, far_unlatch_all aborts */
static void end_with_held_latch(far_task *t, void *arg) {
    (void)arg;
    far_latch(t, 64);
}


/* A task ends while it holds a latch. far_unlatch_all releases it, so that the next task gets it. */
TEST_WITH(latches_still_held_are_released_at_the_end, set_up, tear_down) {
    holder h = {.addr = 64, .let_go = true};
    far_task_new(two, FAR_STATS_OTHER, end_with_held_latch, NULL);
    run_both_sessions();
    far_task_new(one, FAR_STATS_OTHER, hold_until_released, &h);
    run_both_sessions();
    assert_true(h.ended);
}
#endif


/* Several threads. */

static struct {
    unsigned count; /* not atomic, because the latch protects it */
    atomic_uint inside;
} guarded[ADDRESSES];
static atomic_uint failures;


/* Takes one of three latches many times, and changes a counter that only the latch protects. */
static void use_latches(far_task *t, void *arg) {
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
        if (!far_task_new(s, FAR_STATS_OTHER, use_latches, &numbers[i]))
            atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
    }
    far_session_drain(s);
    far_session_leave(s);
    far_session_free(s); /* freed at once; fails if a thread that woke one of its tasks still uses the session */
}


/* Six threads with 40 tasks each take three latches. No two tasks are inside at the same time, and all tasks finish. */
TEST_WITH(threads_exclude_each_other_and_no_wake_up_is_lost, set_up, tear_down) {
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
