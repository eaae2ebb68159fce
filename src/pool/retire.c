/* Retiring, and what a session does from time to time: freeing what is past its time, giving back, telling what it
 * holds. */
#include "pool/catalog_layout.h"
#include "pool/memory.h"

#include <stdlib.h>
#include <string.h>

#define PILE_SHARE    512        /* part of the pool that a session retires before it asks for the next epoch ... */
#define PILE_MIN      (1u << 20) /* ... at least ... */
#define PILE_MAX      (4u << 20) /* ... and at most: what lies long is no more in the caches of the processor */
#define SMALL_SHARE   64         /* ... but not more than this part */
#define PLAIN_AT_ONCE 64         /* objects that are freed under one lock */


static uint64_t epochs_of(const far_class *class) {
    return FAR_RETIRE_EPOCHS + (class->info != NULL ? class->info->extra_epochs : 0);
}


bool far_put_retired(far_memory *m, far_retired item) {
    far_quarantine *q = m->session->pool->quarantine;
    if (far_is_marked(m, item.addr) && atomic_load_explicit(&q->phase, memory_order_acquire) == FAR_SWEEP_QUARANTINE)
        return false;
    bool in_order = item.ready > 1 && !item.clean && epochs_of(item.class) == FAR_RETIRE_EPOCHS;
    if (in_order && m->retired.count > 0) { /* a task with an old pin, or one that was put off */
        const far_queue *r = &m->retired;
        in_order = r->items[(r->first + r->count - 1) % r->capacity].ready <= item.ready;
    }
    if (in_order ? far_queue_put(&m->retired, item) : far_queue_put_sorted(&m->late, item))
        m->retired_bytes += far_class_footprint(m, item.class);
    return true;
}


/* Caches of indexes count on what they saw some epochs ago: the less often the epoch moves, the more they serve. */
static uint64_t pile_bytes(const far_quarantine *q) {
    uint64_t pile = q->pool_bytes / PILE_SHARE, most = q->pool_bytes / SMALL_SHARE;
    pile = pile < PILE_MIN ? PILE_MIN : pile > PILE_MAX ? PILE_MAX : pile;
    return pile < most ? pile : most;
}


/* With the lock: whether to ask for the next epoch, once in each. */
static bool has_piled_up(far_task *t, far_memory *m) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    uint64_t epoch = far_epoch_known(t);
    bool ask = m->asked != epoch && m->retired_bytes >= pile_bytes(q);
    if (ask)
        m->asked = epoch;
    return ask;
}


/* The walk of a sweep is over, but this operation began before that was known here: the walk may have missed the
 * object. */
static bool is_before_release(far_task *t, far_memory *m, far_addr addr) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    return t->pin.epoch != 0 && far_is_marked(m, addr) &&
           atomic_load_explicit(&q->phase, memory_order_acquire) == FAR_SWEEP_RELEASING &&
           t->pin.epoch < atomic_load_explicit(&q->normal_from, memory_order_acquire);
}


static void tick_soon(far_task *t, void *arg) {
    (void)arg;
    far_memory_tick(t); /* an error has ended the session: its next call says so */
    far_memory_of(t)->helping = false;
}


/* Another session finds no memory. Housekeeping cannot make one that is always busy give up what it does not need: it
 * does so itself. */
void far_memory_help(far_task *t) {
    far_memory *m = far_memory_of(t);
    if (m == NULL || m->helping || !far_memory_is_asked(m))
        return;
    m->helping = far_spawn(t, tick_soon, NULL, 0);
}


void far_retire(far_task *t, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    far_memory *m = far_memory_of(t);
    far_fabric *fabric = far_task_fabric(t);
    pthread_mutex_lock(&m->lock);
    far_class *class = far_class_for(m, index, type, size);
    bool pending = false, ask = false;
    if (class != NULL) {
        far_kept_forget(m, addr);
        far_retired item = {.addr = addr, .class = class};
        if (t->pin.epoch != 0)
            item.ready = t->pin.epoch + 1 + epochs_of(class);
        if (is_before_release(t, m, addr) || !far_put_retired(m, item))
            far_gives_add(&m->pending, class, addr);
        pending = m->pending.count > 0;
        ask = has_piled_up(t, m);
    }
    pthread_mutex_unlock(&m->lock);
    if (class == NULL)
        return;
    if (fabric->watch != NULL)
        fabric->watch->retired(fabric, addr, class->size);
    if (pending)
        far_pending_soon(t);
    if (ask)
        far_epoch_request(far_task_pool(t));
    far_memory_help(t);
}


/* A run goes back as a whole. 1: gone; 0: a sweep covers it, later. */
static int reclaim_run(far_task *t, const far_class *class, far_addr addr) {
    const far_geometry *g = &far_task_pool(t)->geometry;
    far_block_id head;
    uint64_t word;
    if (!far_block_of(g, addr, &head))
        return FAR_ERR_CORRUPT;
    int err = far_read_word(t, far_block_entry(g, head), &word);
    if (err < 0)
        return err;
    far_block_state s = far_block_unpack(word);
    if (s.kind != FAR_BLOCK_RUN || s.uid != class->uid || s.type != class->type)
        return 1; /* its index was dropped, and all its runs with it */
    return s.quarantined ? 0 : far_run_free(t, head, &s);
}


/* What a task knows of the catalog; under one pin once is enough. */
typedef struct listed_uids {
    bool known;
    far_catalog_view view;
} listed_uids;


/* 1: the index of this class is not open here and not listed any more: whoever owns the block frees the slab as a
 * whole, or has done so and cut it anew. While we are pinned, what is listed stays as it is. */
static int is_dropped(far_task *t, const far_class *class, listed_uids *listed) {
    pthread_mutex_lock(&far_memory_of(t)->lock);
    bool open = class->uid == 0 || class->index != NULL;
    pthread_mutex_unlock(&far_memory_of(t)->lock);
    if (open)
        return 0;
    int err = listed->known ? 0 : far_catalog_look(t, &listed->view);
    listed->known = err == 0;
    return err < 0 ? err : far_catalog_find_uid(&listed->view, class->uid) == NULL;
}


/* Past its time: the hook, then the list. 1: done; 0: not yet. */
static int reclaim_one(far_task *t, const far_retired *item) {
    far_memory *m = far_memory_of(t);
    far_class *class = item->class;
    far_fabric *fabric = far_task_fabric(t);
    pthread_mutex_lock(&m->lock);
    far_index *index = class->index;
    bool run_hook = !item->clean && index != NULL && class->info->reclaim != NULL;
    if (run_hook)
        atomic_fetch_add_explicit(&index->uses, 1, memory_order_relaxed);
    pthread_mutex_unlock(&m->lock);

    far_entry entry = {item->addr, 0};
    int err = 0;
    if (run_hook) {
        err = class->info->reclaim(t, index, item->addr, class->size, &entry.cookie);
        atomic_fetch_sub_explicit(&index->uses, 1, memory_order_release);
        if (err != 0)
            return err < 0 ? err : 0;
    } else if (class->info == NULL || class->info->recover != NULL) {
        entry.word |= FAR_ENTRY_RECOVER;
    }
    if (far_size_is_run(&far_task_pool(t)->geometry, class->size))
        return reclaim_run(t, class, item->addr);
    if (fabric->watch != NULL)
        fabric->watch->freed(fabric, item->addr, class->size, class->stable);
    pthread_mutex_lock(&m->lock);
    far_put_free(m, class, entry);
    pthread_mutex_unlock(&m->lock);
    return 1;
}


static int put_off(far_task *t, far_retired item, uint64_t epoch) {
    far_memory *m = far_memory_of(t);
    if (item.ready <= epoch)
        item.ready = item.clean ? epoch : epoch + 1; /* behind those that are due as well */
    pthread_mutex_lock(&m->lock);
    if (!far_put_retired(m, item))
        far_gives_add(&m->pending, item.class, item.addr);
    pthread_mutex_unlock(&m->lock);
    return 0;
}


static int reclaim_or_put_off(far_task *t, far_retired item, uint64_t epoch, listed_uids *listed) {
    far_memory *m = far_memory_of(t);
    if (item.ready == 0) { /* retired without a pin: its time begins now */
        uint64_t now;
        int err = far_epoch_read(t, &now);
        if (err < 0)
            return err;
        item.ready = now + 1 + epochs_of(item.class);
    }
    if (item.ready > epoch || far_is_marked(m, item.addr))
        return put_off(t, item, epoch);
    int done = is_dropped(t, item.class, listed);
    if (done == 0)
        done = reclaim_one(t, &item);
    if (done <= 0)
        put_off(t, item, epoch);
    else
        far_memory_moved(t);
    return done < 0 ? done : 0;
}


/* Its index is open, no hook wants to know of it, and no sweep: it only goes from one list to the other. */
static bool is_plain(far_memory *m, const far_retired *item) {
    const far_class *class = item->class;
    const far_pool *pool = m->session->pool;
    return class->index != NULL && class->info->reclaim == NULL && class->info->recover == NULL &&
           !far_size_is_run(&pool->geometry, class->size) && !far_is_marked(m, item->addr);
}


static bool is_due(const far_queue *q, uint64_t epoch) {
    return q->count > 0 && q->items[q->first].ready <= epoch;
}


static size_t count_due(const far_queue *q, uint64_t epoch) {
    size_t due = 0;
    while (due < q->count && q->items[(q->first + due) % q->capacity].ready <= epoch)
        due++;
    return due;
}


/* With the lock: those that are plain, up to the first that is not. */
static unsigned reclaim_plain(far_memory *m, far_queue *q, uint64_t epoch) {
    far_fabric *fabric = m->session->pool->fabric;
    unsigned count = 0;
    while (count < PLAIN_AT_ONCE && is_due(q, epoch) && q->items[q->first].ready != 0 &&
           is_plain(m, &q->items[q->first])) {
        far_retired item;
        far_queue_take(q, &item);
        m->retired_bytes -= far_class_footprint(m, item.class);
        if (fabric->watch != NULL)
            fabric->watch->freed(fabric, item.addr, item.class->size, item.class->stable);
        far_put_free(m, item.class, (far_entry){item.addr, 0});
        count++;
    }
    return count;
}


int far_reclaim(far_task *t) {
    far_memory *m = far_memory_of(t);
    if (m->reclaiming) /* by another task, or by the one whose hook allocates */
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    listed_uids listed = {0};
    uint64_t epoch = far_epoch_known(t);
    int err = 0;
    pthread_mutex_lock(&m->lock);
    m->reclaiming = true;
    size_t late = count_due(&m->late, epoch); /* each once: some are put off, and due again */
    pthread_mutex_unlock(&m->lock);
    for (bool more = true; more && err == 0;) {
        far_retired item;
        pthread_mutex_lock(&m->lock);
        if (reclaim_plain(m, &m->retired, epoch) + reclaim_plain(m, &m->late, epoch) > 0) {
            pthread_mutex_unlock(&m->lock);
            far_memory_moved(t);
            continue;
        }
        if (is_due(&m->retired, epoch))
            more = far_queue_take(&m->retired, &item);
        else if (late > 0 && is_due(&m->late, epoch) && far_queue_take(&m->late, &item))
            late--;
        else
            more = false;
        if (more)
            m->retired_bytes -= far_class_footprint(m, item.class);
        pthread_mutex_unlock(&m->lock);
        if (more)
            err = reclaim_or_put_off(t, item, epoch, &listed);
    }
    far_scratch_back(t, mark);
    int given = far_give_pending(t);
    pthread_mutex_lock(&m->lock);
    m->reclaiming = false;
    pthread_mutex_unlock(&m->lock);
    return err < 0 ? err : given;
}


static void filter_queue(far_memory *m, far_queue *q, const far_class *class) {
    for (size_t n = q->count; n > 0; n--) {
        far_retired item;
        far_queue_take(q, &item);
        if (item.class == class)
            m->retired_bytes -= far_class_footprint(m, class);
        else
            far_queue_put(q, item);
    }
}


void far_class_purge(far_memory *m, far_class *class) {
    filter_queue(m, &m->retired, class);
    filter_queue(m, &m->late, class);
    for (size_t i = 0; i < m->kept_count; i++)
        if (m->kept[i].addr != 0 && m->kept[i].class == class && !m->kept[i].stale) {
            m->kept[i].stale = true;
            m->keeps -= !m->kept[i].reserve;
        }
    far_entry entry;
    for (unsigned n = 0; n < m->session->pool->geometry.nodes; n++)
        while (far_take_free(m, class, n, &entry))
            ;
}


/* Ticks. */

/* Inside: slabs that were wholly free for some ticks go back. */
static int trim(far_task *t, bool all) {
    far_memory *m = far_memory_of(t);
    bool any = false;
    pthread_mutex_lock(&m->lock);
    m->trim -= m->trim > 0;
    for (far_held *b = m->blocks; b != NULL; b = b->next)
        for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
            far_slab *s = b->slab[p];
            if (s == NULL || s->page != p)
                continue;
            s->idle = far_slab_is_free(s) && !s->class->stable ? s->idle + 1 : 0;
            any |= s->idle > 0;
        }
    if (any && m->trim == 0)
        m->trim = 1;
    pthread_mutex_unlock(&m->lock);
    return far_slabs_trim(t, all);
}


/* With the lock. */
static uint64_t free_pages(const far_memory *m) {
    uint64_t pages = 0;
    for (const far_held *b = m->blocks; b != NULL; b = b->next)
        pages += b->away ? 0 : (unsigned)__builtin_popcountll(b->free_pages);
    return pages;
}


/* What others are told of this session's lists (far_pool_stat) and of what it has room for (hunger.c). */
int far_memory_tell(far_task *t) {
    far_memory *m = far_memory_of(t);
    pthread_mutex_lock(&m->lock);
    uint64_t now[2] = {m->free_bytes, m->retired_bytes}, answer = far_client_answer_pack(m->answered, free_pages(m));
    bool known = memcmp(now, m->told, sizeof(now)) == 0 && answer == m->told_answer;
    memcpy(m->told, now, sizeof(now));
    m->told_answer = answer;
    pthread_mutex_unlock(&m->lock);
    if (known)
        return 0;
    uint64_t *words = far_scratch(t, sizeof(now) + 8);
    if (words == NULL)
        return FAR_ERR_NO_MEMORY;
    memcpy(words, now, sizeof(now));
    words[2] = answer;
    far_addr entry = far_client_entry(far_task_client(t));
    far_write(t, entry + offsetof(far_client, free_bytes), words, sizeof(now));
    far_write(t, entry + offsetof(far_client, answer), words + 2, 8);
    return far_wait(t);
}


bool far_memory_wants_tick(far_session *s) {
    far_memory *m = s->memory;
    if (m == NULL)
        return false;
    pthread_mutex_lock(&m->lock);
    uint64_t now[2] = {m->free_bytes, m->retired_bytes};
    bool wants = memcmp(now, m->told, sizeof(now)) != 0 && memcmp(now, m->noticed, sizeof(now)) == 0;
    memcpy(m->noticed, now, sizeof(now));
    pthread_mutex_unlock(&m->lock);
    return wants || far_memory_is_asked(m);
}


static bool has_work(far_memory *m) {
    pthread_mutex_lock(&m->lock);
    bool work = m->retired.count > 0 || m->late.count > 0 || m->foreign_bytes > 0 || m->trim > 0 || m->kept_count > 0 ||
                m->pending.count > 0 || m->free_bytes != m->told[0] || m->retired_bytes != m->told[1] ||
                far_drops_wait(m);
    pthread_mutex_unlock(&m->lock);
    return work || far_memory_is_asked(m);
}


static int tick_inside(far_task *t) {
    far_memory *m = far_memory_of(t);
    far_quarantine *q = far_task_pool(t)->quarantine;
    unsigned shortage = atomic_load_explicit(&q->shortage, memory_order_relaxed);
    uint32_t number = far_short_number(atomic_load_explicit(&q->announced, memory_order_relaxed));
    bool is_short = shortage != m->shortage || number != m->answered;
    m->shortage = shortage;
    int err = far_drops_tick(t);
    if (err == 0)
        err = far_give_foreign(t, is_short);
    bool wanted = is_short && far_memory_is_wanted(m);
    unsigned given = atomic_load_explicit(&q->given, memory_order_relaxed);
    if (err == 0 && wanted) { /* what others gave back in its blocks only it can find */
        far_memory_look_again(m);
        err = far_slabs_look(t);
    }
    if (err == 0 && (m->trim > 0 || is_short))
        err = trim(t, is_short);
    if (err == 0 && wanted)
        err = far_memory_leave_blocks(t, false);
    pthread_mutex_lock(&m->lock);
    m->shared = shortage;
    if (wanted)
        m->looked = given;
    m->answered = number;
    m->mute = false;
    pthread_mutex_unlock(&m->lock);
    return err;
}


int far_memory_tick(far_task *t) {
    far_memory *m = far_memory_of(t);
    if (m == NULL || t->session->lost || !has_work(m))
        return 0;
    bool pinned = t->pin.epoch != 0;
    int err = far_pin_take(t);
    if (err < 0)
        return err;
    far_aside aside = far_aside_begin(t);
    err = far_reclaim(t);
    if (err == 0) {
        far_memory_enter(t);
        err = tick_inside(t);
        far_memory_leave(t);
    }
    if (err == 0)
        err = far_keep_tick(t);
    if (err == 0)
        err = far_give_pending(t);
    if (err == 0)
        err = far_memory_tell(t);
    pthread_mutex_lock(&m->lock);
    bool ask = has_piled_up(t, m);
    pthread_mutex_unlock(&m->lock);
    if (ask)
        far_epoch_request(far_task_pool(t));
    far_aside_end(t, aside);
    if (!pinned)
        far_pin_drop(t);
    return err;
}
