/* The children of one node in key order (children.h). The slots of most nodes have no order. A bitmap of the symbols'
 * ranks brings them into order; for a large node it is made for a part of the ranks at a time, because a scan often
 * needs few children of a large node. */
#include "index/dart/children.h"

#include <string.h>

#define SMALL_NODE   16u /* the bitmap of a node with at most this many slots is made for all ranks at once */
#define RANKS_AT_ONCE 64u


/* Removes the children whose keys all precede `from`. */
static void clip_from(dart_rest *rest, far_bytes from) {
    far_bytes prefix = {rest->view.header->prefix, rest->view.node.depth};
    unsigned same = dart_common_prefix(prefix, from);
    if (same < prefix.length) {
        if (same < from.length && ((const uint8_t *)from.data)[same] > rest->view.header->prefix[same])
            rest->low = rest->high;
        return;
    }
    rest->low = dart_symbol_rank(dart_symbol(from, same));
    if (same + 1 < from.length)
        rest->from_rank = rest->low;
}


/* Removes the children whose keys all follow the upper bound of the range, or are equal to it if it is excluded. */
static void clip_to(dart_rest *rest, far_bytes to, bool included) {
    far_bytes prefix = {rest->view.header->prefix, rest->view.node.depth};
    unsigned same = dart_common_prefix(prefix, to);
    if (same < prefix.length) {
        if (same == to.length || ((const uint8_t *)to.data)[same] < rest->view.header->prefix[same])
            rest->high = 0;
        return;
    }
    unsigned rank = dart_symbol_rank(dart_symbol(to, same));
    bool inside = included || same + 1 < to.length; /* keys with this symbol may be in the range */
    rest->high = rank + inside;
    if (inside && same < to.length)
        rest->to_rank = rank;
}


void dart_rest_init(dart_rest *rest, const dart_view *view, const dart_range *range, bool contains_from,
                    bool contains_to, bool backward) {
    rest->view = *view;
    rest->range = range;
    rest->low = rest->read_low = 0;
    rest->high = rest->read_high = DART_RANKS;
    rest->from_rank = rest->to_rank = DART_NO_RANK;
    rest->backward = backward;
    rest->ordered_low = rest->ordered_high = 0;
    rest->ordered_at_once = view->count <= SMALL_NODE ? DART_RANKS : RANKS_AT_ONCE;
    if (contains_from)
        clip_from(rest, range->from);
    if (contains_to && range->bounded && rest->low < rest->high)
        clip_to(rest, range->to, range->to_included);
}


/* No key is empty, so the root has no child for the symbol END, and the other slots of an N256 are in the order of the
 * ranks. */
void dart_rest_set_unread(dart_rest *rest) {
    rest->low += rest->low == 0;
    rest->read_low = rest->read_high = rest->backward ? rest->high : rest->low;
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
    if (count > rest->high - rest->low)
        count = rest->high - rest->low;
    if (rest->backward)
        dart_rest_add_read(t, rest, rest->high - count, rest->high);
    else
        dart_rest_add_read(t, rest, rest->low, rest->low + count);
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
    for (unsigned i = 0; i < rest->view.count; i++) {
        unsigned rank = dart_symbol_rank(dart_word_symbol(slots[i]));
        if (dart_is_child(slots[i]) && rank - low < high - low)
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


static dart_rest_state settle_forward(dart_rest *rest) {
    while (rest->low < rest->high) {
        if (rest->low >= rest->read_high || rest->low < rest->read_low)
            return DART_REST_UNREAD;
        if (rest->low - rest->ordered_low >= rest->ordered_high - rest->ordered_low)
            order_ranks(rest, rest->low, rest->low + rest->ordered_at_once);
        unsigned end = rest->high < rest->ordered_high ? rest->high : rest->ordered_high;
        if ((rest->low = first_rank(rest, rest->low, end)) < end)
            return DART_REST_READY;
    }
    return DART_REST_EMPTY;
}


static dart_rest_state settle_backward(dart_rest *rest) {
    while (rest->low < rest->high) {
        unsigned last = rest->high - 1, most = rest->ordered_at_once;
        if (last >= rest->read_high || last < rest->read_low)
            return DART_REST_UNREAD;
        if (last - rest->ordered_low >= rest->ordered_high - rest->ordered_low)
            order_ranks(rest, rest->high > most ? rest->high - most : 0, rest->high);
        unsigned start = rest->low > rest->ordered_low ? rest->low : rest->ordered_low;
        if ((rest->high = end_of_last_rank(rest, start, rest->high)) > start)
            return DART_REST_READY;
    }
    return DART_REST_EMPTY;
}


dart_rest_state dart_rest_settle(dart_rest *rest) {
    return rest->backward ? settle_backward(rest) : settle_forward(rest);
}


unsigned dart_rest_next_rank(const dart_rest *rest) {
    return rest->backward ? rest->high - 1 : rest->low;
}


uint64_t dart_rest_take(dart_rest *rest) {
    unsigned rank = rest->backward ? --rest->high : rest->low++;
    return dart_thawed(rest->view.slots[rest->slot_of[rank]]);
}


unsigned dart_rest_inner_children(dart_rest *rest, uint64_t words[DART_RANKS]) {
    unsigned count = 0;
    rest->ordered_at_once = DART_RANKS;
    order_ranks(rest, 0, DART_RANKS);
    for (unsigned i = 0; i < sizeof(rest->present) / 8; i++)
        for (uint64_t left = rest->present[i]; left; left &= left - 1) {
            uint64_t word = rest->view.slots[rest->slot_of[i * 64 + (unsigned)__builtin_ctzll(left)]];
            if (dart_is_inner(word))
                words[count++] = dart_thawed(word);
        }
    return count;
}
