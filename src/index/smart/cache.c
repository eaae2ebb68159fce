/* The ART cache is a local radix tree that mirrors the cached part of the remote tree's internal nodes. Everything in
 * it may be stale; find_cached.c proves what it uses.
 *
 * A local node mirrors one remote node, or none if it exists only because two paths part there. Its entries are sorted
 * by partial key. An entry is a slot word of the remote node, or a pointer to the local node of the child, which
 * contains the child's address. So a node costs 16 bytes, the bytes of its path, and 8 bytes per child. The entries of
 * a list node come from one READ of the list; of a DIR node, which is READ slot by slot, only those slots are cached.
 *
 * There is one tree, called a shard, per first byte of the key. Readers share a shard without writing to a common cache
 * line (base/readers.h); one thread at a time changes it. */
#include "index/smart/cache.h"
#include "base/budget.h"
#include "base/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LEVELS_MAX 64 /* limit of the number of local nodes on one path; deeper nodes are not cached */
/* distance between the epoch_base of a shard and the epoch in which it was set; more than SMART_NODE_EPOCHS + 1 */
#define EPOCH_MARGIN 64u

_Static_assert(EPOCH_MARGIN > SMART_NODE_EPOCHS + 2, "seen_linked = 0 never looks recent");


/* Returns the number of bytes that malloc uses for an allocation of `bytes` bytes, with its header and rounding. */
static size_t heap_bytes(size_t bytes) {
    size_t with_head = (bytes + 8 + 15) / 16 * 16;
    return with_head < 32 ? 32 : with_head;
}


static size_t local_bytes(unsigned skip, unsigned room) {
    return heap_bytes(sizeof(smart_local) + (skip + 7u) / 8 * 8 + 8ull * room);
}


static size_t local_size(const smart_local *c) {
    return local_bytes(c->path_length, c->capacity);
}


/* Returns the number of entries that fit into the memory that malloc uses for a node with `count` entries. Because
 * malloc rounds up, the result may be larger than `count`. */
static unsigned entries_that_fit(unsigned skip, unsigned count) {
    size_t fixed = sizeof(smart_local) + (skip + 7u) / 8 * 8;
    return (unsigned)((local_bytes(skip, count) - 8 - fixed) / 8);
}


static smart_local *new_local(smart_shard *shard, const uint8_t *path, unsigned skip, unsigned depth, unsigned count) {
    unsigned room = entries_that_fit(skip, count);
    smart_local *c = malloc(local_bytes(skip, room) - 8);
    if (!c)
        return NULL;
    memset(c, 0, sizeof(*c));
    smart_local_store_head(c, smart_local_make_head(0, depth, 0));
    c->capacity = (uint16_t)room;
    c->path_length = (uint16_t)skip;
    if (skip)
        memcpy(smart_local_path(c), path, skip);
    shard->bytes += local_size(c);
    return c;
}


static void free_local(smart_shard *shard, smart_local *c) {
    assert(shard->bytes >= local_size(c) && c->count <= c->capacity);
    shard->bytes -= local_size(c);
    free(c);
}


static void free_tree(smart_shard *shard, uint64_t entry) {
    if (!smart_entry_is_local(entry))
        return;
    smart_local *c = smart_entry_local(entry);
    for (unsigned i = 0; i < c->count; i++)
        free_tree(shard, smart_local_entries(c)[i]);
    free_local(shard, c);
}


/* Returns a signed number by which entries are sorted in the order of their partial keys. The partial key "the key ends
 * here" is first, because its bit, which is above the byte, becomes the sign bit. The bits below the partial key do not
 * matter, because a node has one entry per partial key, and the search compares with the smallest number of a partial
 * key. */
static inline int64_t entry_order(uint64_t entry) {
    return (int64_t)(entry << 12);
}


/* Binary search in first[0 .. left - 1], which is sorted. Returns the first entry that does not precede `order`. */
static inline const uint64_t *lower_bound(const uint64_t *first, unsigned left, int64_t order) {
    for (unsigned half; left > 0; left -= half) {
        half = left - left / 2;
        first += entry_order(first[half - 1]) < order ? half : 0;
    }
    return first;
}


#define LINEAR_STEPS 6u /* number of entries that are compared one by one before the binary search begins */


/* Finds the entry of a partial key. Returns true and its index in *at, or false and the index where the entry would be
 * inserted. Most keys have evenly distributed bytes, so the search begins at the index that the entry has in an even
 * distribution. In a node with all 256 children this is the exact index. */
static inline __attribute__((always_inline)) bool find_entry(const smart_local *c, unsigned part, unsigned *at) {
    const uint64_t *entries = smart_local_entries(c), *end = entries + c->count;
    const uint64_t *entry = entries + ((part & 0xff) * c->count >> 8);
    int64_t order = entry_order((uint64_t)part << 43);
    unsigned steps = 0;
    if (entry < end && entry_order(*entry) < order) {
        while (++entry < end && entry_order(*entry) < order && steps++ < LINEAR_STEPS)
            ;
        if (steps > LINEAR_STEPS)
            entry = lower_bound(entry, (unsigned)(end - entry), order);
    } else {
        while (entry > entries && entry_order(entry[-1]) >= order && steps++ < LINEAR_STEPS)
            entry--;
        if (steps > LINEAR_STEPS)
            entry = lower_bound(entries, (unsigned)(entry - entries), order);
    }
    *at = (unsigned)(entry - entries);
    return entry < end && smart_entry_part(*entry) == part;
}


static void remove_entry(smart_local *c, unsigned at) {
    uint64_t *entries = smart_local_entries(c);
    assert(at < c->count);
    memmove(entries + at, entries + at + 1, (c->count - at - 1) * sizeof(*entries));
    c->count--;
}


/* Inserts an entry into the local node that *link points to. The node may move in memory; in that case *link is changed
 * too. Returns false if there is no memory. */
static bool add_entry(smart_shard *shard, uint64_t *link, uint64_t entry) {
    smart_local *c = smart_entry_local(*link);
    unsigned at;
    find_entry(c, smart_entry_part(entry), &at);
    if (c->count == c->capacity) {
        unsigned room = entries_that_fit(c->path_length, c->count + 1u);
        size_t before = local_size(c);
        smart_local *moved = realloc(c, local_bytes(c->path_length, room) - 8);
        if (!moved)
            return false;
        c = moved;
        c->capacity = (uint16_t)room;
        shard->bytes += local_size(c) - before;
        *link = smart_entry_make(c, smart_entry_part(*link));
    }
    uint64_t *entries = smart_local_entries(c);
    assert(at <= c->count && c->count < c->capacity);
    memmove(entries + at + 1, entries + at, (c->count - at) * sizeof(*entries));
    entries[at] = entry;
    c->count++;
    return true;
}


/* Returns the number of bytes of the node's path that agree with the key from the key's byte `from` on. */
static unsigned matching_path_bytes(const smart_local *c, far_bytes key, unsigned from) {
    const uint8_t *bytes = key.data;
    unsigned n = 0;
    while (n < c->path_length && from + n < key.length && smart_local_path(c)[n] == bytes[from + n])
        n++;
    return n;
}


/* Splits the path of the local node that *link points to after `n` bytes, by inserting a local node that mirrors no
 * remote node. Returns false if there is no memory. */
static bool cut_path(smart_shard *shard, uint64_t *link, unsigned n) {
    smart_local *c = smart_entry_local(*link);
    assert(n < c->path_length);
    unsigned depth = smart_local_depth(c), above = depth - c->path_length + n, part = smart_local_path(c)[n];
    smart_local *index = new_local(shard, smart_local_path(c), n, above, 1);
    if (!index)
        return false;
    smart_local *shorter = new_local(shard, smart_local_path(c) + n + 1, c->path_length - n - 1u, depth, c->count);
    if (!shorter) {
        free_local(shard, index);
        return false;
    }
    smart_local_store_head(shorter, smart_local_load_head(c));
    shorter->size_hint = c->size_hint;
    shorter->seen_linked = c->seen_linked;
    shorter->count = c->count;
    memcpy(smart_local_entries(shorter), smart_local_entries(c), c->count * sizeof(uint64_t));
    free_local(shard, c);
    smart_local_entries(index)[0] = smart_entry_make(shorter, part);
    index->count = 1;
    *link = smart_entry_make(index, smart_entry_part(*link));
    return true;
}


/* Returns the link to the local node for the first `depth` bytes of the key; with `make` the node is created if it does
 * not exist. Returns NULL if it does not exist, or if there is no memory. *parent is the local node that contains the
 * link; NULL: the link is the top of the shard. */
static uint64_t *locate_node(smart_shard *shard, far_bytes key, unsigned depth, bool make, smart_local **parent) {
    uint64_t *link = &shard->top;
    assert(depth >= 1 && depth <= key.length);
    *parent = NULL;
    unsigned from = 1, at;
    for (unsigned level = 0; level < LEVELS_MAX; level++) {
        if (!smart_entry_is_local(*link)) {
            smart_local *c = make ? new_local(shard, (const uint8_t *)key.data + from, depth - from, depth, 2) : NULL;
            if (!c)
                return NULL;
            *link = smart_entry_make(c, ((const uint8_t *)key.data)[from - 1]);
            return link;
        }
        smart_local *c = smart_entry_local(*link);
        unsigned here = smart_local_depth(c), same = matching_path_bytes(c, key, from);
        if (same == c->path_length && here == depth)
            return link;
        /* Split the path where it differs from the key, or at the wanted depth if the path ends beyond that depth. */
        if (same < c->path_length || here > depth) {
            unsigned until = from + same < depth ? from + same : depth;
            if (!make || !cut_path(shard, link, until - from))
                return NULL;
            if (until == depth)
                return link;
            c = smart_entry_local(*link);
            here = until;
        }
        unsigned part = smart_part(key, here);
        if (!find_entry(c, part, &at)) {
            if (!make)
                return NULL;
            smart_local *child = new_local(shard, (const uint8_t *)key.data + here + 1, depth - here - 1, depth, 2);
            if (!child)
                return NULL;
            if (!add_entry(shard, link, smart_entry_make(child, part))) {
                free_local(shard, child);
                return NULL;
            }
            c = smart_entry_local(*link);
            find_entry(c, part, &at);
            *parent = c;
            return &smart_local_entries(c)[at];
        }
        *parent = c;
        link = &smart_local_entries(c)[at];
        from = here + 1;
    }
    return NULL;
}


/* Stores a word of the remote node as an entry. A local child stays if the word still names the node that the child
 * mirrors. Returns false if there is no memory. */
static bool store_word(smart_shard *shard, uint64_t *link, uint64_t word) {
    smart_local *c = smart_entry_local(*link);
    unsigned at;
    if (find_entry(c, smart_word_part(word), &at)) {
        uint64_t *entry = &smart_local_entries(c)[at];
        if (smart_entry_is_local(*entry)) {
            smart_local *child = smart_entry_local(*entry);
            far_addr addr = smart_local_addr(child);
            if (smart_word_kind_of(word) == SMART_NODE && (addr == 0 || addr == smart_word_addr(word))) {
                child->size_hint = smart_word_hint(word) & 0x7f;
                return true;
            }
            free_tree(shard, *entry);
        }
        if (smart_word_kind_of(word) == SMART_NONE)
            remove_entry(c, at);
        /* A cached word may have the mark SMART_CACHED_RECYCLED, which a word in far memory never has. The comparison
         * ignores the mark, so that an equal word does not remove it. */
        else if ((*entry & ~SMART_CACHED_RECYCLED) != word)
            *entry = word;
        return true;
    }
    return smart_word_kind_of(word) == SMART_NONE || add_entry(shard, link, word);
}


/* Drops the entries of a node that are words, and keeps those that are local children. Afterwards the node mirrors no
 * remote node. */
static void discard_words(smart_local *c) {
    unsigned kept = 0;
    uint64_t *entries = smart_local_entries(c);
    for (unsigned i = 0; i < c->count; i++)
        if (smart_entry_is_local(entries[i]))
            entries[kept++] = entries[i];
    c->count = (uint16_t)kept;
    c->seen_linked = 0;
    smart_local_store_head(c, smart_local_make_head(0, smart_local_depth(c), 0));
}


/* Drops the words of a node and returns the memory that they used. A node without local children is freed as well. */
static void discard_content(smart_shard *shard, uint64_t *link, smart_local *parent) {
    smart_local *c = smart_entry_local(*link);
    discard_words(c);
    if (c->count == 0) {
        free_local(shard, c);
        if (parent)
            remove_entry(parent, (unsigned)(link - smart_local_entries(parent)));
        else
            *link = 0;
        return;
    }
    size_t before = local_size(c);
    unsigned room = entries_that_fit(c->path_length, c->count);
    smart_local *moved = realloc(c, local_bytes(c->path_length, room) - 8);
    if (!moved)
        return;
    moved->capacity = (uint16_t)room;
    shard->bytes -= before - local_size(moved);
    *link = smart_entry_make(moved, smart_entry_part(*link));
}


/* Prefetches the cache lines that a search in the node will read, while the first line is loaded. Most nodes take a few
 * cache lines. */
static void prefetch_local(const smart_local *c) {
    for (unsigned line = 1; line < 4; line++)
        __builtin_prefetch((const char *)c + 64 * line);
}


bool smart_cache_probe(smart_cache *cache, far_bytes key, unsigned below, smart_cached *result) {
    unsigned number = smart_part(key, 0), from = 1, at;
    const smart_shard *shard = &cache->shard[number];
    const smart_local *last = NULL;
    unsigned place = far_readers_enter(&cache->readers, &shard->lock, number);
    uint64_t entry = shard->top, word = entry;
    bool top = entry && !smart_entry_is_local(entry) && below > 0;
    while (smart_entry_is_local(entry)) {
        smart_local *c = smart_entry_local(entry);
        prefetch_local(c);
        unsigned depth = smart_local_depth(c);
        if (depth >= below || depth > key.length || matching_path_bytes(c, key, from) < c->path_length)
            break;
        entry = find_entry(c, smart_part(key, depth), &at) ? smart_local_entries(c)[at] : 0;
        if (smart_local_addr(c)) {
            last = c;
            word = smart_entry_is_local(entry) ? 0 : entry;
            smart_local_touch(c);
        }
        from = depth + 1;
    }
    if (last)
        *result = (smart_cached){smart_local_addr(last),   smart_local_depth(last),      word, last->count,
                                 smart_local_layout(last), smart_local_is_recycled(last)};
    else if (top)
        *result = (smart_cached){.word = word};
    far_readers_leave(&cache->readers, place);
    bool found = last || top;
    if (found && atomic_load_explicit(&cache->budget_is_spent, memory_order_relaxed))
        smart_sketch_add(cache, result->node ^ smart_part(key, result->depth));
    return found;
}


void smart_cache_prefetch(smart_cache *cache, far_bytes key) {
    unsigned number = smart_part(key, 0), at;
    const smart_shard *shard = &cache->shard[number];
    unsigned place = far_readers_enter(&cache->readers, &shard->lock, number);
    if (smart_entry_is_local(shard->top)) {
        const smart_local *top = smart_entry_local(shard->top);
        bool found = find_entry(top, smart_part(key, smart_local_depth(top)), &at);
        uint64_t entry = found ? smart_local_entries(top)[at] : 0;
        if (smart_entry_is_local(entry)) {
            __builtin_prefetch(smart_entry_local(entry));
            prefetch_local(smart_entry_local(entry));
        }
    }
    far_readers_leave(&cache->readers, place);
}


/* Takes bytes of the budget for a change. Returns false if the change should not be made. When the budget is spent,
 * only nodes and words that were requested before are admitted (see cache_evict.c). */
static bool reserve_bytes(smart_cache *cache, size_t bytes, uint64_t what) {
    bool full = far_budget_used(cache->handle_budget) + bytes > far_budget_limit(cache->handle_budget);
    unsigned seen = smart_sketch_add(cache, what);
    if (full != atomic_load_explicit(&cache->budget_is_spent, memory_order_relaxed))
        atomic_store_explicit(&cache->budget_is_spent, full, memory_order_relaxed);
    if (full && !cache->fifo && seen < 2)
        return false;
    return far_budget_take(cache->budget, bytes);
}


/* Returns bytes to the budget: those that the change reserved and did not need, and those that it freed. */
static void return_unused_bytes(smart_cache *cache, size_t taken, size_t before, size_t after) {
    if (taken + before > after)
        far_budget_give(cache->budget, taken + before - after);
}


/* Returns an upper bound of the bytes that one change can need. The change may allocate the node, a node that splits a
 * path, a shortened copy, and a larger parent. */
static size_t bytes_upper_bound(unsigned depth, unsigned words) {
    return local_bytes(depth, words + 2) + 3 * local_bytes(depth, 2) + 8 * (SMART_PARTS + 3) + 64;
}


/* Returns the size hint of the slot word for a node that has replaced another node. The gap0 bit (see layout.h) stays
 * the same, and the read type follows from the number of children of the new node. */
static unsigned size_hint_of_new(const smart_local *c, const smart_node *node, unsigned children) {
    uint64_t before = smart_word(0, 0, SMART_NODE, c->size_hint);
    return smart_word_hint(
        smart_word_with_read_type(before, smart_read_type_for(children + 1, node->layout, SMART_READ_TYPES)));
}


void smart_cache_store_node(smart_cache *cache, far_bytes key, const smart_node *node) {
    const uint64_t *slots = smart_slots(node);
    unsigned count = 0, known = 0;
    for (; count < node->words && (slots[count] || node->layout == SMART_DIR); count++) {
        if (slots[count] & SMART_FROZEN_BIT)
            return;
        known += slots[count] != 0;
    }
    size_t taken = bytes_upper_bound(node->depth, known);
    if (smart_ctl_state(node->ctl) == SMART_FROZEN || !reserve_bytes(cache, taken, node->addr))
        return;
    smart_shard *shard = smart_shard_lock(cache, smart_part(key, 0));
    size_t before = shard->bytes;
    smart_local *parent;
    uint64_t *link = locate_node(shard, key, node->depth, true, &parent);
    if (link) {
        smart_local *c = smart_entry_local(*link);
        bool fresh = smart_local_addr(c) == 0;
        if (smart_local_addr(c) != node->addr) {
            discard_words(c);
            c->size_hint = size_hint_of_new(c, node, known) & 0x7f;
        }
        smart_local_store_head(c, smart_local_make_head(node->addr, node->depth, node->layout) | smart_local_clock(c) |
                                      (smart_ctl_is_recycled(node->ctl) ? SMART_LOCAL_RECYCLED : 0));
        for (unsigned i = 0; i < count; i++)
            if (slots[i] && !store_word(shard, link, slots[i]))
                break;
        if (fresh && cache->fifo)
            smart_fifo_push(shard, key, node->depth);
    }
    size_t after = shard->bytes;
    smart_shard_unlock(shard);
    return_unused_bytes(cache, taken, before, after);
}


static void forget_seen_linked(uint64_t entry) {
    if (!smart_entry_is_local(entry))
        return;
    smart_local *c = smart_entry_local(entry);
    c->seen_linked = 0;
    for (unsigned i = 0; i < c->count; i++)
        forget_seen_linked(smart_local_entries(c)[i]);
}


/* Records in which epoch the remote node was seen linked. If the difference of the epoch from the epoch_base of the
 * shard does not fit any more, the shard gets a new epoch_base and the recorded differences are dropped. */
static void note_seen_linked(smart_shard *shard, smart_local *c, uint64_t epoch) {
    if (epoch - shard->epoch_base > UINT16_MAX) {
        forget_seen_linked(shard->top);
        shard->epoch_base = epoch - EPOCH_MARGIN;
    }
    uint16_t seen = (uint16_t)(epoch - shard->epoch_base);
    if (seen > c->seen_linked)
        c->seen_linked = seen;
}


void smart_cache_store_word(smart_cache *cache, far_bytes key, far_addr node, unsigned depth, unsigned layout,
                            uint64_t word, uint64_t linked_in) {
    size_t taken = bytes_upper_bound(depth, 2);
    if (!reserve_bytes(cache, taken, node ^ smart_word_part(word)))
        return;
    smart_shard *shard = smart_shard_lock(cache, smart_part(key, 0));
    size_t before = shard->bytes;
    if (node == 0) { /* node 0 stands for the root, so the word belongs to the root. */
        bool local = smart_entry_is_local(shard->top);
        far_addr addr = local ? smart_local_addr(smart_entry_local(shard->top)) : 0;
        if (local && addr && (smart_word_kind_of(word) != SMART_NODE || addr != smart_word_addr(word))) {
            free_tree(shard, shard->top);
            local = false;
        }
        if (!local)
            shard->top = smart_word_kind_of(word) == SMART_NONE ? 0 : word;
    } else {
        smart_local *parent;
        uint64_t *link = locate_node(shard, key, depth, layout == SMART_DIR, &parent);
        smart_local *c = link ? smart_entry_local(*link) : NULL;
        bool fresh = c && smart_local_addr(c) == 0;
        if (c && layout == SMART_DIR && smart_local_addr(c) != node) {
            discard_words(c);
            smart_local_store_head(c, smart_local_make_head(node, depth, layout) | smart_local_clock(c));
        }
        if (c && smart_local_addr(c) == node) {
            store_word(shard, link, word);
            if (linked_in && layout == SMART_DIR)
                note_seen_linked(shard, smart_entry_local(*link), linked_in);
            if (fresh && cache->fifo)
                smart_fifo_push(shard, key, depth);
        }
    }
    size_t after = shard->bytes;
    smart_shard_unlock(shard);
    return_unused_bytes(cache, taken, before, after);
}


void smart_cache_mark_recycled(smart_cache *cache, far_bytes key, far_addr node, unsigned depth) {
    smart_shard *shard = smart_shard_lock(cache, smart_part(key, 0));
    smart_local *parent;
    uint64_t *link = locate_node(shard, key, depth, false, &parent);
    smart_local *c = link ? smart_entry_local(*link) : NULL;
    if (c && smart_local_addr(c) == node)
        smart_local_store_head(c, smart_local_load_head(c) | SMART_LOCAL_RECYCLED);
    smart_shard_unlock(shard);
}


unsigned smart_cache_size_hint(smart_cache *cache, far_bytes key, far_addr node, unsigned depth) {
    smart_shard *shard = smart_shard_lock(cache, smart_part(key, 0));
    smart_local *parent;
    uint64_t *link = locate_node(shard, key, depth, false, &parent);
    const smart_local *c = link ? smart_entry_local(*link) : NULL;
    unsigned hint = c && smart_local_addr(c) == node ? c->size_hint : 0;
    smart_shard_unlock(shard);
    return hint;
}


uint64_t smart_cache_linked_in(smart_cache *cache, far_bytes key, far_addr node, unsigned depth) {
    unsigned number = smart_part(key, 0);
    smart_shard *shard = &cache->shard[number];
    unsigned place = far_readers_enter(&cache->readers, &shard->lock, number);
    smart_local *parent;
    uint64_t *link = locate_node(shard, key, depth, false, &parent), epoch = shard->epoch_base;
    const smart_local *c = link ? smart_entry_local(*link) : NULL;
    if (c && smart_local_addr(c) == node && smart_local_layout(c) == SMART_DIR)
        epoch += c->seen_linked;
    far_readers_leave(&cache->readers, place);
    return epoch;
}


void smart_cache_drop(smart_cache *cache, far_bytes key, far_addr node, unsigned depth) {
    smart_shard *shard = smart_shard_lock(cache, smart_part(key, 0));
    size_t before = shard->bytes;
    if (node == 0) {
        if (!smart_entry_is_local(shard->top))
            shard->top = 0;
    } else {
        smart_local *parent;
        uint64_t *link = locate_node(shard, key, depth, false, &parent);
        if (link && smart_local_addr(smart_entry_local(*link)) == node)
            discard_content(shard, link, parent);
    }
    size_t after = shard->bytes;
    smart_shard_unlock(shard);
    return_unused_bytes(cache, 0, before, after);
}


/* Evicts a local node, for cache_evict.c. The parent keeps the slot word of the evicted node, because the address in
 * this word still saves round trips. */

void smart_local_evict(smart_shard *shard, uint64_t *link, unsigned parent_depth) {
    smart_local *c = smart_entry_local(*link);
    unsigned depth = smart_local_depth(c), part = smart_entry_part(*link);
    far_addr addr = smart_local_addr(c);
    uint64_t word = 0;
    if (addr) {
        unsigned type = smart_read_type_for(c->count + 1u, smart_local_layout(c), SMART_READ_TYPES);
        word = smart_word_with_gap0(smart_word(addr, part, SMART_NODE, type), depth == parent_depth + 1) |
               (smart_local_is_recycled(c) ? SMART_CACHED_RECYCLED : 0);
    }
    free_local(shard, c);
    *link = word;
}


void smart_local_discard(smart_shard *shard, far_bytes key, unsigned depth) {
    smart_local *parent;
    uint64_t *link = locate_node(shard, key, depth, false, &parent);
    if (link)
        discard_content(shard, link, parent);
}


void smart_local_remove_entry(smart_local *c, unsigned at) {
    remove_entry(c, at);
}


int smart_cache_new(far_index *index, bool fifo, smart_cache **made) {
    smart_cache *cache = aligned_alloc(_Alignof(smart_cache), sizeof(*cache));
    *made = NULL;
    if (!cache)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a cache");
    memset(cache, 0, sizeof(*cache));
    cache->handle_budget = far_index_budget(index);
    cache->fifo = fifo;
    for (unsigned i = 0; i < SMART_ROOT_SLOTS; i++)
        cache->shard[i].epoch_base = 0ull - EPOCH_MARGIN;
    cache->budget = far_budget_register(far_index_budget(index), index->name, smart_cache_evict, cache);
    if (!cache->budget) { /* The budget has too many caches, so the index works without a cache. */
        free(cache);
        return 0;
    }
    *made = cache;
    return 0;
}


void smart_cache_free(smart_cache *cache) {
    if (!cache)
        return;
    for (unsigned i = 0; i < SMART_ROOT_SLOTS; i++) {
        smart_shard *shard = smart_shard_lock(cache, i);
        size_t before = shard->bytes;
        free_tree(shard, shard->top);
        shard->top = 0;
        while (smart_fifo_pop(shard, NULL, NULL))
            ;
        far_budget_give(cache->budget, before - shard->bytes);
        smart_shard_unlock(shard);
    }
    far_budget_unregister(cache->budget);
    free(cache);
}


bool smart_cache_reserve_budget(smart_cache *cache, size_t bytes) {
    return !cache || far_budget_take(cache->budget, heap_bytes(bytes));
}


void smart_cache_return_budget(smart_cache *cache, size_t bytes) {
    if (cache)
        far_budget_give(cache->budget, heap_bytes(bytes));
}


size_t smart_cache_bytes(far_index *index) {
    const smart_cache *cache = smart_state_of(index)->cache;
    return cache ? far_budget_cache_used(cache->budget) : 0;
}
