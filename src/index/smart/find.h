/* Between find.c, the way down, and by_cache.c, the way in through the cache. */
#ifndef FAR_INDEX_SMART_FIND_H
#define FAR_INDEX_SMART_FIND_H

#include "index/smart/smart.h"

/* Of one attempt, beside SMART_AGAIN; 0: the spot is set. */
enum {
    SMART_MET_FROZEN = 2, /* a word with F is in the way: what it is part of is being replaced */
    SMART_STALE = 3,      /* what the cache knew helps no further */
};

#define SMART_DEPTH_ANY (SMART_KEY_MAX + 1)

/* find.c */
void smart_enter(smart_spot *s, const smart_node *node, far_addr up, uint64_t up_word);
int smart_look_up(smart_op *op, smart_spot *s, smart_node *node);
int smart_descend(smart_op *op, smart_spot *s);

/* by_cache.c */
int smart_find_by_cache(smart_op *op, smart_spot *s);
int smart_forget(smart_op *op, int err); /* gives up READs that were put whose words are the caller's; returns err */

#endif
