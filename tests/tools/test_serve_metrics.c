/* Tests of the metrics that a daemon serves over HTTP. The daemon and its HTTP server run in this process. */
#define _GNU_SOURCE
#include "conform.h"
#include "fabric/tcp/link.h"
#include "left_out.h"
#include "test.h"
#include "tools/farindex/serve_metrics.h"

#include <ctype.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef FARINDEX_METRICS

typedef struct metrics_rig {
    net_server *server;
    pthread_t thread;
    net_address address; /* of the daemon */
    metrics_server *metrics;
} metrics_rig;


static void *run_server(void *server) {
    net_server_run(server);
    return NULL;
}


static void parse_address(const char *text, net_address *address) {
    char error[128];
    assert_int_equal(net_address_parse(text, strlen(text), address, error, sizeof(error)), 0);
}


static void start_rig(metrics_rig *r) {
    net_server_options config = {.memory.size = 1 << 20, .lease_ms = 10000, .threads = 2};
    net_address any;
    parse_address("127.0.0.1:0", &any);
    config.listen = any;
    assert_ok(net_server_open(&config, &r->server));
    parse_address(net_server_address(r->server), &r->address);
    assert_int_equal(pthread_create(&r->thread, NULL, run_server, r->server), 0);
    assert_ok(metrics_server_open(&any, r->server, &r->metrics));
}


static void end_rig(metrics_rig *r) {
    metrics_server_close(r->metrics);
    net_server_stop(r->server);
    pthread_join(r->thread, NULL);
    net_server_close(r->server);
}


/* Sends an HTTP request and returns the whole answer, which the caller frees. */
static char *request(const metrics_rig *r, const char *line) {
    net_address address;
    char *answer = calloc(1, 1 << 20), text[256];
    size_t length = 0;
    ssize_t got;
    parse_address(metrics_server_address(r->metrics), &address);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(address.port)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(one, (struct sockaddr *)&to, sizeof(to)), 0);
    int bytes = snprintf(text, sizeof(text), "%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", line);
    assert_int_equal(send(one, text, (size_t)bytes, MSG_NOSIGNAL), bytes);
    while ((got = recv(one, answer + length, (1 << 20) - 1 - length, 0)) > 0)
        length += (size_t)got;
    close(one);
    return answer;
}


/* Returns the value of a metric, which the text must contain once. */
static double value_of(const char *text, const char *metric) {
    char line[128];
    snprintf(line, sizeof(line), "\n%s ", metric);
    const char *at = strstr(text, line);
    if (!at || strstr(at + 1, line))
        fail_msg("'%s' is not there once", metric);
    return atof(at + strlen(line));
}


/* Checks that the text consists of lines as the text format of Prometheus requires, in ASCII. Returns their number. */
static unsigned check_lines(const char *text) {
    unsigned lines = 0;
    assert_true(strlen(text) > 0 && text[strlen(text) - 1] == '\n');
    for (const char *at = text; *at; lines++) {
        const char *end = strchr(at, '\n'), *name = at;
        for (const char *c = at; c < end; c++)
            assert_true(isprint((unsigned char)*c));
        if (strncmp(at, "# HELP ", 7) != 0 && strncmp(at, "# TYPE ", 7) != 0) {
            while (isalnum((unsigned char)*name) || *name == '_')
                name++;
            if (*name == '{')
                name = strstr(name, "\"}") + 2;
            assert_true(name > at && name < end && *name == ' ');
            char *rest;
            strtod(name + 1, &rest);
            assert_ptr_equal(rest, end);
        }
        at = end + 1;
    }
    return lines;
}


static void read_memory(const metrics_rig *r, net_link *link) {
    char body[NET_VERB_BYTES];
    far_verb verb = {.kind = FAR_READ, .length = 8};
    net_head head;
    const char *answer;
    net_verb_put(body, &verb, 0, 8);
    net_channel_send(&link->channel, NET_BATCH, 1, 1, body, sizeof(body));
    assert_int_equal(net_channel_flush(&link->channel), 0);
    while (net_channel_next(&link->channel, true, &head, &answer) == 0)
        assert_true(net_channel_receive(&link->channel) >= 0);
    assert_int_equal(head.type, NET_RESULTS);
    (void)r;
}


/* The metrics are valid text of Prometheus. They count batches and connections, and the histogram contains every batch.
 * The number of lines does not depend on the number of clients. */
TEST(metrics_count_what_the_daemon_does) {
    enum { CLIENTS = 20, READS = 50 };
    metrics_rig r;
    net_link links[CLIENTS];
    const net_dial_options how = {.purpose = NET_FOR_SESSION, .timeout_ms = 60000};
    start_rig(&r);
    char *first = request(&r, "GET /metrics");
    assert_non_null(strstr(first, "HTTP/1.1 200"));
    assert_non_null(strstr(first, "text/plain; version=0.0.4; charset=utf-8"));
    unsigned lines = check_lines(strstr(first, "\r\n\r\n") + 4);
    assert_true(value_of(first, "farindex_node_batches_total") == 0);
    for (unsigned i = 0; i < CLIENTS; i++)
        assert_ok(net_links_open(&links[i], &r.address, 1, &how));
    for (unsigned i = 0; i < READS; i++)
        read_memory(&r, &links[i % CLIENTS]);
    char *then = request(&r, "GET /metrics");
    assert_int_equal(check_lines(strstr(then, "\r\n\r\n") + 4), lines);
    assert_true(value_of(then, "farindex_node_connections") == CLIENTS);
    assert_true(value_of(then, "farindex_node_half_open_connections") == 0);
    assert_true(value_of(then, "farindex_node_batches_total") == READS);
    assert_true(value_of(then, "farindex_node_verbs_total") == READS);
    assert_true(value_of(then, "farindex_node_batch_seconds_count") == READS);
    assert_true(value_of(then, "farindex_node_batch_seconds_bucket{le=\"+Inf\"}") == READS);
    for (unsigned i = 0; i < CLIENTS; i++)
        net_channel_close(&links[i].channel);
    free(first);
    free(then);
    end_rig(&r);
}


/* Other paths and methods are refused, and an address in use leads to an error. */
TEST(only_the_metrics_can_be_read) {
    metrics_rig r;
    net_address same;
    metrics_server *second;
    start_rig(&r);
    char *other = request(&r, "GET /"), *post = request(&r, "POST /metrics"), *head = request(&r, "HEAD /metrics");
    assert_non_null(strstr(other, "HTTP/1.1 404"));
    assert_non_null(strstr(post, "HTTP/1.1 405"));
    assert_non_null(strstr(head, "HTTP/1.1 200"));
    assert_null(strstr(head, "farindex_node"));
    parse_address(metrics_server_address(r.metrics), &same);
    assert_int_equal(metrics_server_open(&same, r.server, &second), FAR_ERR_BUSY);
    assert_non_null(strstr(far_last_error(), "cannot listen"));
    free(other);
    free(post);
    free(head);
    end_rig(&r);
}

#else

TEST(metrics_are_refused_in_words) {
    net_address any = {.text = "127.0.0.1:0"};
    metrics_server *metrics;
    assert_int_equal(metrics_server_open(&any, NULL, &metrics), FAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(far_last_error(), "libmicrohttpd"));
    left_out("the metrics over HTTP", "this build has no libmicrohttpd");
}

#endif
