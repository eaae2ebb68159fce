/* The slow side of mutex.h: sleeping on a futex. */
#include "base/mutex.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>


/* A thread that slept takes it as WAITED_FOR: others may sleep still, and nobody else would know. */
void far_mutex_wait(far_mutex *mutex) {
    while (atomic_exchange_explicit(&mutex->word, FAR_MUTEX_WAITED_FOR, memory_order_acquire) != FAR_MUTEX_FREE)
        syscall(SYS_futex, &mutex->word, FUTEX_WAIT_PRIVATE, FAR_MUTEX_WAITED_FOR, NULL, NULL, 0);
}


void far_mutex_wake(far_mutex *mutex) {
    syscall(SYS_futex, &mutex->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
