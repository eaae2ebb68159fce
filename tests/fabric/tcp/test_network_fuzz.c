/* Sends mutated messages to a daemon, concurrently with a normal client. The sender of an invalid message loses its
 * connection at most; the daemon continues to run, and the client notices nothing. The environment variable FUZZ gives
 * the number of messages (default: some thousand). The test is most useful with a daemon that was built with the
 * address sanitizer. */
#define _GNU_SOURCE
#include "base/random.h"
#include "daemons.h"
#include "guest.h"
#include "test.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGES 8 /* number of messages in each connection */
#define ROOM     (16u << 10)
#define SEED     42

/* A part of the pool that clients without a claim may write and that the pool does not use. Even if any two bits of
 * such an address are flipped, it is not the address of a word that describes the pool. */
#define FREE_AT 0xe00u

typedef struct stream {
    char bytes[ROOM];
    size_t used;
} stream;


static void append_message(stream *s, net_type type, unsigned count, const void *body, size_t bytes) {
    net_head head = {(uint32_t)(NET_HEAD_BYTES + bytes), (uint16_t)type, (uint16_t)count, s->used};
    memcpy(s->bytes + s->used, &head, sizeof(head));
    if (bytes > 0)
        memcpy(s->bytes + s->used + sizeof(head), body, bytes);
    s->used += head.length;
}


static void put_batch(stream *s, far_random *random) {
    char body[1024], payload[64] = {0};
    unsigned count = 1 + (unsigned)far_random_below(random, 6);
    char *at = body;
    for (unsigned i = 0; i < count; i++) {
        far_verb verb = {.kind = (uint8_t)far_random_below(random, FAR_VERB_KINDS),
                         .length = 8,
                         .addr = far_random_below(random, (NET_UNCLAIMED_WRITE_BYTES - FREE_AT - 64) / 8) * 8,
                         .local = payload};
        if (verb.kind <= FAR_WRITE)
            verb.length = 8 * (1 + (uint32_t)far_random_below(random, 8));
        if (verb.kind == FAR_WRITE || verb.kind > FAR_WRITE)
            verb.addr = FREE_AT + verb.addr;
        at = net_verb_put(at, &verb, 0, verb.length);
    }
    append_message(s, NET_BATCH, count, body, (size_t)(at - body));
}


static void put_message(stream *s, far_random *random) {
    net_claim claims[8] = {0};
    unsigned count = 1 + (unsigned)far_random_below(random, 8);
    /* The pairs {id, generation} name no existing session, even if some bits are flipped. */
    for (unsigned i = 0; i < count; i++)
        claims[i] = (net_claim){0x3700 + (uint32_t)far_random_below(random, 100), 0x5555, far_random_below(random, 50),
                                far_random_next(random)};
    switch (far_random_below(random, 8)) {
    case 0:
        append_message(s, NET_CLAIM, 0, claims, sizeof(claims[0]));
        break;
    case 1:
        append_message(s, NET_QUERY, count, claims, count * sizeof(claims[0]));
        break;
    case 2:
        append_message(s, NET_FENCE, count, claims, count * sizeof(claims[0]));
        break;
    case 3:
        append_message(s, far_random_chance(random, 1, 2) ? NET_EVICT : NET_NAME, 0, claims, sizeof(claims[0]));
        break;
    case 4:
        append_message(s, NET_RELEASE + (net_type)far_random_below(random, 15), 0, NULL, 0);
        break;
    default:
        put_batch(s, random);
        break;
    }
}


/* Flips some bits, cuts off some bytes, or writes a wrong length. */
static void mutate_stream(stream *s, far_random *random) {
    for (uint64_t flips = far_random_below(random, 4); flips > 0; flips--)
        s->bytes[far_random_below(random, s->used)] ^= (char)(1u << far_random_below(random, 8));
    if (far_random_chance(random, 1, 8))
        s->used -= far_random_below(random, s->used);
    if (far_random_chance(random, 1, 8) && s->used >= 64) {
        uint32_t length = (uint32_t)far_random_next(random) >> far_random_below(random, 32);
        /* This overwrites the length of the first message after the hello. */
        memcpy(s->bytes + 48, &length, sizeof(length));
    }
}


static void make_stream(stream *s, far_random *random) {
    net_hello hello = {.magic = NET_MAGIC, .protocol = NET_PROTOCOL, .purpose = (uint32_t)far_random_below(random, 2)};
    s->used = 0;
    append_message(s, NET_HELLO, 0, &hello, sizeof(hello));
    for (unsigned i = 0; i < MESSAGES; i++)
        put_message(s, random);
    mutate_stream(s, random);
}


/* Sends the stream and waits until the daemon has handled it and closed the connection. */
static void send_stream(const struct sockaddr_in *to, const stream *s) {
    /* A linger time of 0 ends the connection with a reset, so that the test does not run out of ports. */
    struct linger at_once = {1, 0};
    char rest[4096];
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(one, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    assert_int_equal(connect(one, (const struct sockaddr *)to, sizeof(*to)), 0);
    if (send(one, s->bytes, s->used, MSG_NOSIGNAL) >= 0 && shutdown(one, SHUT_WR) == 0)
        while (recv(one, rest, sizeof(rest), 0) > 0)
            continue;
    close(one);
}


/* The daemon handles all mutated messages without failing. A concurrent client puts without errors, no session is lost,
 * and its index and pool are sound. */
TEST(daemons_survive_mutated_messages) {
    daemon_node node;
    guest g;
    far_random random;
    stream s;
    char uri[128];
    uint64_t messages = getenv("FUZZ") ? strtoull(getenv("FUZZ"), NULL, 10) : 8000;
    assert_true(daemon_start(&node, NULL, "--size 16M --threads 2"));
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_ok(guest_enter(&g, uri, "dart"));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strchr(node.address, ':') + 1))};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    far_random_seed(&random, SEED);
    for (uint64_t i = 0; i < messages / MESSAGES; i++) {
        make_stream(&s, &random);
        send_stream(&to, &s);
        if (i % 50 == 0)
            assert_ok(far_put(g.session, g.index, &i, sizeof(i), &i, sizeof(i)));
    }
    assert_int_equal(guest_count_live_sessions(&g), 2);
    assert_index_is_sound(g.session, g.index);
    assert_pool_is_sound(g.session);
    guest_leave(&g);
    assert_int_equal(daemon_stop(&node), 0);
}
