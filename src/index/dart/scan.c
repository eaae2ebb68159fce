/* The operation scan, forward and backward: a traversal from the first wanted key on, until the consumer has enough
 * pairs. A scan uses the
 * words of frozen nodes without further checks. It read the pointer to each node at a moment when the node was linked.
 * A word that was frozen before that moment was still current then, and a word that was frozen later was current when
 * it was frozen; both moments are inside this call. */
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


int dart_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    dart_traversal traversal = {.range = {.from = scan->from,
                                          .bounded = scan->bounded,
                                          .to_included = scan->to_included,
                                          .to = scan->to},
                                .backward = scan->backward,
                                .reads = DART_READ_LEAVES,
                                .express = true,
                                .wanted = scan->wanted ? scan->wanted : 1};
    dart_item leaf;
    int result, enough = 0;
    while ((result = dart_traversal_next(t, index, &traversal, &leaf)) == 1) {
        unsigned klen = dart_leaf_klen(leaf.image[0]);
        far_bytes key = {leaf.image + 1, klen},
                  value = {(const char *)(leaf.image + 1) + klen, dart_leaf_vlen(leaf.image[0])};
        if (leaf_is_wanted(&leaf, key) && (enough = far_scan_give(scan, key, value)) != 0)
            break;
    }
    if (result < 0 || enough < 0)
        return result < 0 ? result : enough;
    scan->end = enough == 0;
    return 0;
}
