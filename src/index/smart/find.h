/* Shared by find.c, which searches from the root, and find_cached.c, which begins at a node or leaf that the cache
 * names. */
#ifndef FAR_INDEX_SMART_FIND_H
#define FAR_INDEX_SMART_FIND_H

#include "index/smart/smart.h"

/* Results of one attempt to search, in addition to a negative error, 0 (the spot is set) and SMART_SEARCH_AGAIN. */
enum {
    SMART_MET_FROZEN = 2, /* the slot of the deciding node is frozen, because this node is being replaced */
    SMART_STALE = 3, /* the cached information did not lead to a result, so the search must begin again at the root */
};

#define SMART_DEPTH_ANY (SMART_KEY_MAX + 1) /* This argument of smart_cache_probe stands for a node of any depth. */

/* find.c */

/* Makes `node` the deciding node in the spot. parent_slot and parent_word are the address and the word of the slot that
 * names `node`, or 0 if they are unknown. */
void smart_set_spot_node(smart_spot *s, const smart_node *node, far_addr parent_slot, uint64_t parent_word);
/* Sets the spot's slot and word for the key. READs further slots of a list until the slot of the key or an unbound slot
 * is among them; of a DIR node READs only the slot. */
int smart_look_up_slot(smart_op *op, smart_spot *s, smart_node *node);
/* Follows the slot word in the spot down the tree until the search ends, and sets the spot. */
int smart_descend(smart_op *op, smart_spot *s);

/* find_cached.c */

/* Searches from the deepest node that the cache contains for the key. Returns SMART_STALE if that does not lead to a
 * result. */
int smart_find_through_cache(smart_op *op, smart_spot *s);
/* Discards the verbs in the open batch, because they refer to memory of the caller, which is about to return. Returns
 * err. */
int smart_abandon_batch(smart_op *op, int err);

#endif
