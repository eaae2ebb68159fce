/* The slot cache of DART: tests that a frequently used key takes one round trip, and races in which the cached slot is
 * out of date. The comment of a test names its guard if the test was seen to fail without this guard. */
#include "dart_est_rig.h"
#include "test.h"

#include "index/dart/cache_slots.h"

#define PLAIN "adjust=0,directory_bits=4"


static far_stats measure_op(actor *a, far_op_kind kind, const char *key, const char *value, int64_t result) {
    far_stats before, after;
    far_session_stats_of(a->session, kind, &before);
    assert_int_equal(run_op(a, kind, key, value), result);
    far_session_stats_of(a->session, kind, &after);
    return far_stats_diff(&after, &before);
}


/* Returns the word of the slot of the key's leaf, as it is in far memory. */
static uint64_t read_slot_word(stage *s, actor *a, const char *key, unsigned depth) {
    dart_node node = node_at(a, key, depth);
    unsigned slots = dart_node_slots(node.type, node.depth, 16);
    for (unsigned i = 0; i < slots; i++) {
        uint64_t word = world_word(s->world, dart_slot_addr(&node, i));
        if (!dart_is_empty(word) && dart_word_symbol(word) == (uint8_t)key[depth])
            return word;
    }
    return 0;
}


/* Proves that with a cached slot, a get is one batch of two READs, and an update or put is one batch of a WRITE and a
 * CAS. */
EST_RACE(a_hot_key_takes_one_round_trip) {
    stage s;
    set_up(&s, sim, PLAIN);
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"), SEVEN_KEYS("cd"));
    /* B's first leaf also allocates a block of memory, which takes round trips */
    assert_int_equal(run_op(&s.b, FAR_OP_UPDATE, "abd", "b"), 0);
    expect_get(&s.b, "abd", "b");
    assert_int_equal(run_op(&s.b, FAR_OP_UPDATE, "abd", "b"), 0);
    expect_get(&s.b, "abc", "abc");
    far_stats get = measure_op(&s.b, FAR_OP_GET, "abc", "", 0);
    assert_int_equal(get.round_trips, 1);
    assert_int_equal(get.reads, 2);
    for (unsigned i = 0; i < 3; i++) {
        far_stats update = measure_op(&s.b, FAR_OP_UPDATE, "abc", "new", 0), put;
        assert_int_equal(update.round_trips, 1);
        assert_int_equal(update.reads, 0);
        assert_int_equal(update.writes, 1);
        assert_int_equal(update.cas, 1);
        put = measure_op(&s.b, FAR_OP_PUT, "abc", "put", 0);
        assert_int_equal(put.round_trips, 1);
        assert_int_equal(measure_op(&s.b, FAR_OP_GET, "abc", "", 0).round_trips, 1);
    }
    expect_get(&s.c, "abc", "put");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Proves that if the cached word has changed, or the CAS of an update is lost, the operation takes no more round trips
 * than for a key that is not cached: one each for the bucket, the leaf and the CAS. */
EST_RACE(a_word_that_changed_costs_no_more_than_none) {
    stage s;
    set_up(&s, sim, PLAIN);
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"), SEVEN_KEYS("cd"));
    expect_get(&s.b, "abc", "abc");
    assert_int_equal(run_op(&s.a, FAR_OP_UPDATE, "abc", "a"), 0);
    assert_int_equal(measure_op(&s.b, FAR_OP_GET, "abc", "", 0).round_trips, 2);
    assert_int_equal(s.b.value_len, 1);
    assert_int_equal(run_op(&s.a, FAR_OP_UPDATE, "abc", "aa"), 0);
    assert_int_equal(measure_op(&s.b, FAR_OP_UPDATE, "abc", "b", 0).round_trips, 3);
    expect_get(&s.a, "abc", "b");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Steps: (1) B has cached the word of "abc". (2) A updates or deletes the key. (3) B's update begins, and its CAS
 * fails. Proves that B's update does not count as superseded by A's write, which was complete before. The guard is
 * write.c, change_leaf_by_cache. */
EST_RACE(an_update_is_not_superseded_by_an_older_write) {
    stage s;
    set_up(&s, sim, PLAIN);
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"));
    expect_get(&s.b, "abc", "abc");
    assert_int_equal(run_op(&s.a, FAR_OP_UPDATE, "abc", "a"), 0);
    assert_int_equal(run_op(&s.b, FAR_OP_UPDATE, "abc", "b"), 0);
    expect_get(&s.c, "abc", "b");
    assert_int_equal(run_op(&s.a, FAR_OP_DELETE, "abc", ""), 0);
    assert_int_equal(run_op(&s.b, FAR_OP_UPDATE, "abc", "c"), FAR_ERR_NOT_FOUND);
    expect_get(&s.b, "abc", NULL);
    assert_int_equal(run_op(&s.b, FAR_OP_PUT, "abc", "d"), 0);
    expect_get(&s.c, "abc", "d");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Steps: (1) B has cached the word of "abc". (2) A deletes "abc". (3) After some epochs A inserts "abcz", whose leaf
 * gets the same address and size, so the slot has the same word. (4) B updates "abc". Proves that B does not replace
 * the leaf of "abcz". Leaves are reused earlier than nodes, so the test fails if the slot cache permits the use of the
 * cached word for as many epochs as the address of the node (cache_slots.c, leaf_not_reused). */
EST_RACE(a_word_that_names_another_keys_leaf_now) {
    unsigned same = 0;
    for (unsigned epochs = 0; epochs < 8 + DART_LEAF_EPOCHS; epochs++) {
        stage s;
        set_up(&s, sim, PLAIN);
        INSERT_KEYS(&s.a, SEVEN_KEYS("ab"));
        expect_get(&s.b, "abc", "abc");
        uint64_t word = read_slot_word(&s, &s.c, "abc", 2);
        assert_int_equal(run_op(&s.a, FAR_OP_DELETE, "abc", ""), 0);
        advance_epochs(&s, &s.a, epochs);
        for (unsigned i = 0; i < 8 && read_slot_word(&s, &s.c, "abc", 2) != word; i++) {
            run_op(&s.a, FAR_OP_DELETE, "abcz", "");
            assert_int_equal(run_op(&s.a, FAR_OP_INSERT, "abcz", "z"), 0);
        }
        same += read_slot_word(&s, &s.c, "abc", 2) == word;
        assert_int_equal(run_op(&s.b, FAR_OP_UPDATE, "abc", "b"), FAR_ERR_NOT_FOUND);
        expect_get(&s.b, "abc", NULL);
        expect_get(&s.c, "abcz", "z");
        expect_sound(&s, &s.c);
        tear_down(&s);
    }
    assert_true(same > 0);
}


/* A replaces the node and updates the key in the new node. Proves that B and C, which have cached the slot in the old
 * node, do not take its frozen word for the current one. The guard is find.c, process_cached_slot. */
EST_RACE(a_frozen_slot_proves_nothing) {
    stage s;
    set_up(&s, sim, PLAIN);
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"));
    expect_get(&s.b, "abc", "abc");
    expect_get(&s.c, "abc", "abc");
    dart_node old = node_at(&s.a, "abc", 2);
    run_with_background(&s.a, "a", FAR_OP_INSERT, "abx", "a");
    assert_int_equal(run_op(&s.a, FAR_OP_UPDATE, "abc", "new"), 0);
    assert_true(node_at(&s.a, "abc", 2).addr != old.addr && !is_poisoned(&s, old.addr));
    expect_get(&s.b, "abc", "new");
    assert_int_equal(run_op(&s.c, FAR_OP_UPDATE, "abc", "newer"), 0);
    expect_get(&s.b, "abc", "newer");
    let_memory_be_reused(&s, &s.a);
    expect_free(&s, old.addr);
    expect_get(&s.b, "abc", "newer");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* A replaces the node, and some epochs pass. Proves that the node's memory is not free while B still reads the cached
 * slot. The guard is dart_tag_is_fresh in cache_slots.c. */
EST_RACE(a_slot_is_not_read_longer_than_its_node_stays) {
    for (unsigned epochs = 0; epochs < 10 + DART_EXTRA_EPOCHS; epochs++) {
        stage s;
        set_up(&s, sim, PLAIN);
        INSERT_KEYS(&s.a, SEVEN_KEYS("ab"));
        expect_get(&s.b, "abc", "abc");
        run_with_background(&s.a, "a", FAR_OP_INSERT, "abx", "a");
        advance_epochs(&s, &s.a, epochs);
        expect_get(&s.b, "abc", "abc");
        world_assert_no_checker_error(s.world);
        tear_down(&s);
    }
}


/* B is about to send the CAS of a cached slot. A executes the given write. Then B continues, its update must return
 * `expected`, and C must read `value`. */
static void while_b_publishes(const char *sim, far_op_kind kind, const char *key, int64_t expected, const char *value) {
    stage s;
    set_up(&s, sim, PLAIN);
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"));
    expect_get(&s.b, "abc", "abc");
    start_until(&s.b, "b", FAR_OP_UPDATE, "abc", "b", "dart:publish", 1);
    assert_int_equal(run_op(&s.a, kind, key, "a"), 0);
    expect_result(&s.b, expected);
    expect_get(&s.c, "abc", value);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Proves that B's update is correct while A updates or deletes the key, splits its slot, or replaces its node. The
 * guard is the CAS of the cached word in write.c, change_leaf_by_cache. */
EST_RACE(an_update_by_a_cached_slot_against_other_writes) {
    while_b_publishes(sim, FAR_OP_UPDATE, "abc", 0, "b");
    while_b_publishes(sim, FAR_OP_INSERT, "abcd", 0, "b"); /* the leaf of "abc" moves below a new node */
    while_b_publishes(sim, FAR_OP_INSERT, "abx", 0, "b");  /* the node of "abc" is replaced */
    while_b_publishes(sim, FAR_OP_DELETE, "abc", FAR_ERR_NOT_FOUND, NULL);
}


typedef struct cache_query {
    far_index *index;
    bool put;
    dart_cached_slot near, away;
} cache_query;


/* Stores and reads the entries of two keys in slots of one node. The leaf of one key is on the node's memory node, the
 * leaf of the other is not. */
static int cache_query_task(far_task *t, void *arg) {
    cache_query *k = arg;
    dart_node node = {4096, DART_N8, 2};
    dart_step near = {.node = node, .slot = dart_slot_addr(&node, 1)};
    dart_step away = {.node = node, .slot = dart_slot_addr(&node, 2)};
    int err = far_pin_take(t);
    if (err < 0)
        return err;
    if (k->put) {
        dart_slot_cache_put(t, k->index, (far_bytes){"abc", 3}, &near, dart_leaf_word('c', 2, 8192));
        dart_slot_cache_put(t, k->index, (far_bytes){"abd", 3}, &away,
                            dart_leaf_word('d', 2, FAR_NODE_BYTES_MAX + 8192));
    }
    assert_true(dart_slot_cache_get(t, k->index, (far_bytes){"abc", 3}, &k->near));
    assert_true(dart_slot_cache_get(t, k->index, (far_bytes){"abd", 3}, &k->away));
    far_pin_drop(t);
    return 0;
}


/* Proves that a leaf on another memory node than its slot is read in the same batch only as long as its memory cannot
 * have been reused; later it is read after the slot. The guard is leaf_with_slot in cache_slots.c. */
EST_RACE(a_leaf_on_another_memory_node_is_read_after_its_slot) {
    stage s;
    set_up(&s, sim, PLAIN);
    cache_query k = {.index = s.b.index, .put = true};
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, true, cache_query_task, &k), 0);
    assert_true(k.near.leaf_not_reused && k.near.leaf_with_slot && k.near.has_key && k.near.is_current);
    assert_true(k.away.leaf_not_reused && k.away.leaf_with_slot && k.away.has_key && k.away.is_current);
    advance_epochs(&s, &s.b, 3 + DART_LEAF_EPOCHS);
    k.put = false;
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, true, cache_query_task, &k), 0);
    assert_true(!k.near.leaf_not_reused && k.near.leaf_with_slot && !k.near.is_current);
    assert_true(!k.away.leaf_not_reused && !k.away.leaf_with_slot);
    tear_down(&s);
}


/* The slot's memory node is full, so B's new leaf is on another memory node. Proves that the CAS is not in the batch of
 * its WRITE. The guard is write.c, change_leaf_by_cache. */
EST_RACE(a_leaf_on_another_memory_node_is_written_before_the_cas) {
    stage s;
    char text[128];
    snprintf(text, sizeof(text), "size=8M,memory_nodes=2,%s", sim);
    set_up(&s, text, PLAIN);
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"));
    expect_get(&s.b, "abc", "abc");
    unsigned node = far_addr_node(node_at(&s.b, "abc", 2).addr);
    fill_memory_node(s.b.session, (node_to_fill){s.b.index, node, DART_TYPE_LEAF, 16});
    expect_get(&s.b, "abc", "abc");
    far_stats update = measure_op(&s.b, FAR_OP_UPDATE, "abc", "b", 0);
    assert_true(update.round_trips >= 2 && update.reads >= 1);
    assert_true(far_addr_node(dart_word_addr(read_slot_word(&s, &s.c, "abc", 2))) != node);
    expect_get(&s.c, "abc", "b");
    tear_down(&s);
}


/* All keys have the same hash. Proves that keys of up to 40 bytes are distinguished by their bytes, longer ones by
 * their leaves. */
EST_RACE(keys_with_one_hash) {
    static const char *const keys[] = {
        "aba",
        "abb",
        "abab",
        "b",
        "0123456789012345678901234567890123456789-a",
        "0123456789012345678901234567890123456789-b",
        "0123456789012345678901234567890123456789-b2",
        "x123456789012345678901234567890123456789-a",
    };
    enum { KEYS = sizeof(keys) / sizeof(keys[0]) };
    stage s;
    char values[KEYS][16];
    set_up(&s, sim, PLAIN ",one_fingerprint=1");
    for (unsigned i = 0; i < KEYS; i++) {
        snprintf(values[i], sizeof(values[i]), "%u", i);
        assert_int_equal(run_op(&s.a, FAR_OP_INSERT, keys[i], values[i]), 0);
    }
    for (unsigned i = 0; i < 400; i++) {
        unsigned at = i * 7 / 3 % KEYS, other = i % KEYS;
        expect_get(&s.b, keys[at], values[at]);
        snprintf(values[other], sizeof(values[other]), "%u", i);
        assert_int_equal(run_op(i % 3 ? &s.b : &s.a, FAR_OP_UPDATE, keys[other], values[other]), 0);
    }
    for (unsigned i = 0; i < KEYS; i++)
        expect_get(&s.c, keys[i], values[i]);
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* Two long keys have the same hash, so B's lookup finds the cached slot of the other key. That slot now contains a
 * TOMB, or names a node that is deeper than the length of B's key, or names a node without the next byte of B's key.
 * Proves that the searched key is found. Fails without one of the three checks of proven_depth in find.c, follow_word.
 */
EST_RACE(a_cached_slot_of_another_key_proves_no_absence) {
    for (unsigned i = 0; i < 3; i++) {
        stage s;
        char other[64] = "", beside[64] = "", mine[64] = "", more[64];
        memset(other, '0', 42);
        other[0] = 'a';
        other[31] = 'Q';
        memcpy(beside, other, sizeof(other));
        beside[31] = 'R';
        memcpy(mine, other, 41);
        mine[0] = 'b';
        mine[32] = 'z';
        set_up(&s, sim, PLAIN ",one_fingerprint=1");
        INSERT_KEYS(&s.a, other, beside, mine);
        expect_get(&s.b, other, other);
        assert_int_equal(node_at(&s.a, other, 31).depth, 31);
        memcpy(more, other, sizeof(other));
        more[i == 1 ? 42 : 32] = 'y';
        assert_int_equal(i ? run_op(&s.a, FAR_OP_INSERT, more, more) : run_op(&s.a, FAR_OP_DELETE, other, ""), 0);
        expect_get(&s.b, mine, mine);
        expect_sound(&s, &s.c);
        tear_down(&s);
    }
}


/* Proves that an old tag never looks new, although tags are epochs modulo 4096. The guard is cache_slots.c,
 * dart_slot_cache_age. */
EST_RACE(old_tags_are_forgotten) {
    stage s;
    set_up(&s, sim, PLAIN);
    INSERT_KEYS(&s.a, SEVEN_KEYS("ab"));
    expect_get(&s.b, "abc", "abc");
    dart_cache *cache = &dart_est_of(s.b.index)->slots;
    dart_slot_cache_age(cache, 5, 6);
    assert_int_equal(measure_op(&s.b, FAR_OP_GET, "abc", "", 0).round_trips, 1);
    dart_slot_cache_age(cache, DART_TAG_PERIOD - 1, DART_TAG_PERIOD);
    assert_true(measure_op(&s.b, FAR_OP_GET, "abc", "", 0).round_trips > 1);
    tear_down(&s);
}
