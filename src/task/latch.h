/* Latches: the tasks of all sessions of a handle queue for a far address, so that only one of them at a time competes
 * for the lock there with the other compute nodes. First come, first served; a task that waits lets the others of its
 * session run.
 *
 * A latch is local and says nothing about other handles. Whoever waits for one keeps its pin: an index whose holders
 * may wait long for others drops it first. Several latches are taken in rising order of address. */
#ifndef FAR_TASK_LATCH_H
#define FAR_TASK_LATCH_H

#include "task/task.h"

#define FAR_LATCHES_HELD_MAX 10 /* by one task, with those of the pool */

#define FAR_GIFT_WORDS 5

typedef struct far_latches far_latches; /* of a handle */

/* One per latch that a task holds or waits for; lies inside the task, so that taking a latch never fails. */
typedef struct far_latch_hold {
    far_addr addr; /* 0: not in use */
    far_task *task;
    bool granted, gifted;
    uint64_t gift[FAR_GIFT_WORDS];                       /* from who had it before */
    struct far_latch_hold *next;                         /* the holder: in the bucket; one that waits: in the queue */
    struct far_latch_hold *first_waiting, *last_waiting; /* the holder's: the queue */
} far_latch_hold;

far_latches *far_latches_new(void);          /* NULL: no memory */
void far_latches_free(far_latches *latches); /* none is held */

void far_latch(far_task *t, far_addr addr);     /* waits; the task must not hold it already */
bool far_latch_try(far_task *t, far_addr addr); /* false: somebody holds it */
void far_unlatch(far_task *t, far_addr addr);   /* hands it to the one that waits longest */

/* Passing on what the latch stands for: a holder that knows who is next may give it what far memory says in its name
 * already. Who waits does not leave the queue, so the next one stays the next one. */
far_task *far_latch_next(far_task *t, far_addr addr); /* NULL: nobody waits; t holds it */
void far_unlatch_gift(far_task *t, far_addr addr, const uint64_t gift[FAR_GIFT_WORDS]);
bool far_latch_gift(far_task *t, far_addr addr, uint64_t gift[FAR_GIFT_WORDS]); /* after far_latch. False: none */

void far_unlatch_all(far_task *t); /* the task ends: it must hold none; if it does, they are given back all the same */

#endif
