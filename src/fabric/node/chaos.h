/* Random pauses for the tests (`farindex serve --chaos`): a thread of the daemon pauses between tearing granules now
 * and then, so that batches of several connections interleave and verbs tear.
 *
 * On a busy machine a pause may take much longer than intended, and clients would give the node up as unresponsive. So
 * after a long pause, pauses are suspended for a while, in which other threads get enough processor time. */
#ifndef FAR_FABRIC_NODE_CHAOS_H
#define FAR_FABRIC_NODE_CHAOS_H

#include <stdbool.h>
#include <stdint.h>

/* A pause of at least this length counts as long: other processes used the processor. */
#define CHAOS_LONG_PAUSE_NS  1000000u
#define CHAOS_SUSPEND_FACTOR 8u /* length of the suspension as a multiple of the long pause */
/* longest suspension; a longer pause probably means that the daemon was stopped (SIGSTOP) */
#define CHAOS_SUSPEND_MAX_NS 1000000000u

typedef struct net_chaos { /* state of the random pauses of one thread */
    uint64_t state;
    uint64_t suspended_until; /* time in ns until which no pauses are made */
} net_chaos;

typedef enum { CHAOS_NONE, CHAOS_YIELD, CHAOS_SLEEP } net_chaos_pause;

void net_chaos_init(net_chaos *chaos, unsigned thread);
/* Draws at random what happens after a granule: nothing, a yield or a sleep. Sets *us to the length of a sleep in
 * microseconds. Returns the kind of pause. */
net_chaos_pause net_chaos_draw(net_chaos *chaos, unsigned *us);
bool net_chaos_is_suspended(const net_chaos *chaos, uint64_t now);
void net_chaos_record_pause(net_chaos *chaos, uint64_t begun, uint64_t ended); /* records a pause; times in ns */

/* called after each granule: draws, and pauses, using the clock of the host */
void net_chaos_pause_sometimes(net_chaos *chaos);

#endif
