/* Dolphin, named interleavings: hints, which remember where a key was, against changes of its slot and its leaf. What fails
 * when the guarding line is taken out is said at each test. */
#include "dolphin_rig.h"


/* A hint is as good as the slot that it names: gone, moved, changed. */
static void hints_are_verified(void **state) {
    (void)state;
    up("value_size=8,leaf_slots=4", NULL);
    put_all(a, "na nb nc nd");
    for (unsigned i = 0; i < 2; i++)
        assert_true(all_read(b, "na nb nc nd", V1));
    stage_delete(a, "na");
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V2), FAR_ERR_NOT_FOUND);
    assert_true(stage_reads(b, "na", NULL));
    stage_write(a, "ne", V2); /* the leaf is copied, slots move */
    assert_true(stage_reads(b, "nb", V1) && stage_reads(b, "nd", V1) && stage_reads(b, "ne", V2));
    assert_true(stage_reads(b, "nb", V1));
    put_all(a, "nba nbb nbc"); /* again; the old leaf has the old value, in its slot */
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "nb", V2), 0);
    assert_true(stage_reads(b, "nb", V2));
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nb", V3), 0);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nb", V2), 0);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V2), FAR_ERR_NOT_FOUND);
    assert_true(stage_reads(a, "nb", V2) && stage_reads(a, "na", NULL));
    stage_close(&s);
}


/* A hint is of one leaf: that a key lay elsewhere before costs nothing. */
static void hint_of_another_leaf_is_not_tried(void **state) {
    (void)state;
    far_stats before, after;
    up("value_size=8,leaf_slots=4", NULL);
    put_all(a, "na nb nc nd");
    assert_true(all_read(b, "na nb nc nd", V1));
    stage_delete(a, "na");
    stage_write(a, "ne", V1);              /* a new leaf: nb nc nd ne */
    assert_true(stage_reads(b, "nd", V1)); /* it knows the new leaf */
    far_session_stats(b->session, &before);
    assert_true(stage_reads(b, "nc", V1));
    far_session_stats(b->session, &after);
    assert_int_equal(far_stats_diff(&after, &before).round_trips, 1);
    stage_close(&s);
}


/* A delete comes between the READ of the key and that of its value, which is gone then. Without that look the leaf seems
 * to be broken. */
static void delete_between_the_words_of_a_hint(void **state) {
    (void)state;
    up("leaf_slots=4", NULL);
    stage_write(a, "na", LONG1);
    assert_true(stage_reads(b, "na", LONG1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0)), value = dolphin_value_at(leaf, 4, 0);
    stage_start(b, FAR_OP_GET, "na", NULL);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = value, .to = value + 8});
    stage_delete(a, "na");
    far_sim_release(hold);
    stage_finish(b);
    assert_int_equal(b->result, FAR_ERR_NOT_FOUND);
    stage_close(&s);
}


/* An update that goes by a hint waits and is waited for like any other. */
static void update_by_hint_across_freeze(void **state) {
    (void)state;
    up("value_size=8,leaf_slots=4", NULL);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1) && stage_reads(b, "na", V1));
    stand(b, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stand_at(a, "dolphin:frozen", 3, FAR_OP_INSERT, "ne", V1);
    stage_finish(b);
    stage_finish(a);
    assert_true(stage_reads(c, "na", V2) && stage_reads(b, "na", V2));
    stage_close(&s);

    up("value_size=8,leaf_slots=4", NULL);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1) && stage_reads(b, "na", V1));
    stand(a, "dolphin:frozen", FAR_OP_INSERT, "ne", V1);
    start_and_wait(b, FAR_OP_UPDATE, "na", V2);
    stage_finish(a);
    stage_finish(b);
    assert_true(b->result == 0 && stage_reads(c, "na", V2));
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hints_are_verified),
        cmocka_unit_test(hint_of_another_leaf_is_not_tried),
        cmocka_unit_test(delete_between_the_words_of_a_hint),
        cmocka_unit_test(update_by_hint_across_freeze),
    };
    int failed = cmocka_run_group_tests(tests, inserts_by_ticket, NULL);
    return failed + cmocka_run_group_tests(tests, inserts_by_cas, NULL);
}
