/* Sweeps and deaths that get into each other's way: every test here is one interleaving that broke the pool once. */
#include "fabric/sim/sim.h"
#include "pool/catalog_layout.h"
#include "pool/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct actor {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_sim_client *client;
    bool all, repair;
    unsigned id; /* of a client that it asks for */
    int result;
    far_sweep_result swept;
} actor;


static const char *uri(unsigned serial) {
    static char text[128];
    snprintf(text, sizeof(text), "sim:name=review%u,seed=%u,size=4M,memory_nodes=1,limit=200s", serial, serial);
    return text;
}


static void join(actor *a, unsigned serial, bool no_thread) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = no_thread;
    memset(a, 0, sizeof(*a));
    assert_int_equal(far_pool_open(uri(serial), &options, &a->pool), 0);
    assert_int_equal(far_session_open(a->pool, &a->session), 0);
}


static void leave(actor *a) {
    far_index_close(a->index);
    far_session_close(a->session);
    far_pool_close(a->pool);
}


static void start(actor *a, const char *name, void (*run)(void *arg)) {
    a->result = 77;
    a->client = far_sim_start(a->pool->fabric, name, run, a);
    assert_non_null(a->client);
}


static far_sim_world *world_of(const actor *a) {
    return far_sim_world_of(a->pool->fabric);
}


static uint64_t *word_at(const actor *a, far_addr addr) {
    return (uint64_t *)((char *)far_sim_memory(world_of(a), far_addr_node(addr)) + far_addr_offset(addr));
}


static int run_sweep(far_task *t, void *arg) {
    actor *a = arg;
    return far_sweep(t, a->all, a->repair, &a->swept);
}


static int sweep(actor *a, bool all, bool repair) {
    a->all = all;
    a->repair = repair;
    return far_session_call(a->session, FAR_STATS_OTHER, true, run_sweep, a);
}


static void sweep_main(void *arg) {
    actor *a = arg;
    a->result = sweep(a, a->all, a->repair);
}


static int ask_handle(far_task *t, void *arg) {
    return far_client_handle_gone(t, ((actor *)arg)->id, true);
}


static void ask_main(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->session, FAR_STATS_OTHER, true, ask_handle, a);
}


/* The asker has read all entries, of which none is a session of that handle that lives; then one opens, and finds its
 * handle alive; then the handle's own session is found dead. */
static void a_session_that_opens_while_its_handle_is_declared_dead_counts(void **state) {
    (void)state;
    actor a, b;
    join(&a, 1, true);
    join(&b, 1, true);
    far_session_close(b.session);
    far_sim_declare_dead(world_of(&a), b.pool->own->id, b.pool->own->generation);

    a.id = b.pool->own->id;
    start(&a, "asker", ask_main);
    far_sim_stop_before(a.client,
                        (far_sim_match){.from = far_client_entry(a.id), .to = far_client_entry(a.id) + 8, .nth = 2});
    assert_int_equal(far_sim_run_client(a.client), FAR_SIM_STOPPED);
    int opened = far_session_open(b.pool, &b.session);
    far_sim_resume(a.client);
    assert_int_equal(far_sim_run_client(a.client), FAR_SIM_ENDED);
    assert_int_equal(opened, 0);
    assert_int_equal(a.result, 0); /* not gone: its pins count */
    leave(&a);
    leave(&b);
}


/* A sweeper stands before it clears the registry entry of a dead client; another one must not have freed it meanwhile,
 * or it would clear the words of whoever has that id by then. */
static void a_slow_sweeper_does_not_clear_the_entry_of_a_new_client(void **state) {
    (void)state;
    actor a, b, dead, fresh;
    join(&a, 2, true);
    join(&b, 2, true);
    join(&dead, 2, true);
    assert_int_equal(far_index_create(a.session, "x", "toy", "slots=16", &a.index), 0);
    unsigned id = dead.pool->own->id;
    far_sim_kill(dead.pool->fabric);

    a.repair = true;
    start(&a, "slow", sweep_main);
    far_sim_stop_before(
        a.client,
        (far_sim_match){.kind = FAR_SIM_WRITE, .from = far_client_entry(id) + 8, .to = far_client_entry(id + 1)});
    assert_int_equal(far_sim_run_client(a.client), FAR_SIM_STOPPED);
    int second = sweep(&b, false, true);
    join(&fresh, 2, true);
    assert_int_equal(far_index_open(fresh.session, "x", &fresh.index), 0);
    far_addr table = *word_at(&fresh, far_opens_word_of(fresh.pool->own->id));
    assert_true(table != 0);

    far_sim_resume(a.client);
    assert_int_equal(far_sim_run_client(a.client), FAR_SIM_ENDED);
    assert_int_equal(*word_at(&fresh, far_opens_word_of(fresh.pool->own->id)), table);
    assert_int_equal(a.result, 0);
    assert_int_equal(a.swept.dead_clients, 2);
    assert_int_equal(second, FAR_ERR_BUSY);
    assert_int_equal(sweep(&b, false, true), 0);
    assert_int_equal(b.swept.dead_clients, 0);
    leave(&fresh);
    leave(&b);
    leave(&a);
    leave(&dead);
}


/* Another one of that id lived and died after the sweeper looked for the dead: it has not been swept. */
static int free_old(far_task *t, void *arg) {
    const actor *a = arg;
    return far_client_free(t, a->id, 1);
}


static void only_the_generation_that_was_swept_is_freed(void **state) {
    (void)state;
    actor a, dead;
    join(&a, 3, true);
    join(&dead, 3, true);
    a.id = dead.session->id;
    far_session_close(dead.session);
    assert_int_equal(far_session_open(dead.pool, &dead.session), 0);
    assert_int_equal(dead.session->id, a.id);
    assert_int_equal(dead.session->generation, 2);
    far_sim_kill(dead.pool->fabric);
    assert_int_equal(far_session_call(a.session, FAR_STATS_OTHER, true, ask_handle, &(actor){.id = dead.pool->own->id}),
                     1);
    assert_int_equal(far_client_state_of(*word_at(&a, far_client_entry(a.id))), FAR_CLIENT_DEAD);
    assert_int_equal(far_session_call(a.session, FAR_STATS_OTHER, true, free_old, &a), 1);
    assert_int_equal(far_client_state_of(*word_at(&a, far_client_entry(a.id))), FAR_CLIENT_DEAD);
    leave(&a);
    leave(&dead);
}


/* ---- A sweep that fails ---- */

static int put(actor *a, unsigned k, uint8_t fill) {
    uint8_t key[8] = {(uint8_t)k, (uint8_t)(k >> 8), 1}, value[400];
    memset(value, fill, sizeof(value));
    return far_put(a->session, a->index, key, sizeof(key), value, sizeof(value));
}


static void get_first(void *arg) {
    actor *a = arg;
    uint8_t key[8] = {0, 0, 1}, value[400];
    a->result = far_get(a->session, a->index, key, sizeof(key), value, sizeof(value), NULL);
    for (size_t i = 0; a->result == 0 && i < sizeof(value); i++)
        if (value[i] != 1)
            a->result = 1000;
}


/* A reader has the address of a bucket. The bucket is replaced while a sweep covers its block, so it is given back at
 * once. Then the walk fails. The owner of the block must not hand it out before the reader is done. */
static void what_was_given_back_in_quarantine_is_not_reused_early_when_the_walk_fails(void **state) {
    (void)state;
    actor owner, sweeper, reader;
    join(&owner, 4, false);
    join(&sweeper, 4, false);
    join(&reader, 4, false);
    assert_int_equal(far_index_create(owner.session, "x", "toy", "slots=64", &owner.index), 0);
    assert_int_equal(far_index_open(reader.session, "x", &reader.index), 0);
    assert_int_equal(put(&owner, 0, 1), 0);

    sweeper.all = sweeper.repair = true;
    start(&sweeper, "sweeper", sweep_main);
    far_addr record = owner.index->record;
    far_sim_stop_before(sweeper.client, (far_sim_match){.kind = FAR_SIM_READ, .from = record, .to = record + 8});
    assert_int_equal(far_sim_run_client(sweeper.client), FAR_SIM_STOPPED); /* in the walk */
    uint64_t magic = *word_at(&owner, record);

    start(&reader, "reader", get_first);
    far_sim_stop_before(reader.client, (far_sim_match){.point = "toy:slot_read"});
    assert_int_equal(far_sim_run_client(reader.client), FAR_SIM_STOPPED);
    assert_int_equal(put(&owner, 0, 2), 0);

    *word_at(&owner, record) = 0; /* the walk finds the catalog broken */
    far_sim_resume(sweeper.client);
    far_sim_run_for(world_of(&owner), 20000000);
    *word_at(&owner, record) = magic;
    for (unsigned k = 1; k < 200; k++)
        assert_int_equal(put(&owner, k, 3), 0);
    far_sim_resume(reader.client);
    assert_int_equal(far_sim_run_client(reader.client), FAR_SIM_ENDED);
    if (far_sim_watch_errors(world_of(&owner)))
        fail_msg("%s", far_sim_watch_error(world_of(&owner), 0));
    assert_int_equal(reader.result, 0);

    assert_int_equal(far_sim_run_client(sweeper.client), FAR_SIM_ENDED);
    assert_int_equal(sweeper.result, FAR_ERR_CORRUPT);
    assert_int_equal(sweep(&sweeper, true, true), 0);
    assert_int_equal(sweep(&sweeper, true, false), 0);
    assert_int_equal(sweeper.swept.leaked_bytes, 0);
    leave(&reader);
    leave(&sweeper);
    leave(&owner);
}


static void put_first(void *arg) {
    actor *a = arg;
    a->result = put(a, 0, 2);
}


static void sweep_twice(void *arg) {
    actor *a = arg;
    a->result = sweep(a, true, false);
    if (a->result == 0)
        a->result = sweep(a, true, false);
}


/* A block that a finished sweep covered belongs to whoever adopts it. One who has not heard of the end, but sees the
 * next sweep choose its blocks, must not give back there at once what it retires. */
static void what_a_finished_sweep_covered_is_not_in_quarantine_while_the_next_one_chooses(void **state) {
    (void)state;
    actor maker, writer, sweeper, reader, heir;
    join(&writer, 5, false);
    join(&sweeper, 5, false);
    join(&reader, 5, false);
    assert_int_equal(far_index_create(writer.session, "x", "toy", "slots=64", &writer.index), 0);
    assert_int_equal(far_index_open(reader.session, "x", &reader.index), 0);
    join(&maker, 5, false);
    assert_int_equal(far_index_open(maker.session, "x", &maker.index), 0);
    far_session *other;
    assert_int_equal(put(&maker, 3, 1), 0);
    assert_int_equal(far_session_open(maker.pool, &other), 0);
    far_session *first = maker.session;
    maker.session = other;
    assert_int_equal(put(&maker, 0, 1), 0);
    far_session_close(first);
    leave(&maker); /* two orphaned blocks: one that the writer will adopt, and one with the bucket of the first key */
    assert_int_equal(put(&writer, 1, 1), 0);

    far_sim_world *world = world_of(&writer);
    uint64_t entries = writer.pool->geometry.node[0].entries;
    start(&sweeper, "sweeper", sweep_twice);
    far_sim_stop_before(
        sweeper.client,
        (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_SWEEP, .to = FAR_SUPER_SWEEP + 8, .nth = 5});
    assert_int_equal(far_sim_run_client(sweeper.client),
                     FAR_SIM_STOPPED); /* the first one is over; before the second one's first CAS */
    assert_int_equal(far_sweep_phase_of(*word_at(&writer, FAR_SUPER_SWEEP)), FAR_SWEEP_NONE);
    far_sim_resume(sweeper.client);
    far_sim_stop_before(
        sweeper.client,
        (far_sim_match){.kind = FAR_SIM_WRITE, .from = entries, .to = entries + 64 * FAR_BLOCK_ENTRY_BYTES});
    assert_int_equal(far_sim_run_client(sweeper.client), FAR_SIM_STOPPED); /* it is about to choose */
    assert_int_equal(far_sweep_owner(*word_at(&writer, FAR_SUPER_SWEEP)), sweeper.session->id);
    assert_int_equal(far_sweep_phase_of(*word_at(&writer, FAR_SUPER_SWEEP)), FAR_SWEEP_NONE);

    uint64_t epoch = writer.pool->epochs.current;
    assert_true(epoch != 0);
    start(&writer, "writer", put_first);
    far_sim_stop_before(writer.client, (far_sim_match){.point = "toy:publish"});
    assert_int_equal(far_sim_run_client(writer.client), FAR_SIM_STOPPED);
    far_epoch_request(writer.pool);
    far_sim_sleep(world, 300000);
    assert_int_equal(writer.pool->epochs.current, epoch + 1); /* now its handle has heard of that */

    start(&reader, "reader", get_first);
    far_sim_stop_before(reader.client, (far_sim_match){.point = "toy:slot_read"});
    assert_int_equal(far_sim_run_client(reader.client), FAR_SIM_STOPPED);
    far_sim_resume(writer.client);
    assert_int_equal(far_sim_run_client(writer.client), FAR_SIM_ENDED);
    assert_int_equal(writer.result, 0);
    far_sim_sleep(world, 200000);
    join(&heir, 5, false);
    assert_int_equal(far_index_open(heir.session, "x", &heir.index), 0);
    for (unsigned k = 100; k < 150; k++)
        assert_int_equal(put(&heir, k, 3), 0);
    far_sim_resume(reader.client);
    assert_int_equal(far_sim_run_client(reader.client), FAR_SIM_ENDED);
    if (far_sim_watch_errors(world))
        fail_msg("%s", far_sim_watch_error(world, 0));
    assert_int_equal(reader.result, 0);

    far_sim_resume(sweeper.client);
    assert_int_equal(far_sim_run_client(sweeper.client), FAR_SIM_ENDED);
    assert_int_equal(sweeper.result, 0);
    leave(&heir);
    leave(&reader);
    leave(&sweeper);
    leave(&writer);
}


/* ---- Dropped indexes ---- */

static void fall_asleep(actor *a) {
    for (unsigned i = 0; i < 100 && far_epoch_is_awake(a->pool); i++) {
        far_pool_poll(a->pool);
        far_sim_sleep(world_of(a), 1000000);
    }
    assert_false(far_epoch_is_awake(a->pool));
}


/* A handle sleeps with retired objects of an index, in another's block. The index is dropped, and the block is used
 * anew, before they are past their time in the sleeper's eyes. */
static void what_was_retired_of_a_dropped_index_is_not_freed_when_its_place_is_used_anew(void **state) {
    (void)state;
    actor owner, sleeper;
    join(&owner, 7, false);
    join(&sleeper, 7, true);
    assert_int_equal(far_index_create(owner.session, "old", "toy", "slots=64", &owner.index), 0);
    assert_int_equal(far_index_open(sleeper.session, "old", &sleeper.index), 0);
    for (unsigned k = 0; k < 40; k++)
        assert_int_equal(put(&owner, k, 1), 0);
    for (unsigned k = 0; k < 40; k++)
        assert_int_equal(put(&sleeper, k, 2), 0);
    assert_true(sleeper.session->memory->retired_bytes > 0);
    far_index_close(owner.index);
    far_index_close(sleeper.index);
    sleeper.index = NULL;
    fall_asleep(&sleeper);
    assert_true(sleeper.session->memory->retired_bytes > 0);

    assert_int_equal(far_index_drop(owner.session, "old"), 0);
    far_sim_sleep(world_of(&owner), 20000000);
    assert_int_equal(far_index_create(owner.session, "new", "toy", "slots=64", &owner.index), 0);
    for (unsigned k = 0; k < 60; k++)
        assert_int_equal(put(&owner, k, 7), 0);
    assert_int_equal(far_index_open(sleeper.session, "new", &sleeper.index), 0);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(put(&sleeper, 1000, 8), 0);
        far_epoch_request(sleeper.pool);
        far_pool_poll(sleeper.pool);
        far_sim_sleep(world_of(&owner), 1000000);
    }
    assert_true(sleeper.session->memory->retired.count + sleeper.session->memory->late.count <
                8); /* only its own new ones */
    for (unsigned k = 0; k < 60; k++) {
        uint8_t key[8] = {(uint8_t)k, (uint8_t)(k >> 8), 1}, value[400];
        assert_int_equal(far_get(sleeper.session, sleeper.index, key, sizeof(key), value, sizeof(value), NULL), 0);
        for (size_t i = 0; i < sizeof(value); i++)
            assert_int_equal(value[i], 7);
    }
    if (far_sim_watch_errors(world_of(&owner)))
        fail_msg("%s", far_sim_watch_error(world_of(&owner), 0));
    leave(&sleeper);
    leave(&owner);
}


static int leak(far_task *t, void *arg) {
    far_object object;
    (void)arg;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, NULL, 5, 1000, FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


/* Its only block held nothing but a leaked object: the sweep made it free, and the handle has not heard of that yet. */
static void a_session_whose_block_was_swept_away_closes_well(void **state) {
    (void)state;
    actor a, sweeper;
    join(&a, 6, false);
    join(&sweeper, 6, false);
    assert_int_equal(far_session_call(a.session, FAR_STATS_OTHER, true, leak, NULL), 0);
    assert_non_null(a.session->memory->blocks);
    far_addr entry = far_block_entry(&a.pool->geometry, a.session->memory->blocks->id);
    sweeper.all = sweeper.repair = true;
    start(&sweeper, "sweeper", sweep_main);
    far_sim_stop_before(
        sweeper.client,
        (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_SWEEP, .to = FAR_SUPER_SWEEP + 8, .nth = 4});
    assert_int_equal(far_sim_run_client(sweeper.client), FAR_SIM_STOPPED);
    assert_int_equal(far_block_unpack(*word_at(&a, entry)).kind, FAR_BLOCK_FREE);
    assert_true(a.session->memory->blocks->away);
    unsigned id = a.session->id;
    far_session_close(a.session);
    a.session = NULL;
    assert_int_equal(far_client_state_of(*word_at(&a, far_client_entry(id))), FAR_CLIENT_FREE);
    far_sim_resume(sweeper.client);
    assert_int_equal(far_sim_run_client(sweeper.client), FAR_SIM_ENDED);
    assert_int_equal(sweeper.result, 0);
    leave(&a);
    leave(&sweeper);
}


typedef struct taken {
    actor *a;
    far_object run, small;
} taken;


static int take_run_and_more(far_task *t, void *arg) {
    taken *taken = arg;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, NULL, 5, 2 * far_task_pool(t)->geometry.block_bytes, FAR_NODE_ANY, 0, &taken->run);
    if (err == 0)
        err = far_alloc(t, NULL, 5, 64, FAR_NODE_ANY, 0, &taken->small);
    far_pin_drop(t);
    return err;
}


static void take_main(void *arg) {
    taken *taken = arg;
    taken->a->result = far_session_call(taken->a->session, FAR_STATS_OTHER, true, take_run_and_more, taken);
}


/* As above; then its old owner takes the block again, as the first of two that become a run, and the end of the sweep
 * is heard of between the two: the block is its own, but not one to cut slabs from. (far_memory_forget in take_each.)
 */
static void a_block_swept_away_and_taken_again_for_a_run_is_not_cut_into_slabs(void **state) {
    (void)state;
    actor a, sweeper;
    join(&a, 7, false);
    join(&sweeper, 7, false);
    assert_int_equal(far_session_call(a.session, FAR_STATS_OTHER, true, leak, NULL), 0);
    far_block_id id = a.session->memory->blocks->id, next = {id.node, id.index + 1};
    const far_geometry *g = &a.pool->geometry;
    sweeper.all = sweeper.repair = true;
    start(&sweeper, "sweeper", sweep_main);
    far_sim_stop_before(
        sweeper.client,
        (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_SWEEP, .to = FAR_SUPER_SWEEP + 8, .nth = 4});
    assert_int_equal(far_sim_run_client(sweeper.client), FAR_SIM_STOPPED);
    assert_int_equal(far_block_unpack(*word_at(&a, far_block_entry(g, id))).kind, FAR_BLOCK_FREE);
    assert_true(a.session->memory->blocks->away);

    taken taken = {.a = &a};
    a.client = far_sim_start(a.pool->fabric, "taker", take_main, &taken);
    far_sim_stop_before(
        a.client,
        (far_sim_match){.kind = FAR_SIM_CAS, .from = far_block_entry(g, next), .to = far_block_entry(g, next) + 8});
    assert_int_equal(far_sim_run_client(a.client), FAR_SIM_STOPPED);
    assert_int_equal(far_block_unpack(*word_at(&a, far_block_entry(g, id))).kind, FAR_BLOCK_OWNED);

    far_sim_resume(sweeper.client);
    assert_int_equal(far_sim_run_client(sweeper.client), FAR_SIM_ENDED);
    far_epoch_request(a.pool);
    far_sim_sleep(world_of(&a), 5000000);
    assert_int_equal(((far_quarantine *)a.pool->quarantine)->word, *word_at(&a, FAR_SUPER_SWEEP)); /* it was heard of */

    far_sim_resume(a.client);
    assert_int_equal(far_sim_run_client(a.client), FAR_SIM_ENDED);
    assert_int_equal(a.result, 0);
    assert_int_equal(taken.run.addr, far_block_base(g, id));
    assert_true(taken.small.addr < taken.run.addr || taken.small.addr >= taken.run.addr + 2 * g->block_bytes);
    assert_int_equal(far_sim_watch_errors(world_of(&a)), 0);
    leave(&a);
    leave(&sweeper);
}


enum { MANY = 1500 };


static int leak_many(far_task *t, void *arg) {
    far_object object;
    (void)arg;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < MANY && err == 0; i++)
        err = far_alloc(t, NULL, 5, 4000, FAR_NODE_ANY, 0, &object);
    if (err == 0) /* a run of blocks behind all these */
        err = far_alloc(t, NULL, 5, 2 * far_task_pool(t)->geometry.block_bytes, FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


static unsigned owned_by(const actor *a, unsigned id) {
    const far_geometry *g = &a->pool->geometry;
    unsigned count = 0;
    for (uint32_t i = 0; i < g->node[0].blocks; i++) {
        far_block_state state = far_block_unpack(*word_at(a, far_block_entry(g, (far_block_id){0, i})));
        count += state.kind == FAR_BLOCK_OWNED && state.id == id;
    }
    return count;
}


static void join_large(actor *a) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    memset(a, 0, sizeof(*a));
    assert_int_equal(far_pool_open("sim:name=review8,seed=8,size=16M,memory_nodes=1,limit=2s", &options, &a->pool), 0);
    assert_int_equal(far_session_open(a->pool, &a->session), 0);
}


/* As a client: the simulator's limit ends one that would not. */
static uint64_t count_leaks(actor *a) {
    a->all = true;
    a->repair = false;
    start(a, "counter", sweep_main);
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_ENDED);
    assert_int_equal(a->result, 0);
    return a->swept.leaked_bytes;
}


/* The dead have more blocks than go into quarantine at once, and they are only counted, so they stay as they are: a
 * sweep that took those of the dead in every pass would never come to the others. What it meets it counts once. */
static void a_sweep_that_only_counts_comes_to_an_end_whatever_the_dead_have(void **state) {
    (void)state;
    actor a, dead;
    join_large(&a);
    join_large(&dead);
    assert_int_equal(far_session_call(dead.session, FAR_STATS_OTHER, true, leak_many, NULL), 0);
    unsigned id = dead.session->id;
    far_sim_kill(dead.pool->fabric);
    assert_true(owned_by(&a, id) > 64);
    uint64_t leaked = count_leaks(&a);
    assert_true(leaked >= MANY * 4000ull);
    assert_int_equal(owned_by(&a, id) > 64, true);
    assert_int_equal(sweep(&a, true, true), 0);
    assert_int_equal(a.swept.repaired_bytes, leaked);
    assert_int_equal(owned_by(&a, id), 0);
    assert_int_equal(count_leaks(&a), 0);
    leave(&a);
    leave(&dead);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_that_opens_while_its_handle_is_declared_dead_counts),
        cmocka_unit_test(a_slow_sweeper_does_not_clear_the_entry_of_a_new_client),
        cmocka_unit_test(only_the_generation_that_was_swept_is_freed),
        cmocka_unit_test(what_was_given_back_in_quarantine_is_not_reused_early_when_the_walk_fails),
        cmocka_unit_test(what_a_finished_sweep_covered_is_not_in_quarantine_while_the_next_one_chooses),
        cmocka_unit_test(a_session_whose_block_was_swept_away_closes_well),
        cmocka_unit_test(a_block_swept_away_and_taken_again_for_a_run_is_not_cut_into_slabs),
        cmocka_unit_test(a_sweep_that_only_counts_comes_to_an_end_whatever_the_dead_have),
        cmocka_unit_test(what_was_retired_of_a_dropped_index_is_not_freed_when_its_place_is_used_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
