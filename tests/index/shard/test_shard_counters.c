/* The cost of operations of the shard index in round trips and bytes over whole cycles of growth, how full the tables
 * become, and how much local memory a handle uses. The figures are counted and not timed. The work of housekeeping is
 * counted as well. */
#include "base/random.h"
#include "client/op.h"
#include "farindex.h"
#include "index/index.h"
#include "index/shard/shard.h"
#include "pool/handle.h"
#include "test.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct table {
    far_pool *pool;
    far_session *session;
    far_index *index;
    uint64_t keys;
} table;

typedef struct cost {
    double trips, bytes;
} cost;


/* The costs are counted on "sim", because its tearing granule is a cache line, as with real network cards. On "local"
 * the granule is a word, so a get of the inline layout must read the value a second time to verify it. */
#define SIM "sim:seed=1,size=1G,faults=none,watch=off,limit=100000s"


static void open_table(table *t, const char *uri, const char *options) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.rdwc = -1;
    pool_options.no_thread = 1;
    *t = (table){0};
    assert_int_equal(far_pool_open(uri, &pool_options, &t->pool), 0);
    assert_int_equal(far_session_open(t->pool, &t->session), 0);
    assert_int_equal(far_index_create(t->session, "t", "shard", options, &t->index), 0);
}


static void close_table(table *t) {
    far_index_close(t->index);
    far_session_close(t->session);
    far_pool_close(t->pool);
}


static uint64_t key_of(uint64_t n) {
    return n * 0x9e3779b97f4a7c15ull + 1;
}


static int do_operation(table *t, far_op_kind kind, uint64_t n) {
    uint64_t key = key_of(n), value = n ^ (uint64_t)kind;
    size_t length;
    if (n % 64 == 0)
        far_pool_poll(t->pool);
    switch (kind) {
    case FAR_OP_GET:
        return far_get(t->session, t->index, &key, 8, &value, 8, &length);
    case FAR_OP_INSERT:
        return far_insert(t->session, t->index, &key, 8, &value, 8);
    case FAR_OP_UPDATE:
        return far_update(t->session, t->index, &key, 8, &value, 8);
    default:
        return far_delete(t->session, t->index, &key, 8);
    }
}


/* Returns the round trips of the operations of one kind since `before`, including the background work that they caused.
 */
static cost cost_since(table *t, far_op_kind kind, far_stats *before) {
    far_stats now, diff;
    assert_int_equal(far_session_stats_of(t->session, kind, &now), 0);
    diff = far_stats_diff(&now, before);
    *before = now;
    double ops = (double)diff.ops[kind];
    return (cost){(double)(diff.round_trips + diff.background_round_trips) / ops, (double)diff.bytes_read / ops};
}


/* Loads `count` keys. After every eighth insert it gets and updates a random key, and after every 32nd it also deletes
 * this key and inserts it again. So the measured costs are means over whole cycles of growth. */
static void load_and_measure(table *t, uint64_t count, cost costs[FAR_OP_DELETE + 1]) {
    far_stats before[FAR_OP_DELETE + 1], own_before, own;
    far_random random;
    far_random_seed(&random, 7);
    for (unsigned kind = 0; kind <= FAR_OP_DELETE; kind++)
        assert_int_equal(far_session_stats_of(t->session, (far_op_kind)kind, &before[kind]), 0);
    far_session_stats(t->pool->team.own, &own_before);
    for (uint64_t n = 0; n < count; n++) {
        assert_int_equal(do_operation(t, FAR_OP_INSERT, n), 0);
        if (n < count / 64 || n % 8)
            continue;
        uint64_t pick = far_random_below(&random, n);
        assert_int_equal(do_operation(t, FAR_OP_GET, pick), 0);
        assert_int_equal(do_operation(t, FAR_OP_UPDATE, pick), 0);
        if (n % 32)
            continue;
        assert_int_equal(do_operation(t, FAR_OP_DELETE, pick), 0);
        assert_int_equal(do_operation(t, FAR_OP_INSERT, pick), 0);
    }
    t->keys = count;
    for (unsigned kind = 0; kind <= FAR_OP_DELETE; kind++)
        if (kind != FAR_OP_PUT)
            costs[kind] = cost_since(t, (far_op_kind)kind, &before[kind]);
    far_session_stats(t->pool->team.own, &own);
    far_stats diff = far_stats_diff(&own, &own_before);
    print_message(
        "    get %.3f update %.3f delete %.3f insert %.3f round trips; %.0f bytes a get; housekeeping %.3f an insert\n",
        costs[FAR_OP_GET].trips, costs[FAR_OP_UPDATE].trips, costs[FAR_OP_DELETE].trips, costs[FAR_OP_INSERT].trips,
        costs[FAR_OP_GET].bytes, (double)(diff.round_trips + diff.background_round_trips) / (double)count);
}


TEST(pointer_layout_keeps_its_round_trips) {
    cost costs[FAR_OP_DELETE + 1];
    table t;
    open_table(&t, SIM, "layout=pointer");
    load_and_measure(&t, 1000000, costs);
    far_load load;
    assert_int_equal(far_index_load(t.session, t.index, &load), 0);
    print_message("    local bytes %llu, load %.3f\n", (unsigned long long)load.local_bytes,
                  (double)t.keys / (double)load.slots);
    assert_int_equal(load.keys[0] + load.keys[1] + load.keys[2], t.keys);
    assert_true(costs[FAR_OP_GET].trips <= 2.06);
    assert_true(costs[FAR_OP_UPDATE].trips <= 3.1);
    assert_true(costs[FAR_OP_DELETE].trips <= 3.1);
    assert_true(costs[FAR_OP_INSERT].trips <= 2.45);
    assert_true(load.local_bytes < 64 * 1024);
    close_table(&t);
}


/* Fills the table until just before most partitions would double. Partitions do not have equal numbers of keys, and
 * each doubles by its own count, so a few have doubled already. */
TEST(pointer_layout_is_dense_when_full) {
    table t;
    far_load load;
    far_usage usage;
    open_table(&t, SIM, "layout=pointer");
    uint64_t slots = 64ull * 71 * 16 << 4, count = slots * 79 / 100;
    for (uint64_t n = 0; n < count; n++)
        assert_int_equal(do_operation(&t, FAR_OP_INSERT, n), 0);
    assert_int_equal(far_index_load(t.session, t.index, &load), 0);
    assert_int_equal(far_index_usage(t.session, t.index, &usage), 0);
    double factor = (double)count / (double)load.slots, first = (double)load.keys[0] / (double)count;
    print_message("    load %.3f, level 1 %.4f, level 3 %llu keys, %.2f bytes a key\n", factor, first,
                  (unsigned long long)load.keys[2], (double)usage.pool_bytes / (double)count);
    assert_int_equal(usage.keys, count);
    assert_true(factor > 0.72);
    assert_true(first >= 0.975);
    assert_true((double)usage.pool_bytes / (double)count <= 76);
    close_table(&t);
}


TEST(inline_layout_keeps_its_round_trips) {
    cost costs[FAR_OP_DELETE + 1];
    table t;
    open_table(&t, SIM, "key_size=8,value_size=8");
    load_and_measure(&t, 1600000, costs);
    far_load load;
    assert_int_equal(far_index_load(t.session, t.index, &load), 0);
    assert_int_equal(load.keys[0] + load.keys[1] + load.keys[2], t.keys);
    assert_true(costs[FAR_OP_GET].trips <= 1.03);
    assert_true(costs[FAR_OP_UPDATE].trips <= 2.05);
    assert_true(costs[FAR_OP_DELETE].trips <= 2.05);
    assert_true(costs[FAR_OP_INSERT].trips <= 2.3);
    close_table(&t);
}


/* Proves that a write of the inline layout takes four verbs: the CAS of the lock, a READ of the lock, a READ of the bucket,
 * and one WRITE of the change and of the unlock. A get takes one READ of half a bucket. Nothing else is counted while the
 * table is nearly empty. */
TEST(inline_writes_take_four_verbs) {
    enum { KEYS = 100 };
    static const far_op_kind kinds[] = {FAR_OP_INSERT, FAR_OP_UPDATE, FAR_OP_GET, FAR_OP_DELETE};
    table t;
    open_table(&t, SIM, "key_size=8,value_size=8,partitions=1,bits=10");
    for (uint64_t n = 0; n < KEYS; n++) /* the first operations read addresses */
        assert_int_equal(do_operation(&t, FAR_OP_GET, 64 * n + 1), FAR_ERR_NOT_FOUND);
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        far_stats before, now;
        bool gets = kinds[i] == FAR_OP_GET;
        assert_int_equal(far_session_stats_of(t.session, kinds[i], &before), 0);
        for (uint64_t n = 0; n < KEYS; n++) /* do_operation runs housekeeping if the number is a multiple of 64 */
            assert_int_equal(do_operation(&t, kinds[i], 64 * n + 1), 0);
        assert_int_equal(far_session_stats_of(t.session, kinds[i], &now), 0);
        far_stats diff = far_stats_diff(&now, &before);
        assert_int_equal(diff.cas, gets ? 0 : KEYS);
        assert_int_equal(diff.reads, gets ? KEYS : 2 * KEYS);
        assert_int_equal(diff.writes, gets ? 0 : KEYS);
        assert_int_equal(diff.faa + diff.masked_cas, 0);
        assert_int_equal(diff.round_trips, gets ? KEYS : 2 * KEYS);
        assert_int_equal(diff.bytes_read, KEYS * (gets ? SHARD_BUCKET_BYTES / 2 : 8 + SHARD_BUCKET_BYTES));
    }
    close_table(&t);
}


TEST(inline_layout_is_dense_when_full) {
    table t;
    far_load load;
    far_usage usage;
    open_table(&t, SIM, "key_size=8,value_size=8");
    uint64_t slots = 64ull * 35 * 16 << 3, count = slots * 71 / 100;
    for (uint64_t n = 0; n < count; n++)
        assert_int_equal(do_operation(&t, FAR_OP_INSERT, n), 0);
    assert_int_equal(far_index_load(t.session, t.index, &load), 0);
    assert_int_equal(far_index_usage(t.session, t.index, &usage), 0);
    double factor = (double)count / (double)load.slots, first = (double)load.keys[0] / (double)count;
    far_stats before, after;
    far_session_stats(t.session, &before);
    for (uint64_t n = 0; n < count; n++)
        assert_int_equal(do_operation(&t, FAR_OP_GET, n), 0);
    far_session_stats(t.session, &after);
    double bytes = (double)(after.bytes_read - before.bytes_read) / (double)count;
    print_message("    load %.3f, level 1 %.4f, level 3 %llu keys, %.2f bytes a key, %.0f bytes a get\n", factor, first,
                  (unsigned long long)load.keys[2], (double)usage.pool_bytes / (double)count, bytes);
    assert_true(factor > 0.69);
    assert_true(first >= 0.975);
    assert_true((double)usage.pool_bytes / (0.75 * (double)load.slots) <=
                23);           /* some partitions have doubled already */
    assert_true(bytes <= 524); /* 1.2 % of the gets search level 2 and read level 1 once more in the same batch */
    close_table(&t);
}


/* Proves that the option half_read saves bytes over whole cycles of growth. With this option a get first reads only the
 * half of the bucket at which its key's probe order begins. The fuller the bucket, the more often the key is in the other
 * half, so the test covers buckets of every load. */
TEST(half_read_saves_bytes) {
    cost costs[FAR_OP_DELETE + 1];
    table t;
    open_table(&t, SIM, "key_size=8,value_size=8,bits=4");
    load_and_measure(&t, 400000, costs);
    assert_true(costs[FAR_OP_GET].bytes <= 300);
    assert_true(costs[FAR_OP_GET].trips <= 1.05);
    close_table(&t);
}


/* Returns the round trips of the session's own operations since the previous call, without the background work that
 * returns memory. */
static uint64_t trips_of_one(const table *t, far_stats *before) {
    far_stats now;
    far_session_stats(t->session, &now);
    uint64_t trips = now.round_trips - before->round_trips;
    *before = now;
    return trips;
}


/* Returns the largest number of round trips of a single operation: inserts, and after every fourth insert one of each
 * other kind, on keys of all ages. */
static uint64_t longest_operation(table *t, uint64_t keys, unsigned seed) {
    uint64_t most = 0;
    far_stats before;
    far_random random;
    far_random_seed(&random, seed);
    far_session_stats(t->session, &before);
    for (uint64_t n = 0; n < keys; n++) {
        assert_int_equal(do_operation(t, FAR_OP_INSERT, n), 0);
        uint64_t trips = trips_of_one(t, &before);
        most = trips > most ? trips : most;
        uint64_t pick = 0;
        for (unsigned i = 0; n % 4 == 3 && i < 5; i++) {
            static const far_op_kind kinds[] = {FAR_OP_GET, FAR_OP_UPDATE, FAR_OP_DELETE, FAR_OP_INSERT, FAR_OP_GET};
            pick = i < 3 ? far_random_below(&random, n) : i == 3 ? pick : pick + (1ull << 40);
            assert_int_equal(do_operation(t, kinds[i], pick), i == 4 ? FAR_ERR_NOT_FOUND : 0);
            trips = trips_of_one(t, &before);
            most = trips > most ? trips : most;
        }
    }
    return most;
}


/* Proves that no operation waits long, however large the table is: an operation of a single client spends only a few
 * round trips on growth. The test fails after each of these changes: retire_table reads every chain head; a step of the
 * drain has no bound; an insert that has reached level 3 or a closed bucket also begins a doubling; the move of a key
 * by the drain takes more round trips than its step allows; a delete that splits its bucket searches its key at levels
 * 2 and 3 a second time under the lock. */
static void no_operation_waits_for_long_on(const char *options, uint64_t keys, unsigned seed) {
    table t;
    char uri[96];
    snprintf(uri, sizeof(uri), "sim:seed=%u,size=1G,faults=none,watch=off,limit=100000s", seed);
    open_table(&t, uri, options);
    uint64_t most = longest_operation(&t, keys, seed);
    print_message("    %s, %llu keys: at most %llu round trips\n", options, (unsigned long long)keys,
                  (unsigned long long)most);
    assert_true(most <= 12);
    close_table(&t);
}


TEST(no_operation_waits_for_long) {
    uint64_t part =
        test_runs_all_sizes() ? 1 : 4; /* the large tables have a quarter of their keys unless all sizes run */
    /* slots=16 and l2_slots=2: many keys are at levels 2 and 3 */
    no_operation_waits_for_long_on("key_size=8,value_size=8,slots=16,l2_slots=2", 100000, 1);
    no_operation_waits_for_long_on("key_size=8,value_size=8,slots=16,l2_slots=2", 100000, 31);
    no_operation_waits_for_long_on("layout=pointer", 300000 / part, 3);
    no_operation_waits_for_long_on("layout=pointer,partitions=1,bits=8", 300000 / part, 18);
    no_operation_waits_for_long_on("layout=pointer", 600000 / part, 1);
    no_operation_waits_for_long_on("key_size=8,value_size=8", 1000000 / part, 1);
    no_operation_waits_for_long_on("key_size=8,value_size=8,partitions=1,bits=10", 1000000 / part,
                                   /* This table is like one partition of a table with 64 partitions and 64 M keys. */
                                   1);
}


/* Returns how often one client publishes its count of keys while it fills half of an empty table. */
static uint64_t publications_of(const char *options) {
    table t;
    far_stats before, after;
    open_table(&t, SIM, options);
    far_session_stats(t.session, &before);
    for (uint64_t n = 0; n < 10000; n++)
        assert_int_equal(do_operation(&t, FAR_OP_INSERT, n), 0);
    far_session_stats(t.session, &after);
    uint64_t publications = after.faa - before.faa; /* an insert posts an FAA only to publish the count */
    print_message("    %s: %u publications\n", options, (unsigned)publications);
    close_table(&t);
    return publications;
}


/* Option alpha: with adaptive publication (afs=0), the number of writes between two publications is the number of free
 * slots times alpha / 1000. So a client publishes its count ten times as often with a tenth of alpha, and once in n
 * writes with afs=n. */
TEST(alpha_sets_how_often_counts_are_published) {
    uint64_t few = publications_of("layout=pointer,partitions=1,bits=10,alpha=100");
    uint64_t many = publications_of("layout=pointer,partitions=1,bits=10,alpha=10");
    assert_true(few >= 3 && many >= 8 * few && many <= 13 * few);
    assert_int_equal(publications_of("layout=pointer,partitions=1,bits=10,afs=100"), 100);
}
