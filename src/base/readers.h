/* Reader-writer locks for local structures that are read in every operation and rarely changed. Readers do not write to
 * a shared cache line, so they do not slow each other down. One table serves many locks. A reader stores the number of
 * its lock in a place of its own in the table. A writer takes the word of the lock, which keeps new readers out, and
 * then waits until no place contains the number of the lock.
 *
 * No reader is overlooked: the reader writes its place and then reads the word, and the writer writes the word and then
 * reads the places. All four accesses are seq_cst, so at least one of the two observes the other.
 *
 * These locks are held for a few instructions, and never across a coroutine switch or a wait, like base/spin.h. */
#ifndef FAR_BASE_READERS_H
#define FAR_BASE_READERS_H

#include "base/spin.h"

#include <stdbool.h>

/* number of places in the table, and so the largest number of readers at a time; further readers wait */
#define FAR_READERS 64

typedef struct far_readers {
    struct {
        _Alignas(64) atomic_uint number; /* number of the lock + 1; 0: the place is free */
    } place[FAR_READERS];
} far_readers;


/* Returns the place in the table that this thread tries first. */
static inline unsigned far_readers_first(void) {
    static atomic_uint threads;
    static _Thread_local unsigned mine;
    if (!mine)
        mine = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % FAR_READERS + 1;
    return mine - 1;
}


/* Enters the lock as a reader. Returns the reader's place in the table, which far_readers_leave needs. */
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


/* Waits until no reader is inside the lock with this number. The caller is a writer and has taken the word of the lock,
 * so no new reader can enter. */
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
