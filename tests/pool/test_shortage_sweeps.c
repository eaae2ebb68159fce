/* Memory that is short, and sweeps: they take nothing out of use, and what the dead left comes back by them. */
#include "pool_rig.h"


/* Three quarters of a handle's blocks are free, and a sweep of another stands still in its walk. */
static void stop_in_a_sweep(rig *r, unsigned seed) {
    open_small_pool(r, seed, 3, 3, 0, "1500K");
    put_now(&r->actors[2], "first", 1);
    actor *owner = &r->actors[0], *sweeper = &r->actors[1];
    unsigned count = fill(owner, "a", SMALL);
    for (unsigned i = 0; i < count; i++)
        if (i % 4 != 0)
            remove_numbered(owner, "a", i);
    pass_epochs(owner, 6);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walk");
}


static void what_is_free_stays_in_use_during_a_sweep(void **state) {
    (void)state;
    rig r;
    stop_in_a_sweep(&r, 450);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    uint32_t number = request_now(&r).number;
    start_putting(owner, 100, SMALL);
    snprintf(owner->key, sizeof(owner->key), "b");
    assert_int_equal(far_sim_run_client(owner->client), FAR_SIM_ENDED);
    assert_int_equal(owner->puts, 100);
    assert_int_equal(request_now(&r).number, number);
    finish(sweeper);
    assert_int_equal(sweeper->result, 0);
    assert_int_equal(sweeper->swept.leaked_bytes, 0);
    assert_nothing_lost(&r, owner);
    close_rig(&r);
}


/* A third one asks for memory, and gets what the owner has free: nobody waits for the sweep. */
static void who_is_short_is_answered_during_a_sweep(void **state) {
    (void)state;
    rig r;
    stop_in_a_sweep(&r, 451);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1], *needy = &r.actors[2];
    far_request before = request_now(&r);
    char key[8];
    far_sim_limit(r.world, 1000000000);
    for (unsigned i = 0; i < 100; i++) {
        put_now(owner, "a0", SMALL); /* it is awake */
        snprintf(key, sizeof(key), "c%u", i);
        put_now(needy, key, SMALL);
    }
    far_sim_limit(r.world, 0);
    far_request after = request_now(&r);
    assert_true(after.spare && far_number_is_newer(after.number, before.number));
    assert_true(after.walk && after.sweep == before.sweep && after.sweeper == before.sweeper);
    finish(sweeper);
    assert_int_equal(sweeper->result, 0);
    assert_nothing_lost(&r, owner);
    close_rig(&r);
}


/* A sweep is wanted, and its sweeper was stopped: who is short does not wait for ever. */
static void nobody_waits_for_ever_for_a_sweep_that_stands_still(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 452, 2, 2, 0, "1500K");
    actor *needy = &r.actors[0], *sweeper = &r.actors[1];
    put_now(sweeper, "first", 1);
    fill(needy, "a", SMALL);
    fill(needy, "b", 1);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walk");
    memcpy(bytes_at(&r, FAR_SUPER_WANTED), &(uint64_t){word_at(&r, FAR_SUPER_WANTED) + 1}, 8);
    for (unsigned i = 0; i < 3; i++) {
        start_putting(needy, 1, LARGE);
        far_sim_limit(r.world, 5000000000);
        assert_int_equal(far_sim_run_client(needy->client), FAR_SIM_ENDED);
        assert_int_equal(needy->result, FAR_ERR_NO_MEMORY);
    }
    far_sim_limit(r.world, 0);
    finish(sweeper);
    close_rig(&r);
}


/* The same, when it sweeps itself: one who was stopped in the middle of an operation gives no answer. */
static void nobody_waits_for_ever_for_answers_to_its_own_sweep(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 457, 2, 2, BY_HAND(0) | BY_HAND(1), "1500K");
    actor *needy = &r.actors[0], *stopped = &r.actors[1];
    put_now(stopped, "first", 1);
    fill(needy, "a", SMALL);
    fill(needy, "b", 1);
    start(stopped, "stopped", hold_main);
    stop_at_point(stopped, "test:pinned");
    memcpy(bytes_at(&r, FAR_SUPER_WANTED), &(uint64_t){word_at(&r, FAR_SUPER_WANTED) + 1}, 8);
    for (unsigned i = 0; i < 3; i++) {
        start_putting(needy, 1, LARGE);
        far_sim_limit(r.world, 5000000000);
        assert_int_equal(far_sim_run_client(needy->client), FAR_SIM_ENDED);
        assert_int_equal(needy->result, FAR_ERR_NO_MEMORY);
    }
    far_sim_limit(r.world, 0);
    finish(stopped);
    assert_nothing_lost_by_itself(&r, needy);
    close_rig(&r);
}


static int lose_large(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, LARGE, FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


/* It was found that nothing can be had; then somebody finds out that something is lost. */
static void what_is_known_to_be_lost_is_swept_for_once_more(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 458, 1, 1, BY_HAND(0), "1500K");
    actor *needy = &r.actors[0];
    put_now(needy, "first", 1);
    assert_int_equal(call(needy, lose_large, needy), 0);
    fill(needy, "a", LARGE);
    assert_true(needy->pool->store->exhausted != 0);
    memcpy(bytes_at(&r, FAR_SUPER_WANTED), &(uint64_t){word_at(&r, FAR_SUPER_WANTED) + 1}, 8);
    put_now(needy, "c", LARGE);
    assert_nothing_lost(&r, needy);
    close_rig(&r);
}


/* An index is broken, so that no sweep comes to its end: the pauses between them grow. */
static void a_sweep_that_fails_is_not_made_again_and_again(void **state) {
    (void)state;
    rig r;
    far_index *broken;
    open_small_pool(&r, 453, 1, 1, 0, "1500K");
    actor *needy = &r.actors[0];
    assert_int_equal(far_index_create(needy->session, "y", "toy", "slots=64", &broken), 0);
    far_addr descriptor = broken->descriptor;
    far_index_close(broken);
    fill(needy, "a", SMALL);
    memset(bytes_at(&r, descriptor), 0x55, 64);
    memcpy(bytes_at(&r, FAR_SUPER_WANTED), &(uint64_t){1}, 8);
    far_sim_limit(r.world, 0);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(put(needy, "c", LARGE), FAR_ERR_NO_MEMORY);
    far_sim_sleep(r.world, 1000000000);
    uint32_t first = request_now(&r).sweep;
    assert_true(first > 0);
    far_sim_sleep(r.world, 10000000000); /* 500 pauses of the usual length */
    assert_true(request_now(&r).sweep - first < 16);
    far_index_close(needy->index);
    far_session_close(needy->session);
    far_pool_close(needy->pool);
}


/* A handle died with objects that it had unlinked in blocks of others: when memory is short these are found. One that
 * slept holds up no epoch: housekeeping finds out that it died. */
static void delete_and_die(unsigned seed, unsigned values, bool asleep) {
    rig r;
    open_small_pool(&r, seed, 2, 2, 0, "1500K");
    actor *needy = &r.actors[0], *dead = &r.actors[1];
    put_now(dead, "first", 1);
    assert_true(fill(needy, "a", SMALL) > 300);
    for (unsigned i = 0; i < values; i++)
        remove_numbered(dead, "a", i);
    if (asleep)
        far_sim_sleep(r.world, 200000000);
    assert_int_equal(far_epoch_is_awake(dead->pool), !asleep);
    far_sim_kill(dead->pool->fabric);
    if (asleep) /* it kept a block with some room */
        put_now(needy, "c", SMALL);
    if (fill(needy, "b", SMALL) == 0)
        fail_msg("%u values of the dead, which %s, did not come back", values, asleep ? "slept" : "was awake");
    assert_nothing_lost_by_itself(&r, needy);
    close_rig(&r);
}


static void what_the_dead_had_unlinked_comes_back_when_memory_is_short(void **state) {
    (void)state;
    delete_and_die(454, 200, false);
    delete_and_die(455, 10, true);
}


/* The walk allocates nothing in far memory, nor does what follows it. */
static void repair_in_a_full_pool(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 456, 3, 3, 0, "1500K");
    actor *a = &r.actors[0], *b = &r.actors[1], *dead = &r.actors[2];
    put_now(b, "first", 1);
    put_now(dead, "first", 1);
    assert_true(fill(dead, "d", SMALL) > 100);
    fill(a, "a", SMALL);
    fill(a, "b", 1);
    fill(b, "b", 1);
    for (unsigned i = 0; i < 50; i++)
        remove_numbered(dead, "d", i);
    far_sim_kill(dead->pool->fabric);
    assert_int_equal(far_pool_check(b->session, 1, fail_at_problem, NULL), 0);
    for (unsigned i = 0; i < 40; i++) {
        char key[8];
        snprintf(key, sizeof(key), "c%u", i);
        put_now(b, key, SMALL);
    }
    assert_nothing_lost(&r, b);
    close_rig(&r);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_free_stays_in_use_during_a_sweep),
        cmocka_unit_test(who_is_short_is_answered_during_a_sweep),
        cmocka_unit_test(nobody_waits_for_ever_for_a_sweep_that_stands_still),
        cmocka_unit_test(nobody_waits_for_ever_for_answers_to_its_own_sweep),
        cmocka_unit_test(what_is_known_to_be_lost_is_swept_for_once_more),
        cmocka_unit_test(a_sweep_that_fails_is_not_made_again_and_again),
        cmocka_unit_test(what_the_dead_had_unlinked_comes_back_when_memory_is_short),
        cmocka_unit_test(repair_in_a_full_pool),
    };
    return cmocka_run_group_tests_name("shortage_sweeps", tests, NULL, NULL);
}
