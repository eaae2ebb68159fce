/* A relay between client and daemon that splits what goes through it anywhere, takes its time, and cuts: messages arrive
 * whole or not at all, and who is cut is told so and finds what was acknowledged. */
#define _GNU_SOURCE
#include "base/random.h"
#include "daemons.h"
#include "guest.h"

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

typedef struct traffic {                   /* inside the relay */
    struct pollfd ends[1 + 2 * PAIRS_MAX]; /* the listener, then pairs */
    unsigned count;
    far_random random;
    unsigned piece, delay_us; /* at most so many bytes at once; waits so long now and then */
} traffic;

static volatile sig_atomic_t cut_all;


/* ---- The relay ---- */

static void note_cut(int number) {
    (void)number;
    cut_all = 1;
}


static int dial(unsigned port) {
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
    int here = accept(t->ends[0].fd, NULL, NULL), there = dial(port);
    if (here < 0 || there < 0 || t->count + 2 > 1 + 2 * PAIRS_MAX)
        _exit(1);
    int on = 1; /* each piece leaves at once */
    setsockopt(here, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(there, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    t->ends[t->count++] = (struct pollfd){.fd = here, .events = POLLIN};
    t->ends[t->count++] = (struct pollfd){.fd = there, .events = POLLIN};
}


/* False: the connection has ended. */
static bool pass_on(traffic *t, unsigned at) {
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
            if (i < t->count && t->ends[i].revents && !pass_on(t, i))
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

static void messages_arrive_whole_however_they_are_split(void **state) {
    (void)state;
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


/* Puts until it is cut; what was acknowledged is there, under new sessions. */
static void who_is_cut_is_told_and_finds_what_was_acknowledged(void **state) {
    (void)state;
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
            if (i == 20 + round) /* what is under way meets the cut */
                kill(r.pid, SIGUSR1);
            if ((err = far_put(g.session, g.index, &key, sizeof(key), &next, sizeof(next))) == 0)
                last[key] = next;
        }
        assert_true(err == FAR_ERR_UNREACHABLE || err == FAR_ERR_FENCED);
        guest_leave(&g);
        while (guest_living(&whole) > 2)
            continue;
        for (uint64_t key = 0; key < KEYS; key++) {
            uint64_t got = 0;
            if (last[key] == 0)
                continue;
            assert_ok(far_get(whole.session, whole.index, &key, sizeof(key), &got, sizeof(got), NULL));
            assert_true(got == last[key] || got == next - 1); /* the one that was under way may have been done */
            last[key] = got;
        }
    }
    assert_index_is_sound(whole.session, whole.index);
    assert_pool_is_sound(whole.session);
    guest_leave(&whole);
    end_relay(&r);
    assert_int_equal(daemon_stop(&node), 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_whole_however_they_are_split),
        cmocka_unit_test(who_is_cut_is_told_and_finds_what_was_acknowledged),
    };
    return cmocka_run_group_tests_name("net/relay", tests, NULL, NULL);
}
