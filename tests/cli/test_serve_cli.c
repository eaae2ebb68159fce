/* farindex serve by hand: what it says of itself, and its log: a line for each client that comes, goes or is cut. */
#define _GNU_SOURCE
#include "daemons.h"
#include "shell.h"
#include "task/session.h"

#include <errno.h>
#include <signal.h>

#define LOG_SECONDS 600 /* a line that is not there by then never comes */

static daemon_node node;
static char log_name[128];


static int start_node(void **state) {
    snprintf(log_name, sizeof(log_name), "%s/log", folder);
    return fresh(state) || !daemon_start(&node, log_name, "--size 16M");
}


static int end_node(void **state) {
    (void)state;
    return daemon_stop(&node);
}


/* Waits until the log has a line with both. */
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


static bool says(const char *words, const char *what) {
    outcome o = run("%s", words);
    bool found = o.status == 0 && *o.err == 0 && strstr(o.out, what);
    if (!found)
        print_error("%s\n  status %d, without '%s'\n  stdout: %s\n  stderr: %s\n", words, o.status, what, o.out, o.err);
    done(&o);
    return found;
}


static void a_node_tells_of_itself(void **state) {
    (void)state;
    char status[256], json[300], create[256], expected[128];
    snprintf(status, sizeof(status), "farindex serve --status %s", node.address);
    snprintf(json, sizeof(json), "%s --json", status);
    snprintf(create, sizeof(create), "farindex create fruit dart --pool tcp://%s 2>/dev/null", node.address);
    assert_true(says(json, "\"pool\": \"0000000000000000\"")); /* it belongs to none yet */
    works(create, NULL);
    snprintf(expected, sizeof(expected), "\"version\": \"%s\"", far_version());
    assert_true(says(json, expected));
    snprintf(expected, sizeof(expected), "\"address\": \"%s\"", node.address);
    assert_true(says(json, expected));
    assert_true(says(json, "\"bytes\": 16777216,"));
    assert_true(says(json, "\"node\": 0, \"nodes\": 1, \"complete\": true"));
    assert_true(says(json, "\"restarts\": 0,"));
    assert_true(says(json, "\"sessions\": 0,")); /* who came for a look is no client */
    assert_true(says(json, "\"came\": "));
    assert_true(says(status, " batches, "));
    net_state seen = daemon_look(node.address);
    assert_true(seen.batches > 0 && seen.verbs >= seen.batches && seen.bytes_in > 0 && seen.bytes_out > 0);
}


static void a_node_that_is_not_there_has_no_status(void **state) {
    (void)state;
    fails("farindex serve --status 127.0.0.1:1", 3, "127.0.0.1:1");
    fails("farindex serve --status nonsense", 2, "nonsense");
    fails("farindex serve --status 192.0.2.1:1", 2, "give --secret FILE");
}


static void what_cannot_be_served_is_said(void **state) {
    (void)state;
    fails("farindex serve --listen 127.0.0.1:0 --size 64K", 2, "--size: a memory node has 1M to 1T");
    fails("farindex serve --listen 127.0.0.1:0 --memory made", 3, "no --size to make it");
    works("test ! -e made", NULL); /* and nothing is left behind, */
    works("touch empty", NULL);
    fails("farindex serve --listen 127.0.0.1:0 --memory empty", 3, "no --size to make it");
    works("test -f empty", NULL); /* nor taken away */
    fails("farindex serve --listen 127.0.0.1:0 --size 1M --cert nobody --key nobody --ca nobody", 3,
          "cert: nobody cannot be opened: No such file");
}


/* The environment names a secret for all who say nothing else: a daemon that is to be insecure is, as its clients are. */
static void insecure_stands_against_the_environment(void **state) {
    (void)state;
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


static void who_comes_leaves_or_dies_is_logged(void **state) {
    (void)state;
    far_pool *pool;
    far_session_close(connect_to(&pool));
    far_pool_close(pool);
    wait_for_line("client 127.0.0.1:", "came");
    wait_for_line("client 127.0.0.1:", "left");
    pid_t child = fork();
    if (child == 0) {
        connect_to(&pool);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    wait_for_line("client 127.0.0.1:", "is gone: the connection was closed");
}


static void who_is_evicted_is_logged_as_cut(void **state) {
    (void)state;
    far_pool *pool;
    char evict[256];
    far_session *session = connect_to(&pool);
    snprintf(evict, sizeof(evict),
             "export FARINDEX_POOL=tcp://%s; farindex evict $(farindex evict --list | awk 'NR == 1 {print $1}')",
             node.address);
    works(evict, NULL);
    wait_for_line("client 127.0.0.1:", "was cut: it was evicted");
    far_session_close(session);
    far_pool_close(pool);
}


/* Also a client that has no index open, whose bulletin nobody can read. */
static void clients_have_names(void **state) {
    (void)state;
    far_pool *pool;
    char list[200], host[64], row[160], evict[256];
    far_session *session = connect_to(&pool);
    gethostname(host, sizeof(host));
    snprintf(list, sizeof(list), "farindex evict --list --pool tcp://%s", node.address);
    snprintf(row, sizeof(row), "\t%d\t%s\t%s\t\n", (int)getpid(), program_invocation_short_name, host);
    assert_true(says(list, row));
    snprintf(evict, sizeof(evict), "farindex evict %u --process 1 --pool tcp://%s", session->id, node.address);
    fails(evict, 1, "not 1");
    snprintf(evict, sizeof(evict), "farindex evict %u --process %d --pool tcp://%s", session->id, (int)getpid(),
             node.address);
    snprintf(row, sizeof(row), "evict: client %u, process %d\n", session->id, (int)getpid());
    works(evict, row);
    far_index *index;
    assert_true(far_index_open(session, NULL, &index) < 0); /* words that nobody must be told again */
    assert_true(far_index_open(session, "fruit", &index) < 0);
    assert_non_null(strstr(far_last_error(), "the session is lost"));
    far_session_close(session);
    far_pool_close(pool);
}


/* A name is what its process says: it makes no lines of its own. */
static void a_name_is_one_word_of_a_line(void **state) {
    (void)state;
    far_pool *pool;
    char list[200], row[160], *own = program_invocation_short_name;
    far_index *index;
    program_invocation_short_name = "a\tb\n7\033[31m";
    far_session *session = connect_to(&pool);
    snprintf(list, sizeof(list), "farindex evict --list --pool tcp://%s", node.address);
    snprintf(row, sizeof(row), "\t%d\ta?b?7?[31m\t", (int)getpid());
    assert_true(says(list, row));
    assert_ok(far_index_create(session, "fruit", "dart", NULL, &index)); /* now its bulletin tells it */
    assert_true(says(list, row));
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool); /* its thread looks at the name until then */
    program_invocation_short_name = own;
}


/* A self-test that finds no room says what it needs. */
static void a_small_node_has_no_self_test(void **state) {
    (void)state;
    daemon_node small;
    char words[256];
    assert_true(daemon_start(&small, NULL, "--size 2M"));
    snprintf(words, sizeof(words), "farindex create fruit dart --pool tcp://%s", small.address);
    works(words, NULL);
    snprintf(words, sizeof(words), "farindex selftest --pool tcp://%s", small.address);
    fails(words, 3, "nodes of 4M at least: node 0 has no room");
    daemon_stop(&small);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_node_tells_of_itself, start_node, end_node),
        cmocka_unit_test_setup_teardown(a_node_that_is_not_there_has_no_status, start_node, end_node),
        cmocka_unit_test_setup_teardown(insecure_stands_against_the_environment, start_node, end_node),
        cmocka_unit_test_setup_teardown(clients_have_names, start_node, end_node),
        cmocka_unit_test_setup_teardown(a_name_is_one_word_of_a_line, start_node, end_node),
        cmocka_unit_test_setup_teardown(what_cannot_be_served_is_said, fresh, NULL),
        cmocka_unit_test_setup_teardown(a_small_node_has_no_self_test, fresh, NULL),
        cmocka_unit_test_setup_teardown(who_comes_leaves_or_dies_is_logged, start_node, end_node),
        cmocka_unit_test_setup_teardown(who_is_evicted_is_logged_as_cut, start_node, end_node),
    };
    return cmocka_run_group_tests_name("cli/serve", tests, make_folder, remove_folder);
}
