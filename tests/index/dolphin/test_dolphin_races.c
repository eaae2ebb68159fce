/* Dolphin, named interleavings in the slots of one leaf (T2 to T11, T26 to T29). The numbers A1 to A35 refer to
 * docs/races/dolphin.md. Each test drives one interleaving and fails if the guard that its comment names is removed. */
#include "dolphin_rig.h"
#include "test.h"

#define SLOTS4 WORDS ",leaf_slots=4"


/* Test T2, race A4. A reserves a slot for nc and stops. B gets and scans; nc must be absent. Then A finishes, and nc is
 * visible with its value. Fails if insert_by_cas (write.c) made the key LIVE at once, because its value would be
 * POISON. */
TEST_WITH(get_between_reserve_and_live, inserts_by_cas, NULL) {
    open_stage(WORDS ",insert=cas", NULL);
    put_all(a, "na nb");
    run_to_point(a, "dolphin:reserved", FAR_OP_INSERT, "nc", V2);
    assert_true(stage_reads(b, "nc", NULL) && scans_both_ways(b, "n", "na nb"));
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(b, "nc", V2));
    stage_close(&s);
}


/* Race A4, with tickets. A inserts nc, and its WRITE of the value is late. B gets and scans; nc must be absent. Then the
 * WRITE takes effect, and nc is visible with its value. Fails if publish_slot (write_ticket.c) makes the key LIVE before
 * the value is written, because B would find POISON. */
TEST_WITH(get_between_value_and_live, inserts_by_ticket, NULL) {
    open_stage(SLOTS4, NULL);
    put_all(a, "na nb");
    far_addr value = dolphin_vword_addr(dolphin_entry_addr(leaf_entry("na", 0)), 4, 2);
    stage_start(a, FAR_OP_INSERT, "nc", V2);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = value, .to = value + 8});
    assert_true(stage_reads(b, "nc", NULL) && scans_both_ways(b, "n", "na nb"));
    far_sim_release(hold);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(b, "nc", V2));
    stage_close(&s);
}


/* Race A24. Proves that an insert, an update and a delete return after their last batch, which leaves the leaf. Fails if
 * update_raw_value (write.c), publish_slot (write_ticket.c) or remove_slot (remove.c) does not wait for this batch. */
TEST_OF_BOTH_INSERTS(a_write_returns_after_its_last_verb) {
    static const far_op_kind kinds[] = {FAR_OP_INSERT, FAR_OP_UPDATE, FAR_OP_DELETE};
    open_stage(SLOTS4, NULL);
    put_all(a, "na nb");
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    for (unsigned i = 0; i < 3; i++) {
        stage_start(a, kinds[i], "nc", V2);
        far_sim_hold *hold =
            stage_hold(a, (far_sim_match){.kind = FAR_SIM_FAA, .nth = 2, .from = leaf, .to = leaf + 8});
        far_sim_run_for(s.world, 100000);
        assert_false(a->ended);
        far_sim_release(hold);
        stage_finish(a);
        assert_int_equal(a->result, 0);
    }
    stage_close(&s);
}


/* Test T3, race A5. B's READ of the leaf copies the value words. A inserts nc. Then B's READ copies the key words. B
 * must return A's value. Fails without the second READ of a POISON value (reread_value in find.c). */
TEST_OF_BOTH_INSERTS(value_line_before_key_line) {
    open_stage(SLOTS4, "atomic_bytes=8");
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


/* Test T4, race A6. A enters the leaf to insert nk, and stops. B deletes na, and inserts nz and nk. A continues with
 * its older image of the leaf. Its insert must find B's key and return EXISTS. Fails if A passes a slot that it has
 * lost without comparing the keys (pass_occupied_slot in write.c, find_pending_below in write_ticket.c). */
TEST_OF_BOTH_INSERTS(twin_insert_two_views) {
    open_stage(WORDS ",leaf_slots=8", NULL);
    put_all(a, "na nb");
    run_to_point(a, "dolphin:entered", FAR_OP_INSERT, "nk", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "na", NULL), 0);
    stage_write(b, "nz", V1);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nk", V3), 0);
    stage_finish(a);
    assert_int_equal(a->result, FAR_ERR_EXISTS);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "nk", NULL), 0);
    assert_true(stage_reads(c, "nk", NULL));
    stage_close(&s);
}


/* Test T5, race A7. A enters the leaf to update na, and stops. B deletes na and inserts nk. Then A writes its value. nk
 * must keep its value. Fails if nk gets the DEAD slot of na before the leaf is copied. */
TEST_OF_BOTH_INSERTS(stale_update_after_delete_insert) {
    open_stage(SLOTS4, NULL);
    put_all(a, "na nb");
    run_to_point(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stage_delete(b, "na");
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nk", V3), 0);
    stage_finish(a);
    assert_true(stage_reads(c, "nk", V3) && stage_reads(c, "na", NULL));
    stage_close(&s);
}


/* Test T6, race A8. A enters the leaf to update na, and stops. B deletes na and inserts it again. Then A writes its
 * value. The value of B's insert must remain. Fails if B's insert gets the slot that na had before. */
TEST_OF_BOTH_INSERTS(same_key_reinsert_late_write) {
    open_stage(SLOTS4, NULL);
    put_all(a, "na nb");
    run_to_point(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stage_delete(b, "na");
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "na", V3), 0);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "na", V3));
    stage_close(&s);
}


/* Test T7, race A9. A finds na and stops before its delete. B deletes na and inserts it again. A's delete must return
 * "not found". Fails if remove_slot (remove.c) does not change the state by CAS. */
TEST_OF_BOTH_INSERTS(twin_delete) {
    static const char *const options[] = {SLOTS4, "leaf_slots=4"};
    for (unsigned i = 0; i < 2; i++) {
        open_stage(options[i], NULL);
        put_all(a, "na nb");
        run_to_point(a, "dolphin:remove", FAR_OP_DELETE, "na", NULL);
        assert_int_equal(stage_do(b, FAR_OP_DELETE, "na", NULL), 0);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "na", V2), 0);
        stage_finish(a);
        assert_true(a->result == FAR_ERR_NOT_FOUND && stage_reads(c, "na", V2));
        stage_close(&s);
    }
}


/* Race A37. A and B enter a leaf with two keys, and both stop before they delete one of them, so each of them has seen
 * both keys. Whichever of them deletes last must remove the empty leaf. Fails if the client does not READ the key words
 * again after its CAS (count_remaining in remove.c). */
TEST_OF_BOTH_INSERTS(twin_deletes_of_the_last_keys) {
    static const char *const options[] = {SLOTS4, "leaf_slots=4", WORDS, "leaf_slots=64"};
    for (unsigned i = 0; i < 8; i++) {
        stage_actor *first = i & 1 ? b : a, *last = i & 1 ? a : b;
        open_stage(options[i / 2], NULL);
        put_all(a, "na nb");
        run_to_point(a, "dolphin:remove", FAR_OP_DELETE, "na", NULL);
        run_to_point(b, "dolphin:remove", FAR_OP_DELETE, "nb", NULL);
        stage_finish(first);
        stage_finish(last);
        assert_true(a->result == 0 && b->result == 0);
        dolphin_node root = node_at("n", 0);
        int at = dolphin_find_entry(&root, dolphin_position((far_bytes){"n", 1}, 0));
        assert_true(at >= 0 && dolphin_entry_kind(root.entries[at]) == DOLPHIN_KIND_NULL);
        stage_close(&s);
    }
}


/* Race A37. The leaves na .. nh and ni .. np of 16 slots have 4 keys and 1 key. A and B both stop before they delete a
 * key of the first leaf. Afterwards two keys remain, an eighth of the slots, so the leaves must be merged. The second
 * time C also deletes a key, between B's CAS and the READ by which B counts the remaining keys, so no client sees two
 * keys. Fails if the clients do not count again after their CASes, or if merge_after_delete (remove.c) considers a leaf
 * only when exactly an eighth of its slots is occupied. */
TEST_OF_BOTH_INSERTS(twin_deletes_make_a_leaf_small) {
    for (unsigned three = 0; three < 2; three++) {
        open_stage(WORDS ",leaf_slots=16", NULL);
        for (char key[] = "na"; key[1] <= 'q'; key[1]++)
            stage_write(a, key, V1);
        assert_true(leaf_entry("na", 1) != leaf_entry("nq", 1));
        for (char key[] = "nq"; key[1] > 'd'; key[1]--)
            if (key[1] != 'p')
                stage_delete(a, key);
        assert_true(leaf_entry("na", 1) != leaf_entry("np", 1));
        run_to_point(a, "dolphin:remove", FAR_OP_DELETE, "na", NULL);
        run_to_point(b, "dolphin:remove", FAR_OP_DELETE, "nb", NULL);
        if (three)
            run_to_point(c, "dolphin:remove", FAR_OP_DELETE, "nc", NULL);
        stage_finish(a);
        if (three) {
            stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_READ});
            stage_finish(c);
        }
        stage_finish(b);
        assert_true(keys_have_value(c, "nd np", V1) && stage_reads(c, "nc", three ? NULL : V1));
        dolphin_node root = node_at("n", 0);
        int at = dolphin_find_entry(&root, dolphin_position((far_bytes){"n", 1}, 0));
        assert_true(at >= 0 && dolphin_entry_kind(root.entries[at]) == DOLPHIN_KIND_LEAF);
        stage_close(&s);
    }
}


/* Test T8, race A11. A and B update na with values longer than a word. A stops before its CAS, and B's update is
 * complete. Readers must see one of the two values as a whole. Fails if long values are written in place
 * (update_value_word in write.c). */
TEST_OF_BOTH_INSERTS(interleaved_long_updates) {
    open_stage("leaf_slots=4", "atomic_bytes=8");
    put_all(a, "na nb");
    run_to_point(a, "dolphin:update", FAR_OP_UPDATE, "na", LONG1);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "na", LONG2), 0);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "na", LONG2));
    stage_close(&s);
}


/* Test T9, race A13. B has cached the node of a leaf. A splits the leaf and updates two keys in the new leaves. B's
 * gets start at the old leaf and must return the new values. Fails if a get accepts a frozen leaf without checking that
 * the node still names it (dolphin_classify_leaf in find.c). */
TEST_OF_BOTH_INSERTS(stale_get_after_split_then_update) {
    open_stage(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1) && stage_reads(b, "nd", V1));
    stage_write(a, "ne", V1);
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "na", V2), 0);
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "nd", V2), 0);
    assert_true(stage_reads(b, "na", V2) && stage_reads(b, "nd", V2));
    stage_close(&s);
}


/* Race A13 for a scan. B has cached the node of a leaf. A replaces the leaf and adds a key. B's scan must contain the
 * new key. Fails if a scan accepts a frozen leaf that its node does not name any more (read_and_emit_leaves in scan.c).
 */
TEST_OF_BOTH_INSERTS(stale_scan_after_compaction) {
    open_stage(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    assert_true(scans_both_ways(b, "n", "na nb nc nd"));
    stage_write(a, "naa", V1);
    assert_true(scans_both_ways(b, "n", "na naa nb nc nd"));
    stage_close(&s);
}


/* Test T10, race A15. A enters the leaf to update na, and stops. B freezes the leaf to split it, and polls the number
 * of writers. A writes and leaves. Then B copies the leaf. A's value must survive. Fails if B does not wait until the
 * number of writers is 0 (dolphin_freeze_and_drain in restructure_leaf.c). */
TEST_OF_BOTH_INSERTS(update_across_freeze) {
    open_stage(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    run_to_point(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    run_to_nth_point(b, "dolphin:frozen", 3, FAR_OP_INSERT, "ne", V1); /* B has polled the leaf several times */
    stage_finish(a);
    stage_finish(b);
    assert_true(a->result == 0 && b->result == 0);
    assert_true(stage_reads(c, "na", V2) && stage_reads(c, "ne", V1));
    stage_close(&s);
}


/* Race A15. A is inside the leaf. B freezes it, and posts the READ of the spear word and the READ of the leaf. A leaves
 * between the two. If the first READ shows no writer, the second one must contain A's value. Fails if the two READs are
 * posted in the other order (dolphin_freeze_and_drain). */
TEST_OF_BOTH_INSERTS(update_between_the_reads_of_a_freeze) {
    open_stage(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    run_to_point(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    run_to_point(b, "dolphin:locked", FAR_OP_INSERT, "ne", V1);
    far_sim_resume(b->client);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .nth = 2, .from = leaf, .to = leaf + 8});
    stage_finish(a);
    far_sim_release(hold);
    stage_finish(b);
    assert_true(a->result == 0 && b->result == 0);
    assert_true(stage_reads(c, "na", V2) && stage_reads(c, "ne", V1));
    stage_close(&s);
}


/* Race A15. A's READs of the leaf take effect before its FAA that freezes the leaf. B updates nb in between. A's READ
 * of the spear word shows no writer, but the content that A has READ is not final, because the leaf was not frozen yet.
 * B's value must survive. Fails if the FROZEN bit of the READ spear word is not checked (leaf_is_drained in
 * restructure_leaf.c). */
TEST_OF_BOTH_INSERTS(leaf_read_before_the_freeze) {
    open_stage(SLOTS2, NULL);
    put_all(a, FIVE);
    assert_true(keys_have_value(b, FIVE, V1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("nb", 1));
    run_to_point(a, "dolphin:locked", FAR_OP_INSERT, "nd", V1);
    far_sim_resume(a->client);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_FAA, .from = leaf, .to = leaf + 8});
    far_sim_run_client(a->client); /* the READs that were posted after the FAA take effect */
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nb", V2), 0);
    far_sim_release(hold);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "nb", V2) && keys_have_value(c, "na nc nd nx ny", V1));
    stage_close(&s);
}


/* Race A15. B wants to replace the leaf. A stays inside the leaf for so long that B stops polling the number of writers
 * and waits for epochs instead. A's value must survive. Fails if B does not wait for epochs (drain_by_epochs in
 * restructure_leaf.c). */
TEST_OF_BOTH_INSERTS(update_across_a_long_freeze) {
    stage_open(&s, "dolphin", SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    run_to_point(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    run_to_point(b, "dolphin:drain", FAR_OP_INSERT, "ne", V1);
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 10000000);
    assert_false(b->ended);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(a->result == 0 && b->result == 0);
    assert_true(stage_reads(c, "na", V2) && stage_reads(c, "ne", V1));
    stage_close(&s);
}


/* Race A16. B replaces a leaf and waits for epochs. During this wait B holds the lock of the node, but no pin. B's
 * thread is then stopped for a very long time, while the housekeeping of its handle runs, so B is still alive. C wants
 * to update a key of the leaf. C must wait, and not report damage. Fails if the progress detector is not reset when the
 * owner of a lock is found alive (far_client_confirm_failed). */
TEST_OF_BOTH_INSERTS(a_holder_without_a_pin_is_waited_for) {
    stage_open(&s, "dolphin", SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    run_to_point(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    run_to_point(b, "dolphin:drain", FAR_OP_INSERT, "ne", V1);
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


/* Test T11, race A15. A freezes the leaf and stops. B enters the leaf to update, delete or insert; it must leave again
 * and wait. Then its operation takes effect in the new leaf. Fails if FROZEN is ignored (dolphin_enter_leaf in
 * write.c). */
TEST_OF_BOTH_INSERTS(late_enter_on_frozen) {
    static const far_op_kind does[] = {FAR_OP_UPDATE, FAR_OP_DELETE, FAR_OP_INSERT};
    for (unsigned i = 0; i < 3; i++) {
        open_stage(SLOTS4, NULL);
        put_all(a, "na nb nc nd");
        stage_delete(a, "nb");
        assert_true(stage_reads(b, "na", V1));
        run_to_point(a, "dolphin:frozen", FAR_OP_INSERT, "ne", V1);
        start_and_assert_waiting(b, does[i], does[i] == FAR_OP_INSERT ? "nf" : "na", V2);
        stage_finish(a);
        stage_finish(b);
        assert_true(a->result == 0 && b->result == 0);
        assert_true(stage_reads(c, "na", i == 0 ? V2 : i == 1 ? NULL : V1));
        assert_true(stage_reads(c, "nf", i == 2 ? V2 : NULL) && stage_reads(c, "ne", V1));
        stage_close(&s);
    }
}


/* Race A13. A has frozen the leaf and stops before it publishes. B and C get and scan; they must return the old content
 * without waiting, because the node still names the leaf. Fails if gets wait for structure changes (dolphin_get in
 * find.c). */
TEST_OF_BOTH_INSERTS(gets_and_scans_pass_a_frozen_leaf) {
    open_stage(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1));
    run_to_point(a, "dolphin:publish", FAR_OP_INSERT, "ne", V1);
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "nd", V1) && stage_reads(c, "ne", NULL));
    assert_true(scans_both_ways(b, "n", "na nb nc nd"));
    stage_finish(a);
    assert_true(scans_both_ways(b, "n", "na nb nc nd ne"));
    stage_close(&s);
}


/* Test T26, race A6. A reserves a slot for nk and stops. B inserts nk. B waits for A's slot for some time, then marks
 * it as DEAD, and succeeds. A must find that its slot was lost, and then that nk exists. Fails if A ignores its failed
 * CAS (insert_by_cas in write.c). */
TEST_WITH(reserved_kill_vs_publish, inserts_by_cas, NULL) {
    static const char *const options[] = {WORDS ",insert=cas", "insert=cas"};
    for (unsigned i = 0; i < 2; i++) {
        open_stage(options[i], NULL);
        put_all(a, "na");
        run_to_point(a, "dolphin:reserved", FAR_OP_INSERT, "nk", V2);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "nk", V3), 0);
        stage_finish(a);
        assert_true(a->result == FAR_ERR_EXISTS && stage_reads(c, "nk", V3));
        stage_delete(b, "nk");
        assert_true(stage_reads(c, "nk", NULL));
        stage_close(&s);
    }
}


/* Test T26, race A6. A reserves a slot for nk and stops. B is about to mark this slot as DEAD, because it has waited
 * long enough. Before that, A makes its key LIVE. B's insert must find the key. Fails if B ignores the new state of the
 * slot (kill_reservation in write.c). */
TEST_WITH(reserved_publish_before_kill, inserts_by_cas, NULL) {
    open_stage(WORDS ",insert=cas", NULL);
    put_all(a, "na");
    run_to_point(a, "dolphin:reserved", FAR_OP_INSERT, "nk", V2);
    run_to_point(b, "dolphin:set_slot_dead", FAR_OP_INSERT, "nk", V3);
    stage_finish(a);
    stage_finish(b);
    assert_true(a->result == 0 && b->result == FAR_ERR_EXISTS && stage_reads(c, "nk", V2));
    stage_close(&s);
}


/* Test T27, race A5. A user value that equals POISON is returned as a value, by gets, slot hints and scans. Fails if
 * POISON counts as "absent" (return_raw_value in find.c). */
TEST_OF_BOTH_INSERTS(user_value_equals_poison) {
    uint64_t back = 0;
    size_t length;
    for (unsigned hints = 0; hints < 2; hints++) {
        open_stage(hints ? "value_size=8" : WORDS, NULL);
        uint64_t poison = state_of(a)->poison;
        put_all(a, "na");
        assert_int_equal(far_put(a->session, a->index, "nk", 2, &poison, 8), 0);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(far_get(b->session, b->index, "nk", 2, &back, 8, &length), 0);
            assert_true(back == poison && length == 8);
        }
        assert_true(scans_both_ways(c, "n", "na nk"));
        stage_close(&s);
    }
}


/* Test T28, race A12. An update and a delete of one long value interleave, in both orders. The value block must be
 * retired exactly once. The memory checker and the final check find a block that is retired twice or leaked. Guards:
 * remove_slot (remove.c) and update_value_word (write.c). */
TEST_OF_BOTH_INSERTS(long_update_vs_delete) {
    for (unsigned i = 0; i < 2; i++) {
        open_stage("leaf_slots=4", NULL);
        stage_write(a, "na", LONG1);
        stage_write(a, "nb", LONG1);
        run_to_point(a, i ? "dolphin:remove" : "dolphin:update", i ? FAR_OP_DELETE : FAR_OP_UPDATE, "na",
                     i ? NULL : LONG2);
        assert_int_equal(stage_do(b, i ? FAR_OP_UPDATE : FAR_OP_DELETE, "na", i ? LONG2 : NULL), 0);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(c, "na", NULL) && stage_reads(c, "nb", LONG1));
        stage_free_retired(&s);
        put_all(a, "nc nd ne nf");
        stage_close(&s);
    }
}


/* Test T28, race A12. B enters the leaf to update nc, and its READ copies the value words. A inserts nc. Then B's READ
 * copies the key words, so B sees a LIVE key with the value word 0. B's update must take effect. Fails if B's CAS
 * expects this 0 (read_current_value_word in write.c). */
TEST_OF_BOTH_INSERTS(long_update_on_early_zero) {
    open_stage("leaf_slots=4", "atomic_bytes=8");
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


/* Test T28, race A12. B enters the leaf to put nc, and its READ copies the value words. A inserts nc. Then B's READ
 * copies the key words, so B sees a LIVE key with the value word 0. A deletes nc before B READs the value word again.
 * B's put must insert the key. Fails if the put returns "not found" (write_in_leaf in write.c). */
TEST_OF_BOTH_INSERTS(long_put_on_early_zero) {
    open_stage("leaf_slots=4", "atomic_bytes=8");
    stage_write(a, "na", LONG1);
    assert_true(stage_reads(b, "na", LONG1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    stage_start(b, FAR_OP_PUT, "nc", LONG2);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf + 64, .to = leaf + 128});
    static const uint32_t values[] = {12, 13, 14, 15};
    assert_int_equal(far_sim_release_units(hold, values, 4), 0);
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "nc", LONG1), 0);
    far_sim_release(hold);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_READ}); /* B READs the value word again */
    stage_delete(a, "nc");
    stage_finish(b);
    assert_true(b->result == 0 && stage_reads(c, "nc", LONG2));
    stage_close(&s);
}


/* Test T29, race A31. A and B insert the first two keys below one entry of the root. Both keys must be present. Guard:
 * node_still_names in restructure.c, under the lock of the root entry. */
TEST_OF_BOTH_INSERTS(first_insert_race) {
    open_stage(WORDS, NULL);
    stage_start(a, FAR_OP_INSERT, "na", V2);
    stage_stop_at(a, (far_sim_match){.kind = FAR_SIM_CAS});
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nb", V3), 0);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "na", V2) && stage_reads(c, "nb", V3));
    stage_close(&s);
}


/* Race A13 for gets that are submitted together. B has cached the node of a leaf. A splits the leaf and updates keys.
 * B's gets must return the new values. Fails if find_in_known_leaf (find.c) accepts a frozen leaf. */
TEST_OF_BOTH_INSERTS(gets_together_after_split_then_update) {
    static const char *const options[] = {SLOTS4, "leaf_slots=4,hints=off"};
    for (unsigned o = 0; o < 2; o++) {
        static const char *const keys[] = {"na", "nd"};
        far_op ops[2], *many[2] = {&ops[0], &ops[1]}, *done[2];
        char values[2][16];
        open_stage(options[o], NULL);
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


/* Race A15. The verb by which a writer leaves the leaf takes effect after the verb that changes the slot. B's change of
 * the slot is held back, so B must still be counted as a writer. Fails if the order of the two verbs is reversed
 * (dolphin_batch_leave in write.c), because the leaf could be copied in between. */
TEST_OF_BOTH_INSERTS(writer_leaves_last) {
    static const struct {
        const char *options, *key, *value;
        far_op_kind does;
        far_sim_kind verb;
        bool of_value; /* true: the held verb changes the value word; false: the key word */
        unsigned slot;
    } cases[] = {{SLOTS4, "na", V2, FAR_OP_UPDATE, FAR_SIM_WRITE, true, 0},
                 /* an update by slot hint */
                 {"value_size=8,leaf_slots=4", "na", V2, FAR_OP_UPDATE, FAR_SIM_WRITE, true, 0},
                 {"leaf_slots=4,hints=off", "na", LONG2, FAR_OP_UPDATE, FAR_SIM_CAS, true, 0},
                 {SLOTS4, "na", NULL, FAR_OP_DELETE, FAR_SIM_CAS, false, 0},
                 {SLOTS4, "nc", V2, FAR_OP_INSERT, FAR_SIM_CAS, false, 2},
                 {"leaf_slots=4", "nc", LONG2, FAR_OP_INSERT, FAR_SIM_CAS, false, 2}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        open_stage(cases[i].options, NULL);
        put_all(a, "na nb");
        assert_true(stage_reads(b, "na", V1) && stage_reads(b, "na", V1));
        far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
        far_addr at =
            cases[i].of_value ? dolphin_vword_addr(leaf, 4, cases[i].slot) : dolphin_kword_addr(leaf, cases[i].slot);
        /* with insert=cas, the first CAS of the key word reserves the slot and the second one makes it LIVE */
        bool twice = insert_by[0] == 'c' && cases[i].does == FAR_OP_INSERT;
        stage_start(b, cases[i].does, cases[i].key, cases[i].value);
        far_sim_hold *hold =
            stage_hold(b, (far_sim_match){.kind = cases[i].verb, .from = at, .to = at + 8, .nth = twice ? 2 : 1});
        for (unsigned n = 0; n < 20; n++)
            far_sim_run_client(b->client);
        assert_true(!b->ended && dolphin_writer_count(*memory_at(leaf)) == 1);
        far_sim_release(hold);
        stage_finish(b);
        assert_true(b->result == 0 && stage_reads(c, cases[i].key, cases[i].value));
        assert_int_equal(dolphin_writer_count(*memory_at(leaf)), 0);
        stage_close(&s);
    }
}


/* Race A22. A has frozen a leaf. B and C want to write to it. They must poll its node and its spear word without
 * entering the leaf, so the number of writers is 0. Fails if wait_until_replaced (lock.c) enters the leaf, because A
 * would wait for ever. */
TEST_OF_BOTH_INSERTS(waiting_writers_stay_outside) {
    open_stage(SLOTS4, NULL);
    put_all(a, "na nb nc nd");
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "na", V1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    run_to_point(a, "dolphin:frozen", FAR_OP_INSERT, "ne", V1);
    far_stats before, after;
    far_session_stats(b->session, &before);
    start_and_assert_waiting(b, FAR_OP_UPDATE, "na", V2);
    start_and_assert_waiting(c, FAR_OP_DELETE, "nb", NULL);
    assert_int_equal(dolphin_writer_count(*memory_at(leaf)), 0);
    stage_finish(a);
    stage_finish(b);
    stage_finish(c);
    far_session_stats(b->session, &after);
    far_stats d = far_stats_diff(&after, &before);
    /* one FAA to enter and one to leave, in the old leaf and in the new one; the other round trips are polls */
    assert_true(d.faa == 4 && d.round_trips > 6);
    assert_true(a->result == 0 && b->result == 0 && c->result == 0 && stage_reads(a, "na", V2));
    stage_close(&s);
}


TEST_CASE_WITH_HOUSEKEEPING(interleaved_long_updates);
TEST_CASE_WITH_HOUSEKEEPING(long_update_vs_delete);
TEST_CASE_WITH_HOUSEKEEPING(long_put_on_early_zero);
