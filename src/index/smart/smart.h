/* SMART: what its files share. */
#ifndef FAR_INDEX_SMART_SMART_H
#define FAR_INDEX_SMART_SMART_H

#include "index/rdwc.h"
#include "index/smart/layout.h"

#include <stdatomic.h>
#include <string.h>

enum {
    SMART_OPTION_LAYOUT = FAR_OPTIONS_COMMON,
    SMART_OPTION_UPDATE,
    SMART_OPTION_IN_PLACE,
    SMART_OPTION_NODE_TYPES,
    SMART_OPTION_CACHE,
    SMART_OPTION_EVICTION,
    SMART_OPTION_PLACE,
    SMART_OPTION_MERGE,
    SMART_OPTION_REAR_LOCK,
    SMART_OPTION_LOCKFREE,
    SMART_OPTION_PATHS,
    SMART_OPTION_WALK_SLICE,
    SMART_OPTION_BATCH,
    SMART_OPTION_PATIENCE,
};

enum { SMART_UPDATE_WORD, SMART_UPDATE_LOCK, SMART_UPDATE_RCU };
enum { SMART_EVICT_CLOCK, SMART_EVICT_FIFO };
enum { SMART_MERGE_DELAYED, SMART_MERGE_EAGER };

#define SMART_NEIGHBOURS 8   /* slots of a DIR node that are READ with one, to see whether the node is empty */
#define SMART_BATCH_MAX  128 /* leaves of one batch of a scan */
#define SMART_CHAIN_MAX  16  /* replaced leaves of one slot that are cut out at once */
#define SMART_CROWD      3   /* times that an insert loses the frontier of a list: so many insert there */

typedef struct smart_cache smart_cache;
typedef struct smart_merges smart_merges;
typedef struct smart_records smart_records;

typedef struct smart_state { /* of an open index */
    unsigned stripes;
    bool paper, spread; /* layout=paper; place=spread */
    unsigned update, in_place, node_types;
    bool eager, rear_lock, node_locks, paths; /* paths: path_compression */
    bool fixed;                               /* no leaf is ever replaced by another: all values fit where they are */
    bool prints;     /* all leaves have one size: their words carry a fingerprint of the key instead of the class */
    unsigned class_; /* that size */
    atomic_uint blind, blind_left; /* scans that go without what the cache expects; how many are left (foresee.c) */
    atomic_uint misses;            /* gets of late that ended at another key's leaf, less those that found theirs */
    unsigned walk_slice, batch;    /* leaves under one pin; leaves of one batch of a scan */
    unsigned patience; /* attempts: an operation that waits for others looks for its way again then, under a new pin */
    uint64_t hash_base, chk_seed, tag;
    smart_cache *cache;     /* NULL: none */
    smart_merges *merges;   /* nodes that may be merged later */
    smart_records *records; /* redo records of the sessions */
    far_addr stripe[FAR_NODES_MAX];
} smart_state;

/* What an operation works with. */
#define SMART_FEW 16u /* bytes of keys whose hashes need no memory of their own */

typedef struct smart_op {
    far_task *t;
    far_index *index;
    smart_state *st;
    far_bytes key;
    uint64_t *hash; /* of the first 1 .. key.length bytes, as far as they were asked for; [0]: how many those are */
    far_bytes other_key;
    /* What follows is zero at first (smart_op_set). */
    uint64_t other;      /* word of a leaf of another key that was seen LIVE on the way: it need not be READ again */
    uint32_t mark;       /* of the last batch that was waited for */
    bool recycled;       /* what the cache named lies in memory that had an earlier life */
    bool passes;         /* the key is only where a pass begins */
    bool owner;          /* a hit is not enough: its slot is wanted */
    bool pair;           /* ... and the leaf that the cache knows is READ in one batch with it */
    bool absent;         /* the key is expected to be absent: the leaf that the cache knows is another's */
    bool only_present;   /* to an absent key nothing is done: what is in its place does not matter */
    bool uncached;       /* the cache is not to be asked */
    bool frozen_too;     /* frozen words are read like others: no slot is changed, and there is no memory to help */
    far_addr below_node; /* the owner at depth `below`: if it is still there it is READ as a whole */
    unsigned below;      /* the slot that names the owner, at this depth, is wanted too; 0: not */
    unsigned below_layout;
    bool below_recycled; /* `below_node` lies in memory that had an earlier life, as the cache knows */
    unsigned lost;       /* times that another took the frontier of a list first */
    /* What follows is not set. */
    uint64_t few[SMART_FEW + 1];
} smart_op;

/* A node as it was READ. */
typedef struct smart_node {
    far_addr addr;
    uint64_t ctl, fp, info;
    unsigned depth, layout;
    unsigned words;  /* slots that were READ */
    uint64_t *image; /* header and slots; room for the whole node once `whole` asked for it */
} smart_node;

/* A leaf as it was READ. key and value point into the image; checked. */
typedef struct smart_leaf {
    far_addr addr;
    uint64_t ctl;
    unsigned kind, class;
    uint8_t *image;
    far_bytes key, value;
    uint64_t meta;
} smart_leaf;

typedef struct smart_old { /* a leaf that is to be retired */
    far_addr addr;
    unsigned class;
} smart_old;

typedef struct smart_link { /* a slot and its word, which names something */
    far_addr slot;
    uint64_t word;
} smart_link;

typedef enum smart_outcome {
    SMART_HIT,        /* leaf is there, LIVE or PENDING */
    SMART_EMPTY,      /* the slot is unbound or a tombstone */
    SMART_GONE,       /* the slot names a DEAD leaf */
    SMART_OTHER_LEAF, /* ... a leaf of another key */
    SMART_OTHER_NODE, /* ... a node with another prefix */
} smart_outcome;

/* Where the search for a key ended. */
typedef struct smart_spot {
    smart_outcome outcome;
    bool proven;   /* false: a HIT that certified itself, found through the cache: nothing below but leaf is known */
    far_addr node; /* the owner, 0: the root */
    unsigned depth, layout; /* SMART_LAYOUTS: the owner is not known, the slot came from a pass */
    unsigned children;      /* of the owner, as far as it was READ; a list */
    far_addr slot;          /* its word for the key; a full list: 0 */
    unsigned at;            /* number of that slot */
    uint64_t word;
    far_addr up; /* the slot that names the owner; 0: not known (it came from the cache), or the owner is the root */
    uint64_t up_word;
    smart_node owner; /* as it was READ, when all of it was asked for (smart_op.below_node); else words 0 */
    smart_node child; /* SMART_OTHER_NODE */
    smart_leaf leaf;  /* the last of its chain */
    uint32_t mark;    /* of the batch with the word or leaf that decides */
    unsigned chain;   /* leaves before it, first in the slot */
    smart_old old[SMART_CHAIN_MAX]; /* those; last: the others are not cleared */
} smart_spot;


static inline void smart_spot_clear(smart_spot *s) {
    memset(s, 0, offsetof(smart_spot, old));
}


/* For a leaf that is found by itself: nothing of its owner, and no chain before it. */
static inline void smart_spot_unknown(smart_spot *s) {
    s->proven = false;
    s->node = s->slot = s->up = 0;
    s->word = 0;
    s->chain = 0;
}


static inline smart_state *smart_state_of(const far_index *index) {
    return index->state;
}


/* Without a key. */
static inline void smart_op_set(smart_op *op, far_task *t, far_index *index) {
    op->t = t;
    op->index = index;
    op->st = smart_state_of(index);
    memset((char *)op + offsetof(smart_op, other), 0, offsetof(smart_op, few) - offsetof(smart_op, other));
}


/* An operation that waits asks now and then whether the other one lives. */
static inline unsigned smart_ask_every(const smart_state *st) {
    return (st->patience + 2) / 3;
}


static inline bool smart_is_time_to_ask(const smart_state *st, unsigned attempt) {
    return attempt % smart_ask_every(st) == smart_ask_every(st) - 1;
}


static inline unsigned smart_leaf_class(const smart_state *st, uint64_t word) {
    return st->prints ? st->class_ : smart_word_hint(word);
}


/* The word, to READ a node of this layout as a whole. */
static inline uint64_t smart_word_for_all(uint64_t word, unsigned layout) {
    return layout >= SMART_DIR ? word
                               : smart_word_with_read_type(
                                     word, smart_read_type_for(smart_layout_slots(layout), layout, SMART_READ_TYPES));
}


static inline uint64_t smart_prefix_hash(const smart_op *op, unsigned depth) {
    uint64_t *hash = op->hash, known = hash[0], last = known ? hash[known] : 0;
    for (; known < depth; hash[++known] = last)
        last = smart_hash_step(last, ((const uint8_t *)op->key.data)[known], op->st->hash_base);
    hash[0] = known;
    return depth ? hash[depth] : 0;
}


static inline uint64_t *smart_slots(const smart_node *node) {
    return node->image + SMART_HEADER / 8;
}


static inline far_addr smart_slot_addr(far_addr node, unsigned at) {
    return node + SMART_HEADER + 8ull * at;
}


static inline far_addr smart_root_slot(const smart_state *st, unsigned byte) {
    return st->stripe[byte % st->stripes] + 8ull * (byte / st->stripes);
}


static inline unsigned smart_first_neighbour(unsigned at) {
    return at < SMART_PARTS - SMART_NEIGHBOURS ? at : SMART_PARTS - SMART_NEIGHBOURS;
}


static inline unsigned smart_count_words(const uint64_t *words, unsigned count) {
    unsigned live = 0;
    for (unsigned i = 0; i < count; i++)
        live += smart_word_is(words[i]) != SMART_NONE;
    return live;
}


#define SMART_NODE_LOCKS 64u /* behind the slots of each stripe */


static inline uint64_t smart_stripe_slots(unsigned stripes) {
    return (SMART_ROOT_SLOTS + stripes - 1) / stripes * 8ull;
}


static inline uint64_t smart_stripe_bytes(unsigned stripes) {
    return smart_stripe_slots(stripes) + 8ull * SMART_NODE_LOCKS;
}


/* Results of functions that return int: an error (less than 0), or ... */

enum {               /* ... what came of a change */
       SMART_LOST,   /* somebody was faster, or the place has to be looked at anew: find again */
       SMART_DONE,   /* the change took effect */
       SMART_ONWARD, /* nobody was faster, but the way down has to be found again */
       SMART_GREW,   /* smart_replace: done, and the copy has a leaf for the operation's key */
};

enum {                     /* ... of smart_common_prefix */
       SMART_NO_LEAF,      /* none is below the child that could tell its prefix */
       SMART_PREFIX_KNOWN, /* the child's prefix is known */
};

enum { SMART_AGAIN = 1 }; /* ... of reading a leaf: the pin was renewed, find again; 0: it was READ */


/* find.c */
int smart_begin(smart_op *op, far_task *t, far_index *index, far_bytes key);
int smart_wait(smart_op *op);                                                     /* far_wait, marked for RDWC */
int smart_renew_pin(smart_op *op);                                                /* the search is to begin anew */
void smart_want_up(smart_op *op, far_addr node, unsigned depth, unsigned layout); /* the slot that names this owner */
int smart_find(smart_op *op, bool cached, smart_spot *spot);
int smart_find_leaf(smart_op *op, smart_spot *spot); /* to read or delete: also where there is no memory to help */
bool smart_may_mix_lives(const smart_op *op, uint64_t ctl, far_addr addr, unsigned bytes);
bool smart_leaf_is_certain(const smart_op *op, const smart_leaf *leaf); /* LIVE, and all of it of one life */
int smart_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int smart_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]);

/* node.c */
int smart_broken(const far_index *index, far_addr addr, const char *what);
int smart_check_root(const smart_op *op, unsigned byte, uint64_t word); /* the word in the slot of the byte */
/* Puts a READ of a node: of so many bytes as the word's hint says, or of all of it. */
int smart_put_read_node(smart_op *op, uint64_t word, bool whole, smart_node *node);
int smart_put_read_bytes(smart_op *op, far_addr addr, unsigned bytes, smart_node *node); /* from its beginning on */
bool smart_take_node(const smart_op *op, smart_node *node);          /* after the wait; false: it is none */
int smart_read_more(smart_op *op, smart_node *node, unsigned words); /* READs on until so many slots are there */
/* The same in a batch: *want says what to take after the wait; as much as is there if nothing was put. */
int smart_put_read_more(smart_op *op, smart_node *node, unsigned words, unsigned *want);
int smart_take_more(smart_op *op, smart_node *node, unsigned want);
/* The word in the slot told too little of the node's size: it is raised, without waiting. Returns what it is then. */
uint64_t smart_raise_hint(smart_op *op, far_addr slot, uint64_t word, const smart_node *node);
int smart_read_node(smart_op *op, uint64_t word, bool whole,
                    smart_node *node); /* a proven one; CORRUPT if it is none */
bool smart_has_prefix_of(const smart_op *op, const smart_node *node);
/* The slot of a partial key in a list: found, or the first unbound one (*at == words: neither was READ). */
bool smart_lookup(const smart_node *node, unsigned part, unsigned *at);
unsigned smart_live_children(const smart_node *node);                /* of a node that was READ as a whole */
bool smart_can_merge(const smart_state *st, const smart_node *node); /* its one child can take its place */
void smart_build_node(const smart_op *op, uint64_t *image, smart_layout layout, unsigned depth, bool rec);
smart_layout smart_layout_for(const smart_state *st, unsigned children);
unsigned smart_place(const smart_op *op, uint64_t fp, far_addr near); /* the memory node for a new node */
void smart_flip(smart_op *op, far_addr addr, uint64_t ctl);           /* PENDING -> LIVE, not waited for */
int smart_common_prefix(smart_op *op, unsigned from, smart_link link, const smart_node *child, unsigned *common,
                        unsigned *part, smart_link *stuck);

/* leaf.c */
unsigned smart_kind_for(const smart_state *st, size_t key_length, size_t value_length);
/* Room for a leaf on that memory node (a wish) and its image, in scratch memory. seen_early: a stale pointer may lead
 * others to it before it is linked, so it starts PENDING also in fresh memory. */
int smart_make_leaf(smart_op *op, unsigned kind, far_bytes value, unsigned node, bool seen_early, smart_leaf *leaf);
void smart_free_leaf(smart_op *op, const smart_leaf *leaf);
void smart_retire_leaf(smart_op *op, far_addr addr, unsigned class);
uint64_t smart_leaf_chk(const smart_state *st, const smart_leaf *leaf);
int smart_put_read_leaf(smart_op *op, far_addr addr, unsigned class, smart_leaf *leaf);
/* The same, and waits. flags: as of far_mark. */
int smart_fetch_leaf(smart_op *op, far_addr addr, unsigned class, unsigned flags, smart_leaf *leaf);
bool smart_leaf_is_whole(const smart_op *op, const smart_leaf *leaf); /* no update in place was seen half done */
bool smart_take_leaf(smart_leaf *leaf, unsigned class);               /* after the wait; false: it is none */
/* After the wait too: it is the key's, certifies itself, and lies in memory that had no earlier life. False says
 * nothing. */
bool smart_leaf_is_hit(const smart_op *op, smart_leaf *leaf);
/* A proven one, and the leaves that replaced it, to the last one. VI: with a checksum that holds. */
int smart_read_leaf(smart_op *op, far_addr addr, unsigned class, smart_leaf *leaf, unsigned *chain,
                    smart_old old[SMART_CHAIN_MAX]);
uint64_t smart_leaf_word(const smart_state *st, const smart_leaf *leaf, unsigned part);
/* The leaf that the word names has another key, as its fingerprint says. */
bool smart_is_foreign(const smart_op *op, uint64_t word);
unsigned smart_fingerprint(const smart_state *st, far_bytes key); /* of a whole key, for the words of leaves */

/* insert.c */
int smart_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int smart_insert_at(smart_op *op, const smart_spot *spot, far_bytes value);

/* update.c */
int smart_update_at(smart_op *op, smart_spot *spot, far_bytes *value, bool *sealed);
int smart_fix_slot(smart_op *op, const smart_spot *spot); /* cuts replaced and dead leaves out of a proven slot */


/* remove.c */
int smart_remove(far_task *t, far_index *index, far_bytes key);
void smart_tidy_later(smart_op *op,
                      bool merge); /* a task of its own looks after the slot of the key, and the nodes above */
int smart_merge_some(far_task *t, far_index *index); /* the idle hook */
smart_merges *smart_merges_new(void);
void smart_merges_count_in(smart_merges *merges, smart_cache *cache); /* its entries take from the cache's budget */
void smart_merges_free(smart_merges *merges);

/* replace.c: freezes the node that up_word in the slot `up` names, and puts in its place what is left of it. DONE:
 * the slot was moved. layout: of the node, or SMART_LAYOUTS. seen (or NULL): the node as it was READ;
 * if that was not all of it, it is READ again. grow (or NULL): the value of the operation's key, for which the copy
 * gets a leaf; GREW: it did. */
int smart_replace(smart_op *op, far_addr up, uint64_t up_word, unsigned layout, const smart_node *seen,
                  const far_bytes *grow);

/* lock.c: the update in place of VI leaves. */
int smart_update_locked(smart_op *op, const smart_spot *spot, far_bytes value);
int smart_redo_dead(smart_op *op, far_addr lock_at,
                    uint64_t lock); /* finishes what a dead client began. 1: did; 0: it lives */
int smart_walk_lock(smart_op *op, far_addr lock_at, uint64_t lock, far_walk *walk); /* the same; tells of its record */
int smart_lock_holder(smart_op *op, uint64_t lock, uint64_t *owner); /* as the lock says; 0: it names nobody */
smart_records *smart_records_new(const far_index *index);
void smart_records_free(smart_records *records);

/* baseline.c */
far_addr smart_node_lock(const smart_op *op, const smart_spot *spot);
int smart_lock_node(smart_op *op, far_addr lock);
int smart_unlock_node(smart_op *op, far_addr lock);
int smart_free_dead_node_locks(far_task *t, far_index *index);

/* scan.c */
int smart_scan(far_task *t, far_index *index, far_scan_chunk *scan);

/* check.c */
int smart_walk(far_task *t, far_index *index, far_walk *walk);
int smart_check(far_task *t, far_index *index, far_report *report);
int smart_usage(far_task *t, far_index *index, far_usage *usage);

/* cache.c. In a cached word the bit F says: what it names lies in recycled memory, its ctl word is to be READ first. */
#define SMART_CACHED_REC SMART_F

typedef struct smart_hint { /* what the cache knows of a key */
    far_addr node;
    unsigned depth;
    uint64_t word;  /* of the node for the key; 0: not known */
    unsigned words; /* that the cache knows of the node */
    unsigned layout;
    bool recycled; /* the node lies in recycled memory */
} smart_hint;

int smart_cache_new(far_index *index, bool fifo, smart_cache **cache); /* *cache NULL: there is no budget */
void smart_cache_free(smart_cache *cache);
size_t smart_cache_bytes(far_index *index);
/* Bytes of the cache's budget for something else of the index. No cache: there is no budget to keep. */
bool smart_cache_lend(smart_cache *cache, size_t bytes);
void smart_cache_give_back(smart_cache *cache, size_t bytes);
bool smart_cache_probe(smart_cache *cache, far_bytes key, unsigned below,
                       smart_hint *hint); /* the deepest node with a depth < below */
/* The key will be probed soon: fetches what is likely to be far from the processor, the node below the topmost one. */
void smart_cache_prefetch(smart_cache *cache, far_bytes key);
void smart_cache_node(smart_cache *cache, far_bytes key, const smart_node *node); /* its prefix is one of the key */
void smart_cache_word(smart_cache *cache, far_bytes key, far_addr node, unsigned depth, unsigned layout, uint64_t word);
void smart_cache_recycled(smart_cache *cache, far_bytes key, far_addr node, unsigned depth);
/* The hint in the word that names the node, as it was seen last, or as it is likely to be. */
unsigned smart_cache_hint(smart_cache *cache, far_bytes key, far_addr node, unsigned depth);
void smart_cache_drop(smart_cache *cache, far_bytes key, far_addr node, unsigned depth);

#endif
