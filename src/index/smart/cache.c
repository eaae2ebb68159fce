/* The ART cache: a local radix tree that mirrors the inner nodes of the remote one, as far as they are known.
 *
 * A local node mirrors one remote node (or none: a pure index node where the paths of two others part). Its entries are
 * sorted by partial key; an entry is a slot word of the remote node, or a pointer to the local node of the child, which
 * knows its own address. So a node costs 16 bytes, the bytes of its path, and 8 per child. A list node is filled by one
 * READ of it; of a DIR node only those words are known that were READ one by one. Whatever is here may be stale: find.c
 * proves it.
 *
 * One tree per first byte of the key. Those who probe share it (base/readers.h); one at a time changes it. */
#include "index/smart/cache.h"
#include "base/budget.h"
#include "base/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LEVELS_MAX 64 /* of local nodes on one path; deeper ones are not cached */


/* What the allocator of the process takes for it. */
static size_t heap_bytes(size_t bytes) {
    size_t with_head = (bytes + 8 + 15) / 16 * 16;
    return with_head < 32 ? 32 : with_head;
}


static size_t local_bytes(unsigned skip, unsigned room) {
    return heap_bytes(sizeof(smart_local) + (skip + 7u) / 8 * 8 + 8ull * room);
}


static size_t bytes_of(const smart_local *c) {
    return local_bytes(c->skip, c->room);
}


/* Room for so many entries at least: what the allocator rounds up to is used. */
static unsigned room_for(unsigned skip, unsigned count) {
    size_t fixed = sizeof(smart_local) + (skip + 7u) / 8 * 8;
    return (unsigned)((local_bytes(skip, count) - 8 - fixed) / 8);
}


static smart_local *new_local(smart_shard *shard, const uint8_t *path, unsigned skip, unsigned depth, unsigned count) {
    unsigned room = room_for(skip, count);
    smart_local *c = malloc(local_bytes(skip, room) - 8);
    if (!c)
        return NULL;
    memset(c, 0, sizeof(*c));
    smart_local_set(c, smart_local_head(0, depth, 0));
    c->room = (uint16_t)room;
    c->skip = (uint16_t)skip;
    if (skip)
        memcpy(smart_local_path(c), path, skip);
    shard->bytes += bytes_of(c);
    return c;
}


static void free_local(smart_shard *shard, smart_local *c) {
    assert(shard->bytes >= bytes_of(c) && c->count <= c->room);
    shard->bytes -= bytes_of(c);
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


/* Entries are sorted as partial keys are ranked, the end of the key first: that bit, which is above the byte, becomes
 * the sign. What is below both does not make an entry less than its partial key alone. */
static inline int64_t entry_order(uint64_t entry) {
    return (int64_t)(entry << 12);
}


/* Which of first[0 .. left] is the first that does not come before the partial key; they are sorted. */
static inline const uint64_t *halve(const uint64_t *first, unsigned left, int64_t order) {
    for (unsigned half; left > 0; left -= half) {
        half = left - left / 2;
        first += entry_order(first[half - 1]) < order ? half : 0;
    }
    return first;
}


#define NEAR 6u /* entries that are looked at one by one; then the rest is halved */


/* The entry of a partial key, or where it would be. Bytes of most keys are spread evenly: the search begins where the
 * entry is then, which of a full node is its very place. */
static inline __attribute__((always_inline)) bool find_entry(const smart_local *c, unsigned part, unsigned *at) {
    const uint64_t *entries = smart_local_entries(c), *end = entries + c->count;
    const uint64_t *entry = entries + ((part & 0xff) * c->count >> 8);
    int64_t order = entry_order((uint64_t)part << 43);
    unsigned steps = 0;
    if (entry < end && entry_order(*entry) < order) {
        while (++entry < end && entry_order(*entry) < order && steps++ < NEAR)
            ;
        if (steps > NEAR)
            entry = halve(entry, (unsigned)(end - entry), order);
    } else {
        while (entry > entries && entry_order(entry[-1]) >= order && steps++ < NEAR)
            entry--;
        if (steps > NEAR)
            entry = halve(entries, (unsigned)(entry - entries), order);
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


/* Puts an entry in; the node may move: *link (the entry that points to it) follows. False: no memory. */
static bool add_entry(smart_shard *shard, uint64_t *link, uint64_t entry) {
    smart_local *c = smart_entry_local(*link);
    unsigned at;
    find_entry(c, smart_entry_part(entry), &at);
    if (c->count == c->room) {
        unsigned room = room_for(c->skip, c->count + 1u);
        size_t before = bytes_of(c);
        smart_local *moved = realloc(c, local_bytes(c->skip, room) - 8);
        if (!moved)
            return false;
        c = moved;
        c->room = (uint16_t)room;
        shard->bytes += bytes_of(c) - before;
        *link = smart_entry_make(c, smart_entry_part(*link));
    }
    uint64_t *entries = smart_local_entries(c);
    assert(at <= c->count && c->count < c->room);
    memmove(entries + at + 1, entries + at, (c->count - at) * sizeof(*entries));
    entries[at] = entry;
    c->count++;
    return true;
}


/* The path of the node, from its parent's depth on, goes on in the key: how many bytes agree. */
static unsigned agree(const smart_local *c, far_bytes key, unsigned from) {
    const uint8_t *bytes = key.data;
    unsigned n = 0;
    while (n < c->skip && from + n < key.length && smart_local_path(c)[n] == bytes[from + n])
        n++;
    return n;
}


/* Cuts the path of the node that *link points to after `n` bytes: an index node comes in between. */
static bool cut_path(smart_shard *shard, uint64_t *link, unsigned n) {
    smart_local *c = smart_entry_local(*link);
    assert(n < c->skip);
    unsigned depth = smart_local_depth(c), above = depth - c->skip + n, part = smart_local_path(c)[n];
    smart_local *index = new_local(shard, smart_local_path(c), n, above, 1);
    if (!index)
        return false;
    smart_local *shorter = new_local(shard, smart_local_path(c) + n + 1, c->skip - n - 1u, depth, c->count);
    if (!shorter) {
        free_local(shard, index);
        return false;
    }
    smart_local_set(shorter, smart_local_word(c));
    shorter->hint = c->hint;
    shorter->count = c->count;
    memcpy(smart_local_entries(shorter), smart_local_entries(c), c->count * sizeof(uint64_t));
    free_local(shard, c);
    smart_local_entries(index)[0] = smart_entry_make(shorter, part);
    index->count = 1;
    *link = smart_entry_make(index, smart_entry_part(*link));
    return true;
}


/* The link to the local node for the first `depth` bytes of the key. make: it is made if it is not there. NULL: it is
 * not, or there is no memory. *parent: whose entry the link is; NULL: the shard's. */
static uint64_t *locate(smart_shard *shard, far_bytes key, unsigned depth, bool make, smart_local **parent) {
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
        unsigned here = smart_local_depth(c), same = agree(c, key, from);
        if (same == c->skip && here == depth)
            return link;
        if (same < c->skip || here > depth) { /* the path parts before: an index node there, or the wanted one */
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


/* The remote node says this word: a local child stays if it is still the one that the word names. */
static bool set_word(smart_shard *shard, uint64_t *link, uint64_t word) {
    smart_local *c = smart_entry_local(*link);
    unsigned at;
    if (find_entry(c, smart_word_part(word), &at)) {
        uint64_t *entry = &smart_local_entries(c)[at];
        if (smart_entry_is_local(*entry)) {
            smart_local *child = smart_entry_local(*entry);
            far_addr addr = smart_local_addr(child);
            if (smart_word_is(word) == SMART_NODE && (addr == 0 || addr == smart_word_addr(word))) {
                child->hint = (uint16_t)smart_word_hint(word);
                return true;
            }
            free_tree(shard, *entry);
        }
        if (smart_word_is(word) == SMART_NONE)
            remove_entry(c, at);
        else if ((*entry & ~SMART_CACHED_REC) != word) /* what was found out about its memory stays */
            *entry = word;
        return true;
    }
    return smart_word_is(word) == SMART_NONE || add_entry(shard, link, word);
}


/* The content goes; local children stay. */
static void forget_words(smart_local *c) {
    unsigned kept = 0;
    uint64_t *entries = smart_local_entries(c);
    for (unsigned i = 0; i < c->count; i++)
        if (smart_entry_is_local(entries[i]))
            entries[kept++] = entries[i];
    c->count = (uint16_t)kept;
    smart_local_set(c, smart_local_head(0, smart_local_depth(c), 0));
}


/* The content of a node goes, and its memory: the node shrinks, or goes when nothing hangs on it. */
static void forget(smart_shard *shard, uint64_t *link, smart_local *parent) {
    smart_local *c = smart_entry_local(*link);
    forget_words(c);
    if (c->count == 0) {
        free_local(shard, c);
        if (parent)
            remove_entry(parent, (unsigned)(link - smart_local_entries(parent)));
        else
            *link = 0;
        return;
    }
    size_t before = bytes_of(c);
    unsigned room = room_for(c->skip, c->count);
    smart_local *moved = realloc(c, local_bytes(c->skip, room) - 8);
    if (!moved)
        return;
    moved->room = (uint16_t)room;
    shard->bytes -= before - bytes_of(moved);
    *link = smart_entry_make(moved, smart_entry_part(*link));
}


/* Most nodes have a few lines: what the search in one will touch comes with its head, not after it. */
static void prefetch_local(const smart_local *c) {
    for (unsigned line = 1; line < 4; line++)
        __builtin_prefetch((const char *)c + 64 * line);
}


bool smart_cache_probe(smart_cache *cache, far_bytes key, unsigned below, smart_hint *hint) {
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
        if (depth >= below || depth > key.length || agree(c, key, from) < c->skip)
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
        *hint = (smart_hint){smart_local_addr(last),   smart_local_depth(last),      word, last->count,
                             smart_local_layout(last), smart_local_is_recycled(last)};
    else if (top)
        *hint = (smart_hint){.word = word};
    far_readers_leave(&cache->readers, place);
    bool found = last || top;
    if (found && atomic_load_explicit(&cache->full, memory_order_relaxed))
        smart_sketch_add(cache, hint->node ^ smart_part(key, hint->depth));
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


/* Takes room for a change; false: it is not to be made. When the budget is spent, only what was asked for before gets
 * in. */
static bool take_room(smart_cache *cache, size_t bytes, uint64_t what) {
    bool full = far_budget_used(cache->all) + bytes > far_budget_limit(cache->all);
    unsigned seen = smart_sketch_add(cache, what);
    if (full != atomic_load_explicit(&cache->full, memory_order_relaxed))
        atomic_store_explicit(&cache->full, full, memory_order_relaxed);
    if (full && !cache->fifo && seen < 2)
        return false;
    return far_budget_take(cache->budget, bytes);
}


/* The change is over: what it did not need, and what it freed, goes back. */
static void settle(smart_cache *cache, size_t taken, size_t before, size_t after) {
    if (taken + before > after)
        far_budget_give(cache->budget, taken + before - after);
}


/* An upper bound of what one call can need: the node itself, an index node, a shorter copy, a larger parent. */
static size_t most_bytes(unsigned depth, unsigned words) {
    return local_bytes(depth, words + 2) + 3 * local_bytes(depth, 2) + 8 * (SMART_PARTS + 3) + 64;
}


/* A node that took the place of another: its word says that it is as far below its owner, and how large it was made. */
static unsigned hint_of_new(const smart_local *c, const smart_node *node, unsigned children) {
    uint64_t before = smart_word(0, 0, SMART_NODE, c->hint);
    return smart_word_hint(
        smart_word_with_read_type(before, smart_read_type_for(children + 1, node->layout, SMART_READ_TYPES)));
}


void smart_cache_node(smart_cache *cache, far_bytes key, const smart_node *node) {
    const uint64_t *slots = smart_slots(node);
    unsigned count = 0, known = 0;
    for (; count < node->words && (slots[count] || node->layout == SMART_DIR); count++) {
        if (slots[count] & SMART_F)
            return;
        known += slots[count] != 0;
    }
    size_t taken = most_bytes(node->depth, known);
    if (smart_ctl_state(node->ctl) == SMART_FROZEN || !take_room(cache, taken, node->addr))
        return;
    smart_shard *shard = smart_shard_change(cache, smart_part(key, 0));
    size_t before = shard->bytes;
    smart_local *parent;
    uint64_t *link = locate(shard, key, node->depth, true, &parent);
    if (link) {
        smart_local *c = smart_entry_local(*link);
        bool fresh = smart_local_addr(c) == 0;
        if (smart_local_addr(c) != node->addr) {
            forget_words(c);
            c->hint = (uint16_t)hint_of_new(c, node, known);
        }
        smart_local_set(c, smart_local_head(node->addr, node->depth, node->layout) | smart_local_clock(c) |
                               (smart_ctl_rec(node->ctl) ? SMART_LOCAL_RECYCLED : 0));
        for (unsigned i = 0; i < count; i++)
            if (slots[i] && !set_word(shard, link, slots[i]))
                break;
        if (fresh && cache->fifo)
            smart_fifo_push(shard, key, node->depth);
    }
    size_t after = shard->bytes;
    smart_shard_changed(shard);
    settle(cache, taken, before, after);
}


void smart_cache_word(smart_cache *cache, far_bytes key, far_addr node, unsigned depth, unsigned layout,
                      uint64_t word) {
    size_t taken = most_bytes(depth, 2);
    if (!take_room(cache, taken, node ^ smart_word_part(word)))
        return;
    smart_shard *shard = smart_shard_change(cache, smart_part(key, 0));
    size_t before = shard->bytes;
    if (node == 0) { /* of the root */
        bool local = smart_entry_is_local(shard->top);
        far_addr addr = local ? smart_local_addr(smart_entry_local(shard->top)) : 0;
        if (local && addr && (smart_word_is(word) != SMART_NODE || addr != smart_word_addr(word))) {
            free_tree(shard, shard->top);
            local = false;
        }
        if (!local)
            shard->top = smart_word_is(word) == SMART_NONE ? 0 : word;
    } else {
        smart_local *parent;
        uint64_t *link = locate(shard, key, depth, layout == SMART_DIR, &parent);
        smart_local *c = link ? smart_entry_local(*link) : NULL;
        bool fresh = c && smart_local_addr(c) == 0;
        if (c && layout == SMART_DIR && smart_local_addr(c) != node) {
            forget_words(c);
            smart_local_set(c, smart_local_head(node, depth, layout) | smart_local_clock(c));
        }
        if (c && smart_local_addr(c) == node) {
            set_word(shard, link, word);
            if (fresh && cache->fifo)
                smart_fifo_push(shard, key, depth);
        }
    }
    size_t after = shard->bytes;
    smart_shard_changed(shard);
    settle(cache, taken, before, after);
}


/* The node was found to lie in recycled memory. */
void smart_cache_recycled(smart_cache *cache, far_bytes key, far_addr node, unsigned depth) {
    smart_shard *shard = smart_shard_change(cache, smart_part(key, 0));
    smart_local *parent;
    uint64_t *link = locate(shard, key, depth, false, &parent);
    smart_local *c = link ? smart_entry_local(*link) : NULL;
    if (c && smart_local_addr(c) == node)
        smart_local_set(c, smart_local_word(c) | SMART_LOCAL_RECYCLED);
    smart_shard_changed(shard);
}


unsigned smart_cache_hint(smart_cache *cache, far_bytes key, far_addr node, unsigned depth) {
    smart_shard *shard = smart_shard_change(cache, smart_part(key, 0));
    smart_local *parent;
    uint64_t *link = locate(shard, key, depth, false, &parent);
    const smart_local *c = link ? smart_entry_local(*link) : NULL;
    unsigned hint = c && smart_local_addr(c) == node ? c->hint : 0;
    smart_shard_changed(shard);
    return hint;
}


/* The node is not what it was taken for: its content goes, and itself when nothing hangs on it. */
void smart_cache_drop(smart_cache *cache, far_bytes key, far_addr node, unsigned depth) {
    smart_shard *shard = smart_shard_change(cache, smart_part(key, 0));
    size_t before = shard->bytes;
    if (node == 0) {
        if (!smart_entry_is_local(shard->top))
            shard->top = 0;
    } else {
        smart_local *parent;
        uint64_t *link = locate(shard, key, depth, false, &parent);
        if (link && smart_local_addr(smart_entry_local(*link)) == node)
            forget(shard, link, parent);
    }
    size_t after = shard->bytes;
    smart_shard_changed(shard);
    settle(cache, 0, before, after);
}


/* Eviction of single nodes, for evict.c. The link keeps the word of the node: its address is still worth something. */

void smart_local_evict(smart_shard *shard, uint64_t *link, unsigned parent_depth) {
    smart_local *c = smart_entry_local(*link);
    unsigned depth = smart_local_depth(c), part = smart_entry_part(*link);
    far_addr addr = smart_local_addr(c);
    uint64_t word = 0;
    if (addr) {
        unsigned type = smart_read_type_for(c->count + 1u, smart_local_layout(c), SMART_READ_TYPES);
        word = smart_word_with_gap0(smart_word(addr, part, SMART_NODE, type), depth == parent_depth + 1) |
               (smart_local_is_recycled(c) ? SMART_CACHED_REC : 0);
    }
    free_local(shard, c);
    *link = word;
}


void smart_local_forget(smart_shard *shard, far_bytes key, unsigned depth) {
    smart_local *parent;
    uint64_t *link = locate(shard, key, depth, false, &parent);
    if (link)
        forget(shard, link, parent);
}


void smart_local_remove(smart_local *c, unsigned at) {
    remove_entry(c, at);
}


int smart_cache_new(far_index *index, bool fifo, smart_cache **made) {
    smart_cache *cache = aligned_alloc(_Alignof(smart_cache), sizeof(*cache));
    *made = NULL;
    if (!cache)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a cache");
    memset(cache, 0, sizeof(*cache));
    cache->all = far_index_budget(index);
    cache->fifo = fifo;
    cache->budget = far_budget_register(far_index_budget(index), index->name, smart_cache_evict, cache);
    if (!cache->budget) { /* too many caches: without one */
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
        smart_shard *shard = smart_shard_change(cache, i);
        size_t before = shard->bytes;
        free_tree(shard, shard->top);
        shard->top = 0;
        while (smart_fifo_pop(shard, NULL, NULL))
            ;
        far_budget_give(cache->budget, before - shard->bytes);
        smart_shard_changed(shard);
    }
    far_budget_unregister(cache->budget);
    free(cache);
}


bool smart_cache_lend(smart_cache *cache, size_t bytes) {
    return !cache || far_budget_take(cache->budget, heap_bytes(bytes));
}


void smart_cache_give_back(smart_cache *cache, size_t bytes) {
    if (cache)
        far_budget_give(cache->budget, heap_bytes(bytes));
}


size_t smart_cache_bytes(far_index *index) {
    const smart_cache *cache = smart_state_of(index)->cache;
    return cache ? far_budget_cache_used(cache->budget) : 0;
}
