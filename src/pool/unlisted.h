/* Memory of indexes that are not listed any more (unlisted.c), as housekeeping sees it. */
#ifndef FAR_POOL_UNLISTED_H
#define FAR_POOL_UNLISTED_H

#include "task/task.h"

bool far_unlisted_is_due(far_pool *pool); /* the catalog changed, or this handle has dropped an index */
int far_unlisted_tick(far_task *t);       /* with a pin: 1 when there is something to collect */

/* Frees what belongs to dropped indexes: unpinned, waits for answers with that patience. *all: it did. */
int far_unlisted_collect(far_task *t, uint64_t patience, bool *all);
void far_store_set_collecting(far_pool *pool, bool collecting);

#endif
