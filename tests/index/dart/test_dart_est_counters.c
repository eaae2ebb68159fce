/* The costs of DART with its skip table, measured by counters over a million keys with values of 64 bytes. The limits
 * are the figures in src/index/dart/README.md. */
#include "farindex.h"
#include "index/dart/skiptable/skiptable.h"
#include "task/session.h"
#include "test.h"
#include "workload/distribution.h"
#include "workload/keyset.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* The tests that count the round trips of scans use this option. Without it, a scan of mapped memory reads one object at a
 * time, each in a round trip of its own, because a round trip costs nothing there. */
#define BATCHES "one_by_one=0"

enum { KEYS = 1000000, SOME = 200000, MORE = 20000 };

typedef struct rig {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_keyset *keys;
    unsigned first_bytes; /* number of different first bytes of the keys; 0 means all 256 */
} rig;


static void open_index_in(rig *r, const char *pool, const char *keys, size_t cache, const char *options) {
    *r = (rig){0};
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.rdwc = -1;
    pool_options.cache_bytes = cache;
    assert_int_equal(far_pool_open(pool, &pool_options, &r->pool), 0);
    assert_int_equal(far_session_open(r->pool, &r->session), 0);
    assert_int_equal(far_index_create(r->session, "map", "dart", options, &r->index), 0);
    assert_int_equal(far_keyset_open(keys, 1, &r->keys, NULL, 0), 0);
}


static void open_index(rig *r, const char *keys, size_t cache, const char *options) {
    open_index_in(r, "local:512M", keys, cache, options);
}


static void close_index(rig *r) {
    far_keyset_close(r->keys);
    far_index_close(r->index);
    far_session_close(r->session);
    far_pool_close(r->pool);
}


static void execute_op(rig *r, far_op_kind kind, uint64_t record) {
    char key[FAR_KEY_MAX], value[64] = {0};
    size_t length = far_keyset_key(r->keys, record, key);
    if (r->first_bytes)
        key[0] = (char)((uint8_t)key[0] % r->first_bytes);
    int result = kind == FAR_OP_INSERT   ? far_insert(r->session, r->index, key, length, value, sizeof(value))
                 : kind == FAR_OP_UPDATE ? far_update(r->session, r->index, key, length, value, sizeof(value))
                                         : far_get(r->session, r->index, key, length, value, sizeof(value), NULL);
    assert_int_equal(result, 0);
}


static far_stats stats_of(rig *r, far_op_kind kind) {
    far_stats stats;
    assert_int_equal(far_session_stats_of(r->session, kind, &stats), 0);
    return stats;
}


/* Executes operations on `count` keys that are spread over all keys. */
static far_stats measure_keys(rig *r, far_op_kind kind, uint64_t count) {
    far_stats before = stats_of(r, kind);
    for (uint64_t i = 0; i < count; i++)
        execute_op(r, kind, i * (KEYS / count));
    far_stats after = stats_of(r, kind);
    return far_stats_diff(&after, &before);
}


static void expect_at_most(const char *what, double got, double bar) {
    print_message("%s: %.3f (at most %.2f)\n", what, got, bar);
    if (got > bar)
        fail_msg("%s: %.3f are more than %.2f", what, got, bar);
}


static double per_op(uint64_t counted, uint64_t count) {
    return (double)counted / (double)count;
}


/* Returns the average round trips of inserts that needed only a leaf and a CAS. */
static double inserts_into_free_slots(rig *r) {
    uint64_t trips = 0, count = 0;
    for (uint64_t i = 0; i < MORE; i++) {
        far_stats before = stats_of(r, FAR_OP_INSERT);
        execute_op(r, FAR_OP_INSERT, KEYS + i);
        far_stats after = stats_of(r, FAR_OP_INSERT), cost = far_stats_diff(&after, &before);
        if (cost.writes == 1 && cost.cas == 1 && cost.masked_cas == 0 && cost.background_round_trips == 0) {
            trips += cost.round_trips;
            count++;
        }
    }
    assert_true(count > MORE / 2);
    return per_op(trips, count);
}


static int count_task(far_task *t, void *arg) {
    rig *r = ((void **)arg)[0];
    return dart_est_count(t, r->index, ((void **)arg)[1]);
}


static dart_est_counts count_table(rig *r) {
    dart_est_counts counts;
    void *args[] = {r, &counts};
    assert_int_equal(far_session_call(r->session, FAR_STATS_OTHER, true, count_task, args), 0);
    return counts;
}


static int ignore_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)value_len;
    return 0;
}


static void scans_of_100_emails(rig *r, double bar) {
    enum { SCANS = 1000 };
    uint64_t sum = 0;
    for (unsigned i = 0; i < SCANS; i++) {
        char from[FAR_KEY_MAX];
        size_t length = far_keyset_key(r->keys, i * (KEYS / SCANS), from);
        far_stats before = stats_of(r, FAR_OP_SCAN);
        assert_true(far_scan(r->session, r->index, from, length, NULL, 0, 100, ignore_pair, NULL) > 0);
        sum += stats_of(r, FAR_OP_SCAN).round_trips - before.round_trips;
    }
    expect_at_most("scan of 100 emails, round trips", per_op(sum, SCANS), bar);
}


/* Asserts that a scan of 100 pairs takes at most one round trip per level and four more. The levels are the root, depth
 * 1 and depth 2; 6 % of the leaves are below a node of depth 3. */
static void scan_of_100_takes_no_more_than_levels_and_four_round_trips(rig *r) {
    enum { LEVELS = 3, SCANS = 1000 };
    uint64_t most = 0, sum = 0;
    for (unsigned i = 0; i < SCANS; i++) {
        char from[FAR_KEY_MAX];
        size_t length = far_keyset_key(r->keys, i * (KEYS / SCANS), from);
        far_stats before = stats_of(r, FAR_OP_SCAN);
        if ((uint8_t)from[0] == 255 && (uint8_t)from[1] > 240)
            from[1] = 0; /* small second byte, so that 100 keys follow the start */
        assert_int_equal(far_scan(r->session, r->index, from, length, NULL, 0, 100, ignore_pair, NULL), 100);
        far_stats after = stats_of(r, FAR_OP_SCAN), cost = far_stats_diff(&after, &before);
        most = cost.round_trips > most ? cost.round_trips : most;
        sum += cost.round_trips;
    }
    expect_at_most("scan of 100, round trips", per_op(sum, SCANS), LEVELS + 3);
    expect_at_most("the longest of them", (double)most, LEVELS + 4);
}


/* Proves the limits of gets, updates, inserts and scans of a million u64 keys with a cache of 1 MiB. */
TEST(u64_keys_with_a_megabyte_of_cache) {
    rig r;
    open_index(&r, "u64", 1 << 20, "adjust=0," BATCHES);
    far_stats load = measure_keys(&r, FAR_OP_INSERT, KEYS);
    expect_at_most("LOAD, round trips", per_op(load.round_trips, KEYS), 3.7);
    measure_keys(&r, FAR_OP_GET, SOME);
    far_stats gets = measure_keys(&r, FAR_OP_GET, SOME);
    expect_at_most("get, round trips", per_op(gets.round_trips, SOME), 3.1);
    expect_at_most("get, bytes read", per_op(gets.bytes_read, SOME), 420);
    expect_at_most("update, round trips", per_op(measure_keys(&r, FAR_OP_UPDATE, SOME).round_trips, SOME), 4.1);
    expect_at_most("insert into a free slot, round trips", inserts_into_free_slots(&r), 3.1);
    scan_of_100_takes_no_more_than_levels_and_four_round_trips(&r);
    dart_est_counts table = count_table(&r);
    assert_true(table.entries > 65000);
    close_index(&r);
}


/* Returns the average round trips of operations on keys with a Zipfian distribution of 0.99. */
static double trips_of_hot_keys(rig *r, far_op_kind kind) {
    far_distribution *zipfian = test_malloc(sizeof(*zipfian));
    far_random random;
    far_random_seed(&random, 7);
    assert_int_equal(far_distribution_init(zipfian, FAR_DISTRIBUTION_ZIPFIAN, 0.99, KEYS), 0);
    far_stats before;
    for (unsigned i = 0; i < 2 * SOME; i++) {
        if (i == SOME)
            before = stats_of(r, kind);
        execute_op(r, kind, far_distribution_next(zipfian, &random, KEYS));
    }
    far_stats after = stats_of(r, kind), cost = far_stats_diff(&after, &before);
    test_free(zipfian);
    return per_op(cost.round_trips, SOME);
}


/* Proves that a get takes 2 round trips if the express cache has room for all entries, and fewer for keys in the slot
 * cache. */
TEST(u64_keys_with_all_express_entries_cached) {
    rig r;
    open_index(&r, "u64", 16 << 20, "adjust=0");
    measure_keys(&r, FAR_OP_INSERT, KEYS);
    measure_keys(&r, FAR_OP_GET, KEYS);
    expect_at_most("get with all entries cached, round trips",
                   per_op(measure_keys(&r, FAR_OP_GET, SOME).round_trips, SOME), 2.1);
    expect_at_most("get of hot keys, round trips", trips_of_hot_keys(&r, FAR_OP_GET), 1.5);
    expect_at_most("update of hot keys, round trips", trips_of_hot_keys(&r, FAR_OP_UPDATE), 2.2);
    close_index(&r);
}


/* True if the list has changed, entries of dropped lengths are gone, and the segments that contained them have become
 * smaller. */
static bool is_adjusted(rig *r) {
    const dart_list *list = dart_est_list(dart_est_of(r->index));
    return list->generation >= 3 && list->active_count == list->lookup_count &&
           atomic_load(&dart_est_of(r->index)->emptied_count) == 0;
}


static void wait_for_adjustment(rig *r) {
    uint64_t last = 0;
    for (unsigned i = 0, quiet = 0; i < 2000 && quiet < 5; i++) {
        measure_keys(r, FAR_OP_GET, 2000);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        uint64_t generation = dart_est_list(dart_est_of(r->index))->generation;
        quiet = is_adjusted(r) && generation == last ? quiet + 1 : 0;
        last = generation;
    }
    assert_true(is_adjusted(r));
}


/* Returns the bytes per key of the tree's inner nodes and the skip table. The lengths in leaves take 8 bytes more, and
 * up to 15 bytes at the end of a leaf are unused. */
static double index_bytes_per_key(rig *r) {
    far_usage usage;
    assert_int_equal(far_index_usage(r->session, r->index, &usage), 0);
    uint64_t leaves = 0;
    for (uint64_t i = 0; i < KEYS; i++) {
        char key[FAR_KEY_MAX];
        leaves += (8 + far_keyset_key(r->keys, i, key) + 64 + 15) / 16 * 16;
    }
    assert_int_equal(usage.keys, KEYS);
    return per_op(usage.pool_bytes - leaves, KEYS);
}


/* Proves the limits of mail addresses with the first list of prefix lengths, and that the adjusted list costs less. */
TEST(email_keys_before_and_after_adjustment) {
    double trips[2];
    for (unsigned adjust = 0; adjust < 2; adjust++) {
        rig r;
        open_index(&r, "email", 1 << 20, adjust ? "adjust=1," BATCHES : "adjust=0," BATCHES);
        measure_keys(&r, FAR_OP_INSERT, KEYS);
        if (adjust)
            wait_for_adjustment(&r);
        measure_keys(&r, FAR_OP_GET, SOME);
        trips[adjust] = per_op(measure_keys(&r, FAR_OP_GET, SOME).round_trips, SOME);
        expect_at_most(adjust ? "get after adjustment, round trips" : "get before adjustment, round trips",
                       trips[adjust], 5.7);
        expect_at_most("index bytes per key", index_bytes_per_key(&r), 33);
        scans_of_100_emails(&r, 9.5);
        close_index(&r);
    }
    assert_true(trips[1] < trips[0] - 0.25);
}


/* Proves the limit of scans that begin immediately after the load. */
TEST(scans_of_a_million_emails) {
    rig r;
    open_index(&r, "email", 16 << 20, "adjust=0," BATCHES);
    measure_keys(&r, FAR_OP_INSERT, KEYS);
    scans_of_100_emails(&r, 8);
    close_index(&r);
}


/* Proves that with 4096 directory words, a million keys fill the segments as 16 million keys do with 65536 words. */
TEST(segments_are_well_filled) {
    rig r;
    open_index(&r, "u64", 1 << 20, "adjust=0,directory_bits=12");
    measure_keys(&r, FAR_OP_INSERT, KEYS);
    dart_est_counts table = count_table(&r);
    print_message("%llu entries in %llu slots\n", (unsigned long long)table.entries, (unsigned long long)table.slots);
    assert_true(table.entries > 65000);
    assert_true(table.entries * 100 >= table.slots * 45);
    close_index(&r);
}


/* Proves the limits at the density of 10 million u64 keys. The first two bytes of a key have 26 * 256 values, and
 * the directory has an eighth of its words. So a million keys are as dense as ten million, and each directory word has
 * as many entries: nodes of depth 2 have 115 children, and half of the leaves are below nodes of depth 3. */
TEST(u64_keys_as_dense_as_ten_million) {
    rig r;
    open_index(&r, "u64", 128 << 10, "directory_bits=13");
    r.first_bytes = 26;
    measure_keys(&r, FAR_OP_INSERT, KEYS);
    wait_for_adjustment(&r);
    expect_at_most("index bytes per key", index_bytes_per_key(&r), 18);
    measure_keys(&r, FAR_OP_GET, SOME);
    far_stats gets = measure_keys(&r, FAR_OP_GET, SOME);
    expect_at_most("get, round trips", per_op(gets.round_trips, SOME), 3.1);
    expect_at_most("get, bytes read", per_op(gets.bytes_read, SOME), 420);
    close_index(&r);
}


/* ---- Upkeep ---- */

/* Returns the average round trips of late inserts, including those in the background. The first two bytes of the keys
 * have only 1024 values, a 64th of all values. So below these bytes the tree is as dense as a tree with 64 times as
 * many keys. The first half of the keys (half a million) gives the density of 32 million keys, and the second half,
 * which is measured, that of 64 million. */
static double trips_of_late_inserts(const char *options) {
    rig r;
    open_index(&r, "u64", 1 << 20, options);
    r.first_bytes = 4;
    for (uint64_t i = 0; i < KEYS / 2; i++)
        execute_op(&r, FAR_OP_INSERT, i);
    far_stats before = stats_of(&r, FAR_OP_INSERT);
    for (uint64_t i = KEYS / 2; i < KEYS; i++)
        execute_op(&r, FAR_OP_INSERT, i);
    far_stats after = stats_of(&r, FAR_OP_INSERT), cost = far_stats_diff(&after, &before);
    close_index(&r);
    return per_op(cost.round_trips + cost.background_round_trips, KEYS / 2);
}


/* Proves that keeping the skip table up to date adds few round trips to inserts, compared with est_update=0. */
TEST(upkeep_of_the_table_costs_little) {
    double without = trips_of_late_inserts("adjust=0,est_update=0"), with = trips_of_late_inserts("adjust=0");
    expect_at_most("round trips of inserts with upkeep, relative to those without", with / without, 1.02);
}


/* Proves that a LOAD into an empty index, with enough cache, takes at most 6 verbs per insert, because many nodes are
 * registered together and entries of replaced nodes are redirected. */
TEST(a_load_takes_six_verbs_per_insert_and_little_upkeep) {
    rig r;
    open_index_in(&r, "local:1G", "u64", 64 << 20, "");
    far_stats load = measure_keys(&r, FAR_OP_INSERT, KEYS);
    expect_at_most("LOAD, verbs", per_op(load.reads + load.writes + load.cas + load.masked_cas, KEYS), 6);
    expect_at_most("share of upkeep in all round trips",
                   (double)load.background_round_trips / (double)(load.round_trips + load.background_round_trips),
                   0.05);
    assert_true(load.background_round_trips > 0 && count_table(&r).entries > 60000);
    close_index(&r);
}
