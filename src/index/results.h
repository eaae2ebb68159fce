/* Where index code puts what it finds, and how the client takes it out: pairs of one chunk of a scan, keys of an index
 * without order. */
#ifndef FAR_INDEX_RESULTS_H
#define FAR_INDEX_RESULTS_H

#include "index/index.h"

struct far_scan_buffer {
    char *data;              /* by malloc */
    size_t size, used, last; /* last: where the last pair begins */
    unsigned pairs;
    bool full; /* a pair was refused: there is more */
    bool past; /* a pair at or beyond `to` was given: there is no more */
};

void far_scan_empty(struct far_scan_buffer *buffer);
far_bytes far_scan_last_key(const struct far_scan_buffer *buffer); /* the buffer must hold one */

/* The pair at *at, 0 for the first; moves on to the next one. */
void far_scan_pair(const struct far_scan_buffer *buffer, size_t *at, far_bytes *key, far_bytes *value);

struct far_keys {
    char *data; /* by malloc: for each key its length (32 bits), then its bytes */
    size_t size, used;
    bool due;     /* there is something for the caller to do */
    bool resting; /* the task waits for that */
    bool stopped; /* the caller wants no more */
    /* Instead of a caller that the task rests for: is told of each key, unpinned. */
    int (*each)(far_task *t, void *ctx, far_bytes key);
    void *ctx;
};

int far_keys_pass_on(far_task *t, far_keys *keys); /* to `each`: what was given since it last was */

#endif
