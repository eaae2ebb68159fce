/* The range of keys that a scan still has to visit. Both of its bounds belong to the range. A forward scan raises the
 * first key of the range, a backward scan lowers the last one. This bound is the cursor of the scan.
 *
 * A bound need not be a key of the index. The last bound before a string S often consists of a prefix and of bytes FF
 * up to the length of the longest key: no key lies between this bound and S. */
#include "index/dolphin/dolphin.h"


static void set_bound(dolphin_bound *bound, far_bytes bytes) {
    far_bytes_copy(bound->bytes, bytes);
    bound->length = bytes.length;
}


static far_bytes bytes_of(const dolphin_bound *bound) {
    return (far_bytes){bound->bytes, bound->length};
}


/* Appends bytes FF, so that the bound is the last possible key with its present bytes as a prefix. */
static void extend_to_last_key(dolphin_bound *bound) {
    if (bound->length < FAR_KEY_MAX)
        memset(bound->bytes + bound->length, 0xff, FAR_KEY_MAX - bound->length);
    bound->length = FAR_KEY_MAX;
}


/* Replaces the bound by the last possible key before it. Returns false if no key is before it. */
static bool step_back(dolphin_bound *bound) {
    if (bound->length == 0)
        return false;
    if (bound->bytes[bound->length - 1] == 0) /* no key lies between P and P followed by a byte 0 */
        return --bound->length > 0;
    bound->bytes[bound->length - 1]--;
    extend_to_last_key(bound);
    return true;
}


/* Called after a bound has changed. `any` is false if no key satisfies the new bound. */
static void update_empty(dolphin_range *range, bool any) {
    range->empty = !any || far_bytes_compare(bytes_of(&range->first), bytes_of(&range->last)) > 0;
}


void dolphin_range_of_chunk(const far_scan_chunk *scan, dolphin_range *range) {
    range->backward = scan->backward;
    set_bound(&range->first, scan->from);
    if (scan->after || scan->from.length == 0)
        range->first.bytes[range->first.length++] = 0; /* the first possible key after `from` */
    range->last.length = 0;
    bool any = true;
    if (scan->bounded) {
        set_bound(&range->last, scan->to);
        any = scan->to_included || step_back(&range->last);
    } else
        extend_to_last_key(&range->last);
    update_empty(range, any);
}


far_bytes dolphin_range_cursor(const dolphin_range *range) {
    return bytes_of(range->backward ? &range->last : &range->first);
}


/* Raises the first key of the range to the first key beyond the interval. */
static bool raise_first_bound(dolphin_bound *first, unsigned depth, unsigned hi) {
    return dolphin_first_key_beyond(first->bytes, depth, hi, first->bytes, &first->length);
}


/* Lowers the last key of the range to the last key before the interval. A position is the value of a byte plus 1. */
static bool lower_last_bound(dolphin_bound *last, unsigned depth, unsigned lo) {
    last->length = depth;
    if (lo)
        last->bytes[last->length++] = (uint8_t)(lo - 1);
    return step_back(last);
}


void dolphin_range_leave_interval(dolphin_range *range, unsigned depth, unsigned lo, unsigned hi) {
    bool any =
        range->backward ? lower_last_bound(&range->last, depth, lo) : raise_first_bound(&range->first, depth, hi);
    update_empty(range, any);
}


void dolphin_range_leave_key(dolphin_range *range, far_bytes key) {
    dolphin_bound *cursor = range->backward ? &range->last : &range->first;
    bool any = true;
    set_bound(cursor, key);
    if (range->backward)
        any = step_back(cursor);
    else
        cursor->bytes[cursor->length++] = 0;
    update_empty(range, any);
}


bool dolphin_range_enter_prefix(dolphin_range *range, far_bytes prefix) {
    int order = far_bytes_compare(dolphin_range_cursor(range), prefix);
    if (range->backward ? order < 0 : order > 0)
        return false;
    set_bound(range->backward ? &range->last : &range->first, prefix);
    if (range->backward)
        extend_to_last_key(&range->last);
    update_empty(range, true);
    return true;
}


unsigned dolphin_range_end_position(const dolphin_range *range, unsigned depth) {
    far_bytes end = bytes_of(range->backward ? &range->first : &range->last), cursor = dolphin_range_cursor(range);
    if (end.length < depth || memcmp(end.data, cursor.data, depth) != 0)
        return range->backward ? 0 : DOLPHIN_LAST_POSITION;
    return dolphin_position(end, depth);
}


/* Returns true if the bound has the prefix, which is that of a leaf in the range. If it does not have the prefix, it is
 * before or after all keys of the leaf. */
static bool bound_has_prefix(const dolphin_bound *bound, const uint8_t *prefix, unsigned depth) {
    return bound->length >= depth && memcmp(bound->bytes, prefix, depth) == 0;
}


void dolphin_range_order_words(const dolphin_range *range, const uint8_t *prefix, unsigned depth, uint64_t *first,
                               uint64_t *last) {
    *first = bound_has_prefix(&range->first, prefix, depth) ? dolphin_order_word(bytes_of(&range->first), depth) : 0;
    *last =
        bound_has_prefix(&range->last, prefix, depth) ? dolphin_order_word(bytes_of(&range->last), depth) : UINT64_MAX;
}


bool dolphin_range_contains(const dolphin_range *range, far_bytes key) {
    return far_bytes_compare(key, bytes_of(&range->first)) >= 0 && far_bytes_compare(key, bytes_of(&range->last)) <= 0;
}
