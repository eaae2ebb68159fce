/* The catalog: named indexes. One object that lists {record address, name hash, uid}. Who adds an index writes a new one
 * and swings the catalog word on node 0 by CAS; who drops one flags its entry. A record holds name, kind, options, secret
 * and the index's descriptor, written before it is listed.
 *
 * Open: the handle WRITEs the uid into its table of open indexes (one writer at a time), waits, and looks at the record
 * and the catalog again. Drop: marks the record as being dropped, by CAS (with the dropper's id and generation; a mark
 * of a dead dropper, or one under which nobody works, is undone by whoever meets it), then looks at the tables of all live handles; open anywhere: takes the
 * mark back, FAR_ERR_BUSY; else removes the entry and frees all its slabs. Two handles cannot miss each other. (The
 * mark stands in the record, not in the list, because taking it back must not need memory.) A walk has an index open in
 * the same way, but a drop waits for it instead of saying FAR_ERR_BUSY. What a dead dropper left (slabs of a uid that
 * is not listed) the sweep frees. */
#ifndef FAR_POOL_CATALOG_H
#define FAR_POOL_CATALOG_H

#include "pool/kind.h"

int far_catalog_create(far_task *t, const char *name, const far_index_kind *kind, const char *options,
                       far_index **index);
int far_catalog_open(far_task *t, const char *name, far_index **index);
void far_catalog_close(far_task *t, far_index *index);
void far_catalog_close_locally(far_index *index); /* after far_pool_close */
int far_catalog_drop(far_task *t, const char *name);
int far_catalog_list(far_task *t, int (*each)(void *ctx, const char *name, const char *kind), void *ctx);

/* For sweeps and checks: as the user's open and close, but no reason for FAR_ERR_BUSY. */
int far_catalog_open_uid(far_task *t, uint32_t uid, far_index **index);
int far_catalog_try_open(far_task *t, uint32_t uid); /* whether one could who has nothing of it in memory yet */
void far_catalog_close_uid(far_task *t, far_index *index);

/* The handle is being closed: gives back its table of open indexes. By its own session, unpinned, before that is
 * unregistered. */
int far_catalog_leave(far_task *t);

/* For sweeps and checks: reports the catalog's own objects, then opens every index and walks it. */
int far_catalog_walk(far_task *t, far_walk *walk);
/* Checks that the index numbers that will be given out are new ones. repair: it is made so. */
struct far_report;
int far_catalog_check_numbers(far_task *t, bool repair, struct far_report *report);

#endif
