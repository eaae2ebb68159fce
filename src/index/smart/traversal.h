/* A traversal visits all leaves of a range of keys in key order. scan.c implements it, for scans and for walk, check
 * and usage (check.c); scan_readahead.c READs in advance the nodes and leaves that the cache names.
 *
 * A traversal keeps a stack of items. Each item is a slot word that the traversal READ from a linked node; the item
 * that follows in key order is on top. If a node is among the next items, the traversal READs it and puts its children
 * in its place; otherwise it READs the next leaves and calls each_leaf for them. */
#ifndef FAR_INDEX_SMART_TRAVERSAL_H
#define FAR_INDEX_SMART_TRAVERSAL_H

#include "index/smart/smart.h"

/* One entry of the stack. */
typedef struct smart_item {
    uint64_t word;  /* slot word that names a node or a leaf */
    far_addr slot;  /* the slot from which the word was READ */
    uint64_t fp;    /* prefix hash of the node that contains the slot */
    unsigned depth; /* depth of the node that contains the slot */
    bool on_path;   /* the subtree may contain the first key of the range */
    bool on_end;    /* the subtree may contain the key before which the range ends */
    /* index of the first of the nodes in smart_traversal.found_nodes that are reported with this item; -1: none */
    int found;
} smart_item;

/* A node that is reported to each_node_once when the first leaf below it is visited. If several traversals cover the
 * tree in slices, this makes exactly one of them report the node, although slices meet in the middle of a node. */
typedef struct smart_found_node {
    far_addr addr;
    unsigned layout;
    int next; /* index of the next node in the list of the same item; -1: none */
} smart_found_node;

typedef struct smart_traversal smart_traversal;

/* Results of a traversal and of its callbacks, in addition to an error. */
enum {
    SMART_TRAVERSAL_CONTINUES, /* callback: the traversal must continue; traversal: it reached the end of the range */
    SMART_TRAVERSAL_STOPS, /* callback: the traversal must stop; traversal: it stopped before the end (see run_again) */
};

struct smart_traversal {
    /* Fields that the caller sets. */
    smart_op op;      /* its key is the first key of the range; an empty key: the range has no lower bound */
    size_t wanted;    /* number of leaves that the caller will probably need; 0: as many as fit into a batch */
    bool bounded;     /* the range ends before the key of `end` */
    smart_op end;     /* the key before which the range ends, valid if `bounded` */
    bool reads_ahead; /* the nodes and leaves that the cache names are READ in advance */
    int (*each_node)(smart_traversal *p, const smart_item *item,
                     const smart_node *node); /* called for every node that was READ; may be NULL */
    /* called once per node, as described at smart_found_node; may be NULL */
    int (*each_node_once)(smart_traversal *p, far_addr node, unsigned layout);
    /* called for every leaf; the outcome in `spot` is SMART_HIT or SMART_DEAD_LEAF */
    int (*each_leaf)(smart_traversal *p, const smart_item *item, const smart_spot *spot);

    /* The stack, with the next item last */
    smart_item *items;
    size_t count, size; /* number of items in use, and number allocated */

    /* Nodes that were not yet reported to each_node_once. */
    smart_found_node *found_nodes;
    int found_count, found_size; /* number of entries of found_nodes in use, and number allocated */

    unsigned root_next, root_end;      /* slots of the root that belong to the range and are not READ yet */
    struct smart_readahead *readahead; /* the nodes and leaves that were READ in advance; NULL: none */
    /* number of leaves that were READ in advance and not visited yet, if the cache named a full batch; else 0 */
    size_t readahead_leaves_left;
    smart_item frozen_item; /* item of the node in which the traversal found a frozen word */
    /* true if the traversal stopped at a frozen word or renewed its pin, so that it must be run again from the last key
     */
    bool run_again;
    /* frozen words are used like other words, because there is no memory to complete the replacement of their node */
    bool accept_frozen;
};

/* Runs the traversal. The caller must hold a pin. */
int smart_traversal_run(smart_traversal *p);

/* scan_readahead.c */

/* Adds READs of the nodes and leaves that the cache names from root slot `first` on, and sets p->readahead. If the
 * cache names enough leaves, sets *root_end to the end of the root slots that they belong to; otherwise leaves it
 * unchanged. */
int smart_read_ahead(smart_traversal *p, unsigned first, unsigned *root_end);
/* Decides whether the next scan reads ahead, and counts down the scans that skip it. */
bool smart_readahead_decide(smart_state *st);
/* Called at the end of a traversal. Adapts the number of scans that skip read-ahead to how useful it was. */
void smart_readahead_evaluate(const smart_traversal *p);
/* Returns whether the object that the word names was READ in advance. The image of the object may still be unusable. */
bool smart_was_read_ahead(const smart_traversal *p, uint64_t word);
/* The two functions return the node or leaf that the word names, as it was READ in advance. They return false if it was
 * not READ in advance, or if the image does not prove that it shows this object. The word must be proven. */
bool smart_take_readahead_node(const smart_traversal *p, uint64_t word, smart_node *node);
bool smart_take_readahead_leaf(const smart_traversal *p, uint64_t word, smart_leaf *leaf);

#endif
