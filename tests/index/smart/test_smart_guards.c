/* SMART, named interleavings for guards that no other test covers. Each test fails if its guard is removed. */
#include "index/smart/smart.h"
#include "smart_rig.h"
#include "test.h"

#define LEAF 448 /* size of the leaf for a value of 399 bytes */

static char text[3][400];


static void make_values(void) {
    for (unsigned i = 0; i < 3; i++) {
        memset(text[i], 'a' + (int)i, 399);
        text[i][399] = 0;
    }
}


static far_addr leaf_at(char first) {
    uint64_t word = *memory_of(smart_root_slot(smart_state_of(c->index), (uint8_t)first));
    assert_int_equal(smart_word_kind_of(word), SMART_LEAF);
    return smart_word_addr(word);
}


/* Deletes that READ the deciding node and the leaf in one batch. */

/* B's cache names a leaf of "naa" that was deleted. A has written a new leaf for "naa" in the same memory and not
 * linked it. C has linked its own leaf for "naa". B deletes "naa" and begins with the batch {READ deciding node, READ
 * leaf that the cache names}. B must delete C's leaf, which the slot of the deciding node names. Fails if
 * take_paired_leaf (find_cached.c) does not compare the cached word with the slot: B would delete A's leaf and remove
 * the slot of C's leaf, which stays LIVE. */
TEST(delete_uses_the_leaf_that_the_slot_names) {
    uint32_t bytes = 40;
    open_stage("value_size=8", NULL);
    put_all(a, "nba nca nda nea nfa nga");
    far_addr first = recycle_leaf(&bytes);
    stage_start(a, FAR_OP_INSERT, "naa", V1);
    far_sim_hold *link = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS});
    assert_int_equal(written, first);
    assert_int_equal(stage_do(c, FAR_OP_INSERT, "naa", V2), 0);
    assert_int_equal(stage_do(b, FAR_OP_DELETE, "naa", NULL), 0);
    assert_true(stage_reads(c, "naa", NULL));
    far_sim_release(link);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(b, "naa", V1));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* Nodes in recycled memory. */

/* B's cache contains a node that is gone. B's READ of its address returns the slots of a node that A has written and
 * not linked, and the header of a later node with the same prefix, which is linked. B must not use this mixture. Fails
 * if B does not READ the control word, and then the node a second time (smart_may_mix_incarnations in take_node_read,
 * find_cached.c): B would bind a second slot to a partial key. */
TEST(node_torn_over_incarnations) {
    far_sim_hold *link;
    open_stage(EAGER, "atomic_bytes=8");
    far_addr first = recycle_node(&link);

    stage_start(b, FAR_OP_INSERT, "nxca", V3);
    far_sim_hold *look = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = first + 32, .to = first + 128});
    assert_int_equal(far_sim_hold_units(look), 8); /* These 8 units are the header and five slots. */
    assert_int_equal(far_sim_release_units(look, (const uint32_t[]){3, 4, 5, 6, 7}, 5), 0);
    assert_int_equal(stage_do(c, FAR_OP_DELETE, "nxaa", NULL), 0);
    far_sim_release(link);
    stage_finish(a); /* A's CAS fails. The other leaf was removed meanwhile, so A inserts only a leaf and no node. */
    assert_int_equal(a->result, 0);
    written = 0;
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "nxca", V2), 0);
    assert_int_equal(written, first);
    far_sim_sleep(s.world, 100000); /* wait until the leaf is LIVE */
    far_sim_release(look);
    stage_finish(b);
    assert_int_equal(b->result, FAR_ERR_EXISTS);
    assert_true(stage_reads(c, "nxca", V2) && stage_scans(c, "nx", "nxba nxca"));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* Three nodes use the same memory, one after another. B's cache names the first one, which was removed. B's scan READs
 * this address in advance, and the READ is torn: it returns the control word of the first node, and the slots of the
 * second node, which is not linked. Before the scan READs the root, a third node is linked at this address, so the root
 * confirms the address. Fails if smart_take_readahead_node (scan_readahead.c) accepts an image that is not LIVE: the
 * scan would then return a key that was never in the tree. */
TEST(scan_of_a_node_torn_over_incarnations) {
    uint32_t bytes = 128;
    open_stage(EAGER, "atomic_bytes=8");
    far_addr root = smart_root_slot(smart_state_of(a->index), 'n');
    put_all(a, "nba");
    far_sim_on_verb(s.world, note_written, &bytes);
    put_all(a, "nxaa nxba");
    far_addr first = written;
    assert_true(stage_scans(b, "n", "nba nxaa nxba") && stage_reads(b, "nxaa", V1) && stage_reads(b, "nxba", V1));
    stage_delete(a, "nxaa");
    stage_delete(a, "nxba");
    uint64_t frozen = *memory_of(first);
    assert_int_equal(smart_ctl_state(frozen), SMART_FROZEN);
    stage_free_retired(&s);
    /* Only the simulator overwrites free memory, so the test restores the old control word. */
    *memory_of(first) = frozen;
    put_all(a, "nxaa");

    stage_start(b, FAR_OP_SCAN, "n", NULL);
    far_sim_hold *below =
        far_sim_hold_effect(b->client, (far_sim_match){.kind = FAR_SIM_READ, .from = root, .to = root + 8});
    far_sim_hold *look = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = first, .to = first + 128});
    assert_int_equal(far_sim_release_units(look, (const uint32_t[]){0}, 1), 0);
    stage_start(a, FAR_OP_INSERT, "nxba", V2);
    far_sim_hold *link = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS});
    assert_int_equal(written, first);
    far_sim_release(look);
    stage_delete(c, "nxaa");
    far_sim_release(link);
    stage_finish(a);
    written = 0;
    stage_write(a, "nxca", V2);
    assert_int_equal(written, first);
    far_sim_release(below);
    stage_finish(b);
    assert_int_equal(b->pairs, 3);
    assert_true(strcmp(b->keys[1], "nxba") == 0 && strcmp(b->keys[2], "nxca") == 0);
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* DIR nodes, of which only one slot is READ. */

#define MANY 70 /* number of children, which is more than a list has slots */


static void each_below(const char *prefix, void (*each)(stage_actor *by, const char *key)) {
    char key[16];
    for (unsigned i = 0; i < MANY; i++) {
        snprintf(key, sizeof(key), "%s%c", prefix, 'A' + (char)i);
        each(a, key);
    }
}


static void put_one(stage_actor *by, const char *key) {
    stage_write(by, key, V1);
}


static void assert_is_read(stage_actor *by, const char *key) {
    (void)by;
    assert_true(stage_reads(c, key, V1) && stage_reads(b, key, V1));
}


/* The node between the root and a DIR node is merged away, so that the root's slot now skips a byte of the prefix.
 * Fails if the slot word keeps the bit gap0, which states that no byte is skipped (replace_frozen_node in
 * restructure.c): clients would READ the slot of the DIR node for the wrong byte. */
TEST(direct_node_below_a_gap) {
    open_stage(EAGER, NULL);
    put_all(a, "na");
    each_below("nb", put_one);
    stage_delete(a, "na");
    each_below("nb", assert_is_read);
    assert_true(stage_reads(c, "na", NULL) && stage_reads(b, "n", NULL));
    stage_close(&s);
}


/* B's cache contains a DIR node for "nb". In its memory there is now a DIR node for "nbc", whose prefix is also a
 * prefix of B's key "nbcQ". Fails if take_node_read (find_cached.c) does not compare the depth: B uses the slot for the
 * wrong byte. */
TEST(direct_node_of_another_depth) {
    uint32_t bytes = 2080;
    open_stage(EAGER ",place=near", NULL);
    put_all(a, "na nd");
    far_sim_on_verb(s.world, note_written, &bytes);
    each_below("nb", put_one);
    far_addr first = written;
    assert_true(first && stage_reads(b, "nbQ", V1));
    each_below("nb", stage_delete);
    stage_free_retired(&s);
    written = 0;
    put_all(a, "nbd");
    each_below("nbc", put_one);
    assert_int_equal(written, first);
    far_sim_sleep(s.world, 100000);
    assert_true(stage_reads(b, "nbcQ", V1) && stage_reads(b, "nbcc", V1));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* Updates of failed clients. */

/* A takes the lock of "nk" and stops. Returns the address of A's redo record. */
static far_addr hold_lock_of_nk(void) {
    make_values();
    open_stage("", NULL);
    stage_write(c, "nk", text[0]);
    stage_write(c, "pk", text[0]);
    far_addr lock = leaf_at('n') + LEAF - 8;
    run_until_point(a, "smart:locked", FAR_OP_UPDATE, "nk", text[1]);
    return smart_lock_record(*memory_of(lock));
}


/* Runs an update of `by` up to the completion of its READ of the redo record, which is held back. */
static far_sim_hold *hold_after_reading_record(stage_actor *by, far_addr record, const char *value) {
    stage_start(by, FAR_OP_UPDATE, "nk", value);
    far_sim_hold *hold =
        far_sim_hold_completion(by->client, (far_sim_match){.kind = FAR_SIM_READ, .from = record, .to = record + 8});
    while (!far_sim_reached(hold) && !by->ended)
        far_sim_run_client(by->client);
    assert_true(far_sim_reached(hold));
    return hold;
}


/* B waits for A's lock and has READ A's redo record. A finishes its update, C writes another value, and A fails. B must
 * not write A's value again. The test examines the value when B is about to take the lock, before B writes its own
 * value. Fails if complete_update (write_in_place.c) does not READ the lock again. */
TEST(finished_update_is_not_written_again) {
    far_addr record = hold_lock_of_nk();
    far_sim_hold *hold = hold_after_reading_record(b, record, text[0]);
    stage_finish(a);
    stage_write(c, "nk", text[2]);
    far_sim_kill(a->pool->fabric);
    far_addr lock = leaf_at('n') + LEAF - 8;
    far_sim_release(hold);
    far_sim_stop_before(b->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8});
    assert_int_equal(far_sim_run_client(b->client), FAR_SIM_STOPPED);
    assert_true(stage_reads(c, "nk", text[2]));
    stage_finish(b);
    assert_int_equal(b->result, 0);
    assert_true(stage_reads(c, "nk", text[0]));
    stage_close(&s);
}


/* A has failed, so its update must be completed by another client. B and C have READ A's redo record. B makes itself
 * the owner of the record by CAS, to complete the update. C must wait for B. Fails if complete_update
 * (write_in_place.c) continues after this CAS has failed: C would release the lock, and C's value would be lost when B
 * writes. */
TEST(one_client_completes_an_interrupted_update) {
    far_addr record = hold_lock_of_nk(), leaf = leaf_at('n');
    far_sim_hold *hold = hold_after_reading_record(c, record, text[2]);
    stage_kill(&s, a);
    stage_start(b, FAR_OP_UPDATE, "nk", text[0]);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_WRITE, .from = leaf + 8, .to = leaf + 16});
    far_sim_release(hold);
    far_sim_run_for(s.world, 1000000);
    assert_false(c->ended);
    stage_finish(b);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(b->result == 0 && c->result == 0);
    assert_true(stage_reads(b, "nk", text[2]) || stage_reads(b, "nk", text[0]));
    stage_close(&s);
}


/* B waits for the lock of "nk", which A holds. Before B READs the redo record, A uses this record for another leaf, and
 * fails. Fails if read_redo_record (write_in_place.c) does not check that the record belongs to the lock word that B
 * has READ: B would report that "nk" is corrupt. */
TEST(record_of_another_leaf) {
    far_addr record = hold_lock_of_nk();
    stage_start(b, FAR_OP_UPDATE, "nk", text[2]);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_READ, .from = record, .to = record + 8});
    stage_finish(a);
    run_until_point(a, "smart:locked", FAR_OP_UPDATE, "pk", text[2]);
    assert_int_equal(smart_lock_record(*memory_of(leaf_at('p') + LEAF - 8)), record);
    stage_kill(&s, a);
    stage_finish(b);
    assert_int_equal(b->result, 0);
    stage_write(c, "pk", text[1]);
    assert_true(stage_reads(b, "nk", text[2]) && stage_reads(b, "pk", text[1]));
    stage_close(&s);
}


/* ---- The walk of a collection, and leaked memory ---- */

/* A fails after it has replaced a leaf, while the slot still names the old one. The walk of a collection must report
 * both leaves (walk_chain in check.c). Fails if it reports only the first: the collection frees the leaf of the key. */
TEST(a_walk_reports_all_leaves_of_a_chain) {
    stage_open(&s, "smart", "update=rcu", NULL);
    stage_write(a, "nk", V1);
    run_until_point(a, "smart:leaf_replaced", FAR_OP_UPDATE, "nk", V2);
    stage_kill(&s, a);
    stage_check(&s);
    assert_true(stage_reads(b, "nk", V2) && stage_reads(c, "nk", V2));
    stage_close(&s);
}


/* C inserts into a slot that still names the leaf which A deleted. C's insert must retire the deleted leaf
 * (retire_chain in write_insert.c). Otherwise its memory is leaked until a collection. */
TEST(insert_over_a_dead_leaf_leaks_nothing) {
    far_pool_usage usage;
    stage_open(&s, "smart", "", NULL);
    put_all(a, "nka nkb nkc");
    run_until_point(a, "smart:removed", FAR_OP_DELETE, "nka", NULL);
    stage_write(c, "nka", V2);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(b, "nka", V2));
    assert_int_equal(far_pool_check(b->session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(b->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
    stage_close(&s);
}
