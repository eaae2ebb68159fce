/* SMART: tests of objects that are on another memory node than the word that will name them. Such an object must be
 * written, and the WRITE waited for, before that word changes. Further tests cover chains of replaced leaves that are
 * too long for one CAS, frozen nodes above empty ones, lost CASes, and reuse of memory. */
#include "index/smart/smart.h"
#include "pool/alloc/alloc.h"
#include "pool/epoch/epoch.h"
#include "smart_rig.h"
#include "task/session.h"
#include "test.h"

#define FILL 32768u
#define LEAF 40u /* size of the leaves in this file, in bytes */


/* a memory node to be filled, until it has no room for an object of this type and size */
typedef struct fullness {
    unsigned node, type;
    uint64_t bytes;
    bool uses_headroom; /* the headroom is filled, too */
} fullness;


static int fill_node(far_task *t, void *arg) {
    far_object object;
    const fullness *full = arg;
    int err = far_pin_take(t);
    t->uses_headroom = full->uses_headroom;
    while (err == 0)
        err = far_alloc(t, NULL, 5, FILL, full->node, FAR_ALLOC_ON_NODE, &object);
    if (err == FAR_ERR_NO_MEMORY)
        for (err = 0; err == 0;)
            err = far_alloc(t, a->index, full->type, full->bytes, full->node, FAR_ALLOC_ON_NODE, &object);
    t->uses_headroom = false;
    far_pin_drop(t);
    return err;
}


static void fill_for(unsigned node, unsigned type, uint64_t bytes, bool uses_headroom) {
    fullness full = {node, type, bytes, uses_headroom};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, fill_node, &full), FAR_ERR_NO_MEMORY);
}


static void fill_for_leaves(unsigned node) {
    fill_for(node, SMART_TYPE_LEAF, LEAF, true);
}


/* Runs an operation of A up to the point, and then further while its WRITE is held back. Meanwhile B must see the key
 * as it was before the operation. */
static void run_with_write_held_back(far_op_kind does, const char *key, const char *point, const char *before,
                                     const char *after) {
    /* The first WRITE of an update belongs to the allocator, which divides a slab into objects. */
    unsigned nth = does == FAR_OP_UPDATE ? 2 : 1;
    run_until_point(a, point, does, key, after);
    far_sim_resume(a->client);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = nth});
    far_sim_run_client(a->client);
    assert_true(stage_reads(b, key, before));
    far_sim_release(hold);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(b, key, after));
}


/* The memory node of the slot is full, so A's new leaf is on the other memory node. A must wait for the WRITE of the
 * leaf before the CAS of the slot. Fails without the wait in insert_into_slot (write_insert.c). */
TEST(a_leaf_on_another_node_is_written_before_its_slot_names_it) {
    open_stage(NULL, NULL);
    unsigned node = 'n' % 2; /* number of the memory node that contains the root's slot */
    fill_for_leaves(node);
    run_with_write_held_back(FAR_OP_INSERT, "naa", "smart:insert", NULL, V1);
    stage_close(&s);
}


/* A's new leaf is on another memory node than the leaf that it replaces. A must wait for the WRITE of the new leaf
 * before the CAS of the old leaf. Fails without the wait in replace_leaf (write_update.c). */
TEST(a_leaf_on_another_node_is_written_before_the_old_one_names_it) {
    uint32_t bytes = LEAF;
    open_stage("update=rcu", NULL);
    far_sim_on_verb(s.world, note_written, &bytes);
    stage_write(a, "naa", V1);
    far_sim_on_verb(s.world, NULL, NULL);
    fill_for_leaves(far_addr_node(written));
    run_with_write_held_back(FAR_OP_UPDATE, "naa", "smart:search_done", V1, V2);
    stage_close(&s);
}


/* The copy of a full list is on another memory node than the slot above, because its prefix determines its memory node.
 * A must wait for the WRITE of the copy before the CAS of the slot. Fails without the wait in publish_replacement
 * (restructure.c). */
TEST(a_copy_on_another_node_is_written_before_its_slot_names_it) {
    for (char second = 'a'; second < 'f'; second++) {
        char key[] = "n??a";
        open_stage(NULL, NULL);
        stage_write(a, "nzz", V1);
        key[1] = second;
        for (key[2] = 'a'; key[2] < 'a' + SMALL_LIST; key[2]++)
            stage_write(a, key, V1);
        run_with_write_held_back(FAR_OP_INSERT, key, "smart:frozen", NULL, V2);
        for (key[2] = 'a'; key[2] < 'a' + SMALL_LIST; key[2]++)
            assert_true(stage_reads(c, key, V1));
        stage_close(&s);
    }
}


/* Allocates and frees two tree nodes on memory node *arg. The session keeps this memory in its magazine. So it can
 * later allocate the copy of a list there, although the test fills this memory node first. */
static int cache_free_nodes(far_task *t, void *arg) {
    unsigned node = *(unsigned *)arg;
    uint64_t bytes = smart_layout_bytes(smart_layout_for(smart_state_of(a->index), SMALL_LIST + 1 + SMALL_LIST / 2));
    far_object objects[2];
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 2 && err == 0; i++)
        err = far_alloc(t, a->index, SMART_TYPE_NODE, bytes, node, FAR_ALLOC_ON_NODE, &objects[i]);
    for (unsigned i = 0; i < 2 && err == 0; i++)
        far_free(t, a->index, SMART_TYPE_NODE, objects[i].addr, bytes);
    far_pin_drop(t);
    return err;
}


/* The copy of a list is on the memory node of the slot, but the leaf that the copy names is on another one. A must wait
 * for the WRITE of the leaf. Fails if publish_replacement (restructure.c) considers only the memory node of the copy.
 */
TEST(a_leaf_on_another_node_is_written_before_its_copy_is_named) {
    for (unsigned i = 0; i < 10; i++) {
        unsigned full = i % 2;
        char key[] = "n??a";
        open_stage(NULL, NULL);
        stage_write(a, "nzz", V1);
        key[1] = (char)('a' + i / 2);
        for (key[2] = 'a'; key[2] < 'a' + SMALL_LIST; key[2]++)
            stage_write(a, key, V1);
        assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, cache_free_nodes, &full), 0);
        fill_for_leaves(full);
        run_until_point(a, "smart:frozen", FAR_OP_INSERT, key, V2);
        far_sim_resume(a->client);
        far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_WRITE,
                                                           .from = far_addr_make(1 - full, 0),
                                                           .to = far_addr_make(1 - full, FAR_NODE_BYTES_MAX - 1)});
        far_sim_run_client(a->client);
        assert_true(stage_reads(b, key, NULL));
        far_sim_release(hold);
        stage_finish(a);
        assert_int_equal(a->result, 0);
        for (key[2] = 'a'; key[2] <= 'a' + SMALL_LIST; key[2]++)
            assert_true(stage_reads(c, key, key[2] == 'a' + SMALL_LIST ? V2 : V1));
        stage_close(&s);
    }
}


/* A new node between a slot and a leaf is on another memory node than the slot. A must wait for the WRITE of the node
 * before the CAS of the slot. Fails without the wait in insert_branch (write_insert.c). */
TEST(a_branch_on_another_node_is_written_before_its_slot_names_it) {
    for (char second = 'a'; second < 'f'; second++) {
        char one[] = "n?aa", two[] = "n?ab";
        open_stage(NULL, NULL);
        one[1] = two[1] = second;
        put_all(a, "nzaa");
        stage_write(a, one, V1);
        run_with_write_held_back(FAR_OP_INSERT, two, "smart:branch", NULL, V2);
        assert_true(stage_reads(c, one, V1));
        stage_close(&s);
    }
}


enum { CHAIN = SMART_CHAIN_MAX + 3, LEAF_BYTES = 64 };

typedef struct updater {
    far_session *session;
    far_sim_client *client;
    char value[9];
    int result;
} updater;


static void update_main(void *arg) {
    updater *u = arg;
    u->result = far_update(u->session, a->index, "naa", 3, u->value, 8);
}


static uint64_t leaked_bytes(void) {
    far_pool_usage usage;
    assert_int_equal(far_pool_check(b->session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(b->session, &usage), 0);
    return usage.leaked;
}


static uint64_t retired_bytes(void) {
    far_pool_usage usage;
    assert_int_equal(far_pool_stat(b->session, &usage), 0);
    return usage.retired;
}


/* Makes a long chain: the leaf of a key is replaced many times while the slot still names the first leaf. If `deleted`
 * is set, the key is deleted at the end. Then checks that every leaf of the chain is unlinked and retired, although one
 * operation unlinks only a part of the chain. */
static void unlink_a_long_chain(bool deleted) {
    updater updaters[CHAIN];
    const char *last = deleted ? NULL : updaters[CHAIN - 1].value;
    stage_open(&s, "smart", "update=rcu", NULL);
    put_all(a, "naa nba");
    for (unsigned i = 0; i < CHAIN; i++) {
        updater *u = &updaters[i];
        snprintf(u->value, sizeof(u->value), "value-%02u", i);
        assert_int_equal(far_session_open(a->pool, &u->session), 0);
        u->client = far_sim_start(a->pool->fabric, "updater", update_main, u);
        far_sim_stop_before(u->client, (far_sim_match){.point = "smart:leaf_replaced"});
        assert_int_equal(far_sim_run_client(u->client), FAR_SIM_STOPPED);
    }
    if (deleted)
        stage_delete(b, "naa");
    for (unsigned i = 0; i < 8; i++) /* After each of these reads, a background task unlinks a piece of the chain. */
        assert_true(stage_reads(b, "naa", last));
    assert_true(stage_reads(c, "naa", last));
    assert_int_equal(retired_bytes(), (CHAIN + deleted) * LEAF_BYTES);
    for (unsigned i = 0; i < CHAIN; i++) {
        far_sim_resume(updaters[i].client);
        assert_int_equal(far_sim_run_client(updaters[i].client), FAR_SIM_ENDED);
        assert_int_equal(updaters[i].result, 0);
        far_session_close(updaters[i].session);
    }
    assert_int_equal(leaked_bytes(), 0);
    assert_true(stage_reads(c, "naa", last));
    stage_close(&s);
}


/* A chain that is longer than SMART_CHAIN_MAX is unlinked in pieces, and each leaf is retired once. Fails if a
 * piece includes the leaf that the slot names afterwards (smart_unlink_old_leaves in write_update.c). */
TEST(a_long_chain_is_unlinked_in_pieces) {
    unlink_a_long_chain(false);
    unlink_a_long_chain(true);
}


/* Lets A lose a CAS to B. Checks that A frees the objects that it has allocated for this CAS, so that no memory is
 * leaked. */
static void lose_cas_and_check(const char *options, const char *keys, const char *point, far_op_kind does,
                               const char *key) {
    stage_open(&s, "smart", options, NULL);
    put_all(a, keys);
    assert_true(stage_reads(b, "nba", V1));
    run_until_point(a, point, does, key, V2);
    assert_int_equal(stage_do(b, does, key, V3), 0);
    stage_finish(a);
    assert_true(stage_reads(c, key, does == FAR_OP_INSERT ? V3 : V2));
    assert_int_equal(leaked_bytes(), 0);
    stage_close(&s);
}


/* A loses its CAS to B in an insert, in a branch, in an update by a new leaf, and in the growth of a list. A frees the
 * leaves and nodes that it made. */
TEST(objects_of_a_lost_cas_are_freed) {
    lose_cas_and_check(NULL, "naa nba", "smart:insert", FAR_OP_INSERT, "nca");
    lose_cas_and_check(NULL, "naa nba", "smart:branch", FAR_OP_INSERT, "nab");
    lose_cas_and_check("update=rcu", "naa nba", "smart:replace_leaf", FAR_OP_UPDATE, "naa");
    lose_cas_and_check(NULL, "naa nba nca nda nea nfa nga nha nia nja nka nla nAa", "smart:frozen", FAR_OP_INSERT,
                       "nma");
}


static far_addr seen[256];
static unsigned seen_count;


static void note_leaf_address(void *ctx, const far_sim_posted *posted) {
    (void)ctx;
    if (posted->verb->kind != FAR_WRITE || posted->verb->length != LEAF)
        return;
    unsigned i = 0;
    while (i < seen_count && seen[i] != posted->verb->addr)
        i++;
    if (i == seen_count && seen_count < 256)
        seen[seen_count++] = posted->verb->addr;
}


/* Keys are inserted and deleted again and again. The leaves use few different addresses, so retired leaves are reused.
 */
TEST(memory_of_leaves_is_reused) {
    seen_count = 0;
    open_stage("merge=delayed", NULL);
    put_all(a, "naa nba nca");
    far_sim_on_verb(s.world, note_leaf_address, NULL);
    for (unsigned round = 0; round < 30; round++) {
        put_all(a, "nda nea nfa nga");
        stage_delete(a, "nda");
        stage_delete(a, "nea");
        stage_delete(a, "nfa");
        stage_delete(a, "nga");
        stage_free_retired(&s);
    }
    far_sim_on_verb(s.world, NULL, NULL);
    print_message("%u places of leaves\n", seen_count);
    assert_true(seen_count >= 4 && seen_count <= 60);
    stage_close(&s);
}


#define PATH "nppppppppppp" /* longer than the part of a prefix that a node's header contains */


/* C has frozen a node with a long prefix and is about to replace it. Only an empty node is left below it. B inserts a
 * key that differs from the long prefix. B finds no leaf that contains the whole prefix, and cannot remove the empty
 * node, because the slot that names it is frozen. So B must replace the frozen node first (find_key_below in node.c).
 * Fails if B tries to remove the empty node again and again. */
TEST(a_frozen_node_above_an_empty_one_is_replaced_first) {
    char key[] = PATH "?";
    open_stage(NULL, NULL);
    put_all(a, PATH "aX " PATH "aY");
    for (key[12] = 'b'; key[12] < 'a' + SMALL_LIST; key[12]++)
        stage_write(a, key, V1);
    for (key[12] = 'b'; key[12] < 'a' + SMALL_LIST; key[12]++)
        stage_delete(a, key);
    stage_delete(a, PATH "aX");
    run_until_point(a, "smart:merge", FAR_OP_DELETE, PATH "aY", NULL);
    run_until_point(c, "smart:frozen", FAR_OP_INSERT, PATH "q", V1);
    stage_start(b, FAR_OP_INSERT, "npppQ", V2);
    assert_int_equal(far_sim_run_client(b->client), FAR_SIM_ENDED);
    assert_int_equal(b->result, 0);
    assert_true(stage_reads(b, "npppQ", V2) && stage_reads(b, PATH "aY", NULL));
    stage_finish(a);
    stage_finish(c);
    assert_true(stage_reads(b, PATH "q", V1));
    stage_close(&s);
}


/* ---- Many clients insert into one list ---- */

/* A inserts into a list. The first `times` CASes of A fail, because B binds the first unbound slot immediately before
 * each of them. With `full`, there is no memory for a DIR node. */
static void lose_the_first_unbound_slot(unsigned times, bool full) {
    uint32_t bytes = smart_layout_bytes(SMART_DIR);
    char key[] = "n?";
    open_stage(NULL, NULL);
    put_all(a, "nA nB");
    put_all(b, "nC"); /* These puts give both clients memory for leaves. */
    for (unsigned node = 0; full && node < 2; node++)
        fill_for(node, SMART_TYPE_NODE, bytes, false);
    stage_start(a, FAR_OP_INSERT, "nz", V2);
    far_sim_on_verb(s.world, note_written, &bytes);
    written = 0;
    for (unsigned i = 0; i < times; i++) {
        stage_stop_at(a, (far_sim_match){.kind = FAR_SIM_CAS});
        key[1] = (char)('a' + i);
        stage_write(b, key, V1);
        far_sim_resume(a->client);
    }
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_int_equal(written != 0, times >= SMART_CONTENTION_LIMIT && !full);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_true(stage_scans(c, "n", times == 3 ? "nA nB nC na nb nc nz" : "nA nB nC na nb nz"));
    if (full)
        /* The stage is closed without a check, because the objects that fill the pool are unreachable. */
        stage_tear_down(&s);
    else
        stage_close(&s);
}


/* An insert that has lost SMART_CONTENTION_LIMIT races for the first unbound slot replaces the list by a DIR node with
 * its key, although the list has room (list_is_contended in write_insert.c). If it has lost one race fewer, it takes a
 * slot of the list. If there is no memory for a DIR node, the list stays. */
TEST(a_contended_list_becomes_a_direct_node) {
    lose_the_first_unbound_slot(SMART_CONTENTION_LIMIT - 1, false);
    lose_the_first_unbound_slot(SMART_CONTENTION_LIMIT, false);
    lose_the_first_unbound_slot(SMART_CONTENTION_LIMIT, true);
}


/* Reused memory of a DIR node. */

enum { MANY = 62 }; /* number of children: a list has fewer slots, so this number needs a DIR node */


static void each_of_many(char *key, unsigned count, far_op_kind does) {
    for (unsigned i = 0; i < count; i++) {
        key[2] = (char)('!' + i);
        assert_int_equal(stage_do(a, does, key, V1), 0);
    }
}


/* C's cache contains the word of a DIR node, so C READs only a slot of the node. The node is removed. In its memory A
 * writes a copy of a node with the same prefix, with the leaf of a new key, and stops before its CAS of the slot above.
 * C must not find the leaf before the copy is linked. Returns false without a test if copy and slot are on one memory
 * node, because A then posts the WRITE and the CAS in one batch and cannot be stopped in between. */
static bool see_a_leaf_early(char second) {
    char key[] = "n??", last[] = "n??";
    uint32_t node_bytes = smart_layout_bytes(SMART_DIR), list_bytes = smart_layout_bytes(SMART_L128);
    key[1] = last[1] = second;
    last[2] = '!' + MANY - 1;
    open_stage(NULL, NULL);
    far_sim_on_verb(s.world, note_written, &list_bytes);
    stage_write(a, "nzz", V1);
    stage_write(a, "nyy", V1);
    far_addr parent = written;
    far_sim_on_verb(s.world, note_written, &node_bytes);
    each_of_many(key, MANY, FAR_OP_INSERT);
    far_addr known = written;
    bool apart = far_addr_node(known) != far_addr_node(parent);
    if (apart) {
        assert_true(stage_reads(c, "nzz", V1)); /* Afterwards C's cache contains the word of the DIR node. */
        each_of_many(key, MANY, FAR_OP_DELETE);
        stage_free_retired(&s);
        each_of_many(key, MANY - 1, FAR_OP_INSERT);
        run_until_point(a, "smart:frozen", FAR_OP_INSERT, last, LONG);
        far_sim_resume(a->client);
        stage_stop_at(a, (far_sim_match){.kind = FAR_SIM_CAS});
        assert_int_equal(written, known);
        assert_true(stage_reads(c, last, NULL));
        stage_finish(a);
        assert_true(stage_reads(c, last, LONG));
    }
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
    return apart;
}


/* A client with a stale slot address of a DIR node must not find a leaf in a copy that is not linked yet. Fails if the
 * leaf of a copy in recycled memory is written LIVE (seen_early in replace_frozen_node, restructure.c). */
TEST(a_leaf_in_an_old_node_is_not_seen_before_it_is_linked) {
    unsigned seen_apart = 0;
    for (char second = 'a'; second < 'm' && seen_apart == 0; second++)
        seen_apart += see_a_leaf_early(second);
    assert_int_equal(seen_apart, 1);
}
