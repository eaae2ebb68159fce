/* Dolphin, named interleavings: slots of a leaf (T2 .. T11, T26 .. T29 of its design). Each drives a race by hand; what
 * fails when the guarding line is taken out is said at each test. */
#include "dolphin_rig.h"

#define SLOTS4 WORDS ",leaf_slots=4"


/* T2. A reserved slot is no key yet. Published at once, its value would be POISON. */
static void get_between_reserve_and_live(void **state) {
    (void)state;
    up(WORDS ",insert=cas", NULL);
    put_all(a, "na nb");
    stand(a, "dolphin:reserved", FAR_OP_INSERT, "nc", V2);
    assert_true(stage_reads(b, "nc", NULL) && stage_scans(b, "n", "na nb"));
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(b, "nc", V2));
    stage_close(&s);
}


/* T3. The values of a leaf are sampled before an insert, its keys after it: without POISON, garbage is read. */
static void value_line_before_key_line(void **state) {
    (void)state;
    up(SLOTS4, "atomic_bytes=8");
    put_all(a, "na nb");
    assert_true(stage_reads(b, "na", V1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    stage_start(b, FAR_OP_GET, "nc", NULL);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 128});
    static const uint32_t values[] = {12, 13, 14, 15};
    assert_int_equal(far_sim_release_units(hold, values, 4), 0);
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "nc", V2), 0);
    far_sim_release(hold);
    stage_finish(b);
    assert_int_equal(b->result, 0);
    assert_memory_equal(b->value, V2, 8);
    stage_close(&s);
}


/* T4. Both saw the slot empty: who loses it looks whose it is. Without that look the key is there twice. */
static void twin_insert_two_views(void **state) {
    (void)state;
    up(WORDS ",leaf_slots=8", NULL);
    put_all(a, "na nb");
    stand(a, "dolphin:entered", FAR_OP_INSERT, "nk", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "na", NULL), 0);
    stage_write(b, "nz", V1);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nk", V3), 0);
    stage_finish(a);
    assert_int_equal(a->result, FAR_ERR_EXISTS);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "nk", NULL), 0);
    assert_true(stage_reads(c, "nk", NULL));
    stage_close(&s);
}


/* T5. A slot serves one key: reused, the late WRITE would change another one. */
static void stale_update_after_delete_insert(void **state) {
    (void)state;
    up(SLOTS4, NULL);
    put_all(a, "na nb");
    stand(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stage_delete(b, "na");
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nk", V3), 0);
    stage_finish(a);
    assert_true(stage_reads(c, "nk", V3) && stage_reads(c, "na", NULL));
    stage_close(&s);
}


/* T6. ... and serves it once. */
static void same_key_reinsert_late_write(void **state) {
    (void)state;
    up(SLOTS4, NULL);
    put_all(a, "na nb");
    stand(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stage_delete(b, "na");
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "na", V3), 0);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "na", V3));
    stage_close(&s);
}


/* T7. A delete is a CAS: one of two finds the key. */
static void twin_delete(void **state) {
    (void)state;
    static const char *const options[] = {SLOTS4, "leaf_slots=4"};
    for (unsigned i = 0; i < 2; i++) {
        up(options[i], NULL);
        put_all(a, "na nb");
        stand(a, "dolphin:remove", FAR_OP_DELETE, "na", NULL);
        assert_int_equal(stage_do(b, FAR_OP_DELETE, "na", NULL), 0);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "na", V2), 0);
        stage_finish(a);
        assert_true(a->result == FAR_ERR_NOT_FOUND && stage_reads(c, "na", V2));
        stage_close(&s);
    }
}


/* T8. Values larger than a word are written aside: two updates never mix. */
static void interleaved_long_updates(void **state) {
    (void)state;
    up("leaf_slots=4", "atomic_bytes=8");
    put_all(a, "na nb");
    stand(a, "dolphin:update", FAR_OP_UPDATE, "na", LONG1);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", LONG2), 0);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "na", LONG2));
    stage_close(&s);
}


/* T9, A13. A stale cache leads to the old leaf, which is frozen: answered from there, an update would be missed. */
static void stale_get_after_split_then_update(void **state) {
    (void)state;
    up(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1) && stage_reads(b, "nd", V1));
    stage_write(a, "ne", V1);
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "na", V2), 0);
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "nd", V2), 0);
    assert_true(stage_reads(b, "na", V2) && stage_reads(b, "nd", V2));
    stage_close(&s);
}


/* The same by a scan: what the old leaf holds is given only where its node still names it. */
static void stale_scan_after_compaction(void **state) {
    (void)state;
    up(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    assert_true(stage_scans(b, "n", "na nb nc nd"));
    stage_write(a, "naa", V1);
    assert_true(stage_scans(b, "n", "na naa nb nc nd"));
    stage_close(&s);
}


/* T10, A15. Whoever replaces the leaf waits for a writer inside. Without the drain its update is lost. */
static void update_across_freeze(void **state) {
    (void)state;
    up(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    stand(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stand_at(b, "dolphin:frozen", 3, FAR_OP_INSERT, "ne", V1); /* it looks again and again */
    stage_finish(a);
    stage_finish(b);
    assert_true(a->result == 0 && b->result == 0);
    assert_true(stage_reads(c, "na", V2) && stage_reads(c, "ne", V1));
    stage_close(&s);
}


/* The writer leaves between the two READs of a freeze, of the count and of the leaf: in this order what the second one
 * shows is final when the first one shows nobody. In the other order its update is lost. */
static void update_between_the_reads_of_a_freeze(void **state) {
    (void)state;
    up(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    stand(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stand(b, "dolphin:locked", FAR_OP_INSERT, "ne", V1);
    far_sim_resume(b->client);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .nth = 2, .from = leaf, .to = leaf + 8});
    stage_finish(a);
    far_sim_release(hold);
    stage_finish(b);
    assert_true(a->result == 0 && b->result == 0);
    assert_true(stage_reads(c, "na", V2) && stage_reads(c, "ne", V1));
    stage_close(&s);
}


/* A leaf is READ as it was before it was frozen, and updated in between: nobody is inside, and yet that is not final. */
static void leaf_read_before_the_freeze(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, FIVE);
    assert_true(all_read(b, FIVE, V1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("nb", 1));
    stand(a, "dolphin:locked", FAR_OP_INSERT, "nd", V1);
    far_sim_resume(a->client);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_FAA, .from = leaf, .to = leaf + 8});
    far_sim_run_client(a->client); /* the READs behind it take effect */
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nb", V2), 0);
    far_sim_release(hold);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "nb", V2) && all_read(c, "na nc nd nx ny", V1));
    stage_close(&s);
}


/* The same with one who stays inside for so long that the pins decide. Without that wait its update is lost. */
static void update_across_a_long_freeze(void **state) {
    (void)state;
    stage_open(&s, "dolphin", SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    stand(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stand(b, "dolphin:drain", FAR_OP_INSERT, "ne", V1);
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 10000000);
    assert_false(b->ended);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(a->result == 0 && b->result == 0);
    assert_true(stage_reads(c, "na", V2) && stage_reads(c, "ne", V1));
    stage_close(&s);
}


/* Who replaces a leaf holds its lock without a pin while it waits for epochs, here for very long: its thread stands still,
 * its handle's housekeeping does not. That is no damage: the update waits. Without the end of patience when the owner is
 * found alive (far_is_dead) it is called corrupt. */
static void a_holder_without_a_pin_is_waited_for(void **state) {
    (void)state;
    stage_open(&s, "dolphin", SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    stand(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stand(b, "dolphin:drain", FAR_OP_INSERT, "ne", V1);
    stage_stop_at(b,
                  (far_sim_match){.kind = FAR_SIM_READ, .nth = 3, .from = FAR_SUPER_EPOCH, .to = FAR_SUPER_EPOCH + 8});
    stage_finish(a);
    stage_start(c, FAR_OP_UPDATE, "na", V3);
    far_sim_run_for(s.world, 200000000);
    assert_false(c->ended);
    far_sim_resume(b->client);
    far_sim_run(s.world);
    assert_int_equal(b->result, 0);
    assert_int_equal(c->result, 0);
    stage_close(&s);
}


/* T11. Who enters a frozen leaf leaves it again. Without the look at FROZEN the update is lost. */
static void late_enter_on_frozen(void **state) {
    (void)state;
    static const far_op_kind does[] = {FAR_OP_UPDATE, FAR_OP_DELETE, FAR_OP_INSERT};
    for (unsigned i = 0; i < 3; i++) {
        up(SLOTS4, NULL);
        put_all(a, "na nb nc nd");
        stage_delete(a, "nb");
        assert_true(stage_reads(b, "na", V1));
        stand(a, "dolphin:frozen", FAR_OP_INSERT, "ne", V1);
        start_and_wait(b, does[i], does[i] == FAR_OP_INSERT ? "nf" : "na", V2);
        stage_finish(a);
        stage_finish(b);
        assert_true(a->result == 0 && b->result == 0);
        assert_true(stage_reads(c, "na", i == 0 ? V2 : i == 1 ? NULL : V1));
        assert_true(stage_reads(c, "nf", i == 2 ? V2 : NULL) && stage_reads(c, "ne", V1));
        stage_close(&s);
    }
}


/* Reads do not wait for that: a frozen leaf that its node still names is answered from. */
static void gets_and_scans_pass_a_frozen_leaf(void **state) {
    (void)state;
    up(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1));
    stand(a, "dolphin:publish", FAR_OP_INSERT, "ne", V1);
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "nd", V1) && stage_reads(c, "ne", NULL));
    assert_true(stage_scans(b, "n", "na nb nc nd"));
    stage_finish(a);
    assert_true(stage_scans(b, "n", "na nb nc nd ne"));
    stage_close(&s);
}


/* T26. A slot that stays reserved is taken from its holder, who then looks again. */
static void reserved_kill_vs_publish(void **state) {
    (void)state;
    static const char *const options[] = {WORDS ",insert=cas", "insert=cas"};
    for (unsigned i = 0; i < 2; i++) {
        up(options[i], NULL);
        put_all(a, "na");
        stand(a, "dolphin:reserved", FAR_OP_INSERT, "nk", V2);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "nk", V3), 0);
        stage_finish(a);
        assert_true(a->result == FAR_ERR_EXISTS && stage_reads(c, "nk", V3));
        stage_delete(b, "nk");
        assert_true(stage_reads(c, "nk", NULL));
        stage_close(&s);
    }
}


/* The holder is through in time. */
static void reserved_publish_before_kill(void **state) {
    (void)state;
    up(WORDS ",insert=cas", NULL);
    put_all(a, "na");
    stand(a, "dolphin:reserved", FAR_OP_INSERT, "nk", V2);
    stand(b, "dolphin:kill", FAR_OP_INSERT, "nk", V3);
    stage_finish(a);
    stage_finish(b);
    assert_true(a->result == 0 && b->result == FAR_ERR_EXISTS && stage_reads(c, "nk", V2));
    stage_close(&s);
}


/* T27. A value that is POISON by chance is a value. */
static void user_value_equals_poison(void **state) {
    (void)state;
    uint64_t back = 0;
    size_t length;
    for (unsigned hints = 0; hints < 2; hints++) {
        up(hints ? "value_size=8" : WORDS, NULL);
        uint64_t poison = state_of(a)->poison;
        put_all(a, "na");
        assert_int_equal(far_put(a->session, a->index, "nk", 2, &poison, 8), 0);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(far_get(b->session, b->index, "nk", 2, &back, 8, &length), 0);
            assert_true(back == poison && length == 8);
        }
        assert_true(stage_scans(c, "n", "na nk"));
        stage_close(&s);
    }
}


/* T28. A delete and an update of one block: it is retired once, whoever comes first (the watch and the check tell). */
static void long_update_vs_delete(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        up("leaf_slots=4", NULL);
        stage_write(a, "na", LONG1);
        stage_write(a, "nb", LONG1);
        stand(a, i ? "dolphin:remove" : "dolphin:update", i ? FAR_OP_DELETE : FAR_OP_UPDATE, "na", i ? NULL : LONG2);
        assert_int_equal(stage_do(b, i ? FAR_OP_UPDATE : FAR_OP_DELETE, "na", i ? LONG2 : NULL), 0);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(c, "na", NULL) && stage_reads(c, "nb", LONG1));
        stage_age(&s);
        put_all(a, "nc nd ne nf");
        stage_close(&s);
    }
}


/* T28. The value word is sampled before the insert, the key word after it: a CAS from 0 would lose the update. */
static void long_update_on_early_zero(void **state) {
    (void)state;
    up("leaf_slots=4", "atomic_bytes=8");
    stage_write(a, "na", LONG1);
    assert_true(stage_reads(b, "na", LONG1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    stage_start(b, FAR_OP_UPDATE, "nc", LONG2);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf + 64, .to = leaf + 128});
    static const uint32_t values[] = {12, 13, 14, 15};
    assert_int_equal(far_sim_release_units(hold, values, 4), 0);
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "nc", LONG1), 0);
    far_sim_release(hold);
    stage_finish(b);
    assert_true(b->result == 0 && stage_reads(c, "nc", LONG2));
    stage_close(&s);
}


/* The value word is sampled before the insert, the key word after it, and then the key is deleted: a put inserts it. */
static void long_put_on_early_zero(void **state) {
    (void)state;
    up("leaf_slots=4", "atomic_bytes=8");
    stage_write(a, "na", LONG1);
    assert_true(stage_reads(b, "na", LONG1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    stage_start(b, FAR_OP_PUT, "nc", LONG2);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf + 64, .to = leaf + 128});
    static const uint32_t values[] = {12, 13, 14, 15};
    assert_int_equal(far_sim_release_units(hold, values, 4), 0);
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "nc", LONG1), 0);
    far_sim_release(hold);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_READ}); /* it looks again */
    stage_delete(a, "nc");
    stage_finish(b);
    assert_true(b->result == 0 && stage_reads(c, "nc", LONG2));
    stage_close(&s);
}


/* T29. Two first keys below one entry of the root. */
static void first_insert_race(void **state) {
    (void)state;
    up(WORDS, NULL);
    stage_start(a, FAR_OP_INSERT, "na", V2);
    stage_stop_at(a, (far_sim_match){.kind = FAR_SIM_CAS});
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nb", V3), 0);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "na", V2) && stage_reads(c, "nb", V3));
    stage_close(&s);
}


/* Gets that are submitted together go by the same rules: a leaf that was replaced does not speak any more. */
static void gets_together_after_split_then_update(void **state) {
    (void)state;
    static const char *const options[] = {SLOTS4, "leaf_slots=4,hints=off"};
    for (unsigned o = 0; o < 2; o++) {
        static const char *const keys[] = {"na", "nd"};
        far_op ops[2], *many[2] = {&ops[0], &ops[1]}, *done[2];
        char values[2][16];
        up(options[o], NULL);
        put_all(a, "na nb nc nd");
        assert_true(stage_reads(b, "na", V1) && stage_reads(b, "nd", V1));
        stage_write(a, "ne", V1);
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(stage_do(a, FAR_OP_UPDATE, keys[i], V2), 0);
            ops[i] = (far_op){.kind = FAR_OP_GET, .index = b->index, .key = keys[i], .key_len = 2};
            ops[i].value = values[i];
            ops[i].capacity = sizeof(values[i]);
        }
        assert_int_equal(far_submit(b->session, many, 2), 2);
        for (int ended = 0; ended < 2;)
            ended += far_reap(b->session, done, 2, 1);
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(ops[i].result, 0);
            assert_memory_equal(values[i], V2, 8);
        }
        stage_close(&s);
    }
}


/* Whoever writes leaves the leaf when that is done: were he counted out before, the leaf could be copied in between. */
static void leaving_comes_last(void **state) {
    (void)state;
    static const struct {
        const char *options, *key, *value;
        far_op_kind does;
        far_sim_kind verb;
        bool of_value; /* what changes the slot */
        unsigned slot;
    } cases[] = {{SLOTS4, "na", V2, FAR_OP_UPDATE, FAR_SIM_WRITE, true, 0},
                 {"value_size=8,leaf_slots=4", "na", V2, FAR_OP_UPDATE, FAR_SIM_WRITE, true, 0}, /* by a hint */
                 {"leaf_slots=4,hints=off", "na", LONG2, FAR_OP_UPDATE, FAR_SIM_CAS, true, 0},
                 {SLOTS4, "na", NULL, FAR_OP_DELETE, FAR_SIM_CAS, false, 0},
                 {SLOTS4, "nc", V2, FAR_OP_INSERT, FAR_SIM_CAS, false, 2},
                 {"leaf_slots=4", "nc", LONG2, FAR_OP_INSERT, FAR_SIM_CAS, false, 2}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        up(cases[i].options, NULL);
        put_all(a, "na nb");
        assert_true(stage_reads(b, "na", V1) && stage_reads(b, "na", V1));
        far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
        far_addr at =
            cases[i].of_value ? dolphin_value_at(leaf, 4, cases[i].slot) : dolphin_key_at(leaf, cases[i].slot);
        bool twice = insert_by[0] == 'c' && cases[i].does == FAR_OP_INSERT; /* the first one reserves the slot */
        stage_start(b, cases[i].does, cases[i].key, cases[i].value);
        far_sim_hold *hold =
            stage_hold(b, (far_sim_match){.kind = cases[i].verb, .from = at, .to = at + 8, .nth = twice ? 2 : 1});
        for (unsigned n = 0; n < 20; n++)
            far_sim_run_client(b->client);
        assert_true(!b->ended && dolphin_count(*memory_of(leaf)) == 1);
        far_sim_release(hold);
        stage_finish(b);
        assert_true(b->result == 0 && stage_reads(c, cases[i].key, cases[i].value));
        assert_int_equal(dolphin_count(*memory_of(leaf)), 0);
        stage_close(&s);
    }
}


/* Who waits for a change of a leaf looks at its node, and stays out of the leaf: else those who wait keep the count of
 * writers above zero, and the change waiting. */
static void who_waits_stays_outside(void **state) {
    (void)state;
    up(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "na", V1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    stand(a, "dolphin:frozen", FAR_OP_INSERT, "ne", V1);
    far_stats before, after;
    far_session_stats(b->session, &before);
    start_and_wait(b, FAR_OP_UPDATE, "na", V2);
    start_and_wait(c, FAR_OP_DELETE, "nb", NULL);
    assert_int_equal(dolphin_count(*memory_of(leaf)), 0);
    stage_finish(a);
    stage_finish(b);
    stage_finish(c);
    far_session_stats(b->session, &after);
    far_stats d = far_stats_diff(&after, &before);
    assert_true(d.faa == 4 && d.round_trips > 6); /* in and out of the old leaf and of the new one; many looks */
    assert_true(a->result == 0 && b->result == 0 && c->result == 0 && stage_reads(a, "na", V2));
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest both_ways[] = {
        cmocka_unit_test(a_holder_without_a_pin_is_waited_for),
        cmocka_unit_test(value_line_before_key_line),
        cmocka_unit_test(twin_insert_two_views),
        cmocka_unit_test(stale_update_after_delete_insert),
        cmocka_unit_test(same_key_reinsert_late_write),
        cmocka_unit_test(twin_delete),
        cmocka_unit_test(interleaved_long_updates),
        cmocka_unit_test(stale_get_after_split_then_update),
        cmocka_unit_test(stale_scan_after_compaction),
        cmocka_unit_test(update_across_freeze),
        cmocka_unit_test(update_between_the_reads_of_a_freeze),
        cmocka_unit_test(leaf_read_before_the_freeze),
        cmocka_unit_test(update_across_a_long_freeze),
        cmocka_unit_test(late_enter_on_frozen),
        cmocka_unit_test(gets_together_after_split_then_update),
        cmocka_unit_test(gets_and_scans_pass_a_frozen_leaf),
        cmocka_unit_test(user_value_equals_poison),
        cmocka_unit_test(long_update_vs_delete),
        cmocka_unit_test(long_update_on_early_zero),
        cmocka_unit_test(long_put_on_early_zero),
        cmocka_unit_test(first_insert_race),
        cmocka_unit_test(leaving_comes_last),
        cmocka_unit_test(who_waits_stays_outside),
    };
    const struct CMUnitTest by_cas[] = {
        cmocka_unit_test(get_between_reserve_and_live),
        cmocka_unit_test(reserved_kill_vs_publish),
        cmocka_unit_test(reserved_publish_before_kill),
    };
    const struct CMUnitTest of_blocks[] = {
        cmocka_unit_test(interleaved_long_updates),
        cmocka_unit_test(long_update_vs_delete),
        cmocka_unit_test(long_put_on_early_zero),
    };
    int failed = cmocka_run_group_tests(both_ways, inserts_by_ticket, NULL);
    failed += cmocka_run_group_tests(both_ways, inserts_by_cas, NULL);
    failed += cmocka_run_group_tests(by_cas, NULL, NULL);
    return failed + cmocka_run_group_tests(of_blocks, beside_housekeeping, NULL);
}
