/* Verbs of a task: putting them into the open batch, posting, waiting, counting. */
#include "base/error.h"
#include "fabric/words.h"
#include "task/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 8

static void batch_done(far_batch *batch);

/* Where a verb goes for which there is no memory; the batch is refused when it is posted. */
static _Thread_local far_verb overflow_verb;


static __attribute__((noinline)) far_batch_box *make_box(void) {
    far_batch_box *box = calloc(1, sizeof(*box));
    if (!box)
        return NULL;
    box->batch.verbs = malloc(FIRST_CAPACITY * sizeof(far_verb));
    if (!box->batch.verbs) {
        free(box);
        return NULL;
    }
    box->capacity = FIRST_CAPACITY;
    box->batch.done = batch_done;
    return box;
}


/* An empty box: those in the list are empty. */
static inline far_batch_box *get_box(far_session *s) {
    far_batch_box *box = s->free_boxes;
    if (!box)
        return make_box();
    assert(box->batch.count == 0 && box->fences == 0 && !box->atomics);
    s->free_boxes = box->next;
    return box;
}


static inline void empty_box(far_batch_box *box) {
    box->batch.count = 0;
    if (box->fences)
        box->fences = 0;
    if (box->atomics)
        box->atomics = false;
}


static inline void put_box(far_session *s, far_batch_box *box) {
    assert(s->free_boxes != box);
    empty_box(box);
    box->next = s->free_boxes;
    s->free_boxes = box;
}


static inline far_batch_box *open_box(far_task *t) {
    if (!t->open && (t->open = get_box(t->session)))
        t->open->batch.owner = t;
    return t->open;
}


void far_box_back(far_task *t) {
    if (t->open)
        put_box(t->session, t->open);
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


/* One more of this kind, or (by = -1) one less. */
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


static inline bool is_sound(const far_fabric *fabric, far_addr addr, size_t bytes) {
    return bytes - 1 < FAR_VERB_BYTES_MAX && far_fabric_in_range(fabric, addr, bytes);
}


/* A verb for which there is no batch yet, or no room in it, or that is refused. */
static __attribute__((noinline)) far_verb *put_verb_slowly(far_task *t, far_verb_kind kind, far_addr addr, void *local,
                                                           size_t bytes) {
    far_batch_box *box = open_box(t);
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
    if (!is_sound(t->session->conn->fabric, addr, bytes))
        t->refused = far_fail(FAR_ERR_CORRUPT, "a verb of %zu bytes at %#llx lies outside the pool", bytes,
                              (unsigned long long)addr);
    return fill_verb(t, box, kind, addr, local, bytes);
}


static inline __attribute__((always_inline)) far_verb *put_verb(far_task *t, far_verb_kind kind, far_addr addr,
                                                                void *local, size_t bytes) {
    far_batch_box *box = t->open;
    const far_fabric *fabric = t->session->conn->fabric;
    if (!box || box->batch.count == box->capacity || !is_sound(fabric, addr, bytes))
        return put_verb_slowly(t, kind, addr, local, bytes);
    far_fabric_prefetch(fabric, addr, bytes);
    return fill_verb(t, box, kind, addr, local, bytes);
}


void far_prefetch(far_task *t, far_addr addr) {
    const far_fabric *fabric = t->session->conn->fabric;
    if (is_sound(fabric, addr, 8))
        far_fabric_prefetch(fabric, addr, 8);
}


void far_read(far_task *t, far_addr addr, void *to, size_t bytes) {
    put_verb(t, FAR_READ, addr, to, bytes);
}


void far_read_marked(far_task *t, far_addr addr, void *to, size_t bytes, unsigned flags) {
    far_verb *verb = put_verb(t, FAR_READ, addr, to, bytes);
    if (flags & FAR_VERB_FENCE)
        far_mark(t, flags);
    else
        verb->flags = (uint8_t)flags;
}


void far_write(far_task *t, far_addr addr, const void *from, size_t bytes) {
    put_verb(t, FAR_WRITE, addr, (void *)from, bytes);
}


void far_cas(far_task *t, far_addr addr, uint64_t expected, uint64_t desired, uint64_t *old) {
    far_verb *verb = put_verb(t, FAR_CAS, addr, old, 8);
    verb->compare = expected;
    verb->swap = desired;
}


void far_faa(far_task *t, far_addr addr, uint64_t addend, uint64_t *old) {
    put_verb(t, FAR_FAA, addr, old, 8)->swap = addend;
}


void far_masked_cas(far_task *t, far_addr addr, uint64_t compare, uint64_t compare_mask, uint64_t swap,
                    uint64_t swap_mask, uint64_t *old) {
    far_verb *verb = put_verb(t, FAR_MASKED_CAS, addr, old, 8);
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


/* Where the old words go that nobody asked for. Not when they are put: the verbs may move until they are posted. */
static void place_old_words(far_batch *batch) {
    for (far_verb *verb = batch->verbs, *end = verb + batch->count; verb < end; verb++)
        if (!verb->local)
            verb->local = &verb->old;
}


/* Index code relies on the order of READs at one node. Where the fabric does not keep that order, a READ that follows
 * another one of its node starts when the earlier one has completed: one round trip more for each. earlier: READs of
 * batches before this one may be under way. */
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


/* The watch and traces are told whose batch it is. */
static void label_batch(const far_task *t, far_batch *batch) {
    batch->pin_clock = t->pin.epoch ? t->pin.clock : UINT64_MAX;
    batch->index_key = t->index_key;
    batch->label = t->label;
}


static void count_failed(far_task *t, const far_batch *batch) {
    for (uint32_t i = 0; i < batch->count; i++) {
        const far_verb *verb = &batch->verbs[i];
        if (verb->kind != FAR_CAS && verb->kind != FAR_MASKED_CAS)
            continue;
        uint64_t old, mask = verb->kind == FAR_CAS ? UINT64_MAX : verb->compare_mask;
        memcpy(&old, verb->local, 8);
        t->stats->cas_failed += ((old ^ verb->compare) & mask) != 0;
    }
}


static __attribute__((noinline, cold)) void batch_failed(far_task *t, int status) {
    far_session_lose(t->session, status);
    if (!t->error)
        t->error = status;
}


/* The batch is over: its numbers are taken. */
static inline void settle(far_task *t, const far_batch_box *box) {
    if (box->batch.status < 0)
        batch_failed(t, box->batch.status);
    else if (box->atomics)
        count_failed(t, &box->batch);
    if (__builtin_expect(t->patience != NULL, 0) && box->batch.status == 0)
        far_patience_see(t, &box->batch);
}


static void batch_done(far_batch *batch) {
    far_batch_box *box = (far_batch_box *)batch;
    far_task *t = batch->owner;
    assert(t->open != box && (box->waited ? t->waited : t->unwaited) > 0);
    if (box->waited)
        t->waited--;
    else
        t->unwaited--;
    settle(t, box);
    put_box(t->session, box);
    far_task_batch_done(t);
}


/* The verbs of the open batch do not count. */
static void give_up_open(far_task *t) {
    const far_batch *batch = &t->open->batch;
    for (const far_verb *verb = batch->verbs, *end = verb + batch->count; verb < end; verb++)
        count_verb(t->stats, (far_verb_kind)verb->kind, verb->length, (uint64_t)-1);
    empty_box(t->open);
}


void far_wait_for_posted(far_task *t) {
    far_task_wait_for(t, FAR_WAIT_ALL);
}


void far_forget(far_task *t) {
    t->refused = 0;
    if (t->open)
        give_up_open(t);
}


/* Why the open batch cannot be posted. It is given up. */
static __attribute__((noinline, cold)) int refuse(far_task *t, bool dead) {
    int err = t->refused;
    t->refused = 0;
    if (dead) /* nobody publishes our pins any more */
        far_session_lose(t->session, FAR_ERR_FENCED);
    if (!err)
        err = far_session_tell(t->session, t->lost ? t->lost : t->session->lost);
    if (t->open)
        give_up_open(t);
    assert(err < 0);
    return err;
}


static __attribute__((noinline)) void keep_pending(far_task *t, far_batch_box *box, bool waited) {
    t->open = NULL;
    box->waited = waited;
    t->waited += waited;
    t->unwaited += !waited;
}


/* Posts the open batch. 1: it was not empty; t->trips then tells of more than one round trip. This and put_verb are the
 * way of every verb: they avoid stores, because those of a READ that misses the cache block all later ones, and so the
 * overlap with the next READ. So a box whose batch completed at once stays the open one. */
static inline __attribute__((always_inline)) int post_open(far_task *t, bool waited) {
    far_session *s = t->session;
    bool dead = atomic_load_explicit(&s->team->dead, memory_order_acquire);
    if (t->refused | s->lost | dead)
        return refuse(t, dead);
    far_batch_box *box = t->open;
    if (!box || box->batch.count == 0)
        return 0;
    far_batch *batch = &box->batch;
    far_conn *conn = s->conn;
    if (conn->fabric->watch)
        label_batch(t, batch);
    if (box->atomics)
        place_old_words(batch);
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
        keep_pending(t, box, waited);
    } else {
        settle(t, box);
        empty_box(box);
    }
    return 1;
}


int far_start(far_task *t) {
    int posted = post_open(t, true);
    if (posted > 0 && t->trips == 0)
        t->trips = 1;
    return posted < 0 ? posted : 0;
}


int far_post(far_task *t) {
    int posted = post_open(t, false);
    return posted < 0 ? posted : 0;
}


/* On mapped memory, of an operation that has met no trouble: verbs run where they are waited for. There is nothing to
 * post, and nobody to be told but the counters. The memory, or NULL: they are posted. (A session that is lost, or of
 * which a batch failed, is fenced: it has none.) */
static inline char *const *runs_at_once(const far_task *t, const far_conn *conn) {
    bool calm = (t->refused | (int)t->trips | (int)t->background) == 0 && !t->patience &&
                !atomic_load_explicit(&t->session->team->dead, memory_order_acquire);
    return calm ? atomic_load_explicit(&conn->in_place, memory_order_acquire) : NULL;
}


/* Whether all of the open verbs run at once. */
static inline bool open_runs_at_once(const far_task *t) {
    const far_conn *conn = t->session->conn;
    return !t->open->fences && far_fabric_reads_in_order(conn->fabric) && runs_at_once(t, conn);
}


static inline bool has_open_verbs(const far_task *t) {
    return t->open && t->open->batch.count;
}


/* The open verbs, which have no fences; their round trip is counted by the caller. */
static __attribute__((noinline)) void run_open(far_task *t) {
    far_batch_box *box = t->open;
    if (box->atomics)
        place_old_words(&box->batch);
    far_words_run_all(t->session->conn, &box->batch);
    if (box->atomics)
        count_failed(t, &box->batch);
    box->batch.count = 0;
    box->atomics = false;
}


static __attribute__((noinline)) int post_and_wait(far_task *t) {
    int posted = post_open(t, true), err = posted < 0 ? posted : 0;
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
    if (!has_open_verbs(t) || !open_runs_at_once(t))
        return post_and_wait(t);
    run_open(t);
    t->stats->round_trips++;
    return 0;
}


/* The words of one verb that runs now and needs no batch: it is counted, with a round trip of its own or (trips 0) of a
 * later verb's. False: it is put. */
static inline __attribute__((always_inline)) bool
words_at_once(far_task *t, far_verb_kind kind, far_addr addr, size_t bytes, unsigned trips, _Atomic uint64_t **words) {
    const far_conn *conn = t->session->conn;
    const far_fabric *fabric = conn->fabric;
    far_stats *stats = t->stats;
    char *const *memory = runs_at_once(t, conn);
    if (!memory || !is_sound(fabric, addr, bytes))
        return false;
    count_verb(stats, kind, bytes, 1);
    stats->round_trips += trips;
    *words = far_words_at(memory, addr);
    return true;
}


/* Of a verb that no open ones stand ahead of: it has nobody's order to keep. */
static inline __attribute__((always_inline)) bool
alone_at_once(far_task *t, far_verb_kind kind, far_addr addr, size_t bytes, unsigned trips, _Atomic uint64_t **words) {
    return !has_open_verbs(t) && words_at_once(t, kind, addr, bytes, trips, words);
}


static inline void write_at_once(far_task *t, _Atomic uint64_t *words, const void *from, size_t bytes) {
    far_words_write(words, from, bytes / 8);
    far_words_fence(&t->session->conn->fence_word);
}


/* A READ or WRITE that is put last and waited for. Where verbs run at once, those that were put before it run first, and
 * it needs no place among them. */
static __attribute__((noinline)) int wait_for_last(far_task *t, far_verb_kind kind, far_addr addr, void *local,
                                                   size_t bytes, unsigned flags) {
    _Atomic uint64_t *words;
    bool behind = has_open_verbs(t) && open_runs_at_once(t);
    if (!behind || !words_at_once(t, kind, addr, bytes, 1, &words)) {
        put_verb(t, kind, addr, local, bytes);
        far_mark(t, flags);
        return far_wait(t);
    }
    run_open(t);
    if (kind == FAR_READ)
        far_words_read(words, local, bytes / 8);
    else
        write_at_once(t, words, local, bytes);
    return 0;
}


int far_read_now(far_task *t, far_addr addr, void *to, size_t bytes, unsigned flags) {
    _Atomic uint64_t *words;
    if (!alone_at_once(t, FAR_READ, addr, bytes, 1, &words))
        return wait_for_last(t, FAR_READ, addr, to, bytes, flags);
    far_words_read(words, to, bytes / 8);
    return 0;
}


int far_write_now(far_task *t, far_addr addr, const void *from, size_t bytes) {
    _Atomic uint64_t *words;
    if (!alone_at_once(t, FAR_WRITE, addr, bytes, 1, &words))
        return wait_for_last(t, FAR_WRITE, addr, (void *)from, bytes, 0);
    write_at_once(t, words, from, bytes);
    return 0;
}


void far_write_ahead(far_task *t, far_addr addr, const void *from, size_t bytes) {
    _Atomic uint64_t *words;
    if (alone_at_once(t, FAR_WRITE, addr, bytes, 0, &words))
        write_at_once(t, words, from, bytes);
    else
        far_write(t, addr, from, bytes);
}


int far_read_word(far_task *t, far_addr addr, uint64_t *word) {
    _Atomic uint64_t *at;
    if (!alone_at_once(t, FAR_READ, addr, 8, 1, &at))
        return wait_for_last(t, FAR_READ, addr, word, 8, 0);
    *word = atomic_load_explicit(at, memory_order_seq_cst);
    return 0;
}


int far_write_word(far_task *t, far_addr addr, uint64_t word) {
    _Atomic uint64_t *at;
    if (!alone_at_once(t, FAR_WRITE, addr, 8, 1, &at))
        return wait_for_last(t, FAR_WRITE, addr, &word, 8, 0);
    write_at_once(t, at, &word, 8);
    return 0;
}


/* By a CAS that runs at once. */
static inline uint64_t cas_at_once(far_task *t, _Atomic uint64_t *word, uint64_t expected, uint64_t desired) {
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
    if (!alone_at_once(t, FAR_CAS, addr, 8, 1, &word))
        return wait_for_cas(t, addr, expected, desired, old);
    uint64_t found = cas_at_once(t, word, expected, desired);
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
    bool sound = is_sound(t->session->conn->fabric, word, 8); /* both are, or nothing happens */
    if (!sound || !alone_at_once(t, FAR_READ, addr, bytes, 1, &words))
        return wait_for_cas_and_read(t, word, expected, desired, old, addr, to, bytes);
    at = far_words_at(t->session->conn->fabric->memory, word);
    t->stats->cas++;
    *old = cas_at_once(t, at, expected, desired);
    far_words_read(words, to, bytes / 8);
    return 0;
}
