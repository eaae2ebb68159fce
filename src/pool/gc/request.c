/* Functions that observe, acknowledge, publish and await requests (request.h). */
#include "pool/gc/request.h"
#include "base/error.h"
#include "pool/alloc/store.h"
#include "pool/epoch/stalled.h"
#include "pool/format/fabric_record.h"

#include <string.h>

/* number of reads of the registry between two checks whether the handles that have not acknowledged are alive */
#define LIVENESS_EVERY 16u


/* ---- Observing ---- */

static void clear_black_bits(far_store *s) {
    for (far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab))
        memset(slab->black, 0, (slab->objects + 63) / 64 * sizeof(*slab->black));
}


/* A callback for far_visit.in_magazine. Objects in magazines are handed out without checks, so remote objects become
 * pending returns and own objects become black. */
static bool observe_in_magazine(far_store *s, far_class *class, uint64_t item, void *ctx) {
    (void)ctx;
    if (!far_address_is_own(s, far_item_addr(item))) {
        far_store_queue_return(s, class, far_item_addr(item));
        return false;
    }
    far_store_set_black(s, far_item_addr(item));
    return true;
}


bool far_retired_set_black(far_store *s, const far_retired *item, void *ctx) {
    (void)ctx;
    far_store_set_black(s, item->addr);
    return true;
}


static void set_session_owned_black(far_store *s, const far_session_owned *kept, void *ctx) {
    (void)ctx;
    far_store_set_black(s, far_item_addr(kept->item));
}


typedef struct observation {
    far_request request;
    uint64_t epoch;
} observation;


/* A callback for far_visit.begin that records the request word in the store. Returns whether it differs from the last
 * one. */
static bool record_request(far_store *s, void *ctx) {
    const far_request *r = &((observation *)ctx)->request;
    if (r->number == s->handshake.observed && r->collection == s->handshake.collection && r->walk == s->handshake.walk)
        return false;
    if (r->collection != s->handshake.collection) {
        bool skipped = r->collection != far_number_next(s->handshake.collection);
        far_sweep_begin(s, s->lists.block_count > 0 && (far_sweep_is_pending(s) || skipped));
        clear_black_bits(s);
    }
    s->handshake.collection = r->collection;
    s->handshake.observed = r->number;
    s->handshake.observed_epoch = ((observation *)ctx)->epoch;
    s->handshake.walk = r->walk;
    s->handshake.release_blocks = r->release_blocks;
    far_remote_lists_queue_return(s);
    return true;
}


/* Records the request and cleans the lists of all sessions. After record_request, no remote object enters a magazine,
 * and every own object that enters one becomes black. Objects that were in magazines before leave them in one of two
 * ways: an operation takes them, under a pin that the acknowledgement waits for, or another function moves them to the
 * lists of the store while it holds sessions_lock. Therefore no remote object from before the request is in a list when
 * the visit ends. */
void far_request_observe(far_pool *pool, uint64_t word, uint64_t epoch) {
    far_store *s = pool->store;
    observation o = {far_request_unpack(word), epoch};
    assert(atomic_load_explicit(&pool->epochs.waking, memory_order_relaxed) == 1);
    far_store_visit(s, &(far_visit){.begin = record_request,
                                    .in_magazine = observe_in_magazine,
                                    .retired = far_retired_set_black,
                                    .session_owned = set_session_owned_black,
                                    .ctx = &o});
}


/* The lists of remote objects are handled after the visit of the sessions, because during the visit, sessions that are
 * closed or emptied may move objects from magazines to these lists. */
void far_remote_objects_queue_return(far_store *s) {
    far_store_visit(s, &(far_visit){.in_magazine = observe_in_magazine});
    pthread_mutex_lock(&s->lock);
    far_remote_lists_queue_return(s);
    pthread_mutex_unlock(&s->lock);
}


uint32_t far_request_observed(far_pool *pool, uint64_t *epoch) {
    far_store *s = pool->store;
    pthread_mutex_lock(&s->lock);
    uint32_t heard = s->handshake.observed;
    *epoch = s->handshake.observed_epoch;
    pthread_mutex_unlock(&s->lock);
    return heard;
}


/* Returns whether this handle has done everything that the request demands. Objects move from the retired queues to the
 * pending returns, so the queues are checked before the pending returns. An epoch is requested only if the
 * acknowledgement waits for it, because each advance of the epoch makes the caches of indexes in all handles forget
 * entries. */
bool far_request_advance(far_pool *pool) {
    far_store *s = pool->store;
    pthread_mutex_lock(&s->lock);
    uint64_t epoch = s->handshake.observed_epoch;
    bool must_release = s->handshake.release_blocks && s->upkeep.released_for != s->handshake.observed;
    pthread_mutex_unlock(&s->lock);
    bool retired = far_has_retired(s, epoch, !must_release);
    if (retired)
        far_epoch_request(pool);
    pthread_mutex_lock(&s->lock);
    bool leaving = s->lists.return_bytes > 0;
    pthread_mutex_unlock(&s->lock);
    return !retired && !leaving && !must_release && !far_pins_are_unfenced(pool);
}


/* ---- Publishing ---- */

void far_wake_quiescent_handles(far_task *t) {
    far_conn *conn = t->session->conn;
    if (conn->fabric->ops->ring)
        conn->fabric->ops->ring(conn);
}


int far_request_change(far_task *t, int (*change)(far_task *t, far_request *r, void *ctx), void *ctx,
                       far_request *made) {
    const far_addr addr = far_addr_make(0, FAR_SUPER_REQUEST);
    uint64_t word, old;
    int err = far_read_word(t, addr, &word);
    while (err == 0) {
        uint32_t number = far_request_unpack(word).number;
        *made = far_request_unpack(word);
        if ((err = change(t, made, ctx)) != 0)
            break;
        if ((err = far_cas_word(t, addr, word, far_request_pack(made), &old)) < 0)
            break;
        if (old == word) {
            if (made->release_blocks && made->number != number)
                far_wake_quiescent_handles(t);
            /* this handle observes the request only together with the next epoch, so an epoch is requested; a handle
             * that needs more epochs to acknowledge requests them itself */
            if (made->number != number)
                far_epoch_request(far_task_pool(t));
            return 0;
        }
        far_count_retry(t);
        word = old;
    }
    return err;
}


int far_request_next_number(far_task *t, far_request *r, void *ctx) {
    (void)t, (void)ctx;
    r->number = far_number_next(r->number);
    r->release_blocks = false;
    return 0;
}


int far_request_publish_empty(far_task *t) {
    far_request made;
    return far_request_change(t, far_request_next_number, NULL, &made);
}


/* ---- Waiting ---- */

typedef struct answer_poll {
    uint32_t number;
    bool check_liveness;
} answer_poll;


/* A callback for far_clients_each. Returns 1 if the handle of this registry entry has not acknowledged the request yet.
 */
static int check_missing(far_task *t, void *ctx, unsigned id, const far_client *client) {
    const answer_poll *r = ctx;
    far_client_state state = far_client_state_of(client->word);
    if (state == FAR_CLIENT_FREE || far_client_handle_of(client->word) != id || client->pin == 0 ||
        !far_number_is_newer(r->number, (uint32_t)client->answered & 0xffffff))
        return 0;
    if (state == FAR_CLIENT_LIVE && !r->check_liveness)
        return 1;
    int gone = far_handle_confirm_failed(t, id);
    return gone < 0 ? gone : !gone;
}


int far_housekeeping_step(far_task *t) {
    far_session_list *team = &far_task_pool(t)->team;
    assert(t->pin.epoch == 0);
    if (t->session != team->own && !far_session_list_is_unattended(team))
        return 0;
    int err = far_epoch_tick(t);
    if (err >= 0)
        err = far_memory_tick(t);
    far_session_list_drive(team);
    return err < 0 ? err : 0;
}


int far_request_wait(far_task *t, uint32_t number, uint64_t timeout) {
    far_pool *pool = far_task_pool(t);
    bool own = t->session == pool->team.own;
    const uint64_t tick = far_tick(pool->fabric);
    const uint64_t deadline = t->many_waits ? FAR_TIME_NEVER : far_stall_deadline(t);
    uint64_t epoch = far_epoch_known(t), moved = far_now(t);
    if (t->pin.epoch != 0)
        return far_fail(FAR_ERR_INVALID,
                        "a pinned task cannot wait for acknowledgements, because it would wait for its own pin");
    for (unsigned attempt = 0;; attempt++) {
        if (own && atomic_load_explicit(&pool->stopping, memory_order_relaxed) && timeout == FAR_TIME_NEVER)
            return far_fail(FAR_ERR_BUSY, "the pool handle is being closed");
        answer_poll r = {number, attempt % LIVENESS_EVERY == LIVENESS_EVERY - 1};
        int missing = far_clients_each(t, check_missing, &r);
        if (missing == 0 && t->many_waits)
            t->waits_since = 0; /* this wait is over */
        if (missing <= 0)
            return missing;
        if (far_epoch_known(t) != epoch)
            moved = far_now(t);
        epoch = far_epoch_known(t);
        far_note_wait(t);
        /* The waits of an operation together do not exceed the bound, even if the epoch advanced in between. A
         * collection waits as long as the epoch advances. */
        if (timeout != FAR_TIME_NEVER && (far_now(t) - moved >= timeout || far_now(t) >= deadline))
            return 1;
        /* the epoch that was requested with the request may have come before the request was observed */
        if (r.check_liveness)
            far_epoch_request(pool);
        far_epoch_keep_active(pool);
        int err = far_housekeeping_step(t);
        if (err < 0)
            return err;
        /* the task of the handle's system session pauses for a short time only, because it must also execute ticks */
        far_sleep(t, own ? tick / 2 : far_wait_pause(far_now(t) - moved, tick));
    }
}


int far_collection_request(far_task *t) {
    far_faa(t, far_addr_make(0, FAR_SUPER_LOSSES), 1, NULL);
    int err = far_wait(t);
    if (err == 0)
        far_wake_quiescent_handles(t);
    return err;
}


int far_collection_is_requested(far_task *t) {
    uint64_t wanted, swept;
    far_read(t, far_addr_make(0, FAR_SUPER_LOSSES), &wanted, 8);
    far_read(t, far_addr_make(0, FAR_SUPER_LOSSES_COLLECTED), &swept, 8);
    int err = far_wait(t);
    return err < 0 ? err : wanted != swept;
}


__attribute__((cold)) void far_memory_note_leak(far_pool *pool) {
    atomic_store_explicit(&pool->store->handshake.collection_due, true, memory_order_relaxed);
}


bool far_memory_take_leak_note(far_pool *pool) {
    return atomic_exchange_explicit(&pool->store->handshake.collection_due, false, memory_order_relaxed);
}


void far_memory_note_failed_session(far_pool *pool) {
    far_blocks_schedule_recovery(pool->store);
    far_memory_note_leak(pool);
}


bool far_collection_was_requested(far_pool *pool) {
    far_store *s = pool->store;
    return atomic_load_explicit(&s->handshake.superblock.wanted, memory_order_acquire) !=
           atomic_load_explicit(&s->handshake.superblock.swept, memory_order_acquire);
}


void far_superblock_copy_done(far_pool *pool, uint64_t done) {
    atomic_store_explicit(&pool->store->handshake.superblock.done, done, memory_order_release);
}


void far_superblock_copy_collected(far_pool *pool, uint64_t losses) {
    atomic_store_explicit(&pool->store->handshake.superblock.swept, losses, memory_order_release);
}


void far_superblock_copy_store(far_pool *pool, const uint64_t *words) {
    const unsigned first = FAR_SUPER_REQUEST;
    far_store *s = pool->store;
    far_fabric_record_observe(pool, words[(FAR_SUPER_FABRIC_RECORD - first) / 8]);
    uint64_t done = words[(FAR_SUPER_DONE - first) / 8];
    atomic_store_explicit(&s->handshake.superblock.collector, far_request_unpack(words[0]).collector,
                          memory_order_release);
    atomic_store_explicit(&s->handshake.superblock.done, far_done_is_sound(done) ? done : 0, memory_order_release);
    atomic_store_explicit(&s->handshake.superblock.wanted, words[(FAR_SUPER_LOSSES - first) / 8], memory_order_release);
    atomic_store_explicit(&s->handshake.superblock.swept, words[(FAR_SUPER_LOSSES_COLLECTED - first) / 8],
                          memory_order_release);
    atomic_store_explicit(&s->handshake.superblock.catalog, words[(FAR_SUPER_CATALOG - first) / 8],
                          memory_order_release);
    atomic_store_explicit(&s->handshake.superblock.uids, words[(FAR_SUPER_NEXT_UID - first) / 8], memory_order_release);
}
