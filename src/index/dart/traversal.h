/* A traversal visits the leaves of the tree in key order, from a given key on. Scans, walks, checks and counts use it.
 *
 * Its state is the frontier: a list, in key order, of the slots that are still to be visited. A round reads, in one
 * batch, the inner nodes and leaves near the start of the frontier, and replaces each inner node by its children. */
#ifndef FAR_INDEX_DART_TRAVERSAL_H
#define FAR_INDEX_DART_TRAVERSAL_H

#include "index/dart/dart.h"

/* An entry of the frontier: a slot of a node. All keys below the slot begin with the node's prefix and the slot's
 * symbol. */
typedef struct dart_item {
    struct dart_item *next;
    /* the slot's word; here the frozen bit has another meaning: the traversal sets it in its copy as a mark
     * (read_long_leaves) */
    uint64_t word;
    const dart_header *parent; /* header of the node that contains the slot */
    unsigned symbol;
    bool contains_start;   /* the first wanted key lies strictly inside this subtree, so a part of it is not wanted */
    const far_bytes *from; /* lower bound of the wanted keys in this subtree; used only if contains_start */
    uint64_t *image;       /* image of the leaf or inner node that the slot names; NULL: not read yet */
} dart_item;

/* The part of a leaf that is read: nothing (the slot suffices), the lengths and the key, or the whole leaf. */
typedef enum { DART_READ_SLOTS, DART_READ_KEYS, DART_READ_LEAVES } dart_leaf_part;

typedef struct dart_traversal {
    /* Set by the caller. */
    far_bytes from;
    bool bounded;
    far_bytes to; /* if bounded: the first key that is not wanted */
    dart_leaf_part reads;
    size_t wanted; /* number of wanted leaves; nodes are read ahead for this many leaves */
    bool express;  /* the traversal may start at a node that the skip table names, instead of the root */
    /* Called for each inner node that was read, in no certain order; may be NULL. */
    int (*visit_node)(far_task *t, far_index *index, const dart_view *view, const dart_item *item, void *ctx);
    void *ctx;
    /* Private. */
    dart_item *frontier;
    struct dart_read_ahead *read_ahead; /* nodes that were read before a slot named them (cache_scan.h); or NULL */
    bool started;
    /* Header of the node at which the traversal started. When its subtree is exhausted, the traversal continues with
     * the first key after its prefix. NULL: it started at the root. */
    const dart_header *start_node;
} dart_traversal;

/* Returns 1 and the next leaf, with an image of the part that `reads` selects; 0 if there are no more leaves; or an
 * error. The caller holds one pin from the first call to the last. */
int dart_traversal_next(far_task *t, far_index *index, dart_traversal *traversal, dart_item *leaf);
/* Computes the least key that may be stored below an item, and returns its length. `place` has room for max_key + 1
 * bytes. */
size_t dart_item_first_key(const dart_item *item, uint8_t *place);
/* True if the lengths in a leaf's header are consistent with each other and with the slot word that names the leaf. */
bool dart_leaf_is_sound(const far_index *index, uint64_t word, uint64_t header);

#endif
