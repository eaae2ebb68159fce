/* A test of a host that has two addresses, one of which does not answer. The client reaches the host through the other
 * address. */
#include "daemons.h"
#include "fabric/tcp/link.h"
#include "test.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* length of the listener's queue: after this number of connections that are not accepted, the kernel drops further ones
 */
#define QUEUE 4

static struct sockaddr_in ways[2];


/* Replaces the function of the C library: every name has the same two addresses. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found) {
    (void)host, (void)port, (void)hints;
    *found = calloc(2, sizeof(**found));
    for (unsigned i = 0; i < 2; i++)
        (*found)[i] = (struct addrinfo){.ai_family = AF_INET,
                                        .ai_addr = (struct sockaddr *)&ways[i],
                                        .ai_addrlen = sizeof(ways[i]),
                                        .ai_next = i == 0 ? &(*found)[1] : NULL};
    return 0;
}


void freeaddrinfo(struct addrinfo *found) {
    free(found);
}


static struct sockaddr_in on_loopback(unsigned port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}


/* Creates a listener with a full queue, so that it does not answer. sockets[0] is the listener. */
static struct sockaddr_in be_silent(int sockets[QUEUE + 1]) {
    struct sockaddr_in address = on_loopback(0);
    socklen_t length = sizeof(address);
    sockets[0] = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(sockets[0], (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(sockets[0], 0), 0);
    getsockname(sockets[0], (struct sockaddr *)&address, &length);
    for (unsigned i = 1; i <= QUEUE; i++) {
        sockets[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(sockets[i], (struct sockaddr *)&address, sizeof(address));
    }
    return address;
}


/* The first address of the host drops all packets. The client tries the second address when the first one has used its
 * share of the timeout. Fails without endpoint_is_overdue in link.c. */
TEST(a_silent_address_is_skipped) {
    daemon_node node;
    int sockets[QUEUE + 1];
    net_link link;
    net_address address = {.host = "both", .port = "1", .text = "both:1"};
    net_dial_options dial = {.purpose = NET_FOR_INSPECTION, .timeout_ms = 4000};
    assert_true(daemon_start(&node, NULL, "--size 1M"));
    ways[0] = be_silent(sockets);
    ways[1] = on_loopback((unsigned)atoi(strchr(node.address, ':') + 1));
    assert_int_equal(net_links_open(&link, &address, 1, &dial), 0);
    net_channel_close(&link.channel);
    for (unsigned i = 0; i <= QUEUE; i++)
        close(sockets[i]);
    assert_int_equal(daemon_stop(&node), 0);
}
