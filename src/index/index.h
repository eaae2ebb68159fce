/* What index code uses beside the pool: giving results, background work, and the list of kinds. What a kind supplies is
 * in pool/kind.h; README.md beside this file shows how to write one; toy/ is the example.
 *
 * Operations run as tasks (task/task.h) that are already pinned; they are straight-line code that returns 0 or an
 * error. Keys and values were checked against the index's limits before. A result that says "nothing was changed" must
 * be true. */
#ifndef FAR_INDEX_INDEX_H
#define FAR_INDEX_INDEX_H

#include "pool/kind.h"


static inline int far_out_give(far_out *out, const void *value, size_t length) { /* 0 or FAR_ERR_TOO_SMALL */
    out->length = length;
    if (length > out->capacity)
        return FAR_ERR_TOO_SMALL;
    far_bytes_copy(out->buffer, (far_bytes){value, length});
    return 0;
}


int far_scan_give(far_scan_chunk *scan, far_bytes key, far_bytes value); /* 0: go on; 1: enough; negative: error */

/* The keys of an index without order, for those who want all of it. Every key that is there throughout is given, one
 * that moves meanwhile perhaps twice. give: pinned or not; rest: unpinned, between slices; not 0: stop, and return
 * that. */
int far_keys_give(far_keys *keys, far_bytes key);
int far_keys_rest(far_task *t, far_keys *keys);

/* far_spawn for work on an index: it is not closed before that ends. False: too many tasks; do without, or do it now.
 */
bool far_index_spawn(far_task *t, far_index *index, void (*run)(far_task *t, far_index *index, void *arg),
                     const void *arg, size_t bytes);

/* All kinds of this build, NULL-terminated: the toy map first, hidden once there is another. */
extern const far_index_kind *const far_index_kinds[];
const far_index_kind *far_index_kind_named(const char *name);
bool far_index_kind_shown(const far_index_kind *kind); /* by far_kinds */

#endif
