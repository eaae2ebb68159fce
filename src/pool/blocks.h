/* The allocator's tables in far memory: what they look like, and the verbs that change them.
 *
 * Block entry, 32 bytes.
 *   word 0   kind 3 | used 1 << 3 | owner or run 30 << 4 | length 20 << 34 | stable 1 << 54; changed by CAS only
 *              free    nobody's, all bytes zero; used: it was somebody's before. All zero: free and never used.
 *              owned   a handle (id 14 of its own session, generation 16) cuts it into slabs; length > 0: it is making
 *                      a run of so many blocks, of which this is the first
 *              orphan  holds slabs, owned by nobody: to be adopted
 *              run     the first of `length` blocks that are one object (uid 24, type 6)
 *              body    part of a run, `length` blocks behind its head
 *              wiping  the first of `length` blocks that a handle (id, generation) makes free
 *   word 1   orphan: sweep 24 | check 40: the last sweep for which nothing in it is to be settled (pool/settle.c). Written
 *            by the last owner with the change to orphan, or by the sweeper that takes the block from a dead owner. check:
 *            of the sweep and of the block, so that what damage made is no older sweep, by whose marks what is in use
 *            would be freed.
 *   word 2   orphan: a bit for each of 64 hashed classes that had free objects (a hint); bit 0 of the hash of no class:
 *            free pages. Run: sweep 24 | check 40 as in word 1: the last sweep that its maker had heard of. Written before
 *            word 0; anew by a sweeper that finds it broken.
 *   word 3   a hash of the mark bitmap, and of the sweep and the block that it is of: written by the sweeper with it, so that
 *            marks that damage has taken away free nothing
 *
 * Page word, 64 per block: the first page of a slab says what it is, the other pages of it, and free ones, are 0.
 *   uid 24 | type 6 << 24 | size / 16 20 << 30 | pages 7 << 50 | stable 1 << 57 | check 5 << 58 | in use 1 << 63
 * check: of all the others, so that a word that was changed by damage is no other slab: one that says another uid, of an
 * index that was dropped, would be freed as a whole. Written by the owner of the block only, before an object of the slab is handed out: whoever reads it knows where
 * objects begin.
 *
 * Free bitmap, 1 bit per 16 bytes: the object that begins there is free, nobody can still see it, and it is home: the
 * owner of the block may hand it out. Whoever brings it home adds the bit by FAA (every object has one holder, so no
 * bit is added twice); the owner takes bits by a CAS of the word that it read to 0. Of an object that is in use damage may
 * have set the bit: whoever sweeps finds that, and takes it away by CAS (false_home.h). Free pages have no bits; a page is at
 * least one word, so slabs share none.
 *
 * Mark bitmap, the same shape: the walk of the last sweep met the object. Written by the sweeper, whole blocks.
 */
#ifndef FAR_POOL_BLOCKS_H
#define FAR_POOL_BLOCKS_H

#include "pool/superblock.h"

#include <assert.h>

#define FAR_BLOCK_ENTRY_BYTES 32
#define FAR_BLOCK_ENTRY_WORDS 4
#define FAR_WORD_GRANULES     64 /* of one bitmap word */

typedef enum {
    FAR_BLOCK_FREE,
    FAR_BLOCK_OWNED,
    FAR_BLOCK_ORPHAN,
    FAR_BLOCK_RUN,
    FAR_BLOCK_BODY,
    FAR_BLOCK_WIPING,
    FAR_BLOCK_KINDS
} far_block_kind;

typedef struct far_block_state {
    far_block_kind kind;
    bool used, stable;
    unsigned id, generation; /* owned, wiping */
    uint32_t uid;            /* run */
    unsigned type;
    uint32_t length; /* run, wiping; body: distance from the head */
} far_block_state;

typedef struct far_page_state {
    bool in_use, stable;
    uint32_t uid;
    unsigned type, pages;
    uint64_t size;
} far_page_state;


static inline uint64_t far_block_pack(const far_block_state *s) {
    uint64_t who = 0;
    assert(s->length < 1u << 20 && s->id < 1u << 14 && s->uid < 1u << 24 && s->type < 1u << 6);
    if (s->kind == FAR_BLOCK_OWNED || s->kind == FAR_BLOCK_WIPING)
        who = (uint64_t)s->id | (uint64_t)s->generation << 14;
    else if (s->kind == FAR_BLOCK_RUN)
        who = (uint64_t)s->uid | (uint64_t)s->type << 24;
    return (uint64_t)s->kind | (uint64_t)s->used << 3 | who << 4 | (uint64_t)s->length << 34 |
           (uint64_t)s->stable << 54;
}


static inline far_block_state far_block_unpack(uint64_t word) {
    far_block_state s = {.kind = (far_block_kind)(word & 7),
                         .used = word >> 3 & 1,
                         .stable = word >> 54 & 1,
                         .length = (uint32_t)(word >> 34) & 0xfffff};
    if (s.kind == FAR_BLOCK_OWNED || s.kind == FAR_BLOCK_WIPING) {
        s.id = (unsigned)(word >> 4) & 0x3fff;
        s.generation = (unsigned)(word >> 18) & 0xffff;
    } else if (s.kind == FAR_BLOCK_RUN) {
        s.uid = (uint32_t)(word >> 4) & 0xffffff;
        s.type = (unsigned)(word >> 28) & 0x3f;
    }
    return s;
}


/* Any change of one bit, or of up to five bits side by side below the check, makes it another. */
static inline uint64_t far_page_check(uint64_t word) {
    uint64_t sum = 0;
    for (; word; word >>= 5)
        sum ^= word & 31;
    return sum << 58;
}


static inline uint64_t far_page_pack(const far_page_state *s) {
    assert(s->uid < 1u << 24 && s->type < 1u << 6 && s->pages < 1u << 7 && s->size / FAR_GRANULE < 1u << 20);
    uint64_t word = (uint64_t)s->uid | (uint64_t)s->type << 24 | s->size / FAR_GRANULE << 30 |
                    (uint64_t)s->pages << 50 | (uint64_t)s->stable << 57 | (uint64_t)s->in_use << 63;
    return word | far_page_check(word);
}


static inline far_page_state far_page_unpack(uint64_t word) {
    return (far_page_state){.in_use = word >> 63 & 1,
                            .stable = word >> 57 & 1,
                            .uid = (uint32_t)word & 0xffffff,
                            .type = (unsigned)(word >> 24) & 0x3f,
                            .pages = (unsigned)(word >> 50) & 0x7f,
                            .size = (word >> 30 & 0xfffff) * FAR_GRANULE};
}

_Static_assert((FAR_BLOCK_BYTES_MAX - 1) / FAR_GRANULE < 1u << 20, "the size of a slab's objects fits its field");
_Static_assert(FAR_NODE_BYTES_MAX / FAR_BLOCK_BYTES_MAX < 1u << 20, "a run of all blocks fits its field");
_Static_assert(FAR_BLOCK_PAGES == 64, "the pages of a block are the bits of a word");
_Static_assert(FAR_BLOCK_BYTES_MIN / FAR_BLOCK_PAGES >= FAR_GRANULE * FAR_WORD_GRANULES, "slabs share no bitmap word");


/* A block by its place, and all its places in far memory. */
typedef struct far_block_id {
    unsigned node;
    uint32_t index;
} far_block_id;


static inline far_addr far_block_base(const far_geometry *g, far_block_id b) {
    return far_addr_make(b.node, g->node[b.node].first_block + b.index * g->block_bytes);
}


static inline far_addr far_block_entry(const far_geometry *g, far_block_id b) {
    return far_addr_make(b.node, g->node[b.node].entries + (uint64_t)b.index * FAR_BLOCK_ENTRY_BYTES);
}


static inline far_addr far_block_stamp(const far_geometry *g, far_block_id b) { /* and the hint behind it */
    return far_block_entry(g, b) + 8;
}


static inline far_addr far_block_hint(const far_geometry *g, far_block_id b) {
    return far_block_entry(g, b) + 16;
}


static inline far_addr far_block_marks_check(const far_geometry *g, far_block_id b) {
    return far_block_entry(g, b) + 24;
}


static inline far_addr far_block_page(const far_geometry *g, far_block_id b, unsigned page) {
    return far_addr_make(b.node, g->node[b.node].pages + ((uint64_t)b.index * FAR_BLOCK_PAGES + page) * 8);
}


static inline uint64_t far_bitmap_bytes(const far_geometry *g) { /* of one block */
    return g->block_bytes / FAR_GRANULE / 8;
}


static inline far_addr far_block_bitmap(const far_geometry *g, far_block_id b) {
    return far_addr_make(b.node, g->node[b.node].bitmaps + b.index * far_bitmap_bytes(g));
}


static inline far_addr far_block_marks(const far_geometry *g, far_block_id b) {
    return far_addr_make(b.node, g->node[b.node].marks + b.index * far_bitmap_bytes(g));
}


/* The block that holds an address; false: it lies in none. */
static inline bool far_block_of(const far_geometry *g, far_addr addr, far_block_id *b) {
    unsigned node = far_addr_node(addr);
    uint64_t offset = far_addr_offset(addr);
    if (addr >> 48 != 0 || node >= g->nodes || offset < g->node[node].first_block)
        return false;
    uint64_t index = (offset - g->node[node].first_block) >> __builtin_ctzll(g->block_bytes); /* a power of two */
    b->node = node;
    b->index = (uint32_t)index;
    return index < g->node[node].blocks;
}


/* An object of that size can lie there. */
static inline bool far_blocks_reach(const far_geometry *g, far_addr addr, uint64_t size) {
    unsigned node = far_addr_node(addr);
    if (addr % FAR_GRANULE != 0 || addr >> 48 != 0 || node >= g->nodes)
        return false;
    uint64_t at = far_addr_offset(addr) - g->node[node].first_block; /* huge, if it lies before the first block */
    uint64_t bytes = g->node[node].blocks * g->block_bytes;
    return at < bytes && size <= bytes - at;
}


static inline uint64_t far_block_inner(const far_geometry *g, far_addr addr) { /* offset inside its block */
    return (far_addr_offset(addr) - g->node[far_addr_node(addr)].first_block) & (g->block_bytes - 1);
}


/* Number of a block among those of all nodes. */
static inline uint64_t far_block_number(const far_geometry *g, far_block_id b) {
    return g->node[b.node].first_number + b.index;
}


/* The stamp of a block (word 1 of its entry). */
static inline uint64_t far_stamp_pack(const far_geometry *g, far_block_id b, uint32_t sweep) {
    uint64_t low = sweep & 0xffffff, number = far_block_number(g, b);
    return low | ((number << 24 | low) + 1) * 0x9e3779b97f4a7c15ull >> 24 << 24;
}


static inline uint32_t far_stamp_sweep(uint64_t stamp) {
    return (uint32_t)stamp & 0xffffff;
}


static inline bool far_stamp_is_sound(const far_geometry *g, far_block_id b, uint64_t stamp) {
    return stamp == far_stamp_pack(g, b, far_stamp_sweep(stamp));
}


static inline uint64_t far_block_total(const far_geometry *g) {
    return g->node[g->nodes - 1].first_number + g->node[g->nodes - 1].blocks;
}


/* Pure: the size an object of this alignment gets, 0 = impossible; whether it is a run of blocks; the pages of its
 * slabs. */
uint64_t far_size_class(uint64_t size, unsigned align);
bool far_size_is_run(const far_geometry *g, uint64_t size);
unsigned far_slab_pages(uint64_t page_bytes, uint64_t size);


static inline uint32_t far_slab_objects(uint64_t page_bytes, const far_page_state *page) {
    return page->size == 0 ? 0 : (uint32_t)(page->pages * page_bytes / page->size);
}


static inline uint32_t far_run_blocks(const far_geometry *g, uint64_t size) {
    return (uint32_t)((size + g->block_bytes - 1) / g->block_bytes);
}


/* What word 3 of its entry says when these are the marks of a block, of that sweep. */
uint64_t far_marks_check(const far_geometry *g, far_block_id b, uint32_t sweep, const uint64_t *marks);

/* True when the page words of a block describe slabs that lie inside it and do not overlap. Read beside its owner they
 * may be of two moments, between which pages changed hands; the word of a slab that stays is right all the time. */
bool far_pages_sound(const far_geometry *g, const uint64_t pages[FAR_BLOCK_PAGES]);
bool far_page_is_sound(const far_geometry *g, unsigned page, uint64_t word); /* one of them, of a slab */

/* Verbs. Waited for. */
int far_blocks_read(far_task *t, unsigned node, uint32_t first, uint32_t count,
                    uint64_t *entries); /* FAR_BLOCK_ENTRY_WORDS each */
int far_block_swap(far_task *t, far_block_id b, uint64_t *word,
                   const far_block_state *to); /* 1: done, 0: *word is what was there */
int far_pages_read(far_task *t, far_block_id b,
                   uint64_t pages[FAR_BLOCK_PAGES]); /* FAR_ERR_CORRUPT when they are not sound */
int far_wipe(far_task *t, far_addr addr, uint64_t bytes);
far_block_state far_block_owned(far_task *t); /* by the task's handle */


static inline bool far_block_is_free(uint64_t word) {
    return far_block_unpack(word).kind == FAR_BLOCK_FREE;
}


/* All entries of the pool, node by node, a batch at a time. each may use the task; not 0 ends it and is returned. */
int far_blocks_each(far_task *t, int (*each)(far_task *t, void *ctx, far_block_id b, const uint64_t *entry), void *ctx);

typedef struct far_tables { /* what they say of a block */
    far_block_id id;
    uint64_t entry[FAR_BLOCK_ENTRY_WORDS];
    uint64_t pages[FAR_BLOCK_PAGES];
    uint64_t *bits; /* free ones */
} far_tables;

/* ... page words, sound or not, and bits of these blocks, in one round trip; then those of all blocks that are wanted
 * (NULL: all), many in each round trip, the entries some time before. As with far_blocks_each. */
int far_tables_read(far_task *t, far_tables *blocks, unsigned count);
int far_tables_each(far_task *t, bool (*wanted)(void *ctx, far_block_id b, const uint64_t *entry),
                    int (*each)(far_task *t, void *ctx, far_tables *b), void *ctx);

/* Beside who owns the block, or has just adopted it, they may be of two moments, and look broken: then they are read
 * anew, with the entry, some time later; again and again until they are sound. FAR_ERR_CORRUPT: they stay broken. */
#define FAR_TABLES_LOOKS 5u
int far_tables_again(far_task *t, far_tables *b, unsigned attempt);
int far_tables_prove(far_task *t, far_tables *b);


static inline bool far_has_slabs(uint64_t word) {
    far_block_kind kind = far_block_unpack(word).kind;
    return kind == FAR_BLOCK_OWNED || kind == FAR_BLOCK_ORPHAN;
}


/* A run of free blocks, from the high end, becomes one object. 1: done, 0: there is no room. sweep: the last one that
 * this handle has heard of. */
int far_run_take(far_task *t, unsigned node, const far_block_state *run, uint32_t sweep, far_block_id *head,
                 bool *used);
int far_run_undo(far_task *t, far_block_id head, uint32_t length); /* half made: its bodies become free, not the head */
int far_run_free(far_task *t, far_block_id head,
                 uint64_t word); /* word: a run, or one that a dead handle was wiping. 0: somebody else did */
int far_run_finish(far_task *t, far_block_id head,
                   uint64_t word); /* word: wiping, and its owner is this handle or dead */

#endif
