/* The sweep: finds memory that nobody has, beside live clients. One handle sweeps at a time:
 *
 *   1. It becomes the sweeper (request.h), asks for all clients whether they live, and takes the blocks of the dead.
 *   2. A request, `walk` on. When all have answered, nobody has a foreign object in hand that it got before.
 *   3. It walks every index once, and writes what it met as marks into far memory. What it met and what is home cannot be the
 *      same (false_home.h).
 *   4. A second request, `walk` off. When all have answered, what they unlinked during the walk is home.
 *   5. DONE: every owner settles its own blocks (settle.c). The sweeper frees runs that were not met, adopts orphans
 *      with something to settle, and frees the ids of the dead. */
#ifndef FAR_POOL_SWEEP_H
#define FAR_POOL_SWEEP_H

#include "pool/superblock.h"

/* What a walk reports to: every object linked throughout the walk. Whoever starts a walk puts this first into a struct
 * of its own. */
typedef struct far_walk far_walk;
struct far_walk {
    int (*object)(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size); /* 0 or an error */
    bool once; /* to measure: an object that was reported should not be again, and one that is just being moved may be
                  missed */
};


static inline int far_walk_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    return walk->object(walk, index, type, addr, size);
}


typedef enum {
    FAR_SWEEP_SLOWLY, /* in the background: leaves others nine tenths of the time */
    FAR_SWEEP_REPAIR, /* at full speed, and waits until all owners have settled */
    FAR_SWEEP_COUNT,  /* finds what is lost and counts it, but frees nothing */
    FAR_SWEEP_SHORT,  /* as a repair, for one who is short of memory: it gives up when the epoch stands still */
} far_sweep_mode;

#define FAR_FALSE_HOME_WORDS 192

typedef struct far_sweep_result {
    uint64_t leaked_bytes;   /* not reachable, not free */
    uint64_t repaired_bytes; /* of them, freed */
    unsigned dead_clients;   /* whose ids became free */
    unsigned false_homes;    /* objects in use that were said to be free (false_home.h); but for a count, put right */
    char false_home[FAR_FALSE_HOME_WORDS]; /* in words: the first of them */
} far_sweep_result;

/* Without a pin. FAR_ERR_BUSY: a live client is sweeping. 1: given up, because somebody does not answer while the epoch stands
 * (not in the background, where nobody waits for it). */
int far_sweep(far_task *t, far_sweep_mode mode, far_sweep_result *result);

/* The request word, as a tick last read it, says that a session of this handle sweeps, and none does: everybody would wait for
 * that. Only who is named can know; it takes its name away. */
bool far_sweep_is_said_of_us(far_pool *pool);
int far_sweep_deny(far_task *t);

#endif
