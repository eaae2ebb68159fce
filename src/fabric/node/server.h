/* The daemon of a memory node, `farindex serve`. It runs one epoll loop per thread, and each connection belongs to one
 * loop. */
#ifndef FAR_FABRIC_NODE_SERVER_H
#define FAR_FABRIC_NODE_SERVER_H

#include "fabric/net/address.h"
#include "fabric/net/tls.h"
#include "fabric/node/log.h"
#include "fabric/node/memory.h"

#include <stdint.h>

typedef struct net_server_options {
    net_address listen;
    net_memory_options memory;
    net_tls_config tls;
    bool rdma;         /* true if clients send verbs through RDMA queue pairs, which they connect at the same address */
    bool insecure;     /* allow plain text on addresses that other hosts can reach */
    unsigned lease_ms; /* A session is fenced when the kernel of its host has not answered for this time. */
    unsigned threads;
    bool chaos;
    unsigned per_address; /* largest number of connections from one address; 0: NET_PER_ADDRESS_DEFAULT */
    int log;              /* descriptor that receives log lines; 0: no log */
    net_log_level log_level;
} net_server_options;

typedef struct net_server net_server;

/* Opens the memory and starts to listen. An error is explained in far_last_error. */
int net_server_open(const net_server_options *config, net_server **server);
/* Returns the address at which the daemon listens, including the port if the kernel has chosen it. */
const char *net_server_address(const net_server *server);
int net_server_run(net_server *server);   /* runs until net_server_stop is called */
void net_server_stop(net_server *server); /* may be called from any thread and from a signal handler */
void net_server_close(net_server *server);

#endif
