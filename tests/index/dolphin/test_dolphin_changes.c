/* Dolphin, named interleavings of structure changes with gets, writes, scans and other structure changes (tests T15 to
 * T22 and T24). The numbers A1 to A35 refer to docs/races/dolphin.md. Each test fails if the guard that its comment
 * names is removed. */
#include "dolphin_rig.h"
#include "pool/epoch/epoch.h"
#include "task/session.h"
#include "test.h"


/* Test T15, race A21. B has cached a node and a leaf. A replaces the node by a larger copy. C replaces the leaf below
 * the copy and updates nb. B gets nb: it finds the leaf in its cache frozen, and READs the old node to check this leaf.
 * The old node still names the leaf. B must return the new value. Fails if dolphin_install_copy (restructure_node.c)
 * freezes the old node after it has changed the entry above. */
TEST_OF_BOTH_INSERTS(get_through_grown_parent) {
    open_stage(SLOTS1, NULL);
    put_all(a, MANY);
    assert_true(stage_reads(b, "nb", V1) && stage_reads(b, "nv", V1));
    run_to_point(a, "dolphin:copy_linked", FAR_OP_INSERT, "nc", V1);
    assert_int_equal(stage_do(c, FAR_OP_PUT, "nba", V2), 0); /* This put replaces the leaf that contains nb. */
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "nb", V2), 0);
    assert_true(stage_reads(b, "nb", V2));
    stage_finish(a);
    assert_true(keys_have_value(b, "nd nf nh nj nl nn np nr nt nv nx nc", V1));
    stage_close(&s);
}


/* Race A21, observed in far memory. A replaces a node, and A's CAS of the parent's entry is held back. The old node
 * must be frozen already. The test covers a node and a parent on the same memory node, and on different ones. Fails if
 * dolphin_install_copy (restructure_node.c) freezes the old node later, or does not wait for the verb that freezes it.
 */
TEST_OF_BOTH_INSERTS(parent_is_frozen_before_the_switch) {
    unsigned apart = 0, together = 0;
    for (char first = 'b'; first <= 'q' && !(apart && together); first++) {
        char key[3] = {first, 'a', 0};
        open_stage(SLOTS1, "memory_nodes=2");
        for (char next = 'b'; next <= 'x'; next += 2) {
            key[1] = next;
            stage_write(a, key, V1);
        }
        dolphin_node root = node_at(key, 0), old = node_at(key, 1);
        far_addr entry = dolphin_entry_word_addr(&root, (uint8_t)first + 1u);
        key[1] = 'c';
        stage_start(a, FAR_OP_INSERT, key, V2);
        far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = entry, .to = entry + 8});
        assert_true(old.image[0] & DOLPHIN_FROZEN);
        assert_true(dolphin_entries_match(*memory_at(entry), old.word));
        bool near = far_addr_node(dolphin_entry_addr(old.word)) == far_addr_node(entry);
        apart += !near;
        together += near;
        key[1] = 'b';
        assert_true(stage_reads(b, key, V1));
        far_sim_release(hold);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(b, key, V1));
        key[1] = 'c';
        assert_true(stage_reads(b, key, V2));
        stage_close(&s);
    }
    assert_true(apart && together);
}


/* Race A19. The memory of a replaced node may only be reused as a node, whichever client has replaced it. In this test
 * leaves are as large as nodes. Fails if the old node is retired as a leaf (dolphin_install_copy in
 * restructure_node.c): old pointers to the node would lead to a leaf, or the memory would be leaked. */
TEST_OF_BOTH_INSERTS(memory_of_a_node_is_never_a_leaf) {
    stage_actor *const who[] = {a, b};
    for (unsigned i = 0; i < 2; i++) {
        char key[4] = "n0";
        stage_open(&s, "dolphin", WORDS ",leaf_slots=4", NULL);
        put_all(a, "na nb nc nd ne");
        dolphin_node old = node_at("na", 1);
        assert_int_equal(dolphin_class_bytes(old.class), state_of(a)->leaf_bytes);
        for (unsigned n = 0; n < 75; n++, key[1]++)
            stage_write(who[i], key, V1);
        assert_int_not_equal(node_at("na", 1).word, old.word);
        stage_free_retired(&s);
        for (unsigned n = 0; n < 100; n++) {
            snprintf(key, sizeof(key), "%c%c%c", 'o' + n % 8, 'a' + n / 8 % 4, 'a' + n / 32);
            stage_write(who[i], key, V1);
        }
        assert_int_equal(old.image[1] >> 40, DOLPHIN_NODE_MAGIC);
        far_pool_usage usage;
        assert_int_equal(far_pool_check(a->session, 0, fail_at_problem, NULL), 0);
        assert_int_equal(far_pool_stat(a->session, &usage), 0);
        assert_int_equal(usage.leaked, 0);
        stage_close(&s);
    }
}


/* Race A23. A's CAS of an entry of the node is held back. Until it takes effect, the node must stay locked by A. Fails
 * if the node is unlocked by a WRITE (dolphin_batch_unlock in lock.c), which could take effect before the CAS. */
TEST_OF_BOTH_INSERTS(unlock_comes_after_the_entries) {
    open_stage(SLOTS2, NULL);
    put_all(a, FIVE);
    dolphin_node node = node_at("na", 1);
    int at = dolphin_find_entry(&node, dolphin_position((far_bytes){"nb", 2}, 1));
    far_addr place = dolphin_entry_word_addr(&node, (unsigned)at);
    far_sim_hold *hold;
    stage_start(a, FAR_OP_INSERT, "nd", V2);
    stage_stop_at(a, (far_sim_match){.point = "dolphin:publish"});
    far_sim_resume(a->client);
    run_while_held(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, &hold);
    assert_int_equal(far_owner_client(dolphin_lock_owner(node.image[0])), a->session->id);
    far_sim_release(hold);
    stage_finish(a);
    assert_int_equal(dolphin_lock_owner(node.image[0]), 0);
    assert_true(stage_reads(b, "nd", V2) && keys_have_value(b, FIVE, V1));
    stage_close(&s);
}


/* Race A21. A has frozen the old node and stops before it changes the parent's entry. Gets, scans and updates of B and
 * C must still work through the old node. Fails if dolphin_validate_node (node.c) rejects a frozen node that is known
 * to be linked. */
TEST_OF_BOTH_INSERTS(reads_through_a_frozen_node) {
    open_stage(SLOTS1, NULL);
    put_all(a, MANY);
    assert_true(stage_reads(b, "nb", V1));
    run_to_point(a, "dolphin:link_copy", FAR_OP_INSERT, "nc", V1);
    assert_true(keys_have_value(b, MANY, V1) && keys_have_value(c, MANY, V1));
    assert_true(stage_reads(c, "nc", NULL) && scans_both_ways(b, "n", MANY));
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "nb", V2), 0);
    stage_finish(a);
    assert_true(stage_reads(b, "nb", V2) && stage_reads(b, "nc", V1));
    stage_close(&s);
}


/* Runs an operation of B whose READ of the node is torn: it copies the node's free entries, then A puts more keys, and
 * then it copies the other entries. B's cache is empty. */
static void run_with_torn_node(far_op_kind does, const char *key, const char *meanwhile) {
    dolphin_node node = node_at("na", 1);
    uint32_t first_free = 0, units = dolphin_class_bytes(node.class) / 8, late[512], early[512], n = 0, m = 0;
    while (node.entries[first_free])
        first_free++;
    far_addr at = node_addr("na");
    stage_start(b, does, key, NULL);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = at, .to = at + 8});
    for (uint32_t i = 0; i < units; i++)
        if (i >= (uint32_t)(node.entries - node.image) + first_free)
            early[n++] = i;
        else
            late[m++] = i;
    assert_int_equal(far_sim_release_units(hold, early, n), 0);
    put_all(a, meanwhile);
    assert_int_equal(far_sim_release_units(hold, late, m), 0);
    stage_finish(b);
}


static void get_with_torn_node(const char *key, const char *meanwhile) {
    run_with_torn_node(FAR_OP_GET, key, meanwhile);
    assert_int_equal(b->result, 0);
    assert_memory_equal(b->value, V1, 8);
}


/* Test T16, race A26. A splits a leaf. B's READ of the node shows the new entry of the lower half, but not yet that of
 * the upper half. So it leads B to a leaf that does not own nc. B must find nc. Fails if B does not check the interval
 * of the leaf (dolphin_leaf_covers in find.c). */
TEST_OF_BOTH_INSERTS(torn_node_during_split) {
    open_stage(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nb nc");         /* The node then has two leaves, with the keys na; nb nc. */
    get_with_torn_node("nc", "nd"); /* The put of nd splits the second leaf into leaves with nb; nc nd. */
    stage_close(&s);
}


/* Test T17, race A28. B's READ of a node shows a NULL entry for a smaller interval than before, but not the new entries
 * that follow it. So the interval seems to contain nna. But the NULL entry also stores the last position of its
 * interval, which is before nna, so B must READ the node again. Fails without dolphin_entry_may_cover (layout.h). */
TEST_OF_BOTH_INSERTS(torn_null_during_deepen) {
    open_stage(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nm nna"); /* The leaves then contain na; nm nna. */
    stage_delete(a, "nm");
    get_with_torn_node("nna", "nnb"); /* the put of nnb makes a node for "nn", with NULL intervals on both sides */
    stage_close(&s);
}


/* Race A28 for a scan. A torn READ of a node returns old and new entries, so a NULL interval may seem longer than it
 * is. The NULL entry stores the last position of its interval. A scan must skip no further than that position, and then
 * READ the node again. Fails without dolphin_entry_may_cover in skip_nulls (scan.c). */
TEST_OF_BOTH_INSERTS(scan_passes_a_torn_null) {
    open_stage(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nm nna");
    stage_delete(a, "nm");
    run_with_torn_node(FAR_OP_SCAN, "nm", "nnb");
    assert_int_equal(b->result, 2);
    assert_true(strcmp(b->keys[0], "nna") == 0 && strcmp(b->keys[1], "nnb") == 0);
    stage_close(&s);
}


/* Test T18, races A17 and A26. A has locked the node to split a leaf. B wants to split another leaf below the same
 * node. B must wait for the lock, and both splits must take effect. The guard is dolphin_lock_for_change in
 * restructure.c. */
TEST_OF_BOTH_INSERTS(two_splits_same_parent) {
    open_stage(SLOTS2, NULL);
    put_all(a, FIVE);
    assert_true(keys_have_value(b, FIVE, V1));
    run_to_point(a, "dolphin:publish", FAR_OP_INSERT, "nd", V2);
    start_and_assert_waiting(b, FAR_OP_INSERT, "nz", V2);
    stage_finish(a);
    stage_finish(b);
    assert_true(a->result == 0 && b->result == 0);
    assert_true(keys_have_value(c, "nd nz", V2) && keys_have_value(c, FIVE, V1));
    stage_close(&s);
}


/* Test T19, race A27. A replaces a node by a larger copy. B wants to add an entry to the old node at three moments of
 * this change. B must not get the lock of the old node, and its key must be in the copy. Fails if dolphin_install_copy
 * (restructure_node.c) unlocks the old node. */
TEST_OF_BOTH_INSERTS(grow_vs_split) {
    static const char *const points[] = {"dolphin:freeze_node", "dolphin:link_copy", "dolphin:copy_linked"};
    for (unsigned i = 0; i < 3; i++) {
        open_stage(SLOTS1, NULL);
        put_all(a, MANY);
        assert_true(keys_have_value(b, MANY, V1));
        stage_start(b, FAR_OP_INSERT, "nu", V2);
        stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS}); /* B stops before it locks the node */
        run_to_point(a, points[i], FAR_OP_INSERT, "nc", V2);
        far_sim_resume(b->client);
        far_sim_run_for(s.world, 100000); /* B does not get the lock */
        assert_false(b->ended && i < 2);
        stage_finish(a);
        stage_finish(b);
        assert_true(a->result == 0 && b->result == 0 && keys_have_value(c, "nc nu", V2) &&
                    keys_have_value(c, MANY, V1));
        stage_close(&s);
    }
}


/* Test T20, race A25. A's insert needs a new node above an existing node. Before A locks, B splits leaves below the
 * existing node, and also inserts a node above it. All keys must be present. The guard is node_still_names in
 * restructure.c. */
TEST_OF_BOTH_INSERTS(path_split_vs_leaf_split) {
    open_stage(SLOTS2, NULL);
    put_all(a, "nxaaa nxaab nxaac");
    stage_start(a, FAR_OP_INSERT, "nxb", V2);
    stage_stop_at(a, (far_sim_match){.kind = FAR_SIM_CAS});
    put_all(b, "nxaad nxaae");
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxc", V2), 0); /* this insert splits the path before A does */
    stage_finish(a);
    assert_true(a->result == 0 && keys_have_value(c, "nxb nxc", V2) &&
                keys_have_value(c, "nxaaa nxaab nxaac nxaad nxaae", V1));
    stage_close(&s);
}


/* Tests T21 and T22, race A29. B's scan has READ some leaves and stops. A splits or merges leaves. Each key that is
 * present all the time must appear exactly once. Fails if the cursor of the scan does not follow the intervals of the
 * leaves (emit_leaf in scan.c). */
TEST_OF_BOTH_INSERTS(scan_vs_changes) {
    for (unsigned nth = 1; nth <= 2; nth++)
        for (unsigned merges = 0; merges < 2; merges++) {
            open_stage(WORDS ",leaf_slots=4,scan_batch=2", NULL);
            put_all(a, "na nb nc nd ne nf ng nh ni nj");
            run_to_nth_point(b, "dolphin:scan_read", nth, FAR_OP_SCAN, "n", NULL);
            if (merges) {
                stage_delete(a, "nb");
                stage_delete(a, "nc");
                stage_delete(a, "nf");
                stage_delete(a, "ng");
                stage_delete(a, "nh");
            } else
                put_all(a, "naa nab nac nea neb nec ned");
            stage_finish(b);
            static const char *const stay[] = {"na", "nd", "ne", "ni", "nj"};
            for (unsigned i = 0; i < 5; i++) {
                unsigned times = 0;
                for (unsigned k = 0; k < b->pairs; k++)
                    times += strcmp(b->keys[k], stay[i]) == 0;
                assert_int_equal(times, 1);
            }
            stage_close(&s);
        }
}


/* Test T24, race A23. B's READs of the node take effect before its CAS that locks the node. A adds an entry in between.
 * B's READ of the lock word shows that B was not the owner at the time of the READs, so B must READ the node again.
 * Fails without this check (finish_lock in lock.c), because B would overwrite A's entry. */
TEST_OF_BOTH_INSERTS(node_read_before_the_lock) {
    open_stage(SLOTS2, NULL);
    put_all(a, FIVE);
    far_addr at = node_addr("na");
    assert_true(keys_have_value(b, FIVE, V1));
    stage_start(b, FAR_OP_INSERT, "nd", V2);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = at, .to = at + 8});
    far_sim_run_client(b->client);
    put_all(a, "nz");
    far_sim_release(hold);
    stage_finish(b);
    assert_true(b->result == 0 && keys_have_value(c, FIVE " nz", V1) && stage_reads(c, "nd", V2));
    stage_close(&s);
}


/* Race A30. A chooses two leaves for a merge, without a lock, and stops. B puts a key: into the NULL interval between
 * them, into one of them, or elsewhere. B's key must survive. Fails without the checks under the lock (merge_locked in
 * restructure_merge.c). */
TEST_OF_BOTH_INSERTS(merge_vs_fill) {
    static const char *const meanwhile[] = {"nd", "nc", "na", "nha", "nz"};
    for (unsigned i = 0; i < 5; i++) {
        open_stage(WORDS ",leaf_slots=4", NULL);
        put_all(a, "na nb nc nd ne nf ng nh"); /* the leaves are: na nb; nc nd; ne nf ng nh */
        for (const char *key = "efgc"; *key; key++)
            stage_delete(a, (char[]){'n', *key, 0});
        run_to_point(a, "dolphin:merge_found", FAR_OP_DELETE, "nd", NULL);
        stage_write(b, meanwhile[i], V2);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(c, meanwhile[i], V2) && stage_reads(b, meanwhile[i], V2));
        assert_true(keys_have_value(c, "nb nh", V1) && stage_reads(c, "na", i == 2 ? V2 : V1));
        stage_close(&s);
    }
}


/* Race A30. A chooses two leaves for a merge and stops. B puts so many keys into them that they do not fit into one
 * leaf. A must give up and thaw both leaves. Fails without the second count in merge_locked (restructure_merge.c). */
TEST_OF_BOTH_INSERTS(merge_vs_many_inserts) {
    open_stage(WORDS ",leaf_slots=4", NULL);
    put_all(a, "na nb nc nd ne nf ng nh"); /* the leaves are: na nb; nc nd; ne nf ng nh */
    for (const char *key = "efgc"; *key; key++)
        stage_delete(a, (char[]){'n', *key, 0});
    put_all(a, "nha"); /* the last leaf is replaced by a copy without DEAD slots */
    stage_delete(a, "nha");
    run_to_point(a, "dolphin:merge_found", FAR_OP_DELETE, "nd", NULL);
    uint64_t low = leaf_entry("na", 1), high = leaf_entry("nh", 1);
    put_all(b, "naa nab nhb nhc");
    assert_true(leaf_entry("na", 1) == low && leaf_entry("nh", 1) == high);
    stage_finish(a);
    assert_true(a->result == 0 && keys_have_value(c, "na naa nab nb nh nhb nhc", V1));
    put_all(c, "nac nhd"); /* these puts would wait for ever if the leaves were still frozen */
    stage_close(&s);
}


/* Race A30. Only one leaf is left below a node. A merge may put the leaf in the place of the node only if the keys can
 * be stored at the depth of the parent. Here the suffixes of the keys from that depth on are too long for key words.
 * All keys must survive. Fails without items_fit_at_depth (restructure_merge.c). */
TEST_OF_BOTH_INSERTS(merged_leaf_stays_below_its_node) {
    char key[] = "nx-a-long-prefix-?";
    open_stage(WORDS ",leaf_slots=4", NULL);
    /* The leaves then contain a b; c d; e f g h, after the common prefix. */
    for (const char *last = "abcdefgh"; *last; last++) {
        key[sizeof(key) - 2] = *last;
        stage_write(a, key, V1);
    }
    for (const char *last = "efgcd"; *last; last++) {
        key[sizeof(key) - 2] = *last;
        stage_delete(a, key);
    }
    assert_int_equal(leaf_entry("nx-a-long-prefix-a", 1), leaf_entry("nx-a-long-prefix-h", 1));
    assert_true(keys_have_value(c, "nx-a-long-prefix-a nx-a-long-prefix-b nx-a-long-prefix-h", V1));
    stage_close(&s);
}


/* Race A26, with coverage=lastbyte. A's key needs a node of its own, for which A must add two entries to the node
 * above. B adds an entry before A has the lock. Case i = 0: B takes one of the last two free entries; the test fails if
 * A does not count the free entries again under the lock, because A would write beyond the end of the node. Case i = 1:
 * B takes a part of the same NULL interval; the test fails if node_still_names (restructure.c) does not compare the
 * bounds of NULL entries. */
TEST_OF_BOTH_INSERTS(fill_vs_fill) {
    for (unsigned i = 0; i < 2; i++) {
        open_stage(WORDS ",coverage=lastbyte", NULL);
        put_all(a, "na1 nc1 ne1");
        if (i == 0)
            put_all(a, "ng1 ni1");
        dolphin_node node = node_at("na1", 1);
        if (i == 0)
            assert_int_equal(dolphin_count_free_entries(&node), 2);
        stage_start(a, FAR_OP_INSERT, "nz1", V1);
        stage_stop_at(a, (far_sim_match){.kind = FAR_SIM_CAS});
        put_all(b, i == 0 ? "nA1" : "nx1");
        stage_finish(a);
        assert_true(a->result == 0 && keys_have_value(c, "na1 nc1 ne1 nz1", V1));
        assert_true(stage_reads(c, i == 0 ? "nA1" : "nx1", V1));
        stage_close(&s);
    }
}


/* Race A30. B writes into a leaf that A merges. Case i = 0: B is inside the leaf, and A must wait for B. Case i = 1: A
 * has frozen the leaf, and B must wait. B's value must survive. The guards are dolphin_freeze_and_drain
 * (restructure_leaf.c) and dolphin_enter_leaf (write.c). */
TEST_OF_BOTH_INSERTS(merge_vs_write) {
    for (unsigned i = 0; i < 2; i++) {
        open_stage(WORDS ",leaf_slots=4", NULL);
        put_all(a, "na nb nc nd ne nf ng nh");
        for (const char *key = "efgc"; *key; key++)
            stage_delete(a, (char[]){'n', *key, 0});
        assert_true(keys_have_value(b, "na nh", V1));
        if (i == 0) {
            run_to_point(b, "dolphin:entered", FAR_OP_UPDATE, "nh", V2);
            run_to_nth_point(a, "dolphin:frozen", 4, FAR_OP_DELETE, "nd", NULL);
        } else {
            run_to_point(a, "dolphin:freeze_node", FAR_OP_DELETE, "nd", NULL);
            start_and_assert_waiting(b, FAR_OP_UPDATE, "nh", V2);
        }
        stage_finish(i ? a : b);
        stage_finish(i ? b : a);
        assert_true(a->result == 0 && b->result == 0);
        assert_true(stage_reads(c, "nh", V2) && keys_have_value(c, "na nb", V1) && stage_reads(c, "nd", NULL));
        stage_close(&s);
    }
}


/* B stays inside a leaf that A has frozen, so A waits for epochs. This wait fails because the epoch word is damaged. A
 * must thaw the frozen leaves again, if it was merging leaves (then A's delete still succeeds), and if it was replacing
 * a full leaf (then A's insert returns FAR_ERR_CORRUPT). Fails without thaw_leaves (restructure_merge.c) or
 * thaw_and_end (restructure_leaf.c), because no client could write to the leaves any more. */
TEST_OF_BOTH_INSERTS(leaf_that_cannot_be_drained) {
    for (unsigned merge = 0; merge < 2; merge++) {
        open_stage(WORDS ",leaf_slots=4", NULL);
        put_all(a, "na nb nc nd ne nf ng nh"); /* the leaves are: na nb; nc nd; ne nf ng nh */
        for (const char *key = merge ? "efgc" : ""; *key; key++)
            stage_delete(a, (char[]){'n', *key, 0});
        stage_free_retired(&s);
        uint64_t *epoch = memory_at(FAR_SUPER_EPOCH), was, *leaf = memory_at(dolphin_entry_addr(leaf_entry("nh", 1)));
        run_to_point(b, "dolphin:entered", FAR_OP_UPDATE, "nh", V2);
        run_to_point(a, "dolphin:drain", merge ? FAR_OP_DELETE : FAR_OP_INSERT, merge ? "nd" : "ni", V1);
        assert_true(*leaf & DOLPHIN_FROZEN);
        was = *epoch;
        *epoch = 0;
        stage_finish(a);
        *epoch = was;
        assert_int_equal(a->result, merge ? 0 : FAR_ERR_CORRUPT);
        assert_false(*leaf & DOLPHIN_FROZEN);
        assert_false(*memory_at(dolphin_entry_addr(leaf_entry("na", 1))) & DOLPHIN_FROZEN);
        stage_finish(b);
        assert_true(b->result == 0 && stage_reads(c, "nh", V2) && keys_have_value(c, "na nb", V1));
        stage_write(c, "nh", V3);
        stage_close(&s);
    }
}


/* A's put finds the leaf full, and builds a key block. B inserts the same key before A has drained the leaf. A then
 * finds the key, and only replaces its value. A must free its key block. Fails without dolphin_free_key in
 * replace_locked (restructure_leaf.c), because the block would be leaked. */
TEST_WITH(key_that_came_meanwhile_has_its_block, with_housekeeping, NULL) {
    static const char key[] = "n-and-a-rest-of-more-than-7-bytes";
    open_stage("hints=off,leaf_slots=2", NULL);
    put_all(a, "na");
    assert_true(stage_reads(a, "na", V1) && stage_reads(b, "na", V1));
    run_to_point(b, "dolphin:ticket_drawn", FAR_OP_INSERT, key, V2);
    run_to_nth_point(a, "dolphin:frozen", 2, FAR_OP_PUT, key, V3);
    stage_finish(b);
    stage_finish(a);
    assert_true(a->result == 0 && b->result == 0 && stage_reads(c, key, V3) && stage_reads(c, "na", V1));
    stage_close(&s);
}


/* A leaf is deepened: its keys are moved to leaves below a new node of greater depth, where the rest of each key fits
 * into its key word. So the keys need no key blocks any more. The key blocks of the old keys must be retired, and that
 * of the new key freed. Fails without key_block_is_reused (restructure_leaf.c), because the blocks would be leaked. */
TEST_WITH(short_rests_need_no_block, with_housekeeping, NULL) {
    open_stage("leaf_slots=2", NULL);
    put_all(a, "nx-a-long-prefix-1 nx-a-long-prefix-2 nx-a-long-prefix-3");
    uint64_t leaf = leaf_entry("nx-a-long-prefix-3", 1);
    assert_false(dolphin_kword_is_block(*memory_at(dolphin_kword_addr(dolphin_entry_addr(leaf), 0))));
    put_all(b, "nx-b-long-prefix-1 nx-b-long-prefix-2 nx-b-long-prefix-3");
    stage_delete(b, "nx-b-long-prefix-2");
    put_all(b, "nx-b-long-prefix-4 nx-b-long-prefix-and-more");
    stage_close(&s);
}


TEST_CASE_WITH_HOUSEKEEPING(merge_vs_write);
