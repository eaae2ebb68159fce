/* The slot cache: where a handle last saw the leaf of a key that is asked for often, and the word that led to it. A get
 * reads that slot and that leaf in one batch, an update puts its leaf there by one CAS: one round trip each.
 *
 * What is kept proves nothing by itself. An entry carries the epoch T in which the word was last seen unfrozen in its
 * slot, and an operation pinned at E uses it as follows (the tag rule of express.c, whose proof covers both):
 *
 *   the slot   may be read while E <= T+1+x, because nodes are retired for x = DART_EXTRA_EPOCHS longer. A word there
 *              without F proves that the node is linked, and as its prefix never changes, that it is on the key's path
 *   the leaf   is not reused while E <= T+1+y, y = DART_LEAF_EPOCHS. Later the READ of the leaf must come after that of
 *              the slot, which one memory node keeps in order: if the word still stands there, so does the leaf
 *   the CAS    from the word to another leaf needs E <= T+1+y and the whole key: then the word means this key's leaf, if
 *              it stands there at all. Later it might be another key's, of the same size at the same address
 *
 * A set is eight lines of the processor's cache: one with those that asked to come in and seven marks (hash, whether it was
 * used lately, tag), then the seven entries. */
#include "index/dart/slots.h"
#include "index/dart/est.h"
#include "pool/epoch.h"

#include <assert.h>
#include <string.h>

#define SET_WORDS   64u
#define SET_ENTRIES 7u
#define SETS        (DART_CHUNK_WORDS / SET_WORDS)
#define REFERENCED  (1ull << DART_TAG_BITS)
#define HASH_MASK   (~(DART_TAG_MASK | REFERENCED))
#define KEY_INSIDE  40u     /* bytes of key that an entry holds; longer ones are told by their hash */
#define KEY_OUTSIDE 0xffffu /* in place of its length */

_Static_assert(DART_CHUNK_SHIFT > DART_TAG_BITS, "the chunk comes from bits that a mark keeps");

typedef struct entry {
    uint64_t node; /* g of it 44 | type 4 << 44 | depth 12 << 48; 0: none */
    uint64_t word; /* of the slot */
    uint16_t slot, length, unused[2];
    uint8_t key[KEY_INSIDE];
} entry;

_Static_assert(sizeof(entry) == 64, "an entry is a line");


static uint64_t hash_of(const dart_est *est, far_bytes key) {
    return est->one_fingerprint ? 0 : dart_est_hash(est, key.data, (unsigned)key.length);
}


static uint64_t *lock_set(dart_cache *cache, uint64_t hash, bool make, dart_chunk **chunk) {
    *chunk = dart_cache_lock_for(cache, hash, make);
    return *chunk ? (*chunk)->words + (hash >> (DART_CHUNK_SHIFT + 32)) % SETS * SET_WORDS : NULL;
}


static entry *entry_of(uint64_t *set, unsigned i) { /* 1..7: of mark set[i] */
    return (entry *)(set + 8ull * i);
}


static bool is_of(const entry *e, far_bytes key) {
    if (key.length > KEY_INSIDE)
        return e->length == KEY_OUTSIDE;
    return far_bytes_equal((far_bytes){e->key, e->length}, key);
}


/* 0: it is not there. */
static unsigned find_entry(uint64_t *set, uint64_t hash, far_bytes key) {
    for (unsigned i = 1; i <= SET_ENTRIES; i++)
        if (((set[i] ^ hash) & HASH_MASK) == 0 && entry_of(set, i)->node && is_of(entry_of(set, i), key))
            return i;
    return 0;
}


static dart_node node_of(const entry *e) {
    return (dart_node){dart_word_addr(e->node), (dart_node_type)(e->node >> 44 & 15), (unsigned)(e->node >> 48)};
}


bool dart_slots_get(far_task *t, const far_index *index, far_bytes key, dart_kept *kept) {
    dart_est *est = dart_est_of(index);
    if (!est || est->slots.count == 0)
        return false;
    dart_chunk *chunk;
    uint64_t hash = hash_of(est, key), *set = lock_set(&est->slots, hash, false, &chunk), epoch = far_epoch(t);
    unsigned at = set ? find_entry(set, hash, key) : 0;
    bool found = at && dart_tag_is_fresh(set[at], epoch);
    if (found) {
        const entry *e = entry_of(set, at);
        *kept = (dart_kept){.node = node_of(e), .word = e->word, .exact = e->length != KEY_OUTSIDE};
        kept->slot = dart_slot_addr(&kept->node, e->slot);
        kept->young = dart_tag_age(set[at], epoch) <= 1 + DART_LEAF_EPOCHS;
        kept->leaf_with_slot = kept->young || far_addr_node(kept->slot) == far_addr_node(dart_word_addr(e->word));
        kept->current = dart_tag_age(set[at], epoch) <= 0;
        if (!(set[at] & REFERENCED))
            set[at] |= REFERENCED;
    }
    if (set)
        far_spin_unlock(&chunk->lock);
    /* By a clash of hashes it may be a node beside the key's path: then the leaf tells, but for the symbol. */
    return found && kept->node.depth <= key.length &&
           dart_word_symbol(kept->word) == dart_symbol(key, kept->node.depth);
}


/* Those too old to be used go first; then the first that was not used since it was passed over. 0: all stay. */
static unsigned choose_entry(uint64_t *set, uint64_t hash, uint64_t epoch, bool *full) {
    for (unsigned i = 1; i <= SET_ENTRIES; i++)
        if (entry_of(set, i)->node == 0 || !dart_tag_is_fresh(set[i], epoch))
            return i;
    *full = true;
    if (!dart_cache_lets_in(&set[0], hash))
        return 0;
    for (unsigned i = 1; i <= SET_ENTRIES; i++) {
        if (!(set[i] & REFERENCED))
            return i;
        set[i] &= ~REFERENCED;
    }
    return 1;
}


/* True: its set was full. */
static bool put_entry(dart_cache *cache, uint64_t hash, const entry *new, far_bytes key, uint64_t epoch) {
    dart_chunk *chunk;
    uint64_t *set = lock_set(cache, hash, true, &chunk);
    bool full = false;
    if (!set)
        return false;
    unsigned at = find_entry(set, hash, key);
    assert(at <= SET_ENTRIES && new->node != 0);
    bool same = at && entry_of(set, at)->word == new->word &&entry_of(set, at)->node == new->node;
    if (!same || dart_tag_age(set[at], epoch) > 0) { /* the proof of an older operation does not make it older */
        uint64_t used = at ? set[at] & REFERENCED : 0;
        if (at == 0)
            at = choose_entry(set, hash, epoch, &full);
        if (at) {
            *entry_of(set, at) = *new;
            set[at] = (hash & HASH_MASK) | used | (epoch & DART_TAG_MASK);
        }
    }
    far_spin_unlock(&chunk->lock);
    return full;
}


static void move_entries(dart_cache *cache, uint64_t *words, uint64_t epoch) {
    for (unsigned w = 0; w < DART_CHUNK_WORDS; w++) {
        unsigned i = w % SET_WORDS;
        const entry *e = entry_of(words + w - i, i);
        if (i == 0 || i > SET_ENTRIES || e->node == 0 || !dart_tag_is_fresh(words[w], epoch))
            continue;
        far_bytes key = {e->key, e->length == KEY_OUTSIDE ? KEY_INSIDE + 1 : e->length};
        put_entry(cache, words[w] & HASH_MASK, e, key, dart_tag_epoch(words[w], epoch));
    }
}


void dart_slots_put(far_task *t, const far_index *index, far_bytes key, const dart_step *step, uint64_t word) {
    dart_est *est = dart_est_of(index);
    if (!est || est->slots.count == 0 || dart_word_len(word) == DART_SIZE_CODE_LONG)
        return;
    uint64_t hash = hash_of(est, key);
    entry new = {.word = word, .slot = (uint16_t)dart_slot_index(&step->node, step->slot), .length = KEY_OUTSIDE};
    new.node = dart_granule(step->node.addr) | (uint64_t)step->node.type << 44 | (uint64_t)step->node.depth << 48;
    if (key.length <= KEY_INSIDE) {
        new.length = (uint16_t)key.length;
        far_bytes_copy(new.key, key);
    }
    if (put_entry(&est->slots, hash, &new, key, far_epoch(t)))
        dart_cache_was_full(&est->slots, far_epoch(t), move_entries);
}


void dart_slots_drop(const far_index *index, far_bytes key) {
    dart_est *est = dart_est_of(index);
    if (!est || est->slots.count == 0)
        return;
    dart_chunk *chunk;
    uint64_t hash = hash_of(est, key), *set = lock_set(&est->slots, hash, false, &chunk);
    unsigned at = set ? find_entry(set, hash, key) : 0;
    if (at)
        entry_of(set, at)->node = set[at] = 0;
    if (set)
        far_spin_unlock(&chunk->lock);
}


void dart_slots_age(dart_cache *cache, uint64_t before, uint64_t epoch) {
    bool all = epoch - before > DART_TAG_PERIOD / 2;
    for (unsigned c = 0; before / DART_TAG_PERIOD != epoch / DART_TAG_PERIOD && c < cache->count; c++) {
        dart_chunk *chunk = dart_cache_lock(cache, c, false);
        for (unsigned set = 0; chunk && set < SETS; set++)
            for (unsigned i = 1; i <= SET_ENTRIES; i++) {
                uint64_t *words = chunk->words + set * SET_WORDS;
                if (all || !dart_tag_is_fresh(words[i], epoch))
                    entry_of(words, i)->node = 0;
            }
        if (chunk)
            far_spin_unlock(&chunk->lock);
    }
}
