/* DART: what scans keep of the tree and read ahead. By counters, and when it is not true any more. The mutation that was
 * tried, and made the test fail, stands in brackets. */
#include "dart_est_rig.h"

#include "base/random.h"
#include "index/dart/ahead.h"
#include "workload/keyset.h"

#define RECORDS 20000ull
#define SCANS   300u


/* ---- Costs ---- */

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
    assert_int_equal(far_keyset_open(keys, 1, &t->keys, NULL, 0), 0);
    assert_int_equal(far_pool_open("local:64M", &options, &t->pool), 0);
    assert_int_equal(far_session_open(t->pool, &t->session), 0);
    assert_int_equal(far_index_create(t->session, "map", "dart", NULL, &t->index), 0);
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


typedef struct costs { /* of a scan, on average */
    double trips, reads, pairs;
} costs;


/* From random keys on: so many pairs; 0: the range of that key alone. */
static costs scan_costs(tree *t, size_t limit) {
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
        assert_true(far_scan(t->session, t->index, key, length, limit ? NULL : to, limit ? 0 : to_length, limit,
                             count_pair, &pairs) >= 0);
    }
    assert_int_equal(far_session_stats_of(t->session, FAR_OP_SCAN, &after), 0);
    far_stats d = far_stats_diff(&after, &before);
    costs c = {(double)d.round_trips / SCANS, (double)d.reads / SCANS, (double)pairs / SCANS};
    print_message("%zu pairs: %.2f round trips, %.1f READs\n", limit, c.trips, c.reads);
    return c;
}


/* About ten levels of mail addresses, which took nine round trips. (Nothing is kept, or not below what was read ahead.) */
static void a_warm_scan_takes_few_round_trips(void **state) {
    (void)state;
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


/* Nothing is read for it that lies before its first key, or behind its bound. (Bounds are not looked at.) */
static void a_range_of_one_key_reads_little_ahead(void **state) {
    (void)state;
    tree t;
    open_tree(&t, "email");
    scan_costs(&t, 100);
    costs c = scan_costs(&t, 0);
    assert_true(c.pairs == 1 && c.reads <= 16);
    close_tree(&t);
}


/* ---- What is not true any more ---- */

static void scans(actor *a, const char *from, size_t limit, const char *keys) {
    a->limit = limit;
    a->to = NULL;
    assert_true(stage_scans(a, from, keys));
}


/* b keeps the node below "abc", which a replaces: so many epochs later its memory is free, and b reads it only before.
 * (Whatever is kept is read.) */
EST_RACE(what_is_read_ahead_is_not_free) {
    bool first = false, last = false;
    for (unsigned epochs = 0; epochs < 12 + DART_EXTRA_EPOCHS; epochs++) {
        stage s;
        set_up(&s, sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4");
        LOAD(&s.a, "az", "abz", SEVEN("abc"));
        settle(&s);
        for (unsigned i = 0; i < 3; i++)
            scans(&s.b, "a", 100, SEVEN_HELD("abc") " abz az");
        dart_node x = node_at(&s.c, "abca", 3);
        busy(&s.a, "a", FAR_OP_INSERT, "abcx", "a");
        pass_epochs(&s, &s.a, epochs);
        last = is_poisoned(&s, x.addr);
        first |= last && epochs == 0;
        scans(&s.b, "a", 100, SEVEN_HELD("abc") " abcx abz az");
        world_assert_watch_is_content(s.world);
        is_sound(&s, &s.b);
        tear_down(&s);
    }
    assert_true(!first && last); /* all moments were met */
}


/* b's scan reads a node and, ahead, the one below it. a replaces that one between the two READs: if the word is read
 * later it names another node; if it is read before, what the old one holds was true then. (Nodes read ahead are taken
 * for the children of the same symbol, whatever address their word names.) */
static void replace_between(const char *sim, bool word_first) {
    stage s;
    set_up(&s, sim, "slot_cache=0,upkeep_batch=1,adjust=0,directory_bits=4");
    LOAD(&s.a, "az", "abz", SEVEN("abc"));
    settle(&s);
    for (unsigned i = 0; i < 3; i++)
        scans(&s.b, "a", 100, SEVEN_HELD("abc") " abz az");
    far_addr above = node_at(&s.c, "abca", 2).addr, below = node_at(&s.c, "abca", 3).addr,
             late = word_first ? below : above;
    start(&s.b, "b", FAR_OP_SCAN, "a", "b");
    far_sim_hold *hold =
        far_sim_hold_effect(s.b.client, (far_sim_match){.kind = FAR_SIM_READ, .from = late, .to = late + 8});
    while (!far_sim_reached(hold))
        assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_HELD);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_HELD); /* the other READ took effect */
    busy(&s.a, "a", FAR_OP_INSERT, "abcx", "a");
    assert_true(node_at(&s.c, "abca", 3).addr != below);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    char text[STAGE_VALUE_MAX];
    assert_string_equal(stage_scanned(&s.b, text),
                        word_first ? SEVEN_HELD("abc") " abz az" : SEVEN_HELD("abc") " abcx abz az");
    is_sound(&s, &s.c);
    tear_down(&s);
}


EST_RACE(a_node_is_replaced_while_it_is_read_ahead) {
    replace_between(sim, false);
    replace_between(sim, true);
}


/* ---- Parts ---- */

enum { CHILDREN = 15 }; /* three lines */


static int keep_and_find_task(far_task *t, void *arg) {
    const far_index *index = arg;
    dart_node node = {16 << 20, DART_N256, 3}, child;
    uint64_t words[CHILDREN];
    far_bytes from = {"aaa\x05", 4}, to = {"aaa\x07", 4};
    int err = far_pin_take(t);
    for (unsigned i = 0; i < CHILDREN; i++)
        words[i] = dart_word(i, i % 3, DART_N4 + i % 4, (17 << 20) + 64 * i);
    dart_ahead_keep(t, index, &node, words, CHILDREN);
    dart_ahead *all = dart_ahead_new(t, index, 1000), *some = dart_ahead_new(t, index, 1000);
    dart_ahead_gather(t, index, all, &node, NULL, NULL);
    dart_ahead_gather(t, index, some, &node, &from, &to);
    assert_int_equal(all->count, CHILDREN);
    assert_int_equal(some->count, 3);
    for (unsigned i = 0; i < CHILDREN; i++) {
        child = (dart_node){(17 << 20) + 64 * i, DART_N4 + i % 4, 4 + i % 3};
        all->sights[i].image = words;
        assert_memory_equal(&all->sights[i].node, &child, sizeof(child));
        assert_ptr_equal(dart_ahead_find(all, &child), words);
        child.depth++;
        assert_null(dart_ahead_find(all, &child));
        child.depth--;
        child.type++;
        assert_null(dart_ahead_find(all, &child));
    }
    child.addr += 64;
    assert_null(dart_ahead_find(all, &child));
    assert_int_equal(some->sights[0].node.addr, (17 << 20) + 64 * 5);
    far_pin_drop(t);
    return err;
}


/* In order, inside the bounds; and damaged memory, whose words tell another type or depth, is not read as if it were
 * larger. (Type and depth are not compared.) */
static void what_is_kept_is_found_in_order(void **state) {
    (void)state;
    stage s;
    set_up(&s, "masked_cas=on", NULL);
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, true, keep_and_find_task, s.a.index), 0);
    tear_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_warm_scan_takes_few_round_trips),
        cmocka_unit_test(a_range_of_one_key_reads_little_ahead),
        cmocka_unit_test(what_is_read_ahead_is_not_free),
        cmocka_unit_test(a_node_is_replaced_while_it_is_read_ahead),
        cmocka_unit_test(what_is_kept_is_found_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
