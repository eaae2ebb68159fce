/* insert, update, put and delete: what write.c (under the lock of the leaf) and lock.c (getting it) share. */
#ifndef FAR_INDEX_CHIME_WRITE_H
#define FAR_INDEX_CHIME_WRITE_H

#include "index/chime/chime.h"

typedef struct chime_change {
    far_op_kind how;
    far_bytes value;
    uint64_t words[CHIME_VALUE_WORDS]; /* the value as the slot will have it; or its block, without the distance */
    unsigned class;
    uint8_t *image;      /* of the block */
    bool locked;         /* the leaf's lock is held, and nothing was changed */
    unsigned attempts;   /* at locks that others hold */
    unsigned turns;      /* in which the lock was handed over, up to us */
    unsigned known;      /* slots from home on that were READ under the lock; 0: none; all: the whole node was */
    uint64_t *view;      /* memory for what is known of the whole leaf, from who had the lock before; NULL: none */
    chime_insert *along; /* inserts of others that go in with it */
} chime_change;


static inline bool chime_inserts(const chime_change *c) {
    return c->how == FAR_OP_INSERT || c->how == FAR_OP_PUT;
}


/* lock.c. The latch of the leaf is held. */
int chime_take_lock(chime_op *op, chime_change *c, chime_node *n, chime_lock *lock); /* 0, CHIME_AGAIN, CHIME_STALE */
bool chime_is_growing(const chime_op *op); /* the tree has few leaves, maybe not enough for all its clients */
/* Who waits in the same compute node, and would get the lock next; NULL: nobody, or it is the turn of others. */
far_task *chime_next_in_turn(const chime_op *op, const chime_change *c, chime_ptr leaf);
bool chime_goes_along(const chime_op *op, const chime_change *c); /* with that of another task, if it must wait */
void chime_choose_heir(chime_op *op, const chime_change *c, chime_ptr leaf); /* before chime_put_unlock */
/* Leaves the latch, to the heir with what is known of the leaf. err: what became of the change. */
void chime_leave_lock(chime_op *op, chime_change *c, const chime_node *n, const chime_lock *lock, int err);

/* write.c */
void chime_put_change_reads(chime_op *op, const chime_change *c, chime_node *n, unsigned slots); /* from home on */

#endif
