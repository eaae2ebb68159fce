/* Memory of indexes that are not listed any more (unlisted.c), as housekeeping sees it. */
#ifndef FAR_POOL_UNLISTED_H
#define FAR_POOL_UNLISTED_H

#include "task/task.h"

bool far_unlisted_is_due(far_pool *pool); /* the catalog changed, or this handle has dropped an index */

/* Looks for slabs of indexes that are gone, and frees them: unpinned, waits for answers with that patience. *all: none is
 * left. */
int far_unlisted_collect(far_task *t, uint64_t patience, bool *all);
void far_store_set_collecting(far_pool *pool, bool collecting);

#endif
