/* The toy map in the simulator: a client fails at every verb, and each deliberate fault of the toy is shown by an
 * interleaving that the correct map passes. */
#include "index/toy/toy.h"
#include "stage.h"
#include "test.h"

#include <string.h>

enum { VERBS_MAX = 100, LONG = 256 };


static void open_toy(stage *s, const char *options) {
    stage_open(s, "toy", options, NULL);
}


/* A fails at each of its verbs, and after some tearing granules of each WRITE. B finds the old or the new value, other
 * keys are unchanged, and B can write. */
TEST(a_failed_writer_leaves_all_or_nothing) {
    static const uint32_t units[] = {0, 1, FAR_SIM_WHOLE};
    for (unsigned variant = 0; variant < 6; variant++) {
        bool old_seen = false, new_seen = false, died = true;
        for (unsigned nth = 1; died; nth++) {
            stage s;
            assert_true(nth < VERBS_MAX);
            open_toy(&s, variant % 2 ? "slots=1,locks=on" : "slots=1");
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
            stage_write(&s.b, "k", "after"); /* the failed client does not block others */
            assert_true(stage_reads(&s.b, "k", "after"));
            stage_close(&s);
        }
        assert_true(old_seen && new_seen);
    }
}


/* B writes another key of the same slot after A has READ the slot and before A publishes its new bucket. Returns
 * whether both keys are present afterwards. */
static bool keeps_both_writes(const char *options) {
    stage s;
    open_toy(&s, options);
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


/* Proves that no write is lost if two clients write different keys of one slot at the same time. The test must detect
 * that a key is lost if the slot is changed by a WRITE instead of a CAS (`broken=lost_update`), or if a failed CAS is
 * reported as success (`broken=dropped_write`). */
TEST(concurrent_writes_of_a_slot_are_all_kept) {
    assert_true(keeps_both_writes("slots=1"));
    assert_false(keeps_both_writes("slots=1,broken=lost_update"));
    assert_false(keeps_both_writes("slots=1,broken=dropped_write"));
}


/* A's WRITE of a long value has taken effect to one half when B reads. Returns whether B gets the old or the new value.
 */
static bool reads_whole_values(const char *options) {
    char old[LONG], new[LONG];
    stage s;
    memset(old, 'o', LONG - 1);
    memset(new, 'n', LONG - 1);
    old[LONG - 1] = new[LONG - 1] = '\0';
    open_toy(&s, options);
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


/* Proves that a reader never gets a half-written value, because a value is never overwritten in place. The test must
 * detect the variant that does so. */
TEST(a_reader_sees_no_half_written_value) {
    assert_true(reads_whole_values("slots=1"));
    assert_true(reads_whole_values("slots=1,locks=on"));
    assert_false(reads_whole_values("slots=1,broken=torn_read"));
}


/* The WRITE of A's bucket is held back, but not the verbs to the slot's memory node that follow it. Returns whether B
 * reads a valid value meanwhile. */
static bool publishes_in_order(const char *options) {
    stage s;
    open_toy(&s, options);
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


/* Proves that A writes a bucket before the slot names it. The two may not be in one batch, because verbs to different
 * memory nodes have no order. `broken=unordered` makes this mistake, and the test must detect it. */
TEST(a_slot_never_points_to_an_unwritten_bucket) {
    assert_true(publishes_in_order("slots=1"));
    assert_true(publishes_in_order("slots=1,locks=on"));
    assert_false(publishes_in_order("slots=1,broken=unordered"));
}


/* B reads the slot, then A replaces the bucket twice. Returns whether B gets the old value and no client accessed free
 * memory. */
static bool keeps_memory_that_others_read(const char *options) {
    stage s;
    open_toy(&s, options);
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


/* Proves that a replaced bucket is not reused while a client may still read it, because it is retired. The test must
 * detect the variant that frees it at once. */
TEST(memory_that_others_read_is_not_reused) {
    assert_true(keeps_memory_that_others_read("slots=1"));
    assert_true(keeps_memory_that_others_read("slots=1,locks=on"));
    assert_false(keeps_memory_that_others_read("slots=1,broken=early_free"));
}


/* A fails while it holds the lock. Returns whether B can write. */
static bool lock_is_taken_over(const char *options) {
    stage s;
    open_toy(&s, options);
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


/* Proves that a waiting client finds out that the holder of a lock has failed, and takes the lock over. With
 * `broken=forgotten_lock` it does not check this, and the test must detect that it waits forever. */
TEST(the_lock_of_a_failed_client_is_taken_over) {
    assert_true(lock_is_taken_over("slots=1,locks=on"));
    assert_false(lock_is_taken_over("slots=1,broken=forgotten_lock"));
}


/* A fails while it holds a lock. After a collection no lock word names A (toy_free_dead_lock in toy/lock.c). */
TEST(a_collection_frees_the_locks_of_failed_clients) {
    stage s;
    uint64_t lock;
    open_toy(&s, "slots=1,locks=on");
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


/* A holds the lock and stops, but is alive. B waits until A has finished. */
TEST(the_lock_of_a_live_client_is_respected) {
    stage s;
    open_toy(&s, "slots=1,locks=on");
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
    open_toy(&s, options);
    stage_write(&s.a, "k", "old");
    assert_true(stage_reads(&s.b, "k", "old"));
    stage_write(&s.a, "k", "new");
    bool newest = stage_reads(&s.b, "k", "new");
    stage_tear_down(&s);
    return newest;
}


/* Proves that a get which begins after a put has ended returns the value of the put. With `broken=stale_cache` slot
 * words are cached and never READ again, and the test must detect the old value. */
TEST(a_get_after_a_put_sees_it) {
    assert_true(sees_the_newest("slots=1"));
    assert_false(sees_the_newest("slots=1,broken=stale_cache"));
}
