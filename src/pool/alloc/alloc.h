/* The interface of the allocator, which provides memory of the pool for objects of indexes. An object is a part of a
 * slab, which contains objects of one index, type and size, inside a block that some handle owns. Every
 * object fits into one block. Most allocations and releases need no verb, because each session has magazines of
 * free objects, and a handle reuses the objects that it retired, whatever handle owns their block. README.md in this
 * folder explains how this works; blocks.h describes the tables in far memory.
 *
 * Indexes call far_alloc, far_free and far_retire. The other functions are for the life of handles and sessions, for
 * housekeeping and for the commands that inspect a pool.
 *
 * Sizes are rounded up, to a multiple of 16 bytes up to 4 KiB, and to at most 1/64 more above that. */
#ifndef FAR_POOL_ALLOC_ALLOC_H
#define FAR_POOL_ALLOC_ALLOC_H

#include "fabric/fabric.h"
#include "farindex.h"

#define FAR_GRANULE 16u /* granule in bytes; objects begin at multiples of this size */

struct far_task;

/* A type of objects that an index kind declares. The memory of a stable type is reused only for objects of the same
 * type and size until the index is dropped; it is zero when it is fresh, and the allocator neither changes it nor
 * stores data in it while the object is free. */
typedef struct far_type {
    const char *name;
    bool stable;
    uint8_t align;         /* 16, 32 or 64 bytes */
    uint16_t extra_epochs; /* a retired object waits this many epochs longer than others before it is reused */
} far_type;

typedef struct far_object {
    far_addr addr;
    uint64_t size;  /* in bytes, rounded up */
    bool used;      /* the memory was in use before; it may have been wiped since */
    uint64_t epoch; /* epoch of the caller's pin at the allocation */
} far_object;

#define FAR_NODE_ANY (~0u)

enum {
    FAR_ALLOC_ZERO = 1,    /* all bytes are zero; this costs a WRITE and a wait only if the memory was used before */
    FAR_ALLOC_ON_NODE = 2, /* the object must be on the given node, which otherwise is only preferred */
    /* the allocation may use the headroom, because it completes a structure change that has begun */
    FAR_ALLOC_HEADROOM = 4,
    /* the object becomes session-owned, so no collection frees it although no index links it (redo records); it is
     * freed when the session is closed */
    FAR_ALLOC_SESSION_OWNED = 8,
};

/* The store contains the far memory that a handle holds. The store exists from after the registration of the handle's
 * system session until before its unregistration. far_memory_give_back_all gives all memory back to the pool;
 * far_store_free frees the local memory of the store only. */
int far_store_open(far_pool *pool);
/* called in the handle's system session after all other sessions are closed */
int far_memory_give_back_all(struct far_task *t);
void far_store_free(far_pool *pool);

/* A session joins and leaves the store of its handle. Neither needs a verb; far_memory_close moves the session's free
 * and retired objects to the handle. */
int far_memory_open(far_session *s);
void far_memory_close(far_session *s);

/* One tick of the memory, called by housekeeping from an unpinned task of any session of the handle. It frees retired
 * objects that have reached their epoch, executes pending returns, executes the last observed request, and runs a step
 * of the sweep phase. Returns 1 if there is more to do at once, 0 if not, or an error. It does nothing while the handle
 * is quiescent. */
int far_memory_tick(struct far_task *t);
/* Returns whether the registry entry does not contain the current amounts of memory yet. */
bool far_memory_has_unpublished_usage(far_pool *pool);
/* Prepares the handle for becoming quiescent, and returns whether it may, because it holds nothing that another handle
 * could have to wait for. */
bool far_memory_prepare_quiescence(far_pool *pool);
/* Returns whether the given request word demands, of a quiescent handle, something that the handle can do only while it
 * is active */
bool far_memory_must_become_active(far_pool *pool, uint64_t request);
/* Releases the handle's blocks before it becomes quiescent, so that other handles may adopt them. */
int far_memory_release_blocks(struct far_task *t);

/* Runs an operation again that returned FAR_ERR_NO_MEMORY. Operations of all sessions of the handle wait in line for
 * this. Each waits for memory that other handles release or a collection finds, and retries until it returns another
 * result or there is nothing left to wait for (out_of_memory.c). */
int far_run_out_of_memory(struct far_task *t, int (*run)(struct far_task *t, void *arg), void *arg);

/* Called when this handle closes an index for the last time, or gives up creating it, before its far_index is freed. */
void far_memory_index_closed(far_pool *pool, far_index *index);

/* Called when this handle has dropped an index or has given up creating one. Records that the memory of this index must
 * be freed (pool/gc/dropped.c). */
void far_memory_note_dropped_index(far_pool *pool, uint32_t uid);

/* Frees the slabs of dropped indexes in own blocks, and the memory in unowned blocks of indexes that this handle
 * dropped (pool/gc/dropped.c). The caller has no pin. The function waits for other handles, but not longer than
 * `timeout` while the epoch does not advance. Returns 1 if memory of dropped indexes is left. */
int far_dropped_free(struct far_task *t, uint64_t timeout);
/* Returns whether far_dropped_free may find memory to free, because the catalog changed since the last comparison, or
 * this handle dropped an index. */
bool far_dropped_is_due(far_pool *pool);

/* Called after a session of the handle was lost and is fenced. Requests a collection, which finds the objects that its
 * operations held. */
void far_memory_note_failed_session(far_pool *pool);
/* Requests a collection, because objects have leaked that this process cannot name or must not free. */
void far_memory_note_leak(far_pool *pool);

/* Computes how many bytes of the pool are total, used, retired, free and leaked, and sets these five fields; total is
 * the sum of the other four. The result is exact when no operation is in progress. `each`, if it is not NULL, is called
 * for every slab. Its `bytes` are the bytes that are not returned, which are in use by the index
 * (uid 0: by the pool itself) or held free by the handle that owns the block. */
int far_memory_stat(struct far_task *t, far_pool_usage *usage, void (*each)(void *ctx, uint32_t uid, uint64_t bytes),
                    void *ctx);

/* Checks the tables of the allocator and reports each problem. With `mends`, blocks whose owner does not exist are no
 * problem, because a collection of the mode FAR_COLLECT_MEND follows. The caller has no pin. */
struct far_report;
int far_memory_check(struct far_task *t, bool mends, struct far_report *report);
/* Reports an invalid free, if this handle has recorded one since the last report. A free is invalid if no object was in
 * use at the address, or if a collection later found that the freed object is still linked. Both are signs of damaged
 * memory. */
void far_memory_check_invalid_free(struct far_task *t, struct far_report *report);

uint64_t far_alloc_round(uint64_t size);

/* Returns the size of the largest object of this pool, which is the size of a block. */
uint64_t far_object_bytes_max(const far_pool *pool);

/* Returns the bytes of all memory nodes of this pool. */
uint64_t far_memory_bytes(const far_pool *pool);

/* Returns whether an object of that size can be at this address. Callers check a word of far memory with it before they
 * follow the word, because damage may have changed the word. No verb is needed. */
bool far_may_be_object(const struct far_task *t, far_addr addr, uint64_t size);

/* Allocates an object. The caller has a pin and keeps it until the object is linked or freed, because a collection
 * frees objects that it does not find linked. `index` is NULL for memory of the pool itself. Returns FAR_ERR_NO_MEMORY
 * if the pool, or with FAR_ALLOC_ON_NODE the node, has no room. */
int far_alloc(struct far_task *t, far_index *index, unsigned type, uint64_t size, unsigned node, unsigned flags,
              far_object *object);

/* Frees an object that no other client has ever been able to see; it may be reused at once. All verbs to it must have
 * completed, or the session is lost. A lost session leaves the object to a collection. */
void far_free(struct far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size);

/* Retires an object that this operation unlinked under its current pin. It is reused when no pin is left under which a
 * client could still see it. */
void far_retire(struct far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size);

#endif
