/* The fabric `rdma`: memory nodes reached by an RDMA network card. Verbs and completions; fabric/rdma.h says how.
 *
 * rdma://HOST:PORT,HOST:PORT?secret=FILE&timeout=10s: options as with tcp://. */
#include "base/error.h"
#include "fabric/fabric.h"
#include "farindex.h"

#ifdef FARINDEX_RDMA
#include "fabric/rdma.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#define LINE 64u


/* Room that so many bytes take in the ring: whole lines, so that no two pieces share one. */
static uint64_t in_ring(uint64_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}


/* ---- Putting verbs into requests ---- */

/* Where in the ring so many bytes go (counted as `put` is); UINT64_MAX: there is no room now. A piece that would run over
 * the end of the ring begins at its beginning instead. */
static uint64_t place_for(const rdma_queue *q, uint32_t length) {
    uint64_t at = q->put, rest = RDMA_RING - at % RDMA_RING;
    if (rest < in_ring(length))
        at += rest;
    return at + in_ring(length) - q->freed <= RDMA_RING ? at : UINT64_MAX;
}


/* The part that is being put together: it stands behind those under way. */
static rdma_part *built_part(rdma_queue *q) {
    return &q->parts[(q->first + q->count) % RDMA_SLOTS];
}


/* The first piece of a batch for this node: the node is to get a doorbell, and the batch waits for one part more. */
static void open_part(tcp_conn *c, unsigned node, far_batch *batch) {
    built_part(&c->queues[node])->batch = batch;
    c->touched[c->touched_count++] = node;
    tcp_add_part(batch, 1);
}


/* From where the card takes the bytes of a WRITE: inside the request if they are few, else from the ring. */
static const char *place_operand(const rdma_queue *q, struct ibv_send_wr *wr, const char *what, uint32_t length,
                                 char *at) {
    if (length <= q->inline_most) { /* the card copies them when the request is posted */
        wr->send_flags |= IBV_SEND_INLINE;
        return what;
    }
    return memcpy(at, what, length);
}


/* The next request: bytes [from, from + length) of the verb, with `at` as their place in the ring. Keys, lists and links
 * of requests stay as make_requests has set them. */
static void set_request(rdma_queue *q, const far_verb *verb, uint32_t from, uint32_t length, char *at) {
    static const enum ibv_wr_opcode codes[] = {[FAR_READ] = IBV_WR_RDMA_READ,
                                               [FAR_WRITE] = IBV_WR_RDMA_WRITE,
                                               [FAR_CAS] = IBV_WR_ATOMIC_CMP_AND_SWP,
                                               [FAR_FAA] = IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct ibv_send_wr *wr = &q->requests[q->building];
    const char *place = at;
    wr->opcode = codes[verb->kind];
    wr->send_flags = verb->flags & FAR_VERB_FENCE && from == 0 ? IBV_SEND_FENCE : 0;
    wr->wr.rdma.remote_addr = q->base + far_addr_offset(verb->addr) + from; /* of an atomic too */
    if (verb->kind <= FAR_WRITE) {
        wr->wr.rdma.rkey = q->key;
    } else {
        wr->wr.atomic.rkey = q->key;
        wr->wr.atomic.compare_add = verb->kind == FAR_CAS ? verb->compare : verb->swap;
        wr->wr.atomic.swap = verb->swap;
    }
    if (verb->kind == FAR_WRITE)
        place = place_operand(q, wr, (const char *)verb->local + from, length, at);
    wr->sg_list->addr = (uintptr_t)place;
    wr->sg_list->length = length;
}


/* Adds a piece to the part of its node. False: there is no room now, and nothing was changed. */
static bool put_piece(tcp_conn *c, far_batch *batch, const far_verb *verb, uint32_t from, uint32_t length) {
    rdma_queue *q = &c->queues[far_addr_node(verb->addr)];
    uint64_t at = place_for(q, length);
    if (at == UINT64_MAX || q->pieces_put - q->pieces_done == RDMA_SLOTS)
        return false;
    char *place = q->ring + at % RDMA_RING;
    if (q->building == 0)
        open_part(c, far_addr_node(verb->addr), batch);
    set_request(q, verb, from, length, place);
    q->pieces[q->pieces_put++ % RDMA_SLOTS] =
        (rdma_piece){verb->kind == FAR_WRITE ? NULL : (char *)verb->local + from, place, length};
    q->building++;
    q->put = at + in_ring(length);
    return true;
}


/* Posts the part that was put together, by one doorbell. The card tells only of its last request: by then all before it
 * have completed. */
static void ring_doorbell(tcp_conn *c, unsigned node) {
    rdma_queue *q = &c->queues[node];
    struct ibv_send_wr *bad, *last = &q->requests[q->building - 1];
    rdma_part *part = built_part(q);
    last->next = NULL;
    last->send_flags |= IBV_SEND_SIGNALED;
    part->pieces = q->building;
    part->ring_end = q->put;
    q->count++;
    q->building = 0;
    if (ibv_post_send(q->id->qp, q->requests, &bad) != 0)
        tcp_lose(c, FAR_ERR_UNREACHABLE, node, "the RDMA device takes no request");
    last->next = last + 1;
}


static void ring_doorbells(tcp_conn *c) {
    for (unsigned i = 0; i < c->touched_count; i++) /* losing the connection empties the list */
        ring_doorbell(c, c->touched[i]);
    c->touched_count = 0;
}


/* The card keeps a fence among the verbs of one queue pair. A fenced verb whose connection has verbs under way to other
 * nodes must wait here until those have completed. */
static bool must_stall(const tcp_conn *c, const far_verb *verb) {
    if (!(verb->flags & FAR_VERB_FENCE))
        return false;
    for (unsigned i = 0; i < c->count; i++)
        if (i != far_addr_node(verb->addr) && c->queues[i].count + c->queues[i].building > 0)
            return true;
    return false;
}


/* Posts the verbs of a batch from byte *from of verb *index on. True: all of them; else *index and *from say where the
 * batch has to go on. */
static bool put_verbs(tcp_conn *c, far_batch *batch, uint32_t *index, uint32_t *from) {
    uint32_t i = *index, at = *from;
    while (i < batch->count) {
        const far_verb *verb = &batch->verbs[i];
        if (at == 0 && must_stall(c, verb))
            break;
        uint32_t length = tcp_piece_at(verb, at);
        if (!put_piece(c, batch, verb, at, length))
            break;
        at += length;
        if (at == verb->length) {
            at = 0;
            i++;
        }
    }
    *index = i;
    *from = at;
    ring_doorbells(c);
    return i == batch->count;
}


static void rdma_post(far_conn *base, far_batch *batch) {
    tcp_conn *c = (tcp_conn *)base;
    uint32_t index = 0, from = 0;
    if (!tcp_may_post(c, batch))
        return;
    if ((c->stalled_count > 0 || !put_verbs(c, batch, &index, &from)) && !c->lost)
        tcp_stall(c, batch, index, from);
    if (c->lost)
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

/* Copies what the READs and atomics of the oldest part have brought from the ring to where it is wanted. */
static void copy_out(const rdma_queue *q) {
    for (unsigned i = q->pieces_done, end = i + q->parts[q->first].pieces; i != end; i++) {
        const rdma_piece *piece = &q->pieces[i % RDMA_SLOTS];
        if (piece->to)
            memcpy(piece->to, piece->from, piece->length);
    }
}


/* The oldest part is over: frees its pieces and its room in the ring. Returns its batch. */
static far_batch *pop(rdma_queue *q) {
    const rdma_part *part = &q->parts[q->first];
    q->first = (q->first + 1) % RDMA_SLOTS;
    assert(q->count > 0);
    q->count--;
    q->pieces_done += part->pieces;
    q->freed = part->ring_end;
    return part->batch;
}


/* The oldest part to this node has completed, or failed and with it the connection. Returns how many batches are done. */
static int complete(tcp_conn *c, unsigned node, const struct ibv_wc *wc) {
    rdma_queue *q = &c->queues[node];
    if (wc->status != IBV_WC_SUCCESS || q->count == 0) {
        tcp_lose(c, FAR_ERR_UNREACHABLE, node, ibv_wc_status_str(wc->status));
        return 0;
    }
    copy_out(q);
    far_batch *batch = pop(q);
    tcp_add_part(batch, -1);
    return tcp_finish(batch);
}


/* How many completions wait to be dealt with; asks the card if none is left of the last time. Negative: the card has
 * failed, and tells of no completion any more. */
static int look(rdma_queue *q) {
    if (q->found_taken == q->found_count) {
        int found = ibv_poll_cq(q->completions, RDMA_FOUND, q->found);
        q->found_taken = 0;
        q->found_count = found > 0 ? found : 0;
        return found;
    }
    return q->found_count - q->found_taken;
}


/* Deals with the completions of one node. Returns how many batches are done. */
static int take(tcp_conn *c, unsigned node) {
    rdma_queue *q = &c->queues[node];
    int delivered = 0, left = look(q);
    if (left < 0)
        tcp_lose(c, FAR_ERR_UNREACHABLE, node, "the RDMA device tells of no completions");
    for (; left > 0 && !c->lost; left--)
        delivered += complete(c, node, &q->found[q->found_taken++]);
    return delivered;
}


/* The connection is lost: its queue pairs are destroyed, so no completion comes for what was under way. */
static int fail_parts(tcp_conn *c) {
    int delivered = 0;
    for (unsigned i = 0; i < c->count; i++) {
        rdma_queue *q = &c->queues[i];
        if (q->building > 0) { /* a part that the loss kept from being posted */
            q->building = 0;
            delivered += tcp_fail_batch(built_part(q)->batch, c->lost);
        }
        while (q->count > 0)
            delivered += tcp_fail_batch(pop(q), c->lost);
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
    if (!tcp_is_quiet(c))
        delivered += tcp_poll(base);
    if (c->lost)
        delivered += fail_parts(c);
    return delivered;
}


/* ---- Waiting ---- */

/* The next poll has something to deal with: a completion, or the failure of a card. */
static bool has_completed(tcp_conn *c) {
    for (unsigned i = 0; i < c->count; i++)
        if (c->queues[i].count > 0 && look(&c->queues[i]) != 0)
            return true;
    return false;
}


/* Verbs are under way. */
static bool is_busy(const tcp_conn *c) {
    for (unsigned i = 0; i < c->count; i++)
        if (c->queues[i].count > 0)
            return true;
    return false;
}


/* Has the card wake the session, by the channels among what epoll watches, when verbs under way complete. */
static void arm(tcp_conn *c) {
    for (unsigned i = 0; i < c->count && !c->lost; i++)
        if (c->queues[i].count > 0 && ibv_req_notify_cq(c->queues[i].completions, 0) != 0)
            tcp_lose(c, FAR_ERR_UNREACHABLE, i, "the RDMA device wakes nobody");
}


/* Takes what the channels have told: as long as it is there, epoll ends every sleep at once. */
static void disarm(tcp_conn *c) {
    struct ibv_cq *queue;
    void *context;
    for (unsigned i = 0; i < c->count; i++)
        while (ibv_get_cq_event(c->queues[i].channel, &queue, &context) == 0)
            ibv_ack_cq_events(queue, 1);
}


/* Looks for a while, then sleeps. The card wakes nobody for completions that were there when it was asked to: so the last
 * look comes after asking. */
static void wait_busy(tcp_conn *c, uint64_t until) {
    far_host *host = c->conn.fabric->host;
    uint64_t now = far_host_now(host);
    bool found = false;
    for (bool looks = net_linger_begin(&c->linger, now); looks && !found && now < until;
         looks = net_linger_goes_on(&c->linger, now)) {
        found = has_completed(c);
        now = far_host_now(host);
    }
    if (!found) {
        arm(c);
        if (!c->lost && !has_completed(c))
            tcp_wait(&c->conn, until);
        disarm(c);
        now = far_host_now(host);
    }
    net_linger_end(&c->linger, now, found);
}


static void rdma_wait(far_conn *base, uint64_t until) {
    tcp_conn *c = (tcp_conn *)base;
    bool busy = !c->closed_in_child && is_busy(c);
    if (!c->closed_in_child && !busy)
        disarm(c); /* an earlier wait asked to be woken, and ended before the completion: a poll has dealt with that */
    if (!busy)
        tcp_wait(base, until);
    else if (!c->lost && !has_completed(c)) /* a loss is to be told by the next poll: no sleep */
        wait_busy(c, until);
}


/* ---- Opening ---- */

/* A connection of `tcp`, whose epoll watches the completion channels too: one sleep is ended by sockets and cards. */
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
 * are built, not a promise of theirs: `farindex selftest` looks, and what it refutes the pool's clients do without
 * (pool/refuted.h). */
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


/* The RDMA libraries keep devices open for the whole process. A forked child would work on those of its parent: so only
 * the process that was first may use them, until it execs. */
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
