/* A client's connection to a memory node, from its address to the node's welcome. */
#ifndef FAR_FABRIC_NET_LINK_H
#define FAR_FABRIC_NET_LINK_H

#include "fabric/net/address.h"
#include "fabric/net/channel.h"

typedef struct net_link {
    net_channel channel;
    net_welcome welcome;
} net_link;

typedef struct net_dial {
    net_tls_context *tls; /* NULL: plain text */
    bool insecure;        /* plain text also to other hosts */
    net_purpose purpose;
    unsigned timeout_ms;
} net_dial;

/* Connects to all nodes at the same time, and waits until all have said welcome. On failure far_last_error names the node at
 * fault, and no connection is left open. */
int net_links_open(net_link *links, const net_address *addresses, unsigned count, const net_dial *dial);

/* Sends one message and waits for its answer, of a fixed length. */
int net_link_call(net_link *link, const net_address *address, net_type type, const void *body, size_t bytes,
                  net_type expected, void *answer, size_t answer_bytes, unsigned timeout_ms);

#endif
