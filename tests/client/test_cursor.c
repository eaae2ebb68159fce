/* Cursors on an index of the kind toy: the number of chunks that a pass reads, cursors in a forked process, and the
 * memory of scans and cursors that a session keeps. */
#include "../support/ground.h"
#include "client/range.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 500 };


static void put_many_keys(ground *g) {
    for (int i = 0; i < MANY; i++) {
        char key[8];
        snprintf(key, sizeof(key), "%03d", i);
        assert_int_equal(far_put(g->session, g->index, key, 3, key, 3), 0);
    }
}


static void assert_key(const far_cursor *cursor, int number) {
    char key[8];
    size_t length;
    snprintf(key, sizeof(key), "%03d", number);
    const void *found = far_cursor_key(cursor, &length);
    assert_int_equal(length, 3);
    assert_memory_equal(found, key, 3);
}


/* Returns the number of chunks that cursors of the session have read, which count as scans. */
static uint64_t count_chunks(const ground *g) {
    far_stats stats;
    assert_int_equal(far_session_stats_of(g->session, FAR_OP_SCAN, &stats), 0);
    return stats.ops[FAR_OP_SCAN];
}


/* A pass over 500 pairs reads chunks of 16, 64, 256 and 164 pairs, in both directions. The end of the index is known
 * then, so the move that finds it reads nothing. */
TEST(chunks_of_a_pass_grow) {
    ground g;
    far_cursor *cursor;
    open_small_environment(&g, "local:64M", "slots=32");
    put_many_keys(&g);
    assert_int_equal(far_cursor_open(g.session, g.index, &cursor), 0);
    for (int down = 0; down < 2; down++) {
        uint64_t before = count_chunks(&g);
        static const int moves_of_chunks[] = {16, 16 + 64, 16 + 64 + 256, MANY};
        for (int i = 0, chunk = 0; i < MANY; i++) {
            assert_int_equal((down ? far_cursor_prev : far_cursor_next)(cursor), 0);
            assert_key(cursor, down ? MANY - 1 - i : i);
            chunk += i == moves_of_chunks[chunk];
            assert_int_equal(count_chunks(&g) - before, chunk + 1);
        }
        assert_int_equal((down ? far_cursor_prev : far_cursor_next)(cursor), FAR_ERR_NOT_FOUND);
        assert_int_equal(count_chunks(&g) - before, 4);
    }
    far_cursor_close(cursor);
    close_small_environment(&g);
}


/* A cursor that expects 100 pairs reads them as one chunk. A cursor that expects one pair reads one pair, and, if more
 * moves follow, chunks of 16 and 64 pairs. */
TEST(a_hint_sets_the_size_of_the_first_chunk) {
    ground g;
    far_cursor *cursor;
    open_small_environment(&g, "local:64M", "slots=32");
    put_many_keys(&g);
    assert_int_equal(far_cursor_open(g.session, g.index, &cursor), 0);
    assert_int_equal(far_cursor_expect(cursor, 100), 0);
    uint64_t before = count_chunks(&g);
    assert_int_equal(far_cursor_seek(cursor, "200", 3), 0);
    for (int i = 1; i < 100; i++)
        assert_int_equal(far_cursor_next(cursor), 0);
    assert_key(cursor, 299);
    assert_int_equal(count_chunks(&g) - before, 1);
    assert_int_equal(far_cursor_expect(cursor, 1), 0);
    before = count_chunks(&g);
    assert_int_equal(far_cursor_seek(cursor, "200", 3), 0);
    for (int i = 1; i < 1 + 16 + 64; i++) {
        assert_int_equal(far_cursor_next(cursor), 0);
        assert_int_equal(count_chunks(&g) - before, i <= 16 ? 2 : 3);
    }
    far_cursor_close(cursor);
    close_small_environment(&g);
}


/* Without writes, moves inside the chunk read nothing. Each write of the session makes the next move read, and a read
 * or a write of another session does not. */
TEST(only_writes_of_the_session_end_a_chunk) {
    ground g;
    far_cursor *cursor;
    far_session *other;
    open_small_environment(&g, "local:64M", "slots=32");
    put_many_keys(&g);
    assert_int_equal(far_session_open(g.pool, &other), 0);
    assert_int_equal(far_cursor_open(g.session, g.index, &cursor), 0);
    assert_int_equal(far_cursor_first(cursor), 0);
    uint64_t before = count_chunks(&g);
    for (int i = 1; i < 10; i++) {
        assert_int_equal(far_get(g.session, g.index, "007", 3, NULL, 0, NULL), FAR_ERR_TOO_SMALL);
        assert_int_equal(far_put(other, g.index, "008", 3, "new", 3), 0);
        assert_int_equal(far_cursor_next(cursor), 0);
        assert_key(cursor, i);
    }
    assert_int_equal(count_chunks(&g), before);
    for (int i = 10; i < 15; i++) {
        assert_int_equal(far_update(g.session, g.index, "300", 3, "new", 3), 0);
        assert_int_equal(far_cursor_next(cursor), 0);
        assert_key(cursor, i);
        assert_int_equal(count_chunks(&g), before + (uint64_t)(i - 9));
    }
    far_cursor_close(cursor);
    far_session_close(other);
    close_small_environment(&g);
}


/* In a forked child, moves fail with FAR_ERR_FENCED, although the buffer contains more pairs, and a close does nothing.
 * In the parent the cursor still works. */
TEST(a_cursor_is_unusable_in_a_forked_child) {
    ground g;
    far_cursor *cursor;
    open_small_environment(&g, "local:64M", "slots=32");
    put_many_keys(&g);
    assert_int_equal(far_cursor_open(g.session, g.index, &cursor), 0);
    assert_int_equal(far_cursor_first(cursor), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool fails = far_cursor_next(cursor) == FAR_ERR_FENCED && far_cursor_last(cursor) == FAR_ERR_FENCED;
        far_cursor_close(cursor);
        _exit(fails ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(far_cursor_next(cursor), 0);
    assert_key(cursor, 1);
    far_cursor_close(cursor);
    close_small_environment(&g);
}


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(unsigned *)ctx;
    return 0;
}


typedef struct nesting {
    ground *g;
    unsigned depth;
} nesting;


static int scan_nested(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    nesting *n = ctx;
    (void)key, (void)key_len, (void)value, (void)value_len;
    if (n->depth++ < 8)
        far_scan(n->g->session, n->g->index, NULL, 0, NULL, 0, 1, scan_nested, n);
    return 1;
}


/* A session keeps the memory of a scan for the next one, and that of at most a few nested scans. A submitted scan gives
 * its memory back when it is reaped, and a session that is closed with scans that were not reaped frees it. */
TEST(the_memory_of_scans_is_kept_in_the_session) {
    ground g;
    unsigned pairs = 0;
    open_small_environment(&g, "local:64M", "slots=32");
    put_many_keys(&g);
    assert_null(g.session->idle_ranges);
    assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, 0, count_pair, &pairs), MANY);
    const far_range *kept = g.session->idle_ranges;
    const char *buffer = kept->buffer.data;
    assert_int_equal(g.session->idle_range_count, 1);
    assert_int_equal(far_scan_reverse(g.session, g.index, "1", 1, NULL, 0, 0, count_pair, &pairs), 400);
    assert_ptr_equal(g.session->idle_ranges, kept);
    assert_ptr_equal(kept->buffer.data, buffer);
    nesting n = {&g, 0};
    assert_int_equal(far_scan(g.session, g.index, NULL, 0, NULL, 0, 1, scan_nested, &n), 1);
    assert_int_equal(n.depth, 9);
    assert_int_equal(g.session->idle_range_count, 4);
    far_op scans[2] = {{.kind = FAR_OP_SCAN, .index = g.index, .each = count_pair, .each_ctx = &pairs},
                       {.kind = FAR_OP_SCAN, .index = g.index, .each = count_pair, .each_ctx = &pairs, .reverse = 1}};
    far_op *ops[] = {&scans[0], &scans[1]}, *done[2];
    assert_int_equal(far_submit(g.session, ops, 2), 2);
    assert_int_equal(g.session->idle_range_count, 2);
    assert_int_equal(far_reap(g.session, done, 2, 2), 2);
    assert_int_equal(scans[1].result, MANY);
    assert_int_equal(g.session->idle_range_count, 4);
    assert_int_equal(far_submit(g.session, ops, 2), 2);
    close_small_environment(&g);
}


/* A write that was submitted before a cursor fills its buffer, and that is reaped afterwards, is found by the next
 * move. Fails if the writes of a session are counted only when they begin. */
TEST(a_submitted_write_that_ends_later_is_found) {
    ground g;
    far_cursor *cursor;
    open_small_environment(&g, "local:64M?rtt=200us", "slots=32");
    assert_int_equal(far_put(g.session, g.index, "a", 1, "1", 1), 0);
    assert_int_equal(far_put(g.session, g.index, "c", 1, "1", 1), 0);
    assert_int_equal(far_cursor_open(g.session, g.index, &cursor), 0);
    for (int i = 0; i < 20; i++) {
        far_op op = {.kind = i % 2 ? FAR_OP_DELETE : FAR_OP_PUT, .index = g.index, .key = "b", .key_len = 1};
        far_op *ops[] = {&op}, *done[1];
        assert_int_equal(far_submit(g.session, ops, 1), 1);
        assert_int_equal(far_cursor_first(cursor), 0);
        assert_int_equal(far_reap(g.session, done, 1, 1), 1);
        assert_int_equal(op.result, 0);
        assert_int_equal(far_cursor_next(cursor), 0);
        assert_memory_equal(far_cursor_key(cursor, NULL), i % 2 ? "c" : "b", 1);
    }
    far_cursor_close(cursor);
    close_small_environment(&g);
}
