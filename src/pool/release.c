/* The end of a sweep: what was met stays, what was not is free, blocks go back to their owners or to the pool. */
#include "pool/catalog_layout.h"
#include "pool/sweeping.h"
#include "runtime/error.h"

#include <stdlib.h>


int far_sweep_read_uids(far_sweeper *s) {
    far_scratch_mark mark = far_scratch_here(s->t);
    far_catalog_view view = {0};
    int err = far_pin_take(s->t);
    if (err == 0)
        err = far_catalog_look(s->t, &view);
    far_catalog_unpin(s->t);
    s->uids = err == 0 ? malloc((view.count + 1) * sizeof(*s->uids)) : NULL;
    if (err == 0 && s->uids == NULL)
        err = FAR_ERR_NO_MEMORY;
    s->uid_count = 0;
    for (unsigned i = 0; err == 0 && i < view.count; i++)
        s->uids[s->uid_count++] = view.entries[i].uid;
    far_scratch_back(s->t, mark);
    return err;
}


/* Its index was dropped, or never finished. */
static bool is_gone(const far_sweeper *s, uint32_t uid) {
    for (size_t i = 0; i < s->uid_count; i++)
        if (s->uids[i] == uid)
            return false;
    return uid != 0;
}


static void count_leaked(far_sweeper *s, far_addr addr, uint64_t size, bool stable) {
    far_fabric *fabric = far_task_fabric(s->t);
    s->result.leaked_bytes += size;
    if (!s->repair)
        return;
    s->result.repaired_bytes += size;
    if (fabric->watch != NULL)
        fabric->watch->freed(fabric, addr, size, stable);
}


int far_sweep_unmark(far_sweeper *s, far_block_id id) {
    uint64_t word;
    int done = far_read_word(s->t, far_block_entry(s->geometry, id), &word);
    while (done == 0) {
        far_block_state state = far_block_unpack(word);
        if (!state.quarantined)
            return 0;
        state.quarantined = false;
        done = far_block_swap(s->t, id, &word, &state);
    }
    return done < 0 ? done : 0;
}


/* Runs. */

static int release_run(far_sweeper *s, far_swept *b, uint64_t word) {
    far_block_state state = far_block_unpack(word);
    uint64_t bits;
    int err = far_read_word(s->t, far_block_bitmap(s->geometry, b->id), &bits);
    if (err < 0)
        return err;
    bool given = bits & 1, lost = !given && (is_gone(s, state.uid) || !(b->met[0] & 1));
    if (lost)
        count_leaked(s, far_block_base(s->geometry, b->id), state.length * s->geometry->block_bytes, true);
    if (!given && !(lost && s->repair))
        return far_sweep_unmark(s, b->id);
    err = far_run_free(s->t, b->id, &state);
    return err < 0 ? err : 0;
}


static int finish_wiping(far_sweeper *s, far_swept *b, uint64_t word) {
    if (!s->repair)
        return far_sweep_unmark(s, b->id);
    far_block_state state = far_block_unpack(word);
    state.quarantined = false;
    state.id = far_task_client(s->t);
    state.generation = far_task_generation(s->t);
    int done = far_block_swap(s->t, b->id, &word, &state);
    if (done == 1)
        done = far_run_finish(s->t, b->id, word);
    return done < 0 ? done : 0;
}


/* Slabs. */

typedef struct slab_end {
    unsigned page;
    far_page_state state;
    uint64_t *bits; /* its bitmap words, as they are; then those to be added */
    uint64_t *met;
    uint32_t objects, free, lost;
} slab_end;


/* What becomes of every object. The bits of those that were lost stay in `bits`, all others are taken out. */
static void judge(far_sweeper *s, far_addr base, slab_end *e) {
    const uint64_t words = e->state.pages * s->geometry->page_bytes / FAR_GRANULE / 64;
    uint64_t lost_word = 0, word = 0;
    for (uint32_t i = 0; i < e->objects; i++) {
        uint64_t granule = i * e->state.size / FAR_GRANULE, bit = 1ull << granule % 64;
        for (; word < granule / 64; word++) {
            e->bits[word] = lost_word;
            lost_word = 0;
        }
        bool given = e->bits[granule / 64] & bit, met = e->met[granule / 64] & bit;
        e->free += given;
        if (given || met)
            continue;
        e->lost++;
        lost_word |= bit;
        count_leaked(s, base + i * e->state.size, e->state.size, e->state.stable);
    }
    for (; word < words; word++) {
        e->bits[word] = lost_word;
        lost_word = 0;
    }
}


static int add_bits(far_sweeper *s, far_addr bitmap, const slab_end *e) {
    const uint64_t words = e->state.pages * s->geometry->page_bytes / FAR_GRANULE / 64;
    for (uint64_t w = 0; w < words; w++)
        if (e->bits[w] != 0)
            far_faa(s->t, bitmap + w * 8, e->bits[w], NULL);
    return far_wait(s->t);
}


/* Data, then bits, then the page word: cut off anywhere, it can be done again. */
static int wipe_slab(far_sweeper *s, far_swept *b, far_addr base, far_addr bitmap, const slab_end *e) {
    far_fabric *fabric = far_task_fabric(s->t);
    uint64_t bytes = e->state.pages * s->geometry->page_bytes;
    if (fabric->watch != NULL)
        fabric->watch->released(fabric, base, bytes);
    int err = far_wipe(s->t, base, bytes);
    if (err == 0)
        err = far_wipe(s->t, bitmap, bytes / FAR_GRANULE / 8);
    if (err == 0)
        err = far_write_word(s->t, far_block_page(s->geometry, b->id, e->page), 0);
    if (err == 0)
        b->pages[e->page] = 0;
    return err;
}


static int release_slab(far_sweeper *s, far_swept *b, unsigned page, bool owner_lives, uint64_t *bits) {
    const far_geometry *g = s->geometry;
    const uint64_t page_words = g->page_bytes / FAR_GRANULE / 64;
    slab_end e = {
        .page = page, .state = far_page_unpack(b->pages[page]), .bits = bits, .met = b->met + page * page_words};
    far_addr base = far_block_base(g, b->id) + page * g->page_bytes,
             bitmap = far_block_bitmap(g, b->id) + page * page_words * 8;
    e.objects = far_slab_objects(g->page_bytes, &e.state);
    far_read(s->t, bitmap, bits, e.state.pages * page_words * 8);
    int err = far_wait(s->t);
    if (err < 0)
        return err;
    if (is_gone(s, e.state.uid)) {
        if (!owner_lives) /* a live owner would have freed it soon */
            count_leaked(s, base, e.objects * e.state.size, true);
        return s->repair ? wipe_slab(s, b, base, bitmap, &e) : 0;
    }
    judge(s, base, &e);
    if (!s->repair)
        return 0;
    if (e.free + e.lost == e.objects && !e.state.stable)
        return wipe_slab(s, b, base, bitmap, &e);
    return e.lost == 0 ? 0 : add_bits(s, bitmap, &e);
}


static bool is_empty(const far_swept *b) {
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        if (b->pages[p] != 0)
            return false;
    return true;
}


/* The block goes to whoever it belongs to. A live owner may just be closing, so the state is looked at again. */
static int hand_back(far_sweeper *s, far_swept *b, uint64_t word) {
    for (;;) {
        far_block_state state = far_block_unpack(word);
        if (state.kind != FAR_BLOCK_OWNED && state.kind != FAR_BLOCK_ORPHAN)
            return far_sweep_unmark(s, b->id);
        int dead = 0;
        if (state.kind == FAR_BLOCK_OWNED &&
            (state.id != far_task_client(s->t) || state.generation != far_task_generation(s->t)))
            dead = far_is_dead(s->t, state.id, state.generation);
        if (dead < 0)
            return dead;
        state.quarantined = false;
        if (s->repair && is_empty(b))
            state = (far_block_state){.kind = FAR_BLOCK_FREE, .used = true};
        else if (s->repair && dead)
            state = (far_block_state){.kind = FAR_BLOCK_ORPHAN, .used = true};
        int done = far_block_swap(s->t, b->id, &word, &state);
        if (done != 0)
            return done < 0 ? done : 0;
    }
}


int far_sweep_release_block(far_sweeper *s, far_swept *b) {
    uint64_t word;
    int err = far_read_word(s->t, far_block_entry(s->geometry, b->id), &word);
    if (err < 0)
        return err;
    far_block_state state = far_block_unpack(word);
    if (!state.quarantined) /* a body that was completed */
        return 0;
    if (b->run && state.kind == FAR_BLOCK_RUN)
        return release_run(s, b, word);
    if (state.kind == FAR_BLOCK_WIPING)
        return finish_wiping(s, b, word);
    if (b->met == NULL)
        return far_sweep_unmark(s, b->id);

    int dead = state.kind == FAR_BLOCK_OWNED ? far_is_dead(s->t, state.id, state.generation) : 1;
    far_scratch_mark mark = far_scratch_here(s->t);
    uint64_t *bits = far_scratch(s->t, far_bitmap_bytes(s->geometry));
    err = dead < 0 ? dead : bits == NULL ? FAR_ERR_NO_MEMORY : 0;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES && err == 0;) {
        far_page_state page = far_page_unpack(b->pages[p]);
        if (page.in_use)
            err = release_slab(s, b, p, !dead, bits);
        p += page.in_use ? page.pages : 1;
    }
    far_scratch_back(s->t, mark);
    return err < 0 ? err : hand_back(s, b, word);
}
