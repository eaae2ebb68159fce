/* The catalog: the named indexes of a pool. A chain of catalog objects lists {record address, name hash, uid} of each
 * index. A record contains name, kind, options and secret of an index and the address of its root object; it is written
 * before the index is listed. A client that adds an index writes a longer chain and publishes it by a CAS of the catalog
 * word on node 0. A client that drops an index sets a flag in its entry.
 *
 * Opening an index: the handle writes the uid into its table of open indexes, waits for the WRITE, and then reads the
 * record and the catalog again. Dropping an index: the client sets the drop mark in the record by CAS (owner.h format
 * plus a number), and then reads the tables of all live handles. If a user has the index open anywhere, the client
 * clears the mark and fails with FAR_ERR_BUSY. Otherwise it removes the entry and frees all slabs of the index. One of
 * the two clients always observes the other, because each writes before it reads. The mark is stored in the record and
 * not in the catalog object, because clearing it must not need memory. Any client clears a drop mark if the client that
 * it names failed, or if no operation is running under it.
 *
 * An index walk of a collection or check opens an index in the same way, but a drop waits for it instead of failing
 * with FAR_ERR_BUSY. If a client fails after it removed the entry, a collection frees the slabs, because their uid is
 * not listed. */
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

/* Open and close for collections and checks. They count separately from the user's opens, so that a drop waits for them
 * instead of failing with FAR_ERR_BUSY. */
int far_catalog_open_uid(far_task *t, uint32_t uid, far_index **index);
/* Tests whether a handle that has no local state of the index could open the index. Returns 0 or the error of the open.
 */
int far_catalog_test_open(far_task *t, uint32_t uid);
void far_catalog_close_uid(far_task *t, far_index *index);

/* Called while the handle closes, in its system session, unpinned, before that session is unregistered: gives back the
 * table of open indexes. */
int far_catalog_close_table(far_task *t);

/* For collections and checks: reports the catalog's own objects, then opens and walks every index. */
int far_catalog_walk(far_task *t, far_walk *walk);
/* Checks that the index uids to be issued next are not in use. With `repair` the counter is corrected. */
struct far_report;
int far_catalog_check_numbers(far_task *t, bool repair, struct far_report *report);

#endif
