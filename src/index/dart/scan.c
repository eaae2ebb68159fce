/* The operation scan: a traversal from the first wanted key on, until the consumer has enough pairs. A scan uses the
 * words of frozen nodes without further checks. It read the pointer to each node at a moment when the node was linked.
 * A word that was frozen before that moment was still current then, and a word that was frozen later was current when
 * it was frozen; both moments are inside this call. */
#include "index/dart/traversal.h"


int dart_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    dart_traversal traversal = {.from = scan->from,
                                .bounded = scan->bounded,
                                .to = scan->to,
                                .reads = DART_READ_LEAVES,
                                .express = true,
                                .wanted = scan->wanted ? scan->wanted : 1};
    dart_item leaf;
    int result, enough = 0;
    while ((result = dart_traversal_next(t, index, &traversal, &leaf)) == 1) {
        unsigned klen = dart_leaf_klen(leaf.image[0]);
        far_bytes key = {leaf.image + 1, klen},
                  value = {(const char *)(leaf.image + 1) + klen, dart_leaf_vlen(leaf.image[0])};
        if ((enough = far_scan_give(scan, key, value)) != 0)
            break;
    }
    if (result < 0 || enough < 0)
        return result < 0 ? result : enough;
    scan->end = enough == 0;
    return 0;
}
