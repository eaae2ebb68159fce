/* Allocation: from the session's magazine or the handle's store without a verb; when these are empty, by looking for
 * what others brought home, cutting new slabs, taking or adopting blocks. */
#include "base/error.h"
#include "pool/request.h"
#include "pool/store.h"

#include <assert.h>

#define SLOW_TRIES 8 /* what one task found, others of the handle may take */


static const far_geometry *geometry(const far_memory *m) {
    return &m->store->pool->geometry;
}


/* ---- Without a verb ---- */

/* With the session's lock: fills the magazine from the store. */
static bool refill(far_memory *m, far_bin *bin, unsigned node) {
    far_items *magazine = &bin->magazine[node];
    uint64_t items[FAR_MAGAZINE_OBJECTS];
    while (magazine->capacity - magazine->count < bin->class->quantum)
        if (!far_items_enlarge(magazine))
            return magazine->count > 0;
    pthread_mutex_lock(&m->store->lock);
    unsigned taken = far_store_take(m->store, bin->class, node, bin->class->quantum, false, items);
    pthread_mutex_unlock(&m->store->lock);
    for (unsigned i = taken; i-- > 0;) /* the first is handed out first */
        magazine->items[magazine->count++] = items[i];
    m->magazine_bytes += taken * bin->class->size;
    return magazine->count > 0;
}


/* Of a class that updates swap, the last free object of a session is only for them: so they work in a full pool too. */
static bool is_held_back(const far_memory *m, const far_bin *bin, unsigned node) {
    bool last = bin->magazine[node].count == 1 && far_class_is_swapped(bin->class);
    for (unsigned n = 0; last && n < geometry(m)->nodes; n++)
        last = n == node || bin->magazine[n].count == 0;
    return last;
}


/* The magazine is empty, or its object may be held back. True: one may be taken. */
static bool provide(far_memory *m, far_bin *bin, unsigned node, bool swaps) {
    bool empty = bin->magazine[node].count == 0;
    if ((empty || (!swaps && is_held_back(m, bin, node))) && !refill(m, bin, node))
        return false;
    return swaps || !is_held_back(m, bin, node);
}


static inline bool take_on(far_memory *m, far_bin *bin, unsigned node, bool swaps, uint64_t *item) {
    far_items *magazine = &bin->magazine[node];
    if (magazine->count <= 1 && !provide(m, bin, node, swaps))
        return false;
    assert(m->magazine_bytes >= bin->class->size);
    *item = magazine->items[--magazine->count];
    m->magazine_bytes -= bin->class->size;
    return true;
}


/* With the session's lock. */
static inline bool take_local(far_memory *m, far_bin *bin, unsigned node, bool swaps, uint64_t *item) {
    unsigned nodes = geometry(m)->nodes;
    if (node != FAR_NODE_ANY)
        return take_on(m, bin, node, swaps, item);
    unsigned first = m->pick++ % nodes;
    for (unsigned i = 0; i < nodes; i++)
        if (take_on(m, bin, (first + i) % nodes, swaps, item))
            return true;
    return false;
}


/* ---- With verbs ---- */

/* Inside: makes objects of the class available on the node. 1: there are some. */
static int stock_up(far_task *t, far_class *class, unsigned node, bool new_block) {
    far_store *s = far_store_of(t);
    assert(s->inside == t);
    pthread_mutex_lock(&s->lock);
    bool there = class->shelf[node].open || class->shelf[node].foreign.count > 0;
    pthread_mutex_unlock(&s->lock);
    if (there)
        return 1;
    int result = far_slabs_look(t, class, node);
    if (result == 0)
        result = far_slab_cut(t, class, node);
    for (unsigned tries = 0; result == 0 && new_block && tries < SLOW_TRIES; tries++) {
        if ((result = far_block_get(t, class, node)) <= 0)
            break;
        result = far_slabs_look(t, class, node);
        if (result == 0)
            result = far_slab_cut(t, class, node);
    }
    return result;
}


/* Tries `count` nodes, from `first` on. */
static int stock_nodes(far_task *t, far_class *class, unsigned first, unsigned count, bool new_block, unsigned *where) {
    unsigned nodes = far_task_pool(t)->geometry.nodes;
    int result = 0;
    for (unsigned i = 0; i < count && result == 0; i++) {
        *where = (first + i) % nodes;
        result = stock_up(t, class, *where, new_block);
    }
    return result;
}


/* The last resort before the pool counts as full: what sessions of this handle have in their magazines, what is in
 * orphans (once in an epoch), what others brought home, and wholly free slabs of other classes. What a session holds
 * back for updates stays with it: in store it could complete a free slab, which would go to another class. Only an update
 * that needs one of that class may have it, because it retires another one. */
static int gather(far_task *t, far_class *class) {
    far_store *s = far_store_of(t);
    uint64_t epoch = far_epoch_known(t);
    far_magazines_trim(s, t->swaps ? class : NULL);
    far_reclaim_all(t);
    int err = far_send_home(t);
    if (err == 0 && s->gathered != epoch) {
        s->gathered = epoch;
        if ((err = far_orphans_adopt(t)) == 0)
            err = far_slabs_look_at_all(t);
    }
    return err < 0 ? err : far_slabs_trim(t, true);
}


static int stock_somewhere(far_task *t, far_class *class, unsigned node, bool must, unsigned *where) {
    far_store *s = far_store_of(t);
    unsigned nodes = far_task_pool(t)->geometry.nodes, first = node == FAR_NODE_ANY ? s->turn : node;
    int result = 0;
    if (node != FAR_NODE_ANY) {
        bool full = !must && s->full[node] == far_epoch_known(t); /* a wish is not worth a search every time */
        result = stock_nodes(t, class, node, 1, !full, where);
        if (result == 0)
            s->full[node] = far_epoch_known(t);
    }
    if (result == 0 && !must) {
        result = stock_nodes(t, class, first, nodes, false, where);
        if (result == 0)
            result = stock_nodes(t, class, first, nodes, true, where);
    }
    if (result == 0 && (result = gather(t, class)) == 0)
        result = stock_nodes(t, class, first, must ? 1 : nodes, true, where);
    if (result == 1 && node == FAR_NODE_ANY)
        s->turn = (*where + 1) % nodes;
    return result;
}


static int take_run(far_task *t, far_class *class, unsigned node, bool must, uint64_t *item) {
    far_pool *pool = far_task_pool(t);
    far_store *s = pool->store;
    unsigned nodes = pool->geometry.nodes, first = node == FAR_NODE_ANY ? s->turn++ % nodes : node;
    far_block_state run = {.kind = FAR_BLOCK_RUN,
                           .uid = class->uid,
                           .type = class->type,
                           .stable = class->stable,
                           .length = far_run_blocks(&pool->geometry, class->size)};
    int result = 0;
    for (unsigned round = 0; round < 2 && result == 0; round++) {
        for (unsigned i = 0; i < (must ? 1 : nodes) && result == 0; i++) {
            far_block_id head;
            bool used = true;
            result = far_run_take(t, (first + i) % nodes, &run, s->sweep, &head, &used);
            if (result == 1)
                *item = far_block_base(&pool->geometry, head) | FAR_ITEM_ZERO | (used ? 0 : FAR_ITEM_FRESH);
        }
        if (result == 0 && round == 0)
            result = gather(t, class);
    }
    return result;
}


/* Inside. 1: got it; 0: there is none. own_only: not from magazines and shelves of others' objects. */
static int find_one(far_task *t, far_class *class, unsigned node, bool must, bool own_only, uint64_t *item) {
    far_store *s = far_store_of(t);
    far_memory *m = far_memory_of(t);
    assert(s->inside == t);
    if (class->is_run)
        return take_run(t, class, node, must, item);
    unsigned held_back = 0, nodes = geometry(m)->nodes;
    for (unsigned tries = 0; tries < SLOW_TRIES && held_back <= nodes; tries++) { /* a second one may lie elsewhere */
        unsigned where = node == FAR_NODE_ANY ? s->turn % nodes : node;
        int result = 1;
        if (tries > 0 && (result = stock_somewhere(t, class, node, must, &where)) <= 0)
            return result;
        far_mutex_lock(&m->lock);
        bool got = false;
        if (own_only) {
            pthread_mutex_lock(&s->lock);
            got = far_store_take(s, class, where, 1, true, item) == 1;
            pthread_mutex_unlock(&s->lock);
        } else {
            far_bin *bin = far_bin_of(m, class);
            got = bin && take_local(m, bin, tries > 0 ? where : node, t->swaps, item);
            held_back += tries > 0 && bin && !t->swaps && is_held_back(m, bin, where);
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
    if (!class->is_run && !own_only && far_reclaim(t, m) > 0) { /* what this session retired long ago serves first */
        far_mutex_lock(&m->lock);
        far_bin *bin = far_bin_of(m, class);
        bool got = bin && take_local(m, bin, node, t->swaps, item);
        far_mutex_unlock(&m->lock);
        if (got)
            return 0;
    }
    far_store_enter(t);
    int result = find_one(t, class, node, must, own_only, item);
    far_store_leave(t);
    if (result != 0)
        return result < 0 ? result : 0;
    far_epoch_request(far_task_pool(t)); /* what is retired may do */
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


static int add_to_kept(far_task *t, far_class *class, uint64_t item) {
    far_memory *m = far_memory_of(t);
    far_mutex_lock(&m->lock);
    int kept = far_keep(m, class, item, false);
    far_mutex_unlock(&m->lock);
    return kept == 0 ? far_fail(FAR_ERR_NO_MEMORY, "an object that is to be kept was given up") : kept < 0 ? kept : 0;
}


static int alloc_slowly(far_task *t, far_index *index, far_class *class, unsigned node, unsigned flags,
                        far_object *object) {
    far_memory *m = far_memory_of(t);
    bool must = (flags & FAR_ALLOC_ON_NODE) != 0, keep = (flags & FAR_ALLOC_KEEP) != 0;
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
    if (keep && class->is_run)
        err = far_fail(FAR_ERR_INVALID, "%llu bytes are too large to be kept", (unsigned long long)class->size);
    if (flags & FAR_ALLOC_ZERO && !(item & FAR_ITEM_ZERO))
        err = far_wipe(t, object->addr, object->size);
    if (err == 0 && keep)
        err = add_to_kept(t, class, item);
    if (err < 0)
        far_free(t, index, class->type, object->addr, class->size);
    return err;
}


/* There can be no list for such objects. */
static int refuse(const far_index *index, unsigned type, uint64_t size) {
    if (index && type >= index->kind->type_count)
        return far_fail(FAR_ERR_INVALID, "index kind %s has no type %u", index->kind->name, type);
    if (far_size_class(size, FAR_GRANULE) == 0)
        return far_fail(FAR_ERR_NO_MEMORY, "%llu bytes are more than a memory node has", (unsigned long long)size);
    return far_fail(FAR_ERR_NO_MEMORY, "no memory for a list of free objects");
}


/* With the session's lock, which is freed. */
static __attribute__((noinline)) int alloc_locked(far_task *t, far_index *index, unsigned type, uint64_t size,
                                                  unsigned node, unsigned flags, far_object *object) {
    far_memory *m = far_memory_of(t);
    uint64_t item;
    if (node == FAR_NODE_ANY)
        flags &= ~(unsigned)FAR_ALLOC_ON_NODE;
    far_bin *bin = far_bin_get(m, index, type, size);
    bool simple = (flags & (FAR_ALLOC_ZERO | FAR_ALLOC_KEEP)) == 0 && far_reserve_is_full(m, index),
         got = bin && simple && !bin->class->is_run && take_local(m, bin, node, t->swaps, &item);
    far_mutex_unlock(&m->lock);
    if (!bin)
        return refuse(index, type, size);
    if (got) { /* without a verb */
        hand_out(t, bin->class, item, object);
        return 0;
    }
    far_aside aside = far_aside_begin(t);
    int err = alloc_slowly(t, index, bin->class, node, flags, object);
    far_aside_end(t, aside);
    return err;
}


int far_alloc(far_task *t, far_index *index, unsigned type, uint64_t size, unsigned node, unsigned flags,
              far_object *object) {
    far_memory *m = far_memory_of(t);
    if (t->pin.epoch == 0)
        return far_fail(FAR_ERR_INVALID, "far memory is allocated with a pin");
    if (node != FAR_NODE_ANY && node >= geometry(m)->nodes)
        return far_fail(FAR_ERR_INVALID, "there is no memory node %u", node);
    far_mutex_lock(&m->lock);
    far_bin *bin = flags || node == FAR_NODE_ANY ? NULL : far_bin_known(m, index, type, size);
    if (!bin || bin->magazine[node].count <= 1 || (index && index->kind->reserve_count > 0))
        return alloc_locked(t, index, type, size, node, flags, object);
    uint64_t item = bin->magazine[node].items[--bin->magazine[node].count]; /* as nearly always: not its last one */
    m->magazine_bytes -= bin->class->size;
    far_mutex_unlock(&m->lock);
    hand_out(t, bin->class, item, object);
    return 0;
}
