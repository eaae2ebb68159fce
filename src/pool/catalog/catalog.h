/* The catalog: the named indexes of a pool. A chain of catalog objects lists {record address, name hash, uid} of each
 * index. A record contains name, kind, options and secret of an index and the address of its root object; it is written
 * before the index is listed. A client that adds an index writes a longer chain and publishes it by a CAS of the catalog
 * word on node 0. A client that drops an index sets a flag in its entry.
 *
 * A drop removes the index from the catalog at once, although handles may have it open. A handle reads the catalog word
 * together with each new epoch. If the catalog has changed, the handle looks which of its open indexes are not listed
 * any more, before it takes its first pin at that epoch (far_catalog_observe). Operations that take a pin later do not
 * access these indexes: they fail with FAR_ERR_DROPPED. The memory of a dropped index is freed after one request that
 * all handles acknowledge (pool/gc/dropped.c). If a client fails after it removed the entry, a collection frees the
 * slabs, because their uid is not listed. */
#ifndef FAR_POOL_CATALOG_CATALOG_H
#define FAR_POOL_CATALOG_CATALOG_H

#include "pool/kind.h"

int far_catalog_create(far_task *t, const char *name, const far_index_kind *kind, const char *options,
                       far_index **index);
int far_catalog_open(far_task *t, const char *name, far_index **index);
void far_catalog_close(far_task *t, far_index *index);
/* Called after far_pool_close to close an index. Releases the local memory only, because no verb can be sent any more.
 */
void far_catalog_close_locally(far_index *index);
int far_catalog_drop(far_task *t, const char *name);
int far_catalog_list(far_task *t, int (*each)(void *ctx, const char *name, const char *kind), void *ctx);

/* Like far_catalog_open, for collections and checks. */
int far_catalog_open_uid(far_task *t, uint32_t uid, far_index **index);
/* Tests whether a handle that has no local state of the index could open the index. Returns 0 or the error of the open.
 */
int far_catalog_test_open(far_task *t, uint32_t uid);

/* Called while the handle closes, in its system session, unpinned, before that session is unregistered: publishes the
 * key counts, and removes all indexes from the handle's list. */
void far_catalog_detach_indexes(far_task *t);

/* Observes the catalog. `word` and `uids` are the words CATALOG and NEXT_UID, read after the global epoch and after the
 * request word. Called by pool/epoch/epoch.c with its flag `waking` set, in a task with a pin, before the handle takes
 * its first pin at the new epoch. If an index was dropped before these words were read, no operation of this handle
 * accesses it under a later pin. Returns 0 or an error. */
int far_catalog_observe(far_task *t, uint64_t word, uint64_t uids);
/* Returns FAR_ERR_DROPPED if this handle has an index with this uid open and has observed that it was dropped. */
int far_index_refuse_if_dropped(far_task *t, uint32_t uid);
/* Sets the message of FAR_ERR_DROPPED and returns this code. */
int far_index_fail_dropped(const far_index *index);

/* For collections and checks: reports the catalog's own objects, then opens and walks every index. */
int far_catalog_walk(far_task *t, far_walk *walk);
/* Checks that the index uids to be issued next are not in use. With `repair` the counter is corrected. */
struct far_report;
int far_catalog_check_numbers(far_task *t, bool repair, struct far_report *report);

#endif
