/* Behaviours of cursors: moves, seeks, ranges, prefixes, ends of the range, changes between the moves, and closed or
 * dropped objects under a cursor. */
#include "conform.h"
#include "workload/value.h"

#define VALUE_BYTES 24

/* Keys in key order. Seeks and bounds use these keys and keys between them. */
static const pair sorted[] = {
#define KEY(text)                                                                                                      \
    { (uint8_t *)(text), NULL, sizeof(text) - 1, 0 }
    KEY("\0"),
    KEY("\1"),
    KEY("a"),
    KEY("a\0"),
    KEY("a\1"),
    KEY("ab"),
    KEY("ab\0cdefgh"),
    KEY("abc"),
    KEY("abd"),
    KEY("b"),
    KEY("b\377\377"),
    KEY("c"),
    KEY("cc"),
    KEY("\177"),
    KEY("\200"),
    KEY("\377"),
    KEY("\377\0"),
    KEY("\377\377"),
    KEY("\377\377\377\377\377"),
#undef KEY
};

#define KEYS COUNT_OF(sorted)


static void put_sorted_pairs(const rig *r) {
    for (size_t i = 0; i < KEYS; i++) { /* The pairs are inserted in another order. */
        size_t at = i * 7 % KEYS;
        assert_ok(put_proof(r->session, r->index, sorted[at].key, sorted[at].key_len, VALUE_BYTES, at));
    }
}


static far_cursor *open_cursor(const rig *r) {
    far_cursor *cursor = NULL;
    assert_ok(far_cursor_open(r->session, r->index, &cursor));
    return cursor;
}


/* Asserts that the cursor is at sorted[at]. */
static void assert_at(const far_cursor *cursor, size_t at) {
    size_t key_len = 0, value_len = 0;
    const void *key = far_cursor_key(cursor, &key_len), *value = far_cursor_value(cursor, &value_len);
    uint64_t version;
    assert_non_null(key);
    assert_int_equal(key_len, sorted[at].key_len);
    assert_memory_equal(key, sorted[at].key, key_len);
    assert_int_equal(value_len, VALUE_BYTES);
    assert_true(far_value_check(value, value_len, key, key_len, &version));
    assert_int_equal(version, at);
}


static void assert_at_no_pair(const far_cursor *cursor) {
    size_t length = 9;
    assert_null(far_cursor_key(cursor, &length));
    assert_int_equal(length, 0);
    assert_null(far_cursor_value(cursor, NULL));
}


/* Asserts that passes in both directions visit sorted[first] to sorted[end - 1], and return to the pairs from each end.
 */
static void assert_passes(far_cursor *cursor, size_t first, size_t end) {
    for (int pass = 0; pass < 2; pass++) {
        for (size_t at = first; at < end; at++) {
            assert_ok(pass == 0 && at == first ? far_cursor_first(cursor) : far_cursor_next(cursor));
            assert_at(cursor, at);
        }
        for (int again = 0; again < 2; again++)
            assert_code(FAR_ERR_NOT_FOUND, far_cursor_next(cursor));
        assert_at_no_pair(cursor);
        for (size_t at = end; at-- > first;) {
            assert_ok(far_cursor_prev(cursor));
            assert_at(cursor, at);
        }
        for (int again = 0; again < 2; again++)
            assert_code(FAR_ERR_NOT_FOUND, far_cursor_prev(cursor));
        assert_at_no_pair(cursor);
    }
    assert_code(first < end ? FAR_OK : FAR_ERR_NOT_FOUND, far_cursor_last(cursor));
    if (first < end)
        assert_at(cursor, end - 1);
}


static size_t first_not_below(const void *key, size_t length) {
    size_t at = 0;
    while (at < KEYS && compare_bytes(sorted[at].key, sorted[at].key_len, key, length) < 0)
        at++;
    return at;
}


/* Makes key number n of 2 * KEYS + 1: the keys of the table, a key directly after each of them, and a key after all.
 * Returns its length. */
static size_t make_key(size_t n, uint8_t key[16]) {
    if (n == 2 * KEYS) {
        memset(key, 0xff, 16);
        return 16;
    }
    memcpy(key, sorted[n / 2].key, sorted[n / 2].key_len);
    key[sorted[n / 2].key_len] = 0;
    return sorted[n / 2].key_len + n % 2;
}


/* A pass over the whole index visits every pair once, upwards and downwards. */
BEHAVIOUR_FOR(a_cursor_passes_over_all_pairs, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    far_cursor *cursor = open_cursor(&r);
    assert_at_no_pair(cursor);
    assert_passes(cursor, 0, KEYS);
    far_cursor_close(cursor);
    rig_down(&r);
}


/* A cursor without a position moves to the first pair by far_cursor_next and to the last one by far_cursor_prev. */
BEHAVIOUR_FOR(a_cursor_without_position_begins_at_an_end, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    far_cursor *cursor = open_cursor(&r);
    assert_ok(far_cursor_prev(cursor));
    assert_at(cursor, KEYS - 1);
    assert_ok(far_cursor_range(cursor, NULL, 0, NULL, 0));
    assert_at_no_pair(cursor);
    assert_ok(far_cursor_next(cursor));
    assert_at(cursor, 0);
    far_cursor_close(cursor);
    rig_down(&r);
}


/* A seek finds the first key >= the given one, and far_cursor_seek_before the last key <= it, for present and absent
 * keys. Moves in both directions continue from there. */
BEHAVIOUR_FOR(seeks_find_the_nearest_key, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    far_cursor *cursor = open_cursor(&r);
    for (size_t n = 0; n <= 2 * KEYS; n++) {
        uint8_t key[16];
        size_t key_len = make_key(n, key), at = first_not_below(key, key_len);
        bool is_present = at < KEYS && compare_bytes(sorted[at].key, sorted[at].key_len, key, key_len) == 0;
        assert_code(at < KEYS ? FAR_OK : FAR_ERR_NOT_FOUND, far_cursor_seek(cursor, key, key_len));
        if (at < KEYS)
            assert_at(cursor, at);
        assert_code(at > 0 ? FAR_OK : FAR_ERR_NOT_FOUND, far_cursor_prev(cursor));
        if (at > 0)
            assert_at(cursor, at - 1);
        size_t end = at + is_present; /* number of keys <= the given one */
        assert_code(end > 0 ? FAR_OK : FAR_ERR_NOT_FOUND, far_cursor_seek_before(cursor, key, key_len));
        if (end > 0)
            assert_at(cursor, end - 1);
        assert_code(end < KEYS ? FAR_OK : FAR_ERR_NOT_FOUND, far_cursor_next(cursor));
        if (end < KEYS)
            assert_at(cursor, end);
    }
    assert_ok(far_cursor_seek(cursor, "", 0));
    assert_at(cursor, 0);
    assert_code(FAR_ERR_NOT_FOUND, far_cursor_seek_before(cursor, "", 0));
    far_cursor_close(cursor);
    rig_down(&r);
}


/* A cursor may seek the key of its own position, whose bytes are in its buffer. */
BEHAVIOUR_FOR(a_cursor_seeks_its_own_key, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    far_cursor *cursor = open_cursor(&r);
    assert_ok(far_cursor_seek(cursor, "b", 1));
    size_t at = first_not_below("b", 1), key_len;
    for (int i = 0; i < 3; i++) {
        const void *key = far_cursor_key(cursor, &key_len);
        assert_ok((i % 2 ? far_cursor_seek_before : far_cursor_seek)(cursor, key, key_len));
        assert_at(cursor, at);
    }
    const void *key = far_cursor_key(cursor, &key_len);
    assert_ok(far_cursor_range(cursor, key, key_len, NULL, 0));
    assert_ok(far_cursor_first(cursor));
    assert_at(cursor, at);
    far_cursor_close(cursor);
    rig_down(&r);
}


/* Bounds restrict all moves of a cursor to the keys between them. */
BEHAVIOUR_FOR(a_range_restricts_all_moves, FOR_ORDERED | IN_TURN) {
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    far_cursor *cursor = open_cursor(&r);
    for (size_t low = 0; low <= 2 * KEYS; low += 3)
        for (size_t high = 0; high <= 2 * KEYS; high += 3) {
            uint8_t from[16], to[16], key[16];
            size_t from_len = make_key(low, from), to_len = make_key(high, to);
            size_t first = first_not_below(from, from_len), end = first_not_below(to, to_len);
            if (end < first)
                end = first;
            assert_ok(far_cursor_range(cursor, from, from_len, to, to_len));
            assert_passes(cursor, first, end);
            for (size_t n = 0; n <= 2 * KEYS; n += 5) {
                size_t key_len = make_key(n, key), at = first_not_below(key, key_len);
                at = at < first ? first : at;
                assert_code(at < end ? FAR_OK : FAR_ERR_NOT_FOUND, far_cursor_seek(cursor, key, key_len));
                if (at < end)
                    assert_at(cursor, at);
                key[key_len] = 0;
                size_t after = first_not_below(key, key_len + 1); /* number of keys <= the key */
                after = after > end ? end : after;
                assert_code(after > first ? FAR_OK : FAR_ERR_NOT_FOUND, far_cursor_seek_before(cursor, key, key_len));
                if (after > first)
                    assert_at(cursor, after - 1);
            }
        }
    far_cursor_close(cursor);
    rig_down(&r);
}


/* A prefix restricts a cursor to the keys that begin with it, also if the prefix ends with bytes 0xff or is empty. */
BEHAVIOUR_FOR(a_prefix_restricts_all_moves, FOR_ORDERED) {
    static const pair prefixes[] = {
        {(uint8_t *)"", NULL, 0, 0},         {(uint8_t *)"a", NULL, 1, 0},        {(uint8_t *)"ab", NULL, 2, 0},
        {(uint8_t *)"ab\0", NULL, 3, 0},     {(uint8_t *)"b\377", NULL, 2, 0},    {(uint8_t *)"x", NULL, 1, 0},
        {(uint8_t *)"\377", NULL, 1, 0},     {(uint8_t *)"\377\377", NULL, 2, 0}, {(uint8_t *)"\0", NULL, 1, 0},
        {(uint8_t *)"\377\376", NULL, 2, 0},
    };
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    far_cursor *cursor = open_cursor(&r);
    for (size_t i = 0; i < COUNT_OF(prefixes); i++) {
        const pair *prefix = &prefixes[i];
        size_t first = 0, end;
        while (first < KEYS && (sorted[first].key_len < prefix->key_len ||
                                memcmp(sorted[first].key, prefix->key, prefix->key_len) != 0))
            first++;
        for (end = first; end < KEYS && sorted[end].key_len >= prefix->key_len &&
                          memcmp(sorted[end].key, prefix->key, prefix->key_len) == 0;)
            end++;
        assert_ok(far_cursor_prefix(cursor, prefix->key, prefix->key_len));
        assert_passes(cursor, first, end);
    }
    far_cursor_close(cursor);
    rig_down(&r);
}


/* In an empty index no move finds a pair. With one pair, all moves find this pair. */
BEHAVIOUR_FOR(an_empty_index_and_one_pair, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    far_cursor *cursor = open_cursor(&r);
    assert_passes(cursor, 0, 0);
    assert_code(FAR_ERR_NOT_FOUND, far_cursor_seek(cursor, "a", 1));
    assert_code(FAR_ERR_NOT_FOUND, far_cursor_seek_before(cursor, "a", 1));
    assert_ok(put_proof(r.session, r.index, sorted[2].key, sorted[2].key_len, VALUE_BYTES, 2));
    assert_passes(cursor, 2, 3);
    assert_ok(far_cursor_seek(cursor, "\1", 1));
    assert_at(cursor, 2);
    assert_ok(far_cursor_seek_before(cursor, "z", 1));
    assert_at(cursor, 2);
    far_cursor_close(cursor);
    rig_down(&r);
}


/* Passes over 700 pairs, which need several chunks, return every key once, with every hint. */
BEHAVIOUR_FOR(long_passes_return_every_key_once, FOR_ORDERED) {
    enum { MANY = 700 };
    static const size_t hints[] = {0, 1, 40, MANY, SIZE_MAX};
    rig r;
    rig_up(&r, c);
    uint8_t key[8];
    for (uint64_t i = 0; i < MANY; i++) {
        number_key(i * 397 % MANY, key);
        assert_ok(put_proof(r.session, r.index, key, 8, 20, 0));
    }
    far_cursor *cursor = open_cursor(&r);
    for (size_t h = 0; h < COUNT_OF(hints); h++) {
        assert_ok(far_cursor_expect(cursor, hints[h]));
        for (uint64_t i = 0; i < MANY; i++) {
            number_key(i, key);
            assert_ok(i ? far_cursor_next(cursor) : far_cursor_first(cursor));
            assert_memory_equal(far_cursor_key(cursor, NULL), key, 8);
        }
        assert_code(FAR_ERR_NOT_FOUND, far_cursor_next(cursor));
        for (uint64_t i = MANY; i-- > 0;) {
            number_key(i, key);
            assert_ok(far_cursor_prev(cursor));
            assert_memory_equal(far_cursor_key(cursor, NULL), key, 8);
        }
        assert_code(FAR_ERR_NOT_FOUND, far_cursor_prev(cursor));
    }
    far_cursor_close(cursor);
    rig_down(&r);
}


/* A cursor returns values of nearly FAR_VALUE_MAX bytes intact, and empty values as values of length 0. */
BEHAVIOUR_FOR(large_and_empty_values_pass_through_a_cursor, FOR_ORDERED) {
    enum { LARGE = 12 };
    rig r;
    rig_up(&r, c);
    uint8_t key[8];
    for (uint64_t i = 0; i < LARGE; i++) {
        number_key(i, key);
        assert_ok(put_proof(r.session, r.index, key, 8, i % 3 == 1 ? 0 : FAR_VALUE_MAX - i, i));
    }
    far_cursor *cursor = open_cursor(&r);
    for (int downwards = 0; downwards < 2; downwards++)
        for (uint64_t n = 0; n < LARGE; n++) {
            uint64_t i = downwards ? LARGE - 1 - n : n;
            size_t value_len;
            number_key(i, key);
            assert_ok((downwards ? far_cursor_prev : far_cursor_next)(cursor));
            const void *value = far_cursor_value(cursor, &value_len);
            assert_non_null(value);
            assert_int_equal(value_len, i % 3 == 1 ? 0 : FAR_VALUE_MAX - i);
            assert_memory_equal(far_cursor_key(cursor, NULL), key, 8);
            assert_true(far_value_check(value, value_len, key, 8, NULL));
            if (n == LARGE - 1)
                assert_code(FAR_ERR_NOT_FOUND, (downwards ? far_cursor_prev : far_cursor_next)(cursor));
        }
    far_cursor_close(cursor);
    rig_down(&r);
}


/* A cursor finds what its session wrote after the cursor had read ahead: inserted keys, new values, and deleted keys,
 * which it does not return. Fails if a cursor uses its buffer after a write of its session. */
BEHAVIOUR_FOR(a_cursor_finds_the_writes_of_its_session, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    assert_ok(put_text(&r, "b", "1"));
    assert_ok(put_text(&r, "d", "1"));
    assert_ok(put_text(&r, "f", "1"));
    far_cursor *cursor = open_cursor(&r);
    assert_ok(far_cursor_first(cursor));
    assert_ok(put_text(&r, "c", "new"));
    assert_memory_equal(far_cursor_key(cursor, NULL), "b", 1); /* the current pair remains readable */
    assert_ok(far_cursor_next(cursor));
    assert_memory_equal(far_cursor_key(cursor, NULL), "c", 1);
    assert_ok(delete_text(&r, "c")); /* the pair at the position */
    assert_ok(delete_text(&r, "d"));
    assert_ok(put_text(&r, "f", "2"));
    assert_ok(far_cursor_next(cursor));
    assert_memory_equal(far_cursor_key(cursor, NULL), "f", 1);
    assert_memory_equal(far_cursor_value(cursor, NULL), "2", 1);
    assert_ok(put_text(&r, "g", "1")); /* the buffer ended at the end of the index */
    assert_ok(far_cursor_next(cursor));
    assert_memory_equal(far_cursor_key(cursor, NULL), "g", 1);
    far_op op = {.kind = FAR_OP_DELETE, .index = r.index, .key = "f", .key_len = 1}, *ops[] = {&op}, *done;
    assert_ok(far_cursor_last(cursor));
    assert_code(1, far_submit(r.session, ops, 1));
    assert_code(1, far_reap(r.session, &done, 1, 1));
    assert_ok(far_cursor_prev(cursor));
    assert_memory_equal(far_cursor_key(cursor, NULL), "b", 1);
    far_cursor_close(cursor);
    rig_down(&r);
}


/* A pass that deletes each pair it visits, or inserts a key before each of them, visits every original pair once. */
BEHAVIOUR_FOR(a_pass_may_change_the_index, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    far_cursor *cursor = open_cursor(&r);
    for (int downwards = 0; downwards < 2; downwards++) {
        put_sorted_pairs(&r);
        assert_ok(far_cursor_range(cursor, NULL, 0, NULL, 0));
        for (size_t n = 0; n < KEYS; n++) {
            size_t at = downwards ? KEYS - 1 - n : n;
            assert_ok((downwards ? far_cursor_prev : far_cursor_next)(cursor));
            assert_at(cursor, at);
            assert_ok(far_delete(r.session, r.index, sorted[at].key, sorted[at].key_len));
        }
        assert_code(FAR_ERR_NOT_FOUND, (downwards ? far_cursor_prev : far_cursor_next)(cursor));
        assert_code(FAR_ERR_NOT_FOUND, (downwards ? far_cursor_last : far_cursor_first)(cursor));
    }
    far_cursor_close(cursor);
    rig_down(&r);
}


/* While another handle deletes and inserts every second key, passes in both directions return the other keys exactly
 * once and all keys in order. */
BEHAVIOUR_FOR(passes_beside_changes_of_another_handle, FOR_ORDERED) {
    enum { MANY = 120 };
    rig r, other;
    rig_up(&r, c);
    rig_join(&other, &r);
    uint8_t key[8], last[8];
    for (uint64_t i = 0; i < MANY; i++) {
        number_key(i, key);
        assert_ok(put_proof(r.session, r.index, key, 8, VALUE_BYTES, 0));
    }
    far_cursor *cursor = open_cursor(&r);
    for (int pass = 0; pass < 4; pass++) {
        bool downwards = pass % 2;
        uint64_t next_stable = downwards ? MANY - 2 : 0, changed = 1, moves = 0;
        int result = downwards ? far_cursor_last(cursor) : far_cursor_first(cursor);
        for (; result == FAR_OK; result = (downwards ? far_cursor_prev : far_cursor_next)(cursor), moves++) {
            const uint8_t *now = far_cursor_key(cursor, NULL);
            if (moves)
                assert_true(downwards ? memcmp(now, last, 8) < 0 : memcmp(now, last, 8) > 0);
            memcpy(last, now, 8);
            if (now[7] % 2 == 0) {
                assert_int_equal(now[7], next_stable);
                next_stable += downwards ? -2 : 2;
            }
            number_key(changed, key);
            if (far_delete(other.session, other.index, key, 8) != FAR_OK)
                assert_ok(put_proof(other.session, other.index, key, 8, VALUE_BYTES, 1));
            changed = (changed + 14) % MANY;
        }
        assert_code(FAR_ERR_NOT_FOUND, result);
        assert_int_equal(next_stable, downwards ? (uint64_t)-2 : MANY);
    }
    far_cursor_close(cursor);
    rig_close(&other);
    rig_down(&r);
}


/* Several cursors of one session move independently of each other. */
BEHAVIOUR_FOR(cursors_of_a_session_are_independent, FOR_ORDERED) {
    enum { CURSORS = 6 };
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    far_cursor *cursors[CURSORS];
    for (size_t i = 0; i < CURSORS; i++) {
        cursors[i] = open_cursor(&r);
        assert_ok(far_cursor_seek(cursors[i], sorted[i].key, sorted[i].key_len));
    }
    for (size_t n = 1; n < 8; n++)
        for (size_t i = 0; i < CURSORS; i++) {
            assert_ok(far_cursor_next(cursors[i]));
            assert_at(cursors[i], i + n);
        }
    /* The order of the closes is arbitrary. */
    for (size_t i = 0; i < CURSORS; i++)
        far_cursor_close(cursors[i * 5 % CURSORS]);
    rig_down(&r);
}


/* The bound of a range and the key of a seek may not be longer than the longest key. The failed call leaves the
 * position unchanged. */
BEHAVIOUR_FOR(keys_that_are_too_long_are_refused, FOR_ORDERED) {
    static uint8_t long_key[65536 + 1];
    rig r;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    far_cursor *cursor = open_cursor(&r);
    assert_ok(far_cursor_seek(cursor, "b", 1));
    size_t at = first_not_below("b", 1);
    assert_refused("key", far_cursor_seek(cursor, long_key, sizeof(long_key)));
    assert_refused("key", far_cursor_seek_before(cursor, long_key, sizeof(long_key)));
    assert_refused("from", far_cursor_range(cursor, long_key, sizeof(long_key), NULL, 0));
    assert_refused("to", far_cursor_range(cursor, NULL, 0, long_key, sizeof(long_key)));
    assert_refused("prefix", far_cursor_prefix(cursor, long_key, sizeof(long_key)));
    assert_at(cursor, at);
    assert_ok(far_cursor_next(cursor));
    assert_at(cursor, at + 1);
    far_cursor_close(cursor);
    rig_down(&r);
}


/* After the index was dropped, moves of a cursor fail with FAR_ERR_NOT_FOUND and a message that says so, although the
 * buffer of the cursor contains more pairs. */
BEHAVIOUR_FOR(a_cursor_on_a_dropped_index_fails, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    far_index *index;
    rig_create(&r, "dropped", &index);
    for (const char *key = "abc"; *key; key++)
        assert_ok(far_put(r.session, index, key, 1, "v", 1));
    far_cursor *cursor;
    assert_ok(far_cursor_open(r.session, index, &cursor));
    assert_ok(far_cursor_first(cursor));
    assert_ok(far_index_drop(r.session, "dropped"));
    int (*const moves[])(far_cursor *) = {far_cursor_next, far_cursor_prev, far_cursor_first, far_cursor_last};
    for (size_t i = 0; i < COUNT_OF(moves); i++) {
        assert_code(FAR_ERR_NOT_FOUND, moves[i](cursor));
        assert_non_null(strstr(far_last_error(), "dropped"));
        assert_memory_equal(far_cursor_key(cursor, NULL), "a", 1);
    }
    far_cursor_close(cursor);
    far_index_close(index);
    rig_down(&r);
}


/* Moves of a cursor whose session or pool was closed fail with FAR_ERR_INVALID. The cursor can still be closed. */
BEHAVIOUR_FOR(a_cursor_of_a_closed_session_or_pool_fails, FOR_ORDERED) {
    rig r, other;
    rig_up(&r, c);
    put_sorted_pairs(&r);
    rig_join(&other, &r);
    far_session *session;
    far_cursor *first, *second, *third;
    assert_ok(far_session_open(r.pool, &session));
    assert_ok(far_cursor_open(session, r.index, &first));
    assert_ok(far_cursor_open(session, r.index, &second));
    assert_ok(far_cursor_first(first));
    far_session_close(session);
    assert_refused("session", far_cursor_next(first));
    assert_refused("session", far_cursor_last(second));
    assert_refused("session", far_cursor_seek(first, "a", 1));
    assert_refused("session", far_cursor_range(first, NULL, 0, NULL, 0));
    assert_at_no_pair(first);
    far_cursor_close(first);
    far_cursor_close(second);

    third = open_cursor(&other);
    assert_ok(far_cursor_first(third));
    far_pool_close(other.pool);
    assert_refused("pool", far_cursor_next(third)); /* although the buffer contains more pairs */
    assert_refused("pool", far_cursor_first(third));
    assert_at(third, 0);
    far_cursor_close(third);
    far_index_close(other.index);
    far_session_close(other.session);
    rig_down(&r);
}


/* In an index of a fixed key size, seeks, ranges and prefixes of other lengths select the same keys as in other
 * indexes.
 */
BEHAVIOUR_FOR(seeks_of_any_length_in_an_index_of_fixed_keys, FOR_ORDERED) {
    rig r;
    rig_up_with(&r, c, RIG_SIZE, NULL, "key_size=8");
    uint8_t key[8];
    for (uint64_t i = 0; i < 4; i++) {
        number_key(i * 0x100 + (i == 3 ? 0xff : 0), key); /* 0, 0x100, 0x200, 0x3ff */
        assert_ok(put_proof(r.session, r.index, key, 8, VALUE_BYTES, i));
    }
    far_cursor *cursor = open_cursor(&r);
    static const struct {
        const char *key;
        size_t length;
        int from, before; /* numbers of the pairs that far_cursor_seek and far_cursor_seek_before find; -1: none */
    } seeks[] = {
        {"\0", 1, 0, -1},
        {"\0\0\0\0\0\0\1", 7, 1, 0},
        {"\0\0\0\0\0\0\1\0", 8, 1, 1},
        {"\0\0\0\0\0\0\1\0\0", 9, 2, 1},
        {"\0\0\0\0\0\0\1\1", 8, 2, 1},
        {"\0\0\0\0\0\0\3\377", 8, 3, 3},
        {"\0\0\0\0\0\0\3\377\0", 9, -1, 3},
        {"\1", 1, -1, 3},
        {"\377\377\377\377\377\377\377\377\377", 9, -1, 3},
    };
    for (size_t i = 0; i < COUNT_OF(seeks); i++) {
        assert_code(seeks[i].from < 0 ? FAR_ERR_NOT_FOUND : FAR_OK,
                    far_cursor_seek(cursor, seeks[i].key, seeks[i].length));
        if (seeks[i].from >= 0)
            assert_int_equal(((const uint8_t *)far_cursor_key(cursor, NULL))[6], seeks[i].from);
        assert_code(seeks[i].before < 0 ? FAR_ERR_NOT_FOUND : FAR_OK,
                    far_cursor_seek_before(cursor, seeks[i].key, seeks[i].length));
        if (seeks[i].before >= 0)
            assert_int_equal(((const uint8_t *)far_cursor_key(cursor, NULL))[6], seeks[i].before);
    }
    assert_ok(far_cursor_prefix(cursor, "\0\0\0\0\0\0\2", 7));
    assert_ok(far_cursor_last(cursor));
    assert_int_equal(((const uint8_t *)far_cursor_key(cursor, NULL))[6], 2);
    assert_code(FAR_ERR_NOT_FOUND, far_cursor_prev(cursor));
    far_cursor_close(cursor);
    rig_down(&r);
}


/* A kind without key order refuses to open a cursor. */
BEHAVIOUR_FOR(a_cursor_on_an_unordered_kind_is_unsupported, FOR_UNORDERED) {
    rig r;
    rig_up(&r, c);
    far_cursor *cursor = NULL;
    assert_code(FAR_ERR_UNSUPPORTED, far_cursor_open(r.session, r.index, &cursor));
    assert_null(cursor);
    rig_down(&r);
}
