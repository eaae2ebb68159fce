/* Far memory for indexes. Objects come from slabs of one type and size inside blocks that the session owns, without any
 * verb; freed and retired objects go to lists of the session, whatever block they lie in. See alloc.c for the rules,
 * blocks.h for the tables.
 *
 * Sizes are rounded up: steps of 16 bytes to 4 KiB, then at most 3 % more. */
#ifndef FAR_POOL_ALLOC_H
#define FAR_POOL_ALLOC_H

#include "fabric/fabric.h"
#include "farindex.h"

struct far_task;
struct far_memory; /* what a session holds */

/* A kind of object an index declares. Memory of a stable type is only ever reused for that type and size (until the
 * index is dropped), is zero when fresh, is untouched between retire and reuse, and holds no allocator data while free.
 */
typedef struct far_type {
    const char *name;
    bool stable;
    uint8_t align;         /* 16, 32 or 64 */
    uint16_t extra_epochs; /* wait this many epochs longer before reuse */
    /* Runs when an object is about to become free; may post verbs. 0: free, and *cookie stays with it; 1: not yet, ask
     * again after an epoch; negative: an error. NULL: nothing to do, cookie 0. */
    int (*reclaim)(struct far_task *t, far_index *index, far_addr addr, uint64_t size, uint64_t *cookie);
    /* The cookie of a free object that another client left to the pool. NULL: 0. */
    int (*recover)(struct far_task *t, far_index *index, far_addr addr, uint64_t size, uint64_t *cookie);
} far_type;

typedef struct far_object {
    far_addr addr;
    uint64_t size;   /* as rounded */
    bool used;       /* the memory was in use before (wiped or not) */
    uint64_t cookie; /* left by the reclaim hook */
    uint64_t epoch;  /* the caller's pin when it was allocated */
} far_object;

#define FAR_NODE_ANY (~0u)

enum {
    FAR_ALLOC_ZERO = 1,    /* all bytes zero (costs a WRITE and a wait only for used memory) */
    FAR_ALLOC_ON_NODE = 2, /* the node is a must, not a wish */
    FAR_ALLOC_RESERVE =
        4,              /* may take from the reserve that the index declared: to finish what cannot be left half done */
    FAR_ALLOC_KEEP = 8, /* stays this session's own (redo records): survives sweeps, is freed when the session ends */
};

/* A session's hold on far memory, from after its registration until before it is unregistered. Close gives everything
 * back to the pool; it frees the memory of this process also when the session is lost. Tick: frees retired objects
 * whose time has come, collects what others gave back; run by housekeeping in a task of that session. */
int far_memory_open(far_session *s);
int far_memory_close(struct far_task *t);
int far_memory_tick(struct far_task *t);
bool far_memory_wants_tick(
    far_session *s); /* it is quiet, and others do not know yet what it holds; or they are short */
bool far_memory_is_untold(far_pool *pool); /* others do not know yet what some session of the handle holds */
void far_quarantine_free(far_pool *pool);  /* the last of the handle */

/* For an operation that said FAR_ERR_NO_MEMORY (unpinned and with nothing in flight, or it will be): waits for memory
 * that comes back in this handle, in line with others, and runs it again, until it says something else or nothing is
 * left to wait for. */
int far_run_hungry(struct far_task *t, int (*run)(struct far_task *t, void *arg), void *arg);
bool far_memory_hear(far_pool *pool, uint64_t word); /* FAR_SUPER_SHORT, as it was just read; true: it is news */
bool far_memory_has_some(
    far_pool *pool,
    bool all); /* the handle holds memory of indexes that are closed here; all: or any that others could use */
void far_memory_help(struct far_task *t); /* an operation begins: others may be waiting for what its session has */

/* The last close of an index in this handle (or the end of one that was never shown): its far_index goes away. */
void far_memory_index_closed(far_pool *pool, far_index *index);

/* The index with this uid is not listed any more, or never was: all its memory goes back, after some epochs, in ticks.
 * Every session frees its own slabs of it, this one the runs and what lies in orphaned blocks. With a pin. */
int far_blocks_drop_uid(struct far_task *t, uint32_t uid);

/* Where the bytes of the pool are: total = used + retired + free + leaked. Sets these five. Exact when nothing is under
 * way. */
int far_memory_stat(struct far_task *t, far_pool_usage *usage);

/* The tables of the allocator are sound. Without a pin. */
struct far_report;
int far_memory_check(struct far_task *t, struct far_report *report);

uint64_t far_alloc_round(uint64_t size);

/* With a pin, which is held until the object is linked (or freed): a sweep takes what it does not find linked. index
 * NULL: memory of the pool itself. FAR_ERR_NO_MEMORY when the pool (or the node, if a must) is full. */
int far_alloc(struct far_task *t, far_index *index, unsigned type, uint64_t size, unsigned node, unsigned flags,
              far_object *object);

/* An object that was never shown to others: reusable at once (its cookie comes from the recover hook then). All verbs
 * to it have completed. */
void far_free(struct far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size);

/* An object that this operation unlinked, under the same pin: reusable when nobody can hold it any more. */
void far_retire(struct far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size);

#endif
