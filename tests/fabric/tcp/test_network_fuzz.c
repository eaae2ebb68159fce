/* Sends mutated messages to a daemon: from strangers, concurrently with a normal client; from a session that holds a
 * claim; and from a client that may only read. The sender of an invalid message loses its
 * connection at most; the daemon continues to run, and the client notices nothing. The environment variable FUZZ gives
 * the number of messages (default: some thousand). The test is most useful with a daemon that was built with the
 * address sanitizer. */
#define _GNU_SOURCE
#include "base/random.h"
#include "fabric/node/memory.h"
#include "guest.h"
#include "network_rig.h"
#include "test.h"
#include "wire.h"

#include <poll.h>
#include <stdlib.h>

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


static uint64_t messages_to_send(uint64_t usual) {
    return getenv("FUZZ") ? strtoull(getenv("FUZZ"), NULL, 10) : usual;
}


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


/* Flips some bits, cuts off some bytes, or writes a wrong length at offset `first`, where a message begins. */
static void mutate_stream(stream *s, size_t first, far_random *random) {
    for (uint64_t flips = far_random_below(random, 4); flips > 0; flips--)
        s->bytes[far_random_below(random, s->used)] ^= (char)(1u << far_random_below(random, 8));
    if (far_random_chance(random, 1, 8))
        s->used -= far_random_below(random, s->used);
    if (far_random_chance(random, 1, 8) && s->used >= 64) {
        uint32_t length = (uint32_t)far_random_next(random) >> far_random_below(random, 32);
        memcpy(s->bytes + first, &length, sizeof(length));
    }
}


static void make_stream(stream *s, far_random *random) {
    net_hello hello = {.magic = NET_MAGIC, .protocol = NET_PROTOCOL, .purpose = (uint32_t)far_random_below(random, 2)};
    s->used = 0;
    append_message(s, NET_HELLO, 0, &hello, sizeof(hello));
    for (unsigned i = 0; i < MESSAGES; i++)
        put_message(s, random);
    mutate_stream(s, NET_HEAD_BYTES + sizeof(hello), random);
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
    uint64_t messages = messages_to_send(8000);
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


/* ---- Mutated messages after a valid hello ---- */

static void make_later_stream(stream *s, far_random *random) {
    s->used = 0;
    for (unsigned i = 0; i < MESSAGES; i++)
        put_message(s, random);
    mutate_stream(s, 0, random);
}


/* Sends the stream on a connection that has sent its hello, and waits until the node has handled it and has closed the
 * connection. */
static void send_on_link(net_link *link, const stream *s) {
    struct linger at_once = {1, 0};
    struct pollfd one = {.fd = link->channel.socket, .events = POLLIN};
    char *room = net_channel_reserve(&link->channel, s->used);
    memcpy(room, s->bytes, s->used);
    net_channel_commit(&link->channel, s->used);
    net_channel_send(&link->channel, NET_TYPES, 0, 0, NULL, 0); /* an invalid message, at which the node closes */
    setsockopt(link->channel.socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    net_head head;
    const char *body;
    bool half_closed = false;
    while (net_channel_flush(&link->channel) == 0 && net_channel_receive(&link->channel) >= 0) {
        while (net_channel_next(&link->channel, true, &head, &body) > 0)
            continue;
        /* A message with a wrong length may wait for bytes that never come. */
        if (!half_closed && net_channel_queued(&link->channel) == 0)
            half_closed = shutdown(link->channel.socket, SHUT_WR) == 0;
        one.events = (short)(POLLIN | (net_channel_queued(&link->channel) > 0 ? POLLOUT : 0));
        assert_true(poll(&one, 1, 60000) >= 0);
    }
    net_channel_close(&link->channel);
}


typedef struct claimed_nodes { /* a pool of two nodes with memory files */
    daemon_node nodes[2];      /* indexed by node number */
    char paths[2][64];
} claimed_nodes;


static void start_claimed_nodes(claimed_nodes *p) {
    char uri[160];
    for (unsigned i = 0; i < 2; i++) {
        snprintf(p->paths[i], sizeof(p->paths[i]), "/dev/shm/farindex-fuzz-%d-%u", (int)getpid(), i);
        unlink(p->paths[i]);
        assert_true(daemon_start(&p->nodes[i], NULL, "--size 16M --threads 2 --memory %s", p->paths[i]));
    }
    snprintf(uri, sizeof(uri), "tcp://%s,%s", p->nodes[0].address, p->nodes[1].address);
    put_and_get(uri);
    if (daemon_read_status(p->nodes[0].address).node == 0)
        return;
    claimed_nodes other = *p;
    for (unsigned i = 0; i < 2; i++) {
        p->nodes[i] = other.nodes[1 - i];
        memcpy(p->paths[i], other.paths[1 - i], sizeof(p->paths[i]));
    }
}


static void call_node(net_link *link, const char *where, net_type type, const void *body, size_t bytes,
                      net_type expected, void *answer, size_t answer_bytes) {
    net_address address;
    char error[128];
    assert_int_equal(net_address_parse(where, strlen(where), &address, error, sizeof(error)), 0);
    assert_ok(net_link_call(link, &address, type, body, bytes, expected, answer, answer_bytes, 60000));
}


/* Opens connections to both nodes and claims this id at both. */
static void claim_at_both(const claimed_nodes *p, unsigned id, net_link links[2]) {
    net_claim wanted = {.id = id, .generation = 1};
    for (unsigned node = 0; node < 2; node++) {
        net_claimed claimed;
        links[node] = wire_dial(p->nodes[node].address, NET_FOR_SESSION);
        call_node(&links[node], p->nodes[node].address, NET_CLAIM, &wanted, sizeof(wanted), NET_CLAIMED, &claimed,
                  sizeof(claimed));
        assert_int_equal(claimed.verdict, NET_GRANTED);
        wanted.claim = claimed.claim;
        wanted.proof = claimed.proof;
    }
}


typedef struct kept_state { /* content of the memory file of a node besides the memory */
    net_file_header header;
    net_ledger ledger;
} kept_state;


static void read_kept_state(const char *path, kept_state *state) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(&state->header, sizeof(state->header), 1, file), 1);
    assert_int_equal(fseek(file, NET_LEDGER_AT, SEEK_SET), 0);
    assert_int_equal(fread(&state->ledger, sizeof(state->ledger), 1, file), 1);
    fclose(file);
}


#define SENDERS_FROM 0x2000u /* range of the ids that the senders claim; no bit flips lead from one to BYSTANDER */
#define SENDERS      0x1000u
#define BYSTANDER    9u

/* Sessions with valid claims send mutated messages to both nodes. They may change the memory, their own ids, and at node
 * 0 any free id. They may not change the header of a memory file, nor the claims of another id at node 1: a mutated
 * NET_FENCE or NET_CLAIM has no valid proof. A session that only waits keeps its claim at both nodes. */
TEST(mutated_messages_of_a_session_stay_within_its_rights) {
    static kept_state before[2], after[2];
    claimed_nodes p;
    net_link links[2], bystander[2];
    net_liveness liveness;
    far_random random;
    stream s;
    uint64_t messages = messages_to_send(10000);
    start_claimed_nodes(&p);
    claim_at_both(&p, BYSTANDER, bystander);
    for (unsigned node = 0; node < 2; node++)
        read_kept_state(p.paths[node], &before[node]);
    far_random_seed(&random, SEED + 1);
    for (uint64_t i = 0; i < messages / MESSAGES / 2; i++) {
        claim_at_both(&p, SENDERS_FROM + (unsigned)(i % SENDERS), links);
        for (unsigned node = 0; node < 2; node++) {
            make_later_stream(&s, &random);
            send_on_link(&links[node], &s);
        }
    }
    for (unsigned node = 0; node < 2; node++) {
        read_kept_state(p.paths[node], &after[node]);
        assert_memory_equal(&before[node].header, &after[node].header, sizeof(before[node].header));
        call_node(&bystander[node], p.nodes[node].address, NET_PING, NULL, 0, NET_PONG, NULL, 0);
    }
    assert_in_range(after[0].ledger.drawn, before[0].ledger.drawn, before[0].ledger.drawn + 2 * messages);
    for (unsigned id = 0; id < NET_IDS; id++) {
        assert_int_equal(after[1].ledger.seats[id].fenced, before[1].ledger.seats[id].fenced);
        if (id < SENDERS_FROM || id >= SENDERS_FROM + SENDERS)
            assert_int_equal(after[1].ledger.seats[id].claim, before[1].ledger.seats[id].claim);
    }
    net_claim pair = {.id = BYSTANDER, .generation = 1};
    net_head head;
    const char *body;
    net_channel_send(&bystander[0].channel, NET_QUERY, 1, 1, &pair, sizeof(pair));
    assert_int_equal(net_channel_flush(&bystander[0].channel), 0);
    while (net_channel_next(&bystander[0].channel, true, &head, &body) == 0)
        assert_true(net_channel_receive(&bystander[0].channel) >= 0);
    memcpy(&liveness, body, sizeof(liveness));
    assert_int_equal(liveness.lives, 1);
    for (unsigned node = 0; node < 2; node++) {
        net_channel_close(&bystander[node].channel);
        assert_int_equal(daemon_stop(&p.nodes[node]), 0);
        unlink(p.paths[node]);
    }
}


static char *read_whole_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *content = malloc(*bytes);
    assert_non_null(content);
    assert_int_equal(fread(content, 1, *bytes, file), *bytes);
    fclose(file);
    return content;
}


/* A client that may only read sends mutated messages after its hello, inside TLS. Not a byte of the memory file changes. */
TEST(mutated_messages_of_a_reader_change_nothing) {
    daemon_node node;
    far_random random;
    stream s;
    net_tls_context *tls;
    net_address address;
    size_t bytes;
    char path[64], secret[64], read_secret[64], uri[256], error[128];
    uint64_t messages = messages_to_send(10000);
    snprintf(path, sizeof(path), "/dev/shm/farindex-fuzz-reader-%d", (int)getpid());
    snprintf(secret, sizeof(secret), "/tmp/farindex-fuzz-secret-%d", (int)getpid());
    snprintf(read_secret, sizeof(read_secret), "/tmp/farindex-fuzz-read-secret-%d", (int)getpid());
    unlink(path);
    daemon_secret(secret, "0123456789abcdef0123456789abcdef");
    daemon_secret(read_secret, "abcdef0123456789abcdef0123456789");
    assert_true(daemon_start(&node, NULL, "--size 4M --threads 2 --memory %s --secret %s --read-secret %s", path,
                             secret, read_secret));
    snprintf(uri, sizeof(uri), "tcp://%s?secret=%s", node.address, secret);
    put_and_get(uri);
    char *before = read_whole_file(path, &bytes);
    assert_ok(net_tls_open(&(net_tls_config){.secret = read_secret}, false, &tls));
    assert_int_equal(net_address_parse(node.address, strlen(node.address), &address, error, sizeof(error)), 0);
    far_random_seed(&random, SEED + 2);
    for (uint64_t i = 0; i < messages / MESSAGES; i++) {
        net_link link;
        net_dial_options how = {.tls = tls, .purpose = (net_purpose)far_random_below(&random, 2), .timeout_ms = 60000};
        assert_ok(net_links_open(&link, &address, 1, &how));
        make_later_stream(&s, &random);
        send_on_link(&link, &s);
    }
    char *after = read_whole_file(path, &bytes);
    assert_memory_equal(before, after, bytes);
    free(before);
    free(after);
    net_tls_close(tls);
    put_and_get(uri);
    assert_int_equal(daemon_stop(&node), 0);
    unlink(path);
    unlink(secret);
    unlink(read_secret);
}
