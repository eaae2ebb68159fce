/* What the benchmark takes for right, and what it leaves out. */
#include "cli/bench.h"
#include "workload/value.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>


static far_bytes bytes(const char *text) {
    return (far_bytes){text, strlen(text)};
}


static void fill(uint8_t *value, size_t size, const char *key) {
    far_value_fill(value, size, key, strlen(key), 7);
}


static void every_flipped_bit_of_a_value_is_found(void **state) {
    static const size_t sizes[] = {8, 16, 100};
    uint8_t value[100];
    (void)state;
    for (unsigned s = 0; s < 3; s++) {
        fill(value, sizes[s], "apple");
        assert_null(bench_check_value(bytes("apple"), value, sizes[s], sizes[s]));
        for (size_t bit = 0; bit < 8 * sizes[s]; bit++) {
            value[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_non_null(bench_check_value(bytes("apple"), value, sizes[s], sizes[s]));
            value[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
}


static void the_value_of_another_key_or_size_is_found(void **state) {
    uint8_t value[32];
    (void)state;
    fill(value, 16, "apple");
    assert_non_null(bench_check_value(bytes("pear"), value, 16, 16));
    assert_non_null(bench_check_value(bytes("apple"), value, 16, 24));
    assert_non_null(bench_check_value(bytes("apple"), value, 8, 16));
}


static int give(bench_scan *scan, const char *key) {
    uint8_t value[16];
    fill(value, sizeof(value), key);
    return bench_scan_pair(scan, key, strlen(key), value, sizeof(value));
}


static bench_scan scan_from(const char *key) {
    return (bench_scan){.from = bytes(key), .value_size = 16};
}


static void a_scan_in_order_is_right(void **state) {
    bench_scan scan = scan_from("b");
    (void)state;
    assert_int_equal(give(&scan, "b"), 0);
    assert_int_equal(give(&scan, "ba"), 0); /* after its own prefix */
    assert_int_equal(give(&scan, "c"), 0);
    assert_null(scan.wrong);
    assert_int_equal(scan.pairs, 3);
}


static void scans_that_miss_repeat_or_mix_up_are_found(void **state) {
    uint8_t value[16] = {0};
    (void)state;
    bench_scan missing = scan_from("b");
    assert_int_not_equal(give(&missing, "c"), 0);
    assert_non_null(missing.wrong);

    bench_scan repeating = scan_from("b");
    assert_int_equal(give(&repeating, "b"), 0);
    assert_int_not_equal(give(&repeating, "b"), 0);
    assert_non_null(repeating.wrong);

    bench_scan backwards = scan_from("b");
    assert_int_equal(give(&backwards, "b"), 0);
    assert_int_equal(give(&backwards, "d"), 0);
    assert_int_not_equal(give(&backwards, "c"), 0);
    assert_non_null(backwards.wrong);

    bench_scan corrupted = scan_from("b");
    assert_int_not_equal(bench_scan_pair(&corrupted, "b", 1, value, sizeof(value)), 0);
    assert_non_null(corrupted.wrong);
}


/* A whole run, seen from inside. */

typedef struct seen {
    unsigned count;
    far_ycsb_workload workloads[8];
    bench_result last;
} seen;


static void see(void *ctx, const bench_result *result) {
    seen *s = ctx;
    assert_true(s->count < 8);
    s->workloads[s->count++] = result->workload;
    s->last = *result;
}


static bench_config small_config(void) {
    char error[128];
    bench_config config = {.uri = "local:64M?name=check",
                           .records = 100,
                           .ops = 50,
                           .warmup = 0,
                           .value_size = 8,
                           .threads = 1,
                           .depth = 1,
                           .compute_nodes = 1,
                           .cache = 1 << 20,
                           .theta = FAR_ZIPF_THETA,
                           .rdwc = 1};
    assert_int_equal(far_keyset_open("u64", 1, &config.keys, error, sizeof(error)), 0);
    return config;
}


static void workload_e_is_left_out_where_there_are_no_scans(void **state) {
    static seen s;
    uint64_t errors = 0;
    (void)state;
    bench_config config = small_config();
    far_index_kind without_scans = *far_index_kind_named("toy");
    without_scans.scan = NULL;
    bench_kind kind = {.kind = &without_scans};
    config.workload_count = 3;
    config.workloads[0] = FAR_YCSB_C;
    config.workloads[1] = FAR_YCSB_E;
    config.workloads[2] = FAR_YCSB_B;
    assert_int_equal(bench_run_kind(&config, &kind, see, &s, &errors), 0);
    assert_int_equal(errors, 0);
    assert_int_equal(s.count, 2); /* the load was not asked for */
    assert_int_equal(s.workloads[0], FAR_YCSB_C);
    assert_int_equal(s.workloads[1], FAR_YCSB_B);
    assert_int_equal(s.last.ops, 50);
    assert_int_equal(s.last.usage.keys, 100);
    far_keyset_close(config.keys);
}


static void an_index_that_is_there_already_is_left_alone(void **state) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    static seen s;
    uint64_t errors = 0;
    char value[8];
    size_t length;
    (void)state;
    bench_config config = small_config();
    bench_kind kind = {.kind = far_index_kind_named("toy")};
    config.workload_count = 1;
    config.workloads[0] = FAR_YCSB_LOAD;
    assert_int_equal(far_pool_open(config.uri, NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "bench-toy", "toy", NULL, &index), 0);
    assert_int_equal(far_put(session, index, "mine", 4, "value", 5), 0);
    assert_int_equal(bench_run_kind(&config, &kind, see, &s, &errors), CLI_FAILED);
    assert_int_equal(s.count, 0);
    assert_int_equal(far_get(session, index, "mine", 4, value, sizeof(value), &length), 0);
    far_index_close(index);

    assert_int_equal(far_index_drop(session, "bench-toy"), 0);
    config.keep = true;
    assert_int_equal(bench_run_kind(&config, &kind, see, &s, &errors), 0);
    assert_int_equal(far_index_open(session, "bench-toy", &index), 0); /* kept */
    far_index_close(index);
    assert_int_equal(far_index_drop(session, "bench-toy"), 0);
    config.keep = false;
    assert_int_equal(bench_run_kind(&config, &kind, see, &s, &errors), 0);
    assert_int_equal(far_index_open(session, "bench-toy", &index), FAR_ERR_NOT_FOUND);
    far_session_close(session);
    far_pool_close(pool);
    far_keyset_close(config.keys);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flipped_bit_of_a_value_is_found),
        cmocka_unit_test(the_value_of_another_key_or_size_is_found),
        cmocka_unit_test(a_scan_in_order_is_right),
        cmocka_unit_test(scans_that_miss_repeat_or_mix_up_are_found),
        cmocka_unit_test(workload_e_is_left_out_where_there_are_no_scans),
        cmocka_unit_test(an_index_that_is_there_already_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
