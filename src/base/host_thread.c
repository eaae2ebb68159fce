/* The real host (host.h): the monotonic clock, pthreads, and parking on a futex. */
#define _GNU_SOURCE
#include "base/host.h"
#include "farindex.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* time in ns for which a thread spins before it sleeps; for shorter waits, sleeping in the kernel costs more than
 * spinning */
#define SPIN_NS 20000u

enum { TOKEN_NONE, TOKEN_DUE, TOKEN_ASLEEP, TOKEN_AT_EVENT };

struct far_thread {
    pthread_t thread;
    void (*run)(void *arg);
    void *arg;
};


static void pause_processor(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}


static uint64_t thread_now(far_host *host) {
    (void)host;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}


static bool take_token(far_parker *parker) {
    unsigned due = TOKEN_DUE;
    return atomic_compare_exchange_strong_explicit(&parker->token, &due, TOKEN_NONE, memory_order_acquire,
                                                   memory_order_relaxed);
}


static void sleep_in_kernel(far_parker *parker, uint64_t ns) {
    unsigned none = TOKEN_NONE;
    if (!atomic_compare_exchange_strong_explicit(&parker->token, &none, TOKEN_ASLEEP, memory_order_relaxed,
                                                 memory_order_relaxed))
        return;
    struct timespec limit = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_futex, &parker->token, FUTEX_WAIT_PRIVATE, TOKEN_ASLEEP, ns == FAR_TIME_NEVER ? NULL : &limit, NULL, 0);
    unsigned asleep = TOKEN_ASLEEP;
    atomic_compare_exchange_strong_explicit(&parker->token, &asleep, TOKEN_NONE, memory_order_relaxed,
                                            memory_order_relaxed);
}


static void thread_park(far_host *host, far_parker *parker, uint64_t until) {
    for (unsigned turn = 0; !take_token(parker); turn++) {
        uint64_t now = thread_now(host);
        if (now >= until)
            return;
        if (until != FAR_TIME_NEVER && until - now < SPIN_NS) {
            if (turn % 64 == 63)
                /* gives the processor away, because on a busy machine the awaited thread may need this processor */
                sched_yield();
            else
                pause_processor();
        } else {
            sleep_in_kernel(parker, until == FAR_TIME_NEVER ? FAR_TIME_NEVER : until - now);
        }
    }
}


static void thread_unpark(far_host *host, far_parker *parker) {
    (void)host;
    uint64_t one = 1;
    unsigned before = atomic_exchange_explicit(&parker->token, TOKEN_DUE, memory_order_acq_rel);
    if (before == TOKEN_ASLEEP)
        syscall(SYS_futex, &parker->token, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    else if (before == TOKEN_AT_EVENT)
        while (write(parker->event, &one, sizeof(one)) < 0 && errno == EINTR)
            ;
}


bool far_parker_is_due(far_parker *parker) {
    return atomic_load_explicit(&parker->token, memory_order_relaxed) == TOKEN_DUE;
}


bool far_parker_arm(far_parker *parker) {
    unsigned none = TOKEN_NONE;
    if (take_token(parker))
        return false;
    if (atomic_compare_exchange_strong_explicit(&parker->token, &none, TOKEN_AT_EVENT, memory_order_acq_rel,
                                                memory_order_relaxed))
        return true;
    take_token(parker);
    return false;
}


/* Ends the time in which an unpark writes to the event. If the token is not TOKEN_AT_EVENT any more, an unpark has
 * replaced it and is going to write to the event. This function waits for that write, so that the caller may close the
 * event afterwards. */
void far_parker_disarm(far_parker *parker) {
    unsigned armed = TOKEN_AT_EVENT;
    uint64_t writes;
    if (atomic_compare_exchange_strong_explicit(&parker->token, &armed, TOKEN_NONE, memory_order_acq_rel,
                                                memory_order_relaxed))
        return;
    struct pollfd event = {.fd = parker->event, .events = POLLIN};
    while (poll(&event, 1, -1) < 0 && errno == EINTR)
        ;
    while (read(parker->event, &writes, sizeof(writes)) < 0 && errno == EINTR)
        ;
    take_token(parker);
}


static void *thread_main(void *arg) {
    far_thread *thread = arg;
    thread->run(thread->arg);
    return NULL;
}


static int thread_start(far_host *host, void (*run)(void *arg), void *arg, far_thread **thread) {
    (void)host;
    far_thread *made = malloc(sizeof(*made));
    if (!made)
        return FAR_ERR_NO_MEMORY;
    made->run = run;
    made->arg = arg;
    if (pthread_create(&made->thread, NULL, thread_main, made) != 0) {
        free(made);
        return FAR_ERR_NO_MEMORY;
    }
    *thread = made;
    return 0;
}


static void thread_join(far_host *host, far_thread *thread) {
    (void)host;
    pthread_join(thread->thread, NULL);
    free(thread);
}


static void thread_secret(far_host *host, void *bytes, size_t count) {
    (void)host;
    for (size_t done = 0; done < count;) {
        ssize_t got = getrandom((char *)bytes + done, count - done, 0);
        if (got > 0)
            done += (size_t)got;
        else if (errno != EINTR)
            abort(); /* a kernel without getrandom cannot provide secrets */
    }
}


static const far_host_ops thread_ops = {
    .now = thread_now,
    .park = thread_park,
    .unpark = thread_unpark,
    .start = thread_start,
    .join = thread_join,
    .secret = thread_secret,
};

far_host far_host_threads = {&thread_ops};
