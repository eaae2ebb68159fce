/* DART in the simulator: splits, riders, absorption, torn reads, scans over changing nodes, and full pools. As
 * test_dart_races.c. */
#include "dart_est_rig.h"
#include "index/dart/dart.h"
#include "pool/epoch.h"
#include "task/session.h"

/* a has read the leaf that it will split when it is deleted: the delete must not come back. (Split without comparing
 * the word.) */
RACE(leaf_split_vs_delete) {
    for (unsigned order = 0; order < 2; order++) {
        stage s;
        set_up(&s, sim, options);
        LOAD(&s.a, "path", "q");
        start_to(&s.a, "a", FAR_OP_INSERT, "pass", "1", "dart:publish", 1);
        start_to(&s.b, "b", FAR_OP_DELETE, "path", "", "dart:publish", 1);
        finish(order ? &s.b : &s.a, 0);
        finish(order ? &s.a : &s.b, 0);
        holds(&s.c, "pass q");
        is_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* The memory node of the slot is full, and so the new node lies on another: it is there before the slot names it. (WRITE and
 * CAS in one batch.) */
RACE(a_split_elsewhere_is_written_before_its_slot_names_it) {
    stage s;
    char text[128];
    snprintf(text, sizeof(text), "size=8M,memory_nodes=2,%s", sim);
    set_up(&s, text, options);
    LOAD(&s.a, "path", "q");
    LOAD(&s.b, "r");
    unsigned near = far_addr_node(dart_of(s.b.index)->root);
    fill_for(s.b.session, (full_node){s.b.index, near, DART_TYPE_NODE, dart_node_bytes(DART_N4, 2, 16)});
    far_addr blocks = far_addr_make(1 - near, s.b.pool->geometry.node[1 - near].first_block);
    start(&s.b, "b", FAR_OP_INSERT, "pass", "1");
    far_sim_hold *hold = stage_hold(
        &s.b, (far_sim_match){.kind = FAR_SIM_WRITE, .from = blocks, .to = far_addr_make(1 - near, 8 << 20)});
    far_sim_run_for(s.world, 200000);
    reads(&s.c, "path", "path");
    far_sim_release(hold);
    finish(&s.b, 0);
    holds(&s.c, "pass path q r");
    tear_down(&s);
}


RACE(two_splits_same_slot) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "abcdefgh", "abcdxy");
    start_to(&s.a, "a", FAR_OP_INSERT, "abcdefxx", "1", "dart:publish", 1);
    start_to(&s.b, "b", FAR_OP_INSERT, "abcdeyyy", "2", "dart:publish", 1);
    start_to(&s.c, "c", FAR_OP_INSERT, "ab", "3", "dart:publish", 1);
    finish(&s.b, 0);
    finish(&s.c, 0);
    finish(&s.a, 0);
    holds(&s.c, "ab abcdefgh abcdefxx abcdeyyy abcdxy");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* a splits a slot of a node that c has frozen, one that c has replaced, and one that it reads frozen. (Frozen words
 * taken as they are.) */
RACE(split_vs_freeze_of_parent) {
    enum { FROZEN, REPLACED, READ_FROZEN, WAYS };
    for (unsigned way = 0; way < WAYS; way++) {
        stage s;
        set_up(&s, sim, options);
        LOAD(&s.a, SEVEN("p"));
        if (way != READ_FROZEN)
            start_to(&s.a, "a", FAR_OP_INSERT, "pax", "1", "dart:publish", 1);
        start_to(&s.c, "c", FAR_OP_INSERT, "ph", "2", "dart:install", 1);
        if (way == READ_FROZEN)
            start(&s.a, "a", FAR_OP_INSERT, "pax", "1");
        if (way == REPLACED)
            finish(&s.c, 0);
        finish(&s.a, 0);
        if (way != REPLACED)
            finish(&s.c, 0);
        holds(&s.b, "pa pax pb pc pd pe pf pg ph");
        is_sound(&s, &s.b);
        tear_down(&s);
    }
}


/* Two inserts ride with two replacements of one node: one of them loses and must be made again, once. */
RACE(rider_lost_then_retry) {
    for (unsigned same = 0; same < 2; same++) {
        stage s;
        set_up(&s, sim, options);
        LOAD(&s.a, SEVEN("p"));
        start_to(&s.a, "a", FAR_OP_INSERT, "px", "a", "dart:install", 1);
        start_to(&s.b, "b", FAR_OP_INSERT, same ? "px" : "py", "b", "dart:install", 1);
        finish(&s.b, 0);
        finish(&s.a, same ? FAR_ERR_EXISTS : 0);
        reads(&s.c, "px", same ? "b" : "a");
        holds(&s.c, same ? SEVEN_HELD("p") " px" : SEVEN_HELD("p") " px py");
        is_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* An update and a delete that ride: the change is made once, and the old leaf is retired once. */
RACE(riders_change_a_frozen_node) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, SEVEN("p"));
    start_to(&s.a, "a", FAR_OP_UPDATE, "pc", "new", "dart:publish", 1);
    start_to(&s.b, "b", FAR_OP_DELETE, "pd", "", "dart:publish", 1);
    start_to(&s.c, "c", FAR_OP_INSERT, "ph", "1", "dart:frozen", 1);
    resume_to(&s.a, "dart:installed", 1);
    finish(&s.b, 0);
    finish(&s.a, 0);
    finish(&s.c, 0);
    reads(&s.b, "pc", "new");
    holds(&s.b, "pa pb pc pe pf pg ph");
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* The leaf that a updates was superseded before the node was frozen: the update must not ride on the newer one, whose
 * leaf nobody would retire. */
RACE(rider_of_a_superseded_update) {
    static const far_op_kind kinds[] = {FAR_OP_UPDATE, FAR_OP_DELETE, FAR_OP_PUT}; /* the put comes after a delete */
    for (unsigned kind = 0; kind < 3; kind++) {
        stage s;
        set_up(&s, sim, options);
        LOAD(&s.a, SEVEN("p"));
        start_to(&s.a, "a", kinds[kind], "pc", "a", "dart:publish", 1);
        assert_int_equal(does(&s.b, kind == 2 ? FAR_OP_DELETE : FAR_OP_UPDATE, "pc", "b"), 0);
        start_to(&s.c, "c", FAR_OP_INSERT, "ph", "1", "dart:frozen", 1);
        finish(&s.a, 0);
        finish(&s.c, 0);
        reads(&s.b, "pc", kind == 1 ? NULL : "a");
        is_sound(&s, &s.b);
        tear_down(&s);
    }
}


/* The leaf that a updates is deleted before its CAS: the update counts just before. It must not bring the key back. */
RACE(absorb_after_delete) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "pa", "pb", "pc", "pd");
    start_to(&s.a, "a", FAR_OP_UPDATE, "pb", "new", "dart:publish", 1);
    assert_int_equal(does(&s.b, FAR_OP_DELETE, "pb", ""), 0);
    finish(&s.a, 0);
    reads(&s.b, "pb", NULL);
    start_to(&s.a, "a", FAR_OP_PUT, "pc", "mine", "dart:publish", 1);
    assert_int_equal(does(&s.b, FAR_OP_UPDATE, "pc", "theirs"), 0);
    finish(&s.a, 0);
    reads(&s.b, "pc", "theirs");
    holds(&s.b, "pa pc pd");
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* The leaf moved below a split: it was not superseded, the update must be made. (Absorbing whatever took the leaf's
 * place.) */
RACE(absorb_vs_leaf_split) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "path", "q");
    start_to(&s.a, "a", FAR_OP_UPDATE, "path", "new", "dart:publish", 1);
    LOAD(&s.b, "pass");
    finish(&s.a, 0);
    reads(&s.b, "path", "new");
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* The lines of a bucket are read in reverse while keys are added: a key that is there is found, one that comes twice is
 * not added twice. */
RACE(torn_bucket_read) {
    stage s;
    (void)options; /* from the root, so that the READ is known: the second one */
    set_up(&s, sim, "est=0");
    LOAD(&s.a, "pa", "pb", "pc", "pd", "pe", "pf", "pg", "ph", "pi");
    start(&s.a, "a", FAR_OP_INSERT, "pk", "a");
    far_sim_hold *hold = far_sim_hold_effect(s.a.client, (far_sim_match){.kind = FAR_SIM_READ, .nth = 2});
    while (!far_sim_reached(hold))
        far_sim_run_client(s.a.client);
    uint32_t units = far_sim_hold_units(hold);
    assert_true(units > 1);
    for (uint32_t unit = units - 1; unit + 1 > 0; unit--) {
        if (unit == units / 2 - 1) /* between the two halves, of which the first holds the end of the bucket */
            LOAD(&s.b, "pj", "pk");
        assert_int_equal(far_sim_release_units(hold, &unit, 1), 0);
    }
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_int_equal(s.a.result, FAR_ERR_EXISTS);
    reads(&s.c, "pk", "pk");
    holds(&s.c, "pa pb pc pd pe pf pg ph pi pj pk");
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* Half of a node is frozen: its other slots are still written, and what is written there is in the new node. (Contents
 * taken from before.) */
RACE(freeze_half_then_insert_other_slot) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "pa", "pb", "pc", "pd", "q");
    assert_int_equal(does(&s.a, FAR_OP_DELETE, "pa", ""), 0);
    assert_int_equal(does(&s.a, FAR_OP_DELETE, "pb", ""), 0);
    start_to(&s.b, "b", FAR_OP_DELETE, "pc", "", "dart:freeze", 1);
    far_sim_hold *hold = far_sim_hold_effect(s.b.client, (far_sim_match){.kind = FAR_SIM_ATOMIC, .nth = 4});
    far_sim_resume(s.b.client);
    while (!far_sim_reached(hold))
        far_sim_run_client(s.b.client);
    start(&s.a, "a", FAR_OP_UPDATE, "pd", "new"); /* slot 3: not frozen yet */
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_int_equal(s.a.result, 0);
    assert_int_equal(does(&s.c, FAR_OP_INSERT, "pe", "e"), 0);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    reads(&s.c, "pd", "new");
    holds(&s.c, "pd pe q");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* A scan is about to read a node that is replaced, and one whose replacement gets new keys. */
RACE(scan_over_switch) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, SEVEN("p"), "q");
    start_to(&s.a, "a", FAR_OP_SCAN, "a", "z", "dart:tour", 1);
    LOAD(&s.b, "ph", "pi");
    assert_int_equal(does(&s.b, FAR_OP_DELETE, "pa", ""), 0);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_true(s.a.result >= 7);
    char keys[STAGE_VALUE_MAX];
    assert_non_null(strstr(stage_scanned(&s.a, keys), "pb pc pd pe pf pg"));
    assert_non_null(strstr(keys, "q"));
    is_sound(&s, &s.b);
    tear_down(&s);
}


RACE(scan_over_merge) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "pa", "pba", "pbb", "q");
    start_to(&s.a, "a", FAR_OP_SCAN, "a", "z", "dart:tour", 2);
    start(&s.b, "b", FAR_OP_DELETE, "pa", "");
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    start(&s.b, "b", FAR_OP_DELETE, "pbb", "");
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    char keys[STAGE_VALUE_MAX];
    assert_non_null(strstr(stage_scanned(&s.a, keys), "pba"));
    assert_non_null(strstr(keys, "q"));
    holds(&s.c, "pba q");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* The parent of a node is not known, as after an express jump: it is found along the node's own prefix, wherever that
 * hangs by now. */
typedef struct switch_job {
    far_index *index;
    const char *key;
    unsigned depth;
} switch_job;


static int switch_node(far_task *t, void *arg) {
    const switch_job *job = arg;
    dart_find f = {0};
    int err = far_pin_take(t);
    far_bytes key = {job->key, strlen(job->key)};
    dart_find_init(&f, key, DART_SEEK_PLACE);
    f.to_root = true;
    if (err >= 0)
        err = dart_find_run(t, job->index, &f);
    for (unsigned i = 0; err >= 0 && i < f.path.count; i++)
        if (f.path.steps[i].node.depth == job->depth) {
            dart_replace r = {.node = f.path.steps[i].node, .prefix = {job->key, job->depth}};
            err = dart_replace_node(t, job->index, &r);
            if (err >= 0)
                err = dart_find_parent(t, job->index, &r.node, r.prefix, &r.parent); /* 0: it is gone */
            far_pin_drop(t);
            return err < 0 ? err : 1 + err;
        }
    far_pin_drop(t);
    return err < 0 ? err : 0;
}


RACE(A16_switch_express_node) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "abca", "abcb", "abcdef", "abcdeg", "b");
    for (unsigned depth = 3; depth <= 5; depth += 2) {
        switch_job job = {s.a.index, "abcdef", depth};
        assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, switch_node, &job), 1);
    }
    holds(&s.b, "abca abcb abcdef abcdeg b");
    LOAD(&s.b, "abx");
    switch_job job = {s.a.index, "abcdef", 3};
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, switch_node, &job), 1);
    holds(&s.b, "abca abcb abcdef abcdeg abx b");
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* Whenever a is about to take a slot b is faster: so often that the node is said to be crowded. It is replaced by one
 * with a slot for each byte, with a's key, though it has room; once less, and a has a slot of it. (Nobody counts.) Where there is no memory for such a
 * node it stays. */
RACE(a_crowded_node_grows_at_once) {
    for (unsigned turn = 0; turn < 3; turn++) {
        stage s;
        unsigned times = turn ? DART_CROWD : DART_CROWD - 1;
        bool full = turn == 2;
        char key[] = "ab?";
        set_up(&s, sim, options);
        LOAD(&s.c, "ac", SEVEN("ab"));
        LOAD(&s.b, "abh");
        LOAD(&s.a, "ad"); /* so that all have memory for leaves */
        for (unsigned node = 0; full && node < 2; node++)
            fill_for(s.a.session, (full_node){s.a.index, node, DART_TYPE_NODE, dart_node_bytes(DART_N256, 2, 16)});
        start_to(&s.a, "a", FAR_OP_INSERT, "abz", "a", "dart:publish", 1);
        for (unsigned i = 0; i < times; i++) {
            key[2] = (char)('i' + i);
            assert_int_equal(does(&s.b, FAR_OP_INSERT, key, key), 0);
            if (i + 1 < times)
                resume_to(&s.a, "dart:publish", 1);
        }
        finish(&s.a, 0);
        assert_int_equal(node_at(&s.c, "aba", 2).type, times == DART_CROWD && !full ? DART_N256 : DART_N16);
        holds(&s.c, times == DART_CROWD ? SEVEN_HELD("ab") " abh abi abj abk abz ac ad"
                                        : SEVEN_HELD("ab") " abh abi abj abz ac ad");
        if (!full) /* what fills it belongs to nobody */
            is_sound(&s, &s.c);
        tear_down(&s);
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaf_split_vs_delete),
        cmocka_unit_test(a_split_elsewhere_is_written_before_its_slot_names_it),
        cmocka_unit_test(two_splits_same_slot),
        cmocka_unit_test(a_crowded_node_grows_at_once),
        cmocka_unit_test(split_vs_freeze_of_parent),
        cmocka_unit_test(rider_lost_then_retry),
        cmocka_unit_test(riders_change_a_frozen_node),
        cmocka_unit_test(rider_of_a_superseded_update),
        cmocka_unit_test(absorb_after_delete),
        cmocka_unit_test(absorb_vs_leaf_split),
        cmocka_unit_test(torn_bucket_read),
        cmocka_unit_test(freeze_half_then_insert_other_slot),
        cmocka_unit_test(scan_over_switch),
        cmocka_unit_test(scan_over_merge),
        cmocka_unit_test(A16_switch_express_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
