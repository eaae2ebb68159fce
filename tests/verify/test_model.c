/* Compares the reference model with a flat array. */
#include "base/bytes.h"
#include "base/random.h"
#include "test.h"
#include "verify/model.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>


#define SPACE 60

typedef struct flat { /* indexed by the number of the key; the keys are stored in `keys` */
    char keys[SPACE][8];
    size_t key_lengths[SPACE];
    int values[SPACE]; /* -1: absent */
} flat;


/* Makes keys of many shapes: prefixes of each other, with NULs and 0xff. */
static void make_keys(flat *f) {
    static const char letters[] = {0, 'a', (char)0xff};
    size_t made = 0;
    for (size_t length = 1; made < SPACE; length++) {
        size_t all = 1;
        for (size_t i = 0; i < length; i++)
            all *= 3;
        for (size_t n = 0; n < all && made < SPACE; n++, made++) {
            size_t rest = n;
            for (size_t i = 0; i < length; i++, rest /= 3)
                f->keys[made][i] = letters[rest % 3];
            f->key_lengths[made] = length;
            f->values[made] = -1;
        }
    }
}


static void check_get(const far_model *model, const flat *f, size_t k) {
    const void *value;
    size_t length;
    int result = far_model_get(model, f->keys[k], f->key_lengths[k], &value, &length);
    assert_int_equal(result, f->values[k] < 0 ? FAR_ERR_NOT_FOUND : FAR_OK);
    if (result == FAR_OK) {
        assert_int_equal(length, sizeof(int));
        assert_memory_equal(value, &f->values[k], sizeof(int));
    }
}


typedef struct seen {
    const flat *f;
    far_bytes last;
    size_t count, stop_after;
    bool reverse;
} seen;


static int see(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    seen *s = ctx;
    assert_int_equal(value_len, sizeof(int));
    far_bytes bytes = {key, key_len};
    if (s->count)
        assert_true(s->reverse ? far_bytes_compare(s->last, bytes) > 0 : far_bytes_compare(s->last, bytes) < 0);
    s->last = bytes;
    size_t k = 0;
    while (k < SPACE && far_bytes_compare((far_bytes){s->f->keys[k], s->f->key_lengths[k]}, bytes) != 0)
        k++;
    assert_true(k < SPACE);
    assert_memory_equal(value, &s->f->values[k], sizeof(int));
    return ++s->count == s->stop_after;
}


/* Returns the number of keys in [low, high) that a scan in this direction returns up to the key `last`. */
static size_t count_between(const flat *f, far_bytes low, far_bytes high, far_bytes last, bool reverse) {
    size_t count = 0;
    for (size_t k = 0; k < SPACE; k++) {
        far_bytes key = {f->keys[k], f->key_lengths[k]};
        int order = far_bytes_compare(key, last);
        count += f->values[k] >= 0 && far_bytes_compare(low, key) <= 0 && far_bytes_compare(key, high) < 0 &&
                 (reverse ? order >= 0 : order <= 0);
    }
    return count;
}


/* Compares both scans of the model with the array. The scans must return the right number of pairs in the right order,
 * and must end at the key that has the right number of keys before it. */
static void check_scan(const far_model *model, const flat *f, size_t from, size_t to, size_t limit, size_t stop_after) {
    far_bytes low = {f->keys[from], f->key_lengths[from]}, high = {f->keys[to], f->key_lengths[to]};
    size_t expected = 0;
    for (size_t k = 0; k < SPACE; k++) {
        far_bytes key = {f->keys[k], f->key_lengths[k]};
        expected += f->values[k] >= 0 && far_bytes_compare(low, key) <= 0 && far_bytes_compare(key, high) < 0;
    }
    if (limit && expected > limit)
        expected = limit;
    if (stop_after && expected > stop_after)
        expected = stop_after;
    for (int reverse = 0; reverse < 2; reverse++) {
        seen s = {.f = f, .stop_after = stop_after, .reverse = reverse};
        assert_int_equal((reverse ? far_model_scan_reverse : far_model_scan)(model, low.data, low.length, high.data,
                                                                             high.length, limit, see, &s),
                         expected);
        assert_int_equal(s.count, expected);
        assert_int_equal(expected ? count_between(f, low, high, s.last, reverse) : expected, expected);
    }
}


/* Random operations give the same results in the model and in an array. */
TEST(agrees_with_a_flat_array_on_random_steps) {
    flat f;
    make_keys(&f);
    far_model *model = far_model_new();
    far_random r;
    far_random_seed(&r, 3);
    size_t present = 0;
    for (int step = 0; step < 300000; step++) {
        size_t k = far_random_below(&r, SPACE);
        bool was = f.values[k] >= 0;
        int result = 0, expected = 0;
        switch (far_random_below(&r, 6)) {
        case 0:
            check_get(model, &f, k);
            break;
        case 1:
            result = far_model_insert(model, f.keys[k], f.key_lengths[k], &step, sizeof step);
            expected = was ? FAR_ERR_EXISTS : FAR_OK;
            f.values[k] = was ? f.values[k] : step;
            break;
        case 2:
            result = far_model_update(model, f.keys[k], f.key_lengths[k], &step, sizeof step);
            expected = was ? FAR_OK : FAR_ERR_NOT_FOUND;
            f.values[k] = was ? step : -1;
            break;
        case 3:
            result = far_model_put(model, f.keys[k], f.key_lengths[k], &step, sizeof step);
            f.values[k] = step;
            break;
        case 4:
            result = far_model_delete(model, f.keys[k], f.key_lengths[k]);
            expected = was ? FAR_OK : FAR_ERR_NOT_FOUND;
            f.values[k] = -1;
            break;
        default:
            check_scan(model, &f, k, far_random_below(&r, SPACE), far_random_below(&r, 6), far_random_below(&r, 4));
        }
        assert_int_equal(result, expected);
        present += (size_t)(f.values[k] >= 0) - (size_t)was;
        assert_int_equal(far_model_count(model), present);
    }
    far_model_free(model);
}


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(size_t *)ctx;
    return 0;
}


/* The model accepts keys of the largest size, empty values, and a new value that is part of the old one. */
TEST(long_keys_and_empty_values_work) {
    far_model *model = far_model_new();
    static char a[65536], b[65536];
    b[65535] = 1;
    assert_int_equal(far_model_insert(model, b, sizeof b, "", 0), FAR_OK);
    assert_int_equal(far_model_insert(model, a, sizeof a, b, sizeof b), FAR_OK);
    assert_int_equal(far_model_insert(model, a, sizeof a - 1, "x", 1), FAR_OK);
    const void *value;
    size_t length = 9, count = 0;
    assert_int_equal(far_model_get(model, b, sizeof b, &value, &length), FAR_OK);
    assert_int_equal(length, 0);
    assert_int_equal(far_model_get(model, a, sizeof a, &value, &length), FAR_OK);
    assert_int_equal(length, sizeof b);
    assert_int_equal(far_model_put(model, a, sizeof a, value, 7), FAR_OK); /* the new value is a part of the old one */
    assert_int_equal(far_model_scan(model, NULL, 0, NULL, 0, 0, count_pair, &count), 3);
    assert_int_equal(count, 3);
    assert_int_equal(far_model_scan(model, NULL, 0, b, sizeof b, 0, count_pair, &count), 2);
    far_model_free(model);
}


/* The model finds each of many keys. */
TEST(many_keys_are_put_and_found) {
    far_model *model = far_model_new();
    for (uint64_t i = 0; i < 300000; i++) {
        uint64_t key = __builtin_bswap64(i * 0x9e3779b97f4a7c15ull);
        assert_int_equal(far_model_insert(model, &key, sizeof key, &i, sizeof i), FAR_OK);
    }
    for (uint64_t i = 0; i < 300000; i++) {
        uint64_t key = __builtin_bswap64(i * 0x9e3779b97f4a7c15ull);
        const void *value;
        size_t length;
        assert_int_equal(far_model_get(model, &key, sizeof key, &value, &length), FAR_OK);
        assert_memory_equal(value, &i, sizeof i);
    }
    assert_int_equal(far_model_count(model), 300000);
    far_model_free(model);
}
