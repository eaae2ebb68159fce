/* A traversal visits all leaves of a range of keys in ascending or descending key order. The range has a lower bound
 * and an upper bound. scan_traversal.c implements the traversal, for scans (scan.c) and for walk, check and usage
 * (check.c). scan_nodes.c READs nodes and puts their children on the stack; scan_readahead.c READs in advance the nodes
 * and leaves that the cache names.
 *
 * A traversal keeps a stack of items. Each item is a slot word that the traversal READ from a linked node; the item
 * that is visited next is on top. If a node is among the next items, the traversal READs it and puts its children in
 * its place; otherwise it READs the next leaves and calls each_leaf for them.
 *
 * The root and the DIR nodes have a slot for every partial key. On mapped memory, a scan READs only as many of their
 * slots as it probably needs. The other slots, the remainder, stay as an item of their own below the children. No slot
 * is READ again once the child that it names is on the stack. So each key of the range is reached by one path, and the
 * leaves are visited in strict key order. */
#ifndef FAR_INDEX_SMART_TRAVERSAL_H
#define FAR_INDEX_SMART_TRAVERSAL_H

#include "index/smart/smart.h"

/* One entry of the stack. */
typedef struct smart_item {
    uint64_t word; /* slot word that names a node or a leaf */
    far_addr slot; /* the slot from which the word was READ */
    /* Prefix hash of the node that contains the slot; 0 if the header of that node was not READ, which happens only in
     * scans. */
    uint64_t fp;
    uint16_t depth; /* depth of the node that contains the slot */
    /* ranks of the first and the last partial key whose children are not on the stack yet; only a DIR node of which
     * slots were READ has other ranks than 0 and SMART_PARTS - 1 */
    uint16_t first, last;
    bool on_low;  /* the subtree may contain the lower bound of the range */
    bool on_high; /* the subtree may contain the upper bound of the range */
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
    smart_op op;      /* its key is the lower bound of the range; an empty key: the range has no lower bound */
    smart_op high;    /* its key is the upper bound of the range, valid if `bounded` */
    bool bounded;     /* the range has an upper bound */
    bool backward;    /* the leaves are visited in descending key order */
    bool reads_ahead; /* the nodes and leaves that the cache names are READ in advance */
    /* The traversal READs one node or leaf at a time, and only a part of the slots of the root and of DIR nodes. A scan
     * does so on mapped memory, where a slot that is READ in vain costs more than another round trip. */
    bool steps_singly;
    /* Number of leaves that a scan will probably need; 0: as many as fit into a batch. The traversal visits a leaf at a
     * bound of the range even if its key is outside the range; the caller compares the keys of such leaves. */
    size_t wanted;
    int (*each_node)(smart_traversal *p, const smart_item *item,
                     const smart_node *node); /* called for every node that was READ; may be NULL */
    /* called once per node, as described at smart_found_node, in forward traversals; may be NULL */
    int (*each_node_once)(smart_traversal *p, far_addr node, unsigned layout);
    /* called for every leaf; the outcome in `spot` is SMART_HIT or SMART_DEAD_LEAF */
    int (*each_leaf)(smart_traversal *p, const smart_item *item, const smart_spot *spot);

    /* The stack, with the next item last. Its first memory is first_items; if the stack outgrows it, malloc gives more.
     */
    smart_item *items, *first_items;
    size_t count, size; /* number of items in use, and number that the memory can contain */

    /* Nodes that were not yet reported to each_node_once. */
    smart_found_node *found_nodes;
    int found_count, found_size; /* number of entries of found_nodes in use, and number allocated */

    unsigned root_next, root_end;      /* slots of the root that belong to the range and are not READ yet */
    unsigned root_part;                /* number of slots of the root that are READ next */
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

int smart_report_found_nodes(smart_traversal *p, int found); /* reports the nodes of this list to each_node_once */


/* Returns item number i, counted from the next item (0). */
static inline smart_item *smart_item_at(const smart_traversal *p, size_t i) {
    return &p->items[p->count - 1 - i];
}


/* Returns the number of slots of a DIR node that the traversal READs in one part. */
static inline unsigned smart_slots_of_part(const smart_traversal *p) {
    return p->wanted < SMART_PARTS ? (unsigned)p->wanted / 2 + 4 : SMART_PARTS;
}


/* scan_nodes.c */

int smart_make_room_for_items(smart_traversal *p, size_t more); /* makes room for `more` items on the stack */
/* Results of smart_expand_nodes, in addition to an error. */
enum {
    SMART_NO_NODE,    /* there was no node among the next items */
    SMART_EXPANDED,   /* the nodes were replaced by their children */
    SMART_MET_FROZEN, /* frozen_item names a node with a frozen word */
};
/* READs the nodes among the next items and replaces these items by their children. Considers only as many of the next
 * items as will probably yield `ahead` leaves. */
int smart_expand_nodes(smart_traversal *p, size_t ahead);
int smart_expand_next(smart_traversal *p); /* READs the node of the next item and replaces the item by its children */

/* scan_readahead.c */

/* Adds READs of the nodes and leaves that the cache names in the range, and sets p->readahead. If the cache names
 * enough leaves, sets *root_slots to the number of root slots that they belong to, counted from the start of the range
 * in the direction of the traversal; otherwise leaves it unchanged. */
int smart_read_ahead(smart_traversal *p, unsigned *root_slots);
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
