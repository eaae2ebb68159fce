/* Tests of submitted operations (client/submit.c): results and error messages, waiting in far_reap, and threads that
 * make no calls for a while. Most tests use the kind toy. */
#include "../support/ground.h"
#include "index/index.h"
#include "pool/handle.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


static int ignore_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)value_len;
    return 0;
}


enum { MANY = 500 };

/* Operations with keys "0" to "499" and values "v0" to "v499". */
typedef struct op_table {
    far_op ops[MANY];
    char keys[MANY][8], values[MANY][8];
} op_table;


/* Fills in one operation of the given kind for each key. */
static void prepare_ops(op_table *c, far_index *index, far_op_kind kind) {
    memset(c, 0, sizeof(*c));
    for (int i = 0; i < MANY; i++) {
        far_op *op = &c->ops[i];
        op->kind = kind;
        op->index = index;
        op->key = c->keys[i];
        op->key_len = (size_t)snprintf(c->keys[i], sizeof(c->keys[i]), "%d", i);
        op->value = c->values[i];
        op->user = c->keys[i];
        op->result = 77;
        if (kind == FAR_OP_GET)
            op->capacity = sizeof(c->values[i]);
        else
            op->value_len = (size_t)snprintf(c->values[i], sizeof(c->values[i]), "v%d", i);
    }
}


/* Submits all operations, and reaps some whenever the session is full. Returns how often the session was full. */
static unsigned submit_and_reap_all(far_session *s, op_table *c) {
    far_op *ops[MANY], *done[16];
    unsigned full = 0;
    size_t submitted = 0, reaped = 0;
    for (int i = 0; i < MANY; i++)
        ops[i] = &c->ops[i];
    while (reaped < MANY) {
        int taken = submitted < MANY ? far_submit(s, ops + submitted, MANY - submitted) : 0;
        assert_true(taken >= 0);
        submitted += (size_t)taken;
        full += submitted < MANY;
        assert_true(submitted - reaped <= FAR_OPS_MAX);
        int count = far_reap(s, done, 16, 16);
        assert_int_equal(count, submitted - reaped < 16 ? submitted - reaped : 16);
        for (int i = 0; i < count; i++)
            assert_ptr_equal(done[i]->user, done[i]->key);
        reaped += (size_t)count;
    }
    assert_int_equal(far_reap(s, done, 16, 16), 0);
    return full;
}


/* Every submitted operation is reaped exactly once, with the result that the synchronous call would return, also if
 * more are submitted than the session has room for. */
TEST(submitted_operations_all_finish_with_their_results) {
    static op_table c;
    const char *uris[] = {"local:2x256M", "local:2x256M?rtt=20us"};
    for (unsigned u = 0; u < 2; u++) {
        ground g;
        open_small_environment(&g, uris[u], "slots=64");
        far_op_kind kinds[] = {FAR_OP_UPDATE, FAR_OP_INSERT, FAR_OP_INSERT, FAR_OP_GET,
                               FAR_OP_PUT,    FAR_OP_DELETE, FAR_OP_GET};
        int expected[] = {FAR_ERR_NOT_FOUND, 0, FAR_ERR_EXISTS, 0, 0, 0, FAR_ERR_NOT_FOUND};
        for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
            prepare_ops(&c, g.index, kinds[k]);
            assert_true(submit_and_reap_all(g.session, &c) > 0);
            for (int i = 0; i < MANY; i++) {
                char value[8];
                assert_int_equal(c.ops[i].result, expected[k]);
                if (kinds[k] != FAR_OP_GET || expected[k] != 0)
                    continue;
                assert_int_equal(c.ops[i].value_len, snprintf(value, sizeof(value), "v%d", i));
                assert_memory_equal(c.values[i], value, c.ops[i].value_len);
            }
            far_stats stats;
            assert_int_equal(far_session_stats_of(g.session, kinds[k], &stats), 0);
            assert_int_equal(stats.ops[kinds[k]], kinds[k] == FAR_OP_INSERT && k == 2 ? 2 * MANY
                                                  : k == 6                            ? 2 * MANY
                                                                                      : MANY);
        }
        close_small_environment(&g);
    }
}


/* far_submit accepts operations with invalid arguments. Each of them finishes with its own FAR_ERR_INVALID, and a
 * valid operation in the same call is not affected. */
TEST(an_invalid_operation_is_accepted_and_finishes_with_its_error) {
    ground g;
    open_small_environment(&g, "local:64M", NULL);
    far_op good = {.kind = FAR_OP_PUT, .index = g.index, .key = "k", .key_len = 1, .value = "v", .value_len = 1};
    far_op no_key = {.kind = FAR_OP_PUT, .index = g.index, .value = "v", .value_len = 1};
    far_op no_index = {.kind = FAR_OP_GET, .key = "k", .key_len = 1};
    far_op no_kind = {.kind = (far_op_kind)17, .index = g.index, .key = "k", .key_len = 1};
    far_op no_each = {.kind = FAR_OP_SCAN, .index = g.index};
    far_op *ops[] = {&no_key, &good, &no_index, &no_kind, &no_each}, *done[5];
    assert_int_equal(far_submit(g.session, ops, 5), 5);
    assert_int_equal(far_reap(g.session, done, 5, 5), 5);
    assert_int_equal(good.result, 0);
    assert_int_equal(no_key.result, FAR_ERR_INVALID);
    assert_int_equal(no_index.result, FAR_ERR_INVALID);
    assert_int_equal(no_kind.result, FAR_ERR_INVALID);
    assert_int_equal(no_each.result, FAR_ERR_INVALID);
    close_small_environment(&g);
}


/* far_op_error returns a separate message for each failed operation, until the operation is submitted again. The
 * session stores a bounded number of messages. Fails without client/failures.c. */
TEST(every_operation_has_its_own_error_message) {
    ground g;
    open_small_environment(&g, "local:8M?rtt=20us", NULL);
    char value[8];
    far_op ops[4] = {{.kind = FAR_OP_PUT, .index = g.index, .key = "", .key_len = 0},
                     {.kind = (far_op_kind)77, .index = g.index, .key = "k", .key_len = 1},
                     {.kind = FAR_OP_GET, .index = g.index, .key = "k", .key_len = 1, .value = value, .capacity = 8},
                     {.kind = FAR_OP_PUT, .index = g.index, .key = "k", .key_len = 1, .value = value, .value_len = 8}};
    far_op *all[4] = {&ops[0], &ops[1], &ops[2], &ops[3]}, *done[4];
    assert_int_equal(far_submit(g.session, all, 3), 3);
    assert_int_equal(far_reap(g.session, done, 4, 3), 3);
    assert_int_equal(far_submit(g.session, all + 3, 1), 1);
    assert_int_equal(far_reap(g.session, done, 4, 1), 1);
    assert_op_error_contains(&g, &ops[0], "key: is empty");
    assert_op_error_contains(&g, &ops[1], "77 is not a kind");
    assert_op_error_contains(&g, &ops[2], "no such key");
    assert_string_equal(far_op_error(g.session, &ops[3]), "");
    assert_op_error_contains(&g, &ops[0], "key: is empty"); /* the message remains until the operation is submitted again */
    ops[0].key = "k", ops[0].key_len = 1, ops[0].value_len = FAR_VALUE_MAX + 1, ops[0].value = value;
    assert_int_equal(far_submit(g.session, all, 1), 1);
    assert_int_equal(far_reap(g.session, done, 4, 1), 1);
    assert_op_error_contains(&g, &ops[0], "value");
    for (unsigned i = 0; i < 3000; i++) { /* the messages of the oldest failures are dropped */
        far_op bad = ops[1], *one = &bad;
        assert_int_equal(far_submit(g.session, &one, 1), 1);
        assert_int_equal(far_reap(g.session, done, 4, 1), 1);
        assert_op_error_contains(&g, &bad, "77 is not a kind");
    }
    assert_non_null(strstr(far_op_error(NULL, &ops[0]), "session"));
    close_small_environment(&g);
}


/* far_reap waits for at most min(wait_for, max, operations in flight) operations, and does not wait at all if one of
 * them is 0. */
TEST(reap_waits_for_as_many_as_asked_and_no_more) {
    ground g;
    open_small_environment(&g, "local:64M?rtt=2ms", NULL);
    far_op ops[3], *all[3] = {&ops[0], &ops[1], &ops[2]}, *done[3];
    for (int i = 0; i < 3; i++)
        ops[i] = (far_op){
            .kind = FAR_OP_PUT, .index = g.index, .key = &"abc"[i], .key_len = 1, .value = "v", .value_len = 1};
    assert_int_equal(far_reap(g.session, done, 3, 3), 0); /* nothing is in flight */
    assert_int_equal(far_submit(g.session, all, 3), 3);
    assert_int_equal(far_reap(g.session, done, 3, 0), 0); /* does not wait, and nothing can be ready yet */
    int count = far_reap(g.session, done, 3, 1);
    assert_true(count >= 1);
    assert_int_equal(far_reap(g.session, done, 0, 3), 0); /* `done` has no room, so it does not wait */
    assert_int_equal(far_reap(g.session, done, 3, 100), 3 - count);
    close_small_environment(&g);
}


/* A put that was submitted before some synchronous gets has finished when these gets return, although no call of
 * far_reap has waited for it. */
TEST(submitted_operations_continue_during_a_synchronous_call) {
    ground g;
    char value[8];
    open_small_environment(&g, "local:64M?rtt=1ms", NULL);
    far_op op = {.kind = FAR_OP_PUT, .index = g.index, .key = "a", .key_len = 1, .value = "1", .value_len = 1},
           *one = &op, *done;
    assert_int_equal(far_put(g.session, g.index, "b", 1, "2", 1), 0);
    assert_int_equal(far_submit(g.session, &one, 1), 1);
    for (int i = 0; i < 3; i++) /* each needs two round trips, the put needs three */
        assert_int_equal(far_get(g.session, g.index, "b", 1, value, 8, NULL), 0);
    assert_int_equal(far_reap(g.session, &done, 1, 0), 1);
    assert_int_equal(op.result, 0);
    close_small_environment(&g);
}


/* Handle A submits a put and its thread makes no further call on the session. Proves that handle B reads the new value
 * after a while, because the housekeeping thread of A runs the tasks of the session. Fails without
 * far_session_list_drive_users in far_housekeeping. */
TEST(housekeeping_finishes_operations_of_an_absent_thread) {
    ground g, h;
    char value[8];
    open_small_environment(&g, "local:64M?rtt=1ms&name=away", NULL);
    assert_int_equal(far_pool_open("local:64M?rtt=1ms&name=away", NULL, &h.pool), 0);
    assert_int_equal(far_session_open(h.pool, &h.session), 0);
    assert_int_equal(far_index_open(h.session, "map", &h.index), 0);
    far_op op = {.kind = FAR_OP_PUT, .index = g.index, .key = "a", .key_len = 1, .value = "1", .value_len = 1},
           *one = &op;
    assert_int_equal(far_submit(g.session, &one, 1), 1);
    while (far_get(h.session, h.index, "a", 1, value, 8, NULL) != 0)
        continue;
    assert_int_equal(far_reap(g.session, &one, 1, 0), 1);
    far_index_close(h.index);
    far_session_close(h.session);
    far_pool_close(h.pool);
    close_small_environment(&g);
}


/* Twenty gets that are submitted in one call need two round trips together, and each has its own result. Fails without
 * join_get_batch in client/submit.c. */
TEST(gets_of_one_call_share_their_round_trips) {
    ground g;
    enum { GETS = 20 };
    static op_table c;
    far_op *ops[GETS], *done[GETS];
    far_stats before, after, diff;
    open_small_environment(&g, "local:2x64M", "slots=1024");
    prepare_ops(&c, g.index, FAR_OP_PUT);
    submit_and_reap_all(g.session, &c);
    prepare_ops(&c, g.index, FAR_OP_GET);
    for (int i = 0; i < GETS; i++)
        ops[i] = &c.ops[i];
    c.ops[7].key = "absent", c.ops[7].key_len = 6;
    c.ops[8].capacity = 1;
    far_session_stats_of(g.session, FAR_OP_GET, &before);
    assert_int_equal(far_submit(g.session, ops, GETS), GETS);
    assert_int_equal(far_reap(g.session, done, GETS, GETS), GETS);
    far_session_stats_of(g.session, FAR_OP_GET, &after);
    diff = far_stats_diff(&after, &before);
    assert_int_equal(diff.round_trips, 2);
    assert_int_equal(diff.ops[FAR_OP_GET], GETS);
    for (int i = 0; i < GETS; i++)
        assert_int_equal(c.ops[i].result, i == 7 ? FAR_ERR_NOT_FOUND : i == 8 ? FAR_ERR_TOO_SMALL : 0);
    assert_int_equal(c.ops[8].value_len, 2);
    assert_memory_equal(c.values[12], "v12", 3);
    close_small_environment(&g);
}


/* With warm caches, 16 gets that are submitted in one call need at most 4 round trips together, for every kind. RDWC,
 * which is on by default, cannot save READs on mapped memory, so it must not keep the gets from sharing round trips
 * either. */
TEST(gets_of_every_kind_share_their_round_trips_on_mapped_memory) {
    static const char *const kinds[] = {"chime", "dart", "dolphin", "shard", "smart"};
    enum { GETS = 16 };
    static op_table c;
    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        ground g;
        far_index *index;
        far_op *ops[GETS], *done[GETS];
        far_stats before, after, diff;
        open_small_environment(&g, "local:2x256M", "slots=64");
        assert_int_equal(far_index_create(g.session, "other", kinds[k], NULL, &index), 0);
        prepare_ops(&c, index, FAR_OP_PUT);
        submit_and_reap_all(g.session, &c);
        for (unsigned round = 0; round < 3; round++) { /* the caches are warm in the last round */
            prepare_ops(&c, index, FAR_OP_GET);
            for (int i = 0; i < GETS; i++)
                ops[i] = &c.ops[i];
            far_session_stats_of(g.session, FAR_OP_GET, &before);
            assert_int_equal(far_submit(g.session, ops, GETS), GETS);
            assert_int_equal(far_reap(g.session, done, GETS, GETS), GETS);
            far_session_stats_of(g.session, FAR_OP_GET, &after);
        }
        diff = far_stats_diff(&after, &before);
        if (diff.round_trips > 4)
            fail_msg("%s: %d gets in %u round trips", kinds[k], GETS, (unsigned)diff.round_trips);
        for (int i = 0; i < GETS; i++)
            assert_int_equal(c.ops[i].result, 0);
        far_index_close(index);
        close_small_environment(&g);
    }
}


/* If all submitted operations finish inside far_submit, as on mapped memory, the housekeeping thread is not woken,
 * because that would take longer than the operations. If some remain in progress, it is woken. */
TEST(far_submit_wakes_housekeeping_only_if_operations_remain_in_progress) {
    const char *uris[] = {"local:64M", "local:64M?rtt=10ms"};
    for (unsigned u = 0; u < 2; u++) {
        far_pool *pool;
        far_session *s;
        far_index *index;
        static op_table c;
        far_op *ops[16], *done[16];
        assert_int_equal(far_pool_open(uris[u], &(far_pool_options){.no_thread = 1}, &pool), 0);
        assert_int_equal(far_session_open(pool, &s), 0);
        assert_int_equal(far_index_create(s, "i", "toy", NULL, &index), 0);
        prepare_ops(&c, index, FAR_OP_GET);
        for (unsigned i = 0; i < 16; i++)
            ops[i] = &c.ops[i];
        atomic_store(&pool->resting, true);
        atomic_store(&pool->parker.token, 0);
        assert_int_equal(far_submit(s, ops, 16), 16);
        assert_int_equal(atomic_load(&pool->parker.token), u);
        assert_int_equal(far_reap(s, done, 16, 16), 16);
        far_index_close(index);
        far_session_close(s);
        far_pool_close(pool);
    }
}


/* far_session_close finishes submitted operations before it closes the session, also those that were not reaped. */
TEST(a_session_is_closed_with_operations_in_flight) {
    ground g;
    far_session *s;
    static op_table c;
    far_op *ops[MANY];
    char value[8];
    open_small_environment(&g, "local:64M?rtt=100us", NULL);
    assert_int_equal(far_session_open(g.pool, &s), 0);
    prepare_ops(&c, g.index, FAR_OP_PUT);
    for (int i = 0; i < MANY; i++)
        ops[i] = &c.ops[i];
    far_op scan = {.kind = FAR_OP_SCAN, .index = g.index, .each = ignore_pair}, *one = &scan;
    assert_int_equal(far_submit(s, &one, 1), 1);
    assert_true(far_submit(s, ops, 100) == 100);
    far_session_close(s);
    assert_int_equal(far_get(g.session, g.index, "99", 2, value, 8, NULL), 0);
    close_small_environment(&g);
}
