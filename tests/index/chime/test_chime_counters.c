/* CHIME, exact counters: round trips and bytes per operation, load at split, far memory and cache per key, and the hit
 * ratio of the hotspot buffer compared with an ideal buffer. The counters do not depend on the machine.
 * docs/chime-figures.md lists the limits ("bars"). */
#include "base/random.h"
#include "index/chime/chime.h"
#include "test.h"
#include "workload/distribution.h"

#include <stdio.h>
#include <stdlib.h>

#define FIXED  "key_size=8,value_size=8"
#define SIM    "sim:seed=1,memory_nodes=1,size=128M"
#define SIM8   "sim:seed=1,memory_nodes=1,size=128M,atomic_bytes=8"
#define FUSED  "sim:seed=1,memory_nodes=1,size=128M,atomics_in_order=on"
#define NODES8 "sim:seed=1,memory_nodes=8,size=32M"
#define KEYS   60000ull
#define CACHE  (64u << 20)

typedef struct tree {
    far_pool *pool;
    far_session *session;
    far_index *index;
} tree;


static void key_of(uint64_t n, uint8_t key[8]) {
    uint64_t x = far_splitmix(&n);
    for (int i = 0; i < 8; i++)
        key[i] = (uint8_t)(x >> (56 - 8 * i));
}


static void open_kind(tree *tr, const char *kind, const char *uri, const char *options, size_t cache_bytes) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.cache_bytes = cache_bytes;
    pool_options.rdwc = -1;
    assert_int_equal(far_pool_open(uri, &pool_options, &tr->pool), 0);
    assert_int_equal(far_session_open(tr->pool, &tr->session), 0);
    assert_int_equal(far_index_create(tr->session, "tree", kind, options, &tr->index), 0);
}


static void open_tree(tree *tr, const char *uri, const char *options, size_t cache_bytes) {
    open_kind(tr, "chime", uri, options, cache_bytes);
}


static void close_tree(tree *tr) {
    far_index_close(tr->index);
    far_session_close(tr->session);
    far_pool_close(tr->pool);
}


static void insert_some(tree *tr, uint64_t from, uint64_t to) {
    uint8_t key[8];
    for (uint64_t n = from; n < to; n++) {
        key_of(n, key);
        assert_int_equal(far_insert(tr->session, tr->index, key, 8, &n, 8), 0);
    }
}


static void get_number(tree *tr, uint64_t n, int wanted) {
    uint8_t key[8];
    uint64_t back = n;
    size_t length;
    key_of(n, key);
    assert_int_equal(far_get(tr->session, tr->index, key, 8, &back, 8, &length), wanted);
    assert_true(back == n);
}


typedef struct figures {
    double trips, read, verbs;
} figures;


static figures stats_since(const tree *tr, const far_stats *before, uint64_t ops, const char *what) {
    far_stats after;
    far_session_stats(tr->session, &after);
    far_stats d = far_stats_diff(&after, before);
    uint64_t verbs = d.reads + d.writes + d.cas + d.faa + d.masked_cas;
    figures f = {(double)d.round_trips / (double)ops, (double)d.bytes_read / (double)ops, (double)verbs / (double)ops};
    print_message("%-44s %.3f round trips, %.1f bytes read, %.3f verbs, %.4f retries\n", what, f.trips, f.read, f.verbs,
                  (double)d.retries / (double)ops);
    return f;
}


/* Runs every kind of operation on one tree, and compares its round trips and bytes with the limits given as arguments.
 */
static void run_all(const char *uri, const char *options, double insert, double change, double get_bytes,
                    double hot_bytes) {
    tree tr;
    far_stats before;
    uint8_t key[8];
    char text[128];
    print_message("%s\n", uri);
    snprintf(text, sizeof(text), FIXED ",speculation=off%s", options);
    open_tree(&tr, uri, text, CACHE);
    far_session_stats(tr.session, &before);
    insert_some(&tr, 0, KEYS);
    assert_true(stats_since(&tr, &before, KEYS, "insert").trips <= insert);
    far_session_stats(tr.session, &before);
    for (uint64_t n = 0; n < KEYS; n += 3)
        get_number(&tr, n, 0);
    figures f = stats_since(&tr, &before, KEYS / 3, "get");
    assert_true(f.trips >= 1.0 && f.trips <= 1.05 && f.read <= get_bytes);
    far_session_stats(tr.session, &before);
    for (uint64_t n = 0; n < KEYS; n += 3)
        get_number(&tr, KEYS + n, FAR_ERR_NOT_FOUND);
    assert_true(stats_since(&tr, &before, KEYS / 3, "get of absent keys").trips <= 2.0);
    far_session_stats(tr.session, &before);
    for (uint64_t n = 0; n < KEYS; n += 3) {
        key_of(n, key);
        assert_int_equal(far_update(tr.session, tr.index, key, 8, &n, 8), 0);
    }
    assert_true(stats_since(&tr, &before, KEYS / 3, "update").trips <= change);
    far_session_stats(tr.session, &before);
    for (uint64_t n = 0; n < KEYS; n += 9) {
        key_of(n, key);
        assert_int_equal(far_delete(tr.session, tr.index, key, 8), 0);
    }
    assert_true(stats_since(&tr, &before, KEYS / 9, "delete").trips <= change);
    close_tree(&tr);

    snprintf(text, sizeof(text), FIXED ",hotspot=2M%s", options);
    open_tree(&tr, uri, text, CACHE);
    insert_some(&tr, 0, KEYS / 4);
    for (unsigned round = 0; round < 2; round++) {
        far_session_stats(tr.session, &before);
        for (uint64_t n = 0; n < 2000; n++)
            get_number(&tr, n, 0);
    }
    f = stats_since(&tr, &before, 2000, "get of hot keys");
    assert_true(f.trips <= 1.01 && f.read <= hot_bytes);
    close_tree(&tr);
}


TEST(operations_meet_the_bars) {
    run_all(SIM, "", 3.1, 3.02, 190, 40);
    run_all(SIM8, "", 3.1, 3.02, 206, 56);
}


TEST(fusion_saves_a_round_trip) {
    run_all(FUSED, "", 2.25, 2.05, 190, 40);
}


TEST(whole_leaves_cost_seven_times_the_bytes) {
    double read[2];
    static const char *const options[] = {FIXED ",speculation=off", FIXED ",speculation=off,hopscotch=off"};
    for (unsigned i = 0; i < 2; i++) {
        tree tr;
        far_stats before;
        open_tree(&tr, SIM, options[i], CACHE);
        insert_some(&tr, 0, 10000);
        far_session_stats(tr.session, &before);
        for (uint64_t n = 0; n < 10000; n += 2)
            get_number(&tr, n, 0);
        read[i] = stats_since(&tr, &before, 5000, options[i]).read;
        close_tree(&tr);
    }
    assert_true(read[1] >= 7 * read[0]);
}


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(unsigned *)ctx;
    return 0;
}


/* Proves that scans end at their limit and at their bound, without an additional round trip. */
TEST(scans_stop_where_they_should) {
    tree tr;
    far_stats before;
    far_random random;
    uint8_t key[8], to[8];
    open_tree(&tr, SIM, FIXED ",speculation=off", CACHE);
    insert_some(&tr, 0, KEYS);
    far_random_seed(&random, 3);
    far_session_stats(tr.session, &before);
    for (unsigned i = 0; i < 2000; i++) {
        unsigned pairs = 0;
        key_of(far_random_below(&random, KEYS), key);
        assert_true(far_scan(tr.session, tr.index, key, 8, NULL, 0, 100, count_pair, &pairs) >= 0);
        assert_true(pairs == 100 || key[0] == 0xff);
    }
    figures f = stats_since(&tr, &before, 2000, "scan of 100");
    assert_true(f.trips >= 1 && f.trips <= 2 && f.read <= 4.1 * 1424);
    far_session_stats(tr.session, &before);
    for (unsigned i = 0; i < 2000; i++) { /* ranges that contain about four keys */
        unsigned pairs = 0;
        key_of(far_random_below(&random, KEYS), key);
        uint64_t number = chime_key_number(key, 8), end = number + 4 * (UINT64_MAX / KEYS);
        for (unsigned k = 0; k < 8; k++)
            to[k] = (uint8_t)(end >> (56 - 8 * k));
        if (end > number)
            assert_true(far_scan(tr.session, tr.index, key, 8, to, 8, 0, count_pair, &pairs) >= 1);
    }
    f = stats_since(&tr, &before, 2000, "range of 4");
    assert_true(f.trips <= 1.1 && f.read <= 1.3 * 1424);
    close_tree(&tr);
}


/* Proves that load at split, far memory per key and cache per key are within their limits, for keys in random and in
 * ascending order. */
TEST(memory_meets_the_bars) {
    enum { MANY = 1000000 };
    static const struct {
        const char *options;
        double load, far, cache;
    } cases[] = {{FIXED ",speculation=off,cache=plain", 0.865, 38, 0.5},
                 {FIXED ",speculation=off", 0.865, 38, 0.35},
                 {FIXED ",speculation=off,split=paper", 0.88, 42, 0.35}};
    for (unsigned i = 0; i < 3; i++) {
        tree tr;
        far_usage usage;
        open_tree(&tr, "local:256M", cases[i].options, CACHE);
        insert_some(&tr, 0, MANY);
        const chime_counts *counts = &chime_state_of(tr.index)->counts;
        double load = (double)counts->split_items / (double)counts->splits / 63;
        assert_int_equal(far_index_usage(tr.session, tr.index, &usage), 0);
        double far = (double)usage.pool_bytes / MANY, cache = (double)usage.cache_bytes / MANY;
        print_message("%s: load at split %.4f, %.1f bytes of far memory and %.3f of cache per key\n", cases[i].options,
                      load, far, cache);
        assert_true(load >= cases[i].load && far <= cases[i].far && cache <= cases[i].cache);
        close_tree(&tr);
    }
    tree tr;
    far_usage usage;
    open_tree(&tr, "local:256M", FIXED, CACHE);
    for (uint64_t n = 0; n < 200000; n++) {
        uint8_t key[8];
        for (int i = 0; i < 8; i++)
            key[i] = (uint8_t)(n >> (56 - 8 * i));
        assert_int_equal(far_insert(tr.session, tr.index, key, 8, &n, 8), 0);
    }
    assert_int_equal(far_index_usage(tr.session, tr.index, &usage), 0);
    print_message("rising keys: %.1f bytes of far memory per key\n", (double)usage.pool_bytes / 200000);
    assert_true((double)usage.pool_bytes / 200000 <= 27);
    close_tree(&tr);
}


TEST(nodes_are_spread_over_the_memory_nodes) {
    tree tr;
    unsigned nodes[8] = {0}, leaves = 0, beside = 0;
    far_pool_usage usage;
    open_tree(&tr, NODES8, FIXED ",speculation=off", CACHE);
    insert_some(&tr, 0, 40000);
    /* Traverses the tree from the root through the cache, and counts the nodes on each memory node. */
    chime_state *st = chime_state_of(tr.index);
    uint64_t root = atomic_load_explicit(&st->root, memory_order_relaxed);
    chime_ptr level[3][2048];
    unsigned count[3] = {1, 0, 0}, height = chime_ptr_low(root);
    assert_int_equal(height, 2);
    assert_int_equal(far_pool_stat(tr.session, &usage), 0);
    level[0][0] = chime_ptr_without_low(root);
    chime_key first;
    chime_key_make(st, (far_bytes){"\0\0\0\0\0\0\0", 8}, &first);
    for (unsigned l = 0; l < 2; l++)
        for (unsigned i = 0; i < count[l]; i++) {
            unsigned more = chime_cache_children(st->cache, st, level[l][i], &first, NULL, usage.epoch, 63,
                                                 level[l + 1] + count[l + 1]);
            if (l == 0)
                assert_true(more > 2);
            count[l + 1] += more;
        }
    for (unsigned i = 0; i < count[2]; i++, leaves++) {
        unsigned node = far_addr_node(chime_ptr_addr(level[2][i]));
        nodes[node]++;
        beside += i > 0 && node == far_addr_node(chime_ptr_addr(level[2][i - 1]));
    }
    unsigned largest = 0;
    for (unsigned i = 0; i < 8; i++)
        largest = nodes[i] > largest ? nodes[i] : largest;
    print_message("%u leaves, at most %u on one of 8 memory nodes\n", leaves, largest);
    assert_true(leaves > 800 && largest * 8.0 <= 1.3 * leaves);
    assert_int_equal(beside, 0); /* number of leaves that are on the same memory node as their left neighbour */
    close_tree(&tr);
}


static int compare_numbers(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}


/* Proves that with YCSB C and one entry for 30 records, the hotspot buffer reaches nearly the hit ratio of an ideal
 * buffer, which knows how often each record will be read. */
TEST(the_hotspot_buffer_is_nearly_ideal) {
    enum { RECORDS = 300000, GETS = 600000 };
    tree tr;
    far_random random;
    far_distribution zipf;
    char options[96];
    snprintf(options, sizeof(options), FIXED ",hotspot=%u", RECORDS / 30 * 16);
    open_tree(&tr, "sim:seed=1,memory_nodes=1,size=64M", options, CACHE);
    insert_some(&tr, 0, RECORDS);
    far_random_seed(&random, 1);
    assert_int_equal(far_distribution_init(&zipf, FAR_DISTRIBUTION_ZIPFIAN, FAR_ZIPF_THETA, RECORDS), 0);
    uint64_t *asked = calloc(RECORDS, sizeof(*asked)), hits = 0;
    assert_non_null(asked);
    for (unsigned i = 0; i < GETS; i++) /* These gets only warm up the hotspot buffer; the measurement follows. */
        get_number(&tr, far_distribution_next(&zipf, &random, RECORDS), 0);
    chime_counts *counts = &chime_state_of(tr.index)->counts;
    uint64_t speculated = counts->speculated, well = counts->speculations_correct;
    for (unsigned i = 0; i < GETS; i++) {
        uint64_t n = far_distribution_next(&zipf, &random, RECORDS);
        asked[n]++;
        get_number(&tr, n, 0);
    }
    speculated = counts->speculated - speculated;
    well = counts->speculations_correct - well;
    qsort(asked, RECORDS, sizeof(*asked), compare_numbers);
    for (unsigned i = 0; i < RECORDS / 30; i++)
        hits += asked[i];
    double ratio = (double)well / GETS, ideal = (double)hits / GETS,
           wrong = (double)(speculated - well) / (double)speculated;
    print_message("hit ratio %.4f, ideal %.4f (%.3f of it), wrong %.4f\n", ratio, ideal, ratio / ideal, wrong);
    assert_true(ratio >= 0.93 * ideal && wrong < 0.01);
    free(asked);
    close_tree(&tr);
}


static figures get_with_little_cache(const char *kind, const char *options) {
    enum { RECORDS = 30000 };
    tree tr;
    far_random random;
    far_distribution zipf;
    far_stats before = {0};
    open_kind(&tr, kind, SIM, options, RECORDS * 17 / 10);
    insert_some(&tr, 0, RECORDS);
    far_random_seed(&random, 1);
    assert_int_equal(far_distribution_init(&zipf, FAR_DISTRIBUTION_ZIPFIAN, FAR_ZIPF_THETA, RECORDS), 0);
    for (unsigned i = 0; i < 2 * RECORDS; i++) {
        if (i == RECORDS) /* The first RECORDS gets only warm up the cache; the measurement begins now. */
            far_session_stats(tr.session, &before);
        get_number(&tr, far_distribution_next(&zipf, &random, RECORDS), 0);
    }
    figures f = stats_since(&tr, &before, RECORDS, options);
    close_tree(&tr);
    return f;
}


/* Proves that with YCSB C and 1.7 bytes of cache per key, three tenths of them for hot keys, CHIME needs fewer verbs
 * and bytes than whole leaves and than SMART as in its paper. */
TEST(a_little_cache_is_enough) {
    figures chime = get_with_little_cache("chime", FIXED ",hotspot=15K"),
            whole = get_with_little_cache("chime", FIXED ",hopscotch=off,hotspot=0"),
            clock = get_with_little_cache("smart", FIXED ",layout=paper"),
            fifo = get_with_little_cache("smart", FIXED ",layout=paper,eviction=fifo");
    assert_true(chime.trips <= 1.02 && chime.verbs <= 1.1 && chime.read <= 110);
    assert_true(whole.read >= 12 * chime.read);
    assert_true(clock.verbs >= 1.4 * chime.verbs && clock.read >= 2 * chime.read);
    assert_true(fifo.verbs >= clock.verbs && fifo.read >= clock.read);
}


/* Proves that with miss=time an absent key costs one round trip and two verbs, which READ a neighbourhood and the tail.
 * (11 % of the neighbourhoods continue at slot 0 and need a third verb.) Where the fabric guarantees no minimum round
 * trip, or tears lines, S (the structure nonce of the leaf) is READ as usual. */
TEST(misses_by_time) {
    static const char *const uris[] = {SIM, "local:64M"};
    for (unsigned i = 0; i < 2; i++) {
        tree tr;
        far_stats before;
        open_tree(&tr, uris[i], FIXED ",speculation=off,miss=time", CACHE);
        insert_some(&tr, 0, 3000);
        far_session_stats(tr.session, &before);
        for (uint64_t n = 0; n < 1000; n++)
            get_number(&tr, KEYS + n, FAR_ERR_NOT_FOUND);
        figures f = stats_since(&tr, &before, 1000, "get of absent keys, by time");
        assert_true(f.trips <= 1.01 && (i ? f.verbs >= 4.0 : f.verbs <= 2.2));
        close_tree(&tr);
    }
}


/* Proves that keys and values smaller than a word are stored in the slots, without pair blocks. */
TEST(small_pairs_are_stored_in_slots) {
    tree tr;
    far_stats before;
    uint32_t back;
    uint8_t key[8];
    size_t length;
    open_tree(&tr, SIM, "key_size=5,value_size=4,speculation=off", CACHE);
    for (uint32_t n = 0; n < 3000; n++) {
        key_of(n, key);
        assert_int_equal(far_insert(tr.session, tr.index, key, 5, &n, 4), 0);
    }
    far_session_stats(tr.session, &before);
    for (uint32_t n = 0; n < 3000; n++) {
        key_of(n, key);
        assert_int_equal(far_get(tr.session, tr.index, key, 5, &back, 4, &length), 0);
        assert_true(length == 4 && back == n);
    }
    figures f = stats_since(&tr, &before, 3000, "get of a small pair");
    assert_true(f.trips <= 1.01 && f.read <= 190);
    close_tree(&tr);
}


static void put_larger(tree *tr, far_op_kind how, unsigned bytes, uint64_t count) {
    for (uint64_t n = 0; n < count; n++) {
        uint8_t key[8], value[64];
        key_of(n, key);
        memset(value, (int)(n + how), bytes);
        int result = how == FAR_OP_INSERT ? far_insert(tr->session, tr->index, key, 8, value, bytes)
                                          : far_update(tr->session, tr->index, key, 8, value, bytes);
        assert_int_equal(result, 0);
    }
}


static figures get_larger(tree *tr, unsigned bytes, uint64_t count, const char *what) {
    far_stats before;
    far_session_stats(tr->session, &before);
    for (uint64_t n = 0; n < count; n++) {
        uint8_t key[8], back[64];
        size_t length;
        key_of(n, key);
        assert_int_equal(far_get(tr->session, tr->index, key, 8, back, sizeof(back), &length), 0);
        assert_true(length == bytes && back[0] == (uint8_t)(n + FAR_OP_UPDATE) && back[bytes - 1] == back[0]);
    }
    return stats_since(tr, &before, count, what);
}


/* Proves that values of 9 to 40 bytes are stored in the slots where lines do not tear, in lines with two slots or one.
 * Compared with pair blocks this saves a get one round trip. */
TEST(larger_values_are_stored_in_slots) {
    static const struct {
        const char *uri, *options;
        unsigned bytes;
        double get_trips, get_bytes, hot_bytes, insert, update;
    } cases[] = {{SIM, "value_size=9", 9, 1.0, 270, 40, 3.1, 3.0},
                 {SIM, "value_size=16", 16, 1.0, 270, 40, 3.1, 3.0},
                 {SIM, "value_size=40", 40, 1.0, 512, 64, 3.1, 3.0},
                 {FUSED, "value_size=40", 40, 1.0, 512, 64, 2.25, 2.0},
                 {SIM, "value_size=41", 41, 2.0, 260, 120, 3.1, 3.0},
                 {SIM, "value_size=16,inline=8", 16, 2.0, 240, 90, 3.1, 3.0},
                 {SIM8, "value_size=16", 16, 2.0, 260, 110, 3.1, 3.0}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum { COUNT = 3000 };
        tree tr;
        far_stats before;
        char options[128];
        print_message("%s, %s\n", cases[i].uri, cases[i].options);
        snprintf(options, sizeof(options), "key_size=8,hotspot=2M,%s", cases[i].options);
        open_tree(&tr, cases[i].uri, options, CACHE);
        far_session_stats(tr.session, &before);
        put_larger(&tr, FAR_OP_INSERT, cases[i].bytes, COUNT);
        assert_true(stats_since(&tr, &before, COUNT, "insert").trips <= cases[i].insert);
        far_session_stats(tr.session, &before);
        put_larger(&tr, FAR_OP_UPDATE, cases[i].bytes, COUNT);
        assert_true(stats_since(&tr, &before, COUNT, "update").trips <= cases[i].update + 0.01);
        figures f = get_larger(&tr, cases[i].bytes, COUNT, "get"),
                hot = get_larger(&tr, cases[i].bytes, COUNT, "get of hot keys");
        assert_true(f.trips >= cases[i].get_trips && f.trips <= cases[i].get_trips + 0.05 &&
                    f.read <= cases[i].get_bytes);
        assert_true(hot.trips <= cases[i].get_trips + 0.05 && hot.read <= cases[i].hot_bytes);
        close_tree(&tr);
    }
}
