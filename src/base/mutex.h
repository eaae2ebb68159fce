/* A mutex that is nearly always free. Taking it and freeing it is one inline atomic instruction each. A thread that
 * finds it held sleeps in the kernel. It works within one process and must not be held across a switch of coroutines.
 */
#ifndef FAR_BASE_MUTEX_H
#define FAR_BASE_MUTEX_H

#include <stdatomic.h>
#include <stdbool.h>

enum { FAR_MUTEX_FREE, FAR_MUTEX_HELD, FAR_MUTEX_WAITED_FOR };

typedef struct far_mutex {
    atomic_uint word; /* state of the mutex: one of the values defined above; zeroed memory is a free mutex */
} far_mutex;

void far_mutex_wait(far_mutex *mutex); /* sleeps until the calling thread holds the mutex */
void far_mutex_wake(far_mutex *mutex); /* wakes one thread that waits for the mutex */


static inline bool far_mutex_try(far_mutex *mutex) {
    unsigned free = FAR_MUTEX_FREE;
    return atomic_compare_exchange_strong_explicit(&mutex->word, &free, FAR_MUTEX_HELD, memory_order_acquire,
                                                   memory_order_relaxed);
}


static inline void far_mutex_lock(far_mutex *mutex) {
    if (!far_mutex_try(mutex))
        far_mutex_wait(mutex);
}


static inline void far_mutex_unlock(far_mutex *mutex) {
    if (atomic_exchange_explicit(&mutex->word, FAR_MUTEX_FREE, memory_order_release) == FAR_MUTEX_WAITED_FOR)
        far_mutex_wake(mutex);
}

#endif
