/* DART: what its files share. layout.h has the bits, README.md the protocol. */
#ifndef FAR_INDEX_DART_DART_H
#define FAR_INDEX_DART_DART_H

#include "index/dart/layout.h"
#include "index/dart/share.h"

enum {
    DART_OPTION_BUCKET = FAR_OPTIONS_COMMON,
    DART_OPTION_HASHED_NODES,
    DART_OPTION_LOCK_FREE,
    DART_OPTION_HEADER_INLINE,
    DART_OPTION_MASKED_FREEZE,
    DART_OPTION_RIDER,
    DART_OPTION_SPEC_WRITE,
    DART_OPTION_ABSORB,
    DART_OPTION_SHRINK,
    DART_OPTION_COLOCATE,
    DART_OPTION_LEAF_MIN,
    DART_OPTION_MAX_SKIP,
    DART_OPTION_EST, /* this and the rest: the skip table's */
    DART_OPTION_EST_UPDATE,
    DART_OPTION_ADJUST,
    DART_OPTION_EXPRESS_CACHE,
    DART_OPTION_PROBE_WIDTH,
    DART_OPTION_DIRECTORY_BITS,
    DART_OPTION_ONE_FINGERPRINT, /* tests: every fingerprint is the same */
    DART_OPTION_ADJUST_EVERY,
    DART_OPTION_WALK_SLICE,
    DART_OPTION_UPKEEP_BATCH,
    DART_OPTION_SLOT_CACHE,
    DART_OPTION_SCAN_CACHE,
    DART_OPTION_SEGMENT_LOG,
};

#define DART_WISHES_MAX 64 /* nodes that may wait to be registered in the skip table */

struct dart_est; /* the skip table's local state: est.h */

typedef struct dart_index { /* of an open index */
    far_addr root, locks;
    unsigned bucket;
    size_t max_key;
    bool hashed_nodes, lock_free, header_inline, masked_freeze, rider, spec_write, absorb, shrink, colocate;
    unsigned leaf_min, max_skip;
    unsigned walk_slice;  /* leaves that a walk, a check or a count looks at under one pin */
    dart_super super;     /* as it was at open; its words of the skip table change */
    struct dart_est *est; /* NULL: every descent starts at the root */
} dart_index;


/* The session is lost: nobody knows which of its verbs took effect. */
static inline bool dart_is_lost(int err) {
    return err == FAR_ERR_UNREACHABLE || err == FAR_ERR_FENCED;
}


typedef struct dart_node { /* a reference to an inner node */
    far_addr addr;
    dart_node_type type;
    unsigned depth;
} dart_node;

/* Where a descent may start: a candidate of the skip table, to be verified by its header. */
typedef struct dart_start {
    dart_node node;
    unsigned length; /* of the prefix under which it is registered */
    unsigned slot;   /* of its bucket pair, and 1; 0: not known */
    far_addr entry;  /* address of the EST slot; 0: from the express cache */
    uint64_t word;   /* of that slot */
    bool current;    /* the entry of the express cache is young: it need not be renewed */
    bool on_path;    /* known to be on the key's path: no header is needed */
} dart_start;

#define DART_STARTS_MAX 8u

/* One question to the skip table, in two halves so that many can share a batch. */
typedef struct dart_probe {
    unsigned count;      /* out: candidates, the longest prefix first */
    bool asked;          /* a first question was asked */
    unsigned below;      /* only lengths below this; set by the first question and after each answer */
    void *private;       /* of est_*.c, in scratch memory */
    dart_shared *shared; /* multi-get: READs are put through it; or NULL */
    far_addr dead;       /* a node that was seen frozen: what is kept of it is not used; or 0 */
    dart_start starts[DART_STARTS_MAX];
} dart_probe;

typedef struct dart_step { /* a node on the path, and the slot that was followed, or at which it ended */
    dart_node node;
    far_addr slot;  /* 0: there is none (bucket full) */
    uint64_t word;  /* as read */
    uint32_t claim; /* RDWC: of the batch at or after whose posting the word stood in a linked node */
} dart_step;

typedef struct dart_path {
    unsigned count, size;
    dart_step *steps;
} dart_path;

/* What the slot cache (slots.c) keeps of a key. */
typedef struct dart_kept {
    dart_node node;
    far_addr slot;
    uint64_t word;       /* that stood there, of a leaf */
    bool exact;          /* kept for these very bytes, not only for their hash: the node is on the key's path */
    bool young;          /* the leaf was not reused, whether it is linked or not */
    bool leaf_with_slot; /* the leaf may be read in the same batch: it is young, or read after the slot */
    bool current;        /* to keep it again would change nothing */
} dart_kept;

/* What was read of a node. */
typedef struct dart_view {
    dart_node node;
    unsigned first, count;     /* which slots */
    uint64_t *slots;           /* their words */
    const dart_header *header; /* NULL: not read */
    bool whole;                /* all slots */
} dart_view;

typedef enum {
    DART_FOUND,  /* leaf; its slot is that of the last step */
    DART_ABSENT, /* no slot with its symbol in the last node of the path: slot of the last step is EMPTY, TOMB, or 0 */
    DART_DIVERGED, /* at depth `split` inside the child of the slot of step `at` */
} dart_outcome;

typedef enum {
    DART_SEEK_VALUE,
    DART_SEEK_UPDATE,
    DART_SEEK_DELETE,
    DART_SEEK_PLACE
} dart_seek; /* PLACE: insert and put */

typedef enum {
    DART_STAGE_SLOT,       /* read the slot that was kept, and its leaf */
    DART_STAGE_PROBE,      /* ask the skip table */
    DART_STAGE_ANSWER,     /* its answer is under way */
    DART_STAGE_CANDIDATES, /* read the nodes it named */
    DART_STAGE_BUCKET,     /* read the bucket of the key's symbol in the current node */
    DART_STAGE_HEADER,     /* read a header: evidence is wanted */
    DART_STAGE_LEAF,
    DART_STAGE_LEAF_REST,
    DART_STAGE_DONE
} dart_stage;

/* LOCATE (find.c): the descent to a key, as a machine, so that many can share their batches: put adds the READs of the
 * next step to the batch; take looks at what came. The current node is always *fresh*: read in this operation from a
 * slot of a live or fresh node, or proven live itself. Frozen words of a fresh node are good to read. */
typedef struct dart_find {
    far_bytes key;
    dart_seek seek;
    dart_stage stage;
    dart_path path;
    dart_node node; /* current */
    unsigned known; /* how many bytes of the key are proven to be the prefix of the path */
    unsigned start_depth;
    dart_view view;  /* of the current node */
    dart_node asked; /* stage HEADER: whose */
    dart_header *evidence;
    bool to_root; /* the skip table was no help */
    int used;     /* the candidate from which it went on; -1: the root */
    bool stale[DART_STARTS_MAX];
    uint64_t *leaf; /* image of the leaf read last */
    uint64_t leaf_word;
    dart_outcome outcome;
    dart_kept kept;       /* stage SLOT */
    uint64_t slot_word;   /* its slot, as it is now */
    unsigned at, split;   /* DART_DIVERGED */
    far_bytes other;      /* DART_DIVERGED: the evidence, a key or prefix below that slot */
    uint32_t mark, claim; /* RDWC: of the last batch; of the one at or after whose posting the result was true */
    dart_probe probe;     /* from its starts on nothing is cleared: so many as it counts are set */
    dart_view candidates[DART_STARTS_MAX];
} dart_find;

/* ---- node.c: pure functions on images ---- */

/* Slots of one bucket (for N256 the one slot) in which a symbol may stand: index of the first, and how many. */
void dart_slot_range(const dart_index *dart, dart_node_type type, unsigned depth, unsigned symbol, unsigned *first,
                     unsigned *count);
far_addr dart_slot_addr(const dart_node *node, unsigned slot);
unsigned dart_slot_index(const dart_node *node, far_addr slot);
uint64_t dart_node_size(const dart_index *dart, const dart_node *node); /* of its object, if it is no spare */
/* Position in the view of the symbol's slot; else of the lowest EMPTY one; -1: the bucket is full of others. */
int dart_view_search(const dart_index *dart, const dart_view *view, unsigned symbol);
bool dart_any_unfrozen(const uint64_t *slots, unsigned count);
/* A node under construction: at most one child per symbol. */
typedef struct dart_children {
    unsigned count;
    uint64_t words[DART_NODE_SLOTS_MAX]; /* any order */
} dart_children;
dart_node_type dart_choose_type(const dart_index *dart, unsigned depth, const dart_children *children, bool purged);
bool dart_fits(const dart_index *dart, dart_node_type type, unsigned depth, const dart_children *children);
/* Image of a node; buffer has room for dart_node_bytes. */
void dart_build(const dart_index *dart, dart_node_type type, far_bytes prefix, bool spare,
                const dart_children *children, void *image);
unsigned dart_lcp(far_bytes a, far_bytes b);
/* The memory node, of so many, for a new tree node with this prefix, whose parent has that depth and the slot for it on
 * `near`. */
unsigned dart_place(const dart_index *dart, unsigned nodes, far_bytes prefix, unsigned parent_depth, unsigned near);
bool dart_header_is(const dart_header *header, const dart_node *node);

/* ---- find.c ---- */
void dart_find_init(dart_find *f, far_bytes key, dart_seek seek);
/* Begins with the slot in which the key's leaf was last seen, if there is one; for a find that has not begun. */
void dart_find_from_slot(far_task *t, const far_index *index, dart_find *f);
/* The word stands in the slot of f->kept, unfrozen, at f->mark: goes on from there. */
int dart_find_at_slot(far_task *t, far_index *index, dart_find *f, uint64_t word);
int dart_find_put(far_task *t, far_index *index, dart_find *f);
int dart_find_take(far_task *t, far_index *index, dart_find *f); /* 1: done; 0: put again */
int dart_find_run(far_task *t, far_index *index, dart_find *f);  /* to its end */
/* Goes on from a newer word of the slot of step `at`. */
int dart_find_resume(far_task *t, far_index *index, dart_find *f, unsigned at, uint64_t word);
int dart_corrupt(const far_index *index, const char *what, far_addr addr);
/* The header of a node with its prefix, in scratch memory; one round trip. FAR_ERR_CORRUPT: it is another. */
int dart_read_header(far_task *t, far_index *index, const dart_node *node, dart_header **header);
/* One slot of it is not frozen (the node is linked at this moment); one round trip. 1, 0, or an error. */
int dart_is_live(far_task *t, far_index *index, const dart_node *node);

/* ---- replace.c ---- */

typedef enum { DART_RIDE_NONE, DART_RIDE_INSERT, DART_RIDE_UPDATE, DART_RIDE_DELETE } dart_ride;

typedef struct dart_rider { /* a change of one slot that goes with the replacement of its node */
    dart_ride what;
    unsigned symbol;
    uint64_t expected; /* UPDATE, DELETE: the word that is changed */
    uint64_t word;     /* INSERT, UPDATE: the new one */
} dart_rider;

typedef struct dart_replace {
    dart_node node;
    far_bytes prefix; /* of the node */
    bool has_parent;
    dart_step parent;        /* the node above and its slot, if known */
    const dart_view *view;   /* what was read of it lately; may be NULL */
    const dart_start *named; /* the entry of the skip table that led to it; may be NULL */
    dart_rider rider;
    unsigned lost; /* slots of it that others took first: so many insert there that it gets room for many more */
    bool begun;    /* slots of it were seen frozen: it must be finished, from the reserve if need be */
    bool carried;  /* out: the rider's change was made */
    bool removed;  /* out: the node had no child, and its slot in the parent is a TOMB now */
    uint32_t mark; /* out: RDWC's, of the batch that did it */
} dart_replace;

#define DART_CROWD 3u /* slots that an insert loses: then the node gets a slot for each byte, though it is not full */

/* REPLACE: freezes the node and puts another, its only child, or a TOMB in its place. When it returns 0 the node is not
 * linked any more. FAR_ERR_NO_MEMORY: no change was made to what the tree holds. */
int dart_replace_node(far_task *t, far_index *index, dart_replace *r);
/* The slot above a node, by a descent along its prefix: 1, 0 (it is not linked any more), or an error. */
int dart_find_parent(far_task *t, far_index *index, const dart_node *node, far_bytes prefix, dart_step *parent);
/* All slots of a node and its header. */
int dart_read_node(far_task *t, far_index *index, const dart_node *node, dart_view *view);
/* Background: after a delete, nodes with few children are rebuilt, merged or removed. */
void dart_shrink_later(far_task *t, far_index *index, const dart_node *node, far_bytes prefix);

int dart_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int dart_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]);
int dart_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int dart_remove(far_task *t, far_index *index, far_bytes key);
int dart_scan(far_task *t, far_index *index, far_scan_chunk *scan);
int dart_walk(far_task *t, far_index *index, far_walk *walk);
int dart_check(far_task *t, far_index *index, far_report *report);
int dart_usage(far_task *t, far_index *index, far_usage *usage);

/* ---- The express skip table: est_*.c, express.c, adjust.c ----
 *
 * All of them are called with a pin. The EST is a hint, except that a committed entry never names a node that was given
 * to far_retire (E1): so the tree calls dart_est_remove before it retires an inner node. */

/* In create: allocates the directory (and what else), fills in super->directory, list, directory_bits. Super is written
 * afterwards. */
int dart_est_create(far_task *t, far_index *index, dart_super *super);
/* In open: sets dart->est when the index has a skip table (super->directory[0] != 0). */
int dart_est_open(far_task *t, far_index *index);
void dart_est_close(far_index *index);

/* LOCATE step 1. The first question (probe zeroed): the chosen lengths below len(key); after an answer that did not
 * help: all shorter ones (below probe->below) at once, after one of the express cache its own length too. ask puts
 * READs into the batch: 1: wait, then take the answer; 0: probe->starts is filled in already (from the express cache;
 * perhaps none); negative: error. Lengths l < len(key) and l + delta <= len(key) only. */
int dart_est_ask(far_task *t, far_index *index, far_bytes key, dart_probe *probe);
int dart_est_answer(far_task *t, far_index *index, far_bytes key,
                    dart_probe *probe); /* 1: ask once more (wait, answer again); 0 */
/* Both together, with the wait. Returns how many starts. */
int dart_est_lookup(far_task *t, far_index *index, far_bytes key, dart_start *starts, unsigned max);
/* All lengths shorter than the key, in one round trip; none if they are fewer than DART_CHAIN_LENGTHS. */
#define DART_CHAIN_LENGTHS 3u
int dart_est_lookup_all(far_task *t, far_index *index, far_bytes key, dart_start *starts, unsigned max);
/* The descent f has ended: f->used is the start of f->probe from which it succeeded (-1: the root), f->path what it
 * met, f->stale[i] says that starts[i] named a dead or wrong node. For tags, counters, the choice of the first length.
 * May spawn repair. */
void dart_est_repair(far_task *t, far_index *index, const dart_find *f);
/* The candidates that f->stale marks: what this handle keeps of dead ones goes, entries of the table in the background.
 */
void dart_est_drop_stale(far_task *t, far_index *index, const dart_find *f);

/* Round trips that an entry of the node at this step of the path would have saved: those of the nodes above it. */
static inline unsigned dart_est_saves(const dart_find *f, unsigned step) {
    return f->used >= 0 ? step : step > 0 ? step - 1 : 0;
}

#define DART_SAVES_MUCH 2u

typedef struct dart_names dart_names; /* buckets in which a node may be named, as they were read */

/* A node was linked: by a split (lengths in (parent_depth, depth]; entries that named the lower node are overwritten)
 * or by REPLACE; the prefix is that of the node, node->depth bytes. This handle keeps it in mind. soon: it gets its
 * entries, in the background; otherwise when a get misses them. names: its buckets, read lately; or NULL. */
void dart_est_register(far_task *t, far_index *index, const dart_node *node, unsigned parent_depth, far_bytes prefix,
                       bool soon, const dart_names *names);
/* A node was unlinked and is about to be retired: no entry names it when this returns 0. */
int dart_est_remove(far_task *t, far_index *index, const dart_node *node, far_bytes prefix);
/* An entry of a node is changed in place: a CAS that goes with the batch in which another takes the node's place in the
 * tree puts the tentative word of that one there. */
typedef struct dart_rename {
    dart_node node; /* the new one */
    far_addr entry;
    unsigned slot;
    uint64_t expected, seen, tentative, committed, hash;
} dart_rename;
/* False: the entry is not known, and nothing was put. */
bool dart_est_rename_put(far_task *t, far_index *index, const dart_start *old, const dart_node *new,
                         unsigned parent_depth, far_bytes prefix, dart_rename *rename);
/* After the batch. True: the new node will have the entry. */
bool dart_est_rename_end(far_task *t, far_index *index, const dart_rename *rename, bool linked);
/* Whether there is anything to remove: READs that go with a batch, after all slots of the node were seen frozen. NULL:
 * it was not asked. none: no entry names the node, and none will; false: perhaps. */
dart_names *dart_est_names_put(far_task *t, far_index *index, const dart_node *node, far_bytes prefix);
bool dart_est_names_none(far_task *t, far_index *index, const dart_node *node, dart_names *names,
                         const dart_rename *rename); /* of it, or NULL */

int dart_est_walk(far_task *t, far_index *index, far_walk *walk);      /* unpinned */
int dart_est_check(far_task *t, far_index *index, far_report *report); /* unpinned */
int dart_est_usage(far_task *t, far_index *index, far_usage *usage);   /* unpinned */
void dart_est_leave(far_task *t, far_index *index);                    /* others may adjust */
int dart_est_epoch_hook(far_task *t, far_index *index, uint64_t epoch);
int dart_est_idle_hook(far_task *t, far_index *index);
size_t dart_est_cache_bytes(far_index *index);


static inline dart_index *dart_of(const far_index *index) {
    return index->state;
}

#endif
