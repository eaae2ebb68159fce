/* Allocation: from the session's lists and slabs without a verb; when they are empty, by looking for what others gave
 * back, cutting new slabs, adopting or taking blocks. */
#include "pool/memory.h"
#include "runtime/error.h"

#define SLOW_TRIES 8 /* what one task found, others of the session may take */


/* With the lock. The entry says what is known of the object. */
typedef struct found {
    far_entry entry;
    bool used, zero;
} found;


static bool take_on(far_memory *m, far_class *class, unsigned node, found *f) {
    f->used = true;
    f->zero = false;
    if (far_take_free(m, class, node, &f->entry))
        return true;
    far_shelf *shelf = &class->shelf[node];
    far_slab *slab = shelf->carving;
    if (slab == NULL)
        return false;
    const far_geometry *g = &m->session->pool->geometry;
    f->entry.word = far_block_base(g, slab->block->id) + slab->page * g->page_bytes + slab->carved * class->size;
    f->entry.cookie = 0;
    f->used = slab->block->used;
    f->zero = true;
    m->free_bytes -= class->size;
    if (++slab->carved == slab->objects)
        shelf->carving = NULL;
    return true;
}


static bool take_local(far_memory *m, far_class *class, unsigned node, found *f) {
    unsigned nodes = m->session->pool->geometry.nodes;
    if (node != FAR_NODE_ANY)
        return take_on(m, class, node, f);
    unsigned first = m->pick++ % nodes;
    for (unsigned i = 0; i < nodes; i++)
        if (take_on(m, class, (first + i) % nodes, f))
            return true;
    return false;
}


/* Inside: makes objects of the class available on the node. */
static int stock_up(far_task *t, far_class *class, unsigned node, bool new_block) {
    far_memory *m = far_memory_of(t);
    pthread_mutex_lock(&m->lock);
    bool there = class->shelf[node].free.count > 0 || class->shelf[node].carving != NULL;
    pthread_mutex_unlock(&m->lock);
    if (there)
        return 1;
    int result = far_slab_look(t, class, node);
    if (result == 0 && far_may_take(t))
        result = far_slab_carve(t, class, node);
    if (result == 0 && new_block && far_may_take(t) && (result = far_block_get(t, class, node)) == 1) {
        result = far_slab_look(t, class, node);
        if (result == 0)
            result = far_slab_carve(t, class, node);
    }
    return result;
}


/* On one node or, from the first one on, on all. */
static int stock_nodes(far_task *t, far_class *class, unsigned first, unsigned count, bool new_block, unsigned *where) {
    unsigned nodes = far_task_pool(t)->geometry.nodes;
    int result = 0;
    for (unsigned i = 0; i < count && result == 0; i++) {
        *where = (first + i) % nodes;
        result = stock_up(t, class, *where, new_block);
    }
    return result;
}


static int stock_somewhere(far_task *t, far_class *class, unsigned node, bool must, unsigned *where) {
    far_memory *m = far_memory_of(t);
    unsigned nodes = far_task_pool(t)->geometry.nodes, first = node == FAR_NODE_ANY ? m->turn : node;
    int result = 0;
    if (node != FAR_NODE_ANY) {
        bool full = !must && m->full[node] == far_epoch_known(t); /* a wish is not worth a search every time */
        result = stock_nodes(t, class, node, 1, !full, where);
        if (result == 0)
            m->full[node] = far_epoch_known(t);
    }
    if (result == 0 && !must) {
        result = stock_nodes(t, class, first, nodes, false, where);
        if (result == 0)
            result = stock_nodes(t, class, first, nodes, true, where);
    }
    if (result == 0)
        result = far_drops_tick(t);
    if (result == 0 && (result = far_slabs_trim(t, true)) == 0) /* what other classes left may do */
        result = stock_nodes(t, class, first, must ? 1 : nodes, true, where);
    if (result == 0 && far_may_take(t) && (result = far_scour(t)) == 1)
        result = stock_nodes(t, class, first, must ? 1 : nodes, true, where);
    if (result == 1 && node == FAR_NODE_ANY)
        m->turn = (*where + 1) % nodes;
    return result;
}


static void tell_short(far_task *t) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    if (!t->barred)
        atomic_fetch_add_explicit(&q->shortage, 1, memory_order_relaxed);
    far_epoch_request(far_task_pool(t));
}


static int take_run(far_task *t, far_class *class, unsigned node, bool must, found *f) {
    far_pool *pool = far_task_pool(t);
    unsigned nodes = pool->geometry.nodes, first = node == FAR_NODE_ANY ? far_memory_of(t)->turn++ % nodes : node;
    uint32_t length = far_run_blocks(&pool->geometry, class->size);
    int result = 0;
    for (unsigned round = 0; round < 3 && result == 0; round++) {
        for (unsigned i = 0; i < (must ? 1 : nodes) && result == 0 && far_may_take(t); i++) {
            far_block_id head;
            result = far_blocks_take(t, (first + i) % nodes, length, &head, &f->used);
            if (result <= 0)
                continue;
            int err = far_run_make(t, head, length, class->uid, class->type, class->stable);
            result = err < 0 ? err : 1;
            f->entry = (far_entry){far_block_base(&pool->geometry, head), 0};
            f->zero = true;
        }
        if (result == 0 && round == 0 && (result = far_drops_tick(t)) == 0)
            result = far_slabs_trim(t, true);
        if (result == 0 && round == 1 && far_may_take(t) && (result = far_scour(t)) == 1)
            result = 0;
    }
    return result;
}


static int take_slowly(far_task *t, far_class *class, unsigned node, bool must, found *f) {
    far_memory *m = far_memory_of(t);
    bool run = far_size_is_run(&far_task_pool(t)->geometry, class->size);
    t->searched = far_memory_moved_by_others(t);
    for (unsigned tries = 0; tries < SLOW_TRIES; tries++) {
        int result = far_reclaim(t);
        if (result < 0)
            return result;
        far_memory_enter(t);
        unsigned where = node;
        bool got = false;
        pthread_mutex_lock(&m->lock);
        if (!run)
            got = take_local(m, class, node, f);
        pthread_mutex_unlock(&m->lock);
        if (!got)
            result = run ? take_run(t, class, node, must, f) : stock_somewhere(t, class, node, must, &where);
        if (!got && !run && result == 1) {
            pthread_mutex_lock(&m->lock);
            got = take_on(m, class, where, f);
            pthread_mutex_unlock(&m->lock);
        }
        far_memory_leave(t);
        if (result < 0)
            return result;
        if (got || (run && result == 1))
            return 0;
        if (result == 0)
            break;
    }
    tell_short(t);
    return far_fail(FAR_ERR_NO_MEMORY, "the pool has no room for %llu bytes", (unsigned long long)class->size);
}


/* With the lock: from the lists of the session. */
static bool take_at_once(far_memory *m, far_class *class, unsigned node, found *f) {
    return !far_size_is_run(&m->session->pool->geometry, class->size) && take_local(m, class, node, f);
}


/* What was found is handed out. */
static int hand_out(far_task *t, far_class *class, found f, far_object *object, bool *zero) {
    far_memory *m = far_memory_of(t);
    far_fabric *fabric = far_task_fabric(t);
    int err;
    *object = (far_object){.addr = far_entry_addr(f.entry),
                           .size = class->size,
                           .used = f.used,
                           .cookie = f.entry.cookie,
                           .epoch = t->pin.epoch};
    *zero = f.zero;
    if (f.entry.word & FAR_ENTRY_RECOVER && class->info->recover != NULL) {
        err = class->info->recover(t, class->index, object->addr, object->size, &object->cookie);
        if (err < 0) {
            pthread_mutex_lock(&m->lock);
            far_put_free(m, class, f.entry);
            pthread_mutex_unlock(&m->lock);
            return err;
        }
    }
    if (fabric->watch != NULL)
        fabric->watch->allocated(fabric, object->addr, class->size, class->uid, class->stable);
    return 0;
}


int far_alloc_object(far_task *t, far_class *class, unsigned node, bool must, far_object *object, bool *zero) {
    far_memory *m = far_memory_of(t);
    found f = {{0, 0}, true, false};
    pthread_mutex_lock(&m->lock);
    bool got = take_at_once(m, class, node, &f);
    pthread_mutex_unlock(&m->lock);
    int err = got ? 0 : take_slowly(t, class, node, must, &f);
    return err < 0 ? err : hand_out(t, class, f, object, zero);
}


static int alloc_kept_or_not(far_task *t, far_index *index, far_class *class, unsigned node, unsigned flags,
                             far_object *object) {
    bool zero = false, must = (flags & FAR_ALLOC_ON_NODE) != 0;
    int err = index != NULL && index->kind->reserve_count > 0 ? far_reserve_fill(t, index) : 0;
    if (err < 0 && (err != FAR_ERR_NO_MEMORY || !(flags & FAR_ALLOC_RESERVE)))
        return err;
    err = far_alloc_object(t, class, node, must, object, &zero);
    if (err == FAR_ERR_NO_MEMORY && flags & FAR_ALLOC_RESERVE && far_reserve_take(t, class, node, must, object))
        err = 0;
    if (err < 0)
        return err;
    if (flags & FAR_ALLOC_ZERO && !zero)
        err = far_wipe(t, object->addr, object->size);
    if (err == 0 && flags & FAR_ALLOC_KEEP)
        err = far_keep(t, class, object, false);
    if (err < 0)
        far_free(t, index, class->type, object->addr, class->size);
    return err;
}


int far_alloc(far_task *t, far_index *index, unsigned type, uint64_t size, unsigned node, unsigned flags,
              far_object *object) {
    far_memory *m = far_memory_of(t);
    if (t->pin.epoch == 0)
        return far_fail(FAR_ERR_INVALID, "far memory is allocated with a pin");
    if (node == FAR_NODE_ANY)
        flags &= ~(unsigned)FAR_ALLOC_ON_NODE;
    else if (node >= far_task_pool(t)->geometry.nodes)
        return far_fail(FAR_ERR_INVALID, "there is no memory node %u", node);
    if (index != NULL && type >= index->kind->type_count)
        return far_fail(FAR_ERR_INVALID, "index kind %s has no type %u", index->kind->name, type);
    if (far_size_class(size, 16) == 0)
        return far_fail(FAR_ERR_NO_MEMORY, "%llu bytes are more than a memory node has", (unsigned long long)size);
    bool zero, simple = (flags & (FAR_ALLOC_ZERO | FAR_ALLOC_KEEP)) == 0 && far_reserve_is_full(m, index);
    found f = {{0, 0}, true, false};
    pthread_mutex_lock(&m->lock);
    far_class *class = far_class_for(m, index, type, size);
    unsigned pick = m->pick;
    bool got = class != NULL && simple && class->info->recover == NULL && take_at_once(m, class, node, &f);
    if (!got)
        m->pick = pick; /* it is tried again below */
    pthread_mutex_unlock(&m->lock);
    if (class == NULL)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a list of free objects");
    if (got) /* without a verb */
        return hand_out(t, class, f, object, &zero);
    far_aside aside = far_aside_begin(t);
    int err = alloc_kept_or_not(t, index, class, node, flags, object);
    far_aside_end(t, aside);
    return err;
}


void far_free(far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    far_memory *m = far_memory_of(t);
    far_fabric *fabric = far_task_fabric(t);
    pthread_mutex_lock(&m->lock);
    far_class *class = far_class_for(m, index, type, size);
    bool pending = false;
    if (class != NULL) {
        far_kept_forget(m, addr);
        far_put_free(m, class, (far_entry){addr | (class->info->recover != NULL ? FAR_ENTRY_RECOVER : 0), 0});
        pending = m->pending.count > 0;
    }
    pthread_mutex_unlock(&m->lock);
    if (class != NULL && fabric->watch != NULL)
        fabric->watch->freed(fabric, addr, class->size, class->stable);
    if (pending)
        far_pending_soon(t);
}
