/* The fabric `tcp`, inside: URI and joining of nodes (tcp.c), a connection and its messages (tcp_conn.c), batches
 * (tcp_batch.c), who lives (tcp_life.c). net/wire.h has the messages, docs/network.md the protocol.
 *
 * A connection has one socket to each memory node. What is posted or asked is appended to the sockets' queues, which
 * the next poll sends; a node answers in order, so each socket has a queue of what it owes. Whatever goes wrong with
 * one socket loses the whole connection: all sockets are closed, and everything that was under way fails in the next
 * poll. */
#ifndef FAR_FABRIC_TCP_H
#define FAR_FABRIC_TCP_H

#include "fabric/fabric.h"
#include "fabric/net/linger.h"
#include "fabric/net/link.h"

#define TCP_NOTES 64u

struct tcp_conn;

/* Operations that tcp:// and rdma:// share. */
#define TCP_SHARED_OPS                                                                                                 \
    .disconnect = tcp_disconnect, .ask = tcp_ask, .fence_self = tcp_fence_self, .listen = tcp_listen,                  \
    .told = tcp_told, .ring = tcp_ring, .doze = tcp_doze, .places = tcp_places, .record = tcp_record,                  \
    .close = tcp_close

/* What differs between tcp:// and rdma://: how verbs get to the nodes. All else goes over the sockets of both. */
typedef struct tcp_kind {
    const char *scheme;
    net_carrier carrier;
    const far_fabric_ops *ops;
    far_capabilities capabilities;
    void (*go_on)(struct tcp_conn *conn); /* sends stalled batches: no answer is owed any more */
    /* rdma: a new connection gets its queue pairs; a lost one stops them; one that ends frees them. NULL: none. */
    int (*attach)(struct tcp_conn *conn, net_link *links);
    void (*stop)(struct tcp_conn *conn);
    void (*detach)(struct tcp_conn *conn);
} tcp_kind;

typedef struct tcp_fabric {
    far_fabric fabric; /* first */
    const tcp_kind *kind;
    net_address *addresses;            /* by node number */
    uint64_t instances[FAR_NODES_MAX]; /* whose memory it is */
    uint64_t pool;
    net_tls_context *tls;
    bool insecure;
    bool existing; /* no pool is made */
    unsigned timeout_ms;
} tcp_fabric;

/* Questions of one kind that go to the nodes in the same messages: to node 0 first, then to all others. */
typedef struct tcp_round {
    far_question *first;    /* a list */
    unsigned waits;         /* nodes that have not answered yet */
    bool refused;           /* by one of them */
    unsigned unsent;        /* nodes that were never asked, because the connection was lost; the next poll says so */
    struct tcp_round *next; /* in the connection's list of rounds with some unsent */
} tcp_round;

typedef struct tcp_owed { /* an answer that a node has not given yet */
    uint16_t type;        /* net_type of the request */
    uint64_t tag;
    far_batch *batch; /* NET_BATCH: the results of `pieces` pieces, from byte `from` of verb `first` on */
    uint32_t first, from, pieces;
    tcp_round *round; /* requests of all other types */
} tcp_owed;

typedef struct tcp_node {
    net_channel channel;
    tcp_owed *owed; /* what it owes, oldest first: a ring */
    unsigned first, count, room;
    uint64_t tag;   /* of the last request */
    uint64_t since; /* ns: when it was last heard of, or asked; its timeout runs from here while it owes something */
    bool fresh;     /* all that it owes was queued since the last poll: no answer can be there, none is looked for */
    bool unasked;   /* none of what it owes was sent yet: `since` is not set */
    bool readable;  /* the last wait saw that there is something to receive */
    int filled;     /* what net_channel_fill gave while a wait looked: the next poll takes it on; 0: nothing */
    bool writing;   /* its socket is full: epoll tells when it takes more */
    /* The message that is being put together: */
    bool open;
    size_t head_at; /* in what is queued */
    uint32_t results;
} tcp_node;

typedef struct tcp_stalled { /* a batch whose next verb has a fence, and other nodes have something to do */
    far_batch *batch;
    uint32_t next; /* the verb that goes next */
    uint32_t from; /* rdma: the byte of it that goes next */
} tcp_stalled;

typedef struct tcp_conn tcp_conn;
struct tcp_conn {
    far_conn conn;             /* first */
    struct rdma_queue *queues; /* rdma: by node */
    net_linger linger;         /* of waits for answers; rdma: for completions */
    tcp_node *nodes;
    unsigned count;
    unsigned owed;        /* answers, by all nodes */
    int lost;             /* the connection is lost: the status with which all that is under way ends; 0: it is not */
    bool closed_in_child; /* this is a forked child's copy: the connection is its parent's */
    char why[FAR_GONE_MAX];
    tcp_stalled *stalled; /* a queue, in the order in which they were posted */
    unsigned stalled_first, stalled_count, stalled_room;
    far_question *asking; /* FAR_ASK_DEAD: the next poll sends all of them in one message */
    unsigned asking_count;
    tcp_round *unsent; /* rounds that were under way when the connection was lost */
    unsigned touched[FAR_NODES_MAX],
        touched_count; /* nodes with an open message, or with requests without a doorbell */
    bool stirred;      /* rdma: the sockets need a poll, though no answer is owed: one can be read, or is to send */
    int epoll, event;
    int alarm;         /* a timer, among what epoll watches */
    uint64_t alarm_at; /* when it rings; FAR_TIME_NEVER: it is not set */
    bool listens;      /* node 0 was asked for notes */
    net_claim notes[TCP_NOTES];
    unsigned notes_first, notes_count;
    atomic_bool noted;           /* notes are there that tcp_told has not given out */
    _Atomic(far_parker *) dozer; /* of the thread that sleeps until it is told something; NULL: none has yet */
    bool notes_missed;
    int doze_epoll, doze_event; /* from the first doze on */
    atomic_bool look;           /* the thread that dozes saw something to receive from node 0 */
    tcp_conn *next, *previous;  /* all of this process */
};


static inline tcp_fabric *tcp_fabric_of(const tcp_conn *c) {
    return (tcp_fabric *)c->conn.fabric;
}


/* The sockets have nothing to do, and nothing to tell. */
static inline bool tcp_is_quiet(const tcp_conn *c) {
    return !c->lost && c->owed == 0 && !c->asking && !c->stirred &&
           !atomic_load_explicit(&c->look, memory_order_relaxed);
}


static inline unsigned tcp_parts(const far_batch *batch) {
    return (unsigned)(uintptr_t)batch->fabric_data;
}


static inline void tcp_add_part(far_batch *batch, int more) {
    batch->fabric_data = (void *)(uintptr_t)(tcp_parts(batch) + (unsigned)more);
}


/* How long the piece of it is that begins there: pieces end at multiples of the largest one, so that no unit is cut. */
static inline uint32_t tcp_piece_at(const far_verb *verb, uint32_t from) {
    uint64_t offset = far_addr_offset(verb->addr) + from;
    uint32_t room = NET_PIECE_BYTES - (uint32_t)(offset % NET_PIECE_BYTES), left = verb->length - from;
    return left < room ? left : room;
}


/* Ends a batch of which no part is under way any more. Returns 1 if that was so. */
static inline int tcp_finish(far_batch *batch) {
    if (tcp_parts(batch) > 0)
        return 0;
    batch->pending = false;
    batch->done(batch);
    return 1;
}


/* tcp.c */
/* existing: nodes that belong to no pool are left alone, FAR_ERR_NOT_FOUND. */
int tcp_open(const tcp_kind *kind, const char *rest, bool existing, far_fabric **fabric);
int tcp_places(far_fabric *fabric, unsigned node, const uint64_t *offsets, unsigned count, int *numa);
int tcp_record(far_fabric *fabric, unsigned refuted);
void tcp_close(far_fabric *fabric);

/* tcp_conn.c */
int tcp_connect(far_fabric *fabric, far_parker *parker, far_conn **conn);
void tcp_disconnect(far_conn *conn);
int tcp_poll(far_conn *conn);
void tcp_wait(far_conn *conn, uint64_t until);
void tcp_doze(far_conn *conn, far_parker *parker, uint64_t until);
void tcp_fence_self(far_conn *conn);
void tcp_lose(tcp_conn *c, int status, unsigned node, const char *why); /* why NULL: no node's fault */
tcp_owed *tcp_owe(tcp_conn *c, unsigned node, net_type type); /* NULL: no memory, and the connection is lost */
/* A message of a round. If the connection is lost, or gets lost by this, the round fails in the next poll. */
void tcp_send(tcp_conn *c, unsigned node, net_type type, unsigned count, const void *body, size_t bytes,
              tcp_round *round);

/* tcp_batch.c; a batch has as many parts as messages, or queue pairs, carry it, and one more while it is stalled */
bool tcp_stall(tcp_conn *c, far_batch *batch, uint32_t next, uint32_t from);
void tcp_unstall(tcp_conn *c);                        /* all of the first one is under way */
void tcp_refuse(const tcp_conn *c, far_batch *batch); /* the connection is lost */
void tcp_end_unposted(tcp_conn *c, far_batch *batch);
void tcp_post(far_conn *conn, far_batch *batch);
void tcp_close_messages(tcp_conn *c);
void tcp_go_on(tcp_conn *c); /* nothing is under way: stalled batches go on */
/* The results of a message. True: they are those that are owed; the batch is done if this was the last of it. */
bool tcp_take_results(unsigned node, const tcp_owed *owed, const char *body, size_t bytes, int *delivered);
int tcp_fail_batch(far_batch *batch, int status); /* one message of it fails; returns 1 if that was the last */


static inline bool tcp_may_post(const tcp_conn *c, far_batch *batch) {
    batch->fabric_data = NULL;
    batch->status = 0;
    batch->pending = true;
    if (c->lost)
        tcp_refuse(c, batch);
    return batch->pending;
}


/* tcp_life.c */
void tcp_ask(far_conn *conn, far_question *question);
void tcp_send_questions(tcp_conn *c);
bool tcp_take_answer(tcp_conn *c, unsigned node, const tcp_owed *owed, const net_head *head, const char *body);
void tcp_fail_round(tcp_round *round, unsigned answers, int status); /* `answers` of them will not come */
void tcp_fail_questions(tcp_conn *c, int status);                    /* that were not sent */
void tcp_listen(far_conn *conn);
void tcp_note(tcp_conn *c, const net_claim *note);
int tcp_told(far_conn *conn, unsigned *id, unsigned *generation);
void tcp_ring(far_conn *conn);

#endif
