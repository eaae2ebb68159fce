/* Extracts the LIVE pairs of a leaf with their whole keys. Scans, checks and usage counts use it. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#include <stdlib.h>


bool dolphin_first_key_beyond(const uint8_t *prefix, unsigned depth, unsigned hi, uint8_t *key, size_t *length) {
    if (hi >= DOLPHIN_LAST_POSITION)
        return dolphin_first_key_after_prefix(prefix, depth, key, length);
    memcpy(key, prefix, depth);
    /* The position is the byte value plus 1, so the first key with a greater position than `hi` has the byte value
     * `hi`. */
    key[depth] = (uint8_t)hi;
    *length = depth + 1;
    return true;
}


static int compare_pairs(const void *a, const void *b) {
    const dolphin_pair *x = a, *y = b;
    int order = far_bytes_compare(x->key, y->key);
    return order ? order : (x->slot < y->slot) - (x->slot > y->slot);
}


/* Keeps one pair per key. One READ of a leaf may show a key LIVE in two slots if it was deleted and inserted again; the
 * pair in the higher slot is the later one. */
static unsigned drop_older_duplicates(dolphin_pair *pairs, unsigned count) {
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++)
        if (kept == 0 || far_bytes_compare(pairs[kept - 1].key, pairs[i].key) != 0)
            pairs[kept++] = pairs[i];
    return kept;
}


static int build_inline_key(dolphin_op *op, uint64_t kword, const uint8_t *prefix, unsigned depth, far_bytes *key) {
    unsigned length = depth + dolphin_kword_length(kword);
    uint8_t *bytes = far_scratch(op->t, depth + DOLPHIN_INLINE_MAX);
    if (!bytes)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a key");
    memcpy(bytes, prefix, depth);
    dolphin_inline_bytes(kword, bytes + depth);
    *key = (far_bytes){bytes, length};
    return 0;
}


/* Returns true if a client failed after it had linked new leaves for the upper part of this leaf. `hi` is the last
 * position for which the node still names this leaf. */
static bool leaf_is_half_replaced(const dolphin_leaf *leaf, unsigned hi) {
    return (dolphin_spear(leaf) & DOLPHIN_FROZEN) && hi < dolphin_ident_hi(dolphin_ident(leaf));
}


/* If a client failed after it had linked new leaves for the upper part of this leaf, the keys of that part (the moved
 * keys) belong to the new leaves. There they may have been deleted, and their key blocks freed and reused, so these
 * blocks must not be READ. The words `cut` and `moved` in the leaf identify the slots of the moved keys. The key blocks
 * of the other slots cannot be freed while the leaf is frozen.
 *
 * If the leaf was READ before `cut` and `moved` were written, the result is 0 and all key blocks are READ. This is safe
 * because the blocks were linked while the operation held its pin, so their memory was not reused. */
uint64_t dolphin_moved_slots(const dolphin_leaf *leaf, unsigned hi) {
    const uint64_t *cut = leaf->image + DOLPHIN_LEAF_CUT / 8;
    return leaf_is_half_replaced(leaf, hi) && hi < cut[0] ? cut[1] : 0;
}


int dolphin_read_pairs(dolphin_op *op, const dolphin_leaf *leaf, const uint8_t *prefix, unsigned hi,
                       dolphin_pair *pairs, unsigned *count) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf)), found = 0, kept = 0;
    uint64_t parted = dolphin_moved_slots(leaf, hi);
    bool any = false, half = leaf_is_half_replaced(leaf, hi);
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    int err = 0;
    for (unsigned i = 0; i < op->st->slots; i++) {
        if (dolphin_slot_state_of(kwords[i]) != DOLPHIN_SLOT_LIVE || (parted >> i & 1))
            continue;
        blocks[found] = NULL;
        pairs[found] = (dolphin_pair){.kword = kwords[i], .vword = dolphin_vwords(op, leaf)[i], .slot = i};
        if (!dolphin_kword_is_sound(kwords[i]))
            err = dolphin_fail_corrupt(op->index, leaf->addr, "leaf");
        else if (dolphin_kword_is_block(kwords[i]))
            err = dolphin_batch_read_key(op, kwords[i], &blocks[found]);
        else
            err = build_inline_key(op, kwords[i], prefix, depth, &pairs[found].key);
        if (err < 0) {
            far_discard_batch(op->t);
            return err;
        }
        any |= blocks[found++] != NULL;
    }
    if (any && (err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < found; i++) {
        if (blocks[i] && (err = dolphin_decode_key(op, pairs[i].kword, blocks[i], &pairs[i].key)) < 0)
            return err;
        if (!half || dolphin_position(pairs[i].key, depth) <= hi)
            pairs[kept++] = pairs[i];
    }
    qsort(pairs, kept, sizeof(*pairs), compare_pairs);
    *count = drop_older_duplicates(pairs, kept);
    return 0;
}
