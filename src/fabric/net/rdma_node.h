/* The RDMA side of a memory node's daemon: its memory as a network card sees it, and a queue pair for each session. The
 * daemon itself never touches the memory: atomics of a network card and of a processor do not see each other.
 *
 * A client that was let in over its socket asks for a queue pair and gets a token, which it shows when it connects one
 * by the connection manager. Nobody gets a queue pair, or the key of the memory, otherwise. */
#ifndef FAR_FABRIC_NET_RDMA_NODE_H
#define FAR_FABRIC_NET_RDMA_NODE_H

#include "fabric/net/address.h"
#include "fabric/net/wire.h"

typedef struct net_rdma net_rdma;
typedef struct net_queue net_queue;

/* Takes connections at this endpoint, which must be an address of one RDMA device, for these bytes. In words when it
 * fails; a build without RDMA says so. */
int net_rdma_open(const net_endpoint *endpoint, const char *text, char *bytes, uint64_t size, net_rdma **rdma);
void net_rdma_close(net_rdma *rdma);           /* NULL: nothing. After all its queues were freed */
int net_rdma_descriptor(const net_rdma *rdma); /* readable: net_rdma_run has something to do */
void net_rdma_run(net_rdma *rdma);

/* NULL: no memory. */
net_queue *net_queue_offer(net_rdma *rdma, net_queued *offer);
/* When this returns no verb that came by it takes effect any more, and none will come. Twice does no harm. NULL: nothing. */
void net_queue_stop(net_queue *queue);
void net_queue_free(net_queue *queue);

#endif
