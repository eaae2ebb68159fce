/* The fabric record contains the guarantees of the pool's fabric that `farindex selftest` found violated. It is one
 * word of the superblock. A handle reads it when it opens the pool, and again at every tick of its housekeeping.
 * Self-tests only add bits, because a self-test that did not observe a violation proves nothing. Only `farindex
 * selftest --forget` clears the record.
 *
 * - A handle that opens the pool avoids a violated guarantee if it has an alternative. It waits between READs and
 *   atomics if their order is not guaranteed, and reads pairs of words twice. It refuses a pool that relies on a
 *   tearing granule of 64 bytes if that guarantee is violated, because the layouts of its indexes depend on it.
 * - A handle that is already open starts to wait between READs if their order is violated. For any other violation that
 *   it relies on it closes itself, because its open indexes have already chosen their protocols. */
#ifndef FAR_POOL_FORMAT_FABRIC_RECORD_H
#define FAR_POOL_FORMAT_FABRIC_RECORD_H

#include "fabric/fabric.h"
#include "pool/format/superblock.h"
#include "task/task.h"

enum {
    FAR_VIOLATED_READS_IN_ORDER = 1,
    FAR_VIOLATED_ATOMICS_IN_ORDER = 2,
    FAR_VIOLATED_LINES = 4,  /* 64-byte aligned accesses may tear */
    FAR_VIOLATED_RULE = 8,   /* a rule that every fabric must keep; without it no protocol works on this fabric */
    FAR_VIOLATED_PAIRS = 16, /* 16-byte aligned pairs of words may tear */
    FAR_VIOLATED_ALL = 31,
};

/* Upper half of a valid record word. The record word is 0, or this value << 32 | bits of the violated guarantees. A
 * corrupted word therefore does not disable guarantees. */
#define FAR_FABRIC_RECORD_MAGIC 0x72656675ull /* "refu" in ASCII */

/* Writes the names of the violated guarantees into `text`, for example "reads_in_order, atomic_bytes=64". Returns
 * `text`. */
#define FAR_VIOLATIONS_TEXT 112
const char *far_violations_text(unsigned refuted, char text[FAR_VIOLATIONS_TEXT]);

/* Returns FAR_ERR_CORRUPT if `word`, as read from the superblock, is not a valid record. Changes nothing;
 * far_fabric_record_observe makes a handle react to the record. */
int far_fabric_record_check(const far_pool *pool, uint64_t word);

/* Applies the record to a handle that opens the pool. `word` was read from the superblock; `agreed` are the
 * capabilities that the pool relies on. Removes the violated capabilities from `agreed` and from the fabric. Returns
 * FAR_ERR_UNSUPPORTED if the pool cannot be used without them. */
int far_fabric_record_apply(far_pool *pool, uint64_t word, far_capabilities *agreed);

/* Applies the record to a handle that has the pool open, after the handle has read the word again. */
void far_fabric_record_observe(far_pool *pool, uint64_t word);

/* Called by the self-test. Adds the bits `refuted` to the record, and sets `recorded` to all bits of the record
 * afterwards. */
int far_fabric_record_add(far_task *t, unsigned refuted, unsigned *recorded);
int far_fabric_record_clear(far_task *t);

#endif
