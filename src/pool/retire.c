/* Retired objects: waiting for their epoch, becoming free, going home. */
#include "base/error.h"
#include "pool/store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define RETIRE_EPOCHS 4  /* from the pin under which it was retired to the reuse: every pin is at the third or later */
#define AT_ONCE       64 /* objects that are freed under one lock */
#define FOREIGN_SHARE 1024        /* part of the pool that a handle holds free in the blocks of others ... */
#define FOREIGN_MIN   (64u << 10) /* ... or this */


/* ---- Queues ---- */

static inline unsigned epochs_of(const far_class *class) {
    const far_type *info = far_class_info(class);
    return RETIRE_EPOCHS + (info ? info->extra_epochs : 0);
}


/* Twice as large. */
static __attribute__((noinline)) bool enlarge(far_queue *q) {
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


/* This process has no memory to note that an object is retired: a sweep finds it. */
static __attribute__((noinline)) void lose(far_store *s) {
    atomic_store_explicit(&s->wants_sweep, true, memory_order_relaxed);
}


/* Objects of one queue wait for the same number of epochs, so that they become free in order; a task with an older pin
 * that comes late only makes those behind it wait a little longer. (In the last queue are all that wait very long: each
 * has its own time all the same.) */
static inline __attribute__((always_inline)) void queue_put(far_memory *m, unsigned epochs, far_retired item) {
    unsigned extra = epochs - RETIRE_EPOCHS;
    assert(item.pin == 0 || item.pin < item.ready);
    far_queue *q = &m->queues[extra < FAR_QUEUES_MAX ? extra : FAR_QUEUES_MAX - 1];
    if (q->count == q->capacity && !enlarge(q)) {
        lose(m->store);
        return;
    }
    q->items[(q->first + q->count++) & (q->capacity - 1)] = item;
    m->retired_bytes += item.class->footprint;
}


void far_queue_put(far_memory *m, far_retired item) {
    queue_put(m, epochs_of(item.class), item);
}


bool far_has_retired(far_store *s, uint64_t up_to, bool foreign_only) {
    bool any = false;
    pthread_mutex_lock(&s->list);
    for (far_memory *m = s->memories; m && !any; m = m->next) {
        far_mutex_lock(&m->lock);
        for (unsigned i = 0; i < FAR_QUEUES_MAX; i++) {
            const far_queue *q = &m->queues[i];
            for (size_t at = 0; at < q->count && !any; at++) {
                const far_retired *item = &q->items[(q->first + at) & (q->capacity - 1)];
                any = item->pin <= up_to && !(foreign_only && far_is_own(s, item->addr));
            }
        }
        far_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&s->list);
    return any;
}


/* ---- Retiring ---- */

/* With the session's lock: whether to ask for the next epoch, once in each. Not before a quarter of a pile was added
 * since the last time: epochs that come one by one leave the caches of indexes what was used lately, while those that
 * it takes to free a pile, all at once, would leave them nothing. */
static bool has_piled_up(far_task *t, far_memory *m, uint64_t added) {
    uint64_t pile = m->store->pile;
    m->asked_since += added;
    if (m->retired_bytes < pile || m->asked_since < pile / 4 || m->asked == far_epoch_known(t))
        return false;
    m->asked = far_epoch_known(t);
    m->asked_since = 0;
    return true;
}


static __attribute__((noinline)) bool note_damage(far_store *s, far_addr addr) {
    pthread_mutex_lock(&s->lock);
    s->freed_wrongly = addr | 1; /* never 0 */
    pthread_mutex_unlock(&s->lock);
    return false;
}


/* Addresses that an index gives back were read from far memory: one at which no object can lie is damage. check tells. */
static inline bool may_be_object(far_store *s, far_addr addr, uint64_t size) {
    return far_blocks_reach(&s->pool->geometry, addr, size) || note_damage(s, addr);
}


/* The common way touches only what is the session's: the store's lock is taken while a sweep is not settled. */
void far_retire(far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    far_memory *m = far_memory_of(t);
    far_store *s = m->store;
    if (!may_be_object(s, addr, size))
        return;
    far_mutex_lock(&m->lock);
    far_bin *bin = far_bin_get(m, index, type, size);
    if (!bin) {
        far_mutex_unlock(&m->lock);
        lose(s);
        return;
    }
    far_class *class = bin->class;
    far_kept_forget(m, addr);
    unsigned epochs = epochs_of(class);
    queue_put(m, epochs, (far_retired){addr, class, t->pin.epoch, t->pin.epoch + epochs});
    bool ask = has_piled_up(t, m, class->footprint);
    if (far_is_unsettled(s)) {
        pthread_mutex_lock(&s->lock);
        far_store_blacken(s, addr);
        pthread_mutex_unlock(&s->lock);
    }
    far_mutex_unlock(&m->lock);
    if (s->pool->fabric->watch)
        s->pool->fabric->watch->retired(s->pool->fabric, addr, class->size);
    if (ask)
        far_epoch_request(s->pool);
}


/* An object that was never shown to others. */
void far_free(far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    far_memory *m = far_memory_of(t);
    far_store *s = m->store;
    far_fabric *fabric = far_task_fabric(t);
    if (!may_be_object(s, addr, size))
        return;
    far_mutex_lock(&m->lock);
    far_bin *bin = far_bin_get(m, index, type, size);
    if (bin) {
        far_kept_forget(m, addr);
        if (fabric->watch)
            fabric->watch->freed(fabric, addr, bin->class->size, bin->class->stable);
        pthread_mutex_lock(&s->lock);
        far_magazine_put(m, bin->class, addr, t->pin.epoch == 0 ? UINT64_MAX : t->pin.epoch);
        pthread_mutex_unlock(&s->lock);
    }
    far_mutex_unlock(&m->lock);
}


/* ---- Becoming free ---- */

/* With both locks. True: the head of the queue was free. It goes to a list of the session or of the store; to free a run
 * takes verbs: it is leaving (far_send_home). */
static bool free_head(far_store *s, far_memory *m, far_queue *q, uint64_t epoch) {
    far_fabric *fabric = s->pool->fabric;
    if (q->count == 0)
        return false;
    far_retired *head = &q->items[q->first], item;
    if (head->pin == 0) {      /* retired without one: its time begins now */
        head->pin = epoch + 1; /* the epoch that this handle knows may be one behind */
        head->ready = head->pin + epochs_of(head->class);
    }
    item = *head;
    if (item.ready > epoch)
        return false;
    q->first = (q->first + 1) & (q->capacity - 1);
    q->count--;
    assert(m->retired_bytes >= item.class->size);
    m->retired_bytes -= item.class->footprint;
    if (fabric->watch && !item.class->is_run)
        fabric->watch->freed(fabric, item.addr, item.class->size, item.class->stable);
    far_magazine_put(m, item.class, item.addr, item.pin);
    return true;
}


/* Frees some retired objects of one session, with its lock. How many. */
static unsigned reclaim_some(far_store *s, far_memory *m, uint64_t epoch) {
    unsigned count = 0;
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < FAR_QUEUES_MAX; i++)
        while (count < AT_ONCE && free_head(s, m, &m->queues[i], epoch))
            count++;
    pthread_mutex_unlock(&s->lock);
    return count;
}


/* All sessions, a little at a time: others want the locks too. */
void far_reclaim_all(far_task *t) {
    far_store *s = far_store_of(t);
    unsigned total = 0, count;
    do {
        count = 0;
        pthread_mutex_lock(&s->list);
        for (far_memory *m = s->memories; m; m = m->next) {
            far_mutex_lock(&m->lock);
            count += reclaim_some(s, m, far_epoch_known(t));
            far_mutex_unlock(&m->lock);
        }
        pthread_mutex_unlock(&s->list);
        total += count;
    } while (count > 0);
    if (total > 0)
        far_memory_returned(s);
}


int far_reclaim(far_task *t, far_memory *m) {
    far_mutex_lock(&m->lock);
    unsigned count = reclaim_some(m->store, m, far_epoch_known(t));
    far_mutex_unlock(&m->lock);
    if (count > 0)
        far_memory_returned(m->store);
    return (int)count;
}


/* ---- Going home ---- */

/* A handle that deletes what others insert would gather their memory. */
static void send_surplus(far_store *s) {
    const far_geometry *g = &s->pool->geometry;
    uint64_t bound = far_block_total(g) * g->block_bytes / FOREIGN_SHARE;
    if (s->foreign_bytes > (bound < FOREIGN_MIN ? FOREIGN_MIN : bound))
        far_shelves_leave(s);
}


/* A run goes back as a whole. */
static int free_run(far_task *t, const far_class *class, far_addr addr) {
    const far_geometry *g = far_geometry_of(t);
    far_block_id head;
    uint64_t word;
    if (!far_block_of(g, addr, &head))
        return far_fail(FAR_ERR_CORRUPT, "%#llx lies in no block", (unsigned long long)addr);
    int err = far_read_word(t, far_block_entry(g, head), &word);
    if (err < 0)
        return err;
    far_block_state state = far_block_unpack(word);
    if (state.kind != FAR_BLOCK_RUN || state.uid != class->uid || state.type != class->type)
        return 0; /* its index was dropped, and all its runs with it */
    err = far_store_free_run(t, head, word);
    return err < 0 ? err : 0;
}


/* Objects of slabs by their bits, runs by being freed. */
static int bring_home(far_task *t, far_leaving *objects, size_t count) {
    size_t slabs = 0;
    int err = 0;
    for (size_t i = 0; i < count && err == 0; i++) {
        if (objects[i].class->is_run)
            err = free_run(t, objects[i].class, objects[i].addr);
        else
            objects[slabs++] = objects[i];
    }
    return err < 0 ? err : far_bits_add(t, objects, slabs);
}


int far_send_home(far_task *t) {
    far_store *s = far_store_of(t);
    uint64_t bytes = 0;
    pthread_mutex_lock(&s->lock);
    send_surplus(s);
    far_leaving *objects = s->leaving;
    const size_t count = s->leaving_count;
    s->leaving = NULL;
    s->leaving_count = 0;
    pthread_mutex_unlock(&s->lock);
    if (count == 0)
        return 0;
    for (size_t i = 0; i < count; i++)
        bytes += objects[i].class->footprint;
    int err = bring_home(t, objects, count);
    free(objects);
    pthread_mutex_lock(&s->lock);
    assert(s->leaving_bytes >= bytes);
    s->leaving_bytes -= bytes;
    pthread_mutex_unlock(&s->lock);
    if (err < 0) /* nobody knows which bits were added: a sweep finds the others */
        atomic_store_explicit(&s->wants_sweep, true, memory_order_relaxed);
    far_memory_returned(s);
    return err;
}
