/* The out-of-memory path (far_run_out_of_memory), which an operation takes after it found no memory. Such operations,
 * of all sessions of the handle, wait for a latch and are retried one after the other. The task that holds the latch
 * requests that all handles release blocks with free space (a request with `release_blocks`), waits until they have
 * acknowledged it, and retries its operation. If memory may have leaked, it also runs a collection. The operation
 * finally fails with FAR_ERR_NO_MEMORY when two rounds in a row have freed nothing, or when a stalled client prevents
 * the epoch from advancing, because then the memory that waits for the epoch cannot be reused. */
#include "base/error.h"
#include "pool/alloc/store.h"
#include "pool/epoch/stalled.h"
#include "pool/gc/collect.h"
#include "pool/gc/request.h"
#include "task/latch.h"

#include <assert.h>
#include <stdio.h>

#define ROUNDS_MAX 8 /* largest number of rounds for one operation */
/* a request for blocks that was observed at most this many epochs ago serves this handle too */
#define JOIN_EPOCHS      4


void far_memory_note_freed(far_store *s) {
    atomic_fetch_add_explicit(&s->free_events, 1, memory_order_relaxed);
}


/* ---- Requesting blocks ---- */

/* One step of a wait. The thread of the waiting task may be the only one that can execute housekeeping for this handle,
 * so it executes a tick if necessary. */
static int do_housekeeping_and_pause(far_task *t) {
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch); /* this READ also fails if the session was declared dead */
    if (err == 0)
        err = far_housekeeping_step(t);
    if (err == 0)
        far_task_block_until(t, far_now(t) + far_tick(far_task_fabric(t)));
    return err;
}


/* A function for far_request_change that makes a request to release blocks, or joins one that another handle made a
 * short time ago. The acknowledgements of the joined request serve this handle too. Returns 1 if it joins a request.
 * Sets *ctx to the number of the request. */
static int set_release_request(far_task *t, far_request *r, void *ctx) {
    far_store *s = far_store_of(t);
    pthread_mutex_lock(&s->lock);
    bool fresh = r->number != s->observed || far_epoch_known(t) - s->observed_epoch < JOIN_EPOCHS,
         /* the request for which this handle has waited already did not free enough memory, so it is not joined */
        join = r->release_blocks && fresh && r->number != s->release_number;
    pthread_mutex_unlock(&s->lock);
    r->number = join ? r->number : far_number_next(r->number);
    r->release_blocks = true;
    *(uint32_t *)ctx = r->number;
    return join;
}


static int request_block_release(far_task *t, uint32_t *number) {
    far_store *s = far_store_of(t);
    far_request made;
    int err = far_request_change(t, set_release_request, number, &made);
    pthread_mutex_lock(&s->lock);
    s->release_number = err < 0 ? s->release_number : *number;
    pthread_mutex_unlock(&s->lock);
    return err < 0 ? err : 0;
}


/* Returns how long the epoch may stand while this handle waits for acknowledgements or for other epochs. */
static uint64_t memory_wait(const far_task *t) {
    return far_stall_bound(far_task_fabric(t)) / FAR_MEMORY_WAIT_SHARE;
}


static int wait_for_collection(far_task *t) {
    const uint64_t until = far_stall_deadline(t);
    int wanted = far_collection_is_requested(t);
    while (wanted == 1 && far_now(t) < until) {
        /* taking a pin makes this handle active; a quiescent handle would not learn that the collection has ended */
        int err = far_pin_take(t);
        far_pin_drop(t);
        if (err == 0)
            err = do_housekeeping_and_pause(t);
        wanted = err < 0 ? err : far_collection_is_requested(t);
    }
    return wanted < 0 ? wanted : 0;
}


/* Returns 1 if this function ran a collection or another handle ran one, because a collection may have freed memory;
 * otherwise 0 or an error. A collection is needed if memory may have leaked. Failed clients, including ones that were
 * not detected yet, may hold much memory. */
static int collect_leaked(far_task *t) {
    far_collect_result result;
    int err = far_clients_check_liveness(t);
    if (err == 0)
        err = far_collection_is_requested(t);
    if (err <= 0)
        return err;
    far_point(t, "out_of_memory:collect");
    err = far_collect(t, FAR_COLLECT_OUT_OF_MEMORY, &result);
    if (t->session->lost)
        return t->session->lost;
    if (err == FAR_ERR_BUSY && (err = wait_for_collection(t)) < 0)
        return err;
    /* 0 if the collection failed, for example because an index is damaged; another one would fail too */
    return err == 0;
}


/* Returns whether another handle has made a newer request without `release_blocks` since the request `number`. A handle
 * that had not observed the request `number` by then will never observe it, but its acknowledgement of the newer
 * request also counts for the request `number`. So it is possible that not all handles have released blocks. */
static int read_whether_superseded(far_task *t, uint32_t number) {
    uint64_t word;
    int err = far_read_word(t, far_addr_make(0, FAR_SUPER_REQUEST), &word);
    if (err < 0)
        return err;
    far_request now = far_request_unpack(word);
    return now.number != number && !now.release_blocks;
}


/* Executes one round, which requests blocks and waits for all acknowledgements. Returns 1 if the request was
 * superseded, so that perhaps not all handles have observed it. */
static int request_and_wait_for_blocks(far_task *t) {
    uint32_t number;
    /* taking a pin makes this handle active, so that it observes and acknowledges the request too */
    int err = far_pin_take(t);
    far_pin_drop(t);
    far_point(t, "out_of_memory:request_blocks");
    if (err == 0)
        err = request_block_release(t, &number);
    if (err == 0)
        err = far_request_wait(t, number, memory_wait(t));
    /* a request that was not acknowledged in time is not repeated */
    int superseded = err == 0 ? read_whether_superseded(t, number) : 0;
    if (err >= 0)
        err = superseded < 0 ? superseded : do_housekeeping_and_pause(t);
    return err < 0 ? err : superseded;
}


/* Runs the operation again. Its first pin is not refused because of the time that it waited for memory. */
static int run_again(far_task *t, int (*run)(far_task *t, void *arg), void *arg) {
    t->pin_sparing = FAR_SPARE_NEXT_PIN;
    int err = run(t, arg);
    t->pin_sparing = FAR_SPARE_PINS;
    return err;
}


/* Discards the verbs that the failed attempt has added to its batch and not posted, so that they are not posted
 * together with the verbs of the search for memory. Also drops the pin. */
static void abandon_attempt(far_task *t) {
    t->refused = FAR_ERR_NO_MEMORY;
    far_start(t);
    far_task_wait_for(t, FAR_WAIT_ALL);
    far_pin_drop(t);
}


/* Returns whether nothing became free since the last search for memory failed, and nothing that is retired or leaked
 * can become free. */
static bool pool_is_exhausted(far_task *t, const far_handle_usage *o) {
    const far_store *s = far_store_of(t);
    return o->free_events == s->exhausted_at && o->retired_bytes == 0 && !far_collection_was_requested(s->pool);
}


/* Returns 1 if pool_is_exhausted holds and accounts for all memory that was freed before this call. Other handles
 * publish what they freed at the next epoch, so the answer is certain after two epochs. */
static int confirm_exhausted(far_task *t, far_handle_usage *o) {
    const far_store *s = far_store_of(t);
    unsigned returned = atomic_load_explicit(&s->free_events, memory_order_relaxed);
    int err = far_handle_usage_sum(t, o);
    if (err < 0 || !pool_is_exhausted(t, o))
        return err;
    err = far_wait_epochs_until(t, 2, far_now(t) + memory_wait(t));
    if (err >= 0)
        err = far_handle_usage_sum(t, o);
    return err < 0 ? err
                   : pool_is_exhausted(t, o) && atomic_load_explicit(&s->free_events, memory_order_relaxed) == returned;
}


/* ---- Stalled clients ---- */

/* Returns 1 and the client, if another client still prevents the epoch from advancing that it prevented when this
 * handle last found no memory. Returns 0 if not. */
static int find_same_staller(far_task *t, far_stalled_client *b) {
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch);
    if (err < 0 || epoch != far_store_of(t)->stalled_epoch)
        return err;
    return far_stalled_client_confirm(t, epoch, b, far_wait_for_next_epoch);
}


/* Called when all rounds were without success. Records `epoch` if it does not advance, so that later operations do not
 * wait for that epoch again. */
static void record_stalled_epoch(far_task *t, uint64_t epoch, uint64_t since) {
    far_store *s = far_store_of(t);
    if (far_epoch_known(t) != epoch || s->stalled_epoch == epoch)
        return;
    s->stalled_epoch = epoch;
    s->stalled_since = since;
}


/* Adds the name of the stalled client to the message, because the user can do something about that client. */
static int fail_naming_staller(far_task *t, const far_stalled_client *b) {
    char words[FAR_MESSAGE_BYTES], who[FAR_CLIENT_DESCRIPTION];
    snprintf(words, sizeof(words), "%s", far_last_error());
    far_client_describe(t, b->id, b->generation, who);
    return far_fail(
        FAR_ERR_NO_MEMORY,
        "%s: %s is stopped in the middle of an operation, so memory that other clients freed cannot be reused", words,
        who);
}


/* Retries the operation in rounds. The caller holds the latch. Returns the result of the last attempt. */
static int retry_in_rounds(far_task *t, int (*run)(far_task *t, void *arg), void *arg, bool background) {
    far_store *s = far_store_of(t);
    far_handle_usage before, after;
    /* the epoch at the beginning of the last round, and the time at which the epoch last advanced */
    uint64_t epoch = 0, since = 0;
    assert(far_latch_is_held(t, FAR_LATCH_OUT_OF_MEMORY));
    int err = confirm_exhausted(t, &before);
    unsigned failed_rounds = 0;
    bool collected = false;
    if (err == 1)
        return FAR_ERR_NO_MEMORY;
    for (unsigned round = 0; err == 0 && round < ROUNDS_MAX && failed_rounds < 2; round++) {
        unsigned returned = atomic_load_explicit(&s->free_events, memory_order_relaxed);
        if (far_epoch_known(t) != epoch)
            since = far_now(t);
        epoch = far_epoch_known(t);
        int superseded = request_and_wait_for_blocks(t);
        if (superseded < 0)
            return superseded;
        far_count_retry(t);
        far_progress_reset(t); /* the task waits for memory, so its lack of progress elsewhere does not count */
        t->background = background;
        err = run_again(t, run, arg);
        t->background = true;
        if (err != FAR_ERR_NO_MEMORY) {
            s->exhausted_at = 0;
            return err;
        }
        abandon_attempt(t);
        if ((err = far_handle_usage_sum(t, &after)) < 0)
            return err;
        bool memory_freed = atomic_load_explicit(&s->free_events, memory_order_relaxed) != returned ||
                            after.free_events != before.free_events;
        failed_rounds = memory_freed || superseded ? failed_rounds : failed_rounds + 1;
        before = after;
        if (!collected && (!memory_freed || round > 0)) {
            collected = true;
            if ((err = collect_leaked(t)) < 0)
                return err;
            failed_rounds = err ? 0 : failed_rounds;
            err = 0;
        }
    }
    if (err < 0)
        return err;
    s->exhausted_at = before.free_events;
    record_stalled_epoch(t, epoch, since);
    return FAR_ERR_NO_MEMORY;
}


/* Retries the operation like retry_in_rounds, but while a stalled client holds up the epoch, only the first operation
 * retries; later ones fail at once. If the options permit it, the stalled client is evicted and the operation is
 * retried. */
static int retry_unless_stalled(far_task *t, int (*run)(far_task *t, void *arg), void *arg, bool background) {
    far_stalled_client b;
    int stalled = find_same_staller(t, &b), err = FAR_ERR_NO_MEMORY;
    if (stalled == 0) {
        err = retry_in_rounds(t, run, arg, background);
        stalled = err == FAR_ERR_NO_MEMORY ? find_same_staller(t, &b) : 0;
    }
    if (stalled <= 0)
        return stalled < 0 ? stalled : err;
    if (!far_stalled_client_may_be_evicted(t, &b, far_now(t) - far_store_of(t)->stalled_since))
        return fail_naming_staller(t, &b);
    int ended = far_stalled_client_evict(t, &b);
    if (ended < 0) /* the client cannot be evicted, which is an error of this session only if the session is lost */
        return t->session->lost ? ended : fail_naming_staller(t, &b);
    return retry_in_rounds(t, run, arg, background);
}


int far_run_out_of_memory(far_task *t, int (*run)(far_task *t, void *arg), void *arg) {
    bool background = t->background;
    far_point(t, "out_of_memory:begin");
    far_note_wait(t);
    t->pin_sparing = FAR_SPARE_PINS;
    abandon_attempt(t);
    /* An earlier operation in the line for the latch may have to wait for the pin or the latch of this task, so the
     * task has neither here. */
    assert(t->pin.epoch == 0 && t->latched == 0);
    far_latch(t, FAR_LATCH_OUT_OF_MEMORY);
    /* the earlier operations in the line for the latch may have obtained memory, so the operation is first tried
     * without a round */
    int err = run_again(t, run, arg);
    if (err == FAR_ERR_NO_MEMORY) {
        abandon_attempt(t);
        t->background = true;
        err = retry_unless_stalled(t, run, arg, background);
        t->background = background;
    }
    far_unlatch(t, FAR_LATCH_OUT_OF_MEMORY);
    t->pin_sparing = FAR_SPARE_NO_PIN;
    return err;
}
