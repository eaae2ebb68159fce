/* Tests of pools on real daemons over loopback: joining nodes to a pool, idle handles and daemons, many sessions and
 * nodes. */
#define _GNU_SOURCE
#include "base/sanitizer.h"
#include "fabric/node/server.h"
#include "left_out.h"
#include "network_rig.h"
#include "test.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>


/* ---- Joining nodes to a pool ---- */

/* After three nodes were joined to a pool, URIs with the nodes in any order open it. A URI with only two nodes is
 * refused. */
TEST(the_order_in_the_uri_does_not_matter) {
    daemon_node nodes[3];
    char uri[256];
    static const int orders[][3] = {{0, 1, 2}, {2, 0, 1}, {1, 0, 2}};
    for (int i = 0; i < 3; i++)
        assert_true(daemon_start(&nodes[i], NULL, "--size " SIZE));
    for (int i = 0; i < 3; i++) {
        const int *o = orders[i];
        snprintf(uri, sizeof(uri), "tcp://%s,%s,%s", nodes[o[0]].address, nodes[o[1]].address, nodes[o[2]].address);
        put_and_get(uri);
    }
    snprintf(uri, sizeof(uri), "tcp://%s,%s", nodes[0].address, nodes[1].address);
    assert_not_opened(uri, FAR_ERR_CORRUPT, "belongs to a pool with 3 memory nodes, but the URI names 2");
    for (int i = 0; i < 3; i++)
        assert_int_equal(daemon_stop(&nodes[i]), 0);
}


/* Opening a pool that must exist does not join fresh nodes to a pool. Otherwise a mistyped URI would make a node
 * unusable for the right pool. Fails without the check of `existing` in join_all. */
TEST(opening_an_absent_pool_joins_no_node) {
    daemon_node nodes[2];
    char uri[160];
    far_pool *pool = NULL;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.must_exist = 1;
    for (int i = 0; i < 2; i++)
        assert_true(daemon_start(&nodes[i], NULL, "--size " SIZE));
    snprintf(uri, sizeof(uri), "tcp://%s", nodes[0].address);
    assert_int_equal(far_pool_open(uri, &options, &pool), FAR_ERR_NOT_FOUND);
    snprintf(uri, sizeof(uri), "tcp://%s,%s", nodes[0].address, nodes[1].address);
    put_and_get(uri);
    for (int i = 0; i < 2; i++)
        assert_int_equal(daemon_stop(&nodes[i]), 0);
}


/* Clients A and B open a pool on the same fresh daemons at the same time and name them in opposite orders. Both get the
 * same pool. Fails without order_nodes. */
TEST(simultaneous_openers_make_one_pool) {
    for (int round = 0; round < 3; round++) {
        daemon_node nodes[2];
        char uris[2][128];
        pid_t children[2];
        for (int i = 0; i < 2; i++)
            assert_true(daemon_start(&nodes[i], NULL, "--size " SIZE));
        for (int i = 0; i < 2; i++)
            snprintf(uris[i], sizeof(uris[i]), "tcp://%.60s,%.60s", nodes[i].address, nodes[1 - i].address);
        for (int i = 0; i < 2; i++)
            if ((children[i] = fork()) == 0) {
                far_pool *pool;
                int err = far_pool_open(uris[i], NULL, &pool);
                if (err == 0)
                    far_pool_close(pool);
                _exit(err == 0 ? 0 : 1);
            }
        for (int i = 0; i < 2; i++) {
            int status;
            waitpid(children[i], &status, 0);
            assert_int_equal(status, 0);
        }
        net_state a = daemon_read_status(nodes[0].address), b = daemon_read_status(nodes[1].address);
        assert_true(a.pool == b.pool && a.pool != 0 && a.node + b.node == 1);
        put_and_get(uris[0]);
        for (int i = 0; i < 2; i++)
            daemon_stop(&nodes[i]);
    }
}


/* Client A gets the welcome of the first node. Client B joins both nodes to a pool. Client A gets the welcome of the
 * second node. The first welcome, which is from before the join, stated that the first node belongs to no pool. So to A
 * this node looks like a node that has lost its memory. A must query it again. Fails without refresh_welcome. */
TEST(a_node_that_joins_meanwhile_is_queried_again) {
    daemon_node node;
    char uri[160];
    far_fabric *fabric;
    unsigned port;
    int status;
    net_welcome other = {.magic = NET_MAGIC, .protocol = NET_PROTOCOL, .granule = NET_GRANULE, .bytes = 16 << 20};
    other.instance = other.pool = 0x1234;
    other.node = 1;
    other.nodes = 2;
    other.complete = true;
    assert_true(daemon_start(&node, NULL, "--size " SIZE));
    pid_t child = start_other_node(&port, NET_WELCOME, &other, sizeof(other), node.address);
    snprintf(uri, sizeof(uri), "tcp://%s,127.0.0.1:%u", node.address, port);
    assert_ok(far_fabric_open(uri, &fabric));
    assert_int_equal(((tcp_fabric *)fabric)->pool, other.pool);
    assert_string_equal(((tcp_fabric *)fabric)->addresses[0].text, node.address);
    fabric->ops->close(fabric);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(daemon_stop(&node), 0);
}


/* A URI that names nodes of different pools, or one node twice, is refused. If a node is unreachable, or was restarted
 * without its memory, the message names it, and opening the pool does not join it again. */
TEST(wrong_and_missing_nodes_are_named) {
    daemon_node a, b, c;
    char uri[256], gone[64];
    assert_true(daemon_start(&a, NULL, "--size " SIZE));
    assert_true(daemon_start(&b, NULL, "--size " SIZE));
    assert_true(daemon_start(&c, NULL, "--size " SIZE));
    snprintf(uri, sizeof(uri), "tcp://%s,%s", a.address, b.address);
    put_and_get(uri);
    snprintf(uri, sizeof(uri), "tcp://%s", c.address);
    put_and_get(uri);
    snprintf(uri, sizeof(uri), "tcp://%s,%s", a.address, c.address);
    assert_not_opened(uri, FAR_ERR_CORRUPT, "memory node");
    snprintf(uri, sizeof(uri), "tcp://%s,%s", a.address, a.address);
    assert_not_opened(uri, FAR_ERR_INVALID, "twice");
    snprintf(uri, sizeof(uri), "tcp://%s,localhost:%s", a.address, strchr(a.address, ':') + 1);
    assert_not_opened(uri, FAR_ERR_INVALID, "the same memory node");
    daemon_stop(&a);
    daemon_stop(&b);
    for (int which = 0; which < 2; which++) { /* each of the two nodes loses its memory once */
        assert_true(daemon_start(&a, NULL, "--size " SIZE));
        assert_true(daemon_start(&b, NULL, "--size " SIZE));
        snprintf(uri, sizeof(uri), "tcp://%s,%s", a.address, b.address);
        put_and_get(uri);
        daemon_node *lost = (daemon_read_status(a.address).node == 0) == (which == 0) ? &a : &b;
        snprintf(gone, sizeof(gone), "%.60s", lost->address);
        daemon_stop(lost);
        assert_not_opened(uri, FAR_ERR_UNREACHABLE, gone);
        assert_true(daemon_restart(lost)); /* The restarted daemon has a new memory, so it is a different node. */
        assert_not_opened(uri, FAR_ERR_CORRUPT, "belongs to no pool");
        assert_int_equal(daemon_read_status(gone).pool, 0);
        daemon_stop(&a);
        daemon_stop(&b);
    }
    daemon_stop(&c);
}


static bool has_ipv6(void) {
    struct sockaddr_in6 here = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int one = socket(AF_INET6, SOCK_STREAM, 0);
    bool bound = one >= 0 && bind(one, (struct sockaddr *)&here, sizeof(here)) == 0;
    if (one >= 0)
        close(one);
    return bound;
}


/* Daemons listen on, and clients connect to, IPv4 addresses, IPv6 addresses and host names. */
TEST(addresses_are_numbers_and_names) {
    static const char *const addresses[] = {"127.0.0.1:0", "localhost:0", "[::1]:0"};
    unsigned count = has_ipv6() ? 3 : 2;
    if (count == 2)
        print_message("no IPv6 on this host: it was not tested\n");
    for (unsigned i = 0; i < count; i++) {
        daemon_node node;
        char uri[128];
        assert_true(daemon_start(&node, NULL, "--size " SIZE " --listen %s", addresses[i]));
        snprintf(uri, sizeof(uri), "tcp://%s", node.address);
        put_and_get(uri);
        if (i != 2)
            snprintf(uri, sizeof(uri), "tcp://localhost:%s", strrchr(node.address, ':') + 1);
        put_and_get(uri);
        assert_int_equal(daemon_stop(&node), 0);
    }
}


/* ---- Idle handles and daemons ---- */

/* Returns how often the threads of a process have waited, that is, given up their processor. A thread that wakes up waits
 * once more before it sleeps again. So the number does not change while all threads sleep, however busy the machine is.
 */
static unsigned long count_waits(pid_t pid) {
    char path[300], line[128];
    unsigned long waits = 0, of_thread;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *threads = opendir(path);
    assert_non_null(threads);
    for (struct dirent *thread; (thread = readdir(threads));) {
        if (thread->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%s/status", (int)pid, thread->d_name);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        while (fgets(line, sizeof(line), file))
            if (sscanf(line, "voluntary_ctxt_switches: %lu", &of_thread) == 1)
                waits += of_thread;
        fclose(file);
    }
    closedir(threads);
    return waits;
}


/* Waits until all threads of the process have slept for a second, and returns how often they have waited. */
static unsigned long count_waits_at_rest(pid_t pid) {
    unsigned long before = count_waits(pid), now;
    for (sleep(1); (now = count_waits(pid)) != before; sleep(1))
        before = now;
    return now;
}


/* Waits until the node executes no more batches, and returns their number. */
static uint64_t batches_at_rest(const char *address) {
    uint64_t before = 0, now = 1;
    while (now != before) {
        before = now;
        /* 2.2 s are longer than a hundred of the longest ticks, after which a handle makes its last check. */
        usleep(2200000);
        now = daemon_read_status(address).batches;
    }
    return now;
}


typedef struct sleeper {
    far_conn *conn;
    far_parker parker;
} sleeper;


static void *sleep_until_notified(void *arg) {
    sleeper *d = arg;
    tcp_wait_for_notification(d->conn, &d->parker, FAR_TIME_NEVER);
    return NULL;
}


/* The thread that drives the session reads a notification from the socket on which the handle's own thread sleeps or is
 * about to sleep. The handle's thread must wake up. Fails without the unpark in tcp_add_notification (asleep), or
 * without the check of has_notifications in tcp_wait_for_notification (about to sleep). */
TEST(a_notification_read_by_another_thread_wakes_the_sleeper) {
    for (int asleep = 0; asleep < 2; asleep++) {
        daemon_node node;
        char uri[128];
        far_fabric *fabric;
        far_parker parker = {0};
        pthread_t thread;
        sleeper d = {0};
        unsigned id, generation;
        assert_true(daemon_start(&node, NULL, "--size " SIZE));
        snprintf(uri, sizeof(uri), "tcp://%s", node.address);
        assert_ok(far_fabric_open(uri, &fabric));
        assert_ok(fabric->ops->connect(fabric, &parker, &d.conn));
        tcp_conn *c = (tcp_conn *)d.conn;
        if (!asleep)
            tcp_add_notification(c, &(net_claim){.id = 3, .generation = 1});
        assert_int_equal(pthread_create(&thread, NULL, sleep_until_notified, &d), 0);
        while (asleep && !atomic_load_explicit(&c->notification_parker, memory_order_seq_cst))
            sched_yield();
        if (asleep)
            tcp_add_notification(c, &(net_claim){.id = 3, .generation = 1});
        pthread_join(thread, NULL);
        assert_true(fabric->ops->told(d.conn, &id, &generation) == 1 && id == 3 && generation == 1);
        assert_int_equal(fabric->ops->told(d.conn, &id, &generation), 0);
        fabric->ops->disconnect(d.conn);
        fabric->ops->close(fabric);
        assert_int_equal(daemon_stop(&node), 0);
    }
}


/* After some work, an idle handle sends nothing for five seconds, and no thread of the idle daemon wakes up. */
TEST(idle_handles_and_daemons_do_nothing) {
    served s;
    serve_an_index(&s);
    assert_ok(far_put(s.session, s.index, "key", 3, "value", 5));
    uint64_t batches = batches_at_rest(s.node.address), bytes = daemon_read_status(s.node.address).bytes_in;
    /* The thread sanitizer has a thread of its own in the daemon, which wakes up again and again. */
    if (FAR_TSAN)
        left_out("the sleep of an idle daemon", "the thread sanitizer's own thread does not sleep");
    unsigned long waits = FAR_TSAN ? 0 : count_waits_at_rest(s.node.pid);
    sleep(5);
    assert_int_equal(FAR_TSAN ? 0 : count_waits(s.node.pid), waits);
    net_state after = daemon_read_status(s.node.address);
    assert_int_equal(after.batches, batches);
    assert_in_range(after.bytes_in - bytes, 0, 200); /* The bound allows for the status requests of this test itself. */
    end_served(&s);
}


/* ---- Many sessions, many nodes ---- */

/* 256 sessions work on one daemon. The daemon needs less than 64 MiB of memory for them. */
TEST(many_sessions_on_one_daemon) {
    daemon_node node;
    char uri[128], path[64], text[256], memory[64];
    static far_session *sessions[256];
    far_pool *pool;
    far_index *index;
    snprintf(memory, sizeof(memory), "/dev/shm/farindex-many-%d", (int)getpid());
    unlink(memory);
    /* The memory of the pool is a file, so that it does not count as anonymous memory of the daemon. */
    assert_true(daemon_start(&node, NULL, "--size 64M --memory %s", memory));
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_ok(far_pool_open(uri, NULL, &pool));
    /* 255 sessions are opened here; one more session belongs to the handle itself. */
    for (unsigned i = 0; i < 255; i++)
        assert_ok(far_session_open(pool, &sessions[i]));
    assert_ok(far_index_create(sessions[0], "i", "dart", NULL, &index));
    for (unsigned i = 0; i < 255; i++)
        assert_ok(far_put(sessions[i], index, &i, sizeof(i), "value", 5));
    assert_int_equal(daemon_read_status(node.address).sessions, 256);
    snprintf(path, sizeof(path), "/proc/%d/status", (int)node.pid);
    FILE *file = fopen(path, "r");
    unsigned long kilobytes = 0;
    while (fgets(text, sizeof(text), file))
        sscanf(text, "RssAnon: %lu", &kilobytes);
    fclose(file);
    print_message("256 sessions: %lu KiB in addition to the pool\n", kilobytes);
    assert_true(kilobytes > 0 && (FAR_ASAN || FAR_TSAN || kilobytes < 64 * 1024));
    far_index_close(index);
    for (unsigned i = 0; i < 255; i++)
        far_session_close(sessions[i]);
    far_pool_close(pool);
    daemon_stop(&node);
    unlink(memory);
}


static void *run_server(void *server) {
    net_server_run(server);
    return NULL;
}


/* A pool may have 256 memory nodes, and a URI can name all of them; one more is refused. The daemons are threads of
 * this process. */
TEST(a_uri_of_256_nodes_fits) {
    static net_server *servers[FAR_NODES_MAX];
    static pthread_t threads[FAR_NODES_MAX];
    static char uri[16 + FAR_NODES_MAX * 32] = "tcp://";
    far_fabric *fabric;
    char error[128];
    net_server_options config = {.memory.size = 1 << 20, .lease_ms = 10000, .threads = 1};
    assert_int_equal(net_address_parse("127.0.0.1:0", 11, &config.listen, error, sizeof(error)), 0);
    for (unsigned i = 0; i < FAR_NODES_MAX; i++) {
        assert_int_equal(net_server_open(&config, &servers[i]), 0);
        assert_int_equal(pthread_create(&threads[i], NULL, run_server, servers[i]), 0);
        snprintf(uri + strlen(uri), 32, "%s%s", i ? "," : "", net_server_address(servers[i]));
    }
    assert_ok(far_fabric_open(uri, &fabric));
    assert_int_equal(fabric->nodes, FAR_NODES_MAX);
    fabric->ops->close(fabric);
    strcat(uri, ",127.0.0.1:1");
    assert_not_opened(uri, FAR_ERR_INVALID, "at most 256");
    for (unsigned i = 0; i < FAR_NODES_MAX; i++) {
        net_server_stop(servers[i]);
        pthread_join(threads[i], NULL);
        net_server_close(servers[i]);
    }
}
