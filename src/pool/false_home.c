/* Objects in use that their bits call home (false_home.h). */
#include "pool/false_home.h"
#include "pool/blocks.h"
#include "pool/catalog.h"
#include "pool/handle.h"

#include <stdio.h>
#include <stdlib.h>

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
    far_block_kind kind = far_block_unpack(entry[0]).kind;
    uint64_t *bits = bits_of(r->h, id);
    if (!bits || (kind != FAR_BLOCK_OWNED && kind != FAR_BLOCK_ORPHAN))
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

/* Of a block: what is home in `now` too. */
static bool keep(uint64_t *bits, const uint64_t *now, uint64_t words) {
    uint64_t any = 0;
    for (uint64_t w = 0; w < words; w++)
        any |= bits[w] &= now[w];
    return any != 0;
}


/* ctx: whether there are any. */
static int keep_home(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    bits_reader *r = ctx;
    uint64_t *bits = bits_of(r->h, id), *now;
    (void)entry;
    if (!bits || !keep(bits, bits, words_of(r->h)))
        return 0;
    far_scratch_mark mark = far_scratch_here(t);
    int err = far_bitmap_read(t, id, &now);
    if (err == 0)
        r->pending += keep(bits, now, words_of(r->h));
    far_scratch_back(t, mark);
    return err;
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


static int meet_suspect(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    far_homes *h = (far_homes *)walk;
    const far_geometry *g = far_geometry_of(h->t);
    far_block_id id;
    uint64_t *bits = far_block_of(g, addr, &id) ? bits_of(h, id) : NULL, word;
    uint64_t granule = far_block_inner(g, addr) / FAR_GRANULE, bit = 1ull << granule % FAR_WORD_GRANULES;
    (void)type, (void)size;
    if (!bits || !(bits[granule / FAR_WORD_GRANULES] & bit))
        return 0;
    bits[granule / FAR_WORD_GRANULES] &= ~bit; /* once: others may have put it right meanwhile */
    int err = far_read_word(h->t, word_addr(g, id, granule), &word);
    if (err < 0 || !(word & bit))
        return err;
    if (h->count++ == 0)
        snprintf(h->words, sizeof(h->words), "%s%s%s has an object at %#llx in use, which is said to be free",
                 index ? "index '" : "", index ? index->name : "the pool", index ? "'" : "", (unsigned long long)addr);
    return h->mend ? mend(h->t, word_addr(g, id, granule), bit) : 0;
}


int far_homes_end(far_homes *h, const uint64_t *marks) {
    bits_reader r = {.h = h};
    if (!keep(h->bits, marks, (h->end - h->first) * words_of(h)))
        return 0;
    int err = far_blocks_each(h->t, keep_home, &r);
    h->walk.object = meet_suspect;
    far_point(h->t, "sweep:suspects");
    return err < 0 || r.pending == 0 ? err : far_catalog_walk(h->t, &h->walk);
}
