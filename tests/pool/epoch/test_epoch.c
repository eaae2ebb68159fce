/* Tests of epochs on the local fabric (pool/epoch/epoch.c): what holds up the epoch and what does not, the cost of a
 * pin, failed WRITEs of the published pin, and two races of a pin with a tick. */
#include "base/error.h"
#include "epoch_rig.h"
#include "test.h"
#include "pool/gc/request.h"


/* The first pin of a quiescent handle costs one background round trip and no foreground round trip. Further pins cost
 * none while the handle is active. */
TEST_WITH(a_pin_costs_a_background_round_trip_only_in_a_quiescent_handle, new_world, NULL) {
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    control_time(pool);
    held_pin h;
    far_stats before = s->stats[FAR_OP_GET];
    hold_pin(&h, s);
    release_pin(&h);
    assert_int_equal(s->stats[FAR_OP_GET].background_round_trips - before.background_round_trips, 1);
    assert_int_equal(s->stats[FAR_OP_GET].round_trips - before.round_trips, 0);
    before = s->stats[FAR_OP_GET];
    for (int i = 0; i < 5; i++) {
        poll_times(pool, 3);
        hold_pin(&h, s);
        release_pin(&h);
    }
    assert_int_equal(s->stats[FAR_OP_GET].background_round_trips - before.background_round_trips, 0);
    let_handle_become_quiescent(pool);
    assert_int_equal(read_published_pin(s), 0);
    hold_pin(&h, s);
    release_pin(&h);
    assert_int_equal(s->stats[FAR_OP_GET].background_round_trips - before.background_round_trips, 1);
    far_session_close(s);
    far_pool_close(pool);
}


/* Polling a quiescent handle posts no verbs for epochs. */
TEST_WITH(a_quiescent_handle_posts_no_verbs, new_world, NULL) {
    far_pool *pool = open_pool(1);
    far_stats before = pool->team.own->stats[FAR_STATS_OTHER];
    poll_times(pool, 50);
    assert_memory_equal(&before, &pool->team.own->stats[FAR_STATS_OTHER], sizeof(before));
    far_pool_close(pool);
}


/* Taking and dropping pins does not advance the epoch. One request advances it by exactly one. */
TEST_WITH(the_epoch_advances_on_demand_only, new_world, NULL) {
    far_pool *pool = open_pool(0);
    far_session *s = open_session(pool);
    uint64_t epoch = read_global_epoch(s);
    held_pin h;
    for (int i = 0; i < 10; i++) {
        hold_pin(&h, s);
        sleep_ms(3);
        release_pin(&h);
    }
    assert_int_equal(read_global_epoch(s), epoch);
    far_epoch_request(pool);
    while (read_global_epoch(s) == epoch)
        sleep_ms(1);
    assert_int_equal(read_global_epoch(s), epoch + 1);
    sleep_ms(20);
    assert_int_equal(read_global_epoch(s), epoch + 1);
    far_session_close(s);
    far_pool_close(pool);
}


/* While a handle holds a pin at e, the epoch advances to e+1 and no further, even if the same handle takes a second pin
 * at e+1 and other handles request advances. After both pins are dropped, it advances again. Fails without the check of
 * published pins in check_entry_for_advance. */
TEST_WITH(a_held_pin_lets_the_epoch_advance_once_and_not_twice, new_world, NULL) {
    far_pool *pool = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(pool), *o = open_session(other);
    held_pin old, new;
    hold_pin(&old, s);
    assert_int_equal(old.epoch, read_global_epoch(o));
    request_epochs(other, 5);
    request_epochs(pool, 5);
    assert_int_equal(read_global_epoch(o), old.epoch + 1);
    hold_pin(&new, s);
    assert_int_equal(new.epoch, old.epoch + 1); /* the handle now holds pins of two epochs */
    request_epochs(pool, 20);
    assert_int_equal(read_global_epoch(o), old.epoch + 1);
    assert_int_equal(read_published_pin(s), old.epoch);
    release_pin(&old);
    request_epochs(pool, 5);
    assert_int_equal(read_global_epoch(o), new.epoch + 1);
    release_pin(&new);
    request_epochs(pool, 3);
    assert_int_equal(read_global_epoch(o), new.epoch + 4);
    far_session_close(s);
    far_session_close(o);
    far_pool_close(pool);
    far_pool_close(other);
}


/* A handle that dropped its pin but does not tick still publishes it, so the epoch advances only once. After one tick
 * it advances again. */
TEST_WITH(a_stalled_handle_without_a_pin_holds_up_the_epoch_until_it_ticks, new_world, NULL) {
    far_pool *stalled = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(stalled), *o = open_session(other);
    held_pin h;
    hold_pin(&h, s);
    release_pin(&h); /* No tick follows the end of the pin, so the handle still publishes the pin. */
    uint64_t epoch = read_global_epoch(o);
    request_epochs(other, 10);
    assert_int_equal(read_global_epoch(o), epoch + 1);
    poll_times(stalled, 1);
    request_epochs(other, 10);
    assert_int_equal(read_global_epoch(o), epoch + 2);
    far_session_close(s);
    far_session_close(o);
    far_pool_close(stalled);
    far_pool_close(other);
}


/* The epoch advances while a handle is quiescent. When the handle becomes active, its pin is at the current epoch,
 * although it publishes the older one that it remembered until its next tick. */
TEST_WITH(a_quiescent_handle_does_not_hold_up_the_epoch_and_becomes_active_at_the_current_one, new_world, NULL) {
    far_pool *idle = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(idle), *o = open_session(other);
    uint64_t epoch = read_global_epoch(o);
    request_epochs(other, 10);
    assert_int_equal(read_global_epoch(o), epoch + 10);
    held_pin h;
    hold_pin(&h, s);
    assert_int_equal(h.epoch, epoch + 10);
    /* the handle published the epoch it remembered; the next tick raises it */
    assert_int_equal(read_published_pin(s), epoch);
    request_epochs(other, 5);
    assert_int_equal(read_global_epoch(o), epoch + 10);
    poll_times(idle, 1);
    assert_int_equal(read_published_pin(s), epoch + 10);
    request_epochs(other, 5);
    assert_int_equal(read_global_epoch(o), epoch + 11);
    release_pin(&h);
    far_session_close(s);
    far_session_close(o);
    far_pool_close(idle);
    far_pool_close(other);
}


static void lose_session_as_fenced(far_session *s) {
    far_session_enter(s);
    far_session_lose(s, FAR_ERR_FENCED);
    far_session_leave(s);
}


static int run_tick_once(far_task *t, void *arg) {
    (void)arg;
    return far_epoch_tick(t);
}


/* The WRITE of the published pin failed, and the session that sent it cannot be confirmed as fenced: it is the session
 * that runs the tick, or the system session. The tick fails and does not write the pin again (far_pins_release_fenced).
 */
TEST_WITH(the_pin_is_not_rewritten_if_the_fence_of_its_writer_cannot_be_confirmed, new_world, NULL) {
    for (unsigned itself = 0; itself < 2; itself++) {
        far_pool *pool = open_pool(1);
        far_session *s = open_session(pool);
        held_pin h;
        hold_pin(&h, s);
        lose_session_as_fenced(itself ? s : pool->team.own);
        pool->epochs.write_unconfirmed = true;
        assert_int_equal(call(s, run_tick_once, NULL), FAR_ERR_FENCED);
        assert_true(pool->epochs.write_unconfirmed);
        release_pin(&h);
        far_session_close(s);
        far_pool_close(pool);
    }
}


/* Lost writers: the WRITE of the published pin failed, and the session that sent it is lost but not fenced yet, so the
 * WRITE may still take effect. Ticks of the handle fail with FAR_ERR_BUSY until the lost session is fenced. To delay
 * the fence, the test gives the lost session the identity of a live session of another handle; the lost session counts
 * as fenced when that live session is closed. Fails without resolve_failed_write. */
TEST_WITH(the_pin_is_not_rewritten_before_lost_writers_are_fenced, new_world, NULL) {
    far_pool *pool = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(pool), *lost = open_session(pool), *writer = open_session(other);
    held_pin h;
    hold_pin(&h, s);
    lose_session_as_fenced(lost);
    unsigned id = lost->id, generation = lost->generation;
    lost->id = writer->id;
    lost->generation = writer->generation;
    pool->epochs.write_unconfirmed = true;
    assert_int_equal(call(s, run_tick_once, NULL), FAR_ERR_BUSY);
    assert_true(pool->epochs.write_unconfirmed);
    far_session_close(writer);
    assert_true(call(s, run_tick_once, NULL) >= 0);
    assert_false(pool->epochs.write_unconfirmed);
    lost->id = id;
    lost->generation = generation;
    release_pin(&h);
    far_session_close(lost);
    far_session_close(s);
    far_pool_close(pool);
    far_pool_close(other);
}


/* The system session of a handle is fenced, but the epoch still respects its published pin, because a user's session
 * lives and may hold pins. After that session is lost too, the epoch advances, and the failure was counted as a loss.
 * The handle accepts no new sessions. Fails without far_handle_confirm_failed in check_entry_for_advance. */
TEST_WITH(a_failed_handle_holds_up_the_epoch_until_all_its_sessions_are_fenced, new_world, NULL) {
    far_pool *dying = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(dying), *o = open_session(other);
    held_pin h;
    hold_pin(&h, s);
    poll_times(dying, 1); /* The poll ends all tasks of the user's session, so from now on that session runs none. */
    uint64_t epoch = read_global_epoch(o);
    lose_session_as_fenced(dying->team.own);
    request_epochs(other, 20);
    /* The epoch advances only once, because the user's session lives and may hold pins. */
    assert_int_equal(read_global_epoch(o), epoch + 1);
    /* The poll finds the handle failed, so the handle's other sessions are lost too. */
    assert_int_equal(far_pool_poll(dying), FAR_ERR_FENCED);
    assert_int_equal(s->lost, FAR_ERR_FENCED);
    request_epochs(other, 40);
    assert_true(read_global_epoch(o) > epoch + 10);
    assert_true(far_collection_was_requested(other) || other->collection_runs);
    far_session *more;
    assert_int_equal(far_session_open(dying, &more), FAR_ERR_FENCED);
    release_pin(&h);
    far_session_close(s);
    far_pool_close(dying);
    far_session_close(o);
    far_pool_close(other);
}


/* This clock belongs to a memory checker and advances the handle's epoch. far_pin_at reads the clock of the checker
 * after it has counted a pin and before it checks that the epoch is unchanged. */
static uint64_t clock_that_advances_the_epoch(far_fabric *fabric);
static const far_memory_checker_ops advancing_watch = {.clock = clock_that_advances_the_epoch};
static far_pool *advancing_pool;


static uint64_t clock_that_advances_the_epoch(far_fabric *fabric) {
    fabric->watch = NULL;
    atomic_fetch_add(&advancing_pool->epochs.current, 1);
    return 0;
}


static int pin_and_read_epoch(far_task *t, void *arg) {
    int err = far_pin_take(t);
    *(uint64_t *)arg = far_epoch(t);
    return err;
}


/* The handle enters a new epoch after a task has read the old one and counted its pin. The task undoes the count and
 * takes a pin at the new epoch. Fails without the second read of `current` in far_pin_at. */
TEST_WITH(a_pin_whose_epoch_passed_while_it_was_taken_is_taken_again, new_world, NULL) {
    far_pool *pool = advancing_pool = open_pool(1);
    far_session *s = open_session(pool);
    uint64_t first, second;
    assert_int_equal(call(s, pin_and_read_epoch, &first), 0);
    pool->fabric->watch = &advancing_watch;
    assert_int_equal(call(s, pin_and_read_epoch, &second), 0);
    assert_int_equal(second, first + 1);
    assert_int_equal(atomic_load(&s->pins.held[0]) + atomic_load(&s->pins.held[1]), 0);
    atomic_fetch_sub(&pool->epochs.current, 1);
    far_session_close(s);
    far_pool_close(pool);
}


/* A host whose clock, when it is read for the first time, counts a pin of a session. publish_oldest_pin reads the clock
 * after it has found no pins and before it makes the handle quiescent. So the pin is taken between these two steps. */
static uint64_t now_that_counts_a_pin(far_host *host);
static far_host_ops counting_ops;
static far_host counting_host = {&counting_ops};
static far_session *counting_session;
static uint64_t counting_epoch;


static uint64_t now_that_counts_a_pin(far_host *host) {
    (void)host;
    if (counting_session)
        atomic_fetch_add(&counting_session->pins.held[counting_epoch & 1], 1);
    counting_session = NULL;
    return far_host_now(&far_host_threads) + 1000000000;
}


static int run_tick(far_task *t, void *arg) {
    (void)arg;
    return far_epoch_tick(t);
}


/* A tick has found no pins. Before it publishes quiescence, a task counts a pin. The tick counts again and leaves the
 * handle active. Fails without the second count_pins in become_quiescent. */
TEST_WITH(a_handle_does_not_become_quiescent_if_a_pin_is_taken_meanwhile, new_world, NULL) {
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    assert_int_equal(call(s, pin_and_read_epoch, &counting_epoch), 0);
    assert_int_equal(call(pool->team.own, run_tick, NULL), 0); /* the tick records that a pin was taken */
    counting_ops = *far_host_threads.ops;
    counting_ops.now = now_that_counts_a_pin;
    counting_session = s;
    pool->fabric->host = &counting_host;
    assert_int_equal(call(pool->team.own, run_tick, NULL), 0);
    assert_null(counting_session);
    assert_int_equal(atomic_load(&pool->epochs.current), counting_epoch);
    assert_int_equal(read_published_pin(s), counting_epoch);
    atomic_fetch_sub(&s->pins.held[counting_epoch & 1], 1);
    assert_int_equal(call(pool->team.own, run_tick, NULL), 0);
    assert_int_equal(atomic_load(&pool->epochs.current), 0);
    assert_int_equal(read_published_pin(s), 0);
    pool->fabric->host = &far_host_threads;
    far_session_close(s);
    far_pool_close(pool);
}


static int write_global_epoch(far_task *t, void *arg) {
    return far_write_word(t, FAR_SUPER_EPOCH, *(uint64_t *)arg - FAR_EPOCH_FIRST);
}


/* An epoch two above the published pin is possible only if the handle was declared failed: a tick returns
 * FAR_ERR_FENCED. An epoch that decreased is damage: FAR_ERR_CORRUPT. */
TEST_WITH(an_epoch_that_advanced_past_our_pin_proves_that_we_were_declared_failed, new_world, NULL) {
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    held_pin h;
    hold_pin(&h, s);
    uint64_t far_ahead = h.epoch + 2;
    assert_int_equal(call(s, write_global_epoch, &far_ahead), 0);
    assert_int_equal(call(pool->team.own, run_tick, NULL), FAR_ERR_FENCED);
    uint64_t back = h.epoch - 1;
    assert_int_equal(call(s, write_global_epoch, &back), 0);
    assert_int_equal(call(pool->team.own, run_tick, NULL), FAR_ERR_CORRUPT);
    release_pin(&h);
    far_session_close(s);
    far_pool_close(pool);
}
