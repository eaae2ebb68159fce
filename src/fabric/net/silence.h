/* Detects silent peers. A peer is silent if its kernel does not answer. The daemon ends a connection when the kernel of
 * its peer has not answered for the lease. A process that is merely stopped counts as alive, because its kernel still
 * answers for it.
 *
 * While a connection is idle, keepalive detects a silent peer (net_socket_prepare). While sent data is not
 * acknowledged, the kernel sends no keepalive probes. TCP_USER_TIMEOUT would cover this case, but it also ends the
 * connection of a stopped process with a full receive buffer, although the kernel of that process answers every window
 * probe. So the daemon itself checks connections with unacknowledged data from time to time. The peer of such a
 * connection counts as silent from the first check that finds data or a window probe unacknowledged, until an
 * acknowledgement arrives.
 *
 * The caller passes the time in ms, so that tests can use a clock of their own. */
#ifndef FAR_FABRIC_NET_SILENCE_H
#define FAR_FABRIC_NET_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct net_peer_acks { /* state of a connection as the local kernel reports it */
    bool all_acknowledged;     /* the kernel of the peer has acknowledged all bytes sent */
    bool awaits_ack;           /* data or a window probe is unacknowledged */
    uint64_t ms_since_ack;     /* ms since the last acknowledgement from the kernel of the peer */
} net_peer_acks;

/* state of the silence detector, one for each connection; all zero: no data is unacknowledged */
typedef struct net_silence {
    bool is_running;
    uint64_t since; /* time in ms of the first check that saw the data that is unacknowledged now */
} net_silence;

net_peer_acks net_peer_acks_read(int socket);

/* Updates the state with a new report of the kernel. Returns for how many ms the peer has been silent. */
uint64_t net_silence_update(net_silence *silence, const net_peer_acks *acks, uint64_t now);

#endif
