/* Death: which posted verbs still happen, that none does after the fence, zombies, lost connections, memory nodes that
 * are down. */
#include "sim_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEEDS       600
#define A           0x1000
#define B           0x2000
#define C           0x3000
#define D           0x4000
#define BLOCK       0x5000
#define BLOCK_BYTES 1024

static uint64_t one = 1;

typedef struct setup {
    far_fabric *fabric, *witness; /* two compute nodes */
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


/* Posts WRITE a, WRITE b, FAA c, WRITE d, and on the other node WRITE a; waits; then tries once more. The payload lies
 * on its stack, which is gone when it has unwound. */
static void run_victim(void *arg) {
    setup *s = arg;
    uint64_t ones[2] = {1, 1}, old;
    far_verb verbs[5] = {rig_write(A, ones, 8), rig_write(B, ones, 8), rig_faa(C, 1, &old), rig_write(D, ones, 8),
                         rig_write(far_addr_make(1, A), ones, 8)};
    s->status = rig_run(&s->r, verbs, 5);
    s->later = rig_run1(&s->r, rig_read(A, ones, 8));
    memset(ones, 0x55, sizeof ones);
    s->unwound = true;
}


static void kill_victim(void *arg) {
    setup *s = arg;
    far_sim_kill(s->fabric);
}


static void the_dead_unwind_with_fenced(void **state) {
    (void)state;
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
    assert_int_equal(rig_run1(&s.w, rig_write(A, &one, 8)), 0); /* the others live */
    tear_down(&s);
}


static void what_survives_death_is_closed_under_the_order(void **state) {
    (void)state;
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


static void with_atomics_in_order_nothing_overtakes_a_lost_atomic(void **state) {
    (void)state;
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
    s->status = rig_run1(&s->r, rig_write(BLOCK, bytes, sizeof bytes));
}


static void a_crash_cuts_a_write_only_between_units(void **state) {
    (void)state;
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
            unsigned landed = 0, i;
            while (landed < BLOCK_BYTES && s.memory[BLOCK + landed] == 0xAB)
                landed++;
            for (i = landed; i < BLOCK_BYTES; i++)
                assert_int_equal(s.memory[BLOCK + i], 0);
            assert_int_equal(landed % units[u], 0);
            cuts += landed > 0 && landed < BLOCK_BYTES;
            whole += landed == BLOCK_BYTES;
            tear_down(&s);
        }
        assert_true(cuts > 20 && whole > 20);
    }
}


static void nothing_takes_effect_after_the_fence(void **state) {
    (void)state;
    unsigned fenced_early = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        setup s;
        uint8_t *before = malloc(0x8000);
        set_up(&s, seed, "faults=all,atomic_bytes=8");
        far_sim_client *victim = far_sim_start(s.fabric, "victim", seed % 2 ? run_victim : run_block, &s);
        assert_int_equal(s.witness->ops->is_dead(s.w.conn, 7, 3), 0);
        far_sim_at(s.world, 600 + seed % 30 * 50, kill_victim, &s);
        far_sim_run_client(victim);
        if (seed % 3 == 0)
            rig_disconnect(&s.r); /* the dead close what they had; their verbs are still on the way */
        assert_int_equal(s.witness->ops->is_dead(s.w.conn, 7, 3), 1);
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


static void is_dead_knows_who_claims_a_session(void **state) {
    (void)state;
    setup s;
    rig second;
    set_up(&s, 1, "faults=none");
    const far_fabric_ops *ops = s.witness->ops;
    assert_int_equal(ops->is_dead(s.w.conn, 7, 3), 0);
    assert_int_equal(ops->is_dead(s.w.conn, 7, 2), 1); /* nobody is this generation */
    assert_int_equal(ops->is_dead(s.w.conn, 9, 1), 1);
    rig_connect(&second, s.witness);
    assert_int_equal(ops->claim(second.conn, 7, 3), 0); /* two at once */
    ops->fence_self(s.r.conn);
    assert_int_equal(ops->is_dead(s.w.conn, 7, 3), 0);
    rig_disconnect(&second);
    assert_int_equal(ops->is_dead(s.w.conn, 7, 3), 1);
    assert_int_equal(ops->is_dead(s.r.conn, 8, 1), FAR_ERR_FENCED); /* the fenced cannot tell */
    assert_int_equal(rig_run1(&s.r, rig_write(A, &one, 8)), FAR_ERR_FENCED);
    assert_int_equal(ops->claim(s.r.conn, 7, 4), FAR_ERR_FENCED);
    tear_down(&s);
}


static void a_zombie_runs_on_and_is_fenced(void **state) {
    (void)state;
    setup s;
    set_up(&s, 1, "faults=none");
    far_sim_client *zombie = far_sim_start(s.fabric, "zombie", run_victim, &s);
    far_sim_hold *hold = far_sim_hold_effect(zombie, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = 2});
    assert_int_equal(far_sim_run_client(zombie), FAR_SIM_HELD);
    assert_int_equal(far_sim_declare_dead(s.world, 7, 3), 1);
    assert_int_equal(far_sim_declare_dead(s.world, 7, 3), 0);
    assert_int_equal(s.witness->ops->is_dead(s.w.conn, 7, 3), 1);
    assert_int_equal(far_sim_run_client(zombie), FAR_SIM_ENDED);
    far_sim_release(hold); /* too late */
    far_sim_run_for(s.world, 1000000);
    assert_int_equal(s.status, FAR_ERR_FENCED);
    assert_int_equal(s.later, FAR_ERR_FENCED);
    assert_int_equal(word_at(s.memory, A), 1);
    assert_int_equal(word_at(s.memory, B), 0);
    assert_int_equal(word_at(s.memory, D), 0);
    assert_false(far_sim_killed(s.fabric));
    tear_down(&s);
}


static void a_lost_connection_fails_what_is_in_flight(void **state) {
    (void)state;
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
        assert_int_equal(s.witness->ops->is_dead(s.w.conn, 7, 3), 1);
        happened += word_at(s.memory, A) == 1;
        not += word_at(s.memory, A) == 0;
        tear_down(&s);
    }
    assert_true(happened > 5 && not > 5);
}


static void a_chosen_cut_is_exact(void **state) {
    (void)state;
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


static void a_chosen_cut_between_units_is_exact(void **state) {
    (void)state;
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


static void explore(void *ctx, const far_sim_posted *posted) {
    explorer *e = ctx;
    assert_string_equal(posted->label, "test");
    assert_int_equal(posted->index, e->seen + 1);
    e->seen = posted->index;
    e->units_seen = posted->units;
    if (e->seen == e->nth)
        far_sim_kill_exact(posted->client, posted->index - 1, e->units);
}


static void an_observer_can_kill_at_every_verb(void **state) {
    (void)state;
    for (uint64_t nth = 1; nth <= 5; nth++) {
        setup s;
        explorer e = {.nth = nth, .units = nth == 3};
        set_up(&s, 1, "faults=none");
        far_sim_client *victim = far_sim_start(s.fabric, "victim", run_victim, &s);
        far_sim_on_verb(s.world, explore, &e);
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


static void an_observer_sees_the_verb_at_which_a_rule_kills(void **state) {
    (void)state;
    setup s;
    explorer e = {.nth = UINT64_MAX};
    set_up(&s, 1, "faults=none");
    far_sim_client *victim = far_sim_start(s.fabric, "victim", run_block, &s);
    far_sim_on_verb(s.world, explore, &e);
    far_sim_kill_at(victim, (far_sim_match){.nth = 1}, 3);
    assert_int_equal(far_sim_run_client(victim), FAR_SIM_ENDED);
    assert_int_equal(e.seen, 1);
    assert_int_equal(e.units_seen, BLOCK_BYTES / 64);
    tear_down(&s);
}


static void a_memory_node_that_is_down_fails_batches_in_bounded_time(void **state) {
    (void)state;
    setup s;
    set_up(&s, 1, "faults=none,unreachable=50us");
    far_sim_node_down(s.world, 1, true);
    uint64_t before = far_sim_now(s.world);
    assert_int_equal(rig_run1(&s.r, rig_write(far_addr_make(1, A), &one, 8)), FAR_ERR_UNREACHABLE);
    assert_true(far_sim_now(s.world) - before < 60000);
    assert_int_equal(rig_run1(&s.r, rig_write(A, &one, 8)), 0); /* the other node answers */
    uint64_t words[40];
    far_verb many[40];
    rig fresh;
    rig_connect(&fresh, s.witness);
    for (unsigned i = 0; i < 40; i++) /* more than can be outstanding */
        many[i] = rig_read(far_addr_make(1, A), &words[i], 8);
    before = far_sim_now(s.world);
    assert_int_equal(rig_run(&fresh, many, 40), FAR_ERR_UNREACHABLE);
    assert_true(far_sim_now(s.world) - before < 70000);
    rig_disconnect(&fresh);
    far_sim_node_down(s.world, 1, false);
    assert_int_equal(word_at(s.memory1, A), 0);
    /* What was posted after the verb that failed must not happen: the connection stays broken. */
    assert_int_equal(rig_run1(&s.r, rig_write(far_addr_make(1, A), &one, 8)), FAR_ERR_UNREACHABLE);
    assert_int_equal(word_at(s.memory1, A), 0);
    assert_int_equal(rig_run1(&s.w, rig_write(far_addr_make(1, A), &one, 8)), 0);
    assert_int_equal(word_at(s.memory1, A), 1);
    tear_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_dead_unwind_with_fenced),
        cmocka_unit_test(what_survives_death_is_closed_under_the_order),
        cmocka_unit_test(with_atomics_in_order_nothing_overtakes_a_lost_atomic),
        cmocka_unit_test(a_crash_cuts_a_write_only_between_units),
        cmocka_unit_test(nothing_takes_effect_after_the_fence),
        cmocka_unit_test(is_dead_knows_who_claims_a_session),
        cmocka_unit_test(a_zombie_runs_on_and_is_fenced),
        cmocka_unit_test(a_lost_connection_fails_what_is_in_flight),
        cmocka_unit_test(a_chosen_cut_is_exact),
        cmocka_unit_test(a_chosen_cut_between_units_is_exact),
        cmocka_unit_test(an_observer_can_kill_at_every_verb),
        cmocka_unit_test(an_observer_sees_the_verb_at_which_a_rule_kills),
        cmocka_unit_test(a_memory_node_that_is_down_fails_batches_in_bounded_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
