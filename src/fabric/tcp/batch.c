/* The fabric `tcp`: translates batches of verbs into messages, and answers into the results of the verbs. tcp_post is
 * called for each batch; connection.c calls tcp_deliver_results for each answer. */
#include "base/error.h"
#include "fabric/tcp/tcp.h"
#include "farindex.h"

#include <stdlib.h>


/* Finds the next piece of the batch for this node. A message carries the pieces of one node's verbs in the order of the
 * verbs. The search starts at byte *from of verb *index, and advances both past the piece. Returns the address where
 * the results of the piece are stored. */
static char *next_piece(const far_batch *batch, unsigned node, uint32_t *index, uint32_t *from, uint8_t *kind,
                        uint32_t *length) {
    while (far_addr_node(batch->verbs[*index].addr) != node)
        ++*index;
    const far_verb *verb = &batch->verbs[*index];
    char *to = (char *)verb->local + (verb->kind == FAR_READ ? *from : 0);
    *kind = verb->kind;
    *length = tcp_piece_length(verb, *from);
    *from += *length;
    if (*from == verb->length) {
        *from = 0;
        ++*index;
    }
    return to;
}


/* ---- Messages ---- */

static net_head *head_of_open_message(tcp_node *node) {
    return (net_head *)(node->channel.out.data + node->channel.out.begin + node->head_offset);
}


static void close_message(tcp_node *node) {
    net_head head;
    memcpy(&head, head_of_open_message(node), sizeof(head));
    head.length = (uint32_t)(node->channel.out.end - node->channel.out.begin - node->head_offset);
    head.count = (uint16_t)node->requests[(node->first + node->count - 1) % node->room].pieces;
    memcpy(head_of_open_message(node), &head, sizeof(head));
    node->open = false;
}


void tcp_close_messages(tcp_conn *c) {
    for (unsigned i = 0; i < c->touched_count; i++)
        if (c->nodes[c->touched_nodes[i]].open)
            close_message(&c->nodes[c->touched_nodes[i]]);
    c->touched_count = 0;
}


static bool open_message(tcp_conn *c, unsigned number, far_batch *batch, uint32_t verb, uint32_t from) {
    tcp_node *node = &c->nodes[number];
    tcp_request *request = tcp_add_request(c, number, NET_BATCH);
    char *room = request ? net_channel_reserve(&node->channel, NET_HEAD_BYTES) : NULL;
    if (!room)
        return false;
    net_head head = {.type = NET_BATCH, .tag = request->tag};
    request->batch = batch;
    request->first = verb;
    request->from = from;
    request->pieces = 0;
    node->head_offset = node->channel.out.end - node->channel.out.begin;
    memcpy(room, &head, sizeof(head));
    net_channel_commit(&node->channel, NET_HEAD_BYTES);
    node->open = true;
    node->results = 0;
    c->touched_nodes[c->touched_count++] = number;
    tcp_batch_add_parts(batch, 1);
    return true;
}


static bool message_has_room(const tcp_node *node, uint32_t bytes, uint32_t results) {
    size_t so_far = node->channel.out.end - node->channel.out.begin - node->head_offset;
    const tcp_request *request = &node->requests[(node->first + node->count - 1) % node->room];
    return so_far + bytes <= NET_MESSAGE_MAX && NET_HEAD_BYTES + node->results + results <= NET_MESSAGE_MAX &&
           request->pieces < UINT16_MAX;
}


static bool append_piece(tcp_conn *c, far_batch *batch, uint32_t index, uint32_t from, uint32_t length) {
    const far_verb *verb = &batch->verbs[index];
    unsigned number = far_addr_node(verb->addr);
    tcp_node *node = &c->nodes[number];
    uint32_t bytes = NET_VERB_BYTES + net_operand_bytes(verb->kind, length);
    uint32_t results = net_result_bytes(verb->kind, length);
    if (node->open && !message_has_room(node, bytes, results)) {
        close_message(node);
        for (unsigned i = 0; i < c->touched_count; i++)
            if (c->touched_nodes[i] == number)
                c->touched_nodes[i--] = c->touched_nodes[--c->touched_count];
    }
    if (!node->open && !open_message(c, number, batch, index, from))
        return false;
    char *room = net_channel_reserve(&node->channel, bytes);
    if (!room)
        return false;
    net_verb_put(room, verb, from, length);
    net_channel_commit(&node->channel, bytes);
    node->results += results;
    node->requests[(node->first + node->count - 1) % node->room].pieces++;
    return true;
}


static bool append_verb(tcp_conn *c, far_batch *batch, uint32_t index) {
    const far_verb *verb = &batch->verbs[index];
    for (uint32_t from = 0, length; from < verb->length; from += length) {
        length = tcp_piece_length(verb, from);
        if (!append_piece(c, batch, index, from, length))
            return false;
    }
    return true;
}


/* Returns true if the fence of this verb must wait for answers. A node runs requests in order, so a fence costs nothing
 * if only this verb's node has outstanding requests. */
static bool fence_must_wait(const tcp_conn *c, const far_verb *verb) {
    return (verb->flags & FAR_VERB_FENCE) && c->outstanding > c->nodes[far_addr_node(verb->addr)].count;
}


/* Appends the verbs of the batch to messages, starting at `index`. Returns the verb at which the batch must stall, or
 * the number of verbs if all were appended or the connection is lost. */
static uint32_t append_verbs(tcp_conn *c, far_batch *batch, uint32_t index) {
    bool ok = true;
    for (; ok && index < batch->count; index++) {
        if (fence_must_wait(c, &batch->verbs[index]))
            break;
        ok = append_verb(c, batch, index);
    }
    if (ok)
        tcp_close_messages(c);
    else
        tcp_fail_connection(c, FAR_ERR_UNREACHABLE, 0, "no memory for a message");
    return ok ? index : batch->count;
}


/* ---- Fences ---- */

bool tcp_stall_batch(tcp_conn *c, far_batch *batch, uint32_t next, uint32_t from) {
    if (c->stalled_count == c->stalled_room) {
        unsigned room = c->stalled_room ? 2 * c->stalled_room : 16;
        tcp_stalled *more = malloc(room * sizeof(*more));
        if (!more) {
            tcp_fail_connection(c, FAR_ERR_UNREACHABLE, 0, "no memory for a batch");
            return false;
        }
        for (unsigned i = 0; i < c->stalled_count; i++)
            more[i] = c->stalled[(c->stalled_first + i) % c->stalled_room];
        free(c->stalled);
        c->stalled = more;
        c->stalled_room = room;
        c->stalled_first = 0;
    }
    c->stalled[(c->stalled_first + c->stalled_count++) % c->stalled_room] = (tcp_stalled){batch, next, from};
    tcp_batch_add_parts(batch, 1);
    return true;
}


void tcp_drop_first_stalled(tcp_conn *c) {
    tcp_batch_add_parts(c->stalled[c->stalled_first].batch, -1);
    c->stalled_first = (c->stalled_first + 1) % c->stalled_room;
    c->stalled_count--;
}


void tcp_resume_stalled(tcp_conn *c) {
    while (!c->lost && c->stalled_count > 0) {
        tcp_stalled *one = &c->stalled[c->stalled_first];
        one->next = append_verbs(c, one->batch, one->next);
        if (c->lost || one->next < one->batch->count)
            /* The batch is stalled again, and continues when the verbs that were sent now have been answered. */
            return;
        tcp_drop_first_stalled(c);
    }
}


/* ---- Posting and results ---- */

void tcp_refuse_batch(const tcp_conn *c, far_batch *batch) {
    batch->pending = false;
    batch->status = c->why[0] ? far_fail(FAR_ERR_UNREACHABLE, "%s", c->why) : FAR_ERR_FENCED;
}


/* Ends a batch if the connection was lost while the batch was being posted. This is needed if no part of the batch is
 * under way, because the poll that fails pending parts would not find the batch. */
void tcp_end_unposted_batch(tcp_conn *c, far_batch *batch) {
    if (!c->lost || tcp_batch_parts(batch) > 0)
        return;
    batch->pending = false;
    batch->status = c->lost;
}


void tcp_post(far_conn *base, far_batch *batch) {
    tcp_conn *c = (tcp_conn *)base;
    if (!tcp_begin_post(c, batch))
        return;
    uint32_t next = c->stalled_count > 0 ? 0 : append_verbs(c, batch, 0);
    if (!c->lost && next < batch->count)
        tcp_stall_batch(c, batch, next, 0);
    tcp_end_unposted_batch(c, batch);
}


int tcp_fail_part(far_batch *batch, int status) {
    batch->status = status;
    tcp_batch_add_parts(batch, -1);
    return tcp_complete_if_last(batch);
}


bool tcp_deliver_results(unsigned node, const tcp_request *request, const char *body, size_t bytes, int *delivered) {
    far_batch *batch = request->batch;
    uint32_t from = request->from, index = request->first;
    const char *end = body + bytes;
    for (uint32_t piece = 0; piece < request->pieces; piece++) {
        uint8_t kind;
        uint32_t length;
        char *to = next_piece(batch, node, &index, &from, &kind, &length);
        uint32_t results = net_result_bytes(kind, length);
        if (end - body < (ptrdiff_t)results)
            return false;
        if (results)
            memcpy(to, body, results);
        body += results;
    }
    if (body != end)
        return false;
    tcp_batch_add_parts(batch, -1);
    *delivered += tcp_complete_if_last(batch);
    return true;
}
