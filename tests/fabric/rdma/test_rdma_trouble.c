/* Tests of the fabric `rdma` with a simulated card that fails, or that lacks a property of other cards (card.h). */
#ifdef FARINDEX_RDMA
#include "card.h"
#include "daemons.h"
#include "pool/format/fabric_record.h"
#include "pool/handle.h"
#include "test.h"
#include "verify/selftest.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>


/* Posts a batch with one READ at each of the two nodes. If one READ fails, the batch ends with both, and the connection
 * is lost. */
static void post_pair(rig *r, far_batch *batch) {
    static far_verb verbs[CARD_NODES];
    static uint64_t got;
    for (unsigned i = 0; i < CARD_NODES; i++)
        verbs[i] = rig_read(card_word_of(i), &got, 8);
    *batch = rig_batch(verbs, CARD_NODES);
    rig_post(r, batch);
}


static void expect_loss(rig *r, far_batch *batch) {
    uint64_t got;
    assert_int_equal(rig_wait(r, batch), FAR_ERR_UNREACHABLE);
    assert_true(rig_run_verb(r, rig_read(card_word_of(0), &got, 8)) < 0);
    rig_disconnect(r);
}


/* The card does not accept a request. The batch fails, and the session is lost. */
TEST_WITH(a_request_that_the_card_refuses_loses_the_session, card_open_nodes, card_close_nodes) {
    far_batch batch;
    rig r;
    card_join(&r, 1);
    card.refuses_requests = true;
    post_pair(&r, &batch);
    expect_loss(&r, &batch);
}


/* Runs a wait while *trouble, a flag of the simulated card, is set. The wait must return without sleeping, because no
 * event would wake it. `armed` is the expected number of requested events, which shows where the wait returned. */
static void wait_in_trouble(bool *trouble, unsigned armed) {
    far_batch batch;
    rig r;
    card_join(&r, 1);
    card_hold(true);
    post_pair(&r, &batch);
    *trouble = true;
    card.armed = 0;
    card_fabric->ops->wait(r.conn, far_host_now(card_fabric->host) + 1000000);
    assert_int_equal(card.armed, armed);
    assert_int_equal(card_fabric->ops->poll(r.conn), 1);
    expect_loss(&r, &batch);
}


/* The card reports no completions any more. A wait returns at once, and the session is lost. Fails if
 * poll_for_completions ignores a negative result. */
TEST_WITH(a_card_without_completions_ends_waits, card_open_nodes, card_close_nodes) {
    wait_in_trouble(&card.reports_no_completions, 0);
}


/* The card cannot send completion events. A wait returns at once, and the session is lost. Fails if
 * arm_completion_events ignores the error. */
TEST_WITH(a_card_without_completion_events_ends_waits, card_open_nodes, card_close_nodes) {
    wait_in_trouble(&card.sends_no_events, 1);
}


/* A verb without a completion of its own fails in the middle of the second of three batches. Later verbs of this batch
 * and of the next one have no effect, and both batches fail. */
TEST_WITH(a_verb_that_fails_ends_all_that_is_under_way, card_open_nodes, card_close_nodes) {
    enum { BATCHES = 3, VERBS = 4 };
    static far_verb verbs[BATCHES][VERBS];
    far_batch batches[BATCHES];
    uint64_t old[BATCHES * VERBS], got = 0;
    rig r, judge;
    card_join(&r, 1);
    card_join(&judge, 2);
    card_hold(true);
    card.posted = 0;
    card.bad = VERBS + 2;
    for (unsigned i = 0; i < BATCHES; i++) {
        for (unsigned k = 0; k < VERBS; k++)
            verbs[i][k] = rig_faa(card_word_of(0), 1, &old[i * VERBS + k]);
        batches[i] = rig_batch(verbs[i], VERBS);
        rig_post(&r, &batches[i]);
    }
    card_release(&r);
    assert_int_equal(rig_wait(&r, &batches[0]), 0);
    for (unsigned i = 1; i < BATCHES; i++)
        assert_int_equal(rig_wait(&r, &batches[i]), FAR_ERR_UNREACHABLE);
    assert_int_equal(rig_run_verb(&judge, rig_read(card_word_of(0), &got, 8)), 0);
    assert_int_equal(got, VERBS + 1);
    rig_disconnect(&r);
    rig_disconnect(&judge);
}


/* The card accepts no data inside requests, so a short WRITE goes through the ring. The card writes the data as it was
 * when the WRITE was posted, although the caller's buffer changes before the WRITE runs. */
TEST_WITH(a_card_without_inline_data_reads_the_ring, card_open_nodes, card_close_nodes) {
    uint64_t word = 17, got = 0;
    rig r;
    card.inline_max = 0;
    card_join(&r, 1);
    card_hold(true);
    far_verb verb = rig_write(card_word_of(1), &word, 8);
    far_batch batch = rig_batch(&verb, 1);
    rig_post(&r, &batch);
    word = 99;
    card_release(&r);
    assert_int_equal(rig_wait(&r, &batch), 0);
    assert_int_equal(rig_run_verb(&r, rig_read(card_word_of(1), &got, 8)), 0);
    assert_int_equal(got, 17);
    rig_disconnect(&r);
}


/* A session without outstanding answers on its sockets still sends its subscription, and receives a notification when
 * another session fails. Fails without needs_poll. */
TEST_WITH(a_subscriber_is_notified_of_a_failure, card_open_nodes, card_close_nodes) {
    unsigned id = 0, generation;
    uint64_t got;
    rig victim, judge;
    card_join(&victim, 7);
    card_join(&judge, 2);
    card_fabric->ops->listen(judge.conn);
    assert_int_equal(rig_run_verb(&judge, rig_read(card_word_of(0), &got, 8)), 0);
    /* After a poll the session has sent its subscription. */
    assert_int_equal(net_channel_queued(&((tcp_conn *)judge.conn)->nodes[0].channel), 0);
    /* The node has also received the subscription, because it answers the later control message. */
    assert_int_equal(rig_ask(&judge, FAR_CONTROL_HAS_FAILED, 7, 1), 0);
    rig_disconnect(&victim);
    while (card_fabric->ops->told(judge.conn, &id, &generation) == 0) {
        card_fabric->ops->wait(judge.conn, FAR_TIME_NEVER);
        card_fabric->ops->poll(judge.conn);
    }
    assert_int_equal(id, 7);
    rig_disconnect(&judge);
}


/* ---- Guarantees that the self-test finds violated ---- */

static far_pool *open_pool(const char *options, int ignore_refuted) {
    char uri[sizeof(card_uri) + 32];
    far_pool_options how = {.ignore_refuted = ignore_refuted};
    far_pool *pool;
    snprintf(uri, sizeof(uri), "%s%s", card_uri, options);
    if (far_pool_open(uri, &how, &pool) < 0)
        fail_msg("%s", far_last_error());
    return pool;
}


/* Sets what the card does wrong. The function holds the lock of the card, because housekeeping of the pool uses the
 * card concurrently. */
static void set_trouble(card_retry retry, bool tears) {
    pthread_mutex_lock(&card.lock);
    card.retry = retry;
    card.tears = tears;
    pthread_mutex_unlock(&card.lock);
}


typedef struct finding { /* results of the self-test about one capability of the card */
    uint64_t broken;
    bool claimed, recorded;
} finding;


/* Runs the self-test with a card that retransmits or tears READs as given. Returns the results about `capability`, and
 * asserts that the self-test finds no violation of another capability. */
static finding test_card(card_retry retry, bool tears, const char *options, const char *capability) {
    far_selftest_result results[FAR_SELFTESTS];
    finding found = {0};
    far_pool *pool = open_pool(options, 1);
    set_trouble(retry, tears);
    assert_int_equal(far_selftest(pool, 1, NULL, results), 0);
    set_trouble(CARD_RETRIES_NONE, false);
    far_pool_close(pool);
    for (unsigned i = 0; i < FAR_SELFTESTS; i++)
        if (results[i].capability && strcmp(results[i].capability, capability) == 0) {
            found.broken += results[i].broken;
            found.claimed = results[i].claimed;
            found.recorded = results[i].recorded;
        } else if (results[i].claimed) {
            assert_int_equal(results[i].broken, 0);
        }
    return found;
}


/* Repeats the self-test until it finds the violation, and returns the results. One run may miss the violation, because
 * on a busy machine the writer may not run while a READ is interrupted. */
static finding find_broken(card_retry retry, bool tears, const char *options, const char *capability) {
    finding found;
    do
        found = test_card(retry, tears, options, capability);
    while (found.broken == 0);
    return found;
}


static finding test_reads(card_retry retry, const char *options) {
    return test_card(retry, false, options, "reads_in_order");
}


static finding find_reads(const char *options) {
    return find_broken(CARD_RETRIES_THE_FIRST_ALONE, false, options, "reads_in_order");
}


static void expect_order_of_reads(bool kept) {
    far_pool *pool = open_pool("", 0);
    assert_int_equal(far_fabric_reads_in_order(pool->fabric), kept);
    far_pool_close(pool);
}


static uint64_t status_of(unsigned node) {
    const net_address *address = &((tcp_fabric *)card_fabric)->addresses[node];
    return daemon_read_status(address->text).refuted;
}


static void expect_status(uint64_t refuted) {
    for (unsigned i = 0; i < CARD_NODES; i++)
        assert_int_equal(status_of(i), refuted);
}


/* A card retransmits the first of two READs alone, so this READ samples the memory later than the second one. The
 * self-test finds that, and all clients that open the pool later do not rely on the order of READs. A later self-test
 * without violations does not clear the record; far_selftest_forget does. If the card retransmits both, the order is
 * kept and nothing is recorded. */
TEST_WITH(a_reordered_read_is_found_and_recorded, card_open_nodes, card_close_nodes) {
    finding found = test_reads(CARD_RETRIES_BOTH, "");
    assert_true(found.claimed && found.broken == 0 && !found.recorded);
    expect_order_of_reads(true);
    found = find_reads("");
    assert_true(found.claimed && found.recorded);
    expect_order_of_reads(false);
    expect_status(FAR_VIOLATED_READS_IN_ORDER);
    found = test_reads(CARD_RETRIES_NONE, "");
    assert_true(found.claimed && found.broken == 0 && found.recorded);
    expect_order_of_reads(false);
    far_pool *pool = open_pool("", 1);
    assert_int_equal(far_selftest_forget(pool), 0);
    far_pool_close(pool);
    expect_order_of_reads(true);
    expect_status(0);
}


/* A client that does not rely on the order of READs (?reads_in_order=off) does not record a violation of this order. */
TEST_WITH(an_unclaimed_order_is_not_recorded, card_open_nodes, card_close_nodes) {
    finding found = find_reads("?reads_in_order=off");
    assert_true(!found.claimed && !found.recorded);
    expect_order_of_reads(true);
}


/* A card tears READs inside of lines. The self-test finds that, and the pool is refused afterwards. */
TEST_WITH(torn_lines_are_found_and_the_pool_is_refused, card_open_nodes, card_close_nodes) {
    far_pool *pool = NULL;
    finding found = find_broken(CARD_RETRIES_NONE, true, "", "atomic_bytes=64");
    assert_true(found.claimed && found.recorded);
    assert_int_equal(far_pool_open(card_uri, NULL, &pool), FAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(far_last_error(), "create a new pool with atomic_bytes=8"));
}


/* A pool that was created with atomic_bytes=8 does not rely on lines. The self-test records nothing, and the pool can
 * be opened. */
TEST_WITH(a_pool_can_be_created_without_reliance_on_lines, card_open_nodes, card_close_nodes) {
    finding found = find_broken(CARD_RETRIES_NONE, true, "?atomic_bytes=8", "atomic_bytes=64");
    assert_true(!found.claimed && !found.recorded);
    far_pool *pool = open_pool("", 0);
    assert_int_equal(pool->geometry.capabilities.atomic_bytes, 8);
    far_pool_close(pool);
}


/* ---- NUMA nodes ---- */

#define STRETCH (64ull << 10)

static bool several_numa_nodes;


static int numa_at(uint64_t address) {
    return several_numa_nodes ? (int)(address / STRETCH % 2) : 0;
}


static bool lie_on_two_numa_nodes(uint64_t first, uint64_t second) {
    return numa_at(first) != numa_at(second);
}


/* Replaces the query of the kernel in the daemon (by the linker's --wrap): ranges of memory are located on two NUMA
 * nodes in turn. */
void __wrap_far_numa_of(void *const *pages, unsigned count, int *nodes);
void __wrap_far_numa_of(void *const *pages, unsigned count, int *nodes) {
    for (unsigned i = 0; i < count; i++)
        nodes[i] = numa_at((uintptr_t)pages[i]);
}


/* far_fabric_places returns the NUMA nodes of the daemon's memory, also for more offsets than fit into one message. An
 * offset outside of the memory is refused. */
TEST_WITH(a_daemon_reports_the_numa_nodes_of_its_memory, card_open_nodes, card_close_nodes) {
    enum { COUNT = NET_NUMA_QUERY_MAX + 10 };
    uint64_t offsets[COUNT];
    int numa[COUNT];
    several_numa_nodes = true;
    for (unsigned i = 0; i < COUNT; i++)
        offsets[i] = i * STRETCH;
    assert_int_equal(far_fabric_places(card_fabric, 1, offsets, COUNT, numa), 0);
    for (unsigned i = 1; i < COUNT; i++)
        assert_int_equal(numa[i], !numa[i - 1]);
    offsets[COUNT - 1] = CARD_BYTES;
    assert_true(far_fabric_places(card_fabric, 1, offsets, COUNT, numa) < 0);
    assert_non_null(strstr(far_last_error(), "an offset is outside the memory"));
}


/* Runs the self-test. Returns the number of trials of the rules about NUMA nodes. *broken is the number of violations,
 * and *left_out is the reason if these rules were left out. */
static uint64_t tries_on_numa_nodes(card_retry retry, uint64_t *broken, const char **left_out) {
    far_selftest_result results[FAR_SELFTESTS];
    uint64_t tries = 0;
    far_pool *pool = open_pool("", 1);
    set_trouble(retry, false);
    assert_int_equal(far_selftest(pool, 1, NULL, results), 0);
    set_trouble(CARD_RETRIES_NONE, false);
    far_pool_close(pool);
    *broken = 0;
    for (unsigned i = 0; i < FAR_SELFTESTS; i++)
        if (strstr(results[i].what, "NUMA")) {
            tries += results[i].tries;
            *broken += results[i].broken;
            *left_out = results[i].left_out;
        }
    return tries;
}


/* If the memory is located on two NUMA nodes, the self-test tries pairs of READs of both, and finds that the simulated
 * card reorders such READs. If all memory is on one NUMA node, the self-test leaves these rules out and gives the
 * reason. */
TEST_WITH(reads_on_two_numa_nodes_are_tried_where_there_are_two, card_open_nodes, card_close_nodes) {
    uint64_t broken = 0;
    const char *left_out;
    several_numa_nodes = false;
    assert_int_equal(tries_on_numa_nodes(CARD_RETRIES_NONE, &broken, &left_out), 0);
    assert_string_equal(left_out, "all memory is located on one NUMA node");
    several_numa_nodes = true;
    card.retry_if = lie_on_two_numa_nodes;
    /* The self-test is repeated, because on a busy machine writer and reader may not meet within a second. */
    for (unsigned i = 0; i < 60 && broken == 0; i++)
        assert_true(tries_on_numa_nodes(CARD_RETRIES_THE_FIRST_ALONE, &broken, &left_out) > 0);
    assert_true(broken > 0);
    assert_null(left_out);
}


/* ---- Waiting ---- */

/* The socket of a session fails when a wait sends its queue, immediately before it would sleep. The wait must return at
 * once, because nothing wakes a lost session. Fails without the check of `lost` in tcp_wait. */
TEST_WITH(a_wait_that_loses_the_connection_does_not_sleep, card_open_nodes, card_close_nodes) {
    far_batch batch;
    rig r;
    card_join(&r, 1);
    card_hold(true);
    post_pair(&r, &batch);
    card_fabric->ops->poll(r.conn);
    card_fabric->ops->listen(r.conn);
    shutdown(((tcp_conn *)r.conn)->nodes[0].channel.socket, SHUT_WR);
    uint64_t until = far_host_now(card_fabric->host) + 10000000000u;
    card_fabric->ops->wait(r.conn, until);
    assert_true(((tcp_conn *)r.conn)->lost && far_host_now(card_fabric->host) < until);
    expect_loss(&r, &batch);
}

#endif
