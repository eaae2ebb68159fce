/* What a handle holds, seen locally: classes, blocks, slabs, lists. No verbs here. */
#include "pool/store.h"
#include "base/error.h"
#include "base/grow.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAGAZINE_BYTES 2048 /* taken from the store at once */

const far_type far_pool_type = {.name = "pool", .align = 64};


static const far_geometry *geometry(const far_store *s) {
    return &s->pool->geometry;
}


bool far_items_enlarge(far_items *list) {
    uint32_t more = list->capacity == 0 ? 16 : 2 * list->capacity;
    uint64_t *bigger = realloc(list->items, more * sizeof(*bigger));
    if (!bigger)
        return false;
    list->items = bigger;
    list->capacity = more;
    return true;
}


/* ---- Classes ---- */

static unsigned bucket_of(uint32_t uid, unsigned type, uint64_t size) {
    return (unsigned)((uid * 31 + type * 7 + size / FAR_GRANULE) % FAR_BINS);
}


/* A class that is met for the first time, in an adopted block perhaps: its index may be open here. */
static void find_index(far_store *s, far_class *class) {
    if (class->uid == 0)
        return;
    pthread_mutex_lock(&s->pool->lock);
    far_index *index = s->pool->indexes;
    while (index && index->uid != class->uid)
        index = index->next;
    pthread_mutex_unlock(&s->pool->lock);
    if (!index || class->type >= index->kind->type_count)
        return;
    atomic_store_explicit(&class->info, &index->kind->types[class->type], memory_order_release);
    atomic_store_explicit(&class->index, index, memory_order_release);
}


far_class *far_class_get(far_store *s, uint32_t uid, unsigned type, uint64_t size, bool stable) {
    far_class **bucket = &s->classes[bucket_of(uid, type, size)];
    for (far_class *c = *bucket; c; c = c->next)
        if (c->uid == uid && c->type == type && c->size == size)
            return c;
    assert(size > 0 && size % FAR_GRANULE == 0);
    far_class *c = calloc(1, sizeof(*c) + geometry(s)->nodes * sizeof(far_shelf));
    if (!c)
        return NULL;
    c->uid = uid;
    c->type = type;
    c->size = size;
    c->stable = stable;
    c->is_run = far_size_is_run(geometry(s), size);
    uint64_t quantum = size >= MAGAZINE_BYTES ? 1 : MAGAZINE_BYTES / size;
    c->quantum = quantum < FAR_MAGAZINE_OBJECTS ? (unsigned)quantum : FAR_MAGAZINE_OBJECTS;
    c->footprint = c->is_run ? far_run_blocks(geometry(s), size) * geometry(s)->block_bytes : size;
    atomic_init(&c->info, uid == 0 ? &far_pool_type : NULL);
    find_index(s, c);
    c->next = *bucket;
    *bucket = c;
    return c;
}


/* ---- Blocks and slabs ---- */

far_held *far_held_at(const far_store *s, far_addr addr) {
    far_block_id id;
    return far_block_of(geometry(s), addr, &id)
               ? atomic_load_explicit(&s->held[far_block_number(geometry(s), id)], memory_order_relaxed)
               : NULL;
}


static void link_block(far_store *s, far_held *b) {
    far_held **list = &s->blocks[b->free_pages == 0];
    b->next = *list;
    b->link = list;
    if (b->next)
        b->next->link = &b->next;
    *list = b;
}


static void unlink_block(far_held *b) {
    assert(*b->link == b);
    *b->link = b->next;
    if (b->next)
        b->next->link = b->link;
}


/* No page is free and a slab's. (Pages that are neither were left behind by a lost session.) */
static __attribute__((unused)) bool pages_are_sound(const far_held *b, uint64_t free_pages) {
    bool sound = true;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        sound &= !(b->slab[p] && (free_pages >> p & 1));
    return sound;
}


void far_held_pages(far_store *s, far_held *b, uint64_t free_pages) {
    assert(pages_are_sound(b, free_pages));
    bool moves = (b->free_pages == 0) != (free_pages == 0);
    b->free_pages = free_pages;
    if (moves) {
        unlink_block(b);
        link_block(s, b);
    }
}


far_held *far_held_next(const far_store *s, const far_held *b) {
    if (!b)
        return s->blocks[0] ? s->blocks[0] : s->blocks[1];
    return !b->next && b->free_pages != 0 ? s->blocks[1] : b->next;
}


far_held *far_held_add(far_store *s, far_block_id id, bool used, uint32_t stamp) {
    far_held *b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    b->id = id;
    b->used = used;
    b->stamp = stamp;
    b->free_pages = UINT64_MAX;
    assert(!far_held_at(s, far_block_base(geometry(s), id))); /* a block is held once */
    link_block(s, b);
    s->block_count++;
    atomic_store_explicit(&s->held[far_block_number(geometry(s), id)], b, memory_order_release);
    return b;
}


void far_held_remove(far_store *s, far_held *b) {
    for (far_slab *slab; (slab = far_slab_in(b, NULL));)
        far_slab_remove(s, slab);
    assert(far_held_at(s, far_block_base(geometry(s), b->id)) == b && s->block_count > 0);
    atomic_store_explicit(&s->held[far_block_number(geometry(s), b->id)], NULL, memory_order_release);
    unlink_block(b);
    s->block_count--;
    free(b);
}


far_addr far_slab_base(const far_store *s, const far_slab *slab) {
    return far_block_base(geometry(s), slab->block->id) + slab->page * geometry(s)->page_bytes;
}


far_slab *far_slab_at(const far_store *s, far_addr addr) {
    far_held *b = far_held_at(s, addr);
    return !b ? NULL : b->slab[far_block_inner(geometry(s), addr) >> __builtin_ctzll(geometry(s)->page_bytes)];
}


far_slab *far_slab_in(const far_held *b, const far_slab *previous) {
    unsigned page = previous ? previous->page + previous->pages : 0;
    while (page < FAR_BLOCK_PAGES && !b->slab[page])
        page++;
    return page < FAR_BLOCK_PAGES ? b->slab[page] : NULL;
}


far_slab *far_slab_next(const far_store *s, const far_slab *previous) {
    const far_held *b = previous ? previous->block : far_held_next(s, NULL);
    far_slab *slab = b ? far_slab_in(b, previous) : NULL;
    while (!slab && b && (b = far_held_next(s, b)))
        slab = far_slab_in(b, NULL);
    return slab;
}


/* Slabs with objects in store are listed. */
static void list_open(far_slab *slab) {
    far_shelf *shelf = &slab->class->shelf[slab->block->id.node];
    bool open = slab->stored > 0 || slab->carved < slab->objects;
    if (open == (slab->open_link != NULL))
        return;
    if (open) {
        slab->open_next = shelf->open;
        slab->open_link = &shelf->open;
        if (slab->open_next)
            slab->open_next->open_link = &slab->open_next;
        shelf->open = slab;
    } else {
        *slab->open_link = slab->open_next;
        if (slab->open_next)
            slab->open_next->open_link = slab->open_link;
        slab->open_link = NULL;
    }
}


/* A new slab: all of its objects are in store. */
far_slab *far_slab_add(far_store *s, far_held *block, unsigned page, unsigned pages, far_class *class) {
    uint32_t objects = (uint32_t)(pages * geometry(s)->page_bytes / class->size);
    size_t words = (objects + 63) / 64;
    assert(objects > 0 && page + pages <= FAR_BLOCK_PAGES);
    assert((~block->free_pages & far_page_mask(page, pages)) == 0);
    far_slab *slab = calloc(1, sizeof(*slab) + 2 * words * 8);
    if (!slab)
        return NULL;
    slab->block = block;
    slab->class = class;
    slab->page = (uint8_t)page;
    slab->pages = (uint8_t)pages;
    slab->objects = objects;
    slab->black = slab->in_store + words;
    far_shelf *shelf = &class->shelf[block->id.node];
    slab->next = shelf->slabs;
    slab->link = &shelf->slabs;
    if (slab->next)
        slab->next->link = &slab->next;
    shelf->slabs = slab;
    shelf->slab_count++;
    list_open(slab);
    for (unsigned p = page; p < page + pages; p++)
        block->slab[p] = slab;
    far_held_pages(s, block, block->free_pages & ~far_page_mask(page, pages));
    s->spare_bytes += objects * class->size;
    return slab;
}


void far_slab_remove(far_store *s, far_slab *slab) {
    far_shelf *shelf = &slab->class->shelf[slab->block->id.node];
    assert(shelf->slab_count > 0 && *slab->link == slab);
    assert(slab->stored <= slab->carved && slab->carved <= slab->objects);
    s->spare_bytes -= (slab->stored + (slab->objects - slab->carved)) * slab->class->size;
    slab->carved = slab->objects;
    slab->stored = 0;
    list_open(slab);
    *slab->link = slab->next;
    if (slab->next)
        slab->next->link = slab->link;
    shelf->slab_count--;
    for (unsigned p = slab->page; p < slab->page + slab->pages; p++)
        slab->block->slab[p] = NULL;
    free(slab);
}


/* Slabs as the page words say; nothing of them is in store yet. */
bool far_held_load(far_store *s, far_held *block, const uint64_t pages[FAR_BLOCK_PAGES]) {
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
        if (pages[p] == 0)
            continue;
        far_page_state page = far_page_unpack(pages[p]);
        far_class *class = far_class_get(s, page.uid, page.type, page.size, page.stable);
        far_slab *slab = !class ? NULL : far_slab_add(s, block, p, page.pages, class);
        if (!slab)
            return false;
        s->spare_bytes -= slab->objects * class->size;
        slab->carved = slab->objects;
        list_open(slab);
        p += page.pages - 1;
    }
    return true;
}


/* ---- Objects ---- */

/* The slab of ours that the object is counted in. NULL: it is foreign, or belongs to an index that was dropped, whose
 * pages are used anew. */
static far_slab *counted_in(const far_store *s, const far_class *class, far_addr addr) {
    far_slab *slab = class->is_run ? NULL : far_slab_at(s, addr);
    return slab && slab->class == class ? slab : NULL;
}


/* An object begins there, which has this number, and was cut: addresses that come back to the store were read from far
 * memory, perhaps damaged. */
static inline bool begins_object(const far_store *s, const far_slab *slab, far_addr addr, uint32_t *number) {
    uint64_t inner = addr - far_slab_base(s, slab);
    *number = (uint32_t)(inner / slab->class->size);
    return inner % slab->class->size == 0 && *number < slab->carved;
}


static inline bool is_handed_out(const far_store *s, const far_slab *slab, far_addr addr, uint32_t *number) {
    return begins_object(s, slab, addr, number) && (slab->in_store[*number / 64] >> *number % 64 & 1) == 0;
}


void far_store_blacken(far_store *s, far_addr addr) {
    uint32_t number;
    far_slab *slab = far_slab_at(s, addr);
    if (slab && begins_object(s, slab, addr, &number))
        slab->black[number / 64] |= 1ull << number % 64;
}


/* When this process has no memory for a list, the object is lost to it; a sweep finds it again. */
void far_store_send_home(far_store *s, far_class *class, far_addr addr) {
    far_leaving *leaving = far_grow(s->leaving, s->leaving_count, sizeof(*leaving));
    if (!leaving)
        return;
    s->leaving = leaving;
    s->leaving[s->leaving_count++] = (far_leaving){addr, class};
    s->leaving_bytes += class->footprint;
}


void far_store_withdraw(far_store *s, far_slab *slab, uint32_t number) {
    assert(slab->stored > 0 && slab->in_store[number / 64] >> number % 64 & 1);
    slab->in_store[number / 64] &= ~(1ull << number % 64);
    slab->stored--;
    s->spare_bytes -= slab->class->size;
    list_open(slab);
    s->freed_wrongly = (far_slab_base(s, slab) + number * slab->class->size) | 1;
}


static void put_own(far_store *s, far_slab *slab, uint32_t number) {
    uint64_t bit = 1ull << number % 64;
    assert(number < slab->carved && slab->stored < slab->carved && (slab->in_store[number / 64] & bit) == 0);
    slab->in_store[number / 64] |= bit;
    slab->stored++;
    slab->idle = 0;
    s->spare_bytes += slab->class->size;
    list_open(slab);
    if (far_slab_is_free(slab))
        atomic_store_explicit(&s->trim, true, memory_order_relaxed);
}


void far_store_put(far_store *s, far_class *class, far_addr addr, uint64_t pin) {
    uint32_t number = 0;
    far_slab *slab = counted_in(s, class, addr);
    if (slab && !is_handed_out(s, slab, addr, &number)) {
        s->freed_wrongly = addr | 1; /* an object has one holder: far memory is damaged, and the next check says so */
        return;
    }
    if (slab) {
        put_own(s, slab, number);
        return;
    }
    if (far_is_own(s, addr)) /* the block is ours, the slab is another: the index of the object was dropped */
        return;
    if (class->is_run || s->walk || pin <= s->heard_epoch) {
        far_store_send_home(s, class, addr);
        return;
    }
    if (far_items_add(&class->shelf[far_addr_node(addr)].foreign, addr))
        s->foreign_bytes += class->size;
}


void far_magazine_put(far_memory *m, far_class *class, far_addr addr, uint64_t pin) {
    far_store *s = m->store;
    uint32_t number = 0;
    far_bin *bin = class->is_run ? NULL : far_bin_of(m, class);
    far_items *magazine = !bin ? NULL : &bin->magazine[far_addr_node(addr)];
    far_slab *slab = counted_in(s, class, addr);
    bool may =
        slab ? is_handed_out(s, slab, addr, &number) : !(far_is_own(s, addr) || s->walk || pin <= s->heard_epoch);
    if (!magazine || magazine->count >= 2 * class->quantum || !may || !far_items_add(magazine, addr)) {
        far_store_put(s, class, addr, pin);
        return;
    }
    assert(magazine->count <= 2 * FAR_MAGAZINE_OBJECTS);
    m->magazine_bytes += class->size;
    if (slab && far_is_unsettled(s))
        slab->black[number / 64] |= 1ull << number % 64;
}


static unsigned take_foreign(far_store *s, far_class *class, unsigned node, unsigned wanted, uint64_t items[]) {
    far_items *list = &class->shelf[node].foreign;
    unsigned taken = 0;
    while (taken < wanted && list->count > 0) {
        items[taken++] = list->items[--list->count];
        assert(s->foreign_bytes >= class->size);
        s->foreign_bytes -= class->size;
    }
    return taken;
}


static uint32_t take_stored(far_slab *slab) {
    uint32_t word = 0;
    while (slab->in_store[word] == 0) {
        word++;
        assert(word < (slab->objects + 63) / 64); /* `stored` counts the bits */
    }
    uint32_t number = word * 64 + (uint32_t)__builtin_ctzll(slab->in_store[word]);
    slab->in_store[word] &= slab->in_store[word] - 1;
    slab->stored--;
    return number;
}


static unsigned take_own(far_store *s, far_slab *slab, unsigned wanted, uint64_t items[]) {
    const uint64_t base = far_slab_base(s, slab), size = slab->class->size;
    const uint64_t flags = FAR_ITEM_ZERO | (slab->block->used ? 0 : FAR_ITEM_FRESH);
    unsigned taken = 0;
    while (taken < wanted && slab->stored > 0)
        items[taken++] = base + take_stored(slab) * size;
    while (taken < wanted && slab->carved < slab->objects)
        items[taken++] = (base + slab->carved++ * size) | flags;
    assert(taken > 0 && s->spare_bytes >= taken * size);
    s->spare_bytes -= taken * size;
    slab->idle = 0;
    for (unsigned i = 0; i < taken && far_is_unsettled(s); i++)
        far_store_blacken(s, far_item_addr(items[i]));
    return taken;
}


unsigned far_store_take(far_store *s, far_class *class, unsigned node, unsigned wanted, bool own_only,
                        uint64_t items[]) {
    unsigned taken = own_only ? 0 : take_foreign(s, class, node, wanted, items);
    while (taken < wanted && class->shelf[node].open) {
        far_slab *slab = class->shelf[node].open;
        taken += take_own(s, slab, wanted - taken, items + taken);
        list_open(slab);
    }
    return taken;
}


/* ---- Sessions ---- */

far_bin *far_bin_of(far_memory *m, far_class *class) {
    far_bin **bucket = &m->bins[bucket_of(class->uid, class->type, class->size)];
    for (far_bin *b = *bucket; b; b = b->next)
        if (b->class == class)
            return b;
    far_bin *b = calloc(1, sizeof(*b) + geometry(m->store)->nodes * sizeof(far_items));
    if (!b)
        return NULL;
    b->class = class;
    b->next = *bucket;
    *bucket = b;
    return b;
}


static far_bin *find_bin(far_memory *m, far_index *index, unsigned type, uint64_t size) {
    if (index && type >= index->kind->type_count)
        return NULL;
    const far_type *info = index ? &index->kind->types[type] : &far_pool_type;
    uint64_t rounded = far_size_class(size, info->align);
    uint32_t uid = index ? index->uid : 0;
    if (rounded == 0 || type > 0x3f)
        return NULL;
    for (far_bin *b = m->bins[bucket_of(uid, type, rounded)]; b; b = b->next)
        if (b->class->uid == uid && b->class->type == type && b->class->size == rounded &&
            far_class_index(b->class) == index)
            return b;
    far_store *s = m->store;
    pthread_mutex_lock(&s->lock);
    far_class *class = far_class_get(s, uid, type, rounded, info->stable);
    if (class) {
        atomic_store_explicit(&class->info, info, memory_order_release);
        atomic_store_explicit(&class->index, index, memory_order_release);
    }
    pthread_mutex_unlock(&s->lock);
    return !class ? NULL : far_bin_of(m, class);
}


far_bin *far_bin_remember(far_memory *m, far_index *index, unsigned type, uint64_t size) {
    far_recent *r = far_recent_of(m, type, size);
    *r = (far_recent){index, size, type, find_bin(m, index, type, size)};
    return r->bin;
}


/* The oldest object in the first magazine that has any is the one that is held back: it is handed out last there. */
static void visit_bin(far_store *s, far_memory *m, far_bin *b, const far_visit *v) {
    bool holds_back = v->held_back && far_class_is_swapped(b->class) && far_class_index(b->class);
    for (unsigned n = 0; n < geometry(s)->nodes; n++) {
        far_items *list = &b->magazine[n];
        bool last_too = holds_back && list->count > 0;
        for (uint32_t at = list->count; at-- > 0;) {
            bool (*stays)(far_store *, far_class *, uint64_t, void *) =
                last_too && at == 0 ? v->held_back : v->in_magazine;
            if (stays && !stays(s, b->class, list->items[at], v->ctx)) {
                assert(m->magazine_bytes >= b->class->size);
                list->items[at] = list->items[--list->count];
                m->magazine_bytes -= b->class->size;
            }
        }
        holds_back = holds_back && !last_too;
    }
}


void far_memory_visit(far_store *s, far_memory *m, const far_visit *v) {
    for (unsigned i = 0; (v->in_magazine || v->held_back) && i < FAR_BINS; i++)
        for (far_bin *b = m->bins[i]; b; b = b->next)
            visit_bin(s, m, b, v);
    for (unsigned i = 0; v->retired && i < FAR_QUEUES_MAX; i++) {
        far_queue *q = &m->queues[i];
        size_t kept = 0;
        for (size_t at = 0; at < q->count; at++) {
            far_retired item = q->items[(q->first + at) & (q->capacity - 1)];
            if (v->retired(s, &item, v->ctx))
                q->items[(q->first + kept++) & (q->capacity - 1)] = item;
            else
                m->retired_bytes -= item.class->footprint;
        }
        q->count = kept;
    }
    for (uint32_t i = 0; v->kept && i < m->kept_count; i++)
        v->kept(s, &m->kept[i], v->ctx);
}


void far_store_visit(far_store *s, const far_visit *visit) {
    pthread_mutex_lock(&s->list);
    pthread_mutex_lock(&s->lock);
    bool begun = !visit->begin || visit->begin(s, visit->ctx);
    pthread_mutex_unlock(&s->lock);
    for (far_memory *m = begun ? s->memories : NULL; m; m = m->next) {
        far_mutex_lock(&m->lock);
        pthread_mutex_lock(&s->lock);
        far_memory_visit(s, m, visit);
        pthread_mutex_unlock(&s->lock);
        far_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&s->list);
}


void far_shelves_leave(far_store *s) {
    for (unsigned i = 0; s->foreign_bytes > 0 && i < FAR_BINS; i++)
        for (far_class *c = s->classes[i]; c; c = c->next)
            for (unsigned n = 0; n < geometry(s)->nodes; n++)
                while (c->shelf[n].foreign.count > 0) {
                    far_store_send_home(s, c, c->shelf[n].foreign.items[--c->shelf[n].foreign.count]);
                    s->foreign_bytes -= c->size;
                }
    assert(s->foreign_bytes == 0);
}


bool far_item_to_store(far_store *s, far_class *class, uint64_t item, void *ctx) {
    (void)ctx;
    far_store_put(s, class, far_item_addr(item), UINT64_MAX);
    return false;
}


void far_magazines_empty(far_store *s) {
    far_store_visit(s, &(far_visit){.in_magazine = far_item_to_store});
}


static bool hold_back(far_store *s, far_class *class, uint64_t item, void *ctx) {
    return class != ctx || far_item_to_store(s, class, item, NULL);
}


void far_magazines_trim(far_store *s, far_class *all) {
    far_store_visit(s, &(far_visit){.in_magazine = far_item_to_store, .held_back = hold_back, .ctx = all});
}


/* An index of this handle is gone: its objects are from now on known by their uid only. */
void far_memory_index_closed(far_pool *pool, far_index *index) {
    far_store *s = pool->store;
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < FAR_BINS; i++)
        for (far_class *c = s->classes[i]; c; c = c->next)
            if (c->uid != 0 && far_class_index(c) == index)
                atomic_store_explicit(&c->index, NULL, memory_order_release);
    pthread_mutex_unlock(&s->lock);
}
