/* The tables of the allocator in far memory (blocks.h): size classes, functions that read the tables of all blocks, and
 * the verbs that change block entries. */
#include "pool/alloc/blocks.h"

#include "base/error.h"
#include "pool/alloc/alloc.h"
#include "pool/handle.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define SCAN_ENTRIES   512u /* number of block entries that one READ reads */
#define TABLES_AT_ONCE 32u  /* number of blocks for which tables are read in one round trip (up to 1 MiB) */
#define WIPE_BYTES     (256u << 10)
/* a slab has at most this many pages, unless a slab of this size could hold no object or would waste too much */
#define SMALL_SLAB_PAGES 8u


/* Rounds up to a multiple of 16 bytes up to 4 KiB, and to one of 64 steps per doubling above. The latter adds less than
 * 1/64, which leaves some of the tolerated 3 % for the waste at the end of slabs. */
uint64_t far_alloc_round(uint64_t size) {
    if (size == 0)
        size = 1;
    uint64_t step = FAR_GRANULE;
    if (size > 4096)
        step = 1ull << (63 - __builtin_clzll(size) - 6);
    return (size + step - 1) / step * step;
}


uint64_t far_size_class(const far_geometry *g, uint64_t size, unsigned align) {
    if (size > g->block_bytes)
        return 0;
    size = far_alloc_round(size);
    return (size + align - 1) / align * align;
}


uint64_t far_object_bytes_max(const far_pool *pool) {
    return pool->geometry.block_bytes;
}


uint64_t far_memory_bytes(const far_pool *pool) {
    uint64_t bytes = 0;
    for (unsigned n = 0; n < pool->geometry.nodes; n++)
        bytes += pool->geometry.node_bytes[n];
    return bytes;
}


/* Returns the smallest number of pages, up to a quarter of a block, that wastes at most 3 % of a slab and, if the objects
 * are small, holds at least eight of them. If no number satisfies this, returns the smallest number with which a block
 * holds most objects. */
unsigned far_slab_pages(uint64_t page_bytes, uint64_t size) {
    const uint64_t enough = 8 * size <= SMALL_SLAB_PAGES * page_bytes ? 8 : 1;
    unsigned best = 0;
    uint64_t most = 0;
    for (unsigned n = 1; n <= FAR_BLOCK_PAGES; n++) {
        uint64_t bytes = n * page_bytes, objects = bytes / size, waste = bytes - objects * size;
        if (n <= FAR_BLOCK_PAGES / 4 && objects >= enough && waste * 100 <= bytes * 3)
            return n;
        if (FAR_BLOCK_PAGES / n * objects > most) {
            best = n;
            most = FAR_BLOCK_PAGES / n * objects;
        }
    }
    return best;
}


bool far_page_is_sound(const far_geometry *g, unsigned page, uint64_t word) {
    far_page_state s = far_page_unpack(word);
    return s.in_use && s.pages != 0 && s.pages <= FAR_BLOCK_PAGES - page && s.size != 0 && far_page_pack(&s) == word &&
           far_slab_objects(g->page_bytes, &s) != 0;
}


bool far_pages_are_sound(const far_geometry *g, const uint64_t pages[FAR_BLOCK_PAGES]) {
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
        if (pages[p] == 0)
            continue;
        if (!far_page_is_sound(g, p, pages[p]))
            return false;
        far_page_state s = far_page_unpack(pages[p]);
        for (unsigned q = p + 1; q < p + s.pages; q++)
            if (pages[q] != 0)
                return false;
        p += s.pages - 1;
    }
    return true;
}


uint64_t far_marks_check(const far_geometry *g, far_block_id b, uint32_t collection, const uint64_t *marks) {
    return XXH3_64bits_withSeed(marks, far_bitmap_bytes(g), far_stamp_pack(g, b, collection));
}


bool far_may_be_object(const far_task *t, far_addr addr, uint64_t size) {
    return far_blocks_contain(far_geometry_of(t), addr, size);
}


int far_blocks_read(far_task *t, unsigned node, uint32_t first, uint32_t count, uint64_t *entries) {
    const far_geometry *g = far_geometry_of(t);
    const uint32_t most = FAR_VERB_BYTES_MAX / FAR_BLOCK_ENTRY_BYTES;
    for (uint32_t at = 0; at < count; at += most) {
        uint32_t n = count - at < most ? count - at : most;
        far_read(t, far_block_entry(g, (far_block_id){node, first + at}), entries + FAR_BLOCK_ENTRY_WORDS * (size_t)at,
                 n * FAR_BLOCK_ENTRY_BYTES);
    }
    return far_wait(t);
}


int far_blocks_each(far_task *t, int (*each)(far_task *t, void *ctx, far_block_id b, const uint64_t *entry),
                    void *ctx) {
    const far_geometry *g = far_geometry_of(t);
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t *entries = far_scratch(t, SCAN_ENTRIES * FAR_BLOCK_ENTRY_BYTES);
    int err = !entries ? far_fail(FAR_ERR_NO_MEMORY, "no local memory to read the table of blocks") : 0;
    for (unsigned node = 0; node < g->nodes; node++)
        for (uint32_t at = 0; at < g->node[node].blocks && err == 0; at += SCAN_ENTRIES) {
            uint32_t left = (uint32_t)g->node[node].blocks - at, n = left < SCAN_ENTRIES ? left : SCAN_ENTRIES;
            err = far_blocks_read(t, node, at, n, entries);
            for (uint32_t i = 0; i < n && err == 0; i++)
                err = each(t, ctx, (far_block_id){node, at + i}, entries + FAR_BLOCK_ENTRY_WORDS * (size_t)i);
        }
    far_scratch_back(t, mark);
    return err;
}


int far_tables_read(far_task *t, far_tables *blocks, unsigned count) {
    const far_geometry *g = far_geometry_of(t);
    for (far_tables *b = blocks; b < blocks + count; b++) {
        far_read(t, far_block_page(g, b->id, 0), b->pages, sizeof(b->pages));
        far_read(t, far_block_bitmap(g, b->id), b->bits, far_bitmap_bytes(g));
    }
    return far_wait(t);
}


typedef struct tables_batch {
    bool (*wanted)(void *ctx, far_block_id b, const uint64_t *entry);
    int (*each)(far_task *t, void *ctx, far_tables *b);
    void *ctx;
    far_tables blocks[TABLES_AT_ONCE];
    unsigned count;
} tables_batch;


static int finish_batch(far_task *t, tables_batch *batch) {
    int err = far_tables_read(t, batch->blocks, batch->count);
    for (unsigned i = 0; i < batch->count && err == 0; i++)
        err = batch->each(t, batch->ctx, &batch->blocks[i]);
    batch->count = 0;
    return err;
}


static int add_to_batch(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    tables_batch *batch = ctx;
    if (batch->wanted && !batch->wanted(batch->ctx, id, entry))
        return 0;
    far_tables *b = &batch->blocks[batch->count++];
    b->id = id;
    memcpy(b->entry, entry, sizeof(b->entry));
    return batch->count == TABLES_AT_ONCE ? finish_batch(t, batch) : 0;
}


int far_tables_each(far_task *t, bool (*wanted)(void *ctx, far_block_id b, const uint64_t *entry),
                    int (*each)(far_task *t, void *ctx, far_tables *b), void *ctx) {
    uint64_t bytes = far_bitmap_bytes(far_geometry_of(t));
    far_scratch_mark mark = far_scratch_here(t);
    tables_batch *batch = far_scratch(t, sizeof(*batch));
    uint64_t *bits = far_scratch(t, TABLES_AT_ONCE * bytes);
    int err = !batch || !bits ? far_fail(FAR_ERR_NO_MEMORY, "no local memory to read the tables of blocks") : 0;
    if (err == 0) {
        *batch = (tables_batch){.wanted = wanted, .each = each, .ctx = ctx};
        for (unsigned i = 0; i < TABLES_AT_ONCE; i++)
            batch->blocks[i].bits = bits + i * (bytes / sizeof(*bits));
        err = far_blocks_each(t, add_to_batch, batch);
    }
    if (err == 0)
        err = finish_batch(t, batch);
    far_scratch_back(t, mark);
    return err;
}


static int fail_for_broken_pages(far_block_id b) {
    return far_fail(FAR_ERR_CORRUPT, "the page words of block %u of node %u are damaged", b.index, b.node);
}


int far_tables_reread(far_task *t, far_tables *b, unsigned attempt) {
    far_back_off(t, attempt);
    int err = far_blocks_read(t, b->id.node, b->id.index, 1, b->entry);
    return err < 0 ? err : far_tables_read(t, b, 1);
}


int far_tables_read_until_sound(far_task *t, far_tables *b) {
    int err = 0;
    for (unsigned tries = 1; err == 0 && !far_pages_are_sound(far_geometry_of(t), b->pages); tries++)
        err = tries == FAR_TABLES_READS_MAX ? fail_for_broken_pages(b->id) : far_tables_reread(t, b, tries);
    return err;
}


int far_pages_read(far_task *t, far_block_id b, uint64_t pages[FAR_BLOCK_PAGES]) {
    far_read(t, far_block_page(far_geometry_of(t), b, 0), pages, FAR_BLOCK_PAGES * 8);
    int err = far_wait(t);
    return err < 0 || far_pages_are_sound(far_geometry_of(t), pages) ? err : fail_for_broken_pages(b);
}


int far_block_cas_state(far_task *t, far_block_id b, uint64_t *word, const far_block_state *to) {
    uint64_t old;
    assert(b.index < far_geometry_of(t)->node[b.node].blocks && to->kind < FAR_BLOCK_KINDS);
    int err = far_cas_word(t, far_block_entry(far_geometry_of(t), b), *word, far_block_pack(to), &old);
    if (err < 0)
        return err;
    if (old == *word) {
        *word = far_block_pack(to);
        return 1;
    }
    *word = old;
    return 0;
}


int far_wipe(far_task *t, far_addr addr, uint64_t bytes) {
    far_scratch_mark mark = far_scratch_here(t);
    size_t chunk = bytes < WIPE_BYTES ? bytes : WIPE_BYTES;
    void *zeros = far_scratch(t, chunk);
    if (!zeros)
        return FAR_ERR_NO_MEMORY;
    memset(zeros, 0, chunk);
    for (uint64_t at = 0; at < bytes; at += chunk) {
        far_write(t, addr + at, zeros, bytes - at < chunk ? bytes - at : chunk);
        far_mark(t, FAR_VERB_SYSTEM);
    }
    int err = far_wait(t);
    far_scratch_back(t, mark);
    return err;
}


/* Returns the state of a block that this handle owns. Whether the memory of the block was in use before is recorded
 * only in local memory, by the owner. The block entry in far memory therefore always contains `used`, so that the block
 * counts as used if its owner fails. */
far_block_state far_own_block_state(far_task *t) {
    const far_session *own = far_task_pool(t)->team.own;
    return (far_block_state){.kind = FAR_BLOCK_OWNED, .used = true, .id = own->id, .generation = own->generation};
}
