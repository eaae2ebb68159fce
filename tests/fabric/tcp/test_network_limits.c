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
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>


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


/* Signals that arrive while a daemon ends, which takes long because its log is not read, have no effect on memory that
 * is freed. Under the address sanitizer it fails if serve.c keeps its signal handlers after net_server_run. */
TEST(a_daemon_that_ends_ignores_signals) {
    daemon_node node;
    char log[64];
    int status;
    snprintf(log, sizeof(log), "/tmp/farindex-full-log-%d", (int)getpid());
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
    while (waitpid(node.pid, &status, WNOHANG) == 0) {
        kill(node.pid, SIGTERM);
        usleep(1000);
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
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


/* ---- The latency of a client while strangers connect ---- */

#define LATENCY_ROUNDS 5
#define LATENCY_KEYS   1000u

typedef struct stranger {
    int socket;       /* -1: not connected */
    uint64_t back_at; /* time of its next connection in ns */
} stranger;


static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}


/* Connects, and sends nothing, garbage, or the beginning of a hello. */
static void connect_stranger(stranger *one, unsigned number, const struct sockaddr_in *to, int epoll) {
    static const char garbage[16] = "GET / HTTP/1.1\r\n";
    const net_head head = {NET_HEAD_BYTES + sizeof(net_hello), NET_HELLO, 0, 0};
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u32 = number};
    struct linger at_once = {1, 0}; /* The connection ends with a reset, so that the test does not run out of ports. */
    one->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (one->socket < 0)
        return;
    setsockopt(one->socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    if (connect(one->socket, (const struct sockaddr *)to, sizeof(*to)) < 0 ||
        (number % 3 == 1 && send(one->socket, garbage, sizeof(garbage), MSG_NOSIGNAL) < 0) ||
        (number % 3 == 2 && send(one->socket, &head, sizeof(head), MSG_NOSIGNAL) < 0) ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, one->socket, &event) < 0) {
        close(one->socket);
        one->socket = -1;
        one->back_at = now_ns() + 1000000000u;
    }
}


/* A process of `count` strangers. A stranger whose connection the daemon has closed comes back after a second. */
static void be_strangers(const struct sockaddr_in *to, unsigned count) {
    struct rlimit limit;
    struct epoll_event events[64];
    char rest[256];
    stranger *all = calloc(count, sizeof(*all));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (!all)
        _exit(1);
    for (unsigned i = 0; i < count; i++)
        all[i].socket = -1;
    for (unsigned next = 0;; next = (next + 1) % count) {
        if (all[next].socket < 0 && now_ns() >= all[next].back_at)
            connect_stranger(&all[next], next, to, epoll);
        int ready = epoll_wait(epoll, events, 64, next == 0 ? 1 : 0); /* a pause after each pass over all strangers */
        for (int i = 0; i < ready; i++) {
            stranger *one = &all[events[i].data.u32];
            if (recv(one->socket, rest, sizeof(rest), MSG_DONTWAIT) > 0)
                continue;
            close(one->socket);
            one->socket = -1;
            one->back_at = now_ns() + 1000000000u;
        }
    }
}


static int compare_times(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}


static void measure_gets(served *s, uint64_t *times, unsigned gets) {
    char value[8];
    for (unsigned i = 0; i < gets; i++) {
        uint32_t key = i * 7919 % LATENCY_KEYS;
        uint64_t begun = now_ns();
        assert_ok(far_get(s->session, s->index, &key, sizeof(key), value, sizeof(value), NULL));
        times[i] = now_ns() - begun;
    }
}


static struct sockaddr_in endpoint_of(const daemon_node *node) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strchr(node->address, ':') + 1))};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    return to;
}


/* Measures gets while strangers connect to a daemon, and lets a newcomer in. */
static void measure_gets_with_strangers(served *s, const daemon_node *visited, unsigned strangers, uint64_t *times,
                                        unsigned gets) {
    char uri[128];
    struct sockaddr_in to = endpoint_of(visited);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        be_strangers(&to, strangers);
    while (daemon_read_status(visited->address).connections < 10) /* the strangers have begun */
        usleep(1000);
    measure_gets(s, times, gets);
    snprintf(uri, sizeof(uri), "tcp://%s", visited->address);
    put_and_get(uri);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}


static double quantile_us(const uint64_t *sorted, unsigned count, double part) {
    return (double)sorted[(unsigned)((double)(count - 1) * part)] / 1e3;
}


/* A client gets keys while strangers connect again and again. No get fails, and a newcomer gets in. The test prints the
 * times of a get without strangers, with strangers at another daemon on this host, which also need processor time, and
 * with strangers at the client's daemon. The environment variable STRANGERS gives their number; a campaign uses 5000.
 */
TEST(a_client_works_while_strangers_connect) {
    static const char *const where[] = {"no strangers", "strangers at another daemon", "strangers at this daemon"};
    unsigned strangers = getenv("STRANGERS") ? (unsigned)atoi(getenv("STRANGERS")) : 200;
    unsigned gets = getenv("STRANGERS") ? 20000 : 500, all = LATENCY_ROUNDS * gets;
    uint64_t *times[3];
    double p99[3];
    served s;
    daemon_node other;
    serve_an_index(&s);
    assert_true(daemon_start(&other, NULL, "--size 16M"));
    for (uint32_t key = 0; key < LATENCY_KEYS; key++)
        assert_ok(far_put(s.session, s.index, &key, sizeof(key), "value", 5));
    for (unsigned i = 0; i < 3; i++)
        assert_non_null(times[i] = malloc(all * sizeof(*times[i])));
    for (unsigned round = 0; round < LATENCY_ROUNDS; round++) {
        measure_gets(&s, times[0] + round * gets, gets);
        measure_gets_with_strangers(&s, &other, strangers, times[1] + round * gets, gets);
        measure_gets_with_strangers(&s, &s.node, strangers, times[2] + round * gets, gets);
    }
    for (unsigned i = 0; i < 3; i++) {
        qsort(times[i], all, sizeof(*times[i]), compare_times);
        p99[i] = quantile_us(times[i], all, 0.99);
        printf("%s: p50 %.1f us, p99 %.1f us, %.2f x\n", where[i], quantile_us(times[i], all, 0.5), p99[i],
               p99[i] / p99[0]);
        free(times[i]);
    }
    assert_int_equal(daemon_stop(&other), 0);
    end_served(&s);
}


/* ---- Memory ---- */

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
