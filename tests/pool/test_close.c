/* What a handle leaves behind when it is closed: nothing, as long as the epoch moves; what others hold back is found by
 * the next sweep. */
#include "../support/world.h"
#include "pool/request.h"
#include "pool/store.h"

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


static int churn(far_session *s, far_index *index, unsigned first, unsigned count) {
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
        if (result == FAR_ERR_NOT_FOUND) /* others work on the same keys */
            result = 0;
    }
    return result;
}


/* Works with two sessions, of which one is closed before and one with the handle, and leaves nothing open. */
static void visit(void *arg) {
    visitor *v = arg;
    for (unsigned i = 0; i < 2 && v->result == 0; i++)
        v->result = far_session_open(v->pool, &v->sessions[i]);
    if (v->result == 0)
        v->result = v->create ? far_index_create(v->sessions[0], "x", v->kind, NULL, &v->index)
                              : far_index_open(v->sessions[0], "x", &v->index);
    for (unsigned i = 0; i < 4 && v->result == 0; i++)
        v->result = churn(v->sessions[i % 2], v->index, i * 100, 100);
    far_index_close(v->index);
    if (v->result == 0 && v->drop)
        v->result = far_index_drop(v->sessions[0], "x");
    far_session_close(v->sessions[0]);
    far_pool_close(v->pool);
    far_session_close(v->sessions[1]);
}


static void wait_for_sweeps(far_sim_world *world) {
    for (unsigned i = 0; i < 200 && world_word(world, FAR_SUPER_WANTED) != world_word(world, FAR_SUPER_SWEPT); i++)
        far_sim_sleep(world, 10000000);
    assert_int_equal(world_word(world, FAR_SUPER_WANTED), world_word(world, FAR_SUPER_SWEPT));
    far_sim_sleep(world, 50000000);
}


static far_pool_usage check(far_session *s) {
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_check(s, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(s, &usage), 0);
    return usage;
}


/* The other handle, without which the pool would be gone, sleeps. */
static void nothing_is_left_of(const char *kind, unsigned serial, const char *more) {
    far_pool *sleeper;
    far_session *s;
    far_pool_usage usage[2];
    open_pool(serial, more, &sleeper);
    assert_int_equal(far_session_open(sleeper, &s), 0);
    for (unsigned i = 0; i < 2; i++) {
        visitor v = {.kind = kind, .create = true, .drop = true};
        far_sim_sleep(far_sim_world_of(sleeper->fabric), 50000000);
        assert_false(far_epoch_is_awake(sleeper));
        open_pool(serial, more, &v.pool);
        visit(&v);
        assert_int_equal(v.result, 0);
        usage[i] = check(s);
        assert_int_equal(usage[i].leaked, 0);
        assert_int_equal(usage[i].retired, 0);
        assert_int_equal(usage[i].sessions, 2);
    }
    assert_int_equal(usage[1].used, usage[0].used); /* the index was dropped */
    assert_int_equal(far_sim_watch_errors(far_sim_world_of(sleeper->fabric)), 0);
    far_session_close(s);
    far_pool_close(sleeper);
}


static void a_handle_that_is_closed_with_nobody_else_awake_leaves_nothing_behind(void **state) {
    (void)state;
    static const char *const kinds[] = {"toy", "dart", "smart", "shard", "dolphin"};
    for (unsigned i = 0; i < 5; i++) {
        nothing_is_left_of(kinds[i], 10 + i, "");
        nothing_is_left_of(kinds[i], 20 + i, ",memory_nodes=2,faults=all");
    }
}


/* They retire what the others allocated, and close one after the other. */
static void handles_that_are_closed_beside_busy_ones_leave_nothing_behind(void **state) {
    (void)state;
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
            v[i].client = far_sim_start(v[i].pool->fabric, "visitor", visit, &v[i]);
        far_sim_world *world = far_sim_world_of(pool->fabric);
        assert_int_equal(far_sim_run(world), FAR_SIM_ENDED);
        for (unsigned i = 0; i < 4; i++)
            assert_int_equal(v[i].result, 0);
        wait_for_sweeps(world); /* one that stalls holds up the epoch: what others had retired is found later */
        far_pool_usage usage = check(s);
        assert_int_equal(usage.leaked, 0);
        assert_int_equal(usage.sessions, 2);
        assert_int_equal(far_sim_watch_errors(world), 0);
        far_index_close(index);
        far_session_close(s);
        far_pool_close(pool);
    }
}


/* ---- A pin that is never dropped ---- */

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


/* The close does not wait for ever. What it had retired is nobody's then: a sweep is wanted, and finds it when the
 * epoch moves again. */
static void close_beside_stopped(void **state) {
    (void)state;
    visitor holder = {.result = 77}, v = {.kind = "toy", .create = true};
    open_pool(40, "", &holder.pool);
    assert_int_equal(far_session_open(holder.pool, &holder.sessions[0]), 0);
    far_sim_world *world = far_sim_world_of(holder.pool->fabric);
    holder.client = far_sim_start(holder.pool->fabric, "holder", hold_main, &holder);
    far_sim_stop_before(holder.client, (far_sim_match){.point = "close:pinned"});
    assert_int_equal(far_sim_run_client(holder.client), FAR_SIM_STOPPED);

    open_pool(40, "", &v.pool);
    visit(&v);
    assert_int_equal(v.result, 0);
    assert_true(world_word(world, FAR_SUPER_WANTED) > world_word(world, FAR_SUPER_SWEPT));
    far_sim_resume(holder.client);
    assert_int_equal(far_sim_run_client(holder.client), FAR_SIM_ENDED);
    assert_int_equal(holder.result, 0);
    far_session *s = holder.sessions[0];
    wait_for_sweeps(world);
    far_pool_usage usage = check(s);
    assert_int_equal(usage.leaked, 0);
    assert_int_equal(usage.sessions, 2);
    assert_int_equal(far_sim_watch_errors(world), 0);
    far_session_close(s);
    far_pool_close(holder.pool);
}


/* ---- A sweep whose owner died ---- */

static void sweep_main(void *arg) {
    visitor *v = arg;
    v->result = far_pool_check(v->sessions[0], 1, fail_at_problem, NULL);
}


static void close_main(void *arg) {
    visitor *v = arg;
    far_session_close(v->sessions[0]);
    far_pool_close(v->pool);
}


/* It died in its walk, so that nobody hands out anything foreign until somebody sweeps again: a close neither waits for
 * that nor loses anything. */
static void a_close_does_not_wait_for_a_sweep_whose_owner_died(void **state) {
    (void)state;
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

    dead.client = far_sim_start(dead.pool->fabric, "sweeper", sweep_main, &dead);
    far_sim_stop_before(dead.client, (far_sim_match){.point = "sweep:walk"});
    assert_int_equal(far_sim_run_client(dead.client), FAR_SIM_STOPPED);
    far_sim_kill(dead.pool->fabric);

    far_index_close(v.index);
    assert_int_equal(far_index_drop(s, "x"), 0);
    far_sim_limit(world, 1000000000);
    v.client = far_sim_start(v.pool->fabric, "closer", close_main, &v);
    assert_int_equal(far_sim_run_client(v.client), FAR_SIM_ENDED);
    assert_int_equal(far_pool_check(keeper.sessions[0], 1, fail_at_problem, NULL), 0);
    assert_int_equal(check(keeper.sessions[0]).leaked, 0);
    far_session_close(keeper.sessions[0]);
    far_pool_close(keeper.pool);
    far_session_close(dead.sessions[0]);
    far_pool_close(dead.pool);
}


/* ---- Closes at once ---- */

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


/* The close of the session waits for that of the handle, which waits for the call alone. */
static void a_session_is_closed_while_the_handle_is_closed_beside_a_call(void **state) {
    (void)state;
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
    far_pool_usage usage = check(keeper.sessions[0]);
    assert_int_equal(usage.leaked, 0);
    assert_int_equal(usage.sessions, 2);
    far_session_close(keeper.sessions[0]);
    far_pool_close(keeper.pool);
}


static void poll_main(void *arg) {
    visitor *v = arg;
    v->result = far_pool_poll(v->pool);
}


/* Without a thread its operation is driven by whoever polls: here in the middle of it. (A close that did not pause
 * would not let it go on, and never come to an end.) */
static void a_session_is_closed_while_another_thread_drives_it(void **state) {
    (void)state;
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


/* ---- Closes beside a sweep ---- */

static int count_problem(void *ctx, const char *what) {
    (void)ctx, (void)what;
    return 0;
}


static void *check_thread(void *arg) {
    visitor *v = arg;
    v->result = far_pool_check(v->sessions[0], 0, count_problem, NULL);
    return NULL;
}


static bool is_in_a_sweep(far_pool *pool) {
    pthread_mutex_lock(&pool->store->lock);
    bool in = far_is_unsettled(pool->store);
    pthread_mutex_unlock(&pool->store->lock);
    return in;
}


/* What it keeps for itself goes back with it, whatever the sweep is at. (Here nothing makes a task pause.) */
static void a_session_that_keeps_something_is_closed_beside_a_sweep(void **state) {
    (void)state;
    visitor sweeper = {.result = 77}, v = {0};
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    assert_int_equal(far_pool_open("local:16M?name=close-kept", NULL, &sweeper.pool), 0);
    assert_int_equal(far_session_open(sweeper.pool, &sweeper.sessions[0]), 0);
    assert_int_equal(far_pool_open("local:16M?name=close-kept", &options, &v.pool), 0);
    assert_int_equal(far_session_open(v.pool, &v.sessions[0]), 0);
    assert_int_equal(far_index_create(v.sessions[0], "x", "toy", NULL, &v.index), 0);
    assert_int_equal(churn(v.sessions[0], v.index, 0, 10), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, check_thread, &sweeper), 0);
    while (!is_in_a_sweep(v.pool)) {
        assert_int_equal(churn(v.sessions[0], v.index, 0, 1), 0);
        assert_int_equal(far_pool_poll(v.pool), 0);
    }
    far_session_close(v.sessions[0]);
    far_index_close(v.index);
    far_pool_close(v.pool);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(sweeper.result, 0);
    assert_int_equal(check(sweeper.sessions[0]).leaked, 0);
    far_session_close(sweeper.sessions[0]);
    far_pool_close(sweeper.pool);
}


/* ---- Slabs of indexes that are gone ---- */

/* The dropper has long cleaned up what was nobody's; the one who held slabs of it has not heard of that when it is
 * closed.
 */
static void slabs_of_what_another_has_dropped_go_with_the_handle_that_holds_them(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        visitor dropper = {0}, holder = {0};
        open_pool(60 + i, "", &dropper.pool);
        assert_int_equal(far_session_open(dropper.pool, &dropper.sessions[0]), 0);
        far_pool_options options = FAR_POOL_OPTIONS_INIT;
        options.no_thread = 1; /* it does nothing by itself */
        char uri[64];
        snprintf(uri, sizeof(uri), "sim:seed=%u,name=close%u,size=16M,limit=100s", 60 + i, 60 + i);
        assert_int_equal(far_pool_open(uri, &options, &holder.pool), 0);
        assert_int_equal(far_session_open(holder.pool, &holder.sessions[0]), 0);
        assert_int_equal(far_index_create(holder.sessions[0], "x", "toy", NULL, &holder.index), 0);
        assert_int_equal(churn(holder.sessions[0], holder.index, 0, 100), 0);
        far_index_close(holder.index);
        while (far_epoch_is_awake(holder.pool)) {
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
        assert_int_equal(check(dropper.sessions[0]).leaked, 0);
        assert_int_equal(far_sim_watch_errors(far_sim_world_of(dropper.pool->fabric)), 0);
        far_session_close(dropper.sessions[0]);
        far_pool_close(dropper.pool);
    }
}


/* Housekeeping frees what an unsuccessful creation had built as soon as its time has come; the handle that built it
 * closes before that, meanwhile, or later. */
static void a_creation_that_was_in_vain_leaves_nothing(unsigned serial, uint64_t wait) {
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
    far_sim_stop_before(loser.client, (far_sim_match){.point = "memory:leave"});
    assert_int_equal(far_sim_run_client(loser.client), FAR_SIM_STOPPED);
    far_sim_sleep(world, 50000000);
    far_sim_resume(loser.client);
    assert_int_equal(far_sim_run_client(loser.client), FAR_SIM_ENDED);

    if (check(winner.sessions[0]).leaked != 0)
        fail_msg("closed %u us after the creation: something leaked", (unsigned)(wait / 1000));
    assert_int_equal(far_sim_watch_errors(world), 0);
    far_index_close(winner.index);
    far_session_close(winner.sessions[0]);
    far_pool_close(winner.pool);
}


static void a_handle_that_is_closed_after_a_creation_in_vain_leaves_nothing_behind(void **state) {
    (void)state;
    for (unsigned i = 0; i < 60; i++)
        a_creation_that_was_in_vain_leaves_nothing(100 + i, i * 50000);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handle_that_is_closed_with_nobody_else_awake_leaves_nothing_behind),
        cmocka_unit_test(handles_that_are_closed_beside_busy_ones_leave_nothing_behind),
        cmocka_unit_test(close_beside_stopped),
        cmocka_unit_test(a_close_does_not_wait_for_a_sweep_whose_owner_died),
        cmocka_unit_test(a_session_is_closed_while_the_handle_is_closed_beside_a_call),
        cmocka_unit_test(a_session_is_closed_while_another_thread_drives_it),
        cmocka_unit_test(a_session_that_keeps_something_is_closed_beside_a_sweep),
        cmocka_unit_test(slabs_of_what_another_has_dropped_go_with_the_handle_that_holds_them),
        cmocka_unit_test(a_handle_that_is_closed_after_a_creation_in_vain_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
