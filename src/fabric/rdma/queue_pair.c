/* The fabric `rdma`: creates, stops and frees the queue pairs of a connection. For each queue pair, the client requests
 * a token from the daemon over the socket, lets the connection manager find the card that reaches the node, and
 * presents the token to the daemon when it connects. */
#define _GNU_SOURCE
#ifdef FARINDEX_RDMA
#include "base/error.h"
#include "fabric/rdma/rdma.h"
#include "farindex.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

#define DEPTH_MAX     16  /* READs and atomics of a queue pair that may be under way; the card queues further ones */
/* WRITEs up to this many bytes should be stored inside their requests; a card may support less */
#define INLINE_WANTED 128
/* retransmissions of an unacknowledged packet before the queue pair fails; 7 would mean unlimited */
#define RETRIES     6
#define ACK_TIMEOUT 14 /* the timeout is 4.096 us << 14, so a packet is sent again after 67 ms */

typedef struct connecting { /* the connection attempt to one node */
    const net_address *address;
    struct rdma_event_channel *events; /* where the connection manager reports its progress */
    uint64_t until;                    /* time in ns at which the attempt fails */
    far_host *host;
} connecting;


static int fail_with_errno(const connecting *x, const char *what) {
    return far_fail(FAR_ERR_UNREACHABLE, "memory node at %s: %s: %s", x->address->text, what, strerror(errno));
}


/* Waits for the next event of the connection manager. Any event other than the expected one is a failure. */
static int await_event(const connecting *x, enum rdma_cm_event_type expected, const char *what) {
    struct pollfd wait = {.fd = x->events->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    for (;;) {
        if (rdma_get_cm_event(x->events, &event) == 0)
            break;
        uint64_t now = far_host_now(x->host);
        if (errno != EAGAIN && errno != EINTR)
            return fail_with_errno(x, what);
        if (now >= x->until)
            return far_fail(FAR_ERR_UNREACHABLE, "memory node at %s: %s: the node did not answer in time",
                            x->address->text, what);
        poll(&wait, 1, (int)((x->until - now) / 1000000u) + 1);
    }
    enum rdma_cm_event_type got = event->event;
    int status = event->status;
    rdma_ack_cm_event(event);
    if (got == expected)
        return 0;
    return far_fail(FAR_ERR_UNREACHABLE, "memory node at %s: %s: %s (%d)", x->address->text, what, rdma_event_str(got),
                    status);
}


/* Lets the connection manager find the local card and the route to the node. The node's card has the address to which
 * the socket is connected. */
static int resolve_route(rdma_queue *q, const connecting *x, int socket) {
    net_endpoint peer = {.length = sizeof(peer.address)};
    int left = (int)((x->until - far_host_now(x->host)) / 1000000u) + 1;
    if (getpeername(socket, (struct sockaddr *)&peer.address, &peer.length) < 0 ||
        rdma_create_id(x->events, &q->id, NULL, RDMA_PS_TCP) < 0)
        return fail_with_errno(x, "an RDMA connection cannot be made (is the module rdma_ucm loaded?)");
    if (rdma_resolve_addr(q->id, NULL, (struct sockaddr *)&peer.address, left) < 0)
        return fail_with_errno(x, "no RDMA device of this host can reach the node");
    int err = await_event(x, RDMA_CM_EVENT_ADDR_RESOLVED, "no RDMA device of this host can reach the node");
    if (err == 0 && rdma_resolve_route(q->id, left) < 0)
        err = fail_with_errno(x, "there is no RDMA route to the node");
    return err < 0 ? err : await_event(x, RDMA_CM_EVENT_ROUTE_RESOLVED, "there is no RDMA route to the node");
}


/* Sets the fields of the requests that never change. Each request has one element of `places` with the key of the ring,
 * and a link to the next request. */
static void make_requests(rdma_queue *q) {
    for (unsigned i = 0; i < RDMA_SLOTS; i++) {
        q->places[i].lkey = q->region->lkey;
        q->requests[i] = (struct ibv_send_wr){.sg_list = &q->places[i], .num_sge = 1, .next = &q->requests[i] + 1};
    }
}


static int make_completions(rdma_queue *q, const connecting *x) {
    q->channel = ibv_create_comp_channel(q->id->verbs);
    q->completions = q->channel ? ibv_create_cq(q->id->verbs, (int)RDMA_SLOTS + 1, NULL, q->channel, 0) : NULL;
    if (!q->completions || fcntl(q->channel->fd, F_SETFL, O_NONBLOCK) < 0 ||
        fcntl(q->channel->fd, F_SETFD, FD_CLOEXEC) < 0)
        return fail_with_errno(x, "the RDMA device cannot create a completion queue");
    return 0;
}


static int make_pair(rdma_queue *q, const connecting *x) {
    struct ibv_qp_init_attr wanted = {.send_cq = q->completions,
                                      .recv_cq = q->completions,
                                      .cap = {.max_send_wr = RDMA_SLOTS,
                                              .max_recv_wr = 1,
                                              .max_send_sge = 1,
                                              .max_recv_sge = 1,
                                              .max_inline_data = INLINE_WANTED},
                                      .qp_type = IBV_QPT_RC};
    int made = rdma_create_qp(q->id, NULL, &wanted);
    /* Some cards accept no data inside requests, or less than INLINE_WANTED bytes, so the creation is repeated without
     * such data. */
    if (made < 0) {
        wanted.cap.max_inline_data = 0;
        made = rdma_create_qp(q->id, NULL, &wanted);
    }
    if (made < 0)
        return fail_with_errno(x, "the RDMA device cannot create a queue pair");
    q->inline_max = wanted.cap.max_inline_data;
    return 0;
}


static int make_ring(rdma_queue *q, const connecting *x) {
    if (posix_memalign((void **)&q->ring, 4096, RDMA_RING) != 0)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    q->region = ibv_reg_mr(q->id->pd, q->ring, RDMA_RING, IBV_ACCESS_LOCAL_WRITE);
    if (!q->region)
        return fail_with_errno(x, errno == ENOMEM
                                      ? "memory cannot be registered (raise the limit of locked memory: ulimit -l)"
                                      : "memory cannot be registered");
    make_requests(q);
    return 0;
}


static int make_queue(rdma_queue *q, const connecting *x) {
    int err = make_completions(q, x);
    if (err == 0)
        err = make_pair(q, x);
    return err < 0 ? err : make_ring(q, x);
}


/* Connects the queue pair. The daemon creates its end for the client that presents the token. */
static int connect_queue(rdma_queue *q, const connecting *x, const net_queue_pair_offer *offer) {
    struct ibv_device_attr device;
    uint8_t timeout = ACK_TIMEOUT;
    if (ibv_query_device(q->id->verbs, &device) != 0)
        return fail_with_errno(x, "the RDMA device does not report its capabilities");
    int depth = device.max_qp_init_rd_atom < DEPTH_MAX ? device.max_qp_init_rd_atom : DEPTH_MAX;
    struct rdma_conn_param parameters = {.private_data = offer->token,
                                         .private_data_len = sizeof(offer->token),
                                         .initiator_depth = (uint8_t)depth,
                                         .retry_count = RETRIES,
                                         .rnr_retry_count = RETRIES};
    rdma_set_option(q->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout));
    if (rdma_connect(q->id, &parameters) < 0)
        return fail_with_errno(x, "the node does not accept a queue pair");
    int err = await_event(x, RDMA_CM_EVENT_ESTABLISHED, "the node does not accept a queue pair");
    q->base = offer->base;
    q->key = offer->key;
    return err;
}


/* Creates and connects the queue pair to one node. Later events of the connection manager are not read: the client
 * learns from the socket, and from verbs that fail, that the node has fenced the session or is gone. */
static int attach_node(tcp_conn *c, unsigned node, net_link *link) {
    tcp_fabric *fabric = tcp_fabric_of(c);
    rdma_queue *q = &c->queues[node];
    net_queue_pair_offer offer;
    connecting x = {&fabric->addresses[node], NULL, far_host_now(fabric->fabric.host), fabric->fabric.host};
    x.until += (uint64_t)fabric->timeout_ms * 1000000u;
    int err = net_link_call(link, x.address, NET_QUEUE_PAIR, NULL, 0, NET_QUEUE_PAIR_OFFER, &offer, sizeof(offer),
                            fabric->timeout_ms);
    if (err < 0)
        return err;
    q->events = x.events = rdma_create_event_channel();
    if (!x.events)
        return fail_with_errno(&x, "there is no RDMA connection manager (is the module rdma_ucm loaded?)");
    fcntl(x.events->fd, F_SETFL, O_NONBLOCK);
    fcntl(x.events->fd, F_SETFD, FD_CLOEXEC);
    if ((err = resolve_route(q, &x, link->channel.socket)) == 0 && (err = make_queue(q, &x)) == 0)
        err = connect_queue(q, &x, &offer);
    return err;
}


int rdma_create_queues(tcp_conn *c, net_link *links) {
    c->queues = calloc(c->count, sizeof(*c->queues));
    if (!c->queues)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    int err = 0;
    for (unsigned i = 0; i < c->count && err == 0; i++)
        err = attach_node(c, i, &links[i]);
    return err;
}


/* Destroys the queue pairs of a lost connection. Afterwards the card of this host sends nothing more for the connection
 * and writes nothing more to its rings. */
void rdma_stop_queues(tcp_conn *c) {
    for (unsigned i = 0; !c->closed_in_child && c->queues && i < c->count; i++)
        if (c->queues[i].id && c->queues[i].id->qp)
            rdma_destroy_qp(c->queues[i].id);
}


/* Frees everything. A forked child does not free its copies, because cards and queue pairs belong to the parent. */
void rdma_free_queues(tcp_conn *c) {
    rdma_stop_queues(c);
    for (unsigned i = 0; !c->closed_in_child && c->queues && i < c->count; i++) {
        rdma_queue *q = &c->queues[i];
        if (q->region)
            ibv_dereg_mr(q->region);
        if (q->completions)
            ibv_destroy_cq(q->completions);
        if (q->channel)
            ibv_destroy_comp_channel(q->channel);
        if (q->id)
            rdma_destroy_id(q->id);
        if (q->events)
            rdma_destroy_event_channel(q->events);
        free(q->ring);
    }
    free(c->queues);
    c->queues = NULL;
}

#else
/* This typedef keeps the file non-empty in a build without RDMA, because ISO C forbids an empty translation unit. */
typedef int rdma_is_left_out;
#endif
