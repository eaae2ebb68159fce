/* The fabric `tcp`: a connection, its sockets and what the nodes owe. */
#define _GNU_SOURCE
#include "base/error.h"
#include "fabric/tcp.h"
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

#define EVENTS        32
#define ALARM         (FAR_NODES_MAX + 1) /* its number among what epoll watches */
#define DOZE_NS       10000000u
#define CONNECT_TRIES 64 /* of a process that forks meanwhile */

static pthread_mutex_t conns_lock = PTHREAD_MUTEX_INITIALIZER;
static tcp_conn *conns;
static unsigned forks; /* under the lock: how often this process was about to fork */


/* ---- Fork: the child's copies of the sockets would keep the parent's sessions alive. They are closed in it, without a
 * word to the nodes ---- */

static void before_fork(void) {
    pthread_mutex_lock(&conns_lock);
    forks++;
}


static void after_fork(void) {
    pthread_mutex_unlock(&conns_lock);
}


/* Under conns_lock while the connection is in the list: a fork comes before this, and the child closes its copy, or after,
 * and the child has none. */
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
        close_descriptor(&c->alarm);
        close_descriptor(&c->doze_epoll);
        close_descriptor(&c->doze_event);
        c->lost = FAR_ERR_FENCED; /* the connection is the parent's */
        c->closed_in_child = true;
    }
    conns = NULL;
    pthread_mutex_unlock(&conns_lock);
}


static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork, after_fork_in_child);
}


/* ---- Loss ---- */

static void close_sockets(tcp_conn *c) {
    pthread_mutex_lock(&conns_lock);
    for (unsigned i = 0; i < c->count; i++)
        close_descriptor(&c->nodes[i].channel.socket);
    pthread_mutex_unlock(&conns_lock);
}


/* What is under way does not end here but in the next poll: the caller may be inside a batch's `done`, or a post. */
void tcp_lose(tcp_conn *c, int status, unsigned node, const char *why) {
    if (c->lost)
        return;
    c->lost = status;
    if (why)
        snprintf(c->why, sizeof(c->why), "memory node %u at %.100s: %.80s", node,
                 tcp_fabric_of(c)->addresses[node].text, why);
    c->conn.gone = why ? c->why : NULL;
    close_sockets(c); /* what was received stays: a caller may be reading a message there */
    for (unsigned i = 0; i < c->count; i++) {
        c->nodes[i].open = false;
        c->nodes[i].filled = 0; /* no poll will have it, so no wait has to come back for it */
    }
    c->touched_count = 0;
    if (tcp_fabric_of(c)->kind->stop)
        tcp_fabric_of(c)->kind->stop(c);
}


void tcp_fence_self(far_conn *conn) {
    tcp_lose((tcp_conn *)conn, FAR_ERR_FENCED, 0, NULL);
}


static tcp_owed pop(tcp_conn *c, tcp_node *node) {
    tcp_owed owed = node->owed[node->first];
    node->first = (node->first + 1) % node->room;
    assert(node->count > 0 && c->owed > 0);
    node->count--;
    c->owed--;
    return owed;
}


static int fail_all(tcp_conn *c) {
    int delivered = 0, status = c->lost;
    for (unsigned i = 0; i < c->count; i++)
        while (c->nodes[i].count > 0) {
            tcp_owed owed = pop(c, &c->nodes[i]);
            if (owed.type == NET_BATCH && owed.batch)
                delivered += tcp_fail_batch(owed.batch, status);
            else if (owed.round)
                tcp_fail_round(owed.round, 1, status);
        }
    while (c->stalled_count > 0) {
        far_batch *batch = c->stalled[c->stalled_first].batch;
        c->stalled_first = (c->stalled_first + 1) % c->stalled_room;
        c->stalled_count--;
        delivered += tcp_fail_batch(batch, status);
    }
    while (c->unsent) {
        tcp_round *round = c->unsent;
        c->unsent = round->next;
        tcp_fail_round(round, round->unsent, status);
    }
    tcp_fail_questions(c, status);
    return delivered;
}


/* ---- Sending ---- */

static bool grow_ring(tcp_node *node) {
    unsigned room = node->room ? 2 * node->room : 16;
    tcp_owed *more = malloc(room * sizeof(*more));
    if (!more)
        return false;
    for (unsigned i = 0; i < node->count; i++)
        more[i] = node->owed[(node->first + i) % node->room];
    free(node->owed);
    node->owed = more;
    node->room = room;
    node->first = 0;
    return true;
}


tcp_owed *tcp_owe(tcp_conn *c, unsigned number, net_type type) {
    tcp_node *node = &c->nodes[number];
    if (node->count == node->room && !grow_ring(node)) {
        tcp_lose(c, FAR_ERR_UNREACHABLE, number, "no memory for a message");
        return NULL;
    }
    if (node->count == 0)
        node->fresh = node->unasked = true;
    tcp_owed *owed = &node->owed[(node->first + node->count++) % node->room];
    *owed = (tcp_owed){.type = (uint16_t)type, .tag = ++node->tag};
    c->owed++;
    return owed;
}


void tcp_send(tcp_conn *c, unsigned number, net_type type, unsigned count, const void *body, size_t bytes,
              tcp_round *round) {
    tcp_owed *owed = c->lost ? NULL : tcp_owe(c, number, type);
    if (owed) {
        owed->round = round;
        net_channel_send(&c->nodes[number].channel, type, count, owed->tag, body, bytes);
    } else if (round->unsent++ == 0) {
        round->next = c->unsent;
        c->unsent = round;
    }
}


/* Sends what is queued for a node. Its timeout runs from the first send, not from the post: a process that was stopped
 * between the two has not waited for the node. And it runs anew when a full socket takes more: then the node reads, or
 * this process was stopped in the middle of a message. */
static void flush(tcp_conn *c, unsigned number) {
    tcp_node *node = &c->nodes[number];
    uint64_t sent = node->channel.sent;
    int flushed = net_channel_flush(&node->channel);
    if (node->unasked || (node->writing && node->channel.sent != sent))
        node->since = far_host_now(c->conn.fabric->host);
    node->unasked = false;
    if (flushed < 0) {
        tcp_lose(c, FAR_ERR_UNREACHABLE, number, node->channel.why);
        return;
    }
    bool writing = net_channel_wants_to_send(&node->channel);
    c->stirred |= writing;
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
    tcp_send_questions(c);
    for (unsigned i = 0; i < c->count && !c->lost; i++)
        if (has_to_send(&c->nodes[i]))
            flush(c, i);
}


/* Sent at once: a caller that rings may not poll for a long time. */
void tcp_ring(far_conn *base) {
    tcp_conn *c = (tcp_conn *)base;
    if (c->lost)
        return;
    net_channel_send(&c->nodes[0].channel, NET_RING, 0, 0, NULL, 0);
    flush(c, 0);
}


/* ---- Receiving ---- */

static bool take_message(tcp_conn *c, unsigned number, const net_head *head, const char *body, int *delivered) {
    tcp_node *node = &c->nodes[number];
    if (head->type == NET_NOTE) {
        net_claim note;
        memcpy(&note, body, sizeof(note));
        tcp_note(c, &note);
        return true;
    }
    if (head->type == NET_REFUSED) {
        char text[80];
        snprintf(text, sizeof(text), "refuses: %.*s", (int)(head->length - NET_HEAD_BYTES), body);
        tcp_lose(c, FAR_ERR_UNREACHABLE, number, text);
        return true;
    }
    if (node->count == 0 || node->owed[node->first].tag != head->tag)
        return false;
    tcp_owed owed = pop(c, node);
    bool ok = false;
    if (owed.type == NET_BATCH && head->type == NET_RESULTS)
        ok = tcp_take_results(number, &owed, body, head->length - NET_HEAD_BYTES, delivered);
    else if (owed.type != NET_BATCH)
        ok = tcp_take_answer(c, number, &owed, head, body);
    if (ok)
        return true;
    node->first = (node->first + node->room - 1) % node->room; /* still owed: it fails with the others */
    node->owed[node->first] = owed;
    node->count++;
    c->owed++;
    return false;
}


/* Takes in what a node has sent, and all whole messages of it. False: nothing was there. */
static bool receive(tcp_conn *c, unsigned number, int *delivered) {
    tcp_node *node = &c->nodes[number];
    net_head head;
    const char *body;
    int got = 0, filled = node->filled ? node->filled : net_channel_fill(&node->channel);
    node->readable = false;
    node->filled = 0;
    while (!c->lost && (got = net_channel_next(&node->channel, true, &head, &body)) > 0) {
        if (!take_message(c, number, &head, body, delivered)) {
            got = -1;
            break;
        }
        if (c->owed == 0)
            tcp_fabric_of(c)->kind->go_on(c);
    }
    if (c->lost)
        return true;
    if (got < 0)
        tcp_lose(c, FAR_ERR_UNREACHABLE, number, "sends what is no message of this protocol");
    else if (filled < 0)
        tcp_lose(c, FAR_ERR_UNREACHABLE, number, node->channel.why);
    else if (filled > 0 && node->count > 0)
        node->since = far_host_now(c->conn.fabric->host);
    return filled != 0;
}


static uint64_t timeout_ns(const tcp_conn *c) {
    return (uint64_t)tcp_fabric_of(c)->timeout_ms * 1000000u;
}


static bool is_waited_for(const tcp_node *node) {
    return node->count > 0 && !node->unasked;
}


/* A node that owes something and is silent: this session gives up. Whether it is dead others find out at the nodes. */
static void check_silence(tcp_conn *c) {
    uint64_t now = far_host_now(c->conn.fabric->host);
    for (unsigned i = 0; i < c->count && !c->lost; i++)
        if (is_waited_for(&c->nodes[i]) && now >= c->nodes[i].since + timeout_ns(c))
            tcp_lose(c, FAR_ERR_UNREACHABLE, i, "does not answer in time");
}


/* A node whose requests all leave with this poll cannot have answered: its socket is not read. */
int tcp_poll(far_conn *base) {
    tcp_conn *c = (tcp_conn *)base;
    int delivered = 0;
    bool silent = false;
    c->stirred = false;
    if (atomic_load_explicit(&c->look, memory_order_relaxed) &&
        atomic_exchange_explicit(&c->look, false, memory_order_acquire))
        c->nodes[0].readable = true;
    if (c->asking)
        tcp_send_questions(c);
    for (unsigned i = 0; i < c->count && !c->lost; i++) {
        tcp_node *node = &c->nodes[i];
        bool fresh = node->fresh;
        if (has_to_send(node))
            flush(c, i);
        node->fresh = false;
        if (!c->lost && ((node->count > 0 && !fresh) || node->readable))
            silent |= !receive(c, i, &delivered);
    }
    if (silent && c->owed > 0 && !c->lost)
        check_silence(c);
    if (c->lost)
        delivered += fail_all(c);
    else
        flush_all(c); /* what the answers led to */
    return delivered;
}


/* ---- Waiting ---- */

static uint64_t next_deadline(const tcp_conn *c) {
    uint64_t next = FAR_TIME_NEVER;
    for (unsigned i = 0; c->owed > 0 && i < c->count; i++)
        if (is_waited_for(&c->nodes[i]) && c->nodes[i].since + timeout_ns(c) < next)
            next = c->nodes[i].since + timeout_ns(c);
    return next;
}


/* Each wait with a time of its own would set a timer and take it away again, which costs as much as a system call. This
 * one stays set: when it rings too early, which is once in a timeout, it is set again. */
static void set_alarm(tcp_conn *c, uint64_t deadline) {
    struct itimerspec at = {.it_value = {(time_t)(deadline / 1000000000u), (long)(deadline % 1000000000u)}};
    if (deadline >= c->alarm_at)
        return;
    c->alarm_at = deadline;
    timerfd_settime(c->alarm, TFD_TIMER_ABSTIME, &at, NULL);
}


static void take_alarm(tcp_conn *c) {
    uint64_t rings;
    c->alarm_at = FAR_TIME_NEVER;
    if (read(c->alarm, &rings, sizeof(rings)) < 0)
        return; /* the alarm was set again meanwhile */
}


/* Sleeps until something happens or until the time `until`. Returns the number of events. */
static int sleep_at(int epoll, struct epoll_event *events, uint64_t until, far_host *host) {
    if (until == FAR_TIME_NEVER)
        return epoll_wait(epoll, events, EVENTS, -1);
    uint64_t now = far_host_now(host), ns = until > now ? until - now : 0;
    struct timespec span = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    int count = epoll_pwait2(epoll, events, EVENTS, &span, NULL);
    if (count < 0 && errno == ENOSYS) /* an older kernel: by the millisecond */
        count = epoll_wait(epoll, events, EVENTS, ns ? (int)(ns / 1000000u % 1000000u) + 1 : 0);
    return count;
}


/* Something has come from a node that owes something, or its connection has ended: the next poll has it. */
static bool has_come(tcp_conn *c) {
    bool come = false;
    for (unsigned i = 0; i < c->count; i++) {
        tcp_node *node = &c->nodes[i];
        if (node->count > 0 && node->filled == 0)
            node->filled = net_channel_fill(&node->channel);
        node->readable |= node->filled != 0;
        come |= node->filled != 0;
    }
    return come;
}


/* Looks at the sockets for a while. True: there is something, or the thread was woken, and need not sleep. */
static bool look(tcp_conn *c, uint64_t until) {
    far_host *host = c->conn.fabric->host;
    uint64_t now = far_host_now(host);
    for (bool looks = net_linger_begin(&c->linger, now); looks && now < until;
         looks = net_linger_goes_on(&c->linger, now)) {
        if (has_come(c))
            return c->stirred = true;
        if (far_parker_is_due(c->conn.parker))
            return false; /* arming takes it */
        sched_yield();    /* the daemon may need this processor, or another session */
        now = far_host_now(host);
    }
    return false;
}


/* A wait before this one has taken something off a socket, and no poll has had it since: epoll would not tell of it. */
static bool has_unread(const tcp_conn *c) {
    for (unsigned i = 0; i < c->count; i++)
        if (c->nodes[i].filled != 0)
            return true;
    return false;
}


static void sleep_on_sockets(tcp_conn *c, uint64_t until) {
    struct epoll_event events[EVENTS];
    if (has_unread(c))
        return;
    set_alarm(c, next_deadline(c));
    if (!far_parker_arm(c->conn.parker))
        return;
    int count = sleep_at(c->epoll, events, until, c->conn.fabric->host);
    far_parker_disarm(c->conn.parker);
    for (int i = 0; i < count; i++)
        if (events[i].data.u32 < c->count)
            c->nodes[events[i].data.u32].readable = c->stirred = true;
        else if (events[i].data.u32 == ALARM)
            take_alarm(c);
}


/* Something is under way on a lost connection: the next poll ends it, and nothing would wake a thread that slept first. */
static bool has_to_fail(const tcp_conn *c) {
    return c->lost && (c->owed > 0 || c->stalled_count > 0 || c->unsent || c->asking);
}


/* Looking is for answers that are owed. rdma has looked at its queues already. */
static bool may_look(const tcp_conn *c) {
    return c->owed > 0 && !c->queues;
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
    } else if (may_look(c)) {
        bool by_look = look(c, until);
        if (!by_look)
            sleep_on_sockets(c, until);
        net_linger_end(&c->linger, far_host_now(host), by_look);
    } else {
        sleep_on_sockets(c, until);
    }
}


static bool watch_descriptor(int epoll, int descriptor, uint32_t number) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}


/* Made by the first doze, for the one connection of a handle that dozes: a second epoll on a socket costs something whenever
 * a message comes. */
static bool can_doze(tcp_conn *c) {
    if (c->doze_epoll >= 0)
        return true;
    pthread_mutex_lock(&conns_lock); /* no fork comes between */
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    c->doze_event = eventfd(0, EFD_CLOEXEC);
    int socket = c->nodes[0].channel.socket; /* closed already: nothing will be told */
    if (epoll >= 0 && c->doze_event > 0 && (socket < 0 || watch_descriptor(epoll, socket, 0)) &&
        watch_descriptor(epoll, c->doze_event, FAR_NODES_MAX)) {
        c->doze_epoll = epoll;
    } else {
        close_descriptor(&epoll);
        close_descriptor(&c->doze_event);
    }
    pthread_mutex_unlock(&conns_lock);
    return c->doze_epoll >= 0;
}


/* Runs beside the thread that drives the session, so it leaves everything of the connection alone but `look`, `dozer` and
 * the doze_ descriptors. */
void tcp_doze(far_conn *base, far_parker *parker, uint64_t until) {
    tcp_conn *c = (tcp_conn *)base;
    struct epoll_event events[EVENTS];
    far_host *host = c->conn.fabric->host;
    if (c->closed_in_child || !can_doze(c)) {
        uint64_t soon =
            c->closed_in_child ? until : far_host_now(host) + DOZE_NS; /* no descriptors: looks now and then */
        host->ops->park(host, parker, until < soon ? until : soon);
        return;
    }
    parker->event = c->doze_event;
    atomic_store_explicit(&c->dozer, parker, memory_order_seq_cst);
    if (atomic_load_explicit(&c->noted, memory_order_seq_cst) || !far_parker_arm(parker))
        return;
    int count = sleep_at(c->doze_epoll, events, until, host);
    far_parker_disarm(parker);
    for (int i = 0; i < count; i++)
        if (events[i].data.u32 == 0)
            atomic_store_explicit(&c->look, true, memory_order_release);
}


/* ---- Connecting ---- */

static int watch_nodes(tcp_conn *c) {
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->event = eventfd(0, EFD_CLOEXEC);
    c->alarm = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    bool ok = c->epoll >= 0 && c->event > 0 && c->alarm >= 0;
    for (unsigned i = 0; i < c->count && ok; i++)
        ok = watch_descriptor(c->epoll, c->nodes[i].channel.socket, i);
    ok = ok && watch_descriptor(c->epoll, c->event, FAR_NODES_MAX) && watch_descriptor(c->epoll, c->alarm, ALARM);
    c->conn.parker->event = c->event;
    return ok ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no descriptors for a connection: %s", strerror(errno));
}


/* Nodes may have been restarted since the pool was opened. */
static int check_welcomes(const tcp_fabric *fabric, const net_link *links) {
    for (unsigned i = 0; i < fabric->fabric.nodes; i++) {
        const net_welcome *w = &links[i].welcome;
        if (w->instance != fabric->instances[i] || w->pool != fabric->pool || w->node != i ||
            w->nodes != fabric->fabric.nodes)
            return far_fail(FAR_ERR_UNREACHABLE,
                            "memory node %u at %s is another than before: it was restarted without its memory", i,
                            fabric->addresses[i].text);
    }
    return 0;
}


static int link_nodes(tcp_conn *c) {
    tcp_fabric *fabric = tcp_fabric_of(c);
    net_dial dial = {fabric->tls, fabric->insecure, NET_FOR_SESSION, fabric->timeout_ms};
    net_link *links = calloc(c->count, sizeof(*links));
    if (!links)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    int err = net_links_open(links, fabric->addresses, c->count, &dial);
    if (err == 0)
        err = check_welcomes(fabric, links);
    if (err == 0 && fabric->kind->attach)
        err = fabric->kind->attach(c, links);
    for (unsigned i = 0; i < c->count; i++)
        c->nodes[i].channel = links[i].channel;
    free(links);
    return err;
}


static void free_conn(tcp_conn *c) {
    if (tcp_fabric_of(c)->kind->detach)
        tcp_fabric_of(c)->kind->detach(c);
    for (unsigned i = 0; c->nodes && i < c->count; i++) {
        net_channel_close(&c->nodes[i].channel);
        free(c->nodes[i].owed);
    }
    close_descriptor(&c->epoll);
    close_descriptor(&c->event);
    close_descriptor(&c->alarm);
    close_descriptor(&c->doze_epoll);
    close_descriptor(&c->doze_event);
    free(c->stalled);
    free(c->nodes);
    free(c);
}


/* Puts the connection into the list of those that a forked child closes. False: the process has forked since the count was
 * forks_before, when the sockets did not exist: a child may have copies of them that it does not know to close. */
static bool enlist(tcp_conn *c, unsigned forks_before) {
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


/* After its sockets were closed: until then a forked child must find it in the list. */
static void delist(tcp_conn *c) {
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


/* Returns 1 when the process forked meanwhile: the sockets were shut down, so that the child's copies are of no use. */
static int try_connect(far_fabric *fabric, far_parker *parker, far_conn **conn) {
    unsigned forks_before = count_forks();
    tcp_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    c->conn.fabric = fabric;
    c->conn.parker = parker;
    c->count = fabric->nodes;
    c->epoll = c->event = c->alarm = c->doze_epoll = c->doze_event = -1;
    c->alarm_at = FAR_TIME_NEVER;
    c->nodes = calloc(c->count, sizeof(*c->nodes));
    int err = c->nodes ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    for (unsigned i = 0; c->nodes && i < c->count; i++)
        c->nodes[i].channel.socket = -1;
    if (err == 0)
        err = link_nodes(c);
    if (err == 0)
        err = watch_nodes(c);
    if (err == 0 && !enlist(c, forks_before)) {
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
    pthread_once(&once, watch_forks);
    for (unsigned tries = 0; err == 1 && tries < CONNECT_TRIES; tries++)
        err = try_connect(fabric, parker, conn);
    return err == 1 ? far_fail(FAR_ERR_BUSY, "this process forks all the time: no connection is its own") : err;
}


/* A session that has left the pool says so: then its end is no death. What is not sent at once is not worth waiting
 * for. */
void tcp_disconnect(far_conn *conn) {
    tcp_conn *c = (tcp_conn *)conn;
    if (!c->lost && conn->leaves)
        for (unsigned i = 0; i < c->count; i++) {
            net_channel_send(&c->nodes[i].channel, NET_BYE, 0, 0, NULL, 0);
            net_channel_flush(&c->nodes[i].channel);
        }
    close_sockets(c);
    delist(c);
    conn->parker->event = 0;
    free_conn(c);
}
