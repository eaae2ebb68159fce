/* Races of DART's tree. docs/races/dart.md describes each race under the letter and number with which the name of its
 * test begins, such as A2. The comment of each test names the guard without which the test was seen to fail. */
#include "dart_rig.h"
#include "test.h"

/* Proves that an insert is not stored in a node that is not on the key's path, although the slots lead there. B inserts
 * "aaccccccx"; the slot for "aa" skips bytes that differ. Fails without the comparison with the header in find.c,
 * process_bucket and process_header. */
RACE(A2_insert_where_skipped_bytes_differ) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "aaaaax", "aaaaay", "aabbbz", "ab", "aaaa");
    expect_keys(&s.b, "aaaa aaaaax aaaaay aabbbz ab");
    INSERT_KEYS(&s.b, "aaccccccx", "aacccccc");
    expect_get(&s.c, "aadddz", NULL);
    expect_get(&s.c, "aabbbz", "aabbbz");
    expect_get(&s.c, "aa", NULL);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* B's descent passes a slot that skips bytes and ends two levels below this slot. B's key differs from the path in the
 * skipped bytes, and B has read no header on the way (header_inline=0). Proves that the key is not stored in the node
 * at which the descent ends. Fails if find.c, follow_word treats a child without a skip as proved to be on the key's
 * path, although this is not proved for its parent. */
RACE(A2b_skipped_bytes_differ_far_above) {
    stage s;
    char text[64];
    snprintf(text, sizeof(text), "%s,header_inline=0", options);
    set_up(&s, sim, text);
    INSERT_KEYS(&s.a, "abcda", "abcdb", "abcea", "b");
    INSERT_KEYS(&s.b, "axcdz", "axcda");
    expect_keys(&s.c, "abcda abcdb abcea axcda axcdz b");
    expect_get(&s.c, "axcdz", "axcdz");
    expect_get(&s.c, "axcdb", NULL);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Steps: (1) A has chosen an EMPTY slot of node "p" for "pA". (2) C fills the node. (3) B freezes the node and has
 * copied its words. (4) A's CAS takes effect late: it must fail, and A must insert the key again. Fails if EMPTY slots
 * are not frozen (restructure.c, freeze_node), or if writers ignore the frozen bit. */
RACE(A5_late_cas_after_copy) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "pa", "pb", "pc", "pd", "pe", "pf");
    start_until(&s.a, "a", FAR_OP_INSERT, "pA", "1", "dart:publish", 1);
    INSERT_KEYS(&s.c, "pz");
    start_until(&s.b, "b", FAR_OP_INSERT, "py", "2", "dart:install", 1);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_int_equal(s.a.result, 0);
    expect_result(&s.b, 0);
    expect_keys(&s.c, "pA pa pb pc pd pe pf py pz");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Steps: (1) A has chosen an EMPTY slot of node "p" for "pc". (2) B deletes "pb" and rebuilds the node; the slots of
 * the old node are frozen. (3) A's CAS takes effect in the old node. Proves that the CAS fails although the slot was
 * EMPTY, and that A inserts the key again. Fails if EMPTY slots are not frozen (restructure.c, freeze_node). */
RACE(A5_late_cas_into_a_node_with_room) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "pa", "pb", "q");
    start_until(&s.a, "a", FAR_OP_INSERT, "pc", "1", "dart:publish", 1);
    start_until(&s.b, "b", FAR_OP_DELETE, "pb", "", "dart:install", 1);
    expect_result(&s.a, 0);
    expect_get(&s.c, "pc", "1");
    expect_result(&s.b, 0);
    expect_keys(&s.c, "pa pc q");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Steps: (1) A is about to update "pc", and C to delete "pd". (2) B replaces their node completely. (3) The CASes of A
 * and C arrive in the old node. Proves that both CASes fail, and that A and C make their changes in the new node. Fails
 * without restructure.c, freeze_node. */
RACE(A5b_validate_after_finish) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, SEVEN_KEYS("p"));
    start_until(&s.a, "a", FAR_OP_UPDATE, "pc", "new", "dart:publish", 1);
    start_until(&s.c, "c", FAR_OP_DELETE, "pd", "", "dart:publish", 1);
    INSERT_KEYS(&s.b, "ph");
    expect_result(&s.a, 0);
    expect_result(&s.c, 0);
    expect_get(&s.b, "pc", "new");
    expect_get(&s.b, "pd", NULL);
    expect_keys(&s.b, "pa pb pc pe pf pg ph");
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* B fails while it replaces a full node. It fails at `point`, or, if `point` is NULL, after `verbs` of the CASes that
 * freeze the node. Then A and C get, update, delete and insert keys of that node. If `splits` is set, C also inserts a
 * key that splits one of the node's slots. */
static void after_the_freezer(const char *sim, const char *options, const char *point, unsigned verbs, bool splits) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, SEVEN_KEYS("p"), "q");
    start(&s.b, "b", FAR_OP_INSERT, "ph", "1");
    if (point) {
        far_sim_stop_before(s.b.client, (far_sim_match){.point = point});
        assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_STOPPED);
        far_sim_kill(s.b.pool->fabric);
    } else {
        far_sim_stop_before(s.b.client, (far_sim_match){.point = "dart:freeze"});
        assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_STOPPED);
        far_sim_kill_at(s.b.client, (far_sim_match){.kind = FAR_SIM_ATOMIC, .nth = verbs}, FAR_SIM_WHOLE);
    }
    far_sim_resume(s.b.client);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    assert_true(far_sim_killed(s.b.pool->fabric));
    expect_get(&s.a, "pc", "pc");
    expect_keys(&s.a, SEVEN_TEXT("p") " q");
    if (splits)
        /* This insert meets a slot that it reads frozen. */
        assert_int_equal(run_op(&s.c, FAR_OP_INSERT, "pbx", "split"), 0);
    assert_int_equal(run_op(&s.a, FAR_OP_UPDATE, "pa", "new"), 0);
    assert_int_equal(run_op(&s.c, FAR_OP_DELETE, "pg", ""), 0);
    assert_int_equal(run_op(&s.c, FAR_OP_INSERT, "px", "x"), 0);
    assert_int_equal(run_op(&s.a, FAR_OP_INSERT, "pc", ""), FAR_ERR_EXISTS);
    expect_get(&s.c, "pa", "new");
    expect_keys(&s.a, splits ? "pa pb pbx pc pd pe pf px q" : "pa pb pc pd pe pf px q");
    expect_sound(&s, &s.a);
    tear_down(&s);
}


/* Proves that a failed client which has left a frozen node blocks neither readers nor writers. Fails if writers do not
 * help (write.c, dart_write_replace_node). */
RACE(A6_freezer_dies) {
    for (unsigned splits = 0; splits < 2; splits++) {
        after_the_freezer(sim, options, "dart:frozen", 0, splits);
        after_the_freezer(sim, options, "dart:install", 0, splits);
        for (unsigned verbs = 1; verbs <= 7; verbs++)
            after_the_freezer(sim, options, NULL, verbs, splits);
    }
}


/* P is the parent of X. (1) B has frozen X and is about to change P's slot. (2) C freezes P, copies it, and is about to
 * install the copy P'. (3) B continues, then C. Proves that B's replacement is not lost in the old P, and that the
 * copied slot is not frozen in P'. Fails if the frozen bit is copied into the new node (node.c, dart_build_node), or if
 * B's CAS ignores it (restructure.c, install_replacement). */
RACE(A7_nested_switch) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "pA", "pB", "pC", "pD", "pE", "pF", SEVEN_KEYS("px"));
    start_until(&s.b, "b", FAR_OP_INSERT, "pxh", "1", "dart:install", 1);
    start_until(&s.c, "c", FAR_OP_INSERT, "pG", "1", "dart:install", 1);
    /* B replaces node "p" itself, before C does. */
    expect_result(&s.b, 0);
    expect_result(&s.c, 0);
    assert_int_equal(run_op(&s.a, FAR_OP_UPDATE, "pxa", "n"), 0);
    assert_int_equal(run_op(&s.a, FAR_OP_INSERT, "pxi", "n"), 0);
    assert_int_equal(run_op(&s.a, FAR_OP_INSERT, "pH", "n"), 0);
    expect_keys(&s.b, "pA pB pC pD pE pF pG pH " SEVEN_TEXT("px") " pxh pxi");
    expect_sound(&s, &s.a);
    tear_down(&s);
}


/* P is the parent of X. (1) B has frozen X and is about to change P's slot. (2) C replaces P completely. (3) B
 * continues. Proves that B finds the new parent of X, so that its replacement is not lost. The guard is restructure.c,
 * finish_parent_search. */
RACE(A7_nested_switch_the_other_way) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "pA", "pB", "pC", "pD", "pE", "pF", SEVEN_KEYS("px"));
    start_until(&s.b, "b", FAR_OP_INSERT, "pxh", "1", "dart:install", 1);
    assert_int_equal(run_op(&s.c, FAR_OP_INSERT, "pG", "1"), 0);
    expect_result(&s.b, 0);
    assert_int_equal(run_op(&s.a, FAR_OP_INSERT, "pxi", "n"), 0);
    expect_keys(&s.b, "pA pB pC pD pE pF pG " SEVEN_TEXT("px") " pxh pxi");
    expect_sound(&s, &s.a);
    tear_down(&s);
}


/* Steps: (1) A has chosen a slot for "pk". (2) C deletes "px", whose slot precedes that slot. (3) B inserts "pk". (4) A
 * continues. Proves that B does not take the slot of the deleted key, so that A and B meet in one slot and A reports
 * EXISTS. Fails if a delete leaves EMPTY instead of a TOMB. */
RACE(A9_delete_frees_lower_slot) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "px", "py", "pz", "pv", "pw");
    start_until(&s.a, "a", FAR_OP_INSERT, "pk", "a", "dart:publish", 1);
    assert_int_equal(run_op(&s.c, FAR_OP_DELETE, "px", ""), 0);
    assert_int_equal(run_op(&s.b, FAR_OP_INSERT, "pk", "b"), 0);
    expect_result(&s.a, FAR_ERR_EXISTS);
    expect_get(&s.c, "pk", "b");
    expect_keys(&s.c, "pk pv pw py pz");
    assert_int_equal(run_op(&s.b, FAR_OP_DELETE, "pk", ""), 0);
    expect_get(&s.c, "pk", NULL);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* A and B insert "pk", C inserts "pz"; all have chosen the same EMPTY slot. C's CAS of this slot succeeds. Then B
 * inserts into the next slot, and A continues. Proves that A reports EXISTS. Fails if write.c, add_leaf does not
 * examine the word that a lost CAS returns. */
RACE(A10_three_inserters) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "px", "py");
    start_until(&s.a, "a", FAR_OP_INSERT, "pk", "a", "dart:publish", 1);
    start_until(&s.b, "b", FAR_OP_INSERT, "pk", "b", "dart:publish", 1);
    start_until(&s.c, "c", FAR_OP_INSERT, "pz", "c", "dart:publish", 1);
    expect_result(&s.c, 0);
    expect_result(&s.b, 0);
    expect_result(&s.a, FAR_ERR_EXISTS);
    expect_get(&s.c, "pk", "b");
    expect_keys(&s.c, "pk px py pz");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Steps: (1) A scans, and is between two rounds. (2) B links a node above the one that A will read. (3) A continues.
 * Proves that A returns all keys that existed before its scan. */
RACE(A21_range_after_split_above) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "ppppxa", "ppppxb", "r");
    start_until(&s.a, "a", FAR_OP_SCAN, "pp", "q", "dart:expand_frontier", 1);
    INSERT_KEYS(&s.b, "ppa", "pppq", "pppz");
    expect_result(&s.a, 2); /* keys that were inserted during the scan may be missing */
    expect_scanned(&s.a, "ppppxa ppppxb");
    start(&s.c, "c", FAR_OP_SCAN, "pp", "q");
    assert_int_equal(far_sim_run_client(s.c.client), FAR_SIM_ENDED);
    expect_scanned(&s.c, "ppa ppppxa ppppxb pppq pppz");
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* A range lies below the express node Y. (1) B links a node above Y, and has not updated the skip table. (2) C scans
 * the range; a part is no longer below Y. Proves that C returns all keys. Fails if a scan ends with the subtree of the
 * node at which it started (traversal.c, continue_traversal). */
RACE(A21_range_inside_a_prefix_after_split_above) {
    stage s;
    char no_cache[96];
    snprintf(no_cache, sizeof(no_cache), "%s,scan_cache=0,upkeep_batch=1,adjust=0,directory_bits=0", options);
    set_up(&s, sim, no_cache);
    INSERT_KEYS(&s.a, "ppppxa", "ppppxb", "r");
    far_sim_sleep(s.world, 5000000);
    start_until(&s.b, "b", FAR_OP_INSERT, "pppq", "b", "dart:split", 1);
    for (unsigned i = 0; i < 8; i++) { /* often enough that the lookup tries every choice of prefix lengths */
        assert_int_equal(run_op(&s.c, FAR_OP_SCAN, "ppppxa", "pppz"), 3);
        expect_scanned(&s.c, "ppppxa ppppxb pppq");
        assert_int_equal(run_op(&s.c, FAR_OP_SCAN, "ppppxa", "ppppxz"), 2);
        s.c.limit = 1; /* a scan of one key starts at Y, in which no key follows "ppppxc" */
        assert_int_equal(run_op(&s.c, FAR_OP_SCAN, "ppppxc", "pppz"), 1);
        expect_scanned(&s.c, "pppq");
        s.c.limit = 0;
    }
    expect_result(&s.b, 0);
    assert_int_equal(run_op(&s.c, FAR_OP_SCAN, "ppppxa", "pppz"), 3);
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* Steps: (1) A has chosen a slot of a node. (2) B deletes the last key of the node and removes the node; it has frozen
 * it, or is about to change the parent's slot. (3) A's CAS takes effect. Proves that A's key is not lost. Fails if
 * inserts ignore the frozen bit (write.c, add_leaf). */
RACE(A23_insert_into_node_being_removed) {
    for (unsigned stop = 0; stop < 2; stop++) {
        stage s;
        set_up(&s, sim, options);
        INSERT_KEYS(&s.a, "pa", "pb", "q");
        assert_int_equal(run_op(&s.c, FAR_OP_DELETE, "pa", ""), 0);
        start_until(&s.a, "a", FAR_OP_INSERT, "pc", "1", "dart:publish", 1);
        start_until(&s.b, "b", FAR_OP_DELETE, "pb", "", stop ? "dart:install" : "dart:frozen", 1);
        expect_result(&s.a, 0);
        expect_result(&s.b, 0);
        expect_get(&s.c, "pc", "1");
        expect_keys(&s.c, "pc q");
        expect_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* X has one child left, the inner node C. B merges X into its parent while A replaces C; in both orders. Proves that no
 * key is lost. The guard is the CAS of restructure.c, install_replacement, which fails on a changed or frozen slot. */
RACE(A23b_merge_vs_child_switch) {
    for (unsigned order = 0; order < 2; order++) {
        stage s;
        set_up(&s, sim, options);
        INSERT_KEYS(&s.a, "pa", SEVEN_KEYS("px"), "q");
        start_until(&s.b, "b", FAR_OP_DELETE, "pa", "", "dart:install", 1);
        start_until(&s.a, "a", FAR_OP_INSERT, "pxh", "1", "dart:install", 1);
        expect_result(order ? &s.b : &s.a, 0);
        expect_result(order ? &s.a : &s.b, 0);
        assert_int_equal(run_op(&s.c, FAR_OP_INSERT, "pxi", "2"), 0);
        expect_keys(&s.c, SEVEN_TEXT("px") " pxh pxi q");
        expect_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* A WRITE takes effect late; until then no client may see a pointer to the object that it writes. Inserts `key` while
 * the nth WRITE of the insert is held back. Returns false if the insert has fewer WRITEs. */
static bool late_write(const char *sim, const char *options, const char *key, unsigned nth) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, SEVEN_KEYS("p"), "longer_key");
    start(&s.b, "b", FAR_OP_INSERT, key, "1");
    far_sim_hold *hold = far_sim_hold_effect(s.b.client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = nth});
    while (!far_sim_reached(hold) && !far_sim_ended(s.b.client))
        far_sim_run_client(s.b.client);
    bool reached = far_sim_reached(hold);
    if (reached) {
        far_sim_run_client(s.b.client);
        expect_keys(&s.c, "longer_key " SEVEN_TEXT("p"));
        far_sim_release(hold);
        assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    }
    assert_int_equal(s.b.result, 0);
    assert_int_equal(far_index_check(s.c.session, s.c.index, fail_at_problem, NULL), 0);
    assert_int_equal(far_sim_watch_errors(s.world), 0);
    tear_down(&s);
    return reached;
}


/* Proves that no client sees a pointer to an object that is not written, whichever WRITE is late, with splits and with
 * full nodes. Fails without the wait between WRITE and CAS on different memory nodes (restructure.c,
 * install_replacement; write.c, split_slot). */
RACE(A27_cas_before_write) {
    /* the first key splits a slot, the second meets a full node */
    static const char *const keys[] = {"longer_day", "ph"};
    static const char *const ways[] = {"est=0", "est=0,spec_write=0", "est=0,colocate=0,spec_write=0"};
    (void)options;
    for (unsigned i = 0; i < 6; i++) {
        unsigned nth = 1;
        while (late_write(sim, ways[i % 3], keys[i / 3], nth))
            nth++;
        assert_true(nth > 2);
    }
}


/* Steps: (1) A has read a slot and is about to split it. (2) B splits the slot and merges it again, so that the slot
 * has the same word as before. (3) A's CAS succeeds. Proves that the result is correct. It is, because A's pin prevents
 * that the address in the word is reused, so the same word means the same state. */
RACE(A29_split_merge_same_word) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "path", "q");
    start_until(&s.a, "a", FAR_OP_INSERT, "pass", "1", "dart:publish", 1);
    assert_int_equal(run_op(&s.b, FAR_OP_INSERT, "pace", "2"), 0);
    start(&s.b, "b", FAR_OP_DELETE, "pace", "");
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    expect_result(&s.a, 0);
    expect_keys(&s.c, "pass path q");
    expect_sound(&s, &s.c);
    tear_down(&s);
}
