/* The kit as a whole: torture finds nothing in the toy map, and finds every toy that is broken on purpose. */
#include "base/error.h"
#include "farindex.h"
#include "verify/torture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEEDS_CLEAN  60
#define SEEDS_BROKEN 200 /* each broken toy must be caught within so many */


static far_torture toy(const char *options) {
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


static void the_toy_map_stands_all_faults(void **state) {
    (void)state;
    far_torture torture = toy(NULL);
    run_clean(&torture, SEEDS_CLEAN);
}


static void so_it_does_with_locks_many_in_flight_and_small_units(void **state) {
    (void)state;
    far_torture torture = toy("locks=on");
    torture.depth = 6;
    torture.atomic_bytes = 8;
    torture.masked_cas = false;
    torture.keys = "prefix";
    run_clean(&torture, SEEDS_CLEAN / 2);
}


static void and_in_a_pool_that_is_nearly_full(void **state) {
    (void)state;
    far_torture torture = toy("slots=16");
    torture.pool_bytes = 4 << 20;
    torture.memory_nodes = 1;
    torture.value_bytes[0] = 0;
    torture.value_bytes[1] = 60000;
    torture.key_space = 24;
    run_clean(&torture, SEEDS_CLEAN / 4);
}


/* As over a network: memory nodes fall silent for a while, some because they were restarted; handles that lose them are
 * opened again. */
static void and_memory_nodes_that_fall_silent_and_restart(void **state) {
    (void)state;
    static const char *const kinds[] = {"toy", "smart", "dart"};
    far_torture_result sum = {0};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        far_torture torture = toy(i == 0 ? "locks=on" : NULL);
        torture.kind = kinds[i];
        torture.questions = true;
        for (uint64_t seed = 1; seed <= SEEDS_CLEAN / 3; seed++)
            assert_int_equal(far_torture_run(&torture, seed, &sum, stderr), 0);
    }
    assert_int_equal(sum.violations, 0);
    assert_int_equal(sum.problems, 0);
    assert_true(sum.silences > SEEDS_CLEAN / 2 && sum.restarts > SEEDS_CLEAN / 10);
}


/* RDWC merges under torture, gets too, in every kind; switched off it merges nothing. */
static void operations_of_one_key_are_merged_meanwhile(void **state) {
    (void)state;
    static const char *const kinds[] = {"toy", "smart", "dart", "shard", "dolphin", "chime"};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        for (unsigned on = 0; on < 2; on++) {
            far_torture_result sum = {0};
            far_torture torture = toy(NULL);
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


/* The seed at which the broken toy was caught, or 0. */
static uint64_t caught_at(const far_torture *torture) {
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


static void every_broken_toy_is_caught(void **state) {
    (void)state;
    static const char *const broken[] = {
        "broken=lost_update",   "broken=torn_read", "broken=early_free", "broken=forgotten_lock,locks=on",
        "broken=dropped_write", "broken=unordered", "broken=stale_cache"};
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        far_torture torture = toy(broken[i]);
        uint64_t seed = caught_at(&torture);
        print_message("%s: caught at seed %llu\n", broken[i], (unsigned long long)seed);
        assert_true(seed != 0);
    }
}


static bool refuses_drops;

int __real_far_index_drop(far_session *session, const char *name);
int __wrap_far_index_drop(far_session *session, const char *name);


int __wrap_far_index_drop(far_session *session, const char *name) {
    return refuses_drops ? far_fail(FAR_ERR_BUSY, "index '%s' is open, it is said", name)
                         : __real_far_index_drop(session, name);
}


/* Nobody has the index open. */
static void a_drop_that_is_refused_without_a_reason_is_caught(void **state) {
    (void)state;
    far_torture torture = toy(NULL);
    refuses_drops = true;
    uint64_t seed = caught_at(&torture);
    refuses_drops = false;
    assert_true(seed != 0 && seed < 10);
}


typedef struct told {
    char *text;
    size_t size;
    far_torture_result result;
} told;


static told run_and_listen(const far_torture *torture, uint64_t seed) {
    told t = {0};
    FILE *memory = open_memstream(&t.text, &t.size);
    assert_non_null(memory);
    assert_int_equal(far_torture_run(torture, seed, &t.result, memory), 0);
    fclose(memory);
    return t;
}


static void a_seed_replays_to_the_byte(void **state) {
    (void)state;
    far_torture torture = toy("broken=lost_update");
    torture.depth = 1; /* with more in flight the first seed that fails has no history to show, only broken memory */
    uint64_t seed = caught_at(&torture);
    told first = run_and_listen(&torture, seed), again = run_and_listen(&torture, seed),
         other = run_and_listen(&torture, seed + 1);
    assert_true(first.result.violations > 0);
    assert_int_equal(first.result.trace_hash, again.result.trace_hash);
    assert_string_equal(first.text, again.text);
    assert_true(other.result.trace_hash != first.result.trace_hash);
    assert_non_null(strstr(first.text, "no linearization"));
    free(first.text);
    free(again.text);
    free(other.text);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_toy_map_stands_all_faults),
        cmocka_unit_test(so_it_does_with_locks_many_in_flight_and_small_units),
        cmocka_unit_test(and_in_a_pool_that_is_nearly_full),
        cmocka_unit_test(and_memory_nodes_that_fall_silent_and_restart),
        cmocka_unit_test(operations_of_one_key_are_merged_meanwhile),
        cmocka_unit_test(every_broken_toy_is_caught),
        cmocka_unit_test(a_drop_that_is_refused_without_a_reason_is_caught),
        cmocka_unit_test(a_seed_replays_to_the_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
