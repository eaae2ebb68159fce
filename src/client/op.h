/* Operations of the user as tasks: what op.c, submit.c, scan.c and admin.c share. */
#ifndef FAR_CLIENT_OP_H
#define FAR_CLIENT_OP_H

#include "index/index.h"
#include "task/session.h"

/* The index belongs to the session's handle. */
int far_check_index(const far_session *s, const far_index *index);

/* Gives far_last_error words for codes that index code returns without any. Returns err. */
int far_tell(const far_session *s, int err);

/* After FAR_ERR_NO_MEMORY, in the task that met it: says what is free in the pool, and why it does not serve. Returns err.
 */
int far_tell_full(far_task *t, int err);

void far_count_anew(far_index_ops *of, uint32_t uid);

/* Counts operations, of the session and of the index (client/bulletin.c tells of them). */
static inline void far_count_op(far_task *t, far_op_kind kind, const far_index *index, unsigned count) {
    t->stats->ops[kind] += count;
    if (index->slot >= FAR_COUNTED_INDEXES)
        return;
    far_index_ops *of = &t->session->by_index[index->slot];
    if (of->uid != index->uid)
        far_count_anew(of, index->uid);
    of->ops[kind] += count;
}

typedef struct far_op_request { /* one operation of the user, but for scans */
    far_op_kind kind;
    far_index *index;
    far_bytes key, value;
    far_out *out;
} far_op_request;

int far_op_check(const far_session *s, const far_op_request *r);
int far_op_run(far_task *t, const far_op_request *r);                      /* one that was checked; counts it */
void far_name_task(far_task *t, far_op_kind kind, const far_index *index); /* after what it does */

/* Runs with a pin; again, with another, when memory was short and some came back (far_run_short). */
int far_run_pinned(far_task *t, int (*run)(far_task *t, void *arg), void *arg);

/* FAR_ERR_UNSUPPORTED: the kind has no load_factor. */
int far_index_load(far_session *s, far_index *index, far_load *load);

/* All pairs of an index of any kind: as far_scan gives them or, of a kind that has only `keys`, in no order; there a
 * key that moves meanwhile may come twice, each time with the value that it then had, the newer one last. How many, or
 * an error. */
int64_t far_index_pairs(far_session *s, far_index *index, far_pair_fn each, void *ctx);

/* Scans, chunk by chunk (scan.c). */
typedef struct far_scan_run far_scan_run;
int far_scan_begin(far_session *s, far_index *index, const far_op *op, far_scan_run **run); /* checks the arguments */
/* The scan is no operation of the user's, and not counted; damaged values are reported, and it goes on. */
void far_scan_for_check(far_scan_run *run, struct far_report *report);
int far_scan_run_chunk(far_task *t, void *run); /* one chunk into the buffer; pins */
bool far_scan_is_over(const far_scan_run *run); /* nothing to deliver, no further chunk */
/* Gives the chunk to `each`, on the caller's stack. True: the scan is over. */
bool far_scan_deliver(far_scan_run *run);
int64_t far_scan_given(const far_scan_run *run);
void far_scan_finish(far_scan_run *run);

/* Operations in flight (submit.c). */
void far_ops_free(far_session *s);    /* before the session is */
void far_ops_deliver(far_session *s); /* chunks of submitted scans that wait for their `each` */

#endif
