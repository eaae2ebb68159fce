/* The history of a run contains for each operation of each client its arguments, its results, and the times of its
 * begin and end. The checks of this folder take it as input (verify.h), and `farindex torture --history` writes it as
 * JSON.
 *
 * Times are nanoseconds of one clock for all clients. An operation that ended at time t and an operation that began at
 * t count as concurrent. If an operation shall count as later, it must begin at t + 1 or later.
 *
 * The functions that record (begin, pair_given, stop, end, cut) may be called by several threads at the same time. All
 * others require that no thread records. The history copies all bytes. */
#ifndef FAR_VERIFY_HISTORY_H
#define FAR_VERIFY_HISTORY_H

#include "base/bytes.h"
#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* value of `end` for an operation that was cut, which means that its client failed before the operation returned */
#define FAR_HISTORY_NEVER INT64_MAX

typedef struct far_history_pair {
    far_bytes key, value;
} far_history_pair;

typedef struct far_history_op {
    uint64_t seed;
    uint32_t client;
    far_op_kind op;
    far_bytes key;   /* first key of the range of a scan; empty: no lower bound */
    far_bytes value; /* the value that was written, or that a get returned */
    bool has_value;  /* false for a delete, a scan, and a get that found nothing */
    bool has_to;
    /* 0 or FAR_ERR_*; for a scan, the number of pairs or FAR_ERR_*; undefined while `end` is FAR_HISTORY_NEVER */
    int64_t result;
    int64_t start, end;
    /* Upper bound of the range of a scan; valid if has_to is true. Only scans use this field and the following ones. */
    far_bytes to;
    bool reverse; /* true: the scan returns keys in descending order */
    uint64_t limit;
    far_history_pair *pairs;
    size_t pair_count, pair_capacity;
} far_history_op;

typedef struct far_history far_history;

/* creates an empty history; `seed` is stored in each operation that is recorded */
far_history *far_history_new(uint64_t seed);
void far_history_free(far_history *history); /* frees the history; NULL is allowed */

/* far_history_begin and the next function record the begin of an operation and return its index. An operation that
 * never ends counts as cut. `value` is the value to be written: NULL for get and delete; an empty value is a non-NULL
 * pointer with length 0. */
size_t far_history_begin(far_history *history, uint32_t client, far_op_kind op, const void *key, size_t key_len,
                         const void *value, size_t value_len, int64_t start);
/* `to` is the upper bound of the scan, or NULL if the scan has none. `reverse` is true for a scan in descending order.
 */
size_t far_history_begin_scan(far_history *history, uint32_t client, const void *from, size_t from_len, const void *to,
                              size_t to_len, uint64_t limit, bool reverse, int64_t start);
void far_history_pair_given(far_history *history, size_t index, const void *key, size_t key_len, const void *value,
                            size_t value_len);
/* Records that the callback of the user ended the scan. The limit of the scan then becomes the number of its pairs so
 * far. */
void far_history_stop(far_history *history, size_t index);
/* Records the end of an operation with its result. `value` is the value that a get returned, otherwise NULL. */
void far_history_end(far_history *history, size_t index, int64_t result, const void *value, size_t value_len,
                     int64_t end);
/* Records that the client of this operation failed, so that the operation is cut. Removes the end of the operation if
 * one was recorded. */
void far_history_cut(far_history *history, size_t index);

size_t far_history_count(const far_history *history);
const far_history_op *far_history_at(const far_history *history, size_t index);
/* Appends copies of all operations of `from` to `into`. Each copy keeps the seed that is stored in it. */
void far_history_merge(far_history *into, const far_history *from);
bool far_history_op_equal(const far_history_op *a, const far_history_op *b);

/* Write and read a history as JSON lines, one object per operation in the order of recording. Both return 0 or an
 * error. far_history_write fails with FAR_ERR_UNREACHABLE if the file cannot be written. far_history_read appends to
 * the history; at a line that is not an operation it stops with FAR_ERR_INVALID and stores the number of the line,
 * counted from 1. */
int far_history_write(const far_history *history, FILE *file);
int far_history_read(far_history *history, FILE *file, size_t *bad_line);
int far_history_write_op(const far_history_op *op, FILE *file); /* writes one operation as one line */

const char *far_op_name(far_op_kind op);

#endif
