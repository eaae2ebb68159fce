/* SMART: what lies on another memory node than the word that will name it is written, and waited for, before; chains of
 * replaced leaves that are longer than what is cut out at once; nodes that are frozen above empty ones; memory that
 * comes back, after lost CASes too. */
#include "index/smart/smart.h"
#include "pool/alloc.h"
#include "pool/epoch.h"
#include "smart_rig.h"
#include "task/session.h"

#define FILL 32768u
#define LEAF 40u /* bytes of the leaves here */


typedef struct fullness { /* of a memory node: for objects of this type too */
    unsigned node, type;
    uint64_t bytes;
} fullness;


static int fill_node(far_task *t, void *arg) {
    far_object object;
    const fullness *full = arg;
    int err = far_pin_take(t);
    t->swaps = true; /* also the last one, which is held back for updates */
    while (err == 0)
        err = far_alloc(t, NULL, 5, FILL, full->node, FAR_ALLOC_ON_NODE, &object);
    if (err == FAR_ERR_NO_MEMORY)
        for (err = 0; err == 0;)
            err = far_alloc(t, a->index, full->type, full->bytes, full->node, FAR_ALLOC_ON_NODE, &object);
    far_pin_drop(t);
    return err;
}


static void fill_for(unsigned node, unsigned type, uint64_t bytes) {
    fullness full = {node, type, bytes};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, fill_node, &full), FAR_ERR_NO_MEMORY);
}


static void fill(unsigned node) {
    fill_for(node, SMART_TYPE_LEAF, LEAF);
}


/* The operation of `a` as it runs while the WRITE is held back: the other one sees the key as it was. */
static void with_its_write_held(far_op_kind does, const char *key, const char *point, const char *before,
                                const char *after) {
    unsigned nth = does == FAR_OP_UPDATE ? 2 : 1; /* the first one is the allocator's: it cuts a slab */
    stand(a, point, does, key, after);
    far_sim_resume(a->client);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = nth});
    far_sim_run_client(a->client);
    assert_true(stage_reads(b, key, before));
    far_sim_release(hold);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(b, key, after));
}


static void a_leaf_elsewhere_is_written_before_its_slot_names_it(void **state) {
    (void)state;
    up(NULL, NULL);
    unsigned node = 'n' % 2; /* of the slot */
    fill(node);
    with_its_write_held(FAR_OP_INSERT, "naa", "smart:insert", NULL, V1);
    stage_close(&s);
}


static void a_leaf_elsewhere_is_written_before_the_old_one_names_it(void **state) {
    (void)state;
    uint32_t bytes = LEAF;
    up("update=rcu", NULL);
    far_sim_on_verb(s.world, note_written, &bytes);
    stage_write(a, "naa", V1);
    far_sim_on_verb(s.world, NULL, NULL);
    fill(far_addr_node(written));
    with_its_write_held(FAR_OP_UPDATE, "naa", "smart:found", V1, V2);
    stage_close(&s);
}


/* A full node grows: where its prefix puts the copy on another memory node than the slot. */
static void a_copy_elsewhere_is_written_before_its_slot_names_it(void **state) {
    (void)state;
    for (char second = 'a'; second < 'f'; second++) {
        char key[] = "n??a";
        up(NULL, NULL);
        stage_write(a, "nzz", V1);
        key[1] = second;
        for (key[2] = 'a'; key[2] < 'a' + SMALL_LIST; key[2]++)
            stage_write(a, key, V1);
        with_its_write_held(FAR_OP_INSERT, key, "smart:frozen", NULL, V2);
        for (key[2] = 'a'; key[2] < 'a' + SMALL_LIST; key[2]++)
            assert_true(stage_reads(c, key, V1));
        stage_close(&s);
    }
}


/* Memory for copies stays at hand on a memory node that becomes full. */
static int keep_nodes_at_hand(far_task *t, void *arg) {
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


/* The same of the leaf that comes with the copy: the copy lies where the slot does, the leaf has no room there. (swing looks
 * at the copy only.) */
static void a_leaf_elsewhere_is_written_before_its_copy_is_named(void **state) {
    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        unsigned full = i % 2;
        char key[] = "n??a";
        up(NULL, NULL);
        stage_write(a, "nzz", V1);
        key[1] = (char)('a' + i / 2);
        for (key[2] = 'a'; key[2] < 'a' + SMALL_LIST; key[2]++)
            stage_write(a, key, V1);
        assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, keep_nodes_at_hand, &full), 0);
        fill(full);
        stand(a, "smart:frozen", FAR_OP_INSERT, key, V2);
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


/* Two keys part: the new node lies where its prefix puts it. */
static void a_branch_elsewhere_is_written_before_its_slot_names_it(void **state) {
    (void)state;
    for (char second = 'a'; second < 'f'; second++) {
        char one[] = "n?aa", two[] = "n?ab";
        up(NULL, NULL);
        one[1] = two[1] = second;
        put_all(a, "nzaa");
        stage_write(a, one, V1);
        with_its_write_held(FAR_OP_INSERT, two, "smart:branch", NULL, V2);
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


/* Nobody came to move the slot while the leaf was replaced again and again, and then perhaps deleted. */
static void cut_out_a_chain(bool deleted) {
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
    for (unsigned i = 0; i < 8; i++) /* who reads it leaves the slot to be moved */
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


/* It is cut out in pieces, and every leaf of it is retired once. (A piece that ends with the leaf that the slot names then.) */
static void a_chain_longer_than_a_piece_is_cut_out(void **state) {
    (void)state;
    cut_out_a_chain(false);
    cut_out_a_chain(true);
}


/* `a` loses its CAS to `b`. What it had made is given back, and nothing has to be swept. */
static void lose(const char *options, const char *keys, const char *point, far_op_kind does, const char *key) {
    stage_open(&s, "smart", options, NULL);
    put_all(a, keys);
    assert_true(stage_reads(b, "nba", V1));
    stand(a, point, does, key, V2);
    assert_int_equal(stage_do(b, does, key, V3), 0);
    stage_finish(a);
    assert_true(stage_reads(c, key, does == FAR_OP_INSERT ? V3 : V2));
    assert_int_equal(leaked_bytes(), 0);
    stage_close(&s);
}


static void what_was_made_for_a_lost_cas_is_given_back(void **state) {
    (void)state;
    lose(NULL, "naa nba", "smart:insert", FAR_OP_INSERT, "nca");
    lose(NULL, "naa nba", "smart:branch", FAR_OP_INSERT, "nab");
    lose("update=rcu", "naa nba", "smart:replace_leaf", FAR_OP_UPDATE, "naa");
    lose(NULL, "naa nba nca nda nea nfa nga nha nia nja nka nla nAa", "smart:frozen", FAR_OP_INSERT, "nma");
}


static far_addr seen[256];
static unsigned seen_count;


static void note_place(void *ctx, const far_sim_posted *posted) {
    (void)ctx;
    if (posted->verb->kind != FAR_WRITE || posted->verb->length != LEAF)
        return;
    unsigned i = 0;
    while (i < seen_count && seen[i] != posted->verb->addr)
        i++;
    if (i == seen_count && seen_count < 256)
        seen[seen_count++] = posted->verb->addr;
}


/* Keys come and go: their leaves lie where others lay before. */
static void memory_of_leaves_is_used_again(void **state) {
    (void)state;
    seen_count = 0;
    up("merge=delayed", NULL);
    put_all(a, "naa nba nca");
    far_sim_on_verb(s.world, note_place, NULL);
    for (unsigned round = 0; round < 30; round++) {
        put_all(a, "nda nea nfa nga");
        stage_delete(a, "nda");
        stage_delete(a, "nea");
        stage_delete(a, "nfa");
        stage_delete(a, "nga");
        stage_age(&s);
    }
    far_sim_on_verb(s.world, NULL, NULL);
    print_message("%u places of leaves\n", seen_count);
    assert_true(seen_count >= 4 && seen_count <= 60);
    stage_close(&s);
}


#define PATH "nppppppppppp" /* longer than what a node tells of its prefix */


/* A node on a long path is frozen, to grow, and all that is left below it is an empty node; the rest of its slots are
 * tombstones. An insert that parts from the path above finds no leaf that could tell the prefix; the empty node cannot
 * be taken out of a frozen slot: the frozen node goes first. */
static void a_frozen_node_above_an_empty_one_is_replaced_first(void **state) {
    (void)state;
    char key[] = PATH "?";
    up(NULL, NULL);
    put_all(a, PATH "aX " PATH "aY");
    for (key[12] = 'b'; key[12] < 'a' + SMALL_LIST; key[12]++)
        stage_write(a, key, V1);
    for (key[12] = 'b'; key[12] < 'a' + SMALL_LIST; key[12]++)
        stage_delete(a, key);
    stage_delete(a, PATH "aX");
    stand(a, "smart:merge", FAR_OP_DELETE, PATH "aY", NULL);
    stand(c, "smart:frozen", FAR_OP_INSERT, PATH "q", V1);
    stage_start(b, FAR_OP_INSERT, "npppQ", V2);
    assert_int_equal(far_sim_run_client(b->client), FAR_SIM_ENDED);
    assert_int_equal(b->result, 0);
    assert_true(stage_reads(b, "npppQ", V2) && stage_reads(b, PATH "aY", NULL));
    stage_finish(a);
    stage_finish(c);
    assert_true(stage_reads(b, PATH "q", V1));
    stage_close(&s);
}


/* ---- Many insert into one list ---- */

/* Whenever `a` is about to take the frontier, `b` is faster: so often that the list is said to be crowded. It is replaced
 * by a node with a slot for each byte, with `a`'s key, though it has room; once less, and `a` has a slot of the list.
 * (Nobody counts: `a` follows from slot to slot.) Where there is no memory for such a node the list stays. */
static void lose_the_frontier(unsigned times, bool full) {
    uint32_t bytes = smart_layout_bytes(SMART_DIR);
    char key[] = "n?";
    up(NULL, NULL);
    put_all(a, "nA nB");
    put_all(b, "nC"); /* so that both have memory for leaves */
    for (unsigned node = 0; full && node < 2; node++)
        fill_for(node, SMART_TYPE_NODE, bytes);
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
    assert_int_equal(written != 0, times >= SMART_CROWD && !full);
    far_sim_on_verb(s.world, NULL, NULL);
    assert_true(stage_scans(c, "n", times == 3 ? "nA nB nC na nb nc nz" : "nA nB nC na nb nz"));
    if (full)
        stage_tear_down(&s); /* what fills it belongs to nobody */
    else
        stage_close(&s);
}


static void a_crowded_list_grows_at_once(void **state) {
    (void)state;
    lose_the_frontier(SMART_CROWD - 1, false);
    lose_the_frontier(SMART_CROWD, false);
    lose_the_frontier(SMART_CROWD, true);
}


/* ---- A leaf that is seen before it is linked ---- */

enum { MANY = 62 }; /* children: so many need a DIR node */


static void each_of_many(char *key, unsigned count, far_op_kind does) {
    for (unsigned i = 0; i < count; i++) {
        key[2] = (char)('!' + i);
        assert_int_equal(stage_do(a, does, key, V1), 0);
    }
}


/* One who knows a DIR node READs its slots alone. The node goes, and a copy of another one for the same prefix, with a
 * leaf for the new key, is written to its memory: the leaf is found there before the copy is linked, and must not count.
 * False: copy and slot lie on one memory node, and are written at once. */
static bool see_a_leaf_early(char second) {
    char key[] = "n??", last[] = "n??";
    uint32_t node_bytes = smart_layout_bytes(SMART_DIR), list_bytes = smart_layout_bytes(SMART_L128);
    key[1] = last[1] = second;
    last[2] = '!' + MANY - 1;
    up(NULL, NULL);
    far_sim_on_verb(s.world, note_written, &list_bytes);
    stage_write(a, "nzz", V1);
    stage_write(a, "nyy", V1);
    far_addr parent = written;
    far_sim_on_verb(s.world, note_written, &node_bytes);
    each_of_many(key, MANY, FAR_OP_INSERT);
    far_addr known = written;
    bool apart = far_addr_node(known) != far_addr_node(parent);
    if (apart) {
        assert_true(stage_reads(c, "nzz", V1)); /* and so it knows the word of the DIR node */
        each_of_many(key, MANY, FAR_OP_DELETE);
        stage_age(&s);
        each_of_many(key, MANY - 1, FAR_OP_INSERT);
        stand(a, "smart:frozen", FAR_OP_INSERT, last, LONG);
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


static void a_leaf_in_an_old_node_is_not_seen_before_it_is_linked(void **state) {
    (void)state;
    unsigned seen_apart = 0;
    for (char second = 'a'; second < 'm' && seen_apart == 0; second++)
        seen_apart += see_a_leaf_early(second);
    assert_int_equal(seen_apart, 1);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_leaf_elsewhere_is_written_before_its_slot_names_it),
        cmocka_unit_test(a_leaf_elsewhere_is_written_before_the_old_one_names_it),
        cmocka_unit_test(a_copy_elsewhere_is_written_before_its_slot_names_it),
        cmocka_unit_test(a_leaf_elsewhere_is_written_before_its_copy_is_named),
        cmocka_unit_test(a_branch_elsewhere_is_written_before_its_slot_names_it),
        cmocka_unit_test(what_was_made_for_a_lost_cas_is_given_back),
        cmocka_unit_test(memory_of_leaves_is_used_again),
        cmocka_unit_test(a_chain_longer_than_a_piece_is_cut_out),
        cmocka_unit_test(a_leaf_in_an_old_node_is_not_seen_before_it_is_linked),
        cmocka_unit_test(a_frozen_node_above_an_empty_one_is_replaced_first),
        cmocka_unit_test(a_crowded_list_grows_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
