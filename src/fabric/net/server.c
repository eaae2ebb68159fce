/* The daemon: sockets and threads. A loop sleeps until one of its connections has something, and has no clock but the
 * deadline of handshakes and, while a peer has not taken what was sent to it, the lease. */
#define _GNU_SOURCE
#include "base/error.h"
#include "base/host.h"
#include "fabric/net/chaos.h"
#include "fabric/net/serving.h"
#include "farindex.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define EVENTS        64
#define STRANGERS_MAX 256 /* connections that are not greeted yet */
#define GREET_MS      5000
#define LOOK_MS       500 /* between two looks for silent hosts, unless an eighth of the lease is less */
#define FILLS         8   /* reads of one connection's socket in a turn ... */
#define SERVES        16  /* ... and calls of server_serve for it; then the other connections have their turn */
#define BACKLOG       512

static _Thread_local net_chaos chaos;


static uint64_t now_ns(void) {
    return far_host_now(&far_host_threads);
}


static uint64_t now_ms(void) {
    return now_ns() / 1000000u;
}


/* ---- Connections ---- */

/* Edge-triggered: level-triggered, the kernel would look at each socket once more after it was read. */
static void watch(server_peer *peer, bool reading, bool writing, int how) {
    struct epoll_event event = {.events = EPOLLET | (reading ? EPOLLIN | EPOLLRDHUP : 0u) | (writing ? EPOLLOUT : 0u),
                                .data.ptr = peer};
    if (epoll_ctl(peer->loop->epoll, how, peer->channel.socket, &event) < 0)
        peer->ended = true;
    peer->reading = reading;
    peer->writing = writing;
}


static void link_peer(server_peer *peer) {
    server_loop *loop = peer->loop;
    peer->next = loop->peers;
    if (peer->next)
        peer->next->previous = peer;
    loop->peers = peer;
    loop->strangers++;
}


/* After this the table does not name the connection any more, so no other thread can reach it. */
static void unlink_peer(server_peer *peer) {
    server_loop *loop = peer->loop;
    pthread_mutex_lock(&loop->server->lock);
    server_leave(peer);
    assert(loop->server->connections > 0);
    loop->server->connections--;
    pthread_mutex_unlock(&loop->server->lock);
    if (peer->previous)
        peer->previous->next = peer->next;
    else
        loop->peers = peer->next;
    if (peer->next)
        peer->next->previous = peer->previous;
}


static void count_bytes(server_peer *peer) {
    loop_counts *counts = &peer->loop->counts;
    loop_count(&counts->bytes_in, peer->channel.received);
    loop_count(&counts->bytes_out, peer->channel.sent);
    if (peer->channel.sent > 0)
        peer->untaken = peer->loop->untaken = true;
    peer->channel.received = peer->channel.sent = 0;
}


static void tell_end(const server_peer *peer) {
    const char *why = peer->cut_why[0]       ? peer->cut_why
                      : peer->why[0]         ? peer->why
                      : peer->channel.why[0] ? peer->channel.why
                                             : "the node ends";
    if (!peer->greeted)
        server_say(peer->server, "%s was turned away: %s", peer->name, why);
    else if (!peer->looks && atomic_load_explicit(&peer->cut, memory_order_relaxed))
        server_say(peer->server, "client %s (session %u.%u) was cut: %s", peer->name, peer->id, peer->generation, why);
    else if (!peer->looks)
        server_say(peer->server, "client %s (session %u.%u) %s: %s", peer->name, peer->id, peer->generation,
                   peer->bye ? "left" : "is gone", why);
}


static void close_peer(server_peer *peer) {
    net_server *server = peer->server;
    unlink_peer(peer);
    tell_end(peer);
    if (!peer->greeted) {
        peer->loop->strangers--;
        atomic_fetch_sub_explicit(&server->strangers, 1, memory_order_relaxed);
    }
    count_bytes(peer);
    net_queue_free(peer->queue);
    /* Closing alone would not end its events, if a child of this process has a copy of the socket. */
    epoll_ctl(peer->loop->epoll, EPOLL_CTL_DEL, peer->channel.socket, NULL);
    net_channel_close(&peer->channel);
    pthread_mutex_destroy(&peer->run);
    free(peer);
}


static void flush_peer(server_peer *peer) {
    if (net_channel_flush(&peer->channel) < 0)
        peer->ended = true;
    if (peer->notes_wait && !peer->ended) {
        server_send_notes(peer);
        if (net_channel_flush(&peer->channel) < 0)
            peer->ended = true;
    }
    bool writing = net_channel_wants_to_send(&peer->channel);
    bool reading = net_channel_queued(&peer->channel) < SERVING_QUEUED_MOST;
    count_bytes(peer);
    if (!peer->ended && (writing != peer->writing || reading != peer->reading))
        watch(peer, reading, writing, EPOLL_CTL_MOD);
}


static bool can_go_on(const server_peer *peer) {
    return !peer->ended && net_channel_has_message(&peer->channel) &&
           net_channel_queued(&peer->channel) < SERVING_QUEUED_MOST;
}


/* One turn of a connection: reads its socket, serves what came, sends the answers, and leaves what is more than FILLS and
 * SERVES for its next turn. Requests that came just before the connection's end are still served: NET_BYE is one. */
static void serve_peer(server_peer *peer) {
    int got = 1;
    unsigned serves = 0;
    for (unsigned fills = 0; !peer->ended && got > 0 && fills < FILLS && serves < SERVES; fills++) {
        /* Nothing is read from a peer that does not take its answers, or whose last requests are not all served. */
        bool listens =
            net_channel_queued(&peer->channel) < SERVING_QUEUED_MOST && !net_channel_has_message(&peer->channel);
        peer->channel.drained = false;
        got = listens ? net_channel_fill(&peer->channel) : 0;
        bool all =
            !peer->channel.tls && peer->channel.drained && !peer->hung_up; /* hung up: its end is still to be read */
        do {
            if (!server_serve(peer))
                peer->ended = true;
            flush_peer(peer);
        } while (can_go_on(peer) && (++serves < SERVES || got < 0));
        peer->ended |= got < 0;
        if (all)
            break;
    }
    bool more = can_go_on(peer); /* EPOLLOUT, which is asked for then, comes at once: the next turn */
    /* Setting the watch again makes epoll tell once more of what is left: requests, bytes in the socket, or the end. */
    if (!peer->ended && (more || (peer->reading && (!peer->channel.drained || peer->hung_up))))
        watch(peer, peer->reading, peer->writing || more, EPOLL_CTL_MOD);
}


static server_peer *make_peer(net_server *server, int socket, const net_endpoint *from) {
    server_peer *peer = calloc(1, sizeof(*peer));
    net_tls *tls = peer && server->tls ? net_tls_new(server->tls, NULL) : NULL;
    if (!peer || (server->tls && !tls)) {
        free(peer);
        close(socket);
        return NULL;
    }
    peer->server = server;
    peer->deadline = now_ms() + GREET_MS;
    pthread_mutex_init(&peer->run, NULL);
    net_channel_init(&peer->channel, socket, tls);
    net_endpoint_text(from, peer->name);
    return peer;
}


static void adopt(server_peer *peer) {
    link_peer(peer);
    watch(peer, true, false, EPOLL_CTL_ADD);
    if (peer->ended)
        close_peer(peer);
}


static void adopt_all(server_loop *loop) {
    pthread_mutex_lock(&loop->server->lock);
    server_peer *first = loop->inbox;
    loop->inbox = NULL;
    pthread_mutex_unlock(&loop->server->lock);
    while (first) {
        server_peer *peer = first;
        first = peer->next;
        adopt(peer);
    }
}


/* New connections go to the loops in turn. */
static void hand_over(net_server *server, server_peer *peer) {
    uint64_t one = 1;
    server_loop *loop = &server->loops[server->next_loop++ % server->loop_count];
    pthread_mutex_lock(&server->lock);
    server->connections++;
    peer->loop = loop;
    peer->next = loop->inbox;
    loop->inbox = peer;
    pthread_mutex_unlock(&server->lock);
    if (write(loop->event, &one, sizeof(one)) < 0)
        return; /* the event's count is full: the loop wakes anyway */
}


static void accept_one(net_server *server, int socket, const net_endpoint *from) {
    server_peer *peer = NULL;
    if (atomic_load_explicit(&server->strangers, memory_order_relaxed) >= STRANGERS_MAX) {
        atomic_fetch_add_explicit(&server->counts.refused, 1, memory_order_relaxed);
        close(socket);
    } else if (net_socket_prepare(socket, server->config.lease_ms) < 0) {
        close(socket);
    } else {
        peer = make_peer(server, socket, from);
    }
    if (!peer)
        return;
    atomic_fetch_add_explicit(&server->strangers, 1, memory_order_relaxed);
    hand_over(server, peer);
}


static void accept_next(server_loop *loop) {
    net_endpoint from = {.length = sizeof(from.address)};
    int socket =
        accept4(loop->server->listener, (struct sockaddr *)&from.address, &from.length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0)
        accept_one(loop->server, socket, &from);
    else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
        usleep(10000); /* the connection stays in the backlog */
}


/* ---- Loops ---- */

static void turn_away_late(server_loop *loop) {
    uint64_t now = now_ms();
    for (server_peer *peer = loop->peers, *next; peer; peer = next) {
        next = peer->next;
        if (!peer->greeted && now >= peer->deadline) {
            snprintf(peer->why, sizeof(peer->why), "it said no hello in time");
            close_peer(peer);
        }
    }
}


static unsigned look_every_ms(const server_loop *loop) {
    unsigned part = loop->server->config.lease_ms / 8;
    return part < LOOK_MS ? part : LOOK_MS;
}


/* Cuts those whose host is silent. When all have taken what they were sent, there is nothing to look at until more is. */
static void look_for_silence(server_loop *loop) {
    uint64_t now = now_ms();
    if (now < loop->next_look)
        return;
    loop->next_look = now + look_every_ms(loop);
    loop->untaken = false;
    for (server_peer *peer = loop->peers, *next; peer; peer = next) {
        next = peer->next;
        if (!peer->untaken)
            continue;
        net_heard heard = net_silence_ask(peer->channel.socket);
        peer->untaken = !heard.all_taken;
        loop->untaken |= peer->untaken;
        if (net_silence_of(&peer->silence, &heard, now) < loop->server->config.lease_ms)
            continue;
        snprintf(peer->why, sizeof(peer->why), "its host has not answered for the lease");
        close_peer(peer);
    }
}


static int time_to_wait(const server_loop *loop) {
    return loop->untaken ? (int)look_every_ms(loop) : loop->strangers ? 1000 : -1;
}


static void tell_all(server_loop *loop) {
    for (server_peer *peer = loop->peers, *next; peer; peer = next) {
        next = peer->next;
        server_send_notes(peer);
        flush_peer(peer);
        /* The flush may have made room for requests that a full queue had held back, and epoll has told of them already. */
        if (!peer->ended && net_channel_has_message(&peer->channel))
            serve_peer(peer);
        if (peer->ended)
            close_peer(peer);
    }
}


/* A connection that one event closes is not named by another: each connection has one event in a turn, and what else closes
 * connections, sending notes, comes after all events. */
static void run_events(server_loop *loop, const struct epoll_event *events, int count) {
    bool notes = false;
    for (int i = 0; i < count; i++) {
        server_peer *peer = events[i].data.ptr;
        uint64_t rings;
        if (events[i].data.ptr == loop) {
            notes = true;
            if (read(loop->event, &rings, sizeof(rings)) < 0)
                continue;
        } else if (events[i].data.ptr == &loop->server->listener) {
            accept_next(loop);
        } else if (events[i].data.ptr == &loop->server->rdma) {
            net_rdma_run(loop->server->rdma);
        } else {
            peer->hung_up |= (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
            serve_peer(peer);
            if (peer->ended)
                close_peer(peer);
        }
    }
    if (!notes)
        return;
    adopt_all(loop);
    tell_all(loop);
}


/* Looks for a while (net/linger.h), then sleeps until there are events. Returns how many. */
static int wait_for_events(server_loop *loop, struct epoll_event *events) {
    int count = 0;
    for (bool looks = net_linger_begin(&loop->linger, now_ns()); looks && count == 0;
         looks = net_linger_goes_on(&loop->linger, now_ns())) {
        count = epoll_wait(loop->epoll, events, EVENTS, 0);
        if (count == 0)
            sched_yield(); /* a client on this host may need this processor */
    }
    bool by_look = count > 0;
    if (!by_look)
        count = epoll_wait(loop->epoll, events, EVENTS, time_to_wait(loop));
    net_linger_end(&loop->linger, now_ns(), by_look);
    return count;
}


static void *run_loop(void *arg) {
    server_loop *loop = arg;
    struct epoll_event events[EVENTS];
    net_chaos_start(&chaos, loop->number);
    while (!atomic_load_explicit(&loop->server->stopping, memory_order_acquire)) {
        run_events(loop, events, wait_for_events(loop, events));
        if (loop->strangers)
            turn_away_late(loop);
        if (loop->untaken)
            look_for_silence(loop);
    }
    return NULL;
}


/* ---- Chaos ---- */

static void disturb(unsigned thread) {
    (void)thread;
    net_chaos_disturb(&chaos);
}


/* ---- Opening and closing ---- */

static int listen_at(net_server *server, const net_endpoint *endpoint) {
    int on = 1;
    if (!server->tls && !server->config.insecure && !net_endpoint_is_loopback(endpoint))
        return far_fail(FAR_ERR_INVALID,
                        "%s: others could listen there: give a --secret or certificates, or say --insecure",
                        server->config.listen.text);
    server->listener = socket(endpoint->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (server->listener < 0 ||
        setsockopt(server->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 || /* after a restart, at once */
        bind(server->listener, (const struct sockaddr *)&endpoint->address, endpoint->length) < 0 ||
        listen(server->listener, BACKLOG) < 0)
        return far_fail(errno == EADDRINUSE ? FAR_ERR_BUSY : FAR_ERR_UNREACHABLE, "%s: cannot listen there: %s",
                        server->config.listen.text, strerror(errno));
    net_endpoint bound = {.length = sizeof(bound.address)};
    getsockname(server->listener, (struct sockaddr *)&bound.address, &bound.length);
    net_endpoint_text(&bound, server->address);
    return 0;
}


static int open_listener(net_server *server) {
    net_endpoint endpoints[NET_ENDPOINTS_MAX];
    int count = net_address_resolve(&server->config.listen, true, endpoints);
    return count < 0 ? count : listen_at(server, &endpoints[0]);
}


static int open_loop(server_loop *loop) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = loop};
    struct epoll_event listener = {.events = EPOLLIN, .data.ptr = &loop->server->listener};
    struct epoll_event queues = {.events = EPOLLIN, .data.ptr = &loop->server->rdma};
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (loop->epoll < 0 || loop->event < 0 || epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->event, &event) < 0 ||
        (loop->number == 0 && epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->server->listener, &listener) < 0) ||
        (loop->number == 0 && loop->server->rdma &&
         epoll_ctl(loop->epoll, EPOLL_CTL_ADD, net_rdma_descriptor(loop->server->rdma), &queues) < 0))
        return far_fail(FAR_ERR_NO_MEMORY, "no epoll for a thread: %s", strerror(errno));
    return 0;
}


static void raise_file_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}


static int open_rdma(net_server *server) {
    net_endpoint bound = {.length = sizeof(bound.address)};
    getsockname(server->listener, (struct sockaddr *)&bound.address, &bound.length);
    return net_rdma_open(&bound, server->address, server->memory->bytes, server->memory->size, &server->rdma);
}


static int set_up(net_server *server) {
    int err = net_tls_open(&server->config.tls, true, &server->tls);
    if (err == 0)
        err = open_listener(server);
    if (err == 0)
        err = net_memory_open(server->config.memory, server->config.size, &server->memory);
    if (err == 0 && server->config.rdma)
        err = open_rdma(server);
    if (err < 0)
        return err;
    if (server->config.chaos)
        server->memory->between_units = disturb;
    net_table_start(&server->table, server->memory->ledger);
    for (unsigned i = 0; i < server->config.threads && err == 0; i++) {
        server->loops[i] = (server_loop){.server = server, .number = i, .epoll = -1, .event = -1};
        server->loop_count = i + 1;
        err = open_loop(&server->loops[i]);
    }
    return err;
}


int net_server_open(const net_server_config *config, net_server **opened) {
    net_server *server = calloc(1, sizeof(*server));
    if (!server)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a server");
    server->config = *config;
    server->listener = -1;
    server->started = (uint64_t)time(NULL);
    pthread_mutex_init(&server->lock, NULL);
    raise_file_limit();
    int err = set_up(server);
    if (err < 0) {
        net_server_close(server);
        return err;
    }
    *opened = server;
    return 0;
}


const char *net_server_address(const net_server *server) {
    return server->address;
}


int net_server_run(net_server *server) {
    unsigned started = 1;
    int err = 0;
    for (; started < server->loop_count && err == 0; started++)
        if (pthread_create(&server->loops[started].thread, NULL, run_loop, &server->loops[started]) != 0) {
            err = far_fail(FAR_ERR_NO_MEMORY, "no thread could be started");
            net_server_stop(server);
            break;
        }
    if (err == 0)
        run_loop(&server->loops[0]);
    for (unsigned i = 1; i < started; i++)
        pthread_join(server->loops[i].thread, NULL);
    return err;
}


void net_server_stop(net_server *server) {
    uint64_t one = 1;
    atomic_store_explicit(&server->stopping, true, memory_order_release);
    for (unsigned i = 0; i < server->loop_count; i++)
        if (write(server->loops[i].event, &one, sizeof(one)) < 0)
            continue;
}


void net_server_close(net_server *server) {
    for (unsigned i = 0; i < server->loop_count; i++) {
        server_loop *loop = &server->loops[i];
        adopt_all(loop);
        while (loop->peers)
            close_peer(loop->peers);
        if (loop->epoll >= 0)
            close(loop->epoll);
        if (loop->event >= 0)
            close(loop->event);
    }
    if (server->listener >= 0)
        close(server->listener);
    net_rdma_close(server->rdma);
    if (server->memory)
        net_memory_close(server->memory);
    net_tls_close(server->tls);
    pthread_mutex_destroy(&server->lock);
    free(server);
}
