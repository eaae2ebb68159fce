/* Tests of control messages of the simulator (option questions=on). After a client got the answer that a session has
 * failed, no verb of this session takes effect at any node. If the answer cannot be determined, the session is not
 * reported as failed. */
#include "sim_rig.h"
#include "test.h"

#include <stdint.h>
#include <string.h>

#define SEEDS 150
#define NODES 3
#define WORD  0x1000
#define POSTS 12

typedef struct setup {
    far_fabric *fabric, *witness; /* two compute nodes: that of client A, and that of client B */
    far_sim_world *world;
    rig r, w;
} setup;


static void control_is_answered(far_control *control) {
    (void)control;
}


static int run_control(rig *r, far_control_kind kind, unsigned id, unsigned generation) {
    far_control control = {.kind = kind, .id = id, .generation = generation, .done = control_is_answered};
    r->fabric->ops->ask(r->conn, &control);
    while (control.pending)
        if (r->fabric->ops->poll(r->conn) == 0)
            r->fabric->ops->wait(r->conn, FAR_TIME_NEVER);
    return control.answer;
}


static void set_up(setup *s, unsigned seed) {
    memset(s, 0, sizeof *s);
    s->fabric =
        rig_open("name=ask,seed=%u,size=1M,memory_nodes=%u,questions=on,faults=all,unreachable=3ms", seed, NODES);
    s->witness = rig_open("name=ask,size=1M");
    s->world = far_sim_world_of(s->fabric);
    rig_connect(&s->r, s->fabric);
    rig_connect(&s->w, s->witness);
    assert_int_equal(run_control(&s->r, FAR_CONTROL_CLAIM, 7, 3), 0);
    assert_int_equal(run_control(&s->w, FAR_CONTROL_CLAIM, 8, 1), 0);
}


static void tear_down(setup *s) {
    if (far_sim_watch_errors(s->world))
        fail_msg("%s", far_sim_watch_error(s->world, 0));
    rig_disconnect(&s->r);
    rig_disconnect(&s->w);
    s->fabric->ops->close(s->fabric);
    s->witness->ops->close(s->witness);
}


static uint64_t word_of(const setup *s, unsigned node) {
    uint64_t word;
    memcpy(&word, (const uint8_t *)far_sim_memory(s->world, node) + WORD, 8);
    return word;
}


/* Client A posts atomics to every node without waiting for completions. */
static void post_everywhere(setup *s, far_verb verbs[POSTS], far_batch batches[POSTS]) {
    for (unsigned i = 0; i < POSTS; i++) {
        verbs[i] = rig_faa(far_addr_make(i % NODES, WORD), 1, NULL);
        verbs[i].local = &verbs[i].old;
        batches[i] = rig_batch(&verbs[i], 1);
        rig_post(&s->r, &batches[i]);
    }
}


static void assert_nothing_follows(setup *s) {
    uint64_t before[NODES];
    for (unsigned n = 0; n < NODES; n++)
        before[n] = word_of(s, n);
    far_sim_run_for(s->world, 20000000);
    for (unsigned n = 0; n < NODES; n++)
        assert_int_equal(word_of(s, n), before[n]);
}


/* A posts atomics and then fails: it is killed, loses its connection, or is evicted by B. B checks A's liveness until
 * the answer is that A has failed. Over all seeds, some of A's verbs take effect after its end, but none after this
 * answer. Fails without abort_verbs_at_node in src/fabric/sim/control.c. */
TEST(no_verb_takes_effect_after_the_answer_that_a_session_failed) {
    unsigned late = 0, lived = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        far_verb verbs[POSTS];
        far_batch batches[POSTS];
        set_up(&s, seed);
        assert_int_equal(run_control(&s.w, FAR_CONTROL_HAS_FAILED, 7, 3), 0);
        post_everywhere(&s, verbs, batches);
        uint64_t sum = word_of(&s, 0) + word_of(&s, 1) + word_of(&s, 2);
        if (seed % 3 == 0)
            far_sim_kill(s.fabric);
        else if (seed % 3 == 1)
            far_sim_lose(s.r.conn);
        else
            assert_int_equal(run_control(&s.w, FAR_CONTROL_EVICT, 7, 3), 0);
        while (run_control(&s.w, FAR_CONTROL_HAS_FAILED, 7, 3) == 0)
            lived++; /* Node 0 has not received the report of A's end yet, so A counts as live. */
        late += word_of(&s, 0) + word_of(&s, 1) + word_of(&s, 2) > sum;
        assert_nothing_follows(&s);
        while (s.r.fabric->ops->poll(s.r.conn) > 0)
            continue;
        tear_down(&s);
    }
    /* With fewer such runs the test would not have tested the property. */
    assert_true(late > SEEDS / 10 && lived > SEEDS / 10);
}


/* Client B gets FAR_ERR_BUSY while A holds the id, and can claim the id after A has released it. */
TEST(only_one_session_holds_an_id) {
    setup s;
    set_up(&s, 1);
    assert_int_equal(run_control(&s.w, FAR_CONTROL_CLAIM, 7, 3), FAR_ERR_BUSY);
    assert_int_equal(run_control(&s.w, FAR_CONTROL_CLAIM, 8, 2), 0);
    assert_int_equal(run_control(&s.r, FAR_CONTROL_CLAIM, 0, 0), 0); /* Claiming id 0 makes A release its id. */
    assert_int_equal(run_control(&s.w, FAR_CONTROL_CLAIM, 7, 3), 0);
    tear_down(&s);
}


/* B tries to claim the id of A and is refused. Then A fails, and B checks A until it has failed. B's own session is not
 * affected by A's fencing. */
TEST(a_refused_claim_is_not_fenced_with_the_holder) {
    setup s;
    uint64_t word = 5;
    set_up(&s, 1);
    assert_int_equal(run_control(&s.w, FAR_CONTROL_CLAIM, 7, 3), FAR_ERR_BUSY);
    far_sim_lose(s.r.conn);
    while (run_control(&s.w, FAR_CONTROL_HAS_FAILED, 7, 3) == 0)
        continue;
    assert_int_equal(run_control(&s.w, FAR_CONTROL_CLAIM, 8, 2), 0);
    assert_int_equal(rig_run_verb(&s.w, rig_write(WORD, &word, 8)), 0);
    assert_int_equal(word_of(&s, 0), 5);
    tear_down(&s);
}


/* While a node is down, B cannot get the answer that A has failed: its control message ends with an error, and B loses
 * its own connection. */
TEST(a_check_of_liveness_fails_while_a_node_is_down) {
    setup s;
    uint64_t word = 5;
    set_up(&s, 1);
    far_sim_kill(s.fabric);
    /* The loop runs until node 0 has received the report of A's end. */
    while (run_control(&s.w, FAR_CONTROL_HAS_FAILED, 7, 3) == 0)
        continue;
    tear_down(&s);
    for (unsigned down = 0; down < NODES; down++) {
        set_up(&s, 2 + down);
        far_sim_lose(s.r.conn);
        far_sim_run_for(s.world, 10000000); /* In this time all nodes receive the report. */
        far_sim_node_down(s.world, down, true);
        assert_true(run_control(&s.w, FAR_CONTROL_HAS_FAILED, 7, 3) < 0);
        far_sim_node_down(s.world, down, false);
        assert_int_equal(rig_run_verb(&s.w, rig_write(WORD, &word, 8)), FAR_ERR_FENCED);
        tear_down(&s);
    }
}


/* A posts verbs while a node is down, waits too long and loses its connection. When the node is up again, it may
 * execute verbs of A that it had received, although A has failed. But it executes none after B got the answer that A
 * has failed, because B gets this answer only after the node has handled the message that fences A. */
TEST(a_node_runs_the_verbs_it_kept_after_an_outage) {
    unsigned late = 0, late_and_fenced = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        far_verb verbs[POSTS];
        far_batch batches[POSTS];
        unsigned node = 1 + seed % (NODES - 1);
        set_up(&s, seed);
        far_sim_node_down(s.world, node, true);
        post_everywhere(&s, verbs, batches);
        uint64_t before = word_of(&s, node);
        far_sim_run_for(s.world, 20000000); /* The outage lasts longer than any client waits. */
        while (s.r.fabric->ops->poll(s.r.conn) > 0)
            continue;
        assert_true(batches[node].status < 0);
        assert_int_equal(word_of(&s, node), before); /* the node runs no verbs while it is down */
        far_sim_node_down(s.world, node, false);
        while (run_control(&s.w, FAR_CONTROL_HAS_FAILED, 7, 3) == 0)
            continue;
        late += word_of(&s, node) > before;
        late_and_fenced += word_of(&s, node) == before;
        assert_nothing_follows(&s);
        tear_down(&s);
    }
    /* With fewer such runs the test would not have tested both cases. */
    assert_true(late > SEEDS / 20 && late_and_fenced > SEEDS / 20);
}


/* An outage that is shorter than the clients wait (unreachable=) ends no session and fails no verb. */
TEST(a_short_outage_loses_no_connection) {
    for (unsigned seed = 1; seed <= SEEDS / 10; seed++) {
        setup s;
        uint64_t word = 5;
        set_up(&s, seed);
        far_sim_node_down(s.world, 0, true);
        far_sim_run_for(s.world, 1000000);
        far_sim_node_down(s.world, 0, false);
        assert_int_equal(rig_run_verb(&s.w, rig_write(WORD, &word, 8)), 0);
        assert_int_equal(run_control(&s.w, FAR_CONTROL_HAS_FAILED, 7, 3), 0);
        tear_down(&s);
    }
}


/* A restart of a node's daemon ends all connections and claims. A new session can claim an id, and gets the answer that
 * the old sessions have failed. */
TEST(a_restart_fences_all_sessions) {
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        rig late;
        far_verb verbs[POSTS];
        far_batch batches[POSTS];
        set_up(&s, seed);
        post_everywhere(&s, verbs, batches);
        far_sim_node_restart(s.world, seed % NODES);
        far_sim_run_for(s.world, 20000000);
        assert_true(run_control(&s.w, FAR_CONTROL_HAS_FAILED, 7, 3) < 0);
        rig_connect(&late, s.witness);
        assert_int_equal(run_control(&late, FAR_CONTROL_CLAIM, 9, 1), 0);
        assert_int_equal(run_control(&late, FAR_CONTROL_HAS_FAILED, 7, 3), 1);
        assert_int_equal(run_control(&late, FAR_CONTROL_HAS_FAILED, 8, 1), 1);
        assert_nothing_follows(&s);
        assert_int_equal(run_control(&late, FAR_CONTROL_CLAIM, 7, 4), 0);
        rig_disconnect(&late);
        while (s.r.fabric->ops->poll(s.r.conn) > 0)
            continue;
        tear_down(&s);
    }
}


/* Client A's session has failed. Client B checks it, and at the same time client C claims the same id and generation.
 * C's session stays alive even if B gets the answer that the pair has failed, because only claims up to the number that
 * node 0 returned are fenced. */
TEST(a_newer_claim_of_the_same_pair_lives) {
    unsigned dead = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        rig checking, late;
        uint64_t word = 5;
        set_up(&s, seed);
        far_sim_node_restart(s.world, 0);
        far_sim_run_for(s.world, 20000000);
        rig_connect(&checking, s.witness);
        rig_connect(&late, s.witness);
        assert_int_equal(run_control(&checking, FAR_CONTROL_CLAIM, 9, 1), 0);
        far_control control = {.kind = FAR_CONTROL_HAS_FAILED, .id = 7, .generation = 3, .done = control_is_answered};
        checking.fabric->ops->ask(checking.conn, &control);
        assert_int_equal(run_control(&late, FAR_CONTROL_CLAIM, 7, 3), 0);
        while (control.pending)
            if (checking.fabric->ops->poll(checking.conn) == 0)
                checking.fabric->ops->wait(checking.conn, FAR_TIME_NEVER);
        dead += control.answer == 1;
        assert_int_equal(rig_run_verb(&late, rig_write(WORD, &word, 8)), 0);
        rig_disconnect(&checking);
        rig_disconnect(&late);
        while (s.r.fabric->ops->poll(s.r.conn) > 0)
            continue;
        tear_down(&s);
    }
    assert_true(dead > SEEDS / 20); /* With fewer such runs the test would not have tested the property. */
}
