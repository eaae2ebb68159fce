/* Who holds up the epoch: a handle that is stopped in the middle of an operation, so that its pin stays. Whoever needs memory
 * that it holds back, epochs that it keeps from coming, or a lock that it has, waits for a bounded time, and is told who it is. */
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

/* 1: there is one, which does not go on; waits a moment to see it. It may have gone on just now: then the epoch moves
 * soon. wait: until the epoch moves; 1: not by that time. The one that is here is for tasks without a pin. */
int far_blocker_stands(far_task *t, uint64_t epoch, far_blocker *b, int (*wait)(far_task *t, uint64_t time));
int far_wait_for_next_epoch(far_task *t, uint64_t time);

/* Whether far_pool_options.evict_after_ms lets it be ended, which has held up this handle for so long; and ending it. */
bool far_blocker_may_be_ended(far_task *t, const far_blocker *b, uint64_t ns);
int far_blocker_end(far_task *t, const far_blocker *b);

/* How long an operation waits while the epoch stands, before it looks who is in the way; and then: 0: that one was ended;
 * FAR_ERR_BUSY: it stands, and is named. */
uint64_t far_held_up_after(const far_task *t);
int far_held_up_by(far_task *t, const far_blocker *b, uint64_t ns);

/* Of an operation that retries, and sees nothing change (task/patience.h) while the epoch stands: what it waits for may be in
 * the hands of one that is stopped. 0: it may go on; FAR_ERR_BUSY as above. Without a pin. */
int far_held_up(far_task *t);

/* Returns FAR_ERR_BUSY, or what became of the search. what: that which waits for the epoch, in words. */
int far_blocked(far_task *t, const char *what);

#endif
