/* The fabric `rdma` on a card that fails, or does not do what others do (card.h). */
#ifdef FARINDEX_RDMA
#include "card.h"
#include "pool/handle.h"
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


/* Housekeeping of the pool works beside. */
static void set_retry(card_retry retry) {
    pthread_mutex_lock(&card.lock);
    card.retry = retry;
    pthread_mutex_unlock(&card.lock);
}


/* How often the self-test saw READs out of their order, where a READ was sent again. */
static uint64_t refutations(card_retry retry, const char *options, bool *claimed) {
    char uri[sizeof(card_uri) + 32];
    far_selftest_result results[FAR_SELFTESTS];
    uint64_t broken = 0;
    far_pool *pool;
    snprintf(uri, sizeof(uri), "%s%s", card_uri, options);
    if (far_pool_open(uri, NULL, &pool) < 0)
        fail_msg("%s", far_last_error());
    set_retry(retry);
    assert_int_equal(far_selftest(pool, 1, NULL, results), 0);
    set_retry(CARD_RETRIES_NONE);
    far_pool_close(pool);
    for (unsigned i = 0; i < FAR_SELFTESTS; i++)
        if (results[i].capability && strcmp(results[i].capability, "reads_in_order") == 0) {
            broken += results[i].broken;
            *claimed = results[i].claimed;
        } else {
            assert_int_equal(results[i].broken, 0);
        }
    return broken;
}


static void a_read_that_samples_again_alone_is_found_and_the_order_can_be_given_up(void **state) {
    (void)state;
    bool claimed;
    assert_int_equal(refutations(CARD_RETRIES_BOTH, "", &claimed), 0);
    assert_true(claimed);
    assert_true(refutations(CARD_RETRIES_THE_FIRST_ALONE, "", &claimed) > 0);
    assert_true(claimed);
    assert_true(refutations(CARD_RETRIES_THE_FIRST_ALONE, "?reads_in_order=off", &claimed) > 0);
    assert_false(claimed);
}


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
        cmocka_unit_test_setup_teardown(a_read_that_samples_again_alone_is_found_and_the_order_can_be_given_up,
                                        card_open_nodes, card_close_nodes),
    };
    return cmocka_run_group_tests_name("net/rdma_trouble", tests, NULL, NULL);
}

#else

int main(void) { /* there is nothing to run a card under */
    return 0;
}

#endif
