/* The interface that index code uses besides that of the pool: returning results, background work, and the list of
 * kinds. pool/kind.h defines what a kind supplies, README.md in this folder explains how to write one, and toy/ is an
 * example.
 *
 * Operations run as tasks (task/task.h) that already have a pin. They are straight-line code that returns 0 or an
 * error. Keys and values have been checked against the index's limits. An operation may return a code which means that
 * nothing was changed only if it has changed nothing. */
#ifndef FAR_INDEX_INDEX_H
#define FAR_INDEX_INDEX_H

#include "pool/kind.h"


static inline int far_out_give(far_out *out, const void *value, size_t length) { /* returns 0 or FAR_ERR_TOO_SMALL */
    out->length = length;
    if (length > out->capacity)
        return FAR_ERR_TOO_SMALL;
    far_bytes_copy(out->buffer, (far_bytes){value, length});
    return 0;
}


/* Adds a pair to the chunk of a scan. Skips keys before the range, and keys that do not follow the last key given in the
 * direction of the scan. So a kind may give whole leaves, and may give the same leaf twice. Returns 0 if the scan must
 * continue, 1 if the chunk is complete, or an error. far_scan_add (common/results.h) does the same without comparing
 * keys. */
int far_scan_give(far_scan_chunk *scan, far_bytes key, far_bytes value);

/* Lists the keys of an index without order. Every key that is present throughout must be returned, and a key that moves
 * meanwhile may be returned twice. Index code calls far_keys_give for each key, with or without a pin, and calls
 * far_keys_throttle between slices, without a pin. If one of them returns a value other than 0, index code stops and
 * returns that value. */
int far_keys_give(far_keys *keys, far_bytes key);
int far_keys_throttle(far_task *t, far_keys *keys);
/* Returns whether the keys are listed for a salvage, which leaves out broken objects. `keys` may be NULL. */
bool far_keys_skips_damage(const far_keys *keys);
/* Returns 0 instead of FAR_ERR_CORRUPT if the keys are listed for a salvage. Verbs that
 * were not posted yet are discarded then. Returns any other result unchanged. */
int far_keys_skip_damage(far_task *t, const far_keys *keys, int result);

/* Spawns a background task like far_spawn, for work on an index. The index stays open until the task ends. Returns
 * false if there are too many tasks; then the caller does the work itself, or omits it. */
bool far_index_spawn(far_task *t, far_index *index, void (*run)(far_task *t, far_index *index, void *arg),
                     const void *arg, size_t bytes);

/* All kinds of this build, NULL-terminated. The toy map is the first one. */
extern const far_index_kind *const far_index_kinds[];
const far_index_kind *far_index_kind_named(const char *name);
bool far_index_kind_shown(const far_index_kind *kind); /* returns whether far_kinds lists the kind */

#endif
