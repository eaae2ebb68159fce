/* The daemon of a memory node (farindex serve): its status, its log, which has a line for each client that connects,
 * leaves or is fenced, and its notifications to systemd. */
#define _GNU_SOURCE
#include "daemons.h"
#include "shell.h"
#include "task/session.h"
#include "test.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LOG_SECONDS 600 /* a line that is not in the log after this time will never appear */

static daemon_node node;
static char log_name[128];


TEST_FIXTURE(start_node) {
    snprintf(log_name, sizeof(log_name), "%s/log", folder);
    return fresh(state) || !daemon_start(&node, log_name, "--size 16M");
}


TEST_FIXTURE(end_node) {
    return daemon_stop(&node);
}


/* Waits until the log has a line that contains both texts. */
static void wait_for_line(const char *one, const char *other) {
    bool found = false;
    for (double end = daemon_seconds() + LOG_SECONDS; !found && daemon_seconds() < end; usleep(2000)) {
        char *text = read_file(log_name, NULL), *rest = text;
        for (char *line; !found && (line = strsep(&rest, "\n"));)
            found = strstr(line, one) && strstr(line, other);
        free(text);
    }
    if (!found)
        fail_msg("the log has no line with '%s' and '%s'", one, other);
}


static bool command_prints(const char *words, const char *what) {
    outcome o = run("%s", words);
    bool found = o.status == 0 && *o.err == 0 && strstr(o.out, what);
    if (!found)
        print_error("%s\n  status %d, without '%s'\n  stdout: %s\n  stderr: %s\n", words, o.status, what, o.out, o.err);
    done(&o);
    return found;
}


/* `serve --status` reports version, size, pool, node number and counters of a daemon. A status query does not count
 * as a client. */
TEST_WITH(a_node_reports_its_status, start_node, end_node) {
    char status[256], json[300], create[256], expected[128];
    snprintf(status, sizeof(status), "farindex serve --status %s", node.address);
    snprintf(json, sizeof(json), "%s --json", status);
    snprintf(create, sizeof(create), "farindex create fruit dart --pool tcp://%s 2>/dev/null", node.address);
    assert_true(command_prints(json, "\"pool\":\"0000000000000000\"")); /* the node belongs to no pool yet */
    works(create, NULL);
    snprintf(expected, sizeof(expected), "\"version\":\"%s\"", far_version());
    assert_true(command_prints(json, expected));
    snprintf(expected, sizeof(expected), "\"address\":\"%s\"", node.address);
    assert_true(command_prints(json, expected));
    assert_true(command_prints(json, "\"bytes\":16777216,"));
    assert_true(command_prints(json, "\"node\":0,\"nodes\":1,\"complete\":true"));
    assert_true(command_prints(json, "\"restarts\":0,"));
    assert_true(command_prints(json, "\"sessions\":0,")); /* a status query does not count as a session */
    assert_true(command_prints(json, "\"came\":"));
    assert_true(command_prints(status, " batches, "));
    net_state seen = daemon_read_status(node.address);
    assert_true(seen.batches > 0 && seen.verbs >= seen.batches && seen.bytes_in > 0 && seen.bytes_out > 0);
}


/* `serve --status` reports an address without a daemon, an invalid address, and a remote address without TLS. */
TEST_WITH(a_node_that_is_not_there_has_no_status, start_node, end_node) {
    fails("farindex serve --status 127.0.0.1:1", 3, "127.0.0.1:1");
    fails("farindex serve --status nonsense", 2, "nonsense");
    fails("farindex serve --status 192.0.2.1:1", 2, "give --secret FILE");
}


/* A daemon with invalid options fails with a message, and neither creates nor removes files. */
TEST_WITH(a_daemon_that_cannot_serve_says_why, fresh, NULL) {
    fails("farindex serve --listen 127.0.0.1:0 --size 64K", 2, "--size: a memory node has 1M to 1T");
    fails("farindex serve --listen 127.0.0.1:0 --memory made", 3, "is needed to create it");
    works("test ! -e made", NULL); /* the failed command has created no file */
    works("umask 077; touch empty", NULL);
    fails("farindex serve --listen 127.0.0.1:0 --memory empty", 3, "is needed to create it");
    works("test -f empty", NULL); /* the failed command has not removed the file */
    fails("farindex serve --listen 127.0.0.1:0 --size 1M --cert nobody --key nobody --ca nobody", 3,
          "cert: nobody cannot be opened: No such file");
}


/* --insecure has precedence over the environment variable FARINDEX_SECRET, which names a secret for all commands
 * without TLS options. Fails without is_explicit in make_tls_config (serve.c). */
TEST_WITH(insecure_overrides_the_environment, start_node, end_node) {
    char words[256];
    snprintf(words, sizeof(words), "FARINDEX_SECRET=nowhere farindex serve --insecure --status %s >list", node.address);
    works(words, NULL);
}


static far_session *connect_to(far_pool **pool) {
    char uri[128];
    far_session *session;
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_ok(far_pool_open(uri, NULL, pool));
    assert_ok(far_session_open(*pool, &session));
    return session;
}


/* The log of the daemon has a line when a client connects, when it closes its session, and when its process is
 * killed. */
TEST_WITH(connected_closed_and_failed_clients_are_logged, start_node, end_node) {
    far_pool *pool;
    far_session_close(connect_to(&pool));
    far_pool_close(pool);
    wait_for_line("client 127.0.0.1:", "has connected");
    wait_for_line("client 127.0.0.1:", "left");
    pid_t child = fork();
    if (child == 0) {
        connect_to(&pool);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    wait_for_line("client 127.0.0.1:", "has disconnected: the connection was closed");
}


/* The log of the daemon has a line when a client is evicted. */
TEST_WITH(evicted_clients_are_logged_as_fenced, start_node, end_node) {
    far_pool *pool;
    char evict[256];
    far_session *session = connect_to(&pool);
    snprintf(evict, sizeof(evict),
             "export FARINDEX_POOL=tcp://%s; farindex evict $(farindex evict --list | awk 'NR == 1 {print $1}')",
             node.address);
    works(evict, NULL);
    wait_for_line("client 127.0.0.1:", "was fenced: it was evicted");
    far_session_close(session);
    far_pool_close(pool);
}


/* `evict --list` shows process, command and host of a client that has no index open and therefore has not published a
 * status record yet. `evict --process` refuses a client of another process. */
TEST_WITH(clients_are_listed_with_their_names, start_node, end_node) {
    far_pool *pool;
    char list[200], host[64], row[160], evict[256];
    far_session *session = connect_to(&pool);
    gethostname(host, sizeof(host));
    snprintf(list, sizeof(list), "farindex evict --list --pool tcp://%s", node.address);
    snprintf(row, sizeof(row), "\t%d\t%s\t%s\t\n", (int)getpid(), program_invocation_short_name, host);
    assert_true(command_prints(list, row));
    snprintf(evict, sizeof(evict), "farindex evict %u --process 1 --pool tcp://%s", session->id, node.address);
    fails(evict, 1, "not 1");
    snprintf(evict, sizeof(evict), "farindex evict %u --process %d --pool tcp://%s", session->id, (int)getpid(),
             node.address);
    snprintf(row, sizeof(row), "evict: client %u, process %d\n", session->id, (int)getpid());
    works(evict, row);
    far_index *index;
    assert_true(far_index_open(session, NULL, &index) < 0); /* overwrites the message of far_last_error */
    assert_true(far_index_open(session, "fruit", &index) < 0);
    assert_non_null(strstr(far_last_error(), "the session is lost"));
    far_session_close(session);
    far_pool_close(pool);
}


/* Control characters (also those of C1) and bytes that are no UTF-8 in the name of a client are replaced, so that it can
 * neither add lines nor control the terminal, and metrics are valid UTF-8. Fails without far_make_printable in stat.c.
 */
TEST_WITH(a_name_is_one_word_of_a_line, start_node, end_node) {
    far_pool *pool;
    char list[200], row[160], *own = program_invocation_short_name;
    far_index *index;
    program_invocation_short_name = "a\tb\n7\033[\xc2\x9b\xff";
    far_session *session = connect_to(&pool);
    snprintf(list, sizeof(list), "farindex evict --list --pool tcp://%s", node.address);
    snprintf(row, sizeof(row), "\t%d\ta?b?7?[???\t", (int)getpid());
    assert_true(command_prints(list, row));
    /* now the handle has a published status record */
    assert_ok(far_index_create(session, "fruit", "dart", NULL, &index));
    assert_true(command_prints(list, row));
    snprintf(list, sizeof(list), "farindex top --prometheus --pool tcp://%s | iconv -f UTF-8 -t UTF-8", node.address);
    assert_true(command_prints(list, ",command=\"a?b?7?[???\","));
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool); /* until then, the housekeeping thread of the handle uses the name */
    program_invocation_short_name = own;
}


/* A self-test on a memory node that is too small fails and names the required size. */
TEST_WITH(a_small_node_has_no_self_test, fresh, NULL) {
    daemon_node small;
    char words[256];
    assert_true(daemon_start(&small, NULL, "--size 2M"));
    snprintf(words, sizeof(words), "farindex create fruit dart --pool tcp://%s", small.address);
    works(words, NULL);
    snprintf(words, sizeof(words), "farindex selftest --pool tcp://%s", small.address);
    fails(words, 3, "nodes of 4M at least: node 0 has not enough");
    daemon_stop(&small);
}


TEST_GROUP(make_folder, remove_folder);


/* Receives one notification to systemd and compares it. */
static void expect_notification(int receiver, const char *state) {
    char text[64];
    ssize_t length = recv(receiver, text, sizeof(text) - 1, 0);
    assert_true(length > 0);
    text[length] = 0;
    assert_string_equal(text, state);
}


/* A systemd service of Type=notify counts as started when the daemon can serve, and as stopping when it ends. The
 * test tries both kinds of socket names: a path, and an abstract name, which begins with '@'. Fails without
 * notify_systemd (serve.c). */
TEST_WITH(systemd_is_notified_of_start_and_stop, fresh, NULL) {
    for (unsigned abstract = 0; abstract < 2; abstract++) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        char name[100];
        snprintf(name, sizeof(name), "%s%s/notify", abstract ? "@" : "", folder);
        memcpy(address.sun_path, name, strlen(name));
        if (abstract)
            address.sun_path[0] = 0;
        int receiver = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        assert_true(receiver >= 0);
        socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
        assert_int_equal(bind(receiver, (struct sockaddr *)&address, size), 0);
        assert_int_equal(setenv("NOTIFY_SOCKET", name, 1), 0);
        daemon_node notifying;
        snprintf(log_name, sizeof(log_name), "%s/log", folder);
        assert_true(daemon_start(&notifying, log_name, "--size 16M"));
        assert_int_equal(unsetenv("NOTIFY_SOCKET"), 0);
        expect_notification(receiver, "READY=1");
        assert_int_equal(daemon_stop(&notifying), 0);
        expect_notification(receiver, "STOPPING=1");
        close(receiver);
        if (!abstract)
            unlink(name);
    }
}
