/* CHIME: the part of insert, update, put and delete that write.c and write_lock.c share. write_lock.c takes the lock of
 * the leaf and passes it on; write.c changes the leaf while it holds the lock. */
#ifndef FAR_INDEX_CHIME_WRITE_H
#define FAR_INDEX_CHIME_WRITE_H

#include "index/chime/chime.h"

/* State of one write, in addition to its chime_op. */
typedef struct chime_change {
    far_op_kind how;
    far_bytes value;
    /* the item as the leaf will contain it */
    /* value words of the item. In an index with pair blocks, the first word names the pair block; the distance from the
     * home slot is added when the slot is chosen. */
    uint64_t slot_words[CHIME_VALUE_WORDS];
    unsigned block_class; /* size class of the pair block */
    uint8_t *block_image; /* local image of the pair block; NULL: none */
    /* the lock */
    bool locked;        /* true while this task holds the leaf's lock and has written nothing under it */
    unsigned attempts;  /* number of attempts that found the lock held by another client */
    unsigned handovers; /* number of times the lock was handed over in a row before this task got it */
    /* the slots of the leaf whose content this task has READ or received while it holds the lock */
    unsigned slots_read;    /* number of slots READ, counted from the home slot; 0: none; st->span: the whole node */
    uint64_t *shared_image; /* image of the leaf from the previous lock holder, to be freed; NULL: none */
    chime_insert *combined; /* inserts of waiting tasks that are part of this change */
} chime_change;


/* Returns whether the write may insert a new item, which is true for insert and put. */
static inline bool chime_may_insert(const chime_change *c) {
    return c->how == FAR_OP_INSERT || c->how == FAR_OP_PUT;
}


/* write_lock.c. The caller must hold the latch of the leaf for all functions of this group. */

/* Takes the lock of the leaf, or accepts it from the task that held the latch before. May READ part of the leaf in the
 * same batch and then sets c->slots_read. Returns 0, CHIME_AGAIN (another client holds it) or CHIME_STALE. */
int chime_lock_leaf(chime_op *op, chime_change *c, chime_node *n, chime_lock *lock);
/* Returns whether the tree has so few leaves that its clients contend for them. */
bool chime_tree_is_small(const chime_op *op);
/* Returns the task that waits for the latch and could get the lock next. NULL if no task waits, or if the lock must be
 * freed for other compute nodes. */
far_task *chime_next_latch_waiter(const chime_op *op, const chime_change *c, chime_ptr leaf);
/* Returns whether another task may write this insert together with its own. */
bool chime_may_be_combined(const chime_op *op, const chime_change *c);
/* Sets op->next_owner. Must precede chime_batch_unlock, which writes it into the lock word. */
void chime_choose_next_owner(chime_op *op, const chime_change *c, chime_ptr leaf);
/* Releases the latch. Passes lock and image to op->next_owner, if set. `err` is the result of the change. */
void chime_release_latch(chime_op *op, chime_change *c, const chime_node *n, const chime_lock *lock, int err);

/* write.c */

/* Adds the READs of `slots` slots from the home slot on, and of the tail. */
void chime_batch_change_reads(chime_op *op, const chime_change *c, chime_node *n, unsigned slots);

#endif
