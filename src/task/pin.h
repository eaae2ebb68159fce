/* Pins as tasks and sessions count them. A pin at an epoch keeps what was alive then from being reused while it is
 * held; which epoch a new pin gets, and how pins hold up the epoch, is the pool's business (pool/epoch.h). */
#ifndef FAR_TASK_PIN_H
#define FAR_TASK_PIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct far_task;

typedef struct far_pin {
    uint64_t epoch; /* 0: none held */
    uint64_t clock; /* of the fabric's watch */
} far_pin;

typedef struct far_session_pins {
    atomic_uint held[2]; /* pins at even and at odd epochs: no others can be held at once */
    atomic_bool used;    /* a pin was taken since housekeeping looked */
    atomic_bool stuck;   /* the session is lost: its pins stay counted until it is known to be fenced */
} far_session_pins;

/* far_pin_count, far_pin_uncount: task/session.h, where every operation finds them inline. */
void far_pin_drop(struct far_task *t); /* nothing when none is held */
/* A task that a pinned one starts holds a pin at its epoch too. */
void far_pin_share(const struct far_task *from, struct far_task *to);

#endif
