/* Polling before sleeping. A thread that waits for a socket or a completion queue polls it for a while before it
 * sleeps. This file decides only how long to poll; it is a pure state machine.
 *
 * Why polling helps: when the only thread of a processor sleeps, the processor is halted, and waking it takes several
 * times as long as a round trip on one host (measured on a virtual machine: 40 us for each direction, while the round
 * trip takes 15 us).
 *
 * Why polling is limited: a polling thread occupies a processor that other threads may need, perhaps the very thread
 * that has to answer. Therefore the caller yields the processor between two polls. If another thread used the processor
 * meanwhile, or if polling ends without success, then polling is paused for NET_BUSY_POLL_PAUSE_FACTOR times the time
 * lost, and waits sleep at once during the pause. So unsuccessful polling costs at most one part in
 * NET_BUSY_POLL_PAUSE_FACTOR of the time. Successful polling costs as much processor time as the wait lasts. So a
 * thread keeps a processor busy if all its waits are shorter than NET_BUSY_POLL_MAX (some thousand requests per second)
 * and no other thread wants the processor. A thread that becomes idle polls once, for at most NET_BUSY_POLL_MAX, and
 * then sleeps.
 *
 * The caller passes the time in ns, so that tests can use a clock of their own. A wait has this form:
 *
 *     polling = net_busy_poll_begin(p, now);
 *     while (polling && !(found = ...))
 *         polling = net_busy_poll_continue(p, now);
 *     if (!found)
 *         ... sleep ...
 *     net_busy_poll_end(p, now, found); */
#ifndef FAR_FABRIC_NET_BUSY_POLL_H
#define FAR_FABRIC_NET_BUSY_POLL_H

#include <stdbool.h>
#include <stdint.h>

#define NET_BUSY_POLL_MIN 20000u  /* ns of polling where waits are long; enough to notice that they have become short */
#define NET_BUSY_POLL_MAX 200000u /* longest polling in ns: twice a round trip in which both threads had to be woken */
/* ns between two polls from which on another thread is assumed to have used the processor */
#define NET_BUSY_POLL_GAP          50000u
#define NET_BUSY_POLL_PAUSE_FACTOR 16u /* length of a pause as a multiple of the time lost */
/* longest pause in ns; a longer loss means that the process was probably stopped */
#define NET_BUSY_POLL_PAUSE_MAX 1000000000u

typedef struct net_busy_poll {      /* state of the waits of one thread at a time; all zero at the beginning */
    uint64_t average_wait;          /* moving average of the length of waits in ns */
    uint64_t started_at, last_poll; /* start of the current wait, and time of the last poll, in ns */
    uint64_t paused_until;          /* time in ns until which waits do not poll */
} net_busy_poll;

bool net_busy_poll_begin(net_busy_poll *busy_poll, uint64_t now);
/* called after a poll without success; returns true if the caller should poll again */
bool net_busy_poll_continue(net_busy_poll *busy_poll, uint64_t now);
/* ends a wait; `found_by_polling` is true if the thread did not have to sleep */
void net_busy_poll_end(net_busy_poll *busy_poll, uint64_t now, bool found_by_polling);

#endif
