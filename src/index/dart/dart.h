/* DART: the types and functions that its files share. README.md teaches the protocol and its terms; layout.h defines
 * all words and objects in far memory. The kind's callbacks (dart_get, dart_put, ...) are listed in kind.c. */
#ifndef FAR_INDEX_DART_DART_H
#define FAR_INDEX_DART_DART_H

#include "index/dart/layout.h"
#include "index/dart/shared_reads.h"

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
    DART_OPTION_EST, /* this option and those after it configure the skip table and the caches */
    DART_OPTION_EST_UPDATE,
    DART_OPTION_ADJUST,
    DART_OPTION_EXPRESS_CACHE,
    DART_OPTION_PROBE_WIDTH,
    DART_OPTION_DIRECTORY_BITS,
    DART_OPTION_ONE_FINGERPRINT, /* for tests: all skip table entries get the same fingerprint */
    DART_OPTION_ADJUST_EVERY,
    DART_OPTION_WALK_SLICE,
    DART_OPTION_UPKEEP_BATCH,
    DART_OPTION_SLOT_CACHE,
    DART_OPTION_SCAN_CACHE,
    DART_OPTION_SEGMENT_LOG,
    DART_OPTION_ONE_BY_ONE,
};

/* When traversals read each object at the moment when they need it, instead of reading many in one batch. */
typedef enum { DART_ONE_BY_ONE_NEVER, DART_ONE_BY_ONE_IF_MAPPED, DART_ONE_BY_ONE_ALWAYS } dart_one_by_one;

#define DART_REGISTRATIONS_MAX 64 /* maximal number of nodes in the queue for registration in the skip table */

struct dart_est; /* the skip table's local state, defined in skiptable/skiptable.h */

typedef struct dart_index { /* local state of an open index */
    /* Constant after open: addresses in far memory, and the bucket size B in slots. */
    far_addr root, locks;
    unsigned bucket;
    /* Constant after open: the options, as kind.c describes them. */
    size_t max_key;
    bool hashed_nodes, lock_free, header_inline, masked_freeze, rider, spec_write, absorb, shrink, colocate;
    unsigned leaf_min, max_skip;
    dart_one_by_one one_by_one;
    unsigned walk_slice; /* maximal number of leaves that a walk, a check or a count visits under one pin */
    /* The descriptor as it was read at open. Only its fields `list` and `adjuster` change later in far memory. */
    dart_super super;
    struct dart_est *est; /* NULL if the index has no skip table, so that every descent starts at the root */
} dart_index;


/* True if an error means that the session lost its connection or was fenced. Then it is unknown which of its pending
 * verbs took effect, so memory that those verbs may have published must not be freed. */
static inline bool dart_session_is_lost(int err) {
    return err == FAR_ERR_UNREACHABLE || err == FAR_ERR_FENCED;
}


typedef struct dart_node { /* a reference to an inner node in far memory */
    far_addr addr;
    dart_node_type type;
    unsigned depth; /* length of the node's full prefix in bytes */
} dart_node;

/* ---- A start: a node at which a descent may begin instead of at the root ----
 *
 * Starts come from the skip table or from the handle's caches. The reader must verify a start by the node's header,
 * because a skip table entry identifies its prefix only by a one-byte fingerprint. */
typedef struct dart_start {
    dart_node node;
    unsigned length;   /* length of the key prefix under which the node is registered */
    unsigned position; /* 1 + slot number of the entry in its bucket pair of the skip table; 0 if unknown */
    far_addr entry;    /* address of the skip table slot; 0 if the start comes from a local cache */
    uint64_t word;     /* the word of the skip table entry, or of the cached entry */
    bool is_recent;    /* the cached entry was proved recently, so this operation need not renew the entry's tag */
    bool on_path;      /* the node is certainly on the key's path, so that its header need not be read */
} dart_start;

#define DART_STARTS_MAX 8u

/* ---- A lookup in the skip table ----
 *
 * A lookup has up to two rounds: first the prefix lengths that promise the cheapest descent, then, if none of their
 * starts was usable, all shorter lengths. Adding the READs and processing them are two functions, so that the lookups
 * of several descents can share one batch. The caller sets all fields to zero before the first round. */
typedef struct dart_lookup {
    unsigned count;            /* result: number of starts in `starts`, which are sorted by falling prefix length */
    bool started;              /* the first round was begun */
    /* limit of the next round, which looks up only lengths below this number; each round sets it for the round after
     * it */
    unsigned shorter_than;
    void *state;               /* private state of skiptable/lookup.c, in scratch memory */
    dart_shared_reads *shared; /* in a multi-get: the table through which READs are shared; else NULL */
    /* address of a node that this operation has seen frozen, so cached entries of this node are ignored; or 0 */
    far_addr stale_node;
    dart_start starts[DART_STARTS_MAX];
} dart_lookup;

/* ---- A path: the nodes that a descent has visited ---- */

typedef struct dart_step { /* a node on the path, and the slot that was followed there, or at which the descent ended */
    dart_node node;
    far_addr slot; /* address of the slot; 0: the bucket is full and has no slot for the key's symbol */
    uint64_t word; /* the slot's word as it was read */
    /* Number of a batch (far_rdwc_mark in common/rdwc.h). At some moment after this batch was posted, `word` was in a
     * linked node. A descent that ends at this step passes the number to far_rdwc_done, so that RDWC gives the result
     * only to operations that had begun before this batch. */
    uint32_t linearization_mark;
} dart_step;

typedef struct dart_path {
    unsigned count, size;
    dart_step *steps;
} dart_path;

/* A key's entry in the slot cache (cache_slots.c), with the uses that its age permits in the current operation. */
typedef struct dart_cached_slot {
    dart_node node;
    far_addr slot;
    uint64_t word;        /* the leaf pointer that was last read from that slot or written to it */
    bool has_key;         /* the entry holds the complete key and not only its hash, so the node is on the key's path */
    bool leaf_not_reused; /* the leaf's memory was not reused yet, whether the leaf is still linked or not */
    /* The leaf may be read in the same batch as the slot, because leaf_not_reused is true or because the leaf and the
     * slot are on one memory node. */
    bool leaf_with_slot;
    bool is_current; /* the entry has the tag of the current epoch, so storing it again would change nothing */
} dart_cached_slot;

/* A part of a node, as it was read: the node's slots [first, first + count), and perhaps its header. */
typedef struct dart_view {
    dart_node node;
    unsigned first, count;
    uint64_t *slots;           /* the words of these slots */
    const dart_header *header; /* NULL if the header was not read */
    bool whole;                /* true if the view has all slots of the node */
} dart_view;

/* ---- LOCATE: the descent to a key (find.c) ---- */

typedef enum {
    DART_FOUND, /* the key's leaf was read; the last step of the path is its slot */
    /* The last node of the path has no child for the key's symbol. The last step's slot is the symbol's TOMB or the
     * lowest EMPTY slot of the bucket, or 0 if the bucket is full. */
    DART_ABSENT,
    DART_DIVERGED, /* the key leaves the path inside the child of the slot of step `diverged_step` */
} dart_outcome;

typedef enum {
    DART_SEEK_VALUE,
    DART_SEEK_UPDATE,
    DART_SEEK_DELETE,
    DART_SEEK_INSERT /* for insert and put, which need a slot if the key is absent */
} dart_seek;

typedef enum {
    DART_STAGE_CACHED_SLOT,  /* read the slot that the slot cache names, and perhaps its leaf */
    DART_STAGE_LOOKUP,       /* begin the next round of the skip table lookup */
    DART_STAGE_LOOKUP_READS, /* the READs of a lookup round are pending */
    DART_STAGE_CANDIDATES,   /* read the nodes that the lookup returned as starts */
    DART_STAGE_BUCKET,       /* read the bucket of the key's symbol in the current node */
    DART_STAGE_HEADER,       /* read a node's header, because its prefix is needed as evidence */
    DART_STAGE_LEAF,         /* read a leaf, or the first part of a very long one */
    DART_STAGE_LEAF_REST,    /* read the rest of a very long leaf */
    DART_STAGE_DONE
} dart_stage;

/* A descent is a state machine, so that several descents can share their batches. dart_find_add_reads adds the READs of
 * the current stage to the batch, and dart_find_process_reads evaluates them after the batch completed.
 *
 * The current node is always *fresh*: its pointer was read in this operation from a slot of a live or fresh node, or
 * the node was itself proved live by an unfrozen slot. Frozen words of a fresh node are valid for reading, because they
 * were current at some moment inside the operation. */
typedef struct dart_find {
    /* Input. */
    far_bytes key;
    dart_seek seek;
    /* Progress. */
    dart_stage stage;
    dart_path path;
    dart_node node;              /* the current node of the descent */
    unsigned proven_depth;       /* number of bytes of the key that are proved to agree with the prefixes of the path */
    unsigned start_depth;        /* depth of the node at which the descent started; 0 for the root */
    dart_view view;              /* the slots, and perhaps the header, that were read of the current node */
    dart_node header_node;       /* stage HEADER: the node whose header is read */
    dart_header *evidence;       /* stage HEADER: the header of header_node, which proves the path */
    bool from_root;              /* the skip table returned no usable start, so the descent starts at the root */
    int used_start;              /* number of the start at which the descent began; -1: it began at the root */
    bool stale[DART_STARTS_MAX]; /* true for each start whose node is not on the key's path, or is frozen */
    uint64_t *leaf;              /* image of the leaf that was read last */
    uint64_t leaf_word;          /* slot word that names this leaf */
    /* Result. */
    dart_outcome outcome;
    dart_cached_slot cached;     /* stage CACHED_SLOT: the entry of the slot cache */
    uint64_t slot_word;          /* stage CACHED_SLOT: the word that the slot contains now */
    unsigned diverged_step;      /* DIVERGED: number of the step that leads to the child */
    unsigned diverged_depth;     /* DIVERGED: depth of the first byte at which the key differs */
    far_bytes diverged_key;      /* DIVERGED: the evidence, which is a key or a prefix found below that slot */
    uint32_t batch_mark;         /* RDWC mark of the last batch */
    /* RDWC mark of a batch: the result of the descent was true at some moment after this batch was posted */
    uint32_t linearization_mark;
    /* dart_find_init does not clear the arrays `lookup.starts` and `candidates`; their first lookup.count elements are
     * valid. */
    dart_lookup lookup;
    /* for each start of the lookup: the slots and header that were read of its node */
    dart_view candidates[DART_STARTS_MAX];
} dart_find;

/* ---- node.c: pure functions on images of nodes ---- */

/* Sets *first to the number of the first slot in which a symbol may be stored, and *count to the number of such slots:
 * all slots of the symbol's bucket, or the only slot of the symbol in an N256. */
void dart_slot_range(const dart_index *dart, dart_node_type type, unsigned depth, unsigned symbol, unsigned *first,
                     unsigned *count);
far_addr dart_slot_addr(const dart_node *node, unsigned slot);
unsigned dart_slot_index(const dart_node *node, far_addr slot);
/* Returns the size in bytes of the node's object. */
uint64_t dart_node_size(const dart_index *dart, const dart_node *node);
/* Returns the position in the view of the slot with this symbol; if there is none, the lowest EMPTY slot of the
 * symbol's bucket; -1 if other symbols fill the bucket. */
int dart_view_search(const dart_index *dart, const dart_view *view, unsigned symbol);
bool dart_any_unfrozen(const uint64_t *slots, unsigned count);
/* The children of a node under construction, at most one for each symbol. */
typedef struct dart_children {
    unsigned count;
    uint64_t words[DART_NODE_SLOTS_MAX]; /* the words of the node's children, in any order */
} dart_children;
/* Returns the smallest type of node in which the children fit. purged: TOMBs were removed, so leave a quarter free. */
dart_node_type dart_choose_type(const dart_index *dart, unsigned depth, const dart_children *children, bool purged);
/* True if a node of this type and depth has room for the children, that is, no bucket would have more children than
 * slots. */
bool dart_children_fit(const dart_index *dart, dart_node_type type, unsigned depth, const dart_children *children);
/* Builds the image of a node in `image`, which has room for dart_node_bytes. */
void dart_build_node(const dart_index *dart, dart_node_type type, far_bytes prefix, const dart_children *children,
                     void *image);
/* Returns the length of the longest common prefix of two keys. */
unsigned dart_common_prefix(far_bytes a, far_bytes b);
/* Returns the memory node, of `nodes` many, for a new tree node with this prefix. parent_depth: depth of its parent;
 * near: memory node of the parent's slot. */
unsigned dart_choose_memory_node(const dart_index *dart, unsigned nodes, far_bytes prefix, unsigned parent_depth,
                                 unsigned near);
/* True if the depth and type in the header are those of the node. */
bool dart_header_matches(const dart_header *header, const dart_node *node);

/* ---- find.c ---- */

void dart_find_init(dart_find *f, far_bytes key, dart_seek seek);
/* Lets a new descent start at the slot in which the slot cache last saw the key's leaf, if the cache has an entry. */
void dart_find_try_cached_slot(far_task *t, const far_index *index, dart_find *f);
/* Continues the descent at the cached slot, after a verb of the batch f->batch_mark found `word` in this slot. `word`
 * is not frozen. Returns 0 or an error. */
int dart_find_continue_at_slot(far_task *t, far_index *index, dart_find *f, uint64_t word);
/* Adds the READs of the current stage to the batch. Returns 0 or an error. */
int dart_find_add_reads(far_task *t, far_index *index, dart_find *f);
/* Evaluates the completed READs. Returns 1 when the descent is done, 0 if there is another stage, or an error. */
int dart_find_process_reads(far_task *t, far_index *index, dart_find *f);
/* Runs the descent to its end. Returns 0 or an error. */
int dart_find_run(far_task *t, far_index *index, dart_find *f);
/* Continues a completed descent after the slot of step `at` changed: follows `word`, the newer word of this slot.
 * Returns 0 or an error. */
int dart_find_resume(far_task *t, far_index *index, dart_find *f, unsigned at, uint64_t word);
/* Records the error FAR_ERR_CORRUPT, with the kind of object that is damaged and its address, and returns it. */
int dart_fail_corrupt(const far_index *index, const char *what, far_addr addr);

/* ---- REPLACE: every structural change except splits (restructure.c) ---- */

typedef enum {
    DART_PIGGYBACK_NONE,
    DART_PIGGYBACK_INSERT,
    DART_PIGGYBACK_UPDATE,
    DART_PIGGYBACK_DELETE
} dart_piggyback_kind;

/* A piggybacked write: a change of one slot that is made as part of the replacement of its node. The paper has no such
 * write; the option `rider` switches it off. */
typedef struct dart_piggyback {
    dart_piggyback_kind what;
    unsigned symbol;
    uint64_t expected; /* UPDATE, DELETE: the slot word that the change replaces */
    uint64_t word;     /* INSERT, UPDATE: the new slot word */
} dart_piggyback;

typedef struct dart_replace {
    /* Input. */
    dart_node node;
    far_bytes prefix;              /* full prefix of the node */
    bool has_parent;               /* true if `parent` is set */
    dart_step parent;              /* the parent, and the slot of the parent that leads to the node */
    const dart_view *view;         /* a recent view of the node; may be NULL */
    const dart_start *known_entry; /* skip table entry through which the node was reached; may be NULL */
    dart_piggyback piggyback;
    /* number of slots of the node that other inserts won from this operation, as a measure of contention */
    unsigned lost_slots;
    /* this operation saw a frozen slot of the node, so the replacement must be finished, if necessary with reserve
     * memory */
    bool freeze_started;
    /* Result. */
    bool piggyback_done; /* true if the piggybacked write was made */
    bool became_tomb;    /* the node had no child, so its slot in the parent is now a TOMB */
    uint32_t batch_mark; /* RDWC mark of the batch that installed the replacement */
} dart_replace;

/* An insert that lost this many slots of a node to other inserts replaces the node by an N256, although it is not full,
 * because in an N256 inserts of different symbols do not contend. */
#define DART_CONTENDED_SLOTS 3u

/* Replaces a node: freezes it and installs a new node, its only child, or a TOMB in the parent's slot. After return
 * value 0 the node is not linked any more. FAR_ERR_NO_MEMORY: the contents of the tree are unchanged. */
int dart_replace_node(far_task *t, far_index *index, dart_replace *r);
/* Finds the slot that leads to a node, by a descent from the root along the node's prefix. Returns 1, 0 if the node is
 * not linked any more, or an error. */
int dart_find_parent(far_task *t, far_index *index, const dart_node *node, far_bytes prefix, dart_step *parent);
/* Reads the header and all slots of a node; one round trip. */
int dart_read_node(far_task *t, far_index *index, const dart_node *node, dart_view *view);
/* Starts a background task that rebuilds, merges or removes the node if deletes left it with few children. */
void dart_shrink_later(far_task *t, far_index *index, const dart_node *node, far_bytes prefix);

/* ---- Callbacks of the kind: index/index.h describes them ---- */

int dart_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int dart_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]);
int dart_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int dart_remove(far_task *t, far_index *index, far_bytes key);
int dart_scan(far_task *t, far_index *index, far_scan_chunk *scan);
int dart_walk(far_task *t, far_index *index, far_walk *walk);
int dart_check(far_task *t, far_index *index, far_report *report);
int dart_usage(far_task *t, far_index *index, far_usage *usage);
int dart_object_keys(far_task *t, far_index *index, unsigned type, const void *object, uint64_t bytes, far_keys *keys);

/* ---- The express skip table, abbreviated EST (folder skiptable) ----
 *
 * The skip table maps key prefixes to inner nodes. Its content is only a hint, with one exception, invariant E1: a
 * committed entry never names a node that was handed to far_retire. Therefore the tree calls dart_est_remove before it
 * retires an inner node. Unless a comment says otherwise, the caller of these functions holds a pin. */

/* Called by create: allocates the directory and the first list of prefix lengths, and sets the fields `directory`,
 * `list` and `directory_bits` of *super. The caller writes *super to far memory afterwards. Returns 0 or an error. */
int dart_est_create(far_task *t, far_index *index, dart_super *super);
/* Called by open: sets dart->est if the index has a skip table (super->directory[0] != 0). */
int dart_est_open(far_task *t, far_index *index);
void dart_est_close(far_index *index);

/* Begins a round of a lookup, the first step of LOCATE. The first round uses the chosen lengths below key.length; the
 * second round uses all lengths below lookup->shorter_than, in one batch. (If the first round found an entry in the
 * express cache, the second round includes the length of that entry, because the node may have been replaced.) Returns
 * 1 if READs were added to the batch: wait for it, then call dart_est_lookup_process_reads. Returns 0 if lookup->starts
 * is complete without READs (from the caches; perhaps with no start), or an error. Every start has length < key.length
 * and depth <= key.length. */
int dart_est_lookup_add_reads(far_task *t, far_index *index, far_bytes key, dart_lookup *lookup);
/* Processes the READs of a round. Returns 1 if it added further READs, so that the caller must wait and call again; 0
 * if lookup->starts is complete; or an error. */
int dart_est_lookup_process_reads(far_task *t, far_index *index, far_bytes key, dart_lookup *lookup);
/* Runs the first round of a lookup, including the waits. Returns the number of starts, or an error. */
int dart_est_lookup(far_task *t, far_index *index, far_bytes key, dart_start *starts, unsigned max);
/* Looks up all lengths shorter than the key in one round trip. Returns the number of starts, or an error. Returns 0 at
 * once if there are fewer than DART_CHAIN_LENGTHS such lengths. */
#define DART_CHAIN_LENGTHS 3u
int dart_est_lookup_all(far_task *t, far_index *index, far_bytes key, dart_start *starts, unsigned max);
/* Called when descent f has ended. Renews cached entries, records the cost of the descent, so that later lookups choose
 * better lengths, and queues missing entries for registration. Reads f->used_start, f->path and f->stale. */
void dart_est_record_descent(far_task *t, far_index *index, const dart_find *f);
/* Drops the starts that f->stale marks. Frozen nodes are removed from the local caches at once, and their entries are
 * removed from the table in the background. */
void dart_est_drop_stale(far_task *t, far_index *index, const dart_find *f);

/* Returns the number of round trips that the descent would have saved if it had started at the node of this step, by an
 * entry in the skip table: one for each node above it that the descent has read. */
static inline unsigned dart_est_saved_round_trips(const dart_find *f, unsigned step) {
    return f->used_start >= 0 ? step : step > 0 ? step - 1 : 0;
}

/* An entry that saves at least this many round trips is registered when its node is linked. An entry that saves fewer
 * is registered when a get does not find it in the table. */
#define DART_WORTH_REGISTERING 2u

/* Images of all buckets in which an entry of a node may be stored. */
typedef struct dart_entry_buckets dart_entry_buckets;

/* Called after a split or REPLACE linked a node. Stores the node in the express cache, under all lookup lengths in
 * (parent_depth, depth]. prefix: the prefix of the node, node->depth bytes. soon: also queues the node for registration
 * in the table; without `soon` the node is registered when a get does not find its entry. buckets: recent images of the
 * buckets in which the node may have an entry; or NULL. */
void dart_est_register(far_task *t, far_index *index, const dart_node *node, unsigned parent_depth, far_bytes prefix,
                       bool soon, const dart_entry_buckets *buckets);
/* Removes all entries of a node from the skip table. Called after the node was unlinked, before it is retired. Returns
 * 0, after which no entry names the node, or an error. */
int dart_est_remove(far_task *t, far_index *index, const dart_node *node, far_bytes prefix);
/* A redirect changes an entry in place from a node to the node's replacement: a CAS in the same batch that links the
 * replacement stores the replacement's tentative word in the entry. */
typedef struct dart_redirect {
    dart_node node; /* the replacement */
    far_addr entry;
    unsigned slot; /* number of the entry's slot in its bucket pair */
    uint64_t expected, seen, tentative, committed, hash;
} dart_redirect;
/* Adds the CAS of a redirect to the batch, from the entry of node `old` to node `new`. Returns false, without a CAS, if
 * the address of the old node's entry is not known. */
bool dart_est_redirect_add_cas(far_task *t, far_index *index, const dart_start *old, const dart_node *new,
                               unsigned parent_depth, far_bytes prefix, dart_redirect *redirect);
/* Completes a redirect. Called after its batch; linked: the CAS that links the replacement succeeded. Returns true if
 * the commit of the entry was queued. */
bool dart_est_redirect_finish(far_task *t, far_index *index, const dart_redirect *redirect, bool linked);
/* Adds READs of all buckets in which the node may have an entry; all slots of the node must have been seen frozen.
 * Returns the object that receives their images, or NULL if nothing was added. */
dart_entry_buckets *dart_est_entry_buckets_add_reads(far_task *t, far_index *index, const dart_node *node,
                                                     far_bytes prefix);
/* Called after the batch of dart_est_entry_buckets_add_reads. Returns true if no entry names the node; as the node is
 * frozen, none will be added later. Returns false if there may be entries. redirect: a redirect of the node's entry
 * that was in the same batch; or NULL. */
bool dart_est_confirm_no_entry(far_task *t, far_index *index, const dart_node *node, dart_entry_buckets *buckets,
                               const dart_redirect *redirect);

/* The callbacks walk, check and usage for the skip table. The caller of these three functions holds no pin. */
int dart_est_walk(far_task *t, far_index *index, far_walk *walk);
int dart_est_check(far_task *t, far_index *index, far_report *report);
int dart_est_usage(far_task *t, far_index *index, far_usage *usage);
/* Called before the last close: releases the lock for adjusting the list, so that another handle can take it. */
void dart_est_leave(far_task *t, far_index *index);
int dart_est_epoch_hook(far_task *t, far_index *index, uint64_t epoch);
int dart_est_idle_hook(far_task *t, far_index *index);
size_t dart_est_cache_bytes(far_index *index);


static inline dart_index *dart_of(const far_index *index) {
    return index->state;
}

#endif
