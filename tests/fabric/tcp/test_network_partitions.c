/* Tests of partitions, in a network namespace of the test. One client reaches the memory nodes by special addresses.
 * Routing rules block the routes to these addresses, in both directions or in one. Other clients use 127.0.0.1. A
 * client that is cut off is found failed after the lease, but not before every node has fenced it, and none of its
 * verbs takes effect when the route works again. Packets that are lost for a moment harm no session. Without the
 * permission to create namespaces, the program reports that and tests nothing. By default one test runs; with
 * PARTITIONS in the environment all tests run. */
#define _GNU_SOURCE
#include "daemons.h"
#include "guest.h"
#include "left_out.h"
#include "test.h"
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE  "16M"
#define KEYS  64
#define LEASE 2.0 /* lease of the daemons in seconds */

#define NODES 2

typedef struct shared { /* memory shared with the client process */
    _Atomic uint64_t puts;
    _Atomic int result;
} shared;

typedef struct net {
    daemon_node nodes[NODES];
    unsigned ports[NODES];
    char uri[256], far_uri[256]; /* `uri`: for the other clients; `far_uri`: for the client with the blocked route */
} net;

static shared *seen;


static int run_shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int run_shell(const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line) - 20, format, args);
    va_end(args);
    strcat(line, " >/dev/null 2>&1");
    return system(line);
}


/* Adds the addresses, and moves the rule for local addresses to a lower priority, so that blocking rules can precede
 * it. */
static bool set_routes(void) {
    return run_shell("ip link set lo up && ip addr add 10.77.0.1/32 dev lo && ip addr add 10.77.0.2/32 dev lo && "
                     "ip rule add pref 100 lookup local && ip rule del pref 0") == 0;
}


static void set_up(net *n, const char *options, const char *lease) {
    memset(n, 0, sizeof(*n));
    memset(seen, 0, sizeof(*seen));
    for (unsigned i = 0; i < NODES; i++) {
        assert_true(
            daemon_start(&n->nodes[i], NULL, "--size " SIZE " --insecure --lease %s --listen 0.0.0.0:0", lease));
        n->ports[i] = (unsigned)atoi(strchr(n->nodes[i].address, ':') + 1);
        snprintf(n->nodes[i].address, sizeof(n->nodes[i].address), "127.0.0.1:%u", n->ports[i]);
    }
    snprintf(n->uri, sizeof(n->uri), "tcp://127.0.0.1:%u,127.0.0.1:%u", n->ports[0], n->ports[1]);
    snprintf(n->far_uri, sizeof(n->far_uri), "tcp://10.77.0.1:%u,10.77.0.2:%u?insecure=1%s", n->ports[0], n->ports[1],
             options);
}


static void tear_down(net *n) {
    for (unsigned i = 0; i < NODES; i++)
        assert_int_equal(daemon_stop(&n->nodes[i]), 0);
}


/* Starts a client that puts until it gets an error, over the route that will be blocked. */
static pid_t start_writer(const net *n) {
    pid_t child = fork();
    if (child == 0) {
        guest c;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int err = guest_enter(&c, n->far_uri, NULL);
        for (uint64_t i = 0; err == 0; i++) {
            uint64_t key = i % KEYS;
            err = far_put(c.session, c.index, &key, sizeof(key), &i, sizeof(i));
            if (err == 0)
                atomic_store(&seen->puts, i + 1);
        }
        atomic_store(&seen->result, err);
        _exit(0);
    }
    while (atomic_load(&seen->puts) < 50 && atomic_load(&seen->result) == 0)
        usleep(1000);
    assert_int_equal(atomic_load(&seen->result), 0);
    return child;
}


typedef enum { CUT_BOTH, CUT_TO_NODE, CUT_FROM_NODE } way;


/* Blocks or restores the route between the client with the special addresses and this node. TCP is given by its number,
 * because its name is in a file that not every host has. */
static void block_route(const net *n, unsigned node, way how, bool block) {
    const char *verb = block ? "add" : "del";
    if (how != CUT_FROM_NODE)
        assert_int_equal(
            run_shell("ip rule %s pref 10 to 10.77.0.%u ipproto 6 dport %u blackhole", verb, node + 1, n->ports[node]),
            0);
    if (how != CUT_TO_NODE)
        assert_int_equal(run_shell("ip rule %s pref 11 from 10.77.0.%u ipproto 6 sport %u blackhole", verb, node + 1,
                                   n->ports[node]),
                         0);
}


static unsigned number_of_node_0(const net *n) {
    return daemon_read_status(n->nodes[0].address).node == 0 ? 0 : 1;
}


/* Blocks the route of the client to one node. Either the client gives up its session, or node 0 fences the session.
 * After that none of the client's verbs takes effect, even when the route works again. */
static void check_client_that_is_cut_off(unsigned which, way how) {
    net n;
    guest c;
    set_up(&n, "&timeout=1s", "2s");
    assert_ok(guest_enter(&c, n.uri, "smart"));
    pid_t writer = start_writer(&n);
    unsigned first = number_of_node_0(&n), node = which == 0 ? first : 1 - first;
    assert_int_equal(guest_count_live_sessions(&c), 4);
    block_route(&n, node, how, true);
    double begun = daemon_seconds();
    while (guest_count_live_sessions(&c) > 2)
        usleep(10000);
    print_message("found failed after %.2f s\n", daemon_seconds() - begun);
    uint64_t values[KEYS];
    for (uint64_t key = 0; key < KEYS; key++) { /* The loop also writes the keys that the cut-off client had locked. */
        values[key] = 1000000 + key;
        assert_ok(far_put(c.session, c.index, &key, sizeof(key), &values[key], sizeof(values[key])));
    }
    block_route(&n, node, how, false);
    waitpid(writer, NULL, 0);
    int result = atomic_load(&seen->result);
    assert_true(result == FAR_ERR_UNREACHABLE || result == FAR_ERR_FENCED);
    usleep(1500000); /* In this time data that the kernels had queued arrives. */
    for (uint64_t key = 0; key < KEYS; key++)
        assert_value(c.session, c.index, &key, sizeof(key), &values[key], sizeof(values[key]));
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    tear_down(&n);
}


/* The client cannot reach node 0. */
TEST(a_client_without_node_0) {
    check_client_that_is_cut_off(0, CUT_BOTH);
}


/* The client reaches node 0 but not the other node. */
TEST(a_client_without_another_node) {
    check_client_that_is_cut_off(1, CUT_BOTH);
}


/* The messages of the client do not reach a node, but messages of the node reach the client. */
TEST(a_client_whose_messages_do_not_arrive) {
    check_client_that_is_cut_off(0, CUT_TO_NODE);
    check_client_that_is_cut_off(1, CUT_TO_NODE);
}


/* The messages of a node do not reach the client, but messages of the client reach the node. */
TEST(a_client_that_gets_no_answers) {
    check_client_that_is_cut_off(0, CUT_FROM_NODE);
    check_client_that_is_cut_off(1, CUT_FROM_NODE);
}


/* The client is stopped and waits for nothing, so it notices nothing. Its host is silent, so node 0 fences it after the
 * lease. */
TEST(an_idle_client_that_is_cut_off) {
    net n;
    guest c;
    set_up(&n, "", "2s");
    assert_ok(guest_enter(&c, n.uri, "smart"));
    pid_t writer = start_writer(&n);
    kill(writer, SIGSTOP);
    assert_int_equal(guest_count_live_sessions(&c), 4);
    block_route(&n, number_of_node_0(&n), CUT_BOTH, true);
    double begun = daemon_seconds();
    while (guest_count_live_sessions(&c) > 2)
        usleep(10000);
    double span = daemon_seconds() - begun;
    /* the stopped process itself counts as alive; only the silence of its host ends the session */
    assert_true(span > LEASE / 4);
    print_message("found failed after %.2f s\n", span);
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    tear_down(&n);
}


/* Returns true if the interval of window probes can be limited, as in kernels since 6.15. Other kernels send them as
 * rarely as every two minutes to a peer with a buffer that has been full for long. */
static bool kernel_asks_often(void) {
    int one = socket(AF_INET, SOCK_STREAM, 0), most = 1000;
    bool does = setsockopt(one, IPPROTO_TCP, 44 /* TCP_RTO_MAX_MS */, &most, sizeof(most)) == 0;
    close(one);
    return does;
}


/* The client has no buffer space for the answers that it has requested, and its route is blocked. The node sends window
 * probes that are not acknowledged, and ends the connection. Fails without close_silent_peers. */
TEST(a_full_client_that_is_cut_off) {
    net n;
    char where[64];
    set_up(&n, "", "2s");
    snprintf(where, sizeof(where), "10.77.0.1:%u", n.ports[0]);
    net_link full = wire_dial(where, NET_FOR_SESSION);
    wire_ask_for_too_much(&full.channel);
    /* While its host answers, the client counts as alive. An unlimited kernel would send the next probe 12 s later. */
    usleep(15000000);
    assert_int_equal(daemon_read_status(n.nodes[0].address).connections, 2);
    block_route(&n, 0, CUT_BOTH, true);
    double begun = daemon_seconds();
    while (daemon_read_status(n.nodes[0].address).connections > 1) {
        assert_true(daemon_seconds() - begun < LEASE + (kernel_asks_often() ? 8 : 20));
        usleep(10000);
    }
    print_message("ended after %.2f s\n", daemon_seconds() - begun);
    block_route(&n, 0, CUT_BOTH, false);
    net_channel_close(&full.channel);
    tear_down(&n);
}


/* Routes are blocked for less time than any timeout. The kernels send lost packets again, and the client continues
 * without an error. */
TEST(lost_packets_harm_no_session) {
    net n;
    guest c;
    set_up(&n, "&timeout=60s", "60s");
    assert_ok(guest_enter(&c, n.uri, "smart"));
    pid_t writer = start_writer(&n);
    for (unsigned round = 0; round < 9; round++) {
        block_route(&n, round % NODES, (way)(round % 3), true);
        usleep(50000);
        block_route(&n, round % NODES, (way)(round % 3), false);
        uint64_t before = atomic_load(&seen->puts);
        while (atomic_load(&seen->puts) < before + 10 && atomic_load(&seen->result) == 0)
            usleep(1000);
    }
    assert_int_equal(atomic_load(&seen->result), 0);
    assert_int_equal(guest_count_live_sessions(&c), 4);
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    tear_down(&n);
}


/* Without the environment variable PARTITIONS only one of the tests runs, which takes a second. */
TEST_ARGUMENTS(argc, argv) {
    seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (unshare(CLONE_NEWNET) != 0) {
        left_out("partitions", "network namespaces are not permitted here");
        return 0;
    }
    if (!set_routes()) {
        print_message("partitions: the ip command is missing (Debian: iproute2), or failed\n");
        return 1;
    }
    if (argc == 2)
        test_set_pattern(argv[1]);
    else if (!getenv("PARTITIONS"))
        test_set_pattern("a_client_without_node_0");
    return TEST_CONTINUE;
}
