/* The memory of dropped indexes. Objects of an index are handed out only where it is open, and a drop needs it to be
 * closed everywhere: so whoever finds slabs of an index that is neither open here nor listed may free them, once every
 * pin is newer than that find. (A pinned task may have looked at the list before, and be giving such objects back.) */
#include "pool/catalog_layout.h"
#include "pool/memory.h"

#include <stdlib.h>

#define DROP_EPOCHS  3 /* after the find: then all pins are newer */
#define SCAN_ENTRIES 512u


/* Something is held of an index that is not open here. */
static bool may_be_gone(const far_memory *m, const far_class *c) {
    if (c->uid == 0 || c->index != NULL)
        return false;
    for (unsigned n = 0; n < m->session->pool->geometry.nodes; n++)
        if (c->shelf[n].slabs != NULL || c->shelf[n].free.count > 0)
            return true;
    return false;
}


bool far_drops_are_due(far_memory *m) {
    bool any = m->drop_count > 0;
    for (unsigned i = 0; i < FAR_CLASS_BUCKETS && !any; i++)
        for (far_class *c = m->classes[i]; c != NULL && !any; c = c->next)
            any = c->unlisted != 0;
    return any;
}


bool far_drops_wait(far_memory *m) {
    bool any = m->drop_count > 0;
    for (unsigned i = 0; i < FAR_CLASS_BUCKETS && !any; i++)
        for (far_class *c = m->classes[i]; c != NULL && !any; c = c->next)
            any = may_be_gone(m, c);
    return any;
}


/* With the lock. */
static void add_drop(far_memory *m, uint32_t uid, uint64_t epoch) {
    for (size_t i = 0; i < m->drop_count; i++)
        if (m->drops[i].uid == uid) {
            if (m->drops[i].epoch < epoch)
                m->drops[i].epoch = epoch;
            m->drops[i].added = true;
            return;
        }
    struct far_drop *more = realloc(m->drops, (m->drop_count + 1) * sizeof(*more));
    if (more == NULL)
        return; /* the sweep frees it */
    m->drops = more;
    m->drops[m->drop_count++] = (struct far_drop){uid, epoch, false};
}


/* With the lock. */
static void mark_unlisted(far_memory *m, uint32_t uid, uint64_t epoch) {
    for (unsigned i = 0; i < FAR_CLASS_BUCKETS; i++)
        for (far_class *c = m->classes[i]; c != NULL; c = c->next)
            if (c->uid == uid) {
                c->index = NULL;
                c->unlisted = epoch;
            }
}


int far_blocks_drop_uid(far_task *t, uint32_t uid) {
    far_memory *m = far_memory_of(t);
    uint64_t epoch;
    int err = far_epoch_read(t, &epoch);
    if (err < 0)
        return err;
    pthread_mutex_lock(&m->lock);
    mark_unlisted(m, uid, epoch);
    add_drop(m, uid, epoch);
    pthread_mutex_unlock(&m->lock);
    far_epoch_request(far_task_pool(t));
    return 0;
}


void far_drops_leave(far_memory *m, const far_held *block) {
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        if (block->slab[p] != NULL && block->slab[p]->class->unlisted != 0)
            add_drop(m, block->slab[p]->class->uid, block->slab[p]->class->unlisted);
}


/* Its page words say what the session does not know. */
int far_drops_leave_away(far_task *t, far_block_id id) {
    far_memory *m = far_memory_of(t);
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t pages[FAR_BLOCK_PAGES], epoch = 0;
    far_catalog_view view;
    int err = far_pages_read(t, id, pages);
    if (err == FAR_ERR_CORRUPT) /* a sweep made it free, and somebody has it now */
        return 0;
    if (err == 0)
        err = far_catalog_look(t, &view);
    if (err == 0)
        err = far_epoch_read(t, &epoch);
    pthread_mutex_lock(&m->lock);
    for (unsigned p = 0; err == 0 && p < FAR_BLOCK_PAGES; p++) {
        far_page_state s = far_page_unpack(pages[p]);
        if (s.in_use && s.uid != 0 && far_catalog_find_uid(&view, s.uid) == NULL)
            add_drop(m, s.uid, epoch);
    }
    pthread_mutex_unlock(&m->lock);
    far_scratch_back(t, mark);
    return err;
}


void far_drops_hand_over(far_memory *m, far_memory *heir) {
    if (m->drop_count > 0) /* when that has come the heir looks */
        far_epoch_request(heir->session->pool);
    pthread_mutex_lock(&heir->lock);
    for (size_t i = 0; i < m->drop_count; i++)
        add_drop(heir, m->drops[i].uid, m->drops[i].epoch);
    m->drop_count = 0;
    pthread_mutex_unlock(&heir->lock);
}


/* With the lock: what was just being created when it was taken for gone. */
static void forget_listed(far_memory *m, const far_catalog_view *view) {
    for (size_t i = m->drop_count; i-- > 0;)
        if (far_catalog_find_uid(view, m->drops[i].uid) != NULL)
            m->drops[i] = m->drops[--m->drop_count];
}


/* Marks the classes of indexes that are gone; true: some are waiting for their epoch. *drops: how many were looked at.
 */
static int find_unlisted(far_task *t, bool *waiting, size_t *drops) {
    far_memory *m = far_memory_of(t);
    far_scratch_mark mark = far_scratch_here(t);
    far_catalog_view view;
    uint64_t epoch = 0;
    int err = far_catalog_look(t, &view);
    if (err == 0)
        err = far_epoch_read(t, &epoch);
    pthread_mutex_lock(&m->lock);
    for (unsigned i = 0; err == 0 && i < FAR_CLASS_BUCKETS; i++)
        for (far_class *c = m->classes[i]; c != NULL; c = c->next) {
            if (!may_be_gone(m, c) || far_catalog_find_uid(&view, c->uid) != NULL)
                c->unlisted = 0;
            else if (c->unlisted == 0)
                c->unlisted = epoch;
            *waiting |= c->unlisted != 0;
        }
    if (err == 0)
        forget_listed(m, &view);
    *drops = m->drop_count;
    pthread_mutex_unlock(&m->lock);
    far_scratch_back(t, mark);
    return err;
}


/* With the lock: a slab of a class that can go, 0 = none; objects of it in lists are forgotten. */
static far_addr next_unlisted(far_memory *m, uint64_t epoch) {
    const far_geometry *g = &m->session->pool->geometry;
    for (unsigned i = 0; i < FAR_CLASS_BUCKETS; i++)
        for (far_class *c = m->classes[i]; c != NULL; c = c->next) {
            if (c->unlisted == 0 || c->unlisted + DROP_EPOCHS > epoch)
                continue;
            far_class_purge(m, c);
            for (unsigned n = 0; n < g->nodes; n++)
                if (c->shelf[n].slabs != NULL)
                    return far_block_base(g, c->shelf[n].slabs->block->id) + c->shelf[n].slabs->page * g->page_bytes;
            c->unlisted = 0;
        }
    return 0;
}


static int free_unlisted(far_task *t) {
    far_memory *m = far_memory_of(t);
    for (;;) {
        pthread_mutex_lock(&m->lock);
        far_addr base = next_unlisted(m, far_epoch_known(t));
        pthread_mutex_unlock(&m->lock);
        if (base == 0)
            return 0;
        int err = far_slab_release(t, base, true);
        if (err < 0)
            return err;
        m->trim = 4;
    }
}


/* An orphan with slabs of the index becomes ours. 0: it changed hands. */
static int take_orphan(far_task *t, far_block_id id, uint64_t word, uint32_t uid) {
    uint64_t pages[FAR_BLOCK_PAGES];
    int err = far_pages_read(t, id, pages);
    bool any = false;
    for (unsigned p = 0; err == 0 && p < FAR_BLOCK_PAGES; p++) {
        far_page_state s = far_page_unpack(pages[p]);
        any |= s.in_use && s.uid == uid;
    }
    if (!any || err < 0)
        return err < 0 ? err : 1;
    return far_block_adopt(t, id, word);
}


/* Whatever the block has become meanwhile. 1: a sweep covers it, which may free what is in it or not, and may make an
 * orphan of what a dead one owned. */
static int clean_block(far_task *t, far_block_id id, uint64_t word, uint32_t uid) {
    for (;;) {
        far_block_state s = far_block_unpack(word);
        bool orphan = s.kind == FAR_BLOCK_ORPHAN, run = s.kind == FAR_BLOCK_RUN && s.uid == uid;
        if (s.quarantined && (orphan || run || s.kind == FAR_BLOCK_OWNED))
            return 1;
        if (!orphan && !run)
            return 0;
        far_point(t, "drop:clean");
        int done = orphan ? take_orphan(t, id, word, uid) : far_run_free(t, id, &s);
        if (done != 0)
            return done < 0 ? done : 0;
        if ((done = far_read_word(t, far_block_entry(&far_task_pool(t)->geometry, id), &word)) < 0)
            return done;
    }
}


/* 1: to be done again. */
static int clean_all_blocks(far_task *t, uint32_t uid) {
    const far_geometry *g = &far_task_pool(t)->geometry;
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t *entries = far_scratch(t, SCAN_ENTRIES * FAR_BLOCK_ENTRY_BYTES);
    int err = entries == NULL ? FAR_ERR_NO_MEMORY : 0, again = 0;
    for (unsigned node = 0; node < g->nodes; node++) {
        uint32_t blocks = (uint32_t)g->node[node].blocks;
        for (uint32_t at = 0; at < blocks && err == 0; at += SCAN_ENTRIES) {
            uint32_t n = blocks - at < SCAN_ENTRIES ? blocks - at : SCAN_ENTRIES;
            err = far_blocks_read(t, node, at, n, entries);
            for (uint32_t i = 0; i < n && err == 0; i++) {
                int done = clean_block(t, (far_block_id){node, at + i}, entries[2 * (size_t)i], uid);
                err = done < 0 ? done : 0;
                again |= done > 0;
            }
        }
    }
    far_scratch_back(t, mark);
    return err < 0 ? err : again;
}


/* One of the drops. Slabs in blocks that are ours by now, for this one or for another, go as those that were ours
 * before. 1: it needs another epoch. */
static int do_drop(far_task *t, size_t at) {
    far_memory *m = far_memory_of(t);
    pthread_mutex_lock(&m->lock);
    struct far_drop drop = m->drops[at];
    m->drops[at].added = false;
    pthread_mutex_unlock(&m->lock);
    if (drop.epoch + DROP_EPOCHS > far_epoch_known(t))
        return 1;
    int again = clean_all_blocks(t, drop.uid);
    far_point(t, "drop:cleaned");
    pthread_mutex_lock(&m->lock);
    mark_unlisted(m, drop.uid, drop.epoch);
    bool added = m->drops[at].added;
    if (again == 0 && !added)
        m->drops[at] = m->drops[--m->drop_count];
    pthread_mutex_unlock(&m->lock);
    int err = again < 0 ? again : free_unlisted(t);
    return err < 0 ? err : added;
}


int far_drops_tick(far_task *t) {
    far_memory *m = far_memory_of(t);
    pthread_mutex_lock(&m->lock);
    bool waiting = far_drops_wait(m);
    pthread_mutex_unlock(&m->lock);
    if (!waiting)
        return 0;
    waiting = false;
    size_t drops = 0;
    int err = find_unlisted(t, &waiting, &drops);
    if (err == 0)
        err = free_unlisted(t);
    for (size_t i = drops; err == 0 && i-- > 0;) { /* sessions that close may add some: those are looked at later */
        int more = do_drop(t, i);
        err = more < 0 ? more : 0;
        waiting |= more > 0;
    }
    if (waiting)
        far_epoch_request(far_task_pool(t));
    return err;
}
