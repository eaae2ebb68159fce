/* Epochs on the local fabric: what holds the epoch back and what does not, what a pin costs. */
#include "base/error.h"
#include "epoch_rig.h"
#include "pool/request.h"


static void a_pin_costs_a_background_round_trip_only_after_idleness(void **state) {
    (void)state;
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    set_time_by_hand(pool);
    hold h;
    far_stats before = s->stats[FAR_OP_GET];
    take(&h, s);
    drop(&h);
    assert_int_equal(s->stats[FAR_OP_GET].background_round_trips - before.background_round_trips, 1);
    assert_int_equal(s->stats[FAR_OP_GET].round_trips - before.round_trips, 0);
    before = s->stats[FAR_OP_GET];
    for (int i = 0; i < 5; i++) {
        poll_times(pool, 3);
        take(&h, s);
        drop(&h);
    }
    assert_int_equal(s->stats[FAR_OP_GET].background_round_trips - before.background_round_trips, 0);
    let_it_fall_asleep(pool);
    assert_int_equal(published(s), 0);
    take(&h, s);
    drop(&h);
    assert_int_equal(s->stats[FAR_OP_GET].background_round_trips - before.background_round_trips, 1);
    far_session_close(s);
    far_pool_close(pool);
}


static void a_sleeping_handle_posts_no_verbs(void **state) {
    (void)state;
    far_pool *pool = open_pool(1);
    far_stats before = pool->team.own->stats[FAR_STATS_OTHER];
    poll_times(pool, 50);
    assert_memory_equal(&before, &pool->team.own->stats[FAR_STATS_OTHER], sizeof(before));
    far_pool_close(pool);
}


static void the_epoch_moves_on_demand_only(void **state) {
    (void)state;
    far_pool *pool = open_pool(0);
    far_session *s = open_session(pool);
    uint64_t epoch = global(s);
    hold h;
    for (int i = 0; i < 10; i++) {
        take(&h, s);
        sleep_ms(3);
        drop(&h);
    }
    assert_int_equal(global(s), epoch);
    far_epoch_request(pool);
    while (global(s) == epoch)
        sleep_ms(1);
    assert_int_equal(global(s), epoch + 1);
    sleep_ms(20);
    assert_int_equal(global(s), epoch + 1);
    far_session_close(s);
    far_pool_close(pool);
}


static void a_held_pin_lets_the_epoch_move_once_and_not_twice(void **state) {
    (void)state;
    far_pool *pool = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(pool), *o = open_session(other);
    hold old, new;
    take(&old, s);
    assert_int_equal(old.epoch, global(o));
    push(other, 5);
    push(pool, 5);
    assert_int_equal(global(o), old.epoch + 1);
    take(&new, s);
    assert_int_equal(new.epoch, old.epoch + 1); /* two epochs are pinned */
    push(pool, 20);
    assert_int_equal(global(o), old.epoch + 1);
    assert_int_equal(published(s), old.epoch);
    drop(&old);
    push(pool, 5);
    assert_int_equal(global(o), new.epoch + 1);
    drop(&new);
    push(pool, 3);
    assert_int_equal(global(o), new.epoch + 4);
    far_session_close(s);
    far_session_close(o);
    far_pool_close(pool);
    far_pool_close(other);
}


static void a_stalled_handle_without_a_pin_holds_up_one_move_until_it_ticks(void **state) {
    (void)state;
    far_pool *stalled = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(stalled), *o = open_session(other);
    hold h;
    take(&h, s);
    drop(&h); /* and nobody polls: its word stays */
    uint64_t epoch = global(o);
    push(other, 10);
    assert_int_equal(global(o), epoch + 1);
    poll_times(stalled, 1);
    push(other, 10);
    assert_int_equal(global(o), epoch + 2);
    far_session_close(s);
    far_session_close(o);
    far_pool_close(stalled);
    far_pool_close(other);
}


static void an_idle_handle_holds_nobody_back_and_wakes_at_the_epoch_of_that_time(void **state) {
    (void)state;
    far_pool *idle = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(idle), *o = open_session(other);
    uint64_t epoch = global(o);
    push(other, 10);
    assert_int_equal(global(o), epoch + 10);
    hold h;
    take(&h, s);
    assert_int_equal(h.epoch, epoch + 10);
    assert_int_equal(published(s), epoch); /* careful, until the next tick */
    push(other, 5);
    assert_int_equal(global(o), epoch + 10);
    poll_times(idle, 1);
    assert_int_equal(published(s), epoch + 10);
    push(other, 5);
    assert_int_equal(global(o), epoch + 11);
    drop(&h);
    far_session_close(s);
    far_session_close(o);
    far_pool_close(idle);
    far_pool_close(other);
}


static void fence(far_session *s) {
    far_session_enter(s);
    far_session_lose(s, FAR_ERR_FENCED);
    far_session_leave(s);
}


static int tick_once(far_task *t, void *arg) {
    (void)arg;
    return far_epoch_tick(t);
}


/* The pin's last WRITE failed, and its session is not known to be fenced: it is the handle's own, of which nobody finds out, or the very
 * one that ticks. Nobody writes the pin anew. */
static void who_cannot_know_that_a_lost_writer_is_fenced_does_not_write(void **state) {
    (void)state;
    for (unsigned itself = 0; itself < 2; itself++) {
        far_pool *pool = open_pool(1);
        far_session *s = open_session(pool);
        hold h;
        take(&h, s);
        fence(itself ? s : pool->team.own);
        pool->epochs.unsure = true;
        assert_int_equal(call(s, tick_once, NULL), FAR_ERR_FENCED);
        assert_true(pool->epochs.unsure);
        drop(&h);
        far_session_close(s);
        far_pool_close(pool);
    }
}


/* A lost session need not be known to be dead at once. One that lives stands for it here. */
static void the_pin_is_not_written_before_lost_writers_are_fenced(void **state) {
    (void)state;
    far_pool *pool = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(pool), *lost = open_session(pool), *writer = open_session(other);
    hold h;
    take(&h, s);
    fence(lost);
    unsigned id = lost->id, generation = lost->generation;
    lost->id = writer->id;
    lost->generation = writer->generation;
    pool->epochs.unsure = true;
    assert_int_equal(call(s, tick_once, NULL), FAR_ERR_BUSY);
    assert_true(pool->epochs.unsure);
    far_session_close(writer);
    assert_true(call(s, tick_once, NULL) >= 0);
    assert_false(pool->epochs.unsure);
    lost->id = id;
    lost->generation = generation;
    drop(&h);
    far_session_close(lost);
    far_session_close(s);
    far_pool_close(pool);
    far_pool_close(other);
}


static void a_dead_handle_holds_back_until_all_its_sessions_are_dead(void **state) {
    (void)state;
    far_pool *dying = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(dying), *o = open_session(other);
    hold h;
    take(&h, s);
    poll_times(dying, 1); /* nothing is under way in the user's session from now on */
    uint64_t epoch = global(o);
    fence(dying->team.own);
    push(other, 20);
    assert_int_equal(global(o), epoch + 1);                 /* the user's session lives and may hold pins */
    assert_int_equal(far_pool_poll(dying), FAR_ERR_FENCED); /* this takes its sessions with it */
    assert_int_equal(s->lost, FAR_ERR_FENCED);
    push(other, 40);
    assert_true(global(o) > epoch + 10);
    assert_true(far_line_wants_sweep(other) || other->sweeping);
    far_session *more;
    assert_int_equal(far_session_open(dying, &more), FAR_ERR_FENCED);
    drop(&h);
    far_session_close(s);
    far_pool_close(dying);
    far_session_close(o);
    far_pool_close(other);
}


/* The epoch moves between the look at it and the count: the watch's clock is read just there. */
static uint64_t clock_that_moves_the_epoch(far_fabric *fabric);
static const far_watch_ops moving_watch = {.clock = clock_that_moves_the_epoch};
static far_pool *moving_pool;


static uint64_t clock_that_moves_the_epoch(far_fabric *fabric) {
    fabric->watch = NULL;
    atomic_fetch_add(&moving_pool->epochs.current, 1);
    return 0;
}


static int pin_and_tell(far_task *t, void *arg) {
    int err = far_pin_take(t);
    *(uint64_t *)arg = far_epoch(t);
    return err;
}


static void a_pin_whose_epoch_passed_while_it_was_taken_is_taken_anew(void **state) {
    (void)state;
    far_pool *pool = moving_pool = open_pool(1);
    far_session *s = open_session(pool);
    uint64_t first, second;
    assert_int_equal(call(s, pin_and_tell, &first), 0);
    pool->fabric->watch = &moving_watch;
    assert_int_equal(call(s, pin_and_tell, &second), 0);
    assert_int_equal(second, first + 1);
    assert_int_equal(atomic_load(&s->pins.held[0]) + atomic_load(&s->pins.held[1]), 0);
    atomic_fetch_sub(&pool->epochs.current, 1);
    far_session_close(s);
    far_pool_close(pool);
}


/* A pin is counted after the tick found none and before it says that the handle sleeps: the time is asked for just
 * there. */
static uint64_t time_at_which_a_pin_slips_in(far_host *host);
static far_host_ops slipping_ops;
static far_host slipping = {&slipping_ops};
static far_session *slipping_session;
static uint64_t slipping_epoch;


static uint64_t time_at_which_a_pin_slips_in(far_host *host) {
    (void)host;
    if (slipping_session)
        atomic_fetch_add(&slipping_session->pins.held[slipping_epoch & 1], 1);
    slipping_session = NULL;
    return far_host_now(&far_host_threads) + 1000000000;
}


static int tick(far_task *t, void *arg) {
    (void)arg;
    return far_epoch_tick(t);
}


static void a_handle_does_not_fall_asleep_under_a_pin_that_slipped_in(void **state) {
    (void)state;
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    assert_int_equal(call(s, pin_and_tell, &slipping_epoch), 0);
    assert_int_equal(call(pool->team.own, tick, NULL), 0); /* takes note of that pin */
    slipping_ops = *far_host_threads.ops;
    slipping_ops.now = time_at_which_a_pin_slips_in;
    slipping_session = s;
    pool->fabric->host = &slipping;
    assert_int_equal(call(pool->team.own, tick, NULL), 0);
    assert_null(slipping_session);
    assert_int_equal(atomic_load(&pool->epochs.current), slipping_epoch);
    assert_int_equal(published(s), slipping_epoch);
    atomic_fetch_sub(&s->pins.held[slipping_epoch & 1], 1);
    assert_int_equal(call(pool->team.own, tick, NULL), 0);
    assert_int_equal(atomic_load(&pool->epochs.current), 0);
    assert_int_equal(published(s), 0);
    pool->fabric->host = &far_host_threads;
    far_session_close(s);
    far_pool_close(pool);
}


static int jump(far_task *t, void *arg) {
    return far_write_word(t, FAR_SUPER_EPOCH, *(uint64_t *)arg - FAR_EPOCH_FIRST);
}


static void an_epoch_that_went_on_without_us_means_that_we_are_dead(void **state) {
    (void)state;
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    hold h;
    take(&h, s);
    uint64_t far_ahead = h.epoch + 2;
    assert_int_equal(call(s, jump, &far_ahead), 0);
    assert_int_equal(call(pool->team.own, tick, NULL), FAR_ERR_FENCED);
    uint64_t back = h.epoch - 1;
    assert_int_equal(call(s, jump, &back), 0);
    assert_int_equal(call(pool->team.own, tick, NULL), FAR_ERR_CORRUPT);
    drop(&h);
    far_session_close(s);
    far_pool_close(pool);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_pin_costs_a_background_round_trip_only_after_idleness, new_world),
        cmocka_unit_test_setup(a_sleeping_handle_posts_no_verbs, new_world),
        cmocka_unit_test_setup(the_epoch_moves_on_demand_only, new_world),
        cmocka_unit_test_setup(a_held_pin_lets_the_epoch_move_once_and_not_twice, new_world),
        cmocka_unit_test_setup(a_stalled_handle_without_a_pin_holds_up_one_move_until_it_ticks, new_world),
        cmocka_unit_test_setup(an_idle_handle_holds_nobody_back_and_wakes_at_the_epoch_of_that_time, new_world),
        cmocka_unit_test_setup(who_cannot_know_that_a_lost_writer_is_fenced_does_not_write, new_world),
        cmocka_unit_test_setup(the_pin_is_not_written_before_lost_writers_are_fenced, new_world),
        cmocka_unit_test_setup(a_dead_handle_holds_back_until_all_its_sessions_are_dead, new_world),
        cmocka_unit_test_setup(a_pin_whose_epoch_passed_while_it_was_taken_is_taken_anew, new_world),
        cmocka_unit_test_setup(a_handle_does_not_fall_asleep_under_a_pin_that_slipped_in, new_world),
        cmocka_unit_test_setup(an_epoch_that_went_on_without_us_means_that_we_are_dead, new_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
