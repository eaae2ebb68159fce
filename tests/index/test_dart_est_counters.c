/* What DART costs with its skip table, by counters, over a million keys: the figures of the design (8, F3-F10), with
 * 64-byte values. */
#include "farindex.h"
#include "index/dart/est.h"
#include "task/session.h"
#include "workload/distribution.h"
#include "workload/keyset.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { KEYS = 1000000, SOME = 200000, MORE = 20000 };

typedef struct rig {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_keyset *keys;
    unsigned first_bytes; /* keys begin with so many different bytes; 0: with any */
} rig;


static void begin_in(rig *r, const char *pool, const char *keys, size_t cache, const char *options) {
    *r = (rig){0};
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.rdwc = -1;
    pool_options.cache_bytes = cache;
    assert_int_equal(far_pool_open(pool, &pool_options, &r->pool), 0);
    assert_int_equal(far_session_open(r->pool, &r->session), 0);
    assert_int_equal(far_index_create(r->session, "map", "dart", options, &r->index), 0);
    assert_int_equal(far_keyset_open(keys, 1, &r->keys, NULL, 0), 0);
}


static void begin(rig *r, const char *keys, size_t cache, const char *options) {
    begin_in(r, "local:512M", keys, cache, options);
}


static void end(rig *r) {
    far_keyset_close(r->keys);
    far_index_close(r->index);
    far_session_close(r->session);
    far_pool_close(r->pool);
}


static void operate(rig *r, far_op_kind kind, uint64_t record) {
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


/* Over `count` records, spread over all. */
static far_stats over(rig *r, far_op_kind kind, uint64_t count) {
    far_stats before = stats_of(r, kind);
    for (uint64_t i = 0; i < count; i++)
        operate(r, kind, i * (KEYS / count));
    far_stats after = stats_of(r, kind);
    return far_stats_diff(&after, &before);
}


static void at_most(const char *what, double got, double bar) {
    print_message("%s: %.3f (at most %.2f)\n", what, got, bar);
    if (got > bar)
        fail_msg("%s: %.3f are more than %.2f", what, got, bar);
}


static double per_op(uint64_t counted, uint64_t count) {
    return (double)counted / (double)count;
}


/* Inserts that needed nothing but a leaf and a CAS. */
static double inserts_into_free_slots(rig *r) {
    uint64_t trips = 0, count = 0;
    for (uint64_t i = 0; i < MORE; i++) {
        far_stats before = stats_of(r, FAR_OP_INSERT);
        operate(r, FAR_OP_INSERT, KEYS + i);
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


static dart_est_counts table_of(rig *r) {
    dart_est_counts counts;
    void *args[] = {r, &counts};
    assert_int_equal(far_session_call(r->session, FAR_STATS_OTHER, true, count_task, args), 0);
    return counts;
}


static int ignore(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
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
        assert_true(far_scan(r->session, r->index, from, length, NULL, 0, 100, ignore, NULL) > 0);
        sum += stats_of(r, FAR_OP_SCAN).round_trips - before.round_trips;
    }
    at_most("scan of 100 emails, round trips", per_op(sum, SCANS), bar);
}


/* Levels: root, depth 1, depth 2 (and 6 % of the leaves below a node of depth 3). */
static void scan_of_100_takes_no_more_than_levels_and_four_round_trips(rig *r) {
    enum { LEVELS = 3, SCANS = 1000 };
    uint64_t most = 0, sum = 0;
    for (unsigned i = 0; i < SCANS; i++) {
        char from[FAR_KEY_MAX];
        size_t length = far_keyset_key(r->keys, i * (KEYS / SCANS), from);
        far_stats before = stats_of(r, FAR_OP_SCAN);
        if ((uint8_t)from[0] == 255 && (uint8_t)from[1] > 240)
            from[1] = 0; /* 100 keys are to follow */
        assert_int_equal(far_scan(r->session, r->index, from, length, NULL, 0, 100, ignore, NULL), 100);
        far_stats after = stats_of(r, FAR_OP_SCAN), cost = far_stats_diff(&after, &before);
        most = cost.round_trips > most ? cost.round_trips : most;
        sum += cost.round_trips;
    }
    at_most("scan of 100, round trips", per_op(sum, SCANS), LEVELS + 3);
    at_most("the longest of them", (double)most, LEVELS + 4);
}


static void u64_keys_with_a_megabyte_of_cache(void **state) {
    (void)state;
    rig r;
    begin(&r, "u64", 1 << 20, "adjust=0");
    far_stats load = over(&r, FAR_OP_INSERT, KEYS);
    at_most("LOAD, round trips", per_op(load.round_trips, KEYS), 3.7);
    over(&r, FAR_OP_GET, SOME);
    far_stats gets = over(&r, FAR_OP_GET, SOME);
    at_most("get, round trips", per_op(gets.round_trips, SOME), 3.1);
    at_most("get, bytes read", per_op(gets.bytes_read, SOME), 420);
    at_most("update, round trips", per_op(over(&r, FAR_OP_UPDATE, SOME).round_trips, SOME), 4.1);
    at_most("insert into a free slot, round trips", inserts_into_free_slots(&r), 3.1);
    scan_of_100_takes_no_more_than_levels_and_four_round_trips(&r);
    dart_est_counts table = table_of(&r);
    assert_true(table.entries > 65000);
    end(&r);
}


/* Round trips of operations on keys of which some are asked for often: zipfian 0.99. */
static double trips_of_hot_keys(rig *r, far_op_kind kind) {
    far_distribution *zipfian = test_malloc(sizeof(*zipfian));
    far_random random;
    far_random_seed(&random, 7);
    assert_int_equal(far_distribution_init(zipfian, FAR_DISTRIBUTION_ZIPFIAN, 0.99, KEYS), 0);
    far_stats before;
    for (unsigned i = 0; i < 2 * SOME; i++) {
        if (i == SOME)
            before = stats_of(r, kind);
        operate(r, kind, far_distribution_next(zipfian, &random, KEYS));
    }
    far_stats after = stats_of(r, kind), cost = far_stats_diff(&after, &before);
    test_free(zipfian);
    return per_op(cost.round_trips, SOME);
}


static void u64_keys_with_all_express_entries_kept(void **state) {
    (void)state;
    rig r;
    begin(&r, "u64", 16 << 20, "adjust=0");
    over(&r, FAR_OP_INSERT, KEYS);
    over(&r, FAR_OP_GET, KEYS);
    at_most("get with all entries kept, round trips", per_op(over(&r, FAR_OP_GET, SOME).round_trips, SOME), 2.1);
    at_most("get of hot keys, round trips", trips_of_hot_keys(&r, FAR_OP_GET), 1.5);
    at_most("update of hot keys, round trips", trips_of_hot_keys(&r, FAR_OP_UPDATE), 2.2);
    end(&r);
}


/* The list is another, entries of dropped lengths have gone, and segments that they left have become smaller. */
static bool is_adjusted(rig *r) {
    const dart_list *list = dart_est_list(dart_est_of(r->index));
    return list->generation >= 3 && list->active_count == list->lookup_count &&
           atomic_load(&dart_est_of(r->index)->emptied_count) == 0;
}


static void wait_for_adjustment(rig *r) {
    uint64_t last = 0;
    for (unsigned i = 0, quiet = 0; i < 2000 && quiet < 5; i++) {
        over(r, FAR_OP_GET, 2000);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        uint64_t generation = dart_est_list(dart_est_of(r->index))->generation;
        quiet = is_adjusted(r) && generation == last ? quiet + 1 : 0;
        last = generation;
    }
    assert_true(is_adjusted(r));
}


/* The tree's inner nodes and the skip table; the leaves take 8 bytes each for their lengths, and up to 15 to fill up.
 */
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


static void email_keys_before_and_after_adjustment(void **state) {
    (void)state;
    double trips[2];
    for (unsigned adjust = 0; adjust < 2; adjust++) {
        rig r;
        begin(&r, "email", 1 << 20, adjust ? "adjust=1" : "adjust=0");
        over(&r, FAR_OP_INSERT, KEYS);
        if (adjust)
            wait_for_adjustment(&r);
        over(&r, FAR_OP_GET, SOME);
        trips[adjust] = per_op(over(&r, FAR_OP_GET, SOME).round_trips, SOME);
        at_most(adjust ? "get after adjustment, round trips" : "get before adjustment, round trips", trips[adjust],
                5.7);
        at_most("index bytes per key", index_bytes_per_key(&r), 33);
        scans_of_100_emails(&r, 9.5);
        end(&r);
    }
    assert_true(trips[1] < trips[0] - 0.25);
}


/* The bar of scans, which begin as soon as the load is over. */
static void scans_of_a_million_emails(void **state) {
    (void)state;
    rig r;
    begin(&r, "email", 16 << 20, "adjust=0");
    over(&r, FAR_OP_INSERT, KEYS);
    scans_of_100_emails(&r, 8);
    end(&r);
}


/* With 4096 directory words a million keys fill the table as 16 million do with the usual 65536. */
static void segments_are_well_filled(void **state) {
    (void)state;
    rig r;
    begin(&r, "u64", 1 << 20, "adjust=0,directory_bits=12");
    over(&r, FAR_OP_INSERT, KEYS);
    dart_est_counts table = table_of(&r);
    print_message("%llu entries in %llu slots\n", (unsigned long long)table.entries, (unsigned long long)table.slots);
    assert_true(table.entries > 65000);
    assert_true(table.entries * 100 >= table.slots * 45);
    end(&r);
}


/* Two bytes of a key have 26 * 256 values, and the directory an eighth of its words: so a million keys lie as densely
 * as ten million of all u64, and as many entries come to a word of the directory. 115 children in a node of depth 2,
 * half of the leaves below nodes of depth 3. */
static void u64_keys_as_dense_as_ten_million(void **state) {
    (void)state;
    rig r;
    begin(&r, "u64", 128 << 10, "directory_bits=13");
    r.first_bytes = 26;
    over(&r, FAR_OP_INSERT, KEYS);
    wait_for_adjustment(&r);
    at_most("index bytes per key", index_bytes_per_key(&r), 18);
    over(&r, FAR_OP_GET, SOME);
    far_stats gets = over(&r, FAR_OP_GET, SOME);
    at_most("get, round trips", per_op(gets.round_trips, SOME), 3.1);
    at_most("get, bytes read", per_op(gets.bytes_read, SOME), 420);
    end(&r);
}


/* ---- Upkeep ---- */

/* Round trips of inserts, those in the background too, into an index that holds half a million keys of 1024 beginnings:
 * as densely as 32 million of all u64, growing to 64. */
static double trips_of_late_inserts(const char *options) {
    rig r;
    begin(&r, "u64", 1 << 20, options);
    r.first_bytes = 4;
    for (uint64_t i = 0; i < KEYS / 2; i++)
        operate(&r, FAR_OP_INSERT, i);
    far_stats before = stats_of(&r, FAR_OP_INSERT);
    for (uint64_t i = KEYS / 2; i < KEYS; i++)
        operate(&r, FAR_OP_INSERT, i);
    far_stats after = stats_of(&r, FAR_OP_INSERT), cost = far_stats_diff(&after, &before);
    end(&r);
    return per_op(cost.round_trips + cost.background_round_trips, KEYS / 2);
}


static void keeping_the_table_up_to_date_costs_little(void **state) {
    (void)state;
    double without = trips_of_late_inserts("adjust=0,est_update=0"), with = trips_of_late_inserts("adjust=0");
    at_most("round trips of inserts with upkeep, of those without", with / without, 1.02);
}


/* LOAD from empty, with cache enough: nodes are registered many at a time, and entries change in place. */
static void a_load_costs_six_verbs_an_insert_and_little_upkeep(void **state) {
    (void)state;
    rig r;
    begin_in(&r, "local:1G", "u64", 64 << 20, "");
    far_stats load = over(&r, FAR_OP_INSERT, KEYS);
    at_most("LOAD, verbs", per_op(load.reads + load.writes + load.cas + load.masked_cas, KEYS), 6);
    at_most("round trips of upkeep, of all",
            (double)load.background_round_trips / (double)(load.round_trips + load.background_round_trips), 0.05);
    assert_true(load.background_round_trips > 0 && table_of(&r).entries > 60000);
    end(&r);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(u64_keys_with_a_megabyte_of_cache),
        cmocka_unit_test(u64_keys_with_all_express_entries_kept),
        cmocka_unit_test(email_keys_before_and_after_adjustment),
        cmocka_unit_test(scans_of_a_million_emails),
        cmocka_unit_test(segments_are_well_filled),
        cmocka_unit_test(u64_keys_as_dense_as_ten_million),
        cmocka_unit_test(keeping_the_table_up_to_date_costs_little),
        cmocka_unit_test(a_load_costs_six_verbs_an_insert_and_little_upkeep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
