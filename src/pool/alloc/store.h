/* The store describes, in local memory, the far memory that a handle holds. It contains the blocks that the handle
 * owns, their slabs, the free objects in them, the free objects that the handle has in blocks of other handles and, for
 * each session, magazines of free objects and queues of retired objects that wait for their epoch. The store is private
 * to the allocator (this folder) and to the collector (pool/gc). README.md in this folder explains how the parts work
 * together.
 *
 * Terms:
 *
 *     own object      an object in a block that this handle owns
 *     remote object   an object in any other block
 *     in the store    an own object that is free and is in no session's list; its bit in far_slab.in_store is set
 *     returned        a free object whose bit in the free bitmap in far memory is set, so that the owner of the block
 *                     may reuse the object
 *     pending return  a free remote object that this handle must still return
 *     black           an own object that this handle had in use or in a list after it observed the current collection;
 *                     the sweep phase of that collection does not free it
 *     headroom        the last free blocks of a memory node, which inserts may not take (headroom.c)
 *     session-owned   an own object that only one session may use until it frees it (session_owned.c)
 *
 * Lock order: far_store.sessions_lock, then far_memory.lock of a session, then far_store.lock. No lock is held across a
 * verb. Block work, which is any change of blocks and slabs that needs verbs, is done by one task of the handle at a
 * time, between far_store_enter and far_store_leave, and with a pin. In the comments "both locks" are the lock of a
 * session (far_memory.lock) and the lock of the store (far_store.lock). "The caller is in the store" means that the
 * caller is the task between far_store_enter and far_store_leave. */
#ifndef FAR_POOL_ALLOC_STORE_H
#define FAR_POOL_ALLOC_STORE_H

#include "base/mutex.h"
#include "pool/alloc/blocks.h"
#include "pool/handle.h"
#include "pool/kind.h"

#include <pthread.h>

/* An item is an entry in a list of objects. It consists of the object's address and of these flags in the upper bits.
 */
#define FAR_ITEM_ZERO (1ull << 63) /* all bytes of the object are zero */
/* the memory of the object was never used before, so all its bytes are zero; FAR_ITEM_ZERO is set too */
#define FAR_ITEM_FRESH (1ull << 62)


static inline far_addr far_item_addr(uint64_t item) {
    return item & 0xffffffffffffull;
}


typedef struct far_items {
    uint64_t *items;
    uint32_t count, capacity;
} far_items;

typedef struct far_class far_class;
typedef struct far_owned_block far_owned_block;
typedef struct far_slab far_slab;

/* A slab of an own block: some adjacent pages that are divided into objects of one class. Each of its objects is in the
 * store, in a list of a session, in use, or returned (its bit is set in far memory). Protected by the store's lock. */
struct far_slab {
    far_owned_block *block;
    far_class *class;
    uint8_t page, pages; /* the first page of the slab within its block, and the number of its pages */
    uint32_t objects;    /* number of objects that fit into the slab */
    /* number of objects that were handed out at least once; objects with this number or a higher one were never handed
     * out, count as in the store, and are all zero */
    uint32_t carved;
    uint32_t stored;          /* number of objects below `carved` that are in the store */
    uint64_t bits_read_epoch; /* epoch in which the free bits of the slab were last read from far memory */
    unsigned idle_ticks;      /* number of consecutive ticks that found all objects of the slab in the store */
    far_slab *next, **link;   /* links of the list of all slabs of this class on this node */
    /* links of the list of slabs of this class with objects in the store; open_link is NULL while the slab is not
     * listed */
    far_slab *open_next, **open_link;
    uint64_t *black;     /* one bit per object, set if the object is black; this array is stored after in_store */
    uint64_t in_store[]; /* one bit per object, set if the object is below `carved` and in the store */
};

/* The free objects and slabs of one class on one memory node. */
typedef struct far_class_on_node {
    far_slab *slabs; /* all own slabs of the class on this node */
    far_slab *open;  /* list of the slabs with objects in the store */
    uint32_t slab_count;
    uint64_t stored; /* number of objects in the store */
    /* number of slabs of the class that fit into the free pages of own blocks, and the value of
     * far_headroom.page_changes for which they were counted (headroom.c) */
    uint64_t slabs_that_fit, pages_counted;
    far_items remote; /* free remote objects that any session of this handle may reuse */
} far_class_on_node;

/* A class contains the objects of one index, type and size. It exists until the handle is closed. */
struct far_class {
    uint32_t uid; /* number of the index, 0 for the pool's own objects */
    unsigned type;
    uint64_t size;
    /* number of objects that a magazine takes from the store at once; it has room for twice as many */
    unsigned quantum;
    bool stable; /* the memory of its objects is reused only for the same class while the index exists (alloc.h) */
    _Atomic(const far_type *) info; /* NULL until the index is opened in this handle for the first time */
    _Atomic(far_index *) index;     /* NULL while the index is not open here; written under the store's lock */
    far_class *next;                /* next entry in the same hash bucket */
    far_class_on_node on_node[];    /* one entry per memory node */
};

/* A block that this handle owns. Protected by the store's lock. */
struct far_owned_block {
    far_block_id id;
    bool used;      /* memory of the block was in use at some time, so the block is not fresh */
    uint32_t stamp; /* the last collection for which nothing in this block remains to be swept */
    /* number of session-owned objects in the block; the block is not released while there are any */
    uint32_t session_owned;
    uint64_t free_pages;             /* one bit per page, set if the page is free */
    far_slab *slab[FAR_BLOCK_PAGES]; /* the slab that contains the page, or NULL */
    far_owned_block *next, **link;   /* links of one of the two lists far_free_lists.blocks */
};

/* A pending return: a free remote object that must be returned to the owner of its block. */
typedef struct far_pending_return {
    far_addr addr;
    far_class *class;
} far_pending_return;

typedef struct far_retired {
    far_addr addr;
    far_class *class;
    /* epoch of the pin under which the object was retired; 0 if the task had no pin, until a later tick sets a value */
    uint64_t pin;
    uint64_t ready; /* the first epoch in which the object may be reused */
} far_retired;

/* A part of a queue. Its memory comes from the operating system directly, so the process does not keep it when the
 * queue becomes shorter. */
typedef struct far_retired_chunk {
    struct far_retired_chunk *next;
    uint32_t begin, end; /* the chunk contains items[begin] up to items[end - 1] */
    far_retired items[];
} far_retired_chunk;

#define FAR_CHUNK_BYTES (64u << 10)
#define FAR_CHUNK_ITEMS ((FAR_CHUNK_BYTES - sizeof(far_retired_chunk)) / sizeof(far_retired))

/* A queue of retired objects: a list of chunks, none of which is empty. */
typedef struct far_queue {
    far_retired_chunk *first, *last; /* NULL if the queue is empty */
} far_queue;

#define FAR_QUEUES_MAX 16 /* queues per session: one for each number of extra epochs that a type waits */

/* The magazines of a session for one class: free objects that the session hands out without the store's lock. */
typedef struct far_bin {
    far_class *class;
    struct far_bin *next; /* next entry in the same hash bucket */
    far_items magazine[]; /* one entry per memory node */
} far_bin;

typedef struct far_session_owned {
    uint64_t item;
    far_class *class;
} far_session_owned;

/* An entry of a session's lookup cache: the bin that serves an index, a type and a size as callers request them. The
 * entry is validated at each use. */
typedef struct far_recent {
    const far_index *index;
    uint64_t size;
    unsigned type;
    far_bin *bin; /* NULL if the entry is empty */
} far_recent;

#define FAR_BINS             64   /* buckets of the hash tables of classes and bins */
#define FAR_RECENT           16   /* entries of the lookup cache */
#define FAR_BIT_VERBS        256u /* most verbs on words of free bitmaps in one batch */
#define FAR_MAGAZINE_OBJECTS 32   /* most objects that a magazine takes from the store at once */

/* The memory of one session. Protected by `lock`, which threads other than the session's take rarely. */
typedef struct far_memory {
    far_session *session;
    struct far_store *store;
    struct far_memory *next; /* links the list far_store.sessions */
    far_mutex lock;

    /* Free objects */
    far_recent recent[FAR_RECENT];
    far_bin *bins[FAR_BINS];
    uint64_t magazine_bytes; /* bytes of all objects in the magazines of the session */
    unsigned next_node;      /* memory node for the next object that may be on any node */

    /* Retired objects */
    far_queue queues[FAR_QUEUES_MAX];
    far_retired_chunk *spare_chunk; /* one empty chunk for the next queue that needs one, or NULL */
    uint64_t retired_bytes;
    uint64_t epoch_requested;       /* the epoch in which this session last requested the next epoch */
    uint64_t retired_since_request; /* bytes that this session has retired since that request */

    far_session_owned *session_owned;
    uint32_t session_owned_count;
} far_memory;

/* The summary of its memory that a handle publishes in its registry entry (pool/format/clients.h). */
typedef struct far_handle_usage {
    uint64_t free_bytes, retired_bytes;
    uint64_t settled; /* the last swept collection and the bytes found leaked, packed by far_swept_pack */
} far_handle_usage;

/* What the handle knows of the free memory of one memory node (headroom.c). Protected by the store's lock. */
typedef struct far_headroom {
    uint32_t blocks;       /* the size of the headroom in blocks */
    uint32_t free_blocks;  /* number of free blocks that the last search of the block table found */
    uint64_t free_pages;   /* number of free pages in own blocks */
    uint64_t page_changes; /* number of changes of the free pages, plus 1 */
} far_headroom;

/* Amounts that grow when a search for memory may succeed that failed before (out_of_memory.c). */
typedef struct far_prospect {
    uint64_t bytes;  /* bytes that all handles hold free or retired, and bytes of free pages in own blocks */
    uint64_t losses; /* the loss counter */
} far_prospect;

/* Copies of words of the superblock, as a tick of this handle last read them. Read without a lock. */
typedef struct far_superblock_copy {
    _Atomic uint64_t done, wanted, swept, catalog, uids;
    atomic_uint collector;
} far_superblock_copy;

/* The parts of the store. Each part is written by one file, which the comment names; the other files read it, and change
 * it through functions of that file (tests/install/writers.sh). */

/* Blocks and free objects, protected by far_store.lock except where noted (store.c). */
typedef struct far_free_lists {
    far_class *classes[FAR_BINS];
    _Atomic(far_owned_block *) *owned_blocks; /* by block number; read without the lock by far_address_is_own */
    /* two lists, [0] of the blocks with free pages and [1] of the blocks without free pages */
    far_owned_block *blocks[2];
    uint32_t block_count;
    uint64_t store_bytes;  /* bytes of all own objects that are in the store */
    uint64_t remote_bytes; /* bytes of all remote objects in the lists far_class_on_node.remote */
    /* the list of pending returns, in memory of base/pages.h; NULL if its capacity is 0 */
    far_pending_return *returns;
    size_t return_count, return_capacity;
    /* bytes of the pending returns, and of the returns that a task is executing now */
    uint64_t return_bytes;
    uint64_t gone_slabs; /* number of slabs that were added although their index was not open here, or was dropped */
    /* address, with the lowest bit set, of an object that was freed although no object in use starts there, or that is
     * still in use; 0 if there was none since the last check */
    far_addr invalid_free;
    atomic_bool trim_due; /* true if some slabs may have become entirely free */
} far_free_lists;

/* Searches of the block table (exchange.c). Only the task that is in the store uses the fields without an atomic type. */
typedef struct far_block_search {
    uint32_t *free_from; /* per memory node, the index of the block where the search for free blocks begins */
    /* per memory node, the last epoch in which no block was found there, apart from the headroom */
    uint64_t *full_epoch;
    /* true after a session was lost, because this handle may own blocks that owned_blocks does not contain */
    atomic_bool recovery_due;
} far_block_search;

/* The request that this handle observed last, and copies of the words of the superblock (pool/gc/request.c). Protected by
 * far_store.lock, except for the fields with an atomic type. */
typedef struct far_handshake {
    uint32_t observed; /* number of the last observed request */
    /* pins up to this epoch may hold remote objects that they got before the handle observed the request */
    uint64_t observed_epoch;
    bool walk;           /* true while a mark phase may be in progress, so that no remote object may be handed out */
    bool release_blocks; /* the request demands that handles release blocks with free space */
    /* The last collection that this handle observed. While it differs from the last one that is swept here, the handle
     * keeps black bits. Read without the lock by far_sweep_is_pending. */
    _Atomic uint32_t collection;
    far_superblock_copy superblock;
    /* true if memory leaked, so that the next tick must request a collection (FAR_SUPER_LOSSES) */
    atomic_bool collection_due;
} far_handshake;

/* The sweep phase in the own blocks (pool/gc/sweep.c). Protected by far_store.lock. */
typedef struct far_sweep {
    _Atomic uint32_t swept; /* the last collection for which all own blocks are swept; also read without the lock */
    uint64_t leaked;        /* bytes that the sweep phase of the last collection found leaked in own blocks */
    bool missed_sweep;      /* true if a collection was not swept here before the next one was observed */
} far_sweep;

/* Memory of dropped indexes (pool/gc/dropped.c). Protected by far_store.lock. */
typedef struct far_dropped {
    far_items dropped_uids; /* indexes that this handle dropped; their memory in unowned blocks is not freed yet */
    /* the version of the catalog, and the value of gone_slabs, for which the own slabs were last compared with the
     * catalog */
    uint64_t catalog_seen, gone_slabs_seen;
} far_dropped;

/* Ticks, and what they publish in the registry entry (upkeep.c). Protected by far_store.lock. */
typedef struct far_upkeep {
    atomic_bool ticking;        /* true while a tick of this store is running */
    uint64_t tick_epoch;        /* epoch in which the last tick ran */
    uint32_t released_for;      /* number of the last request for which blocks were released */
    far_handle_usage published; /* the amounts that the registry entry contains */
    /* the amounts as measured at the last tick; they are published when two ticks agree */
    far_handle_usage last_tick_usage;
} far_upkeep;

/* The out-of-memory path (out_of_memory.c). Used by the task that holds FAR_LATCH_OUT_OF_MEMORY. */
typedef struct far_out_of_memory {
    /* number of the request to release blocks that this handle last made or joined; protected by far_store.lock */
    uint32_t requested;
    uint64_t refused_epoch; /* epoch in which the last search for memory failed; 0 if it succeeded or was incomplete */
    far_prospect refused;   /* the prospect of free memory when that search began */
    uint64_t stalled_epoch; /* the epoch that another client prevented from advancing when no memory was found */
    uint64_t stalled_since; /* time since which stalled_epoch has not advanced */
} far_out_of_memory;

typedef struct far_store {
    /* Set when the store is opened, and the list of sessions (store_life.c) */
    far_pool *pool;
    uint64_t retire_batch_bytes; /* a session with at least so many retired bytes requests the next epoch */
    uint64_t marks_max;          /* most bytes of local memory for mark bitmaps; a larger pool is collected in parts */
    far_task *block_task;        /* the task that is in the store (far_store_enter) */
    pthread_mutex_t sessions_lock;
    far_memory *sessions; /* list of the memories of all open sessions */

    pthread_mutex_t lock; /* protects the parts that say so */

    /* The headroom (headroom.c), protected by the lock */
    far_headroom *headroom; /* per memory node */
    atomic_bool is_scarce;  /* true if some node has no more free blocks than its headroom; read without the lock */

    /* Allocations with verbs (alloc.c). Only the task that is in the store uses these fields. */
    unsigned next_node;      /* memory node for the next slab that may be on any node */
    uint64_t gathered_epoch; /* epoch in which all free memory that could be found was last gathered */

    /* true while a task of this handle runs a collection (pool/gc/collect.c) */
    atomic_bool collecting;

    far_free_lists lists;
    far_block_search search;
    far_handshake handshake;
    far_sweep sweep;
    far_dropped dropped;
    far_upkeep upkeep;
    far_out_of_memory out_of_memory;
} far_store;

extern const far_type far_pool_type; /* the type of the pool's own objects, which belong to no index */


static inline far_store *far_store_of(const far_task *t) {
    return t->session->pool->store;
}


static inline far_memory *far_memory_of(const far_task *t) {
    return t->session->memory;
}


/* Returns whether the address is in a block that this handle owns. */
static inline bool far_address_is_own(const far_store *s, far_addr addr) {
    far_block_id id;
    return far_block_of(&s->pool->geometry, addr, &id) &&
           atomic_load_explicit(&s->lists.owned_blocks[far_block_number(&s->pool->geometry, id)], memory_order_acquire);
}


/* Whether this handle observed a collection that is not swept yet in all own blocks, so that it must keep black bits.
 * The caller holds the lock of the store or of any session. The lock of a session suffices: the thread that observes a
 * collection visits every session afterwards, under the lock of that session, and sets the black bits there. A caller
 * that reads the old value here is therefore followed by that visit. */
static inline bool far_sweep_is_pending(const far_store *s) {
    return atomic_load_explicit(&s->handshake.collection, memory_order_relaxed) !=
           atomic_load_explicit(&s->sweep.swept, memory_order_relaxed);
}


/* ---- Local structures, without verbs (store.c) ----
 *
 * The caller holds the store's lock unless the comment names another lock. */

/* Allocates the lists of blocks when the store is opened; returns false if there is no local memory. far_free_lists_free
 * frees all local structures of this part. */
bool far_free_lists_open(far_store *s);
void far_free_lists_free(far_store *s);

/* Returns the class of objects of this index, type and size; creates it if needed. Returns NULL if there is no local
 * memory. */
far_class *far_class_get(far_store *s, uint32_t uid, unsigned type, uint64_t size, bool stable);

/* Returns the own block that contains the address, or NULL. */
far_owned_block *far_owned_block_at(const far_store *s, far_addr addr);
/* Adds a block that this handle owns now; all its pages are free. Returns NULL if there is no local memory. */
far_owned_block *far_owned_block_add(far_store *s, far_block_id id, bool used, uint32_t stamp);
/* Sets which pages of the block are free. Also moves the block to the other list of far_free_lists.blocks if its last free
 * page was taken, or its first one became free. */
void far_owned_block_set_free_pages(far_store *s, far_owned_block *block, uint64_t free_pages);
/* Iterates over all own blocks. Returns the block after `block` (the first one if `block` is NULL), or NULL after the
 * last. */
far_owned_block *far_owned_block_next(const far_store *s, const far_owned_block *block);
/* Removes the block and its slabs from the store. */
void far_owned_block_remove(far_store *s, far_owned_block *block);
/* Adds the slabs that the page words of the block describe; none of their objects is in the store. Returns false if
 * there is no local memory. */
bool far_owned_block_load_slabs(far_store *s, far_owned_block *block, const uint64_t pages[FAR_BLOCK_PAGES]);

/* Adds a new slab with all its objects in the store. Returns NULL if there is no local memory. */
far_slab *far_slab_add(far_store *s, far_owned_block *block, unsigned page, unsigned pages, far_class *class);
/* Removes the slab. The caller marks its pages as free after they are wiped. */
void far_slab_remove(far_store *s, far_slab *slab);
/* Returns the own slab that contains the address, or NULL. */
far_slab *far_slab_at(const far_store *s, far_addr addr);
/* Iterates over the slabs of a block. Returns the slab after `previous` (the first one if `previous` is NULL), or NULL
 * after the last. */
far_slab *far_slab_in(const far_owned_block *block, const far_slab *previous);
/* Iterates over the slabs of all own blocks. Returns the slab after `previous` (the first one if `previous` is NULL),
 * or NULL after the last. */
far_slab *far_slab_next(const far_store *s, const far_slab *previous);
far_addr far_slab_base(const far_store *s, const far_slab *slab);


static inline far_index *far_class_index(const far_class *class) {
    return atomic_load_explicit(&class->index, memory_order_acquire);
}


/* Returns whether the index of the class is not open in this handle, or known to be dropped. With the store's lock held,
 * the index is not freed meanwhile. */
static inline bool far_class_index_is_gone(const far_class *class) {
    const far_index *index = far_class_index(class);
    return class->uid != 0 && (!index || far_index_is_dropped(index));
}


static inline const far_type *far_class_info(const far_class *class) {
    return atomic_load_explicit(&class->info, memory_order_acquire);
}


static inline uint64_t far_page_mask(unsigned page, unsigned pages) {
    return (pages == 64 ? UINT64_MAX : ((1ull << pages) - 1)) << page;
}


/* Returns whether all objects of the slab are in the store. */
static inline bool far_slab_is_free(const far_slab *slab) {
    return slab->stored + (slab->objects - slab->carved) == slab->objects;
}


/* Does the same as far_memory_index_closed for a dropped index that may still be open. No operation of this handle on
 * the index may be running, and none may begin. */
void far_memory_uid_closed(far_store *s, uint32_t uid);

/* Adds an object that became free in this handle. An own object goes to the store. A remote object goes to the list of
 * remote objects of its class, or becomes a pending return if a mark phase may be in progress or if `pin`, the epoch
 * under which the object was unlinked, is not after the epoch in which the last request was observed. The object is
 * ignored if its slab belongs to another class by now, because its index was dropped. */
void far_store_add_free(far_store *s, far_class *class, far_addr addr, uint64_t pin);
/* Adds the object to the pending returns. */
void far_store_queue_return(far_store *s, far_class *class, far_addr addr);
/* Removes from the store an object that a collection found to be in use, so that it is not handed out. */
void far_store_withdraw(far_store *s, far_slab *slab, uint32_t number);
/* Takes the whole list of pending returns; the caller executes them and frees the memory of `capacity` entries. Returns
 * their number. far_returns_count_executed is called when the returns were executed. */
size_t far_returns_take(far_store *s, far_pending_return **objects, size_t *capacity);
void far_returns_count_executed(far_store *s, uint64_t bytes);
/* Records for the next check that an address was freed where no object was in use. far_store_take_invalid_free returns
 * the recorded address, with the lowest bit set, or 0, and forgets it. */
void far_store_note_invalid_free(far_store *s, far_addr addr);
far_addr far_store_take_invalid_free(far_store *s);
/* Records that some slabs may be entirely free. far_store_take_trim_due returns whether that was recorded, and forgets
 * it. Callers need no lock. */
void far_store_note_free_slab(far_store *s);
bool far_store_take_trim_due(far_store *s);


/* Records the last collection for which nothing in the block remains to be swept. */
static inline void far_owned_block_set_stamp(far_owned_block *block, uint32_t collection) {
    block->stamp = collection;
}


/* Records that memory of the block was in use. */
static inline void far_owned_block_note_use(far_owned_block *block) {
    block->used = true;
}


/* Counts for how many ticks the slab has been entirely free. Returns whether it is. */
static inline bool far_slab_count_idle_tick(far_slab *slab) {
    slab->idle_ticks = far_slab_is_free(slab) && !slab->class->stable ? slab->idle_ticks + 1 : 0;
    return slab->idle_ticks > 0;
}


/* Adds an object that became free like far_store_add_free, but prefers the session's magazine while that has room,
 * because memory that was used last should be handed out next. The caller holds both locks. */
void far_magazine_add(far_memory *m, far_class *class, far_addr addr, uint64_t pin);
/* Sets the black bit of the object if it is an own one. */
void far_store_set_black(far_store *s, far_addr addr);
/* Takes up to `wanted` free objects on the node and returns their number. Remote objects are taken first, or not at all
 * if own_only is set. */
unsigned far_store_take(far_store *s, far_class *class, unsigned node, unsigned wanted, bool own_only,
                        uint64_t items[]);

/* doubles the capacity of the list; returns false if there is no local memory */
bool far_items_enlarge(far_items *list);


/* Appends an item to the list. Returns false if there is no local memory. */
static inline bool far_items_add(far_items *list, uint64_t item) {
    if (list->count == list->capacity && !far_items_enlarge(list))
        return false;
    list->items[list->count++] = item;
    return true;
}


/* ---- Bins of a session, under the lock of the session (store.c) ---- */

/* Returns the session's bin for the class; creates it if needed. Returns NULL if there is no local memory. */
far_bin *far_bin_of_class(far_memory *m, far_class *class);
/* Finds or creates the bin for an index (NULL: the pool itself), a type and a size, and caches it for far_bin_cached.
 */
far_bin *far_bin_look_up(far_memory *m, far_index *index, unsigned type, uint64_t size);


static inline far_recent *far_recent_entry(far_memory *m, unsigned type, uint64_t size) {
    return &m->recent[(type + size / FAR_GRANULE) % FAR_RECENT];
}


/* Fills the magazine from the store. Returns whether the magazine contains an object. */
bool far_magazine_refill(far_memory *m, far_bin *bin, unsigned node);
void far_bins_free(far_memory *m); /* frees the bins of a session; the objects in their magazines leak */


/* Takes an object from a magazine that is not empty. */
static inline uint64_t far_magazine_take(far_memory *m, far_bin *bin, unsigned node) {
    far_items *magazine = &bin->magazine[node];
    m->magazine_bytes -= bin->class->size;
    return magazine->items[--magazine->count];
}


/* Returns the bin in the lookup cache, or NULL. After an index is closed, another far_index may get the same address;
 * the cached entry is then ignored because the class does not name that index. */
static inline far_bin *far_bin_cached(far_memory *m, const far_index *index, unsigned type, uint64_t size) {
    const far_recent *r = far_recent_entry(m, type, size);
    bool known = r->bin && r->index == index && r->size == size && r->type == type;
    return known && far_class_index(r->bin->class) == index ? r->bin : NULL;
}


/* Returns the bin for an index, a type and a size. Returns NULL if there is no local memory, or if the index kind has
 * no such type or size. */
static inline far_bin *far_bin_get(far_memory *m, far_index *index, unsigned type, uint64_t size) {
    far_bin *bin = far_bin_cached(m, index, type, size);
    return bin ? bin : far_bin_look_up(m, index, type, size);
}


/* ---- Visits of all objects in the lists of sessions (store.c) ---- */

/* Callbacks for far_store_visit; each may be NULL. in_magazine and retired return whether the object stays in its list.
 * All callbacks except `begin` run with the lock of the visited session and the lock of the store. */
typedef struct far_visit {
    /* Runs before the other callbacks, with far_store.sessions_lock and far_store.lock. sessions_lock stays locked
     * during the whole visit. If `begin` returns false, the visit ends. */
    bool (*begin)(far_store *s, void *ctx);
    /* Called for each object in a magazine. */
    bool (*in_magazine)(far_store *s, far_class *class, uint64_t item, void *ctx);
    /* Called for each retired object. */
    bool (*retired)(far_store *s, const far_retired *item, void *ctx);
    /* Called for each session-owned object. */
    void (*session_owned)(far_store *s, const far_session_owned *object, void *ctx);
    void *ctx;
} far_visit;
void far_store_visit(far_store *s, const far_visit *visit); /* visits all sessions; the caller holds no lock */
/* visits one session; the caller holds both locks */
void far_memory_visit(far_store *s, far_memory *m, const far_visit *visit);

/* A callback for in_magazine that moves the object to the store. */
bool far_item_to_store(far_store *s, far_class *c, uint64_t item, void *ctx);
/* Moves all objects from the magazines of all sessions to the store. The caller holds no lock. */
void far_magazines_empty(far_store *s);
/* Turns all objects in the lists of remote objects into pending returns. The caller holds the store's lock.
 */
void far_remote_lists_queue_return(far_store *s);

/* ---- store_life.c ---- */

/* far_store_enter begins block work and far_store_leave ends it. Only one task of the handle is in the store at a time;
 * the others wait in order. */
void far_store_enter(far_task *t);
void far_store_leave(far_task *t);

/* The state of a task's batch of verbs. The allocator and the collector save it before they execute verbs of their own
 * inside of an operation, because the operation may have added verbs that are not posted yet. */
typedef struct far_saved_batch {
    struct far_batch_box *open;
    int refused;
    bool background;
} far_saved_batch;
far_saved_batch far_batch_save(far_task *t);
void far_batch_restore(far_task *t, far_saved_batch saved);

/* ---- Slabs; the caller is in the store, and has a pin (slabs.c) ---- */

/* Makes a new slab for the class in an own block with free pages. Returns 1 if done, 0 if no own block has room. */
int far_slab_cut(far_task *t, far_class *class, unsigned node);
/* Moves objects of the class that were returned to own slabs into the store. Returns 1 if there were such objects, 0 if
 * not. */
int far_slabs_take_returned(far_task *t, far_class *class, unsigned node);
/* Moves the returned objects of all own slabs into the store. Returns 0 or an error. */
int far_slabs_take_all_returned(far_task *t);
/* Wipes the slab at `base`, so that its pages become free. Without `dropped` this is done only if all objects of the
 * slab are in the store. With `dropped`, which is set for the slab of a dropped index, the slab is wiped in any case.
 * Returns 1 if done, 0 if not. */
int far_slab_release(far_task *t, far_addr base, bool dropped);
/* Releases slabs that are entirely free, and then blocks without slabs. Without `all` only the slabs that have been
 * free for some ticks are released. */
int far_slabs_trim(far_task *t, bool all);

/* ---- Blocks that change their owner; the caller is in the store, and has a pin (exchange.c) ---- */

/* Takes free blocks of the node, or adopts an orphan that may have room for the class. It takes a block of the headroom
 * only if `from_headroom` is set. Returns 1 if it got a block, 0 if there is none. */
int far_block_acquire(far_task *t, far_class *class, unsigned node, bool from_headroom);
/* Adopts the orphan. Returns 1 if this handle owns the block now, 0 if another handle adopted it first. */
int far_block_adopt(far_task *t, far_block_id id, const uint64_t *entry);
/* Adopts the orphan like far_block_adopt, for a task that has a pin but is not in the store. */
int far_store_adopt_block(far_task *t, far_block_id id, const uint64_t *entry);
/* Adopts all orphans of the pool, unless the task must leave them to another handle. */
int far_orphans_adopt_all(far_task *t);

/* Which own blocks far_blocks_release turns into orphans. Blocks with session-owned objects are never released. */
typedef enum {
    FAR_RELEASE_WITH_ROOM, /* blocks with enough free space, without slabs of unlisted indexes */
    FAR_RELEASE_ALL,       /* all blocks without slabs of unlisted indexes */
    FAR_RELEASE_AT_CLOSE   /* all blocks */
} far_release_scope;
int far_blocks_release(far_task *t, far_release_scope which);

/* Allocates and frees the state of searches for free blocks. far_block_search_open returns false if there is no local
 * memory. */
bool far_block_search_open(far_store *s);
void far_block_search_free(far_store *s);
/* Records that a search in this epoch found no block on the node, apart from the headroom; epoch 0: forgets that. */
void far_block_search_note_full(far_store *s, unsigned node, uint64_t epoch);
void far_block_search_forget_full(far_store *s);               /* forgets it for all nodes */
void far_block_search_begin_at(far_store *s, far_block_id id); /* the block is free, so the next search begins there */

void far_blocks_schedule_recovery(far_store *s); /* makes the next tick call far_blocks_recover_unknown */
/* Called after a session was lost and is fenced. Adds blocks to the store that this handle owns according to the block
 * table, but that the store does not contain. */
int far_blocks_recover_unknown(far_task *t);

/* Called after each verb that was added for a bitmap word. Waits after every FAR_BIT_VERBS verbs, because a session keeps
 * the memory of its largest batch until it is closed. *verbs counts the verbs. Returns the error of the wait. */
static inline int far_wait_if_full(far_task *t, unsigned *verbs) {
    return ++*verbs % FAR_BIT_VERBS == 0 ? far_wait(t) : 0;
}


/* Returns objects to the owners of their blocks by setting their free bits. Sorts the array. The caller need not be in
 * the store. */
int far_free_bits_add(far_task *t, far_pending_return *objects, size_t count);

/* ---- retire.c ---- */

/* Appends a retired object to the session's queue for its type. The caller holds the session's lock. */
void far_queue_add(far_memory *m, far_retired item);
/* Calls `stays` for each retired object of the session, and removes the objects for which it returns false. The caller
 * holds both locks. */
void far_queues_visit(far_memory *m, bool (*stays)(far_store *s, const far_retired *item, void *ctx), void *ctx);
/* Moves all retired objects of a session to the queues of another session of the handle, without copying them. The
 * caller holds the locks of both sessions. */
void far_queues_hand_over(far_memory *from, far_memory *to);
/* Frees the memory of the session's queues. Objects that are still in them leak. */
void far_queues_free(far_memory *m);
/* Makes some retired objects of the session free, if their epoch has come. Returns their number. */
int far_reclaim_session(far_task *t, far_memory *m);
/* Makes all retired objects of all sessions free that have reached their epoch. */
void far_reclaim_all(far_task *t);
/* Executes the pending returns, which sets the free bits of the objects. Returns 0 or an error. */
int far_returns_flush(far_task *t);
/* Returns whether any session holds an object that was retired under a pin up to that epoch. With `remote_only` only
 * remote objects count. */
bool far_has_retired(far_store *s, uint64_t up_to, bool remote_only);

/* ---- The sweep phase; the caller is in the store, and has a pin (pool/gc/sweep.c) ---- */

/* Sweeps the next own blocks for the collection that was observed last. Returns 1 if there is more to do. */
int far_sweep_step(far_task *t);
/* Returns whether the collection that was observed last can be swept now. Callers need not be in the store. */
bool far_sweep_is_due(far_store *s);
/* Called with the store's lock when the handle observes a new collection. `missed` says that the previous one was not
 * swept in all own blocks. */
void far_sweep_begin(far_store *s, bool missed);
/* Sweeps a block that was just adopted, before any of its objects is handed out. */
int far_sweep_block(far_task *t, far_owned_block *block);

/* ---- pool/gc/request.c ---- */

/* Records the words DONE and LOSSES_COLLECTED that this handle has written as the collector. */
void far_superblock_copy_done(far_pool *pool, uint64_t done);
void far_superblock_copy_collected(far_pool *pool, uint64_t losses);
/* Returns whether far_memory_note_leak was called since the last call of this function. */
bool far_memory_take_leak_note(far_pool *pool);
/* Turns the remote objects in magazines and lists into pending returns. */
void far_remote_objects_queue_return(far_store *s);
/* A callback for far_visit.retired that sets the object black if it is own, and leaves it in the queue. */
bool far_retired_set_black(far_store *s, const far_retired *item, void *ctx);

/* ---- upkeep.c ---- */

/* Adds up the memory that all handles hold. For this handle the current amounts are used, for the others the published
 * ones. */
int far_handle_usage_sum(far_task *t, far_handle_usage *sum);

/* ---- headroom.c ---- */

/* Sets the headroom of each node when the store is opened. Returns false if there is no local memory. */
bool far_headroom_open(far_store *s);
/* Records that the free pages in own blocks of a node change from the first set to the second one. The caller holds the
 * store's lock. */
void far_headroom_count_pages(far_store *s, unsigned node, uint64_t before, uint64_t after);
/* Records how many free blocks a search found on the node. The caller holds the store's lock. */
void far_headroom_set_free_blocks(far_store *s, unsigned node, uint32_t count);
/* Records that this handle has taken so many free blocks of the node. The caller holds the store's lock. */
void far_headroom_count_taken(far_store *s, unsigned node, uint32_t count);
/* Returns whether an operation that may not use the headroom may take an object of the class on the node. The caller
 * holds both locks. */
bool far_headroom_spares_object(far_memory *m, far_class *class, unsigned node);
/* Returns whether the task may take an object of the class on the node. The caller holds no lock. */
bool far_task_may_take(far_task *t, far_class *class, unsigned node);

/* ---- Session-owned objects, under the lock of the session except where noted (session_owned.c) ---- */

/* Makes an own object session-owned. 1: done; 0: its block is not owned by this handle any more. */
int far_session_own(far_memory *m, far_class *class, uint64_t item);
/* Ends the session's ownership of the object. The caller decides what happens with the object. */
void far_session_owned_remove(far_memory *m, far_addr addr);
/* Frees the session-owned objects of indexes that are not open here, or all session-owned objects. */
void far_session_owned_free(far_memory *m, bool all);
/* Frees the session-owned objects of all sessions that belong to indexes which are not open here. The caller holds no
 * lock. */
void far_session_owned_free_closed(far_store *s);


/* Ends the session's ownership of an object that is being freed or retired, if it is session-owned. */
static inline void far_session_owned_forget(far_memory *m, far_addr addr) {
    if (m->session_owned_count > 0)
        far_session_owned_remove(m, addr);
}


/* ---- alloc.c ---- */

/* Sets where the first search of the store, or of the session, begins. */
void far_alloc_open(far_store *s);
void far_alloc_open_session(far_memory *m);

/* Makes the next allocations search everywhere, although a search in the same epoch found nothing. */
void far_store_search_again(far_task *t);

/* Allocates an object of the class, with verbs if needed. The object is on `node` if `must` is set; otherwise `node` is
 * only preferred. own_only excludes remote objects. The function does not zero the object. */
int far_alloc_item(far_task *t, far_class *class, unsigned node, bool must, bool own_only, uint64_t *item);

#endif
