/* Declarations that op.c, submit.c, scan.c, range.c, keys.c and admin.c share: requests of the user, their execution in
 * a task, scans, and submitted operations. */
#ifndef FAR_CLIENT_OP_H
#define FAR_CLIENT_OP_H

#include "client/range.h"
#include "index/index.h"
#include "task/session.h"

/* Returns 0 if the index belongs to the handle of the session, else FAR_ERR_INVALID. */
int far_check_index(const far_session *s, const far_index *index);

/* Sets the message of far_last_error for codes that index code returns without a message. Returns err. */
int far_describe_error(const far_session *s, int err);

/* Called in a task that received FAR_ERR_NO_MEMORY: extends the error message with the amount of free memory and the
 * reason why the task cannot use it (full.c). Returns err. */
int far_describe_full_pool(far_task *t, int err);

void far_index_ops_restart(far_index_ops *of, uint32_t uid);

/* Counts operations in the statistics of the session and of the index. client/status.c publishes them. */
static inline void far_count_op(far_task *t, far_op_kind kind, const far_index *index, unsigned count) {
    t->stats->ops[kind] += count;
    if (index->slot >= FAR_COUNTED_INDEXES)
        return;
    far_index_ops *of = &t->session->by_index[index->slot];
    if (of->uid != index->uid)
        far_index_ops_restart(of, index->uid);
    of->ops[kind] += count;
}

typedef struct far_op_request { /* one point operation of the user */
    far_op_kind kind;
    far_index *index;
    far_bytes key, value;
    far_out *out;
} far_op_request;

int far_op_check(const far_session *s, const far_op_request *r);
/* Runs a request that far_op_check has accepted, and counts it. Called in a task. */
int far_op_run(far_task *t, const far_op_request *r);
/* Stores in the task, for diagnostics, the kind of its operation and the index that it uses. */
void far_label_task(far_task *t, far_op_kind kind, const far_index *index);

/* Runs `run` with a pin. If it returns FAR_ERR_NO_MEMORY, waits for memory and runs it again with a new pin
 * (far_run_out_of_memory). */
int far_run_pinned(far_task *t, int (*run)(far_task *t, void *arg), void *arg);

/* Measures how full the slots of the index are. Returns FAR_ERR_UNSUPPORTED if the kind has no load_factor function. */
int far_index_load(far_session *s, far_index *index, far_load *load);

/* Calls `each` for all pairs of an index of any kind. A kind with ordered keys delivers the pairs in key order, like
 * far_scan. A kind that has only a `keys` function delivers them in no order. In such a kind, a key that moves during
 * the traversal may be delivered twice, each time with its value at that moment, so the last delivery has the newest
 * value. Returns the number of pairs, or an error. */
int64_t far_index_pairs(far_session *s, far_index *index, far_pair_fn each, void *ctx);

/* What far_index_salvage delivers. `each` is called once for each pair, in key order except for a few pairs at the end;
 * a result other than 0 ends the salvage. `skipped` is called in key order for each key that is in an object of the
 * index but cannot be read, with the error message. It may be a key that was deleted, because deleted keys stay in free
 * objects for some time. `adjacent` is true if no delivered pair is between this key and the one skipped before. */
typedef struct far_salvage {
    far_pair_fn each;
    void (*skipped)(void *ctx, const void *key, size_t key_len, bool adjacent, const char *message);
    void *ctx;
} far_salvage;

/* Delivers all pairs of a damaged index that a get can still read (salvage.c). Returns 1 if a check finds that the
 * index is damaged, so that pairs may be missing whose keys are not known; 0 if it is sound; or an error if the salvage
 * ended early. */
int far_index_salvage(far_session *s, far_index *index, const far_salvage *salvage);

/* Scans. A scan alternates between filling a buffer with a chunk of pairs, in a task with a pin, and delivering the
 * chunk to the user, outside the session and without a pin (scan.c). */
typedef struct far_scan_state {
    far_range *range; /* the range that remains, with the chunk (range.h); NULL: the scan has not begun */
    size_t limit;            /* number of pairs still to deliver; SIZE_MAX: no limit */
    int64_t given;           /* number of pairs that were delivered */
    bool over;               /* true if no chunk follows */
    far_pair_fn each;
    void *each_ctx;
} far_scan_state;
/* Checks the arguments and begins a scan. After the scan the caller releases scan->range (far_range_release). With a
 * session, only the thread that uses the session may call this function, and not in a task. */
int far_scan_begin(far_session *s, far_index *index, const far_op *op, far_scan_state *scan);
/* Fills the buffer with one chunk and takes a pin. A task function; the second argument is a far_scan_state. */
int far_scan_fill_chunk(far_task *t, void *scan);
/* Returns whether the buffer is empty and no further chunk follows. */
bool far_scan_is_over(const far_scan_state *scan);
/* Calls `each` for the pairs of the chunk, on the caller's stack. Returns whether the scan is over. */
bool far_scan_deliver(far_scan_state *scan);

/* Submitted operations (submit.c). */
void far_submitted_ops_free(far_session *s); /* called before the session is freed */
/* Delivers the filled chunks of submitted scans. Called at the end of public functions, outside the session, because
 * the user's `each` must not run inside a task. */
void far_submitted_scans_deliver(far_session *s);

#endif
