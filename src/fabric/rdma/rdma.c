/* The fabric `rdma`: memory nodes that are reached through an RDMA network card. This file posts verbs, handles
 * completions and waits for them (rdma.h explains the method). far_rdma_open opens it.
 *
 * The URI is rdma://HOST:PORT,HOST:PORT?secret=FILE&timeout=10s, with the options of tcp://. */
#include "base/error.h"
#include "fabric/fabric.h"
#include "farindex.h"

#ifdef FARINDEX_RDMA
#include "fabric/rdma/rdma.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#define LINE 64u


/* Returns the space that `bytes` bytes take in the ring: whole cache lines, so that no two pieces share a line. */
static uint64_t ring_bytes(uint64_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}


/* ---- Building and posting requests ---- */

/* Finds space for a piece in the ring. Returns its position, counted like `ring_taken`, or UINT64_MAX if there is no
 * room now. A piece that would cross the end of the ring is placed at its beginning. */
static uint64_t find_ring_space(const rdma_queue *q, uint32_t length) {
    uint64_t at = q->ring_taken, rest = RDMA_RING - at % RDMA_RING;
    if (rest < ring_bytes(length))
        at += rest;
    return at + ring_bytes(length) - q->ring_freed <= RDMA_RING ? at : UINT64_MAX;
}


/* Returns the part that is being built. It follows the parts under way in the array `parts`. */
static rdma_part *part_being_built(rdma_queue *q) {
    return &q->parts[(q->first + q->count) % RDMA_SLOTS];
}


/* Begins a part (the pieces of one batch for one node). Called at the first piece of a batch for this node. Marks the
 * node as needing a doorbell, and adds one to the number of the batch's parts. */
static void open_part(tcp_conn *c, unsigned node, far_batch *batch) {
    part_being_built(&c->queues[node])->batch = batch;
    c->touched_nodes[c->touched_count++] = node;
    tcp_batch_add_parts(batch, 1);
}


/* Returns the address from which the card takes the data of a WRITE: the caller's data if it fits into the request,
 * else a copy in the ring. */
static const char *place_operand(const rdma_queue *q, struct ibv_send_wr *wr, const char *what, uint32_t length,
                                 char *at) {
    if (length <= q->inline_max) { /* ibv_post_send copies the data into the request */
        wr->send_flags |= IBV_SEND_INLINE;
        return what;
    }
    return memcpy(at, what, length);
}


/* Fills the next request with the bytes [from, from + length) of the verb; `at` is their place in the ring. Keys, lists
 * and links of the request stay as make_requests has set them. */
static void fill_request(rdma_queue *q, const far_verb *verb, uint32_t from, uint32_t length, char *at) {
    static const enum ibv_wr_opcode codes[] = {[FAR_READ] = IBV_WR_RDMA_READ,
                                               [FAR_WRITE] = IBV_WR_RDMA_WRITE,
                                               [FAR_CAS] = IBV_WR_ATOMIC_CMP_AND_SWP,
                                               [FAR_FAA] = IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct ibv_send_wr *wr = &q->requests[q->building];
    const char *place = at;
    wr->opcode = codes[verb->kind];
    wr->send_flags = verb->flags & FAR_VERB_FENCE && from == 0 ? IBV_SEND_FENCE : 0;
    /* This sets the address of an atomic too, because the union has `remote_addr` at the same place for READ, WRITE and
     * atomics. */
    wr->wr.rdma.remote_addr = q->base + far_addr_offset(verb->addr) + from;
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


/* Adds a piece to the part of its node. Returns false, and changes nothing, if there is no room now. */
static bool add_piece(tcp_conn *c, far_batch *batch, const far_verb *verb, uint32_t from, uint32_t length) {
    rdma_queue *q = &c->queues[far_addr_node(verb->addr)];
    uint64_t at = find_ring_space(q, length);
    if (at == UINT64_MAX || q->pieces_posted - q->pieces_completed == RDMA_SLOTS)
        return false;
    char *place = q->ring + at % RDMA_RING;
    if (q->building == 0)
        open_part(c, far_addr_node(verb->addr), batch);
    fill_request(q, verb, from, length, place);
    q->pieces[q->pieces_posted++ % RDMA_SLOTS] =
        (rdma_piece){verb->kind == FAR_WRITE ? NULL : (char *)verb->local + from, place, length};
    q->building++;
    q->ring_taken = at + ring_bytes(length);
    return true;
}


/* Posts the part that was built, with one doorbell. Only its last request asks for a completion, because all earlier
 * requests have completed by then. */
static void ring_doorbell(tcp_conn *c, unsigned node) {
    rdma_queue *q = &c->queues[node];
    struct ibv_send_wr *bad, *last = &q->requests[q->building - 1];
    rdma_part *part = part_being_built(q);
    last->next = NULL;
    last->send_flags |= IBV_SEND_SIGNALED;
    part->pieces = q->building;
    part->ring_end = q->ring_taken;
    q->count++;
    q->building = 0;
    if (ibv_post_send(q->id->qp, q->requests, &bad) != 0)
        tcp_fail_connection(c, FAR_ERR_UNREACHABLE, node, "the RDMA device does not accept a request");
    last->next = last + 1;
}


static void ring_doorbells(tcp_conn *c) {
    /* The loop reads touched_count each time, because tcp_fail_connection may empty the list. */
    for (unsigned i = 0; i < c->touched_count; i++)
        ring_doorbell(c, c->touched_nodes[i]);
    c->touched_count = 0;
}


/* Returns true if the verb has a fence that this file must enforce by waiting. The card orders the verbs of one queue
 * pair itself, but cannot order them after verbs that are under way to other nodes. */
static bool fence_must_wait(const tcp_conn *c, const far_verb *verb) {
    if (!(verb->flags & FAR_VERB_FENCE))
        return false;
    for (unsigned i = 0; i < c->count; i++)
        if (i != far_addr_node(verb->addr) && c->queues[i].count + c->queues[i].building > 0)
            return true;
    return false;
}


/* Posts the verbs of a batch, starting at byte *from of verb *index. Returns true if all were posted; otherwise *index
 * and *from are set to where the batch must continue. */
static bool post_verbs(tcp_conn *c, far_batch *batch, uint32_t *index, uint32_t *from) {
    uint32_t i = *index, at = *from;
    while (i < batch->count) {
        const far_verb *verb = &batch->verbs[i];
        if (at == 0 && fence_must_wait(c, verb))
            break;
        uint32_t length = tcp_piece_length(verb, at);
        if (!add_piece(c, batch, verb, at, length))
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
    if (!tcp_begin_post(c, batch))
        return;
    if ((c->stalled_count > 0 || !post_verbs(c, batch, &index, &from)) && !c->lost)
        tcp_stall_batch(c, batch, index, from);
    if (c->lost)
        tcp_end_unposted_batch(c, batch);
}


void rdma_resume_stalled(tcp_conn *c) {
    while (!c->lost && c->stalled_count > 0) {
        tcp_stalled *one = &c->stalled[c->stalled_first];
        if (!post_verbs(c, one->batch, &one->next, &one->from) || c->lost)
            return;
        tcp_drop_first_stalled(c);
    }
}


/* ---- Completions ---- */

/* Copies the results of the oldest part's READs and atomics from the ring to their destinations. */
static void copy_results(const rdma_queue *q) {
    for (unsigned i = q->pieces_completed, end = i + q->parts[q->first].pieces; i != end; i++) {
        const rdma_piece *piece = &q->pieces[i % RDMA_SLOTS];
        if (piece->to)
            memcpy(piece->to, piece->from, piece->length);
    }
}


/* Removes the oldest part and frees its pieces and its space in the ring. Returns its batch. */
static far_batch *remove_oldest_part(rdma_queue *q) {
    const rdma_part *part = &q->parts[q->first];
    q->first = (q->first + 1) % RDMA_SLOTS;
    assert(q->count > 0);
    q->count--;
    q->pieces_completed += part->pieces;
    q->ring_freed = part->ring_end;
    return part->batch;
}


/* Handles a completion for the oldest part to this node. If it reports an error, the connection is lost. Returns the
 * number of batches that are complete now. */
static int complete_oldest_part(tcp_conn *c, unsigned node, const struct ibv_wc *wc) {
    rdma_queue *q = &c->queues[node];
    if (wc->status != IBV_WC_SUCCESS || q->count == 0) {
        tcp_fail_connection(c, FAR_ERR_UNREACHABLE, node, ibv_wc_status_str(wc->status));
        return 0;
    }
    copy_results(q);
    far_batch *batch = remove_oldest_part(q);
    tcp_batch_add_parts(batch, -1);
    return tcp_complete_if_last(batch);
}


/* Returns the number of completions that wait to be handled; fetches more from the card if there are none. A negative
 * result means that the card has failed and delivers no more completions. */
static int fetch_completions(rdma_queue *q) {
    if (q->found_taken == q->found_count) {
        int found = ibv_poll_cq(q->completions, RDMA_COMPLETIONS_PER_POLL, q->found);
        q->found_taken = 0;
        q->found_count = found > 0 ? found : 0;
        return found;
    }
    return q->found_count - q->found_taken;
}


/* Handles the completions of one node. Returns the number of batches that are complete now. */
static int handle_completions(tcp_conn *c, unsigned node) {
    rdma_queue *q = &c->queues[node];
    int delivered = 0, left = fetch_completions(q);
    if (left < 0)
        tcp_fail_connection(c, FAR_ERR_UNREACHABLE, node, "the RDMA device reports no completions");
    for (; left > 0 && !c->lost; left--)
        delivered += complete_oldest_part(c, node, &q->found[q->found_taken++]);
    return delivered;
}


/* Fails all parts under way on a lost connection. Its queue pairs are destroyed, so no completions will arrive. Returns
 * the number of batches that are complete now. */
static int fail_parts(tcp_conn *c) {
    int delivered = 0;
    for (unsigned i = 0; i < c->count; i++) {
        rdma_queue *q = &c->queues[i];
        /* a part that was built but not posted, because the connection was lost before the doorbell */
        if (q->building > 0) {
            q->building = 0;
            delivered += tcp_fail_part(part_being_built(q)->batch, c->lost);
        }
        while (q->count > 0)
            delivered += tcp_fail_part(remove_oldest_part(q), c->lost);
    }
    return delivered;
}


static int rdma_poll(far_conn *base) {
    tcp_conn *c = (tcp_conn *)base;
    int delivered = 0;
    for (unsigned i = 0; i < c->count && !c->lost; i++)
        if (c->queues[i].count > 0)
            delivered += handle_completions(c, i);
    if (c->stalled_count > 0)
        rdma_resume_stalled(c);
    if (!tcp_sockets_are_idle(c))
        delivered += tcp_poll(base);
    if (c->lost)
        delivered += fail_parts(c);
    return delivered;
}


/* ---- Waiting ---- */

/* Returns true if the next poll has something to handle: a completion, or the failure of a card. Fetches completions
 * from the cards. */
static bool poll_for_completions(tcp_conn *c) {
    for (unsigned i = 0; i < c->count; i++)
        if (c->queues[i].count > 0 && fetch_completions(&c->queues[i]) != 0)
            return true;
    return false;
}


/* Returns true if verbs are under way to any node. */
static bool has_verbs_under_way(const tcp_conn *c) {
    for (unsigned i = 0; i < c->count; i++)
        if (c->queues[i].count > 0)
            return true;
    return false;
}


/* Requests an event on the completion channel of each queue pair with verbs under way. Epoll watches these channels, so
 * a completion then wakes the session. */
static void arm_completion_events(tcp_conn *c) {
    for (unsigned i = 0; i < c->count && !c->lost; i++)
        if (c->queues[i].count > 0 && ibv_req_notify_cq(c->queues[i].completions, 0) != 0)
            tcp_fail_connection(c, FAR_ERR_UNREACHABLE, i, "the RDMA device sends no completion events");
}


/* Consumes the events on the completion channels, because an unconsumed event would end every later sleep at once. */
static void consume_completion_events(tcp_conn *c) {
    struct ibv_cq *queue;
    void *context;
    for (unsigned i = 0; i < c->count; i++)
        while (ibv_get_cq_event(c->queues[i].channel, &queue, &context) == 0)
            ibv_ack_cq_events(queue, 1);
}


/* Polls for a while, then sleeps. The card sends no event for a completion that arrived before the event was requested,
 * so the last poll comes after the request. */
static void wait_for_completions(tcp_conn *c, uint64_t until) {
    far_host *host = c->conn.fabric->host;
    uint64_t now = far_host_now(host);
    bool found = false;
    for (bool looks = net_busy_poll_begin(&c->busy_poll, now); looks && !found && now < until;
         looks = net_busy_poll_continue(&c->busy_poll, now)) {
        found = poll_for_completions(c);
        now = far_host_now(host);
    }
    if (!found) {
        arm_completion_events(c);
        if (!c->lost && !poll_for_completions(c))
            tcp_wait(&c->conn, until);
        consume_completion_events(c);
        now = far_host_now(host);
    }
    net_busy_poll_end(&c->busy_poll, now, found);
}


static void rdma_wait(far_conn *base, uint64_t until) {
    tcp_conn *c = (tcp_conn *)base;
    bool busy = !c->closed_in_child && has_verbs_under_way(c);
    if (!c->closed_in_child && !busy)
        /* An earlier wait may have requested an event and ended before the completion. A poll has handled the
         * completion since then, but its event is still in the channel. */
        consume_completion_events(c);
    if (!busy)
        tcp_wait(base, until);
    /* If the connection is lost, this thread must not sleep, because the next poll must report the loss. */
    else if (!c->lost && !poll_for_completions(c))
        wait_for_completions(c, until);
}


/* ---- Opening ---- */

/* Connects like `tcp`, and adds the completion channels to the epoll of the connection, so that both sockets and cards
 * can end a sleep. */
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

/* Standard verbs have no masked CAS. Tearing only between lines, and the order of READs, are properties of how cards
 * are built, but no vendor promises them. `farindex selftest` tests both, and clients of the pool do not rely on a
 * guarantee that it found violated (pool/format/fabric_record.h). */
static const tcp_transport rdma = {
    .scheme = "rdma",
    .carrier = NET_BY_RDMA,
    .ops = &rdma_ops,
    .capabilities = {.atomic_bytes = NET_GRANULE, .reads_in_order = true},
    .resume_stalled = rdma_resume_stalled,
    .create_queues = rdma_create_queues,
    .stop_queues = rdma_stop_queues,
    .free_queues = rdma_free_queues,
};


/* Opens the fabric, but only in the first process that uses RDMA. The RDMA libraries keep devices open for the lifetime
 * of the process, and a forked child would use those of its parent until it calls exec. */
static int open_in_this_process(const char *rest, bool existing, far_fabric **fabric) {
    static _Atomic pid_t first;
    pid_t none = 0, self = getpid();
    if (!atomic_compare_exchange_strong(&first, &none, self) && none != self)
        return far_fail(
            FAR_ERR_UNSUPPORTED,
            "uri: rdma://%.100s: a forked child of a process that uses RDMA must call exec before it can use RDMA",
            rest);
    ibv_fork_init(); /* keeps fork from moving pages to which the card writes */
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
