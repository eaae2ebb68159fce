/* Tests that count sends, receives and sleeps of the client: batches that are posted together leave in one send, and so
 * do their answers; posting never blocks; a thread that sleeps on sockets can be woken; an idle wait does not poll. */
#define _GNU_SOURCE
#include "fabric/tcp/tcp.h"
#include "test.h"
#include "wire.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BATCHES 12

static _Atomic unsigned sends, receives; /* numbers of successful sends and receives of this process */
static _Atomic unsigned tries, sleeps; /* `tries`: number of calls of recv; `sleeps`: number of waits that may sleep */
static _Atomic unsigned yields;          /* number of calls of sched_yield by a wait that polls */


/* Replaces the function of the C library, as do the next three functions. */
ssize_t send(int socket, const void *bytes, size_t count, int flags) {
    ssize_t put = syscall(SYS_sendto, socket, bytes, count, flags, NULL, 0);
    atomic_fetch_add(&sends, put > 0);
    return put;
}


ssize_t recv(int socket, void *bytes, size_t count, int flags) {
    ssize_t got = syscall(SYS_recvfrom, socket, bytes, count, flags, NULL, NULL);
    atomic_fetch_add(&receives, got > 0);
    atomic_fetch_add(&tries, 1);
    return got;
}


int epoll_wait(int epoll, struct epoll_event *events, int room, int ms) {
    atomic_fetch_add(&sleeps, ms != 0);
    return (int)syscall(SYS_epoll_pwait, epoll, events, room, ms, NULL, 8);
}


int sched_yield(void) {
    atomic_fetch_add(&yields, 1);
    return (int)syscall(SYS_sched_yield);
}


static void forget_counts(void) {
    atomic_store(&yields, 0);
    atomic_store(&sends, 0);
    atomic_store(&receives, 0);
    atomic_store(&tries, 0);
    atomic_store(&sleeps, 0);
}


/* Twelve batches that are posted before the next poll leave in one send, and their answers arrive in one receive. Fails
 * if tcp_post flushes the socket. */
TEST(batches_leave_in_one_send_and_come_back_in_one) {
    wire g;
    uint64_t words[BATCHES];
    far_verb verbs[BATCHES];
    far_batch batches[BATCHES];
    wire_up(&g, "");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    forget_counts();
    for (unsigned i = 0; i < BATCHES; i++) {
        verbs[i] = (far_verb){.kind = FAR_READ, .length = 8, .addr = 64 * i, .local = &words[i]};
        batches[i] = (far_batch){.verbs = &verbs[i], .count = 1, .done = wire_batch_is_done};
        g.fabric->ops->post(g.conn, &batches[i]);
    }
    assert_int_equal(atomic_load(&sends), 0); /* nothing is sent before the next poll */
    for (unsigned i = 0; i < BATCHES; i++)
        wire_finish(&g, &batches[i]);
    assert_int_equal(atomic_load(&sends), 1);
    assert_int_equal(atomic_load(&receives), 1);
    wire_down(&g);
}


/* Posts and sends a batch, and waits until its answer has arrived in the socket. */
static void post_and_await_the_answer(wire *g, far_batch *batch) {
    struct pollfd answer = {.fd = ((tcp_conn *)g->conn)->nodes[0].channel.socket, .events = POLLIN};
    g->fabric->ops->post(g->conn, batch);
    g->fabric->ops->poll(g->conn);
    assert_int_equal(poll(&answer, 1, -1), 1);
    forget_counts();
}


/* A wait polls the socket before it sleeps. So if the answer has arrived, the wait costs one call of recv and no other
 * system call. While polling is paused, the wait calls epoll first. Fails without poll_sockets. */
TEST(a_wait_receives_an_answer_without_sleeping) {
    wire g;
    uint64_t word;
    far_verb verb = {.kind = FAR_READ, .length = 8, .addr = 64, .local = &word};
    far_batch batch = {.verbs = &verb, .count = 1, .done = wire_batch_is_done};
    wire_up(&g, "");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    for (unsigned rests = 0; rests < 2; rests++) {
        post_and_await_the_answer(&g, &batch);
        ((tcp_conn *)g.conn)->busy_poll.paused_until = rests ? UINT64_MAX : 0;
        g.fabric->ops->wait(g.conn, FAR_TIME_NEVER);
        assert_int_equal(atomic_load(&sleeps), rests);
        assert_int_equal(atomic_load(&tries), 1 - rests);
        assert_int_equal(g.fabric->ops->poll(g.conn), 1);
        assert_true(!batch.pending && batch.status == 0);
        assert_int_equal(atomic_load(&tries), 1);
        assert_int_equal(atomic_load(&receives), 1);
        assert_int_equal(atomic_load(&sends), 0);
    }
    wire_down(&g);
}


typedef struct one_read {
    uint64_t word;
    far_verb verb;
    far_batch batch;
} one_read;


/* Lets a wait that polls read an answer from the socket. No poll of the connection has handled the answer when the
 * function returns. */
static void receive_in_a_wait(wire *g, const char *options, one_read *read) {
    read->verb = (far_verb){.kind = FAR_READ, .length = 8, .addr = 64, .local = &read->word};
    read->batch = (far_batch){.verbs = &read->verb, .count = 1, .done = wire_batch_is_done};
    wire_up(g, options);
    assert_ok(g->fabric->ops->connect(g->fabric, &g->parker, &g->conn));
    post_and_await_the_answer(g, &read->batch);
    ((tcp_conn *)g->conn)->busy_poll.paused_until = 0;
    g->fabric->ops->wait(g->conn, FAR_TIME_NEVER);
}


/* The first wait, which polls, reads the answer from the socket. The second wait, for which polling is paused, must not
 * sleep, because epoll would not report the answer again. Fails without has_received_data. */
TEST(a_second_wait_does_not_sleep_on_received_data) {
    wire g;
    one_read read;
    /* The timeout of 2 s is long enough to notice if the second wait sleeps. */
    receive_in_a_wait(&g, "?timeout=2s", &read);
    ((tcp_conn *)g.conn)->busy_poll.paused_until = UINT64_MAX;
    g.fabric->ops->wait(g.conn, FAR_TIME_NEVER);
    assert_int_equal(atomic_load(&sleeps), 0);
    assert_int_equal(g.fabric->ops->poll(g.conn), 1);
    wire_down(&g);
}


/* The connection is lost after a wait has read an answer and before a poll has handled it. No poll will handle this
 * answer any more, so the next wait sleeps. Fails if tcp_fail_connection does not reset receive_result. */
TEST(a_lost_connection_ignores_received_data) {
    wire g;
    one_read read;
    receive_in_a_wait(&g, "", &read);
    g.fabric->ops->fence_self(g.conn);
    assert_int_equal(g.fabric->ops->poll(g.conn), 1);
    assert_int_equal(read.batch.status, FAR_ERR_FENCED);
    uint64_t until = far_host_now(g.fabric->host) + 10000000;
    g.fabric->ops->wait(g.conn, until);
    assert_true(far_host_now(g.fabric->host) >= until);
    wire_down(&g);
}


/* A wait without outstanding requests does not poll the sockets. Fails without polling_is_useful. */
TEST(an_idle_wait_does_not_poll) {
    wire g;
    wire_up(&g, "");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    forget_counts();
    g.fabric->ops->wait(g.conn, far_host_now(g.fabric->host) + 1000000);
    assert_int_equal(atomic_load(&tries), 0);
    assert_int_equal(atomic_load(&yields), 0);
    wire_down(&g);
}


/* The daemon is stopped and reads nothing. The client can still post; data that the socket does not accept stays in the
 * output queue. */
TEST(posting_never_blocks) {
    wire g;
    static char megabyte[1 << 20];
    far_verb verbs[BATCHES];
    far_batch batches[BATCHES];
    wire_up(&g, "?timeout=60s");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    assert_int_equal(wire_ask(&g, FAR_CONTROL_CLAIM, 1, 1), 0);
    kill(g.node.pid, SIGSTOP);
    memset(megabyte, 7, sizeof(megabyte));
    for (unsigned i = 0; i < BATCHES; i++) {
        verbs[i] = (far_verb){.kind = FAR_WRITE, .length = sizeof(megabyte), .addr = (i + 1) << 20, .local = megabyte};
        batches[i] = (far_batch){.verbs = &verbs[i], .count = 1, .done = wire_batch_is_done};
        g.fabric->ops->post(g.conn, &batches[i]);
        g.fabric->ops->poll(g.conn);
    }
    /* The client has queued more data than the sockets accept. */
    assert_true(net_channel_queued(&((tcp_conn *)g.conn)->nodes[0].channel) > 0);
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


/* A thread that sleeps on sockets is woken by an unpark, whether it happens before the thread sleeps or while it
 * sleeps. */
TEST(a_thread_that_sleeps_on_sockets_can_be_woken) {
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


typedef struct fruit { /* an index on one daemon, and a handle without a housekeeping thread that has the index open */
    daemon_node node;
    far_pool *pool;
    far_session *session;
    far_index *index;
} fruit;


static void open_fruit(fruit *f, const char *kind) {
    char uri[128];
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    assert_true(daemon_start(&f->node, NULL, "--size 16M"));
    snprintf(uri, sizeof(uri), "tcp://%s", f->node.address);
    assert_ok(far_pool_open(uri, &options, &f->pool));
    assert_ok(far_session_open(f->pool, &f->session));
    assert_ok(far_index_create(f->session, "i", kind, NULL, &f->index));
}


static void close_fruit(fruit *f) {
    far_index_close(f->index);
    far_session_close(f->session);
    far_pool_close(f->pool);
    assert_int_equal(daemon_stop(&f->node), 0);
}


static void get_together(fruit *f, uint64_t keys[BATCHES]) {
    char values[BATCHES][8];
    far_op ops[BATCHES], *all[BATCHES], *done[BATCHES];
    for (unsigned i = 0; i < BATCHES; i++) {
        ops[i] = (far_op){.kind = FAR_OP_GET, .index = f->index, .key = &keys[i], .key_len = 8};
        ops[i].value = values[i];
        ops[i].capacity = sizeof(values[i]);
        all[i] = &ops[i];
    }
    assert_int_equal(far_submit(f->session, all, BATCHES), BATCHES);
    assert_int_equal(far_reap(f->session, done, BATCHES, BATCHES), BATCHES);
    for (unsigned i = 0; i < BATCHES; i++)
        assert_true(ops[i].result == 0 && memcmp(values[i], &keys[i], 8) == 0);
}


/* Several gets are in flight together. All of them together need only as many sends and as many receives as a single
 * get needs round trips, because the verbs of all gets leave in one send. A get needs two round trips if the value is
 * stored outside of the index, and otherwise one. */
TEST(gets_in_flight_share_their_sends) {
    const char *kinds[] = {"smart", "shard", "chime", "dolphin"};
    const unsigned round_trips[] = {1, 2, 2, 2};
    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        fruit f;
        uint64_t keys[BATCHES];
        open_fruit(&f, kinds[k]);
        for (unsigned i = 0; i < BATCHES; i++) {
            keys[i] = (i + 1) * 0x9e3779b97f4a7c15ull;
            assert_ok(far_put(f.session, f.index, &keys[i], 8, &keys[i], 8));
        }
        /* The first two rounds fill the caches, so that cache misses do not affect the counts. */
        get_together(&f, keys);
        get_together(&f, keys);
        forget_counts();
        get_together(&f, keys);
        print_message("%s: %u gets, %u sends, %u receives\n", kinds[k], BATCHES, atomic_load(&sends),
                      atomic_load(&receives));
        assert_int_equal(atomic_load(&sends), round_trips[k]);
        assert_int_equal(atomic_load(&receives), round_trips[k]);
        close_fruit(&f);
    }
}
