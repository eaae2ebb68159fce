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


/* A client died when entries led elsewhere already for the upper part of the leaf. */
static bool is_half_replaced(const dolphin_leaf *leaf, unsigned hi) {
    return (dolphin_spear(leaf) & DOLPHIN_FROZEN) && hi < dolphin_ident_hi(dolphin_ident(leaf));
}


/* Keys that are elsewhere may be deleted there since, and their blocks freed, and used again: they are not READ, the leaf
 * itself tells which they are. What stays is the leaf's own, as long as it is frozen. A leaf that was READ before it was
 * parted does not tell: then its blocks were linked under the pin of this operation, and are as they were. */
uint64_t dolphin_parted(const dolphin_leaf *leaf, unsigned hi) {
    const uint64_t *cut = leaf->image + DOLPHIN_LEAF_CUT / 8;
    return is_half_replaced(leaf, hi) && hi < cut[0] ? cut[1] : 0;
}


int dolphin_read_pairs(dolphin_op *op, const dolphin_leaf *leaf, const uint8_t *prefix, unsigned hi,
                       dolphin_pair *pairs, unsigned *count) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf)), found = 0, kept = 0;
    uint64_t parted = dolphin_parted(leaf, hi);
    bool any = false, half = is_half_replaced(leaf, hi);
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    int err = 0;
    for (unsigned i = 0; i < op->st->slots; i++) {
        if (dolphin_state_of_slot(kwords[i]) != DOLPHIN_HELD || (parted >> i & 1))
            continue;
        blocks[found] = NULL;
        pairs[found] = (dolphin_pair){.kword = kwords[i], .vword = dolphin_vwords(op, leaf)[i], .slot = i};
        if (!dolphin_kword_is_sound(kwords[i]))
            err = dolphin_broken(op->index, leaf->addr, "leaf");
        else if (dolphin_kword_is_block(kwords[i]))
            err = dolphin_put_read_key(op, kwords[i], &blocks[found]);
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
        if (blocks[i] && (err = dolphin_take_key(op, pairs[i].kword, blocks[i], &pairs[i].key)) < 0)
            return err;
        if (!half || dolphin_position(pairs[i].key, depth) <= hi)
            pairs[kept++] = pairs[i];
    }
    qsort(pairs, kept, sizeof(*pairs), by_key_then_slot);
    *count = drop_older(pairs, kept);
    return 0;
}
