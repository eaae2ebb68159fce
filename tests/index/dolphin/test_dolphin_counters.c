/* Dolphin measured by its counters: round trips and bytes per operation, far memory and cache per key. The counters do
 * not depend on the machine, so the tests assert narrow limits. */
#include "base/random.h"
#include "farindex.h"
#include "test.h"
#include "workload/distribution.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS 1000000ull
#define OPS  200000ull
#define MANY 4000000ull

typedef struct tree {
    far_pool *pool;
    far_session *session;
    far_index *index;
    bool consecutive;
    size_t value_bytes;
} tree;


static void big_endian(uint64_t x, uint8_t key[8]) {
    for (int i = 0; i < 8; i++)
        key[i] = (uint8_t)(x >> (56 - 8 * i));
}


static void key_of(const tree *tr, uint64_t n, uint8_t key[8]) {
    uint64_t seed = n;
    big_endian(tr->consecutive ? n : far_splitmix(&seed), key);
}


static void open_tree(tree *tr, const char *options, const char *uri, size_t cache_bytes) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.cache_bytes = cache_bytes;
    pool_options.rdwc = -1;
    memset(tr, 0, sizeof(*tr));
    assert_int_equal(far_pool_open(uri, &pool_options, &tr->pool), 0);
    assert_int_equal(far_session_open(tr->pool, &tr->session), 0);
    assert_int_equal(far_index_create(tr->session, "tree", "dolphin", options, &tr->index), 0);
    tr->value_bytes = 8;
}


static void close_tree(tree *tr) {
    far_index_close(tr->index);
    far_session_close(tr->session);
    far_pool_close(tr->pool);
}


static void load(tree *tr, uint64_t keys) {
    uint8_t key[8], value[64] = {0};
    for (uint64_t n = 0; n < keys; n++) {
        key_of(tr, n, key);
        memcpy(value, &n, sizeof(n));
        assert_int_equal(far_insert(tr->session, tr->index, key, 8, value, tr->value_bytes), 0);
    }
}


static void get_number(tree *tr, uint64_t n) {
    uint8_t key[8], value[64];
    size_t length;
    uint64_t back;
    key_of(tr, n, key);
    assert_int_equal(far_get(tr->session, tr->index, key, 8, value, sizeof(value), &length), 0);
    assert_int_equal(length, tr->value_bytes);
    memcpy(&back, value, sizeof(back));
    assert_int_equal(back, n);
}


static void update_number(tree *tr, uint64_t n) {
    uint8_t key[8], value[64] = {0};
    key_of(tr, n, key);
    memcpy(value, &n, sizeof(n));
    assert_int_equal(far_update(tr->session, tr->index, key, 8, value, tr->value_bytes), 0);
}


typedef struct figures {
    double trips, bytes, reads, retries;
} figures;


static figures since(const tree *tr, const far_stats *before, uint64_t ops, const char *what) {
    far_stats after;
    far_session_stats(tr->session, &after);
    far_stats d = far_stats_diff(&after, before);
    figures f = {(double)d.round_trips / (double)ops, (double)d.bytes_read / (double)ops, (double)d.reads / (double)ops,
                 (double)d.retries / (double)ops};
    print_message(
        "%-44s %.3f round trips, %.1f bytes read, %.3f READs, %.3f WRITEs, %.3f CASes, %.3f FAAs, %.4f retries\n", what,
        f.trips, f.bytes, f.reads, (double)d.writes / (double)ops, (double)d.cas / (double)ops,
        (double)d.faa / (double)ops, f.retries);
    return f;
}


static void mixed(tree *tr, uint64_t ops) { /* runs YCSB workload A, half gets and half updates */
    far_random random;
    far_distribution zipf;
    far_random_seed(&random, 1);
    assert_int_equal(far_distribution_init(&zipf, FAR_DISTRIBUTION_ZIPFIAN, FAR_ZIPF_THETA, KEYS), 0);
    for (uint64_t i = 0; i < ops; i++) {
        uint64_t n = far_distribution_next(&zipf, &random, KEYS);
        if (far_random_chance(&random, 1, 2))
            get_number(tr, n);
        else
            update_number(tr, n);
    }
}


/* With all nodes cached, the round trips and bytes of each operation stay within narrow limits. */
TEST(cached_operations_meet_their_limits) {
    tree tr;
    far_stats before;
    uint8_t key[8];
    open_tree(&tr, "value_size=8", "local:1G", 64 << 20);
    far_session_stats(tr.session, &before);
    load(&tr, KEYS);
    assert_true(since(&tr, &before, KEYS, "insert (LOAD)").trips <= 2.3);

    far_session_stats(tr.session, &before);
    for (uint64_t n = 0; n < KEYS; n += 5)
        get_number(&tr, n);
    figures f = since(&tr, &before, KEYS / 5, "get");
    assert_true(f.trips <= 1.02 && f.bytes <= 1100.0);

    far_session_stats(tr.session, &before);
    for (uint64_t n = 0; n < KEYS; n += 5)
        update_number(&tr, n);
    f = since(&tr, &before, KEYS / 5, "update");
    assert_true(f.trips <= 2.02 && f.bytes <= 580.0);

    far_session_stats(tr.session, &before);
    mixed(&tr, OPS);
    assert_true(since(&tr, &before, OPS, "YCSB A").trips <= 1.52);

    far_session_stats(tr.session, &before);
    for (uint64_t n = 0; n < KEYS; n += 10) {
        key_of(&tr, n, key);
        assert_int_equal(far_delete(tr.session, tr.index, key, 8), 0);
    }
    assert_true(since(&tr, &before, KEYS / 10, "delete").trips <= 2.02);
    close_tree(&tr);
}


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(unsigned *)ctx;
    return 0;
}


static void scan_some(tree *tr, unsigned scans, unsigned limit, bool backward) {
    far_random random;
    uint8_t key[8];
    far_random_seed(&random, 3);
    for (unsigned i = 0; i < scans; i++) {
        unsigned pairs = 0;
        key_of(tr, 1000 + far_random_below(&random, KEYS - 2000), key);
        int64_t got = backward ? far_scan_reverse(tr->session, tr->index, NULL, 0, key, 8, limit, count_pair, &pairs)
                               : far_scan(tr->session, tr->index, key, 8, NULL, 0, limit, count_pair, &pairs);
        assert_true(got >= 0 && pairs == (unsigned)got);
    }
}


static figures figures_of_scans(tree *tr, bool backward, const char *name) {
    far_stats before;
    far_session_stats(tr->session, &before);
    scan_some(tr, 2000, 100, backward);
    return since(tr, &before, 2000, name);
}


/* A scan of 100 keys READs few leaves, in few round trips. A backward scan needs at most 1.2 times as many. Fails if
 * dolphin_cache_entries_from (cache.c) does not return the preceding entries of a cached node, or if a scan READs leaves
 * beyond the pairs that it needs (choose_leaves in scan.c). */
TEST(scans_read_few_leaves) {
    for (unsigned consecutive = 0; consecutive < 2; consecutive++) {
        tree tr;
        open_tree(&tr, "value_size=8", "local:1G", 64 << 20);
        tr.consecutive = consecutive;
        load(&tr, KEYS);
        scan_some(&tr, 2000, 100, false);
        scan_some(&tr, 2000, 100, true);
        figures f = figures_of_scans(&tr, false, consecutive ? "scan of 100, consecutive" : "scan of 100, random");
        figures g = figures_of_scans(&tr, true, consecutive ? "backward, consecutive" : "backward, random");
        assert_true(f.trips <= 2.0 && f.reads <= 4.0);
        assert_true(g.trips <= 1.2 * f.trips && g.reads <= 1.2 * f.reads);
        close_tree(&tr);
    }
}


/* Asserts limits for the far memory and the cache memory per key, with 4 million keys. */
TEST(memory_per_key) {
    for (unsigned consecutive = 0; consecutive < 2; consecutive++) {
        tree tr;
        far_usage usage;
        open_tree(&tr, "value_size=8", "local:1G", 64 << 20);
        tr.consecutive = consecutive;
        load(&tr, MANY);
        for (uint64_t n = 0; n < MANY; n += 8) /* after these gets the cache contains every node */
            get_number(&tr, n);
        assert_int_equal(far_index_usage(tr.session, tr.index, &usage), 0);
        double far = (double)usage.pool_bytes / (double)MANY, cache = (double)usage.cache_bytes / (double)MANY;
        print_message("%s: %.1f bytes of far memory, %.2f of cache per key\n", consecutive ? "consecutive" : "random",
                      far, cache);
        assert_true(usage.keys == MANY && far <= 28.0 && cache <= 0.55);
        close_tree(&tr);
    }
}


/* With insert=cas, as in the paper, reserving a slot takes one more round trip. */
TEST(slots_by_cas_cost_a_round_trip) {
    tree tr;
    far_stats before;
    open_tree(&tr, "value_size=8,insert=cas", "local:1G", 64 << 20);
    far_session_stats(tr.session, &before);
    load(&tr, KEYS);
    figures f = since(&tr, &before, KEYS, "insert by CAS (LOAD)");
    assert_true(f.trips >= 3.0 && f.trips <= 3.1);
    for (uint64_t n = 0; n < KEYS; n += 50)
        get_number(&tr, n);
    close_tree(&tr);
}


/* With sync=exclusive, where writers lock the leaf, an update takes one more round trip. */
TEST(exclusive_locks_cost_a_round_trip) {
    tree tr;
    far_stats before;
    open_tree(&tr, "value_size=8,sync=exclusive,hints=off", "local:1G", 64 << 20);
    load(&tr, KEYS);
    far_session_stats(tr.session, &before);
    mixed(&tr, OPS);
    assert_true(since(&tr, &before, OPS, "YCSB A, exclusive").trips >= 1.95);
    close_tree(&tr);
}


/* The slot of a hot key is known from a hint, so gets and updates READ only a few bytes: three words for a get, and one
 * word for an update. Housekeeping may add its own verbs to the counters of the session, a few in a thousand operations,
 * so the bounds leave room for less than one byte per operation. */
TEST(hot_keys_cost_few_bytes) {
    tree tr;
    far_stats before;
    open_tree(&tr, "value_size=8", "local:1G", 64 << 20);
    load(&tr, 100000);
    get_number(&tr, 5);
    far_session_stats(tr.session, &before);
    for (unsigned i = 0; i < 1000; i++)
        get_number(&tr, 5);
    figures f = since(&tr, &before, 1000, "get of a hot key");
    assert_true(f.trips < 1.05 && f.bytes >= 24.0 && f.bytes < 25.0);
    far_session_stats(tr.session, &before);
    for (unsigned i = 0; i < 1000; i++)
        update_number(&tr, 5);
    f = since(&tr, &before, 1000, "update of a hot key");
    /* This number of bytes does not include the word that the FAA returns. */
    assert_true(f.trips < 2.05 && f.bytes >= 8.0 && f.bytes < 9.0);
    close_tree(&tr);
}


/* A long value costs one more READ. Without a cache, a get costs one round trip per level of the tree. */
TEST(long_values_and_no_cache) {
    tree tr;
    far_stats before;
    open_tree(&tr, "hints=off", "local:1G", 64 << 20);
    tr.value_bytes = 64;
    load(&tr, 200000);
    far_session_stats(tr.session, &before);
    for (uint64_t n = 0; n < 200000; n += 5)
        get_number(&tr, n);
    assert_true(since(&tr, &before, 40000, "get, 64 bytes").trips <= 2.02);
    far_session_stats(tr.session, &before);
    for (uint64_t n = 0; n < 200000; n += 5)
        update_number(&tr, n);
    assert_true(since(&tr, &before, 40000, "update, 64 bytes").trips <= 2.02);
    close_tree(&tr);

    open_tree(&tr, "hot_updates=on", "local:1G", 64 << 20);
    tr.value_bytes = 64;
    load(&tr, 100000);
    update_number(&tr, 5);
    far_session_stats(tr.session, &before);
    for (unsigned i = 0; i < 1000; i++)
        update_number(&tr, 5);
    assert_true(since(&tr, &before, 1000, "update of a hot key, 64 bytes").trips <= 1.02);
    close_tree(&tr);

    open_tree(&tr, "value_size=8,cache=off", "local:1G", 64 << 20);
    load(&tr, 200000);
    far_session_stats(tr.session, &before);
    for (uint64_t n = 0; n < 200000; n += 5)
        get_number(&tr, n);
    assert_true(since(&tr, &before, 40000, "get, no cache").trips <= 4.0);
    close_tree(&tr);
}


/* An operation READs only the entry of its key from the root: 8 bytes instead of 2368. This matters because all clients
 * with outdated caches READ the root, which is on one memory node. */
TEST(one_entry_of_the_root_is_read) {
    tree tr;
    far_stats before;
    open_tree(&tr, "value_size=8,cache=off,hints=off", "local:64M", 1 << 20);
    far_session_stats(tr.session, &before);
    load(&tr, 1);
    figures f = since(&tr, &before, 1, "first insert, no cache");
    /* The 32 bytes are the entry, the entry again with its lock, and the control word of the new leaf. */
    assert_true(f.trips == 3.0 && f.bytes == 32.0);
    far_session_stats(tr.session, &before);
    get_number(&tr, 0);
    f = since(&tr, &before, 1, "get below the root, no cache");
    assert_true(f.trips == 2.0 && f.bytes == 8.0 + 1088);
    far_session_stats(tr.session, &before);
    update_number(&tr, 0);
    f = since(&tr, &before, 1, "update below the root, no cache");
    assert_true(f.trips == 3.0 && f.bytes == 8.0 + 576);
    close_tree(&tr);
}
