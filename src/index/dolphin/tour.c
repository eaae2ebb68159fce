/* The pairs of a leaf with their whole keys; shared by scans and checks. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#include <stdlib.h>


bool dolphin_beyond(const uint8_t *prefix, unsigned depth, unsigned hi, uint8_t *key, size_t *length) {
    if (hi >= DOLPHIN_LAST)
        return dolphin_after_prefix(prefix, depth, key, length);
    memcpy(key, prefix, depth);
    key[depth] = (uint8_t)hi; /* position hi + 1 */
    *length = depth + 1;
    return true;
}


static int by_key_then_slot(const void *a, const void *b) {
    const dolphin_pair *x = a, *y = b;
    int order = far_bytes_compare(x->key, y->key);
    return order ? order : (x->slot < y->slot) - (x->slot > y->slot);
}


/* Of two lives of a key in one READ the higher slot is the later one. */
static unsigned drop_older(dolphin_pair *pairs, unsigned count) {
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++)
        if (kept == 0 || far_bytes_compare(pairs[kept - 1].key, pairs[i].key) != 0)
            pairs[kept++] = pairs[i];
    return kept;
}


static int whole_key(dolphin_op *op, uint64_t kword, const uint8_t *prefix, unsigned depth, far_bytes *key) {
    unsigned length = depth + dolphin_kword_length(kword);
    uint8_t *bytes = far_scratch(op->t, depth + DOLPHIN_INLINE_MAX);
    if (!bytes)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a key");
    memcpy(bytes, prefix, depth);
    dolphin_inline_bytes(kword, bytes + depth);
    *key = (far_bytes){bytes, length};
    return 0;
}


/* A client that died had put the upper part of the leaf elsewhere: those slots are not the leaf's any more, and their
 * blocks may be freed, and used again. What stays cannot be: nobody deletes in a frozen leaf. */
bool dolphin_is_half_replaced(const dolphin_leaf *leaf, unsigned hi) {
    return (leaf->image[0] & DOLPHIN_FROZEN) && hi < dolphin_ident_hi(dolphin_ident(leaf));
}


/* 1: it has the key of a slot; 0: the block that it names is another's. */
static int take_whole_key(dolphin_op *op, dolphin_pair *pair, const uint8_t *block, far_bytes prefix, bool half) {
    int err = block ? dolphin_take_key(op, pair->kword, block, &pair->key) : 0;
    bool fits =
        err == 0 && pair->key.length >= prefix.length && memcmp(pair->key.data, prefix.data, prefix.length) == 0;
    return half && block && !fits ? 0 : err < 0 ? err : 1;
}


int dolphin_read_pairs(dolphin_op *op, const dolphin_leaf *leaf, const uint8_t *prefix, unsigned hi,
                       dolphin_pair *pairs, unsigned *count) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf)), found = 0, kept = 0;
    bool any = false, half = dolphin_is_half_replaced(leaf, hi);
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    int err = 0;
    for (unsigned i = 0; i < op->st->slots; i++) {
        if (dolphin_state_of_slot(kwords[i]) != DOLPHIN_HELD)
            continue;
        blocks[found] = NULL;
        pairs[found] = (dolphin_pair){.kword = kwords[i], .vword = dolphin_vwords(op, leaf)[i], .slot = i};
        if (!dolphin_kword_is_sound(kwords[i]))
            err = dolphin_broken(op->index, leaf->addr, "leaf");
        else if (dolphin_kword_is_block(kwords[i]))
            err = dolphin_put_read_key(op, kwords[i], half, &blocks[found]);
        else
            err = whole_key(op, kwords[i], prefix, depth, &pairs[found].key);
        if (err < 0) {
            far_forget(op->t);
            return err;
        }
        any |= blocks[found++] != NULL;
    }
    if (any && (err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < found; i++) {
        if ((err = take_whole_key(op, &pairs[i], blocks[i], (far_bytes){prefix, depth}, half)) < 0)
            return err;
        if (err == 1 && (!half || dolphin_position(pairs[i].key, depth) <= hi))
            pairs[kept++] = pairs[i];
    }
    qsort(pairs, kept, sizeof(*pairs), by_key_then_slot);
    *count = drop_older(pairs, kept);
    return 0;
}
