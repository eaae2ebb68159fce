/* Races of DART's skip table with a collection: entries that are committed while the collection walks the table. This
 * file also tests two other corrected defects: long values in frozen slots, and the last step of an adjustment in a
 * full pool. */
#include "dart_est_rig.h"
#include "test.h"

#include "pool/format/superblock.h"

#define LONG_VALUE 60000 /* bytes; fits into a block of the smallest pools */


static void run_collection(void *arg) {
    actor *by = arg;
    by->result = far_pool_check(by->session, 1, fail_at_problem, NULL);
    by->ended = true;
}


static bool enough;


/* Main function of an actor that gets its key repeatedly until `enough` is set, and then other keys, so that its
 * background work runs. */
static void get_repeatedly(void *arg) {
    actor *by = arg;
    char byte;
    for (unsigned i = 0; i < 64 && !enough; i++)
        by->result = stage_run(by);
    for (unsigned i = 0; i < 64; i++)
        far_get(by->session, by->index, "~", 1, &byte, 1, NULL);
    by->ended = true;
}


/* Steps: (1) C runs a collection; its walk has reached the node above X. (2) B is registering X: it has written a
 * tentative entry and has seen that X is linked. (3) A replaces X and fails before it removes the entries of X. (4) C's
 * walk continues up to `until`; it does not find X any more, so the collection will free X. (5) B commits its entry; C
 * continues. At the end no entry may name X. */
static void commit_after_walk(const char *sim, far_sim_match until) {
    stage s;
    dart_node x = set_up_node_without_entries(&s, sim);

    s.c.ended = false;
    s.c.client = far_sim_start(s.c.pool->fabric, "c", run_collection, &s.c);
    stage_stop_at(&s.c, (far_sim_match){.point = "collect:mark_phase"});
    stage_stop_at(&s.c, (far_sim_match){.point = "dart:expand_frontier"});

    enough = false;
    prepare(&s.b, FAR_OP_GET, "abcde1", "");
    s.b.client = far_sim_start(s.b.pool->fabric, "b", get_repeatedly, &s.b);
    stage_stop_at(&s.b, (far_sim_match){.point = "dart:est_validated"});
    enough = true;
    start_until(&s.a, "a", FAR_OP_INSERT, "abcde4", "a", "dart:installed", 1);
    far_sim_kill(s.a.pool->fabric);
    far_sim_resume(s.a.client);

    stage_stop_at(&s.c, until);
    expect_result(&s.b, 0);
    expect_result(&s.c, 0);
    finish_background(&s);
    assert_int_equal(count_entries_of(&s.c, x.addr), 0);
    /* objects that a collection frees wait for the same number of epochs as retired objects */
    let_memory_be_reused(&s, &s.c);
    expect_free(&s, x.addr);
    for (unsigned i = 0; i < 8; i++)
        expect_get(&s.b, "abcde1", "abcde1");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* B commits its entry after C's walk has visited the entry (see commit_after_walk). Proves that this commit fails,
 * because the walk has cleared B's tentative word. Fails if skiptable/traverse.c, clear_slots leaves the tentative
 * words of living clients. */
EST_RACE(entry_committed_after_a_walk_passed_it) {
    commit_after_walk(sim,
                      (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8});
}


/* C's walk READs B's entry while it is tentative. B commits the entry before the walk's CAS that clears it, so this CAS
 * fails (see commit_after_walk). Proves that the walk then visits the segment again and clears the committed entry,
 * because its node X is no longer linked. */
EST_RACE(entry_committed_before_a_walk_clears_it) {
    commit_after_walk(sim, (far_sim_match){.point = "dart:est_clear_dead"});
}


static int same_bytes(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len;
    if (value_len == LONG_VALUE)
        assert_memory_equal(value, ctx, value_len);
    return 0;
}


/* The size of a long leaf is not encoded in its slot, so a scan first reads the first part of the leaf, then the rest.
 * A has frozen the node of such a leaf; B scans. Proves that B gets the complete value. The test failed when the
 * traversal used the frozen bit of a word as its mark for complete leaves without clearing this bit first (traversal.c,
 * sort_children). */
RACE(scan_of_a_long_value_in_a_frozen_slot) {
    stage s;
    static uint8_t value[LONG_VALUE];
    for (size_t i = 0; i < sizeof(value); i++)
        value[i] = (uint8_t)(i * 7 + i / 251);
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "aa", "ab");
    assert_int_equal(far_put(s.a.session, s.a.index, "ac", 2, value, sizeof(value)), 0);
    start_until(&s.a, "a", FAR_OP_INSERT, "ad", "d", "dart:frozen", 1);
    assert_int_equal(far_scan(s.b.session, s.b.index, NULL, 0, NULL, 0, 0, same_bytes, value), 3);
    expect_result(&s.a, 0);
    assert_int_equal(far_scan(s.b.session, s.b.index, NULL, 0, NULL, 0, 0, same_bytes, value), 4);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


typedef struct step {
    far_index *index;
    uint8_t length; /* prefix length of the adjustment to start; 0 to execute the next step of a started adjustment */
} step;


static int step_task(far_task *t, void *arg) {
    const step *st = arg;
    int more = far_pin_take(t);
    if (more >= 0)
        more = st->length ? dart_est_adjust_to(t, st->index, &st->length, 1) : dart_est_adjust(t, st->index);
    far_pin_drop(t);
    return more;
}


/* The last step of the adjustment publishes the new list, and finds no memory for it, repeatedly. Proves that the step
 * is repeated until it succeeds, and that the sweep, which has reached the end of the directory by then, does not read
 * words behind this end. There are two guards: skiptable/adjust.c, sweep_some compares the place of the sweep with the
 * end, and dart_est_visit_segments visits no word behind the end. */
EST_RACE(adjuster_at_its_end_in_a_full_pool) {
    stage s;
    far_session *other;
    char all[128], key[16];
    static char value[4000];
    int err = 0;
    snprintf(all, sizeof(all), "size=1M,memory_nodes=1,%s", sim);
    set_up(&s, all, "upkeep_batch=1,adjust=0,directory_bits=3");
    INSERT_KEYS(&s.a, "abcd1", "abcd2", "abce1", "abce2", "abd1", "abd2");
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
    /* fill memory until the handle has no free memory left either */
    for (size_t round = 0, bytes = sizeof(value) / 2; round < 3 * 11; round++) {
        bytes = bytes > 1 ? bytes / 2 : sizeof(value) / 2;
        do
            err = far_put(s.b.session, s.b.index, key, (size_t)snprintf(key, sizeof(key), "y%u", more), value, bytes);
        while (err == 0 && ++more);
        assert_int_equal(err, FAR_ERR_NO_MEMORY);
    }
    for (unsigned i = 0; i < 5; i++) { /* the step may succeed, because a slab for lists may still have room */
        err = far_session_call(other, FAR_STATS_OTHER, true, step_task, &next);
        assert_true(err == FAR_ERR_NO_MEMORY || err >= 0);
    }
    world_assert_no_checker_error(s.world);
    while (more-- > 0)
        assert_int_equal(far_delete(s.b.session, s.b.index, key, (size_t)snprintf(key, sizeof(key), "y%u", more)), 0);
    while (count-- > 0)
        assert_int_equal(far_delete(s.a.session, s.a.index, key, (size_t)snprintf(key, sizeof(key), "z%u", count)), 0);
    far_session_close(other);
    let_memory_be_reused(&s, &s.a);
    /* A's session still has free objects, the memory of the deleted pairs, in lists of its own. Closing the session
     * moves them to A's handle. The handle can then release whole blocks to the pool, and B's step finds memory for the
     * new list. */
    far_session_close(s.a.session);
    assert_int_equal(far_session_open(s.a.pool, &s.a.session), 0);
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, true, step_task, &next), 0);
    const dart_list *list = dart_est_list(dart_est_of(s.b.index));
    assert_true(list->active_count == 1 && list->active[0] == 3);
    expect_sound(&s, &s.c);
    tear_down(&s);
}
