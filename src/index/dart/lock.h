/* lock_free=0: what locks would cost. */
#ifndef FAR_INDEX_DART_LOCK_H
#define FAR_INDEX_DART_LOCK_H

#include "index/dart/dart.h"

/* Reports the table of locks, if there is one, and frees the locks of dead clients. Unpinned. */
int dart_locks_walk(far_task *t, far_index *index, far_walk *walk);
int dart_locks_check(far_task *t, far_index *index, far_report *report); /* tells of those that nobody alive holds */

#endif
