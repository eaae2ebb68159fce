/* The turns of a daemon's loop, which runs in this process: the test stands between it and the kernel, says when it may go
 * on waiting, and notes whom it answers. */
#define _GNU_SOURCE
#include "conform.h"
#include "fabric/net/link.h"
#include "fabric/net/server.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MANY     400 /* requests that one client sends at once */
#define SENT_MAX (MANY + 64)
#define BOUND    32 /* answers to one client, while another waits: SERVES is 16 */

static pthread_t loop;
static atomic_bool loop_runs; /* `loop` is set */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool at_gate;
static atomic_uint looks;             /* of the loop: it asks the kernel, and would not sleep */
static unsigned short sent[SENT_MAX]; /* by the loop: the client's port, in order */
static atomic_uint sends;


static bool is_loop(void) {
    return atomic_load(&loop_runs) && pthread_equal(pthread_self(), loop);
}


/* In place of the C library's: the loop waits at the gate first. */
int epoll_wait(int epoll, struct epoll_event *events, int room, int ms) {
    if (is_loop()) {
        atomic_store(&at_gate, true);
        pthread_mutex_lock(&gate);
        pthread_mutex_unlock(&gate);
        atomic_store(&at_gate, false);
        atomic_fetch_add(&looks, ms == 0);
    }
    return (int)syscall(SYS_epoll_pwait, epoll, events, room, ms, NULL, 8);
}


ssize_t send(int socket, const void *bytes, size_t count, int flags) {
    struct sockaddr_in peer = {0};
    socklen_t length = sizeof(peer);
    if (is_loop() && getpeername(socket, (struct sockaddr *)&peer, &length) == 0) {
        unsigned at = atomic_load(&sends);
        if (at < SENT_MAX)
            sent[at] = ntohs(peer.sin_port);
        atomic_store(&sends, at + 1);
    }
    return syscall(SYS_sendto, socket, bytes, count, flags, NULL, 0);
}


static void *run_server(void *server) {
    loop = pthread_self();
    atomic_store(&loop_runs, true);
    net_server_run(server);
    return NULL;
}


typedef struct daemon_rig {
    net_server *server;
    pthread_t thread;
    net_address address;
} daemon_rig;


static void start(daemon_rig *r) {
    char error[128];
    net_server_config config = {.size = 1 << 20, .lease_ms = 10000, .threads = 1, .chaos = true};
    const char *where = "127.0.0.1:0";
    atomic_store(&loop_runs, false);
    atomic_store(&looks, 0);
    assert_int_equal(net_address_parse(where, strlen(where), &config.listen, error, sizeof(error)), 0);
    assert_int_equal(net_server_open(&config, &r->server), 0);
    where = net_server_address(r->server);
    assert_int_equal(net_address_parse(where, strlen(where), &r->address, error, sizeof(error)), 0);
    assert_int_equal(pthread_create(&r->thread, NULL, run_server, r->server), 0);
}


static void stop(daemon_rig *r) {
    net_server_stop(r->server);
    pthread_join(r->thread, NULL);
    net_server_close(r->server);
}


static void connect_to(daemon_rig *r, net_link *link) {
    net_dial dial = {NULL, false, NET_FOR_LOOK, 10000};
    assert_int_equal(net_links_open(link, &r->address, 1, &dial), 0);
}


static void ping(daemon_rig *r, net_link *link) {
    assert_int_equal(net_link_call(link, &r->address, NET_PING, NULL, 0, NET_PONG, NULL, 0, 10000), 0);
}


static unsigned short port_of(const net_link *link) {
    struct sockaddr_in here;
    socklen_t length = sizeof(here);
    assert_int_equal(getsockname(link->channel.socket, (struct sockaddr *)&here, &length), 0);
    return ntohs(here.sin_port);
}


static void send_pings(net_link *link, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        net_channel_send(&link->channel, NET_PING, 0, 0, NULL, 0);
    assert_int_equal(net_channel_flush(&link->channel), 0);
}


/* The loop stands at the closed gate: whatever comes now is there when it opens. */
static void close_gate(net_link *knocker) {
    pthread_mutex_lock(&gate);
    send_pings(knocker, 1); /* it may be past the gate, and asleep */
    while (!atomic_load(&at_gate))
        usleep(100);
    atomic_store(&sends, 0);
}


/* One client has sent hundreds of requests, the other one after it: it does not wait for all of the first one's answers.
 * With chaos each request is served by itself, so that few requests are many. */
static void a_busy_client_leaves_turns_to_others(void **state) {
    (void)state;
    daemon_rig r;
    net_link busy, other, knocker;
    start(&r);
    connect_to(&r, &busy);
    connect_to(&r, &other);
    connect_to(&r, &knocker);
    close_gate(&knocker);
    send_pings(&busy, MANY);
    send_pings(&other, 1);
    pthread_mutex_unlock(&gate);
    while (atomic_load(&sends) < MANY + 1)
        usleep(1000);
    unsigned at = 0, before = 0;
    for (; at < MANY && sent[at] != port_of(&other); at++)
        before += sent[at] == port_of(&busy); /* and not the knocker */
    print_message("%u answers to the busy client came before the one to the other\n", before);
    assert_int_equal(sent[at], port_of(&other));
    assert_in_range(before, 1, BOUND);
    net_channel_close(&busy.channel);
    net_channel_close(&other.channel);
    net_channel_close(&knocker.channel);
    stop(&r);
}


/* The loop looks before it sleeps (net/linger.h), and sleeps when nothing comes. */
static void a_loop_looks_and_then_sleeps(void **state) {
    (void)state;
    daemon_rig r;
    net_link link;
    start(&r);
    connect_to(&r, &link);
    ping(&r, &link);
    assert_true(atomic_load(&looks) > 0);
    for (unsigned before = 0; before != atomic_load(&looks); usleep(20000)) /* it ends, or this does not */
        before = atomic_load(&looks);
    net_channel_close(&link.channel);
    stop(&r);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_busy_client_leaves_turns_to_others),
        cmocka_unit_test(a_loop_looks_and_then_sleeps),
    };
    return cmocka_run_group_tests_name("net/turns", tests, NULL, NULL);
}
