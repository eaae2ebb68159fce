/* False free bits. Damage may set the free bit of an object in use. The owner of the block would then hand out the
 * object again, or wipe it with a slab that seems to be empty. The mark phase finds such objects, because it reaches
 * them while their free bit is set. It also finds linked objects at places where the block entry or the page words
 * describe no object.
 *
 * Before the mark phase the collector reads the tables of all blocks, and notes the places where an object begins whose
 * free bit is clear. When the walk reaches an object at another place, it reads the tables of the block again, while it
 * holds the pin under which it saw the link. An object that was linked under that pin can neither be returned nor lose
 * its slab before the pin ends. So a free bit that is set at that moment is false, and an object that the tables do not
 * describe shows damage, whatever other clients do meanwhile. The tables that were read are noted, so few objects need
 * this second look: those that were free when the tables were read first, and those in new slabs. */
#ifndef FAR_POOL_GC_FALSE_FREE_H
#define FAR_POOL_GC_FALSE_FREE_H

#include "pool/alloc/blocks.h"
#include "pool/gc/collect.h"

typedef struct far_false_free {
    far_task *t;
    uint64_t first, end; /* the numbers of the blocks that are examined */
    /* One bitmap per block, with a bit for each place where an object begins whose free bit was clear. */
    uint64_t *sound;
    bool repair; /* false bits are cleared */
    unsigned count;
    char text[FAR_FALSE_FREE_TEXT]; /* describes the first object with a false free bit */
} far_false_free;

/* Reads the tables, before the mark phase. The caller sets `sound` to zeroed memory for the bitmaps of all examined
 * blocks. */
int far_false_free_begin(far_false_free *h);

/* Examines a linked object that is not known to be sound; `granule` is its place in the block. The caller holds the pin
 * under which it saw the link. Counts a false free bit, and with `repair` clears it. Returns FAR_ERR_CORRUPT if the
 * tables do not describe the object. */
int far_false_free_examine(far_false_free *h, const far_index *index, far_block_id id, uint64_t granule);

#endif
