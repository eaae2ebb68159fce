/* Housekeeping: the background work of a handle. It advances epochs, reclaims memory, detects failed clients, runs
 * collections, and calls the idle hooks of the index kinds.
 *
 * Housekeeping runs in slices (far_housekeeping). A slice runs as a task of the handle's system session, either in the
 * housekeeping thread (far_housekeeping_thread) or in far_pool_poll. After each slice the thread also drives user
 * sessions that have active tasks and no thread inside. Work that may wait for other clients runs in separate tasks, so
 * that slices continue meanwhile. */
#include "client/client.h"
#include "index/index.h"
#include "pool/gc/request.h"

#define QUIESCENT_TICKS  100u  /* number of ticks between two inspections of the pool by a quiescent handle */
#define LIVENESS_TICKS   1000u /* number of ticks between two liveness checks of registry entries */
#define LIVENESS_ENTRIES 64u   /* number of registry entries per liveness check */
/* shortest time, in ticks, between the request for a collection and its start, and between two collections */
#define COLLECTION_PAUSE_TICKS 200u
#define BUSY_PAUSE_NS          50000u /* pause before the next slice, in ns, while work is in progress */
#define BUSY_PAUSE_RTTS        4u
#define IDLE_DOUBLINGS         3u /* how often the pause of an active handle without work can double */


static bool time_is_real(const far_pool *pool) {
    return pool->fabric->host == &far_host_threads;
}


/* Returns whether verbs complete without network delay and the fabric uses real time, not simulated time. */
static bool fabric_is_near(const far_pool *pool) {
    return time_is_real(pool) && !pool->fabric->ops->ask;
}


/* ---- Parts of a slice, run in the system session ---- */

/* Calls the idle hook of every open index, each with a pin. Returns 1 if any of the indexes has more work to do. */
static int run_idle_hooks(far_task *t) {
    far_pool *pool = far_task_pool(t);
    int more = 0, err = 0, first_err = 0;
    for (far_index *index = far_pool_use_index(pool, NULL); index; index = far_pool_use_index(pool, index)) {
        if (!index->kind->idle_hook || t->session->lost)
            continue;
        t->index_key = index->uid;
        if ((err = far_pin_take(t)) == 0) {
            err = index->kind->idle_hook(t, index);
            far_pin_drop(t);
        }
        t->index_key = 0;
        if (err == FAR_ERR_DROPPED)
            err = 0;
        more |= err > 0;
        if (err < 0 && first_err == 0)
            first_err = err;
    }
    if (more)
        far_epoch_keep_active(pool);
    return first_err < 0 ? first_err : more;
}


typedef struct liveness_check {
    unsigned from, to; /* range of client ids to check */
    unsigned last;     /* highest client id that was ever used in this pool */
    unsigned count;
    far_control questions[LIVENESS_ENTRIES];
} liveness_check;


/* Queries the liveness of the collected clients in one batch of control messages. Marks failed clients in the registry,
 * which also requests a collection. */
static int query_collected_clients(far_task *t, liveness_check *check) {
    int err = 0;
    far_control_send_all(t, check->questions, check->count);
    for (unsigned i = 0; i < check->count && err >= 0; i++) {
        err = check->questions[i].answer;
        if (err > 0)
            err = far_client_confirm_failed(t, check->questions[i].id, check->questions[i].generation);
    }
    check->count = 0;
    return err < 0 ? err : 0;
}


/* Called for each registry entry: adds a live client in the range to the batch of control messages, and sends the batch
 * when it is full. */
static int collect_client(far_task *t, void *ctx, unsigned id, const far_client *client) {
    liveness_check *check = ctx;
    check->last = id;
    if (id < check->from || id > check->to || far_client_state_of(client->word) != FAR_CLIENT_LIVE ||
        id == t->session->id)
        return 0;
    check->questions[check->count++] =
        (far_control){.kind = FAR_CONTROL_HAS_FAILED, .id = id, .generation = far_client_generation_of(client->word)};
    return check->count == LIVENESS_ENTRIES ? query_collected_clients(t, check) : 0;
}


/* Checks the liveness of the registry entries in the range, many in one batch. */
static int check_liveness(far_task *t, liveness_check *check) {
    int err = far_clients_each(t, collect_client, check);
    return err < 0 ? err : query_collected_clients(t, check);
}


/* Checks the liveness of the next LIVENESS_ENTRIES registry entries, if a check is due (every LIVENESS_TICKS). */
static int check_next_clients(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t now = far_now(t);
    if (now < pool->next_check)
        return 0;
    pool->next_check = now + LIVENESS_TICKS * far_tick(pool->fabric);
    liveness_check check = {.from = pool->check_cursor + 1, .to = pool->check_cursor + LIVENESS_ENTRIES};
    int err = check_liveness(t, &check);
    pool->check_cursor = check.last <= check.to ? 0 : pool->check_cursor + LIVENESS_ENTRIES;
    return err;
}


/* Marks clients as failed if the fabric has reported their failure since the last call, and makes a quiescent handle
 * inspect the pool. Does nothing on fabrics without such notifications. The first call subscribes to notifications and
 * then checks all clients, because failures before the subscription are not reported. */
static int process_failure_notifications(far_task *t) {
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
            err = far_client_confirm_failed(t, id, generation);
    }
    if (err >= 0 && all) {
        liveness_check check = {.from = 1, .to = FAR_CLIENT_ID_MAX};
        pool->next_look = 0;
        err = check_liveness(t, &check);
    }
    return err < 0 ? err : 0;
}


/* ---- Work that waits for other clients: separate tasks of the system session, so that slices continue meanwhile ----
 */

static void run_collection(far_task *t, void *arg) {
    far_pool *pool = arg;
    far_collect_result result;
    uint64_t begun = far_now(t), tick = far_tick(pool->fabric);
    t->background = true;
    int err = far_collect(t, FAR_COLLECT_IN_BACKGROUND, &result);
    uint64_t pause = 3 * (far_now(t) - begun);
    pool->collection_failures = err < 0 && err != FAR_ERR_BUSY ? pool->collection_failures + 1 : 0;
    /* After an error the cause probably persists (for example, an index is damaged), so the pause grows with each
     * failure. */
    if (pool->collection_failures > 0)
        pause = COLLECTION_PAUSE_TICKS * tick << (pool->collection_failures < 8 ? pool->collection_failures : 8);
    pool->collect_at = far_now(t) + (pause < COLLECTION_PAUSE_TICKS * tick ? COLLECTION_PAUSE_TICKS * tick : pause);
    pool->collection_runs = false;
}


/* Returns whether this handle should start a collection now. The first call after a request sets the time of the start.
 * The delay depends on the id of the handle, so that usually one handle starts first and the other handles find the
 * collection done. */
static bool schedule_collection(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t now = far_now(t);
    if (pool->collection_runs || !far_collection_was_requested(pool)) {
        if (now >= pool->collect_at)
            pool->collect_at = 0;
        return false;
    }
    if (pool->collect_at == 0)
        pool->collect_at =
            now + (COLLECTION_PAUSE_TICKS + pool->team.own->id * 37 % COLLECTION_PAUSE_TICKS) * far_tick(pool->fabric);
    return now >= pool->collect_at;
}


static void start_collection_if_due(far_task *t) {
    far_pool *pool = far_task_pool(t);
    if (schedule_collection(t))
        pool->collection_runs = far_task_new(t->session, FAR_STATS_OTHER, run_collection, pool) != NULL;
}


static void run_free_dropped(far_task *t, void *arg) {
    far_pool *pool = arg;
    t->background = true;
    far_dropped_free(t, FAR_TIME_NEVER); /* If this task fails, a later slice starts it again. */
    atomic_store_explicit(&pool->freeing_dropped, false, memory_order_relaxed);
}


/* Starts a task that frees the memory of dropped indexes, if the catalog has changed since the previous start of such a
 * task. */
static void start_free_dropped_if_due(far_task *t) {
    far_pool *pool = far_task_pool(t);
    if (far_dropped_is_due(pool))
        atomic_store_explicit(&pool->freeing_dropped,
                              far_task_new(t->session, FAR_STATS_OTHER, run_free_dropped, pool) != NULL,
                              memory_order_relaxed);
}


/* Inspects the pool on behalf of a quiescent handle, and makes the handle active if it has work to do: a collection is
 * due, its sweep phase is pending, an index was dropped, or another client needs memory. On fabrics that report
 * changes, the handle inspects the pool only after such a report and until the work is done. On other fabrics it
 * inspects the pool periodically. */
static int inspect_pool_while_quiescent(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t now = far_now(t), words[FAR_SUPER_LINE_WORDS];
    if (now < pool->next_look)
        return 0;
    pool->next_look = now + QUIESCENT_TICKS * far_tick(pool->fabric);
    far_read(t, far_addr_make(0, FAR_SUPER_REQUEST), words, sizeof(words));
    int err = far_wait(t);
    bool told = pool->fabric->ops->told != NULL;
    if (err == 0 && !told)
        err = check_next_clients(t);
    if (err < 0)
        return err;
    far_superblock_copy_store(pool, words);
    bool due = schedule_collection(t) || far_dropped_is_due(pool) || far_memory_must_become_active(pool, words[0]);
    bool has_work_when_quiescent = due || far_collection_was_requested(pool);
    if (told && !has_work_when_quiescent)
        pool->next_look = FAR_TIME_NEVER;
    if (!atomic_exchange_explicit(&pool->has_work_when_quiescent, has_work_when_quiescent, memory_order_seq_cst) &&
        has_work_when_quiescent)
        /* The caller may be a user thread in far_pool_poll, while the housekeeping thread sleeps until the fabric wakes
         * it. */
        far_pool_wake(pool);
    if (due) {
        far_epoch_keep_active(pool);
        err = far_pin_take(t);
        far_pin_drop(t);
    }
    return err;
}


void far_housekeeping_begin(far_pool *pool) {
    uint64_t now = far_host_now(pool->fabric->host);
    pool->next_look = now + 100 * far_tick(pool->fabric);
    pool->next_check = now + 1000 * far_tick(pool->fabric);
}


/* Runs the steps of one slice. Returns 1 if there is more work to do now, 0 if not, or an error. */
static int run_slice_steps(far_task *t, far_pool *pool) {
    const far_fabric *fabric = pool->fabric;
    int err = fabric->ops->renew ? fabric->ops->renew(t->session->conn) : 0;
    if (err < 0 || (err = process_failure_notifications(t)) < 0 || (err = far_status_record_tick(t)) < 0)
        return err;
    if (!far_epoch_is_active(pool))
        return inspect_pool_while_quiescent(t);
    if (fabric->ops->told) {
        /* Zero means that the next inspection is due at once, so the handle inspects the pool once after it becomes
         * quiescent. */
        pool->next_look = 0;
        atomic_store_explicit(&pool->has_work_when_quiescent, true, memory_order_seq_cst);
    }
    int moved = far_epoch_tick(t);
    if (moved < 0)
        return moved;
    int more = far_memory_tick(t);
    if (more == 0 && far_epoch_is_idle(t))
        more = far_memory_release_blocks(t);
    if (more >= 0 && (err = check_next_clients(t)) < 0)
        more = err;
    if (more >= 0 && atomic_load_explicit(&pool->epochs.current, memory_order_relaxed) != 0) {
        start_collection_if_due(t);
        start_free_dropped_if_due(t);
        if ((err = run_idle_hooks(t)) < 0)
            return err;
        more |= err;
    }
    return more < 0 ? more : moved | more;
}


/* Task function of a slice. Marks the handle as failed if its system session is lost. */
static int run_slice(far_task *t, void *arg) {
    far_pool *pool = arg;
    int result = run_slice_steps(t, pool);
    if (t->session->lost)
        atomic_store_explicit(&pool->team.dead, true, memory_order_release);
    return result;
}


int far_housekeeping(far_pool *pool) {
    int off = 0;
    if (pool->fabric->reads_only)
        return 0;
    if (!atomic_compare_exchange_strong_explicit(&pool->polling, &off, 1, memory_order_acquire, memory_order_relaxed))
        return 0;
    int more = far_session_call(pool->team.own, FAR_STATS_OTHER, true, run_slice, pool);
    if (atomic_load_explicit(&pool->team.dead, memory_order_acquire))
        far_session_list_lose_all(&pool->team);
    bool busy = far_session_list_drive_users(&pool->team) ||
                atomic_load_explicit(&pool->team.own->active, memory_order_relaxed) > 0;
    atomic_store_explicit(&pool->polling, 0, memory_order_release);
    return busy ? 1 : more;
}


static bool handle_is_active(far_pool *pool) {
    return far_epoch_is_active(pool) && !atomic_load_explicit(&pool->team.dead, memory_order_relaxed);
}


/* Returns the pause until the next slice of an active handle. Each slice takes processor time from the program. In a
 * handle with operations that only read, or that free little memory, most slices have nothing to do. Therefore the
 * pause doubles, up to IDLE_DOUBLINGS times, while no epoch passes and this handle requests none.
 *
 * An event of this handle that needs a slice earlier wakes the housekeeping thread: a request for the next epoch, a
 * submitted operation, or the close of the handle. (An operation that is submitted while the pause is being computed
 * waits for the whole pause.) If another handle requests an epoch, the other handle waits for the whole pause once.
 * Then the epoch advances, and the pause is one tick again. */
static uint64_t update_idle_pause(far_pool *pool, uint64_t tick) {
    uint64_t epoch = atomic_load_explicit(&pool->epochs.known, memory_order_relaxed);
    bool calm = epoch == pool->idle_epoch && atomic_load_explicit(&pool->epochs.requests, memory_order_relaxed) == 0;
    pool->idle_epoch = epoch;
    pool->idle_slices = calm ? pool->idle_slices + 1 : 0;
    return tick << (pool->idle_slices < IDLE_DOUBLINGS ? pool->idle_slices : IDLE_DOUBLINGS);
}


void far_housekeeping_thread(void *arg) {
    far_pool *pool = arg;
    far_host *host = pool->fabric->host;
    uint64_t brief = fabric_is_near(pool) ? BUSY_PAUSE_NS : BUSY_PAUSE_RTTS * pool->fabric->rtt,
             tick = far_tick(pool->fabric);
    while (!atomic_load_explicit(&pool->stopping, memory_order_acquire)) {
        int more = far_housekeeping(pool);
        bool awake = handle_is_active(pool);
        uint64_t pause = more > 0 ? brief : awake ? update_idle_pause(pool, tick) : QUIESCENT_TICKS * tick;
        atomic_store_explicit(&pool->resting, pause > tick, memory_order_seq_cst);
        if (pool->fabric->ops->wait_for_notification && more <= 0 && !awake)
            pool->fabric->ops->wait_for_notification(
                pool->team.own->conn, &pool->parker,
                atomic_load_explicit(&pool->has_work_when_quiescent, memory_order_seq_cst) ? far_host_now(host) + pause
                                                                                           : FAR_TIME_NEVER);
        else
            host->ops->park(host, &pool->parker, far_host_now(host) + pause);
    }
}
