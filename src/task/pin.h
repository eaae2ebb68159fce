/* Pins of tasks and sessions. While a task holds a pin at an epoch, far objects that were linked in that epoch are not
 * reused. This header counts pins. The pool decides which epoch a new pin gets, and when the epoch may advance
 * (pool/epoch/epoch.h). */
#ifndef FAR_TASK_PIN_H
#define FAR_TASK_PIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct far_task;

typedef struct far_pin {
    uint64_t epoch; /* epoch of the pin; 0: the task holds no pin */
    uint64_t clock; /* time at which the pin was taken, by the clock of the simulator's memory checker */
} far_pin;

typedef struct far_session_pins {
    /* Number of pins at even and at odd epochs; pins of at most two consecutive epochs can be held at one time. */
    atomic_uint held[2];
    atomic_bool used;  /* true if a pin was taken since housekeeping last cleared this flag */
    atomic_bool stuck; /* the session is lost, so its pins stay counted until its fence is confirmed */
} far_session_pins;

/* far_pin_count and far_pin_uncount are inline functions in task/session.h. */
void far_pin_drop(struct far_task *t); /* releases the pin of the task; does nothing if it holds no pin */
/* Gives a task that was spawned by a pinned task a pin at the same epoch. */
void far_pin_share(const struct far_task *from, struct far_task *to);

#endif
