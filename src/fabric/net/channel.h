/* Messages in both directions over a socket that never blocks, plain or with TLS: net_channel_send and _reserve only queue,
 * net_channel_flush sends what the socket takes; net_channel_fill receives what is there, net_channel_next gives it out
 * message by message. */
#ifndef FAR_FABRIC_NET_CHANNEL_H
#define FAR_FABRIC_NET_CHANNEL_H

#include "fabric/net/tls.h"
#include "fabric/net/wire.h"

typedef struct net_bytes { /* a queue: [begin, end) of the room is in use */
    char *data;
    size_t begin, end, room;
} net_bytes;

typedef struct net_channel {
    int socket; /* -1: closed */
    net_bytes in, out;
    net_bytes raw_in, raw_out; /* with TLS: what stands on the wire */
    net_tls *tls;              /* NULL: plain */
    bool greeted;              /* the handshake of TLS is over */
    bool out_of_memory;
    bool drained;            /* the socket had no more when it was read last */
    uint64_t received, sent; /* bytes, as they stand on the wire */
    char why[160];           /* why the channel is lost */
} net_channel;

/* Takes the socket. session: of TLS, or NULL. */
void net_channel_init(net_channel *channel, int socket, net_tls *session);
void net_channel_close(net_channel *channel); /* twice does no harm */

/* Room for so many bytes at the end of what is to be sent; NULL: no memory (then the channel is lost). */
char *net_channel_reserve(net_channel *channel, size_t bytes);
void net_channel_commit(net_channel *channel, size_t bytes);
/* A whole message. */
void net_channel_send(net_channel *channel, net_type type, unsigned count, uint64_t tag, const void *body,
                      size_t bytes);

/* 0, or -1: the channel is lost, and channel->why says why. */
int net_channel_flush(net_channel *channel); /* sends as much as the socket takes */
int net_channel_fill(net_channel *channel);  /* takes in what is there; 1: some, 0: nothing */
bool net_channel_wants_to_send(const net_channel *channel);
size_t net_channel_queued(const net_channel *channel);

bool net_channel_has_message(const net_channel *channel); /* net_channel_next would not give 0 */

/* The next whole message: 1, and head and body are set, valid until the next call; 0: none is whole yet; -1: no
 * message. */
int net_channel_next(net_channel *channel, bool to_client, net_head *head, const char **body);

#endif
