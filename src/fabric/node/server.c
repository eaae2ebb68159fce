/* The daemon: sockets and threads. Each thread runs a loop, which sleeps until one of its connections has an event. It
 * uses a timeout only for handshakes, and for the lease while a peer has not acknowledged sent data. One of the loops is
 * the gate: it accepts connections and carries out their handshakes, including that of TLS. After the hello it hands
 * the connection over to one of the loops that serve clients. */
#define _GNU_SOURCE
#include "base/error.h"
#include "base/host.h"
#include "fabric/node/chaos.h"
#include "fabric/node/serving.h"
#include "farindex.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define EVENTS         64
#define HELLO_MS       5000
#define HELLO_CHECK_MS 250 /* ms between two checks for connections that send no hello */
#define ACK_CHECK_MS   500 /* ms between two checks for silent peers, unless an eighth of the lease is less */
/* number of reads from a socket in one turn of its connection, so that other connections have their turn soon */
#define RECEIVES_PER_TURN 8
/* number of calls of server_serve_messages in one turn of a connection; then other connections have their turn */
#define SERVES_PER_TURN  16
#define BACKLOG          512
#define ACCEPTS_PER_TURN 16  /* few, so that the handshakes of earlier connections have their turn soon */
#define ACCEPT_PAUSE_MS  100 /* pause after accept has failed for lack of descriptors or memory */

static _Thread_local net_chaos chaos;


static uint64_t now_ns(void) {
    return far_host_now(&far_host_threads);
}


static uint64_t now_ms(void) {
    return now_ns() / 1000000u;
}


/* ---- Connections ---- */

/* Sets the events that epoll reports for a connection. The events are edge-triggered, because with level-triggered
 * events the kernel checks each socket once more after it was read. */
static void set_epoll_interest(server_peer *peer, bool reading, bool writing, int how) {
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
    peer->previous = NULL;
    if (peer->next)
        peer->next->previous = peer;
    loop->peers = peer;
}


/* Ends the session of a connection and its admission. Afterwards the table of claims does not contain the connection, so
 * no other thread can reach it. */
static void end_session_and_admission(server_peer *peer) {
    pthread_mutex_lock(&peer->server->lock);
    server_end_session(peer);
    net_admission_leave(&peer->server->admission, &peer->half_open, &peer->place);
    pthread_mutex_unlock(&peer->server->lock);
}


static void unlink_peer(server_peer *peer) {
    server_loop *loop = peer->loop;
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
        peer->unacknowledged = peer->loop->unacknowledged = true;
    peer->channel.received = peer->channel.sent = 0;
}


static void log_end(const server_peer *peer) {
    net_log *log = peer->server->log;
    const char *why = peer->fenced_reason[0]    ? peer->fenced_reason
                      : peer->half_open.evicted ? "it sent no hello, and newer connections need its place"
                      : peer->why[0]            ? peer->why
                      : peer->channel.why[0]    ? peer->channel.why
                                                : "the node ends";
    if (!peer->hello_done)
        net_log_write(log, NET_LOG_INFO, "%s was turned away: %s", peer->name, why);
    else if (!peer->inspects && atomic_load_explicit(&peer->fenced, memory_order_relaxed))
        net_log_write(log, NET_LOG_WARNING, "client %s (session %u.%u) was fenced: %s", peer->name, peer->id,
                      peer->generation, why);
    else if (!peer->inspects)
        net_log_write(log, NET_LOG_INFO, "client %s (session %u.%u) %s: %s", peer->name, peer->id, peer->generation,
                      peer->left_pool ? "left" : "has disconnected", why);
}


static void close_peer(server_peer *peer) {
    end_session_and_admission(peer);
    unlink_peer(peer);
    log_end(peer);
    if (!peer->hello_done)
        peer->loop->handshaking--;
    count_bytes(peer);
    net_queue_free(peer->queue);
    /* If a child process has a copy of the socket, closing the socket alone would not end its events. */
    epoll_ctl(peer->loop->epoll, EPOLL_CTL_DEL, peer->channel.socket, NULL);
    net_channel_close(&peer->channel);
    pthread_mutex_destroy(&peer->run_lock);
    free(peer);
}


static void flush_peer(server_peer *peer) {
    if (net_channel_flush(&peer->channel) < 0)
        peer->ended = true;
    if (peer->notifications_wait && !peer->ended) {
        server_send_notifications(peer);
        if (net_channel_flush(&peer->channel) < 0)
            peer->ended = true;
    }
    bool writing = net_channel_wants_to_send(&peer->channel);
    bool reading = net_channel_queued(&peer->channel) < SERVING_QUEUED_MAX;
    count_bytes(peer);
    if (!peer->ended && (writing != peer->writing || reading != peer->reading))
        set_epoll_interest(peer, reading, writing, EPOLL_CTL_MOD);
}


static bool is_gate(const server_loop *loop) {
    return loop == &loop->server->gate;
}


/* Returns whether the hello of a connection in the gate was accepted, so that the gate serves no more of its messages
 * and hands it over. */
static bool must_be_handed_over(const server_peer *peer) {
    return is_gate(peer->loop) && peer->hello_done;
}


static bool can_serve_more(const server_peer *peer) {
    return !peer->ended && !must_be_handed_over(peer) && net_channel_has_message(&peer->channel) &&
           net_channel_queued(&peer->channel) < SERVING_QUEUED_MAX;
}


/* One turn of a connection: reads its socket, serves the messages, and sends the answers. Work beyond RECEIVES_PER_TURN
 * and SERVES_PER_TURN is left for its next turn. Messages that arrived just before the end of the connection are still
 * served; a NET_BYE for example. */
static void serve_peer(server_peer *peer) {
    int got = 1;
    unsigned serves = 0;
    for (unsigned fills = 0;
         !peer->ended && !must_be_handed_over(peer) && got > 0 && fills < RECEIVES_PER_TURN && serves < SERVES_PER_TURN;
         fills++) {
        /* Nothing is read from a peer while it does not accept its answers, or while some of its earlier messages have
         * not been served. */
        bool may_read =
            net_channel_queued(&peer->channel) < SERVING_QUEUED_MAX && !net_channel_has_message(&peer->channel);
        peer->channel.drained = false;
        got = may_read ? net_channel_receive(&peer->channel) : 0;
        /* if the peer has closed its end, the end of stream has to be read, too */
        bool all = !peer->channel.tls && peer->channel.drained && !peer->half_closed;
        do {
            if (!server_serve_messages(peer))
                peer->ended = true;
            flush_peer(peer);
        } while (can_serve_more(peer) && (++serves < SERVES_PER_TURN || got < 0));
        peer->ended |= got < 0;
        if (all)
            break;
    }
    /* If more messages can be served, EPOLLOUT is requested: it is reported at once, and so leads to the connection's
     * next turn. */
    bool more = can_serve_more(peer);
    /* Setting the interest again makes the edge-triggered epoll report the remaining work again: messages, bytes in the
     * socket, or the end of stream. */
    if (!peer->ended && !must_be_handed_over(peer) &&
        (more || (peer->reading && (!peer->channel.drained || peer->half_closed))))
        set_epoll_interest(peer, peer->reading, peer->writing || more, EPOLL_CTL_MOD);
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
    peer->deadline = now_ms() + HELLO_MS;
    pthread_mutex_init(&peer->run_lock, NULL);
    net_channel_init(&peer->channel, socket, tls);
    peer->from = *from;
    net_endpoint_text(from, peer->name);
    return peer;
}


/* Adds a connection to the loop that it is assigned to. If the gate has read messages that are not served yet, EPOLLOUT
 * is requested: it is reported at once, and so leads to the connection's first turn. */
static void adopt_peer(server_peer *peer) {
    bool writing = net_channel_wants_to_send(&peer->channel) || net_channel_has_message(&peer->channel);
    link_peer(peer);
    set_epoll_interest(peer, true, writing, EPOLL_CTL_ADD);
}


/* Adds the connections to the loop that the gate has handed over. */
static void adopt_new_peers(server_loop *loop) {
    pthread_mutex_lock(&loop->server->lock);
    server_peer *first = loop->inbox;
    loop->inbox = NULL;
    pthread_mutex_unlock(&loop->server->lock);
    while (first) {
        server_peer *peer = first;
        first = peer->next;
        adopt_peer(peer);
        loop->unacknowledged |= peer->unacknowledged;
        if (peer->ended)
            close_peer(peer);
    }
}


static void wake_loop(const server_loop *loop) {
    uint64_t one = 1;
    if (write(loop->event, &one, sizeof(one)) < 0)
        return; /* The counter of the eventfd is full, so a wake-up is pending and the loop wakes anyway. */
}


/* Hands a connection whose hello was accepted over from the gate to one of the other loops, in turn. The gate must not
 * access the connection afterwards. */
static void hand_over_peer(server_peer *peer) {
    net_server *server = peer->server;
    server_loop *loop = &server->loops[server->next_loop++ % server->loop_count];
    unlink_peer(peer);
    epoll_ctl(server->gate.epoll, EPOLL_CTL_DEL, peer->channel.socket, NULL);
    peer->loop = loop;
    pthread_mutex_lock(&server->lock);
    peer->next = loop->inbox;
    loop->inbox = peer;
    pthread_mutex_unlock(&server->lock);
    wake_loop(loop);
}


/* Frees a connection that belongs to no loop yet. */
static void free_peer(server_peer *peer) {
    net_channel_close(&peer->channel);
    pthread_mutex_destroy(&peer->run_lock);
    free(peer);
}


/* Admits a new connection to the gate. */
static void admit_to_gate(net_server *server, server_peer *peer) {
    pthread_mutex_lock(&server->lock);
    bool admitted = net_admission_enter(&server->admission, &peer->half_open, &peer->from, peer->channel.socket);
    pthread_mutex_unlock(&server->lock);
    if (!admitted) {
        atomic_fetch_add_explicit(&server->counts.refused, 1, memory_order_relaxed);
        net_log_write(server->log, NET_LOG_WARNING, "%s was turned away: there are too many connections", peer->name);
        free_peer(peer);
        return;
    }
    peer->loop = &server->gate;
    server->gate.handshaking++;
    adopt_peer(peer);
    if (peer->ended)
        close_peer(peer);
}


static void set_accepting(server_loop *loop, bool on) {
    struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.ptr = &loop->server->listener};
    epoll_ctl(loop->epoll, EPOLL_CTL_MOD, loop->server->listener, &event);
}


/* Stops accepting for a while, because no descriptor or no memory is available. New connections wait in the backlog, and
 * the loop serves its clients meanwhile. */
static void pause_accepting(server_loop *loop) {
    net_log_write(loop->server->log, NET_LOG_WARNING, "no connection can be accepted: %s", strerror(errno));
    loop->server->accepts_again_at = now_ms() + ACCEPT_PAUSE_MS;
    set_accepting(loop, false);
}


static void resume_accepting_if_due(server_loop *loop) {
    if (now_ms() < loop->server->accepts_again_at)
        return;
    loop->server->accepts_again_at = 0;
    set_accepting(loop, true);
}


/* Accepts one connection. Returns false if there is none, or if none can be accepted now. */
static bool accept_next(server_loop *loop) {
    net_server *server = loop->server;
    net_endpoint from = {.length = sizeof(from.address)};
    int socket =
        accept4(server->listener, (struct sockaddr *)&from.address, &from.length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
        pause_accepting(loop);
    if (socket < 0)
        return false;
    server_peer *peer = NULL;
    if (net_socket_prepare(socket, server->config.lease_ms) < 0)
        close(socket);
    else
        peer = make_peer(server, socket, &from);
    if (peer)
        admit_to_gate(server, peer);
    return true;
}


static void accept_connections(server_loop *loop) {
    for (unsigned i = 0; i < ACCEPTS_PER_TURN && accept_next(loop); i++)
        continue;
}


/* ---- Loops ---- */

static void close_late_handshakes(server_loop *loop) {
    uint64_t now = now_ms();
    /* The check visits all connections of the loop. In each turn, it would delay clients while strangers connect. */
    if (now < loop->next_hello_check)
        return;
    loop->next_hello_check = now + HELLO_CHECK_MS;
    for (server_peer *peer = loop->peers, *next; peer; peer = next) {
        next = peer->next;
        if (!peer->hello_done && now >= peer->deadline) {
            snprintf(peer->why, sizeof(peer->why), "it sent no hello in time");
            close_peer(peer);
        }
    }
}


static unsigned ack_check_interval_ms(const server_loop *loop) {
    unsigned part = loop->server->config.lease_ms / 8;
    return part < ACK_CHECK_MS ? part : ACK_CHECK_MS;
}


/* Closes the connections of peers that have been silent for the lease (net/silence.h), which fences their sessions.
 * When all peers have acknowledged all data, the periodic checks stop until more data is sent. */
static void close_silent_peers(server_loop *loop) {
    uint64_t now = now_ms();
    if (now < loop->next_ack_check)
        return;
    loop->next_ack_check = now + ack_check_interval_ms(loop);
    loop->unacknowledged = false;
    for (server_peer *peer = loop->peers, *next; peer; peer = next) {
        next = peer->next;
        if (!peer->unacknowledged)
            continue;
        net_peer_acks heard = net_peer_acks_read(peer->channel.socket);
        peer->unacknowledged = !heard.all_acknowledged;
        loop->unacknowledged |= peer->unacknowledged;
        if (net_silence_update(&peer->silence, &heard, now) < loop->server->config.lease_ms)
            continue;
        snprintf(peer->why, sizeof(peer->why), "its host has not answered for the lease");
        close_peer(peer);
    }
}


static int wait_timeout_ms(const server_loop *loop) {
    if (is_gate(loop) && loop->server->accepts_again_at)
        return ACCEPT_PAUSE_MS;
    return loop->unacknowledged ? (int)ack_check_interval_ms(loop) : loop->handshaking ? 1000 : -1;
}


/* Returns true if there are notifications that this loop has not sent yet. Most wake-ups concern new connections. */
static bool has_new_notifications(server_loop *loop) {
    pthread_mutex_lock(&loop->server->lock);
    uint64_t count = loop->server->notification_count;
    pthread_mutex_unlock(&loop->server->lock);
    bool is_new = count != loop->notifications_sent;
    loop->notifications_sent = count;
    return is_new;
}


static void send_all_notifications(server_loop *loop) {
    for (server_peer *peer = loop->peers, *next; peer; peer = next) {
        next = peer->next;
        server_send_notifications(peer);
        flush_peer(peer);
        /* The flush may have made room for answers to requests that a full queue had held back. Epoll has reported
         * those requests already and will not report them again. */
        if (!peer->ended && net_channel_has_message(&peer->channel))
            serve_peer(peer);
        if (peer->ended)
            close_peer(peer);
    }
}


/* Handles events. A connection that is closed here is not named by a later event of the same turn: epoll reports each
 * connection once, and the other code that closes connections, sending notifications, runs after all events. */
static void run_events(server_loop *loop, const struct epoll_event *events, int count) {
    bool has_wakeup = false;
    for (int i = 0; i < count; i++) {
        server_peer *peer = events[i].data.ptr;
        uint64_t rings;
        if (events[i].data.ptr == loop) {
            has_wakeup = true;
            if (read(loop->event, &rings, sizeof(rings)) < 0)
                continue;
        } else if (events[i].data.ptr == &loop->server->listener) {
            accept_connections(loop);
        } else if (events[i].data.ptr == &loop->server->rdma) {
            net_rdma_run(loop->server->rdma);
        } else {
            peer->half_closed |= (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
            serve_peer(peer);
            if (peer->ended)
                close_peer(peer);
            else if (must_be_handed_over(peer))
                hand_over_peer(peer);
        }
    }
    if (!has_wakeup)
        return;
    adopt_new_peers(loop);
    if (has_new_notifications(loop))
        send_all_notifications(loop);
}


/* Polls for a while (net/busy_poll.h), then sleeps until there are events. Returns their number. */
static int wait_for_events(server_loop *loop, struct epoll_event *events) {
    int count = 0;
    /* The gate does not poll, because the length of a handshake does not matter. */
    for (bool polling = !is_gate(loop) && net_busy_poll_begin(&loop->busy_poll, now_ns()); polling && count == 0;
         polling = net_busy_poll_continue(&loop->busy_poll, now_ns())) {
        count = epoll_wait(loop->epoll, events, EVENTS, 0);
        if (count == 0)
            sched_yield(); /* a client on this host may need this processor */
    }
    bool found_by_polling = count > 0;
    if (!found_by_polling)
        count = epoll_wait(loop->epoll, events, EVENTS, wait_timeout_ms(loop));
    if (!is_gate(loop))
        net_busy_poll_end(&loop->busy_poll, now_ns(), found_by_polling);
    return count;
}


static void *run_loop(void *arg) {
    server_loop *loop = arg;
    struct epoll_event events[EVENTS];
    net_chaos_init(&chaos, loop->number);
    while (!atomic_load_explicit(&loop->server->stopping, memory_order_acquire)) {
        run_events(loop, events, wait_for_events(loop, events));
        if (is_gate(loop) && loop->server->accepts_again_at)
            resume_accepting_if_due(loop);
        if (loop->handshaking)
            close_late_handshakes(loop);
        if (loop->unacknowledged)
            close_silent_peers(loop);
    }
    return NULL;
}


/* ---- Random pauses (--chaos) ---- */

static void pause_for_chaos(unsigned thread) {
    (void)thread;
    net_chaos_pause_sometimes(&chaos);
}


/* ---- Opening and closing ---- */

static int listen_at(net_server *server, const net_endpoint *endpoint) {
    int on = 1;
    if (!server->tls && !server->config.insecure && !net_endpoint_is_loopback(endpoint))
        return far_fail(
            FAR_ERR_INVALID,
            "%s: other hosts can read plain text on this address: give --secret or certificates, or --insecure",
            server->config.listen.text);
    server->listener = socket(endpoint->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* SO_REUSEADDR permits a restarted daemon to use its address at once. */
    if (server->listener < 0 || setsockopt(server->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        bind(server->listener, (const struct sockaddr *)&endpoint->address, endpoint->length) < 0 ||
        listen(server->listener, BACKLOG) < 0)
        return far_fail(errno == EADDRINUSE ? FAR_ERR_BUSY : FAR_ERR_UNREACHABLE,
                        "%s: cannot listen on this address: %s", server->config.listen.text, strerror(errno));
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
    bool serves_queues = loop == &loop->server->loops[0] && loop->server->rdma;
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (loop->epoll < 0 || loop->event < 0 || epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->event, &event) < 0 ||
        (is_gate(loop) && epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->server->listener, &listener) < 0) ||
        (serves_queues && epoll_ctl(loop->epoll, EPOLL_CTL_ADD, net_rdma_descriptor(loop->server->rdma), &queues) < 0))
        return far_fail(FAR_ERR_NO_MEMORY, "cannot create the epoll descriptor of a thread: %s", strerror(errno));
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


static int set_up_server(net_server *server) {
    int err = net_tls_open(&server->config.tls, true, &server->tls);
    if (err == 0 && server->config.log)
        err = net_log_open(server->config.log, server->config.log_level, &server->log);
    if (err == 0)
        err = open_listener(server);
    if (err == 0)
        err = net_memory_open(&server->config.memory, &server->memory);
    if (err == 0 && server->config.rdma)
        err = open_rdma(server);
    if (err < 0)
        return err;
    if (server->config.chaos)
        server->memory->between_granules = pause_for_chaos;
    net_table_start(&server->table, server->memory->ledger);
    err = open_loop(&server->gate);
    for (unsigned i = 0; i < server->config.threads && err == 0; i++) {
        server->loops[i] = (server_loop){.server = server, .number = i, .epoll = -1, .event = -1};
        server->loop_count = i + 1;
        err = open_loop(&server->loops[i]);
    }
    return err;
}


int net_server_open(const net_server_options *config, net_server **opened) {
    net_server *server = calloc(1, sizeof(*server));
    if (!server)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a server");
    server->config = *config;
    server->listener = -1;
    server->gate = (server_loop){.server = server, .epoll = -1, .event = -1};
    server->started = (uint64_t)time(NULL);
    pthread_mutex_init(&server->lock, NULL);
    raise_file_limit();
    net_admission_init(&server->admission, config->per_address);
    int err = set_up_server(server);
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


static int start_thread(server_loop *loop) {
    return pthread_create(&loop->thread, NULL, run_loop, loop) == 0
               ? 0
               : far_fail(FAR_ERR_NO_MEMORY, "a thread cannot be started");
}


int net_server_run(net_server *server) {
    unsigned started = 1;
    int err = start_thread(&server->gate);
    bool gate_runs = err == 0;
    while (err == 0 && started < server->loop_count && (err = start_thread(&server->loops[started])) == 0)
        started++;
    if (err == 0)
        run_loop(&server->loops[0]);
    else
        net_server_stop(server);
    for (unsigned i = 1; i < started; i++)
        pthread_join(server->loops[i].thread, NULL);
    if (gate_runs)
        pthread_join(server->gate.thread, NULL);
    return err;
}


void net_server_stop(net_server *server) {
    atomic_store_explicit(&server->stopping, true, memory_order_release);
    wake_loop(&server->gate);
    for (unsigned i = 0; i < server->loop_count; i++)
        wake_loop(&server->loops[i]);
}


static void close_loop(server_loop *loop) {
    adopt_new_peers(loop);
    while (loop->peers)
        close_peer(loop->peers);
    if (loop->epoll >= 0)
        close(loop->epoll);
    if (loop->event >= 0)
        close(loop->event);
}


void net_server_close(net_server *server) {
    close_loop(&server->gate);
    for (unsigned i = 0; i < server->loop_count; i++)
        close_loop(&server->loops[i]);
    if (server->listener >= 0)
        close(server->listener);
    net_rdma_close(server->rdma);
    if (server->memory)
        net_memory_close(server->memory);
    net_tls_close(server->tls);
    net_log_close(server->log);
    net_admission_free(&server->admission);
    pthread_mutex_destroy(&server->lock);
    free(server);
}
