/* Behaviours of index options: fixed-size layouts and longer keys, and errors for wrong options, kinds and names. */
#include "conform.h"
#include "workload/value.h"


/* An index with key_size and value_size rejects keys and values of every other size, and stays unchanged. */
BEHAVIOUR(fixed_sizes_refuse_all_others) {
    rig r;
    rig_up_with(&r, c, RIG_SIZE, NULL, "key_size=8,value_size=16");
    static uint8_t bytes[64];
    char buffer[16];
    const size_t sizes[] = {0, 1, 7, 9, 15, 17, 64};
    assert_ok(far_put(r.session, r.index, "12345678", 8, "0123456789abcdef", 16));
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        assert_refused("key", far_put(r.session, r.index, bytes, sizes[i], bytes, 16));
        assert_refused("key", far_insert(r.session, r.index, bytes, sizes[i], bytes, 16));
        assert_refused("key", far_update(r.session, r.index, bytes, sizes[i], bytes, 16));
        assert_refused("key", far_get(r.session, r.index, bytes, sizes[i], buffer, 16, NULL));
        assert_refused("key", far_delete(r.session, r.index, bytes, sizes[i]));
        assert_refused("value", far_put(r.session, r.index, "12345678", 8, bytes, sizes[i]));
        assert_refused("value", far_update(r.session, r.index, "12345678", 8, bytes, sizes[i]));
        assert_refused("value", far_insert(r.session, r.index, "87654321", 8, bytes, sizes[i]));
    }
    assert_value(r.session, r.index, "12345678", 8, "0123456789abcdef", 16);
    assert_code(FAR_ERR_NOT_FOUND, far_get(r.session, r.index, "87654321", 8, buffer, 16, NULL));
    rig_down(&r);
}


/* Runs inserts, updates, deletes, gets and a scan on an index with these options. */
static void work_on_fixed_layout(const conform *c, const char *options, size_t key_size, size_t value_size) {
    enum { KEYS = 300 };
    rig r;
    rig_up_with(&r, c, RIG_SIZE, NULL, options);
    uint8_t key[64] = {0}, *value = malloc(value_size + 1);
    for (uint64_t i = 0; i < KEYS; i++) {
        number_key(i * 0x9e3779b97f4a7c15ull, key);
        far_value_fill(value, value_size, key, key_size, 1);
        assert_ok(far_insert(r.session, r.index, key, key_size, value, value_size));
        assert_code(FAR_ERR_EXISTS, far_insert(r.session, r.index, key, key_size, value, value_size));
    }
    for (uint64_t i = 0; i < KEYS; i++) {
        number_key(i * 0x9e3779b97f4a7c15ull, key);
        assert_proof(r.session, r.index, key, key_size, value_size, 1);
        far_value_fill(value, value_size, key, key_size, 2);
        if (i % 2)
            assert_ok(far_update(r.session, r.index, key, key_size, value, value_size));
        else
            assert_ok(far_delete(r.session, r.index, key, key_size));
    }
    for (uint64_t i = 0; i < KEYS; i++) {
        number_key(i * 0x9e3779b97f4a7c15ull, key);
        if (i % 2)
            assert_proof(r.session, r.index, key, key_size, value_size, 2);
        else
            assert_code(FAR_ERR_NOT_FOUND, far_get(r.session, r.index, key, key_size, NULL, 0, NULL));
    }
    pairs found = {0};
    if (c->ordered)
        assert_code(KEYS / 2, far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
    for (size_t i = 0; i < found.count; i++) {
        assert_int_equal(found.items[i].key_len, key_size);
        assert_true(far_value_check(found.items[i].value, value_size, found.items[i].key, key_size, NULL));
        assert_true(i == 0 || memcmp(found.items[i - 1].key, found.items[i].key, key_size) < 0);
    }
    pairs_free(&found);
    free(value);
    rig_down(&r);
}


/* All operations work with fixed sizes of both keys and values. */
BEHAVIOUR(fixed_keys_and_values_work) {
    work_on_fixed_layout(c, "key_size=8,value_size=8", 8, 8);
    work_on_fixed_layout(c, "key_size=8,value_size=64", 8, 64);
    work_on_fixed_layout(c, "key_size=32,value_size=100", 32, 100);
}


/* With only one of key_size and value_size, the length of the other part of a pair (value or key) remains variable. */
BEHAVIOUR(one_fixed_size_leaves_the_other_free) {
    work_on_fixed_layout(c, "key_size=8", 8, 40);
    work_on_fixed_layout(c, "value_size=24", 12, 24);
    rig r;
    rig_up_with(&r, c, RIG_SIZE, NULL, "key_size=4");
    assert_ok(far_put(r.session, r.index, "abcd", 4, "short", 5));
    assert_ok(far_put(r.session, r.index, "abcd", 4, "rather longer", 13));
    assert_value(r.session, r.index, "abcd", 4, "rather longer", 13);
    assert_refused("key", far_put(r.session, r.index, "abcde", 5, "short", 5));
    rig_down(&r);
}


/* A kind either accepts longer keys with max_key, or rejects the option. */
BEHAVIOUR(longer_keys_are_taken_where_max_key_is_granted) {
    rig r;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    uint8_t key[1025];
    memset(key, 'k', sizeof(key));
    int granted = far_index_create(r.session, "index", c->kind, "max_key=1024", &r.index);
    if (granted == FAR_OK) {
        assert_ok(put_proof(r.session, r.index, key, 1024, 10, 1));
        assert_ok(put_proof(r.session, r.index, key, 1023, 10, 2));
        assert_ok(put_proof(r.session, r.index, key, 257, 10, 3));
        assert_ok(put_proof(r.session, r.index, key, 1, 10, 4));
        assert_proof(r.session, r.index, key, 1024, 10, 1);
        assert_proof(r.session, r.index, key, 1023, 10, 2);
        assert_proof(r.session, r.index, key, 257, 10, 3);
        assert_proof(r.session, r.index, key, 1, 10, 4);
        assert_refused("key", far_put(r.session, r.index, key, 1025, "v", 1));
        assert_ok(far_delete(r.session, r.index, key, 1024));
        assert_proof(r.session, r.index, key, 1023, 10, 2);
    } else {
        assert_refused("max_key", granted);
        assert_null(r.index);
    }
    rig_down(&r);
}


/* A malformed option string fails with FAR_ERR_INVALID and a message, and no index is created. */
BEHAVIOUR(bad_options_are_refused_and_create_nothing) {
    static const char *const bad[] = {
        "key_size",
        "key_size=",
        "=8",
        "=",
        ",",
        "key_size=8,",
        ",key_size=8",
        "key_size=8,,value_size=8",
        "key_size==8",
        "key_size=8,key_size=8",
        "key_size=x",
        "key_size=8x",
        "key_size=-1",
        "key_size=8.5",
        "key_size=0x8",
        "key_size=+8",
        "key_size= 8",
        "key_size=8 ",
        " key_size=8",
        "key_size =8",
        "KEY_SIZE=8",
        "key_size:8",
        "key_size=8;value_size=8",
        "keysize=8",
        "no_such_option=1",
        "value_size=8,no_such_option=1",
        "key_size=99999999",
        "value_size=65537",
        "value_size=99999999999999999999999",
        "key_size=18446744073709551624",
        "max_key=99999999",
        "max_key=-1",
        "\001=1",
        "key_size=\377",
    };
    rig r;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        int result = far_index_create(r.session, "index", c->kind, bad[i], &r.index);
        if (result != FAR_ERR_INVALID || strlen(far_last_error()) == 0)
            fail_msg("options \"%s\" gave %d with the words \"%s\"", bad[i], result, far_last_error());
        assert_null(r.index);
        assert_code(FAR_ERR_NOT_FOUND, far_index_open(r.session, "index", &r.index));
    }
    char *long_text = malloc(100000);
    memset(long_text, 'a', 99999);
    long_text[99999] = '\0';
    assert_code(FAR_ERR_INVALID, far_index_create(r.session, "index", c->kind, long_text, &r.index));
    memcpy(long_text, "key_size=", 9);
    memset(long_text + 9, '0', 99990);
    assert_code(FAR_ERR_INVALID, far_index_create(r.session, "index", c->kind, long_text, &r.index));
    free(long_text);
    rig_down(&r);
}


/* The message of a rejected option contains its name. */
BEHAVIOUR(a_refused_option_is_named) {
    rig r;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    far_index *index = NULL;
    assert_refused("no_such_option", far_index_create(r.session, "index", c->kind, "no_such_option=1", &index));
    assert_refused("key_size", far_index_create(r.session, "index", c->kind, "key_size=99999999", &index));
    assert_refused("value_size", far_index_create(r.session, "index", c->kind, "key_size=8,value_size=x", &index));
    assert_refused("max_key", far_index_create(r.session, "index", c->kind, "max_key=99999999", &index));
    rig_down(&r);
}


/* An empty option string has the meaning of NULL. */
BEHAVIOUR(empty_options_are_the_defaults) {
    rig r;
    rig_up_with(&r, c, RIG_SIZE, NULL, "");
    assert_ok(put_text(&r, "k", "any"));
    assert_ok(put_text(&r, "key", "any other"));
    assert_text(&r, "key", "any other");
    rig_down(&r);
}


/* A kind that does not exist is rejected, and no index is created. */
BEHAVIOUR(unknown_kinds_are_refused) {
    static const char *const bad[] = {"",     "no_such_kind", "DART", "TOY",  " toy",
                                      "toy ", "toy,shard",    "to",   "toys", "\001"};
    rig r;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_refused("kind", far_index_create(r.session, "index", bad[i], NULL, &r.index));
        assert_null(r.index);
        assert_code(FAR_ERR_NOT_FOUND, far_index_drop(r.session, "index"));
    }
    rig_down(&r);
}


/* The options of an index are in force after it is opened again, also through another handle. */
BEHAVIOUR(options_are_stored_with_the_index) {
    rig r;
    rig_up_with(&r, c, RIG_SIZE, NULL, "key_size=8,value_size=8");
    assert_ok(far_put(r.session, r.index, "12345678", 8, "abcdefgh", 8));
    far_index_close(r.index);
    r.index = NULL;
    assert_ok(far_index_open(r.session, "index", &r.index));
    assert_refused("key", far_put(r.session, r.index, "1234567", 7, "abcdefgh", 8));
    assert_refused("value", far_put(r.session, r.index, "12345678", 8, "abcdefghi", 9));
    rig other;
    rig_join(&other, &r);
    assert_refused("key", far_put(other.session, other.index, "1234567", 7, "abcdefgh", 8));
    assert_refused("value", far_put(other.session, other.index, "12345678", 8, "abcdefghi", 9));
    assert_value(other.session, other.index, "12345678", 8, "abcdefgh", 8);
    rig_close(&other);
    rig_down(&r);
}


/* Names that are empty, too long or contain a character that is not allowed are rejected. */
BEHAVIOUR(bad_names_are_refused) {
    static const char *const bad[] = {
        "",
        "a/b",
        "/",
        "a,b",
        ",",
        "a\nb",
        "\t",
        "\001",
        "a\177",
        "\200",
        "caf\303\251",
        "\377",
        /* This name has 64 characters, one too many. */
        "0123456789012345678901234567890123456789012345678901234567890123",
    };
    rig r;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_refused("name", far_index_create(r.session, bad[i], c->kind, NULL, &r.index));
        assert_refused("name", far_index_open(r.session, bad[i], &r.index));
        assert_refused("name", far_index_drop(r.session, bad[i]));
        assert_null(r.index);
    }
    rig_down(&r);
}


/* Every printable ASCII character except '/' and ',' may occur in a name. */
BEHAVIOUR(all_good_names_are_taken) {
    rig r;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    char name[FAR_NAME_MAX + 1];
    /* The names together contain all printable characters, at most 63 in one name. */
    for (int first = '!'; first <= '~'; first += FAR_NAME_MAX - 2) {
        size_t length = 0;
        for (int character = first; character <= '~' && length < FAR_NAME_MAX; character++)
            if (character != '/' && character != ',')
                name[length++] = (char)character;
        name[length] = '\0';
        far_index *index = NULL, *again = NULL;
        assert_ok(far_index_create(r.session, name, c->kind, c->options, &index));
        assert_ok(far_index_open(r.session, name, &again));
        assert_ok(far_put(r.session, index, "k", 1, "v", 1));
        assert_value(r.session, again, "k", 1, "v", 1);
        name[length - 1] = '\0';
        assert_code(FAR_ERR_NOT_FOUND, far_index_drop(r.session, name));
        far_index_close(again);
        far_index_close(index);
    }
    rig_down(&r);
}
