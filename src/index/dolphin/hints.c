/* Hints: in which slot of its leaf a key was seen last. A table of words, key hash 32 | leaf 26 | slot 6, each written
 * and read as a whole, none to be relied on: what a hint leads to says itself whether it is that. */
#include "base/budget.h"
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#include <stdlib.h>
#include <xxhash.h>

#define PLACES_MAX 16384u
#define SHARE      16u /* of the budget: not more than one in so many bytes */

struct dolphin_hints {
    far_budget_cache *budget; /* the cache's */
    uint32_t mask;
    _Atomic uint64_t word[];
};


int dolphin_hints_new(far_index *index, dolphin_hints **hints) {
    uint32_t places = PLACES_MAX;
    while (places > 1 && places * 8ull > far_budget_limit(far_index_budget(index)) / SHARE)
        places /= 2;
    dolphin_hints *h = calloc(1, sizeof(*h) + places * sizeof(h->word[0]));
    *hints = NULL;
    if (!h)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a cache");
    h->mask = places - 1;
    h->budget = dolphin_cache_budget(dolphin_state_of(index)->cache);
    if (!far_budget_take(h->budget, places * 8ull)) {
        free(h);
        return 0;
    }
    *hints = h;
    return 0;
}


void dolphin_hints_free(dolphin_hints *hints) {
    if (!hints)
        return;
    far_budget_give(hints->budget, (hints->mask + 1) * 8ull);
    free(hints);
}


static uint64_t hash_of(const dolphin_op *op) {
    return XXH3_64bits_withSeed(op->key.data, op->key.length, op->st->seed);
}


/* All of the word but the slot. */
static uint64_t what_for(uint64_t hash, uint64_t entry) {
    uint64_t leaf = (entry & ~DOLPHIN_LB_MASK) * 0x9e3779b97f4a7c15ull >> 38;
    return (hash & 0xffffffff00000000ull) | leaf << 6;
}


int dolphin_hint_slot(const dolphin_op *op, uint64_t entry) {
    uint64_t hash = hash_of(op);
    uint64_t word = atomic_load_explicit(&op->st->hints->word[hash & op->st->hints->mask], memory_order_relaxed);
    unsigned slot = (unsigned)word & 63;
    return word && (word & ~63ull) == what_for(hash, entry) && slot < op->st->slots ? (int)slot : -1;
}


void dolphin_hint_set(const dolphin_op *op, uint64_t entry, unsigned slot) {
    if (!op->st->hints)
        return;
    uint64_t hash = hash_of(op), word = what_for(hash, entry) | slot;
    _Atomic uint64_t *place = &op->st->hints->word[hash & op->st->hints->mask];
    if (atomic_load_explicit(place, memory_order_relaxed) != word)
        atomic_store_explicit(place, word, memory_order_relaxed);
}
