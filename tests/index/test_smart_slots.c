/* SMART, named interleavings: slots, deletes and updates. Each drives a race that the design rules out (H1-H31
 * there) by hand; what fails when the guarding line is taken out is said at each test. */
#include "smart_rig.h"


/* H1. Without permanent binding (a delete that zeroes the slot) the second key gets two slots: check tells, or one is
 * lost. */
static void dup_partial_reuse(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba nca");
    stand(a, "smart:insert", FAR_OP_PUT, "npa", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "nba", NULL), 0);
    assert_int_equal(stage_do(b, FAR_OP_PUT, "npa", V3), 0);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(b, "npa", V2)); /* it came last */
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "npa", NULL), 0);
    assert_true(stage_reads(a, "npa", NULL));
    stage_close(&s);
}


/* H2. A cached slot is never another partial key's. */
static void rebound_slot_stale_cache(void **state) {
    (void)state;
    up(EAGER, NULL);
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


/* H3. Without the frozen frontier the insert succeeds in a node that was merged away. */
static void insert_vs_merge(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba");
    stand(a, "smart:insert", FAR_OP_INSERT, "nca", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "naa", NULL), 0);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(b, "nca", V2) && stage_reads(b, "nba", V1) && stage_reads(b, "naa", NULL));
    stage_close(&s);
}


static void insert_vs_empty_removal(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba");
    stand(a, "smart:insert", FAR_OP_INSERT, "nca", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "naa", NULL), 0);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "nba", NULL), 0);
    stage_finish(a);
    assert_true(stage_reads(b, "nca", V2));
    stage_close(&s);
}


/* A tombstone of a node that is being merged: the freeze of bound slots. Without it the re-insert is lost. */
static void reinsert_vs_merge(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba nca");
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "naa", NULL), 0); /* a tombstone: two are left */
    stand(a, "smart:insert", FAR_OP_INSERT, "nab", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "nba", NULL), 0);
    stage_finish(a);
    assert_true(stage_reads(c, "nab", V2) && stage_reads(c, "nca", V1));
    stage_close(&s);
}


static void insert_via_cached_removed_node(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba");
    assert_true(stage_reads(b, "naa", V1) && stage_reads(b, "nba", V1));
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "naa", NULL), 0);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nca", V2), 0);
    assert_true(stage_reads(a, "nca", V2));
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "nba", NULL), 0);
    assert_true(stage_reads(a, "nba", NULL) && stage_reads(a, "nca", V2));
    stage_close(&s);
}


/* H4. The merge decides from frozen words only: a child that changed since the node was looked at, or READ to be
 * frozen, is not lost. */
static const char *const merging[] = {"smart:merge", "smart:freeze"};


static void merge_stale_child_split(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        up(EAGER, NULL);
        put_all(a, "naa nba");
        stand(a, merging[i], FAR_OP_DELETE, "naa", NULL);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "nbb", V2), 0);
        stage_finish(a);
        assert_true(stage_reads(c, "nbb", V2) && stage_reads(c, "nba", V1) && stage_reads(c, "naa", NULL));
        stage_close(&s);
    }
}


static void merge_stale_child_rcu(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        up(EAGER ",update=rcu", NULL);
        put_all(a, "naa nba");
        stand(a, merging[i], FAR_OP_DELETE, "naa", NULL);
        assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nba", LONG), 0);
        stage_age(&s);
        stage_finish(a);
        assert_true(stage_reads(b, "nba", LONG) && stage_reads(a, "nba", LONG) && stage_reads(c, "nba", LONG));
        stage_close(&s);
    }
}


static void cross_delete_merge(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba");
    stand(a, "smart:removed", FAR_OP_DELETE, "naa", NULL);
    stand(b, "smart:removed", FAR_OP_DELETE, "nba", NULL);
    stage_finish(a);
    stage_finish(b);
    assert_true(stage_reads(c, "naa", NULL) && stage_reads(c, "nba", NULL));
    put_all(c, "naa nba nca");
    assert_true(stage_reads(a, "naa", V1) && stage_reads(b, "nba", V1));
    stage_close(&s);
}


/* H6, H31. DEAD is the delete: fresh and stale readers agree at once, and nobody waits for the slot. */
static void absent_then_present(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba");
    assert_true(stage_reads(b, "naa", V1)); /* cached */
    stand(a, "smart:removed", FAR_OP_DELETE, "naa", NULL);
    assert_true(stage_reads(c, "naa", NULL));
    assert_true(stage_reads(b, "naa", NULL));
    stage_finish(a);
    stage_close(&s);
}


static void dead_leaf_livelock(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba");
    stand(a, "smart:removed", FAR_OP_DELETE, "naa", NULL);
    stage_kill(&s, a);
    assert_true(stage_reads(b, "naa", NULL));
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "naa", V2), 0);
    assert_true(stage_reads(b, "naa", V2));
    stage_close(&s);
}


/* H7. The late WRITE of an update lands in a dead leaf. */
static void update_resurrect(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba");
    stand(a, "smart:write_word", FAR_OP_UPDATE, "naa", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "naa", NULL), 0);
    stage_finish(a);
    assert_int_equal(a->result, 0); /* just before the delete */
    assert_true(stage_reads(b, "naa", NULL) && stage_reads(a, "naa", NULL));
    stage_close(&s);
}


static void w_update_vs_delete_vs_reinsert(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "naa nba");
    stand(a, "smart:write_word", FAR_OP_UPDATE, "naa", V2);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "naa", NULL), 0);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "naa", V3), 0);
    stage_poll(&s, 50);
    stage_finish(a);
    assert_true(stage_reads(b, "naa", V3) && stage_reads(a, "naa", V3));
    stage_close(&s);
}


static void w_update_vs_rcu(void **state) {
    (void)state;
    up("", NULL);
    put_all(a, "naa nba");
    stand(a, "smart:write_word", FAR_OP_UPDATE, "naa", V2);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "naa", LONG), 0);
    stage_finish(a);
    assert_true(stage_reads(b, "naa", LONG) && stage_reads(a, "naa", LONG));
    stage_close(&s);
}


/* H22. Deleting through a chain of replaced leaves; the slot is moved once. */
static void rcu_chain_delete(void **state) {
    (void)state;
    up(EAGER ",update=rcu", NULL);
    put_all(a, "naa nba");
    assert_true(stage_reads(c, "naa", V1));
    stand(a, "smart:leaf_replaced", FAR_OP_UPDATE, "naa", LONG);
    stand(b, "smart:leaf_replaced", FAR_OP_UPDATE, "naa", V2);
    assert_true(stage_reads(c, "naa", V2)); /* stale, by two hops */
    assert_int_equal(stage_do(c, FAR_OP_DELETE, "naa", NULL), 0);
    stage_finish(a);
    stage_finish(b);
    assert_true(stage_reads(a, "naa", NULL) && stage_reads(b, "naa", NULL));
    stage_close(&s);
}


/* Values of one size are never replaced by others: then a delete takes the slot with it, in one batch. Two at once: one
 * deletes, and one of them retires the leaf (the watch would see a second time). The key is none of the first two:
 * their leaves may lie on another memory node than the slots. */
static void delete_batch_vs_delete(void **state) {
    (void)state;
    for (unsigned first = 0; first < 2; first++) {
        up("value_size=8," EAGER, NULL);
        put_all(a, "naa nba nca nda nea nfa nga nha nia nja");
        assert_true(stage_reads(b, "nda", V1));
        stand(a, "smart:remove", FAR_OP_DELETE, "nda", NULL);
        stand(b, "smart:remove", FAR_OP_DELETE, "nda", NULL);
        stage_finish(first ? b : a);
        stage_finish(first ? a : b);
        assert_int_equal((first ? b : a)->result, 0);
        assert_int_equal((first ? a : b)->result, FAR_ERR_NOT_FOUND);
        assert_true(stage_reads(c, "nda", NULL) && stage_reads(c, "nba", V1));
        stage_close(&s);
    }
}


/* The key was deleted and inserted again meanwhile: the batch finds neither the leaf alive nor the slot as it was, and
 * the delete begins anew. */
static void delete_batch_vs_reinsert(void **state) {
    (void)state;
    up("value_size=8," EAGER, NULL);
    put_all(a, "naa nba nca nda nea nfa nga nha nia nja");
    stand(a, "smart:remove", FAR_OP_DELETE, "nda", NULL);
    stage_delete(b, "nda");
    stage_age(&s);
    stage_write(b, "nda", V2);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(c, "nda", NULL) && stage_reads(c, "nba", V1));
    stage_close(&s);
}


/* 3.6. Where leaves are replaced the slot does not go in one batch with the leaf: the CAS of the leaf fails, that of
 * the slot would succeed, and take the new leaf away with the old one. Fails when update=rcu is taken for fixed. */
static void delete_batch_vs_rcu(void **state) {
    (void)state;
    static const char *const options[] = {"value_size=8,update=rcu," EAGER,
                                          "value_size=8,update=lock,in_place=4," EAGER, EAGER};
    for (unsigned i = 0; i < 3; i++) {
        up(options[i], NULL);
        put_all(a, "naa nba nca nda nea nfa nga nha nia nja");
        assert_true(stage_reads(c, "nda", V1));
        stand(a, "smart:remove", FAR_OP_DELETE, "nda", NULL);
        stand(b, "smart:leaf_replaced", FAR_OP_UPDATE, "nda", i < 2 ? V2 : LONG);
        stage_finish(a);
        assert_int_equal(a->result, 0); /* it was there all the time */
        assert_true(stage_reads(c, "nda", NULL));
        stage_finish(b);
        assert_int_equal(b->result, 0);
        assert_true(stage_reads(c, "nda", NULL) && stage_reads(b, "nba", V1));
        stage_close(&s);
    }
}


/* H6, H27. On another memory node than its slot a leaf has no order with it: there the slot is no part of the batch.
 * Fails when it is: those who come by the slot find nothing, while those who know the leaf still find it. */
static void delete_batch_cross_node(void **state) {
    (void)state;
    for (char second = 'a'; second < 'i'; second++) { /* nodes are spread: some lie elsewhere than their first leaf */
        char key[] = "n?aa", other[] = "n?ba";
        up("value_size=8", NULL);
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dup_partial_reuse),
        cmocka_unit_test(rebound_slot_stale_cache),
        cmocka_unit_test(insert_vs_merge),
        cmocka_unit_test(insert_vs_empty_removal),
        cmocka_unit_test(reinsert_vs_merge),
        cmocka_unit_test(insert_via_cached_removed_node),
        cmocka_unit_test(merge_stale_child_split),
        cmocka_unit_test(merge_stale_child_rcu),
        cmocka_unit_test(cross_delete_merge),
        cmocka_unit_test(absent_then_present),
        cmocka_unit_test(dead_leaf_livelock),
        cmocka_unit_test(update_resurrect),
        cmocka_unit_test(w_update_vs_delete_vs_reinsert),
        cmocka_unit_test(w_update_vs_rcu),
        cmocka_unit_test(rcu_chain_delete),
        cmocka_unit_test(delete_batch_vs_delete),
        cmocka_unit_test(delete_batch_vs_reinsert),
        cmocka_unit_test(delete_batch_vs_rcu),
        cmocka_unit_test(delete_batch_cross_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
