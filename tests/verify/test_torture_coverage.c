/* Torture without options, with seeds 1..150, reaches every named point of every kind. A mechanism
 * that no seed reaches would be trusted without a test. Missing points are printed. (Points are missing if
 * torture_small.c has no second or fifth row of smart, last row of chime, first, second, fourth or fifth row of
 * dolphin, rows of dart or rows of shard, or if MANY_DEPTH is 1.) */
#include "test.h"
#include "verify/coverage.h"
#include "verify/torture_run.h"

#include <stdlib.h>
#include <string.h>

#define SEEDS 150


static far_torture usual(const char *kind) {
    far_torture torture;
    far_torture_init(&torture);
    torture.kind = kind;
    torture.scans = strcmp(kind, "shard") != 0;
    return torture;
}


/* The seeds 1..150 reach every named point of this kind. */
TEST_FUNCTION(torture_reaches_every_point) {
    const char *kind = *state;
    far_torture torture = usual(kind);
    far_torture_result result = {0};
    _Atomic uint64_t *met = calloc(far_coverage_points(), sizeof(*met));
    assert_non_null(met);
    far_coverage_collect(met); /* discards the counts of earlier tests */
    memset(met, 0, far_coverage_points() * sizeof(*met));
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        assert_int_equal(far_torture_run(&torture, seed, &result, stdout), 0);
    assert_int_equal(result.violations + result.problems + result.gave_up, 0);
    far_coverage_collect(met);
    size_t missed = far_coverage_print_missed(met, kind, stdout);
    free(met);
    assert_int_equal(missed, 0);
}


/* Each row of settings occurs with one operation in flight and with more, and with few and many keys unless it sets the
 * number of keys, because the lengths of the rounds have no common divisor. (With six turns of dart, two rows never had
 * more in flight.) */
TEST_FUNCTION(settings_meet_every_depth_and_size) {
    const char *kind = *state;
    static uint64_t key_spaces[24][2];
    static const char *options[24];
    unsigned rows = 0, depths[24] = {0};
    for (uint64_t seed = 1; seed <= 400; seed++) {
        far_torture torture = usual(kind);
        unsigned row = 0;
        far_torture_choose_small(&torture, seed);
        const char *chosen = torture.options ? torture.options : "";
        while (row < rows && strcmp(options[row], chosen) != 0)
            row++;
        assert_true(row < 24);
        rows = row == rows ? rows + 1 : rows;
        options[row] = chosen;
        depths[row] |= torture.depth == 1 ? 1 : 2;
        key_spaces[row][seed % 4 == 0] = torture.key_space;
    }
    for (unsigned row = 0; row < rows; row++)
        if (depths[row] != 3 || !key_spaces[row][0] || !key_spaces[row][1])
            fail_msg("%s: \"%s\" does not come with every depth and size", kind, options[row]);
    memset(key_spaces, 0, sizeof(key_spaces));
}


/* A seed gives the same run again, also with options, losses of sessions and checks that the seed chooses. */
TEST_FUNCTION(seeds_replay) {
    const char *kind = *state;
    far_torture torture = usual(kind);
    for (uint64_t seed = 1; seed <= 8; seed++) {
        far_torture_result first = {0}, again = {0};
        assert_int_equal(far_torture_run(&torture, seed, &first, stdout), 0);
        assert_int_equal(far_torture_run(&torture, seed, &again, stdout), 0);
        assert_int_equal(first.trace_hash, again.trace_hash);
        assert_int_equal(first.ops, again.ops);
    }
}


TEST_CASE_OF_EACH_KIND(torture_reaches_every_point);
TEST_CASE_OF_EACH_KIND(seeds_replay);
TEST_CASE_OF_EACH_KIND(settings_meet_every_depth_and_size);
