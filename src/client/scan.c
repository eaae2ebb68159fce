/* Scans. A scan repeats two steps until the range or the limit is exhausted: a task fills a buffer with a chunk of
 * pairs while it holds a pin (range.c), and then the caller delivers the pairs to the user's callback, outside the
 * session and without a pin. The next chunk begins after the last key delivered, or, in a reverse scan, before it. */
#include "base/error.h"
#include "client/client.h"
#include "client/op.h"

#include <assert.h>


/* ---- Beginning ---- */

static int check_scan_arguments(const far_index *index, const far_op *op) {
    if (!op->each)
        return far_fail(FAR_ERR_INVALID, "each: is NULL");
    int err = far_range_check_bound(index, "from", op->key, op->key_len);
    return err < 0 ? err : far_range_check_bound(index, "to", op->to, op->to_len);
}


int far_scan_begin(far_session *s, far_index *index, const far_op *op, far_scan_state *scan) {
    int err = far_range_check_order(index);
    if (err >= 0)
        err = check_scan_arguments(index, op);
    if (err < 0 || (err = far_range_take(s, index, &scan->range)) < 0)
        return err;
    scan->limit = op->limit ? op->limit : SIZE_MAX;
    scan->given = 0;
    scan->over = false;
    scan->each = op->each;
    scan->each_ctx = op->each_ctx;
    far_range_set(scan->range, &(far_scan_chunk){.from = {op->key, op->key_len},
                                                 .bounded = op->to != NULL,
                                                 .to = {op->to, op->to_len},
                                                 .backward = op->reverse});
    return 0;
}


/* ---- Chunks ---- */

int far_scan_fill_chunk(far_task *t, void *arg) {
    far_scan_state *scan = arg;
    scan->range->scan.wanted = scan->limit;
    int err = far_range_read(t, scan->range);
    scan->over = scan->range->over || scan->range->buffer.pairs >= scan->limit;
    return err;
}


bool far_scan_is_over(const far_scan_state *scan) {
    return scan->over && scan->range->buffer.pairs == 0;
}


bool far_scan_deliver(far_scan_state *scan) {
    const struct far_scan_buffer *buffer = &scan->range->buffer;
    size_t at = 0, sum_bytes = far_sum_bytes(scan->range->index);
    assert(buffer->pairs <= scan->limit);
    for (unsigned i = 0; i < buffer->pairs; i++) {
        far_bytes key, value;
        far_scan_pair(buffer, &at, &key, &value);
        if (scan->each(scan->each_ctx, key.data, key.length, value.data, value.length - sum_bytes)) {
            scan->given += i + 1;
            return scan->over = true;
        }
    }
    scan->given += buffer->pairs;
    if (scan->limit != SIZE_MAX)
        scan->limit -= buffer->pairs;
    if (!scan->over)
        far_range_continue(scan->range);
    return scan->over;
}


/* ---- Synchronous scans ---- */

static int begin_in_call(far_session *s, far_index *index, const far_op *op, far_scan_state *scan) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = far_check_index(s, index)) >= 0)
        err = far_scan_begin(s, index, op, scan);
    far_call_leave(s);
    return err;
}


static int fill_chunk_in_call(far_session *s, far_scan_state *scan) {
    /* The callback `each` may have closed the pool, so the guard must be entered again for each chunk. */
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    err = far_range_call(s, scan->range->index, far_scan_fill_chunk, scan);
    far_call_leave(s);
    return err;
}


/* Runs the scan that `op` describes, and returns the number of pairs delivered or an error. */
static int64_t run_scan(far_session *s, far_index *index, const far_op *op) {
    far_scan_state scan;
    int err = begin_in_call(s, index, op, &scan);
    if (err < 0)
        return err;
    do
        err = fill_chunk_in_call(s, &scan);
    while (err >= 0 && !far_scan_deliver(&scan));
    far_range_release(scan.range);
    return err < 0 ? far_describe_error(s, err) : scan.given;
}


int64_t far_scan(far_session *s, far_index *index, const void *from, size_t from_len, const void *to, size_t to_len,
                 size_t limit, far_pair_fn each, void *ctx) {
    far_op op = {.kind = FAR_OP_SCAN,
                 .key = from,
                 .key_len = from_len,
                 .to = to,
                 .to_len = to_len,
                 .limit = limit,
                 .each = each,
                 .each_ctx = ctx};
    return run_scan(s, index, &op);
}


int64_t far_scan_reverse(far_session *s, far_index *index, const void *from, size_t from_len, const void *to,
                         size_t to_len, size_t limit, far_pair_fn each, void *ctx) {
    far_op op = {.kind = FAR_OP_SCAN,
                 .key = from,
                 .key_len = from_len,
                 .to = to,
                 .to_len = to_len,
                 .limit = limit,
                 .each = each,
                 .each_ctx = ctx,
                 .reverse = true};
    return run_scan(s, index, &op);
}
