/* Tests of steering: a test selects a verb or a point of a client and decides what happens there. */
#include "sim_rig.h"
#include "test.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define X 0x1000
#define Y 0x2000

typedef struct actor {
    rig r;
    int result;
    uint64_t value, seen, other;
    uint64_t words[64];
} actor;

typedef struct stage {
    far_fabric *fabric;
    far_sim_world *world;
    uint8_t *memory;
    actor a, b;
} stage;


static void set_up(stage *s, const char *options) {
    memset(s, 0, sizeof *s);
    s->fabric = rig_open("size=1M,memory_nodes=2,%s", options);
    s->world = far_sim_world_of(s->fabric);
    s->memory = far_sim_memory(s->world, 0);
    rig_connect(&s->a.r, s->fabric);
    rig_connect(&s->b.r, s->fabric);
}


static void tear_down(stage *s) {
    rig_disconnect(&s->a.r);
    rig_disconnect(&s->b.r);
    s->fabric->ops->close(s->fabric);
}


static uint64_t word_at(const stage *s, uint64_t offset) {
    uint64_t word;
    memcpy(&word, s->memory + offset, 8);
    return word;
}


/* READs the word x once, and then tries a CAS that replaces the value it has read by this value plus one. */
static void run_increment(void *arg) {
    actor *a = arg;
    rig_run_verb(&a->r, rig_read(X, &a->seen, 8));
    a->r.fabric->watch->point(a->r.conn, "between", "test");
    a->result = rig_run_verb(&a->r, rig_cas(X, a->seen, a->seen + 1, &a->other));
}


static void run_write_x(void *arg) {
    actor *a = arg;
    a->result = rig_run_verb(&a->r, rig_write(X, &a->value, 8));
}


static void run_write_block(void *arg) {
    actor *a = arg;
    for (unsigned i = 0; i < 64; i++)
        a->words[i] = a->value;
    a->result = rig_run_verb(&a->r, rig_write(X, a->words, 512));
}


static void run_read_block(void *arg) {
    actor *a = arg;
    a->result = rig_run_verb(&a->r, rig_read(X, a->words, 512));
}


/* Client A stops before its CAS, client B changes the word, and A's CAS fails after it was resumed. */
TEST(a_client_stops_before_a_verb_and_others_run) {
    stage s;
    set_up(&s, "faults=none");
    far_sim_client *a = far_sim_start(s.fabric, "a", run_increment, &s.a),
                   *b = far_sim_start(s.fabric, "b", run_increment, &s.b);
    far_sim_stop_before(a, (far_sim_match){.kind = FAR_SIM_CAS});
    assert_int_equal(far_sim_run_client(a), FAR_SIM_STOPPED);
    assert_int_equal(far_sim_run_client(a), FAR_SIM_STOPPED); /* Client A remains stopped at its CAS. */
    assert_int_equal(far_sim_verbs(a), 1);
    assert_int_equal(far_sim_verbs(b), 0); /* Client B did not run, because only A was to run. */
    assert_int_equal(far_sim_run_client(b), FAR_SIM_ENDED);
    assert_int_equal(word_at(&s, X), 1);
    far_sim_resume(a);
    assert_int_equal(far_sim_run_client(a), FAR_SIM_ENDED);
    assert_int_equal(s.a.seen, 0);
    assert_int_equal(s.a.other, 1); /* A's CAS failed, because B's CAS took effect in between */
    assert_int_equal(word_at(&s, X), 1);
    tear_down(&s);
}


/* A rule for a point matches its name, and its label if one is given. */
TEST(a_client_stops_at_a_named_point) {
    stage s;
    set_up(&s, "faults=none");
    far_sim_client *a = far_sim_start(s.fabric, "a", run_increment, &s.a);
    far_sim_stop_before(a, (far_sim_match){.point = "elsewhere"});
    far_sim_stop_before(a, (far_sim_match){.point = "between", .label = "other"});
    far_sim_stop_before(a, (far_sim_match){.point = "between", .label = "test"});
    assert_int_equal(far_sim_run(s.world), FAR_SIM_STOPPED);
    assert_int_equal(far_sim_verbs(a), 1);
    far_sim_resume(a);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    tear_down(&s);
}


static void run_many(void *arg) {
    actor *a = arg;
    uint64_t word = 0;
    far_verb verbs[3];
    for (unsigned i = 0; i < 6; i++) {
        verbs[0] = rig_read(Y, &word, 8);
        verbs[1] = i % 2 ? rig_faa(X + i * 64, 1, &word) : rig_masked_cas(X + i * 64, 0, 0, 1, 1, &word);
        verbs[2] = rig_write(far_addr_make(1, X + i * 64), &a->value, 8);
        far_batch batch = rig_batch(verbs, 3);
        batch.label = i < 3 ? "early" : "late";
        rig_post(&a->r, &batch);
        rig_wait(&a->r, &batch);
    }
}


static uint64_t verbs_before_stop(far_sim_match match) {
    stage s;
    set_up(&s, "faults=none");
    far_sim_client *a = far_sim_start(s.fabric, "a", run_many, &s.a);
    far_sim_stop_before(a, match);
    far_sim_run_client(a);
    uint64_t verbs = far_sim_verbs(a);
    tear_down(&s);
    return verbs;
}


/* Each field of a match restricts which verb is selected. */
TEST(a_match_names_kind_number_address_and_label) {
    far_addr node1 = far_addr_make(1, 0);
    assert_int_equal(verbs_before_stop((far_sim_match){0}), 0);
    assert_int_equal(verbs_before_stop((far_sim_match){.nth = 4}), 3);
    /* A client stops before the whole batch that contains the matching verb. */
    assert_int_equal(verbs_before_stop((far_sim_match){.nth = 6}), 3);
    assert_int_equal(verbs_before_stop((far_sim_match){.kind = FAR_SIM_READ, .nth = 3}), 6);
    assert_int_equal(verbs_before_stop((far_sim_match){.kind = FAR_SIM_FAA}), 3);
    assert_int_equal(verbs_before_stop((far_sim_match){.kind = FAR_SIM_MASKED_CAS, .nth = 2}), 6);
    assert_int_equal(verbs_before_stop((far_sim_match){.kind = FAR_SIM_ATOMIC, .nth = 5}), 12);
    /* No verb matches, so the client runs to its end. */
    assert_int_equal(verbs_before_stop((far_sim_match){.kind = FAR_SIM_CAS}), 18);
    assert_int_equal(verbs_before_stop((far_sim_match){.from = X + 2 * 64, .to = X + 2 * 64 + 8}), 6);
    assert_int_equal(verbs_before_stop((far_sim_match){.from = X + 64 + 8, .to = X + 2 * 64}), 18);
    assert_int_equal(verbs_before_stop((far_sim_match){.from = node1 + X + 4 * 64, .to = node1 + X + 5 * 64}), 12);
    assert_int_equal(verbs_before_stop((far_sim_match){.label = "late"}), 9);
    assert_int_equal(verbs_before_stop((far_sim_match){.label = "late", .kind = FAR_SIM_FAA, .nth = 2}), 15);
}


/* The WRITE of client A is held, client B does not observe it, and A's WRITE takes effect after the release. */
TEST(a_held_effect_is_invisible_until_released) {
    stage s;
    set_up(&s, "faults=none");
    s.a.value = 7;
    far_sim_client *a = far_sim_start(s.fabric, "a", run_write_x, &s.a),
                   *b = far_sim_start(s.fabric, "b", run_increment, &s.b);
    far_sim_hold *hold = far_sim_hold_effect(a, (far_sim_match){.kind = FAR_SIM_WRITE});
    assert_false(far_sim_reached(hold));
    assert_int_equal(far_sim_run_client(a), FAR_SIM_HELD);
    assert_true(far_sim_reached(hold));
    /* The client cannot continue before the hold is released, so the run ends. */
    assert_int_equal(far_sim_run_client(a), FAR_SIM_HELD);
    assert_int_equal(far_sim_run_client(b), FAR_SIM_ENDED);
    assert_int_equal(s.b.seen, 0);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_HELD);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(a), FAR_SIM_ENDED);
    assert_int_equal(word_at(&s, X), 7);
    tear_down(&s);
}


/* The completion of A's WRITE is held: B observes the WRITE, but A does not continue until the release. */
TEST(a_held_completion_leaves_the_effect) {
    stage s;
    set_up(&s, "faults=none");
    s.a.value = 7;
    far_sim_client *a = far_sim_start(s.fabric, "a", run_write_x, &s.a),
                   *b = far_sim_start(s.fabric, "b", run_increment, &s.b);
    far_sim_hold *hold = far_sim_hold_completion(a, (far_sim_match){.kind = FAR_SIM_WRITE});
    assert_int_equal(far_sim_run_client(a), FAR_SIM_HELD);
    assert_false(far_sim_ended(a));
    assert_int_equal(far_sim_run_client(b), FAR_SIM_ENDED);
    assert_int_equal(s.b.seen, 7);
    assert_int_equal(far_sim_release_units(hold, NULL, 0), FAR_ERR_INVALID);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(a), FAR_SIM_ENDED);
    tear_down(&s);
}


/* A hold that is released before its verb is posted has no effect. */
TEST(a_hold_released_before_it_is_reached_never_holds) {
    stage s;
    set_up(&s, "faults=none");
    far_sim_client *a = far_sim_start(s.fabric, "a", run_write_x, &s.a);
    far_sim_hold *hold = far_sim_hold_effect(a, (far_sim_match){0});
    assert_int_equal(far_sim_release_units(hold, (uint32_t[]){0}, 1), FAR_ERR_INVALID);
    far_sim_release(hold);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    tear_down(&s);
}


/* A test releases some granules of a held WRITE, and another client reads exactly these. An order that is not rising,
 * and a granule that was released before, are refused. */
TEST(a_write_is_released_granule_by_granule_in_rising_order) {
    stage s;
    set_up(&s, "faults=none");
    s.a.value = 7;
    far_sim_client *a = far_sim_start(s.fabric, "a", run_write_block, &s.a),
                   *b = far_sim_start(s.fabric, "b", run_read_block, &s.b);
    far_sim_hold *hold = far_sim_hold_effect(a, (far_sim_match){.kind = FAR_SIM_WRITE});
    assert_int_equal(far_sim_run_client(a), FAR_SIM_HELD);
    assert_int_equal(far_sim_hold_units(hold), 8);
    assert_int_equal(far_sim_release_units(hold, (uint32_t[]){1}, 1), FAR_ERR_INVALID);
    assert_int_equal(far_sim_release_units(hold, (uint32_t[]){0, 1, 2}, 3), 0);
    assert_int_equal(far_sim_release_units(hold, (uint32_t[]){2}, 1), FAR_ERR_INVALID);
    assert_int_equal(far_sim_release_units(hold, (uint32_t[]){8}, 1), FAR_ERR_INVALID);
    assert_int_equal(far_sim_run_client(b), FAR_SIM_ENDED);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(s.b.words[i], i < 24 ? 7 : 0);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(a), FAR_SIM_ENDED);
    assert_int_equal(word_at(&s, X + 504), 7);
    tear_down(&s);
}


/* Granules of a held READ are sampled when the test releases them, in any order. */
TEST(a_read_is_released_granule_by_granule_in_any_order) {
    stage s;
    set_up(&s, "faults=none");
    s.b.value = 9;
    far_sim_client *a = far_sim_start(s.fabric, "a", run_read_block, &s.a),
                   *b = far_sim_start(s.fabric, "b", run_write_block, &s.b);
    far_sim_hold *hold = far_sim_hold_effect(a, (far_sim_match){.kind = FAR_SIM_READ});
    assert_int_equal(far_sim_run_client(a), FAR_SIM_HELD);
    assert_int_equal(far_sim_release_units(hold, (uint32_t[]){5, 2}, 2), 0);
    assert_int_equal(far_sim_run_client(b), FAR_SIM_ENDED);
    assert_int_equal(far_sim_release_units(hold, (uint32_t[]){7, 6, 4, 3, 1, 0}, 6), 0);
    assert_int_equal(far_sim_run_client(a), FAR_SIM_ENDED);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(s.a.words[i], i / 8 == 5 || i / 8 == 2 ? 0 : 9);
    tear_down(&s);
}


/* Posts WRITE x, FAA y and WRITE y + 64 without waiting for them, and returns. */
static void run_unwaited(void *arg) {
    actor *a = arg;
    static uint64_t value;
    static far_verb verbs[3];
    static far_batch batch;
    value = 1;
    verbs[0] = rig_write(X, &value, 8);
    verbs[1] = rig_faa(Y, 1, &a->seen);
    verbs[2] = rig_write(Y + 64, &value, 8);
    batch = rig_batch(verbs, 3);
    rig_post(&a->r, &batch);
}


/* While a verb is held, verbs that are ordered after it wait, and all others take effect. Fails without
 * `verb_must_wait` in src/fabric/sim/effect.c. */
TEST(only_verbs_ordered_after_a_held_verb_wait) {
    stage s;
    set_up(&s, "faults=none");
    far_sim_client *a = far_sim_start(s.fabric, "a", run_unwaited, &s.a);
    far_sim_hold *atomic = far_sim_hold_effect(a, (far_sim_match){.kind = FAR_SIM_FAA});
    /* The client ends, because it does not wait for its verbs. */
    assert_int_equal(far_sim_run_client(a), FAR_SIM_ENDED);
    far_sim_run_for(s.world, 10000);
    assert_int_equal(word_at(&s, Y), 0);
    /* The WRITE has taken effect, because the contract does not order an atomic before a later WRITE. */
    assert_int_equal(word_at(&s, Y + 64), 1);
    far_sim_release(atomic);
    far_sim_run_for(s.world, 10000);
    assert_int_equal(word_at(&s, Y), 1);
    s.a.r.fabric->ops->poll(s.a.r.conn);
    tear_down(&s);

    set_up(&s, "faults=none");
    a = far_sim_start(s.fabric, "a", run_unwaited, &s.a);
    far_sim_hold *write = far_sim_hold_effect(a, (far_sim_match){.kind = FAR_SIM_WRITE});
    assert_int_equal(far_sim_run_client(a), FAR_SIM_ENDED);
    far_sim_run_for(s.world, 10000);
    /* No later verb has taken effect, because a WRITE precedes all later verbs. */
    assert_int_equal(word_at(&s, Y) + word_at(&s, Y + 64), 0);
    far_sim_release(write);
    far_sim_run_for(s.world, 10000);
    assert_int_equal(word_at(&s, X) + word_at(&s, Y) + word_at(&s, Y + 64), 3);
    s.a.r.fabric->ops->poll(s.a.r.conn);
    tear_down(&s);
}


/* Posts READ x and WRITE x in one batch. */
static void run_read_write(void *arg) {
    actor *a = arg;
    far_verb verbs[2] = {rig_read(X, &a->seen, 8), rig_write(X, &a->value, 8)};
    a->result = rig_run(&a->r, verbs, 2);
}


/* A test selects the order in which a READ and a WRITE of one batch take effect. */
TEST(the_order_inside_a_batch_can_be_chosen) {
    for (uint32_t first = 0; first < 2; first++) {
        stage s;
        set_up(&s, "faults=none");
        s.a.value = 7;
        far_sim_client *a = far_sim_start(s.fabric, "a", run_read_write, &s.a);
        far_sim_order(a, (far_sim_match){.kind = FAR_SIM_WRITE}, (uint32_t[]){first, 1 - first}, 2);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_int_equal(s.a.seen, first == 0 ? 0 : 7);
        assert_int_equal(far_sim_watch_errors(s.world), 0);
        tear_down(&s);
    }
}


/* A request for an order that the contract forbids is reported as an error of the run. */
TEST(an_order_that_the_contract_forbids_is_an_error) {
    stage s;
    set_up(&s, "faults=none");
    far_sim_client *a = far_sim_start(s.fabric, "a", run_unwaited, &s.a);
    /* This order reverses the WRITE and the FAA, which the contract forbids. */
    far_sim_order(a, (far_sim_match){0}, (uint32_t[]){1, 0, 2}, 3);
    far_sim_run_client(a);
    far_sim_run_for(s.world, 10000);
    assert_int_equal(far_sim_watch_errors(s.world), 1);
    s.a.r.fabric->ops->poll(s.a.r.conn);
    tear_down(&s);
}


/* Rules suspend a client before a verb and at a point for the requested time. */
TEST(a_client_stalls_at_the_requested_place) {
    stage s;
    set_up(&s, "faults=none");
    far_sim_client *a = far_sim_start(s.fabric, "a", run_increment, &s.a);
    far_sim_stall_at(a, (far_sim_match){.kind = FAR_SIM_CAS}, 1000000);
    far_sim_stall_at(a, (far_sim_match){.point = "between"}, 2000000);
    assert_int_equal(far_sim_run_client(a), FAR_SIM_ENDED);
    assert_int_equal(far_sim_now(s.world), 2350 + 2750 + 3000000);
    tear_down(&s);
}


/* A rule kills the compute node when its client reaches a point, and later verbs have no effect. */
TEST(a_compute_node_is_killed_at_a_point) {
    stage s;
    set_up(&s, "faults=none");
    far_sim_client *a = far_sim_start(s.fabric, "a", run_increment, &s.a);
    far_sim_kill_at(a, (far_sim_match){.point = "between"}, 0);
    assert_int_equal(far_sim_run_client(a), FAR_SIM_ENDED);
    assert_int_equal(s.a.result, FAR_ERR_FENCED);
    assert_int_equal(far_sim_verbs(a), 1);
    assert_int_equal(word_at(&s, X), 0);
    tear_down(&s);
}


/* A stopped client continues when its compute node is killed, and its code returns. */
TEST(a_stopped_client_that_is_killed_unwinds) {
    stage s;
    set_up(&s, "faults=none");
    far_sim_client *a = far_sim_start(s.fabric, "a", run_increment, &s.a);
    far_sim_stop_before(a, (far_sim_match){.kind = FAR_SIM_CAS});
    assert_int_equal(far_sim_run_client(a), FAR_SIM_STOPPED);
    far_sim_kill(s.fabric);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(s.a.result, FAR_ERR_FENCED);
    tear_down(&s);
}


/* Reads a lock word until it is 0. */
static void run_wait_for_x(void *arg) {
    actor *a = arg;
    do
        rig_run_verb(&a->r, rig_read(X, &a->seen, 8));
    while (a->seen);
}


static void run_lock_unlock(void *arg) {
    actor *a = arg;
    uint64_t zero = 0, one = 1;
    rig_run_verb(&a->r, rig_write(X, &one, 8));
    rig_run_verb(&a->r, rig_write(X, &zero, 8));
}


/* While client A is stopped, virtual time advances and client B continues. A client that spins forever ends the run
 * with FAR_SIM_LIMIT. */
TEST(time_advances_while_a_client_is_stopped) {
    stage s;
    set_up(&s, "faults=none,limit=1ms");
    far_sim_client *a = far_sim_start(s.fabric, "a", run_lock_unlock, &s.a);
    far_sim_client *b = far_sim_start(s.fabric, "b", run_wait_for_x, &s.b);
    far_sim_stop_before(a, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = 2});
    assert_int_equal(far_sim_run_client(a), FAR_SIM_STOPPED);
    uint64_t before = far_sim_now(s.world);
    far_sim_run_for(s.world, 100000);
    assert_int_equal(far_sim_now(s.world), before + 100000);
    assert_false(far_sim_ended(b));
    assert_true(far_sim_verbs(b) > 30);
    /* The run of B ends at the limit, because B spins on the lock. */
    assert_int_equal(far_sim_run_client(b), FAR_SIM_LIMIT);
    far_sim_resume(a);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    tear_down(&s);
}


static void run_park(void *arg) {
    actor *a = arg;
    a->r.fabric->host->ops->park(a->r.fabric->host, &a->r.parker, FAR_TIME_NEVER);
}


static void run_unpark(void *arg) {
    stage *s = arg;
    uint64_t word;
    rig_run_verb(&s->b.r, rig_read(X, &word, 8));
    s->fabric->host->ops->unpark(s->fabric->host, &s->a.r.parker);
}


/* If client A waits for client B and B is stopped, a run of A alone returns FAR_SIM_WAITING. */
TEST(a_run_of_a_client_that_waits_for_a_stopped_one_returns_waiting) {
    stage s;
    set_up(&s, "faults=none");
    far_sim_client *a = far_sim_start(s.fabric, "a", run_park, &s.a), *b = far_sim_start(s.fabric, "b", run_unpark, &s);
    far_sim_stop_before(b, (far_sim_match){0});
    assert_int_equal(far_sim_run_client(b), FAR_SIM_STOPPED);
    assert_int_equal(far_sim_run_client(a), FAR_SIM_WAITING);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_STOPPED);
    far_sim_resume(b);
    assert_int_equal(far_sim_run_client(b), FAR_SIM_ENDED);
    assert_int_equal(far_sim_run_client(a), FAR_SIM_ENDED);
    tear_down(&s);
}


/* A call from outside of all clients completes while clients are stopped, and does not run clients of the test. */
TEST(code_outside_of_clients_works_while_clients_are_stopped) {
    stage s;
    rig main;
    uint64_t word = 41;
    set_up(&s, "faults=none");
    rig_connect(&main, s.fabric);
    far_sim_client *a = far_sim_start(s.fabric, "a", run_increment, &s.a),
                   *b = far_sim_start(s.fabric, "b", run_increment, &s.b);
    far_sim_stop_before(a, (far_sim_match){.kind = FAR_SIM_READ});
    assert_int_equal(far_sim_run_client(a), FAR_SIM_STOPPED);
    assert_int_equal(rig_run_verb(&main, rig_write(X, &word, 8)), 0);
    assert_int_equal(far_sim_verbs(b), 0); /* Calls from outside of all clients do not run client B. */
    far_sim_resume(a);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_in_range(word_at(&s, X), 42, 43);
    rig_disconnect(&main);
    tear_down(&s);
}
