/* False free bits. Damage may set the free bit of an object in use. The owner of the block would then hand out the
 * object again, or wipe it with a slab that seems to be empty. A collection finds such objects, because it reaches them
 * while their free bit is set, and clears the bit. It also finds linked objects at places where the block entry or the
 * page words describe no object; such objects can only be reported, because other handles may use that memory.
 *
 * The free bits are read before the mark phase and compared with the marks and the current bits after it. There are two
 * kinds of suspects. The first is an object that the mark phase reached although its free bit was set before and is set
 * now. The second is an object that the mark phase reached although no slab contains it now. A suspect may be harmless,
 * because during the mark phase it may have been taken, linked, unlinked and returned again, or the pages of its slab
 * may have been released. Therefore a second walk examines the suspects. When it reaches a suspect, it reads the tables
 * while it holds the pin under which it saw the link. An object that was linked under that pin can neither be returned
 * nor lose its slab before the pin ends. */
#ifndef FAR_POOL_GC_FALSE_FREE_H
#define FAR_POOL_GC_FALSE_FREE_H

#include "pool/gc/collect.h"

typedef struct far_false_free {
    far_walk walk; /* must be the first field, because the second walk gets a pointer to it */
    far_task *t;
    uint64_t first, end; /* the numbers of the blocks that are examined */
    /* One bitmap per block. It first contains the free bits as read before the mark phase, and later the suspects that
     * the second walk has not reached yet. */
    uint64_t *bits;
    bool repair;
    unsigned count;
    char text[FAR_FALSE_FREE_TEXT]; /* describes the first object with a false free bit */
} far_false_free;

/* Reads the free bits, before the mark phase. The caller sets `bits` to zeroed memory for the bitmaps of all examined
 * blocks. */
int far_false_free_begin(far_false_free *h);

/* Called after the mark phase. Compares the free bits with the marks and examines the suspects. `marks` are the marks
 * of the same blocks. Sets `count` and `text`, and with `repair` clears the false bits. Returns FAR_ERR_CORRUPT if a
 * linked object is not described by the tables. */
int far_false_free_end(far_false_free *h, const uint64_t *marks);

#endif
