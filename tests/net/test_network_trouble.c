/* Peers that take nothing, ask for what is not theirs, fork at a bad moment, or were stopped: each harms itself at most. */
#define _GNU_SOURCE
#include "base/sanitizer.h"
#include "conform.h"
#include "daemons.h"
#include "fabric/net/link.h"
#include "fabric/tcp.h"
#include "task/team.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE "16M"

typedef struct ground { /* one daemon, and the fabric on it */
    daemon_node node;
    far_fabric *fabric;
    far_parker parker;
    far_conn *conn;
} ground;


static void set_up(ground *g, const char *options) {
    char uri[160];
    memset(g, 0, sizeof(*g));
    assert_true(daemon_start(&g->node, NULL, "--size " SIZE));
    snprintf(uri, sizeof(uri), "tcp://%s%s", g->node.address, options);
    assert_ok(far_fabric_open(uri, &g->fabric));
}


static void tear_down(ground *g) {
    if (g->conn)
        g->fabric->ops->disconnect(g->conn);
    g->fabric->ops->close(g->fabric);
    assert_int_equal(daemon_stop(&g->node), 0);
}


static net_link dial(const char *where, net_purpose purpose) {
    net_address address;
    net_link link;
    char error[128];
    net_dial how = {.purpose = purpose, .timeout_ms = 5000};
    assert_int_equal(net_address_parse(where, strlen(where), &address, error, sizeof(error)), 0);
    assert_ok(net_links_open(&link, &address, 1, &how));
    return link;
}


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

static void put_read(net_channel *channel, uint64_t tag) {
    char body[NET_VERB_BYTES];
    far_verb verb = {.kind = FAR_READ, .length = ANSWER};
    net_verb_put(body, &verb, 0, ANSWER);
    net_channel_send(channel, NET_BATCH, 1, tag, body, sizeof(body));
}


/* Sends until the node listens no more, and nothing moves for a while. */
static uint64_t send_until_it_is_full(net_channel *channel, uint64_t most) {
    uint64_t sent = 0;
    for (unsigned still = 0; still < 30 && sent < most;) {
        if (net_channel_queued(channel) == 0)
            put_read(channel, ++sent);
        assert_int_equal(net_channel_flush(channel), 0);
        still = net_channel_queued(channel) ? still + 1 : 0;
        if (still)
            usleep(10000);
    }
    return sent;
}


static uint64_t take_answers(net_channel *channel, uint64_t count) {
    net_head head;
    const char *body;
    uint64_t got = 0;
    while (got < count) {
        struct pollfd one = {.fd = channel->socket, .events = POLLIN | (net_channel_queued(channel) ? POLLOUT : 0)};
        assert_true(poll(&one, 1, 10000) > 0);
        assert_int_equal(net_channel_flush(channel), 0);
        assert_true(net_channel_fill(channel) >= 0);
        while (net_channel_next(channel, true, &head, &body) > 0)
            assert_true(head.type == NET_RESULTS && head.tag == ++got);
    }
    return got;
}


/* Who does not take its answers is not listened to: what it asked for lies in its own queue, not in the node's. And
 * nothing is forgotten. */
static void who_takes_no_answers_is_not_served(void **state) {
    (void)state;
    ground g;
    const uint64_t most = 2000; /* 120 MB of answers, if the node made them all */
    set_up(&g, "");
    unsigned long before = kilobytes_of(g.node.pid);
    net_link link = dial(g.node.address, NET_FOR_SESSION);
    uint64_t sent = send_until_it_is_full(&link.channel, most);
    for (uint64_t ran = 1, last = 0; ran != last; usleep(200000)) { /* until the node has done what it does */
        last = ran;
        ran = daemon_look(g.node.address).batches;
    }
    unsigned long after = kilobytes_of(g.node.pid);
    if (!FAR_ASAN && !FAR_TSAN)
        assert_in_range(after - before, 0, 16 * 1024);
    assert_int_equal(take_answers(&link.channel, sent), sent);
    net_channel_close(&link.channel);
    tear_down(&g);
}


/* Many notes for a listener that stands still: a bounded number of bytes waits for it; when it looks it is told that
 * something happened. */
static void notes_do_not_pile_up(void **state) {
    (void)state;
    ground g;
    const unsigned turns = 2500, rings = 200; /* 16 MB of notes */
    set_up(&g, "");
    net_link still = dial(g.node.address, NET_FOR_SESSION), bell = dial(g.node.address, NET_FOR_SESSION);
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
        assert_true(poll(&one, 1, 10000) > 0 && net_channel_fill(&still.channel) >= 0);
        while (head.type != NET_PONG && net_channel_next(&still.channel, true, &head, &body) > 0)
            noted |= head.type == NET_NOTE;
    }
    assert_true(noted);
    net_channel_close(&still.channel);
    net_channel_close(&bell.channel);
    tear_down(&g);
}


/* ---- Who asks for what is not its own ---- */

static void a_look_is_no_client(void **state) {
    (void)state;
    ground g;
    static const net_type types[] = {NET_LISTEN, NET_RING, NET_RELEASE, NET_EVICT, NET_CLAIM};
    set_up(&g, "");
    for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        net_link link = dial(g.node.address, NET_FOR_LOOK);
        net_claim claim = {.id = 1, .generation = 1};
        bool empty = types[i] != NET_EVICT && types[i] != NET_CLAIM;
        uint64_t refused = daemon_look(g.node.address).refused;
        net_channel_send(&link.channel, types[i], 0, 0, empty ? NULL : &claim, empty ? 0 : sizeof(claim));
        net_channel_flush(&link.channel);
        struct pollfd one = {.fd = link.channel.socket, .events = POLLIN};
        while (net_channel_fill(&link.channel) >= 0) /* until it is closed */
            assert_true(poll(&one, 1, 10000) > 0);
        assert_int_equal(daemon_look(g.node.address).refused, refused + 1);
        net_channel_close(&link.channel);
    }
    tear_down(&g);
}


/* ---- Who forks ---- */

static void *connect_in_thread(void *arg) {
    ground *g = arg;
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
    ground g;
    pthread_t thread;
    set_up(&g, "");
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
    double begun = daemon_seconds();
    while (daemon_look(g.node.address).connections > 1) /* this look is one */
        assert_true(daemon_seconds() - begun < 10);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    tear_down(&g);
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
        ground g;
        set_up(&g, "");
        assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
        atomic_store(&forked, 0);
        atomic_store(&forks_at, ((tcp_conn *)g.conn)->nodes[0].channel.socket);
        if (lost)
            g.fabric->ops->fence_self(g.conn);
        g.fabric->ops->disconnect(g.conn);
        g.conn = NULL;
        pthread_join(forker, NULL);
        double begun = daemon_seconds();
        while (daemon_look(g.node.address).connections > 1) /* this look is one */
            assert_true(daemon_seconds() - begun < 10);
        kill(atomic_load(&forked), SIGKILL);
        waitpid(atomic_load(&forked), NULL, 0);
        tear_down(&g);
    }
}


/* ---- Who was stopped ---- */

static void batch_is_done(far_batch *batch) {
    (void)batch;
}


/* The time of a node begins when it is asked, which is in the poll: a client that stood still between posting and that
 * has waited for nothing. */
static void standing_still_before_the_poll_is_not_silence(void **state) {
    (void)state;
    ground g;
    uint64_t word;
    set_up(&g, "?timeout=2s");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    far_verb verb = {.kind = FAR_READ, .length = 8, .local = &word};
    far_batch batch = {.verbs = &verb, .count = 1, .done = batch_is_done};
    g.fabric->ops->post(g.conn, &batch);
    assert_true(batch.pending);
    usleep(2100000);
    while (batch.pending) {
        if (g.fabric->ops->poll(g.conn) == 0)
            g.fabric->ops->wait(g.conn, FAR_TIME_NEVER);
    }
    assert_int_equal(batch.status, 0);
    tear_down(&g);
}


/* One slow answer when the pool was opened does not make a handle sleepy for ever. */
static void ticks_have_a_cap(void **state) {
    (void)state;
    ground g;
    set_up(&g, "");
    g.fabric->rtt = 20000;
    assert_int_equal(far_tick(g.fabric), 1000000); /* as near */
    g.fabric->rtt = 100000;
    assert_int_equal(far_tick(g.fabric), 4000000); /* follows the round trip */
    g.fabric->rtt = 300000000;
    assert_int_equal(far_tick(g.fabric), 20000000);
    tear_down(&g);
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
    };
    return cmocka_run_group_tests_name("net/trouble", tests, NULL, NULL);
}
