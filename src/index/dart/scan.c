/* The operation scan, forward and backward: a traversal from the first wanted key on, until the consumer has enough
 * pairs. A scan uses the
 * words of frozen nodes without further checks. It read the pointer to each node at a moment when the node was linked.
 * A word that was frozen before that moment was still current then, and a word that was frozen later was current when
 * it was frozen; both moments are inside this call. */
#include "index/common/results.h"
#include "index/dart/traversal.h"


/* Returns whether the key of a leaf is in its range. Only a leaf whose slot contains a bound needs the comparison. */
static bool leaf_is_wanted(const dart_item *leaf, far_bytes key) {
    const dart_range *range = leaf->range;
    if (leaf->contains_from && far_bytes_compare(key, range->from) < 0)
        return false;
    if (!leaf->contains_to)
        return true;
    int order = far_bytes_compare(key, range->to);
    return order < 0 || (order == 0 && range->to_included);
}


/* Gives a leaf to the consumer of the scan. The traversal visits the leaves of the range in key order, so only the
 * first wanted leaf must be compared with the bound at which the scan starts. Returns as far_scan_give does. */
static inline int give_leaf(far_scan_chunk *scan, const dart_item *leaf, bool *any) {
    unsigned klen = dart_leaf_klen(leaf->image[0]);
    far_bytes key = {leaf->image + 1, klen},
              value = {(const char *)(leaf->image + 1) + klen, dart_leaf_vlen(leaf->image[0])};
    if ((leaf->contains_from || leaf->contains_to) && !leaf_is_wanted(leaf, key))
        return 0;
    if (*any)
        return far_scan_add(scan, key, value);
    *any = true;
    return far_scan_give(scan, key, value);
}


/* Returns whether the last leaf of a chunk is beyond the start of the range, so that the next chunk starts further on.
 * This is always so, except in damaged memory. */
static bool leaf_is_beyond_start(const far_scan_chunk *scan, const dart_item *leaf) {
    far_bytes key = {leaf->image + 1, dart_leaf_klen(leaf->image[0])};
    if (!scan->backward)
        return far_bytes_compare(key, scan->from) >= 0;
    return !scan->bounded || far_bytes_compare(key, scan->to) <= 0;
}


int dart_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    dart_traversal traversal = {
        .range = {.from = scan->from, .bounded = scan->bounded, .to_included = scan->to_included, .to = scan->to},
        .backward = scan->backward,
        .reads = DART_READ_LEAVES,
        .express = true,
        .wanted = scan->wanted ? scan->wanted : 1};
    const dart_item *leaf = NULL;
    int result = 0, enough = 0;
    bool any = false;
    while (enough == 0 && (result = dart_traversal_next(t, index, &traversal, &leaf)) == 1)
        enough = give_leaf(scan, leaf, &any);
    if (enough < 0 || result < 0)
        return enough < 0 ? enough : result;
    if (enough && !leaf_is_beyond_start(scan, leaf))
        return dart_fail_corrupt(index, "subtree", dart_of(index)->root);
    scan->end = enough == 0;
    return 0;
}
