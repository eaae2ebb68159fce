/* The out-of-memory path together with collections. Collections do not make free memory unusable, and memory that
 * failed clients left is found when memory is short. */
#include "pool_rig.h"
#include "test.h"


/* Leaves three quarters of the objects in the owner's blocks free, and stops the collection of another handle in its
 * mark phase. */
static void stop_in_mark_phase(rig *r, unsigned seed) {
    open_small_pool(r, seed, 3, 3, 0, "1500K");
    put_now(&r->actors[2], "first", 1);
    actor *owner = &r->actors[0], *collector = &r->actors[1];
    unsigned count = fill(owner, "a", SMALL);
    for (unsigned i = 0; i < count; i++)
        if (i % 4 != 0)
            remove_numbered(owner, "a", i);
    pass_epochs(owner, 6);
    start_sweep(collector);
    stop_at_point(collector, "collect:mark_phase");
}


/* The owner puts 100 values during the mark phase of another handle's collection. It uses its own free objects and
 * makes no request. The collection then finds no leak. */
TEST(free_objects_are_handed_out_during_a_collection) {
    rig r;
    stop_in_mark_phase(&r, 450);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    uint32_t number = request_now(&r).number;
    start_putting(owner, 100, SMALL);
    snprintf(owner->key, sizeof(owner->key), "b");
    assert_int_equal(far_sim_run_client(owner->client), FAR_SIM_ENDED);
    assert_int_equal(owner->puts, 100);
    assert_int_equal(request_now(&r).number, number);
    finish(collector);
    assert_int_equal(collector->result, 0);
    assert_int_equal(collector->swept.leaked_bytes, 0);
    assert_nothing_lost(&r, owner);
    close_rig(&r);
}


/* During the mark phase of a collection, a third handle requests blocks and gets memory that the owner has free. It
 * need not wait until the collection ends, and the request does not change the fields of the collection in the request
 * word. */
TEST(requests_for_blocks_are_served_during_a_collection) {
    rig r;
    stop_in_mark_phase(&r, 451);
    actor *owner = &r.actors[0], *collector = &r.actors[1], *needy = &r.actors[2];
    far_request before = request_now(&r);
    char key[8];
    far_sim_limit(r.world, 1000000000);
    for (unsigned i = 0; i < 100; i++) {
        put_now(owner, "a0", SMALL); /* The put keeps the owner active. */
        snprintf(key, sizeof(key), "c%u", i);
        put_now(needy, key, SMALL);
    }
    far_sim_limit(r.world, 0);
    far_request after = request_now(&r);
    assert_true(after.release_blocks && far_number_is_newer(after.number, before.number));
    assert_true(after.walk && after.collection == before.collection && after.collector == before.collector);
    finish(collector);
    assert_int_equal(collector->result, 0);
    assert_nothing_lost(&r, owner);
    close_rig(&r);
}


/* A collection is requested, and the handle that runs it was stopped. An operation without memory waits for it only for
 * a limited time (wait_for_collection in out_of_memory.c). */
TEST(no_operation_waits_forever_for_a_stopped_collector) {
    rig r;
    open_small_pool(&r, 452, 2, 2, 0, "1500K");
    actor *needy = &r.actors[0], *collector = &r.actors[1];
    put_now(collector, "first", 1);
    fill(needy, "a", SMALL);
    fill(needy, "b", 1);
    start_sweep(collector);
    stop_at_point(collector, "collect:mark_phase");
    memcpy(bytes_at(&r, FAR_SUPER_LOSSES), &(uint64_t){word_at(&r, FAR_SUPER_LOSSES) + 1}, 8);
    for (unsigned i = 0; i < 3; i++) {
        start_putting(needy, 1, LARGE);
        far_sim_limit(r.world, 5000000000);
        assert_int_equal(far_sim_run_client(needy->client), FAR_SIM_ENDED);
        assert_int_equal(needy->result, FAR_ERR_NO_MEMORY);
    }
    far_sim_limit(r.world, 0);
    finish(collector);
    close_rig(&r);
}


/* The needy handle runs the collection itself, and another handle, which was stopped in the middle of an operation,
 * does not acknowledge it. The operation fails after a limited time. */
TEST(no_collector_waits_forever_for_a_stopped_handle) {
    rig r;
    open_small_pool(&r, 457, 2, 2, WITHOUT_HOUSEKEEPING(0) | WITHOUT_HOUSEKEEPING(1), "1500K");
    actor *needy = &r.actors[0], *stopped = &r.actors[1];
    put_now(stopped, "first", 1);
    fill(needy, "a", SMALL);
    fill(needy, "b", 1);
    start(stopped, "stopped", hold_main);
    stop_at_point(stopped, "test:pinned");
    memcpy(bytes_at(&r, FAR_SUPER_LOSSES), &(uint64_t){word_at(&r, FAR_SUPER_LOSSES) + 1}, 8);
    for (unsigned i = 0; i < 3; i++) {
        start_putting(needy, 1, LARGE);
        far_sim_limit(r.world, 5000000000);
        assert_int_equal(far_sim_run_client(needy->client), FAR_SIM_ENDED);
        assert_int_equal(needy->result, FAR_ERR_NO_MEMORY);
    }
    far_sim_limit(r.world, 0);
    finish(stopped);
    assert_nothing_leaked_without_repair(&r, needy);
    close_rig(&r);
}


#define LEAKED 32768 /* the size of the bucket of a pair with a value of LARGE bytes */

static int leak_large(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, LEAKED, FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


/* A handle has found that the pool is exhausted. Then a collection is requested because memory has leaked. The next
 * operation must run it and find memory. Fails if check_refused does not compare
 * the loss counters. */
TEST(a_new_leak_restarts_the_search_for_memory) {
    rig r;
    open_small_pool(&r, 458, 1, 1, WITHOUT_HOUSEKEEPING(0), "1500K");
    actor *needy = &r.actors[0];
    put_now(needy, "first", 1);
    assert_int_equal(call(needy, leak_large, needy), 0);
    fill(needy, "a", LARGE);
    assert_true(needy->pool->store->out_of_memory.refused_epoch != 0);
    memcpy(bytes_at(&r, FAR_SUPER_LOSSES), &(uint64_t){word_at(&r, FAR_SUPER_LOSSES) + 1}, 8);
    put_now(needy, "c", LARGE);
    assert_nothing_lost(&r, needy);
    close_rig(&r);
}


/* An index is damaged, so every collection fails. Housekeeping must increase the pauses between the collections. */
TEST(a_failing_collection_is_repeated_rarely) {
    rig r;
    far_index *broken;
    open_small_pool(&r, 453, 1, 1, 0, "1500K");
    actor *needy = &r.actors[0];
    assert_int_equal(far_index_create(needy->session, "y", "toy", "slots=64", &broken), 0);
    far_addr descriptor = broken->descriptor;
    far_index_close(broken);
    fill(needy, "a", SMALL);
    memset(bytes_at(&r, descriptor), 0x55, 64);
    memcpy(bytes_at(&r, FAR_SUPER_LOSSES), &(uint64_t){1}, 8);
    far_sim_limit(r.world, 0);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(put(needy, "c", LARGE), FAR_ERR_NO_MEMORY);
    far_sim_sleep(r.world, 1000000000);
    uint32_t first = request_now(&r).collection;
    assert_true(first > 0);
    far_sim_sleep(r.world, 10000000000); /* 10 s are 500 pauses of the usual length between two collections. */
    assert_true(request_now(&r).collection - first < 16);
    far_index_close(needy->index);
    far_session_close(needy->session);
    far_pool_close(needy->pool);
}


/* A handle fails that had unlinked objects in blocks of the needy handle. When memory is short, these objects are found
 * by a collection. If the failed handle was quiescent, it does not hold up the epoch, and housekeeping has to notice
 * its failure. */
static void delete_and_fail(unsigned seed, unsigned values, bool asleep) {
    rig r;
    open_small_pool(&r, seed, 2, 2, 0, "1500K");
    actor *needy = &r.actors[0], *failed = &r.actors[1];
    put_now(failed, "first", 1);
    assert_true(fill(needy, "a", SMALL) > 300);
    for (unsigned i = 0; i < values; i++)
        remove_numbered(failed, "a", i);
    if (asleep)
        far_sim_sleep(r.world, 200000000);
    assert_int_equal(far_epoch_is_active(failed->pool), !asleep);
    far_sim_kill(failed->pool->fabric);
    if (asleep) /* The failed handle owned a block with some free objects, which this put uses. */
        put_now(needy, "c", SMALL);
    if (fill(needy, "b", SMALL) == 0)
        fail_msg("the memory of %u values that a failed handle (%s) deleted was not found", values,
                 asleep ? "quiescent" : "active");
    assert_nothing_leaked_without_repair(&r, needy);
    close_rig(&r);
}


/* The handle was active when it failed, or quiescent; see delete_and_fail. */
TEST(objects_unlinked_by_a_failed_handle_are_found) {
    delete_and_fail(454, 200, false);
    delete_and_fail(455, 10, true);
}


/* A repair, with its collection, needs no far memory, so it works in a full pool. */
TEST(a_repair_works_in_a_full_pool) {
    rig r;
    open_small_pool(&r, 456, 3, 3, 0, "1500K");
    actor *a = &r.actors[0], *b = &r.actors[1], *failed = &r.actors[2];
    put_now(b, "first", 1);
    put_now(failed, "first", 1);
    assert_true(fill(failed, "d", SMALL) > 100);
    fill(a, "a", SMALL);
    fill(a, "b", 1);
    fill(b, "b", 1);
    for (unsigned i = 0; i < 50; i++)
        remove_numbered(failed, "d", i);
    far_sim_kill(failed->pool->fabric);
    assert_int_equal(far_pool_check(b->session, 1, fail_at_problem, NULL), 0);
    for (unsigned i = 0; i < 40; i++) {
        char key[8];
        snprintf(key, sizeof(key), "c%u", i);
        put_now(b, key, SMALL);
    }
    assert_nothing_lost(&r, b);
    close_rig(&r);
}
