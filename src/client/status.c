/* Publishes the status record of the handle (its counters, for `farindex top`) and the key counts of its indexes.
 * Operations only increment counters in the local memory of their session. Housekeeping sums the counters from time to
 * time and writes them to far memory. */
#include "client/client.h"
#include "client/op.h"
#include "pool/catalog/layout.h"

#include <string.h>

#define STATUS_RECORD_TICKS 100u /* number of ticks between two writes of the status record */


/* ---- Summing ---- */

static void add_counters(far_status_record *b, const far_stats *more) {
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        b->ops[kind] += more->ops[kind];
    b->round_trips += more->round_trips;
    b->verbs += more->reads + more->writes + more->cas + more->faa + more->masked_cas;
    b->retries += more->retries;
    b->bytes_read += more->bytes_read;
    b->bytes_written += more->bytes_written;
    b->cache_hits += more->cache_hits;
    b->cache_misses += more->cache_misses;
    b->merged += more->delegated_reads + more->combined_writes;
}


/* Adds the counts of `more` to `row`, a row of the status record, and clears `more`. Each row belongs to one slot number
 * (far_index.slot). If the row contains counts of another index, which had this slot before, those counts are discarded.
 */
static void move_index_row(far_index_ops *row, far_index_ops *more) {
    bool any = false;
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        any |= more->ops[kind] != 0;
    if (!any)
        return;
    if (row->uid != more->uid)
        *row = (far_index_ops){.uid = more->uid};
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        row->ops[kind] += more->ops[kind];
    *more = (far_index_ops){.uid = more->uid};
}


void far_index_ops_restart(far_index_ops *of, uint32_t uid) {
    *of = (far_index_ops){.uid = uid};
}


void far_status_record_add_session(far_session *s) {
    far_pool *pool = s->pool;
    far_stats now, more;
    far_stats_sum(s, &now);
    more = far_stats_diff(&now, &s->told);
    bool any = false;
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        any |= more.ops[kind] != 0;
    if (!any) /* If the session has executed no operation of the user, its own background work is not published. */
        return;
    s->told = now;
    pthread_mutex_lock(&pool->lock);
    add_counters(&pool->bulletin, &more);
    for (unsigned i = 0; i < FAR_COUNTED_INDEXES; i++)
        move_index_row(&pool->bulletin.indexes[i], &s->by_index[i]);
    far_status_note_change(pool);
    pthread_mutex_unlock(&pool->lock);
}


/* Adds the counters of all sessions to the status record. If another thread is inside a session, this function leaves a
 * deferred call in the session, and the other thread adds the counters when it next waits for the fabric. */
static void collect_sessions(far_pool *pool) {
    for (far_session *s = far_session_list_next(&pool->team, NULL); s; s = far_session_list_next(&pool->team, s))
        if (far_session_try_enter(s)) {
            far_status_record_add_session(s);
            far_session_leave(s);
        } else {
            atomic_store_explicit(&s->deferred_call, far_status_record_add_session, memory_order_relaxed);
        }
}


/* ---- Publishing ---- */

/* In the simulator all handles get the same name, because its runs must not depend on the host. */
static void set_process_name(const far_pool *pool, far_status_record *b) {
    if (pool->fabric->host != &far_host_threads) {
        b->process = 1;
        return;
    }
    far_name self;
    far_name_self(&self);
    b->process = (uint64_t)self.process;
    memcpy(b->host, self.host, sizeof(b->host));
    memcpy(b->command, self.command, sizeof(b->command));
}


/* With the pool's lock held, sets the list of open indexes in the status record. */
static void list_open_indexes(const far_pool *pool, far_status_record *b) {
    b->open_count = 0;
    for (const far_index *index = pool->indexes; index && b->open_count < FAR_STATUS_OPEN_MAX; index = index->next)
        if (index->opens > 0)
            b->open[b->open_count++] = index->uid;
}


static bool has_opened_index(far_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    bool opened = pool->indexes_linked > 0;
    pthread_mutex_unlock(&pool->lock);
    return opened;
}


/* Copies the status record and returns whether it has changed since the last call. */
static bool copy_status_record(far_pool *pool, far_status_record *copy) {
    pthread_mutex_lock(&pool->lock);
    bool changed = far_status_take_change(pool);
    if (pool->bulletin.process == 0)
        set_process_name(pool, &pool->bulletin);
    pool->bulletin.magic = FAR_STATUS_MAGIC;
    pool->bulletin.client = pool->team.own->id;
    pool->bulletin.generation = pool->team.own->generation;
    list_open_indexes(pool, &pool->bulletin);
    pool->bulletin.told += changed;
    *copy = pool->bulletin;
    pthread_mutex_unlock(&pool->lock);
    return changed;
}


/* Writes the status record to a new object, and then the address of the object to the registry entry. */
static int create_status_record(far_task *t, const far_status_record *record) {
    far_pool *pool = far_task_pool(t);
    far_object object;
    int err = far_alloc(t, NULL, FAR_POOL_TYPE_STATUS, sizeof(*record), 0, 0, &object);
    if (err < 0)
        return err;
    pool->status = object.addr;
    far_write(t, object.addr, record, sizeof(*record));
    if ((err = far_wait(t)) == 0)
        err = far_write_word(t, far_status_word_of(pool->team.own->id), object.addr);
    return err;
}


/* Writes the status record to far memory, if it has changed. A handle has no status record in far memory before it opens
 * an index, and as long as the pool is full. All these verbs are posted in the system session. If that session is lost,
 * the handle has failed, and a collection frees the record after the session was fenced. */
static int write_status_record(far_task *t) {
    far_pool *pool = far_task_pool(t);
    far_status_record *copy = far_scratch(t, sizeof(*copy));
    if (!copy || !has_opened_index(pool) || !copy_status_record(pool, copy))
        return 0;
    int err = far_pin_take(t);
    if (err == 0 && pool->status == 0)
        err = create_status_record(t, copy);
    else if (err == 0) {
        far_write(t, pool->status, copy, sizeof(*copy));
        err = far_wait(t);
    }
    far_pin_drop(t);
    if (err != FAR_ERR_NO_MEMORY)
        return err;
    pthread_mutex_lock(&pool->lock);
    far_status_note_change(pool);
    pthread_mutex_unlock(&pool->lock);
    return 0;
}


int far_status_record_retire(far_task *t) {
    far_pool *pool = far_task_pool(t);
    if (pool->status == 0)
        return 0;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_write_word(t, far_status_word_of(pool->team.own->id), 0);
    if (err == 0)
        far_retire(t, NULL, FAR_POOL_TYPE_STATUS, pool->status, sizeof(far_status_record));
    pool->status = 0;
    far_pin_drop(t);
    return err;
}


/* Adds the number of keys that this handle has added or removed since the last call to the records of its indexes. */
static int publish_all_key_counts(far_task *t) {
    far_pool *pool = far_task_pool(t);
    int err = 0;
    for (far_index *index = far_pool_use_index(pool, NULL); index; index = far_pool_use_index(pool, index)) {
        err = err < 0 ? err : far_catalog_publish_key_counts(t, index);
        far_pin_drop(t);
    }
    return err;
}


/* Writes the status record and the key counts if a write is due. A handle that becomes quiescent publishes at once,
 * because its next slice may be a long time away. */
int far_status_record_tick(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t now = far_now(t);
    if (now < pool->next_status_write && far_epoch_is_active(pool))
        return 0;
    pool->next_status_write = now + STATUS_RECORD_TICKS * far_tick(pool->fabric);
    collect_sessions(pool);
    int err = publish_all_key_counts(t);
    return err < 0 ? err : write_status_record(t);
}
