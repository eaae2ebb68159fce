/* Queue pairs of a memory node (rdma_node.h). The first thread of the daemon calls net_rdma_run, which creates queue
 * pairs. Any thread may stop a queue pair when it fences a session. */
#define _GNU_SOURCE
#include "fabric/node/rdma_node.h"
#include "base/error.h"
#include "base/host.h"
#include "farindex.h"

#ifdef FARINDEX_RDMA

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BACKLOG   128 /* connections that may wait to be accepted */
/* largest number of READs and atomics that the network card executes at the same time for one queue pair */
#define DEPTH_MAX 16

struct net_queue { /* The queue pair of one session. The lock protects all fields except the token. */
    net_rdma *rdma;
    /* random token of the offer; the connection that presents it gets this queue pair */
    uint8_t token[NET_TOKEN_BYTES];
    struct rdma_cm_id *id; /* connection manager's identifier, which owns the queue pair; NULL: not connected yet */
    bool stopped;          /* true if the session was fenced: its queue pair was destroyed, and it gets no other one */
    net_queue *next, *previous;
};

struct net_rdma {
    struct rdma_event_channel *events; /* requests of clients to connect, from the connection manager */
    struct rdma_cm_id *listener;
    struct ibv_pd *domain; /* protection domain; only queue pairs of this domain can access the memory */
    struct ibv_mr *region; /* registration of the memory with the card */
    struct ibv_cq *unused; /* required to create a queue pair; the node itself sends and receives nothing */
    uint64_t base;         /* address of the node's memory in this process */
    pthread_mutex_t lock;  /* held while queue pairs are created, looked up or destroyed */
    net_queue *queues;
};


/* ---- Opening ---- */

static int fail_with_errno(const char *text, const char *what) {
    return far_fail(FAR_ERR_UNREACHABLE, "%s: %s: %s", text, what, strerror(errno));
}


/* Listens at the endpoint through the connection manager, which finds the network card by its address. Returns 0 or an
 * error. */
static int listen_at(net_rdma *rdma, const net_endpoint *endpoint, const char *text) {
    rdma->events = rdma_create_event_channel();
    if (!rdma->events)
        return fail_with_errno(text, "there is no RDMA connection manager (is the module rdma_ucm loaded?)");
    if (fcntl(rdma->events->fd, F_SETFL, O_NONBLOCK) < 0 || fcntl(rdma->events->fd, F_SETFD, FD_CLOEXEC) < 0 ||
        rdma_create_id(rdma->events, &rdma->listener, NULL, RDMA_PS_TCP) < 0)
        return fail_with_errno(text, "RDMA connections cannot be accepted");
    if (rdma_bind_addr(rdma->listener, (struct sockaddr *)&endpoint->address) < 0)
        return fail_with_errno(text, "no RDMA device has this address");
    if (!rdma->listener->verbs)
        return far_fail(FAR_ERR_INVALID,
                        "%s: not the address of exactly one RDMA device (--listen needs the address of its interface)",
                        text);
    if (rdma_listen(rdma->listener, BACKLOG) < 0)
        return fail_with_errno(text, "RDMA connections cannot be accepted");
    return 0;
}


/* Checks that the card supports atomics, which every index needs. */
static int check_device(net_rdma *rdma, const char *text) {
    struct ibv_device_attr device;
    if (ibv_query_device(rdma->listener->verbs, &device) != 0)
        return fail_with_errno(text, "the RDMA device does not report its capabilities");
    if (device.atomic_cap == IBV_ATOMIC_NONE)
        return far_fail(FAR_ERR_UNSUPPORTED, "%s: the RDMA device does not support atomics, which farindex needs",
                        text);
    return 0;
}


static int register_memory(net_rdma *rdma, const char *text, char *bytes, uint64_t size) {
    const int access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    /* Huge pages need fewer address translations in the card. The kernel may ignore the advice. */
    madvise(bytes, size, MADV_HUGEPAGE);
    rdma->domain = ibv_alloc_pd(rdma->listener->verbs);
    rdma->unused = rdma->domain ? ibv_create_cq(rdma->listener->verbs, 1, NULL, NULL, 0) : NULL;
    if (!rdma->unused)
        return fail_with_errno(text, "the RDMA device cannot create a completion queue");
    rdma->region = ibv_reg_mr(rdma->domain, bytes, size, access);
    if (!rdma->region)
        return far_fail(FAR_ERR_NO_MEMORY, "%s: %llu bytes cannot be registered with the RDMA device: %s%s", text,
                        (unsigned long long)size, strerror(errno),
                        errno == ENOMEM ? " (raise the limit of locked memory: ulimit -l unlimited)" : "");
    rdma->base = (uint64_t)(uintptr_t)bytes;
    return 0;
}


int net_rdma_open(const net_endpoint *endpoint, const char *text, char *bytes, uint64_t size, net_rdma **opened) {
    net_rdma *rdma = calloc(1, sizeof(*rdma));
    if (!rdma)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a server");
    pthread_mutex_init(&rdma->lock, NULL);
    int err = listen_at(rdma, endpoint, text);
    if (err == 0)
        err = check_device(rdma, text);
    if (err == 0)
        err = register_memory(rdma, text, bytes, size);
    if (err < 0) {
        net_rdma_close(rdma);
        return err;
    }
    *opened = rdma;
    return 0;
}


void net_rdma_close(net_rdma *rdma) {
    if (!rdma)
        return;
    if (rdma->region)
        ibv_dereg_mr(rdma->region);
    if (rdma->unused)
        ibv_destroy_cq(rdma->unused);
    if (rdma->domain)
        ibv_dealloc_pd(rdma->domain);
    if (rdma->listener)
        rdma_destroy_id(rdma->listener);
    if (rdma->events)
        rdma_destroy_event_channel(rdma->events);
    pthread_mutex_destroy(&rdma->lock);
    free(rdma);
}


int net_rdma_descriptor(const net_rdma *rdma) {
    return rdma->events->fd;
}


/* ---- Queue pairs ---- */

net_queue *net_queue_prepare(net_rdma *rdma, net_queue_pair_offer *offer) {
    net_queue *queue = calloc(1, sizeof(*queue));
    if (!queue)
        return NULL;
    far_host_threads.ops->secret(&far_host_threads, queue->token, sizeof(queue->token));
    queue->rdma = rdma;
    memcpy(offer->token, queue->token, sizeof(offer->token));
    offer->base = rdma->base;
    offer->key = rdma->region->rkey;
    pthread_mutex_lock(&rdma->lock);
    queue->next = rdma->queues;
    if (queue->next)
        queue->next->previous = queue;
    rdma->queues = queue;
    pthread_mutex_unlock(&rdma->lock);
    return queue;
}


/* Stops the queue pair in two steps. First it is set to the error state, in which the card accepts no more requests
 * from it. Then it is destroyed, which returns only when the card has finished the requests that it accepted before. */
void net_queue_stop(net_queue *queue) {
    if (!queue)
        return;
    pthread_mutex_lock(&queue->rdma->lock);
    if (queue->id && !queue->stopped) {
        struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
        ibv_modify_qp(queue->id->qp, &error, IBV_QP_STATE);
        rdma_destroy_qp(queue->id);
    }
    queue->stopped = true;
    pthread_mutex_unlock(&queue->rdma->lock);
}


void net_queue_free(net_queue *queue) {
    if (!queue)
        return;
    net_queue_stop(queue);
    pthread_mutex_lock(&queue->rdma->lock);
    if (queue->previous)
        queue->previous->next = queue->next;
    else
        queue->rdma->queues = queue->next;
    if (queue->next)
        queue->next->previous = queue->previous;
    pthread_mutex_unlock(&queue->rdma->lock);
    if (queue->id)
        rdma_destroy_id(queue->id);
    free(queue);
}


/* Finds the prepared queue pair with this token, unless it is connected already or its session was fenced. The caller
 * holds the lock. */
static net_queue *find_offer(const net_rdma *rdma, const uint8_t token[NET_TOKEN_BYTES]) {
    net_queue *queue = rdma->queues;
    while (queue && (queue->id || queue->stopped || memcmp(queue->token, token, NET_TOKEN_BYTES) != 0))
        queue = queue->next;
    return queue;
}


static uint8_t smallest_of(unsigned a, unsigned b, unsigned c) {
    unsigned smallest_of = a < b ? a : b;
    return (uint8_t)(smallest_of < c ? smallest_of : c);
}


/* Creates the node's end of a queue pair and accepts the connection. Returns false on failure. */
static bool accept_queue(net_rdma *rdma, struct rdma_cm_id *id, unsigned depth) {
    struct ibv_device_attr device;
    struct ibv_qp_init_attr wanted = {.send_cq = rdma->unused,
                                      .recv_cq = rdma->unused,
                                      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
                                      .qp_type = IBV_QPT_RC};
    /* Also refuses a connection through a second card, because atomics of two cards on the same memory are not atomic
     * towards each other. */
    if (id->verbs != rdma->listener->verbs || ibv_query_device(id->verbs, &device) != 0 ||
        rdma_create_qp(id, rdma->domain, &wanted) < 0)
        return false;
    struct rdma_conn_param parameters = {
        .responder_resources = smallest_of(depth, (unsigned)device.max_qp_rd_atom, DEPTH_MAX), .rnr_retry_count = 6};
    if (rdma_accept(id, &parameters) == 0)
        return true;
    rdma_destroy_qp(id);
    return false;
}


/* Handles a request to connect a queue pair. A client without a valid token is rejected without a reason. */
static void handle_connect_request(net_rdma *rdma, struct rdma_cm_id *id, const uint8_t *token, unsigned depth) {
    pthread_mutex_lock(&rdma->lock);
    net_queue *queue = token ? find_offer(rdma, token) : NULL;
    bool accepted = queue && accept_queue(rdma, id, depth);
    if (accepted)
        queue->id = id;
    pthread_mutex_unlock(&rdma->lock);
    if (accepted)
        return;
    rdma_reject(id, NULL, 0);
    rdma_destroy_id(id);
}


/* Fetches an event under the lock, because the library then accesses the queue pair of a connection that was rejected
 * or has ended, and another thread must not destroy that queue pair meanwhile. */
static bool next_event(net_rdma *rdma, struct rdma_cm_event **event) {
    pthread_mutex_lock(&rdma->lock);
    bool got = rdma_get_cm_event(rdma->events, event) == 0;
    pthread_mutex_unlock(&rdma->lock);
    return got;
}


/* Handles requests to connect. Other events, of connected queue pairs, are ignored, because the session's socket
 * reports the end of a session. An event is acknowledged before it is handled, because destroying an identifier waits
 * for the acknowledgement of its events. */
void net_rdma_run(net_rdma *rdma) {
    struct rdma_cm_event *event;
    while (next_event(rdma, &event)) {
        uint8_t token[NET_TOKEN_BYTES];
        bool wanted = event->event == RDMA_CM_EVENT_CONNECT_REQUEST,
             shown = wanted && event->param.conn.private_data_len >= sizeof(token);
        struct rdma_cm_id *id = event->id;
        /* This is the value that the client passed as initiator_depth. */
        unsigned depth = event->param.conn.responder_resources;
        if (shown)
            memcpy(token, event->param.conn.private_data, sizeof(token));
        rdma_ack_cm_event(event);
        if (wanted)
            handle_connect_request(rdma, id, shown ? token : NULL, depth);
    }
}

#else

int net_rdma_open(const net_endpoint *endpoint, const char *text, char *bytes, uint64_t size, net_rdma **rdma) {
    (void)endpoint, (void)bytes, (void)size, (void)rdma;
    return far_fail(FAR_ERR_UNSUPPORTED, "%s: this build has no RDMA (it was made without libibverbs and librdmacm)",
                    text);
}


void net_rdma_close(net_rdma *rdma) {
    (void)rdma;
}


int net_rdma_descriptor(const net_rdma *rdma) {
    (void)rdma;
    return -1;
}


void net_rdma_run(net_rdma *rdma) {
    (void)rdma;
}


net_queue *net_queue_prepare(net_rdma *rdma, net_queue_pair_offer *offer) {
    (void)rdma, (void)offer;
    return NULL;
}


void net_queue_stop(net_queue *queue) {
    (void)queue;
}


void net_queue_free(net_queue *queue) {
    (void)queue;
}

#endif
