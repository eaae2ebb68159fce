/* The node cache: decoded inner nodes, found by pointer (address and incarnation). A cached node is never wrong about
 * what its children begin with, only out of date: whoever is led to a node looks at its fences.
 *
 * Pivots and children are packed: the smallest of them, and of each other one the difference in as few bytes as all
 * need. Pivots are chosen with as many zero bits at their end as possible (split.c), which are not kept either.
 *
 * Eviction takes nodes just above the leaves first, the colder one of two; the few above them stay as long as there is
 * any other. An entry is trusted for 2^14 epochs only: tags repeat after 2^15. */
#include "base/budget.h"
#include "base/error.h"
#include "base/readers.h"
#include "index/chime/chime.h"

#include <stdlib.h>

#define SHARDS      64
#define EPOCHS_MAX  (1u << 14)
#define EVICT_LEAST 4096 /* bytes: a call has to pay */

typedef struct entry {
    struct entry *next;
    chime_ptr ptr, sibling;
    uint64_t epoch, first_base, child_base;
    uint64_t high; /* its first bytes */
    uint32_t bytes;
    uint16_t count;
    uint8_t level, first_width, first_shift, child_width;
    bool bounded;
    atomic_bool renew; /* whoever comes next READs the node again; the others go by this meanwhile */
    atomic_uchar uses;
    uint8_t data[]; /* pivots, children, with byte strings: offsets (4 each, one more) and bytes */
} entry;

typedef struct shard {
    far_spin lock;
    entry **bucket;
    unsigned mask, count, lowest; /* buckets - 1; entries; of them at level 1 */
} shard;

struct chime_cache {
    far_readers readers;
    far_budget_cache *budget;
    bool packed;
    atomic_uint hand;
    shard shard[SHARDS];
};


static uint64_t mix(chime_ptr p) {
    uint64_t h = p * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 32;
}


static shard *shard_of(chime_cache *c, chime_ptr p, unsigned *number) {
    *number = (unsigned)(mix(p) >> 8) % SHARDS;
    return &c->shard[*number];
}


static entry **find(shard *s, chime_ptr p) {
    entry **at = s->bucket ? &s->bucket[(mix(p) >> 16) & s->mask] : NULL;
    while (at && *at && (*at)->ptr != p)
        at = &(*at)->next;
    return at && *at ? at : NULL;
}


/* Packing. */

static unsigned width_of(uint64_t most) {
    unsigned width = 0;
    for (; most; most >>= 8)
        width++;
    return width;
}


static uint64_t mask_of(unsigned width) {
    return width == 8 ? ~0ull : (1ull << 8 * width) - 1;
}


static uint64_t load(const uint8_t *from, uint64_t mask) {
    uint64_t value;
    memcpy(&value, from, 8);
    return value & mask;
}


static uint64_t first_of(const entry *e, unsigned i) {
    return e->first_base + (load(e->data + i * e->first_width, mask_of(e->first_width)) << e->first_shift);
}


static chime_ptr child_of(const entry *e, unsigned i) {
    const uint8_t *children = e->data + e->count * e->first_width;
    return e->child_base + (load(children + i * e->child_width, mask_of(e->child_width)) << 7);
}


static far_bytes bytes_of(const entry *e, unsigned i) { /* i == count: of high */
    const uint8_t *offsets = e->data + e->count * (e->first_width + e->child_width);
    uint32_t from, to;
    memcpy(&from, offsets + 4 * i, 4);
    memcpy(&to, offsets + 4 * (i + 1), 4);
    return (far_bytes){offsets + 4 * (e->count + 2u) + from, to - from};
}


static far_bytes fence_bytes(const chime_fence *f, uint8_t small[8]) {
    if (!chime_ref_is_inline(f->word))
        return f->bytes;
    for (unsigned i = 0; i < 7; i++)
        small[i] = (uint8_t)(f->word >> (56 - 8 * i));
    return (far_bytes){small, f->word ? chime_ref_length(f->word) : 0};
}


/* Where the widths come from: the largest difference, without the zero bits that all have at their end. */
static void choose_widths(entry *e, const chime_inner *inner, bool packed) {
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
    e->first_width = packed ? (uint8_t)width_of(bits >> e->first_shift) : 8;
    e->child_width = packed ? (uint8_t)width_of(children) : 8;
}


static size_t string_bytes(const chime_state *st, const chime_inner *inner) {
    uint8_t small[8];
    size_t bytes = 0;
    if (st->fixed)
        return 0;
    for (unsigned i = 0; i < inner->count; i++)
        bytes += fence_bytes(&inner->pivot[i], small).length;
    bytes += inner->bounded ? fence_bytes(&inner->high, small).length : 0;
    return bytes + 4 * (inner->count + 2u);
}


static void pack_strings(entry *e, const chime_inner *inner) {
    uint8_t small[8], *offsets = e->data + e->count * (e->first_width + e->child_width),
                      *bytes = offsets + 4 * (e->count + 2u);
    uint32_t at = 0;
    for (unsigned i = 0; i <= e->count; i++) {
        far_bytes b = i < e->count     ? fence_bytes(&inner->pivot[i], small)
                      : inner->bounded ? fence_bytes(&inner->high, small)
                                       : (far_bytes){NULL, 0};
        memcpy(offsets + 4 * i, &at, 4);
        if (b.length)
            memcpy(bytes + at, b.data, b.length);
        at += (uint32_t)b.length;
    }
    memcpy(offsets + 4 * (e->count + 1u), &at, 4);
}


static entry *new_entry(const chime_state *st, const chime_inner *inner, bool packed, uint64_t epoch) {
    entry head = {.ptr = inner->ptr,
                  .sibling = inner->sibling,
                  .epoch = epoch,
                  .high = inner->high.first,
                  .count = (uint16_t)inner->count,
                  .level = (uint8_t)inner->level,
                  .bounded = inner->bounded};
    choose_widths(&head, inner, packed);
    size_t data = inner->count * ((size_t)head.first_width + head.child_width) + string_bytes(st, inner) + 8;
    entry *e = malloc(sizeof(*e) + data);
    if (!e)
        return NULL;
    memcpy(e, &head, sizeof(head));
    e->bytes = (uint32_t)((sizeof(*e) + data + 8 + 15) / 16 * 16 + 8); /* with the heap's head and a bucket */
    for (unsigned i = 0; i < e->count; i++) {
        uint64_t first = (inner->pivot[i].first - e->first_base) >> e->first_shift,
                 child = (inner->child[i] - e->child_base) >> 7;
        memcpy(e->data + i * e->first_width, &first, e->first_width);
        memcpy(e->data + e->count * e->first_width + i * e->child_width, &child, e->child_width);
    }
    if (!st->fixed)
        pack_strings(e, inner);
    return e;
}


/* Routing. */

static inline int compare_at(const entry *e, const chime_state *st, unsigned i, const chime_key *key) {
    uint64_t first = i < e->count ? first_of(e, i) : e->high;
    if (first != key->first)
        return first < key->first ? -1 : 1;
    return st->fixed ? 0 : far_bytes_compare(bytes_of(e, i), key->bytes);
}


/* Pivots are compared as they are packed, with the first bytes of the key, packed likewise; where that makes no
 * difference, byte strings by all of their bytes. */
static unsigned child_for(const entry *e, const chime_state *st, const chime_key *key) {
    const uint64_t mask = mask_of(e->first_width), packed = (key->first - e->first_base) >> e->first_shift;
    unsigned low = 0, high = key->first < e->first_base ? 1 : e->count;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        uint64_t pivot = load(e->data + middle * e->first_width, mask);
        bool by_bytes = pivot == packed && !st->fixed;
        if (by_bytes ? far_bytes_compare(bytes_of(e, middle), key->bytes) <= 0 : pivot <= packed)
            low = middle;
        else
            high = middle;
    }
    return low;
}


void chime_route_in(const chime_state *st, const chime_inner *inner, const chime_key *key, chime_route *route) {
    route->level = inner->level;
    route->right = inner->bounded && chime_fence_compare(st, &inner->high, key) <= 0;
    route->next = inner->sibling;
    if (route->right)
        return;
    unsigned at = 0;
    while (at + 1 < inner->count && chime_fence_compare(st, &inner->pivot[at + 1], key) <= 0)
        at++;
    route->next = inner->child[at];
}


static entry *usable(shard *s, chime_ptr p, uint64_t epoch) {
    entry **at = find(s, p);
    return at && epoch - (*at)->epoch < EPOCHS_MAX ? *at : NULL;
}


/* As usable, but NULL, once, for an entry that is to be READ again. */
static entry *usable_or_renewed(shard *s, chime_ptr p, uint64_t epoch) {
    entry *e = usable(s, p, epoch);
    bool renew = e && atomic_load_explicit(&e->renew, memory_order_relaxed);
    return renew && atomic_exchange_explicit(&e->renew, false, memory_order_relaxed) ? NULL : e;
}


static void touch(entry *e) {
    unsigned uses = atomic_load_explicit(&e->uses, memory_order_relaxed);
    if (uses < 255)
        atomic_store_explicit(&e->uses, (unsigned char)(uses + 1), memory_order_relaxed);
}


static bool route_by(chime_cache *c, const chime_state *st, chime_ptr node, const chime_key *key, uint64_t epoch,
                     bool renews, chime_route *route) {
    unsigned number;
    shard *s = shard_of(c, node, &number);
    unsigned place = far_readers_enter(&c->readers, &s->lock, number);
    entry *e = renews ? usable_or_renewed(s, node, epoch) : usable(s, node, epoch);
    if (e) {
        touch(e);
        route->level = e->level;
        route->right = e->bounded && compare_at(e, st, e->count, key) <= 0;
        route->next = route->right ? e->sibling : child_of(e, child_for(e, st, key));
    }
    far_readers_leave(&c->readers, place);
    return e != NULL;
}


bool chime_cache_route(chime_cache *c, const chime_state *st, chime_ptr node, const chime_key *key, uint64_t epoch,
                       chime_route *route) {
    return route_by(c, st, node, key, epoch, false, route);
}


bool chime_cache_route_renewed(chime_cache *c, const chime_state *st, chime_ptr node, const chime_key *key,
                               uint64_t epoch, chime_route *route) {
    return route_by(c, st, node, key, epoch, true, route);
}


unsigned chime_cache_children(chime_cache *c, const chime_state *st, chime_ptr node, const chime_key *key,
                              const chime_key *to, uint64_t epoch, unsigned most, chime_ptr *children) {
    unsigned number, given = 0;
    shard *s = shard_of(c, node, &number);
    unsigned place = far_readers_enter(&c->readers, &s->lock, number);
    entry *e = usable(s, node, epoch);
    if (e && !(e->bounded && compare_at(e, st, e->count, key) <= 0)) {
        touch(e);
        for (unsigned at = child_for(e, st, key); at < e->count && given < most; at++) {
            if (given && to && compare_at(e, st, at, to) >= 0)
                break;
            children[given++] = child_of(e, at);
        }
    }
    far_readers_leave(&c->readers, place);
    return given;
}


/* Changing. */

static size_t take_out(shard *s, entry **at) {
    entry *e = *at;
    size_t bytes = e->bytes;
    *at = e->next;
    s->count--;
    s->lowest -= e->level == 1;
    free(e);
    return bytes;
}


static bool grow(shard *s) {
    unsigned buckets = s->bucket ? (s->mask + 1) * 2 : 8;
    entry **bigger = calloc(buckets, sizeof(*bigger));
    if (!bigger)
        return s->bucket != NULL;
    for (unsigned i = 0; s->bucket && i <= s->mask; i++)
        for (entry *e = s->bucket[i], *next; e; e = next) {
            next = e->next;
            entry **to = &bigger[(mix(e->ptr) >> 16) & (buckets - 1)];
            e->next = *to;
            *to = e;
        }
    free(s->bucket);
    s->bucket = bigger;
    s->mask = buckets - 1;
    return true;
}


static bool install(chime_cache *c, entry *e) {
    unsigned number;
    if (!e || !far_budget_take(c->budget, e->bytes)) {
        free(e);
        return false;
    }
    size_t freed = 0;
    bool installed = true;
    shard *s = shard_of(c, e->ptr, &number);
    far_writer_enter(&c->readers, &s->lock, number);
    entry **old = find(s, e->ptr);
    if (old) {
        unsigned uses = atomic_load_explicit(&(*old)->uses, memory_order_relaxed);
        atomic_store_explicit(&e->uses, (unsigned char)uses, memory_order_relaxed);
        freed = take_out(s, old);
    }
    if ((s->bucket && s->count <= s->mask) || grow(s)) {
        entry **to = &s->bucket[(mix(e->ptr) >> 16) & s->mask];
        e->next = *to;
        *to = e;
        s->count++;
        s->lowest += e->level == 1;
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
    install(c, new_entry(st, inner, c->packed, epoch));
}


static void unpack(const entry *e, const chime_state *st, chime_inner *inner) {
    inner->ptr = e->ptr;
    inner->sibling = e->sibling;
    inner->level = e->level;
    inner->count = e->count;
    inner->bounded = e->bounded;
    for (unsigned i = 0; i <= e->count; i++) {
        chime_fence *f = i < e->count ? &inner->pivot[i] : &inner->high;
        *f = (chime_fence){.word = CHIME_REF_ELSEWHERE, .first = i < e->count ? first_of(e, i) : e->high};
        if (!st->fixed)
            f->bytes = bytes_of(e, i);
        if (i < e->count)
            inner->child[i] = child_of(e, i);
    }
}


/* The node with a child more. NULL: it has that one, or it is none of its children. */
static entry *with_child(chime_cache *c, const entry *e, const chime_state *st, const chime_fence *pivot,
                         chime_ptr child) {
    uint8_t small[8];
    chime_key key = {.first = pivot->first, .bytes = st->fixed ? (far_bytes){NULL, 0} : fence_bytes(pivot, small)};
    if (e->count == CHIME_SPAN_MAX || compare_at(e, st, 0, &key) >= 0 ||
        (e->bounded && compare_at(e, st, e->count, &key) <= 0))
        return NULL;
    unsigned at = child_for(e, st, &key) + 1;
    if (compare_at(e, st, at - 1, &key) == 0)
        return NULL;
    chime_inner *inner = malloc(sizeof(*inner));
    if (!inner)
        return NULL;
    unpack(e, st, inner);
    memmove(&inner->pivot[at + 1], &inner->pivot[at], (e->count - at) * sizeof(inner->pivot[0]));
    memmove(&inner->child[at + 1], &inner->child[at], (e->count - at) * sizeof(inner->child[0]));
    inner->pivot[at] = *pivot;
    inner->child[at] = child;
    inner->count++;
    entry *with = new_entry(st, inner, c->packed, e->epoch);
    free(inner);
    return with;
}


bool chime_cache_add(chime_cache *c, const chime_state *st, chime_ptr node, const chime_fence *pivot, chime_ptr child) {
    unsigned number;
    shard *s = shard_of(c, node, &number);
    unsigned place = far_readers_enter(&c->readers, &s->lock, number);
    entry **at = find(s, node), *e = at ? with_child(c, *at, st, pivot, child) : NULL;
    far_readers_leave(&c->readers, place);
    return install(c, e);
}


void chime_cache_renew(chime_cache *c, chime_ptr node) {
    unsigned number;
    shard *s = shard_of(c, node, &number);
    unsigned place = far_readers_enter(&c->readers, &s->lock, number);
    entry **at = find(s, node);
    if (at)
        atomic_store_explicit(&(*at)->renew, true, memory_order_relaxed);
    far_readers_leave(&c->readers, place);
}


void chime_cache_drop(chime_cache *c, chime_ptr node) {
    unsigned number;
    shard *s = shard_of(c, node, &number);
    far_writer_enter(&c->readers, &s->lock, number);
    entry **at = find(s, node);
    size_t freed = at ? take_out(s, at) : 0;
    far_writer_leave(&s->lock);
    if (freed)
        far_budget_give(c->budget, freed);
}


/* Eviction. */

/* The first entry from that bucket on that may go. */
static entry **candidate(shard *s, unsigned from, bool any_level) {
    for (unsigned i = 0; i <= s->mask; i++)
        for (entry **at = &s->bucket[(from + i) & s->mask]; *at; at = &(*at)->next)
            if (any_level || (*at)->level == 1)
                return at;
    return NULL;
}


static size_t evict_one(shard *s, uint64_t random, bool any_level) {
    if (!s->bucket || !s->count)
        return 0;
    entry **a = candidate(s, (unsigned)random, any_level), **b = candidate(s, (unsigned)(random >> 32), any_level);
    if (!a)
        return 0;
    unsigned uses_a = atomic_load_explicit(&(*a)->uses, memory_order_relaxed),
             uses_b = atomic_load_explicit(&(*b)->uses, memory_order_relaxed);
    entry **colder = uses_a <= uses_b ? a : b, *warmer = uses_a <= uses_b ? *b : *a;
    atomic_store_explicit(&warmer->uses, (unsigned char)((uses_a <= uses_b ? uses_b : uses_a) * 3 / 4),
                          memory_order_relaxed);
    return take_out(s, colder);
}


static size_t evict(void *ctx, size_t bytes) {
    chime_cache *c = ctx;
    size_t freed = 0, goal = bytes > EVICT_LEAST ? bytes : EVICT_LEAST;
    for (unsigned pass = 0; pass < 2 && freed < goal; pass++)
        for (unsigned turn = 0; turn < SHARDS * 8 && freed < goal; turn++) {
            unsigned hand = atomic_fetch_add_explicit(&c->hand, 1, memory_order_relaxed), number = hand % SHARDS;
            shard *s = &c->shard[number];
            if (!far_writer_try(&c->readers, &s->lock, number))
                continue;
            size_t gone = evict_one(s, mix(hand + 1), pass == 1);
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
    c->budget = far_budget_register(far_index_budget(index), index->name, evict, c);
    if (!c->budget) { /* too many caches: without one */
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
                freed += take_out(s, &s->bucket[k]);
        free(s->bucket);
        s->bucket = NULL;
        far_writer_leave(&s->lock);
        if (freed)
            far_budget_give(c->budget, freed);
    }
    far_budget_unregister(c->budget);
    free(c);
}


/* Room for the hotspot buffer, from the same budget. */
bool chime_cache_take(chime_cache *c, size_t bytes) {
    return far_budget_take(c->budget, bytes);
}


void chime_cache_give(chime_cache *c, size_t bytes) {
    far_budget_give(c->budget, bytes);
}


size_t chime_cache_bytes(far_index *index) {
    const chime_state *st = chime_state_of(index);
    return st->cache ? far_budget_cache_used(st->cache->budget) : 0;
}
