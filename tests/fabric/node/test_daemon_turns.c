/* Tests of the turns that a loop of the daemon gives to its connections. The daemon runs in this process. The test
 * replaces epoll_wait and send of the C library: the replacement of epoll_wait holds the loop at a barrier until the test
 * lets it continue, and the replacement of send records to which clients the loop sends. */
#define _GNU_SOURCE
#include "conform.h"
#include "fabric/node/server.h"
#include "fabric/tcp/link.h"
#include "test.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MANY     400 /* number of requests that one client sends at once */
#define SENT_MAX (MANY + 64)
#define BOUND    32 /* Largest number of answers to one client while another client waits; SERVES_PER_TURN is 16. */

static pthread_t loop;
static atomic_bool loop_runs; /* true when `loop` contains the thread of the daemon's loop */
static pthread_mutex_t barrier = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool at_barrier;
static atomic_uint polls; /* number of times that the loop polled, that is, called epoll_wait without a timeout */
static unsigned short sent[SENT_MAX]; /* ports of the clients to which the loop has sent, in order */
static atomic_uint sends;


static bool is_loop(void) {
    return atomic_load(&loop_runs) && pthread_equal(pthread_self(), loop);
}


/* Replaces the function of the C library. The loop of the daemon first waits at the barrier, which is a mutex that the
 * test may hold. */
int epoll_wait(int epoll, struct epoll_event *events, int room, int ms) {
    if (is_loop()) {
        atomic_store(&at_barrier, true);
        pthread_mutex_lock(&barrier);
        pthread_mutex_unlock(&barrier);
        atomic_store(&at_barrier, false);
        atomic_fetch_add(&polls, ms == 0);
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


static atomic_bool no_descriptors; /* accept4 fails, as if no descriptor were available */
static atomic_uint accepts;        /* number of calls of accept4, which only the gate of the daemon calls */
static pthread_mutex_t accepting =
    PTHREAD_MUTEX_INITIALIZER; /* the test may hold it, so that accept4 does not return */


int accept4(int listener, struct sockaddr *address, socklen_t *length, int flags) {
    atomic_fetch_add(&accepts, 1);
    pthread_mutex_lock(&accepting);
    pthread_mutex_unlock(&accepting);
    if (atomic_load(&no_descriptors)) {
        errno = EMFILE;
        return -1;
    }
    return (int)syscall(SYS_accept4, listener, address, length, flags);
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


static void start_daemon(daemon_rig *r) {
    char error[128];
    net_server_options config = {.memory.size = 1 << 20, .lease_ms = 10000, .threads = 1, .chaos = true};
    const char *where = "127.0.0.1:0";
    atomic_store(&loop_runs, false);
    atomic_store(&polls, 0);
    assert_int_equal(net_address_parse(where, strlen(where), &config.listen, error, sizeof(error)), 0);
    assert_int_equal(net_server_open(&config, &r->server), 0);
    where = net_server_address(r->server);
    assert_int_equal(net_address_parse(where, strlen(where), &r->address, error, sizeof(error)), 0);
    assert_int_equal(pthread_create(&r->thread, NULL, run_server, r->server), 0);
}


static void stop_daemon(daemon_rig *r) {
    net_server_stop(r->server);
    pthread_join(r->thread, NULL);
    net_server_close(r->server);
}


static void connect_to(daemon_rig *r, net_link *link) {
    net_dial_options dial = {NULL, false, NET_FOR_INSPECTION, 10000};
    assert_int_equal(net_links_open(link, &r->address, 1, &dial), 0);
}


static void ping_daemon(daemon_rig *r, net_link *link) {
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


/* Closes the barrier and waits until the loop waits at the barrier. All messages that clients send after that have arrived
 * when the barrier opens. */
static void close_barrier(net_link *knocker) {
    pthread_mutex_lock(&barrier);
    /* The request wakes the loop, which may have passed the barrier and be asleep in the real epoll_wait. */
    send_pings(knocker, 1);
    while (!atomic_load(&at_barrier))
        usleep(100);
    atomic_store(&sends, 0);
}


/* A busy client has sent 400 requests, and another client sends one request after that. The other client is answered
 * after at most 32 answers to the busy one. With chaos each request is served separately, so that a few requests are
 * many turns. Fails without the limit SERVES_PER_TURN in serve_peer. */
TEST(a_busy_client_leaves_turns_to_others) {
    daemon_rig r;
    net_link busy, other, knocker;
    start_daemon(&r);
    connect_to(&r, &busy);
    connect_to(&r, &other);
    connect_to(&r, &knocker);
    /* After an answer to a ping, the connection belongs to the loop and not to the gate of the daemon any more. */
    ping_daemon(&r, &busy);
    ping_daemon(&r, &other);
    close_barrier(&knocker);
    send_pings(&busy, MANY);
    send_pings(&other, 1);
    pthread_mutex_unlock(&barrier);
    while (atomic_load(&sends) < MANY + 1)
        usleep(1000);
    unsigned at = 0, before = 0;
    for (; at < MANY && sent[at] != port_of(&other); at++)
        /* Answers to the client that closed the barrier (the knocker) are not counted. */
        before += sent[at] == port_of(&busy);
    print_message("%u answers to the busy client were sent before the answer to the other client\n", before);
    assert_int_equal(sent[at], port_of(&other));
    assert_in_range(before, 1, BOUND);
    net_channel_close(&busy.channel);
    net_channel_close(&other.channel);
    net_channel_close(&knocker.channel);
    stop_daemon(&r);
}


/* After a request, the loop polls for more (net/busy_poll.h), and it sleeps when no further request arrives. */
TEST(a_loop_polls_and_then_sleeps) {
    daemon_rig r;
    net_link link;
    start_daemon(&r);
    connect_to(&r, &link);
    ping_daemon(&r, &link);
    assert_true(atomic_load(&polls) > 0);
    /* The test ends only if the loop stops polling. */
    for (unsigned before = 0; before != atomic_load(&polls); usleep(20000))
        before = atomic_load(&polls);
    net_channel_close(&link.channel);
    stop_daemon(&r);
}


/* Begins a connection to the daemon, which sends no hello. Returns its socket. */
static int connect_stranger(const daemon_rig *r) {
    int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(r->address.port)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(stranger, (struct sockaddr *)&to, sizeof(to)), 0);
    return stranger;
}


static void wait_for_accepts(unsigned count) {
    while (atomic_load(&accepts) < count)
        usleep(1000);
}


/* No descriptor is available while a newcomer connects. The daemon does not try to accept the newcomer again and again,
 * although epoll would report the listener in each turn of the gate. When there are descriptors again, the newcomer gets
 * in. Fails without pause_accepting, because the gate then calls accept4 without a pause. */
TEST(accepting_without_descriptors_pauses) {
    enum { PINGS = 500 };
    daemon_rig r;
    net_link client, newcomer;
    start_daemon(&r);
    connect_to(&r, &client);
    atomic_store(&accepts, 0);
    atomic_store(&no_descriptors, true);
    int stranger = connect_stranger(&r);
    wait_for_accepts(1);
    for (unsigned i = 0; i < PINGS; i++)
        ping_daemon(&r, &client);
    assert_in_range(atomic_load(&accepts), 1, PINGS / 2);
    atomic_store(&no_descriptors, false);
    connect_to(&r, &newcomer);
    net_channel_close(&newcomer.channel);
    net_channel_close(&client.channel);
    close(stranger);
    stop_daemon(&r);
}


/* The gate of the daemon accepts a connection and is delayed for a long time. Meanwhile a loop of the daemon serves its
 * client. Fails, by never ending, if a loop that serves clients accepts connections. */
TEST(accepting_does_not_delay_clients) {
    enum { PINGS = 50 };
    daemon_rig r;
    net_link client;
    start_daemon(&r);
    connect_to(&r, &client);
    atomic_store(&accepts, 0);
    pthread_mutex_lock(&accepting);
    int stranger = connect_stranger(&r);
    wait_for_accepts(1);
    for (unsigned i = 0; i < PINGS; i++)
        ping_daemon(&r, &client);
    pthread_mutex_unlock(&accepting);
    net_channel_close(&client.channel);
    close(stranger);
    stop_daemon(&r);
}
