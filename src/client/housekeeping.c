/* Housekeeping: what a handle does off the operations' path. A slice runs in the handle's own session, called by the
 * housekeeping thread or by far_pool_poll; it also drives the user's sessions that nobody is inside of while they have
 * work under way. */
#include "client/client.h"
#include "index/index.h"
#include "pool/catalog_layout.h"
#include "pool/request.h"

#define SLOW_TICKS        100u   /* asleep: how often a look is taken at the pool */
#define CHECK_TICKS       1000u  /* how often registry entries are asked whether they live ... */
#define CHECK_ENTRIES     64u    /* ... so many at a time */
#define SWEEP_PAUSE_TICKS 200u   /* at least, from when a sweep is wanted, and between two */
#define BRIEF_NS          50000u /* until the next slice while something is under way */
#define BRIEF_RTTS        4u
#define CALM_DOUBLINGS    3u /* of the pause between slices of a handle that is awake and has nothing to do in them */


static bool is_real(const far_pool *pool) {
    return pool->fabric->host == &far_host_threads;
}


/* Real time, and no round trip over a network. */
static bool is_near(const far_pool *pool) {
    return is_real(pool) && !pool->fabric->ops->ask;
}


/* ---- What runs in the own session ---- */

static int run_idle_hooks(far_task *t) {
    far_pool *pool = far_task_pool(t);
    int more = 0, err = 0, first_err = 0;
    for (far_index *index = far_pool_use_index(pool, NULL); index; index = far_pool_use_index(pool, index)) {
        if (!index->kind->idle_hook || t->session->lost)
            continue;
        if ((err = far_pin_take(t)) == 0) {
            err = index->kind->idle_hook(t, index);
            far_pin_drop(t);
        }
        more |= err > 0;
        if (err < 0 && first_err == 0)
            first_err = err;
    }
    if (more)
        atomic_store_explicit(&pool->epochs.keep_awake, true, memory_order_relaxed);
    return first_err < 0 ? first_err : more;
}


typedef struct life_check {
    unsigned from, to; /* ids to be asked for */
    unsigned last;     /* that was ever used */
    unsigned count;
    far_question questions[CHECK_ENTRIES];
} life_check;


/* Clients that do not live are marked in the registry as dead, and a sweep is wanted. */
static int ask_collected(far_task *t, life_check *check) {
    int err = 0;
    far_ask_all(t, check->questions, check->count);
    for (unsigned i = 0; i < check->count && err >= 0; i++) {
        err = check->questions[i].answer;
        if (err > 0)
            err = far_is_dead(t, check->questions[i].id, check->questions[i].generation);
    }
    check->count = 0;
    return err < 0 ? err : 0;
}


static int collect_life(far_task *t, void *ctx, unsigned id, const far_client *client) {
    life_check *check = ctx;
    check->last = id;
    if (id < check->from || id > check->to || far_client_state_of(client->word) != FAR_CLIENT_LIVE ||
        id == t->session->id)
        return 0;
    check->questions[check->count++] =
        (far_question){.kind = FAR_ASK_DEAD, .id = id, .generation = far_client_generation_of(client->word)};
    return check->count == CHECK_ENTRIES ? ask_collected(t, check) : 0;
}


/* Asks for these registry entries whether they live, many at once. */
static int check_lives(far_task *t, life_check *check) {
    int err = far_clients_each(t, collect_life, check);
    return err < 0 ? err : ask_collected(t, check);
}


static int check_next_lives(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t now = far_now(t);
    if (now < pool->next_check)
        return 0;
    pool->next_check = now + CHECK_TICKS * far_tick(pool->fabric);
    life_check check = {.from = pool->check_cursor + 1, .to = pool->check_cursor + CHECK_ENTRIES};
    int err = check_lives(t, &check);
    pool->check_cursor = check.last <= check.to ? 0 : pool->check_cursor + CHECK_ENTRIES;
    return err;
}


/* Where the fabric tells of deaths: the clients that it names are marked as dead, and the pool is looked at. Of deaths
 * before this handle began to listen nobody tells it: so it asks for all clients once. */
static int hear_deaths(far_task *t) {
    far_pool *pool = far_task_pool(t);
    const far_fabric_ops *ops = pool->fabric->ops;
    far_conn *conn = t->session->conn;
    unsigned id, generation;
    bool all = !pool->listens;
    int err = 0;
    if (!ops->told)
        return 0;
    if (all)
        ops->listen(conn);
    pool->listens = true;
    while (err >= 0 && ops->told(conn, &id, &generation) > 0) {
        pool->next_look = 0;
        all |= id == 0;
        if (id != 0)
            err = far_is_dead(t, id, generation);
    }
    if (err >= 0 && all) {
        life_check check = {.from = 1, .to = FAR_CLIENT_ID_MAX};
        pool->next_look = 0;
        err = check_lives(t, &check);
    }
    return err < 0 ? err : 0;
}


/* ---- Work that waits for others: tasks of their own, beside which the slices go on ---- */

static void run_sweep(far_task *t, void *arg) {
    far_pool *pool = arg;
    far_sweep_result result;
    uint64_t begun = far_now(t), tick = far_tick(pool->fabric);
    t->background = true;
    int err = far_sweep(t, FAR_SWEEP_SLOWLY, &result);
    uint64_t pause = 3 * (far_now(t) - begun);
    pool->sweep_failures = err < 0 && err != FAR_ERR_BUSY ? pool->sweep_failures + 1 : 0;
    if (pool->sweep_failures > 0) /* an index is broken, say: another sweep will not end better soon */
        pause = SWEEP_PAUSE_TICKS * tick << (pool->sweep_failures < 8 ? pool->sweep_failures : 8);
    pool->sweep_at = far_now(t) + (pause < SWEEP_PAUSE_TICKS * tick ? SWEEP_PAUSE_TICKS * tick : pause);
    pool->sweeping = false;
}


/* Something may be lost: after a pause, different in every handle, so that one of them is first. */
static bool sweep_is_due(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t now = far_now(t);
    if (pool->sweeping || !far_line_wants_sweep(pool)) {
        if (now >= pool->sweep_at)
            pool->sweep_at = 0;
        return false;
    }
    if (pool->sweep_at == 0)
        pool->sweep_at =
            now + (SWEEP_PAUSE_TICKS + pool->team.own->id * 37 % SWEEP_PAUSE_TICKS) * far_tick(pool->fabric);
    return now >= pool->sweep_at;
}


static void start_sweep(far_task *t) {
    far_pool *pool = far_task_pool(t);
    if (sweep_is_due(t))
        pool->sweeping = far_task_new(t->session, FAR_STATS_OTHER, run_sweep, pool) != NULL;
}


static void run_collect(far_task *t, void *arg) {
    far_pool *pool = arg;
    t->background = true;
    far_unlisted_collect(t, FAR_TIME_NEVER); /* what fails is tried again */
    atomic_store_explicit(&pool->collecting, false, memory_order_relaxed);
}


/* The catalog has changed: there may be slabs of indexes that were dropped. */
static void start_collect(far_task *t) {
    far_pool *pool = far_task_pool(t);
    if (far_unlisted_is_due(pool))
        atomic_store_explicit(&pool->collecting, far_task_new(t->session, FAR_STATS_OTHER, run_collect, pool) != NULL,
                              memory_order_relaxed);
}


/* A handle that sleeps looks at the pool now and then; where the fabric tells of changes, only when it told of one, until
 * that is dealt with. The handle wakes when it has something to do: a sweep is wanted, or to be settled, an index was
 * dropped, memory is short. */
static int look_around(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t now = far_now(t), words[FAR_SUPER_LINE_WORDS];
    if (now < pool->next_look)
        return 0;
    pool->next_look = now + SLOW_TICKS * far_tick(pool->fabric);
    far_read(t, far_addr_make(0, FAR_SUPER_REQUEST), words, sizeof(words));
    int err = far_wait(t);
    bool told = pool->fabric->ops->told != NULL;
    if (err == 0 && !told)
        err = check_next_lives(t);
    if (err < 0)
        return err;
    far_line_learn(pool, words);
    bool due = sweep_is_due(t) || far_unlisted_is_due(pool) || far_memory_is_wanted(pool, words[0]);
    bool restless = due || far_line_wants_sweep(pool);
    if (told && !restless)
        pool->next_look = FAR_TIME_NEVER;
    if (!atomic_exchange_explicit(&pool->restless, restless, memory_order_seq_cst) && restless)
        far_pool_wake(pool); /* this may not be the housekeeping thread, which may sleep until the fabric tells it */
    if (due) {
        atomic_store_explicit(&pool->epochs.keep_awake, true, memory_order_relaxed);
        err = far_pin_take(t);
        far_pin_drop(t);
    }
    return err;
}


static int slice(far_task *t, far_pool *pool) {
    const far_fabric *fabric = pool->fabric;
    int err = fabric->ops->renew ? fabric->ops->renew(t->session->conn) : 0;
    if (err < 0 || (err = hear_deaths(t)) < 0 || (err = far_open_table_settle(t)) < 0 ||
        (err = far_bulletin_tick(t)) < 0)
        return err;
    if (!far_epoch_is_awake(pool))
        return look_around(t);
    if (fabric->ops->told) {
        pool->next_look = 0; /* one look when the handle has fallen asleep */
        atomic_store_explicit(&pool->restless, true, memory_order_seq_cst);
    }
    int moved = far_epoch_tick(t);
    if (moved < 0)
        return moved;
    int more = far_memory_tick(t);
    if (more == 0 && far_epoch_is_idle(t))
        more = far_memory_give_up_blocks(t);
    if (more >= 0 && (err = check_next_lives(t)) < 0)
        more = err;
    if (more >= 0 && atomic_load_explicit(&pool->epochs.current, memory_order_relaxed) != 0) {
        start_sweep(t);
        start_collect(t);
        if ((err = run_idle_hooks(t)) < 0)
            return err;
        more |= err;
    }
    return more < 0 ? more : moved | more;
}


static int run_slice(far_task *t, void *arg) {
    far_pool *pool = arg;
    int result = slice(t, pool);
    if (t->session->lost)
        atomic_store_explicit(&pool->team.dead, true, memory_order_release);
    return result;
}


int far_housekeeping(far_pool *pool) {
    int off = 0;
    if (!atomic_compare_exchange_strong_explicit(&pool->polling, &off, 1, memory_order_acquire, memory_order_relaxed))
        return 0;
    int more = far_session_call(pool->team.own, FAR_STATS_OTHER, true, run_slice, pool);
    if (atomic_load_explicit(&pool->team.dead, memory_order_acquire))
        far_team_lose(&pool->team);
    bool busy =
        far_team_drive_users(&pool->team) || atomic_load_explicit(&pool->team.own->active, memory_order_relaxed) > 0;
    atomic_store_explicit(&pool->polling, 0, memory_order_release);
    return busy ? 1 : more;
}


static bool is_awake(far_pool *pool) {
    return (far_epoch_is_awake(pool) || far_open_table_is_unsure(pool)) &&
           !atomic_load_explicit(&pool->team.dead, memory_order_relaxed);
}


/* For how long a handle that is awake need not look: every slice takes a processor from those who work. A handle whose
 * operations only read, or that frees little, has nothing to do at most ticks. Whoever needs it sooner wakes it: a wish for
 * the next epoch, a submitted operation (one that comes just now waits for this pause), the end. Another handle that asks for an epoch waits for the whole pause once,
 * then the epoch moves and the pace is that of ticks. */
static uint64_t calm_pause(far_pool *pool, uint64_t tick) {
    uint64_t epoch = atomic_load_explicit(&pool->epochs.known, memory_order_relaxed);
    bool calm = epoch == pool->calm_epoch && atomic_load_explicit(&pool->epochs.requests, memory_order_relaxed) == 0;
    pool->calm_epoch = epoch;
    pool->calm_slices = calm ? pool->calm_slices + 1 : 0;
    return tick << (pool->calm_slices < CALM_DOUBLINGS ? pool->calm_slices : CALM_DOUBLINGS);
}


void far_housekeeper(void *arg) {
    far_pool *pool = arg;
    far_host *host = pool->fabric->host;
    uint64_t brief = is_near(pool) ? BRIEF_NS : BRIEF_RTTS * pool->fabric->rtt, tick = far_tick(pool->fabric);
    while (!atomic_load_explicit(&pool->stopping, memory_order_acquire)) {
        int more = far_housekeeping(pool);
        bool awake = is_awake(pool);
        uint64_t pause = more > 0 ? brief : awake ? calm_pause(pool, tick) : SLOW_TICKS * tick;
        atomic_store_explicit(&pool->resting, pause > tick, memory_order_seq_cst);
        if (pool->fabric->ops->doze && more <= 0 && !awake)
            pool->fabric->ops->doze(pool->team.own->conn, &pool->parker,
                                    atomic_load_explicit(&pool->restless, memory_order_seq_cst)
                                        ? far_host_now(host) + pause
                                        : FAR_TIME_NEVER);
        else
            host->ops->park(host, &pool->parker, far_host_now(host) + pause);
    }
}
