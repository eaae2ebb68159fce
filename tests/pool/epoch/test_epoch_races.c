/* Tests of the epoch rules in random interleavings of single verbs and scheduler steps, with sessions that fail at any
 * moment. Each run repeats exactly from its seed. */
#include "base/error.h"
#include "pool/alloc/alloc.h"
#include "pool/handle.h"
#include "staged.h"
#include "test.h"
#include "task/latch.h"

#include <stdio.h>
#include <string.h>

#define HANDLES  3
#define USERS    2
#define SESSIONS (HANDLES * (USERS + 1))
#define TURNS    12000

typedef struct actor {
    far_session *session;
    far_pool *pool;
    uint64_t pin; /* epoch of the pin that this actor holds now; 0: none */
    uint64_t pins;
    bool dead;
    int err;
} actor;

typedef struct stage {
    far_random random;
    far_pool watcher;
    far_session *watching;
    far_pool pools[HANDLES];
    actor actors[SESSIONS];  /* for each handle, first its system session and then its users' sessions */
    bool stop, waiter_ended; /* users and waiters stop first; ticks continue until no task waits any more */
    uint64_t waits, seed;
} stage;

static stage st;


static bool chance(uint64_t n, uint64_t of) {
    return far_random_chance(&st.random, n, of);
}


static int open_superblock(far_task *t, void *arg) {
    return far_superblock_open(t, arg);
}


static int register_session(far_task *t, void *arg) {
    return far_client_register(t, *(unsigned *)arg);
}


static int call(far_session *s, int (*run)(far_task *, void *), void *arg) {
    return far_session_call(s, FAR_STATS_OTHER, true, run, arg);
}


static int run_read_epoch(far_task *t, void *arg) {
    return far_read_word(t, FAR_SUPER_EPOCH, arg);
}


static uint64_t read_global_epoch(void) {
    uint64_t word;
    assert_int_equal(call(st.watching, run_read_epoch, &word), 0);
    return word + FAR_EPOCH_FIRST;
}


/* ---- Tasks of the actors ---- */

static void run_user(far_task *t, void *arg) {
    actor *a = arg;
    while (!st.stop && (a->err = far_pin_take(t)) == 0) {
        a->pin = far_epoch(t);
        a->pins++;
        for (uint64_t i = far_random_below(&st.random, 6); i > 0; i--) {
            uint64_t word;
            if (chance(1, 2))
                far_read_word(t, FAR_SUPER_CATALOG, &word);
            else
                far_sleep(t, far_random_below(&st.random, 30000));
        }
        a->pin = 0;
        far_pin_drop(t);
        if (chance(1, 3)) /* One sleep in three is long enough for the handle to become quiescent. */
            far_sleep(t, far_random_below(&st.random, 1500000));
        else
            far_yield(t);
    }
}


static void run_ticks(far_task *t, void *arg) {
    actor *a = arg;
    while (!st.waiter_ended && a->err >= 0) {
        if (chance(1, 2))
            far_epoch_request(a->pool);
        a->err = far_epoch_tick(t);
        far_sleep(t, far_random_below(&st.random, 40000));
    }
}


/* Waits for epochs repeatedly, and checks after each wait that every live pin is young enough. In the meantime, another
 * task runs the ticks of the same handle. */
static void run_waits(far_task *t, void *arg) {
    actor *a = arg;
    while (!st.stop && a->err >= 0) {
        unsigned k = (unsigned)far_random_below(&st.random, 4);
        uint64_t begin = read_global_epoch(), serial[SESSIONS];
        for (int i = 0; i < SESSIONS; i++)
            serial[i] = st.actors[i].pin ? st.actors[i].pins : 0;
        if ((a->err = far_wait_epochs_until(t, k, FAR_TIME_NEVER)) < 0)
            break;
        for (int i = 0; i < SESSIONS; i++) {
            const actor *other = &st.actors[i];
            if (other->pin == 0 || other->dead)
                continue;
            assert_true(other->pin >= begin + k);
            if (k > 0)
                assert_true(serial[i] != other->pins);
        }
        st.waits++;
    }
    st.waiter_ended = true;
}


static void check_pins(void) {
    uint64_t epoch = read_global_epoch();
    for (int i = 0; i < SESSIONS; i++) {
        const actor *a = &st.actors[i];
        if (a->pin != 0 && !a->dead && epoch != a->pin && epoch != a->pin + 1)
            fail_msg("seed %llu: actor %d holds a pin at %llu, the epoch is %llu", (unsigned long long)st.seed, i,
                     (unsigned long long)a->pin, (unsigned long long)epoch);
    }
}


/* ---- Setting up and running the stage ---- */

static void set_up_handle(unsigned h, const char *uri) {
    far_pool *pool = &st.pools[h];
    assert_int_equal(far_fabric_open(uri, &pool->fabric), 0);
    staged_install(pool->fabric);
    pthread_mutex_init(&pool->lock, NULL);
    assert_non_null(pool->team.latches = far_latches_new());
    atomic_init(&pool->epochs.known, FAR_EPOCH_FIRST);
    for (unsigned i = 0; i <= USERS; i++) {
        actor *a = &st.actors[h * (USERS + 1) + i];
        unsigned handle = i ? pool->team.own->id : 0;
        a->pool = pool;
        assert_int_equal(far_pool_session_new(pool, &a->session), 0);
        if (i == 0) {
            pool->team.own = a->session;
            assert_int_equal(call(pool->team.own, open_superblock, &pool->geometry), 0);
        } else {
            far_session_list_add(&pool->team, a->session);
        }
        assert_int_equal(call(a->session, register_session, &handle), 0);
        if (i == 0)
            assert_int_equal(far_store_open(pool), 0);
        far_session_try_enter(a->session);
        assert_non_null(far_task_new(a->session, FAR_STATS_OTHER, i ? run_user : run_ticks, a));
    }
}


static void set_up_stage(uint64_t seed) {
    char uri[64];
    memset(&st, 0, sizeof(st));
    st.seed = seed;
    far_random_seed(&st.random, seed);
    staged_seed(seed);
    snprintf(uri, sizeof(uri), "local:2M?name=races%llu", (unsigned long long)seed);
    assert_int_equal(far_fabric_open(uri, &st.watcher.fabric), 0);
    assert_int_equal(far_pool_session_new(&st.watcher, &st.watching), 0);
    for (unsigned h = 0; h < HANDLES; h++)
        set_up_handle(h, uri);
    /* the first user's session of the first handle runs the task that waits for epochs */
    actor *waiter = &st.actors[1];
    assert_non_null(far_task_new(waiter->session, FAR_STATS_OTHER, run_waits, waiter));
}


static bool all_tasks_have_ended(void) {
    for (int i = 0; i < SESSIONS; i++)
        if (atomic_load(&st.actors[i].session->active))
            return false;
    return true;
}


static void run_one_turn(void) {
    actor *a = &st.actors[far_random_below(&st.random, SESSIONS)];
    if (chance(1, 8))
        staged_advance_time(far_random_below(&st.random, 20000));
    if (chance(1, 2)) {
        far_session_step(a->session);
        check_pins();
    } else if (staged_apply_next_verb(a->session->conn)) {
        check_pins();
    }
}


static void tear_down_stage(void) {
    st.stop = true;
    for (unsigned turn = 0; !all_tasks_have_ended(); turn++) {
        run_one_turn();
        if (turn > 300000)
            fail_msg("seed %llu: a task does not end", (unsigned long long)st.seed);
    }
    for (int i = 0; i < SESSIONS; i++)
        far_session_free(st.actors[i].session);
    for (int h = 0; h < HANDLES; h++)
        st.pools[h].fabric->ops->close(st.pools[h].fabric);
    for (unsigned h = 0; h < HANDLES; h++) {
        far_store_free(&st.pools[h]);
        far_latches_free(st.pools[h].team.latches);
    }
    far_session_free(st.watching);
    st.watcher.fabric->ops->close(st.watcher.fabric);
}


static void kill_actor(actor *a) {
    staged_kill(a->session->conn);
    a->dead = true;
}


static void run_seed(uint64_t seed, bool deaths) {
    set_up_stage(seed);
    uint64_t epoch = read_global_epoch();
    for (unsigned turn = 0; turn < TURNS; turn++) {
        run_one_turn();
        /* The first handle is never killed, because its waiter checks that the epoch continues to advance. */
        if (deaths && chance(1, 1500))
            kill_actor(&st.actors[USERS + 1 + far_random_below(&st.random, SESSIONS - USERS - 1)]);
    }
    for (int i = USERS + 1; deaths && i < SESSIONS; i++)
        kill_actor(&st.actors[i]);
    uint64_t waits = st.waits;
    for (unsigned turn = 0; deaths && st.waits < waits + 3; turn++) {
        run_one_turn();
        if (turn > 300000)
            fail_msg("seed %llu: failed sessions hold up the epoch at %llu", (unsigned long long)seed,
                     (unsigned long long)read_global_epoch());
    }
    if (!deaths && (st.waits == 0 || read_global_epoch() < epoch + 2))
        fail_msg("seed %llu: the epoch hardly advances", (unsigned long long)seed);
    for (int i = 0; i < SESSIONS; i++)
        if (!st.actors[i].dead && st.actors[i].err < 0)
            fail_msg("seed %llu: actor %d failed with %d (%s)", (unsigned long long)seed, i, st.actors[i].err,
                     far_last_error());
    tear_down_stage();
}


/* Over 200 random schedules, the epoch is e or e+1 at every step while a pin at e is held, every wait for epochs keeps
 * its promise, and the epoch advances. */
TEST(pins_hold_the_epoch_in_every_interleaving) {
    for (uint64_t seed = 1; seed <= 200; seed++)
        run_seed(seed, false);
}


/* Sessions of the second and the third handle fail at random; the first handle never fails. While a live session holds
 * a pin at e, the epoch is e or e+1. After all sessions of the other two handles have failed, a task of the first
 * handle still completes its waits for epochs. */
TEST(pins_of_live_sessions_hold_the_epoch_and_those_of_failed_ones_do_not) {
    for (uint64_t seed = 1001; seed <= 1200; seed++)
        run_seed(seed, true);
}
