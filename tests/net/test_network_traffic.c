/* What leaves when: batches that are posted together are one send, and so are their answers; posting never blocks; who
 * sleeps on sockets can be woken; a handle with nothing to do posts little. */
#define _GNU_SOURCE
#include "fabric/tcp.h"
#include "wire.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BATCHES 12

static _Atomic unsigned sends, receives; /* of this process, that moved something */
static _Atomic unsigned tries, sleeps;   /* of receiving, and waits on descriptors that may sleep */
static _Atomic unsigned yields;          /* of a wait that looks */


/* In place of the C library's. */
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


static void batches_leave_in_one_send_and_come_back_in_one(void **state) {
    (void)state;
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
    assert_int_equal(atomic_load(&sends), 0); /* not before the next poll */
    for (unsigned i = 0; i < BATCHES; i++)
        wire_finish(&g, &batches[i]);
    assert_int_equal(atomic_load(&sends), 1);
    assert_int_equal(atomic_load(&receives), 1);
    wire_down(&g);
}


/* A batch leaves, and its answer is there. */
static void post_and_await_the_answer(wire *g, far_batch *batch) {
    struct pollfd answer = {.fd = ((tcp_conn *)g->conn)->nodes[0].channel.socket, .events = POLLIN};
    g->fabric->ops->post(g->conn, batch);
    g->fabric->ops->poll(g->conn);
    assert_int_equal(poll(&answer, 1, -1), 1);
    forget_counts();
}


/* A wait looks before it sleeps: an answer that is there costs one receive, and no call beside it. A wait that rests from
 * looking asks the kernel first. */
static void a_wait_takes_what_is_there_without_sleeping(void **state) {
    (void)state;
    wire g;
    uint64_t word;
    far_verb verb = {.kind = FAR_READ, .length = 8, .addr = 64, .local = &word};
    far_batch batch = {.verbs = &verb, .count = 1, .done = wire_batch_is_done};
    wire_up(&g, "");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    for (unsigned rests = 0; rests < 2; rests++) {
        post_and_await_the_answer(&g, &batch);
        ((tcp_conn *)g.conn)->linger.rests_until = rests ? UINT64_MAX : 0;
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


/* The answer is taken off the socket by a wait, which looks; no poll has it yet. */
static void take_in_a_wait(wire *g, const char *options, one_read *read) {
    read->verb = (far_verb){.kind = FAR_READ, .length = 8, .addr = 64, .local = &read->word};
    read->batch = (far_batch){.verbs = &read->verb, .count = 1, .done = wire_batch_is_done};
    wire_up(g, options);
    assert_ok(g->fabric->ops->connect(g->fabric, &g->parker, &g->conn));
    post_and_await_the_answer(g, &read->batch);
    ((tcp_conn *)g->conn)->linger.rests_until = 0;
    g->fabric->ops->wait(g->conn, FAR_TIME_NEVER);
}


/* The answer is taken off the socket by the first wait, which looks. The second one, which may not look, must not sleep for it. */
static void a_second_wait_does_not_sleep_over_what_the_first_took(void **state) {
    (void)state;
    wire g;
    one_read read;
    take_in_a_wait(&g, "?timeout=2s", &read); /* so long it would sleep */
    ((tcp_conn *)g.conn)->linger.rests_until = UINT64_MAX;
    g.fabric->ops->wait(g.conn, FAR_TIME_NEVER);
    assert_int_equal(atomic_load(&sleeps), 0);
    assert_int_equal(g.fabric->ops->poll(g.conn), 1);
    wire_down(&g);
}


/* The connection is lost before a poll has what a wait took: nobody will have it, and the next wait sleeps. */
static void a_lost_connection_sleeps_over_what_it_had(void **state) {
    (void)state;
    wire g;
    one_read read;
    take_in_a_wait(&g, "", &read);
    g.fabric->ops->fence_self(g.conn);
    assert_int_equal(g.fabric->ops->poll(g.conn), 1);
    assert_int_equal(read.batch.status, FAR_ERR_FENCED);
    uint64_t until = far_host_now(g.fabric->host) + 10000000;
    g.fabric->ops->wait(g.conn, until);
    assert_true(far_host_now(g.fabric->host) >= until);
    wire_down(&g);
}


/* Who waits for nothing has nothing to look for. */
static void an_idle_wait_does_not_look(void **state) {
    (void)state;
    wire g;
    wire_up(&g, "");
    assert_ok(g.fabric->ops->connect(g.fabric, &g.parker, &g.conn));
    forget_counts();
    g.fabric->ops->wait(g.conn, far_host_now(g.fabric->host) + 1000000);
    assert_int_equal(atomic_load(&tries), 0);
    assert_int_equal(atomic_load(&yields), 0);
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


typedef struct fruit { /* an index on a daemon of its own, and a handle that does nothing by itself */
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


/* Gets that are in flight together cost as many sends and receives as one of them has round trips: two where the value
 * lies beside the index. */
static void gets_in_flight_share_their_sends(void **state) {
    (void)state;
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
        get_together(&f, keys); /* what is learned at first is not counted */
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_leave_in_one_send_and_come_back_in_one),
        cmocka_unit_test(a_wait_takes_what_is_there_without_sleeping),
        cmocka_unit_test(a_second_wait_does_not_sleep_over_what_the_first_took),
        cmocka_unit_test(a_lost_connection_sleeps_over_what_it_had),
        cmocka_unit_test(an_idle_wait_does_not_look),
        cmocka_unit_test(posting_never_blocks),
        cmocka_unit_test(who_sleeps_on_sockets_can_be_woken),
        cmocka_unit_test(gets_in_flight_share_their_sends),
    };
    return cmocka_run_group_tests_name("net/traffic", tests, NULL, NULL);
}
