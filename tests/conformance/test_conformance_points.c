/* Behaviours of point operations: their results, the changes that they make and must not make, for keys and values of
 * all shapes. */
#include "conform.h"
#include "workload/value.h"


/* A get returns the value of the last put. */
BEHAVIOUR(a_put_is_read_back) {
    rig r;
    rig_up(&r, c);
    assert_ok(put_text(&r, "apple", "red"));
    assert_text(&r, "apple", "red");
    assert_ok(put_text(&r, "apple", "green"));
    assert_text(&r, "apple", "green");
    rig_down(&r);
}


/* Operations on an absent key return FAR_ERR_NOT_FOUND and leave the buffer unchanged, in an empty index and in an
 * index with keys that are prefixes or extensions of the absent key. */
BEHAVIOUR(an_absent_key_is_not_found) {
    rig r;
    rig_up(&r, c);
    for (int filled = 0; filled < 2; filled++) {
        size_t length = 77;
        char buffer[8] = "before";
        assert_code(FAR_ERR_NOT_FOUND, far_get(r.session, r.index, "pear", 4, buffer, sizeof(buffer), &length));
        assert_string_equal(buffer, "before");
        assert_code(FAR_ERR_NOT_FOUND, far_get(r.session, r.index, "pear", 4, NULL, 0, NULL));
        assert_code(FAR_ERR_NOT_FOUND, update_text(&r, "pear", "x"));
        assert_code(FAR_ERR_NOT_FOUND, delete_text(&r, "pear"));
        assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "pear"));
        assert_ok(put_text(&r, "pea", "a prefix"));
        assert_ok(put_text(&r, "pears", "longer"));
        assert_ok(put_text(&r, "pearl", "another one that is longer"));
    }
    rig_down(&r);
}


/* An insert of a present key returns FAR_ERR_EXISTS and leaves the value unchanged. */
BEHAVIOUR(an_insert_adds_but_never_replaces) {
    rig r;
    rig_up(&r, c);
    assert_ok(insert_text(&r, "k", "first"));
    assert_code(FAR_ERR_EXISTS, insert_text(&r, "k", "second"));
    assert_text(&r, "k", "first");
    assert_ok(delete_text(&r, "k"));
    assert_ok(insert_text(&r, "k", "third"));
    assert_text(&r, "k", "third");
    assert_ok(put_text(&r, "l", "by put"));
    assert_code(FAR_ERR_EXISTS, insert_text(&r, "l", ""));
    assert_text(&r, "l", "by put");
    rig_down(&r);
}


/* An update of an absent key returns FAR_ERR_NOT_FOUND, and the key remains absent. */
BEHAVIOUR(an_update_replaces_but_never_adds) {
    rig r;
    rig_up(&r, c);
    assert_code(FAR_ERR_NOT_FOUND, update_text(&r, "k", "x"));
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "k"));
    assert_ok(insert_text(&r, "k", "first"));
    assert_ok(update_text(&r, "k", "second"));
    assert_text(&r, "k", "second");
    assert_ok(delete_text(&r, "k"));
    assert_code(FAR_ERR_NOT_FOUND, update_text(&r, "k", "third"));
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "k"));
    rig_down(&r);
}


/* A second delete of a key returns FAR_ERR_NOT_FOUND, and similar keys are not affected. */
BEHAVIOUR(a_delete_removes_once_and_only_its_key) {
    rig r;
    rig_up(&r, c);
    assert_ok(put_text(&r, "a", "1"));
    assert_ok(put_text(&r, "ab", "2"));
    assert_ok(put_text(&r, "abc", "3"));
    assert_ok(delete_text(&r, "ab"));
    assert_code(FAR_ERR_NOT_FOUND, delete_text(&r, "ab"));
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "ab"));
    assert_text(&r, "a", "1");
    assert_text(&r, "abc", "3");
    assert_ok(delete_text(&r, "a"));
    assert_ok(delete_text(&r, "abc"));
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "a"));
    rig_down(&r);
}


/* A get with a too small buffer returns FAR_ERR_TOO_SMALL and the length of the value, and does not write the
 * buffer. */
BEHAVIOUR(a_too_small_buffer_is_left_unchanged_and_the_size_is_returned) {
    rig r;
    rig_up(&r, c);
    const size_t sizes[] = {1, 8, 100, 5000, FAR_VALUE_MAX};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        assert_ok(put_proof(r.session, r.index, "k", 1, sizes[i], i));
        const size_t capacities[] = {0, sizes[i] / 2, sizes[i] - 1};
        for (size_t j = 0; j < COUNT_OF(capacities); j++) {
            uint8_t *buffer = malloc(capacities[j] + 1);
            size_t length = 0;
            memset(buffer, 0x5a, capacities[j] + 1);
            assert_code(FAR_ERR_TOO_SMALL, far_get(r.session, r.index, "k", 1, buffer, capacities[j], &length));
            assert_int_equal(length, sizes[i]);
            for (size_t at = 0; at <= capacities[j]; at++)
                assert_int_equal(buffer[at], 0x5a);
            assert_code(FAR_ERR_TOO_SMALL, far_get(r.session, r.index, "k", 1, buffer, capacities[j], NULL));
            free(buffer);
        }
        size_t length = 0;
        assert_code(FAR_ERR_TOO_SMALL, far_get(r.session, r.index, "k", 1, NULL, 0, &length));
        assert_int_equal(length, sizes[i]);
        assert_proof(r.session, r.index, "k", 1, sizes[i], i);
    }
    rig_down(&r);
}


/* A get succeeds with a buffer of exactly the length of the value, and writes no byte after it. */
BEHAVIOUR(an_exact_buffer_is_enough) {
    rig r;
    rig_up(&r, c);
    const size_t sizes[] = {1, 7, 8, 9, 4096, FAR_VALUE_MAX};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        assert_ok(put_proof(r.session, r.index, "k", 1, sizes[i], 1));
        uint8_t *buffer = malloc(sizes[i]);
        size_t length = 0;
        assert_ok(far_get(r.session, r.index, "k", 1, buffer, sizes[i], &length));
        assert_int_equal(length, sizes[i]);
        assert_true(far_value_check(buffer, length, "k", 1, NULL));
        assert_ok(far_get(r.session, r.index, "k", 1, buffer, sizes[i], NULL));
        free(buffer);
    }
    rig_down(&r);
}


/* A key with an empty value is present. */
BEHAVIOUR(an_empty_value_is_a_value) {
    rig r;
    rig_up(&r, c);
    size_t length = 77;
    assert_ok(insert_text(&r, "k", ""));
    assert_ok(far_get(r.session, r.index, "k", 1, NULL, 0, &length));
    assert_int_equal(length, 0);
    assert_ok(far_get(r.session, r.index, "k", 1, NULL, 0, NULL));
    assert_code(FAR_ERR_EXISTS, insert_text(&r, "k", "x"));
    assert_ok(update_text(&r, "k", "full"));
    /* NULL is allowed here, because no byte is read from a value of length 0. */
    assert_ok(far_put(r.session, r.index, "k", 1, NULL, 0));
    assert_text(&r, "k", "");
    assert_ok(far_insert(r.session, r.index, "l", 1, NULL, 0));
    assert_ok(far_update(r.session, r.index, "l", 1, NULL, 0));
    assert_text(&r, "l", "");
    assert_ok(delete_text(&r, "k"));
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "k"));
    rig_down(&r);
}


/* list of keys that are difficult to distinguish */
typedef struct shape {
    uint8_t bytes[FAR_KEY_MAX];
    size_t length;
} shape;


static void add_shape(shape *shapes, size_t *count, const void *bytes, size_t length) {
    for (size_t i = 0; i < *count; i++)
        if (shapes[i].length == length && memcmp(shapes[i].bytes, bytes, length) == 0)
            return;
    memcpy(shapes[*count].bytes, bytes, length);
    shapes[(*count)++].length = length;
}


#define SHAPES_MAX 400


static size_t all_shapes(shape *shapes) {
    static const size_t lengths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256};
    uint8_t bytes[FAR_KEY_MAX];
    size_t count = 0;
    for (unsigned b = 0; b < 256; b += b < 4 || b >= 0xfc ? 1 : 9) { /* keys of one byte */
        bytes[0] = (uint8_t)b;
        add_shape(shapes, &count, bytes, 1);
    }
    static const uint8_t fills[] = {0x00, 0xff, 'a'};
    for (size_t f = 0; f < COUNT_OF(fills); f++) /* keys of equal bytes, which differ only in length */
        for (size_t i = 0; i < COUNT_OF(lengths); i++) {
            memset(bytes, fills[f], sizeof(bytes));
            add_shape(shapes, &count, bytes, lengths[i]);
            bytes[lengths[i] - 1] ^= 1; /* keys like the previous one, but with another last byte */
            add_shape(shapes, &count, bytes, lengths[i]);
            memset(bytes, fills[f], sizeof(bytes));
            bytes[0] ^= 0x80; /* keys like the previous one, but with another first byte */
            add_shape(shapes, &count, bytes, lengths[i]);
        }
    for (size_t length = 1; length <= 12; length++) /* keys that are prefixes of each other and contain NUL bytes */
        add_shape(shapes, &count, "ab\0cd\0\0ef\0\0\0", length);
    for (size_t i = 0; i < 64; i++) { /* long keys that differ from each other in one byte */
        memset(bytes, 'z', sizeof(bytes));
        bytes[4 * i + 3] = 'y';
        add_shape(shapes, &count, bytes, FAR_KEY_MAX);
    }
    assert_true(count <= SHAPES_MAX);
    return count;
}


/* Keys that are difficult to distinguish each keep their own value, and deleting one key does not affect the
 * others. */
BEHAVIOUR(all_key_shapes_are_kept_apart) {
    rig r;
    rig_up(&r, c);
    shape *shapes = calloc(SHAPES_MAX, sizeof(*shapes));
    size_t count = all_shapes(shapes);
    for (size_t i = 0; i < count; i++) {
        assert_code(FAR_ERR_NOT_FOUND, far_get(r.session, r.index, shapes[i].bytes, shapes[i].length, NULL, 0, NULL));
        assert_ok(far_insert(r.session, r.index, shapes[i].bytes, shapes[i].length, &i, sizeof(i)));
    }
    for (size_t i = 0; i < count; i++)
        assert_value(r.session, r.index, shapes[i].bytes, shapes[i].length, &i, sizeof(i));
    for (size_t i = 0; i < count; i += 2)
        assert_ok(far_delete(r.session, r.index, shapes[i].bytes, shapes[i].length));
    for (size_t i = 0; i < count; i++)
        if (i % 2 == 0)
            assert_code(FAR_ERR_NOT_FOUND,
                        far_get(r.session, r.index, shapes[i].bytes, shapes[i].length, NULL, 0, NULL));
        else
            assert_value(r.session, r.index, shapes[i].bytes, shapes[i].length, &i, sizeof(i));
    far_usage usage = {0};
    assert_ok(far_index_usage(r.session, r.index, &usage));
    assert_int_equal(usage.keys, count / 2);
    free(shapes);
    rig_down(&r);
}


/* A put and an update can replace a value of any length by a value of any other length. */
BEHAVIOUR(values_change_their_size_in_all_directions) {
    rig r;
    rig_up(&r, c);
    const size_t sizes[] = {0, 1, 8, 9, 64, 300, 4096, 40000, FAR_VALUE_MAX};
    uint64_t version = 0;
    assert_ok(put_text(&r, "near", "by"));
    for (size_t from = 0; from < COUNT_OF(sizes); from++)
        for (size_t to = 0; to < COUNT_OF(sizes); to++) {
            uint8_t *value = malloc(FAR_VALUE_MAX);
            assert_ok(put_proof(r.session, r.index, "k", 1, sizes[from], ++version));
            assert_proof(r.session, r.index, "k", 1, sizes[from], version);
            far_value_fill(value, sizes[to], "k", 1, ++version);
            assert_ok(far_update(r.session, r.index, "k", 1, value, sizes[to]));
            assert_proof(r.session, r.index, "k", 1, sizes[to], version);
            free(value);
        }
    assert_text(&r, "near", "by");
    rig_down(&r);
}


/* Keys and values of a length that is not allowed are rejected, and the index remains unchanged. */
BEHAVIOUR(keys_and_values_of_wrong_size_are_refused) {
    rig r;
    rig_up(&r, c);
    static uint8_t large[FAR_VALUE_MAX + 1];
    char buffer[8];
    const size_t bad_keys[] = {0, FAR_KEY_MAX + 1, FAR_VALUE_MAX, SIZE_MAX};
    for (size_t i = 0; i < COUNT_OF(bad_keys); i++) {
        size_t key_len = bad_keys[i];
        assert_refused("key", far_put(r.session, r.index, large, key_len, "v", 1));
        assert_refused("key", far_insert(r.session, r.index, large, key_len, "v", 1));
        assert_refused("key", far_update(r.session, r.index, large, key_len, "v", 1));
        assert_refused("key", far_delete(r.session, r.index, large, key_len));
        assert_refused("key", far_get(r.session, r.index, large, key_len, buffer, sizeof(buffer), NULL));
    }
    assert_ok(put_text(&r, "there", "before"));
    const size_t bad_values[] = {FAR_VALUE_MAX + 1, SIZE_MAX};
    for (size_t i = 0; i < COUNT_OF(bad_values); i++) {
        assert_refused("value", far_put(r.session, r.index, "k", 1, large, bad_values[i]));
        assert_refused("value", far_insert(r.session, r.index, "k", 1, large, bad_values[i]));
        assert_refused("value", far_update(r.session, r.index, "there", 5, large, bad_values[i]));
    }
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "k"));
    assert_text(&r, "there", "before");
    far_usage usage = {0};
    assert_ok(far_index_usage(r.session, r.index, &usage));
    assert_int_equal(usage.keys, 1);
    rig_down(&r);
}


/* Keys of FAR_KEY_MAX bytes with values of FAR_VALUE_MAX bytes can be stored. */
BEHAVIOUR(the_largest_keys_and_values_are_stored) {
    rig r;
    rig_up(&r, c);
    uint8_t key[FAR_KEY_MAX];
    for (unsigned i = 0; i < 20; i++) {
        memset(key, 0, sizeof(key));
        key[i * 13] = 1;
        assert_ok(put_proof(r.session, r.index, key, sizeof(key), FAR_VALUE_MAX, i));
    }
    for (unsigned i = 0; i < 20; i++) {
        memset(key, 0, sizeof(key));
        key[i * 13] = 1;
        assert_proof(r.session, r.index, key, sizeof(key), FAR_VALUE_MAX, i);
    }
    rig_down(&r);
}


/* The caller may overwrite the memory of key and value as soon as a synchronous call has returned. */
BEHAVIOUR(the_callers_memory_is_free_after_a_call) {
    rig r;
    rig_up(&r, c);
    uint8_t *key = malloc(32), *value = malloc(64);
    for (int i = 0; i < 50; i++) {
        memset(key, i, 32);
        far_value_fill(value, 64, key, 32, (uint64_t)i);
        assert_ok(far_put(r.session, r.index, key, 32, value, 64));
        memset(key, 0xee, 32);
        memset(value, 0xee, 64);
    }
    free(value);
    for (int i = 0; i < 50; i++) {
        memset(key, i, 32);
        assert_proof(r.session, r.index, key, 32, 64, (uint64_t)i);
    }
    free(key);
    rig_down(&r);
}


/* Hundreds of keys have the right values after puts, deletes and changes of value lengths. */
BEHAVIOUR(many_keys_come_and_go) {
    enum { KEYS = 500 };
    rig r;
    rig_up(&r, c);
    uint8_t key[8];
    for (uint64_t i = 0; i < KEYS; i++) {
        number_key(i * 7919 % KEYS, key);
        assert_ok(put_proof(r.session, r.index, key, 8, i * 7919 % KEYS % 60, 1));
    }
    for (uint64_t i = 0; i < KEYS; i++) {
        number_key(i, key);
        if (i % 3 == 0)
            assert_ok(far_delete(r.session, r.index, key, 8));
        else if (i % 3 == 1)
            assert_ok(put_proof(r.session, r.index, key, 8, 200 - i % 60, 2));
    }
    for (uint64_t i = 0; i < KEYS; i++) {
        number_key(i, key);
        if (i % 3 == 0)
            assert_code(FAR_ERR_NOT_FOUND, far_get(r.session, r.index, key, 8, NULL, 0, NULL));
        else
            assert_proof(r.session, r.index, key, 8, i % 3 == 1 ? 200 - i % 60 : i % 60, i % 3 == 1 ? 2 : 1);
    }
    rig_down(&r);
}
