/* Epochs. An operation holds a pin from before its first look at anything shared until its last verb completed. Pins
 * are local; a handle publishes the epoch of its oldest pin in its registry entry, off the operations' path, or nothing
 * when it is idle.
 *
 * The epoch goes from e to e+1 by CAS when no published word is below e: so while a pin at e is held the epoch is e or
 * e+1. What is retired under a pin at e is stamped e+1 and reused when the epoch is at least e+4 (stamp + 3): every pin
 * is then at e+3 or later. It moves on demand only: far_epoch_request, far_wait_epochs_until, retired memory piling up. */
#ifndef FAR_POOL_EPOCH_H
#define FAR_POOL_EPOCH_H

#include "fabric/fabric.h"
#include "farindex.h"
#include "task/pin.h"

#include <pthread.h>
#include <stdatomic.h>

struct far_task;

typedef struct far_epochs {     /* of a handle; see epoch.c for the states */
    _Atomic uint64_t current;   /* epoch of new pins; 0 = asleep: the next pin must wake the handle first */
    _Atomic uint64_t known;     /* newest value of the global epoch seen */
    _Atomic uint64_t published; /* what our registry word says; 0 = none */
    atomic_uint requests;       /* wishes for an advance not yet served */
    atomic_uint waking; /* 1: a task is waking the handle or moves it on; others wait. The rest belongs to that task */
    _Atomic uint64_t held_up; /* the epoch at which an operation was refused that waited for one who is stopped */
    atomic_bool keep_awake;   /* delayed work is to be done: not to fall asleep yet */
    _Atomic uint64_t used_at; /* time of the last tick that saw a pin taken or held */
    bool unsure;              /* a WRITE of our word failed: it may still take effect */
    unsigned blocked;         /* attempts to advance in a row that a published word forbade */
    uint32_t answered;        /* the request that our registry entry says was answered (pool/request.h) */
} far_epochs;

/* Takes a pin for the task; when the handle was idle this costs one background round trip. Errors of that round trip.
 */
int far_pin_take(struct far_task *t);

/* The pins of lost sessions of the handle: their verbs may take effect until they are fenced. From a task of another
 * session; an error if that one, or the handle's own, is lost too. */
int far_pins_settle(struct far_task *t);
bool far_pins_are_stuck(far_pool *pool); /* a session was lost, and it is not known yet that it is fenced */

uint64_t far_epoch(const struct far_task *t);            /* of the task's pin */
uint64_t far_epoch_known(const struct far_task *t);      /* the global epoch, one behind at most while pinned */
uint64_t far_epoch_safe(const struct far_task *t);       /* every pin of anybody is at this epoch or later */
int far_epoch_read(struct far_task *t, uint64_t *epoch); /* by a READ */
void far_epoch_request(far_pool *pool);                  /* asks for the epoch to move by one, soon */

/* How long to pause before the next look, after a wait of so long: a wait that lasts costs few verbs. */
static inline uint64_t far_wait_pause(uint64_t waited, uint64_t tick) {
    return waited / 16 < tick / 2 ? tick / 2 : waited / 16 < 8 * tick ? waited / 16 : 8 * tick;
}

/* Without a pin: waits until every pin of anybody is one that was taken k epochs after this call began. 1: not by that time. */
int far_wait_epochs_until(struct far_task *t, unsigned k, uint64_t time);
/* The same without an end, for a pinned task, which has a new pin then, and is never without one. It may hold a lock: it does not rest
 * before it takes the pin. */
int far_pin_after_epochs(struct far_task *t, unsigned k);

/* From now on the task sleeps before each pin that it takes, nine times as long as it worked since the last one: for
 * walks in the background. Only where verbs are work of this host's processors: elsewhere a walk waits for its round
 * trips, and is one client among many. */
void far_task_rest_between_pins(struct far_task *t, bool rests);

/* Housekeeping: learns the epoch, runs epoch hooks, publishes the oldest pin or none, advances on demand. From an
 * unpinned task of any session of the handle. 1: the epoch moved, more can be done at once. 0: nothing more to do now.
 * No verb when the handle sleeps and nobody asks. */
int far_epoch_tick(struct far_task *t);
bool far_epoch_is_idle(const struct far_task *t); /* no pin but housekeeping's own was held for a while: it may sleep */
bool far_epoch_is_awake(const far_pool *pool);    /* pins are, or were a short time ago, held: ticks are needed */

#endif
