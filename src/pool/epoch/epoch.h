/* Epoch-based reclamation. An operation holds a pin from before its first access to shared memory until its last verb
 * has completed; memory that it can reach is not reused during that time. Pins are local counters. A handle publishes
 * the epoch of its oldest pin in its registry entry, outside the path of operations; it publishes 0 while it is
 * quiescent.
 *
 * The global epoch advances from e to e+1 by a CAS, and only if no published pin is below e. Therefore, while a pin at
 * e is held, the global epoch is e or e+1. An object retired under a pin at e is reused when the global epoch is at
 * least e+4, because then every pin is at e+3 or later. The epoch advances only on demand, which means after
 * far_epoch_request, in far_wait_epochs_until, and when retired memory piles up. Housekeeping calls far_epoch_tick;
 * epoch.c contains the protocol and its proof. */
#ifndef FAR_POOL_EPOCH_EPOCH_H
#define FAR_POOL_EPOCH_EPOCH_H

#include "fabric/fabric.h"
#include "farindex.h"
#include "task/pin.h"

#include <pthread.h>
#include <stdatomic.h>

struct far_task;

typedef struct far_epochs { /* The epoch state of a handle. epoch.c describes how it changes. */
    /* epoch of new pins; 0 if the handle is quiescent, so the next pin must activate it first */
    _Atomic uint64_t current;
    _Atomic uint64_t known;           /* newest value of the global epoch that this handle has observed */
    _Atomic uint64_t known_since;     /* time at which this handle first observed that value */
    _Atomic uint64_t published;       /* epoch in our registry entry, as last written; 0 if no pin is published */
    atomic_uint requests;             /* number of requested advances that are not yet served */
    _Atomic uint64_t requested_since; /* time of the oldest such request */
    /* Lock of the epoch state: 1 while a task activates the handle or runs a tick. Other tasks retry. The fields below
     * without an atomic type belong to the task that holds this lock. */
    atomic_uint waking;
    /* the client that was last found stalled: its generation (16 bits), its id (16 bits), and the low 32 bits of its
     * pin; 0: none */
    _Atomic uint64_t stalled_client;
    _Atomic uint64_t refused_epoch; /* epoch at which an operation was last refused because of a stalled client */
    atomic_bool keep_active;        /* true if deferred work is left, so the handle must not become quiescent yet */
    _Atomic uint64_t pins_used_at;  /* time of the last tick that observed a pin taken or held */
    /* true after this handle found that its registry entry does not protect its pins any more because of damage; then
     * the handle takes no pin until it is closed */
    bool unprotected;
    bool write_unconfirmed;   /* true after a failed WRITE of our registry entry, which may still take effect */
    unsigned failed_advances; /* number of attempts to advance in a row that a published pin prevented */
    uint32_t answered;        /* number of the request that our registry entry acknowledges (pool/gc/request.h) */
} far_epochs;

/* Sets the epoch state of a handle that is being opened. A handle that may only read publishes no pins, so it is active
 * at the first epoch for ever, once far_epochs_open_reader was called. */
void far_epochs_open(far_epochs *epochs);
void far_epochs_open_reader(far_epochs *epochs);

/* Takes a pin for the task. If the handle was quiescent, this costs one background round trip, and the call returns its
 * errors. */
int far_pin_take(struct far_task *t);

/* Releases the pins of lost sessions of the handle. They stay counted until the session is known to be fenced, because
 * its verbs may still take effect. Called in a task of another session; fails if that session, or the system session,
 * is lost too. */
int far_pins_release_fenced(struct far_task *t);
bool far_pins_are_unfenced(far_pool *pool); /* true if a session was lost and is not known to be fenced yet */

uint64_t far_epoch(const struct far_task *t); /* epoch of the task's pin */
/* newest observed global epoch; at most one behind while the task is pinned */
uint64_t far_epoch_known(const struct far_task *t);
uint64_t far_epoch_safe(const struct far_task *t);       /* no client of the pool holds a pin below this epoch */
int far_epoch_read(struct far_task *t, uint64_t *epoch); /* reads the global epoch from far memory and sets *epoch */
void far_epoch_request(far_pool *pool);                  /* requests that the global epoch advances by one soon */

/* Returns the pause in ns before the next READ of a task that has polled for `waited` ns. The pause grows with the time
 * waited, between half a tick and 8 ticks, so that long waits cost few verbs. */
static inline uint64_t far_wait_pause(uint64_t waited, uint64_t tick) {
    return waited / 16 < tick / 2 ? tick / 2 : waited / 16 < 8 * tick ? waited / 16 : 8 * tick;
}

/* Waits, without a pin, until every pin of every client was taken at least k epochs after this call began. Returns 0
 * then, and 1 if `time` was reached first. */
int far_wait_epochs_until(struct far_task *t, unsigned k, uint64_t time);
/* Like far_wait_epochs_until without a time limit, for a task that holds a pin and perhaps a lock. The task gets a new
 * pin before it drops the old one, so it is pinned all the time. It is not throttled before it takes the new pin,
 * because other tasks may wait for its lock. */
int far_pin_after_epochs(struct far_task *t, unsigned k);

/* Called again and again by a task without a pin that waits for another task of its handle. Returns 0 if the task may
 * continue to wait, or FAR_ERR_BUSY if the other task probably waits for a stalled client (pool/epoch/stalled.h). */
int far_stall_wait(struct far_task *t);

/* Switches the throttling of a background walk on (`rests` true) or off. While it is on, the task sleeps before each
 * pin, nine times as long as it worked under the previous one. Has an effect only on fabrics that execute verbs on this
 * host's processors; on other fabrics a walk mostly waits for round trips and disturbs other tasks little. */
void far_task_throttle(struct far_task *t, bool rests);

/* Called by housekeeping, in an unpinned task of any session: reads the epoch, runs epoch hooks, publishes the oldest
 * pin or quiescence, acknowledges a request, and advances the epoch on demand. Returns 1 if the epoch advanced, so
 * another tick can do more at once; 0 if nothing more can be done now. Sends no verb if the handle is quiescent and no
 * advance is requested. */
int far_epoch_tick(struct far_task *t);
/* Compares the registry entries of this handle with their copies in local memory. Returns FAR_ERR_CORRUPT if an entry is
 * damaged; from then on, all calls of this handle that need a pin fail with this error. */
int far_epoch_check_entries(struct far_task *t);
/* Prevents the handle from becoming quiescent in the next tick, because deferred work is left. */
void far_epoch_keep_active(far_pool *pool);
/* returns true if only housekeeping has held pins for a while, so the handle may become quiescent */
bool far_epoch_is_idle(const struct far_task *t);
/* returns true if pins are held or were held recently, so ticks are needed */
bool far_epoch_is_active(const far_pool *pool);

#endif
