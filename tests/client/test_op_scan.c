/* Tests of scans that need several chunks: order, bounds, large values, submitted scans. All tests use the kind toy. */
#include "../support/ground.h"
#include "index/index.h"
#include "pool/handle.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


enum { MANY = 500 };

/* Context of a scan: checks that keys arrive in strictly ascending order. */
typedef struct scan_observer {
    ground *ground;
    unsigned count;
    char last[8];
    size_t last_len;
    bool uses_session, bad;
    unsigned stop_at;
} scan_observer;


/* Callback of a scan. Records a violation in `bad` instead of asserting, because an assertion would jump out of the
 * library. If `uses_session` is set, it also runs a get, a put and sometimes a nested scan in the same session. */
static int observe_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    scan_observer *w = ctx;
    (void)value, (void)value_len;
    if (w->count && far_bytes_compare((far_bytes){w->last, w->last_len}, (far_bytes){key, key_len}) >= 0)
        w->bad = true;
    memcpy(w->last, key, key_len);
    w->last_len = key_len;
    if (w->uses_session) {
        char back[8];
        scan_observer inner = {0};
        w->bad |= far_get(w->ground->session, w->ground->index, key, key_len, back, sizeof(back), NULL) != 0;
        w->bad |= far_put(w->ground->session, w->ground->index, key, key_len, "new", 3) != 0;
        if (w->count % 100 == 0)
            w->bad |=
                far_scan(w->ground->session, w->ground->index, key, key_len, NULL, 0, 3, observe_pair, &inner) < 0;
    }
    return ++w->count == w->stop_at;
}


/* Puts the keys "0" to "499". */
static void put_many_keys(ground *g) {
    for (int i = 0; i < MANY; i++) {
        char key[8], value[8];
        int key_len = snprintf(key, sizeof(key), "%d", i), value_len = snprintf(value, sizeof(value), "v%d", i);
        assert_int_equal(far_put(g->session, g->index, key, (size_t)key_len, value, (size_t)value_len), 0);
    }
}


/* A scan that needs many chunks delivers every key once and in order, even if its callback uses the session, and obeys
 * limits near the size of a chunk and a callback that stops it. The statistics count each scan once. */
TEST(a_scan_over_many_chunks_gives_every_key_once_in_order) {
    ground g;
    open_small_environment(&g, "local:2x64M", "slots=32");
    put_many_keys(&g);
    for (unsigned uses = 0; uses < 2; uses++) {
        scan_observer w = {.ground = &g, .uses_session = uses};
        assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, observe_pair, &w), MANY);
        assert_int_equal(w.count, MANY);
        assert_false(w.bad);
    }
    for (size_t limit = 255; limit <= 258; limit++) {
        scan_observer w = {.ground = &g};
        assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, limit, observe_pair, &w), limit);
        assert_int_equal(w.count, limit);
    }
    scan_observer w = {.ground = &g, .stop_at = 300};
    assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, observe_pair, &w), 300);
    far_stats stats;
    assert_int_equal(far_session_stats_of(g.session, FAR_OP_SCAN, &stats), 0);
    assert_int_equal(stats.ops[FAR_OP_SCAN], 2 + 5 + 4 + 1); /* chunks are not counted */
    close_small_environment(&g);
}


static int add_length(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len;
    const char *bytes = value;
    if (value_len && bytes[0] != bytes[value_len - 1])
        return 1;
    *(size_t *)ctx += value_len;
    return 0;
}


/* A scan delivers values up to the maximum length intact, although a chunk has room for few of them. */
TEST(large_values_pass_through_small_chunks) {
    ground g;
    static char value[FAR_VALUE_MAX];
    size_t sum = 0, expected = 0;
    open_small_environment(&g, "local:2x64M", "slots=32");
    for (int i = 0; i < 20; i++) {
        char key = (char)('a' + i);
        size_t length = i % 3 == 0 ? FAR_VALUE_MAX : (size_t)i * 100;
        memset(value, key, sizeof(value));
        assert_int_equal(far_put(g.session, g.index, &key, 1, value, length), 0);
        expected += length;
    }
    assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, add_length, &sum), 20);
    assert_int_equal(sum, expected);
    close_small_environment(&g);
}


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(unsigned *)ctx;
    return 0;
}


static int64_t count_between(ground *g, const char *from, size_t from_len, const char *to, size_t to_len) {
    unsigned count = 0;
    int64_t result = far_scan(g->session, g->index, from, from_len, to, to_len, 0, count_pair, &count);
    assert_int_equal(result, count);
    return result;
}


/* In an index whose keys all have the same size, the bounds of a scan may have another size. The results are the same
 * as for an index without a fixed size. Fails without fit_bounds_to_key_size in client/scan.c. */
TEST(bounds_of_any_length_hold_for_fixed_keys) {
    for (unsigned fixed = 0; fixed < 2; fixed++) {
        ground g;
        open_small_environment(&g, "local:64M", fixed ? "key_size=2" : NULL);
        for (const char *const *key = (const char *const[]){"aa", "ab", "ba", "bb", "\xff\xff", NULL}; *key; key++)
            assert_int_equal(far_put(g.session, g.index, *key, 2, "v", 1), 0);
        assert_int_equal(count_between(&g, NULL, 0, NULL, 0), 5);
        assert_int_equal(count_between(&g, "", 0, NULL, 0), 5);
        assert_int_equal(count_between(&g, "b", 1, NULL, 0), 3);
        assert_int_equal(count_between(&g, "ba", 2, NULL, 0), 3);
        assert_int_equal(count_between(&g, "baa", 3, NULL, 0), 2);
        assert_int_equal(count_between(&g, NULL, 0, "b", 1), 2);
        assert_int_equal(count_between(&g, NULL, 0, "ba", 2), 2);
        assert_int_equal(count_between(&g, NULL, 0, "baa", 3), 3);
        assert_int_equal(count_between(&g, NULL, 0, "\xff\xff", 2), 4);
        assert_int_equal(count_between(&g, NULL, 0, "\xff\xff\x01", 3), 5);
        assert_int_equal(count_between(&g, NULL, 0, "", 0), 0);
        assert_int_equal(count_between(&g, "\xff\xff\x01", 3, NULL, 0), 0);
        assert_int_equal(count_between(&g, "ab", 2, "ab", 2), 0);
        assert_int_equal(count_between(&g, "ab", 2, "ab\0", 3), 1);
        close_small_environment(&g);
    }
}


/* Five submitted scans run concurrently with each other and with synchronous gets, on fabrics with and without a
 * delay. Each delivers its own pairs completely and in order. */
TEST(submitted_scans_run_concurrently_with_other_operations) {
    const char *uris[] = {"local:2x64M", "local:2x64M?rtt=20us"};
    for (unsigned u = 0; u < 2; u++) {
        ground g;
        enum { SCANS = 5 };
        far_op scans[SCANS], *ops[SCANS], *done[SCANS];
        scan_observer observers[SCANS];
        char value[8];
        open_small_environment(&g, uris[u], "slots=32");
        put_many_keys(&g);
        for (unsigned i = 0; i < SCANS; i++) {
            observers[i] = (scan_observer){.ground = &g, .stop_at = i == 3 ? 290 : 0};
            scans[i] = (far_op){.kind = FAR_OP_SCAN, .index = g.index, .each = observe_pair, .each_ctx = &observers[i]};
            ops[i] = &scans[i];
        }
        scans[1].limit = 260;
        scans[2].key = "3", scans[2].key_len = 1, scans[2].to = "3", scans[2].to_len = 1;
        assert_int_equal(far_submit(g.session, ops, SCANS), SCANS);
        for (int i = 0; i < 10; i++) /* these calls also deliver pairs of the scans */
            assert_int_equal(far_get(g.session, g.index, "7", 1, value, 8, NULL), 0);
        assert_int_equal(far_reap(g.session, done, SCANS, SCANS), SCANS);
        int expected[SCANS] = {MANY, 260, 0, 290, MANY};
        for (unsigned i = 0; i < SCANS; i++) {
            assert_int_equal(scans[i].result, expected[i]);
            assert_int_equal(observers[i].count, expected[i]);
            assert_false(observers[i].bad);
        }
        close_small_environment(&g);
    }
}


/* Session A submits a scan and makes no further call. Housekeeping runs the tasks of A's session while session B makes
 * calls. Proves that no pair is delivered before A calls far_reap, because only a thread of the user may run the
 * callback. Fails if far_submitted_scans_deliver is called by housekeeping. */
TEST(a_submitted_scan_delivers_only_inside_calls_of_its_session) {
    ground g;
    open_small_environment(&g, "local:64M?rtt=100us", "slots=4");
    put_many_keys(&g);
    scan_observer w = {.ground = &g};
    far_op scan = {.kind = FAR_OP_SCAN, .index = g.index, .each = observe_pair, .each_ctx = &w}, *one = &scan;
    assert_int_equal(far_submit(g.session, &one, 1), 1);
    far_pool_usage usage; /* calls of another session give housekeeping time to drive the first one */
    far_session *other;
    assert_int_equal(far_session_open(g.pool, &other), 0);
    for (int i = 0; i < 50; i++)
        assert_int_equal(far_pool_stat(other, &usage), 0);
    assert_int_equal(w.count, 0);
    assert_int_equal(far_reap(g.session, &one, 1, 1), 1);
    assert_int_equal(w.count, MANY);
    far_session_close(other);
    close_small_environment(&g);
}
