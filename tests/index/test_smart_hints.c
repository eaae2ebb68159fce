/* SMART, what the hint in a slot word saves: the word tells how much of its node is worth a READ. An insert that came down
 * from the root raises the hint when its slot lies beyond. One that the cache led to its node does not know the slot that
 * names the node; there the first reader who had to READ on raises it, and nobody after that reader has to. */
#include "smart_rig.h"

#define FIRST    "naa"
#define CHILDREN 26 /* of one node: a list of up to 61, which was made with a hint for 20 */

static unsigned children;


static uint64_t reads_of(stage_actor *by) {
    far_stats stats;
    far_session_stats(by->session, &stats);
    return stats.reads;
}


static const char *child(unsigned i) {
    static char key[4];
    snprintf(key, sizeof(key), "na%c", (int)('a' + i));
    return key;
}


static void set_up(const char *options, unsigned count) {
    up(options, NULL);
    children = count;
    for (unsigned i = 0; i < children; i++)
        assert_int_equal(stage_do(a, FAR_OP_INSERT, child(i), V1), 0);
    far_sim_sleep(s.world, 100000); /* nobody waits for the CAS of a hint */
}


static uint64_t reads_of_get(stage_actor *by) {
    uint64_t before = reads_of(by);
    assert_true(stage_reads(by, child(children - 1), V1));
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


/* b and c know nothing of the tree. */
static void the_first_get_behind_a_hint_raises_it(void **state) {
    (void)state;
    set_up("", CHILDREN);
    uint64_t first = reads_of_get(b), second = reads_of_get(c);
    assert_int_equal(first, second + 1);
    stage_close(&s);
}


static void the_first_scan_behind_a_hint_raises_it(void **state) {
    (void)state;
    set_up("", CHILDREN);
    uint64_t first = reads_of_scan(b), second = reads_of_scan(c);
    assert_int_equal(first, second + 1);
    stage_close(&s);
}


/* The one that takes the last slot that the hint tells of, too: a scan would look behind it. */
static void an_insert_from_the_root_raises_the_hint(void **state) {
    (void)state;
    for (unsigned count = SMALL_LIST + 1; count <= CHILDREN; count++) {
        set_up("cache=off", count);
        uint64_t first = reads_of_scan(b);
        assert_int_equal(first, reads_of_scan(c));
        stage_close(&s);
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_get_behind_a_hint_raises_it),
        cmocka_unit_test(the_first_scan_behind_a_hint_raises_it),
        cmocka_unit_test(an_insert_from_the_root_raises_the_hint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
