/* Freeing and retiring objects. A retired object waits in a queue of its session until no pin is left under which a
 * client could see it. Then it becomes free: it goes to the session's magazine or the store, or becomes a pending
 * return, if it is large or a request demands that. far_returns_flush executes the pending returns. */
#include "base/error.h"
#include "base/pages.h"
#include "pool/alloc/store.h"

#include <assert.h>

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


/* Appends an empty chunk to the queue, to which the caller must add an object. Returns NULL if there is no local
 * memory. */
static __attribute__((noinline)) far_retired_chunk *append_chunk(far_memory *m, far_queue *q) {
    far_retired_chunk *chunk = m->spare_chunk ? m->spare_chunk : far_pages_alloc(FAR_CHUNK_BYTES);
    if (!chunk)
        return NULL;
    m->spare_chunk = NULL;
    chunk->next = NULL;
    chunk->begin = chunk->end = 0;
    *(q->last ? &q->last->next : &q->first) = chunk;
    return q->last = chunk;
}


/* Removes an empty chunk from the queue; `previous` is the chunk before it, or NULL. The session keeps one chunk, so
 * that a queue that becomes empty again and again costs no system call. */
static __attribute__((noinline)) void remove_chunk(far_memory *m, far_queue *q, far_retired_chunk *previous,
                                                   far_retired_chunk *chunk) {
    assert(chunk->begin == chunk->end);
    *(previous ? &previous->next : &q->first) = chunk->next;
    if (q->last == chunk)
        q->last = previous;
    if (m->spare_chunk)
        far_pages_free(chunk, FAR_CHUNK_BYTES);
    else
        m->spare_chunk = chunk;
}


/* Appends the object to a queue of the session. All objects of one queue wait for the same number of epochs, so they
 * become free in order. A task that retires an object under an older pin than the previous object's only makes that
 * object wait a little longer. The last queue contains all types with very long waits; each object there has its own
 * time, and only the order may delay it. */
static inline __attribute__((always_inline)) void queue_add(far_memory *m, unsigned epochs, far_retired item) {
    unsigned extra = epochs - RETIRE_EPOCHS;
    assert(item.pin == 0 || item.pin < item.ready);
    far_queue *q = &m->queues[extra < FAR_QUEUES_MAX ? extra : FAR_QUEUES_MAX - 1];
    far_retired_chunk *chunk = q->last;
    if ((!chunk || chunk->end == FAR_CHUNK_ITEMS) && !(chunk = append_chunk(m, q))) {
        far_memory_note_leak(m->store->pool);
        return;
    }
    chunk->items[chunk->end++] = item;
    m->retired_bytes += item.class->size;
}


void far_queue_add(far_memory *m, far_retired item) {
    queue_add(m, epochs_until_reuse(item.class), item);
}


/* Removes the objects of the chunk for which `stays` returns false. */
static void visit_chunk(far_memory *m, far_retired_chunk *chunk,
                        bool (*stays)(far_store *s, const far_retired *item, void *ctx), void *ctx) {
    uint32_t kept = chunk->begin;
    for (uint32_t at = chunk->begin; at < chunk->end; at++) {
        const far_retired item = chunk->items[at];
        if (stays(m->store, &item, ctx))
            chunk->items[kept++] = item;
        else
            m->retired_bytes -= item.class->size;
    }
    chunk->end = kept;
}


void far_queues_visit(far_memory *m, bool (*stays)(far_store *s, const far_retired *item, void *ctx), void *ctx) {
    for (unsigned i = 0; i < FAR_QUEUES_MAX; i++) {
        far_queue *q = &m->queues[i];
        far_retired_chunk *previous = NULL, *next;
        for (far_retired_chunk *chunk = q->first; chunk; chunk = next) {
            next = chunk->next;
            visit_chunk(m, chunk, stays, ctx);
            if (chunk->begin == chunk->end)
                remove_chunk(m, q, previous, chunk);
            else
                previous = chunk;
        }
    }
}


/* The objects of the two queues may have been retired at the same time. Because the moved objects are appended, some of
 * them wait a little longer than necessary. */
void far_queues_hand_over(far_memory *from, far_memory *to) {
    for (unsigned i = 0; i < FAR_QUEUES_MAX; i++) {
        far_queue *source = &from->queues[i], *q = &to->queues[i];
        if (!source->first)
            continue;
        *(q->last ? &q->last->next : &q->first) = source->first;
        q->last = source->last;
        *source = (far_queue){NULL, NULL};
    }
    to->retired_bytes += from->retired_bytes;
    from->retired_bytes = 0;
}


void far_queues_free(far_memory *m) {
    for (unsigned i = 0; i < FAR_QUEUES_MAX; i++)
        for (far_retired_chunk *chunk; (chunk = m->queues[i].first);) {
            m->queues[i].first = chunk->next;
            far_pages_free(chunk, FAR_CHUNK_BYTES);
        }
    far_pages_free(m->spare_chunk, FAR_CHUNK_BYTES);
}


static bool queue_has_retired(const far_store *s, const far_queue *q, uint64_t up_to, bool remote_only) {
    for (const far_retired_chunk *chunk = q->first; chunk; chunk = chunk->next)
        for (uint32_t at = chunk->begin; at < chunk->end; at++) {
            const far_retired *item = &chunk->items[at];
            if (item->pin <= up_to && !(remote_only && far_address_is_own(s, item->addr)))
                return true;
        }
    return false;
}


bool far_has_retired(far_store *s, uint64_t up_to, bool remote_only) {
    bool any = false;
    pthread_mutex_lock(&s->sessions_lock);
    for (far_memory *m = s->sessions; m && !any; m = m->next) {
        far_mutex_lock(&m->lock);
        for (unsigned i = 0; i < FAR_QUEUES_MAX && !any; i++)
            any = queue_has_retired(s, &m->queues[i], up_to, remote_only);
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
    far_store_note_invalid_free(s, addr);
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
        far_memory_note_leak(s->pool);
        return;
    }
    far_class *class = bin->class;
    far_session_owned_forget(m, addr);
    unsigned epochs = epochs_until_reuse(class);
    queue_add(m, epochs, (far_retired){addr, class, t->pin.epoch, t->pin.epoch + epochs});
    bool ask = count_retired_and_check_epoch_due(t, m, class->size);
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
    if (t->session->lost) {
        far_memory_note_leak(s->pool); /* a verb to the object may still take effect, until the connection is fenced */
        return;
    }
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

/* With both locks held, frees the first object of the queue if its epoch has come, and returns whether it did. The
 * object goes to a magazine, to the store or to the pending returns. */
static bool free_queue_head(far_store *s, far_memory *m, far_queue *q, uint64_t epoch) {
    far_fabric *fabric = s->pool->fabric;
    far_retired_chunk *chunk = q->first;
    if (!chunk)
        return false;
    far_retired *head = &chunk->items[chunk->begin], item;
    if (head->pin == 0) { /* an object retired without a pin gets a pin value now, so its waiting time begins now */
        head->pin = epoch + 1; /* the global epoch may be one ahead of the epoch that this handle knows */
        head->ready = head->pin + epochs_until_reuse(head->class);
    }
    item = *head;
    if (item.ready > epoch)
        return false;
    if (++chunk->begin == chunk->end)
        remove_chunk(m, q, NULL, chunk);
    assert(m->retired_bytes >= item.class->size);
    m->retired_bytes -= item.class->size;
    if (fabric->watch)
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
    if (s->lists.remote_bytes > (bound < REMOTE_MIN ? REMOTE_MIN : bound))
        far_remote_lists_queue_return(s);
}


int far_returns_flush(far_task *t) {
    far_store *s = far_store_of(t);
    uint64_t bytes = 0;
    pthread_mutex_lock(&s->lock);
    queue_surplus_returns(s);
    far_pending_return *objects;
    size_t capacity, count = far_returns_take(s, &objects, &capacity);
    pthread_mutex_unlock(&s->lock);
    if (count == 0)
        return 0;
    for (size_t i = 0; i < count; i++)
        bytes += objects[i].class->size;
    int err = far_free_bits_add(t, objects, count);
    far_pages_free(objects, capacity * sizeof(*objects));
    pthread_mutex_lock(&s->lock);
    far_returns_count_executed(s, bytes);
    pthread_mutex_unlock(&s->lock);
    /* after a failed batch it is unknown which free bits were set, so a collection must find the objects whose bits
     * were not set */
    if (err < 0)
        far_memory_note_leak(s->pool);
    return err;
}
