/* The host: time, parking and threads. There are two implementations. The real one (host_thread.c) uses the clock and
 * pthreads. The simulator has a virtual one: one OS thread, in which every "thread" is a simulated client. All code
 * that waits or reads the time uses this interface, so the same code runs on both. */
#ifndef FAR_BASE_HOST_H
#define FAR_BASE_HOST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct far_host far_host;
typedef struct far_thread far_thread;

#define FAR_TIME_NEVER UINT64_MAX

/* The place where one thread waits. If the unpark comes before the park, it is not lost: the park returns at once. */
typedef struct far_parker {
    atomic_uint token; /* state of the parker; 1: an unpark is pending (host_thread.c defines more states) */
    void *waiter;      /* used only by the host's implementation */
    int event;         /* an eventfd to which an unpark writes while the thread sleeps on file descriptors; 0: none */
} far_parker;

typedef struct far_host_ops {
    uint64_t (*now)(far_host *host); /* returns the time in nanoseconds; it never decreases */
    /* Waits for an unpark, or until the time `until`. May also return early without a reason. At most one thread parks
     * on a parker at a time. */
    void (*park)(far_host *host, far_parker *parker, uint64_t until);
    /* Ends the wait of the thread that is parked at this parker, or makes its next park return at once. May be called
     * by any thread. */
    void (*unpark)(far_host *host, far_parker *parker);
    int (*start)(far_host *host, void (*run)(void *arg), void *arg, far_thread **thread);
    void (*join)(far_host *host, far_thread *thread); /* waits until the thread ends */
    /* Fills the buffer with unpredictable bytes, for example for keys of hashes. In the simulator the bytes are derived
     * from the seed. */
    void (*secret)(far_host *host, void *bytes, size_t count);
} far_host_ops;

struct far_host {
    const far_host_ops *ops;
};

extern far_host far_host_threads; /* the host with real time and threads (host_thread.c) */

/* These functions are for a thread on the real host that sleeps on file descriptors, including parker->event. Between
 * far_parker_arm and far_parker_disarm, an unpark writes to this event. If far_parker_arm returns false, an unpark was
 * pending and is consumed; then the thread must neither sleep nor call far_parker_disarm. After far_parker_disarm has
 * returned, no other thread is going to write to the event. */
/* returns true if an unpark is pending, which far_parker_arm would consume */
bool far_parker_is_due(far_parker *parker);
bool far_parker_arm(far_parker *parker);
void far_parker_disarm(far_parker *parker);


static inline uint64_t far_host_now(far_host *host) {
    return host->ops->now(host);
}

#endif
