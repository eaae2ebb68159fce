/* The toy map in the simulator: death at every verb, and for each fault that it can be given the interleaving that
 * shows it; the sound map passes the same interleaving. */
#include "index/toy/toy.h"
#include "stage.h"

#include <string.h>

enum { VERBS_MAX = 100, LONG = 256 };


static void set_up(stage *s, const char *options) {
    stage_open(s, "toy", options, NULL);
}


static void a_writer_that_dies_leaves_all_or_nothing(void **state) {
    (void)state;
    static const uint32_t units[] = {0, 1, FAR_SIM_WHOLE};
    for (unsigned variant = 0; variant < 6; variant++) {
        bool old_seen = false, new_seen = false, died = true;
        for (unsigned nth = 1; died; nth++) {
            stage s;
            assert_true(nth < VERBS_MAX);
            set_up(&s, variant % 2 ? "slots=1,locks=on" : "slots=1");
            stage_write(&s.b, "k", "old");
            stage_write(&s.b, "other", "same");
            stage_start(&s.a, FAR_OP_PUT, "k", "new and longer");
            far_sim_kill_at(s.a.client, (far_sim_match){.nth = nth}, units[variant / 2]);
            assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
            died = far_sim_killed(s.a.pool->fabric);
            bool is_old = stage_reads(&s.b, "k", "old"), is_new = stage_reads(&s.b, "k", "new and longer");
            assert_true(is_old != is_new);
            assert_true(stage_reads(&s.b, "other", "same"));
            if (s.a.result == 0)
                assert_true(is_new);
            old_seen |= is_old;
            new_seen |= is_new;
            stage_write(&s.b, "k", "after"); /* nobody is held up by the dead */
            assert_true(stage_reads(&s.b, "k", "after"));
            stage_close(&s);
        }
        assert_true(old_seen && new_seen);
    }
}


/* b writes another key of the slot between a's READ and a's publishing. Returns whether both are there and were
 * promised. */
static bool keeps_both_writes(const char *options) {
    stage s;
    set_up(&s, options);
    stage_write(&s.a, "z", "0");
    stage_start(&s.a, FAR_OP_PUT, "x", "1");
    stage_stop_at(&s.a, (far_sim_match){.point = "toy:publish"});
    stage_write(&s.b, "y", "2");
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    bool kept = stage_reads(&s.b, "x", "1") && stage_reads(&s.b, "y", "2") && stage_reads(&s.b, "z", "0");
    stage_tear_down(&s);
    return kept;
}


static void concurrent_writes_of_a_slot_are_all_kept(void **state) {
    (void)state;
    assert_true(keeps_both_writes("slots=1"));
    assert_false(keeps_both_writes("slots=1,broken=lost_update"));
    assert_false(keeps_both_writes("slots=1,broken=dropped_write"));
}


/* a's WRITE of a long value has landed to one half when b reads. Returns whether b gets the old or the new value. */
static bool reads_whole_values(const char *options) {
    char old[LONG], new[LONG];
    stage s;
    memset(old, 'o', LONG - 1);
    memset(new, 'n', LONG - 1);
    old[LONG - 1] = new[LONG - 1] = '\0';
    set_up(&s, options);
    stage_write(&s.a, "k", old);
    stage_start(&s.a, FAR_OP_PUT, "k", new);
    far_sim_hold *hold = stage_hold(&s.a, (far_sim_match){.kind = FAR_SIM_WRITE});
    assert_true(far_sim_hold_units(hold) > 2);
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){0, 1}, 2), 0);
    bool whole = stage_reads(&s.b, "k", old) || stage_reads(&s.b, "k", new);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_true(stage_reads(&s.b, "k", new));
    stage_tear_down(&s);
    return whole;
}


static void a_reader_sees_no_half_written_value(void **state) {
    (void)state;
    assert_true(reads_whole_values("slots=1"));
    assert_true(reads_whole_values("slots=1,locks=on"));
    assert_false(reads_whole_values("slots=1,broken=torn_read"));
}


/* The WRITE of a's bucket is late; what follows on the slot's node is not. Returns whether b reads well meanwhile. */
static bool publishes_in_order(const char *options) {
    stage s;
    set_up(&s, options);
    stage_write(&s.a, "k", "old");
    stage_start(&s.a, FAR_OP_PUT, "k", "new");
    far_sim_hold *hold = stage_hold(&s.a, (far_sim_match){.kind = FAR_SIM_WRITE});
    far_sim_run_client(s.a.client);
    bool well = stage_reads(&s.b, "k", "old") || stage_reads(&s.b, "k", "new");
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_true(stage_reads(&s.b, "k", "new"));
    stage_tear_down(&s);
    return well;
}


static void a_slot_never_points_to_an_unwritten_bucket(void **state) {
    (void)state;
    assert_true(publishes_in_order("slots=1"));
    assert_true(publishes_in_order("slots=1,locks=on"));
    assert_false(publishes_in_order("slots=1,broken=unordered"));
}


/* b reads the slot, then a replaces the bucket twice. Returns whether b's read is good and nobody touched free memory.
 */
static bool keeps_what_others_read(const char *options) {
    stage s;
    set_up(&s, options);
    stage_write(&s.a, "k", "old");
    stage_start(&s.b, FAR_OP_GET, "k", NULL);
    stage_stop_at(&s.b, (far_sim_match){.point = "toy:slot_read"});
    stage_write(&s.a, "k", "mid");
    stage_write(&s.a, "k", "new");
    stage_finish(&s.b);
    bool good = s.b.result == 0 && memcmp(s.b.value, "old", 3) == 0 && far_sim_watch_errors(s.world) == 0;
    stage_tear_down(&s);
    return good;
}


static void memory_that_others_read_is_not_reused(void **state) {
    (void)state;
    assert_true(keeps_what_others_read("slots=1"));
    assert_true(keeps_what_others_read("slots=1,locks=on"));
    assert_false(keeps_what_others_read("slots=1,broken=early_free"));
}


/* a dies with the lock. Returns whether b can write. */
static bool takes_over(const char *options) {
    stage s;
    set_up(&s, options);
    stage_write(&s.a, "k", "old");
    stage_start(&s.a, FAR_OP_PUT, "k", "never");
    stage_stop_at(&s.a, (far_sim_match){.point = "toy:locked"});
    far_sim_kill(s.a.pool->fabric);
    stage_start(&s.b, FAR_OP_PUT, "k", "new");
    far_sim_run_for(s.world, 20000000);
    bool ended = s.b.ended;
    if (ended)
        assert_true(s.b.result == 0 && stage_reads(&s.b, "k", "new"));
    else
        far_sim_kill(s.b.pool->fabric);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    stage_tear_down(&s);
    return ended;
}


static void the_lock_of_a_dead_client_is_taken_over(void **state) {
    (void)state;
    assert_true(takes_over("slots=1,locks=on"));
    assert_false(takes_over("slots=1,broken=forgotten_lock"));
}


/* After a sweep no word names a dead client. */
static void a_sweep_frees_the_locks_of_the_dead(void **state) {
    (void)state;
    stage s;
    uint64_t lock;
    set_up(&s, "slots=1,locks=on");
    far_addr addr = toy_slot_addr(s.b.index->state, 0) + 8;
    const char *word = world_bytes(s.world, addr);
    stage_start(&s.a, FAR_OP_PUT, "k", "never");
    stage_stop_at(&s.a, (far_sim_match){.point = "toy:locked"});
    far_sim_kill(s.a.pool->fabric);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    memcpy(&lock, word, 8);
    assert_int_not_equal(lock, 0);
    assert_int_equal(far_pool_check(s.b.session, 1, fail_at_problem, NULL), 0);
    memcpy(&lock, word, 8);
    assert_int_equal(lock, 0);
    stage_tear_down(&s);
}


/* A live holder is waited for. */
static void the_lock_of_a_live_client_is_respected(void **state) {
    (void)state;
    stage s;
    set_up(&s, "slots=1,locks=on");
    stage_start(&s.a, FAR_OP_PUT, "k", "first");
    stage_stop_at(&s.a, (far_sim_match){.point = "toy:publish"});
    stage_start(&s.b, FAR_OP_PUT, "k", "second");
    far_sim_run_for(s.world, 20000000);
    assert_false(s.b.ended);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(stage_reads(&s.a, "k", "second"));
    stage_tear_down(&s);
}


static bool sees_the_newest(const char *options) {
    stage s;
    set_up(&s, options);
    stage_write(&s.a, "k", "old");
    assert_true(stage_reads(&s.b, "k", "old"));
    stage_write(&s.a, "k", "new");
    bool newest = stage_reads(&s.b, "k", "new");
    stage_tear_down(&s);
    return newest;
}


static void a_get_after_a_put_sees_it(void **state) {
    (void)state;
    assert_true(sees_the_newest("slots=1"));
    assert_false(sees_the_newest("slots=1,broken=stale_cache"));
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_writer_that_dies_leaves_all_or_nothing),
        cmocka_unit_test(concurrent_writes_of_a_slot_are_all_kept),
        cmocka_unit_test(a_reader_sees_no_half_written_value),
        cmocka_unit_test(a_slot_never_points_to_an_unwritten_bucket),
        cmocka_unit_test(memory_that_others_read_is_not_reused),
        cmocka_unit_test(the_lock_of_a_dead_client_is_taken_over),
        cmocka_unit_test(a_sweep_frees_the_locks_of_the_dead),
        cmocka_unit_test(the_lock_of_a_live_client_is_respected),
        cmocka_unit_test(a_get_after_a_put_sees_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
