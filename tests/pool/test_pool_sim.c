/* Formatting, registration, epochs and closing under the simulator: deaths at every verb and every unit of every WRITE,
 * torn and late effects, zombies. */
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


/* A compute node that formats (or opens) and registers, and no more: by hand, so that its client can be steered from
 * its first verb on. */
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


static far_sim_client *opener_start(opener *o, const char *name, const char *uri) {
    memset(o, 0, sizeof(*o));
    o->result = 1;
    assert_int_equal(far_fabric_open(uri, &o->pool.fabric), 0);
    pthread_mutex_init(&o->pool.lock, NULL);
    assert_int_equal(far_pool_session_new(&o->pool, &o->session), 0);
    o->pool.team.own = o->session;
    return far_sim_start(o->pool.fabric, name, run_opener, o);
}


static void opener_end(opener *o) {
    far_session_free(o->session);
    o->pool.fabric->ops->close(o->pool.fabric);
}


static int live_count(far_task *t, void *arg) {
    return far_clients_live(t, arg);
}


static int ask_first(far_task *t, void *arg) {
    (void)arg;
    return far_is_dead(t, 1, FAR_ANY_GENERATION);
}


/* Dies at verb n, so many units of it done; then a survivor opens the pool and finds nobody alive but itself. False: it
 * never got there. */
static bool formatter_dies_at(unsigned n, uint32_t units, bool *more_units) {
    opener o;
    uint64_t seed = 10000 + 100 * n + units;
    far_sim_client *client = opener_start(&o, "formatter", uri_of(seed, ",atomic_bytes=8"));
    far_sim_kill_at(client, (far_sim_match){.nth = n}, units);
    far_sim_result result = far_sim_run_client(client);
    assert_int_equal(result, FAR_SIM_ENDED);
    bool died = far_sim_killed(o.pool.fabric);
    assert_int_equal(o.result, died ? FAR_ERR_FENCED : 0);
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    far_pool *pool;
    if (far_pool_open(uri_of(seed, ",atomic_bytes=8"), &options, &pool) < 0)
        fail_msg("after a death at verb %u, unit %u: %s", n, units, far_last_error());
    unsigned live;
    if (died && pool->team.own->id != 1) /* it registered before it died: found out */
        assert_int_equal(far_session_call(pool->team.own, FAR_STATS_OTHER, true, ask_first, NULL), 1);
    assert_int_equal(far_session_call(pool->team.own, FAR_STATS_OTHER, true, live_count, &live), 0);
    assert_int_equal(live, died ? 1 : 2);
    *more_units = units < 3; /* the largest WRITEs, of the node headers, have three words */
    far_pool_close(pool);
    opener_end(&o);
    return died;
}


static void a_formatter_that_dies_at_any_verb_or_unit_is_made_up_for(void **state) {
    (void)state;
    unsigned n = 1;
    for (bool died = true; died; n++) {
        bool more = true;
        for (uint32_t units = 0; more && died; units++)
            died = formatter_dies_at(n, units, &more);
    }
    assert_true(n > 10);
}


static void formatters_at_once_agree_under_all_faults(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        opener o[3];
        for (int i = 0; i < 3; i++)
            opener_start(&o[i], "formatter", uri_of(seed, ",faults=all"));
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
            opener_end(&o[i]);
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


static int bury_all(far_task *t, void *ctx, unsigned id, const far_client *client) {
    (void)ctx;
    if (far_client_state_of(client->word) == FAR_CLIENT_FREE || id == far_task_client(t))
        return 0;
    assert_int_equal(far_is_dead(t, id, far_client_generation_of(client->word)), 1);
    return 0;
}


static int free_all(far_task *t, void *ctx, unsigned id, const far_client *client) {
    (void)ctx;
    if (far_client_state_of(client->word) == FAR_CLIENT_DEAD)
        assert_int_equal(far_client_free(t, id, FAR_ANY_GENERATION), 1);
    return 0;
}


static int sweep_registry(far_task *t, void *arg) {
    (void)arg;
    int err = far_clients_each(t, bury_all, NULL);
    return err < 0 ? err : far_clients_each(t, free_all, NULL);
}


/* A compute node that opens sessions and closes them and itself, dead at its n-th verb. False: it never got there. */
static bool visitor_dies_at(unsigned n, uint32_t units) {
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
    for (int again = 0; again < 2; again++) { /* the dead first; after that everything is free, and free is zero */
        unsigned live;
        for (unsigned id = 1; id <= 8; id++) {
            far_client client = entry_of(world, id);
            if (far_client_state_of(client.word) == FAR_CLIENT_FREE)
                assert_true(client.pin == 0 && client.answered == 0 && client.settled == 0 && client.opened == 0 &&
                            client.free_bytes == 0);
        }
        assert_int_equal(far_session_call(survivor->team.own, FAR_STATS_OTHER, true, sweep_registry, NULL), 0);
        assert_int_equal(far_session_call(survivor->team.own, FAR_STATS_OTHER, true, live_count, &live), 0);
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


static void a_death_at_any_verb_of_opening_and_closing_leaves_only_the_dead(void **state) {
    (void)state;
    unsigned n = 1;
    for (bool died = true; died; n++)
        for (uint32_t units = 0; units < 8 && died; units++)
            died = visitor_dies_at(n, units);
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


static uint64_t global(far_sim_world *world) {
    return world_word(world, FAR_SUPER_EPOCH) + FAR_EPOCH_FIRST;
}


/* Looks behind the verbs: at every moment of the pin the epoch is e or e+1. A dead one holds it only until it is known
 * to be dead. */
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
        uint64_t now = global(u->world);
        if (err == 0 && now != e && now != e + 1)
            fail_msg("seed %llu: a pin at %llu, the epoch is %llu", (unsigned long long)u->seed, (unsigned long long)e,
                     (unsigned long long)now);
    }
    far_pin_drop(t);
    return err;
}


static int wait_for_epochs(far_task *t, void *arg) {
    user *u = arg;
    uint64_t begin = global(u->world), k = far_random_below(&u->random, 3);
    int err = far_wait_epochs_until(t, (unsigned)k, FAR_TIME_NEVER);
    if (err == 0 && global(u->world) < begin + k + 1)
        fail_msg("seed %llu: a wait of %llu epochs came back too early", (unsigned long long)u->seed,
                 (unsigned long long)k);
    return err;
}


static void run_user(void *arg) {
    user *u = arg;
    for (u->rounds = 0; u->rounds < ROUNDS && u->err == 0; u->rounds++) {
        bool waits = far_random_chance(&u->random, 1, 6);
        u->err = far_session_call(u->session, FAR_OP_GET, false, waits ? wait_for_epochs : use_pin, u);
        if (far_random_chance(&u->random, 1, 5)) /* now and then long enough for the handle to fall asleep */
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


/* Whoever sees an epoch that was reached after a request was made must see the request: its word is read after the
 * epoch, in the same batch. */
typedef struct epoch_reads {
    const far_batch *batch; /* of the last READ of the epoch */
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
        return; /* a sleeper that only looks */
    assert_ptr_equal(reads->batch, posted->batch);
    reads->batch = NULL;
    reads->pairs++;
}


static void pins_hold_the_epoch_under_all_faults(void **state) {
    (void)state;
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
        assert_true(global(users[0].world) > FAR_EPOCH_FIRST + 4);
        assert_int_equal(far_sim_watch_errors(users[0].world), 0);
        close_handles(pools, users);
    }
}


/* A connection is lost while the WRITE that wakes the handle is on its way. It must not land after the handle has gone
 * on. */
static void run_one_pin(void *arg) {
    user *u = arg;
    u->err = far_session_call(u->session, FAR_OP_GET, false, use_pin, u);
}


static void a_lost_wake_up_does_not_land_later(void **state) {
    (void)state;
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
        uint64_t epoch = global(world);
        for (int i = 0; i < 4; i++) {
            far_epoch_request(other);
            assert_int_equal(far_pool_poll(other), 0);
        }
        assert_int_equal(global(world), epoch + 4);
        far_session_close(u.session);
        far_pool_close(pool);
        far_pool_close(other);
    }
}


/* A compute node dies, a session is declared dead while it lives, a handle's own session is: the others go on, nobody
 * hangs. */
static void the_dead_hold_nobody_back_and_zombies_do_no_harm(void **state) {
    (void)state;
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


static void the_same_seed_gives_the_same_run(void **state) {
    (void)state;
    assert_true(run_hash(601) == run_hash(601));
    assert_true(run_hash(601) != run_hash(602));
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_formatter_that_dies_at_any_verb_or_unit_is_made_up_for),
        cmocka_unit_test(formatters_at_once_agree_under_all_faults),
        cmocka_unit_test(a_death_at_any_verb_of_opening_and_closing_leaves_only_the_dead),
        cmocka_unit_test(pins_hold_the_epoch_under_all_faults),
        cmocka_unit_test(a_lost_wake_up_does_not_land_later),
        cmocka_unit_test(the_dead_hold_nobody_back_and_zombies_do_no_harm),
        cmocka_unit_test(the_same_seed_gives_the_same_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
