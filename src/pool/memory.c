/* What a session holds, seen locally: classes, blocks, slabs, lists. No verbs here. */
#include "pool/memory.h"

#include <stdlib.h>
#include <string.h>

const far_type far_pool_type = {.name = "pool", .align = 64};


static const far_geometry *geometry(const far_memory *m) {
    return &m->session->pool->geometry;
}


/* Classes. */

far_class *far_class_get(far_memory *m, uint32_t uid, unsigned type, uint64_t size, bool stable) {
    far_class **bucket = &m->classes[(uid * 31 + type * 7 + size / FAR_GRANULE) % FAR_CLASS_BUCKETS];
    for (far_class *c = *bucket; c != NULL; c = c->next)
        if (c->uid == uid && c->type == type && c->size == size)
            return c;
    far_class *c = calloc(1, sizeof(*c) + geometry(m)->nodes * sizeof(far_shelf));
    if (c == NULL)
        return NULL;
    c->uid = uid;
    c->type = type;
    c->size = size;
    c->stable = stable;
    c->info = uid == 0 ? &far_pool_type : NULL;
    c->next = *bucket;
    *bucket = c;
    return c;
}


far_class *far_class_for(far_memory *m, far_index *index, unsigned type, uint64_t size) {
    if (index != NULL && type >= index->kind->type_count)
        return NULL;
    const far_type *info = index != NULL ? &index->kind->types[type] : &far_pool_type;
    uint64_t rounded = far_size_class(size, info->align);
    if (rounded == 0 || type > 0x3f)
        return NULL;
    far_class *c = far_class_get(m, index != NULL ? index->uid : 0, type, rounded, info->stable);
    if (c != NULL) {
        c->info = info;
        c->index = index;
    }
    return c;
}


/* Lists. */

static bool grow(void **items, size_t *capacity, size_t size) {
    size_t more = *capacity == 0 ? 16 : 2 * *capacity;
    void *bigger = realloc(*items, more * size);
    if (bigger == NULL)
        return false;
    *items = bigger;
    *capacity = more;
    return true;
}


bool far_queue_put(far_queue *q, far_retired item) {
    if (q->count == q->capacity) {
        size_t more = q->capacity == 0 ? 64 : 2 * q->capacity;
        far_retired *bigger = malloc(more * sizeof(*bigger));
        if (bigger == NULL)
            return false;
        for (size_t i = 0; i < q->count; i++)
            bigger[i] = q->items[(q->first + i) % q->capacity];
        free(q->items);
        q->items = bigger;
        q->first = 0;
        q->capacity = more;
    }
    q->items[(q->first + q->count++) % q->capacity] = item;
    return true;
}


bool far_queue_put_sorted(far_queue *q, far_retired item) {
    if (!far_queue_put(q, item))
        return false;
    size_t at = q->count - 1;
    for (; at > 0; at--) { /* it is seldom far from the end */
        const far_retired *before = &q->items[(q->first + at - 1) % q->capacity];
        if (before->ready <= item.ready)
            break;
        q->items[(q->first + at) % q->capacity] = *before;
    }
    q->items[(q->first + at) % q->capacity] = item;
    return true;
}


bool far_queue_take(far_queue *q, far_retired *item) {
    if (q->count == 0)
        return false;
    *item = q->items[q->first];
    q->first = (q->first + 1) % q->capacity;
    q->count--;
    return true;
}


bool far_gives_add(far_gives *gives, const far_class *class, far_addr addr) {
    if (gives->count == gives->capacity && !grow((void **)&gives->items, &gives->capacity, sizeof(far_give)))
        return false;
    gives->items[gives->count++] = (far_give){addr, class->uid, class->uid != 0 && class->index == NULL};
    return true;
}


bool far_is_marked(far_memory *m, far_addr addr) {
    far_quarantine *q = m->session->pool->quarantine;
    far_block_id id;
    if (atomic_load_explicit(&q->blocks, memory_order_acquire) == 0 || !far_block_of(geometry(m), addr, &id))
        return false;
    uint64_t n = far_block_number(geometry(m), id);
    return atomic_load_explicit(&q->marked[n / 64], memory_order_acquire) >> n % 64 & 1;
}


uint64_t far_class_footprint(const far_memory *m, const far_class *class) {
    const far_geometry *g = geometry(m);
    return far_size_is_run(g, class->size) ? far_run_blocks(g, class->size) * g->block_bytes : class->size;
}


/* The slab of ours that the object is counted in; NULL: it lies in the block of another, or belongs to an index that
 * was dropped, and its pages are used anew. */
static far_slab *counted_in(far_memory *m, const far_class *class, far_addr addr) {
    far_slab *slab = far_slab_of(m, addr);
    return slab != NULL && slab->class == class ? slab : NULL;
}


/* When this process has no memory for a list, the object is lost to it; a full sweep finds it again. */
void far_put_free(far_memory *m, far_class *class, far_entry entry) {
    far_addr addr = far_entry_addr(entry);
    bool marked = far_is_marked(m, addr);
    far_quarantine *q = m->session->pool->quarantine;
    if (marked && atomic_load_explicit(&q->phase, memory_order_acquire) == FAR_SWEEP_QUARANTINE) {
        far_gives_add(&m->pending, class, addr);
        return;
    }
    if (marked || far_size_is_run(geometry(m), class->size)) { /* runs are freed where verbs can be waited for */
        if (far_queue_put_sorted(&m->late, (far_retired){.addr = addr, .class = class, .ready = 1, .clean = true}))
            m->retired_bytes += far_class_footprint(m, class);
        return;
    }
    far_entries *list = &class->shelf[far_addr_node(addr)].free;
    if (list->count == list->capacity && !grow((void **)&list->items, &list->capacity, sizeof(far_entry)))
        return;
    list->items[list->count++] = entry;
    m->free_bytes += class->size;
    m->trim = 4;
    far_slab *slab = counted_in(m, class, addr);
    if (slab != NULL)
        slab->free++;
    else
        m->foreign_bytes += class->size;
}


static void forget_free(far_memory *m, far_class *class, far_entries *list, size_t at) {
    far_slab *slab = counted_in(m, class, far_entry_addr(list->items[at]));
    if (slab != NULL)
        slab->free--;
    else
        m->foreign_bytes -= class->size;
    m->free_bytes -= class->size;
    list->items[at] = list->items[--list->count];
}


bool far_take_free(far_memory *m, far_class *class, unsigned node, far_entry *entry) {
    far_entries *list = &class->shelf[node].free;
    if (list->count == 0)
        return false;
    *entry = list->items[list->count - 1];
    forget_free(m, class, list, list->count - 1);
    return true;
}


/* Blocks. */

static far_held **bucket_of(far_memory *m, far_block_id id) {
    return &m->buckets[(id.index + id.node * 37) % FAR_HELD_BUCKETS];
}


far_held *far_held_find(far_memory *m, far_block_id id) {
    for (far_held *b = *bucket_of(m, id); b != NULL; b = b->chain)
        if (b->id.node == id.node && b->id.index == id.index)
            return b;
    return NULL;
}


bool far_some_are_away(const far_memory *m) {
    const far_held *b = m->blocks;
    while (b != NULL && !b->away)
        b = b->next;
    return b != NULL;
}


far_held *far_held_add(far_memory *m, far_block_id id, bool used) {
    far_held *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return NULL;
    b->id = id;
    b->used = used;
    b->free_pages = UINT64_MAX;
    b->next = m->blocks;
    m->blocks = b;
    far_held **bucket = bucket_of(m, id);
    b->chain = *bucket;
    *bucket = b;
    return b;
}


void far_held_remove(far_memory *m, far_held *block) {
    far_held_unload(m, block);
    far_held **at = &m->blocks;
    while (*at != block)
        at = &(*at)->next;
    *at = block->next;
    at = bucket_of(m, block->id);
    while (*at != block)
        at = &(*at)->chain;
    *at = block->chain;
    free(block);
}


static uint64_t page_mask(unsigned page, unsigned pages) {
    return (pages == 64 ? UINT64_MAX : ((1ull << pages) - 1)) << page;
}


far_slab *far_slab_of(far_memory *m, far_addr addr) {
    far_block_id id;
    if (!far_block_of(geometry(m), addr, &id))
        return NULL;
    far_held *b = far_held_find(m, id);
    return b == NULL ? NULL : b->slab[far_block_inner(geometry(m), addr) / geometry(m)->page_bytes];
}


/* A slab all of whose objects are still to be handed out. */
far_slab *far_slab_add(far_memory *m, far_held *block, unsigned page, unsigned pages, far_class *class) {
    far_slab *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return NULL;
    s->block = block;
    s->class = class;
    s->page = (uint8_t)page;
    s->pages = (uint8_t)pages;
    s->objects = (uint32_t)(pages * geometry(m)->page_bytes / class->size);
    far_shelf *shelf = &class->shelf[block->id.node];
    s->next = shelf->slabs;
    shelf->slabs = s;
    for (unsigned p = page; p < page + pages; p++)
        block->slab[p] = s;
    block->free_pages &= ~page_mask(page, pages);
    m->free_bytes += s->objects * class->size;
    return s;
}


void far_slab_remove(far_memory *m, far_slab *slab) {
    far_class *class = slab->class;
    far_held *block = slab->block;
    far_shelf *shelf = &class->shelf[block->id.node];
    for (size_t i = shelf->free.count; slab->free > 0 && i-- > 0;)
        if (far_slab_of(m, far_entry_addr(shelf->free.items[i])) == slab)
            forget_free(m, class, &shelf->free, i);
    m->free_bytes -= (slab->objects - slab->carved) * class->size;
    far_slab **at = &shelf->slabs;
    while (*at != slab)
        at = &(*at)->next;
    *at = slab->next;
    if (shelf->carving == slab)
        shelf->carving = NULL;
    for (unsigned p = slab->page; p < slab->page + slab->pages; p++)
        block->slab[p] = NULL;
    free(slab);
}


void far_held_unload(far_memory *m, far_held *block) {
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        if (block->slab[p] != NULL)
            far_slab_remove(m, block->slab[p]);
    block->free_pages = 0;
}


void far_held_collect(far_memory *m, far_held *block, far_gives *gives) {
    const far_geometry *g = geometry(m);
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
        far_slab *slab = block->slab[p];
        if (slab == NULL)
            continue;
        far_addr base = far_block_base(g, block->id) + slab->page * g->page_bytes;
        for (uint32_t i = slab->carved; i < slab->objects; i++)
            far_gives_add(gives, slab->class, base + i * slab->class->size);
        far_entries *list = &slab->class->shelf[block->id.node].free;
        for (size_t i = 0; i < list->count && slab->free > 0; i++)
            if (far_slab_of(m, far_entry_addr(list->items[i])) == slab)
                far_gives_add(gives, slab->class, far_entry_addr(list->items[i]));
        p += slab->pages - 1u;
    }
    far_held_unload(m, block);
}


void far_foreign_collect(far_memory *m, bool marked_only, far_gives *gives) {
    for (unsigned b = 0; b < FAR_CLASS_BUCKETS; b++)
        for (far_class *c = m->classes[b]; c != NULL; c = c->next)
            for (unsigned n = 0; n < geometry(m)->nodes; n++) {
                far_entries *list = &c->shelf[n].free;
                for (size_t i = list->count; i-- > 0;) {
                    far_addr addr = far_entry_addr(list->items[i]);
                    if (counted_in(m, c, addr) != NULL || (marked_only && !far_is_marked(m, addr)))
                        continue;
                    far_gives_add(gives, c, addr);
                    forget_free(m, c, list, i);
                }
            }
}


/* A class that this session has not allocated from yet: its index may be open here all the same. (One that is closed
 * leaves the list before all classes are made to forget it.) */
static void find_index(far_memory *m, far_class *class) {
    far_pool *pool = m->session->pool;
    if (class->uid == 0 || class->index != NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    far_index *index = pool->indexes;
    while (index != NULL && index->uid != class->uid)
        index = index->next;
    pthread_mutex_unlock(&pool->lock);
    if (index == NULL || class->type >= index->kind->type_count)
        return;
    class->info = &index->kind->types[class->type];
    class->index = index;
}


bool far_held_load(far_memory *m, far_held *block, const uint64_t pages[FAR_BLOCK_PAGES]) {
    block->free_pages = UINT64_MAX;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
        if (pages[p] == 0)
            continue;
        far_page_state s = far_page_unpack(pages[p]);
        far_class *class = far_class_get(m, s.uid, s.type, s.size, s.stable);
        far_slab *slab = class == NULL ? NULL : far_slab_add(m, block, p, s.pages, class);
        if (slab == NULL) {
            far_held_unload(m, block);
            return false;
        }
        find_index(m, class);
        m->free_bytes -= slab->objects * class->size;
        slab->carved = slab->objects;
        far_entries *list = &class->shelf[block->id.node].free; /* we may hold some of it already */
        for (size_t i = 0; i < list->count; i++)
            if (far_slab_of(m, far_entry_addr(list->items[i])) == slab) {
                slab->free++;
                m->foreign_bytes -= class->size;
            }
        p += s.pages - 1;
    }
    m->trim = 4;
    return true;
}


/* Opening and the end; one task at a time. */

static far_quarantine *quarantine_new(far_pool *pool) {
    far_quarantine *q = calloc(1, sizeof(*q));
    if (q == NULL)
        return NULL;
    q->in_vain = UINT64_MAX; /* they were never asked */
    q->marked = calloc(far_block_total(&pool->geometry) / 64 + 1, sizeof(*q->marked));
    if (q->marked == NULL) {
        free(q);
        return NULL;
    }
    pthread_mutex_init(&q->lock, NULL);
    for (unsigned n = 0; n < pool->geometry.nodes; n++)
        q->pool_bytes += pool->geometry.node[n].blocks * pool->geometry.block_bytes;
    return q;
}


int far_memory_open(far_session *session) {
    far_pool *pool = session->pool;
    far_memory *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return FAR_ERR_NO_MEMORY;
    pthread_mutex_lock(&pool->lock);
    if (pool->quarantine == NULL)
        pool->quarantine = quarantine_new(pool);
    far_quarantine *q = pool->quarantine;
    pthread_mutex_unlock(&pool->lock);
    m->full = calloc(pool->geometry.nodes, sizeof(*m->full));
    if (q == NULL || m->full == NULL) {
        free(m->full);
        free(m);
        return FAR_ERR_NO_MEMORY;
    }
    m->session = session;
    m->turn = session->id % pool->geometry.nodes;
    m->shortage = atomic_load_explicit(&q->shortage, memory_order_relaxed);
    pthread_mutex_init(&m->lock, NULL);
    session->memory = m;
    pthread_mutex_lock(&q->lock);
    m->next = q->memories;
    q->memories = m;
    pthread_mutex_unlock(&q->lock);
    return 0;
}


/* Local memory only; what the session still holds is left to the sweep. */
void far_memory_free(far_session *session) {
    far_memory *m = session->memory;
    if (m == NULL)
        return;
    far_quarantine *q = session->pool->quarantine;
    pthread_mutex_lock(&q->lock);
    far_memory **at = &q->memories;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    pthread_mutex_unlock(&q->lock);

    while (m->blocks != NULL)
        far_held_remove(m, m->blocks);
    for (unsigned i = 0; i < FAR_CLASS_BUCKETS; i++)
        while (m->classes[i] != NULL) {
            far_class *c = m->classes[i];
            m->classes[i] = c->next;
            for (unsigned n = 0; n < geometry(m)->nodes; n++)
                free(c->shelf[n].free.items);
            free(c);
        }
    free(m->retired.items);
    free(m->late.items);
    free(m->pending.items);
    free(m->kept);
    free(m->tables);
    free(m->reserves);
    free(m->drops);
    free(m->full);
    pthread_mutex_destroy(&m->lock);
    free(m);
    session->memory = NULL;
}


void far_quarantine_free(far_pool *pool) {
    far_quarantine *q = pool->quarantine;
    if (q == NULL)
        return;
    pthread_mutex_destroy(&q->lock);
    free(q->marked);
    free(q);
    pool->quarantine = NULL;
}


void far_memory_forget(far_task *t, far_block_id id) {
    far_memory *m = t->session->memory;
    if (m == NULL)
        return;
    pthread_mutex_lock(&m->lock);
    far_held *b = far_held_find(m, id);
    if (b != NULL)
        far_held_remove(m, b);
    pthread_mutex_unlock(&m->lock);
}


far_memory *far_memory_of(const far_task *t) {
    return t->session->memory;
}


struct far_memory_waiter {
    far_task *task;
    struct far_memory_waiter *next;
};


static void set_inside(far_memory *m, far_task *t) {
    pthread_mutex_lock(&m->lock);
    m->inside = t;
    pthread_mutex_unlock(&m->lock);
}


void far_memory_enter(far_task *t) {
    far_memory *m = far_memory_of(t);
    struct far_memory_waiter self = {t, NULL};
    while (m->inside != NULL) {
        struct far_memory_waiter **at = &m->waiting;
        while (*at != NULL && *at != &self)
            at = &(*at)->next;
        *at = &self;
        far_task_block(t);
        for (at = &m->waiting; *at != NULL; at = &(*at)->next)
            if (*at == &self) {
                *at = self.next;
                break;
            }
        self.next = NULL;
    }
    set_inside(m, t);
}


void far_memory_leave(far_task *t) {
    far_memory *m = far_memory_of(t);
    set_inside(m, NULL);
    if (m->waiting != NULL)
        far_task_wake(m->waiting->task);
}


/* An index of this handle is gone: its objects are from now on known by their uid only. */
void far_memory_index_closed(far_pool *pool, far_index *index) {
    far_quarantine *q = pool->quarantine;
    if (q == NULL)
        return;
    pthread_mutex_lock(&q->lock);
    for (far_memory *m = q->memories; m != NULL; m = m->next) {
        pthread_mutex_lock(&m->lock);
        for (unsigned i = 0; i < FAR_CLASS_BUCKETS; i++)
            for (far_class *c = m->classes[i]; c != NULL; c = c->next)
                if (c->index == index && c->uid != 0)
                    c->index = NULL;
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&q->lock);
}
