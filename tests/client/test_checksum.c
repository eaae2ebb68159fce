/* Tests of the index option checksum=on, for every kind: its costs in round trips and bytes, the values that all calls
 * return, and the detection of damaged values by reads and by a check. */
#include "client/checksum.h"
#include "fabric/fabric.h"
#include "pool/handle.h"
#include "test.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIM   "sim:seed=1,memory_nodes=1,size=16M"
#define KEYS  300u
#define BYTES 104u

typedef struct checked_index {
    far_pool *pool;
    far_session *session;
    far_index *index;
} checked_index;

typedef struct cost {
    uint64_t round_trips, read, written;
} cost;


static void open_checked_index(checked_index *s, const char *uri, const char *kind, const char *options) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.rdwc = -1;
    assert_int_equal(far_pool_open(uri, &pool_options, &s->pool), 0);
    assert_int_equal(far_session_open(s->pool, &s->session), 0);
    assert_int_equal(far_index_create(s->session, "index", kind, options, &s->index), 0);
}


static void close_checked_index(checked_index *s) {
    far_index_close(s->index);
    far_session_close(s->session);
    far_pool_close(s->pool);
}


static void make_pair(unsigned number, unsigned version, char key[9], char value[BYTES]) {
    snprintf(key, 9, "k%07u", number % 10000000);
    memset(value, (int)(number * 31 + version * 7 + 1), BYTES);
}


static cost read_cost(const checked_index *s) {
    far_stats stats;
    far_session_stats(s->session, &stats);
    return (cost){stats.round_trips, stats.bytes_read, stats.bytes_written};
}


static cost cost_since(const checked_index *s, cost before) {
    cost now = read_cost(s);
    return (cost){now.round_trips - before.round_trips, now.read - before.read, now.written - before.written};
}


static void insert_all(checked_index *s) {
    char key[9], value[BYTES];
    for (unsigned i = 0; i < KEYS; i++) {
        make_pair(i, 0, key, value);
        assert_int_equal(far_insert(s->session, s->index, key, 8, value, BYTES), 0);
    }
}


static void read_all(checked_index *s, unsigned version) {
    char key[9], right[BYTES], value[BYTES];
    size_t bytes;
    for (unsigned i = 0; i < KEYS; i++) {
        make_pair(i, version, key, right);
        assert_int_equal(far_get(s->session, s->index, key, 8, value, BYTES, &bytes), 0);
        assert_int_equal(bytes, BYTES);
        assert_memory_equal(value, right, BYTES);
    }
}


static void update_all(checked_index *s, unsigned version) {
    char key[9], value[BYTES];
    for (unsigned i = 0; i < KEYS; i++) {
        make_pair(i, version, key, value);
        assert_int_equal(far_update(s->session, s->index, key, 8, value, BYTES), 0);
    }
}


static void measure_costs(const char *kind, const char *options, cost *gets, cost *updates) {
    checked_index s;
    open_checked_index(&s, SIM, kind, options);
    insert_all(&s);
    read_all(&s, 0);
    cost before = read_cost(&s);
    read_all(&s, 0);
    *gets = cost_since(&s, before);
    before = read_cost(&s);
    update_all(&s, 1);
    *updates = cost_since(&s, before);
    read_all(&s, 1);
    close_checked_index(&s);
}


/* Gets and updates need the same number of round trips with and without checksums. The additional bytes are limited by
 * the sizes to which the kind rounds up. */
TEST_FUNCTION(checksums_cost_bytes_but_no_round_trips) {
    cost gets[2], updates[2];
    measure_costs(*state, "checksum=off", &gets[0], &updates[0]);
    measure_costs(*state, "checksum=on", &gets[1], &updates[1]);
    print_message("%s: gets %.2f round trips, %+.1f bytes each; updates %.2f, %+.1f\n", (const char *)*state,
                  (double)gets[1].round_trips / KEYS, ((double)gets[1].read - (double)gets[0].read) / KEYS,
                  (double)updates[1].round_trips / KEYS,
                  ((double)updates[1].written - (double)updates[0].written) / KEYS);
    assert_int_equal(gets[0].round_trips, gets[1].round_trips);
    assert_int_equal(updates[0].round_trips, updates[1].round_trips);
    assert_in_range(gets[1].read, gets[0].read, gets[0].read + 64 * KEYS);
    assert_in_range(updates[1].written, updates[0].written, updates[0].written + 32 * KEYS);
}


static int compare_pair(void *ctx, const void *key, size_t key_bytes, const void *value, size_t bytes) {
    char right_key[9], right[BYTES];
    make_pair((*(unsigned *)ctx)++, 0, right_key, right);
    assert_int_equal(key_bytes, 8);
    assert_memory_equal(key, right_key, 8);
    assert_int_equal(bytes, BYTES);
    assert_memory_equal(value, right, BYTES);
    return 0;
}


static int print_problem(void *ctx, const char *what) {
    (void)ctx;
    print_error("%s\n", what);
    return 0;
}


/* Every call returns values without the checksum: get, scan, submitted gets, and the sizes of FAR_ERR_TOO_SMALL and
 * far_index_usage. */
TEST_FUNCTION(every_call_returns_the_values_written) {
    checked_index s;
    char key[9], right[BYTES], value[BYTES];
    size_t bytes = 0;
    unsigned next = 0;
    far_usage usage;
    open_checked_index(&s, SIM, *state, "checksum=on");
    insert_all(&s);
    int64_t given = far_scan(s.session, s.index, NULL, 0, NULL, 0, 0, compare_pair, &next);
    assert_true(given == KEYS || given == FAR_ERR_UNSUPPORTED);
    make_pair(7, 0, key, right);
    assert_int_equal(far_get(s.session, s.index, key, 8, value, BYTES - 1, &bytes), FAR_ERR_TOO_SMALL);
    assert_int_equal(bytes, BYTES);
    far_op ops[8], *taken[8], *done[8];
    char keys[8][9], values[8][BYTES];
    for (unsigned i = 0; i < 8; i++) {
        make_pair(i, 0, keys[i], right);
        ops[i] = (far_op){
            .kind = FAR_OP_GET, .index = s.index, .key = keys[i], .key_len = 8, .value = values[i], .capacity = BYTES};
        taken[i] = &ops[i];
    }
    assert_int_equal(far_submit(s.session, taken, 8), 8);
    assert_int_equal(far_reap(s.session, done, 8, 8), 8);
    for (unsigned i = 0; i < 8; i++) {
        make_pair(i, 0, key, right);
        assert_int_equal(ops[i].result, 0);
        assert_int_equal(ops[i].value_len, BYTES);
        assert_memory_equal(values[i], right, BYTES);
    }
    assert_int_equal(far_index_usage(s.session, s.index, &usage), 0);
    assert_int_equal(usage.value_bytes, KEYS * BYTES);
    assert_int_equal(far_pool_check(s.session, 0, print_problem, NULL), 0);
    assert_int_equal(far_insert(s.session, s.index, "empty", 5, NULL, 0), 0);
    assert_int_equal(far_get(s.session, s.index, "empty", 5, value, BYTES, &bytes), 0);
    assert_int_equal(bytes, 0);
    close_checked_index(&s);
}


/* With value_size, the user's values have exactly that size. A kind that stores small values inline does not do so if
 * there is no room for the checksum. A value_size that leaves no room for the checksum is rejected. */
TEST_FUNCTION(value_size_does_not_include_the_checksum) {
    checked_index s;
    uint64_t key = 5, value = 77, found;
    open_checked_index(&s, SIM, *state, "key_size=8,value_size=8,checksum=on");
    assert_int_equal(far_insert(s.session, s.index, &key, 8, &value, 8), 0);
    assert_int_equal(far_get(s.session, s.index, &key, 8, &found, 8, NULL), 0);
    assert_int_equal(found, 77);
    assert_int_equal(far_insert(s.session, s.index, &value, 8, &value, 7), FAR_ERR_INVALID);
    far_index *none; /* an index that could store no value */
    assert_int_equal(far_index_create(s.session, "none", *state, "value_size=65536,checksum=on", &none),
                     FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "at most 65532"));
    close_checked_index(&s);
}


/* Changes one bit in every copy of these bytes in far memory. Returns the number of copies. */
static unsigned damage_bytes(const checked_index *s, const char *bytes, size_t count) {
    far_fabric *fabric = s->pool->fabric;
    char *memory = fabric->memory[0];
    unsigned found = 0;
    for (size_t at = 0; at + count <= (16u << 20); at++)
        if (memory[at] == bytes[0] && memcmp(memory + at, bytes, count) == 0) {
            memory[at + count / 2] ^= 4;
            found++;
            at += count;
        }
    return found;
}


static int count_problem(void *ctx, const char *what) {
    ++*(unsigned *)ctx;
    return strstr(what, "checksum") == NULL;
}


/* The pass of a cursor returns the pairs before the first damaged one, number `first`, then fails without a change of
 * its position, and continues after a seek to the next key. If the kind itself finds the damage, it may return none of
 * the pairs that are read together with the damaged one. */
static void pass_over_damage(const checked_index *s, unsigned first, bool found_by_kind) {
    char key[9], value[BYTES];
    far_cursor *cursor;
    unsigned pairs = 0;
    int result = far_cursor_open(s->session, s->index, &cursor);
    if (result == FAR_ERR_UNSUPPORTED)
        return;
    while (result == 0 && (result = far_cursor_next(cursor)) == 0)
        pairs++;
    assert_int_equal(result, FAR_ERR_CORRUPT);
    assert_true(pairs == first || (found_by_kind && pairs == 0));
    make_pair(first - 1, 0, key, value);
    if (pairs)
        assert_memory_equal(far_cursor_key(cursor, NULL), key, 8);
    make_pair(first + 1, 0, key, value);
    assert_int_equal(far_cursor_expect(cursor, 1), 0);
    assert_int_equal(far_cursor_seek(cursor, key, 8), 0);
    assert_memory_equal(far_cursor_key(cursor, NULL), key, 8);
    assert_memory_equal(far_cursor_value(cursor, NULL), value, BYTES);
    far_cursor_close(cursor);
}


/* After a bit of stored values has changed, a get and a scan return FAR_ERR_CORRUPT instead of a wrong value, and a
 * check reports each damaged value. Fails without far_sum_check in client/checksum.c. */
TEST_FUNCTION(damaged_values_are_reported) {
    checked_index s;
    char key[9], value[BYTES], found[BYTES];
    unsigned problems = 0;
    open_checked_index(&s, "local:16M", *state, "checksum=on");
    insert_all(&s);
    make_pair(13, 0, key, value);
    unsigned damaged = damage_bytes(&s, value, BYTES); /* several pairs have this value */
    make_pair(11, 0, key, value);
    damaged += damage_bytes(&s, value, BYTES);
    assert_true(damaged > 1);
    assert_int_equal(far_get(s.session, s.index, key, 8, found, BYTES, NULL), FAR_ERR_CORRUPT);
    assert_true(strlen(far_last_error()) > 0);
    int64_t given = far_scan(s.session, s.index, NULL, 0, NULL, 0, 0, compare_pair, &(unsigned){0});
    assert_true(given == FAR_ERR_CORRUPT || given == FAR_ERR_UNSUPPORTED);
    bool first_only =
        strcmp(*state, "smart") == 0; /* SMART has its own hash in each leaf; its check stops at the first wrong one */
    pass_over_damage(&s, 11, first_only);
    assert_int_equal(far_pool_check(s.session, 1, count_problem, &problems), first_only ? 1 : damaged);
    assert_int_equal(problems, first_only ? 1 : damaged);
    close_checked_index(&s);
}


/* A check of 20000 values allocates less than 4 MiB of local memory. Sessions keep their scratch memory, so a check
 * that used scratch memory for each key would never return it. Fails without far_scratch_back in client/checksum.c. */
TEST_FUNCTION(a_check_of_many_values_needs_little_memory) {
    enum { MANY = 20000 };
    checked_index s;
    char value[400] = "";
    open_checked_index(&s, "local:64M", *state, "key_size=8,checksum=on");
    for (uint64_t i = 0; i < MANY; i++)
        assert_int_equal(far_insert(s.session, s.index, &i, 8, value, sizeof(value)), 0);
    size_t before = mallinfo2().uordblks;
    assert_int_equal(far_index_check(s.session, s.index, print_problem, NULL), 0);
    size_t after = mallinfo2().uordblks;
    if (after > before + (4u << 20))
        fail_msg("%zu bytes are held after the check", after - before);
    close_checked_index(&s);
}


TEST_CASE_OF_EACH_KIND(checksums_cost_bytes_but_no_round_trips);
TEST_CASE_OF_EACH_KIND(every_call_returns_the_values_written);
TEST_CASE_OF_EACH_KIND(value_size_does_not_include_the_checksum);
TEST_CASE_OF_EACH_KIND(damaged_values_are_reported);
TEST_CASE_OF_EACH_KIND(a_check_of_many_values_needs_little_memory);
