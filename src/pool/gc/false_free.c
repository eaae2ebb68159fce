/* Finds objects in use whose free bit is set because of damage (false_free.h). */
#include "pool/gc/false_free.h"
#include "base/error.h"
#include "pool/alloc/blocks.h"
#include "pool/catalog/catalog.h"
#include "pool/handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS_AT_ONCE 64u /* number of blocks for which bits are read in one batch */
/* attempts to clear a bit while other handles change the same bitmap word by returning objects */
#define CLEAR_TRIES 64u


static uint64_t bitmap_words(const far_false_free *h) { /* number of words of the bitmap of one block */
    return far_bitmap_bytes(far_geometry_of(h->t)) / sizeof(uint64_t);
}


static uint64_t *block_bits(const far_false_free *h, far_block_id id) {
    uint64_t number = far_block_number(far_geometry_of(h->t), id);
    return number >= h->first && number < h->end ? h->bits + (number - h->first) * bitmap_words(h) : NULL;
}


typedef struct bits_batch {
    far_false_free *h;
    unsigned pending;
} bits_batch;


static int read_block_bits(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    bits_batch *r = ctx;
    const far_geometry *g = far_geometry_of(t);
    uint64_t *bits = block_bits(r->h, id);
    if (!bits || !far_block_has_slabs(entry[0]))
        return 0;
    far_read(t, far_block_bitmap(g, id), bits, far_bitmap_bytes(g));
    return ++r->pending % BLOCKS_AT_ONCE == 0 ? far_wait(t) : 0;
}


int far_false_free_begin(far_false_free *h) {
    bits_batch r = {.h = h};
    int err = far_blocks_each(h->t, read_block_bits, &r), last = far_wait(h->t);
    return err < 0 ? err : last;
}


/* ---- Suspects ---- */

typedef struct comparison {
    far_false_free *h;
    const uint64_t *marks;
    uint64_t *starts;  /* bitmap of one block, with a set bit for each place where an object begins */
    bool has_suspects; /* true if some objects of the examined blocks are suspects */
} comparison;


/* Handles a block with marked objects. Returns true if the block has slabs, which suspect_in_slabs examines. In any
 * other block all marked objects are suspects. */
static bool suspect_outside_slabs(void *ctx, far_block_id id, const uint64_t *entry) {
    comparison *c = ctx;
    uint64_t *bits = block_bits(c->h, id), words = bitmap_words(c->h), met = 0;
    if (!bits)
        return false;
    const uint64_t *marks = c->marks + (bits - c->h->bits);
    for (uint64_t w = 0; w < words; w++)
        met |= marks[w];
    if (met && far_block_has_slabs(entry[0]))
        return true;
    memcpy(bits, marks, words * sizeof(*bits));
    for (uint64_t w = 0; met && w < words; w++)
        c->has_suspects |= bits[w] != 0;
    return false;
}


/* Sets a bit for each place in the block where an object begins according to the page words. If the page words are not
 * sound, no bit is set; the second walk reads the page words again. */
static void compute_object_starts(const far_geometry *g, const uint64_t pages[FAR_BLOCK_PAGES], uint64_t *starts) {
    bool sound = far_pages_are_sound(g, pages);
    memset(starts, 0, far_bitmap_bytes(g));
    for (unsigned p = 0; sound && p < FAR_BLOCK_PAGES; p++) {
        far_page_state page = far_page_unpack(pages[p]);
        uint32_t objects = page.in_use ? far_slab_objects(g->page_bytes, &page) : 0;
        uint64_t at = p * g->page_bytes / FAR_GRANULE, step = page.size / FAR_GRANULE;
        for (uint32_t n = 0; n < objects; n++, at += step)
            starts[at / FAR_WORD_GRANULES] |= 1ull << at % FAR_WORD_GRANULES;
    }
}


/* Finds the suspects in a block with slabs: marked objects where no object begins, and marked objects that had their
 * free bit set before the mark phase and have it set now. */
static int suspect_in_slabs(far_task *t, void *ctx, far_tables *b) {
    comparison *c = ctx;
    uint64_t *bits = block_bits(c->h, b->id);
    const uint64_t *marks = c->marks + (bits - c->h->bits);
    compute_object_starts(far_geometry_of(t), b->pages, c->starts);
    for (uint64_t w = 0; w < bitmap_words(c->h); w++) {
        bits[w] = marks[w] & ((bits[w] & b->bits[w]) | ~c->starts[w]);
        c->has_suspects |= bits[w] != 0;
    }
    return 0;
}


/* ---- The second walk ---- */

static far_addr bitmap_word_address(const far_geometry *g, far_block_id id, uint64_t granule) {
    return far_block_bitmap(g, id) + granule / FAR_WORD_GRANULES * 8;
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


/* Returns whether the tables describe the linked object, which is 1 if they contain an object of that index at this
 * place, and 0 if not. The slab of the object and its page word stay unchanged as long as the pin of the caller; other
 * page words of the block may change in the meantime. */
static int check_tables_have_object(far_task *t, far_block_id id, uint64_t granule, uint32_t uid) {
    const far_geometry *g = far_geometry_of(t);
    uint64_t pages[FAR_BLOCK_PAGES], word;
    far_read(t, far_block_entry(g, id), &word, sizeof(word));
    far_read(t, far_block_page(g, id, 0), pages, sizeof(pages));
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (!far_block_has_slabs(word))
        return 0;
    unsigned first = (unsigned)(granule * FAR_GRANULE / g->page_bytes);
    while (first > 0 && pages[first] == 0)
        first--;
    far_page_state page = far_page_unpack(pages[first]);
    uint64_t inner = granule * FAR_GRANULE - first * g->page_bytes;
    return far_page_is_sound(g, first, pages[first]) && page.uid == uid && inner % page.size == 0 &&
           inner / page.size < far_slab_objects(g->page_bytes, &page);
}


static int examine_suspect(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    far_false_free *h = (far_false_free *)walk;
    const far_geometry *g = far_geometry_of(h->t);
    far_block_id id;
    uint64_t *bits = far_block_of(g, addr, &id) ? block_bits(h, id) : NULL, word;
    uint64_t granule = far_block_offset(g, addr) / FAR_GRANULE, bit = 1ull << granule % FAR_WORD_GRANULES;
    char who[FAR_NAME_MAX + 16] = "the pool";
    (void)type, (void)size;
    if (!bits || !(bits[granule / FAR_WORD_GRANULES] & bit))
        return 0;
    /* The bit of the suspect is cleared, so that the suspect is examined and counted only once, even if the walk
     * reaches the object again. By then another client may have changed the free bit, so a second examination could
     * give another answer. */
    bits[granule / FAR_WORD_GRANULES] &= ~bit;
    if (index)
        snprintf(who, sizeof(who), "index '%s'", index->name);
    int known = check_tables_have_object(h->t, id, granule, index ? index->uid : 0);
    if (known == 0)
        return far_fail(FAR_ERR_CORRUPT,
                        "%s uses %#llx, but the tables of block %u of node %u contain no object of it there", who,
                        (unsigned long long)addr, id.index, id.node);
    int err = known < 0 ? known : far_read_word(h->t, bitmap_word_address(g, id, granule), &word);
    if (err < 0 || !(word & bit))
        return err;
    if (h->count++ == 0)
        snprintf(h->text, sizeof(h->text), "the object of %s at %#llx is in use, but its free bit is set", who,
                 (unsigned long long)addr);
    return h->repair ? clear_free_bit(h->t, bitmap_word_address(g, id, granule), bit) : 0;
}


int far_false_free_end(far_false_free *h, const uint64_t *marks) {
    far_scratch_mark mark = far_scratch_here(h->t);
    comparison c = {h, marks, far_scratch(h->t, bitmap_words(h) * sizeof(uint64_t)), false};
    int err = c.starts ? far_tables_each(h->t, suspect_outside_slabs, suspect_in_slabs, &c)
                       : far_fail(FAR_ERR_NO_MEMORY, "no local memory to find objects with wrong free bits");
    far_scratch_back(h->t, mark);
    h->walk.object = examine_suspect;
    far_point(h->t, "collect:walk_suspects");
    return err < 0 || !c.has_suspects ? err : far_catalog_walk(h->t, &h->walk);
}
