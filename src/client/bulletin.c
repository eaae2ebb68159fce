/* What a handle tells of itself to those who watch the pool: its counters, and how many keys were added to indexes.
 * Operations only count, in memory of their session; housekeeping adds up and writes, now and then. */
#include "client/client.h"
#include "client/op.h"
#include "pool/catalog_layout.h"
#include "task/latch.h"

#include <string.h>

#define BULLETIN_TICKS 100u /* between two bulletins */


/* ---- Adding up ---- */

static void add_stats(far_bulletin *b, const far_stats *more) {
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


/* The row has the place of the index in the table; the index that had it before is forgotten. */
static void add_row(far_index_ops *row, far_index_ops *more) {
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


void far_count_anew(far_index_ops *of, uint32_t uid) {
    *of = (far_index_ops){.uid = uid};
}


void far_bulletin_add(far_session *s) {
    far_pool *pool = s->pool;
    far_stats now, more;
    far_stats_sum(s, &now);
    more = far_stats_diff(&now, &s->told);
    bool any = false;
    for (unsigned kind = 0; kind <= FAR_OP_SCAN; kind++)
        any |= more.ops[kind] != 0;
    if (!any) /* what a session does for itself is not told */
        return;
    s->told = now;
    pthread_mutex_lock(&pool->lock);
    add_stats(&pool->bulletin, &more);
    for (unsigned i = 0; i < FAR_COUNTED_INDEXES; i++)
        add_row(&pool->bulletin.indexes[i], &s->by_index[i]);
    pool->bulletin_changed = true;
    pthread_mutex_unlock(&pool->lock);
}


/* A session that somebody is inside of is added up when that thread next waits, or another time. */
static void add_sessions(far_pool *pool) {
    for (far_session *s = far_team_visit(&pool->team, NULL); s; s = far_team_visit(&pool->team, s))
        if (far_session_try_enter(s)) {
            far_bulletin_add(s);
            far_session_leave(s);
        } else {
            atomic_store_explicit(&s->errand, far_bulletin_add, memory_order_relaxed);
        }
}


/* ---- Telling ---- */

/* The simulator's runs are the same everywhere: there a handle has no name of its own. */
static void name_handle(const far_pool *pool, far_bulletin *b) {
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


static bool take_bulletin(far_pool *pool, far_bulletin *copy) {
    pthread_mutex_lock(&pool->lock);
    bool changed = pool->bulletin_changed || pool->bulletin.process == 0;
    if (pool->bulletin.process == 0)
        name_handle(pool, &pool->bulletin);
    pool->bulletin_changed = false;
    pool->bulletin.told += changed;
    *copy = pool->bulletin;
    pthread_mutex_unlock(&pool->lock);
    return changed;
}


static int write_bulletin(far_task *t) {
    far_pool *pool = far_task_pool(t);
    if (!far_latch_try(t, FAR_LATCH_OPEN_TABLE))
        return 0;
    int err = 0;
    far_bulletin *copy = far_scratch(t, sizeof(*copy));
    if (copy && pool->open_table.table && take_bulletin(pool, copy)) {
        far_write(t, far_bulletin_of(pool->open_table.table), copy, sizeof(*copy));
        err = far_wait(t);
    }
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    return err;
}


static bool has_tallies(const far_index *index) {
    for (unsigned i = 0; i < FAR_TALLIES; i++)
        if (atomic_load_explicit(&index->tallies[i].keys, memory_order_relaxed) != 0)
            return true;
    return false;
}


/* The user has the index open after the pin was taken, so its record is not reused while the pin is held. */
static int tell_keys(far_task *t, far_index *index) {
    far_pool *pool = far_task_pool(t);
    if (!has_tallies(index))
        return 0;
    int err = far_pin_take(t);
    if (err < 0)
        return err;
    pthread_mutex_lock(&pool->lock);
    bool open = index->opens > 0;
    pthread_mutex_unlock(&pool->lock);
    err = open ? far_catalog_tell_keys(t, index) : 0;
    far_pin_drop(t);
    return err;
}


static int tell_all_keys(far_task *t) {
    far_pool *pool = far_task_pool(t);
    int err = 0;
    for (far_index *index = far_pool_use_index(pool, NULL); index; index = far_pool_use_index(pool, index))
        err = err < 0 ? err : tell_keys(t, index);
    return err;
}


/* A handle that falls asleep tells at once: its next bulletin may be a long time away. */
int far_bulletin_tick(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t now = far_now(t);
    if (now < pool->next_bulletin && far_epoch_is_awake(pool))
        return 0;
    pool->next_bulletin = now + BULLETIN_TICKS * far_tick(pool->fabric);
    add_sessions(pool);
    int err = tell_all_keys(t);
    return err < 0 ? err : write_bulletin(t);
}
