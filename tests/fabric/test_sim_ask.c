/* Claims, deaths and cuts that take messages (questions=on): who is said to be dead does nothing any more, at any node,
 * whatever is late; who cannot be asked about is not said to be dead. */
#include "sim_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define SEEDS 150
#define NODES 3
#define WORD  0x1000
#define POSTS 12

typedef struct setup {
    far_fabric *fabric, *witness; /* two compute nodes */
    far_sim_world *world;
    rig r, w;
} setup;


static void question_is_answered(far_question *question) {
    (void)question;
}


static int ask(rig *r, far_question_kind kind, unsigned id, unsigned generation) {
    far_question question = {.kind = kind, .id = id, .generation = generation, .done = question_is_answered};
    r->fabric->ops->ask(r->conn, &question);
    while (question.pending)
        if (r->fabric->ops->poll(r->conn) == 0)
            r->fabric->ops->wait(r->conn, FAR_TIME_NEVER);
    return question.answer;
}


static void set_up(setup *s, unsigned seed) {
    memset(s, 0, sizeof *s);
    s->fabric =
        rig_open("name=ask,seed=%u,size=1M,memory_nodes=%u,questions=on,faults=all,unreachable=3ms", seed, NODES);
    s->witness = rig_open("name=ask,size=1M");
    s->world = far_sim_world_of(s->fabric);
    rig_connect(&s->r, s->fabric);
    rig_connect(&s->w, s->witness);
    assert_int_equal(ask(&s->r, FAR_ASK_CLAIM, 7, 3), 0);
    assert_int_equal(ask(&s->w, FAR_ASK_CLAIM, 8, 1), 0);
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


/* Batches at every node; none is waited for. */
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


/* How far its verbs came after its end, over all seeds: some took effect late, none after it was said to be dead. */
static void the_dead_are_dead_when_all_nodes_have_said_so(void **state) {
    (void)state;
    unsigned late = 0, lived = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        far_verb verbs[POSTS];
        far_batch batches[POSTS];
        set_up(&s, seed);
        assert_int_equal(ask(&s.w, FAR_ASK_DEAD, 7, 3), 0);
        post_everywhere(&s, verbs, batches);
        uint64_t sum = word_of(&s, 0) + word_of(&s, 1) + word_of(&s, 2);
        if (seed % 3 == 0)
            far_sim_kill(s.fabric);
        else if (seed % 3 == 1)
            far_sim_lose(s.r.conn);
        else
            assert_int_equal(ask(&s.w, FAR_ASK_EVICT, 7, 3), 0);
        while (ask(&s.w, FAR_ASK_DEAD, 7, 3) == 0)
            lived++; /* node 0 has not seen it */
        late += word_of(&s, 0) + word_of(&s, 1) + word_of(&s, 2) > sum;
        assert_nothing_follows(&s);
        while (s.r.fabric->ops->poll(s.r.conn) > 0)
            continue;
        tear_down(&s);
    }
    assert_true(late > SEEDS / 10 && lived > SEEDS / 10); /* else nothing was seen */
}


static void an_id_is_claimed_by_one(void **state) {
    (void)state;
    setup s;
    set_up(&s, 1);
    assert_int_equal(ask(&s.w, FAR_ASK_CLAIM, 7, 3), FAR_ERR_BUSY);
    assert_int_equal(ask(&s.w, FAR_ASK_CLAIM, 8, 2), 0);
    assert_int_equal(ask(&s.r, FAR_ASK_CLAIM, 0, 0), 0); /* lets go */
    assert_int_equal(ask(&s.w, FAR_ASK_CLAIM, 7, 3), 0);
    tear_down(&s);
}


/* Who asked for an id in vain is not taken for the one who had it, and dies. */
static void a_refused_claim_is_nobodys(void **state) {
    (void)state;
    setup s;
    uint64_t word = 5;
    set_up(&s, 1);
    assert_int_equal(ask(&s.w, FAR_ASK_CLAIM, 7, 3), FAR_ERR_BUSY);
    far_sim_lose(s.r.conn);
    while (ask(&s.w, FAR_ASK_DEAD, 7, 3) == 0)
        continue;
    assert_int_equal(ask(&s.w, FAR_ASK_CLAIM, 8, 2), 0);
    assert_int_equal(rig_run1(&s.w, rig_write(WORD, &word, 8)), 0);
    assert_int_equal(word_of(&s, 0), 5);
    tear_down(&s);
}


/* A node that does not answer leaves the question open: the asker is lost, and the other one lives on. */
static void a_silent_node_leaves_the_question_open(void **state) {
    (void)state;
    setup s;
    uint64_t word = 5;
    set_up(&s, 1);
    far_sim_kill(s.fabric);
    while (ask(&s.w, FAR_ASK_DEAD, 7, 3) == 0) /* node 0 has seen it */
        continue;
    tear_down(&s);
    for (unsigned down = 0; down < NODES; down++) {
        set_up(&s, 2 + down);
        far_sim_lose(s.r.conn);
        far_sim_run_for(s.world, 10000000); /* all have seen it */
        far_sim_node_down(s.world, down, true);
        assert_true(ask(&s.w, FAR_ASK_DEAD, 7, 3) < 0);
        far_sim_node_down(s.world, down, false);
        assert_int_equal(rig_run1(&s.w, rig_write(WORD, &word, 8)), FAR_ERR_FENCED);
        tear_down(&s);
    }
}


/* A node stands still, and who posted to it gives it up. When it goes on, what it had kept happens, also of who is lost:
 * but not after that one was said to be dead, for which the node must have answered. */
static void a_node_that_stood_still_goes_on_with_what_it_kept(void **state) {
    (void)state;
    unsigned late = 0, late_and_cut = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        far_verb verbs[POSTS];
        far_batch batches[POSTS];
        unsigned node = 1 + seed % (NODES - 1);
        set_up(&s, seed);
        far_sim_node_down(s.world, node, true);
        post_everywhere(&s, verbs, batches);
        uint64_t before = word_of(&s, node);
        far_sim_run_for(s.world, 20000000); /* longer than anybody waits */
        while (s.r.fabric->ops->poll(s.r.conn) > 0)
            continue;
        assert_true(batches[node].status < 0);
        assert_int_equal(word_of(&s, node), before); /* it stands still */
        far_sim_node_down(s.world, node, false);
        while (ask(&s.w, FAR_ASK_DEAD, 7, 3) == 0)
            continue;
        late += word_of(&s, node) > before;
        late_and_cut += word_of(&s, node) == before;
        assert_nothing_follows(&s);
        tear_down(&s);
    }
    assert_true(late > SEEDS / 20 && late_and_cut > SEEDS / 20); /* else nothing was seen */
}


/* Shorter than anybody waits: nobody notices. */
static void a_short_silence_harms_nobody(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= SEEDS / 10; seed++) {
        setup s;
        uint64_t word = 5;
        set_up(&s, seed);
        far_sim_node_down(s.world, 0, true);
        far_sim_run_for(s.world, 1000000);
        far_sim_node_down(s.world, 0, false);
        assert_int_equal(rig_run1(&s.w, rig_write(WORD, &word, 8)), 0);
        assert_int_equal(ask(&s.w, FAR_ASK_DEAD, 7, 3), 0);
        tear_down(&s);
    }
}


/* All who were connected are lost, what they had claimed is over, and a new session gets on. */
static void a_restart_cuts_all_sessions(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        rig late;
        far_verb verbs[POSTS];
        far_batch batches[POSTS];
        set_up(&s, seed);
        post_everywhere(&s, verbs, batches);
        far_sim_node_restart(s.world, seed % NODES);
        far_sim_run_for(s.world, 20000000);
        assert_true(ask(&s.w, FAR_ASK_DEAD, 7, 3) < 0);
        rig_connect(&late, s.witness);
        assert_int_equal(ask(&late, FAR_ASK_CLAIM, 9, 1), 0);
        assert_int_equal(ask(&late, FAR_ASK_DEAD, 7, 3), 1);
        assert_int_equal(ask(&late, FAR_ASK_DEAD, 8, 1), 1);
        assert_nothing_follows(&s);
        assert_int_equal(ask(&late, FAR_ASK_CLAIM, 7, 4), 0);
        rig_disconnect(&late);
        while (s.r.fabric->ops->poll(s.r.conn) > 0)
            continue;
        tear_down(&s);
    }
}


/* Somebody takes the pair of a dead one for free while it is asked for: the newer claim lives, whatever is said of the
 * older one. */
static void a_newer_claim_of_the_same_pair_lives(void **state) {
    (void)state;
    unsigned dead = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        rig asker, late;
        uint64_t word = 5;
        set_up(&s, seed);
        far_sim_node_restart(s.world, 0);
        far_sim_run_for(s.world, 20000000);
        rig_connect(&asker, s.witness);
        rig_connect(&late, s.witness);
        assert_int_equal(ask(&asker, FAR_ASK_CLAIM, 9, 1), 0);
        far_question question = {.kind = FAR_ASK_DEAD, .id = 7, .generation = 3, .done = question_is_answered};
        asker.fabric->ops->ask(asker.conn, &question);
        assert_int_equal(ask(&late, FAR_ASK_CLAIM, 7, 3), 0);
        while (question.pending)
            if (asker.fabric->ops->poll(asker.conn) == 0)
                asker.fabric->ops->wait(asker.conn, FAR_TIME_NEVER);
        dead += question.answer == 1;
        assert_int_equal(rig_run1(&late, rig_write(WORD, &word, 8)), 0);
        rig_disconnect(&asker);
        rig_disconnect(&late);
        while (s.r.fabric->ops->poll(s.r.conn) > 0)
            continue;
        tear_down(&s);
    }
    assert_true(dead > SEEDS / 20); /* else nothing was seen */
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_dead_are_dead_when_all_nodes_have_said_so),
        cmocka_unit_test(an_id_is_claimed_by_one),
        cmocka_unit_test(a_refused_claim_is_nobodys),
        cmocka_unit_test(a_silent_node_leaves_the_question_open),
        cmocka_unit_test(a_node_that_stood_still_goes_on_with_what_it_kept),
        cmocka_unit_test(a_short_silence_harms_nobody),
        cmocka_unit_test(a_restart_cuts_all_sessions),
        cmocka_unit_test(a_newer_claim_of_the_same_pair_lives),
    };
    return cmocka_run_group_tests_name("fabric/sim/ask", tests, NULL, NULL);
}
