/* Tests of the waiting time of an operation (pool/epoch/stalled.h). Client A holds a pin all the time, so the epoch
 * does not advance. Operations of client B wait in several ways, one after the other or in a line. Each operation ends
 * within 1.1 times the bound, in virtual time. */
#include "base/error.h"
#include "pool/epoch/stalled.h"
#include "pool/format/owner.h"
#include "pool/gc/request.h"
#include "stage.h"
#include "task/latch.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

#define SESSIONS 96u

static stage s;
static uint64_t bound;

/* An operation of client B: its session, its result and its duration. */
typedef struct waiter {
    far_session *session;
    int (*run)(far_task *t);
    int result;
    uint64_t took;
    bool ended;
} waiter;

static waiter waiters[SESSIONS];


static int hold_pin(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_sleep(t, 8 * bound);
    return err;
}


static void hold_main(void *actor) {
    stage_actor *a = actor;
    a->result = far_session_call(a->session, FAR_STATS_OTHER, false, hold_pin, NULL);
    a->ended = true;
}


static int run_waiter(far_task *t, void *arg) {
    return ((waiter *)arg)->run(t);
}


static void waiter_main(void *arg) {
    waiter *w = arg;
    uint64_t began = far_sim_now(s.world);
    w->result = far_session_call(w->session, FAR_STATS_OTHER, false, run_waiter, w);
    w->took = far_sim_now(s.world) - began;
    w->ended = true;
}


/* Lets `count` sessions of B run the operation, and asserts that each is refused within 1.1 times the bound. */
static void check_operations_are_refused_in_time(unsigned count, int (*run)(far_task *t)) {
    stage_open(&s, "toy", NULL, "limit=1000s");
    bound = far_stall_bound(s.b.pool->fabric);
    stage_start_main(&s.a, "holds", hold_main);
    far_sim_run_for(s.world, bound / 100);
    for (unsigned i = 0; i < count; i++) {
        waiters[i] = (waiter){.session = s.b.session, .run = run};
        if (i > 0)
            assert_int_equal(far_session_open(s.b.pool, &waiters[i].session), 0);
    }
    for (unsigned i = 0; i < count; i++)
        world_start(s.b.pool, "waits", waiter_main, &waiters[i]);
    far_sim_run_for(s.world, 6 * bound);
    for (unsigned i = 0; i < count; i++) {
        if (!waiters[i].ended || waiters[i].took > bound + bound / 10)
            fail_msg("operation %u of %u took %.3f bounds", i, count,
                     waiters[i].ended ? (double)waiters[i].took / (double)bound : 6.0);
        assert_int_equal(waiters[i].result, FAR_ERR_BUSY);
        /* at least the usual time: the operation is not refused because other clients were slow for a moment */
        assert_true(waiters[i].took >= bound - bound / 5);
    }
    while (!s.a.ended)
        far_sim_run_for(s.world, bound / 10);
    for (unsigned i = 1; i < count; i++)
        far_session_close(waiters[i].session);
    stage_close(&s);
}


static int wait_for_epochs_thrice(far_task *t) {
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 3; i++) {
        err = far_pin_after_epochs(t, 1);
        if (t->pin.epoch == 0)
            return far_fail(FAR_ERR_CORRUPT, "the operation has lost its pin");
    }
    return err;
}


/* An operation waits for epochs three times. It keeps its pin when it is refused, because it may have to release what
 * it holds. Fails if each wait has a time of its own, as if far_stall_search_time began at the current time, and if
 * drive_epochs_pinned (epoch.c) leaves waits_since unchanged. */
TEST(epoch_waits_of_one_operation_do_not_add_up) {
    check_operations_are_refused_in_time(1, wait_for_epochs_thrice);
}


static int wait_for_epochs_in_line(far_task *t) {
    far_latch(t, 640);
    int err = far_pin_take(t);
    if (err == 0)
        err = far_pin_after_epochs(t, 1);
    far_unlatch(t, 640);
    return err;
}


/* Many sessions wait in the line of a latch, and each waits for an epoch while it holds the latch. Fails without
 * far_note_wait in take_latch (latch.c), or without find_known_client (stalled.c), because each session would observe
 * the stalled client again. */
TEST(waits_in_the_line_of_a_latch_count) {
    check_operations_are_refused_in_time(SESSIONS, wait_for_epochs_in_line);
}


/* Retries as index code does, and finds a new value at each READ, so that the progress detector observes changes. */
static int retry_with_news(far_task *t) {
    int err = far_pin_take(t);
    for (unsigned i = 0; err == 0; i++) {
        far_count_retry(t);
        far_back_off(t, i);
        if (i % 8 != 7)
            continue;
        far_pin_drop(t);
        if (t->patience)
            far_progress_reset(t);
        err = far_pin_take(t);
    }
    return err;
}


/* An operation retries while other clients change the words that it reads, so that its progress detector begins again
 * and again. Fails if far_pin_take_slow calls far_stall_check only for tasks with a progress detector. */
TEST(news_does_not_extend_the_wait) {
    check_operations_are_refused_in_time(1, retry_with_news);
}


static int retry_in_line(far_task *t) {
    far_latch(t, 640);
    int err = retry_with_news(t);
    far_unlatch(t, 640);
    return err;
}


/* Some sessions wait in the line of a latch, and each retries while it holds the latch. Fails without far_note_wait in
 * take_latch (latch.c). */
TEST(retries_after_the_line_of_a_latch_end_in_time) {
    check_operations_are_refused_in_time(8, retry_in_line);
}


static int keep_word(far_task *t, void *arg) {
    (void)t;
    (void)arg;
    return 1;
}


static int retry_then_check_lock(far_task *t) {
    uint64_t began = far_now(t);
    int err = far_pin_take(t);
    for (unsigned i = 0; err == 0 && far_now(t) < began + bound / 2; i++) {
        far_count_retry(t);
        far_back_off(t, i);
    }
    far_pin_drop(t);
    return err < 0 ? err : far_confirm_abandoned(t, 0, 0, keep_word, NULL);
}


/* An operation retries for half of the bound, and then examines whether a lock is abandoned, which takes epochs. Fails
 * if wait_two_epochs (owner.c) waits for the bound from then on. */
TEST(the_check_of_a_lock_takes_the_rest_of_the_bound) {
    check_operations_are_refused_in_time(1, retry_then_check_lock);
}


static int retry_then_wait_for_request(far_task *t) {
    far_request made;
    uint64_t began = far_now(t);
    int err = far_request_change(t, far_request_next_number, NULL, &made);
    for (unsigned i = 0; err == 0 && far_now(t) < began + bound / 2; i++) {
        far_count_retry(t);
        far_back_off(t, i);
    }
    if (err >= 0)
        err = far_request_wait(t, made.number, bound);
    return err == 1 ? FAR_ERR_BUSY : err;
}


/* An operation retries for half of the bound, and then waits until all handles have acknowledged a request. Fails
 * without the deadline in far_request_wait (request.c). */
TEST(the_wait_for_acknowledgements_takes_the_rest_of_the_bound) {
    check_operations_are_refused_in_time(1, retry_then_wait_for_request);
}


static int retry_then_work(far_task *t, void *arg) {
    uint64_t began = far_now(t), first, last;
    (void)arg;
    int err = 0;
    for (unsigned i = 0; far_now(t) < began + bound / 2; i++) {
        far_count_retry(t);
        far_back_off(t, i);
    }
    far_progress_reset(t);
    if ((err = far_pin_take(t)) == 0 && (err = far_epoch_read(t, &first)) == 0)
        err = far_epoch_read(t, &last);
    for (unsigned i = 0; err == 0 && i < 500; i++) {
        far_pin_drop(t);
        if ((err = far_pin_take(t)) == 0)
            err = far_epoch_read(t, &last);
    }
    return err < 0 ? err : (int)(last - first);
}


/* An operation has retried for half of the bound. Then it works with one pin after the other, and does not wait any
 * more, so it requests no epochs. Fails if far_stall_is_due does not read has_waited. */
TEST(pins_after_a_wait_request_no_epochs) {
    stage_open(&s, "toy", NULL, "limit=1000s");
    bound = far_stall_bound(s.b.pool->fabric);
    int epochs = far_session_call(s.b.session, FAR_STATS_OTHER, false, retry_then_work, NULL);
    print_message("%d epochs\n", epochs);
    assert_true(epochs >= 0 && epochs <= 2);
    stage_close(&s);
}
