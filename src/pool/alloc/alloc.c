/* Allocation of objects (far_alloc). Usually an object comes from the session's magazine, which is refilled from the
 * store, without a verb. If both are empty, the allocator takes back objects that other handles returned, cuts a new
 * slab, and takes or adopts a block. If that fails too, it gathers all free memory of the handle, and at last returns
 * FAR_ERR_NO_MEMORY. */
#include "base/error.h"
#include "pool/alloc/store.h"
#include "pool/gc/request.h"

#include <assert.h>

/* largest number of attempts of one allocation; another attempt is needed when other tasks of the handle took the
 * objects that this allocation had moved to the store */
#define SLOW_TRIES 8


static const far_geometry *memory_geometry(const far_memory *m) {
    return &m->store->pool->geometry;
}


void far_alloc_open(far_store *s) {
    s->next_node = s->pool->team.own->id % s->pool->geometry.nodes;
}


void far_alloc_open_session(far_memory *m) {
    m->next_node = m->session->id;
}


/* ---- Without a verb ---- */

/* Returns whether the task may take a free object of this class on this memory node, or must leave it as headroom
 * (headroom.c). The caller holds the lock of the session's memory. */
static bool may_take_from_bin(far_task *t, far_memory *m, const far_bin *bin, unsigned node) {
    far_store *s = m->store;
    if (t->uses_headroom || !atomic_load_explicit(&s->is_scarce, memory_order_relaxed))
        return true;
    pthread_mutex_lock(&s->lock);
    bool may = far_headroom_spares_object(m, bin->class, node);
    pthread_mutex_unlock(&s->lock);
    return may;
}


static inline bool take_from_magazine(far_task *t, far_memory *m, far_bin *bin, unsigned node, uint64_t *item) {
    if (!may_take_from_bin(t, m, bin, node) || (bin->magazine[node].count == 0 && !far_magazine_refill(m, bin, node)))
        return false;
    *item = far_magazine_take(m, bin, node);
    return true;
}


/* With the session's lock held, takes an object from a magazine without verbs. Returns whether it got one. */
static inline bool take_without_verbs(far_task *t, far_memory *m, far_bin *bin, unsigned node, uint64_t *item) {
    unsigned nodes = memory_geometry(m)->nodes;
    if (node != FAR_NODE_ANY)
        return take_from_magazine(t, m, bin, node, item);
    unsigned first = m->next_node++ % nodes;
    for (unsigned i = 0; i < nodes; i++)
        if (take_from_magazine(t, m, bin, (first + i) % nodes, item))
            return true;
    return false;
}


/* ---- With verbs ---- */

/* Which blocks an allocation may take besides the ones that the handle owns. */
typedef enum {
    OWN_BLOCKS,     /* none */
    FREE_BLOCKS,    /* free blocks, except the headroom, and orphans */
    HEADROOM_BLOCKS /* all free blocks, and orphans */
} block_reach;


/* Makes free objects of the class available on the node, in the store or in the list of remote objects, without taking
 * a block. The caller is in the store. Returns 1 if there are objects that the task may take, 0 if not. */
static int stock_from_own_blocks(far_task *t, far_class *class, unsigned node) {
    far_store *s = far_store_of(t);
    assert(s->block_task == t);
    pthread_mutex_lock(&s->lock);
    bool available = class->on_node[node].open || class->on_node[node].remote.count > 0;
    pthread_mutex_unlock(&s->lock);
    if (available && far_task_may_take(t, class, node))
        return 1;
    int result = far_slabs_take_returned(t, class, node);
    if (result < 0 || !far_task_may_take(t, class, node))
        return result < 0 ? result : 0;
    return available || result == 1 ? 1 : far_slab_cut(t, class, node);
}


/* Like stock_from_own_blocks, but also takes or adopts blocks as `reach` permits. A search for free blocks also counts
 * them, so the task may be permitted afterwards to take memory of own blocks. The node is not searched again in an
 * epoch in which it was found full. */
static int stock_node(far_task *t, far_class *class, unsigned node, block_reach reach) {
    far_store *s = far_store_of(t);
    int result = stock_from_own_blocks(t, class, node), got = 1;
    bool searches =
        reach == HEADROOM_BLOCKS || (reach == FREE_BLOCKS && s->search.full_epoch[node] != far_epoch_known(t));
    for (unsigned tries = 0; searches && result == 0 && got == 1 && tries < SLOW_TRIES; tries++) {
        if ((got = far_block_acquire(t, class, node, reach == HEADROOM_BLOCKS)) < 0)
            return got;
        if (got == 0)
            far_block_search_note_full(s, node, far_epoch_known(t));
        result = stock_from_own_blocks(t, class, node);
    }
    return result;
}


/* Makes free objects of the class available on one of `count` nodes. Tries the nodes in order, beginning with `first`,
 * and sets *where to the node that has objects. Returns 1 if a node has objects, 0 if none has, or an error. */
static int stock_nodes(far_task *t, far_class *class, unsigned first, unsigned count, block_reach reach,
                       unsigned *where) {
    unsigned nodes = far_task_pool(t)->geometry.nodes;
    int result = 0;
    for (unsigned i = 0; i < count && result == 0; i++) {
        *where = (first + i) % nodes;
        result = stock_node(t, class, *where, reach);
    }
    return result;
}


/* The last step before the pool counts as full. It moves the free objects in the magazines of all sessions to the
 * store, frees retired objects that have reached their epoch, executes pending returns, adopts all orphans, takes back
 * all returned objects, and releases slabs of other classes that are entirely free. Adopting orphans and taking back
 * returned objects is done at most once per epoch. */
static int gather_free_memory(far_task *t) {
    far_store *s = far_store_of(t);
    uint64_t epoch = far_epoch_known(t);
    far_magazines_empty(s);
    far_reclaim_all(t);
    int err = far_returns_flush(t);
    if (err == 0 && s->gathered_epoch != epoch) {
        s->gathered_epoch = epoch;
        if ((err = far_orphans_adopt_all(t)) == 0)
            err = far_slabs_take_all_returned(t);
    }
    return err < 0 ? err : far_slabs_trim(t, true);
}


static int stock_preferred_node(far_task *t, far_class *class, unsigned node, bool must, unsigned *where) {
    far_store *s = far_store_of(t);
    unsigned nodes = far_task_pool(t)->geometry.nodes, first = node == FAR_NODE_ANY ? s->next_node : node;
    unsigned count = must ? 1 : nodes;
    int result = node == FAR_NODE_ANY ? 0 : stock_nodes(t, class, node, 1, FREE_BLOCKS, where);
    if (result == 0 && !must) {
        result = stock_nodes(t, class, first, nodes, OWN_BLOCKS, where);
        if (result == 0)
            result = stock_nodes(t, class, first, nodes, FREE_BLOCKS, where);
    }
    if (result == 0 && (result = gather_free_memory(t)) == 0)
        result = stock_nodes(t, class, first, count, FREE_BLOCKS, where);
    if (result == 0 && t->uses_headroom)
        result = stock_nodes(t, class, first, count, HEADROOM_BLOCKS, where);
    if (result == 1 && node == FAR_NODE_ANY)
        s->next_node = (*where + 1) % nodes;
    return result;
}


void far_store_search_again(far_task *t) {
    far_store *s = far_store_of(t);
    far_store_enter(t);
    s->gathered_epoch = 0;
    far_block_search_forget_full(s);
    far_store_leave(t);
}


/* Finds an object with verbs; the caller is in the store. own_only excludes the objects in magazines and in lists of
 * remote objects. Returns 1 if it got an object, 0 if there is none. */
static int find_object(far_task *t, far_class *class, unsigned node, bool must, bool own_only, uint64_t *item) {
    far_store *s = far_store_of(t);
    far_memory *m = far_memory_of(t);
    assert(s->block_task == t);
    unsigned nodes = memory_geometry(m)->nodes;
    for (unsigned tries = 0; tries < SLOW_TRIES; tries++) {
        unsigned where = node == FAR_NODE_ANY ? s->next_node % nodes : node;
        int result = 1;
        if (tries > 0 && (result = stock_preferred_node(t, class, node, must, &where)) <= 0)
            return result;
        far_mutex_lock(&m->lock);
        bool got = false;
        far_bin *bin = far_bin_of_class(m, class);
        if (bin && own_only && may_take_from_bin(t, m, bin, where)) {
            pthread_mutex_lock(&s->lock);
            got = far_store_take(s, class, where, 1, true, item) == 1;
            pthread_mutex_unlock(&s->lock);
        } else if (bin && !own_only) {
            got = take_without_verbs(t, m, bin, tries > 0 ? where : node, item);
        }
        far_mutex_unlock(&m->lock);
        if (got)
            return 1;
    }
    return 0;
}


int far_alloc_item(far_task *t, far_class *class, unsigned node, bool must, bool own_only, uint64_t *item) {
    far_memory *m = far_memory_of(t);
    assert(t->pin.epoch != 0);
    if (!own_only && far_reclaim_session(t, m) > 0) { /* objects that this session retired may be reusable by now */
        far_mutex_lock(&m->lock);
        far_bin *bin = far_bin_of_class(m, class);
        bool got = bin && take_without_verbs(t, m, bin, node, item);
        far_mutex_unlock(&m->lock);
        if (got)
            return 0;
    }
    far_store_enter(t);
    int result = find_object(t, class, node, must, own_only, item);
    far_store_leave(t);
    if (result != 0)
        return result < 0 ? result : 0;
    t->missed_bytes = t->uses_headroom ? 0 : class->size;
    /* when the epoch advances, retired objects become free, and a later allocation can use them */
    far_epoch_request(far_task_pool(t));
    return far_fail(FAR_ERR_NO_MEMORY, "the pool has no room for %llu bytes", (unsigned long long)class->size);
}


/* ---- Handing out ---- */

static inline void hand_out(far_task *t, const far_class *class, uint64_t item, far_object *object) {
    far_fabric *fabric = t->session->conn->fabric;
    *object = (far_object){
        .addr = far_item_addr(item), .size = class->size, .used = !(item & FAR_ITEM_FRESH), .epoch = t->pin.epoch};
    assert(object->addr != 0 && object->addr % FAR_GRANULE == 0);
    if (fabric->watch)
        fabric->watch->allocated(fabric, object->addr, class->size, class->uid, class->stable);
}


static int make_session_owned(far_task *t, far_class *class, uint64_t item) {
    far_memory *m = far_memory_of(t);
    far_mutex_lock(&m->lock);
    int kept = far_session_own(m, class, item);
    far_mutex_unlock(&m->lock);
    return kept == 0  ? far_fail(FAR_ERR_NO_MEMORY, "the block of an object that the session keeps was released")
           : kept < 0 ? kept
                      : 0;
}


static int alloc_with_verbs(far_task *t, far_index *index, far_class *class, unsigned node, unsigned flags,
                            far_object *object) {
    bool must = (flags & FAR_ALLOC_ON_NODE) != 0, keep = (flags & FAR_ALLOC_SESSION_OWNED) != 0;
    uint64_t item;
    int err = far_alloc_item(t, class, node, must, keep, &item);
    if (err < 0)
        return err;
    hand_out(t, class, item, object);
    if (flags & FAR_ALLOC_ZERO && !(item & FAR_ITEM_ZERO))
        err = far_wipe(t, object->addr, object->size);
    if (err == 0 && keep)
        err = make_session_owned(t, class, item);
    if (err < 0)
        far_free(t, index, class->type, object->addr, class->size);
    return err;
}


/* Returns an error that names the reason why the session has no bin for objects of this type and size. */
static int fail_without_class(const far_geometry *g, const far_index *index, unsigned type, uint64_t size) {
    if (index && type >= index->kind->type_count)
        return far_fail(FAR_ERR_INVALID, "index kind %s has no type %u", index->kind->name, type);
    if (size > g->block_bytes)
        return far_fail(FAR_ERR_INVALID,
                        "an object of %llu bytes is larger than a block of this pool, which has %llu bytes: the sizes "
                        "of the pool and of its smallest memory node determine the size of a block",
                        (unsigned long long)size, (unsigned long long)g->block_bytes);
    return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a list of free objects");
}


/* Completes an allocation that far_alloc cannot serve in its short path. The caller holds the session's lock, which
 * this function releases. */
static __attribute__((noinline)) int alloc_uncommon(far_task *t, far_index *index, unsigned type, uint64_t size,
                                                    unsigned node, unsigned flags, far_object *object) {
    far_memory *m = far_memory_of(t);
    const bool used_headroom = t->uses_headroom;
    uint64_t item;
    if (node == FAR_NODE_ANY)
        flags &= ~(unsigned)FAR_ALLOC_ON_NODE;
    t->uses_headroom |= (flags & FAR_ALLOC_HEADROOM) != 0;
    /* the block of a session-owned object is not released, so a block of the headroom would be lost for other handles */
    t->uses_headroom &= (flags & FAR_ALLOC_SESSION_OWNED) == 0;
    far_bin *bin = far_bin_get(m, index, type, size);
    bool simple = (flags & (FAR_ALLOC_ZERO | FAR_ALLOC_SESSION_OWNED)) == 0,
         got = bin && simple && take_without_verbs(t, m, bin, node, &item);
    far_mutex_unlock(&m->lock);
    int err = 0;
    if (got) { /* the object was taken without a verb */
        hand_out(t, bin->class, item, object);
    } else if (!bin) {
        err = fail_without_class(memory_geometry(m), index, type, size);
    } else {
        far_saved_batch saved = far_batch_save(t);
        err = alloc_with_verbs(t, index, bin->class, node, flags, object);
        far_batch_restore(t, saved);
    }
    t->uses_headroom = used_headroom;
    return err;
}


int far_alloc(far_task *t, far_index *index, unsigned type, uint64_t size, unsigned node, unsigned flags,
              far_object *object) {
    far_memory *m = far_memory_of(t);
    if (t->pin.epoch == 0)
        return far_fail(FAR_ERR_INVALID, "a task without a pin cannot allocate far memory");
    if (node != FAR_NODE_ANY && node >= memory_geometry(m)->nodes)
        return far_fail(FAR_ERR_INVALID, "there is no memory node %u", node);
    far_mutex_lock(&m->lock);
    far_bin *bin = flags || node == FAR_NODE_ANY ? NULL : far_bin_cached(m, index, type, size);
    if (!bin || bin->magazine[node].count == 0 || atomic_load_explicit(&m->store->is_scarce, memory_order_relaxed))
        return alloc_uncommon(t, index, type, size, node, flags, object);
    uint64_t item = far_magazine_take(m, bin, node);
    far_mutex_unlock(&m->lock);
    hand_out(t, bin->class, item, object);
    return 0;
}
