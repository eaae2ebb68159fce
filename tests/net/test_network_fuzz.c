/* Mutated messages to a daemon beside a client at work: whoever sends them loses his connection at most; the daemon stays
 * up, and the client notices nothing. FUZZ in the environment says how many messages (default: some thousand); the
 * daemon is best built with the address sanitizer. */
#define _GNU_SOURCE
#include "base/random.h"
#include "daemons.h"
#include "guest.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#define MESSAGES 8 /* of a connection */
#define ROOM     (16u << 10)
#define SEED     42

/* Where those who are nobody may write, and a pool has nothing: whatever two bits of such an address are turned over, it is none of
 * the words that say what the pool is. */
#define FREE_AT 0xe00u

typedef struct stream {
    char bytes[ROOM];
    size_t used;
} stream;


static void put(stream *s, net_type type, unsigned count, const void *body, size_t bytes) {
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
                         .addr = far_random_below(random, (NET_FREE_BYTES - FREE_AT - 64) / 8) * 8,
                         .local = payload};
        if (verb.kind <= FAR_WRITE)
            verb.length = 8 * (1 + (uint32_t)far_random_below(random, 8));
        if (verb.kind == FAR_WRITE || verb.kind > FAR_WRITE)
            verb.addr = FREE_AT + verb.addr;
        at = net_verb_put(at, &verb, 0, verb.length);
    }
    put(s, NET_BATCH, count, body, (size_t)(at - body));
}


static void put_message(stream *s, far_random *random) {
    net_claim claims[8] = {0};
    unsigned count = 1 + (unsigned)far_random_below(random, 8);
    for (unsigned i = 0; i < count; i++) /* of nobody, also when some bits are turned over */
        claims[i] = (net_claim){0x3700 + (uint32_t)far_random_below(random, 100), 0x5555, far_random_below(random, 50)};
    switch (far_random_below(random, 8)) {
    case 0:
        put(s, NET_CLAIM, 0, claims, sizeof(claims[0]));
        break;
    case 1:
        put(s, NET_ASK, count, claims, count * sizeof(claims[0]));
        break;
    case 2:
        put(s, NET_CUT, count, claims, count * sizeof(claims[0]));
        break;
    case 3:
        put(s, far_random_chance(random, 1, 2) ? NET_EVICT : NET_NAME, 0, claims, sizeof(claims[0]));
        break;
    case 4:
        put(s, NET_RELEASE + (net_type)far_random_below(random, 15), 0, NULL, 0);
        break;
    default:
        put_batch(s, random);
        break;
    }
}


/* Some bits turned over, some bytes cut off, a length that lies. */
static void mutate(stream *s, far_random *random) {
    for (uint64_t flips = far_random_below(random, 4); flips > 0; flips--)
        s->bytes[far_random_below(random, s->used)] ^= (char)(1u << far_random_below(random, 8));
    if (far_random_chance(random, 1, 8))
        s->used -= far_random_below(random, s->used);
    if (far_random_chance(random, 1, 8) && s->used >= 64) {
        uint32_t length = (uint32_t)far_random_next(random) >> far_random_below(random, 32);
        memcpy(s->bytes + 48, &length, sizeof(length)); /* of the first message behind the hello */
    }
}


static void make_stream(stream *s, far_random *random) {
    net_hello hello = {.magic = NET_MAGIC, .protocol = NET_PROTOCOL, .purpose = (uint32_t)far_random_below(random, 2)};
    s->used = 0;
    put(s, NET_HELLO, 0, &hello, sizeof(hello));
    for (unsigned i = 0; i < MESSAGES; i++)
        put_message(s, random);
    mutate(s, random);
}


/* Until the daemon has done what it does with it, and closed. */
static void send_stream(const struct sockaddr_in *to, const stream *s) {
    struct linger at_once = {1, 0}; /* ports are not used up */
    char rest[4096];
    int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(one, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    assert_int_equal(connect(one, (const struct sockaddr *)to, sizeof(*to)), 0);
    if (send(one, s->bytes, s->used, MSG_NOSIGNAL) >= 0 && shutdown(one, SHUT_WR) == 0)
        while (recv(one, rest, sizeof(rest), 0) > 0)
            continue;
    close(one);
}


static void daemons_stand_what_strangers_send(void **state) {
    (void)state;
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
    assert_int_equal(guest_living(&g), 2);
    assert_index_is_sound(g.session, g.index);
    assert_pool_is_sound(g.session);
    guest_leave(&g);
    assert_int_equal(daemon_stop(&node), 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(daemons_stand_what_strangers_send),
    };
    return cmocka_run_group_tests_name("net/fuzz", tests, NULL, NULL);
}
