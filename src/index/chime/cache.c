/* CHIME: the cache of decoded inner nodes, shared by all tasks of a handle. An entry is found by the pointer to its
 * node, which includes the incarnation tag. An entry may lack recent children or name nodes that no longer exist, but
 * it never leads to a node right of the key, because a node's low fence (the smallest key that it may hold) never
 * changes. An operation therefore checks the fences of the node to which an entry leads.
 *
 * Pivots (the keys that separate children) and child pointers are packed. The entry stores the smallest pivot and the
 * smallest pointer in full, and for each other one the difference from the smallest, in as many bytes as the largest
 * difference needs. Trailing zero bits of pivots are not stored; restructure_split.c chooses pivots with many of them.
 *
 * Eviction first removes nodes of level 1, the parents of leaves: it compares two random ones and evicts the less used
 * one. Nodes of higher levels, which are few, are evicted only if no node of level 1 is left. An entry is used for 2^14
 * epochs at most, because incarnation tags repeat after 2^15 epochs. */
#include "base/budget.h"
#include "base/error.h"
#include "base/readers.h"
#include "index/chime/chime.h"

#include <stdlib.h>

#define SHARDS     64
#define EPOCHS_MAX (1u << 14)
/* smallest number of bytes that one call of evict_entries frees, so that it is called rarely */
#define EVICT_LEAST 4096

typedef struct cached_node {
    struct cached_node *next; /* next entry in the same hash bucket */
    chime_ptr ptr, sibling;
    uint64_t epoch; /* epoch at which the node was READ */
    /* smallest pivot (its first 8 bytes) and smallest child pointer; the packed ones are differences from these */
    uint64_t first_base, child_base;
    uint64_t high;  /* first 8 bytes of the node's high fence, the first key beyond the node; valid if `bounded` */
    uint32_t bytes; /* memory that the entry uses, charged to the budget */
    uint16_t count; /* number of children */
    uint8_t level;
    uint8_t first_width, child_width; /* bytes per packed pivot and per packed child pointer */
    uint8_t first_shift;              /* number of trailing zero bits that all pivots share and that are not stored */
    bool bounded;                     /* the node has a high fence, because it has a right sibling */
    /* set if the node must be READ again: the next operation does so, while other operations use this entry */
    atomic_bool renew;
    atomic_uchar uses; /* number of recent uses of the entry, by which the eviction chooses */
    /* packed pivots, then packed child pointers; for byte-string keys also count + 2 offsets of 4 bytes, and the bytes
     * of the pivots */
    uint8_t data[];
} cached_node;

/* One of the hash tables of the cache. Each contains the entries of some of the nodes and has a lock of its own. */
typedef struct shard {
    far_spin lock;
    cached_node **bucket;
    unsigned mask;         /* number of buckets - 1 */
    unsigned count;        /* number of entries */
    unsigned level1_count; /* number of entries of level 1 */
} shard;

struct chime_cache {
    far_readers readers;
    far_budget_cache *budget;
    bool packed;
    atomic_uint hand; /* index of the shard at which the next eviction begins */
    shard shard[SHARDS];
};


static uint64_t hash_pointer(chime_ptr p) {
    uint64_t h = p * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 32;
}


static shard *shard_of(chime_cache *c, chime_ptr p, unsigned *number) {
    *number = (unsigned)(hash_pointer(p) >> 8) % SHARDS;
    return &c->shard[*number];
}


static cached_node **find_entry(shard *s, chime_ptr p) {
    cached_node **at = s->bucket ? &s->bucket[(hash_pointer(p) >> 16) & s->mask] : NULL;
    while (at && *at && (*at)->ptr != p)
        at = &(*at)->next;
    return at && *at ? at : NULL;
}


/* Packing of pivots, child pointers and byte strings. */

static unsigned bytes_needed(uint64_t most) {
    unsigned width = 0;
    for (; most; most >>= 8)
        width++;
    return width;
}


static uint64_t mask_of_width(unsigned width) {
    return width == 8 ? ~0ull : (1ull << 8 * width) - 1;
}


static uint64_t load_packed(const uint8_t *from, uint64_t mask) {
    uint64_t value;
    memcpy(&value, from, 8);
    return value & mask;
}


static uint64_t pivot_first_word(const cached_node *e, unsigned i) {
    return e->first_base + (load_packed(e->data + i * e->first_width, mask_of_width(e->first_width)) << e->first_shift);
}


static chime_ptr pivot_child(const cached_node *e, unsigned i) {
    const uint8_t *children = e->data + e->count * e->first_width;
    return e->child_base + (load_packed(children + i * e->child_width, mask_of_width(e->child_width)) << 7);
}


/* Returns the bytes of pivot i. With i == count, returns the bytes of the high fence. */
static far_bytes pivot_bytes(const cached_node *e, unsigned i) {
    const uint8_t *offsets = e->data + e->count * (e->first_width + e->child_width);
    uint32_t from, to;
    memcpy(&from, offsets + 4 * i, 4);
    memcpy(&to, offsets + 4 * (i + 1), 4);
    return (far_bytes){offsets + 4 * (e->count + 2u) + from, to - from};
}


/* Sets the widths of pivots and child pointers from their largest differences, without the trailing zero bits that all
 * pivots share. */
static void choose_widths(cached_node *e, const chime_inner *inner, bool packed) {
    uint64_t bits = 0, children = 0, least = ~0ull, most = 0;
    for (unsigned i = 0; i < inner->count; i++) {
        bits |= inner->pivot[i].first - inner->pivot[0].first;
        least = inner->child[i] < least ? inner->child[i] : least;
        most = inner->child[i] > most ? inner->child[i] : most;
    }
    children = (most - least) >> 7;
    e->first_base = inner->pivot[0].first;
    e->child_base = least;
    e->first_shift = packed && bits ? (uint8_t)__builtin_ctzll(bits) : 0;
    e->first_width = packed ? (uint8_t)bytes_needed(bits >> e->first_shift) : 8;
    e->child_width = packed ? (uint8_t)bytes_needed(children) : 8;
}


static size_t packed_string_bytes(const chime_state *st, const chime_inner *inner) {
    uint8_t small[8];
    size_t bytes = 0;
    if (st->inline_items)
        return 0;
    for (unsigned i = 0; i < inner->count; i++)
        bytes += chime_fence_bytes(&inner->pivot[i], small).length;
    bytes += inner->bounded ? chime_fence_bytes(&inner->high, small).length : 0;
    return bytes + 4 * (inner->count + 2u);
}


static void pack_strings(cached_node *e, const chime_inner *inner) {
    uint8_t small[8], *offsets = e->data + e->count * (e->first_width + e->child_width),
                      *bytes = offsets + 4 * (e->count + 2u);
    uint32_t at = 0;
    for (unsigned i = 0; i <= e->count; i++) {
        far_bytes b = i < e->count     ? chime_fence_bytes(&inner->pivot[i], small)
                      : inner->bounded ? chime_fence_bytes(&inner->high, small)
                                       : (far_bytes){NULL, 0};
        memcpy(offsets + 4 * i, &at, 4);
        if (b.length)
            memcpy(bytes + at, b.data, b.length);
        at += (uint32_t)b.length;
    }
    memcpy(offsets + 4 * (e->count + 1u), &at, 4);
}


static cached_node *new_entry(const chime_state *st, const chime_inner *inner, bool packed, uint64_t epoch) {
    cached_node head = {.ptr = inner->ptr,
                        .sibling = inner->sibling,
                        .epoch = epoch,
                        .high = inner->high.first,
                        .count = (uint16_t)inner->count,
                        .level = (uint8_t)inner->level,
                        .bounded = inner->bounded};
    choose_widths(&head, inner, packed);
    size_t data = inner->count * ((size_t)head.first_width + head.child_width) + packed_string_bytes(st, inner) + 8;
    cached_node *e = malloc(sizeof(*e) + data);
    if (!e)
        return NULL;
    memcpy(e, &head, sizeof(head));
    /* The size of the entry includes the header of the heap block and a hash bucket. */
    e->bytes = (uint32_t)((sizeof(*e) + data + 8 + 15) / 16 * 16 + 8);
    for (unsigned i = 0; i < e->count; i++) {
        uint64_t first = (inner->pivot[i].first - e->first_base) >> e->first_shift,
                 child = (inner->child[i] - e->child_base) >> 7;
        memcpy(e->data + i * e->first_width, &first, e->first_width);
        memcpy(e->data + e->count * e->first_width + i * e->child_width, &child, e->child_width);
    }
    if (!st->inline_items)
        pack_strings(e, inner);
    return e;
}


/* Routing keys through cached nodes. */

static inline int compare_pivot_to_key(const cached_node *e, const chime_state *st, unsigned i, const chime_key *key) {
    uint64_t first = i < e->count ? pivot_first_word(e, i) : e->high;
    if (first != key->first)
        return first < key->first ? -1 : 1;
    return st->inline_items ? 0 : chime_compare_to_key(pivot_bytes(e, i), key);
}


/* Returns the index of the child for the key, by binary search. The packed form of the pivots is compared with the
 * key's first 8 bytes, packed in the same way. If they are equal, byte-string keys are compared in full. */
static unsigned find_child_index(const cached_node *e, const chime_state *st, const chime_key *key) {
    const uint64_t mask = mask_of_width(e->first_width), packed = (key->first - e->first_base) >> e->first_shift;
    unsigned low = 0, high = key->first < e->first_base ? 1 : e->count;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        uint64_t pivot = load_packed(e->data + middle * e->first_width, mask);
        bool by_bytes = pivot == packed && !st->inline_items;
        if (by_bytes ? chime_compare_to_key(pivot_bytes(e, middle), key) <= 0 : pivot <= packed)
            low = middle;
        else
            high = middle;
    }
    return low;
}


void chime_route_in_node(const chime_state *st, const chime_inner *inner, const chime_key *key, chime_route *route) {
    route->level = inner->level;
    route->right = inner->bounded && chime_compare_fence_to_key(st, &inner->high, key) <= 0;
    route->next = inner->sibling;
    if (route->right)
        return;
    unsigned at = 0;
    while (at + 1 < inner->count && chime_compare_fence_to_key(st, &inner->pivot[at + 1], key) <= 0)
        at++;
    route->next = inner->child[at];
}


static cached_node *find_usable_entry(shard *s, chime_ptr p, uint64_t epoch) {
    cached_node **at = find_entry(s, p);
    return at && epoch - (*at)->epoch < EPOCHS_MAX ? *at : NULL;
}


/* Returns the usable entry of the node, or NULL. If a renewal of the entry was requested, the function returns NULL to
 * one caller, which READs the node again; other callers get the old entry meanwhile. */
static cached_node *find_usable_or_take_renewal(shard *s, chime_ptr p, uint64_t epoch) {
    cached_node *e = find_usable_entry(s, p, epoch);
    bool renew = e && atomic_load_explicit(&e->renew, memory_order_relaxed);
    return renew && atomic_exchange_explicit(&e->renew, false, memory_order_relaxed) ? NULL : e;
}


static void count_use(cached_node *e) {
    unsigned uses = atomic_load_explicit(&e->uses, memory_order_relaxed);
    if (uses < 255)
        atomic_store_explicit(&e->uses, (unsigned char)(uses + 1), memory_order_relaxed);
}


static bool route_in_entry(chime_cache *c, const chime_state *st, chime_ptr node, const chime_key *key, uint64_t epoch,
                           bool renews, chime_route *route) {
    unsigned number;
    shard *s = shard_of(c, node, &number);
    unsigned place = far_readers_enter(&c->readers, &s->lock, number);
    cached_node *e = renews ? find_usable_or_take_renewal(s, node, epoch) : find_usable_entry(s, node, epoch);
    if (e) {
        count_use(e);
        route->level = e->level;
        route->right = e->bounded && compare_pivot_to_key(e, st, e->count, key) <= 0;
        route->next = route->right ? e->sibling : pivot_child(e, find_child_index(e, st, key));
    }
    far_readers_leave(&c->readers, place);
    return e != NULL;
}


bool chime_cache_route(chime_cache *c, const chime_state *st, chime_ptr node, const chime_key *key, uint64_t epoch,
                       chime_route *route) {
    return route_in_entry(c, st, node, key, epoch, false, route);
}


bool chime_cache_route_or_renew(chime_cache *c, const chime_state *st, chime_ptr node, const chime_key *key,
                                uint64_t epoch, chime_route *route) {
    return route_in_entry(c, st, node, key, epoch, true, route);
}


/* Listing children for a scan. */

/* Estimates the part of the range of child `at` that is still ahead of the scan, from 0 to 255. Returns 0 if the entry
 * does not show the range. */
static unsigned estimate_share_ahead(const cached_node *e, unsigned at, const chime_leaf_list *list) {
    uint64_t low = pivot_first_word(e, at), key = list->at->first,
             high = at + 1u < e->count ? pivot_first_word(e, at + 1)
                    : e->bounded       ? e->high
                                       : 0;
    if (high <= low)
        return 0;
    uint64_t before = key <= low ? 0 : key >= high ? 255 : (key - low) / ((high - low) / 256 + 1);
    return (unsigned)(list->backward ? before : 255 - before);
}


/* Returns how many leaves the next batch READs. The estimate assumes that leaves are 60 % full. It adds a sixth of the
 * wanted pairs and 2 more, because a leaf that is missing costs a round trip. */
static unsigned count_leaves_to_read(const chime_state *st, const chime_leaf_list *list, unsigned share_ahead) {
    uint64_t per_leaf = st->span * 6 / 10 + 1, in_first = per_leaf * share_ahead / 256, wanted = list->wanted;
    if (wanted >= per_leaf * (CHIME_SCAN_LEAVES - 1))
        return CHIME_SCAN_LEAVES;
    uint64_t most = (wanted + per_leaf - 1) / per_leaf + 1, safe = wanted + wanted / 6 + 2,
             leaves = 1 + (safe > in_first ? (safe - in_first + per_leaf - 1) / per_leaf : 0);
    return (unsigned)(leaves < most ? leaves : most);
}


static void list_children(const cached_node *e, const chime_state *st, chime_leaf_list *list) {
    unsigned at = find_child_index(e, st, list->at),
             most = count_leaves_to_read(st, list, estimate_share_ahead(e, at, list));
    list->count = 0;
    for (;;) {
        list->leaf[list->count++] = pivot_child(e, at);
        bool no_more = list->backward
                           ? at == 0 || (list->end && compare_pivot_to_key(e, st, at, list->end) <= 0)
                           : at + 1u == e->count || (list->end && compare_pivot_to_key(e, st, at + 1, list->end) >= 0);
        if (no_more || list->count == most)
            return;
        at = list->backward ? at - 1 : at + 1;
    }
}


bool chime_cache_children(chime_cache *c, const chime_state *st, chime_ptr node, uint64_t epoch,
                          chime_leaf_list *list) {
    unsigned number;
    shard *s = shard_of(c, node, &number);
    unsigned place = far_readers_enter(&c->readers, &s->lock, number);
    cached_node *e = find_usable_entry(s, node, epoch);
    bool usable = e && !(e->bounded && compare_pivot_to_key(e, st, e->count, list->at) <= 0);
    if (usable) {
        count_use(e);
        list_children(e, st, list);
    }
    far_readers_leave(&c->readers, place);
    return usable;
}


bool chime_list_children(const chime_state *st, const chime_inner *inner, chime_leaf_list *list) {
    cached_node *e = new_entry(st, inner, false, 0);
    if (!e)
        return false;
    list_children(e, st, list);
    free(e);
    return true;
}


/* Adding, replacing and removing entries. */

static size_t remove_entry(shard *s, cached_node **at) {
    cached_node *e = *at;
    size_t bytes = e->bytes;
    *at = e->next;
    s->count--;
    s->level1_count -= e->level == 1;
    free(e);
    return bytes;
}


static bool grow_buckets(shard *s) {
    unsigned buckets = s->bucket ? (s->mask + 1) * 2 : 8;
    cached_node **bigger = calloc(buckets, sizeof(*bigger));
    if (!bigger)
        return s->bucket != NULL;
    for (unsigned i = 0; s->bucket && i <= s->mask; i++)
        for (cached_node *e = s->bucket[i], *next; e; e = next) {
            next = e->next;
            cached_node **to = &bigger[(hash_pointer(e->ptr) >> 16) & (buckets - 1)];
            e->next = *to;
            *to = e;
        }
    free(s->bucket);
    s->bucket = bigger;
    s->mask = buckets - 1;
    return true;
}


static bool install_entry(chime_cache *c, cached_node *e) {
    unsigned number;
    if (!e || !far_budget_take(c->budget, e->bytes)) {
        free(e);
        return false;
    }
    size_t freed = 0;
    bool installed = true;
    shard *s = shard_of(c, e->ptr, &number);
    far_writer_enter(&c->readers, &s->lock, number);
    cached_node **old = find_entry(s, e->ptr);
    if (old) {
        unsigned uses = atomic_load_explicit(&(*old)->uses, memory_order_relaxed);
        atomic_store_explicit(&e->uses, (unsigned char)uses, memory_order_relaxed);
        freed = remove_entry(s, old);
    }
    if ((s->bucket && s->count <= s->mask) || grow_buckets(s)) {
        cached_node **to = &s->bucket[(hash_pointer(e->ptr) >> 16) & s->mask];
        e->next = *to;
        *to = e;
        s->count++;
        s->level1_count += e->level == 1;
    } else {
        freed += e->bytes;
        free(e);
        installed = false;
    }
    far_writer_leave(&s->lock);
    if (freed)
        far_budget_give(c->budget, freed);
    return installed;
}


void chime_cache_put(chime_cache *c, const chime_state *st, const chime_inner *inner, uint64_t epoch) {
    install_entry(c, new_entry(st, inner, c->packed, epoch));
}


static void unpack_entry(const cached_node *e, const chime_state *st, chime_inner *inner) {
    inner->ptr = e->ptr;
    inner->sibling = e->sibling;
    inner->level = e->level;
    inner->count = e->count;
    inner->bounded = e->bounded;
    for (unsigned i = 0; i <= e->count; i++) {
        chime_fence *f = i < e->count ? &inner->pivot[i] : &inner->high;
        *f = (chime_fence){.word = CHIME_REF_LOCAL, .first = i < e->count ? pivot_first_word(e, i) : e->high};
        if (!st->inline_items)
            f->bytes = pivot_bytes(e, i);
        if (i < e->count)
            inner->child[i] = pivot_child(e, i);
    }
}


/* Returns a copy of the entry with one more child. Returns NULL if the entry has that child already, if the pivot is
 * outside of the node's range, or if there is no memory. */
static cached_node *new_entry_with_child(chime_cache *c, const cached_node *e, const chime_state *st,
                                         const chime_fence *pivot, chime_ptr child) {
    uint8_t small[8];
    chime_key key = {.first = pivot->first,
                     .bytes = st->inline_items ? (far_bytes){NULL, 0} : chime_fence_bytes(pivot, small)};
    if (e->count == CHIME_SPAN_MAX || compare_pivot_to_key(e, st, 0, &key) >= 0 ||
        (e->bounded && compare_pivot_to_key(e, st, e->count, &key) <= 0))
        return NULL;
    unsigned at = find_child_index(e, st, &key) + 1;
    if (compare_pivot_to_key(e, st, at - 1, &key) == 0)
        return NULL;
    chime_inner *inner = malloc(sizeof(*inner));
    if (!inner)
        return NULL;
    unpack_entry(e, st, inner);
    memmove(&inner->pivot[at + 1], &inner->pivot[at], (e->count - at) * sizeof(inner->pivot[0]));
    memmove(&inner->child[at + 1], &inner->child[at], (e->count - at) * sizeof(inner->child[0]));
    inner->pivot[at] = *pivot;
    inner->child[at] = child;
    inner->count++;
    cached_node *with = new_entry(st, inner, c->packed, e->epoch);
    free(inner);
    return with;
}


bool chime_cache_add_child(chime_cache *c, const chime_state *st, chime_ptr node, const chime_fence *pivot,
                           chime_ptr child) {
    unsigned number;
    shard *s = shard_of(c, node, &number);
    unsigned place = far_readers_enter(&c->readers, &s->lock, number);
    cached_node **at = find_entry(s, node), *e = at ? new_entry_with_child(c, *at, st, pivot, child) : NULL;
    far_readers_leave(&c->readers, place);
    return install_entry(c, e);
}


void chime_cache_request_renewal(chime_cache *c, chime_ptr node) {
    unsigned number;
    shard *s = shard_of(c, node, &number);
    unsigned place = far_readers_enter(&c->readers, &s->lock, number);
    cached_node **at = find_entry(s, node);
    if (at)
        atomic_store_explicit(&(*at)->renew, true, memory_order_relaxed);
    far_readers_leave(&c->readers, place);
}


void chime_cache_drop(chime_cache *c, chime_ptr node) {
    unsigned number;
    shard *s = shard_of(c, node, &number);
    far_writer_enter(&c->readers, &s->lock, number);
    cached_node **at = find_entry(s, node);
    size_t freed = at ? remove_entry(s, at) : 0;
    far_writer_leave(&s->lock);
    if (freed)
        far_budget_give(c->budget, freed);
}


/* Eviction. The budget calls evict_entries when it needs memory. */

/* Returns the first entry that may be evicted, beginning at bucket `from`. */
static cached_node **find_eviction_candidate(shard *s, unsigned from, bool any_level) {
    for (unsigned i = 0; i <= s->mask; i++)
        for (cached_node **at = &s->bucket[(from + i) & s->mask]; *at; at = &(*at)->next)
            if (any_level || (*at)->level == 1)
                return at;
    return NULL;
}


static size_t evict_colder_of_two(shard *s, uint64_t random, bool any_level) {
    if (!s->bucket || !s->count)
        return 0;
    cached_node **a = find_eviction_candidate(s, (unsigned)random, any_level),
                **b = find_eviction_candidate(s, (unsigned)(random >> 32), any_level);
    if (!a)
        return 0;
    unsigned uses_a = atomic_load_explicit(&(*a)->uses, memory_order_relaxed),
             uses_b = atomic_load_explicit(&(*b)->uses, memory_order_relaxed);
    cached_node **colder = uses_a <= uses_b ? a : b, *warmer = uses_a <= uses_b ? *b : *a;
    atomic_store_explicit(&warmer->uses, (unsigned char)((uses_a <= uses_b ? uses_b : uses_a) * 3 / 4),
                          memory_order_relaxed);
    return remove_entry(s, colder);
}


static size_t evict_entries(void *ctx, size_t bytes) {
    chime_cache *c = ctx;
    size_t freed = 0, goal = bytes > EVICT_LEAST ? bytes : EVICT_LEAST;
    for (unsigned pass = 0; pass < 2 && freed < goal; pass++)
        for (unsigned turn = 0; turn < SHARDS * 8 && freed < goal; turn++) {
            unsigned hand = atomic_fetch_add_explicit(&c->hand, 1, memory_order_relaxed), number = hand % SHARDS;
            shard *s = &c->shard[number];
            if (!far_writer_try(&c->readers, &s->lock, number))
                continue;
            size_t gone = evict_colder_of_two(s, hash_pointer(hand + 1), pass == 1);
            far_writer_leave(&s->lock);
            if (gone)
                far_budget_give(c->budget, gone);
            freed += gone;
            if (pass == 1 && freed)
                return freed;
        }
    return freed;
}


int chime_cache_new(far_index *index, chime_cache **made) {
    *made = NULL;
    chime_cache *c = aligned_alloc(_Alignof(chime_cache), sizeof(*c));
    if (!c)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a cache");
    memset(c, 0, sizeof(*c));
    c->packed = index->options[CHIME_OPTION_CACHE] == 1;
    c->budget = far_budget_register(far_index_budget(index), index->name, evict_entries, c);
    if (!c->budget) { /* The budget has no room for another cache, so the handle works without a node cache. */
        free(c);
        return 0;
    }
    *made = c;
    return 0;
}


void chime_cache_free(chime_cache *c) {
    if (!c)
        return;
    for (unsigned i = 0; i < SHARDS; i++) {
        shard *s = &c->shard[i];
        size_t freed = 0;
        far_writer_enter(&c->readers, &s->lock, i);
        for (unsigned k = 0; s->bucket && k <= s->mask; k++)
            while (s->bucket[k])
                freed += remove_entry(s, &s->bucket[k]);
        free(s->bucket);
        s->bucket = NULL;
        far_writer_leave(&s->lock);
        if (freed)
            far_budget_give(c->budget, freed);
    }
    far_budget_unregister(c->budget);
    free(c);
}


/* Reserves memory for the hotspot buffer, which shares the budget of the node cache. */
bool chime_cache_reserve_bytes(chime_cache *c, size_t bytes) {
    return far_budget_take(c->budget, bytes);
}


void chime_cache_release_bytes(chime_cache *c, size_t bytes) {
    far_budget_give(c->budget, bytes);
}


size_t chime_cache_bytes(far_index *index) {
    const chime_state *st = chime_state_of(index);
    return st->cache ? far_budget_cache_used(st->cache->budget) : 0;
}
