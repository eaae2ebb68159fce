/* What a handle does with its memory from time to time (a tick), before it sleeps, and at its end. */
#include "base/error.h"
#include "pool/catalog_layout.h"
#include "pool/request.h"
#include "pool/store.h"
#include "pool/sweep.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define END_TICKS 64u /* how long a closing handle waits for an epoch that does not move; the rest is left to a sweep */
#define END_QUICK 64u /* rounds at short intervals before long ones: others may not get to run for a while */


/* ---- Telling others ---- */

static far_told look(far_store *s) {
    far_told now = {.returned = atomic_load_explicit(&s->returned, memory_order_relaxed)};
    pthread_mutex_lock(&s->list);
    for (far_memory *m = s->memories; m; m = m->next) {
        far_mutex_lock(&m->lock);
        now.free_bytes += m->magazine_bytes;
        now.retired_bytes += m->retired_bytes;
        far_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&s->list);
    pthread_mutex_lock(&s->lock);
    now.free_bytes += s->spare_bytes + s->foreign_bytes + s->leaving_bytes;
    now.settled = far_settled_pack(s->settled, s->leaked);
    pthread_mutex_unlock(&s->lock);
    return now;
}


static int add_told(far_task *t, void *ctx, unsigned id, const far_client *client) {
    far_told *sum = ctx;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE || id == far_task_pool(t)->team.own->id)
        return 0;
    sum->free_bytes += client->free_bytes;
    sum->retired_bytes += client->retired_bytes;
    sum->returned += (client->returned + 1) * (2 * client->word + 1);
    return 0;
}


int far_told_sum(far_task *t, far_told *sum) {
    far_told own = look(far_store_of(t));
    *sum = (far_told){.free_bytes = own.free_bytes, .retired_bytes = own.retired_bytes, .returned = 1};
    return far_clients_each(t, add_told, sum);
}


/* Writes to the registry what the handle holds: for far_pool_stat, for who is short of memory, for the sweeper. at_once: also
 * while it changes. */
static int tell(far_task *t, bool at_once) {
    far_store *s = far_store_of(t);
    far_addr entry = far_client_entry(far_task_pool(t)->team.own->id);
    const far_told now = look(s);
    pthread_mutex_lock(&s->lock);
    bool due = memcmp(&now, &s->told, sizeof(now)) != 0 &&
               (at_once || now.settled != s->told.settled || memcmp(&now, &s->noticed, sizeof(now)) == 0);
    s->noticed = now;
    pthread_mutex_unlock(&s->lock);
    if (!due)
        return 0;
    far_write(t, entry + offsetof(far_client, free_bytes), &now.free_bytes, 16);
    far_write(t, entry + offsetof(far_client, settled), &now.settled, 16);
    int err = far_wait(t);
    pthread_mutex_lock(&s->lock);
    if (err == 0)
        s->told = now;
    pthread_mutex_unlock(&s->lock);
    return err;
}


/* ---- Ticks ---- */

/* Blocks with room are asked for: they are given up when what was retired before is room too. */
static bool must_give_up(far_store *s) {
    pthread_mutex_lock(&s->lock);
    bool must = s->spare && s->gave_up != s->heard;
    uint64_t epoch = s->heard_epoch;
    pthread_mutex_unlock(&s->lock);
    return must && !far_has_retired(s, epoch, false);
}


/* Inside the store: the part of a tick that changes blocks and slabs. 1: there is more to be done. */
static int tick_blocks(far_task *t) {
    far_store *s = far_store_of(t);
    int err = 0;
    assert(s->inside == t && t->pin.epoch != 0);
    pthread_mutex_lock(&s->lock);
    uint32_t heard = s->heard;
    pthread_mutex_unlock(&s->lock);
    if (atomic_exchange_explicit(&s->recount, false, memory_order_relaxed))
        err = far_blocks_recount(t);
    if (err == 0 && must_give_up(s) && (err = far_blocks_orphan(t, FAR_GIVE_UP_ROOMY)) == 0) {
        pthread_mutex_lock(&s->lock);
        s->gave_up = heard;
        pthread_mutex_unlock(&s->lock);
    }
    if (err == 0)
        err = far_slabs_trim(t, false);
    if (err == 0)
        err = far_settle_step(t);
    return err;
}


static bool has_work_on_blocks(far_store *s) {
    return must_give_up(s) || far_settle_is_due(s) || atomic_load_explicit(&s->trim, memory_order_relaxed) ||
           atomic_load_explicit(&s->recount, memory_order_relaxed);
}


static int tick_pinned(far_task *t) {
    far_store *s = far_store_of(t);
    uint64_t epoch = far_epoch_known(t);
    pthread_mutex_lock(&s->lock);
    bool new_epoch = s->ticked != epoch, new_request = s->proved != s->heard;
    s->ticked = epoch;
    s->proved = s->heard;
    pthread_mutex_unlock(&s->lock);
    if (new_epoch) {
        far_kept_free_closed(s);
        far_reclaim_all(t);
    }
    int more = 0,
        err = new_request ? far_open_table_prove(t) : 0; /* perhaps of one who waits for an index that is open */
    if (err == 0)
        err = far_send_home(t);
    if (err == 0 && has_work_on_blocks(s)) {
        far_store_enter(t);
        err = more = tick_blocks(t);
        far_store_leave(t);
    }
    if (err >= 0 && atomic_exchange_explicit(&s->wants_sweep, false, memory_order_relaxed))
        err = far_want_sweep(t);
    if (err >= 0 && far_sweep_is_said_of_us(s->pool))
        err = far_sweep_deny(t);
    if (err >= 0)
        err = tell(t, new_epoch);
    return err < 0 ? err : more;
}


static bool has_work(far_task *t, far_store *s) {
    pthread_mutex_lock(&s->lock);
    bool work = s->leaving_count > 0 || s->ticked != far_epoch_known(t);
    pthread_mutex_unlock(&s->lock);
    return work || has_work_on_blocks(s) || atomic_load_explicit(&s->wants_sweep, memory_order_relaxed) ||
           far_sweep_is_said_of_us(s->pool) || far_memory_is_untold(s->pool);
}


int far_memory_tick(far_task *t) {
    far_store *s = far_store_of(t);
    if (t->session->lost || t->pin.epoch != 0 ||
        atomic_load_explicit(&far_task_pool(t)->epochs.current, memory_order_relaxed) == 0 || !has_work(t, s) ||
        far_pins_are_stuck(far_task_pool(t)) || /* what a lost session posted may still change blocks and bits */
        atomic_exchange_explicit(&s->ticking, true, memory_order_acquire))
        return 0;
    int err = far_pin_take(t);
    if (err == 0) {
        far_aside aside = far_aside_begin(t);
        err = tick_pinned(t);
        far_aside_end(t, aside);
        far_pin_drop(t);
    }
    atomic_store_explicit(&s->ticking, false, memory_order_release);
    return err;
}


/* ---- Sleep ---- */

bool far_memory_is_untold(far_pool *pool) {
    far_store *s = pool->store;
    far_told now = look(s);
    pthread_mutex_lock(&s->lock);
    bool untold = memcmp(&now, &s->told, sizeof(now)) != 0;
    pthread_mutex_unlock(&s->lock);
    return untold;
}


static bool can_be_given_up(far_store *s) {
    bool any = false;
    pthread_mutex_lock(&s->lock);
    for (far_held *b = far_held_next(s, NULL); b && !any; b = far_held_next(s, b))
        any = b->kept == 0;
    pthread_mutex_unlock(&s->lock);
    return any;
}


/* Nobody waits for a handle that sleeps: it holds nothing of others, nothing retired, only blocks with kept objects,
 * and no sweep that is done is to be settled. */
bool far_memory_may_sleep(far_pool *pool) {
    far_store *s = pool->store;
    far_foreign_leave(s);
    pthread_mutex_lock(&s->lock);
    bool busy = s->leaving_bytes > 0 || atomic_load_explicit(&pool->collecting, memory_order_relaxed);
    pthread_mutex_unlock(&s->lock);
    bool retired = far_has_retired(s, UINT64_MAX, false);
    if (retired)
        far_epoch_request(pool);
    return !busy && !retired && !can_be_given_up(s) && !far_settle_is_due(s) && !far_memory_is_untold(pool);
}


/* The handle sleeps, and the request word says this: a sweep that is done is not settled in its blocks, blocks with room
 * are asked for, or it is taken for the one who sweeps. */
bool far_memory_is_wanted(far_pool *pool, uint64_t word) {
    far_store *s = pool->store;
    far_request r = far_request_unpack(word);
    uint64_t done = atomic_load_explicit(&s->line.done, memory_order_acquire);
    pthread_mutex_lock(&s->lock);
    bool wanted = s->block_count > 0 &&
                  ((r.sweep != s->settled && far_done_sweep(done) == r.sweep) || (r.spare && r.number != s->heard));
    pthread_mutex_unlock(&s->lock);
    return wanted || far_sweep_is_said_of_us(pool);
}


/* The handle is idle: before it sleeps others may have its blocks, but for those with kept objects. */
int far_memory_give_up_blocks(far_task *t) {
    far_store *s = far_store_of(t);
    if (!can_be_given_up(s) || t->session->lost || far_pins_are_stuck(s->pool) || far_has_retired(s, UINT64_MAX, false))
        return 0;
    int err = far_pin_take(t);
    if (err < 0)
        return err;
    far_aside aside = far_aside_begin(t);
    far_store_enter(t);
    err = far_blocks_orphan(t, FAR_GIVE_UP_ALL);
    far_store_leave(t);
    far_aside_end(t, aside);
    far_pin_drop(t);
    return err;
}


/* ---- The end ---- */

/* Until what was retired is past its time, as long as the epoch moves. */
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
        far_sleep(t, round < END_QUICK ? tick / 8 : tick); /* others move on with their ticks */
        err = far_pin_take(t);
        far_point(t, "memory:wait");
        if (far_epoch_known(t) != epoch)
            moved = far_now(t);
        epoch = far_epoch_known(t);
    }
    return err < 0 ? err : 0;
}


static int give_all_up(far_task *t) {
    far_store *s = far_store_of(t);
    far_foreign_leave(s);
    int err = far_send_home(t);
    far_store_enter(t);
    far_point(t, "memory:leave");
    if (err == 0)
        err = far_blocks_orphan(t, FAR_GIVE_UP_AT_END);
    far_store_leave(t);
    return err;
}


/* Everything goes back. What cannot in short time, because the epoch stands still, a sweep finds: it is asked for. */
int far_memory_end(far_task *t) {
    far_store *s = far_store_of(t);
    far_pool *pool = far_task_pool(t);
    if (!s || !t->session->memory)
        return 0;
    far_memory *m = t->session->memory;
    far_mutex_lock(&m->lock);
    far_kept_free(m, true);
    far_mutex_unlock(&m->lock);
    far_aside aside = far_aside_begin(t);
    int err = far_pin_take(t), some = 0;
    if (err == 0)
        err = wait_for_retired(t);
    far_pin_drop(t);
    if (err == 0)
        err = some = far_unlisted_collect(t, END_TICKS * far_tick(pool->fabric));
    if (err >= 0)
        err = far_pin_take(t);
    if (err == 0)
        err = give_all_up(t);
    pthread_mutex_lock(&s->lock);
    bool left = some > 0 || s->dropped.count > 0 || s->block_count > 0 || s->leaving_bytes > 0;
    pthread_mutex_unlock(&s->lock);
    left |= far_has_retired(s, UINT64_MAX, false) || atomic_load_explicit(&s->wants_sweep, memory_order_relaxed);
    if (err == 0 && left)
        err = far_want_sweep(t);
    far_aside_end(t, aside);
    far_pin_drop(t);
    return err;
}
