/* Tests of a check that finds damage in the words that name the segments of a partition and the extents of a large
 * segment. Each word is damaged while the table is in use. The damage must be reported by a handle that has used the
 * word, and by a handle that has not. */
#include "shard_rig.h"
#include "test.h"

#define PIECES "slots=4,l2_slots=1,load=60,afs=1,extent=1024" /* bits=1: segments from number 2 on consist of extents */


static int keep_problem(void *ctx, const char *what) {
    char *problem = ctx;
    snprintf(problem, 256, "%s", what);
    return 0;
}


/* Verifies that a check by this handle reports the damage in these words. Afterwards the word is restored. */
static void assert_check_reports(stage *s, stage_actor *by, far_addr at, uint64_t damaged, const char *words) {
    char problem[256] = "";
    uint64_t *word = world_bytes(s->world, at), before = *word;
    assert_true(before != damaged);
    *word = damaged;
    int result = far_index_check(by->session, by->index, keep_problem, problem);
    *word = before;
    assert_true(result != 0);
    if (result < 0)
        keep_problem(problem, far_last_error());
    if (!strstr(problem, words))
        fail_msg("no '%s' in '%s'", words, problem);
}


static far_addr segment_word(const stage *s, unsigned segment) {
    far_addr directory = shard_directory_addr(
        world_word(s->world, shard_state_of(s->a.index)->part[0].pcb + 8 * SHARD_PCB_DIRECTORY), 0);
    return directory + 8ull * (SHARD_DIR_SEGMENT + segment);
}


/* Clears the address of an extent in the cache of the handle. */
static void forget_extent(const stage_actor *a, unsigned segment, uint64_t extent) {
    shard_partition *part = &shard_state_of(a->index)->part[0];
    shard_extents *extents = (shard_extents *)(uintptr_t)part->segment[segment];
    if (extents)
        atomic_store(&extents->extent[extent], 0);
}


/* Proves that damage of each of these words is reported with its reason. Fails without check_segment_exists, without
 * shard_check_unchanged, or without the check for missing extents (traversal.c), because the check then reports nothing
 * or another reason. */
static void words_that_lead_to_segments_are_checked_on(const variant *variant) {
    stage s;
    open_stage_with(&s, variant, 1, PIECES, true);
    for (unsigned n = 1; version(&s.a) < 3; n++) {
        assert_int_equal(insert(&s.a, number(n), n), 0);
        stage_poll(&s, 1);
    }
    const shard_state *st = shard_state_of(s.a.index);
    unsigned d = version(&s.a);
    assert_true(shard_extent_count(st, 1, 0) == 0 && shard_extent_count(st, 1, d) > 1);
    far_addr last = segment_word(&s, d), pieces = world_word(s.world, last);
    far_addr elsewhere = world_word(s.world, segment_word(&s, 0)) + 4096;

    assert_check_reports(&s, &s.c, last, 0, "has no segment 3");
    forget_extent(&s.c, d, 1);
    assert_check_reports(&s, &s.c, pieces + 8, 0, "an extent of segment 3 is missing");
    assert_check_reports(&s, &s.a, last, 0, "has no segment 3");
    assert_check_reports(&s, &s.a, last, elsewhere, ": segment at");
    assert_check_reports(&s, &s.a, segment_word(&s, 0), elsewhere, ": segment at");
    assert_check_reports(&s, &s.a, pieces + 8, elsewhere, ": extent of a segment at");
    stage_close(&s);
}
TEST_ALL_VARIANTS(words_that_lead_to_segments_are_checked);
