/* What leaves when: batches that are posted together are one send, and so are their answers; posting never blocks; who
 * sleeps on sockets can be woken; a handle with nothing to do posts little. */
#define _GNU_SOURCE
#include "client/client.h"
#include "fabric/tcp.h"
#include "wire.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BATCHES 12

static _Atomic unsigned sends, receives; /* of this process, that moved something */


/* In place of the C library's. */
ssize_t send(int socket, const void *bytes, size_t count, int flags) {
    ssize_t put = syscall(SYS_sendto, socket, bytes, count, flags, NULL, 0);
    atomic_fetch_add(&sends, put > 0);
    return put;
}


ssize_t recv(int socket, void *bytes, size_t count, int flags) {
    ssize_t got = syscall(SYS_recvfrom, socket, bytes, count, flags, NULL, NULL);
    atomic_fetch_add(&receives, got > 0);
    return got;
}


static void batches_leave_in_one_send_and_come_back_in_one(void **state) {
    (void)state;
    wire g;
    uint64_t words[BATCHES];
    far_verb verbs[BATCHES];
    far_batch batches[BATCHES];
    wire_up(&g, "");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    atomic_store(&sends, 0);
    atomic_store(&receives, 0);
    for (unsigned i = 0; i < BATCHES; i++) {
        verbs[i] = (far_verb){.kind = FAR_READ, .length = 8, .addr = 64 * i, .local = &words[i]};
        batches[i] = (far_batch){.verbs = &verbs[i], .count = 1, .done = wire_batch_is_done};
        g.fabric->ops->post(g.conn, &batches[i]);
    }
    assert_int_equal(atomic_load(&sends), 0); /* not before the next poll */
    for (unsigned i = 0; i < BATCHES; i++)
        wire_finish(&g, &batches[i]);
    assert_int_equal(atomic_load(&sends), 1);
    assert_int_equal(atomic_load(&receives), 1);
    wire_down(&g);
}


/* The daemon stands still, and takes nothing: what its socket does not take is queued here. */
static void posting_never_blocks(void **state) {
    (void)state;
    wire g;
    static char megabyte[1 << 20];
    far_verb verbs[BATCHES];
    far_batch batches[BATCHES];
    wire_up(&g, "?timeout=60s");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    assert_int_equal(wire_ask(&g, FAR_ASK_CLAIM, 1, 1), 0);
    kill(g.node.pid, SIGSTOP);
    memset(megabyte, 7, sizeof(megabyte));
    for (unsigned i = 0; i < BATCHES; i++) {
        verbs[i] = (far_verb){.kind = FAR_WRITE, .length = sizeof(megabyte), .addr = (i + 1) << 20, .local = megabyte};
        batches[i] = (far_batch){.verbs = &verbs[i], .count = 1, .done = wire_batch_is_done};
        g.fabric->ops->post(g.conn, &batches[i]);
        g.fabric->ops->poll(g.conn);
    }
    assert_true(net_channel_queued(&((tcp_conn *)g.conn)->nodes[0].channel) > 0); /* more than sockets take */
    kill(g.node.pid, SIGCONT);
    for (unsigned i = 0; i < BATCHES; i++)
        wire_finish(&g, &batches[i]);
    assert_true(wire_read(&g, ((BATCHES + 1ull) << 20) - 8) == 0x0707070707070707ull);
    wire_down(&g);
}


static void *wait_for_ever(void *arg) {
    wire *g = arg;
    g->fabric->ops->wait(g->conn, FAR_TIME_NEVER);
    return NULL;
}


/* Before it sleeps, or while it does. */
static void who_sleeps_on_sockets_can_be_woken(void **state) {
    (void)state;
    wire g;
    wire_up(&g, "");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    for (unsigned asleep = 0; asleep < 2; asleep++) {
        pthread_t thread;
        if (!asleep)
            g.fabric->host->ops->unpark(g.fabric->host, &g.parker);
        assert_int_equal(pthread_create(&thread, NULL, wait_for_ever, &g), 0);
        if (asleep)
            usleep(20000);
        if (asleep)
            g.fabric->host->ops->unpark(g.fabric->host, &g.parker);
        pthread_join(thread, NULL);
    }
    wire_down(&g);
}


/* A handle is awake for a while after an operation: it posts at most two batches in each of its slices. */
static void an_awake_handle_posts_two_batches_a_tick_at_most(void **state) {
    (void)state;
    daemon_node node;
    far_pool *pool;
    far_session *session;
    far_index *index;
    char uri[128];
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    assert_true(daemon_start(&node, NULL, "--size 16M"));
    snprintf(uri, sizeof(uri), "tcp://%s", node.address);
    assert_ok(far_pool_open(uri, &options, &pool));
    assert_ok(far_session_open(pool, &session));
    assert_ok(far_index_create(session, "i", "dart", NULL, &index));
    assert_ok(far_put(session, index, "key", 3, "value", 5));
    for (unsigned i = 0; i < 20; i++) /* what making an index has left */
        far_housekeeping(pool);
    uint64_t before = daemon_look(node.address).batches;
    unsigned ticks = 0;
    for (; ticks < 50 && far_epoch_is_awake(pool); ticks++) {
        usleep(1000);
        far_housekeeping(pool);
    }
    uint64_t posted = daemon_look(node.address).batches - before;
    print_message("%u ticks: %llu batches\n", ticks, (unsigned long long)posted);
    assert_true(ticks > 10 && posted <= 2 * ticks);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    assert_int_equal(daemon_stop(&node), 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_leave_in_one_send_and_come_back_in_one),
        cmocka_unit_test(posting_never_blocks),
        cmocka_unit_test(who_sleeps_on_sockets_can_be_woken),
        cmocka_unit_test(an_awake_handle_posts_two_batches_a_tick_at_most),
    };
    return cmocka_run_group_tests_name("net/traffic", tests, NULL, NULL);
}
