/* Stalled clients: a handle that stops in the middle of an operation keeps its pin, and so holds up the epoch. Other
 * clients then wait for memory that cannot be reused, for epochs, or for a lock that the stalled client holds. They
 * wait for a bounded time; then the functions of this file find the stalled client, evict it if the option
 * evict_after_ms allows that, or fail with FAR_ERR_BUSY and name it. */
#ifndef FAR_POOL_EPOCH_STALLED_H
#define FAR_POOL_EPOCH_STALLED_H

#include "pool/format/clients.h"

typedef struct far_stalled_client {
    unsigned id, generation;
    uint64_t pin;
} far_stalled_client;

/* Finds the other handle that holds up `epoch`, which has been the global epoch for a while. Sets *b to that handle's
 * client, or b->id to 0 if there is no such handle. */
int far_stalled_client_find(far_task *t, uint64_t epoch, far_stalled_client *b);

/* Confirms that a client is stalled: observes all clients that hold up `epoch` for a while, and sets *b to one that
 * made no progress. Returns 1 then; 0 if there is no such client or the epoch advanced. The client may still continue
 * immediately afterwards; then the epoch advances soon. `wait` waits until the epoch advances, and returns 1 if that
 * did not happen before `time`; far_wait_for_next_epoch is the one for tasks without a pin. */
int far_stalled_client_confirm(far_task *t, uint64_t epoch, far_stalled_client *b,
                               int (*wait)(far_task *t, uint64_t time));
int far_wait_for_next_epoch(far_task *t, uint64_t time);

/* Records that the client was found stalled, so that far_stalled_client_confirm does not observe it again while it has
 * the same pin. */
void far_stalled_client_record(far_task *t, const far_stalled_client *b);

/* far_stalled_client_may_be_evicted returns true if far_pool_options.evict_after_ms allows this handle to evict a
 * client that has held it up for `ns`. far_stalled_client_evict evicts the client. */
bool far_stalled_client_may_be_evicted(far_task *t, const far_stalled_client *b, uint64_t ns);
int far_stalled_client_evict(far_task *t, const far_stalled_client *b);

/* The waiting time of an operation. Everything that an operation does while it waits for other clients, or for other
 * operations of its handle, counts: retries, waits for latches and gates, as a member of an RDWC round, for epochs, and
 * for memory (far_note_wait in task/session.h). The time begins again only if the operation works for a while without
 * any wait. So it makes no difference for how many locks, or in how many lines, an operation waits. A stalled client
 * is searched for when the operation has waited long and the handle has observed for at least half of that time that
 * the epoch does not advance although an advance is requested.
 *
 * A collection or a check is one task with many waits (far_task.many_waits), and the epoch advances between them if all
 * clients make progress. Its waiting time therefore begins again with each epoch, and after a shorter time of work. A
 * collection in the out-of-memory path is a part of its operation, and its waits count like the others. */

/* An operation that needs memory waits for this share of the bound for a new epoch, before it gives up a request. */
#define FAR_MEMORY_WAIT_SHARE 10u

/* Returns the time at which the operation has waited for the bound. At least a twentieth of the bound is left, so that
 * an epoch can advance in this time. */
uint64_t far_stall_deadline(const far_task *t);
/* Returns whether the operation has waited since its previous pin, and altogether so long that it must request epochs
 * and call far_stall_check. */
bool far_stall_is_due(const far_task *t);
/* Returns whether an operation of this handle was refused because of a stalled client at the epoch that is still the
 * current one. */
bool far_stall_has_refused(const far_task *t);
/* Returns the earliest time at which far_stall_resolve would search for a stalled client, if the epoch does not advance
 * until then. */
uint64_t far_stall_search_time(const far_task *t);
/* Searches for a stalled client if the operation has waited long enough. `wait` is as for far_stalled_client_confirm.
 * Returns 0 if the operation may continue to wait, because there is no stalled client or it was evicted. Otherwise
 * returns FAR_ERR_BUSY with a text that names the client. */
int far_stall_resolve(far_task *t, int (*wait)(far_task *t, uint64_t time));
/* Does the same for an operation that retries without a pin. The client may hold the lock that the operation waits for.
 */
int far_stall_check(far_task *t);

/* Fails with FAR_ERR_BUSY and a text that names the client which `what` waits for, or with the error of the search for
 * that client. `what` describes the waiting activity. */
int far_fail_stalled(far_task *t, const char *what);

#endif
