/* RDWC: read delegation and write combining. Operations of one compute node that are under way at the same time on one
 * key of one index are served by one of them, the leader, which runs the index code once. The other operations are the
 * members of its round. RDWC precedes every kind of index, and its results are linearizable (the proof is at the top of
 * rdwc.c).
 *
 *     GET              may be served by a GET, PUT or UPDATE (in kinds with gets_never_wait_for_writes: by a GET only)
 *     PUT, UPDATE      may be served by an operation of the same kind
 *     INSERT, DELETE and scans are never merged
 *
 * Index code helps by three hooks, which do nothing if its task leads no round:
 *
 *     m = far_rdwc_mark(t);       immediately before it posts a batch: numbers that batch
 *     far_rdwc_seal(t, &value);   immediately before it builds its payload; takes the last writer's value
 *     far_rdwc_done(t, m);        before it returns: the linearization point is at or after the posting of m
 *
 * Operations are also merged for a kind that calls none of the hooks. An operation that starts while a round is running
 * waits. When the round ends, all waiting operations become one round. Its members have joined before its leader
 * starts. No leader waits for others to join, so the first operation starts at once. Under load, the run of one round
 * is the time in which the members of the next one gather.
 *
 * Which batch an operation passes to far_rdwc_done: a get that found its key passes the batch with the READ of the
 * leaf. A get that did not find it passes the batch with the READ of the word that proves the absence. A write that
 * commits by CAS passes the batch with the WRITE of its payload. For a write in place see far_rdwc_seal. */
#ifndef FAR_INDEX_COMMON_RDWC_H
#define FAR_INDEX_COMMON_RDWC_H

#include "index/index.h"

#define FAR_RDWC_ENTRIES 4096
/* If fewer operations than this number are in progress in the handle, a get does not wait for another one, because
 * delegating the READ would only add latency. */
#define FAR_RDWC_QUIET_BELOW 8

typedef struct far_rdwc far_rdwc; /* the table of a handle; a handle without one has RDWC switched off */

/* Runs the operation on the index itself. For a write, `value` may be the value of another operation than the caller's.
 */
typedef int far_rdwc_fn(far_task *t, far_index *index, far_op_kind kind, far_bytes key, far_bytes value, far_out *out);

far_rdwc *far_rdwc_new(unsigned quiet_below); /* Returns a new table, or NULL if there is no memory. */
void far_rdwc_free(far_rdwc *rdwc);           /* Frees the table. No operation may be in progress. */

/* Returns whether the operation could be merged with others. If not, far_rdwc_run only runs it. */
bool far_rdwc_may_merge(const far_task *t, far_op_kind kind);

/* Runs the operation, or lets another operation serve it. `kind` is any kind of operation except a scan; `out` is NULL
 * unless the operation is a get. Returns the result of the operation. The pin of the task is dropped while it waits for
 * another operation; if the operation was served, the task holds no pin on return.
 *
 * If another session carried out a write and lost its connection, the caller gets FAR_ERR_UNREACHABLE: the write may or
 * may not have happened, although the caller's session is intact. */
int far_rdwc_run(far_task *t, far_index *index, far_op_kind kind, far_bytes key, far_bytes value, far_out *out,
                 far_rdwc_fn *run);

/* Returns whether RDWC saves READs of concurrent gets. It saves none on a fabric that executes verbs at once, because
 * there are no round trips to share. */
bool far_rdwc_saves_reads(const far_task *t);

/* Numbers the batch that will be posted next, and returns the number. Returns 0 if the task leads no round. */
uint32_t far_rdwc_mark(far_task *t);

/* Closes the round for writers and sets *value to the value of the last writer that joined. Leaves *value as it is if
 * no writer joined. The bytes stay valid until the operation returns. A second call, after a retry, gives the same
 * value.
 *
 * The caller promises that its write, if it succeeds, takes effect at or after the posting of a batch with a larger
 * mark than the returned one, the mark at which the last such writer joined. A commit by CAS keeps that promise by
 * itself. A write in place does not. If it relies on having seen its target LIVE in batch m, writers that joined at
 * mark m or later may have been invoked after a delete of the target. Such a caller either checks the target again
 * after the write if the returned mark is >= m, or leaves these writers out: far_rdwc_seal_before(t, m, &value) takes
 * only writers that joined before batch m was posted; the others form the next round. */
uint32_t far_rdwc_seal(far_task *t, far_bytes *value);
uint32_t far_rdwc_seal_before(far_task *t, uint32_t mark, far_bytes *value);

/* Records that the linearization point is at or after the posting of batch `mark`. The last call counts. Without a
 * call, the linearization point is somewhere in the run of the index code. */
void far_rdwc_done(far_task *t, uint32_t mark);

#endif
