/* Looking before sleeping: a thread that waits for a socket looks at it for a while before it sleeps.
 *
 * A processor whose only thread sleeps is halted, and to wake it takes several times as long as a round trip on one host
 * (measured: 40 us each way on a virtual machine, where the round trip takes 15). But a thread that looks keeps a
 * processor busy that others may need, the one that it waits for among them. So looking must pay: between two looks the
 * processor is offered to others, and whenever one takes it, or nothing is found, looking rests for NET_LINGER_REST times
 * what that took; waits sleep at once meanwhile. So looking in vain costs at most one part in NET_LINGER_REST of the time. A
 * look that finds something costs as long as the wait: where all waits are shorter than NET_LINGER_MOST (some thousand
 * requests in a second), a processor that nobody else wants is busy all the time. A thread that becomes idle looks once, for
 * NET_LINGER_MOST at most, and sleeps.
 *
 * No clock and no socket in here: the caller tells the time (ns), so that tests can tell it too. A wait is
 *
 *     looks = net_linger_begin(l, now);
 *     while (looks && !(found = ...))
 *         looks = net_linger_goes_on(l, now);
 *     if (!found)
 *         ... sleep ...
 *     net_linger_end(l, now, found); */
#ifndef FAR_FABRIC_NET_LINGER_H
#define FAR_FABRIC_NET_LINGER_H

#include <stdbool.h>
#include <stdint.h>

#define NET_LINGER_LEAST 20000u      /* ns of a look where waits are long: they may have become short */
#define NET_LINGER_MOST  200000u     /* ns of any look: twice a round trip in which both ends had to be woken */
#define NET_LINGER_GAP   50000u      /* ns between two looks: another thread had the processor */
#define NET_LINGER_REST  16u         /* times what a look has cost: how long none follows ... */
#define NET_LINGER_LONG  1000000000u /* ... and at most so long: the process was stopped, it may be */

typedef struct net_linger { /* of what one thread at a time waits for; zeroed: nothing is known yet */
    uint64_t usual;         /* ns that waits took lately */
    uint64_t begun, seen;   /* when this wait began, and when it last looked */
    uint64_t rests_until;   /* until then waits sleep at once */
} net_linger;

bool net_linger_begin(net_linger *linger, uint64_t now);
bool net_linger_goes_on(net_linger *linger, uint64_t now);           /* the last look found nothing: one more? */
void net_linger_end(net_linger *linger, uint64_t now, bool by_look); /* by_look: it did not have to sleep */

#endif
