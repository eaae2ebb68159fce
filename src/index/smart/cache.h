/* The internals of the ART cache, shared by cache.c (the local tree), cache_evict.c (eviction and admission) and
 * scan_readahead.c (which lists the cached words of a range). Other files use the functions in smart.h.
 *
 * The cache is a local radix tree of local nodes. A local node mirrors one node of the remote tree, or none if it only
 * exists because two paths part there. It has one entry per cached slot, which is the slot word, or a pointer to the
 * local node of the child if that is cached too. There is one tree, called a shard, per first byte of the key. */
#ifndef FAR_INDEX_SMART_CACHE_H
#define FAR_INDEX_SMART_CACHE_H

#include "base/budget.h"
#include "base/readers.h"
#include "index/smart/smart.h"

#include <stdatomic.h>

/* number of tree levels for which the CLOCK hand (the position of the eviction) is remembered */
#define SMART_HAND_LEVELS 8
#define SMART_SKETCH      16384 /* number of counters in the frequency sketch */

/* A local node. In memory it is followed by its path, padded with zeros to a multiple of 8 bytes, and by its entries.
 */
typedef struct smart_local {
    /* address / 32: 43 bits | depth: 12 << 43 | layout: 3 << 55 | CLOCK counter: 2 << 58, which readers change |
     * recycled: 1 << 60, the remote node is in recycled memory. Address 0: the local node mirrors no remote node. */
    _Atomic uint64_t head;
    uint16_t count; /* number of entries in use */
    /* length of the path in bytes: the bytes between the parent's partial key and the depth of this node */
    uint16_t path_length;
    uint16_t capacity : 9;  /* number of entries that the allocation can contain */
    uint16_t size_hint : 7; /* the hint field of the slot word that names the remote node */
    /* Epoch of the pin under which an operation of this handle last saw the remote node linked, minus the epoch_base of
     * the shard; 0: no operation did. It is kept for DIR nodes only. */
    uint16_t seen_linked;
} smart_local;

_Static_assert(sizeof(smart_local) == 16, "the cost of a local node besides its path and entries");

/* With eviction=fifo, one entry in the queue of a shard. The queue contains the local nodes of the shard in the order
 * in which they were added. */
typedef struct smart_fifo_entry {
    struct smart_fifo_entry *next;
    uint16_t depth; /* depth of the local node in bytes */
    uint8_t key[];  /* the prefix of the node, `depth` bytes */
} smart_fifo_entry;

/* One part (shard) of the cache: the local tree for all keys that begin with the same byte. */
typedef struct smart_shard {
    far_spin lock; /* held by the thread that changes the shard; readers enter through smart_cache.readers */
    /* The top of the tree, as an entry: the word in the root's slot, or a pointer to the local node of that child; 0:
     * nothing is cached. */
    uint64_t top;
    size_t bytes; /* heap memory that the shard uses, in bytes */
    /* The local nodes contain epochs as differences from this one. It is so much older than the operations that a node
     * with the difference 0 does not count as seen linked lately. */
    uint64_t epoch_base;
    /* hand of CLOCK, the position where the last eviction stopped: for each level, the rank of a partial key */
    uint16_t hand[SMART_HAND_LEVELS];
    smart_fifo_entry *fifo_first, *fifo_last; /* queue of local nodes, used only with eviction=fifo */
} smart_shard;

struct smart_cache {
    struct far_budget *handle_budget; /* budget that all caches of the handle share */
    far_budget_cache *budget;         /* share of this cache in the budget */
    bool fifo;                        /* true with the option eviction=fifo; false: CLOCK */
    atomic_bool budget_is_spent;      /* true if the budget was exceeded at the last request for bytes */
    atomic_uint next_shard;           /* the shard at which the next eviction begins */
    atomic_uint sketch_additions;     /* number of additions to the sketch */
    _Atomic uint8_t sketch[SMART_SKETCH];
    smart_shard shard[SMART_ROOT_SLOTS];
    far_readers readers; /* lets threads read shards without writing to a shared cache line */
};


static inline smart_shard *smart_shard_lock(smart_cache *cache, unsigned number) {
    far_writer_enter(&cache->readers, &cache->shard[number].lock, number);
    return &cache->shard[number];
}


static inline void smart_shard_unlock(smart_shard *shard) {
    far_writer_leave(&shard->lock);
}


static inline uint8_t *smart_local_path(const smart_local *c) {
    return (uint8_t *)(c + 1);
}


static inline uint64_t *smart_local_entries(const smart_local *c) {
    return (uint64_t *)(smart_local_path(c) + (c->path_length + 7u) / 8 * 8);
}


/* An entry with bit 63 clear is a slot word. With bit 63 set it is a pointer to a local node. The pointer / 16 takes 43
 * bits, and the partial key is in the 9 bits above, as in a slot word. */

static inline bool smart_entry_is_local(uint64_t entry) {
    return entry >> 63;
}


static inline smart_local *smart_entry_local(uint64_t entry) {
    return (smart_local *)(uintptr_t)((entry & SMART_ADDR_MASK) * 16);
}


static inline uint64_t smart_entry_make(const smart_local *c, unsigned part) {
    return (uint64_t)(uintptr_t)c / 16 | (uint64_t)part << 43 | 1ull << 63;
}


static inline unsigned smart_entry_part(uint64_t entry) {
    return smart_word_part(entry);
}


static inline uint64_t smart_local_make_head(far_addr addr, unsigned depth, unsigned layout) {
    return addr / 32 | (uint64_t)depth << 43 | (uint64_t)layout << 55;
}


static inline uint64_t smart_local_load_head(const smart_local *c) {
    return atomic_load_explicit(&c->head, memory_order_relaxed);
}


static inline void smart_local_store_head(smart_local *c, uint64_t head) {
    atomic_store_explicit(&c->head, head, memory_order_relaxed);
}


static inline far_addr smart_local_addr(const smart_local *c) {
    return (smart_local_load_head(c) & SMART_ADDR_MASK) * 32;
}


static inline unsigned smart_local_depth(const smart_local *c) {
    return (unsigned)(smart_local_load_head(c) >> 43) & 0xfff;
}


static inline unsigned smart_local_layout(const smart_local *c) {
    return (unsigned)(smart_local_load_head(c) >> 55) & 7;
}


#define SMART_CLOCK_ONE (1ull << 58)


static inline uint64_t smart_local_clock(const smart_local *c) {
    return smart_local_load_head(c) & 3 * SMART_CLOCK_ONE;
}


#define SMART_LOCAL_RECYCLED (1ull << 60)


static inline bool smart_local_is_recycled(const smart_local *c) {
    return smart_local_load_head(c) & SMART_LOCAL_RECYCLED;
}


/* Returns the head word after one more use of the node. The CLOCK counter increases up to 3 and then stays 3. */
static inline uint64_t smart_head_after_use(uint64_t word) {
    return (word & 3 * SMART_CLOCK_ONE) == 3 * SMART_CLOCK_ONE ? word : word + SMART_CLOCK_ONE;
}


/* Counts one use of the node. Several readers may do so at the same time; then one increment may be lost, which does no
 * harm. The rest of the head does not change meanwhile, because writers exclude readers. A node whose counter is full
 * is not written, so hot nodes stay shared between the processors' caches. */
static inline void smart_local_touch(smart_local *c) {
    uint64_t word = smart_local_load_head(c), after = smart_head_after_use(word);
    if (after != word)
        smart_local_store_head(c, after);
}


/* cache.c, for evictions. The caller holds the shard's lock. */

/* Frees the local node that *link points to and replaces it by the slot word of the remote node, or by 0 if it has
 * none. */
void smart_local_evict(smart_shard *shard, uint64_t *link, unsigned parent_depth);
/* Drops the words of the local node for the first `depth` bytes of the key, and also frees that node if it has no local
 * child. */
void smart_local_discard(smart_shard *shard, far_bytes key, unsigned depth);
void smart_local_remove_entry(smart_local *c, unsigned at);

/* cache_evict.c */

/* Evicts about `bytes` bytes and returns the number of bytes freed. The budget (base/budget.h) calls this function with
 * the cache as ctx. */
size_t smart_cache_evict(void *ctx, size_t bytes);
/* Counts one occurrence of `what` in the frequency sketch. Returns how often it occurred recently, including this time.
 */
unsigned smart_sketch_add(smart_cache *cache, uint64_t what);
/* The first function appends a local node to the queue of eviction=fifo. The second function removes the oldest node
 * from the queue. It returns false if the queue is empty. The caller frees *entry; with key == NULL the entry is freed
 * at once. */
void smart_fifo_push(smart_shard *shard, far_bytes key, unsigned depth);
bool smart_fifo_pop(smart_shard *shard, far_bytes *key, smart_fifo_entry **entry);

#endif
