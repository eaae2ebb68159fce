/* Latches: local queues in front of locks in far memory. Tasks of one handle that want the same far lock take its latch
 * first, so that only one task competes with other handles for the far lock. A latch is granted in the order of
 * requests. While a task waits for a latch, the other tasks of its session run.
 *
 * A latch protects nothing against other handles. A task that waits for a latch keeps its pin, so it delays the reuse
 * of memory. An index kind with long waits drops the pin first. A task that takes several latches takes them in
 * ascending order of their addresses, so that no deadlock is possible. The exception is the latch of the pool's
 * allocator: it is taken last, and its holder waits for no other latch. */
#ifndef FAR_TASK_LATCH_H
#define FAR_TASK_LATCH_H

#include "task/task.h"

#define FAR_LATCHES_HELD_MAX 10 /* limit per task, including the latches that the pool takes */

#define FAR_HANDOVER_WORDS 5

typedef struct far_latches far_latches; /* the latches of one handle */

/* A latch that a task holds or waits for. It is a part of the task, so taking a latch allocates no memory. */
typedef struct far_latch_hold {
    far_addr addr; /* far address that the latch stands for; 0: this struct is not in use */
    far_task *task;
    bool granted;      /* true if the task holds the latch, false while it waits */
    bool has_handover; /* the previous holder has left handover state */
    uint64_t handover[FAR_HANDOVER_WORDS];
    /* if the task holds the latch: next held latch in the same bucket; if it waits: next task in the queue */
    struct far_latch_hold *next;
    /* of the task that holds the latch: first and last task in the queue for this latch */
    struct far_latch_hold *first_waiting, *last_waiting;
} far_latch_hold;

far_latches *far_latches_new(void);          /* returns NULL if the process is out of memory */
void far_latches_free(far_latches *latches); /* frees the latches of a handle; no latch may be held */

void far_latch(far_task *t, far_addr addr);     /* Waits for the latch. The task must not hold it already. */
/* Takes the latch if it is free and returns true; returns false at once if another task holds it. */
bool far_latch_try(far_task *t, far_addr addr);
/* Releases the latch. The task that has waited longest becomes the next holder. */
void far_unlatch(far_task *t, far_addr addr);

/* Handover: the holder can pass the far lock itself to the next task of its handle, instead of releasing it so that the
 * next task must lock it again. First the holder writes to far memory that the next task owns the far lock. Then it
 * releases the latch together with some words of state that the next owner needs. A waiting task never leaves the
 * queue, so the task that far_latch_next returns stays the next one. */
/* Returns the task that will hold the latch next, or NULL if no task waits for it. The calling task must hold the
 * latch. */
far_task *far_latch_next(far_task *t, far_addr addr);
/* Returns the number of waiting tasks, at most `most`. */
unsigned far_latch_waiting(far_task *t, far_addr addr, unsigned most);
void far_unlatch_handover(far_task *t, far_addr addr, const uint64_t gift[FAR_HANDOVER_WORDS]);
/* Called after far_latch. Returns the state that the previous holder has left, or false if there is none. */
bool far_latch_take_handover(far_task *t, far_addr addr, uint64_t gift[FAR_HANDOVER_WORDS]);

/* Called when a task ends. A task must not hold a latch then, which an assert checks. Without asserts its latches are
 * released. */
void far_unlatch_all(far_task *t);

#endif
