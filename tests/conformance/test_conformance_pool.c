/* Behaviours of pool handles: their options, the state of sessions and indexes after the handle was closed, and many
 * sessions. */
#include "conform.h"


static int ignore_name(void *ctx, const char *name, const char *kind) {
    (void)ctx, (void)name, (void)kind;
    return 0;
}


/* After far_pool_close, every call on the remaining session and index returns FAR_ERR_INVALID with a message. */
BEHAVIOUR(sessions_and_indexes_of_a_closed_pool_refuse_calls) {
    rig r;
    rig_up(&r, c);
    far_index *index = NULL;
    far_usage usage = {0};
    far_pool_usage pool_usage = {0};
    char buffer[8];
    pairs found = {0};
    int problems = 0;
    far_op op = {.kind = FAR_OP_GET, .index = r.index, .key = "k", .key_len = 1}, *ops[] = {&op}, *done[1];
    assert_ok(put_text(&r, "k", "v"));
    far_pool_close(r.pool);
    assert_code(FAR_ERR_INVALID, far_get(r.session, r.index, "k", 1, buffer, sizeof(buffer), NULL));
    assert_true(strlen(far_last_error()) > 0);
    assert_code(FAR_ERR_INVALID, put_text(&r, "k", "w"));
    assert_code(FAR_ERR_INVALID, insert_text(&r, "l", "w"));
    assert_code(FAR_ERR_INVALID, update_text(&r, "k", "w"));
    assert_code(FAR_ERR_INVALID, delete_text(&r, "k"));
    assert_code(FAR_ERR_INVALID, far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
    assert_code(FAR_ERR_INVALID, far_submit(r.session, ops, 1));
    assert_code(FAR_ERR_INVALID, far_reap(r.session, done, 1, 1));
    assert_code(FAR_ERR_INVALID, far_index_create(r.session, "other", c->kind, NULL, &index));
    assert_code(FAR_ERR_INVALID, far_index_open(r.session, "index", &index));
    assert_code(FAR_ERR_INVALID, far_index_drop(r.session, "index"));
    assert_code(FAR_ERR_INVALID, far_index_list(r.session, ignore_name, NULL));
    assert_code(FAR_ERR_INVALID, far_index_usage(r.session, r.index, &usage));
    assert_code(FAR_ERR_INVALID, far_index_check(r.session, r.index, count_problem, &problems));
    assert_code(FAR_ERR_INVALID, far_pool_stat(r.session, &pool_usage));
    assert_code(FAR_ERR_INVALID, far_pool_check(r.session, 0, count_problem, &problems));
    assert_null(index);
    assert_int_equal(found.count, 0);
    r.pool = NULL;
    rig_close(&r);
}


/* After far_pool_close, the remaining sessions and indexes may be closed in any order. */
BEHAVIOUR(sessions_and_indexes_of_a_closed_pool_are_closed_in_any_order) {
    for (int order = 0; order < 2; order++) {
        rig r;
        rig_up(&r, c);
        far_session *second = NULL;
        far_index *again = NULL;
        assert_ok(far_session_open(r.pool, &second));
        assert_ok(far_index_open(second, "index", &again));
        far_pool_close(r.pool);
        r.pool = NULL;
        if (order == 0)
            far_session_close(second);
        far_index_close(again);
        if (order == 1)
            far_session_close(second);
        assert_code(FAR_ERR_INVALID, put_text(&r, "k", "v"));
        rig_close(&r);
    }
}


/* A handle can be closed while operations are in flight. Each operation has taken effect completely or not at all. */
BEHAVIOUR(a_handle_closes_with_operations_in_flight) {
    enum { OPS = 50 };
    rig r, other;
    rig_up(&r, c);
    rig_join(&other, &r);
    far_op ops[OPS] = {0}, *pointers[OPS], *done[OPS];
    uint8_t keys[OPS][8];
    for (uint64_t i = 0; i < OPS; i++) {
        number_key(i, keys[i]);
        ops[i] = (far_op){
            .kind = FAR_OP_PUT, .index = other.index, .key = keys[i], .key_len = 8, .value = keys[i], .value_len = 8};
        pointers[i] = &ops[i];
    }
    assert_code(OPS, far_submit(other.session, pointers, OPS));
    far_pool_close(other.pool);
    assert_code(FAR_ERR_INVALID, far_reap(other.session, done, OPS, OPS));
    other.pool = NULL;
    rig_close(&other);
    for (uint64_t i = 0; i < OPS; i++) /* Each operation has either taken effect completely or not at all. */
        if (far_get(r.session, r.index, keys[i], 8, NULL, 0, NULL) != FAR_ERR_NOT_FOUND)
            assert_value(r.session, r.index, keys[i], 8, keys[i], 8);
    rig_down(&r);
}


/* Runs operations that use caches, RDWC (the merging of concurrent operations on one key) and memory reclamation. If
 * `poll` is set, calls far_pool_poll between the operations, for a handle without a housekeeping thread. */
static void do_mixed_work(const rig *r, bool poll) {
    enum { KEYS = 120 };
    uint8_t key[8];
    for (uint64_t round = 0; round < 4; round++)
        for (uint64_t i = 0; i < KEYS; i++) {
            number_key(i, key);
            if ((i + round) % 4 == 0) {
                int result = far_delete(r->session, r->index, key, 8);
                assert_true(result == FAR_OK || (round == 0 && result == FAR_ERR_NOT_FOUND));
                assert_code(FAR_ERR_NOT_FOUND, far_get(r->session, r->index, key, 8, NULL, 0, NULL));
            }
            assert_ok(put_proof(r->session, r->index, key, 8, i * (round + 1), round));
            assert_proof(r->session, r->index, key, 8, i * (round + 1), round);
            if (poll && i % 5 == 0)
                assert_true(far_pool_poll(r->pool) >= 0);
        }
    for (uint64_t i = 0; i < KEYS; i++) {
        number_key(i, key);
        assert_proof(r->session, r->index, key, 8, i * 4, 3);
    }
}


/* Operations of a handle with no_thread work if the program calls far_pool_poll often. */
BEHAVIOUR(a_handle_without_a_thread_works_by_polling) {
    rig r;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    rig_up_with(&r, c, RIG_SIZE, &options, c->options);
    do_mixed_work(&r, true);
    rig_down(&r);
}


/* far_pool_poll may also be called on a handle that has a housekeeping thread. */
BEHAVIOUR(polling_is_harmless_with_a_housekeeping_thread) {
    rig r;
    rig_up(&r, c);
    do_mixed_work(&r, true);
    rig_down(&r);
}


/* With rdwc = -1, operations have the same results, and no operation is merged with another one. */
BEHAVIOUR(operations_are_correct_without_rdwc) {
    rig r;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.rdwc = -1;
    rig_up_with(&r, c, RIG_SIZE, &options, c->options);
    do_mixed_work(&r, false);
    far_stats stats = {0};
    far_session_stats(r.session, &stats);
    assert_int_equal(stats.delegated_reads, 0);
    assert_int_equal(stats.combined_writes, 0);
    rig_down(&r);
}


/* Operations work with a cache budget as small as 1 byte, and the caches never exceed it. */
BEHAVIOUR(a_tiny_cache_budget_suffices_and_is_respected) {
    const size_t budgets[] = {1, 4096, 100000};
    for (size_t i = 0; i < COUNT_OF(budgets); i++) {
        rig r;
        far_pool_options options = FAR_POOL_OPTIONS_INIT;
        options.cache_bytes = budgets[i];
        rig_up_with(&r, c, RIG_SIZE, &options, c->options);
        do_mixed_work(&r, false);
        far_usage usage = {0};
        assert_ok(far_index_usage(r.session, r.index, &usage));
        assert_true(usage.cache_bytes <= budgets[i]);
        rig_down(&r);
    }
}


/* A zeroed far_pool_options has the meaning of the defaults. */
BEHAVIOUR(zeroed_options_are_valid) {
    rig r;
    far_pool_options options = {0};
    rig_up_with(&r, c, RIG_SIZE, &options, c->options);
    do_mixed_work(&r, false);
    rig_down(&r);
}


/* far_pool_open rejects an option with an invalid value, and the message names the option. */
BEHAVIOUR(bad_options_are_refused) {
    rig r;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    const int bad[] = {-2, 2, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        far_pool *pool = NULL;
        far_pool_options options = FAR_POOL_OPTIONS_INIT;
        options.rdwc = bad[i];
        assert_refused("rdwc", far_pool_open(r.uri, &options, &pool));
        options.rdwc = 1;
        options.no_thread = bad[i];
        assert_refused("no_thread", far_pool_open(r.uri, &options, &pool));
        options.no_thread = 0;
        options.must_exist = bad[i];
        assert_refused("must_exist", far_pool_open(r.uri, &options, &pool));
        options.must_exist = 0;
        options.ignore_refuted = bad[i];
        assert_refused("ignore_refuted", far_pool_open(r.uri, &options, &pool));
        options.ignore_refuted = 0;
        options.restore = bad[i];
        assert_refused("restore", far_pool_open(r.uri, &options, &pool));
        assert_null(pool);
    }
    rig_down(&r);
}


/* Forty sessions of one handle work on the same index, and far_pool_stat counts them. */
BEHAVIOUR(many_sessions_share_a_handle) {
    enum { SESSIONS = 40 };
    rig r;
    rig_up(&r, c);
    far_session *sessions[SESSIONS] = {0};
    far_pool_usage before = {0}, during = {0}, after = {0};
    uint8_t key[8];
    assert_ok(far_pool_stat(r.session, &before));
    for (uint64_t i = 0; i < SESSIONS; i++) {
        assert_ok(far_session_open(r.pool, &sessions[i]));
        number_key(i, key);
        assert_ok(put_proof(sessions[i], r.index, key, 8, 30, i));
    }
    assert_ok(far_pool_stat(r.session, &during));
    assert_int_equal(during.sessions, before.sessions + SESSIONS);
    for (uint64_t i = 0; i < SESSIONS; i++) {
        number_key(SESSIONS - 1 - i, key);
        assert_proof(sessions[i], r.index, key, 8, 30, SESSIONS - 1 - i);
        if (i % 2)
            far_session_close(sessions[i]);
    }
    for (uint64_t i = 0; i < SESSIONS; i += 2) {
        number_key(i, key);
        assert_ok(far_delete(sessions[i], r.index, key, 8));
        far_session_close(sessions[i]);
    }
    assert_ok(far_pool_stat(r.session, &after));
    assert_int_equal(after.sessions, before.sessions);
    rig_down(&r);
}


/* A hundred sessions that are opened and closed in sequence see each other's writes. */
BEHAVIOUR(sessions_come_and_go_without_end) {
    rig r;
    rig_up(&r, c);
    for (uint64_t i = 0; i < 100; i++) {
        far_session *session = NULL;
        assert_ok(far_session_open(r.pool, &session));
        assert_ok(put_proof(session, r.index, "k", 1, 1000, i));
        far_session_close(session);
        assert_proof(r.session, r.index, "k", 1, 1000, i);
    }
    rig_down(&r);
}


/* A handle and a session that ran no operation leave a sound pool. */
BEHAVIOUR(an_unused_handle_and_session_close_cleanly) {
    rig r;
    far_pool *pool = NULL;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    assert_ok(far_pool_open(r.uri, NULL, &pool));
    far_pool_close(pool);
    assert_pool_is_sound(r.session);
    rig_close(&r);
}
