/* The host: time, parking and threads. Real (host_thread.c: the clock and pthreads) or virtual (the simulator: one OS
 * thread, every "thread" a simulated client). Whatever waits or asks for the time does so through here, so that the
 * same code runs on both. */
#ifndef FAR_BASE_HOST_H
#define FAR_BASE_HOST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct far_host far_host;
typedef struct far_thread far_thread;

#define FAR_TIME_NEVER UINT64_MAX

/* Where one thread waits. An unpark that comes before the park is not lost: the park then returns at once. */
typedef struct far_parker {
    atomic_uint token; /* 1: an unpark is due */
    void *waiter;      /* of the host */
    int event; /* an eventfd that an unpark writes to while the thread sleeps on descriptors; 0: there is none */
} far_parker;

typedef struct far_host_ops {
    uint64_t (*now)(far_host *host); /* nanoseconds, never going back */
    /* Waits for an unpark or until the time `until`; may return early for no reason. One thread parks on a parker at a
     * time. */
    void (*park)(far_host *host, far_parker *parker, uint64_t until);
    void (*unpark)(far_host *host, far_parker *parker); /* from any thread */
    int (*start)(far_host *host, void (*run)(void *arg), void *arg, far_thread **thread);
    void (*join)(far_host *host, far_thread *thread); /* waits for its end */
    void (*secret)(far_host *host, void *bytes,
                   size_t count); /* unpredictable bytes; in the simulator drawn from the seed */
} far_host_ops;

struct far_host {
    const far_host_ops *ops;
};

extern far_host far_host_threads; /* the real one */

/* On the real host, for a thread that sleeps on descriptors, parker->event among them: after arm, until disarm, an
 * unpark writes to it. False: an unpark was due, and is taken; do not sleep, nor disarm. When disarm has returned
 * nobody is about to write to the event any more. */
bool far_parker_is_due(far_parker *parker); /* an unpark is due: arm would take it */
bool far_parker_arm(far_parker *parker);
void far_parker_disarm(far_parker *parker);


static inline uint64_t far_host_now(far_host *host) {
    return host->ops->now(host);
}

#endif
