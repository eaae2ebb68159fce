/* Tests of closing a handle. If the epoch advances, the closed handle leaves no memory behind. If another client holds
 * up the epoch, a later collection finds the remaining memory. */
#include "test.h"
#include "../support/world.h"
#include "pool/gc/request.h"
#include "pool/alloc/store.h"

#include <stdio.h>
#include <string.h>


typedef struct visitor {
    far_pool *pool;
    far_session *sessions[2];
    far_index *index;
    const char *kind;
    bool create, drop;
    int result;
    far_sim_client *client;
} visitor;


static void open_pool(unsigned serial, const char *more, far_pool **pool) {
    char uri[128];
    snprintf(uri, sizeof(uri), "sim:seed=%u,name=close%u,size=16M,limit=100s%s", serial, serial, more);
    assert_int_equal(far_pool_open(uri, NULL, pool), 0);
}


static int put_and_delete(far_session *s, far_index *index, unsigned first, unsigned count) {
    static const char value[9000];
    char key[16];
    int result = 0;
    for (unsigned i = first; i < first + count && result == 0; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        result = far_put(s, index, key, strlen(key), value, i * 37 % sizeof(value));
        if (result == 0 && i % 3 == 0)
            result = far_put(s, index, key, strlen(key), value, i * 7 % 100);
        if (result == 0 && i % 3 != 0)
            result = far_delete(s, index, key, strlen(key));
        if (result == FAR_ERR_NOT_FOUND) /* The key may be absent, because other handles delete the same keys. */
            result = 0;
    }
    return result;
}


/* Works with two sessions, then closes everything: one session before the handle, and the other session after the
 * handle. */
static void run_visitor(void *arg) {
    visitor *v = arg;
    for (unsigned i = 0; i < 2 && v->result == 0; i++)
        v->result = far_session_open(v->pool, &v->sessions[i]);
    if (v->result == 0)
        v->result = v->create ? far_index_create(v->sessions[0], "x", v->kind, NULL, &v->index)
                              : far_index_open(v->sessions[0], "x", &v->index);
    for (unsigned i = 0; i < 4 && v->result == 0; i++)
        v->result = put_and_delete(v->sessions[i % 2], v->index, i * 100, 100);
    far_index_close(v->index);
    if (v->result == 0 && v->drop)
        v->result = far_index_drop(v->sessions[0], "x");
    far_session_close(v->sessions[0]);
    far_pool_close(v->pool);
    far_session_close(v->sessions[1]);
}


static void wait_for_collections(far_sim_world *world) {
    for (unsigned i = 0; i < 200 && world_word(world, FAR_SUPER_LOSSES) != world_word(world, FAR_SUPER_LOSSES_COLLECTED); i++)
        far_sim_sleep(world, 10000000);
    assert_int_equal(world_word(world, FAR_SUPER_LOSSES), world_word(world, FAR_SUPER_LOSSES_COLLECTED));
    far_sim_sleep(world, 50000000);
}


static far_pool_usage check_and_measure(far_session *s) {
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_check(s, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(s, &usage), 0);
    return usage;
}


/* Checks that a visitor, which works and closes its handle, leaves no memory behind. A second handle, which is
 * quiescent, keeps the pool in existence. */
static void check_nothing_is_left_of(const char *kind, unsigned serial, const char *more) {
    far_pool *sleeper;
    far_session *s;
    far_pool_usage usage[2];
    open_pool(serial, more, &sleeper);
    assert_int_equal(far_session_open(sleeper, &s), 0);
    for (unsigned i = 0; i < 2; i++) {
        visitor v = {.kind = kind, .create = true, .drop = true};
        far_sim_sleep(far_sim_world_of(sleeper->fabric), 50000000);
        assert_false(far_epoch_is_active(sleeper));
        open_pool(serial, more, &v.pool);
        run_visitor(&v);
        assert_int_equal(v.result, 0);
        usage[i] = check_and_measure(s);
        assert_int_equal(usage[i].leaked, 0);
        assert_int_equal(usage[i].retired, 0);
        assert_int_equal(usage[i].sessions, 2);
    }
    /* The visitor dropped its index, so the memory of the index is not in use any more. */
    assert_int_equal(usage[1].used, usage[0].used);
    assert_int_equal(far_sim_watch_errors(far_sim_world_of(sleeper->fabric)), 0);
    far_session_close(s);
    far_pool_close(sleeper);
}


/* A handle that worked and closes while the only other handle is quiescent leaves no leaked and no retired memory. Runs
 * for each kind, without and with faults. */
TEST(a_handle_closed_while_no_other_is_active_leaves_nothing_behind) {
    static const char *const kinds[] = {"toy", "dart", "smart", "shard", "dolphin"};
    for (unsigned i = 0; i < 5; i++) {
        check_nothing_is_left_of(kinds[i], 10 + i, "");
        check_nothing_is_left_of(kinds[i], 20 + i, ",memory_nodes=2,faults=all");
    }
}


/* Four handles retire objects that the others allocated, and close one after the other while the rest is working. After
 * pending collections, nothing is leaked. */
TEST(handles_closed_concurrently_with_busy_ones_leave_nothing_behind) {
    for (unsigned serial = 30; serial < 36; serial++) {
        far_pool *pool;
        far_session *s;
        far_index *index;
        visitor v[4] = {{0}};
        open_pool(serial, ",faults=all", &pool);
        assert_int_equal(far_session_open(pool, &s), 0);
        assert_int_equal(far_index_create(s, "x", serial % 2 ? "toy" : "dart", NULL, &index), 0);
        for (unsigned i = 0; i < 4; i++)
            open_pool(serial, ",faults=all", &v[i].pool);
        for (unsigned i = 0; i < 4; i++)
            v[i].client = far_sim_start(v[i].pool->fabric, "visitor", run_visitor, &v[i]);
        far_sim_world *world = far_sim_world_of(pool->fabric);
        assert_int_equal(far_sim_run(world), FAR_SIM_ENDED);
        for (unsigned i = 0; i < 4; i++)
            assert_int_equal(v[i].result, 0);
        /* A handle that stalls holds up the epoch, so only a later collection finds the objects that other handles
         * retired. */
        wait_for_collections(world);
        far_pool_usage usage = check_and_measure(s);
        assert_int_equal(usage.leaked, 0);
        assert_int_equal(usage.sessions, 2);
        assert_int_equal(far_sim_watch_errors(world), 0);
        far_index_close(index);
        far_session_close(s);
        far_pool_close(pool);
    }
}


/* ---- A client that holds its pin ---- */

static int hold_pin(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_point(t, "close:pinned");
    far_pin_drop(t);
    return err;
}


static void hold_main(void *arg) {
    visitor *v = arg;
    v->result = far_session_call(v->sessions[0], FAR_STATS_OTHER, false, hold_pin, NULL);
}


/* Client A holds a pin and is stopped. B closes its handle: the close returns although the epoch does not advance, and
 * increments the loss counter. After A continues, a collection finds the objects that B had retired. Fails without
 * far_collection_request in far_memory_give_back_all. */
TEST(a_close_does_not_wait_for_a_stopped_client) {
    visitor holder = {.result = 77}, v = {.kind = "toy", .create = true};
    open_pool(40, "", &holder.pool);
    assert_int_equal(far_session_open(holder.pool, &holder.sessions[0]), 0);
    far_sim_world *world = far_sim_world_of(holder.pool->fabric);
    holder.client = far_sim_start(holder.pool->fabric, "holder", hold_main, &holder);
    far_sim_stop_before(holder.client, (far_sim_match){.point = "close:pinned"});
    assert_int_equal(far_sim_run_client(holder.client), FAR_SIM_STOPPED);

    open_pool(40, "", &v.pool);
    run_visitor(&v);
    assert_int_equal(v.result, 0);
    assert_true(world_word(world, FAR_SUPER_LOSSES) > world_word(world, FAR_SUPER_LOSSES_COLLECTED));
    far_sim_resume(holder.client);
    assert_int_equal(far_sim_run_client(holder.client), FAR_SIM_ENDED);
    assert_int_equal(holder.result, 0);
    far_session *s = holder.sessions[0];
    wait_for_collections(world);
    far_pool_usage usage = check_and_measure(s);
    assert_int_equal(usage.leaked, 0);
    assert_int_equal(usage.sessions, 2);
    assert_int_equal(far_sim_watch_errors(world), 0);
    far_session_close(s);
    far_pool_close(holder.pool);
}


/* ---- A collector that failed ---- */

static void repair_main(void *arg) {
    visitor *v = arg;
    v->result = far_pool_check(v->sessions[0], 1, fail_at_problem, NULL);
}


static void close_main(void *arg) {
    visitor *v = arg;
    far_session_close(v->sessions[0]);
    far_pool_close(v->pool);
}


/* Client A fails during the mark phase of its collection, so no handle hands out remote objects until another
 * collection runs. B drops an index and closes its handle: the close returns in bounded time, and a later check finds
 * nothing leaked. */
TEST(a_close_does_not_wait_for_a_collection_of_a_failed_client) {
    static const char value[60000];
    visitor keeper = {.result = 77}, dead = {.result = 77}, v = {.kind = "toy"};
    visitor *all[] = {&keeper, &dead, &v};
    for (unsigned i = 0; i < 3; i++) {
        open_pool(50, "", &all[i]->pool);
        assert_int_equal(far_session_open(all[i]->pool, &all[i]->sessions[0]), 0);
    }
    far_sim_world *world = far_sim_world_of(v.pool->fabric);
    far_session *s = v.sessions[0];
    assert_int_equal(far_index_create(s, "x", "toy", NULL, &v.index), 0);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(far_put(s, v.index, &i, sizeof(i), value, sizeof(value)), 0);

    dead.client = far_sim_start(dead.pool->fabric, "sweeper", repair_main, &dead);
    far_sim_stop_before(dead.client, (far_sim_match){.point = "collect:mark_phase"});
    assert_int_equal(far_sim_run_client(dead.client), FAR_SIM_STOPPED);
    far_sim_kill(dead.pool->fabric);

    far_index_close(v.index);
    assert_int_equal(far_index_drop(s, "x"), 0);
    far_sim_limit(world, 1000000000);
    v.client = far_sim_start(v.pool->fabric, "closer", close_main, &v);
    assert_int_equal(far_sim_run_client(v.client), FAR_SIM_ENDED);
    assert_int_equal(far_pool_check(keeper.sessions[0], 1, fail_at_problem, NULL), 0);
    assert_int_equal(check_and_measure(keeper.sessions[0]).leaked, 0);
    far_session_close(keeper.sessions[0]);
    far_pool_close(keeper.pool);
    far_session_close(dead.sessions[0]);
    far_pool_close(dead.pool);
}


/* ---- Concurrent closes ---- */

static void create_main(void *arg) {
    visitor *v = arg;
    v->result = far_index_create(v->sessions[0], "x", "dart", NULL, &v->index);
}


static void close_pool_main(void *arg) {
    visitor *v = arg;
    far_pool_close(v->pool);
}


static void close_second_session_main(void *arg) {
    visitor *v = arg;
    far_session_close(v->sessions[1]);
}


/* 1. A call in session 1 is in progress. 2. One thread closes the handle, which waits for the call. 3. Another thread
 *    closes session 2, which waits for the handle.
 * 4. The call ends, and both closes complete. Fails if the close of the handle waits for the close of session 2. */
TEST(a_session_can_be_closed_while_the_handle_closes_during_a_call) {
    visitor keeper = {0}, v = {.result = 77};
    open_pool(51, "", &keeper.pool);
    open_pool(51, "", &v.pool);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(far_session_open(v.pool, &v.sessions[i]), 0);
    assert_int_equal(far_session_open(keeper.pool, &keeper.sessions[0]), 0);
    far_sim_world *world = far_sim_world_of(keeper.pool->fabric);
    far_sim_client *caller = far_sim_start(keeper.pool->fabric, "caller", create_main, &v);
    far_sim_stop_before(caller, (far_sim_match){.point = "catalog:publish"});
    assert_int_equal(far_sim_run_client(caller), FAR_SIM_STOPPED);
    far_sim_client *closers[2];
    closers[0] = far_sim_start(keeper.pool->fabric, "pool", close_pool_main, &v);
    far_sim_run_for(world, 1000000);
    closers[1] = far_sim_start(keeper.pool->fabric, "session", close_second_session_main, &v);
    far_sim_run_for(world, 1000000);
    assert_false(far_sim_ended(closers[0]) || far_sim_ended(closers[1]));
    far_sim_resume(caller);
    far_sim_limit(world, 1000000000);
    assert_int_equal(far_sim_run(world), FAR_SIM_ENDED);
    assert_int_equal(v.result, 0);
    far_index_close(v.index);
    far_session_close(v.sessions[0]);
    far_pool_usage usage = check_and_measure(keeper.sessions[0]);
    assert_int_equal(usage.leaked, 0);
    assert_int_equal(usage.sessions, 2);
    far_session_close(keeper.sessions[0]);
    far_pool_close(keeper.pool);
}


static void poll_main(void *arg) {
    visitor *v = arg;
    v->result = far_pool_poll(v->pool);
}


/* In a handle without a housekeeping thread, a thread that polls runs an operation of a session. Another thread closes
 * that session meanwhile. The close waits until the operation has ended. Fails if the waiting close does not pause,
 * because the polling thread would never run. */
TEST(a_session_is_closed_while_another_thread_drives_it) {
    visitor v = {.result = 77};
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    assert_int_equal(far_pool_open("sim:seed=52,name=close52,size=16M,limit=1s", &options, &v.pool), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(far_session_open(v.pool, &v.sessions[i]), 0);
    assert_int_equal(far_index_create(v.sessions[0], "x", "toy", NULL, &v.index), 0);
    far_op op = {.kind = FAR_OP_PUT, .index = v.index, .key = "k", .key_len = 1, .value = "v", .value_len = 1};
    assert_int_equal(far_submit(v.sessions[1], &(far_op *){&op}, 1), 1);
    far_sim_world *world = far_sim_world_of(v.pool->fabric);
    far_sim_client *driver = far_sim_start(v.pool->fabric, "driver", poll_main, &v);
    far_sim_stop_before(driver, (far_sim_match){.label = "put"});
    assert_int_equal(far_sim_run_client(driver), FAR_SIM_STOPPED);
    far_sim_client *closer = far_sim_start(v.pool->fabric, "closer", close_second_session_main, &v);
    far_sim_run_for(world, 100000);
    assert_false(far_sim_ended(closer));
    far_sim_resume(driver);
    assert_int_equal(far_sim_run(world), FAR_SIM_ENDED);
    assert_int_equal(v.result, 0);
    assert_int_equal(op.result, 0);
    far_index_close(v.index);
    far_session_close(v.sessions[0]);
    far_pool_close(v.pool);
}


/* ---- Closes during a collection ---- */

static int count_problem(void *ctx, const char *what) {
    (void)ctx, (void)what;
    return 0;
}


static void *check_thread(void *arg) {
    visitor *v = arg;
    v->result = far_pool_check(v->sessions[0], 0, count_problem, NULL);
    return NULL;
}


static bool collection_is_running(far_pool *pool) {
    pthread_mutex_lock(&pool->store->lock);
    bool in = far_sweep_is_pending(pool->store);
    pthread_mutex_unlock(&pool->store->lock);
    return in;
}


/* A session that has session-owned objects is closed while another handle runs a collection. Its objects go back with
 * it, and nothing is leaked. */
TEST(a_session_with_session_owned_objects_is_closed_during_a_collection) {
    visitor sweeper = {.result = 77}, v = {0};
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    assert_int_equal(far_pool_open("local:16M?name=close-kept", NULL, &sweeper.pool), 0);
    assert_int_equal(far_session_open(sweeper.pool, &sweeper.sessions[0]), 0);
    assert_int_equal(far_pool_open("local:16M?name=close-kept", &options, &v.pool), 0);
    assert_int_equal(far_session_open(v.pool, &v.sessions[0]), 0);
    assert_int_equal(far_index_create(v.sessions[0], "x", "toy", NULL, &v.index), 0);
    assert_int_equal(put_and_delete(v.sessions[0], v.index, 0, 10), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, check_thread, &sweeper), 0);
    while (!collection_is_running(v.pool)) {
        assert_int_equal(put_and_delete(v.sessions[0], v.index, 0, 1), 0);
        assert_int_equal(far_pool_poll(v.pool), 0);
    }
    far_session_close(v.sessions[0]);
    far_index_close(v.index);
    far_pool_close(v.pool);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(sweeper.result, 0);
    assert_int_equal(check_and_measure(sweeper.sessions[0]).leaked, 0);
    far_session_close(sweeper.sessions[0]);
    far_pool_close(sweeper.pool);
}


/* ---- Slabs of dropped indexes ---- */

/* Handle B owns slabs of an index and is quiescent. A drops the index and frees the slabs that have no owner. B has not
 * observed the drop when it closes; it still frees its slabs of that index. */
TEST(slabs_of_a_dropped_index_are_freed_when_their_owner_closes) {
    for (unsigned i = 0; i < 2; i++) {
        visitor dropper = {0}, holder = {0};
        open_pool(60 + i, "", &dropper.pool);
        assert_int_equal(far_session_open(dropper.pool, &dropper.sessions[0]), 0);
        far_pool_options options = FAR_POOL_OPTIONS_INIT;
        options.no_thread = 1; /* the handle does nothing unless the test polls it */
        char uri[64];
        snprintf(uri, sizeof(uri), "sim:seed=%u,name=close%u,size=16M,limit=100s", 60 + i, 60 + i);
        assert_int_equal(far_pool_open(uri, &options, &holder.pool), 0);
        assert_int_equal(far_session_open(holder.pool, &holder.sessions[0]), 0);
        assert_int_equal(far_index_create(holder.sessions[0], "x", "toy", NULL, &holder.index), 0);
        assert_int_equal(put_and_delete(holder.sessions[0], holder.index, 0, 100), 0);
        far_index_close(holder.index);
        while (far_epoch_is_active(holder.pool)) {
            far_sim_sleep(far_sim_world_of(dropper.pool->fabric), 100000);
            assert_int_equal(far_pool_poll(holder.pool), 0);
        }

        assert_int_equal(far_index_drop(dropper.sessions[0], "x"), 0);
        far_sim_sleep(far_sim_world_of(dropper.pool->fabric), 50000000);
        if (i == 0)
            far_session_close(holder.sessions[0]);
        far_pool_close(holder.pool);
        if (i == 1)
            far_session_close(holder.sessions[0]);
        assert_int_equal(check_and_measure(dropper.sessions[0]).leaked, 0);
        assert_int_equal(far_sim_watch_errors(far_sim_world_of(dropper.pool->fabric)), 0);
        far_session_close(dropper.sessions[0]);
        far_pool_close(dropper.pool);
    }
}


/* Makes the creation of an index fail and closes the handle `wait` ns later. Housekeeping frees the objects of the
 * unsuccessful creation as soon as their epochs have passed. The handle closes before that, at the same time, or later.
 */
static void check_failed_creation_leaves_nothing(unsigned serial, uint64_t wait) {
    visitor winner = {0}, loser = {.result = 77};
    open_pool(serial, "", &winner.pool);
    open_pool(serial, "", &loser.pool);
    assert_int_equal(far_session_open(winner.pool, &winner.sessions[0]), 0);
    assert_int_equal(far_session_open(loser.pool, &loser.sessions[0]), 0);
    far_sim_world *world = far_sim_world_of(winner.pool->fabric);
    loser.client = far_sim_start(loser.pool->fabric, "loser", create_main, &loser);
    far_sim_stop_before(loser.client, (far_sim_match){.point = "catalog:publish"});
    assert_int_equal(far_sim_run_client(loser.client), FAR_SIM_STOPPED);
    assert_int_equal(far_index_create(winner.sessions[0], "x", "dart", NULL, &winner.index), 0);
    far_sim_resume(loser.client);
    assert_int_equal(far_sim_run_client(loser.client), FAR_SIM_ENDED);
    assert_int_equal(loser.result, FAR_ERR_EXISTS);

    far_sim_sleep(world, wait);
    loser.client = far_sim_start(winner.pool->fabric, "closer", close_main, &loser);
    far_sim_stop_before(loser.client, (far_sim_match){.point = "memory:release_blocks"});
    assert_int_equal(far_sim_run_client(loser.client), FAR_SIM_STOPPED);
    far_sim_sleep(world, 50000000);
    far_sim_resume(loser.client);
    assert_int_equal(far_sim_run_client(loser.client), FAR_SIM_ENDED);

    if (check_and_measure(winner.sessions[0]).leaked != 0)
        fail_msg("closed %u us after the creation: something leaked", (unsigned)(wait / 1000));
    assert_int_equal(far_sim_watch_errors(world), 0);
    far_index_close(winner.index);
    far_session_close(winner.sessions[0]);
    far_pool_close(winner.pool);
}


/* Handle A builds an index, but another handle publishes an index of the same name first. A closes at 60 different
 * times after its creation failed; nothing is leaked. */
TEST(a_handle_closed_after_a_failed_creation_leaves_nothing_behind) {
    for (unsigned i = 0; i < 60; i++)
        check_failed_creation_leaves_nothing(100 + i, i * 50000);
}
