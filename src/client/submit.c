/* Operations in flight: submitted by the user, run as tasks of the session, gets of one index together, and reaped. */
#include "base/error.h"
#include "client/checksum.h"
#include "client/client.h"
#include "client/failures.h"
#include "client/op.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>

#define GETS_TOGETHER 32 /* at most, in one task */

/* A submitted operation. */
typedef struct op_run {
    far_session *session;
    far_op *op;
    far_out out;
    far_scan_run *scan;
    struct op_run *with; /* gets that are served together */
    struct op_run *next; /* in the list that it stands in */
} op_run;

typedef struct run_list {
    op_run *first, *last;
} run_list;

struct far_op_runs {
    op_run *free;
    run_list done;       /* finished, not reaped */
    run_list chunks;     /* scans whose pairs wait for the user's thread */
    atomic_uint waiting; /* how many are in chunks: looked at from outside the session */
    unsigned in_flight;  /* taken, not reaped */
    unsigned done_count;
    far_failures failures;
    unsigned target; /* far_reap waits for this many */
    bool due;        /* there is something for it to do */
    op_run runs[FAR_OPS_MAX];
};


static void append(run_list *list, op_run *run) {
    run->next = NULL;
    if (list->last)
        list->last->next = run;
    else
        list->first = run;
    list->last = run;
}


static struct far_op_runs *get_runs(far_session *s) {
    if (s->ops)
        return s->ops;
    struct far_op_runs *runs = calloc(1, sizeof(*runs));
    if (!runs)
        return NULL;
    far_failures_open(&runs->failures);
    for (unsigned i = FAR_OPS_MAX; i-- > 0;) {
        runs->runs[i].session = s;
        runs->runs[i].next = runs->free;
        runs->free = &runs->runs[i];
    }
    return s->ops = runs;
}


/* Codes that far_tell has words for need none of their own. */
static void keep_words(struct far_op_runs *runs, const far_op *op, int result) {
    if (result != FAR_ERR_NOT_FOUND && result != FAR_ERR_EXISTS && result != FAR_ERR_TOO_SMALL)
        far_failures_keep(&runs->failures, op, far_last_error());
}


const char *far_op_error(far_session *s, const far_op *op) {
    if (!s || !op) {
        far_fail(FAR_ERR_INVALID, "%s: is NULL", s ? "op" : "session");
        return far_last_error();
    }
    if (op->result >= 0)
        return "";
    const char *words = s->ops ? far_failures_words(&s->ops->failures, op) : "";
    if (words[0])
        return words;
    far_fail(op->result, "%s", far_strerror(op->result)); /* unless there are better words */
    far_tell(s, op->result);
    return far_last_error();
}


/* The operation is over; the user's thread will take it. */
static void finish(op_run *run, int64_t result) {
    struct far_op_runs *runs = run->session->ops;
    far_op *op = run->op;
    op->result = result > INT_MAX ? INT_MAX : (int)result;
    if (result < 0)
        keep_words(runs, op, op->result);
    if (run->scan)
        far_scan_finish(run->scan);
    run->scan = NULL;
    append(&runs->done, run);
    if (++runs->done_count >= runs->target)
        runs->due = true;
}


static void finish_used(op_run *run, int64_t result) {
    far_index_unuse(run->op->index);
    finish(run, result);
}


static far_op_request request_of(op_run *run) {
    far_op *op = run->op;
    return (far_op_request){op->kind, op->index, {op->key, op->key_len}, {op->value, op->value_len}, &run->out};
}


static void finish_get(op_run *run, int result) {
    if (result == FAR_OK || result == FAR_ERR_TOO_SMALL)
        run->op->value_len = run->out.length;
    finish_used(run, result);
}


static void run_op(far_task *t, void *arg) {
    op_run *run = arg;
    far_op_request r = request_of(run);
    int result = far_op_run(t, &r);
    if (r.kind == FAR_OP_GET)
        finish_get(run, result);
    else
        finish_used(run, result);
}


typedef struct gets {
    far_index *index;
    size_t count;
    far_bytes keys[GETS_TOGETHER];
    far_out *outs[GETS_TOGETHER];
    far_out stored[GETS_TOGETHER]; /* with checksums: what is given is taken from there */
    int results[GETS_TOGETHER];
} gets;


static int run_get_many(far_task *t, void *arg) {
    gets *g = arg;
    return g->index->kind->get_many(t, g->index, g->count, g->keys, g->outs, g->results);
}


static int make_room(far_task *t, gets *g) {
    int err = 0;
    for (size_t i = 0; i < g->count && err >= 0 && far_sum_bytes(g->index); i++) {
        err = far_sum_room(t, g->outs[i], &g->stored[i]);
        g->outs[i] = &g->stored[i];
    }
    return err;
}


static void run_gets(far_task *t, void *arg) {
    op_run *first = arg;
    if (!first->with) {
        run_op(t, first);
        return;
    }
    gets g = {.index = first->op->index};
    for (op_run *run = first; run; run = run->with) {
        g.keys[g.count] = (far_bytes){run->op->key, run->op->key_len};
        g.outs[g.count] = &run->out;
        g.results[g.count++] = FAR_ERR_CORRUPT;
    }
    far_name_task(t, FAR_OP_GET, g.index);
    int err = make_room(t, &g);
    if (err >= 0)
        err = far_run_pinned(t, run_get_many, &g);
    size_t i = 0;
    op_run *last = NULL; /* those that found no room for a task */
    for (op_run *run = first, *with; run; run = with, i++) {
        with = run->with;
        run->with = NULL;
        if (err < 0 || g.results[i] != FAR_GET_ALONE) {
            far_count_op(t, FAR_OP_GET, g.index, 1);
            int result = err < 0 ? err : g.results[i];
            if (err >= 0 && g.outs[i] == &g.stored[i])
                result = far_sum_give(g.index, g.keys[i], &g.stored[i], result, &run->out);
            finish_get(run, result);
        } else if (!far_task_new(run->session, FAR_OP_GET, run_op, run)) {
            run->with = last;
            last = run;
        }
    }
    for (op_run *with; last; last = with) {
        with = last->with;
        run_op(t, last);
    }
}


static void run_scan_chunk(far_task *t, void *arg) {
    op_run *run = arg;
    struct far_op_runs *runs = run->session->ops;
    int err = far_scan_run_chunk(t, run->scan);
    if (err < 0) {
        finish_used(run, err);
    } else if (far_scan_is_over(run->scan)) {
        finish_used(run, far_scan_given(run->scan));
    } else {
        far_index_unuse(run->op->index); /* until the next chunk */
        append(&runs->chunks, run);
        atomic_fetch_add_explicit(&runs->waiting, 1, memory_order_relaxed);
        runs->due = true;
    }
}


static void finish_from_outside(far_session *s, op_run *run, int64_t result) {
    far_session_enter(s);
    finish(run, result);
    far_session_leave(s);
}


/* Gives one chunk to the user, outside the session, then starts the next. */
static void deliver(far_session *s, op_run *run) {
    while (!far_scan_deliver(run->scan)) {
        far_index_use(run->op->index);
        far_session_enter(s);
        far_task *t = far_task_new(s, FAR_OP_SCAN, run_scan_chunk, run);
        far_session_leave(s);
        if (t)
            return;
        int err = far_session_call(s, FAR_OP_SCAN, false, far_scan_run_chunk, run->scan); /* this one waits for room */
        far_index_unuse(run->op->index);
        if (err < 0) {
            finish_from_outside(s, run, err);
            return;
        }
    }
    finish_from_outside(s, run, far_scan_given(run->scan));
}


void far_ops_deliver(far_session *s) {
    if (!s || !s->ops || atomic_load_explicit(&s->ops->waiting, memory_order_relaxed) == 0)
        return;
    struct far_op_runs *runs = s->ops;
    far_session_enter(s);
    op_run *run = runs->chunks.first;
    runs->chunks = (run_list){0};
    atomic_store_explicit(&runs->waiting, 0, memory_order_relaxed);
    far_session_leave(s);
    while (run) {
        op_run *next = run->next;
        deliver(s, run);
        run = next;
    }
}


/* Submitting. */

typedef struct submission {
    far_session *session;
    op_run *first, *last; /* gets of one index that are collected */
    size_t count;
} submission;


static bool join_gets(submission *sub, op_run *run) {
    if (run->op->kind != FAR_OP_GET || !run->op->index->kind->get_many)
        return false;
    if (!sub->first || sub->count == GETS_TOGETHER || sub->first->op->index != run->op->index) {
        sub->first = sub->last = run; /* its task takes what comes until it runs */
        sub->count = 1;
        return false;
    }
    sub->last->with = run;
    sub->last = run;
    sub->count++;
    return true;
}


/* Starts a checked operation; false: no room for its task. */
static bool start(submission *sub, op_run *run) {
    far_op_kind kind = run->op->kind;
    if (join_gets(sub, run))
        return true;
    void (*how)(far_task *, void *) = kind == FAR_OP_SCAN ? run_scan_chunk : kind == FAR_OP_GET ? run_gets : run_op;
    if (far_task_new(sub->session, kind, how, run))
        return true;
    if (sub->first == run)
        sub->first = NULL;
    return false;
}


static int check_op(far_session *s, op_run *run) {
    far_op *op = run->op;
    far_op_request r = request_of(run);
    if ((unsigned)op->kind > FAR_OP_SCAN)
        return far_fail(FAR_ERR_INVALID, "kind: %d is no kind of operation", (int)op->kind);
    if (op->kind != FAR_OP_SCAN)
        return far_op_check(s, &r);
    int err = far_check_index(s, op->index);
    return err < 0 ? err : far_scan_begin(s, op->index, op, &run->scan);
}


/* Takes one operation; false: the session is full. */
static bool take(submission *sub, far_op *op) {
    far_session *s = sub->session;
    struct far_op_runs *runs = s->ops;
    op_run *run = runs->free;
    if (!run)
        return false;
    runs->free = run->next;
    far_failures_forget(&runs->failures, op);
    run->op = op;
    run->out = (far_out){op->value, op->capacity, 0};
    run->scan = NULL;
    run->with = NULL;
    int err = check_op(s, run);
    runs->in_flight++;
    if (err < 0) {
        finish(run, err);
        return true;
    }
    far_index_use(op->index);
    if (start(sub, run))
        return true;
    far_index_unuse(op->index);
    if (run->scan)
        far_scan_finish(run->scan);
    runs->in_flight--;
    run->next = runs->free;
    runs->free = run;
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
        if (get_runs(s))
            while ((size_t)taken < count && take(&sub, ops[taken]))
                taken++;
        if (!s->ops || (count && s->ops->in_flight == 0))
            err = far_fail(FAR_ERR_NO_MEMORY, "no memory for operations in flight");
        far_session_step(s);
        far_session_leave(s);
        far_ops_deliver(s);
        bool under_way = atomic_load_explicit(&s->active, memory_order_seq_cst) > 0;
        if (under_way && atomic_load_explicit(&s->pool->resting, memory_order_seq_cst)) /* housekeeping drives it */
            far_pool_wake(s->pool);
    }
    far_call_leave(s);
    return err < 0 ? err : taken;
}


/* Reaping. */

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}


/* Until `target` operations are done; the chunks of scans are delivered meanwhile. */
static void wait_for_done(far_session *s, size_t target) {
    struct far_op_runs *runs = s->ops;
    far_session_enter(s);
    far_session_step(s);
    for (;;) {
        runs->target = (unsigned)target;
        runs->due = runs->done_count >= target || runs->chunks.first;
        far_session_run_until(s, &runs->due);
        bool enough = runs->done_count >= target;
        far_session_leave(s);
        far_ops_deliver(s);
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
        struct far_op_runs *runs = s->ops;
        wait_for_done(s, smaller(smaller(wait_for, max), runs->in_flight));
        far_session_enter(s);
        while ((size_t)count < max && runs->done.first) {
            op_run *run = runs->done.first;
            runs->done.first = run->next;
            if (!run->next)
                runs->done.last = NULL;
            done[count++] = run->op;
            assert(runs->done_count > 0 && runs->done_count <= runs->in_flight);
            runs->done_count--;
            runs->in_flight--;
            run->next = runs->free;
            runs->free = run;
        }
        far_session_leave(s);
    }
    far_call_leave(s);
    return err < 0 ? err : count;
}


void far_ops_free(far_session *s) {
    if (!s->ops)
        return;
    for (op_run *run = s->ops->chunks.first; run; run = run->next)
        far_scan_finish(run->scan);
    far_failures_close(&s->ops->failures);
    free(s->ops);
    s->ops = NULL;
}
