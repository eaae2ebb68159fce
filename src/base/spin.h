/* A spin lock that is held for a few instructions. It is never held across a coroutine switch or a wait, so in the
 * simulator it is always free. */
#ifndef FAR_BASE_SPIN_H
#define FAR_BASE_SPIN_H

#include <sched.h>
#include <stdatomic.h>

typedef atomic_uint far_spin;

/* Number of times that a waiting thread reads the lock before it yields its processor, which the holder of the lock may
 * need. */
#define FAR_SPIN_TURNS 64


static inline void far_spin_lock(far_spin *lock) {
    for (unsigned turn = 1; atomic_exchange_explicit(lock, 1, memory_order_acquire); turn++)
        while (atomic_load_explicit(lock, memory_order_relaxed)) {
            if (turn++ % FAR_SPIN_TURNS == 0)
                sched_yield();
#if defined(__x86_64__)
            else
                __builtin_ia32_pause();
#elif defined(__aarch64__)
            else
                __asm__ volatile("yield");
#endif
        }
}


static inline void far_spin_unlock(far_spin *lock) {
    atomic_store_explicit(lock, 0, memory_order_release);
}

#endif
