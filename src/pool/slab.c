/* Blocks and slabs of a session: getting, cutting, looking for what others gave back, and giving back. Tasks come in
 * here one at a time per session (far_memory_enter) and under a pin. */
#include "pool/memory.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_BYTES    (64u << 10) /* of bitmaps read at once */
#define LOOK_SLABS    64u
#define SCAN_ENTRIES  512u
#define ORPHANS_FIRST 4u /* looked at before a fresh block is taken */


static const far_geometry *geometry(far_task *t) {
    return &far_task_pool(t)->geometry;
}


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


static uint64_t page_mask(unsigned page, unsigned pages) {
    return (pages == 64 ? UINT64_MAX : ((1ull << pages) - 1)) << page;
}


/* With the lock: a place for a slab in a block of ours; its pages are no longer free. Holes are filled from the
 * smallest on, in full blocks first, so that others become empty. */
static far_held *reserve_pages(far_memory *m, unsigned node, unsigned pages, unsigned *page) {
    far_held *best = NULL;
    unsigned best_length = 0, best_free = 0;
    for (far_held *b = m->blocks; b != NULL; b = b->next) {
        unsigned at = 0, length = b->id.node != node || b->away ? 0 : find_pages(b->free_pages, pages, &at);
        unsigned free_pages = (unsigned)__builtin_popcountll(b->free_pages);
        if (length == 0 ||
            (best != NULL && (length > best_length || (length == best_length && free_pages >= best_free))))
            continue;
        best = b;
        best_length = length;
        best_free = free_pages;
        *page = at;
    }
    if (best != NULL)
        best->free_pages &= ~page_mask(*page, pages);
    return best;
}


/* The page word is in far memory: the slab can be used, or, when a sweep took the block meanwhile, belongs to the pool.
 */
static int slab_is_cut(far_task *t, far_class *class, far_block_id id, unsigned page, unsigned pages) {
    far_memory *m = far_memory_of(t);
    const far_geometry *g = geometry(t);
    far_addr base = far_block_base(g, id) + page * g->page_bytes;
    uint32_t objects = (uint32_t)(pages * g->page_bytes / class->size);
    pthread_mutex_lock(&m->lock);
    far_held *b = far_held_find(m, id);
    far_slab *slab = b == NULL || b->away ? NULL : far_slab_add(m, b, page, pages, class);
    if (slab != NULL)
        class->shelf[id.node].carving = slab;
    else
        for (uint32_t i = 0; i < objects; i++)
            far_gives_add(&m->pending, class, base + i * class->size);
    pthread_mutex_unlock(&m->lock);
    far_fabric *fabric = far_task_fabric(t);
    if (fabric->watch != NULL)
        fabric->watch->freed(fabric, base, pages * g->page_bytes, true);
    if (slab != NULL)
        return 1;
    int err = far_give_pending(t);
    return err;
}


int far_slab_carve(far_task *t, far_class *class, unsigned node) {
    far_memory *m = far_memory_of(t);
    const far_geometry *g = geometry(t);
    unsigned pages = far_slab_pages(g->page_bytes, class->size), page = 0;
    pthread_mutex_lock(&m->lock);
    far_held *b = reserve_pages(m, node, pages, &page);
    far_block_id id = b == NULL ? (far_block_id){0, 0} : b->id;
    pthread_mutex_unlock(&m->lock);
    if (b == NULL)
        return 0;
    far_page_state s = {.in_use = true,
                        .stable = class->stable,
                        .uid = class->uid,
                        .type = class->type,
                        .pages = pages,
                        .size = class->size};
    uint64_t word = far_page_pack(&s);
    int err = far_write_word(t, far_block_page(g, id, page), word);
    return err < 0 ? err : slab_is_cut(t, class, id, page, pages);
}


typedef struct look {
    far_block_id id;
    unsigned page, pages;
    uint64_t *words; /* of the bitmap; then the block's state */
} look;


/* With the lock: slabs of ours whose bits were not read in this epoch. */
static unsigned slabs_to_look_at(far_task *t, far_class *class, unsigned node, look *looks) {
    const far_geometry *g = geometry(t);
    uint64_t epoch = far_epoch_known(t), bytes = 0;
    unsigned count = 0;
    for (far_slab *s = class->shelf[node].slabs; s != NULL && count < LOOK_SLABS; s = s->next) {
        uint64_t more = s->pages * g->page_bytes / FAR_GRANULE / 8;
        if (s->looked >= epoch || (count > 0 && bytes + more > LOOK_BYTES))
            continue;
        s->looked = epoch;
        bytes += more;
        looks[count++] = (look){s->block->id, s->page, s->pages, NULL};
    }
    return count;
}


/* The bits were seen and subtracted: the objects are ours. Bits elsewhere than at the beginning of an object:
 * FAR_ERR_CORRUPT. */
static int put_found(far_task *t, far_class *class, const look *l, bool *any) {
    const far_geometry *g = geometry(t);
    far_memory *m = far_memory_of(t);
    far_addr base = far_block_base(g, l->id) + l->page * g->page_bytes;
    size_t words = l->pages * g->page_bytes / FAR_GRANULE / FAR_WORD_GRANULES;
    bool recover = class->info == NULL || class->info->recover != NULL;
    int err = 0;
    pthread_mutex_lock(&m->lock);
    for (size_t w = 0; w < words; w++)
        for (uint64_t bits = l->words[w]; bits != 0; bits &= bits - 1) {
            uint64_t at = (w * FAR_WORD_GRANULES + (unsigned)__builtin_ctzll(bits)) * FAR_GRANULE;
            if (at % class->size != 0 || at / class->size >= l->pages * g->page_bytes / class->size) {
                err = FAR_ERR_CORRUPT;
                continue;
            }
            far_put_free(m, class, (far_entry){(base + at) | (recover ? FAR_ENTRY_RECOVER : 0), 0});
            *any = true;
        }
    pthread_mutex_unlock(&m->lock);
    return err;
}


/* A sweep covers the block, and others may have heard of it before this handle: what they retire there they give back
 * at once, long before it can be reused. READs keep their order, so who sees such a bit sees the flag. */
static bool must_not_take(const look *l, uint64_t words) {
    return far_block_unpack(l->words[words]).quarantined;
}


static int look_at(far_task *t, far_class *class, look *looks, unsigned count, bool *any) {
    const far_geometry *g = geometry(t);
    const uint64_t page_words = g->page_bytes / FAR_GRANULE / FAR_WORD_GRANULES;
    for (unsigned i = 0; i < count; i++) {
        uint64_t words = looks[i].pages * page_words;
        if ((looks[i].words = far_scratch(t, words * 8 + 8)) == NULL)
            return FAR_ERR_NO_MEMORY;
        far_read(t, far_block_bitmap(g, looks[i].id) + looks[i].page * page_words * 8, looks[i].words, words * 8);
        far_read(t, far_block_entry(g, looks[i].id), looks[i].words + words, 8);
    }
    int err = far_wait(t);
    if (err < 0)
        return err;
    for (unsigned i = 0; i < count; i++)
        if (must_not_take(&looks[i], looks[i].pages * page_words))
            memset(looks[i].words, 0, looks[i].pages * page_words * 8);
    for (unsigned i = 0; i < count; i++)
        for (uint64_t w = 0; w < looks[i].pages * page_words; w++)
            if (looks[i].words[w] != 0)
                far_faa(t, far_block_bitmap(g, looks[i].id) + (looks[i].page * page_words + w) * 8, -looks[i].words[w],
                        NULL);
    if ((err = far_wait(t)) < 0)
        return err;
    for (unsigned i = 0; i < count; i++) {
        int bad = put_found(t, class, &looks[i], any);
        err = err < 0 ? err : bad;
    }
    return err;
}


int far_slab_look(far_task *t, far_class *class, unsigned node) {
    far_memory *m = far_memory_of(t);
    far_scratch_mark mark = far_scratch_here(t);
    look *looks = far_scratch(t, LOOK_SLABS * sizeof(look));
    int err = looks == NULL ? FAR_ERR_NO_MEMORY : 0;
    bool any = false;
    while (err == 0 && !any) {
        pthread_mutex_lock(&m->lock);
        unsigned count = slabs_to_look_at(t, class, node, looks);
        pthread_mutex_unlock(&m->lock);
        if (count == 0)
            break;
        err = look_at(t, class, looks, count, &any);
    }
    far_scratch_back(t, mark);
    if (err == 0)
        err = far_give_pending(t);
    return err < 0 ? err : any;
}


/* Getting blocks. */

int far_pages_read(far_task *t, far_block_id id, uint64_t pages[FAR_BLOCK_PAGES]) {
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t *words = far_scratch(t, FAR_BLOCK_PAGES * 8);
    if (words == NULL)
        return FAR_ERR_NO_MEMORY;
    far_read(t, far_block_page(geometry(t), id, 0), words, FAR_BLOCK_PAGES * 8);
    int err = far_wait(t);
    memcpy(pages, words, FAR_BLOCK_PAGES * 8);
    far_scratch_back(t, mark);
    if (err == 0 && !far_pages_sound(geometry(t), pages))
        err = FAR_ERR_CORRUPT;
    return err;
}


static unsigned heeded(far_task *t) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    return atomic_load_explicit(&q->heeded, memory_order_acquire);
}


/* A block that is now ours joins the list. It was not in quarantine when we got it; `before` says what this handle had
 * heard by then: of a sweep that was heard of later it is not known, and the block waits until that is over. */
static int hold(far_task *t, far_block_id id, bool used, const uint64_t pages[FAR_BLOCK_PAGES], unsigned before) {
    far_memory *m = far_memory_of(t);
    pthread_mutex_lock(&m->lock);
    far_held *b = far_held_find(m, id);
    if (b != NULL) /* a sweep freed it under us, which we have not heard of yet */
        far_held_remove(m, b);
    b = far_held_add(m, id, used);
    if (b != NULL) {
        b->away = before != heeded(t) && far_is_marked(m, far_block_base(geometry(t), id));
        if (b->away)
            b->free_pages = 0;
        else if (pages != NULL && !far_held_load(m, b, pages)) {
            far_held_remove(m, b);
            b = NULL;
        }
        if (pages != NULL) /* there may be bits in it */
            m->looked = atomic_load_explicit(&far_task_pool(t)->quarantine->given, memory_order_relaxed) - 1;
    }
    int result = b == NULL ? FAR_ERR_NO_MEMORY : !b->away;
    pthread_mutex_unlock(&m->lock);
    return result;
}


int far_block_adopt(far_task *t, far_block_id id, uint64_t word) {
    far_block_state s = far_block_unpack(word);
    s.kind = FAR_BLOCK_OWNED;
    s.id = far_task_client(t);
    s.generation = far_task_generation(t);
    unsigned before = heeded(t);
    int err = far_block_swap(t, id, &word, &s);
    if (err <= 0)
        return err;
    uint64_t pages[FAR_BLOCK_PAGES]; /* read now: until the swap somebody else may have had it */
    err = far_pages_read(t, id, pages);
    return err < 0 ? err : hold(t, id, true, pages, before);
}


/* Whether an orphan has room for an object of the class: free pages, or an object of it given back. */
static int orphan_fits(far_task *t, const far_class *class, far_block_id id) {
    const far_geometry *g = geometry(t);
    uint64_t pages[FAR_BLOCK_PAGES], free_pages = UINT64_MAX;
    int err = far_pages_read(t, id, pages);
    if (err < 0)
        return err == FAR_ERR_CORRUPT ? 0 : err;
    unsigned page;
    const uint64_t page_words = g->page_bytes / FAR_GRANULE / FAR_WORD_GRANULES;
    far_scratch_mark mark = far_scratch_here(t);
    bool fits = false;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES && !fits && err == 0; p++) {
        far_page_state s = far_page_unpack(pages[p]);
        if (!s.in_use)
            continue;
        free_pages &= ~page_mask(p, s.pages);
        if (s.uid != class->uid || s.type != class->type || s.size != class->size)
            continue;
        size_t words = s.pages * page_words;
        uint64_t *bits = far_scratch(t, words * 8);
        if (bits == NULL)
            err = FAR_ERR_NO_MEMORY;
        else {
            far_read(t, far_block_bitmap(g, id) + p * page_words * 8, bits, words * 8);
            err = far_wait(t);
        }
        for (size_t w = 0; err == 0 && w < words; w++)
            fits |= bits[w] != 0;
        far_scratch_back(t, mark);
    }
    if (err < 0)
        return err;
    return fits || find_pages(free_pages, far_slab_pages(g->page_bytes, class->size), &page) > 0;
}


/* class NULL: all of them, whatever is in them. */
static int adopt_some(far_task *t, far_class *class, unsigned node, unsigned most) {
    uint32_t blocks = (uint32_t)geometry(t)->node[node].blocks;
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t *entries = far_scratch(t, SCAN_ENTRIES * FAR_BLOCK_ENTRY_BYTES);
    int result = entries == NULL ? FAR_ERR_NO_MEMORY : 0;
    for (uint32_t at = 0; at < blocks && result == 0 && most > 0; at += SCAN_ENTRIES) {
        uint32_t n = blocks - at < SCAN_ENTRIES ? blocks - at : SCAN_ENTRIES;
        result = far_blocks_read(t, node, at, n, entries);
        for (uint32_t i = 0; i < n && result == 0 && most > 0; i++) {
            far_block_state s = far_block_unpack(entries[2 * (size_t)i]);
            if (s.kind != FAR_BLOCK_ORPHAN || s.quarantined)
                continue;
            most--;
            far_block_id id = {node, at + i};
            result = class == NULL ? 1 : orphan_fits(t, class, id);
            if (result == 1)
                result = far_block_adopt(t, id, entries[2 * (size_t)i]);
            if (class == NULL && result > 0)
                result = 0;
        }
    }
    far_scratch_back(t, mark);
    return result;
}


int far_block_get(far_task *t, far_class *class, unsigned node) {
    int result = adopt_some(t, class, node, ORPHANS_FIRST);
    if (result != 0)
        return result;
    far_block_id id;
    bool used;
    unsigned before = heeded(t);
    result = far_blocks_take(t, node, 1, &id, &used);
    if (result == 1)
        return hold(t, id, used, NULL, before);
    return result < 0 ? result : adopt_some(t, class, node, UINT32_MAX);
}


/* Giving back. */

/* Changes the state of a block that is ours; keep_mark: also under quarantine. 1: done, 0: not now. */
static int change_owned(far_task *t, far_block_id id, far_block_state to, bool keep_mark) {
    far_block_state mine = {
        .kind = FAR_BLOCK_OWNED, .used = to.used, .id = far_task_client(t), .generation = far_task_generation(t)};
    uint64_t word = far_block_pack(&mine);
    for (;;) {
        far_block_state now = far_block_unpack(word);
        if (now.kind != FAR_BLOCK_OWNED || now.id != mine.id || now.generation != mine.generation)
            return FAR_ERR_CORRUPT;
        if (now.quarantined && !keep_mark)
            return 0;
        to.quarantined = now.quarantined;
        to.used |= now.used;
        int done = far_block_swap(t, id, &word, &to);
        if (done != 0)
            return done;
    }
}


static far_block_state owned_used(far_task *t) {
    return (far_block_state){
        .kind = FAR_BLOCK_OWNED, .used = true, .id = far_task_client(t), .generation = far_task_generation(t)};
}


int far_slab_release(far_task *t, far_addr base, bool dropped) {
    far_memory *m = far_memory_of(t);
    const far_geometry *g = geometry(t);
    pthread_mutex_lock(&m->lock);
    far_slab *slab = far_slab_of(m, base);
    if (slab == NULL || (!dropped && (slab->class->stable || !far_slab_is_free(slab)))) {
        pthread_mutex_unlock(&m->lock);
        return 0;
    }
    far_block_id id = slab->block->id;
    unsigned page = slab->page, pages = slab->pages;
    bool used = slab->block->used, touched = slab->carved > 0;
    slab->block->used |= touched;
    far_slab_remove(m, slab);
    pthread_mutex_unlock(&m->lock);

    int err = 0;
    if (touched && !used)
        err = change_owned(t, id, owned_used(t), true);
    far_fabric *fabric = far_task_fabric(t);
    if (fabric->watch != NULL)
        fabric->watch->released(fabric, base, pages * g->page_bytes);
    const uint64_t page_bits = g->page_bytes / FAR_GRANULE / 8;
    if (err >= 0 && touched)
        err = far_wipe(t, base, pages * g->page_bytes);
    if (err >= 0 && dropped)
        err = far_wipe(t, far_block_bitmap(g, id) + page * page_bits, pages * page_bits);
    if (err >= 0)
        err = far_write_word(t, far_block_page(g, id, page), 0);
    if (err < 0)
        return err;
    pthread_mutex_lock(&m->lock);
    far_held *b = far_held_find(m, id);
    if (b != NULL && !b->away)
        b->free_pages |= page_mask(page, pages);
    pthread_mutex_unlock(&m->lock);
    return 1;
}


/* A block without slabs is all zero: it becomes free by one CAS. */
static int free_empty_blocks(far_task *t) {
    far_memory *m = far_memory_of(t);
    for (;;) {
        far_block_id id = {0, 0};
        bool found = false, used = false;
        pthread_mutex_lock(&m->lock);
        for (far_held *b = m->blocks; b != NULL && !found; b = b->next)
            if (!b->away && b->free_pages == UINT64_MAX) {
                found = true;
                id = b->id;
                used = b->used;
                far_held_remove(m, b);
            }
        pthread_mutex_unlock(&m->lock);
        if (!found)
            return 0;
        far_memory_moved(t);
        int done = change_owned(t, id, (far_block_state){.kind = FAR_BLOCK_FREE, .used = used}, false);
        if (done == 0) { /* a sweep was faster */
            done = hold(t, id, used, NULL, heeded(t) - 1);
            return done < 0 ? done : 0;
        }
        if (done < 0)
            return done;
    }
}


int far_slabs_trim(far_task *t, bool all) {
    far_memory *m = far_memory_of(t);
    for (;;) {
        far_addr base = 0;
        pthread_mutex_lock(&m->lock);
        for (far_held *b = m->blocks; b != NULL && base == 0; b = b->next)
            for (unsigned p = 0; p < FAR_BLOCK_PAGES && base == 0; p++) {
                far_slab *s = b->slab[p];
                if (s != NULL && !s->class->stable && far_slab_is_free(s) && (all || s->idle >= 3))
                    base = far_block_base(geometry(t), b->id) + p * geometry(t)->page_bytes;
            }
        pthread_mutex_unlock(&m->lock);
        if (base == 0)
            break;
        int err = far_slab_release(t, base, false);
        if (err < 0)
            return err;
    }
    return free_empty_blocks(t);
}


static bool block_has_room(const far_held *b) {
    bool room = b->free_pages != 0;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES && !room; p++)
        room = b->slab[p] != NULL && (b->slab[p]->free > 0 || b->slab[p]->carved < b->slab[p]->objects);
    return room && !b->away;
}


/* Free objects go to the bitmaps, blocks become orphans: whoever needs them adopts them. */
int far_memory_leave_blocks(far_task *t, bool all) {
    far_memory *m = far_memory_of(t);
    int err = far_slabs_trim(t, true);
    while (err >= 0) {
        far_gives gives = {0};
        far_block_id id = {0, 0};
        bool away = false;
        pthread_mutex_lock(&m->lock);
        far_held *b = m->blocks;
        while (b != NULL && !all && !block_has_room(b))
            b = b->next;
        if (b != NULL) {
            id = b->id;
            away = b->away;
            far_drops_leave(m, b);
            far_held_collect(m, b, &gives);
            far_held_remove(m, b);
        }
        pthread_mutex_unlock(&m->lock);
        if (b == NULL)
            break;
        far_memory_moved(t);
        err = far_give_back(t, &gives);
        if (err == 0 && away)
            err = far_drops_leave_away(t, id);
        if (err == 0)
            err = change_owned(t, id, (far_block_state){.kind = FAR_BLOCK_ORPHAN, .used = true}, true);
        if (err == FAR_ERR_CORRUPT && away)
            err = 0; /* the sweep that covered it made it free, which we have not heard of yet */
    }
    return err < 0 ? err : 0;
}


/* Classes stay; sessions that close add some to the handle's own. */
static far_class *next_class(far_memory *m, unsigned bucket, const far_class *after) {
    pthread_mutex_lock(&m->lock);
    far_class *next = after == NULL ? m->classes[bucket] : after->next;
    pthread_mutex_unlock(&m->lock);
    return next;
}


/* Others have given back meanwhile. */
void far_memory_look_again(far_memory *m) {
    pthread_mutex_lock(&m->lock);
    m->scoured = 0;
    for (far_held *b = m->blocks; b != NULL; b = b->next)
        for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
            if (b->slab[p] != NULL)
                b->slab[p]->looked = 0;
    pthread_mutex_unlock(&m->lock);
}


/* Those of this epoch apart: far_memory_look_again. */
int far_slabs_look(far_task *t) {
    far_memory *m = far_memory_of(t);
    int result = 0;
    for (unsigned i = 0; i < FAR_CLASS_BUCKETS; i++)
        for (far_class *c = next_class(m, i, NULL); c != NULL; c = next_class(m, i, c))
            for (unsigned node = 0; node < geometry(t)->nodes && result == 0; node++)
                while ((result = far_slab_look(t, c, node)) == 1)
                    continue;
    return result;
}


int far_scour(far_task *t) {
    far_memory *m = far_memory_of(t);
    uint64_t epoch = far_epoch_known(t);
    if (m->scoured == epoch)
        return 0;
    m->scoured = epoch;
    int result = 0;
    for (unsigned node = 0; node < geometry(t)->nodes && result == 0; node++)
        result = adopt_some(t, NULL, node, UINT32_MAX);
    if (result == 0)
        result = far_slabs_look(t);
    if (result == 0)
        result = far_slabs_trim(t, true);
    return result < 0 ? result : 1;
}
