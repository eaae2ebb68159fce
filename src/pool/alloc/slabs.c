/* Slabs in own blocks: cutting a new slab, taking back objects that other handles returned, and releasing slabs and
 * blocks that are entirely free. All these functions execute verbs. The calling task is in the store (far_store_enter),
 * so only one task of the handle changes slabs at a time, and it has a pin. */
#include "base/error.h"
#include "pool/alloc/store.h"

#include <assert.h>
#include <string.h>

#define READ_BYTES_MAX (64u << 10) /* bytes of bitmaps read in one batch */
#define READ_SLABS_MAX 64u
#define TAKE_TRIES     8u /* number of CAS attempts for a bitmap word that other clients change */
/* smallest number of pages of a slab of small objects, because several sessions take objects from it */
#define PAGES_LEAST 4u
/* a new slab gets one more multiple of its least number of pages for each GROW_SHARE slabs that the class already has
 * on the node */
#define GROW_SHARE 4u
#define IDLE_TICKS 3u /* number of ticks for which a slab must be entirely free before it is released */


static uint64_t bitmap_words_per_page(const far_geometry *g) {
    return g->page_bytes / FAR_GRANULE / FAR_WORD_GRANULES;
}


/* ---- Cutting ---- */

/* Finds the smallest hole of free pages that is large enough. Returns its length, or 0 if there is none. */
static unsigned find_smallest_hole(uint64_t free_pages, unsigned pages, unsigned *page) {
    unsigned best = 0;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES;) {
        uint64_t rest = free_pages >> p;
        if ((rest & 1) == 0) {
            p += rest == 0 ? FAR_BLOCK_PAGES : (unsigned)__builtin_ctzll(rest);
            continue;
        }
        unsigned length = ~rest == 0 ? FAR_BLOCK_PAGES : (unsigned)__builtin_ctzll(~rest);
        if (length >= pages && (best == 0 || length < best)) {
            best = length;
            *page = p;
        }
        p += length;
    }
    return best;
}


/* With the store's lock held, finds a place for a new slab in an own block. The smallest sufficient hole is used, and
 * among equal holes the one in the fullest block, so that other blocks can become empty. *pages is the least number of
 * pages; it is increased if the class has many slabs already. */
static far_owned_block *find_slab_place(far_store *s, far_class *class, unsigned node, unsigned *page,
                                        unsigned *pages) {
    far_owned_block *best = NULL;
    unsigned least = *pages, best_length = 0, best_free = 0;
    for (far_owned_block *b = s->lists.blocks[0]; b; b = b->next) {
        unsigned at = 0, length = b->id.node != node ? 0 : find_smallest_hole(b->free_pages, least, &at);
        unsigned free_pages = (unsigned)__builtin_popcountll(b->free_pages);
        if (length == 0 || (best && (length > best_length || (length == best_length && free_pages >= best_free))))
            continue;
        best = b;
        best_length = length;
        best_free = free_pages;
        *page = at;
    }
    unsigned times = 1 + class->on_node[node].slab_count / GROW_SHARE;
    unsigned wanted = least * times < PAGES_LEAST ? PAGES_LEAST : least * times;
    wanted = wanted < best_length ? wanted : best_length;
    *pages = wanted / least * least;
    assert(!best || (*pages >= least && *pages <= best_length));
    return best;
}


/* Called after a failed WRITE of a page word, when it is unknown whether the word of these pages describes a slab. The
 * pages are marked neither free nor as a slab, so this handle does not use them until the block changes its owner. */
static void set_pages_aside(far_store *s, far_owned_block *b, unsigned page, unsigned pages) {
    pthread_mutex_lock(&s->lock);
    far_owned_block_set_free_pages(s, b, b->free_pages & ~far_page_mask(page, pages));
    pthread_mutex_unlock(&s->lock);
}


int far_slab_cut(far_task *t, far_class *class, unsigned node) {
    far_store *s = far_store_of(t);
    const far_geometry *g = far_geometry_of(t);
    unsigned pages = far_slab_pages(g->page_bytes, class->size), page = 0;
    assert(s->block_task == t && t->pin.epoch != 0);
    pthread_mutex_lock(&s->lock);
    far_owned_block *b = find_slab_place(s, class, node, &page, &pages);
    far_block_id id = !b ? (far_block_id){0, 0} : b->id;
    pthread_mutex_unlock(&s->lock);
    if (!b)
        return 0;
    far_page_state state = {.in_use = true,
                            .stable = class->stable,
                            .uid = class->uid,
                            .type = class->type,
                            .pages = pages,
                            .size = class->size};
    int err = far_write_word(t, far_block_page(g, id, page), far_page_pack(&state));
    if (err < 0) {
        set_pages_aside(s, b, page, pages);
        return err;
    }
    far_fabric *fabric = far_task_fabric(t);
    if (fabric->watch)
        fabric->watch->freed(fabric, far_block_base(g, id) + page * g->page_bytes, pages * g->page_bytes, true);
    pthread_mutex_lock(&s->lock);
    bool added = far_slab_add(s, b, page, pages, class) != NULL;
    pthread_mutex_unlock(&s->lock);
    if (added)
        return 1;
    if (far_write_word(t, far_block_page(g, id, page), 0) < 0)
        set_pages_aside(s, b, page, pages);
    return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a list of free objects");
}


/* ---- Taking back returned objects ---- */

typedef struct returned_bits {
    far_addr base;
    far_block_id id;
    unsigned page, pages;
    uint64_t *words; /* the words of the bitmap as read; after the CASes, the bits that were taken */
    uint64_t *old;   /* for each word, the value that the CAS found */
} returned_bits;


/* With the store's lock held, chooses slabs of the class that were not read in this epoch, and returns their number. */
static unsigned choose_unread_slabs(far_task *t, far_class *class, unsigned node, returned_bits *ranges) {
    far_store *s = far_store_of(t);
    uint64_t epoch = far_epoch_known(t), bytes = 0;
    unsigned count = 0;
    for (far_slab *slab = class->on_node[node].slabs; slab && count < READ_SLABS_MAX; slab = slab->next) {
        uint64_t more = slab->pages * bitmap_words_per_page(far_geometry_of(t)) * 8;
        if (slab->bits_read_epoch >= epoch || (count > 0 && bytes + more > READ_BYTES_MAX))
            continue;
        slab->bits_read_epoch = epoch;
        bytes += more;
        ranges[count++] = (returned_bits){far_slab_base(s, slab), slab->block->id, slab->page, slab->pages, NULL, NULL};
    }
    return count;
}


/* Moves the objects whose free bits were taken to the store. They become black, because the mark phase in progress may
 * have reached such an object before it was unlinked and returned. A bit that is not at the beginning of an object
 * shows that the bitmap is damaged. */
static int add_taken_objects(far_task *t, far_class *class, const returned_bits *l, bool *any) {
    const far_geometry *g = far_geometry_of(t);
    far_store *s = far_store_of(t);
    int err = 0;
    pthread_mutex_lock(&s->lock);
    for (uint64_t w = 0; w < l->pages * bitmap_words_per_page(g); w++)
        for (uint64_t bits = l->words[w]; bits != 0; bits &= bits - 1) {
            uint64_t at = (w * FAR_WORD_GRANULES + (unsigned)__builtin_ctzll(bits)) * FAR_GRANULE;
            if (at % class->size != 0 || at / class->size >= l->pages * g->page_bytes / class->size) {
                err = FAR_ERR_CORRUPT;
                continue;
            }
            far_store_add_free(s, class, l->base + at, UINT64_MAX);
            far_store_set_black(s, l->base + at);
            *any = true;
        }
    pthread_mutex_unlock(&s->lock);
    return err == 0 ? 0 : far_fail(err, "the free bitmap of block %u of node %u is damaged", l->id.index, l->id.node);
}


static int read_free_bits(far_task *t, returned_bits *ranges, unsigned count) {
    const far_geometry *g = far_geometry_of(t);
    for (unsigned i = 0; i < count; i++) {
        uint64_t bytes = ranges[i].pages * bitmap_words_per_page(g) * 8;
        ranges[i].words = far_scratch(t, bytes);
        ranges[i].old = far_scratch(t, bytes);
        if (!ranges[i].words || !ranges[i].old)
            return far_fail(FAR_ERR_NO_MEMORY, "no local memory to read a free bitmap");
        far_read(t, far_block_bitmap(g, ranges[i].id) + ranges[i].page * bitmap_words_per_page(g) * 8, ranges[i].words,
                 bytes);
    }
    return far_wait(t);
}


/* Posts a CAS and a FAA of 0 for each word with free bits that are not taken yet, and waits whenever the batch is full.
 * *posted counts the verbs. */
static int post_bit_takes(far_task *t, const returned_bits *l, bool first, unsigned *posted) {
    const far_geometry *g = far_geometry_of(t);
    int err = 0;
    for (uint64_t w = 0; w < l->pages * bitmap_words_per_page(g) && err == 0; w++) {
        if (!first && l->old[w] == l->words[w])
            continue;
        l->words[w] = first ? l->words[w] : l->old[w];
        l->old[w] = 0;
        if (l->words[w] == 0)
            continue;
        far_cas(t, far_block_bitmap(g, l->id) + (l->page * bitmap_words_per_page(g) + w) * 8, l->words[w], 0,
                &l->old[w]);
        ++*posted;
        far_faa(t, far_block_bitmap(g, l->id) + (l->page * bitmap_words_per_page(g) + w) * 8, 0, NULL);
        err = far_wait_if_full(t, posted);
    }
    return err;
}


/* Takes the free bits of these slabs by CAS. A word that changed, because another client returned more objects or
 * cleared a wrong bit (pool/gc/false_free.h), is tried again with its new value; after TAKE_TRIES attempts it is left
 * for the next call. The waits make sure that the CAS has cleared the bit before the object can be handed out, retired
 * and returned again. After an error, objects whose bits were taken are in no list, so a collection must find them. */
static int take_free_bits(far_task *t, returned_bits *ranges, unsigned count) {
    unsigned posted = 1;
    int err = 0;
    for (unsigned tries = 0; posted > 0 && err == 0 && tries < TAKE_TRIES; tries++) {
        posted = 0;
        for (unsigned i = 0; i < count && err == 0; i++)
            err = post_bit_takes(t, &ranges[i], tries == 0, &posted);
        err = err < 0 ? err : far_wait(t);
    }
    if (err < 0) {
        far_memory_note_leak(far_store_of(t)->pool);
        return err;
    }
    for (unsigned i = 0; i < count; i++)
        for (uint64_t w = 0; w < ranges[i].pages * bitmap_words_per_page(far_geometry_of(t)); w++)
            if (ranges[i].old[w] != ranges[i].words[w])
                ranges[i].words[w] = 0;
    return 0;
}


static int take_returned_from(far_task *t, far_class *class, returned_bits *ranges, unsigned count, bool *any) {
    int err = read_free_bits(t, ranges, count);
    if (err == 0)
        err = take_free_bits(t, ranges, count);
    for (unsigned i = 0; i < count && err == 0; i++)
        err = add_taken_objects(t, class, &ranges[i], any);
    return err;
}


int far_slabs_take_returned(far_task *t, far_class *class, unsigned node) {
    far_store *s = far_store_of(t);
    far_scratch_mark mark = far_scratch_here(t);
    returned_bits *ranges = far_scratch(t, READ_SLABS_MAX * sizeof(returned_bits));
    assert(s->block_task == t && t->pin.epoch != 0);
    int err = !ranges ? far_fail(FAR_ERR_NO_MEMORY, "no local memory to read free bitmaps") : 0;
    bool any = false;
    while (err == 0 && !any) {
        far_scratch_mark here = far_scratch_here(t);
        pthread_mutex_lock(&s->lock);
        unsigned count = choose_unread_slabs(t, class, node, ranges);
        pthread_mutex_unlock(&s->lock);
        if (count == 0)
            break;
        err = take_returned_from(t, class, ranges, count, &any);
        far_scratch_back(t, here);
    }
    far_scratch_back(t, mark);
    return err < 0 ? err : any;
}


int far_slabs_take_all_returned(far_task *t) {
    far_store *s = far_store_of(t);
    pthread_mutex_lock(&s->lock);
    for (far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab))
        slab->bits_read_epoch = 0;
    pthread_mutex_unlock(&s->lock);
    int result = 0;
    for (unsigned i = 0; i < FAR_BINS && result >= 0; i++) {
        pthread_mutex_lock(&s->lock);
        /* the loop needs no lock, because classes are only added at the head of the list, and never removed */
        far_class *class = s->lists.classes[i];
        pthread_mutex_unlock(&s->lock);
        for (; class && result >= 0; class = class->next)
            for (unsigned node = 0; node < far_geometry_of(t)->nodes && result >= 0; node++)
                while ((result = far_slabs_take_returned(t, class, node)) == 1)
                    continue;
    }
    return result;
}


/* ---- Releasing ---- */

int far_slab_release(far_task *t, far_addr base, bool dropped) {
    far_store *s = far_store_of(t);
    const far_geometry *g = far_geometry_of(t);
    assert(s->block_task == t);
    pthread_mutex_lock(&s->lock);
    far_slab *slab = far_slab_at(s, base);
    if (!slab || (!dropped && (slab->class->stable || !far_slab_is_free(slab)))) {
        pthread_mutex_unlock(&s->lock);
        return 0;
    }
    far_owned_block *b = slab->block; /* b stays valid, because only the task in the store removes blocks */
    unsigned page = slab->page, pages = slab->pages;
    bool touched = slab->carved > 0;
    if (touched)
        far_owned_block_note_use(b);
    far_slab_remove(s, slab);
    pthread_mutex_unlock(&s->lock);

    far_fabric *fabric = far_task_fabric(t);
    if (fabric->watch)
        fabric->watch->released(fabric, base, pages * g->page_bytes);
    int err = touched ? far_wipe(t, base, pages * g->page_bytes) : 0;
    if (err == 0 && dropped)
        err = far_wipe(t, far_block_bitmap(g, b->id) + page * bitmap_words_per_page(g) * 8,
                       pages * bitmap_words_per_page(g) * 8);
    if (err == 0)
        err = far_write_word(t, far_block_page(g, b->id, page), 0);
    if (err < 0)
        return err;
    pthread_mutex_lock(&s->lock);
    far_owned_block_set_free_pages(s, b, b->free_pages | far_page_mask(page, pages));
    pthread_mutex_unlock(&s->lock);
    return 1;
}


/* Releases blocks without slabs. All bytes of such a block are zero, so it becomes free by one CAS. */
static int free_empty_blocks(far_task *t) {
    far_store *s = far_store_of(t);
    const far_block_state mine = far_own_block_state(t);
    for (;;) {
        far_block_id id = {0, 0};
        bool used = false;
        pthread_mutex_lock(&s->lock);
        far_owned_block *b = s->lists.blocks[0];
        while (b && b->free_pages != UINT64_MAX)
            b = b->next;
        if (b) {
            id = b->id;
            used = b->used;
            far_owned_block_remove(s, b);
        }
        pthread_mutex_unlock(&s->lock);
        if (!b)
            return 0;
        far_block_search_begin_at(s, id);
        uint64_t word = far_block_pack(&mine);
        int done = far_block_cas_state(t, id, &word, &(far_block_state){.kind = FAR_BLOCK_FREE, .used = used});
        if (done <= 0)
            return done < 0 ? done
                            : far_fail(FAR_ERR_CORRUPT,
                                       "block %u of node %u: its entry does not name this client as the owner any more",
                                       id.index, id.node);
        far_block_search_note_full(s, id.node, 0);
        pthread_mutex_lock(&s->lock);
        far_headroom_set_free_blocks(s, id.node, s->headroom[id.node].free_blocks + 1);
        pthread_mutex_unlock(&s->lock);
    }
}


/* Returns the base of a slab that can be released, or 0. The caller holds the store's lock. */
static far_addr find_releasable_slab(far_store *s, bool all) {
    for (const far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab))
        if (!slab->class->stable && far_slab_is_free(slab) && (all || slab->idle_ticks >= IDLE_TICKS))
            return far_slab_base(s, slab);
    return 0;
}


/* With the store's lock held, counts for how many ticks each slab has been entirely free. Returns whether any slab is
 * entirely free. */
static bool update_idle_ticks(far_store *s) {
    bool any = false;
    for (far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab)) {
        any |= far_slab_count_idle_tick(slab);
    }
    return any;
}


int far_slabs_trim(far_task *t, bool all) {
    far_store *s = far_store_of(t);
    assert(s->block_task == t);
    if (!all && !far_store_take_trim_due(s))
        return 0;
    pthread_mutex_lock(&s->lock);
    if (!all && update_idle_ticks(s))
        far_store_note_free_slab(s);
    pthread_mutex_unlock(&s->lock);
    for (;;) {
        pthread_mutex_lock(&s->lock);
        far_addr base = find_releasable_slab(s, all);
        pthread_mutex_unlock(&s->lock);
        if (base == 0)
            break;
        int err = far_slab_release(t, base, false);
        if (err < 0)
            return err;
    }
    return free_empty_blocks(t);
}
