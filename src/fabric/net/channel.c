/* Messages over a socket. */
#define _GNU_SOURCE
#include "fabric/net/channel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_ROOM 4096u
#define KEPT_ROOM  (128u << 10) /* an empty queue keeps so much room, and gives back more */
#define FILL_BYTES (64u << 10)


/* ---- Queues of bytes ---- */

static size_t queued(const net_bytes *bytes) {
    return bytes->end - bytes->begin;
}


static char *reserve(net_bytes *bytes, size_t more) {
    if (bytes->room - bytes->end >= more)
        return bytes->data + bytes->end;
    if (bytes->begin > 0) {
        memmove(bytes->data, bytes->data + bytes->begin, queued(bytes));
        bytes->end -= bytes->begin;
        bytes->begin = 0;
    }
    if (bytes->room - bytes->end >= more)
        return bytes->data + bytes->end;
    size_t room = bytes->room ? bytes->room : FIRST_ROOM;
    while (room - bytes->end < more)
        room *= 2;
    char *data = realloc(bytes->data, room);
    if (!data)
        return NULL;
    bytes->data = data;
    bytes->room = room;
    return data + bytes->end;
}


static void take(net_bytes *bytes, size_t count) {
    bytes->begin += count;
    if (bytes->begin < bytes->end)
        return;
    bytes->begin = bytes->end = 0;
    if (bytes->room > KEPT_ROOM) {
        free(bytes->data);
        *bytes = (net_bytes){0};
    }
}


/* ---- The socket ---- */

static int lose(net_channel *channel, const char *why) {
    if (!channel->why[0])
        snprintf(channel->why, sizeof(channel->why), "%s", why);
    return -1;
}


static int receive(net_channel *channel, net_bytes *to, size_t least) {
    if (queued(to) == 0)
        take(to, 0);
    char *room = reserve(to, least < FILL_BYTES / 4 ? FILL_BYTES / 4 : least);
    if (!room)
        return lose(channel, "no memory");
    ssize_t got;
    do
        got = recv(channel->socket, room, to->room - to->end, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    channel->drained = got < (ssize_t)(to->room - to->end);
    if (got == 0)
        return lose(channel, "the connection was closed");
    if (got < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : lose(channel, strerror(errno));
    to->end += (size_t)got;
    channel->received += (uint64_t)got;
    return 1;
}


static int transmit(net_channel *channel, net_bytes *from) {
    while (queued(from) > 0) {
        ssize_t put = send(channel->socket, from->data + from->begin, queued(from), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : lose(channel, strerror(errno));
        channel->sent += (uint64_t)put;
        take(from, (size_t)put);
    }
    return 0;
}


/* ---- TLS between the two ---- */

/* Moves what TLS wants to send (records, parts of the handshake, alerts) to raw_out. */
static int collect_sealed(net_channel *channel) {
    size_t more;
    while ((more = net_tls_sealed_bytes(channel->tls)) > 0) {
        char *room = reserve(&channel->raw_out, more);
        if (!room)
            return lose(channel, "no memory");
        channel->raw_out.end += net_tls_take_sealed(channel->tls, room, more);
    }
    return 0;
}


static int seal(net_channel *channel) {
    while (queued(&channel->out) > 0) {
        int put = net_tls_seal(channel->tls, channel->out.data + channel->out.begin, queued(&channel->out));
        if (put < 0)
            return lose(channel, net_tls_why(channel->tls));
        if (put == 0)
            break; /* not before the handshake is over */
        take(&channel->out, (size_t)put);
    }
    return collect_sealed(channel);
}


static int unseal(net_channel *channel) {
    net_bytes *raw = &channel->raw_in;
    int some = 0;
    for (;;) {
        size_t fed = net_tls_feed(channel->tls, raw->data + raw->begin, queued(raw));
        if (fed)
            take(raw, fed);
        char *room = reserve(&channel->in, FILL_BYTES / 4);
        if (!room)
            return lose(channel, "no memory");
        int got = net_tls_unseal(channel->tls, room, channel->in.room - channel->in.end);
        if (got < 0) {
            collect_sealed(channel); /* the alert that tells the peer */
            transmit(channel, &channel->raw_out);
            return lose(channel, net_tls_why(channel->tls));
        }
        if (got == 0 && (fed == 0 || queued(raw) == 0))
            break;
        channel->in.end += (size_t)got;
        some |= got > 0;
    }
    channel->greeted = net_tls_is_greeted(channel->tls);
    return some;
}


/* ---- The channel ---- */

void net_channel_init(net_channel *channel, int socket, net_tls *session) {
    *channel = (net_channel){.socket = socket, .tls = session, .greeted = !session};
}


void net_channel_close(net_channel *channel) {
    if (channel->socket >= 0)
        close(channel->socket);
    net_tls_free(channel->tls);
    net_bytes *all[] = {&channel->in, &channel->out, &channel->raw_in, &channel->raw_out};
    for (unsigned i = 0; i < 4; i++) {
        free(all[i]->data);
        *all[i] = (net_bytes){0};
    }
    channel->tls = NULL;
    channel->socket = -1;
}


char *net_channel_reserve(net_channel *channel, size_t bytes) {
    char *room = reserve(&channel->out, bytes);
    channel->out_of_memory |= !room;
    return room;
}


void net_channel_commit(net_channel *channel, size_t bytes) {
    channel->out.end += bytes;
}


void net_channel_send(net_channel *channel, net_type type, unsigned count, uint64_t tag, const void *body,
                      size_t bytes) {
    net_head head = {(uint32_t)(NET_HEAD_BYTES + bytes), (uint16_t)type, (uint16_t)count, tag};
    char *room = net_channel_reserve(channel, head.length);
    if (!room)
        return;
    memcpy(room, &head, sizeof(head));
    if (bytes)
        memcpy(room + sizeof(head), body, bytes);
    net_channel_commit(channel, head.length);
}


int net_channel_flush(net_channel *channel) {
    if (channel->out_of_memory)
        return lose(channel, "no memory");
    if (!channel->tls)
        return transmit(channel, &channel->out);
    if (seal(channel) < 0)
        return -1;
    return transmit(channel, &channel->raw_out);
}


/* How many bytes of the message at the front have not come yet; 0: none, or its head is not whole. */
static size_t missing(const net_bytes *in) {
    int64_t length = net_message_length(in->data + in->begin, queued(in));
    return length > 0 && (size_t)length > queued(in) ? (size_t)length - queued(in) : 0;
}


int net_channel_fill(net_channel *channel) {
    if (!channel->tls)
        return receive(channel, &channel->in, missing(&channel->in));
    int got = receive(channel, &channel->raw_in, 0);
    if (got <= 0)
        return got;
    got = unseal(channel);
    if (got < 0 || net_channel_flush(channel) < 0) /* the handshake, and what waited for it */
        return -1;
    return got;
}


bool net_channel_wants_to_send(const net_channel *channel) {
    if (channel->tls)
        return queued(&channel->raw_out) > 0 || (channel->greeted && queued(&channel->out) > 0);
    return queued(&channel->out) > 0;
}


size_t net_channel_queued(const net_channel *channel) {
    return queued(&channel->out) + queued(&channel->raw_out);
}


bool net_channel_has_message(const net_channel *channel) {
    int64_t length = net_message_length(channel->in.data + channel->in.begin, queued(&channel->in));
    return length < 0 || (length > 0 && (uint64_t)length <= queued(&channel->in));
}


int net_channel_next(net_channel *channel, bool to_client, net_head *head, const char **body) {
    net_bytes *in = &channel->in;
    int64_t length = net_message_length(in->data + in->begin, queued(in));
    if (length < 0)
        return -1;
    if (length == 0 || (uint64_t)length > queued(in))
        return 0;
    memcpy(head, in->data + in->begin, sizeof(*head));
    if (!net_message_is_sound(head, to_client))
        return -1;
    *body = in->data + in->begin + NET_HEAD_BYTES;
    in->begin += (size_t)length; /* the bytes stay until more is taken in */
    return 1;
}
