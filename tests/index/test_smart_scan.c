/* What a scan of SMART costs, by its counters: a round trip per level and one for the leaves, and no more nodes than it
 * takes to find what is wanted. */
#include "base/random.h"
#include "farindex.h"
#include "workload/keyset.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define RECORDS 100000ull
#define SCANS   500
#define LIMIT   100


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key;
    (void)key_len;
    (void)value;
    (void)value_len;
    ++*(unsigned *)ctx;
    return 0;
}


/* Round trips and bytes of a scan, on average. */
static void scan_costs(const char *keys, double *trips, double *bytes) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_keyset *set;
    char error[256];
    uint8_t key[FAR_KEY_MAX];
    far_random random;
    far_random_seed(&random, 1);
    options.cache_bytes = 64 << 20;
    assert_int_equal(far_keyset_open(keys, 1, &set, error, sizeof(error)), 0);
    assert_int_equal(far_pool_open("local:256M", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "tree", "smart", NULL, &index), 0);
    for (uint64_t n = 0; n < RECORDS; n++)
        assert_int_equal(far_insert(session, index, key, far_keyset_key(set, n, key), &n, sizeof(n)), 0);

    far_stats before, after;
    unsigned pairs = 0;
    far_session_stats(session, &before);
    for (unsigned i = 0; i < SCANS; i++) {
        size_t length = far_keyset_key(set, far_random_below(&random, RECORDS), key);
        assert_true(far_scan(session, index, key, length, NULL, 0, LIMIT, count_pair, &pairs) >= 0);
    }
    far_session_stats(session, &after);
    assert_true(pairs > SCANS * LIMIT * 9 / 10);
    *trips = (double)(after.round_trips - before.round_trips) / SCANS;
    *bytes = (double)(after.bytes_read - before.bytes_read) / SCANS;
    print_message("%s: %.2f round trips, %.0f bytes\n", keys, *trips, *bytes);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    far_keyset_close(set);
}


/* Root, two levels, a second look at nodes that grew since their slot words told their size, leaves: 100 pairs of
 * 8-byte keys. Nodes are not READ for more than what is wanted: a level of 2 KiB nodes would be 100 KiB. */
static void a_scan_takes_a_round_trip_per_level(void **state) {
    (void)state;
    double trips, bytes;
    scan_costs("u64", &trips, &bytes);
    assert_true(trips <= 7);
    assert_true(bytes <= 16000);
}


/* About ten levels; nodes of a level that are to be looked at again are so together. */
static void deep_trees_are_scanned_level_by_level(void **state) {
    (void)state;
    double trips, bytes;
    scan_costs("email", &trips, &bytes);
    assert_true(trips <= 20);
    assert_true(bytes <= 32000);
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_scan_takes_a_round_trip_per_level),
                                       cmocka_unit_test(deep_trees_are_scanned_level_by_level)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
