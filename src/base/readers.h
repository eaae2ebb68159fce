/* Locks that readers share without writing to a line that they share: for local structures that are read at every
 * operation and changed now and then. One table serves many locks: a reader puts the number of the lock that it reads
 * under into a place of its own, so that readers neither wait for each other nor take lines from each other; a writer
 * takes the lock's word, which keeps new readers out, and then looks over all places until nobody has its number.
 *
 * Why nobody is missed: the reader takes its place, then looks at the word; the writer takes the word, then looks at
 * the places; all four are seq_cst, so at least one of the two sees the other.
 *
 * Held for a few instructions, never across a switch or a wait, like base/spin.h. */
#ifndef FAR_BASE_READERS_H
#define FAR_BASE_READERS_H

#include "base/spin.h"

#include <stdbool.h>

#define FAR_READERS 64 /* at a time; more of them wait */

typedef struct far_readers {
    struct {
        _Alignas(64) atomic_uint number; /* of the lock + 1; 0: nobody is here */
    } place[FAR_READERS];
} far_readers;


/* Where this thread looks for a place first. */
static inline unsigned far_readers_first(void) {
    static atomic_uint threads;
    static _Thread_local unsigned mine;
    if (!mine)
        mine = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % FAR_READERS + 1;
    return mine - 1;
}


/* Returns the reader's place, for far_readers_leave. */
static inline unsigned far_readers_enter(far_readers *r, const far_spin *lock, unsigned number) {
    unsigned at = far_readers_first();
    for (unsigned turn = 1;; turn++) {
        unsigned nobody = 0;
        if (atomic_load_explicit(lock, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong_explicit(&r->place[at].number, &nobody, number + 1, memory_order_seq_cst,
                                                    memory_order_relaxed)) {
            if (atomic_load_explicit(lock, memory_order_seq_cst) == 0)
                return at;
            atomic_store_explicit(&r->place[at].number, 0, memory_order_release);
        } else if (nobody)
            at = (at + 1) % FAR_READERS;
        if (turn % FAR_SPIN_TURNS == 0)
            sched_yield();
    }
}


static inline void far_readers_leave(far_readers *r, unsigned place) {
    atomic_store_explicit(&r->place[place].number, 0, memory_order_release);
}


/* The word is taken: until those who read are through. */
static inline void far_readers_wait(const far_readers *r, unsigned number) {
    for (unsigned i = 0; i < FAR_READERS; i++)
        for (unsigned turn = 1; atomic_load_explicit(&r->place[i].number, memory_order_seq_cst) == number + 1; turn++)
            if (turn % FAR_SPIN_TURNS == 0)
                sched_yield();
}


static inline bool far_writer_try(far_readers *r, far_spin *lock, unsigned number) {
    if (atomic_exchange_explicit(lock, 1, memory_order_seq_cst))
        return false;
    far_readers_wait(r, number);
    return true;
}


static inline void far_writer_enter(far_readers *r, far_spin *lock, unsigned number) {
    for (unsigned turn = 1; atomic_exchange_explicit(lock, 1, memory_order_seq_cst); turn++)
        while (atomic_load_explicit(lock, memory_order_relaxed))
            if (turn++ % FAR_SPIN_TURNS == 0)
                sched_yield();
    far_readers_wait(r, number);
}


static inline void far_writer_leave(far_spin *lock) {
    atomic_store_explicit(lock, 0, memory_order_release);
}

#endif
