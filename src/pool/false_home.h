/* False homes: objects that a walk meets, and that their bits call home. Damage said so, and their owners would hand them out
 * again, or wipe them with the slab that they seem to leave empty. And objects that a walk meets where the entry of the block, or
 * its page words, know of none: others would use that memory. Only the former can be put right.
 *
 * What was home before a walk began, is met by it, and is home still, is suspected: it may have been taken, linked, unlinked
 * and brought home again meanwhile. So is what was met, and is in no slab behind the walk: its pages may have been given back. A
 * second walk tells. It looks at the tables for a suspect when it meets it, with the pin under which it saw the link: what is
 * linked then is not given back, nor home, as long as that pin stands. */
#ifndef FAR_POOL_FALSE_HOME_H
#define FAR_POOL_FALSE_HOME_H

#include "pool/sweep.h"

typedef struct far_homes {
    far_walk walk; /* first: the second walk is told of this */
    far_task *t;
    uint64_t first, end; /* blocks that are looked at */
    uint64_t *bits; /* of these blocks: what was home before the walk; then the suspects; then what is falsely home */
    bool mend;
    unsigned count;
    char words[FAR_FALSE_HOME_WORDS]; /* what the first one is */
} far_homes;

int far_homes_begin(far_homes *h); /* before the walk. bits: zeroes */

/* After it. marks: what it has met, of the same blocks. Falsely home is then what `count` and `words` tell; with `mend` the bits
 * are taken away. FAR_ERR_CORRUPT: the tables know nothing of an object. */
int far_homes_end(far_homes *h, const uint64_t *marks);

#endif
