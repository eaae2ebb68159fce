/* The children of one node in key order. A traversal that has read a node takes the node's children one by one, in
 * ascending or descending order, and only as many as it needs. Only the traversal calls these functions. */
#ifndef FAR_INDEX_DART_CHILDREN_H
#define FAR_INDEX_DART_CHILDREN_H

#include "index/dart/dart.h"

#define DART_RANKS   257u /* number of different symbols; the rank of a symbol is its place in key order */
#define DART_NO_RANK DART_RANKS

typedef struct dart_range { /* a range of keys */
    far_bytes from;         /* the least key of the range */
    bool bounded;           /* the range has the upper bound `to` */
    bool to_included;       /* `to` itself is in the range */
    far_bytes to;
} dart_range;

/* The part of a node's children that is inside a range. */
typedef struct dart_clip {
    unsigned low, high; /* the children inside the range have the ranks [low, high) */
    /* rank of the child whose subtree contains the first key of the range, or its upper bound, strictly inside;
     * DART_NO_RANK: there is none */
    unsigned from_rank, to_rank;
} dart_clip;

/* contains_from, contains_to: the first key of the range, or its upper bound, may be below the node with this header;
 * if not, all keys below the node are on the wanted side of that bound. */
dart_clip dart_clip_children(const dart_header *header, const dart_range *range, bool contains_from, bool contains_to);

/* The remaining children of a node: those inside the range that were not taken yet. */
typedef struct dart_rest {
    struct dart_rest *next_free;
    dart_view view;
    const dart_range *range;
    dart_clip clip;               /* the ranks of the remaining children */
    unsigned read_low, read_high; /* the slots of these ranks were read */
    bool backward;
    /* Private: a bitmap of the ranks of the node's children. It is valid for the ranks [ordered_low, ordered_high). */
    unsigned ordered_low, ordered_high, ordered_at_once;
    uint64_t present[(DART_RANKS + 63) / 64];
    uint16_t slot_of[DART_RANKS]; /* for each rank in the bitmap: number of the slot of that child */
} dart_rest;

typedef enum {
    DART_REST_EMPTY,  /* no child remains */
    DART_REST_READY,  /* a child can be taken */
    DART_REST_UNREAD, /* the slot of the next rank was not read yet */
} dart_rest_state;

/* Prepares the children of a node. wanted: number of children that will probably be taken. */
void dart_rest_init(dart_rest *rest, const dart_view *view, const dart_range *range, dart_clip clip, bool backward,
                    size_t wanted);
/* For a root of which not all slots are read: declares all slots as not read. */
void dart_rest_set_unread(dart_rest *rest);
/* Adds the READ of the slots of the ranks [low, high), which adjoin those that were read before. The slots are used
 * after the wait. */
void dart_rest_add_read(far_task *t, dart_rest *rest, unsigned low, unsigned high);
/* Reads the slots of the next `count` ranks, or fewer at the end of the range. */
void dart_rest_add_next_read(far_task *t, dart_rest *rest, unsigned count);
dart_rest_state dart_rest_settle_slowly(dart_rest *rest);
/* Stores the words of all inner children of a node in key order, without their frozen bits. Returns their number. The
 * view must have all slots. */
unsigned dart_inner_children(const dart_view *view, uint64_t words[DART_RANKS]);

/* In the state READY: returns the rank of the next child. */
static inline unsigned dart_rest_next_rank(const dart_rest *rest) {
    return rest->backward ? rest->clip.high - 1 : rest->clip.low;
}


/* In the state READY: takes the next child, and returns the word of its slot, without the frozen bit. */
static inline uint64_t dart_rest_take(dart_rest *rest) {
    unsigned rank = rest->backward ? --rest->clip.high : rest->clip.low++;
    return dart_thawed(rest->view.slots[rest->slot_of[rank]]);
}


/* Returns the state. Must be called before a child is taken. The fast path finds the next child in the current word of
 * the bitmap. */
static inline dart_rest_state dart_rest_settle(dart_rest *rest) {
    unsigned low = rest->clip.low, high = rest->clip.high, rank = dart_rest_next_rank(rest);
    if (low >= high || rank - rest->ordered_low >= rest->ordered_high - rest->ordered_low)
        return dart_rest_settle_slowly(rest);
    uint64_t word = rest->present[rank / 64];
    if (rest->backward) {
        word <<= 63 - rank % 64;
        high -= word ? (unsigned)__builtin_clzll(word) : 0;
    } else {
        word >>= rank % 64;
        low += word ? (unsigned)__builtin_ctzll(word) : 0;
    }
    if (!word || low >= high)
        return dart_rest_settle_slowly(rest);
    rest->clip.low = low;
    rest->clip.high = high;
    return DART_REST_READY;
}


static inline unsigned dart_rank_symbol(unsigned rank) {
    return rank == 0 ? DART_SYMBOL_END : rank - 1;
}

#endif
