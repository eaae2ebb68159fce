/* Chaos of a daemon (farindex serve --chaos): batches of several connections interleave, and verbs tear between their
 * units, because the thread pauses there now and then.
 *
 * On a busy machine a pause takes many times what was meant, and clients would take the node for silent. So each long one
 * is followed by a time without: others have the processor often enough then. */
#ifndef FAR_FABRIC_NET_CHAOS_H
#define FAR_FABRIC_NET_CHAOS_H

#include <stdbool.h>
#include <stdint.h>

#define CHAOS_LONG_NS 1000000u    /* a pause that took longer: other processes had the processor */
#define CHAOS_REST    8u          /* after a long pause there is none for so many times as long ... */
#define CHAOS_REST_NS 1000000000u /* ... but not for longer than this: perhaps the daemon was only stopped (SIGSTOP) */

typedef struct net_chaos { /* of a thread */
    uint64_t state;
    uint64_t rests_until; /* ns */
} net_chaos;

typedef enum { CHAOS_NONE, CHAOS_YIELD, CHAOS_SLEEP } net_chaos_pause;

void net_chaos_start(net_chaos *chaos, unsigned thread);
/* Draws what happens after a unit; us: how long a sleep is to take. */
net_chaos_pause net_chaos_draw(net_chaos *chaos, unsigned *us);
bool net_chaos_rests(const net_chaos *chaos, uint64_t now);
void net_chaos_paused(net_chaos *chaos, uint64_t begun, uint64_t ended); /* ns */

void net_chaos_disturb(net_chaos *chaos); /* after each unit: draws and pauses, by the clock of the host */

#endif
