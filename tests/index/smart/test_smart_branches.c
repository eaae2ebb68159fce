/* SMART: tests of branches of the tree that have become empty, of reused memory, and of full pools. Each comment
 * describes the error that occurred before the guard existed. */
#include "index/smart/smart.h"
#include "pool/gc/collect.h"
#include "pool/handle.h"
#include "stage.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define V1 "value--1"
#define V2 "value--2"

static stage s;
static stage_actor *const a = &s.a, *const b = &s.b, *const c = &s.c;


/* The handles have no housekeeping thread, so an operation does its background work before it returns. */
static void open_stage(const char *options) {
    stage_open_without_housekeeping(&s, "smart", options, NULL);
}


static void check_and_tear_down(void) {
    assert_int_equal(far_index_check(c->session, c->index, fail_at_problem, NULL), 0);
    world_assert_no_checker_error(s.world);
    stage_tear_down(&s);
}


static void put_all(stage_actor *by, const char *keys) {
    char copy[1024], *next = copy, *key;
    snprintf(copy, sizeof(copy), "%s", keys);
    while ((key = strsep(&next, " ")))
        stage_write(by, key, V1);
}


/* Starts an operation of `by` and runs it up to the point, where it stops. */
static void run_until_point(stage_actor *by, const char *point, far_op_kind kind, const char *key, const char *value) {
    stage_start(by, kind, key, value);
    stage_stop_at(by, (far_sim_match){.point = point});
}


/* Nodes without children. */

#define PATH "nppppppppppp" /* longer than the part of a prefix that a node's header contains */

/* Makes a node with a long prefix and two nodes below it. A deletes both keys of the second one and stops before it
 * removes this empty node (the empty branch). */
static void open_with_an_empty_branch(void) {
    open_stage(NULL);
    put_all(a, PATH "aX " PATH "aY " PATH "bX " PATH "bY");
    stage_delete(a, PATH "bX");
    run_until_point(a, "smart:merge", FAR_OP_DELETE, PATH "bY", NULL);
}


/* The header of a node does not contain a long prefix as a whole, so a scan takes the prefix from the key of any leaf
 * below the node. Here the scan meets the empty branch first. It must continue with the other branch, or read the whole
 * subtree. Fails if find_key_below (node.c) ends at the empty branch and find_side (scan_nodes.c) also leaves out a
 * node with an unknown prefix: the keys of the other branch are missing then. */
TEST(scan_with_an_empty_branch) {
    open_with_an_empty_branch();
    assert_int_equal(stage_do(b, FAR_OP_SCAN, "npppQ", NULL), 2);
    assert_string_equal(b->keys[0], PATH "aX");
    assert_string_equal(b->keys[1], PATH "aY");
    assert_int_equal(stage_do(b, FAR_OP_SCAN, "npppz", NULL), 0);
    stage_finish(a);
    check_and_tear_down();
}


/* B inserts a key that differs from the long prefix of a node. To find the byte at which they differ, B needs the key
 * of a leaf below the node, and meets the empty branch first. Fails if find_key_below (node.c) ends at the empty branch
 * and branch_at_node (write_insert.c) then replaces the node with the long prefix, because this node would be replaced
 * by an equal copy again and again. */
TEST(insert_next_to_an_empty_branch) {
    open_with_an_empty_branch();
    stage_start(b, FAR_OP_INSERT, "npppQ", V2);
    assert_int_equal(far_sim_run_client(b->client), FAR_SIM_ENDED);
    assert_int_equal(b->result, 0);
    assert_true(stage_reads(c, "npppQ", V2) && stage_reads(c, PATH "aX", V1) && stage_reads(c, PATH "bY", NULL));
    stage_finish(a);
    check_and_tear_down();
}


/* Both nodes below the node with the long prefix are empty, so no leaf contains this prefix. B's insert must first
 * replace the empty nodes (branch_at_node in write_insert.c), and then end. */
TEST(insert_above_empty_branches) {
    open_with_an_empty_branch();
    stage_delete(c, PATH "aX");
    run_until_point(c, "smart:merge", FAR_OP_DELETE, PATH "aY", NULL);
    stage_start(b, FAR_OP_INSERT, "npppQ", V2);
    assert_int_equal(far_sim_run_client(b->client), FAR_SIM_ENDED);
    assert_int_equal(b->result, 0);
    assert_true(stage_reads(b, "npppQ", V2) && stage_reads(b, PATH "aX", NULL));
    stage_finish(a);
    stage_finish(c);
    assert_int_equal(stage_do(b, FAR_OP_SCAN, "n", NULL), 1);
    check_and_tear_down();
}


/* Deletes two keys, and then gets an absent key 64 times. The gets give the background work of the deletes time to run
 * in this session. */
static void delete_both(void *arg) {
    stage_actor *by = arg;
    char byte;
    far_delete(by->session, by->index, "nbbbbbbbbbbbbx", 14);
    far_delete(by->session, by->index, "nbbbbbbbbbbbby", 14);
    for (unsigned i = 0; i < 64; i++)
        far_get(by->session, by->index, "~", 1, &byte, 1, NULL);
    by->ended = true;
}


static void run_full_check(void *arg) {
    stage_actor *by = arg;
    by->result = far_pool_check(by->session, 1, fail_at_problem, NULL);
    by->ended = true;
}


/* C walks the tree in slices, and the first slice ends with "na". A deletes "na". Its node is merged away, and the
 * node's child, another node X, takes its place. B deletes all keys of X and fails before it removes X. C's second
 * slice must report X, because the first slice did not, although no leaf below X shows that X is behind "na". Fails if
 * find_side (scan_nodes.c) leaves out such a node: the collection would free X although it is linked. */
TEST(a_walk_reports_a_node_that_became_empty) {
    stage st;
    char key[8];
    stage_open(&st, "smart", NULL, NULL);
    for (unsigned i = 0; i < 511; i++) {
        snprintf(key, sizeof(key), "m%03u", i);
        stage_write(&st.a, key, V1);
    }
    stage_write(&st.a, "na", V1);
    stage_write(&st.a, "nbbbbbbbbbbbbx", V1);
    stage_write(&st.a, "nbbbbbbbbbbbby", V1);

    far_addr slot = smart_root_slot(smart_state_of(st.c.index), 'n'); /* every slice of the walk READs this slot */
    st.c.ended = false;
    st.c.client = far_sim_start(st.c.pool->fabric, "sweeps", run_full_check, &st.c);
    stage_stop_at(&st.c, (far_sim_match){.kind = FAR_SIM_READ,
                                         .from = slot,
                                         .to = slot + 8,
                                         /* The check before the walk also has two slices, which must be let through. */
                                         .nth = 4});
    stage_delete(&st.a, "na");
    for (unsigned i = 0; i < 40; i++) { /* A stays active until its delayed merge runs. */
        far_sim_sleep(st.world, 100000);
        assert_true(stage_reads(&st.a, "na", NULL));
    }

    st.b.ended = false;
    st.b.client = far_sim_start(st.b.pool->fabric, "deletes", delete_both, &st.b);
    stage_stop_at(&st.b, (far_sim_match){.point = "smart:merge"});
    stage_kill(&st, &st.b);
    stage_finish(&st.c);
    assert_int_equal(st.c.result, 0);
    stage_write(&st.a, "nbbbbbbbbbbbbz", V2);
    assert_true(stage_reads(&st.c, "nbbbbbbbbbbbbz", V2) && stage_reads(&st.c, "nbbbbbbbbbbbbx", NULL));
    stage_close(&st);
}


/* Searching for a full node. */

/* A inserts into a list that is full, mostly of tombstones, and that A has found through its cache. To replace the
 * list, A searches again for the slot above it and is about to READ the list as a whole. Meanwhile B deletes the other
 * keys, and a smaller node takes the place of the list. Fails if A READs the new node with the size of the old list:
 * the insert returns FAR_ERR_CORRUPT. The guard is the comparison of the address in step_down (find.c). */
TEST(list_replaced_before_it_is_read_as_a_whole) {
    char key[] = "nA";
    open_stage(NULL);
    /* the keys nA, nB, .. up to, but not including, `end` fill a list of layout SMART_L256 */
    const char end = (char)('A' + smart_layout_slots(SMART_L256));
    for (char part = 'A'; part < end; part++) {
        key[1] = part;
        stage_write(b, key, V1);
    }
    for (char part = 'A'; part < end; part++) {
        key[1] = part;
        assert_true(stage_reads(a, key, V1));
    }
    for (char part = 'A'; part < end - 2; part++) {
        key[1] = part;
        stage_delete(b, key);
    }
    run_until_point(a, "smart:search_done", FAR_OP_INSERT, "nx", V2);
    key[1] = (char)(end - 2);
    stage_delete(b, key);
    key[1] = (char)(end - 1);
    stage_delete(b, key);
    put_all(b, "na nb");
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(b, "nx", V2) && stage_reads(b, "na", V1));
    check_and_tear_down();
}


/* Recycled memory. */

/* Returns the address of the leaf that the root's slot for this byte names. */
static far_addr leaf_at(char first) {
    far_addr slot = smart_root_slot(smart_state_of(a->index), (uint8_t)first);
    uint64_t word = world_word(s.world, slot);
    assert_int_equal(smart_word_kind_of(word), SMART_LEAF);
    return smart_word_addr(word);
}


static int tick_epoch(far_task *t, void *arg) {
    (void)arg;
    return far_epoch_tick(t);
}


/* A's cache names leaf L1, which was replaced by L2 long ago. A READs L1 before the memory of L1 is reused, and L2
 * after the memory of L2 has become the leaf of another key. Then the memory of L1 becomes the leaf of A's key again,
 * so that the slot word equals the word in A's cache. Fails if A concludes that the word in the slot still leads to the
 * leaf of the other key, and returns "absent" (follow_cached_leaf in find_cached.c remembers only the leaf that the
 * word itself names). */
TEST(an_old_chain_leads_into_reused_memory) {
    char other[] = "?k";
    open_stage("update=rcu");
    stage_write(b, "nk", V1);
    far_addr first = leaf_at('n');
    assert_true(stage_reads(a, "nk", V1));
    stage_write(b, "nk", V1);
    far_addr second = leaf_at('n');
    stage_write(c, "nk", V1);
    assert_true(leaf_at('n') != second && first != second);
    /* C frees L2 and reuses its memory. B observes the new epochs, but has not freed L1 yet. */
    for (unsigned i = 0; i < 60; i++) {
        far_epoch_request(c->pool);
        far_sim_sleep(s.world, 100000);
        far_pool_poll(c->pool);
        far_pool_poll(a->pool);
        assert_true(far_session_call(b->session, FAR_STATS_OTHER, true, tick_epoch, NULL) >= 0);
    }
    for (other[0] = 'A'; other[0] <= 'Z' && (other[0] == 'A' || leaf_at(other[0] - 1) != second); other[0]++)
        stage_write(c, other, V2);
    assert_true(leaf_at(other[0] - 1) == second);

    stage_start(a, FAR_OP_GET, "nk", NULL);
    stage_stop_at(a, (far_sim_match){.kind = FAR_SIM_READ, .from = second, .to = second + 8});
    for (unsigned i = 0; i < 200 && leaf_at('n') != first; i++)
        stage_write(b, "nk", V2);
    assert_true(leaf_at('n') == first);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_int_equal(a->value_len, strlen(V2));
    assert_memory_equal(a->value, V2, strlen(V2));
    check_and_tear_down();
}


/* Full pools. */

static unsigned fill_pool(stage_actor *by, size_t bytes, unsigned *serial) {
    static char value[STAGE_VALUE_MAX];
    unsigned count = 0;
    char key[16];
    do {
        snprintf(key, sizeof(key), "f%08u", ++*serial);
        by->result = far_put(by->session, by->index, key, strlen(key), value, bytes);
    } while (by->result == 0 && ++count < 100000);
    assert_int_equal(by->result, FAR_ERR_NO_MEMORY);
    return count;
}


/* A fails in the middle of an update in place, in a full pool. B and C must be able to read the key, and a collection
 * must be able to run. Fails if completing the update (complete_update in write_in_place.c) allocates a redo record of
 * its own. */
TEST(interrupted_update_in_a_full_pool) {
    char old[201], new[201];
    unsigned serial = 0;
    memset(old, 'o', 200);
    memset(new, 'n', 200);
    old[200] = new[200] = 0;
    stage_open(&s, "smart", NULL, "size=1M");
    stage_write(a, "nk", old);
    stage_write(a, "nk", old); /* This update in place gives A a redo record. */
    far_addr leaf = leaf_at('n');
    fill_pool(b, 1500, &serial);
    fill_pool(b, 700, &serial);
    fill_pool(b, 100, &serial);
    stage_start(a, FAR_OP_UPDATE, "nk", new);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = leaf + 8, .to = leaf + 16}, 1);
    far_sim_run_client(a->client);
    assert_true(far_sim_killed(a->pool->fabric));
    assert_true(stage_reads(c, "nk", new));
    stage_check(&s);
    assert_true(stage_reads(b, "nk", new));
    stage_tear_down(&s);
}


/* Allocates all memory that is left for the copy of a list of the smallest size. */
static int exhaust_nodes(far_task *t, void *arg) {
    const stage_actor *by = arg;
    far_object object;
    int err = far_pin_take(t);
    while (err >= 0)
        err = far_alloc(t, by->index, SMART_TYPE_NODE, smart_layout_bytes(SMART_L128), FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


/* A stops after it has frozen a node, in a full pool, so that no copy can be made, and fails in the end. Gets, scans,
 * checks and deletes must go on through the frozen words (smart_find_leaf in find.c, accept_frozen in scan_nodes.c). Fails if
 * one of them returns FAR_ERR_NO_MEMORY, because then no collection can run either. */
TEST(frozen_node_in_a_full_pool) {
    char key[] = "nA";
    unsigned serial = 0;
    stage_open(&s, "smart", NULL, "size=1M");
    for (; key[1] < 'A' + (char)smart_layout_slots(SMART_L128); key[1]++)
        stage_write(a, key, V1);
    run_until_point(a, "smart:frozen", FAR_OP_INSERT, "nZ", V2);
    fill_pool(b, 1500, &serial);
    fill_pool(b, 100, &serial);
    fill_pool(b, 8, &serial);
    assert_int_equal(far_session_call(b->session, FAR_STATS_OTHER, true, exhaust_nodes, b), FAR_ERR_NO_MEMORY);
    stage_actor early = *c;
    far_pool_options late = FAR_POOL_OPTIONS_INIT;
    assert_int_equal(far_pool_open(s.uri, &late, &c->pool), 0); /* This handle is opened too late to get a reserve. */
    assert_int_equal(far_session_open(c->pool, &c->session), 0);
    assert_int_equal(far_index_open(c->session, "map", &c->index), 0);
    for (key[1] = 'A'; key[1] < 'A' + (char)smart_layout_slots(SMART_L128); key[1]++)
        assert_true(stage_reads(c, key, V1));
    assert_true(stage_reads(c, "nZ", NULL));
    assert_int_equal(stage_do(c, FAR_OP_SCAN, "nC", NULL), (int)smart_layout_slots(SMART_L128) - 2);
    assert_string_equal(c->keys[0], "nC");
    assert_int_equal(far_index_check(c->session, c->index, fail_at_problem, NULL), 0);
    assert_int_equal(stage_do(c, FAR_OP_INSERT, "nY", V1), FAR_ERR_NO_MEMORY);
    stage_delete(c, "nD");
    assert_true(stage_reads(c, "nD", NULL));
    assert_int_equal(stage_do(c, FAR_OP_SCAN, "nC", NULL), (int)smart_layout_slots(SMART_L128) - 3);
    stage_kill(&s, a); /* only now, because housekeeping would complete the replacement after A's failure */
    far_index_close(c->index);
    far_session_close(c->session);
    far_pool_close(c->pool);
    *c = early;
    stage_check(&s);
    stage_tear_down(&s);
}


static int collection_task(far_task *t, void *arg) {
    far_collect_result result;
    (void)arg;
    return far_collect(t, FAR_COLLECT_REPAIR, &result);
}


static void run_collection(void *arg) {
    stage_actor *by = arg;
    by->result = far_session_call(by->session, FAR_STATS_OTHER, true, collection_task, NULL);
    by->ended = true;
}


/* A fails with a leaf's lock. B completes A's update with A's redo record, and fails after the walk of a collection by
 * C has seen the record. The collection must not free the record with A. The guard is smart_walk_lock
 * (write_in_place.c), which reports the record: without the record no client can find out whose lock it is, and the
 * last update waits for ever. */
TEST(redo_record_in_use_survives_a_collection) {
    char old[201], new[201];
    far_sim_match request = {.kind = FAR_SIM_CAS, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8};
    memset(old, 'o', 200);
    memset(new, 'n', 200);
    old[200] = new[200] = 0;
    stage_open(&s, "smart", NULL, NULL);
    stage_write(c, "nk", old);
    far_addr root = smart_state_of(c->index)->stripe[0];
    run_until_point(a, "smart:locked", FAR_OP_UPDATE, "nk", new);
    stage_kill(&s, a);

    c->ended = false;
    c->client = far_sim_start(c->pool->fabric, "sweeps", run_collection, c);
    stage_stop_at(c, (far_sim_match){.point = "collect:mark_phase"});
    stage_stop_at(c, (far_sim_match){.kind = FAR_SIM_READ, .from = root, .to = root + 8});
    run_until_point(b, "smart:taken_over", FAR_OP_UPDATE, "nk", new);
    stage_stop_at(c, request);
    stage_kill(&s, b);
    stage_finish(c);
    assert_int_equal(c->result, 0);
    stage_start(c, FAR_OP_UPDATE, "nk", old);
    assert_int_equal(far_sim_run_client(c->client), FAR_SIM_ENDED);
    assert_int_equal(c->result, 0);
    assert_true(stage_reads(c, "nk", old));
    stage_check(&s);
    stage_tear_down(&s);
}


static void each_key(int (*does)(stage_actor *by, const char *key), stage_actor *by, const char *format, unsigned from,
                     unsigned to) {
    for (unsigned i = from; i < to; i++) {
        char key[16];
        snprintf(key, sizeof(key), format, 'b' + i);
        assert_int_equal(does(by, key), 0);
    }
}


static int insert_key(stage_actor *by, const char *key) {
    return far_insert(by->session, by->index, key, strlen(key), V1, strlen(V1));
}


static int delete_key(stage_actor *by, const char *key) {
    return far_delete(by->session, by->index, key, strlen(key));
}


static int get_key(stage_actor *by, const char *key) {
    char found[64];
    return far_get(by->session, by->index, key, strlen(key), found, sizeof(found), NULL);
}


/* B has replaced a node by a smaller one, but A's cache still contains the slots of the larger node. So A takes the
 * node for full and READs it as a whole to replace it. Then A finds that its key belongs to another full node below.
 * This other node must grow, and not the one that was READ. Fails if step_down (find.c) keeps the image when it goes to
 * the lower node, and read_whole_node (restructure.c) does not compare its address either. Keys are lost then. */
TEST(a_node_that_was_read_is_not_the_one_that_grows) {
    const unsigned full = smart_layout_slots(SMART_L128); /* children of a full list */
    open_stage("merge=eager");
    each_key(insert_key, b, "a%c1", 0, full);
    each_key(insert_key, b, "a%c2", 0, full);
    for (unsigned round = 0; round < 3; round++) {
        each_key(get_key, a, "a%c1", 0, full);
        each_key(get_key, a, "a%c2", 0, full);
    }
    each_key(delete_key, b, "a%c1", 2, full);
    each_key(delete_key, b, "a%c2", 2, full);
    assert_int_equal(insert_key(b, "az1"), 0);
    assert_int_equal(get_key(a, "az1"), 0);
    assert_int_equal(insert_key(b, "ayr1"), 0);
    each_key(insert_key, b, "ayq%c", 0, full);
    assert_int_equal(insert_key(a, "ayq!"), 0);
    each_key(get_key, c, "ayq%c", 0, full);
    assert_int_equal(get_key(c, "ayq!"), 0);
    assert_int_equal(get_key(c, "ayr1"), 0);
    check_and_tear_down();
}
