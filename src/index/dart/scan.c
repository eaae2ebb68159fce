/* Scans: a tour from the first key on, whose pairs are given until it is enough. Frozen contents of nodes met on the
 * way are used as they are: each was current when its node was frozen or seen linked, which is inside the call. */
#include "index/dart/tour.h"


int dart_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    dart_tour tour = {.from = scan->from,
                      .bounded = scan->bounded,
                      .to = scan->to,
                      .reads = DART_READ_LEAVES,
                      .express = true,
                      .wanted = scan->wanted ? scan->wanted : 1};
    dart_item leaf;
    int result, enough = 0;
    while ((result = dart_tour_next(t, index, &tour, &leaf)) == 1) {
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
