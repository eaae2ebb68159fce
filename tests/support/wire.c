/* A connection of the fabric tcp: to one daemon, without a pool (wire.h). */
#include "wire.h"


void wire_up(wire *g, const char *options) {
    char uri[160];
    memset(g, 0, sizeof(*g));
    assert_true(daemon_start(&g->node, NULL, "--size 16M"));
    snprintf(uri, sizeof(uri), "tcp://%s%s", g->node.address, options);
    assert_ok(far_fabric_open(uri, &g->fabric));
}


void wire_down(wire *g) {
    if (g->conn)
        g->fabric->ops->disconnect(g->conn);
    g->fabric->ops->close(g->fabric);
    assert_int_equal(daemon_stop(&g->node), 0);
}


static void ignore_answer(far_control *question) {
    (void)question;
}


int wire_ask(wire *g, far_control_kind kind, unsigned id, unsigned generation) {
    far_control question = {.kind = kind, .id = id, .generation = generation, .done = ignore_answer};
    g->fabric->ops->ask(g->conn, &question);
    while (question.pending)
        if (g->fabric->ops->poll(g->conn) == 0 && question.pending)
            g->fabric->ops->wait(g->conn, FAR_TIME_NEVER);
    return question.answer;
}


void wire_batch_is_done(far_batch *batch) {
    (void)batch;
}


void wire_finish(wire *g, const far_batch *batch) {
    while (batch->pending)
        if (g->fabric->ops->poll(g->conn) == 0 && batch->pending)
            g->fabric->ops->wait(g->conn, FAR_TIME_NEVER);
    assert_int_equal(batch->status, 0);
}


uint64_t wire_read(wire *g, far_addr addr) {
    uint64_t word = 0;
    far_verb verb = {.kind = FAR_READ, .length = 8, .addr = addr, .local = &word};
    far_batch batch = {.verbs = &verb, .count = 1, .done = wire_batch_is_done};
    g->fabric->ops->post(g->conn, &batch);
    wire_finish(g, &batch);
    return word;
}


net_link wire_dial(const char *where, net_purpose purpose) {
    net_address address;
    net_link link;
    char error[128];
    net_dial_options how = {.purpose = purpose, .insecure = true, .timeout_ms = 5000};
    assert_int_equal(net_address_parse(where, strlen(where), &address, error, sizeof(error)), 0);
    assert_ok(net_links_open(&link, &address, 1, &how));
    return link;
}


uint64_t wire_ask_for_too_much(net_channel *channel) {
    const uint64_t too_much = 24u << 20;
    far_verb verb = {.kind = FAR_READ, .length = NET_PIECE_BYTES};
    char body[NET_VERB_BYTES];
    uint64_t sent = 0;
    net_verb_put(body, &verb, 0, verb.length);
    while (sent * NET_PIECE_BYTES < too_much)
        net_channel_send(channel, NET_BATCH, 1, ++sent, body, sizeof(body));
    while (net_channel_queued(channel) > 0)
        assert_int_equal(net_channel_flush(channel), 0);
    return sent;
}
