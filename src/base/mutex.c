/* The slow paths of mutex.h, in which a thread sleeps on a futex until the mutex is free. */
#include "base/mutex.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>


/* Sleeps until this thread has taken the mutex. A thread that may have slept marks the mutex as WAITED_FOR when it
 * takes it, because other threads may still be asleep. The mark makes the next unlock wake one of them. */
void far_mutex_wait(far_mutex *mutex) {
    while (atomic_exchange_explicit(&mutex->word, FAR_MUTEX_WAITED_FOR, memory_order_acquire) != FAR_MUTEX_FREE)
        syscall(SYS_futex, &mutex->word, FUTEX_WAIT_PRIVATE, FAR_MUTEX_WAITED_FOR, NULL, NULL, 0);
}


void far_mutex_wake(far_mutex *mutex) {
    syscall(SYS_futex, &mutex->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
