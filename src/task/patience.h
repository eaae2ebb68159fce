/* Patience: when an operation that retries must stop.
 *
 * A retry waits for a change: a lock that becomes free, a half-done step that its owner finishes. In damaged memory
 * nobody may be there to make it. Whoever could holds a pin while it works, so the epoch proves it: when two epochs have
 * passed since a task looked, all operations of that time have ended. A task that has retried often, and then for
 * several times two epochs has seen nothing change wherever it looked (but what it changed itself: a lock that it took and
 * gave back in vain), waits for something that nobody alive will do: its next pin is refused with FAR_ERR_CORRUPT. A live
 * client that is slow, or stopped, keeps the epoch, and is waited for; for a bounded time, in which the epoch stands and nothing
 * changes (far_held_up in pool/blocker.h).
 *
 * So a kind has nothing to do but to count its retries (far_count_retry) and to renew its pin every few of them. */
#ifndef FAR_TASK_PATIENCE_H
#define FAR_TASK_PATIENCE_H

#include "task/task.h"

#define FAR_PATIENCE_RETRIES 64 /* before a task notes what it sees */
#define FAR_PATIENCE_TIMES   6  /* two epochs each, without anything new */

typedef struct far_patience far_patience;

/* Of a task that notes what it sees (t->patience): */
void far_patience_see(far_task *t, const far_batch *batch); /* these verbs have completed */
int far_patience_renew(far_task *t);                        /* the task has taken a new pin: 0, or FAR_ERR_CORRUPT */

/* For how long the epoch has stood, and the task has seen nothing new: up to its last pin, in ns. */
uint64_t far_patience_still(const far_task *t);

/* The task ends, or waits for something else now than before: what it has seen counts no more. */
void far_patience_forget(far_task *t);

#endif
