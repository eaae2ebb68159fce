/* The local caches of a handle: chunks of memory under the byte budget, which all caches of DART use; the cache of
 * directory words; and the express cache, which holds skip table entries.
 *
 * The tag rule. Every cached word has a tag, which is the epoch in which its target was last proved to be linked. An
 * operation that is pinned at epoch E may use the word only if its tag is E-1-x or later, where x = DART_EXTRA_EPOCHS
 * (DART_SEGMENT_EPOCHS for segments).
 *
 * Proof that this is safe. Let a target be linked in an operation that is pinned at T. Then it is retired under a pin
 * at T-1 or later, so its retirement is stamped with T or later. Its memory is reused when all pins are at T+2+x or
 * later, because its type demands x additional epochs. An operation pinned at E <= T+1+x ends before that.
 *
 * Tags are stored modulo 4096, in unused bits of the words. dart_cache_age drops old words at least every
 * DART_TAG_PERIOD epochs, so that no tag becomes old enough to look new. */
#include "base/error.h"
#include "index/dart/skiptable/skiptable.h"

#include <stdlib.h>
#include <string.h>

#define TAG_BITS            DART_TAG_BITS
#define TAG_MASK            DART_TAG_MASK
/* position of the tag in a cached directory word, between the address and log2(groups) */
#define DIRECTORY_TAG_SHIFT 44
/* Bit of a cached entry that is set when the entry is used. The bit is free for this purpose, because a cached entry is
 * never tentative. */
#define REFERENCED      DART_EST_TENTATIVE
#define BELOW_TAG_SHIFT 50
#define SET_ENTRIES     8u
#define SETS            (DART_CHUNK_WORDS / 2 / SET_ENTRIES)
#define REQUEST_BITS    16
#define FIRST_CHUNKS    64u
/* The cache doubles its active chunks after this many insertions into full sets for each active chunk. */
#define FULL_SETS_PER_CHUNK 4u

_Static_assert(DART_CHUNK_SHIFT >= TAG_BITS, "an entry contains the bits of the hash that choose the chunk");
_Static_assert(DART_EXPRESS_WORDS == DART_CHUNK_WORDS + SETS, "one word per set for admission requests");
_Static_assert(DART_CHUNK_WORDS * 8 % 64 == 0 && DART_EXPRESS_WORDS * 8 % 64 == 0,
               "chunks are multiples of a cache line");
_Static_assert(DART_TAG_PERIOD * 3 / 2 + 1 + DART_SEGMENT_EPOCHS <= TAG_MASK / 2, "tags stay distinguishable");


static bool segment_is_fresh(uint64_t tag, uint64_t epoch) { /* tag: the tag of a directory word */
    return dart_tag_age(tag, epoch) <= 1 + DART_SEGMENT_EPOCHS;
}


static size_t evict_chunks(void *ctx, size_t bytes) {
    dart_cache *cache = ctx;
    size_t given = 0;
    for (unsigned i = 0; i < cache->count && given < bytes; i++) {
        unsigned at = atomic_fetch_add_explicit(&cache->evict_cursor, 1, memory_order_relaxed) % cache->count;
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
    atomic_init(&cache->active_chunks, chunks < FIRST_CHUNKS ? chunks : FIRST_CHUNKS);
    if (chunks == 0)
        return 0;
    cache->chunks = calloc(chunks, sizeof(*cache->chunks));
    if (!cache->chunks)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory to open an index");
    cache->budget = far_budget_register(budget, name, evict_chunks, cache);
    if (!cache->budget) /* the process has too many caches, so this one stays empty */
        cache->count = 0;
    return 0;
}


void dart_cache_close(dart_cache *cache) {
    if (cache->budget) {
        evict_chunks(cache, SIZE_MAX);
        far_budget_unregister(cache->budget);
    }
    free(cache->chunks);
    *cache = (dart_cache){0};
}


size_t dart_cache_used(const dart_cache *cache) {
    return cache->budget ? far_budget_cache_used(cache->budget) : 0;
}


/* Allocates the words of a chunk, and returns the chunk locked; NULL if the budget or the memory is exhausted. The
 * function takes budget only from other caches, because all chunks of this cache are worth the same. If chunks of one
 * cache evicted each other, each new entry could cost hundreds of old entries. */
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
    /* true if another task has allocated the words first; false if there was no memory */
    bool there = chunk->words != NULL;
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
    uint64_t active = atomic_load_explicit(&cache->active_chunks, memory_order_relaxed);
    unsigned at = (unsigned)((hash >> DART_CHUNK_SHIFT & UINT32_MAX) * active >> 32);
    return cache->count ? dart_cache_lock(cache, at, make) : NULL;
}


bool dart_cache_admit(uint64_t *asked, uint64_t hash) {
    uint64_t mark = hash >> (64 - REQUEST_BITS);
    for (unsigned shift = 0; shift < 64; shift += REQUEST_BITS)
        if ((*asked >> shift & ((1u << REQUEST_BITS) - 1)) == mark)
            return true;
    *asked = *asked << REQUEST_BITS | mark;
    return false;
}


/* Removes the words from a chunk and returns them. Tasks that search the chunk in the meantime find nothing. */
static uint64_t *take_words(dart_chunk *chunk) {
    far_spin_lock(&chunk->lock);
    uint64_t *words = chunk->words;
    chunk->words = NULL;
    far_spin_unlock(&chunk->lock);
    return words;
}


/* Doubles the number of active chunks, and moves the entries of each old chunk to the chunks to which they now belong.
 * An entry of chunk i moves to chunk i or to a chunk with a higher number. The loop empties the last chunk first, so no
 * entry is moved twice. Entries that another task inserts concurrently, with the old number of chunks, are lost. */
static void use_more_chunks(dart_cache *cache, uint64_t epoch, dart_cache_move_fn *move) {
    unsigned active = atomic_load_explicit(&cache->active_chunks, memory_order_relaxed);
    if (active == cache->count || atomic_exchange_explicit(&cache->growing, 1, memory_order_acquire))
        return;
    unsigned more = active < cache->count / 2 ? 2 * active : cache->count;
    atomic_store_explicit(&cache->active_chunks, more, memory_order_relaxed);
    for (unsigned at = active; at-- > 0;) {
        uint64_t *words = take_words(&cache->chunks[at]);
        if (words) {
            move(cache, words, epoch);
            free(words);
            far_budget_give(cache->budget, cache->chunk_bytes);
        }
    }
    atomic_store_explicit(&cache->full_sets, 0, memory_order_relaxed);
    far_spin_unlock(&cache->growing);
}


void dart_cache_count_full_set(dart_cache *cache, uint64_t epoch, dart_cache_move_fn *move) {
    unsigned before = atomic_fetch_add_explicit(&cache->full_sets, 1, memory_order_relaxed);
    if (before >= atomic_load_explicit(&cache->active_chunks, memory_order_relaxed) * FULL_SETS_PER_CHUNK)
        use_more_chunks(cache, epoch, move);
}


/* ---- The cache of directory words ---- */

static uint64_t without_tag(uint64_t word) {
    return word & ~(TAG_MASK << DIRECTORY_TAG_SHIFT);
}


uint64_t dart_directory_get(dart_directory *directory, unsigned at, uint64_t epoch, bool *fresh) {
    uint64_t word = at < DART_TABLES_CACHED ? atomic_load_explicit(&directory->tables[at], memory_order_relaxed) : 0;
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
    if (dart_is_table(word) && at < DART_TABLES_CACHED)
        atomic_store_explicit(&directory->tables[at], word, memory_order_relaxed);
    dart_cache *cache = &directory->words;
    dart_chunk *chunk = cache->count ? dart_cache_lock(cache, at / DART_CHUNK_WORDS, word != 0) : NULL;
    if (!chunk)
        return;
    uint64_t *cached = &chunk->words[at % DART_CHUNK_WORDS];
    /* A segment must not replace a table. An older operation must not set a tag to an earlier epoch. */
    if (!dart_is_table(*cached) &&
        (without_tag(*cached) != word || dart_tag_age(*cached >> DIRECTORY_TAG_SHIFT, epoch) > 0))
        *cached = word ? word | (epoch & TAG_MASK) << DIRECTORY_TAG_SHIFT : 0;
    far_spin_unlock(&chunk->lock);
}


/* ---- The express cache: sets of 8 entries {word, hash with the tag in its low 12 bits} ---- */

static unsigned set_of(uint64_t hash) {
    return (unsigned)(hash >> (DART_CHUNK_SHIFT + 32)) % SETS;
}


/* Locks the chunk of a hash and returns the set of this hash. Chunk and set are chosen by bits of the hash that entries
 * contain. Returns NULL, without a lock, if the chunk is not allocated. */
static uint64_t *lock_set(dart_cache *cache, uint64_t hash, bool make, dart_chunk **chunk) {
    *chunk = dart_cache_lock_for(cache, hash, make);
    return *chunk ? (*chunk)->words + set_of(hash) * SET_ENTRIES * 2 : NULL;
}


/* Returns the i-th entry in the order in which a hash searches its set. Half of a set is one cache line of the
 * processor; the hash decides which half is searched first. */
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
        /* true if the tag is so new that it need not be renewed yet */
        *current = dart_tag_age(entry[1], epoch) <= DART_EXTRA_EPOCHS / 2;
        if (!(entry[0] & REFERENCED))
            entry[0] |= REFERENCED;
    }
    far_spin_unlock(&chunk->lock);
    return found;
}


/* Chooses the entry of a set that will be overwritten: an entry that is too old to be used, otherwise the first entry
 * that was not used since the last search for a victim. Returns NULL if no entry may be evicted. */
static uint64_t *choose_victim(dart_chunk *chunk, uint64_t *set, uint64_t hash, uint64_t epoch, bool *full) {
    for (unsigned i = 0; i < SET_ENTRIES; i++) {
        uint64_t *entry = nth_entry(set, hash, i);
        if (entry[0] == 0 || !dart_tag_is_fresh(entry[1], epoch))
            return entry;
    }
    *full = true;
    if (!dart_cache_admit(chunk->words + DART_CHUNK_WORDS + set_of(hash), hash))
        return NULL;
    for (unsigned i = 0; i < SET_ENTRIES; i++) {
        if (!(set[2 * i] & REFERENCED))
            return &set[2 * i];
        set[2 * i] &= ~REFERENCED;
    }
    return &set[0];
}


/* Stores an entry. Returns true if the set of the entry was full. */
static bool put_entry(dart_cache *cache, uint64_t hash, uint64_t word, uint64_t epoch) {
    dart_chunk *chunk;
    uint64_t *set = lock_set(cache, hash, true, &chunk), *entry;
    if (!set)
        return false;
    entry = find_entry(set, hash);
    bool same = entry && dart_word_with_position(entry[0] & ~REFERENCED, 0) == dart_word_with_position(word, 0),
         full = false;
    if (same && dart_word_position(word) == 0)
        word = dart_word_with_position(word, dart_word_position(entry[0]));
    if (!same || dart_tag_age(entry[1], epoch) > 0) {
        if (!entry)
            entry = choose_victim(chunk, set, hash, epoch, &full);
        if (entry) {
            entry[0] = word | (same ? REFERENCED : 0);
            entry[1] = (hash & ~TAG_MASK) | (epoch & TAG_MASK);
        }
    }
    far_spin_unlock(&chunk->lock);
    return full;
}


/* Called after the number of active chunks was doubled: inserts the entries of an old chunk again, each into its new
 * chunk. */
static void move_entries(dart_cache *cache, uint64_t *words, uint64_t epoch) {
    for (unsigned w = 0; w < DART_CHUNK_WORDS; w += 2)
        if (words[w] && dart_tag_is_fresh(words[w + 1], epoch))
            put_entry(cache, words[w + 1] & ~TAG_MASK, words[w] & ~REFERENCED, dart_tag_epoch(words[w + 1], epoch));
}


void dart_express_put(dart_cache *cache, uint64_t hash, uint64_t word, uint64_t epoch) {
    if (put_entry(cache, hash, word, epoch))
        dart_cache_count_full_set(cache, epoch, move_entries);
}


void dart_express_set_position(dart_cache *cache, uint64_t hash, uint64_t word, unsigned slot) {
    dart_chunk *chunk;
    uint64_t *set = lock_set(cache, hash, false, &chunk), *entry;
    if (!set)
        return;
    if ((entry = find_entry(set, hash)) &&
        dart_word_with_position(entry[0] & ~REFERENCED, 0) == dart_word_with_position(word, 0))
        entry[0] = dart_word_with_position(entry[0], slot + 1);
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


/* ---- The cache of nodes below the root ---- */

/* A word is encoded as tag 12 << 50 | type 4 << 46 | g, like a skip table entry, with the tag in place of fingerprint
 * and delta. */
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


/* ---- Dropping old words ---- */

static void clear_old_words(dart_cache *cache, bool entries, uint64_t epoch, bool all) {
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
    clear_old_words(directory, false, epoch, all);
    clear_old_words(express, true, epoch, all);
}
