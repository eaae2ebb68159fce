/* Tests of public functions that are called one at a time: arguments, error messages, a full pool, counters. Most tests
 * use the kind toy. */
#include "../support/ground.h"
#include "index/index.h"
#include "pool/handle.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


static void assert_message_contains(const char *word) {
    if (!strstr(far_last_error(), word))
        fail_msg("the message '%s' does not say '%s'", far_last_error(), word);
}


#define ASSERT_REFUSED(call, word)                                                                                     \
    do {                                                                                                               \
        assert_int_equal(call, FAR_ERR_INVALID);                                                                       \
        assert_message_contains(word);                                                                                 \
    } while (0)


static int ignore_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)value_len;
    return 0;
}


static int ignore_problem(void *ctx, const char *what) {
    (void)ctx, (void)what;
    return 0;
}


/* ---- A full pool ---- */

static int put_numbered(ground *g, char group, unsigned number, size_t size) {
    static char value[4096];
    char key[16];
    int length = snprintf(key, sizeof(key), "%c%06u", group, number);
    return far_put(g->session, g->index, key, (size_t)length, value, size);
}


/* Puts numbered keys of a group until the pool is full. Returns the number of keys that were put. */
static unsigned put_until_full(ground *g, char group, size_t size) {
    unsigned count = 0;
    int err;
    while ((err = put_numbered(g, group, count, size)) == 0)
        count++;
    assert_int_equal(err, FAR_ERR_NO_MEMORY);
    return count;
}


/* Deletes the keys 0, step, 2 * step, ... of a group. Returns the number of deleted keys. */
static unsigned delete_every(ground *g, char group, unsigned count, unsigned step) {
    unsigned deleted = 0;
    for (unsigned i = 0; i < count; i += step, deleted++) {
        char key[16];
        int length = snprintf(key, sizeof(key), "%c%06u", group, i);
        assert_int_equal(far_delete(g->session, g->index, key, (size_t)length), 0);
    }
    return deleted;
}


/* Fills a pool with values of 500 bytes, deletes all of them, and fills it with values of another size, smaller or
 * larger. Proves that freed memory can be used for objects of another size after its pages have become empty. */
TEST(empty_pages_of_one_size_serve_another) {
    static const size_t sizes[] = {100, 2000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ground g;
        assert_int_equal(far_pool_open("local:4M", NULL, &g.pool), 0);
        assert_int_equal(far_session_open(g.pool, &g.session), 0);
        assert_int_equal(far_index_create(g.session, "map", "dart", NULL, &g.index), 0);
        unsigned count = put_until_full(&g, 'a', 500);
        assert_int_equal(delete_every(&g, 'a', count, 1), count);
        assert_true(put_until_full(&g, 'b', sizes[i]) * (sizes[i] + 64) > count * 500u / 10 * 8);
        close_small_environment(&g);
    }
}


/* Deletes every third value of a full pool, so that some objects remain in every page, and then puts larger values
 * until the pool is full again. Proves that the error message then contains the amount of free memory and the reason
 * why it cannot be used. Fails without far_describe_full_pool in client/full.c. */
TEST(the_error_of_a_full_pool_explains_why_free_memory_cannot_be_used) {
    ground g;
    unsigned long long room = 0, free_bytes = 0, total = 0;
    assert_int_equal(far_pool_open("local:4M", NULL, &g.pool), 0);
    assert_int_equal(far_session_open(g.pool, &g.session), 0);
    assert_int_equal(far_index_create(g.session, "map", "dart", NULL, &g.index), 0);
    unsigned count = put_until_full(&g, 'a', 500);
    delete_every(&g, 'a', count, 3); /* some objects remain in every page */
    g.pool->next_full_look = 0;
    put_until_full(&g, 'b', 2000);
    if (sscanf(far_last_error(), "the pool has no room for %llu bytes: %llu of its %llu bytes are free, but", &room,
               &free_bytes, &total) != 3)
        fail_msg("%s", far_last_error());
    assert_true(room >= 2000 && free_bytes > 100000 && total == 4 << 20);
    assert_message_contains("retired");
    far_index *other;
    assert_int_equal(far_index_create(g.session, "another", "dart", NULL, &other), FAR_ERR_NO_MEMORY);
    assert_message_contains("bytes are free, but in pages");
    close_small_environment(&g);
}


/* To explain why free memory cannot be used, one operation measures the pool, and other operations use its result.
 * Proves that the error messages of 16 submitted operations contain the explanation even if another operation is still
 * measuring and no earlier result exists. Fails if measure_full_pool in client/full.c returns an empty result in that
 * case. */
TEST(submitted_operations_explain_a_full_pool_too) {
    enum { FULL = 16 };
    static char big[4096];
    ground g;
    char keys[FULL][8];
    far_op ops[FULL], *all[FULL], *done[FULL];
    assert_int_equal(far_pool_open("local:4M", NULL, &g.pool), 0);
    assert_int_equal(far_session_open(g.pool, &g.session), 0);
    assert_int_equal(far_index_create(g.session, "map", "dart", NULL, &g.index), 0);
    put_until_full(&g, 'a', 500);
    g.pool->next_full_look = UINT64_MAX; /* looks as if another operation were measuring the pool */
    g.pool->full_usage = (far_pool_usage){0};
    for (int i = 0; i < FULL; i++) {
        snprintf(keys[i], sizeof(keys[i]), "new-%d", i);
        ops[i] = (far_op){.kind = FAR_OP_PUT, .index = g.index, .key = keys[i], .key_len = strlen(keys[i])};
        ops[i].value = big, ops[i].value_len = sizeof(big);
        all[i] = &ops[i];
    }
    assert_int_equal(far_submit(g.session, all, FULL), FULL);
    assert_int_equal(far_reap(g.session, done, FULL, FULL), FULL);
    for (int i = 0; i < FULL; i++) {
        assert_int_equal(ops[i].result, FAR_ERR_NO_MEMORY);
        assert_op_error_contains(&g, &ops[i], "the pool has no room for");
        assert_op_error_contains(&g, &ops[i], "bytes are free, but in pages that also hold objects in use");
    }
    close_small_environment(&g);
}


/* ---- Arguments ---- */

/* Every public function returns FAR_ERR_INVALID for an invalid argument, and the error message names that argument. */
TEST(bad_arguments_are_refused_by_name) {
    ground g, other;
    static char big[FAR_VALUE_MAX + 1];
    char value[8];
    size_t length;
    open_small_environment(&g, "local:64M", NULL);
    open_small_environment(&other, "local:64M", NULL);
    far_session *s = g.session;
    ASSERT_REFUSED(far_get(NULL, g.index, "k", 1, value, 8, &length), "session");
    ASSERT_REFUSED(far_get(s, NULL, "k", 1, value, 8, &length), "index");
    ASSERT_REFUSED(far_get(s, other.index, "k", 1, value, 8, &length), "another pool handle");
    ASSERT_REFUSED(far_get(s, g.index, NULL, 1, value, 8, &length), "key");
    ASSERT_REFUSED(far_get(s, g.index, "k", 0, value, 8, &length), "key");
    ASSERT_REFUSED(far_get(s, g.index, big, FAR_KEY_MAX + 1, value, 8, &length), "key");
    ASSERT_REFUSED(far_get(s, g.index, "k", 1, NULL, 8, &length), "value");
    ASSERT_REFUSED(far_insert(s, g.index, "k", 1, NULL, 1), "value");
    ASSERT_REFUSED(far_update(s, g.index, "k", 1, big, FAR_VALUE_MAX + 1), "value");
    ASSERT_REFUSED(far_put(s, g.index, "k", 0, "v", 1), "key");
    ASSERT_REFUSED(far_delete(s, g.index, NULL, 0), "key");
    ASSERT_REFUSED((int)far_scan(s, NULL, NULL, 0, NULL, 0, 0, ignore_pair, NULL), "index");
    ASSERT_REFUSED((int)far_scan(s, g.index, NULL, 0, NULL, 0, 0, NULL, NULL), "each");
    ASSERT_REFUSED((int)far_scan(s, g.index, NULL, 1, NULL, 0, 0, ignore_pair, NULL), "from");
    ASSERT_REFUSED((int)far_scan(s, g.index, NULL, 0, NULL, 1, 0, ignore_pair, NULL), "to");
    ASSERT_REFUSED((int)far_scan(s, g.index, big, FAR_KEY_MAX + 1, NULL, 0, 0, ignore_pair, NULL), "from");
    ASSERT_REFUSED(far_submit(s, NULL, 1), "ops");
    far_op *none[1] = {NULL};
    ASSERT_REFUSED(far_submit(s, none, 1), "ops[0]");
    ASSERT_REFUSED(far_reap(s, NULL, 1, 1), "done");
    ASSERT_REFUSED(far_session_stats_of(s, (far_op_kind)9, &(far_stats){.reads = 0}), "kind");
    ASSERT_REFUSED(far_session_stats_of(NULL, FAR_OP_GET, &(far_stats){.reads = 0}), "session");
    ASSERT_REFUSED(far_index_usage(s, g.index, NULL), "usage");
    ASSERT_REFUSED(far_index_usage(s, other.index, &(far_usage){0}), "another");
    ASSERT_REFUSED(far_index_check(s, NULL, ignore_problem, NULL), "index");
    assert_int_equal(far_index_check(s, g.index, NULL, NULL), 0); /* `problem` may be NULL */
    assert_int_equal(far_pool_check(s, 0, NULL, NULL), 0);
    ASSERT_REFUSED(far_pool_stat(s, NULL), "usage");
    ASSERT_REFUSED(far_pool_check(s, 2, ignore_problem, NULL), "repair");
    assert_int_equal(far_put(s, g.index, big, FAR_KEY_MAX, big, FAR_VALUE_MAX), 0);
    assert_int_equal(far_put(s, g.index, "k", 1, NULL, 0), 0);
    close_small_environment(&other);
    close_small_environment(&g);
}


/* After far_pool_close, calls on the sessions and indexes of the handle fail with FAR_ERR_INVALID, and closing these
 * sessions and indexes is still allowed. Fails without the guard far_call_enter in client/client.h. */
TEST(a_closed_pool_refuses_its_sessions) {
    ground g;
    char value[8];
    far_op op = {.kind = FAR_OP_GET, .key = "k", .key_len = 1}, *one = &op;
    open_small_environment(&g, "local:64M", NULL);
    op.index = g.index;
    far_pool_close(g.pool);
    ASSERT_REFUSED(far_get(g.session, g.index, "k", 1, value, 8, NULL), "closed");
    ASSERT_REFUSED(far_submit(g.session, &one, 1), "closed");
    ASSERT_REFUSED(far_reap(g.session, &one, 1, 1), "closed");
    ASSERT_REFUSED((int)far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, ignore_pair, NULL), "closed");
    ASSERT_REFUSED(far_index_list(g.session, NULL, NULL), "closed");
    far_index_close(g.index);
    far_session_close(g.session);
}


/* An index with key_size and value_size rejects keys and values of another size. */
TEST(fixed_sizes_are_enforced) {
    ground g;
    char value[8];
    open_small_environment(&g, "local:64M", "key_size=4,value_size=2");
    assert_int_equal(far_put(g.session, g.index, "abcd", 4, "12", 2), 0);
    ASSERT_REFUSED(far_put(g.session, g.index, "abc", 3, "12", 2), "key");
    ASSERT_REFUSED(far_put(g.session, g.index, "abcd", 4, "1", 1), "value");
    ASSERT_REFUSED(far_get(g.session, g.index, "abcde", 5, value, 8, NULL), "key");
    ASSERT_REFUSED(far_delete(g.session, g.index, "abcde", 5), "key");
    close_small_environment(&g);
}


/* far_get with a too small buffer returns FAR_ERR_TOO_SMALL and the length of the value, and does not change the
 * buffer. */
TEST(a_too_small_buffer_is_not_written_and_the_size_is_returned) {
    ground g;
    char value[8] = "xxxxxxx";
    size_t length = 0;
    open_small_environment(&g, "local:64M", NULL);
    assert_int_equal(far_put(g.session, g.index, "k", 1, "12345", 5), 0);
    assert_int_equal(far_get(g.session, g.index, "k", 1, value, 4, &length), FAR_ERR_TOO_SMALL);
    assert_message_contains("value");
    assert_int_equal(length, 5);
    assert_string_equal(value, "xxxxxxx");
    assert_int_equal(far_get(g.session, g.index, "k", 1, NULL, 0, &length), FAR_ERR_TOO_SMALL);
    assert_int_equal(far_get(g.session, g.index, "k", 1, value, 5, NULL), 0);
    assert_memory_equal(value, "12345xx", 8);
    assert_int_equal(far_get(g.session, g.index, "q", 1, value, 8, NULL), FAR_ERR_NOT_FOUND);
    assert_message_contains("no such key");
    close_small_environment(&g);
}


/* ---- Counters ---- */

/* The counters of a session are the sums of the counters of its operation kinds. */
TEST(counters_add_up_over_the_kinds) {
    ground g;
    far_stats all, part, sum = {.reads = 0};
    char value[8];
    open_small_environment(&g, "local:64M", NULL);
    far_session_stats(g.session, &all);
    assert_int_equal(far_put(g.session, g.index, "k", 1, "v", 1), 0);
    assert_int_equal(far_get(g.session, g.index, "k", 1, value, 8, NULL), 0);
    assert_int_equal(far_get(g.session, g.index, "q", 1, value, 8, NULL), FAR_ERR_NOT_FOUND);
    far_stats before = all;
    far_session_stats(g.session, &all);
    far_stats diff = far_stats_diff(&all, &before);
    for (int kind = FAR_OP_GET; kind <= FAR_OP_SCAN; kind++) {
        assert_int_equal(far_session_stats_of(g.session, (far_op_kind)kind, &part), 0);
        sum.round_trips += part.round_trips;
        sum.reads += part.reads;
        sum.ops[kind] += part.ops[kind];
    }
    assert_int_equal(diff.round_trips, sum.round_trips);
    assert_int_equal(diff.reads, sum.reads);
    assert_int_equal(sum.ops[FAR_OP_GET], 2);
    assert_int_equal(sum.ops[FAR_OP_PUT], 1);
    assert_int_equal(diff.ops[FAR_OP_GET], 2);
    close_small_environment(&g);
}
