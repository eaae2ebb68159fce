/* What `farindex selftest` has refuted of a pool's fabric, on record at the pool: a word of the superblock that every
 * handle reads when it opens the pool, and again with every tick of its housekeeping. Bits are only ever added, but by
 * who forgets them on purpose: a self-test that did not happen to see a broken rule proves nothing.
 *
 *   opening the pool  goes without what was refuted, where there is another way: READs and atomics that wait for each
 *                     other, and pairs of words that are looked at twice. Layouts rest on units of 64 bytes, so a pool that
 *                     relies on these is refused.
 *   an open handle    lets its READs wait from then on; for all else it ends itself, because open indexes have chosen
 *                     their protocol. */
#ifndef FAR_POOL_REFUTED_H
#define FAR_POOL_REFUTED_H

#include "fabric/fabric.h"
#include "pool/superblock.h"
#include "task/task.h"

enum {
    FAR_REFUTED_READS_IN_ORDER = 1,
    FAR_REFUTED_ATOMICS_IN_ORDER = 2,
    FAR_REFUTED_UNITS = 4,  /* of 64 bytes */
    FAR_REFUTED_RULE = 8,   /* one that every fabric must keep: nothing can be built on this one */
    FAR_REFUTED_PAIRS = 16, /* of words: units of 16 bytes */
    FAR_REFUTED_ALL = 31,
};

/* The superblock's word is 0, or this mark and the bits: damage must not switch anything off. */
#define FAR_REFUTED_MARK 0x72656675ull /* "refu" */

/* The capabilities in words, as "reads_in_order, atomic_bytes=64". */
#define FAR_REFUTED_TEXT 112
const char *far_refuted_text(unsigned refuted, char text[FAR_REFUTED_TEXT]);

/* Whether the word as it was read is sound. Changes nothing: a handle that checks its pool learns by far_refuted_learn. */
int far_refuted_check(const far_pool *pool, uint64_t word);

/* Opening: the word as it was read, and the capabilities on which the pool agreed; both get smaller. */
int far_refuted_apply(far_pool *pool, uint64_t word, far_capabilities *agreed);

/* The word as a handle has read it again. */
void far_refuted_learn(far_pool *pool, uint64_t word);

/* By the self-test. recorded: all that is on record afterwards. */
int far_refuted_record(far_task *t, unsigned refuted, unsigned *recorded);
int far_refuted_forget(far_task *t);

#endif
