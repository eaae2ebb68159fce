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


/* ---- Without a verb ---- */

/* With the session's lock held, fills the magazine from the store. Returns whether the magazine contains an object. */
static bool refill_magazine(far_memory *m, far_bin *bin, unsigned node) {
    far_items *magazine = &bin->magazine[node];
    uint64_t items[FAR_MAGAZINE_OBJECTS];
    while (magazine->capacity - magazine->count < bin->class->quantum)
        if (!far_items_enlarge(magazine))
            return magazine->count > 0;
    pthread_mutex_lock(&m->store->lock);
    unsigned taken = far_store_take(m->store, bin->class, node, bin->class->quantum, false, items);
    pthread_mutex_unlock(&m->store->lock);
    /* the order is reversed because a magazine is a stack, so the object that was taken from the store first is handed
     * out first */
    for (unsigned i = taken; i-- > 0;)
        magazine->items[magazine->count++] = items[i];
    m->magazine_bytes += taken * bin->class->size;
    return magazine->count > 0;
}


/* Returns whether the only object in this magazine is the session's last free object of a class that updates swap. That
 * object is reserved for updates, so that updates work in a full pool too. */
static bool is_headroom(const far_memory *m, const far_bin *bin, unsigned node) {
    bool last = bin->magazine[node].count == 1 && far_class_is_swapped(bin->class);
    for (unsigned n = 0; last && n < memory_geometry(m)->nodes; n++)
        last = n == node || bin->magazine[n].count == 0;
    return last;
}


/* Called when the magazine is empty or its only object may be reserved for updates. Tries to refill it. `swaps` is true
 * for an update, which may use the reserved object. Returns whether the caller may take an object. */
static bool ensure_magazine_object(far_memory *m, far_bin *bin, unsigned node, bool swaps) {
    bool empty = bin->magazine[node].count == 0;
    if ((empty || (!swaps && is_headroom(m, bin, node))) && !refill_magazine(m, bin, node))
        return false;
    return swaps || !is_headroom(m, bin, node);
}


static inline bool take_from_magazine(far_memory *m, far_bin *bin, unsigned node, bool swaps, uint64_t *item) {
    far_items *magazine = &bin->magazine[node];
    if (magazine->count <= 1 && !ensure_magazine_object(m, bin, node, swaps))
        return false;
    assert(m->magazine_bytes >= bin->class->size);
    *item = magazine->items[--magazine->count];
    m->magazine_bytes -= bin->class->size;
    return true;
}


/* With the session's lock held, takes an object from a magazine without verbs. Returns whether it got one. */
static inline bool take_without_verbs(far_memory *m, far_bin *bin, unsigned node, bool swaps, uint64_t *item) {
    unsigned nodes = memory_geometry(m)->nodes;
    if (node != FAR_NODE_ANY)
        return take_from_magazine(m, bin, node, swaps, item);
    unsigned first = m->next_node++ % nodes;
    for (unsigned i = 0; i < nodes; i++)
        if (take_from_magazine(m, bin, (first + i) % nodes, swaps, item))
            return true;
    return false;
}


/* ---- With verbs ---- */

/* Makes free objects of the class available on the node, in the store or in the list of remote objects. `new_block`
 * permits taking or adopting a block. The caller is in the store. Returns 1 if there are objects, 0 if not. */
static int stock_node(far_task *t, far_class *class, unsigned node, bool new_block) {
    far_store *s = far_store_of(t);
    assert(s->block_task == t);
    pthread_mutex_lock(&s->lock);
    bool available = class->on_node[node].open || class->on_node[node].remote.count > 0;
    pthread_mutex_unlock(&s->lock);
    if (available)
        return 1;
    int result = far_slabs_take_returned(t, class, node);
    if (result == 0)
        result = far_slab_cut(t, class, node);
    for (unsigned tries = 0; result == 0 && new_block && tries < SLOW_TRIES; tries++) {
        if ((result = far_block_acquire(t, class, node)) <= 0)
            break;
        result = far_slabs_take_returned(t, class, node);
        if (result == 0)
            result = far_slab_cut(t, class, node);
    }
    return result;
}


/* Makes free objects of the class available on one of `count` nodes. Tries the nodes in order, beginning with `first`,
 * and sets *where to the node that has objects. Returns 1 if a node has objects, 0 if none has, or an error. */
static int stock_nodes(far_task *t, far_class *class, unsigned first, unsigned count, bool new_block, unsigned *where) {
    unsigned nodes = far_task_pool(t)->geometry.nodes;
    int result = 0;
    for (unsigned i = 0; i < count && result == 0; i++) {
        *where = (first + i) % nodes;
        result = stock_node(t, class, *where, new_block);
    }
    return result;
}


/* The last step before the pool counts as full. It moves the free objects in the magazines of all sessions to the
 * store, frees retired objects that have reached their epoch, executes pending returns, adopts all orphans, takes back
 * all returned objects, and releases slabs of other classes that are entirely free. Adopting orphans and taking back
 * returned objects is done at most once per epoch.
 *
 * The objects reserved for updates stay in the magazines. In the store such an object could complete an entirely free
 * slab, which would be given to another class. The exception is an update that needs an object of this very class: it
 * may take the reserved objects of the class, because it retires another object of the class. */
static int gather_free_memory(far_task *t, far_class *class) {
    far_store *s = far_store_of(t);
    uint64_t epoch = far_epoch_known(t);
    far_magazines_empty_to_headroom(s, t->swaps ? class : NULL);
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
    int result = 0;
    if (node != FAR_NODE_ANY) {
        /* if the node is only preferred, it is not searched again in an epoch in which it was found full */
        bool full = !must && s->full_epoch[node] == far_epoch_known(t);
        result = stock_nodes(t, class, node, 1, !full, where);
        if (result == 0)
            s->full_epoch[node] = far_epoch_known(t);
    }
    if (result == 0 && !must) {
        result = stock_nodes(t, class, first, nodes, false, where);
        if (result == 0)
            result = stock_nodes(t, class, first, nodes, true, where);
    }
    if (result == 0 && (result = gather_free_memory(t, class)) == 0)
        result = stock_nodes(t, class, first, must ? 1 : nodes, true, where);
    if (result == 1 && node == FAR_NODE_ANY)
        s->next_node = (*where + 1) % nodes;
    return result;
}


/* Finds an object with verbs; the caller is in the store. own_only excludes the objects in magazines and in lists of
 * remote objects. Returns 1 if it got an object, 0 if there is none. */
static int find_object(far_task *t, far_class *class, unsigned node, bool must, bool own_only, uint64_t *item) {
    far_store *s = far_store_of(t);
    far_memory *m = far_memory_of(t);
    assert(s->block_task == t);
    unsigned headroom_nodes = 0, nodes = memory_geometry(m)->nodes;
    /* an object that is reserved for updates is skipped, because the next node that is tried may have another free
     * object */
    for (unsigned tries = 0; tries < SLOW_TRIES && headroom_nodes <= nodes; tries++) {
        unsigned where = node == FAR_NODE_ANY ? s->next_node % nodes : node;
        int result = 1;
        if (tries > 0 && (result = stock_preferred_node(t, class, node, must, &where)) <= 0)
            return result;
        far_mutex_lock(&m->lock);
        bool got = false;
        if (own_only) {
            pthread_mutex_lock(&s->lock);
            got = far_store_take(s, class, where, 1, true, item) == 1;
            pthread_mutex_unlock(&s->lock);
        } else {
            far_bin *bin = far_bin_of_class(m, class);
            got = bin && take_without_verbs(m, bin, tries > 0 ? where : node, t->swaps, item);
            headroom_nodes += tries > 0 && bin && !t->swaps && is_headroom(m, bin, where);
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
        bool got = bin && take_without_verbs(m, bin, node, t->swaps, item);
        far_mutex_unlock(&m->lock);
        if (got)
            return 0;
    }
    far_store_enter(t);
    int result = find_object(t, class, node, must, own_only, item);
    far_store_leave(t);
    if (result != 0)
        return result < 0 ? result : 0;
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
    int kept = far_session_own(m, class, item, false);
    far_mutex_unlock(&m->lock);
    return kept == 0  ? far_fail(FAR_ERR_NO_MEMORY, "the block of an object that the session keeps was released")
           : kept < 0 ? kept
                      : 0;
}


static int alloc_with_verbs(far_task *t, far_index *index, far_class *class, unsigned node, unsigned flags,
                            far_object *object) {
    far_memory *m = far_memory_of(t);
    bool must = (flags & FAR_ALLOC_ON_NODE) != 0, keep = (flags & FAR_ALLOC_SESSION_OWNED) != 0;
    uint64_t item;
    far_mutex_lock(&m->lock);
    bool full = far_reserve_is_full(m, index);
    far_mutex_unlock(&m->lock);
    int err = full ? 0 : far_reserve_fill(t, index);
    if (err < 0 && (err != FAR_ERR_NO_MEMORY || !(t->swaps || flags & FAR_ALLOC_RESERVE)))
        return err;
    err = far_alloc_item(t, class, node, must, keep, &item);
    if (err == FAR_ERR_NO_MEMORY && flags & FAR_ALLOC_RESERVE) {
        far_mutex_lock(&m->lock);
        err = far_reserve_take(m, class, node, must, &item) ? 0 : err;
        far_mutex_unlock(&m->lock);
    }
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
    uint64_t item;
    if (node == FAR_NODE_ANY)
        flags &= ~(unsigned)FAR_ALLOC_ON_NODE;
    far_bin *bin = far_bin_get(m, index, type, size);
    bool simple = (flags & (FAR_ALLOC_ZERO | FAR_ALLOC_SESSION_OWNED)) == 0 && far_reserve_is_full(m, index),
         got = bin && simple && take_without_verbs(m, bin, node, t->swaps, &item);
    far_mutex_unlock(&m->lock);
    if (!bin)
        return fail_without_class(memory_geometry(m), index, type, size);
    if (got) { /* the object was taken without a verb */
        hand_out(t, bin->class, item, object);
        return 0;
    }
    far_saved_batch saved = far_batch_save(t);
    int err = alloc_with_verbs(t, index, bin->class, node, flags, object);
    far_batch_restore(t, saved);
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
    if (!bin || bin->magazine[node].count <= 1 || (index && index->kind->reserve_count > 0))
        return alloc_uncommon(t, index, type, size, node, flags, object);
    /* In the common case the magazine has more than one object, so the object taken here is not the one that is
     * reserved for updates. */
    uint64_t item = bin->magazine[node].items[--bin->magazine[node].count];
    m->magazine_bytes -= bin->class->size;
    far_mutex_unlock(&m->lock);
    hand_out(t, bin->class, item, object);
    return 0;
}
