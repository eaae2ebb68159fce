/* DART: entries of the skip table that are committed late, and what a sweep takes while they are. What was wrong stands at
 * each test. */
#include "dart_est_rig.h"

#include "pool/superblock.h"


static void sweep(void *arg) {
    actor *by = arg;
    by->result = far_pool_check(by->session, 1, fail_at_problem, NULL);
    by->ended = true;
}


static bool enough;


/* Reads its key again and again, until it is enough; then others, so that its background work runs in it. */
static void get_often(void *arg) {
    actor *by = arg;
    char byte;
    for (unsigned i = 0; i < 64 && !enough; i++)
        by->result = stage_run(by);
    for (unsigned i = 0; i < 64; i++)
        far_get(by->session, by->index, "~", 1, &byte, 1, NULL);
    by->ended = true;
}


/* c sweeps; its walk stands above X. b has a tentative entry of X in the table, and has seen that X is linked. a
 * replaces X and dies before it takes the entries of X out. The walk does not meet X, so the sweep frees it; it met the
 * tentative entry too, of one who lives, and left it alone: b committed it, and the table named free memory. */
static void commit_behind(const char *sim, far_sim_match until) {
    stage s;
    dart_node x = set_up_without_entries(&s, sim);

    s.c.ended = false;
    s.c.client = far_sim_start(s.c.pool->fabric, "c", sweep, &s.c);
    stage_stop_at(&s.c, (far_sim_match){.point = "sweep:walk"});
    stage_stop_at(&s.c, (far_sim_match){.point = "dart:tour"});

    enough = false;
    prepare(&s.b, FAR_OP_GET, "abcde1", "");
    s.b.client = far_sim_start(s.b.pool->fabric, "b", get_often, &s.b);
    stage_stop_at(&s.b, (far_sim_match){.point = "dart:est_validated"});
    enough = true;
    start_to(&s.a, "a", FAR_OP_INSERT, "abcde4", "a", "dart:installed", 1);
    far_sim_kill(s.a.pool->fabric);
    far_sim_resume(s.a.client);

    stage_stop_at(&s.c, until);
    finish(&s.b, 0);
    finish(&s.c, 0);
    settle(&s);
    assert_int_equal(names_of(&s.c, x.addr), 0);
    let_memory_go(&s, &s.c); /* what a sweep finds waits as long as what is retired */
    is_free(&s, x.addr);
    for (unsigned i = 0; i < 8; i++)
        reads(&s.b, "abcde1", "abcde1");
    is_sound(&s, &s.c);
    tear_down(&s);
}


EST_RACE(entry_committed_behind_a_walk) {
    commit_behind(sim, (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8});
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


typedef struct step {
    far_index *index;
    uint8_t length; /* to set out for; 0: the next step */
} step;


static int step_task(far_task *t, void *arg) {
    const step *st = arg;
    int more = far_pin_take(t);
    if (more >= 0)
        more = st->length ? dart_est_adjust_to(t, st->index, &st->length, 1) : dart_est_adjust(t, st->index);
    far_pin_drop(t);
    return more;
}


/* The last step of the adjuster, which shows the new list, finds no memory, again and again. It had been through with
 * the directory, and went on behind its end: words there were taken for segments. */
EST_RACE(adjuster_at_its_end_in_a_full_pool) {
    stage s;
    far_session *other;
    char all[128], key[16];
    static char value[4000];
    int err = 0;
    snprintf(all, sizeof(all), "size=1M,memory_nodes=1,%s", sim);
    set_up(&s, all, "upkeep_batch=1,adjust=0,directory_bits=3");
    LOAD(&s.a, "abcd1", "abcd2", "abce1", "abce2", "abd1", "abd2");
    assert_int_equal(far_session_open(s.b.pool, &other), 0);
    step next = {s.b.index, 3};
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, true, step_task, &next), 1);
    next.length = 0;
    for (unsigned i = 0; i < 1000 && dart_est_of(s.b.index)->adjust.phase != DART_ADJUST_SWEEP; i++) {
        assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, true, step_task, &next), 1);
        far_sim_sleep(s.world, 100000);
    }
    assert_int_equal(dart_est_of(s.b.index)->adjust.phase, DART_ADJUST_SWEEP);
    unsigned count = 0;
    do
        err = far_put(s.a.session, s.a.index, key, (size_t)snprintf(key, sizeof(key), "z%u", count), value,
                      sizeof(value));
    while (err == 0 && ++count);
    assert_int_equal(err, FAR_ERR_NO_MEMORY);
    unsigned more = 0;
    for (size_t round = 0, bytes = sizeof(value) / 2; round < 3 * 11; round++) { /* nor has the handle anything left */
        bytes = bytes > 1 ? bytes / 2 : sizeof(value) / 2;
        do
            err = far_put(s.b.session, s.b.index, key, (size_t)snprintf(key, sizeof(key), "y%u", more), value, bytes);
        while (err == 0 && ++more);
        assert_int_equal(err, FAR_ERR_NO_MEMORY);
    }
    for (unsigned i = 0; i < 5; i++) { /* a slab of lists may have room where nothing else has */
        err = far_session_call(other, FAR_STATS_OTHER, true, step_task, &next);
        assert_true(err == FAR_ERR_NO_MEMORY || err >= 0);
    }
    world_assert_watch_is_content(s.world);
    while (more-- > 0)
        assert_int_equal(far_delete(s.b.session, s.b.index, key, (size_t)snprintf(key, sizeof(key), "y%u", more)), 0);
    while (count-- > 0)
        assert_int_equal(far_delete(s.a.session, s.a.index, key, (size_t)snprintf(key, sizeof(key), "z%u", count)), 0);
    far_session_close(other);
    let_memory_go(&s, &s.a);
    far_session_close(s.a.session); /* what it holds free goes to the pool */
    assert_int_equal(far_session_open(s.a.pool, &s.a.session), 0);
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, true, step_task, &next), 0);
    const dart_list *list = dart_est_list(dart_est_of(s.b.index));
    assert_true(list->active_count == 1 && list->active[0] == 3);
    is_sound(&s, &s.c);
    tear_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entry_committed_behind_a_walk),
        cmocka_unit_test(entry_committed_before_a_walk_clears_it),
        cmocka_unit_test(scan_of_a_long_value_in_a_frozen_slot),
        cmocka_unit_test(adjuster_at_its_end_in_a_full_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
