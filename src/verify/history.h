/* The history of a run: what every client called, with what, when, and what came back. It is what the checks of this
 * folder judge (verify.h), and what `farindex torture --history` writes.
 *
 * Time is in nanoseconds of one clock for all clients. An operation that ended at t and one that started at t count as
 * concurrent: a client whose next operation shall count as later starts it at t + 1 or after.
 *
 * Recording (begin, pair, stop, end, cut) is safe from several threads at once; everything else wants the history at
 * rest. All bytes are copied and belong to the history. */
#ifndef FAR_VERIFY_HISTORY_H
#define FAR_VERIFY_HISTORY_H

#include "base/bytes.h"
#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define FAR_HISTORY_NEVER INT64_MAX /* the end of an operation that was cut: its client died */

typedef struct far_history_pair {
    far_bytes key, value;
} far_history_pair;

typedef struct far_history_op {
    uint64_t seed;
    uint32_t client;
    far_op_kind op;
    far_bytes key;   /* scan: from; empty = the first key */
    far_bytes value; /* written, or what a get returned */
    bool has_value;  /* a get that found nothing, a delete and a scan have none */
    bool has_to;
    int64_t
        result; /* 0 or FAR_ERR_*; scan: the number of pairs, or FAR_ERR_*; nothing while end is FAR_HISTORY_NEVER */
    int64_t start, end;
    far_bytes to; /* scans only, as the rest */
    uint64_t limit;
    far_history_pair *pairs;
    size_t pair_count, pair_capacity;
} far_history_op;

typedef struct far_history far_history;

far_history *far_history_new(uint64_t seed); /* the seed is written into every operation recorded from then on */
void far_history_free(far_history *history); /* NULL is fine */

/* Each returns the operation's index. An operation that is never ended counts as cut. value: what is written, NULL for
 * get and delete (a written empty value is given as a non-NULL pointer and length 0). */
size_t far_history_begin(far_history *history, uint32_t client, far_op_kind op, const void *key, size_t key_len,
                         const void *value, size_t value_len, int64_t start);
size_t far_history_begin_scan(far_history *history, uint32_t client, const void *from, size_t from_len, const void *to,
                              size_t to_len, uint64_t limit, int64_t start); /* to: NULL = no bound */
void far_history_pair_given(far_history *history, size_t index, const void *key, size_t key_len, const void *value,
                            size_t value_len);
void far_history_stop(far_history *history,
                      size_t index); /* the caller's `each` ended the scan: its limit becomes the pairs given */
/* value: what a get returned, else NULL. */
void far_history_end(far_history *history, size_t index, int64_t result, const void *value, size_t value_len,
                     int64_t end);
void far_history_cut(far_history *history, size_t index); /* the client died; also takes back an end */

size_t far_history_count(const far_history *history);
const far_history_op *far_history_at(const far_history *history, size_t index);
void far_history_merge(far_history *into,
                       const far_history *from); /* appends copies; each operation keeps its own seed */
bool far_history_op_equal(const far_history_op *a, const far_history_op *b);

/* JSON lines, one object per operation, in the order of recording. Both return 0 or an error; write fails with
 * FAR_ERR_UNREACHABLE if the file cannot be written. read appends, and stops with FAR_ERR_INVALID and the number of the
 * line (from 1) at one that is no operation. */
int far_history_write(const far_history *history, FILE *file);
int far_history_read(far_history *history, FILE *file, size_t *bad_line);
int far_history_write_op(const far_history_op *op, FILE *file); /* one line */

const char *far_op_name(far_op_kind op);

#endif
