/* The RDMA side of the daemon: registers the node's memory with a network card, and creates a queue pair for each
 * session. The daemon itself never accesses the memory while RDMA is in use, because atomics of a network card and
 * atomics of a processor are not atomic towards each other.
 *
 * After the handshake on its socket, a client requests a queue pair and gets a token. It presents the token when it
 * connects the queue pair through the connection manager. Without a valid token no client gets a queue pair or the key
 * of the memory. */
#ifndef FAR_FABRIC_NODE_RDMA_NODE_H
#define FAR_FABRIC_NODE_RDMA_NODE_H

#include "fabric/net/address.h"
#include "fabric/net/wire.h"

typedef struct net_rdma net_rdma;
typedef struct net_queue net_queue;

/* Accepts connections at this endpoint, which must be an address of exactly one RDMA device, and opens `size` bytes of
 * memory to them. An error is explained in far_last_error; in a build without RDMA it always fails. */
int net_rdma_open(const net_endpoint *endpoint, const char *text, char *bytes, uint64_t size, net_rdma **rdma);
void net_rdma_close(net_rdma *rdma);           /* accepts NULL; all queues must have been freed before */
int net_rdma_descriptor(const net_rdma *rdma); /* a descriptor that is readable when net_rdma_run has something to do */
void net_rdma_run(net_rdma *rdma);

/* Prepares a queue pair for one session and fills the offer for the client. Returns NULL if there is no memory. */
net_queue *net_queue_prepare(net_rdma *rdma, net_queue_pair_offer *offer);
/* Stops a queue pair. After this returns, no verb that arrived through it takes effect any more, and none can arrive.
 * May be called more than once; accepts NULL. */
void net_queue_stop(net_queue *queue);
void net_queue_free(net_queue *queue);

#endif
