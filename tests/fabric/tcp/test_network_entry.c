/* Tests of pools on real daemons over loopback: authentication, error messages, daemons that cannot serve, and invalid
 * messages. */
#define _GNU_SOURCE
#include "fabric/node/admission.h"
#include "fabric/node/memory.h"
#include "network_rig.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>


/* ---- Versions, secrets, certificates ---- */

/* A node with another protocol version is refused with a message, whether the node or the client detects the
 * difference. */
TEST(another_version_is_refused_in_words) {
    const net_welcome later = {
        .magic = NET_MAGIC, .protocol = 99, .granule = NET_GRANULE, .bytes = 1 << 24, .instance = 1};
    const char *words = "this node uses protocol 99, not 1";
    /* In the first round the node refuses the client, in the second one the client refuses the node. */
    for (unsigned i = 0; i < 2; i++) {
        unsigned port;
        int status;
        char uri[64];
        pid_t other = i == 0 ? start_other_node(&port, NET_REFUSED, words, strlen(words), NULL)
                             : start_other_node(&port, NET_WELCOME, &later, sizeof(later), NULL);
        snprintf(uri, sizeof(uri), "tcp://127.0.0.1:%u", port);
        assert_not_opened(uri, FAR_ERR_UNSUPPORTED, "uses protocol 99");
        waitpid(other, &status, 0);
        assert_int_equal(status, 0);
    }
}


/* Only a client with the same secret is accepted. Wrong secrets, missing secrets, files with wrong permissions and too
 * short secrets are refused with a message. A client with a secret never falls back to plain text. */
TEST(secrets_are_checked) {
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
    /* the message does not repeat that the handshake failed */
    assert_null(strstr(far_last_error(), "in the handshake"));
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
    /* the node uses plain text and the client wants TLS, which must not fall back */
    assert_true(daemon_start(&node, NULL, "--size " SIZE));
    daemon_secret(wrong, "0123456789abcdef0123456789abcdef");
    snprintf(uri, sizeof(uri), "tcp://%s?secret=%s", node.address, wrong);
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, "does not use TLS");
    daemon_stop(&node);
    unlink(right);
    unlink(wrong);
}


/* Creates a certificate authority, a certificate for 127.0.0.1, a certificate for another address, and a certificate
 * that another authority has signed. Returns false if that fails. */
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


/* Certificates of both sides are accepted only if they are signed by the right authority and the server's certificate
 * names its host. */
TEST(certificates_are_checked) {
    daemon_node node;
    char d[] = "/tmp/farindex-certs-XXXXXX", uri[512];
    assert_non_null(mkdtemp(d));
    assert_true(make_certificates(d));
    assert_true(
        daemon_start(&node, NULL, "--size " SIZE " --cert %s/good.pem --key %s/good.key --ca %s/ca.pem", d, d, d));
    snprintf(uri, sizeof(uri), "tcp://%s?cert=%s/good.pem&key=%s/good.key&ca=%s/ca.pem", node.address, d, d, d);
    put_and_get(uri);
    snprintf(uri, sizeof(uri), "tcp://%s?cert=%s/bad.pem&key=%s/bad.key&ca=%s/ca.pem", node.address, d, d, d);
    /* The node does not know the authority that signed the client's certificate. */
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, "does the other side reject this certificate");
    snprintf(uri, sizeof(uri), "tcp://%s?cert=%s/good.pem&key=%s/good.key&ca=%s/other.pem", node.address, d, d, d);
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, node.address);
    daemon_stop(&node);
    assert_true(
        daemon_start(&node, NULL, "--size " SIZE " --cert %s/named.pem --key %s/good.key --ca %s/ca.pem", d, d, d));
    snprintf(uri, sizeof(uri), "tcp://%s?cert=%s/good.pem&key=%s/good.key&ca=%s/ca.pem", node.address, d, d, d);
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, "mismatch"); /* The certificate of the node names another host. */
    daemon_stop(&node);
    snprintf(uri, sizeof(uri), "rm -r %s", d);
    assert_int_equal(system(uri), 0);
}


/* Neither the daemon nor the client uses plain text between hosts unless asked for it with `insecure`. */
TEST(plain_text_stays_on_this_host) {
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


/* A daemon that cannot serve ends with status 3 and one line that contains the reason. */
TEST(daemons_say_why_they_cannot_serve) {
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
    assert_does_not_start("--size 1023G --memory /dev/shm/farindex-too-large", "its file system has only");
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(truncate(path, 4 << 20), 0); /* Now the file contains zeros. */
    snprintf(options, sizeof(options), "--size 4M --memory %s", path);
    assert_does_not_start(options, path);
    unlink(path);
}


/* The ledger of node 0 records that all claim numbers were issued. So the next session must be refused with a message.
 * Otherwise node 0 would issue the number 0, which means no claim, and then numbers that were issued before. */
TEST(a_node_without_claim_numbers_says_so) {
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
    assert_true(daemon_restart(&node));
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_not_opened(uri, FAR_ERR_UNREACHABLE, "no claim number is left");
    daemon_stop(&node);
    unlink(path);
}


/* ---- Invalid messages ---- */

/* Sends these bytes and waits until the daemon closes the connection. */
static void send_to(const char *address, const void *bytes, size_t count) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1))};
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    int one = socket(AF_INET, SOCK_STREAM, 0);
    char rest[4096];
    assert_int_equal(connect(one, (struct sockaddr *)&to, sizeof(to)), 0);
    ssize_t put = send(one, bytes, count, MSG_NOSIGNAL);
    (void)put;
    struct pollfd wait = {.fd = one, .events = POLLIN};
    while (poll(&wait, 1, -1) > 0 && recv(one, rest, sizeof(rest), 0) > 0)
        ;
    close(one);
}


/* 257 connections send no hello. The node admits 256, so it closes the oldest at once, and the others after the time
 * limit of the handshake. A newcomer is served in between. Fails without evict_oldest or close_late_handshakes. */
TEST(connections_without_a_hello_are_closed) {
    enum { MOST = NET_HALF_OPEN_MAX };
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
    assert_true(recv(sockets[0], &byte, 1, 0) <= 0);
    assert_true(recv(sockets[MOST], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    put_and_get(uri);
    for (unsigned i = 1; i <= MOST; i++)
        assert_true(recv(sockets[i], &byte, 1, 0) <= 0);
    put_and_get(uri);
    for (unsigned i = 0; i <= MOST; i++)
        close(sockets[i]);
    assert_int_equal(daemon_stop(&node), 0);
}


/* Connections that send invalid messages are closed and counted. Another session and its index are not affected. */
TEST(invalid_messages_end_only_their_connection) {
    served s;
    char zeros[4096] = {0}, large[16] = {0}, bytes[1024];
    serve_an_index(&s);
    send_to(s.node.address, zeros, sizeof(zeros));
    send_to(s.node.address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 26);
    memset(large, 0xff, 4);
    send_to(s.node.address, large, sizeof(large));
    net_hello hello = {.magic = NET_MAGIC, .protocol = 99};
    net_head head = {.length = NET_HEAD_BYTES + sizeof(hello), .type = NET_HELLO};
    memcpy(bytes, &head, sizeof(head));
    memcpy(bytes + sizeof(head), &hello, sizeof(hello));
    send_to(s.node.address, bytes, head.length);
    uint64_t refused = daemon_read_status(s.node.address).refused;
    assert_in_range(refused, 4, 4);
    assert_ok(far_put(s.session, s.index, "key", 3, "value", 5));
    assert_index_is_sound(s.session, s.index);
    end_served(&s);
}
