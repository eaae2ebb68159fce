/* The hotspot buffer: how far from its home, in which leaf, a key was found, by its hash. Whoever is led to a slot
 * looks whether the key is in it, so an entry may be wrong; one that is right saves the way down and most of the bytes.
 *
 * Sets of 8 entries of 16 bytes: {leaf and distance | fingerprint 16, epoch 16, uses 16}. Least frequently used with
 * ageing: a newcomer takes the place of the least used one if that is hardly used at all, else it makes that one older
 * now and then; when a counter is full all of its set are halved. */
#include "base/error.h"
#include "index/chime/chime.h"

#include <stdlib.h>

#define WAYS       8
#define USES_MAX   0xffffu
#define AGE_ONE_IN 8 /* newcomers: most of them are cold, and do not come again */

typedef struct hot_entry {
    _Atomic uint64_t where, what;
} hot_entry;

struct chime_hot {
    chime_cache *cache;
    uint64_t sets;
    size_t bytes;
    hot_entry entry[];
};


static uint64_t what_make(unsigned print, uint64_t epoch, unsigned uses) {
    return (uint64_t)print | (epoch & 0xffff) << 16 | (uint64_t)uses << 32;
}


static unsigned what_print(uint64_t what) {
    return (unsigned)what & 0xffff;
}


static unsigned what_uses(uint64_t what) {
    return (unsigned)(what >> 32) & USES_MAX;
}


static uint64_t with_uses(uint64_t what, unsigned uses) {
    return (what & 0xffffffff) | (uint64_t)uses << 32;
}


/* Tags repeat after 2^15 epochs: an entry is trusted for half of that. */
static bool is_aged(uint64_t what, uint64_t epoch) {
    return ((epoch - (what >> 16)) & 0xffff) >= 1u << 14;
}


static hot_entry *set_of(chime_hot *h, uint64_t hash) {
    return &h->entry[(uint64_t)((unsigned __int128)(hash * 0x9e3779b97f4a7c15ull) * h->sets >> 64) * WAYS];
}


static unsigned print_of(uint64_t hash) {
    return (unsigned)(hash >> 10) & 0xffff;
}


chime_ptr chime_hot_find(chime_hot *h, uint64_t hash, uint64_t epoch) {
    hot_entry *set = set_of(h, hash);
    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t what = atomic_load_explicit(&set[i].what, memory_order_relaxed);
        chime_ptr where = atomic_load_explicit(&set[i].where, memory_order_relaxed);
        if (where && what_print(what) == print_of(hash) && !is_aged(what, epoch))
            return where;
    }
    return 0;
}


static void count_use(hot_entry *set, hot_entry *e) {
    uint64_t what = atomic_load_explicit(&e->what, memory_order_relaxed);
    unsigned uses = what_uses(what);
    if (uses + 1 < USES_MAX) {
        atomic_store_explicit(&e->what, with_uses(what, uses + 1), memory_order_relaxed);
        return;
    }
    for (unsigned i = 0; i < WAYS; i++) {
        what = atomic_load_explicit(&set[i].what, memory_order_relaxed);
        atomic_store_explicit(&set[i].what, with_uses(what, what_uses(what) / 2), memory_order_relaxed);
    }
}


void chime_hot_put(chime_hot *h, far_task *t, uint64_t hash, chime_ptr leaf, unsigned distance, uint64_t epoch) {
    hot_entry *set = set_of(h, hash), *least = NULL;
    unsigned fewest = USES_MAX + 1;
    chime_ptr where = chime_ptr_plain(leaf) | distance;
    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t what = atomic_load_explicit(&set[i].what, memory_order_relaxed);
        chime_ptr known = atomic_load_explicit(&set[i].where, memory_order_relaxed);
        if (known && what_print(what) == print_of(hash)) {
            if (known != where || is_aged(what, epoch)) {
                atomic_store_explicit(&set[i].where, where, memory_order_relaxed);
                what = what_make(print_of(hash), epoch, what_uses(what));
                atomic_store_explicit(&set[i].what, what, memory_order_relaxed);
            }
            count_use(set, &set[i]);
            return;
        }
        unsigned uses = known ? what_uses(what) : 0;
        if (uses < fewest) {
            fewest = uses;
            least = &set[i];
        }
    }
    if (fewest > 1) {
        if (far_task_random(t) % AGE_ONE_IN)
            return;
        uint64_t what = atomic_load_explicit(&least->what, memory_order_relaxed);
        atomic_store_explicit(&least->what, with_uses(what, fewest - 1), memory_order_relaxed);
        return;
    }
    atomic_store_explicit(&least->where, where, memory_order_relaxed);
    atomic_store_explicit(&least->what, what_make(print_of(hash), epoch, 1), memory_order_relaxed);
}


void chime_hot_drop(chime_hot *h, uint64_t hash) {
    hot_entry *set = set_of(h, hash);
    for (unsigned i = 0; i < WAYS; i++)
        if (what_print(atomic_load_explicit(&set[i].what, memory_order_relaxed)) == print_of(hash))
            atomic_store_explicit(&set[i].where, 0, memory_order_relaxed);
}


bool chime_cache_take(chime_cache *c, size_t bytes);
void chime_cache_give(chime_cache *c, size_t bytes);


int chime_hot_new(far_index *index, chime_cache *cache, uint64_t bytes, chime_hot **made) {
    uint64_t sets = bytes / (WAYS * sizeof(hot_entry));
    size_t all = sizeof(chime_hot) + sets * WAYS * sizeof(hot_entry);
    (void)index;
    *made = NULL;
    if (!sets || !cache || !chime_cache_take(cache, all))
        return 0;
    chime_hot *h = calloc(1, all);
    if (!h) {
        chime_cache_give(cache, all);
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
    chime_cache_give(h->cache, h->bytes);
    free(h);
}


size_t chime_hot_bytes(const chime_hot *h) {
    return h ? h->bytes : 0;
}
