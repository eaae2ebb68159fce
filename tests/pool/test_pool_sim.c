/* Tests of formatting, registration, epochs and closing in the simulator: failures at every verb and at every granule
 * of a WRITE, torn and late effects, and clients that continue after they were declared failed (zombies). */
#include "test.h"
#include "../support/world.h"
#include "base/error.h"

#include <stdio.h>
#include <string.h>


static const char *uri_of(uint64_t seed, const char *more) {
    static char uri[128];
    snprintf(uri, sizeof(uri), "sim:seed=%llu,name=pool%llu,memory_nodes=3,size=2M%s", (unsigned long long)seed,
             (unsigned long long)seed, more);
    return uri;
}


/* A client that only formats or opens the pool and registers. The test creates the client without far_pool_open, so
 * that it can control the client from its first verb on. */
typedef struct opener {
    far_pool pool;
    far_session *session;
    int result;
} opener;


static int open_and_register(far_task *t, void *arg) {
    opener *o = arg;
    int err = far_superblock_open(t, &o->pool.geometry);
    return err < 0 ? err : far_client_register(t, 0);
}


static void run_opener(void *arg) {
    opener *o = arg;
    o->result = far_session_call(o->session, FAR_STATS_OTHER, true, open_and_register, o);
}


static far_sim_client *start_opener(opener *o, const char *name, const char *uri) {
    memset(o, 0, sizeof(*o));
    o->result = 1;
    assert_int_equal(far_fabric_open(uri, &o->pool.fabric), 0);
    pthread_mutex_init(&o->pool.lock, NULL);
    assert_int_equal(far_pool_session_new(&o->pool, &o->session), 0);
    o->pool.team.own = o->session;
    return far_sim_start(o->pool.fabric, name, run_opener, o);
}


static void end_opener(opener *o) {
    far_session_free(o->session);
    o->pool.fabric->ops->close(o->pool.fabric);
}


static int run_count_live(far_task *t, void *arg) {
    return far_clients_live(t, arg);
}


static int confirm_first_failed(far_task *t, void *arg) {
    (void)arg;
    return far_client_confirm_failed(t, 1, FAR_ANY_GENERATION);
}


/* Fails the formatter at its n-th verb, after `units` granules of its effect. Then another client opens the pool and
 * finds no live client but itself. Returns false if there is no n-th verb. */
static bool fail_formatter_at(unsigned n, uint32_t units, bool *more_units) {
    opener o;
    uint64_t seed = 10000 + 100 * n + units;
    far_sim_client *client = start_opener(&o, "formatter", uri_of(seed, ",atomic_bytes=8"));
    far_sim_kill_at(client, (far_sim_match){.nth = n}, units);
    far_sim_result result = far_sim_run_client(client);
    assert_int_equal(result, FAR_SIM_ENDED);
    bool died = far_sim_killed(o.pool.fabric);
    assert_int_equal(o.result, died ? FAR_ERR_FENCED : 0);
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    far_pool *pool;
    if (far_pool_open(uri_of(seed, ",atomic_bytes=8"), &options, &pool) < 0)
        fail_msg("after a failure at verb %u, granule %u: %s", n, units, far_last_error());
    unsigned live;
    if (died && pool->team.own->id != 1) /* The failed formatter had registered, so its failure must be confirmed. */
        assert_int_equal(far_session_call(pool->team.own, FAR_STATS_OTHER, true, confirm_first_failed, NULL), 1);
    assert_int_equal(far_session_call(pool->team.own, FAR_STATS_OTHER, true, run_count_live, &live), 0);
    assert_int_equal(live, died ? 1 : 2);
    /* A verb has at most three granules, because the longest WRITE, of a node header, has three words. */
    *more_units = units < 3;
    far_pool_close(pool);
    end_opener(&o);
    return died;
}


/* A client formats the pool and registers, and fails at its n-th verb with any part of that verb's effect, for every n.
 * The next client opens the pool, and confirms the failure if the first one had registered. */
TEST(a_formatter_that_fails_at_any_verb_or_granule_is_replaced_by_the_next) {
    unsigned n = 1;
    for (bool died = true; died; n++) {
        bool more = true;
        for (uint32_t units = 0; more && died; units++)
            died = fail_formatter_at(n, units, &more);
    }
    assert_true(n > 10);
}


/* Three clients format the pool and register concurrently, under all faults of the simulator. They derive the same pool
 * and get different ids. */
TEST(concurrent_formatters_agree_under_all_faults) {
    for (uint64_t seed = 1; seed <= 100; seed++) {
        opener o[3];
        for (int i = 0; i < 3; i++)
            start_opener(&o[i], "formatter", uri_of(seed, ",faults=all"));
        far_sim_world *world = far_sim_world_of(o[0].pool.fabric);
        assert_int_equal(far_sim_run(world), FAR_SIM_ENDED);
        for (int i = 0; i < 3; i++) {
            if (o[i].result != 0)
                fail_msg("seed %llu: %d", (unsigned long long)seed, o[i].result);
            assert_memory_equal(&o[i].pool.geometry, &o[0].pool.geometry, sizeof(far_geometry));
            for (int j = 0; j < i; j++)
                assert_int_not_equal(o[i].session->id, o[j].session->id);
        }
        assert_true(world_word(world, FAR_SUPER_SLOTS_HIGH) >= 3);
        assert_int_equal(far_sim_watch_errors(world), 0);
        for (int i = 0; i < 3; i++)
            end_opener(&o[i]);
    }
}


/* ---- Registration ---- */

static far_client entry_of(far_sim_world *world, unsigned id) {
    far_client client;
    memcpy(&client, world_bytes(world, far_client_entry(id)), sizeof(client));
    return client;
}


typedef struct visitor {
    far_pool *pool;
    unsigned rounds;
} visitor;


static void run_visitor(void *arg) {
    visitor *v = arg;
    far_session *s[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++)
        if (far_session_open(v->pool, &s[i]) == 0)
            v->rounds++;
    far_session_close(s[0]);
    far_session_close(s[1]);
    far_pool_close(v->pool);
}


static int confirm_all_failed(far_task *t, void *ctx, unsigned id, const far_client *client) {
    (void)ctx;
    if (far_client_state_of(client->word) == FAR_CLIENT_FREE || id == far_task_client(t))
        return 0;
    assert_int_equal(far_client_confirm_failed(t, id, far_client_generation_of(client->word)), 1);
    return 0;
}


static int free_failed_clients(far_task *t, void *ctx, unsigned id, const far_client *client) {
    (void)ctx;
    if (far_client_state_of(client->word) == FAR_CLIENT_FENCED)
        assert_int_equal(far_client_free(t, id, FAR_ANY_GENERATION), 1);
    return 0;
}


static int collect_registry(far_task *t, void *arg) {
    (void)arg;
    int err = far_clients_each(t, confirm_all_failed, NULL);
    return err < 0 ? err : far_clients_each(t, free_failed_clients, NULL);
}


/* Runs a handle that opens and closes sessions and then itself, and that fails at its n-th verb, after `units` granules
 * of the verb's effect. Returns false if there is no n-th verb. */
static bool fail_visitor_at(unsigned n, uint32_t units) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    far_pool *survivor, *pool;
    uint64_t seed = 20000 + 10 * n + units;
    assert_int_equal(far_pool_open(uri_of(seed, ",atomic_bytes=8"), &options, &survivor), 0);
    assert_int_equal(far_pool_open(uri_of(seed, ",atomic_bytes=8"), &options, &pool), 0);
    far_sim_world *world = far_sim_world_of(survivor->fabric);
    visitor v = {pool, 0};
    far_sim_client *client = far_sim_start(pool->fabric, "visitor", run_visitor, &v);
    far_sim_kill_at(client, (far_sim_match){.nth = n}, units);
    assert_int_equal(far_sim_run_client(client), FAR_SIM_ENDED);
    bool died = far_sim_verbs(client) >= n;
    assert_true(died || v.rounds == 2);
    /* the first round confirms and frees the failed clients; then all entries are free and zero */
    for (int again = 0; again < 2; again++) {
        unsigned live;
        for (unsigned id = 1; id <= 8; id++) {
            far_client client = entry_of(world, id);
            if (far_client_state_of(client.word) == FAR_CLIENT_FREE)
                assert_true(client.pin == 0 && client.answered == 0 && client.settled == 0 && client.status == 0 &&
                            client.free_bytes == 0);
        }
        assert_int_equal(far_session_call(survivor->team.own, FAR_STATS_OTHER, true, collect_registry, NULL), 0);
        assert_int_equal(far_session_call(survivor->team.own, FAR_STATS_OTHER, true, run_count_live, &live), 0);
        assert_int_equal(live, 1);
    }
    far_session *s;
    assert_int_equal(far_session_open(survivor, &s), 0);
    assert_int_equal(s->id, 2);
    assert_true(s->generation >= 2);
    far_session_close(s);
    far_pool_close(survivor);
    return died;
}


/* A handle opens and closes sessions and itself, and fails at its n-th verb, for every n. Afterwards each of its
 * entries is free and zero, or live and confirmed as failed; after a collection of the registry, its ids are issued
 * again with new generations. */
TEST(a_failure_at_any_verb_of_opening_and_closing_leaves_only_failed_clients) {
    unsigned n = 1;
    for (bool died = true; died; n++)
        for (uint32_t units = 0; units < 8 && died; units++)
            died = fail_visitor_at(n, units);
    assert_true(n > 20);
}


/* ---- Epochs ---- */

#define HANDLES 3
#define USERS   2
#define ROUNDS  60

typedef struct user {
    far_pool *pool;
    far_session *session;
    far_sim_world *world;
    far_random random;
    uint64_t seed;
    unsigned rounds;
    int err;
} user;


static uint64_t read_global_epoch(far_sim_world *world) {
    return world_word(world, FAR_SUPER_EPOCH) + FAR_EPOCH_FIRST;
}


/* Checks directly in the memory of the simulator that the epoch is e or e+1 while a pin at e is held. The pin of a
 * failed session counts only until the failure is confirmed. */
static int use_pin(far_task *t, void *arg) {
    user *u = arg;
    int err = far_pin_take(t);
    if (err < 0)
        return err;
    uint64_t e = far_epoch(t), word;
    for (uint64_t i = far_random_below(&u->random, 8); i > 0 && err == 0; i--) {
        if (far_random_chance(&u->random, 1, 3))
            far_sleep(t, far_random_below(&u->random, 50000));
        err = far_read_word(t, FAR_SUPER_CATALOG, &word);
        uint64_t now = read_global_epoch(u->world);
        if (err == 0 && now != e && now != e + 1)
            fail_msg("seed %llu: a pin at %llu, the epoch is %llu", (unsigned long long)u->seed, (unsigned long long)e,
                     (unsigned long long)now);
    }
    far_pin_drop(t);
    return err;
}


static int wait_for_epochs(far_task *t, void *arg) {
    user *u = arg;
    uint64_t begin = read_global_epoch(u->world), k = far_random_below(&u->random, 3);
    int err = far_wait_epochs_until(t, (unsigned)k, FAR_TIME_NEVER);
    if (err == 0 && read_global_epoch(u->world) < begin + k + 1)
        fail_msg("seed %llu: a wait of %llu epochs ended too early", (unsigned long long)u->seed,
                 (unsigned long long)k);
    return err;
}


static void run_user(void *arg) {
    user *u = arg;
    for (u->rounds = 0; u->rounds < ROUNDS && u->err == 0; u->rounds++) {
        bool waits = far_random_chance(&u->random, 1, 6);
        u->err = far_session_call(u->session, FAR_OP_GET, false, waits ? wait_for_epochs : use_pin, u);
        /* The longer sleeps are sometimes long enough for the handle to become quiescent. */
        if (far_random_chance(&u->random, 1, 5))
            far_sim_sleep(u->world, far_random_below(&u->random, 4000000));
    }
}


static void open_handles(far_pool *pools[], user users[], uint64_t seed, const char *more) {
    for (int h = 0; h < HANDLES; h++) {
        if (far_pool_open(uri_of(seed, more), NULL, &pools[h]) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, far_last_error());
        for (int i = 0; i < USERS; i++) {
            user *u = &users[h * USERS + i];
            *u = (user){.pool = pools[h], .world = far_sim_world_of(pools[h]->fabric), .seed = seed};
            far_random_seed(&u->random, seed * 100 + (uint64_t)(h * USERS + i));
            assert_int_equal(far_session_open(pools[h], &u->session), 0);
            assert_non_null(far_sim_start(pools[h]->fabric, "user", run_user, u));
        }
    }
}


static void close_handles(far_pool *pools[], user users[]) {
    for (int i = 0; i < HANDLES * USERS; i++)
        far_session_close(users[i].session);
    for (int h = HANDLES - 1; h >= 0; h--)
        far_pool_close(pools[h]);
}


/* Records reads of the epoch. A client that observes an epoch must also observe every request that was made before that
 * epoch was reached. Therefore the request word must be read after the epoch, in the same batch. */
typedef struct epoch_reads {
    const far_batch *batch; /* the batch of the last READ of the epoch */
    unsigned pairs;
} epoch_reads;


static bool reads_epoch(const far_batch *batch) {
    bool found = false;
    for (uint32_t i = 0; i < batch->count; i++)
        found |= batch->verbs[i].kind == FAR_READ && batch->verbs[i].addr == FAR_SUPER_EPOCH;
    return found;
}


static void watch_epoch_reads(void *ctx, const far_sim_posted *posted) {
    epoch_reads *reads = ctx;
    if (posted->verb->kind == FAR_READ && posted->verb->addr == FAR_SUPER_EPOCH)
        reads->batch = posted->batch;
    if (posted->verb->kind != FAR_READ || posted->verb->addr != FAR_SUPER_REQUEST || !reads_epoch(posted->batch))
        return; /* A quiescent handle reads the request word without the epoch. */
    assert_ptr_equal(reads->batch, posted->batch);
    reads->batch = NULL;
    reads->pairs++;
}


/* Under all faults of the simulator, the epoch is e or e+1 at every read while a pin at e is held, waits for epochs
 * keep their promise, and the request word is always read after the epoch in the same batch (read_epoch_and_request).
 */
TEST(pins_hold_the_epoch_under_all_faults) {
    for (uint64_t seed = 201; seed <= 240; seed++) {
        far_pool *pools[HANDLES];
        user users[HANDLES * USERS];
        epoch_reads reads = {0};
        open_handles(pools, users, seed, ",faults=all");
        far_sim_on_verb(users[0].world, watch_epoch_reads, &reads);
        far_sim_result result = far_sim_run(users[0].world);
        far_sim_on_verb(users[0].world, NULL, NULL);
        assert_true(reads.pairs > 10);
        if (result != FAR_SIM_ENDED)
            fail_msg("seed %llu: %s", (unsigned long long)seed, far_sim_result_name(result));
        for (int i = 0; i < HANDLES * USERS; i++)
            if (users[i].err != 0)
                fail_msg("seed %llu: user %d failed with %d", (unsigned long long)seed, i, users[i].err);
        assert_true(read_global_epoch(users[0].world) > FAR_EPOCH_FIRST + 4);
        assert_int_equal(far_sim_watch_errors(users[0].world), 0);
        close_handles(pools, users);
    }
}


/* Takes and drops one pin, which activates the handle. */
static void run_one_pin(void *arg) {
    user *u = arg;
    u->err = far_session_call(u->session, FAR_OP_GET, false, use_pin, u);
}


/* A session is lost while its WRITE that activates the handle is held back. The handle continues, and then the WRITE is
 * released: the published pin stays 0, and the epoch advances, because the tick fences the lost session before it
 * writes the entry (far_pins_release_fenced). */
TEST(a_lost_activation_write_does_not_take_effect_later) {
    for (uint64_t seed = 501; seed <= 540; seed++) {
        far_pool_options options = FAR_POOL_OPTIONS_INIT;
        options.no_thread = 1;
        far_pool *pool, *other;
        assert_int_equal(far_pool_open(uri_of(seed, ",faults=late"), &options, &pool), 0);
        assert_int_equal(far_pool_open(uri_of(seed, ",faults=late"), &options, &other), 0);
        far_sim_world *world = far_sim_world_of(pool->fabric);
        user u = {.pool = pool, .world = world, .seed = seed};
        far_random_seed(&u.random, seed);
        assert_int_equal(far_session_open(pool, &u.session), 0);
        far_sim_client *client = far_sim_start(pool->fabric, "lost", run_one_pin, &u);
        far_addr word = far_client_entry(pool->team.own->id) + 8;
        far_sim_hold *hold =
            far_sim_hold_effect(client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = word, .to = word + 8});
        assert_int_equal(far_sim_run_client(client), FAR_SIM_HELD);
        far_sim_lose(u.session->conn);
        assert_int_equal(far_sim_run_client(client), FAR_SIM_ENDED);
        assert_int_equal(u.err, FAR_ERR_UNREACHABLE);
        assert_int_equal(far_pool_poll(pool), 0);
        far_sim_release(hold);
        far_sim_sleep(world, 10000000);
        assert_int_equal(world_word(world, word), 0);
        uint64_t epoch = read_global_epoch(world);
        for (int i = 0; i < 4; i++) {
            far_epoch_request(other);
            assert_int_equal(far_pool_poll(other), 0);
        }
        assert_int_equal(read_global_epoch(world), epoch + 4);
        far_session_close(u.session);
        far_pool_close(pool);
        far_pool_close(other);
    }
}


/* In turn: a whole handle fails, a system session is declared failed while it lives, a user's session is declared
 * failed while it lives, and a session loses its connection. The other sessions complete all their rounds. */
TEST(failed_clients_do_not_hold_up_others_and_zombies_do_no_harm) {
    for (uint64_t seed = 301; seed <= 400; seed++) {
        far_pool *pools[HANDLES];
        user users[HANDLES * USERS];
        open_handles(pools, users, seed, ",faults=all");
        far_sim_world *world = users[0].world;
        far_random random;
        far_random_seed(&random, seed);
        far_sim_run_for(world, 200000 + far_random_below(&random, 3000000));
        far_session *victim = users[USERS].session;
        switch (seed % 4) {
        case 0:
            far_sim_kill(pools[1]->fabric);
            break;
        case 1:
            victim = pools[1]->team.own; /* falls through */
        case 2:
            far_sim_declare_dead(world, victim->id, victim->generation);
            break;
        default:
            far_sim_lose(victim->conn);
            break;
        }
        far_sim_result result = far_sim_run(world);
        if (result != FAR_SIM_ENDED)
            fail_msg("seed %llu: %s", (unsigned long long)seed, far_sim_result_name(result));
        for (int i = 0; i < HANDLES * USERS; i++) {
            bool may_fail = seed % 4 >= 2 ? i == USERS : i / USERS == 1;
            if (users[i].err != 0 &&
                !(may_fail && (users[i].err == FAR_ERR_FENCED || users[i].err == FAR_ERR_UNREACHABLE)))
                fail_msg("seed %llu: user %d failed with %d", (unsigned long long)seed, i, users[i].err);
            if (users[i].err == 0)
                assert_int_equal(users[i].rounds, ROUNDS);
        }
        assert_int_equal(far_sim_watch_errors(world), 0);
        close_handles(pools, users);
    }
}


static uint64_t run_hash(uint64_t seed) {
    far_pool *pools[HANDLES];
    user users[HANDLES * USERS];
    open_handles(pools, users, seed, ",faults=all");
    assert_int_equal(far_sim_run(users[0].world), FAR_SIM_ENDED);
    uint64_t hash = far_sim_trace_hash(users[0].world);
    close_handles(pools, users);
    return hash;
}


/* Two runs with the same seed post the same verbs at the same times; another seed gives another run. */
TEST(the_same_seed_gives_the_same_run) {
    assert_true(run_hash(601) == run_hash(601));
    assert_true(run_hash(601) != run_hash(602));
}
