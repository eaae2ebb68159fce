/* Dolphin, named interleavings: calm leaves, whose updates are not counted (`calm_after`). What fails when the guarding line
 * is taken out is said at each test. */
#include "dolphin_rig.h"


/* It goes on to its end, while the pins of all get newer. */
static void finish_beside_epochs(stage_actor *by) {
    far_sim_resume(by->client);
    for (unsigned i = 0; i < 1000 && !by->ended; i++) {
        far_sim_run_for(s.world, 10000);
        stage_poll(&s, 1);
    }
    assert_true(by->ended);
}


/* na .. nd in one leaf, which is CALM: an update has met another one in it. b knows that. */
static far_addr calm_leaf(const char *sim) {
    up("value_size=8,leaf_slots=4,calm_after=1", sim);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V2), 0);
    assert_false(*memory_of(leaf) & DOLPHIN_CALM); /* nobody was there */
    stand(a, "dolphin:entered", FAR_OP_UPDATE, "nb", V1);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V1), 0);
    stage_finish(a);
    assert_true((*memory_of(leaf) & DOLPHIN_CALM) && dolphin_count(*memory_of(leaf)) == 0);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V1), 0); /* it learns of it */
    return leaf;
}


/* calm_after: no atomics at the word that all would change; tickets go on as they are. */
static void updates_of_a_calm_leaf_are_not_counted(void **state) {
    (void)state;
    for (unsigned masked = 0; masked < 2; masked++) {
        far_stats before, after;
        far_addr leaf = calm_leaf(masked ? "masked_cas=on" : "masked_cas=off");
        assert_true(stage_reads(b, "na", V1) && stage_scans(b, "n", "na nb nc nd"));
        far_session_stats(b->session, &before);
        assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V2), 0);
        far_session_stats(b->session, &after);
        far_stats d = far_stats_diff(&after, &before);
        assert_true(d.faa == 0 && d.cas == 0 && d.reads == 2 && d.writes == 1 && d.round_trips == 2);
        assert_int_equal(dolphin_ticket(*memory_of(leaf)), 4);
        stage_delete(a, "nb");
        assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nb", V2), FAR_ERR_NOT_FOUND);
        assert_true(stage_reads(c, "na", V2) && stage_scans(c, "n", "na nc nd"));
        stand(a, "dolphin:drain", FAR_OP_INSERT, "ne", V1); /* what takes its place is not calm */
        finish_beside_epochs(a);
        assert_false(*memory_of(dolphin_entry_addr(leaf_entry("na", 1))) & DOLPHIN_CALM);
        stage_close(&s);
    }
}


/* Whoever replaces a calm leaf waits until all pins are newer: who writes holds one. By the count alone his update would
 * be lost. */
static void update_of_a_calm_leaf_across_a_freeze(void **state) {
    (void)state;
    far_addr leaf = calm_leaf(NULL);
    stand(b, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    assert_int_equal(dolphin_count(*memory_of(leaf)), 0);
    stand(a, "dolphin:drain", FAR_OP_INSERT, "ne", V1);
    far_sim_resume(a->client);
    far_sim_run_for(s.world, 10000000);
    assert_false(a->ended);
    far_sim_resume(b->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(a->result == 0 && b->result == 0 && stage_reads(c, "na", V2) && stage_reads(c, "ne", V1));
    stage_close(&s);
}


/* Who comes to a calm leaf that is frozen goes to the one that takes its place, and so does who is not told of that. */
static void late_update_of_a_calm_leaf(void **state) {
    (void)state;
    for (unsigned ended = 0; ended < 2; ended++) {
        far_addr leaf = calm_leaf(NULL);
        stand(a, "dolphin:drain", FAR_OP_INSERT, "ne", V1);
        assert_true(*memory_of(leaf) & DOLPHIN_FROZEN);
        if (!ended)
            start_and_wait(b, FAR_OP_UPDATE, "na", V2);
        finish_beside_epochs(a);
        if (!ended)
            stage_finish(b);
        else
            assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", V2), 0);
        assert_true(a->result == 0 && b->result == 0 && stage_reads(c, "na", V2) && stage_reads(c, "ne", V1));
        stage_close(&s);
    }
}


/* A leaf that is frozen does not become calm any more: whoever froze it has seen that it was not. */
static void frozen_leaf_does_not_become_calm(void **state) {
    (void)state;
    for (unsigned masked = 0; masked < 2; masked++) {
        up("value_size=8,leaf_slots=4,calm_after=1", masked ? "masked_cas=on" : "masked_cas=off");
        put_all(a, "na nb nc nd");
        assert_true(stage_reads(b, "na", V1));
        far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
        stand(c, "dolphin:entered", FAR_OP_UPDATE, "nb", V2);
        stand(b, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
        stand(a, "dolphin:frozen", FAR_OP_INSERT, "ne", V1);
        stage_finish(b);
        assert_false(*memory_of(leaf) & DOLPHIN_CALM);
        stage_finish(c);
        stage_finish(a);
        assert_true(a->result == 0 && b->result == 0 && c->result == 0);
        assert_true(all_read(c, "na nb", V2) && all_read(b, "nc nd ne", V1));
        stage_close(&s);
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_of_a_calm_leaf_are_not_counted),
        cmocka_unit_test(update_of_a_calm_leaf_across_a_freeze),
        cmocka_unit_test(late_update_of_a_calm_leaf),
        cmocka_unit_test(frozen_leaf_does_not_become_calm),
    };
    return cmocka_run_group_tests(tests, beside_housekeeping, NULL); /* they wait for epochs */
}
