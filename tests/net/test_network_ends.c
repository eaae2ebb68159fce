/* Nothing that came last is forgotten: the end of a connection behind any number of bytes, an answer that is none, a
 * message that left in two halves. And who waits for the first of many answers does not wait for the last. */
#define _GNU_SOURCE
#include "fabric/net/chaos.h"
#include "fabric/net/serving.h"
#include "fabric/tcp.h"
#include "wire.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILL   16384u /* bytes that the node reads at once */
#define WINDOW (1 << 20)


static atomic_size_t largest_send; /* that this process asked for */


/* In place of the C library's. */
ssize_t send(int socket, const void *bytes, size_t count, int flags) {
    if (count > atomic_load(&largest_send))
        atomic_store(&largest_send, count);
    return syscall(SYS_sendto, socket, bytes, count, flags, NULL, 0);
}


/* ---- A node of this process, which runs when all that it is to meet has arrived ---- */

typedef struct waiting_node {
    net_server *server;
    pthread_t thread;
    char *log;
    size_t log_bytes;
    FILE *out;
} waiting_node;


static void node_up(waiting_node *n, const char *secret, bool chaos) {
    net_server_config config = {
        .size = 1 << 20, .threads = 1, .lease_ms = 10000, .tls = {.secret = secret}, .chaos = chaos};
    char error[128];
    int window = WINDOW;
    *n = (waiting_node){0};
    config.log = n->out = open_memstream(&n->log, &n->log_bytes);
    assert_int_equal(net_address_parse("127.0.0.1:0", 11, &config.listen, error, sizeof(error)), 0);
    assert_ok(net_server_open(&config, &n->server));
    assert_int_equal(setsockopt(n->server->listener, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window)), 0);
}


static void *run_node(void *arg) {
    net_server_run(arg);
    return NULL;
}


static void node_runs(waiting_node *n) {
    assert_int_equal(pthread_create(&n->thread, NULL, run_node, n->server), 0);
}


static void node_down(waiting_node *n) {
    net_server_stop(n->server);
    pthread_join(n->thread, NULL);
    net_server_close(n->server);
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


/* All of it is in the node's socket, and the end behind it. */
static void send_and_end(int socket, const char *bytes, size_t count) {
    int left = 1;
    assert_int_equal(send(socket, bytes, count, MSG_NOSIGNAL), (ssize_t)count);
    assert_int_equal(shutdown(socket, SHUT_WR), 0);
    while (left > 0) {
        assert_int_equal(ioctl(socket, SIOCOUTQ, &left), 0);
        usleep(100);
    }
}


/* Takes all that the node answers. True: then the node has closed the connection. */
static bool is_closed_by_node(int socket) {
    char answers[4096];
    struct pollfd one = {.fd = socket, .events = POLLIN};
    while (poll(&one, 1, 60000) > 0) /* else it never does */
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


/* The node takes a bounded number of bytes in a turn: the end may stand right behind them. */
static void the_end_is_seen_behind_any_number_of_bytes(void **state) {
    (void)state;
    static char bytes[12 * FILL + 64];
    for (unsigned fills = 0; fills < 12; fills++) {
        waiting_node n;
        node_up(&n, NULL, false);
        int one = dial_node(&n);
        send_and_end(one, bytes, make_pings(bytes, fills * FILL + 64));
        node_runs(&n);
        if (!is_closed_by_node(one))
            fail_msg("an end behind %u times what is read at once is not seen", fills);
        close(one);
        node_down(&n);
        free(n.log);
    }
}


/* With TLS a read may bring nothing that can be used yet: the end behind it is seen all the same. */
static void the_end_is_seen_behind_half_a_record(void **state) {
    (void)state;
    waiting_node n;
    char path[64];
    snprintf(path, sizeof(path), "/tmp/farindex-ends-%d", (int)getpid());
    daemon_secret(path, "0123456789abcdef0123456789abcdef");
    node_up(&n, path, false);
    int one = dial_node(&n);
    send_and_end(one, "\x16\x03\x01", 3); /* of a hello of TLS */
    node_runs(&n);
    assert_true(is_closed_by_node(one)); /* before its time is over */
    close(one);
    node_down(&n);
    assert_non_null(strstr(n.log, "was turned away: the connection was closed"));
    free(n.log);
    unlink(path);
}


/* ---- Answers leave while there is more to do ---- */

enum { READS = 12, READ_BYTES = 32 << 10 };

/* Runs a node that finds many READs in its socket; the largest piece in which it sent its answers. */
static size_t answer_many(bool chaos) {
    static char bytes[64 + READS * (NET_HEAD_BYTES + NET_VERB_BYTES)];
    net_head head = {NET_HEAD_BYTES + NET_VERB_BYTES, NET_BATCH, 1, 0};
    far_verb verb = {.kind = FAR_READ, .length = READ_BYTES};
    waiting_node n;
    node_up(&n, NULL, chaos);
    int one = dial_node(&n);
    size_t end = make_hello(bytes);
    for (unsigned i = 0; i < READS; i++) {
        memcpy(bytes + end, &head, sizeof(head));
        net_verb_put(bytes + end + sizeof(head), &verb, 0, READ_BYTES);
        end += head.length;
    }
    send_and_end(one, bytes, end);
    atomic_store(&largest_send, 0);
    node_runs(&n);
    assert_true(is_closed_by_node(one));
    close(one);
    node_down(&n);
    free(n.log);
    return atomic_load(&largest_send);
}


/* All the time that a node needs for what else it was asked would be silence to who waits. */
static void answers_leave_while_there_is_more_to_do(void **state) {
    (void)state;
    assert_in_range(answer_many(false), READ_BYTES, SERVING_WORK_MOST + READ_BYTES + NET_HEAD_BYTES);
    assert_in_range(answer_many(true), READ_BYTES, READ_BYTES + NET_HEAD_BYTES);
}


/* On a machine where each pause of a chaotic node lasts as long as others want the processor, it pauses for a small part
 * of the time only. */
static void chaos_does_not_stand_still_on_a_busy_machine(void **state) {
    (void)state;
    const uint64_t unit = 100, pause = 12000000;
    net_chaos chaos;
    uint64_t now = 1000000000, begun = now, paused = 0;
    net_chaos_start(&chaos, 1);
    for (unsigned units = 0; now - begun < 1000000000; units++, now += unit) {
        unsigned us;
        if (net_chaos_draw(&chaos, &us) == CHAOS_NONE || net_chaos_rests(&chaos, now))
            continue;
        net_chaos_paused(&chaos, now, now + pause);
        now += pause;
        paused += pause;
    }
    assert_in_range(paused, pause, (now - begun) / CHAOS_REST);
}


/* A daemon that was stopped for a minute has paused for a minute, so to say: it does not go without chaos for eight. */
static void chaos_does_not_rest_for_ever(void **state) {
    (void)state;
    net_chaos chaos;
    const uint64_t begun = 1000000000, ended = begun + 60000000000;
    net_chaos_start(&chaos, 1);
    net_chaos_paused(&chaos, begun, ended);
    assert_true(net_chaos_rests(&chaos, ended + CHAOS_REST_NS - 1));
    assert_false(net_chaos_rests(&chaos, ended + CHAOS_REST_NS));
}


/* ---- A node that is not what it seems: this test, in its place ---- */

static int take_place_of_node(wire *g) {
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_true(dup2(pair[0], ((tcp_conn *)g->conn)->nodes[0].channel.socket) >= 0);
    close(pair[0]);
    return pair[1];
}


/* The connection is lost at once, and in words: whoever waited for the answer would wait for all of the timeout. */
static void an_answer_to_nothing_loses_the_connection(void **state) {
    (void)state;
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


/* A node that takes what is sent to it lives, however long the message is; so does one whose client was stopped with
 * half a message. */
static void a_node_that_takes_more_is_not_silent(void **state) {
    (void)state;
    wire g;
    static char megabyte[1 << 20], taken[1 << 18];
    wire_up(&g, "");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    assert_int_equal(wire_ask(&g, FAR_ASK_CLAIM, 1, 1), 0);
    ((tcp_fabric *)g.fabric)->timeout_ms = 100; /* from now on: a slow node may take longer to let it in */
    int here = take_place_of_node(&g);
    far_verb verb = {.kind = FAR_WRITE, .length = sizeof(megabyte), .addr = 1 << 20, .local = megabyte};
    far_batch batch = {.verbs = &verb, .count = 1, .done = wire_batch_is_done};
    g.fabric->ops->post(g.conn, &batch);
    g.fabric->ops->poll(g.conn);
    usleep(110000);
    assert_true(recv(here, taken, sizeof(taken), 0) > 0);
    g.fabric->ops->poll(g.conn);
    assert_true(batch.pending);
    usleep(110000); /* it takes no more */
    g.fabric->ops->poll(g.conn);
    assert_false(batch.pending);
    assert_non_null(strstr(g.conn->gone, "does not answer in time"));
    close(here);
    wire_down(&g);
}


typedef struct ringer {
    int socket;
    atomic_bool stops;
} ringer;


static void *ring_all_the_time(void *arg) {
    ringer *r = arg;
    const net_head ring = {.length = NET_HEAD_BYTES, .type = NET_RING};
    while (!atomic_load(&r->stops) && send(r->socket, &ring, sizeof(ring), MSG_NOSIGNAL) > 0)
        usleep(20);
    return NULL;
}


static int greet(const waiting_node *n) {
    char bytes[256];
    int socket = dial_node(n);
    size_t end = make_hello(bytes);
    assert_int_equal(send(socket, bytes, end, 0), (ssize_t)end);
    return socket;
}


/* One asks for more than its queue takes, and reads; the queue is emptied beside notes for all. What it had asked for
 * and was not done yet is done all the same. (Nothing told the node to go on: it was silent.) */
static void notes_beside_a_full_queue_forget_no_request(void **state) {
    enum { BATCHES = 64, VERBS = 3, BYTES = 60000, ROUNDS = 25 };
    static char bytes[BATCHES * (NET_HEAD_BYTES + VERBS * NET_VERB_BYTES)], answers[4 << 20];
    const net_head head = {NET_HEAD_BYTES + VERBS * NET_VERB_BYTES, NET_BATCH, VERBS, 0};
    const far_verb verb = {.kind = FAR_READ, .length = BYTES};
    const size_t want = (size_t)BATCHES * (NET_HEAD_BYTES + VERBS * BYTES);
    waiting_node n;
    pthread_t thread;
    (void)state;
    node_up(&n, NULL, false);
    ringer r = {.socket = greet(&n)};
    int one = greet(&n);
    node_runs(&n);
    assert_true(recv(one, answers, NET_HEAD_BYTES + sizeof(net_welcome), MSG_WAITALL) > 0);
    assert_int_equal(pthread_create(&thread, NULL, ring_all_the_time, &r), 0);
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
            assert_int_equal(poll(&wait, 1, 60000), 1); /* else it is silent for ever */
            ssize_t more = recv(one, answers, sizeof(answers), 0);
            assert_true(more > 0);
            got += (size_t)more;
        }
    }
    atomic_store(&r.stops, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    close(one);
    close(r.socket);
    node_down(&n);
    free(n.log);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_is_seen_behind_any_number_of_bytes),
        cmocka_unit_test(the_end_is_seen_behind_half_a_record),
        cmocka_unit_test(notes_beside_a_full_queue_forget_no_request),
        cmocka_unit_test(answers_leave_while_there_is_more_to_do),
        cmocka_unit_test(chaos_does_not_stand_still_on_a_busy_machine),
        cmocka_unit_test(chaos_does_not_rest_for_ever),
        cmocka_unit_test(an_answer_to_nothing_loses_the_connection),
        cmocka_unit_test(a_node_that_takes_more_is_not_silent),
    };
    return cmocka_run_group_tests_name("net/ends", tests, NULL, NULL);
}
