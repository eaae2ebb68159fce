/* Tests of the fabric `rdma` with a simulated card (card.h): rings, queues, fences, keys, fencing, waiting, and forks.
 */
#ifdef FARINDEX_RDMA
#include "bench/bench.h"
#include "card.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Tests ---- */

/* Batches exceed the rings and queues. The verbs without room are stalled, and in the end each verb has run once, in
 * order. */
TEST_WITH(data_without_room_waits, card_open_nodes, card_close_nodes) {
    enum { BATCHES = 100, BYTES = 100000 };
    static far_verb verbs[BATCHES][3];
    static far_batch batches[BATCHES];
    static uint64_t old[BATCHES];
    char *out = malloc(BYTES), *in = malloc(BYTES);
    rig r;
    for (unsigned i = 0; i < BYTES; i++)
        out[i] = (char)(i * 7 + i / 251);
    card_join(&r, 1);
    card_hold(true);
    for (unsigned i = 0; i < BATCHES; i++) {
        verbs[i][0] = rig_write(far_addr_make(i % CARD_NODES, 4u << 20), out, BYTES);
        verbs[i][1] = rig_faa(card_word_of(0), 1, &old[i]);
        verbs[i][2] = rig_read(far_addr_make(i % CARD_NODES, 4u << 20), in, BYTES);
        batches[i] = rig_batch(verbs[i], 3);
        rig_post(&r, &batches[i]);
    }
    card_fabric->ops->poll(r.conn);
    assert_true(batches[0].pending);
    /* The verbs that the card has not received yet are stalled. */
    assert_in_range(card.posted, 4, CARD_NODES * RDMA_SLOTS);
    card_release(&r);
    for (unsigned i = 0; i < BATCHES; i++) {
        assert_int_equal(rig_wait(&r, &batches[i]), 0);
        assert_int_equal(old[i], i);
    }
    assert_memory_equal(in, out, BYTES);
    free(out);
    free(in);
    rig_disconnect(&r);
}


/* Small verbs fill the queue of requests before they fill the ring. The verbs without room are stalled, and each verb
 * runs once, in order. */
TEST_WITH(verbs_without_room_in_the_queue_wait, card_open_nodes, card_close_nodes) {
    enum { VERBS = 3 * RDMA_SLOTS };
    static far_verb verbs[VERBS];
    static uint64_t old[VERBS];
    rig r;
    card_join(&r, 1);
    card_hold(true);
    card.posted = 0;
    for (unsigned i = 0; i < VERBS; i++)
        verbs[i] = rig_faa(card_word_of(1), 1, &old[i]);
    far_batch batch = rig_batch(verbs, VERBS);
    rig_post(&r, &batch);
    assert_int_equal(card.posted, RDMA_SLOTS);
    card_release(&r);
    assert_int_equal(rig_wait(&r, &batch), 0);
    for (unsigned i = 0; i < VERBS; i++)
        assert_int_equal(old[i], i);
    rig_disconnect(&r);
}


/* If all earlier verbs are verbs to the same node, the card itself delays a verb with a fence. If earlier verbs are to
 * another node, the client delays the verb with the fence until they have completed. Fails without fence_must_wait. */
TEST_WITH(a_fence_across_nodes_waits_in_the_client, card_open_nodes, card_close_nodes) {
    uint64_t one = 1, got;
    rig r;
    card_join(&r, 1);
    card_hold(true);
    card.posted = 0;
    far_verb verbs[] = {rig_read(card_word_of(0), &got, 8), rig_read(card_word_of(0), &got, 8),
                        rig_write(card_word_of(1), &one, 8)};
    verbs[1].flags = verbs[2].flags = FAR_VERB_FENCE;
    far_batch batch = rig_batch(verbs, 3);
    rig_post(&r, &batch);
    assert_int_equal(card.posted, 2);
    card_release(&r);
    assert_int_equal(rig_wait(&r, &batch), 0);
    assert_int_equal(card.posted, 3);
    rig_disconnect(&r);
}


/* Runs two verbs on one node, and posts the second one with `flags`. Returns the value in *shown, which shows in which
 * order the verbs ran. */
static uint64_t run_two_verbs(rig *r, far_verb before, far_verb last, uint8_t flags, const uint64_t *shown) {
    far_verb verbs[] = {before, last};
    verbs[1].flags = flags;
    assert_int_equal(rig_run(r, verbs, 2), 0);
    return *shown;
}


/* The card orders READs, WRITEs and atomics only where the contract requires it. With a fence, the second verb runs
 * after the first. Fails if fill_request does not set IBV_SEND_FENCE. */
TEST_WITH(a_fence_orders_a_verb_after_all_earlier_ones, card_open_nodes, card_close_nodes) {
    uint64_t old, got, nine = 9;
    rig r;
    card_join(&r, 1);
    far_verb add = rig_faa(card_word_of(0), 1, &old), read = rig_read(card_word_of(0), &got, 8),
             write = rig_write(card_word_of(0), &nine, 8);
    assert_int_equal(run_two_verbs(&r, add, read, 0, &got), 0);
    assert_int_equal(run_two_verbs(&r, add, read, FAR_VERB_FENCE, &got), 2);
    assert_int_equal(run_two_verbs(&r, read, write, FAR_VERB_FENCE, &got), 2);
    assert_int_equal(run_two_verbs(&r, read, add, FAR_VERB_FENCE, &got), 9);
    assert_int_equal(run_two_verbs(&r, add, write, FAR_VERB_FENCE, &old), 10);
    nine = 99;
    assert_int_equal(run_two_verbs(&r, read, write, 0, &got), 99);
    rig_disconnect(&r);
}


/* Posts the verb with its remote and local keys changed by these amounts. Asserts that the session is lost and that the
 * word on node 0 is unchanged. */
static void expect_refusal(far_verb verb, uint32_t remote_key, uint32_t local_key) {
    uint64_t got = 77;
    rig r, judge;
    card_join(&r, 1);
    rdma_queue *q = &((tcp_conn *)r.conn)->queues[0];
    q->key += remote_key;
    for (unsigned i = 0; i < RDMA_SLOTS; i++)
        q->places[i].lkey += local_key;
    assert_int_equal(rig_run_verb(&r, verb), FAR_ERR_UNREACHABLE);
    rig_disconnect(&r);
    card_join(&judge, 2);
    assert_int_equal(rig_run_verb(&judge, rig_read(card_word_of(0), &got, 8)), 0);
    assert_int_equal(got, 0);
    rig_disconnect(&judge);
}


/* The card refuses verbs with a wrong local or remote key, and verbs that exceed the memory of the node. */
TEST_WITH(wrong_keys_and_addresses_are_refused, card_open_nodes, card_close_nodes) {
    uint64_t old;
    char block[2 * CARD_INLINE] = {1}; /* The data is too long for its request, so the card reads it from the ring. */
    far_verb verbs[] = {rig_read(card_word_of(0), block, 8), rig_write(card_word_of(0), block, sizeof(block)),
                        rig_faa(card_word_of(0), 1, &old)};
    for (unsigned i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        expect_refusal(verbs[i], 1, 0);
        expect_refusal(verbs[i], 0, 1);
    }
    expect_refusal(rig_read(far_addr_make(0, CARD_BYTES - 8), block, 16), 0, 0);
    expect_refusal(rig_write(far_addr_make(0, CARD_BYTES - 64), block, sizeof(block)), 0, 0);
    expect_refusal(rig_faa(far_addr_make(0, CARD_BYTES), 1, &old), 0, 0);
}


/* Queue pairs are created with a limited number of retransmissions, with the right timeout, and with as many READs and
 * atomics under way as both cards support. */
TEST_WITH(queue_pairs_respect_the_limits_of_the_card, card_open_nodes, card_close_nodes) {
    static const int depths[][2] = {{64, 16}, {4, 4}};
    for (unsigned i = 0; i < 2; i++) {
        rig r;
        card.depth_most = depths[i][0];
        card_join(&r, 1);
        assert_int_equal(card.asked.initiator_depth, depths[i][1]);
        assert_int_equal(card.answered.responder_resources, depths[i][1]);
        /* A retry count of 7 would mean an unlimited number of retransmissions. */
        assert_int_equal(card.asked.retry_count, 6);
        assert_int_equal(card.asked.rnr_retry_count, 6);
        assert_int_equal(card.ack_timeout, 14);
        rig_disconnect(&r);
    }
}


/* Client A has WRITEs under way at both nodes, which the card holds. Client B evicts A. The card runs its queue: the
 * WRITEs have no effect, and A's batch fails. */
TEST_WITH(no_verb_of_a_fenced_session_takes_effect, card_open_nodes, card_close_nodes) {
    uint64_t one = 1, got = 9;
    rig victim, judge;
    card_join(&victim, 1);
    card_join(&judge, 2);
    card_hold(true);
    far_verb verbs[] = {rig_write(card_word_of(0), &one, 8), rig_write(card_word_of(1), &one, 8)};
    far_batch batch = rig_batch(verbs, 2);
    rig_post(&victim, &batch);
    assert_int_equal(rig_ask(&judge, FAR_CONTROL_EVICT, 1, 1), 0);
    card_release(&victim);
    assert_true(rig_wait(&victim, &batch) < 0);
    for (unsigned node = 0; node < CARD_NODES; node++) {
        assert_int_equal(rig_run_verb(&judge, rig_read(card_word_of(node), &got, 8)), 0);
        assert_int_equal(got, 0);
    }
    rig_disconnect(&victim);
    rig_disconnect(&judge);
}


typedef struct held {
    far_verb verb;
    far_batch batch;
    uint64_t got;
} held;


/* Posts a READ that stays under way until the card is released. */
static void post_held_read(rig *r, held *h) {
    card_join(r, 1);
    card_hold(true);
    h->verb = rig_read(card_word_of(0), &h->got, 8);
    h->batch = rig_batch(&h->verb, 1);
    rig_post(r, &h->batch);
    card.armed = 0;
}


static void *release_when_it_sleeps(void *arg) {
    for (bool armed = false; !armed; usleep(200)) {
        pthread_mutex_lock(&card.lock);
        armed = card.armed > 0;
        pthread_mutex_unlock(&card.lock);
    }
    usleep(2000);
    card_release(arg);
    return NULL;
}


/* A thread sleeps until a completion arrives. The completion wakes it. Fails without arm_completion_events. */
TEST_WITH(a_completion_wakes_a_sleeping_thread, card_open_nodes, card_close_nodes) {
    pthread_t other;
    held h;
    rig r;
    post_held_read(&r, &h);
    assert_int_equal(pthread_create(&other, NULL, release_when_it_sleeps, &r), 0);
    card_fabric->ops->wait(r.conn, FAR_TIME_NEVER);
    assert_int_equal(card_fabric->ops->poll(r.conn), 1);
    assert_false(h.batch.pending);
    pthread_join(other, NULL);
    rig_disconnect(&r);
}


/* A wait requests an event and ends by its time; a poll then handles the completion. The next wait sleeps to its end.
 * Fails without the consume_completion_events in rdma_wait. */
TEST_WITH(a_handled_completion_ends_no_later_sleep, card_open_nodes, card_close_nodes) {
    unsigned wakes = 0;
    held h;
    rig r;
    post_held_read(&r, &h);
    card_fabric->ops->wait(r.conn, far_host_now(card_fabric->host));
    assert_true(card.armed > 0);
    card_release(&r);
    assert_int_equal(card_fabric->ops->poll(r.conn), 1);
    for (uint64_t until = far_host_now(card_fabric->host) + 20000000; far_host_now(card_fabric->host) < until; wakes++)
        card_fabric->ops->wait(r.conn, until);
    assert_int_equal(wakes, 1);
    rig_disconnect(&r);
}


/* A forked child closes its copy of a connection. It destroys no queue pair of its parent, and the parent's connection
 * continues to work. */
TEST_WITH(a_forked_child_leaves_its_parents_queue_pairs_alone, card_open_nodes, card_close_nodes) {
    int status;
    uint64_t got;
    rig r;
    card_join(&r, 1);
    card.destroyed = 0;
    pid_t child = fork();
    if (child == 0) {
        far_verb verb = rig_read(card_word_of(0), &got, 8);
        bool failed = rig_run(&r, &verb, 1) < 0;
        rig_disconnect(&r);
        _exit(failed && card.destroyed == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(rig_run_verb(&r, rig_read(card_word_of(0), &got, 8)), 0);
    rig_disconnect(&r);
}


/* All kinds of indexes work with granules of a line, without masked CAS, and without order of atomics. */
TEST_WITH(every_kind_works, card_open_nodes, card_close_nodes) {
    static const char *const kinds[] = {"chime", "dart", "dolphin", "shard", "smart"};
    enum { KEYS = 200 };
    far_pool *pool;
    far_session *session;
    assert_int_equal(far_pool_open(card_uri, NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        far_index *index;
        assert_int_equal(far_index_create(session, kinds[k], kinds[k], NULL, &index), 0);
        for (uint64_t key = 0; key < KEYS; key++)
            assert_int_equal(far_put(session, index, &key, sizeof(key), &key, sizeof(key)), 0);
        for (uint64_t key = 0; key < KEYS; key += 2)
            assert_int_equal(far_delete(session, index, &key, sizeof(key)), 0);
        for (uint64_t key = 0; key < KEYS; key++) {
            uint64_t got = 0;
            int expected = key % 2 ? 0 : FAR_ERR_NOT_FOUND;
            assert_int_equal(far_get(session, index, &key, sizeof(key), &got, sizeof(got), NULL), expected);
            assert_int_equal(got, expected ? 0 : key);
        }
        far_index_close(index);
    }
    assert_int_equal(far_pool_check(session, 0, NULL, NULL), 0);
    far_session_close(session);
    far_pool_close(pool);
}


/* The micro benchmark runs with the simulated card and prints its comparison with plain verbs. */
TEST_WITH(bench_compares_with_plain_verbs, card_open_nodes, card_close_nodes) {
    char *text = NULL;
    size_t bytes;
    FILE *table = open_memstream(&text, &bytes);
    assert_int_equal(bench_network(card_uri, table, NULL), 0);
    fclose(table);
    assert_non_null(strstr(text, "raw READ: post and poll"));
    assert_non_null(strstr(text, "our software beside raw verbs"));
    print_message("%s", text);
    free(text);
}

#endif
