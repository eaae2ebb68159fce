/* DART is compared with an ordered map as the model, by random operations. The runs use small alphabets (deep prefixes,
 * keys that are prefixes of others, NUL bytes), values of all sizes, and every option, bucket size and maximal skip.
 * The index is checked after every phase. */
#include "../support/problem.h"
#include "base/random.h"
#include "farindex.h"
#include "test.h"
#include "verify/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE_MAX = 65536 };

typedef struct run {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_model *model;
    far_random random;
    unsigned letters; /* size of the alphabet */
    size_t longest;
    uint8_t *value, *back;
} run;


static void open_run(run *r, const char *options, unsigned letters, size_t longest) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    memset(r, 0, sizeof(*r));
    far_random_seed(&r->random, letters * 1000 + longest);
    r->letters = letters;
    r->longest = longest;
    r->value = malloc(VALUE_MAX);
    r->back = malloc(VALUE_MAX);
    r->model = far_model_new();
    assert_true(r->value && r->back && r->model);
    assert_int_equal(far_pool_open("local:2x128M", &pool_options, &r->pool), 0);
    assert_int_equal(far_session_open(r->pool, &r->session), 0);
    assert_int_equal(far_index_create(r->session, "map", "dart", options, &r->index), 0);
}


static void close_run(run *r) {
    far_index_close(r->index);
    far_session_close(r->session);
    far_pool_close(r->pool);
    far_model_free(r->model);
    free(r->value);
    free(r->back);
}


/* Makes a random key. Up to four letters are NUL, 0xff, 'a' and 1; more letters are distributed over all bytes. A key
 * of more than 12 bytes contains the letter 'm' between its first eight and last four random letters. */
static size_t make_key(run *r, uint8_t *key) {
    static const uint8_t some[] = {0, 255, 'a', 1};
    size_t length = 1 + far_random_below(&r->random, far_random_chance(&r->random, 1, 10) ? r->longest
                                                     : r->longest < 7                     ? r->longest
                                                                                          : 7);
    for (size_t i = 0; i < length; i++) {
        unsigned letter = (unsigned)far_random_below(&r->random, r->letters);
        key[i] = i > 7 && i + 4 < length ? 'm' : r->letters <= 4 ? some[letter] : (uint8_t)(letter * 257 / r->letters);
    }
    return length;
}


static size_t make_value(run *r) {
    static const size_t sizes[] = {0, 1, 8, 24, 200, 600, 5000, VALUE_MAX};
    size_t length = sizes[far_random_below(&r->random, far_random_chance(&r->random, 1, 50) ? 8 : 6)];
    for (size_t i = 0; i < length && i < 64; i++)
        r->value[i] = (uint8_t)far_random_next(&r->random);
    memset(r->value + (length < 64 ? length : 64), (int)far_random_below(&r->random, 256),
           length < 64 ? 0 : length - 64);
    return length;
}


static void execute_random_step(run *r, unsigned deletes) {
    uint8_t key[4096];
    size_t key_len = make_key(r, key), value_len, length = 0, wanted_len = 0;
    const void *wanted = NULL;
    unsigned choice = (unsigned)far_random_below(&r->random, 10);
    if (choice < deletes) {
        assert_int_equal(far_delete(r->session, r->index, key, key_len), far_model_delete(r->model, key, key_len));
    } else if (choice < 8) {
        value_len = make_value(r);
        int got, expected;
        if (choice % 3 == 0) {
            got = far_insert(r->session, r->index, key, key_len, r->value, value_len);
            expected = far_model_insert(r->model, key, key_len, r->value, value_len);
        } else if (choice % 3 == 1) {
            got = far_put(r->session, r->index, key, key_len, r->value, value_len);
            expected = far_model_put(r->model, key, key_len, r->value, value_len);
        } else {
            got = far_update(r->session, r->index, key, key_len, r->value, value_len);
            expected = far_model_update(r->model, key, key_len, r->value, value_len);
        }
        assert_int_equal(got, expected);
    }
    int got = far_get(r->session, r->index, key, key_len, r->back, VALUE_MAX, &length);
    assert_int_equal(got, far_model_get(r->model, key, key_len, &wanted, &wanted_len));
    if (got == 0) {
        assert_int_equal(length, wanted_len);
        assert_memory_equal(r->back, wanted, length);
    }
}


typedef struct listing {
    uint64_t hash;
    size_t count;
} listing;


static int add_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    listing *l = ctx;
    const uint8_t *bytes[2] = {key, value};
    size_t lengths[2] = {key_len, value_len};
    for (unsigned part = 0; part < 2; part++)
        for (size_t i = 0; i <= lengths[part]; i++)
            l->hash = (l->hash ^ (i < lengths[part] ? bytes[part][i] : 0x1ffu)) * 0x100000001b3ull;
    l->count++;
    return 0;
}


static void compare_random_range(run *r, const void *from, size_t from_len, const void *to, size_t to_len,
                                 size_t limit) {
    listing mine = {0}, theirs = {0};
    int64_t got = far_scan(r->session, r->index, from, from_len, to, to_len, limit, add_pair, &mine);
    assert_int_equal(got, far_model_scan(r->model, from, from_len, to, to_len, limit, add_pair, &theirs));
    assert_true(mine.hash == theirs.hash && mine.count == theirs.count);
    mine = theirs = (listing){0};
    got = far_scan_reverse(r->session, r->index, from, from_len, to, to_len, limit, add_pair, &mine);
    assert_int_equal(got, far_model_scan_reverse(r->model, from, from_len, to, to_len, limit, add_pair, &theirs));
    assert_true(mine.hash == theirs.hash && mine.count == theirs.count);
}


static void everything_is_the_same(run *r) {
    uint8_t from[4096], to[4096];
    far_usage usage;
    compare_random_range(r, NULL, 0, NULL, 0, 0);
    for (unsigned i = 0; i < 30; i++) {
        size_t from_len = make_key(r, from), to_len = make_key(r, to);
        compare_random_range(r, from, from_len, i % 3 ? to : NULL, i % 3 ? to_len : 0,
                             i % 2 ? 1 + far_random_below(&r->random, 40) : 0);
    }
    assert_int_equal(far_index_check(r->session, r->index, fail_at_problem, NULL), 0);
    assert_int_equal(far_index_usage(r->session, r->index, &usage), 0);
    assert_int_equal(usage.keys, far_model_count(r->model));
}


/* Runs phases in which the index grows, keeps its size, and shrinks. Asserts that the memory in use at the end is
 * proportional to the number of remaining keys. */
static void same_as_the_model(const char *options, unsigned letters, size_t longest, unsigned steps) {
    run r;
    open_run(&r, options, letters, longest);
    everything_is_the_same(&r);
    for (unsigned deletes = 1; deletes <= 8; deletes = deletes == 1 ? 4 : deletes == 4 ? 8 : 9) {
        for (unsigned i = 0; i < steps; i++)
            execute_random_step(&r, deletes);
        everything_is_the_same(&r);
    }
    assert_int_equal(far_pool_check(r.session, 1, fail_at_problem, NULL), 0);
    close_run(&r);
}


/* Proves that the results are those of the model with each technique switched off. */
TEST(every_switch_gives_the_same_results) {
    static const char *const switches[] = {"est=0",
                                           "est=1",
                                           "est=1,one_fingerprint=1",
                                           "est=0,hashed_nodes=0",
                                           "est=0,lock_free=0",
                                           "est=0,header_inline=0",
                                           "est=0,masked_freeze=0",
                                           "est=0,rider=0",
                                           "est=0,spec_write=0",
                                           "est=0,absorb=0",
                                           "est=0,shrink=0",
                                           "est=0,colocate=0",
                                           "est=0,leaf_min=128",
                                           "est=1,express_cache=0",
                                           "est=1,adjust=0",
                                           "est=0,one_by_one=0",
                                           "est=1,one_by_one=0",
                                           "est=1,one_by_one=0,scan_cache=0",
                                           "est=1,est_update=0"};
    for (unsigned i = 0; i < sizeof(switches) / sizeof(switches[0]); i++) {
        same_as_the_model(switches[i], 2, 40, 700);
        same_as_the_model(switches[i], 90, 3, 1200);
    }
}


/* Proves that the results are those of the model for every bucket size and for short maximal skips. */
TEST(every_bucket_size_and_skip) {
    static const char *const shapes[] = {"est=0,bucket=8",   "est=0,bucket=16",   "est=0,bucket=32",
                                         "est=0,bucket=64",  "est=1,bucket=8",    "est=1,bucket=64",
                                         "est=0,max_skip=1", "est=0,max_skip=15", "est=1,max_skip=1"};
    for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        same_as_the_model(shapes[i], 256, 3, 2500);
        same_as_the_model(shapes[i], 3, 200, 1000);
    }
}


/* Proves that the results are those of the model for keys up to the maximal length. */
TEST(keys_of_thousands_of_bytes) {
    same_as_the_model("est=0,max_key=4095", 2, 4095, 800);
    same_as_the_model("est=1,max_key=4095", 2, 4095, 800);
    same_as_the_model("est=0,max_key=1000,max_skip=15", 4, 1000, 800);
}


/* Proves that all operations are correct in an empty index and with a single key. */
TEST(an_index_with_one_key_or_none) {
    run r;
    char byte;
    open_run(&r, "est=0", 2, 1);
    assert_int_equal(far_get(r.session, r.index, "a", 1, &byte, 1, NULL), FAR_ERR_NOT_FOUND);
    assert_int_equal(far_delete(r.session, r.index, "a", 1), FAR_ERR_NOT_FOUND);
    assert_int_equal(far_update(r.session, r.index, "a", 1, "1", 1), FAR_ERR_NOT_FOUND);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(far_insert(r.session, r.index, "a", 1, "1", 1), 0);
        assert_int_equal(far_insert(r.session, r.index, "a", 1, "2", 1), FAR_ERR_EXISTS);
        assert_int_equal(far_get(r.session, r.index, "ab", 2, &byte, 1, NULL), FAR_ERR_NOT_FOUND);
        assert_int_equal(far_insert(r.session, r.index, "\0", 1, "2", 1), 0);
        assert_int_equal(far_insert(r.session, r.index, "a\0", 2, "2", 1), 0);
        assert_int_equal(far_delete(r.session, r.index, "a", 1), 0);
        assert_int_equal(far_get(r.session, r.index, "a\0", 2, &byte, 1, NULL), 0);
        assert_int_equal(far_delete(r.session, r.index, "a\0", 2), 0);
        assert_int_equal(far_delete(r.session, r.index, "\0", 1), 0);
        assert_int_equal(far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, add_pair, &(listing){0}), 0);
    }
    close_run(&r);
}
