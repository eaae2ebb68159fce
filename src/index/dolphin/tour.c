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


int dolphin_read_pairs(dolphin_op *op, const dolphin_leaf *leaf, const uint8_t *prefix, dolphin_pair *pairs,
                       unsigned *count) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf)), found = 0;
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
            err = dolphin_put_read_key(op, kwords[i], &blocks[found]);
        else
            err = whole_key(op, kwords[i], prefix, depth, &pairs[found].key);
        if (err < 0) {
            far_forget(op->t);
            return err;
        }
        found++;
    }
    bool any = false;
    for (unsigned i = 0; i < found; i++)
        any |= blocks[i] != NULL;
    if (any && (err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < found; i++)
        if (blocks[i] && (err = dolphin_take_key(op, pairs[i].kword, blocks[i], &pairs[i].key)) < 0)
            return err;
    qsort(pairs, found, sizeof(*pairs), by_key_then_slot);
    *count = drop_older(pairs, found);
    return 0;
}
