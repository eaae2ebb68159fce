/* CHIME: the pairs of one leaf, which a scan delivers in key order. The slots of a leaf have no order, so this file
 * orders the items by the first 8 bytes of their keys. It works with the *rank* of an item: in a forward scan the first
 * 8 bytes as a number, in a backward scan the complement of this number. So the items are delivered with rising ranks
 * in both directions. Other files call chime_deliver_leaf. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "index/common/results.h"

#include <stdlib.h>

/* limit for the pair blocks that one batch READs, in bytes; a single larger pair block is READ alone */
#define BLOCK_BYTES_MAX (256u << 10)
#define BUCKET_BITS     5u
#define BUCKETS         (1u << BUCKET_BITS)

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


/* Returns a number by which the first 8 bytes of a key are converted into a rank, and back, with exclusive or. */
static uint64_t rank_mask(const chime_delivery *d) {
    return d->scan->backward ? UINT64_MAX : 0;
}


/* Adds the item in this slot to the set, if its first 8 bytes are at least `least` and at most least + range. */
static inline void take_item(item_set *set, const uint64_t *words, uint64_t least, uint64_t range, uint64_t mask) {
    if (words[0] - least > range)
        return;
    uint64_t rank = words[0] ^ mask;
    set->items[set->count++] = (item){rank, words + 1};
    set->least = rank < set->least ? rank : set->least;
    set->most = rank > set->most ? rank : set->most;
}


/* Collects the items whose first 8 bytes are at least `least` and at most least + range. The loop over the slots of a
 * line is written out, because a scan runs it for every slot of its leaves. */
static item_set collect_items(const chime_state *st, uint64_t *w, uint64_t least, uint64_t range, uint64_t mask,
                              item *items) {
    item_set set = {.items = items, .least = UINT64_MAX};
    unsigned h1 = chime_h1_offset(st->per_line, 0) / 8, second = chime_slot_offset(st->per_line, 1) / 8,
             third = chime_slot_offset(st->per_line, 2) / 8, all = (1u << st->per_line) - 1;
    for (const uint64_t *line = w, *end = chime_tail(st, w); line < end; line += CHIME_LINE / 8) {
        unsigned occupied = chime_h1_occupied(line[h1]) & all;
        if (occupied & 1)
            take_item(&set, line, least, range, mask);
        if (occupied & 2)
            take_item(&set, line + second, least, range, mask);
        if (occupied & 4)
            take_item(&set, line + third, least, range, mask);
    }
    return set;
}


/* Counts, for each bucket, the items in the buckets before it. A bucket contains the items whose distance from the
 * least rank is equal after a shift by `shift` bits. */
static void find_bucket_starts(const item_set *set, unsigned shift, uint16_t start[BUCKETS]) {
    uint16_t sum = 0;
    memset(start, 0, BUCKETS * sizeof(start[0]));
    for (unsigned i = 0; i < set->count; i++)
        start[(set->items[i].rank - set->least) >> shift]++;
    for (unsigned bucket = 0; bucket < BUCKETS; bucket++) {
        uint16_t count = start[bucket];
        start[bucket] = sum;
        sum = (uint16_t)(sum + count);
    }
}


static void sort_by_insertion(item *items, unsigned count) {
    for (unsigned i = 1; i < count; i++) {
        if (items[i - 1].rank <= items[i].rank)
            continue;
        item moving = items[i];
        unsigned at = i;
        for (; at > 0 && items[at - 1].rank > moving.rank; at--)
            items[at] = items[at - 1];
        items[at] = moving;
    }
}


/* Copies the items, of which there must be one, in the order of their ranks. The items are distributed to buckets first,
 * so that few of them remain in the wrong order. Orders only the buckets that contain the first `wanted` items, and
 * returns the number of items in these buckets. */
static unsigned order_items(const item_set *set, uint64_t wanted, item *ordered) {
    uint16_t next[BUCKETS]; /* for each bucket: where its next item is stored, and in the end, where the bucket ends */
    uint64_t range = set->most - set->least;
    unsigned shift = range < BUCKETS ? 0 : 64 - BUCKET_BITS - (unsigned)__builtin_clzll(range), last = 0;
    find_bucket_starts(set, shift, next);
    for (unsigned i = 0; i < set->count; i++)
        ordered[next[(set->items[i].rank - set->least) >> shift]++] = set->items[i];
    while (next[last] < set->count && next[last] < wanted)
        last++;
    sort_by_insertion(ordered, next[last]);
    return next[last];
}


/* Returns the item with the least rank. The set must contain an item. */
static const item *find_first_item(const item_set *set) {
    const item *at = set->items;
    while (at->rank != set->least)
        at++;
    return at;
}


static int deliver_inline_items(const chime_state *st, chime_delivery *d, const item *items, unsigned count) {
    uint64_t mask = rank_mask(d);
    unsigned i = 0;
    int err = 0;
    for (; i < count && err == 0; i++) {
        uint64_t bytes = __builtin_bswap64(items[i].rank ^ mask);
        err = far_scan_add(d->scan, (far_bytes){&bytes, st->key_bytes}, (far_bytes){items[i].value, st->value_bytes});
    }
    d->wanted -= i;
    d->enough = err == 1;
    return err < 0 ? err : 0;
}


/* Items in pair blocks. Their full keys are known only after their pair blocks were READ. */

static int compare_keys(const void *a, const void *b) {
    return far_bytes_compare(((const chime_block *)a)->key, ((const chime_block *)b)->key);
}


static int compare_keys_descending(const void *a, const void *b) {
    return compare_keys(b, a);
}


/* Returns how many of the items form the next batch of READs of pair blocks. Items of equal rank stay in one batch,
 * because only their pair blocks show their order. */
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


/* READs the pair blocks of the items in one batch, and orders them by their full keys. */
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


static int deliver_items(chime_op *op, chime_delivery *d, const item_set *set) {
    bool is_inline = op->st->inline_items;
    if (is_inline && d->wanted == 1)
        return deliver_inline_items(op->st, d, find_first_item(set), 1);
    item *ordered = far_scratch(op->t, set->count * sizeof(*ordered));
    if (!ordered)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    /* An item in a pair block may turn out to be outside of the range, so all items are ordered in that case. */
    unsigned count = order_items(set, is_inline ? d->wanted : set->count, ordered);
    return is_inline ? deliver_inline_items(op->st, d, ordered, count) : deliver_items_in_blocks(op, d, ordered, count);
}


int chime_deliver_leaf(chime_op *op, chime_delivery *d, chime_node *n, uint64_t least, uint64_t most) {
    if (least > most)
        return 0;
    far_scratch_mark here = far_scratch_here(op->t);
    item *items = far_scratch(op->t, op->st->span * sizeof(*items));
    if (!items)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    item_set set = collect_items(op->st, n->w, least, most - least, rank_mask(d), items);
    int err = set.count ? deliver_items(op, d, &set) : 0;
    far_scratch_back(op->t, here);
    return err;
}
