/* The fabric `tcp`: batches as messages, and results as what the verbs ask for. */
#include "base/error.h"
#include "fabric/tcp.h"
#include "farindex.h"

#include <stdlib.h>


/* A message carries the pieces of one node's verbs, in their order. Finds the next one of this node behind byte *from of verb
 * *index, and moves both behind it. Returns where the piece's results go. */
static char *next_piece(const far_batch *batch, unsigned node, uint32_t *index, uint32_t *from, uint8_t *kind,
                        uint32_t *length) {
    while (far_addr_node(batch->verbs[*index].addr) != node)
        ++*index;
    const far_verb *verb = &batch->verbs[*index];
    char *to = (char *)verb->local + (verb->kind == FAR_READ ? *from : 0);
    *kind = verb->kind;
    *length = tcp_piece_at(verb, *from);
    *from += *length;
    if (*from == verb->length) {
        *from = 0;
        ++*index;
    }
    return to;
}


/* ---- Messages ---- */

static net_head *head_of(tcp_node *node) {
    return (net_head *)(node->channel.out.data + node->channel.out.begin + node->head_at);
}


static void close_message(tcp_node *node) {
    net_head head;
    memcpy(&head, head_of(node), sizeof(head));
    head.length = (uint32_t)(node->channel.out.end - node->channel.out.begin - node->head_at);
    head.count = (uint16_t)node->owed[(node->first + node->count - 1) % node->room].pieces;
    memcpy(head_of(node), &head, sizeof(head));
    node->open = false;
}


void tcp_close_messages(tcp_conn *c) {
    for (unsigned i = 0; i < c->touched_count; i++)
        if (c->nodes[c->touched[i]].open)
            close_message(&c->nodes[c->touched[i]]);
    c->touched_count = 0;
}


static bool open_message(tcp_conn *c, unsigned number, far_batch *batch, uint32_t verb, uint32_t from) {
    tcp_node *node = &c->nodes[number];
    tcp_owed *owed = tcp_owe(c, number, NET_BATCH);
    char *room = owed ? net_channel_reserve(&node->channel, NET_HEAD_BYTES) : NULL;
    if (!room)
        return false;
    net_head head = {.type = NET_BATCH, .tag = owed->tag};
    owed->batch = batch;
    owed->first = verb;
    owed->from = from;
    owed->pieces = 0;
    node->head_at = node->channel.out.end - node->channel.out.begin;
    memcpy(room, &head, sizeof(head));
    net_channel_commit(&node->channel, NET_HEAD_BYTES);
    node->open = true;
    node->results = 0;
    c->touched[c->touched_count++] = number;
    tcp_add_part(batch, 1);
    return true;
}


static bool has_room(const tcp_node *node, uint32_t bytes, uint32_t results) {
    size_t so_far = node->channel.out.end - node->channel.out.begin - node->head_at;
    const tcp_owed *owed = &node->owed[(node->first + node->count - 1) % node->room];
    return so_far + bytes <= NET_MESSAGE_MAX && NET_HEAD_BYTES + node->results + results <= NET_MESSAGE_MAX &&
           owed->pieces < UINT16_MAX;
}


static bool put_piece(tcp_conn *c, far_batch *batch, uint32_t index, uint32_t from, uint32_t length) {
    const far_verb *verb = &batch->verbs[index];
    unsigned number = far_addr_node(verb->addr);
    tcp_node *node = &c->nodes[number];
    uint32_t bytes = NET_VERB_BYTES + net_operand_bytes(verb->kind, length);
    uint32_t results = net_result_bytes(verb->kind, length);
    if (node->open && !has_room(node, bytes, results)) {
        close_message(node);
        for (unsigned i = 0; i < c->touched_count; i++)
            if (c->touched[i] == number)
                c->touched[i--] = c->touched[--c->touched_count];
    }
    if (!node->open && !open_message(c, number, batch, index, from))
        return false;
    char *room = net_channel_reserve(&node->channel, bytes);
    if (!room)
        return false;
    net_verb_put(room, verb, from, length);
    net_channel_commit(&node->channel, bytes);
    node->results += results;
    node->owed[(node->first + node->count - 1) % node->room].pieces++;
    return true;
}


static bool put_verb(tcp_conn *c, far_batch *batch, uint32_t index) {
    const far_verb *verb = &batch->verbs[index];
    for (uint32_t from = 0, length; from < verb->length; from += length) {
        length = tcp_piece_at(verb, from);
        if (!put_piece(c, batch, index, from, length))
            return false;
    }
    return true;
}


/* A node runs what it gets in order: a fence costs nothing if only that node has something to do. */
static bool must_stall(const tcp_conn *c, const far_verb *verb) {
    return (verb->flags & FAR_VERB_FENCE) && c->owed > c->nodes[far_addr_node(verb->addr)].count;
}


/* Puts the batch's verbs from `index` on into messages. Returns the verb at which the batch must stall, or the count. */
static uint32_t put_verbs(tcp_conn *c, far_batch *batch, uint32_t index) {
    bool ok = true;
    for (; ok && index < batch->count; index++) {
        if (must_stall(c, &batch->verbs[index]))
            break;
        ok = put_verb(c, batch, index);
    }
    if (ok)
        tcp_close_messages(c);
    else
        tcp_lose(c, FAR_ERR_UNREACHABLE, 0, "no memory for a message");
    return ok ? index : batch->count;
}


/* ---- Fences ---- */

bool tcp_stall(tcp_conn *c, far_batch *batch, uint32_t next, uint32_t from) {
    if (c->stalled_count == c->stalled_room) {
        unsigned room = c->stalled_room ? 2 * c->stalled_room : 16;
        tcp_stalled *more = malloc(room * sizeof(*more));
        if (!more) {
            tcp_lose(c, FAR_ERR_UNREACHABLE, 0, "no memory for a batch");
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
    tcp_add_part(batch, 1);
    return true;
}


void tcp_unstall(tcp_conn *c) {
    tcp_add_part(c->stalled[c->stalled_first].batch, -1);
    c->stalled_first = (c->stalled_first + 1) % c->stalled_room;
    c->stalled_count--;
}


void tcp_go_on(tcp_conn *c) {
    while (!c->lost && c->stalled_count > 0) {
        tcp_stalled *one = &c->stalled[c->stalled_first];
        one->next = put_verbs(c, one->batch, one->next);
        if (c->lost || one->next < one->batch->count)
            return; /* the batch stalls once more, and goes on when what was sent now is answered */
        tcp_unstall(c);
    }
}


/* ---- Posting and results ---- */

void tcp_refuse(const tcp_conn *c, far_batch *batch) {
    batch->pending = false;
    batch->status = c->why[0] ? far_fail(FAR_ERR_UNREACHABLE, "%s", c->why) : FAR_ERR_FENCED;
}


/* The connection was lost while the batch was posted. If no part of it is under way, the poll that fails all that is would
 * not find it: it ends here. */
void tcp_end_unposted(tcp_conn *c, far_batch *batch) {
    if (!c->lost || tcp_parts(batch) > 0)
        return;
    batch->pending = false;
    batch->status = c->lost;
}


void tcp_post(far_conn *base, far_batch *batch) {
    tcp_conn *c = (tcp_conn *)base;
    if (!tcp_may_post(c, batch))
        return;
    uint32_t next = c->stalled_count > 0 ? 0 : put_verbs(c, batch, 0);
    if (!c->lost && next < batch->count)
        tcp_stall(c, batch, next, 0);
    tcp_end_unposted(c, batch);
}


int tcp_fail_batch(far_batch *batch, int status) {
    batch->status = status;
    tcp_add_part(batch, -1);
    return tcp_finish(batch);
}


bool tcp_take_results(unsigned node, const tcp_owed *owed, const char *body, size_t bytes, int *delivered) {
    far_batch *batch = owed->batch;
    uint32_t from = owed->from, index = owed->first;
    const char *end = body + bytes;
    for (uint32_t piece = 0; piece < owed->pieces; piece++) {
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
    tcp_add_part(batch, -1);
    *delivered += tcp_finish(batch);
    return true;
}
