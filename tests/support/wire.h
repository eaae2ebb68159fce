/* A rig for tests of the fabric tcp: without a pool. It consists of one daemon and one connection to that daemon. */
#ifndef TESTS_SUPPORT_WIRE_H
#define TESTS_SUPPORT_WIRE_H

#include "conform.h"
#include "daemons.h"
#include "fabric/fabric.h"
#include "fabric/tcp/link.h"

typedef struct wire {
    daemon_node node;
    far_fabric *fabric;
    far_parker parker;
    far_conn *conn; /* connection to the daemon; NULL until the test makes it */
} wire;

/* starts the daemon and opens a fabric with these options in the URI; makes no connection */
void wire_up(wire *g, const char *options);
void wire_down(wire *g);

/* wire_ask sends a control message and returns its answer. wire_finish waits until a posted batch has completed. */
int wire_ask(wire *g, far_control_kind kind, unsigned id, unsigned generation);
void wire_finish(wire *g, const far_batch *batch);
uint64_t wire_read(wire *g, far_addr addr);
void wire_batch_is_done(far_batch *batch); /* callback of a completed batch; does nothing */

/* Makes a bare connection to a memory node, on which a test sends and receives messages itself. */
net_link wire_dial(const char *where, net_purpose purpose);
/* Sends so many READ requests that their answers, 24 MiB in all, do not fit into the socket buffers between the daemon
 * and the test, and receives none of the answers. So the daemon cannot send all of them. Returns the number of
 * requests. */
uint64_t wire_ask_for_too_much(net_channel *channel);

#endif
