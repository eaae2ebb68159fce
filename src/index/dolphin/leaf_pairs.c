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
    bool one; /* the caller wants only the pair that is nearest to the cursor */
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


static bool leaf_is_frozen(const dolphin_leaf *leaf) {
    return dolphin_spear(leaf) & DOLPHIN_FROZEN;
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
    return leaf_is_frozen(leaf) && hi < cut[0] ? cut[1] : 0;
}


/* Selects the keys of the leaf that are in the range. From a frozen leaf it selects only keys with positions up to `hi`:
 * a client may have failed after it had linked new leaves for the upper part of this leaf. The interval in the header
 * does not show that reliably. If the READ copied the header after another client had narrowed the leaf, the interval
 * ends at `hi`, although the key words, which the READ copied before, contain the moved keys. A leaf that is not frozen
 * contains no other keys, because a narrowed leaf stays frozen until such READs are over (wait_for_readers in
 * recover.c). */
static void select_keys(const dolphin_leaf *leaf, const dolphin_pairs *pairs, unsigned hi, const dolphin_range *range,
                        selection *wanted) {
    *wanted = (selection){.last = UINT64_MAX, .left_out = dolphin_moved_slots(leaf, hi), .range = range};
    if (range)
        dolphin_range_order_words(range, pairs->key, pairs->depth, &wanted->first, &wanted->last);
    if (leaf_is_frozen(leaf) && dolphin_last_order_word(hi) < wanted->last)
        wanted->last = dolphin_last_order_word(hi);
}


/* Collects the selected pairs whose keys are in key words. Stores in *long_keys the slots whose keys are in key blocks,
 * one bit per slot. */
static int collect_inline_pairs(const dolphin_op *op, const selection *wanted, dolphin_pairs *pairs,
                                uint64_t *long_keys) {
    const uint64_t *kwords = dolphin_kwords(pairs->leaf);
    uint64_t first = wanted->first, last = wanted->last;
    bool backward = wanted->range && wanted->range->backward;
    dolphin_pair *next = pairs->pair;
    uint64_t blocks = 0, unsound = 0;
    for (unsigned i = 0, slots = op->st->slots; i < slots; i++) {
        uint64_t kword = kwords[i], order = dolphin_kword_order(kword);
        if (!dolphin_kword_is_live_inline(kword)) {
            if (dolphin_kword_is_live_block(kword))
                blocks |= 1ull << i;
            continue;
        }
        if (order < first || order > last)
            continue;
        unsound |= dolphin_bytes_beyond_suffix(kword);
        *next++ = (dolphin_pair){order, i};
        if (wanted->one) /* only nearer pairs are of interest from now on */
            *(backward ? &first : &last) = order;
    }
    pairs->count = (unsigned)(next - pairs->pair);
    *long_keys = blocks & ~wanted->left_out;
    return unsound ? dolphin_fail_corrupt(op->index, pairs->leaf->addr, "leaf") : 0;
}


/* READs the key blocks of these slots in one batch. */
static int read_long_keys(dolphin_op *op, const dolphin_pairs *pairs, uint64_t slots, uint8_t *blocks[]) {
    for (uint64_t left = slots; left; left &= left - 1) {
        unsigned slot = (unsigned)__builtin_ctzll(left);
        uint64_t kword = dolphin_kwords(pairs->leaf)[slot];
        int err = dolphin_kword_is_sound(kword) ? dolphin_batch_read_key(op, kword, &blocks[slot])
                                                : dolphin_fail_corrupt(op->index, pairs->leaf->addr, "leaf");
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
static int collect_long_pairs(dolphin_op *op, const selection *wanted, dolphin_pairs *pairs, uint64_t slots) {
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


/* Replaces each count by the sum of the counts before it. Eight counts are added at once: the sum of all counts is at
 * most 64, so no byte overflows. */
static void sum_counts(uint64_t counts[BUCKETS / 8]) {
    const uint64_t ones = 0x0101010101010101ull;
    uint64_t sum = 0;
    for (unsigned i = 0; i < BUCKETS / 8; i++) {
        uint64_t with_own = counts[i] * ones + sum * ones;
        counts[i] = with_own - counts[i];
        sum = with_own >> 56;
    }
}


/* Distributes the pairs to buckets, which divide the interval from the smallest to the greatest order word, so that
 * afterwards each pair is close to its place. Pairs of one bucket keep the order of their slots. */
static void distribute_pairs(const dolphin_pair *from, unsigned count, dolphin_pair *to) {
    uint64_t counts[BUCKETS / 8] = {0}, least = from[0].order, greatest = from[0].order;
    uint8_t *next = (uint8_t *)counts;
    for (unsigned i = 1; i < count; i++) {
        least = from[i].order < least ? from[i].order : least;
        greatest = from[i].order > greatest ? from[i].order : greatest;
    }
    unsigned top = 63 - (unsigned)__builtin_clzll((greatest - least) | 1), shift = top > 5 ? top - 5 : 0;
    for (unsigned i = 0; i < count; i++)
        next[(from[i].order - least) >> shift]++;
    sum_counts(counts);
    for (unsigned i = 0; i < count; i++)
        to[next[(from[i].order - least) >> shift]++] = from[i];
}


/* Moves the pair before all pairs with greater order words. Returns true if a pair with the same order word precedes
 * it. */
static bool move_pair_down(dolphin_pair *pairs, unsigned at) {
    dolphin_pair pair = pairs[at];
    for (; at > 0 && pairs[at - 1].order > pair.order; at--)
        pairs[at] = pairs[at - 1];
    pairs[at] = pair;
    return at > 0 && pairs[at - 1].order == pair.order;
}


/* Sorts the pairs by their order words, and pairs with equal words by their slots. Returns true if there are equal
 * words. */
static bool sort_by_order_words(dolphin_pairs *pairs) {
    dolphin_pair from[DOLPHIN_SLOTS_MAX], *sorted = pairs->pair;
    bool equal = false;
    if (pairs->count > 4) {
        memcpy(from, sorted, pairs->count * sizeof(from[0]));
        distribute_pairs(from, pairs->count, sorted);
    }
    for (unsigned i = 1; i < pairs->count; i++)
        if (sorted[i - 1].order >= sorted[i].order)
            equal |= move_pair_down(sorted, i);
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


/* Returns true if the sorted pairs belong to the interval of the leaf. If damage has changed a key word, the key may
 * belong to another leaf, and a scan that returned it would return the keys of that leaf out of order. */
static bool pairs_are_in_interval(const dolphin_pairs *pairs) {
    uint64_t ident = dolphin_ident(pairs->leaf);
    unsigned lo = dolphin_ident_lo(ident), hi = dolphin_ident_hi(ident);
    return pairs->count == 0 || ((lo == 0 || pairs->pair[0].order > dolphin_last_order_word(lo - 1)) &&
                                 pairs->pair[pairs->count - 1].order <= dolphin_last_order_word(hi));
}


/* Keeps only the pair that is nearest to the cursor, and all pairs with the same order word. */
static void keep_nearest_pairs(dolphin_pairs *pairs, bool backward) {
    uint64_t nearest = pairs->pair[0].order;
    unsigned kept = 0;
    for (unsigned i = 1; i < pairs->count; i++)
        if (backward ? pairs->pair[i].order > nearest : pairs->pair[i].order < nearest)
            nearest = pairs->pair[i].order;
    for (unsigned i = 0; i < pairs->count; i++)
        if (pairs->pair[i].order == nearest)
            pairs->pair[kept++] = pairs->pair[i];
    pairs->whole = false;
    pairs->count = kept;
}


static void reverse_pairs(dolphin_pair *pairs, unsigned count) {
    for (unsigned i = 0; i < count / 2; i++) {
        dolphin_pair other = pairs[count - 1 - i];
        pairs[count - 1 - i] = pairs[i];
        pairs[i] = other;
    }
}


int dolphin_read_pairs(dolphin_op *op, const dolphin_leaf *leaf, const uint8_t *prefix, unsigned hi,
                       const dolphin_range *range, unsigned most, dolphin_pairs *pairs) {
    uint64_t long_keys = 0;
    selection wanted;
    pairs->leaf = leaf;
    pairs->whole = true;
    pairs->depth = dolphin_ident_depth(dolphin_ident(leaf));
    memcpy(pairs->key, prefix, pairs->depth);
    select_keys(leaf, pairs, hi, range, &wanted);
    wanted.one = range && most == 1;
    int err = collect_inline_pairs(op, &wanted, pairs, &long_keys);
    if (err == 0 && long_keys)
        err = collect_long_pairs(op, &wanted, pairs, long_keys);
    if (err < 0)
        return err;
    if (wanted.one && pairs->count)
        keep_nearest_pairs(pairs, range->backward);
    if (sort_by_order_words(pairs))
        sort_by_whole_keys(pairs);
    if (range && !pairs_are_in_interval(pairs))
        return dolphin_fail_corrupt(op->index, leaf->addr, "leaf");
    if (range && range->backward)
        reverse_pairs(pairs->pair, pairs->count);
    return 0;
}
