/* DART in the simulator: the interleavings that its rules exist for (the audit of the paper's protocol; names as
 * there). Each was seen to fail with the rule that it is about taken out of the code; which one is said at the test. */
#include "dart_rig.h"

/* The bytes that a slot skips differ: K meets an empty slot in a node that is not on its path. (Without the comparison
 * with the header.) */
RACE(A2_insert_where_skipped_bytes_differ) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "aaaaax", "aaaaay", "aabbbz", "ab", "aaaa");
    holds(&s.b, "aaaa aaaaax aaaaay aabbbz ab");
    LOAD(&s.b, "aaccccccx", "aacccccc");
    reads(&s.c, "aadddz", NULL);
    reads(&s.c, "aabbbz", "aabbbz");
    reads(&s.c, "aa", NULL);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* The bytes that differ were skipped two nodes above, and no header came with the buckets on the way. (A child without a
 * skip is taken to be on the key's path although its parent is not known to be.) */
RACE(A2b_skipped_bytes_differ_far_above) {
    stage s;
    char text[64];
    snprintf(text, sizeof(text), "%s,header_inline=0", options);
    set_up(&s, sim, text);
    LOAD(&s.a, "abcda", "abcdb", "abcea", "b");
    LOAD(&s.b, "axcdz", "axcda");
    holds(&s.c, "abcda abcdb abcea axcda axcdz b");
    reads(&s.c, "axcdz", "axcdz");
    reads(&s.c, "axcdb", NULL);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* a's CAS comes when b has frozen the node and taken its contents. (Without F on EMPTY slots, or F ignored.) */
RACE(A5_late_cas_after_copy) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "pa", "pb", "pc", "pd", "pe", "pf");
    start_to(&s.a, "a", FAR_OP_INSERT, "pA", "1", "dart:publish", 1);
    LOAD(&s.c, "pz");
    start_to(&s.b, "b", FAR_OP_INSERT, "py", "2", "dart:install", 1);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_int_equal(s.a.result, 0);
    finish(&s.b, 0);
    holds(&s.c, "pA pa pb pc pd pe pf py pz");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* The same with a slot that is still EMPTY when it is frozen: a delete makes b rebuild a node with room. */
RACE(A5_late_cas_into_a_node_with_room) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "pa", "pb", "q");
    start_to(&s.a, "a", FAR_OP_INSERT, "pc", "1", "dart:publish", 1);
    start_to(&s.b, "b", FAR_OP_DELETE, "pb", "", "dart:install", 1);
    finish(&s.a, 0);
    reads(&s.c, "pc", "1");
    finish(&s.b, 0);
    holds(&s.c, "pa pc q");
    is_sound(&s, &s.c);
    tear_down(&s);
}


RACE(A5b_validate_after_finish) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, SEVEN("p"));
    start_to(&s.a, "a", FAR_OP_UPDATE, "pc", "new", "dart:publish", 1);
    start_to(&s.c, "c", FAR_OP_DELETE, "pd", "", "dart:publish", 1);
    LOAD(&s.b, "ph");
    finish(&s.a, 0);
    finish(&s.c, 0);
    reads(&s.b, "pc", "new");
    reads(&s.b, "pd", NULL);
    holds(&s.b, "pa pb pc pe pf pg ph");
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* b dies with the node frozen: readers and writers go on. (Without helping.) */
static void after_the_freezer(const char *sim, const char *options, const char *point, unsigned verbs, bool splits) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, SEVEN("p"), "q");
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
    reads(&s.a, "pc", "pc");
    holds(&s.a, SEVEN_HELD("p") " q");
    if (splits)
        assert_int_equal(does(&s.c, FAR_OP_INSERT, "pbx", "split"), 0); /* in a slot that is read frozen */
    assert_int_equal(does(&s.a, FAR_OP_UPDATE, "pa", "new"), 0);
    assert_int_equal(does(&s.c, FAR_OP_DELETE, "pg", ""), 0);
    assert_int_equal(does(&s.c, FAR_OP_INSERT, "px", "x"), 0);
    assert_int_equal(does(&s.a, FAR_OP_INSERT, "pc", ""), FAR_ERR_EXISTS);
    reads(&s.c, "pa", "new");
    holds(&s.a, splits ? "pa pb pbx pc pd pe pf px q" : "pa pb pc pd pe pf px q");
    is_sound(&s, &s.a);
    tear_down(&s);
}


RACE(A6_freezer_dies) {
    for (unsigned splits = 0; splits < 2; splits++) {
        after_the_freezer(sim, options, "dart:frozen", 0, splits);
        after_the_freezer(sim, options, "dart:install", 0, splits);
        for (unsigned verbs = 1; verbs <= 7; verbs++)
            after_the_freezer(sim, options, NULL, verbs, splits);
    }
}


/* b is about to install a new child of P when c replaces P: the child's new version must not get lost in the old P, and
 * the new P must not be frozen where the old one was. (F copied into the new node; or the CAS without F in its expected
 * word.) */
RACE(A7_nested_switch) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "pA", "pB", "pC", "pD", "pE", "pF", SEVEN("px"));
    start_to(&s.b, "b", FAR_OP_INSERT, "pxh", "1", "dart:install", 1);
    start_to(&s.c, "c", FAR_OP_INSERT, "pG", "1", "dart:install", 1);
    finish(&s.b, 0); /* replaces p itself, before c does */
    finish(&s.c, 0);
    assert_int_equal(does(&s.a, FAR_OP_UPDATE, "pxa", "n"), 0);
    assert_int_equal(does(&s.a, FAR_OP_INSERT, "pxi", "n"), 0);
    assert_int_equal(does(&s.a, FAR_OP_INSERT, "pH", "n"), 0);
    holds(&s.b, "pA pB pC pD pE pF pG pH " SEVEN_HELD("px") " pxh pxi");
    is_sound(&s, &s.a);
    tear_down(&s);
}


RACE(A7_nested_switch_the_other_way) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "pA", "pB", "pC", "pD", "pE", "pF", SEVEN("px"));
    start_to(&s.b, "b", FAR_OP_INSERT, "pxh", "1", "dart:install", 1);
    assert_int_equal(does(&s.c, FAR_OP_INSERT, "pG", "1"), 0);
    finish(&s.b, 0);
    assert_int_equal(does(&s.a, FAR_OP_INSERT, "pxi", "n"), 0);
    holds(&s.b, "pA pB pC pD pE pF pG " SEVEN_HELD("px") " pxh pxi");
    is_sound(&s, &s.a);
    tear_down(&s);
}


/* A deleted key frees its slot below the one that a has chosen: b must not take it. (A delete that leaves EMPTY instead
 * of a TOMB.) */
RACE(A9_delete_frees_lower_slot) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "px", "py", "pz", "pv", "pw");
    start_to(&s.a, "a", FAR_OP_INSERT, "pk", "a", "dart:publish", 1);
    assert_int_equal(does(&s.c, FAR_OP_DELETE, "px", ""), 0);
    assert_int_equal(does(&s.b, FAR_OP_INSERT, "pk", "b"), 0);
    finish(&s.a, FAR_ERR_EXISTS);
    reads(&s.c, "pk", "b");
    holds(&s.c, "pk pv pw py pz");
    assert_int_equal(does(&s.b, FAR_OP_DELETE, "pk", ""), 0);
    reads(&s.c, "pk", NULL);
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* All three have chosen the same EMPTY slot. (The word that a lost CAS returns is not looked at.) */
RACE(A10_three_inserters) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "px", "py");
    start_to(&s.a, "a", FAR_OP_INSERT, "pk", "a", "dart:publish", 1);
    start_to(&s.b, "b", FAR_OP_INSERT, "pk", "b", "dart:publish", 1);
    start_to(&s.c, "c", FAR_OP_INSERT, "pz", "c", "dart:publish", 1);
    finish(&s.c, 0);
    finish(&s.b, 0);
    finish(&s.a, FAR_ERR_EXISTS);
    reads(&s.c, "pk", "b");
    holds(&s.c, "pk px py pz");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* A scan is between two rounds when a split puts a node above the one it will read. */
RACE(A21_range_after_split_above) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "ppppxa", "ppppxb", "r");
    start_to(&s.a, "a", FAR_OP_SCAN, "pp", "q", "dart:tour", 1);
    LOAD(&s.b, "ppa", "pppq", "pppz");
    finish(&s.a, 2); /* those that came meanwhile may be missed */
    gave(&s.a, "ppppxa ppppxb");
    start(&s.c, "c", FAR_OP_SCAN, "pp", "q");
    assert_int_equal(far_sim_run_client(s.c.client), FAR_SIM_ENDED);
    gave(&s.c, "ppa ppppxa ppppxb pppq pppz");
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* The range lies below one express node Y, and the split puts a node above Y before the table is told: keys of the
 * range are beside Y. (A range that begins at any node on its way, and ends with that.) */
RACE(A21_range_inside_a_prefix_after_split_above) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "ppppxa", "ppppxb", "r");
    far_sim_sleep(s.world, 5000000);
    start_to(&s.b, "b", FAR_OP_INSERT, "pppq", "b", "dart:split", 1);
    for (unsigned i = 0; i < 8; i++) { /* by every first choice */
        assert_int_equal(does(&s.c, FAR_OP_SCAN, "ppppxa", "pppz"), 3);
        gave(&s.c, "ppppxa ppppxb pppq");
        assert_int_equal(does(&s.c, FAR_OP_SCAN, "ppppxa", "ppppxz"), 2);
    }
    finish(&s.b, 0);
    assert_int_equal(does(&s.c, FAR_OP_SCAN, "ppppxa", "pppz"), 3);
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* b removes the node that has become empty while a inserts into it. (F ignored by inserters.) */
RACE(A23_insert_into_node_being_removed) {
    for (unsigned stop = 0; stop < 2; stop++) {
        stage s;
        set_up(&s, sim, options);
        LOAD(&s.a, "pa", "pb", "q");
        assert_int_equal(does(&s.c, FAR_OP_DELETE, "pa", ""), 0);
        start_to(&s.a, "a", FAR_OP_INSERT, "pc", "1", "dart:publish", 1);
        start_to(&s.b, "b", FAR_OP_DELETE, "pb", "", stop ? "dart:install" : "dart:frozen", 1);
        finish(&s.a, 0);
        finish(&s.b, 0);
        reads(&s.c, "pc", "1");
        holds(&s.c, "pc q");
        is_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* X has one child left, an inner node C; X is merged into its parent while C is replaced. */
RACE(A23b_merge_vs_child_switch) {
    for (unsigned order = 0; order < 2; order++) {
        stage s;
        set_up(&s, sim, options);
        LOAD(&s.a, "pa", SEVEN("px"), "q");
        start_to(&s.b, "b", FAR_OP_DELETE, "pa", "", "dart:install", 1);
        start_to(&s.a, "a", FAR_OP_INSERT, "pxh", "1", "dart:install", 1);
        finish(order ? &s.b : &s.a, 0);
        finish(order ? &s.a : &s.b, 0);
        assert_int_equal(does(&s.c, FAR_OP_INSERT, "pxi", "2"), 0);
        holds(&s.c, SEVEN_HELD("px") " pxh pxi q");
        is_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* Whatever a WRITEs is late: nobody may see a pointer to it before. (The wait between WRITE and CAS on different nodes
 * taken out.) */
/* Returns false when it has fewer WRITEs. */
static bool late_write(const char *sim, const char *options, const char *key, unsigned nth) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, SEVEN("p"), "longer_key");
    start(&s.b, "b", FAR_OP_INSERT, key, "1");
    far_sim_hold *hold = far_sim_hold_effect(s.b.client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = nth});
    while (!far_sim_reached(hold) && !far_sim_ended(s.b.client))
        far_sim_run_client(s.b.client);
    bool reached = far_sim_reached(hold);
    if (reached) {
        far_sim_run_client(s.b.client);
        holds(&s.c, "longer_key " SEVEN_HELD("p"));
        far_sim_release(hold);
        assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    }
    assert_int_equal(s.b.result, 0);
    assert_int_equal(far_index_check(s.c.session, s.c.index, fail_at_problem, NULL), 0);
    assert_int_equal(far_sim_watch_errors(s.world), 0);
    tear_down(&s);
    return reached;
}


RACE(A27_cas_before_write) {
    static const char *const keys[] = {"longer_day", "ph"}; /* a split, a full node */
    static const char *const ways[] = {"est=0", "est=0,spec_write=0", "est=0,colocate=0,spec_write=0"};
    (void)options;
    for (unsigned i = 0; i < 6; i++) {
        unsigned nth = 1;
        while (late_write(sim, ways[i % 3], keys[i / 3], nth))
            nth++;
        assert_true(nth > 2);
    }
}


/* a is about to split a slot; b splits it and merges it back: the same word again means the same state. */
RACE(A29_split_merge_same_word) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, "path", "q");
    start_to(&s.a, "a", FAR_OP_INSERT, "pass", "1", "dart:publish", 1);
    assert_int_equal(does(&s.b, FAR_OP_INSERT, "pace", "2"), 0);
    start(&s.b, "b", FAR_OP_DELETE, "pace", "");
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    finish(&s.a, 0);
    holds(&s.c, "pass path q");
    is_sound(&s, &s.c);
    tear_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(A2_insert_where_skipped_bytes_differ),
        cmocka_unit_test(A2b_skipped_bytes_differ_far_above),
        cmocka_unit_test(A5_late_cas_after_copy),
        cmocka_unit_test(A5_late_cas_into_a_node_with_room),
        cmocka_unit_test(A5b_validate_after_finish),
        cmocka_unit_test(A6_freezer_dies),
        cmocka_unit_test(A7_nested_switch),
        cmocka_unit_test(A7_nested_switch_the_other_way),
        cmocka_unit_test(A9_delete_frees_lower_slot),
        cmocka_unit_test(A10_three_inserters),
        cmocka_unit_test(A21_range_after_split_above),
        cmocka_unit_test(A21_range_inside_a_prefix_after_split_above),
        cmocka_unit_test(A23_insert_into_node_being_removed),
        cmocka_unit_test(A23b_merge_vs_child_switch),
        cmocka_unit_test(A27_cas_before_write),
        cmocka_unit_test(A29_split_merge_same_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
