/* Races of DART's tree: splits, piggybacked writes, superseded updates, torn reads, scans over changing nodes, and
 * contended nodes. See also test_dart_races.c. */
#include "dart_est_rig.h"
#include "index/dart/dart.h"
#include "pool/epoch/epoch.h"
#include "task/session.h"
#include "test.h"

/* A inserts "pass" next to "path", B deletes "path"; both are about to send their CAS, in both orders. Proves that the
 * deleted key does not come back. Fails if write.c, split_slot does not compare the slot's word. */
RACE(leaf_split_vs_delete) {
    for (unsigned order = 0; order < 2; order++) {
        stage s;
        set_up(&s, sim, options);
        INSERT_KEYS(&s.a, "path", "q");
        start_until(&s.a, "a", FAR_OP_INSERT, "pass", "1", "dart:publish", 1);
        start_until(&s.b, "b", FAR_OP_DELETE, "path", "", "dart:publish", 1);
        expect_result(order ? &s.b : &s.a, 0);
        expect_result(order ? &s.a : &s.b, 0);
        expect_keys(&s.c, "pass q");
        expect_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* The memory node of the slot is full, so the new node of B's split is on another memory node. Its WRITE is held back;
 * C reads. Proves that the slot does not name the node before it is written. Fails if write.c, split_slot sends WRITE
 * and CAS in one batch. */
RACE(a_split_elsewhere_is_written_before_its_slot_names_it) {
    stage s;
    char text[128];
    snprintf(text, sizeof(text), "size=8M,memory_nodes=2,%s", sim);
    set_up(&s, text, options);
    INSERT_KEYS(&s.a, "path", "q");
    INSERT_KEYS(&s.b, "r");
    unsigned near = far_addr_node(dart_of(s.b.index)->root);
    fill_memory_node(s.b.session, (node_to_fill){s.b.index, near, DART_TYPE_NODE, dart_node_bytes(DART_N4, 2, 16)});
    far_addr blocks = far_addr_make(1 - near, s.b.pool->geometry.node[1 - near].first_block);
    start(&s.b, "b", FAR_OP_INSERT, "pass", "1");
    far_sim_hold *hold = stage_hold(
        &s.b, (far_sim_match){.kind = FAR_SIM_WRITE, .from = blocks, .to = far_addr_make(1 - near, 8 << 20)});
    far_sim_run_for(s.world, 200000);
    expect_get(&s.c, "path", "path");
    far_sim_release(hold);
    expect_result(&s.b, 0);
    expect_keys(&s.c, "pass path q r");
    tear_down(&s);
}


/* A, B and C insert keys that split the same slot at different depths. All have read the slot; B, C and A send their
 * CASes in this order. Proves that all keys exist afterwards. B's CAS succeeds. A CAS that fails returns the current
 * word of the slot, and split_slot (write.c) continues the operation from this word. */
RACE(two_splits_same_slot) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "abcdefgh", "abcdxy");
    start_until(&s.a, "a", FAR_OP_INSERT, "abcdefxx", "1", "dart:publish", 1);
    start_until(&s.b, "b", FAR_OP_INSERT, "abcdeyyy", "2", "dart:publish", 1);
    start_until(&s.c, "c", FAR_OP_INSERT, "ab", "3", "dart:publish", 1);
    expect_result(&s.b, 0);
    expect_result(&s.c, 0);
    expect_result(&s.a, 0);
    expect_keys(&s.c, "ab abcdefgh abcdefxx abcdeyyy abcdxy");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* A splits a slot of a node that C is replacing, in three variants. FROZEN: C has frozen the node after A read the
 * slot. REPLACED: C has also installed the new node. READ_FROZEN: C froze the node before A reads the slot. Proves that
 * A's key exists once, in the replacement. Fails if write.c, split_slot treats frozen words like unfrozen words. */
RACE(split_vs_freeze_of_parent) {
    enum { FROZEN, REPLACED, READ_FROZEN, WAYS };
    for (unsigned way = 0; way < WAYS; way++) {
        stage s;
        set_up(&s, sim, options);
        INSERT_KEYS(&s.a, SEVEN_KEYS("p"));
        if (way != READ_FROZEN)
            start_until(&s.a, "a", FAR_OP_INSERT, "pax", "1", "dart:publish", 1);
        start_until(&s.c, "c", FAR_OP_INSERT, "ph", "2", "dart:install", 1);
        if (way == READ_FROZEN)
            start(&s.a, "a", FAR_OP_INSERT, "pax", "1");
        if (way == REPLACED)
            expect_result(&s.c, 0);
        expect_result(&s.a, 0);
        if (way != REPLACED)
            expect_result(&s.c, 0);
        expect_keys(&s.b, "pa pax pb pc pd pe pf pg ph");
        expect_sound(&s, &s.b);
        tear_down(&s);
    }
}


/* A and B each replace the same full node by a copy that also contains their own new key (a piggybacked insert). B's
 * copy is linked. Proves that A makes its insert again, once; if both inserts have the same key, A reports EXISTS. The
 * guard is in restructure.c, try_replace: piggyback_done is set separately for each replacement. */
RACE(piggybacked_insert_lost_then_retry) {
    for (unsigned same = 0; same < 2; same++) {
        stage s;
        set_up(&s, sim, options);
        INSERT_KEYS(&s.a, SEVEN_KEYS("p"));
        start_until(&s.a, "a", FAR_OP_INSERT, "px", "a", "dart:install", 1);
        start_until(&s.b, "b", FAR_OP_INSERT, same ? "px" : "py", "b", "dart:install", 1);
        expect_result(&s.b, 0);
        expect_result(&s.a, same ? FAR_ERR_EXISTS : 0);
        expect_get(&s.c, "px", same ? "b" : "a");
        expect_keys(&s.c, same ? SEVEN_TEXT("p") " px" : SEVEN_TEXT("p") " px py");
        expect_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* A updates "pc" and B deletes "pd" in a node that C has frozen; both writes are piggybacked on replacements. Proves
 * that each write is made once, and its old leaf is retired once. */
RACE(piggybacked_writes_change_a_frozen_node) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, SEVEN_KEYS("p"));
    start_until(&s.a, "a", FAR_OP_UPDATE, "pc", "new", "dart:publish", 1);
    start_until(&s.b, "b", FAR_OP_DELETE, "pd", "", "dart:publish", 1);
    start_until(&s.c, "c", FAR_OP_INSERT, "ph", "1", "dart:frozen", 1);
    resume_until(&s.a, "dart:installed", 1);
    expect_result(&s.b, 0);
    expect_result(&s.a, 0);
    expect_result(&s.c, 0);
    expect_get(&s.b, "pc", "new");
    expect_keys(&s.b, "pa pb pc pe pf pg ph");
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* Steps: (1) A is about to update, delete or put "pc". (2) B updates or deletes the key. (3) C freezes the node. (4) A
 * continues with a piggybacked write. Proves that A's write does not replace the newer leaf, because then no client
 * would retire the newer leaf. The guard is the comparison with piggyback->expected in restructure.c, collect_children.
 */
RACE(piggybacked_update_of_a_superseded_leaf) {
    /* the put comes after a delete, the others after an update */
    static const far_op_kind kinds[] = {FAR_OP_UPDATE, FAR_OP_DELETE, FAR_OP_PUT};
    for (unsigned kind = 0; kind < 3; kind++) {
        stage s;
        set_up(&s, sim, options);
        INSERT_KEYS(&s.a, SEVEN_KEYS("p"));
        start_until(&s.a, "a", kinds[kind], "pc", "a", "dart:publish", 1);
        assert_int_equal(run_op(&s.b, kind == 2 ? FAR_OP_DELETE : FAR_OP_UPDATE, "pc", "b"), 0);
        start_until(&s.c, "c", FAR_OP_INSERT, "ph", "1", "dart:frozen", 1);
        expect_result(&s.a, 0);
        expect_result(&s.c, 0);
        expect_get(&s.b, "pc", kind == 1 ? NULL : "a");
        expect_sound(&s, &s.b);
        tear_down(&s);
    }
}


/* Steps: (1) A is about to update "pb". (2) B deletes "pb". (3) A's CAS fails. Proves that A's update counts as
 * executed before the delete, so the key stays absent. The same for a put of A and an update of B: B's value stays.
 * Fails if write.c, change_leaf makes the write again. */
RACE(update_superseded_by_a_delete) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "pa", "pb", "pc", "pd");
    start_until(&s.a, "a", FAR_OP_UPDATE, "pb", "new", "dart:publish", 1);
    assert_int_equal(run_op(&s.b, FAR_OP_DELETE, "pb", ""), 0);
    expect_result(&s.a, 0);
    expect_get(&s.b, "pb", NULL);
    start_until(&s.a, "a", FAR_OP_PUT, "pc", "mine", "dart:publish", 1);
    assert_int_equal(run_op(&s.b, FAR_OP_UPDATE, "pc", "theirs"), 0);
    expect_result(&s.a, 0);
    expect_get(&s.b, "pc", "theirs");
    expect_keys(&s.b, "pa pc pd");
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* Steps: (1) A is about to update "path". (2) B inserts "pass", which moves the leaf of "path" below a new node. (3)
 * A's CAS fails. Proves that A's update is made, because the leaf was moved and not superseded. Fails if write.c,
 * change_leaf counts every other word as a superseding write. */
RACE(update_is_not_superseded_by_a_leaf_split) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "path", "q");
    start_until(&s.a, "a", FAR_OP_UPDATE, "path", "new", "dart:publish", 1);
    INSERT_KEYS(&s.b, "pass");
    expect_result(&s.a, 0);
    expect_get(&s.b, "path", "new");
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* A reads a bucket in several units, the last unit first. Between the two halves B inserts "pj" and "pk". A inserts
 * "pk". Proves that A reports EXISTS, because of rule W (slots are filled in order), although no READ shows a
 * consistent bucket. */
RACE(torn_bucket_read) {
    stage s;
    /* The options are not used: without the skip table the descent starts at the root, so the torn READ is the second
     * one. */
    (void)options;
    set_up(&s, sim, "est=0");
    INSERT_KEYS(&s.a, "pa", "pb", "pc", "pd", "pe", "pf", "pg", "ph", "pi");
    start(&s.a, "a", FAR_OP_INSERT, "pk", "a");
    far_sim_hold *hold = far_sim_hold_effect(s.a.client, (far_sim_match){.kind = FAR_SIM_READ, .nth = 2});
    while (!far_sim_reached(hold))
        far_sim_run_client(s.a.client);
    uint32_t units = far_sim_hold_units(hold);
    assert_true(units > 1);
    for (uint32_t unit = units - 1; unit + 1 > 0; unit--) {
        /* Now the READ is between the two halves. The half that it has read is the end of the bucket. */
        if (unit == units / 2 - 1)
            INSERT_KEYS(&s.b, "pj", "pk");
        assert_int_equal(far_sim_release_units(hold, &unit, 1), 0);
    }
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_int_equal(s.a.result, FAR_ERR_EXISTS);
    expect_get(&s.c, "pk", "pk");
    expect_keys(&s.c, "pa pb pc pd pe pf pg ph pi pj pk");
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* B has frozen slots 0 to 2 of a node. A updates the key in slot 3, and C inserts a key. Proves that these writes are
 * in the replacement. Fails if the replacement is built from words that were read before the freeze (restructure.c,
 * freeze_node). */
RACE(freeze_half_then_insert_other_slot) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "pa", "pb", "pc", "pd", "q");
    assert_int_equal(run_op(&s.a, FAR_OP_DELETE, "pa", ""), 0);
    assert_int_equal(run_op(&s.a, FAR_OP_DELETE, "pb", ""), 0);
    start_until(&s.b, "b", FAR_OP_DELETE, "pc", "", "dart:freeze", 1);
    far_sim_hold *hold = far_sim_hold_effect(s.b.client, (far_sim_match){.kind = FAR_SIM_ATOMIC, .nth = 4});
    far_sim_resume(s.b.client);
    while (!far_sim_reached(hold))
        far_sim_run_client(s.b.client);
    start(&s.a, "a", FAR_OP_UPDATE, "pd", "new"); /* slot 3, which is not frozen yet */
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_int_equal(s.a.result, 0);
    assert_int_equal(run_op(&s.c, FAR_OP_INSERT, "pe", "e"), 0);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    expect_get(&s.c, "pd", "new");
    expect_keys(&s.c, "pd pe q");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* A's scan is about to read a node. B replaces the node, inserts keys into the replacement and deletes one. Proves that
 * A returns all keys that exist throughout. */
RACE(scan_over_switch) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, SEVEN_KEYS("p"), "q");
    start_until(&s.a, "a", FAR_OP_SCAN, "a", "z", "dart:expand_frontier", 1);
    INSERT_KEYS(&s.b, "ph", "pi");
    assert_int_equal(run_op(&s.b, FAR_OP_DELETE, "pa", ""), 0);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_true(s.a.result >= 7);
    char keys[STAGE_VALUE_MAX];
    assert_non_null(strstr(stage_scanned(&s.a, keys), "pb pc pd pe pf pg"));
    assert_non_null(strstr(keys, "q"));
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* A's scan is about to read a node, which B merges into its parent. Proves that A returns all keys that exist
 * throughout. */
RACE(scan_over_merge) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "pa", "pba", "pbb", "q");
    start_until(&s.a, "a", FAR_OP_SCAN, "a", "z", "dart:expand_frontier", 2);
    start(&s.b, "b", FAR_OP_DELETE, "pa", "");
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    start(&s.b, "b", FAR_OP_DELETE, "pbb", "");
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    char keys[STAGE_VALUE_MAX];
    assert_non_null(strstr(stage_scanned(&s.a, keys), "pba"));
    assert_non_null(strstr(keys, "q"));
    expect_keys(&s.c, "pba q");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* The arguments of switch_node. */
typedef struct switch_job {
    far_index *index;
    const char *key;
    unsigned depth;
} switch_job;


/* Finds the inner node of this depth on the path of the key, by a descent from the root. Returns 1 if there is one. */
static int find_node_of(far_task *t, const switch_job *job, dart_node *node) {
    dart_find f = {0};
    dart_find_init(&f, (far_bytes){job->key, strlen(job->key)}, DART_SEEK_INSERT);
    f.from_root = true;
    int err = dart_find_run(t, job->index, &f);
    for (unsigned i = 0; err >= 0 && i < f.path.count; i++)
        if (f.path.steps[i].node.depth == job->depth) {
            *node = f.path.steps[i].node;
            return 1;
        }
    return err < 0 ? err : 0;
}


/* Replaces the inner node of this depth on the path of the key. The caller of dart_replace_node does not give it the
 * parent of the node. Returns 1 if another node is there afterwards. */
static int switch_node(far_task *t, void *arg) {
    const switch_job *job = arg;
    dart_replace r = {.prefix = {job->key, job->depth}};
    dart_node now;
    int err = far_pin_take(t);
    if (err >= 0 && (err = find_node_of(t, job, &r.node)) == 1 && (err = dart_replace_node(t, job->index, &r)) >= 0 &&
        (err = find_node_of(t, job, &now)) == 1)
        err = now.addr != r.node.addr;
    far_pin_drop(t);
    return err;
}


/* Proves that a node can be replaced although its parent is unknown, as after a start at an express node, also after a
 * split above has given it another parent. Fails if restructure.c, finish_parent_search looks for the parent only
 * directly below the root. */
RACE(A16_switch_express_node) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "abca", "abcb", "abcdef", "abcdeg", "b");
    for (unsigned depth = 3; depth <= 5; depth += 2) {
        switch_job job = {s.a.index, "abcdef", depth};
        assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, switch_node, &job), 1);
    }
    expect_keys(&s.b, "abca abcb abcdef abcdeg b");
    INSERT_KEYS(&s.b, "abx");
    switch_job job = {s.a.index, "abcdef", 3};
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, switch_node, &job), 1);
    expect_keys(&s.b, "abca abcb abcdef abcdeg abx b");
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* Each time A is about to take a slot, B takes it first. If A loses DART_CONTENDED_SLOTS slots in this way, A replaces
 * the node by an N256, although the node has room. If A loses one slot fewer, A takes the next slot, and the node keeps
 * its type. It also keeps its type if the pool has no memory for an N256. Fails if write.c, add_leaf does not count
 * lost slots. */
RACE(a_contended_node_grows_at_once) {
    for (unsigned turn = 0; turn < 3; turn++) {
        stage s;
        unsigned times = turn ? DART_CONTENDED_SLOTS : DART_CONTENDED_SLOTS - 1;
        bool full = turn == 2;
        char key[] = "ab?";
        set_up(&s, sim, options);
        INSERT_KEYS(&s.c, "ac", SEVEN_KEYS("ab"));
        INSERT_KEYS(&s.b, "abh");
        INSERT_KEYS(&s.a, "ad"); /* after these inserts every actor has memory for leaves */
        for (unsigned node = 0; full && node < 2; node++)
            fill_memory_node(s.a.session,
                             (node_to_fill){s.a.index, node, DART_TYPE_NODE, dart_node_bytes(DART_N256, 2, 16)});
        start_until(&s.a, "a", FAR_OP_INSERT, "abz", "a", "dart:publish", 1);
        for (unsigned i = 0; i < times; i++) {
            key[2] = (char)('i' + i);
            assert_int_equal(run_op(&s.b, FAR_OP_INSERT, key, key), 0);
            if (i + 1 < times)
                resume_until(&s.a, "dart:publish", 1);
        }
        expect_result(&s.a, 0);
        assert_int_equal(node_at(&s.c, "aba", 2).type, times == DART_CONTENDED_SLOTS && !full ? DART_N256 : DART_N16);
        expect_keys(&s.c, times == DART_CONTENDED_SLOTS ? SEVEN_TEXT("ab") " abh abi abj abk abz ac ad"
                                                        : SEVEN_TEXT("ab") " abh abi abj abz ac ad");
        if (!full) /* the memory that fills the pool would count as leaked */
            expect_sound(&s, &s.c);
        tear_down(&s);
    }
}
