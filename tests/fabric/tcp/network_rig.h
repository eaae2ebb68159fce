/* Helpers for tests of pools on real daemons, over loopback. */
#ifndef TESTS_NETWORK_RIG_H
#define TESTS_NETWORK_RIG_H

#include "conform.h"
#include "daemons.h"
#include "fabric/tcp/tcp.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE "16M"


/* Checks that opening the pool fails with this code and these words in the message. */
static inline void assert_not_opened(const char *uri, int code, const char *words) {
    far_pool *pool = NULL;
    int err = far_pool_open(uri, NULL, &pool);
    if (err != code || !strstr(far_last_error(), words))
        fail_msg("%s gave %d: %s, not %d with '%s'", uri, err, far_last_error(), code, words);
}


/* Opens the pool, opens or creates an index, puts one pair and gets it back. */
static inline void put_and_get(const char *uri) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    char value[16];
    assert_ok(far_pool_open(uri, NULL, &pool));
    assert_ok(far_session_open(pool, &session));
    if (far_index_open(session, "i", &index) < 0)
        assert_ok(far_index_create(session, "i", "dart", NULL, &index));
    assert_ok(far_put(session, index, "key", 3, "value", 5));
    assert_ok(far_get(session, index, "key", 3, value, sizeof(value), NULL));
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


/* Acts as another client that joins this node, as node 0 of a pool of two nodes, at the same time. */
static inline bool join_as_first(const char *address, uint64_t pool) {
    net_link link;
    net_address to;
    char error[128];
    net_dial_options dial = {NULL, false, NET_FOR_INSPECTION, 10000};
    net_join join = {.pool = pool, .node = 0, .nodes = 2, .complete = true, .key = {{1, 2}}};
    bool joined = net_address_parse(address, strlen(address), &to, error, sizeof(error)) == 0 &&
                  net_links_open(&link, &to, 1, &dial) == 0 &&
                  net_link_call(&link, &to, NET_JOIN, &join, sizeof(join), NET_JOINED, &join, sizeof(join), 10000) == 0;
    net_channel_close(&link.channel);
    return joined;
}


/* Starts a process that accepts one connection, reads the hello, and sends the message `body` of this type as its
 * answer. If `joins` is not NULL, it is the address of a node, and the answer must be a welcome; the process first
 * joins that node to the pool of the welcome. */
static inline pid_t start_other_node(unsigned *port, net_type type, const void *body, size_t bytes, const char *joins) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(here);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&here, sizeof(here)), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&here, &length), 0);
    *port = ntohs(here.sin_port);
    pid_t child = fork();
    if (child == 0) {
        char message[NET_HEAD_BYTES + 256], hello[256];
        net_head head = {.length = (uint32_t)(NET_HEAD_BYTES + bytes), .type = (uint16_t)type};
        int one = accept(listener, NULL, NULL);
        memcpy(message, &head, sizeof(head));
        memcpy(message + sizeof(head), body, bytes);
        bool done = recv(one, hello, sizeof(hello), 0) > 0;
        if (joins) {
            /* When the node has answered this request, it has also answered the earlier hello. */
            daemon_read_status(joins);
            done = done && join_as_first(joins, ((const net_welcome *)body)->pool);
        }
        done = done && send(one, message, head.length, MSG_NOSIGNAL) > 0;
        while (recv(one, hello, sizeof(hello), 0) > 0)
            continue;
        _exit(!done);
    }
    close(listener);
    return child;
}


typedef struct served { /* a pool of one node with an index */
    daemon_node node;
    far_pool *pool;
    far_session *session;
    far_index *index;
} served;


/* Starts a daemon, and opens a pool with an index on it. */
static inline void serve_an_index(served *s) {
    char uri[128];
    assert_true(daemon_start(&s->node, NULL, "--size " SIZE));
    snprintf(uri, sizeof(uri), "tcp://%s", s->node.address);
    assert_ok(far_pool_open(uri, NULL, &s->pool));
    assert_ok(far_session_open(s->pool, &s->session));
    assert_ok(far_index_create(s->session, "i", "dart", NULL, &s->index));
}


static inline void end_served(served *s) {
    far_index_close(s->index);
    far_session_close(s->session);
    far_pool_close(s->pool);
    assert_int_equal(daemon_stop(&s->node), 0);
}

#endif
