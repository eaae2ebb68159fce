/* Reads a range of keys chunk by chunk (range.h). Owns the ranges that a session keeps for reuse. */
#include "client/range.h"
#include "base/error.h"
#include "client/checksum.h"
#include "client/op.h"

#include <stdlib.h>
#include <string.h>

#define IDLE_RANGES 4 /* number of ranges that a session keeps: enough for two nested scans and a cursor */
/* A kept range has a buffer of at most this size. Only values of nearly FAR_VALUE_MAX bytes need a larger one. */
#define IDLE_BUFFER_BYTES (64 * 1024)


/* ---- Arguments ---- */

int far_range_check_order(const far_index *index) {
    if (index->kind->scan)
        return 0;
    return far_fail(FAR_ERR_UNSUPPORTED, "an index of kind %s has no order to scan in", index->kind->name);
}


int far_range_check_bound(const far_index *index, const char *name, const void *bound, size_t length) {
    size_t max = (size_t)index->options[FAR_OPTION_MAX_KEY];
    if (!bound && length)
        return far_fail(FAR_ERR_INVALID, "%s: is NULL with a length of %zu", name, length);
    if (length > max)
        return far_fail(FAR_ERR_INVALID, "%s: %zu bytes are more than the longest key, %zu", name, length, max);
    return 0;
}


/* ---- Memory ---- */

static void free_range(far_range *range) {
    free(range->buffer.data);
    free(range);
}


/* Takes a kept range whose bounds have room for keys of this index. Returns NULL if the session has none. */
static far_range *take_idle_range(far_session *s, size_t key_max) {
    far_range *range = s->idle_ranges;
    if (!range || range->key_max < key_max)
        return NULL;
    s->idle_ranges = range->next_idle;
    s->idle_range_count--;
    return range;
}


static far_range *allocate_range(size_t key_max) {
    far_range *range = malloc(sizeof(*range) + 2 * key_max);
    if (!range)
        return NULL;
    range->key_max = key_max;
    range->from = (uint8_t *)(range + 1);
    range->to = range->from + key_max;
    range->buffer = (struct far_scan_buffer){0};
    return range;
}


int far_range_take(far_session *s, far_index *index, far_range **range) {
    size_t key_max = (size_t)index->options[FAR_OPTION_MAX_KEY];
    far_range *taken = s ? take_idle_range(s, key_max) : NULL;
    if (!taken && !(taken = allocate_range(key_max)))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    taken->session = s;
    taken->index = index;
    taken->scan = (far_scan_chunk){.buffer = &taken->buffer, .wanted = SIZE_MAX};
    taken->over = taken->counted = false;
    taken->report = NULL;
    far_scan_begin_chunk(&taken->scan);
    *range = taken;
    return 0;
}


void far_range_release(far_range *range) {
    far_session *s = range ? range->session : NULL;
    if (!s || s->idle_range_count == IDLE_RANGES || range->buffer.size > IDLE_BUFFER_BYTES) {
        if (range)
            free_range(range);
        return;
    }
    range->next_idle = s->idle_ranges;
    s->idle_ranges = range;
    s->idle_range_count++;
}


void far_ranges_free(far_session *s) {
    while (s->idle_ranges) {
        far_range *range = s->idle_ranges;
        s->idle_ranges = range->next_idle;
        free_range(range);
    }
    s->idle_range_count = 0;
}


/* ---- Bounds ---- */

/* Changes a bound to exactly `size` bytes, for an index in which all keys have this size. A shorter bound is padded
 * with zeros and becomes the first possible key with that prefix. A longer bound is cut off, so it becomes the last
 * possible key that is less than the bound. */
static void fit_bound_to_key_size(uint8_t *bound, size_t length, size_t size) {
    if (length < size)
        memset(bound + length, 0, size - length);
}


/* Changes the key to the next key of the same size. Returns false if it was the last one. */
static bool increment_key(uint8_t *key, size_t size) {
    while (size-- > 0)
        if (++key[size])
            return true;
    return false;
}


static void fit_lower_bound(far_range *range, size_t size) {
    far_scan_chunk *scan = &range->scan;
    if (scan->from.length == 0 || scan->from.length == size)
        return;
    fit_bound_to_key_size(range->from, scan->from.length, size);
    if (scan->from.length > size && !increment_key(range->from, size))
        range->over = true; /* no key is greater than the bound */
    scan->from.length = size;
    scan->after = false;
}


static void fit_upper_bound(far_range *range, size_t size) {
    far_scan_chunk *scan = &range->scan;
    if (!scan->bounded || scan->to.length == size)
        return;
    fit_bound_to_key_size(range->to, scan->to.length, size);
    if (scan->to.length > size)
        scan->bounded = increment_key(range->to, size);
    scan->to.length = size;
    scan->to_included = false;
}


static bool range_is_empty(const far_scan_chunk *scan) {
    int order = scan->bounded ? far_bytes_compare(scan->from, scan->to) : -1;
    /* No key has the length 0, so an upper bound of length 0 excludes all keys, also if the bound itself is included. */
    return order > 0 || (order == 0 && (!scan->to_included || scan->to.length == 0));
}


void far_range_set(far_range *range, const far_scan_chunk *wanted) {
    far_scan_chunk *scan = &range->scan;
    size_t size = (size_t)range->index->options[FAR_OPTION_KEY_SIZE];
    far_bytes_copy(range->from, wanted->from);
    if (wanted->bounded)
        far_bytes_copy(range->to, wanted->to);
    scan->from = (far_bytes){range->from, wanted->from.length};
    scan->to = (far_bytes){range->to, wanted->bounded ? wanted->to.length : 0};
    scan->after = wanted->after;
    scan->bounded = wanted->bounded;
    scan->to_included = wanted->to_included;
    scan->backward = wanted->backward;
    range->over = false;
    if (size) {
        fit_lower_bound(range, size);
        fit_upper_bound(range, size);
    }
    range->over |= range_is_empty(scan);
}


/* ---- Chunks ---- */

/* Checks the checksums of the chunk. If a pair is damaged, the pairs before it remain in the chunk, and the next chunk,
 * which begins with the damaged pair, fails. */
static int check_checksums(far_range *range) {
    struct far_scan_buffer *buffer = &range->buffer;
    size_t at = 0;
    for (unsigned i = 0; i < buffer->pairs; i++) {
        far_bytes key, value;
        far_scan_pair(buffer, &at, &key, &value);
        int err = far_sum_check_or_report(range->index, key, &value, range->report);
        if (err < 0 && i == 0)
            return err;
        if (err < 0)
            far_scan_keep(buffer, i); /* this ends the loop */
    }
    return 0;
}


static int fill_buffer(far_task *t, void *arg) {
    far_range *range = arg;
    far_scan_begin_chunk(&range->scan);
    return range->index->kind->scan(t, range->index, &range->scan);
}


int far_range_read(far_task *t, void *arg) {
    far_range *range = arg;
    far_label_task(t, FAR_OP_SCAN, range->index);
    if (!range->counted)
        far_count_op(t, FAR_OP_SCAN, range->index, 1);
    range->counted = true;
    if (range->over)
        return 0;
    int err = far_run_pinned(t, fill_buffer, range);
    if (err >= 0 && far_sum_bytes(range->index))
        err = check_checksums(range);
    if (err < 0)
        return err;
    const struct far_scan_buffer *buffer = &range->buffer;
    range->over = buffer->past || (range->scan.end && !buffer->full);
    if (!range->over && buffer->pairs == 0)
        return far_fail(FAR_ERR_CORRUPT, "a scan of kind %s returned neither a pair nor the end of the index",
                        range->index->kind->name);
    return 0;
}


int far_range_call(far_session *s, far_index *index, int (*run)(far_task *t, void *arg), void *arg) {
    far_index_use(index);
    int err = far_session_call(s, FAR_OP_SCAN, false, run, arg);
    far_index_unuse(index);
    far_submitted_scans_deliver(s);
    return err;
}


void far_range_continue(far_range *range) {
    far_bytes last = far_scan_last_key(&range->buffer);
    far_scan_chunk *scan = &range->scan;
    far_bytes_copy(scan->backward ? range->to : range->from, last);
    if (scan->backward) {
        scan->to.length = last.length;
        scan->bounded = true;
        scan->to_included = false;
    } else {
        scan->from.length = last.length;
        scan->after = true;
    }
}
