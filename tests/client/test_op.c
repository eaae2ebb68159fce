/* Calls of the public API, one at a time: arguments, errors in words, a full pool, counters. On the toy map. */
#include "../support/ground.h"
#include "index/index.h"
#include "pool/handle.h"
#include "task/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


static void says(const char *word) {
    if (!strstr(far_last_error(), word))
        fail_msg("the message '%s' does not say '%s'", far_last_error(), word);
}


#define REFUSED(call, word)                                                                                            \
    do {                                                                                                               \
        assert_int_equal(call, FAR_ERR_INVALID);                                                                       \
        says(word);                                                                                                    \
    } while (0)


static int ignore(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)value_len;
    return 0;
}


static int no_problem(void *ctx, const char *what) {
    (void)ctx, (void)what;
    return 0;
}


/* A full pool. */

static int put_numbered(ground *g, char group, unsigned number, size_t size) {
    static char value[4096];
    char key[16];
    int length = snprintf(key, sizeof(key), "%c%06u", group, number);
    return far_put(g->session, g->index, key, (size_t)length, value, size);
}


static unsigned fill_with(ground *g, char group, size_t size) {
    unsigned count = 0;
    int err;
    while ((err = put_numbered(g, group, count, size)) == 0)
        count++;
    assert_int_equal(err, FAR_ERR_NO_MEMORY);
    return count;
}


static unsigned delete_every(ground *g, char group, unsigned count, unsigned step) {
    unsigned deleted = 0;
    for (unsigned i = 0; i < count; i += step, deleted++) {
        char key[16];
        int length = snprintf(key, sizeof(key), "%c%06u", group, i);
        assert_int_equal(far_delete(g->session, g->index, key, (size_t)length), 0);
    }
    return deleted;
}


/* What was given back serves objects of any other size, smaller or larger, once its pages are empty. */
static void empty_pages_of_one_size_serve_another(void **state) {
    (void)state;
    static const size_t sizes[] = {100, 2000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ground g;
        assert_int_equal(far_pool_open("local:4M", NULL, &g.pool), 0);
        assert_int_equal(far_session_open(g.pool, &g.session), 0);
        assert_int_equal(far_index_create(g.session, "map", "dart", NULL, &g.index), 0);
        unsigned count = fill_with(&g, 'a', 500);
        assert_int_equal(delete_every(&g, 'a', count, 1), count);
        assert_true(fill_with(&g, 'b', sizes[i]) * (sizes[i] + 64) > count * 500u / 10 * 8);
        close_ground(&g);
    }
}


static void a_full_pool_says_what_is_free_and_why_it_does_not_serve(void **state) {
    (void)state;
    ground g;
    unsigned long long room = 0, free_bytes = 0, total = 0;
    assert_int_equal(far_pool_open("local:4M", NULL, &g.pool), 0);
    assert_int_equal(far_session_open(g.pool, &g.session), 0);
    assert_int_equal(far_index_create(g.session, "map", "dart", NULL, &g.index), 0);
    unsigned count = fill_with(&g, 'a', 500);
    delete_every(&g, 'a', count, 3); /* in every page some objects stay */
    g.pool->next_full_look = 0;
    fill_with(&g, 'b', 2000);
    if (sscanf(far_last_error(), "the pool has no room for %llu bytes: %llu of its %llu bytes are free, but", &room,
               &free_bytes, &total) != 3)
        fail_msg("%s", far_last_error());
    assert_true(room >= 2000 && free_bytes > 100000 && total == 4 << 20);
    says("retired");
    far_index *other;
    assert_int_equal(far_index_create(g.session, "another", "dart", NULL, &other), FAR_ERR_NO_MEMORY);
    says("bytes are free, but in pages");
    close_ground(&g);
}


/* All of them, also while the first look at the pool has not ended. */
static void operations_in_flight_say_it_too(void **state) {
    (void)state;
    enum { FULL = 16 };
    static char big[4096];
    ground g;
    char keys[FULL][8];
    far_op ops[FULL], *all[FULL], *done[FULL];
    assert_int_equal(far_pool_open("local:4M", NULL, &g.pool), 0);
    assert_int_equal(far_session_open(g.pool, &g.session), 0);
    assert_int_equal(far_index_create(g.session, "map", "dart", NULL, &g.index), 0);
    fill_with(&g, 'a', 500);
    g.pool->next_full_look = UINT64_MAX; /* as if somebody else's look were under way */
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
        op_says(&g, &ops[i], "the pool has no room for");
        op_says(&g, &ops[i], "bytes are free, but in pages that also hold objects in use");
    }
    close_ground(&g);
}


/* Arguments. */

static void bad_arguments_are_refused_by_name(void **state) {
    (void)state;
    ground g, other;
    static char big[FAR_VALUE_MAX + 1];
    char value[8];
    size_t length;
    open_ground(&g, "local:64M", NULL);
    open_ground(&other, "local:64M", NULL);
    far_session *s = g.session;
    REFUSED(far_get(NULL, g.index, "k", 1, value, 8, &length), "session");
    REFUSED(far_get(s, NULL, "k", 1, value, 8, &length), "index");
    REFUSED(far_get(s, other.index, "k", 1, value, 8, &length), "another pool handle");
    REFUSED(far_get(s, g.index, NULL, 1, value, 8, &length), "key");
    REFUSED(far_get(s, g.index, "k", 0, value, 8, &length), "key");
    REFUSED(far_get(s, g.index, big, FAR_KEY_MAX + 1, value, 8, &length), "key");
    REFUSED(far_get(s, g.index, "k", 1, NULL, 8, &length), "value");
    REFUSED(far_insert(s, g.index, "k", 1, NULL, 1), "value");
    REFUSED(far_update(s, g.index, "k", 1, big, FAR_VALUE_MAX + 1), "value");
    REFUSED(far_put(s, g.index, "k", 0, "v", 1), "key");
    REFUSED(far_delete(s, g.index, NULL, 0), "key");
    REFUSED((int)far_scan(s, NULL, NULL, 0, NULL, 0, 0, ignore, NULL), "index");
    REFUSED((int)far_scan(s, g.index, NULL, 0, NULL, 0, 0, NULL, NULL), "each");
    REFUSED((int)far_scan(s, g.index, NULL, 1, NULL, 0, 0, ignore, NULL), "from");
    REFUSED((int)far_scan(s, g.index, NULL, 0, NULL, 1, 0, ignore, NULL), "to");
    REFUSED((int)far_scan(s, g.index, big, FAR_KEY_MAX + 1, NULL, 0, 0, ignore, NULL), "from");
    REFUSED(far_submit(s, NULL, 1), "ops");
    far_op *none[1] = {NULL};
    REFUSED(far_submit(s, none, 1), "ops[0]");
    REFUSED(far_reap(s, NULL, 1, 1), "done");
    REFUSED(far_session_stats_of(s, (far_op_kind)9, &(far_stats){.reads = 0}), "kind");
    REFUSED(far_session_stats_of(NULL, FAR_OP_GET, &(far_stats){.reads = 0}), "session");
    REFUSED(far_index_usage(s, g.index, NULL), "usage");
    REFUSED(far_index_usage(s, other.index, &(far_usage){0}), "another");
    REFUSED(far_index_check(s, NULL, no_problem, NULL), "index");
    assert_int_equal(far_index_check(s, g.index, NULL, NULL), 0); /* the words are not wanted, the count is */
    assert_int_equal(far_pool_check(s, 0, NULL, NULL), 0);
    REFUSED(far_pool_stat(s, NULL), "usage");
    REFUSED(far_pool_check(s, 2, no_problem, NULL), "repair");
    assert_int_equal(far_put(s, g.index, big, FAR_KEY_MAX, big, FAR_VALUE_MAX), 0);
    assert_int_equal(far_put(s, g.index, "k", 1, NULL, 0), 0);
    close_ground(&other);
    close_ground(&g);
}


static void a_closed_pool_refuses_its_sessions(void **state) {
    (void)state;
    ground g;
    char value[8];
    far_op op = {.kind = FAR_OP_GET, .key = "k", .key_len = 1}, *one = &op;
    open_ground(&g, "local:64M", NULL);
    op.index = g.index;
    far_pool_close(g.pool);
    REFUSED(far_get(g.session, g.index, "k", 1, value, 8, NULL), "closed");
    REFUSED(far_submit(g.session, &one, 1), "closed");
    REFUSED(far_reap(g.session, &one, 1, 1), "closed");
    REFUSED((int)far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, ignore, NULL), "closed");
    REFUSED(far_index_list(g.session, NULL, NULL), "closed");
    far_index_close(g.index);
    far_session_close(g.session);
}


static void fixed_sizes_are_enforced(void **state) {
    (void)state;
    ground g;
    char value[8];
    open_ground(&g, "local:64M", "key_size=4,value_size=2");
    assert_int_equal(far_put(g.session, g.index, "abcd", 4, "12", 2), 0);
    REFUSED(far_put(g.session, g.index, "abc", 3, "12", 2), "key");
    REFUSED(far_put(g.session, g.index, "abcd", 4, "1", 1), "value");
    REFUSED(far_get(g.session, g.index, "abcde", 5, value, 8, NULL), "key");
    REFUSED(far_delete(g.session, g.index, "abcde", 5), "key");
    close_ground(&g);
}


static void a_small_buffer_is_told_the_size_and_not_written(void **state) {
    (void)state;
    ground g;
    char value[8] = "xxxxxxx";
    size_t length = 0;
    open_ground(&g, "local:64M", NULL);
    assert_int_equal(far_put(g.session, g.index, "k", 1, "12345", 5), 0);
    assert_int_equal(far_get(g.session, g.index, "k", 1, value, 4, &length), FAR_ERR_TOO_SMALL);
    says("value");
    assert_int_equal(length, 5);
    assert_string_equal(value, "xxxxxxx");
    assert_int_equal(far_get(g.session, g.index, "k", 1, NULL, 0, &length), FAR_ERR_TOO_SMALL);
    assert_int_equal(far_get(g.session, g.index, "k", 1, value, 5, NULL), 0);
    assert_memory_equal(value, "12345xx", 8);
    assert_int_equal(far_get(g.session, g.index, "q", 1, value, 8, NULL), FAR_ERR_NOT_FOUND);
    says("no such key");
    close_ground(&g);
}


/* Counters. */

static void counters_add_up_over_the_kinds(void **state) {
    (void)state;
    ground g;
    far_stats all, part, sum = {.reads = 0};
    char value[8];
    open_ground(&g, "local:64M", NULL);
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
    close_ground(&g);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_arguments_are_refused_by_name),
        cmocka_unit_test(empty_pages_of_one_size_serve_another),
        cmocka_unit_test(a_full_pool_says_what_is_free_and_why_it_does_not_serve),
        cmocka_unit_test(operations_in_flight_say_it_too),
        cmocka_unit_test(a_closed_pool_refuses_its_sessions),
        cmocka_unit_test(fixed_sizes_are_enforced),
        cmocka_unit_test(a_small_buffer_is_told_the_size_and_not_written),
        cmocka_unit_test(counters_add_up_over_the_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
