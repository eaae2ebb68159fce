/* The parts of a sweep (sweep.c, release.c). */
#ifndef FAR_POOL_SWEEPING_H
#define FAR_POOL_SWEEPING_H

#include "pool/memory.h"
#include "pool/sweep.h"

typedef struct far_swept { /* a block in quarantine */
    far_block_id id;
    uint64_t stamp;
    uint32_t body_of; /* > 0: it lies so far behind the head of a run that its dead owner was making */
    bool run;
    uint64_t *met; /* bit per granule; a run: one bit; NULL: it holds no objects */
    uint64_t pages[FAR_BLOCK_PAGES];
} far_swept;

typedef struct far_sweeper {
    far_walk walk; /* first: the walk is told of this */
    far_task *t;
    const far_geometry *geometry;
    bool repair;
    bool only_dead; /* blocks of the dead, and runs */
    bool must_walk; /* also without blocks: the dead may hold locks */
    bool impatient; /* sleepers are not waited for */
    uint64_t word;  /* the sweep word, which is ours */
    uint32_t sequence;
    uint64_t cursor, next_cursor; /* a full sweep: the first block of this slice, of the next */
    bool more;                    /* there were more blocks than go into a slice */
    bool left;                    /* blocks had to be left in quarantine, for the next sweeper */
    far_swept *blocks;
    size_t count;
    uint32_t *place; /* by block number: 1 + its place in blocks, 0 = not swept */
    unsigned late;   /* handles that have not heard of it */
    struct far_dead {
        unsigned id, generation; /* id 0 = freed */
    } * dead;                    /* found while the sweep word was ours */
    size_t dead_count;
    uint32_t *uids; /* listed at the end */
    size_t uid_count;
    far_sweep_result result;
} far_sweeper;

int far_sweep_read_uids(far_sweeper *s);
int far_sweep_release_block(far_sweeper *s, far_swept *b);
int far_sweep_unmark(far_sweeper *s, far_block_id id); /* takes the flag off, and nothing else */

#endif
