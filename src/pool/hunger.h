/* Operations that found no memory: what hunger.c (the line, and what the own handle has) and announce.c (what others
 * have) know of each other. */
#ifndef FAR_POOL_HUNGER_H
#define FAR_POOL_HUNGER_H

#include "pool/memory.h"

typedef struct far_hunger { /* an operation in line */
    far_task *task;
    uint64_t ticket;
    uint64_t moved; /* far_quarantine.moved when its last round began */
    unsigned rounds;
    bool all_free;        /* when its last attempt began nothing was held back in this handle */
    bool all_given;       /* ... nor in others, if its announcement still stands */
    bool swept;           /* it has made a full sweep */
    uint64_t announced;   /* the word of its announcement; 0: none */
    uint64_t heeds_until; /* so long it lets others go first; 0: not known yet */
    struct far_hunger *next;
} far_hunger;

/* hunger.c: waits for a tick, and does meanwhile what others want of the session, which its thread is inside of. */
int far_hunger_tick(far_task *t);

/* announce.c */
bool far_is_announced(far_pool *pool); /* another handle is short of memory, or was a short time ago */

/* The same, by the first in line only: */
bool far_must_heed(far_task *t, far_hunger *h);       /* another handle goes first, for a time */
int far_announce(far_task *t, far_hunger *h);         /* 1: another handle was faster, and goes first */
int far_wait_for_answers(far_task *t, far_hunger *h); /* to another announcement */
int far_take_back(far_task *t, const far_hunger *h);  /* the others need not wait until it is old */
/* 1: other handles may have something that they do not need. 0: all they have left is what they had when they were last
 * asked, and they sleep; or they have given all, and that was not enough. dead: what dead sessions had is not swept. */
int far_is_worth_asking(far_task *t, const far_hunger *h, bool *dead);

#endif
