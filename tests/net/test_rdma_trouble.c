/* The fabric `rdma` on a card that fails, or does not do what others do (card.h). */
#ifdef FARINDEX_RDMA
#include "card.h"
#include "daemons.h"
#include "pool/handle.h"
#include "pool/refuted.h"
#include "verify/selftest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <cmocka.h>


/* A READ at each node: whatever fails, both end, and the connection is lost. */
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
    assert_true(rig_run1(r, rig_read(card_word_of(0), &got, 8)) < 0);
    rig_disconnect(r);
}


static void a_request_that_the_card_refuses_loses_the_session(void **state) {
    (void)state;
    far_batch batch;
    rig r;
    card_join(&r, 1);
    card.refuses_requests = true;
    post_pair(&r, &batch);
    expect_loss(&r, &batch);
}


/* Waiting must not go to sleep: nothing would end it. So the time of the wait does not matter. */
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


static void a_card_that_tells_of_no_completions_keeps_nobody_waiting(void **state) {
    (void)state;
    wait_in_trouble(&card.tells_nothing, 0);
}


static void a_card_that_wakes_nobody_keeps_nobody_waiting(void **state) {
    (void)state;
    wait_in_trouble(&card.wakes_nobody, 1);
}


/* The verb in the middle is not signalled. What is behind it, of this batch and of the next, has no effect. */
static void a_verb_that_fails_ends_all_that_is_under_way(void **state) {
    (void)state;
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
    assert_int_equal(rig_run1(&judge, rig_read(card_word_of(0), &got, 8)), 0);
    assert_int_equal(got, VERBS + 1);
    rig_disconnect(&r);
    rig_disconnect(&judge);
}


/* What is written is what was there when it was posted, whatever becomes of it meanwhile. */
static void a_card_that_takes_no_data_with_requests_gets_it_from_the_ring(void **state) {
    (void)state;
    uint64_t word = 17, got = 0;
    rig r;
    card.inline_most = 0;
    card_join(&r, 1);
    card_hold(true);
    far_verb verb = rig_write(card_word_of(1), &word, 8);
    far_batch batch = rig_batch(&verb, 1);
    rig_post(&r, &batch);
    word = 99;
    card_release(&r);
    assert_int_equal(rig_wait(&r, &batch), 0);
    assert_int_equal(rig_run1(&r, rig_read(card_word_of(1), &got, 8)), 0);
    assert_int_equal(got, 17);
    rig_disconnect(&r);
}


/* Sockets that owe nothing are left alone by polls; but not when there is something to say, or to hear. */
static void who_listens_is_told_of_a_death(void **state) {
    (void)state;
    unsigned id = 0, generation;
    uint64_t got;
    rig victim, judge;
    card_join(&victim, 7);
    card_join(&judge, 2);
    card_fabric->ops->listen(judge.conn);
    assert_int_equal(rig_run1(&judge, rig_read(card_word_of(0), &got, 8)), 0);
    assert_int_equal(net_channel_queued(&((tcp_conn *)judge.conn)->nodes[0].channel), 0); /* a poll has sent it */
    assert_int_equal(rig_ask(&judge, FAR_ASK_DEAD, 7, 1), 0); /* and the node has heard it */
    rig_disconnect(&victim);
    while (card_fabric->ops->told(judge.conn, &id, &generation) == 0) {
        card_fabric->ops->wait(judge.conn, FAR_TIME_NEVER);
        card_fabric->ops->poll(judge.conn);
    }
    assert_int_equal(id, 7);
    rig_disconnect(&judge);
}


/* ---- What the self-test refutes ---- */

static far_pool *open_pool(const char *options, int ignore_refuted) {
    char uri[sizeof(card_uri) + 32];
    far_pool_options how = {.ignore_refuted = ignore_refuted};
    far_pool *pool;
    snprintf(uri, sizeof(uri), "%s%s", card_uri, options);
    if (far_pool_open(uri, &how, &pool) < 0)
        fail_msg("%s", far_last_error());
    return pool;
}


/* Housekeeping of the pool works beside. */
static void set_trouble(card_retry retry, bool tears) {
    pthread_mutex_lock(&card.lock);
    card.retry = retry;
    card.tears = tears;
    pthread_mutex_unlock(&card.lock);
}


typedef struct finding { /* about a capability */
    uint64_t broken;
    bool claimed, recorded;
} finding;


/* What the self-test finds out about one capability of a card in this trouble; about all others nothing. */
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


/* On a busy machine the writer may not come to its turn while a READ is stopped: again until it did. */
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
    return daemon_look(address->text).refuted;
}


static void expect_status(uint64_t refuted) {
    for (unsigned i = 0; i < CARD_NODES; i++)
        assert_int_equal(status_of(i), refuted);
}


/* By itself, for all who open the pool later; and a self-test that sees nothing does not give it back. */
static void a_read_that_samples_again_alone_is_found_and_the_order_given_up(void **state) {
    (void)state;
    finding found = test_reads(CARD_RETRIES_BOTH, "");
    assert_true(found.claimed && found.broken == 0 && !found.recorded);
    expect_order_of_reads(true);
    found = find_reads("");
    assert_true(found.claimed && found.recorded);
    expect_order_of_reads(false);
    expect_status(FAR_REFUTED_READS_IN_ORDER);
    found = test_reads(CARD_RETRIES_NONE, "");
    assert_true(found.claimed && found.broken == 0 && found.recorded);
    expect_order_of_reads(false);
    far_pool *pool = open_pool("", 1);
    assert_int_equal(far_selftest_forget(pool), 0);
    far_pool_close(pool);
    expect_order_of_reads(true);
    expect_status(0);
}


/* Who has given it up himself is told nothing new. */
static void an_order_that_nobody_claims_is_not_refuted(void **state) {
    (void)state;
    finding found = find_reads("?reads_in_order=off");
    assert_true(!found.claimed && !found.recorded);
    expect_order_of_reads(true);
}


static void a_card_that_tears_lines_is_found_and_the_pool_refused(void **state) {
    (void)state;
    far_pool *pool = NULL;
    finding found = find_broken(CARD_RETRIES_NONE, true, "", "atomic_bytes=64");
    assert_true(found.claimed && found.recorded);
    assert_int_equal(far_pool_open(card_uri, NULL, &pool), FAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(far_last_error(), "make a new pool with atomic_bytes=8"));
}


/* Who knows it beforehand makes a pool that does not rely on it: all who open it go by that. */
static void a_pool_can_be_made_that_does_not_rely_on_lines(void **state) {
    (void)state;
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


/* In place of the kernel's answer to the daemon (the linker's --wrap): stretches of memory lie on two nodes in turn. */
void __wrap_far_numa_of(void *const *pages, unsigned count, int *nodes);
void __wrap_far_numa_of(void *const *pages, unsigned count, int *nodes) {
    for (unsigned i = 0; i < count; i++)
        nodes[i] = numa_at((uintptr_t)pages[i]);
}


static void a_daemon_tells_on_which_numa_nodes_its_memory_lies(void **state) {
    (void)state;
    enum { COUNT = NET_PLACES_MAX + 10 };
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
    assert_non_null(strstr(far_last_error(), "a place outside the memory"));
}


/* The rules about NUMA nodes: how often they were tried. */
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


static void reads_on_two_numa_nodes_are_tried_where_there_are_two(void **state) {
    (void)state;
    uint64_t broken = 0;
    const char *left_out;
    several_numa_nodes = false;
    assert_int_equal(tries_on_numa_nodes(CARD_RETRIES_NONE, &broken, &left_out), 0);
    assert_string_equal(left_out, "the memory lies on one NUMA node");
    several_numa_nodes = true;
    card.retry_if = lie_on_two_numa_nodes;
    for (unsigned i = 0; i < 60 && broken == 0; i++) /* on a busy machine writer and reader may not meet in a second */
        assert_true(tries_on_numa_nodes(CARD_RETRIES_THE_FIRST_ALONE, &broken, &left_out) > 0);
    assert_true(broken > 0);
    assert_null(left_out);
}


/* ---- Waiting ---- */

/* The socket beside the queue pair takes nothing any more, which is seen right before the sleep. (It slept to the end:
 * nothing wakes a session that is lost.) */
static void a_wait_that_loses_the_connection_does_not_sleep(void **state) {
    (void)state;
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_wait_that_loses_the_connection_does_not_sleep, card_open_nodes,
                                        card_close_nodes),
        cmocka_unit_test_setup_teardown(a_request_that_the_card_refuses_loses_the_session, card_open_nodes,
                                        card_close_nodes),
        cmocka_unit_test_setup_teardown(a_card_that_tells_of_no_completions_keeps_nobody_waiting, card_open_nodes,
                                        card_close_nodes),
        cmocka_unit_test_setup_teardown(a_card_that_wakes_nobody_keeps_nobody_waiting, card_open_nodes,
                                        card_close_nodes),
        cmocka_unit_test_setup_teardown(a_verb_that_fails_ends_all_that_is_under_way, card_open_nodes,
                                        card_close_nodes),
        cmocka_unit_test_setup_teardown(a_card_that_takes_no_data_with_requests_gets_it_from_the_ring, card_open_nodes,
                                        card_close_nodes),
        cmocka_unit_test_setup_teardown(who_listens_is_told_of_a_death, card_open_nodes, card_close_nodes),
        cmocka_unit_test_setup_teardown(a_read_that_samples_again_alone_is_found_and_the_order_given_up,
                                        card_open_nodes, card_close_nodes),
        cmocka_unit_test_setup_teardown(an_order_that_nobody_claims_is_not_refuted, card_open_nodes, card_close_nodes),
        cmocka_unit_test_setup_teardown(a_card_that_tears_lines_is_found_and_the_pool_refused, card_open_nodes,
                                        card_close_nodes),
        cmocka_unit_test_setup_teardown(a_pool_can_be_made_that_does_not_rely_on_lines, card_open_nodes,
                                        card_close_nodes),
        cmocka_unit_test_setup_teardown(a_daemon_tells_on_which_numa_nodes_its_memory_lies, card_open_nodes,
                                        card_close_nodes),
        cmocka_unit_test_setup_teardown(reads_on_two_numa_nodes_are_tried_where_there_are_two, card_open_nodes,
                                        card_close_nodes),
    };
    return cmocka_run_group_tests_name("net/rdma_trouble", tests, NULL, NULL);
}

#else

int main(void) { /* there is nothing to run a card under */
    return 0;
}

#endif
