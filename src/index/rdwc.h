/* RDWC: read delegation and write combining. Operations of one compute node that are under way on one key of one index
 * at the same time are served by one of them, the leader, which runs the index code once. It stands in front of every
 * kind of index, and is strict: what it gives is linearizable (the proof stands at the top of rdwc.c).
 *
 *     GET              may be served by a GET, PUT or UPDATE (kinds with gets_apart: by a GET only)
 *     PUT, UPDATE      by one of its own kind
 *     INSERT, DELETE and scans are never merged
 *
 * Index code helps by three hooks, which do nothing when its task leads no round:
 *
 *     m = far_rdwc_mark(t);       immediately before it posts a batch: numbers that batch
 *     far_rdwc_seal(t, &value);   immediately before it builds what it writes: takes the value of the task that joined last
 *     far_rdwc_done(t, m);        before it returns: the linearization point is at or after the posting of batch m
 *
 * A kind that calls none of them still gets merges: whoever comes while a round is running waits, and all those who
 * wait become one round when it ends, whose members have joined before its leader starts. No leader waits for others to
 * join it: a first-comer starts at once, and under load the run of one round is the window in which the next one
 * gathers.
 *
 * What the kinds say. A get that found its key: the READ of the leaf. One that did not: the READ that supplied the word
 * which proves it. A write that commits by CAS: the WRITE of its payload. A write in place: see far_rdwc_seal. */
#ifndef FAR_INDEX_RDWC_H
#define FAR_INDEX_RDWC_H

#include "index/index.h"

#define FAR_RDWC_ENTRIES     4096
#define FAR_RDWC_QUIET_BELOW 8 /* with fewer operations under way in the handle, delegating only adds latency */

typedef struct far_rdwc far_rdwc; /* of a handle; NULL there: switched off */

/* Runs the operation on the index itself. Writes: `value` may be another's than the caller's. */
typedef int far_rdwc_fn(far_task *t, far_index *index, far_op_kind kind, far_bytes key, far_bytes value, far_out *out);

far_rdwc *far_rdwc_new(unsigned quiet_below); /* NULL: no memory */
void far_rdwc_free(far_rdwc *rdwc);           /* no operation is under way */

/* There may be others to be served with it. False: it runs by itself, with or without far_rdwc_run. */
bool far_rdwc_may_merge(const far_task *t, far_op_kind kind);

/* Runs the operation, or lets another one run it. kind: any but a scan; out: of a get, else NULL. Returns what the
 * operation returns. A pin that the task holds is dropped while it waits for another, and not held on return if it was
 * served.
 *
 * A write that another session carried out, and lost its connection over, is told FAR_ERR_UNREACHABLE: it may or may
 * not have happened, though the session of the caller is well. */
int far_rdwc_run(far_task *t, far_index *index, far_op_kind kind, far_bytes key, far_bytes value, far_out *out,
                 far_rdwc_fn *run);

/* Whether a READ that others of the handle do at the same time is spared: not where verbs run at once, which cost no round
 * trip that could be shared. */
bool far_rdwc_spares_reads(const far_task *t);

uint32_t far_rdwc_mark(far_task *t); /* 0: leads no round */

/* Closes the round for writers; sets *value to that of the last one who joined (or leaves it as it is, when nobody
 * did). The bytes stay valid until the operation returns. Called again, after a retry, it gives the same value.
 *
 * The caller promises that its write, if it succeeds, takes effect at or after the posting of a batch with a larger
 * mark than the returned one (the mark at which the last of those writers joined). A commit by CAS keeps that by
 * itself. A write in place whose target was seen alive in batch m, and which goes by that, does not keep it for those
 * who joined at m or later: they may have come after a delete. It looks again after the write when the returned mark is
 * >= m, or leaves them out: far_rdwc_seal_before(t, m, &value) takes only those who joined before batch m was posted;
 * the others form the next round. */
uint32_t far_rdwc_seal(far_task *t, far_bytes *value);
uint32_t far_rdwc_seal_before(far_task *t, uint32_t mark, far_bytes *value);

void far_rdwc_done(far_task *t, uint32_t mark); /* the last call counts; none: the point is somewhere in the run */

#endif
