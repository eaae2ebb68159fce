/* Torture as a whole: it finds nothing in the toy map, and it finds each deliberate fault of the toy map. */
#include "base/error.h"
#include "farindex.h"
#include "test.h"
#include "verify/torture.h"

#include <stdlib.h>
#include <string.h>

#define SEEDS_CLEAN  60
#define SEEDS_BROKEN 200 /* each deliberate fault must be found within this many seeds */


static far_torture toy_settings(const char *options) {
    far_torture torture;
    far_torture_init(&torture);
    torture.kind = "toy";
    torture.options = options;
    return torture;
}


static void run_clean(const far_torture *torture, unsigned seeds) {
    far_torture_result sum = {0};
    for (uint64_t seed = 1; seed <= seeds; seed++)
        assert_int_equal(far_torture_run(torture, seed, &sum, stderr), 0);
    assert_int_equal(sum.seeds, seeds);
    assert_int_equal(sum.violations, 0);
    assert_int_equal(sum.problems, 0);
    assert_int_equal(sum.gave_up, 0);
    assert_true(sum.crashes > 0);
}


/* Torture finds no error in the toy map with all faults. */
TEST(the_toy_map_passes_with_all_faults) {
    far_torture torture = toy_settings(NULL);
    run_clean(&torture, SEEDS_CLEAN);
}


/* Torture finds no error in the toy map with locks, several operations in flight, granules of 8 bytes and no masked
 * CAS. */
TEST(the_toy_map_passes_with_locks_depth_and_small_granules) {
    far_torture torture = toy_settings("locks=on");
    torture.depth = 6;
    torture.atomic_bytes = 8;
    torture.masked_cas = false;
    torture.keys = "prefix";
    run_clean(&torture, SEEDS_CLEAN / 2);
}


/* Torture finds no error in the toy map in a pool in which allocations fail. */
TEST(the_toy_map_passes_in_a_nearly_full_pool) {
    far_torture torture = toy_settings("slots=16");
    torture.pool_bytes = 4 << 20;
    torture.memory_nodes = 1;
    torture.value_bytes[0] = 0;
    torture.value_bytes[1] = 60000;
    torture.key_space = 24;
    run_clean(&torture, SEEDS_CLEAN / 4);
}


/* On a fabric like a network, memory nodes have outages, some with a restart. Handles that were lost are opened again.
 */
TEST(outages_and_restarts_of_memory_nodes_are_survived) {
    static const char *const kinds[] = {"toy", "smart", "dart"};
    far_torture_result sum = {0};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        far_torture torture = toy_settings(i == 0 ? "locks=on" : NULL);
        torture.kind = kinds[i];
        torture.questions = true;
        for (uint64_t seed = 1; seed <= SEEDS_CLEAN / 3; seed++)
            assert_int_equal(far_torture_run(&torture, seed, &sum, stderr), 0);
    }
    assert_int_equal(sum.violations, 0);
    assert_int_equal(sum.problems, 0);
    assert_true(sum.silences > SEEDS_CLEAN / 2 && sum.restarts > SEEDS_CLEAN / 10);
}


/* RDWC merges operations during torture, also gets, in every kind. With RDWC off nothing is merged. */
TEST(operations_of_one_key_are_merged_during_torture) {
    static const char *const kinds[] = {"toy", "smart", "dart", "shard", "dolphin", "chime"};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        for (unsigned on = 0; on < 2; on++) {
            far_torture_result sum = {0};
            far_torture torture = toy_settings(NULL);
            torture.kind = kinds[i];
            torture.rdwc = on;
            torture.depth = 4;
            torture.key_space = 4;
            torture.scans = strcmp(kinds[i], "shard") != 0;
            for (uint64_t seed = 1; seed <= 6; seed++)
                assert_int_equal(far_torture_run(&torture, seed, &sum, stderr), 0);
            assert_int_equal(sum.violations + sum.problems + sum.gave_up, 0);
            assert_true((sum.merged > 0) == on);
        }
}


/* Returns the first seed that finds the fault, or 0. */
static uint64_t find_failing_seed(const far_torture *torture) {
    FILE *nowhere = fopen("/dev/null", "w");
    assert_non_null(nowhere);
    uint64_t caught = 0;
    for (uint64_t seed = 1; seed <= SEEDS_BROKEN && !caught; seed++) {
        far_torture_result one = {0};
        assert_int_equal(far_torture_run(torture, seed, &one, nowhere), 0);
        if (one.violations || one.problems)
            caught = seed;
    }
    fclose(nowhere);
    return caught;
}


/* For each deliberate fault of the toy map, torture finds an error within SEEDS_BROKEN seeds. */
TEST(every_broken_toy_is_caught) {
    static const char *const broken[] = {
        "broken=lost_update",   "broken=torn_read", "broken=early_free", "broken=forgotten_lock,locks=on",
        "broken=dropped_write", "broken=unordered", "broken=stale_cache", "broken=backward_gap"};
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        far_torture torture = toy_settings(broken[i]);
        uint64_t seed = find_failing_seed(&torture);
        print_message("%s: caught at seed %llu\n", broken[i], (unsigned long long)seed);
        assert_true(seed != 0);
    }
}


static bool refuses_drops;

int __real_far_index_drop(far_session *session, const char *name);
int __wrap_far_index_drop(far_session *session, const char *name);


int __wrap_far_index_drop(far_session *session, const char *name) {
    return refuses_drops ? far_fail(FAR_ERR_BUSY, "index '%s' is in use, it is said", name)
                         : __real_far_index_drop(session, name);
}


/* A drop is never refused with FAR_ERR_BUSY. */
TEST(a_drop_that_is_refused_without_a_reason_is_caught) {
    far_torture torture = toy_settings(NULL);
    refuses_drops = true;
    uint64_t seed = find_failing_seed(&torture);
    refuses_drops = false;
    assert_true(seed != 0 && seed < 10);
}


typedef struct recorded_run {
    char *text;
    size_t size;
    far_torture_result result;
} recorded_run;


static recorded_run run_and_record_text(const far_torture *torture, uint64_t seed) {
    recorded_run t = {0};
    FILE *memory = open_memstream(&t.text, &t.size);
    assert_non_null(memory);
    assert_int_equal(far_torture_run(torture, seed, &t.result, memory), 0);
    fclose(memory);
    return t;
}


/* Two runs of one seed print the same text and have the same trace. */
TEST(a_seed_replays_to_the_byte) {
    far_torture torture = toy_settings("broken=lost_update");
    /* With more operations in flight, the first failing seed damages memory, so it has no history to print. */
    torture.depth = 1;
    uint64_t seed = find_failing_seed(&torture);
    recorded_run first = run_and_record_text(&torture, seed), again = run_and_record_text(&torture, seed),
                 other = run_and_record_text(&torture, seed + 1);
    assert_true(first.result.violations > 0);
    assert_int_equal(first.result.trace_hash, again.result.trace_hash);
    assert_string_equal(first.text, again.text);
    assert_true(other.result.trace_hash != first.result.trace_hash);
    assert_non_null(strstr(first.text, "no linearization"));
    free(first.text);
    free(again.text);
    free(other.text);
}
