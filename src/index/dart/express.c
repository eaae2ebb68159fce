/* What a handle keeps of the skip table: directory words, and entries (the express cache), under the byte budget; and
 * the chunks of memory in which all its caches lie.
 *
 * Tag rule: every word carries the epoch in which its target was last proved live. It may be used by an operation
 * pinned at epoch E only if the tag is E-1-x or later, x = DART_EXTRA_EPOCHS (of segments: DART_SEGMENT_EPOCHS). Proof
 * that this is safe: a target that was live in an operation pinned at T is retired under a pin at T-1 or later, stamped
 * T or later, and reused when every pin is at T+2+x or later, because its type asks for x more epochs. An operation at
 * E <= T+1+x ends before that.
 *
 * A tag is stored modulo 4096, in bits that the word leaves free. dart_cache_age forgets old ones at least every
 * DART_TAG_PERIOD epochs, so no tag is ever old enough to look new. */
#include "base/error.h"
#include "index/dart/est.h"

#include <stdlib.h>
#include <string.h>

#define TAG_BITS            DART_TAG_BITS
#define TAG_MASK            DART_TAG_MASK
#define DIRECTORY_TAG_SHIFT 44 /* between the address and log2(groups) */
#define REFERENCED                                                                                                     \
    DART_EST_TENTATIVE /* an entry that is kept is never tentative: its bit says that it was used lately */
#define BELOW_TAG_SHIFT 50
#define SET_ENTRIES     8u
#define SETS            (DART_CHUNK_WORDS / 2 / SET_ENTRIES)
#define ASKED_BITS      16
#define FIRST_CHUNKS    64u
#define CROWDED         4u /* full sets met, for each chunk in use, before there are twice as many */

_Static_assert(DART_CHUNK_SHIFT >= TAG_BITS, "the chunk comes from bits that the entry keeps");
_Static_assert(DART_EXPRESS_WORDS == DART_CHUNK_WORDS + SETS, "one word per set tells who asked to come in");
_Static_assert(DART_CHUNK_WORDS * 8 % 64 == 0 && DART_EXPRESS_WORDS * 8 % 64 == 0, "chunks begin with a line");
_Static_assert(DART_TAG_PERIOD * 3 / 2 + 1 + DART_SEGMENT_EPOCHS <= TAG_MASK / 2, "tags are told apart");


static bool segment_is_fresh(uint64_t tag, uint64_t epoch) { /* of a directory word */
    return dart_tag_age(tag, epoch) <= 1 + DART_SEGMENT_EPOCHS;
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
    atomic_init(&cache->active, chunks < FIRST_CHUNKS ? chunks : FIRST_CHUNKS);
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


/* A chunk that had no words: gets some, and is locked. NULL: there is no memory for them. Chunks are worth the same: if
 * they pushed out each other, a cache that lacks a few of them would lose hundreds of entries for each one that comes.
 */
static __attribute__((noinline)) dart_chunk *fill_and_lock(dart_cache *cache, dart_chunk *chunk) {
    if (!far_budget_take_from_others(cache->budget, cache->chunk_bytes))
        return NULL;
    void *words = NULL;
    if (posix_memalign(&words, 64, cache->chunk_bytes) == 0)
        memset(words, 0, cache->chunk_bytes);
    else
        words = NULL;
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


dart_chunk *dart_cache_lock(dart_cache *cache, unsigned at, bool make) {
    dart_chunk *chunk = &cache->chunks[at];
    far_spin_lock(&chunk->lock);
    if (chunk->words)
        return chunk;
    far_spin_unlock(&chunk->lock);
    return make ? fill_and_lock(cache, chunk) : NULL;
}


dart_chunk *dart_cache_lock_for(dart_cache *cache, uint64_t hash, bool make) {
    uint64_t active = atomic_load_explicit(&cache->active, memory_order_relaxed);
    unsigned at = (unsigned)((hash >> DART_CHUNK_SHIFT & UINT32_MAX) * active >> 32);
    return cache->count ? dart_cache_lock(cache, at, make) : NULL;
}


bool dart_cache_lets_in(uint64_t *asked, uint64_t hash) {
    uint64_t mark = hash >> (64 - ASKED_BITS);
    for (unsigned shift = 0; shift < 64; shift += ASKED_BITS)
        if ((*asked >> shift & ((1u << ASKED_BITS) - 1)) == mark)
            return true;
    *asked = *asked << ASKED_BITS | mark;
    return false;
}


/* Takes the words of a chunk out of it; whoever looks for them meanwhile finds nothing. */
static uint64_t *take_words(dart_chunk *chunk) {
    far_spin_lock(&chunk->lock);
    uint64_t *words = chunk->words;
    chunk->words = NULL;
    far_spin_unlock(&chunk->lock);
    return words;
}


/* Twice as many chunks. One after the other is emptied into the chunks that its entries belong to now: those numbers
 * are not below its own, so from the last one on none is emptied twice. What another task puts beside this, by the old
 * number, is lost. */
static void use_more_chunks(dart_cache *cache, uint64_t epoch, dart_cache_move *move) {
    unsigned active = atomic_load_explicit(&cache->active, memory_order_relaxed);
    if (active == cache->count || atomic_exchange_explicit(&cache->growing, 1, memory_order_acquire))
        return;
    unsigned more = active < cache->count / 2 ? 2 * active : cache->count;
    atomic_store_explicit(&cache->active, more, memory_order_relaxed);
    for (unsigned at = active; at-- > 0;) {
        uint64_t *words = take_words(&cache->chunks[at]);
        if (words) {
            move(cache, words, epoch);
            free(words);
            far_budget_give(cache->budget, cache->chunk_bytes);
        }
    }
    atomic_store_explicit(&cache->crowded, 0, memory_order_relaxed);
    far_spin_unlock(&cache->growing);
}


void dart_cache_was_full(dart_cache *cache, uint64_t epoch, dart_cache_move *move) {
    unsigned crowded = atomic_fetch_add_explicit(&cache->crowded, 1, memory_order_relaxed);
    if (crowded >= atomic_load_explicit(&cache->active, memory_order_relaxed) * CROWDED)
        use_more_chunks(cache, epoch, move);
}


/* ---- Directory words ---- */

static uint64_t without_tag(uint64_t word) {
    return word & ~(TAG_MASK << DIRECTORY_TAG_SHIFT);
}


uint64_t dart_directory_get(dart_directory *directory, unsigned at, uint64_t epoch, bool *fresh) {
    uint64_t word = at < DART_TABLES_KEPT ? atomic_load_explicit(&directory->tables[at], memory_order_relaxed) : 0;
    *fresh = word != 0;
    if (word)
        return word;
    dart_cache *cache = &directory->words;
    dart_chunk *chunk = cache->count ? dart_cache_lock(cache, at / DART_CHUNK_WORDS, false) : NULL;
    if (!chunk)
        return 0;
    word = chunk->words[at % DART_CHUNK_WORDS];
    far_spin_unlock(&chunk->lock);
    *fresh = word && (dart_is_table(word) || segment_is_fresh(word >> DIRECTORY_TAG_SHIFT, epoch));
    return without_tag(word);
}


void dart_directory_set(dart_directory *directory, unsigned at, uint64_t word, uint64_t epoch) {
    if (dart_is_table(word) && at < DART_TABLES_KEPT)
        atomic_store_explicit(&directory->tables[at], word, memory_order_relaxed);
    dart_cache *cache = &directory->words;
    dart_chunk *chunk = cache->count ? dart_cache_lock(cache, at / DART_CHUNK_WORDS, word != 0) : NULL;
    if (!chunk)
        return;
    uint64_t *kept = &chunk->words[at % DART_CHUNK_WORDS];
    /* The proof of an older operation does not make a newer one older, nor a segment of a table. */
    if (!dart_is_table(*kept) && (without_tag(*kept) != word || dart_tag_age(*kept >> DIRECTORY_TAG_SHIFT, epoch) > 0))
        *kept = word ? word | (epoch & TAG_MASK) << DIRECTORY_TAG_SHIFT : 0;
    far_spin_unlock(&chunk->lock);
}


/* ---- The express cache: sets of 8 entries {word, hash without its low 12 bits | tag} ---- */

static unsigned set_of(uint64_t hash) {
    return (unsigned)(hash >> (DART_CHUNK_SHIFT + 32)) % SETS;
}


/* The chunk and the set come from bits that the entry keeps. */
static uint64_t *lock_set(dart_cache *cache, uint64_t hash, bool make, dart_chunk **chunk) {
    *chunk = dart_cache_lock_for(cache, hash, make);
    return *chunk ? (*chunk)->words + set_of(hash) * SET_ENTRIES * 2 : NULL;
}


/* The i-th entry to look at: half of a set is a line of the processor's cache, and each hash has its own first one. */
static uint64_t *nth_entry(uint64_t *set, uint64_t hash, unsigned i) {
    unsigned first = hash >> (DART_CHUNK_SHIFT + 40) & 1 ? SET_ENTRIES / 2 : 0;
    return &set[2 * ((first + i) % SET_ENTRIES)];
}


static uint64_t *find_entry(uint64_t *set, uint64_t hash) {
    for (unsigned i = 0; i < SET_ENTRIES; i++) {
        uint64_t *entry = nth_entry(set, hash, i);
        if (entry[0] && ((entry[1] ^ hash) & ~TAG_MASK) == 0)
            return entry;
    }
    return NULL;
}


bool dart_express_get(dart_cache *cache, uint64_t hash, uint64_t epoch, uint64_t *word, bool *current) {
    dart_chunk *chunk;
    uint64_t *set = lock_set(cache, hash, false, &chunk), *entry;
    if (!set)
        return false;
    bool found = (entry = find_entry(set, hash)) && dart_tag_is_fresh(entry[1], epoch);
    if (found) {
        *word = entry[0] & ~REFERENCED;
        *current = dart_tag_age(entry[1], epoch) <= DART_EXTRA_EPOCHS / 2; /* the entry need not be renewed yet */
        if (!(entry[0] & REFERENCED))
            entry[0] |= REFERENCED;
    }
    far_spin_unlock(&chunk->lock);
    return found;
}


/* Those too old to be used go first; then the first that was not used since it was passed over. NULL: all stay. */
static uint64_t *choose_entry(dart_chunk *chunk, uint64_t *set, uint64_t hash, uint64_t epoch, bool *full) {
    for (unsigned i = 0; i < SET_ENTRIES; i++) {
        uint64_t *entry = nth_entry(set, hash, i);
        if (entry[0] == 0 || !dart_tag_is_fresh(entry[1], epoch))
            return entry;
    }
    *full = true;
    if (!dart_cache_lets_in(chunk->words + DART_CHUNK_WORDS + set_of(hash), hash))
        return NULL;
    for (unsigned i = 0; i < SET_ENTRIES; i++) {
        if (!(set[2 * i] & REFERENCED))
            return &set[2 * i];
        set[2 * i] &= ~REFERENCED;
    }
    return &set[0];
}


/* True: its set was full. */
static bool put_entry(dart_cache *cache, uint64_t hash, uint64_t word, uint64_t epoch) {
    dart_chunk *chunk;
    uint64_t *set = lock_set(cache, hash, true, &chunk), *entry;
    if (!set)
        return false;
    entry = find_entry(set, hash);
    bool same = entry && dart_hinted(entry[0] & ~REFERENCED, 0) == dart_hinted(word, 0), full = false;
    if (same && dart_hint(word) == 0)
        word = dart_hinted(word, dart_hint(entry[0]));
    if (!same || dart_tag_age(entry[1], epoch) > 0) {
        if (!entry)
            entry = choose_entry(chunk, set, hash, epoch, &full);
        if (entry) {
            entry[0] = word | (same ? REFERENCED : 0);
            entry[1] = (hash & ~TAG_MASK) | (epoch & TAG_MASK);
        }
    }
    far_spin_unlock(&chunk->lock);
    return full;
}


/* After the cache has grown: the entries of a chunk go where they belong now. */
static void move_entries(dart_cache *cache, uint64_t *words, uint64_t epoch) {
    for (unsigned w = 0; w < DART_CHUNK_WORDS; w += 2)
        if (words[w] && dart_tag_is_fresh(words[w + 1], epoch))
            put_entry(cache, words[w + 1] & ~TAG_MASK, words[w] & ~REFERENCED, dart_tag_epoch(words[w + 1], epoch));
}


void dart_express_put(dart_cache *cache, uint64_t hash, uint64_t word, uint64_t epoch) {
    if (put_entry(cache, hash, word, epoch))
        dart_cache_was_full(cache, epoch, move_entries);
}


void dart_express_hint(dart_cache *cache, uint64_t hash, uint64_t word, unsigned slot) {
    dart_chunk *chunk;
    uint64_t *set = lock_set(cache, hash, false, &chunk), *entry;
    if (!set)
        return;
    if ((entry = find_entry(set, hash)) && dart_hinted(entry[0] & ~REFERENCED, 0) == dart_hinted(word, 0))
        entry[0] = dart_hinted(entry[0], slot + 1);
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


/* ---- Nodes below the root ---- */

/* A word: tag 12 << 50 | type 4 << 46 | g, as an entry has it, with the tag where that has fingerprint and delta. */
bool dart_below_root_get(const dart_below_root *below, unsigned byte, uint64_t epoch, dart_node *node, bool *current) {
    uint64_t word = atomic_load_explicit(&below->word[byte], memory_order_relaxed), tag = word >> BELOW_TAG_SHIFT;
    if (!word || !dart_tag_is_fresh(tag, epoch))
        return false;
    *node = (dart_node){dart_word_addr(word), dart_est_type(word), 1};
    *current = dart_tag_age(tag, epoch) <= DART_EXTRA_EPOCHS / 2;
    return true;
}


void dart_below_root_put(dart_below_root *below, unsigned byte, const dart_node *node, uint64_t epoch) {
    uint64_t word = dart_est_word(0, 0, node->type, node->addr) | (epoch & TAG_MASK) << BELOW_TAG_SHIFT;
    atomic_store_explicit(&below->word[byte], word, memory_order_relaxed);
}


void dart_below_root_drop(dart_below_root *below, unsigned byte) {
    atomic_store_explicit(&below->word[byte], 0, memory_order_relaxed);
}


/* ---- Age ---- */

static void forget_old(dart_cache *cache, bool entries, uint64_t epoch, bool all) {
    for (unsigned i = 0; i < cache->count; i++) {
        dart_chunk *chunk = dart_cache_lock(cache, i, false);
        if (!chunk)
            continue;
        for (unsigned w = 0; w < DART_CHUNK_WORDS; w += entries ? 2 : 1) {
            uint64_t tag = entries ? chunk->words[w + 1] : chunk->words[w] >> DIRECTORY_TAG_SHIFT;
            if (all || !(entries ? dart_tag_is_fresh(tag, epoch) : segment_is_fresh(tag, epoch)))
                chunk->words[w] = 0;
        }
        far_spin_unlock(&chunk->lock);
    }
}


void dart_below_root_age(dart_below_root *below, uint64_t before, uint64_t epoch) {
    for (unsigned i = 0; before / DART_TAG_PERIOD != epoch / DART_TAG_PERIOD && i < 256; i++)
        dart_below_root_drop(below, i);
}


void dart_cache_age(dart_cache *directory, dart_cache *express, uint64_t before, uint64_t epoch) {
    if (before / DART_TAG_PERIOD == epoch / DART_TAG_PERIOD)
        return;
    bool all = epoch - before > DART_TAG_PERIOD / 2;
    forget_old(directory, false, epoch, all);
    forget_old(express, true, epoch, all);
}
