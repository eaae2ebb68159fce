/* Which connections a daemon admits, so that no peer can use up its descriptors or its memory.
 *
 * - A connection is half-open until its NET_HELLO was accepted. If there are too many half-open connections, or no
 *   descriptor is left for a new connection, one of the address that has the most half-open connections is closed, the
 *   oldest. So strangers that send nothing do not keep newcomers out, and a stranger that connects again and again closes
 *   its own connections, not those of a newcomer at another address, which may need longer for its hello.
 * - A number of descriptors is reserved for other purposes of the daemon than connections.
 * - The number of connections from one address is limited. It counts connections after their hello, which only peers
 *   with the secret reach. The address of an IPv6 peer is its network of 64 bits.
 * - Connections with the read secret take at most half of all places, so that they do not keep writers out.
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
    bool linked, evicted;      /* evicted: it was closed in favour of a newer connection */
    struct net_source *source; /* its address, while it is linked */
    net_half_open *newer, *older;
};

typedef struct net_source { /* an address with its numbers of connections */
    uint64_t key;
    unsigned connections; /* after their hello */
    unsigned half_open;
    struct net_source *next;
} net_source;

typedef struct net_place { /* the place of a connection after its hello; part of a server_peer */
    net_source *source;    /* NULL: the connection has no place */
    bool of_reader;
} net_place;

typedef enum net_admitted { NET_ADMITTED, NET_ADDRESS_IS_FULL, NET_READERS_ARE_FULL } net_admitted;

#define NET_SOURCE_BUCKETS 1024u

typedef struct net_admission {
    unsigned connections, connections_max; /* half-open connections are included */
    unsigned per_address_max;
    unsigned readers, readers_max;
    unsigned half_open;
    net_half_open *newest, *oldest;
    uint64_t evicted, refused_by_address, refused_readers; /* numbers since the start */
    net_source *sources[NET_SOURCE_BUCKETS];
} net_admission;

/* Sets the limits from the descriptors that the process may have. `per_address` 0: the default. */
void net_admission_init(net_admission *admission, unsigned per_address);
void net_admission_free(net_admission *admission);

/* Admits a new connection as half-open; may close another half-open one. Returns false if there is no room. */
bool net_admission_enter(net_admission *admission, net_half_open *peer, const net_endpoint *from, int socket);
/* The hello of the connection is valid. Counts the connection at its address, and then it is not half-open any more.
 * Sets *place, for net_admission_leave, unless there are too many connections from this address or too many readers. A
 * connection that was evicted meanwhile counts as one too many of its address. */
net_admitted net_admission_accept(net_admission *admission, net_half_open *peer, bool reads_only, net_place *place);
/* The connection has ended. *place contains zeros unless net_admission_accept has set it. */
void net_admission_leave(net_admission *admission, net_half_open *peer, const net_place *place);

#endif
