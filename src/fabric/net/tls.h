/* TLS 1.3 over bytes that others carry: a pre-shared key from a file, or certificates of both sides. A build without
 * OpenSSL has none of it: net_tls_open then says so. */
#ifndef FAR_FABRIC_NET_TLS_H
#define FAR_FABRIC_NET_TLS_H

#include <stdbool.h>
#include <stddef.h>

#define NET_SECRET_LEAST 32 /* bytes */

typedef struct net_tls_config { /* names of files, or NULL; either secret, or all others */
    const char *secret, *cert, *key, *ca;
} net_tls_config;

typedef struct net_tls_context net_tls_context; /* shared by sessions, of one side */
typedef struct net_tls net_tls;                 /* one session */

/* *context stays NULL when the configuration names nothing. In words when it fails. */
int net_tls_open(const net_tls_config *config, bool server, net_tls_context **context);
void net_tls_close(net_tls_context *context); /* NULL is fine */

/* host: whom the certificate must name; NULL at the server. */
net_tls *net_tls_new(net_tls_context *context, const char *host);
void net_tls_free(net_tls *tls); /* NULL is fine */

size_t net_tls_feed(net_tls *tls, const char *raw, size_t bytes); /* from the wire; returns how many were taken */
int net_tls_unseal(net_tls *tls, char *to, size_t room);          /* 0: nothing yet; -1: failed */
int net_tls_seal(net_tls *tls, const char *from, size_t bytes);   /* 0: not yet; -1: failed */
size_t net_tls_sealed_bytes(const net_tls *tls);                  /* to be put on the wire */
size_t net_tls_take_sealed(net_tls *tls, char *to, size_t room);
bool net_tls_is_greeted(const net_tls *tls); /* the handshake is over, and the peer has proved who it is */
const char *net_tls_why(const net_tls *tls);

#endif
