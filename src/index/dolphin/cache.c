/* The cache of inner nodes in a handle: a local tree with copies of those remote nodes that were READ.
 * dolphin_cache_probe descends in it to the deepest cached node that covers a key.
 *
 * A local node consists of the entry word of the remote node, its depth, the epoch in which it was READ, its prefix,
 * and its entries in ascending order. If a child is cached too, its entry is a pointer to the local child. A local node
 * that is older than DOLPHIN_POINTER_MAX_AGE epochs is not used, because the tag of its pointers might have wrapped
 * around. Other outdated content is harmless: the operation detects it at the node or leaf to which it leads.
 *
 * There is one local tree per first byte of the key. Readers of a tree share its lock (base/readers.h); one thread at a
 * time changes it. When the budget is used up, eviction drops nodes that were not used since the eviction last examined
 * them, children before their parents. */
#include "base/budget.h"
#include "base/error.h"
#include "base/readers.h"
#include "index/dolphin/dolphin.h"

#include <stdlib.h>

#define SHARDS     256u
#define LEVELS_MAX 64u /* greatest number of levels in a local tree; nodes below are not cached */
#define LOCAL_FLAG (1ull << 63)

typedef struct local_node {
    /* Entry word of the remote node. Its lower bound field contains the position of the node in its parent. */
    uint64_t word;
    uint32_t epoch;
    uint16_t depth, count;
    atomic_uchar used; /* set by each lookup, cleared by the eviction */
} local_node;          /* In memory, a local node is followed by its prefix, padded to 8 bytes, and by its entries. */

typedef struct shard {
    far_spin lock;
    uint32_t epoch; /* epoch in which the root's entry for this first byte was READ */
    uint64_t top;   /* the root's entry for this first byte, or a pointer to the local node for it; 0: not cached */
    size_t bytes;
} shard;

struct dolphin_cache {
    far_budget_cache *budget;
    uint64_t root;
    atomic_uint next_shard; /* the shard where the next eviction begins */
    shard shard[SHARDS];
    far_readers readers;
};


static uint8_t *local_prefix(const local_node *c) {
    return (uint8_t *)(c + 1);
}


static uint64_t *local_entries(const local_node *c) {
    return (uint64_t *)(local_prefix(c) + (c->depth + 7u) / 8 * 8);
}


/* Returns the number of bytes that malloc uses for a local node. */
static size_t allocated_bytes(unsigned depth, unsigned count) {
    size_t bytes = sizeof(local_node) + (depth + 7u) / 8 * 8 + 8ull * count;
    return (bytes + 8 + 15) / 16 * 16;
}


static bool entry_is_local(uint64_t entry) {
    return (entry & LOCAL_FLAG) && !(entry >> 60 & 7);
}


/* Encodes the pointer to a local node as an entry. The kind field of the result would name a node of class 0. Remote
 * nodes of class 0 do not exist, so the result cannot be mistaken for the entry of a remote node. */
static uint64_t local_to_entry(const local_node *c, unsigned lb) {
    return (uint64_t)(uintptr_t)c | (uint64_t)lb << 51 | LOCAL_FLAG;
}


static local_node *entry_to_local(uint64_t entry) {
    return (local_node *)(uintptr_t)(entry & ((1ull << 48) - 1));
}


static uint64_t remote_entry(uint64_t entry) {
    return entry_is_local(entry) ? dolphin_entry_with_lb(entry_to_local(entry)->word, dolphin_entry_lb(entry)) : entry;
}


static shard *lock_shard(dolphin_cache *cache, unsigned number) {
    far_writer_enter(&cache->readers, &cache->shard[number].lock, number);
    return &cache->shard[number];
}


static void free_tree(shard *s, uint64_t entry) {
    if (!entry_is_local(entry))
        return;
    local_node *c = entry_to_local(entry);
    for (unsigned i = 0; i < c->count; i++)
        free_tree(s, local_entries(c)[i]);
    s->bytes -= allocated_bytes(c->depth, c->count);
    free(c);
}


static size_t evict_bytes(void *ctx, size_t bytes);


int dolphin_cache_new(far_index *index, dolphin_cache **cache) {
    dolphin_cache *c = calloc(1, sizeof(*c));
    *cache = NULL;
    if (!c)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a cache");
    c->root = dolphin_state_of(index)->root;
    c->budget = far_budget_register(far_index_budget(index), index->name, evict_bytes, c);
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


/* Returns the index of the entry with the greatest lower bound that does not exceed the position, or -1. */
static int find_entry(const local_node *c, unsigned position) {
    unsigned low = 0, high = c->count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (dolphin_entry_lb(local_entries(c)[middle]) <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return (int)low - 1;
}


static bool local_has_prefix_of(const local_node *c, far_bytes key) {
    return key.length >= c->depth && memcmp(local_prefix(c), key.data, c->depth) == 0;
}


static bool epoch_is_recent(uint32_t read, uint64_t epoch) {
    return (uint32_t)epoch - read <= DOLPHIN_POINTER_MAX_AGE;
}


/* The deepest local node that covers a key, and the index of its entry for the key. */
typedef struct local_place {
    const local_node *node; /* NULL if only the entry of the root is known */
    int at;
} local_place;


static local_place find_deepest_local(const shard *s, far_bytes key, uint64_t epoch) {
    local_place place = {0};
    for (uint64_t entry = s->top; entry_is_local(entry); entry = local_entries(place.node)[place.at]) {
        local_node *c = entry_to_local(entry);
        if (!local_has_prefix_of(c, key) || !epoch_is_recent(c->epoch, epoch))
            break;
        int at = find_entry(c, dolphin_position(key, c->depth));
        if (at < 0)
            break;
        if (!atomic_load_explicit(&c->used, memory_order_relaxed))
            atomic_store_explicit(&c->used, 1, memory_order_relaxed);
        place = (local_place){c, at};
    }
    return place;
}


bool dolphin_cache_probe(dolphin_cache *cache, far_bytes key, uint64_t epoch, dolphin_cache_hit *hit) {
    if (!cache || key.length == 0)
        return false;
    unsigned number = ((const uint8_t *)key.data)[0];
    shard *s = &cache->shard[number];
    unsigned reader = far_readers_enter(&cache->readers, &s->lock, number);
    bool known = s->top && epoch_is_recent(s->epoch, epoch);
    if (known) {
        local_place place = find_deepest_local(s, key, epoch);
        const local_node *c = place.node;
        *hit = c ? (dolphin_cache_hit){c->word, c->depth, remote_entry(local_entries(c)[place.at])}
                 : (dolphin_cache_hit){cache->root, 0, remote_entry(s->top)};
    }
    far_readers_leave(&cache->readers, reader);
    return known;
}


unsigned dolphin_cache_entries_from(dolphin_cache *cache, far_bytes key, uint64_t epoch, bool backward, unsigned most,
                                    uint64_t entries[]) {
    unsigned number = ((const uint8_t *)key.data)[0], count = 0;
    if (!cache)
        return 0;
    shard *s = &cache->shard[number];
    unsigned reader = far_readers_enter(&cache->readers, &s->lock, number);
    if (s->top && epoch_is_recent(s->epoch, epoch)) {
        local_place place = find_deepest_local(s, key, epoch);
        for (int at = place.at; place.node && count < most && at >= 0 && at < place.node->count;
             at += backward ? -1 : 1)
            entries[count++] = remote_entry(local_entries(place.node)[at]);
    }
    far_readers_leave(&cache->readers, reader);
    return count;
}


/* Builds a local copy of a node. The local children of the old copy are moved to the new one if the node still names
 * them. */
static local_node *build_local_copy(const dolphin_node *node, uint64_t epoch, local_node *old) {
    unsigned count = 0;
    for (unsigned i = 0; i < node->capacity; i++)
        count += node->entries[i] != 0;
    local_node *c = malloc(allocated_bytes(node->depth, count) - 8);
    if (!c)
        return NULL;
    *c = (local_node){.word = node->word, .epoch = (uint32_t)epoch, .depth = (uint16_t)node->depth};
    atomic_init(&c->used, 1);
    memset(local_prefix(c), 0, (node->depth + 7u) / 8 * 8);
    memcpy(local_prefix(c), dolphin_node_prefix(node), node->depth);
    for (unsigned i = 0; i < node->capacity; i++) {
        uint64_t entry = node->entries[i];
        unsigned at = c->count;
        if (entry == 0)
            continue;
        for (; at > 0 && dolphin_entry_lb(local_entries(c)[at - 1]) > dolphin_entry_lb(entry); at--)
            local_entries(c)[at] = local_entries(c)[at - 1];
        local_entries(c)[at] = entry;
        c->count++;
    }
    for (unsigned i = 0, k = 0; old && i < c->count; i++) {
        uint64_t entry = local_entries(c)[i], *kept = local_entries(old);
        while (k < old->count && dolphin_entry_lb(kept[k]) < dolphin_entry_lb(entry))
            k++;
        if (k < old->count && entry_is_local(kept[k]) && remote_entry(kept[k]) == entry) {
            local_entries(c)[i] = kept[k];
            kept[k] = entry;
        }
    }
    return c;
}


/* Returns the pointer to the word that leads to the local copy of the node, or that will lead to it once the copy
 * exists: an entry of the local parent, or the top of the tree. Returns NULL if the parent is not cached. */
static uint64_t *find_link(shard *s, far_bytes key, const dolphin_node *node) {
    uint64_t *link = &s->top;
    for (unsigned level = 0; level < LEVELS_MAX && *link; level++) {
        if (dolphin_entry_is_node(remote_entry(*link)) && dolphin_entries_match(remote_entry(*link), node->word))
            return link;
        if (!entry_is_local(*link))
            return NULL;
        local_node *c = entry_to_local(*link);
        int at =
            local_has_prefix_of(c, key) && c->depth < node->depth ? find_entry(c, dolphin_position(key, c->depth)) : -1;
        if (at < 0)
            return NULL;
        link = &local_entries(c)[at];
    }
    return NULL;
}


/* Stores the entry of the root for the first byte of the key. This entry becomes the root of the local tree for that
 * byte. */
static void cache_root_entry(dolphin_cache *cache, far_bytes key, uint64_t epoch, const dolphin_node *node) {
    unsigned number = ((const uint8_t *)key.data)[0];
    int at = dolphin_find_entry(node, number + 1);
    if (at < 0)
        return;
    shard *s = lock_shard(cache, number);
    size_t before = s->bytes;
    if (remote_entry(s->top) != node->entries[at]) {
        free_tree(s, s->top);
        s->top = node->entries[at];
    }
    s->epoch = (uint32_t)epoch;
    far_budget_give(cache->budget, before - s->bytes);
    far_writer_leave(&s->lock);
}


void dolphin_cache_insert(dolphin_cache *cache, far_bytes key, uint64_t epoch, const dolphin_node *node) {
    if (key.length == 0)
        return;
    if (node->depth == 0) {
        cache_root_entry(cache, key, epoch, node);
        return;
    }
    unsigned number = ((const uint8_t *)key.data)[0], used = node->capacity - dolphin_count_free_entries(node);
    size_t bytes = allocated_bytes(node->depth, used);
    if (!far_budget_take(cache->budget, bytes))
        return;
    shard *s = lock_shard(cache, number);
    uint64_t *link = find_link(s, key, node), entry = 0;
    size_t before = s->bytes;
    if (link) {
        local_node *old = entry_is_local(*link) ? entry_to_local(*link) : NULL, *c = build_local_copy(node, epoch, old);
        if (c) {
            entry = local_to_entry(c, dolphin_entry_lb(*link));
            free_tree(s, *link);
            *link = entry;
            s->bytes += bytes;
        }
    }
    size_t after = s->bytes;
    far_writer_leave(&s->lock);
    far_budget_give(cache->budget, before + bytes - after);
}


/* Removes the local copy of a replaced node, and all local nodes below it. The cached parent is outdated as well, so
 * its entry for the node is made invalid and the next operation READs the parent. */
void dolphin_cache_drop(dolphin_cache *cache, far_bytes key, uint64_t word) {
    if (!cache || key.length == 0)
        return;
    unsigned number = ((const uint8_t *)key.data)[0];
    shard *s = lock_shard(cache, number);
    size_t before = s->bytes;
    uint64_t *link = &s->top;
    for (unsigned level = 0; level < LEVELS_MAX && entry_is_local(*link); level++) {
        local_node *c = entry_to_local(*link);
        if (dolphin_entries_match(c->word, word)) {
            /* This NULL entry covers no position, so the next lookup ends at the parent. */
            uint64_t nothing = dolphin_null_entry(dolphin_entry_lb(*link), 0);
            free_tree(s, *link);
            *link = link == &s->top ? 0 : nothing;
            break;
        }
        int at = local_has_prefix_of(c, key) ? find_entry(c, dolphin_position(key, c->depth)) : -1;
        if (at < 0)
            break;
        link = &local_entries(c)[at];
    }
    far_budget_give(cache->budget, before - s->bytes);
    far_writer_leave(&s->lock);
}


/* Evicts the local nodes below *link that have no local children and were not used since the eviction last examined
 * them. */
static void evict_unused_below(shard *s, uint64_t *link) {
    local_node *c = entry_to_local(*link);
    bool leaf = true;
    for (unsigned i = 0; i < c->count; i++)
        if (entry_is_local(local_entries(c)[i])) {
            evict_unused_below(s, &local_entries(c)[i]);
            leaf &= !entry_is_local(local_entries(c)[i]);
        }
    if (leaf && !atomic_exchange_explicit(&c->used, 0, memory_order_relaxed)) {
        uint64_t word = remote_entry(*link);
        free_tree(s, *link);
        *link = word;
    }
}


static size_t evict_bytes(void *ctx, size_t bytes) {
    dolphin_cache *cache = ctx;
    size_t freed = 0;
    for (unsigned i = 0; i < 2 * SHARDS && freed < bytes; i++) {
        unsigned number = atomic_fetch_add_explicit(&cache->next_shard, 1, memory_order_relaxed) % SHARDS;
        shard *s = &cache->shard[number];
        if (!far_writer_try(&cache->readers, &s->lock, number))
            continue;
        size_t before = s->bytes;
        if (entry_is_local(s->top))
            evict_unused_below(s, &s->top);
        freed += before - s->bytes;
        far_writer_leave(&s->lock);
    }
    if (freed)
        far_budget_give(cache->budget, freed);
    return freed;
}
