/* The fabric `rdma`, inside: a connection of `tcp` (fabric/tcp.h), whose sockets carry who lives and who is dead, and
 * beside each socket a queue pair that carries verbs.
 *
 * What verbs read and write lies anywhere in this process, and a network card needs registered memory: each queue pair
 * has a ring of it, through which everything goes. Completions come in order, so it is freed in order. A part is what
 * one batch has for one node, posted with one doorbell; only its last verb is signalled. A batch for which the ring or
 * the queue has no room is stalled there, and those behind it, until something has completed. */
#ifndef FAR_FABRIC_RDMA_H
#define FAR_FABRIC_RDMA_H

#include "fabric/tcp.h"

#include <rdma/rdma_cma.h>

#define RDMA_RING  (256u << 10)
#define RDMA_SLOTS 128u /* verbs, or pieces of them, under way to one node */
#define RDMA_FOUND 16   /* completions that are taken at once */

typedef struct rdma_piece { /* of a verb */
    char *to;               /* where what it brings is wanted; NULL: a WRITE brings nothing */
    const char *from;       /* in the ring */
    uint32_t length;
} rdma_piece;

typedef struct rdma_part {
    far_batch *batch;
    uint32_t pieces;
    uint64_t ring_end;
} rdma_part;

typedef struct rdma_queue { /* to one node */
    struct rdma_event_channel *events;
    struct rdma_cm_id *id;
    struct ibv_comp_channel *channel;
    struct ibv_cq *completions;
    struct ibv_mr *region;
    char *ring;
    uint64_t put, freed; /* bytes of the ring, counted through */
    uint64_t base;       /* of the node's memory */
    uint32_t key;
    uint32_t inline_most; /* bytes of a WRITE that go with its request */
    rdma_piece pieces[RDMA_SLOTS];
    unsigned pieces_put, pieces_done; /* counted through */
    rdma_part parts[RDMA_SLOTS];
    unsigned first, count;           /* a ring of parts under way */
    struct ibv_wc found[RDMA_FOUND]; /* completions that a wait or a poll has found */
    int found_count, found_taken;
    /* The part behind those under way is being put together: so many requests. Each knows its place and the next one
     * from the beginning. */
    unsigned building;
    struct ibv_send_wr requests[RDMA_SLOTS];
    struct ibv_sge places[RDMA_SLOTS];
} rdma_queue;

/* rdma_queue.c */
int rdma_attach(tcp_conn *c, net_link *links);
void rdma_stop(tcp_conn *c);
void rdma_detach(tcp_conn *c);

/* rdma.c */
void rdma_go_on(tcp_conn *c);

#endif
