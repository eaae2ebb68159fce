/* Inside the ART cache: its nodes and shards, shared by cache.c (the tree) and evict.c (what leaves it). */
#ifndef FAR_INDEX_SMART_CACHE_H
#define FAR_INDEX_SMART_CACHE_H

#include "base/budget.h"
#include "base/readers.h"
#include "index/smart/smart.h"

#include <stdatomic.h>

#define SMART_HAND_LEVELS 8
#define SMART_SKETCH      16384 /* counters */

typedef struct smart_local {
    _Atomic uint64_t head; /* address / 32: 43 | depth: 12 << 43 | layout: 3 << 55 | clock: 2 << 58, set by readers |
                              recycled: 1 << 60, the node lies in memory that had an earlier life */
    uint16_t count, room;  /* entries */
    uint16_t skip;         /* bytes of the path from the parent's partial key to the depth */
    uint16_t hint;         /* of the word that names the node */
} smart_local;             /* then the path, zeros to a multiple of 8, the entries */

_Static_assert(sizeof(smart_local) == 16, "small");

typedef struct smart_born { /* eviction=fifo: nodes in the order in which they came */
    struct smart_born *next;
    uint16_t depth;
    uint8_t key[];
} smart_born;

typedef struct smart_shard { /* the keys with one first byte */
    far_spin lock;           /* of those who change it; readers: smart_cache.readers */
    uint64_t top;            /* the word of the root, or the local node that it names */
    size_t bytes;
    uint16_t hand[SMART_HAND_LEVELS]; /* CLOCK: where the last sweep stopped, as ranks of partial keys */
    smart_born *first, *last;
} smart_shard;

struct smart_cache {
    struct far_budget *all; /* of all caches of the handle */
    far_budget_cache *budget;
    bool fifo;
    atomic_bool full;       /* the budget was spent when bytes were asked for last */
    atomic_uint next_shard; /* where the next eviction begins */
    atomic_uint sketched;
    _Atomic uint8_t sketch[SMART_SKETCH];
    smart_shard shard[SMART_ROOT_SLOTS];
    far_readers readers;
};


static inline smart_shard *smart_shard_change(smart_cache *cache, unsigned number) {
    far_writer_enter(&cache->readers, &cache->shard[number].lock, number);
    return &cache->shard[number];
}


static inline void smart_shard_changed(smart_shard *shard) {
    far_writer_leave(&shard->lock);
}


static inline uint8_t *smart_local_path(const smart_local *c) {
    return (uint8_t *)(c + 1);
}


static inline uint64_t *smart_local_entries(const smart_local *c) {
    return (uint64_t *)(smart_local_path(c) + (c->skip + 7u) / 8 * 8);
}


/* Entries: bit 63 clear, a slot word; set, a local node: pointer / 16 43 | partial key 9 << 43, as in a word. */

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


static inline uint64_t smart_local_head(far_addr addr, unsigned depth, unsigned layout) {
    return addr / 32 | (uint64_t)depth << 43 | (uint64_t)layout << 55;
}


static inline uint64_t smart_local_word(const smart_local *c) {
    return atomic_load_explicit(&c->head, memory_order_relaxed);
}


static inline void smart_local_set(smart_local *c, uint64_t head) {
    atomic_store_explicit(&c->head, head, memory_order_relaxed);
}


static inline far_addr smart_local_addr(const smart_local *c) {
    return (smart_local_word(c) & SMART_ADDR_MASK) * 32;
}


static inline unsigned smart_local_depth(const smart_local *c) {
    return (unsigned)(smart_local_word(c) >> 43) & 0xfff;
}


static inline unsigned smart_local_layout(const smart_local *c) {
    return (unsigned)(smart_local_word(c) >> 55) & 7;
}


#define SMART_CLOCK_ONE (1ull << 58)


static inline uint64_t smart_local_clock(const smart_local *c) {
    return smart_local_word(c) & 3 * SMART_CLOCK_ONE;
}


#define SMART_LOCAL_RECYCLED (1ull << 60)


static inline bool smart_local_is_recycled(const smart_local *c) {
    return smart_local_word(c) & SMART_LOCAL_RECYCLED;
}


/* The word after one more use. */
static inline uint64_t smart_clock_after(uint64_t word) {
    return (word & 3 * SMART_CLOCK_ONE) == 3 * SMART_CLOCK_ONE ? word : word + SMART_CLOCK_ONE;
}


/* By readers: one of two at the same time may be lost, nothing else of the word changes meanwhile. The word is loaded
 * once: what is stored follows from what was looked at. Hot nodes are full, and not written. */
static inline void smart_local_touch(smart_local *c) {
    uint64_t word = smart_local_word(c), after = smart_clock_after(word);
    if (after != word)
        smart_local_set(c, after);
}


/* cache.c */
void smart_local_evict(smart_shard *shard, uint64_t *link, unsigned parent_depth);
void smart_local_forget(smart_shard *shard, far_bytes key, unsigned depth);
void smart_local_remove(smart_local *c, unsigned at);

/* evict.c */
size_t smart_cache_evict(void *ctx, size_t bytes);
unsigned smart_sketch_add(smart_cache *cache, uint64_t what); /* how often it was seen of late, with this time */
void smart_fifo_push(smart_shard *shard, far_bytes key, unsigned depth);
bool smart_fifo_pop(smart_shard *shard, far_bytes *key, smart_born **born); /* NULL: it is only dropped */

#endif
