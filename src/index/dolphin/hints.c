/* Hints: in which slot of its leaf a key was seen last. A table of words, key hash 32 | leaf 25 | CALM 1 | slot 6, each
 * written and read as a whole, none to be relied on: what a hint leads to says itself whether it is that. */
#include "base/budget.h"
#include "base/error.h"
#include "base/hash.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch.h"

#include <stdlib.h>


#define PLACES_MAX 16384u
#define SLOT_MASK  63ull
#define CALM       64ull /* the leaf was seen to be: so it is until its life ends */
#define SHARE      16u   /* of the budget: not more than one in so many bytes */

typedef struct known { /* of a value word; read and written as a whole: `turn` is odd meanwhile, and another one then */
    _Atomic uint64_t turn, entry, vword, epoch_and_slot, tail;
} known;

struct dolphin_hints {
    far_budget_cache *budget; /* the cache's */
    uint32_t mask;
    size_t bytes;
    known *known; /* hot_updates=on: one per place, behind the words; NULL */
    _Atomic uint64_t word[];
};


int dolphin_hints_new(far_index *index, dolphin_hints **hints) {
    uint32_t places = PLACES_MAX;
    bool hot = dolphin_state_of(index)->hot;
    size_t each = sizeof((*hints)->word[0]) + (hot ? sizeof(known) : 0);
    while (places > 1 && places * each > far_budget_limit(far_index_budget(index)) / SHARE)
        places /= 2;
    dolphin_hints *h = calloc(1, sizeof(*h) + places * each);
    *hints = NULL;
    if (!h)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a cache");
    h->mask = places - 1;
    h->bytes = places * each;
    h->known = hot ? (known *)(h->word + places) : NULL;
    h->budget = dolphin_cache_budget(dolphin_state_of(index)->cache);
    if (!far_budget_take(h->budget, h->bytes)) {
        free(h);
        return 0;
    }
    *hints = h;
    return 0;
}


void dolphin_hints_free(dolphin_hints *hints) {
    if (!hints)
        return;
    far_budget_give(hints->budget, hints->bytes);
    free(hints);
}


static uint64_t hash_of(const dolphin_op *op) {
    return far_hash(op->key, op->st->seed);
}


/* The end of the key and its length. With the leaf it names the key, if what the leaf holds of it stands in its key word:
 * for hot updates, which write before they know whose slot it is, a hash is not enough. */
static uint64_t tail_of(const dolphin_op *op) {
    uint64_t tail = (uint64_t)op->key.length << 56;
    for (size_t i = 0; i < DOLPHIN_INLINE_MAX && i < op->key.length; i++)
        tail |= (uint64_t)((const uint8_t *)op->key.data)[op->key.length - 1 - i] << 8 * i;
    return tail;
}


/* All of the word but CALM and the slot. */
static uint64_t what_for(uint64_t hash, uint64_t entry) {
    uint64_t leaf = (entry & ~DOLPHIN_LB_MASK) * 0x9e3779b97f4a7c15ull >> 39;
    return (hash & 0xffffffff00000000ull) | leaf << 7;
}


static _Atomic uint64_t *place_of(const dolphin_op *op, uint64_t hash) {
    return &op->st->hints->word[hash & op->st->hints->mask];
}


/* What is known of the key in that leaf; 0: nothing. */
static uint64_t known_of(const dolphin_op *op, uint64_t entry) {
    uint64_t hash = hash_of(op), word = atomic_load_explicit(place_of(op, hash), memory_order_relaxed);
    return (word & ~(SLOT_MASK | CALM)) == what_for(hash, entry) ? word : 0;
}


int dolphin_hint_slot(const dolphin_op *op, uint64_t entry) {
    uint64_t word = known_of(op, entry);
    unsigned slot = (unsigned)(word & SLOT_MASK);
    return word && slot < op->st->slots ? (int)slot : -1;
}


bool dolphin_hint_is_calm(const dolphin_op *op, uint64_t entry) {
    return known_of(op, entry) & CALM;
}


void dolphin_hint_set(const dolphin_op *op, uint64_t entry, unsigned slot) {
    if (!op->st->hints)
        return;
    uint64_t hash = hash_of(op), word = what_for(hash, entry) | slot;
    if (atomic_load_explicit(place_of(op, hash), memory_order_relaxed) != word)
        atomic_store_explicit(place_of(op, hash), word, memory_order_relaxed);
}


void dolphin_hint_set_calm(const dolphin_op *op, uint64_t entry, unsigned slot) {
    uint64_t hash = hash_of(op);
    atomic_store_explicit(place_of(op, hash), what_for(hash, entry) | CALM | slot, memory_order_relaxed);
}


static uint64_t get(_Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}


static void set(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
}


/* What was linked under a pin at e is retired under one at e - 1 or later, and used anew when all pins are 3 epochs
 * after that: at e + 2. So who has a pin at e + 1 or before, and holds it, finds it as it was or gone. */
uint64_t dolphin_hint_word(const dolphin_op *op, uint64_t entry, unsigned slot) {
    known *k = &op->st->hints->known[hash_of(op) & op->st->hints->mask];
    uint64_t turn = get(&k->turn), of = get(&k->entry), vword = get(&k->vword), seen = get(&k->epoch_and_slot),
             tail = get(&k->tail);
    if ((turn & 1) || get(&k->turn) != turn || !dolphin_entry_same(of, entry) || seen % DOLPHIN_SLOTS_MAX != slot ||
        tail != tail_of(op))
        return 0;
    return far_epoch(op->t) <= seen / DOLPHIN_SLOTS_MAX + 1 ? vword : 0;
}


void dolphin_hint_set_word(const dolphin_op *op, uint64_t entry, unsigned slot, uint64_t vword) {
    if (!op->st->hints || !op->st->hints->known || vword == 0 || (vword & DOLPHIN_VALUE_FROZEN))
        return;
    known *k = &op->st->hints->known[hash_of(op) & op->st->hints->mask];
    uint64_t turn = get(&k->turn);
    if ((turn & 1) || !atomic_compare_exchange_strong(&k->turn, &turn, turn + 1))
        return;
    set(&k->entry, entry);
    set(&k->vword, vword);
    set(&k->epoch_and_slot, far_epoch(op->t) * DOLPHIN_SLOTS_MAX + slot);
    set(&k->tail, tail_of(op));
    set(&k->turn, turn + 2);
}
