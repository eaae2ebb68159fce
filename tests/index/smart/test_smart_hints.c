/* SMART: tests of size hints in slot words. The hint determines how much of a node a client READs. If an insert binds a
 * slot beyond the hint, and its search began at the root, it raises the hint in the slot above the node. An insert that
 * began at a cached node does not know the slot above. In that case the first reader that needs a second READ raises
 * the hint, so that later readers need only one READ. */
#include "smart_rig.h"
#include "test.h"

#define FIRST    "naa"
#define CHILDREN 26 /* number of children of one node, a list of 61 slots whose first hint covers 20 */

static unsigned children;


static uint64_t reads_of(stage_actor *by) {
    far_stats stats;
    far_session_stats(by->session, &stats);
    return stats.reads;
}


static const char *child_key(unsigned i) {
    static char key[4];
    snprintf(key, sizeof(key), "na%c", (int)('a' + i));
    return key;
}


static void insert_children(const char *options, unsigned count) {
    open_stage(options, NULL);
    children = count;
    for (unsigned i = 0; i < children; i++)
        assert_int_equal(stage_do(a, FAR_OP_INSERT, child_key(i), V1), 0);
    far_sim_sleep(s.world, 100000); /* The CAS that changes a hint is not waited for, so the test waits here. */
}


static uint64_t reads_of_get(stage_actor *by) {
    uint64_t before = reads_of(by);
    assert_true(stage_reads(by, child_key(children - 1), V1));
    far_sim_sleep(s.world, 100000);
    return reads_of(by) - before;
}


static uint64_t reads_of_scan(stage_actor *by) {
    uint64_t before = reads_of(by);
    stage_set(by, FAR_OP_SCAN, FIRST, NULL);
    assert_true(stage_run(by) >= 0);
    assert_int_equal(by->pairs, children);
    far_sim_sleep(s.world, 100000);
    return reads_of(by) - before;
}


/* B's get needs a second READ because the list continues beyond the size hint. B raises the hint, so that C's get needs
 * one READ less. The caches of B and C are empty. */
TEST(the_first_get_beyond_a_hint_raises_it) {
    insert_children("", CHILDREN);
    uint64_t first = reads_of_get(b), second = reads_of_get(c);
    assert_int_equal(first, second + 1);
    stage_close(&s);
}


/* B's scan needs a second READ because the list continues beyond the size hint. B raises the hint, so that C's scan
 * needs one READ less. */
TEST(the_first_scan_beyond_a_hint_raises_it) {
    insert_children("", CHILDREN);
    uint64_t first = reads_of_scan(b), second = reads_of_scan(c);
    assert_int_equal(first, second + 1);
    stage_close(&s);
}


/* An insert that began at the root raises the size hint if its slot is beyond it, also if its slot is the last one
 * that the hint covers, because a reader needs the next one too (finish_insert in write_insert.c). */
TEST(an_insert_from_the_root_raises_the_hint) {
    for (unsigned count = SMALL_LIST + 1; count <= CHILDREN; count++) {
        insert_children("cache=off", count);
        uint64_t first = reads_of_scan(b);
        assert_int_equal(first, reads_of_scan(c));
        stage_close(&s);
    }
}
