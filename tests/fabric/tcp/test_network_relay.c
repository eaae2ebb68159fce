/* Tests with a relay between client and daemon that splits the data anywhere, delays it, and cuts connections. Messages
 * arrive completely or not at all. A client gets an error if its connection was cut, and its acknowledged puts are
 * kept. */
#define _GNU_SOURCE
#include "base/random.h"
#include "daemons.h"
#include "guest.h"
#include "test.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE      "16M"
#define PAIRS_MAX 32
#define KEYS      48
#define CUTS      12

typedef struct relay {
    pid_t pid;
    unsigned port;
} relay;

typedef struct traffic {                   /* state of the relay process */
    struct pollfd ends[1 + 2 * PAIRS_MAX]; /* sockets to poll: the listener, then pairs of connected sockets */
    unsigned count;
    far_random random;
    /* `piece`: largest number of bytes passed on at once; `delay_us`: longest delay in us, which occurs now and then */
    unsigned piece, delay_us;
} traffic;

static volatile sig_atomic_t cut_all;


/* ---- The relay ---- */

static void note_cut(int number) {
    (void)number;
    cut_all = 1;
}


static int dial_port(unsigned port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    return connect(one, (struct sockaddr *)&to, sizeof(to)) == 0 ? one : -1;
}


static void close_pair(traffic *t, unsigned at) {
    unsigned first = at % 2 ? at : at - 1;
    close(t->ends[first].fd);
    close(t->ends[first + 1].fd);
    t->ends[first] = t->ends[t->count - 2];
    t->ends[first + 1] = t->ends[t->count - 1];
    t->count -= 2;
}


static void accept_pair(traffic *t, unsigned port) {
    int here = accept(t->ends[0].fd, NULL, NULL), there = dial_port(port);
    if (here < 0 || there < 0 || t->count + 2 > 1 + 2 * PAIRS_MAX)
        _exit(1);
    int on = 1; /* With this option, the socket sends each piece at once. */
    setsockopt(here, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(there, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    t->ends[t->count++] = (struct pollfd){.fd = here, .events = POLLIN};
    t->ends[t->count++] = (struct pollfd){.fd = there, .events = POLLIN};
}


/* Passes on one piece of data. Returns false if the connection has ended. */
static bool forward_data(traffic *t, unsigned at) {
    char bytes[4096];
    size_t most = 1 + far_random_below(&t->random, t->piece);
    ssize_t got = recv(t->ends[at].fd, bytes, most, 0);
    if (t->delay_us && far_random_chance(&t->random, 1, 16))
        usleep((useconds_t)far_random_below(&t->random, t->delay_us));
    return got > 0 && send(t->ends[at % 2 ? at + 1 : at - 1].fd, bytes, (size_t)got, MSG_NOSIGNAL) == got;
}


static void be_relay(traffic *t, unsigned port) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGUSR1, note_cut);
    for (;;) {
        int ready = poll(t->ends, t->count, 50);
        if (cut_all)
            while (t->count > 1)
                close_pair(t, 1);
        cut_all = 0;
        for (unsigned i = t->count; ready > 0 && i-- > 1;)
            if (i < t->count && t->ends[i].revents && !forward_data(t, i))
                close_pair(t, i);
        if (ready > 0 && t->ends[0].revents)
            accept_pair(t, port);
        for (unsigned i = 0; i < t->count; i++)
            t->ends[i].revents = 0;
    }
}


static relay start_relay(const char *to, unsigned piece, unsigned delay_us) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(here);
    traffic t = {.count = 1, .piece = piece, .delay_us = delay_us};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&here, sizeof(here)), 0);
    assert_int_equal(listen(listener, 16), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&here, &length), 0);
    t.ends[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    far_random_seed(&t.random, 7);
    relay r = {.port = ntohs(here.sin_port)};
    r.pid = fork();
    if (r.pid == 0)
        be_relay(&t, (unsigned)atoi(strchr(to, ':') + 1));
    close(listener);
    return r;
}


static void end_relay(relay *r) {
    kill(r->pid, SIGKILL);
    waitpid(r->pid, NULL, 0);
}


/* ---- Tests ---- */

/* The relay passes on pieces of a few bytes, with delays, plain or with TLS. All puts and gets have the right results.
 */
TEST(messages_arrive_whole_however_they_are_split) {
    static const struct {
        bool secret;
        unsigned piece, delay_us;
    } cases[] = {{false, 3, 0}, {false, 300, 400}, {true, 7, 0}};
    for (unsigned i = 0; i < 3; i++) {
        daemon_node node;
        guest g;
        char uri[160], path[64], value[900];
        snprintf(path, sizeof(path), "/tmp/farindex-relay-%d", (int)getpid());
        daemon_secret(path, "0123456789abcdef0123456789abcdef");
        assert_true(daemon_start(&node, NULL, "--size " SIZE " %s %s", cases[i].secret ? "--secret" : "",
                                 cases[i].secret ? path : ""));
        relay r = start_relay(node.address, cases[i].piece, cases[i].delay_us);
        snprintf(uri, sizeof(uri), "tcp://127.0.0.1:%u%s%s", r.port, cases[i].secret ? "?secret=" : "",
                 cases[i].secret ? path : "");
        assert_ok(guest_enter(&g, uri, "smart"));
        for (uint64_t key = 0; key < KEYS; key++) {
            memset(value, (int)key, sizeof(value));
            assert_ok(far_put(g.session, g.index, &key, sizeof(key), value, 20 * (key + 1) % sizeof(value)));
        }
        for (uint64_t key = 0; key < KEYS; key++) {
            memset(value, (int)key, sizeof(value));
            assert_value(g.session, g.index, &key, sizeof(key), value, 20 * (key + 1) % sizeof(value));
        }
        guest_leave(&g);
        end_relay(&r);
        assert_int_equal(daemon_stop(&node), 0);
        unlink(path);
    }
}


/* A client puts until its connection is cut, and gets an error then. The acknowledged puts are there; a put that was
 * under way may or may not have happened. This repeats with new sessions. */
TEST(a_cut_connection_is_an_error_and_keeps_acknowledged_puts) {
    daemon_node node;
    guest whole, g;
    char near_uri[128], far_uri[128];
    uint64_t next = 1, last[KEYS] = {0};
    assert_true(daemon_start(&node, NULL, "--size " SIZE));
    relay r = start_relay(node.address, 200, 0);
    snprintf(near_uri, sizeof(near_uri), "tcp://%s", node.address);
    snprintf(far_uri, sizeof(far_uri), "tcp://127.0.0.1:%u?timeout=5s", r.port);
    assert_ok(guest_enter(&whole, near_uri, "smart"));
    for (unsigned round = 0; round < CUTS; round++) {
        int err = guest_enter(&g, far_uri, NULL);
        for (unsigned i = 0; err == 0; i++, next++) {
            uint64_t key = next % KEYS;
            if (i == 20 + round) /* The signal makes the relay cut the connection while requests are under way. */
                kill(r.pid, SIGUSR1);
            if ((err = far_put(g.session, g.index, &key, sizeof(key), &next, sizeof(next))) == 0)
                last[key] = next;
        }
        assert_true(err == FAR_ERR_UNREACHABLE || err == FAR_ERR_FENCED);
        guest_leave(&g);
        while (guest_count_live_sessions(&whole) > 2)
            continue;
        for (uint64_t key = 0; key < KEYS; key++) {
            uint64_t got = 0;
            if (last[key] == 0)
                continue;
            assert_ok(far_get(whole.session, whole.index, &key, sizeof(key), &got, sizeof(got), NULL));
            /* The put that was under way at the cut may have happened. */
            assert_true(got == last[key] || got == next - 1);
            last[key] = got;
        }
    }
    assert_index_is_sound(whole.session, whole.index);
    assert_pool_is_sound(whole.session);
    guest_leave(&whole);
    end_relay(&r);
    assert_int_equal(daemon_stop(&node), 0);
}
