/* The fabric `rdma`, inside. A connection of it is one of `tcp` (fabric/tcp.h) with a queue pair beside each socket: the
 * sockets carry claims, deaths and notes, the queue pairs carry verbs.
 *
 * A network card reads and writes registered memory only, and the memory that verbs name lies anywhere in this process.
 * So each queue pair has a ring of registered memory, and every byte goes through it: a WRITE is copied in when it is
 * posted (a short one goes inside its request instead), what a READ or an atomic brings is copied out when it completes.
 * Completions of a queue pair come in the order of posting, so the ring is freed in that order.
 *
 *   piece   a verb, or 64 KiB of a longer one: one request to the card
 *   part    the pieces of one batch for one node, posted with one doorbell. Only the last asks for a completion, which
 *           stands for all of them.
 *   stalled a batch for whose next piece there is no room in the ring or the queue, or that waits for a fence over
 *           several nodes; all batches behind it wait too, until something has completed. */
#ifndef FAR_FABRIC_RDMA_H
#define FAR_FABRIC_RDMA_H

#include "fabric/tcp.h"

#include <rdma/rdma_cma.h>

#define RDMA_RING  (256u << 10)
#define RDMA_SLOTS 128u /* pieces under way to one node */
#define RDMA_FOUND 16   /* completions that one poll of the card takes */

typedef struct rdma_piece {
    char *to;         /* where the verb's poster wants what it brings; NULL: a WRITE, which brings nothing */
    const char *from; /* where the card puts that, in the ring */
    uint32_t length;
} rdma_piece;

typedef struct rdma_part {
    far_batch *batch;
    uint32_t pieces;
    uint64_t ring_end; /* the ring is free up to here when the part has completed */
} rdma_part;

typedef struct rdma_queue {            /* to one node */
    struct rdma_event_channel *events; /* of the connection manager, while the queue pair is being connected */
    struct rdma_cm_id *id;             /* has the queue pair */
    struct ibv_comp_channel *channel;  /* wakes a sleeping session, where it asked for that */
    struct ibv_cq *completions;
    struct ibv_mr *region; /* the ring, as the card knows it */
    char *ring;
    uint64_t put, freed;  /* bytes of the ring that were ever taken, and given back */
    uint64_t base;        /* where the node's memory begins in the address space of its daemon */
    uint32_t key;         /* by which that memory is open to this queue pair */
    uint32_t inline_most; /* bytes of a WRITE that the card takes inside its request */
    rdma_piece pieces[RDMA_SLOTS];
    unsigned pieces_put, pieces_done; /* pieces that were ever posted, and that have completed */
    rdma_part parts[RDMA_SLOTS];      /* a ring: `count` parts are under way, the oldest is `first` */
    unsigned first, count;
    struct ibv_wc found[RDMA_FOUND]; /* completions that were taken from the card and not dealt with yet */
    int found_count, found_taken;
    /* Requests of the part that is being put together, and how many it has so far. The requests are linked, and have
     * their places, from the beginning: posting changes only what differs. */
    unsigned building;
    struct ibv_send_wr requests[RDMA_SLOTS];
    struct ibv_sge places[RDMA_SLOTS];
} rdma_queue;

/* rdma_queue.c, for tcp_kind: a new connection gets a queue pair to each node; a lost one destroys them; one that ends
 * frees all. */
int rdma_attach(tcp_conn *c, net_link *links);
void rdma_stop(tcp_conn *c);
void rdma_detach(tcp_conn *c);

/* rdma.c: posts what is stalled, as far as there is room for it now. */
void rdma_go_on(tcp_conn *c);

#endif
