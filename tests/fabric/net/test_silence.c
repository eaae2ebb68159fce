/* Tests of the detection of silent peers (fabric/net/silence.c): a peer is silent if its kernel does not answer. A peer
 * is not silent if only its process does not read. */
#include "fabric/net/silence.h"
#include "test.h"
#include "wire.h"

#include <poll.h>
#include <unistd.h>


/* Passes one report of the kernel to the state machine. Returns for how long the peer has been silent. */
static uint64_t silent_at(net_silence *silence, uint64_t now, bool awaits_ack, uint64_t ms_since_ack) {
    net_peer_acks heard = {.awaits_ack = awaits_ack, .ms_since_ack = ms_since_ack};
    return net_silence_update(silence, &heard, now);
}


/* Silence counts from the first check that saw unacknowledged data, even if the last acknowledgement is older, because
 * the connection may have been idle before. */
TEST(silence_counts_from_the_first_check) {
    net_silence silence = {0};
    assert_int_equal(silent_at(&silence, 100000, true, 60000), 0);
    assert_int_equal(silent_at(&silence, 100500, true, 60500), 500);
    assert_int_equal(silent_at(&silence, 102000, true, 62000), 2000);
}


/* An acknowledgement that arrives after the first check ends the silence. */
TEST(an_acknowledgement_ends_silence) {
    net_silence silence = {0};
    silent_at(&silence, 1000, true, 10);
    /* The client has sent more data after the acknowledgement. */
    assert_int_equal(silent_at(&silence, 2000, true, 300), 0);
    assert_int_equal(silent_at(&silence, 2500, true, 800), 500);
    /* The peer has no buffer space, but its kernel answers the window probes, so it is not silent. */
    assert_int_equal(silent_at(&silence, 3000, false, 100), 0);
    assert_int_equal(silent_at(&silence, 90000, true, 87000), 0);
    assert_int_equal(silent_at(&silence, 90500, true, 87500), 500);
}


/* A peer that has acknowledged all data is not silent, however long ago its last acknowledgement was. */
TEST(a_peer_that_acknowledged_everything_is_not_silent) {
    net_silence silence = {0};
    net_peer_acks all = {.all_acknowledged = true};
    silent_at(&silence, 1000, true, 10);
    assert_int_equal(net_silence_update(&silence, &all, 5000), 0);
    assert_int_equal(silent_at(&silence, 9000, true, 8000), 0);
}


/* Client A requests more answers than its buffers can hold and reads nothing for three times the lease. Its kernel
 * answers the window probes, so the daemon keeps the connection, and A gets all answers when it reads. Fails if the
 * daemon uses TCP_USER_TIMEOUT instead of net/silence.h. */
TEST(a_peer_that_reads_nothing_stays_connected) {
    daemon_node node;
    net_head head;
    const char *body;
    int got = 0;
    assert_true(daemon_start(&node, NULL, "--size 1M --lease 1s"));
    net_link link = wire_dial(node.address, NET_FOR_SESSION);
    uint64_t awaits_ack = wire_ask_for_too_much(&link.channel), answers = 0;
    usleep(3500000); /* 3.5 s are more than three times the lease. */
    while (answers < awaits_ack && got >= 0) {
        struct pollfd one = {.fd = link.channel.socket, .events = POLLIN};
        assert_int_equal(poll(&one, 1, -1), 1);
        got = net_channel_receive(&link.channel);
        while (net_channel_next(&link.channel, true, &head, &body) > 0)
            answers++;
    }
    assert_int_equal(answers, awaits_ack);
    net_channel_close(&link.channel);
    assert_int_equal(daemon_stop(&node), 0);
}
