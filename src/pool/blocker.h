/* Who holds up the epoch: a handle that is stopped in the middle of an operation, so that its pin stays. */
#ifndef FAR_POOL_BLOCKER_H
#define FAR_POOL_BLOCKER_H

#include "pool/clients.h"

#define FAR_BLOCKED_TICKS 10000u /* so long a call waits while the epoch stands, before it says who is in the way */

typedef struct far_blocker {
    unsigned id, generation;
    uint64_t pin;
} far_blocker;

/* Which other handle holds up the epoch, which has been this one for long. id 0: none does. */
int far_blocker_find(far_task *t, uint64_t epoch, far_blocker *b);

/* Returns FAR_ERR_BUSY, or what became of the search. what: that which waits for the epoch, in words. */
int far_blocked(far_task *t, const char *what);

#endif
