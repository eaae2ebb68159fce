/* The rules of linearizability of one key, with hand-written histories: for each rule one history that keeps it and one
 * that breaks it. */
#include "test.h"
#include "verify/linear.h"

#include <stdlib.h>
#include <string.h>

#define CUT       FAR_HISTORY_NEVER
#define NOT_FOUND FAR_ERR_NOT_FOUND
#define EXISTS    FAR_ERR_EXISTS

/* One operation each: begin, end, value ("" is the empty value, NULL none) and result. */
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


/* A key without operations is linearizable. */
TEST(empty_history_is_legal) {
    far_linear_key key = {.name = {"k", 1}};
    assert_int_equal(far_linear_check(&key, 0, NULL), FAR_LINEAR_OK);
}


/* A get returns the value of the last put that ended before it, or of a concurrent one. */
TEST(get_sees_the_last_value_written) {
    assert_legal(PUT(1, 2, "a"), GET(3, 4, "a"), PUT(5, 6, "b"), GET(7, 8, "b"));
    assert_illegal(PUT(1, 2, "a"), PUT(3, 4, "b"), GET(5, 6, "a")); /* a stale value */
    assert_legal(PUT(1, 2, "a"), PUT(3, 9, "b"), GET(5, 6, "a"));   /* a concurrent put: the old value is allowed */
    assert_legal(PUT(1, 2, "a"), PUT(3, 9, "b"), GET(5, 6, "b")); /* a concurrent put: the new value is allowed, too */
    assert_illegal(PUT(1, 2, "a"), GET(3, 4, NULL));
    assert_legal(PUT(1, 2, ""), GET(3, 4, ""), PUT(5, 6, "a"), PUT(7, 8, ""), GET(9, 10, ""));
}


/* A get of a value that no operation had begun to write is illegal. */
TEST(a_value_that_was_not_written_is_never_read) {
    assert_illegal(PUT(1, 2, "a"), GET(3, 4, "x"));
    assert_illegal(GET(1, 2, "a"), PUT(3, 4, "a")); /* a get before the put must not return its value */
    assert_legal(GET(1, 3, "a"), PUT(3, 4, "a"));   /* operations that touch are concurrent */
}


/* An operation that begins when another one ends is concurrent with it; one that begins later is not. */
TEST(touching_operations_count_as_concurrent) {
    assert_legal(PUT(1, 5, "a"), GET(5, 6, NULL));
    assert_illegal(PUT(1, 5, "a"), GET(6, 7, NULL));
}


/* After a get has returned a new value, no later get returns the older one. */
TEST(values_do_not_go_back) {
    /* first the new and then the old value, at two clients */
    assert_illegal(PUT(1, 2, "a"), PUT(3, 20, "b"), GET(4, 5, "b"), GET(6, 7, "a"));
    /* allowed if the two gets are concurrent */
    assert_legal(PUT(1, 2, "a"), PUT(3, 20, "b"), GET(4, 6, "b"), GET(5, 7, "a"));
    assert_illegal(PUT(1, 9, "a"), PUT(1, 9, "b"), GET(10, 11, "a"), GET(12, 13, "b"));
    assert_illegal(PUT(1, 30, "a"), PUT(1, 30, "b"), GET(10, 11, "a"), GET(12, 13, "b"), GET(14, 15, "a"));
}


/* Two concurrent puts take effect in one order, which is the same for all clients. */
TEST(two_readers_agree_on_the_order_of_writes) {
    assert_illegal(PUT(1, 40, "a"), PUT(1, 40, "b"), GET(2, 3, "a"), GET(4, 20, "b"), GET(5, 6, "b"), GET(7, 8, "a"));
    assert_legal(PUT(1, 40, "a"), PUT(1, 40, "b"), GET(2, 3, "a"), GET(4, 20, "b"), GET(5, 6, "a"), GET(7, 8, "b"));
}


/* An update that succeeded had found the key and is visible afterwards; one that returned NOT_FOUND changed nothing. */
TEST(update_is_not_lost) {
    assert_illegal(PUT(1, 2, "a"), UPDATE(3, 4, "b", 0), UPDATE(5, 6, "c", 0), GET(7, 8, "b"));
    assert_illegal(PUT(1, 2, "a"), UPDATE(3, 4, "b", 0), GET(5, 6, "a"));
    assert_illegal(UPDATE(3, 4, "b", 0));
    assert_illegal(PUT(1, 2, "a"), UPDATE(3, 4, "b", NOT_FOUND));
    assert_legal(PUT(1, 5, "a"), UPDATE(3, 4, "b", NOT_FOUND), GET(6, 7, "a"));
    assert_illegal(PUT(1, 5, "a"), UPDATE(3, 4, "b", NOT_FOUND), GET(6, 7, "b"));
}


/* Of two concurrent inserts of a key one succeeds, unless a delete takes effect in between. */
TEST(insert_succeeds_once) {
    assert_illegal(INSERT(1, 9, "a", 0), INSERT(1, 9, "b", 0));
    assert_legal(INSERT(1, 9, "a", 0), INSERT(1, 9, "b", EXISTS), GET(10, 11, "a"));
    assert_illegal(INSERT(1, 9, "a", 0), INSERT(1, 9, "b", EXISTS), GET(10, 11, "b"));
    assert_illegal(INSERT(1, 9, "b", EXISTS));
    assert_legal(INSERT(1, 9, "a", 0), DELETE(1, 9, 0), INSERT(1, 9, "b", 0));
    assert_illegal(INSERT(1, 2, "a", 0), INSERT(3, 4, "b", 0), DELETE(5, 6, 0));
}


/* Each successful delete needs a value that was present. */
TEST(delete_succeeds_once) {
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 9, 0), DELETE(3, 9, 0));
    assert_legal(PUT(1, 2, "a"), DELETE(3, 9, 0), DELETE(3, 9, NOT_FOUND));
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 9, NOT_FOUND));
    assert_legal(PUT(1, 2, "a"), DELETE(3, 9, 0), DELETE(3, 9, 0), PUT(4, 5, "b"));
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 9, 0), DELETE(3, 9, 0), UPDATE(4, 5, "b", 0));
}


/* After a delete the key is absent until the next write. */
TEST(deleted_key_does_not_come_back) {
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 4, 0), GET(5, 6, "a"));
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 4, 0), INSERT(5, 6, "b", EXISTS));
    assert_legal(PUT(1, 2, "a"), DELETE(3, 8, 0), GET(5, 6, "a"), GET(7, 8, NULL));
    assert_illegal(PUT(1, 2, "a"), DELETE(3, 20, 0), GET(5, 6, NULL), GET(7, 8, "a"));
}


/* A write of a failed client may take effect at any time after its begin, or never. */
TEST(cut_write_happens_late_or_never) {
    assert_legal(PUT(1, 2, "a"), PUT(3, CUT, "b"), GET(4, 5, "a"));
    assert_legal(PUT(1, 2, "a"), PUT(3, CUT, "b"), GET(4, 5, "b"));
    assert_legal(PUT(1, 2, "a"), PUT(3, CUT, "b"), GET(100, 101, "a"), GET(200, 201, "b"));
    assert_legal(PUT(1, 2, "a"), PUT(3, CUT, "b"), PUT(4, 5, "c"), GET(6, 7, "c"), GET(8, 9, "b"));
    assert_illegal(PUT(3, CUT, "b"), GET(1, 2, "b")); /* a write cannot take effect before its begin */
    assert_legal(PUT(1, 2, "a"), DELETE(3, CUT, 0), GET(4, 5, "a"), GET(6, 7, NULL));
    assert_legal(INSERT(1, CUT, "a", 0), INSERT(2, 3, "b", EXISTS));
    assert_legal(INSERT(1, CUT, "a", 0), INSERT(2, 3, "b", 0));
}


/* A write of a failed client does not take effect twice. */
TEST(cut_write_happens_at_most_once) {
    assert_illegal(PUT(1, 2, "a"), PUT(3, CUT, "b"), GET(4, 5, "b"), PUT(6, 7, "c"), GET(8, 9, "c"), GET(10, 11, "b"));
    assert_illegal(PUT(1, 2, "a"), PUT(3, CUT, "b"), GET(4, 5, "b"), GET(6, 7, "a"));
    assert_illegal(PUT(1, 2, "a"), DELETE(3, CUT, 0), DELETE(4, 5, 0), DELETE(6, 7, 0));
    assert_illegal(PUT(1, CUT, "a"), DELETE(4, 5, 0), DELETE(6, 7, 0));
    assert_legal(PUT(1, CUT, "a"), PUT(1, CUT, "b"), DELETE(4, 5, 0), DELETE(6, 7, 0));
    assert_illegal(PUT(1, CUT, "a"), PUT(6, CUT, "b"), DELETE(4, 5, 0), GET(6, 7, NULL), DELETE(4, 5, 0));
}


/* Both optional writes take effect between the same two events, because only then can the key have been absent. */
TEST(cut_delete_and_cut_insert_may_both_happen_before_an_update) {
    assert_legal_from("a", DELETE(1, CUT, 0), INSERT(1, CUT, "z", 0), GET(2, 8, NULL), UPDATE(3, 6, "b", 0),
                      GET(4, 5, "b"), GET(9, 10, "b"));
    assert_illegal_from("a", DELETE(1, CUT, 0), INSERT(6, CUT, "z", 0), GET(2, 8, NULL), UPDATE(3, 6, "b", 0),
                        GET(4, 5, "b"), GET(9, 10, "b"));
}


/* An insert, update or delete of a failed client takes effect only if its condition holds at that moment. */
TEST(cut_conditional_write_keeps_its_condition) {
    assert_illegal(UPDATE(1, CUT, "a", 0), GET(2, 3, "a"));
    assert_illegal(PUT(1, 2, "a"), INSERT(3, CUT, "b", 0), GET(4, 5, "b"));
    assert_legal(PUT(1, 2, "a"), UPDATE(3, CUT, "b", 0), GET(4, 5, "b"));
    assert_legal(PUT(1, 2, "a"), INSERT(3, CUT, "b", 0), DELETE(3, 4, 0), GET(5, 6, NULL), GET(7, 8, "b"));
}


/* A write that returned FAR_ERR_UNREACHABLE or FAR_ERR_FENCED may take effect after it has returned. */
TEST(unreachable_and_fenced_writes_may_still_happen_after_their_end) {
    const int64_t unsure[] = {FAR_ERR_UNREACHABLE, FAR_ERR_FENCED};
    for (int i = 0; i < 2; i++) {
        assert_legal(PUT(1, 2, "a"), UPDATE(3, 4, "b", unsure[i]), GET(5, 6, "a"), GET(7, 8, "b"));
        assert_legal(PUT(1, 2, "a"), UPDATE(3, 4, "b", unsure[i]), GET(5, 6, "a"));
        assert_legal(PUT(1, 2, "a"), DELETE(3, 4, unsure[i]), GET(5, 6, NULL));
        assert_illegal(PUT(1, 2, "a"), UPDATE(3, 4, "b", unsure[i]), GET(5, 6, "b"), GET(7, 8, "a"));
    }
}


/* A write with any other error had no effect. */
TEST(other_errors_mean_no_effect) {
    const int64_t errors[] = {FAR_ERR_NO_MEMORY, FAR_ERR_INVALID, FAR_ERR_TOO_SMALL, FAR_ERR_CORRUPT, FAR_ERR_BUSY};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        assert_legal(PUT(1, 2, "a"), UPDATE(3, 4, "b", errors[i]), GET(5, 6, "a"));
        assert_illegal(PUT(1, 2, "a"), UPDATE(3, 4, "b", errors[i]), GET(5, 6, "b"));
    }
}


/* A get with an error makes no statement, except FAR_ERR_TOO_SMALL, which states that the key was present. */
TEST(a_failed_get_states_nothing_but_too_small_states_presence) {
    assert_legal(PUT(1, 2, "a"), {FAR_OP_GET, 3, 4, NULL, FAR_ERR_UNREACHABLE}, {FAR_OP_GET, 3, CUT, NULL, 0});
    assert_legal(PUT(1, 2, "a"), {FAR_OP_GET, 3, 4, NULL, FAR_ERR_TOO_SMALL});
    assert_illegal(PUT(5, 6, "a"), {FAR_OP_GET, 3, 4, NULL, FAR_ERR_TOO_SMALL});
    assert_illegal(PUT(1, 2, "a"), PUT(3, 4, "b"), {FAR_OP_GET, 5, 6, "a", FAR_ERR_TOO_SMALL});
}


/* The initial value counts as a write before all operations. */
TEST(initial_value_counts_as_written_before_all) {
    assert_legal_from("a", GET(1, 2, "a"), INSERT(3, 4, "b", EXISTS), DELETE(5, 6, 0));
    assert_illegal_from("a", GET(1, 2, NULL));
    assert_illegal_from("a", PUT(1, 2, "b"), GET(3, 4, "a"));
    assert_illegal_from("a", INSERT(1, 2, "b", 0));
    assert_legal_from("a", PUT(1, 2, "b"), PUT(3, 4, "a"), GET(5, 6, "a"));
}


/* If several operations write the same value, a get may belong to each write, as far as their times allow. */
TEST(equal_values_of_several_writers_are_told_apart_by_time) {
    assert_legal(PUT(1, 2, "a"), PUT(3, 4, "b"), PUT(5, 6, "a"), GET(7, 8, "a"));
    assert_illegal(PUT(1, 2, "a"), PUT(1, 2, "a"), PUT(3, 4, "b"), GET(5, 6, "a"));
    assert_legal(PUT(1, 9, "a"), PUT(1, 9, "a"), PUT(1, 9, "b"), GET(2, 3, "a"), GET(4, 5, "b"), GET(6, 7, "a"));
    assert_illegal(PUT(1, 9, "a"), PUT(1, 9, "a"), PUT(1, 9, "b"), GET(2, 3, "a"), GET(4, 5, "b"), GET(6, 7, "a"),
                   GET(8, 9, "b"));
    assert_illegal(INSERT(1, 2, "a", 0), DELETE(3, 4, 0), GET(5, 6, "a")); /* the only value was deleted */
}


/* With repeated values and many writers the answer needs more states than the budget allows. */
TEST(a_spent_budget_is_reported) {
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


/* A long illegal history is reduced to the operations that prove the violation, and printed as a timeline. */
TEST(shrinking_leaves_the_proof_and_prints_it) {
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
