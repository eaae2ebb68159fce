/* Partitions, in a network namespace of the test: a client reaches the memory nodes by addresses of their own, whose way is
 * cut by rules of routing, both ways or one; the others go by 127.0.0.1. Who is cut off is found dead after the lease,
 * not before every node has cut it, and does nothing when the way is there again. Packets that are lost for a moment harm
 * nobody. Without the right to make namespaces it says so, and tests nothing. By default one of them; with PARTITIONS in the environment all. */
#define _GNU_SOURCE
#include "daemons.h"
#include "guest.h"
#include "left_out.h"
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
#define LEASE 2.0 /* seconds */

#define NODES 2

typedef struct shared { /* with the client */
    _Atomic uint64_t puts;
    _Atomic int result;
} shared;

typedef struct net {
    daemon_node nodes[NODES];
    unsigned ports[NODES];
    char uri[256], far_uri[256]; /* ours, and that of the client which is cut off */
} net;

static shared *seen;


static int shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int shell(const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line) - 20, format, args);
    va_end(args);
    strcat(line, " >/dev/null 2>&1");
    return system(line);
}


/* The rule for addresses of this host stands first: it must make room for others. */
static bool set_ways(void) {
    return shell("ip link set lo up && ip addr add 10.77.0.1/32 dev lo && ip addr add 10.77.0.2/32 dev lo && "
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


/* A client that puts for ever, on the way that will be cut. */
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


/* The way between that client and this node. TCP by its number: its name stands in a file that not every host has. */
static void cut(const net *n, unsigned node, way how, bool cut) {
    const char *verb = cut ? "add" : "del";
    if (how != CUT_FROM_NODE)
        assert_int_equal(
            shell("ip rule %s pref 10 to 10.77.0.%u ipproto 6 dport %u blackhole", verb, node + 1, n->ports[node]), 0);
    if (how != CUT_TO_NODE)
        assert_int_equal(
            shell("ip rule %s pref 11 from 10.77.0.%u ipproto 6 sport %u blackhole", verb, node + 1, n->ports[node]),
            0);
}


static unsigned number_of_node_0(const net *n) {
    return daemon_look(n->nodes[0].address).node == 0 ? 0 : 1;
}


/* The way to one node is cut: the client loses itself, or node 0 cuts it, and after that nothing of it takes effect, also
 * when the way is there again. */
static void cut_off(unsigned which, way how) {
    net n;
    guest c;
    set_up(&n, "&timeout=1s", "2s");
    assert_ok(guest_enter(&c, n.uri, "smart"));
    pid_t writer = start_writer(&n);
    unsigned first = number_of_node_0(&n), node = which == 0 ? first : 1 - first;
    assert_int_equal(guest_living(&c), 4);
    cut(&n, node, how, true);
    double begun = daemon_seconds();
    while (guest_living(&c) > 2)
        usleep(10000);
    print_message("found dead after %.2f s\n", daemon_seconds() - begun);
    uint64_t values[KEYS];
    for (uint64_t key = 0; key < KEYS; key++) { /* whatever it had locked */
        values[key] = 1000000 + key;
        assert_ok(far_put(c.session, c.index, &key, sizeof(key), &values[key], sizeof(values[key])));
    }
    cut(&n, node, how, false);
    waitpid(writer, NULL, 0);
    int result = atomic_load(&seen->result);
    assert_true(result == FAR_ERR_UNREACHABLE || result == FAR_ERR_FENCED);
    usleep(1500000); /* what the kernels had still queued arrives */
    for (uint64_t key = 0; key < KEYS; key++)
        assert_value(c.session, c.index, &key, sizeof(key), &values[key], sizeof(values[key]));
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    tear_down(&n);
}


static void a_client_without_node_0(void **state) {
    (void)state;
    cut_off(0, CUT_BOTH);
}


static void a_client_without_another_node(void **state) {
    (void)state;
    cut_off(1, CUT_BOTH);
}


static void a_client_whose_messages_do_not_arrive(void **state) {
    (void)state;
    cut_off(0, CUT_TO_NODE);
    cut_off(1, CUT_TO_NODE);
}


static void a_client_that_gets_no_answers(void **state) {
    (void)state;
    cut_off(0, CUT_FROM_NODE);
    cut_off(1, CUT_FROM_NODE);
}


/* It waits for nothing, so it notices nothing; its host is silent, so node 0 cuts it after the lease. */
static void an_idle_client_that_is_cut_off(void **state) {
    (void)state;
    net n;
    guest c;
    set_up(&n, "", "2s");
    assert_ok(guest_enter(&c, n.uri, "smart"));
    pid_t writer = start_writer(&n);
    kill(writer, SIGSTOP);
    assert_int_equal(guest_living(&c), 4);
    cut(&n, number_of_node_0(&n), CUT_BOTH, true);
    double begun = daemon_seconds();
    while (guest_living(&c) > 2)
        usleep(10000);
    double span = daemon_seconds() - begun;
    assert_true(span > LEASE / 4); /* a stopped process is not dead: silence of its host is what counts */
    print_message("found dead after %.2f s\n", span);
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    tear_down(&n);
}


/* Kernels since 6.15 are told how rarely they may ask; others do so every two minutes, once a peer has been full for long. */
static bool kernel_asks_often(void) {
    int one = socket(AF_INET, SOCK_STREAM, 0), most = 1000;
    bool does = setsockopt(one, IPPROTO_TCP, 44 /* TCP_RTO_MAX_MS */, &most, sizeof(most)) == 0;
    close(one);
    return does;
}


/* It has no room for the answers that it asked for: the node asks whether it has some again, and is not answered. */
static void a_full_client_that_is_cut_off(void **state) {
    (void)state;
    net n;
    char where[64];
    set_up(&n, "", "2s");
    snprintf(where, sizeof(where), "10.77.0.1:%u", n.ports[0]);
    net_link full = wire_dial(where, NET_FOR_SESSION);
    wire_ask_for_too_much(&full.channel);
    /* Its host answers: it lives, however long it takes nothing. By itself the kernel would ask again 12 s later. */
    usleep(15000000);
    assert_int_equal(daemon_look(n.nodes[0].address).connections, 2);
    cut(&n, 0, CUT_BOTH, true);
    double begun = daemon_seconds();
    while (daemon_look(n.nodes[0].address).connections > 1) {
        assert_true(daemon_seconds() - begun < LEASE + (kernel_asks_often() ? 8 : 20));
        usleep(10000);
    }
    print_message("ended after %.2f s\n", daemon_seconds() - begun);
    cut(&n, 0, CUT_BOTH, false);
    net_channel_close(&full.channel);
    tear_down(&n);
}


/* Shorter than anybody waits: what was lost is sent again by the kernels, and the client goes on. */
static void lost_packets_harm_nobody(void **state) {
    (void)state;
    net n;
    guest c;
    set_up(&n, "&timeout=60s", "60s");
    assert_ok(guest_enter(&c, n.uri, "smart"));
    pid_t writer = start_writer(&n);
    for (unsigned round = 0; round < 9; round++) {
        cut(&n, round % NODES, (way)(round % 3), true);
        usleep(50000);
        cut(&n, round % NODES, (way)(round % 3), false);
        uint64_t before = atomic_load(&seen->puts);
        while (atomic_load(&seen->puts) < before + 10 && atomic_load(&seen->result) == 0)
            usleep(1000);
    }
    assert_int_equal(atomic_load(&seen->result), 0);
    assert_int_equal(guest_living(&c), 4);
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    assert_pool_is_sound(c.session);
    guest_leave(&c);
    tear_down(&n);
}


int main(void) {
    seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest some[] = {cmocka_unit_test(a_client_without_node_0)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_without_node_0),
        cmocka_unit_test(a_client_without_another_node),
        cmocka_unit_test(a_client_whose_messages_do_not_arrive),
        cmocka_unit_test(a_client_that_gets_no_answers),
        cmocka_unit_test(an_idle_client_that_is_cut_off),
        cmocka_unit_test(a_full_client_that_is_cut_off),
        cmocka_unit_test(lost_packets_harm_nobody),
    };
    if (unshare(CLONE_NEWNET) != 0) {
        left_out("partitions", "no right to make network namespaces here");
        return 0;
    }
    if (!set_ways()) {
        print_message("partitions: the ip command is missing (Debian: iproute2), or failed\n");
        return 1;
    }
    if (!getenv("PARTITIONS"))
        return cmocka_run_group_tests_name("net/partitions", some, NULL, NULL);
    return cmocka_run_group_tests_name("net/partitions", tests, NULL, NULL);
}
