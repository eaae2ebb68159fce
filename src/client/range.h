/* Reading a range of keys chunk by chunk. far_scan and cursors use it.
 *
 * A far_range has a range, a direction, and a buffer for one chunk of pairs. far_range_read fills the buffer, in a task
 * and with a pin. The pairs stay in the buffer after the pin has ended, so that the caller can deliver them without
 * one. Then far_range_continue restricts the range to the keys that follow the chunk, and the caller reads the next
 * chunk. Alternatively, the caller describes another range (far_range_set).
 *
 * A session keeps some ranges that are not in use, with their buffers, so that a scan need not allocate memory. Only
 * the thread that uses the session may access this list, so far_range_take and far_range_release with a session must
 * not be called in a task. */
#ifndef FAR_CLIENT_RANGE_H
#define FAR_CLIENT_RANGE_H

#include "index/common/results.h"
#include "task/session.h"

typedef struct far_range {
    far_session *session; /* keeps this range when it is released; NULL: the range is freed */
    struct far_range *next_idle;
    far_index *index;
    /* the range of the next chunk; its bounds are copies, in `from` and `to` */
    far_scan_chunk scan;
    struct far_scan_buffer buffer;
    bool over;    /* true if no pair of the range follows the chunk in the buffer */
    bool counted; /* true if the operation to which the range belongs was counted */
    /* set if the range is read for a check: receives damaged values; NULL: a damaged value is an error */
    far_report *report;
    size_t key_max; /* space for each of the two bounds, in bytes */
    uint8_t *from, *to;
} far_range;

/* Returns 0 if the index has a key order, otherwise FAR_ERR_UNSUPPORTED. */
int far_range_check_order(const far_index *index);
/* Returns 0 if the bytes can be the bound of a range of this index, otherwise FAR_ERR_INVALID with a message that
 * begins with `name`. */
int far_range_check_bound(const far_index *index, const char *name, const void *bound, size_t length);

/* Makes a range of this index. The session keeps its memory when it is released; with NULL the memory is freed then. */
int far_range_take(far_session *s, far_index *index, far_range **range);
void far_range_release(far_range *range); /* NULL is allowed */
void far_ranges_free(far_session *s);     /* frees the ranges that the session keeps; the session is being closed */

/* Sets the range and the direction from the fields `from`, `after`, `bounded`, `to`, `to_included` and `backward` of
 * `wanted`, and copies the bounds. In an index of a fixed key size, bounds of other sizes are changed to bounds of this
 * size that enclose the same keys. The bounds must not be longer than the longest key of the index. */
void far_range_set(far_range *range, const far_scan_chunk *wanted);

/* Fills the buffer with the next chunk of at most range->scan.wanted pairs, checks the checksums, and sets
 * range->over. Takes a pin. A task function; the second argument is a far_range. */
int far_range_read(far_task *t, void *range);

/* Restricts the range to the keys that follow the last pair of the chunk, in the direction of the range. */
void far_range_continue(far_range *range);

/* Runs far_range_read, or a task function that calls it, in a synchronous call on the session. Delivers chunks of
 * submitted scans, as every public function does. The caller has entered a public function (far_call_enter). */
int far_range_call(far_session *s, far_index *index, int (*run)(far_task *t, void *arg), void *arg);

#endif
