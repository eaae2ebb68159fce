/* Settling a sweep: every owner frees in its own blocks what the walk did not meet. That is sound for an object that is
 * not marked, not home, not in store and not black: nobody alive holds it (README.md has the argument). And what lay in store all
 * the time and was met by the walk is in use: it was home by damage (false_home.h), and is not handed out. Only awake
 * handles settle: the marks of a sweep are overwritten when all that are awake have heard of the next. */
#include "base/error.h"
#include "pool/catalog_layout.h"
#include "pool/request.h"
#include "pool/store.h"

#include <assert.h>
#include <string.h>

#define STEP_BYTES  (1u << 20) /* of tables read in one step */
#define STEP_BLOCKS 128u

typedef struct judged { /* a block, and its tables as read after the sweep was done */
    far_block_id id;
    uint64_t *bits, *marks, check;
} judged;

typedef struct judgement {
    far_store *s;
    const far_catalog_view *view;
    bool count_only;
    uint64_t leaked;
    uint64_t epoch; /* of the pin of the task that judges */
} judgement;


static int read_tables(far_task *t, judged *blocks, unsigned count) {
    const far_geometry *g = far_geometry_of(t);
    for (unsigned i = 0; i < count; i++) {
        blocks[i].bits = far_scratch(t, far_bitmap_bytes(g));
        blocks[i].marks = far_scratch(t, far_bitmap_bytes(g));
        if (!blocks[i].bits || !blocks[i].marks)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory to read bitmaps");
        far_read(t, far_block_bitmap(g, blocks[i].id), blocks[i].bits, far_bitmap_bytes(g));
        far_read(t, far_block_marks(g, blocks[i].id), blocks[i].marks, far_bitmap_bytes(g));
        far_read(t, far_block_marks_check(g, blocks[i].id), &blocks[i].check, 8);
    }
    return far_wait(t);
}


/* Damaged marks, or those of another sweep: all counts as met, and the next sweep finds what is lost. */
static void prove_marks(far_store *s, const judged *b, uint32_t sweep) {
    const far_geometry *g = &s->pool->geometry;
    if (b->check == far_marks_check(g, b->id, sweep, b->marks))
        return;
    memset(b->marks, 0xff, far_bitmap_bytes(g));
    atomic_store_explicit(&s->wants_sweep, true, memory_order_relaxed);
}


/* How many epochs longer than others the objects of a class must wait before they are used again. An index that is not
 * open here does not tell: then as long as any kind asks for. */
static unsigned extra_epochs(const far_store *s, const far_class *class) {
    const far_type *info = far_class_info(class);
    unsigned most = info ? info->extra_epochs : 0;
    const far_index_kind *const *kinds = s->pool->kinds;
    for (unsigned k = 0; !info && kinds[k]; k++)
        for (unsigned i = 0; i < kinds[k]->type_count; i++)
            if (kinds[k]->types[i].extra_epochs > most)
                most = kinds[k]->types[i].extra_epochs;
    return most;
}


/* With the locks of the store and of the own session: an object that nobody has. If its type asks for a longer wait it
 * is retired now: whoever unlinked it may have done so a few epochs ago only. */
static void free_lost(judgement *j, far_slab *slab, uint32_t number) {
    far_store *s = j->s;
    far_class *class = slab->class;
    far_addr addr = far_slab_base(s, slab) + number * class->size;
    unsigned extra = extra_epochs(s, class);
    j->leaked += class->size;
    if (j->count_only)
        return;
    if (extra > 0) {
        far_queue_put(s->pool->team.own->memory, (far_retired){addr, class, j->epoch, j->epoch + extra});
        return;
    }
    if (s->pool->fabric->watch)
        s->pool->fabric->watch->freed(s->pool->fabric, addr, class->size, class->stable);
    far_store_put(s, class, addr, UINT64_MAX);
}


/* covered: by this part of the sweep. */
static void judge_slab(judgement *j, far_slab *slab, const judged *b, bool covered) {
    const far_geometry *g = &j->s->pool->geometry;
    const uint64_t first = slab->page * (g->page_bytes / FAR_GRANULE);
    uint32_t uid = slab->class->uid;
    assert(slab->stored <= slab->carved && slab->carved <= slab->objects);
    if (uid != 0 && !far_class_index(slab->class) && !far_catalog_find_uid(j->view, uid))
        return; /* its index was dropped, or is just being created: unlisted.c */
    for (uint32_t n = 0; n < slab->carved; n++) {
        uint64_t at = first + n * (slab->class->size / FAR_GRANULE), bit = 1ull << at % 64;
        bool stored = slab->in_store[n / 64] >> n % 64 & 1, black = slab->black[n / 64] >> n % 64 & 1;
        if (!stored && !black && ((b->bits[at / 64] | b->marks[at / 64]) & bit) == 0)
            free_lost(j, slab, n);
        else if (stored && !black && covered && b->marks[at / 64] & bit)
            far_store_withdraw(j->s, slab, n);
    }
}


/* Of a block that a sweep in parts does not cover all is marked, also where no object begins. */
static bool is_covered(const far_geometry *g, const uint64_t *marks) {
    uint64_t all = UINT64_MAX;
    for (uint64_t w = 0; w < far_bitmap_bytes(g) / sizeof(*marks); w++)
        all &= marks[w];
    return all != UINT64_MAX;
}


/* With the lock. */
static void judge_block(judgement *j, far_held *block, const judged *b) {
    bool covered = is_covered(&j->s->pool->geometry, b->marks);
    for (far_slab *slab = far_slab_in(block, NULL); slab; slab = far_slab_in(block, slab))
        judge_slab(j, slab, b, covered);
    block->stamp = j->s->sweep;
}


/* Settles these blocks for the sweep, if it still is the last one heard of. */
static int settle_these(far_task *t, judged *blocks, unsigned count, uint32_t sweep, uint64_t done) {
    far_store *s = far_store_of(t);
    far_catalog_view view;
    assert(s->inside == t && t->pin.epoch != 0);
    int err = read_tables(t, blocks, count);
    if (err == 0)
        err = far_catalog_look(t, &view);
    if (err < 0)
        return err;
    for (unsigned i = 0; i < count; i++)
        prove_marks(s, &blocks[i], sweep);
    far_point(t, "settle:read");
    judgement j = {.s = s, .view = &view, .count_only = far_done_count_only(done), .epoch = t->pin.epoch};
    far_memory *own = s->pool->team.own->memory;
    far_mutex_lock(&own->lock);
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < count && s->sweep == sweep; i++) {
        far_held *b = far_held_at(s, far_block_base(&s->pool->geometry, blocks[i].id));
        if (b)
            judge_block(&j, b, &blocks[i]);
    }
    s->leaked += j.leaked;
    pthread_mutex_unlock(&s->lock);
    far_mutex_unlock(&own->lock);
    if (j.leaked > 0 && !j.count_only)
        far_memory_returned(s);
    return 0;
}


/* With the lock: the next own blocks that are to be settled. */
static unsigned choose(far_store *s, judged *blocks) {
    const uint64_t bytes = 2 * far_bitmap_bytes(&s->pool->geometry);
    unsigned count = 0;
    for (far_held *b = far_held_next(s, NULL); b && count < STEP_BLOCKS; b = far_held_next(s, b)) {
        if (b->stamp == s->sweep || far_number_is_newer(b->stamp, s->sweep))
            continue;
        if (count > 0 && (count + 1) * bytes > STEP_BYTES)
            break;
        blocks[count++] = (judged){.id = b->id};
    }
    return count;
}


/* With the lock: the sweep that was heard of is not settled, and its marks count. */
static bool is_due(const far_store *s, uint64_t done) {
    return far_is_unsettled(s) && far_done_sweep(done) == s->sweep;
}


bool far_settle_is_due(far_store *s) {
    pthread_mutex_lock(&s->lock);
    bool due = is_due(s, atomic_load_explicit(&s->line.done, memory_order_acquire));
    pthread_mutex_unlock(&s->lock);
    return due;
}


/* 1: there is more to be done. */
int far_settle_step(far_task *t) {
    far_store *s = far_store_of(t);
    uint64_t done = atomic_load_explicit(&s->line.done, memory_order_acquire);
    judged blocks[STEP_BLOCKS];
    unsigned count = 0;
    pthread_mutex_lock(&s->lock);
    uint32_t sweep = s->sweep;
    if (is_due(s, done) && (count = choose(s, blocks)) == 0) {
        s->settled = sweep; /* what was in hand since it was heard of counts no more */
        if (!far_done_count_only(done))
            s->missed = false;
        else if (s->missed) /* what that one would have freed is only counted */
            atomic_store_explicit(&s->wants_sweep, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&s->lock);
    if (count == 0)
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    int err = settle_these(t, blocks, count, sweep, done);
    far_scratch_back(t, mark);
    return err < 0 ? err : 1;
}


int far_settle_block(far_task *t, far_held *block) {
    far_store *s = far_store_of(t);
    uint64_t done = atomic_load_explicit(&s->line.done, memory_order_acquire);
    judged one = {.id = block->id};
    pthread_mutex_lock(&s->lock);
    uint32_t sweep = s->sweep;
    bool due = !far_is_unsettled(s) && far_done_sweep(done) == sweep && !far_done_count_only(done) &&
               far_number_is_newer(sweep, block->stamp);
    pthread_mutex_unlock(&s->lock);
    if (!due) /* nothing to be done, or it is done with the other own blocks */
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    int err = settle_these(t, &one, 1, sweep, done);
    far_scratch_back(t, mark);
    return err;
}
