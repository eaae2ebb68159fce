/* The fabric `rdma`, internal interface. A connection is one of `tcp` (fabric/tcp/tcp.h) with an additional queue pair
 * for each socket: sockets carry control messages and notifications, queue pairs carry verbs. rdma.c posts verbs and
 * handles completions; queue_pair.c creates and frees queue pairs.
 *
 * A network card accesses only registered memory, but the buffers of verbs are anywhere in this process. So each queue
 * pair has a ring of registered memory through which all data passes. The data of a WRITE is copied into the ring when
 * the WRITE is posted (a short WRITE is copied into its request instead). The result of a READ or an atomic is copied
 * out of the ring when it completes. Completions of a queue pair arrive in the order of posting, so space in the ring
 * is freed in that order.
 *
 * - A piece is a verb, or up to 64 KiB of a longer verb. It is one request to the card.
 * - A part consists of the pieces of one batch for one node. They are posted with one doorbell. Only the last piece
 *   asks for a completion, which stands for all of them.
 * - A batch is stalled if there is no room in the ring or in the queue for its next piece, or if it waits for a fence
 *   across several nodes. All later batches wait, too, until something has completed. */
#ifndef FAR_FABRIC_RDMA_RDMA_H
#define FAR_FABRIC_RDMA_RDMA_H

#include "fabric/tcp/tcp.h"

#include <rdma/rdma_cma.h>

#define RDMA_RING                 (256u << 10)
#define RDMA_SLOTS                128u /* largest number of pieces under way to one node */
#define RDMA_COMPLETIONS_PER_POLL 16   /* largest number of completions that one poll fetches from the card */

typedef struct rdma_piece {
    char *to; /* destination of the result in the memory of the verb's poster; NULL for a WRITE, which has no result */
    const char *from; /* place in the ring where the card stores the result */
    uint32_t length;
} rdma_piece;

typedef struct rdma_part {
    far_batch *batch;
    uint32_t pieces;
    uint64_t ring_end; /* value of `ring_freed` when the part has completed */
} rdma_part;

typedef struct rdma_queue {            /* the queue pair to one node, and its ring */
    struct rdma_event_channel *events; /* events of the connection manager while the queue pair is being connected */
    struct rdma_cm_id *id;             /* connection manager's identifier, which owns the queue pair */
    struct ibv_comp_channel *channel;  /* wakes a sleeping session on a completion, if that was requested */
    struct ibv_cq *completions;
    struct ibv_mr *region; /* registration of the ring with the card */
    char *ring;
    /* total numbers of bytes of the ring that were ever taken and ever freed; their difference is in use */
    uint64_t ring_taken, ring_freed;
    uint64_t base;                   /* address of the node's memory in the address space of its daemon */
    uint32_t key;                    /* remote key that opens the memory to this queue pair */
    uint32_t inline_max;             /* longest WRITE in bytes that the card accepts inside its request */
    rdma_piece pieces[RDMA_SLOTS];
    /* total numbers of pieces that were ever posted and have ever completed; their difference is under way */
    unsigned pieces_posted, pieces_completed;
    rdma_part parts[RDMA_SLOTS];              /* ring of the parts under way: `count` parts, the oldest is `first` */
    unsigned first, count;
    /* completions that were fetched from the card and are not all handled yet */
    struct ibv_wc found[RDMA_COMPLETIONS_PER_POLL];
    int found_count, found_taken;
    /* The part that is being built: the number of its requests so far, and the requests. The requests are linked to
     * each other and to their places in the ring once, at the beginning; posting sets only the fields that differ. */
    unsigned building;
    struct ibv_send_wr requests[RDMA_SLOTS];
    struct ibv_sge places[RDMA_SLOTS];
} rdma_queue;

/* queue_pair.c implements these members of tcp_transport: create a queue pair to each node of a new connection, destroy
 * them when the connection is lost, and free everything when it ends. */
int rdma_create_queues(tcp_conn *c, net_link *links);
void rdma_stop_queues(tcp_conn *c);
void rdma_free_queues(tcp_conn *c);

/* rdma.c: posts stalled batches as far as there is room now. */
void rdma_resume_stalled(tcp_conn *c);

#endif
