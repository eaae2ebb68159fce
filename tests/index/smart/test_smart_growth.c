/* SMART: tests of the replacement of a full list below a DIR node. The client READs at most the header of the DIR node,
 * and not the slot that names the list; the CAS that publishes the replacement compares the slot with the expected
 * word. Further tests cover the order of words in the cache, damaged slots of the root, and damage in unused slots. */
#include "smart_rig.h"
#include "test.h"

#define WIDE 62 /* number of children that needs a DIR node */


/* Makes "n" a DIR node and "nX" (with `longer`: "nXy") a full list below that node. A's cache contains the list. */
static void full_list_below_a_wide_node(bool longer) {
    char wide[] = "n?", full[] = "nX??";
    open_stage(NULL, NULL);
    for (unsigned i = 0; i < WIDE; i++) {
        wide[1] = (char)('!' + i);
        if (wide[1] != 'X')
            stage_write(a, wide, V1);
    }
    full[longer ? 2 : 3] = 'y';
    for (unsigned i = 0; i < SMALL_LIST; i++) {
        full[longer ? 3 : 2] = (char)('a' + i);
        stage_write(a, full, V1);
    }
}


static far_stats cost_of_growth(void) {
    far_stats before, after;
    far_session_stats(a->session, &before);
    stage_write(a, "nXzy", V2);
    far_session_stats(a->session, &after);
    return far_stats_diff(&after, &before);
}


static void expect_all(const char *more) {
    char full[] = "nX?y";
    for (full[2] = 'a'; full[2] < 'a' + SMALL_LIST; full[2]++)
        assert_true(stage_reads(c, full, V1));
    assert_true(stage_reads(c, "nXzy", V2) && stage_reads(c, more, V1));
    stage_close(&s);
}


/* An insert that grows a full list below a DIR node takes three batches: {READ header of the DIR node, READ list}, {CAS
 * every word of the list}, {WRITE copy, WRITE leaf, CAS slot}. It takes one round trip more if these objects are on
 * several memory nodes. The slot above is not READ, and the header only if many epochs have passed since the handle saw
 * the DIR node linked (find_from_parent_and_node in find_cached.c). */
TEST(the_slot_above_is_not_read) {
    for (unsigned later = 0; later < 2; later++) {
        full_list_below_a_wide_node(false);
        if (later)
            stage_free_retired(&s);
        far_stats d = cost_of_growth();
        assert_int_equal(d.reads, 1 + later);
        assert_int_equal(d.cas, SMALL_LIST + 2);
        assert_true(d.round_trips <= 4 && d.retries == 0 && d.cas_failed == 0);
        expect_all("n!");
    }
}


/* A grows a list without having READ the slot above it. B has raised the size hint in this slot, so A's CAS of the slot
 * fails once, and A repeats it with the word that the CAS returned (move_parent_slot in restructure.c). */
TEST(a_hint_that_changed_costs_a_cas) {
    full_list_below_a_wide_node(false);
    assert_true(stage_reads(b, "nXmy", V1)); /* A reader that READs too little of the list raises the hint. */
    far_stats d = cost_of_growth();
    assert_int_equal(d.reads, 1);
    assert_int_equal(d.cas, SMALL_LIST + 3);
    assert_int_equal(d.cas_failed, 1);
    assert_int_equal(d.retries, 0);
    expect_all("n!");
}


/* A grows the list below the DIR node. B inserts a node between the list and the DIR node, before or after A freezes
 * the list. The slot of the DIR node then names B's node, and A must not change it. Fails if word_names_same_node
 * (restructure.c) does not compare the address. */
TEST(a_node_that_came_between_stays) {
    static const char *const points[] = {"smart:freeze", "smart:frozen"};
    for (unsigned i = 0; i < 2; i++) {
        char full[] = "nXy?";
        full_list_below_a_wide_node(true);
        run_until_point(a, points[i], FAR_OP_INSERT, "nXyz", V2);
        stage_write(b, "nXz", V1);
        stage_finish(a);
        assert_int_equal(a->result, 0);
        for (full[3] = 'a'; full[3] < 'a' + SMALL_LIST; full[3]++)
            assert_true(stage_reads(c, full, V1));
        assert_true(stage_reads(c, "nXyz", V2) && stage_reads(c, "nXz", V1) && stage_reads(a, "nXz", V1));
        stage_close(&s);
    }
}


/* The DIR node above the list was removed, and its memory may be reused, but A's cache still contains that node. A must
 * not change this memory. The guards are in find_from_parent_and_node (find_cached.c): A changes a slot of the DIR node
 * only if the memory cannot be reused, and then A's CAS finds a frozen slot, or after it has READ the node's header and
 * found that the header is LIVE and has the right prefix. */
TEST(a_node_above_that_is_gone_is_not_changed) {
    for (unsigned later = 0; later < 2; later++) {
        char wide[] = "n?";
        full_list_below_a_wide_node(false);
        assert_true(stage_reads(b, "n!", V1));
        for (unsigned i = 0; i < WIDE; i++) {
            wide[1] = (char)('!' + i);
            if (wide[1] != 'X')
                stage_delete(b, wide);
        }
        if (later)
            stage_free_retired(&s);
        stage_write(b, "n!", V1);
        if (later)
            stage_free_retired(&s);
        far_stats d = cost_of_growth();
        assert_true(d.round_trips <= 12);
        expect_all("n!");
    }
}


/* A key that ends at a node precedes the keys that continue, in the cache as in a scan. So a short scan READs the leaf
 * of that key in advance together with the first leaves, and takes one round trip. */
TEST(a_key_that_ends_is_read_ahead_first) {
    far_stats before, after;
    open_stage(NULL, NULL);
    put_all(a, "nk nka nkb nkc nkd nke");
    a->limit = 2;
    for (unsigned i = 0; i < 2; i++) {
        far_session_stats(a->session, &before);
        assert_int_equal(stage_do(a, FAR_OP_SCAN, "nk", NULL), 2);
        far_session_stats(a->session, &after);
    }
    assert_string_equal(a->keys[0], "nk");
    assert_string_equal(a->keys[1], "nka");
    assert_int_equal(after.round_trips - before.round_trips, 1);
    stage_close(&s);
}


static int tell_problem(void *ctx, const char *what) {
    *(bool *)ctx = *(bool *)ctx || strstr(what, "slot of the root");
    return 0;
}


/* A root slot that is zero, or not bound to its byte, is damage. Gets, inserts and scans return FAR_ERR_CORRUPT, and
 * check reports it (smart_check_root_slot in node.c). */
TEST(a_zero_in_the_root_is_damage) {
    static const uint64_t damaged[] = {0, SMART_FROZEN_BIT, SMART_BOUND};
    open_stage(NULL, NULL);
    put_all(a, "naa nba");
    uint64_t *slot = memory_of(smart_root_slot(smart_state_of(a->index), 'n')), before = *slot;
    for (unsigned i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++) {
        bool told = false;
        *slot = damaged[i];
        assert_int_equal(stage_do(c, FAR_OP_GET, "naa", NULL), FAR_ERR_CORRUPT);
        assert_int_equal(stage_do(c, FAR_OP_INSERT, "nca", V1), FAR_ERR_CORRUPT);
        assert_int_equal(stage_do(c, FAR_OP_SCAN, "n", NULL), FAR_ERR_CORRUPT);
        assert_true(far_index_check(c->session, c->index, tell_problem, &told) > 0);
        assert_true(told);
    }
    *slot = before;
    assert_true(stage_reads(c, "naa", V1) && stage_reads(c, "zzz", NULL));
    stage_close(&s);
}


static int count_broken_node(void *ctx, const char *what) {
    *(unsigned *)ctx += strstr(what, "node") != NULL;
    return 0;
}


/* A damaged bit in a slot after the first unbound one makes a later insert fail, and no operation READs this slot
 * before that insert. So check READs it and reports the damage. Fails if check READs only as much as a scan does
 * (take_node in scan_nodes.c). */
TEST(a_check_covers_unused_slots) {
    open_stage(NULL, NULL);
    put_all(a, "naa nba nca nda nea nfa nga nha nia nja nka nla nma nna noa");
    uint64_t word = *memory_of(smart_root_slot(smart_state_of(a->index), 'n'));
    assert_int_equal(smart_word_kind_of(word), SMART_NODE);
    uint64_t *slot = memory_of(smart_slot_addr(smart_word_addr(word), smart_layout_slots(SMART_L256) - 1));
    unsigned told = 0;
    assert_int_equal(*slot, 0);
    *slot = 1ull << 20;
    assert_true(far_index_check(c->session, c->index, count_broken_node, &told) > 0);
    assert_int_equal(told, 1);
    *slot = 0;
    assert_int_equal(far_index_check(c->session, c->index, count_broken_node, &told), 0);
    stage_close(&s);
}
