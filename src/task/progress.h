/* The progress detector decides when an operation that retries must stop.
 *
 * A retry waits for a change that another client makes, for example the release of a lock or the end of a half-done
 * step. If far memory is damaged, perhaps no client is going to make that change. The epoch proves this. A client holds
 * a pin while it works, so when the epoch has advanced by two since the task READ the memory, all operations that were
 * in progress at that READ have ended.
 *
 * A task records the results of its READs after FAR_PROGRESS_RETRIES retries. If it observes nothing new during
 * FAR_PROGRESS_PERIODS periods of two epochs each, no live client will make the change, and taking the next pin fails
 * with FAR_ERR_CORRUPT. Changes that the task made itself do not count as new, for example a lock that it took and
 * released in vain. A live client that is slow or stopped keeps the epoch from advancing, so no period ends meanwhile.
 * The wait for such a client is bounded separately (far_stall_check in pool/epoch/stalled.h).
 *
 * An index kind only has to count its retries (far_count_retry) and to renew its pin every few retries. */
#ifndef FAR_TASK_PROGRESS_H
#define FAR_TASK_PROGRESS_H

#include "task/task.h"

/* number of retries before a task starts to record observations; an operation that retries less often needs no
 * detector */
#define FAR_PROGRESS_RETRIES 64
#define FAR_PROGRESS_PERIODS   6  /* number of periods (two epochs each) without a new observation */

typedef struct far_progress far_progress;

/* The following functions need t->patience, the progress detector of the task, which exists after FAR_PROGRESS_RETRIES
 * retries. */
/* Records the results of these verbs, which have completed. */
void far_progress_observe(far_task *t, const far_batch *batch);
/* Called when the task has taken a new pin. Returns 0, or FAR_ERR_CORRUPT if no client makes progress. */
int far_progress_check(far_task *t);

/* Deletes the observations, because the task ends or waits for something different from now on. */
void far_progress_reset(far_task *t);

#endif
