/* SMART, named interleavings (docs/races/smart.md): reused memory. Each test fails if its guard is removed. */
#include "index/smart/smart.h"
#include "smart_rig.h"
#include "test.h"


/* Race H14. A has written a leaf for "naa" in recycled memory and not linked it. B, whose cache has the address, must
 * not find the key. Fails if leaves in recycled memory are written LIVE (smart_make_leaf in leaf.c). */
TEST(pending_leaf_recycled) {
    uint32_t bytes = 40;
    open_stage("", NULL);
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


/* Race H26. A has linked a leaf in recycled memory, and the CAS that makes it LIVE is delayed. B and C find and update
 * the key. Fails if classify_leaf (find.c) does not count a PENDING leaf in a proven slot as present. */
TEST(a_pending_leaf_in_a_slot_is_present) {
    uint32_t bytes = 40;
    open_stage("", NULL);
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


/* Races H14 and H28. B's READ of a recycled leaf returns one word from the time before A wrote the leaf, and the other
 * words of A's leaf. B must READ again. Fails without smart_may_mix_incarnations (find_cached.c). With tearing granules
 * of 64 bytes the words that matter are in one granule. */
TEST(leaf_torn_over_incarnations) {
    static const char *const sims[] = {"atomic_bytes=8", "atomic_bytes=64"};
    for (unsigned i = 0; i < 2; i++) {
        uint32_t bytes = 40;
        open_stage("", sims[i]);
        put_all(a, "nba nca");
        far_addr first = recycle_leaf(&bytes);
        stage_start(b, FAR_OP_GET, "naa", NULL);
        far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = first, .to = first + 40});
        /* The early word is the value; with 64-byte granules, it is the end of the key. */
        uint32_t early = i == 0 ? 2 : far_sim_hold_units(hold) - 1;
        if (far_sim_hold_units(hold) > 1)
            assert_int_equal(far_sim_release_units(hold, &early, 1), 0);
        assert_int_equal(stage_do(a, FAR_OP_INSERT, "naa", V2), 0);
        assert_int_equal(written, first);
        far_sim_sleep(s.world, 100000); /* wait until the leaf is LIVE */
        far_sim_release(hold);
        stage_finish(b);
        assert_true(b->result == 0 && b->value_len == 8 && memcmp(b->value, V2, 8) == 0);
        far_sim_on_verb(s.world, NULL, NULL);
        stage_close(&s);
    }
}


/* Submits gets of two keys together, so that their leaves are READ in one batch. */
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


/* Race H14. B submits two gets together, and the READ of a recycled leaf returns words of two incarnations. Fails if
 * smart_get_many (find.c) does not call smart_leaf_is_certain. */
TEST(gets_together_torn_over_incarnations) {
    uint32_t bytes = 40;
    open_stage("", "atomic_bytes=8");
    put_all(a, "nba nca");
    far_addr first = recycle_leaf(&bytes);
    assert_true(stage_reads(b, "nba", V1));
    b->ended = false;
    b->client = far_sim_start(b->pool->fabric, "gets", get_two, b);
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = first, .to = first + 40});
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){2}, 1), 0);
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "naa", V2), 0);
    assert_int_equal(written, first);
    far_sim_sleep(s.world, 100000); /* wait until the leaf is LIVE */
    far_sim_release(hold);
    stage_finish(b);
    assert_true(b->result == 0 && b->value_len == 8 && memcmp(b->value, V2, 8) == 0);
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* Race H14. A has written a node in the memory of a removed node with the same prefix. A's CAS that links it will fail.
 * B, whose cache contains the old node, must not insert into it. Fails if nodes in recycled memory are written LIVE
 * (smart_build_node in node.c). */
TEST(pending_node_recycled) {
    far_sim_hold *hold;
    open_stage(EAGER, NULL);
    recycle_node(&hold);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxca", V3), 0); /* B's cache contains the removed node */
    assert_int_equal(stage_do(c, FAR_OP_DELETE, "nxaa", NULL), 0);
    far_sim_release(hold);
    stage_finish(a);
    assert_true(stage_reads(c, "nxca", V3) && stage_reads(c, "nxba", V2) && stage_reads(c, "nxaa", NULL));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* Race H14. A replaces a full list by a copy in the memory of a removed node with the same prefix. A's CAS that links
 * the copy will fail. B, whose cache contains the old node, must not insert into the copy. Fails if copies in recycled
 * memory are written LIVE (fill_copy in restructure.c): B's key would be inserted into the copy and lost with it. */
TEST(pending_copy_recycled) {
    uint32_t bytes = 128;
    open_stage("", NULL);
    far_sim_on_verb(s.world, note_written, &bytes);
    put_all(a, "nxaa nxba nxca nxda nxea nxfa nxga nxha nxia nxja nxka nxla nxAa"); /* These puts make the list full. */
    far_addr first = written, slot = smart_root_slot(smart_state_of(a->index), 'n');
    assert_true(stage_reads(b, "nxaa", V1));
    for (char key[] = "nxba"; key[2] <= 'k'; key[2]++)
        stage_delete(a, key);
    put_all(a, "nxma"); /* this insert makes a copy with room for more */
    assert_true(written != first);
    stage_free_retired(&s);
    put_all(a, "nxna nxoa nxpa nxqa nxra nxsa nxta nxua nxva"); /* These puts make the new list full. */
    for (char key[] = "nxna"; key[2] <= 'u'; key[2]++)
        stage_delete(a, key);
    run_until_point(a, "smart:frozen", FAR_OP_INSERT, "nxza", V2);
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


/* Races H15 and H16. B's cache contains a node that is removed, and its memory has become other nodes. B's insert must
 * not write there. The guard is accept_node (find_cached.c). */
TEST(cas_recycled_slot) {
    open_stage(EAGER, NULL);
    put_all(a, "nxaa nxba nbaa");
    assert_true(stage_reads(b, "nxaa", V1) && stage_reads(b, "nxba", V1));
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "nxaa", NULL), 0);
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "nxba", NULL), 0);
    stage_free_retired(&s);
    put_all(a, "nyaa nyba nzaa nzba"); /* These puts create nodes in the memory of the removed ones. */
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxca", V2), 0);
    assert_true(stage_reads(a, "nxca", V2) && stage_reads(a, "nyaa", V1) && stage_reads(a, "nzba", V1));
    stage_close(&s);
}


/* Race H16. A replaces a node and is about to CAS the slot above it. Meanwhile B completes this replacement, so the
 * node is removed, and then inserts a node with the same prefix. A's pin prevents the reuse of the removed node's
 * memory. Otherwise the new node could be at the same address, and A's CAS would unlink it. Fails if a replaced node is
 * freed at once instead of retired (publish_replacement in restructure.c). */
TEST(aba_parent) {
    for (unsigned later = 0; later < 2; later++) {
        uint32_t bytes = 128;
        open_stage(EAGER, NULL);
        put_all(a, "nbaa nxaa");
        far_sim_on_verb(s.world, note_written, &bytes);
        put_all(b, "nxba"); /* This put uses memory of B, which B can reuse later. */
        far_addr removed = written;
        run_until_point(a, "smart:frozen", FAR_OP_DELETE, "nxaa", NULL);
        assert_true(stage_reads(b, "nxba", V1)); /* B completes the replacement, so the old node is removed. */
        if (later)
            stage_free_retired(&s);
        /* This insert makes a new node with the same prefix. */
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "nxca", V2), 0);
        assert_true(written != removed);
        stage_finish(a);
        assert_true(stage_reads(c, "nxca", V2) && stage_reads(c, "nxba", V1) && stage_reads(c, "nxaa", NULL));
        far_sim_on_verb(s.world, NULL, NULL);
        stage_close(&s);
    }
}


/* B deletes "naa" with {READ deciding node, READ leaf}. A writes a leaf for "naa" that is never linked, and then
 * another leaf for "naa" in the same memory, which is linked. B must use the image of the linked leaf, which the slot
 * of the deciding node names. Fails if the leaf is READ before the node (put_node_read in find_cached.c): the CAS of
 * the leaf fails, the CAS of the slot succeeds, and A's key is lost. */
TEST(delete_batch_vs_unlinked_leaf) {
    uint32_t bytes = 40, node_bytes = 128;
    open_stage("value_size=8", NULL);
    far_sim_on_verb(s.world, note_written, &node_bytes);
    put_all(a, "nba nca nda nea nfa nga");
    far_addr node = written, first = recycle_leaf(&bytes);
    stage_start(a, FAR_OP_INSERT, "naa", V1);
    far_sim_hold *link = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS});
    assert_int_equal(written, first);
    assert_int_equal(stage_do(c, FAR_OP_INSERT, "naa", V2), 0);
    stage_start(b, FAR_OP_DELETE, "naa", NULL);
    far_sim_hold *look = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = node, .to = node + 128});
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
