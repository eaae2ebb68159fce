/* Objects that stay a session's own: those asked for with FAR_ALLOC_KEEP, and the reserves of its indexes. They lie in
 * blocks of the handle, which are not given up meanwhile, and the handle knows them when it settles a sweep: nothing of
 * this is written to far memory. */
#include "base/error.h"
#include "base/grow.h"
#include "pool/store.h"

#include <assert.h>
#include <stdlib.h>


int far_keep(far_memory *m, far_class *class, uint64_t item, bool reserve) {
    far_store *s = m->store;
    far_kept *list = far_grow(m->kept, m->kept_count, sizeof(*list));
    if (!list)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an object that is kept");
    m->kept = list;
    pthread_mutex_lock(&s->lock);
    far_held *b = far_held_at(s, far_item_addr(item));
    if (b)
        b->kept++;
    pthread_mutex_unlock(&s->lock);
    if (!b)
        return 0;
    m->kept[m->kept_count++] = (far_kept){item, class, reserve};
    m->reserves += reserve;
    assert(m->reserves <= m->kept_count);
    return 1;
}


/* With both locks: the slot becomes free, the object is the caller's. */
static uint64_t take_out(far_memory *m, uint32_t at) {
    assert(at < m->kept_count);
    uint64_t item = m->kept[at].item;
    far_held *b = far_held_at(m->store, far_item_addr(item));
    assert(!b || b->kept > 0);
    if (b)
        b->kept--;
    assert(m->reserves >= m->kept[at].reserve);
    m->reserves -= m->kept[at].reserve;
    m->kept[at] = m->kept[--m->kept_count];
    return item;
}


void far_kept_remove(far_memory *m, far_addr addr) {
    for (uint32_t i = 0; i < m->kept_count; i++)
        if (!m->kept[i].reserve && far_item_addr(m->kept[i].item) == addr) {
            pthread_mutex_lock(&m->store->lock);
            take_out(m, i);
            pthread_mutex_unlock(&m->store->lock);
            return;
        }
}


void far_kept_free_closed(far_store *s) {
    pthread_mutex_lock(&s->list);
    for (far_memory *m = s->memories; m; m = m->next) {
        far_mutex_lock(&m->lock);
        if (m->kept_count > 0)
            far_kept_free(m, false);
        far_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&s->list);
}


/* With both locks: frees one kept object. What a lost session kept others may need, to finish what it left half done: that
 * is left to a sweep, which finishes such work first. */
static void free_kept(far_memory *m, uint32_t at) {
    far_class *class = m->kept[at].class;
    bool needed = m->session->lost && !m->kept[at].reserve;
    far_addr addr = far_item_addr(take_out(m, at));
    if (needed)
        atomic_store_explicit(&m->store->wants_sweep, true, memory_order_relaxed);
    else
        far_store_put(m->store, class, addr, UINT64_MAX);
}


/* Whether the index of the class is not open here. The pool's own objects (uid 0) have no index. */
static bool is_closed(const far_class *class) {
    return class->uid != 0 && !far_class_index(class);
}


void far_kept_free(far_memory *m, bool all) {
    far_store *s = m->store;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = m->kept_count; i-- > 0;)
        if (all || is_closed(m->kept[i].class))
            free_kept(m, i);
    for (uint32_t i = m->reserved_count; i-- > 0;) {
        bool used = false;
        for (uint32_t k = 0; k < m->kept_count; k++)
            used |= m->kept[k].reserve && m->kept[k].class->uid == m->reserved[i].uid;
        if (!used)
            m->reserved[i] = m->reserved[--m->reserved_count];
    }
    pthread_mutex_unlock(&s->lock);
}


/* ---- Reserves ---- */

static struct far_reserved *reserved_for(far_memory *m, uint32_t uid) {
    for (uint32_t i = 0; i < m->reserved_count; i++)
        if (m->reserved[i].uid == uid)
            return &m->reserved[i];
    return NULL;
}


bool far_reserve_is_full(far_memory *m, const far_index *index) {
    if (!index || index->kind->reserve_count == 0)
        return true;
    const struct far_reserved *r = reserved_for(m, index->uid);
    return r && r->complete;
}


static bool begin_reserve(far_memory *m, uint32_t uid) {
    if (reserved_for(m, uid))
        return true;
    struct far_reserved *more = realloc(m->reserved, (m->reserved_count + 1) * sizeof(*more));
    if (!more)
        return false;
    m->reserved = more;
    m->reserved[m->reserved_count++] = (struct far_reserved){uid, false};
    return true;
}


/* What is missing of one declared size; two reserves of one class add up. */
static unsigned count_missing(far_memory *m, far_index *index, const far_class *class) {
    unsigned held = 0, wanted = 0;
    for (uint32_t i = 0; i < m->kept_count; i++)
        held += m->kept[i].reserve && m->kept[i].class == class;
    for (unsigned i = 0; i < index->kind->reserve_count; i++) {
        const far_reserve *r = &index->kind->reserve[i];
        if (r->type == class->type && far_size_class(r->size, index->kind->types[r->type].align) == class->size)
            wanted += r->count;
    }
    return held < wanted ? wanted - held : 0;
}


static int fill_class(far_task *t, far_index *index, const far_reserve *reserve) {
    far_memory *m = far_memory_of(t);
    for (;;) {
        far_mutex_lock(&m->lock);
        far_bin *bin = far_bin_get(m, index, reserve->type, reserve->size);
        unsigned missing = !bin ? 0 : count_missing(m, index, bin->class);
        far_mutex_unlock(&m->lock);
        if (bin && bin->class->is_run)
            return far_fail(FAR_ERR_INVALID, "a reserve of %llu bytes is larger than a block",
                            (unsigned long long)reserve->size);
        if (!bin || missing == 0)
            return !bin ? far_fail(FAR_ERR_NO_MEMORY, "no memory for a reserve") : 0;
        uint64_t item;
        int err = far_alloc_item(t, bin->class, FAR_NODE_ANY, false, true, &item);
        if (err < 0)
            return err;
        far_mutex_lock(&m->lock);
        int kept = far_keep(m, bin->class, item, true);
        if (kept <= 0) {
            pthread_mutex_lock(&m->store->lock);
            far_store_put(m->store, bin->class, far_item_addr(item), t->pin.epoch);
            pthread_mutex_unlock(&m->store->lock);
        }
        far_mutex_unlock(&m->lock);
        if (kept < 0)
            return kept;
    }
}


/* A reserve that cannot be completed is not kept: it would only make others run short. */
static void let_go(far_memory *m, uint32_t uid) {
    pthread_mutex_lock(&m->store->lock);
    for (uint32_t i = m->kept_count; i-- > 0;)
        if (m->kept[i].reserve && m->kept[i].class->uid == uid)
            free_kept(m, i);
    pthread_mutex_unlock(&m->store->lock);
}


/* By one task of the session at a time; an allocation of the filler itself passes. */
int far_reserve_fill(far_task *t, far_index *index) {
    far_memory *m = far_memory_of(t);
    if (m->filler == t)
        return 0;
    while (m->filler)
        far_sleep(t, far_rtt(t));
    far_mutex_lock(&m->lock);
    m->filler = t;
    bool first = !reserved_for(m, index->uid), full = far_reserve_is_full(m, index);
    int err = begin_reserve(m, index->uid) ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a reserve");
    far_mutex_unlock(&m->lock);
    for (unsigned i = 0; i < index->kind->reserve_count && err == 0 && !full; i++)
        err = fill_class(t, index, &index->kind->reserve[i]);
    far_mutex_lock(&m->lock);
    struct far_reserved *r = reserved_for(m, index->uid);
    if (r)
        r->complete = err == 0;
    if (err < 0 && first)
        let_go(m, index->uid);
    assert(m->filler == t);
    m->filler = NULL;
    far_mutex_unlock(&m->lock);
    return err;
}


bool far_reserve_take(far_memory *m, far_class *class, unsigned node, bool must, uint64_t *item) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < m->kept_count; i++) {
        if (!m->kept[i].reserve || m->kept[i].class != class)
            continue;
        bool there = node == FAR_NODE_ANY || far_addr_node(far_item_addr(m->kept[i].item)) == node;
        if (there || (!must && best == UINT32_MAX))
            best = i;
        if (there)
            break;
    }
    if (best == UINT32_MAX)
        return false;
    pthread_mutex_lock(&m->store->lock);
    *item = take_out(m, best);
    if (far_is_unsettled(m->store))
        far_store_blacken(m->store, far_item_addr(*item));
    pthread_mutex_unlock(&m->store->lock);
    struct far_reserved *r = reserved_for(m, class->uid);
    if (r)
        r->complete = false;
    return true;
}
