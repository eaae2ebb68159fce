/* Scans. A scan repeats two steps until the range or the limit is exhausted: a task fills a buffer with a chunk of
 * pairs while it holds a pin, and then the caller delivers the pairs to the user's callback, outside the session and
 * without a pin. The next chunk begins after the last key delivered, or, in a backward scan, before it. */
#include "base/error.h"
#include "client/checksum.h"
#include "client/client.h"
#include "client/op.h"
#include "index/common/results.h"

#include <stdlib.h>
#include <string.h>

struct far_scan_cursor {
    far_session *session;
    far_index *index;
    far_scan_chunk scan;
    struct far_scan_buffer buffer;
    size_t limit; /* number of pairs still to deliver; SIZE_MAX: no limit */
    int64_t given;
    bool counted, over;
    /* set if the scan is part of a check: receives damaged values; NULL: a damaged value is an error */
    far_report *report;
    far_pair_fn each;
    void *each_ctx;
    /* copies of the bounds; a forward scan replaces `from` by the last key delivered, a backward scan replaces `to` */
    uint8_t *from, *to;
};


/* Changes a bound to exactly `size` bytes, for an index in which all keys have this size. A shorter bound is padded
 * with zeros and becomes the first possible key with that prefix, so the same keys are >= the bound. A longer bound is
 * cut off. The result is less than the bound, so the caller must exclude the key that equals the result. Returns
 * whether the bound was cut off. */
static bool fit_bound_to_key_size(uint8_t *bound, size_t length, size_t size) {
    if (length < size)
        memset(bound + length, 0, size - length);
    return length > size;
}


/* Changes the key to the next key of the same size. Returns false if it was the last one. */
static bool increment_key(uint8_t *key, size_t size) {
    while (size-- > 0)
        if (++key[size])
            return true;
    return false;
}


static void fit_bounds_to_key_size(far_scan_cursor *cursor) {
    size_t size = (size_t)cursor->index->options[FAR_OPTION_KEY_SIZE];
    far_scan_chunk *scan = &cursor->scan;
    if (size == 0)
        return;
    if (scan->from.length) {
        if (fit_bound_to_key_size(cursor->from, scan->from.length, size))
            cursor->over = !increment_key(cursor->from, size); /* no key is greater than the bound */
        scan->from.length = size;
    }
    if (scan->bounded) {
        if (fit_bound_to_key_size(cursor->to, scan->to.length, size))
            scan->bounded = increment_key(cursor->to, size);
        scan->to.length = size;
    }
}


static int check_scan_arguments(const far_index *index, const far_op *op) {
    size_t max = (size_t)index->options[FAR_OPTION_MAX_KEY];
    if (!index->kind->scan)
        return far_fail(FAR_ERR_UNSUPPORTED, "an index of kind %s has no order to scan in", index->kind->name);
    if (!op->each)
        return far_fail(FAR_ERR_INVALID, "each: is NULL");
    if (!op->key && op->key_len)
        return far_fail(FAR_ERR_INVALID, "from: is NULL with a length of %zu", op->key_len);
    if (!op->to && op->to_len)
        return far_fail(FAR_ERR_INVALID, "to: is NULL with a length of %zu", op->to_len);
    if (op->key_len > max)
        return far_fail(FAR_ERR_INVALID, "from: %zu bytes are more than the longest key, %zu", op->key_len, max);
    if (op->to_len > max)
        return far_fail(FAR_ERR_INVALID, "to: %zu bytes are more than the longest key, %zu", op->to_len, max);
    return 0;
}


int far_scan_begin(far_session *s, far_index *index, const far_op *op, far_scan_cursor **made) {
    int err = check_scan_arguments(index, op);
    if (err < 0)
        return err;
    size_t max = (size_t)index->options[FAR_OPTION_MAX_KEY];
    far_scan_cursor *cursor = calloc(1, sizeof(*cursor) + 2 * max);
    if (!cursor)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    cursor->session = s;
    cursor->index = index;
    cursor->limit = op->limit ? op->limit : SIZE_MAX;
    cursor->each = op->each;
    cursor->each_ctx = op->each_ctx;
    cursor->from = (uint8_t *)(cursor + 1);
    cursor->to = cursor->from + max;
    if (op->key_len)
        memcpy(cursor->from, op->key, op->key_len);
    if (op->to_len)
        memcpy(cursor->to, op->to, op->to_len);
    cursor->scan.from = (far_bytes){cursor->from, op->key_len};
    cursor->scan.bounded = op->to != NULL;
    cursor->scan.to = (far_bytes){cursor->to, op->to_len};
    cursor->scan.buffer = &cursor->buffer;
    cursor->scan.backward = op->reverse;
    fit_bounds_to_key_size(cursor);
    if (cursor->scan.bounded && far_bytes_compare(cursor->scan.from, cursor->scan.to) >= 0)
        cursor->over = true;
    *made = cursor;
    return 0;
}


void far_scan_for_check(far_scan_cursor *cursor, far_report *report) {
    cursor->counted = true;
    cursor->report = report;
}


static int check_chunk_checksums(const far_scan_cursor *cursor) {
    size_t at = 0;
    int err = 0;
    for (unsigned i = 0; i < cursor->buffer.pairs && err >= 0 && far_sum_bytes(cursor->index); i++) {
        far_bytes key, value;
        far_scan_pair(&cursor->buffer, &at, &key, &value);
        err = far_sum_check_or_report(cursor->index, key, &value, cursor->report);
    }
    return err;
}


static int fill_chunk(far_task *t, void *arg) {
    far_scan_cursor *cursor = arg;
    far_scan_empty(&cursor->buffer);
    cursor->scan.end = false;
    cursor->scan.wanted = cursor->limit;
    return cursor->index->kind->scan(t, cursor->index, &cursor->scan);
}


int far_scan_fill_chunk(far_task *t, void *arg) {
    far_scan_cursor *cursor = arg;
    t->label = "scan";
    t->index_key = cursor->index->uid;
    if (!cursor->counted)
        far_count_op(t, FAR_OP_SCAN, cursor->index, 1);
    cursor->counted = true;
    if (cursor->over)
        return 0;
    int err = far_run_pinned(t, fill_chunk, cursor);
    if (err < 0 || (err = check_chunk_checksums(cursor)) < 0)
        return err;
    const struct far_scan_buffer *buffer = &cursor->buffer;
    cursor->over = buffer->past || (cursor->scan.end && !buffer->full) || buffer->pairs >= cursor->limit;
    if (!cursor->over && buffer->pairs == 0)
        return far_fail(FAR_ERR_CORRUPT, "a scan of kind %s returned neither a pair nor the end of the index",
                        cursor->index->kind->name);
    return 0;
}


bool far_scan_is_over(const far_scan_cursor *cursor) {
    return cursor->over && cursor->buffer.pairs == 0;
}


bool far_scan_deliver(far_scan_cursor *cursor) {
    struct far_scan_buffer *buffer = &cursor->buffer;
    size_t at = 0;
    for (unsigned i = 0; i < buffer->pairs && cursor->limit; i++) {
        far_bytes key, value;
        far_scan_pair(buffer, &at, &key, &value);
        cursor->given++;
        if (cursor->limit != SIZE_MAX)
            cursor->limit--;
        if (cursor->each(cursor->each_ctx, key.data, key.length, value.data,
                         value.length - far_sum_bytes(cursor->index)))
            return cursor->over = true;
    }
    if (!cursor->over && buffer->pairs) {
        far_bytes last = far_scan_last_key(buffer);
        bool backward = cursor->scan.backward;
        memcpy(backward ? cursor->to : cursor->from, last.data, last.length);
        if (backward) {
            cursor->scan.to.length = last.length;
            cursor->scan.bounded = true;
        } else {
            cursor->scan.from.length = last.length;
            cursor->scan.after = true;
        }
    }
    return cursor->over;
}


int64_t far_scan_pairs_delivered(const far_scan_cursor *cursor) {
    return cursor->given;
}


void far_scan_free(far_scan_cursor *cursor) {
    free(cursor->buffer.data);
    free(cursor);
}


/* Runs the scan that `op` describes, and returns the number of pairs delivered or an error. */
static int64_t run_scan(far_session *s, far_index *index, const far_op *op) {
    far_scan_cursor *cursor = NULL;
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = far_check_index(s, index)) >= 0)
        err = far_scan_begin(s, index, op, &cursor);
    far_call_leave(s);
    if (err < 0)
        return err;

    bool over = false;
    while (!over && err >= 0) {
        /* The callback `each` may have closed the pool, so the guard must be entered again. */
        if ((err = far_call_enter(s)) < 0)
            break;
        far_index_use(index);
        err = far_session_call(s, FAR_OP_SCAN, false, far_scan_fill_chunk, cursor);
        far_index_unuse(index);
        far_submitted_scans_deliver(s);
        far_call_leave(s);
        if (err >= 0)
            over = far_scan_deliver(cursor);
    }
    int64_t result = err < 0 ? far_describe_error(s, err) : far_scan_pairs_delivered(cursor);
    far_scan_free(cursor);
    return result;
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
