/* Finds objects in use whose free bit is set because of damage (false_free.h). */
#include "pool/gc/false_free.h"
#include "base/error.h"
#include "pool/handle.h"

#include <stdio.h>
#include <string.h>

/* attempts to clear a bit while other handles change the same bitmap word by returning objects */
#define CLEAR_TRIES 64u


static uint64_t bitmap_words(const far_geometry *g) { /* number of words of the bitmap of one block */
    return far_bitmap_bytes(g) / sizeof(uint64_t);
}


static uint64_t *sound_places(const far_false_free *h, far_block_id id) {
    const far_geometry *g = far_geometry_of(h->t);
    return h->sound + (far_block_number(g, id) - h->first) * bitmap_words(g);
}


static void note_slab_objects(const far_geometry *g, unsigned page, const far_page_state *slab, uint64_t *starts) {
    uint64_t at = page * g->page_bytes / FAR_GRANULE, step = slab->size / FAR_GRANULE;
    uint32_t objects = far_slab_objects(g->page_bytes, slab);
    for (uint32_t n = 0; n < objects; n++, at += step)
        starts[at / FAR_WORD_GRANULES] |= 1ull << at % FAR_WORD_GRANULES;
}


/* Notes the places of the block where an object begins whose free bit is clear. Page words that were read at different
 * moments may be unsound; those that are not sound describe no slab. */
static void note_tables(const far_false_free *h, const far_tables *b) {
    const far_geometry *g = far_geometry_of(h->t);
    uint64_t *sound = sound_places(h, b->id);
    memset(sound, 0, far_bitmap_bytes(g));
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
        if (!far_page_is_sound(g, p, b->pages[p]))
            continue;
        far_page_state slab = far_page_unpack(b->pages[p]);
        note_slab_objects(g, p, &slab, sound);
        p += slab.pages - 1;
    }
    for (uint64_t w = 0; w < bitmap_words(g); w++)
        sound[w] &= ~b->bits[w];
}


static bool has_slabs_in_part(void *ctx, far_block_id id, const uint64_t *entry) {
    const far_false_free *h = ctx;
    uint64_t number = far_block_number(far_geometry_of(h->t), id);
    return number >= h->first && number < h->end && far_block_has_slabs(entry[0]);
}


static int note_block(far_task *t, void *ctx, far_tables *b) {
    (void)t;
    note_tables(ctx, b);
    return 0;
}


int far_false_free_begin(far_false_free *h) {
    return far_tables_each(h->t, has_slabs_in_part, note_block, h);
}


/* ---- A second look at one object ---- */

/* Reads the entry, the page words and the free bits of the block. Uses scratch memory that the caller releases. */
static int read_tables(far_task *t, far_tables *b) {
    const far_geometry *g = far_geometry_of(t);
    b->bits = far_scratch(t, far_bitmap_bytes(g));
    if (!b->bits)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory to find objects with wrong free bits");
    far_read(t, far_block_entry(g, b->id), b->entry, sizeof(b->entry));
    return far_tables_read(t, b, 1);
}


/* Returns whether the tables contain an object of that index at this place. The slab of the object and its page word
 * stay unchanged as long as the pin of the caller; other page words of the block may change in the meantime. */
static bool tables_have_object(const far_geometry *g, const far_tables *b, uint64_t granule, uint32_t uid) {
    unsigned first = (unsigned)(granule * FAR_GRANULE / g->page_bytes);
    while (first > 0 && b->pages[first] == 0)
        first--;
    far_page_state page = far_page_unpack(b->pages[first]);
    uint64_t inner = granule * FAR_GRANULE - first * g->page_bytes;
    return far_block_has_slabs(b->entry[0]) && far_page_is_sound(g, first, b->pages[first]) && page.uid == uid &&
           inner % page.size == 0 && inner / page.size < far_slab_objects(g->page_bytes, &page);
}


/* Clears the bit by CAS, so that an owner that is taking the bits of the word notices the change. */
static int clear_free_bit(far_task *t, far_addr at, uint64_t bit) {
    uint64_t word, old;
    int err = far_read_word(t, at, &word);
    for (unsigned tries = 0; tries < CLEAR_TRIES && err == 0 && word & bit; tries++) {
        err = far_cas_word(t, at, word, word & ~bit, &old);
        word = old == word ? 0 : old;
    }
    return err;
}


static int examine_tables(far_false_free *h, const far_index *index, const far_tables *b, uint64_t granule) {
    const far_geometry *g = far_geometry_of(h->t);
    const uint64_t word = granule / FAR_WORD_GRANULES, bit = 1ull << granule % FAR_WORD_GRANULES;
    const unsigned long long addr = far_block_base(g, b->id) + granule * FAR_GRANULE;
    char who[FAR_NAME_MAX + 16] = "the pool";
    if (index)
        snprintf(who, sizeof(who), "index '%s'", index->name);
    if (!tables_have_object(g, b, granule, index ? index->uid : 0))
        return far_fail(FAR_ERR_CORRUPT,
                        "%s uses %#llx, but the tables of block %u of node %u contain no object of it there", who, addr,
                        b->id.index, b->id.node);
    note_tables(h, b);
    sound_places(h, b->id)[word] |= bit; /* the object is examined and counted only once */
    if (!(b->bits[word] & bit))
        return 0;
    if (h->count++ == 0)
        snprintf(h->text, sizeof(h->text), "the object of %s at %#llx is in use, but its free bit is set", who, addr);
    return h->repair ? clear_free_bit(h->t, far_block_bitmap(g, b->id) + word * 8, bit) : 0;
}


int far_false_free_examine(far_false_free *h, const far_index *index, far_block_id id, uint64_t granule) {
    far_scratch_mark mark = far_scratch_here(h->t);
    far_tables b = {.id = id};
    int err = read_tables(h->t, &b);
    if (err == 0)
        err = examine_tables(h, index, &b, granule);
    far_scratch_back(h->t, mark);
    return err;
}
