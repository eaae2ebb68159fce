/* Connects a client to memory nodes: from their addresses to the first answer of each node, the welcome. Used to open a
 * pool, to connect a session, and for requests outside of sessions. */
#ifndef FAR_FABRIC_TCP_LINK_H
#define FAR_FABRIC_TCP_LINK_H

#include "fabric/net/address.h"
#include "fabric/net/channel.h"

typedef struct net_link {
    net_channel channel;
    net_welcome welcome;
} net_link;

typedef struct net_dial_options {
    net_tls_context *tls; /* configuration of TLS; NULL: the connection is plain text */
    bool insecure;        /* allow plain text to other hosts, too */
    net_purpose purpose;
    unsigned timeout_ms;
} net_dial_options;

/* Connects to all nodes at the same time, and waits until all have sent their welcome. On failure far_last_error names
 * the node at fault, and no connection stays open. */
int net_links_open(net_link *links, const net_address *addresses, unsigned count, const net_dial_options *dial);

/* Sends one message and waits for its answer, which must have the given type and length. */
int net_link_call(net_link *link, const net_address *address, net_type type, const void *body, size_t bytes,
                  net_type expected, void *answer, size_t answer_bytes, unsigned timeout_ms);

/* Reads memory of the node, at most NET_PIECE_BYTES, over a connection that was opened for a session. */
int net_link_read(net_link *link, const net_address *address, far_addr addr, void *to, uint32_t bytes,
                  unsigned timeout_ms);

#endif
