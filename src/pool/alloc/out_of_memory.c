/* The out-of-memory path (far_run_out_of_memory), which an operation takes after it found no memory. Such operations,
 * of all sessions of the handle, wait for a latch and are served one after the other. The task that holds the latch
 * requests that all handles return memory and release blocks with free space (a request with `release_blocks`), waits
 * until they have acknowledged it, waits until its handle has freed the memory of dropped indexes, runs a collection if
 * memory may have leaked, and retries its operation. If that fails, the operation fails with FAR_ERR_NO_MEMORY, unless
 * other handles may have taken the memory that was released for it; then it begins another round with a new request. If
 * a stalled client prevents the epoch from advancing, so that the memory that waits for the epoch cannot be reused, the
 * error names that client, or the client is evicted. */
#include "base/error.h"
#include "pool/alloc/store.h"
#include "pool/epoch/stalled.h"
#include "pool/gc/collect.h"
#include "pool/gc/request.h"
#include "task/latch.h"

#include <assert.h>
#include <stdio.h>

/* a request for blocks that was observed at most this many epochs ago serves this handle too */
#define JOIN_EPOCHS 4
/* largest number of rounds that are followed by another round, because other handles may have prevented that the round
 * found memory */
#define REPEATS_MAX 8
/* After a search without success, inserts search again after this many epochs even if the handles hold no more free
 * memory than before, because free memory may be in no handle. */
#define REFUSED_EPOCHS 64


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


typedef struct block_request {
    bool may_join; /* a request of another handle may be joined */
    bool joined;
    uint32_t number;
} block_request;


/* A function for far_request_change that makes a request to release blocks, or joins one that another handle made a
 * short time ago. Returns 1 if it joins a request. */
static int set_release_request(far_task *t, far_request *r, void *ctx) {
    far_store *s = far_store_of(t);
    block_request *wanted = ctx;
    pthread_mutex_lock(&s->lock);
    bool fresh = r->number != s->handshake.observed || far_epoch_known(t) - s->handshake.observed_epoch < JOIN_EPOCHS;
    pthread_mutex_unlock(&s->lock);
    wanted->joined = wanted->may_join && r->release_blocks && fresh;
    r->number = wanted->joined ? r->number : far_number_next(r->number);
    r->release_blocks = true;
    wanted->number = r->number;
    return wanted->joined;
}


/* Returns how long the epoch may stand while this handle waits for acknowledgements or for other epochs. */
static uint64_t memory_wait(const far_task *t) {
    return far_stall_bound(far_task_fabric(t)) / FAR_MEMORY_WAIT_SHARE;
}


static int wait_for_collection(far_task *t) {
    const uint64_t until = far_stall_deadline(t);
    int wanted = far_collection_is_requested(t);
    while (wanted == 1 && far_now(t) < until && !far_stall_has_refused(t)) {
        far_note_wait(t);
        /* taking a pin makes this handle active; a quiescent handle would not learn that the collection has ended */
        int err = far_pin_take(t);
        far_pin_drop(t);
        if (err == 0)
            err = do_housekeeping_and_pause(t);
        wanted = err < 0 ? err : far_collection_is_requested(t);
    }
    return wanted < 0 ? wanted : 0;
}


/* Waits until this handle has freed the memory of the indexes that it knows to be dropped. */
static int wait_for_dropped_indexes(far_task *t) {
    far_pool *pool = far_task_pool(t);
    const uint64_t until = far_stall_deadline(t);
    int err = 0;
    while (err == 0 &&
           (far_dropped_is_due(pool) || atomic_load_explicit(&pool->freeing_dropped, memory_order_relaxed)) &&
           far_now(t) < until && !far_stall_has_refused(t)) {
        far_note_wait(t);
        far_point(t, "out_of_memory:dropped");
        err = do_housekeeping_and_pause(t);
    }
    return err;
}


/* Runs a collection, or waits for the one of another handle, if memory may have leaked. Failed clients, including ones
 * that were not detected yet, may hold much memory. If the collection fails, for example because an index is damaged,
 * the operation is retried nevertheless. Returns 0 or an error of this session. */
static int collect_leaked(far_task *t) {
    far_collect_result result;
    int err = far_clients_check_liveness(t);
    if (err == 0)
        err = far_collection_is_requested(t);
    if (err <= 0)
        return err;
    far_point(t, "out_of_memory:collect");
    t->pin_sparing = FAR_SPARE_NO_PIN; /* the walk ends if a client is stopped while it holds a lock */
    err = far_collect(t, FAR_COLLECT_OUT_OF_MEMORY, &result);
    t->pin_sparing = FAR_SPARE_PINS;
    if (t->session->lost)
        return t->session->lost;
    return err == FAR_ERR_BUSY ? wait_for_collection(t) : 0;
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


/* The result of a request for blocks. */
typedef enum {
    ACKNOWLEDGED, /* all handles have given everything that they held free when this task made the request */
    SHARED,       /* the request was made by another handle or superseded, so perhaps not all handles have done so */
    LATE          /* a handle did not acknowledge the request in time */
} request_result;


/* Publishes the request. Inserts of this handle may adopt the blocks that are released for it (exchange.c). */
static int make_or_join_request(far_task *t, block_request *r) {
    far_store *s = far_store_of(t);
    far_request made;
    int err = far_request_change(t, set_release_request, r, &made);
    pthread_mutex_lock(&s->lock);
    if (err >= 0)
        s->out_of_memory.requested = r->number;
    pthread_mutex_unlock(&s->lock);
    return err;
}


/* Requests blocks and waits for all acknowledgements. Returns a request_result or an error. */
static int request_and_wait_for_blocks(far_task *t, bool may_join) {
    block_request r = {.may_join = may_join};
    /* taking a pin makes this handle active, so that it observes and acknowledges the request too */
    int err = far_pin_take(t);
    far_pin_drop(t);
    far_point(t, "out_of_memory:request_blocks");
    if (err == 0)
        err = make_or_join_request(t, &r);
    if (err >= 0)
        err = far_request_wait(t, r.number, memory_wait(t));
    int superseded = err == 0 ? read_whether_superseded(t, r.number) : 0;
    request_result result = err == 1 ? LATE : superseded > 0 || r.joined ? SHARED : ACKNOWLEDGED;
    if (err >= 0)
        err = superseded < 0 ? superseded : do_housekeeping_and_pause(t);
    return err < 0 ? err : (int)result;
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


/* ---- Refusals ---- */

/* Reads how much memory all handles hold free or retired, and the loss counter. Free pages of this handle count too,
 * because the amount must not grow when an update turns pages into a slab. */
static int read_prospect(far_task *t, far_prospect *p) {
    far_store *s = far_store_of(t);
    far_handle_usage sum = {0};
    uint64_t pages = 0;
    int err = far_handle_usage_sum(t, &sum);
    pthread_mutex_lock(&s->lock);
    for (unsigned n = 0; n < s->pool->geometry.nodes; n++)
        pages += s->headroom[n].free_pages;
    pthread_mutex_unlock(&s->lock);
    p->bytes = sum.free_bytes + sum.retired_bytes + pages * s->pool->geometry.page_bytes;
    return err < 0 ? err : far_read_word(t, far_addr_make(0, FAR_SUPER_LOSSES), &p->losses);
}


/* Returns 1 if a search for memory would fail like the last one: since then no memory has leaked, and the handles have
 * not gained as much free or retired memory as the operation needs. A delete adds such memory, an update does not. Other
 * handles publish at their next tick what they gained. An operation that may use the headroom searches nevertheless. */
static int check_refused(far_task *t) {
    const far_store *s = far_store_of(t);
    far_prospect now;
    if (t->missed_bytes == 0 || s->out_of_memory.refused_epoch == 0 ||
        far_epoch_known(t) - s->out_of_memory.refused_epoch >= REFUSED_EPOCHS)
        return 0;
    int err = read_prospect(t, &now);
    return err < 0 ? err
                   : now.bytes < s->out_of_memory.refused.bytes + t->missed_bytes &&
                         now.losses == s->out_of_memory.refused.losses;
}


/* ---- Stalled clients ---- */

/* Returns 1 and the client, if another client still prevents the epoch from advancing that it prevented when this
 * handle last found no memory. Returns 0 if not. */
static int find_same_staller(far_task *t, far_stalled_client *b) {
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch);
    if (err < 0 || epoch != far_store_of(t)->out_of_memory.stalled_epoch)
        return err;
    return far_stalled_client_confirm(t, epoch, b, far_wait_for_next_epoch);
}


/* Called when a search was without success. Records `epoch` if it does not advance, so that later operations do not
 * wait for that epoch again. */
static void record_stalled_epoch(far_task *t, uint64_t epoch, uint64_t since) {
    far_store *s = far_store_of(t);
    if (far_epoch_known(t) != epoch || s->out_of_memory.stalled_epoch == epoch)
        return;
    s->out_of_memory.stalled_epoch = epoch;
    s->out_of_memory.stalled_since = since;
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


/* Returns whether another round may find memory after a round with this result did not. If the operation may use the
 * headroom, operations of other handles may have adopted the released blocks before it was retried. They then have free
 * memory that they release in the next round. For an insert such a round counts, because an insert may fail while
 * memory is left for updates. */
static bool is_inconclusive(const far_task *t, int result) {
    bool may_use_headroom = t->missed_bytes == 0;
    return result == SHARED || (result == ACKNOWLEDGED && may_use_headroom);
}


/* Searches for memory and retries the operation. The caller holds the latch. Returns the result of the operation. */
static int search_and_retry(far_task *t, int (*run)(far_task *t, void *arg), void *arg, bool background) {
    far_store *s = far_store_of(t);
    /* the epoch at the beginning of the last round, and the time at which the epoch last advanced */
    uint64_t epoch = 0, since = 0;
    far_prospect before = {0};
    int result = LATE;
    assert(far_latch_is_held(t, FAR_LATCH_OUT_OF_MEMORY));
    s->out_of_memory.refused_epoch = 0;
    for (unsigned round = 0; round == 0 || (round <= REPEATS_MAX && is_inconclusive(t, result)); round++) {
        if (far_epoch_known(t) != epoch)
            since = far_now(t);
        epoch = far_epoch_known(t);
        int err = read_prospect(t, &before);
        if (err == 0)
            err = result = request_and_wait_for_blocks(t, round == 0);
        if (err == LATE) { /* the epoch may have advanced since the round began, but then it stood all the time */
            epoch = far_epoch_known(t);
            since = far_now(t) - memory_wait(t);
        }
        if (err >= 0)
            err = wait_for_dropped_indexes(t);
        if (err >= 0)
            err = collect_leaked(t);
        if (err < 0)
            return err;
        far_store_search_again(t);
        far_count_retry(t);
        far_progress_reset(t); /* the task waits for memory, so its lack of progress elsewhere does not count */
        t->background = background;
        far_point(t, "out_of_memory:retry");
        err = run_again(t, run, arg);
        t->background = true;
        if (err != FAR_ERR_NO_MEMORY)
            return err;
        abandon_attempt(t);
    }
    record_stalled_epoch(t, epoch, since);
    if (result == ACKNOWLEDGED) {
        s->out_of_memory.refused_epoch = far_epoch_known(t);
        s->out_of_memory.refused = before;
    }
    return FAR_ERR_NO_MEMORY;
}


/* Retries the operation like search_and_retry, but while a stalled client holds up the epoch, only the first operation
 * retries; later ones fail at once. If the options permit it, the stalled client is evicted and the operation is
 * retried. */
static int retry_unless_stalled(far_task *t, int (*run)(far_task *t, void *arg), void *arg, bool background) {
    far_stalled_client b;
    int stalled = find_same_staller(t, &b), err = FAR_ERR_NO_MEMORY;
    int refused = stalled == 0 ? check_refused(t) : 0;
    if (refused != 0)
        return refused < 0 ? refused : err;
    if (stalled == 0) {
        err = search_and_retry(t, run, arg, background);
        stalled = err == FAR_ERR_NO_MEMORY ? find_same_staller(t, &b) : 0;
    }
    if (stalled <= 0)
        return stalled < 0 ? stalled : err;
    if (!far_stalled_client_may_be_evicted(t, &b, far_now(t) - far_store_of(t)->out_of_memory.stalled_since))
        return fail_naming_staller(t, &b);
    int ended = far_stalled_client_evict(t, &b);
    if (ended < 0) /* the client cannot be evicted, which is an error of this session only if the session is lost */
        return t->session->lost ? ended : fail_naming_staller(t, &b);
    return search_and_retry(t, run, arg, background);
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
