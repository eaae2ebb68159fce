/* Behaviours of scans in both directions: order, bounds, limits, callbacks that stop the scan, and callbacks that use
 * the session. */
#include "conform.h"
#include "workload/value.h"

/* Pairs in key order, which the tests insert. Tests scan with bounds between, before and after these keys. */
static const pair sorted[] = {
#define KEY(text)                                                                                                      \
    { (uint8_t *)(text), NULL, sizeof(text) - 1, 0 }
    KEY("\0"),         KEY("\0\0"),
    KEY("\0\0\1"),     KEY("\0\1"),
    KEY("\1"),         KEY("a"),
    KEY("a\0"),        KEY("a\0\0"),
    KEY("a\1"),        KEY("aa"),
    KEY("aab"),        KEY("ab"),
    KEY("ab\0cdefgh"), KEY("ab\1"),
    KEY("abc"),        KEY("b"),
    KEY("b\377"),      KEY("b\377\377"),
    KEY("c"),          KEY("\177"),
    KEY("\200"),       KEY("\377"),
    KEY("\377\0"),     KEY("\377\376"),
    KEY("\377\377"),   KEY("\377\377\377\377\377\377\377\377\377"),
#undef KEY
};

#define KEYS COUNT_OF(sorted)


static size_t value_length(size_t i) {
    return i * 37 % 200;
}


static void put_sorted_pairs(const rig *r) {
    for (size_t i = 0; i < KEYS; i++) { /* The pairs are inserted in another order. */
        size_t at = i * 11 % KEYS;
        assert_ok(put_proof(r->session, r->index, sorted[at].key, sorted[at].key_len, value_length(at), at));
    }
}


/* Asserts that a scan has delivered `count` pairs of the table `sorted`, from sorted[first] on upwards or downwards. */
static void assert_pairs_are(const pairs *found, size_t first, size_t count, bool reverse) {
    assert_int_equal(found->count, count);
    for (size_t i = 0; i < count; i++) {
        size_t at = reverse ? first - i : first + i;
        const pair *got = &found->items[i], *want = &sorted[at];
        uint8_t value[200];
        far_value_fill(value, value_length(at), want->key, want->key_len, at);
        assert_int_equal(got->key_len, want->key_len);
        assert_memory_equal(got->key, want->key, want->key_len);
        assert_int_equal(got->value_len, value_length(at));
        assert_memory_equal(got->value, value, got->value_len);
    }
}


typedef int64_t (*scan_function)(far_session *, far_index *, const void *, size_t, const void *, size_t, size_t,
                                 far_pair_fn, void *);

/* the functions for the two directions; the second one scans in descending order */
static const scan_function scan_functions[] = {far_scan, far_scan_reverse};


static size_t first_not_below(const void *key, size_t length) {
    size_t at = 0;
    while (at < KEYS && compare_bytes(sorted[at].key, sorted[at].key_len, key, length) < 0)
        at++;
    return at;
}


/* Runs a scan in each direction with these bounds and this limit, and asserts that it delivers the pairs that follow
 * from the table `sorted`. */
static void scan_and_compare(const rig *r, const void *from, size_t from_len, const void *to, size_t to_len,
                             size_t limit) {
    size_t first = from ? first_not_below(from, from_len) : 0, end = to ? first_not_below(to, to_len) : KEYS;
    size_t count = end > first ? end - first : 0;
    if (limit && limit < count)
        count = limit;
    for (int reverse = 0; reverse < 2; reverse++) {
        pairs found = {0};
        assert_code((int64_t)count, scan_functions[reverse](r->session, r->index, from, from_len, to, to_len, limit,
                                                            collect_pair, &found));
        assert_pairs_are(&found, reverse ? end - 1 : first, count, reverse);
        pairs_free(&found);
    }
}


/* A scan without bounds delivers all pairs in key order, and a reverse scan delivers them in the opposite order. */
BEHAVIOUR_FOR(a_full_scan_gives_all_in_order, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    for (size_t i = 1; i < KEYS; i++) /* The table itself must be in order. */
        assert_true(compare_bytes(sorted[i - 1].key, sorted[i - 1].key_len, sorted[i].key, sorted[i].key_len) < 0);
    put_sorted_pairs(&r);
    scan_and_compare(&r, NULL, 0, NULL, 0, 0);
    rig_down(&r);
}


/* Makes bounds that are present keys, that differ slightly from a present key, and that are outside of all keys.
 * Returns their number. */
static size_t make_bounds(pair *bounds, uint8_t bytes[][16]) {
    size_t count = 0;
    bounds[count++] = (pair){NULL, NULL, 0, 0};
    for (size_t i = 0; i < KEYS; i += 3) {
        bounds[count++] = sorted[i];
        memcpy(bytes[i], sorted[i].key, sorted[i].key_len);
        /* The bound is directly after the key (with a byte 0 appended), or further away. */
        bytes[i][sorted[i].key_len] = i % 2 ? 0 : 0x80;
        bounds[count++] = (pair){bytes[i], NULL, sorted[i].key_len + 1, 0};
    }
    static uint8_t beyond[16];
    memset(beyond, 0xff, sizeof(beyond));
    bounds[count++] = (pair){beyond, NULL, sizeof(beyond), 0};
    return count;
}


/* A scan delivers exactly the pairs between its bounds, for all combinations of bounds. */
BEHAVIOUR_FOR(all_bounds_are_respected, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    pair bounds[2 * KEYS];
    uint8_t bytes[KEYS][16];
    size_t count = make_bounds(bounds, bytes);
    for (size_t i = 0; i < count; i++)
        /* Upper bounds that are equal to or less than the lower bound are also tested. */
        for (size_t j = 0; j < count; j++)
            scan_and_compare(&r, bounds[i].key, bounds[i].key_len, bounds[j].key, bounds[j].key_len, 0);
    rig_down(&r);
}


/* A scan delivers at most `limit` pairs, also in combination with bounds. */
BEHAVIOUR_FOR(limits_are_respected, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    const size_t limits[] = {0, 1, 2, 5, KEYS - 1, KEYS, KEYS + 1, 1000000, SIZE_MAX};
    for (size_t i = 0; i < COUNT_OF(limits); i++) {
        scan_and_compare(&r, NULL, 0, NULL, 0, limits[i]);
        scan_and_compare(&r, "a", 1, NULL, 0, limits[i]);
        scan_and_compare(&r, "a\0", 2, "b", 1, limits[i]);
        scan_and_compare(&r, NULL, 0, "b", 1, limits[i]);
        scan_and_compare(&r, "x", 1, "b", 1, limits[i]);
    }
    rig_down(&r);
}


/* A scan ends when its callback returns non-zero, and the number that the scan returns includes the pair of that last
 * call. */
BEHAVIOUR_FOR(a_callback_stops_the_scan_and_is_counted, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    for (size_t step = 0; step < 2 * KEYS; step += 4) {
        bool reverse = step >= KEYS;
        scan_function scan = scan_functions[reverse];
        size_t stop = step % KEYS + 1, expected = stop < 3 ? stop : 3;
        pairs found = {.stop_at = stop};
        assert_code((int64_t)stop, scan(r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
        assert_pairs_are(&found, reverse ? KEYS - 1 : 0, stop, reverse);
        pairs_free(&found);
        found.stop_at = stop;
        assert_code((int64_t)expected, scan(r.session, r.index, NULL, 0, NULL, 0, 3, collect_pair, &found));
        pairs_free(&found);
    }
    rig_down(&r);
}


static int stop_with_minus_one(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(int *)ctx;
    return -1;
}


/* A negative result of the callback is not an error of the scan. */
BEHAVIOUR_FOR(a_negative_return_stops_like_any_other, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    int calls = 0;
    assert_code(1, far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, stop_with_minus_one, &calls));
    assert_int_equal(calls, 1);
    rig_down(&r);
}


/* A scan of an empty index delivers nothing, also after all pairs were deleted. */
BEHAVIOUR_FOR(an_empty_index_has_nothing_to_scan, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    pairs found = {0};
    for (int emptied = 0; emptied < 2; emptied++) {
        for (int reverse = 0; reverse < 2; reverse++) {
            scan_function scan = scan_functions[reverse];
            assert_code(0, scan(r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
            assert_code(0, scan(r.session, r.index, "a", 1, "b", 1, 10, collect_pair, &found));
        }
        assert_int_equal(found.count, 0);
        put_sorted_pairs(&r);
        for (size_t i = 0; i < KEYS; i++)
            assert_ok(far_delete(r.session, r.index, sorted[i].key, sorted[i].key_len));
    }
    assert_code(0, far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
    assert_code(0, far_scan_reverse(r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
    pairs_free(&found);
    rig_down(&r);
}


/* A scan in each direction delivers the only pair of an index if the pair is in its range. */
BEHAVIOUR_FOR(an_index_with_one_key_is_scanned, FOR_ORDERED) {
    static const struct {
        const char *from, *to;
        size_t count;
    } ranges[] = {{NULL, NULL, 1},  {"k", NULL, 1}, {"k", "k\1", 1}, {NULL, "l", 1}, {"j", "k", 0},
                  {"k\1", NULL, 0}, {NULL, "k", 0}, {"k", "k", 0},   {"l", "j", 0}};
    rig r;
    rig_up(&r, c);
    assert_ok(put_text(&r, "k", "v"));
    for (size_t i = 0; i < 2 * COUNT_OF(ranges); i++) {
        const char *from = ranges[i / 2].from, *to = ranges[i / 2].to;
        pairs found = {0};
        assert_code((int64_t)ranges[i / 2].count,
                    scan_functions[i % 2](r.session, r.index, from, from ? strlen(from) : 0, to, to ? strlen(to) : 0, 0,
                                          collect_pair, &found));
        assert_int_equal(found.count, ranges[i / 2].count);
        pairs_free(&found);
    }
    rig_down(&r);
}


/* A scan delivers values of nearly FAR_VALUE_MAX bytes and small values, all intact. */
BEHAVIOUR_FOR(large_values_pass_through_a_scan, FOR_ORDERED) {
    enum { LARGE = 24 };
    rig r;
    rig_up(&r, c);
    uint8_t key[8];
    for (uint64_t i = 0; i < LARGE; i++) {
        number_key(i, key);
        assert_ok(put_proof(r.session, r.index, key, 8, i % 3 == 1 ? i : FAR_VALUE_MAX - i, i));
    }
    for (int reverse = 0; reverse < 2; reverse++) {
        pairs found = {0};
        assert_code(LARGE, scan_functions[reverse](r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
        for (uint64_t i = 0; i < LARGE; i++) {
            const pair *got = &found.items[reverse ? LARGE - 1 - i : i];
            number_key(i, key);
            assert_int_equal(got->key_len, 8);
            assert_memory_equal(got->key, key, 8);
            assert_int_equal(got->value_len, i % 3 == 1 ? i : FAR_VALUE_MAX - i);
            assert_true(far_value_check(got->value, got->value_len, key, 8, NULL));
        }
        pairs_free(&found);
    }
    rig_down(&r);
}


/* A scan of 700 pairs, which needs several chunks, delivers every key once and in order, in each direction. */
BEHAVIOUR_FOR(a_long_scan_gives_every_key_once, FOR_ORDERED) {
    enum { MANY = 700 };
    rig r;
    rig_up(&r, c);
    uint8_t key[8];
    for (uint64_t i = 0; i < MANY; i++) {
        number_key(2 * (i * 397 % MANY), key);
        assert_ok(put_proof(r.session, r.index, key, 8, 20, 0));
    }
    for (int reverse = 0; reverse < 2; reverse++) {
        pairs found = {0};
        assert_code(MANY, scan_functions[reverse](r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
        for (uint64_t i = 0; i < MANY; i++) {
            number_key(2 * i, key);
            assert_memory_equal(found.items[reverse ? MANY - 1 - i : i].key, key, 8);
        }
        pairs_free(&found);
        uint8_t from[8], to[8];
        number_key(301, from); /* Keys 301 and 901 are absent; the scan delivers 302 to 900. */
        number_key(901, to);
        assert_code(300, scan_functions[reverse](r.session, r.index, from, 8, to, 8, 0, collect_pair, &found));
        number_key(reverse ? 900 : 302, key);
        assert_memory_equal(found.items[0].key, key, 8);
        number_key(reverse ? 302 : 900, key);
        assert_memory_equal(found.items[299].key, key, 8);
        pairs_free(&found);
    }
    rig_down(&r);
}


/* State of a callback that uses the session during the scan. */
typedef struct busy_scan {
    const rig *r;
    size_t calls, wrong;
    bool nested, reverse;
} busy_scan;


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(size_t *)ctx;
    return 0;
}


static int use_session(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    busy_scan *busy = ctx;
    const rig *r = busy->r;
    uint8_t buffer[200];
    size_t length = 0, inner = 0;
    int result = far_get(r->session, r->index, key, key_len, buffer, sizeof(buffer), &length);
    busy->wrong += result != FAR_OK || length != value_len || memcmp(buffer, value, length) != 0;
    busy->wrong += far_put(r->session, r->index, key, key_len, "changed", 7) != FAR_OK;
    if (busy->nested)
        busy->wrong +=
            scan_functions[busy->reverse](r->session, r->index, key, key_len, NULL, 0, 2, count_pair, &inner) < 1 ||
            inner < 1;
    busy->calls++;
    return 0;
}


/* The callback of a scan may run gets, puts and a nested scan in the same session. */
BEHAVIOUR_FOR(a_callback_may_use_the_session, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    for (int run = 0; run < 4; run++) {
        put_sorted_pairs(&r);
        busy_scan busy = {&r, 0, 0, run % 2, run / 2};
        assert_code(KEYS, scan_functions[busy.reverse](r.session, r.index, NULL, 0, NULL, 0, 0, use_session, &busy));
        assert_int_equal(busy.calls, KEYS);
        assert_int_equal(busy.wrong, 0);
        for (size_t i = 0; i < KEYS; i++)
            assert_value(r.session, r.index, sorted[i].key, sorted[i].key_len, "changed", 7);
    }
    rig_down(&r);
}


static int delete_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    busy_scan *busy = ctx;
    (void)value, (void)value_len;
    busy->wrong += far_delete(busy->r->session, busy->r->index, key, key_len) != FAR_OK;
    busy->calls++;
    return 0;
}


/* A scan with a callback that deletes each pair delivers all pairs, and the index is empty afterwards. */
BEHAVIOUR_FOR(a_callback_may_delete_the_pair_it_receives, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    for (int reverse = 0; reverse < 2; reverse++) {
        put_sorted_pairs(&r);
        busy_scan busy = {.r = &r};
        assert_code(KEYS, scan_functions[reverse](r.session, r.index, NULL, 0, NULL, 0, 0, delete_pair, &busy));
        assert_int_equal(busy.calls, KEYS);
        assert_int_equal(busy.wrong, 0);
        size_t left = 0;
        assert_code(0, far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, count_pair, &left));
        assert_int_equal(left, 0);
    }
    rig_down(&r);
}


/* A kind without key order rejects synchronous and submitted scans with FAR_ERR_UNSUPPORTED. */
BEHAVIOUR_FOR(a_scan_of_an_unordered_kind_is_unsupported, FOR_UNORDERED) {
    rig r;
    rig_up(&r, c);
    pairs found = {0};
    assert_ok(put_text(&r, "k", "v"));
    assert_code(FAR_ERR_UNSUPPORTED, far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
    assert_code(FAR_ERR_UNSUPPORTED, far_scan(r.session, r.index, "a", 1, "z", 1, 1, collect_pair, &found));
    assert_code(FAR_ERR_UNSUPPORTED, far_scan_reverse(r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
    far_op op = {.kind = FAR_OP_SCAN, .index = r.index, .each = collect_pair, .each_ctx = &found}, *ops[] = {&op},
           *done;
    assert_code(1, far_submit(r.session, ops, 1));
    assert_code(1, far_reap(r.session, &done, 1, 1));
    assert_code(FAR_ERR_UNSUPPORTED, op.result);
    assert_int_equal(found.count, 0);
    assert_text(&r, "k", "v");
    rig_down(&r);
}
