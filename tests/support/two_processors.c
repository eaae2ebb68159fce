/* Two threads that run at the same time, each on its own processor (two_processors.h). */
#define _GNU_SOURCE
#include "two_processors.h"

#include <pthread.h>
#include <sched.h>


void pin_to_processor(unsigned number) {
    cpu_set_t allowed, mine;
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0 || CPU_COUNT(&allowed) < 2)
        return;
    for (unsigned i = 0, seen = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &allowed) && seen++ == number)
            CPU_SET(i, &mine);
    pthread_setaffinity_np(pthread_self(), sizeof(mine), &mine);
}


void wait_for_other_thread(atomic_ullong *arrived, uint64_t meeting) {
    atomic_fetch_add_explicit(arrived, 1, memory_order_acq_rel);
    for (unsigned spins = 0; atomic_load_explicit(arrived, memory_order_acquire) < 2 * meeting; spins++)
        if (spins % 100000 == 99999)
            sched_yield();
}
