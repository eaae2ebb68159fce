/* A full list below a node with a slot for each byte grows: of the node above only the header is READ, and what its slot
 * says is found out by the CAS. And the order of a node's words in the cache; and the root, whose words are never zero. */
#include "smart_rig.h"

#define WIDE 62 /* children: so many need a slot for each byte */


/* "n" has a slot for each byte; below "nX" (longer: "nXy") is a full list that the cache of `a` knows. */
static void full_list_below_a_wide_node(bool longer) {
    char wide[] = "n?", full[] = "nX??";
    up(NULL, NULL);
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


/* {READ header, READ list}, {freeze}, {WRITE copy, WRITE leaf, CAS}: on several memory nodes a round trip more. */
static void the_slot_above_is_not_read(void **state) {
    (void)state;
    full_list_below_a_wide_node(false);
    far_stats d = cost_of_growth();
    assert_int_equal(d.reads, 2);
    assert_int_equal(d.cas, SMALL_LIST + 2);
    assert_true(d.round_trips <= 4 && d.retries == 0 && d.cas_failed == 0);
    expect_all("n!");
}


/* Another client raised the hint in the slot: the CAS is done again with the word that it found. */
static void a_hint_that_changed_costs_a_cas(void **state) {
    (void)state;
    full_list_below_a_wide_node(false);
    assert_true(stage_reads(b, "nXmy", V1)); /* who READs too little of the list tells */
    far_stats d = cost_of_growth();
    assert_int_equal(d.reads, 2);
    assert_int_equal(d.cas, SMALL_LIST + 3);
    assert_int_equal(d.cas_failed, 1);
    assert_int_equal(d.retries, 0);
    expect_all("n!");
}


/* Another node comes between the two before the list is frozen, or after: the slot above names that one, and keeps it.
 */
static void a_node_that_came_between_stays(void **state) {
    static const char *const points[] = {"smart:freeze", "smart:frozen"};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        char full[] = "nXy?";
        full_list_below_a_wide_node(true);
        stand(a, points[i], FAR_OP_INSERT, "nXyz", V2);
        stage_write(b, "nXz", V1);
        stage_finish(a);
        assert_int_equal(a->result, 0);
        for (full[3] = 'a'; full[3] < 'a' + SMALL_LIST; full[3]++)
            assert_true(stage_reads(c, full, V1));
        assert_true(stage_reads(c, "nXyz", V2) && stage_reads(c, "nXz", V1) && stage_reads(a, "nXz", V1));
        stage_close(&s);
    }
}


/* The node above is gone, and its memory another's, as the cache of `a` does not know. */
static void a_node_above_that_is_gone_is_not_changed(void **state) {
    char wide[] = "n?";
    (void)state;
    full_list_below_a_wide_node(false);
    assert_true(stage_reads(b, "n!", V1));
    for (unsigned i = 0; i < WIDE; i++) {
        wide[1] = (char)('!' + i);
        if (wide[1] != 'X')
            stage_delete(b, wide);
    }
    stage_age(&s);
    stage_write(b, "n!", V1);
    stage_age(&s);
    far_stats d = cost_of_growth();
    assert_true(d.round_trips <= 12);
    expect_all("n!");
}


/* In the cache, as in scans, a key that ends comes before those that go on: a short scan READs it with the first ones.
 */
static void a_key_that_ends_is_foreseen_first(void **state) {
    far_stats before, after;
    (void)state;
    up(NULL, NULL);
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


/* A root that was wiped is no empty index: neither is a slot of it that says another byte. */
static void a_zero_in_the_root_is_damage(void **state) {
    static const uint64_t damaged[] = {0, SMART_F, SMART_BOUND};
    (void)state;
    up(NULL, NULL);
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


/* Nobody READs the slots behind those that a list uses, until it fills up: a stray bit there would stop an insert, so a
 * check looks at them. (Passed over when a check READs what scans do.) */
static void a_check_looks_at_slots_that_nobody_has_used(void **state) {
    (void)state;
    up(NULL, NULL);
    put_all(a, "naa nba nca nda nea nfa nga nha nia nja nka nla nma nna noa");
    uint64_t word = *memory_of(smart_root_slot(smart_state_of(a->index), 'n'));
    assert_int_equal(smart_word_is(word), SMART_NODE);
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slot_above_is_not_read),
        cmocka_unit_test(a_hint_that_changed_costs_a_cas),
        cmocka_unit_test(a_node_that_came_between_stays),
        cmocka_unit_test(a_node_above_that_is_gone_is_not_changed),
        cmocka_unit_test(a_key_that_ends_is_foreseen_first),
        cmocka_unit_test(a_zero_in_the_root_is_damage),
        cmocka_unit_test(a_check_looks_at_slots_that_nobody_has_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
