/* The children of one node in key order (children.h). The slots of most nodes have no order. A bitmap of the symbols'
 * ranks brings them into order; for a large node it is made for a part of the ranks at a time, because a scan often
 * needs few children of a large node. */
#include "index/dart/children.h"

#include <string.h>

#define RANKS_AT_ONCE 16u /* minimal number of ranks for which the bitmap is made at a time */


/* Removes the children whose keys all precede `from`. */
static void clip_from(dart_clip *clip, const dart_header *header, far_bytes from) {
    far_bytes prefix = {header->prefix, dart_header_depth(header)};
    unsigned same = dart_common_prefix(prefix, from);
    if (same < prefix.length) {
        if (same < from.length && ((const uint8_t *)from.data)[same] > header->prefix[same])
            clip->low = clip->high;
        return;
    }
    clip->low = dart_symbol_rank(dart_symbol(from, same));
    if (same + 1 < from.length)
        clip->from_rank = clip->low;
}


/* Removes the children whose keys all follow the upper bound of the range, or are equal to it if it is excluded. */
static void clip_to(dart_clip *clip, const dart_header *header, far_bytes to, bool included) {
    far_bytes prefix = {header->prefix, dart_header_depth(header)};
    unsigned same = dart_common_prefix(prefix, to);
    if (same < prefix.length) {
        if (same == to.length || ((const uint8_t *)to.data)[same] < header->prefix[same])
            clip->high = 0;
        return;
    }
    unsigned rank = dart_symbol_rank(dart_symbol(to, same));
    bool inside = included || same + 1 < to.length; /* keys with this symbol may be in the range */
    clip->high = rank + inside;
    if (inside && same < to.length)
        clip->to_rank = rank;
}


dart_clip dart_clip_children(const dart_header *header, const dart_range *range, bool contains_from, bool contains_to) {
    dart_clip clip = {0, DART_RANKS, DART_NO_RANK, DART_NO_RANK};
    if (contains_from)
        clip_from(&clip, header, range->from);
    if (contains_to && range->bounded && clip.low < clip.high)
        clip_to(&clip, header, range->to, range->to_included);
    return clip;
}


void dart_rest_init(dart_rest *rest, const dart_view *view, const dart_range *range, dart_clip clip, bool backward,
                    size_t wanted) {
    rest->view = *view;
    rest->range = range;
    rest->clip = clip;
    rest->read_low = 0;
    rest->read_high = DART_RANKS;
    rest->backward = backward;
    rest->ordered_low = rest->ordered_high = 0;
    rest->ordered_at_once = wanted < DART_RANKS ? RANKS_AT_ONCE + 3 * (unsigned)wanted / 2 : DART_RANKS;
}


/* No key is empty, so the root has no child for the symbol END, and the other slots of an N256 are in the order of the
 * ranks. */
void dart_rest_set_unread(dart_rest *rest) {
    rest->clip.low += rest->clip.low == 0;
    rest->read_low = rest->read_high = rest->backward ? rest->clip.high : rest->clip.low;
}


void dart_rest_add_read(far_task *t, dart_rest *rest, unsigned low, unsigned high) {
    if (low >= high)
        return;
    unsigned first = dart_rank_symbol(low);
    far_read(t, dart_slot_addr(&rest->view.node, first), rest->view.slots + first, 8ull * (high - low));
    rest->read_low = low < rest->read_low ? low : rest->read_low;
    rest->read_high = high > rest->read_high ? high : rest->read_high;
}


void dart_rest_add_next_read(far_task *t, dart_rest *rest, unsigned count) {
    if (count > rest->clip.high - rest->clip.low)
        count = rest->clip.high - rest->clip.low;
    if (rest->backward)
        dart_rest_add_read(t, rest, rest->clip.high - count, rest->clip.high);
    else
        dart_rest_add_read(t, rest, rest->clip.low, rest->clip.low + count);
}


static inline void set_present(dart_rest *rest, unsigned rank, unsigned slot) {
    rest->present[rank / 64] |= 1ull << rank % 64;
    rest->slot_of[rank] = (uint16_t)slot;
}


/* Makes the bitmap for the ranks [low, high), as far as their slots were read. */
static void order_ranks(dart_rest *rest, unsigned low, unsigned high) {
    const uint64_t *slots = rest->view.slots;
    memset(rest->present, 0, sizeof(rest->present));
    rest->ordered_low = low = low > rest->read_low ? low : rest->read_low;
    rest->ordered_high = high = high < rest->read_high ? high : rest->read_high;
    if (rest->view.node.type == DART_N256) {
        for (unsigned rank = low; rank < high; rank++)
            if (dart_is_child(slots[dart_rank_symbol(rank)]))
                set_present(rest, rank, dart_rank_symbol(rank));
        return;
    }
    /* This comparison excludes most slots. It takes END for the symbol 0, which has the rank 1. */
    unsigned first = low > 1 ? low : 1, span = (high > 2 ? high : 2) - first;
#pragma GCC unroll 4
    for (unsigned i = 0, count = rest->view.count; i < count; i++) {
        if ((unsigned)(slots[i] >> 56) + 1 - first >= span || !dart_is_child(slots[i]))
            continue;
        unsigned rank = dart_symbol_rank(dart_word_symbol(slots[i]));
        if (rank - low < high - low)
            set_present(rest, rank, i);
    }
}


/* Returns the least rank in [low, high) that is in the bitmap, or `high`. */
static unsigned first_rank(const dart_rest *rest, unsigned low, unsigned high) {
    uint64_t word = rest->present[low / 64] >> low % 64 << low % 64;
    unsigned i = low / 64;
    while (!word && ++i <= (high - 1) / 64)
        word = rest->present[i];
    unsigned rank = word ? i * 64 + (unsigned)__builtin_ctzll(word) : high;
    return rank < high ? rank : high;
}


/* Returns 1 plus the greatest rank in [low, high) that is in the bitmap, or `low`. */
static unsigned end_of_last_rank(const dart_rest *rest, unsigned low, unsigned high) {
    unsigned i = (high - 1) / 64, unused = 63 - (high - 1) % 64;
    uint64_t word = rest->present[i] << unused >> unused;
    while (!word && i-- > low / 64)
        word = rest->present[i];
    unsigned end = word ? i * 64 + 64 - (unsigned)__builtin_clzll(word) : low;
    return end > low ? end : low;
}


static inline dart_rest_state settle_forward(dart_rest *rest) {
    while (rest->clip.low < rest->clip.high) {
        if (rest->clip.low >= rest->read_high || rest->clip.low < rest->read_low)
            return DART_REST_UNREAD;
        if (rest->clip.low - rest->ordered_low >= rest->ordered_high - rest->ordered_low)
            order_ranks(rest, rest->clip.low, rest->clip.low + rest->ordered_at_once);
        unsigned end = rest->clip.high < rest->ordered_high ? rest->clip.high : rest->ordered_high;
        if ((rest->clip.low = first_rank(rest, rest->clip.low, end)) < end)
            return DART_REST_READY;
    }
    return DART_REST_EMPTY;
}


static dart_rest_state settle_backward(dart_rest *rest) {
    while (rest->clip.low < rest->clip.high) {
        unsigned last = rest->clip.high - 1, most = rest->ordered_at_once;
        if (last >= rest->read_high || last < rest->read_low)
            return DART_REST_UNREAD;
        if (last - rest->ordered_low >= rest->ordered_high - rest->ordered_low)
            order_ranks(rest, rest->clip.high > most ? rest->clip.high - most : 0, rest->clip.high);
        unsigned start = rest->clip.low > rest->ordered_low ? rest->clip.low : rest->ordered_low;
        if ((rest->clip.high = end_of_last_rank(rest, start, rest->clip.high)) > start)
            return DART_REST_READY;
    }
    return DART_REST_EMPTY;
}


dart_rest_state dart_rest_settle_slowly(dart_rest *rest) {
    return rest->backward ? settle_backward(rest) : settle_forward(rest);
}


unsigned dart_inner_children(const dart_view *view, uint64_t words[DART_RANKS]) {
    unsigned count = 0;
    for (unsigned i = 0; i < view->count; i++)
        count += dart_is_inner(view->slots[i]);
    if (count == 0)
        return 0;
    dart_rest all;
    dart_rest_init(&all, view, NULL, (dart_clip){0, DART_RANKS, 0, 0}, false, DART_RANKS);
    count = 0;
    while (dart_rest_settle(&all) == DART_REST_READY) {
        uint64_t word = dart_rest_take(&all);
        if (dart_is_inner(word))
            words[count++] = word;
    }
    return count;
}
