/* Backward scans of DART, and scans in both directions whose nodes are replaced while children of these nodes remain to
 * be visited. The comment of each test names the guard without which the test was seen to fail. */
#include "dart_est_rig.h"
#include "test.h"

#include <stdlib.h>


static void expect_backward(actor *a, const char *from, const char *to, size_t limit, const char *keys) {
    a->backward = true;
    a->limit = limit;
    assert_true(run_op(a, FAR_OP_SCAN, from, to) >= 0);
    expect_scanned(a, keys);
    a->backward = false;
    a->limit = 0;
}


/* A backward scan starts at an express node whose subtree has no key of the range. Proves that the scan continues
 * directly before the node's prefix. Fails if traversal_start.c, cut_range_at_prefix continues after the prefix. */
EST_RACE(scan_continues_before_an_exhausted_node) {
    stage s;
    set_up(&s, sim, "upkeep_batch=1,adjust=0,directory_bits=0");
    INSERT_KEYS(&s.a, "az", "abcd5", "abcd6", "abcd7", "abcc", "abca");
    finish_background(&s);
    for (unsigned i = 0; i < 32; i++)
        expect_backward(&s.b, "a", "abcd1", 1, "abcc");
    expect_backward(&s.b, "a", "abcd6", 0, "abcd5 abcc abca");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* A range ends below the express node Y. (1) B links a node above Y, and has not updated the skip table. (2) C scans the
 * range backward; a part is no longer below Y. Proves that C returns all keys. Fails if a scan ends with the subtree of
 * the node at which it started (traversal.c, continue_traversal). */
RACE(range_before_a_split_above) {
    stage s;
    char no_cache[96];
    snprintf(no_cache, sizeof(no_cache), "%s,scan_cache=0,upkeep_batch=1,adjust=0,directory_bits=0", options);
    set_up(&s, sim, no_cache);
    INSERT_KEYS(&s.a, "ppppxa", "ppppxb", "r");
    far_sim_sleep(s.world, 5000000);
    start_until(&s.b, "b", FAR_OP_INSERT, "pppa", "b", "dart:split", 1);
    for (unsigned i = 0; i < 8; i++) { /* often enough that the lookup tries every choice of prefix lengths */
        expect_backward(&s.c, "ppp", "ppppxz", 0, "ppppxb ppppxa pppa");
        expect_backward(&s.c, "ppp", "ppppxa", 1, "pppa");
    }
    expect_result(&s.b, 0);
    expect_backward(&s.c, "ppp", "q", 0, "ppppxb ppppxa pppa");
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* Proves that a key follows its extensions in descending order, at every position of the bounds. */
RACE(a_key_follows_its_extensions) {
    stage s;
    set_up(&s, sim, options);
    INSERT_KEYS(&s.a, "a", "ab", "abc", "abcd", "b");
    expect_backward(&s.a, "a", "z", 0, "b abcd abc ab a");
    expect_backward(&s.a, "ab", "abcd", 0, "abc ab");
    expect_backward(&s.a, "ab", "abc", 0, "ab");
    expect_backward(&s.a, "abc", "abcde", 0, "abcd abc");
    expect_backward(&s.a, "aa", "ab", 0, "");
    tear_down(&s);
}


/* Asserts that a scan returned its keys in strict order, and all of the wanted keys. */
static void expect_ordered(const actor *a, const char *const wanted[], size_t count, bool backward) {
    for (unsigned i = 1; i < a->pairs; i++) {
        int order = strcmp(a->keys[i - 1], a->keys[i]);
        assert_true(backward ? order > 0 : order < 0);
    }
    for (size_t w = 0; w < count; w++) {
        bool found = false;
        for (unsigned i = 0; i < a->pairs; i++)
            found |= strcmp(a->keys[i], wanted[w]) == 0;
        assert_true(found);
    }
}


/* A's scan stops before its nth READ. Meanwhile B replaces the node X, some of whose children A may have taken, splits
 * slots of X, and deletes keys. Returns false if A made fewer READs. */
static bool replace_before_nth_read(const char *sim, const char *options, unsigned nth, bool backward) {
    static const char *const stay[] = {"pa", "pc", "pd", "pe", "pf", "ph", "pi", "pj", "pk", "pl", "pn", "q"};
    stage s;
    set_up(&s, sim, options);
    insert_keys(&s.a, stay, sizeof(stay) / sizeof(stay[0]));
    INSERT_KEYS(&s.a, "pb", "pg", "pm");
    start(&s.a, "a", FAR_OP_SCAN, "a", "z");
    s.a.backward = backward;
    s.a.limit = 0;
    far_sim_stop_before(s.a.client, (far_sim_match){.kind = FAR_SIM_READ, .nth = nth, .label = "scan"});
    bool stopped = far_sim_run_client(s.a.client) != FAR_SIM_ENDED;
    if (stopped) {
        INSERT_KEYS(&s.b, "po", "pp", "pq", "pdx", "pjx");
        assert_int_equal(run_op(&s.b, FAR_OP_DELETE, "pb", ""), 0);
        assert_int_equal(run_op(&s.b, FAR_OP_DELETE, "pg", ""), 0);
        assert_int_equal(run_op(&s.b, FAR_OP_DELETE, "pm", ""), 0);
        far_sim_resume(s.a.client);
        assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    }
    assert_true(s.a.result >= 12);
    expect_ordered(&s.a, stay, sizeof(stay) / sizeof(stay[0]), backward);
    expect_sound(&s, &s.c);
    tear_down(&s);
    return stopped;
}


/* Proves that a scan returns every key that exists throughout exactly once, in order, wherever it is when B replaces the
 * node. Fails if the remaining children of a node are read again from the node that replaced it. */
static void replace_everywhere(const char *sim, const char *options) {
    for (unsigned backward = 0; backward < 2; backward++)
        for (unsigned nth = 1; replace_before_nth_read(sim, options, nth, backward); nth++)
            assert_true(nth < 100);
}

TEST(a_node_is_replaced_while_its_children_remain) {
    replace_everywhere("masked_cas=on", "est=0,one_by_one=2");
    replace_everywhere("masked_cas=off,atomic_bytes=8", "est=1,one_by_one=0,upkeep_batch=1");
    replace_everywhere("masked_cas=on", "est=0,one_by_one=0,bucket=8");
}


/* Proves that a scan that reads the slots of the root in parts returns all keys. Fails if the slots of a later part are
 * stored at the place of the first one (children.c, dart_rest_add_read). */
TEST(the_root_is_read_in_parts) {
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        char key[3] = "", all[1024] = "", back[1024] = "";
        set_up(&s, "masked_cas=on", i ? "est=0,one_by_one=2" : "est=1,one_by_one=0");
        for (char c = 'A'; c <= 'z'; c += 3) {
            key[0] = c;
            key[1] = 'x';
            INSERT_KEYS(&s.a, key);
            snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", *all ? " " : "", key);
            char rest[1024];
            snprintf(rest, sizeof(rest), "%s%s%s", key, *back ? " " : "", back);
            strcpy(back, rest);
        }
        for (unsigned round = 0; round < 3; round++) { /* the later rounds use the scan cache */
            assert_true(run_op(&s.b, FAR_OP_SCAN, "A", "~") > 0);
            expect_scanned(&s.b, all);
            expect_backward(&s.b, "A", "~", 0, back);
        }
        tear_down(&s);
    }
}
