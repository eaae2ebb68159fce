/* Memory that is short, move by move: operations that wait for it beside closes, slow and stopped and dead handles, and
 * others that give theirs up just then. */
#include "pool_rig.h"


static void check_and_close(rig *r) {
    assert_int_equal(far_pool_check(r->actors[0].session, 0, fail_at_problem, NULL), 0);
    close_rig(r);
}


/* ---- Closing ---- */

static void close_pool_main(void *arg) {
    actor *a = arg;
    far_pool_close(a->pool);
}


static void close_comes_to_an_end(rig *r) {
    actor *a = &r->actors[0];
    far_sim_client *closer = far_sim_start(a->pool->fabric, "closer", close_pool_main, a);
    far_sim_limit(r->world, 1000000000);
    assert_int_equal(far_sim_run_client(closer), FAR_SIM_ENDED);
    far_index_close(a->index);
    for (unsigned i = 0; i < r->count; i++)
        far_session_close(r->actors[i].session);
}


static void submit_put(actor *a, far_op *op, const char *key, size_t bytes) {
    static char value[FAR_VALUE_MAX];
    *op = (far_op){.kind = FAR_OP_PUT,
                   .index = a->index,
                   .key = key,
                   .key_len = strlen(key),
                   .value = value,
                   .value_len = bytes,
                   .result = 77};
    assert_int_equal(far_submit(a->session, &op, 1), 1);
}


/* They wait for the epoch to move, one of them for the other; housekeeping, which moves it, has ended. */
static void a_handle_is_closed_while_operations_wait_for_memory(void **state) {
    (void)state;
    rig r;
    far_op ops[2];
    open_small_pool(&r, 400, 1, 3, 0, "2M");
    for (unsigned i = 1; i < 3; i++)
        put_now(&r.actors[i], "first", 1);
    assert_true(fill(&r.actors[0], "a", LARGE) > 2);
    remove_now(&r.actors[0], "a0");
    for (unsigned i = 0; i < 2; i++)
        submit_put(&r.actors[1 + i], &ops[i], r.actors[1 + i].key, LARGE);
    close_comes_to_an_end(&r);
    if (ops[0].result != 0 || (ops[1].result != 0 && ops[1].result != FAR_ERR_NO_MEMORY)) /* there was room for one */
        fail_msg("the first in line got %d, the second %d", ops[0].result, ops[1].result);
}


static void wait_for_epochs(far_task *t, void *arg) {
    *(int *)arg = far_wait_epochs_until(t, 5, FAR_TIME_NEVER);
}


static void a_handle_is_closed_while_a_task_waits_for_epochs(void **state) {
    (void)state;
    rig r;
    int result = 77;
    open_small_pool(&r, 401, 1, 1, 0, "2M");
    far_session *s = r.actors[0].session;
    far_session_enter(s);
    assert_non_null(far_task_new(s, FAR_STATS_OTHER, wait_for_epochs, &result));
    far_session_leave(s);
    close_comes_to_an_end(&r);
    assert_int_equal(result, 0);
}


/* An operation that was submitted is waking the handle; the session that is closed first wants a pin too. */
static void a_handle_is_closed_while_an_operation_wakes_it(void **state) {
    (void)state;
    rig r;
    far_op op;
    open_small_pool(&r, 402, 1, 2, 0, "2M");
    put_now(&r.actors[0], "first", 1);
    far_sim_sleep(r.world, 50000000);
    assert_false(far_epoch_is_awake(r.actors[0].pool));
    submit_put(&r.actors[0], &op, "b", 1);
    close_comes_to_an_end(&r);
    assert_int_equal(op.result, 0);
}


/* The first attempt found nothing because another handle had it, which then brings it home. */
static void what_came_back_after_the_first_attempt_is_seen(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 420, 2, 2, 0, "1500K");
    actor *needy = &r.actors[0];
    put_now(&r.actors[1], "first", 1);
    assert_true(fill(needy, "a", SMALL) > 300);
    fill(needy, "b", 1);
    for (unsigned i = 0; i < 4; i++)
        remove_numbered(&r.actors[1], "a", 10 * i); /* not in blocks of its own */
    start_putting(needy, 1, SMALL);
    stop_at_point(needy, "shortage:found");
    far_sim_sleep(r.world, 10000000);
    finish(needy);
    assert_int_equal(needy->result, 0);
    check_and_close(&r);
}


/* ---- What an attempt leaves ---- */

static int put_and_fail(far_task *t, void *arg) {
    static const uint64_t word = 12345;
    (void)arg;
    int err = far_pin_take(t);
    far_write(t, far_addr_make(0, FAR_SUPER_LEAKED), &word, 8);
    return err < 0 ? err : FAR_ERR_NO_MEMORY;
}


static int fail_short(far_task *t, void *arg) {
    int err = put_and_fail(t, arg);
    return err == FAR_ERR_NO_MEMORY ? far_run_short(t, put_and_fail, arg) : err;
}


/* It had put a verb when it found no memory: that is not posted any more, its pin is gone and perhaps its memory. */
static void verbs_of_an_attempt_that_failed_are_not_posted(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 425, 1, 1, 0, "2M");
    assert_int_equal(far_session_call(r.actors[0].session, FAR_STATS_OTHER, false, fail_short, NULL),
                     FAR_ERR_NO_MEMORY);
    assert_int_equal(word_at(&r, FAR_SUPER_LEAKED), 0);
    check_and_close(&r);
}


/* ---- Slow, stopped and dead handles ---- */

static void fill_main(void *arg) {
    actor *a = arg;
    fill(a, "a", HALF);
    fill(a, "b", 1);
    a->result = 0;
}


static void stop_polling(actor *a) {
    a->stop = true;
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_ENDED);
}


/* The holder has just freed a value, holds a pin no more, but is awake and stands still. */
static void fill_beside_a_slow_holder(rig *r, unsigned seed) {
    open_small_pool(r, seed, 2, 2, BY_HAND(1), "1500K");
    actor *needy = &r->actors[0], *holder = &r->actors[1];
    for (unsigned i = 0; i < 3; i++) {
        char key[4];
        snprintf(key, sizeof(key), "g%u", i);
        put_now(holder, key, HALF);
    }
    start(holder, "poller", poll_main);
    start(needy, "filler", fill_main);
    while (!far_sim_ended(needy->client))
        far_sim_run_for(r->world, 1000000);
    stop_polling(holder);
    remove_now(holder, "g1");
    assert_true(far_epoch_is_awake(holder->pool));
}


/* Its process was stopped. What it holds cannot be had: that is said after a while, and then others can go on. */
static void nobody_waits_for_ever_for_an_answer(void **state) {
    (void)state;
    rig r;
    fill_beside_a_slow_holder(&r, 510);
    actor *needy = &r.actors[0], *holder = &r.actors[1];
    for (unsigned i = 0; i < 3; i++) {
        start_putting(needy, 1, HALF);
        far_sim_limit(r.world, 3000000000);
        assert_int_equal(far_sim_run_client(needy->client), FAR_SIM_ENDED);
        assert_int_equal(needy->result, FAR_ERR_NO_MEMORY);
    }
    far_sim_limit(r.world, 0);
    holder->stop = false;
    start(holder, "poller", poll_main);
    far_sim_run_for(r.world, 50000000);
    start_putting(needy, 1, HALF);
    far_sim_run_for(r.world, 100000000);
    assert_true(far_sim_ended(needy->client));
    assert_int_equal(needy->result, 0);
    stop_polling(holder);
    close_rig(&r);
}


/* It is only slow: it answers in the end, with a block that has room. */
static void an_answer_that_comes_late_is_waited_for(void **state) {
    (void)state;
    rig r;
    fill_beside_a_slow_holder(&r, 500);
    actor *needy = &r.actors[0], *holder = &r.actors[1];
    start_putting(needy, 1, HALF);
    far_sim_run_for(r.world, 50000000);
    assert_false(far_sim_ended(needy->client));
    holder->stop = false;
    start(holder, "poller", poll_main);
    far_sim_run_for(r.world, 50000000);
    assert_true(far_sim_ended(needy->client));
    assert_int_equal(needy->result, 0);
    stop_polling(holder);
    close_rig(&r);
}


static int ask_for_nothing(far_task *t, void *arg) {
    (void)arg;
    return far_request_attention(t);
}


/* Others make requests of their own, some times, before the holder has heard that memory is asked for: it answers those, and was
 * never asked. That is not a round in vain. */
static void a_request_that_nobody_heard_was_not_in_vain(void **state) {
    (void)state;
    rig r;
    fill_beside_a_slow_holder(&r, 507);
    actor *needy = &r.actors[0], *holder = &r.actors[1];
    far_pool *other;
    far_session *asker;
    assert_int_equal(far_pool_open(r.uri, NULL, &other), 0);
    assert_int_equal(far_session_open(other, &asker), 0);
    needy->pool->store->exhausted = 0; /* it asks at once */
    enum { TIMES = 4 };
    unsigned asked = 0;
    start_putting(needy, 1, HALF);
    for (unsigned i = 0; i < 100000 && !far_sim_ended(needy->client); i++) {
        far_sim_run_for(r.world, 2000);
        bool hidden = asked < TIMES && request_now(&r).spare;
        if (hidden)
            assert_int_equal(far_session_call(asker, FAR_STATS_OTHER, false, ask_for_nothing, NULL), 0);
        asked += hidden;
        if (hidden && asked == 1) {
            holder->stop = false;
            start(holder, "poller", poll_main);
        }
    }
    assert_int_equal(asked, TIMES);
    assert_true(far_sim_ended(needy->client));
    assert_int_equal(needy->result, 0);
    stop_polling(holder);
    far_session_close(asker);
    far_pool_close(other);
    close_rig(&r);
}


/* It is about to give up a block that has room: that one is waited for. */
static void a_block_that_is_being_given_up_is_waited_for(void **state) {
    (void)state;
    rig r;
    fill_beside_a_slow_holder(&r, 505);
    actor *needy = &r.actors[0], *holder = &r.actors[1];
    needy->pool->store->exhausted = 0; /* it asks at once */
    const far_geometry *g = &holder->pool->geometry;
    start_putting(needy, 1, HALF);
    holder->stop = false;
    start(holder, "poller", poll_main);
    far_sim_stop_before(holder->client,
                        (far_sim_match){.kind = FAR_SIM_CAS,
                                        .from = g->node[0].entries,
                                        .to = g->node[0].entries + g->node[0].blocks * FAR_BLOCK_ENTRY_BYTES});
    far_sim_run_for(r.world, 50000000);
    assert_int_equal(far_sim_run_client(holder->client), FAR_SIM_STOPPED);
    assert_non_null(holder->pool->store->inside);
    assert_false(far_sim_ended(needy->client));
    far_sim_resume(holder->client);
    far_sim_run_for(r.world, 50000000);
    assert_true(far_sim_ended(needy->client));
    assert_int_equal(needy->result, 0);
    stop_polling(holder);
    close_rig(&r);
}


/* It is not waited for any more, and what it held comes back. */
static void who_dies_is_not_waited_for(void **state) {
    (void)state;
    rig r;
    fill_beside_a_slow_holder(&r, 520);
    actor *needy = &r.actors[0], *holder = &r.actors[1];
    start_putting(needy, 1, HALF);
    far_sim_run_for(r.world, 50000000);
    assert_false(far_sim_ended(needy->client));
    far_sim_kill(holder->pool->fabric);
    far_sim_run_for(r.world, 50000000);
    assert_true(far_sim_ended(needy->client));
    assert_int_equal(needy->result, 0);
    close_rig(&r);
}


/* Another session of the handle is just wiping what would do. */
static void what_the_handle_itself_is_freeing_is_waited_for(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 525, 1, 2, BY_HAND(0), "2M");
    actor *freer = &r.actors[0], *needy = &r.actors[1];
    const far_geometry *g = &freer->pool->geometry;
    put_now(needy, "first", 1);
    assert_true(fill(freer, "a", FAR_VALUE_MAX) > 2); /* runs of two blocks */
    far_addr run = bucket_of(&r, freer, "a0");
    remove_now(freer, "a0");
    start(freer, "poller", poll_main);
    far_sim_stop_before(freer->client,
                        (far_sim_match){.kind = FAR_SIM_WRITE, .from = run, .to = run + 2 * g->block_bytes});
    for (unsigned i = 0; i < 50 && block_state(&r, freer, run).kind != FAR_BLOCK_WIPING; i++) {
        far_epoch_request(freer->pool);
        far_sim_run_for(r.world, 100000);
    }
    assert_int_equal(far_sim_run_client(freer->client), FAR_SIM_STOPPED);
    start_putting(needy, 1, FAR_VALUE_MAX);
    far_sim_run_for(r.world, 50000000);
    assert_false(far_sim_ended(needy->client));
    far_sim_resume(freer->client);
    far_sim_run_for(r.world, 50000000);
    assert_true(far_sim_ended(needy->client));
    assert_int_equal(needy->result, 0);
    stop_polling(freer);
    check_and_close(&r);
}


/* Its process was stopped in the middle of an operation: the epoch stays where it is, and what is retired with it. */
static void nobody_waits_for_ever_beside_a_pin_that_stays(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 430, 2, 4, 0, "2M");
    actor *stopped = &r.actors[1];
    for (unsigned i = 2; i < 4; i++)
        put_now(&r.actors[i], "first", 1);
    assert_true(fill(&r.actors[0], "a", LARGE) > 2);
    start(stopped, "stopped", hold_main);
    stop_at_point(stopped, "test:pinned");
    remove_now(&r.actors[0], "a0");
    far_sim_limit(r.world, 3000000000);
    for (unsigned i = 0; i < 3; i++) {
        start_putting(&r.actors[2], 1, LARGE);
        assert_int_equal(far_sim_run_client(r.actors[2].client), FAR_SIM_ENDED);
        assert_int_equal(r.actors[2].result, FAR_ERR_NO_MEMORY);
    }
    far_sim_resume(stopped->client);
    run_all(&r);
    put_now(&r.actors[2], "b", LARGE);
    check_and_close(&r);
}


static int stand_still(far_task *t, void *arg) {
    (void)arg;
    far_point(t, "test:still");
    return 0;
}


static void stand_main(void *arg) {
    actor *a = arg;
    a->result = call(a, stand_still, NULL);
}


/* Its thread does not get to run for a while, inside the session, without a pin: what it has freed others of the handle
 * can use all the same. */
static void a_session_whose_thread_stands_still_is_not_waited_for(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 431, 1, 2, 0, "2M");
    actor *slow = &r.actors[0], *needy = &r.actors[1];
    put_now(needy, "first", 1);
    assert_true(fill(slow, "a", LARGE) > 2);
    remove_now(slow, "a0");
    start(slow, "slow", stand_main);
    stop_at_point(slow, "test:still");
    start_putting(needy, 1, LARGE);
    far_sim_limit(r.world, 50000000);
    assert_int_equal(far_sim_run_client(needy->client), FAR_SIM_ENDED);
    assert_int_equal(needy->result, 0);
    far_sim_limit(r.world, 0);
    finish(slow);
    check_and_close(&r);
}


static int ask(far_task *t, far_request *r, void *ctx) {
    (void)t, (void)ctx;
    r->spare = true;
    r->number = far_number_next(r->number);
    return 0;
}


static int keep_asking(far_task *t, void *arg) {
    actor *a = arg;
    far_request made;
    int err = 0;
    while (err == 0 && !a->stop) {
        err = far_request_change(t, ask, NULL, &made);
        far_sleep(t, 40000);
    }
    return err;
}


static void ask_main(void *arg) {
    actor *a = arg;
    a->result = call(a, keep_asking, a);
}


/* In another handle one operation after the other finds no memory. */
static void a_handle_that_is_always_short_starves_nobody(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 440, 2, 2, 0, "2M");
    actor *asker = &r.actors[1];
    start(asker, "asker", ask_main);
    far_sim_run_for(r.world, 1000000);
    start_putting(&r.actors[0], 30, LARGE);
    far_sim_run_for(r.world, 1000000000);
    assert_true(far_sim_ended(r.actors[0].client));
    assert_int_equal(r.actors[0].puts, 30);
    asker->stop = true;
    run_all(&r);
    check_and_close(&r);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handle_is_closed_while_operations_wait_for_memory),
        cmocka_unit_test(a_handle_is_closed_while_a_task_waits_for_epochs),
        cmocka_unit_test(a_handle_is_closed_while_an_operation_wakes_it),
        cmocka_unit_test(what_came_back_after_the_first_attempt_is_seen),
        cmocka_unit_test(verbs_of_an_attempt_that_failed_are_not_posted),
        cmocka_unit_test(nobody_waits_for_ever_for_an_answer),
        cmocka_unit_test(an_answer_that_comes_late_is_waited_for),
        cmocka_unit_test(a_request_that_nobody_heard_was_not_in_vain),
        cmocka_unit_test(a_block_that_is_being_given_up_is_waited_for),
        cmocka_unit_test(who_dies_is_not_waited_for),
        cmocka_unit_test(what_the_handle_itself_is_freeing_is_waited_for),
        cmocka_unit_test(nobody_waits_for_ever_beside_a_pin_that_stays),
        cmocka_unit_test(a_session_whose_thread_stands_still_is_not_waited_for),
        cmocka_unit_test(a_handle_that_is_always_short_starves_nobody),
    };
    return cmocka_run_group_tests_name("shortage_races", tests, NULL, NULL);
}
