/* The baseline with locks, option lock_free=0: maintenance of the lock words. baseline.c describes the lock words. */
#ifndef FAR_INDEX_DART_BASELINE_H
#define FAR_INDEX_DART_BASELINE_H

#include "index/dart/dart.h"

/* Reports the table of lock words to the walk, if the index has such a table, and frees the locks of failed clients.
 * Returns 0 or an error. The caller holds no pin. */
int dart_locks_walk(far_task *t, far_index *index, far_walk *walk);
/* Reports locks that no living client holds. The caller holds no pin. */
int dart_locks_check(far_task *t, far_index *index, far_report *report);

#endif
