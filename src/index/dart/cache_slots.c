/* The slot cache maps a frequently used key to the slot in which this handle last saw the key's leaf, and to the word
 * of that slot. A get reads the slot and the leaf in one batch; an update replaces the leaf by one CAS: one round trip
 * each.
 *
 * An entry by itself proves nothing. It carries the epoch T in which the word was last seen unfrozen in the slot. An
 * operation that is pinned at E may use the entry as follows. The tag rule and its proof are in
 * skiptable/cache_express.c.
 *
 *     reading the slot   if E <= T+1+x, where x = DART_EXTRA_EPOCHS, because the memory of retired nodes is not reused
 *                        earlier. An unfrozen word in the slot proves that the node is linked; as its prefix never
 *                        changes, the node is still on the key's path
 *     reading the leaf   if E <= T+1+y, where y = DART_LEAF_EPOCHS, because its memory is not reused earlier. Later,
 *                        only if the READ of the leaf takes effect after the READ of the slot, which is certain on one
 *                        memory node: if the slot still contains the word, the leaf is still linked
 *     CAS of the word    to another leaf: if E <= T+1+y and the entry has the complete key. Then the word, if the slot
 *                        still contains it, means the leaf of this key. Later it might mean a leaf of another key
 *                        that has the same size and the same address
 *
 * A set is eight cache lines of the processor: the first holds the word for admission and seven marks (hash, a bit that
 * says whether the entry was used lately, tag), the others hold the seven entries. */
#include "index/dart/cache_slots.h"
#include "index/dart/skiptable/skiptable.h"
#include "pool/epoch/epoch.h"

#include <assert.h>
#include <string.h>

#define SET_WORDS   64u
#define SET_ENTRIES 7u
#define SETS        (DART_CHUNK_WORDS / SET_WORDS)
#define REFERENCED  (1ull << DART_TAG_BITS)
#define HASH_MASK   (~(DART_TAG_MASK | REFERENCED))
/* maximal length of a key that is stored in the entry; a longer key is identified only by its hash */
#define KEY_INLINE     40u
#define KEY_NOT_STORED 0xffffu /* value of an entry's field `length` if the entry does not contain its key */

_Static_assert(DART_CHUNK_SHIFT > DART_TAG_BITS, "a mark contains the bits of the hash that choose the chunk");

typedef struct entry {
    uint64_t node; /* granule of the node in 44 bits | its type << 44 | its depth << 48; 0: unused entry */
    uint64_t word; /* slot word that names the leaf */
    uint16_t slot, length, unused[2];
    uint8_t key[KEY_INLINE];
} entry;

_Static_assert(sizeof(entry) == 64, "an entry fills a cache line");


static uint64_t key_hash(const dart_est *est, far_bytes key) {
    return est->one_fingerprint ? 0 : dart_est_hash(est, key.data, (unsigned)key.length);
}


static uint64_t *lock_set(dart_cache *cache, uint64_t hash, bool make, dart_chunk **chunk) {
    *chunk = dart_cache_lock_for(cache, hash, make);
    return *chunk ? (*chunk)->words + (hash >> (DART_CHUNK_SHIFT + 32)) % SETS * SET_WORDS : NULL;
}


/* Returns entry i of a set, for i from 1 to 7. Its mark is the word set[i]. */
static entry *set_entry(uint64_t *set, unsigned i) {
    return (entry *)(set + 8ull * i);
}


static bool entry_has_key(const entry *e, far_bytes key) {
    if (key.length > KEY_INLINE)
        return e->length == KEY_NOT_STORED;
    return far_bytes_equal((far_bytes){e->key, e->length}, key);
}


/* Returns the number of the key's entry; 0 if there is none. */
static unsigned find_entry(uint64_t *set, uint64_t hash, far_bytes key) {
    for (unsigned i = 1; i <= SET_ENTRIES; i++)
        if (((set[i] ^ hash) & HASH_MASK) == 0 && set_entry(set, i)->node && entry_has_key(set_entry(set, i), key))
            return i;
    return 0;
}


static dart_node entry_node(const entry *e) {
    return (dart_node){dart_word_addr(e->node), (dart_node_type)(e->node >> 44 & 15), (unsigned)(e->node >> 48)};
}


bool dart_slot_cache_get(far_task *t, const far_index *index, far_bytes key, dart_cached_slot *cached) {
    dart_est *est = dart_est_of(index);
    if (!est || est->slots.count == 0)
        return false;
    dart_chunk *chunk;
    uint64_t hash = key_hash(est, key), *set = lock_set(&est->slots, hash, false, &chunk), epoch = far_epoch(t);
    unsigned at = set ? find_entry(set, hash, key) : 0;
    bool found = at && dart_tag_is_fresh(set[at], epoch);
    if (found) {
        const entry *e = set_entry(set, at);
        *cached = (dart_cached_slot){.node = entry_node(e), .word = e->word, .has_key = e->length != KEY_NOT_STORED};
        cached->slot = dart_slot_addr(&cached->node, e->slot);
        cached->leaf_not_reused = dart_tag_age(set[at], epoch) <= 1 + DART_LEAF_EPOCHS;
        cached->leaf_with_slot =
            cached->leaf_not_reused || far_addr_node(cached->slot) == far_addr_node(dart_word_addr(e->word));
        cached->is_current = dart_tag_age(set[at], epoch) <= 0;
        if (!(set[at] & REFERENCED))
            set[at] |= REFERENCED;
    }
    if (set)
        far_spin_unlock(&chunk->lock);
    /* Two keys may have the same hash, so the node may be off this key's path. Then the descent detects the mismatch by
     * the key in the leaf. This works only if the symbol in the slot matches the key, which is checked here. */
    return found && cached->node.depth <= key.length &&
           dart_word_symbol(cached->word) == dart_symbol(key, cached->node.depth);
}


/* Chooses the entry of a set that will be overwritten: an entry that is too old to be used, otherwise the first entry
 * that was not used since the last search for a victim. Returns the number of the entry, or 0 if no entry may be
 * evicted. */
static unsigned choose_victim(uint64_t *set, uint64_t hash, uint64_t epoch, bool *full) {
    for (unsigned i = 1; i <= SET_ENTRIES; i++)
        if (set_entry(set, i)->node == 0 || !dart_tag_is_fresh(set[i], epoch))
            return i;
    *full = true;
    if (!dart_cache_admit(&set[0], hash))
        return 0;
    for (unsigned i = 1; i <= SET_ENTRIES; i++) {
        if (!(set[i] & REFERENCED))
            return i;
        set[i] &= ~REFERENCED;
    }
    return 1;
}


/* Stores an entry. Returns true if the set of the entry was full. */
static bool put_entry(dart_cache *cache, uint64_t hash, const entry *new, far_bytes key, uint64_t epoch) {
    dart_chunk *chunk;
    uint64_t *set = lock_set(cache, hash, true, &chunk);
    bool full = false;
    if (!set)
        return false;
    unsigned at = find_entry(set, hash, key);
    assert(at <= SET_ENTRIES && new->node != 0);
    bool same = at && set_entry(set, at)->word == new->word &&set_entry(set, at)->node == new->node;
    if (!same || dart_tag_age(set[at], epoch) > 0) { /* an older operation must not move the entry's tag backwards */
        uint64_t used = at ? set[at] & REFERENCED : 0;
        if (at == 0)
            at = choose_victim(set, hash, epoch, &full);
        if (at) {
            *set_entry(set, at) = *new;
            set[at] = (hash & HASH_MASK) | used | (epoch & DART_TAG_MASK);
        }
    }
    far_spin_unlock(&chunk->lock);
    return full;
}


static void move_entries(dart_cache *cache, uint64_t *words, uint64_t epoch) {
    for (unsigned w = 0; w < DART_CHUNK_WORDS; w++) {
        unsigned i = w % SET_WORDS;
        const entry *e = set_entry(words + w - i, i);
        if (i == 0 || i > SET_ENTRIES || e->node == 0 || !dart_tag_is_fresh(words[w], epoch))
            continue;
        far_bytes key = {e->key, e->length == KEY_NOT_STORED ? KEY_INLINE + 1 : e->length};
        put_entry(cache, words[w] & HASH_MASK, e, key, dart_tag_epoch(words[w], epoch));
    }
}


void dart_slot_cache_put(far_task *t, const far_index *index, far_bytes key, const dart_step *step, uint64_t word) {
    dart_est *est = dart_est_of(index);
    if (!est || est->slots.count == 0 || dart_word_len(word) == DART_SIZE_CODE_LONG)
        return;
    uint64_t hash = key_hash(est, key);
    entry new = {.word = word, .slot = (uint16_t)dart_slot_index(&step->node, step->slot), .length = KEY_NOT_STORED};
    new.node = dart_granule(step->node.addr) | (uint64_t)step->node.type << 44 | (uint64_t)step->node.depth << 48;
    if (key.length <= KEY_INLINE) {
        new.length = (uint16_t)key.length;
        far_bytes_copy(new.key, key);
    }
    if (put_entry(&est->slots, hash, &new, key, far_epoch(t)))
        dart_cache_count_full_set(&est->slots, far_epoch(t), move_entries);
}


void dart_slot_cache_drop(const far_index *index, far_bytes key) {
    dart_est *est = dart_est_of(index);
    if (!est || est->slots.count == 0)
        return;
    dart_chunk *chunk;
    uint64_t hash = key_hash(est, key), *set = lock_set(&est->slots, hash, false, &chunk);
    unsigned at = set ? find_entry(set, hash, key) : 0;
    if (at)
        set_entry(set, at)->node = set[at] = 0;
    if (set)
        far_spin_unlock(&chunk->lock);
}


void dart_slot_cache_age(dart_cache *cache, uint64_t before, uint64_t epoch) {
    bool all = epoch - before > DART_TAG_PERIOD / 2;
    for (unsigned c = 0; before / DART_TAG_PERIOD != epoch / DART_TAG_PERIOD && c < cache->count; c++) {
        dart_chunk *chunk = dart_cache_lock(cache, c, false);
        for (unsigned set = 0; chunk && set < SETS; set++)
            for (unsigned i = 1; i <= SET_ENTRIES; i++) {
                uint64_t *words = chunk->words + set * SET_WORDS;
                if (all || !dart_tag_is_fresh(words[i], epoch))
                    set_entry(words, i)->node = 0;
            }
        if (chunk)
            far_spin_unlock(&chunk->lock);
    }
}
