/* New leaves from sorted pairs, in local memory. */
#include "index/dolphin/dolphin.h"

#include <stdlib.h>


static int by_key(const void *a, const void *b) {
    return far_bytes_compare(((const dolphin_item *)a)->key, ((const dolphin_item *)b)->key);
}


void dolphin_sort_items(dolphin_item *items, unsigned count) {
    qsort(items, count, sizeof(*items), by_key);
}


/* Where the items, whose positions at this depth are not all the same, are best cut in two: the first of the upper
 * part. In the middle; or, when the item that came now (fresh, -1: none) is among the last, so that keys seem to come
 * in rising order, further up. */
unsigned dolphin_cut(const dolphin_item *items, unsigned count, unsigned depth, int fresh) {
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


/* All of the leaf but its spear word, of which ticket and sum are set: the first slot that is empty, the keys below. */
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
            kwords[i] = dolphin_with_state(kword, DOLPHIN_HELD);
            image[0] += dolphin_key_sum(kword);
            vwords[i] = items[i].vword;
        } else if (st->words)
            vwords[i] = st->poison;
    }
}
