/* Tests of the rights of a peer of a memory node. The attackers send valid messages to which they have no right; other
 * clients must not notice anything, and nothing may remain in the memory file. */
#define _GNU_SOURCE
#include "fabric/node/memory.h"
#include "network_rig.h"
#include "test.h"
#include "wire.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>

typedef struct two_nodes { /* a pool of two nodes with memory files */
    daemon_node nodes[2];
    char paths[2][64];
    char uri[160];
    unsigned later; /* position of the node that is not node 0 of the pool */
} two_nodes;


static void start_two_nodes(two_nodes *p) {
    for (unsigned i = 0; i < 2; i++) {
        snprintf(p->paths[i], sizeof(p->paths[i]), "/dev/shm/farindex-rights-%d-%u", (int)getpid(), i);
        unlink(p->paths[i]);
        assert_true(daemon_start(&p->nodes[i], NULL, "--size " SIZE " --memory %s", p->paths[i]));
    }
    snprintf(p->uri, sizeof(p->uri), "tcp://%s,%s", p->nodes[0].address, p->nodes[1].address);
    put_and_get(p->uri);
    p->later = daemon_read_status(p->nodes[0].address).node == 0 ? 1 : 0;
}


static void end_two_nodes(two_nodes *p) {
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(daemon_stop(&p->nodes[i]), 0);
        unlink(p->paths[i]);
    }
}


/* Sends messages of this type for all ids, with the largest claim number, and waits until the node has handled them or
 * has closed the connection. A message of the type NET_CLAIM has one entry, the others have many. */
static void send_for_all_ids(const char *address, net_type type, unsigned each) {
    for (unsigned first = 1; first < NET_IDS; first += each) {
        net_link link = wire_dial(address, NET_FOR_SESSION);
        net_claim list[NET_LISTED_MAX] = {0};
        unsigned count = 0;
        for (; count < each && first + count < NET_IDS; count++)
            list[count] = (net_claim){.id = first + count, .claim = UINT64_MAX};
        net_channel_send(&link.channel, type, type == NET_CLAIM ? 0 : count, 1, list, count * sizeof(list[0]));
        net_channel_send(&link.channel, NET_PING, 0, 2, NULL, 0);
        while (net_channel_flush(&link.channel) == 0 && net_channel_receive(&link.channel) >= 0 &&
               !net_channel_has_message(&link.channel))
            usleep(100);
        net_channel_close(&link.channel);
        if (type == NET_CLAIM && first > 64) /* these ids are the first that clients use */
            return;
    }
}


/* A connection without a claim asks a node to fence every claim of every id, also those that no node has issued. The
 * node refuses. The pool remains usable, also after a restart of the node. Fails if on_fence does not check the proof
 * of an entry. */
TEST(only_ended_claims_are_fenced) {
    two_nodes p;
    start_two_nodes(&p);
    send_for_all_ids(p.nodes[p.later].address, NET_FENCE, NET_LISTED_MAX);
    put_and_get(p.uri);
    assert_int_equal(daemon_stop(&p.nodes[p.later]), 0);
    assert_true(daemon_restart(&p.nodes[p.later]));
    put_and_get(p.uri);
    end_two_nodes(&p);
}


/* A connection presents the largest claim number for the ids that clients use first. Node 0 has not issued this number,
 * so the node refuses. Fails if on_claim does not check the proof of the claim. */
TEST(only_issued_claims_are_presented) {
    two_nodes p;
    start_two_nodes(&p);
    send_for_all_ids(p.nodes[p.later].address, NET_CLAIM, 1);
    put_and_get(p.uri);
    end_two_nodes(&p);
}


/* The memory files were written by a version without keys. After the restart the first client gives the pool a key, and
 * the data and the protection are as usual. Fails if count_restart leaves the pool complete: then no node accepts a claim.
 */
TEST(pools_of_older_memory_files_get_a_key) {
    two_nodes p;
    const net_key none = {{0, 0}};
    start_two_nodes(&p);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(daemon_stop(&p.nodes[i]), 0);
        int file = open(p.paths[i], O_WRONLY);
        assert_int_equal(pwrite(file, &none, sizeof(none), offsetof(net_file_header, key)), sizeof(none));
        close(file);
        assert_true(daemon_restart(&p.nodes[i]));
    }
    put_and_get(p.uri);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(daemon_read_status(p.nodes[i].address).complete, 1);
    send_for_all_ids(p.nodes[p.later].address, NET_FENCE, NET_LISTED_MAX);
    put_and_get(p.uri);
    end_two_nodes(&p);
}


/* ---- Peers that may only read ---- */

typedef struct read_rig { /* a daemon with both secrets and a memory file, and a pool on it */
    daemon_node node;
    char path[64], secret[64], read_secret[64];
    char writer[256], reader[256]; /* URIs */
} read_rig;


static void start_read_rig(read_rig *r) {
    snprintf(r->path, sizeof(r->path), "/dev/shm/farindex-reader-%d", (int)getpid());
    snprintf(r->secret, sizeof(r->secret), "/tmp/farindex-writer-secret-%d", (int)getpid());
    snprintf(r->read_secret, sizeof(r->read_secret), "/tmp/farindex-reader-secret-%d", (int)getpid());
    daemon_secret(r->secret, "0123456789abcdef0123456789abcdef");
    daemon_secret(r->read_secret, "abcdef0123456789abcdef0123456789");
    unlink(r->path);
    assert_true(daemon_start(&r->node, NULL, "--size " SIZE " --memory %s --secret %s --read-secret %s", r->path,
                             r->secret, r->read_secret));
    snprintf(r->writer, sizeof(r->writer), "tcp://%s?secret=%s", r->node.address, r->secret);
    snprintf(r->reader, sizeof(r->reader), "tcp://%s?secret=%s", r->node.address, r->read_secret);
}


static void end_read_rig(read_rig *r) {
    assert_int_equal(daemon_stop(&r->node), 0);
    unlink(r->path);
    unlink(r->secret);
    unlink(r->read_secret);
}


static char *read_memory_file(const read_rig *r, size_t *bytes) {
    FILE *file = fopen(r->path, "r");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *content = malloc(*bytes);
    assert_non_null(content);
    assert_int_equal(fread(content, 1, *bytes, file), *bytes);
    fclose(file);
    return content;
}


static int count_index(void *ctx, const char *name, const char *kind) {
    (void)name, (void)kind;
    ++*(unsigned *)ctx;
    return 0;
}


/* A client with the read secret sees the state of the pool: its usage and the names of its indexes. Calls that would
 * change far memory fail with a message. All of that leaves every byte of the memory file unchanged, so the reader has
 * neither a claim nor a registry entry nor a pin. */
TEST(readers_see_a_pool_and_change_nothing) {
    read_rig r;
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_pool_usage usage = {0};
    size_t bytes, bytes_after;
    unsigned indexes = 0;
    start_read_rig(&r);
    assert_not_opened(r.reader, FAR_ERR_NOT_FOUND, "no pool");
    put_and_get(r.writer);
    char *before = read_memory_file(&r, &bytes);
    assert_ok(far_pool_open(r.reader, NULL, &pool));
    assert_ok(far_session_open(pool, &session));
    assert_ok(far_pool_stat(session, &usage));
    assert_int_equal(usage.memory_nodes, 1);
    assert_int_equal(far_index_list(session, count_index, &indexes), 1);
    assert_int_equal(indexes, 1);
    assert_int_equal(far_index_open(session, "i", &index), FAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(far_last_error(), "permits only reading"));
    assert_int_equal(far_index_create(session, "j", "dart", NULL, &index), FAR_ERR_UNSUPPORTED);
    assert_int_equal(far_index_drop(session, "i"), FAR_ERR_UNSUPPORTED);
    assert_int_equal(far_pool_check(session, 0, NULL, NULL), FAR_ERR_UNSUPPORTED);
    assert_ok(far_pool_poll(pool));
    assert_ok(far_pool_stat(session, &usage)); /* the refused calls have not ended the session */
    far_session_close(session);
    far_pool_close(pool);
    char *after = read_memory_file(&r, &bytes_after);
    assert_int_equal(bytes, bytes_after);
    assert_memory_equal(before, after, bytes);
    free(before);
    free(after);
    put_and_get(r.writer);
    end_read_rig(&r);
}


static void assert_prints(const char *command, const char *uri, const char *words) {
    char line[512], text[16384] = "";
    snprintf(line, sizeof(line), "%s %s --pool '%s'", FARINDEX_COMMAND, command, uri);
    FILE *output = popen(line, "r");
    size_t length = fread(text, 1, sizeof(text) - 1, output);
    text[length] = 0;
    int status = pclose(output);
    if (status != 0 || !strstr(text, words))
        fail_msg("%s: status %d, '%s', without '%s'", command, status, text, words);
}


/* The commands for monitoring work with the read secret while another client is connected, and name this client. */
TEST(readers_can_monitor) {
    read_rig r;
    far_pool *pool;
    far_session *session;
    start_read_rig(&r);
    put_and_get(r.writer);
    assert_ok(far_pool_open(r.writer, NULL, &pool));
    assert_ok(far_session_open(pool, &session));
    assert_prints("list", r.reader, "i\tdart");
    assert_prints("stat", r.reader, "total");
    assert_prints("top --json", r.reader, "\"command\":\"test_network_rig");
    assert_prints("top --prometheus", r.reader, "farindex_round_trips_total{client=");
    assert_prints("evict --list", r.reader, "test_network_rig");
    far_session_close(session);
    far_pool_close(pool);
    end_read_rig(&r);
}


/* Connects with the read secret, for this purpose. */
static net_link dial_as_reader(const read_rig *r, net_tls_context *tls, net_purpose purpose) {
    net_address address;
    net_link link;
    char error[128];
    net_dial_options how = {.tls = tls, .purpose = purpose, .timeout_ms = 10000};
    assert_int_equal(net_address_parse(r->node.address, strlen(r->node.address), &address, error, sizeof(error)), 0);
    assert_ok(net_links_open(&link, &address, 1, &how));
    assert_int_equal(link.welcome.reads_only, 1);
    return link;
}


/* Sends a message, and then a ping. Returns true if the node answers the ping, false if it refuses and closes the
 * connection. */
static bool is_permitted(net_link *link, net_type type, unsigned count, const void *body, size_t bytes) {
    net_head head = {0};
    const char *answer;
    struct pollfd one = {.fd = link->channel.socket, .events = POLLIN};
    bool permitted = false;
    net_channel_send(&link->channel, type, count, 1, body, bytes);
    net_channel_send(&link->channel, NET_PING, 0, 2, NULL, 0);
    while (!permitted && net_channel_flush(&link->channel) == 0 && net_channel_receive(&link->channel) >= 0) {
        while (net_channel_next(&link->channel, true, &head, &answer) > 0)
            permitted |= head.type == NET_PONG;
        if (!permitted)
            assert_true(poll(&one, 1, 60000) >= 0);
    }
    net_channel_close(&link->channel);
    return permitted;
}


/* The daemon itself enforces the rights of a reader. The reader sends each message that changes something, for both
 * purposes, and verbs of all kinds. Only READs are executed. Fails without check_sender, or without the check of `reads_only` in
 * on_batch. */
TEST(the_daemon_refuses_changes_by_readers) {
    static const struct {
        net_type type;
        size_t bytes;
        bool listed, permitted;
    } messages[] = {{NET_JOIN, sizeof(net_join), false, false},
                    {NET_CLAIM, sizeof(net_claim), false, false},
                    {NET_RELEASE, 0, false, false},
                    {NET_FENCE, sizeof(net_claim), true, false},
                    {NET_EVICT, sizeof(net_claim), false, false},
                    {NET_NOTIFY_ALL, 0, false, false},
                    {NET_SUBSCRIBE, 0, false, false},
                    {NET_RECORD, sizeof(net_record), false, false},
                    {NET_QUEUE_PAIR, 0, false, false},
                    {NET_STATUS, 0, false, true},
                    {NET_QUERY, sizeof(net_claim), true, true},
                    {NET_NAME, sizeof(net_claim), false, true}};
    read_rig r;
    net_tls_context *tls;
    size_t bytes;
    char body[256] = {0};
    uint64_t word = 7;
    start_read_rig(&r);
    put_and_get(r.writer);
    char *before = read_memory_file(&r, &bytes);
    assert_ok(net_tls_open(&(net_tls_config){.secret = r.read_secret}, false, &tls));
    net_claim claim = {.id = 1, .generation = 1};
    memcpy(body, &claim, sizeof(claim));
    for (unsigned i = 0; i < sizeof(messages) / sizeof(messages[0]); i++)
        for (unsigned purpose = NET_FOR_SESSION; purpose <= NET_FOR_INSPECTION; purpose++) {
            net_link link = dial_as_reader(&r, tls, (net_purpose)purpose);
            bool for_session_only = messages[i].type == NET_QUERY || messages[i].type == NET_NAME;
            assert_int_equal(is_permitted(&link, messages[i].type, messages[i].listed, body, messages[i].bytes),
                             messages[i].permitted && (purpose == NET_FOR_SESSION || !for_session_only));
        }
    for (unsigned kind = 0; kind < FAR_VERB_KINDS; kind++) {
        net_link link = dial_as_reader(&r, tls, NET_FOR_SESSION);
        far_verb verb = {.kind = (uint8_t)kind, .length = 8, .addr = 2048, .local = &word, .swap = 1};
        char *end = net_verb_put(body, &verb, 0, 8);
        assert_int_equal(is_permitted(&link, NET_BATCH, 1, body, (size_t)(end - body)), kind == FAR_READ);
    }
    char *after = read_memory_file(&r, &bytes);
    assert_memory_equal(before, after, bytes);
    free(before);
    free(after);
    net_tls_close(tls);
    end_read_rig(&r);
}


/* A daemon refuses to start with a read secret that is also the secret, or with a read secret only. */
TEST(the_two_secrets_must_differ) {
    read_rig r;
    daemon_node node;
    int status;
    start_read_rig(&r);
    assert_false(daemon_start(&node, NULL, "--size " SIZE " --secret %s --read-secret %s", r.secret, r.secret));
    waitpid(node.pid, &status, 0);
    assert_int_equal(WEXITSTATUS(status), 3);
    assert_false(daemon_start(&node, NULL, "--size " SIZE " --read-secret %s", r.read_secret));
    waitpid(node.pid, &status, 0);
    assert_int_equal(WEXITSTATUS(status), 3);
    end_read_rig(&r);
}
