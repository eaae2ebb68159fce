/* Opens and closes pool handles and sessions, and implements the guards of the public functions (client.h).
 *
 * A close of a handle sets `closed`, waits until no call is in progress, stops housekeeping, releases all sessions, and
 * closes the fabric. Sessions and indexes that the user has not closed yet remain allocated, and calls on them fail.
 * Each of them holds a reference to the far_pool, so the last close frees it. */
#include "base/budget.h"
#include "base/error.h"
#include "client/client.h"
#include "client/cursor.h"
#include "client/op.h"
#include "client/private_copy.h"
#include "index/common/rdwc.h"
#include "pool/catalog/catalog.h"
#include "pool/gc/collect.h"

#include <assert.h>
#include <stdlib.h>

#define OPEN_TRIES 3


/* ---- Fork ----
 *
 * A forked child has copies of the handles of its parent. Threads of the parent may have held locks of these handles at
 * the moment of the fork. The threads do not exist in the child and will never release the locks. Therefore, calls in
 * the child fail without acquiring a lock, and closes in the child do nothing. */

atomic_uint far_fork_count;


static void count_fork(void) {
    atomic_fetch_add_explicit(&far_fork_count, 1, memory_order_relaxed);
}


static void register_fork_handler(void) {
    pthread_atfork(NULL, NULL, count_fork);
}


static int fail_in_forked_child(void) {
    return far_fail(FAR_ERR_FENCED, "this handle was opened before a fork: the child process must open its own");
}


/* ---- Guards of the public calls ---- */

/* The call increments `calls` before it reads `closed`, and far_pool_close sets `closed` before it reads `calls`. All
 * four accesses are sequentially consistent, so at least one of the two threads observes the write of the other: either
 * the call fails, or far_pool_close waits for the call. */
int far_pool_enter(far_pool *pool) {
    if (!pool)
        return far_fail(FAR_ERR_INVALID, "pool is NULL");
    if (far_pool_is_of_parent_process(pool))
        return fail_in_forked_child();
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


int far_fail_unusable_session(far_session *s) {
    if (!s)
        return far_fail(FAR_ERR_INVALID, "session is NULL");
    return far_pool_is_of_parent_process(s->pool) ? fail_in_forked_child()
                                                  : far_fail(FAR_ERR_INVALID, "the pool of this session was closed");
}


int far_check_may_write(const far_session *s) {
    if (!s->pool->fabric->reads_only)
        return 0;
    return far_fail(FAR_ERR_UNSUPPORTED, "the secret of this handle permits only reading: it can show the state of the "
                                         "pool, but it can neither open nor change an index");
}


static void pause_briefly(far_pool *pool) {
    far_parker parker = {0};
    far_host *host = pool->fabric->host;
    host->ops->park(host, &parker, far_host_now(host) + far_tick(pool->fabric) / 10);
}


/* Returns whether no thread is inside a public function on this handle or on one of its sessions. */
static bool no_call_is_in_progress(far_pool *pool) {
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

/* Registers the session in the pool. *arg is the id of the system session of its handle, or 0 if this session is the
 * system session itself. (The system session is the one that housekeeping uses; its id represents the handle.) */
static int register_session(far_task *t, void *arg) {
    unsigned handle = *(unsigned *)arg;
    int err = far_client_register(t, handle);
    if (err < 0)
        return err;
    if (handle == 0)
        err = far_store_open(far_task_pool(t));
    if (err == 0)
        err = far_memory_open(t->session);
    /* The error of the registration is the one to report. If this unregistration fails too, the registry entry of a
     * failed client remains, and a collection removes it. */
    if (err < 0)
        far_client_unregister(t);
    return err;
}


/* Removes the session from the registry. For the system session, first returns all memory of the handle. */
static int unregister_session(far_task *t, void *arg) {
    (void)arg;
    int err = t->session == far_task_pool(t)->team.own ? far_memory_give_back_all(t) : 0;
    if (err < 0)
        /* If the session's memory could not be returned, the session stays registered, so that a collection treats it
         * as failed and finds the memory. */
        return err;
    return far_client_unregister(t);
}


/* Waits until no task of the session is active. These tasks may wait for work of tasks in other sessions. If there is
 * no housekeeping thread to drive the other sessions, this thread drives them, except for sessions that another thread
 * is inside of. */
static void wait_until_no_task_is_active(far_session *s) {
    far_pool *pool = s->pool;
    if (pool->housekeeper) {
        far_session_enter(s);
        far_session_drain(s);
        far_session_leave(s);
    }
    while (atomic_load_explicit(&s->active, memory_order_acquire) > 0) {
        far_session_list_drive(&pool->team);
        if (atomic_load_explicit(&s->active, memory_order_acquire) > 0)
            pause_briefly(pool);
    }
}


/* Task function: waits until the lost session *arg is fenced, on fabrics where fencing takes round trips. Until then
 * the verbs that the session has posted may still take effect at a memory node, so its pins must be counted. */
static int wait_until_fenced(far_task *t, void *arg) {
    far_session *s = arg;
    int err = far_pins_release_fenced(t);
    for (unsigned attempt = 0; err == 0 && s->id != 0 && far_task_fabric(t)->ops->ask &&
                               atomic_load_explicit(&s->pins.stuck, memory_order_seq_cst);
         attempt++) {
        far_back_off(t, attempt);
        err = far_pins_release_fenced(t);
    }
    return err;
}


/* Returns to the pool everything that the session holds there. If a step fails, a collection returns the rest after the
 * client is fenced. No other thread may be inside the session. */
static void release_session(far_session *s) {
    atomic_store_explicit(&s->closing, true, memory_order_relaxed);
    wait_until_no_task_is_active(s);
    if (s->id != 0 || s->memory)
        far_session_call(s, FAR_STATS_OTHER, true, unregister_session, NULL);
    wait_until_no_task_is_active(s);
    far_memory_close(s);
    if (atomic_load_explicit(&s->pins.stuck, memory_order_seq_cst) && s->pool->team.own && s != s->pool->team.own)
        /* If there is no system session, or the system session itself is lost, the whole handle is fenced, and the pins
         * of this session protect nothing any more. */
        far_session_call(s->pool->team.own, FAR_STATS_OTHER, true, wait_until_fenced, s);
    /* This thread enters the session and never leaves it, so that housekeeping does not run the session after its
     * connection is freed. */
    far_session_enter(s);
    far_session_drain(s);
    if (s != s->pool->team.own)
        far_status_record_add_session(s);
    s->conn->leaves |= s->pool->fabric->reads_only;
    s->conn->fabric->ops->disconnect(s->conn);
    s->conn = NULL;
}


static int fail_handle_fenced(void) {
    return far_fail(FAR_ERR_FENCED, "this pool handle was declared failed (fenced): close it and open the pool again");
}


/* Called for each registry entry: increments the counter *ctx if the client has failed. */
static int count_failed_client(far_task *t, void *ctx, unsigned id, const far_client *client) {
    far_client_state state = far_client_state_of(client->word);
    int dead = state == FAR_CLIENT_FENCED;
    if (state == FAR_CLIENT_LIVE && id != t->session->id)
        dead = far_control_send(t, FAR_CONTROL_HAS_FAILED, id, far_client_generation_of(client->word));
    *(unsigned *)ctx += dead > 0;
    return dead < 0 ? dead : 0;
}


/* Task function: runs a collection if session ids may run out. The id of a failed client becomes free only after a
 * collection. If processes end before their housekeeping runs a collection, they would use up all ids, and then no
 * client could register to run one. Therefore a client that receives a high id counts the failed clients, and runs a
 * collection if there are many. If this collection fails, the next client with a high id tries again. */
static int collect_if_ids_are_scarce(far_task *t, void *arg) {
    unsigned slots = far_task_pool(t)->geometry.session_slots, dead = 0;
    far_collect_result result;
    (void)arg;
    /* A client receives the lowest free id, so a low id means that ids are not scarce. */
    if (t->session->id <= slots / 2)
        return 0;
    int err = far_clients_each(t, count_failed_client, &dead);
    if (err >= 0 && dead >= slots / 4)
        err = far_collect(t, FAR_COLLECT_REPAIR, &result);
    return err;
}


/* Connects and registers a session. The session is added to the session list of its handle before it takes a pin,
 * because housekeeping must see all pins of the handle. */
static int open_session(far_pool *pool, far_session **session) {
    far_session *s;
    int err = far_pool_session_new(pool, &s);
    if (err < 0)
        return err;
    far_pool_reference(pool);
    far_session_list_add(&pool->team, s);
    unsigned handle = pool->team.own->id;
    if (!pool->fabric->reads_only)
        err = far_session_call(s, FAR_STATS_OTHER, true, register_session, &handle);
    if (err < 0) {
        release_session(s);
        far_session_list_remove(&pool->team, s);
        far_submitted_ops_free(s);
        far_session_free(s);
        far_pool_release(pool);
        return err;
    }
    if (!pool->fabric->reads_only)
        far_session_call(s, FAR_STATS_OTHER, true, collect_if_ids_are_scarce, NULL);
    *session = s;
    return 0;
}


int far_session_open(far_pool *pool, far_session **session) {
    if (!session)
        return far_fail(FAR_ERR_INVALID, "session: is NULL");
    *session = NULL;
    int err = far_pool_enter(pool);
    if (err < 0)
        return err;
    if (atomic_load_explicit(&pool->team.dead, memory_order_acquire))
        err = fail_handle_fenced();
    else
        err = open_session(pool, session);
    /* Two clients may compete for one session id. The connection of the loser briefly carries the identity of the
     * winner. If the winner is fenced in that moment, the loser is fenced, too, and must try again. */
    for (unsigned tries = 0;
         err == FAR_ERR_FENCED && tries < OPEN_TRIES && !atomic_load_explicit(&pool->team.dead, memory_order_acquire);
         tries++)
        err = open_session(pool, session);
    far_pool_leave(pool);
    return err;
}


/* This function does not count as a call in progress. Otherwise far_pool_close would wait for this call while this call
 * waits for far_pool_close. */
void far_pool_await_close(far_pool *pool) {
    atomic_fetch_add_explicit(&pool->waiters, 1, memory_order_seq_cst);
    while (!atomic_load_explicit(&pool->finished, memory_order_seq_cst))
        pause_briefly(pool);
    atomic_fetch_sub_explicit(&pool->waiters, 1, memory_order_seq_cst);
}


void far_session_close(far_session *s) {
    if (!s || far_pool_is_of_parent_process(s->pool))
        return;
    far_pool *pool = s->pool;
    if (far_pool_enter(pool) == 0) {
        release_session(s);
        far_session_list_remove(&pool->team, s);
        far_pool_leave(pool);
    } else {
        far_pool_await_close(pool);
        far_session_list_remove(&pool->team, s);
    }
    far_submitted_ops_free(s);
    far_cursors_detach(s);
    far_ranges_free(s);
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


/* Opens the system session, formats the pool if its memory is all zero, and registers the session.
 *
 * If the memory nodes permit only READs, the session is not registered, so other clients do not know of this handle.
 * Its pins are only counted locally and protect nothing: memory that it reads may be reused at any time. Such a handle
 * can only take statistics snapshots and list indexes and clients, which tolerate that. It needs no housekeeping. */
static int open_own_session(far_pool *pool) {
    int err = far_pool_session_new(pool, &pool->team.own);
    if (err < 0)
        return err;
    /* far_index_close must not fail for lack of memory, so the coroutine that its task needs is allocated now. */
    if (!far_session_prepare(pool->team.own))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a coroutine");
    unsigned none = 0;
    err = far_session_call(pool->team.own, FAR_STATS_OTHER, true, open_superblock, pool);
    if (err == 0 && pool->fabric->reads_only) {
        far_epochs_open_reader(&pool->epochs);
        return far_store_open(pool);
    }
    if (err == 0)
        err = far_session_call(pool->team.own, FAR_STATS_OTHER, true, register_session, &none);
    return err;
}


static void close_own_session(far_pool *pool) {
    if (!pool->team.own)
        return;
    release_session(pool->team.own);
    far_submitted_ops_free(pool->team.own);
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
    if (options->salvage != 0 && options->salvage != 1)
        return far_fail(FAR_ERR_INVALID, "options.salvage is %d, not 0 or 1", options->salvage);
    return 0;
}


/* Frees the table of RDWC, which merges concurrent operations on one key, and drops a reference of the handle. No
 * operation may be in progress or start later. */
static void free_rdwc_and_release(far_pool *pool) {
    far_rdwc_free(pool->rdwc);
    pool->rdwc = NULL;
    far_pool_release(pool);
}


/* Allocates a handle with its caches and tables. Accesses no far memory. Returns NULL if there is no memory. */
static far_pool *create_pool_handle(const far_pool_options *options) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handler);
    far_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return NULL;
    pool->forks = atomic_load_explicit(&far_fork_count, memory_order_relaxed);
    pool->options = *options;
    if (pool->options.cache_bytes == 0)
        pool->options.cache_bytes = FAR_BUDGET_DEFAULT;
    if (pool->options.rdwc == 0)
        pool->options.rdwc = 1;
    /* In a private copy of the pool, everything is allowed that makes it readable. */
    if (pool->options.salvage)
        pool->options.no_thread = pool->options.restore = pool->options.ignore_refuted = 1;
    bool merges = pool->options.rdwc == 1;
    pool->kinds = far_index_kinds;
    pthread_mutex_init(&pool->lock, NULL);
    far_pool_reference(pool);
    pthread_mutex_init(&pool->team.lock, NULL);
    atomic_init(&pool->team.unattended, pool->options.no_thread != 0);
    far_epochs_open(&pool->epochs);
    pool->budget = far_budget_new(pool->options.cache_bytes);
    pool->team.latches = far_latches_new();
    pool->rdwc = merges ? far_rdwc_new(FAR_RDWC_QUIET_BELOW) : NULL;
    if (pool->budget && pool->team.latches && (pool->rdwc || !merges))
        return pool;
    free_rdwc_and_release(pool);
    return NULL;
}


/* Connects the handle to the memory nodes and starts housekeeping. */
static int connect_pool(far_pool *pool, const char *uri) {
    int err = pool->options.salvage      ? far_private_copy_open(uri, &pool->fabric)
              : pool->options.must_exist ? far_fabric_open_existing(uri, &pool->fabric)
                                         : far_fabric_open(uri, &pool->fabric);
    if (err == 0)
        err = open_own_session(pool);
    if (err < 0)
        return err;
    far_host *host = pool->fabric->host;
    far_housekeeping_begin(pool);
    if (pool->fabric->reads_only)
        atomic_store_explicit(&pool->team.unattended, true, memory_order_release);
    else if (!pool->options.no_thread && host->ops->start(host, far_housekeeping_thread, pool, &pool->housekeeper) < 0)
        return far_fail(FAR_ERR_NO_MEMORY, "no thread for housekeeping could be started");
    return 0;
}


int far_pool_open(const char *uri, const far_pool_options *options, far_pool **pool) {
    static const far_pool_options defaults = FAR_POOL_OPTIONS_INIT;
    if (!pool)
        return far_fail(FAR_ERR_INVALID, "pool: is NULL");
    *pool = NULL;
    if (!uri)
        return far_fail(FAR_ERR_INVALID, "uri is NULL");
    int err = check_options(options ? options : &defaults);
    if (err < 0)
        return err;
    far_pool *made = create_pool_handle(options ? options : &defaults);
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a pool handle");
    err = connect_pool(made, uri);
    if (err < 0) {
        close_own_session(made);
        if (made->fabric)
            made->fabric->ops->close(made->fabric);
        free_rdwc_and_release(made);
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
        err = fail_handle_fenced();
    far_pool_leave(pool);
    return err < 0 ? err : 0;
}


/* Ends the housekeeping thread. From then on, tasks that wait for background work do that work themselves. */
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


static int detach_indexes_and_status(far_task *t, void *arg) {
    (void)arg;
    far_catalog_detach_indexes(t);
    return far_status_record_retire(t);
}


void far_pool_close(far_pool *pool) {
    if (!pool || far_pool_is_of_parent_process(pool) ||
        atomic_exchange_explicit(&pool->closed, true, memory_order_seq_cst))
        return;
    while (!no_call_is_in_progress(pool))
        pause_briefly(pool);
    stop_housekeeping(pool);
    /* A collection in progress stops when `stopping` is set. The close waits for its end here, because other clients
     * may wait for the collection. */
    wait_until_no_task_is_active(pool->team.own);
    for (far_session *s = far_session_list_next(&pool->team, NULL); s; s = far_session_list_next(&pool->team, s))
        release_session(s);
    /* If this call fails, a collection frees the status record. */
    if (!pool->fabric->reads_only)
        far_session_call(pool->team.own, FAR_STATS_OTHER, true, detach_indexes_and_status, NULL);
    close_own_session(pool);
    atomic_store_explicit(&pool->finished, true, memory_order_seq_cst);
    while (atomic_load_explicit(&pool->waiters, memory_order_seq_cst) != 0)
        /* The pause uses the host (the clock) of the fabric, so the fabric is closed after this loop. */
        pause_briefly(pool);
    pool->fabric->ops->close(pool->fabric);
    pool->fabric = NULL;
    free_rdwc_and_release(pool);
}
