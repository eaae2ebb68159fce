/* A traversal visits the leaves of the tree in key order, in ascending or descending order. Scans, walks, checks and
 * counts use it.
 *
 * Its state is the frontier: a list, in the order of the traversal, of what is still to be visited. An entry is either
 * a slot that was taken from its node, or the rest of a node: the children that were not taken yet (children.h). A
 * traversal takes only as many children as it needs, so it need not put all children of a large node in order. */
#ifndef FAR_INDEX_DART_TRAVERSAL_H
#define FAR_INDEX_DART_TRAVERSAL_H

#include "index/dart/children.h"

/* An entry of the frontier: the rest of a node, or a slot of a node, which leads to an inner node or a leaf. All keys
 * below a slot begin with the node's prefix and the slot's symbol. */
typedef enum { DART_ITEM_REST, DART_ITEM_NODE, DART_ITEM_LEAF } dart_item_kind;

typedef struct dart_item {
    struct dart_item *next;
    uint64_t word;             /* the slot's word, without the frozen bit */
    const dart_header *parent; /* header of the node that contains the slot */
    const dart_range *range;   /* the wanted keys of this subtree */
    union {
        uint64_t *image; /* image of the leaf or inner node that the slot names; NULL: not read yet */
        dart_rest *rest; /* DART_ITEM_REST; the fields above except `next` are then not set */
    };
    uint16_t rank; /* rank of the slot's symbol */
    uint8_t kind;
    /* the first key of the range, or its upper bound, is strictly inside this subtree, so a part of it is not wanted */
    bool contains_from, contains_to;
    bool whole; /* the leaf was read as a whole, although its size code does not express its length */
} dart_item;

/* The part of a leaf that is read: nothing (the slot suffices), the lengths and the key, or the whole leaf. */
typedef enum { DART_READ_SLOTS, DART_READ_KEYS, DART_READ_LEAVES } dart_leaf_part;

typedef struct dart_traversal {
    /* Set by the caller. */
    dart_range range; /* the wanted keys; a leaf may lie outside if contains_from or contains_to is set in its item */
    bool backward;    /* visit the leaves in descending order */
    dart_leaf_part reads;
    size_t wanted; /* number of wanted leaves; nodes are read ahead for this many leaves */
    bool express;  /* the traversal may start at a node that the skip table names, instead of the root */
    /* Called for each inner node that the traversal has reached, in no certain order; may be NULL. */
    int (*visit_node)(far_task *t, far_index *index, const dart_view *view, const dart_item *item, void *ctx);
    void *ctx;
    /* Private. */
    dart_item *frontier, *free_items;
    dart_rest *free_rests;
    uint64_t *leaf_memory; /* memory of the image of the current leaf, if objects are read one by one; or NULL */
    struct dart_read_ahead *read_ahead; /* nodes that were read before a slot named them (cache_scan.h); or NULL */
    bool started;
    bool one_by_one; /* each object is read when it is needed, because its memory is mapped; no batches */
    /* Header of the node at which the traversal started. When its subtree is exhausted, the traversal continues with
     * the keys beyond its prefix. NULL: it started at the root. */
    const dart_header *start_node;
} dart_traversal;

/* Returns 1 and the next leaf, with an image of the part that `reads` selects; 0 if there are no more leaves; or an
 * error. *leaf is valid until the next call. The caller holds one pin from the first call to the last. */
int dart_traversal_next(far_task *t, far_index *index, dart_traversal *traversal, const dart_item **leaf);
/* Computes the least key that may follow the leaves of a forward traversal that were visited, and stores it in `place`,
 * which has room for max_key + 1 bytes. Returns false if no leaf follows. The traversal has read the whole root. */
bool dart_traversal_next_key(dart_traversal *traversal, uint8_t *place, size_t *length);

/* True if the lengths in a leaf's header are consistent with each other and with the slot word that names the leaf. */
static inline bool dart_leaf_is_sound(const far_index *index, uint64_t word, uint64_t header) {
    unsigned code = dart_leaf_code(word);
    return code != 0 && dart_leaf_klen(header) <= dart_of(index)->max_key && dart_leaf_vlen(header) <= FAR_VALUE_MAX &&
           dart_leaf_used(header) <= dart_leaf_bytes(code, header);
}


/* ---- For traversal_start.c ---- */

static inline const far_bytes *dart_traversal_first_key(const dart_traversal *traversal) {
    return traversal->backward ? &traversal->range.to : &traversal->range.from;
}

/* Fills the frontier of a traversal that begins. */
int dart_traversal_start(far_task *t, far_index *index, dart_traversal *traversal);
/* Called when the subtree of the start node is exhausted: prepares the traversal to start again, at the root, with the
 * keys beyond the prefix of the start node. Returns 1, 0 if no wanted keys follow, or an error. */
int dart_traversal_leave_start_node(far_task *t, dart_traversal *traversal);
/* Puts the children of a node that was read into an empty place of the frontier. */
dart_item *dart_traversal_add_rest(far_task *t, dart_traversal *traversal, dart_item **at, const dart_view *view,
                                   const dart_range *range, dart_clip clip);
/* Stores in the scan cache which inner children a scan in batches has seen in a node. */
void dart_traversal_remember(far_task *t, const far_index *index, const dart_view *view);
/* Returns the number of leaves for which nodes are read ahead. */
size_t dart_read_ahead_goal(const dart_traversal *traversal);

#endif
