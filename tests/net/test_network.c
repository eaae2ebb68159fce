/* Pools on real daemons on loopback: who is let in, what an error says, strangers, idle handles. */
#define _GNU_SOURCE
#include "base/sanitizer.h"
#include "conform.h"
#include "daemons.h"
#include "fabric/net/memory.h"
#include "fabric/net/server.h"
#include "fabric/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE "16M"


static void assert_not_opened(const char *uri, int code, const char *words) {
    far_pool *pool = NULL;
    double begun = daemon_seconds();
    int err = far_pool_open(uri, NULL, &pool);
    if (err != code || !strstr(far_last_error(), words))
        fail_msg("%s gave %d: %s, not %d with '%s'", uri, err, far_last_error(), code, words);
    assert_true(daemon_seconds() - begun < 30);
}


static void put_and_get(const char *uri) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    char value[16];
    assert_ok(far_pool_open(uri, NULL, &pool));
    assert_ok(far_session_open(pool, &session));
    if (far_index_open(session, "i", &index) < 0)
        assert_ok(far_index_create(session, "i", "dart", NULL, &index));
    assert_ok(far_put(session, index, "key", 3, "value", 5));
    assert_ok(far_get(session, index, "key", 3, value, sizeof(value), NULL));
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


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


/* What another opener does meanwhile: this node becomes node 0 of two of the pool. */
static bool join_as_first(const char *address, uint64_t pool) {
    net_link link;
    net_address to;
    char error[128];
    net_dial dial = {NULL, false, NET_FOR_LOOK, 10000};
    net_join join = {.pool = pool, .node = 0, .nodes = 2, .complete = true};
    bool joined = net_address_parse(address, strlen(address), &to, error, sizeof(error)) == 0 &&
                  net_links_open(&link, &to, 1, &dial) == 0 &&
                  net_link_call(&link, &to, NET_JOIN, &join, sizeof(join), NET_JOINED, &join, sizeof(join), 10000) == 0;
    net_channel_close(&link.channel);
    return joined;
}


/* Takes one connection, reads the hello, and answers with this. joins: a node that joins the pool of the answer, a welcome,
 * between the two; NULL: none. */
static pid_t start_other_node(unsigned *port, net_type type, const void *body, size_t bytes, const char *joins) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(here);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&here, sizeof(here)), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&here, &length), 0);
    *port = ntohs(here.sin_port);
    pid_t child = fork();
    if (child == 0) {
        char message[NET_HEAD_BYTES + 256], hello[256];
        net_head head = {.length = (uint32_t)(NET_HEAD_BYTES + bytes), .type = (uint16_t)type};
        int one = accept(listener, NULL, NULL);
        memcpy(message, &head, sizeof(head));
        memcpy(message + sizeof(head), body, bytes);
        bool done = recv(one, hello, sizeof(hello), 0) > 0;
        if (joins) {
            daemon_look(joins); /* when it has answered this it has answered the hello of before */
            done = done && join_as_first(joins, ((const net_welcome *)body)->pool);
        }
        done = done && send(one, message, head.length, MSG_NOSIGNAL) > 0;
        while (recv(one, hello, sizeof(hello), 0) > 0)
            continue;
        _exit(!done);
    }
    close(listener);
    return child;
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


/* ---- Who is let in ---- */

static void another_version_is_refused_in_words(void **state) {
    (void)state;
    const net_welcome later = {.magic = NET_MAGIC, .protocol = 99, .unit = NET_UNIT, .bytes = 1 << 24, .instance = 1};
    const char *words = "this node speaks protocol 99, not 1";
    for (unsigned i = 0; i < 2; i++) { /* the node says so, or this side sees it */
        unsigned port;
        int status;
        char uri[64];
        pid_t other = i == 0 ? start_other_node(&port, NET_REFUSED, words, strlen(words), NULL)
                             : start_other_node(&port, NET_WELCOME, &later, sizeof(later), NULL);
        snprintf(uri, sizeof(uri), "tcp://127.0.0.1:%u", port);
        assert_not_opened(uri, FAR_ERR_UNSUPPORTED, "speaks protocol 99");
        waitpid(other, &status, 0);
        assert_int_equal(status, 0);
    }
}


static void secrets_are_checked(void **state) {
    (void)state;
    daemon_node node;
    char right[64], wrong[64], uri[256];
    snprintf(right, sizeof(right), "/tmp/farindex-right-%d", (int)getpid());
    snprintf(wrong, sizeof(wrong), "/tmp/farindex-wrong-%d", (int)getpid());
    daemon_secret(right, "0123456789abcdef0123456789abcdef");
    daemon_secret(wrong, "0123456789abcdef0123456789abcdeX");
    assert_true(daemon_start(&node, NULL, "--size " SIZE " --secret %s", right));
    snprintf(uri, sizeof(uri), "tcp://%s?secret=%s", node.address, right);
    put_and_get(uri);
    snprintf(uri, sizeof(uri), "tcp://%s?secret=%s", node.address, wrong);
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, "the same secret");
    assert_null(strstr(far_last_error(), "in the handshake")); /* it has been said that this failed */
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, "does it ask for a secret or a certificate");
    snprintf(uri, sizeof(uri), "tcp://%s?secret=%s", node.address, right);
    put_and_get(uri);
    chmod(right, 0640);
    assert_not_opened(uri, FAR_ERR_INVALID, "chmod 600");
    daemon_secret(wrong, "0123456789abcdef0123456789abcde");
    snprintf(uri, sizeof(uri), "tcp://%s?secret=%s", node.address, wrong);
    assert_not_opened(uri, FAR_ERR_INVALID, "at least 32");
    daemon_stop(&node);
    assert_true(daemon_start(&node, NULL, "--size " SIZE)); /* plain, and the client wants TLS: no fall-back */
    daemon_secret(wrong, "0123456789abcdef0123456789abcdef");
    snprintf(uri, sizeof(uri), "tcp://%s?secret=%s", node.address, wrong);
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, "speaks no TLS");
    daemon_stop(&node);
    unlink(right);
    unlink(wrong);
}


/* A certificate authority, one certificate for 127.0.0.1, and one of a stranger. */
static bool make_certificates(const char *folder) {
    char line[2048];
    snprintf(
        line, sizeof(line),
        "cd %s && for who in ca other; do openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "
        "-keyout $who.key -out $who.pem -subj /CN=$who -days 2; done && "
        "for who in good bad; do openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $who.key "
        "-out $who.csr -subj /CN=node; done && printf 'subjectAltName=IP:127.0.0.1' >ext && "
        "openssl x509 -req -in good.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out good.pem -days 2 -extfile ext && "
        "openssl x509 -req -in bad.csr -CA other.pem -CAkey other.key -CAcreateserial -out bad.pem -days 2 -extfile "
        "ext "
        "&& printf 'subjectAltName=IP:127.0.0.9' >ext && "
        "openssl x509 -req -in good.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out named.pem -days 2 -extfile ext "
        "&& "
        "chmod 600 *.key",
        folder);
    char quiet[2200];
    snprintf(quiet, sizeof(quiet), "{ %s; } >/dev/null 2>&1", line);
    return system(quiet) == 0;
}


static void certificates_are_checked(void **state) {
    (void)state;
    daemon_node node;
    char d[] = "/tmp/farindex-certs-XXXXXX", uri[512];
    assert_non_null(mkdtemp(d));
    assert_true(make_certificates(d));
    assert_true(
        daemon_start(&node, NULL, "--size " SIZE " --cert %s/good.pem --key %s/good.key --ca %s/ca.pem", d, d, d));
    snprintf(uri, sizeof(uri), "tcp://%s?cert=%s/good.pem&key=%s/good.key&ca=%s/ca.pem", node.address, d, d, d);
    put_and_get(uri);
    snprintf(uri, sizeof(uri), "tcp://%s?cert=%s/bad.pem&key=%s/bad.key&ca=%s/ca.pem", node.address, d, d, d);
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, "does not accept this side's certificate"); /* who signed it? */
    snprintf(uri, sizeof(uri), "tcp://%s?cert=%s/good.pem&key=%s/good.key&ca=%s/other.pem", node.address, d, d, d);
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, node.address);
    daemon_stop(&node);
    assert_true(
        daemon_start(&node, NULL, "--size " SIZE " --cert %s/named.pem --key %s/good.key --ca %s/ca.pem", d, d, d));
    snprintf(uri, sizeof(uri), "tcp://%s?cert=%s/good.pem&key=%s/good.key&ca=%s/ca.pem", node.address, d, d, d);
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, "mismatch"); /* its certificate names another host */
    daemon_stop(&node);
    snprintf(uri, sizeof(uri), "rm -r %s", d);
    assert_int_equal(system(uri), 0);
}


static void plain_text_stays_on_this_host(void **state) {
    (void)state;
    daemon_node node;
    assert_false(daemon_start(&node, NULL, "--size " SIZE " --listen 0.0.0.0:0"));
    int status;
    waitpid(node.pid, &status, 0);
    assert_int_equal(WEXITSTATUS(status), 3);
    assert_true(daemon_start(&node, NULL, "--size " SIZE " --listen 0.0.0.0:0 --insecure"));
    daemon_stop(&node);
    assert_not_opened("tcp://192.0.2.1:7000", FAR_ERR_INVALID, "insecure=1");
}


/* ---- Daemons that cannot serve ---- */

static void assert_does_not_start(const char *options, const char *words) {
    daemon_node node;
    char log[64], text[1024] = "";
    int status;
    snprintf(log, sizeof(log), "/tmp/farindex-log-%d", (int)getpid());
    unlink(log);
    assert_false(daemon_start(&node, log, "%s", options));
    waitpid(node.pid, &status, 0);
    FILE *file = fopen(log, "r");
    assert_non_null(file);
    size_t length = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    unlink(log);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 3 || !strstr(text, words) ||
        strchr(text, '\n') != text + length - 1)
        fail_msg("serve %s: status %d, '%s', not 3 and one line with '%s'", options, status, text, words);
}


static void daemons_say_why_they_cannot_serve(void **state) {
    (void)state;
    daemon_node node;
    char path[64], options[256];
    snprintf(path, sizeof(path), "/dev/shm/farindex-served-%d", (int)getpid());
    assert_true(daemon_start(&node, NULL, "--size 4M --memory %s", path));
    snprintf(options, sizeof(options), "--size 4M --listen %s", node.address);
    assert_does_not_start(options, "in use");
    snprintf(options, sizeof(options), "--size 4M --memory %s", path);
    assert_does_not_start(options, "another daemon");
    daemon_stop(&node);
    snprintf(options, sizeof(options), "--size 8M --memory %s", path);
    assert_does_not_start(options, "4M");
    assert_does_not_start("--size 1023G --memory /dev/shm/farindex-too-large", "no room");
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(truncate(path, 4 << 20), 0); /* of zeros */
    snprintf(options, sizeof(options), "--size 4M --memory %s", path);
    assert_does_not_start(options, path);
    unlink(path);
}


/* It would give the number 0, which stands for nobody, and then those that others have had. */
static void a_node_without_claim_numbers_says_so(void **state) {
    (void)state;
    daemon_node node;
    const uint64_t last = UINT64_MAX;
    char path[64], uri[128];
    snprintf(path, sizeof(path), "/dev/shm/farindex-last-%d", (int)getpid());
    assert_true(daemon_start(&node, NULL, "--size 4M --memory %s", path));
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    put_and_get(uri);
    daemon_stop(&node);
    int file = open(path, O_WRONLY);
    assert_int_equal(pwrite(file, &last, sizeof(last), NET_LEDGER_AT + offsetof(net_ledger, drawn)), sizeof(last));
    close(file);
    assert_true(daemon_again(&node));
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, "no claim number is left");
    daemon_stop(&node);
    unlink(path);
}


/* ---- Strangers ---- */

static void send_to(const char *address, const void *bytes, size_t count) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1))};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int one = socket(AF_INET, SOCK_STREAM, 0);
    char rest[4096];
    assert_int_equal(connect(one, (struct sockaddr *)&to, sizeof(to)), 0);
    ssize_t put = send(one, bytes, count, MSG_NOSIGNAL);
    (void)put;
    struct pollfd wait = {.fd = one, .events = POLLIN};
    while (poll(&wait, 1, 5000) > 0 && recv(one, rest, sizeof(rest), 0) > 0)
        ;
    close(one);
}


/* They are so many at most, and for so long at most; then clients are served as before. */
static void strangers_that_say_nothing_are_turned_away(void **state) {
    (void)state;
    enum { MOST = 256 };
    daemon_node node;
    int sockets[MOST + 1];
    char uri[128], byte;
    assert_true(daemon_start(&node, NULL, "--size " SIZE));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strchr(node.address, ':') + 1))};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    for (unsigned i = 0; i <= MOST; i++) {
        sockets[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(sockets[i], (struct sockaddr *)&to, sizeof(to)), 0);
    }
    assert_true(recv(sockets[MOST], &byte, 1, 0) <= 0); /* one too many: at once */
    for (unsigned i = 0; i < MOST; i++)
        assert_true(recv(sockets[i], &byte, 1, 0) <= 0);
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    put_and_get(uri);
    for (unsigned i = 0; i <= MOST; i++)
        close(sockets[i]);
    assert_int_equal(daemon_stop(&node), 0);
}


static void strangers_lose_their_connection_and_nothing_else(void **state) {
    (void)state;
    daemon_node node;
    char uri[128], zeros[4096] = {0}, large[16] = {0}, bytes[1024];
    far_pool *pool;
    far_session *session;
    far_index *index;
    assert_true(daemon_start(&node, NULL, "--size " SIZE));
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_ok(far_pool_open(uri, NULL, &pool));
    assert_ok(far_session_open(pool, &session));
    assert_ok(far_index_create(session, "i", "dart", NULL, &index));
    send_to(node.address, zeros, sizeof(zeros));
    send_to(node.address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 26);
    memset(large, 0xff, 4);
    send_to(node.address, large, sizeof(large));
    net_hello hello = {.magic = NET_MAGIC, .protocol = 99};
    net_head head = {.length = NET_HEAD_BYTES + sizeof(hello), .type = NET_HELLO};
    memcpy(bytes, &head, sizeof(head));
    memcpy(bytes + sizeof(head), &hello, sizeof(hello));
    send_to(node.address, bytes, head.length);
    uint64_t refused = daemon_look(node.address).refused;
    assert_in_range(refused, 4, 4);
    assert_ok(far_put(session, index, "key", 3, "value", 5));
    assert_index_is_sound(session, index);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    assert_int_equal(daemon_stop(&node), 0);
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


/* Batches that the node has run when nothing came for a while. */
static uint64_t batches_at_rest(const char *address) {
    uint64_t before = 0, now = 1;
    for (int tries = 0; tries < 100 && now != before; tries++) {
        before = now;
        usleep(2200000); /* longer than a hundred of the longest ticks, after which a handle looks for the last time */
        now = daemon_look(address).batches;
    }
    assert_int_equal(now, before);
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
    daemon_node node;
    char uri[128];
    far_pool *pool;
    far_session *session;
    far_index *index;
    assert_true(daemon_start(&node, NULL, "--size " SIZE));
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_ok(far_pool_open(uri, NULL, &pool));
    assert_ok(far_session_open(pool, &session));
    assert_ok(far_index_create(session, "i", "dart", NULL, &index));
    assert_ok(far_put(session, index, "key", 3, "value", 5));
    uint64_t batches = batches_at_rest(node.address), bytes = daemon_look(node.address).bytes_in;
    unsigned long ticks = cpu_ticks(node.pid);
    sleep(5);
    assert_int_equal(cpu_ticks(node.pid), ticks);
    net_state after = daemon_look(node.address);
    assert_int_equal(after.batches, batches);
    assert_in_range(after.bytes_in - bytes, 0, 200); /* two looks */
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    daemon_stop(&node);
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
        cmocka_unit_test(another_version_is_refused_in_words),
        cmocka_unit_test(secrets_are_checked),
        cmocka_unit_test(certificates_are_checked),
        cmocka_unit_test(plain_text_stays_on_this_host),
        cmocka_unit_test(daemons_say_why_they_cannot_serve),
        cmocka_unit_test(a_node_without_claim_numbers_says_so),
        cmocka_unit_test(strangers_lose_their_connection_and_nothing_else),
        cmocka_unit_test(strangers_that_say_nothing_are_turned_away),
        cmocka_unit_test(a_note_that_another_took_wakes_who_dozes),
        cmocka_unit_test(idle_handles_and_daemons_do_nothing),
        cmocka_unit_test(many_sessions_on_one_daemon),
    };
    return cmocka_run_group_tests_name("net/network", tests, NULL, NULL);
}
