/* What is left of indexes that are gone: the drop, the end of sessions and handles, and sweeps that come between them,
 * each handing to another what it does not do itself. Nobody dies here, unless said otherwise: so a check without
 * repair finds nothing, whatever the order of things. */
#include "fabric/sim/sim.h"
#include "pool/catalog_layout.h"
#include "pool/handle.h"
#include "pool/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct player {
    far_pool *pool;
    far_session *session, *other;
    far_index *index;
    bool stop;
    int result;
    far_sim_client *client;
} player;

typedef struct cast {
    far_sim_world *world;
    player keeper; /* has a thread, checks at the end, lives longest */
    player a, b;
} cast;


static void enter(cast *c, player *p, bool thread) {
    static unsigned serial;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    char uri[96];
    options.no_thread = !thread;
    serial += p == &c->keeper;
    snprintf(uri, sizeof(uri), "sim:seed=%u,name=gone%u,size=16M,limit=10s", serial, serial);
    *p = (player){.result = 77};
    assert_int_equal(far_pool_open(uri, &options, &p->pool), 0);
    assert_int_equal(far_session_open(p->pool, &p->session), 0);
}


static void set_up(cast *c, bool a_has_a_thread, bool b_has_a_thread) {
    enter(c, &c->keeper, true);
    enter(c, &c->a, a_has_a_thread);
    enter(c, &c->b, b_has_a_thread);
    c->world = far_sim_world_of(c->keeper.pool->fabric);
}


static int fail_at_problem(void *ctx, const char *what) {
    (void)ctx;
    fail_msg("%s", what);
    return 0;
}


static uint64_t leaked(far_session *s) {
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_check(s, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(s, &usage), 0);
    return usage.leaked;
}


static void leave(player *p) {
    far_index_close(p->index);
    far_session_close(p->session);
    far_session_close(p->other);
    far_pool_close(p->pool);
    *p = (player){0};
}


static void tear_down(cast *c) {
    leave(&c->a);
    leave(&c->b);
    assert_int_equal(leaked(c->keeper.session), 0);
    if (far_sim_watch_errors(c->world))
        fail_msg("%s", far_sim_watch_error(c->world, 0));
    leave(&c->keeper);
}


static void *bytes_at(cast *c, far_addr addr) {
    return (char *)far_sim_memory(c->world, far_addr_node(addr)) + far_addr_offset(addr);
}


/* Pages and runs of an index in the whole pool. */
static unsigned count_of(cast *c, uint32_t uid) {
    const far_geometry *g = &c->keeper.pool->geometry;
    unsigned count = 0;
    for (unsigned n = 0; n < g->nodes; n++)
        for (uint32_t i = 0; i < g->node[n].blocks; i++) {
            far_block_id id = {n, i};
            far_block_state s = far_block_unpack(*(uint64_t *)bytes_at(c, far_block_entry(g, id)));
            count += s.kind == FAR_BLOCK_RUN && s.uid == uid;
            for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
                far_page_state page = far_page_unpack(*(uint64_t *)bytes_at(c, far_block_page(g, id, p)));
                count += page.in_use && page.uid == uid;
            }
        }
    return count;
}


static bool block_has(cast *c, far_block_id id, uint32_t uid) {
    const far_geometry *g = &c->keeper.pool->geometry;
    bool found = false;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        found |= far_page_unpack(*(uint64_t *)bytes_at(c, far_block_page(g, id, p))).uid == uid;
    return found;
}


static bool share_a_block(cast *c, const uint32_t uid[2]) {
    bool found = false;
    for (uint32_t i = 0; i < c->keeper.pool->geometry.node[0].blocks; i++)
        found |= block_has(c, (far_block_id){0, i}, uid[0]) && block_has(c, (far_block_id){0, i}, uid[1]);
    return found;
}


/* Creates an index and closes it; with many keys it has slabs of many sizes. Returns its uid. */
static uint32_t make_some(far_session *s, const char *name, const char *kind, unsigned keys) {
    static const char value[3000];
    far_index *index;
    assert_int_equal(far_index_create(s, name, kind, NULL, &index), 0);
    for (unsigned i = 0; i < keys; i++)
        assert_int_equal(far_put(s, index, &i, sizeof(i), value, i * 73 % sizeof(value)), 0);
    uint32_t uid = index->uid;
    far_index_close(index);
    return uid;
}


static uint32_t make(far_session *s, const char *name, const char *kind) {
    return make_some(s, name, kind, 40);
}


/* ---- Clients ---- */

static void poll_main(void *arg) {
    player *p = arg;
    far_sim_world *world = far_sim_world_of(p->pool->fabric);
    while (!p->stop) {
        p->result = far_pool_poll(p->pool);
        far_sim_sleep(world, 50000);
    }
}


static void check_main(void *arg) {
    player *p = arg;
    p->result = far_pool_check(p->session, 0, fail_at_problem, NULL);
}


static void close_session_main(void *arg) {
    player *p = arg;
    far_session_close(p->session);
    p->session = NULL;
}


static void close_pool_main(void *arg) {
    player *p = arg;
    far_pool_close(p->pool);
}


static void start(cast *c, player *p, const char *name, void (*main)(void *arg)) {
    p->client = far_sim_start(c->keeper.pool->fabric, name, main, p);
}


/* The n-th change of the sweep word by its client: 1 begins, 2 tells of the quarantine, 3 ends it. */
static far_sim_match sweep_word(unsigned nth) {
    return (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_SWEEP, .to = FAR_SUPER_SWEEP + 8, .nth = nth};
}


static void poll_until_asleep(cast *c, player *p) {
    do {
        far_sim_sleep(c->world, 100000);
        assert_int_equal(far_pool_poll(p->pool), 0);
    } while (far_epoch_is_awake(p->pool));
}


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
        cmocka_unit_test(a_drop_that_is_added_while_it_is_being_done_is_done_again),
        cmocka_unit_test(a_drop_whose_blocks_a_sweep_takes_meanwhile_is_done_later),
        cmocka_unit_test(a_drop_that_waits_for_a_sweep_is_done_although_its_handle_sleeps),
        cmocka_unit_test(slabs_in_blocks_that_are_away_go_after_the_session_that_had_them),
        cmocka_unit_test(a_handle_that_sleeps_lets_go_of_slabs_in_blocks_that_were_away),
        cmocka_unit_test(a_handle_that_sleeps_lets_go_of_what_came_and_went_between_its_looks),
        cmocka_unit_test(a_close_waits_for_a_sweep_that_goes_on),
        cmocka_unit_test(who_waits_for_a_sweep_without_a_thread_is_not_in_its_way),
        cmocka_unit_test(what_a_handle_had_retired_of_an_open_index_is_not_freed_after_its_drop),
        cmocka_unit_test(an_index_is_not_freed_while_its_handle_is_being_closed),
        cmocka_unit_test(an_index_that_is_listed_is_not_cleaned_up),
        cmocka_unit_test(an_index_that_is_dropped_while_blocks_of_the_dead_are_released_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
