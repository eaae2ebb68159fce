/* SMART, named interleavings of guards that no other test missed when they were taken out. */
#include "index/smart/smart.h"
#include "smart_rig.h"

#define LEAF 448 /* bytes of the leaf of a value of 399 */

static char text[3][400];


static void make_values(void) {
    for (unsigned i = 0; i < 3; i++) {
        memset(text[i], 'a' + (int)i, 399);
        text[i][399] = 0;
    }
}


static far_addr leaf_at(char first) {
    uint64_t word = *memory_of(smart_root_slot(smart_state_of(c->index), (uint8_t)first));
    assert_int_equal(smart_word_is(word), SMART_LEAF);
    return smart_word_addr(word);
}


/* ---- Deletes that READ owner and leaf in one batch ---- */

/* Where the cache of b says that the leaf is, a has written one for the same key that is not linked; c's is. b must
 * delete that of c, which its owner names. (It goes by the cache when take_pair does not compare the words: then c's
 * leaf loses its slot, and is LIVE.) */
static void delete_goes_by_the_owner(void **state) {
    (void)state;
    uint32_t bytes = 40;
    up("value_size=8", NULL);
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


/* ---- Nodes in used memory ---- */

/* The cache of b knows a node that is gone. b READs it there: slots of a node that a has written and not linked, and
 * the header of another with the same prefix, which lies there next and is linked. (Accepted when its own ctl word is
 * asked instead of one that was READ before: b binds a partial key that has a slot already.) */
static void node_torn_over_lives(void **state) {
    (void)state;
    far_sim_hold *link;
    up(EAGER, "atomic_bytes=8");
    far_addr first = recycle_node(&link);

    stage_start(b, FAR_OP_INSERT, "nxca", V3);
    far_sim_hold *look = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = first + 32, .to = first + 128});
    assert_int_equal(far_sim_hold_units(look), 8); /* the header, and five slots */
    assert_int_equal(far_sim_release_units(look, (const uint32_t[]){3, 4, 5, 6, 7}, 5), 0);
    assert_int_equal(stage_do(c, FAR_OP_DELETE, "nxaa", NULL), 0);
    far_sim_release(link);
    stage_finish(a); /* there is nothing to part from any more: a leaf */
    assert_int_equal(a->result, 0);
    written = 0;
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "nxca", V2), 0);
    assert_int_equal(written, first);
    far_sim_sleep(s.world, 100000); /* it is LIVE now */
    far_sim_release(look);
    stage_finish(b);
    assert_int_equal(b->result, FAR_ERR_EXISTS);
    assert_true(stage_reads(c, "nxca", V2) && stage_scans(c, "nx", "nxba nxca"));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* The same for a scan, which READs the node that its cache expects beside the slots of the root: the ctl word of the
 * node that is gone, still there in free memory, then slots of one that is written and not linked; when the root is READ
 * the next one lies there. (Accepted although it is not LIVE: the scan shows what was never in the tree.) */
static void scan_of_a_node_torn_over_lives(void **state) {
    (void)state;
    uint32_t bytes = 128;
    up(EAGER, "atomic_bytes=8");
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
    stage_age(&s);
    *memory_of(first) = frozen; /* only the simulator poisons free memory */
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


/* ---- Direct nodes, of which only a slot is READ ---- */

#define MANY 70 /* children: more than a list has */


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


static void is_read(stage_actor *by, const char *key) {
    (void)by;
    assert_true(stage_reads(c, key, V1) && stage_reads(b, key, V1));
}


/* The node between the root and a direct one goes: from then on a byte lies between these two. (The slot of a wrong
 * byte is READ when the word in the root's slot says that there is none.) */
static void direct_node_below_a_gap(void **state) {
    (void)state;
    up(EAGER, NULL);
    put_all(a, "na");
    each_below("nb", put_one);
    stage_delete(a, "na");
    each_below("nb", is_read);
    assert_true(stage_reads(c, "na", NULL) && stage_reads(b, "n", NULL));
    stage_close(&s);
}


/* The cache of b knows a direct node below nb. In its memory lies another one, below nbc, when b looks for nbcQ: it has
 * a prefix of the key too. (The slot for a byte at the old depth is taken when the depth is not compared.) */
static void direct_node_of_another_depth(void **state) {
    (void)state;
    uint32_t bytes = 2080;
    up(EAGER ",place=near", NULL);
    put_all(a, "na nd");
    far_sim_on_verb(s.world, note_written, &bytes);
    each_below("nb", put_one);
    far_addr first = written;
    assert_true(first && stage_reads(b, "nbQ", V1));
    each_below("nb", stage_delete);
    stage_age(&s);
    written = 0;
    put_all(a, "nbd");
    each_below("nbc", put_one);
    assert_int_equal(written, first);
    far_sim_sleep(s.world, 100000);
    assert_true(stage_reads(b, "nbcQ", V1) && stage_reads(b, "nbcc", V1));
    far_sim_on_verb(s.world, NULL, NULL);
    stage_close(&s);
}


/* ---- Updates of the dead ---- */

/* a holds the lock of nk; returns its record. */
static far_addr begin_update(void) {
    make_values();
    up("", NULL);
    stage_write(c, "nk", text[0]);
    stage_write(c, "pk", text[0]);
    far_addr lock = leaf_at('n') + LEAF - 8;
    stand(a, "smart:locked", FAR_OP_UPDATE, "nk", text[1]);
    return smart_lock_record(*memory_of(lock));
}


/* The record has been READ, the one who did does not know it yet. */
static far_sim_hold *read_record(stage_actor *by, far_addr record, const char *value) {
    stage_start(by, FAR_OP_UPDATE, "nk", value);
    far_sim_hold *hold =
        far_sim_hold_completion(by->client, (far_sim_match){.kind = FAR_SIM_READ, .from = record, .to = record + 8});
    while (!far_sim_reached(hold) && !by->ended)
        far_sim_run_client(by->client);
    assert_true(far_sim_reached(hold));
    return hold;
}


/* b has READ the record of a under lock v. a is through with that, c writes another value, a dies: what a wrote must
 * not be written again. b itself dies before it writes its own. (It is when complete does not look at the lock.) */
static void update_that_the_dead_had_finished(void **state) {
    (void)state;
    far_addr record = begin_update();
    far_sim_hold *hold = read_record(b, record, text[0]);
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


/* a is dead; b and c have READ its record, and b makes it its own, to complete what a began. c must wait for b: it
 * would free the lock, and its own value would be lost when b writes. (It is when complete goes on after its CAS of the
 * owner failed.) */
static void one_completes_the_update_of_the_dead(void **state) {
    (void)state;
    far_addr record = begin_update(), leaf = leaf_at('n');
    far_sim_hold *hold = read_record(c, record, text[2]);
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


/* b waits for the lock of nk, and a has it. When b gets to READ the record, a uses it for another leaf, and dies: it is
 * not the record that b looks for. (Taken for it, it says that nk is broken.) */
static void record_of_another_leaf(void **state) {
    (void)state;
    far_addr record = begin_update();
    stage_start(b, FAR_OP_UPDATE, "nk", text[2]);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_READ, .from = record, .to = record + 8});
    stage_finish(a);
    stand(a, "smart:locked", FAR_OP_UPDATE, "pk", text[2]);
    assert_int_equal(smart_lock_record(*memory_of(leaf_at('p') + LEAF - 8)), record);
    stage_kill(&s, a);
    stage_finish(b);
    assert_int_equal(b->result, 0);
    stage_write(c, "pk", text[1]);
    assert_true(stage_reads(b, "nk", text[2]) && stage_reads(b, "pk", text[1]));
    stage_close(&s);
}


/* ---- Memory ---- */

/* a dies when its new leaf is there and the slot still names the old one. The walk of a sweep tells of both. (Of the
 * first alone: the sweep frees the leaf of the key.) */
static void walk_tells_of_all_leaves_of_a_chain(void **state) {
    (void)state;
    stage_open(&s, "smart", "update=rcu", NULL);
    stage_write(a, "nk", V1);
    stand(a, "smart:leaf_replaced", FAR_OP_UPDATE, "nk", V2);
    stage_kill(&s, a);
    stage_check(&s);
    assert_true(stage_reads(b, "nk", V2) && stage_reads(c, "nk", V2));
    stage_close(&s);
}


/* c inserts where the leaf that a deleted stands in the slot: it takes that leaf out, and gives its memory back. (It
 * does not: that is lost until a sweep.) */
static void insert_over_a_dead_leaf_loses_nothing(void **state) {
    (void)state;
    far_pool_usage usage;
    stage_open(&s, "smart", "", NULL);
    put_all(a, "nka nkb nkc");
    stand(a, "smart:removed", FAR_OP_DELETE, "nka", NULL);
    stage_write(c, "nka", V2);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(b, "nka", V2));
    assert_int_equal(far_pool_check(b->session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(b->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delete_goes_by_the_owner),
        cmocka_unit_test(node_torn_over_lives),
        cmocka_unit_test(scan_of_a_node_torn_over_lives),
        cmocka_unit_test(direct_node_below_a_gap),
        cmocka_unit_test(direct_node_of_another_depth),
        cmocka_unit_test(update_that_the_dead_had_finished),
        cmocka_unit_test(one_completes_the_update_of_the_dead),
        cmocka_unit_test(record_of_another_leaf),
        cmocka_unit_test(walk_tells_of_all_leaves_of_a_chain),
        cmocka_unit_test(insert_over_a_dead_leaf_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
