/* Operations of the user as tasks: what op.c, scan.c and admin.c share. */
#ifndef FAR_RUNTIME_OP_H
#define FAR_RUNTIME_OP_H

#include "index/index.h"
#include "runtime/session.h"

/* The index belongs to the session's handle. */
int far_check_index(const far_session *s, const far_index *index);

/* Gives far_last_error words for codes that index code returns without any. Returns err. */
int far_tell(const far_session *s, int err);

/* Runs with a pin; again, with another, when memory was short and some came back (far_run_short). */
int far_run_pinned(far_task *t, int (*run)(far_task *t, void *arg), void *arg);

void far_index_use(far_index *index); /* it is not closed before ... */
void far_index_unuse(far_index *index);

/* Scans, chunk by chunk (scan.c). */
typedef struct far_scan_run far_scan_run;
int far_scan_begin(far_session *s, far_index *index, const far_op *op, far_scan_run **run); /* checks the arguments */
int far_scan_run_chunk(far_task *t, void *run); /* one chunk into the buffer; pins */
bool far_scan_is_over(const far_scan_run *run); /* nothing to deliver, no further chunk */
/* Gives the chunk to `each`, on the caller's stack. True: the scan is over. */
bool far_scan_deliver(far_scan_run *run);
int64_t far_scan_given(const far_scan_run *run);
void far_scan_finish(far_scan_run *run);

/* Operations in flight (op.c). */
void far_ops_deliver(far_session *s); /* chunks of submitted scans that wait for their `each` */

#endif
