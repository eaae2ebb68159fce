/* What a check says of the words that lead from a partition to its segments, and from a large segment to its pieces: each is
 * damaged while the table is in use, found by a handle that has used it and by one that has not. */
#include "shard_rig.h"

#define PIECES "slots=4,l2_slots=1,load=60,afs=1,extent=1024" /* bits=1: segments from 2 on have pieces */


static int keep_problem(void *ctx, const char *what) {
    char *said = ctx;
    snprintf(said, 256, "%s", what);
    return 0;
}


/* The check by this handle names it, in these words; afterwards the word is as it was. */
static void check_says(stage *s, stage_actor *by, far_addr at, uint64_t damaged, const char *words) {
    char said[256] = "";
    uint64_t *word = world_bytes(s->world, at), before = *word;
    assert_true(before != damaged);
    *word = damaged;
    int result = far_index_check(by->session, by->index, keep_problem, said);
    *word = before;
    assert_true(result != 0);
    if (result < 0)
        keep_problem(said, far_last_error());
    if (!strstr(said, words))
        fail_msg("no '%s' in '%s'", words, said);
}


static far_addr segment_word(const stage *s, unsigned segment) {
    far_addr body =
        shard_body_addr(world_word(s->world, shard_state_of(s->a.index)->part[0].pcb + 8 * SHARD_PCB_BODY), 0);
    return body + 8ull * (SHARD_BODY_SEGMENT + segment);
}


/* (Without check_segment, is_as_known or the look for holes: nothing is said, or what is said is no reason.) */
static void words_that_lead_to_segments_are_checked_told(const told *told) {
    stage s;
    open_stage_with(&s, told, 1, PIECES, true);
    for (unsigned n = 1; version(&s.a) < 3; n++) {
        assert_int_equal(insert(&s.a, number(n), n), 0);
        stage_poll(&s, 1);
    }
    const shard_state *st = shard_state_of(s.a.index);
    unsigned d = version(&s.a);
    assert_true(shard_extent_count(st, 0) == 0 && shard_extent_count(st, d) > 1);
    far_addr last = segment_word(&s, d), pieces = world_word(s.world, last);
    far_addr elsewhere = world_word(s.world, segment_word(&s, 0)) + 4096;

    check_says(&s, &s.c, last, 0, "has no segment 3");
    check_says(&s, &s.c, pieces + 8, 0, "segment 3 has a hole");
    check_says(&s, &s.a, last, 0, "has no segment 3");
    check_says(&s, &s.a, last, elsewhere, "a segment is at");
    check_says(&s, &s.a, segment_word(&s, 0), elsewhere, "a segment is at");
    check_says(&s, &s.a, pieces + 8, elsewhere, "a piece of a segment is at");
    stage_close(&s);
}
TOLD_OF_ALL(words_that_lead_to_segments_are_checked);


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(words_that_lead_to_segments_are_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
