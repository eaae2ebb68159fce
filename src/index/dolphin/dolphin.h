/* Dolphin: what its files share. */
#ifndef FAR_INDEX_DOLPHIN_DOLPHIN_H
#define FAR_INDEX_DOLPHIN_DOLPHIN_H

#include "index/dolphin/layout.h"
#include "index/rdwc.h"

#include <stdatomic.h>

enum {
    DOLPHIN_OPTION_SLOTS = FAR_OPTIONS_COMMON,
    DOLPHIN_OPTION_COVERAGE,
    DOLPHIN_OPTION_SYNC,
    DOLPHIN_OPTION_INSERT,
    DOLPHIN_OPTION_VALUES,
    DOLPHIN_OPTION_SPLIT_ARRAYS,
    DOLPHIN_OPTION_CACHE,
    DOLPHIN_OPTION_HINTS,
    DOLPHIN_OPTION_SCAN_BATCH,
    DOLPHIN_OPTION_WALK_SLICE,
    DOLPHIN_OPTION_PATIENCE,
    DOLPHIN_OPTION_HOT_UPDATES,
    DOLPHIN_OPTION_CALM_AFTER,
};

enum { DOLPHIN_ADAPTIVE, DOLPHIN_LASTBYTE };
enum { DOLPHIN_SPEAR, DOLPHIN_EXCLUSIVE };
enum { DOLPHIN_BY_CAS, DOLPHIN_BY_TICKET };
enum { DOLPHIN_IN_LEAF, DOLPHIN_INDIRECT };

#define DOLPHIN_GATES 256u

typedef struct dolphin_cache dolphin_cache;
typedef struct dolphin_hints dolphin_hints;

typedef struct dolphin_state { /* of an open index */
    uint64_t root;             /* the entry word of the root node */
    unsigned slots;            /* of a leaf */
    unsigned leaf_bytes;
    bool words; /* all values have 8 bytes: they lie in the leaf */
    bool lastbyte, exclusive, split_arrays, tickets, indirect;
    bool hot;    /* hot_updates: value words are frozen with their leaf */
    bool masked; /* the fabric has masked CAS */
    unsigned scan_batch, walk_slice, patience, calm_after;
    uint64_t poison, seed;
    dolphin_cache *cache;                  /* NULL: none */
    dolphin_hints *hints;                  /* NULL: none; only with a cache */
    _Atomic uint64_t gates[DOLPHIN_GATES]; /* leaves that a task of this handle is replacing */
} dolphin_state;

#define DOLPHIN_NO_TICKET UINT64_MAX

typedef struct dolphin_op { /* what an operation works with */
    far_task *t;
    far_index *index;
    dolphin_state *st;
    far_bytes key;
    uint32_t mark;        /* of the last batch that was waited for */
    uint32_t entered;     /* mark of the batch that led into the leaf */
    unsigned attempt;     /* of the operation as a whole */
    unsigned odd;         /* how often what was READ did not fit together */
    bool looked;          /* more than once */
    bool tours;           /* goes on to other keys: READs the root as a whole */
    bool fresh;           /* the next look READs the node, whatever the cache says */
    uint64_t trip;        /* ns that the round trip took which led into the leaf: how long others take for theirs */
    uint64_t full;        /* names a leaf without an empty slot; 0 */
    uint64_t ticket;      /* insert=ticket: the slot of the leaf that was given to us; DOLPHIN_NO_TICKET */
    uint64_t last_ticket; /* the slot that was given to us last, also when it was given back */
    uint64_t drawn;       /* what the FAA that drew it added */
    uint64_t below;       /* the spear word that it found: the sum of the keys below */
    bool lost;            /* the session is: what it posted may still take effect, so nothing is free again */
} dolphin_op;

typedef struct dolphin_node { /* as it was READ */
    uint64_t word;            /* the entry that names it */
    uint64_t *image;          /* all of it */
    unsigned depth, class, capacity;
    uint64_t *entries; /* in the image */
    bool proven;       /* the node was linked at a moment of this operation, as READ */
} dolphin_node;

typedef enum { DOLPHIN_AT_LEAF, DOLPHIN_AT_NULL, DOLPHIN_AT_PATH } dolphin_outcome;

typedef struct dolphin_spot { /* where the search for a key ended */
    dolphin_outcome outcome;
    uint64_t parent; /* names the node */
    unsigned depth;  /* of it */
    bool fresh;      /* the node was READ in this operation, and proven: it is `node` */
    dolphin_node node;
    unsigned position;  /* of the key in it */
    uint64_t entry;     /* of the node for that position */
    dolphin_node child; /* AT_PATH: the node there, which has another prefix */
    uint64_t above;     /* AT_*, fresh: names the node above, if that is known; 0 */
} dolphin_spot;

typedef struct dolphin_leaf { /* as it was READ; header and key words, and perhaps the values */
    uint64_t entry;           /* that led to it */
    far_addr addr;
    uint64_t *image;
    bool whole; /* with the values */
} dolphin_leaf;

typedef struct dolphin_item { /* a pair on its way into a new leaf */
    far_bytes key;            /* all of it */
    uint64_t kword;           /* as it was: a block that is kept goes on */
    uint64_t vword;
} dolphin_item;


static inline dolphin_state *dolphin_state_of(const far_index *index) {
    return index->state;
}


static inline const uint64_t *dolphin_kwords(const dolphin_leaf *leaf) {
    return leaf->image + DOLPHIN_LEAF_HEADER / 8;
}


static inline const uint64_t *dolphin_vwords(const dolphin_op *op, const dolphin_leaf *leaf) {
    return leaf->image + DOLPHIN_LEAF_HEADER / 8 + op->st->slots;
}


/* Of a slot; without FROZEN. */
static inline uint64_t dolphin_vword(const dolphin_op *op, const dolphin_leaf *leaf, unsigned slot) {
    uint64_t word = dolphin_vwords(op, leaf)[slot];
    return op->st->words ? word : dolphin_value_thawed(word);
}


static inline uint64_t dolphin_spear(const dolphin_leaf *leaf) {
    return leaf->image[0];
}


static inline uint64_t dolphin_ident(const dolphin_leaf *leaf) {
    return leaf->image[1];
}


/* Leaves below the root are one byte deeper than it, and for all positions there; others are as deep as their node. */
static inline unsigned dolphin_leaf_depth(unsigned node_depth) {
    return node_depth ? node_depth : 1;
}


static inline far_addr dolphin_entry_place(const dolphin_node *node, unsigned at) {
    return dolphin_entry_addr(node->word) + 8ull * (uint64_t)(node->entries + at - node->image);
}


/* keys.c */
uint64_t dolphin_prefix_word(const dolphin_state *st, const void *bytes, unsigned depth);
uint64_t dolphin_key_hash(const dolphin_state *st, far_bytes key);
unsigned dolphin_fingerprint(const dolphin_state *st, far_bytes key);
uint64_t dolphin_kword_of(const dolphin_state *st, far_bytes key, unsigned depth);
bool dolphin_kword_may_be(const dolphin_state *st, uint64_t kword, far_bytes key, unsigned depth);
/* Candidates for the key among the slots in these states, the highest first; how many. */
unsigned dolphin_candidates(const dolphin_op *op, const dolphin_leaf *leaf, unsigned states, unsigned found[]);
#define DOLPHIN_STATE_BIT(state) (1u << (state))
int dolphin_broken(const far_index *index, far_addr addr, const char *what);
/* Puts the READ of a key block; the block is checked, and the key in it given, after the wait. */
int dolphin_put_read_key(dolphin_op *op, uint64_t kword, uint8_t **block);
int dolphin_take_key(const dolphin_op *op, uint64_t kword, const uint8_t *block, far_bytes *key);
/* The first key that is not below the prefix of so many bytes; false: there is none. */
bool dolphin_after_prefix(const uint8_t *prefix, unsigned depth, uint8_t *key, size_t *length);

/* value.c */
int dolphin_make_value(dolphin_op *op, far_bytes value, unsigned node, uint64_t *vword, uint8_t **block);
void dolphin_drop_value(dolphin_op *op, uint64_t vword);   /* never seen by others */
void dolphin_retire_value(dolphin_op *op, uint64_t vword); /* nothing if it is no block */
int dolphin_put_read_value(dolphin_op *op, uint64_t vword, uint8_t **block);
int dolphin_take_value(const dolphin_op *op, far_bytes key, uint64_t vword, const uint8_t *block, far_bytes *value);
int dolphin_make_key(dolphin_op *op, unsigned node, uint64_t *kword, uint8_t **block); /* a block for op->key */
void dolphin_drop_key(dolphin_op *op, uint64_t kword);
void dolphin_retire_key(dolphin_op *op, uint64_t kword);

/* node.c */
int dolphin_put_read_node(dolphin_op *op, uint64_t word, dolphin_node *node);
/* After the wait. 1: it is that node, in that life, and proven; 0: not any more; FAR_ERR_CORRUPT: it is damaged.
 * linked: its word was READ in this operation from a proven node. */
int dolphin_take_node(const dolphin_op *op, dolphin_node *node, bool linked);
bool dolphin_has_prefix_of(const dolphin_node *node, far_bytes key);
const uint8_t *dolphin_node_prefix(const dolphin_node *node);
/* The entry with the greatest lb that is not beyond the position; -1: none. */
int dolphin_lookup(const dolphin_node *node, unsigned position);
unsigned dolphin_next_lb(const dolphin_node *node, unsigned lb); /* DOLPHIN_POSITIONS: none is greater */
unsigned dolphin_free_entries(const dolphin_node *node);
int dolphin_new_image(dolphin_op *op, const uint8_t *prefix, unsigned depth, unsigned class, dolphin_node *node);
unsigned dolphin_place(const dolphin_op *op, const uint8_t *prefix, unsigned depth);

/* find.c */
void dolphin_begin(dolphin_op *op, far_task *t, far_index *index, far_bytes key);
int dolphin_wait(dolphin_op *op); /* far_wait, marked for RDWC */
int dolphin_cas(dolphin_op *op, far_addr addr, uint64_t expected, uint64_t desired, uint64_t *old); /* and a wait */
int dolphin_again(dolphin_op *op); /* something was in the way: a while later; now and then with a new pin */
/* What was READ does not fit together, as when others changed it meanwhile: look again. So often that it must be
 * damaged: FAR_ERR_CORRUPT. */
int dolphin_odd(dolphin_op *op, far_addr addr, const char *what);
int dolphin_renew_pin(dolphin_op *op);
int dolphin_locate(dolphin_op *op, bool fresh, dolphin_spot *spot);
void dolphin_keep_node(dolphin_op *op, const dolphin_node *node); /* in the cache, unless it is on its way out */
int dolphin_read_leaf(dolphin_op *op, uint64_t entry, dolphin_leaf *leaf);
bool dolphin_leaf_covers(const dolphin_op *op, const dolphin_leaf *leaf, uint64_t ident);
bool dolphin_is_held_by(const dolphin_op *op, unsigned depth, uint64_t kword);
/* The value of the key in a leaf that was READ as a whole. 0, FAR_ERR_NOT_FOUND or an error. */
int dolphin_answer(dolphin_op *op, const dolphin_leaf *leaf, far_out *out);
int dolphin_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int dolphin_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                     int results[]);

/* write.c, remove.c */
int dolphin_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int dolphin_remove(far_task *t, far_index *index, far_bytes key);
enum { DOLPHIN_STALE = 1, DOLPHIN_IS_FROZEN, DOLPHIN_FULL, DOLPHIN_LOST }; /* why a leaf was left without a result */
/* draw: a ticket, as dolphin_draw says; or 0. 0: inside; or STALE, IS_FROZEN. */
int dolphin_enter(dolphin_op *op, uint64_t entry, bool whole, uint64_t draw, dolphin_leaf *leaf);
void dolphin_put_leave(dolphin_op *op, const dolphin_leaf *leaf);
void dolphin_leave(dolphin_op *op, const dolphin_leaf *leaf);                                  /* not waited for */
int dolphin_is_same_key(dolphin_op *op, const dolphin_leaf *leaf, uint64_t kword, bool *same); /* as op->key */
/* hot.c: hot_updates=on. `old`: what the value word of the key in that slot was lately. 0: done; 1: to be done as usual.
 */
int dolphin_update_hot(dolphin_op *op, const dolphin_spot *spot, unsigned slot, uint64_t old, far_bytes value);
/* Of a leaf that is frozen and has no writer inside: from now on its value words do not change. */
int dolphin_freeze_values(dolphin_op *op, const dolphin_leaf *leaf);
void dolphin_put_thaw(dolphin_op *op, const dolphin_leaf *leaf); /* of its values, as they were READ, and of the leaf */
/* Puts the WRITE of a block; where it lies on another memory node than the leaf it is waited for. */
int dolphin_write_block(dolphin_op *op, far_addr at, const uint8_t *block, uint64_t bytes, far_addr leaf);
/* ticket.c: with op->ticket, if there is one. 0: done, and left; LOST: left; FULL, FAR_ERR_EXISTS, errors: still
 * inside. */
int dolphin_take_ticket(dolphin_op *op, dolphin_leaf *leaf);
uint64_t dolphin_draw(const dolphin_op *op, unsigned depth); /* added to the spear word of a leaf of this depth */
void dolphin_keep_ticket(dolphin_op *op, uint64_t draw, uint64_t seen); /* that was drawn */
int dolphin_insert_by_ticket(dolphin_op *op, const dolphin_leaf *leaf, far_bytes value);
/* The slot of the key among those in these states: *slot -1 if none. Reads key blocks if it must. */
int dolphin_find_slot(dolphin_op *op, const dolphin_leaf *leaf, unsigned states, int *slot);

/* build.c: new leaves from sorted items. */
unsigned dolphin_cut(const dolphin_item *items, unsigned count, unsigned depth, int fresh);
void dolphin_fill_leaf(const dolphin_op *op, uint64_t *image, const dolphin_item *items, unsigned count,
                       const uint8_t *prefix, unsigned depth, unsigned lo, unsigned hi);
void dolphin_sort_items(dolphin_item *items, unsigned count);

/* lock.c */
enum { DOLPHIN_LOCKED = 0, DOLPHIN_BUSY = 1, DOLPHIN_GONE = 2 };
far_addr dolphin_lock_place(const dolphin_op *op, uint64_t word);
uint64_t dolphin_locked_by_me(const dolphin_op *op, uint64_t word);
/* LOCKED: node is READ since; BUSY: it is READ, and may be torn. */
int dolphin_lock(dolphin_op *op, uint64_t word, dolphin_node *node);
void dolphin_put_unlock(dolphin_op *op, uint64_t word);
int dolphin_unlock(dolphin_op *op, uint64_t word);
bool dolphin_gate_enter(dolphin_op *op, uint64_t entry); /* false: another task of this handle is inside */
void dolphin_gate_leave(dolphin_op *op, uint64_t entry);
int dolphin_gate_wait(dolphin_op *op, uint64_t entry); /* until it is open; with a new pin */
/* For a write that was not done at the spot, and why: STALE, IS_FROZEN (it is waited for), LOST. The spot is set anew;
 * scratch memory that was taken since `here` is given back before. */
int dolphin_look_again(dolphin_op *op, int why, far_scratch_mark here, dolphin_spot *spot);

/* change.c: changes of the structure. 1: done, with the key in it; 0: look again; or an error. */
int dolphin_fill(dolphin_op *op, const dolphin_spot *spot, far_bytes value);
int dolphin_part_path(dolphin_op *op, const dolphin_spot *spot, far_bytes value);
/* replace.c: a leaf by one, two or none; with the key, if there is a value. */
int dolphin_replace(dolphin_op *op, const dolphin_spot *spot, far_op_kind how, const far_bytes *value);
/* Of a frozen leaf below a locked node, for what the entries still name it: the rest is elsewhere already, and goes
 * from it. */
int dolphin_narrow(dolphin_op *op, const dolphin_node *node, unsigned at);

/* grow.c: the node of the spot by a copy with more room, or by nothing if nothing is in it. 0: look again. */
int dolphin_copy_node(dolphin_op *op, const dolphin_spot *spot);
/* merge.c: after a delete of op->key, small leaves side by side become one, and empty nodes go. 1: something was done,
 * or was to be; 0: all is well, or others are at it. */
int dolphin_merge(dolphin_op *op);

/* recover.c */
#define DOLPHIN_HELP_EVERY 4u /* attempts in vain */
static inline bool dolphin_is_time_to_help(const dolphin_op *op) {
    return op->attempt % DOLPHIN_HELP_EVERY == DOLPHIN_HELP_EVERY - 1;
}
int dolphin_help(dolphin_op *op); /* on the way to the key: what dead clients left is put right; 0 or an error */
int dolphin_take_over(dolphin_op *op, uint64_t word, uint64_t lock); /* 1: the holder was dead, and all is well */

/* scan.c */
int dolphin_accept_leaf(const dolphin_op *op,
                        const dolphin_leaf *leaf); /* 0: it speaks for op->key; STALE, IS_FROZEN */
int dolphin_put_read_leaf(dolphin_op *op, uint64_t entry, dolphin_leaf *leaf);
int dolphin_scan(far_task *t, far_index *index, far_scan_chunk *scan);

/* tour.c: the LIVE pairs of a leaf, sorted; and the key that comes after an entry. */
typedef struct dolphin_pair {
    far_bytes key;
    uint64_t kword, vword;
    unsigned slot;
} dolphin_pair;
/* hi: of the entry that names the leaf. */
int dolphin_read_pairs(dolphin_op *op, const dolphin_leaf *leaf, const uint8_t *prefix, unsigned hi,
                       dolphin_pair *pairs, unsigned *count);
/* Of a leaf as it was READ: a bit per slot whose key block is not to be looked at. */
uint64_t dolphin_parted(const dolphin_leaf *leaf, unsigned hi);
/* The first key beyond position `hi` below the prefix; false: there is none. */
bool dolphin_beyond(const uint8_t *prefix, unsigned depth, unsigned hi, uint8_t *key, size_t *length);

/* suspects.c: what check looks at again when it has no pin */
#define DOLPHIN_SUSPECTS_MAX 16u /* of a slice; found in all, then it is enough */
typedef struct dolphin_suspected {
    uint64_t owner; /* whom a lock names; 0: it is frozen */
    uint64_t above; /* the word of the node above; 0: it is the root */
    uint64_t entry; /* of that node ... */
    far_addr place; /* ... which stands there */
    bool at_root;   /* the node above is the root */
    far_addr addr;
    const void *seen; /* in scratch memory */
    uint64_t bytes;
} dolphin_suspected;
typedef struct dolphin_suspects {
    unsigned count, found;
    dolphin_suspected list[DOLPHIN_SUSPECTS_MAX];
} dolphin_suspects;
void dolphin_suspect(dolphin_suspects *all, dolphin_suspected one);
int dolphin_suspects_check(far_task *t, dolphin_suspects *all, far_report *report);

/* check.c */
int dolphin_walk(far_task *t, far_index *index, far_walk *walk);
int dolphin_check(far_task *t, far_index *index, far_report *report);
int dolphin_usage(far_task *t, far_index *index, far_usage *usage);

/* cache.c */
#define DOLPHIN_HINT_MORE 8u
typedef struct dolphin_hint { /* what the cache knows of a key */
    uint64_t node;            /* names the deepest node */
    unsigned depth;
    uint64_t entry;                   /* of it, for the key */
    uint64_t next[DOLPHIN_HINT_MORE]; /* and those that follow it, in order */
    unsigned more;
} dolphin_hint;
int dolphin_cache_new(far_index *index, dolphin_cache **cache); /* *cache NULL: there is no budget */
void dolphin_cache_free(dolphin_cache *cache);
size_t dolphin_cache_bytes(far_index *index);
struct far_budget_cache *dolphin_cache_budget(const dolphin_cache *cache);
bool dolphin_cache_probe(dolphin_cache *cache, far_bytes key, uint64_t epoch, dolphin_hint *hint);
void dolphin_cache_node(dolphin_cache *cache, far_bytes key, uint64_t epoch, const dolphin_node *node);
void dolphin_cache_drop(dolphin_cache *cache, far_bytes key, uint64_t word);

/* hints.c */
int dolphin_hints_new(far_index *index, dolphin_hints **hints); /* *hints NULL: there is no budget */
void dolphin_hints_free(dolphin_hints *hints);
int dolphin_hint_slot(const dolphin_op *op, uint64_t entry); /* of op->key in that leaf; -1: not known */
bool dolphin_hint_is_calm(const dolphin_op *op, uint64_t entry);
void dolphin_hint_set_calm(const dolphin_op *op, uint64_t entry, unsigned slot);
void dolphin_hint_set(const dolphin_op *op, uint64_t entry, unsigned slot);
/* hot_updates=on: the value word of that slot, as it was seen so lately that whatever it names was not used anew since;
 * 0: not known. */
uint64_t dolphin_hint_word(const dolphin_op *op, uint64_t entry, unsigned slot);
void dolphin_hint_set_word(const dolphin_op *op, uint64_t entry, unsigned slot, uint64_t vword);

/* exclusive.c: sync=exclusive, a lock per leaf around every write, as other indexes have it */
int dolphin_lock_leaf(dolphin_op *op, uint64_t entry); /* 0: locked; or DOLPHIN_LOST: look again */
void dolphin_put_unlock_leaf(dolphin_op *op, uint64_t entry);

#endif
