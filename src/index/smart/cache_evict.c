/* Eviction from the cache when its budget is spent, and admission of new nodes and words.
 *
 * With eviction=clock, a hand (a remembered position) moves over the tree of each shard. A node without local children
 * is evicted if it was not used since the hand last passed it; its parent keeps the slot word. With eviction=fifo, the
 * paper's policy, the oldest node is evicted. Admission: once the budget is spent, a node or word enters the cache only
 * if a frequency sketch has counted it before, so that a scan over rarely used keys does not displace frequently used
 * ones. Neither policy needs a list of all nodes or a lock of all shards. */
#include "index/smart/cache.h"

#include <stdlib.h>
#include <string.h>

#define EVICT_AT_ONCE 4096 /* the least number of bytes that an eviction frees, so that evictions are rare */

typedef struct eviction {
    smart_shard *shard;
    size_t goal, freed;
} eviction;


unsigned smart_sketch_add(smart_cache *cache, uint64_t what) {
    uint64_t hash = (what ^ what >> 29) * 0x9e3779b97f4a7c15ull;
    unsigned least = 255;
    bool raised = false;
    for (unsigned row = 0; row < 2; row++) {
        _Atomic uint8_t *counter =
            &cache->sketch[(hash >> (20 * row + 12)) % (SMART_SKETCH / 2) + row * (SMART_SKETCH / 2)];
        unsigned count = atomic_load_explicit(counter, memory_order_relaxed);
        /* A counter that has reached its maximum is not written, so that its cache line stays shared between
         * processors. */
        if (count < 255) {
            atomic_store_explicit(counter, (uint8_t)++count, memory_order_relaxed);
            raised = true;
        }
        least = count < least ? count : least;
    }
    /* All counters are halved after so many additions, so that old uses lose their weight. */
    if (raised && atomic_fetch_add_explicit(&cache->sketch_additions, 1, memory_order_relaxed) % (SMART_SKETCH * 8u) ==
                      SMART_SKETCH * 8u - 1)
        for (unsigned i = 0; i < SMART_SKETCH; i++) {
            unsigned count = atomic_load_explicit(&cache->sketch[i], memory_order_relaxed);
            atomic_store_explicit(&cache->sketch[i], (uint8_t)(count / 2), memory_order_relaxed);
        }
    return least;
}


/* Moves the hand over the subtree below *link, and evicts unused nodes until enough bytes are freed. Begins at the
 * hand's position if at_hand is set, otherwise at the first entry. Returns true if the node that *link points to may be
 * evicted itself. */
static bool evict_below(eviction *s, uint64_t *link, unsigned level, bool at_hand) {
    smart_local *c = smart_entry_local(*link);
    uint16_t *hand = level < SMART_HAND_LEVELS ? &s->shard->hand[level] : NULL;
    unsigned start = at_hand && hand ? *hand : 0, locals = 0;
    for (unsigned i = 0; i < c->count; i++) {
        uint64_t *entry = &smart_local_entries(c)[i];
        unsigned rank = smart_part_rank(smart_entry_part(*entry));
        if (!smart_entry_is_local(*entry))
            continue;
        locals++;
        if (rank < start || s->freed >= s->goal)
            continue;
        if (hand)
            *hand = (uint16_t)rank;
        if (!evict_below(s, entry, level + 1, at_hand && rank == start))
            continue;
        size_t before = s->shard->bytes;
        smart_local_evict(s->shard, entry, smart_local_depth(c));
        s->freed += before - s->shard->bytes;
        locals--;
        if (*entry == 0)
            smart_local_remove_entry(c, i--);
    }
    if (s->freed >= s->goal)
        return false;
    if (hand)
        *hand = 0;
    if (locals)
        return false;
    if (smart_local_clock(c) == 0)
        return true;
    smart_local_store_head(c, smart_local_load_head(c) - SMART_CLOCK_ONE);
    return false;
}


static void evict_by_clock(eviction *s) {
    if (!smart_entry_is_local(s->shard->top) || !evict_below(s, &s->shard->top, 0, true))
        return;
    size_t before = s->shard->bytes;
    smart_local_evict(s->shard, &s->shard->top, 0);
    s->freed += before - s->shard->bytes;
}


static size_t fifo_entry_bytes(unsigned depth) {
    return sizeof(smart_fifo_entry) + depth + 24;
}


void smart_fifo_push(smart_shard *shard, far_bytes key, unsigned depth) {
    smart_fifo_entry *entry = malloc(sizeof(*entry) + depth);
    if (!entry)
        return;
    entry->next = NULL;
    entry->depth = (uint16_t)depth;
    memcpy(entry->key, key.data, depth);
    if (shard->fifo_last)
        shard->fifo_last->next = entry;
    else
        shard->fifo_first = entry;
    shard->fifo_last = entry;
    shard->bytes += fifo_entry_bytes(depth);
}


bool smart_fifo_pop(smart_shard *shard, far_bytes *key, smart_fifo_entry **popped) {
    smart_fifo_entry *entry = shard->fifo_first;
    if (!entry)
        return false;
    shard->fifo_first = entry->next;
    if (!shard->fifo_first)
        shard->fifo_last = NULL;
    shard->bytes -= fifo_entry_bytes(entry->depth);
    if (!key)
        free(entry);
    else {
        *key = (far_bytes){entry->key, entry->depth};
        *popped = entry;
    }
    return true;
}


/* Drops the words of the oldest nodes. A node that is then empty is evicted like any unused node. */
static void evict_by_fifo(eviction *s) {
    far_bytes key;
    smart_fifo_entry *entry;
    for (unsigned n = 0; n < 8 && s->freed < s->goal && smart_fifo_pop(s->shard, &key, &entry); n++) {
        size_t before = s->shard->bytes;
        smart_local_discard(s->shard, key, entry->depth);
        s->freed += before - s->shard->bytes;
        free(entry);
    }
}


/* Runs on the thread that asks the budget for bytes, which holds no shard lock. A shard that another thread has locked
 * is skipped. */
size_t smart_cache_evict(void *ctx, size_t bytes) {
    smart_cache *cache = ctx;
    size_t goal = bytes > EVICT_AT_ONCE ? bytes : EVICT_AT_ONCE, freed = 0;
    for (unsigned turn = 0; turn < 8 * SMART_ROOT_SLOTS && freed < goal; turn++) {
        unsigned at = atomic_fetch_add_explicit(&cache->next_shard, 1, memory_order_relaxed) % SMART_ROOT_SLOTS;
        smart_shard *shard = &cache->shard[at];
        if (!far_writer_try(&cache->readers, &shard->lock, at))
            continue;
        eviction s = {shard, goal - freed, 0};
        size_t before = shard->bytes;
        if (cache->fifo)
            evict_by_fifo(&s);
        else
            evict_by_clock(&s);
        freed += before - shard->bytes;
        smart_shard_unlock(shard);
    }
    far_budget_give(cache->budget, freed);
    return freed;
}
