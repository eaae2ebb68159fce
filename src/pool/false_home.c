/* Objects in use that their bits call home (false_home.h). */
#include "pool/false_home.h"
#include "base/error.h"
#include "pool/blocks.h"
#include "pool/catalog.h"
#include "pool/handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS_AT_ONCE 64u /* whose bits are read in one batch */
#define MEND_TRIES     64u /* others bring objects home meanwhile, which have their bits in the same word */


static uint64_t words_of(const far_homes *h) { /* of the bitmap of a block */
    return far_bitmap_bytes(far_geometry_of(h->t)) / sizeof(uint64_t);
}


static uint64_t *bits_of(const far_homes *h, far_block_id id) {
    uint64_t number = far_block_number(far_geometry_of(h->t), id);
    return number >= h->first && number < h->end ? h->bits + (number - h->first) * words_of(h) : NULL;
}


typedef struct bits_reader {
    far_homes *h;
    unsigned pending;
} bits_reader;


static int read_bits(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    bits_reader *r = ctx;
    const far_geometry *g = far_geometry_of(t);
    uint64_t *bits = bits_of(r->h, id);
    if (!bits || !far_has_slabs(entry[0]))
        return 0;
    far_read(t, far_block_bitmap(g, id), bits, far_bitmap_bytes(g));
    return ++r->pending % BLOCKS_AT_ONCE == 0 ? far_wait(t) : 0;
}


int far_homes_begin(far_homes *h) {
    bits_reader r = {.h = h};
    int err = far_blocks_each(h->t, read_bits, &r), last = far_wait(h->t);
    return err < 0 ? err : last;
}


/* ---- Suspects ---- */

typedef struct comparison {
    far_homes *h;
    const uint64_t *marks;
    uint64_t *begins; /* of one block */
    bool any;         /* there are suspects */
} comparison;


/* Of a block with objects that were met: whether it has slabs. If not, all that was met is suspected, but for the run
 * that it is. */
static bool is_met_with_slabs(void *ctx, far_block_id id, const uint64_t *entry) {
    comparison *c = ctx;
    uint64_t *bits = bits_of(c->h, id), words = words_of(c->h), met = 0;
    if (!bits)
        return false;
    const uint64_t *marks = c->marks + (bits - c->h->bits);
    for (uint64_t w = 0; w < words; w++)
        met |= marks[w];
    if (met && far_has_slabs(entry[0]))
        return true;
    memcpy(bits, marks, words * sizeof(*bits));
    if (far_block_unpack(entry[0]).kind == FAR_BLOCK_RUN)
        bits[0] &= ~1ull;
    for (uint64_t w = 0; met && w < words; w++)
        c->any |= bits[w] != 0;
    return false;
}


/* A bit for each place in the block where an object begins, as its page words say; none when they are not sound: the
 * second walk reads them again. */
static void find_beginnings(const far_geometry *g, const uint64_t pages[FAR_BLOCK_PAGES], uint64_t *begins) {
    bool sound = far_pages_sound(g, pages);
    memset(begins, 0, far_bitmap_bytes(g));
    for (unsigned p = 0; sound && p < FAR_BLOCK_PAGES; p++) {
        far_page_state page = far_page_unpack(pages[p]);
        uint32_t objects = page.in_use ? far_slab_objects(g->page_bytes, &page) : 0;
        uint64_t at = p * g->page_bytes / FAR_GRANULE, step = page.size / FAR_GRANULE;
        for (uint32_t n = 0; n < objects; n++, at += step)
            begins[at / FAR_WORD_GRANULES] |= 1ull << at % FAR_WORD_GRANULES;
    }
}


/* Of a block with slabs: what was met where no object begins, or was home before the walk, and is. */
static int suspect_in_slabs(far_task *t, void *ctx, far_tables *b) {
    comparison *c = ctx;
    uint64_t *bits = bits_of(c->h, b->id);
    const uint64_t *marks = c->marks + (bits - c->h->bits);
    find_beginnings(far_geometry_of(t), b->pages, c->begins);
    for (uint64_t w = 0; w < words_of(c->h); w++) {
        bits[w] = marks[w] & ((bits[w] & b->bits[w]) | ~c->begins[w]);
        c->any |= bits[w] != 0;
    }
    return 0;
}


/* ---- The second walk ---- */

static far_addr word_addr(const far_geometry *g, far_block_id id, uint64_t granule) {
    return far_block_bitmap(g, id) + granule / FAR_WORD_GRANULES * 8;
}


/* By CAS: an owner that takes what is home meanwhile finds another word. */
static int mend(far_task *t, far_addr at, uint64_t bit) {
    uint64_t word, old;
    int err = far_read_word(t, at, &word);
    for (unsigned tries = 0; tries < MEND_TRIES && err == 0 && word & bit; tries++) {
        err = far_cas_word(t, at, word, word & ~bit, &old);
        word = old == word ? 0 : old;
    }
    return err;
}


/* What the tables say of an object that is linked: 1: it is in use, or home; 0: there is none of that index. Its slab
 * stays as long as the pin stands: other page words may change meanwhile, its own does not. */
static int is_in_tables(far_task *t, far_block_id id, uint64_t granule, uint32_t uid) {
    const far_geometry *g = far_geometry_of(t);
    uint64_t pages[FAR_BLOCK_PAGES], word;
    far_read(t, far_block_entry(g, id), &word, sizeof(word));
    far_read(t, far_block_page(g, id, 0), pages, sizeof(pages));
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (!far_has_slabs(word))
        return far_block_unpack(word).kind == FAR_BLOCK_RUN && granule == 0 && far_block_unpack(word).uid == uid;
    unsigned first = (unsigned)(granule * FAR_GRANULE / g->page_bytes);
    while (first > 0 && pages[first] == 0)
        first--;
    far_page_state page = far_page_unpack(pages[first]);
    uint64_t inner = granule * FAR_GRANULE - first * g->page_bytes;
    return far_page_is_sound(g, first, pages[first]) && page.uid == uid && inner % page.size == 0 &&
           inner / page.size < far_slab_objects(g->page_bytes, &page);
}


static int meet_suspect(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    far_homes *h = (far_homes *)walk;
    const far_geometry *g = far_geometry_of(h->t);
    far_block_id id;
    uint64_t *bits = far_block_of(g, addr, &id) ? bits_of(h, id) : NULL, word;
    uint64_t granule = far_block_inner(g, addr) / FAR_GRANULE, bit = 1ull << granule % FAR_WORD_GRANULES;
    char who[FAR_NAME_MAX + 16] = "the pool";
    (void)type, (void)size;
    if (!bits || !(bits[granule / FAR_WORD_GRANULES] & bit))
        return 0;
    bits[granule / FAR_WORD_GRANULES] &= ~bit; /* once: others may have put it right meanwhile */
    if (index)
        snprintf(who, sizeof(who), "index '%s'", index->name);
    int there = is_in_tables(h->t, id, granule, index ? index->uid : 0);
    if (there == 0)
        return far_fail(FAR_ERR_CORRUPT, "%s uses %#llx, where the tables of block %u of node %u have no object of it",
                        who, (unsigned long long)addr, id.index, id.node);
    int err = there < 0 ? there : far_read_word(h->t, word_addr(g, id, granule), &word);
    if (err < 0 || !(word & bit))
        return err;
    if (h->count++ == 0)
        snprintf(h->words, sizeof(h->words), "%s has an object at %#llx in use, which is said to be free", who,
                 (unsigned long long)addr);
    return h->mend ? mend(h->t, word_addr(g, id, granule), bit) : 0;
}


int far_homes_end(far_homes *h, const uint64_t *marks) {
    far_scratch_mark mark = far_scratch_here(h->t);
    comparison c = {h, marks, far_scratch(h->t, words_of(h) * sizeof(uint64_t)), false};
    int err = c.begins ? far_tables_each(h->t, is_met_with_slabs, suspect_in_slabs, &c)
                       : far_fail(FAR_ERR_NO_MEMORY, "no memory to look for suspects");
    far_scratch_back(h->t, mark);
    h->walk.object = meet_suspect;
    far_point(h->t, "sweep:suspects");
    return err < 0 || !c.any ? err : far_catalog_walk(h->t, &h->walk);
}
