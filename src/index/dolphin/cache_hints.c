/* Slot hints: a table that remembers in which slot of its leaf a key was found. With a hint, a get READs 24 bytes
 * instead of the whole leaf. An entry of the table is one word, key hash 32 | leaf 25 | UNCOUNTED 1 | slot 6, which is
 * read and written atomically. A hint may be wrong or outdated; the operation that uses it verifies the words that it
 * READs from the leaf. */
#include "base/budget.h"
#include "base/error.h"
#include "base/hash.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch/epoch.h"

#include <stdlib.h>


#define HINTS_MAX 16384u
#define SLOT_MASK 63ull
/* set if an operation has seen the leaf in uncounted mode (hot updates do not count as writers); a leaf stays in that
 * mode until its incarnation ends */
#define UNCOUNTED    64ull
#define BUDGET_SHARE 16u /* the table uses at most 1 / BUDGET_SHARE of the cache budget */

typedef struct
    /* A remembered value word. The sequence number `turn` is odd while a thread writes the fields, and a reader accepts
     * them only if `turn` was even and did not change. */
    value_hint {
    _Atomic uint64_t turn, entry, vword, epoch_and_slot, tail;
} value_hint;

struct dolphin_slot_hints {
    far_budget_cache *budget; /* budget of the node cache, which also pays for this table */
    uint32_t mask;
    size_t bytes;
    /* With hot_updates=on, an array with one value hint per slot hint, stored after the words; otherwise NULL. */
    value_hint *values;
    _Atomic uint64_t word[];
};


int dolphin_slot_hints_new(far_index *index, dolphin_slot_hints **hints) {
    uint32_t count = HINTS_MAX;
    bool hot = dolphin_state_of(index)->hot_updates;
    size_t each = sizeof((*hints)->word[0]) + (hot ? sizeof(value_hint) : 0);
    while (count > 1 && count * each > far_budget_limit(far_index_budget(index)) / BUDGET_SHARE)
        count /= 2;
    dolphin_slot_hints *h = calloc(1, sizeof(*h) + count * each);
    *hints = NULL;
    if (!h)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a cache");
    h->mask = count - 1;
    h->bytes = count * each;
    h->values = hot ? (value_hint *)(h->word + count) : NULL;
    h->budget = dolphin_cache_budget(dolphin_state_of(index)->cache);
    if (!far_budget_take(h->budget, h->bytes)) {
        free(h);
        return 0;
    }
    *hints = h;
    return 0;
}


void dolphin_slot_hints_free(dolphin_slot_hints *hints) {
    if (!hints)
        return;
    far_budget_give(hints->budget, hints->bytes);
    free(hints);
}


static uint64_t hash_of_key(const dolphin_op *op) {
    return far_hash(op->key, op->st->hash_seed);
}


/* Returns the last bytes of the key and its length. A hot update writes before the client has seen which key the slot
 * contains, so a hash is not enough to identify the key. The leaf determines the prefix of the key, and these bytes
 * determine the rest. Together they identify the key exactly if its suffix is inline. */
static uint64_t key_tail(const dolphin_op *op) {
    uint64_t tail = (uint64_t)op->key.length << 56;
    for (size_t i = 0; i < DOLPHIN_INLINE_MAX && i < op->key.length; i++)
        tail |= (uint64_t)((const uint8_t *)op->key.data)[op->key.length - 1 - i] << 8 * i;
    return tail;
}


/* Returns all bits of the hint word except UNCOUNTED and the slot. */
static uint64_t hint_identity(uint64_t hash, uint64_t entry) {
    uint64_t leaf = (entry & ~DOLPHIN_LB_MASK) * 0x9e3779b97f4a7c15ull >> 39;
    return (hash & 0xffffffff00000000ull) | leaf << 7;
}


static _Atomic uint64_t *hint_word_addr(const dolphin_op *op, uint64_t hash) {
    return &op->st->slot_hints->word[hash & op->st->slot_hints->mask];
}


/* Returns the hint word for op->key in that leaf, or 0. */
static uint64_t find_hint_word(const dolphin_op *op, uint64_t entry) {
    uint64_t hash = hash_of_key(op), word = atomic_load_explicit(hint_word_addr(op, hash), memory_order_relaxed);
    return (word & ~(SLOT_MASK | UNCOUNTED)) == hint_identity(hash, entry) ? word : 0;
}


int dolphin_slot_hint_get(const dolphin_op *op, uint64_t entry) {
    uint64_t word = find_hint_word(op, entry);
    unsigned slot = (unsigned)(word & SLOT_MASK);
    return word && slot < op->st->slots ? (int)slot : -1;
}


bool dolphin_slot_hint_is_uncounted(const dolphin_op *op, uint64_t entry) {
    return find_hint_word(op, entry) & UNCOUNTED;
}


void dolphin_slot_hint_set(const dolphin_op *op, uint64_t entry, unsigned slot) {
    if (!op->st->slot_hints)
        return;
    uint64_t hash = hash_of_key(op), word = hint_identity(hash, entry) | slot;
    if (atomic_load_explicit(hint_word_addr(op, hash), memory_order_relaxed) != word)
        atomic_store_explicit(hint_word_addr(op, hash), word, memory_order_relaxed);
}


void dolphin_slot_hint_set_uncounted(const dolphin_op *op, uint64_t entry, unsigned slot) {
    uint64_t hash = hash_of_key(op);
    atomic_store_explicit(hint_word_addr(op, hash), hint_identity(hash, entry) | UNCOUNTED | slot,
                          memory_order_relaxed);
}


static uint64_t load_word(_Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}


static void store_word(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
}


/* A value word that was linked under a pin at epoch e is retired under a pin at e - 1 or later. Its value block is
 * reused when all pins are 3 epochs newer than that, at e + 2 at the earliest. So an operation that holds a pin at
 * e + 1 or earlier can rely on the remembered word: either the slot still has this word and its value block was not
 * reused, or the slot has another word. */
uint64_t dolphin_slot_hint_get_value(const dolphin_op *op, uint64_t entry, unsigned slot) {
    value_hint *k = &op->st->slot_hints->values[hash_of_key(op) & op->st->slot_hints->mask];
    uint64_t turn = load_word(&k->turn), of = load_word(&k->entry), vword = load_word(&k->vword),
             seen = load_word(&k->epoch_and_slot), tail = load_word(&k->tail);
    if ((turn & 1) || load_word(&k->turn) != turn || !dolphin_entries_match(of, entry) ||
        seen % DOLPHIN_SLOTS_MAX != slot || tail != key_tail(op))
        return 0;
    return far_epoch(op->t) <= seen / DOLPHIN_SLOTS_MAX + 1 ? vword : 0;
}


void dolphin_slot_hint_set_value(const dolphin_op *op, uint64_t entry, unsigned slot, uint64_t vword) {
    if (!op->st->slot_hints || !op->st->slot_hints->values || vword == 0 || (vword & DOLPHIN_VALUE_FROZEN))
        return;
    value_hint *k = &op->st->slot_hints->values[hash_of_key(op) & op->st->slot_hints->mask];
    uint64_t turn = load_word(&k->turn);
    if ((turn & 1) || !atomic_compare_exchange_strong(&k->turn, &turn, turn + 1))
        return;
    store_word(&k->entry, entry);
    store_word(&k->vword, vword);
    store_word(&k->epoch_and_slot, far_epoch(op->t) * DOLPHIN_SLOTS_MAX + slot);
    store_word(&k->tail, key_tail(op));
    store_word(&k->turn, turn + 2);
}
