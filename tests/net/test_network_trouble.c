/* Peers that take nothing, ask for what is not theirs, fork at a bad moment, or were stopped: each harms itself at most. */
#define _GNU_SOURCE
#include "base/sanitizer.h"
#include "client/client.h"
#include "fabric/net/link.h"
#include "fabric/tcp.h"
#include "pool/superblock.h"
#include "task/team.h"
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


/* ---- Who takes nothing ---- */

#define ANSWER (60u << 10)

/* A request as large as its answer. */
static void put_read(net_channel *channel, uint64_t tag) {
    static char body[ANSWER + 16 * NET_VERB_BYTES], zeros[NET_FREE_BYTES];
    far_verb verb = {.kind = FAR_READ, .length = ANSWER};
    char *end = net_verb_put(body, &verb, 0, ANSWER);
    verb = (far_verb){.kind = FAR_WRITE, .length = NET_FREE_BYTES, .local = zeros};
    unsigned count = 1;
    for (; count < ANSWER / NET_FREE_BYTES; count++)
        end = net_verb_put(end, &verb, 0, verb.length);
    net_channel_send(channel, NET_BATCH, count, tag, body, (size_t)(end - body));
}


/* Sends until the node listens no more, and nothing moves for a while. */
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
        assert_true(net_channel_fill(channel) >= 0);
        while (net_channel_next(channel, true, &head, &body) > 0)
            assert_true(head.type == NET_RESULTS && head.tag == ++got);
    }
    return got;
}


/* Who does not take its answers, or takes them slowly, is not listened to: what it asked for lies in its own queue, not
 * in the node's. And nothing is forgotten. */
static void who_takes_no_answers_is_not_served(void **state) {
    (void)state;
    wire g;
    const uint64_t most = 2000; /* 120 MB of answers, if the node made them all */
    wire_up(&g, "");
    unsigned long before = kilobytes_of(g.node.pid);
    net_link link = wire_dial(g.node.address, NET_FOR_SESSION);
    uint64_t sent = send_until_it_is_full(&link.channel, 0, most, 30), got = 0;
    for (unsigned turn = 0; turn < 40; turn++) { /* some answers for more requests */
        got = take_answers(&link.channel, got, got + 20 < sent ? got + 20 : sent);
        sent = send_until_it_is_full(&link.channel, sent, most, 2);
    }
    for (uint64_t ran = 1, last = 0; ran != last; usleep(200000)) { /* until the node has done what it does */
        last = ran;
        ran = daemon_look(g.node.address).batches;
    }
    unsigned long after = kilobytes_of(g.node.pid);
    if (!FAR_ASAN && !FAR_TSAN)
        assert_in_range(after - before, 0, 16 * 1024);
    assert_int_equal(take_answers(&link.channel, got, sent), sent);
    net_channel_close(&link.channel);
    wire_down(&g);
}


/* Many notes for a listener that stands still: a bounded number of bytes waits for it; when it looks it is told that
 * something happened. */
static void notes_do_not_pile_up(void **state) {
    (void)state;
    wire g;
    const unsigned turns = 2500, rings = 200; /* 16 MB of notes */
    wire_up(&g, "");
    net_link still = wire_dial(g.node.address, NET_FOR_SESSION), bell = wire_dial(g.node.address, NET_FOR_SESSION);
    net_address address;
    char error[128];
    net_address_parse(g.node.address, strlen(g.node.address), &address, error, sizeof(error));
    net_channel_send(&still.channel, NET_LISTEN, 0, 0, NULL, 0);
    assert_ok(net_link_call(&still, &address, NET_PING, NULL, 0, NET_PONG, NULL, 0, 5000));
    unsigned long before = kilobytes_of(g.node.pid);
    for (unsigned i = 0; i < turns; i++) {
        for (unsigned k = 0; k < rings; k++)
            net_channel_send(&bell.channel, NET_RING, 0, 0, NULL, 0);
        assert_ok(net_link_call(&bell, &address, NET_PING, NULL, 0, NET_PONG, NULL, 0, 20000));
    }
    if (!FAR_ASAN && !FAR_TSAN)
        assert_in_range(kilobytes_of(g.node.pid) - before, 0, 1024);
    net_head head = {0};
    const char *body;
    net_channel_send(&still.channel, NET_PING, 0, 7, NULL, 0);
    net_channel_flush(&still.channel);
    bool noted = false;
    while (head.type != NET_PONG) { /* all that waited, then the answer */
        struct pollfd one = {.fd = still.channel.socket, .events = POLLIN};
        assert_true(poll(&one, 1, -1) > 0 && net_channel_fill(&still.channel) >= 0);
        while (head.type != NET_PONG && net_channel_next(&still.channel, true, &head, &body) > 0)
            noted |= head.type == NET_NOTE;
    }
    assert_true(noted);
    net_channel_close(&still.channel);
    net_channel_close(&bell.channel);
    wire_down(&g);
}


/* ---- Who asks for what is not its own ---- */

static void a_look_is_no_client(void **state) {
    (void)state;
    wire g;
    static const net_type types[] = {NET_LISTEN, NET_RING, NET_RELEASE, NET_EVICT, NET_CLAIM};
    wire_up(&g, "");
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        net_link link = wire_dial(g.node.address, NET_FOR_LOOK);
        net_claim claim = {.id = 1, .generation = 1};
        bool empty = types[i] != NET_EVICT && types[i] != NET_CLAIM;
        uint64_t refused = daemon_look(g.node.address).refused;
        net_channel_send(&link.channel, types[i], 0, 0, empty ? NULL : &claim, empty ? 0 : sizeof(claim));
        net_channel_flush(&link.channel);
        struct pollfd one = {.fd = link.channel.socket, .events = POLLIN};
        while (net_channel_fill(&link.channel) >= 0) /* until it is closed */
            assert_true(poll(&one, 1, -1) > 0);
        assert_int_equal(daemon_look(g.node.address).refused, refused + 1);
        net_channel_close(&link.channel);
    }
    wire_down(&g);
}


/* ---- Who forks ---- */

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


/* The child has a copy of a socket whose handshake is under way, and does not know of it. It must not keep the
 * parent's connection alive: a dead parent would never be found dead. */
static void a_fork_during_the_handshake_leaves_no_copy(void **state) {
    (void)state;
    wire g;
    pthread_t thread;
    wire_up(&g, "");
    unsigned before = sockets_of_this_process();
    kill(g.node.pid, SIGSTOP); /* so that the handshake does not end */
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
    while (daemon_look(g.node.address).connections > 1) /* this look is one */
        continue;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    wire_down(&g);
}


static _Atomic int forks_at = -1; /* the descriptor before whose close this process forks */
static _Atomic pid_t forked;
static pthread_t forker;


static void *fork_now(void *arg) {
    (void)arg;
    pid_t child = fork();
    if (child == 0) { /* ends by itself: it outlives the thread that is its parent */
        alarm(30);
        pause();
    }
    atomic_store(&forked, child);
    return NULL;
}


/* In place of the C library's: gives a fork the time to come between what happens before this close and the close. */
int close(int descriptor) {
    if (atomic_load(&forks_at) == descriptor) {
        atomic_store(&forks_at, -1);
        pthread_create(&forker, NULL, fork_now, NULL);
        for (unsigned i = 0; i < 300 && atomic_load(&forked) == 0; i++)
            usleep(1000);
    }
    return (int)syscall(SYS_close, descriptor);
}


/* However a connection ends, a fork comes before its sockets are closed, and the child knows of them, or after. */
static void a_fork_at_the_end_leaves_no_copy(void **state) {
    (void)state;
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
        while (daemon_look(g.node.address).connections > 1) /* this look is one */
            continue;
        kill(atomic_load(&forked), SIGKILL);
        waitpid(atomic_load(&forked), NULL, 0);
        wire_down(&g);
    }
}


/* ---- Who was stopped ---- */

/* The time of a node begins when it is asked, which is in the poll: a client that stood still between posting and that
 * has waited for nothing. */
static void standing_still_before_the_poll_is_not_silence(void **state) {
    (void)state;
    wire g;
    uint64_t word;
    wire_up(&g, "?timeout=2s");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    far_verb verb = {.kind = FAR_READ, .length = 8, .local = &word};
    far_batch batch = {.verbs = &verb, .count = 1, .done = wire_batch_is_done};
    g.fabric->ops->post(g.conn, &batch);
    assert_true(batch.pending);
    usleep(2100000);
    kill(g.node.pid, SIGSTOP); /* so that the answer is not there at once */
    for (unsigned turn = 0; turn < 20; turn++) {
        g.fabric->ops->poll(g.conn);
        g.fabric->ops->wait(g.conn, far_host_now(g.fabric->host) + 10000000);
    }
    assert_true(batch.pending);
    kill(g.node.pid, SIGCONT);
    wire_finish(&g, &batch);
    wire_down(&g);
}


/* One slow answer when the pool was opened does not make a handle sleepy for ever. */
static void ticks_have_a_cap(void **state) {
    (void)state;
    wire g;
    wire_up(&g, "");
    g.fabric->rtt = 20000;
    assert_int_equal(far_tick(g.fabric), 1000000); /* as near */
    g.fabric->rtt = 100000;
    assert_int_equal(far_tick(g.fabric), 4000000); /* follows the round trip */
    g.fabric->rtt = 300000000;
    assert_int_equal(far_tick(g.fabric), 20000000);
    wire_down(&g);
}


/* ---- Who is dead ---- */

static uint64_t claim_at(net_link *link, const char *where, net_claim claim) {
    net_address address;
    net_claimed claimed;
    char error[128];
    net_address_parse(where, strlen(where), &address, error, sizeof(error));
    assert_ok(
        net_link_call(link, &address, NET_CLAIM, &claim, sizeof(claim), NET_CLAIMED, &claimed, sizeof(claimed), 5000));
    assert_int_equal(claimed.verdict, 0);
    return claimed.claim;
}


static void send_write(net_channel *channel, uint64_t offset, uint64_t value) {
    char body[NET_VERB_BYTES + 8];
    far_verb verb = {.kind = FAR_WRITE, .length = 8, .addr = offset, .local = &value};
    net_verb_put(body, &verb, 0, 8);
    net_channel_send(channel, NET_BATCH, 1, 9, body, sizeof(body));
    net_channel_flush(channel);
}


/* Of two memory nodes only node 0 has seen the end of a session. When that is said to be dead, the other one has cut it
 * too, though its connection there is as good as ever: nothing that comes by it has an effect. */
static void the_dead_are_cut_at_every_node(void **state) {
    (void)state;
    wire g = {0};
    daemon_node nodes[2];
    char uri[160];
    const uint64_t at = 1 << 20;
    for (unsigned i = 0; i < 2; i++)
        assert_true(daemon_start(&nodes[i], NULL, "--size " SIZE));
    snprintf(uri, sizeof(uri), "tcp://%s,%s", nodes[0].address, nodes[1].address);
    assert_ok(far_fabric_open(uri, &g.fabric));
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    const daemon_node *first = daemon_look(nodes[0].address).node == 0 ? &nodes[0] : &nodes[1];
    const daemon_node *other = first == &nodes[0] ? &nodes[1] : &nodes[0];
    net_link here = wire_dial(first->address, NET_FOR_SESSION), there = wire_dial(other->address, NET_FOR_SESSION);
    uint64_t claim = claim_at(&here, first->address, (net_claim){.id = 5, .generation = 1});
    claim_at(&there, other->address, (net_claim){.id = 5, .generation = 1, .claim = claim});
    send_write(&there.channel, at, 1);
    while (wire_read(&g, far_addr_make(1, at)) != 1)
        continue;
    assert_int_equal(wire_ask(&g, FAR_ASK_DEAD, 5, 1), 0);
    net_channel_close(&here.channel);
    while (wire_ask(&g, FAR_ASK_DEAD, 5, 1) == 0)
        continue;
    send_write(&there.channel, at, 2);
    struct pollfd one = {.fd = there.channel.socket, .events = POLLIN};
    net_head head = {0};
    const char *body;
    while (net_channel_fill(&there.channel) >= 0 && poll(&one, 1, -1) > 0) /* until it is closed, or all was answered */
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


/* ---- Who sleeps until it is told ---- */

static void want_sweep(const char *where) {
    net_link link = wire_dial(where, NET_FOR_SESSION);
    char body[NET_VERB_BYTES + 8];
    far_verb verb = {.kind = FAR_FAA, .length = 8, .addr = FAR_SUPER_WANTED, .swap = 1};
    net_verb_put(body, &verb, 0, 8);
    net_channel_send(&link.channel, NET_BATCH, 1, 1, body, sizeof(body));
    take_answers(&link.channel, 0, 1);
    net_channel_close(&link.channel);
}


/* A handle's thread sleeps until it is told. Whoever looks at the pool in its place, and sees that something is to be
 * done later, must wake it: nobody else would look again. */
static void what_another_saw_wakes_who_sleeps(void **state) {
    (void)state;
    daemon_node node;
    far_pool *pool;
    char uri[128];
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1; /* this test is the other one, and looks for the token that wakes the thread */
    assert_true(daemon_start(&node, NULL, "--size " SIZE));
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_ok(far_pool_open(uri, &options, &pool));
    pool->next_look = 0;
    while (far_housekeeping(pool) > 0 || far_epoch_is_awake(pool) || atomic_load(&pool->restless))
        usleep(1000);
    if (far_parker_arm(&pool->parker))
        far_parker_disarm(&pool->parker); /* no token is left */
    want_sweep(node.address);
    pool->next_look = 0;
    while (!atomic_load(&pool->restless))
        far_housekeeping(pool);
    assert_false(far_parker_arm(&pool->parker)); /* there is a token */
    far_pool_close(pool);
    assert_int_equal(daemon_stop(&node), 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_takes_no_answers_is_not_served),
        cmocka_unit_test(notes_do_not_pile_up),
        cmocka_unit_test(a_look_is_no_client),
        cmocka_unit_test(a_fork_during_the_handshake_leaves_no_copy),
        cmocka_unit_test(a_fork_at_the_end_leaves_no_copy),
        cmocka_unit_test(standing_still_before_the_poll_is_not_silence),
        cmocka_unit_test(ticks_have_a_cap),
        cmocka_unit_test(the_dead_are_cut_at_every_node),
        cmocka_unit_test(what_another_saw_wakes_who_sleeps),
    };
    return cmocka_run_group_tests_name("net/trouble", tests, NULL, NULL);
}
