/* Internal structures of the daemon: the server, its loops and its connections (peers). Private to server.c (sockets
 * and threads) and requests.c (handling of messages).
 *
 * The lock of the server protects the table of claims, the list of connections, and the fields of connections that are
 * marked below. A connection's `run_lock` is held while its verbs run, without the lock of the server. To fence a
 * connection, a thread holds the lock of the server, sets `fenced`, and then acquires and releases `run_lock`. After
 * that no verb of the connection is running, and none will run. */
#ifndef FAR_FABRIC_NODE_SERVING_H
#define FAR_FABRIC_NODE_SERVING_H

#include "fabric/net/busy_poll.h"
#include "fabric/net/channel.h"
#include "fabric/net/silence.h"
#include "fabric/node/admission.h"
#include "fabric/node/log.h"
#include "fabric/node/memory.h"
#include "fabric/node/metrics.h"
#include "fabric/node/rdma_node.h"
#include "fabric/node/server.h"

#include <pthread.h>
#include <stdatomic.h>

/* Number of unsent bytes of answers from which on a peer is not served until it has read some. One more answer may be
 * in the queue, so a peer that does not read takes at most this and NET_MESSAGE_MAX, besides its last request. */
#define SERVING_QUEUED_MAX (64u << 10)
#define SERVING_WORK_MAX   (64u << 10) /* number of bytes of requests and answers after which the answers are sent */
/* number of notifications that are stored; a peer that has missed more is asked to check all clients */
#define SERVING_NOTIFICATIONS 1024u
/* A notification is appended to an output queue only while the queue has at most this many bytes. */
#define SERVING_NOTIFY_QUEUED_MAX 4096u

typedef struct server_loop server_loop;
typedef struct server_peer server_peer;

struct server_peer {
    net_channel channel;
    net_server *server;
    server_loop *loop;
    char name[NET_ADDRESS_MAX];
    net_endpoint from;
    bool hello_done;   /* true if the peer's NET_HELLO was accepted */
    bool inspects;     /* the connection is for inspection and sends no verbs */
    bool reads_only;   /* the peer has authenticated itself as one that may only read */
    bool ended;        /* true if the loop of the connection must close it */
    bool half_closed;  /* the peer sends nothing more; the end of stream has not been read yet */
    bool reading;      /* true if epoll reports when data arrives on this connection */
    bool writing;      /* epoll reports when the socket accepts data */
    uint64_t deadline; /* time in ms by which the handshake must be complete */
    /* data was sent that the peer's kernel may not have acknowledged, so the connection is checked for silence */
    bool unacknowledged;
    net_silence silence;
    pthread_mutex_t run_lock;
    atomic_bool fenced;
    /* the client holds a claim, or held one that was fenced without its knowledge; its verbs may change memory */
    bool may_change_memory;
    char why[96]; /* description of a protocol error that the peer has made; empty: none */
    /* The following fields are protected by the lock of the server. */
    net_half_open half_open;
    net_place place;   /* the place that the connection takes at its address; empty before its hello was accepted */
    far_name identity; /* name of the peer's process, as the client reports it */
    unsigned id, generation;
    uint64_t claim; /* number of the claim that the peer holds; 0: it holds none, or the claim was fenced */
    char fenced_reason[64];
    net_queue *queue; /* the queue pair for its verbs, for RDMA; NULL: none was requested */
    bool left_pool;
    bool subscribed;
    uint64_t notifications_sent; /* number of the last notification that was sent to this peer */
    /* notifications are waiting because the output queue is full; used only by the loop of the peer */
    bool notifications_wait;
    server_peer *next, *previous; /* links in the list of its loop */
};

typedef struct loop_counts { /* written by one loop, read by all threads */
    atomic_uint_fast64_t batches, verbs, bytes_in, bytes_out;
} loop_counts;

struct server_loop {
    net_server *server;
    unsigned number; /* not used for the gate */
    int epoll, event;
    pthread_t thread;
    net_busy_poll busy_poll;
    server_peer *peers; /* list of the connections that belong to this loop */
    /* accepted connections that the loop has not adopted yet; protected by the lock of the server */
    server_peer *inbox;
    unsigned handshaking;        /* number of its peers that have not sent their hello; 0 except in the gate */
    bool unacknowledged;         /* some of its peers have unacknowledged data */
    uint64_t next_hello_check;   /* time in ms of the next check for peers that send no hello */
    uint64_t notifications_sent; /* value of notification_count when this loop last sent notifications */
    uint64_t next_ack_check;     /* time in ms of the next check for silent peers in this loop */
    loop_counts counts;
    net_times batch_times; /* time that the execution of batches took */
};

typedef struct server_counts {
    atomic_uint_fast64_t comes, cuts, refused;
} server_counts;

struct net_server {
    net_server_options config;
    net_memory *memory;
    net_rdma *rdma; /* RDMA side of the daemon; NULL: verbs arrive as messages */
    net_tls_context *tls;
    int listener;
    char address[NET_ADDRESS_MAX];
    uint64_t started;
    pthread_mutex_t lock;
    net_table table;
    net_claim notifications[SERVING_NOTIFICATIONS];
    uint64_t notification_count; /* number of notifications that were ever stored */
    net_admission admission;
    unsigned sessions;
    server_counts counts;
    atomic_bool stopping;
    net_log *log;
    unsigned loop_count;
    server_loop loops[NET_THREADS_MAX]; /* the loops that serve clients */
    /* The gate is the loop that accepts connections and carries out their handshakes. It hands a connection over to one
     * of the other loops as soon as it has accepted the hello, so handshakes do not delay clients. */
    server_loop gate;
    /* number of the loop that gets the next connection; used only by the gate */
    unsigned next_loop;
    /* time in ms until which no connection is accepted, because accepting one has failed; 0: connections are accepted.
     * Used only by the gate. */
    uint64_t accepts_again_at;
};


/* Adds to a count. Only the loop that owns the count writes it, so no locked instruction is needed. */
static inline void loop_count(atomic_uint_fast64_t *count, uint64_t more) {
    uint64_t now = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, now + more, memory_order_relaxed);
}


/* requests.c. Handles complete messages of the peer, but not too many at once, so that the first answer does not wait
 * for the last. In the gate, it handles no message after the hello. Returns false if the connection must be closed; peer->why may contain the reason. */
bool server_serve_messages(server_peer *peer);
void server_send_notifications(server_peer *peer); /* called by the loop of the peer */
void server_end_session(server_peer *peer); /* called when the connection has ended, with the lock of the server held */

#endif
