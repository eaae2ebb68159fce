/* The fabric `rdma`: making, stopping and freeing the queue pairs of a connection. The node's daemon is asked for one over
 * the socket and gives a token; the connection manager finds the card that leads to the node, and shows it the token. */
#define _GNU_SOURCE
#ifdef FARINDEX_RDMA
#include "base/error.h"
#include "fabric/rdma.h"
#include "farindex.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

#define DEPTH_MOST  16  /* READs and atomics of a queue pair under way; the card queues the others */
#define INLINE_WISH 128 /* bytes of a WRITE inside its request; a card may have less */
#define RETRIES     6   /* of a packet that nobody acknowledges, before the queue pair fails; 7 would mean for ever */
#define ACK_TIMEOUT 14  /* 4.096 us << 14: after 67 ms a packet is sent again */

typedef struct connecting { /* to one node */
    const net_address *address;
    struct rdma_event_channel *events; /* where the connection manager tells how far it is */
    uint64_t until;                    /* the moment when the node is given up */
    far_host *host;
} connecting;


static int fail_at(const connecting *x, const char *what) {
    return far_fail(FAR_ERR_UNREACHABLE, "memory node at %s: %s: %s", x->address->text, what, strerror(errno));
}


/* Waits for the next event of the connection manager: anything but the expected one is a failure. */
static int await(const connecting *x, enum rdma_cm_event_type expected, const char *what) {
    struct pollfd wait = {.fd = x->events->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    for (;;) {
        if (rdma_get_cm_event(x->events, &event) == 0)
            break;
        uint64_t now = far_host_now(x->host);
        if (errno != EAGAIN && errno != EINTR)
            return fail_at(x, what);
        if (now >= x->until)
            return far_fail(FAR_ERR_UNREACHABLE, "memory node at %s: %s: no answer in time", x->address->text, what);
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


/* Has the connection manager find the card of this host, and the route, that lead to the node. The node's card has the
 * address to which the socket is connected. */
static int find_way(rdma_queue *q, const connecting *x, int socket) {
    net_endpoint peer = {.length = sizeof(peer.address)};
    int left = (int)((x->until - far_host_now(x->host)) / 1000000u) + 1;
    if (getpeername(socket, (struct sockaddr *)&peer.address, &peer.length) < 0 ||
        rdma_create_id(x->events, &q->id, NULL, RDMA_PS_TCP) < 0)
        return fail_at(x, "no RDMA connection can be made (is the module rdma_ucm loaded?)");
    if (rdma_resolve_addr(q->id, NULL, (struct sockaddr *)&peer.address, left) < 0)
        return fail_at(x, "no RDMA device of this host leads there");
    int err = await(x, RDMA_CM_EVENT_ADDR_RESOLVED, "no RDMA device of this host leads there");
    if (err == 0 && rdma_resolve_route(q->id, left) < 0)
        err = fail_at(x, "no RDMA route leads there");
    return err < 0 ? err : await(x, RDMA_CM_EVENT_ROUTE_RESOLVED, "no RDMA route leads there");
}


/* All that never changes in the requests: each has one place in the ring, by the ring's key, and the next one. */
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
        return fail_at(x, "the RDMA device gives no queues");
    return 0;
}


static int make_pair(rdma_queue *q, const connecting *x) {
    struct ibv_qp_init_attr wanted = {.send_cq = q->completions,
                                      .recv_cq = q->completions,
                                      .cap = {.max_send_wr = RDMA_SLOTS,
                                              .max_recv_wr = 1,
                                              .max_send_sge = 1,
                                              .max_recv_sge = 1,
                                              .max_inline_data = INLINE_WISH},
                                      .qp_type = IBV_QPT_RC};
    int made = rdma_create_qp(q->id, NULL, &wanted);
    if (made < 0) { /* a card that takes no data inside requests, or less of it */
        wanted.cap.max_inline_data = 0;
        made = rdma_create_qp(q->id, NULL, &wanted);
    }
    if (made < 0)
        return fail_at(x, "the RDMA device gives no queue pair");
    q->inline_most = wanted.cap.max_inline_data;
    return 0;
}


static int make_ring(rdma_queue *q, const connecting *x) {
    if (posix_memalign((void **)&q->ring, 4096, RDMA_RING) != 0)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    q->region = ibv_reg_mr(q->id->pd, q->ring, RDMA_RING, IBV_ACCESS_LOCAL_WRITE);
    if (!q->region)
        return fail_at(x, errno == ENOMEM ? "no memory can be registered (raise the limit of locked memory: ulimit -l)"
                                          : "no memory can be registered");
    make_requests(q);
    return 0;
}


static int make_queue(rdma_queue *q, const connecting *x) {
    int err = make_completions(q, x);
    if (err == 0)
        err = make_pair(q, x);
    return err < 0 ? err : make_ring(q, x);
}


/* Connects the queue pair to the node's, which the daemon makes for the client that shows the token. */
static int connect_queue(rdma_queue *q, const connecting *x, const net_queued *offer) {
    struct ibv_device_attr device;
    uint8_t timeout = ACK_TIMEOUT;
    if (ibv_query_device(q->id->verbs, &device) != 0)
        return fail_at(x, "the RDMA device does not say what it can");
    int depth = device.max_qp_init_rd_atom < DEPTH_MOST ? device.max_qp_init_rd_atom : DEPTH_MOST;
    struct rdma_conn_param parameters = {.private_data = offer->token,
                                         .private_data_len = sizeof(offer->token),
                                         .initiator_depth = (uint8_t)depth,
                                         .retry_count = RETRIES,
                                         .rnr_retry_count = RETRIES};
    rdma_set_option(q->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout));
    if (rdma_connect(q->id, &parameters) < 0)
        return fail_at(x, "the node takes no queue pair");
    int err = await(x, RDMA_CM_EVENT_ESTABLISHED, "the node takes no queue pair");
    q->base = offer->base;
    q->key = offer->key;
    return err;
}


/* Nobody reads the connection manager's events after this: that the node has cut the session, or is gone, is told by the
 * socket, and by verbs that fail. */
static int attach_one(tcp_conn *c, unsigned node, net_link *link) {
    tcp_fabric *fabric = tcp_fabric_of(c);
    rdma_queue *q = &c->queues[node];
    net_queued offer;
    connecting x = {&fabric->addresses[node], NULL, far_host_now(fabric->fabric.host), fabric->fabric.host};
    x.until += (uint64_t)fabric->timeout_ms * 1000000u;
    int err = net_link_call(link, x.address, NET_QUEUE, NULL, 0, NET_QUEUED, &offer, sizeof(offer), fabric->timeout_ms);
    if (err < 0)
        return err;
    q->events = x.events = rdma_create_event_channel();
    if (!x.events)
        return fail_at(&x, "there is no RDMA connection manager (is the module rdma_ucm loaded?)");
    fcntl(x.events->fd, F_SETFL, O_NONBLOCK);
    fcntl(x.events->fd, F_SETFD, FD_CLOEXEC);
    if ((err = find_way(q, &x, link->channel.socket)) == 0 && (err = make_queue(q, &x)) == 0)
        err = connect_queue(q, &x, &offer);
    return err;
}


int rdma_attach(tcp_conn *c, net_link *links) {
    c->queues = calloc(c->count, sizeof(*c->queues));
    if (!c->queues)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    int err = 0;
    for (unsigned i = 0; i < c->count && err == 0; i++)
        err = attach_one(c, i, &links[i]);
    return err;
}


/* The connection is lost. When its queue pairs are destroyed, no card of this host sends anything of it, or writes to its
 * rings, any more. */
void rdma_stop(tcp_conn *c) {
    for (unsigned i = 0; !c->closed_in_child && c->queues && i < c->count; i++)
        if (c->queues[i].id && c->queues[i].id->qp)
            rdma_destroy_qp(c->queues[i].id);
}


/* A forked child leaves its copies as they are: cards and queue pairs are the parent's. */
void rdma_detach(tcp_conn *c) {
    rdma_stop(c);
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
typedef int rdma_is_left_out; /* a file must not be empty */
#endif
