/* Memory of indexes that are gone: dropped, or never finished. A drop only takes the index off the list. Every handle
 * that finds slabs of a gone index among its own makes a request, waits for the answers (then nothing of it is on its
 * way home or in another's lists), and frees them whole. The one that dropped it does the same with what is nobody's:
 * runs, and slabs in orphans.
 *
 * An index that is just being created is not listed either, but it is not gone. Its slabs lie in blocks of its creator,
 * which knows it and does not give these up (exchange.c): so an index that is not listed and not known here, of which
 * this handle has slabs, is gone for good. Which those are is found out before the request: of an index that is dropped
 * later others may still hold objects. */
#include "base/error.h"
#include "pool/catalog_layout.h"
#include "pool/request.h"
#include "pool/store.h"

#include <assert.h>
#include <stdlib.h>

#define SLABS_AT_ONCE 64u /* wiped under one pin */


static uint64_t catalog_now(far_store *s) {
    return atomic_load_explicit(&s->line.catalog, memory_order_acquire) +
           atomic_load_explicit(&s->line.uids, memory_order_acquire) * 0x9e3779b97f4a7c15ull;
}


bool far_unlisted_is_due(far_pool *pool) {
    far_store *s = pool->store;
    uint64_t catalog = catalog_now(s);
    pthread_mutex_lock(&s->lock);
    bool due = s->dropped.count > 0 || (catalog != s->catalog_seen && s->block_count > 0);
    pthread_mutex_unlock(&s->lock);
    return due && !atomic_load_explicit(&pool->collecting, memory_order_relaxed);
}


void far_memory_dropped(far_pool *pool, uint32_t uid) {
    far_store *s = pool->store;
    pthread_mutex_lock(&s->lock);
    if (!far_items_add(&s->dropped, uid))
        atomic_store_explicit(&s->wants_sweep, true, memory_order_relaxed);
    pthread_mutex_unlock(&s->lock);
    far_epoch_request(pool);
}


/* ---- Which are gone ---- */

static bool has(const far_items *uids, uint32_t uid) {
    for (uint32_t i = 0; i < uids->count; i++)
        if (uids->items[i] == uid)
            return true;
    return false;
}


/* With the lock: the uids of own slabs whose index is not listed, and not known here. */
static void find_gone(const far_store *s, const far_catalog_view *view, far_items *gone) {
    for (const far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab)) {
        const far_class *c = slab->class;
        if (c->uid != 0 && !far_class_index(c) && !has(gone, c->uid) && !far_catalog_find_uid(view, c->uid))
            far_items_add(gone, c->uid); /* without memory for it: the next time */
    }
}


/* With a pin. Inside: a block that is adopted after the look at the catalog may hold slabs of an index listed since. */
static int look_for_gone(far_task *t, far_items *gone) {
    far_store *s = far_store_of(t);
    far_scratch_mark mark = far_scratch_here(t);
    far_catalog_view view;
    uint64_t catalog = catalog_now(s); /* before the look: what changes later is looked at again */
    assert(t->pin.epoch != 0);
    far_store_enter(t);
    int err = far_catalog_look(t, &view);
    if (err == 0) {
        pthread_mutex_lock(&s->lock);
        find_gone(s, &view, gone);
        if (gone->count == 0)
            s->catalog_seen = catalog;
        pthread_mutex_unlock(&s->lock);
    }
    far_store_leave(t);
    far_scratch_back(t, mark);
    return err;
}


/* ---- Own slabs ---- */

static bool keep_in_magazine(far_store *s, far_class *class, uint64_t item, void *ctx) {
    (void)s, (void)item;
    return !has(ctx, class->uid);
}


static bool keep_retired(far_store *s, const far_retired *item, void *ctx) {
    (void)s;
    return item->class->is_run || !has(ctx, item->class->uid);
}


/* With the lock. */
static far_addr find_slab(const far_store *s, const far_items *gone) {
    for (const far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab))
        if (has(gone, slab->class->uid))
            return far_slab_base(s, slab);
    return 0;
}


/* Inside. 1: there are more. */
static int free_slabs(far_task *t, far_items *gone) {
    far_store *s = far_store_of(t);
    assert(s->inside == t && t->pin.epoch != 0);
    far_kept_free_closed(s);
    far_store_visit(s, &(far_visit){.in_magazine = keep_in_magazine, .retired = keep_retired, .ctx = gone});
    for (unsigned i = 0; i < SLABS_AT_ONCE; i++) {
        pthread_mutex_lock(&s->lock);
        far_addr base = find_slab(s, gone);
        pthread_mutex_unlock(&s->lock);
        if (base == 0)
            return far_slabs_trim(t, true);
        int err = far_slab_release(t, base, true);
        if (err < 0)
            return err;
        far_memory_returned(s);
    }
    return 1;
}


/* One slice under a pin. 1: there is more. */
static int free_slice(far_task *t, far_items *gone) {
    int more = far_pin_take(t);
    if (more < 0)
        return more;
    far_store_enter(t);
    more = free_slabs(t, gone);
    far_store_leave(t);
    far_catalog_unpin(t);
    return more;
}


/* ---- What is nobody's ---- */

static int holds_gone(far_task *t, far_block_id id, const far_items *gone) {
    uint64_t pages[FAR_BLOCK_PAGES];
    int err = far_pages_read(t, id, pages);
    for (unsigned p = 0; p < FAR_BLOCK_PAGES && err == 0; p++)
        if (pages[p] != 0 && has(gone, far_page_unpack(pages[p]).uid))
            return 1;
    return err;
}


/* The slabs of an orphan are freed with the own ones. What is broken stays, and check names it: the tour goes on, for the sake of all that is not. Each run, each block has a
 * pin of its own: there may be many, to wipe them takes time, and the epoch goes on meanwhile. */
static int free_in_entry(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    const far_items *gone = ctx;
    far_block_state state = far_block_unpack(entry[0]);
    bool run = state.kind == FAR_BLOCK_RUN && has(gone, state.uid);
    int err = state.kind == FAR_BLOCK_ORPHAN ? holds_gone(t, id, gone) : run;
    if (err == 1) {
        err = run ? far_store_free_run(t, id, entry[0]) : far_orphan_adopt(t, id, entry);
        far_catalog_unpin(t);
        int pinned = far_pin_take(t);
        err = pinned < 0 ? pinned : err;
    }
    return err < 0 && err != FAR_ERR_CORRUPT ? err : 0;
}


static int free_nobodys(far_task *t, far_items *gone) {
    int err = far_pin_take(t);
    if (err == 0)
        err = far_blocks_each(t, free_in_entry, gone);
    far_catalog_unpin(t);
    return err;
}


/* ---- The work as a whole ---- */

/* The uids that this handle dropped, and those found in its slabs. *dropped: how many of the former, which come first.
 */
static int gather_gone(far_task *t, far_items *gone, uint32_t *dropped) {
    far_store *s = far_store_of(t);
    pthread_mutex_lock(&s->lock);
    *gone = s->dropped;
    s->dropped = (far_items){0};
    pthread_mutex_unlock(&s->lock);
    *dropped = gone->count;
    int err = far_pin_take(t);
    if (err == 0)
        err = look_for_gone(t, gone);
    far_catalog_unpin(t);
    return err;
}


/* One whose creator lost its session may have been listed after the look at the catalog, and not be known here since.
 * Now that session is fenced: whatever it posted has taken effect, or never will. */
static int forget_listed(far_task *t, far_items *gone) {
    far_scratch_mark mark = far_scratch_here(t);
    far_catalog_view view;
    uint32_t kept = 0; /* those that this handle dropped, which come first, are not listed */
    int err = far_catalog_look(t, &view);
    for (uint32_t i = 0; i < gone->count && err == 0; i++)
        if (!far_catalog_find_uid(&view, (uint32_t)gone->items[i]))
            gone->items[kept++] = gone->items[i];
    if (err == 0)
        gone->count = kept;
    far_catalog_unpin(t);
    far_scratch_back(t, mark);
    return err;
}


int far_unlisted_collect(far_task *t, uint64_t patience) {
    far_store *s = far_store_of(t);
    far_items gone;
    uint32_t dropped;
    far_request made;
    assert(t->pin.epoch == 0); /* the answers wait for it */
    int err = gather_gone(t, &gone, &dropped), more = gone.count > 0;
    if (err == 0 && more)
        err = far_request_change(t, far_request_only, NULL, &made);
    if (err == 0 && more)
        err = far_request_wait(t, made.number, patience);
    far_point(t, "unlisted:answered");
    if (err == 0 && more)
        err = forget_listed(t, &gone);
    if (err == 0 && dropped > 0)
        err = free_nobodys(t, &gone);
    while (err == 0 && more == 1) {
        more = free_slice(t, &gone);
        err = more < 0 ? more : 0;
    }
    if (err != 0) { /* later, or by whoever comes after us */
        pthread_mutex_lock(&s->lock);
        for (uint32_t i = 0; i < dropped; i++)
            far_items_add(&s->dropped, gone.items[i]);
        pthread_mutex_unlock(&s->lock);
    }
    free(gone.items);
    return err;
}
