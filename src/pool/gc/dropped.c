/* Frees the memory of dropped indexes, and of indexes that were not created completely. Dropping an index only removes
 * it from the catalog's list; handles may still have it open. Every handle that finds slabs of such an index in its own
 * blocks then publishes a request and waits until all handles have acknowledged the request. After that no operation on
 * the index is running or can begin in any handle (pool/catalog/README.md), and no object of the index is being returned
 * or is in a list of another handle, so the slabs are freed as a whole. The handle that dropped the index also frees the
 * slabs of the index in orphans.
 *
 * An index that is being created is not listed either. But its slabs are in blocks of the handle that creates it, which
 * has the index open and does not release these blocks (pool/alloc/exchange.c). So if a handle has slabs of an index
 * that is not listed, and that is not open in this handle or known to be dropped, the index is dropped for good. These
 * indexes are determined before the request is published, because other handles may still hold objects of an index that
 * is dropped later. */
#include "base/error.h"
#include "pool/alloc/store.h"
#include "pool/catalog/layout.h"
#include "pool/gc/request.h"

#include <assert.h>
#include <stdlib.h>

#define SLABS_AT_ONCE 64u /* number of slabs that are wiped under one pin */


static uint64_t catalog_version(far_store *s) {
    return atomic_load_explicit(&s->handshake.superblock.catalog, memory_order_acquire) +
           atomic_load_explicit(&s->handshake.superblock.uids, memory_order_acquire) * 0x9e3779b97f4a7c15ull;
}


bool far_dropped_is_due(far_pool *pool) {
    far_store *s = pool->store;
    uint64_t catalog = catalog_version(s);
    pthread_mutex_lock(&s->lock);
    bool compared = catalog == s->dropped.catalog_seen && s->lists.gone_slabs == s->dropped.gone_slabs_seen;
    bool due = s->dropped.dropped_uids.count > 0 || (!compared && s->lists.block_count > 0);
    pthread_mutex_unlock(&s->lock);
    return due && !atomic_load_explicit(&pool->freeing_dropped, memory_order_relaxed);
}


void far_memory_note_dropped_index(far_pool *pool, uint32_t uid) {
    far_store *s = pool->store;
    pthread_mutex_lock(&s->lock);
    if (!far_items_add(&s->dropped.dropped_uids, uid))
        far_memory_note_leak(pool);
    pthread_mutex_unlock(&s->lock);
    far_epoch_request(pool);
}


/* ---- Finding dropped indexes ---- */

static bool contains_uid(const far_items *uids, uint32_t uid) {
    for (uint32_t i = 0; i < uids->count; i++)
        if (uids->items[i] == uid)
            return true;
    return false;
}


/* With the store's lock held, finds the uids of own slabs that belong to an index which is not listed, and which is not
 * open in this handle or known to be dropped. */
static void find_dropped_uids(const far_store *s, const far_catalog_view *view, far_items *gone_uids) {
    for (const far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab)) {
        const far_class *c = slab->class;
        if (far_class_index_is_gone(c) && !contains_uid(gone_uids, c->uid) && !far_catalog_find_uid(view, c->uid))
            /* if there is no local memory for an entry, the next call finds this index again */
            far_items_add(gone_uids, c->uid);
    }
}


/* Compares the own slabs with the catalog. The caller has a pin. The comparison is made in the store (far_store_enter),
 * because a block that was adopted after the catalog was read could contain slabs of an index that was listed since. */
static int compare_with_catalog(far_task *t, far_items *gone_uids) {
    far_store *s = far_store_of(t);
    far_scratch_mark mark = far_scratch_here(t);
    far_catalog_view view;
    /* the version is read before the catalog itself, so that a later change of the catalog causes another comparison */
    uint64_t catalog = catalog_version(s);
    assert(t->pin.epoch != 0);
    far_store_enter(t);
    int err = far_catalog_read(t, &view);
    if (err == 0) {
        far_catalog_mark_dropped(s->pool, &view);
        pthread_mutex_lock(&s->lock);
        find_dropped_uids(s, &view, gone_uids);
        if (gone_uids->count == 0) {
            s->dropped.catalog_seen = catalog;
            s->dropped.gone_slabs_seen = s->lists.gone_slabs;
        }
        pthread_mutex_unlock(&s->lock);
    }
    far_store_leave(t);
    far_scratch_back(t, mark);
    return err;
}


/* ---- Own slabs ---- */

static bool magazine_object_stays(far_store *s, far_class *class, uint64_t item, void *ctx) {
    (void)s, (void)item;
    return !contains_uid(ctx, class->uid);
}


static bool retired_object_stays(far_store *s, const far_retired *item, void *ctx) {
    (void)s;
    return !contains_uid(ctx, item->class->uid);
}


/* Returns the base of an own slab of a dropped index, or 0. The caller holds the store's lock. */
static far_addr find_dropped_slab(const far_store *s, const far_items *gone_uids) {
    for (const far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab))
        if (contains_uid(gone_uids, slab->class->uid))
            return far_slab_base(s, slab);
    return 0;
}


/* Frees some slabs of dropped indexes; the caller is in the store. Returns 1 if there are more such slabs. */
static int free_own_slabs(far_task *t, far_items *gone_uids) {
    far_store *s = far_store_of(t);
    assert(s->block_task == t && t->pin.epoch != 0);
    far_session_owned_free_closed(s);
    far_store_visit(
        s, &(far_visit){.in_magazine = magazine_object_stays, .retired = retired_object_stays, .ctx = gone_uids});
    for (unsigned i = 0; i < SLABS_AT_ONCE; i++) {
        pthread_mutex_lock(&s->lock);
        far_addr base = find_dropped_slab(s, gone_uids);
        pthread_mutex_unlock(&s->lock);
        if (base == 0)
            return far_slabs_trim(t, true);
        int err = far_slab_release(t, base, true);
        if (err < 0)
            return err;
    }
    return 1;
}


/* Takes a pin and frees some slabs of dropped indexes. Returns 1 if there are more such slabs. */
static int free_own_slabs_pinned(far_task *t, far_items *gone_uids) {
    int has_more = far_pin_take(t);
    if (has_more < 0)
        return has_more;
    far_store_enter(t);
    has_more = free_own_slabs(t, gone_uids);
    far_store_leave(t);
    far_catalog_unpin(t);
    return has_more;
}


/* ---- Unowned blocks ---- */

static int read_whether_has_dropped(far_task *t, far_block_id id, const far_items *gone_uids) {
    uint64_t pages[FAR_BLOCK_PAGES];
    int err = far_pages_read(t, id, pages);
    for (unsigned p = 0; p < FAR_BLOCK_PAGES && err == 0; p++)
        if (pages[p] != 0 && contains_uid(gone_uids, far_page_unpack(pages[p]).uid))
            return 1;
    return err;
}


/* Adopts an orphan with slabs of a dropped index; these slabs are then freed with the own slabs. A damaged block is
 * skipped, so that the other blocks are freed; check reports the damaged block. A new pin is taken after each adopted
 * block, because there may be many, and a long pin would prevent the epoch from advancing. */
static int adopt_block_with_dropped(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    const far_items *gone_uids = ctx;
    if (far_block_unpack(entry[0]).kind != FAR_BLOCK_ORPHAN)
        return 0;
    int err = read_whether_has_dropped(t, id, gone_uids);
    if (err == 1) {
        err = far_store_adopt_block(t, id, entry);
        far_catalog_unpin(t);
        int pinned = far_pin_take(t);
        err = pinned < 0 ? pinned : err;
    }
    return err < 0 && err != FAR_ERR_CORRUPT ? err : 0;
}


static int adopt_unowned(far_task *t, far_items *gone_uids) {
    int err = far_pin_take(t);
    if (err == 0)
        err = far_blocks_each(t, adopt_block_with_dropped, gone_uids);
    far_catalog_unpin(t);
    return err;
}


/* ---- All steps ---- */

/* Gathers the uids of the indexes that this handle dropped, followed by the uids of dropped indexes that were found in
 * own slabs. *dropped is the number of the indexes that this handle dropped. */
static int gather_dropped_uids(far_task *t, far_items *gone_uids, uint32_t *dropped) {
    far_store *s = far_store_of(t);
    pthread_mutex_lock(&s->lock);
    *gone_uids = s->dropped.dropped_uids;
    s->dropped.dropped_uids = (far_items){0};
    pthread_mutex_unlock(&s->lock);
    *dropped = gone_uids->count;
    int err = far_pin_take(t);
    if (err == 0)
        err = compare_with_catalog(t, gone_uids);
    far_catalog_unpin(t);
    return err;
}


/* Removes indexes that are listed now. If the session that created an index was lost, the index may have been listed
 * after the catalog was compared, without being known in this handle. By now that session is fenced, so its verbs have
 * taken effect or never will. */
static int remove_listed_uids(far_task *t, far_items *gone_uids) {
    far_scratch_mark mark = far_scratch_here(t);
    far_catalog_view view;
    uint32_t kept = 0; /* the uids that this handle dropped come first and are certainly not listed, so they are kept */
    int err = far_catalog_read(t, &view);
    for (uint32_t i = 0; i < gone_uids->count && err == 0; i++)
        if (!far_catalog_find_uid(&view, (uint32_t)gone_uids->items[i]))
            gone_uids->items[kept++] = gone_uids->items[i];
    if (err == 0)
        gone_uids->count = kept;
    far_catalog_unpin(t);
    far_scratch_back(t, mark);
    return err;
}


int far_dropped_free(far_task *t, uint64_t timeout) {
    far_store *s = far_store_of(t);
    far_items gone_uids;
    uint32_t dropped;
    far_request made;
    assert(t->pin.epoch == 0); /* the acknowledgements would wait for a pin of this task, so it must have none */
    int err = gather_dropped_uids(t, &gone_uids, &dropped), has_more = gone_uids.count > 0;
    if (err == 0 && has_more)
        err = far_request_change(t, far_request_next_number, NULL, &made);
    if (err == 0 && has_more)
        err = far_request_wait(t, made.number, timeout);
    far_point(t, "dropped:acknowledged");
    if (err == 0 && has_more)
        err = remove_listed_uids(t, &gone_uids);
    for (uint32_t i = 0; err == 0 && i < gone_uids.count; i++)
        far_memory_uid_closed(s, (uint32_t)gone_uids.items[i]);
    if (err == 0 && dropped > 0)
        err = adopt_unowned(t, &gone_uids);
    while (err == 0 && has_more == 1) {
        has_more = free_own_slabs_pinned(t, &gone_uids);
        err = has_more < 0 ? has_more : 0;
    }
    /* the uids stay recorded, so that this handle, or a collection after its failure, frees their memory later */
    if (err != 0) {
        pthread_mutex_lock(&s->lock);
        for (uint32_t i = 0; i < dropped; i++)
            far_items_add(&s->dropped.dropped_uids, gone_uids.items[i]);
        pthread_mutex_unlock(&s->lock);
    }
    free(gone_uids.items);
    return err;
}
