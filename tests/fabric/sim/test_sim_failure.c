/* Tests of failures in the simulator: which posted verbs still take effect, that no verb takes effect after fencing,
 * sessions that are fenced while alive, lost connections, and memory nodes that are down. */
#include "sim_rig.h"
#include "test.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS       600
#define A           0x1000
#define B           0x2000
#define C           0x3000
#define D           0x4000
#define BLOCK       0x5000
#define BLOCK_BYTES 1024

static uint64_t one = 1;

typedef struct setup {
    /* two compute nodes: `fabric` is that of the victim (the client that fails), and `witness` that of another client
     */
    far_fabric *fabric, *witness;
    far_sim_world *world;
    rig r, w;
    uint8_t *memory, *memory1;
    int status, later;
    bool unwound;
} setup;


static void set_up(setup *s, unsigned seed, const char *options) {
    memset(s, 0, sizeof *s);
    s->fabric = rig_open("name=death,seed=%u,size=1M,memory_nodes=2,%s", seed, options);
    s->witness = rig_open("name=death,size=1M");
    s->world = far_sim_world_of(s->fabric);
    assert_ptr_equal(s->world, far_sim_world_of(s->witness));
    rig_connect(&s->r, s->fabric);
    rig_connect(&s->w, s->witness);
    s->memory = far_sim_memory(s->world, 0);
    s->memory1 = far_sim_memory(s->world, 1);
    assert_int_equal(s->fabric->ops->claim(s->r.conn, 7, 3), 0);
    assert_int_equal(s->witness->ops->claim(s->w.conn, 8, 1), 0);
}


static void tear_down(setup *s) {
    assert_int_equal(far_sim_watch_errors(s->world), 0);
    rig_disconnect(&s->r);
    rig_disconnect(&s->w);
    s->fabric->ops->close(s->fabric);
    s->witness->ops->close(s->witness);
}


static uint64_t word_at(const uint8_t *memory, uint64_t offset) {
    uint64_t word;
    memcpy(&word, memory + offset, 8);
    return word;
}


/* The victim posts WRITE a, WRITE b, FAA c, WRITE d, and WRITE a on the other node, waits, and then tries a READ. The
 * payload of the WRITEs is on the victim's stack and is overwritten when run_victim returns. */
static void run_victim(void *arg) {
    setup *s = arg;
    uint64_t ones[2] = {1, 1}, old;
    far_verb verbs[5] = {rig_write(A, ones, 8), rig_write(B, ones, 8), rig_faa(C, 1, &old), rig_write(D, ones, 8),
                         rig_write(far_addr_make(1, A), ones, 8)};
    s->status = rig_run(&s->r, verbs, 5);
    s->later = rig_run_verb(&s->r, rig_read(A, ones, 8));
    memset(ones, 0x55, sizeof ones);
    s->unwound = true;
}


static void kill_victim(void *arg) {
    setup *s = arg;
    far_sim_kill(s->fabric);
}


/* When a compute node is killed, its batch in flight and all later verbs return FAR_ERR_FENCED, so the code of its
 * client returns. New connections of the node are refused. Clients of other nodes are not affected. */
TEST(clients_of_a_killed_node_return_with_fenced) {
    setup s;
    set_up(&s, 1, "faults=none");
    far_sim_client *victim = far_sim_start(s.fabric, "victim", run_victim, &s);
    far_sim_at(s.world, 1000, kill_victim, &s);
    assert_int_equal(far_sim_run_client(victim), FAR_SIM_ENDED);
    assert_true(s.unwound);
    assert_true(far_sim_killed(s.fabric));
    assert_false(far_sim_killed(s.witness));
    assert_int_equal(s.status, FAR_ERR_FENCED);
    assert_int_equal(s.later, FAR_ERR_FENCED);
    rig other = {.fabric = s.fabric};
    assert_int_equal(s.fabric->ops->connect(s.fabric, &other.parker, &other.conn), FAR_ERR_FENCED);
    assert_int_equal(rig_run_verb(&s.w, rig_write(A, &one, 8)), 0); /* clients of other nodes are not affected */
    tear_down(&s);
}


/* The victim is killed while its verbs are in flight. If a verb takes effect, then so do all verbs that are ordered
 * before it at the same node. Over all seeds, each allowed set occurs, also with an effect after the failure. Fails
 * without `verb_may_survive` in src/fabric/sim/failure.c. */
TEST(verbs_that_survive_a_failure_are_closed_under_the_order) {
    unsigned none = 0, all = 0, some = 0, d_without_c = 0, late = 0, nodes_differ = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        set_up(&s, seed, seed % 2 ? "faults=none" : "faults=reorder+stall");
        far_sim_client *victim = far_sim_start(s.fabric, "victim", run_victim, &s);
        far_sim_at(s.world, 600 + seed % 30 * 50, kill_victim, &s);
        far_sim_run_client(victim);
        uint64_t early = word_at(s.memory, A) + word_at(s.memory, B) + word_at(s.memory, C) + word_at(s.memory, D);
        far_sim_run_for(s.world, 10000000);
        uint64_t a = word_at(s.memory, A), b = word_at(s.memory, B), c = word_at(s.memory, C), d = word_at(s.memory, D);
        assert_true(a <= 1 && b <= a && c <= b && d <= b);
        late += a + b + c + d > early;
        none += a == 0;
        all += a + b + c + d == 4;
        some += a == 1 && d == 0;
        d_without_c += d == 1 && c == 0;
        nodes_differ += word_at(s.memory1, A) != a;
        tear_down(&s);
    }
    assert_true(none > 20 && all > 20 && some > 20 && d_without_c > 5 && late > 20 && nodes_differ > 20);
}


/* With the capability atomics_in_order, a verb that is posted after a dropped atomic is dropped too. */
TEST(with_atomics_in_order_nothing_overtakes_a_lost_atomic) {
    unsigned c_lost = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        set_up(&s, seed, "faults=all,atomics_in_order=on");
        far_sim_client *victim = far_sim_start(s.fabric, "victim", run_victim, &s);
        far_sim_at(s.world, 600 + seed % 30 * 50, kill_victim, &s);
        far_sim_run_client(victim);
        far_sim_run_for(s.world, 10000000);
        assert_true(word_at(s.memory, D) <= word_at(s.memory, C));
        c_lost += word_at(s.memory, B) == 1 && word_at(s.memory, C) == 0;
        tear_down(&s);
    }
    assert_true(c_lost > 5);
}


static void run_block(void *arg) {
    setup *s = arg;
    uint8_t bytes[BLOCK_BYTES];
    memset(bytes, 0xAB, sizeof bytes);
    s->status = rig_run_verb(&s->r, rig_write(BLOCK, bytes, sizeof bytes));
}


/* After a failure a WRITE has taken effect completely, not at all, or up to the end of a tearing granule. */
TEST(a_failure_cuts_a_write_only_between_granules) {
    static const unsigned units[] = {64, 8};
    for (unsigned u = 0; u < 2; u++) {
        unsigned cuts = 0, whole = 0;
        for (unsigned seed = 1; seed <= SEEDS / 2; seed++) {
            setup s;
            char options[64];
            snprintf(options, sizeof options, "atomic_bytes=%u,faults=%s", units[u], seed % 2 ? "none" : "tear");
            set_up(&s, seed, options);
            far_sim_client *victim = far_sim_start(s.fabric, "victim", run_block, &s);
            far_sim_at(s.world, 300 + seed % 30 * 50, kill_victim, &s);
            far_sim_run_client(victim);
            far_sim_run_for(s.world, 10000000);
            unsigned in_effect = 0, i;
            while (in_effect < BLOCK_BYTES && s.memory[BLOCK + in_effect] == 0xAB)
                in_effect++;
            for (i = in_effect; i < BLOCK_BYTES; i++)
                assert_int_equal(s.memory[BLOCK + i], 0);
            assert_int_equal(in_effect % units[u], 0);
            cuts += in_effect > 0 && in_effect < BLOCK_BYTES;
            whole += in_effect == BLOCK_BYTES;
            tear_down(&s);
        }
        assert_true(cuts > 20 && whole > 20);
    }
}


/* The victim is killed with verbs in flight. After `has_failed` has returned 1 to the witness, memory does not change
 * any more, although verbs of the victim could have taken effect later. Fails if `sim_session_has_failed` does not
 * fence the session first. */
TEST(nothing_takes_effect_after_the_fence) {
    unsigned fenced_early = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        uint8_t *before = malloc(0x8000);
        set_up(&s, seed, "faults=all,atomic_bytes=8");
        far_sim_client *victim = far_sim_start(s.fabric, "victim", seed % 2 ? run_victim : run_block, &s);
        assert_int_equal(s.witness->ops->has_failed(s.w.conn, 7, 3), 0);
        far_sim_at(s.world, 600 + seed % 30 * 50, kill_victim, &s);
        far_sim_run_client(victim);
        if (seed % 3 == 0)
            rig_disconnect(&s.r); /* a failed client closes its connection while its verbs are still under way */
        assert_int_equal(s.witness->ops->has_failed(s.w.conn, 7, 3), 1);
        memcpy(before, s.memory, 0x8000);
        fenced_early += seed % 2 && word_at(before, A) == 0;
        far_sim_run_for(s.world, 10000000);
        assert_memory_equal(before, s.memory, 0x8000);
        free(before);
        if (seed % 3 == 0)
            rig_connect(&s.r, s.witness);
        tear_down(&s);
    }
    assert_true(fenced_early > 20);
}


/* A session is alive while any connection that claims its id and generation is not fenced. `has_failed` returns an
 * error to a caller that is fenced itself. */
TEST(has_failed_considers_all_connections_of_a_session) {
    setup s;
    rig second;
    set_up(&s, 1, "faults=none");
    const far_fabric_ops *ops = s.witness->ops;
    assert_int_equal(ops->has_failed(s.w.conn, 7, 3), 0);
    assert_int_equal(ops->has_failed(s.w.conn, 7, 2), 1); /* no connection has claimed this generation */
    assert_int_equal(ops->has_failed(s.w.conn, 9, 1), 1);
    rig_connect(&second, s.witness);
    /* A second connection claims the same session as the first one. */
    assert_int_equal(ops->claim(second.conn, 7, 3), 0);
    ops->fence_self(s.r.conn);
    assert_int_equal(ops->has_failed(s.w.conn, 7, 3), 0);
    rig_disconnect(&second);
    assert_int_equal(ops->has_failed(s.w.conn, 7, 3), 1);
    assert_int_equal(ops->has_failed(s.r.conn, 8, 1), FAR_ERR_FENCED); /* a fenced connection gets no answer */
    assert_int_equal(rig_run_verb(&s.r, rig_write(A, &one, 8)), FAR_ERR_FENCED);
    assert_int_equal(ops->claim(s.r.conn, 7, 4), FAR_ERR_FENCED);
    tear_down(&s);
}


/* A test holds the second WRITE of a client. Then the session is fenced, although the client is alive. The held WRITE
 * and all later verbs have no effect, also after the hold is released, and the client gets FAR_ERR_FENCED. */
TEST(a_session_fenced_while_alive_changes_nothing) {
    setup s;
    set_up(&s, 1, "faults=none");
    far_sim_client *evicted = far_sim_start(s.fabric, "zombie", run_victim, &s);
    far_sim_hold *hold = far_sim_hold_effect(evicted, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = 2});
    assert_int_equal(far_sim_run_client(evicted), FAR_SIM_HELD);
    assert_int_equal(far_sim_declare_dead(s.world, 7, 3), 1);
    assert_int_equal(far_sim_declare_dead(s.world, 7, 3), 0);
    assert_int_equal(s.witness->ops->has_failed(s.w.conn, 7, 3), 1);
    assert_int_equal(far_sim_run_client(evicted), FAR_SIM_ENDED);
    far_sim_release(hold); /* The release is too late, because the fence has dropped the held WRITE. */
    far_sim_run_for(s.world, 1000000);
    assert_int_equal(s.status, FAR_ERR_FENCED);
    assert_int_equal(s.later, FAR_ERR_FENCED);
    assert_int_equal(word_at(s.memory, A), 1);
    assert_int_equal(word_at(s.memory, B), 0);
    assert_int_equal(word_at(s.memory, D), 0);
    assert_false(far_sim_killed(s.fabric));
    tear_down(&s);
}


/* If a connection breaks, its verbs in flight fail with FAR_ERR_UNREACHABLE and may have taken effect or not. Later
 * verbs fail with FAR_ERR_FENCED. */
TEST(a_lost_connection_fails_verbs_in_flight) {
    unsigned happened = 0, not = 0;
    for (unsigned seed = 1; seed <= 60; seed++) {
        setup s;
        set_up(&s, seed, "faults=none");
        far_sim_client *client = far_sim_start(s.fabric, "client", run_victim, &s);
        far_sim_run_for(s.world, 900);
        if (seed % 2)
            far_sim_lose(s.r.conn);
        else
            far_sim_lose_client(client);
        assert_int_equal(far_sim_run_client(client), FAR_SIM_ENDED);
        assert_int_equal(s.status, FAR_ERR_UNREACHABLE);
        assert_int_equal(s.later, FAR_ERR_FENCED);
        far_sim_run_for(s.world, 1000000);
        assert_int_equal(s.witness->ops->has_failed(s.w.conn, 7, 3), 1);
        happened += word_at(s.memory, A) == 1;
        not += word_at(s.memory, A) == 0;
        tear_down(&s);
    }
    assert_true(happened > 5 && not > 5);
}


/* If a test kills a client at its n-th verb, exactly the earlier verbs take effect, whatever the faults. */
TEST(a_chosen_cut_is_exact) {
    for (unsigned seed = 1; seed <= 20; seed++)
        for (uint64_t verbs = 0; verbs <= 5; verbs++) {
            setup s;
            set_up(&s, seed, seed % 2 ? "faults=none" : "faults=all");
            far_sim_client *victim = far_sim_start(s.fabric, "victim", run_victim, &s);
            if (verbs < 5)
                far_sim_kill_at(victim, (far_sim_match){.nth = (unsigned)verbs + 1}, 0);
            else
                far_sim_kill_at(victim, (far_sim_match){.nth = 5}, FAR_SIM_WHOLE);
            assert_int_equal(far_sim_run_client(victim), FAR_SIM_ENDED);
            far_sim_run_for(s.world, 10000000);
            assert_int_equal(word_at(s.memory, A), verbs >= 1);
            assert_int_equal(word_at(s.memory, B), verbs >= 2);
            assert_int_equal(word_at(s.memory, C), verbs >= 3);
            assert_int_equal(word_at(s.memory, D), verbs >= 4);
            assert_int_equal(word_at(s.memory1, A), verbs >= 5);
            assert_int_equal(s.status, FAR_ERR_FENCED);
            tear_down(&s);
        }
}


/* If a test kills a client after n granules of a WRITE, exactly these granules take effect. */
TEST(a_chosen_cut_between_granules_is_exact) {
    for (unsigned units = 0; units <= BLOCK_BYTES / 64; units++) {
        setup s;
        set_up(&s, units + 1, units % 2 ? "faults=none" : "faults=all");
        far_sim_client *victim = far_sim_start(s.fabric, "victim", run_block, &s);
        far_sim_kill_at(victim, (far_sim_match){.kind = FAR_SIM_WRITE}, units);
        assert_int_equal(far_sim_run_client(victim), FAR_SIM_ENDED);
        far_sim_run_for(s.world, 10000000);
        for (unsigned i = 0; i < BLOCK_BYTES; i++)
            assert_int_equal(s.memory[BLOCK + i], i < units * 64 ? 0xAB : 0);
        tear_down(&s);
    }
}


typedef struct explorer {
    uint64_t nth;
    uint32_t units, units_seen;
    uint64_t seen;
} explorer;


static void kill_at_nth_verb(void *ctx, const far_sim_posted *posted) {
    explorer *e = ctx;
    assert_string_equal(posted->label, "test");
    assert_int_equal(posted->index, e->seen + 1);
    e->seen = posted->index;
    e->units_seen = posted->units;
    if (e->seen == e->nth)
        far_sim_kill_exact(posted->client, posted->index - 1, e->units);
}


/* An observer is called for each verb when it is posted, and can kill the client there with a chosen set of effects. */
TEST(an_observer_can_kill_at_every_verb) {
    for (uint64_t nth = 1; nth <= 5; nth++) {
        setup s;
        explorer e = {.nth = nth, .units = nth == 3};
        set_up(&s, 1, "faults=none");
        far_sim_client *victim = far_sim_start(s.fabric, "victim", run_victim, &s);
        far_sim_on_verb(s.world, kill_at_nth_verb, &e);
        assert_int_equal(far_sim_run_client(victim), FAR_SIM_ENDED);
        assert_int_equal(e.seen, nth);
        assert_int_equal(e.units_seen, 1);
        assert_int_equal(far_sim_verbs(victim), 5);
        far_sim_run_for(s.world, 1000000);
        assert_int_equal(word_at(s.memory, A) + word_at(s.memory, B) + word_at(s.memory, C) + word_at(s.memory, D),
                         nth == 3 ? 3 : nth - 1);
        tear_down(&s);
    }
}


/* A rule that kills a client at a verb does not hide this verb from the observer. */
TEST(an_observer_is_called_for_the_verb_at_which_a_rule_kills) {
    setup s;
    explorer e = {.nth = UINT64_MAX};
    set_up(&s, 1, "faults=none");
    far_sim_client *victim = far_sim_start(s.fabric, "victim", run_block, &s);
    far_sim_on_verb(s.world, kill_at_nth_verb, &e);
    far_sim_kill_at(victim, (far_sim_match){.nth = 1}, 3);
    assert_int_equal(far_sim_run_client(victim), FAR_SIM_ENDED);
    assert_int_equal(e.seen, 1);
    assert_int_equal(e.units_seen, BLOCK_BYTES / 64);
    tear_down(&s);
}


/* While a memory node is down, batches to it fail after `unreachable=`, also if they contain more verbs than can be
 * outstanding. After a failed verb, later verbs of the connection to this node have no effect either. Fails without
 * `failed` in sim_qp. */
TEST(a_memory_node_that_is_down_fails_batches_in_bounded_time) {
    setup s;
    set_up(&s, 1, "faults=none,unreachable=50us");
    far_sim_node_down(s.world, 1, true);
    uint64_t before = far_sim_now(s.world);
    assert_int_equal(rig_run_verb(&s.r, rig_write(far_addr_make(1, A), &one, 8)), FAR_ERR_UNREACHABLE);
    assert_true(far_sim_now(s.world) - before < 60000);
    assert_int_equal(rig_run_verb(&s.r, rig_write(A, &one, 8)), 0); /* Verbs to the other memory node still complete. */
    uint64_t words[40];
    far_verb many[40];
    rig fresh;
    rig_connect(&fresh, s.witness);
    for (unsigned i = 0; i < 40; i++) /* 40 verbs are more than the limit of outstanding verbs. */
        many[i] = rig_read(far_addr_make(1, A), &words[i], 8);
    before = far_sim_now(s.world);
    assert_int_equal(rig_run(&fresh, many, 40), FAR_ERR_UNREACHABLE);
    assert_true(far_sim_now(s.world) - before < 70000);
    rig_disconnect(&fresh);
    far_sim_node_down(s.world, 1, false);
    assert_int_equal(word_at(s.memory1, A), 0);
    /* After a failed verb, later verbs of this connection to this node must not take effect either. */
    assert_int_equal(rig_run_verb(&s.r, rig_write(far_addr_make(1, A), &one, 8)), FAR_ERR_UNREACHABLE);
    assert_int_equal(word_at(s.memory1, A), 0);
    assert_int_equal(rig_run_verb(&s.w, rig_write(far_addr_make(1, A), &one, 8)), 0);
    assert_int_equal(word_at(s.memory1, A), 1);
    tear_down(&s);
}
