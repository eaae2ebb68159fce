/* Verbs of a task: adding them to the open batch, posting the batch, waiting for it, and counting. far_wait is the step
 * that all operations consist of. */
#include "base/error.h"
#include "fabric/words.h"
#include "task/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 8

static void on_batch_done(far_batch *batch);

/* Dummy verb that add_verb returns if there is no memory for the batch, so that the caller can fill it in. The batch is
 * then refused when it is posted. */
static _Thread_local far_verb overflow_verb;


static __attribute__((noinline)) far_batch_box *new_box(void) {
    far_batch_box *box = calloc(1, sizeof(*box));
    if (!box)
        return NULL;
    box->batch.verbs = malloc(FIRST_CAPACITY * sizeof(far_verb));
    if (!box->batch.verbs) {
        free(box);
        return NULL;
    }
    box->capacity = FIRST_CAPACITY;
    box->batch.done = on_batch_done;
    return box;
}


/* Returns an empty batch buffer (box): one from the session's list of free boxes, which contains only empty boxes, or a
 * new one. Returns NULL if there is no memory. */
static inline far_batch_box *acquire_box(far_session *s) {
    far_batch_box *box = s->free_boxes;
    if (!box)
        return new_box();
    assert(box->batch.count == 0 && box->fences == 0 && !box->atomics);
    s->free_boxes = box->next;
    return box;
}


static inline void clear_box(far_batch_box *box) {
    box->batch.count = 0;
    if (box->fences)
        box->fences = 0;
    if (box->atomics)
        box->atomics = false;
}


static inline void release_box(far_session *s, far_batch_box *box) {
    assert(s->free_boxes != box);
    clear_box(box);
    box->next = s->free_boxes;
    s->free_boxes = box;
}


static inline far_batch_box *get_open_box(far_task *t) {
    if (!t->open && (t->open = acquire_box(t->session)))
        t->open->batch.owner = t;
    return t->open;
}


void far_release_open_box(far_task *t) {
    if (t->open)
        release_box(t->session, t->open);
    t->open = NULL;
}


void far_boxes_free(far_session *s) {
    while (s->free_boxes) {
        far_batch_box *box = s->free_boxes;
        s->free_boxes = box->next;
        free(box->batch.verbs);
        free(box);
    }
}


/* Adds `by` to the counters of verbs and bytes for one verb of this kind: 1 counts the verb, and -1 subtracts a verb
 * that was discarded. */
static inline void count_verb(far_stats *stats, far_verb_kind kind, size_t bytes, uint64_t by) {
    switch (kind) {
    case FAR_READ:
        stats->reads += by;
        stats->bytes_read += by * bytes;
        break;
    case FAR_WRITE:
        stats->writes += by;
        stats->bytes_written += by * bytes;
        break;
    case FAR_CAS:
        stats->cas += by;
        break;
    case FAR_FAA:
        stats->faa += by;
        break;
    default:
        stats->masked_cas += by;
        break;
    }
}


static inline far_verb *fill_verb(far_task *t, far_batch_box *box, far_verb_kind kind, far_addr addr, void *local,
                                  size_t bytes) {
    assert(box->batch.count < box->capacity && box->batch.owner == t);
    far_verb *verb = &box->batch.verbs[box->batch.count++];
    verb->kind = (uint8_t)kind;
    verb->flags = 0;
    verb->addr = addr;
    verb->local = local;
    verb->length = (uint32_t)bytes;
    if (kind > FAR_WRITE)
        box->atomics = true;
    count_verb(t->stats, kind, bytes, 1);
    return verb;
}


static inline bool range_is_in_pool(const far_fabric *fabric, far_addr addr, size_t bytes) {
    return bytes - 1 < FAR_VERB_BYTES_MAX && far_fabric_in_range(fabric, addr, bytes);
}


/* The slow path of adding a verb, for the cases that there is no open batch yet, the batch has no room, or the verb must
 * be refused. */
static __attribute__((noinline)) far_verb *add_verb_slowly(far_task *t, far_verb_kind kind, far_addr addr, void *local,
                                                           size_t bytes) {
    far_batch_box *box = get_open_box(t);
    if (box && box->batch.count == box->capacity) {
        far_verb *more = realloc(box->batch.verbs, 2 * box->capacity * sizeof(far_verb));
        if (more) {
            box->batch.verbs = more;
            box->capacity *= 2;
        }
    }
    if (!box || box->batch.count == box->capacity) {
        t->refused = far_fail(FAR_ERR_NO_MEMORY, "this process has no memory for a verb");
        return &overflow_verb;
    }
    if (!range_is_in_pool(t->session->conn->fabric, addr, bytes))
        t->refused = far_fail(FAR_ERR_CORRUPT, "a verb of %zu bytes at %#llx is outside the pool", bytes,
                              (unsigned long long)addr);
    return fill_verb(t, box, kind, addr, local, bytes);
}


static inline __attribute__((always_inline)) far_verb *add_verb(far_task *t, far_verb_kind kind, far_addr addr,
                                                                void *local, size_t bytes) {
    far_batch_box *box = t->open;
    const far_fabric *fabric = t->session->conn->fabric;
    if (!box || box->batch.count == box->capacity || !range_is_in_pool(fabric, addr, bytes))
        return add_verb_slowly(t, kind, addr, local, bytes);
    far_fabric_prefetch(fabric, addr, bytes);
    return fill_verb(t, box, kind, addr, local, bytes);
}


void far_prefetch(far_task *t, far_addr addr) {
    const far_fabric *fabric = t->session->conn->fabric;
    if (range_is_in_pool(fabric, addr, 8))
        far_fabric_prefetch(fabric, addr, 8);
}


void far_read(far_task *t, far_addr addr, void *to, size_t bytes) {
    add_verb(t, FAR_READ, addr, to, bytes);
}


void far_read_marked(far_task *t, far_addr addr, void *to, size_t bytes, unsigned flags) {
    far_verb *verb = add_verb(t, FAR_READ, addr, to, bytes);
    if (flags & FAR_VERB_FENCE)
        far_mark(t, flags);
    else
        verb->flags = (uint8_t)flags;
}


void far_write(far_task *t, far_addr addr, const void *from, size_t bytes) {
    add_verb(t, FAR_WRITE, addr, (void *)from, bytes);
}


void far_cas(far_task *t, far_addr addr, uint64_t expected, uint64_t desired, uint64_t *old) {
    far_verb *verb = add_verb(t, FAR_CAS, addr, old, 8);
    verb->compare = expected;
    verb->swap = desired;
}


void far_faa(far_task *t, far_addr addr, uint64_t addend, uint64_t *old) {
    add_verb(t, FAR_FAA, addr, old, 8)->swap = addend;
}


void far_masked_cas(far_task *t, far_addr addr, uint64_t compare, uint64_t compare_mask, uint64_t swap,
                    uint64_t swap_mask, uint64_t *old) {
    far_verb *verb = add_verb(t, FAR_MASKED_CAS, addr, old, 8);
    verb->compare = compare;
    verb->compare_mask = compare_mask;
    verb->swap = swap;
    verb->swap_mask = swap_mask;
    if (!far_task_capabilities(t)->masked_cas)
        t->refused = far_fail(FAR_ERR_UNSUPPORTED, "this pool has no masked CAS");
}


void far_mark(far_task *t, unsigned flags) {
    if (!t->open || t->open->batch.count == 0)
        return;
    far_verb *verb = &t->open->batch.verbs[t->open->batch.count - 1];
    if ((flags & FAR_VERB_FENCE) && !(verb->flags & FAR_VERB_FENCE))
        t->open->fences++;
    verb->flags |= (uint8_t)flags;
}


/* Sets `local` of each atomic whose caller passed no address for the old word. This must happen when the batch is
 * posted, because the array of verbs may move until then. */
static void set_default_result_words(far_batch *batch) {
    for (far_verb *verb = batch->verbs, *end = verb + batch->count; verb < end; verb++)
        if (!verb->local)
            verb->local = &verb->old;
}


/* Index code relies on the order of READs to the same memory node. If the fabric does not guarantee this order, this
 * function fences each READ that follows another READ to the same node, so that the later READ starts after the earlier
 * one has completed. Each fence costs one more round trip. `earlier` means that READs of earlier batches may be in
 * flight. */
static __attribute__((noinline, cold)) void fence_reads(far_batch_box *box, bool earlier) {
    uint64_t seen[FAR_NODES_MAX / 64];
    memset(seen, earlier ? 0xff : 0, sizeof(seen));
    for (far_verb *verb = box->batch.verbs, *end = verb + box->batch.count; verb < end; verb++) {
        uint64_t bit = 1ull << (far_addr_node(verb->addr) % 64), *word = &seen[far_addr_node(verb->addr) / 64];
        if (verb->kind != FAR_READ)
            continue;
        if ((*word & bit) && !(verb->flags & (FAR_VERB_FENCE | FAR_VERB_ANY_ORDER))) {
            verb->flags |= FAR_VERB_FENCE;
            box->fences++;
        }
        *word |= bit;
    }
}


/* Stores in the batch which task, index and pin it belongs to, for the memory checker and for traces. */
static void label_batch(const far_task *t, far_batch *batch) {
    batch->pin_clock = t->pin.epoch ? t->pin.clock : UINT64_MAX;
    batch->index_key = t->index_key;
    batch->label = t->label;
}


static void count_failed_cas(far_task *t, const far_batch *batch) {
    for (uint32_t i = 0; i < batch->count; i++) {
        const far_verb *verb = &batch->verbs[i];
        if (verb->kind != FAR_CAS && verb->kind != FAR_MASKED_CAS)
            continue;
        uint64_t old, mask = verb->kind == FAR_CAS ? UINT64_MAX : verb->compare_mask;
        memcpy(&old, verb->local, 8);
        t->stats->cas_failed += ((old ^ verb->compare) & mask) != 0;
    }
}


static __attribute__((noinline, cold)) void handle_failed_batch(far_task *t, int status) {
    far_session_lose(t->session, status);
    if (!t->error)
        t->error = status;
}


/* Evaluates a completed batch: marks the session as lost if the batch failed, counts failed CASes, and passes the
 * results to the progress detector if the task has one. */
static inline void finish_batch(far_task *t, const far_batch_box *box) {
    if (box->batch.status < 0)
        handle_failed_batch(t, box->batch.status);
    else if (box->atomics)
        count_failed_cas(t, &box->batch);
    if (__builtin_expect(t->patience != NULL, 0) && box->batch.status == 0)
        far_progress_observe(t, &box->batch);
}


static void on_batch_done(far_batch *batch) {
    far_batch_box *box = (far_batch_box *)batch;
    far_task *t = batch->owner;
    assert(t->open != box && (box->waited ? t->waited : t->unwaited) > 0);
    if (box->waited)
        t->waited--;
    else
        t->unwaited--;
    finish_batch(t, box);
    release_box(t->session, box);
    far_task_batch_done(t);
}


/* Discards the open verbs and subtracts them from the counters. */
static void discard_open_verbs(far_task *t) {
    const far_batch *batch = &t->open->batch;
    for (const far_verb *verb = batch->verbs, *end = verb + batch->count; verb < end; verb++)
        count_verb(t->stats, (far_verb_kind)verb->kind, verb->length, (uint64_t)-1);
    clear_box(t->open);
}


void far_wait_for_posted(far_task *t) {
    far_task_wait_for(t, FAR_WAIT_ALL);
}


void far_discard_batch(far_task *t) {
    t->refused = 0;
    if (t->open)
        discard_open_verbs(t);
}


/* Discards the open batch and returns the error that explains why it cannot be posted. `dead` means that the system
 * session of the handle is lost; then this session is lost, too. */
static __attribute__((noinline, cold)) int refuse_open_batch(far_task *t, bool dead) {
    int err = t->refused;
    t->refused = 0;
    if (dead) /* the handle no longer publishes the pins of its sessions, so no session may post verbs */
        far_session_lose(t->session, FAR_ERR_FENCED);
    if (!err)
        err = far_fail_session_lost(t->session, t->lost ? t->lost : t->session->lost);
    if (t->open)
        discard_open_verbs(t);
    assert(err < 0);
    return err;
}


static __attribute__((noinline)) void keep_batch_pending(far_task *t, far_batch_box *box, bool waited) {
    t->open = NULL;
    box->waited = waited;
    t->waited += waited;
    t->unwaited += !waited;
}


/* Posts the open batch. Returns 1 if a batch was posted, 0 if the open batch was empty, or an error. t->trips is set if
 * the batch needs more than one round trip. Every verb passes through this function and add_verb, which therefore avoid
 * stores: a store after a READ that misses the cache would delay all later stores, and so prevent the overlap with the
 * next READ. For the same reason a box remains the open box of the task if its batch completes at once. */
static inline __attribute__((always_inline)) int post_open_batch(far_task *t, bool waited) {
    far_session *s = t->session;
    bool dead = atomic_load_explicit(&s->team->dead, memory_order_acquire);
    if (t->refused | s->lost | dead)
        return refuse_open_batch(t, dead);
    far_batch_box *box = t->open;
    if (!box || box->batch.count == 0)
        return 0;
    far_batch *batch = &box->batch;
    far_conn *conn = s->conn;
    if (conn->fabric->watch)
        label_batch(t, batch);
    if (box->atomics)
        set_default_result_words(batch);
    if (!far_fabric_reads_in_order(conn->fabric))
        fence_reads(box, t->waited > 0);
    if (t->background)
        t->stats->background_verbs += batch->count;
    if (!waited)
        t->stats->unwaited_verbs += batch->count;
    else if (box->fences)
        t->trips = (t->trips ? t->trips : 1) + box->fences;
    conn->fabric->ops->post(conn, batch);
    if (batch->pending) {
        keep_batch_pending(t, box, waited);
    } else {
        finish_batch(t, box);
        clear_box(box);
    }
    return 1;
}


int far_start(far_task *t) {
    int posted = post_open_batch(t, true);
    if (posted > 0 && t->trips == 0)
        t->trips = 1;
    return posted < 0 ? posted : 0;
}


int far_post(far_task *t) {
    int posted = post_open_batch(t, false);
    return posted < 0 ? posted : 0;
}


/* Returns the addresses of the mapped memory nodes if verbs of this task can be executed directly when the task waits
 * for them, or NULL if the verbs must be posted. Direct execution requires mapped memory, and an operation without
 * errors, without started batches, without background accounting and without a progress detector. Then only the
 * counters need to be updated. A lost session, or one with a failed batch, is fenced and therefore has no mapped
 * memory. */
static inline char *const *memory_to_run_at_once(const far_task *t, const far_conn *conn) {
    bool undisturbed = (t->refused | (int)t->trips | (int)t->background) == 0 && !t->patience &&
                       !atomic_load_explicit(&t->session->team->dead, memory_order_acquire);
    return undisturbed ? atomic_load_explicit(&conn->in_place, memory_order_acquire) : NULL;
}


/* Returns true if all open verbs can be executed directly. */
static inline bool open_batch_runs_at_once(const far_task *t) {
    const far_conn *conn = t->session->conn;
    return !t->open->fences && far_fabric_reads_in_order(conn->fabric) && memory_to_run_at_once(t, conn);
}


static inline bool has_open_verbs(const far_task *t) {
    return t->open && t->open->batch.count;
}


/* Executes the open verbs directly on mapped memory. None of these verbs has a fence. The caller counts the round trip.
 */
static __attribute__((noinline)) void run_open_batch(far_task *t) {
    far_batch_box *box = t->open;
    if (box->atomics)
        set_default_result_words(&box->batch);
    far_words_run_batch(t->session->conn, &box->batch);
    if (box->atomics)
        count_failed_cas(t, &box->batch);
    box->batch.count = 0;
    box->atomics = false;
}


static __attribute__((noinline)) int post_and_wait(far_task *t) {
    int posted = post_open_batch(t, true), err = posted < 0 ? posted : 0;
    if (t->waited)
        far_task_wait_for(t, FAR_WAIT_WAITED);
    assert(t->waited == 0 && (!t->open || t->open->batch.count == 0));
    unsigned trips = t->trips ? t->trips : posted > 0;
    if (t->background)
        t->stats->background_round_trips += trips;
    else
        t->stats->round_trips += trips;
    if (t->trips)
        t->trips = 0;
    if (t->error) {
        err = err ? err : t->error;
        t->error = 0;
    }
    return err;
}


int far_wait(far_task *t) {
    if (!has_open_verbs(t) || !open_batch_runs_at_once(t))
        return post_and_wait(t);
    run_open_batch(t);
    t->stats->round_trips++;
    return 0;
}


/* Prepares the direct execution of one verb that needs no batch: counts the verb with `trips` round trips (0 if it
 * belongs to the round trip of a later verb) and returns its local words. Returns false if the verb must be added to
 * the batch instead. */
static inline __attribute__((always_inline)) bool find_words_to_run_at_once(far_task *t, far_verb_kind kind,
                                                                            far_addr addr, size_t bytes, unsigned trips,
                                                                            _Atomic uint64_t **words) {
    const far_conn *conn = t->session->conn;
    const far_fabric *fabric = conn->fabric;
    far_stats *stats = t->stats;
    char *const *memory = memory_to_run_at_once(t, conn);
    if (!memory || !range_is_in_pool(fabric, addr, bytes))
        return false;
    count_verb(stats, kind, bytes, 1);
    stats->round_trips += trips;
    *words = far_words_at(memory, addr);
    return true;
}


/* Like find_words_to_run_at_once, but also returns false if the task has open verbs, because the new verb must not take
 * effect before them. */
static inline __attribute__((always_inline)) bool find_words_if_alone(far_task *t, far_verb_kind kind, far_addr addr,
                                                                      size_t bytes, unsigned trips,
                                                                      _Atomic uint64_t **words) {
    return !has_open_verbs(t) && find_words_to_run_at_once(t, kind, addr, bytes, trips, words);
}


static inline void execute_write(far_task *t, _Atomic uint64_t *words, const void *from, size_t bytes) {
    far_words_write(words, from, bytes / 8);
    far_words_fence(&t->session->conn->fence_word);
}


/* Adds a READ or WRITE as the last verb of the open batch and waits for the whole batch. If verbs can be executed
 * directly, the open verbs are executed first, and then this verb is executed without being added to the batch. */
static __attribute__((noinline)) int wait_for_last_verb(far_task *t, far_verb_kind kind, far_addr addr, void *local,
                                                        size_t bytes, unsigned flags) {
    _Atomic uint64_t *words;
    bool behind = has_open_verbs(t) && open_batch_runs_at_once(t);
    if (!behind || !find_words_to_run_at_once(t, kind, addr, bytes, 1, &words)) {
        add_verb(t, kind, addr, local, bytes);
        far_mark(t, flags);
        return far_wait(t);
    }
    run_open_batch(t);
    if (kind == FAR_READ)
        far_words_read(words, local, bytes / 8);
    else
        execute_write(t, words, local, bytes);
    return 0;
}


int far_read_now(far_task *t, far_addr addr, void *to, size_t bytes, unsigned flags) {
    _Atomic uint64_t *words;
    if (!find_words_if_alone(t, FAR_READ, addr, bytes, 1, &words))
        return wait_for_last_verb(t, FAR_READ, addr, to, bytes, flags);
    far_words_read(words, to, bytes / 8);
    return 0;
}


int far_write_now(far_task *t, far_addr addr, const void *from, size_t bytes) {
    _Atomic uint64_t *words;
    if (!find_words_if_alone(t, FAR_WRITE, addr, bytes, 1, &words))
        return wait_for_last_verb(t, FAR_WRITE, addr, (void *)from, bytes, 0);
    execute_write(t, words, from, bytes);
    return 0;
}


void far_write_ahead(far_task *t, far_addr addr, const void *from, size_t bytes) {
    _Atomic uint64_t *words;
    if (find_words_if_alone(t, FAR_WRITE, addr, bytes, 0, &words))
        execute_write(t, words, from, bytes);
    else
        far_write(t, addr, from, bytes);
}


int far_read_word(far_task *t, far_addr addr, uint64_t *word) {
    _Atomic uint64_t *at;
    if (!find_words_if_alone(t, FAR_READ, addr, 8, 1, &at))
        return wait_for_last_verb(t, FAR_READ, addr, word, 8, 0);
    *word = atomic_load_explicit(at, memory_order_seq_cst);
    return 0;
}


int far_write_word(far_task *t, far_addr addr, uint64_t word) {
    _Atomic uint64_t *at;
    if (!find_words_if_alone(t, FAR_WRITE, addr, 8, 1, &at))
        return wait_for_last_verb(t, FAR_WRITE, addr, &word, 8, 0);
    execute_write(t, at, &word, 8);
    return 0;
}


/* Executes a CAS directly on mapped memory and returns the old value of the word. */
static inline uint64_t execute_cas(far_task *t, _Atomic uint64_t *word, uint64_t expected, uint64_t desired) {
    uint64_t found = far_words_cas(word, expected, desired);
    t->stats->cas_failed += found != expected;
    return found;
}


static __attribute__((noinline)) int wait_for_cas(far_task *t, far_addr addr, uint64_t expected, uint64_t desired,
                                                  uint64_t *old) {
    far_cas(t, addr, expected, desired, old);
    return far_wait(t);
}


int far_cas_word(far_task *t, far_addr addr, uint64_t expected, uint64_t desired, uint64_t *old) {
    _Atomic uint64_t *word;
    if (!find_words_if_alone(t, FAR_CAS, addr, 8, 1, &word))
        return wait_for_cas(t, addr, expected, desired, old);
    uint64_t found = execute_cas(t, word, expected, desired);
    if (old)
        *old = found;
    return 0;
}


static __attribute__((noinline)) int wait_for_cas_and_read(far_task *t, far_addr word, uint64_t expected,
                                                           uint64_t desired, uint64_t *old, far_addr addr, void *to,
                                                           size_t bytes) {
    far_cas(t, word, expected, desired, old);
    far_read(t, addr, to, bytes);
    return far_wait(t);
}


int far_cas_and_read(far_task *t, far_addr word, uint64_t expected, uint64_t desired, uint64_t *old, far_addr addr,
                     void *to, size_t bytes) {
    _Atomic uint64_t *at, *words;
    /* If the address of the CAS or the address of the READ is invalid, neither verb may be executed. */
    bool sound = range_is_in_pool(t->session->conn->fabric, word, 8);
    if (!sound || !find_words_if_alone(t, FAR_READ, addr, bytes, 1, &words))
        return wait_for_cas_and_read(t, word, expected, desired, old, addr, to, bytes);
    at = far_words_at(t->session->conn->fabric->memory, word);
    t->stats->cas++;
    *old = execute_cas(t, at, expected, desired);
    far_words_read(words, to, bytes / 8);
    return 0;
}
