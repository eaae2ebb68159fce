/* Contains the rules that concern one scan alone, and the translation of its statement about a key into a get.
 */
#include "verify/verify.h"


/* Compares two keys in the direction of the scan. The result is negative if the scan must return `a` before `b`. */
static int compare_in_direction(const far_history_op *scan, far_bytes a, far_bytes b) {
    return scan->reverse ? far_bytes_compare(b, a) : far_bytes_compare(a, b);
}


const char *far_verify_scan(const far_history_op *scan) {
    for (size_t i = 0; i < scan->pair_count; i++) {
        far_bytes key = scan->pairs[i].key;
        if (far_bytes_compare(key, scan->key) < 0)
            return "a key before the start of the range";
        if (scan->has_to && far_bytes_compare(key, scan->to) >= 0)
            return "a key after the end of the range";
        int order = i ? compare_in_direction(scan, scan->pairs[i - 1].key, key) : -1;
        if (order == 0)
            return "a key given twice";
        if (order > 0)
            return "keys out of order";
    }
    if (scan->limit && scan->pair_count > scan->limit)
        return "more pairs than the limit";
    if (scan->end != FAR_HISTORY_NEVER && scan->result >= 0 && (uint64_t)scan->result != scan->pair_count)
        return "a result that is not the number of pairs";
    return NULL;
}


/* Finds the pair of this key in the scan by binary search; returns NULL if there is none. The pairs are in order,
 * because a scan with keys out of order was reported as a violation before. */
static const far_history_pair *find_pair(const far_history_op *scan, far_bytes key) {
    size_t low = 0, high = scan->pair_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = compare_in_direction(scan, scan->pairs[middle].key, key);
        if (order == 0)
            return &scan->pairs[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}


static bool scan_covers(const far_history_op *scan, far_bytes key) {
    if (scan->end == FAR_HISTORY_NEVER || scan->result < 0)
        return false;
    if (far_bytes_compare(key, scan->key) < 0 || (scan->has_to && far_bytes_compare(key, scan->to) >= 0))
        return false;
    if (scan->limit == 0 || scan->pair_count < scan->limit)
        return true;
    return compare_in_direction(scan, key, scan->pairs[scan->pair_count - 1].key) <= 0;
}


bool far_verify_scan_as_get(const far_history_op *scan, far_bytes key, far_linear_op *as_get) {
    const far_history_pair *pair = find_pair(scan, key);
    if (!pair && !scan_covers(scan, key))
        return false;
    *as_get = (far_linear_op){.op = FAR_OP_GET,
                              .of_scan = true,
                              .reverse = scan->reverse,
                              .client = scan->client,
                              .result = pair ? FAR_OK : FAR_ERR_NOT_FOUND,
                              .start = scan->start,
                              .end = scan->end};
    if (pair) {
        as_get->has_value = true;
        as_get->value = pair->value;
    }
    return true;
}
