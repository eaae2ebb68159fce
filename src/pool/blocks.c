#include "pool/blocks.h"

#include "pool/memory.h"

#include <string.h>

#define SCAN_ENTRIES     1024u
#define WIPE_BYTES       (256u << 10)
#define SMALL_SLAB_PAGES 8u /* slabs are not made larger than this only to hold several objects */


uint64_t far_block_number(const far_geometry *g, far_block_id b) {
    uint64_t before = 0;
    for (unsigned n = 0; n < b.node; n++)
        before += g->node[n].blocks;
    return before + b.index;
}


uint64_t far_block_total(const far_geometry *g) {
    return far_block_number(g, (far_block_id){.node = g->nodes, .index = 0});
}


/* Steps of 16 bytes to 4 KiB, then 64 steps per doubling: less than 1/64 too much, which leaves room for the waste of
 * slabs. */
uint64_t far_alloc_round(uint64_t size) {
    if (size == 0)
        size = 1;
    uint64_t step = FAR_GRANULE;
    if (size > 4096)
        step = 1ull << (63 - __builtin_clzll(size) - 6);
    return (size + step - 1) / step * step;
}


uint64_t far_size_class(uint64_t size, unsigned align) {
    if (size > FAR_NODE_BYTES_MAX)
        return 0;
    size = far_alloc_round(size);
    return (size + align - 1) / align * align;
}


bool far_size_is_run(const far_geometry *g, uint64_t size) {
    return size >= g->block_bytes;
}


/* The fewest pages that waste at most 3 %, with at least 8 objects if these are small; else those that waste least. */
unsigned far_slab_pages(uint64_t page_bytes, uint64_t size) {
    const uint64_t enough = 8 * size <= SMALL_SLAB_PAGES * page_bytes ? 8 : 1;
    unsigned best = 0;
    uint64_t best_waste = 0;
    for (unsigned n = 1; n <= FAR_BLOCK_PAGES; n++) {
        uint64_t bytes = n * page_bytes, objects = bytes / size, waste = bytes - objects * size;
        if (objects == 0)
            continue;
        if (objects >= enough && waste * 100 <= bytes * 3)
            return n;
        if (best == 0 || waste * best < best_waste * n) {
            best = n;
            best_waste = waste;
        }
    }
    return best;
}


bool far_pages_sound(const far_geometry *g, const uint64_t pages[FAR_BLOCK_PAGES]) {
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
        if (pages[p] == 0)
            continue;
        far_page_state s = far_page_unpack(pages[p]);
        if (!s.in_use || s.pages == 0 || s.pages > FAR_BLOCK_PAGES - p || s.size == 0 || s.size >= g->block_bytes ||
            far_page_pack(&s) != pages[p] || far_slab_objects(g->page_bytes, &s) == 0)
            return false;
        for (unsigned q = p + 1; q < p + s.pages; q++)
            if (pages[q] != 0)
                return false;
        p += s.pages - 1;
    }
    return true;
}


static const far_geometry *geometry(far_task *t) {
    return &far_task_pool(t)->geometry;
}


int far_blocks_read(far_task *t, unsigned node, uint32_t first, uint32_t count, uint64_t *entries) {
    const far_geometry *g = geometry(t);
    const uint32_t most = FAR_VERB_BYTES_MAX / FAR_BLOCK_ENTRY_BYTES;
    for (uint32_t at = 0; at < count; at += most) {
        uint32_t n = count - at < most ? count - at : most;
        far_read(t, far_block_entry(g, (far_block_id){node, first + at}), entries + 2 * (size_t)at,
                 n * FAR_BLOCK_ENTRY_BYTES);
    }
    return far_wait(t);
}


int far_block_swap(far_task *t, far_block_id b, uint64_t *word, const far_block_state *to) {
    uint64_t old;
    int err = far_cas_word(t, far_block_entry(geometry(t), b), *word, far_block_pack(to), &old);
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
    if (zeros == NULL)
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


static far_block_state owned_by(far_task *t, bool used, bool quarantined) {
    return (far_block_state){.kind = FAR_BLOCK_OWNED,
                             .used = used,
                             .quarantined = quarantined,
                             .id = far_task_client(t),
                             .generation = far_task_generation(t)};
}


/* Makes free again what was taken and not used. */
static int untake(far_task *t, far_block_id first, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        far_block_id b = {first.node, first.index + i};
        far_block_state mine = owned_by(t, false, false);
        for (uint64_t word = far_block_pack(&mine);;) {
            far_block_state now = far_block_unpack(word);
            now.kind = FAR_BLOCK_FREE;
            int done = far_block_swap(t, b, &word, &now);
            if (done < 0)
                return done;
            if (done)
                break;
            now = far_block_unpack(word);
            if (now.kind != FAR_BLOCK_OWNED || now.id != mine.id || now.generation != mine.generation)
                return FAR_ERR_CORRUPT;
        }
    }
    return 0;
}


/* 1: all are ours; 0: somebody was faster with one of them, which is what *lost says. */
static int take_each(far_task *t, far_block_id first, uint32_t count, const uint64_t *words, bool *used,
                     uint32_t *lost) {
    *used = false;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t word = words[2 * (size_t)i];
        far_block_state was = far_block_unpack(word), mine = owned_by(t, was.used, false);
        int done = far_block_swap(t, (far_block_id){first.node, first.index + i}, &word, &mine);
        if (done == 1) {
            /* We may have had it before a sweep made it free, and not have heard of that yet. */
            far_memory_forget(t, (far_block_id){first.node, first.index + i});
            *used |= was.used;
            continue;
        }
        int err = untake(t, first, i);
        *lost = i;
        return done < 0 ? done : err;
    }
    return 1;
}


static bool is_free(uint64_t word) {
    far_block_state s = far_block_unpack(word);
    return s.kind == FAR_BLOCK_FREE && !s.quarantined;
}


int far_blocks_take(far_task *t, unsigned node, uint32_t count, far_block_id *first, bool *used) {
    uint32_t blocks = (uint32_t)geometry(t)->node[node].blocks;
    if (count > blocks)
        return 0;
    uint32_t window = count + SCAN_ENTRIES < blocks ? count + SCAN_ENTRIES : blocks;
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t *entries = far_scratch(t, (size_t)window * FAR_BLOCK_ENTRY_BYTES);
    int result = entries == NULL ? FAR_ERR_NO_MEMORY : 0;
    for (uint32_t at = 0; result == 0 && at + count <= blocks;) {
        uint32_t n = blocks - at < window ? blocks - at : window, found = 0, i = 0;
        if ((result = far_blocks_read(t, node, at, n, entries)) < 0)
            break;
        for (; i < n && result == 0; i++) {
            found = is_free(entries[2 * (size_t)i]) ? found + 1 : 0;
            if (found < count)
                continue;
            uint32_t begin = i + 1 - count, lost = 0;
            *first = (far_block_id){node, at + begin};
            result = take_each(t, *first, count, entries + 2 * (size_t)begin, used, &lost);
            if (result == 0) { /* go on behind the block that was lost */
                found = 0;
                i = begin + lost;
            }
        }
        at += at + n == blocks ? n : n - found;
    }
    far_scratch_back(t, mark);
    return result;
}


int far_run_make(far_task *t, far_block_id head, uint32_t length, uint32_t uid, unsigned type, bool stable) {
    for (uint32_t i = 0; i < length; i++) { /* the head first: from then on all of it is the run */
        far_block_id b = {head.node, head.index + i};
        far_block_state mine = owned_by(t, false, false);
        uint64_t word = far_block_pack(&mine);
        for (int done = 0; done == 0;) {
            far_block_state was = far_block_unpack(word),
                            to = {
                                .kind = FAR_BLOCK_BODY, .used = was.used, .quarantined = was.quarantined, .length = i};
            if (was.kind != FAR_BLOCK_OWNED || was.id != mine.id || was.generation != mine.generation)
                return FAR_ERR_CORRUPT;
            if (i == 0) {
                to.kind = FAR_BLOCK_RUN;
                to.length = length;
                to.uid = uid;
                to.type = type;
                to.stable = stable;
            }
            if ((done = far_block_swap(t, b, &word, &to)) < 0)
                return done;
        }
    }
    return 0;
}


int far_run_finish(far_task *t, far_block_id head, uint64_t word) {
    const far_geometry *g = geometry(t);
    far_block_state wiping = far_block_unpack(word);
    far_fabric *fabric = far_task_fabric(t);
    for (uint32_t i = wiping.length; i-- > 0;) { /* the head last: it says that the others are to be freed */
        far_block_id b = {head.node, head.index + i};
        uint64_t now = word;
        int err = i == 0 ? 0 : far_read_word(t, far_block_entry(g, b), &now);
        if (err < 0)
            return err;
        far_block_state s = far_block_unpack(now);
        if (i > 0 && (s.kind != FAR_BLOCK_BODY || s.length != i))
            continue; /* freed before, and perhaps taken again */
        if (fabric->watch != NULL)
            fabric->watch->released(fabric, far_block_base(g, b), g->block_bytes);
        if ((err = far_wipe(t, far_block_base(g, b), g->block_bytes)) < 0 ||
            (err = far_wipe(t, far_block_bitmap(g, b), 8)) < 0)
            return err;
        far_block_state empty = {.kind = FAR_BLOCK_FREE, .used = true};
        while ((err = far_block_swap(t, b, &now, &empty)) == 0) {
            far_block_kind kind = far_block_unpack(now).kind;
            if (kind != (i == 0 ? FAR_BLOCK_WIPING : FAR_BLOCK_BODY))
                break;
        }
        if (err < 0)
            return err;
    }
    return 1;
}


int far_run_free(far_task *t, far_block_id head, const far_block_state *expected) {
    uint64_t word = far_block_pack(expected);
    far_block_state wiping = {.kind = FAR_BLOCK_WIPING,
                              .used = true,
                              .id = far_task_client(t),
                              .generation = far_task_generation(t),
                              .length = expected->length};
    int done = far_block_swap(t, head, &word, &wiping);
    return done <= 0 ? done : far_run_finish(t, head, word);
}
