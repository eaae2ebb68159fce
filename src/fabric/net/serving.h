/* Inside the daemon: the server, its loops and its connections. Private to server.c (sockets and threads) and
 * requests.c (what messages do).
 *
 * The server's lock guards the table, the list of connections and all that is said about them here; a connection's
 * `run` is held while its verbs run. Whoever cuts a connection holds the server's lock, sets `cut`, and takes `run`
 * once: then no verb of it is under way, and none will be. Verbs run without the server's lock. */
#ifndef FAR_FABRIC_NET_SERVING_H
#define FAR_FABRIC_NET_SERVING_H

#include "fabric/net/channel.h"
#include "fabric/net/linger.h"
#include "fabric/net/memory.h"
#include "fabric/net/rdma_node.h"
#include "fabric/net/server.h"
#include "fabric/net/silence.h"

#include <pthread.h>
#include <stdatomic.h>

#define SERVING_QUEUED_MOST (1u << 20)  /* a peer that has not taken so many bytes of answers is not served */
#define SERVING_WORK_MOST   (64u << 10) /* after so many bytes of requests and answers, the answers are sent */
#define SERVING_NOTES       1024u /* the last notes are kept; a peer that missed more is told to look at everything */
#define SERVING_NOTES_MOST  4096u /* no note is put behind more queued bytes than these */

typedef struct server_loop server_loop;
typedef struct server_peer server_peer;

struct server_peer {
    net_channel channel;
    net_server *server;
    server_loop *loop;
    char name[NET_ADDRESS_MAX];
    bool greeted;      /* its hello was accepted */
    bool looks;        /* the peer came for a look: no verbs */
    bool ended;        /* to be closed by its loop */
    bool hung_up;      /* the peer sends no more: its end is to be read */
    bool reading;      /* epoll tells when there is something to read */
    bool writing;      /* ... when it can be written to */
    uint64_t deadline; /* for the handshake */
    bool untaken;      /* something was sent that its kernel may not have taken yet: it is watched */
    net_silence silence;
    pthread_mutex_t run;
    atomic_bool cut;
    bool speaks; /* the client has a claim, or had one and does not know that it was cut: its verbs may change memory */
    char why[96]; /* what it did wrong */
    /* Under the server's lock: */
    far_name who; /* as it calls itself */
    unsigned id, generation;
    uint64_t claim; /* 0: it speaks for nobody, or was cut */
    char cut_why[64];
    net_queue *queue; /* by which its verbs come, if that is rdma; NULL: it has asked for none */
    bool bye;
    bool listens;
    uint64_t told;                /* notes up to this one were sent to it */
    bool notes_wait;              /* used by its loop alone: its queue is full, so it was not sent the last notes */
    server_peer *next, *previous; /* of the loop */
};

typedef struct loop_counts { /* written by the loop, read by all */
    atomic_uint_fast64_t batches, verbs, bytes_in, bytes_out;
} loop_counts;

struct server_loop {
    net_server *server;
    unsigned number;
    int epoll, event;
    pthread_t thread;
    net_linger linger;
    server_peer *peers; /* its own */
    server_peer *inbox; /* accepted for it; under the server's lock */
    unsigned strangers; /* of its peers, not greeted */
    bool untaken;       /* of some of its peers */
    uint64_t next_look; /* ms: at those */
    loop_counts counts;
};

typedef struct server_counts {
    atomic_uint_fast64_t comes, cuts, refused;
} server_counts;

struct net_server {
    net_server_config config;
    net_memory *memory;
    net_rdma *rdma; /* NULL: verbs come as messages */
    net_tls_context *tls;
    int listener;
    char address[NET_ADDRESS_MAX];
    uint64_t started;
    pthread_mutex_t lock;
    net_table table;
    net_claim notes[SERVING_NOTES];
    uint64_t noted; /* how many there were */
    unsigned connections, sessions;
    server_counts counts;
    atomic_bool stopping;
    unsigned next_loop;    /* of the one that accepts */
    atomic_uint strangers; /* connections that are not greeted, of all loops */
    unsigned loop_count;
    server_loop loops[NET_THREADS_MAX];
};


/* Only the loop that owns the count adds to it, so no locked instruction is needed. */
static inline void loop_count(atomic_uint_fast64_t *count, uint64_t more) {
    uint64_t now = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, now + more, memory_order_relaxed);
}


/* requests.c. What the peer sent is done, as far as it is whole, and not too much of it at once, so that the first
 * answer does not wait for the last. False: it is to be closed, peer->why may say why. */
bool server_serve(server_peer *peer);
void server_send_notes(server_peer *peer); /* by its loop */
void server_leave(server_peer *peer);      /* its connection has ended: under the server's lock */
void server_say(const net_server *server, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
