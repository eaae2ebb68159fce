/* DART, more named interleavings: cases that a review of the code asked about. What was wrong stands at each test. */
#include "dart_est_rig.h"

#include "pool/superblock.h"


static void sweep(void *arg) {
    actor *by = arg;
    by->result = far_pool_check(by->session, 1, fail_at_problem, NULL);
    by->ended = true;
}


static void stop_at(actor *by, far_sim_match match) {
    far_sim_stop_before(by->client, match);
    far_sim_resume(by->client);
    assert_string_equal(far_sim_result_name(far_sim_run_client(by->client)), far_sim_result_name(FAR_SIM_STOPPED));
}


static bool enough;


/* Reads its key again and again, until it is enough; then others, so that its background work runs in it. */
static void get_often(void *arg) {
    actor *by = arg;
    char byte;
    for (unsigned i = 0; i < 64 && !enough; i++)
        by->result = operate(by);
    for (unsigned i = 0; i < 64; i++)
        far_get(by->session, by->index, "~", 1, &byte, 1, NULL);
    by->ended = true;
}


/* c sweeps; its walk stands above X. b has a tentative entry of X in the table, and has seen that X is linked. a
 * replaces X and dies before it takes the entries of X out. The walk does not meet X, so the sweep frees it; it met the
 * tentative entry too, of one who lives, and left it alone: b committed it, and the table named free memory. */
static void commit_behind(const char *sim, far_sim_match until) {
    stage s;
    far_sim_match second = {.kind = FAR_SIM_CAS, .nth = 2, .from = FAR_SUPER_SWEEP, .to = FAR_SUPER_SWEEP + 8};
    set_up(&s, sim, "adjust=0,express_cache=0,directory_bits=0");
    LOAD(&s.a, "az", "abcdf", "abcde1", "abcde2", "abcde3");
    settle(&s);
    busy(&s.a, "a", FAR_OP_DELETE, "abcdf", ""); /* the node above X goes: X could have entries now, and has none */
    settle(&s);
    dart_node x = node_at(&s.a, "abcde1", 5);
    assert_true(x.addr && x.type == DART_N4);
    assert_int_equal(names_of(&s.a, x.addr), 0);

    s.c.ended = false;
    s.c.client = far_sim_start(s.c.pool->fabric, "c", sweep, &s.c);
    stop_at(&s.c, second); /* before the quarantine */
    stop_at(&s.c, (far_sim_match){.point = "dart:tour"});

    enough = false;
    prepare(&s.b, FAR_OP_GET, "abcde1", "");
    s.b.client = far_sim_start(s.b.pool->fabric, "b", get_often, &s.b);
    stop_at(&s.b, (far_sim_match){.point = "dart:est_validated"});
    enough = true;
    start_to(&s.a, "a", FAR_OP_INSERT, "abcde4", "a", "dart:installed", 1);
    far_sim_kill(s.a.pool->fabric);
    far_sim_resume(s.a.client);

    stop_at(&s.c, until);
    finish(&s.b, 0);
    finish(&s.c, 0);
    settle(&s);
    assert_int_equal(names_of(&s.c, x.addr), 0);
    is_free(&s, x.addr);
    for (unsigned i = 0; i < 8; i++)
        reads(&s.b, "abcde1", "abcde1");
    is_sound(&s, &s.c);
    tear_down(&s);
}


EST_RACE(entry_committed_behind_a_walk) {
    commit_behind(sim, (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_SWEEP, .to = FAR_SUPER_SWEEP + 8});
}


/* The same between the walk's look at the entry and its CAS. */
EST_RACE(entry_committed_before_a_walk_clears_it) {
    commit_behind(sim, (far_sim_match){.point = "dart:est_clear"});
}


static int same_bytes(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len;
    if (value_len == FAR_VALUE_MAX)
        assert_memory_equal(value, ctx, value_len);
    return 0;
}


/* The slot does not tell the size of a long leaf: its first part is READ, then the rest. In a frozen slot such a leaf
 * passed for one whose rest had been READ, and the scan gave what lay behind the first part in its own memory. */
RACE(scan_of_a_long_value_in_a_frozen_slot) {
    stage s;
    static uint8_t value[FAR_VALUE_MAX];
    for (size_t i = 0; i < sizeof(value); i++)
        value[i] = (uint8_t)(i * 7 + i / 251);
    set_up(&s, sim, options);
    LOAD(&s.a, "aa", "ab");
    assert_int_equal(far_put(s.a.session, s.a.index, "ac", 2, value, sizeof(value)), 0);
    start_to(&s.a, "a", FAR_OP_INSERT, "ad", "d", "dart:frozen", 1);
    assert_int_equal(far_scan(s.b.session, s.b.index, NULL, 0, NULL, 0, 0, same_bytes, value), 3);
    finish(&s.a, 0);
    assert_int_equal(far_scan(s.b.session, s.b.index, NULL, 0, NULL, 0, 0, same_bytes, value), 4);
    is_sound(&s, &s.c);
    tear_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entry_committed_behind_a_walk),
        cmocka_unit_test(entry_committed_before_a_walk_clears_it),
        cmocka_unit_test(scan_of_a_long_value_in_a_frozen_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
