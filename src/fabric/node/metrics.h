/* Metrics of a running daemon, in the text format of Prometheus (version 0.0.4). They have no labels with values of
 * clients, so the number of lines is fixed, and the text is ASCII. `farindex serve --metrics` serves them. */
#ifndef FAR_FABRIC_NODE_METRICS_H
#define FAR_FABRIC_NODE_METRICS_H

#include "fabric/node/server.h"

#include <stdatomic.h>
#include <stddef.h>

/* A histogram of times. Bucket i counts times of less than 2^i us, the last one counts all longer times. */
#define NET_TIME_BUCKETS 22u

typedef struct net_times { /* written by one thread, read by all threads */
    atomic_uint_fast64_t buckets[NET_TIME_BUCKETS], sum_ns;
} net_times;

void net_times_add(net_times *times, uint64_t ns);

/* Returns the metrics as a text, which the caller frees. Returns NULL if there is no memory. May be called by any
 * thread while the server exists. */
char *net_server_metrics(net_server *server, size_t *length);

#endif
