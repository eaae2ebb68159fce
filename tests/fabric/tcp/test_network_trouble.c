/* Tests of clients that read nothing, send requests that they may not send, fork at a critical moment, or were stopped.
 * Each of these clients harms only itself. */
#define _GNU_SOURCE
#include "base/sanitizer.h"
#include "client/client.h"
#include "fabric/tcp/link.h"
#include "fabric/tcp/tcp.h"
#include "pool/format/superblock.h"
#include "task/session_list.h"
#include "test.h"
#include "wire.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE "16M"

static unsigned long kilobytes_of(pid_t pid) {
    char path[64], text[256];
    unsigned long kilobytes = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (fgets(text, sizeof(text), file))
        sscanf(text, "RssAnon: %lu", &kilobytes);
    fclose(file);
    return kilobytes;
}


/* Waits until the node has no connection except the one of daemon_read_status. A forked child that keeps a copy of a
 * socket lives longer than this waits. */
#define END_SECONDS   20
#define CHILD_SECONDS 60

static void wait_until_no_connection_is_left(const char *address) {
    double begun = daemon_seconds();
    while (daemon_read_status(address).connections > 1)
        assert_true(daemon_seconds() - begun < END_SECONDS);
}


/* ---- Clients that read no answers ---- */

#define ANSWER (60u << 10)

/* Appends a request that is as large as its answer. */
static void put_read(net_channel *channel, uint64_t tag) {
    static char body[ANSWER + 16 * NET_VERB_BYTES], zeros[NET_UNCLAIMED_WRITE_BYTES];
    far_verb verb = {.kind = FAR_READ, .length = ANSWER};
    char *end = net_verb_put(body, &verb, 0, ANSWER);
    verb = (far_verb){.kind = FAR_WRITE, .length = NET_UNCLAIMED_WRITE_BYTES, .local = zeros};
    unsigned count = 1;
    for (; count < ANSWER / NET_UNCLAIMED_WRITE_BYTES; count++)
        end = net_verb_put(end, &verb, 0, verb.length);
    net_channel_send(channel, NET_BATCH, count, tag, body, (size_t)(end - body));
}


/* Sends requests until the node reads no more and the sockets accept no data for a while. Returns the number of
 * requests. */
static uint64_t send_until_it_is_full(net_channel *channel, uint64_t sent, uint64_t most, unsigned patience) {
    for (unsigned still = 0; still < patience && sent < most;) {
        if (net_channel_queued(channel) == 0)
            put_read(channel, ++sent);
        assert_int_equal(net_channel_flush(channel), 0);
        still = net_channel_queued(channel) ? still + 1 : 0;
        if (still)
            usleep(10000);
    }
    return sent;
}


static uint64_t take_answers(net_channel *channel, uint64_t got, uint64_t count) {
    net_head head;
    const char *body;
    while (got < count) {
        struct pollfd one = {.fd = channel->socket, .events = POLLIN | (net_channel_queued(channel) ? POLLOUT : 0)};
        assert_true(poll(&one, 1, -1) > 0);
        assert_int_equal(net_channel_flush(channel), 0);
        assert_true(net_channel_receive(channel) >= 0);
        while (net_channel_next(channel, true, &head, &body) > 0)
            assert_true(head.type == NET_RESULTS && head.tag == ++got);
    }
    return got;
}


/* A client does not read its answers, or reads them slowly. The node stops reading its requests, so that they stay in
 * the client's own queue. No request is lost. Fails without SERVING_QUEUED_MAX. */
TEST(a_client_that_reads_no_answers_is_not_served) {
    wire g;
    const uint64_t most = 2000; /* 2000 requests would be 120 MB of answers if the node computed all of them. */
    wire_up(&g, "");
    unsigned long before = kilobytes_of(g.node.pid);
    net_link link = wire_dial(g.node.address, NET_FOR_SESSION);
    uint64_t sent = send_until_it_is_full(&link.channel, 0, most, 30), got = 0;
    for (unsigned turn = 0; turn < 40; turn++) { /* reads some answers and sends more requests */
        got = take_answers(&link.channel, got, got + 20 < sent ? got + 20 : sent);
        sent = send_until_it_is_full(&link.channel, sent, most, 2);
    }
    /* The loop ends when the node has executed all requests that it has read. */
    for (uint64_t ran = 1, last = 0; ran != last; usleep(200000)) {
        last = ran;
        ran = daemon_read_status(g.node.address).batches;
    }
    unsigned long after = kilobytes_of(g.node.pid);
    if (!FAR_ASAN && !FAR_TSAN)
        assert_in_range(after - before, 0, 16 * 1024);
    assert_int_equal(take_answers(&link.channel, got, sent), sent);
    net_channel_close(&link.channel);
    wire_down(&g);
}


/* A subscriber reads nothing while another client causes many notifications. The node queues only a bounded number of
 * bytes for the subscriber. When the subscriber reads, it is still notified that it should check all clients. Fails
 * without SERVING_NOTIFY_QUEUED_MAX. */
TEST(notifications_do_not_accumulate) {
    wire g;
    const unsigned turns = 2500, rings = 200; /* These would be 16 MB of notifications. */
    wire_up(&g, "");
    net_link still = wire_dial(g.node.address, NET_FOR_SESSION), bell = wire_dial(g.node.address, NET_FOR_SESSION);
    net_address address;
    char error[128];
    net_address_parse(g.node.address, strlen(g.node.address), &address, error, sizeof(error));
    net_channel_send(&still.channel, NET_SUBSCRIBE, 0, 0, NULL, 0);
    assert_ok(net_link_call(&still, &address, NET_PING, NULL, 0, NET_PONG, NULL, 0, 5000));
    unsigned long before = kilobytes_of(g.node.pid);
    for (unsigned i = 0; i < turns; i++) {
        for (unsigned k = 0; k < rings; k++)
            net_channel_send(&bell.channel, NET_NOTIFY_ALL, 0, 0, NULL, 0);
        assert_ok(net_link_call(&bell, &address, NET_PING, NULL, 0, NET_PONG, NULL, 0, 20000));
    }
    if (!FAR_ASAN && !FAR_TSAN)
        assert_in_range(kilobytes_of(g.node.pid) - before, 0, 1024);
    net_head head = {0};
    const char *body;
    net_channel_send(&still.channel, NET_PING, 0, 7, NULL, 0);
    net_channel_flush(&still.channel);
    bool was_notified = false;
    while (head.type != NET_PONG) { /* The loop reads all messages that were queued before the answer. */
        struct pollfd one = {.fd = still.channel.socket, .events = POLLIN};
        assert_true(poll(&one, 1, -1) > 0 && net_channel_receive(&still.channel) >= 0);
        while (head.type != NET_PONG && net_channel_next(&still.channel, true, &head, &body) > 0)
            was_notified |= head.type == NET_NOTIFICATION;
    }
    assert_true(was_notified);
    net_channel_close(&still.channel);
    net_channel_close(&bell.channel);
    wire_down(&g);
}


/* ---- Requests that are not allowed ---- */

/* A connection for inspection cannot subscribe, notify, claim, release or evict: it is refused and closed. Fails
 * without needs_session_purpose. */
TEST(an_inspection_cannot_act_as_a_session) {
    wire g;
    static const net_type types[] = {NET_SUBSCRIBE, NET_NOTIFY_ALL, NET_RELEASE, NET_EVICT, NET_CLAIM};
    wire_up(&g, "");
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        net_link link = wire_dial(g.node.address, NET_FOR_INSPECTION);
        net_claim claim = {.id = 1, .generation = 1};
        bool empty = types[i] != NET_EVICT && types[i] != NET_CLAIM;
        uint64_t refused = daemon_read_status(g.node.address).refused;
        net_channel_send(&link.channel, types[i], 0, 0, empty ? NULL : &claim, empty ? 0 : sizeof(claim));
        net_channel_flush(&link.channel);
        struct pollfd one = {.fd = link.channel.socket, .events = POLLIN};
        while (net_channel_receive(&link.channel) >= 0) /* The loop ends when the node closes the connection. */
            assert_true(poll(&one, 1, -1) > 0);
        assert_int_equal(daemon_read_status(g.node.address).refused, refused + 1);
        net_channel_close(&link.channel);
    }
    wire_down(&g);
}


/* ---- Forks ---- */

static void *connect_in_thread(void *arg) {
    wire *g = arg;
    assert_ok(g->fabric->ops->connect(g->fabric, &g->parker, &g->conn));
    return NULL;
}


static unsigned sockets_of_this_process(void) {
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        char target[64] = "";
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);
        count += length > 7 && strncmp(target, "socket:", 7) == 0;
    }
    closedir(folder);
    return count;
}


/* A process forks while another thread performs a handshake. The child has a copy of the socket that it does not know
 * about. It must not keep the parent's connection alive, because then a killed parent would never be found failed.
 * Fails without the comparison of fork counts in add_to_list. */
TEST(a_fork_during_the_handshake_leaves_no_copy) {
    wire g;
    pthread_t thread;
    wire_up(&g, "");
    unsigned before = sockets_of_this_process();
    kill(g.node.pid, SIGSTOP); /* The stopped daemon keeps the handshake from completing. */
    assert_int_equal(pthread_create(&thread, NULL, connect_in_thread, &g), 0);
    while (sockets_of_this_process() == before)
        usleep(1000);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pause();
        _exit(0);
    }
    kill(g.node.pid, SIGCONT);
    pthread_join(thread, NULL);
    g.fabric->ops->disconnect(g.conn);
    g.conn = NULL;
    wait_until_no_connection_is_left(g.node.address);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    wire_down(&g);
}


static _Atomic int forks_at = -1; /* descriptor before whose close the process forks; -1: none */
static _Atomic pid_t forked;
static pthread_t forker;


static void *fork_now(void *arg) {
    (void)arg;
    pid_t child = fork();
    if (child == 0) { /* The child ends by itself, because it outlives the thread that started it. */
        alarm(CHILD_SECONDS);
        pause();
    }
    atomic_store(&forked, child);
    return NULL;
}


/* Replaces the function of the C library: lets a fork happen immediately before this close. */
int close(int descriptor) {
    if (atomic_load(&forks_at) == descriptor) {
        atomic_store(&forks_at, -1);
        pthread_create(&forker, NULL, fork_now, NULL);
        for (unsigned i = 0; i < 300 && atomic_load(&forked) == 0; i++)
            usleep(1000);
    }
    return (int)syscall(SYS_close, descriptor);
}


/* A process forks while a connection ends. However the connection ends, a fork happens either before the socket is
 * closed, and the child knows the socket and closes it, or after it was closed. Either is enough here: tcp_disconnect
 * closes the sockets before it removes the connection from the list, and close_sockets holds conns_lock. Fails without
 * both. */
TEST(a_fork_at_the_end_leaves_no_copy) {
    for (int lost = 0; lost < 2; lost++) {
        wire g;
        wire_up(&g, "");
        assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
        atomic_store(&forked, 0);
        atomic_store(&forks_at, ((tcp_conn *)g.conn)->nodes[0].channel.socket);
        if (lost)
            g.fabric->ops->fence_self(g.conn);
        g.fabric->ops->disconnect(g.conn);
        g.conn = NULL;
        pthread_join(forker, NULL);
        wait_until_no_connection_is_left(g.node.address);
        kill(atomic_load(&forked), SIGKILL);
        waitpid(atomic_load(&forked), NULL, 0);
        wire_down(&g);
    }
}


/* ---- Stopped clients ---- */

/* A client is stopped after it has posted a batch and before its poll sends it. This time does not count towards the
 * timeout of the node, because nothing was sent. Fails if `since` is set by the post. */
TEST(a_stop_before_the_poll_does_not_count_as_silence) {
    wire g;
    uint64_t word;
    wire_up(&g, "?timeout=2s");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    far_verb verb = {.kind = FAR_READ, .length = 8, .local = &word};
    far_batch batch = {.verbs = &verb, .count = 1, .done = wire_batch_is_done};
    g.fabric->ops->post(g.conn, &batch);
    assert_true(batch.pending);
    usleep(2100000);
    kill(g.node.pid, SIGSTOP); /* The stopped daemon keeps the answer from arriving at once. */
    for (unsigned turn = 0; turn < 20; turn++) {
        g.fabric->ops->poll(g.conn);
        g.fabric->ops->wait(g.conn, far_host_now(g.fabric->host) + 10000000);
    }
    assert_true(batch.pending);
    kill(g.node.pid, SIGCONT);
    wire_finish(&g, &batch);
    wire_down(&g);
}


/* The tick of a handle has an upper limit, so a single slow answer when the pool was opened does not slow down its
 * housekeeping for ever. */
TEST(ticks_have_a_cap) {
    wire g;
    wire_up(&g, "");
    g.fabric->rtt = 20000;
    assert_int_equal(far_tick(g.fabric), 1000000); /* The tick is not shorter than 1 ms. */
    g.fabric->rtt = 100000;
    assert_int_equal(far_tick(g.fabric), 4000000); /* The tick is proportional to the round trip. */
    g.fabric->rtt = 300000000;
    assert_int_equal(far_tick(g.fabric), 20000000);
    wire_down(&g);
}


/* ---- Fencing at every node ---- */

static net_claimed claim_at(net_link *link, const char *where, net_claim claim) {
    net_address address;
    net_claimed claimed;
    char error[128];
    net_address_parse(where, strlen(where), &address, error, sizeof(error));
    assert_ok(
        net_link_call(link, &address, NET_CLAIM, &claim, sizeof(claim), NET_CLAIMED, &claimed, sizeof(claimed), 5000));
    assert_int_equal(claimed.verdict, 0);
    return claimed;
}


static void send_write(net_channel *channel, uint64_t offset, uint64_t value) {
    char body[NET_VERB_BYTES + 8];
    far_verb verb = {.kind = FAR_WRITE, .length = 8, .addr = offset, .local = &value};
    net_verb_put(body, &verb, 0, 8);
    net_channel_send(channel, NET_BATCH, 1, 9, body, sizeof(body));
    net_channel_flush(channel);
}


/* Client A has claimed a session at nodes 0 and 1. A: closes its connection to node 0. Client B: queries node 0 and
 * fences A at node 1; then `has_failed` is 1. A: sends a WRITE over its open connection to node 1. The WRITE must have
 * no effect. Fails without fence_at_later_nodes. */
TEST(failed_sessions_are_fenced_at_every_node) {
    wire g = {0};
    daemon_node nodes[2];
    char uri[160];
    const uint64_t at = 1 << 20;
    for (unsigned i = 0; i < 2; i++)
        assert_true(daemon_start(&nodes[i], NULL, "--size " SIZE));
    snprintf(uri, sizeof(uri), "tcp://%s,%s", nodes[0].address, nodes[1].address);
    assert_ok(far_fabric_open(uri, &g.fabric));
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    const daemon_node *first = daemon_read_status(nodes[0].address).node == 0 ? &nodes[0] : &nodes[1];
    const daemon_node *other = first == &nodes[0] ? &nodes[1] : &nodes[0];
    net_link here = wire_dial(first->address, NET_FOR_SESSION), there = wire_dial(other->address, NET_FOR_SESSION);
    net_claimed issued = claim_at(&here, first->address, (net_claim){.id = 5, .generation = 1});
    claim_at(&there, other->address,
             (net_claim){.id = 5, .generation = 1, .claim = issued.claim, .proof = issued.proof});
    send_write(&there.channel, at, 1);
    while (wire_read(&g, far_addr_make(1, at)) != 1)
        continue;
    assert_int_equal(wire_ask(&g, FAR_CONTROL_HAS_FAILED, 5, 1), 0);
    net_channel_close(&here.channel);
    while (wire_ask(&g, FAR_CONTROL_HAS_FAILED, 5, 1) == 0)
        continue;
    send_write(&there.channel, at, 2);
    struct pollfd one = {.fd = there.channel.socket, .events = POLLIN};
    net_head head = {0};
    const char *body;
    /* The loop ends when the connection is closed, or the request was answered. */
    while (net_channel_receive(&there.channel) >= 0 && poll(&one, 1, -1) > 0)
        if (net_channel_next(&there.channel, true, &head, &body) > 0 && head.tag == 9 &&
            wire_read(&g, far_addr_make(1, at)) != 1)
            break;
    assert_int_equal(wire_read(&g, far_addr_make(1, at)), 1);
    net_channel_close(&there.channel);
    g.fabric->ops->disconnect(g.conn);
    g.fabric->ops->close(g.fabric);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(daemon_stop(&nodes[i]), 0);
}


/* ---- Waking the housekeeping thread ---- */

static void want_sweep(const char *where) {
    net_link link = wire_dial(where, NET_FOR_SESSION);
    char body[NET_VERB_BYTES + 8];
    far_verb verb = {.kind = FAR_FAA, .length = 8, .addr = FAR_SUPER_LOSSES, .swap = 1};
    net_verb_put(body, &verb, 0, 8);
    net_channel_send(&link.channel, NET_BATCH, 1, 1, body, sizeof(body));
    take_answers(&link.channel, 0, 1);
    net_channel_close(&link.channel);
}


/* The housekeeping thread of an idle handle sleeps until it is notified. Another thread runs housekeeping in its place
 * and notices that a collection is wanted later. It must wake the housekeeping thread, because no other event would. */
TEST(work_seen_by_another_thread_wakes_housekeeping) {
    daemon_node node;
    far_pool *pool;
    char uri[128];
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    /* Without a housekeeping thread, this test takes the place of the other thread, and checks whether the parker was
     * unparked. */
    options.no_thread = 1;
    assert_true(daemon_start(&node, NULL, "--size " SIZE));
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_ok(far_pool_open(uri, &options, &pool));
    pool->next_look = 0;
    while (far_housekeeping(pool) > 0 || far_epoch_is_active(pool) || atomic_load(&pool->has_work_when_quiescent))
        usleep(1000);
    if (far_parker_arm(&pool->parker))
        far_parker_disarm(&pool->parker); /* This consumes an earlier unpark. */
    want_sweep(node.address);
    pool->next_look = 0;
    while (!atomic_load(&pool->has_work_when_quiescent))
        far_housekeeping(pool);
    assert_false(far_parker_arm(&pool->parker)); /* The parker cannot be armed, because it was unparked. */
    far_pool_close(pool);
    assert_int_equal(daemon_stop(&node), 0);
}
