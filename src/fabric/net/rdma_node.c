/* Queue pairs of a memory node (rdma_node.h). The daemon's first thread calls net_rdma_run, which makes queue pairs; any
 * thread may stop them, when it cuts a session. */
#define _GNU_SOURCE
#include "fabric/net/rdma_node.h"
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

#define BACKLOG    128 /* connections that wait to be accepted */
#define DEPTH_MOST 16  /* READs and atomics of one queue pair that the card has under way */

struct net_queue { /* of one session; under the lock, but for the token */
    net_rdma *rdma;
    uint8_t token[NET_TOKEN_BYTES]; /* a connection that shows it gets the queue pair */
    struct rdma_cm_id *id;          /* has the queue pair; NULL: nobody has connected it yet */
    bool stopped;                   /* the session was cut: no queue pair, now or later */
    net_queue *next, *previous;
};

struct net_rdma {
    struct rdma_event_channel *events; /* of the connection manager: who wants to connect */
    struct rdma_cm_id *listener;
    struct ibv_pd *domain; /* the memory is open to queue pairs of this domain only */
    struct ibv_mr *region; /* the memory, as the card knows it */
    struct ibv_cq *unused; /* a queue pair must have one, but nothing is ever sent or received by the node */
    uint64_t base;         /* of the memory */
    pthread_mutex_t lock;  /* held while queue pairs are made, looked for or destroyed */
    net_queue *queues;
};


/* ---- Opening ---- */

static int fail_at(const char *text, const char *what) {
    return far_fail(FAR_ERR_UNREACHABLE, "%s: %s: %s", text, what, strerror(errno));
}


/* Listens by the connection manager, which finds the card by the address. */
static int listen_at(net_rdma *rdma, const net_endpoint *endpoint, const char *text) {
    rdma->events = rdma_create_event_channel();
    if (!rdma->events)
        return fail_at(text, "there is no RDMA connection manager (is the module rdma_ucm loaded?)");
    if (fcntl(rdma->events->fd, F_SETFL, O_NONBLOCK) < 0 || fcntl(rdma->events->fd, F_SETFD, FD_CLOEXEC) < 0 ||
        rdma_create_id(rdma->events, &rdma->listener, NULL, RDMA_PS_TCP) < 0)
        return fail_at(text, "no RDMA connections can be taken");
    if (rdma_bind_addr(rdma->listener, (struct sockaddr *)&endpoint->address) < 0)
        return fail_at(text, "no RDMA device has this address");
    if (!rdma->listener->verbs)
        return far_fail(FAR_ERR_INVALID,
                        "%s: not the address of one RDMA device (--listen takes that of its interface)", text);
    if (rdma_listen(rdma->listener, BACKLOG) < 0)
        return fail_at(text, "no RDMA connections can be taken");
    return 0;
}


/* Every index needs atomics. */
static int check_device(net_rdma *rdma, const char *text) {
    struct ibv_device_attr device;
    if (ibv_query_device(rdma->listener->verbs, &device) != 0)
        return fail_at(text, "the RDMA device does not say what it can");
    if (device.atomic_cap == IBV_ATOMIC_NONE)
        return far_fail(FAR_ERR_UNSUPPORTED, "%s: the RDMA device has no atomics", text);
    return 0;
}


static int register_memory(net_rdma *rdma, const char *text, char *bytes, uint64_t size) {
    const int access =
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    madvise(bytes, size, MADV_HUGEPAGE); /* fewer translations for the card; a wish, so failure is no error */
    rdma->domain = ibv_alloc_pd(rdma->listener->verbs);
    rdma->unused = rdma->domain ? ibv_create_cq(rdma->listener->verbs, 1, NULL, NULL, 0) : NULL;
    if (!rdma->unused)
        return fail_at(text, "the RDMA device gives no queues");
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

net_queue *net_queue_offer(net_rdma *rdma, net_queued *offer) {
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


/* In the error state the card takes nothing of the queue pair any more; destroying it returns when the card has done with
 * what it had taken. */
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


/* Whom the token was given to, unless it was shown before or the session was cut. Under the lock. */
static net_queue *find(const net_rdma *rdma, const uint8_t token[NET_TOKEN_BYTES]) {
    net_queue *queue = rdma->queues;
    while (queue && (queue->id || queue->stopped || memcmp(queue->token, token, NET_TOKEN_BYTES) != 0))
        queue = queue->next;
    return queue;
}


static uint8_t least(unsigned a, unsigned b, unsigned c) {
    unsigned least = a < b ? a : b;
    return (uint8_t)(least < c ? least : c);
}


/* Makes the node's end of a queue pair. */
static bool accept_queue(net_rdma *rdma, struct rdma_cm_id *id, unsigned depth) {
    struct ibv_device_attr device;
    struct ibv_qp_init_attr wanted = {.send_cq = rdma->unused,
                                      .recv_cq = rdma->unused,
                                      .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
                                      .qp_type = IBV_QPT_RC};
    if (id->verbs != rdma->listener->verbs || /* another card on the same memory: their atomics do not see each other */
        ibv_query_device(id->verbs, &device) != 0 || rdma_create_qp(id, rdma->domain, &wanted) < 0)
        return false;
    struct rdma_conn_param parameters = {
        .responder_resources = least(depth, (unsigned)device.max_qp_rd_atom, DEPTH_MOST), .rnr_retry_count = 6};
    if (rdma_accept(id, &parameters) == 0)
        return true;
    rdma_destroy_qp(id);
    return false;
}


/* Somebody wants a queue pair. Without a token that is good it is turned away, and learns nothing. */
static void take_request(net_rdma *rdma, struct rdma_cm_id *id, const uint8_t *token, unsigned depth) {
    pthread_mutex_lock(&rdma->lock);
    net_queue *queue = token ? find(rdma, token) : NULL;
    bool accepted = queue && accept_queue(rdma, id, depth);
    if (accepted)
        queue->id = id;
    pthread_mutex_unlock(&rdma->lock);
    if (accepted)
        return;
    rdma_reject(id, NULL, 0);
    rdma_destroy_id(id);
}


/* Taking an event, the library looks at the queue pair of a connection that was refused or has ended: under the lock, so
 * that no other thread destroys it meanwhile. */
static bool next_event(net_rdma *rdma, struct rdma_cm_event **event) {
    pthread_mutex_lock(&rdma->lock);
    bool got = rdma_get_cm_event(rdma->events, event) == 0;
    pthread_mutex_unlock(&rdma->lock);
    return got;
}


/* Deals with clients that want to connect. Other events, of queue pairs that are connected, are passed over: the session's socket
 * tells when it ends. An event is acknowledged before anything is done about it, because destroying an id waits for
 * the acknowledgement of its events. */
void net_rdma_run(net_rdma *rdma) {
    struct rdma_cm_event *event;
    while (next_event(rdma, &event)) {
        uint8_t token[NET_TOKEN_BYTES];
        bool wanted = event->event == RDMA_CM_EVENT_CONNECT_REQUEST,
             shown = wanted && event->param.conn.private_data_len >= sizeof(token);
        struct rdma_cm_id *id = event->id;
        unsigned depth = event->param.conn.responder_resources; /* as seen from here */
        if (shown)
            memcpy(token, event->param.conn.private_data, sizeof(token));
        rdma_ack_cm_event(event);
        if (wanted)
            take_request(rdma, id, shown ? token : NULL, depth);
    }
}

#else

int net_rdma_open(const net_endpoint *endpoint, const char *text, char *bytes, uint64_t size, net_rdma **rdma) {
    (void)endpoint, (void)bytes, (void)size, (void)rdma;
    return far_fail(FAR_ERR_UNSUPPORTED,
                    "%s: this build has no RDMA (libibverbs and librdmacm were not there when it was made)", text);
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


net_queue *net_queue_offer(net_rdma *rdma, net_queued *offer) {
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
