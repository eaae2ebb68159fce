/* The fabric tcp:// by itself, without a pool: one daemon, and a connection to it. */
#ifndef TESTS_SUPPORT_WIRE_H
#define TESTS_SUPPORT_WIRE_H

#include "conform.h"
#include "daemons.h"
#include "fabric/fabric.h"
#include "fabric/net/link.h"

typedef struct wire {
    daemon_node node;
    far_fabric *fabric;
    far_parker parker;
    far_conn *conn; /* NULL: the test makes none */
} wire;

void wire_up(wire *g, const char *options); /* of the URI; no connection yet */
void wire_down(wire *g);

/* A question is asked and answered; a batch is posted and done. */
int wire_ask(wire *g, far_question_kind kind, unsigned id, unsigned generation);
void wire_finish(wire *g, const far_batch *batch);
uint64_t wire_read(wire *g, far_addr addr);
void wire_batch_is_done(far_batch *batch); /* nothing more */

/* A bare connection to a node, which speaks messages; and requests on it with more answers than sockets have room for. */
net_link wire_dial(const char *where, net_purpose purpose);
uint64_t wire_ask_for_too_much(net_channel *channel); /* how many requests */

#endif
