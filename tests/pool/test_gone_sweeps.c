/* What is left of indexes that are gone when a sweep comes between: it takes blocks from everybody for a while, and
 * frees nothing itself unless it repairs. */
#include "gone_rig.h"


/* ---- A drop and a sweep ---- */

/* The drop has seen that nobody sweeps the block; then somebody does. toy: slabs in an orphan; shard: a run. */
static void a_sweep_that_begins_in_the_middle_of_a_drop(const char *kind) {
    cast c;
    set_up(&c, false, true);
    uint32_t uid = make(c.b.session, "x", kind);
    far_session_close(c.b.session);
    assert_int_equal(far_session_open(c.b.pool, &c.b.session), 0);
    assert_true(count_of(&c, uid) > 0);
    assert_int_equal(far_index_drop(c.a.session, "x"), 0);
    start(&c, &c.a, "dropper", poll_main);
    far_sim_stop_before(c.a.client, (far_sim_match){.point = "drop:clean"});
    assert_int_equal(far_sim_run_client(c.a.client), FAR_SIM_STOPPED);
    start(&c, &c.b, "sweeper", check_main);
    far_sim_stop_before(c.b.client, sweep_word(2));
    assert_int_equal(far_sim_run_client(c.b.client), FAR_SIM_STOPPED);
    far_sim_resume(c.a.client);
    far_sim_run_for(c.world, 1000000);
    assert_true(count_of(&c, uid) > 0);
    far_sim_resume(c.b.client);
    far_sim_run_for(c.world, 100000000);
    assert_true(far_sim_ended(c.b.client));
    assert_int_equal(c.b.result, 0);
    c.a.stop = true;
    assert_int_equal(far_sim_run_client(c.a.client), FAR_SIM_ENDED);
    assert_int_equal(count_of(&c, uid), 0);
    tear_down(&c);
}


static void a_drop_whose_blocks_a_sweep_takes_meanwhile_is_done_later(void **state) {
    (void)state;
    a_sweep_that_begins_in_the_middle_of_a_drop("toy");
    a_sweep_that_begins_in_the_middle_of_a_drop("shard");
}


/* The sweep covers what was to be cleaned up, and the dropper has fallen asleep when it ends. */
static void a_drop_that_waits_for_a_sweep_is_done_although_its_handle_sleeps(void **state) {
    (void)state;
    cast c;
    set_up(&c, true, true);
    uint32_t uid = make(c.b.session, "x", "toy");
    far_session_close(c.b.session);
    assert_int_equal(far_session_open(c.b.pool, &c.b.session), 0);
    start(&c, &c.b, "sweeper", check_main);
    far_sim_stop_before(c.b.client, sweep_word(3));
    assert_int_equal(far_sim_run_client(c.b.client), FAR_SIM_STOPPED);
    assert_int_equal(far_index_drop(c.a.session, "x"), 0);
    far_sim_sleep(c.world, 100000000);
    assert_false(far_epoch_is_awake(c.a.pool));
    assert_true(count_of(&c, uid) > 0);
    far_sim_resume(c.b.client);
    assert_int_equal(far_sim_run_client(c.b.client), FAR_SIM_ENDED);
    far_sim_sleep(c.world, 100000000);
    assert_int_equal(count_of(&c, uid), 0);
    tear_down(&c);
}


/* a has slabs of x: its session, or, because it has cleaned up after y in the same block, its own one. */
static uint32_t give_slabs(cast *c, bool own) {
    uint32_t uid = make(c->a.session, "x", "toy");
    if (own) {
        make(c->a.session, "y", "toy");
        far_session_close(c->a.session);
        assert_int_equal(far_session_open(c->a.pool, &c->a.session), 0);
        assert_int_equal(far_index_drop(c->a.session, "y"), 0);
        far_session_close(c->a.session);
        c->a.session = NULL;
    }
    poll_until_asleep(c, &c->a);
    return uid;
}


/* Who has slabs of it has not heard of the drop when a sweep takes its blocks away, and is closed before it gets them
 * back. */
static void blocks_are_away_at_the_close(bool own) {
    cast c;
    set_up(&c, false, true);
    uint32_t uid = give_slabs(&c, own);
    assert_int_equal(far_index_drop(c.b.session, "x"), 0);
    far_sim_sleep(c.world, 50000000);
    start(&c, &c.b, "sweeper", check_main);
    far_sim_stop_before(c.b.client, sweep_word(3));
    assert_int_equal(far_sim_run_client(c.b.client), FAR_SIM_STOPPED);
    start(&c, &c.a, "holder", poll_main);
    far_sim_run_for(c.world, 20000000);
    assert_true(far_some_are_away((own ? c.a.pool->own : c.a.session)->memory));
    assert_true(count_of(&c, uid) > 0);
    if (own) {
        c.a.stop = true;
        assert_int_equal(far_sim_run_client(c.a.client), FAR_SIM_ENDED);
        start(&c, &c.a, "closer", close_pool_main);
    } else {
        far_session_close(c.a.session);
        c.a.session = NULL;
    }
    far_sim_resume(c.b.client);
    far_sim_run_for(c.world, 100000000);
    assert_true(far_sim_ended(c.b.client));
    assert_int_equal(c.b.result, 0);
    assert_int_equal(count_of(&c, uid), 0);
    c.a.stop = true;
    assert_int_equal(far_sim_run_client(c.a.client), FAR_SIM_ENDED);
    if (own)
        c.a.pool = NULL;
    tear_down(&c);
}


static void slabs_in_blocks_that_are_away_go_after_the_session_that_had_them(void **state) {
    (void)state;
    blocks_are_away_at_the_close(false);
    blocks_are_away_at_the_close(true);
}


/* The sweep has gone, but the blocks come back only when the handle wakes; for a drop it must. */
static void a_handle_that_sleeps_lets_go_of_slabs_in_blocks_that_were_away(void **state) {
    (void)state;
    cast c;
    set_up(&c, true, true);
    uint32_t uid = make(c.a.session, "x", "toy");
    start(&c, &c.b, "sweeper", check_main);
    far_sim_stop_before(c.b.client, sweep_word(4));
    assert_int_equal(far_sim_run_client(c.b.client), FAR_SIM_STOPPED);
    far_sim_sleep(c.world, 100000000);
    assert_false(far_epoch_is_awake(c.a.pool));
    assert_true(far_some_are_away(c.a.session->memory));
    far_sim_resume(c.b.client);
    assert_int_equal(far_sim_run_client(c.b.client), FAR_SIM_ENDED);
    assert_int_equal(far_index_drop(c.b.session, "x"), 0);
    far_sim_sleep(c.world, 100000000);
    assert_int_equal(count_of(&c, uid), 0);
    tear_down(&c);
}


/* When it looked last there was no index, and when it looks again there is none. */
static void a_handle_that_sleeps_lets_go_of_what_came_and_went_between_its_looks(void **state) {
    (void)state;
    cast c;
    set_up(&c, true, true);
    far_sim_sleep(c.world, 50000000);
    uint32_t uid = make(c.a.session, "x", "toy");
    far_sim_sleep(c.world, 3000000); /* it has just fallen asleep */
    assert_false(far_epoch_is_awake(c.a.pool));
    assert_int_equal(far_index_drop(c.b.session, "x"), 0);
    far_sim_sleep(c.world, 100000000);
    assert_int_equal(count_of(&c, uid), 0);
    tear_down(&c);
}


/* The one who has dropped them closes while a check goes on, which waits for others that sleep: longer than many
 * epochs. Then the block is taken for the one, and must be looked at for the other. */
static void a_close_waits_for_a_sweep_that_goes_on(void **state) {
    (void)state;
    cast c;
    set_up(&c, true, false);
    far_session **s = &c.keeper.session;
    uint32_t uid[2] = {make_some(*s, "x", "smart", 0), make_some(*s, "y", "smart", 0)};
    assert_true(share_a_block(&c, uid));
    far_session_close(*s);
    assert_int_equal(far_session_open(c.keeper.pool, s), 0);
    poll_until_asleep(&c, &c.b); /* it is never polled again: the check waits for it for a while */
    start(&c, &c.keeper, "sweeper", check_main);
    far_sim_stop_before(c.keeper.client, sweep_word(2));
    assert_int_equal(far_sim_run_client(c.keeper.client), FAR_SIM_STOPPED);
    assert_int_equal(far_index_drop(c.a.session, "x"), 0);
    assert_int_equal(far_index_drop(c.a.session, "y"), 0);
    far_sim_resume(c.keeper.client);
    far_session_close(c.a.session);
    c.a.session = NULL;
    start(&c, &c.a, "closer", close_pool_main);
    assert_int_equal(far_sim_run(c.world), FAR_SIM_ENDED);
    c.a.pool = NULL;
    assert_int_equal(count_of(&c, uid[0]) + count_of(&c, uid[1]), 0);
    tear_down(&c);
}


/* The sweep ends when the close has waited for n rounds, perhaps just before it looks whether one goes on: it must
 * still hear of the end. */
static void a_sweep_ends_after(unsigned rounds) {
    cast c;
    set_up(&c, true, true);
    uint32_t uid = make_some(c.keeper.session, "x", "smart", 0);
    far_session_close(c.keeper.session);
    assert_int_equal(far_session_open(c.keeper.pool, &c.keeper.session), 0);
    start(&c, &c.b, "sweeper", check_main);
    far_sim_stop_before(c.b.client, sweep_word(4));
    assert_int_equal(far_sim_run_client(c.b.client), FAR_SIM_STOPPED);
    assert_int_equal(far_index_drop(c.a.session, "x"), 0);
    far_session_close(c.a.session);
    c.a.session = NULL;
    start(&c, &c.a, "closer", close_pool_main);
    far_sim_stop_before(c.a.client, (far_sim_match){.point = "memory:wait", .nth = rounds});
    assert_int_equal(far_sim_run_client(c.a.client), FAR_SIM_STOPPED);
    far_sim_resume(c.b.client);
    assert_int_equal(far_sim_run_client(c.b.client), FAR_SIM_ENDED);
    far_sim_resume(c.a.client);
    assert_int_equal(far_sim_run_client(c.a.client), FAR_SIM_ENDED);
    c.a.pool = NULL;
    if (count_of(&c, uid) > 0)
        fail_msg("after %u rounds: something is left", rounds);
    tear_down(&c);
}


static void a_close_hears_of_the_end_of_the_sweep_that_it_waited_for(void **state) {
    (void)state;
    for (unsigned rounds = 60; rounds < 160; rounds++)
        a_sweep_ends_after(rounds);
}


/* The sweep needs epochs, which wait for all who are awake: the one who waits for his turn is, and has no thread. */
static void who_waits_for_a_sweep_without_a_thread_is_not_in_its_way(void **state) {
    (void)state;
    cast c;
    set_up(&c, false, true);
    make(c.b.session, "y", "toy");
    start(&c, &c.b, "sweeper", check_main);
    far_sim_stop_before(c.b.client, sweep_word(2));
    assert_int_equal(far_sim_run_client(c.b.client), FAR_SIM_STOPPED);
    make(c.a.session, "x", "toy");
    assert_true(far_epoch_is_awake(c.a.pool));
    start(&c, &c.a, "next", check_main);
    far_sim_run_for(c.world, 1000000);
    far_sim_resume(c.b.client);
    far_sim_limit(c.world, 1000000000);
    assert_int_equal(far_sim_run(c.world), FAR_SIM_ENDED);
    assert_int_equal(c.a.result, 0);
    assert_int_equal(c.b.result, 0);
    tear_down(&c);
}


/* ---- The dead ---- */

static int sweep_dead(far_task *t, void *arg) {
    (void)arg;
    far_sweep_result result;
    return far_sweep(t, false, true, &result);
}


static void sweep_dead_main(void *arg) {
    player *p = arg;
    p->result = far_session_call(p->session, FAR_STATS_OTHER, false, sweep_dead, NULL);
}


/* The sweeper has read the catalog, and gives the block of the dead to nobody after it was dropped. */
static void an_index_that_is_dropped_while_blocks_of_the_dead_are_released_leaves_nothing(void **state) {
    (void)state;
    cast c;
    set_up(&c, true, true);
    uint32_t uid = make(c.a.session, "x", "smart");
    far_block_id id = {0, 0};
    while (!block_has(&c, id, uid))
        id.index++;
    far_addr entry = far_block_entry(&c.keeper.pool->geometry, id);
    far_sim_kill(c.a.pool->fabric);
    start(&c, &c.keeper, "sweeper", sweep_dead_main);
    far_sim_stop_before(c.keeper.client,
                        (far_sim_match){.kind = FAR_SIM_CAS, .from = entry, .to = entry + 8, .nth = 2});
    assert_int_equal(far_sim_run_client(c.keeper.client), FAR_SIM_STOPPED);
    assert_int_equal(far_index_drop(c.b.session, "x"), 0);
    far_sim_sleep(c.world, 50000000);
    far_sim_resume(c.keeper.client);
    assert_int_equal(far_sim_run_client(c.keeper.client), FAR_SIM_ENDED);
    assert_int_equal(c.keeper.result, 0);
    far_sim_sleep(c.world, 100000000);
    assert_int_equal(count_of(&c, uid), 0);
    tear_down(&c);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drop_whose_blocks_a_sweep_takes_meanwhile_is_done_later),
        cmocka_unit_test(a_drop_that_waits_for_a_sweep_is_done_although_its_handle_sleeps),
        cmocka_unit_test(slabs_in_blocks_that_are_away_go_after_the_session_that_had_them),
        cmocka_unit_test(a_handle_that_sleeps_lets_go_of_slabs_in_blocks_that_were_away),
        cmocka_unit_test(a_handle_that_sleeps_lets_go_of_what_came_and_went_between_its_looks),
        cmocka_unit_test(a_close_waits_for_a_sweep_that_goes_on),
        cmocka_unit_test(a_close_hears_of_the_end_of_the_sweep_that_it_waited_for),
        cmocka_unit_test(who_waits_for_a_sweep_without_a_thread_is_not_in_its_way),
        cmocka_unit_test(an_index_that_is_dropped_while_blocks_of_the_dead_are_released_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
