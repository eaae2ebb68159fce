/* Tests that data at the end of a stream is not lost: the end of a connection after any number of bytes, an answer
 * without a request, and a message that was sent in two halves. A client that waits for the first of many answers does
 * not have to wait for the last one. */
#define _GNU_SOURCE
#include "fabric/node/chaos.h"
#include "fabric/node/serving.h"
#include "fabric/tcp/tcp.h"
#include "test.h"
#include "wire.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILL   16384u /* number of bytes that the node reads at once */
#define WINDOW (1 << 20)


static atomic_size_t largest_send; /* largest number of bytes in one send of this process */


/* Replaces the function of the C library, in order to record the largest send. */
ssize_t send(int socket, const void *bytes, size_t count, int flags) {
    if (count > atomic_load(&largest_send))
        atomic_store(&largest_send, count);
    return syscall(SYS_sendto, socket, bytes, count, flags, NULL, 0);
}


/* ---- A node in this process, which the test starts after everything has arrived ---- */

typedef struct waiting_node {
    net_server *server;
    pthread_t thread;
    char *log; /* text of the log of the node; set by close_node */
    FILE *out;
} waiting_node;


static void open_node(waiting_node *n, const char *secret, bool chaos) {
    net_server_options config = {
        .memory.size = 1 << 20, .threads = 1, .lease_ms = 10000, .tls = {.secret = secret}, .chaos = chaos};
    char error[128];
    int window = WINDOW;
    *n = (waiting_node){0};
    n->out = tmpfile();
    config.log = fileno(n->out);
    config.log_level = NET_LOG_INFO;
    assert_int_equal(net_address_parse("127.0.0.1:0", 11, &config.listen, error, sizeof(error)), 0);
    assert_ok(net_server_open(&config, &n->server));
    assert_int_equal(setsockopt(n->server->listener, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window)), 0);
}


static void *run_node(void *arg) {
    net_server_run(arg);
    return NULL;
}


static void start_node(waiting_node *n) {
    assert_int_equal(pthread_create(&n->thread, NULL, run_node, n->server), 0);
}


static void close_node(waiting_node *n) {
    net_server_stop(n->server);
    pthread_join(n->thread, NULL);
    net_server_close(n->server);
    n->log = calloc(1, 1 << 20);
    rewind(n->out);
    assert_true(fread(n->log, 1, (1 << 20) - 1, n->out) > 0);
    fclose(n->out);
}


static int dial_node(const waiting_node *n) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_port = htons((uint16_t)atoi(strchr(net_server_address(n->server), ':') + 1));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(one, (struct sockaddr *)&to, sizeof(to)), 0);
    return one;
}


/* Sends all bytes and the end of stream, and waits until both have arrived in the node's socket. */
static void send_and_end(int socket, const char *bytes, size_t count) {
    int left = 1;
    assert_int_equal(send(socket, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
    assert_int_equal(shutdown(socket, SHUT_WR), 0);
    while (left > 0) {
        assert_int_equal(ioctl(socket, SIOCOUTQ, &left), 0);
        usleep(100);
    }
}


/* Reads all answers. Returns true if the node has closed the connection after them. */
static bool is_closed_by_node(int socket) {
    char answers[4096];
    struct pollfd one = {.fd = socket, .events = POLLIN};
    /* If the node has not closed the connection after a minute, the test assumes that it never will. */
    while (poll(&one, 1, 60000) > 0)
        if (recv(socket, answers, sizeof(answers), 0) <= 0)
            return true;
    return false;
}


static size_t make_hello(char *to) {
    net_head head = {.length = NET_HEAD_BYTES + sizeof(net_hello), .type = NET_HELLO};
    net_hello body = {.magic = NET_MAGIC, .protocol = NET_PROTOCOL, .purpose = NET_FOR_SESSION};
    memcpy(to, &head, sizeof(head));
    memcpy(to + sizeof(head), &body, sizeof(body));
    return head.length;
}


static size_t make_pings(char *to, size_t bytes) {
    net_head ping = {.length = NET_HEAD_BYTES, .type = NET_PING};
    size_t end = make_hello(to);
    for (; end < bytes; end += ping.length)
        memcpy(to + end, &ping, sizeof(ping));
    return end;
}


/* A client sends any number of bytes and closes its end. The node handles a bounded number of bytes in one turn, so the
 * end of stream may directly follow them. It must still notice the end and close the connection. Fails without setting
 * the events again at the end of serve_peer. */
TEST(the_end_is_seen_after_any_number_of_bytes) {
    static char bytes[12 * FILL + 64];
    for (unsigned fills = 0; fills < 12; fills++) {
        waiting_node n;
        open_node(&n, NULL, false);
        int one = dial_node(&n);
        send_and_end(one, bytes, make_pings(bytes, fills * FILL + 64));
        start_node(&n);
        if (!is_closed_by_node(one))
            fail_msg("the node does not notice an end of stream after %u full reads", fills);
        close(one);
        close_node(&n);
        free(n.log);
    }
}


/* With TLS, a read may return bytes that are not a complete record. The node must still notice the end of stream that
 * follows them. */
TEST(the_end_is_seen_after_half_a_record) {
    waiting_node n;
    char path[64];
    snprintf(path, sizeof(path), "/tmp/farindex-ends-%d", (int)getpid());
    daemon_secret(path, "0123456789abcdef0123456789abcdef");
    open_node(&n, path, false);
    int one = dial_node(&n);
    send_and_end(one, "\x16\x03\x01", 3); /* the first bytes of a TLS hello, which are not a complete record */
    start_node(&n);
    /* The node closes the connection long before the time limit of the handshake. */
    assert_true(is_closed_by_node(one));
    close(one);
    close_node(&n);
    assert_non_null(strstr(n.log, "was turned away: the connection was closed"));
    free(n.log);
    unlink(path);
}


/* ---- Answers are sent while there is more work ---- */

enum { READS = 12, READ_BYTES = 32 << 10 };

/* Runs a node that finds many READs in its socket. Returns the size of its largest send. */
static size_t answer_many(bool chaos) {
    static char bytes[64 + READS * (NET_HEAD_BYTES + NET_VERB_BYTES)];
    net_head head = {NET_HEAD_BYTES + NET_VERB_BYTES, NET_BATCH, 1, 0};
    far_verb verb = {.kind = FAR_READ, .length = READ_BYTES};
    waiting_node n;
    open_node(&n, NULL, chaos);
    int one = dial_node(&n);
    size_t end = make_hello(bytes);
    for (unsigned i = 0; i < READS; i++) {
        memcpy(bytes + end, &head, sizeof(head));
        net_verb_put(bytes + end + sizeof(head), &verb, 0, READ_BYTES);
        end += head.length;
    }
    send_and_end(one, bytes, end);
    atomic_store(&largest_send, 0);
    start_node(&n);
    assert_true(is_closed_by_node(one));
    close(one);
    close_node(&n);
    free(n.log);
    return atomic_load(&largest_send);
}


/* A node that has many requests to serve sends its answers in portions of at most SERVING_WORK_MAX bytes, so that
 * clients do not take it for silent. With chaos it sends each answer separately. Fails without the limit of work in
 * server_serve_messages. */
TEST(answers_leave_while_there_is_more_to_do) {
    assert_in_range(answer_many(false), READ_BYTES, SERVING_WORK_MAX + READ_BYTES + NET_HEAD_BYTES);
    assert_in_range(answer_many(true), READ_BYTES, READ_BYTES + NET_HEAD_BYTES);
}


/* On a busy machine each pause takes as long as other processes use the processor. Then the daemon with --chaos pauses
 * for a small part of the time only. Fails without net_chaos_record_pause. */
TEST(chaos_pauses_little_on_a_busy_machine) {
    const uint64_t granule = 100, pause = 12000000;
    net_chaos chaos;
    uint64_t now = 1000000000, begun = now, paused = 0;
    net_chaos_init(&chaos, 1);
    for (unsigned units = 0; now - begun < 1000000000; units++, now += granule) {
        unsigned us;
        if (net_chaos_draw(&chaos, &us) == CHAOS_NONE || net_chaos_is_suspended(&chaos, now))
            continue;
        net_chaos_record_pause(&chaos, now, now + pause);
        now += pause;
        paused += pause;
    }
    assert_in_range(paused, pause, (now - begun) / CHAOS_SUSPEND_FACTOR);
}


/* A daemon that was stopped for a minute during a pause has made a pause of a minute. Pauses are then suspended for
 * CHAOS_SUSPEND_MAX_NS, not for eight minutes. */
TEST(chaos_is_not_suspended_for_ever) {
    net_chaos chaos;
    const uint64_t begun = 1000000000, ended = begun + 60000000000;
    net_chaos_init(&chaos, 1);
    net_chaos_record_pause(&chaos, begun, ended);
    assert_true(net_chaos_is_suspended(&chaos, ended + CHAOS_SUSPEND_MAX_NS - 1));
    assert_false(net_chaos_is_suspended(&chaos, ended + CHAOS_SUSPEND_MAX_NS));
}


/* ---- The test takes the place of a node ---- */

static int take_place_of_node(wire *g) {
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_true(dup2(pair[0], ((tcp_conn *)g->conn)->nodes[0].channel.socket) >= 0);
    close(pair[0]);
    return pair[1];
}


/* A node sends an answer that belongs to no request. The connection is lost at once with a message. Otherwise the
 * client would wait for the answer until the timeout. */
TEST(an_answer_without_a_request_loses_the_connection) {
    wire g;
    uint64_t word;
    wire_up(&g, "?timeout=3600s");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    int here = take_place_of_node(&g);
    far_verb verb = {.kind = FAR_READ, .length = 8, .local = &word};
    far_batch batch = {.verbs = &verb, .count = 1, .done = wire_batch_is_done};
    g.fabric->ops->post(g.conn, &batch);
    g.fabric->ops->poll(g.conn);
    net_head wrong = {.length = NET_HEAD_BYTES, .type = NET_PONG, .tag = 77};
    assert_int_equal(send(here, &wrong, sizeof(wrong), 0), sizeof(wrong));
    g.fabric->ops->poll(g.conn);
    assert_false(batch.pending);
    assert_int_equal(batch.status, FAR_ERR_UNREACHABLE);
    assert_non_null(strstr(g.conn->gone, "no message of this protocol"));
    close(here);
    wire_down(&g);
}


/* A node that accepts data is not silent, however long it takes to accept a large message. When it accepts no more data
 * for the timeout, the connection is lost. Fails if the timeout does not restart in flush_node. */
TEST(a_node_that_accepts_data_is_not_silent) {
    wire g;
    static char megabyte[1 << 20], taken[1 << 18];
    wire_up(&g, "");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    assert_int_equal(wire_ask(&g, FAR_CONTROL_CLAIM, 1, 1), 0);
    /* The timeout is set only now, because a slow node may need longer than 100 ms for the handshake. */
    ((tcp_fabric *)g.fabric)->timeout_ms = 100;
    int here = take_place_of_node(&g);
    far_verb verb = {.kind = FAR_WRITE, .length = sizeof(megabyte), .addr = 1 << 20, .local = megabyte};
    far_batch batch = {.verbs = &verb, .count = 1, .done = wire_batch_is_done};
    g.fabric->ops->post(g.conn, &batch);
    g.fabric->ops->poll(g.conn);
    usleep(110000);
    assert_true(recv(here, taken, sizeof(taken), 0) > 0);
    g.fabric->ops->poll(g.conn);
    assert_true(batch.pending);
    usleep(110000); /* The node does not accept more data, and the pause is longer than the timeout. */
    g.fabric->ops->poll(g.conn);
    assert_false(batch.pending);
    assert_non_null(strstr(g.conn->gone, "does not answer in time"));
    close(here);
    wire_down(&g);
}


typedef struct notifier {
    int socket;
    atomic_bool stops;
} notifier;


static void *notify_all_the_time(void *arg) {
    notifier *r = arg;
    const net_head ring = {.length = NET_HEAD_BYTES, .type = NET_NOTIFY_ALL};
    while (!atomic_load(&r->stops) && send(r->socket, &ring, sizeof(ring), MSG_NOSIGNAL) > 0)
        usleep(20);
    return NULL;
}


static int dial_and_send_hello(const waiting_node *n) {
    char bytes[256];
    int socket = dial_node(n);
    size_t end = make_hello(bytes);
    assert_int_equal(send(socket, bytes, end, 0), (ssize_t)end);
    return socket;
}


/* Client A sends more requests than its queue of answers can hold, and reads the answers. Client B makes the node send
 * notifications all the time. When the node sends a notification to A, it also sends answers from A's queue, so that
 * there is room for further answers. The node must then serve the requests of A that it had held back. Fails without
 * the call of serve_peer in send_all_notifications, because epoll does not report these requests again. */
TEST(notifications_with_a_full_queue_forget_no_request) {
    enum { BATCHES = 64, VERBS = 3, BYTES = 60000, ROUNDS = 25 };
    static char bytes[BATCHES * (NET_HEAD_BYTES + VERBS * NET_VERB_BYTES)], answers[4 << 20];
    const net_head head = {NET_HEAD_BYTES + VERBS * NET_VERB_BYTES, NET_BATCH, VERBS, 0};
    const far_verb verb = {.kind = FAR_READ, .length = BYTES};
    const size_t want = (size_t)BATCHES * (NET_HEAD_BYTES + VERBS * BYTES);
    waiting_node n;
    pthread_t thread;
    open_node(&n, NULL, false);
    notifier r = {.socket = dial_and_send_hello(&n)};
    int one = dial_and_send_hello(&n);
    start_node(&n);
    assert_true(recv(one, answers, NET_HEAD_BYTES + sizeof(net_welcome), MSG_WAITALL) > 0);
    assert_int_equal(pthread_create(&thread, NULL, notify_all_the_time, &r), 0);
    for (unsigned i = 0; i < BATCHES; i++) {
        char *at = bytes + (size_t)i * head.length;
        memcpy(at, &head, sizeof(head));
        for (unsigned k = 0; k < VERBS; k++)
            net_verb_put(at + sizeof(head) + k * NET_VERB_BYTES, &verb, 0, BYTES);
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct pollfd wait = {.fd = one, .events = POLLIN};
        assert_int_equal(send(one, bytes, sizeof(bytes), 0), (ssize_t)sizeof(bytes));
        for (size_t got = 0; got < want;) {
            assert_int_equal(poll(&wait, 1, 60000), 1); /* Otherwise the node stays silent for ever. */
            ssize_t more = recv(one, answers, sizeof(answers), 0);
            assert_true(more > 0);
            got += (size_t)more;
        }
    }
    atomic_store(&r.stops, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    close(one);
    close(r.socket);
    close_node(&n);
    free(n.log);
}
