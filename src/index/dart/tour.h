/* A tour: the tree in order from a place on. The front is a list of slots in key order; a round reads, in one batch,
 * the inner nodes and leaves near its beginning that will be wanted, and puts the children of each inner node in its
 * place. */
#ifndef FAR_INDEX_DART_TOUR_H
#define FAR_INDEX_DART_TOUR_H

#include "index/dart/dart.h"

typedef struct dart_item { /* a slot: all keys below it begin with the node's prefix and the symbol */
    struct dart_item *next;
    uint64_t word;
    const dart_header *above; /* of the node in which it stands */
    unsigned symbol;
    bool covers;           /* the beginning of the tour lies somewhere below */
    const far_bytes *from; /* what is below it is wanted from here on */
    uint64_t *image;       /* of the leaf, or the node; NULL: not read */
} dart_item;

typedef enum { DART_READ_SLOTS, DART_READ_KEYS, DART_READ_LEAVES } dart_depth_of_view; /* how much of a leaf is read */

typedef struct dart_tour {
    far_bytes from;
    bool bounded;
    far_bytes to; /* excluded */
    dart_depth_of_view reads;
    size_t wanted; /* leaves: how far to look ahead */
    bool express;  /* may begin at a node that the skip table names, instead of the root */
    dart_item *first;
    struct dart_ahead *ahead; /* what was read with the last batch and not asked for yet (ahead.h); or NULL */
    bool begun;
    const dart_header *top; /* where the tour began: when that is exhausted, it goes on behind it; NULL: at the root */
    /* Called for every inner node that was read, in no certain order; may be NULL. */
    int (*node)(far_task *t, far_index *index, const dart_view *view, const dart_item *item, void *ctx);
    void *ctx;
} dart_tour;

/* The next leaf, with its image as asked for: 1; 0: there is none; or an error. Starts at the root, under the caller's
 * pin, which is held until the tour is over. */
int dart_tour_next(far_task *t, far_index *index, dart_tour *tour, dart_item *leaf);
/* The least key that may be below an item. Returns its length; room for max_key + 1 bytes. */
size_t dart_item_place(const dart_item *item, uint8_t *place);
bool dart_leaf_is_sound(const far_index *index, uint64_t word, uint64_t header);

#endif
