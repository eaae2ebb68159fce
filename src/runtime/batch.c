/* Verbs of a task: putting them into the open batch, posting, waiting, counting. */
#include "pool/handle.h"
#include "runtime/error.h"
#include "runtime/session.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 8

static void batch_done(far_batch *batch);

static _Thread_local far_verb overflow_verb; /* where verbs go when memory is short; such a batch is refused when it is posted */


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
    s->free_boxes = box->next;
    return box;
}


static inline void empty_box(far_batch_box *box) {
    box->batch.count = 0;
    if (box->fences)
        box->fences = 0;
}


static inline void put_box(far_session *s, far_batch_box *box) {
    empty_box(box);
    box->next = s->free_boxes;
    s->free_boxes = box;
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


static inline far_verb *fill_verb(far_batch_box *box, far_verb_kind kind, far_addr addr, void *local, size_t bytes) {
    far_verb *verb = &box->batch.verbs[box->batch.count++];
    verb->kind = (uint8_t)kind;
    verb->flags = 0;
    verb->addr = addr;
    verb->local = local;
    verb->length = (uint32_t)bytes;
    verb->compare = verb->swap = 0; /* traces show them */
    return verb;
}


static inline bool is_sound(const far_task *t, far_addr addr, size_t bytes) {
    return bytes - 1 < FAR_VERB_BYTES_MAX && far_fabric_in_range(t->session->conn->fabric, addr, bytes);
}


/* A verb for which there is no room yet, or that is refused. */
static __attribute__((noinline)) far_verb *put_verb_slowly(far_task *t, far_verb_kind kind, far_addr addr, void *local,
                                                           size_t bytes) {
    far_batch_box *box = t->open;
    if (!box)
        box = t->open = get_box(t->session);
    if (box && box->batch.count == box->capacity) {
        far_verb *more = realloc(box->batch.verbs, 2 * box->capacity * sizeof(far_verb));
        if (more) {
            box->batch.verbs = more;
            box->capacity *= 2;
        }
    }
    if (!box || box->batch.count == box->capacity) {
        t->refused = FAR_ERR_NO_MEMORY;
        return &overflow_verb;
    }
    if (!is_sound(t, addr, bytes))
        t->refused = far_fail(FAR_ERR_CORRUPT, "a verb of %zu bytes at %#llx lies outside the pool", bytes,
                              (unsigned long long)addr);
    return fill_verb(box, kind, addr, local, bytes);
}


static inline far_verb *put_verb(far_task *t, far_verb_kind kind, far_addr addr, void *local, size_t bytes) {
    far_batch_box *box = t->open;
    if (!box || box->batch.count == box->capacity || !is_sound(t, addr, bytes))
        return put_verb_slowly(t, kind, addr, local, bytes);
    return fill_verb(box, kind, addr, local, bytes);
}


void far_read(far_task *t, far_addr addr, void *to, size_t bytes) {
    put_verb(t, FAR_READ, addr, to, bytes);
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


void far_masked_cas(far_task *t, far_addr addr, uint64_t compare, uint64_t compare_mask, uint64_t swap, uint64_t swap_mask,
                    uint64_t *old) {
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
    if (flags & ~verb->flags & FAR_VERB_FENCE)
        t->open->fences++;
    verb->flags |= (uint8_t)flags;
}


/* Completes the verbs of a batch that is about to be posted, and counts them. True: it has CASes, which may fail. */
static inline bool prepare_verbs(far_task *t, far_batch_box *box, bool waited) {
    far_stats *stats = t->stats;
    uint32_t count = box->batch.count;
    bool conditional = false;
    for (far_verb *verb = box->batch.verbs, *end = verb + count; verb < end; verb++) {
        if (!verb->local)
            verb->local = &verb->old;
        switch (verb->kind) {
        case FAR_READ:
            stats->reads++;
            stats->bytes_read += verb->length;
            break;
        case FAR_WRITE:
            stats->writes++;
            stats->bytes_written += verb->length;
            break;
        case FAR_CAS:
            stats->cas++;
            conditional = true;
            break;
        case FAR_FAA:
            stats->faa++;
            break;
        default:
            stats->masked_cas++;
            conditional = true;
            break;
        }
    }
    if (t->background)
        stats->background_verbs += count;
    if (!waited)
        stats->unwaited_verbs += count;
    return conditional;
}


/* Whose batch it is. A box is mostly posted for the same purpose as before. */
static inline void label_batch(far_task *t, far_batch *batch) {
    uint64_t pin_clock = t->pin.epoch ? t->pin.clock : UINT64_MAX;
    if (batch->owner == t && batch->pin_clock == pin_clock && batch->index_key == t->index_key && batch->label == t->label)
        return;
    batch->owner = t;
    batch->pin_clock = pin_clock;
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
static inline void settle(far_task *t, const far_batch *batch, bool conditional) {
    if (batch->status < 0)
        batch_failed(t, batch->status);
    else if (conditional)
        count_failed(t, batch);
}


static void batch_done(far_batch *batch) {
    far_batch_box *box = (far_batch_box *)batch;
    far_task *t = batch->owner;
    if (box->waited)
        t->waited--;
    else
        t->unwaited--;
    settle(t, batch, box->conditional);
    put_box(t->session, box);
    far_task_batch_done(t);
}


/* Why the open batch cannot be posted, or 0. */
static __attribute__((noinline, cold)) int refusal(far_task *t, bool dead) {
    int err = t->refused;
    t->refused = 0;
    if (dead) /* nobody publishes our pins any more */
        far_session_lose(t->session, FAR_ERR_FENCED);
    if (!err && t->session->lost)
        err = t->lost ? t->lost : t->session->lost;
    return err;
}


/* Posts the open batch; *trips is how many round trips the next wait will have cost. This and put_verb are the way of
 * every verb: they avoid stores, because those of a READ that misses the cache block all later ones, and so the overlap
 * with the next READ. So a box whose batch completed at once stays the open one. */
static inline __attribute__((always_inline)) int post_open(far_task *t, bool waited, unsigned *trips) {
    far_batch_box *box = t->open;
    bool dead = atomic_load_explicit(&t->session->pool->dead, memory_order_acquire);
    int err = t->refused || t->session->lost || dead ? refusal(t, dead) : 0;
    if (!box || box->batch.count == 0)
        return err;
    if (err) {
        empty_box(box);
        return err;
    }
    far_batch *batch = &box->batch;
    label_batch(t, batch);
    bool conditional = prepare_verbs(t, box, waited);
    if (waited)
        *trips = (*trips ? *trips : 1) + box->fences;
    far_conn *conn = t->session->conn;
    conn->fabric->ops->post(conn, batch);
    if (batch->pending) {
        t->open = NULL;
        box->waited = waited;
        box->conditional = conditional;
        t->waited += waited;
        t->unwaited += !waited;
    } else {
        settle(t, batch, conditional);
        empty_box(box);
    }
    return 0;
}


int far_start(far_task *t) {
    return post_open(t, true, &t->trips);
}


int far_post(far_task *t) {
    return post_open(t, false, &t->trips);
}


int far_wait(far_task *t) {
    unsigned trips = t->trips;
    int err = post_open(t, true, &trips);
    if (t->waited)
        far_task_wait_for(t, FAR_WAIT_WAITED);
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


int far_read_word(far_task *t, far_addr addr, uint64_t *word) {
    far_read(t, addr, word, 8);
    return far_wait(t);
}


int far_write_word(far_task *t, far_addr addr, uint64_t word) {
    far_write(t, addr, &word, 8);
    return far_wait(t);
}


int far_cas_word(far_task *t, far_addr addr, uint64_t expected, uint64_t desired, uint64_t *old) {
    far_cas(t, addr, expected, desired, old);
    return far_wait(t);
}
