/* The rules of scans, and the check of whole histories. Keys and values are single letters and digits. */
#include "test.h"
#include "verify/verify.h"

#include <stdlib.h>
#include <string.h>


static void put(far_history *h, const char *key, const char *value, int64_t start, int64_t end) {
    size_t op = far_history_begin(h, 1, FAR_OP_PUT, key, strlen(key), value, strlen(value), start);
    if (end != FAR_HISTORY_NEVER)
        far_history_end(h, op, FAR_OK, NULL, 0, end);
}


static void delete (far_history *h, const char *key, int64_t start, int64_t end) {
    size_t op = far_history_begin(h, 1, FAR_OP_DELETE, key, strlen(key), NULL, 0, start);
    far_history_end(h, op, FAR_OK, NULL, 0, end);
}


/* Records a scan in one of the two directions. pairs: "a1 b2" means that it returned a -> 1 and b -> 2. */
static size_t scan_in_direction(far_history *h, const char *from, const char *to, uint64_t limit, bool reverse,
                                const char *pairs, int64_t start, int64_t end) {
    size_t op =
        far_history_begin_scan(h, 2, from, from ? strlen(from) : 0, to, to ? strlen(to) : 0, limit, reverse, start);
    int64_t count = 0;
    for (; *pairs; pairs += pairs[2] ? 3 : 2, count++)
        far_history_pair_given(h, op, pairs, 1, pairs + 1, 1);
    far_history_end(h, op, count, NULL, 0, end);
    return op;
}


static size_t scan(far_history *h, const char *from, const char *to, uint64_t limit, const char *pairs, int64_t start,
                   int64_t end) {
    return scan_in_direction(h, from, to, limit, false, pairs, start, end);
}


/* Makes a history in which a -> 1 to e -> 5 are written before time 20. */
static far_history *five_keys(void) {
    far_history *h = far_history_new(1);
    put(h, "a", "1", 1, 2);
    put(h, "b", "2", 3, 4);
    put(h, "c", "3", 5, 6);
    put(h, "d", "4", 7, 8);
    put(h, "e", "5", 9, 10);
    return h;
}


static void expect_violations(far_history *h, uint64_t violations) {
    far_verify_report report;
    bool good = far_verify_history(h, NULL, 0, NULL, &report);
    assert_int_equal(report.violations, violations);
    assert_int_equal(report.gave_up, 0);
    assert_int_equal(good, violations == 0);
    far_history_free(h);
}


static void expect_scan(const char *from, const char *to, uint64_t limit, const char *pairs, uint64_t violations) {
    far_history *h = five_keys();
    scan(h, from, to, limit, pairs, 30, 40);
    expect_violations(h, violations);
}


static void expect_reverse_scan(const char *from, const char *to, uint64_t limit, const char *pairs,
                                uint64_t violations) {
    far_history *h = five_keys();
    scan_in_direction(h, from, to, limit, true, pairs, 30, 40);
    expect_violations(h, violations);
}


/* Scans that return all keys of their range, up to their limit, are legal. */
TEST(complete_scans_are_right) {
    expect_scan(NULL, NULL, 0, "a1 b2 c3 d4 e5", 0);
    expect_scan("b", "d", 0, "b2 c3", 0);
    expect_scan("b", NULL, 2, "b2 c3", 0);
    expect_scan("b", "c", 2, "b2", 0);
    expect_scan("f", NULL, 0, "", 0);
    expect_scan("d", "b", 0, "", 0);
}


/* A key that exists throughout and is missing in the range of a scan is a violation. */
TEST(missing_key_is_found) {
    expect_scan(NULL, NULL, 0, "a1 c3 d4 e5", 1);
    expect_scan(NULL, NULL, 0, "", 5);
    expect_scan("b", "e", 0, "b2 c3", 1);     /* d is missing, the last key of the range */
    expect_scan("a", NULL, 3, "a1 c3 d4", 1); /* limit reached: b is missing before the last pair */
    expect_scan("a", NULL, 4, "a1 b2 c3", 2); /* limit not reached, so the range extends to its end */
    expect_scan("a", NULL, 3, "a1 b2 c3", 0); /* limit reached: the scan makes no statement about d and e */
}


/* A reverse scan returns the keys of its range in descending order, and begins with the last key before `to`. */
TEST(complete_reverse_scans_are_right) {
    expect_reverse_scan(NULL, NULL, 0, "e5 d4 c3 b2 a1", 0);
    expect_reverse_scan("b", "d", 0, "c3 b2", 0);
    expect_reverse_scan("b", NULL, 2, "e5 d4", 0);
    expect_reverse_scan(NULL, "c", 2, "b2 a1", 0);
    expect_reverse_scan("b", "c", 2, "b2", 0);
    expect_reverse_scan("f", NULL, 0, "", 0);
    expect_reverse_scan("d", "b", 0, "", 0);
}


/* A reverse scan with a limit covers the keys >= its last pair. If one of them exists throughout and is missing, this
 * is a violation. Fails if the checker takes the pairs of a reverse scan for an ascending sequence. */
TEST(key_missing_in_a_reverse_scan_is_found) {
    expect_reverse_scan(NULL, NULL, 0, "e5 d4 c3 a1", 1);
    expect_reverse_scan(NULL, NULL, 0, "", 5);
    expect_reverse_scan("b", "e", 0, "d4 c3", 1);     /* b is missing, the last key that the scan must return */
    expect_reverse_scan(NULL, "e", 3, "d4 c3 a1", 1); /* limit reached: b is missing before the last pair */
    expect_reverse_scan(NULL, NULL, 2, "d4 c3", 1);   /* limit reached: e is missing before the first pair */
    expect_reverse_scan(NULL, "e", 4, "d4 c3 b2", 1); /* limit not reached, so the range extends to its beginning */
    expect_reverse_scan(NULL, "e", 3, "d4 c3 b2", 0); /* limit reached: the scan makes no statement about a */
}


/* Ascending pairs, repeated keys, keys outside of the range, wrong values and too many pairs are violations of a
 * reverse scan. */
TEST(rules_of_the_reverse_scan_itself) {
    /* two errors: the pairs are out of order, and a key is missing at its position */
    expect_reverse_scan(NULL, NULL, 0, "e5 c3 d4 b2 a1", 2);
    /* four errors: the pairs are out of order, and the keys after b are missing, because b is the last pair */
    expect_reverse_scan(NULL, NULL, 2, "a1 b2", 4);
    expect_reverse_scan(NULL, NULL, 0, "e5 d4 d4 c3 b2 a1", 1);
    expect_reverse_scan("b", NULL, 0, "e5 d4 c3 b2 a1", 1);
    expect_reverse_scan("b", "d", 0, "d4 c3 b2", 1);
    expect_reverse_scan(NULL, "d", 2, "c3 b2 a1", 1);
    expect_reverse_scan(NULL, NULL, 0, "e5 d4 c3 b9 a1", 1);
    expect_reverse_scan(NULL, NULL, 0, "x9 e5 d4 c3 b2 a1", 1);
}


/* The printed violation of a reverse scan names the direction. */
TEST(violations_of_reverse_scans_are_printed_as_such) {
    far_history *h = five_keys();
    scan_in_direction(h, NULL, NULL, 0, true, "e5 c3 b2 a1", 30, 40);
    scan_in_direction(h, NULL, "c", 0, true, "a1 b2", 50, 60);
    char text[4096] = "";
    FILE *file = fmemopen(text, sizeof text, "w");
    assert_false(far_verify_history(h, NULL, 0, file, NULL));
    fclose(file);
    assert_non_null(strstr(text, "a reverse scan returned keys out of order"));
    assert_non_null(strstr(text, "reverse scan -> not given"));
    far_history_free(h);
}


/* A scan that returns a key or value that was not current during the scan is a violation. */
TEST(phantom_key_and_stale_value_are_found) {
    expect_scan(NULL, NULL, 0, "a1 b2 c3 d4 e5 x9", 1);
    expect_scan(NULL, NULL, 0, "a1 b9 c3 d4 e5", 1);
    far_history *h = five_keys();
    put(h, "b", "6", 11, 12);
    scan(h, NULL, NULL, 0, "a1 b2 c3 d4 e5", 30, 40);
    expect_violations(h, 1);
    h = five_keys();
    delete (h, "b", 11, 12);
    scan(h, NULL, NULL, 0, "a1 b2 c3 d4 e5", 30, 40);
    expect_violations(h, 1);
    h = five_keys();
    scan(h, NULL, NULL, 0, "a1 b2 c3 d4 e5 f6", 30, 40);
    put(h, "f", "6", 41, 42); /* a value that is written later */
    expect_violations(h, 1);
}


/* A write that is concurrent with a scan may be visible in it or not. */
TEST(changes_during_the_scan_may_be_seen_or_not) {
    static const char *const seen[] = {"a1 b2 c3 d4 e5", "a1 b6 c3 d4 e5", "a1 b2 d4 e5", "a1 b2 c3 d4 e5 f7",
                                       "a1 b6 d4 e5 f7"};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        far_history *h = five_keys();
        put(h, "b", "6", 32, 33);
        delete (h, "c", 34, 35);
        put(h, "f", "7", 36, 37);
        scan(h, NULL, NULL, 0, seen[i], 30, 40);
        expect_violations(h, 0);
    }
}


/* A key that is deleted and written again during a scan may be missing. A key that is only updated may not. */
TEST(key_absent_for_a_moment_may_be_left_out_but_one_updated_may_not) {
    far_history *h = five_keys();
    delete (h, "b", 31, 32);
    put(h, "b", "6", 33, 34);
    scan(h, NULL, NULL, 0, "a1 c3 d4 e5", 30, 40);
    expect_violations(h, 0);
    h = five_keys();
    put(h, "b", "6", 33, 34);
    scan(h, NULL, NULL, 0, "a1 c3 d4 e5", 30, 40);
    expect_violations(h, 1);
}


/* Wrong order, repeated keys, keys outside of the range, too many pairs and a wrong count are violations. */
TEST(rules_of_the_scan_itself) {
    /* two errors: the pairs are out of order, and c is missing at its position */
    expect_scan(NULL, NULL, 0, "a1 c3 b2 d4 e5", 2);
    expect_scan(NULL, NULL, 0, "a1 b2 b2 c3 d4 e5", 1);
    expect_scan("b", NULL, 0, "a1 b2 c3 d4 e5", 1);
    expect_scan("b", "d", 0, "b2 c3 d4", 1);
    expect_scan("b", NULL, 2, "b2 c3 d4", 1);
    far_history *h = five_keys();
    size_t op = scan(h, NULL, NULL, 0, "a1 b2 c3 d4 e5", 30, 40);
    far_history_end(h, op, 4, NULL, 0, 40);
    expect_violations(h, 1);
}


/* The text of a violation names the rule. */
TEST(each_broken_rule_is_named) {
    static const struct {
        const char *from, *to, *pairs, *what;
        uint64_t limit;
    } cases[] = {
        {"b", NULL, "a1 b2", "before the start", 0},
        {"a", "c", "b2 c3", "after the end", 0},
        {"a", NULL, "b2 b2", "twice", 0},
        {"a", NULL, "c3 b2", "out of order", 0},
        {"a", NULL, "b2 c3", "limit", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        far_history *h = far_history_new(1);
        size_t op = scan(h, cases[i].from, cases[i].to, cases[i].limit, cases[i].pairs, 1, 2);
        const char *what = far_verify_scan(far_history_at(h, op));
        assert_non_null(what);
        assert_non_null(strstr(what, cases[i].what));
        far_history_free(h);
    }
}


/* The pairs of a scan that failed or was cut must be correct, but missing keys are no violation. */
TEST(failed_and_cut_scans_state_only_their_pairs) {
    for (int cut = 0; cut < 2; cut++) {
        for (int wrong = 0; wrong < 3; wrong++) {
            far_history *h = five_keys();
            put(h, "b", "6", 11, 12);
            size_t op = scan(h, NULL, NULL, 0, wrong == 0 ? "a1 b6" : wrong == 1 ? "a1 b2" : "a1 b9", 30, 40);
            if (cut)
                far_history_cut(h, op);
            else
                far_history_end(h, op, FAR_ERR_UNREACHABLE, NULL, 0, 40);
            expect_violations(h, wrong > 0);
        }
    }
}


/* A scan that its callback ended covers the range up to its last pair. */
TEST(a_scan_stopped_by_its_caller_covers_its_pairs) {
    far_history *h = five_keys();
    size_t op = scan(h, NULL, NULL, 0, "a1 b2", 30, 40);
    far_history_stop(h, op);
    expect_violations(h, 0);
    h = five_keys();
    op = scan(h, NULL, NULL, 0, "a1 c3", 30, 40);
    far_history_stop(h, op);
    expect_violations(h, 1);
}


/* After a scan has returned a new value, a later scan must not return the older one. */
TEST(scans_do_not_go_back_in_time_on_a_key) {
    far_history *h = five_keys();
    put(h, "b", "6", 20, 90);
    scan(h, "b", "c", 0, "b6", 30, 40);
    scan(h, "b", "c", 0, "b2", 50, 60);
    expect_violations(h, 1);
}


/* The content of the index before the history takes part in the check. */
TEST(initial_content_counts) {
    far_model *initial = far_model_new();
    far_model_put(initial, "a", 1, "1", 1);
    far_model_put(initial, "m", 1, "2", 1);
    far_history *h = far_history_new(1);
    scan(h, NULL, NULL, 0, "a1 m2", 10, 20);
    assert_true(far_verify_history(h, initial, 0, NULL, NULL));
    far_verify_report report;
    assert_false(far_verify_history(h, NULL, 0, NULL, &report));
    assert_int_equal(report.violations, 2);
    /* m occurs in no operation, but it exists initially and the scan does not return it */
    scan(h, "b", NULL, 0, "", 30, 40);
    assert_false(far_verify_history(h, initial, 0, NULL, &report));
    assert_int_equal(report.violations, 1);
    assert_int_equal(report.keys, 2);
    assert_int_equal(report.scans, 2);
    far_history_free(h);
    far_model_free(initial);
}


/* The report of a violation contains the seed, the keys and the operations. */
TEST(violations_are_printed_with_seed_and_timeline) {
    far_history *h = far_history_new(4711);
    put(h, "a", "1", 1, 2);
    put(h, "b", "1", 1, 2);
    put(h, "a", "2", 3, 4);
    scan(h, NULL, NULL, 0, "a1", 10, 20);
    char text[4096] = "";
    FILE *file = fmemopen(text, sizeof text, "w");
    far_verify_report report;
    assert_false(far_verify_history(h, NULL, 0, file, &report));
    fclose(file);
    assert_int_equal(report.violations, 2);
    assert_non_null(strstr(text, "seed 4711"));
    assert_non_null(strstr(text, "key 61"));
    assert_non_null(strstr(text, "scan -> 31"));
    assert_non_null(strstr(text, "key 62"));
    assert_non_null(strstr(text, "scan -> not given"));
    far_history_free(h);
}
