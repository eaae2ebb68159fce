/* A memory node's daemon: `farindex serve`. One epoll loop per thread; a connection belongs to one of them. */
#ifndef FAR_FABRIC_NET_SERVER_H
#define FAR_FABRIC_NET_SERVER_H

#include "fabric/net/address.h"
#include "fabric/net/tls.h"

#include <stdint.h>
#include <stdio.h>

typedef struct net_server_config {
    net_address listen;
    const char *memory; /* a file; NULL: memory of the process */
    uint64_t size;      /* 0: that of the file */
    net_tls_config tls;
    bool rdma;         /* verbs come by queue pairs, at the same address */
    bool insecure;     /* plain text also where others can listen */
    unsigned lease_ms; /* a session whose host does not answer for so long is cut */
    unsigned threads;
    bool chaos;
    FILE *log; /* NULL: none */
} net_server_config;

typedef struct net_server net_server;

/* Opens the memory and listens. In words when it fails. */
int net_server_open(const net_server_config *config, net_server **server);
const char *net_server_address(const net_server *server); /* with the port that was picked */
int net_server_run(net_server *server);                   /* until it is stopped */
void net_server_stop(net_server *server);                 /* from anywhere, also a signal handler */
void net_server_close(net_server *server);

#endif
