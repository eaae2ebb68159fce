/* Far memory for indexes. Objects come from slabs of one type and size inside blocks that the handle owns, without any
 * verb; freed and retired objects are reused by the handle that freed them, whatever block they lie in. README.md in
 * this folder tells how; blocks.h has the tables.
 *
 * Sizes are rounded up: steps of 16 bytes to 4 KiB, then at most 3 % more. */
#ifndef FAR_POOL_ALLOC_H
#define FAR_POOL_ALLOC_H

#include "fabric/fabric.h"
#include "farindex.h"

#define FAR_GRANULE 16u /* bytes: every object begins at a multiple of it, and takes one */

struct far_task;

/* A kind of object an index declares. Memory of a stable type is only ever reused for that type and size (until the
 * index is dropped), is zero when fresh, is untouched between retire and reuse, and holds no allocator data while free.
 */
typedef struct far_type {
    const char *name;
    bool stable;
    uint8_t align;         /* 16, 32 or 64 */
    uint16_t extra_epochs; /* wait this many epochs longer before reuse */
    bool swapped;          /* updates replace one by another: the last free one of a size is theirs (t->swaps) */
} far_type;

typedef struct far_object {
    far_addr addr;
    uint64_t size;  /* as rounded */
    bool used;      /* the memory was in use before (wiped or not) */
    uint64_t epoch; /* the caller's pin when it was allocated */
} far_object;

#define FAR_NODE_ANY (~0u)

enum {
    FAR_ALLOC_ZERO = 1,    /* all bytes zero (costs a WRITE and a wait only for used memory) */
    FAR_ALLOC_ON_NODE = 2, /* the node is a must, not a wish */
    FAR_ALLOC_RESERVE =
        4,              /* may take from the reserve that the index declared: to finish what cannot be left half done */
    FAR_ALLOC_KEEP = 8, /* stays this session's own (redo records): survives sweeps, is freed when the session ends */
};

/* What a handle holds of far memory: from after the registration of its own session until before that is unregistered.
 * far_memory_end gives everything back to the pool; far_store_free frees memory of this process only. */
int far_store_open(far_pool *pool);
int far_memory_end(struct far_task *t); /* in its own session, when all others are closed */
void far_store_free(far_pool *pool);

/* A session joins and leaves the store of its handle: no verb. */
int far_memory_open(far_session *s);
void far_memory_close(far_session *s);

/* Housekeeping, from an unpinned task of any session of the handle: frees retired objects whose time has come, brings
 * home what a request asks for, settles sweeps. 1: there is more to be done at once. Nothing while the handle sleeps.
 */
int far_memory_tick(struct far_task *t);
bool far_memory_is_untold(far_pool *pool); /* the registry does not say yet what the handle holds */
bool far_memory_may_sleep(far_pool *pool); /* the handle holds nothing that others may have to wait for */
bool far_memory_is_wanted(far_pool *pool, uint64_t request); /* asleep: it should wake, for what the request says */
int far_memory_give_up_blocks(struct far_task *t);

/* For an operation that said FAR_ERR_NO_MEMORY: waits for memory that comes back, in line with others, and runs it
 * again, until it says something else or nothing is left to wait for. */
int far_run_short(struct far_task *t, int (*run)(struct far_task *t, void *arg), void *arg);

/* The last close of an index in this handle (or the end of one that was never shown): its far_index goes away. */
void far_memory_index_closed(far_pool *pool, far_index *index);

/* This handle has taken an index off the list, or given up creating one: its memory is given back later (unlisted.c). */
void far_memory_dropped(far_pool *pool, uint32_t uid);

/* Looks for slabs of indexes that are gone, and frees them: unpinned, waits for answers with that patience. 1: some are
 * left (unlisted.c). */
int far_unlisted_collect(struct far_task *t, uint64_t patience);
bool far_unlisted_is_due(far_pool *pool); /* the catalog changed, or this handle has dropped an index */

/* A session of the handle was lost and is fenced: what its operations had in hand a sweep finds. */
void far_memory_lost_some(far_pool *pool);

/* Where the bytes of the pool are: total = used + retired + free + leaked. Sets these five. Exact when nothing is under
 * way. `each`, if it is not NULL, is told of every slab and run with the bytes of it that are in use by an index (uid 0: by
 * the pool), or held by the handle that owns it. */
int far_memory_stat(struct far_task *t, far_pool_usage *usage, void (*each)(void *ctx, uint32_t uid, uint64_t bytes),
                    void *ctx);

/* The tables of the allocator are sound. Without a pin. */
struct far_report;
int far_memory_check(struct far_task *t, struct far_report *report);
void far_memory_check_freed(struct far_task *t, struct far_report *report); /* what this handle was told to free */

uint64_t far_alloc_round(uint64_t size);

/* Whether an object of that size can be at this address: for words of far memory that are followed before anything there
 * tells what it is. No verb. */
bool far_may_be_object(const struct far_task *t, far_addr addr, uint64_t size);

/* With a pin, which is held until the object is linked (or freed): a sweep takes what it does not find linked. index
 * NULL: memory of the pool itself. FAR_ERR_NO_MEMORY when the pool (or the node, if a must) is full. */
int far_alloc(struct far_task *t, far_index *index, unsigned type, uint64_t size, unsigned node, unsigned flags,
              far_object *object);

/* An object that was never shown to others: reusable at once. All verbs to it have completed. */
void far_free(struct far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size);

/* An object that this operation unlinked, under the same pin: reusable when nobody can hold it any more. */
void far_retire(struct far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size);

#endif
