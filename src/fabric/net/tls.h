/* TLS 1.3 with a pre-shared key from a file, or with certificates of both sides. A session encrypts and decrypts bytes
 * in memory; channel.c moves them from and to the socket. In a build without OpenSSL, net_tls_open fails with a
 * message. */
#ifndef FAR_FABRIC_NET_TLS_H
#define FAR_FABRIC_NET_TLS_H

#include <stdbool.h>
#include <stddef.h>

#define NET_SECRET_LEAST 32 /* smallest size of a secret in bytes */

/* Names of files; NULL: not given. Either `secret` is given, or the three files of the certificates together. With
 * `secret`, a server may have a second key, `read_secret`, for clients that may only read. */
typedef struct net_tls_config {
    const char *secret, *cert, *key, *ca, *read_secret;
} net_tls_config;

typedef struct net_tls_context net_tls_context; /* configuration of one side, shared by its sessions */
typedef struct net_tls net_tls;                 /* one TLS session */

/* Loads the files that the configuration names. Sets *context to NULL if it names none. Returns 0, or an error that
 * far_last_error describes. */
int net_tls_open(const net_tls_config *config, bool server, net_tls_context **context);
void net_tls_close(net_tls_context *context); /* frees the context; NULL is allowed */

/* `host` is the name that the certificate of the server must contain; NULL on the server. Returns NULL if there is no
 * memory. */
net_tls *net_tls_new(net_tls_context *context, const char *host);
void net_tls_free(net_tls *tls); /* frees the session; NULL is allowed */

/* adds received bytes; returns how many were accepted */
size_t net_tls_put_received(net_tls *tls, const char *raw, size_t bytes);
/* returns the number of decrypted bytes; 0: none yet; -1: the session has failed */
int net_tls_decrypt(net_tls *tls, char *to, size_t room);
/* returns the number of bytes encrypted; 0: not possible yet; -1: the session has failed */
int net_tls_encrypt(net_tls *tls, const char *from, size_t bytes);
size_t net_tls_encrypted_bytes(const net_tls *tls); /* number of encrypted bytes that must be sent */
size_t net_tls_take_encrypted(net_tls *tls, char *to, size_t room);
bool net_tls_handshake_is_done(const net_tls *tls); /* the handshake is complete and has authenticated the peer */
/* returns true if the peer of this server has authenticated itself with `read_secret`; valid after the handshake */
bool net_tls_peer_reads_only(const net_tls *tls);
const char *net_tls_error(const net_tls *tls);

#endif
