/* The toy map through the public API, on the local fabric. */
#include "../support/ground.h"
#include "../support/problem.h"
#include "base/random.h"
#include "index/index.h"
#include "index/toy/layout.h"
#include "task/session.h"
#include "test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


static void put_pair(ground *g, const char *key, const char *value) {
    assert_int_equal(far_put(g->session, g->index, key, strlen(key), value, strlen(value)), 0);
}


static void has_pair(ground *g, const char *key, const char *value) {
    char buffer[64];
    size_t length = 99;
    int result = far_get(g->session, g->index, key, strlen(key), buffer, sizeof(buffer), &length);
    if (!value) {
        assert_int_equal(result, FAR_ERR_NOT_FOUND);
        return;
    }
    assert_int_equal(result, 0);
    assert_int_equal(length, strlen(value));
    assert_memory_equal(buffer, value, length);
}


/* options of every variant without a deliberate fault */
static const char *const correct_variants[] = {NULL, "slots=1", "slots=8,locks=on", "slots=4K"};
static const char *const pools[] = {"local:64M", "local:3x64M"};


/* Insert, update, put and delete return the right result for a key that is present and one that is absent, in all
 * variants without a deliberate fault. */
TEST(each_kind_of_write_has_its_semantics) {
    for (unsigned i = 0; i < 8; i++) {
        ground g;
        open_small_environment(&g, pools[i / 4], correct_variants[i % 4]);
        has_pair(&g, "a", NULL);
        assert_int_equal(far_update(g.session, g.index, "a", 1, "0", 1), FAR_ERR_NOT_FOUND);
        assert_int_equal(far_insert(g.session, g.index, "a", 1, "1", 1), 0);
        assert_int_equal(far_insert(g.session, g.index, "a", 1, "2", 1), FAR_ERR_EXISTS);
        has_pair(&g, "a", "1");
        assert_int_equal(far_update(g.session, g.index, "a", 1, "longer than before", 18), 0);
        has_pair(&g, "a", "longer than before");
        put_pair(&g, "a", "");
        has_pair(&g, "a", "");
        put_pair(&g, "ab", "x");
        has_pair(&g, "a", "");
        assert_int_equal(far_delete(g.session, g.index, "a", 1), 0);
        assert_int_equal(far_delete(g.session, g.index, "a", 1), FAR_ERR_NOT_FOUND);
        has_pair(&g, "a", NULL);
        has_pair(&g, "ab", "x");
        close_small_environment(&g);
    }
}


/* The costs of the toy map without locks: a get takes two round trips, a write three. */
TEST(a_get_takes_two_round_trips_and_a_write_three) {
    ground g;
    far_stats before, after, diff;
    char value[8];
    open_small_environment(&g, "local:3x64M", NULL);
    put_pair(&g, "key", "one");
    far_session_stats_of(g.session, FAR_OP_GET, &before);
    assert_int_equal(far_get(g.session, g.index, "key", 3, value, 8, NULL), 0);
    far_session_stats_of(g.session, FAR_OP_GET, &after);
    diff = far_stats_diff(&after, &before);
    assert_int_equal(diff.round_trips, 2);
    assert_int_equal(diff.reads, 2);
    assert_int_equal(diff.ops[FAR_OP_GET], 1);

    far_session_stats_of(g.session, FAR_OP_PUT, &before);
    put_pair(&g, "key", "two");
    far_session_stats_of(g.session, FAR_OP_PUT, &after);
    diff = far_stats_diff(&after, &before);
    assert_int_equal(diff.round_trips, 3);
    assert_int_equal(diff.writes, 1);
    assert_int_equal(diff.cas, 1);
    close_small_environment(&g);
}


typedef struct seen {
    char text[256];
    unsigned count, stop_at;
} seen;


static int note_scanned_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    seen *s = ctx;
    size_t used = strlen(s->text);
    snprintf(s->text + used, sizeof(s->text) - used, "%.*s=%.*s ", (int)key_len, (const char *)key, (int)value_len,
             (const char *)value);
    return ++s->count == s->stop_at;
}


/* Scans with and without bounds give exactly the keys of their range in order. */
TEST(a_scan_is_in_order_and_within_its_bounds) {
    ground g;
    seen s = {0};
    open_small_environment(&g, "local:2x64M", "slots=4");
    for (const char *const *key = (const char *const[]){"b", "ab", "d", "a", "c", "aa", NULL}; *key; key++)
        put_pair(&g, *key, *key);
    assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, note_scanned_pair, &s), 6);
    assert_string_equal(s.text, "a=a aa=aa ab=ab b=b c=c d=d ");
    s = (seen){0};
    assert_int_equal(far_scan(g.session, g.index, "aa", 2, "c", 1, 0, note_scanned_pair, &s), 3);
    assert_string_equal(s.text, "aa=aa ab=ab b=b ");
    s = (seen){0};
    assert_int_equal(far_scan(g.session, g.index, "aaa", 3, NULL, 0, 2, note_scanned_pair, &s), 2);
    assert_string_equal(s.text, "ab=ab b=b ");
    s = (seen){.stop_at = 2};
    assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, note_scanned_pair, &s), 2);
    s = (seen){0};
    assert_int_equal(far_scan(g.session, g.index, "c", 1, "b", 1, 0, note_scanned_pair, &s), 0);
    assert_int_equal(s.count, 0);
    close_small_environment(&g);
}


/* Random operations have the same results as on an array in local memory. */
TEST(random_operations_match_a_model) {
    enum { KEYS = 200, STEPS = 20000 };
    for (unsigned variant = 0; variant < 4; variant++) {
        static int model[KEYS]; /* 0: the key is absent */
        memset(model, 0, sizeof(model));
        ground g;
        far_random random;
        far_random_seed(&random, variant + 1);
        open_small_environment(&g, "local:2x256M", correct_variants[variant]);
        unsigned present = 0;
        for (int step = 1; step <= STEPS; step++) {
            unsigned k = (unsigned)far_random_below(&random, KEYS);
            char key[16], value[16], got[16];
            size_t key_len = (size_t)snprintf(key, sizeof(key), "%u", k * 7919), length;
            size_t value_len = (size_t)snprintf(value, sizeof(value), "%d", step);
            int expected = 0, result = 0;
            switch (far_random_below(&random, 5)) {
            case 0:
                result = far_insert(g.session, g.index, key, key_len, value, value_len);
                expected = model[k] ? FAR_ERR_EXISTS : 0;
                present += !model[k];
                model[k] = model[k] ? model[k] : step;
                break;
            case 1:
                result = far_update(g.session, g.index, key, key_len, value, value_len);
                expected = model[k] ? 0 : FAR_ERR_NOT_FOUND;
                model[k] = model[k] ? step : 0;
                break;
            case 2:
                result = far_put(g.session, g.index, key, key_len, value, value_len);
                present += !model[k];
                model[k] = step;
                break;
            case 3:
                result = far_delete(g.session, g.index, key, key_len);
                expected = model[k] ? 0 : FAR_ERR_NOT_FOUND;
                present -= model[k] != 0;
                model[k] = 0;
                break;
            default:
                result = far_get(g.session, g.index, key, key_len, got, sizeof(got), &length);
                expected = model[k] ? 0 : FAR_ERR_NOT_FOUND;
                if (result == 0) {
                    value_len = (size_t)snprintf(value, sizeof(value), "%d", model[k]);
                    assert_int_equal(length, value_len);
                    assert_memory_equal(got, value, length);
                }
            }
            assert_int_equal(result, expected);
        }
        far_usage usage = {0};
        assert_int_equal(far_index_usage(g.session, g.index, &usage), 0);
        assert_int_equal(usage.keys, present);
        assert_int_equal(usage.pool_bytes - usage.pool_index_bytes, usage.key_bytes + usage.value_bytes);
        assert_int_equal(far_index_check(g.session, g.index, fail_at_problem, NULL), 0);
        close_small_environment(&g);
    }
}


typedef struct worker {
    ground *ground;
    unsigned number;
    int bad;
} worker;

enum { THREADS = 4, COUNTERS = 8, INCREMENTS = 300 };


/* One thread. It puts rising numbers under keys of its own and reads each one back. */
static void *count_up(void *arg) {
    worker *w = arg;
    far_session *session;
    if (far_session_open(w->ground->pool, &session) < 0)
        return w->bad = 1, NULL;
    for (unsigned i = 0; i < INCREMENTS && !w->bad; i++) {
        char key[2] = {'c', (char)('0' + i % COUNTERS)}, mine[3] = {key[0], key[1], (char)('A' + w->number)};
        unsigned value = i;
        if (far_put(session, w->ground->index, mine, 3, &value, sizeof(value)) < 0)
            w->bad = 2;
        unsigned back = 0;
        if (far_get(session, w->ground->index, mine, 3, &back, sizeof(back), NULL) < 0 || back != i)
            w->bad = 3;
    }
    far_session_close(session);
    return NULL;
}


/* Threads put different keys, all in one slot. No write is lost. Fails if the slot is changed
 * by a WRITE instead of a CAS (publish_bucket in toy/write.c). */
TEST(writers_of_one_slot_lose_nothing) {
    for (unsigned locks = 0; locks < 2; locks++) {
        ground g;
        pthread_t threads[THREADS];
        worker workers[THREADS];
        open_small_environment(&g, "local:2x256M", locks ? "slots=1,locks=on" : "slots=1");
        for (unsigned i = 0; i < THREADS; i++) {
            workers[i] = (worker){&g, i, 0};
            assert_int_equal(pthread_create(&threads[i], NULL, count_up, &workers[i]), 0);
        }
        for (unsigned i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(workers[i].bad, 0);
        }
        far_usage usage = {0};
        assert_int_equal(far_index_usage(g.session, g.index, &usage), 0);
        assert_int_equal(usage.keys, THREADS * COUNTERS);
        assert_int_equal(far_index_check(g.session, g.index, fail_at_problem, NULL), 0);
        close_small_environment(&g);
    }
}


static int remember_problem(void *ctx, const char *what) {
    strncpy(ctx, what, 255);
    return 0;
}


typedef struct damage {
    far_index *index;
    uint64_t offset, word; /* offset in the bucket of slot 0, and the word to write there */
} damage;


/* Overwrites a word of a stored bucket in far memory. */
static int spoil_bucket(far_task *t, void *arg) {
    const damage *d = arg;
    uint64_t stripe, word;
    int err = far_read_word(t, d->index->descriptor + sizeof(toy_root), &stripe);
    if (err < 0 || (err = far_read_word(t, stripe, &word)) < 0)
        return err;
    return far_write_word(t, toy_word_addr(word) + d->offset, d->word);
}


/* A key is overwritten in far memory, so that it is in the wrong slot or out of order. Check reports it. */
TEST(check_finds_misplaced_keys) {
    ground g;
    char problem[256] = "";
    open_small_environment(&g, "local:64M", "slots=1");
    put_pair(&g, "aaaaaaaa", "1");
    put_pair(&g, "bbbbbbbb", "2");
    damage d = {g.index, sizeof(toy_bucket) + sizeof(toy_pair), 0x7a7a7a7a7a7a7a7aull}; /* the first key */
    assert_int_equal(far_session_call(g.session, FAR_STATS_OTHER, false, spoil_bucket, &d), 0);
    assert_int_equal(far_index_check(g.session, g.index, remember_problem, problem), 1);
    assert_non_null(strstr(problem, "not in order"));
    close_small_environment(&g);
}


/* The lengths of a pair are overwritten in far memory. Gets return FAR_ERR_CORRUPT (toy_bucket_is_sound in
 * toy/bucket.c). */
TEST(a_broken_bucket_is_an_error_not_a_crash) {
    ground g;
    char value[8], problem[256] = "";
    open_small_environment(&g, "local:64M", "slots=1");
    put_pair(&g, "a", "1");
    damage d = {g.index, sizeof(toy_bucket), ~0ull}; /* the lengths of the first pair */
    assert_int_equal(far_session_call(g.session, FAR_STATS_OTHER, false, spoil_bucket, &d), 0);
    assert_int_equal(far_get(g.session, g.index, "a", 1, value, 8, NULL), FAR_ERR_CORRUPT);
    assert_int_equal(far_put(g.session, g.index, "a", 1, "2", 1), FAR_ERR_CORRUPT);
    assert_int_equal(far_index_check(g.session, g.index, remember_problem, problem), 1);
    close_small_environment(&g);
}


/* Keys and values of the largest sizes fit into one bucket, which may be nearly as large as a block. A pair for which the
 * bucket has no room is refused, and changes nothing. */
TEST(large_keys_and_values_fit) {
    ground g;
    enum { KEY = 4096, PAIRS = 3 };
    static char key[KEY], value[FAR_VALUE_MAX], back[FAR_VALUE_MAX];
    open_small_environment(&g, "local:256M", "slots=1,max_key=4096");
    for (int i = 0; i < PAIRS; i++) {
        memset(key, i, KEY);
        memset(value, i + 1, sizeof(value));
        assert_int_equal(far_insert(g.session, g.index, key, KEY, value, sizeof(value)), 0);
    }
    memset(key, PAIRS, KEY);
    assert_int_equal(far_insert(g.session, g.index, key, KEY, value, sizeof(value)), FAR_ERR_NO_MEMORY);
    for (int i = 0; i < PAIRS; i++) {
        size_t length = 0;
        memset(key, i, KEY);
        memset(value, i + 1, sizeof(value));
        assert_int_equal(far_get(g.session, g.index, key, KEY, back, sizeof(back), &length), 0);
        assert_int_equal(length, sizeof(value));
        assert_memory_equal(back, value, length);
    }
    close_small_environment(&g);
}


/* The option slots is refused, with its name in the message, if it is not a power of two. */
TEST(slots_must_be_a_power_of_two) {
    ground g;
    far_index *index;
    open_small_environment(&g, "local:64M", NULL);
    assert_int_equal(far_index_create(g.session, "odd", "toy", "slots=3", &index), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "slots"));
    assert_int_equal(far_index_open(g.session, "odd", &index), FAR_ERR_NOT_FOUND);
    close_small_environment(&g);
}
