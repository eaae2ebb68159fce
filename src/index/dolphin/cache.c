/* The cache of inner nodes: a local tree that mirrors those of the remote one that were READ.
 *
 * A local node is a copy: its word, its depth, the epoch in which it was READ, its prefix, its entries sorted by lb. An
 * entry is the remote one, or a pointer to the local node of the child, which knows its own word. Entries older than
 * DOLPHIN_POINTER_LIFE epochs are not used: then the tag of a pointer tells lives apart for certain. All else that is
 * stale shows where it leads to.
 *
 * One tree per first byte of the key, and the root's word above it. Those who probe share a tree (base/readers.h);
 * one at a time changes it. When the budget is spent, nodes that were not used since the last round go, those below
 * first. */
#include "base/budget.h"
#include "base/error.h"
#include "base/readers.h"
#include "index/dolphin/dolphin.h"

#include <stdlib.h>

#define SHARDS     256u
#define LEVELS_MAX 64u /* deeper nodes are not cached */
#define LOCAL      (1ull << 63)

typedef struct local {
    uint64_t word; /* the remote node; lb: its position in the node above */
    uint32_t epoch;
    uint16_t depth, count;
    atomic_uchar used; /* since the eviction looked last */
} local;               /* then prefix bytes, padded to 8, and entries */

typedef struct shard {
    far_spin lock;
    uint32_t epoch; /* in which the root's entry was READ */
    uint64_t top;   /* the root's entry, or a local node; 0: not known */
    size_t bytes;
} shard;

struct dolphin_cache {
    far_budget_cache *budget;
    uint64_t root;
    atomic_uint next_shard; /* where the next eviction begins */
    shard shard[SHARDS];
    far_readers readers;
};


static uint8_t *prefix_of(const local *c) {
    return (uint8_t *)(c + 1);
}


static uint64_t *entries_of(const local *c) {
    return (uint64_t *)(prefix_of(c) + (c->depth + 7u) / 8 * 8);
}


/* What the allocator of the process takes for it. */
static size_t bytes_for(unsigned depth, unsigned count) {
    size_t bytes = sizeof(local) + (depth + 7u) / 8 * 8 + 8ull * count;
    return (bytes + 8 + 15) / 16 * 16;
}


static bool is_local(uint64_t entry) {
    return (entry & LOCAL) && !(entry >> 60 & 7);
}


/* A pointer in place of an entry looks like a node of class 0, which is never made. */
static uint64_t local_entry(const local *c, unsigned lb) {
    return (uint64_t)(uintptr_t)c | (uint64_t)lb << 51 | LOCAL;
}


static local *local_of(uint64_t entry) {
    return (local *)(uintptr_t)(entry & ((1ull << 48) - 1));
}


static uint64_t word_of(uint64_t entry) {
    return is_local(entry) ? dolphin_entry_with_lb(local_of(entry)->word, dolphin_entry_lb(entry)) : entry;
}


static shard *change(dolphin_cache *cache, unsigned number) {
    far_writer_enter(&cache->readers, &cache->shard[number].lock, number);
    return &cache->shard[number];
}


static void free_tree(shard *s, uint64_t entry) {
    if (!is_local(entry))
        return;
    local *c = local_of(entry);
    for (unsigned i = 0; i < c->count; i++)
        free_tree(s, entries_of(c)[i]);
    s->bytes -= bytes_for(c->depth, c->count);
    free(c);
}


static size_t evict(void *ctx, size_t bytes);


int dolphin_cache_new(far_index *index, dolphin_cache **cache) {
    dolphin_cache *c = calloc(1, sizeof(*c));
    *cache = NULL;
    if (!c)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a cache");
    c->root = dolphin_state_of(index)->root;
    c->budget = far_budget_register(far_index_budget(index), index->name, evict, c);
    if (!c->budget) {
        free(c);
        return 0;
    }
    *cache = c;
    return 0;
}


void dolphin_cache_free(dolphin_cache *cache) {
    if (!cache)
        return;
    for (unsigned i = 0; i < SHARDS; i++) {
        shard *s = &cache->shard[i];
        size_t before = s->bytes;
        free_tree(s, s->top);
        far_budget_give(cache->budget, before - s->bytes);
    }
    far_budget_unregister(cache->budget);
    free(cache);
}


size_t dolphin_cache_bytes(far_index *index) {
    const dolphin_cache *cache = dolphin_state_of(index)->cache;
    return cache ? far_budget_cache_used(cache->budget) : 0;
}


far_budget_cache *dolphin_cache_budget(const dolphin_cache *cache) {
    return cache->budget;
}


/* The entry with the greatest lb not beyond the position; -1: none. */
static int find_entry(const local *c, unsigned position) {
    unsigned low = 0, high = c->count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (dolphin_entry_lb(entries_of(c)[middle]) <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return (int)low - 1;
}


static bool has_prefix_of(const local *c, far_bytes key) {
    return key.length >= c->depth && memcmp(prefix_of(c), key.data, c->depth) == 0;
}


static bool is_young(uint32_t read, uint64_t epoch) {
    return (uint32_t)epoch - read <= DOLPHIN_POINTER_LIFE;
}


/* The entry of the deepest node that is known. */
static void probe(const dolphin_cache *cache, const shard *s, far_bytes key, uint64_t epoch, dolphin_hint *hint) {
    uint64_t entry = s->top;
    *hint = (dolphin_hint){.node = cache->root, .entry = word_of(entry)};
    while (is_local(entry)) {
        local *c = local_of(entry);
        if (!has_prefix_of(c, key) || !is_young(c->epoch, epoch))
            return;
        int at = find_entry(c, dolphin_position(key, c->depth));
        if (at < 0)
            return;
        if (!atomic_load_explicit(&c->used, memory_order_relaxed))
            atomic_store_explicit(&c->used, 1, memory_order_relaxed);
        entry = entries_of(c)[at];
        hint->node = c->word;
        hint->depth = c->depth;
        hint->entry = word_of(entry);
        for (hint->more = 0; hint->more < DOLPHIN_HINT_MORE && at + 1 + (int)hint->more < c->count; hint->more++)
            hint->next[hint->more] = word_of(entries_of(c)[at + 1 + (int)hint->more]);
    }
}


bool dolphin_cache_probe(dolphin_cache *cache, far_bytes key, uint64_t epoch, dolphin_hint *hint) {
    if (!cache || key.length == 0)
        return false;
    unsigned number = ((const uint8_t *)key.data)[0];
    shard *s = &cache->shard[number];
    unsigned place = far_readers_enter(&cache->readers, &s->lock, number);
    bool known = s->top && is_young(s->epoch, epoch);
    if (known)
        probe(cache, s, key, epoch, hint);
    far_readers_leave(&cache->readers, place);
    return known;
}


/* A new copy; children that the old one had, and that are still there, go on. */
static local *copy_node(const dolphin_node *node, uint64_t epoch, local *old) {
    unsigned count = 0;
    for (unsigned i = 0; i < node->capacity; i++)
        count += node->entries[i] != 0;
    local *c = malloc(bytes_for(node->depth, count) - 8);
    if (!c)
        return NULL;
    *c = (local){.word = node->word, .epoch = (uint32_t)epoch, .depth = (uint16_t)node->depth};
    atomic_init(&c->used, 1);
    memset(prefix_of(c), 0, (node->depth + 7u) / 8 * 8);
    memcpy(prefix_of(c), dolphin_node_prefix(node), node->depth);
    for (unsigned i = 0; i < node->capacity; i++) {
        uint64_t entry = node->entries[i];
        unsigned at = c->count;
        if (entry == 0)
            continue;
        for (; at > 0 && dolphin_entry_lb(entries_of(c)[at - 1]) > dolphin_entry_lb(entry); at--)
            entries_of(c)[at] = entries_of(c)[at - 1];
        entries_of(c)[at] = entry;
        c->count++;
    }
    for (unsigned i = 0, k = 0; old && i < c->count; i++) {
        uint64_t entry = entries_of(c)[i], *kept = entries_of(old);
        while (k < old->count && dolphin_entry_lb(kept[k]) < dolphin_entry_lb(entry))
            k++;
        if (k < old->count && is_local(kept[k]) && word_of(kept[k]) == entry) {
            entries_of(c)[i] = kept[k];
            kept[k] = entry;
        }
    }
    return c;
}


/* Where the local node of this depth on the way to the key hangs, or would: NULL, its parent is not known. */
static uint64_t *link_for(shard *s, far_bytes key, const dolphin_node *node) {
    uint64_t *link = &s->top;
    for (unsigned level = 0; level < LEVELS_MAX && *link; level++) {
        if (dolphin_entry_is_node(word_of(*link)) && dolphin_entry_same(word_of(*link), node->word))
            return link;
        if (!is_local(*link))
            return NULL;
        local *c = local_of(*link);
        int at = has_prefix_of(c, key) && c->depth < node->depth ? find_entry(c, dolphin_position(key, c->depth)) : -1;
        if (at < 0)
            return NULL;
        link = &entries_of(c)[at];
    }
    return NULL;
}


/* The root's entries are the tops of the trees. */
static void keep_root(dolphin_cache *cache, far_bytes key, uint64_t epoch, const dolphin_node *node) {
    unsigned number = ((const uint8_t *)key.data)[0];
    int at = dolphin_lookup(node, number + 1);
    if (at < 0)
        return;
    shard *s = change(cache, number);
    size_t before = s->bytes;
    if (word_of(s->top) != node->entries[at]) {
        free_tree(s, s->top);
        s->top = node->entries[at];
    }
    s->epoch = (uint32_t)epoch;
    far_budget_give(cache->budget, before - s->bytes);
    far_writer_leave(&s->lock);
}


void dolphin_cache_node(dolphin_cache *cache, far_bytes key, uint64_t epoch, const dolphin_node *node) {
    if (key.length == 0)
        return;
    if (node->depth == 0) {
        keep_root(cache, key, epoch, node);
        return;
    }
    unsigned number = ((const uint8_t *)key.data)[0], used = node->capacity - dolphin_free_entries(node);
    size_t bytes = bytes_for(node->depth, used);
    if (!far_budget_take(cache->budget, bytes))
        return;
    shard *s = change(cache, number);
    uint64_t *link = link_for(s, key, node), entry = 0;
    size_t before = s->bytes;
    if (link) {
        local *old = is_local(*link) ? local_of(*link) : NULL, *c = copy_node(node, epoch, old);
        if (c) {
            entry = local_entry(c, dolphin_entry_lb(*link));
            free_tree(s, *link);
            *link = entry;
            s->bytes += bytes;
        }
    }
    size_t after = s->bytes;
    far_writer_leave(&s->lock);
    far_budget_give(cache->budget, before + bytes - after);
}


/* A node is not what the cache said: its copy goes, and all below it. The word stays in its parent, which is READ next. */
void dolphin_cache_drop(dolphin_cache *cache, far_bytes key, uint64_t word) {
    if (!cache || key.length == 0)
        return;
    unsigned number = ((const uint8_t *)key.data)[0];
    shard *s = change(cache, number);
    size_t before = s->bytes;
    uint64_t *link = &s->top;
    for (unsigned level = 0; level < LEVELS_MAX && is_local(*link); level++) {
        local *c = local_of(*link);
        if (dolphin_entry_same(c->word, word)) {
            uint64_t nothing = dolphin_null(dolphin_entry_lb(*link), 0); /* the node above is to be READ */
            free_tree(s, *link);
            *link = link == &s->top ? 0 : nothing;
            break;
        }
        int at = has_prefix_of(c, key) ? find_entry(c, dolphin_position(key, c->depth)) : -1;
        if (at < 0)
            break;
        link = &entries_of(c)[at];
    }
    far_budget_give(cache->budget, before - s->bytes);
    far_writer_leave(&s->lock);
}


/* Nodes without local children that were not used since the last round. */
static void evict_below(shard *s, uint64_t *link) {
    local *c = local_of(*link);
    bool leaf = true;
    for (unsigned i = 0; i < c->count; i++)
        if (is_local(entries_of(c)[i])) {
            evict_below(s, &entries_of(c)[i]);
            leaf &= !is_local(entries_of(c)[i]);
        }
    if (leaf && !atomic_exchange_explicit(&c->used, 0, memory_order_relaxed)) {
        uint64_t word = word_of(*link);
        free_tree(s, *link);
        *link = word;
    }
}


static size_t evict(void *ctx, size_t bytes) {
    dolphin_cache *cache = ctx;
    size_t freed = 0;
    for (unsigned i = 0; i < 2 * SHARDS && freed < bytes; i++) {
        unsigned number = atomic_fetch_add_explicit(&cache->next_shard, 1, memory_order_relaxed) % SHARDS;
        shard *s = &cache->shard[number];
        if (!far_writer_try(&cache->readers, &s->lock, number))
            continue;
        size_t before = s->bytes;
        if (is_local(s->top))
            evict_below(s, &s->top);
        freed += before - s->bytes;
        far_writer_leave(&s->lock);
    }
    if (freed)
        far_budget_give(cache->budget, freed);
    return freed;
}
