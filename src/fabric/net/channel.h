/* A channel carries messages in both directions over a non-blocking socket, plain or with TLS. net_channel_send and
 * net_channel_reserve only append to the output queue; net_channel_flush sends as much as the socket accepts.
 * net_channel_receive reads the data that has arrived, and net_channel_next returns it message by message. Clients
 * (folder tcp) and the daemon (folder node) use channels. */
#ifndef FAR_FABRIC_NET_CHANNEL_H
#define FAR_FABRIC_NET_CHANNEL_H

#include "fabric/net/tls.h"
#include "fabric/net/wire.h"

typedef struct net_bytes { /* A queue of bytes. data[begin, end) is in use, and `room` bytes are allocated */
    char *data;
    size_t begin, end, room;
} net_bytes;

typedef struct net_channel {
    int socket; /* descriptor of the socket; -1: closed */
    net_bytes in, out;
    /* With TLS: encrypted_in holds received bytes that are not decrypted yet; encrypted_out holds encrypted bytes that
     * are not sent yet. */
    net_bytes encrypted_in, encrypted_out;
    net_tls *tls;        /* NULL: the channel is plain text */
    bool handshake_done; /* the TLS handshake is complete; always true for plain text */
    bool out_of_memory;
    bool drained;            /* the last read emptied the receive buffer of the socket */
    uint64_t received, sent; /* bytes on the wire, counted until the user resets them */
    char why[160];           /* reason why the channel has failed; empty while it works */
} net_channel;

/* Takes ownership of the socket and of the TLS session; `session` is NULL for plain text. */
void net_channel_init(net_channel *channel, int socket, net_tls *session);
/* Closes the socket and frees the queues. May be called more than once. */
void net_channel_close(net_channel *channel);

/* Returns a pointer to space for `bytes` more bytes at the end of the output queue. The caller writes there and then
 * calls net_channel_commit, which appends the bytes. Returns NULL if there is no memory; then the channel has failed.
 */
char *net_channel_reserve(net_channel *channel, size_t bytes);
void net_channel_commit(net_channel *channel, size_t bytes);
/* Appends a whole message to the output queue. */
void net_channel_send(net_channel *channel, net_type type, unsigned count, uint64_t tag, const void *body,
                      size_t bytes);

/* The following two functions return 0 or more on success, and -1 if the channel has failed; then channel->why contains
 * the reason. */
int net_channel_flush(net_channel *channel);   /* sends as much of the output queue as the socket accepts */
int net_channel_receive(net_channel *channel); /* reads from the socket; returns 1 if data has arrived, 0 if not */
bool net_channel_wants_to_send(const net_channel *channel);
size_t net_channel_queued(const net_channel *channel);

/* Returns the length of the message that is arriving, or 0 if its head has not arrived yet. */
size_t net_channel_next_length(const net_channel *channel);

/* Returns true if net_channel_next would return a message or an error, not 0. */
bool net_channel_has_message(const net_channel *channel);

/* Fetches the next message of the input queue. Returns 1 if it has set `head` and `body`, which stay valid until the
 * next call for this channel; 0 if no complete message has arrived; -1 if the data is not a valid message. */
int net_channel_next(net_channel *channel, bool to_client, net_head *head, const char **body);

#endif
