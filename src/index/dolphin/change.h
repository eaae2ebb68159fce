/* A change of the structure under the lock of one node: new objects are prepared unseen, then entries of the node are
 * changed by CAS. Shared by change.c and replace.c. */
#ifndef FAR_INDEX_DOLPHIN_CHANGE_H
#define FAR_INDEX_DOLPHIN_CHANGE_H

#include "index/dolphin/dolphin.h"

#define DOLPHIN_ADDS_MAX 2u

typedef struct dolphin_made { /* a new node or leaf */
    far_addr addr;            /* 0: none */
    uint64_t control;         /* its first word, as its last life left it */
    uint64_t *image;          /* all but that word is written */
    unsigned bytes;
    bool leaf, linked;
} dolphin_made;

typedef struct dolphin_change {
    dolphin_op *op;
    dolphin_node node; /* locked */
    dolphin_made leaf[2], inner;
    uint64_t kword, vword; /* of the key that is put in; 0: none */
    bool item_linked;
    bool apart; /* a WRITE that comes before the entries was put to another memory node than theirs */
    uint64_t add[DOLPHIN_ADDS_MAX]; /* entries, the one with the greatest lb first */
    unsigned adds;
    unsigned at; /* this entry is replaced, by: */
    uint64_t entry;
} dolphin_change;

/* Room for a leaf or a node (class) on that memory node (a wish); puts the READ of its control word. */
int dolphin_make_leaf(dolphin_change *c, unsigned which, unsigned node);
int dolphin_make_inner(dolphin_change *c, const uint8_t *prefix, unsigned depth, unsigned entries, dolphin_node *image);
/* Key word and value word for op->key in a leaf of this depth; puts the WRITEs of their blocks. */
int dolphin_make_item(dolphin_change *c, far_bytes value, unsigned depth, unsigned node);
void dolphin_abandon(dolphin_change *c); /* what was not linked is free again; their verbs have completed */
uint64_t dolphin_made_entry(const dolphin_made *made, unsigned lb); /* after its control word was READ */
bool dolphin_put_births(dolphin_change *c); /* new objects become LIVE. False: not all on the memory node of the node */
/* New objects become LIVE, then entries change, the lock goes if `unlock`. */
int dolphin_publish(dolphin_change *c, bool unlock);
/* {lock of the node, and whatever was put before}. LOCKED: the entry for the key is still this one, it is at c->at. BUSY,
 * GONE: all that was made is free again. */
int dolphin_change_lock(dolphin_change *c, uint64_t word, uint64_t entry);
int dolphin_change_end(dolphin_change *c, int result); /* unlocks, frees what was made; result */

typedef struct dolphin_content { /* of a leaf, when it is final */
    dolphin_leaf leaf;
    dolphin_item items[2 * DOLPHIN_SLOTS_MAX];
    unsigned count;
    int fresh;                            /* the item that came now; -1: none */
    uint64_t gone_value;                  /* the value that a put replaces */
    uint64_t elsewhere;                   /* a bit per slot: a dead client got as far as to put it into another leaf */
    uint16_t position[DOLPHIN_SLOTS_MAX]; /* of the keys, by slot */
    uint8_t prefix[FAR_KEY_MAX];
    unsigned depth, lo, hi; /* of the leaf; as far as the node's entries go */
} dolphin_content;

/* replace.c. The leaf below entry `at` of the locked node: what it is for. */
void dolphin_set_bounds(const dolphin_node *node, unsigned at, dolphin_content *it);
/* freeze: it is not frozen yet. 0: the leaf is final; *waited: under a new pin, and what was made is not there any
 * more.
 */
int dolphin_freeze_and_drain(dolphin_change *c, uint64_t entry, bool freeze, dolphin_leaf *leaf, bool *waited);
int dolphin_read_content(dolphin_op *op, dolphin_content *it); /* adds its LIVE pairs to the items */
/* The leaf, and what only it named; depth: of the leaves that its items go to. */
void dolphin_retire_content(dolphin_op *op, const dolphin_content *it, unsigned depth);

/* grow.c. What is needed to put a copy in the place of a node. c.node: the node above, locked. */
unsigned dolphin_collect(const dolphin_node *node, uint64_t *entries);
int dolphin_copy_made(dolphin_change *c, const dolphin_node *old, const uint64_t *entries, unsigned count);
int dolphin_switch_over(dolphin_change *c, const dolphin_node *old, unsigned at);
/* Locks the node above and the node itself. 1: done, *at is its entry above; 0: look again. */
int dolphin_lock_both(dolphin_change *c, uint64_t word, dolphin_node *old, unsigned *at);
int dolphin_unlock_both(dolphin_change *c, uint64_t word, int result);

/* In the place of entry [lo, hi]: the new node at one position of it, and NULL around it. */
void dolphin_plan_node(dolphin_change *c, unsigned position, unsigned lo, unsigned hi);

#endif
