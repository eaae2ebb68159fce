/* DART's skip table, named interleavings (design 4.3): each fails when its fix is taken out; the mutation that was
 * tried stands in brackets. */
#include "dart_est_rig.h"


/* The entries of "abcd" name Y at depth 9; a's insert puts S above it, at depth 6, and has not told the table: who
 * comes through Y must not say that a key below S is absent. (A candidate that is not above the key answers "absent".)
 */
EST_RACE(A3_covering_entry_absent) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=4");
    LOAD(&s.a, "abcdefghi1", "abcdefghi2");
    settle(&s);
    dart_node y = node_at(&s.a, "abcdefghi1", 9);
    assert_int_equal(names_of(&s.a, y.addr), 3); /* 2, 4 and 8 bytes */
    busy_to(&s.a, "a", FAR_OP_INSERT, "abcdefXXXXX", "new", "dart:est_upkeep", 1);
    for (unsigned i = 0; i < 8; i++) { /* by every first choice */
        reads(&s.c, "abcdefXXXXX", "new");
        reads(&s.c, "abcdefghi1", "abcdefghi1");
        reads(&s.c, "abcdefZZZZZ", NULL);
        reads(&s.c, "abcdeZZZZZZZ", NULL);
        reads(&s.c, "abcdef", NULL);
    }
    assert_int_equal(does(&s.b, FAR_OP_INSERT, "abcdefXY", "b"), 0);
    assert_int_equal(does(&s.b, FAR_OP_INSERT, "abcdefXXXXX", "b"), FAR_ERR_EXISTS);
    finish(&s.a, 0);
    dart_node above = node_at(&s.a, "abcdefXXXXX", 6);
    assert_true(above.addr);
    settle(&s);
    assert_int_equal(names_of_length(&s.a, &above, 4), 1);
    assert_int_equal(names_of_length(&s.a, &y, 4), 0);
    holds(&s.b, "abcdefXXXXX abcdefXY abcdefghi1 abcdefghi2");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* All fingerprints clash: lookups give nodes of other prefixes, with room for the key. (Candidates without the compare
 * of their prefix.) */
EST_RACE(A2_fp_clash_insert) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0,one_fingerprint=1");
    LOAD(&s.a, "aa1", "aa2", "bb1", "bb2", "cc1", "cc2", "dd1", "dd2");
    settle(&s);
    for (unsigned i = 0; i < 4; i++) {
        char key[] = {(char)('a' + i), (char)('a' + i), 'x', 0}, other[] = {(char)('a' + i), 'z', 'x', 0};
        assert_int_equal(does(&s.b, FAR_OP_INSERT, key, "1"), 0);
        assert_int_equal(does(&s.c, FAR_OP_INSERT, other, "2"), 0);
        reads(&s.a, key, "1");
        reads(&s.a, other, "2");
    }
    holds(&s.a, "aa1 aa2 aax azx bb1 bb2 bbx bzx cc1 cc2 ccx czx dd1 dd2 ddx dzx");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* An entry of 2 bytes is met by a question for 4 bytes: the depth is not what it seems. The zeros behind a short prefix
 * make the node look as if it were on the way of a key with zeros. (Candidates without the compare of their depth.) */
EST_RACE(A33_length_clash) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0,one_fingerprint=1");
    LOAD(&s.a, "axyz1", "axyz2", "bxyz1", "bxyz2", "cxyz1", "cxyz2", "dxyz1", "dxyz2", "exyz1", "exyz2", "fxyz1",
         "fxyz2");
    settle(&s);
    for (unsigned i = 0; i < 24; i++) {
        char zeros[] = {(char)('a' + i % 6), 'x', 'y', 'z', 0, 0, (char)('a' + i), 'e'}, byte;
        assert_int_equal(far_insert(s.c.session, s.c.index, zeros, sizeof(zeros), "v", 1), 0);
        for (unsigned j = 0; j < 3 * STAGE_ACTORS; j++) {
            actor *a = stage_actor_at(&s, j % STAGE_ACTORS);
            assert_int_equal(far_get(a->session, a->index, zeros, sizeof(zeros), &byte, 1, NULL), 0);
        }
    }
    LOAD(&s.a, "wxyz1", "wxyz2", "wxyzQQ1", "wxyzQQ2", "wxyzQQQQ1", "wxyzQQQQ2");
    settle(&s);
    for (unsigned i = 0; i < 24; i++) { /* by every first choice */
        char key[] = "wxyzQQQQxx";
        reads(&s.b, "wxyzQQQQ1", "wxyzQQQQ1");
        reads(&s.b, "wxyzQQ2", "wxyzQQ2");
        reads(&s.b, "wxyzQQQQ3", NULL);
        key[9] = (char)('a' + i);
        assert_int_equal(does(&s.c, FAR_OP_INSERT, key, "new"), 0);
        reads(&s.b, key, "new");
    }
    is_sound(&s, &s.a);
    tear_down(&s);
}


static void frozen_then(const char *sim, const char *options, const char *point) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, SEVEN("ab"));
    settle(&s);
    assert_int_equal(names_of(&s.a, node_at(&s.a, "aba", 2).addr), 1);
    for (unsigned i = 0; i < 8; i++)
        reads(&s.b, "abc", "abc");
    start_to(&s.a, "a", FAR_OP_INSERT, "abx", "a", point, 1);
    for (unsigned i = 0; i < 8; i++) {
        reads(&s.b, "abc", "abc");
        reads(&s.b, "abz", NULL);
    }
    assert_int_equal(does(&s.b, FAR_OP_INSERT, "aby", "b"), 0);
    assert_int_equal(does(&s.b, FAR_OP_UPDATE, "aba", "b"), 0);
    assert_int_equal(does(&s.b, FAR_OP_DELETE, "abb", ""), 0);
    finish(&s.a, 0);
    reads(&s.c, "aby", "b");
    reads(&s.c, "aba", "b");
    holds(&s.c, "aba abc abd abe abf abg abx aby");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* a has frozen the node; b comes through the table and never sees the slot above. (F ignored by writers; "absent" from
 * frozen slots.) */
EST_RACE(A8_frozen_via_est) {
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,express_cache=0,directory_bits=4", "dart:frozen");
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,express_cache=0,directory_bits=4", "dart:install");
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,express_cache=0,directory_bits=4", "dart:installed");
}


/* The same through an entry that b keeps. Then the node is retired and its memory free: the entry is too old. (The tag
 * not looked at: a READ of free memory.) */
EST_RACE(A8b_frozen_via_express_cache) {
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4", "dart:frozen");
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4", "dart:install");
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4", "dart:installed");
    stage s;
    set_up(&s, sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4");
    LOAD(&s.a, SEVEN("ab"), SEVEN("cd"));
    settle(&s);
    far_stats before, after;
    for (unsigned i = 0; i < 70; i++)
        reads(&s.b, "abc", "abc");
    far_session_stats_of(s.b.session, FAR_OP_GET, &before);
    reads(&s.b, "abc", "abc");
    far_session_stats_of(s.b.session, FAR_OP_GET, &after);
    assert_int_equal(after.round_trips - before.round_trips, 2); /* it is kept */
    dart_node x = node_at(&s.c, "aba", 2);
    busy(&s.a, "a", FAR_OP_INSERT, "abx", "a");
    let_memory_go(&s, &s.a);
    is_free(&s, x.addr);
    for (unsigned i = 0; i < 8; i++) {
        reads(&s.b, "abc", "abc");
        reads(&s.b, "abx", "a");
    }
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* The node of an entry that b keeps was replaced: the table leads to the new one, not the way from the root. (Only
 * shorter prefixes asked for: five round trips.) */
EST_RACE(A8d_replaced_node_of_a_kept_entry) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=4");
    LOAD(&s.a, SEVEN("ab"), SEVEN("ac"), SEVEN("cd")); /* nodes at depths 0, 1 and 2 */
    settle(&s);
    far_stats before, after;
    for (unsigned i = 0; i < 70; i++)
        reads(&s.b, "abc", "abc");
    busy(&s.a, "a", FAR_OP_INSERT, "abx", "a");
    settle(&s);
    far_session_stats_of(s.b.session, FAR_OP_GET, &before);
    reads(&s.b, "abc", "abc");
    far_session_stats_of(s.b.session, FAR_OP_GET, &after);
    assert_in_range(after.round_trips - before.round_trips, 3,
                    4); /* old node (unless too old), table, new node, leaf */
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* The node below the root that b keeps is gone, and nothing of its depth has come in its place. It is looked at once,
 * not with every get until its tag is too old. (What was kept is forgotten with the next question.) */
EST_RACE(A8e_removed_node_below_the_root) {
    stage s;
    set_up(&s, sim, "slot_cache=0,adjust=0,directory_bits=4");
    LOAD(&s.a, SEVEN("a"), "b");
    for (unsigned i = 0; i < 8; i++)
        reads(&s.b, "aa", "aa");
    far_stats before, after;
    for (const char *last = "bcdefg"; *last; last++)
        busy(&s.a, "a", FAR_OP_DELETE, (char[]){'a', *last, 0}, "");
    settle(&s);
    assert_int_equal(node_at(&s.c, "aa", 1).addr, 0);
    reads(&s.b, "aa", "aa");
    far_session_stats_of(s.b.session, FAR_OP_GET, &before);
    reads(&s.b, "aa", "aa");
    far_session_stats_of(s.b.session, FAR_OP_GET, &after);
    assert_int_equal(after.round_trips - before.round_trips, 2); /* slot of the root, leaf */
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* The same, so many epochs after the node was retired: as long as b may use what it kept, the memory is not free.
 * (Nodes without DART_EXTRA_EPOCHS: a READ of free memory after four epochs.) */
EST_RACE(A8c_express_cache_after_each_epoch) {
    bool first = false, last = false;
    for (unsigned epochs = 0; epochs < 12 + DART_EXTRA_EPOCHS; epochs++) {
        stage s;
        set_up(&s, sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4");
        LOAD(&s.a, SEVEN("ab"), SEVEN("cd"));
        settle(&s);
        for (unsigned i = 0; i < 70; i++)
            reads(&s.b, "abc", "abc");
        dart_node x = node_at(&s.c, "aba", 2);
        busy(&s.a, "a", FAR_OP_INSERT, "abx", "a");
        pass_epochs(&s, &s.a, epochs);
        last = is_poisoned(&s, x.addr);
        first |= last && epochs == 0;
        reads(&s.b, "abc", "abc");
        reads(&s.b, "abx", "a");
        world_assert_watch_is_content(s.world);
        is_sound(&s, &s.b);
        tear_down(&s);
    }
    assert_true(!first && last); /* all moments were met */
}


/* a has made N1 and is slow to tell the table; b replaces N1 by N2 and retires it. a's entry must not come to be.
 * (Commit without validation.) */
static void slow_updater(const char *sim, const char *options, const char *point) {
    stage s;
    set_up(&s, sim, options);
    LOAD(&s.a, SEVEN("ab"), SEVEN("cd"));
    settle(&s);
    for (unsigned i = 0; i < 70; i++)
        reads(&s.b, "cda", "cda");
    busy_to(&s.a, "a", FAR_OP_INSERT, "abh", "a", point, 1); /* 8 in an N16 */
    dart_node n1 = node_at(&s.c, "aba", 2);
    for (char c = 'i'; c <= 'p'; c++) {
        char key[] = {'a', 'b', c, 0};
        busy(&s.b, "b", FAR_OP_INSERT, key, "b");
    }
    dart_node n2 = node_at(&s.c, "aba", 2);
    assert_true(n1.addr != n2.addr && n1.type != n2.type);
    finish(&s.a, 0);
    settle(&s);
    assert_int_equal(names_of(&s.c, n1.addr), 0);
    let_memory_go(&s, &s.c);
    for (unsigned i = 0; i < 8; i++)
        reads(&s.c, "abh", "a");
    is_sound(&s, &s.c);
    tear_down(&s);
}


EST_RACE(A11_slow_est_updater) {
    static const char *const points[] = {"dart:est_upkeep", "dart:est_chosen", "dart:est_tentative",
                                         "dart:est_validated"};
    for (unsigned i = 0; i < 4; i++) {
        slow_updater(sim, "upkeep_batch=1,adjust=0,directory_bits=4", points[i]);
        /* b knows the directory: it looks for entries of N1 in the batch that unlinks it. (Tentative words not seen.)
         */
        slow_updater(sim, "upkeep_batch=1,adjust=0,directory_bits=0,express_cache=0", points[i]);
    }
}


/* b is freezing N1, all but its first slot, when a registers it: b must look for entries after that. (The READs for
 * them in the batch that freezes.) */
EST_RACE(A11_registered_while_it_is_being_frozen) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0,express_cache=0");
    LOAD(&s.a, SEVEN("ab"), SEVEN("cd"));
    settle(&s);
    for (unsigned i = 0; i < 70; i++)
        reads(&s.b, "cda", "cda");
    busy_to(&s.a, "a", FAR_OP_INSERT, "abh", "a", "dart:est_chosen", 1);
    dart_node n1 = node_at(&s.c, "aba", 2);
    for (char k = 'i'; k <= 'o'; k++) {
        char key[] = {'a', 'b', k, 0};
        assert_int_equal(does(&s.b, FAR_OP_INSERT, key, "b"), 0);
    }
    busy_to(&s.b, "b", FAR_OP_INSERT, "abp", "b", "dart:freeze", 1);
    far_sim_hold *hold = far_sim_hold_effect(s.b.client, (far_sim_match){.kind = FAR_SIM_ATOMIC, .nth = 1});
    far_sim_resume(s.b.client);
    while (!far_sim_reached(hold))
        far_sim_run_client(s.b.client);
    settle(&s);
    finish(&s.a, 0);
    assert_int_equal(names_of(&s.c, n1.addr), 1);
    far_sim_stop_before(s.b.client, (far_sim_match){.point = "dart:retire"});
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_STOPPED);
    assert_true(node_at(&s.c, "aba", 2).addr != n1.addr);
    assert_int_equal(names_of(&s.c, n1.addr), 0);
    finish(&s.b, 0);
    settle(&s);
    let_memory_go(&s, &s.c);
    for (unsigned i = 0; i < 8; i++)
        reads(&s.c, "abh", "a");
    is_sound(&s, &s.c);
    tear_down(&s);
}


/* a has validated its tentative word for N; b unlinks N and removes that word; c, which is slow too, puts one of its
 * own into the same slot and dies. a must not commit the word of c. (Tentative words without their owner.) */
EST_RACE(A12_tentative_aba) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,express_cache=0,directory_bits=0");
    LOAD(&s.a, SEVEN("ab"), SEVEN("cd"));
    settle(&s);
    busy_to(&s.a, "a", FAR_OP_INSERT, "abh", "a", "dart:est_chosen", 1);
    dart_node n = node_at(&s.b, "aba", 2);
    assert_int_equal(names_of(&s.b, n.addr), 0);
    busy_to(&s.c, "c", FAR_OP_GET, "abc", "", "dart:est_chosen", 1); /* it misses the entry */
    resume_to(&s.a, "dart:est_validated", 1);
    for (char k = 'i'; k <= 'o'; k++) {
        char key[] = {'a', 'b', k, 0};
        assert_int_equal(does(&s.b, FAR_OP_INSERT, key, "b"), 0);
    }
    busy_to(&s.b, "b", FAR_OP_INSERT, "abp", "b", "dart:retire", 1); /* N is gone, its entries are removed */
    resume_to(&s.c, "dart:est_tentative", 1);
    far_sim_kill(s.c.pool->fabric);
    finish(&s.a, 0);
    assert_int_equal(names_of(&s.a, n.addr), 0);
    finish(&s.b, 0);
    far_sim_resume(s.c.client);
    assert_int_equal(far_sim_run_client(s.c.client), FAR_SIM_ENDED);
    settle(&s);
    assert_true(node_at(&s.b, "aba", 2).addr != n.addr);
    assert_int_equal(names_of(&s.b, n.addr), 0);
    let_memory_go(&s, &s.b);
    for (unsigned i = 0; i < 8; i++)
        reads(&s.b, "abh", "a");
    is_sound(&s, &s.b);
    tear_down(&s);
}


/* a dies after it has put N in the place of O, before it told the table. O was never retired; the sweep will free it,
 * so its entry must go first. (A walk that leaves entries of frozen nodes.) */
static void dies_before_upkeep(const char *sim, bool used_first) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=4");
    LOAD(&s.a, SEVEN("ab"), SEVEN("cd"));
    settle(&s);
    dart_node o = node_at(&s.b, "aba", 2);
    for (unsigned i = 0; i < 16; i++) /* or the entry would change in place, in the batch that links N */
        dart_directory_set(&dart_est_of(s.a.index)->directory, 16 + i, 0, 0);
    busy_to(&s.a, "a", FAR_OP_INSERT, "abx", "a", "dart:installed", 1);
    far_sim_kill(s.a.pool->fabric);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_int_equal(names_of(&s.b, o.addr), 1);
    for (unsigned i = 0; used_first && i < 8; i++) {
        reads(&s.b, "abc", "abc");
        reads(&s.b, "abx", "a");
    }
    if (used_first) {
        settle(&s);
        assert_int_equal(names_of(&s.b, o.addr), 0); /* repaired by use */
        dart_node n = node_at(&s.b, "aba", 2);
        assert_int_equal(names_of(&s.b, n.addr), 1);
    }
    is_sound(&s, &s.b); /* sweeps */
    assert_int_equal(names_of(&s.b, o.addr), 0);
    for (unsigned i = 0; i < 8; i++)
        reads(&s.c, "abx", "a");
    world_assert_watch_is_content(s.world);
    tear_down(&s);
}


EST_RACE(A13_die_between_link_and_est) {
    dies_before_upkeep(sim, false);
    dies_before_upkeep(sim, true);
}


/* Inside a call without a pin of its own: only its background work holds one. */
static void run_waiting(void *arg) {
    actor *a = arg;
    a->result = stage_run(a);
    far_session_call(a->session, FAR_STATS_OTHER, true, wait_task, NULL);
    a->ended = true;
}


/* The background work holds the pin of its operation: what it is about to read is not reused before. (The pin dropped,
 * and taken anew.) */
EST_RACE(A31_detached_pin) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=4");
    LOAD(&s.a, SEVEN("ab"), SEVEN("cd"), "cdh");
    settle(&s);
    prepare(&s.a, FAR_OP_INSERT, "abh", "a");
    s.a.client = far_sim_start(s.a.pool->fabric, "a", run_waiting, &s.a);
    far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:est_tentative"});
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_STOPPED);
    dart_node n = node_at(&s.b, "aba", 2);
    for (char k = 'i'; k <= 'p'; k++) {
        char key[] = {'a', 'b', k, 0};
        busy(&s.b, "b", FAR_OP_INSERT, key, "b");
    }
    assert_true(node_at(&s.b, "aba", 2).addr != n.addr);
    for (unsigned i = 0; i < 20; i++) {
        far_epoch_request(s.b.pool);
        far_sim_sleep(s.world, 1000000);
        busy(&s.b, "b", FAR_OP_UPDATE, "aba", "b");
    }
    finish(&s.a, 0);
    world_assert_watch_is_content(s.world);
    settle(&s);
    assert_int_equal(names_of(&s.b, n.addr), 0);
    is_sound(&s, &s.b);
    tear_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(A3_covering_entry_absent),
        cmocka_unit_test(A2_fp_clash_insert),
        cmocka_unit_test(A33_length_clash),
        cmocka_unit_test(A8_frozen_via_est),
        cmocka_unit_test(A8b_frozen_via_express_cache),
        cmocka_unit_test(A8c_express_cache_after_each_epoch),
        cmocka_unit_test(A8d_replaced_node_of_a_kept_entry),
        cmocka_unit_test(A8e_removed_node_below_the_root),
        cmocka_unit_test(A11_slow_est_updater),
        cmocka_unit_test(A11_registered_while_it_is_being_frozen),
        cmocka_unit_test(A12_tentative_aba),
        cmocka_unit_test(A13_die_between_link_and_est),
        cmocka_unit_test(A31_detached_pin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
