/* What a handle keeps of the skip table: directory words, and entries (the express cache), under the byte budget.
 *
 * Tag rule: every word carries the epoch in which its target was last proved live. It may be used by an operation
 * pinned at epoch E only if the tag is E-1 or later. Proof that this is safe: a target that was live in an operation
 * pinned at T is retired under a pin at T-1 or later, stamped T or later, and reused when every pin is at T+2 or later.
 * An operation at E <= T+1 ends before that.
 *
 * A tag is stored modulo 4096, in bits that the word leaves free. dart_cache_age forgets old ones at least every
 * DART_TAG_PERIOD epochs, so no tag is ever old enough to look new. */
#include "index/dart/est.h"
#include "runtime/error.h"

#include <stdlib.h>

#define TAG_MASK            0xfffull
#define DIRECTORY_TAG_SHIFT 44 /* between the address and log2(groups) */
#define REFERENCED                                                                                                     \
    DART_EST_TENTATIVE /* an entry that is kept is never tentative: its bit says that it was used lately */
#define SET_ENTRIES 8u
#define SETS        (DART_CHUNK_WORDS / 2 / SET_ENTRIES)
#define ASKED_BITS  16

_Static_assert(DART_EXPRESS_WORDS == DART_CHUNK_WORDS + SETS, "one word per set tells who asked to come in");
_Static_assert(DART_TAG_PERIOD * 4 <= TAG_MASK + 1, "tags are told apart");


/* Epochs since the tag; negative: it is of a newer one. */
static int age_of(uint64_t tag, uint64_t epoch) {
    unsigned age = (unsigned)((epoch - tag) & TAG_MASK);
    return age > TAG_MASK / 2 ? (int)age - (int)(TAG_MASK + 1) : (int)age;
}


static bool is_fresh(uint64_t tag, uint64_t epoch) {
    return age_of(tag, epoch) <= 1;
}


static size_t evict(void *ctx, size_t bytes) {
    dart_cache *cache = ctx;
    size_t given = 0;
    for (unsigned i = 0; i < cache->count && given < bytes; i++) {
        unsigned at = atomic_fetch_add_explicit(&cache->hand, 1, memory_order_relaxed) % cache->count;
        dart_chunk *chunk = &cache->chunks[at];
        if (atomic_exchange_explicit(&chunk->lock, 1, memory_order_acquire))
            continue;
        uint64_t *words = chunk->words;
        chunk->words = NULL;
        far_spin_unlock(&chunk->lock);
        if (words) {
            free(words);
            far_budget_give(cache->budget, cache->chunk_bytes);
            given += cache->chunk_bytes;
        }
    }
    return given;
}


int dart_cache_open(dart_cache *cache, struct far_budget *budget, const char *name, unsigned chunks,
                    unsigned chunk_words) {
    *cache = (dart_cache){.count = chunks, .chunk_bytes = chunk_words * 8ull};
    if (chunks == 0)
        return 0;
    cache->chunks = calloc(chunks, sizeof(*cache->chunks));
    if (!cache->chunks)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to open an index");
    cache->budget = far_budget_register(budget, name, evict, cache);
    if (!cache->budget) /* too many caches: it does without */
        cache->count = 0;
    return 0;
}


void dart_cache_close(dart_cache *cache) {
    if (cache->budget) {
        evict(cache, SIZE_MAX);
        far_budget_unregister(cache->budget);
    }
    free(cache->chunks);
    *cache = (dart_cache){0};
}


size_t dart_cache_used(const dart_cache *cache) {
    return cache->budget ? far_budget_cache_used(cache->budget) : 0;
}


/* Locks a chunk that has words; NULL: there are none (make: and no room for any). */
static dart_chunk *lock_chunk(dart_cache *cache, unsigned at, bool make) {
    dart_chunk *chunk = &cache->chunks[at];
    far_spin_lock(&chunk->lock);
    if (chunk->words)
        return chunk;
    far_spin_unlock(&chunk->lock);
    if (!make || !far_budget_take(cache->budget, cache->chunk_bytes))
        return NULL;
    uint64_t *words = calloc(1, cache->chunk_bytes);
    far_spin_lock(&chunk->lock);
    if (words && !chunk->words) {
        chunk->words = words;
        return chunk;
    }
    bool there = chunk->words != NULL; /* another was faster, or no memory */
    if (!there)
        far_spin_unlock(&chunk->lock);
    free(words);
    far_budget_give(cache->budget, cache->chunk_bytes);
    return there ? chunk : NULL;
}


/* ---- Directory words ---- */

static uint64_t without_tag(uint64_t word) {
    return word & ~(TAG_MASK << DIRECTORY_TAG_SHIFT);
}


uint64_t dart_directory_get(dart_cache *cache, unsigned at, uint64_t epoch, bool *fresh) {
    *fresh = false;
    dart_chunk *chunk = cache->count ? lock_chunk(cache, at / DART_CHUNK_WORDS, false) : NULL;
    if (!chunk)
        return 0;
    uint64_t word = chunk->words[at % DART_CHUNK_WORDS];
    far_spin_unlock(&chunk->lock);
    *fresh = word && is_fresh(word >> DIRECTORY_TAG_SHIFT, epoch);
    return without_tag(word);
}


void dart_directory_set(dart_cache *cache, unsigned at, uint64_t word, uint64_t epoch) {
    dart_chunk *chunk = cache->count ? lock_chunk(cache, at / DART_CHUNK_WORDS, word != 0) : NULL;
    if (!chunk)
        return;
    uint64_t *kept = &chunk->words[at % DART_CHUNK_WORDS];
    /* The proof of an older operation does not make a newer one older. */
    if (without_tag(*kept) != word || age_of(*kept >> DIRECTORY_TAG_SHIFT, epoch) > 0)
        *kept = word ? word | (epoch & TAG_MASK) << DIRECTORY_TAG_SHIFT : 0;
    far_spin_unlock(&chunk->lock);
}


/* ---- The express cache: sets of 8 entries {word, hash without its low 12 bits | tag} ---- */

static uint64_t *lock_set(dart_cache *cache, uint64_t hash, bool make, dart_chunk **chunk) {
    unsigned at = (unsigned)(((hash & UINT32_MAX) * cache->count) >> 32);
    *chunk = cache->count ? lock_chunk(cache, at, make) : NULL;
    return *chunk ? (*chunk)->words + (hash >> 32) % SETS * SET_ENTRIES * 2 : NULL;
}


static uint64_t *find_entry(uint64_t *set, uint64_t hash) {
    for (unsigned i = 0; i < SET_ENTRIES; i++)
        if (set[2 * i] && ((set[2 * i + 1] ^ hash) & ~TAG_MASK) == 0)
            return &set[2 * i];
    return NULL;
}


bool dart_express_get(dart_cache *cache, uint64_t hash, uint64_t epoch, uint64_t *word) {
    dart_chunk *chunk;
    uint64_t *set = lock_set(cache, hash, false, &chunk), *entry;
    if (!set)
        return false;
    bool found = (entry = find_entry(set, hash)) && is_fresh(entry[1], epoch);
    if (found) {
        *word = entry[0] & ~REFERENCED;
        entry[0] |= REFERENCED;
    }
    far_spin_unlock(&chunk->lock);
    return found;
}


/* A set is full of entries that can be used: who wants to come in must be one of the last four that did. So those that
 * are asked for often push out those that are not, and many that come once push out nobody: with little memory the
 * entries of short prefixes stay, which many keys share. */
static bool may_come_in(dart_chunk *chunk, uint64_t hash) {
    uint64_t *asked = chunk->words + DART_CHUNK_WORDS + (hash >> 32) % SETS, mark = hash >> (64 - ASKED_BITS);
    for (unsigned shift = 0; shift < 64; shift += ASKED_BITS)
        if ((*asked >> shift & ((1u << ASKED_BITS) - 1)) == mark)
            return true;
    *asked = *asked << ASKED_BITS | mark;
    return false;
}


/* Those too old to be used go first; then the first that was not used since it was passed over. NULL: all stay. */
static uint64_t *choose_entry(dart_chunk *chunk, uint64_t *set, uint64_t hash, uint64_t epoch) {
    for (unsigned i = 0; i < SET_ENTRIES; i++)
        if (set[2 * i] == 0 || !is_fresh(set[2 * i + 1], epoch))
            return &set[2 * i];
    if (!may_come_in(chunk, hash))
        return NULL;
    for (unsigned i = 0; i < SET_ENTRIES; i++) {
        if (!(set[2 * i] & REFERENCED))
            return &set[2 * i];
        set[2 * i] &= ~REFERENCED;
    }
    return &set[0];
}


void dart_express_put(dart_cache *cache, uint64_t hash, uint64_t word, uint64_t epoch) {
    dart_chunk *chunk;
    uint64_t *set = lock_set(cache, hash, true, &chunk), *entry;
    if (!set)
        return;
    entry = find_entry(set, hash);
    bool same = entry && (entry[0] & ~REFERENCED) == word;
    if (!same || age_of(entry[1], epoch) > 0) {
        if (!entry)
            entry = choose_entry(chunk, set, hash, epoch);
        if (entry) {
            entry[0] = word | (same ? REFERENCED : 0);
            entry[1] = (hash & ~TAG_MASK) | (epoch & TAG_MASK);
        }
    }
    far_spin_unlock(&chunk->lock);
}


void dart_express_drop(dart_cache *cache, uint64_t hash) {
    dart_chunk *chunk;
    uint64_t *set = lock_set(cache, hash, false, &chunk), *entry;
    if (!set)
        return;
    if ((entry = find_entry(set, hash)))
        entry[0] = entry[1] = 0;
    far_spin_unlock(&chunk->lock);
}


/* ---- Age ---- */

static void forget_old(dart_cache *cache, bool entries, uint64_t epoch, bool all) {
    for (unsigned i = 0; i < cache->count; i++) {
        dart_chunk *chunk = lock_chunk(cache, i, false);
        if (!chunk)
            continue;
        for (unsigned w = 0; w < DART_CHUNK_WORDS; w += entries ? 2 : 1) {
            uint64_t tag = entries ? chunk->words[w + 1] : chunk->words[w] >> DIRECTORY_TAG_SHIFT;
            if (all || !is_fresh(tag, epoch))
                chunk->words[w] = 0;
        }
        far_spin_unlock(&chunk->lock);
    }
}


void dart_cache_age(dart_cache *directory, dart_cache *express, uint64_t before, uint64_t epoch) {
    if (before / DART_TAG_PERIOD == epoch / DART_TAG_PERIOD)
        return;
    bool all = epoch - before > DART_TAG_PERIOD;
    forget_old(directory, false, epoch, all);
    forget_old(express, true, epoch, all);
}
