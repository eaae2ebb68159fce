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
    bool on_end;  /* ... of the key that it ends before */
    int found;    /* nodes above it of which it is the first child: in smart_pass.nodes; -1: none */
} smart_item;

typedef struct smart_found { /* a node that is told of when the first leaf below it is shown: once in all passes
                                together */
    far_addr addr;
    unsigned layout;
    int next;
} smart_found;

typedef struct smart_pass smart_pass;

enum {                   /* of a pass, and of what it shows leaves to; or an error */
       SMART_PASS_ON,    /* go on; of the pass: it came to its end */
       SMART_PASS_STOPS, /* enough; of the pass: or it is to be made again, from a later key (again) */
};

struct smart_pass {
    smart_op op;   /* its key is where the pass begins; empty: at the beginning */
    size_t wanted; /* leaves that are looked ahead; 0: as many as fit */
    bool bounded;  /* the pass ends before the key of `end` */
    smart_op end;
    bool foresees; /* what the cache says that it will need is READ at once */
    int (*node)(smart_pass *p, const smart_item *item, const smart_node *node); /* may be NULL */
    int (*found)(smart_pass *p, far_addr node, unsigned layout);                /* every node, once; may be NULL */
    int (*leaf)(smart_pass *p, const smart_item *item, const smart_spot *spot); /* HIT or GONE, in order */

    smart_item *items; /* the next one last */
    size_t count, size;
    smart_found *nodes;
    int node_count, node_size;
    unsigned root_next, root_end; /* slots of the root that are not READ yet */
    struct smart_foresight *ahead;
    size_t foreseen; /* leaves that are not shown yet, where the cache knew as many as could be READ at once; else 0 */
    smart_item frozen;
    bool again;      /* the pass ended because something was frozen, or the pin was renewed */
    bool frozen_too; /* frozen words are read like others: there is no memory to help */
};

int smart_pass_run(smart_pass *p);

/* foresee.c. READs of nodes and leaves that the cache expects in the pass, in one batch with the first ones: they count
 * when a word that the pass READs itself names the same object. Sets p->ahead. *root_end: up to which slot of the root
 * they reach; unchanged: the cache knows too little. */
int smart_foresee(smart_pass *p, unsigned first, unsigned *root_end);
bool smart_foresight_is_worth_it(smart_state *st);          /* as it was lately */
void smart_foresight_judge(const smart_pass *p);            /* at the end of a pass */
bool smart_is_foreseen(const smart_pass *p, uint64_t word); /* the word's object was READ, for what it may be worth */
bool smart_foreseen_node(const smart_pass *p, uint64_t word, smart_node *node); /* true: it was READ, and counts */
bool smart_foreseen_leaf(const smart_pass *p, uint64_t word, smart_leaf *leaf);

#endif
