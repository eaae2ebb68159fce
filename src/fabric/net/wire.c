/* Checks lengths of messages, and encodes and decodes verbs (wire.h). */
#include "fabric/net/wire.h"

/* marks a message type whose body may have any length; the function that handles the message checks the length */
#define VARIABLE 0xffffu

typedef struct message_layout {
    uint16_t fixed, each; /* length of the body in bytes: fixed + count * each */
    bool to_client;
} message_layout;

static const message_layout layouts[NET_TYPES] = {
    [NET_HELLO] = {sizeof(net_hello), 0, false},
    [NET_WELCOME] = {sizeof(net_welcome), 0, true},
    [NET_REFUSED] = {VARIABLE, 0, true},
    [NET_JOIN] = {sizeof(net_join), 0, false},
    [NET_JOINED] = {sizeof(net_join), 0, true},
    [NET_CLAIM] = {sizeof(net_claim), 0, false},
    [NET_CLAIMED] = {sizeof(net_claimed), 0, true},
    [NET_RELEASE] = {0, 0, false},
    [NET_RELEASED] = {0, 0, true},
    [NET_QUERY] = {0, sizeof(net_claim), false},
    [NET_LIVENESS] = {0, sizeof(net_liveness), true},
    [NET_FENCE] = {0, sizeof(net_claim), false},
    [NET_FENCED] = {0, 0, true},
    [NET_EVICT] = {sizeof(net_claim), 0, false},
    [NET_EVICTED] = {sizeof(net_liveness), 0, true},
    [NET_BATCH] = {VARIABLE, 0, false},
    [NET_RESULTS] = {VARIABLE, 0, true},
    [NET_PING] = {0, 0, false},
    [NET_PONG] = {0, 0, true},
    [NET_SUBSCRIBE] = {0, 0, false},
    [NET_NOTIFY_ALL] = {0, 0, false},
    [NET_NOTIFICATION] = {sizeof(net_claim), 0, true},
    [NET_BYE] = {0, 0, false},
    [NET_STATUS] = {0, 0, false},
    [NET_STATE] = {sizeof(net_state), 0, true},
    [NET_QUEUE_PAIR] = {0, 0, false},
    [NET_QUEUE_PAIR_OFFER] = {sizeof(net_queue_pair_offer), 0, true},
    [NET_NUMA_QUERY] = {sizeof(net_numa_query), 0, false},
    [NET_NUMA_NODES] = {sizeof(net_numa_nodes), 0, true},
    [NET_RECORD] = {sizeof(net_record), 0, false},
    [NET_RECORDED] = {0, 0, true},
    [NET_IDENTITY] = {sizeof(far_name), 0, false},
    [NET_NAME] = {sizeof(net_claim), 0, false},
    [NET_NAMED] = {sizeof(far_name), 0, true},
};


int64_t net_message_length(const char *bytes, size_t count) {
    uint32_t length;
    if (count < sizeof(length))
        return 0;
    memcpy(&length, bytes, sizeof(length));
    if (length < NET_HEAD_BYTES || length > NET_MESSAGE_MAX)
        return -1;
    return count < NET_HEAD_BYTES ? 0 : (int64_t)length;
}


bool net_message_is_valid(const net_head *head, bool to_client) {
    if (head->type == 0 || head->type >= NET_TYPES || layouts[head->type].to_client != to_client)
        return false;
    const message_layout *s = &layouts[head->type];
    uint32_t body = head->length - NET_HEAD_BYTES;
    if (head->type == NET_REFUSED)
        return body <= NET_TEXT_MAX && head->count == 0;
    if (s->fixed == VARIABLE)
        return true;
    if (s->each == 0)
        return body == s->fixed && head->count == 0;
    return head->count <= NET_LISTED_MAX && body == (uint32_t)head->count * s->each;
}


char *net_verb_put(char *to, const far_verb *verb, uint32_t from, uint32_t length) {
    uint32_t words[2] = {verb->kind, length};
    uint64_t offset = far_addr_offset(verb->addr) + from;
    memcpy(to, words, 8);
    memcpy(to + 8, &offset, 8);
    to += NET_VERB_BYTES;
    switch (verb->kind) {
    case FAR_READ:
        return to;
    case FAR_WRITE:
        memcpy(to, (const char *)verb->local + from, length);
        return to + length;
    case FAR_FAA:
        memcpy(to, &verb->swap, 8);
        return to + 8;
    default:
        memcpy(to, &verb->compare, 8);
        memcpy(to + 8, &verb->swap, 8);
        if (verb->kind == FAR_CAS)
            return to + 16;
        memcpy(to + 16, &verb->compare_mask, 8);
        memcpy(to + 24, &verb->swap_mask, 8);
        return to + 32;
    }
}


int net_verb_get(const char **at, const char *end, uint64_t node_bytes, net_verb *verb) {
    uint32_t words[2];
    if (*at == end)
        return 0;
    if (end - *at < (ptrdiff_t)NET_VERB_BYTES)
        return -1;
    memcpy(words, *at, 8);
    verb->offset = net_word(*at + 8);
    verb->length = words[1];
    if (words[0] >= FAR_VERB_KINDS || verb->length == 0 || verb->length > NET_PIECE_BYTES ||
        ((verb->offset | verb->length) & 7) != 0)
        return -1;
    verb->kind = (far_verb_kind)words[0];
    if ((verb->kind > FAR_WRITE && verb->length != 8) || verb->length > node_bytes ||
        verb->offset > node_bytes - verb->length)
        return -1;
    uint32_t operands = net_operand_bytes(verb->kind, verb->length);
    verb->operands = *at + NET_VERB_BYTES;
    if (end - verb->operands < (ptrdiff_t)operands)
        return -1;
    *at = verb->operands + operands;
    return 1;
}


int64_t net_batch_check(const char *body, size_t length, unsigned count, uint64_t node_bytes, net_changes *changes) {
    const char *at = body, *end = body + length;
    net_verb verb;
    uint64_t results = 0;
    unsigned seen = 0;
    int got;
    *changes = NET_CHANGES_NOTHING;
    while ((got = net_verb_get(&at, end, node_bytes, &verb)) > 0) {
        seen++;
        results += net_result_bytes(verb.kind, verb.length);
        if (verb.kind == FAR_READ)
            continue;
        if (verb.offset + verb.length > NET_UNCLAIMED_WRITE_BYTES)
            *changes = NET_CHANGES_MEMORY;
        else if (*changes == NET_CHANGES_NOTHING)
            *changes = NET_CHANGES_START;
    }
    if (got < 0 || seen != count || seen == 0 || results > NET_MESSAGE_MAX - NET_HEAD_BYTES)
        return -1;
    return (int64_t)results;
}
