/* CHIME: the pairs of one leaf, which a scan delivers in key order. The slots of a leaf have no order, so this file
 * orders the items by the first 8 bytes of their keys. It works with the *rank* of an item: in a forward scan the first
 * 8 bytes as a number, in a backward scan the complement of this number. So the items are delivered with rising ranks
 * in both directions. Other files call chime_deliver_leaf. */
#include "base/error.h"
#include "index/chime/chime.h"

#include <stdlib.h>

/* limit for the blocks that one batch READs, in bytes; a single larger block is READ alone */
#define BLOCK_BYTES_MAX (256u << 10)
#define BUCKETS         64u
#define NO_ITEM         UINT16_MAX

typedef struct item {
    uint64_t rank;
    const uint64_t *value; /* value words of the item; points into the image of the leaf */
} item;

/* The items of a leaf that belong to the range, and the limits of their ranks. */
typedef struct item_set {
    item *items;
    unsigned count;
    uint64_t least, most;
} item_set;


static uint64_t rank_of(const chime_delivery *d, uint64_t first) {
    return d->scan->backward ? ~first : first;
}


/* Collects the items whose first 8 bytes are at least `least` and at most `most`. */
static void collect_items(const chime_state *st, const chime_delivery *d, uint64_t *w, uint64_t least, uint64_t most,
                          item_set *set) {
    unsigned offset[CHIME_PER_LINE], h1 = chime_h1_offset(st->per_line, 0) / 8, all = (1u << st->per_line) - 1;
    for (unsigned i = 0; i < st->per_line; i++)
        offset[i] = chime_slot_offset(st->per_line, i) / 8;
    *set = (item_set){.items = set->items, .least = UINT64_MAX};
    for (const uint64_t *line = w, *end = chime_tail(st, w); line < end; line += CHIME_LINE / 8)
        for (unsigned left = chime_h1_occupied(line[h1]) & all; left; left &= left - 1) {
            const uint64_t *words = line + offset[__builtin_ctz(left)];
            if (words[0] < least || words[0] > most)
                continue;
            uint64_t rank = rank_of(d, words[0]);
            set->items[set->count++] = (item){rank, words + 1};
            set->least = rank < set->least ? rank : set->least;
            set->most = rank > set->most ? rank : set->most;
        }
}


/* Copies the items in the order of their ranks. The items are distributed to buckets, each of which is a short list in
 * the order of ranks; a bit of `used` is set for each bucket that has items. Stops after the bucket with which `wanted`
 * items are copied. Returns the number of copied items. */
static unsigned order_items(const item_set *set, uint64_t wanted, item *ordered) {
    uint16_t head[BUCKETS], next[CHIME_SPAN_MAX];
    uint64_t used = 0, range = set->most - set->least;
    unsigned shift = range < BUCKETS ? 0 : 58 - (unsigned)__builtin_clzll(range), count = 0;
    for (unsigned i = 0; i < set->count; i++) {
        uint64_t rank = set->items[i].rank;
        unsigned bucket = (unsigned)((rank - set->least) >> shift);
        uint16_t *link = &head[bucket];
        if (!(used >> bucket & 1))
            *link = NO_ITEM;
        used |= 1ull << bucket;
        while (*link != NO_ITEM && set->items[*link].rank < rank)
            link = &next[*link];
        next[i] = *link;
        *link = (uint16_t)i;
    }
    for (; used && count < wanted; used &= used - 1)
        for (unsigned i = head[__builtin_ctzll(used)]; i != NO_ITEM; i = next[i])
            ordered[count++] = set->items[i];
    return count;
}


static int deliver_inline_items(const chime_state *st, chime_delivery *d, const item *items, unsigned count) {
    for (unsigned i = 0; i < count && !d->enough; i++) {
        uint64_t bytes = __builtin_bswap64(rank_of(d, items[i].rank));
        int err =
            far_scan_add(d->scan, (far_bytes){&bytes, st->key_bytes}, (far_bytes){items[i].value, st->value_bytes});
        if (err < 0)
            return err;
        d->enough = err == 1;
        d->wanted--;
    }
    return 0;
}


/* Items in blocks. Their full keys are known only after their blocks were READ. */

static int compare_keys(const void *a, const void *b) {
    return far_bytes_compare(((const chime_block *)a)->key, ((const chime_block *)b)->key);
}


static int compare_keys_descending(const void *a, const void *b) {
    return compare_keys(b, a);
}


/* Returns how many of the items form the next batch of block READs. Items of equal rank stay in one batch, because only
 * their blocks show their order. */
static unsigned count_next_items(const chime_delivery *d, const item *items, unsigned count) {
    unsigned n = 0;
    uint64_t bytes = 0;
    while (n < count) {
        unsigned same = n;
        uint64_t more = 0;
        while (same < count && items[same].rank == items[n].rank)
            more += chime_class_bytes(chime_value_class(*items[same++].value));
        if (n && (bytes + more > BLOCK_BYTES_MAX || n >= d->wanted))
            break;
        bytes += more;
        n = same;
    }
    return n;
}


/* READs the blocks of the items in one batch, and orders them by their full keys. */
static int read_blocks_in_order(chime_op *op, const chime_delivery *d, const item *items, unsigned count,
                                chime_block *blocks) {
    bool ordered = true;
    int err;
    for (unsigned i = 0; i < count; i++) {
        if ((err = chime_batch_read_block(op, *items[i].value, &blocks[i])) < 0)
            return err;
        ordered &= i == 0 || items[i - 1].rank != items[i].rank;
    }
    if ((err = chime_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < count; i++)
        if ((err = chime_parse_block(op, *items[i].value, &blocks[i])) < 0)
            return err;
    if (!ordered)
        qsort(blocks, count, sizeof(*blocks), d->scan->backward ? compare_keys_descending : compare_keys);
    return 0;
}


static int deliver_items_in_blocks(chime_op *op, chime_delivery *d, const item *items, unsigned count) {
    chime_block *blocks = far_scratch(op->t, op->st->span * sizeof(*blocks));
    int err;
    if (!blocks)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    while (count && !d->enough) {
        far_scratch_mark here = far_scratch_here(op->t);
        unsigned n = count_next_items(d, items, count);
        if ((err = read_blocks_in_order(op, d, items, n, blocks)) < 0)
            return err;
        for (unsigned i = 0; i < n && !d->enough; i++) {
            if ((err = far_scan_give(d->scan, blocks[i].key, blocks[i].value)) < 0)
                return err;
            d->enough = err == 1;
            d->wanted -= d->wanted > 0;
        }
        far_scratch_back(op->t, here);
        items += n;
        count -= n;
    }
    return 0;
}


int chime_deliver_leaf(chime_op *op, chime_delivery *d, chime_node *n, uint64_t least, uint64_t most) {
    const chime_state *st = op->st;
    far_scratch_mark here = far_scratch_here(op->t);
    item_set set = {.items = far_scratch(op->t, st->span * sizeof(item))};
    item *ordered = far_scratch(op->t, st->span * sizeof(item));
    if (!set.items || !ordered)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    collect_items(st, d, n->w, least, most, &set);
    /* A pair in a block may turn out to be outside of the range, so all items are ordered. */
    unsigned count = order_items(&set, st->inline_items ? d->wanted : UINT64_MAX, ordered);
    int err =
        st->inline_items ? deliver_inline_items(st, d, ordered, count) : deliver_items_in_blocks(op, d, ordered, count);
    far_scratch_back(op->t, here);
    return err;
}
