/* Rig for tests of the pool's memory in the simulator. It opens several handles on one small pool with an index "x" of
 * the kind toy. Each actor is a session with its own keys. Actors put and delete keys, leak memory, run collections,
 * become quiescent, are stopped and are killed. Further functions read far memory directly, without verbs, to check its
 * state. */
#ifndef TESTS_POOL_POOL_RIG_H
#define TESTS_POOL_POOL_RIG_H

#include "../support/world.h"
#include "fabric/fabric.h"
#include "index/toy/toy.h"
#include "pool/alloc/store.h"
#include "pool/catalog/layout.h"
#include "pool/gc/request.h"
#include "pool/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ACTORS_MAX = 6, KEYS = 40, VERBS_MAX = 40000 };
#define LARGE 30000 /* length of a value of which two fit into the smallest block */
#define HALF  30000
#define SMALL 1900

/* Bit in a set of handles: handle `number` has no housekeeping thread, so the handle does background work only when the
 * test polls it. */
#define WITHOUT_HOUSEKEEPING(number) (1u << (number))

typedef struct actor { /* one session of a handle, with its keys and what the test makes it do */
    unsigned number;
    far_sim_world *world;
    far_pool *pool;
    far_session *session, *other;
    far_index *index;
    bool guest; /* true if handle and index belong to another actor, which closes them */
    far_sim_client *client;
    int result;
    bool stop; /* set by the test to make poll_main return */

    uint8_t versions[KEYS]; /* versions of the actor's keys; 0: the key is absent */
    unsigned steps;

    far_collect_mode mode;
    far_collect_result swept;
    uint32_t number_waited; /* number of the request that a test waits for */

    /* The next fields belong to keep_putting: key, number of puts done and wanted, length of the values. */
    char key[16];
    unsigned puts, wanted;
    size_t bytes;

    far_addr object;
    uint64_t size;
} actor;

typedef struct rig {
    far_sim_world *world;
    char uri[WORLD_URI];
    unsigned count;
    actor actors[ACTORS_MAX];
} rig;


/* Returns the number of seeds that a test runs: `usual`, or the value of FARINDEX_SEEDS. */
static inline unsigned seeds(unsigned usual) {
    const char *wish = getenv("FARINDEX_SEEDS");
    return wish ? (unsigned)strtoul(wish, NULL, 10) : usual;
}


/* ---- Opening and closing ---- */

static inline void join(rig *r, unsigned number, bool by_hand) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = by_hand;
    actor *a = &r->actors[number];
    *a = (actor){.number = number, .result = 77, .mode = FAR_COLLECT_REPAIR};
    snprintf(a->key, sizeof(a->key), "key%u", number);
    a->world = r->world = world_join(r->uri, &options, &a->pool, &a->session);
}


/* Opens `count` handles on a new pool. `by_hand` is a set of WITHOUT_HOUSEKEEPING bits, one for each handle that the
 * test polls. `sim` contains options of the simulator. `slots` is the number of slots of the index; 0: no index is
 * created. */
static inline void open_rig_with(rig *r, unsigned seed, unsigned count, unsigned by_hand, const char *sim,
                                 unsigned slots) {
    char options[32];
    *r = (rig){.count = count};
    world_uri(r->uri, "seed=%u,limit=200s,%s", seed, sim);
    snprintf(options, sizeof(options), "slots=%u", slots);
    for (unsigned i = 0; i < count; i++) {
        join(r, i, by_hand >> i & 1);
        actor *a = &r->actors[i];
        if (slots == 0)
            continue;
        if (i == 0)
            assert_int_equal(far_index_create(a->session, "x", "toy", options, &a->index), 0);
        else
            assert_int_equal(far_index_open(a->session, "x", &a->index), 0);
    }
}


static inline void open_rig(rig *r, unsigned seed, unsigned count, unsigned by_hand) {
    open_rig_with(r, seed, count, by_hand, "size=4M,memory_nodes=2", 16);
}


/* Opens another session of the handle of `host`, with the same index. */
static inline void join_handle(rig *r, unsigned number, const actor *host) {
    actor *a = &r->actors[number];
    *a = (actor){.number = number,
                 .result = 77,
                 .mode = FAR_COLLECT_REPAIR,
                 .guest = true,
                 .pool = host->pool,
                 .index = host->index,
                 .world = r->world};
    snprintf(a->key, sizeof(a->key), "key%u", number);
    assert_int_equal(far_session_open(a->pool, &a->session), 0);
    r->count = r->count > number ? r->count : number + 1;
}


static inline void leave(actor *a) {
    far_index_close(a->index);
    far_session_close(a->session);
    far_session_close(a->other);
    far_pool_close(a->pool);
    a->index = NULL;
    a->session = a->other = NULL;
    a->pool = NULL;
}


/* Opens a pool of `size` bytes with an index of many slots, and `sessions` sessions that are distributed over `handles`
 * handles. */
static inline void open_small_pool(rig *r, unsigned seed, unsigned handles, unsigned sessions, unsigned by_hand,
                                   const char *size) {
    char sim[32];
    snprintf(sim, sizeof(sim), "size=%s", size);
    open_rig_with(r, seed, handles, by_hand, sim, 4096);
    for (unsigned i = handles; i < sessions; i++)
        join_handle(r, i, &r->actors[i % handles]);
}


static inline void close_rig(rig *r) {
    world_assert_no_checker_error(r->world);
    for (unsigned i = 0; i < r->count; i++) {
        if (!r->actors[i].guest)
            far_index_close(r->actors[i].index);
        far_session_close(r->actors[i].session);
        far_session_close(r->actors[i].other);
    }
    for (unsigned i = 0; i < r->count; i++)
        if (!r->actors[i].guest)
            far_pool_close(r->actors[i].pool);
}


/* With `hold`, makes the handle behave as if a session owned an object in each of the handle's blocks; without `hold`,
 * ends that. While it lasts, the handle does not release its blocks when it becomes quiescent. */
static inline void hold_blocks(actor *a, bool hold) {
    enum { HELD = 1000000 };
    far_store *s = a->pool->store;
    pthread_mutex_lock(&s->lock);
    for (far_owned_block *b = far_owned_block_next(s, NULL); b; b = far_owned_block_next(s, b)) {
        if (hold && b->session_owned < HELD)
            b->session_owned += HELD;
        else if (!hold && b->session_owned >= HELD)
            b->session_owned -= HELD;
    }
    pthread_mutex_unlock(&s->lock);
}


static inline void close_rig_with_held_blocks(rig *r) {
    for (unsigned i = 0; i < r->count; i++)
        if (r->actors[i].pool)
            hold_blocks(&r->actors[i], false);
    close_rig(r);
}


static inline void start(actor *a, const char *name, void (*run)(void *arg)) {
    a->result = 77;
    a->client = world_start(a->pool, name, run, a);
}


static inline void stop_at(actor *a, far_sim_match match) {
    world_stop_at(a->client, match);
}


static inline void stop_at_point(actor *a, const char *point) {
    stop_at(a, (far_sim_match){.point = point});
}


static inline void finish(actor *a) {
    world_finish(a->client);
}


static inline void run_all(rig *r) {
    far_sim_result result = far_sim_run(r->world);
    if (result != FAR_SIM_ENDED)
        fail_msg("seed %llu: %s", (unsigned long long)far_sim_seed(r->world), far_sim_result_name(result));
}


static inline int call(actor *a, int (*run)(far_task *t, void *arg), void *arg) {
    return far_session_call(a->session, FAR_STATS_OTHER, true, run, arg);
}


/* ---- Far memory, read without verbs ---- */

static inline void *bytes_at(const rig *r, far_addr addr) {
    return world_bytes(r->world, addr);
}


static inline uint64_t word_at(const rig *r, far_addr addr) {
    return world_word(r->world, addr);
}


static inline far_request request_now(const rig *r) {
    return far_request_unpack(word_at(r, FAR_SUPER_REQUEST));
}


/* returns the registry entry of the actor's handle */
static inline far_client client_now(const rig *r, const actor *a) {
    far_client client;
    memcpy(&client, bytes_at(r, far_client_entry(a->pool->team.own->id)), sizeof(client));
    return client;
}


static inline bool collection_is_requested(const rig *r) {
    return word_at(r, FAR_SUPER_LOSSES) != word_at(r, FAR_SUPER_LOSSES_COLLECTED);
}


static inline far_block_id block_of(const actor *a, far_addr addr) {
    far_block_id id = {0, 0};
    assert_true(far_block_of(&a->pool->geometry, addr, &id));
    return id;
}


static inline far_block_state block_state(const rig *r, const actor *a, far_addr addr) {
    return far_block_unpack(word_at(r, far_block_entry(&a->pool->geometry, block_of(a, addr))));
}


static inline bool is_set(const rig *r, const actor *a, far_addr bitmap, far_addr addr) {
    uint64_t at = far_block_offset(&a->pool->geometry, addr) / FAR_GRANULE;
    return word_at(r, bitmap + at / 64 * 8) >> at % 64 & 1;
}


static inline bool free_bit_is_set(const rig *r, const actor *a, far_addr addr) {
    return is_set(r, a, far_block_bitmap(&a->pool->geometry, block_of(a, addr)), addr);
}


static inline bool is_marked(const rig *r, const actor *a, far_addr addr) {
    return is_set(r, a, far_block_marks(&a->pool->geometry, block_of(a, addr)), addr);
}


/* Returns the address of the bitmap word that contains the free bit of the object at `addr`. */
static inline far_addr bit_word(const actor *a, far_addr addr) {
    const far_geometry *g = &a->pool->geometry;
    return far_block_bitmap(g, block_of(a, addr)) + far_block_offset(g, addr) / FAR_GRANULE / 64 * 8;
}


/* Returns the address of the bucket that the index slot of the key names; 0: the slot names none. */
static inline far_addr bucket_of(const rig *r, const actor *a, const char *key) {
    uint64_t slot = toy_slot_of(a->index, (far_bytes){key, strlen(key)});
    return toy_word_addr(word_at(r, toy_slot_addr(toy_state_of(a->index), slot)));
}


/* Returns the number of slabs in the whole pool that belong to the index with this uid. */
static inline unsigned count_of(const rig *r, const actor *a, uint32_t uid) {
    const far_geometry *g = &a->pool->geometry;
    unsigned count = 0;
    for (unsigned n = 0; n < g->nodes; n++)
        for (uint32_t i = 0; i < g->node[n].blocks; i++) {
            far_block_id id = {n, i};
            for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
                far_page_state page = far_page_unpack(word_at(r, far_block_page(g, id, p)));
                count += page.in_use && page.uid == uid;
            }
        }
    return count;
}


static inline unsigned blocks_of_kind(const rig *r, const actor *a, far_block_kind kind) {
    const far_geometry *g = &a->pool->geometry;
    unsigned count = 0;
    for (unsigned n = 0; n < g->nodes; n++)
        for (uint32_t i = 0; i < g->node[n].blocks; i++)
            count += far_block_unpack(word_at(r, far_block_entry(g, (far_block_id){n, i}))).kind == kind;
    return count;
}


/* ---- Time ---- */

/* Runs one slice of housekeeping of each handle without a housekeeping thread, and lets `ns` of virtual time pass for
 * the handles that have such a thread. */
static inline void poll_all(rig *r, uint64_t ns) {
    for (unsigned i = 0; i < r->count; i++) {
        actor *a = &r->actors[i];
        if (a->pool && !a->guest && a->pool->options.no_thread && !far_sim_killed(a->pool->fabric))
            far_pool_poll(a->pool);
    }
    far_sim_sleep(r->world, ns);
}


static inline void poll_main(void *arg) {
    actor *a = arg;
    while (!a->stop) {
        a->result = far_pool_poll(a->pool);
        far_sim_sleep(a->world, 50000);
    }
}


static inline void poll_until_quiescent(actor *a) {
    for (unsigned i = 0; i < 2000 && far_epoch_is_active(a->pool); i++) {
        far_sim_sleep(a->world, 100000);
        assert_int_equal(far_pool_poll(a->pool), 0);
    }
    assert_false(far_epoch_is_active(a->pool));
}


/* Polls all handles without a housekeeping thread until each is quiescent. They must be polled together, because they
 * may wait for each other's pins. */
static inline void poll_until_all_quiescent(rig *r) {
    bool awake = true;
    for (unsigned i = 0; i < 2000 && awake; i++) {
        poll_all(r, 100000);
        awake = false;
        for (unsigned k = 0; k < r->count; k++) {
            far_pool *pool = r->actors[k].pool;
            awake |= pool && !far_sim_killed(pool->fabric) && far_epoch_is_active(pool);
        }
    }
    assert_false(awake);
}


static inline int wait_and_tick(far_task *t, void *arg) {
    unsigned *count = arg;
    int err = 0;
    for (unsigned i = 0; i < *count && err >= 0; i++) {
        err = far_wait_epochs_until(t, 1, FAR_TIME_NEVER);
        if (err == 0)
            err = far_memory_tick(t);
    }
    return err < 0 ? err : 0;
}


/* Waits, in this actor's handle, until the epoch has advanced `count` times. All other active handles must have a
 * housekeeping thread, because the epoch does not advance before each of them has published a new pin. */
static inline void pass_epochs(actor *a, unsigned count) {
    assert_int_equal(call(a, wait_and_tick, &count), 0);
}


/* Waits until no collection is requested, all handles have swept their blocks, and their statistics are published. */
static inline void wait_for_sweeps(rig *r) {
    for (unsigned i = 0; i < 4000 && collection_is_requested(r); i++)
        poll_all(r, 2000000);
    assert_int_equal(word_at(r, FAR_SUPER_LOSSES), word_at(r, FAR_SUPER_LOSSES_COLLECTED));
    for (unsigned i = 0; i < 50; i++)
        poll_all(r, 2000000);
}


/* ---- Work ---- */

static inline int put_key(actor *a, unsigned k, uint8_t version) {
    char key[8], value[600];
    size_t length = 8 + (k * 37u + version * 101u) % 592;
    snprintf(key, sizeof(key), "%u.%03u", a->number, k);
    memset(value, version, length);
    return far_put(a->session, a->index, key, 5, value, length);
}


static inline int delete_key(actor *a, unsigned k) {
    char key[8];
    snprintf(key, sizeof(key), "%u.%03u", a->number, k);
    return far_delete(a->session, a->index, key, 5);
}


static inline void work(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = 0; i < a->steps && a->result == 0; i++) {
        unsigned k = (unsigned)far_random_below(&a->session->random, KEYS);
        if (a->versions[k] != 0 && far_random_chance(&a->session->random, 1, 3)) {
            a->result = delete_key(a, k);
            a->versions[k] = 0;
        } else {
            uint8_t version = (uint8_t)(1 + far_random_below(&a->session->random, 255));
            a->result = put_key(a, k, version);
            a->versions[k] = version;
        }
    }
}


/* Runs `steps` operations of the actor outside of a simulated client. All must succeed. */
static inline void work_now(actor *a, unsigned steps) {
    a->steps = steps;
    work(a);
    assert_int_equal(a->result, 0);
}


/* Asserts that `reader` finds the keys of `a` in the state in which `a` left them. */
static inline void assert_keys(actor *reader, const actor *a) {
    for (unsigned k = 0; k < KEYS; k++) {
        char key[8], value[600];
        size_t length = 0;
        snprintf(key, sizeof(key), "%u.%03u", a->number, k);
        int err = far_get(reader->session, reader->index, key, 5, value, sizeof(value), &length);
        if (a->versions[k] == 0) {
            assert_int_equal(err, FAR_ERR_NOT_FOUND);
            continue;
        }
        assert_int_equal(err, 0);
        assert_int_equal(length, 8 + (k * 37u + a->versions[k] * 101u) % 592);
        for (size_t i = 0; i < length; i++)
            assert_int_equal((uint8_t)value[i], a->versions[k]);
    }
}


/* Puts a key with a value of this length. */
static inline int put(actor *a, const char *key, size_t bytes) {
    static const char value[FAR_VALUE_MAX];
    return far_put(a->session, a->index, key, strlen(key), value, bytes);
}


static inline void put_now(actor *a, const char *key, size_t bytes) {
    int err = put(a, key, bytes);
    if (err != 0)
        fail_msg("put of %s gave %d: %s", key, err, far_last_error());
}


static inline void remove_now(actor *a, const char *key) {
    assert_int_equal(far_delete(a->session, a->index, key, strlen(key)), 0);
}


static inline void remove_numbered(actor *a, const char *prefix, unsigned number) {
    char key[32];
    snprintf(key, sizeof(key), "%s%u", prefix, number);
    remove_now(a, key);
}


/* Puts pairs until the pool is full. The memory that these puts retired, and that failed puts returned, is used too.
 * Returns the number of pairs. */
static inline unsigned fill(actor *a, const char *prefix, size_t bytes) {
    char key[32];
    unsigned count = 0;
    for (unsigned in_vain = 0; in_vain < 4;) {
        snprintf(key, sizeof(key), "%s%u", prefix, count);
        int result = put(a, key, bytes);
        assert_true(result == 0 || result == FAR_ERR_NO_MEMORY);
        count += result == 0;
        in_vain = result == 0 ? 0 : in_vain + 1;
    }
    return count;
}


/* Fills the pool like `fill`, until no put succeeds any more although all retired objects have become free. The keys of
 * the first puts begin with `prefix` and a number. All other active handles must have a housekeeping thread. */
static inline unsigned fill_completely(actor *a, const char *prefix, size_t bytes) {
    char longer[16];
    unsigned count = fill(a, prefix, bytes), more = count;
    for (char part = 'A'; more > 0; part++) {
        pass_epochs(a, 6);
        snprintf(longer, sizeof(longer), "%s%c", prefix, part);
        count += more = fill(a, longer, bytes);
    }
    return count;
}


static inline void keep_putting(void *arg) {
    actor *a = arg;
    while (a->puts < a->wanted && (a->result = put(a, a->key, a->bytes)) == 0)
        a->puts++;
}


static inline void start_putting(actor *a, unsigned puts, size_t bytes) {
    a->puts = 0;
    a->wanted = puts;
    a->bytes = bytes;
    start(a, "putter", keep_putting);
}


/* A task that takes a pin. Tests stop it at the point "test:pinned". */
static inline int hold_pin(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_point(t, "test:pinned");
    far_pin_drop(t);
    return err;
}


static inline void hold_main(void *arg) {
    actor *a = arg;
    a->result = call(a, hold_pin, NULL);
}


/* Allocates objects that are not linked anywhere: objects of the index, an object of the pool itself, and a large
 * object. */
static inline int leak(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 10 && err == 0; i++)
        err = far_alloc(t, a->index, 0, 100 + 50 * i, FAR_NODE_ANY, 0, &object);
    if (err == 0)
        err = far_alloc(t, NULL, 5, 100, FAR_NODE_ANY, 0, &object);
    if (err == 0)
        err = far_alloc(t, a->index, 0, 20000, FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


/* Allocates one object that belongs to the pool itself and is not linked anywhere, with a size that no other object
 * has. Stores the object's address in `object` of the actor. */
static inline int alloc_object(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, NULL, 5, a->size, 0, FAR_ALLOC_ON_NODE, &object);
    a->object = object.addr;
    far_pin_drop(t);
    return err;
}


static inline int retire_object(far_task *t, void *arg) {
    actor *a = arg;
    int err = far_pin_take(t);
    far_retire(t, NULL, 5, a->object, a->size);
    far_pin_drop(t);
    return err;
}


/* ---- Collections ---- */

static inline int run_sweep(far_task *t, void *arg) {
    actor *a = arg;
    return far_collect(t, a->mode, &a->swept);
}


static inline int sweep(actor *a, far_collect_mode mode) {
    a->mode = mode;
    return call(a, run_sweep, a);
}


static inline void sweep_main(void *arg) {
    actor *a = arg;
    a->result = call(a, run_sweep, a);
}


static inline void start_sweep(actor *a) {
    start(a, "sweeper", sweep_main);
}


/* Runs a collection outside of a simulated client, and waits while housekeeping of another handle runs one. */
static inline int collect_in_turn(actor *a, far_collect_mode mode) {
    int err = FAR_ERR_BUSY;
    for (unsigned i = 0; i < 1000 && err == FAR_ERR_BUSY; i++) {
        err = sweep(a, mode);
        if (err == FAR_ERR_BUSY)
            far_sim_sleep(a->world, 1000000);
    }
    return err;
}


static inline void check_main(void *arg) {
    actor *a = arg;
    a->result = far_pool_check(a->session, 0, fail_at_problem, NULL);
}


static inline int run_memory_check(far_task *t, void *arg) {
    return far_memory_check(t, false, arg);
}


static inline int print_problem(void *ctx, const char *what) {
    (void)ctx;
    print_message("%s\n", what);
    return 0;
}


static inline void assert_tables_sound(actor *a) {
    far_report report = {0};
    assert_int_equal(call(a, run_memory_check, &report), 0);
    assert_int_equal(far_report_deliver(&report, print_problem, NULL), 0);
    far_report_free(&report);
}


/* Returns the number of leaked bytes that a collection without repair counts. */
static inline uint64_t leaked(actor *a) {
    int err = collect_in_turn(a, FAR_COLLECT_COUNT);
    if (err != 0)
        fail_msg("the check gave %d: %s", err, far_last_error());
    return a->swept.leaked_bytes;
}


/* Runs a repair in a surviving handle and asserts that it reports no problem. Then asserts that no memory is leaked.
 * All handles must have housekeeping. */
static inline void assert_nothing_lost(rig *r, actor *a) {
    int err = far_pool_check(a->session, 1, fail_at_problem, NULL);
    if (err != 0)
        fail_msg("seed %llu: the repair gave %d: %s", (unsigned long long)far_sim_seed(r->world), err,
                 far_last_error());
    uint64_t lost = leaked(a);
    if (lost != 0)
        fail_msg("seed %llu: %llu bytes are still lost", (unsigned long long)far_sim_seed(r->world),
                 (unsigned long long)lost);
    assert_tables_sound(a);
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
}


/* Asserts, without a repair, that no memory is leaked in the end: housekeeping must detect the failed clients, and
 * collections in the background must find the leaked memory. */
static inline void assert_nothing_leaked_without_repair(rig *r, actor *a) {
    for (unsigned i = 0; i < 250; i++)
        poll_all(r, 2000000);
    wait_for_sweeps(r);
    uint64_t lost = leaked(a);
    if (lost != 0)
        fail_msg("seed %llu: %llu bytes are lost", (unsigned long long)far_sim_seed(r->world),
                 (unsigned long long)lost);
    assert_tables_sound(a);
}


/* Returns the number of bytes in use in the pool. Before that, pauses until all handles have published their
 * statistics. */
static inline uint64_t used_bytes(actor *a) {
    far_pool_usage usage = {0};
    far_sim_sleep(a->world, 2000000);
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    assert_int_equal(usage.total, usage.used + usage.retired + usage.free + usage.leaked);
    return usage.used;
}


#endif
