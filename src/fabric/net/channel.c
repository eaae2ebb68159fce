/* Messages over a non-blocking socket, plain or with TLS (channel.h). */
#define _GNU_SOURCE
#include "fabric/net/channel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_ROOM 4096u
/* A queue with more allocated bytes than this frees its memory when it becomes empty. */
#define IDLE_ROOM_MAX (128u << 10)
#define RECEIVE_BYTES (64u << 10)


/* ---- Queues of bytes ---- */

static size_t queued_bytes(const net_bytes *bytes) {
    return bytes->end - bytes->begin;
}


static char *reserve_bytes(net_bytes *bytes, size_t more) {
    if (bytes->room - bytes->end >= more)
        return bytes->data + bytes->end;
    if (bytes->begin > 0) {
        memmove(bytes->data, bytes->data + bytes->begin, queued_bytes(bytes));
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


static void consume_bytes(net_bytes *bytes, size_t count) {
    bytes->begin += count;
    if (bytes->begin < bytes->end)
        return;
    bytes->begin = bytes->end = 0;
    if (bytes->room > IDLE_ROOM_MAX) {
        free(bytes->data);
        *bytes = (net_bytes){0};
    }
}


/* ---- The socket ---- */

static int fail_channel(net_channel *channel, const char *why) {
    if (!channel->why[0])
        snprintf(channel->why, sizeof(channel->why), "%s", why);
    return -1;
}


static int receive_from_socket(net_channel *channel, net_bytes *to, size_t least) {
    if (queued_bytes(to) == 0)
        consume_bytes(to, 0);
    char *room = reserve_bytes(to, least < RECEIVE_BYTES / 4 ? RECEIVE_BYTES / 4 : least);
    if (!room)
        return fail_channel(channel, "no memory");
    ssize_t got;
    do
        got = recv(channel->socket, room, to->room - to->end, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    channel->drained = got < (ssize_t)(to->room - to->end);
    if (got == 0)
        return fail_channel(channel, "the connection was closed");
    if (got < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : fail_channel(channel, strerror(errno));
    to->end += (size_t)got;
    channel->received += (uint64_t)got;
    return 1;
}


static int send_to_socket(net_channel *channel, net_bytes *from) {
    while (queued_bytes(from) > 0) {
        ssize_t put = send(channel->socket, from->data + from->begin, queued_bytes(from), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : fail_channel(channel, strerror(errno));
        channel->sent += (uint64_t)put;
        consume_bytes(from, (size_t)put);
    }
    return 0;
}


/* ---- TLS between queues and socket ---- */

/* Moves all bytes that TLS has to send (records, handshake messages, alerts) to encrypted_out. */
static int collect_encrypted(net_channel *channel) {
    size_t more;
    while ((more = net_tls_encrypted_bytes(channel->tls)) > 0) {
        char *room = reserve_bytes(&channel->encrypted_out, more);
        if (!room)
            return fail_channel(channel, "no memory");
        channel->encrypted_out.end += net_tls_take_encrypted(channel->tls, room, more);
    }
    return 0;
}


static int encrypt_output(net_channel *channel) {
    while (queued_bytes(&channel->out) > 0) {
        int put = net_tls_encrypt(channel->tls, channel->out.data + channel->out.begin, queued_bytes(&channel->out));
        if (put < 0)
            return fail_channel(channel, net_tls_error(channel->tls));
        if (put == 0)
            break; /* data is encrypted only after the handshake */
        consume_bytes(&channel->out, (size_t)put);
    }
    return collect_encrypted(channel);
}


static int decrypt_input(net_channel *channel) {
    net_bytes *raw = &channel->encrypted_in;
    int some = 0;
    for (;;) {
        size_t fed = net_tls_put_received(channel->tls, raw->data + raw->begin, queued_bytes(raw));
        if (fed)
            consume_bytes(raw, fed);
        char *room = reserve_bytes(&channel->in, RECEIVE_BYTES / 4);
        if (!room)
            return fail_channel(channel, "no memory");
        int got = net_tls_decrypt(channel->tls, room, channel->in.room - channel->in.end);
        if (got < 0) {
            collect_encrypted(channel); /* sends the alert by which TLS reports the failure to the peer */
            send_to_socket(channel, &channel->encrypted_out);
            return fail_channel(channel, net_tls_error(channel->tls));
        }
        if (got == 0 && (fed == 0 || queued_bytes(raw) == 0))
            break;
        channel->in.end += (size_t)got;
        some |= got > 0;
    }
    channel->handshake_done = net_tls_handshake_is_done(channel->tls);
    return some;
}


/* ---- The channel ---- */

void net_channel_init(net_channel *channel, int socket, net_tls *session) {
    *channel = (net_channel){.socket = socket, .tls = session, .handshake_done = !session};
}


void net_channel_close(net_channel *channel) {
    if (channel->socket >= 0)
        close(channel->socket);
    net_tls_free(channel->tls);
    net_bytes *all[] = {&channel->in, &channel->out, &channel->encrypted_in, &channel->encrypted_out};
    for (unsigned i = 0; i < 4; i++) {
        free(all[i]->data);
        *all[i] = (net_bytes){0};
    }
    channel->tls = NULL;
    channel->socket = -1;
}


char *net_channel_reserve(net_channel *channel, size_t bytes) {
    char *room = reserve_bytes(&channel->out, bytes);
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
        return fail_channel(channel, "no memory");
    if (!channel->tls)
        return send_to_socket(channel, &channel->out);
    if (encrypt_output(channel) < 0)
        return -1;
    return send_to_socket(channel, &channel->encrypted_out);
}


/* Returns how many bytes of the first message have not arrived yet; 0 if none are missing or its head is not complete.
 */
static size_t missing_bytes_of_message(const net_bytes *in) {
    int64_t length = net_message_length(in->data + in->begin, queued_bytes(in));
    return length > 0 && (size_t)length > queued_bytes(in) ? (size_t)length - queued_bytes(in) : 0;
}


int net_channel_receive(net_channel *channel) {
    if (!channel->tls)
        return receive_from_socket(channel, &channel->in, missing_bytes_of_message(&channel->in));
    int got = receive_from_socket(channel, &channel->encrypted_in, 0);
    if (got <= 0)
        return got;
    got = decrypt_input(channel);
    /* Flushing sends handshake messages of TLS, and data that waited for the end of the handshake. */
    if (got < 0 || net_channel_flush(channel) < 0)
        return -1;
    return got;
}


bool net_channel_wants_to_send(const net_channel *channel) {
    if (channel->tls)
        return queued_bytes(&channel->encrypted_out) > 0 ||
               (channel->handshake_done && queued_bytes(&channel->out) > 0);
    return queued_bytes(&channel->out) > 0;
}


size_t net_channel_queued(const net_channel *channel) {
    return queued_bytes(&channel->out) + queued_bytes(&channel->encrypted_out);
}


size_t net_channel_next_length(const net_channel *channel) {
    int64_t length = net_message_length(channel->in.data + channel->in.begin, queued_bytes(&channel->in));
    return length > 0 ? (size_t)length : 0;
}


bool net_channel_has_message(const net_channel *channel) {
    int64_t length = net_message_length(channel->in.data + channel->in.begin, queued_bytes(&channel->in));
    return length < 0 || (length > 0 && (uint64_t)length <= queued_bytes(&channel->in));
}


int net_channel_next(net_channel *channel, bool to_client, net_head *head, const char **body) {
    net_bytes *in = &channel->in;
    int64_t length = net_message_length(in->data + in->begin, queued_bytes(in));
    if (length < 0)
        return -1;
    if (length == 0 || (uint64_t)length > queued_bytes(in))
        return 0;
    memcpy(head, in->data + in->begin, sizeof(*head));
    if (!net_message_is_valid(head, to_client))
        return -1;
    *body = in->data + in->begin + NET_HEAD_BYTES;
    in->begin += (size_t)length; /* the bytes of the body stay valid until more data is received */
    return 1;
}
