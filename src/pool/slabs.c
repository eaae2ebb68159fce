/* Slabs in the blocks of a handle: cutting, looking for what others brought home, giving back pages and blocks. Tasks
 * come in here one at a time per handle (far_store_enter) and with a pin. */
#include "base/error.h"
#include "pool/store.h"

#include <assert.h>
#include <string.h>

#define LOOK_BYTES  (64u << 10) /* of bitmaps read at once */
#define LOOK_SLABS  64u
#define TAKE_TRIES  8u /* for a word of a bitmap that others change */
#define PAGES_LEAST 4u /* of a slab, if its objects are small: several sessions take from it */
#define GROW_SHARE  4u /* a new slab is as large as this part of those that the class has */
#define IDLE_TICKS  3u /* before a slab that is wholly in store goes back */


static uint64_t page_words(const far_geometry *g) { /* of a bitmap, per page */
    return g->page_bytes / FAR_GRANULE / FAR_WORD_GRANULES;
}


/* ---- Cutting ---- */

/* The smallest hole that is large enough; its length, or 0. */
static unsigned find_pages(uint64_t free_pages, unsigned pages, unsigned *page) {
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


/* With the lock: a place for a slab in a block of ours; holes are filled from the smallest on, in full blocks first, so
 * that others become empty. *pages: at least that many, and more where the class has many slabs already. */
static far_held *find_place(far_store *s, far_class *class, unsigned node, unsigned *page, unsigned *pages) {
    far_held *best = NULL;
    unsigned least = *pages, best_length = 0, best_free = 0;
    for (far_held *b = s->blocks[0]; b; b = b->next) {
        unsigned at = 0, length = b->id.node != node ? 0 : find_pages(b->free_pages, least, &at);
        unsigned free_pages = (unsigned)__builtin_popcountll(b->free_pages);
        if (length == 0 || (best && (length > best_length || (length == best_length && free_pages >= best_free))))
            continue;
        best = b;
        best_length = length;
        best_free = free_pages;
        *page = at;
    }
    unsigned times = 1 + class->shelf[node].slab_count / GROW_SHARE;
    unsigned wanted = least * times < PAGES_LEAST ? PAGES_LEAST : least * times;
    wanted = wanted < best_length ? wanted : best_length;
    *pages = wanted / least * least;
    assert(!best || (*pages >= least && *pages <= best_length));
    return best;
}


/* The word of these pages may say that they are a slab, or not: they are not ours to use until the block changes hands.
 */
static void set_pages_aside(far_store *s, far_held *b, unsigned page, unsigned pages) {
    pthread_mutex_lock(&s->lock);
    far_held_pages(s, b, b->free_pages & ~far_page_mask(page, pages));
    pthread_mutex_unlock(&s->lock);
}


int far_slab_cut(far_task *t, far_class *class, unsigned node) {
    far_store *s = far_store_of(t);
    const far_geometry *g = far_geometry_of(t);
    unsigned pages = far_slab_pages(g->page_bytes, class->size), page = 0;
    assert(s->inside == t && t->pin.epoch != 0);
    pthread_mutex_lock(&s->lock);
    far_held *b = find_place(s, class, node, &page, &pages);
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
    return far_fail(FAR_ERR_NO_MEMORY, "no memory for a list of free objects");
}


/* ---- Looking for what came home ---- */

typedef struct look {
    far_addr base;
    far_block_id id;
    unsigned page, pages;
    uint64_t *words; /* of the bitmap: what is taken of it */
    uint64_t *old;   /* what a CAS found there */
} look;


/* With the lock: slabs whose bits were not read in this epoch. */
static unsigned slabs_to_look_at(far_task *t, far_class *class, unsigned node, look *looks) {
    far_store *s = far_store_of(t);
    uint64_t epoch = far_epoch_known(t), bytes = 0;
    unsigned count = 0;
    for (far_slab *slab = class->shelf[node].slabs; slab && count < LOOK_SLABS; slab = slab->next) {
        uint64_t more = slab->pages * page_words(far_geometry_of(t)) * 8;
        if (slab->looked >= epoch || (count > 0 && bytes + more > LOOK_BYTES))
            continue;
        slab->looked = epoch;
        bytes += more;
        looks[count++] = (look){far_slab_base(s, slab), slab->block->id, slab->page, slab->pages, NULL, NULL};
    }
    return count;
}


/* The bits were taken: the objects are in store, and black, because one of them that a walk under way has met was unlinked
 * since. Bits elsewhere than at the beginning of an object: the
 * bitmap is damaged. */
static int put_found(far_task *t, far_class *class, const look *l, bool *any) {
    const far_geometry *g = far_geometry_of(t);
    far_store *s = far_store_of(t);
    int err = 0;
    pthread_mutex_lock(&s->lock);
    for (uint64_t w = 0; w < l->pages * page_words(g); w++)
        for (uint64_t bits = l->words[w]; bits != 0; bits &= bits - 1) {
            uint64_t at = (w * FAR_WORD_GRANULES + (unsigned)__builtin_ctzll(bits)) * FAR_GRANULE;
            if (at % class->size != 0 || at / class->size >= l->pages * g->page_bytes / class->size) {
                err = FAR_ERR_CORRUPT;
                continue;
            }
            far_store_put(s, class, l->base + at, UINT64_MAX);
            far_store_blacken(s, l->base + at);
            *any = true;
        }
    pthread_mutex_unlock(&s->lock);
    return err == 0 ? 0 : far_fail(err, "the free bitmap of block %u of node %u is broken", l->id.index, l->id.node);
}


static int read_bits(far_task *t, look *looks, unsigned count) {
    const far_geometry *g = far_geometry_of(t);
    for (unsigned i = 0; i < count; i++) {
        uint64_t bytes = looks[i].pages * page_words(g) * 8;
        looks[i].words = far_scratch(t, bytes);
        looks[i].old = far_scratch(t, bytes);
        if (!looks[i].words || !looks[i].old)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory to read a free bitmap");
        far_read(t, far_block_bitmap(g, looks[i].id) + looks[i].page * page_words(g) * 8, looks[i].words, bytes);
    }
    return far_wait(t);
}


/* Puts a CAS for each word that is not taken yet. False: there is none. */
static bool put_takes(far_task *t, const look *l, bool first) {
    const far_geometry *g = far_geometry_of(t);
    bool any = false;
    for (uint64_t w = 0; w < l->pages * page_words(g); w++) {
        if (!first && l->old[w] == l->words[w])
            continue;
        l->words[w] = first ? l->words[w] : l->old[w];
        l->old[w] = 0;
        if (l->words[w] == 0)
            continue;
        far_cas(t, far_block_bitmap(g, l->id) + (l->page * page_words(g) + w) * 8, l->words[w], 0, &l->old[w]);
        far_faa(t, far_block_bitmap(g, l->id) + (l->page * page_words(g) + w) * 8, 0, NULL);
        any = true;
    }
    return any;
}


/* A word that others have changed meanwhile, because they brought more home or put a bit right (false_home.h), is tried again as
 * it is then; at last it is left for the next look. */
static int take_bits(far_task *t, look *looks, unsigned count) {
    bool any = true;
    int err = 0;
    for (unsigned tries = 0; any && err == 0 && tries < TAKE_TRIES; tries++) {
        any = false;
        for (unsigned i = 0; i < count; i++)
            any |= put_takes(t, &looks[i], tries == 0);
        err = any ? far_wait(t) : 0; /* a bit that is brought home again meanwhile must not meet the old one */
    }
    for (unsigned i = 0; i < count; i++)
        for (uint64_t w = 0; w < looks[i].pages * page_words(far_geometry_of(t)); w++)
            if (looks[i].old[w] != looks[i].words[w])
                looks[i].words[w] = 0;
    return err;
}


static int look_at(far_task *t, far_class *class, look *looks, unsigned count, bool *any) {
    int err = read_bits(t, looks, count);
    if (err == 0)
        err = take_bits(t, looks, count);
    for (unsigned i = 0; i < count && err == 0; i++)
        err = put_found(t, class, &looks[i], any);
    return err;
}


int far_slabs_look(far_task *t, far_class *class, unsigned node) {
    far_store *s = far_store_of(t);
    far_scratch_mark mark = far_scratch_here(t);
    look *looks = far_scratch(t, LOOK_SLABS * sizeof(look));
    assert(s->inside == t && t->pin.epoch != 0);
    int err = !looks ? far_fail(FAR_ERR_NO_MEMORY, "no memory to read free bitmaps") : 0;
    bool any = false;
    while (err == 0 && !any) {
        far_scratch_mark here = far_scratch_here(t);
        pthread_mutex_lock(&s->lock);
        unsigned count = slabs_to_look_at(t, class, node, looks);
        pthread_mutex_unlock(&s->lock);
        if (count == 0)
            break;
        err = look_at(t, class, looks, count, &any);
        far_scratch_back(t, here);
    }
    far_scratch_back(t, mark);
    return err < 0 ? err : any;
}


int far_slabs_look_at_all(far_task *t) {
    far_store *s = far_store_of(t);
    pthread_mutex_lock(&s->lock);
    for (far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab))
        slab->looked = 0;
    pthread_mutex_unlock(&s->lock);
    int result = 0;
    for (unsigned i = 0; i < FAR_BINS && result >= 0; i++) {
        pthread_mutex_lock(&s->lock);
        far_class *class = s->classes[i]; /* later ones come before it; none ever goes */
        pthread_mutex_unlock(&s->lock);
        for (; class && result >= 0; class = class->next)
            for (unsigned node = 0; node < far_geometry_of(t)->nodes && result >= 0; node++)
                while ((result = far_slabs_look(t, class, node)) == 1)
                    continue;
    }
    return result;
}


/* ---- Giving back ---- */

int far_slab_release(far_task *t, far_addr base, bool dropped) {
    far_store *s = far_store_of(t);
    const far_geometry *g = far_geometry_of(t);
    assert(s->inside == t);
    pthread_mutex_lock(&s->lock);
    far_slab *slab = far_slab_at(s, base);
    if (!slab || (!dropped && (slab->class->stable || !far_slab_is_free(slab)))) {
        pthread_mutex_unlock(&s->lock);
        return 0;
    }
    far_held *b = slab->block; /* stays: only who is inside takes it away */
    unsigned page = slab->page, pages = slab->pages;
    bool touched = slab->carved > 0;
    b->used |= touched;
    far_slab_remove(s, slab);
    pthread_mutex_unlock(&s->lock);

    far_fabric *fabric = far_task_fabric(t);
    if (fabric->watch)
        fabric->watch->released(fabric, base, pages * g->page_bytes);
    int err = touched ? far_wipe(t, base, pages * g->page_bytes) : 0;
    if (err == 0 && dropped)
        err = far_wipe(t, far_block_bitmap(g, b->id) + page * page_words(g) * 8, pages * page_words(g) * 8);
    if (err == 0)
        err = far_write_word(t, far_block_page(g, b->id, page), 0);
    if (err < 0)
        return err;
    pthread_mutex_lock(&s->lock);
    far_held_pages(s, b, b->free_pages | far_page_mask(page, pages));
    pthread_mutex_unlock(&s->lock);
    return 1;
}


/* A block without slabs is all zero: it becomes free by one CAS. */
static int free_empty_blocks(far_task *t) {
    far_store *s = far_store_of(t);
    const far_block_state mine = far_block_owned(t);
    for (;;) {
        far_block_id id = {0, 0};
        bool used = false;
        pthread_mutex_lock(&s->lock);
        far_held *b = s->blocks[0];
        while (b && b->free_pages != UINT64_MAX)
            b = b->next;
        if (b) {
            id = b->id;
            used = b->used;
            far_held_remove(s, b);
        }
        pthread_mutex_unlock(&s->lock);
        if (!b)
            return 0;
        if (id.index < s->hint[id.node])
            s->hint[id.node] = id.index;
        uint64_t word = far_block_pack(&mine);
        int done = far_block_swap(t, id, &word, &(far_block_state){.kind = FAR_BLOCK_FREE, .used = used});
        if (done <= 0)
            return done < 0 ? done : far_fail(FAR_ERR_CORRUPT, "block %u of node %u was taken away", id.index, id.node);
        far_memory_returned(s);
    }
}


/* With the lock: a slab that goes back; 0: none. */
static far_addr slab_to_trim(far_store *s, bool all) {
    for (const far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab))
        if (!slab->class->stable && far_slab_is_free(slab) && (all || slab->idle >= IDLE_TICKS))
            return far_slab_base(s, slab);
    return 0;
}


/* With the lock: how long slabs have been wholly in store. True: there are some. */
static bool count_idle(far_store *s) {
    bool any = false;
    for (far_slab *slab = far_slab_next(s, NULL); slab; slab = far_slab_next(s, slab)) {
        slab->idle = far_slab_is_free(slab) && !slab->class->stable ? slab->idle + 1 : 0;
        any |= slab->idle > 0;
    }
    return any;
}


int far_slabs_trim(far_task *t, bool all) {
    far_store *s = far_store_of(t);
    assert(s->inside == t);
    if (!all && !atomic_exchange_explicit(&s->trim, false, memory_order_relaxed))
        return 0;
    pthread_mutex_lock(&s->lock);
    if (!all && count_idle(s))
        atomic_store_explicit(&s->trim, true, memory_order_relaxed);
    pthread_mutex_unlock(&s->lock);
    for (;;) {
        pthread_mutex_lock(&s->lock);
        far_addr base = slab_to_trim(s, all);
        pthread_mutex_unlock(&s->lock);
        if (base == 0)
            break;
        int err = far_slab_release(t, base, false);
        if (err < 0)
            return err;
        far_memory_returned(s);
    }
    return free_empty_blocks(t);
}
