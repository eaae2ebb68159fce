/* The allocator's tables in far memory: their layout, and the verbs that change them. A memory node is divided into
 * blocks; for each block the tables contain an entry, 64 page words, a free bitmap and a mark bitmap. Below, a field of
 * a word is given by its name, its width in bits and, after <<, its position.
 *
 * Block entry, 32 bytes.
 *     word 0   kind 3 | used 1 << 3 | owner 30 << 4; changed by CAS only
 *                free       unowned, all bytes zero; `used` if it was in use before; word 0 is 0 if it never was
 *                owned      owned by a handle (id 14 of its system session, generation 16) and divided into slabs
 *                orphan     contains slabs but is unowned; a handle that needs memory adopts it
 *     word 1   stamp, of an orphan: collection 24 | check 40. It is the last collection for which nothing in the block
 *              remains to be swept (pool/gc/sweep.c). The last owner writes it before it turns the block into an
 *              orphan, and so does the collector that takes the block from a failed owner. The check covers the number
 *              of the collection and of the block. A damaged stamp is recognized by it, because a stamp that looked
 *              older than it is would let the sweep phase apply old marks and free objects in use.
 *     word 2   of an orphan: a hint, one bit for each of 63 hashed classes with free objects, and bit 0 for free pages.
 *     word 3   a hash of the mark bitmap, the collection and the block. The collector writes it with the marks, so that
 *              the sweep phase ignores damaged marks instead of freeing objects that lost their marks.
 *
 * Page word, 64 per block. The word of the first page of a slab describes the slab; the words of its other pages and of
 * free pages are 0.
 *     uid 24 | type 6 << 24 | size / 16 20 << 30 | pages 7 << 50 | stable 1 << 57 | check 5 << 58 | in use 1 << 63
 * The check covers the other fields. Without it a damaged word could name the uid of a dropped index, and the whole
 * slab would be freed. Only the owner of the block writes a page word, and it does so before it hands out an object of
 * the slab, so that every reader of the tables knows where objects begin.
 *
 * Free bitmap, one bit per 16 bytes. A set bit means that the object that begins there is returned: it is free, no
 * client can still see it, and the owner of the block may reuse it. The handle that holds a free object sets the bit by
 * FAA; since every object has one holder, a bit is never added twice. The owner takes bits by a CAS that replaces the
 * word by 0. If damage sets the bit of an object in use, the collector finds that and clears the bit by CAS
 * (pool/gc/false_free.h). Free pages have no bits. A page has at least one bitmap word, so two slabs never share a
 * word.
 *
 * Mark bitmap, of the same shape. A set bit means that the mark phase of the last collection reached the object. The
 * collector writes it for whole blocks. */
#ifndef FAR_POOL_ALLOC_BLOCKS_H
#define FAR_POOL_ALLOC_BLOCKS_H

#include "pool/format/superblock.h"

#include <assert.h>

#define FAR_BLOCK_ENTRY_BYTES 32
#define FAR_BLOCK_ENTRY_WORDS 4
#define FAR_WORD_GRANULES     64 /* granules covered by one bitmap word */

typedef enum { FAR_BLOCK_FREE, FAR_BLOCK_OWNED, FAR_BLOCK_ORPHAN, FAR_BLOCK_KINDS } far_block_kind;

typedef struct far_block_state {
    far_block_kind kind;
    bool used;
    unsigned id, generation; /* of an owned block: id and generation of the owner */
} far_block_state;

typedef struct far_page_state {
    bool in_use, stable;
    uint32_t uid;
    unsigned type, pages;
    uint64_t size;
} far_page_state;


static inline uint64_t far_block_pack(const far_block_state *s) {
    assert(s->id < 1u << 14);
    uint64_t owner = s->kind == FAR_BLOCK_OWNED ? (uint64_t)s->id | (uint64_t)s->generation << 14 : 0;
    return (uint64_t)s->kind | (uint64_t)s->used << 3 | owner << 4;
}


static inline far_block_state far_block_unpack(uint64_t word) {
    far_block_state s = {.kind = (far_block_kind)(word & 7), .used = word >> 3 & 1};
    if (s.kind == FAR_BLOCK_OWNED) {
        s.id = (unsigned)(word >> 4) & 0x3fff;
        s.generation = (unsigned)(word >> 18) & 0xffff;
    }
    return s;
}


/* Computes the check of a page word. The check changes with every single changed bit, and with every change of up to
 * five adjacent bits below the check. */
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

_Static_assert(FAR_BLOCK_BYTES_MAX / FAR_GRANULE < 1u << 20, "the size of a slab's objects fits its field");
_Static_assert(FAR_BLOCK_PAGES == 64, "the pages of a block are the bits of a word");
_Static_assert(FAR_BLOCK_BYTES_MIN / FAR_BLOCK_PAGES >= FAR_GRANULE * FAR_WORD_GRANULES, "slabs share no bitmap word");


/* A block is named by its node and its number on the node. The functions below compute the addresses of the block's
 * parts in far memory. */
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


/* address of word 1 of the entry, which word 2 follows */
static inline far_addr far_block_stamp(const far_geometry *g, far_block_id b) {
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


static inline uint64_t far_bitmap_bytes(const far_geometry *g) { /* bytes of one bitmap of one block */
    return g->block_bytes / FAR_GRANULE / 8;
}


static inline far_addr far_block_bitmap(const far_geometry *g, far_block_id b) {
    return far_addr_make(b.node, g->node[b.node].bitmaps + b.index * far_bitmap_bytes(g));
}


static inline far_addr far_block_marks(const far_geometry *g, far_block_id b) {
    return far_addr_make(b.node, g->node[b.node].marks + b.index * far_bitmap_bytes(g));
}


/* Finds the block that contains an address. Returns false if the address is in no block. */
static inline bool far_block_of(const far_geometry *g, far_addr addr, far_block_id *b) {
    unsigned node = far_addr_node(addr);
    uint64_t offset = far_addr_offset(addr);
    if (addr >> 48 != 0 || node >= g->nodes || offset < g->node[node].first_block)
        return false;
    /* the size of a block is a power of two */
    uint64_t index = (offset - g->node[node].first_block) >> __builtin_ctzll(g->block_bytes);
    b->node = node;
    b->index = (uint32_t)index;
    return index < g->node[node].blocks;
}


/* Returns whether an object of that size at this address is aligned and entirely inside the blocks of its node. */
static inline bool far_blocks_contain(const far_geometry *g, far_addr addr, uint64_t size) {
    unsigned node = far_addr_node(addr);
    if (addr % FAR_GRANULE != 0 || addr >> 48 != 0 || node >= g->nodes)
        return false;
    /* `at` wraps to a huge number if the address is before the first block, so the comparison below fails */
    uint64_t at = far_addr_offset(addr) - g->node[node].first_block;
    uint64_t bytes = g->node[node].blocks * g->block_bytes;
    return at < bytes && size <= bytes - at;
}


/* offset of the address inside its block */
static inline uint64_t far_block_offset(const far_geometry *g, far_addr addr) {
    return (far_addr_offset(addr) - g->node[far_addr_node(addr)].first_block) & (g->block_bytes - 1);
}


/* Returns the number of a block, counted over the blocks of all nodes. */
static inline uint64_t far_block_number(const far_geometry *g, far_block_id b) {
    return g->node[b.node].first_number + b.index;
}


/* Packs the stamp of a block (word 1 of its entry). */
static inline uint64_t far_stamp_pack(const far_geometry *g, far_block_id b, uint32_t collection) {
    uint64_t low = collection & 0xffffff, number = far_block_number(g, b);
    return low | ((number << 24 | low) + 1) * 0x9e3779b97f4a7c15ull >> 24 << 24;
}


static inline uint32_t far_stamp_collection(uint64_t stamp) {
    return (uint32_t)stamp & 0xffffff;
}


static inline bool far_stamp_is_sound(const far_geometry *g, far_block_id b, uint64_t stamp) {
    return stamp == far_stamp_pack(g, b, far_stamp_collection(stamp));
}


static inline uint64_t far_block_total(const far_geometry *g) {
    return g->node[g->nodes - 1].first_number + g->node[g->nodes - 1].blocks;
}


/* The following functions compute sizes without verbs. far_size_class returns the size that an object of this alignment
 * gets, or 0 if it does not fit into a block. far_slab_pages returns the number of pages of a slab. */
uint64_t far_size_class(const far_geometry *g, uint64_t size, unsigned align);
unsigned far_slab_pages(uint64_t page_bytes, uint64_t size);


static inline uint32_t far_slab_objects(uint64_t page_bytes, const far_page_state *page) {
    return page->size == 0 ? 0 : (uint32_t)(page->pages * page_bytes / page->size);
}


/* Computes word 3 of a block's entry, which is a hash of its marks and of the collection that wrote them. */
uint64_t far_marks_check(const far_geometry *g, far_block_id b, uint32_t collection, const uint64_t *marks);

/* Whether the page words of a block describe slabs that are inside the block and do not overlap. While another handle
 * owns the block, the words may have been read at different moments between which the owner released one slab and cut
 * another; only the word of a slab that exists during the whole time is certain to be correct. */
bool far_pages_are_sound(const far_geometry *g, const uint64_t pages[FAR_BLOCK_PAGES]);
/* Like far_pages_are_sound, but checks only one word, which belongs to the first page of a slab. */
bool far_page_is_sound(const far_geometry *g, unsigned page, uint64_t word);

/* ---- Verbs ----
 *
 * Each function waits for its own verbs and returns 0 or an error unless its comment says otherwise. */

/* Reads `count` entries of a node, FAR_BLOCK_ENTRY_WORDS words each. */
int far_blocks_read(far_task *t, unsigned node, uint32_t first, uint32_t count, uint64_t *entries);
/* Changes the state of a block by a CAS that expects `*word`. Returns 1 if the CAS succeeded. Returns 0 if it failed;
 * `*word` is then the current word. */
int far_block_cas_state(far_task *t, far_block_id b, uint64_t *word, const far_block_state *to);
/* Reads the page words of a block. Returns FAR_ERR_CORRUPT if the words are not sound. */
int far_pages_read(far_task *t, far_block_id b, uint64_t pages[FAR_BLOCK_PAGES]);
/* Sets these bytes of far memory to zero. */
int far_wipe(far_task *t, far_addr addr, uint64_t bytes);
far_block_state far_own_block_state(far_task *t); /* returns the state of a block that the task's handle owns */


static inline bool far_block_is_free(uint64_t word) {
    return far_block_unpack(word).kind == FAR_BLOCK_FREE;
}


/* Calls `each` for all block entries of the pool, node by node; the entries are read in batches. `each` may execute
 * verbs. A result other than 0 ends the iteration and is returned. */
int far_blocks_each(far_task *t, int (*each)(far_task *t, void *ctx, far_block_id b, const uint64_t *entry), void *ctx);

typedef struct far_tables { /* the tables of one block as read from far memory */
    far_block_id id;
    uint64_t entry[FAR_BLOCK_ENTRY_WORDS];
    uint64_t pages[FAR_BLOCK_PAGES];
    uint64_t *bits; /* the words of the free bitmap */
} far_tables;

/* far_tables_read reads the page words, which may be unsound, and the free bitmaps of these blocks in one
 * round trip. far_tables_each does this for all blocks for which `wanted` returns true (NULL: all blocks), in batches
 * of many blocks per round trip, and calls `each` for every one. The entries were read some time before the page words.
 * A result other than 0 ends the iteration and is returned. */
int far_tables_read(far_task *t, far_tables *blocks, unsigned count);
int far_tables_each(far_task *t, bool (*wanted)(void *ctx, far_block_id b, const uint64_t *entry),
                    int (*each)(far_task *t, void *ctx, far_tables *b), void *ctx);

/* While a handle changes the slabs of a block, another handle may read page words of different moments, which look
 * unsound. far_tables_reread waits and reads the tables of the block again, with its entry; `attempt` determines the
 * pause. far_tables_read_until_sound does this until the page words are sound; it returns FAR_ERR_CORRUPT if they are
 * still unsound after several attempts. */
#define FAR_TABLES_READS_MAX 5u
int far_tables_reread(far_task *t, far_tables *b, unsigned attempt);
int far_tables_read_until_sound(far_task *t, far_tables *b);


static inline bool far_block_has_slabs(uint64_t word) {
    far_block_kind kind = far_block_unpack(word).kind;
    return kind == FAR_BLOCK_OWNED || kind == FAR_BLOCK_ORPHAN;
}


#endif
