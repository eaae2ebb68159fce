/* Scans of SMART in descending key order, and scans that READ one node at a time (single_steps=on), which READ DIR
 * nodes in parts. The tests compare every scan with a sorted list of keys, and drive the interleavings of
 * docs/races/smart.md. */
#include "base/random.h"
#include "smart_rig.h"
#include "test.h"
#include "verify/torture.h"

#include <stdlib.h>

#define KEYS_MAX 600


/* Every range of a fixed set of keys. */

typedef struct text_keys {
    char key[KEYS_MAX][16];
    unsigned count;
} text_keys;


static int compare_keys(const void *x, const void *y) {
    return strcmp(x, y);
}


static void add_key(text_keys *keys, const char *key) {
    for (unsigned i = 0; i < keys->count; i++)
        if (strcmp(keys->key[i], key) == 0)
            return;
    snprintf(keys->key[keys->count++], sizeof(keys->key[0]), "%s", key);
}


/* Makes keys of which many are prefixes of others, keys with a long common prefix, and more keys below one prefix than
 * a list has slots. */
static void make_keys(text_keys *keys) {
    far_random random;
    char key[16];
    far_random_seed(&random, 7);
    keys->count = 0;
    for (unsigned i = 0; i < 150; i++) {
        unsigned length = 1 + (unsigned)far_random_below(&random, 5);
        for (unsigned at = 0; at < length; at++)
            key[at] = (char)('m' + far_random_below(&random, 3));
        key[length] = 0;
        add_key(keys, key);
    }
    for (char last = 'A'; last <= 'D'; last++) {
        snprintf(key, sizeof(key), "nnlonglonglo%c", last);
        add_key(keys, key);
    }
    for (unsigned i = 0; i < 90; i++) {
        snprintf(key, sizeof(key), "d%c%s", (char)('!' + i), i % 3 ? "" : "xy");
        add_key(keys, key);
    }
    add_key(keys, "d");
    qsort(keys->key, keys->count, sizeof(keys->key[0]), compare_keys);
}


typedef struct expected {
    const text_keys *keys;
    unsigned next,
        left; /* position of the key that the scan must return next; number of keys that are still expected */
    bool backward;
} expected;


static int expect_key(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    expected *e = ctx;
    (void)value, (void)value_len;
    assert_true(e->left > 0);
    const char *want = e->keys->key[e->next];
    if (key_len != strlen(want) || memcmp(key, want, key_len) != 0)
        fail_msg("the scan returned %.*s, not %s", (int)key_len, (const char *)key, want);
    e->next += e->backward ? -1u : 1u;
    e->left--;
    return 0;
}


static void assert_range(stage_actor *by, const text_keys *keys, const char *from, const char *to, size_t limit,
                         bool backward) {
    expected e = {.keys = keys, .backward = backward};
    unsigned first = 0, end = keys->count;
    while (from && first < keys->count && strcmp(keys->key[first], from) < 0)
        first++;
    while (to && end > first && strcmp(keys->key[end - 1], to) >= 0)
        end--;
    e.left = end - first;
    if (limit && limit < e.left)
        e.left = (unsigned)limit;
    e.next = backward ? end - 1 : first;
    unsigned count = e.left;
    size_t from_len = from ? strlen(from) : 0, to_len = to ? strlen(to) : 0;
    int64_t pairs = backward
                        ? far_scan_reverse(by->session, by->index, from, from_len, to, to_len, limit, expect_key, &e)
                        : far_scan(by->session, by->index, from, from_len, to, to_len, limit, expect_key, &e);
    assert_int_equal(pairs, count);
}


static void assert_ranges(stage_actor *by, const text_keys *keys) {
    static const char *const bounds[] = {NULL, "d",  "d!",   "d!x", "dZ", "dm",          "dzzz",          "m",
                                         "mm", "mn", "n",    "nm",  "nn", "nnlonglongl", "nnlonglongloB", "nnlonglz",
                                         "no", "oo", "oooo", "z"};
    enum { BOUNDS = sizeof(bounds) / sizeof(bounds[0]) };
    static const size_t limits[] = {0, 1, 3, 40};
    for (unsigned i = 0; i < BOUNDS; i++)
        for (unsigned j = 0; j < BOUNDS; j++)
            for (unsigned l = 0; l < 4; l++) {
                assert_range(by, keys, bounds[i], bounds[j], limits[l], false);
                assert_range(by, keys, bounds[i], bounds[j], limits[l], true);
            }
}


/* Scans in both directions return exactly the keys of each range, in order. Keys that are prefixes of others come first
 * in ascending order and last in descending order. The root has a stripe on each memory node. */
TEST(scans_in_both_directions_return_their_range) {
    static const char *const options[] = {
        "", "single_steps=on", "cache=off", "scan_batch=2", "layout=paper", "single_steps=on,layout=paper"};
    text_keys keys;
    make_keys(&keys);
    for (unsigned i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        open_stage(options[i], "memory_nodes=3");
        for (unsigned k = 0; k < keys.count; k++) /* 7 has no factor in common with the number of keys */
            stage_write(a, keys.key[k * 7 % keys.count], V1);
        assert_int_not_equal(keys.count % 7, 0);
        assert_ranges(b, &keys); /* b's cache is empty */
        assert_ranges(a, &keys);
        stage_close(&s);
    }
}


/* Interleavings. */

static int keep_key(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    stage_actor *by = ctx;
    (void)value, (void)value_len;
    memcpy(by->keys[by->pairs], key, key_len);
    by->keys[by->pairs++][key_len] = 0;
    return 0;
}


/* Scans from `key` to `to`, or from the first to the last key, in descending order. */
static void run_backward_scan(void *arg) {
    stage_actor *by = arg;
    by->pairs = 0;
    by->result = (int)far_scan_reverse(by->session, by->index, by->key_len ? by->key : NULL, by->key_len, by->to,
                                       by->to ? strlen(by->to) : 0, by->limit, keep_key, by);
    by->ended = true;
}


static void start_scan(stage_actor *by, const char *from, bool backward) {
    if (!backward) {
        stage_start(by, FAR_OP_SCAN, from, NULL);
        return;
    }
    stage_set(by, FAR_OP_SCAN, from, NULL);
    stage_start_main(by, "scan", run_backward_scan);
}


static bool scans_backward(stage_actor *by, const char *from, const char *to, const char *keys) {
    char text[STAGE_VALUE_MAX];
    stage_set(by, FAR_OP_SCAN, from, NULL);
    by->to = to;
    run_backward_scan(by);
    by->to = NULL;
    return by->result >= 0 && strcmp(stage_scanned(by, text), keys) == 0;
}


/* B scans backward, and returns some pairs before it meets a frozen node, whose replacement A has begun and not
 * completed. B completes the replacement and continues before the last pair. Fails if continue_after_last_pair (scan.c)
 * keeps the upper bound: the first pairs are returned twice then. */
TEST(a_backward_scan_continues_after_a_frozen_node) {
    static const char *const steps[] = {EAGER ",single_steps=on,scan_batch=1", EAGER ",scan_batch=1"};
    for (unsigned i = 0; i < 2; i++) {
        open_stage(steps[i], NULL);
        put_all(a, "naa nxaa nxba nza nzb");
        run_until_point(a, "smart:frozen", FAR_OP_DELETE, "nxaa", NULL);
        assert_true(scans_backward(b, "n", NULL, "nzb nza nxba naa"));
        stage_finish(a);
        assert_true(scans_backward(c, "nb", "nzb", "nza nxba"));
        stage_close(&s);
    }
}


#define MANY 80 /* number of children, which is more than a list has slots */


static void put_many(void) {
    char key[8];
    for (unsigned i = 0; i < MANY; i++) {
        snprintf(key, sizeof(key), "n%ca", (char)('(' + i));
        stage_write(a, key, V1);
    }
}


/* Asserts that the scan returned all keys of put_many except `gone`, and the key `added` if it is not NULL, once and in
 * order. */
static void assert_scanned(const stage_actor *by, bool backward, const char *gone, const char *added) {
    unsigned found = 0;
    for (unsigned i = 0; i < by->pairs; i++) {
        if (i > 0)
            assert_true(backward ? strcmp(by->keys[i - 1], by->keys[i]) > 0 : strcmp(by->keys[i - 1], by->keys[i]) < 0);
        assert_true(!gone || strcmp(by->keys[i], gone) != 0);
        found += added && strcmp(by->keys[i], added) == 0;
    }
    assert_int_equal(by->pairs, MANY - (gone != NULL) + (added != NULL));
    assert_int_equal(found, added != NULL);
}


/* B has READ a part of the slots of a DIR node. Before B READs the remainder, A inserts a key next to the first key,
 * which B has passed, and one next to the last key, and deletes a key of the remainder. B returns the second new key,
 * not the first one, and each other key once. Fails if push_remainder (scan_nodes.c) leaves slots that B has used in
 * the remainder: B then returns their keys a second time, and the first new key behind its place. */
TEST(a_slot_is_used_once_although_a_node_is_read_in_parts) {
    for (unsigned backward = 0; backward < 2; backward++) {
        open_stage("single_steps=on", NULL);
        put_many();
        b->limit = MANY + 5; /* B READs 46 slots at a time */
        start_scan(b, "n", backward);
        /* In descending order, the first two parts have no children. */
        stage_stop_at(b, (far_sim_match){.point = "smart:remainder", .nth = backward ? 3 : 1});
        stage_write(c, backward ? "nwz" : "n(0", V2);
        stage_write(c, backward ? "n(0" : "nwz", V2);
        stage_delete(c, backward ? "n*a" : "nua");
        stage_finish(b);
        assert_true(b->result >= 0);
        assert_scanned(b, backward, backward ? "n*a" : "nua", backward ? "n(0" : "nwz");
        b->limit = 0;
        stage_close(&s);
    }
}


/* The header of a node does not contain a long prefix as a whole, so a scan takes the prefix from the key of a leaf
 * below the node. The bounds of these scans are keys of which the node's prefix is no prefix. Fails if find_side
 * (scan_nodes.c) is not called for the upper bound: a scan then returns keys that follow it. */
TEST(a_long_prefix_is_compared_with_both_bounds) {
    static const char *const options[] = {"single_steps=on", "single_steps=off"};
    for (unsigned i = 0; i < 2; i++) {
        open_stage(options[i], NULL);
        put_all(a, "na npppppppppppaX npppppppppppaY npppppppppppbX nz");
        assert_true(scans_backward(b, "n", "npppQ", "na"));
        assert_true(scans_backward(b, "n", "npppz", "npppppppppppbX npppppppppppaY npppppppppppaX na"));
        assert_true(scans_backward(b, "npppQ", "nz", "npppppppppppbX npppppppppppaY npppppppppppaX"));
        assert_true(scans_backward(b, "npppz", NULL, "nz"));
        b->to = "npppQ";
        assert_true(stage_scans(b, "n", "na"));
        b->to = NULL;
        stage_close(&s);
    }
}


#define LONG_PREFIX "naaaaaaaaaaaaaaaa"

/* Makes a node whose header does not contain its long prefix as a whole. Its only child is a node without children,
 * which A is about to unlink. Returns the address of the child. */
static far_addr make_empty_subtree(const char *options) {
    uint32_t bytes = 128; /* of a smallest list */
    open_stage(options, NULL);
    put_all(a, "n0 nz " LONG_PREFIX "x " LONG_PREFIX "b1");
    far_sim_on_verb(s.world, note_written, &bytes);
    stage_write(a, LONG_PREFIX "b2", V1);
    far_sim_on_verb(s.world, NULL, NULL);
    stage_delete(a, LONG_PREFIX "x");
    stage_delete(a, LONG_PREFIX "b1");
    run_until_point(a, "smart:merge", FAR_OP_DELETE, LONG_PREFIX "b2", NULL);
    return written;
}


/* B's scan finds no leaf below a node whose prefix it must know, so it cannot compare the node with a bound. Before B
 * READs the node's child, C inserts a key there, which is outside of the range. B does not return it. Fails if
 * find_children_in_range (scan_nodes.c) takes the children of the node for keys inside the range. */
TEST(a_subtree_without_leaves_that_gets_a_key_outside_of_the_range) {
    static const char *const options[] = {"single_steps=on", "single_steps=off", "single_steps=off,cache=off"};
    for (unsigned i = 0; i < 6; i++) {
        bool backward = i % 2;
        char keys[STAGE_VALUE_MAX];
        for (unsigned high = 0; high < 2; high++) {
            far_addr child = make_empty_subtree(options[i / 2]);
            b->to = high ? "na" : "nzz";
            start_scan(b, high ? "n0" : "nab", backward);
            /* B READs the child while it searches for a leaf. A second READ would take its children for the scan. */
            far_sim_stop_before(b->client,
                                (far_sim_match){.kind = FAR_SIM_READ, .nth = 2, .from = child, .to = child + 128});
            far_sim_run_client(b->client);
            stage_write(c, LONG_PREFIX "b3", V2);
            if (!b->ended)
                stage_finish(b);
            assert_string_equal(stage_scanned(b, keys), high ? "n0" : "nz");
            b->to = NULL;
            stage_finish(a);
            stage_close(&s);
        }
    }
}


/* A has deleted the last key, and its slot still names the DEAD leaf. B's scan in descending order leaves it out, and
 * returns the key after A has inserted it again. */
TEST(a_backward_scan_leaves_out_deleted_keys) {
    open_stage(EAGER, NULL);
    put_all(a, "naa nba nca");
    run_until_point(a, "smart:removed", FAR_OP_DELETE, "nca", NULL);
    assert_true(scans_backward(b, "n", NULL, "nba naa"));
    stage_finish(a);
    stage_write(a, "nca", V2);
    assert_true(scans_backward(b, "n", NULL, "nca nba naa"));
    stage_close(&s);
}


/* Random clients with failures scan in both directions, in single steps, an index with DIR nodes. Every history passes
 * the history checker. Torture with its usual options on the simulator takes no single steps, because the simulator has
 * no mapped memory. */
TEST(random_scans_in_single_steps_are_linearizable) {
    far_torture torture;
    far_torture_init(&torture);
    torture.kind = "smart";
    torture.keys = "seq"; /* the last byte of the keys takes all values, so their node is a DIR node */
    torture.key_space = 400;
    torture.ops = 800;
    torture.options = "single_steps=on,merge=eager";
    for (uint64_t seed = 1; seed <= 8; seed++) {
        far_torture_result result = {0};
        assert_int_equal(far_torture_run(&torture, seed, &result, stderr), 0);
        assert_int_equal(result.violations + result.problems + result.gave_up, 0);
    }
}
