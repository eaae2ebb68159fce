/* An HTTP server for the metrics of a daemon (farindex serve --metrics), by libmicrohttpd. */
#ifndef FARINDEX_SERVE_METRICS_H
#define FARINDEX_SERVE_METRICS_H

#include "fabric/node/server.h"

typedef struct metrics_server metrics_server;

/* Serves the metrics of `server` at http://ADDRESS/metrics, in a thread of its own. An error is explained in
 * far_last_error; in a build without libmicrohttpd it always fails. */
int metrics_server_open(const net_address *address, net_server *server, metrics_server **metrics);
/* returns the address, including the port if the kernel has chosen it */
const char *metrics_server_address(const metrics_server *metrics);
void metrics_server_close(metrics_server *metrics); /* accepts NULL */

#endif
