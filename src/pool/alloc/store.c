/* The local structures of the store (store.h): classes, own blocks and their slabs, free objects, bins and magazines of
 * sessions. No function here executes verbs; each runs under the locks that store.h names. */
#include "pool/alloc/store.h"
#include "base/error.h"
#include "base/pages.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAGAZINE_BYTES 2048        /* bytes that a magazine takes from the store at once */
#define RETURNS_BYTES  (16u << 10) /* bytes of the list of pending returns before it is enlarged */

const far_type far_pool_type = {.name = "pool", .align = 64};


static const far_geometry *store_geometry(const far_store *s) {
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

static unsigned class_bucket(uint32_t uid, unsigned type, uint64_t size) {
    return (unsigned)((uid * 31 + type * 7 + size / FAR_GRANULE) % FAR_BINS);
}


/* Sets the index of a class that was just created. The class may come from the page words of an adopted block, and its
 * index may be open in this handle. */
static void find_open_index(far_store *s, far_class *class) {
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
    far_class **bucket = &s->lists.classes[class_bucket(uid, type, size)];
    for (far_class *c = *bucket; c; c = c->next)
        if (c->uid == uid && c->type == type && c->size == size)
            return c;
    assert(size > 0 && size % FAR_GRANULE == 0);
    far_class *c = calloc(1, sizeof(*c) + store_geometry(s)->nodes * sizeof(far_class_on_node));
    if (!c)
        return NULL;
    c->uid = uid;
    c->type = type;
    c->size = size;
    c->stable = stable;
    uint64_t quantum = size >= MAGAZINE_BYTES ? 1 : MAGAZINE_BYTES / size;
    c->quantum = quantum < FAR_MAGAZINE_OBJECTS ? (unsigned)quantum : FAR_MAGAZINE_OBJECTS;
    atomic_init(&c->info, uid == 0 ? &far_pool_type : NULL);
    find_open_index(s, c);
    c->next = *bucket;
    *bucket = c;
    return c;
}


static void free_classes(far_store *s) {
    for (unsigned i = 0; i < FAR_BINS; i++)
        while (s->lists.classes[i]) {
            far_class *c = s->lists.classes[i];
            s->lists.classes[i] = c->next;
            for (unsigned n = 0; n < store_geometry(s)->nodes; n++)
                free(c->on_node[n].remote.items);
            free(c);
        }
}


bool far_free_lists_open(far_store *s) {
    s->lists.owned_blocks = calloc(far_block_total(store_geometry(s)), sizeof(*s->lists.owned_blocks));
    return s->lists.owned_blocks != NULL;
}


void far_free_lists_free(far_store *s) {
    for (far_owned_block *b; (b = far_owned_block_next(s, NULL));)
        far_owned_block_remove(s, b);
    free_classes(s);
    far_pages_free(s->lists.returns, s->lists.return_capacity * sizeof(*s->lists.returns));
    free(s->lists.owned_blocks);
}


/* ---- Blocks and slabs ---- */

far_owned_block *far_owned_block_at(const far_store *s, far_addr addr) {
    far_block_id id;
    return far_block_of(store_geometry(s), addr, &id)
               ? atomic_load_explicit(&s->lists.owned_blocks[far_block_number(store_geometry(s), id)],
                                      memory_order_relaxed)
               : NULL;
}


static void link_block(far_store *s, far_owned_block *b) {
    far_owned_block **list = &s->lists.blocks[b->free_pages == 0];
    b->next = *list;
    b->link = list;
    if (b->next)
        b->next->link = &b->next;
    *list = b;
}


static void unlink_block(far_owned_block *b) {
    assert(*b->link == b);
    *b->link = b->next;
    if (b->next)
        b->next->link = b->link;
}


/* Returns whether no free page belongs to a slab. A page can be neither free nor in a slab after a failed WRITE of its
 * page word (slabs.c). */
static __attribute__((unused)) bool free_pages_have_no_slab(const far_owned_block *b, uint64_t free_pages) {
    bool sound = true;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        sound &= !(b->slab[p] && (free_pages >> p & 1));
    return sound;
}


void far_owned_block_set_free_pages(far_store *s, far_owned_block *b, uint64_t free_pages) {
    assert(free_pages_have_no_slab(b, free_pages));
    bool moves = (b->free_pages == 0) != (free_pages == 0);
    far_headroom_count_pages(s, b->id.node, b->free_pages, free_pages);
    b->free_pages = free_pages;
    if (moves) {
        unlink_block(b);
        link_block(s, b);
    }
}


far_owned_block *far_owned_block_next(const far_store *s, const far_owned_block *b) {
    if (!b)
        return s->lists.blocks[0] ? s->lists.blocks[0] : s->lists.blocks[1];
    return !b->next && b->free_pages != 0 ? s->lists.blocks[1] : b->next;
}


far_owned_block *far_owned_block_add(far_store *s, far_block_id id, bool used, uint32_t stamp) {
    far_owned_block *b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    b->id = id;
    b->used = used;
    b->stamp = stamp;
    b->free_pages = UINT64_MAX;
    assert(!far_owned_block_at(s, far_block_base(store_geometry(s), id))); /* no block is owned twice */
    link_block(s, b);
    s->lists.block_count++;
    far_headroom_count_pages(s, id.node, 0, UINT64_MAX);
    atomic_store_explicit(&s->lists.owned_blocks[far_block_number(store_geometry(s), id)], b, memory_order_release);
    return b;
}


void far_owned_block_remove(far_store *s, far_owned_block *b) {
    for (far_slab *slab; (slab = far_slab_in(b, NULL));)
        far_slab_remove(s, slab);
    assert(far_owned_block_at(s, far_block_base(store_geometry(s), b->id)) == b && s->lists.block_count > 0);
    atomic_store_explicit(&s->lists.owned_blocks[far_block_number(store_geometry(s), b->id)], NULL,
                          memory_order_release);
    unlink_block(b);
    s->lists.block_count--;
    far_headroom_count_pages(s, b->id.node, b->free_pages, 0);
    free(b);
}


far_addr far_slab_base(const far_store *s, const far_slab *slab) {
    return far_block_base(store_geometry(s), slab->block->id) + slab->page * store_geometry(s)->page_bytes;
}


far_slab *far_slab_at(const far_store *s, far_addr addr) {
    far_owned_block *b = far_owned_block_at(s, addr);
    return !b ? NULL
              : b->slab[far_block_offset(store_geometry(s), addr) >> __builtin_ctzll(store_geometry(s)->page_bytes)];
}


far_slab *far_slab_in(const far_owned_block *b, const far_slab *previous) {
    unsigned page = previous ? previous->page + previous->pages : 0;
    while (page < FAR_BLOCK_PAGES && !b->slab[page])
        page++;
    return page < FAR_BLOCK_PAGES ? b->slab[page] : NULL;
}


far_slab *far_slab_next(const far_store *s, const far_slab *previous) {
    const far_owned_block *b = previous ? previous->block : far_owned_block_next(s, NULL);
    far_slab *slab = b ? far_slab_in(b, previous) : NULL;
    while (!slab && b && (b = far_owned_block_next(s, b)))
        slab = far_slab_in(b, NULL);
    return slab;
}


/* Counts `objects` more objects of the slab as in the store. */
static void count_stored(far_store *s, far_slab *slab, uint64_t objects) {
    s->lists.store_bytes += objects * slab->class->size;
    slab->class->on_node[slab->block->id.node].stored += objects;
}


static void count_not_stored(far_store *s, far_slab *slab, uint64_t objects) {
    far_class_on_node *shelf = &slab->class->on_node[slab->block->id.node];
    assert(s->lists.store_bytes >= objects * slab->class->size && shelf->stored >= objects);
    s->lists.store_bytes -= objects * slab->class->size;
    shelf->stored -= objects;
}


/* Adds the slab to the list of slabs with objects in the store, or removes it, as its counts demand. */
static void update_open_list(far_slab *slab) {
    far_class_on_node *shelf = &slab->class->on_node[slab->block->id.node];
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


far_slab *far_slab_add(far_store *s, far_owned_block *block, unsigned page, unsigned pages, far_class *class) {
    uint32_t objects = (uint32_t)(pages * store_geometry(s)->page_bytes / class->size);
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
    far_class_on_node *shelf = &class->on_node[block->id.node];
    slab->next = shelf->slabs;
    slab->link = &shelf->slabs;
    if (slab->next)
        slab->next->link = &slab->next;
    shelf->slabs = slab;
    shelf->slab_count++;
    update_open_list(slab);
    for (unsigned p = page; p < page + pages; p++)
        block->slab[p] = slab;
    far_owned_block_set_free_pages(s, block, block->free_pages & ~far_page_mask(page, pages));
    count_stored(s, slab, objects);
    /* An adopted block may contain slabs of a dropped index, and an operation that was running when the index was dropped
     * may cut a new one. The next tick then compares the slabs with the catalog again (pool/gc/dropped.c). */
    s->lists.gone_slabs += far_class_index_is_gone(class);
    return slab;
}


void far_slab_remove(far_store *s, far_slab *slab) {
    far_class_on_node *shelf = &slab->class->on_node[slab->block->id.node];
    assert(shelf->slab_count > 0 && *slab->link == slab);
    assert(slab->stored <= slab->carved && slab->carved <= slab->objects);
    count_not_stored(s, slab, slab->stored + (slab->objects - slab->carved));
    slab->carved = slab->objects;
    slab->stored = 0;
    update_open_list(slab);
    *slab->link = slab->next;
    if (slab->next)
        slab->next->link = slab->link;
    shelf->slab_count--;
    for (unsigned p = slab->page; p < slab->page + slab->pages; p++)
        slab->block->slab[p] = NULL;
    free(slab);
}


bool far_owned_block_load_slabs(far_store *s, far_owned_block *block, const uint64_t pages[FAR_BLOCK_PAGES]) {
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
        if (pages[p] == 0)
            continue;
        far_page_state page = far_page_unpack(pages[p]);
        far_class *class = far_class_get(s, page.uid, page.type, page.size, page.stable);
        far_slab *slab = !class ? NULL : far_slab_add(s, block, p, page.pages, class);
        if (!slab)
            return false;
        count_not_stored(s, slab, slab->objects);
        slab->carved = slab->objects;
        update_open_list(slab);
        p += page.pages - 1;
    }
    return true;
}


/* ---- Objects ---- */

/* Returns the own slab in which the object is counted. Returns NULL if the object is remote, or if its index
 * was dropped and its pages belong to a slab of another class now. */
static far_slab *find_counting_slab(const far_store *s, const far_class *class, far_addr addr) {
    far_slab *slab = far_slab_at(s, addr);
    return slab && slab->class == class ? slab : NULL;
}


/* Returns whether an object that was already carved begins at this address, and its number. The check is needed because
 * an index reads the addresses that it frees from far memory, which may be damaged. */
static inline bool find_object_number(const far_store *s, const far_slab *slab, far_addr addr, uint32_t *number) {
    uint64_t inner = addr - far_slab_base(s, slab);
    *number = (uint32_t)(inner / slab->class->size);
    return inner % slab->class->size == 0 && *number < slab->carved;
}


static inline bool find_handed_out_object(const far_store *s, const far_slab *slab, far_addr addr, uint32_t *number) {
    return find_object_number(s, slab, addr, number) && (slab->in_store[*number / 64] >> *number % 64 & 1) == 0;
}


void far_store_set_black(far_store *s, far_addr addr) {
    uint32_t number;
    far_slab *slab = far_slab_at(s, addr);
    if (slab && find_object_number(s, slab, addr, &number))
        slab->black[number / 64] |= 1ull << number % 64;
}


static bool enlarge_returns(far_store *s) {
    const size_t bytes = s->lists.return_capacity * sizeof(*s->lists.returns);
    void *larger =
        s->lists.returns ? far_pages_enlarge(s->lists.returns, bytes, 2 * bytes) : far_pages_alloc(RETURNS_BYTES);
    if (!larger)
        return false;
    s->lists.returns = larger;
    s->lists.return_capacity = bytes ? 2 * s->lists.return_capacity : RETURNS_BYTES / sizeof(*s->lists.returns);
    return true;
}


/* If there is no local memory for the list, the object leaks; a later collection frees it. */
void far_store_queue_return(far_store *s, far_class *class, far_addr addr) {
    if (s->lists.return_count == s->lists.return_capacity && !enlarge_returns(s))
        return;
    s->lists.returns[s->lists.return_count++] = (far_pending_return){addr, class};
    s->lists.return_bytes += class->size;
}


size_t far_returns_take(far_store *s, far_pending_return **objects, size_t *capacity) {
    size_t count = s->lists.return_count;
    *objects = s->lists.returns;
    *capacity = s->lists.return_capacity;
    s->lists.returns = NULL;
    s->lists.return_count = s->lists.return_capacity = 0;
    return count;
}


void far_returns_count_executed(far_store *s, uint64_t bytes) {
    assert(s->lists.return_bytes >= bytes);
    s->lists.return_bytes -= bytes;
}


void far_store_note_invalid_free(far_store *s, far_addr addr) {
    s->lists.invalid_free = addr | 1; /* the lowest bit is set so that the value is never 0 */
}


far_addr far_store_take_invalid_free(far_store *s) {
    far_addr addr = s->lists.invalid_free;
    s->lists.invalid_free = 0;
    return addr;
}


void far_store_note_free_slab(far_store *s) {
    atomic_store_explicit(&s->lists.trim_due, true, memory_order_relaxed);
}


bool far_store_take_trim_due(far_store *s) {
    return atomic_exchange_explicit(&s->lists.trim_due, false, memory_order_relaxed);
}


void far_store_withdraw(far_store *s, far_slab *slab, uint32_t number) {
    assert(slab->stored > 0 && slab->in_store[number / 64] >> number % 64 & 1);
    slab->in_store[number / 64] &= ~(1ull << number % 64);
    slab->stored--;
    count_not_stored(s, slab, 1);
    update_open_list(slab);
    far_store_note_invalid_free(s, far_slab_base(s, slab) + number * slab->class->size);
}


/* An object that enters the store during a collection becomes black. So the sweep phase withdraws a marked object from
 * the store only if the object was there during the whole collection. Other clients may have unlinked it after the walk
 * has marked it. */
static void add_own_object(far_store *s, far_slab *slab, uint32_t number) {
    uint64_t bit = 1ull << number % 64;
    if (far_sweep_is_pending(s))
        slab->black[number / 64] |= bit;
    assert(number < slab->carved && slab->stored < slab->carved && (slab->in_store[number / 64] & bit) == 0);
    slab->in_store[number / 64] |= bit;
    slab->stored++;
    slab->idle_ticks = 0;
    count_stored(s, slab, 1);
    update_open_list(slab);
    if (far_slab_is_free(slab))
        far_store_note_free_slab(s);
}


void far_store_add_free(far_store *s, far_class *class, far_addr addr, uint64_t pin) {
    uint32_t number = 0;
    far_slab *slab = find_counting_slab(s, class, addr);
    if (slab && !find_handed_out_object(s, slab, addr, &number)) {
        /* the object is free already or was never handed out, so far memory is damaged; the next check reports it */
        far_store_note_invalid_free(s, addr);
        return;
    }
    if (slab) {
        add_own_object(s, slab, number);
        return;
    }
    /* the block is own, but the slab of the object is another one, because the index of the object was dropped */
    if (far_address_is_own(s, addr))
        return;
    if (s->handshake.walk || pin <= s->handshake.observed_epoch) {
        far_store_queue_return(s, class, addr);
        return;
    }
    if (far_items_add(&class->on_node[far_addr_node(addr)].remote, addr))
        s->lists.remote_bytes += class->size;
}


void far_magazine_add(far_memory *m, far_class *class, far_addr addr, uint64_t pin) {
    far_store *s = m->store;
    uint32_t number = 0;
    far_bin *bin = far_bin_of_class(m, class);
    far_items *magazine = !bin ? NULL : &bin->magazine[far_addr_node(addr)];
    far_slab *slab = find_counting_slab(s, class, addr);
    bool may = slab ? find_handed_out_object(s, slab, addr, &number)
                    : !(far_address_is_own(s, addr) || s->handshake.walk || pin <= s->handshake.observed_epoch);
    if (!magazine || magazine->count >= 2 * class->quantum || !may || !far_items_add(magazine, addr)) {
        far_store_add_free(s, class, addr, pin);
        return;
    }
    assert(magazine->count <= 2 * FAR_MAGAZINE_OBJECTS);
    m->magazine_bytes += class->size;
    if (slab && far_sweep_is_pending(s))
        slab->black[number / 64] |= 1ull << number % 64;
}


static unsigned take_remote(far_store *s, far_class *class, unsigned node, unsigned wanted, uint64_t items[]) {
    far_items *list = &class->on_node[node].remote;
    unsigned taken = 0;
    while (taken < wanted && list->count > 0) {
        items[taken++] = list->items[--list->count];
        assert(s->lists.remote_bytes >= class->size);
        s->lists.remote_bytes -= class->size;
    }
    return taken;
}


static uint32_t take_first_stored(far_slab *slab) {
    uint32_t word = 0;
    while (slab->in_store[word] == 0) {
        word++;
        /* there is a set bit, because `stored` counts the set bits of in_store */
        assert(word < (slab->objects + 63) / 64);
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
        items[taken++] = base + take_first_stored(slab) * size;
    while (taken < wanted && slab->carved < slab->objects)
        items[taken++] = (base + slab->carved++ * size) | flags;
    assert(taken > 0);
    count_not_stored(s, slab, taken);
    slab->idle_ticks = 0;
    for (unsigned i = 0; i < taken && far_sweep_is_pending(s); i++)
        far_store_set_black(s, far_item_addr(items[i]));
    return taken;
}


unsigned far_store_take(far_store *s, far_class *class, unsigned node, unsigned wanted, bool own_only,
                        uint64_t items[]) {
    unsigned taken = own_only ? 0 : take_remote(s, class, node, wanted, items);
    while (taken < wanted && class->on_node[node].open) {
        far_slab *slab = class->on_node[node].open;
        taken += take_own(s, slab, wanted - taken, items + taken);
        update_open_list(slab);
    }
    return taken;
}


/* ---- Sessions ---- */

far_bin *far_bin_of_class(far_memory *m, far_class *class) {
    far_bin **bucket = &m->bins[class_bucket(class->uid, class->type, class->size)];
    for (far_bin *b = *bucket; b; b = b->next)
        if (b->class == class)
            return b;
    far_bin *b = calloc(1, sizeof(*b) + store_geometry(m->store)->nodes * sizeof(far_items));
    if (!b)
        return NULL;
    b->class = class;
    b->next = *bucket;
    *bucket = b;
    return b;
}


static far_bin *find_or_create_bin(far_memory *m, far_index *index, unsigned type, uint64_t size) {
    if (index && type >= index->kind->type_count)
        return NULL;
    const far_type *info = index ? &index->kind->types[type] : &far_pool_type;
    uint64_t rounded = far_size_class(store_geometry(m->store), size, info->align);
    uint32_t uid = index ? index->uid : 0;
    if (rounded == 0 || type > 0x3f)
        return NULL;
    for (far_bin *b = m->bins[class_bucket(uid, type, rounded)]; b; b = b->next)
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
    return !class ? NULL : far_bin_of_class(m, class);
}


far_bin *far_bin_look_up(far_memory *m, far_index *index, unsigned type, uint64_t size) {
    far_recent *r = far_recent_entry(m, type, size);
    *r = (far_recent){index, size, type, find_or_create_bin(m, index, type, size)};
    return r->bin;
}


void far_bins_free(far_memory *m) {
    for (unsigned i = 0; i < FAR_BINS; i++)
        while (m->bins[i]) {
            far_bin *b = m->bins[i];
            m->bins[i] = b->next;
            for (unsigned n = 0; n < store_geometry(m->store)->nodes; n++)
                free(b->magazine[n].items);
            free(b);
        }
}


bool far_magazine_refill(far_memory *m, far_bin *bin, unsigned node) {
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


/* Calls the callback for the objects in the magazines of one bin. */
static void visit_magazines(far_store *s, far_memory *m, far_bin *b, const far_visit *v) {
    for (unsigned n = 0; n < store_geometry(s)->nodes; n++) {
        far_items *list = &b->magazine[n];
        for (uint32_t at = list->count; at-- > 0;)
            if (!v->in_magazine(s, b->class, list->items[at], v->ctx)) {
                assert(m->magazine_bytes >= b->class->size);
                list->items[at] = list->items[--list->count];
                m->magazine_bytes -= b->class->size;
            }
    }
}


void far_memory_visit(far_store *s, far_memory *m, const far_visit *v) {
    for (unsigned i = 0; v->in_magazine && i < FAR_BINS; i++)
        for (far_bin *b = m->bins[i]; b; b = b->next)
            visit_magazines(s, m, b, v);
    if (v->retired)
        far_queues_visit(m, v->retired, v->ctx);
    for (uint32_t i = 0; v->session_owned && i < m->session_owned_count; i++)
        v->session_owned(s, &m->session_owned[i], v->ctx);
}


void far_store_visit(far_store *s, const far_visit *visit) {
    pthread_mutex_lock(&s->sessions_lock);
    pthread_mutex_lock(&s->lock);
    bool begun = !visit->begin || visit->begin(s, visit->ctx);
    pthread_mutex_unlock(&s->lock);
    for (far_memory *m = begun ? s->sessions : NULL; m; m = m->next) {
        far_mutex_lock(&m->lock);
        pthread_mutex_lock(&s->lock);
        far_memory_visit(s, m, visit);
        pthread_mutex_unlock(&s->lock);
        far_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&s->sessions_lock);
}


static void queue_return_of_list(far_store *s, far_class *class, far_items *list) {
    while (list->count > 0) {
        far_store_queue_return(s, class, list->items[--list->count]);
        s->lists.remote_bytes -= class->size;
    }
    free(list->items);
    *list = (far_items){0};
}


void far_remote_lists_queue_return(far_store *s) {
    for (unsigned i = 0; s->lists.remote_bytes > 0 && i < FAR_BINS; i++)
        for (far_class *c = s->lists.classes[i]; c; c = c->next)
            for (unsigned n = 0; n < store_geometry(s)->nodes; n++)
                queue_return_of_list(s, c, &c->on_node[n].remote);
    assert(s->lists.remote_bytes == 0);
}


bool far_item_to_store(far_store *s, far_class *class, uint64_t item, void *ctx) {
    (void)ctx;
    far_store_add_free(s, class, far_item_addr(item), UINT64_MAX);
    return false;
}


void far_magazines_empty(far_store *s) {
    far_store_visit(s, &(far_visit){.in_magazine = far_item_to_store});
}


/* From now on the classes of this index have no far_index and are identified by uid only. */
void far_memory_index_closed(far_pool *pool, far_index *index) {
    far_store *s = pool->store;
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < FAR_BINS; i++)
        for (far_class *c = s->lists.classes[i]; c; c = c->next)
            if (c->uid != 0 && far_class_index(c) == index)
                atomic_store_explicit(&c->index, NULL, memory_order_release);
    pthread_mutex_unlock(&s->lock);
}


void far_memory_uid_closed(far_store *s, uint32_t uid) {
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < FAR_BINS; i++)
        for (far_class *c = s->lists.classes[i]; c; c = c->next)
            if (c->uid == uid)
                atomic_store_explicit(&c->index, NULL, memory_order_release);
    pthread_mutex_unlock(&s->lock);
}
