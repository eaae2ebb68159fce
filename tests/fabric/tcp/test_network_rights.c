/* Tests of what a peer of a memory node may do. The attackers send valid messages to which they have no right; other
 * clients must not notice anything, and nothing may remain in the memory file. */
#define _GNU_SOURCE
#include "fabric/node/memory.h"
#include "network_rig.h"
#include "test.h"
#include "wire.h"

#include <fcntl.h>

typedef struct two_nodes { /* a pool of two nodes with memory files */
    daemon_node nodes[2];
    char paths[2][64];
    char uri[160];
    unsigned later; /* position of the node that is not node 0 of the pool */
} two_nodes;


static void start_two_nodes(two_nodes *p) {
    for (unsigned i = 0; i < 2; i++) {
        snprintf(p->paths[i], sizeof(p->paths[i]), "/dev/shm/farindex-rights-%d-%u", (int)getpid(), i);
        unlink(p->paths[i]);
        assert_true(daemon_start(&p->nodes[i], NULL, "--size " SIZE " --memory %s", p->paths[i]));
    }
    snprintf(p->uri, sizeof(p->uri), "tcp://%s,%s", p->nodes[0].address, p->nodes[1].address);
    put_and_get(p->uri);
    p->later = daemon_read_status(p->nodes[0].address).node == 0 ? 1 : 0;
}


static void end_two_nodes(two_nodes *p) {
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(daemon_stop(&p->nodes[i]), 0);
        unlink(p->paths[i]);
    }
}


/* Sends messages of this type for all ids, with the largest claim number, and waits until the node has handled them or
 * has closed the connection. A message of the type NET_CLAIM has one entry, the others have many. */
static void send_for_all_ids(const char *address, net_type type, unsigned each) {
    for (unsigned first = 1; first < NET_IDS; first += each) {
        net_link link = wire_dial(address, NET_FOR_SESSION);
        net_claim list[NET_LISTED_MAX] = {0};
        unsigned count = 0;
        for (; count < each && first + count < NET_IDS; count++)
            list[count] = (net_claim){.id = first + count, .claim = UINT64_MAX};
        net_channel_send(&link.channel, type, type == NET_CLAIM ? 0 : count, 1, list, count * sizeof(list[0]));
        net_channel_send(&link.channel, NET_PING, 0, 2, NULL, 0);
        while (net_channel_flush(&link.channel) == 0 && net_channel_receive(&link.channel) >= 0 &&
               !net_channel_has_message(&link.channel))
            usleep(100);
        net_channel_close(&link.channel);
        if (type == NET_CLAIM && first > 64) /* these ids are the first that clients use */
            return;
    }
}


/* A connection without a claim asks a node to fence every claim of every id, also those that no node has issued. The
 * node refuses. The pool remains usable, also after a restart of the node. Fails if on_fence does not check the proof
 * of an entry. */
TEST(only_ended_claims_are_fenced) {
    two_nodes p;
    start_two_nodes(&p);
    send_for_all_ids(p.nodes[p.later].address, NET_FENCE, NET_LISTED_MAX);
    put_and_get(p.uri);
    assert_int_equal(daemon_stop(&p.nodes[p.later]), 0);
    assert_true(daemon_restart(&p.nodes[p.later]));
    put_and_get(p.uri);
    end_two_nodes(&p);
}


/* A connection presents the largest claim number for the ids that clients use first. Node 0 has not issued this number,
 * so the node refuses. Fails if on_claim does not check the proof of the claim. */
TEST(only_issued_claims_are_presented) {
    two_nodes p;
    start_two_nodes(&p);
    send_for_all_ids(p.nodes[p.later].address, NET_CLAIM, 1);
    put_and_get(p.uri);
    end_two_nodes(&p);
}
