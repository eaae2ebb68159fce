/* Tests of the benefit of SMART's cache, measured by counters. They cover replaced leaves, large nodes with a small
 * cache, and other data structures that take memory from the budget of the cache. */
#include "base/random.h"
#include "index/smart/cache.h"
#include "smart_rig.h"
#include "test.h"

#define KEYS 20000u


static void number_key(uint64_t n, uint8_t key[8]) {
    uint64_t x = far_splitmix(&n);
    memcpy(key, &x, 8);
}


/* Returns the average number of round trips of a get, over all keys. */
static double get_all_numbers(far_session *session, far_index *index, unsigned count) {
    far_stats before, after;
    uint8_t key[8], value[64];
    size_t length;
    far_session_stats(session, &before);
    for (unsigned n = 0; n < count; n++) {
        number_key(n, key);
        assert_int_equal(far_get(session, index, key, 8, value, sizeof(value), &length), 0);
    }
    far_session_stats(session, &after);
    return (double)(after.round_trips - before.round_trips) / count;
}


static void put_all_numbers(stage_actor *by, uint64_t value) {
    uint8_t key[8];
    for (unsigned n = 0; n < 100; n++) {
        number_key(n, key);
        assert_int_equal(far_put(by->session, by->index, key, 8, &value, 8), 0);
    }
}


/* B replaces leaves that A has in its cache. A's next gets follow the chains to their ends once; after that they take
 * one round trip again. The guard is in follow_cached_word (find_cached.c), which stores the word of the last leaf. */
TEST(the_cache_stores_the_end_of_a_chain) {
    open_stage("update=rcu", NULL);
    put_all_numbers(b, 0);
    get_all_numbers(a->session, a->index, 100);
    for (uint64_t version = 1; version <= 3; version++)
        put_all_numbers(b, version);
    assert_true(get_all_numbers(a->session, a->index, 100) > 1.5);
    assert_true(get_all_numbers(a->session, a->index, 100) == 1.0);
    stage_close(&s);
}


/* Makes the key of a child of node number `node` and returns its length. Child 0 is the key that ends at the node. The
 * factor 37 is odd, so it distributes the children over all bytes. */
static size_t child_key(unsigned node, unsigned child, uint8_t key[3]) {
    key[0] = 'n';
    key[1] = (uint8_t)node;
    key[2] = (uint8_t)(37 * child);
    return child ? 3 : 2;
}


static double get_children(stage_actor *by, unsigned nodes, unsigned step) {
    far_stats before, after;
    uint64_t value, gets = 0;
    size_t length;
    far_session_stats(by->session, &before);
    for (unsigned node = 0; node < nodes; node += step)
        for (unsigned child = 0; child <= node; child++, gets++) {
            uint8_t key[3];
            size_t bytes = child_key(node, child, key);
            assert_int_equal(far_get(by->session, by->index, key, bytes, &value, 8, &length), 0);
            assert_int_equal(value, child);
        }
    far_session_stats(by->session, &after);
    return (double)(after.round_trips - before.round_trips) / (double)gets;
}


/* The tree has nodes of many sizes, and each node also has a key that ends at this node. After one get of every key, a
 * second get of each key finds its leaf through the cache in one round trip (find_entry in cache.c). */
TEST(every_child_is_found_in_nodes_of_all_sizes) {
    enum { NODES = 256, STEP = 5 };
    open_stage(NULL, NULL);
    for (unsigned node = 0; node < NODES; node += STEP)
        for (uint64_t child = 0; child <= node; child++) {
            uint8_t key[3];
            size_t bytes = child_key(node, (unsigned)child, key);
            assert_int_equal(far_put(a->session, a->index, key, bytes, &child, 8), 0);
        }
    get_children(b, NODES, STEP);
    assert_true(get_children(b, NODES, STEP) == 1.0);
    stage_close(&s);
}


static double cold_trips(const char *options, size_t cache_bytes) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_session *session;
    far_index *index;
    uint8_t key[8];
    pool_options.cache_bytes = cache_bytes;
    assert_int_equal(far_pool_open("local:64M", &pool_options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "tree", "smart", options, &index), 0);
    for (uint64_t n = 0; n < KEYS; n++) {
        number_key(n, key);
        assert_int_equal(far_insert(session, index, key, 8, &n, 8), 0);
    }
    get_all_numbers(session, index, KEYS);
    double trips = get_all_numbers(session, index, KEYS);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    return trips;
}


/* When a node is evicted from the cache, its parent keeps a slot word with a size hint. Proves that with layout=paper a
 * small cache therefore still saves round trips (smart_local_evict in cache.c). */
TEST(a_small_cache_is_better_than_none_with_large_nodes) {
    double small = cold_trips("layout=paper", 8192), none = cold_trips("layout=paper,cache=off", 8192);
    print_message("layout=paper: %.2f round trips with 8 KiB of cache, %.2f without\n", small, none);
    assert_true(small < none);
}


static size_t cache_bytes(stage_actor *by) {
    far_usage usage;
    assert_int_equal(far_index_usage(by->session, by->index, &usage), 0);
    return usage.cache_bytes;
}


/* Nodes left with one child wait in the merge queue, with long keys. Their memory counts against the budget of the
 * cache, and is returned after the merges (queue_merge in remove.c). */
TEST(queued_merges_count_against_the_budget) {
    enum { NODES = 40, LENGTH = 200 };
    char key[LENGTH + 1];
    open_stage(NULL, NULL);
    for (unsigned i = 0; i < 2 * NODES; i++) {
        memset(key, 'x', LENGTH);
        snprintf(key, 16, "n%02u", i / 2);
        key[3] = 'x';
        snprintf(key + LENGTH - 1, 2, "%u", i % 2);
        stage_write(a, key, V1);
    }
    size_t before = cache_bytes(a);
    for (unsigned i = 0; i < NODES; i++) {
        memset(key, 'x', LENGTH);
        snprintf(key, 16, "n%02u", i);
        key[3] = 'x';
        snprintf(key + LENGTH - 1, 2, "1");
        stage_delete(a, key);
    }
    size_t waiting = cache_bytes(a);
    assert_true(waiting >= before + NODES * (LENGTH - 40u));
    for (unsigned i = 0; i < 4 * NODES; i++)
        stage_poll(&s, 1);
    far_sim_sleep(s.world, 100000000);
    for (unsigned i = 0; i < 4 * NODES; i++)
        stage_poll(&s, 1);
    assert_true(cache_bytes(a) <= before);
    stage_close(&s);
}


static int take_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)value_len;
    return 0;
}


/* B has only every tenth leaf in its cache, so reading ahead (READing in advance the objects that the cache names)
 * saves a scan few round trips. After a few scans B must stop reading ahead (smart_readahead_evaluate in
 * scan_readahead.c). */
TEST(scans_stop_reading_ahead_with_a_sparse_cache) {
    enum { ALL = 3000, SCANS = 300, PAIRS = 20 };
    uint8_t key[8], value[8] = {0};
    size_t length;
    far_stats before, after;
    open_stage(NULL, NULL);
    for (unsigned n = 0; n < ALL; n++) {
        number_key(n, key);
        assert_int_equal(far_put(a->session, a->index, key, 8, value, 8), 0);
    }
    for (unsigned n = 0; n < ALL; n += 10) {
        number_key(n, key);
        assert_int_equal(far_get(b->session, b->index, key, 8, value, 8, &length), 0);
    }
    far_session_stats(b->session, &before);
    for (unsigned i = 0; i < SCANS; i++) {
        number_key(i * 7, key);
        assert_true(far_scan(b->session, b->index, key, 8, NULL, 0, PAIRS, take_pair, NULL) >= 0);
    }
    far_session_stats(b->session, &after);
    double reads = (double)(after.reads - before.reads) / SCANS;
    print_message("%.1f READs of a scan of %d\n", reads, PAIRS);
    assert_true(reads <= 30); /* If every scan read ahead, there would be 31.6 READs per scan. */
    stage_close(&s);
}


/* Two bits of a local node's head count its uses. The counter stays at three, and no other bit changes. */
TEST(uses_are_counted_up_to_three) {
    smart_local node;
    uint64_t unused = smart_local_make_head(0x12340, 7, SMART_L512);
    smart_local_store_head(&node, unused);
    for (unsigned uses = 0; uses < 6; uses++) {
        assert_true(smart_local_load_head(&node) == unused + (uses < 3 ? uses : 3) * SMART_CLOCK_ONE);
        smart_local_touch(&node);
    }
}
