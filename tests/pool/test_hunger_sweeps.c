/* Memory that is short, and sweeps: what they cover is waited for, and what the dead left comes back by them. */
#include "hunger_rig.h"


static void check_main(void *arg) {
    guest *g = arg;
    g->result = far_pool_check(g->session, 0, fail_at_problem, NULL);
}


/* A sweep covers all blocks of the pool, three quarters of which are free; it stands still. */
static void stop_in_a_sweep(room *r, unsigned seed) {
    open_room(r, seed, 2, 2, "1500K");
    guest *hungry = &r->guests[0], *sweeper = &r->guests[1];
    unsigned count = fill(hungry, "a", SMALL);
    for (unsigned i = 0; i < count; i++)
        if (i % 4 != 0)
            delete_key(hungry, "a", i);
    pass_epochs(hungry);
    sweeper->client = far_sim_start(r->pool[1]->fabric, "sweeper", check_main, sweeper);
    far_sim_stop_before(
        sweeper->client,
        (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_SWEEP, .to = FAR_SUPER_SWEEP + 8, .nth = 3});
    assert_int_equal(far_sim_run_client(sweeper->client), FAR_SIM_STOPPED);
}


/* What is free there comes back when it is over. */
static void what_a_sweep_covers_is_waited_for(void **state) {
    (void)state;
    room r;
    stop_in_a_sweep(&r, 450);
    guest *hungry = &r.guests[0], *sweeper = &r.guests[1];
    start(&r, 0, 1, SMALL);
    far_sim_limit(r.world, 20000000);
    assert_true(far_sim_run_client(hungry->client) != FAR_SIM_ENDED);
    far_sim_limit(r.world, 200000000); /* its handle slept meanwhile: it wakes in time */
    far_sim_resume(sweeper->client);
    assert_int_equal(far_sim_run(r.world), FAR_SIM_ENDED);
    assert_int_equal(sweeper->result, 0);
    assert_int_equal(hungry->result, 0);
    close_room(&r);
}


/* But not for ever, and only once: the sweeper's process was stopped. */
static void nobody_waits_for_ever_for_a_sweep_that_stands_still(void **state) {
    (void)state;
    room r;
    stop_in_a_sweep(&r, 452);
    guest *hungry = &r.guests[0], *sweeper = &r.guests[1];
    for (unsigned i = 0; i < 3; i++) {
        start(&r, 0, 1, SMALL);
        far_sim_limit(r.world, i == 0 ? 2000000000 : 100000000);
        assert_int_equal(far_sim_run_client(hungry->client), FAR_SIM_ENDED);
        assert_int_equal(hungry->result, FAR_ERR_NO_MEMORY);
    }
    far_sim_limit(r.world, 0);
    far_sim_resume(sweeper->client);
    assert_int_equal(far_sim_run_client(sweeper->client), FAR_SIM_ENDED);
    assert_int_equal(put(hungry, "b", SMALL), 0);
    close_room(&r);
}


static uint32_t sweeps_so_far(const room *r) {
    uint64_t word;
    memcpy(&word, (const char *)far_sim_memory(r->world, 0) + FAR_SUPER_SWEEP, 8);
    return far_sweep_sequence(word);
}


/* An index is broken, so that no sweep comes to its end: not everybody who finds no memory begins another. */
static void a_sweep_that_fails_is_not_made_again_and_again(void **state) {
    (void)state;
    room r;
    far_index *broken;
    open_room(&r, 453, 1, 1, "1500K");
    guest *hungry = &r.guests[0];
    assert_int_equal(far_index_create(hungry->session, "y", "toy", "slots=64", &broken), 0);
    far_addr descriptor = broken->descriptor;
    far_index_close(broken);
    fill(hungry, "a", SMALL);
    char *node = far_sim_memory(r.world, 0);
    memset(node + descriptor, 0x55, 64);
    memcpy(node + FAR_SUPER_DIED, &(uint64_t){1}, 8);
    for (unsigned i = 0; i < 5; i++) {
        uint32_t before = sweeps_so_far(&r);
        assert_int_equal(put(hungry, "c", LARGE), FAR_ERR_NO_MEMORY);
        assert_true((sweeps_so_far(&r) > before) == (i == 0));
    }
    leave_room(&r);
}


/* A handle died with objects that it had unlinked in blocks of others: when memory is short these are found. One that
 * slept holds up no epoch: housekeeping finds out that it died. */
static void delete_and_die(unsigned seed, unsigned values, bool asleep) {
    room r;
    open_room(&r, seed, 2, 2, "1500K");
    guest *hungry = &r.guests[0], *dead = &r.guests[1];
    assert_int_equal(put(dead, "first", 1), 0);
    assert_true(fill(hungry, "a", SMALL) > 300);
    for (unsigned i = 0; i < values; i++)
        delete_key(dead, "a", i);
    if (asleep)
        far_sim_sleep(r.world, 200000000);
    assert_int_equal(far_epoch_is_awake(r.pool[1]), !asleep);
    far_sim_kill(r.pool[1]->fabric);
    far_pool_usage usage = {0};
    assert_true(fill(hungry, "b", SMALL) > 0);
    assert_int_equal(far_pool_check(hungry->session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(hungry->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
    leave_room(&r);
}


static void what_the_dead_had_unlinked_comes_back_when_memory_is_short(void **state) {
    (void)state;
    delete_and_die(454, 200, false);
    delete_and_die(455, 10, true);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_sweep_covers_is_waited_for),
        cmocka_unit_test(nobody_waits_for_ever_for_a_sweep_that_stands_still),
        cmocka_unit_test(a_sweep_that_fails_is_not_made_again_and_again),
        cmocka_unit_test(what_the_dead_had_unlinked_comes_back_when_memory_is_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
