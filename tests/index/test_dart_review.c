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


/* c sweeps; its walk stands above X. b has a tentative entry of X in the table, and has seen that X is linked. a replaces X
 * and dies before it takes the entries of X out. The walk does not meet X, so the sweep frees it; it met the tentative entry
 * too, of one who lives, and left it alone: b committed it, and the table named free memory. */
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entry_committed_behind_a_walk),
        cmocka_unit_test(entry_committed_before_a_walk_clears_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
