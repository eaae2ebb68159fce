/* CHIME: types and functions that the files of this folder share. The operations take part in one protocol, which
 * README.md describes: a B-link tree whose leaves are hopscotch hash tables (layout.h has the format of a node).
 *
 * Most functions take a chime_op, the state of one operation. A function named chime_batch_* adds verbs to the open
 * batch of the task; chime_wait posts the batch and waits until it has completed. */
#ifndef FAR_INDEX_CHIME_CHIME_H
#define FAR_INDEX_CHIME_CHIME_H

#include "base/spin.h"
#include "index/chime/layout.h"
#include "index/common/rdwc.h"
#include "index/index.h"

#include <string.h>

enum {
    CHIME_OPTION_SPAN = FAR_OPTIONS_COMMON,
    CHIME_OPTION_HOP,
    CHIME_OPTION_WRAP,
    CHIME_OPTION_HOPSCOTCH,
    CHIME_OPTION_VACANCY,
    CHIME_OPTION_REPLICATION,
    CHIME_OPTION_SPECULATION,
    CHIME_OPTION_HOTSPOT,
    CHIME_OPTION_MISS,
    CHIME_OPTION_HOP_WRITES,
    CHIME_OPTION_FUSION,
    CHIME_OPTION_HANDOVER,
    CHIME_OPTION_CROWD,
    CHIME_OPTION_SPLIT,
    CHIME_OPTION_MERGE,
    CHIME_OPTION_CACHE,
    CHIME_OPTION_WALK_SLICE,
    CHIME_OPTION_PATIENCE,
    CHIME_OPTION_INLINE,
};

enum { CHIME_MISS_ADAPTIVE, CHIME_MISS_CONFIRM, CHIME_MISS_BRACKET, CHIME_MISS_UNSAFE, CHIME_MISS_TIME };
enum { CHIME_SPLIT_MEDIAN, CHIME_SPLIT_PAPER };
enum { CHIME_MERGE_OFF, CHIME_MERGE_EMPTY, CHIME_MERGE_SPARSE };

#define CHIME_NODE_WORDS  ((CHIME_SPAN_MAX + 1) * 8) /* size of the largest node, which has one slot per line */
#define CHIME_HALF_SPLITS 64
#define CHIME_MERGES_MAX  256
#define CHIME_OP_WORDS    16
#define CHIME_SCAN_LEAVES 16

/* A descent that has followed this many sibling pointers starts again at the root. The next descent may follow twice as
 * many. */
#define CHIME_RIGHT_MOVES_FIRST 4u
/* Limit of sibling pointers that one descent may follow; a longer chain of siblings without pivots is corruption. */
#define CHIME_RIGHT_MOVES_MAX 1024u

/* Results of an attempt, in addition to 0 (success) and negative error codes. */
enum {
    /* the pointer is outdated, because the node has another incarnation or was merged; descend again */
    CHIME_STALE = 1,
    CHIME_RIGHT,    /* the key belongs to a node further right */
    CHIME_AGAIN,    /* another client is changing the node, or holds its lock; try again */
    CHIME_NO_LEVEL, /* the tree is lower than the level asked for */
};

typedef struct chime_cache chime_cache;
typedef struct chime_hot chime_hot;


/* Half splits. A node is half split after its right part was created and before the parent has a pivot for that part.
 * During that time only the sibling pointer of the left part leads to the right part. A handle remembers the half
 * splits that its operations met. */

typedef struct chime_half_split {
    chime_ptr node; /* the new right part, which has no pivot in the parent yet */
    chime_ptr left; /* the left part, whose sibling pointer leads to `node`; 0 if the low fence of `node` is unknown */
    uint64_t low;   /* first 8 bytes of the low fence of `node` */
    /* The parent to whose cached copy this handle added `node` as a child, before the parent in far memory had that
     * pivot. The handle READs this parent again some round trips later (renew_due_parents in find.c). 0: there is no
     * such parent, or the READ was already requested. */
    chime_ptr parent;
    uint64_t first_met; /* time (far_now) at which this handle met the half split first */
} chime_half_split;

/* Event counters of a handle. */
typedef struct chime_counts {
    _Atomic uint64_t splits, early_splits, split_items, speculated, speculations_correct, gets, merges, repairs, hops,
        helps, grown,                      /* number of roots created above an old root */
        combined_pivots, combined_inserts; /* number of pivots and inserts that another task wrote with its own */
} chime_counts;


/* Waiters. Tasks of one handle that want the lock of the same node first queue for its latch, in local memory. While a
 * task waits, its chime_waiter is listed, so that the lock holder can do the work of the waiters in its own change. */

typedef struct chime_waiter {
    const far_task *task;
    chime_ptr node;
    bool served; /* set by the lock holder when it has done the work of the waiting task */
    struct chime_waiter *next;
} chime_waiter;

/* A queue of waiters that have either inserts or pivots. */
typedef struct chime_queue {
    far_spin lock;
    chime_waiter *first;
} chime_queue;

/* A waiting insert. The task that waits owns this memory. */
typedef struct chime_insert {
    chime_waiter waiter;
    uint64_t key;
    unsigned home_slot;
    const uint64_t *value; /* value words as the slot will contain them */
    /* set if the lock holder lost its session while it wrote this insert, so that the insert may or may not have taken
     * effect */
    bool outcome_unknown;
    struct chime_insert *next_combined; /* next insert that the same lock holder writes */
} chime_insert;


/* State of an open index, shared by all tasks of the handle. The first three groups are set at open and then constant.
 */
typedef struct chime_state {
    /* the format word of the index (CHIME_MAGIC...) and the geometry of its nodes */
    uint64_t magic;
    unsigned span;        /* number of slots of a node */
    unsigned hop;         /* number of slots of a neighbourhood */
    unsigned home_slots;  /* only the first home_slots slots of a node can be the home slot of a key */
    unsigned per_line;    /* number of slots of a line: 3, or fewer for larger values */
    unsigned lines;       /* number of lines of a node, without the tail */
    unsigned node_bytes;  /* size of a node, with the tail */
    unsigned group;       /* number of slots that share one bit of the occupancy map */
    bool wrap;            /* a neighbourhood may continue at slot 0 */
    bool inline_items;    /* keys and values have fixed sizes and are stored in the slots, without pair blocks */
    unsigned key_bytes;   /* size of the keys of inline items, at most 8 */
    unsigned value_bytes; /* size of the values of inline items, at most 8, or 40 if lines do not tear */
    unsigned value_words; /* number of value words of a slot */
    bool key_fits_word;   /* all keys have one length of at most 8 bytes, so equal key words mean equal keys */
    /* properties of the fabric */
    bool lines_can_tear; /* the fabric's tearing granule is 8 bytes, so a READ may see a line partly changed */
    bool masked_cas;     /* the fabric has masked compare-and-swap */
    /* The fabric executes atomics before later verbs of the same batch, so one batch can take the lock and READ. */
    bool fuse_lock_and_read;
    /* switches; kind.c describes the options that set them */
    bool handover, split_early;
    bool combine_inserts; /* inserts that wait for a leaf are written by the lock holder */
    bool hopscotch, vacancy, replication, paper_split;
    /* hop_writes=rising: when an insert moves items (hops), the lines are written from the lowest up, as in the paper.
     * A reader may then miss a key that moves; test_chime_races demonstrates this error. */
    bool hop_writes_ascending;
    unsigned miss, merge, walk_slice;
    unsigned lock_attempts; /* attempts at a lock before the operation descends again */
    uint64_t seed;          /* seed of the hash function for keys */
    /* values that the handle updates while it is open */
    _Atomic uint64_t root; /* cached root word; 0: unknown */
    /* next number for the nonces in lock words and in S (the structure nonce in the tail) */
    _Atomic uint64_t nonce;
    _Atomic uint64_t gets, misses; /* recent gets, and recent gets that found no key; see count_get */
    /* duration of the last repeated attempt to take a lock, in nanoseconds; a measure of the fabric's load */
    _Atomic uint64_t lock_ns;
    chime_cache *cache; /* cache of inner nodes; NULL: inner nodes are not cached */
    chime_hot *hot;     /* hotspot buffer (cache_hotspot.c); NULL: none */
    /* list of half splits that this handle has met, protected by half_lock */
    far_spin half_lock;
    unsigned half_next;             /* number of entries written so far; the oldest is overwritten next */
    _Atomic uint64_t half_renew_at; /* earliest time at which a parent must be READ again; UINT64_MAX: never */
    /* From this time (far_now) on, every recorded half split is so old that a writer no longer moves to its right part
     * without a verb. */
    _Atomic uint64_t half_follow_until;
    chime_half_split half_splits[CHIME_HALF_SPLITS];
    /* tasks that wait for a latch */
    chime_queue pivots;  /* tasks that wait for the latch of an inner node, with a pivot (restructure_parent.c) */
    chime_queue inserts; /* tasks that wait for the latch of a leaf, with an insert (write.c) */
    /* merges that could not be done at once, under merge_lock (restructure_merge.c) */
    far_spin merge_lock;
    unsigned deferred_merge_count;
    void *deferred_merges[CHIME_MERGES_MAX];
    chime_counts counts;
} chime_state;


/* A key, in the forms in which it is compared and hashed. */
typedef struct chime_key {
    far_bytes bytes;
    uint64_t first; /* the first 8 bytes of the key as a big-endian number; a shorter key is padded with zeros */
    uint64_t hash;
    /* set if this is the position immediately before the key, at which a backward scan continues; only in an index with
     * items in pair blocks, because otherwise the position is a number itself */
    bool before;
} chime_key;

/* A fence or pivot, with the bytes to which its word refers. */
typedef struct chime_fence {
    uint64_t word, first;
    far_bytes bytes; /* the whole key; not set if the word of the fence contains the key */
} chime_fence;

/* State of one operation, including memory that the operation must give back if it fails. */
typedef struct chime_op {
    far_task *t;
    far_index *index;
    chime_state *st;
    chime_key key;
    unsigned home_slot;
    uint32_t rdwc_mark; /* RDWC number of the last batch that the operation waited for (see common/rdwc.h) */
    /* descent */
    chime_ptr path[CHIME_LEVELS]; /* path[i]: the node of level i on the way to the leaf; 0 where unknown */
    unsigned restarts;            /* descents that ended at an outdated pointer */
    unsigned pin_renewals; /* number of times the pin was renewed; memory READ under an older pin may be reused */
    chime_ptr absorber;    /* left neighbour into which the node of the last outdated pointer was merged; 0: unknown */
    /* number of sibling pointers that one descent may follow; doubled after a descent that used them up */
    unsigned right_moves_allowed;
    /* low fence of right_node, the right sibling to which the key belongs; at or before the key */
    chime_fence right_fence;
    chime_ptr right_node;
    /* memory that was allocated and is not visible to other clients yet */
    far_object new_node; /* new right node for a split; addr 0: none */
    far_addr new_block;  /* new pair block; 0: none */
    uint32_t new_block_bytes;
    /* memory for the words of WRITEs in the open batch */
    uint64_t write_words[CHIME_OP_WORDS];
    unsigned write_words_used;
    /* handover of the lock, and repair after a client failure */
    uint64_t next_owner;     /* lock word of the task that gets the lock next; 0: the lock is freed */
    uint64_t next_owner_map; /* occupancy map that the next owner needs */
    unsigned repair_depth;   /* nested repairs in progress */
    /* half-split node for which this operation inserts the missing pivot after its own work; 0: none */
    chime_ptr help_node;
    unsigned help_level; /* level of help_node */
} chime_op;

/* Local image of a node, or of the part that was READ. */
typedef struct chime_node {
    chime_ptr ptr;
    uint64_t *w;   /* local copy, in an array of node_bytes bytes */
    uint64_t s[2]; /* the two values of S (the structure nonce in the tail) that were READ before and after the node */
} chime_node;

/* An attempt at the lock of a node. */
typedef struct chime_lock {
    uint64_t new_word; /* lock word that this task tries to store */
    uint64_t old_word; /* lock word that the atomic found in the node */
    uint64_t v_word;   /* word V of the tail, which contains the occupancy map on a fabric without masked CAS */
    /* occupancy map, valid once the lock is held; a set bit stands for a group of slots without a free slot */
    uint64_t map;
} chime_lock;

/* A decoded inner node, with its children in the order of their pivots. */
typedef struct chime_inner {
    chime_ptr ptr, sibling;
    unsigned level, count;
    bool bounded; /* the node has a right sibling, so `high` is valid */
    chime_fence low, high;
    chime_ptr child[CHIME_SPAN_MAX];
    chime_fence pivot[CHIME_SPAN_MAX];
} chime_inner;

/* One hop, which moves an item from one slot to another. */
typedef struct chime_move {
    uint16_t from, to;
} chime_move;


/* Returns whether the error means that the session was fenced or disconnected, so none of its verbs can take effect any
 * more. */
static inline bool chime_session_is_lost(int err) {
    return err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE;
}


static inline chime_state *chime_state_of(const far_index *index) {
    return index->state;
}


static inline uint64_t *chime_tail(const chime_state *st, uint64_t *w) {
    return w + st->lines * 8;
}


static inline far_addr chime_tail_addr(const chime_state *st, chime_ptr p, unsigned word) {
    return chime_ptr_addr(p) + st->lines * CHIME_LINE + 8ull * word;
}


static inline unsigned chime_line(const chime_state *st, unsigned slot) {
    return chime_line_of(st->per_line, slot);
}


static inline uint64_t *chime_slot(const chime_state *st, uint64_t *w, unsigned slot) {
    return w + chime_slot_offset(st->per_line, slot) / 8;
}


static inline uint64_t *chime_h0(const chime_state *st, uint64_t *w, unsigned line) {
    return w + chime_h0_offset(st->per_line, line) / 8;
}


static inline uint64_t *chime_h1(const chime_state *st, uint64_t *w, unsigned line) {
    return w + chime_h1_offset(st->per_line, line) / 8;
}


static inline bool chime_slot_is_occupied(const chime_state *st, uint64_t *w, unsigned slot) {
    return chime_h1_occupied(*chime_h1(st, w, chime_line(st, slot))) >> chime_slot_in_line(st->per_line, slot) & 1;
}


static inline void chime_set_slot_occupied(const chime_state *st, uint64_t *w, unsigned slot, bool occupied) {
    uint64_t *h1 = chime_h1(st, w, chime_line(st, slot));
    unsigned bit = 1u << chime_slot_in_line(st->per_line, slot), now = chime_h1_occupied(*h1);
    *h1 = chime_h1_with_occupied(*h1, occupied ? now | bit : now & ~bit);
}


/* Returns the number of slots from `from` up to `to`, continuing at slot 0 after the last slot. */
static inline unsigned chime_distance(const chime_state *st, unsigned from, unsigned to) {
    return to >= from ? to - from : to + st->span - from;
}


/* Returns the slot that is `by` slots after `slot`, continuing at slot 0 after the last slot. */
static inline unsigned chime_slot_after(const chime_state *st, unsigned slot, unsigned by) {
    slot += by;
    return slot >= st->span ? slot - st->span : slot;
}


/* Returns the key of a fence. `small` is memory for a key that the word of the fence contains. Not for an index that
 * stores its items in the slots. */
static inline far_bytes chime_fence_bytes(const chime_fence *f, uint8_t small[8]) {
    if (!chime_ref_is_inline(f->word))
        return f->bytes;
    for (unsigned i = 0; i < 7; i++)
        small[i] = (uint8_t)(f->word >> (56 - 8 * i));
    return (far_bytes){small, f->word ? chime_ref_length(f->word) : 0};
}


/* Compares a key in far memory with a key or position of an operation, like memcmp. No key is equal to a position
 * before a key. */
static inline int chime_compare_to_key(far_bytes bytes, const chime_key *key) {
    int order = far_bytes_compare(bytes, key->bytes);
    return order == 0 && key->before ? 1 : order;
}


/* image.c: pure functions on node images in local memory. `w` is the image. */

/* Returns the first 8 bytes of the key as a big-endian number. */
uint64_t chime_key_number(const void *key, size_t length);
void chime_key_make(const chime_state *st, far_bytes bytes, chime_key *key);
unsigned chime_home_slot(const chime_state *st, uint64_t hash);
/* Returns the home slot of the item in an occupied slot. Returns st->span if the item is corrupt. */
unsigned chime_item_home_slot(const chime_state *st, uint64_t *w, unsigned slot);
/* Returns the occupancy map. It has one bit per group of slots, set if all slots of the group are occupied. */
uint64_t chime_occupancy_map(const chime_state *st, uint64_t *w);
/* Returns a copy of the occupancy map `map` in which the bit of the slot's group is recomputed from the image. The
 * image must contain all slots of that group. */
uint64_t chime_map_with_group_of(const chime_state *st, uint64_t map, uint64_t *w, unsigned slot);
unsigned chime_count_items(const chime_state *st, uint64_t *w);
/* Returns whether the hop bitmap of the home slot names exactly the items that have this home slot. */
bool chime_hop_bitmap_agrees(const chime_state *st, uint64_t *w, unsigned home_slot);
/* Returns whether chime_hop_bitmap_agrees is true for all home slots. */
bool chime_hop_bitmaps_agree(const chime_state *st, uint64_t *w);
void chime_build_hop_bitmaps(const chime_state *st, uint64_t *w);
/* Returns whether all lines and the tail are valid, have this incarnation tag, and name the same sibling and node
 * version. */
bool chime_node_is_consistent(const chime_state *st, uint64_t *w, unsigned tag);
/* Returns whether the line is valid and has this incarnation tag. */
bool chime_line_is_current(const chime_state *st, uint64_t *w, unsigned line, unsigned tag);
/* Returns a number of slots, counted from the home slot, that certainly contain a free slot according to the occupancy
 * map. Returns 0 if the map does not show a free slot. */
unsigned chime_slots_up_to_free(const chime_state *st, uint64_t map, unsigned home_slot);
/* Returns the first free slot among `count` slots from `first` on, or -1. */
int chime_find_free_slot(const chime_state *st, uint64_t *w, unsigned first, unsigned count);
/* Returns the first free slot in the neighbourhood of the home slot, or -1. */
int chime_find_free_near_home(const chime_state *st, uint64_t *w, unsigned home_slot);
/* Moves items by hops until a slot of the home slot's neighbourhood is free, beginning with the free slot `free`.
 * Returns the number of moves, stores the moves in their order in `moves`, and sets *at to the slot that became free.
 * Returns -1 if no sequence of hops frees such a slot; the image may have been changed in that case too. The image must
 * contain all slots from home_slot to free. */
int chime_move_free_slot(const chime_state *st, uint64_t *w, unsigned home_slot, unsigned free, chime_move *moves,
                         unsigned *at);
void chime_place_item(const chime_state *st, uint64_t *w, unsigned slot, unsigned home_slot, uint64_t key,
                      const uint64_t *value);
void chime_clear_item(const chime_state *st, uint64_t *w, unsigned slot, unsigned home_slot);
/* Makes the image of a valid node without items. */
void chime_init_node(const chime_state *st, uint64_t *w, unsigned tag, unsigned level);
/* Sets the sibling and the node version in all lines of the image. */
void chime_set_sibling_nv(const chime_state *st, uint64_t *w, chime_ptr sibling, unsigned nv);
/* Sets the valid bit in all lines of the image. */
void chime_set_valid(const chime_state *st, uint64_t *w, bool valid);

/* access.c: verbs on nodes. */
int chime_begin_op(chime_op *op, far_task *t, far_index *index, far_bytes key);
/* Posts the open batch and waits until it has completed. Stores the RDWC number of the batch in op->rdwc_mark. */
int chime_wait(chime_op *op);
/* Drops the pin and takes a new one, so that a long wait does not delay the reuse of memory. Frees new_block and
 * new_node. The operation must not hold a lock, and must not use anything that it has READ before. */
int chime_renew_pin(chime_op *op);
void chime_free_new_block(chime_op *op);
void chime_free_new_node(chime_op *op);
/* Sets the error message for a corrupt node, where `what` is a clause about the node. Returns FAR_ERR_CORRUPT. */
int chime_report_corrupt(const far_index *index, chime_ptr p, const char *what);
/* Allocates scratch memory of a node's size. Returns NULL if there is no memory. */
uint64_t *chime_alloc_image(chime_op *op);
/* Returns whether the whole node to which p points is inside the memory of the pool. */
bool chime_ptr_is_in_pool(const chime_op *op, chime_ptr p);
/* Adds the READ of `count` slots from `first` on, with the headers of their lines. */
void chime_batch_read_slots(chime_op *op, chime_node *n, unsigned first, unsigned count);
void chime_batch_read_tail(chime_op *op, chime_node *n);
void chime_batch_read_node(chime_op *op, chime_node *n);
void chime_batch_read_s(chime_op *op, chime_node *n, unsigned which);
/* Adds the READs of S (the structure nonce in the tail), of the node, and of S again. */
void chime_batch_read_node_and_s(chime_op *op, chime_node *n);
/* READs the tail of p and waits. Checks nothing, so p may be outdated. Allocates the image if there is none. */
int chime_read_tail(chime_op *op, chime_ptr p, chime_node *n);
/* Returns whether the two values of S (the structure nonce in the tail), which were READ before and after the node, are
 * equal and not busy. Every insert, delete, split and merge of a node writes the changed lines first and a new value of
 * S last, under the lock. So equal values prove that no such change ended between the two READs of S, and at most one
 * overlapped with the READ of the node. The image may show a part of that one change. The caller detects this because
 * the lines then have different versions (chime_node_is_consistent), or a hop bitmap does not agree with the items
 * (chime_hop_bitmap_agrees). */
bool chime_read_is_stable(const chime_node *n);
/* Called when a READ of the node showed a change in progress. Backs off until the next READ is worthwhile, and repairs
 * the node if its lock holder failed. Fails with FAR_ERR_CORRUPT if the node stays inconsistent although its lock is
 * free; *at_rest counts the READs that found this state. May renew the pin. */
int chime_wait_for_change_end(chime_op *op, chime_node *n, unsigned attempt, unsigned *at_rest);
/* READs the whole node, again and again until no change is in progress. Returns CHIME_STALE if the pointer is outdated;
 * op->absorber then names the node that absorbed it, if known. Between the READs it waits with
 * chime_wait_for_change_end. */
int chime_read_node(chime_op *op, chime_ptr p, chime_node *n);
/* Judges a node after chime_batch_read_node_and_s. Returns 0, CHIME_STALE (pointer outdated) or CHIME_AGAIN (change in
 * progress). */
int chime_classify_node(chime_op *op, chime_node *n);
/* Like chime_classify_node, for a leaf whose items are used without the hop bitmaps. */
int chime_classify_scanned_leaf(chime_op *op, chime_node *n);
/* Adds the atomic that takes the lock. The lock word announces the number of planned handovers. */
void chime_batch_lock(chime_op *op, chime_ptr p, unsigned handovers, chime_lock *lock);
/* Evaluates the atomic of chime_batch_lock after the wait. Returns 0 and sets lock->map if this task holds the lock;
 * CHIME_AGAIN if another task holds it; CHIME_STALE if the lock is dead because the node was merged. */
int chime_take_lock_result(chime_op *op, chime_lock *lock);
uint64_t chime_next_nonce(chime_op *op);
/* Returns a value of S, the structure nonce of a node, that was never used before. */
uint64_t chime_new_s(chime_op *op, bool busy);
/* Posts the unlock of a node in which nothing was changed, and does not wait for it. */
int chime_unlock_unchanged(chime_op *op, chime_ptr p, const chime_lock *lock);
/* Adds the WRITEs that end a change: a new S, the occupancy map, and a lock word that is either free or names
 * op->next_owner. */
int chime_batch_unlock(chime_op *op, chime_ptr p, uint64_t map);
/* Adds the WRITE of a busy S, on fabrics where lines can tear. Must precede the first WRITE of a change. */
int chime_batch_set_busy(chime_op *op, chime_ptr p);
/* Adds the WRITEs of the lines that differ from `before`, from the highest line, counted cyclically from line `first`,
 * down to the lowest. (The option hop_writes=rising reverses the order.) */
void chime_batch_changed_lines(chime_op *op, chime_node *n, const uint64_t *before, unsigned first);
/* Like chime_batch_changed_lines, for fabrics where lines can tear. The moves are written one at a time, then the new
 * item in slot `at`. */
int chime_batch_moves(chime_op *op, chime_node *n, const uint64_t *before, const chime_move *moves, unsigned count,
                      unsigned at);
/* Adds the WRITEs of all lines in ascending order, then of the tail without S and L (the structure nonce and the lock
 * word). */
int chime_batch_image(chime_op *op, chime_node *n, const uint64_t *before);

/* fence.c: fences and pivots, and the decoding of inner nodes. */

/* Sets the members `first` and `bytes` of each fence from its `word`. READs key blocks where needed, in one round trip.
 */
int chime_read_fences(chime_op *op, chime_fence *fences[], unsigned count);
/* Sets `first` and `bytes` of the fence if its word alone contains the key. Returns false, and does nothing, if a key
 * block must be READ. */
bool chime_decode_inline_fence(const chime_state *st, chime_fence *fence);
/* The next two functions compare like memcmp: they return a negative number if the first argument is smaller. The
 * fences must have been read or decoded before. */
int chime_compare_fence_to_key(const chime_state *st, const chime_fence *fence, const chime_key *key);
int chime_compare_fences(const chime_state *st, const chime_fence *a, const chime_fence *b);
/* Makes a fence from a key. Allocates a key block and adds its WRITE if the word cannot contain the key. */
int chime_make_fence(chime_op *op, far_bytes key, chime_fence *fence);
/* Frees the key block of a fence that no other client has seen. */
void chime_free_fence(chime_op *op, uint64_t word);
/* Retires the key block of a fence that other clients may still read. */
void chime_retire_fence(chime_op *op, uint64_t word);
/* Returns the length of the shortest prefix of `right` that is greater than `left`. */
size_t chime_separator_length(far_bytes left, far_bytes right);
/* Compares op->key with the fences of a tail. Returns 0 if the key belongs to the node, CHIME_STALE if the key belongs
 * to a node further left, CHIME_RIGHT if it belongs to a node further right. For CHIME_RIGHT it also sets
 * op->right_fence and op->right_node. */
int chime_check_range(chime_op *op, const uint64_t *tail);
/* Like chime_check_range, and also returns the fences. Without a right sibling, *high is not set. */
int chime_check_and_read_range(chime_op *op, const uint64_t *tail, chime_fence *low, chime_fence *high);
int chime_decode_inner(chime_op *op, chime_node *n, chime_inner *inner);

/* block.c: pair blocks, which contain a key and its value where these are not stored in slots. */
typedef struct chime_block {
    uint8_t *image;
    far_bytes key, value;
} chime_block;
/* The first function adds the READ of the whole pair block that a value word names, the second only the head of the
 * pair block, up to the end of the longest possible key. */
int chime_batch_read_block(chime_op *op, uint64_t word, chime_block *b);
int chime_batch_read_block_head(chime_op *op, uint64_t word, chime_block *b);
/* The two functions evaluate the READ of a pair block after the wait: they check the lengths and set `key` and `value`.
 * After the READ of a head only `key` may be used. */
int chime_parse_block(chime_op *op, uint64_t word, chime_block *b);
int chime_parse_block_head(chime_op *op, uint64_t word, chime_block *b);
/* READs a pair block in a batch of its own and parses it. */
int chime_read_block(chime_op *op, uint64_t word, chime_block *b);
/* Searches op->key in the slots of its neighbourhood, which must have been READ. Sets *slot, or -1 if the key is not
 * there, and b to its pair block if the index has pair blocks. With b NULL, pair blocks are read only where they are
 * needed to compare keys. */
int chime_find_item(chime_op *op, chime_node *n, int *slot, chime_block *b);

/* find.c: the descent from the root, and half splits. */
int chime_read_root(chime_op *op, uint64_t *root);
/* Finds the leaf for the key if all nodes from the root down are cached; returns false if not. No verb is sent. */
bool chime_find_cached_leaf(chime_op *op, chime_ptr *leaf);
/* Finds the node of this level for the key. Returns CHIME_NO_LEVEL if the tree is lower. */
int chime_descend(chime_op *op, unsigned level, chime_ptr *node);
/* Called when a descent ended at an outdated pointer. Drops cached nodes on the path, so that the next descent reads
 * them again. After repeated calls it also repairs the parent, and finally reports corruption. */
int chime_drop_stale_path(chime_op *op, chime_ptr node, unsigned level);
/* Records a move to the right: the search found the key beyond node `from`, so it continues at the sibling `to`. Also
 * records a half split. Returns CHIME_RIGHT, or CHIME_AGAIN if the operation must start again at the root. */
int chime_move_right(chime_op *op, unsigned level, chime_ptr from, chime_ptr to, unsigned *moves);
/* Counts a move to the right like chime_move_right, but does not record a half split. */
int chime_count_right_move(chime_op *op, chime_ptr to, unsigned *moves);
/* Records that `node` was reached through the sibling pointer of `left`. low NULL: the low fence is unknown. */
void chime_note_half_split(chime_op *op, unsigned level, chime_ptr left, const chime_fence *low, chime_ptr node);
/* Records a split that this task has made. */
void chime_note_own_split(chime_op *op, chime_ptr left, const chime_fence *low, chime_ptr node);
/* Returns the leaf to which recent splits of `leaf` have moved the key, as far as this handle has recorded them. */
chime_ptr chime_follow_recent_splits(chime_op *op, chime_ptr leaf);
int chime_read_inner(chime_op *op, chime_ptr p, chime_inner *inner);
/* Ends an operation. If op->help_node is set, it first inserts the missing pivot of that node. */
void chime_finish_op(chime_op *op);

/* get.c: get and multi-get. */
int chime_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int chime_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]);

/* write_queue.c: tasks that wait for the latch of a node. */

/* Takes the latch. While the task waits, `me` is listed in the queue. */
void chime_latch_as_waiter(chime_queue *queue, far_task *t, chime_waiter *me, chime_ptr node);
/* Lists the waiters of the node that are not served yet. The caller must hold the latch of the node and may use the
 * entries until it leaves the latch. */
unsigned chime_list_waiters(chime_queue *queue, chime_ptr node, unsigned most, chime_waiter *all[]);
/* Returns the queue entry of the task, or NULL if the task is not in the queue. */
chime_waiter *chime_find_waiter(chime_queue *queue, const far_task *t);
/* Puts the inserts that wait for the leaf into the image, as far as they fit, and adds them to *combined. Returns their
 * number. The caller must hold the latch of the leaf. */
unsigned chime_combine_inserts(chime_op *op, chime_ptr leaf, uint64_t *w, chime_insert **combined);
/* Reports the result of the change to the tasks whose inserts were combined. Must precede the release of the latch. */
void chime_report_combined_inserts(chime_op *op, chime_insert **combined, int err);

/* write.c: insert, update, put and delete. */
int chime_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int chime_remove(far_task *t, far_index *index, far_bytes key);

/* restructure_split.c: splitting a leaf. */

/* Splits the leaf and inserts the operation's item, and inserts of waiters, which are added to *combined. The leaf must
 * be locked and READ as a whole. `early` is set if it is not full, but many clients wait for it. */
int chime_split_leaf(chime_op *op, chime_node *n, const uint64_t *value, bool early, chime_insert **combined);
/* Allocates op->new_node before the lock is taken, so that the lock is not held during the allocation. Failure is
 * ignored. */
void chime_prealloc_node(chime_op *op, chime_ptr leaf);
/* Sets words V and L (occupancy map and lock) in the tail of a new node, which is unlocked and has this occupancy map.
 */
void chime_set_unlocked_words(const chime_state *st, uint64_t *tail, uint64_t map);
/* Chooses at which item to split; restructure_split.c describes the rule. Returns the number of items that stay on the
 * left, or -1. */
int chime_choose_split(const chime_state *st, unsigned count, const uint16_t *slots, unsigned mine, unsigned home_slot,
                       bool rightmost, bool *right);

/* restructure_parent.c: the pivot for a node to which only its left sibling points. `level` is the level of the parent.
 */
int chime_add_pivot(far_task *t, far_index *index, unsigned level, chime_ptr child);
/* Like chime_add_pivot, but in a background task. Returns false if no task could be started. */
bool chime_add_pivot_in_background(chime_op *op, unsigned level, chime_ptr child);
/* The first function chooses a memory node for a new node between these neighbours (0: none). The second returns
 * whether a choice is allowed. */
unsigned chime_choose_memory_node(chime_op *op, chime_ptr left, chime_ptr right);
bool chime_memory_node_is_allowed(chime_op *op, unsigned node, chime_ptr left, chime_ptr right);

/* restructure_merge.c: merging a node into its left sibling. */

/* Starts a background task that merges nodes of this level at op->key, if that is worthwhile. */
int chime_merge_in_background(chime_op *op, unsigned level);
/* The idle hook of the kind. Runs one deferred merge; returns 1 if more merges are deferred. */
int chime_run_deferred_merge(far_task *t, far_index *index);
void chime_free_deferred_merges(chime_state *st);
/* Copies the items of image b into image a. Returns false if they do not fit. */
bool chime_absorb(const chime_state *st, uint64_t *a, uint64_t *b);
/* Lets image a absorb b, and adds the WRITEs that store image a and unlock its node. Adds nothing and clears *fits if
 * the items of b do not fit. */
int chime_batch_absorbed_image(chime_op *op, chime_node *a, chime_node *b, const uint64_t *before, bool *fits);

/* recover.c: repair after a client failure. `lock` is a lock word of node p. Returns 0 if the client named in the lock
 * word is alive; 1 if that client has failed and the node is repaired, or if the lock word has changed; 2 if the node
 * is being merged or no longer exists. */
int chime_repair_if_holder_failed(chime_op *op, chime_ptr p, uint64_t lock);

/* scan.c */
int chime_scan(far_task *t, far_index *index, far_scan_chunk *scan);

/* scan_leaf.c: the pairs of one leaf, in the order of the scan. */

/* What a chunk of a scan still takes. */
typedef struct chime_delivery {
    far_scan_chunk *scan;
    uint64_t wanted; /* number of pairs */
    bool enough;     /* the chunk is complete */
} chime_delivery;
/* Delivers the pairs of the leaf whose first 8 bytes are at least `least` and at most `most`, or fewer if the chunk is
 * complete before that. In an index without pair blocks, these pairs must belong to the range of the chunk and follow
 * the last pair delivered. */
int chime_deliver_leaf(chime_op *op, chime_delivery *d, chime_node *n, uint64_t least, uint64_t most);

/* check.c: traversals of the whole index. */
int chime_walk(far_task *t, far_index *index, far_walk *walk);
int chime_check(far_task *t, far_index *index, far_report *report);
int chime_usage(far_task *t, far_index *index, far_usage *usage);
int chime_object_keys(far_task *t, far_index *index, unsigned type, const void *object, uint64_t bytes, far_keys *keys);
int chime_load_factor(far_task *t, far_index *index, far_load *load);

/* cache.c: the cache of inner nodes. `epoch` is the current epoch; entries that are too old are ignored. */

/* The next step of a descent, as an inner node decides it. */
typedef struct chime_route {
    chime_ptr next; /* the child, or the sibling if `right` is set */
    bool right;     /* the key is at or after the high fence of the node, so the search continues at the sibling */
    unsigned level; /* level of the node that made this decision */
} chime_route;
/* Creates the cache. Sets *cache to NULL if the budget admits none. */
int chime_cache_new(far_index *index, chime_cache **cache);
void chime_cache_free(chime_cache *cache);
/* Finds the next step of a descent for the key, if this node is cached, and stores it in *route. Returns false if the
 * node is not cached. */
bool chime_cache_route(chime_cache *cache, const chime_state *st, chime_ptr node, const chime_key *key, uint64_t epoch,
                       chime_route *route);
/* Like chime_cache_route, but returns false to one caller after chime_cache_request_renewal; that caller must READ the
 * node again. */
bool chime_cache_route_or_renew(chime_cache *cache, const chime_state *st, chime_ptr node, const chime_key *key,
                                uint64_t epoch, chime_route *route);
/* The leaves that a scan visits next, in the order of the scan, as far as one parent names them. */
typedef struct chime_leaf_list {
    const chime_key *at;  /* position of the scan, which belongs to the first leaf */
    const chime_key *end; /* bound of the range in the direction of the scan: a forward scan ends before this key, a
                             backward scan after it; NULL: none */
    bool backward;
    uint64_t wanted; /* number of pairs that the scan still wants; limits the number of leaves */
    unsigned count;
    chime_ptr leaf[CHIME_SCAN_LEAVES];
} chime_leaf_list;
/* Lists children of the node. Returns false if the node is not cached or the position is beyond its range. */
bool chime_cache_children(chime_cache *cache, const chime_state *st, chime_ptr node, uint64_t epoch,
                          chime_leaf_list *list);
/* Lists children of a node that need not be cached, and whose range must contain the position. Returns false if there
 * is no memory. */
bool chime_list_children(const chime_state *st, const chime_inner *inner, chime_leaf_list *list);
void chime_cache_put(chime_cache *cache, const chime_state *st, const chime_inner *inner, uint64_t epoch);
/* Adds a child to a cached node. Returns false if the node is not cached or the child does not fit. */
bool chime_cache_add_child(chime_cache *cache, const chime_state *st, chime_ptr node, const chime_fence *pivot,
                           chime_ptr child);
/* Makes the next descent READ the node again. */
void chime_cache_request_renewal(chime_cache *cache, chime_ptr node);
void chime_cache_drop(chime_cache *cache, chime_ptr node);
size_t chime_cache_bytes(far_index *index);
/* The first function reserves memory for the hotspot buffer in the budget of the cache; the second gives it back. */
bool chime_cache_reserve_bytes(chime_cache *cache, size_t bytes);
void chime_cache_release_bytes(chime_cache *cache, size_t bytes);
void chime_route_in_node(const chime_state *st, const chime_inner *inner, const chime_key *key, chime_route *route);

/* cache_hotspot.c: the hotspot buffer, which remembers the slots of frequently read keys. */
int chime_hot_new(far_index *index, chime_cache *cache, uint64_t bytes, chime_hot **hot);
void chime_hot_free(chime_hot *hot);
/* Returns the leaf of the key, with the key's distance from its home slot in the low bits of the pointer; 0: unknown.
 */
chime_ptr chime_hot_find(chime_hot *hot, uint64_t hash, uint64_t epoch);
void chime_hot_put(chime_hot *hot, far_task *t, uint64_t hash, chime_ptr leaf, unsigned distance, uint64_t epoch);
void chime_hot_drop(chime_hot *hot, uint64_t hash);
size_t chime_hot_bytes(const chime_hot *hot);

#endif
