/* Interleavings of the out-of-memory path: operations that wait for memory while a handle is closed, is slow, stopped
 * or failed, or is releasing memory at that moment. */
#include "pool_rig.h"
#include "test.h"


static void check_and_close(rig *r) {
    assert_int_equal(far_pool_check(r->actors[0].session, 0, fail_at_problem, NULL), 0);
    close_rig(r);
}


/* ---- Closing ---- */

static void close_pool_main(void *arg) {
    actor *a = arg;
    far_pool_close(a->pool);
}


static void assert_close_ends(rig *r) {
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


/* Two operations wait in line for memory, and their handle is closed. Both wait for epochs, which housekeeping would
 * advance, but housekeeping has ended. The closing thread must advance them instead (far_housekeeping_step in
 * pool/gc/request.c). */
TEST(a_handle_is_closed_while_operations_wait_for_memory) {
    rig r;
    far_op ops[2];
    open_small_pool(&r, 400, 1, 3, 0, "2M");
    for (unsigned i = 1; i < 3; i++)
        put_now(&r.actors[i], "first", 1);
    assert_true(fill(&r.actors[0], "a", LARGE) > 2);
    remove_now(&r.actors[0], "a0");
    for (unsigned i = 0; i < 2; i++)
        submit_put(&r.actors[1 + i], &ops[i], r.actors[1 + i].key, LARGE);
    assert_close_ends(&r);
    /* The second operation in line may fail, because there was memory for one value only. */
    int results[] = {ops[0].result, ops[1].result};
    if (results[0] != 0 && results[1] != 0)
        fail_msg("the operations in line returned %d and %d", results[0], results[1]);
    for (unsigned i = 0; i < 2; i++)
        assert_true(results[i] == 0 || results[i] == FAR_ERR_NO_MEMORY);
}


static void wait_for_epochs(far_task *t, void *arg) {
    *(int *)arg = far_wait_epochs_until(t, 5, FAR_TIME_NEVER);
}


/* A task waits for several epochs, and its handle is closed. The closing thread advances the epochs, and the wait
 * ends. */
TEST(a_handle_is_closed_while_a_task_waits_for_epochs) {
    rig r;
    int result = 77;
    open_small_pool(&r, 401, 1, 1, 0, "2M");
    far_session *s = r.actors[0].session;
    far_session_enter(s);
    assert_non_null(far_task_new(s, FAR_STATS_OTHER, wait_for_epochs, &result));
    far_session_leave(s);
    assert_close_ends(&r);
    assert_int_equal(result, 0);
}


/* A handle is quiescent. A submitted operation is making it active, and at the same time the handle is closed, which
 * needs a pin too. */
TEST(a_handle_is_closed_while_an_operation_wakes_it) {
    rig r;
    far_op op;
    open_small_pool(&r, 402, 1, 2, 0, "2M");
    put_now(&r.actors[0], "first", 1);
    far_sim_sleep(r.world, 50000000);
    assert_false(far_epoch_is_active(r.actors[0].pool));
    submit_put(&r.actors[0], &op, "b", 1);
    assert_close_ends(&r);
    assert_int_equal(op.result, 0);
}


/* An operation found no memory because another handle had it. That handle returns the memory before the operation
 * enters the out-of-memory path. The operation must find it without requesting blocks from all handles. Fails if
 * far_run_out_of_memory does not try the operation again when it gets the latch. */
TEST(memory_freed_after_the_first_attempt_is_found) {
    rig r;
    open_small_pool(&r, 420, 2, 2, 0, "1500K");
    actor *needy = &r.actors[0], *other = &r.actors[1];
    put_now(other, "first", 1);
    world_await_status_record(r.world, needy->pool);
    world_await_status_record(r.world, other->pool);
    assert_true(fill(needy, "a", SMALL) > 300);
    fill_completely(needy, "b", 1);
    fill_completely(needy, "c", SMALL);
    for (unsigned i = 0; i < 4; i++)
        remove_numbered(other, "a", 10 * i); /* objects in blocks of the needy handle */
    for (unsigned i = 0; i < 20 && other->session->memory->retired_bytes > 0; i++) {
        far_epoch_request(other->pool);
        far_sim_sleep(r.world, 200000);
    }
    assert_int_equal(other->session->memory->retired_bytes, 0);
    assert_true(other->pool->store->lists.remote_bytes > 0);
    start_putting(needy, 1, SMALL);
    stop_at_point(needy, "out_of_memory:begin");
    far_sim_sleep(r.world, 100000000); /* the other handle becomes quiescent, so it returns its remote objects */
    assert_int_equal(other->pool->store->lists.remote_bytes, 0);
    uint32_t number = request_now(&r).number;
    finish(needy);
    assert_int_equal(needy->result, 0);
    assert_int_equal(request_now(&r).number, number); /* no handle had to release blocks */
    check_and_close(&r);
}


/* ---- Effects of a failed attempt ---- */

static int post_and_fail(far_task *t, void *arg) {
    static const uint64_t word = 12345;
    (void)arg;
    int err = far_pin_take(t);
    far_write(t, far_addr_make(0, FAR_SUPER_LEAKED), &word, 8);
    return err < 0 ? err : FAR_ERR_NO_MEMORY;
}


static int fail_with_retries(far_task *t, void *arg) {
    int err = post_and_fail(t, arg);
    return err == FAR_ERR_NO_MEMORY ? far_run_out_of_memory(t, post_and_fail, arg) : err;
}


/* An operation has added a verb to its batch and then finds no memory. The verb must not be posted with the verbs of
 * the search for memory, because the operation has no pin any more. Fails without abandon_attempt (out_of_memory.c). */
TEST(verbs_of_an_attempt_that_failed_are_not_posted) {
    rig r;
    open_small_pool(&r, 425, 1, 1, 0, "2M");
    assert_int_equal(far_session_call(r.actors[0].session, FAR_STATS_OTHER, false, fail_with_retries, NULL),
                     FAR_ERR_NO_MEMORY);
    assert_int_equal(word_at(&r, FAR_SUPER_LEAKED), 0);
    check_and_close(&r);
}


/* ---- Slow, stopped and failed handles ---- */

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


/* Fills the pool by the needy handle (the handle that will need memory) while the holder owns one block. Then the
 * holder deletes a value and stops. The holder has no pin but is active, so other handles wait for its acknowledgement.
 */
static void fill_around_a_slow_holder(rig *r, unsigned seed) {
    open_small_pool(r, seed, 2, 2, WITHOUT_HOUSEKEEPING(1), "1500K");
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
    /* Nothing polls the holder any more, so it does not publish that the delete made memory free. The test therefore
     * clears refused_epoch, in which the needy handle remembers that its last search for memory failed, so that this
     * handle searches again. */
    needy->pool->store->out_of_memory.refused_epoch = 0;
    assert_true(far_epoch_is_active(holder->pool));
}


/* The holder was stopped. Its memory is not available, so an operation of the needy handle fails after some time. When
 * the holder continues, the operation succeeds. */
TEST(no_operation_waits_forever_for_an_acknowledgement) {
    rig r;
    fill_around_a_slow_holder(&r, 510);
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


/* The holder is slow. When it finally acknowledges the request for blocks, it has released a block, and the waiting
 * operation succeeds. */
TEST(a_late_acknowledgement_is_waited_for) {
    rig r;
    fill_around_a_slow_holder(&r, 500);
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


static int publish_empty_request(far_task *t, void *arg) {
    (void)arg;
    return far_request_publish_empty(t);
}


/* The needy handle requests blocks. Before the holder observes the request, other handles publish requests of their own
 * several times. The holder acknowledges those and never observes the request for blocks. Such rounds must not count as
 * failed rounds. Fails without read_whether_superseded (out_of_memory.c). */
TEST(a_superseded_request_is_not_a_failed_round) {
    rig r;
    fill_around_a_slow_holder(&r, 507);
    actor *needy = &r.actors[0], *holder = &r.actors[1];
    far_pool *other;
    far_session *asker;
    assert_int_equal(far_pool_open(r.uri, NULL, &other), 0);
    assert_int_equal(far_session_open(other, &asker), 0);
    enum { TIMES = 4 };
    unsigned asked = 0;
    start_putting(needy, 1, HALF);
    for (unsigned i = 0; i < 100000 && !far_sim_ended(needy->client); i++) {
        far_sim_run_for(r.world, 2000);
        bool hidden = asked < TIMES && request_now(&r).release_blocks;
        if (hidden)
            assert_int_equal(far_session_call(asker, FAR_STATS_OTHER, false, publish_empty_request, NULL), 0);
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


/* The holder is about to release a block and stops before the CAS of the block entry. The needy handle must wait for
 * it. */
TEST(a_block_that_is_being_released_is_waited_for) {
    rig r;
    fill_around_a_slow_holder(&r, 505);
    actor *needy = &r.actors[0], *holder = &r.actors[1];
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
    assert_non_null(holder->pool->store->block_task);
    assert_false(far_sim_ended(needy->client));
    far_sim_resume(holder->client);
    far_sim_run_for(r.world, 50000000);
    assert_true(far_sim_ended(needy->client));
    assert_int_equal(needy->result, 0);
    stop_polling(holder);
    close_rig(&r);
}


/* The holder fails while the needy handle waits for its acknowledgement. The wait ends, and the holder's memory is
 * found by a collection. Fails if check_missing (pool/gc/request.c) does not check the liveness of handles. */
TEST(a_failed_handle_is_not_waited_for) {
    rig r;
    fill_around_a_slow_holder(&r, 520);
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


/* A client is stopped while it holds a pin, so the epoch does not advance and retired memory cannot be reused.
 * Operations that need memory fail after some time instead of waiting forever. When the client continues, they succeed.
 */
TEST(no_operation_waits_forever_for_a_stalled_pin) {
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


static int stop_at_test_point(far_task *t, void *arg) {
    (void)arg;
    far_point(t, "test:stopped");
    return 0;
}


static void stop_main(void *arg) {
    actor *a = arg;
    a->result = call(a, stop_at_test_point, NULL);
}


/* A thread of the handle is stopped inside its session without a pin. Memory that this session retired is usable by the
 * other sessions of the handle. */
TEST(a_session_with_a_stopped_thread_is_not_waited_for) {
    rig r;
    open_small_pool(&r, 431, 1, 2, 0, "2M");
    actor *slow = &r.actors[0], *needy = &r.actors[1];
    put_now(needy, "first", 1);
    assert_true(fill(slow, "a", LARGE) > 2);
    remove_now(slow, "a0");
    start(slow, "slow", stop_main);
    stop_at_point(slow, "test:stopped");
    start_putting(needy, 1, LARGE);
    far_sim_limit(r.world, 50000000);
    assert_int_equal(far_sim_run_client(needy->client), FAR_SIM_ENDED);
    assert_int_equal(needy->result, 0);
    far_sim_limit(r.world, 0);
    finish(slow);
    check_and_close(&r);
}


static int set_release_blocks(far_task *t, far_request *r, void *ctx) {
    (void)t, (void)ctx;
    r->release_blocks = true;
    r->number = far_number_next(r->number);
    return 0;
}


static int keep_requesting_blocks(far_task *t, void *arg) {
    actor *a = arg;
    far_request made;
    int err = 0;
    while (err == 0 && !a->stop) {
        err = far_request_change(t, set_release_blocks, NULL, &made);
        far_sleep(t, 40000);
    }
    return err;
}


static void keep_requesting_main(void *arg) {
    actor *a = arg;
    a->result = call(a, keep_requesting_blocks, a);
}


/* Another handle makes requests for blocks without pause. A session that puts values must still succeed. */
TEST(repeated_requests_for_blocks_starve_no_handle) {
    rig r;
    open_small_pool(&r, 440, 2, 2, 0, "2M");
    actor *asker = &r.actors[1];
    start(asker, "asker", keep_requesting_main);
    far_sim_run_for(r.world, 1000000);
    start_putting(&r.actors[0], 30, LARGE);
    far_sim_run_for(r.world, 1000000000);
    assert_true(far_sim_ended(r.actors[0].client));
    assert_int_equal(r.actors[0].puts, 30);
    asker->stop = true;
    run_all(&r);
    check_and_close(&r);
}
