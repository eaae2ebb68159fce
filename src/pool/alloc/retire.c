/* Freeing and retiring objects. A retired object waits in a queue of its session until no pin is left under which a
 * client could see it. Then it becomes free: it goes to the session's magazine or the store, or becomes a pending
 * return, if it is large or a request demands that. far_returns_flush executes the pending returns. */
#include "base/error.h"
#include "pool/alloc/store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Number of epochs from the pin under which an object was retired until the object is reused. After four epochs, every
 * pin is at least three epochs newer than that pin. */
#define RETIRE_EPOCHS 4
#define FREE_BATCH    64 /* number of objects that are freed before the locks are released */
/* a handle returns its free remote objects if they exceed the pool's size divided by this number */
#define REMOTE_SHARE 1024
#define REMOTE_MIN   (64u << 10) /* in a small pool, a handle may always keep free remote objects of this many bytes */


/* ---- Queues ---- */

static inline unsigned epochs_until_reuse(const far_class *class) {
    const far_type *info = far_class_info(class);
    return RETIRE_EPOCHS + (info ? info->extra_epochs : 0);
}


/* Doubles the capacity of the queue. */
static __attribute__((noinline)) bool enlarge_queue(far_queue *q) {
    size_t more = q->capacity == 0 ? 64 : 2 * q->capacity;
    far_retired *bigger = malloc(more * sizeof(*bigger));
    if (!bigger)
        return false;
    for (size_t i = 0; i < q->count; i++)
        bigger[i] = q->items[(q->first + i) & (q->capacity - 1)];
    free(q->items);
    q->items = bigger;
    q->first = 0;
    q->capacity = more;
    return true;
}


/* This process has no memory to record that an object is retired. The object leaks, so a collection is requested. */
static __attribute__((noinline)) void leak_to_collection(far_store *s) {
    atomic_store_explicit(&s->collection_due, true, memory_order_relaxed);
}


/* Appends the object to a queue of the session. All objects of one queue wait for the same number of epochs, so they
 * become free in order. A task that retires an object under an older pin than the previous object's only makes that
 * object wait a little longer. The last queue contains all types with very long waits; each object there has its own
 * time, and only the order may delay it. */
static inline __attribute__((always_inline)) void queue_add(far_memory *m, unsigned epochs, far_retired item) {
    unsigned extra = epochs - RETIRE_EPOCHS;
    assert(item.pin == 0 || item.pin < item.ready);
    far_queue *q = &m->queues[extra < FAR_QUEUES_MAX ? extra : FAR_QUEUES_MAX - 1];
    if (q->count == q->capacity && !enlarge_queue(q)) {
        leak_to_collection(m->store);
        return;
    }
    q->items[(q->first + q->count++) & (q->capacity - 1)] = item;
    m->retired_bytes += item.class->footprint;
}


void far_queue_add(far_memory *m, far_retired item) {
    queue_add(m, epochs_until_reuse(item.class), item);
}


bool far_has_retired(far_store *s, uint64_t up_to, bool remote_only) {
    bool any = false;
    pthread_mutex_lock(&s->sessions_lock);
    for (far_memory *m = s->sessions; m && !any; m = m->next) {
        far_mutex_lock(&m->lock);
        for (unsigned i = 0; i < FAR_QUEUES_MAX; i++) {
            const far_queue *q = &m->queues[i];
            for (size_t at = 0; at < q->count && !any; at++) {
                const far_retired *item = &q->items[(q->first + at) & (q->capacity - 1)];
                any = item->pin <= up_to && !(remote_only && far_address_is_own(s, item->addr));
            }
        }
        far_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&s->sessions_lock);
    return any;
}


/* ---- Retiring ---- */

/* With the session's lock held, adds `added` to the retired bytes of the session and returns whether the caller must
 * request the next epoch, which happens at most once per epoch. A request is made only if at least a quarter of
 * far_store.retire_batch_bytes was retired since the previous request. Cached entries of indexes are trusted for some
 * epochs. If epochs advance one at a time, caches keep the recently used entries. If all the epochs that free a batch
 * advanced at once, caches would lose everything. */
static bool count_retired_and_check_epoch_due(far_task *t, far_memory *m, uint64_t added) {
    uint64_t pile = m->store->retire_batch_bytes;
    m->retired_since_request += added;
    if (m->retired_bytes < pile || m->retired_since_request < pile / 4 || m->epoch_requested == far_epoch_known(t))
        return false;
    m->epoch_requested = far_epoch_known(t);
    m->retired_since_request = 0;
    return true;
}


static __attribute__((noinline)) bool record_invalid_free(far_store *s, far_addr addr) {
    pthread_mutex_lock(&s->lock);
    s->invalid_free = addr | 1; /* the lowest bit is set so that the value is never 0 */
    pthread_mutex_unlock(&s->lock);
    return false;
}


/* Returns whether an object of that size can be at this address. An index reads the addresses that it frees from far
 * memory, so an impossible one shows damage; it is recorded for the next check. */
static inline bool check_object_address(far_store *s, far_addr addr, uint64_t size) {
    return far_blocks_contain(&s->pool->geometry, addr, size) || record_invalid_free(s, addr);
}


/* The common path touches only the session's memory. The store's lock is taken only while a sweep is pending, to set
 * the black bit. */
void far_retire(far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    far_memory *m = far_memory_of(t);
    far_store *s = m->store;
    if (!check_object_address(s, addr, size))
        return;
    far_mutex_lock(&m->lock);
    far_bin *bin = far_bin_get(m, index, type, size);
    if (!bin) {
        far_mutex_unlock(&m->lock);
        leak_to_collection(s);
        return;
    }
    far_class *class = bin->class;
    far_session_owned_forget(m, addr);
    unsigned epochs = epochs_until_reuse(class);
    queue_add(m, epochs, (far_retired){addr, class, t->pin.epoch, t->pin.epoch + epochs});
    bool ask = count_retired_and_check_epoch_due(t, m, class->footprint);
    if (far_sweep_is_pending(s)) {
        pthread_mutex_lock(&s->lock);
        far_store_set_black(s, addr);
        pthread_mutex_unlock(&s->lock);
    }
    far_mutex_unlock(&m->lock);
    if (s->pool->fabric->watch)
        s->pool->fabric->watch->retired(s->pool->fabric, addr, class->size);
    if (ask)
        far_epoch_request(s->pool);
}


void far_free(far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    far_memory *m = far_memory_of(t);
    far_store *s = m->store;
    far_fabric *fabric = far_task_fabric(t);
    if (!check_object_address(s, addr, size))
        return;
    far_mutex_lock(&m->lock);
    far_bin *bin = far_bin_get(m, index, type, size);
    if (bin) {
        far_session_owned_forget(m, addr);
        if (fabric->watch)
            fabric->watch->freed(fabric, addr, bin->class->size, bin->class->stable);
        pthread_mutex_lock(&s->lock);
        far_magazine_add(m, bin->class, addr, t->pin.epoch == 0 ? UINT64_MAX : t->pin.epoch);
        pthread_mutex_unlock(&s->lock);
    }
    far_mutex_unlock(&m->lock);
}


/* ---- Becoming free ---- */

/* With both locks held, frees the first object of the queue if its epoch has come, and returns whether it did. A small
 * object goes to a magazine, to the store or to the pending returns. A large object becomes a pending return, because
 * freeing it takes verbs. */
static bool free_queue_head(far_store *s, far_memory *m, far_queue *q, uint64_t epoch) {
    far_fabric *fabric = s->pool->fabric;
    if (q->count == 0)
        return false;
    far_retired *head = &q->items[q->first], item;
    if (head->pin == 0) { /* an object retired without a pin gets a pin value now, so its waiting time begins now */
        head->pin = epoch + 1; /* the global epoch may be one ahead of the epoch that this handle knows */
        head->ready = head->pin + epochs_until_reuse(head->class);
    }
    item = *head;
    if (item.ready > epoch)
        return false;
    q->first = (q->first + 1) & (q->capacity - 1);
    q->count--;
    assert(m->retired_bytes >= item.class->size);
    m->retired_bytes -= item.class->footprint;
    if (fabric->watch && !item.class->is_large)
        fabric->watch->freed(fabric, item.addr, item.class->size, item.class->stable);
    far_magazine_add(m, item.class, item.addr, item.pin);
    return true;
}


/* With the session's lock held, frees some retired objects of the session, and returns their number. */
static unsigned reclaim_batch(far_store *s, far_memory *m, uint64_t epoch) {
    unsigned count = 0;
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < FAR_QUEUES_MAX; i++)
        while (count < FREE_BATCH && free_queue_head(s, m, &m->queues[i], epoch))
            count++;
    pthread_mutex_unlock(&s->lock);
    return count;
}


/* Frees a batch per session at a time, so that other threads get the locks in between. */
void far_reclaim_all(far_task *t) {
    far_store *s = far_store_of(t);
    unsigned count;
    do {
        count = 0;
        pthread_mutex_lock(&s->sessions_lock);
        for (far_memory *m = s->sessions; m; m = m->next) {
            far_mutex_lock(&m->lock);
            count += reclaim_batch(s, m, far_epoch_known(t));
            far_mutex_unlock(&m->lock);
        }
        pthread_mutex_unlock(&s->sessions_lock);
    } while (count > 0);
}


int far_reclaim_session(far_task *t, far_memory *m) {
    far_mutex_lock(&m->lock);
    unsigned count = reclaim_batch(m->store, m, far_epoch_known(t));
    far_mutex_unlock(&m->lock);
    return (int)count;
}


/* ---- Returning remote objects ---- */

/* Turns free remote objects into pending returns if the handle has too many of them. Without this bound, a handle that
 * deletes objects that other handles insert would accumulate their memory. */
static void queue_surplus_returns(far_store *s) {
    const far_geometry *g = &s->pool->geometry;
    uint64_t bound = far_block_total(g) * g->block_bytes / REMOTE_SHARE;
    if (s->remote_bytes > (bound < REMOTE_MIN ? REMOTE_MIN : bound))
        far_remote_lists_queue_return(s);
}


/* Frees a large object. Reads its block entry and passes it to far_store_free_large. */
static int free_large_object(far_task *t, const far_class *class, far_addr addr) {
    const far_geometry *g = far_geometry_of(t);
    far_block_id head;
    uint64_t word;
    if (!far_block_of(g, addr, &head))
        return far_fail(FAR_ERR_CORRUPT, "an index freed an object at %#llx, which is in no block",
                        (unsigned long long)addr);
    int err = far_read_word(t, far_block_entry(g, head), &word);
    if (err < 0)
        return err;
    far_block_state state = far_block_unpack(word);
    if (state.kind != FAR_BLOCK_LARGE_HEAD || state.uid != class->uid || state.type != class->type)
        return 0; /* the index of the object was dropped, and its large objects were freed then */
    err = far_store_free_large(t, head, word);
    return err < 0 ? err : 0;
}


/* Returns objects of slabs by setting their free bits, and frees large objects. */
static int return_objects(far_task *t, far_pending_return *objects, size_t count) {
    size_t slabs = 0;
    int err = 0;
    for (size_t i = 0; i < count && err == 0; i++) {
        if (objects[i].class->is_large)
            err = free_large_object(t, objects[i].class, objects[i].addr);
        else
            objects[slabs++] = objects[i];
    }
    return err < 0 ? err : far_free_bits_add(t, objects, slabs);
}


int far_returns_flush(far_task *t) {
    far_store *s = far_store_of(t);
    uint64_t bytes = 0;
    pthread_mutex_lock(&s->lock);
    queue_surplus_returns(s);
    far_pending_return *objects = s->returns;
    const size_t count = s->return_count;
    s->returns = NULL;
    s->return_count = 0;
    pthread_mutex_unlock(&s->lock);
    if (count == 0)
        return 0;
    for (size_t i = 0; i < count; i++)
        bytes += objects[i].class->footprint;
    int err = return_objects(t, objects, count);
    free(objects);
    pthread_mutex_lock(&s->lock);
    assert(s->return_bytes >= bytes);
    s->return_bytes -= bytes;
    pthread_mutex_unlock(&s->lock);
    /* after a failed batch it is unknown which free bits were set, so a collection must find the objects whose bits
     * were not set */
    if (err < 0)
        atomic_store_explicit(&s->collection_due, true, memory_order_relaxed);
    return err;
}
