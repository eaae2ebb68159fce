/* Each rule of a key's register, by hand-made histories: one that keeps it, one that breaks it. */
#include "verify/linear.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CUT       FAR_HISTORY_NEVER
#define NOT_FOUND FAR_ERR_NOT_FOUND
#define EXISTS    FAR_ERR_EXISTS

/* One operation each: when, what value ("" is the empty one, NULL none), what came back. */
#define GET(start, end, value)                                                                                         \
    { FAR_OP_GET, start, end, value, (value) ? FAR_OK : NOT_FOUND }
#define INSERT(start, end, value, result)                                                                              \
    { FAR_OP_INSERT, start, end, value, result }
#define UPDATE(start, end, value, result)                                                                              \
    { FAR_OP_UPDATE, start, end, value, result }
#define PUT(start, end, value)                                                                                         \
    { FAR_OP_PUT, start, end, value, FAR_OK }
#define DELETE(start, end, result)                                                                                     \
    { FAR_OP_DELETE, start, end, NULL, result }

typedef struct line {
    far_op_kind op;
    int64_t start, end;
    const char *value;
    int64_t result;
} line;

#define assert_legal(...)                                                                                              \
    judge((line[]){__VA_ARGS__}, sizeof((line[]){__VA_ARGS__}) / sizeof(line), NULL, FAR_LINEAR_OK, __LINE__)
#define assert_illegal(...)                                                                                            \
    judge((line[]){__VA_ARGS__}, sizeof((line[]){__VA_ARGS__}) / sizeof(line), NULL, FAR_LINEAR_VIOLATION, __LINE__)
#define assert_legal_from(initial, ...)                                                                                \
    judge((line[]){__VA_ARGS__}, sizeof((line[]){__VA_ARGS__}) / sizeof(line), initial, FAR_LINEAR_OK, __LINE__)
#define assert_illegal_from(initial, ...)                                                                              \
    judge((line[]){__VA_ARGS__}, sizeof((line[]){__VA_ARGS__}) / sizeof(line), initial, FAR_LINEAR_VIOLATION, __LINE__)


static void fill(far_linear_op *ops, const line *lines, size_t count) {
    for (size_t i = 0; i < count; i++) {
        ops[i] = (far_linear_op){.op = lines[i].op,
                                 .client = (uint32_t)i,
                                 .result = lines[i].result,
                                 .start = lines[i].start,
                                 .end = lines[i].end};
        if (lines[i].value) {
            ops[i].has_value = true;
            ops[i].value = (far_bytes){lines[i].value, strlen(lines[i].value)};
        }
    }
}


static void judge(const line *lines, size_t count, const char *initial, far_linear_verdict expected, int at) {
    far_linear_op ops[32];
    far_bytes first = {initial, initial ? strlen(initial) : 0};
    fill(ops, lines, count);
    far_linear_key key = {.name = {"k", 1}, .ops = ops, .count = count, .initial = initial ? &first : NULL};
    far_linear_verdict verdict = far_linear_check(&key, 0, NULL);
    if (verdict != expected) {
        far_linear_print(&key, stderr);
        fail_msg("line %d: verdict %d instead of %d", at, verdict, expected);
    }
}


static void empty_history_is_legal(void **state) {
    (void)state;
    far_linear_key key = {.name = {"k", 1}};
    assert_int_equal(far_linear_check(&key, 0, NULL), FAR_LINEAR_OK);
}


static void get_sees_the_last_value_written(void **state) {
    (void)state;
    assert_legal(PUT(1, 2, "a"), GET(3, 4, "a"), PUT(5, 6, "b"), GET(7, 8, "b"));
    assert_illegal(PUT(1, 2, "a"), PUT(3, 4, "b"), GET(5, 6, "a")); /* stale */
    assert_legal(PUT(1, 2, "a"), PUT(3, 9, "b"), GET(5, 6, "a"));   /* concurrent: still the old one */
    assert_legal(PUT(1, 2, "a"), PUT(3, 9, "b"), GET(5, 6, "b"));   /* or already the new one */
    assert_illegal(PUT(1, 2, "a"), GET(3, 4, NULL));
    assert_legal(PUT(1, 2, ""), GET(3, 4, ""), PUT(5, 6, "a"), PUT(7, 8, ""), GET(9, 10, ""));
}


static void value_that_nobody_wrote_is_never_read(void **state) {
    (void)state;
    assert_illegal(PUT(1, 2, "a"), GET(3, 4, "x"));
    assert_illegal(GET(1, 2, "a"), PUT(3, 4, "a")); /* nor before it is written */
    assert_legal(GET(1, 3, "a"), PUT(3, 4, "a"));   /* touching is concurrent */
}


static void touching_operations_count_as_concurrent(void **state) {
    (void)state;
    assert_legal(PUT(1, 5, "a"), GET(5, 6, NULL));
    assert_illegal(PUT(1, 5, "a"), GET(6, 7, NULL));
}


static void values_do_not_go_back(void **state) {
    (void)state;
    assert_illegal(PUT(1, 2, "a"), PUT(3, 20, "b"), GET(4, 5, "b"), GET(6, 7, "a")); /* new, then old, at two clients */
    assert_legal(PUT(1, 2, "a"), PUT(3, 20, "b"), GET(4, 6, "b"), GET(5, 7, "a")); /* unless these two are concurrent */
    assert_illegal(PUT(1, 9, "a"), PUT(1, 9, "b"), GET(10, 11, "a"), GET(12, 13, "b"));
    assert_illegal(PUT(1, 30, "a"), PUT(1, 30, "b"), GET(10, 11, "a"), GET(12, 13, "b"), GET(14, 15, "a"));
}


static void two_readers_agree_on_the_order_of_writes(void **state) {
    (void)state;
    assert_illegal(PUT(1, 40, "a"), PUT(1, 40, "b"), GET(2, 3, "a"), GET(4, 20, "b"), GET(5, 6, "b"), GET(7, 8, "a"));
    assert_legal(PUT(1, 40, "a"), PUT(1, 40, "b"), GET(2, 3, "a"), GET(4, 20, "b"), GET(5, 6, "a"), GET(7, 8, "b"));
}


static void update_is_not_lost(void **state) {
    (void)state;
    assert_illegal(PUT(1, 2, "a"), UPDATE(3, 4, "b", 0), UPDATE(5, 6, "c", 0), GET(7, 8, "b"));
    assert_illegal(PUT(1, 2, "a"), UPDATE(3, 4, "b", 0), GET(5, 6, "a"));
    assert_illegal(UPDATE(3, 4, "b", 0));
    assert_illegal(PUT(1, 2, "a"), UPDATE(3, 4, "b", NOT_FOUND));
    assert_legal(PUT(1, 5, "a"), UPDATE(3, 4, "b", NOT_FOUND), GET(6, 7, "a"));
    assert_illegal(PUT(1, 5, "a"), UPDATE(3, 4, "b", NOT_FOUND), GET(6, 7, "b"));
}


static void insert_succeeds_once(void **state) {
    (void)state;
    assert_illegal(INSERT(1, 9, "a", 0), INSERT(1, 9, "b", 0));
    assert_legal(INSERT(1, 9, "a", 0), INSERT(1, 9, "b", EXISTS), GET(10, 11, "a"));
    assert_illegal(INSERT(1, 9, "a", 0), INSERT(1, 9, "b", EXISTS), GET(10, 11, "b"));
    assert_illegal(INSERT(1, 9, "b", EXISTS));
    assert_legal(INSERT(1, 9, "a", 0), DELETE(1, 9, 0), INSERT(1, 9, "b", 0));
    assert_illegal(INSERT(1, 2, "a", 0), INSERT(3, 4, "b", 0), DELETE(5, 6, 0));
}


static void delete_succeeds_once(void **state) {
    (void)state;
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 9, 0), DELETE(3, 9, 0));
    assert_legal(PUT(1, 2, "a"), DELETE(3, 9, 0), DELETE(3, 9, NOT_FOUND));
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 9, NOT_FOUND));
    assert_legal(PUT(1, 2, "a"), DELETE(3, 9, 0), DELETE(3, 9, 0), PUT(4, 5, "b"));
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 9, 0), DELETE(3, 9, 0), UPDATE(4, 5, "b", 0));
}


static void deleted_key_does_not_come_back(void **state) {
    (void)state;
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 4, 0), GET(5, 6, "a"));
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 4, 0), INSERT(5, 6, "b", EXISTS));
    assert_legal(PUT(1, 2, "a"), DELETE(3, 8, 0), GET(5, 6, "a"), GET(7, 8, NULL));
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 20, 0), GET(5, 6, NULL), GET(7, 8, "a"));
}


static void cut_write_happens_late_or_never(void **state) {
    (void)state;
    assert_legal(PUT(1, 2, "a"), PUT(3, CUT, "b"), GET(4, 5, "a"));
    assert_legal(PUT(1, 2, "a"), PUT(3, CUT, "b"), GET(4, 5, "b"));
    assert_legal(PUT(1, 2, "a"), PUT(3, CUT, "b"), GET(100, 101, "a"), GET(200, 201, "b"));
    assert_legal(PUT(1, 2, "a"), PUT(3, CUT, "b"), PUT(4, 5, "c"), GET(6, 7, "c"), GET(8, 9, "b"));
    assert_illegal(PUT(3, CUT, "b"), GET(1, 2, "b")); /* but not before its start */
    assert_legal(PUT(1, 2, "a"), DELETE(3, CUT, 0), GET(4, 5, "a"), GET(6, 7, NULL));
    assert_legal(INSERT(1, CUT, "a", 0), INSERT(2, 3, "b", EXISTS));
    assert_legal(INSERT(1, CUT, "a", 0), INSERT(2, 3, "b", 0));
}


static void cut_write_happens_at_most_once(void **state) {
    (void)state;
    assert_illegal(PUT(1, 2, "a"), PUT(3, CUT, "b"), GET(4, 5, "b"), PUT(6, 7, "c"), GET(8, 9, "c"), GET(10, 11, "b"));
    assert_illegal(PUT(1, 2, "a"), PUT(3, CUT, "b"), GET(4, 5, "b"), GET(6, 7, "a"));
    assert_illegal(PUT(1, 2, "a"), DELETE(3, CUT, 0), DELETE(4, 5, 0), DELETE(6, 7, 0));
    assert_illegal(PUT(1, CUT, "a"), DELETE(4, 5, 0), DELETE(6, 7, 0));
    assert_legal(PUT(1, CUT, "a"), PUT(1, CUT, "b"), DELETE(4, 5, 0), DELETE(6, 7, 0));
    assert_illegal(PUT(1, CUT, "a"), PUT(6, CUT, "b"), DELETE(4, 5, 0), GET(6, 7, NULL), DELETE(4, 5, 0));
}


/* Both happen between two events: the only moment at which the key can have been absent. */
static void cut_delete_and_cut_insert_may_both_happen_before_an_update(void **state) {
    (void)state;
    assert_legal_from("a", DELETE(1, CUT, 0), INSERT(1, CUT, "z", 0), GET(2, 8, NULL), UPDATE(3, 6, "b", 0),
                      GET(4, 5, "b"), GET(9, 10, "b"));
    assert_illegal_from("a", DELETE(1, CUT, 0), INSERT(6, CUT, "z", 0), GET(2, 8, NULL), UPDATE(3, 6, "b", 0),
                        GET(4, 5, "b"), GET(9, 10, "b"));
}


static void cut_conditional_write_keeps_its_condition(void **state) {
    (void)state;
    assert_illegal(UPDATE(1, CUT, "a", 0), GET(2, 3, "a"));
    assert_illegal(PUT(1, 2, "a"), INSERT(3, CUT, "b", 0), GET(4, 5, "b"));
    assert_legal(PUT(1, 2, "a"), UPDATE(3, CUT, "b", 0), GET(4, 5, "b"));
    assert_legal(PUT(1, 2, "a"), INSERT(3, CUT, "b", 0), DELETE(3, 4, 0), GET(5, 6, NULL), GET(7, 8, "b"));
}


static void unreachable_and_fenced_writes_may_still_happen_after_their_end(void **state) {
    (void)state;
    const int64_t unsure[] = {FAR_ERR_UNREACHABLE, FAR_ERR_FENCED};
    for (int i = 0; i < 2; i++) {
        assert_legal(PUT(1, 2, "a"), UPDATE(3, 4, "b", unsure[i]), GET(5, 6, "a"), GET(7, 8, "b"));
        assert_legal(PUT(1, 2, "a"), UPDATE(3, 4, "b", unsure[i]), GET(5, 6, "a"));
        assert_legal(PUT(1, 2, "a"), DELETE(3, 4, unsure[i]), GET(5, 6, NULL));
        assert_illegal(PUT(1, 2, "a"), UPDATE(3, 4, "b", unsure[i]), GET(5, 6, "b"), GET(7, 8, "a"));
    }
}


static void other_errors_mean_no_effect(void **state) {
    (void)state;
    const int64_t errors[] = {FAR_ERR_NO_MEMORY, FAR_ERR_INVALID, FAR_ERR_TOO_SMALL, FAR_ERR_CORRUPT, FAR_ERR_BUSY};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        assert_legal(PUT(1, 2, "a"), UPDATE(3, 4, "b", errors[i]), GET(5, 6, "a"));
        assert_illegal(PUT(1, 2, "a"), UPDATE(3, 4, "b", errors[i]), GET(5, 6, "b"));
    }
}


static void failed_get_tells_nothing_but_too_small_tells_presence(void **state) {
    (void)state;
    assert_legal(PUT(1, 2, "a"), {FAR_OP_GET, 3, 4, NULL, FAR_ERR_UNREACHABLE}, {FAR_OP_GET, 3, CUT, NULL, 0});
    assert_legal(PUT(1, 2, "a"), {FAR_OP_GET, 3, 4, NULL, FAR_ERR_TOO_SMALL});
    assert_illegal(PUT(5, 6, "a"), {FAR_OP_GET, 3, 4, NULL, FAR_ERR_TOO_SMALL});
    assert_illegal(PUT(1, 2, "a"), PUT(3, 4, "b"), {FAR_OP_GET, 5, 6, "a", FAR_ERR_TOO_SMALL});
}


static void initial_value_counts_as_written_before_all(void **state) {
    (void)state;
    assert_legal_from("a", GET(1, 2, "a"), INSERT(3, 4, "b", EXISTS), DELETE(5, 6, 0));
    assert_illegal_from("a", GET(1, 2, NULL));
    assert_illegal_from("a", PUT(1, 2, "b"), GET(3, 4, "a"));
    assert_illegal_from("a", INSERT(1, 2, "b", 0));
    assert_legal_from("a", PUT(1, 2, "b"), PUT(3, 4, "a"), GET(5, 6, "a"));
}


static void equal_values_of_several_writers_are_told_apart_by_time(void **state) {
    (void)state;
    assert_legal(PUT(1, 2, "a"), PUT(3, 4, "b"), PUT(5, 6, "a"), GET(7, 8, "a"));
    assert_illegal(PUT(1, 2, "a"), PUT(1, 2, "a"), PUT(3, 4, "b"), GET(5, 6, "a"));
    assert_legal(PUT(1, 9, "a"), PUT(1, 9, "a"), PUT(1, 9, "b"), GET(2, 3, "a"), GET(4, 5, "b"), GET(6, 7, "a"));
    assert_illegal(PUT(1, 9, "a"), PUT(1, 9, "a"), PUT(1, 9, "b"), GET(2, 3, "a"), GET(4, 5, "b"), GET(6, 7, "a"),
                   GET(8, 9, "b"));
    assert_illegal(INSERT(1, 2, "a", 0), DELETE(3, 4, 0), GET(5, 6, "a")); /* one value only */
}


/* Repeated values, many writers, an answer that takes more states than allowed. */
static void spent_budget_is_reported_as_such(void **state) {
    (void)state;
    far_linear_op ops[40];
    static const char *const values[] = {"a", "b", "c", "d", "e"};
    for (int i = 0; i < 36; i++) {
        line put = PUT(i, 1000 + i, values[i % 5]);
        fill(&ops[i], &put, 1);
    }
    line reads[] = {GET(2000, 2001, "a"), GET(2002, 2003, "b")};
    fill(&ops[36], reads, 2);
    far_linear_key key = {.name = {"k", 1}, .ops = ops, .count = 38};
    uint64_t states;
    assert_int_equal(far_linear_check(&key, 1000, &states), FAR_LINEAR_GAVE_UP);
    assert_in_range(states, 1, 1001);
}


static void shrinking_leaves_the_proof_and_prints_it(void **state) {
    (void)state;
    line lines[] = {
        PUT(1, 2, "x"),   GET(3, 4, "x"),   PUT(5, 6, "a"),    GET(7, 8, "a"),   PUT(9, 10, "b"),
        GET(11, 12, "b"), GET(13, 14, "a"), DELETE(15, 16, 0), PUT(17, 18, "c"), INSERT(13, 19, "y", EXISTS),
        GET(21, 22, "c")};
    far_linear_op ops[11];
    fill(ops, lines, 11);
    far_linear_key key = {.name = {"k", 1}, .ops = ops, .count = 11};
    far_linear_shrink(&key, 0);
    assert_int_equal(key.count, 3);
    assert_int_equal(ops[0].start, 5);
    assert_int_equal(ops[1].start, 9);
    assert_int_equal(ops[2].start, 13);
    char text[1024] = "";
    FILE *file = fmemopen(text, sizeof text, "w");
    far_linear_print(&key, file);
    fclose(file);
    assert_non_null(strstr(text, "key 6b, at first absent"));
    assert_non_null(strstr(text, "put 61 -> ok"));
    assert_non_null(strstr(text, "get -> 61"));
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_history_is_legal),
        cmocka_unit_test(get_sees_the_last_value_written),
        cmocka_unit_test(value_that_nobody_wrote_is_never_read),
        cmocka_unit_test(touching_operations_count_as_concurrent),
        cmocka_unit_test(values_do_not_go_back),
        cmocka_unit_test(two_readers_agree_on_the_order_of_writes),
        cmocka_unit_test(update_is_not_lost),
        cmocka_unit_test(insert_succeeds_once),
        cmocka_unit_test(delete_succeeds_once),
        cmocka_unit_test(deleted_key_does_not_come_back),
        cmocka_unit_test(cut_write_happens_late_or_never),
        cmocka_unit_test(cut_write_happens_at_most_once),
        cmocka_unit_test(cut_delete_and_cut_insert_may_both_happen_before_an_update),
        cmocka_unit_test(cut_conditional_write_keeps_its_condition),
        cmocka_unit_test(unreachable_and_fenced_writes_may_still_happen_after_their_end),
        cmocka_unit_test(other_errors_mean_no_effect),
        cmocka_unit_test(failed_get_tells_nothing_but_too_small_tells_presence),
        cmocka_unit_test(initial_value_counts_as_written_before_all),
        cmocka_unit_test(equal_values_of_several_writers_are_told_apart_by_time),
        cmocka_unit_test(spent_budget_is_reported_as_such),
        cmocka_unit_test(shrinking_leaves_the_proof_and_prints_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
