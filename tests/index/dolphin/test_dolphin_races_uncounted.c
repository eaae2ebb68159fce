/* Dolphin, named interleavings of leaves in uncounted mode (option calm_after): hot updates do not change the number of
 * writers. Each test fails if the guard that its comment names is removed. */
#include "dolphin_rig.h"
#include "test.h"


/* Lets the client finish its operation, while housekeeping advances the epochs. */
static void finish_while_epochs_advance(stage_actor *by) {
    far_sim_resume(by->client);
    for (unsigned i = 0; i < 1000 && !by->ended; i++) {
        far_sim_run_for(s.world, 10000);
        stage_poll(&s, 1);
    }
    assert_true(by->ended);
}


/* Makes a leaf with the keys na to nd and switches it to uncounted mode, by an update of B while A is inside the leaf.
 * Afterwards B's slot hint records that the leaf is in this mode. Returns the address of the leaf. */
static far_addr make_uncounted_leaf(const char *sim) {
    open_stage("value_size=8,leaf_slots=4,calm_after=1", sim);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V2), 0);
    /* the update has met no other writer, so it does not switch the mode */
    assert_false(*memory_at(leaf) & DOLPHIN_UNCOUNTED);
    run_to_point(a, "dolphin:entered", FAR_OP_UPDATE, "nb", V1);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V1), 0);
    stage_finish(a);
    assert_true((*memory_at(leaf) & DOLPHIN_UNCOUNTED) && dolphin_writer_count(*memory_at(leaf)) == 0);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V1), 0); /* this update records the mode in B's hint */
    return leaf;
}


/* In uncounted mode an update posts no atomics on the spear word, and tickets still work. Deletes and inserts work as
 * before. The leaf that replaces this one is not in uncounted mode. Fails if update_by_hint (write.c) uses FAA in this
 * mode. */
TEST_WITH(updates_in_uncounted_mode_are_not_counted, with_housekeeping, NULL) {
    for (unsigned masked = 0; masked < 2; masked++) {
        far_stats before, after;
        far_addr leaf = make_uncounted_leaf(masked ? "masked_cas=on" : "masked_cas=off");
        assert_true(stage_reads(b, "na", V1) && scans_both_ways(b, "n", "na nb nc nd"));
        far_session_stats(b->session, &before);
        assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V2), 0);
        far_session_stats(b->session, &after);
        far_stats d = far_stats_diff(&after, &before);
        assert_true(d.faa == 0 && d.cas == 0 && d.reads == 2 && d.writes == 1 && d.round_trips == 2);
        assert_int_equal(dolphin_ticket(*memory_at(leaf)), 4);
        stage_delete(a, "nb");
        assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nb", V2), FAR_ERR_NOT_FOUND);
        assert_true(stage_reads(c, "na", V2) && scans_both_ways(c, "n", "na nc nd"));
        /* This insert replaces the leaf; the new leaf counts its writers again. */
        run_to_point(a, "dolphin:drain", FAR_OP_INSERT, "ne", V1);
        finish_while_epochs_advance(a);
        assert_false(*memory_at(dolphin_entry_addr(leaf_entry("na", 1))) & DOLPHIN_UNCOUNTED);
        stage_close(&s);
    }
}


/* B updates a key of a leaf in uncounted mode: it READs the spear word (UNCOUNTED, not frozen) and stops before its
 * WRITE. A freezes the leaf and wants to copy it. A must wait until B's pin is gone, although the number of writers is
 * 0. Fails if A only waits until the number of writers is 0 (leaf_is_drained in restructure_leaf.c). */
TEST_WITH(update_in_uncounted_mode_across_a_freeze, with_housekeeping, NULL) {
    far_addr leaf = make_uncounted_leaf(NULL);
    run_to_point(b, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    assert_int_equal(dolphin_writer_count(*memory_at(leaf)), 0);
    run_to_point(a, "dolphin:drain", FAR_OP_INSERT, "ne", V1);
    far_sim_resume(a->client);
    far_sim_run_for(s.world, 10000000);
    assert_false(a->ended);
    far_sim_resume(b->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(a->result == 0 && b->result == 0 && stage_reads(c, "na", V2) && stage_reads(c, "ne", V1));
    stage_close(&s);
}


/* B updates a key of a leaf in uncounted mode that A has frozen (first case) or already replaced (second case). B's
 * update must take effect in the new leaf. Fails if update_by_hint (write.c) ignores FROZEN. */
TEST_WITH(late_update_in_uncounted_mode, with_housekeeping, NULL) {
    for (unsigned ended = 0; ended < 2; ended++) {
        far_addr leaf = make_uncounted_leaf(NULL);
        run_to_point(a, "dolphin:drain", FAR_OP_INSERT, "ne", V1);
        assert_true(*memory_at(leaf) & DOLPHIN_FROZEN);
        if (!ended)
            start_and_assert_waiting(b, FAR_OP_UPDATE, "na", V2);
        finish_while_epochs_advance(a);
        if (!ended)
            stage_finish(b);
        else
            assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V2), 0);
        assert_true(a->result == 0 && b->result == 0 && stage_reads(c, "na", V2) && stage_reads(c, "ne", V1));
        stage_close(&s);
    }
}


/* B and C are inside a leaf, A freezes it. B's update has met another writer and wants to switch the leaf to uncounted
 * mode. The bit UNCOUNTED must not be set any more, because A already waits only until the number of writers is 0, and
 * would not wait for uncounted writers. Fails if batch_switch_to_uncounted (write.c) does not check FROZEN. */
TEST_WITH(frozen_leaf_does_not_enter_uncounted_mode, with_housekeeping, NULL) {
    for (unsigned masked = 0; masked < 2; masked++) {
        open_stage("value_size=8,leaf_slots=4,calm_after=1", masked ? "masked_cas=on" : "masked_cas=off");
        put_all(a, "na nb nc nd");
        assert_true(stage_reads(b, "na", V1));
        far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
        run_to_point(c, "dolphin:entered", FAR_OP_UPDATE, "nb", V2);
        run_to_point(b, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
        run_to_point(a, "dolphin:frozen", FAR_OP_INSERT, "ne", V1);
        stage_finish(b);
        assert_false(*memory_at(leaf) & DOLPHIN_UNCOUNTED);
        stage_finish(c);
        stage_finish(a);
        assert_true(a->result == 0 && b->result == 0 && c->result == 0);
        assert_true(keys_have_value(c, "na nb", V2) && keys_have_value(b, "nc nd ne", V1));
        stage_close(&s);
    }
}
