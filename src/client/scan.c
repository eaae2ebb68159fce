/* Scans: the kind fills a buffer with one chunk of pairs under a pin; then, with nothing pinned and outside the
 * session, the pairs are given to the user; the next chunk begins after the last key. */
#include "base/error.h"
#include "client/checksum.h"
#include "client/client.h"
#include "client/op.h"
#include "index/results.h"

#include <stdlib.h>
#include <string.h>

struct far_scan_run {
    far_session *session;
    far_index *index;
    far_scan_chunk scan;
    struct far_scan_buffer buffer;
    size_t limit; /* still to give; SIZE_MAX: all */
    int64_t given;
    bool counted, over;
    far_report *report; /* of a check; NULL: damage is an error */
    far_pair_fn each;
    void *each_ctx;
    uint8_t *from, *to; /* copies; from becomes the last key given */
};


/* The bound as a key of exactly `size` bytes, where keys have no other size: keys >= bound stay the same. Filled up
 * with zeros, it is the first key that begins with it. Cut off, it is less than the bound: the key itself must go.
 * Returns whether it was cut. */
static bool fit_bound(uint8_t *bound, size_t length, size_t size) {
    if (length < size)
        memset(bound + length, 0, size - length);
    return length > size;
}


/* The next key of that size; false: it was the last. */
static bool increment(uint8_t *key, size_t size) {
    while (size-- > 0)
        if (++key[size])
            return true;
    return false;
}


static void fit_bounds(far_scan_run *run) {
    size_t size = (size_t)run->index->options[FAR_OPTION_KEY_SIZE];
    far_scan_chunk *scan = &run->scan;
    if (size == 0)
        return;
    if (scan->from.length) {
        scan->after = fit_bound(run->from, scan->from.length, size);
        scan->from.length = size;
    }
    if (scan->bounded) {
        if (fit_bound(run->to, scan->to.length, size))
            scan->bounded = increment(run->to, size);
        scan->to.length = size;
    }
}


static int check_scan(const far_index *index, const far_op *op) {
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


int far_scan_begin(far_session *s, far_index *index, const far_op *op, far_scan_run **made) {
    int err = check_scan(index, op);
    if (err < 0)
        return err;
    size_t max = (size_t)index->options[FAR_OPTION_MAX_KEY];
    far_scan_run *run = calloc(1, sizeof(*run) + 2 * max);
    if (!run)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    run->session = s;
    run->index = index;
    run->limit = op->limit ? op->limit : SIZE_MAX;
    run->each = op->each;
    run->each_ctx = op->each_ctx;
    run->from = (uint8_t *)(run + 1);
    run->to = run->from + max;
    if (op->key_len)
        memcpy(run->from, op->key, op->key_len);
    if (op->to_len)
        memcpy(run->to, op->to, op->to_len);
    run->scan.from = (far_bytes){run->from, op->key_len};
    run->scan.bounded = op->to != NULL;
    run->scan.to = (far_bytes){run->to, op->to_len};
    run->scan.buffer = &run->buffer;
    fit_bounds(run);
    run->over = run->scan.bounded && far_bytes_compare(run->scan.from, run->scan.to) >= 0;
    *made = run;
    return 0;
}


void far_scan_for_check(far_scan_run *run, far_report *report) {
    run->counted = true;
    run->report = report;
}


static int check_sums(const far_scan_run *run) {
    size_t at = 0;
    int err = 0;
    for (unsigned i = 0; i < run->buffer.pairs && err >= 0 && far_sum_bytes(run->index); i++) {
        far_bytes key, value;
        far_scan_pair(&run->buffer, &at, &key, &value);
        err = far_sum_report(run->index, key, &value, run->report);
    }
    return err;
}


static int fill(far_task *t, void *arg) {
    far_scan_run *run = arg;
    far_scan_empty(&run->buffer);
    run->scan.end = false;
    run->scan.wanted = run->limit;
    return run->index->kind->scan(t, run->index, &run->scan);
}


int far_scan_run_chunk(far_task *t, void *arg) {
    far_scan_run *run = arg;
    t->label = "scan";
    t->index_key = run->index->uid;
    if (!run->counted)
        far_count_op(t, FAR_OP_SCAN, run->index, 1);
    run->counted = true;
    if (run->over)
        return 0;
    int err = far_run_pinned(t, fill, run);
    if (err < 0 || (err = check_sums(run)) < 0)
        return err;
    const struct far_scan_buffer *buffer = &run->buffer;
    run->over = buffer->past || (run->scan.end && !buffer->full) || buffer->pairs >= run->limit;
    if (!run->over && buffer->pairs == 0)
        return far_fail(FAR_ERR_CORRUPT, "a scan of kind %s gave neither a pair nor the end", run->index->kind->name);
    return 0;
}


bool far_scan_is_over(const far_scan_run *run) {
    return run->over && run->buffer.pairs == 0;
}


bool far_scan_deliver(far_scan_run *run) {
    struct far_scan_buffer *buffer = &run->buffer;
    size_t at = 0;
    for (unsigned i = 0; i < buffer->pairs && run->limit; i++) {
        far_bytes key, value;
        far_scan_pair(buffer, &at, &key, &value);
        run->given++;
        if (run->limit != SIZE_MAX)
            run->limit--;
        if (run->each(run->each_ctx, key.data, key.length, value.data, value.length - far_sum_bytes(run->index)))
            return run->over = true;
    }
    if (!run->over && buffer->pairs) {
        far_bytes last = far_scan_last_key(buffer);
        memcpy(run->from, last.data, last.length);
        run->scan.from.length = last.length;
        run->scan.after = true;
    }
    return run->over;
}


int64_t far_scan_given(const far_scan_run *run) {
    return run->given;
}


void far_scan_finish(far_scan_run *run) {
    free(run->buffer.data);
    free(run);
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
    far_scan_run *run = NULL;
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = far_check_index(s, index)) >= 0)
        err = far_scan_begin(s, index, &op, &run);
    far_call_leave(s);
    if (err < 0)
        return err;

    bool over = false;
    while (!over && err >= 0) {
        if ((err = far_call_enter(s)) < 0) /* `each` may have closed the pool */
            break;
        far_index_use(index);
        err = far_session_call(s, FAR_OP_SCAN, false, far_scan_run_chunk, run);
        far_index_unuse(index);
        far_ops_deliver(s);
        far_call_leave(s);
        if (err >= 0)
            over = far_scan_deliver(run);
    }
    int64_t result = err < 0 ? far_tell(s, err) : far_scan_given(run);
    far_scan_finish(run);
    return result;
}
