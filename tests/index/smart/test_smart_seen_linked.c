/* SMART, named interleavings (docs/races/smart.md): DIR nodes that a handle saw linked lately, of which it READs only
 * the slot for the key and not the header. Each test fails if its guard is removed. */
#include "pool/epoch/epoch.h"
#include "pool/handle.h"
#include "smart_rig.h"
#include "task/session.h"
#include "test.h"

#define FIRST_CHILD '!'
#define WIDE        62 /* number of children that needs a DIR node */
/* All nodes are on one memory node, so that a node can get the memory of a removed one. */
#define NEAR "merge=eager,place=near"


/* Puts, or deletes, WIDE keys that consist of the prefix and one byte. */
static void change_wide(stage_actor *by, const char *prefix, bool puts) {
    char key[16];
    for (unsigned i = 0; i < WIDE; i++) {
        snprintf(key, sizeof(key), "%s%c", prefix, FIRST_CHILD + (char)i);
        if (puts)
            stage_write(by, key, V1);
        else
            stage_delete(by, key);
    }
}


/* Lets this number of epochs pass. */
static void pass_epochs(unsigned count) {
    uint64_t end = atomic_load(&a->pool->epochs.known) + count;
    while (atomic_load(&a->pool->epochs.known) < end) {
        far_epoch_request(a->pool);
        far_sim_sleep(s.world, 100000);
        stage_poll(&s, 1);
    }
}


static far_stats cost_of(stage_actor *by, far_op_kind does, const char *key, int result) {
    far_stats before, after;
    far_session_stats(by->session, &before);
    assert_int_equal(stage_do(by, does, key, does == FAR_OP_INSERT ? V1 : NULL), result);
    far_session_stats(by->session, &after);
    return far_stats_diff(&after, &before);
}


/* An insert into a DIR node that the handle saw linked lately takes three verbs: READ slot, WRITE leaf, CAS slot. A get
 * of an absent key takes one. After many epochs the first operation READs the header too, and the next one only the
 * slot again. */
TEST(a_node_seen_linked_lately_costs_one_read) {
    open_stage(NULL, NULL);
    change_wide(a, "n", true);
    assert_true(stage_reads(a, "nz", NULL)); /* The first operation READs the header. */
    far_stats d = cost_of(a, FAR_OP_INSERT, "nz", 0);
    assert_true(d.reads == 1 && d.writes == 1 && d.cas == 1);
    d = cost_of(a, FAR_OP_GET, "ny", FAR_ERR_NOT_FOUND);
    assert_true(d.reads == 1 && d.writes == 0 && d.cas == 0 && d.round_trips == 1);
    pass_epochs(SMART_NODE_EPOCHS + 4);
    assert_int_equal(cost_of(a, FAR_OP_GET, "ny", FAR_ERR_NOT_FOUND).reads, 2);
    for (unsigned i = 0; i < 3; i++) { /* each get records that it saw the node linked */
        assert_int_equal(cost_of(a, FAR_OP_GET, "ny", FAR_ERR_NOT_FOUND).reads, 1);
        pass_epochs(SMART_NODE_EPOCHS - 2);
    }
    stage_close(&s);
}


/* B's cache contains the DIR node "n". A removes this node, and later makes the DIR node "nq", in the same memory if
 * that is free again. B then inserts "nz". B must not write to the node "nq". After 8 epochs the memory must not be
 * reused yet (extra_epochs in kind.c); after more epochs B must READ the header (node_keeps_memory in
 * find_cached.c). */
TEST(memory_of_a_node_seen_linked_is_reused) {
    static const unsigned epochs[] = {0, 8, SMART_NODE_EPOCHS + 8};
    for (unsigned i = 0; i < 3; i++) {
        uint32_t bytes = smart_layout_bytes(SMART_DIR);
        open_stage(NEAR, NULL);
        far_sim_on_verb(s.world, note_written, &bytes);
        change_wide(a, "n", true);
        far_addr removed = written;
        assert_true(stage_reads(b, "n!", V1) && stage_reads(b, "nz", NULL));
        change_wide(a, "n", false);
        pass_epochs(epochs[i]);
        change_wide(a, "nq", true);
        assert_true((written == removed) == (i == 2));
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "nz", V2), 0);
        assert_true(stage_reads(a, "nz", V2) && stage_reads(b, "nz", V2) && stage_reads(b, "nq!", V1));
        far_sim_on_verb(s.world, NULL, NULL);
        stage_close(&s);
    }
}


/* B's cache contains the list "n" with a word that names the DIR node "nq". A removes "nq", replaces the list by one
 * without a slot for 'q', and makes the DIR node "nb" in the memory of "nq". B's get of "nq!" follows the cached word
 * and READs a slot of "nb", which proves nothing. B's insert of "nqz" must not write to "nb". Fails if
 * follow_cached_word (find_cached.c) stores the slot as one of a node that B saw linked. */
TEST(a_slot_that_was_read_without_proof) {
    uint32_t bytes = smart_layout_bytes(SMART_DIR);
    char key[] = "n?";
    open_stage(NEAR, NULL);
    far_sim_on_verb(s.world, note_written, &bytes);
    stage_write(a, "na", V1);
    change_wide(a, "nq", true);
    far_addr removed = written;
    assert_true(stage_reads(b, "na", V1));
    change_wide(a, "nq", false);
    stage_write(a, "nb!", V1);
    for (key[1] = 'c'; key[1] < 'c' + SMALL_LIST; key[1]++)
        stage_write(a, key, V1);
    pass_epochs(SMART_NODE_EPOCHS + 8);
    change_wide(a, "nb", true);
    assert_int_equal(written, removed);
    assert_true(stage_reads(b, "nq!", NULL));
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nqz", V2), 0);
    assert_true(stage_reads(a, "nqz", V2) && stage_reads(a, "nbz", NULL));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* Allocates all memory that is left for the copy of a list of the smallest size, including the reserve of the handle. */
static int exhaust_nodes(far_task *t, void *arg) {
    static const unsigned flags[] = {0, FAR_ALLOC_HEADROOM};
    const stage_actor *by = arg;
    far_object object;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 2 && (err == 0 || err == FAR_ERR_NO_MEMORY); i++)
        do
            err = far_alloc(t, by->index, SMART_TYPE_NODE, smart_layout_bytes(SMART_L128), FAR_NODE_ANY, flags[i],
                            &object);
        while (err >= 0);
    far_pin_drop(t);
    return err;
}


/* B's cache contains the DIR node "nn" below the full list "n". A removes the DIR node, inserts "nnz", freezes the list
 * to replace it, and stops. B has no memory to replace the list, so its get uses frozen words (accept_frozen). The
 * frozen slots of the DIR node are older than B's get and must not count. Fails if accept_by_slot (find_cached.c)
 * accepts a frozen slot. */
TEST(a_frozen_slot_of_a_removed_node_proves_nothing) {
    char key[] = "n?";
    open_stage(EAGER, "size=1M");
    change_wide(a, "nn", true);
    for (key[1] = 'A'; key[1] < 'A' + SMALL_LIST - 1; key[1]++)
        stage_write(a, key, V1);
    assert_true(stage_reads(b, "nn!", V1) && stage_reads(b, "nnz", NULL));
    change_wide(a, "nn", false);
    stage_write(a, "nnz", V1);
    run_until_point(a, "smart:frozen", FAR_OP_INSERT, "n~", V2);
    assert_int_equal(far_session_call(b->session, FAR_STATS_OTHER, true, exhaust_nodes, b), FAR_ERR_NO_MEMORY);
    assert_true(stage_reads(b, "nnz", V1));
    stage_finish(a);
    stage_tear_down(&s);
}
