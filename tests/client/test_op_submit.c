/* Operations that are submitted and reaped: results, errors and words of each; waiting; threads that stay away. On the
 * toy map. */
#include "../support/ground.h"
#include "index/index.h"
#include "pool/handle.h"
#include "task/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


static int ignore(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)value_len;
    return 0;
}


enum { MANY = 500 };

typedef struct crowd {
    far_op ops[MANY];
    char keys[MANY][8], values[MANY][8];
} crowd;


static void fill(crowd *c, far_index *index, far_op_kind kind) {
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


/* Submits all, reaping when the session is full. Returns how often it was. */
static unsigned run_all(far_session *s, crowd *c) {
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


static void submitted_operations_all_finish_with_their_results(void **state) {
    (void)state;
    static crowd c;
    const char *uris[] = {"local:2x256M", "local:2x256M?rtt=20us"};
    for (unsigned u = 0; u < 2; u++) {
        ground g;
        open_ground(&g, uris[u], "slots=64");
        far_op_kind kinds[] = {FAR_OP_UPDATE, FAR_OP_INSERT, FAR_OP_INSERT, FAR_OP_GET,
                               FAR_OP_PUT,    FAR_OP_DELETE, FAR_OP_GET};
        int expected[] = {FAR_ERR_NOT_FOUND, 0, FAR_ERR_EXISTS, 0, 0, 0, FAR_ERR_NOT_FOUND};
        for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
            fill(&c, g.index, kinds[k]);
            assert_true(run_all(g.session, &c) > 0);
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
        close_ground(&g);
    }
}


static void a_bad_operation_is_taken_and_finishes_with_its_error(void **state) {
    (void)state;
    ground g;
    open_ground(&g, "local:64M", NULL);
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
    close_ground(&g);
}


static void every_operation_has_words_of_its_own(void **state) {
    (void)state;
    ground g;
    open_ground(&g, "local:8M?rtt=20us", NULL);
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
    op_says(&g, &ops[0], "key: is empty");
    op_says(&g, &ops[1], "77 is no kind");
    op_says(&g, &ops[2], "no such key");
    assert_string_equal(far_op_error(g.session, &ops[3]), "");
    op_says(&g, &ops[0], "key: is empty"); /* until it is submitted again */
    ops[0].key = "k", ops[0].key_len = 1, ops[0].value_len = FAR_VALUE_MAX + 1, ops[0].value = value;
    assert_int_equal(far_submit(g.session, all, 1), 1);
    assert_int_equal(far_reap(g.session, done, 4, 1), 1);
    op_says(&g, &ops[0], "value");
    for (unsigned i = 0; i < 3000; i++) { /* words of old failures are forgotten, not gathered */
        far_op bad = ops[1], *one = &bad;
        assert_int_equal(far_submit(g.session, &one, 1), 1);
        assert_int_equal(far_reap(g.session, done, 4, 1), 1);
        op_says(&g, &bad, "77 is no kind");
    }
    assert_non_null(strstr(far_op_error(NULL, &ops[0]), "session"));
    close_ground(&g);
}


static void reap_waits_for_as_many_as_asked_and_no_more(void **state) {
    (void)state;
    ground g;
    open_ground(&g, "local:64M?rtt=2ms", NULL);
    far_op ops[3], *all[3] = {&ops[0], &ops[1], &ops[2]}, *done[3];
    for (int i = 0; i < 3; i++)
        ops[i] = (far_op){
            .kind = FAR_OP_PUT, .index = g.index, .key = &"abc"[i], .key_len = 1, .value = "v", .value_len = 1};
    assert_int_equal(far_reap(g.session, done, 3, 3), 0); /* nothing is in flight */
    assert_int_equal(far_submit(g.session, all, 3), 3);
    assert_int_equal(far_reap(g.session, done, 3, 0), 0); /* only looks: nothing can be ready */
    int count = far_reap(g.session, done, 3, 1);
    assert_true(count >= 1);
    assert_int_equal(far_reap(g.session, done, 0, 3), 0); /* no room: no wait */
    assert_int_equal(far_reap(g.session, done, 3, 100), 3 - count);
    close_ground(&g);
}


static void a_synchronous_call_lets_the_others_go_on(void **state) {
    (void)state;
    ground g;
    char value[8];
    open_ground(&g, "local:64M?rtt=1ms", NULL);
    far_op op = {.kind = FAR_OP_PUT, .index = g.index, .key = "a", .key_len = 1, .value = "1", .value_len = 1},
           *one = &op, *done;
    assert_int_equal(far_put(g.session, g.index, "b", 1, "2", 1), 0);
    assert_int_equal(far_submit(g.session, &one, 1), 1);
    for (int i = 0; i < 3; i++) /* two round trips each, the put needs three */
        assert_int_equal(far_get(g.session, g.index, "b", 1, value, 8, NULL), 0);
    assert_int_equal(far_reap(g.session, &done, 1, 0), 1);
    assert_int_equal(op.result, 0);
    close_ground(&g);
}


static void operations_finish_while_their_thread_stays_away(void **state) {
    (void)state;
    ground g, h;
    char value[8];
    open_ground(&g, "local:64M?rtt=1ms&name=away", NULL);
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
    close_ground(&g);
}


static void gets_of_one_call_share_their_round_trips(void **state) {
    (void)state;
    ground g;
    enum { GETS = 20 };
    static crowd c;
    far_op *ops[GETS], *done[GETS];
    far_stats before, after, diff;
    open_ground(&g, "local:2x64M", "slots=1024");
    fill(&c, g.index, FAR_OP_PUT);
    run_all(g.session, &c);
    fill(&c, g.index, FAR_OP_GET);
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
    close_ground(&g);
}


/* RDWC is on, as it is by default: beside memory of the same host it spares nothing, and is in nobody's way. */
static void gets_of_every_kind_share_their_round_trips_on_mapped_memory(void **state) {
    (void)state;
    static const char *const kinds[] = {"chime", "dart", "dolphin", "shard", "smart"};
    enum { GETS = 16 };
    static crowd c;
    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        ground g;
        far_index *index;
        far_op *ops[GETS], *done[GETS];
        far_stats before, after, diff;
        open_ground(&g, "local:2x256M", "slots=64");
        assert_int_equal(far_index_create(g.session, "other", kinds[k], NULL, &index), 0);
        fill(&c, index, FAR_OP_PUT);
        run_all(g.session, &c);
        for (unsigned round = 0; round < 3; round++) { /* with warm caches in the end */
            fill(&c, index, FAR_OP_GET);
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
        close_ground(&g);
    }
}


/* To wake a thread takes longer than many operations. */
static void housekeeping_is_woken_for_what_is_under_way_and_for_nothing_else(void **state) {
    (void)state;
    const char *uris[] = {"local:64M", "local:64M?rtt=10ms"};
    for (unsigned u = 0; u < 2; u++) {
        far_pool *pool;
        far_session *s;
        far_index *index;
        static crowd c;
        far_op *ops[16], *done[16];
        assert_int_equal(far_pool_open(uris[u], &(far_pool_options){.no_thread = 1}, &pool), 0);
        assert_int_equal(far_session_open(pool, &s), 0);
        assert_int_equal(far_index_create(s, "i", "toy", NULL, &index), 0);
        fill(&c, index, FAR_OP_GET);
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


static void a_session_is_closed_with_operations_in_flight(void **state) {
    (void)state;
    ground g;
    far_session *s;
    static crowd c;
    far_op *ops[MANY];
    char value[8];
    open_ground(&g, "local:64M?rtt=100us", NULL);
    assert_int_equal(far_session_open(g.pool, &s), 0);
    fill(&c, g.index, FAR_OP_PUT);
    for (int i = 0; i < MANY; i++)
        ops[i] = &c.ops[i];
    far_op scan = {.kind = FAR_OP_SCAN, .index = g.index, .each = ignore}, *one = &scan;
    assert_int_equal(far_submit(s, &one, 1), 1);
    assert_true(far_submit(s, ops, 100) == 100);
    far_session_close(s);
    assert_int_equal(far_get(g.session, g.index, "99", 2, value, 8, NULL), 0);
    close_ground(&g);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(submitted_operations_all_finish_with_their_results),
        cmocka_unit_test(a_bad_operation_is_taken_and_finishes_with_its_error),
        cmocka_unit_test(every_operation_has_words_of_its_own),
        cmocka_unit_test(reap_waits_for_as_many_as_asked_and_no_more),
        cmocka_unit_test(a_synchronous_call_lets_the_others_go_on),
        cmocka_unit_test(operations_finish_while_their_thread_stays_away),
        cmocka_unit_test(gets_of_one_call_share_their_round_trips),
        cmocka_unit_test(gets_of_every_kind_share_their_round_trips_on_mapped_memory),
        cmocka_unit_test(housekeeping_is_woken_for_what_is_under_way_and_for_nothing_else),
        cmocka_unit_test(a_session_is_closed_with_operations_in_flight),
    };
    return cmocka_run_group_tests_name("op_submit", tests, NULL, NULL);
}
