/* SMART, named interleavings of slots, deletes and updates. The numbers H1 to H31 refer to docs/races/smart.md. Each
 * test fails if its guard is removed. */
#include "smart_rig.h"
#include "test.h"


/* Race H1. A is about to bind the first unbound slot to partial key p. B deletes the key of another slot and inserts a
 * key with partial key p. A continues. Only one slot may be bound to p. Fails if a delete unbinds its slot: B would use
 * this slot and A another one, so that check reports two slots for p, or one key is lost. */
TEST(dup_partial_reuse) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba nca");
    run_until_point(a, "smart:insert", FAR_OP_PUT, "npa", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "nba", NULL), 0);
    assert_int_equal(stage_do(b, FAR_OP_PUT, "npa", V3), 0);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(b, "npa", V2)); /* A's put was the last one. */
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "npa", NULL), 0);
    assert_true(stage_reads(a, "npa", NULL));
    stage_close(&s);
}


/* Race H2. B has the slot of "naa" in its cache. A deletes "naa", inserts other keys and "naa" again. B must find "naa"
 * and can insert a key next to it. Fails if a delete unbinds its slot, because the slot in B's cache then belongs to
 * another key. */
TEST(rebound_slot_stale_cache) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba nca");
    assert_true(stage_reads(b, "naa", V1));
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "naa", NULL), 0);
    put_all(a, "nda nea");
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "naa", V2), 0);
    assert_true(stage_reads(b, "naa", V2));
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nab", V3), 0);
    assert_true(stage_reads(a, "nab", V3) && stage_reads(a, "naa", V2) && stage_reads(a, "nda", V1));
    stage_close(&s);
}


/* Race H3. A is about to bind the first unbound slot of a node. B deletes a key, so that the node is merged away. A
 * continues, and its key is present. Fails if the first unbound slot is not frozen (freeze_round in restructure.c). */
TEST(insert_vs_merge) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba");
    run_until_point(a, "smart:insert", FAR_OP_INSERT, "nca", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "naa", NULL), 0);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(b, "nca", V2) && stage_reads(b, "nba", V1) && stage_reads(b, "naa", NULL));
    stage_close(&s);
}


/* Race H3. A is about to bind the first unbound slot of a node. B deletes both keys of the node, so that the node is
 * removed. A continues, and its key is present. */
TEST(insert_vs_empty_removal) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba");
    run_until_point(a, "smart:insert", FAR_OP_INSERT, "nca", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "naa", NULL), 0);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "nba", NULL), 0);
    stage_finish(a);
    assert_true(stage_reads(b, "nca", V2));
    stage_close(&s);
}


/* Race H3. A is about to insert over a tombstone of a node. B deletes a key, so that the node is merged away. A
 * continues, and its key is present. Fails if bound slots are not frozen (freeze_round in restructure.c). */
TEST(reinsert_vs_merge) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba nca");
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "naa", NULL), 0); /* a tombstone, and two children are left */
    run_until_point(a, "smart:insert", FAR_OP_INSERT, "nab", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "nba", NULL), 0);
    stage_finish(a);
    assert_true(stage_reads(c, "nab", V2) && stage_reads(c, "nca", V1));
    stage_close(&s);
}


/* Race H3. B has a node in its cache, and A has merged the node away. B's insert and delete take effect in the tree. */
TEST(insert_via_cached_removed_node) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba");
    assert_true(stage_reads(b, "naa", V1) && stage_reads(b, "nba", V1));
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "naa", NULL), 0);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nca", V2), 0);
    assert_true(stage_reads(a, "nca", V2));
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "nba", NULL), 0);
    assert_true(stage_reads(a, "nba", NULL) && stage_reads(a, "nca", V2));
    stage_close(&s);
}


/* The points at which a merge is stopped in the tests for H4: before the node is READ, and before it is frozen. */
static const char *const merging[] = {"smart:merge", "smart:freeze"};


/* Race H4. A deletes one of the two keys of a node, and stops before it replaces the node by the other child (a merge).
 * B inserts a key next to that child. A continues, and all keys are present. Fails if the merge uses a word that was
 * READ before the freeze (replace_frozen_node in restructure.c). */
TEST(merge_stale_child_split) {
    for (unsigned i = 0; i < 2; i++) {
        open_stage(EAGER, NULL);
        put_all(a, "naa nba");
        run_until_point(a, merging[i], FAR_OP_DELETE, "naa", NULL);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "nbb", V2), 0);
        stage_finish(a);
        assert_true(stage_reads(c, "nbb", V2) && stage_reads(c, "nba", V1) && stage_reads(c, "naa", NULL));
        stage_close(&s);
    }
}


/* Race H4. A deletes one of the two keys of a node, and stops before it replaces the node by the other child (a merge).
 * B replaces the leaf of the other child. A continues, and B's value is present. */
TEST(merge_stale_child_rcu) {
    for (unsigned i = 0; i < 2; i++) {
        open_stage(EAGER ",update=rcu", NULL);
        put_all(a, "naa nba");
        run_until_point(a, merging[i], FAR_OP_DELETE, "naa", NULL);
        assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nba", LONG), 0);
        stage_free_retired(&s);
        stage_finish(a);
        stage_free_retired(&s); /* the memory of the replaced leaf is free now */
        assert_true(stage_reads(b, "nba", LONG) && stage_reads(a, "nba", LONG) && stage_reads(c, "nba", LONG));
        stage_close(&s);
    }
}


/* Race H4. A and B delete the two keys of a node at the same time, and both merge it. Neither key is present
 * afterwards, and the keys can be inserted again. */
TEST(cross_delete_merge) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba");
    run_until_point(a, "smart:removed", FAR_OP_DELETE, "naa", NULL);
    run_until_point(b, "smart:removed", FAR_OP_DELETE, "nba", NULL);
    stage_finish(a);
    stage_finish(b);
    assert_true(stage_reads(c, "naa", NULL) && stage_reads(c, "nba", NULL));
    put_all(c, "naa nba nca");
    assert_true(stage_reads(a, "naa", V1) && stage_reads(b, "nba", V1));
    stage_close(&s);
}


/* Race H6. A's delete has made the leaf DEAD and stops. C, through the slot, and B, through its cached address, both
 * find the key absent. Fails if the slot is changed before the leaf (remove_leaf in remove.c). */
TEST(absent_then_present) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba");
    assert_true(stage_reads(b, "naa", V1)); /* B has the leaf in its cache */
    run_until_point(a, "smart:removed", FAR_OP_DELETE, "naa", NULL);
    assert_true(stage_reads(c, "naa", NULL));
    assert_true(stage_reads(b, "naa", NULL));
    stage_finish(a);
    stage_close(&s);
}


/* Race H31. A fails after it has made the leaf DEAD. B finds the key absent and can insert it again. */
TEST(dead_leaf_livelock) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba");
    run_until_point(a, "smart:removed", FAR_OP_DELETE, "naa", NULL);
    stage_kill(&s, a);
    assert_true(stage_reads(b, "naa", NULL));
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "naa", V2), 0);
    assert_true(stage_reads(b, "naa", V2));
    stage_close(&s);
}


/* Race H7. A updates a key by a WRITE of the value word. A has READ the leaf. B deletes the key. Then A's WRITE takes
 * effect. The key must stay absent. */
TEST(update_resurrect) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba");
    run_until_point(a, "smart:write_word", FAR_OP_UPDATE, "naa", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "naa", NULL), 0);
    stage_finish(a);
    assert_int_equal(a->result, 0); /* The update counts as one just before the delete. */
    assert_true(stage_reads(b, "naa", NULL) && stage_reads(a, "naa", NULL));
    stage_close(&s);
}


/* Race H7. A updates a key by a WRITE of the value word, and has READ the leaf. B deletes the key and inserts it again.
 * Then A's WRITE takes effect. B's value stays. */
TEST(w_update_vs_delete_vs_reinsert) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba");
    run_until_point(a, "smart:write_word", FAR_OP_UPDATE, "naa", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "naa", NULL), 0);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "naa", V3), 0);
    stage_poll(&s, 50);
    stage_finish(a);
    assert_true(stage_reads(b, "naa", V3) && stage_reads(a, "naa", V3));
    stage_close(&s);
}


/* Race H7. A updates a key by a WRITE of the value word, and has READ the leaf. B replaces the leaf. Then A's WRITE
 * takes effect. B's value stays. */
TEST(w_update_vs_rcu) {
    open_stage("", NULL);
    put_all(a, "naa nba");
    run_until_point(a, "smart:write_word", FAR_OP_UPDATE, "naa", V2);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "naa", LONG), 0);
    stage_finish(a);
    assert_true(stage_reads(b, "naa", LONG) && stage_reads(a, "naa", LONG));
    stage_close(&s);
}


/* Race H22. A and B replace the leaf of "naa" one after the other, and both stop before they change the slot. So the
 * slot still names the first leaf, which leads to the second and the third one (a chain). C, whose cache names the
 * first leaf, reads the value of the last leaf and deletes the key. A and B continue. The key stays absent, and no leaf
 * is retired twice (the memory checker would report that). Fails if a search ends at the first leaf of a chain instead
 * of following it to its last one (smart_read_leaf in leaf.c). */
TEST(rcu_chain_delete) {
    open_stage(EAGER ",update=rcu", NULL);
    put_all(a, "naa nba");
    assert_true(stage_reads(c, "naa", V1));
    run_until_point(a, "smart:leaf_replaced", FAR_OP_UPDATE, "naa", LONG);
    run_until_point(b, "smart:leaf_replaced", FAR_OP_UPDATE, "naa", V2);
    assert_true(stage_reads(c, "naa", V2)); /* C's cache names the first leaf of the chain */
    assert_int_equal(stage_do(c, FAR_OP_DELETE, "naa", NULL), 0);
    stage_finish(a);
    stage_finish(b);
    assert_true(stage_reads(a, "naa", NULL) && stage_reads(b, "naa", NULL));
    stage_close(&s);
}


/* With fixed sizes a delete changes leaf and slot in one batch. A and B delete the same key at the same time. One of
 * them succeeds, and the leaf is retired once; a second time would be reported by the memory checker. The test uses the
 * fourth key, because the leaves of the first two may be on another memory node than their slots. */
TEST(delete_batch_vs_delete) {
    for (unsigned first = 0; first < 2; first++) {
        open_stage("value_size=8," EAGER, NULL);
        put_all(a, "naa nba nca nda nea nfa nga nha nia nja");
        assert_true(stage_reads(b, "nda", V1));
        run_until_point(a, "smart:remove", FAR_OP_DELETE, "nda", NULL);
        run_until_point(b, "smart:remove", FAR_OP_DELETE, "nda", NULL);
        stage_finish(first ? b : a);
        stage_finish(first ? a : b);
        assert_int_equal((first ? b : a)->result, 0);
        assert_int_equal((first ? a : b)->result, FAR_ERR_NOT_FOUND);
        assert_true(stage_reads(c, "nda", NULL) && stage_reads(c, "nba", V1));
        stage_close(&s);
    }
}


/* A is about to delete a key by one batch that changes leaf and slot. B deletes the key and inserts it again. Both
 * CASes of A's batch fail, because leaf and slot have changed, so A searches again and deletes the new leaf. */
TEST(delete_batch_vs_reinsert) {
    open_stage("value_size=8," EAGER, NULL);
    put_all(a, "naa nba nca nda nea nfa nga nha nia nja");
    run_until_point(a, "smart:remove", FAR_OP_DELETE, "nda", NULL);
    stage_delete(b, "nda");
    stage_free_retired(&s);
    stage_write(b, "nda", V2);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(c, "nda", NULL) && stage_reads(c, "nba", V1));
    stage_close(&s);
}


/* If updates can replace leaves, a delete must not change the leaf and the slot in the same batch. After a replacement,
 * the CAS of the leaf would fail, the CAS of the slot would succeed, and the new leaf would be lost. Fails if
 * never_replaces (kind.c) is set for update=rcu. */
TEST(delete_batch_vs_rcu) {
    static const char *const options[] = {"value_size=8,update=rcu," EAGER,
                                          "value_size=8,update=lock,in_place=4," EAGER, EAGER};
    for (unsigned i = 0; i < 3; i++) {
        open_stage(options[i], NULL);
        put_all(a, "naa nba nca nda nea nfa nga nha nia nja");
        assert_true(stage_reads(c, "nda", V1));
        run_until_point(a, "smart:remove", FAR_OP_DELETE, "nda", NULL);
        run_until_point(b, "smart:leaf_replaced", FAR_OP_UPDATE, "nda", i < 2 ? V2 : LONG);
        stage_finish(a);
        assert_int_equal(a->result, 0); /* the key was present all the time */
        assert_true(stage_reads(c, "nda", NULL));
        stage_finish(b);
        assert_int_equal(b->result, 0);
        assert_true(stage_reads(c, "nda", NULL) && stage_reads(b, "nba", V1));
        stage_close(&s);
    }
}


/* Races H6 and H27. Leaf and slot are on two memory nodes, so their CASes have no order. So a delete must not post both
 * CASes in one batch (put_tombstone in remove.c). Otherwise the slot could change first, and B and C could disagree
 * whether the key is present. */
TEST(delete_batch_cross_node) {
    /* nodes are spread, so some nodes are on another memory node than their first leaf */
    for (char second = 'a'; second < 'i'; second++) {
        char key[] = "n?aa", other[] = "n?ba";
        open_stage("value_size=8", NULL);
        key[1] = other[1] = second;
        stage_write(a, key, V1);
        for (; other[2] < 'h'; other[2]++)
            stage_write(a, other, V1);
        assert_true(stage_reads(b, key, V1));
        stage_start(a, FAR_OP_DELETE, key, NULL);
        far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS});
        far_sim_run_client(a->client);
        assert_true(stage_reads(c, key, V1) && stage_reads(b, key, V1));
        far_sim_release(hold);
        stage_finish(a);
        assert_true(stage_reads(c, key, NULL) && stage_reads(b, key, NULL));
        stage_close(&s);
    }
}
