/* A host with two addresses, of which one is silent: it is reached by the other. */
#include "daemons.h"
#include "fabric/net/link.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define QUEUE 4 /* connections that nobody accepts: then the listener's kernel drops all further ones */

static struct sockaddr_in ways[2];


/* In place of the C library's: every name has the two addresses. */
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


/* A listener that is full; sockets[0] is it. */
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


static void a_silent_address_is_passed_over(void **state) {
    (void)state;
    daemon_node node;
    int sockets[QUEUE + 1];
    net_link link;
    net_address address = {.host = "both", .port = "1", .text = "both:1"};
    net_dial dial = {.purpose = NET_FOR_LOOK, .timeout_ms = 4000};
    assert_true(daemon_start(&node, NULL, "--size 1M"));
    ways[0] = be_silent(sockets);
    ways[1] = on_loopback((unsigned)atoi(strchr(node.address, ':') + 1));
    assert_int_equal(net_links_open(&link, &address, 1, &dial), 0);
    net_channel_close(&link.channel);
    for (unsigned i = 0; i <= QUEUE; i++)
        close(sockets[i]);
    assert_int_equal(daemon_stop(&node), 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_silent_address_is_passed_over)};
    return cmocka_run_group_tests_name("net/endpoints", tests, NULL, NULL);
}
