/* The fabric `tcp`, internal interface. tcp.c parses the URI and joins nodes to a pool, connection.c drives the sockets
 * of a connection, batch.c translates batches into messages, and liveness.c sends control messages and receives
 * notifications. net/wire.h defines the messages; docs/network.md describes the protocol.
 *
 * A connection (of one session) has one socket to each memory node. Posted batches and control messages are appended to
 * the output queues of the sockets, and the next poll sends them. A node answers in order, so each socket has a queue
 * of requests without an answer. If anything fails on one socket, the whole connection is lost: all sockets are closed,
 * and the next poll fails everything that is pending. */
#ifndef FAR_FABRIC_TCP_TCP_H
#define FAR_FABRIC_TCP_TCP_H

#include "fabric/fabric.h"
#include "fabric/net/busy_poll.h"
#include "fabric/tcp/link.h"

#define TCP_NOTIFICATIONS 64u

struct tcp_conn;

/* Operations that tcp:// and rdma:// implement in the same way. */
#define TCP_SHARED_OPS                                                                                                 \
    .disconnect = tcp_disconnect, .ask = tcp_submit_control, .fence_self = tcp_fence_self, .listen = tcp_subscribe,    \
    .told = tcp_next_notification, .ring = tcp_notify_all, .wait_for_notification = tcp_wait_for_notification,                          \
    .places = tcp_numa_nodes, .record = tcp_record, .close = tcp_close

/* The difference between tcp:// and rdma://, which is how verbs reach the nodes. Everything else uses the sockets in
 * both. */
typedef struct tcp_transport {
    const char *scheme;
    net_carrier carrier;
    const far_fabric_ops *ops;
    far_capabilities capabilities;
    void (*resume_stalled)(struct tcp_conn *conn); /* sends stalled batches; called when no answer is outstanding */
    /* Only for rdma, otherwise NULL: creates the queue pairs of a new connection, stops those of a lost connection, and
     * frees those of a connection that ends. */
    int (*create_queues)(struct tcp_conn *conn, net_link *links);
    void (*stop_queues)(struct tcp_conn *conn);
    void (*free_queues)(struct tcp_conn *conn);
} tcp_transport;

typedef struct tcp_fabric {
    far_fabric fabric; /* must be the first member, because pointers to it are cast to the whole struct */
    const tcp_transport *transport;
    net_address *addresses; /* addresses of the memory nodes, indexed by node number */
    /* random number that each node drew when its memory was created; it detects a node that lost its memory */
    uint64_t instances[FAR_NODES_MAX];
    uint64_t pool;
    net_tls_context *tls;
    bool insecure;
    bool existing; /* fail instead of creating a pool */
    unsigned timeout_ms;
} tcp_fabric;

/* A round of control messages: one or several messages of one kind that are sent to a node together. A round begins at
 * node 0 and may then continue at the other nodes. A release goes the opposite way: to the other nodes first, and to
 * node 0 last (see begin_control in liveness.c). */
typedef struct tcp_round {
    far_control *first; /* list of the control messages of this round */
    unsigned waits;      /* number of nodes that have not answered yet */
    bool refused;        /* true if a node has refused a message of this round */
    /* number of nodes to which nothing was sent because the connection is lost; the next poll fails the round for them
     */
    unsigned unsent;
    struct tcp_round *next; /* link in the connection's list of rounds with unsent messages */
} tcp_round;

typedef struct tcp_request { /* a request that its node has not answered yet */
    uint16_t type;           /* net_type of the request */
    uint64_t tag;
    far_batch *batch; /* for NET_BATCH: the message carries `pieces` pieces, beginning at byte `from` of verb `first` */
    uint32_t first, from, pieces;
    tcp_round *round; /* the round to which a control message belongs */
} tcp_request;

typedef struct tcp_node {
    net_channel channel;
    tcp_request *requests; /* requests without an answer, oldest first, in a ring */
    unsigned first, count, room;
    uint64_t tag; /* tag of the last request that was sent to this node */
    /* Start of the node's timeout in ns. The timeout runs while an answer is outstanding, and starts at the first send
     * or at the last receipt of data. */
    uint64_t since;
    /* all outstanding requests were queued since the last poll, so no answer can have arrived and the socket is not
     * read */
    bool just_queued;
    bool not_sent_yet;  /* no outstanding request has been sent yet, so `since` is not valid */
    bool readable;      /* the last wait found that data has arrived on the socket of this node */
    int receive_result; /* result of net_channel_receive during a wait, to be handled by the next poll; 0: nothing */
    bool writing;       /* the socket is full, and epoll reports when it accepts more data */
    /* The following fields describe the message that is being built. */
    bool open;
    size_t head_offset; /* offset of the message's head in the output queue */
    uint32_t results;
} tcp_node;

/* a batch that could not be sent completely: its next verb has a fence and other nodes have outstanding requests, or
 * (rdma) there is no room */
typedef struct tcp_stalled {
    far_batch *batch;
    uint32_t next; /* index of the next verb to send */
    uint32_t from; /* rdma only: the next byte of that verb to send */
} tcp_stalled;

typedef struct tcp_conn tcp_conn;
struct tcp_conn {
    far_conn conn;             /* must be the first member, because pointers to it are cast to the whole struct */
    struct rdma_queue *queues; /* rdma: queue pairs, indexed by node */
    net_busy_poll busy_poll;   /* decides how long waits for answers poll; for rdma, waits for completions */
    tcp_node *nodes;
    unsigned count;
    unsigned outstanding; /* number of requests of all nodes without an answer */
    int lost;             /* 0, or the error with which everything pending on this lost connection fails */
    bool closed_in_child; /* this process is a forked child, and the connection belongs to its parent */
    char why[FAR_REASON_MAX];
    tcp_stalled *stalled; /* ring of stalled batches in the order of posting */
    unsigned stalled_first, stalled_count, stalled_room;
    far_control *queries; /* queries of the kind FAR_CONTROL_HAS_FAILED that the next poll sends in one message */
    unsigned queries_count;
    /* rounds that still had messages to send when the connection was lost; the next poll fails them */
    tcp_round *unsent;
    unsigned touched_nodes[FAR_NODES_MAX],
        touched_count; /* nodes with an open message; for rdma, nodes that need a doorbell */
    /* rdma: poll the sockets although no answer is outstanding, because one is readable or has data to send */
    bool needs_poll;
    int epoll, event;
    int timer;         /* a timerfd, watched by `epoll` */
    uint64_t timer_at; /* time in ns when the timer expires; FAR_TIME_NEVER: it is not set */
    bool subscribed;   /* the client has asked node 0 to send notifications */
    net_claim notifications[TCP_NOTIFICATIONS];
    unsigned notifications_first, notifications_count;
    atomic_bool has_notifications; /* there are notifications that tcp_next_notification has not returned yet */
    /* parker of the thread that sleeps until a notification arrives; NULL: no thread has slept so yet */
    _Atomic(far_parker *) notification_parker;
    bool notifications_missed;
    int notification_epoll, notification_event; /* created by the first tcp_wait_for_notification */
    atomic_bool node0_readable; /* set by the thread in tcp_wait_for_notification: data has arrived from node 0 */
    tcp_conn *next, *previous;                  /* links in the list of all connections of this process */
};


static inline tcp_fabric *tcp_fabric_of(const tcp_conn *c) {
    return (tcp_fabric *)c->conn.fabric;
}


/* Returns true if the sockets have nothing to send, to receive or to report. */
static inline bool tcp_sockets_are_idle(const tcp_conn *c) {
    return !c->lost && c->outstanding == 0 && !c->queries && !c->needs_poll &&
           !atomic_load_explicit(&c->node0_readable, memory_order_relaxed);
}


static inline unsigned tcp_batch_parts(const far_batch *batch) {
    return (unsigned)(uintptr_t)batch->fabric_data;
}


static inline void tcp_batch_add_parts(far_batch *batch, int more) {
    batch->fabric_data = (void *)(uintptr_t)(tcp_batch_parts(batch) + (unsigned)more);
}


/* Returns the length of the piece of a verb that begins at byte `from`. Pieces end at multiples of NET_PIECE_BYTES, so
 * that no piece ends inside a tearing granule. */
static inline uint32_t tcp_piece_length(const far_verb *verb, uint32_t from) {
    uint64_t offset = far_addr_offset(verb->addr) + from;
    uint32_t room = NET_PIECE_BYTES - (uint32_t)(offset % NET_PIECE_BYTES), left = verb->length - from;
    return left < room ? left : room;
}


/* Completes a batch if none of its parts is under way any more. Returns 1 if it has completed, else 0. */
static inline int tcp_complete_if_last(far_batch *batch) {
    if (tcp_batch_parts(batch) > 0)
        return 0;
    batch->pending = false;
    batch->done(batch);
    return 1;
}


/* ---- Functions of tcp.c ---- */
/* Opens the fabric for the pool that `rest` names. With `existing`, nodes that belong to no pool are left unchanged,
 * and FAR_ERR_NOT_FOUND is returned. */
int tcp_open(const tcp_transport *transport, const char *rest, bool existing, far_fabric **fabric);
int tcp_numa_nodes(far_fabric *fabric, unsigned node, const uint64_t *offsets, unsigned count, int *numa);
int tcp_record(far_fabric *fabric, unsigned refuted);
void tcp_close(far_fabric *fabric);

/* ---- Functions of connection.c ---- */
int tcp_connect(far_fabric *fabric, far_parker *parker, far_conn **conn);
void tcp_disconnect(far_conn *conn);
int tcp_poll(far_conn *conn);
void tcp_wait(far_conn *conn, uint64_t until);
void tcp_wait_for_notification(far_conn *conn, far_parker *parker, uint64_t until);
void tcp_fence_self(far_conn *conn);
/* Marks the connection as lost with this error and reason. `node` is the node at fault, or `why` is NULL if no node is
 * at fault. */
void tcp_fail_connection(tcp_conn *c, int status, unsigned node, const char *why);
/* returns NULL if there is no memory; the connection is lost then */
tcp_request *tcp_add_request(tcp_conn *c, unsigned node, net_type type);
/* Sends a message of a round. If the connection is lost, or gets lost by this call, the next poll fails the round. */
void tcp_send_control(tcp_conn *c, unsigned node, net_type type, unsigned count, const void *body, size_t bytes,
                      tcp_round *round);

/* ---- Functions of batch.c. The number of parts of a batch is the number of messages (or of queue pairs) that carry
 * its verbs, plus one while it is stalled. ---- */
bool tcp_stall_batch(tcp_conn *c, far_batch *batch, uint32_t next, uint32_t from);
/* removes the oldest stalled batch, because all its verbs are under way now */
void tcp_drop_first_stalled(tcp_conn *c);
void tcp_refuse_batch(const tcp_conn *c, far_batch *batch); /* called when the connection is lost */
void tcp_end_unposted_batch(tcp_conn *c, far_batch *batch);
void tcp_post(far_conn *conn, far_batch *batch);
void tcp_close_messages(tcp_conn *c);
void tcp_resume_stalled(tcp_conn *c); /* sends stalled batches; called when nothing is under way */
/* Copies the results in an answer to the places that the verbs name. Returns true if they fit the request. Completes
 * the batch if this was its last part, and counts that in *delivered. */
bool tcp_deliver_results(unsigned node, const tcp_request *request, const char *body, size_t bytes, int *delivered);
/* fails one part of a batch; returns 1 if it was the last part, so that the batch has completed, else 0 */
int tcp_fail_part(far_batch *batch, int status);


static inline bool tcp_begin_post(const tcp_conn *c, far_batch *batch) {
    batch->fabric_data = NULL;
    batch->status = 0;
    batch->pending = true;
    if (c->lost)
        tcp_refuse_batch(c, batch);
    return batch->pending;
}


/* ---- Functions of liveness.c ---- */
void tcp_submit_control(far_conn *conn, far_control *question);
void tcp_send_queries(tcp_conn *c);
bool tcp_handle_reply(tcp_conn *c, unsigned node, const tcp_request *request, const net_head *head, const char *body);
/* records that `answers` answers of the round will not arrive; fails the round if none is awaited any more */
void tcp_fail_round(tcp_round *round, unsigned answers, int status);
void tcp_fail_queries(tcp_conn *c, int status); /* fails the queries that were not sent yet */
void tcp_subscribe(far_conn *conn);
void tcp_add_notification(tcp_conn *c, const net_claim *note);
int tcp_next_notification(far_conn *conn, unsigned *id, unsigned *generation);
void tcp_notify_all(far_conn *conn);

#endif
