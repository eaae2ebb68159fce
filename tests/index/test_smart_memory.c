/* SMART, named interleavings: memory that is used again. Each drives a race that the design rules out (H1-H31
 * there) by hand; what fails when the guarding line is taken out is said at each test. */
#include "index/smart/smart.h"
#include "smart_rig.h"


/* H14. A recycled leaf is not LIVE before it is linked: written for the same key, and not there yet, it is not found.
 * Fails when new leaves in used memory are written LIVE. */
static void pending_leaf_recycled(void **state) {
    (void)state;
    uint32_t bytes = 40;
    up("", NULL);
    put_all(a, "nba nca");
    far_addr first = recycle_leaf(&bytes);
    stage_start(a, FAR_OP_INSERT, "naa", V2);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS});
    assert_int_equal(written, first);
    assert_true(stage_reads(b, "naa", NULL));
    far_sim_release(hold);
    stage_finish(a);
    assert_true(stage_reads(b, "naa", V2));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* H26. What is not waited for is not needed: while the flip to LIVE of a leaf in used memory is on its way, everybody
 * finds it. Fails when a PENDING leaf that a proven slot names is not believed. */
static void nobody_needs_the_flip(void **state) {
    (void)state;
    uint32_t bytes = 40;
    up("", NULL);
    put_all(a, "nba nca");
    far_addr first = recycle_leaf(&bytes);
    stage_start(a, FAR_OP_INSERT, "naa", V2);
    far_sim_hold *hold =
        far_sim_hold_effect(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = first, .to = first + 8});
    while (!a->ended)
        far_sim_run_client(a->client);
    assert_int_equal(written, first);
    assert_int_equal(smart_ctl_state(*memory_of(first)), SMART_PENDING);
    assert_true(stage_reads(b, "naa", V2) && stage_reads(c, "naa", V2));
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "naa", V3), 0);
    assert_true(stage_reads(b, "naa", V3));
    far_sim_release(hold);
    far_sim_run(s.world);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "naa", NULL), 0);
    assert_true(stage_reads(c, "naa", NULL));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* H14. A READ that sees a word from before the leaf was written, and the rest of its second life. Fails when recycled
 * leaves are believed at once (may_mix_lives). With units of 64 bytes the words that matter are seen together. */
static void torn_over_lives(void **state) {
    (void)state;
    static const char *const sims[] = {"atomic_bytes=8", "atomic_bytes=64"};
    for (unsigned i = 0; i < 2; i++) {
        uint32_t bytes = 40;
        up("", sims[i]);
        put_all(a, "nba nca");
        far_addr first = recycle_leaf(&bytes);
        stage_start(b, FAR_OP_GET, "naa", NULL);
        far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = first, .to = first + 40});
        uint32_t early = i == 0 ? 2 : far_sim_hold_units(hold) - 1; /* the value; the end of the key */
        if (far_sim_hold_units(hold) > 1)
            assert_int_equal(far_sim_release_units(hold, &early, 1), 0);
        assert_int_equal(stage_do(a, FAR_OP_INSERT, "naa", V2), 0);
        assert_int_equal(written, first);
        far_sim_sleep(s.world, 100000); /* it is LIVE now */
        far_sim_release(hold);
        stage_finish(b);
        assert_true(b->result == 0 && b->value_len == 8 && memcmp(b->value, V2, 8) == 0);
        far_sim_on_verb(s.world, NULL, NULL);
        stage_close(&s);
    }
}


/* Gets of two keys, submitted together: their leaves are READ in one batch. */
static void get_two(void *arg) {
    stage_actor *by = arg;
    char other[8];
    far_op first = {.kind = FAR_OP_GET, .index = by->index, .key = "naa", .key_len = 3},
           second = {.kind = FAR_OP_GET, .index = by->index, .key = "nba", .key_len = 3}, *ops[] = {&first, &second};
    first.value = by->value;
    first.capacity = sizeof(by->value);
    second.value = other;
    second.capacity = sizeof(other);
    by->result = far_submit(by->session, ops, 2) == 2 && far_reap(by->session, ops, 2, 2) == 2 ? first.result : 1;
    if (second.result != 0 || memcmp(other, V1, 8) != 0)
        by->result = 2;
    by->value_len = first.value_len;
    by->ended = true;
}


/* H14 where gets are served together. Fails when is_hit does not ask may_mix_lives. */
static void gets_together_torn_over_lives(void **state) {
    (void)state;
    uint32_t bytes = 40;
    up("", "atomic_bytes=8");
    put_all(a, "nba nca");
    far_addr first = recycle_leaf(&bytes);
    assert_true(stage_reads(b, "nba", V1));
    b->ended = false;
    b->client = far_sim_start(b->pool->fabric, "gets", get_two, b);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = first, .to = first + 40});
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){2}, 1), 0);
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "naa", V2), 0);
    assert_int_equal(written, first);
    far_sim_sleep(s.world, 100000); /* it is LIVE now */
    far_sim_release(hold);
    stage_finish(b);
    assert_true(b->result == 0 && b->value_len == 8 && memcmp(b->value, V2, 8) == 0);
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* H14. The same for a node: written in the memory of a removed one with the same prefix, but not linked (its CAS will
 * lose), it is no place for an insert. Fails when nodes in used memory are written LIVE. */
static void pending_node_recycled(void **state) {
    (void)state;
    far_sim_hold *hold;
    up(EAGER, NULL);
    recycle_node(&hold);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxca", V3), 0); /* b's cache knows the old node */
    assert_int_equal(stage_do(c, FAR_OP_DELETE, "nxaa", NULL), 0);
    far_sim_release(hold);
    stage_finish(a);
    assert_true(stage_reads(c, "nxca", V3) && stage_reads(c, "nxba", V2) && stage_reads(c, "nxaa", NULL));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* H14. The same for the copy that REPLACE makes of a full node: b's cache knows an earlier node with this prefix in
 * that memory, the copy is written but not linked, and its CAS will lose. Fails when copies in used memory are written
 * LIVE: b's key goes into the copy, and away with it. */
static void pending_copy_recycled(void **state) {
    (void)state;
    uint32_t bytes = 128;
    up("", NULL);
    far_sim_on_verb(s.world, note_written, &bytes);
    put_all(a, "nxaa nxba nxca nxda nxea nxfa nxga nxha nxia nxja nxka nxla nxAa"); /* full */
    far_addr first = written, slot = smart_root_slot(smart_state_of(a->index), 'n');
    assert_true(stage_reads(b, "nxaa", V1));
    for (char key[] = "nxba"; key[2] <= 'k'; key[2]++)
        stage_delete(a, key);
    put_all(a, "nxma"); /* the copy has room again */
    assert_true(written != first);
    stage_age(&s);
    put_all(a, "nxna nxoa nxpa nxqa nxra nxsa nxta nxua nxva"); /* full again */
    for (char key[] = "nxna"; key[2] <= 'u'; key[2]++)
        stage_delete(a, key);
    stand(a, "smart:frozen", FAR_OP_INSERT, "nxza", V2);
    far_sim_resume(a->client);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = slot, .to = slot + 8});
    assert_int_equal(written, first);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxya", V3), 0);
    assert_int_equal(stage_do(c, FAR_OP_INSERT, "nxwa", V1), 0);
    far_sim_release(hold);
    stage_finish(a);
    assert_true(stage_scans(c, "n", "nxAa nxaa nxla nxma nxva nxwa nxya nxza"));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* H15, H16. The slot address of a removed node is never written through the cache. */
static void cas_recycled_slot(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "nxaa nxba nbaa");
    assert_true(stage_reads(b, "nxaa", V1) && stage_reads(b, "nxba", V1));
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "nxaa", NULL), 0);
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "nxba", NULL), 0);
    stage_age(&s);
    put_all(a, "nyaa nyba nzaa nzba"); /* nodes in the memory of the removed ones */
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxca", V2), 0);
    assert_true(stage_reads(a, "nxca", V2) && stage_reads(a, "nyaa", V1) && stage_reads(a, "nzba", V1));
    stage_close(&s);
}


/* H16. a is about to move a slot away from a node that others have removed meanwhile. Its pin keeps the memory from
 * being used again: otherwise a node with the same prefix, at the same address, would be in the slot, and a's CAS would
 * take it out. Fails when a replaced node is free at once. */
static void aba_parent(void **state) {
    (void)state;
    for (unsigned later = 0; later < 2; later++) {
        uint32_t bytes = 128;
        up(EAGER, NULL);
        put_all(a, "nbaa nxaa");
        far_sim_on_verb(s.world, note_written, &bytes);
        put_all(b, "nxba"); /* in memory of b's, who can use it again */
        far_addr removed = written;
        stand(a, "smart:frozen", FAR_OP_DELETE, "nxaa", NULL);
        assert_true(stage_reads(b, "nxba", V1)); /* b helps: the node is gone */
        if (later)
            stage_age(&s);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxca", V2), 0); /* a node again */
        assert_true(written != removed);
        stage_finish(a);
        assert_true(stage_reads(c, "nxca", V2) && stage_reads(c, "nxba", V1) && stage_reads(c, "nxaa", NULL));
        far_sim_on_verb(s.world, NULL, NULL);
        stage_close(&s);
    }
}


/* 3.6. A delete that READs owner and leaf in one batch goes by the leaf that the owner names, not by one that lay there
 * a moment ago: a writes a leaf for the key that is never linked, and then another one, in the same memory, that is.
 * Fails when the leaf is READ before its owner: the CAS of the leaf fails then, that of the slot does not, and a's key
 * is lost. */
static void delete_batch_vs_unlinked_leaf(void **state) {
    (void)state;
    uint32_t bytes = 40, node_bytes = 128;
    up("value_size=8", NULL);
    far_sim_on_verb(s.world, note_written, &node_bytes);
    put_all(a, "nba nca nda nea nfa nga");
    far_addr owner = written, first = recycle_leaf(&bytes);
    stage_start(a, FAR_OP_INSERT, "naa", V1);
    far_sim_hold *link = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS});
    assert_int_equal(written, first);
    assert_int_equal(stage_do(c, FAR_OP_INSERT, "naa", V2), 0);
    stage_start(b, FAR_OP_DELETE, "naa", NULL);
    far_sim_hold *look = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = owner, .to = owner + 128});
    far_sim_release(link);
    stage_finish(a);
    assert_int_equal(a->result, FAR_ERR_EXISTS);
    stage_delete(c, "naa");
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "naa", V3), 0);
    assert_int_equal(written, first);
    far_sim_release(look);
    stage_finish(b);
    assert_true(b->result == 0 ? stage_reads(c, "naa", NULL) : stage_reads(c, "naa", V3));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pending_leaf_recycled),
        cmocka_unit_test(nobody_needs_the_flip),
        cmocka_unit_test(torn_over_lives),
        cmocka_unit_test(gets_together_torn_over_lives),
        cmocka_unit_test(pending_node_recycled),
        cmocka_unit_test(pending_copy_recycled),
        cmocka_unit_test(cas_recycled_slot),
        cmocka_unit_test(aba_parent),
        cmocka_unit_test(delete_batch_vs_unlinked_leaf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
