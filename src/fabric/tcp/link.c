/* Connects to memory nodes (link.h). All nodes are dialled at once; each tries its endpoints one after the other, then
 * performs the TLS handshake, sends NET_HELLO and waits for NET_WELCOME. */
#define _GNU_SOURCE
#include "fabric/tcp/link.h"
#include "base/error.h"
#include "base/text.h"
#include "farindex.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef struct dial_state {
    net_endpoint endpoints[NET_ENDPOINTS_MAX];
    int count, next; /* number of endpoints, and the endpoint to try next */
    int socket;      /* the socket that is connecting; -1: none */
    /* ms: end of the whole attempt, and the time when the next endpoint is tried if this one does not answer */
    uint64_t deadline, next_at;
    bool connected, welcomed;
    int error; /* errno of the last endpoint that failed */
} dial_state;


static uint64_t now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000u + (uint64_t)time.tv_nsec / 1000000u;
}


static int fail_link(const net_address *address, const char *why) {
    return far_fail(FAR_ERR_UNREACHABLE, "the memory node at %s: %s", address->text, why);
}


/* Starts connecting to the next endpoint of the host. Endpoints that fail at once are skipped. Each endpoint gets its
 * share of the remaining time, because one address of a host may be unreachable without an error (IPv6 in some
 * networks) while another works. */
static int dial_next_endpoint(dial_state *d, const net_address *address) {
    while (d->next < d->count) {
        const net_endpoint *endpoint = &d->endpoints[d->next++];
        uint64_t now = now_ms(), left = now < d->deadline ? d->deadline - now : 0;
        d->next_at = now + left / (unsigned)(d->count - d->next + 1);
        d->socket = socket(endpoint->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (d->socket < 0) {
            d->error = errno;
            continue;
        }
        if (connect(d->socket, (const struct sockaddr *)&endpoint->address, endpoint->length) == 0 ||
            errno == EINPROGRESS)
            return 0;
        d->error = errno;
        close(d->socket);
        d->socket = -1;
    }
    return fail_link(address, strerror(d->error));
}


static int begin_dial(dial_state *d, const net_address *address, const net_dial_options *dial, uint64_t deadline) {
    d->socket = -1;
    d->deadline = deadline;
    d->count = net_address_resolve(address, false, d->endpoints);
    if (d->count < 0)
        return d->count;
    for (int i = 0; i < d->count; i++)
        if (!dial->tls && !dial->insecure && !net_endpoint_is_loopback(&d->endpoints[i]))
            return far_fail(FAR_ERR_INVALID, "uri: %s is another host: give secret=FILE, certificates, or insecure=1",
                            address->text);
    return dial_next_endpoint(d, address);
}


static int send_hello(net_link *link, dial_state *d, const net_address *address, const net_dial_options *dial) {
    far_name self;
    net_hello hello = {.magic = NET_MAGIC, .protocol = NET_PROTOCOL, .purpose = dial->purpose};
    net_tls *tls = dial->tls ? net_tls_new(dial->tls, address->host) : NULL;
    if (dial->tls && !tls)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for TLS");
    net_channel_init(&link->channel, d->socket, tls);
    d->socket = -1;
    d->connected = true;
    snprintf(hello.library, sizeof(hello.library), "%s", far_version());
    int err = net_socket_prepare(link->channel.socket, dial->timeout_ms);
    if (err == 0)
        err = net_socket_give_up_after(link->channel.socket, dial->timeout_ms);
    net_channel_send(&link->channel, NET_HELLO, 0, 0, &hello, sizeof(hello));
    far_name_self(&self);
    if (dial->purpose == NET_FOR_SESSION)
        net_channel_send(&link->channel, NET_IDENTITY, 0, 0, &self, sizeof(self));
    if (err == 0 && net_channel_flush(&link->channel) < 0)
        err = fail_link(address, link->channel.why);
    return err;
}


/* Returns true if this endpoint has not answered in its share of the time and there are other endpoints. */
static bool endpoint_is_overdue(const dial_state *d, uint64_t now) {
    return !d->connected && d->next < d->count && now >= d->next_at;
}


static int skip_endpoint(dial_state *d, const net_address *address) {
    close(d->socket);
    d->socket = -1;
    return dial_next_endpoint(d, address);
}


static int finish_connect(net_link *link, dial_state *d, const net_address *address, const net_dial_options *dial) {
    socklen_t length = sizeof(d->error);
    if (getsockopt(d->socket, SOL_SOCKET, SO_ERROR, &d->error, &length) < 0)
        d->error = errno;
    if (d->error == 0)
        return send_hello(link, d, address, dial);
    return skip_endpoint(d, address);
}


static int fail_as_refused(const net_address *address, const net_head *head, const char *body) {
    char text[NET_TEXT_MAX + 1];
    snprintf(text, sizeof(text), "%.*s", (int)(head->length - NET_HEAD_BYTES), body);
    far_make_printable(text);
    return far_fail(FAR_ERR_UNSUPPORTED, "the memory node at %s refuses: %s", address->text, text);
}


static int read_welcome(net_link *link, dial_state *d, const net_address *address) {
    net_head head;
    const char *body;
    int filled = net_channel_receive(&link->channel), got = net_channel_next(&link->channel, true, &head, &body);
    if (got > 0 && head.type == NET_REFUSED)
        return fail_as_refused(address, &head, body);
    if (got < 0 || (got > 0 && head.type != NET_WELCOME))
        return far_fail(FAR_ERR_UNSUPPORTED, "the server at %s is not a farindex node", address->text);
    if (got == 0 && filled < 0)
        return far_fail(FAR_ERR_UNREACHABLE, "the memory node at %s: %s%s", address->text, link->channel.why,
                        !link->channel.tls ? " in the handshake (does it ask for a secret or a certificate?)"
                        : !link->channel.handshake_done && !strstr(link->channel.why, "handshake") ? " in the handshake"
                                                                                                   : "");
    if (got == 0)
        return net_channel_flush(&link->channel) < 0 ? fail_link(address, link->channel.why) : 0;
    memcpy(&link->welcome, body, sizeof(link->welcome));
    const net_welcome *w = &link->welcome;
    if (w->magic != NET_MAGIC || w->protocol != NET_PROTOCOL || w->granule != NET_GRANULE)
        return far_fail(FAR_ERR_UNSUPPORTED, "the memory node at %s uses protocol %u, but this library uses %u",
                        address->text, w->protocol, NET_PROTOCOL);
    if (w->bytes == 0 || w->bytes > FAR_NODE_BYTES_MAX || w->bytes % 8 != 0 || w->nodes > FAR_NODES_MAX ||
        (w->pool && w->node >= w->nodes))
        return far_fail(FAR_ERR_CORRUPT, "the memory node at %s sent an invalid welcome", address->text);
    d->welcomed = true;
    return 0;
}


/* Waits for events of the nodes that have not sent their welcome, and advances those that have events. Returns how many
 * nodes have not sent their welcome, or an error. */
static int advance_dials(net_link *links, dial_state *d, const net_address *addresses, unsigned count,
                         const net_dial_options *dial, uint64_t deadline) {
    struct pollfd waits[FAR_NODES_MAX];
    unsigned node_of[FAR_NODES_MAX], waiting = 0;
    uint64_t now = now_ms(), until = deadline;
    for (unsigned i = 0; i < count; i++)
        if (!d[i].welcomed) {
            if (endpoint_is_overdue(&d[i], now) && skip_endpoint(&d[i], &addresses[i]) < 0)
                return FAR_ERR_UNREACHABLE;
            if (!d[i].connected && d[i].next_at < until)
                until = d[i].next_at;
            bool writes = !d[i].connected || net_channel_wants_to_send(&links[i].channel);
            waits[waiting] = (struct pollfd){.fd = d[i].connected ? links[i].channel.socket : d[i].socket,
                                             .events = (short)((d[i].connected ? POLLIN : 0) | (writes ? POLLOUT : 0))};
            node_of[waiting++] = i;
        }
    if (waiting > 0 && now >= deadline)
        return fail_link(&addresses[node_of[0]], "does not answer in time");
    if (waiting == 0 || poll(waits, waiting, (int)(until > now ? until - now : 0)) <= 0)
        return (int)waiting;
    int err = 0;
    for (unsigned w = 0; w < waiting && err == 0; w++) {
        unsigned i = node_of[w];
        if (waits[w].revents == 0)
            continue;
        err = d[i].connected ? read_welcome(&links[i], &d[i], &addresses[i])
                             : finish_connect(&links[i], &d[i], &addresses[i], dial);
    }
    return err < 0 ? err : (int)waiting;
}


int net_links_open(net_link *links, const net_address *addresses, unsigned count, const net_dial_options *dial) {
    uint64_t deadline = now_ms() + dial->timeout_ms;
    dial_state *d = calloc(count, sizeof(*d));
    if (!d)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for connections");
    int left = 1;
    for (unsigned i = 0; i < count; i++) {
        links[i] = (net_link){.channel.socket = -1};
        d[i].socket = -1;
    }
    for (unsigned i = 0; i < count && left > 0; i++)
        if ((left = begin_dial(&d[i], &addresses[i], dial, deadline)) == 0)
            left = 1;
    while (left > 0)
        left = advance_dials(links, d, addresses, count, dial, deadline);
    for (unsigned i = 0; i < count; i++) {
        if (d[i].socket >= 0)
            close(d[i].socket);
        if (left < 0)
            net_channel_close(&links[i].channel);
    }
    free(d);
    return left;
}


/* Sends a message, of `count` verbs if it is a batch, and waits for its answer. */
static int call_node(net_link *link, const net_address *address, net_type type, unsigned count, const void *body,
                     size_t bytes, net_type expected, void *answer, size_t answer_bytes, unsigned timeout_ms) {
    uint64_t deadline = now_ms() + timeout_ms, now;
    net_head head;
    const char *got_body;
    int got;
    net_channel_send(&link->channel, type, count, 0, body, bytes);
    if (net_channel_flush(&link->channel) < 0)
        return fail_link(address, link->channel.why);
    while ((got = net_channel_next(&link->channel, true, &head, &got_body)) == 0) {
        bool writes = net_channel_wants_to_send(&link->channel);
        struct pollfd one = {.fd = link->channel.socket, .events = (short)(POLLIN | (writes ? POLLOUT : 0))};
        if ((now = now_ms()) >= deadline)
            return fail_link(address, "does not answer in time");
        poll(&one, 1, (int)(deadline - now));
        int filled = net_channel_receive(&link->channel);
        if (net_channel_flush(&link->channel) < 0 || (filled < 0 && !net_channel_has_message(&link->channel)))
            return fail_link(address, link->channel.why);
    }
    if (got > 0 && head.type == NET_REFUSED)
        return fail_as_refused(address, &head, got_body);
    if (got < 0 || head.type != expected || head.length - NET_HEAD_BYTES != answer_bytes)
        return far_fail(FAR_ERR_UNSUPPORTED, "the server at %s is not a farindex node", address->text);
    if (answer_bytes)
        memcpy(answer, got_body, answer_bytes);
    return 0;
}


int net_link_call(net_link *link, const net_address *address, net_type type, const void *body, size_t bytes,
                  net_type expected, void *answer, size_t answer_bytes, unsigned timeout_ms) {
    return call_node(link, address, type, 0, body, bytes, expected, answer, answer_bytes, timeout_ms);
}


int net_link_read(net_link *link, const net_address *address, far_addr addr, void *to, uint32_t bytes,
                  unsigned timeout_ms) {
    far_verb verb = {.kind = FAR_READ, .length = bytes, .addr = addr};
    char body[NET_VERB_BYTES];
    net_verb_put(body, &verb, 0, bytes);
    return call_node(link, address, NET_BATCH, 1, body, sizeof(body), NET_RESULTS, to, bytes, timeout_ms);
}
