/* Scans of DART that read ahead with the scan cache (cache_scan.c): their costs, and their correctness when the cached
 * words are out of date. The comment of each test names the guard without which the test was seen to fail. */
#include "dart_est_rig.h"
#include "test.h"

#include "base/random.h"
#include "index/dart/cache_scan.h"
#include "workload/keyset.h"

#define RECORDS 20000ull
#define SCANS   300u


/* an open index with keys */

typedef struct tree {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_keyset *keys;
} tree;


static void open_tree(tree *t, const char *keys) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    uint8_t key[FAR_KEY_MAX];
    options.rdwc = -1;
    options.no_thread = 1; /* without background work, the counters are the same in every run */
    assert_int_equal(far_keyset_open(keys, 1, &t->keys, NULL, 0), 0);
    assert_int_equal(far_pool_open("local:64M", &options, &t->pool), 0);
    assert_int_equal(far_session_open(t->pool, &t->session), 0);
    assert_int_equal(far_index_create(t->session, "map", "dart", "one_by_one=0", &t->index), 0);
    for (uint64_t i = 0; i < RECORDS; i++)
        assert_int_equal(far_insert(t->session, t->index, key, far_keyset_key(t->keys, i, key), &i, sizeof(i)), 0);
}


static void close_tree(tree *t) {
    far_index_close(t->index);
    far_session_close(t->session);
    far_pool_close(t->pool);
    far_keyset_close(t->keys);
}


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(unsigned *)ctx;
    return 0;
}


typedef struct costs { /* averages per scan */
    double trips, reads, pairs;
} costs;


/* Runs scans that start at random keys, and returns their average costs. `limit` is the number of pairs; if it is 0,
 * each scan has the range of one key. A backward scan has a limit. */
static costs scan_costs_in(tree *t, size_t limit, bool backward) {
    uint8_t key[FAR_KEY_MAX], to[FAR_KEY_MAX + 1];
    far_random random;
    far_stats before, after;
    unsigned pairs = 0;
    far_random_seed(&random, 1);
    assert_int_equal(far_session_stats_of(t->session, FAR_OP_SCAN, &before), 0);
    for (unsigned i = 0; i < SCANS; i++) {
        size_t length = far_keyset_key(t->keys, far_random_below(&random, RECORDS), key), to_length = length + 1;
        memcpy(to, key, length);
        to[length] = 0;
        int64_t got = backward ? far_scan_reverse(t->session, t->index, NULL, 0, key, length, limit, count_pair, &pairs)
                               : far_scan(t->session, t->index, key, length, limit ? NULL : to, limit ? 0 : to_length,
                                          limit, count_pair, &pairs);
        assert_true(got >= 0);
    }
    assert_int_equal(far_session_stats_of(t->session, FAR_OP_SCAN, &after), 0);
    far_stats d = far_stats_diff(&after, &before);
    costs c = {(double)d.round_trips / SCANS, (double)d.reads / SCANS, (double)pairs / SCANS};
    print_message("%zu pairs: %.2f round trips, %.1f READs\n", limit, c.trips, c.reads);
    return c;
}


static costs scan_costs(tree *t, size_t limit) {
    return scan_costs_in(t, limit, false);
}


/* Proves that backward scans take at most 1.2 times the round trips of forward scans, with a warm scan cache and without
 * one. Fails if a backward scan collects the children of a node in ascending order (cache_scan.c, collect_below). */
TEST(a_backward_scan_takes_as_many_round_trips) {
    static const char *const kinds[] = {"u64", "email"};
    for (unsigned i = 0; i < 2; i++) {
        tree t;
        open_tree(&t, kinds[i]);
        costs cold_back = scan_costs_in(&t, 100, true), warm_back = scan_costs_in(&t, 100, true);
        close_tree(&t);
        open_tree(&t, kinds[i]);
        costs cold = scan_costs_in(&t, 100, false), warm = scan_costs_in(&t, 100, false);
        close_tree(&t);
        assert_true(cold_back.trips <= 1.2 * cold.trips && warm_back.trips <= 1.2 * warm.trips);
        assert_true(warm_back.reads <= 1.2 * warm.reads);
    }
}


/* Proves that repeated scans of a tree of about ten levels take at most 3 round trips, instead of nine. Fails if
 * nothing is cached, or if read-ahead does not include the levels below a node that is itself read ahead. */
TEST(a_warm_scan_takes_few_round_trips) {
    static const char *const kinds[] = {"email", "u64"};
    for (unsigned i = 0; i < 2; i++) {
        tree t;
        open_tree(&t, kinds[i]);
        costs cold = scan_costs(&t, 100), warm = scan_costs(&t, 100);
        assert_true(cold.trips <= 8 && warm.trips <= 3);
        assert_true(warm.pairs > 90 && warm.reads <= 230);
        close_tree(&t);
    }
}


/* Proves that a scan does not read ahead nodes that are before its first key or after its bound. Fails if cache_scan.c,
 * collect_below ignores the bounds. */
TEST(a_range_of_one_key_reads_little_ahead) {
    tree t;
    open_tree(&t, "email");
    scan_costs(&t, 100);
    costs c = scan_costs(&t, 0);
    assert_true(c.pairs == 1 && c.reads <= 16);
    close_tree(&t);
}


/* Asserts that a scan of at most `limit` pairs returns exactly these keys. */
static void expect_scan(actor *a, const char *from, size_t limit, const char *keys) {
    a->limit = limit;
    a->to = NULL;
    assert_true(stage_scans(a, from, keys));
}


/* B's scan cache names the node below "abc". A replaces this node, and some epochs pass. Proves that B reads the node
 * only while its memory is not free. Fails if cache_scan.c, line_is_fresh permits every entry. */
EST_RACE(nodes_that_are_read_ahead_are_not_free) {
    bool first = false, last = false;
    for (unsigned epochs = 0; epochs < 12 + DART_EXTRA_EPOCHS; epochs++) {
        stage s;
        set_up(&s, sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4");
        INSERT_KEYS(&s.a, "az", "abz", SEVEN_KEYS("abc"));
        finish_background(&s);
        for (unsigned i = 0; i < 3; i++)
            expect_scan(&s.b, "a", 100, SEVEN_TEXT("abc") " abz az");
        dart_node x = node_at(&s.c, "abca", 3);
        run_with_background(&s.a, "a", FAR_OP_INSERT, "abcx", "a");
        advance_epochs(&s, &s.a, epochs);
        last = is_poisoned(&s, x.addr);
        first |= last && epochs == 0;
        expect_scan(&s.b, "a", 100, SEVEN_TEXT("abc") " abcx abz az");
        world_assert_no_checker_error(s.world);
        expect_sound(&s, &s.b);
        tear_down(&s);
    }
    assert_true(!first && last); /* the memory was not free at the beginning and was free at the end */
}


/* B's scan reads a node X and, in the same batch, reads ahead the node Y below X. A replaces Y between the two READs.
 * If `word_first` is set, X is read first. Then the scan may use the old Y, because the word in X still named Y at that
 * time. Otherwise the word in X names the new node, and the scan must not use the old Y. */
static void replace_between(const char *sim, bool word_first) {
    stage s;
    set_up(&s, sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4");
    INSERT_KEYS(&s.a, "az", "abz", SEVEN_KEYS("abc"));
    finish_background(&s);
    for (unsigned i = 0; i < 3; i++)
        expect_scan(&s.b, "a", 100, SEVEN_TEXT("abc") " abz az");
    far_addr above = node_at(&s.c, "abca", 2).addr, below = node_at(&s.c, "abca", 3).addr,
             late = word_first ? below : above;
    start(&s.b, "b", FAR_OP_SCAN, "a", "b");
    far_sim_hold *hold =
        far_sim_hold_effect(s.b.client, (far_sim_match){.kind = FAR_SIM_READ, .from = late, .to = late + 8});
    while (!far_sim_reached(hold))
        assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_HELD);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_HELD); /* the READ that is not held has taken effect */
    run_with_background(&s.a, "a", FAR_OP_INSERT, "abcx", "a");
    assert_true(node_at(&s.c, "abca", 3).addr != below);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    char text[STAGE_VALUE_MAX];
    assert_string_equal(stage_scanned(&s.b, text),
                        word_first ? SEVEN_TEXT("abc") " abz az" : SEVEN_TEXT("abc") " abcx abz az");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Proves that the scan returns a correct result, whether node X or the node Y below it is read first. Fails if the
 * traversal uses a node that was read ahead for the child of a symbol without comparing the node's address with the
 * slot of X (cache_scan.c, dart_read_ahead_image). */
EST_RACE(a_node_is_replaced_while_it_is_read_ahead) {
    replace_between(sim, false);
    replace_between(sim, true);
}


/* ---- The functions of the cache ---- */

enum { CHILDREN = 15 }; /* they fill three lines */


static int keep_and_find_task(far_task *t, void *arg) {
    const far_index *index = arg;
    dart_node node = {16 << 20, DART_N256, 3}, child;
    uint64_t words[CHILDREN];
    far_bytes from = {"aaa\x05", 4}, to = {"aaa\x07", 4};
    int err = far_pin_take(t);
    for (unsigned i = 0; i < CHILDREN; i++)
        words[i] = dart_word(i, i % 3, DART_N4 + i % 4, (17 << 20) + 64 * i);
    dart_scan_cache_put(t, index, &node, words, CHILDREN);
    dart_read_ahead *all = dart_read_ahead_new(t, index, 1000, false),
                    *some = dart_read_ahead_new(t, index, 1000, false),
                    *back = dart_read_ahead_new(t, index, 1000, true),
                    *some_back = dart_read_ahead_new(t, index, 1000, true);
    dart_read_ahead_collect(t, index, all, &node, NULL, NULL);
    dart_read_ahead_collect(t, index, some, &node, &from, &to);
    dart_read_ahead_collect(t, index, back, &node, NULL, NULL);
    dart_read_ahead_collect(t, index, some_back, &node, &from, &to);
    assert_int_equal(back->count, CHILDREN);
    for (unsigned i = 0; i < CHILDREN; i++)
        assert_memory_equal(&back->nodes[i].node, &all->nodes[CHILDREN - 1 - i].node, sizeof(dart_node));
    assert_int_equal(some_back->count, 3);
    assert_memory_equal(&some_back->nodes[0].node, &some->nodes[2].node, sizeof(dart_node));
    assert_true(all->last_rank == dart_symbol_rank(CHILDREN - 1) && back->last_rank == dart_symbol_rank(0));
    assert_int_equal(all->count, CHILDREN);
    assert_int_equal(some->count, 3);
    for (unsigned i = 0; i < CHILDREN; i++) {
        child = (dart_node){(17 << 20) + 64 * i, DART_N4 + i % 4, 4 + i % 3};
        all->nodes[i].image = words;
        assert_memory_equal(&all->nodes[i].node, &child, sizeof(child));
        assert_ptr_equal(dart_read_ahead_image(all, &child), words);
        child.depth++;
        assert_null(dart_read_ahead_image(all, &child));
        child.depth--;
        child.type++;
        assert_null(dart_read_ahead_image(all, &child));
    }
    child.addr += 64;
    assert_null(dart_read_ahead_image(all, &child));
    assert_int_equal(some->nodes[0].node.addr, (17 << 20) + 64 * 5);
    far_pin_drop(t);
    return err;
}


/* Proves that the cache returns the children in key order and within the bounds. In damaged memory, a word of another
 * type or depth does not get the image of a smaller node. Fails if cache_scan.c, dart_read_ahead_image does not compare
 * type and depth. */
TEST(cached_children_are_returned_in_key_order) {
    stage s;
    set_up(&s, "masked_cas=on", NULL);
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, true, keep_and_find_task, s.a.index), 0);
    tear_down(&s);
}
