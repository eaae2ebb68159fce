/* Giving free objects back to the pool: bits of the bitmaps, added by FAA. */
#include "pool/catalog_layout.h"
#include "pool/memory.h"

#include <stdlib.h>

#define GIVE_VERBS    256u
#define FOREIGN_SHARE 1024 /* part of the pool that a session holds free in the blocks of others */
#define FOREIGN_BYTES (16u << 10)


far_aside far_aside_begin(far_task *t) {
    far_aside aside = {t->open, t->refused, t->background};
    t->open = NULL;
    t->refused = 0;
    t->background = true;
    return aside;
}


void far_aside_end(far_task *t, far_aside aside) {
    far_box_back(t);
    t->open = aside.open;
    t->refused = aside.refused;
    t->background = aside.background;
}


static int by_address(const void *a, const void *b) {
    far_addr x = ((const far_give *)a)->addr, y = ((const far_give *)b)->addr;
    return (x > y) - (x < y);
}


/* What belonged to an index that was dropped is nobody's any more: its slabs are freed as a whole. */
static int forget_dropped(far_task *t, far_gives *gives) {
    bool any = false;
    for (size_t i = 0; i < gives->count; i++)
        any |= gives->items[i].closed;
    if (!any)
        return 0;
    far_catalog_view view;
    int err = far_catalog_look(t, &view);
    if (err < 0)
        return err;
    size_t kept = 0;
    for (size_t i = 0; i < gives->count; i++)
        if (!gives->items[i].closed || far_catalog_find_uid(&view, gives->items[i].uid) != NULL)
            gives->items[kept++] = gives->items[i];
    gives->count = kept;
    return 0;
}


int far_give_back(far_task *t, far_gives *gives) {
    const far_geometry *g = &far_task_pool(t)->geometry;
    far_scratch_mark mark = far_scratch_here(t);
    int err = forget_dropped(t, gives);
    far_scratch_back(t, mark);
    if (gives->count > 0)
        far_memory_moved(t);
    if (err == 0 && gives->count > 0)
        qsort(gives->items, gives->count, sizeof(far_give), by_address);
    unsigned verbs = 0;
    for (size_t i = 0; i < gives->count && err == 0;) {
        far_block_id id;
        far_addr addr = gives->items[i].addr;
        if (!far_block_of(g, addr, &id)) {
            err = FAR_ERR_CORRUPT;
            break;
        }
        const uint64_t span = FAR_GRANULE * FAR_WORD_GRANULES;
        uint64_t inner = far_block_inner(g, addr), bits = 0;
        far_addr word = addr - inner % span; /* what the bitmap word covers */
        for (; i < gives->count && gives->items[i].addr - word < span; i++)
            bits |= 1ull << (gives->items[i].addr - word) / FAR_GRANULE;
        far_faa(t, far_block_bitmap(g, id) + inner / span * 8, bits, NULL);
        if (++verbs % GIVE_VERBS == 0)
            err = far_wait(t);
    }
    int last = far_wait(t);
    free(gives->items);
    *gives = (far_gives){0};
    return err < 0 ? err : last;
}


int far_give_pending(far_task *t) {
    far_memory *m = far_memory_of(t);
    pthread_mutex_lock(&m->lock);
    far_gives gives = m->pending;
    m->pending = (far_gives){0};
    pthread_mutex_unlock(&m->lock);
    if (gives.count == 0)
        return 0;
    far_aside aside = far_aside_begin(t);
    int err = far_give_back(t, &gives);
    far_aside_end(t, aside);
    atomic_fetch_add_explicit(&far_task_pool(t)->quarantine->given, 1, memory_order_relaxed);
    return err;
}


static void give_soon(far_task *t, void *arg) {
    (void)arg;
    far_give_pending(t); /* an error fences the session: then all it holds is swept */
}


int far_pending_soon(far_task *t) {
    far_memory *m = far_memory_of(t);
    pthread_mutex_lock(&m->lock);
    bool any = m->pending.count > 0;
    pthread_mutex_unlock(&m->lock);
    if (any && !m->closing && !far_spawn(t, give_soon, NULL, 0))
        return far_give_pending(t);
    return 0;
}


int far_give_foreign(far_task *t, bool all) {
    far_memory *m = far_memory_of(t);
    uint64_t bound = ((far_quarantine *)far_task_pool(t)->quarantine)->pool_bytes / FOREIGN_SHARE;
    if (bound < FOREIGN_BYTES)
        bound = FOREIGN_BYTES;
    far_gives gives = {0};
    pthread_mutex_lock(&m->lock);
    if (m->foreign_bytes > (all ? 0 : bound))
        far_foreign_collect(m, false, &gives);
    pthread_mutex_unlock(&m->lock);
    if (gives.count == 0)
        return 0;
    int err = far_give_back(t, &gives);
    atomic_fetch_add_explicit(&far_task_pool(t)->quarantine->given, 1, memory_order_relaxed);
    return err;
}
