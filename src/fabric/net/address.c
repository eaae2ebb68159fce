/* Parses and resolves addresses of memory nodes, and sets options of TCP sockets (address.h). */
#define _GNU_SOURCE
#include "fabric/net/address.h"
#include "base/error.h"
#include "base/parse.h"
#include "farindex.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROBES    3      /* smallest number of keepalive probes before a connection ends */
#define RTO_LEAST 1000   /* smallest value in ms that the kernel accepts for TCP_RTO_MAX_MS */
#define RTO_MOST  120000 /* default of the kernel in ms */

#ifndef TCP_RTO_MAX_MS /* defined since Linux 6.15 */
#define TCP_RTO_MAX_MS 44
#endif


int net_address_parse(const char *text, size_t length, net_address *address, char *error, size_t error_size) {
    const char *end = text + length, *host = text, *host_end, *port;
    if (length > 0 && *text == '[') {
        host = text + 1;
        host_end = memchr(host, ']', (size_t)(end - host));
        port = host_end && host_end + 1 < end && host_end[1] == ':' ? host_end + 2 : NULL;
    } else {
        host_end = memchr(host, ':', length);
        port = host_end ? host_end + 1 : NULL;
        if (port && memchr(port, ':', (size_t)(end - port)))
            return far_refuse(error, error_size, "'%.*s': write an IPv6 address in brackets", (int)length, text);
    }
    if (!port || host_end == host || port == end)
        return far_refuse(error, error_size, "'%.*s': the address of a memory node has the form HOST:PORT", (int)length,
                          text);
    size_t host_length = (size_t)(host_end - host), port_length = (size_t)(end - port);
    if (host_length > NET_HOST_MAX || memchr(host, 0, host_length) || memchr(host, ' ', host_length))
        return far_refuse(error, error_size, "'%.*s': not a valid host name", (int)length, text);
    unsigned number = 0;
    for (size_t i = 0; i < port_length && number <= 65535; i++)
        number = port[i] >= '0' && port[i] <= '9' ? number * 10 + (unsigned)(port[i] - '0') : 65536;
    if (number > 65535 || port_length > 5)
        return far_refuse(error, error_size, "'%.*s': a port is a number up to 65535", (int)length, text);
    memset(address, 0, sizeof(*address));
    memcpy(address->host, host, host_length);
    snprintf(address->port, sizeof(address->port), "%u", number);
    snprintf(address->text, sizeof(address->text), "%.*s", (int)length, text);
    return 0;
}


int net_address_resolve(const net_address *address, bool to_listen, net_endpoint endpoints[NET_ENDPOINTS_MAX]) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0)},
                    *found = NULL;
    int result = getaddrinfo(address->host, address->port, &hints, &found), count = 0;
    if (result != 0)
        return far_fail(FAR_ERR_UNREACHABLE, "%s: the host name cannot be resolved: %s", address->text,
                        gai_strerror(result));
    for (struct addrinfo *one = found; one && count < NET_ENDPOINTS_MAX; one = one->ai_next) {
        memcpy(&endpoints[count].address, one->ai_addr, one->ai_addrlen);
        endpoints[count++].length = one->ai_addrlen;
    }
    freeaddrinfo(found);
    return count;
}


bool net_endpoint_is_loopback(const net_endpoint *endpoint) {
    if (endpoint->address.ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)&endpoint->address)->sin_addr.s_addr) >> 24 == 127;
    return endpoint->address.ss_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&endpoint->address)->sin6_addr);
}


void net_endpoint_text(const net_endpoint *endpoint, char text[NET_ADDRESS_MAX]) {
    char host[NI_MAXHOST], port[NI_MAXSERV];
    bool v6 = endpoint->address.ss_family == AF_INET6;
    if (getnameinfo((const struct sockaddr *)&endpoint->address, endpoint->length, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(text, NET_ADDRESS_MAX, "?");
    else
        snprintf(text, NET_ADDRESS_MAX, "%s%.200s%s:%.5s", v6 ? "[" : "", host, v6 ? "]" : "", port);
}


static int whole_seconds(unsigned seconds) {
    return seconds < 1 ? 1 : (int)seconds;
}


/* Limits the interval between window probes to a quarter of the timeout. The kernel probes a peer with a full receive
 * buffer at growing intervals, up to two minutes, so the loss of the peer's host would be detected that late. Kernels
 * before Linux 6.15 refuse the option, and the interval then stays as it is. */
static void limit_probe_interval(int socket, unsigned dead_after_ms) {
    unsigned most = dead_after_ms / 4;
    most = most < RTO_LEAST ? RTO_LEAST : most > RTO_MOST ? RTO_MOST : most;
    if (setsockopt(socket, IPPROTO_TCP, TCP_RTO_MAX_MS, &most, sizeof(most)) < 0)
        return;
}


/* Keepalive probes detect the loss of the peer's host or of the network path. They do not detect a stopped process,
 * because the kernel of the peer answers the probes for the process. */
int net_socket_prepare(int socket, unsigned dead_after_ms) {
    unsigned seconds = dead_after_ms / 1000;
    int on = 1, idle = whole_seconds(seconds / 2), every = whole_seconds(seconds / 2 / PROBES),
        probes = whole_seconds((seconds - seconds / 2) / (unsigned)every);
    if (setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0 ||
        setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)) < 0 ||
        setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle)) < 0 ||
        setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every)) < 0 ||
        setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes)) < 0)
        return far_fail(FAR_ERR_UNREACHABLE, "the options of a socket cannot be set: %s", strerror(errno));
    limit_probe_interval(socket, dead_after_ms);
    return 0;
}


int net_socket_give_up_after(int socket, unsigned ms) {
    if (setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms)) < 0)
        return far_fail(FAR_ERR_UNREACHABLE, "the options of a socket cannot be set: %s", strerror(errno));
    return 0;
}
