/* CHIME: the hotspot buffer. It maps the hash of a frequently read key to the leaf and the slot in which the key was
 * found last. A get READs that slot directly, which saves the descent and most of the bytes. An entry may be wrong,
 * because the get checks whether the slot still contains the key.
 *
 * The buffer consists of sets of 8 entries of 16 bytes: {leaf pointer with the distance of the key from its home slot |
 * fingerprint 16, epoch / 1024 32 bits, use count 16}. Replacement is least frequently used with ageing. A new key replaces the
 * least used entry of its set if that entry was used at most once. Otherwise one in AGE_ONE_IN new keys decrements the
 * use count of that entry. When a use count reaches its maximum, all counts of the set are halved. */
#include "base/error.h"
#include "index/chime/chime.h"

#include <stdlib.h>

#define WAYS     8
#define USES_MAX 0xffffu
/* One in this number of new keys decrements a use count. It is large because most new keys are cold and are not read
 * again. */
#define AGE_ONE_IN 8

/* Incarnation tags repeat after 2^15 epochs; an entry is used for half of that time. An entry stores its epoch in spans
 * of 1024 epochs. So its 32 bits last for 2^42 epochs, and an old entry never looks recent. */
#define EPOCHS_PER_SPAN 1024u
#define SPANS_OF_USE    ((1u << 14) / EPOCHS_PER_SPAN)
#define USES_SHIFT      48

typedef struct hot_entry {
    _Atomic uint64_t where, what;
} hot_entry;

struct chime_hot {
    chime_cache *cache;
    uint64_t sets;
    size_t bytes;
    hot_entry entry[];
};


static uint64_t tag_word_make(unsigned print, uint64_t epoch, unsigned uses) {
    return (uint64_t)print | (uint64_t)(uint32_t)(epoch / EPOCHS_PER_SPAN) << 16 | (uint64_t)uses << USES_SHIFT;
}


static unsigned tag_word_fingerprint(uint64_t what) {
    return (unsigned)what & 0xffff;
}


static unsigned tag_word_uses(uint64_t what) {
    return (unsigned)(what >> USES_SHIFT);
}


static uint64_t tag_word_with_uses(uint64_t what, unsigned uses) {
    return (what & ((1ull << USES_SHIFT) - 1)) | (uint64_t)uses << USES_SHIFT;
}


/* Returns whether the entry must not be used any more. An entry is used for less than 2^14 epochs, and for at least
 * 2^14 - 1023. */
static bool entry_is_too_old(uint64_t what, uint64_t epoch) {
    return (uint32_t)(epoch / EPOCHS_PER_SPAN) - (uint32_t)(what >> 16) >= SPANS_OF_USE;
}


static hot_entry *find_set(chime_hot *h, uint64_t hash) {
    return &h->entry[(uint64_t)((unsigned __int128)(hash * 0x9e3779b97f4a7c15ull) * h->sets >> 64) * WAYS];
}


static unsigned hash_fingerprint(uint64_t hash) {
    return (unsigned)(hash >> 10) & 0xffff;
}


chime_ptr chime_hot_find(chime_hot *h, uint64_t hash, uint64_t epoch) {
    hot_entry *set = find_set(h, hash);
    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t what = atomic_load_explicit(&set[i].what, memory_order_relaxed);
        chime_ptr where = atomic_load_explicit(&set[i].where, memory_order_relaxed);
        if (where && tag_word_fingerprint(what) == hash_fingerprint(hash) && !entry_is_too_old(what, epoch))
            return where;
    }
    return 0;
}


static void count_use(hot_entry *set, hot_entry *e) {
    uint64_t what = atomic_load_explicit(&e->what, memory_order_relaxed);
    unsigned uses = tag_word_uses(what);
    if (uses + 1 < USES_MAX) {
        atomic_store_explicit(&e->what, tag_word_with_uses(what, uses + 1), memory_order_relaxed);
        return;
    }
    for (unsigned i = 0; i < WAYS; i++) {
        what = atomic_load_explicit(&set[i].what, memory_order_relaxed);
        atomic_store_explicit(&set[i].what, tag_word_with_uses(what, tag_word_uses(what) / 2), memory_order_relaxed);
    }
}


void chime_hot_put(chime_hot *h, far_task *t, uint64_t hash, chime_ptr leaf, unsigned distance, uint64_t epoch) {
    hot_entry *set = find_set(h, hash), *least = NULL;
    unsigned fewest = USES_MAX + 1;
    chime_ptr where = chime_ptr_without_low(leaf) | distance;
    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t what = atomic_load_explicit(&set[i].what, memory_order_relaxed);
        chime_ptr known = atomic_load_explicit(&set[i].where, memory_order_relaxed);
        if (known && tag_word_fingerprint(what) == hash_fingerprint(hash)) {
            if (known != where || entry_is_too_old(what, epoch)) {
                atomic_store_explicit(&set[i].where, where, memory_order_relaxed);
                what = tag_word_make(hash_fingerprint(hash), epoch, tag_word_uses(what));
                atomic_store_explicit(&set[i].what, what, memory_order_relaxed);
            }
            count_use(set, &set[i]);
            return;
        }
        unsigned uses = known ? tag_word_uses(what) : 0;
        if (uses < fewest) {
            fewest = uses;
            least = &set[i];
        }
    }
    if (fewest > 1) {
        if (far_task_random(t) % AGE_ONE_IN)
            return;
        uint64_t what = atomic_load_explicit(&least->what, memory_order_relaxed);
        atomic_store_explicit(&least->what, tag_word_with_uses(what, fewest - 1), memory_order_relaxed);
        return;
    }
    atomic_store_explicit(&least->where, where, memory_order_relaxed);
    atomic_store_explicit(&least->what, tag_word_make(hash_fingerprint(hash), epoch, 1), memory_order_relaxed);
}


void chime_hot_drop(chime_hot *h, uint64_t hash) {
    hot_entry *set = find_set(h, hash);
    for (unsigned i = 0; i < WAYS; i++)
        if (tag_word_fingerprint(atomic_load_explicit(&set[i].what, memory_order_relaxed)) == hash_fingerprint(hash))
            atomic_store_explicit(&set[i].where, 0, memory_order_relaxed);
}


int chime_hot_new(far_index *index, chime_cache *cache, uint64_t bytes, chime_hot **made) {
    uint64_t sets = bytes / (WAYS * sizeof(hot_entry));
    size_t all = sizeof(chime_hot) + sets * WAYS * sizeof(hot_entry);
    (void)index;
    *made = NULL;
    if (!sets || !cache || !chime_cache_reserve_bytes(cache, all))
        return 0;
    chime_hot *h = calloc(1, all);
    if (!h) {
        chime_cache_release_bytes(cache, all);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a hotspot buffer");
    }
    h->cache = cache;
    h->sets = sets;
    h->bytes = all;
    *made = h;
    return 0;
}


void chime_hot_free(chime_hot *h) {
    if (!h)
        return;
    chime_cache_release_bytes(h->cache, h->bytes);
    free(h);
}


size_t chime_hot_bytes(const chime_hot *h) {
    return h ? h->bytes : 0;
}
