/* Tests of peers that use up the resources of a daemon: its log, its descriptors, its memory, and its places for newcomers.
 * Clients go on, and newcomers get in. */
#define _GNU_SOURCE
#include "fabric/node/admission.h"
#include "fabric/node/serving.h"
#include "left_out.h"
#include "network_rig.h"
#include "test.h"
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>


static int connect_to(const char *address) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1))};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(one >= 0);
    assert_int_equal(connect(one, (struct sockaddr *)&to, sizeof(to)), 0);
    return one;
}


/* Waits until the daemon has closed the connection. */
static void await_end(int one) {
    char rest[4096];
    while (recv(one, rest, sizeof(rest), 0) > 0)
        continue;
    close(one);
}


/* The daemon's log goes to a pipe without a reader, with room for some lines only. 300 strangers send garbage, which
 * leads to a line each. A client is then served as before. Fails if the daemon waits for the pipe. */
TEST(an_unread_log_does_not_stop_the_daemon) {
    daemon_node node;
    char log[64], uri[128];
    snprintf(log, sizeof(log), "/tmp/farindex-unread-log-%d", (int)getpid());
    unlink(log);
    assert_int_equal(mkfifo(log, 0600), 0);
    int end = open(log, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(end >= 0);
    assert_true(fcntl(end, F_SETPIPE_SZ, 4096) >= 4096);
    assert_true(daemon_start(&node, log, "--size " SIZE));
    for (unsigned i = 0; i < 300; i++) {
        int one = connect_to(node.address);
        assert_int_equal(send(one, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
        await_end(one);
    }
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    put_and_get(uri);
    assert_int_equal(daemon_stop(&node), 0);
    close(end);
    unlink(log);
}


/* 5000 strangers connect while a client works, and most of them send nothing. The client goes on, its session is not
 * lost, and a newcomer gets in while the last strangers are still connected. Fails without evict_oldest. */
TEST(strangers_do_not_keep_newcomers_out) {
    enum { STRANGERS = 5000, KEPT = 400 };
    static int sockets[KEPT];
    served s;
    char uri[128];
    serve_an_index(&s);
    for (unsigned i = 0; i < STRANGERS; i++) {
        if (i >= KEPT)
            close(sockets[i % KEPT]);
        sockets[i % KEPT] = connect_to(s.node.address);
        if (i % 100 == 0)
            assert_ok(far_put(s.session, s.index, &i, sizeof(i), &i, sizeof(i)));
    }
    snprintf(uri, sizeof(uri), "tcp://%s", s.node.address);
    put_and_get(uri);
    assert_index_is_sound(s.session, s.index);
    for (unsigned i = 0; i < KEPT; i++)
        close(sockets[i]);
    end_served(&s);
}


static uint64_t resident_bytes(const daemon_node *node) {
    char path[64], line[256];
    uint64_t kb = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)node->pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        if (strncmp(line, "RssAnon:", 8) == 0)
            kb = strtoull(line + 8, NULL, 10);
    fclose(file);
    return kb << 10;
}


#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif


/* 300 clients send more requests than the sockets can hold answers for, and read nothing. The daemon stores at most
 * SERVING_QUEUED_MAX and one message for each. Then it serves another client. Fails with a larger SERVING_QUEUED_MAX. */
TEST(clients_that_do_not_read_take_little_memory) {
    enum { CLIENTS = 300, REQUESTS = 256 };
    static net_link links[CLIENTS];
    daemon_node node;
    char uri[128];
    assert_true(daemon_start(&node, NULL, "--size " SIZE));
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    put_and_get(uri);
    uint64_t before = resident_bytes(&node);
    for (unsigned i = 0; i < CLIENTS; i++) {
        int window = 4096;
        char body[NET_VERB_BYTES];
        far_verb verb = {.kind = FAR_READ, .length = NET_PIECE_BYTES};
        links[i] = wire_dial(node.address, NET_FOR_SESSION);
        setsockopt(links[i].channel.socket, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window));
        net_verb_put(body, &verb, 0, verb.length);
        for (unsigned k = 0; k < REQUESTS; k++)
            net_channel_send(&links[i].channel, NET_BATCH, 1, k, body, sizeof(body));
        net_channel_flush(&links[i].channel);
    }
    /* The daemon serves its connections in turn, so it has filled all queues when it has answered this client often. */
    for (unsigned i = 0; i < 20; i++)
        put_and_get(uri);
    uint64_t grown = resident_bytes(&node) - before;
    print_message("%u clients that do not read took %llu KiB each\n", CLIENTS,
                  (unsigned long long)(grown / CLIENTS >> 10));
#ifdef SANITIZED
    left_out("the memory of the daemon for clients that do not read", "a sanitizer keeps freed memory");
#else
    assert_in_range(grown / CLIENTS, 0, SERVING_QUEUED_MAX + NET_MESSAGE_MAX);
#endif
    for (unsigned i = 0; i < CLIENTS; i++)
        net_channel_close(&links[i].channel);
    assert_int_equal(daemon_stop(&node), 0);
}


/* A connection without a hello announces a long message. The node refuses it at once, before the message has arrived. */
TEST(strangers_cannot_send_long_messages) {
    daemon_node node;
    assert_true(daemon_start(&node, NULL, "--size " SIZE));
    net_head head = {.length = NET_MESSAGE_MAX, .type = NET_HELLO};
    int one = connect_to(node.address);
    assert_int_equal(send(one, &head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
    await_end(one);
    assert_int_equal(daemon_read_status(node.address).refused, 1);
    assert_int_equal(daemon_stop(&node), 0);
}


/* Eight connections from this address are permitted. Further ones are refused in words, until one of the eight ends. */
TEST(connections_from_one_address_are_limited) {
    enum { MOST = 8 };
    daemon_node node;
    net_link links[MOST], further;
    net_address address;
    char error[128];
    const net_dial_options how = {.purpose = NET_FOR_SESSION, .timeout_ms = 10000};
    assert_true(daemon_start(&node, NULL, "--size " SIZE " --connections-per-address %d", MOST));
    assert_int_equal(net_address_parse(node.address, strlen(node.address), &address, error, sizeof(error)), 0);
    for (unsigned i = 0; i < MOST; i++)
        links[i] = wire_dial(node.address, NET_FOR_SESSION);
    assert_int_equal(net_links_open(&further, &address, 1, &how), FAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(far_last_error(), "too many connections from its address"));
    net_channel_close(&links[0].channel);
    while (net_links_open(&further, &address, 1, &how) < 0) /* until the node has read the end of links[0] */
        usleep(1000);
    net_channel_close(&further.channel);
    for (unsigned i = 1; i < MOST; i++)
        net_channel_close(&links[i].channel);
    assert_int_equal(daemon_stop(&node), 0);
}


/* The limit of descriptors of the daemon is lowered below the number that it uses, so that accept fails. The client is
 * served meanwhile. After the limit was raised, newcomers get in. (test_daemon_turns tests that nothing delays clients.) */
TEST(a_daemon_without_descriptors_serves_its_clients) {
    enum { SILENT = 60 };
    int sockets[SILENT];
    char uri[128];
    struct rlimit own;
    served s;
    serve_an_index(&s);
    assert_int_equal(prlimit(s.node.pid, RLIMIT_NOFILE, NULL, &own), 0);
    struct rlimit none = {4, own.rlim_max};
    assert_int_equal(prlimit(s.node.pid, RLIMIT_NOFILE, &none, NULL), 0);
    for (unsigned i = 0; i < SILENT; i++) {
        sockets[i] = connect_to(s.node.address);
        assert_ok(far_put(s.session, s.index, &i, sizeof(i), &i, sizeof(i)));
    }
    assert_int_equal(prlimit(s.node.pid, RLIMIT_NOFILE, &own, NULL), 0);
    snprintf(uri, sizeof(uri), "tcp://%s", s.node.address);
    put_and_get(uri);
    for (unsigned i = 0; i < SILENT; i++)
        close(sockets[i]);
    end_served(&s);
}
