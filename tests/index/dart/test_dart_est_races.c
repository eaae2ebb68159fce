/* Races of DART's skip table. docs/races/dart.md describes each race under the letter and number with which the name of
 * its test begins, such as A3. The comment of each test names the guard without which the test was seen to fail. */
#include "dart_est_rig.h"
#include "test.h"


/* Steps: (1) The entries of "ab", "abcd" and "abcdefgh" name node Y at depth 9. (2) A's insert links node S above Y, at
 * depth 6, and A has not updated the table yet. (3) B and C get and insert keys below S. Proves that no existing key is
 * reported as absent. Fails if find.c, process_candidates lets a get start at a node with another prefix. */
EST_RACE(A3_covering_entry_absent) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=4");
    INSERT_KEYS(&s.a, "abcdefghi1", "abcdefghi2");
    finish_background(&s);
    dart_node y = node_at(&s.a, "abcdefghi1", 9);
    assert_int_equal(count_entries_of(&s.a, y.addr), 3); /* under prefixes of 2, 4 and 8 bytes */
    start_with_background_until(&s.a, "a", FAR_OP_INSERT, "abcdefXXXXX", "new", "dart:est_upkeep", 1);
    for (unsigned i = 0; i < 8; i++) { /* often enough that the lookup tries every choice of prefix lengths */
        expect_get(&s.c, "abcdefXXXXX", "new");
        expect_get(&s.c, "abcdefghi1", "abcdefghi1");
        expect_get(&s.c, "abcdefZZZZZ", NULL);
        expect_get(&s.c, "abcdeZZZZZZZ", NULL);
        expect_get(&s.c, "abcdef", NULL);
    }
    assert_int_equal(run_op(&s.b, FAR_OP_INSERT, "abcdefXY", "b"), 0);
    assert_int_equal(run_op(&s.b, FAR_OP_INSERT, "abcdefXXXXX", "b"), FAR_ERR_EXISTS);
    expect_result(&s.a, 0);
    dart_node above = node_at(&s.a, "abcdefXXXXX", 6);
    assert_true(above.addr);
    finish_background(&s);
    assert_int_equal(count_entries_of_length(&s.a, &above, 4), 1);
    assert_int_equal(count_entries_of_length(&s.a, &y, 4), 0);
    expect_keys(&s.b, "abcdefXXXXX abcdefXY abcdefghi1 abcdefghi2");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* All fingerprints of the table are equal, so lookups return nodes of other prefixes, and these nodes have room for the
 * key. Proves that keys are stored in the right nodes. Fails if find.c, process_candidates does not compare the prefix.
 */
EST_RACE(A2_fp_clash_insert) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0,one_fingerprint=1");
    INSERT_KEYS(&s.a, "aa1", "aa2", "bb1", "bb2", "cc1", "cc2", "dd1", "dd2");
    finish_background(&s);
    for (unsigned i = 0; i < 4; i++) {
        char key[] = {(char)('a' + i), (char)('a' + i), 'x', 0}, other[] = {(char)('a' + i), 'z', 'x', 0};
        assert_int_equal(run_op(&s.b, FAR_OP_INSERT, key, "1"), 0);
        assert_int_equal(run_op(&s.c, FAR_OP_INSERT, other, "2"), 0);
        expect_get(&s.a, key, "1");
        expect_get(&s.a, other, "2");
    }
    expect_keys(&s.a, "aa1 aa2 aax azx bb1 bb2 bbx bzx cc1 cc2 ccx czx dd1 dd2 ddx dzx");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* All fingerprints of the table are equal, so a lookup of a prefix of 4 bytes returns an entry for 2 bytes, from which
 * a wrong depth follows. The bytes after the prefix in the node's header are zero. So if a key has zeros there, the
 * node seems to be on the path of the key. Proves that all keys are found. Fails if find.c, process_candidates does not
 * compare the depth. */
EST_RACE(A33_length_clash) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0,one_fingerprint=1");
    INSERT_KEYS(&s.a, "axyz1", "axyz2", "bxyz1", "bxyz2", "cxyz1", "cxyz2", "dxyz1", "dxyz2", "exyz1", "exyz2", "fxyz1",
                "fxyz2");
    finish_background(&s);
    for (unsigned i = 0; i < 24; i++) {
        char zeros[] = {(char)('a' + i % 6), 'x', 'y', 'z', 0, 0, (char)('a' + i), 'e'}, byte;
        assert_int_equal(far_insert(s.c.session, s.c.index, zeros, sizeof(zeros), "v", 1), 0);
        for (unsigned j = 0; j < 3 * STAGE_ACTORS; j++) {
            actor *a = stage_actor_at(&s, j % STAGE_ACTORS);
            assert_int_equal(far_get(a->session, a->index, zeros, sizeof(zeros), &byte, 1, NULL), 0);
        }
    }
    INSERT_KEYS(&s.a, "wxyz1", "wxyz2", "wxyzQQ1", "wxyzQQ2", "wxyzQQQQ1", "wxyzQQQQ2");
    finish_background(&s);
    for (unsigned i = 0; i < 24; i++) { /* often enough that the lookup tries every choice of prefix lengths */
        char key[] = "wxyzQQQQxx";
        expect_get(&s.b, "wxyzQQQQ1", "wxyzQQQQ1");
        expect_get(&s.b, "wxyzQQ2", "wxyzQQ2");
        expect_get(&s.b, "wxyzQQQQ3", NULL);
        key[9] = (char)('a' + i);
        assert_int_equal(run_op(&s.c, FAR_OP_INSERT, key, "new"), 0);
        expect_get(&s.b, key, "new");
    }
    expect_sound(&s, &s.a);
    tear_down(&s);
}


/* The writes of B in frozen_then. */
static void write_one_of_three(actor *b, unsigned which) {
    if (which == 0)
        assert_int_equal(run_op(b, FAR_OP_INSERT, "aby", "b"), 0);
    else if (which == 1)
        assert_int_equal(run_op(b, FAR_OP_UPDATE, "aba", "b"), 0);
    else
        assert_int_equal(run_op(b, FAR_OP_DELETE, "abb", ""), 0);
}


/* A replaces the node "ab" and stops at the point. B, which knows the node through the table or its cache, gets keys
 * there, and inserts, updates or deletes one. Then A continues, and B does the other two writes. */
static void frozen_then(const char *sim, const char *options, const char *point) {
    for (unsigned first = 0; first < 3; first++) {
        stage s;
        set_up(&s, sim, options);
        INSERT_KEYS(&s.a, SEVEN_KEYS("ab"));
        finish_background(&s);
        assert_int_equal(count_entries_of(&s.a, node_at(&s.a, "aba", 2).addr), 1);
        for (unsigned i = 0; i < 8; i++)
            expect_get(&s.b, "abc", "abc");
        start_until(&s.a, "a", FAR_OP_INSERT, "abx", "a", point, 1);
        for (unsigned i = 0; i < 8; i++) {
            expect_get(&s.b, "abc", "abc");
            expect_get(&s.b, "abz", NULL);
            if (strcmp(point, "dart:installed") == 0) /* the replacement contains A's key */
                expect_get(&s.b, "abx", "a");
        }
        write_one_of_three(&s.b, first);
        expect_result(&s.a, 0);
        write_one_of_three(&s.b, (first + 1) % 3);
        write_one_of_three(&s.b, (first + 2) % 3);
        expect_get(&s.c, "aby", "b");
        expect_get(&s.c, "aba", "b");
        expect_keys(&s.c, "aba abc abd abe abf abg abx aby");
        expect_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* Proves that B, which reaches a node through the skip table and never reads the slot above it, notices that the node
 * is frozen or replaced. Fails if writers ignore the frozen bit (write.c, change_leaf). */
EST_RACE(A8_frozen_via_est) {
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,express_cache=0,directory_bits=4", "dart:frozen");
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,express_cache=0,directory_bits=4", "dart:install");
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,express_cache=0,directory_bits=4", "dart:installed");
}


/* A replaces a node that B knows through its express cache. Proves that B notices this, also after the node was retired
 * and its memory freed, when B's entry is too old to be used. Fails if a descent starts at a node whose slots are all
 * frozen (find.c, process_candidates), and with a READ of free memory without the check of the tag
 * (dart_tag_is_fresh). */
EST_RACE(A8b_frozen_via_express_cache) {
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4", "dart:frozen");
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4", "dart:install");
    frozen_then(sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4", "dart:installed");
    stage s;
    set_up(&s, sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4");
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"), SEVEN_KEYS("cd"));
    finish_background(&s);
    far_stats before, after;
    for (unsigned i = 0; i < 70; i++)
        expect_get(&s.b, "abc", "abc");
    far_session_stats_of(s.b.session, FAR_OP_GET, &before);
    expect_get(&s.b, "abc", "abc");
    far_session_stats_of(s.b.session, FAR_OP_GET, &after);
    assert_int_equal(after.round_trips - before.round_trips, 2); /* the entry is in B's express cache */
    dart_node x = node_at(&s.c, "aba", 2);
    run_with_background(&s.a, "a", FAR_OP_INSERT, "abx", "a");
    let_memory_be_reused(&s, &s.a);
    expect_free(&s, x.addr);
    for (unsigned i = 0; i < 8; i++) {
        expect_get(&s.b, "abc", "abc");
        expect_get(&s.b, "abx", "a");
    }
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* The node of an entry in B's express cache was replaced by A. Proves that B finds the replacement through the table,
 * and not from the root, which would take five round trips. Fails if the second round of skiptable/lookup.c looks up
 * only shorter prefixes. */
EST_RACE(A8d_replaced_node_of_a_cached_entry) {
    stage s;
    set_up(&s, sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4");
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"), SEVEN_KEYS("ac"), SEVEN_KEYS("cd")); /* nodes of depths 0, 1 and 2 */
    finish_background(&s);
    far_stats before, after;
    for (unsigned i = 0; i < 70; i++)
        expect_get(&s.b, "abc", "abc");
    run_with_background(&s.a, "a", FAR_OP_INSERT, "abx", "a");
    finish_background(&s);
    far_session_stats_of(s.b.session, FAR_OP_GET, &before);
    expect_get(&s.b, "abc", "abc");
    far_session_stats_of(s.b.session, FAR_OP_GET, &after);
    /* The READs are: the old node (unless its entry is too old), the table, the new node, the leaf. */
    assert_in_range(after.round_trips - before.round_trips, 3, 4);
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* A removes the node of depth 1 that B has cached, and no node of this depth replaces it. Proves that B reads the
 * removed node once, and not with every get until the tag is too old. Fails if skiptable/lookup.c, dart_est_drop_stale
 * does not drop the removed node from the cache. */
EST_RACE(A8e_removed_node_below_the_root) {
    stage s;
    set_up(&s, sim, "slot_cache=0,adjust=0,directory_bits=4");
    INSERT_KEYS(&s.a, SEVEN_KEYS("a"), "b");
    for (unsigned i = 0; i < 8; i++)
        expect_get(&s.b, "aa", "aa");
    far_stats before, after;
    for (const char *last = "bcdefg"; *last; last++)
        run_with_background(&s.a, "a", FAR_OP_DELETE, (char[]){'a', *last, 0}, "");
    finish_background(&s);
    assert_int_equal(node_at(&s.c, "aa", 1).addr, 0);
    expect_get(&s.b, "aa", "aa");
    far_session_stats_of(s.b.session, FAR_OP_GET, &before);
    expect_get(&s.b, "aa", "aa");
    far_session_stats_of(s.b.session, FAR_OP_GET, &after);
    assert_int_equal(after.round_trips - before.round_trips, 2); /* the READs are: the slot of the root, the leaf */
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* A replaces a node of which B has an entry in its express cache; then some epochs pass. Proves for each number of
 * epochs that the node's memory is not free as long as B may use its entry. Fails without DART_EXTRA_EPOCHS, by a READ
 * of free memory after four epochs. */
EST_RACE(A8c_express_cache_after_each_epoch) {
    bool first = false, last = false;
    for (unsigned epochs = 0; epochs < 12 + DART_EXTRA_EPOCHS; epochs++) {
        stage s;
        set_up(&s, sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4");
        INSERT_KEYS(&s.a, SEVEN_KEYS("ab"), SEVEN_KEYS("cd"));
        finish_background(&s);
        for (unsigned i = 0; i < 70; i++)
            expect_get(&s.b, "abc", "abc");
        dart_node x = node_at(&s.c, "aba", 2);
        run_with_background(&s.a, "a", FAR_OP_INSERT, "abx", "a");
        advance_epochs(&s, &s.a, epochs);
        last = is_poisoned(&s, x.addr);
        first |= last && epochs == 0;
        expect_get(&s.b, "abc", "abc");
        expect_get(&s.b, "abx", "a");
        world_assert_no_checker_error(s.world);
        expect_sound(&s, &s.b);
        tear_down(&s);
    }
    assert_true(!first && last); /* the memory was not free at first and was free in the end */
}


/* A has linked node N1 and stops at a point of its registration. B replaces N1 by N2 and retires N1. A continues, and
 * no entry may name N1 afterwards. */
static void slow_updater(const char *sim, const char *options, const char *point) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"), SEVEN_KEYS("cd"));
    finish_background(&s);
    for (unsigned i = 0; i < 70; i++)
        expect_get(&s.b, "cda", "cda");
    start_with_background_until(&s.a, "a", FAR_OP_INSERT, "abh", "a", point, 1); /* the eighth key makes an N16 */
    dart_node n1 = node_at(&s.c, "aba", 2);
    for (char c = 'i'; c <= 'p'; c++) {
        char key[] = {'a', 'b', c, 0};
        run_with_background(&s.b, "b", FAR_OP_INSERT, key, "b");
    }
    dart_node n2 = node_at(&s.c, "aba", 2);
    assert_true(n1.addr != n2.addr && n1.type != n2.type);
    expect_result(&s.a, 0);
    finish_background(&s);
    assert_int_equal(count_entries_of(&s.c, n1.addr), 0);
    let_memory_be_reused(&s, &s.c);
    for (unsigned i = 0; i < 8; i++)
        expect_get(&s.c, "abh", "a");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Proves that no committed entry names N1 after it was retired, wherever A stopped. Fails if skiptable/upkeep.c,
 * commit_entries commits without checking that the node is still linked. */
EST_RACE(A11_slow_est_updater) {
    static const char *const points[] = {"dart:est_upkeep", "dart:est_slots_chosen", "dart:est_tentative",
                                         "dart:est_validated"};
    for (unsigned i = 0; i < 4; i++) {
        slow_updater(sim, "upkeep_batch=1,adjust=0,directory_bits=4", points[i]);
        /* With this directory B can compute the addresses of the buckets for entries of N1, and reads these buckets in
         * the batch that unlinks N1. Fails if B ignores tentative words. */
        slow_updater(sim, "upkeep_batch=1,adjust=0,directory_bits=0,express_cache=0", points[i]);
    }
}


/* B is freezing N1 and has frozen all slots except the first, when A registers N1. Proves that B finds A's entry and
 * removes it before B retires N1. Fails if restructure.c reads the buckets in the batch that freezes the node, instead
 * of the batch that unlinks it. */
EST_RACE(A11_registered_while_it_is_being_frozen) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0,express_cache=0");
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"), SEVEN_KEYS("cd"));
    finish_background(&s);
    for (unsigned i = 0; i < 70; i++)
        expect_get(&s.b, "cda", "cda");
    start_with_background_until(&s.a, "a", FAR_OP_INSERT, "abh", "a", "dart:est_slots_chosen", 1);
    dart_node n1 = node_at(&s.c, "aba", 2);
    for (char k = 'i'; k <= 'o'; k++) {
        char key[] = {'a', 'b', k, 0};
        assert_int_equal(run_op(&s.b, FAR_OP_INSERT, key, "b"), 0);
    }
    start_with_background_until(&s.b, "b", FAR_OP_INSERT, "abp", "b", "dart:freeze", 1);
    far_sim_hold *hold = far_sim_hold_effect(s.b.client, (far_sim_match){.kind = FAR_SIM_ATOMIC, .nth = 1});
    far_sim_resume(s.b.client);
    while (!far_sim_reached(hold))
        far_sim_run_client(s.b.client);
    finish_background(&s);
    expect_result(&s.a, 0);
    assert_int_equal(count_entries_of(&s.c, n1.addr), 1);
    far_sim_stop_before(s.b.client, (far_sim_match){.point = "dart:retire"});
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_STOPPED);
    assert_true(node_at(&s.c, "aba", 2).addr != n1.addr);
    assert_int_equal(count_entries_of(&s.c, n1.addr), 0);
    expect_result(&s.b, 0);
    finish_background(&s);
    let_memory_be_reused(&s, &s.c);
    for (unsigned i = 0; i < 8; i++)
        expect_get(&s.c, "abh", "a");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Steps: (1) A has written its tentative word for node N and has seen that N is linked. (2) B unlinks N and removes
 * that word. (3) C, which is slow too, writes its own tentative word for N into the same slot, and then fails. (4) A
 * commits. Proves that A does not commit C's word, so no entry names N. Fails if tentative words do not contain their
 * client (layout.h, dart_est_tentative). */
EST_RACE(A12_tentative_aba) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,express_cache=0,directory_bits=0");
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"), SEVEN_KEYS("cd"));
    finish_background(&s);
    start_with_background_until(&s.a, "a", FAR_OP_INSERT, "abh", "a", "dart:est_slots_chosen", 1);
    dart_node n = node_at(&s.b, "aba", 2);
    assert_int_equal(count_entries_of(&s.b, n.addr), 0);
    /* C misses the entry of the node and wants to register the node */
    start_with_background_until(&s.c, "c", FAR_OP_GET, "abc", "", "dart:est_slots_chosen", 1);
    resume_until(&s.a, "dart:est_validated", 1);
    for (char k = 'i'; k <= 'o'; k++) {
        char key[] = {'a', 'b', k, 0};
        assert_int_equal(run_op(&s.b, FAR_OP_INSERT, key, "b"), 0);
    }
    start_with_background_until(&s.b, "b", FAR_OP_INSERT, "abp", "b", "dart:retire",
                                1); /* N is unlinked, and its entries are removed */
    resume_until(&s.c, "dart:est_tentative", 1);
    far_sim_kill(s.c.pool->fabric);
    expect_result(&s.a, 0);
    assert_int_equal(count_entries_of(&s.a, n.addr), 0);
    expect_result(&s.b, 0);
    far_sim_resume(s.c.client);
    assert_int_equal(far_sim_run_client(s.c.client), FAR_SIM_ENDED);
    finish_background(&s);
    assert_true(node_at(&s.b, "aba", 2).addr != n.addr);
    assert_int_equal(count_entries_of(&s.b, n.addr), 0);
    let_memory_be_reused(&s, &s.b);
    for (unsigned i = 0; i < 8; i++)
        expect_get(&s.b, "abh", "a");
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* A replaces O by N, and fails before it updates the table. If `used_first` is set, B uses the keys before a collection
 * runs. Then the collection frees O. */
static void dies_before_upkeep(const char *sim, bool used_first) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=4");
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"), SEVEN_KEYS("cd"));
    finish_background(&s);
    dart_node o = node_at(&s.b, "aba", 2);
    /* The handle drops its directory words. With these words it would redirect the entry in the batch that links N. */
    for (unsigned i = 0; i < 16; i++)
        dart_directory_set(&dart_est_of(s.a.index)->directory, 16 + i, 0, 0);
    start_with_background_until(&s.a, "a", FAR_OP_INSERT, "abx", "a", "dart:installed", 1);
    far_sim_kill(s.a.pool->fabric);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_int_equal(count_entries_of(&s.b, o.addr), 1);
    for (unsigned i = 0; used_first && i < 8; i++) {
        expect_get(&s.b, "abc", "abc");
        expect_get(&s.b, "abx", "a");
    }
    if (used_first) {
        finish_background(&s);
        assert_int_equal(count_entries_of(&s.b, o.addr), 0); /* the gets have repaired the entry */
        dart_node n = node_at(&s.b, "aba", 2);
        assert_int_equal(count_entries_of(&s.b, n.addr), 1);
    }
    expect_sound(&s, &s.b); /* this runs a collection */
    assert_int_equal(count_entries_of(&s.b, o.addr), 0);
    for (unsigned i = 0; i < 8; i++)
        expect_get(&s.c, "abx", "a");
    world_assert_no_checker_error(s.world);
    tear_down(&s);
}


/* Proves that when the collection has freed O, no entry names it. Fails if the walk does not clear entries of frozen
 * nodes (skiptable/traverse.c, clear_slots). */
EST_RACE(A13_die_between_link_and_est) {
    dies_before_upkeep(sim, false);
    dies_before_upkeep(sim, true);
}


/* Main function of an actor that waits, after its operation, inside a call without a pin. So only its background work
 * holds a pin. */
static void run_waiting(void *arg) {
    actor *a = arg;
    a->result = stage_run(a);
    far_session_call(a->session, FAR_STATS_OTHER, true, wait_task, NULL);
    a->ended = true;
}


/* Steps: (1) A's background task has written a tentative word for a node. (2) B replaces the node, and epochs pass. (3)
 * A's task validates the node. Proves that the node's memory was not reused, because the task holds the pin of its
 * operation. Fails if the task takes a new pin. */
EST_RACE(A31_detached_pin) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=4");
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"), SEVEN_KEYS("cd"), "cdh");
    finish_background(&s);
    prepare(&s.a, FAR_OP_INSERT, "abh", "a");
    s.a.client = far_sim_start(s.a.pool->fabric, "a", run_waiting, &s.a);
    far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:est_tentative"});
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_STOPPED);
    dart_node n = node_at(&s.b, "aba", 2);
    for (char k = 'i'; k <= 'p'; k++) {
        char key[] = {'a', 'b', k, 0};
        run_with_background(&s.b, "b", FAR_OP_INSERT, key, "b");
    }
    assert_true(node_at(&s.b, "aba", 2).addr != n.addr);
    for (unsigned i = 0; i < 20; i++) {
        far_epoch_request(s.b.pool);
        far_sim_sleep(s.world, 1000000);
        run_with_background(&s.b, "b", FAR_OP_UPDATE, "aba", "b");
    }
    expect_result(&s.a, 0);
    world_assert_no_checker_error(s.world);
    finish_background(&s);
    assert_int_equal(count_entries_of(&s.b, n.addr), 0);
    expect_sound(&s, &s.b);
    tear_down(&s);
}
