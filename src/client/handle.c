/* Opening and closing pool handles and sessions. */
#include "base/budget.h"
#include "base/error.h"
#include "client/client.h"
#include "client/op.h"
#include "index/rdwc.h"
#include "pool/catalog.h"
#include "pool/sweep.h"

#include <assert.h>
#include <stdlib.h>

#define OPEN_TRIES 3


/* ---- Fork: a child has copies of its parent's handles. Threads of the parent may have been inside of their locks, and
 * are not there to let them go: the child waits for nothing of them, and its closes leave them as they are ---- */

atomic_uint far_forks;


static void count_fork(void) {
    atomic_fetch_add_explicit(&far_forks, 1, memory_order_relaxed);
}


static void watch_forks(void) {
    pthread_atfork(NULL, NULL, count_fork);
}


static int refuse_child(void) {
    return far_fail(FAR_ERR_FENCED, "the pool was opened before this process was forked off: it must open its own");
}


/* ---- Guards of the public calls ---- */

/* The count goes up before the look, the closer sets `closed` before it looks at the counts: one of the two sees the
 * other. */
int far_pool_enter(far_pool *pool) {
    if (!pool)
        return far_fail(FAR_ERR_INVALID, "pool is NULL");
    if (far_pool_is_parents(pool))
        return refuse_child();
    atomic_fetch_add_explicit(&pool->calls, 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&pool->closed, memory_order_seq_cst))
        return 0;
    far_pool_leave(pool);
    return far_fail(FAR_ERR_INVALID, "the pool was closed");
}


void far_pool_leave(far_pool *pool) {
    assert(atomic_load_explicit(&pool->calls, memory_order_relaxed) > 0);
    atomic_fetch_sub_explicit(&pool->calls, 1, memory_order_seq_cst);
}


int far_call_refuse(far_session *s) {
    if (!s)
        return far_fail(FAR_ERR_INVALID, "session is NULL");
    return far_pool_is_parents(s->pool) ? refuse_child()
                                        : far_fail(FAR_ERR_INVALID, "the pool of this session was closed");
}


static void pause_briefly(far_pool *pool) {
    far_parker parker = {0};
    far_host *host = pool->fabric->host;
    host->ops->park(host, &parker, far_host_now(host) + far_tick(pool->fabric) / 10);
}


static bool calls_are_over(far_pool *pool) {
    if (atomic_load_explicit(&pool->calls, memory_order_seq_cst) != 0)
        return false;
    bool over = true;
    pthread_mutex_lock(&pool->team.lock);
    for (far_session *s = pool->team.first; s; s = s->next)
        over &= atomic_load_explicit(&s->calls, memory_order_seq_cst) == 0;
    pthread_mutex_unlock(&pool->team.lock);
    return over;
}


/* ---- Sessions ---- */

/* Of a user's session, or (handle 0) of the handle's own. */
static int start_session(far_task *t, void *arg) {
    unsigned handle = *(unsigned *)arg;
    int err = far_client_register(t, handle);
    if (err < 0)
        return err;
    if (handle == 0)
        err = far_store_open(far_task_pool(t));
    if (err == 0)
        err = far_memory_open(t->session);
    if (err < 0)
        far_client_unregister(
            t); /* the first error is the one to tell; a failure here leaves a dead client for the sweep */
    return err;
}


static int end_session(far_task *t, void *arg) {
    (void)arg;
    int err = t->session == far_task_pool(t)->team.own ? far_memory_end(t) : 0;
    if (err < 0)
        return err; /* what it holds is not given back: it stays registered, and is swept as a dead one */
    return far_client_unregister(t);
}


/* Waits until no task of the session is active. Its tasks may wait for work of other sessions that no thread drives: where
 * there is no housekeeping, this thread drives them (but for sessions that another thread is inside of just now). */
static void quiesce(far_session *s) {
    far_pool *pool = s->pool;
    if (pool->housekeeper) {
        far_session_enter(s);
        far_session_drain(s);
        far_session_leave(s);
    }
    while (atomic_load_explicit(&s->active, memory_order_acquire) > 0) {
        far_team_drive(&pool->team);
        if (atomic_load_explicit(&s->active, memory_order_acquire) > 0)
            pause_briefly(pool);
    }
}


/* Waits until the lost session is known to be dead, where that takes round trips: what it had posted may still take
 * effect at a node, and its pins must be counted until then. */
static int settle_pins(far_task *t, void *arg) {
    far_session *s = arg;
    int err = far_pins_settle(t);
    for (unsigned attempt = 0; err == 0 && s->id != 0 && far_task_fabric(t)->ops->ask &&
                               atomic_load_explicit(&s->pins.stuck, memory_order_seq_cst);
         attempt++) {
        far_back_off(t, attempt);
        err = far_pins_settle(t);
    }
    return err;
}


/* Gives back all that the session has in the pool; what fails is left to the sweep of a dead client. No other thread is
 * inside the session any more. */
static void finish_session(far_session *s) {
    atomic_store_explicit(&s->closing, true, memory_order_relaxed);
    quiesce(s);
    if (s->id != 0 || s->memory)
        far_session_call(s, FAR_STATS_OTHER, true, end_session, NULL);
    quiesce(s);
    far_memory_close(s);
    if (atomic_load_explicit(&s->pins.stuck, memory_order_seq_cst) && s->pool->team.own && s != s->pool->team.own)
        far_session_call(s->pool->team.own, FAR_STATS_OTHER, true, settle_pins, s); /* else the whole handle is dead */
    far_session_enter(s); /* for good: housekeeping must not step it without its connection */
    far_session_drain(s);
    if (s != s->pool->team.own)
        far_bulletin_add(s);
    s->conn->fabric->ops->disconnect(s->conn);
    s->conn = NULL;
}


static int declared_dead(void) {
    return far_fail(FAR_ERR_FENCED, "this pool handle was declared dead: close it and open the pool again");
}


static int count_dead(far_task *t, void *ctx, unsigned id, const far_client *client) {
    far_client_state state = far_client_state_of(client->word);
    int dead = state == FAR_CLIENT_DEAD;
    if (state == FAR_CLIENT_LIVE && id != t->session->id)
        dead = far_ask(t, FAR_ASK_DEAD, id, far_client_generation_of(client->word));
    *(unsigned *)ctx += dead > 0;
    return dead < 0 ? dead : 0;
}


/* The id of a dead client is free again only after a sweep. Processes that live too short for their housekeeping to sweep
 * would use up all ids, and then nobody could register to sweep. So who gets a high id sweeps; what fails is left to the
 * next one. */
static int spare_ids(far_task *t, void *arg) {
    unsigned slots = far_task_pool(t)->geometry.session_slots, dead = 0;
    far_sweep_result result;
    (void)arg;
    if (t->session->id <= slots / 2) /* the lowest that was free */
        return 0;
    int err = far_clients_each(t, count_dead, &dead);
    if (err >= 0 && dead >= slots / 4)
        err = far_sweep(t, FAR_SWEEP_REPAIR, &result);
    return err;
}


/* The session joins the list of its handle before it takes any pin: ticks must see all pins. */
static int open_session(far_pool *pool, far_session **session) {
    far_session *s;
    int err = far_pool_session_new(pool, &s);
    if (err < 0)
        return err;
    far_pool_reference(pool);
    far_team_add(&pool->team, s);
    unsigned handle = pool->team.own->id;
    err = far_session_call(s, FAR_STATS_OTHER, true, start_session, &handle);
    if (err < 0) {
        finish_session(s);
        far_team_remove(&pool->team, s);
        far_ops_free(s);
        far_session_free(s);
        far_pool_release(pool);
        return err;
    }
    far_session_call(s, FAR_STATS_OTHER, true, spare_ids, NULL);
    *session = s;
    return 0;
}


int far_session_open(far_pool *pool, far_session **session) {
    if (!session)
        return far_fail(FAR_ERR_INVALID, "session is NULL: where would it go?");
    *session = NULL;
    int err = far_pool_enter(pool);
    if (err < 0)
        return err;
    if (atomic_load_explicit(&pool->team.dead, memory_order_acquire))
        err = declared_dead();
    else
        err = open_session(pool, session);
    /* While two compete for an id, the loser's connection briefly carries the winner's name: if the winner is declared
     * dead just then, the loser is fenced too, and tries again. */
    for (unsigned tries = 0;
         err == FAR_ERR_FENCED && tries < OPEN_TRIES && !atomic_load_explicit(&pool->team.dead, memory_order_acquire);
         tries++)
        err = open_session(pool, session);
    far_pool_leave(pool);
    return err;
}


/* Not counted as a call: far_pool_close waits for those. */
void far_pool_await_close(far_pool *pool) {
    atomic_fetch_add_explicit(&pool->waiters, 1, memory_order_seq_cst);
    while (!atomic_load_explicit(&pool->finished, memory_order_seq_cst))
        pause_briefly(pool);
    atomic_fetch_sub_explicit(&pool->waiters, 1, memory_order_seq_cst);
}


void far_session_close(far_session *s) {
    if (!s || far_pool_is_parents(s->pool))
        return;
    far_pool *pool = s->pool;
    if (far_pool_enter(pool) == 0) {
        finish_session(s);
        far_team_remove(&pool->team, s);
        far_pool_leave(pool);
    } else {
        far_pool_await_close(pool);
        far_team_remove(&pool->team, s);
    }
    far_ops_free(s);
    far_session_free(s);
    far_pool_release(pool);
}


/* ---- Pools ---- */

static int open_superblock(far_task *t, void *arg) {
    far_pool *pool = arg;
    int err = far_superblock_open(t, &pool->geometry);
    pool->team.own_words = far_addr_make(0, pool->geometry.node[0].first_block);
    return err;
}


static int open_own_session(far_pool *pool) {
    int err = far_pool_session_new(pool, &pool->team.own);
    if (err < 0)
        return err;
    if (!far_session_prepare(pool->team.own)) /* far_index_close uses it */
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a coroutine");
    unsigned none = 0;
    err = far_session_call(pool->team.own, FAR_STATS_OTHER, true, open_superblock, pool);
    if (err == 0)
        err = far_session_call(pool->team.own, FAR_STATS_OTHER, true, start_session, &none);
    return err;
}


static void close_own_session(far_pool *pool) {
    if (!pool->team.own)
        return;
    finish_session(pool->team.own);
    far_ops_free(pool->team.own);
    far_session_free(pool->team.own);
    pool->team.own = NULL;
}


static int check_options(const far_pool_options *options) {
    if (options->rdwc < -1 || options->rdwc > 1)
        return far_fail(FAR_ERR_INVALID, "options.rdwc is %d, not 1 (on), -1 (off) or 0 (the default)", options->rdwc);
    if (options->no_thread != 0 && options->no_thread != 1)
        return far_fail(FAR_ERR_INVALID, "options.no_thread is %d, not 0 or 1", options->no_thread);
    if (options->must_exist != 0 && options->must_exist != 1)
        return far_fail(FAR_ERR_INVALID, "options.must_exist is %d, not 0 or 1", options->must_exist);
    if (options->ignore_refuted != 0 && options->ignore_refuted != 1)
        return far_fail(FAR_ERR_INVALID, "options.ignore_refuted is %d, not 0 or 1", options->ignore_refuted);
    if (options->restore != 0 && options->restore != 1)
        return far_fail(FAR_ERR_INVALID, "options.restore is %d, not 0 or 1", options->restore);
    return 0;
}


/* No operation is under way, and none will be. */
static void release_pool(far_pool *pool) {
    far_rdwc_free(pool->rdwc);
    pool->rdwc = NULL;
    far_pool_release(pool);
}


static far_pool *make_pool(const far_pool_options *options) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    far_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return NULL;
    pool->forks = atomic_load_explicit(&far_forks, memory_order_relaxed);
    pool->options = *options;
    if (pool->options.cache_bytes == 0)
        pool->options.cache_bytes = FAR_BUDGET_DEFAULT;
    if (pool->options.rdwc == 0)
        pool->options.rdwc = 1;
    bool merges = pool->options.rdwc == 1;
    pool->references = 1;
    pool->kinds = far_index_kinds;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_mutex_init(&pool->team.lock, NULL);
    atomic_init(&pool->team.unattended, options->no_thread != 0);
    atomic_init(&pool->epochs.known, FAR_EPOCH_FIRST);
    pool->budget = far_budget_new(pool->options.cache_bytes);
    pool->team.latches = far_latches_new();
    pool->rdwc = merges ? far_rdwc_new(FAR_RDWC_QUIET_BELOW) : NULL;
    if (pool->budget && pool->team.latches && (pool->rdwc || !merges))
        return pool;
    release_pool(pool);
    return NULL;
}


static int start_pool(far_pool *pool, const char *uri) {
    int err =
        pool->options.must_exist ? far_fabric_open_existing(uri, &pool->fabric) : far_fabric_open(uri, &pool->fabric);
    if (err == 0)
        err = open_own_session(pool);
    if (err < 0)
        return err;
    far_host *host = pool->fabric->host;
    pool->next_look = far_host_now(host) + 100 * far_tick(pool->fabric);
    pool->next_check = far_host_now(host) + 1000 * far_tick(pool->fabric);
    if (!pool->options.no_thread && host->ops->start(host, far_housekeeper, pool, &pool->housekeeper) < 0)
        return far_fail(FAR_ERR_NO_MEMORY, "no thread for housekeeping could be started");
    return 0;
}


int far_pool_open(const char *uri, const far_pool_options *options, far_pool **pool) {
    static const far_pool_options defaults = FAR_POOL_OPTIONS_INIT;
    if (!pool)
        return far_fail(FAR_ERR_INVALID, "pool is NULL: where would it go?");
    *pool = NULL;
    if (!uri)
        return far_fail(FAR_ERR_INVALID, "uri is NULL");
    int err = check_options(options ? options : &defaults);
    if (err < 0)
        return err;
    far_pool *made = make_pool(options ? options : &defaults);
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a pool handle");
    err = start_pool(made, uri);
    if (err < 0) {
        close_own_session(made);
        if (made->fabric)
            made->fabric->ops->close(made->fabric);
        release_pool(made);
        return err;
    }
    *pool = made;
    return 0;
}


int far_pool_poll(far_pool *pool) {
    int err = far_pool_enter(pool);
    if (err < 0)
        return err;
    err = far_housekeeping(pool);
    if (atomic_load_explicit(&pool->team.dead, memory_order_acquire))
        err = declared_dead();
    far_pool_leave(pool);
    return err < 0 ? err : 0;
}


static void stop_housekeeping(far_pool *pool) {
    far_host *host = pool->fabric->host;
    atomic_store_explicit(&pool->stopping, true, memory_order_release);
    atomic_store_explicit(&pool->team.unattended, true, memory_order_release);
    if (!pool->housekeeper)
        return;
    far_pool_wake(pool);
    host->ops->join(host, pool->housekeeper);
    pool->housekeeper = NULL;
}


static int leave_catalog(far_task *t, void *arg) {
    (void)arg;
    return far_catalog_leave(t);
}


void far_pool_close(far_pool *pool) {
    if (!pool || far_pool_is_parents(pool) || atomic_exchange_explicit(&pool->closed, true, memory_order_seq_cst))
        return;
    while (!calls_are_over(pool))
        pause_briefly(pool);
    stop_housekeeping(pool);
    quiesce(pool->team.own); /* a sweep gives up; it may be in the way of the others */
    for (far_session *s = far_team_visit(&pool->team, NULL); s; s = far_team_visit(&pool->team, s))
        finish_session(s);
    far_session_call(pool->team.own, FAR_STATS_OTHER, true, leave_catalog, NULL); /* what fails is left to a sweep */
    close_own_session(pool);
    atomic_store_explicit(&pool->finished, true, memory_order_seq_cst);
    while (atomic_load_explicit(&pool->waiters, memory_order_seq_cst) != 0)
        pause_briefly(pool); /* on the fabric's host */
    pool->fabric->ops->close(pool->fabric);
    pool->fabric = NULL;
    release_pool(pool);
}
