/* Dolphin, named interleavings of slot hints. A slot hint remembers the slot of a key, and meanwhile the slot or the
 * leaf changes. Each test fails if the guard that its comment names is removed. */
#include "dolphin_rig.h"
#include "test.h"


/* A slot hint is verified before it is used. B has hints for four keys. A deletes a key, then replaces the leaf twice,
 * so that slots move, and updates a key. B's gets and updates must return and change the current values. Fails without
 * any one of the checks in get_by_hint (find.c) or update_by_hint (write.c). */
TEST_OF_BOTH_INSERTS(hints_are_verified) {
    open_stage("value_size=8,leaf_slots=4", NULL);
    put_all(a, "na nb nc nd");
    for (unsigned i = 0; i < 2; i++)
        assert_true(keys_have_value(b, "na nb nc nd", V1));
    stage_delete(a, "na");
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V2), FAR_ERR_NOT_FOUND);
    assert_true(stage_reads(b, "na", NULL));
    stage_write(a, "ne", V2); /* the leaf is replaced by a copy with other slots */
    assert_true(stage_reads(b, "nb", V1) && stage_reads(b, "nd", V1) && stage_reads(b, "ne", V2));
    assert_true(stage_reads(b, "nb", V1));
    put_all(a, "nba nbb nbc"); /* the leaf is replaced again; the old leaf still holds the old value in the old slot */
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "nb", V2), 0);
    assert_true(stage_reads(b, "nb", V2));
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nb", V3), 0);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nb", V2), 0);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V2), FAR_ERR_NOT_FOUND);
    assert_true(stage_reads(a, "nb", V2) && stage_reads(a, "na", NULL));
    stage_close(&s);
}


/* A hint belongs to one leaf. After the leaf was replaced, a get of another key must not try its old hint, so it needs
 * one round trip. Fails if the leaf is not a part of the hint (hint_identity in cache_hints.c). */
TEST_OF_BOTH_INSERTS(hint_of_another_leaf_is_not_tried) {
    far_stats before, after;
    open_stage("value_size=8,leaf_slots=4", NULL);
    put_all(a, "na nb nc nd");
    assert_true(keys_have_value(b, "na nb nc nd", V1));
    stage_delete(a, "na");
    stage_write(a, "ne", V1);              /* This put replaces the leaf by one with nb nc nd ne. */
    assert_true(stage_reads(b, "nd", V1)); /* B has READ the new node */
    far_session_stats(b->session, &before);
    assert_true(stage_reads(b, "nc", V1));
    far_session_stats(b->session, &after);
    assert_int_equal(far_stats_diff(&after, &before).round_trips, 1);
    stage_close(&s);
}


/* B gets na by a hint: it READs the spear word and the key word. A deletes na. Then B's READ of the value word takes
 * effect and returns 0. B must return "not found". Fails without the check for 0 (get_by_hint in find.c), because the
 * leaf would seem to be damaged. */
TEST_OF_BOTH_INSERTS(delete_between_the_words_of_a_hint) {
    open_stage("leaf_slots=4", NULL);
    stage_write(a, "na", LONG1);
    assert_true(stage_reads(b, "na", LONG1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0)), value = dolphin_vword_addr(leaf, 4, 0);
    stage_start(b, FAR_OP_GET, "na", NULL);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = value, .to = value + 8});
    stage_delete(a, "na");
    far_sim_release(hold);
    stage_finish(b);
    assert_int_equal(b->result, FAR_ERR_NOT_FOUND);
    stage_close(&s);
}


/* Race A15 for an update by hint. First case: B is inside the leaf, and A waits for it before it copies the leaf.
 * Second case: A has frozen the leaf, and B waits. Fails if update_by_hint (write.c) does not enter the leaf, or
 * ignores FROZEN. */
TEST_OF_BOTH_INSERTS(update_by_hint_across_freeze) {
    open_stage("value_size=8,leaf_slots=4", NULL);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1) && stage_reads(b, "na", V1));
    run_to_point(b, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    run_to_nth_point(a, "dolphin:frozen", 3, FAR_OP_INSERT, "ne", V1);
    stage_finish(b);
    stage_finish(a);
    assert_true(stage_reads(c, "na", V2) && stage_reads(b, "na", V2));
    stage_close(&s);

    open_stage("value_size=8,leaf_slots=4", NULL);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1) && stage_reads(b, "na", V1));
    run_to_point(a, "dolphin:frozen", FAR_OP_INSERT, "ne", V1);
    start_and_assert_waiting(b, FAR_OP_UPDATE, "na", V2);
    stage_finish(a);
    stage_finish(b);
    assert_true(b->result == 0 && stage_reads(c, "na", V2));
    stage_close(&s);
}
