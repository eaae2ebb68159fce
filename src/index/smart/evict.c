/* What leaves the cache when its budget is spent. CLOCK: a hand goes round over each shard's tree; nodes without local
 * children that were not used since it came by last leave. The parent keeps the word. Admission: once the budget is
 * spent, a node or word gets in when a small sketch of frequencies has seen it before; so a pass over cold keys does
 * not wash out the hot ones. FIFO, the paper's policy, as an option: the order in which nodes came. No list of all
 * nodes, and no lock of all shards, in either. */
#include "index/smart/cache.h"

#include <stdlib.h>
#include <string.h>

#define EVICT_AT_ONCE 4096 /* bytes: a sweep has to pay */

typedef struct sweep {
    smart_shard *shard;
    size_t goal, freed;
} sweep;


unsigned smart_sketch_add(smart_cache *cache, uint64_t what) {
    uint64_t hash = (what ^ what >> 29) * 0x9e3779b97f4a7c15ull;
    unsigned least = 255;
    bool raised = false;
    for (unsigned row = 0; row < 2; row++) {
        _Atomic uint8_t *counter =
            &cache->sketch[(hash >> (20 * row + 12)) % (SMART_SKETCH / 2) + row * (SMART_SKETCH / 2)];
        unsigned count = atomic_load_explicit(counter, memory_order_relaxed);
        if (count < 255) { /* what is hot is written no more */
            atomic_store_explicit(counter, (uint8_t)++count, memory_order_relaxed);
            raised = true;
        }
        least = count < least ? count : least;
    }
    /* All counters are halved now and then: the past fades. */
    if (raised && atomic_fetch_add_explicit(&cache->sketched, 1, memory_order_relaxed) % (SMART_SKETCH * 8u) ==
                      SMART_SKETCH * 8u - 1)
        for (unsigned i = 0; i < SMART_SKETCH; i++) {
            unsigned count = atomic_load_explicit(&cache->sketch[i], memory_order_relaxed);
            atomic_store_explicit(&cache->sketch[i], (uint8_t)(count / 2), memory_order_relaxed);
        }
    return least;
}


/* Goes over the subtree from the hand on. True: the node itself can leave. */
static bool sweep_node(sweep *s, uint64_t *link, unsigned level, bool at_hand) {
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
        if (!sweep_node(s, entry, level + 1, at_hand && rank == start))
            continue;
        size_t before = s->shard->bytes;
        smart_local_evict(s->shard, entry, smart_local_depth(c));
        s->freed += before - s->shard->bytes;
        locals--;
        if (*entry == 0)
            smart_local_remove(c, i--);
    }
    if (s->freed >= s->goal)
        return false;
    if (hand)
        *hand = 0;
    if (locals)
        return false;
    if (smart_local_clock(c) == 0)
        return true;
    smart_local_set(c, smart_local_word(c) - SMART_CLOCK_ONE);
    return false;
}


static void sweep_shard(sweep *s) {
    if (!smart_entry_is_local(s->shard->top) || !sweep_node(s, &s->shard->top, 0, true))
        return;
    size_t before = s->shard->bytes;
    smart_local_evict(s->shard, &s->shard->top, 0);
    s->freed += before - s->shard->bytes;
}


static size_t born_bytes(unsigned depth) {
    return sizeof(smart_born) + depth + 24;
}


void smart_fifo_push(smart_shard *shard, far_bytes key, unsigned depth) {
    smart_born *born = malloc(sizeof(*born) + depth);
    if (!born)
        return;
    born->next = NULL;
    born->depth = (uint16_t)depth;
    memcpy(born->key, key.data, depth);
    if (shard->last)
        shard->last->next = born;
    else
        shard->first = born;
    shard->last = born;
    shard->bytes += born_bytes(depth);
}


bool smart_fifo_pop(smart_shard *shard, far_bytes *key, smart_born **popped) {
    smart_born *born = shard->first;
    if (!born)
        return false;
    shard->first = born->next;
    if (!shard->first)
        shard->last = NULL;
    shard->bytes -= born_bytes(born->depth);
    if (!key)
        free(born);
    else {
        *key = (far_bytes){born->key, born->depth};
        *popped = born;
    }
    return true;
}


/* The content of the oldest node goes; empty nodes are swept out like any that is not used. */
static void fifo_shard(sweep *s) {
    far_bytes key;
    smart_born *born;
    for (unsigned n = 0; n < 8 && s->freed < s->goal && smart_fifo_pop(s->shard, &key, &born); n++) {
        size_t before = s->shard->bytes;
        smart_local_forget(s->shard, key, born->depth);
        s->freed += before - s->shard->bytes;
        free(born);
    }
}


/* Called by whoever asks the budget for bytes, with no shard locked by itself; one that another thread holds is passed
 * over. */
size_t smart_cache_evict(void *ctx, size_t bytes) {
    smart_cache *cache = ctx;
    size_t goal = bytes > EVICT_AT_ONCE ? bytes : EVICT_AT_ONCE, freed = 0;
    for (unsigned turn = 0; turn < 8 * SMART_ROOT_SLOTS && freed < goal; turn++) {
        unsigned at = atomic_fetch_add_explicit(&cache->next_shard, 1, memory_order_relaxed) % SMART_ROOT_SLOTS;
        smart_shard *shard = &cache->shard[at];
        if (!far_writer_try(&cache->readers, &shard->lock, at))
            continue;
        sweep s = {shard, goal - freed, 0};
        size_t before = shard->bytes;
        if (cache->fifo)
            fifo_shard(&s);
        else
            sweep_shard(&s);
        freed += before - shard->bytes;
        smart_shard_changed(shard);
    }
    far_budget_give(cache->budget, freed);
    return freed;
}
