/* Submitted operations: far_submit accepts them and starts their tasks, far_reap returns the finished ones.
 *
 * Each session has a table of entries, one for each operation in flight. An entry is in one of four places: in the free
 * list; attached to a task; in the list `chunks`, if it is a scan with a chunk to deliver; or in the list `done` until
 * it is reaped. Tasks finish inside the session, and housekeeping may run them. Callbacks of scans run outside the
 * session, in a thread of the user.
 *
 * Gets on one index that are submitted in one call share a task if the kind has `get_many` (up to GETS_TOGETHER), so
 * that they share round trips. */
#include "base/error.h"
#include "client/checksum.h"
#include "client/client.h"
#include "client/failures.h"
#include "client/op.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>

#define GETS_TOGETHER 32 /* maximum number of gets that share one task */

/* An entry of the table: one submitted operation. */
typedef struct inflight_op {
    far_session *session;
    far_op *op;
    far_out out;
    far_scan_state scan;          /* scan.range is NULL for other operations */
    struct inflight_op *next_get; /* next get in the list of gets that one task serves */
    struct inflight_op *next;     /* next entry in the list that contains this one */
} inflight_op;

typedef struct inflight_list {
    inflight_op *first, *last;
} inflight_list;

/* The submitted operations of a session. Changed inside the session only. */
struct far_op_table {
    inflight_op *free;    /* unused entries */
    inflight_list done;   /* entries of operations that have finished and that far_reap has not returned yet */
    inflight_list chunks; /* scans with a filled chunk that a user thread must deliver */
    atomic_uint waiting;  /* Number of entries in `chunks`. Atomic, because it is also read outside the session. */
    unsigned in_flight;   /* number of operations accepted and not yet reaped */
    unsigned done_count;  /* number of entries in `done` */
    far_failures failures;
    unsigned target; /* number of finished operations that far_reap waits for */
    /* true when far_reap has a reason to stop waiting: enough operations have finished, or a chunk is ready */
    bool due;
    inflight_op entries[FAR_OPS_MAX];
};


static void append_to_list(inflight_list *list, inflight_op *entry) {
    entry->next = NULL;
    if (list->last)
        list->last->next = entry;
    else
        list->first = entry;
    list->last = entry;
}


/* Returns the table of the session, and allocates it at the first call. Returns NULL if there is no memory. */
static struct far_op_table *get_table(far_session *s) {
    if (s->ops)
        return s->ops;
    struct far_op_table *table = calloc(1, sizeof(*table));
    if (!table)
        return NULL;
    far_failures_open(&table->failures);
    for (unsigned i = FAR_OPS_MAX; i-- > 0;) {
        table->entries[i].session = s;
        table->entries[i].next = table->free;
        table->free = &table->entries[i];
    }
    return s->ops = table;
}


/* Stores the error message of a failed operation for far_op_error. The codes for which far_describe_error has a fixed
 * text need no stored message. */
static void store_failure_message(struct far_op_table *table, const far_op *op, int result) {
    if (result != FAR_ERR_NOT_FOUND && result != FAR_ERR_EXISTS && result != FAR_ERR_TOO_SMALL)
        far_failures_add(&table->failures, op, far_last_error());
}


const char *far_op_error(far_session *s, const far_op *op) {
    if (!s || !op) {
        far_fail(FAR_ERR_INVALID, "%s: is NULL", s ? "op" : "session");
        return far_last_error();
    }
    if (op->result >= 0)
        return "";
    const char *words = s->ops ? far_failures_find(&s->ops->failures, op) : "";
    if (words[0])
        return words;
    /* This message is used if neither far_describe_error nor the session has a better text. */
    far_fail(op->result, "%s", far_strerror(op->result));
    far_describe_error(s, op->result);
    return far_last_error();
}


/* Moves the entry of a finished operation to the list `done`. */
static void finish_op(inflight_op *entry, int64_t result) {
    struct far_op_table *table = entry->session->ops;
    far_op *op = entry->op;
    op->result = result > INT_MAX ? INT_MAX : (int)result;
    if (result < 0)
        store_failure_message(table, op, op->result);
    if (result == FAR_ERR_DROPPED)
        op->result = FAR_ERR_NOT_FOUND;
    append_to_list(&table->done, entry);
    if (++table->done_count >= table->target)
        table->due = true;
}


static void release_index_and_finish(inflight_op *entry, int64_t result) {
    far_index_unuse(entry->op->index);
    finish_op(entry, result);
}


static far_op_request request_from_op(inflight_op *entry) {
    far_op *op = entry->op;
    return (far_op_request){op->kind, op->index, {op->key, op->key_len}, {op->value, op->value_len}, &entry->out};
}


static void finish_get_op(inflight_op *entry, int result) {
    if (result == FAR_OK || result == FAR_ERR_TOO_SMALL)
        entry->op->value_len = entry->out.length;
    release_index_and_finish(entry, result);
}


static void run_op_task(far_task *t, void *arg) {
    inflight_op *entry = arg;
    far_op_request r = request_from_op(entry);
    int result = far_op_run(t, &r);
    if (r.kind == FAR_OP_GET)
        finish_get_op(entry, result);
    else
        release_index_and_finish(entry, result);
}


typedef struct get_batch {
    far_index *index;
    size_t count;
    far_bytes keys[GETS_TOGETHER];
    far_out *outs[GETS_TOGETHER];
    far_out stored[GETS_TOGETHER]; /* only with checksum=on: receives the stored values, which end with a hash */
    int results[GETS_TOGETHER];
} get_batch;


static int call_get_many(far_task *t, void *arg) {
    get_batch *g = arg;
    return g->index->kind->get_many(t, g->index, g->count, g->keys, g->outs, g->results);
}


static int prepare_checksum_buffers(far_task *t, get_batch *g) {
    int err = 0;
    for (size_t i = 0; i < g->count && err >= 0 && far_sum_bytes(g->index); i++) {
        err = far_sum_prepare_buffer(t, g->outs[i], &g->stored[i]);
        g->outs[i] = &g->stored[i];
    }
    return err;
}


/* Task function of a get. If further gets were added to its list before it began, runs all of them by `get_many`. A
 * get that the kind cannot serve in this way (FAR_GET_ALONE) gets a separate task or, if there is none, runs at the
 * end of this task. */
static void run_get_batch_task(far_task *t, void *arg) {
    inflight_op *first = arg;
    if (!first->next_get) {
        run_op_task(t, first);
        return;
    }
    get_batch g = {.index = first->op->index};
    for (inflight_op *entry = first; entry; entry = entry->next_get) {
        g.keys[g.count] = (far_bytes){entry->op->key, entry->op->key_len};
        g.outs[g.count] = &entry->out;
        g.results[g.count++] = FAR_ERR_CORRUPT;
    }
    far_label_task(t, FAR_OP_GET, g.index);
    int err = prepare_checksum_buffers(t, &g);
    if (err >= 0)
        err = far_run_pinned(t, call_get_many, &g);
    size_t i = 0;
    inflight_op *last = NULL; /* list of gets that must run alone and for which there was no free task */
    for (inflight_op *entry = first, *next_get; entry; entry = next_get, i++) {
        next_get = entry->next_get;
        entry->next_get = NULL;
        if (err < 0 || g.results[i] != FAR_GET_ALONE) {
            far_count_op(t, FAR_OP_GET, g.index, 1);
            int result = err < 0 ? err : g.results[i];
            if (err >= 0 && g.outs[i] == &g.stored[i])
                result = far_sum_strip_value(g.index, g.keys[i], &g.stored[i], result, &entry->out);
            finish_get_op(entry, result);
        } else if (!far_task_new(entry->session, FAR_OP_GET, run_op_task, entry)) {
            entry->next_get = last;
            last = entry;
        }
    }
    for (inflight_op *next_get; last; last = next_get) {
        next_get = last->next_get;
        run_op_task(t, last);
    }
}


/* Task function of a scan. Fills one chunk, and puts the entry of the scan into `chunks`, or finishes the operation if
 * there is no pair to deliver. */
static void run_scan_chunk_task(far_task *t, void *arg) {
    inflight_op *entry = arg;
    struct far_op_table *table = entry->session->ops;
    int err = far_scan_fill_chunk(t, &entry->scan);
    if (err < 0) {
        release_index_and_finish(entry, err);
    } else if (far_scan_is_over(&entry->scan)) {
        release_index_and_finish(entry, entry->scan.given);
    } else {
        far_index_unuse(entry->op->index); /* The index is not in use until the next chunk is filled. */
        append_to_list(&table->chunks, entry);
        atomic_fetch_add_explicit(&table->waiting, 1, memory_order_relaxed);
        table->due = true;
    }
}


static void enter_and_finish_op(far_session *s, inflight_op *entry, int64_t result) {
    far_session_enter(s);
    finish_op(entry, result);
    far_session_leave(s);
}


/* Delivers a filled chunk to the user, outside the session, and starts a task for the next chunk. If there is no free
 * task, fills the next chunk in this thread and delivers it, too. */
static void deliver_scan_chunks(far_session *s, inflight_op *entry) {
    while (!far_scan_deliver(&entry->scan)) {
        far_index_use(entry->op->index);
        far_session_enter(s);
        far_task *t = far_task_new(s, FAR_OP_SCAN, run_scan_chunk_task, entry);
        far_session_leave(s);
        if (t)
            return;
        /* Unlike far_task_new, far_session_call waits for a free task. */
        int err = far_session_call(s, FAR_OP_SCAN, false, far_scan_fill_chunk, &entry->scan);
        far_index_unuse(entry->op->index);
        if (err < 0) {
            enter_and_finish_op(s, entry, err);
            return;
        }
    }
    enter_and_finish_op(s, entry, entry->scan.given);
}


void far_submitted_scans_deliver(far_session *s) {
    if (!s || !s->ops || atomic_load_explicit(&s->ops->waiting, memory_order_relaxed) == 0)
        return;
    struct far_op_table *table = s->ops;
    far_session_enter(s);
    inflight_op *entry = table->chunks.first;
    table->chunks = (inflight_list){0};
    atomic_store_explicit(&table->waiting, 0, memory_order_relaxed);
    far_session_leave(s);
    while (entry) {
        inflight_op *next = entry->next;
        deliver_scan_chunks(s, entry);
        entry = next;
    }
}


/* ---- Submitting ---- */

typedef struct submission {
    far_session *session;
    inflight_op *first, *last; /* the list of gets on one index that is being built; the next get may be added to it */
    size_t count;
} submission;


/* Adds a get to the list of gets that the task of an earlier get will serve. Returns false if the get needs a task of
 * its own. Such a get becomes the first of a new list. */
static bool join_get_batch(submission *sub, inflight_op *entry) {
    if (entry->op->kind != FAR_OP_GET || !entry->op->index->kind->get_many)
        return false;
    if (!sub->first || sub->count == GETS_TOGETHER || sub->first->op->index != entry->op->index) {
        /* The task of this get will also serve all gets that are added to the list before the task runs. */
        sub->first = sub->last = entry;
        sub->count = 1;
        return false;
    }
    sub->last->next_get = entry;
    sub->last = entry;
    sub->count++;
    return true;
}


/* Starts an operation whose arguments were checked. Returns false if there is no free task. */
static bool start_op_task(submission *sub, inflight_op *entry) {
    far_op_kind kind = entry->op->kind;
    if (join_get_batch(sub, entry))
        return true;
    void (*task_function)(far_task *, void *) = kind == FAR_OP_SCAN  ? run_scan_chunk_task
                                                : kind == FAR_OP_GET ? run_get_batch_task
                                                                     : run_op_task;
    if (far_task_new(sub->session, kind, task_function, entry))
        return true;
    if (sub->first == entry)
        sub->first = NULL;
    return false;
}


static int check_op_arguments(far_session *s, inflight_op *entry) {
    far_op *op = entry->op;
    far_op_request r = request_from_op(entry);
    if ((unsigned)op->kind > FAR_OP_SCAN)
        return far_fail(FAR_ERR_INVALID, "kind: %d is not a kind of operation", (int)op->kind);
    if (op->kind != FAR_OP_SCAN)
        return far_op_check(s, &r);
    int err = far_check_index(s, op->index);
    return err < 0 ? err : far_scan_begin(s, op->index, op, &entry->scan);
}


/* Returns the entry to the free list. Called by the thread that uses the session, because it releases the memory of a
 * scan (range.h). */
static void release_entry(struct far_op_table *table, inflight_op *entry) {
    far_range_release(entry->scan.range);
    entry->scan.range = NULL;
    table->in_flight--;
    entry->next = table->free;
    table->free = entry;
}


/* Accepts one operation. Returns false if the session cannot hold more operations. */
static bool accept_op(submission *sub, far_op *op) {
    far_session *s = sub->session;
    struct far_op_table *table = s->ops;
    inflight_op *entry = table->free;
    if (!entry)
        return false;
    table->free = entry->next;
    far_failures_remove(&table->failures, op);
    entry->op = op;
    entry->out = (far_out){op->value, op->capacity, 0};
    entry->scan.range = NULL;
    entry->next_get = NULL;
    int err = check_op_arguments(s, entry);
    table->in_flight++;
    if (err < 0) {
        finish_op(entry, err);
        return true;
    }
    far_index_use(op->index);
    if (start_op_task(sub, entry))
        return true;
    far_index_unuse(op->index);
    release_entry(table, entry);
    return false;
}


int far_submit(far_session *s, far_op *ops[], size_t count) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if (!ops && count)
        err = far_fail(FAR_ERR_INVALID, "ops: is NULL");
    for (size_t i = 0; err >= 0 && i < count; i++)
        if (!ops[i])
            err = far_fail(FAR_ERR_INVALID, "ops[%zu]: is NULL", i);
    int taken = 0;
    if (err >= 0) {
        submission sub = {.session = s};
        far_session_enter(s);
        if (get_table(s))
            while ((size_t)taken < count && accept_op(&sub, ops[taken]))
                taken++;
        if (!s->ops || (count && s->ops->in_flight == 0))
            err = far_fail(FAR_ERR_NO_MEMORY, "no memory for operations in flight");
        far_session_step(s);
        far_session_leave(s);
        far_submitted_scans_deliver(s);
        bool under_way = atomic_load_explicit(&s->active, memory_order_seq_cst) > 0;
        /* The housekeeping thread must drive the operations if this thread does not call the library again soon. */
        if (under_way && atomic_load_explicit(&s->pool->resting, memory_order_seq_cst))
            far_pool_wake(s->pool);
    }
    far_call_leave(s);
    return err < 0 ? err : taken;
}


/* ---- Reaping ---- */

static size_t smaller_of(size_t a, size_t b) {
    return a < b ? a : b;
}


/* Waits until `target` operations have finished. Delivers chunks of scans while it waits. */
static void wait_for_done(far_session *s, size_t target) {
    struct far_op_table *table = s->ops;
    far_session_enter(s);
    far_session_step(s);
    for (;;) {
        table->target = (unsigned)target;
        table->due = table->done_count >= target || table->chunks.first;
        far_session_run_until(s, &table->due);
        bool enough = table->done_count >= target;
        far_session_leave(s);
        far_submitted_scans_deliver(s);
        if (enough)
            return;
        far_session_enter(s);
    }
}


int far_reap(far_session *s, far_op *done[], size_t max, size_t wait_for) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if (!done && max)
        err = far_fail(FAR_ERR_INVALID, "done: is NULL");
    int count = 0;
    if (err >= 0 && s->ops) {
        struct far_op_table *table = s->ops;
        wait_for_done(s, smaller_of(smaller_of(wait_for, max), table->in_flight));
        far_session_enter(s);
        while ((size_t)count < max && table->done.first) {
            inflight_op *entry = table->done.first;
            table->done.first = entry->next;
            if (!entry->next)
                table->done.last = NULL;
            done[count++] = entry->op;
            assert(table->done_count > 0 && table->done_count <= table->in_flight);
            table->done_count--;
            release_entry(table, entry);
        }
        far_session_leave(s);
    }
    far_call_leave(s);
    return err < 0 ? err : count;
}


void far_submitted_ops_free(far_session *s) {
    if (!s->ops)
        return;
    for (unsigned i = 0; i < FAR_OPS_MAX; i++)
        far_range_release(s->ops->entries[i].scan.range);
    far_failures_close(&s->ops->failures);
    free(s->ops);
    s->ops = NULL;
}
