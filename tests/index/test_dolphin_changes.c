/* Dolphin, named interleavings: changes of the structure against readers, writers, scans and each other (T15
 * .. T22, T24 of its design). What fails when the guarding line is taken out is said at each
 * test. */
#include "dolphin_rig.h"
#include "pool/epoch.h"
#include "task/session.h"


/* T15, A21. A node is replaced by a larger one; the reader knows the old one, and the old leaf below it, which is
 * replaced by way of the new node. Were the old node frozen only after the entry above it was changed, the reader would
 * find it as it was, naming the old leaf, and answer from that. */
static void get_through_grown_parent(void **state) {
    (void)state;
    up(SLOTS1, NULL);
    put_all(a, MANY);
    assert_true(stage_reads(b, "nb", V1) && stage_reads(b, "nv", V1));
    stand(a, "dolphin:switched", FAR_OP_INSERT, "nc", V1);
    assert_int_equal(stage_do(c, FAR_OP_PUT, "nba", V2), 0); /* the leaf of nb is replaced */
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "nb", V2), 0);
    assert_true(stage_reads(b, "nb", V2));
    stage_finish(a);
    assert_true(all_read(b, "nd nf nh nj nl nn np nr nt nv nx nc", V1));
    stage_close(&s);
}


/* The same, directly: when the entry above is about to change, the old node is frozen already, in memory, on whatever
 * memory nodes the two lie. Were it frozen only after the switch, whoever READs it in between would believe it. */
static void parent_is_frozen_before_the_switch(void **state) {
    (void)state;
    unsigned apart = 0, together = 0;
    for (char first = 'b'; first <= 'q' && !(apart && together); first++) {
        char key[3] = {first, 'a', 0};
        up(SLOTS1, "memory_nodes=2");
        for (char next = 'b'; next <= 'x'; next += 2) {
            key[1] = next;
            stage_write(a, key, V1);
        }
        dolphin_node root = node_at(key, 0), old = node_at(key, 1);
        far_addr entry = dolphin_entry_place(&root, (uint8_t)first + 1u);
        key[1] = 'c';
        stage_start(a, FAR_OP_INSERT, key, V2);
        far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = entry, .to = entry + 8});
        assert_true(old.image[0] & DOLPHIN_FROZEN);
        assert_true(dolphin_entry_same(*memory_of(entry), old.word));
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


/* The memory of a node that was replaced is a node again, or nothing, whoever replaced it: here leaves are as large as
 * nodes. Retired as a leaf it would be one soon, under old pointers to the node; or, where it comes back to its owner,
 * be lost. */
static void memory_of_a_node_is_never_a_leaf(void **state) {
    (void)state;
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
        stage_age(&s);
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


/* The unlock is an atomic, like the changes of entries before it: it does not overtake them, as a WRITE would. */
static void unlock_comes_after_the_entries(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, FIVE);
    dolphin_node node = node_at("na", 1);
    int at = dolphin_lookup(&node, dolphin_position((far_bytes){"nb", 2}, 1));
    far_addr place = dolphin_entry_place(&node, (unsigned)at);
    far_sim_hold *hold;
    stage_start(a, FAR_OP_INSERT, "nd", V2);
    stage_stop_at(a, (far_sim_match){.point = "dolphin:publish"});
    far_sim_resume(a->client);
    run_without(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, &hold);
    assert_int_equal(far_owner_client(dolphin_lock_owner(node.image[0])), a->session->id);
    far_sim_release(hold);
    stage_finish(a);
    assert_int_equal(dolphin_lock_owner(node.image[0]), 0);
    assert_true(stage_reads(b, "nd", V2) && all_read(b, FIVE, V1));
    stage_close(&s);
}


/* ... and before the switch the old node, frozen, still counts. */
static void reads_through_a_frozen_node(void **state) {
    (void)state;
    up(SLOTS1, NULL);
    put_all(a, MANY);
    assert_true(stage_reads(b, "nb", V1));
    stand(a, "dolphin:switch", FAR_OP_INSERT, "nc", V1);
    assert_true(all_read(b, MANY, V1) && all_read(c, MANY, V1));
    assert_true(stage_reads(c, "nc", NULL) && stage_scans(b, "n", MANY));
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "nb", V2), 0);
    stage_finish(a);
    assert_true(stage_reads(b, "nb", V2) && stage_reads(b, "nc", V1));
    stage_close(&s);
}


/* b looks for the key, by a READ of the node that shows its free entries as they were, and the others as they are when a
 * has put another key in. Its cache is empty. */
static void look_by_a_torn_node(far_op_kind does, const char *key, const char *meanwhile) {
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


static void get_by_a_torn_node(const char *key, const char *meanwhile) {
    look_by_a_torn_node(FAR_OP_GET, key, meanwhile);
    assert_int_equal(b->result, 0);
    assert_memory_equal(b->value, V1, 8);
}


/* T16. A READ of a node shows the lower half of a split, and not yet the upper one: the leaf says for which keys it is.
 * Without that look a key that is there is not found. */
static void torn_node_during_split(void **state) {
    (void)state;
    up(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nb nc");         /* a node with two leaves: na; nb nc */
    get_by_a_torn_node("nc", "nd"); /* nb; nc nd */
    stage_close(&s);
}


/* T17. The same with a NULL that became smaller: it says itself where it ends. */
static void torn_null_during_deepen(void **state) {
    (void)state;
    up(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nm nna"); /* na; nm nna */
    stage_delete(a, "nm");
    get_by_a_torn_node("nna", "nnb"); /* all go on with n: a node there, NULL before and behind it */
    stage_close(&s);
}


/* ... to a scan, which passes what is empty, as well: it goes as far as that NULL says, and looks again. Else it would not
 * come to an end. */
static void scan_passes_a_torn_null(void **state) {
    (void)state;
    up(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nm nna");
    stage_delete(a, "nm");
    look_by_a_torn_node(FAR_OP_SCAN, "nm", "nnb");
    assert_int_equal(b->result, 2);
    assert_true(strcmp(b->keys[0], "nna") == 0 && strcmp(b->keys[1], "nnb") == 0);
    stage_close(&s);
}


/* T18. Two changes below one node: the second waits for the lock. */
static void two_splits_same_parent(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, FIVE);
    assert_true(all_read(b, FIVE, V1));
    stand(a, "dolphin:publish", FAR_OP_INSERT, "nd", V2);
    start_and_wait(b, FAR_OP_INSERT, "nz", V2);
    stage_finish(a);
    stage_finish(b);
    assert_true(a->result == 0 && b->result == 0);
    assert_true(all_read(c, "nd nz", V2) && all_read(c, FIVE, V1));
    stage_close(&s);
}


/* T19, A27. An entry that is added after the node was copied would be lost: the lock of the old node is never free. */
static void grow_vs_split(void **state) {
    (void)state;
    static const char *const points[] = {"dolphin:copy", "dolphin:switch", "dolphin:switched"};
    for (unsigned i = 0; i < 3; i++) {
        up(SLOTS1, NULL);
        put_all(a, MANY);
        assert_true(all_read(b, MANY, V1));
        stage_start(b, FAR_OP_INSERT, "nu", V2);
        stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS}); /* before it locks the node */
        stand(a, points[i], FAR_OP_INSERT, "nc", V2);
        far_sim_resume(b->client);
        far_sim_run_for(s.world, 100000); /* it does not get it */
        assert_false(b->ended && i < 2);
        stage_finish(a);
        stage_finish(b);
        assert_true(a->result == 0 && b->result == 0 && all_read(c, "nc nu", V2) && all_read(c, MANY, V1));
        stage_close(&s);
    }
}


/* T20. A node is put above another one while leaves below that are split. */
static void path_parted_vs_split(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, "nxaaa nxaab nxaac");
    stage_start(a, FAR_OP_INSERT, "nxb", V2);
    stage_stop_at(a, (far_sim_match){.kind = FAR_SIM_CAS});
    put_all(b, "nxaad nxaae");
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxc", V2), 0); /* it parts the path first */
    stage_finish(a);
    assert_true(a->result == 0 && all_read(c, "nxb nxc", V2) && all_read(c, "nxaaa nxaab nxaac nxaad nxaae", V1));
    stage_close(&s);
}


/* T21, T22, A29. Whatever happens to leaves that a scan has READ, it gives each key once that is there all the time. */
static void scan_vs_changes(void **state) {
    (void)state;
    for (unsigned nth = 1; nth <= 2; nth++)
        for (unsigned merges = 0; merges < 2; merges++) {
            up(WORDS ",leaf_slots=4,scan_batch=2", NULL);
            put_all(a, "na nb nc nd ne nf ng nh ni nj");
            stand_at(b, "dolphin:scan_read", nth, FAR_OP_SCAN, "n", NULL);
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


/* T24, A23. The READs of a locked node take effect before the CAS of its lock, and others change the node in between:
 * the second READ of the lock word shows it. Without that look entries are put where there are some already. */
static void node_read_before_the_lock(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, FIVE);
    far_addr at = node_addr("na");
    assert_true(all_read(b, FIVE, V1));
    stage_start(b, FAR_OP_INSERT, "nd", V2);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = at, .to = at + 8});
    far_sim_run_client(b->client);
    put_all(a, "nz");
    far_sim_release(hold);
    stage_finish(b);
    assert_true(b->result == 0 && all_read(c, FIVE " nz", V1) && stage_reads(c, "nd", V2));
    stage_close(&s);
}


/* A merge looks at leaves without a lock; before it has it, others fill the hole between them, or change them. Without
 * the second look under the lock what came between is lost. */
static void merge_vs_fill(void **state) {
    (void)state;
    static const char *const meanwhile[] = {"nd", "nc", "na", "nha", "nz"};
    for (unsigned i = 0; i < 5; i++) {
        up(WORDS ",leaf_slots=4", NULL);
        put_all(a, "na nb nc nd ne nf ng nh"); /* na nb; nc nd; ne nf ng nh */
        for (const char *key = "efgc"; *key; key++)
            stage_delete(a, (char[]){'n', *key, 0});
        stand(a, "dolphin:merge_found", FAR_OP_DELETE, "nd", NULL);
        stage_write(b, meanwhile[i], V2);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(c, meanwhile[i], V2) && stage_reads(b, meanwhile[i], V2));
        assert_true(all_read(c, "nb nh", V1) && stage_reads(c, "na", i == 2 ? V2 : V1));
        stage_close(&s);
    }
}


/* ... or put so many keys into the two that they do not fit into one any more. */
static void merge_vs_many_inserts(void **state) {
    (void)state;
    up(WORDS ",leaf_slots=4", NULL);
    put_all(a, "na nb nc nd ne nf ng nh"); /* na nb; nc nd; ne nf ng nh */
    for (const char *key = "efgc"; *key; key++)
        stage_delete(a, (char[]){'n', *key, 0});
    put_all(a, "nha"); /* the last one is copied, without dead slots */
    stage_delete(a, "nha");
    stand(a, "dolphin:merge_found", FAR_OP_DELETE, "nd", NULL);
    uint64_t low = leaf_entry("na", 1), high = leaf_entry("nh", 1);
    put_all(b, "naa nab nhb nhc");
    assert_true(leaf_entry("na", 1) == low && leaf_entry("nh", 1) == high);
    stage_finish(a);
    assert_true(a->result == 0 && all_read(c, "na naa nab nb nh nhb nhc", V1));
    put_all(c, "nac nhd"); /* they are not frozen any more */
    stage_close(&s);
}


/* All that is left of a node is one leaf. It takes the place of the node only if its keys can stand there: rests that are
 * short below it would need blocks. Else those keys are lost. */
static void merged_leaf_stays_below_its_node(void **state) {
    (void)state;
    char key[] = "nx-a-long-prefix-?";
    up(WORDS ",leaf_slots=4", NULL);
    for (const char *last = "abcdefgh"; *last; last++) { /* a b; c d; e f g h */
        key[sizeof(key) - 2] = *last;
        stage_write(a, key, V1);
    }
    for (const char *last = "efgcd"; *last; last++) {
        key[sizeof(key) - 2] = *last;
        stage_delete(a, key);
    }
    assert_int_equal(leaf_entry("nx-a-long-prefix-a", 1), leaf_entry("nx-a-long-prefix-h", 1));
    assert_true(all_read(c, "nx-a-long-prefix-a nx-a-long-prefix-b nx-a-long-prefix-h", V1));
    stage_close(&s);
}


/* coverage=lastbyte: a key gets a node of its own, which takes two entries of the node above, and others put one there
 * between the look and the lock. i = 0: those were the last two. Without a second look entries would be written behind the
 * node. i = 1: they took a part of the same NULL. Taken for the one that was seen, it would be there twice. */
static void fill_vs_fill(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        up(WORDS ",coverage=lastbyte", NULL);
        put_all(a, "na1 nc1 ne1");
        if (i == 0)
            put_all(a, "ng1 ni1");
        dolphin_node node = node_at("na1", 1);
        if (i == 0)
            assert_int_equal(dolphin_free_entries(&node), 2);
        stage_start(a, FAR_OP_INSERT, "nz1", V1);
        stage_stop_at(a, (far_sim_match){.kind = FAR_SIM_CAS});
        put_all(b, i == 0 ? "nA1" : "nx1");
        stage_finish(a);
        assert_true(a->result == 0 && all_read(c, "na1 nc1 ne1 nz1", V1));
        assert_true(stage_reads(c, i == 0 ? "nA1" : "nx1", V1));
        stage_close(&s);
    }
}


/* Who writes into a leaf that is being merged waits, or is waited for. */
static void merge_vs_write(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        up(WORDS ",leaf_slots=4", NULL);
        put_all(a, "na nb nc nd ne nf ng nh");
        for (const char *key = "efgc"; *key; key++)
            stage_delete(a, (char[]){'n', *key, 0});
        assert_true(all_read(b, "na nh", V1));
        if (i == 0) {
            stand(b, "dolphin:entered", FAR_OP_UPDATE, "nh", V2);
            stand_at(a, "dolphin:frozen", 4, FAR_OP_DELETE, "nd", NULL);
        } else {
            stand(a, "dolphin:copy", FAR_OP_DELETE, "nd", NULL);
            start_and_wait(b, FAR_OP_UPDATE, "nh", V2);
        }
        stage_finish(i ? a : b);
        stage_finish(i ? b : a);
        assert_true(a->result == 0 && b->result == 0);
        assert_true(stage_reads(c, "nh", V2) && all_read(c, "na nb", V1) && stage_reads(c, "nd", NULL));
        stage_close(&s);
    }
}


/* A writer stays inside, and the wait for epochs fails: the epoch is damaged. What was frozen thaws, in a merge, which
 * nobody hears of, and where a leaf is replaced. Left frozen, no one could write it any more. */
static void leaf_that_cannot_be_drained(void **state) {
    (void)state;
    for (unsigned merge = 0; merge < 2; merge++) {
        up(WORDS ",leaf_slots=4", NULL);
        put_all(a, "na nb nc nd ne nf ng nh"); /* na nb; nc nd; ne nf ng nh */
        for (const char *key = merge ? "efgc" : ""; *key; key++)
            stage_delete(a, (char[]){'n', *key, 0});
        stage_age(&s);
        uint64_t *epoch = memory_of(FAR_SUPER_EPOCH), was, *leaf = memory_of(dolphin_entry_addr(leaf_entry("nh", 1)));
        stand(b, "dolphin:entered", FAR_OP_UPDATE, "nh", V2);
        stand(a, "dolphin:drain", merge ? FAR_OP_DELETE : FAR_OP_INSERT, merge ? "nd" : "ni", V1);
        assert_true(*leaf & DOLPHIN_FROZEN);
        was = *epoch;
        *epoch = 0;
        stage_finish(a);
        *epoch = was;
        assert_int_equal(a->result, merge ? 0 : FAR_ERR_CORRUPT);
        assert_false(*leaf & DOLPHIN_FROZEN);
        assert_false(*memory_of(dolphin_entry_addr(leaf_entry("na", 1))) & DOLPHIN_FROZEN);
        stage_finish(b);
        assert_true(b->result == 0 && stage_reads(c, "nh", V2) && all_read(c, "na nb", V1));
        stage_write(c, "nh", V3);
        stage_close(&s);
    }
}


/* A put finds the leaf full, and its key there when the leaf is final: the block that it made for the key is not needed.
 * Forgotten, it would be lost. */
static void key_that_came_meanwhile_has_its_block(void **state) {
    (void)state;
    static const char key[] = "n-and-a-rest-of-more-than-7-bytes";
    up("hints=off,leaf_slots=2", NULL);
    put_all(a, "na");
    assert_true(stage_reads(a, "na", V1) && stage_reads(b, "na", V1));
    stand(b, "dolphin:ticket", FAR_OP_INSERT, key, V2);
    stand_at(a, "dolphin:frozen", 2, FAR_OP_PUT, key, V3);
    stage_finish(b);
    stage_finish(a);
    assert_true(a->result == 0 && b->result == 0 && stage_reads(c, key, V3) && stage_reads(c, "na", V1));
    stage_close(&s);
}


/* Keys that are short below a new node need no block any more: those that were there, and the one that came now. */
static void short_rests_need_no_block(void **state) {
    (void)state;
    up("leaf_slots=2", NULL);
    put_all(a, "nx-a-long-prefix-1 nx-a-long-prefix-2 nx-a-long-prefix-3");
    uint64_t leaf = leaf_entry("nx-a-long-prefix-3", 1);
    assert_false(dolphin_kword_is_block(*memory_of(dolphin_key_at(dolphin_entry_addr(leaf), 0))));
    put_all(b, "nx-b-long-prefix-1 nx-b-long-prefix-2 nx-b-long-prefix-3");
    stage_delete(b, "nx-b-long-prefix-2");
    put_all(b, "nx-b-long-prefix-4 nx-b-long-prefix-and-more");
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(get_through_grown_parent),
        cmocka_unit_test(parent_is_frozen_before_the_switch),
        cmocka_unit_test(memory_of_a_node_is_never_a_leaf),
        cmocka_unit_test(unlock_comes_after_the_entries),
        cmocka_unit_test(reads_through_a_frozen_node),
        cmocka_unit_test(torn_node_during_split),
        cmocka_unit_test(torn_null_during_deepen),
        cmocka_unit_test(scan_passes_a_torn_null),
        cmocka_unit_test(two_splits_same_parent),
        cmocka_unit_test(grow_vs_split),
        cmocka_unit_test(path_parted_vs_split),
        cmocka_unit_test(scan_vs_changes),
        cmocka_unit_test(node_read_before_the_lock),
        cmocka_unit_test(merge_vs_fill),
        cmocka_unit_test(merge_vs_many_inserts),
        cmocka_unit_test(merged_leaf_stays_below_its_node),
        cmocka_unit_test(fill_vs_fill),
        cmocka_unit_test(merge_vs_write),
        cmocka_unit_test(leaf_that_cannot_be_drained),
    };
    const struct CMUnitTest of_blocks[] = {
        cmocka_unit_test(short_rests_need_no_block), cmocka_unit_test(key_that_came_meanwhile_has_its_block),
        cmocka_unit_test(merge_vs_write), /* both old leaves become free again */
    };
    int failed = cmocka_run_group_tests(tests, inserts_by_ticket, NULL);
    failed += cmocka_run_group_tests(tests, inserts_by_cas, NULL);
    return failed + cmocka_run_group_tests(of_blocks, beside_housekeeping, NULL);
}
