/* An HTTP server for the metrics of a daemon (serve_metrics.h). It reads counters and takes a lock of the daemon only for
 * a moment, so a client of this server cannot delay the clients of the daemon. */
#include "tools/farindex/serve_metrics.h"
#include "base/error.h"
#include "farindex.h"

#ifdef FARINDEX_METRICS

#include "fabric/node/metrics.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECTIONS_MAX  16
#define TIMEOUT_SECONDS  10
#define CONNECTION_BYTES 16384
#define BACKLOG          16
#define PATH             "/metrics"

struct metrics_server {
    struct MHD_Daemon *daemon;
    net_server *server;
    int listener;
    char address[NET_ADDRESS_MAX];
};


static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type, char *text,
                              size_t length, enum MHD_ResponseMemoryMode mode) {
    struct MHD_Response *response = MHD_create_response_from_buffer(length, text, mode);
    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}


static enum MHD_Result answer_error(struct MHD_Connection *connection, unsigned status, char *text) {
    return answer(connection, status, "text/plain; charset=utf-8", text, strlen(text), MHD_RESPMEM_PERSISTENT);
}


static enum MHD_Result handle_request(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                                      const char *version, const char *upload, size_t *upload_bytes, void **state) {
    static int seen;
    metrics_server *metrics = arg;
    (void)version, (void)upload;
    /* The first call for a request announces it, before its body arrives. */
    if (!*state) {
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_bytes) { /* the body of a request is ignored */
        *upload_bytes = 0;
        return MHD_YES;
    }
    if (strcmp(url, PATH) != 0)
        return answer_error(connection, MHD_HTTP_NOT_FOUND, "the metrics are at " PATH "\n");
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return answer_error(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "the metrics can only be read\n");
    size_t length;
    char *text = net_server_metrics(metrics->server, &length);
    if (!text)
        return MHD_NO;
    return answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text, length,
                  MHD_RESPMEM_MUST_FREE);
}


static int listen_at(metrics_server *metrics, const net_address *address) {
    net_endpoint endpoints[NET_ENDPOINTS_MAX], bound = {.length = sizeof(bound.address)};
    int on = 1, count = net_address_resolve(address, true, endpoints);
    if (count < 0)
        return count;
    metrics->listener = socket(endpoints[0].address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (metrics->listener < 0 || setsockopt(metrics->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(metrics->listener, (struct sockaddr *)&endpoints[0].address, endpoints[0].length) < 0 ||
        listen(metrics->listener, BACKLOG) < 0)
        return far_fail(errno == EADDRINUSE ? FAR_ERR_BUSY : FAR_ERR_UNREACHABLE,
                        "metrics: %s: cannot listen on this address: %s", address->text, strerror(errno));
    getsockname(metrics->listener, (struct sockaddr *)&bound.address, &bound.length);
    net_endpoint_text(&bound, metrics->address);
    return 0;
}


int metrics_server_open(const net_address *address, net_server *server, metrics_server **opened) {
    metrics_server *metrics = calloc(1, sizeof(*metrics));
    if (!metrics)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the metrics");
    metrics->server = server;
    metrics->listener = -1;
    int err = listen_at(metrics, address);
    if (err == 0) {
        metrics->daemon =
            MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL, NULL, handle_request, metrics,
                             MHD_OPTION_LISTEN_SOCKET, metrics->listener, MHD_OPTION_CONNECTION_LIMIT,
                             (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_SECONDS,
                             MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
        if (!metrics->daemon)
            err = far_fail(FAR_ERR_UNREACHABLE, "metrics: %s: the HTTP server cannot be started", address->text);
    }
    if (err < 0) {
        metrics_server_close(metrics);
        return err;
    }
    *opened = metrics;
    return 0;
}


const char *metrics_server_address(const metrics_server *metrics) {
    return metrics->address;
}


void metrics_server_close(metrics_server *metrics) {
    if (!metrics)
        return;
    if (metrics->daemon) /* closes the listener, too */
        MHD_stop_daemon(metrics->daemon);
    else if (metrics->listener >= 0)
        close(metrics->listener);
    free(metrics);
}

#else

int metrics_server_open(const net_address *address, net_server *server, metrics_server **opened) {
    (void)server, (void)opened;
    return far_fail(FAR_ERR_UNSUPPORTED,
                    "metrics: %s: this build has no HTTP server (it was made without libmicrohttpd)", address->text);
}


const char *metrics_server_address(const metrics_server *metrics) {
    (void)metrics;
    return "";
}


void metrics_server_close(metrics_server *metrics) {
    (void)metrics;
}

#endif
