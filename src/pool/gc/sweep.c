/* In the sweep phase, which follows the mark phase of a collection, every owner frees the leaked objects in its own
 * blocks. An object is leaked if it is not marked, its free bit is clear, and it is neither in the store nor black;
 * README.md proves that no live client holds such an object. The owner also withdraws objects from the store that were
 * there the whole time although the mark phase reached them. Such an object is in use, and damage had set its free bit
 * (false_free.h). Only active handles sweep, because the collector of the next collection overwrites the marks as soon
 * as all active handles have acknowledged its first request. */
#include "base/error.h"
#include "pool/alloc/store.h"
#include "pool/catalog/layout.h"
#include "pool/gc/request.h"

#include <assert.h>
#include <string.h>

#define STEP_BYTES  (1u << 20) /* bytes of tables that are read in one step */
#define STEP_BLOCKS 128u

typedef struct block_tables { /* the tables of one block, as read after the collector wrote DONE */
    far_block_id id;
    uint64_t *bits, *marks, check;
} block_tables;

typedef struct sweep_pass {
    far_store *s;
    const far_catalog_view *view;
    bool count_only;
    uint64_t leaked;
    uint64_t epoch; /* epoch of the pin of the sweeping task */
} sweep_pass;


static int read_bits_and_marks(far_task *t, block_tables *blocks, unsigned count) {
    const far_geometry *g = far_geometry_of(t);
    for (unsigned i = 0; i < count; i++) {
        blocks[i].bits = far_scratch(t, far_bitmap_bytes(g));
        blocks[i].marks = far_scratch(t, far_bitmap_bytes(g));
        if (!blocks[i].bits || !blocks[i].marks)
            return far_fail(FAR_ERR_NO_MEMORY, "no local memory to read bitmaps");
        far_read(t, far_block_bitmap(g, blocks[i].id), blocks[i].bits, far_bitmap_bytes(g));
        far_read(t, far_block_marks(g, blocks[i].id), blocks[i].marks, far_bitmap_bytes(g));
        far_read(t, far_block_marks_check(g, blocks[i].id), &blocks[i].check, 8);
    }
    return far_wait(t);
}


/* If the marks are damaged or belong to another collection, all objects of the block count as marked, and another
 * collection is requested to find its leaked objects. */
static void check_marks(far_store *s, const block_tables *b, uint32_t collection) {
    const far_geometry *g = &s->pool->geometry;
    if (b->check == far_marks_check(g, b->id, collection, b->marks))
        return;
    memset(b->marks, 0xff, far_bitmap_bytes(g));
    far_memory_note_leak(s->pool);
}


/* Returns how many epochs longer than usual the objects of a class must wait before they are reused. The type of an
 * index that is not open here is unknown, so the longest wait of any kind is used. */
static unsigned find_extra_epochs(const far_store *s, const far_class *class) {
    const far_type *info = far_class_info(class);
    unsigned most = info ? info->extra_epochs : 0;
    const far_index_kind *const *kinds = s->pool->kinds;
    for (unsigned k = 0; !info && kinds[k]; k++)
        for (unsigned i = 0; i < kinds[k]->type_count; i++)
            if (kinds[k]->types[i].extra_epochs > most)
                most = kinds[k]->types[i].extra_epochs;
    return most;
}


/* With the lock of the store and of the handle's system session held, frees a leaked object. If its type demands a
 * longer wait, the object is retired now, because it may have been unlinked only a few epochs ago. */
static void free_leaked_object(sweep_pass *j, far_slab *slab, uint32_t number) {
    far_store *s = j->s;
    far_class *class = slab->class;
    far_addr addr = far_slab_base(s, slab) + number * class->size;
    unsigned extra = find_extra_epochs(s, class);
    j->leaked += class->size;
    if (j->count_only)
        return;
    if (extra > 0) {
        far_queue_add(s->pool->team.own->memory, (far_retired){addr, class, j->epoch, j->epoch + extra});
        return;
    }
    if (s->pool->fabric->watch)
        s->pool->fabric->watch->freed(s->pool->fabric, addr, class->size, class->stable);
    far_store_add_free(s, class, addr, UINT64_MAX);
}


/* Sweeps one slab. `covered` is true if this part of the collection has marked the block. */
static void sweep_slab(sweep_pass *j, far_slab *slab, const block_tables *b, bool covered) {
    const far_geometry *g = &j->s->pool->geometry;
    const uint64_t first = slab->page * (g->page_bytes / FAR_GRANULE);
    uint32_t uid = slab->class->uid;
    assert(slab->stored <= slab->carved && slab->carved <= slab->objects);
    if (far_class_index_is_gone(slab->class) && !far_catalog_find_uid(j->view, uid))
        return; /* the index of the slab is dropped or being created; dropped.c handles both cases */
    for (uint32_t n = 0; n < slab->carved; n++) {
        uint64_t at = first + n * (slab->class->size / FAR_GRANULE), bit = 1ull << at % 64;
        bool stored = slab->in_store[n / 64] >> n % 64 & 1, black = slab->black[n / 64] >> n % 64 & 1;
        if (!stored && !black && ((b->bits[at / 64] | b->marks[at / 64]) & bit) == 0)
            free_leaked_object(j, slab, n);
        else if (stored && !black && covered && b->marks[at / 64] & bit)
            far_store_withdraw(j->s, slab, n);
    }
}


/* Returns whether the collection has marked this block. In a collection in parts, the collector sets all bits of the
 * blocks that belong to another part, even where no object begins. */
static bool block_was_marked(const far_geometry *g, const uint64_t *marks) {
    uint64_t all = UINT64_MAX;
    for (uint64_t w = 0; w < far_bitmap_bytes(g) / sizeof(*marks); w++)
        all &= marks[w];
    return all != UINT64_MAX;
}


/* Sweeps one block for the observed collection, which frees its leaked objects. The caller holds the store's lock. */
static void sweep_block(sweep_pass *j, far_owned_block *block, const block_tables *b) {
    bool covered = block_was_marked(&j->s->pool->geometry, b->marks);
    for (far_slab *slab = far_slab_in(block, NULL); slab; slab = far_slab_in(block, slab))
        sweep_slab(j, slab, b, covered);
    far_owned_block_set_stamp(block, j->s->handshake.collection);
}


/* Sweeps these blocks for the collection, unless the handle has observed a newer one in the meantime. */
static int sweep_blocks(far_task *t, block_tables *blocks, unsigned count, uint32_t collection, uint64_t done) {
    far_store *s = far_store_of(t);
    far_catalog_view view;
    assert(s->block_task == t && t->pin.epoch != 0);
    int err = read_bits_and_marks(t, blocks, count);
    if (err == 0)
        err = far_catalog_read(t, &view);
    if (err < 0)
        return err;
    for (unsigned i = 0; i < count; i++)
        check_marks(s, &blocks[i], collection);
    far_point(t, "sweep:tables_read");
    sweep_pass j = {.s = s, .view = &view, .count_only = far_done_count_only(done), .epoch = t->pin.epoch};
    far_memory *own = s->pool->team.own->memory;
    far_mutex_lock(&own->lock);
    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < count && s->handshake.collection == collection; i++) {
        far_owned_block *b = far_owned_block_at(s, far_block_base(&s->pool->geometry, blocks[i].id));
        if (b)
            sweep_block(&j, b, &blocks[i]);
    }
    s->sweep.leaked += j.leaked;
    pthread_mutex_unlock(&s->lock);
    far_mutex_unlock(&own->lock);
    return 0;
}


/* With the store's lock held, chooses the next own blocks that are not swept yet. */
static unsigned choose_unswept_blocks(far_store *s, block_tables *blocks) {
    const uint64_t bytes = 2 * far_bitmap_bytes(&s->pool->geometry);
    unsigned count = 0;
    for (far_owned_block *b = far_owned_block_next(s, NULL); b && count < STEP_BLOCKS; b = far_owned_block_next(s, b)) {
        if (b->stamp == s->handshake.collection || far_number_is_newer(b->stamp, s->handshake.collection))
            continue;
        if (count > 0 && (count + 1) * bytes > STEP_BYTES)
            break;
        blocks[count++] = (block_tables){.id = b->id};
    }
    return count;
}


void far_sweep_begin(far_store *s, bool missed) {
    s->sweep.missed_sweep |= missed;
    s->sweep.leaked = 0;
}


/* With the store's lock held, returns whether the observed collection is not swept yet and its marks are valid. */
static bool sweep_is_due(const far_store *s, uint64_t done) {
    return far_sweep_is_pending(s) && far_done_collection(done) == s->handshake.collection;
}


bool far_sweep_is_due(far_store *s) {
    pthread_mutex_lock(&s->lock);
    bool due = sweep_is_due(s, atomic_load_explicit(&s->handshake.superblock.done, memory_order_acquire));
    pthread_mutex_unlock(&s->lock);
    return due;
}


int far_sweep_step(far_task *t) {
    far_store *s = far_store_of(t);
    uint64_t done = atomic_load_explicit(&s->handshake.superblock.done, memory_order_acquire);
    block_tables blocks[STEP_BLOCKS];
    unsigned count = 0;
    pthread_mutex_lock(&s->lock);
    uint32_t collection = s->handshake.collection;
    if (sweep_is_due(s, done) && (count = choose_unswept_blocks(s, blocks)) == 0) {
        /* from now on the black bits have no meaning, and no black bit is set until the next collection is observed */
        s->sweep.swept = collection;
        if (!far_done_count_only(done))
            s->sweep.missed_sweep = false;
        /* another collection is needed, because this one only counted leaked objects, and the missed one would have
         * freed them */
        else if (s->sweep.missed_sweep)
            far_memory_note_leak(s->pool);
    }
    pthread_mutex_unlock(&s->lock);
    if (count == 0)
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    int err = sweep_blocks(t, blocks, count, collection, done);
    far_scratch_back(t, mark);
    return err < 0 ? err : 1;
}


int far_sweep_block(far_task *t, far_owned_block *block) {
    far_store *s = far_store_of(t);
    uint64_t done = atomic_load_explicit(&s->handshake.superblock.done, memory_order_acquire);
    block_tables one = {.id = block->id};
    pthread_mutex_lock(&s->lock);
    uint32_t collection = s->handshake.collection;
    bool due = !far_sweep_is_pending(s) && far_done_collection(done) == collection && !far_done_count_only(done) &&
               far_number_is_newer(collection, block->stamp);
    pthread_mutex_unlock(&s->lock);
    /* the block needs no sweep now, because there is nothing to sweep, or because the block is swept together with the
     * other own blocks */
    if (!due)
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    int err = sweep_blocks(t, &one, 1, collection, done);
    far_scratch_back(t, mark);
    return err;
}
