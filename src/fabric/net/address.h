/* Addresses of memory nodes: HOST:PORT, with an IPv6 host in brackets. */
#ifndef FAR_FABRIC_NET_ADDRESS_H
#define FAR_FABRIC_NET_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#define NET_HOST_MAX    255
#define NET_ADDRESS_MAX (NET_HOST_MAX + 10)

typedef struct net_address {
    char host[NET_HOST_MAX + 1], port[6];
    char text[NET_ADDRESS_MAX]; /* as it is shown */
} net_address;

typedef struct net_endpoint {
    struct sockaddr_storage address;
    socklen_t length;
} net_endpoint;

#define NET_ENDPOINTS_MAX 16

/* FAR_ERR_INVALID: malformed; `error` says why. */
int net_address_parse(const char *text, size_t length, net_address *address, char *error, size_t error_size);

/* Asks the system what the name stands for. In words when it fails. Returns how many. */
int net_address_resolve(const net_address *address, bool to_listen, net_endpoint endpoints[NET_ENDPOINTS_MAX]);

bool net_endpoint_is_loopback(const net_endpoint *endpoint);
void net_endpoint_text(const net_endpoint *endpoint, char text[NET_ADDRESS_MAX]);

/* Options of a connection: small messages leave at once; a peer whose kernel does not answer for so long ends it while
 * nothing is under way (net/silence.h). */
int net_socket_prepare(int socket, unsigned dead_after_ms);

/* ... and a peer that takes nothing of what is sent to it for so long, though its kernel answers. */
int net_socket_give_up_after(int socket, unsigned ms);

#endif
