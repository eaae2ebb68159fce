/* Periodic and final work of a handle on its memory: the tick, which housekeeping calls (far_memory_tick); publishing
 * how much memory the handle holds; releasing blocks before the handle becomes quiescent; and giving everything back
 * when the handle is closed (far_memory_give_back_all). */
#include "base/error.h"
#include "pool/alloc/store.h"
#include "pool/catalog/layout.h"
#include "pool/gc/collect.h"
#include "pool/gc/request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* number of ticks that a closing handle waits for an epoch that does not advance; retired memory that is left after
 * this wait is found by a collection */
#define END_TICKS 64u
/* number of short waits before longer ones, because the threads of other handles may need some time to run */
#define END_QUICK 64u


/* ---- Publishing ---- */

static far_handle_usage measure_usage(far_store *s) {
    far_handle_usage now = {0};
    pthread_mutex_lock(&s->sessions_lock);
    for (far_memory *m = s->sessions; m; m = m->next) {
        far_mutex_lock(&m->lock);
        now.free_bytes += m->magazine_bytes;
        now.retired_bytes += m->retired_bytes;
        far_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&s->sessions_lock);
    pthread_mutex_lock(&s->lock);
    now.free_bytes += s->lists.store_bytes + s->lists.remote_bytes + s->lists.return_bytes;
    now.settled = far_swept_pack(s->sweep.swept, s->sweep.leaked);
    pthread_mutex_unlock(&s->lock);
    return now;
}


static int add_published_usage(far_task *t, void *ctx, unsigned id, const far_client *client) {
    far_handle_usage *sum = ctx;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE || id == far_task_pool(t)->team.own->id)
        return 0;
    sum->free_bytes += client->free_bytes;
    sum->retired_bytes += client->retired_bytes;
    return 0;
}


int far_handle_usage_sum(far_task *t, far_handle_usage *sum) {
    far_handle_usage own = measure_usage(far_store_of(t));
    *sum = (far_handle_usage){.free_bytes = own.free_bytes, .retired_bytes = own.retired_bytes};
    return far_clients_each(t, add_published_usage, sum);
}


/* Writes to the registry entry how much memory the handle holds. far_pool_stat, and the out-of-memory path and the
 * collector of other handles, read these amounts. While the amounts change they are not written, unless at_once is set.
 */
static int publish_usage(far_task *t, bool at_once) {
    far_store *s = far_store_of(t);
    far_addr entry = far_client_entry(far_task_pool(t)->team.own->id);
    const far_handle_usage now = measure_usage(s);
    pthread_mutex_lock(&s->lock);
    bool due = memcmp(&now, &s->upkeep.published, sizeof(now)) != 0 &&
               (at_once || now.settled != s->upkeep.published.settled ||
                memcmp(&now, &s->upkeep.last_tick_usage, sizeof(now)) == 0);
    s->upkeep.last_tick_usage = now;
    pthread_mutex_unlock(&s->lock);
    if (!due)
        return 0;
    far_write(t, entry + offsetof(far_client, free_bytes), &now.free_bytes, 16);
    far_write(t, entry + offsetof(far_client, settled), &now.settled, 8);
    int err = far_wait(t);
    pthread_mutex_lock(&s->lock);
    if (err == 0)
        s->upkeep.published = now;
    pthread_mutex_unlock(&s->lock);
    return err;
}


/* ---- Ticks ---- */

/* Returns whether blocks must be released now because of a request. That is the case when no object is left that was
 * retired before the request was observed, so that the space of such objects is free too. */
static bool must_release_blocks(far_store *s) {
    pthread_mutex_lock(&s->lock);
    bool must = s->handshake.release_blocks && s->upkeep.released_for != s->handshake.observed;
    uint64_t epoch = s->handshake.observed_epoch;
    pthread_mutex_unlock(&s->lock);
    return must && !far_has_retired(s, epoch, false);
}


/* The part of a tick that changes blocks and slabs; the caller is in the store. Returns 1 if there is more to do. */
static int do_block_work(far_task *t) {
    far_store *s = far_store_of(t);
    int err = 0;
    assert(s->block_task == t && t->pin.epoch != 0);
    pthread_mutex_lock(&s->lock);
    uint32_t heard = s->handshake.observed;
    pthread_mutex_unlock(&s->lock);
    if (atomic_load_explicit(&s->search.recovery_due, memory_order_relaxed))
        err = far_blocks_recover_unknown(t);
    if (err == 0 && must_release_blocks(s) && (err = far_blocks_release(t, FAR_RELEASE_WITH_ROOM)) == 0) {
        pthread_mutex_lock(&s->lock);
        s->upkeep.released_for = heard;
        pthread_mutex_unlock(&s->lock);
    }
    if (err == 0)
        err = far_slabs_trim(t, false);
    if (err == 0)
        err = far_sweep_step(t);
    return err;
}


static bool has_block_work(far_store *s) {
    return must_release_blocks(s) || far_sweep_is_due(s) ||
           atomic_load_explicit(&s->lists.trim_due, memory_order_relaxed) ||
           atomic_load_explicit(&s->search.recovery_due, memory_order_relaxed);
}


static int tick_with_pin(far_task *t) {
    far_store *s = far_store_of(t);
    uint64_t epoch = far_epoch_known(t);
    pthread_mutex_lock(&s->lock);
    bool new_epoch = s->upkeep.tick_epoch != epoch;
    s->upkeep.tick_epoch = epoch;
    pthread_mutex_unlock(&s->lock);
    if (new_epoch) {
        far_session_owned_free_closed(s);
        far_reclaim_all(t);
    }
    int more = 0, err = far_returns_flush(t);
    if (err == 0 && has_block_work(s)) {
        far_store_enter(t);
        err = more = do_block_work(t);
        far_store_leave(t);
    }
    if (err >= 0 && far_memory_take_leak_note(s->pool))
        err = far_collection_request(t);
    if (err >= 0 && far_is_wrongly_named_collector(s->pool))
        err = far_collector_name_clear(t);
    if (err >= 0)
        err = publish_usage(t, new_epoch);
    return err < 0 ? err : more;
}


static bool has_tick_work(far_task *t, far_store *s) {
    pthread_mutex_lock(&s->lock);
    bool work = s->lists.return_count > 0 || s->upkeep.tick_epoch != far_epoch_known(t);
    pthread_mutex_unlock(&s->lock);
    return work || has_block_work(s) || atomic_load_explicit(&s->handshake.collection_due, memory_order_relaxed) ||
           far_is_wrongly_named_collector(s->pool) || far_memory_has_unpublished_usage(s->pool);
}


int far_memory_tick(far_task *t) {
    far_store *s = far_store_of(t);
    /* While a lost session is not fenced, its verbs may still change blocks and bits, so the tick does nothing. */
    if (t->session->lost || t->pin.epoch != 0 ||
        atomic_load_explicit(&far_task_pool(t)->epochs.current, memory_order_relaxed) == 0 || !has_tick_work(t, s) ||
        far_pins_are_unfenced(far_task_pool(t)) ||
        atomic_exchange_explicit(&s->upkeep.ticking, true, memory_order_acquire))
        return 0;
    int err = far_pin_take(t);
    if (err == 0) {
        far_saved_batch saved = far_batch_save(t);
        err = tick_with_pin(t);
        far_batch_restore(t, saved);
        far_pin_drop(t);
    }
    atomic_store_explicit(&s->upkeep.ticking, false, memory_order_release);
    return err;
}


/* ---- Becoming quiescent ---- */

bool far_memory_has_unpublished_usage(far_pool *pool) {
    far_store *s = pool->store;
    far_handle_usage now = measure_usage(s);
    pthread_mutex_lock(&s->lock);
    bool untold = memcmp(&now, &s->upkeep.published, sizeof(now)) != 0;
    pthread_mutex_unlock(&s->lock);
    return untold;
}


static bool has_releasable_block(far_store *s) {
    bool any = false;
    pthread_mutex_lock(&s->lock);
    for (far_owned_block *b = far_owned_block_next(s, NULL); b && !any; b = far_owned_block_next(s, b))
        any = b->session_owned == 0;
    pthread_mutex_unlock(&s->lock);
    return any;
}


/* Returns whether the handle may become quiescent. No other handle waits for a quiescent one. Therefore the handle may
 * become quiescent only if it has no remote and no retired objects, no blocks except those with session-owned objects,
 * and no collection to sweep. This function also works towards that state. It turns remote objects into pending
 * returns, and requests an epoch if objects are retired. */
bool far_memory_prepare_quiescence(far_pool *pool) {
    far_store *s = pool->store;
    far_remote_objects_queue_return(s);
    pthread_mutex_lock(&s->lock);
    bool busy = s->lists.return_bytes > 0 || atomic_load_explicit(&pool->freeing_dropped, memory_order_relaxed);
    pthread_mutex_unlock(&s->lock);
    bool retired = far_has_retired(s, UINT64_MAX, false);
    if (retired)
        far_epoch_request(pool);
    return !busy && !retired && !has_releasable_block(s) && !far_sweep_is_due(s) &&
           !far_memory_has_unpublished_usage(pool);
}


/* Returns whether a quiescent handle must become active because of this request word. There are three possible reasons:
 * a collection is done and not swept in its blocks, the request demands the release of blocks, or the request word
 * wrongly names this handle as the collector. */
bool far_memory_must_become_active(far_pool *pool, uint64_t word) {
    far_store *s = pool->store;
    far_request r = far_request_unpack(word);
    uint64_t done = atomic_load_explicit(&s->handshake.superblock.done, memory_order_acquire);
    pthread_mutex_lock(&s->lock);
    bool wanted =
        s->lists.block_count > 0 && ((r.collection != s->sweep.swept && far_done_collection(done) == r.collection) ||
                                     (r.release_blocks && r.number != s->handshake.observed));
    pthread_mutex_unlock(&s->lock);
    return wanted || far_is_wrongly_named_collector(pool);
}


/* Called when the handle is idle. Before the handle becomes quiescent it releases its blocks to other handles, except
 * the blocks with session-owned objects. */
int far_memory_release_blocks(far_task *t) {
    far_store *s = far_store_of(t);
    if (!has_releasable_block(s) || t->session->lost || far_pins_are_unfenced(s->pool) ||
        far_has_retired(s, UINT64_MAX, false))
        return 0;
    int err = far_pin_take(t);
    if (err < 0)
        return err;
    far_saved_batch saved = far_batch_save(t);
    far_store_enter(t);
    err = far_blocks_release(t, FAR_RELEASE_ALL);
    far_store_leave(t);
    far_batch_restore(t, saved);
    far_pin_drop(t);
    return err;
}


/* ---- Closing ---- */

/* Waits until all retired objects are free, but only for a limited time while the epoch does not advance. */
static int wait_for_retired(far_task *t) {
    far_store *s = far_store_of(t);
    uint64_t tick = far_tick(far_task_fabric(t)), epoch = far_epoch_known(t), moved = far_now(t);
    int err = 0;
    for (unsigned round = 0; err >= 0 && far_now(t) - moved < END_TICKS * tick; round++) {
        far_reclaim_all(t);
        if (!far_has_retired(s, UINT64_MAX, false))
            break;
        far_pin_drop(t);
        far_epoch_request(far_task_pool(t));
        if ((err = far_epoch_tick(t)) < 0)
            break;
        /* the pause lets other handles execute their ticks, which advance the epoch */
        far_sleep(t, round < END_QUICK ? tick / 8 : tick);
        err = far_pin_take(t);
        far_point(t, "memory:wait_for_epoch");
        if (far_epoch_known(t) != epoch)
            moved = far_now(t);
        epoch = far_epoch_known(t);
    }
    return err < 0 ? err : 0;
}


static int release_everything(far_task *t) {
    far_store *s = far_store_of(t);
    far_remote_objects_queue_return(s);
    int err = far_returns_flush(t);
    far_store_enter(t);
    far_point(t, "memory:release_blocks");
    if (err == 0)
        err = far_blocks_release(t, FAR_RELEASE_AT_CLOSE);
    far_store_leave(t);
    return err;
}


/* Gives all memory back to the pool. Memory that cannot be given back in time, because the epoch does not advance, is
 * left to a collection, which this function requests. */
int far_memory_give_back_all(far_task *t) {
    far_store *s = far_store_of(t);
    far_pool *pool = far_task_pool(t);
    if (!s || !t->session->memory)
        return 0;
    far_memory *m = t->session->memory;
    far_mutex_lock(&m->lock);
    far_session_owned_free(m, true);
    far_mutex_unlock(&m->lock);
    far_saved_batch saved = far_batch_save(t);
    int err = far_pin_take(t), some = 0;
    if (err == 0)
        err = wait_for_retired(t);
    far_pin_drop(t);
    if (err == 0)
        err = some = far_dropped_free(t, END_TICKS * far_tick(pool->fabric));
    if (err >= 0)
        err = far_pin_take(t);
    if (err == 0)
        err = release_everything(t);
    pthread_mutex_lock(&s->lock);
    bool left = some > 0 || s->dropped.dropped_uids.count > 0 || s->lists.block_count > 0 || s->lists.return_bytes > 0;
    pthread_mutex_unlock(&s->lock);
    left |= far_has_retired(s, UINT64_MAX, false) ||
            atomic_load_explicit(&s->handshake.collection_due, memory_order_relaxed);
    if (err == 0 && left)
        err = far_collection_request(t);
    far_batch_restore(t, saved);
    far_pin_drop(t);
    return err;
}
