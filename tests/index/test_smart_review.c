/* SMART, more named interleavings: cases that a review of the code asked about. What was wrong stands at each test. */
#include "actors.h"
#include "index/smart/smart.h"
#include "pool/handle.h"
#include "stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define V1 "value--1"
#define V2 "value--2"

static actors s;
static actor *const a = &s.a[0], *const b = &s.a[1], *const c = &s.a[2];


static void put_all(actor *by, const char *keys) {
    char copy[1024], *next = copy, *key;
    snprintf(copy, sizeof(copy), "%s", keys);
    while ((key = strsep(&next, " ")))
        assert_int_equal(actor_do(by, ACTOR_PUT, key, V1), 0);
}


/* The operation of `by` stands at the point. */
static void stand(actor *by, const char *point, actor_does does, const char *key, const char *value) {
    actor_start(by, "stands", does, key, value);
    actor_stop_at(by, point);
    actor_run_to_stop(by);
}


/* ---- Nodes in which nothing is left ---- */

#define PATH "nppppppppppp" /* longer than what a node tells of its prefix */

/* A node on a long path has two nodes below it; the last key of one of them was deleted, and that node is not yet taken
 * out. */
static void empty_one_branch(void) {
    actors_up(&s, 3, "smart", "", "");
    put_all(a, PATH "aX " PATH "aY " PATH "bX " PATH "bY");
    assert_int_equal(actor_do(a, ACTOR_DELETE, PATH "bX", NULL), 0);
    stand(a, "smart:merge", ACTOR_DELETE, PATH "bY", NULL);
}


/* The scan asked a leaf below for the prefix of the node, found the empty branch, took the node for empty and left out
 * what lies in the other branch. */
static void scan_beside_an_empty_branch(void **state) {
    (void)state;
    empty_one_branch();
    assert_int_equal(actor_do(b, ACTOR_SCAN, "npppQ", NULL), 2);
    assert_string_equal(b->seen, PATH "aX " PATH "aY ");
    assert_int_equal(actor_do(b, ACTOR_SCAN, "npppz", NULL), 0);
    actor_finish(a);
    actors_down(&s);
}


/* The insert replaced the node by a copy of itself, again and again. */
static void insert_beside_an_empty_branch(void **state) {
    (void)state;
    empty_one_branch();
    actor_start(b, "inserts", ACTOR_INSERT, "npppQ", V2);
    assert_int_equal(far_sim_run_client(b->client), FAR_SIM_ENDED);
    assert_int_equal(b->result, 0);
    assert_true(actor_reads(c, "npppQ", V2) && actor_reads(c, PATH "aX", V1) && actor_reads(c, PATH "bY", NULL));
    actor_finish(a);
    actors_down(&s);
}


/* Nothing at all is left below, in two levels. */
static void insert_above_empty_branches(void **state) {
    (void)state;
    empty_one_branch();
    assert_int_equal(actor_do(c, ACTOR_DELETE, PATH "aX", NULL), 0);
    stand(c, "smart:merge", ACTOR_DELETE, PATH "aY", NULL);
    actor_start(b, "inserts", ACTOR_INSERT, "npppQ", V2);
    assert_int_equal(far_sim_run_client(b->client), FAR_SIM_ENDED);
    assert_int_equal(b->result, 0);
    assert_true(actor_reads(b, "npppQ", V2) && actor_reads(b, PATH "aX", NULL));
    actor_finish(a);
    actor_finish(c);
    assert_int_equal(actor_do(b, ACTOR_SCAN, "n", NULL), 1);
    actors_down(&s);
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
    by->result = far_pool_check(by->session, 1, stage_fail_at_problem, NULL);
    by->ended = true;
}


/* The walk of a sweep goes in slices. After the slice that ends with "na" the node with that key is merged away, so that the node
 * below takes its place, and all keys of that one are deleted by one who dies before it takes the node out. The walk did
 * not tell of it, and the sweep freed a node that is linked. */
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

    far_addr root = smart_state_of(st.c.index)->stripe[0];
    st.c.ended = false;
    st.c.client = far_sim_start(st.c.pool->fabric, "sweeps", sweep, &st.c);
    stage_stop_at(&st.c, (far_sim_match){.kind = FAR_SIM_READ, .from = root, .to = root + 8, .nth = 4}); /* the check before it has two slices too */
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

/* A list full of tombstones: an insert that came through the cache must find the slot above it, and goes down once more,
 * to READ the node there as a whole. Meanwhile the node is gone and a small one is in its place: it was READ as if it
 * were as large, and the insert failed with FAR_ERR_CORRUPT. */
static void way_down_to_another_node(void **state) {
    char key[] = "nA";
    (void)state;
    actors_up(&s, 2, "smart", "", "");
    for (char part = 'A'; part < 'A' + 28; part++) {
        key[1] = part;
        assert_int_equal(actor_do(b, ACTOR_PUT, key, V1), 0);
    }
    for (char part = 'A'; part < 'A' + 28; part++) {
        key[1] = part;
        assert_true(actor_reads(a, key, V1));
    }
    for (char part = 'A'; part < 'A' + 26; part++) {
        key[1] = part;
        assert_int_equal(actor_do(b, ACTOR_DELETE, key, NULL), 0);
    }
    actor_start(a, "inserts", ACTOR_INSERT, "nx", V2);
    actor_stop_at(a, "smart:found");
    actor_run_to_stop(a);
    key[1] = 'A' + 26;
    assert_int_equal(actor_do(b, ACTOR_DELETE, key, NULL), 0);
    key[1] = 'A' + 27;
    assert_int_equal(actor_do(b, ACTOR_DELETE, key, NULL), 0);
    put_all(b, "na nb");
    actor_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(actor_reads(b, "nx", V2) && actor_reads(b, "na", V1));
    actors_down(&s);
}


/* ---- Recycled memory ---- */

/* What the root's slot for this byte names. */
static far_addr leaf_at(char first) {
    far_addr slot = smart_root_slot(smart_state_of(a->index), (uint8_t)first);
    uint64_t word;
    memcpy(&word, (const char *)far_sim_memory(s.world, far_addr_node(slot)) + far_addr_offset(slot), 8);
    assert_int_equal(smart_word_is(word), SMART_LEAF);
    return smart_word_addr(word);
}


static void poll_some(actor *first, actor *second, unsigned times, bool move) {
    for (unsigned i = 0; i < times; i++) {
        if (move)
            far_epoch_request(first->pool);
        far_sim_sleep(s.world, 100000);
        far_pool_poll(first->pool);
        if (second)
            far_pool_poll(second->pool);
    }
}


/* The cache of a names the leaf L1, which was replaced by L2 long ago. a READs L1 before that is reused, and L2 after
 * that: it is the LIVE leaf of another key. L1 then is the leaf of the key again, and its word the one that a knew: a took
 * it for the leaf of that other key, and said that the key is absent. */
static void old_chain_into_a_new_life(void **state) {
    (void)state;
    char other[] = "?k";
    actors_up(&s, 3, "smart", "update=rcu", "");
    assert_int_equal(actor_do(b, ACTOR_PUT, "nk", V1), 0);
    far_addr first = leaf_at('n');
    assert_true(actor_reads(a, "nk", V1));
    assert_int_equal(actor_do(b, ACTOR_PUT, "nk", V1), 0);
    far_addr second = leaf_at('n');
    poll_some(b, NULL, 40, false); /* b falls asleep, with L1 among what it has retired */
    assert_int_equal(actor_do(c, ACTOR_PUT, "nk", V1), 0);
    assert_true(leaf_at('n') != second && first != second);
    poll_some(c, a, 60, true); /* c frees L2 and uses it again */
    for (other[0] = 'A'; other[0] <= 'Z' && (other[0] == 'A' || leaf_at(other[0] - 1) != second); other[0]++)
        assert_int_equal(actor_do(c, ACTOR_PUT, other, V2), 0);
    assert_true(leaf_at(other[0] - 1) == second);

    actor_start(a, "reads", ACTOR_GET, "nk", NULL);
    far_sim_stop_before(a->client, (far_sim_match){.kind = FAR_SIM_READ, .from = second, .to = second + 8});
    actor_run_to_stop(a);
    for (unsigned i = 0; i < 200 && leaf_at('n') != first; i++) {
        assert_int_equal(actor_do(b, ACTOR_PUT, "nk", V2), 0);
        poll_some(b, NULL, 1, false);
    }
    assert_true(leaf_at('n') == first);
    actor_finish(a);
    assert_int_equal(a->result, 0);
    assert_int_equal(a->length, strlen(V2));
    assert_memory_equal(a->value, V2, strlen(V2));
    actors_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scan_beside_an_empty_branch),
        cmocka_unit_test(insert_beside_an_empty_branch),
        cmocka_unit_test(insert_above_empty_branches),
        cmocka_unit_test(walk_tells_of_a_node_that_became_empty),
        cmocka_unit_test(way_down_to_another_node),
        cmocka_unit_test(old_chain_into_a_new_life),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
