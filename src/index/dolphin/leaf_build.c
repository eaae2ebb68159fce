/* Builds the images of new leaves in local memory from sorted items, and chooses where to split the items of a full
 * leaf. Used by all structure changes. */
#include "index/dolphin/dolphin.h"

#include <stdlib.h>


static int compare_items(const void *a, const void *b) {
    return far_bytes_compare(((const dolphin_item *)a)->key, ((const dolphin_item *)b)->key);
}


void dolphin_sort_items(dolphin_item *items, unsigned count) {
    qsort(items, count, sizeof(*items), compare_items);
}


/* Returns the index of the first item of the upper part when the items are split into two leaves. All items of one
 * position must stay together; the items must have at least two different positions. The split is as near to the middle
 * as possible. If the new item (index new_item, or -1) is among the last eighth of the items, keys probably arrive in
 * ascending order, so the split is nearer to three quarters. */
unsigned dolphin_choose_split(const dolphin_item *items, unsigned count, unsigned depth, int fresh) {
    unsigned target = fresh >= 0 && (unsigned)fresh * 8 >= count * 7 ? count * 3 / 4 : count / 2, best = 0;
    for (unsigned i = 1; i < count; i++) {
        if (dolphin_position(items[i - 1].key, depth) == dolphin_position(items[i].key, depth))
            continue;
        unsigned distance = i > target ? i - target : target - i;
        unsigned best_distance = best > target ? best - target : target - best;
        if (best == 0 || distance < best_distance)
            best = i;
    }
    return best;
}


/* Builds the whole leaf. In the spear word (the control word of the leaf) only the ticket and the sum are set: the next
 * ticket is the first empty slot, and the sum covers the keys of the slots below that slot. */
void dolphin_fill_leaf(const dolphin_op *op, uint64_t *image, const dolphin_item *items, unsigned count,
                       const uint8_t *prefix, unsigned depth, unsigned lo, unsigned hi) {
    const dolphin_state *st = op->st;
    uint64_t *kwords = image + DOLPHIN_LEAF_HEADER / 8, *vwords = kwords + st->slots;
    memset(image, 0, st->leaf_bytes);
    image[1] = dolphin_leaf_ident(depth, lo, hi, st->slots);
    image[2] = dolphin_prefix_word(st, prefix, depth);
    image[0] = count * DOLPHIN_TICKET;
    for (unsigned i = 0; i < st->slots; i++) {
        if (i < count) {
            bool fits = items[i].key.length - depth <= DOLPHIN_INLINE_MAX;
            uint64_t kword = fits ? dolphin_inline_kword(items[i].key, depth) : items[i].kword;
            kwords[i] = dolphin_kword_with_state(kword, DOLPHIN_SLOT_LIVE);
            image[0] += dolphin_key_sum(kword);
            vwords[i] = items[i].vword;
        } else if (st->raw_values)
            vwords[i] = st->poison;
    }
}
