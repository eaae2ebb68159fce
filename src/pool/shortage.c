/* Operations that found no memory. They wait at a latch, over all sessions of the handle, and are run again one after the
 * other. The one that has it asks all handles to give up blocks with room (a request with `spare`), waits for the
 * answers, and tries again; when something may have been lost, it makes the sweep that finds it. FAR_ERR_NO_MEMORY is
 * reported when that brought nothing, twice, or when one who holds up the epoch does not answer: what it holds cannot
 * be had. */
#include "base/error.h"
#include "pool/blocker.h"
#include "pool/request.h"
#include "pool/store.h"
#include "pool/sweep.h"
#include "task/latch.h"

#include <assert.h>
#include <stdio.h>

#define ROUNDS_MAX   8    /* while something came back */
#define STUCK_TICKS  1000 /* how long answers, and a sweep, are waited for while the epoch does not move */
#define JOIN_EPOCHS  4    /* a request for spare memory that was made so long ago serves others too */
#define SWEEP_ROUNDS 16   /* waits of STUCK_TICKS for one sweep */


void far_memory_returned(far_store *s) {
    atomic_fetch_add_explicit(&s->returned, 1, memory_order_relaxed);
}


/* ---- Asking ---- */

/* The thread of a task that waits is inside its session, and may be the only one that could do housekeeping. */
static int rest(far_task *t) {
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch); /* a session that was declared dead finds out */
    if (err == 0)
        err = far_attend(t);
    if (err == 0)
        far_task_block_until(t, far_now(t) + far_tick(far_task_fabric(t)));
    return err;
}


/* A request for spare memory that somebody else made a short time ago: its answers will do. */
static int ask_for_spare(far_task *t, far_request *r, void *ctx) {
    far_store *s = far_store_of(t);
    pthread_mutex_lock(&s->lock);
    bool fresh = r->number != s->heard || far_epoch_known(t) - s->heard_epoch < JOIN_EPOCHS,
         join = r->spare && fresh && r->number != s->spare_number; /* the one it waited for did not help */
    pthread_mutex_unlock(&s->lock);
    r->number = join ? r->number : far_number_next(r->number);
    r->spare = true;
    *(uint32_t *)ctx = r->number;
    return join;
}


static int request_spare(far_task *t, uint32_t *number) {
    far_store *s = far_store_of(t);
    far_request made;
    int err = far_request_change(t, ask_for_spare, number, &made);
    pthread_mutex_lock(&s->lock);
    s->spare_number = err < 0 ? s->spare_number : *number;
    pthread_mutex_unlock(&s->lock);
    return err < 0 ? err : 0;
}


static int wait_for_sweep(far_task *t) {
    far_pool *pool = far_task_pool(t);
    uint64_t tick = far_tick(pool->fabric), until = far_now(t) + SWEEP_ROUNDS * STUCK_TICKS * tick;
    int wanted = far_sweep_is_wanted(t);
    while (wanted == 1 && far_now(t) < until) {
        int err = far_pin_take(t); /* a handle that sleeps hears of none */
        far_pin_drop(t);
        if (err == 0)
            err = rest(t);
        wanted = err < 0 ? err : far_sweep_is_wanted(t);
    }
    return wanted < 0 ? wanted : 0;
}


/* The dead may have much, also those of whom nobody knows yet. 1: a sweep was made; it may have found something. */
static int sweep_for_lost(far_task *t) {
    far_sweep_result result;
    int err = far_clients_ask(t);
    if (err == 0)
        err = far_sweep_is_wanted(t);
    if (err <= 0)
        return err;
    far_point(t, "shortage:sweeps");
    err = far_sweep(t, FAR_SWEEP_SHORT, &result);
    if (t->session->lost)
        return t->session->lost;
    if (err == FAR_ERR_BUSY && (err = wait_for_sweep(t)) < 0)
        return err;
    return err == 0; /* an index is broken, say: another sweep would not end better */
}


/* Somebody has made another request since, without `spare`: handles that had not heard ours never will, and their answers
 * to that other one count for ours. */
static int was_overtaken(far_task *t, uint32_t number) {
    uint64_t word;
    int err = far_read_word(t, far_addr_make(0, FAR_SUPER_REQUEST), &word);
    if (err < 0)
        return err;
    far_request now = far_request_unpack(word);
    return now.number != number && !now.spare;
}


/* A round. 1: perhaps not all were asked. */
static int make_round(far_task *t) {
    uint32_t number;
    int err = far_pin_take(t); /* this handle is awake from now on, and answers too */
    far_pin_drop(t);
    far_point(t, "shortage:asks");
    if (err == 0)
        err = request_spare(t, &number);
    if (err == 0)
        err = far_request_wait(t, number, STUCK_TICKS * far_tick(far_task_fabric(t)));
    int overtaken = err == 0 ? was_overtaken(t, number) : 0; /* a handle that did not answer is not asked again */
    if (err >= 0)
        err = overtaken < 0 ? overtaken : rest(t);
    return err < 0 ? err : overtaken;
}


/* Verbs that an attempt had put and not posted must not go out with those of the search for memory. */
static void put_down(far_task *t) {
    t->refused = FAR_ERR_NO_MEMORY;
    far_start(t);
    far_task_wait_for(t, FAR_WAIT_ALL);
    far_pin_drop(t);
}


/* Nothing became free since it was found that nothing can be had, nor will anything that is retired. */
static bool is_exhausted(far_task *t, const far_told *o) {
    const far_store *s = far_store_of(t);
    return o->returned == s->exhausted && o->retired_bytes == 0 && !far_line_wants_sweep(s->pool);
}


/* As is_exhausted, for all that became free before this call: others tell of it with the next epoch, and the epoch after
 * that shows that they have. */
static int is_known_to_be_exhausted(far_task *t, far_told *o) {
    const far_store *s = far_store_of(t);
    unsigned returned = atomic_load_explicit(&s->returned, memory_order_relaxed);
    int err = far_told_sum(t, o);
    if (err < 0 || !is_exhausted(t, o))
        return err;
    err = far_wait_epochs_until(t, 2, far_now(t) + STUCK_TICKS * far_tick(far_task_fabric(t)));
    if (err >= 0)
        err = far_told_sum(t, o);
    return err < 0 ? err : is_exhausted(t, o) && atomic_load_explicit(&s->returned, memory_order_relaxed) == returned;
}


/* ---- Who is in the way ---- */

/* 1: somebody else holds up the epoch, as it did when this handle last found no memory. */
static int is_held_up(far_task *t, far_blocker *b) {
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch);
    if (err < 0 || epoch != far_store_of(t)->stuck_epoch)
        return err;
    return far_blocker_stands(t, epoch, b, far_wait_for_next_epoch);
}


/* No memory after all rounds: as long as the epoch stands where it stood, others need not wait for it again. */
static void note_stuck(far_task *t, uint64_t epoch, uint64_t since) {
    far_store *s = far_store_of(t);
    if (far_epoch_known(t) != epoch || s->stuck_epoch == epoch)
        return;
    s->stuck_epoch = epoch;
    s->stuck_since = since;
}


/* Names the client in the way, about which the user can do something. */
static int tell_blocker(far_task *t, const far_blocker *b) {
    char words[FAR_MESSAGE_BYTES], who[FAR_CLIENT_WORDS];
    snprintf(words, sizeof(words), "%s", far_last_error());
    far_client_words(t, b->id, b->generation, who);
    return far_fail(FAR_ERR_NO_MEMORY,
                    "%s: %s is stopped in the middle of an operation, and holds back what others have given back",
                    words, who);
}


/* With the latch. Returns the result of the last attempt. */
static int try_again(far_task *t, int (*run)(far_task *t, void *arg), void *arg, bool background) {
    far_store *s = far_store_of(t);
    far_told before, after;
    uint64_t epoch = 0, since = 0; /* when the last round began; since when it stands there */
    assert(far_latch_is_held(t, FAR_LATCH_SHORTAGE));
    int err = is_known_to_be_exhausted(t, &before);
    unsigned in_vain = 0;
    bool swept = false;
    if (err == 1)
        return FAR_ERR_NO_MEMORY;
    for (unsigned round = 0; err == 0 && round < ROUNDS_MAX && in_vain < 2; round++) {
        unsigned returned = atomic_load_explicit(&s->returned, memory_order_relaxed);
        if (far_epoch_known(t) != epoch)
            since = far_now(t);
        epoch = far_epoch_known(t);
        int overtaken = make_round(t);
        if (overtaken < 0)
            return overtaken;
        far_count_retry(t);
        far_patience_forget(t); /* the task waits for memory, not for what it sees */
        t->background = background;
        err = run(t, arg);
        t->background = true;
        if (err != FAR_ERR_NO_MEMORY) {
            s->exhausted = 0;
            return err;
        }
        put_down(t);
        if ((err = far_told_sum(t, &after)) < 0)
            return err;
        bool came =
            atomic_load_explicit(&s->returned, memory_order_relaxed) != returned || after.returned != before.returned;
        in_vain = came || overtaken ? in_vain : in_vain + 1;
        before = after;
        if (!swept && (!came || round > 0)) {
            swept = true;
            if ((err = sweep_for_lost(t)) < 0)
                return err;
            in_vain = err ? 0 : in_vain;
            err = 0;
        }
    }
    if (err < 0)
        return err;
    s->exhausted = before.returned;
    note_stuck(t, epoch, since);
    return FAR_ERR_NO_MEMORY;
}


/* As try_again, but not once more for every operation while one client holds up the epoch. */
static int try_unless_held_up(far_task *t, int (*run)(far_task *t, void *arg), void *arg, bool background) {
    far_blocker b;
    int held = is_held_up(t, &b), err = FAR_ERR_NO_MEMORY;
    if (held == 0) {
        err = try_again(t, run, arg, background);
        held = err == FAR_ERR_NO_MEMORY ? is_held_up(t, &b) : 0;
    }
    if (held <= 0)
        return held < 0 ? held : err;
    if (!far_blocker_may_be_ended(t, &b, far_now(t) - far_store_of(t)->stuck_since))
        return tell_blocker(t, &b);
    int ended = far_blocker_end(t, &b);
    if (ended < 0) /* the client cannot be ended: not this session's fault, unless this session is lost */
        return t->session->lost ? ended : tell_blocker(t, &b);
    return try_again(t, run, arg, background);
}


int far_run_short(far_task *t, int (*run)(far_task *t, void *arg), void *arg) {
    bool background = t->background;
    far_point(t, "shortage:found");
    put_down(t);
    assert(t->pin.epoch == 0 && t->latched == 0); /* who is before it in line may wait for either */
    far_latch(t, FAR_LATCH_SHORTAGE);
    int err = run(t, arg); /* others before it may have brought some */
    if (err == FAR_ERR_NO_MEMORY) {
        put_down(t);
        t->background = true;
        err = try_unless_held_up(t, run, arg, background);
        t->background = background;
    }
    far_unlatch(t, FAR_LATCH_SHORTAGE);
    return err;
}
