/* The cost of scans of SMART, measured by counters: one round trip for everything that the cache names, and no more
 * nodes and leaves than the wanted pairs need. */
#include "base/random.h"
#include "farindex.h"
#include "test.h"
#include "workload/keyset.h"

#include <stdio.h>
#include <string.h>

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


typedef struct costs { /* averages per scan */
    double trips, bytes, reads, pairs;
} costs;

typedef struct tree {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_keyset *keys;
} tree;


static void open_tree(tree *t, const char *keys, const char *options) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    char error[256];
    uint8_t key[FAR_KEY_MAX];
    pool_options.cache_bytes = 64 << 20;
    pool_options.no_thread = 1; /* without housekeeping no epoch passes, so cached information stays fresh */
    assert_int_equal(far_keyset_open(keys, 1, &t->keys, error, sizeof(error)), 0);
    /* Without rtt=, the memory would be mapped memory, where a scan does not save round trips. */
    assert_int_equal(far_pool_open("local:256M?rtt=1ns", &pool_options, &t->pool), 0);
    assert_int_equal(far_session_open(t->pool, &t->session), 0);
    assert_int_equal(far_index_create(t->session, "tree", "smart", options, &t->index), 0);
    for (uint64_t n = 0; n < RECORDS; n++)
        assert_int_equal(far_insert(t->session, t->index, key, far_keyset_key(t->keys, n, key), &n, sizeof(n)), 0);
}


static void close_tree(tree *t) {
    far_index_close(t->index);
    far_session_close(t->session);
    far_pool_close(t->pool);
    far_keyset_close(t->keys);
}


/* Makes the next possible key: the key with a zero byte appended, or the next number. No other key is between the two
 * keys. */
static size_t next_key(const uint8_t *key, size_t length, uint8_t *next) {
    memcpy(next, key, length);
    next[length] = 0;
    if (length != 8)
        return length + 1;
    for (size_t i = 8; i-- > 0 && ++next[i] == 0;)
        ;
    return 8;
}


/* Scans `limit` pairs from random keys on, in descending key order if `backward` is set. limit 0: scans a range that
 * contains one key. */
static costs costs_of(tree *t, size_t limit, bool backward) {
    uint8_t key[FAR_KEY_MAX], to[FAR_KEY_MAX + 1];
    far_random random;
    far_stats before, after;
    unsigned pairs = 0;
    far_random_seed(&random, 1);
    far_session_stats(t->session, &before);
    for (unsigned i = 0; i < SCANS; i++) {
        size_t length = far_keyset_key(t->keys, far_random_below(&random, RECORDS), key),
               to_length = limit ? 0 : next_key(key, length, to);
        int64_t result =
            backward
                ? far_scan_reverse(t->session, t->index, NULL, 0, key, length, limit, count_pair, &pairs)
                : far_scan(t->session, t->index, key, length, limit ? NULL : to, to_length, limit, count_pair, &pairs);
        assert_true(result >= 0);
    }
    far_session_stats(t->session, &after);
    far_stats d = far_stats_diff(&after, &before);
    costs c = {(double)d.round_trips / SCANS, (double)d.bytes_read / SCANS, (double)d.reads / SCANS,
               (double)pairs / SCANS};
    print_message("%zu pairs: %.2f round trips, %.0f bytes, %.1f READs; %.2f of what was needed was foreseen\n", limit,
                  c.trips, c.bytes, c.reads, (double)d.cache_hits / (double)(d.cache_hits + d.cache_misses + 1));
    return c;
}


static costs scan_costs(tree *t, size_t limit) {
    return costs_of(t, limit, false);
}


/* A scan of 100 numbers READs all nodes and leaves that the cache names in one batch with the root's slots. */
TEST(a_scan_of_cached_numbers_takes_three_round_trips_at_most) {
    tree t;
    open_tree(&t, "u64", NULL);
    costs c = scan_costs(&t, LIMIT);
    assert_true(c.pairs > LIMIT * 0.9);
    assert_true(c.trips <= 3 && c.bytes <= 16000);
    c = scan_costs(&t, 1); /* The first pair is enough, so the scan must not search for a second one. */
    assert_true(c.pairs == 1);
    assert_true(c.trips <= 1.1);
    c = scan_costs(&t, 1000); /* each chunk reads ahead */
    assert_true(c.trips <= 15 && c.reads <= 1500);
    c = scan_costs(&t, 0);
    assert_true(c.pairs == 1);
    assert_true(c.trips <= 1.1 && c.reads <= 5);
    close_tree(&t);
}


/* A scan of 100 e-mail addresses, which have about ten levels of nodes, takes at most six round trips if everything is
 * cached. */
TEST(a_scan_of_cached_addresses_takes_six_round_trips_at_most) {
    tree t;
    open_tree(&t, "email", NULL);
    costs c = scan_costs(&t, LIMIT);
    assert_true(c.pairs > LIMIT * 0.9);
    assert_true(c.trips <= 6 && c.bytes <= 20000);
    c = scan_costs(&t, 0);
    assert_true(c.pairs == 1);
    assert_true(c.trips <= 1.1 && c.reads <= 12);
    close_tree(&t);
}


/* Without a cache a scan takes one round trip per level and one for the leaves, and READs no more than its range. */
TEST(without_a_cache_a_scan_takes_a_round_trip_per_level) {
    tree t;
    open_tree(&t, "u64", "cache=off");
    costs c = scan_costs(&t, LIMIT);
    /* If the scan searched for one more pair, it would take one more round trip. */
    assert_true(c.trips <= 5 && c.bytes <= 20000);
    c = scan_costs(&t, 0);
    assert_true(c.pairs == 1);
    assert_true(c.trips <= 4.1 && c.reads <= 5);
    close_tree(&t);
}


/* A scan in descending order takes at most 1.2 times the round trips and READs of a scan in ascending order, with a
 * cache and without one. */
TEST(a_backward_scan_costs_as_much_as_a_forward_scan) {
    static const char *const options[] = {NULL, "cache=off"};
    for (unsigned i = 0; i < 2; i++) {
        tree t;
        open_tree(&t, "u64", options[i]);
        costs forward = costs_of(&t, LIMIT, false), backward = costs_of(&t, LIMIT, true);
        assert_true(backward.pairs > LIMIT * 0.9);
        assert_true(backward.trips <= 1.2 * forward.trips && backward.reads <= 1.2 * forward.reads);
        close_tree(&t);
    }
}


static uint64_t reads_of_all_pairs(tree *t, size_t limit) {
    far_stats before, after;
    unsigned pairs = 0;
    far_session_stats(t->session, &before);
    assert_int_equal(far_scan(t->session, t->index, NULL, 0, NULL, 0, limit, count_pair, &pairs), RECORDS);
    far_session_stats(t->session, &after);
    assert_int_equal(pairs, RECORDS);
    return far_stats_diff(&after, &before).reads;
}


/* In single steps, a scan without a limit takes as few READs as one with a limit that it does not reach. Fails if
 * smart_scan (scan.c) adds a pair to the unlimited number of pairs of the second chunk, because zero pairs are wanted
 * then, and each READ of slots gets few of them. */
TEST(a_scan_without_a_limit_reads_large_parts_of_nodes) {
    tree t;
    open_tree(&t, "u64", "single_steps=on");
    uint64_t limited = reads_of_all_pairs(&t, 2 * RECORDS), unlimited = reads_of_all_pairs(&t, 0);
    print_message("%llu READs with a limit, %llu without\n", (unsigned long long)limited,
                  (unsigned long long)unlimited);
    assert_true(unlimited <= limited);
    close_tree(&t);
}
