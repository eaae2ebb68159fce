/* Which connections a daemon admits, so that no peer can use up its descriptors or its memory.
 *
 * - A connection is half-open until its NET_HELLO was accepted. If there are too many half-open connections, or no
 *   descriptor is left for a new connection, the oldest half-open one is closed. So strangers that send nothing do not
 *   keep newcomers out.
 * - A number of descriptors is reserved for other purposes of the daemon than connections.
 * - The number of connections from one address is limited. It counts connections after their hello, which only peers
 *   with the secret reach. The address of an IPv6 peer is its network of 64 bits.
 *
 * The functions need the lock of the server. */
#ifndef FAR_FABRIC_NODE_ADMISSION_H
#define FAR_FABRIC_NODE_ADMISSION_H

#include "fabric/net/address.h"

#include <stdint.h>

#define NET_HALF_OPEN_MAX        256u  /* largest number of half-open connections */
#define NET_RESERVED_DESCRIPTORS 64u   /* for memory files, epoll, RDMA, the log and metrics */
#define NET_PER_ADDRESS_DEFAULT  1024u /* connections from one address, unless the operator chooses another number */

typedef struct net_half_open net_half_open;
struct net_half_open { /* link in the list of half-open connections; part of a server_peer */
    int socket;
    bool linked, evicted; /* evicted: it was closed in favour of a newer connection */
    net_half_open *newer, *older;
};

typedef struct net_source { /* an address with its number of connections */
    uint64_t key;
    unsigned connections;
    struct net_source *next;
} net_source;

#define NET_SOURCE_BUCKETS 1024u

typedef struct net_admission {
    unsigned connections, connections_max; /* half-open connections are included */
    unsigned per_address_max;
    unsigned half_open;
    net_half_open *newest, *oldest;
    uint64_t evicted, refused_by_address; /* numbers since the start */
    net_source *sources[NET_SOURCE_BUCKETS];
} net_admission;

/* Sets the limits from the descriptors that the process may have. `per_address` 0: the default. */
void net_admission_init(net_admission *admission, unsigned per_address);
void net_admission_free(net_admission *admission);

/* Admits a new connection as half-open; may close the oldest half-open one. Returns false if there is no room. */
bool net_admission_enter(net_admission *admission, net_half_open *peer, int socket);
/* The hello of the connection is valid. Counts the connection at its address, and then it is not half-open any more. Sets
 * *source to the address, for net_admission_leave. Returns false if there are too many connections from this address, or
 * if there is no memory. */
bool net_admission_accept(net_admission *admission, net_half_open *peer, const net_endpoint *from, net_source **source);
/* The connection has ended. `source` is NULL unless net_admission_accept has set it. */
void net_admission_leave(net_admission *admission, net_half_open *peer, net_source *source);

#endif
