/* The fabric `rdma`: memory nodes reached by an RDMA network card. Verbs and completions; fabric/rdma.h says how.
 *
 * rdma://HOST:PORT,HOST:PORT?secret=FILE&timeout=10s: options as with tcp://. */
#include "base/error.h"
#include "fabric/fabric.h"
#include "farindex.h"

#ifdef FARINDEX_RDMA
#include "fabric/rdma.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#define SPIN_LEAST 20000u  /* ns for which a wait looks before it sleeps: a wake-up takes longer than a round trip */
#define SPIN_MOST  200000u /* the same, where waits usually end within half of it */
#define TAKE_MOST  16      /* completions at once */
#define LINE       64u


static uint64_t in_ring(uint64_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}


/* ---- Putting verbs into requests ---- */

/* Where so many bytes go; UINT64_MAX: there is no room now. No piece runs over the end of the ring. */
static uint64_t place_for(const rdma_queue *q, uint32_t length) {
    uint64_t at = q->put, rest = RDMA_RING - at % RDMA_RING;
    if (rest < in_ring(length))
        at += rest;
    return at + in_ring(length) - q->freed <= RDMA_RING ? at : UINT64_MAX;
}


static void open_part(rdma_queue *q, far_batch *batch, uint32_t index, uint32_t from) {
    q->part = (rdma_part){.batch = batch, .first = index, .from = from, .ring_begin = q->put};
    tcp_add_part(batch, 1);
}


static void set_request(rdma_queue *q, const far_verb *verb, uint32_t from, uint32_t length, char *at) {
    static const enum ibv_wr_opcode codes[] = {[FAR_READ] = IBV_WR_RDMA_READ,
                                               [FAR_WRITE] = IBV_WR_RDMA_WRITE,
                                               [FAR_CAS] = IBV_WR_ATOMIC_CMP_AND_SWP,
                                               [FAR_FAA] = IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct ibv_send_wr *wr = &q->requests[q->building];
    struct ibv_sge *place = &q->places[q->building];
    uint64_t remote = q->base + far_addr_offset(verb->addr) + from;
    *place = (struct ibv_sge){.addr = (uintptr_t)at, .length = length, .lkey = q->region->lkey};
    *wr = (struct ibv_send_wr){.sg_list = place, .num_sge = 1, .opcode = codes[verb->kind]};
    if (verb->flags & FAR_VERB_FENCE && from == 0)
        wr->send_flags |= IBV_SEND_FENCE;
    if (verb->kind == FAR_READ || verb->kind == FAR_WRITE) {
        wr->wr.rdma.remote_addr = remote;
        wr->wr.rdma.rkey = q->key;
    } else {
        wr->wr.atomic.remote_addr = remote;
        wr->wr.atomic.rkey = q->key;
        wr->wr.atomic.compare_add = verb->kind == FAR_CAS ? verb->compare : verb->swap;
        wr->wr.atomic.swap = verb->swap;
    }
    if (verb->kind != FAR_WRITE)
        return;
    char *what = (char *)verb->local + from;
    if (length <= q->inline_most) { /* the device takes it when the request is posted */
        wr->send_flags |= IBV_SEND_INLINE;
        place->addr = (uintptr_t)what;
    } else {
        memcpy(at, what, length);
    }
}


/* False: there is no room now. */
static bool put_piece(tcp_conn *c, far_batch *batch, uint32_t index, uint32_t from, uint32_t length) {
    const far_verb *verb = &batch->verbs[index];
    rdma_queue *q = &c->queues[far_addr_node(verb->addr)];
    uint64_t at = place_for(q, length);
    if (at == UINT64_MAX || q->slots + q->building == RDMA_SLOTS)
        return false;
    if (q->building == 0)
        open_part(q, batch, index, from);
    set_request(q, verb, from, length, q->ring + at % RDMA_RING);
    q->building++;
    q->part.pieces++;
    q->put = at + in_ring(length);
    return true;
}


/* One doorbell. Completions of a queue pair come in order: the last one stands for all. */
static void ring_doorbell(tcp_conn *c, unsigned node) {
    rdma_queue *q = &c->queues[node];
    struct ibv_send_wr *bad;
    if (q->building == 0)
        return;
    for (unsigned i = 0; i + 1 < q->building; i++)
        q->requests[i].next = &q->requests[i + 1];
    q->requests[q->building - 1].next = NULL;
    q->requests[q->building - 1].send_flags |= IBV_SEND_SIGNALED;
    q->part.ring_end = q->put;
    q->parts[(q->first + q->count++) % RDMA_SLOTS] = q->part;
    q->slots += q->building;
    q->building = 0;
    if (ibv_post_send(q->id->qp, q->requests, &bad) != 0)
        tcp_lose(c, FAR_ERR_UNREACHABLE, node, "the RDMA device takes no request");
}


static void ring_doorbells(tcp_conn *c) {
    for (unsigned i = 0; i < c->count && !c->lost; i++)
        ring_doorbell(c, i);
}


/* A fence on one node is the device's work; one over several waits here. */
static bool must_stall(const tcp_conn *c, const far_verb *verb) {
    if (!(verb->flags & FAR_VERB_FENCE))
        return false;
    for (unsigned i = 0; i < c->count; i++)
        if (i != far_addr_node(verb->addr) && c->queues[i].count + c->queues[i].building > 0)
            return true;
    return false;
}


/* Posts its verbs from there on. True: all; else *index and *from say where it stalls. */
static bool put_verbs(tcp_conn *c, far_batch *batch, uint32_t *index, uint32_t *from) {
    bool room = true;
    while (room && *index < batch->count) {
        const far_verb *verb = &batch->verbs[*index];
        if (*from == 0 && must_stall(c, verb))
            break;
        for (uint32_t length; room && *from < verb->length;) {
            length = tcp_piece_at(verb, *from);
            room = put_piece(c, batch, *index, *from, length);
            *from += room ? length : 0;
        }
        if (room) {
            *from = 0;
            ++*index;
        }
    }
    ring_doorbells(c);
    return *index == batch->count;
}


static void rdma_post(far_conn *base, far_batch *batch) {
    tcp_conn *c = (tcp_conn *)base;
    uint32_t index = 0, from = 0;
    if (!tcp_may_post(c, batch))
        return;
    if ((c->stalled_count > 0 || !put_verbs(c, batch, &index, &from)) && !c->lost)
        tcp_stall(c, batch, index, from);
    tcp_end_unposted(c, batch);
}


void rdma_go_on(tcp_conn *c) {
    while (!c->lost && c->stalled_count > 0) {
        tcp_stalled *one = &c->stalled[c->stalled_first];
        if (!put_verbs(c, one->batch, &one->next, &one->from) || c->lost)
            return;
        tcp_unstall(c);
    }
}


/* ---- Completions ---- */

/* What READs and atomics brought, to where it is wanted. */
static void copy_out(const rdma_queue *q, unsigned node, const rdma_part *part) {
    uint32_t index = part->first, from = part->from;
    uint64_t at = part->ring_begin;
    for (uint32_t piece = 0; piece < part->pieces; piece++) {
        uint8_t kind;
        uint32_t length;
        char *to = tcp_next_piece(part->batch, node, &index, &from, &kind, &length);
        if (RDMA_RING - at % RDMA_RING < in_ring(length))
            at += RDMA_RING - at % RDMA_RING;
        if (kind != FAR_WRITE)
            memcpy(to, q->ring + at % RDMA_RING, length);
        at += in_ring(length);
    }
}


static rdma_part pop(rdma_queue *q) {
    rdma_part part = q->parts[q->first];
    q->first = (q->first + 1) % RDMA_SLOTS;
    q->count--;
    q->slots -= part.pieces;
    q->freed = part.ring_end;
    return part;
}


static int complete(tcp_conn *c, unsigned node, const struct ibv_wc *wc) {
    rdma_queue *q = &c->queues[node];
    if (wc->status != IBV_WC_SUCCESS || q->count == 0) {
        tcp_lose(c, FAR_ERR_UNREACHABLE, node, ibv_wc_status_str(wc->status));
        return 0;
    }
    const rdma_part part = pop(q);
    copy_out(q, node, &part);
    tcp_add_part(part.batch, -1);
    return tcp_finish(part.batch);
}


static int take(tcp_conn *c, unsigned node) {
    rdma_queue *q = &c->queues[node];
    struct ibv_wc found[TAKE_MOST];
    int delivered = 0, count = 0;
    if (q->is_early)
        found[count++] = q->early;
    q->is_early = false;
    int more = ibv_poll_cq(q->completions, TAKE_MOST - count, found + count);
    if (more < 0) {
        tcp_lose(c, FAR_ERR_UNREACHABLE, node, "the RDMA device tells of no completions");
        return 0;
    }
    for (int i = 0; i < count + more && !c->lost; i++)
        delivered += complete(c, node, &found[i]);
    return delivered;
}


static int fail_parts(tcp_conn *c) {
    int delivered = 0;
    for (unsigned i = 0; i < c->count; i++) {
        rdma_queue *q = &c->queues[i];
        if (q->building > 0) { /* it was put together when the connection was lost */
            q->building = 0;
            delivered += tcp_fail_batch(q->part.batch, c->lost);
        }
        while (q->count > 0)
            delivered += tcp_fail_batch(pop(q).batch, c->lost);
    }
    return delivered;
}


static int rdma_poll(far_conn *base) {
    tcp_conn *c = (tcp_conn *)base;
    int delivered = 0;
    for (unsigned i = 0; i < c->count && !c->lost; i++)
        if (c->queues[i].count > 0)
            delivered += take(c, i);
    if (c->stalled_count > 0)
        rdma_go_on(c);
    delivered += tcp_poll(base);
    if (c->lost)
        delivered += fail_parts(c);
    return delivered;
}


/* ---- Waiting ---- */

/* A completion is there, now or early: the next poll has something. */
static bool has_completed(tcp_conn *c) {
    for (unsigned i = 0; i < c->count; i++) {
        rdma_queue *q = &c->queues[i];
        if (q->count > 0 && !q->is_early)
            q->is_early = ibv_poll_cq(q->completions, 1, &q->early) > 0;
        if (q->is_early)
            return true;
    }
    return false;
}


static bool is_busy(const tcp_conn *c) {
    for (unsigned i = 0; i < c->count; i++)
        if (c->queues[i].count > 0)
            return true;
    return false;
}


/* The next completion of each queue wakes the sleeper. */
static void arm(tcp_conn *c) {
    for (unsigned i = 0; i < c->count; i++)
        if (c->queues[i].count > 0)
            ibv_req_notify_cq(c->queues[i].completions, 0);
}


static void disarm(tcp_conn *c) {
    struct ibv_cq *queue;
    void *context;
    for (unsigned i = 0; i < c->count; i++)
        while (ibv_get_cq_event(c->queues[i].channel, &queue, &context) == 0)
            ibv_ack_cq_events(queue, 1);
}


/* What waits usually take, learned from each: it is worth to look twice as long, unless that is too long. */
static uint64_t spin_time(const tcp_conn *c) {
    uint64_t twice = 2 * c->usual_wait;
    return twice < SPIN_LEAST || twice > SPIN_MOST ? SPIN_LEAST : twice;
}


static void learn_wait(tcp_conn *c, uint64_t took) {
    c->usual_wait += (uint64_t)((int64_t)(took - c->usual_wait) / 8);
}


static void wait_busy(tcp_conn *c, uint64_t until) {
    far_host *host = c->conn.fabric->host;
    uint64_t begin = far_host_now(host), now = begin, spin = spin_time(c);
    bool found = false;
    while (!found && now - begin < spin && now < until) {
        found = has_completed(c);
        now = far_host_now(host);
    }
    if (!found) {
        arm(c);
        if (!has_completed(c))
            tcp_wait(&c->conn, until);
        disarm(c);
        now = far_host_now(host);
    }
    learn_wait(c, now - begin);
}


static void rdma_wait(far_conn *base, uint64_t until) {
    tcp_conn *c = (tcp_conn *)base;
    bool busy = !c->closed_in_child && is_busy(c);
    if (!c->closed_in_child && !busy)
        disarm(c); /* what was armed for a completion that a poll found first would wake the sleeper again and again */
    if (!busy)
        tcp_wait(base, until);
    else if (!c->lost && !has_completed(c)) /* lost: to be told */
        wait_busy(c, until);
}


/* ---- Opening ---- */

static int rdma_connect_all(far_fabric *fabric, far_parker *parker, far_conn **conn) {
    int err = tcp_connect(fabric, parker, conn);
    tcp_conn *c = err < 0 ? NULL : (tcp_conn *)*conn;
    for (unsigned i = 0; c && i < c->count && err == 0; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = FAR_NODES_MAX};
        if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->queues[i].channel->fd, &event) < 0)
            err = far_fail(FAR_ERR_NO_MEMORY, "no descriptors for a connection: %s", strerror(errno));
    }
    if (c && err < 0)
        tcp_disconnect(*conn);
    return err;
}


static const far_fabric_ops rdma_ops = {TCP_SHARED_OPS, .connect = rdma_connect_all, .post = rdma_post,
                                        .poll = rdma_poll, .wait = rdma_wait};

/* Standard verbs have no masked CAS. That READs are done in units of a line, and in their order, is how network cards
 * are built, not a promise of theirs: `farindex selftest` looks, and ?reads_in_order=off does without. */
static const tcp_kind rdma = {
    .scheme = "rdma",
    .carrier = NET_BY_RDMA,
    .ops = &rdma_ops,
    .capabilities = {.atomic_bytes = NET_UNIT, .reads_in_order = true},
    .go_on = rdma_go_on,
    .attach = rdma_attach,
    .stop = rdma_stop,
    .detach = rdma_detach,
};


/* The RDMA libraries keep devices open for the whole process, and a forked child would work on those of its parent. */
static int open_in_this_process(const char *rest, bool existing, far_fabric **fabric) {
    static _Atomic pid_t first;
    pid_t none = 0, self = getpid();
    if (!atomic_compare_exchange_strong(&first, &none, self) && none != self)
        return far_fail(FAR_ERR_UNSUPPORTED,
                        "uri: rdma://%.100s: a forked child of a process that uses RDMA cannot: it must exec first",
                        rest);
    ibv_fork_init(); /* a forked child must not take away the pages that the card writes to */
    return tcp_open(&rdma, rest, existing, fabric);
}


int far_rdma_open(const char *rest, far_fabric **fabric) {
    return open_in_this_process(rest, false, fabric);
}


int far_rdma_open_existing(const char *rest, far_fabric **fabric) {
    return open_in_this_process(rest, true, fabric);
}

#else

int far_rdma_open(const char *rest, far_fabric **fabric) {
    (void)fabric;
    return far_fail(FAR_ERR_UNSUPPORTED,
                    "uri: rdma://%.100s: this build has no RDMA (libibverbs and librdmacm were not there when it was "
                    "made)",
                    rest);
}


int far_rdma_open_existing(const char *rest, far_fabric **fabric) {
    return far_rdma_open(rest, fabric);
}

#endif
