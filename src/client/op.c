/* The operations of the public API: arguments are checked here, then each operation runs as a task of its session. */
#include "client/op.h"
#include "base/error.h"
#include "client/checksum.h"
#include "client/client.h"
#include "client/failures.h"
#include "index/rdwc.h"
#include "task/call.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GETS_TOGETHER 32 /* at most, in one task */

/* One operation, already checked. */
typedef struct request {
    far_op_kind kind;
    far_index *index;
    far_bytes key, value;
    far_out *out;
} request;

/* A submitted operation. */
typedef struct far_op_run {
    far_session *session;
    far_op *op;
    far_out out;
    far_scan_run *scan;
    struct far_op_run *with; /* gets that are served together */
    struct far_op_run *next; /* in the list that it stands in */
} far_op_run;

typedef struct run_list {
    far_op_run *first, *last;
} run_list;

struct far_op_runs {
    far_op_run *free;
    run_list done;       /* finished, not reaped */
    run_list chunks;     /* scans whose pairs wait for the user's thread */
    atomic_uint waiting; /* how many are in chunks: looked at from outside the session */
    unsigned in_flight;  /* taken, not reaped */
    unsigned done_count;
    far_failures failures;
    unsigned target; /* far_reap waits for this many */
    bool due;        /* there is something for it to do */
    far_op_run runs[FAR_OPS_MAX];
};

static const char *const labels[] = {"get", "insert", "update", "put", "delete", "scan"};


/* What public calls have in common. */

int far_check_index(const far_session *s, const far_index *index) {
    if (!index)
        return far_fail(FAR_ERR_INVALID, "index: is NULL");
    if (index->pool != s->pool)
        return far_fail(FAR_ERR_INVALID, "index: was opened through another pool handle than the session");
    return 0;
}


int far_tell(const far_session *s, int err) {
    switch (err) {
    case FAR_ERR_NOT_FOUND:
        return far_fail(err, "there is no such key");
    case FAR_ERR_EXISTS:
        return far_fail(err, "the key exists already");
    case FAR_ERR_TOO_SMALL:
        return far_fail(err, "value: the buffer is too small");
    default:
        return far_session_tell(s, err);
    }
}


/* Arguments. */

static __attribute__((noinline)) int refuse_key(const far_index *index, const void *key, size_t length) {
    size_t max = (size_t)index->options[FAR_OPTION_MAX_KEY], fixed = (size_t)index->options[FAR_OPTION_KEY_SIZE];
    if (!key)
        return far_fail(FAR_ERR_INVALID, "key: is NULL");
    if (length == 0)
        return far_fail(FAR_ERR_INVALID, "key: is empty");
    if (length > max)
        return far_fail(FAR_ERR_INVALID, "key: %zu bytes are more than the longest that index '%s' takes, %zu", length,
                        index->name, max);
    return far_fail(FAR_ERR_INVALID, "key: has %zu bytes, all keys of index '%s' have %zu", length, index->name, fixed);
}


static inline int check_key(const far_index *index, const void *key, size_t length) {
    size_t max = (size_t)index->options[FAR_OPTION_MAX_KEY], fixed = (size_t)index->options[FAR_OPTION_KEY_SIZE];
    if (!key || length - 1 >= max)
        return refuse_key(index, key, length);
    return !fixed || length == fixed ? 0 : refuse_key(index, key, length);
}


static __attribute__((noinline)) int refuse_value(const far_index *index, const void *value, size_t length) {
    size_t fixed = far_value_size(index), most = FAR_VALUE_MAX - far_sum_bytes(index);
    if (!value && length)
        return far_fail(FAR_ERR_INVALID, "value: is NULL with a length of %zu", length);
    if (length > most)
        return far_fail(FAR_ERR_INVALID, "value: %zu bytes are more than %zu", length, most);
    return far_fail(FAR_ERR_INVALID, "value: has %zu bytes, all values of index '%s' have %zu", length, index->name,
                    fixed);
}


static inline int check_value(const far_index *index, const void *value, size_t length) {
    size_t fixed = far_value_size(index);
    if (fixed ? length != fixed : length > FAR_VALUE_MAX - far_sum_bytes(index))
        return refuse_value(index, value, length);
    return value || length == 0 ? 0 : refuse_value(index, value, length);
}


static inline __attribute__((always_inline)) int check_request(const far_session *s, const request *r) {
    int err = far_check_index(s, r->index);
    if (err >= 0)
        err = check_key(r->index, r->key.data, r->key.length);
    if (err >= 0 && r->kind != FAR_OP_GET && r->kind != FAR_OP_DELETE)
        err = check_value(r->index, r->value.data, r->value.length);
    if (err >= 0 && r->kind == FAR_OP_GET && !r->out->buffer && r->out->capacity)
        err = far_fail(FAR_ERR_INVALID, "value: is NULL with a capacity of %zu", r->out->capacity);
    return err;
}


/* Running, inside a task. */

typedef struct pinned_run {
    int (*run)(far_task *t, void *arg);
    void *arg;
} pinned_run;


static int pin_and_run(far_task *t, void *arg) {
    const pinned_run *r = arg;
    int err = far_pin_take(t);
    return err < 0 ? err : r->run(t, r->arg);
}


int far_run_pinned(far_task *t, int (*run)(far_task *t, void *arg), void *arg) {
    pinned_run r = {run, arg};
    int err = pin_and_run(t, &r);
    return err == FAR_ERR_NO_MEMORY ? far_run_short(t, pin_and_run, &r) : err;
}


/* Keys are counted where operations end; the pool hears of them off the operations' path (client/bulletin.c). */
static int tally(const far_task *t, far_index *index, int keys, int err) {
    if (err == 0 && keys != 0)
        atomic_fetch_add_explicit(&index->tallies[t->session->id % FAR_TALLIES].keys, keys, memory_order_relaxed);
    return err;
}


static inline __attribute__((always_inline)) int run_by_itself(far_task *t, far_index *index, far_op_kind kind,
                                                               far_bytes key, far_bytes value, far_out *out) {
    switch (kind) {
    case FAR_OP_GET:
        return index->kind->get(t, index, key, out);
    case FAR_OP_DELETE:
        return tally(t, index, -1, index->kind->remove(t, index, key));
    default:
        t->added = false;
        t->swaps = kind == FAR_OP_UPDATE;
        int err = index->kind->put(t, index, kind, key, value);
        t->swaps = false;
        return tally(t, index, kind == FAR_OP_INSERT || t->added, err);
    }
}


static __attribute__((noinline)) int run_with_others(far_task *t, const request *r) {
    return far_rdwc_run(t, r->index, r->kind, r->key, r->value, r->out, run_by_itself);
}


/* Here and below: what seldom happens gets a copy of the request. One whose address is passed on would be read from
 * memory again after every call. */
static inline __attribute__((always_inline)) int run_on_its_index(far_task *t, const request *r) {
    if (!far_rdwc_may_merge(t, r->kind))
        return run_by_itself(t, r->index, r->kind, r->key, r->value, r->out);
    request copy = *r;
    return run_with_others(t, &copy);
}


static int run_on_index(far_task *t, void *arg) {
    return run_on_its_index(t, arg);
}


static inline void name_task(far_task *t, far_op_kind kind, far_index *index, unsigned count) {
    t->label = labels[kind];
    t->index_key = index->uid;
    far_count_op(t, kind, index, count);
}


/* A put that found no memory: where the key is there it is an update, which works in a full pool too. An update that
 * was served with another's has no pin any more. */
static int update_or_put(far_task *t, void *arg) {
    request update = *(const request *)arg;
    update.kind = FAR_OP_UPDATE;
    int err = run_on_index(t, &update);
    return err == FAR_ERR_NOT_FOUND ? pin_and_run(t, &(pinned_run){run_on_index, arg}) : err;
}


static __attribute__((noinline)) int run_again(far_task *t, request *r) {
    pinned_run again = {r->kind == FAR_OP_PUT ? update_or_put : run_on_index, r};
    int err = far_run_short(t, pin_and_run, &again);
    return err == FAR_ERR_NO_MEMORY ? far_tell_full(t, err) : err;
}


static inline __attribute__((always_inline)) int run_stored(far_task *t, const request *r) {
    int err = far_pin_take_inline(t);
    if (err >= 0)
        err = run_on_its_index(t, r);
    if (err != FAR_ERR_NO_MEMORY)
        return err;
    request copy = *r;
    return run_again(t, &copy);
}


/* With checksums: the value has one behind it in the index. */
static __attribute__((noinline)) int run_summed(far_task *t, const request *r) {
    request stored = *r;
    far_out out;
    stored.out = &out;
    int err = r->kind == FAR_OP_GET ? far_sum_room(t, r->out, &out) : far_sum_add(t, r->index, r->key, &stored.value);
    if (err >= 0)
        err = run_stored(t, &stored);
    return r->kind == FAR_OP_GET ? far_sum_give(r->index, r->key, &out, err, r->out) : err;
}


static inline __attribute__((always_inline)) int run_request(far_task *t, const request *r) {
    name_task(t, r->kind, r->index, 1);
    if (far_sum_bytes(r->index) == 0 || r->kind == FAR_OP_DELETE)
        return run_stored(t, r);
    request copy = *r;
    return run_summed(t, &copy);
}


/* Synchronous calls. */

static int run_first(far_task *t, void *arg) {
    return run_request(t, arg);
}


/* Inlined, down to the kind's own function: what kind of request it is decides what of all that is there. */
static inline __attribute__((always_inline)) int run_call(far_session *s, const request *r) {
    far_session_enter(s);
    far_task *t = far_call_begin(s, r->kind, false);
    if (t)
        return far_call_end(s, t, run_request(t, r));
    request copy = *r;
    return far_call_end(s, NULL, far_session_call_first(s, r->kind, false, run_first, &copy));
}


static inline __attribute__((always_inline)) int call(far_session *s, request r) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = check_request(s, &r)) >= 0) { /* the caller has the index open until it returns */
        err = run_call(s, &r);
        if (err < 0)
            err = far_tell(s, err);
    }
    if (s->ops)
        far_ops_deliver(s);
    far_call_leave(s);
    return err;
}


int far_get(far_session *s, far_index *index, const void *key, size_t key_len, void *value, size_t capacity,
            size_t *value_len) {
    far_out out = {value, capacity, 0};
    int err = call(s, (request){FAR_OP_GET, index, {key, key_len}, {NULL, 0}, &out});
    if (value_len && (err == FAR_OK || err == FAR_ERR_TOO_SMALL))
        *value_len = out.length;
    return err;
}


int far_insert(far_session *s, far_index *index, const void *key, size_t key_len, const void *value, size_t value_len) {
    return call(s, (request){FAR_OP_INSERT, index, {key, key_len}, {value, value_len}, NULL});
}


int far_update(far_session *s, far_index *index, const void *key, size_t key_len, const void *value, size_t value_len) {
    return call(s, (request){FAR_OP_UPDATE, index, {key, key_len}, {value, value_len}, NULL});
}


int far_put(far_session *s, far_index *index, const void *key, size_t key_len, const void *value, size_t value_len) {
    return call(s, (request){FAR_OP_PUT, index, {key, key_len}, {value, value_len}, NULL});
}


int far_delete(far_session *s, far_index *index, const void *key, size_t key_len) {
    return call(s, (request){FAR_OP_DELETE, index, {key, key_len}, {NULL, 0}, NULL});
}


/* Operations in flight. */

static void append(run_list *list, far_op_run *run) {
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
static void finish(far_op_run *run, int64_t result) {
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


static void finish_used(far_op_run *run, int64_t result) {
    far_index_unuse(run->op->index);
    finish(run, result);
}


static request request_of(far_op_run *run) {
    far_op *op = run->op;
    return (request){op->kind, op->index, {op->key, op->key_len}, {op->value, op->value_len}, &run->out};
}


static void finish_get(far_op_run *run, int result) {
    if (result == FAR_OK || result == FAR_ERR_TOO_SMALL)
        run->op->value_len = run->out.length;
    finish_used(run, result);
}


static void run_op(far_task *t, void *arg) {
    far_op_run *run = arg;
    request r = request_of(run);
    int result = run_request(t, &r);
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
    far_op_run *first = arg;
    if (!first->with) {
        run_op(t, first);
        return;
    }
    gets g = {.index = first->op->index};
    for (far_op_run *run = first; run; run = run->with) {
        g.keys[g.count] = (far_bytes){run->op->key, run->op->key_len};
        g.outs[g.count] = &run->out;
        g.results[g.count++] = FAR_ERR_CORRUPT;
    }
    name_task(t, FAR_OP_GET, g.index, 0);
    int err = make_room(t, &g);
    if (err >= 0)
        err = far_run_pinned(t, run_get_many, &g);
    size_t i = 0;
    far_op_run *last = NULL; /* those that found no room for a task */
    for (far_op_run *run = first, *with; run; run = with, i++) {
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
    for (far_op_run *with; last; last = with) {
        with = last->with;
        run_op(t, last);
    }
}


static void run_scan_chunk(far_task *t, void *arg) {
    far_op_run *run = arg;
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


static void finish_from_outside(far_session *s, far_op_run *run, int64_t result) {
    far_session_enter(s);
    finish(run, result);
    far_session_leave(s);
}


/* Gives one chunk to the user, outside the session, then starts the next. */
static void deliver(far_session *s, far_op_run *run) {
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
    far_op_run *run = runs->chunks.first;
    runs->chunks = (run_list){0};
    atomic_store_explicit(&runs->waiting, 0, memory_order_relaxed);
    far_session_leave(s);
    while (run) {
        far_op_run *next = run->next;
        deliver(s, run);
        run = next;
    }
}


/* Submitting. */

typedef struct submission {
    far_session *session;
    far_op_run *first, *last; /* gets of one index that are collected */
    size_t count;
} submission;


static bool join_gets(submission *sub, far_op_run *run) {
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
static bool start(submission *sub, far_op_run *run) {
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


static int check_op(far_session *s, far_op_run *run) {
    far_op *op = run->op;
    request r = request_of(run);
    if ((unsigned)op->kind > FAR_OP_SCAN)
        return far_fail(FAR_ERR_INVALID, "kind: %d is no kind of operation", (int)op->kind);
    if (op->kind != FAR_OP_SCAN)
        return check_request(s, &r);
    int err = far_check_index(s, op->index);
    return err < 0 ? err : far_scan_begin(s, op->index, op, &run->scan);
}


/* Takes one operation; false: the session is full. */
static bool take(submission *sub, far_op *op) {
    far_session *s = sub->session;
    struct far_op_runs *runs = s->ops;
    far_op_run *run = runs->free;
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
        if (atomic_load_explicit(&s->pool->resting, memory_order_seq_cst)) /* housekeeping drives what is under way */
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
            far_op_run *run = runs->done.first;
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
    for (far_op_run *run = s->ops->chunks.first; run; run = run->next)
        far_scan_finish(run->scan);
    far_failures_close(&s->ops->failures);
    free(s->ops);
    s->ops = NULL;
}
