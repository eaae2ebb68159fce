/* Behaviours of the counters of sessions, and of the memory usage of indexes and pools. */
#include "conform.h"


static far_stats stats_of(const rig *r) {
    far_stats stats = {0};
    far_session_stats(r->session, &stats);
    return stats;
}


/* Every operation is counted once under its kind, whether it succeeds or fails, and whether it is synchronous or
 * submitted. */
BEHAVIOUR(operations_are_counted_by_kind) {
    rig r;
    rig_up(&r, c);
    far_stats before = stats_of(&r);
    for (int i = 0; i < 3; i++)
        assert_ok(put_text(&r, "k", "v"));
    assert_ok(insert_text(&r, "l", "v"));
    assert_code(FAR_ERR_EXISTS, insert_text(&r, "l", "v"));
    assert_ok(update_text(&r, "l", "w"));
    for (int i = 0; i < 5; i++)
        assert_ok(get_code(&r, "k"));
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "m"));
    assert_ok(delete_text(&r, "l"));
    pairs found = {0};
    if (c->ordered)
        assert_code(1, far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
    pairs_free(&found);
    far_op op = {.kind = FAR_OP_PUT, .index = r.index, .key = "k", .key_len = 1, .value = "x", .value_len = 1},
           *ops = &op;
    assert_code(1, far_submit(r.session, &ops, 1));
    assert_code(1, far_reap(r.session, &ops, 1, 1));
    far_stats after = stats_of(&r), diff = far_stats_diff(&after, &before);
    assert_int_equal(diff.ops[FAR_OP_PUT], 4);
    assert_int_equal(diff.ops[FAR_OP_INSERT], 2);
    assert_int_equal(diff.ops[FAR_OP_UPDATE], 1);
    assert_int_equal(diff.ops[FAR_OP_GET], 6);
    assert_int_equal(diff.ops[FAR_OP_DELETE], 1);
    assert_int_equal(diff.ops[FAR_OP_SCAN], c->ordered ? 1 : 0);
    rig_down(&r);
}


/* A put of a large value counts at least one round trip, one writing verb and its bytes; a get counts at least one
 * READ and its bytes. */
BEHAVIOUR(operations_cost_round_trips_verbs_and_bytes) {
    rig r;
    rig_up(&r, c);
    far_stats start = stats_of(&r);
    assert_ok(put_proof(r.session, r.index, "k", 1, 5000, 1));
    far_stats put = stats_of(&r), diff = far_stats_diff(&put, &start);
    assert_true(diff.round_trips >= 1);
    assert_true(diff.writes + diff.cas + diff.masked_cas + diff.faa >= 1);
    assert_true(diff.bytes_written >= 5000);
    assert_proof(r.session, r.index, "k", 1, 5000, 1);
    far_stats got = stats_of(&r);
    diff = far_stats_diff(&got, &put);
    assert_true(diff.round_trips >= 1);
    assert_true(diff.reads >= 1);
    assert_true(diff.bytes_read >= 5000);
    assert_true(diff.bytes_written < 5000);
    rig_down(&r);
}


/* far_stats_diff subtracts each field of far_stats. */
BEHAVIOUR(a_diff_subtracts_every_counter) {
    (void)c;
    enum { WORDS = sizeof(far_stats) / sizeof(uint64_t) };
    far_stats after, before, diff;
    uint64_t words[WORDS], *at;
    for (size_t i = 0; i < WORDS; i++)
        words[i] = 1000 * i + 7;
    memcpy(&before, words, sizeof(before));
    for (size_t i = 0; i < WORDS; i++)
        words[i] += i + 1;
    memcpy(&after, words, sizeof(after));
    diff = far_stats_diff(&after, &before);
    at = (uint64_t *)&diff;
    for (size_t i = 0; i < WORDS; i++)
        assert_int_equal(at[i], i + 1);
}


/* The counters of the operation kinds add up to the counters of the session, except for background work. */
BEHAVIOUR(the_parts_of_the_counters_make_up_the_whole) {
    rig r;
    rig_up(&r, c);
    far_stats parts[6], whole = stats_of(&r), sum = {0};
    for (unsigned kind = 0; kind < 6; kind++)
        assert_ok(far_session_stats_of(r.session, (far_op_kind)kind, &parts[kind]));
    for (unsigned i = 0; i < 40; i++) {
        uint8_t key[8];
        number_key(i, key);
        assert_ok(far_insert(r.session, r.index, key, 8, "v", 1));
        assert_ok(far_update(r.session, r.index, key, 8, "w", 1));
        assert_ok(far_put(r.session, r.index, key, 8, "x", 1));
        assert_value(r.session, r.index, key, 8, "x", 1);
        if (i % 2)
            assert_ok(far_delete(r.session, r.index, key, 8));
    }
    pairs found = {0};
    if (c->ordered)
        assert_code(20, far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
    pairs_free(&found);
    far_stats ends[6];
    for (unsigned kind = 0; kind < 6; kind++)
        assert_ok(far_session_stats_of(r.session, (far_op_kind)kind, &ends[kind]));
    /* The counters of the whole session are read before and after those of the operation kinds, because background work
     * continues meanwhile. */
    far_stats after = stats_of(&r);
    whole = far_stats_diff(&after, &whole);
    for (unsigned kind = 0; kind < 6; kind++) {
        far_stats now = far_stats_diff(&ends[kind], &parts[kind]);
        assert_int_equal(now.ops[kind], whole.ops[kind]);
        for (unsigned other = 0; other < 8; other++)
            assert_true(other == kind || now.ops[other] == 0);
        if (kind != FAR_OP_SCAN)
            /* None of these operations can be served from a cache without a round trip. */
            assert_true(now.round_trips >= now.ops[kind]);
        sum.round_trips += now.round_trips;
        sum.reads += now.reads;
        sum.bytes_written += now.bytes_written;
        sum.cas_failed += now.cas_failed;
    }
    assert_int_equal(sum.round_trips, whole.round_trips);
    assert_true(sum.reads <= whole.reads); /* The difference is background work that no operation caused. */
    assert_true(sum.bytes_written <= whole.bytes_written && sum.bytes_written > 0);
    assert_true(sum.cas_failed <= whole.cas_failed);
    rig_down(&r);
}


/* Operations of one session do not change the counters of another session of the same handle. */
BEHAVIOUR(counters_are_those_of_one_session) {
    rig r;
    rig_up(&r, c);
    far_session *second = NULL;
    far_stats mine = stats_of(&r), others = {0};
    assert_ok(far_session_open(r.pool, &second));
    assert_ok(far_put(second, r.index, "k", 1, "v", 1));
    far_session_stats(second, &others);
    assert_int_equal(others.ops[FAR_OP_PUT], 1);
    far_stats after = stats_of(&r), diff = far_stats_diff(&after, &mine);
    assert_int_equal(diff.ops[FAR_OP_PUT], 0);
    assert_int_equal(diff.round_trips, 0);
    far_session_close(second);
    rig_down(&r);
}


/* Asserts the number of keys and the bytes of keys and values that far_index_usage reports. */
static void assert_usage(const rig *r, uint64_t keys, uint64_t key_bytes, uint64_t value_bytes) {
    far_usage usage = {0};
    assert_ok(far_index_usage(r->session, r->index, &usage));
    assert_int_equal(usage.keys, keys);
    assert_int_equal(usage.key_bytes, key_bytes);
    assert_int_equal(usage.value_bytes, value_bytes);
    assert_true(usage.pool_bytes >= key_bytes + value_bytes);
    assert_int_equal(usage.pool_bytes, usage.pool_index_bytes + key_bytes + value_bytes);
}


/* far_index_usage counts keys and bytes exactly after inserts, changes of value lengths, and deletes. */
BEHAVIOUR(usage_is_exact) {
    rig r;
    rig_up(&r, c);
    uint64_t key_bytes = 0, value_bytes = 0;
    uint8_t key[FAR_KEY_MAX];
    memset(key, 'u', sizeof(key));
    assert_usage(&r, 0, 0, 0);
    for (uint64_t i = 1; i <= 100; i++) { /* The keys have 1 to 200 bytes, the values 0 to 990 bytes. */
        assert_ok(put_proof(r.session, r.index, key, 2 * i, 10 * (i - 1), i));
        key_bytes += 2 * i;
        value_bytes += 10 * (i - 1);
    }
    assert_usage(&r, 100, key_bytes, value_bytes);
    for (uint64_t i = 1; i <= 50; i++) { /* The new values are shorter or longer than the old ones. */
        assert_ok(put_proof(r.session, r.index, key, 2 * i, 400, i));
        value_bytes += 400 - 10 * (i - 1);
    }
    assert_code(FAR_ERR_EXISTS, far_insert(r.session, r.index, key, 2, "longer than nothing", 19));
    assert_usage(&r, 100, key_bytes, value_bytes);
    for (uint64_t i = 51; i <= 100; i++) {
        assert_ok(far_delete(r.session, r.index, key, 2 * i));
        key_bytes -= 2 * i;
        value_bytes -= 10 * (i - 1);
    }
    assert_code(FAR_ERR_NOT_FOUND, far_delete(r.session, r.index, key, 200));
    assert_usage(&r, 50, key_bytes, value_bytes);
    for (uint64_t i = 1; i <= 50; i++)
        assert_ok(far_delete(r.session, r.index, key, 2 * i));
    assert_usage(&r, 0, 0, 0);
    rig_down(&r);
}


/* far_index_usage also counts exactly in an index with keys and values of fixed sizes. */
BEHAVIOUR(usage_of_a_fixed_layout_is_exact) {
    rig r;
    rig_up_with(&r, c, RIG_SIZE, NULL, "key_size=8,value_size=8");
    uint8_t key[8];
    for (uint64_t i = 0; i < 200; i++) {
        number_key(i * 0x9e3779b97f4a7c15ull, key);
        assert_ok(far_put(r.session, r.index, key, 8, key, 8));
    }
    assert_usage(&r, 200, 1600, 1600);
    rig_down(&r);
}


static void assert_pool_adds_up(const rig *r, far_pool_usage *usage) {
    *usage = (far_pool_usage){0};
    assert_ok(far_pool_stat(r->session, usage));
    assert_int_equal(usage->total, usage->used + usage->retired + usage->free + usage->leaked);
}


/* The parts of the pool's memory add up to its total, before and after writes, and the memory of the index is
 * contained in the used part. */
BEHAVIOUR(the_pools_memory_adds_up) {
    rig r;
    rig_up(&r, c);
    far_pool_usage empty, full;
    far_usage usage = {0};
    assert_pool_adds_up(&r, &empty);
    assert_true(empty.total > 0 && empty.free > 0);
    assert_true(empty.memory_nodes >= 1 && empty.sessions >= 1 && empty.epoch > 0);
    assert_true(empty.total <= empty.memory_nodes * (64u << 20));
    assert_true(empty.total > empty.memory_nodes * (32u << 20)); /* Most of the memory is available to users. */
    uint8_t key[8];
    for (uint64_t i = 0; i < 100; i++) {
        number_key(i, key);
        assert_ok(put_proof(r.session, r.index, key, 8, 10000, i));
    }
    assert_pool_adds_up(&r, &full);
    assert_int_equal(full.total, empty.total);
    /* Housekeeping may be releasing a slab at this moment; the slab then counts as used. */
    uint64_t moving = 128u << 10;
    assert_true(full.used + moving >= empty.used + 100 * 10000);
    assert_ok(far_index_usage(r.session, r.index, &usage));
    assert_true(usage.pool_bytes <= full.used);
    rig_down(&r);
}


/* A repair of a pool without damage reports no problem and leaves all pairs unchanged. */
BEHAVIOUR(repair_of_a_sound_pool_changes_nothing) {
    rig r;
    rig_up(&r, c);
    uint8_t key[8];
    int problems = 0;
    for (uint64_t i = 0; i < 100; i++) {
        number_key(i, key);
        assert_ok(put_proof(r.session, r.index, key, 8, 100, i));
    }
    assert_code(0, far_pool_check(r.session, 1, count_problem, &problems));
    assert_int_equal(problems, 0);
    for (uint64_t i = 0; i < 100; i++) {
        number_key(i, key);
        assert_proof(r.session, r.index, key, 8, 100, i);
    }
    assert_usage(&r, 100, 800, 10000);
    rig_down(&r);
}
