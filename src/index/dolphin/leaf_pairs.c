/* Extracts the LIVE pairs of a leaf in the order of their keys. Scans, checks and usage counts use it.
 *
 * Most keys are compared by one word, the order word, which contains the first 7 bytes of the suffix of the key. Two
 * keys in key blocks can have equal order words; only then are whole keys compared. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#include <stdlib.h>

#define BUCKETS 64u

/* The part of a leaf that the caller wants: the order words of the first and of the last key, and the slots to leave
 * out. `range` is NULL if the caller wants all keys. */
typedef struct selection {
    uint64_t first, last, left_out;
    const dolphin_range *range;
} selection;


bool dolphin_first_key_beyond(const uint8_t *prefix, unsigned depth, unsigned hi, uint8_t *key, size_t *length) {
    if (hi >= DOLPHIN_LAST_POSITION)
        return dolphin_first_key_after_prefix(prefix, depth, key, length);
    if (key != prefix)
        memcpy(key, prefix, depth);
    /* The position is the byte value plus 1, so the first key with a greater position than `hi` has the byte value
     * `hi`. */
    key[depth] = (uint8_t)hi;
    *length = depth + 1;
    return true;
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


/* Selects the keys of the leaf that are in the range and have positions up to `hi`. */
static void select_keys(const dolphin_leaf *leaf, const dolphin_pairs *pairs, unsigned hi, const dolphin_range *range,
                        selection *wanted) {
    *wanted = (selection){.last = UINT64_MAX, .left_out = dolphin_moved_slots(leaf, hi), .range = range};
    if (range)
        dolphin_range_order_words(range, pairs->key, pairs->depth, &wanted->first, &wanted->last);
    if (leaf_is_half_replaced(leaf, hi) && dolphin_last_order_word(hi) < wanted->last)
        wanted->last = dolphin_last_order_word(hi);
}


/* Collects the selected pairs whose keys are in key words. Stores in *long_keys the slots whose keys are in key blocks,
 * one bit per slot. */
static int collect_inline_pairs(const dolphin_op *op, dolphin_pairs *pairs, const selection *wanted,
                                uint64_t *long_keys) {
    const uint64_t *kwords = dolphin_kwords(pairs->leaf), first = wanted->first, last = wanted->last;
    unsigned slots = op->st->slots, count = 0;
    *long_keys = 0;
    for (unsigned i = 0; i < slots; i++) {
        uint64_t kword = kwords[i], order = dolphin_kword_order(kword);
        bool block = dolphin_kword_is_block(kword);
        if (dolphin_slot_state_of(kword) != DOLPHIN_SLOT_LIVE || (wanted->left_out >> i & 1) ||
            (!block && (order < first || order > last)))
            continue;
        if (!dolphin_kword_is_sound(kword))
            return dolphin_fail_corrupt(op->index, pairs->leaf->addr, "leaf");
        if (block)
            *long_keys |= 1ull << i;
        else
            pairs->pair[count++] = (dolphin_pair){order, i};
    }
    pairs->count = count;
    return 0;
}


/* READs the key blocks of these slots in one batch. */
static int read_long_keys(dolphin_op *op, const dolphin_pairs *pairs, uint64_t slots, uint8_t *blocks[]) {
    for (uint64_t left = slots; left; left &= left - 1) {
        unsigned slot = (unsigned)__builtin_ctzll(left);
        int err = dolphin_batch_read_key(op, dolphin_kwords(pairs->leaf)[slot], &blocks[slot]);
        if (err < 0) {
            far_discard_batch(op->t);
            return err;
        }
    }
    return dolphin_wait(op);
}


static bool key_has_prefix(far_bytes key, const dolphin_pairs *pairs) {
    return key.length >= pairs->depth && memcmp(key.data, pairs->key, pairs->depth) == 0;
}


/* Adds the selected pairs among these slots, whose keys are in key blocks. A caller with a range gets only keys that
 * have the prefix of the leaf. A check gets all keys, because it reports those that do not belong to the leaf. */
static int collect_long_pairs(dolphin_op *op, dolphin_pairs *pairs, const selection *wanted, uint64_t slots) {
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    int err = read_long_keys(op, pairs, slots, blocks);
    for (; slots && err == 0; slots &= slots - 1) {
        unsigned slot = (unsigned)__builtin_ctzll(slots);
        far_bytes *key = &pairs->long_key[slot];
        if ((err = dolphin_decode_key(op, dolphin_kwords(pairs->leaf)[slot], blocks[slot], key)) < 0)
            return err;
        if (wanted->range && !key_has_prefix(*key, pairs))
            return dolphin_fail_corrupt(op->index, pairs->leaf->addr, "leaf");
        uint64_t order = dolphin_order_word(*key, pairs->depth);
        if (order <= wanted->last && (!wanted->range || dolphin_range_contains(wanted->range, *key)))
            pairs->pair[pairs->count++] = (dolphin_pair){order | DOLPHIN_ORDER_LONG, slot};
    }
    return err;
}


/* Distributes the pairs to buckets by the 6 highest bits in which their order words differ, so that afterwards each
 * pair is close to its place. Pairs of one bucket keep the order of their slots. */
static void distribute_pairs(dolphin_pair *pairs, unsigned count) {
    dolphin_pair from[DOLPHIN_SLOTS_MAX];
    uint8_t next[BUCKETS] = {0};
    uint64_t different = 0;
    unsigned sum = 0, size;
    for (unsigned i = 0; i < count; i++) {
        from[i] = pairs[i];
        different |= pairs[i].order ^ pairs[0].order;
    }
    unsigned top = different ? 63 - (unsigned)__builtin_clzll(different) : 0, shift = top > 5 ? top - 5 : 0;
    for (unsigned i = 0; i < count; i++)
        next[(from[i].order >> shift) % BUCKETS]++;
    for (unsigned i = 0; i < BUCKETS; i++, sum += size) {
        size = next[i];
        next[i] = (uint8_t)sum;
    }
    for (unsigned i = 0; i < count; i++)
        pairs[next[(from[i].order >> shift) % BUCKETS]++] = from[i];
}


/* Sorts the pairs by their order words, and pairs with equal words by their slots. Returns true if there are equal
 * words. */
static bool sort_by_order_words(dolphin_pair *pairs, unsigned count) {
    bool equal = false;
    if (count > 2)
        distribute_pairs(pairs, count);
    for (unsigned i = 1; i < count; i++) {
        dolphin_pair pair = pairs[i];
        unsigned at = i;
        for (; at > 0 && pairs[at - 1].order > pair.order; at--)
            pairs[at] = pairs[at - 1];
        pairs[at] = pair;
        equal |= at > 0 && pairs[at - 1].order == pair.order;
    }
    return equal;
}


typedef struct whole_pair { /* a pair with its whole key if the key is in a key block, else with an empty string */
    far_bytes key;
    dolphin_pair pair;
} whole_pair;


static int compare_whole_keys(const whole_pair *x, const whole_pair *y) {
    if (x->pair.order != y->pair.order)
        return x->pair.order < y->pair.order ? -1 : 1;
    return far_bytes_compare(x->key, y->key);
}


static int compare_whole_pairs(const void *a, const void *b) {
    const whole_pair *x = a, *y = b;
    int order = compare_whole_keys(x, y);
    return order ? order : (x->pair.slot < y->pair.slot) - (x->pair.slot > y->pair.slot);
}


/* Keeps one pair per key. One READ of a leaf may show a key LIVE in two slots if it was deleted and inserted again; the
 * pair in the higher slot is the later one. */
static unsigned drop_older_duplicates(const whole_pair *sorted, unsigned count, dolphin_pair *kept) {
    unsigned n = 0;
    for (unsigned i = 0; i < count; i++)
        if (i == 0 || compare_whole_keys(&sorted[i - 1], &sorted[i]) != 0)
            kept[n++] = sorted[i].pair;
    return n;
}


/* Sorts pairs, some of which have equal order words, by their whole keys. */
static void sort_by_whole_keys(dolphin_pairs *pairs) {
    whole_pair all[DOLPHIN_SLOTS_MAX];
    for (unsigned i = 0; i < pairs->count; i++) {
        dolphin_pair pair = pairs->pair[i];
        all[i] = (whole_pair){.key = dolphin_pair_is_long(pair) ? pairs->long_key[pair.slot] : (far_bytes){"", 0},
                              .pair = pair};
    }
    qsort(all, pairs->count, sizeof(all[0]), compare_whole_pairs);
    pairs->count = drop_older_duplicates(all, pairs->count, pairs->pair);
}


int dolphin_read_pairs(dolphin_op *op, const dolphin_leaf *leaf, const uint8_t *prefix, unsigned hi,
                       const dolphin_range *range, dolphin_pairs *pairs) {
    uint64_t long_keys;
    selection wanted;
    pairs->leaf = leaf;
    pairs->depth = dolphin_ident_depth(dolphin_ident(leaf));
    memcpy(pairs->key, prefix, pairs->depth);
    select_keys(leaf, pairs, hi, range, &wanted);
    int err = collect_inline_pairs(op, pairs, &wanted, &long_keys);
    if (err == 0 && long_keys)
        err = collect_long_pairs(op, pairs, &wanted, long_keys);
    if (err == 0 && sort_by_order_words(pairs->pair, pairs->count))
        sort_by_whole_keys(pairs);
    return err;
}
