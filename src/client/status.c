/* Publishes the status record of the handle (its counters, for `farindex top`) and the key counts of its indexes.
 * Operations only increment counters in the local memory of their session. Housekeeping sums the counters from time to
 * time and writes them to far memory. */
#include "client/client.h"
#include "client/op.h"
#include "pool/catalog/layout.h"
#include "task/latch.h"

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


/* Adds the counts of `more` to `row`, a row of the status record, and clears `more`. Each row belongs to one place in
 * the table of open indexes. If the row contains counts of another index, which had this place before, those counts are
 * discarded. */
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
    pool->status_changed = true;
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


/* Copies the status record and returns whether it has changed since the last call. */
static bool copy_status_record(far_pool *pool, far_status_record *copy) {
    pthread_mutex_lock(&pool->lock);
    bool changed = pool->status_changed || pool->bulletin.process == 0;
    if (pool->bulletin.process == 0)
        set_process_name(pool, &pool->bulletin);
    pool->status_changed = false;
    pool->bulletin.told += changed;
    *copy = pool->bulletin;
    pthread_mutex_unlock(&pool->lock);
    return changed;
}


/* Writes the status record to far memory after the table of open indexes, if it has changed. Skips the write if
 * another task is changing that table. */
static int write_status_record(far_task *t) {
    far_pool *pool = far_task_pool(t);
    if (!far_latch_try(t, FAR_LATCH_OPEN_TABLE))
        return 0;
    int err = 0;
    far_status_record *copy = far_scratch(t, sizeof(*copy));
    if (copy && pool->open_table.table && copy_status_record(pool, copy)) {
        far_write(t, far_status_record_of(pool->open_table.table), copy, sizeof(*copy));
        err = far_wait(t);
    }
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    return err;
}


static bool index_has_key_count_deltas(const far_index *index) {
    for (unsigned i = 0; i < FAR_KEY_COUNT_DELTAS; i++)
        if (atomic_load_explicit(&index->key_count_deltas[i].keys, memory_order_relaxed) != 0)
            return true;
    return false;
}


/* Adds the number of keys that this handle has added or removed since the last call to the record of the index in far
 * memory. The task takes a pin before it checks that the user has the index open. So the record existed while the pin
 * was held, and its memory is not reused before the pin is dropped. */
static int publish_key_count(far_task *t, far_index *index) {
    far_pool *pool = far_task_pool(t);
    if (!index_has_key_count_deltas(index))
        return 0;
    int err = far_pin_take(t);
    if (err < 0)
        return err;
    pthread_mutex_lock(&pool->lock);
    bool open = index->opens > 0;
    pthread_mutex_unlock(&pool->lock);
    err = open ? far_catalog_publish_key_counts(t, index) : 0;
    far_pin_drop(t);
    return err;
}


static int publish_all_key_counts(far_task *t) {
    far_pool *pool = far_task_pool(t);
    int err = 0;
    for (far_index *index = far_pool_use_index(pool, NULL); index; index = far_pool_use_index(pool, index))
        err = err < 0 ? err : publish_key_count(t, index);
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
