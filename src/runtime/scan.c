/* Scans: the kind fills a buffer with one chunk of pairs under a pin; then, with nothing pinned and outside the
 * session, the pairs are given to the user; the next chunk begins after the last key. */
#include "pool/handle.h"
#include "runtime/error.h"
#include "runtime/op.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_PAIRS 256
#define CHUNK_BYTES (64 * 1024)
#define FIRST_BYTES (4 * 1024)

typedef struct pair_head {
    uint32_t key, value; /* lengths; key and value follow, then the next at a multiple of 8 */
} pair_head;

struct far_scan_buffer {
    char *data;
    size_t size, used, last; /* last: where the last pair begins */
    unsigned pairs;
    bool full; /* a pair was refused: there is more */
    bool past; /* a pair at or beyond `to` was given: there is no more */
};

struct far_scan_run {
    far_session *session;
    far_index *index;
    far_scan_chunk scan;
    struct far_scan_buffer buffer;
    size_t limit; /* still to give; SIZE_MAX: all */
    int64_t given;
    bool counted, over;
    far_pair_fn each;
    void *each_ctx;
    uint8_t *from, *to; /* copies; from becomes the last key given */
};


static size_t pair_bytes(size_t key, size_t value) {
    return (sizeof(pair_head) + key + value + 7) & ~(size_t)7;
}


static bool make_room(struct far_scan_buffer *buffer, size_t bytes) {
    if (buffer->used + bytes <= buffer->size)
        return true;
    size_t size = buffer->size ? buffer->size : FIRST_BYTES;
    while (size < buffer->used + bytes)
        size *= 2;
    char *data = realloc(buffer->data, size);
    if (!data)
        return false;
    buffer->data = data;
    buffer->size = size;
    return true;
}


static far_bytes last_key(const struct far_scan_buffer *buffer) {
    pair_head head;
    memcpy(&head, buffer->data + buffer->last, sizeof(head));
    return (far_bytes){buffer->data + buffer->last + sizeof(head), head.key};
}


/* Keys before the range, and keys that are not beyond the last one, are passed over: a kind may give whole leaves, and
 * a leaf twice. */
int far_scan_give(far_scan_chunk *scan, far_bytes key, far_bytes value) {
    struct far_scan_buffer *buffer = scan->buffer;
    if (scan->bounded && far_bytes_compare(key, scan->to) >= 0) {
        buffer->past = true;
        return 1;
    }
    if (buffer->pairs) {
        if (far_bytes_compare(key, last_key(buffer)) <= 0)
            return 0;
    } else {
        int order = far_bytes_compare(key, scan->from);
        if (order < 0 || (order == 0 && scan->after))
            return 0;
    }
    size_t bytes = pair_bytes(key.length, value.length);
    if (buffer->pairs == CHUNK_PAIRS || buffer->pairs >= scan->wanted ||
        (buffer->pairs && buffer->used + bytes > CHUNK_BYTES)) {
        buffer->full = true;
        return 1;
    }
    if (!make_room(buffer, bytes))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the pairs of a scan");
    pair_head head = {(uint32_t)key.length, (uint32_t)value.length};
    char *at = buffer->data + buffer->used;
    memcpy(at, &head, sizeof(head));
    memcpy(at + sizeof(head), key.data, key.length);
    if (value.length)
        memcpy(at + sizeof(head) + key.length, value.data, value.length);
    buffer->last = buffer->used;
    buffer->used += bytes;
    buffer->pairs++;
    return 0;
}


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


static int fill(far_task *t, void *arg) {
    far_scan_run *run = arg;
    struct far_scan_buffer *buffer = &run->buffer;
    buffer->used = buffer->last = buffer->pairs = 0;
    buffer->full = buffer->past = false;
    run->scan.end = false;
    run->scan.wanted = run->limit;
    return run->index->kind->scan(t, run->index, &run->scan);
}


int far_scan_run_chunk(far_task *t, void *arg) {
    far_scan_run *run = arg;
    t->label = "scan";
    t->index_key = run->index->uid;
    t->index = run->index;
    if (!run->counted)
        t->stats->ops[FAR_OP_SCAN]++;
    run->counted = true;
    if (run->over)
        return 0;
    int err = far_run_pinned(t, fill, run);
    if (err < 0)
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
        pair_head head;
        memcpy(&head, buffer->data + at, sizeof(head));
        const char *key = buffer->data + at + sizeof(head);
        run->given++;
        if (run->limit != SIZE_MAX)
            run->limit--;
        if (run->each(run->each_ctx, key, head.key, key + head.key, head.value))
            return run->over = true;
        at += pair_bytes(head.key, head.value);
    }
    if (!run->over && buffer->pairs) {
        far_bytes last = last_key(buffer);
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
