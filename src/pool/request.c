/* Hearing, answering, making and waiting for requests (request.h). */
#include "pool/request.h"
#include "base/error.h"
#include "pool/refuted.h"
#include "pool/store.h"

#include <string.h>

#define ASK_EVERY    16u /* looks at the registry between two questions whether those who do not answer live */
#define SPARE_EPOCHS 16u /* a request for spare memory so soon after another: who made that one is still short */


/* ---- Hearing ---- */

static void forget_black(far_store *s) {
    for (far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab))
        memset(slab->black, 0, (slab->objects + 63) / 64 * sizeof(*slab->black));
}


/* Objects in magazines are handed out without a look: foreign ones leave, own ones are black. */
static bool leave_magazine(far_store *s, far_class *class, uint64_t item, void *ctx) {
    (void)ctx;
    if (!far_is_own(s, far_item_addr(item))) {
        far_store_send_home(s, class, far_item_addr(item));
        return false;
    }
    far_store_blacken(s, far_item_addr(item));
    return true;
}


bool far_retired_blacken(far_store *s, const far_retired *item, void *ctx) {
    (void)ctx;
    far_store_blacken(s, item->addr);
    return true;
}


static void blacken_kept(far_store *s, const far_kept *kept, void *ctx) {
    (void)ctx;
    far_store_blacken(s, far_item_addr(kept->item));
}


typedef struct hearing {
    far_request request;
    uint64_t epoch;
} hearing;


/* Takes in what the request word says. True: it is a new request. */
static bool note(far_store *s, void *ctx) {
    const far_request *r = &((hearing *)ctx)->request;
    if (r->number == s->heard && r->sweep == s->sweep && r->walk == s->walk)
        return false;
    if (r->sweep != s->sweep) {
        s->missed |= s->block_count > 0 && (far_is_unsettled(s) || r->sweep != far_number_next(s->sweep));
        forget_black(s);
        s->leaked = 0;
    }
    s->sweep = r->sweep;
    s->heard = r->number;
    s->heard_epoch = ((hearing *)ctx)->epoch;
    s->walk = r->walk;
    s->spare = r->spare;
    s->all_spare = r->spare && s->spare_epoch != 0 && s->heard_epoch - s->spare_epoch < SPARE_EPOCHS;
    s->spare_epoch = r->spare ? s->heard_epoch : s->spare_epoch;
    far_shelves_leave(s);
    return true;
}


/* From the note on nothing foreign enters a magazine, and every own object that does is black. What magazines held
 * before goes from them to an operation, under a pin that the answer waits for, or, with the list of sessions locked,
 * to the shelves: so none of it is left in the lists when the visit ends. */
void far_request_hear(far_pool *pool, uint64_t word, uint64_t heard_epoch) {
    far_store *s = pool->store;
    hearing h = {far_request_unpack(word), heard_epoch};
    assert(atomic_load_explicit(&pool->epochs.waking, memory_order_relaxed) == 1);
    far_store_visit(s, &(far_visit){.begin = note,
                                    .in_magazine = leave_magazine,
                                    .retired = far_retired_blacken,
                                    .kept = blacken_kept,
                                    .ctx = &h});
}


/* What a session gives back meanwhile goes from its magazine to the shelves: they come last. */
void far_foreign_leave(far_store *s) {
    far_store_visit(s, &(far_visit){.in_magazine = leave_magazine});
    pthread_mutex_lock(&s->lock);
    far_shelves_leave(s);
    pthread_mutex_unlock(&s->lock);
}


uint32_t far_request_heard(far_pool *pool, uint64_t *epoch) {
    far_store *s = pool->store;
    pthread_mutex_lock(&s->lock);
    uint32_t heard = s->heard;
    *epoch = s->heard_epoch;
    pthread_mutex_unlock(&s->lock);
    return heard;
}


/* What is retired goes from there to what is leaving: it is looked for in this order. Every move of the epoch costs the
 * caches of all handles what they know: none is asked for that the answer does not wait for. */
bool far_request_is_met(far_pool *pool) {
    far_store *s = pool->store;
    pthread_mutex_lock(&s->lock);
    uint64_t epoch = s->heard_epoch;
    bool gives_up = s->spare && s->gave_up != s->heard;
    pthread_mutex_unlock(&s->lock);
    bool retired = far_has_retired(s, epoch, !gives_up);
    if (retired)
        far_epoch_request(pool);
    pthread_mutex_lock(&s->lock);
    bool leaving = s->leaving_bytes > 0;
    pthread_mutex_unlock(&s->lock);
    return !retired && !leaving && !gives_up && !far_pins_are_stuck(pool);
}


/* ---- Making one ---- */

/* Wakes handles that sleep and would look at the pool only when they are told to. */
void far_ring(far_task *t) {
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
            if (made->spare && made->number != number)
                far_ring(t);
            if (made->number != number) /* heard with the next epoch; who needs more for its answer asks for them */
                far_epoch_request(far_task_pool(t));
            return 0;
        }
        far_count_retry(t);
        word = old;
    }
    return err;
}


int far_request_only(far_task *t, far_request *r, void *ctx) {
    (void)t, (void)ctx;
    r->number = far_number_next(r->number);
    r->spare = false;
    return 0;
}


int far_request_attention(far_task *t) {
    far_request made;
    return far_request_change(t, far_request_only, NULL, &made);
}


/* ---- Waiting ---- */

typedef struct roll_call {
    uint32_t number;
    bool ask;
} roll_call;


/* 1: this handle is still waited for. */
static int is_missing(far_task *t, void *ctx, unsigned id, const far_client *client) {
    const roll_call *r = ctx;
    far_client_state state = far_client_state_of(client->word);
    if (state == FAR_CLIENT_FREE || far_client_handle_of(client->word) != id || client->pin == 0 ||
        !far_number_is_newer(r->number, (uint32_t)client->answered & 0xffffff))
        return 0;
    if (state == FAR_CLIENT_LIVE && !r->ask)
        return 1;
    int gone = far_client_handle_gone(t, id);
    return gone < 0 ? gone : !gone;
}


int far_attend(far_task *t) {
    far_team *team = &far_task_pool(t)->team;
    assert(t->pin.epoch == 0);
    if (t->session != team->own && !far_team_is_unattended(team))
        return 0;
    int err = far_epoch_tick(t);
    if (err >= 0)
        err = far_memory_tick(t);
    far_team_drive(team);
    return err < 0 ? err : 0;
}


int far_request_wait(far_task *t, uint32_t number, uint64_t patience) {
    far_pool *pool = far_task_pool(t);
    bool own = t->session == pool->team.own;
    const uint64_t tick = far_tick(pool->fabric);
    uint64_t epoch = far_epoch_known(t), moved = far_now(t);
    if (t->pin.epoch != 0)
        return far_fail(FAR_ERR_INVALID, "a pinned task cannot wait for answers: it would wait for itself");
    for (unsigned attempt = 0;; attempt++) {
        if (own && atomic_load_explicit(&pool->stopping, memory_order_relaxed) && patience == FAR_TIME_NEVER)
            return far_fail(FAR_ERR_BUSY, "the pool handle is being closed");
        roll_call r = {number, attempt % ASK_EVERY == ASK_EVERY - 1};
        int missing = far_clients_each(t, is_missing, &r);
        if (missing <= 0)
            return missing;
        if (far_epoch_known(t) != epoch)
            moved = far_now(t);
        epoch = far_epoch_known(t);
        if (far_now(t) - moved >= patience)
            return 1;
        if (r.ask) /* the one move that was asked for with the request may have come before it */
            far_epoch_request(pool);
        atomic_store_explicit(&pool->epochs.keep_awake, true, memory_order_relaxed);
        int err = far_attend(t);
        if (err < 0)
            return err;
        far_sleep(t, own ? tick / 2 : far_wait_pause(far_now(t) - moved, tick)); /* the own session has ticks to do */
    }
}


int far_want_sweep(far_task *t) {
    far_faa(t, far_addr_make(0, FAR_SUPER_WANTED), 1, NULL);
    int err = far_wait(t);
    if (err == 0)
        far_ring(t);
    return err;
}


int far_sweep_is_wanted(far_task *t) {
    uint64_t wanted, swept;
    far_read(t, far_addr_make(0, FAR_SUPER_WANTED), &wanted, 8);
    far_read(t, far_addr_make(0, FAR_SUPER_SWEPT), &swept, 8);
    int err = far_wait(t);
    return err < 0 ? err : wanted != swept;
}


void far_memory_lost_some(far_pool *pool) {
    atomic_store_explicit(&pool->store->recount, true, memory_order_relaxed);
    atomic_store_explicit(&pool->store->wants_sweep, true, memory_order_relaxed);
}


bool far_line_wants_sweep(far_pool *pool) {
    far_store *s = pool->store;
    return atomic_load_explicit(&s->line.wanted, memory_order_acquire) !=
           atomic_load_explicit(&s->line.swept, memory_order_acquire);
}


void far_line_learn(far_pool *pool, const uint64_t *words) {
    const unsigned first = FAR_SUPER_REQUEST;
    far_store *s = pool->store;
    far_refuted_learn(pool, words[(FAR_SUPER_REFUTED - first) / 8]);
    uint64_t done = words[(FAR_SUPER_DONE - first) / 8];
    atomic_store_explicit(&s->line.sweeper, far_request_unpack(words[0]).sweeper, memory_order_release);
    atomic_store_explicit(&s->line.done, far_done_is_sound(done) ? done : 0, memory_order_release);
    atomic_store_explicit(&s->line.wanted, words[(FAR_SUPER_WANTED - first) / 8], memory_order_release);
    atomic_store_explicit(&s->line.swept, words[(FAR_SUPER_SWEPT - first) / 8], memory_order_release);
    atomic_store_explicit(&s->line.catalog, words[(FAR_SUPER_CATALOG - first) / 8], memory_order_release);
    atomic_store_explicit(&s->line.uids, words[(FAR_SUPER_NEXT_UID - first) / 8], memory_order_release);
}
