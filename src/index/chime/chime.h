/* CHIME: what its files share. */
#ifndef FAR_INDEX_CHIME_CHIME_H
#define FAR_INDEX_CHIME_CHIME_H

#include "base/spin.h"
#include "index/chime/layout.h"
#include "index/index.h"
#include "index/rdwc.h"

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

#define CHIME_NODE_WORDS  ((CHIME_SPAN_MAX + 1) * 8) /* of the largest: with a slot a line */
#define CHIME_HALF_SPLITS 64
#define CHIME_MERGES_MAX  256
#define CHIME_OP_WORDS    16
#define CHIME_SCAN_LEAVES 16
#define CHIME_MOVES_FIRST 4u    /* to the right, in one descent: then it begins anew, and may go twice as far */
#define CHIME_MOVES_MAX   1024u /* a chain of siblings without pivots that is so long is damage */

/* What an attempt can come to, besides 0 and errors. */
enum {
    CHIME_STALE = 1, /* the node is not what the pointer was to: the way down is to be found anew */
    CHIME_RIGHT,     /* the key lies further right */
    CHIME_AGAIN,     /* somebody is changing the node */
    CHIME_NO_LEVEL,  /* the tree is not that high */
};

typedef struct chime_cache chime_cache;
typedef struct chime_hot chime_hot;

typedef struct chime_half_split { /* a node that was reached from its sibling only */
    chime_ptr node;
    chime_ptr left;  /* that sibling; 0: where node begins is not known */
    uint64_t low;    /* the first 8 bytes of where node begins */
    chime_ptr above; /* the cached parent that it was noted in, and that is to be READ again; 0: none */
    uint64_t since;  /* when it was met first */
} chime_half_split;

typedef struct chime_counts { /* of a handle */
    _Atomic uint64_t splits, early_splits, split_items, speculated, speculated_well, gets, merges, repairs, hops, helps,
        grown, along, inserts_along; /* along: pivots, and inserts, that another task put in with its own */
} chime_counts;

typedef struct chime_waiting { /* a task that waits for the latch of a node */
    const far_task *task;
    chime_ptr node;
    bool served; /* what it came for is done by another task */
    struct chime_waiting *next;
} chime_waiting;

typedef struct chime_queue { /* all that wait with things of one kind */
    far_spin lock;
    chime_waiting *first;
} chime_queue;

typedef struct chime_insert { /* that waits */
    chime_waiting waiting;
    uint64_t key;
    unsigned home;
    const uint64_t *value;      /* as the slot will have it */
    bool lost;                  /* who has served it lost its session over that */
    struct chime_insert *along; /* another that goes in with the same change */
} chime_insert;

typedef struct chime_state { /* of an open index */
    uint64_t magic;
    unsigned span, hop, homes;  /* slots of a node; of a neighbourhood; slots that can be a home */
    unsigned per_line;          /* slots of a line: 3, or fewer where larger values lie in them */
    unsigned lines, node_bytes; /* without the tail; with it */
    unsigned group;             /* slots that share a bit of the map of free slots: it is set when all are occupied */
    bool wrap;                  /* a neighbourhood may go on at slot 0 */
    bool fixed;                 /* keys and values of one size each in the slot itself */
    unsigned key_bytes, value_bytes; /* of these: 8 at most; 8, or 40 where a line is seen at one instant */
    unsigned value_words;            /* that a slot has for its value */
    bool exact;                      /* keys of at most 8 bytes and one length: the first word of a slot decides */
    bool words;                      /* unit 8: a line may be seen half changed */
    bool masked, fused, handover, crowd;
    bool along; /* inserts that wait for a leaf go in together */
    bool hopscotch, vacancy, replication, paper_split;
    bool rising; /* hops are written from the lowest line up: unsafe */
    unsigned miss, merge, patience, walk_slice;
    uint64_t seed;
    _Atomic uint64_t root, nonce, gets, misses;
    _Atomic uint64_t lock_ns; /* what an attempt at a lock took, when it was last looked at */
    chime_cache *cache;       /* NULL: none */
    chime_hot *hot;           /* NULL: none */
    far_spin half_lock;
    unsigned half_next;
    _Atomic uint64_t half_due;   /* when a parent is to be READ again; UINT64_MAX: none is */
    _Atomic uint64_t half_until; /* from when on no entry tells the way any more */
    chime_half_split half[CHIME_HALF_SPLITS];
    chime_queue pivots;  /* that wait for the node that is to get them (parent.c) */
    chime_queue inserts; /* that wait for their leaf (write.c) */
    far_spin merge_lock;
    unsigned merge_count;
    void *merge_later[CHIME_MERGES_MAX]; /* merges that are put off (merge.c) */
    chime_counts counts;
} chime_state;

/* A key, as it is compared and looked up. */
typedef struct chime_key {
    far_bytes bytes;
    uint64_t first; /* its first 8 bytes as a big-endian number, zeros behind a shorter one */
    uint64_t hash;
} chime_key;

/* A fence or pivot, with the bytes that its word stands for. */
typedef struct chime_fence {
    uint64_t word, first;
    far_bytes bytes; /* not of fixed keys */
} chime_fence;

/* What an operation works with. */
typedef struct chime_op {
    far_task *t;
    far_index *index;
    chime_state *st;
    chime_key key;
    unsigned home;
    uint32_t mark;                /* of the last batch that was waited for */
    chime_ptr path[CHIME_LEVELS]; /* node of each level that led here */
    unsigned restarts;            /* ways down that led to nothing */
    far_object spare;             /* a node that nobody has seen yet, for a split; addr 0: none */
    far_addr block;               /* a block that nobody has seen yet; 0: none */
    uint32_t block_bytes;
    unsigned pins;                  /* that were taken anew: what was READ before counts no more */
    chime_ptr aux;                  /* a node that was found gone says: this one took it in */
    unsigned moves_allowed;         /* to the right, in one descent */
    chime_fence beyond;             /* the key lies beyond this end of a node ... */
    chime_ptr beyond_node;          /* ... in this one, or further right */
    uint64_t words[CHIME_OP_WORDS]; /* for WRITEs of the open batch */
    unsigned words_used;
    uint64_t heir, heir_map; /* a lock word of who gets the lock next, and the map that goes with it; 0: nobody */
    unsigned repairs;        /* under way, inside of one another */
    chime_ptr help;          /* a node without a pivot above it that it is time to help; 0: none */
    unsigned help_level;
} chime_op;

/* A node as it was READ: as much of it as the reader asked for. */
typedef struct chime_node {
    chime_ptr ptr;
    uint64_t *w; /* chime_node_bytes of them */
    uint64_t s[2];
} chime_node;

typedef struct chime_lock {
    uint64_t mine, old, v;
    uint64_t map; /* of groups of slots without a free one, once it is held */
} chime_lock;

/* An inner node, decoded: its children in order. */
typedef struct chime_inner {
    chime_ptr ptr, sibling;
    unsigned level, count;
    bool bounded; /* the node has a right end: high */
    chime_fence low, high;
    chime_ptr child[CHIME_SPAN_MAX];
    chime_fence pivot[CHIME_SPAN_MAX];
} chime_inner;

typedef struct chime_move { /* of a hop */
    uint16_t from, to;
} chime_move;


static inline bool chime_is_lost(int err) { /* the session is: no verb of it will work */
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
    return w + chime_slot_at(st->per_line, slot) / 8;
}


static inline uint64_t *chime_h0(const chime_state *st, uint64_t *w, unsigned line) {
    return w + chime_h0_at(st->per_line, line) / 8;
}


static inline uint64_t *chime_h1(const chime_state *st, uint64_t *w, unsigned line) {
    return w + chime_h1_at(st->per_line, line) / 8;
}


static inline bool chime_is_occupied(const chime_state *st, uint64_t *w, unsigned slot) {
    return chime_h1_occupied(*chime_h1(st, w, chime_line(st, slot))) >> chime_in_line(st->per_line, slot) & 1;
}


static inline void chime_set_occupied(const chime_state *st, uint64_t *w, unsigned slot, bool occupied) {
    uint64_t *h1 = chime_h1(st, w, chime_line(st, slot));
    unsigned bit = 1u << chime_in_line(st->per_line, slot), now = chime_h1_occupied(*h1);
    *h1 = chime_h1_with_occupied(*h1, occupied ? now | bit : now & ~bit);
}


static inline unsigned chime_distance(const chime_state *st, unsigned from, unsigned to) { /* going up, round the end */
    return to >= from ? to - from : to + st->span - from;
}


static inline unsigned chime_step(const chime_state *st, unsigned slot, unsigned by) {
    slot += by;
    return slot >= st->span ? slot - st->span : slot;
}


/* image.c: pure functions on images in local memory */
uint64_t chime_number(const void *key, size_t length);
void chime_key_make(const chime_state *st, far_bytes bytes, chime_key *key);
unsigned chime_home(const chime_state *st, uint64_t hash);
unsigned chime_home_of(const chime_state *st, uint64_t *w, unsigned slot);                /* st->span: that cannot be */
uint64_t chime_occupied_map(const chime_state *st, uint64_t *w);                          /* by groups */
uint64_t chime_map_with(const chime_state *st, uint64_t map, uint64_t *w, unsigned slot); /* as w has its group now */
unsigned chime_count_items(const chime_state *st, uint64_t *w);
bool chime_map_agrees(const chime_state *st, uint64_t *w, unsigned home); /* bitmap of a home = items that have it */
void chime_build_maps(const chime_state *st, uint64_t *w);
bool chime_maps_agree(const chime_state *st, uint64_t *w); /* of all homes */
/* All lines and the tail are of this incarnation, valid, and of one shape. */
bool chime_is_whole(const chime_state *st, uint64_t *w, unsigned tag);
bool chime_line_is(const chime_state *st, uint64_t *w, unsigned line,
                   unsigned tag); /* valid, and of that incarnation */
/* How many slots from home on have a free one among them for certain; 0: that cannot be told. */
unsigned chime_reach(const chime_state *st, uint64_t map, unsigned home);
int chime_free_among(const chime_state *st, uint64_t *w, unsigned first, unsigned count); /* the first one; -1: none */
/* Makes room for an item of that home, from the free slot on. How many moves, first one first; *at: the slot that is
 * free then. -1: it cannot be. The image must hold all slots from home to free. */
int chime_hop(const chime_state *st, uint64_t *w, unsigned home, unsigned free, chime_move *moves, unsigned *at);
void chime_place(const chime_state *st, uint64_t *w, unsigned slot, unsigned home, uint64_t key, const uint64_t *value);
void chime_clear(const chime_state *st, uint64_t *w, unsigned slot, unsigned home);
void chime_empty_node(const chime_state *st, uint64_t *w, unsigned tag, unsigned level);
void chime_set_shape(const chime_state *st, uint64_t *w, chime_ptr sibling, unsigned nv);
void chime_set_valid(const chime_state *st, uint64_t *w, bool valid);
int chime_free_near(const chime_state *st, uint64_t *w, unsigned home); /* a free slot of the neighbourhood; -1 */

/* access.c: verbs on nodes */
int chime_begin(chime_op *op, far_task *t, far_index *index, far_bytes key);
int chime_wait(chime_op *op);      /* far_wait, marked for RDWC */
int chime_renew_pin(chime_op *op); /* holds no lock then; its block is given back */
void chime_drop_block(chime_op *op);
void chime_drop_spare(chime_op *op);
int chime_broken(const far_index *index, chime_ptr p, const char *what);
uint64_t *chime_new_image(chime_op *op);
bool chime_ptr_is_sound(const chime_op *op, chime_ptr p);
void chime_put_read_slots(chime_op *op, chime_node *n, unsigned first, unsigned count);
void chime_put_read_tail(chime_op *op, chime_node *n);
int chime_read_tail(chime_op *op, chime_ptr p, chime_node *n); /* whatever it is */
void chime_put_read_whole(chime_op *op, chime_node *n);
void chime_put_read_s(chime_op *op, chime_node *n, unsigned which);
void chime_put_read_all(chime_op *op, chime_node *n); /* with S before and after */
bool chime_is_quiet(const chime_node *n);             /* no change was finished between its two S */
/* The node looks half changed: somebody is at it, died over it (then it is put right), or it is damaged. Takes a new pin
 * now and then. */
int chime_wait_for_change(chime_op *op, chime_node *n, unsigned attempt, unsigned *at_rest);
/* A whole node at rest. CHIME_STALE: it is another, or gone (op->aux: to where). Waits as chime_wait_for_change. */
int chime_read_node(chime_op *op, chime_ptr p, chime_node *n);
int chime_node_state(chime_op *op, chime_node *n); /* after a chime_put_read_all: 0, CHIME_STALE or CHIME_AGAIN */
void chime_put_lock(chime_op *op, chime_ptr p, unsigned behind,
                    chime_lock *lock);                 /* behind: how many it will be handed on to */
int chime_lock_result(chime_op *op, chime_lock *lock); /* 0: held by us; CHIME_AGAIN; CHIME_STALE */
uint64_t chime_next_nonce(chime_op *op);
uint64_t chime_fresh_s(chime_op *op, bool busy);
int chime_unlock_unchanged(chime_op *op, chime_ptr p, const chime_lock *lock); /* not waited for */
/* Puts the WRITEs that end a change under a lock: a new S, the map, and the lock is free, or op->heir's. */
int chime_put_unlock(chime_op *op, chime_ptr p, uint64_t map);
int chime_put_busy(chime_op *op, chime_ptr p); /* unit 8: before the first change */
/* Puts the WRITEs of the lines that differ, from the highest (counted from line `first` on) to the lowest, or, where
 * the option says so, from the lowest up. */
void chime_put_lines(chime_op *op, chime_node *n, const uint64_t *before, unsigned first);
int chime_put_moves(chime_op *op, chime_node *n, const uint64_t *before, const chime_move *moves, unsigned count,
                    unsigned at); /* unit 8: as chime_put_lines, move by move */
int chime_put_image(chime_op *op, chime_node *n,
                    const uint64_t *before); /* all lines, ascending; the tail without S, L */

/* fence.c: keys of fences, blocks of pairs */
int chime_read_fences(chime_op *op, chime_fence *fences[], unsigned count); /* of their words; 1 round trip at most */
int chime_fence_compare(const chime_state *st, const chime_fence *fence, const chime_key *key);
int chime_compare_fences(const chime_state *st, const chime_fence *a, const chime_fence *b); /* which were read */
bool chime_fence_is_known(const chime_state *st, chime_fence *fence);                        /* the word tells all */
int chime_make_fence(chime_op *op, far_bytes key,
                     chime_fence *fence); /* allocates and puts its block, if it needs one */
void chime_free_fence(chime_op *op, uint64_t word);
void chime_retire_fence(chime_op *op, uint64_t word);
size_t chime_separator(far_bytes left, far_bytes right); /* bytes of right that part it from left */
/* 0: the key lies in the node of this tail; CHIME_RIGHT; CHIME_STALE: before it. */
int chime_check_range(chime_op *op, const uint64_t *tail);
int chime_decode(chime_op *op, chime_node *n, chime_inner *inner);

/* block.c */
typedef struct chime_block {
    uint8_t *image;
    far_bytes key, value;
} chime_block;
int chime_put_read_block(chime_op *op, uint64_t word, chime_block *b);
int chime_read_block(chime_op *op, uint64_t word, chime_block *b);    /* alone, waited for and checked */
int chime_put_read_head(chime_op *op, uint64_t word, chime_block *b); /* as much as holds any key */
int chime_take_block(chime_op *op, uint64_t word, chime_block *b);    /* after the wait; checked */
int chime_take_head(chime_op *op, uint64_t word, chime_block *b);
/* The slot of the key in its neighbourhood, which was READ. -1: it is not there. b: its block, where there are any. */
int chime_find_item(chime_op *op, chime_node *n, int *slot, chime_block *b);

/* find.c */
int chime_read_root(chime_op *op, uint64_t *root);
bool chime_way_is_cached(chime_op *op, chime_ptr *leaf);           /* from the root to the leaf */
int chime_descend(chime_op *op, unsigned level, chime_ptr *node);  /* CHIME_NO_LEVEL */
int chime_not_there(chime_op *op, chime_ptr node, unsigned level); /* the way down led to nothing: forget it */
/* The sibling of a node of that level is the way: CHIME_RIGHT. CHIME_AGAIN: begin at the top again. */
int chime_go_right(chime_op *op, unsigned level, chime_ptr from, chime_ptr to, unsigned *moves);
int chime_count_move(chime_op *op, chime_ptr to, unsigned *moves);
/* node was met from its left sibling; low NULL: where it begins is not known. */
void chime_note_split(chime_op *op, unsigned level, chime_ptr left, const chime_fence *low, chime_ptr node);
void chime_note_own_split(chime_op *op, chime_ptr left, const chime_fence *low, chime_ptr node); /* by this task */
/* The leaf to the right of this one where the key lies, as far as splits of late tell; else this one. */
chime_ptr chime_follow_splits(chime_op *op, chime_ptr leaf);
int chime_read_inner(chime_op *op, chime_ptr p, chime_inner *inner);
void chime_finish(chime_op *op); /* the operation is over: helps, if there is something to */

/* get.c */
int chime_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int chime_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]);

/* queue.c: tasks that wait for the latch of a node, and may be served by who holds it */
void chime_latch_queued(chime_queue *queue, far_task *t, chime_waiting *me, chime_ptr node);
/* Those who wait for the node and are not served. Whoever holds the latch may use them until it is left. */
unsigned chime_list_queue(chime_queue *queue, chime_ptr node, unsigned most, chime_waiting *all[]);
chime_waiting *chime_find_queued(chime_queue *queue, const far_task *t); /* NULL: it is not in the queue */
/* The latch of the leaf is held: puts inserts that wait for it into the image, as far as they fit. How many. */
unsigned chime_take_along(chime_op *op, chime_ptr leaf, uint64_t *w, chime_insert **along);
void chime_tell_along(chime_op *op, chime_insert **along, int err); /* before the latch is left. err: what it came to */

/* write.c */
int chime_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int chime_remove(far_task *t, far_index *index, far_bytes key);

/* split.c: the leaf is full for the operation's key, or crowded (early), locked, and READ as a whole. 0: split, and the
 * item is in. along: what goes in with it. */
int chime_split_leaf(chime_op *op, chime_node *n, const uint64_t *value, bool early, chime_insert **along);
/* Somebody else holds the lock of the leaf: takes a node meanwhile, for whoever has the lock waits for memory with it. */
void chime_take_spare(chime_op *op, chime_ptr leaf);
int chime_choose_split(const chime_state *st, unsigned count, const uint16_t *slots, unsigned mine, unsigned home,
                       bool rightmost, bool *right);

/* parent.c: a pivot for a node that only its sibling names, at the level above it */
int chime_add_pivot(far_task *t, far_index *index, unsigned level, chime_ptr child);
bool chime_add_pivot_later(chime_op *op, unsigned level, chime_ptr child); /* false: no local memory for a task */
unsigned chime_place_node(chime_op *op, chime_ptr left, chime_ptr right); /* the memory node for one between; 0: none */
bool chime_is_place(chime_op *op, unsigned node, chime_ptr left, chime_ptr right);

/* merge.c */
int chime_merge_later(chime_op *op, unsigned level);
int chime_merge_some(far_task *t, far_index *index); /* the idle hook */
void chime_forget_merges(chime_state *st);
bool chime_absorb(const chime_state *st, uint64_t *a, uint64_t *b); /* a takes in the items of b */
int chime_put_extended(chime_op *op, chime_node *a, chime_node *b, const uint64_t *before, bool *fits);

/* repair.c: the lock word of a node names somebody. 1: it was dead, and what it left is put right; 0: it lives. */
int chime_resolve(chime_op *op, chime_ptr p, uint64_t lock);

/* scan.c */
int chime_scan(far_task *t, far_index *index, far_scan_chunk *scan);

/* check.c */
int chime_walk(far_task *t, far_index *index, far_walk *walk);
int chime_check(far_task *t, far_index *index, far_report *report);
int chime_usage(far_task *t, far_index *index, far_usage *usage);
int chime_load_factor(far_task *t, far_index *index, far_load *load);

/* cache.c */
typedef struct chime_route { /* where a node sends a key */
    chime_ptr next;          /* child, or sibling when the key lies beyond */
    bool right;
    unsigned level; /* of the node */
} chime_route;
int chime_cache_new(far_index *index, chime_cache **cache); /* *cache NULL: there is no budget */
void chime_cache_free(chime_cache *cache);
bool chime_cache_route(chime_cache *cache, const chime_state *st, chime_ptr node, const chime_key *key, uint64_t epoch,
                       chime_route *route);
/* As chime_cache_route; false also where the node is to be READ again, which is for the caller to do. */
bool chime_cache_route_renewed(chime_cache *cache, const chime_state *st, chime_ptr node, const chime_key *key,
                               uint64_t epoch, chime_route *route);
/* The children from the key's on, at most `most` and below `to` (NULL: no bound). 0: not known, or the key lies beyond.
 */
unsigned chime_cache_children(chime_cache *cache, const chime_state *st, chime_ptr node, const chime_key *key,
                              const chime_key *to, uint64_t epoch, unsigned most, chime_ptr *children);
void chime_cache_put(chime_cache *cache, const chime_state *st, const chime_inner *inner, uint64_t epoch);
/* A child more, where the node is cached. False: it is not, or has no room. */
bool chime_cache_add(chime_cache *cache, const chime_state *st, chime_ptr node, const chime_fence *pivot,
                     chime_ptr child);
void chime_cache_renew(chime_cache *cache, chime_ptr node); /* READ it again when somebody comes by */
void chime_cache_drop(chime_cache *cache, chime_ptr node);
size_t chime_cache_bytes(far_index *index);
void chime_route_in(const chime_state *st, const chime_inner *inner, const chime_key *key, chime_route *route);

/* hot.c: where single keys were found */
int chime_hot_new(far_index *index, chime_cache *cache, uint64_t bytes, chime_hot **hot);
void chime_hot_free(chime_hot *hot);
chime_ptr chime_hot_find(chime_hot *hot, uint64_t hash, uint64_t epoch); /* distance in its low bits; 0: not known */
void chime_hot_put(chime_hot *hot, far_task *t, uint64_t hash, chime_ptr leaf, unsigned distance, uint64_t epoch);
void chime_hot_drop(chime_hot *hot, uint64_t hash);
size_t chime_hot_bytes(const chime_hot *hot);

#endif
