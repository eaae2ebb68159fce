/* The checks of the benchmark on values and scans (check.c), and the workloads and indexes that it skips. */
#include "bench/bench.h"
#include "test.h"
#include "workload/value.h"

#include <stdint.h>

#include <string.h>


static far_bytes bytes(const char *text) {
    return (far_bytes){text, strlen(text)};
}


static void fill(uint8_t *value, size_t size, const char *key) {
    far_value_fill(value, size, key, strlen(key), 7);
}


/* bench_check_value finds every single flipped bit of a value. */
TEST(every_flipped_bit_of_a_value_is_found) {
    static const size_t sizes[] = {8, 16, 100};
    uint8_t value[100];
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


/* bench_check_value finds a value that belongs to another key, or that has another size. */
TEST(the_value_of_another_key_or_size_is_found) {
    uint8_t value[32];
    fill(value, 16, "apple");
    assert_non_null(bench_check_value(bytes("pear"), value, 16, 16));
    assert_non_null(bench_check_value(bytes("apple"), value, 16, 24));
    assert_non_null(bench_check_value(bytes("apple"), value, 8, 16));
}


static int check_scanned_key(bench_scan *scan, const char *key) {
    uint8_t value[16];
    fill(value, sizeof(value), key);
    return bench_scan_pair(scan, key, strlen(key), value, sizeof(value));
}


static bench_scan scan_from(const char *key) {
    return (bench_scan){.from = bytes(key), .value_size = 16};
}


/* A scan that begins with its first key and returns keys in order has no error. */
TEST(a_scan_in_order_is_right) {
    bench_scan scan = scan_from("b");
    assert_int_equal(check_scanned_key(&scan, "b"), 0);
    assert_int_equal(check_scanned_key(&scan, "ba"), 0); /* a key follows its own prefix */
    assert_int_equal(check_scanned_key(&scan, "c"), 0);
    assert_null(scan.wrong);
    assert_int_equal(scan.pairs, 3);
}


/* The check of a scan finds a missing first key, a repeated key, keys in the wrong order, and a wrong value. */
TEST(scans_that_miss_repeat_or_mix_up_are_found) {
    uint8_t value[16] = {0};
    bench_scan missing = scan_from("b");
    assert_int_not_equal(check_scanned_key(&missing, "c"), 0);
    assert_non_null(missing.wrong);

    bench_scan repeating = scan_from("b");
    assert_int_equal(check_scanned_key(&repeating, "b"), 0);
    assert_int_not_equal(check_scanned_key(&repeating, "b"), 0);
    assert_non_null(repeating.wrong);

    bench_scan backwards = scan_from("b");
    assert_int_equal(check_scanned_key(&backwards, "b"), 0);
    assert_int_equal(check_scanned_key(&backwards, "d"), 0);
    assert_int_not_equal(check_scanned_key(&backwards, "c"), 0);
    assert_non_null(backwards.wrong);

    bench_scan corrupted = scan_from("b");
    assert_int_not_equal(bench_scan_pair(&corrupted, "b", 1, value, sizeof(value)), 0);
    assert_non_null(corrupted.wrong);
}


/* A complete benchmark of one kind, whose results the test receives. */

typedef struct recorded_results {
    unsigned count;
    far_ycsb_workload workloads[8];
    bench_result last;
} recorded_results;


static void record_result(void *ctx, const bench_result *result) {
    recorded_results *s = ctx;
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


/* A kind without scans skips workload e, and runs the other workloads. */
TEST(workload_e_is_skipped_without_scans) {
    static recorded_results s;
    uint64_t errors = 0;
    bench_config config = small_config();
    far_index_kind without_scans = *far_index_kind_named("toy");
    without_scans.scan = NULL;
    bench_kind kind = {.kind = &without_scans};
    config.workload_count = 3;
    config.workloads[0] = FAR_YCSB_C;
    config.workloads[1] = FAR_YCSB_E;
    config.workloads[2] = FAR_YCSB_B;
    assert_int_equal(bench_run_kind(&config, &kind, record_result, &s, &errors), 0);
    assert_int_equal(errors, 0);
    assert_int_equal(s.count, 2); /* the load was not requested, so it has no result */
    assert_int_equal(s.workloads[0], FAR_YCSB_C);
    assert_int_equal(s.workloads[1], FAR_YCSB_B);
    assert_int_equal(s.last.ops, 50);
    assert_int_equal(s.last.usage.keys, 100);
    far_keyset_close(config.keys);
}


/* If an index with the name of a kept index exists, the benchmark fails and does not change it. With --keep the
 * index of the benchmark stays. Without it the index has another name and is dropped at the end. */
TEST(an_existing_index_is_not_changed) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    static recorded_results s;
    uint64_t errors = 0;
    char value[8];
    size_t length;
    bench_config config = small_config();
    bench_kind kind = {.kind = far_index_kind_named("toy")};
    config.workload_count = 1;
    config.workloads[0] = FAR_YCSB_LOAD;
    assert_int_equal(far_pool_open(config.uri, NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "bench-toy", "toy", NULL, &index), 0);
    assert_int_equal(far_put(session, index, "mine", 4, "value", 5), 0);
    config.keep = true;
    assert_int_equal(bench_run_kind(&config, &kind, record_result, &s, &errors), CLI_FAILED);
    assert_int_equal(s.count, 0);
    assert_int_equal(far_get(session, index, "mine", 4, value, sizeof(value), &length), 0);
    far_index_close(index);

    assert_int_equal(far_index_drop(session, "bench-toy"), 0);
    assert_int_equal(bench_run_kind(&config, &kind, record_result, &s, &errors), 0);
    assert_int_equal(far_index_open(session, "bench-toy", &index), 0); /* the index was kept */
    far_index_close(index);
    assert_int_equal(far_index_drop(session, "bench-toy"), 0);
    config.keep = false;
    assert_int_equal(bench_run_kind(&config, &kind, record_result, &s, &errors), 0);
    assert_int_equal(far_index_open(session, "bench-toy", &index), FAR_ERR_NOT_FOUND);
    far_session_close(session);
    far_pool_close(pool);
    far_keyset_close(config.keys);
}
