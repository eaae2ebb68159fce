/* The far memory that DART uses in addition to keys and values, for indexes of several sizes. The directory of the skip
 * table grows with the index, so a small index does not pay for a large directory. Uses the default options, without
 * housekeeping by time, so that the figures are the same on every machine. */
#include "farindex.h"
#include "test.h"
#include "workload/keyset.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct size {
    const char *keys;
    unsigned count;
    double bar; /* limit, in bytes per key */
} size;

static const size sizes[] = {
    {"u64", 100, 70},     {"u64", 1000, 36},   {"email", 1000, 72},   {"u64", 20000, 33},
    {"email", 20000, 50}, {"u64", 300000, 34}, {"email", 300000, 50},
};


static double bytes_per_key(const size *s) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_keyset *keys;
    far_usage usage;
    char error[256], value[8] = "8 bytes";
    uint8_t key[FAR_KEY_MAX];
    options.rdwc = -1;
    options.no_thread = 1;
    assert_int_equal(far_keyset_open(s->keys, 1, &keys, error, sizeof(error)), 0);
    assert_int_equal(far_pool_open("local:128M", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "map", "dart", NULL, &index), 0);
    for (unsigned n = 0; n < s->count; n++)
        assert_int_equal(far_insert(session, index, key, far_keyset_key(keys, n, key), value, sizeof(value)), 0);
    for (unsigned n = 0; n < s->count; n++)
        assert_int_equal(far_get(session, index, key, far_keyset_key(keys, n, key), value, sizeof(value), NULL), 0);
    assert_int_equal(far_index_usage(session, index, &usage), 0);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    far_keyset_close(keys);
    return (double)usage.pool_index_bytes / (double)usage.keys;
}


/* Proves that the bytes per key are at most the limit, for every size. */
TEST(small_indexes_have_small_tables) {
    bool fits = true;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        double bytes = bytes_per_key(&sizes[i]);
        print_message("%u %s keys: %.1f bytes per key (at most %.0f)\n", sizes[i].count, sizes[i].keys, bytes,
                      sizes[i].bar);
        fits &= bytes <= sizes[i].bar;
    }
    assert_true(fits);
}
