/* Stalled clients: a handle that stops in the middle of an operation keeps its pin, and so holds up the epoch. Other
 * clients then wait for memory that cannot be reused, for epochs, or for a lock that the stalled client holds. They
 * wait for a bounded time; then the functions of this file find the stalled client, evict it if the option
 * evict_after_ms allows that, or fail with FAR_ERR_BUSY and name it. */
#ifndef FAR_POOL_EPOCH_STALLED_H
#define FAR_POOL_EPOCH_STALLED_H

#include "pool/format/clients.h"

/* number of ticks that a call waits without a new epoch before it fails and names the stalled client */
#define FAR_STALL_TICKS 10000u

typedef struct far_stalled_client {
    unsigned id, generation;
    uint64_t pin;
} far_stalled_client;

/* Finds the other handle that holds up `epoch`, which has been the global epoch for a while. Sets *b to that handle's
 * client, or b->id to 0 if there is no such handle. */
int far_stalled_client_find(far_task *t, uint64_t epoch, far_stalled_client *b);

/* Confirms that a client is stalled: finds it and observes it for a while. Returns 1 if it made no progress; 0 if there
 * is no such client or the epoch advanced. The client may still continue immediately afterwards; then the epoch
 * advances soon. `wait` waits until the epoch advances, and returns 1 if that did not happen before `time`;
 * far_wait_for_next_epoch is the one for tasks without a pin. */
int far_stalled_client_confirm(far_task *t, uint64_t epoch, far_stalled_client *b, int (*wait)(far_task *t, uint64_t time));
int far_wait_for_next_epoch(far_task *t, uint64_t time);

/* far_stalled_client_may_be_evicted returns true if far_pool_options.evict_after_ms allows this handle to evict a
 * client that has held it up for `ns`. far_stalled_client_evict evicts the client. */
bool far_stalled_client_may_be_evicted(far_task *t, const far_stalled_client *b, uint64_t ns);
int far_stalled_client_evict(far_task *t, const far_stalled_client *b);

/* far_stall_timeout returns how long an operation waits without a new epoch before it looks for a stalled client.
 * far_stall_resolve is called afterwards: it returns 0 if it evicted the client, or FAR_ERR_BUSY with a text that names
 * it. */
uint64_t far_stall_timeout(const far_task *t);
int far_stall_resolve(far_task *t, const far_stalled_client *b, uint64_t ns);

/* Called by an operation that retries without a pin and has observed no change (task/progress.h) while the epoch did
 * not advance. A stalled client may hold the lock that the operation waits for. Returns 0 if the operation may
 * continue, or FAR_ERR_BUSY like far_stall_resolve. */
int far_stall_check(far_task *t);

/* Fails with FAR_ERR_BUSY and a text that names the client which `what` waits for, or with the error of the search for
 * that client. `what` describes the waiting activity. */
int far_fail_stalled(far_task *t, const char *what);

#endif
