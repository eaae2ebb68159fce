/* Which connections a daemon admits (fabric/node/admission.h), with connections that are socket pairs. */
#include "fabric/node/admission.h"
#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#define PEERS 1024

static net_admission admission;
static net_half_open peers[PEERS];
static net_place places[PEERS];
static int sockets[PEERS][2]; /* -1: the connection has ended */
static unsigned count;


TEST_FIXTURE(begin) {
    count = 0;
    net_admission_init(&admission, 0);
    return 0;
}


static void leave(unsigned peer) {
    if (sockets[peer][0] < 0)
        return;
    net_admission_leave(&admission, &peers[peer], &places[peer]);
    close(sockets[peer][0]);
    close(sockets[peer][1]);
    sockets[peer][0] = -1;
}


TEST_FIXTURE(end) {
    for (unsigned i = 0; i < count; i++)
        leave(i);
    assert_int_equal(admission.connections + admission.half_open + admission.readers, 0);
    for (unsigned i = 0; i < NET_SOURCE_BUCKETS; i++)
        assert_null(admission.sources[i]);
    net_admission_free(&admission);
    return 0;
}


/* Lets a connection from 127.0.0.`host` in, and returns its number. */
static unsigned enter(unsigned host) {
    net_endpoint from = {.length = sizeof(struct sockaddr_in)};
    struct sockaddr_in *address = (struct sockaddr_in *)&from.address;
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(0x7f000000u + host);
    assert_true(count < PEERS);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets[count]), 0);
    places[count] = (net_place){0};
    assert_true(net_admission_enter(&admission, &peers[count], &from, sockets[count][0]));
    return count++;
}


/* Returns true if the daemon has closed the connection. */
static bool is_closed(unsigned peer) {
    char byte;
    return recv(sockets[peer][1], &byte, 1, MSG_DONTWAIT) == 0;
}


/* A stranger connects much more often than there are half-open places, after a newcomer at another address that has not
 * sent its hello yet. The stranger loses its own connections, the oldest first, and the newcomer gets in. Fails if the
 * oldest half-open connection of all is closed. */
TEST_WITH(a_stranger_closes_its_own_connections, begin, end) {
    unsigned newcomer = enter(2), first = enter(1);
    for (unsigned i = 1; i < 2 * NET_HALF_OPEN_MAX; i++)
        enter(1);
    assert_false(is_closed(newcomer));
    assert_int_equal(admission.half_open, NET_HALF_OPEN_MAX);
    assert_true(is_closed(first));
    assert_false(is_closed(count - 1));
    assert_int_equal(net_admission_accept(&admission, &peers[newcomer], false, &places[newcomer]), NET_ADMITTED);
    assert_false(is_closed(newcomer));
}


/* Strangers at several addresses share the places that a newcomer at yet another address leaves. */
TEST_WITH(strangers_at_many_addresses_share_the_places, begin, end) {
    unsigned newcomer = enter(200), evicted = 0;
    for (unsigned i = 0; i < 3 * NET_HALF_OPEN_MAX; i++)
        enter(1 + i % 100);
    for (unsigned i = 0; i < count; i++)
        evicted += is_closed(i);
    assert_int_equal(evicted, 2 * NET_HALF_OPEN_MAX + 1);
    assert_false(is_closed(newcomer));
}


/* A connection that was evicted gets no place, even if its hello is there already. */
TEST_WITH(an_evicted_connection_gets_no_place, begin, end) {
    unsigned first = enter(1);
    for (unsigned i = 0; i < NET_HALF_OPEN_MAX; i++)
        enter(1);
    assert_true(is_closed(first));
    assert_int_equal(net_admission_accept(&admission, &peers[first], false, &places[first]), NET_ADDRESS_IS_FULL);
}


/* Readers take at most half of the places, and then writers still get in. When a reader leaves, another one gets in.
 * Fails without readers_max. */
TEST_WITH(readers_leave_places_for_writers, begin, end) {
    admission.connections_max = 8;
    admission.readers_max = 4;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(net_admission_accept(&admission, &peers[enter(i)], true, &places[i]), NET_ADMITTED);
    unsigned reader = enter(5), writer = enter(6);
    assert_int_equal(net_admission_accept(&admission, &peers[reader], true, &places[reader]), NET_READERS_ARE_FULL);
    assert_int_equal(admission.refused_readers, 1);
    assert_int_equal(net_admission_accept(&admission, &peers[writer], false, &places[writer]), NET_ADMITTED);
    leave(writer);
    assert_int_equal(net_admission_accept(&admission, &peers[reader], true, &places[reader]), NET_READERS_ARE_FULL);
    leave(0);
    assert_int_equal(net_admission_accept(&admission, &peers[reader], true, &places[reader]), NET_ADMITTED);
}
