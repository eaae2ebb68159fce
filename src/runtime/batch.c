/* Verbs of a task: putting them into the open batch, posting, waiting, counting. */
#include "pool/handle.h"
#include "runtime/error.h"
#include "runtime/session.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 8

static _Thread_local far_verb overflow_verb; /* where verbs go when memory is short; such a batch is refused when it is posted */


static far_batch_box *get_box(far_session *s) {
    far_batch_box *box = s->free_boxes;
    if (box) {
        s->free_boxes = box->next;
    } else {
        box = calloc(1, sizeof(*box));
        if (!box)
            return NULL;
        box->batch.verbs = malloc(FIRST_CAPACITY * sizeof(far_verb));
        if (!box->batch.verbs) {
            free(box);
            return NULL;
        }
        box->capacity = FIRST_CAPACITY;
    }
    box->batch.count = 0;
    box->fences = 0;
    return box;
}


static void put_box(far_session *s, far_batch_box *box) {
    box->next = s->free_boxes;
    s->free_boxes = box;
}


void far_boxes_free(far_session *s) {
    while (s->free_boxes) {
        far_batch_box *box = s->free_boxes;
        s->free_boxes = box->next;
        free(box->batch.verbs);
        free(box);
    }
}


static far_verb *put_verb(far_task *t, far_verb_kind kind, far_addr addr, void *local, size_t bytes) {
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
    far_verb *verb = &box->batch.verbs[box->batch.count++];
    verb->kind = (uint8_t)kind;
    verb->flags = 0;
    verb->addr = addr;
    verb->local = local;
    verb->length = (uint32_t)bytes;
    verb->compare = verb->swap = 0; /* traces show them */
    if (bytes > FAR_VERB_BYTES_MAX || bytes == 0 || !far_fabric_in_range(t->session->conn->fabric, addr, bytes))
        t->refused = far_fail(FAR_ERR_CORRUPT, "a verb of %zu bytes at %#llx lies outside the pool", bytes,
                              (unsigned long long)addr);
    return verb;
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


static void count_posted(far_task *t, const far_batch_box *box) {
    far_stats *stats = t->stats;
    for (uint32_t i = 0; i < box->batch.count; i++) {
        const far_verb *verb = &box->batch.verbs[i];
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
            break;
        case FAR_FAA:
            stats->faa++;
            break;
        default:
            stats->masked_cas++;
            break;
        }
    }
    if (t->background)
        stats->background_verbs += box->batch.count;
    if (!box->waited)
        stats->unwaited_verbs += box->batch.count;
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


/* The batch is over: its numbers are taken, its box goes back. */
static void settle(far_task *t, far_batch_box *box) {
    int status = box->batch.status;
    if (status < 0) {
        far_session_lose(t->session, status);
        if (!t->error)
            t->error = status;
    } else {
        count_failed(t, &box->batch);
    }
    put_box(t->session, box);
}


static void batch_done(far_batch *batch) {
    far_batch_box *box = (far_batch_box *)batch;
    far_task *t = batch->owner;
    if (box->waited)
        t->waited--;
    else
        t->unwaited--;
    settle(t, box);
    far_task_batch_done(t);
}


/* Why the open batch cannot be posted, or 0. */
static int refusal(far_task *t) {
    int err = t->refused;
    t->refused = 0;
    if (atomic_load_explicit(&t->session->pool->dead, memory_order_acquire)) /* nobody publishes our pins any more */
        far_session_lose(t->session, FAR_ERR_FENCED);
    if (!err && t->session->lost)
        err = t->lost ? t->lost : t->session->lost;
    return err;
}


static int post_open(far_task *t, bool waited) {
    far_batch_box *box = t->open;
    int err = refusal(t);
    t->open = NULL;
    if (!box)
        return err;
    if (err || box->batch.count == 0) {
        put_box(t->session, box);
        return err;
    }
    far_batch *batch = &box->batch;
    for (uint32_t i = 0; i < batch->count; i++)
        if (!batch->verbs[i].local)
            batch->verbs[i].local = &batch->verbs[i].old;
    box->waited = waited;
    batch->done = batch_done;
    batch->owner = t;
    batch->pin_clock = t->pin.epoch ? t->pin.clock : UINT64_MAX;
    batch->index_key = t->index_key;
    batch->label = t->label;
    count_posted(t, box);
    if (waited) {
        t->trips = t->trips ? t->trips : 1;
        t->trips += box->fences;
    }
    far_conn *conn = t->session->conn;
    conn->fabric->ops->post(conn, batch);
    if (!batch->pending) {
        settle(t, box);
    } else if (waited) {
        t->waited++;
    } else {
        t->unwaited++;
    }
    return 0;
}


int far_start(far_task *t) {
    return post_open(t, true);
}


int far_post(far_task *t) {
    return post_open(t, false);
}


int far_wait(far_task *t) {
    int err = post_open(t, true);
    far_task_wait_for(t, FAR_WAIT_WAITED);
    if (t->background)
        t->stats->background_round_trips += t->trips;
    else
        t->stats->round_trips += t->trips;
    t->trips = 0;
    if (!err)
        err = t->error;
    t->error = 0;
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
