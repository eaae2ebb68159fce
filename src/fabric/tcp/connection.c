/* The fabric `tcp`: a connection with its sockets and its outstanding requests. It connects, sends, receives, waits,
 * detects silent nodes, and fails everything pending when the connection is lost. The operations of fabric.h begin with
 * tcp_. */
#define _GNU_SOURCE
#include "base/error.h"
#include "base/text.h"
#include "fabric/tcp/tcp.h"
#include "farindex.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define EVENTS               32
#define TIMER                (FAR_NODES_MAX + 1) /* number of the timer among the descriptors that epoll watches */
#define NOTIFICATION_POLL_NS 10000000u
#define CONNECT_TRIES        64 /* largest number of attempts to connect while other threads of the process fork */

static pthread_mutex_t conns_lock = PTHREAD_MUTEX_INITIALIZER;
static tcp_conn *conns;
static unsigned forks; /* number of forks that this process has begun; protected by conns_lock */


/* ---- Fork. Sockets that a child inherits would keep the sessions of its parent alive. The child closes its copies and
 * sends nothing to the nodes. ---- */

static void before_fork(void) {
    pthread_mutex_lock(&conns_lock);
    forks++;
}


static void after_fork(void) {
    pthread_mutex_unlock(&conns_lock);
}


/* Closes a descriptor and marks it closed. While the connection is in the list of connections, the caller holds
 * conns_lock. Therefore a fork happens either before the close, and the child closes its own copy, or after it, and the
 * child has no copy. */
static void close_descriptor(int *descriptor) {
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
}


static void after_fork_in_child(void) {
    for (tcp_conn *c = conns; c; c = c->next) {
        for (unsigned i = 0; i < c->count; i++)
            close_descriptor(&c->nodes[i].channel.socket);
        close_descriptor(&c->epoll);
        close_descriptor(&c->event);
        close_descriptor(&c->timer);
        close_descriptor(&c->notification_epoll);
        close_descriptor(&c->notification_event);
        c->lost = FAR_ERR_FENCED; /* the connection belongs to the parent */
        c->closed_in_child = true;
    }
    conns = NULL;
    pthread_mutex_unlock(&conns_lock);
}


static void register_fork_handlers(void) {
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}


/* ---- Loss of the connection ---- */

static void close_sockets(tcp_conn *c) {
    pthread_mutex_lock(&conns_lock);
    for (unsigned i = 0; i < c->count; i++)
        close_descriptor(&c->nodes[i].channel.socket);
    pthread_mutex_unlock(&conns_lock);
}


/* Marks the connection as lost. Pending batches do not end here but in the next poll, because the caller may be inside
 * a batch's `done`, or inside a post. */
void tcp_fail_connection(tcp_conn *c, int status, unsigned node, const char *why) {
    if (c->lost)
        return;
    c->lost = status;
    if (why)
        snprintf(c->why, sizeof(c->why), "memory node %u at %.100s: %.80s", node,
                 tcp_fabric_of(c)->addresses[node].text, why);
    c->conn.gone = why ? c->why : NULL;
    close_sockets(c); /* Data that was received is not freed, because a caller may still be reading a message in it. */
    for (unsigned i = 0; i < c->count; i++) {
        c->nodes[i].open = false;
        /* No poll will handle the result of the last receive any more, so a wait must not return because of it. */
        c->nodes[i].receive_result = 0;
    }
    c->touched_count = 0;
    if (tcp_fabric_of(c)->transport->stop_queues)
        tcp_fabric_of(c)->transport->stop_queues(c);
}


void tcp_fence_self(far_conn *conn) {
    tcp_fail_connection((tcp_conn *)conn, FAR_ERR_FENCED, 0, NULL);
}


static tcp_request remove_oldest_request(tcp_conn *c, tcp_node *node) {
    tcp_request request = node->requests[node->first];
    node->first = (node->first + 1) % node->room;
    assert(node->count > 0 && c->outstanding > 0);
    node->count--;
    c->outstanding--;
    return request;
}


static int fail_everything_pending(tcp_conn *c) {
    int delivered = 0, status = c->lost;
    for (unsigned i = 0; i < c->count; i++)
        while (c->nodes[i].count > 0) {
            tcp_request request = remove_oldest_request(c, &c->nodes[i]);
            if (request.type == NET_BATCH && request.batch)
                delivered += tcp_fail_part(request.batch, status);
            else if (request.round)
                tcp_fail_round(request.round, 1, status);
        }
    while (c->stalled_count > 0) {
        far_batch *batch = c->stalled[c->stalled_first].batch;
        c->stalled_first = (c->stalled_first + 1) % c->stalled_room;
        c->stalled_count--;
        delivered += tcp_fail_part(batch, status);
    }
    while (c->unsent) {
        tcp_round *round = c->unsent;
        c->unsent = round->next;
        tcp_fail_round(round, round->unsent, status);
    }
    tcp_fail_queries(c, status);
    return delivered;
}


/* ---- Sending ---- */

static bool grow_ring(tcp_node *node) {
    unsigned room = node->room ? 2 * node->room : 16;
    tcp_request *more = malloc(room * sizeof(*more));
    if (!more)
        return false;
    for (unsigned i = 0; i < node->count; i++)
        more[i] = node->requests[(node->first + i) % node->room];
    free(node->requests);
    node->requests = more;
    node->room = room;
    node->first = 0;
    return true;
}


tcp_request *tcp_add_request(tcp_conn *c, unsigned number, net_type type) {
    tcp_node *node = &c->nodes[number];
    if (node->count == node->room && !grow_ring(node)) {
        tcp_fail_connection(c, FAR_ERR_UNREACHABLE, number, "no memory for a message");
        return NULL;
    }
    if (node->count == 0)
        node->just_queued = node->not_sent_yet = true;
    tcp_request *request = &node->requests[(node->first + node->count++) % node->room];
    *request = (tcp_request){.type = (uint16_t)type, .tag = ++node->tag};
    c->outstanding++;
    return request;
}


void tcp_send_control(tcp_conn *c, unsigned number, net_type type, unsigned count, const void *body, size_t bytes,
                      tcp_round *round) {
    tcp_request *request = c->lost ? NULL : tcp_add_request(c, number, type);
    if (request) {
        request->round = round;
        net_channel_send(&c->nodes[number].channel, type, count, request->tag, body, bytes);
    } else if (round->unsent++ == 0) {
        round->next = c->unsent;
        c->unsent = round;
    }
}


/* Sends the output queue of a node. The timeout of the node starts at the first send, not at the post: if this process
 * was stopped between post and send, the node has not received the request in that time. When a full socket accepts
 * more data, the timeout starts again, because then either the node is reading, or this process was stopped in the
 * middle of a message. */
static void flush_node(tcp_conn *c, unsigned number) {
    tcp_node *node = &c->nodes[number];
    uint64_t sent = node->channel.sent;
    int flushed = net_channel_flush(&node->channel);
    if (node->not_sent_yet || (node->writing && node->channel.sent != sent))
        node->since = far_host_now(c->conn.fabric->host);
    node->not_sent_yet = false;
    if (flushed < 0) {
        tcp_fail_connection(c, FAR_ERR_UNREACHABLE, number, node->channel.why);
        return;
    }
    bool writing = net_channel_wants_to_send(&node->channel);
    c->needs_poll |= writing;
    if (writing == node->writing)
        return;
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0u), .data.u32 = number};
    epoll_ctl(c->epoll, EPOLL_CTL_MOD, node->channel.socket, &event);
    node->writing = writing;
}


static bool has_to_send(const tcp_node *node) {
    return net_channel_queued(&node->channel) > 0 || node->channel.out_of_memory;
}


static void flush_all(tcp_conn *c) {
    tcp_send_queries(c);
    for (unsigned i = 0; i < c->count && !c->lost; i++)
        if (has_to_send(&c->nodes[i]))
            flush_node(c, i);
}


/* Sends NET_NOTIFY_ALL at once instead of at the next poll, because the caller may not poll for a long time. */
void tcp_notify_all(far_conn *base) {
    tcp_conn *c = (tcp_conn *)base;
    if (c->lost)
        return;
    net_channel_send(&c->nodes[0].channel, NET_NOTIFY_ALL, 0, 0, NULL, 0);
    flush_node(c, 0);
}


/* ---- Receiving ---- */

static bool handle_message(tcp_conn *c, unsigned number, const net_head *head, const char *body, int *delivered) {
    tcp_node *node = &c->nodes[number];
    if (head->type == NET_NOTIFICATION) {
        net_claim note;
        memcpy(&note, body, sizeof(note));
        tcp_add_notification(c, &note);
        return true;
    }
    if (head->type == NET_REFUSED) {
        char text[80];
        snprintf(text, sizeof(text), "refuses: %.*s", (int)(head->length - NET_HEAD_BYTES), body);
        far_make_printable(text);
        tcp_fail_connection(c, FAR_ERR_UNREACHABLE, number, text);
        return true;
    }
    if (node->count == 0 || node->requests[node->first].tag != head->tag)
        return false;
    tcp_request request = remove_oldest_request(c, node);
    bool ok = false;
    if (request.type == NET_BATCH && head->type == NET_RESULTS)
        ok = tcp_deliver_results(number, &request, body, head->length - NET_HEAD_BYTES, delivered);
    else if (request.type != NET_BATCH)
        ok = tcp_handle_reply(c, number, &request, head, body);
    if (ok)
        return true;
    /* The request is put back at the front of the queue, so that it fails together with the other requests. */
    node->first = (node->first + node->room - 1) % node->room;
    node->requests[node->first] = request;
    node->count++;
    c->outstanding++;
    return false;
}


/* Receives data from a node and handles all complete messages. Returns false if nothing had arrived. */
static bool receive_from_node(tcp_conn *c, unsigned number, int *delivered) {
    tcp_node *node = &c->nodes[number];
    net_head head;
    const char *body;
    int got = 0, receive_result = node->receive_result ? node->receive_result : net_channel_receive(&node->channel);
    node->readable = false;
    node->receive_result = 0;
    while (!c->lost && (got = net_channel_next(&node->channel, true, &head, &body)) > 0) {
        if (!handle_message(c, number, &head, body, delivered)) {
            got = -1;
            break;
        }
        if (c->outstanding == 0)
            tcp_fabric_of(c)->transport->resume_stalled(c);
    }
    if (c->lost)
        return true;
    if (got < 0)
        tcp_fail_connection(c, FAR_ERR_UNREACHABLE, number, "it sent data that is no message of this protocol");
    else if (receive_result < 0)
        tcp_fail_connection(c, FAR_ERR_UNREACHABLE, number, node->channel.why);
    else if (receive_result > 0 && node->count > 0)
        node->since = far_host_now(c->conn.fabric->host);
    return receive_result != 0;
}


static uint64_t timeout_ns(const tcp_conn *c) {
    return (uint64_t)tcp_fabric_of(c)->timeout_ms * 1000000u;
}


static bool node_is_awaited(const tcp_node *node) {
    return node->count > 0 && !node->not_sent_yet;
}


/* Gives up the session if a node has not answered an outstanding request in time. Whether this session has failed is
 * decided by the nodes, not here. */
static void fail_if_node_is_silent(tcp_conn *c) {
    uint64_t now = far_host_now(c->conn.fabric->host);
    for (unsigned i = 0; i < c->count && !c->lost; i++)
        if (node_is_awaited(&c->nodes[i]) && now >= c->nodes[i].since + timeout_ns(c))
            tcp_fail_connection(c, FAR_ERR_UNREACHABLE, i, "does not answer in time");
}


/* Receives answers, sends queued requests, and delivers completions. If all outstanding requests of a node are sent by
 * this poll itself, the node cannot have answered yet, so its socket is not read. */
int tcp_poll(far_conn *base) {
    tcp_conn *c = (tcp_conn *)base;
    int delivered = 0;
    bool silent = false;
    c->needs_poll = false;
    if (atomic_load_explicit(&c->node0_readable, memory_order_relaxed) &&
        atomic_exchange_explicit(&c->node0_readable, false, memory_order_acquire))
        c->nodes[0].readable = true;
    if (c->queries)
        tcp_send_queries(c);
    for (unsigned i = 0; i < c->count && !c->lost; i++) {
        tcp_node *node = &c->nodes[i];
        bool just_queued = node->just_queued;
        if (has_to_send(node))
            flush_node(c, i);
        node->just_queued = false;
        if (!c->lost && ((node->count > 0 && !just_queued) || node->readable))
            silent |= !receive_from_node(c, i, &delivered);
    }
    if (silent && c->outstanding > 0 && !c->lost)
        fail_if_node_is_silent(c);
    if (c->lost)
        delivered += fail_everything_pending(c);
    else
        flush_all(c); /* sends the requests that were queued while answers were handled */
    return delivered;
}


/* ---- Waiting ---- */

static uint64_t next_deadline(const tcp_conn *c) {
    uint64_t next = FAR_TIME_NEVER;
    for (unsigned i = 0; c->outstanding > 0 && i < c->count; i++)
        if (node_is_awaited(&c->nodes[i]) && c->nodes[i].since + timeout_ns(c) < next)
            next = c->nodes[i].since + timeout_ns(c);
    return next;
}


/* Sets the timer for the next timeout of a node. If each wait set and removed the timer, that would cost two system
 * calls per wait. Instead the timer stays set. If it expires too early, which happens once per timeout, it is set
 * again. */
static void set_timer(tcp_conn *c, uint64_t deadline) {
    struct itimerspec at = {.it_value = {(time_t)(deadline / 1000000000u), (long)(deadline % 1000000000u)}};
    if (deadline >= c->timer_at)
        return;
    c->timer_at = deadline;
    timerfd_settime(c->timer, TFD_TIMER_ABSTIME, &at, NULL);
}


static void consume_timer(tcp_conn *c) {
    uint64_t rings;
    c->timer_at = FAR_TIME_NEVER;
    if (read(c->timer, &rings, sizeof(rings)) < 0)
        return; /* the deadline has moved, and the timer has been set again for it */
}


/* Sleeps until an event occurs or the time `until` is reached. Returns the number of events. */
static int sleep_on_epoll(int epoll, struct epoll_event *events, uint64_t until, far_host *host) {
    if (until == FAR_TIME_NEVER)
        return epoll_wait(epoll, events, EVENTS, -1);
    uint64_t now = far_host_now(host), ns = until > now ? until - now : 0;
    struct timespec span = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    int count = epoll_pwait2(epoll, events, EVENTS, &span, NULL);
    if (count < 0 && errno == ENOSYS) /* kernels without epoll_pwait2 sleep by milliseconds */
        count = epoll_wait(epoll, events, EVENTS, ns ? (int)(ns / 1000000u % 1000000u) + 1 : 0);
    return count;
}


/* Reads the sockets of all nodes with outstanding requests. Returns true if data has arrived or a connection has ended;
 * the next poll handles that. */
static bool receive_from_awaited_nodes(tcp_conn *c) {
    bool come = false;
    for (unsigned i = 0; i < c->count; i++) {
        tcp_node *node = &c->nodes[i];
        if (node->count > 0 && node->receive_result == 0)
            node->receive_result = net_channel_receive(&node->channel);
        node->readable |= node->receive_result != 0;
        come |= node->receive_result != 0;
    }
    return come;
}


/* Polls the sockets for a while. Returns true if the next poll has something to handle, so that the thread need not
 * sleep. */
static bool poll_sockets(tcp_conn *c, uint64_t until) {
    far_host *host = c->conn.fabric->host;
    uint64_t now = far_host_now(host);
    for (bool looks = net_busy_poll_begin(&c->busy_poll, now); looks && now < until;
         looks = net_busy_poll_continue(&c->busy_poll, now)) {
        if (receive_from_awaited_nodes(c))
            return c->needs_poll = true;
        if (far_parker_is_due(c->conn.parker))
            /* An unpark is pending. The caller arms the parker before it sleeps, which consumes the unpark, so it does
             * not sleep. */
            return false;
        sched_yield(); /* the daemon or another session may need this processor */
        now = far_host_now(host);
    }
    return false;
}


/* Returns true if an earlier wait has read data that no poll has handled yet. Epoll would not report that data. */
static bool has_received_data(const tcp_conn *c) {
    for (unsigned i = 0; i < c->count; i++)
        if (c->nodes[i].receive_result != 0)
            return true;
    return false;
}


static void sleep_on_sockets(tcp_conn *c, uint64_t until) {
    struct epoll_event events[EVENTS];
    if (has_received_data(c))
        return;
    set_timer(c, next_deadline(c));
    if (!far_parker_arm(c->conn.parker))
        return;
    int count = sleep_on_epoll(c->epoll, events, until, c->conn.fabric->host);
    far_parker_disarm(c->conn.parker);
    for (int i = 0; i < count; i++)
        if (events[i].data.u32 < c->count)
            c->nodes[events[i].data.u32].readable = c->needs_poll = true;
        else if (events[i].data.u32 == TIMER)
            consume_timer(c);
}


/* Returns true if the connection is lost and something on it is still pending. The next poll fails it, so the thread
 * must not sleep: nothing would wake it. */
static bool has_to_fail(const tcp_conn *c) {
    return c->lost && (c->outstanding > 0 || c->stalled_count > 0 || c->unsent || c->queries);
}


/* Returns true if this wait should poll the sockets, that is, if answers are outstanding. On an rdma connection
 * (`queues` is set) the wait has already polled the completion queues, so it does not poll the sockets as well. */
static bool polling_is_useful(const tcp_conn *c) {
    return c->outstanding > 0 && !c->queues;
}


void tcp_wait(far_conn *base, uint64_t until) {
    tcp_conn *c = (tcp_conn *)base;
    far_host *host = c->conn.fabric->host;
    bool lost = c->lost;
    flush_all(c);
    if (c->closed_in_child) {
        host->ops->park(host, c->conn.parker, until);
    } else if ((c->lost && !lost) || has_to_fail(c)) {
        return;
    } else if (polling_is_useful(c)) {
        bool found_by_polling = poll_sockets(c, until);
        if (!found_by_polling)
            sleep_on_sockets(c, until);
        net_busy_poll_end(&c->busy_poll, far_host_now(host), found_by_polling);
    } else {
        sleep_on_sockets(c, until);
    }
}


static bool add_to_epoll(int epoll, int descriptor, uint32_t number) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}


/* Creates the epoll descriptor for notifications. Only the first tcp_wait_for_notification does this, on the one
 * connection of a handle that uses it, because a second epoll on a socket costs time for each message. Returns false if
 * there are no descriptors. */
static bool prepare_notification_epoll(tcp_conn *c) {
    if (c->notification_epoll >= 0)
        return true;
    /* The lock prevents a fork between the creation of the descriptors and their storage in the connection, so that a
     * child can close its copies. */
    pthread_mutex_lock(&conns_lock);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    c->notification_event = eventfd(0, EFD_CLOEXEC);
    int socket = c->nodes[0].channel.socket; /* -1 if the connection is lost; then no notification arrives */
    if (epoll >= 0 && c->notification_event > 0 && (socket < 0 || add_to_epoll(epoll, socket, 0)) &&
        add_to_epoll(epoll, c->notification_event, FAR_NODES_MAX)) {
        c->notification_epoll = epoll;
    } else {
        close_descriptor(&epoll);
        close_descriptor(&c->notification_event);
    }
    pthread_mutex_unlock(&conns_lock);
    return c->notification_epoll >= 0;
}


/* Waits for a notification. This function runs concurrently with the thread that drives the session. So it uses only
 * these fields of the connection: `node0_readable`, `has_notifications`, `notification_parker` and the notification_
 * descriptors. */
void tcp_wait_for_notification(far_conn *base, far_parker *parker, uint64_t until) {
    tcp_conn *c = (tcp_conn *)base;
    struct epoll_event events[EVENTS];
    far_host *host = c->conn.fabric->host;
    if (c->closed_in_child || !prepare_notification_epoll(c)) {
        /* Without descriptors this thread cannot sleep until a notification arrives, so it returns often. */
        uint64_t soon = c->closed_in_child ? until : far_host_now(host) + NOTIFICATION_POLL_NS;
        host->ops->park(host, parker, until < soon ? until : soon);
        return;
    }
    parker->event = c->notification_event;
    atomic_store_explicit(&c->notification_parker, parker, memory_order_seq_cst);
    if (atomic_load_explicit(&c->has_notifications, memory_order_seq_cst) || !far_parker_arm(parker))
        return;
    int count = sleep_on_epoll(c->notification_epoll, events, until, host);
    far_parker_disarm(parker);
    for (int i = 0; i < count; i++)
        if (events[i].data.u32 == 0)
            atomic_store_explicit(&c->node0_readable, true, memory_order_release);
}


/* ---- Connecting ---- */

static int make_epoll(tcp_conn *c) {
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->event = eventfd(0, EFD_CLOEXEC);
    c->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    bool ok = c->epoll >= 0 && c->event > 0 && c->timer >= 0;
    for (unsigned i = 0; i < c->count && ok; i++)
        ok = add_to_epoll(c->epoll, c->nodes[i].channel.socket, i);
    ok = ok && add_to_epoll(c->epoll, c->event, FAR_NODES_MAX) && add_to_epoll(c->epoll, c->timer, TIMER);
    c->conn.parker->event = c->event;
    return ok ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no descriptors for a connection: %s", strerror(errno));
}


/* Checks that the nodes are those of the pool. A node may have been restarted without its memory since the pool was
 * opened. */
static int check_welcomes(const tcp_fabric *fabric, const net_link *links) {
    for (unsigned i = 0; i < fabric->fabric.nodes; i++) {
        const net_welcome *w = &links[i].welcome;
        if (w->instance != fabric->instances[i] || w->pool != fabric->pool || w->node != i ||
            w->nodes != fabric->fabric.nodes)
            return far_fail(FAR_ERR_UNREACHABLE,
                            "memory node %u at %s is not the same node as before: it was restarted without its memory",
                            i, fabric->addresses[i].text);
    }
    return 0;
}


static int connect_to_nodes(tcp_conn *c) {
    tcp_fabric *fabric = tcp_fabric_of(c);
    net_dial_options dial = {fabric->tls, fabric->insecure, NET_FOR_SESSION, fabric->timeout_ms};
    net_link *links = calloc(c->count, sizeof(*links));
    if (!links)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    int err = net_links_open(links, fabric->addresses, c->count, &dial);
    if (err == 0)
        err = check_welcomes(fabric, links);
    if (err == 0 && fabric->transport->create_queues)
        err = fabric->transport->create_queues(c, links);
    for (unsigned i = 0; i < c->count; i++)
        c->nodes[i].channel = links[i].channel;
    free(links);
    return err;
}


static void free_conn(tcp_conn *c) {
    if (tcp_fabric_of(c)->transport->free_queues)
        tcp_fabric_of(c)->transport->free_queues(c);
    for (unsigned i = 0; c->nodes && i < c->count; i++) {
        net_channel_close(&c->nodes[i].channel);
        free(c->nodes[i].requests);
    }
    close_descriptor(&c->epoll);
    close_descriptor(&c->event);
    close_descriptor(&c->timer);
    close_descriptor(&c->notification_epoll);
    close_descriptor(&c->notification_event);
    free(c->stalled);
    free(c->nodes);
    free(c);
}


/* Adds the connection to the list of connections that a forked child closes. Returns false if the process has forked
 * since `forks_before` was read, which was before the sockets were created: a child may then have copies of the sockets
 * that it does not know about. */
static bool add_to_list(tcp_conn *c, unsigned forks_before) {
    pthread_mutex_lock(&conns_lock);
    bool alone = forks == forks_before;
    if (alone) {
        c->next = conns;
        if (conns)
            conns->previous = c;
        conns = c;
    }
    pthread_mutex_unlock(&conns_lock);
    return alone;
}


static unsigned count_forks(void) {
    pthread_mutex_lock(&conns_lock);
    unsigned count = forks;
    pthread_mutex_unlock(&conns_lock);
    return count;
}


/* Removes the connection from the list. Called after its sockets were closed, because a forked child must find open
 * sockets in the list. */
static void remove_from_list(tcp_conn *c) {
    pthread_mutex_lock(&conns_lock);
    if (!c->closed_in_child) {
        if (c->previous)
            c->previous->next = c->next;
        else
            conns = c->next;
        if (c->next)
            c->next->previous = c->previous;
    }
    pthread_mutex_unlock(&conns_lock);
}


/* Makes one attempt to connect. Returns 0, an error, or 1 if the process has forked during the attempt. In the last
 * case the sockets were shut down, so that copies in a child have no effect. */
static int try_connect(far_fabric *fabric, far_parker *parker, far_conn **conn) {
    unsigned forks_before = count_forks();
    tcp_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    c->conn.fabric = fabric;
    c->conn.parker = parker;
    c->count = fabric->nodes;
    c->epoll = c->event = c->timer = c->notification_epoll = c->notification_event = -1;
    c->timer_at = FAR_TIME_NEVER;
    c->nodes = calloc(c->count, sizeof(*c->nodes));
    int err = c->nodes ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    for (unsigned i = 0; c->nodes && i < c->count; i++)
        c->nodes[i].channel.socket = -1;
    if (err == 0)
        err = connect_to_nodes(c);
    if (err == 0)
        err = make_epoll(c);
    if (err == 0 && !add_to_list(c, forks_before)) {
        for (unsigned i = 0; i < c->count; i++)
            shutdown(c->nodes[i].channel.socket, SHUT_RDWR);
        parker->event = 0;
        err = 1;
    }
    if (err != 0) {
        free_conn(c);
        return err;
    }
    *conn = &c->conn;
    return 0;
}


int tcp_connect(far_fabric *fabric, far_parker *parker, far_conn **conn) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int err = 1;
    pthread_once(&once, register_fork_handlers);
    for (unsigned tries = 0; err == 1 && tries < CONNECT_TRIES; tries++)
        err = try_connect(fabric, parker, conn);
    return err == 1
               ? far_fail(FAR_ERR_BUSY, "this process forks too often: no connection can be made between two forks")
               : err;
}


/* A session that has left the pool sends NET_BYE, so that the end of its connection does not count as a failure. The
 * messages are sent once; the call does not wait if a socket is full. */
void tcp_disconnect(far_conn *conn) {
    tcp_conn *c = (tcp_conn *)conn;
    if (!c->lost && conn->leaves)
        for (unsigned i = 0; i < c->count; i++) {
            net_channel_send(&c->nodes[i].channel, NET_BYE, 0, 0, NULL, 0);
            net_channel_flush(&c->nodes[i].channel);
        }
    close_sockets(c);
    remove_from_list(c);
    conn->parker->event = 0;
    free_conn(c);
}
