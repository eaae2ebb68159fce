/* The leak sweep: finds what no index reaches in a set of blocks, beside live clients.
 *
 * The sweep word on node 0: owner id 14 | owner generation 16 << 14 | phase 2 << 30 | sequence 32 << 32.
 *   phase 0  none runs; or, with an owner, one is choosing and stamping its blocks
 *   phase 1  quarantine: the blocks of sequence number s carry it in their stamp. Every handle, before its next epoch
 * or on waking, gives back through the bitmaps what it holds free or retired there, stops allocating there, and gives
 * back in the same way, at once, what it retires there from then on. phase 2  the walk is over: handles retire normally
 * again. After more epochs, so that everything given back is past its time, the blocks are released. A handle that
 * slept through phases compares stamps with the last sequence it saw and forgets what it holds in blocks where a sweep
 * since then may have freed what it did not meet (the high half of the stamp, written before phase 2).
 * Whatever a walk did not meet and whose bit is clear at the end is leaked: freed (repair), or counted.
 * The owner died, or could not go on and left the word without an owner in phase 2: the next sweeper starts over with a
 * new sequence number, and covers all blocks still in quarantine. */
#ifndef FAR_POOL_SWEEP_H
#define FAR_POOL_SWEEP_H

#include "pool/superblock.h"

typedef enum { FAR_SWEEP_NONE, FAR_SWEEP_QUARANTINE, FAR_SWEEP_RELEASING } far_sweep_phase;


static inline uint64_t far_sweep_pack(unsigned id, unsigned generation, far_sweep_phase phase, uint32_t sequence) {
    return (uint64_t)id | (uint64_t)generation << 14 | (uint64_t)phase << 30 | (uint64_t)sequence << 32;
}


static inline unsigned far_sweep_owner(uint64_t word) {
    return (unsigned)word & 0x3fff;
}


static inline unsigned far_sweep_generation(uint64_t word) {
    return (unsigned)(word >> 14) & 0xffff;
}


static inline far_sweep_phase far_sweep_phase_of(uint64_t word) {
    return (far_sweep_phase)(word >> 30 & 3);
}


static inline uint32_t far_sweep_sequence(uint64_t word) {
    return (uint32_t)(word >> 32);
}


/* What a walk reports to: every object linked throughout the walk. Whoever starts a walk puts this first into a struct
 * of its own. */
typedef struct far_walk far_walk;
struct far_walk {
    int (*object)(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size); /* 0 or an error */
    bool once; /* it measures: an object that was reported should not be again, and one that is just being moved may be
                  missed */
};


static inline int far_walk_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    return walk->object(walk, index, type, addr, size);
}


typedef struct far_sweep_result {
    uint64_t leaked_bytes;   /* not reachable, not free */
    uint64_t repaired_bytes; /* of them, freed */
    unsigned dead_clients;   /* whose ids became free */
} far_sweep_result;

/* Sweeps the blocks of dead sessions (all = false) or all blocks in turn, without a pin. FAR_ERR_BUSY: a live client is
 * sweeping. */
int far_sweep(far_task *t, bool all, bool repair, far_sweep_result *result);

/* The handle saw this sweep word at its last epoch or waking: does what the phases ask. Called before the handle's next
 * pin. */
int far_sweep_observe(far_task *t, uint64_t word);

#endif
