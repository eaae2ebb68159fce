/* Latches: a queue in local memory, in front of a lock in far memory. Tasks of one handle that want the same far lock take
 * its latch first, so that only one of them at a time competes with other handles for the lock itself. First come, first
 * served; while a task waits, the other tasks of its session run.
 *
 * A latch says nothing about other handles. A task that waits for one keeps its pin, and so keeps memory from being reused:
 * a kind in which holders may wait long drops the pin first. A task that takes several latches takes them in rising order
 * of address, so that no two wait for each other; but for the pool's store, which comes last: its holder waits for no other
 * latch. */
#ifndef FAR_TASK_LATCH_H
#define FAR_TASK_LATCH_H

#include "task/task.h"

#define FAR_LATCHES_HELD_MAX 10 /* by one task, with those of the pool */

#define FAR_GIFT_WORDS 5

typedef struct far_latches far_latches; /* of a handle */

/* One for each latch that a task holds or waits for. It lies inside the task, so taking a latch needs no memory. */
typedef struct far_latch_hold {
    far_addr addr; /* 0: not in use */
    far_task *task;
    bool granted; /* this task holds the latch */
    bool gifted;  /* the last holder left a gift */
    uint64_t gift[FAR_GIFT_WORDS];
    struct far_latch_hold *next;                         /* if granted: in the bucket; else: in the holder's queue */
    struct far_latch_hold *first_waiting, *last_waiting; /* if granted: the queue of those that wait for the latch */
} far_latch_hold;

far_latches *far_latches_new(void);          /* NULL: no memory */
void far_latches_free(far_latches *latches); /* none is held */

void far_latch(far_task *t, far_addr addr);     /* waits; the task must not hold it already */
bool far_latch_try(far_task *t, far_addr addr); /* false: somebody holds it */
void far_unlatch(far_task *t, far_addr addr);   /* the task that has waited longest holds it next */

/* Gifts: a holder can hand the far lock itself to the next task of its handle, and tell it so, instead of releasing the lock
 * for the next one to take again. First it makes far memory say that the next task holds the lock, then it gives what that
 * task needs to know along with the latch. A task that waits never leaves the queue, so the next one stays the next one. */
far_task *far_latch_next(far_task *t, far_addr addr); /* t holds the latch. NULL: nobody waits for it */
unsigned far_latch_waiting(far_task *t, far_addr addr, unsigned most); /* how many; more than `most` are not counted */
void far_unlatch_gift(far_task *t, far_addr addr, const uint64_t gift[FAR_GIFT_WORDS]);
bool far_latch_gift(far_task *t, far_addr addr,
                    uint64_t gift[FAR_GIFT_WORDS]); /* after far_latch. False: there is none */

/* The task ends and should hold no latch: asserted. Without asserts those that it holds are given back. */
void far_unlatch_all(far_task *t);

#endif
