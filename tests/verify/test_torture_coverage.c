/* Torture without options, seeds 1..100 as the command has them, comes to every named point of every kind: what it never
 * came to would be believed without having been tried. What is missing is named. (torture_small.c without the second row
 * of smart, the last of chime, the first, second, fourth or fifth of dolphin, all of dart, any of shard, or with MANY_DEPTH
 * 1: points are missing.) */
#include "verify/coverage.h"
#include "verify/torture_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEEDS 100


static far_torture usual(const char *kind) {
    far_torture torture;
    far_torture_init(&torture);
    torture.kind = kind;
    torture.scans = strcmp(kind, "shard") != 0;
    return torture;
}


static void meets_everything(void **kind) {
    far_torture torture = usual(*kind);
    far_torture_result result = {0};
    _Atomic uint64_t *met = calloc(far_coverage_points(), sizeof(*met));
    assert_non_null(met);
    far_coverage_take(met); /* what other tests met */
    memset(met, 0, far_coverage_points() * sizeof(*met));
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        assert_int_equal(far_torture_run(&torture, seed, &result, stdout), 0);
    assert_int_equal(result.violations + result.problems + result.gave_up, 0);
    far_coverage_take(met);
    size_t missed = far_coverage_tell(met, *kind, stdout);
    free(met);
    assert_int_equal(missed, 0);
}


/* Each setting comes with one operation in flight and with more, and with few keys and with many where it has no number of
 * its own: their rounds have no common divisor. (Six turns of dart: two settings never had more in flight.) */
static void settings_meet_every_depth_and_size(void **kind) {
    static uint64_t key_spaces[24][2];
    static const char *options[24];
    unsigned rows = 0, depths[24] = {0};
    for (uint64_t seed = 1; seed <= 400; seed++) {
        far_torture torture = usual(*kind);
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
            fail_msg("%s: \"%s\" does not come with every depth and size", (const char *)*kind, options[row]);
    memset(key_spaces, 0, sizeof(key_spaces));
}


/* Also with options, losses and checks that come from the seed. */
static void seeds_replay(void **kind) {
    far_torture torture = usual(*kind);
    for (uint64_t seed = 1; seed <= 8; seed++) {
        far_torture_result first = {0}, again = {0};
        assert_int_equal(far_torture_run(&torture, seed, &first, stdout), 0);
        assert_int_equal(far_torture_run(&torture, seed, &again, stdout), 0);
        assert_int_equal(first.trace_hash, again.trace_hash);
        assert_int_equal(first.ops, again.ops);
    }
}


int main(void) {
    static char chime[] = "chime", dart[] = "dart", dolphin[] = "dolphin", shard[] = "shard", smart[] = "smart";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(meets_everything, chime),
        cmocka_unit_test_prestate(seeds_replay, chime),
        cmocka_unit_test_prestate(settings_meet_every_depth_and_size, chime),
        cmocka_unit_test_prestate(meets_everything, dart),
        cmocka_unit_test_prestate(seeds_replay, dart),
        cmocka_unit_test_prestate(settings_meet_every_depth_and_size, dart),
        cmocka_unit_test_prestate(meets_everything, dolphin),
        cmocka_unit_test_prestate(seeds_replay, dolphin),
        cmocka_unit_test_prestate(settings_meet_every_depth_and_size, dolphin),
        cmocka_unit_test_prestate(meets_everything, shard),
        cmocka_unit_test_prestate(seeds_replay, shard),
        cmocka_unit_test_prestate(settings_meet_every_depth_and_size, shard),
        cmocka_unit_test_prestate(meets_everything, smart),
        cmocka_unit_test_prestate(seeds_replay, smart),
        cmocka_unit_test_prestate(settings_meet_every_depth_and_size, smart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
