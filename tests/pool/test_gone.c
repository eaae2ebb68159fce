/* What is left of indexes that are gone: the drop and the end of sessions and handles, each handing to another what it
 * does not do itself. Nobody dies here: so a check without repair finds nothing, whatever the order of things. */
#include "gone_rig.h"


/* ---- A drop and sessions that close ---- */

static int stand_inside(far_task *t, void *arg) {
    (void)arg;
    far_point(t, "test:inside");
    return 0;
}


static void inside_main(void *arg) {
    player *p = arg;
    p->result = far_session_call(p->session, FAR_STATS_OTHER, false, stand_inside, NULL);
}


/* The handle's own session has the drop of a session that was closed, and has just gone over all blocks, when another
 * one, which nobody could tick, leaves slabs of the same index behind. */
static void a_drop_that_is_added_while_it_is_being_done_is_done_again(void **state) {
    (void)state;
    cast c;
    set_up(&c, false, true);
    player busy = c.a;
    uint32_t uid = make(c.a.session, "x", "toy");
    assert_int_equal(far_session_open(c.a.pool, &c.a.other), 0);
    poll_until_asleep(&c, &c.a);
    start(&c, &busy, "busy", inside_main);
    far_sim_stop_before(busy.client, (far_sim_match){.point = "test:inside"});
    assert_int_equal(far_sim_run_client(busy.client), FAR_SIM_STOPPED);
    assert_int_equal(far_index_drop(c.a.other, "x"), 0);
    far_session_close(c.a.other);
    c.a.other = NULL;
    start(&c, &c.a, "own", poll_main);
    far_sim_stop_before(c.a.client, (far_sim_match){.point = "drop:cleaned"});
    assert_int_equal(far_sim_run_client(c.a.client), FAR_SIM_STOPPED);

    far_sim_resume(busy.client);
    assert_int_equal(far_sim_run_client(busy.client), FAR_SIM_ENDED);
    start(&c, &busy, "closer", close_session_main);
    assert_int_equal(far_sim_run_client(busy.client), FAR_SIM_ENDED);
    c.a.session = NULL;
    assert_true(count_of(&c, uid) > 0);
    far_sim_resume(c.a.client);
    far_sim_run_for(c.world, 20000000);
    c.a.stop = true;
    assert_int_equal(far_sim_run_client(c.a.client), FAR_SIM_ENDED);
    assert_int_equal(count_of(&c, uid), 0);
    tear_down(&c);
}


/* A session that closes takes the block for its own drop, and leaves it. The other dropper passes by just then. */
static void what_comes_with_a_block_that_is_taken_for_a_drop_is_not_left(void **state) {
    (void)state;
    cast c;
    set_up(&c, false, false);
    player busy = c.a;
    far_session **s = &c.keeper.session;
    make_some(c.a.session, "z", "smart", 0); /* they have blocks of their own */
    make_some(c.b.session, "w", "smart", 0);
    uint32_t uid[2] = {make_some(*s, "x", "smart", 0), make_some(*s, "y", "smart", 0)};
    assert_true(share_a_block(&c, uid));
    far_session_close(*s);
    assert_int_equal(far_session_open(c.keeper.pool, s), 0);
    assert_int_equal(far_index_drop(c.a.session, "y"), 0);
    start(&c, &busy, "busy", inside_main); /* its drop has to wait for its close */
    far_sim_stop_before(busy.client, (far_sim_match){.point = "test:inside"});
    assert_int_equal(far_sim_run_client(busy.client), FAR_SIM_STOPPED);
    assert_int_equal(far_index_drop(c.b.session, "x"), 0);
    start(&c, &c.a, "polls", poll_main);
    start(&c, &c.b, "dropper", poll_main);
    far_sim_stop_before(c.b.client, (far_sim_match){.point = "drop:clean"});
    far_sim_run_for(c.world, 2000000);
    assert_int_equal(far_sim_run_client(c.b.client), FAR_SIM_STOPPED);

    far_sim_resume(busy.client);
    assert_int_equal(far_sim_run_client(busy.client), FAR_SIM_ENDED);
    start(&c, &busy, "closer", close_session_main);
    far_sim_stop_before(busy.client, (far_sim_match){.point = "memory:leave"});
    assert_int_equal(far_sim_run_client(busy.client), FAR_SIM_STOPPED);
    c.a.session = NULL;
    assert_int_equal(count_of(&c, uid[1]), 0);
    assert_true(count_of(&c, uid[0]) > 0);
    far_sim_resume(c.b.client);
    far_sim_run_for(c.world, 200000);
    far_sim_resume(busy.client);
    far_sim_run_for(c.world, 20000000);
    assert_true(far_sim_ended(busy.client));
    c.a.stop = c.b.stop = true;
    assert_int_equal(far_sim_run(c.world), FAR_SIM_ENDED);
    assert_int_equal(count_of(&c, uid[0]), 0);
    tear_down(&c);
}


/* ---- Indexes that are open when the handle is closed ---- */

static void drop_main(void *arg) {
    player *p = arg;
    far_sim_world *world = far_sim_world_of(p->pool->fabric);
    while ((p->result = far_index_drop(p->session, "x")) == FAR_ERR_BUSY)
        far_sim_sleep(world, 5000);
}


/* From the moment on when the catalog shows it as closed others may drop it, and use its memory anew: what the handle
 * still holds of it is nothing any more. It waits for its retired objects, and stands still for a while in the n-th
 * round of that. False: it needs fewer. */
static bool dropped_while_its_handle_waits(unsigned nth) {
    static const char value[3000];
    cast c;
    set_up(&c, true, true);
    assert_int_equal(far_index_create(c.a.session, "x", "toy", NULL, &c.a.index), 0);
    uint32_t uid = c.a.index->uid;
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(far_put(c.a.session, c.a.index, &i, sizeof(i), value, i * 73), 0);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(far_delete(c.a.session, c.a.index, &i, sizeof(i)), 0);
    start(&c, &c.a, "closer", close_pool_main);
    start(&c, &c.b, "dropper", drop_main);
    far_sim_stop_before(c.a.client, (far_sim_match){.point = "memory:wait", .nth = nth});
    far_sim_run_for(c.world, 3000000);
    bool there = !far_sim_ended(c.a.client);
    far_sim_resume(c.a.client);
    assert_int_equal(far_sim_run(c.world), FAR_SIM_ENDED);
    c.a.pool = NULL;
    assert_int_equal(c.b.result, 0);
    far_sim_sleep(c.world, 50000000);
    assert_int_equal(count_of(&c, uid), 0);
    tear_down(&c);
    return there;
}


static void what_a_handle_had_retired_of_an_open_index_is_not_freed_after_its_drop(void **state) {
    (void)state;
    unsigned nth = 1;
    while (dropped_while_its_handle_waits(nth))
        nth++;
    assert_true(nth > 4);
}


static void close_index_main(void *arg) {
    player *p = arg;
    far_index_close(p->index);
    p->index = NULL;
}


/* Hooks of the index may be running in it. */
static void an_index_is_not_freed_while_its_handle_is_being_closed(void **state) {
    (void)state;
    cast c;
    set_up(&c, true, true);
    player other = c.a;
    assert_int_equal(far_index_create(c.a.session, "x", "toy", NULL, &other.index), 0);
    start(&c, &c.a, "closer", close_pool_main);
    far_sim_stop_before(c.a.client, (far_sim_match){.point = "memory:leave"});
    assert_int_equal(far_sim_run_client(c.a.client), FAR_SIM_STOPPED);
    start(&c, &other, "other", close_index_main);
    far_sim_run_for(c.world, 1000000);
    assert_false(far_sim_ended(other.client));
    far_sim_resume(c.a.client);
    assert_int_equal(far_sim_run(c.world), FAR_SIM_ENDED);
    c.a.pool = NULL;
    tear_down(&c);
}


/* ---- What only looks as if it was gone ---- */

static int take_for_gone(far_task *t, void *arg) {
    int err = far_pin_take(t);
    if (err == 0)
        err = far_blocks_drop_uid(t, *(uint32_t *)arg);
    far_pin_drop(t);
    return err;
}


/* As a session does with one that is just being created, and listed a moment later. */
static void an_index_that_is_listed_is_not_cleaned_up(void **state) {
    (void)state;
    cast c;
    set_up(&c, true, true);
    uint32_t uid = make(c.b.session, "x", "toy");
    far_session_close(c.b.session);
    assert_int_equal(far_session_open(c.b.pool, &c.b.session), 0);
    unsigned before = count_of(&c, uid);
    assert_int_equal(far_session_call(c.a.session, FAR_STATS_OTHER, false, take_for_gone, &uid), 0);
    far_sim_sleep(c.world, 100000000);
    assert_int_equal(count_of(&c, uid), before);
    assert_int_equal(far_index_open(c.b.session, "x", &c.b.index), 0);
    assert_int_equal(far_index_check(c.b.session, c.b.index, fail_at_problem, NULL), 0);
    tear_down(&c);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drop_that_is_added_while_it_is_being_done_is_done_again),
        cmocka_unit_test(what_comes_with_a_block_that_is_taken_for_a_drop_is_not_left),
        cmocka_unit_test(what_a_handle_had_retired_of_an_open_index_is_not_freed_after_its_drop),
        cmocka_unit_test(an_index_is_not_freed_while_its_handle_is_being_closed),
        cmocka_unit_test(an_index_that_is_listed_is_not_cleaned_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
