/* farindex bench --micro --pool rdma://...: READs by plain verbs, as ib_read_lat issues them. The requests are prepared
 * once, one call posts them, and the thread polls until the last one has completed. */
#include "bench/network.h"
#include "farindex.h"
#include "tools/common/cli.h"

#ifdef FARINDEX_RDMA
#include "fabric/rdma/rdma.h"

#include <stdlib.h>

typedef struct rdma_floor {
    network_floor floor; /* must be the first field */
    far_parker parker;
    far_conn *conn; /* a connection of its own, so no other thread posts on its queue pairs */
    struct ibv_sge places[NETWORK_BATCH];
    struct ibv_send_wr requests[NETWORK_BATCH];
} rdma_floor;


static rdma_queue *queue_of(const rdma_floor *f) {
    return &((tcp_conn *)f->conn)->queues[0];
}


static bool read_raw(network_floor *floor, unsigned reads) {
    rdma_floor *f = (rdma_floor *)floor;
    rdma_queue *q = queue_of(f);
    struct ibv_send_wr *bad, *first = &f->requests[NETWORK_BATCH - reads];
    struct ibv_wc wc;
    int got = 0;
    if (ibv_post_send(q->id->qp, first, &bad) != 0)
        return false;
    while (got == 0)
        got = ibv_poll_cq(q->completions, 1, &wc);
    return got == 1 && wc.status == IBV_WC_SUCCESS;
}


static void close_floor(network_floor *floor) {
    rdma_floor *f = (rdma_floor *)floor;
    f->conn->fabric->ops->disconnect(f->conn);
    free(f);
}


/* Prepares a chain of requests. Only the last one is signalled, so a shorter batch starts later in the chain. */
static void make_requests(rdma_floor *f) {
    rdma_queue *q = queue_of(f);
    for (unsigned i = 0; i < NETWORK_BATCH; i++) {
        bool last = i + 1 == NETWORK_BATCH;
        f->places[i] = (struct ibv_sge){
            .addr = (uintptr_t)q->ring + NETWORK_READ * i, .length = NETWORK_READ, .lkey = q->region->lkey};
        f->requests[i] = (struct ibv_send_wr){.next = last ? NULL : &f->requests[i + 1],
                                              .sg_list = &f->places[i],
                                              .num_sge = 1,
                                              .opcode = IBV_WR_RDMA_READ,
                                              .send_flags = last ? IBV_SEND_SIGNALED : 0};
        f->requests[i].wr.rdma.remote_addr = q->base + NETWORK_FROM + NETWORK_READ * i;
        f->requests[i].wr.rdma.rkey = q->key;
    }
}


network_floor *bench_rdma_floor(far_fabric *fabric) {
    rdma_floor *f = calloc(1, sizeof(*f));
    if (!f || fabric->ops->connect(fabric, &f->parker, &f->conn) < 0) {
        cli_failed("bench: raw READs cannot be measured: %s", f ? far_last_error() : "no memory");
        free(f);
        return NULL;
    }
    f->floor = (network_floor){"raw READ: post and poll", "four raw READs, posted together", read_raw, close_floor};
    make_requests(f);
    return &f->floor;
}

#else

network_floor *bench_rdma_floor(far_fabric *fabric) {
    (void)fabric;
    cli_failed("bench: this build does not support RDMA");
    return NULL;
}

#endif
