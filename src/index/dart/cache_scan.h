/* The scan cache remembers which inner children earlier scans saw in each node. With it, a scan reads several levels of
 * the tree in one batch: together with a node it reads the nodes that the cache names below it (read-ahead).
 * cache_scan.c proves that this is exact. Only traversal.c and traversal_start.c call these
 * functions. */
#ifndef FAR_INDEX_DART_CACHE_SCAN_H
#define FAR_INDEX_DART_CACHE_SCAN_H

#include "index/dart/dart.h"

#define DART_READ_AHEAD_NODES 128u

typedef struct dart_read_ahead_node {
    dart_node node;
    uint64_t *image; /* image of the node; NULL until the READ of the node was added to the batch */
} dart_read_ahead_node;

typedef struct dart_read_ahead {   /* the nodes that one batch reads ahead */
    struct dart_read_ahead *older; /* the nodes that earlier batches of the traversal have read ahead; or NULL */
    bool backward;                 /* nodes are collected in descending key order */
    unsigned count, added;         /* number of collected nodes; number of READs that were added to the batch */
    size_t expected_leaves;        /* estimated number of leaves below the collected nodes */
    size_t wanted_leaves;          /* collecting stops at this number of leaves */
    unsigned last_rank; /* rank of the child of the node passed to dart_read_ahead_collect that was collected last */
    dart_read_ahead_node nodes[DART_READ_AHEAD_NODES];
    uint8_t table[4 * DART_READ_AHEAD_NODES]; /* hash table by address: 1 + index in nodes; 0: unused position */
} dart_read_ahead;

/* Allocates an empty list in scratch memory. Returns NULL if there is no memory or no scan cache. */
dart_read_ahead *dart_read_ahead_new(far_task *t, const far_index *index, size_t wanted_leaves, bool backward);
/* Collects the nodes that the cache names below a node, in the order of the traversal. The caller reads the node itself in the same
 * batch. from, to: only keys of this range are wanted (NULL: unbounded); both keys begin with the node's prefix. */
void dart_read_ahead_collect(far_task *t, const far_index *index, dart_read_ahead *ahead, const dart_node *node,
                             const far_bytes *from, const far_bytes *to);
/* Adds the READs of the collected nodes to the batch. Returns 0 or an error. */
int dart_read_ahead_add_reads(far_task *t, const far_index *index, dart_read_ahead *ahead);
/* Called after the batch, with a node that a slot word read in this operation names. Returns the node's image, or NULL
 * if neither this batch nor an older one has read the node ahead. */
uint64_t *dart_read_ahead_image(const dart_read_ahead *ahead, const dart_node *node);
/* Stores in the scan cache that the node's inner children are these words, in key order. The caller read the words in
 * this operation, at a moment when the node was linked. */
void dart_scan_cache_put(far_task *t, const far_index *index, const dart_node *node, const uint64_t *words,
                         unsigned count);
/* Returns the number of children that a node of this type has on average. */
unsigned dart_expected_children(dart_node_type type);

#endif
