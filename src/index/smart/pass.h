/* A pass over the tree in the order of keys (scan.c). */
#ifndef FAR_INDEX_SMART_PASS_H
#define FAR_INDEX_SMART_PASS_H

#include "index/smart/smart.h"

typedef struct smart_item {
    uint64_t word;
    far_addr slot; /* where it was READ */
    uint64_t fp;   /* of its owner */
    unsigned depth;
    bool on_path; /* what it names may have a prefix of the key that the pass begins at */
    int found;    /* nodes above it of which it is the first child: in smart_pass.nodes; -1: none */
} smart_item;

typedef struct smart_found { /* a node that is told of when the first leaf below it is shown: once in all passes
                                together */
    far_addr addr;
    unsigned layout;
    int next;
} smart_found;

typedef struct smart_pass smart_pass;
struct smart_pass {
    smart_op op;   /* its key is where the pass begins; empty: at the beginning */
    size_t wanted; /* leaves that are looked ahead; 0: as many as fit */
    int (*node)(smart_pass *p, const smart_item *item, const smart_node *node); /* may be NULL */
    int (*found)(smart_pass *p, far_addr node, unsigned layout);                /* every node, once; may be NULL */
    int (*leaf)(smart_pass *p, const smart_item *item, const smart_spot *spot); /* HIT or GONE, in order; 1: enough */

    smart_item *items; /* the next one last */
    size_t count, size;
    smart_found *nodes;
    int node_count, node_size;
    smart_item frozen;
    bool again;      /* it ended because something was frozen, or the pin was renewed */
    bool frozen_too; /* frozen words are read like others: there is no memory to help */
};

int smart_pass_run(smart_pass *p);

#endif
