/* Behaviours that concern NULL arguments. Every function that takes a pointer returns FAR_ERR_INVALID for NULL, with a
 * message that names the argument, unless NULL has a meaning for that argument. */
#include "conform.h"


static int ignore_name(void *ctx, const char *name, const char *kind) {
    (void)ctx, (void)name, (void)kind;
    return 0;
}


/* Functions on pools and sessions reject NULL. The close functions accept it, and `problem` may be NULL. */
BEHAVIOUR(null_in_pool_and_session_calls) {
    rig r;
    rig_up_bare(&r, c, RIG_SIZE, NULL);
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_pool_usage usage = {0};
    int problems = 0;
    assert_refused("uri", far_pool_open(NULL, NULL, &pool));
    assert_null(pool);
    assert_refused("pool", far_pool_open(r.uri, NULL, NULL));
    assert_refused("pool", far_pool_poll(NULL));
    assert_refused("pool", far_session_open(NULL, &session));
    assert_null(session);
    assert_refused("session", far_session_open(r.pool, NULL));
    assert_refused("session", far_pool_stat(NULL, &usage));
    assert_refused("usage", far_pool_stat(r.session, NULL));
    assert_refused("session", far_pool_check(NULL, 0, count_problem, &problems));
    /* NULL is allowed here: the problems are only counted. */
    assert_int_equal(far_pool_check(r.session, 0, NULL, NULL), 0);
    far_pool_close(NULL);
    far_session_close(NULL);
    far_index_close(NULL);
    rig_down(&r);
}


/* Functions on whole indexes reject NULL and leave the index unchanged. */
BEHAVIOUR(null_in_index_calls) {
    rig r;
    rig_up(&r, c);
    far_index *index = NULL;
    far_usage usage = {0};
    int problems = 0;
    assert_refused("session", far_index_create(NULL, "other", c->kind, NULL, &index));
    assert_refused("name", far_index_create(r.session, NULL, c->kind, NULL, &index));
    assert_refused("kind", far_index_create(r.session, "other", NULL, NULL, &index));
    assert_refused("index", far_index_create(r.session, "other", c->kind, NULL, NULL));
    assert_refused("session", far_index_open(NULL, "index", &index));
    assert_refused("name", far_index_open(r.session, NULL, &index));
    assert_refused("index", far_index_open(r.session, "index", NULL));
    assert_null(index);
    assert_refused("session", far_index_drop(NULL, "index"));
    assert_refused("name", far_index_drop(r.session, NULL));
    assert_refused("session", far_index_list(NULL, ignore_name, NULL));
    assert_refused("each", far_index_list(r.session, NULL, NULL));
    assert_refused("each", far_kinds(NULL, NULL));
    assert_refused("session", far_index_usage(NULL, r.index, &usage));
    assert_refused("index", far_index_usage(r.session, NULL, &usage));
    assert_refused("usage", far_index_usage(r.session, r.index, NULL));
    assert_refused("session", far_index_check(NULL, r.index, count_problem, &problems));
    assert_refused("index", far_index_check(r.session, NULL, count_problem, &problems));
    assert_int_equal(far_index_check(r.session, r.index, NULL, NULL), 0);
    assert_code(FAR_ERR_NOT_FOUND, far_index_drop(r.session, "other"));
    assert_code(1, far_index_list(r.session, ignore_name, NULL));
    rig_down(&r);
}


/* Point operations reject NULL for session, index and key, and a NULL value whose length is not 0. */
BEHAVIOUR(null_in_point_operations) {
    rig r;
    rig_up(&r, c);
    char buffer[8];
    size_t length = 0;
    assert_ok(put_text(&r, "k", "v"));
    assert_refused("session", far_get(NULL, r.index, "k", 1, buffer, 8, &length));
    assert_refused("index", far_get(r.session, NULL, "k", 1, buffer, 8, &length));
    assert_refused("key", far_get(r.session, r.index, NULL, 1, buffer, 8, &length));
    assert_refused("value", far_get(r.session, r.index, "k", 1, NULL, 8, &length));
    int (*const writes[])(far_session *, far_index *, const void *, size_t, const void *,
                          size_t) = {far_put, far_insert, far_update};
    for (size_t i = 0; i < COUNT_OF(writes); i++) {
        assert_refused("session", writes[i](NULL, r.index, "k", 1, "w", 1));
        assert_refused("index", writes[i](r.session, NULL, "k", 1, "w", 1));
        assert_refused("key", writes[i](r.session, r.index, NULL, 1, "w", 1));
        assert_refused("key", writes[i](r.session, r.index, NULL, 0, "w", 1));
        assert_refused("value", writes[i](r.session, r.index, "k", 1, NULL, 1));
    }
    assert_refused("session", far_delete(NULL, r.index, "k", 1));
    assert_refused("index", far_delete(r.session, NULL, "k", 1));
    assert_refused("key", far_delete(r.session, r.index, NULL, 1));
    assert_text(&r, "k", "v");
    rig_down(&r);
}


/* A scan rejects NULL for session, index and callback, and then delivers no pair. */
BEHAVIOUR_FOR(null_in_scans, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    pairs found = {0};
    assert_ok(put_text(&r, "k", "v"));
    assert_refused("session", far_scan(NULL, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
    assert_refused("index", far_scan(r.session, NULL, NULL, 0, NULL, 0, 0, collect_pair, &found));
    assert_refused("each", far_scan(r.session, r.index, NULL, 0, NULL, 0, 0, NULL, NULL));
    assert_refused("session", far_scan_reverse(NULL, r.index, NULL, 0, NULL, 0, 0, collect_pair, &found));
    assert_refused("index", far_scan_reverse(r.session, NULL, NULL, 0, NULL, 0, 0, collect_pair, &found));
    assert_refused("each", far_scan_reverse(r.session, r.index, NULL, 0, NULL, 0, 0, NULL, NULL));
    assert_int_equal(found.count, 0);
    pairs_free(&found);
    rig_down(&r);
}


/* Functions on cursors reject NULL, except as bounds of a range, and leave the cursor unchanged. */
BEHAVIOUR_FOR(null_in_cursors, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    far_cursor *cursor = NULL;
    size_t length = 9;
    assert_ok(put_text(&r, "k", "v"));
    assert_refused("session", far_cursor_open(NULL, r.index, &cursor));
    assert_refused("index", far_cursor_open(r.session, NULL, &cursor));
    assert_refused("cursor", far_cursor_open(r.session, r.index, NULL));
    assert_null(cursor);
    int (*const moves[])(far_cursor *) = {far_cursor_first, far_cursor_last, far_cursor_next, far_cursor_prev};
    for (size_t i = 0; i < COUNT_OF(moves); i++)
        assert_refused("cursor", moves[i](NULL));
    assert_refused("cursor", far_cursor_seek(NULL, "k", 1));
    assert_refused("cursor", far_cursor_seek_before(NULL, "k", 1));
    assert_refused("cursor", far_cursor_range(NULL, NULL, 0, NULL, 0));
    assert_refused("cursor", far_cursor_prefix(NULL, "k", 1));
    assert_refused("cursor", far_cursor_expect(NULL, 1));
    assert_null(far_cursor_key(NULL, &length));
    assert_int_equal(length, 0);
    assert_null(far_cursor_value(NULL, &length));
    assert_null(far_cursor_key(NULL, NULL));

    assert_ok(far_cursor_open(r.session, r.index, &cursor));
    assert_ok(far_cursor_first(cursor));
    assert_refused("key", far_cursor_seek(cursor, NULL, 0));
    assert_refused("key", far_cursor_seek_before(cursor, NULL, 1));
    assert_refused("from", far_cursor_range(cursor, NULL, 1, NULL, 0));
    assert_refused("to", far_cursor_range(cursor, NULL, 0, NULL, 1));
    assert_refused("prefix", far_cursor_prefix(cursor, NULL, 1));
    assert_int_equal(far_cursor_key(cursor, NULL) != NULL && far_cursor_value(cursor, NULL) != NULL, 1);
    assert_ok(far_cursor_range(cursor, NULL, 0, NULL, 0));
    far_cursor_close(cursor);
    far_cursor_close(NULL);
    rig_down(&r);
}


/* far_submit and far_reap reject NULL arrays and NULL operations, and do nothing for a count of 0. */
BEHAVIOUR(null_in_submit_and_reap) {
    rig r;
    rig_up(&r, c);
    far_op op = {.kind = FAR_OP_PUT, .index = r.index, .key = "k", .key_len = 1, .value = "v", .value_len = 1};
    far_op *ops[] = {&op}, *none[] = {NULL}, *done[1];
    assert_refused("session", far_submit(NULL, ops, 1));
    assert_refused("ops", far_submit(r.session, NULL, 1));
    assert_refused("ops", far_submit(r.session, none, 1));
    assert_refused("session", far_reap(NULL, done, 1, 0));
    assert_refused("done", far_reap(r.session, NULL, 1, 0));
    assert_code(0, far_submit(r.session, ops, 0));
    assert_code(0, far_reap(r.session, done, 0, 0));
    assert_code(0, far_reap(r.session, done, 1, 1));
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "k"));
    rig_down(&r);
}


/* Functions on counters reject NULL and unknown operation kinds. A function that returns no error ignores such
 * arguments. */
BEHAVIOUR(null_in_counters) {
    rig r;
    rig_up(&r, c);
    far_stats stats = {0}, zero = {0};
    assert_ok(put_text(&r, "k", "v"));
    assert_refused("session", far_session_stats_of(NULL, FAR_OP_GET, &stats));
    assert_refused("stats", far_session_stats_of(r.session, FAR_OP_GET, NULL));
    assert_refused("kind", far_session_stats_of(r.session, (far_op_kind)17, &stats));
    far_session_stats(NULL, &stats);
    far_session_stats(r.session, NULL);
    assert_memory_equal(&stats, &zero, sizeof(stats));
    (void)far_stats_diff(NULL, &stats);
    (void)far_stats_diff(&stats, NULL);
    (void)far_stats_diff(NULL, NULL);
    rig_down(&r);
}


/* far_last_error never returns NULL. */
BEHAVIOUR(the_last_error_is_text_even_without_a_failure) {
    rig r;
    rig_up(&r, c);
    assert_non_null(far_last_error());
    assert_refused("key", far_get(r.session, r.index, NULL, 3, NULL, 0, NULL));
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "absent"));
    assert_non_null(far_last_error());
    rig_down(&r);
}
