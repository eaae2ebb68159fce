/* Addresses of memory nodes: parses HOST:PORT (an IPv6 host is written in brackets), resolves host names, and sets the
 * options of TCP sockets. Clients and the daemon use this. */
#ifndef FAR_FABRIC_NET_ADDRESS_H
#define FAR_FABRIC_NET_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#define NET_HOST_MAX    255
#define NET_ADDRESS_MAX (NET_HOST_MAX + 10)

typedef struct net_address {
    char host[NET_HOST_MAX + 1], port[6];
    char text[NET_ADDRESS_MAX]; /* the address as text, for messages */
} net_address;

typedef struct net_endpoint {
    struct sockaddr_storage address;
    socklen_t length;
} net_endpoint;

#define NET_ENDPOINTS_MAX 16

/* Parses `length` characters of `text`. Returns FAR_ERR_INVALID, and the reason in `error`, if the address is
 * malformed. */
int net_address_parse(const char *text, size_t length, net_address *address, char *error, size_t error_size);

/* Resolves the host name. Returns the number of endpoints, or a negative error that far_last_error explains. */
int net_address_resolve(const net_address *address, bool to_listen, net_endpoint endpoints[NET_ENDPOINTS_MAX]);

bool net_endpoint_is_loopback(const net_endpoint *endpoint);
void net_endpoint_text(const net_endpoint *endpoint, char text[NET_ADDRESS_MAX]);

/* Sets the options of a connected socket: small messages are sent without delay, and keepalive ends the connection when
 * the kernel of the peer has not answered for `dead_after_ms`. Keepalive works only while no data is in flight;
 * net/silence.h covers the other case. */
int net_socket_prepare(int socket, unsigned dead_after_ms);

/* Ends the connection when the peer has not accepted sent data for `ms`, even if its kernel still answers. */
int net_socket_give_up_after(int socket, unsigned ms);

#endif
