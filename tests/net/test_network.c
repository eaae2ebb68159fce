/* Pools on real daemons on loopback: which nodes make one, idle handles, many sessions and nodes. */
#define _GNU_SOURCE
#include "base/sanitizer.h"
#include "fabric/net/server.h"
#include "network_rig.h"

#include <pthread.h>
#include <sched.h>


/* ---- Which nodes make a pool ---- */

static void the_order_in_the_uri_does_not_matter(void **state) {
    (void)state;
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
    assert_not_opened(uri, FAR_ERR_CORRUPT, "of a pool with 3 memory nodes, the URI names 2");
    for (int i = 0; i < 3; i++)
        assert_int_equal(daemon_stop(&nodes[i]), 0);
}


/* A look for a pool that is not there leaves fresh nodes free for any pool: a mistyped URI would take one away. */
static void a_look_takes_no_node(void **state) {
    (void)state;
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


/* Both name fresh daemons, each in another order: one pool comes of it. */
static void openers_at_once_make_one_pool(void **state) {
    (void)state;
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
        net_state a = daemon_look(nodes[0].address), b = daemon_look(nodes[1].address);
        assert_true(a.pool == b.pool && a.pool != 0 && a.node + b.node == 1);
        put_and_get(uris[0]);
        for (int i = 0; i < 2; i++)
            daemon_stop(&nodes[i]);
    }
}


/* The first node is asked before the other opener comes, the second one after: together they look like a pool that has lost
 * a node. (Two openers at once were refused like that now and then.) */
static void a_node_that_joins_meanwhile_is_asked_again(void **state) {
    (void)state;
    daemon_node node;
    char uri[160];
    far_fabric *fabric;
    unsigned port;
    int status;
    net_welcome other = {.magic = NET_MAGIC, .protocol = NET_PROTOCOL, .unit = NET_UNIT, .bytes = 16 << 20};
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


static void foreign_and_missing_nodes_are_named(void **state) {
    (void)state;
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
    for (int which = 0; which < 2; which++) { /* whichever of the two it is that loses its memory */
        assert_true(daemon_start(&a, NULL, "--size " SIZE));
        assert_true(daemon_start(&b, NULL, "--size " SIZE));
        snprintf(uri, sizeof(uri), "tcp://%s,%s", a.address, b.address);
        put_and_get(uri);
        daemon_node *lost = (daemon_look(a.address).node == 0) == (which == 0) ? &a : &b;
        snprintf(gone, sizeof(gone), "%.60s", lost->address);
        daemon_stop(lost);
        assert_not_opened(uri, FAR_ERR_UNREACHABLE, gone);
        assert_true(daemon_again(lost)); /* without its memory: another node */
        assert_not_opened(uri, FAR_ERR_CORRUPT, "belongs to no pool");
        assert_int_equal(daemon_look(gone).pool, 0);
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


static void addresses_are_numbers_and_names(void **state) {
    (void)state;
    static const char *const listens[] = {"127.0.0.1:0", "localhost:0", "[::1]:0"};
    unsigned count = has_ipv6() ? 3 : 2;
    if (count == 2)
        print_message("no IPv6 on this host: it was not tested\n");
    for (unsigned i = 0; i < count; i++) {
        daemon_node node;
        char uri[128];
        assert_true(daemon_start(&node, NULL, "--size " SIZE " --listen %s", listens[i]));
        snprintf(uri, sizeof(uri), "tcp://%s", node.address);
        put_and_get(uri);
        if (i != 2)
            snprintf(uri, sizeof(uri), "tcp://localhost:%s", strrchr(node.address, ':') + 1);
        put_and_get(uri);
        assert_int_equal(daemon_stop(&node), 0);
    }
}


/* ---- Idle ---- */

static unsigned long cpu_ticks(pid_t pid) {
    char path[64], text[1024];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    size_t length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = 0;
    fclose(file);
    sscanf(strrchr(text, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    return user + system;
}


/* The node has done all that it was asked for, and what comes behind an answer too. */
static unsigned long cpu_ticks_at_rest(pid_t pid) {
    unsigned long before = 0, now = cpu_ticks(pid);
    while (now != before) {
        before = now;
        sleep(1);
        now = cpu_ticks(pid);
    }
    return now;
}


/* Batches that the node has run when nothing came for a while. */
static uint64_t batches_at_rest(const char *address) {
    uint64_t before = 0, now = 1;
    while (now != before) {
        before = now;
        usleep(2200000); /* longer than a hundred of the longest ticks, after which a handle looks for the last time */
        now = daemon_look(address).batches;
    }
    return now;
}


typedef struct dozer {
    far_conn *conn;
    far_parker parker;
} dozer;


static void *doze_for_ever(void *arg) {
    dozer *d = arg;
    tcp_doze(d->conn, &d->parker, FAR_TIME_NEVER);
    return NULL;
}


/* Whoever drives the session may take a note off the socket on which the handle is about to sleep, or sleeps: it must
 * not sleep over it. (It did, until the next note.) */
static void a_note_that_another_took_wakes_who_dozes(void **state) {
    (void)state;
    for (int asleep = 0; asleep < 2; asleep++) {
        daemon_node node;
        char uri[128];
        far_fabric *fabric;
        far_parker parker = {0};
        pthread_t thread;
        dozer d = {0};
        unsigned id, generation;
        assert_true(daemon_start(&node, NULL, "--size " SIZE));
        snprintf(uri, sizeof(uri), "tcp://%s", node.address);
        assert_ok(far_fabric_open(uri, &fabric));
        assert_ok(fabric->ops->connect(fabric, &parker, &d.conn));
        tcp_conn *c = (tcp_conn *)d.conn;
        if (!asleep)
            tcp_note(c, &(net_claim){.id = 3, .generation = 1});
        assert_int_equal(pthread_create(&thread, NULL, doze_for_ever, &d), 0);
        while (asleep && !atomic_load_explicit(&c->dozer, memory_order_seq_cst))
            sched_yield();
        if (asleep)
            tcp_note(c, &(net_claim){.id = 3, .generation = 1});
        pthread_join(thread, NULL);
        assert_true(fabric->ops->told(d.conn, &id, &generation) == 1 && id == 3 && generation == 1);
        assert_int_equal(fabric->ops->told(d.conn, &id, &generation), 0);
        fabric->ops->disconnect(d.conn);
        fabric->ops->close(fabric);
        assert_int_equal(daemon_stop(&node), 0);
    }
}


static void idle_handles_and_daemons_do_nothing(void **state) {
    (void)state;
    served s;
    serve_an_index(&s);
    assert_ok(far_put(s.session, s.index, "key", 3, "value", 5));
    uint64_t batches = batches_at_rest(s.node.address), bytes = daemon_look(s.node.address).bytes_in;
    unsigned long ticks = cpu_ticks_at_rest(s.node.pid);
    sleep(5);
    assert_int_equal(cpu_ticks(s.node.pid), ticks);
    net_state after = daemon_look(s.node.address);
    assert_int_equal(after.batches, batches);
    assert_in_range(after.bytes_in - bytes, 0, 200); /* two looks */
    end_served(&s);
}


/* ---- Many ---- */

static void many_sessions_on_one_daemon(void **state) {
    (void)state;
    daemon_node node;
    char uri[128], path[64], text[256], memory[64];
    static far_session *sessions[256];
    far_pool *pool;
    far_index *index;
    snprintf(memory, sizeof(memory), "/dev/shm/farindex-many-%d", (int)getpid());
    unlink(memory);
    assert_true(daemon_start(&node, NULL, "--size 64M --memory %s", memory)); /* so the pool is no anonymous memory */
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_ok(far_pool_open(uri, NULL, &pool));
    for (unsigned i = 0; i < 255; i++) /* and the handle's own */
        assert_ok(far_session_open(pool, &sessions[i]));
    assert_ok(far_index_create(sessions[0], "i", "dart", NULL, &index));
    for (unsigned i = 0; i < 255; i++)
        assert_ok(far_put(sessions[i], index, &i, sizeof(i), "value", 5));
    assert_int_equal(daemon_look(node.address).sessions, 256);
    snprintf(path, sizeof(path), "/proc/%d/status", (int)node.pid);
    FILE *file = fopen(path, "r");
    unsigned long kilobytes = 0;
    while (fgets(text, sizeof(text), file))
        sscanf(text, "RssAnon: %lu", &kilobytes);
    fclose(file);
    print_message("256 sessions: %lu KiB beside the pool\n", kilobytes);
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


/* A pool may have so many memory nodes, and its URI names all of them. The daemons are threads here. */
static void a_uri_of_256_nodes_fits(void **state) {
    (void)state;
    static net_server *servers[FAR_NODES_MAX];
    static pthread_t threads[FAR_NODES_MAX];
    static char uri[16 + FAR_NODES_MAX * 32] = "tcp://";
    far_fabric *fabric;
    char error[128];
    net_server_config config = {.size = 1 << 20, .lease_ms = 10000, .threads = 1};
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_uri_of_256_nodes_fits),
        cmocka_unit_test(the_order_in_the_uri_does_not_matter),
        cmocka_unit_test(a_look_takes_no_node),
        cmocka_unit_test(openers_at_once_make_one_pool),
        cmocka_unit_test(a_node_that_joins_meanwhile_is_asked_again),
        cmocka_unit_test(foreign_and_missing_nodes_are_named),
        cmocka_unit_test(addresses_are_numbers_and_names),
        cmocka_unit_test(a_note_that_another_took_wakes_who_dozes),
        cmocka_unit_test(idle_handles_and_daemons_do_nothing),
        cmocka_unit_test(many_sessions_on_one_daemon),
    };
    return cmocka_run_group_tests_name("net/network", tests, NULL, NULL);
}
