/* SMART: branches that are empty or leave their memory node, and a full pool. What was wrong stands at each test. */
#include "index/smart/smart.h"
#include "pool/handle.h"
#include "pool/sweep.h"
#include "stage.h"
#include "task/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define V1 "value--1"
#define V2 "value--2"

static stage s;
static stage_actor *const a = &s.a, *const b = &s.b, *const c = &s.c;


/* The handles have no housekeeping: what an operation leaves to be done later it does itself, before it returns. */
static void up(const char *options) {
    stage_open_by_hand(&s, "smart", options, NULL);
}


static void down(void) {
    assert_int_equal(far_index_check(c->session, c->index, fail_at_problem, NULL), 0);
    world_assert_watch_is_content(s.world);
    stage_tear_down(&s);
}


static void put_all(stage_actor *by, const char *keys) {
    char copy[1024], *next = copy, *key;
    snprintf(copy, sizeof(copy), "%s", keys);
    while ((key = strsep(&next, " ")))
        stage_write(by, key, V1);
}


/* The operation of `by` stands at the point. */
static void stand(stage_actor *by, const char *point, far_op_kind kind, const char *key, const char *value) {
    stage_start(by, kind, key, value);
    stage_stop_at(by, (far_sim_match){.point = point});
}


/* ---- Nodes in which nothing is left ---- */

#define PATH "nppppppppppp" /* longer than what a node tells of its prefix */

/* A node on a long path has two nodes below it; the last key of one of them was deleted, and that node is not yet taken
 * out. */
static void empty_one_branch(void) {
    up(NULL);
    put_all(a, PATH "aX " PATH "aY " PATH "bX " PATH "bY");
    stage_delete(a, PATH "bX");
    stand(a, "smart:merge", FAR_OP_DELETE, PATH "bY", NULL);
}


/* The scan asked a leaf below for the prefix of the node, found the empty branch, took the node for empty and left out
 * what lies in the other branch. */
static void scan_beside_an_empty_branch(void **state) {
    (void)state;
    empty_one_branch();
    assert_int_equal(stage_do(b, FAR_OP_SCAN, "npppQ", NULL), 2);
    assert_string_equal(b->keys[0], PATH "aX");
    assert_string_equal(b->keys[1], PATH "aY");
    assert_int_equal(stage_do(b, FAR_OP_SCAN, "npppz", NULL), 0);
    stage_finish(a);
    down();
}


/* The insert replaced the node by a copy of itself, again and again. */
static void insert_beside_an_empty_branch(void **state) {
    (void)state;
    empty_one_branch();
    stage_start(b, FAR_OP_INSERT, "npppQ", V2);
    assert_int_equal(far_sim_run_client(b->client), FAR_SIM_ENDED);
    assert_int_equal(b->result, 0);
    assert_true(stage_reads(c, "npppQ", V2) && stage_reads(c, PATH "aX", V1) && stage_reads(c, PATH "bY", NULL));
    stage_finish(a);
    down();
}


/* Nothing at all is left below, in two levels. */
static void insert_above_empty_branches(void **state) {
    (void)state;
    empty_one_branch();
    stage_delete(c, PATH "aX");
    stand(c, "smart:merge", FAR_OP_DELETE, PATH "aY", NULL);
    stage_start(b, FAR_OP_INSERT, "npppQ", V2);
    assert_int_equal(far_sim_run_client(b->client), FAR_SIM_ENDED);
    assert_int_equal(b->result, 0);
    assert_true(stage_reads(b, "npppQ", V2) && stage_reads(b, PATH "aX", NULL));
    stage_finish(a);
    stage_finish(c);
    assert_int_equal(stage_do(b, FAR_OP_SCAN, "n", NULL), 1);
    down();
}


/* Deletes two keys, and stays inside calls, so that what is to be tidied up afterwards is done by this client. */
static void delete_both(void *arg) {
    stage_actor *by = arg;
    char byte;
    far_delete(by->session, by->index, "nbbbbbbbbbbbbx", 14);
    far_delete(by->session, by->index, "nbbbbbbbbbbbby", 14);
    for (unsigned i = 0; i < 64; i++)
        far_get(by->session, by->index, "~", 1, &byte, 1, NULL);
    by->ended = true;
}


static void sweep(void *arg) {
    stage_actor *by = arg;
    by->result = far_pool_check(by->session, 1, fail_at_problem, NULL);
    by->ended = true;
}


/* The walk of a sweep goes in slices. After the slice that ends with "na" the node with that key is merged away, so
 * that the node below takes its place, and all keys of that one are deleted by one who dies before it takes the node
 * out. The walk did not tell of it, and the sweep freed a node that is linked. */
static void walk_tells_of_a_node_that_became_empty(void **state) {
    stage st;
    char key[8];
    (void)state;
    stage_open(&st, "smart", NULL, NULL);
    for (unsigned i = 0; i < 511; i++) {
        snprintf(key, sizeof(key), "m%03u", i);
        stage_write(&st.a, key, V1);
    }
    stage_write(&st.a, "na", V1);
    stage_write(&st.a, "nbbbbbbbbbbbbx", V1);
    stage_write(&st.a, "nbbbbbbbbbbbby", V1);

    far_addr slot = smart_root_slot(smart_state_of(st.c.index), 'n'); /* all slices READ it */
    st.c.ended = false;
    st.c.client = far_sim_start(st.c.pool->fabric, "sweeps", sweep, &st.c);
    stage_stop_at(&st.c, (far_sim_match){.kind = FAR_SIM_READ,
                                         .from = slot,
                                         .to = slot + 8,
                                         .nth = 4}); /* the check before it has two slices too */
    stage_delete(&st.a, "na");
    for (unsigned i = 0; i < 40; i++) { /* awake, until the merge */
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


/* ---- The way down to a full node ---- */

/* A list full of tombstones: an insert that came through the cache must find the slot above it, and goes down once
 * more, to READ the node there as a whole. Meanwhile the node is gone and a small one is in its place: it was READ as
 * if it were as large, and the insert failed with FAR_ERR_CORRUPT. */
static void way_down_to_another_node(void **state) {
    char key[] = "nA";
    (void)state;
    up(NULL);
    for (char part = 'A'; part < 'A' + 28; part++) {
        key[1] = part;
        stage_write(b, key, V1);
    }
    for (char part = 'A'; part < 'A' + 28; part++) {
        key[1] = part;
        assert_true(stage_reads(a, key, V1));
    }
    for (char part = 'A'; part < 'A' + 26; part++) {
        key[1] = part;
        stage_delete(b, key);
    }
    stand(a, "smart:found", FAR_OP_INSERT, "nx", V2);
    key[1] = 'A' + 26;
    stage_delete(b, key);
    key[1] = 'A' + 27;
    stage_delete(b, key);
    put_all(b, "na nb");
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(b, "nx", V2) && stage_reads(b, "na", V1));
    down();
}


/* ---- Recycled memory ---- */

/* What the root's slot for this byte names. */
static far_addr leaf_at(char first) {
    far_addr slot = smart_root_slot(smart_state_of(a->index), (uint8_t)first);
    uint64_t word = world_word(s.world, slot);
    assert_int_equal(smart_word_is(word), SMART_LEAF);
    return smart_word_addr(word);
}


static int tick_epoch(far_task *t, void *arg) {
    (void)arg;
    return far_epoch_tick(t);
}


/* The cache of a names the leaf L1, which was replaced by L2 long ago. a READs L1 before that is reused, and L2 after
 * that: it is the LIVE leaf of another key. L1 then is the leaf of the key again, and its word the one that a knew: a
 * took it for the leaf of that other key, and said that the key is absent. */
static void old_chain_into_a_new_life(void **state) {
    (void)state;
    char other[] = "?k";
    up("update=rcu");
    stage_write(b, "nk", V1);
    far_addr first = leaf_at('n');
    assert_true(stage_reads(a, "nk", V1));
    stage_write(b, "nk", V1);
    far_addr second = leaf_at('n');
    stage_write(c, "nk", V1);
    assert_true(leaf_at('n') != second && first != second);
    for (unsigned i = 0; i < 60;
         i++) { /* c frees L2 and uses it again; b follows the epoch, and has not freed L1 yet */
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
    down();
}


/* ---- A full pool ---- */

static unsigned fill(stage_actor *by, size_t bytes, unsigned *serial) {
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


/* a dies while it writes a value in place, the leaf is torn. Who completes that took memory for a redo record of its
 * own: in a full pool the key could not be read, and no sweep could free what a had left. */
static void update_of_the_dead_in_a_full_pool(void **state) {
    char old[201], new[201];
    unsigned serial = 0;
    (void)state;
    memset(old, 'o', 200);
    memset(new, 'n', 200);
    old[200] = new[200] = 0;
    stage_open(&s, "smart", NULL, "size=1M");
    stage_write(a, "nk", old);
    stage_write(a, "nk", old); /* in place: from now on it has a redo record of its own */
    far_addr leaf = leaf_at('n');
    fill(b, 1500, &serial);
    fill(b, 700, &serial);
    fill(b, 100, &serial);
    stage_start(a, FAR_OP_UPDATE, "nk", new);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = leaf + 8, .to = leaf + 16}, 1);
    far_sim_run_client(a->client);
    assert_true(far_sim_killed(a->pool->fabric));
    assert_true(stage_reads(c, "nk", new));
    stage_check(&s);
    assert_true(stage_reads(b, "nk", new));
    stage_tear_down(&s);
}


/* a dies when it has frozen a node. In a full pool there is no memory for the copy: who only reads took it for an
 * error, and a sweep, which reads as well, never came to free what a had left. */
static void frozen_by_the_dead_in_a_full_pool(void **state) {
    char key[] = "nA";
    unsigned serial = 0;
    (void)state;
    stage_open(&s, "smart", NULL, "size=1M");
    for (; key[1] < 'A' + (char)smart_layout_slots(SMART_L128); key[1]++)
        stage_write(a, key, V1);
    stand(a, "smart:frozen", FAR_OP_INSERT, "nZ", V2);
    stage_kill(&s, a);
    fill(b, 1500, &serial);
    fill(b, 100, &serial);
    fill(b, 8, &serial);
    far_session *early = c->session;
    assert_int_equal(far_session_open(c->pool, &c->session), 0); /* it comes too late to have a reserve */
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
    far_session_close(c->session);
    c->session = early;
    stage_check(&s);
    stage_tear_down(&s);
}


static int sweep_task(far_task *t, void *arg) {
    far_sweep_result result;
    (void)arg;
    return far_sweep(t, FAR_SWEEP_REPAIR, &result);
}


static void sweep_dead(void *arg) {
    stage_actor *by = arg;
    by->result = far_session_call(by->session, FAR_STATS_OTHER, true, sweep_task, NULL);
    by->ended = true;
}


/* a dies with the lock; b completes what it would have written, under the record of a, and dies after the walk of a
 * sweep saw it at that. The record must not go with a: nobody could ever tell whose the lock is. (The walk that does
 * not tell of it: the last update waits for ever.) */
static void record_of_the_dead_in_use(void **state) {
    char old[201], new[201];
    far_sim_match request = {.kind = FAR_SIM_CAS, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8};
    (void)state;
    memset(old, 'o', 200);
    memset(new, 'n', 200);
    old[200] = new[200] = 0;
    stage_open(&s, "smart", NULL, NULL);
    stage_write(c, "nk", old);
    far_addr root = smart_state_of(c->index)->stripe[0];
    stand(a, "smart:locked", FAR_OP_UPDATE, "nk", new);
    stage_kill(&s, a);

    c->ended = false;
    c->client = far_sim_start(c->pool->fabric, "sweeps", sweep_dead, c);
    stage_stop_at(c, (far_sim_match){.point = "sweep:walk"});
    stage_stop_at(c, (far_sim_match){.kind = FAR_SIM_READ, .from = root, .to = root + 8});
    stand(b, "smart:taken_over", FAR_OP_UPDATE, "nk", new);
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


/* What a knows of the node is too much, because b has made it smaller: a takes it for full, READs all of it to replace
 * it, and finds that the key goes further down, to a node that is full. That one is to grow, not the one that was READ:
 * in its place a copy of the other was put, and its keys were lost. */
static void a_node_that_was_read_is_not_the_one_that_grows(void **state) {
    (void)state;
    up("merge=eager");
    each_key(insert_key, b, "a%c1", 0, 12);
    each_key(insert_key, b, "a%c2", 0, 12);
    for (unsigned round = 0; round < 3; round++) {
        each_key(get_key, a, "a%c1", 0, 12);
        each_key(get_key, a, "a%c2", 0, 12);
    }
    each_key(delete_key, b, "a%c1", 2, 12);
    each_key(delete_key, b, "a%c2", 2, 12);
    assert_int_equal(insert_key(b, "az1"), 0);
    assert_int_equal(get_key(a, "az1"), 0);
    assert_int_equal(insert_key(b, "ayr1"), 0);
    each_key(insert_key, b, "ayq%c", 0, 12);
    assert_int_equal(insert_key(a, "ayq!"), 0);
    each_key(get_key, c, "ayq%c", 0, 12);
    assert_int_equal(get_key(c, "ayq!"), 0);
    assert_int_equal(get_key(c, "ayr1"), 0);
    down();
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scan_beside_an_empty_branch),
        cmocka_unit_test(insert_beside_an_empty_branch),
        cmocka_unit_test(insert_above_empty_branches),
        cmocka_unit_test(walk_tells_of_a_node_that_became_empty),
        cmocka_unit_test(way_down_to_another_node),
        cmocka_unit_test(old_chain_into_a_new_life),
        cmocka_unit_test(update_of_the_dead_in_a_full_pool),
        cmocka_unit_test(record_of_the_dead_in_use),
        cmocka_unit_test(frozen_by_the_dead_in_a_full_pool),
        cmocka_unit_test(a_node_that_was_read_is_not_the_one_that_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
