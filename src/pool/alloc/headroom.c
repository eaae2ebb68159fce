/* Headroom: the last blocks of each memory node, which inserts leave free, so that updates, deletes and structure
 * changes that have begun find memory in a full pool. This file owns far_store.headroom and far_store.is_scarce.
 *
 * An insert may take an object only if the memory that is left on the node, and on all nodes together, is at least as
 * large as the headroom. The handle counts how many objects of the class fit into the free blocks that its last search
 * of the block table found and into the free pages of its own blocks, and adds its free objects of the class. Pages and
 * objects count because an update that takes a block of the headroom needs only a part of it, and retires an object of
 * the same class. The handle then refuses its own inserts until the sum is large enough again. So inserts do not use up
 * the headroom object by object, and they succeed again after deletes, although deletes rarely make whole blocks free. */
#include "pool/alloc/store.h"

#include <stdlib.h>

#define HEADROOM_SHARE 64u /* the headroom of a node is its number of blocks divided by this, plus one block */


bool far_headroom_open(far_store *s) {
    const far_geometry *g = &s->pool->geometry;
    s->headroom = calloc(g->nodes, sizeof(*s->headroom));
    for (unsigned n = 0; s->headroom && n < g->nodes; n++) {
        s->headroom[n].blocks = (uint32_t)g->node[n].blocks / HEADROOM_SHARE + 1;
        s->headroom[n].free_blocks = (uint32_t)g->node[n].blocks;
        s->headroom[n].page_changes = 1;
    }
    return s->headroom != NULL;
}


void far_headroom_count_pages(far_store *s, unsigned node, uint64_t before, uint64_t after) {
    far_headroom *h = &s->headroom[node];
    h->free_pages += (uint64_t)__builtin_popcountll(after);
    h->free_pages -= (uint64_t)__builtin_popcountll(before);
    h->page_changes++;
}


void far_headroom_set_free_blocks(far_store *s, unsigned node, uint32_t count) {
    bool scarce = false;
    s->headroom[node].free_blocks = count;
    for (unsigned n = 0; n < s->pool->geometry.nodes; n++)
        scarce |= s->headroom[n].free_blocks <= s->headroom[n].blocks;
    atomic_store_explicit(&s->is_scarce, scarce, memory_order_relaxed);
}


void far_headroom_count_taken(far_store *s, unsigned node, uint32_t count) {
    uint32_t known = s->headroom[node].free_blocks;
    far_headroom_set_free_blocks(s, node, known > count ? known - count : 0);
}


/* Returns how many slabs of `least` pages fit into the block's free pages. */
static uint64_t count_slabs_that_fit(uint64_t free_pages, unsigned least) {
    uint64_t count = 0;
    while (free_pages != 0) {
        free_pages >>= __builtin_ctzll(free_pages);
        unsigned hole = ~free_pages == 0 ? FAR_BLOCK_PAGES : (unsigned)__builtin_ctzll(~free_pages);
        count += hole / least;
        free_pages = hole == FAR_BLOCK_PAGES ? 0 : free_pages >> hole;
    }
    return count;
}


/* Returns how many slabs of the class fit into the free pages of own blocks. They are counted again only after a change
 * of the free pages. */
static uint64_t find_slabs_that_fit(far_store *s, far_class *class, unsigned node, unsigned least) {
    far_class_on_node *shelf = &class->on_node[node];
    if (shelf->pages_counted == s->headroom[node].page_changes)
        return shelf->slabs_that_fit;
    shelf->slabs_that_fit = 0;
    shelf->pages_counted = s->headroom[node].page_changes;
    for (const far_owned_block *b = s->lists.blocks[0]; b; b = b->next)
        if (b->id.node == node)
            shelf->slabs_that_fit += count_slabs_that_fit(b->free_pages, least);
    return shelf->slabs_that_fit;
}


/* Returns how many objects the class can still get on the node beyond the headroom; negative if a part of the headroom
 * is missing. A block of the headroom counts as much as its pages count after an update has taken it. Otherwise inserts
 * would miss the pages at its end that are too few for a slab. */
static int64_t count_objects_beyond_headroom(far_memory *m, far_class *class, const far_bin *bin, unsigned node) {
    const uint64_t page_bytes = m->store->pool->geometry.page_bytes;
    const far_headroom *h = &m->store->headroom[node];
    const far_class_on_node *shelf = &class->on_node[node];
    unsigned least = far_slab_pages(page_bytes, class->size);
    int64_t blocks = (int64_t)h->free_blocks - (int64_t)h->blocks;
    int64_t slabs = blocks * (FAR_BLOCK_PAGES / least) + (int64_t)find_slabs_that_fit(m->store, class, node, least);
    uint64_t objects = shelf->stored + shelf->remote.count + (bin ? bin->magazine[node].count : 0);
    return slabs * (int64_t)(least * page_bytes / class->size) + (int64_t)objects;
}


/* An update may take its new object on another node than the one of its old object. Therefore all nodes together must
 * have enough memory, too. Otherwise inserts could take the memory that updates move from one node to another. */
bool far_headroom_spares_object(far_memory *m, far_class *class, unsigned node) {
    const far_bin *bin = far_bin_of_class(m, class);
    int64_t all = 0;
    if (count_objects_beyond_headroom(m, class, bin, node) < 1)
        return false;
    for (unsigned n = 0; n < m->store->pool->geometry.nodes; n++)
        all += count_objects_beyond_headroom(m, class, bin, n);
    return all >= 1;
}


bool far_task_may_take(far_task *t, far_class *class, unsigned node) {
    far_memory *m = far_memory_of(t);
    if (t->uses_headroom || !atomic_load_explicit(&m->store->is_scarce, memory_order_relaxed))
        return true;
    far_mutex_lock(&m->lock);
    pthread_mutex_lock(&m->store->lock);
    bool may = far_headroom_spares_object(m, class, node);
    pthread_mutex_unlock(&m->store->lock);
    far_mutex_unlock(&m->lock);
    return may;
}
