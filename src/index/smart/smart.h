/* SMART: the declarations that the files of this folder share. layout.h defines the bytes in far memory; README.md
 * teaches the protocol. These words have one meaning in all files of the folder:
 *
 * - The deciding node of a key is the deepest node with a prefix that is also a prefix of the key, or the root. Its
 *   slot for the key's next byte decides whether the key is present.
 * - An object is proven when its address came from an unfrozen slot word that this operation READ from a proven or
 *   accepted node. The root is proven.
 * - A node at an address from the cache is accepted in two cases: its header, READ in this operation, is LIVE and has
 *   the prefix hash of the key; or the handle saw the node linked so recently that its memory cannot have been reused,
 *   and the slot for the key, READ in this operation, is not frozen (accept_by_slot in find_cached.c).
 * - A leaf at an address from the cache certifies itself when it is LIVE, has the key, and its checksum over address,
 *   incarnation and key is correct. A get may return such a leaf. The result "absent", and every CAS or WRITE, needs a
 *   deciding node that is proven or accepted.
 * - Cached information is stale when it no longer agrees with far memory.
 * - An incarnation is one use of a piece of memory, from allocation to reuse. Memory that had an earlier incarnation is
 *   recycled. An object in recycled memory starts PENDING and becomes LIVE after it is linked.
 * - A leaf that an update replaced points to its successor. The leaf in a slot and its successors form a chain, and
 *   only its last leaf has the current value.
 * - A frozen word never changes again, because its node is being replaced (restructure.c).
 *
 * Functions named `put_..` add verbs to the open batch of the task (task/task.h). Functions named `take_..` interpret
 * what those verbs READ, after smart_wait. */
#ifndef FAR_INDEX_SMART_SMART_H
#define FAR_INDEX_SMART_SMART_H

#include "index/common/rdwc.h"
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
    SMART_OPTION_LOCKFREE_NODES,
    SMART_OPTION_PATH_COMPRESSION,
    SMART_OPTION_WALK_SLICE,
    SMART_OPTION_SCAN_BATCH,
    SMART_OPTION_PATIENCE,
    SMART_OPTION_SINGLE_STEPS,
};

enum { SMART_UPDATE_WORD, SMART_UPDATE_LOCK, SMART_UPDATE_RCU };
enum { SMART_EVICT_CLOCK, SMART_EVICT_FIFO };
enum { SMART_MERGE_DELAYED, SMART_MERGE_EAGER };
enum { SMART_SINGLE_STEPS_AUTO, SMART_SINGLE_STEPS_ON, SMART_SINGLE_STEPS_OFF };

/* Number of slots of a DIR node that are READ together with the wanted one, to find out whether the node is nearly
 * empty */
#define SMART_NEIGHBOURS 8
/* largest value of the option scan_batch, the number of leaves in one batch of READs */
#define SMART_SCAN_BATCH_MAX 128
#define SMART_CHAIN_MAX      16 /* number of leaves at the beginning of a chain that one CAS of the slot can unlink */
/* Limit of lost slots. If other clients have taken the first unbound slot of a list from an insert this often, the
 * insert has the list replaced by a DIR node at once. */
#define SMART_CONTENTION_LIMIT 3

typedef struct smart_cache smart_cache;
typedef struct smart_merge_queue smart_merge_queue;
typedef struct smart_redo_pool smart_redo_pool;

/* Local state of an open index in one handle. kind.c sets all of it when it opens the index. */
typedef struct smart_state {
    /* Options, and properties that follow from them */
    bool paper_layout;     /* every node is a preallocated NODE_256 (layout=paper) */
    bool spread_nodes;     /* nodes are spread over the memory nodes by their prefix hash (place=spread) */
    unsigned update;       /* how values are updated: one of the constants SMART_UPDATE_.. */
    unsigned in_place;     /* longest value, in bytes, that is updated in place */
    unsigned node_types;   /* number of different READ sizes for list nodes */
    bool merge_eagerly;    /* if a node is left with one child, the node is merged at once (merge=eager) */
    bool rear_lock;        /* the WRITE of a leaf's content also releases its lock */
    bool node_locks;       /* inserts lock the deciding node (lockfree_nodes=off, baseline.c) */
    bool path_compression; /* bytes in which no two keys differ have no node (option path_compression) */
    bool never_replaces;   /* no update replaces a leaf, because all values are words, which one WRITE updates */
    /* slot words contain a fingerprint of the key instead of the size class, because all leaves have one size */
    bool has_fingerprints;
    unsigned leaf_class;       /* the size class of all leaves, if has_fingerprints */
    unsigned walk_slice;       /* number of leaves that a walk or check visits under one pin */
    unsigned scan_batch;       /* number of leaves that a scan READs in one batch */
    bool single_steps;         /* scans READ one node or leaf at a time (traversal.h) */
    unsigned attempts_per_pin; /* option patience: failed attempts after which a waiting operation renews its pin */

    /* Counters that all threads change without synchronization. A lost update only delays an adaptation. */
    atomic_uint readahead_skips;      /* number of scans that skip read-ahead after the last wasteful one */
    atomic_uint readahead_skips_left; /* number of scans that must still skip read-ahead (scan_readahead.c) */
    atomic_uint recent_misses; /* recent gets that ended at another key's leaf, minus gets that found their key */

    /* Location and secrets of the index */
    unsigned stripes;               /* number of stripes of the root, one per memory node */
    far_addr stripe[FAR_NODES_MAX]; /* address of each stripe */
    uint64_t hash_base;             /* base of the prefix hashes */
    uint64_t chk_seed;              /* seed of leaf checksums and fingerprints */
    uint64_t tag;                   /* 39 bits that the ctl word of every node of this index contains */

    smart_cache *cache;             /* cache of internal nodes; NULL: the index has none */
    smart_merge_queue *merge_queue; /* nodes with one child, to be merged after a delay (remove.c) */
    smart_redo_pool *redo_pool; /* redo records of the sessions that no task uses at the moment (write_in_place.c) */
} smart_state;

/* For keys up to this length, in bytes, smart_op contains the memory for the prefix hashes; longer keys need scratch
 * memory. */
#define SMART_SHORT_KEY 16u

/* One operation on a key: its inputs, the facts that it found out on the way, and flags by which the caller of
 * smart_find states what it needs. smart_op_begin initializes it. */
typedef struct smart_op {
    far_task *t;
    far_index *index;
    smart_state *st;
    far_bytes key;
    uint64_t *hash; /* hash[d] is the hash of the first d bytes of the key, for 1 <= d <= hash[0]; filled on demand */
    far_bytes other_leaf_key; /* the key of the leaf that other_leaf_word names */

    /* smart_op_init sets the fields from here to short_hashes to zero. */
    uint64_t
        other_leaf_word; /* slot word of another key's leaf that this operation saw LIVE; it need not be READ again */
    uint32_t mark;       /* RDWC number of the batch that was posted last (index/common/rdwc.h) */
    bool found_recycled; /* true if an object that the cache named is in recycled memory */
    /* Frozen words are used like other words, because the operation changes no slot, and has no memory to complete the
     * replacement of a node. */
    bool accept_frozen;

    /* What the caller of smart_find needs. */
    bool is_traversal;   /* the key is only the start of a traversal (traversal.h) */
    bool needs_proof;    /* the result must be proven, also for a hit, because the caller will change the slot */
    bool pairs_leaf;     /* READ the leaf that the cache names in one batch with the deciding node */
    bool expects_absent; /* the key is probably absent, so the leaf that the cache names probably has another key */
    /* the caller changes nothing if the key is absent, so the search need not READ the object in the key's slot */
    bool never_inserts;
    bool bypass_cache; /* do not use the cache */

    /* The target is a deciding node that the caller will replace. Then smart_find also finds the slot that names the
     * target, and READs the target as a whole. */
    far_addr target;
    unsigned target_depth; /* number of bytes of the target's prefix; 0: there is no target */
    unsigned target_layout;
    bool target_recycled; /* true if the target is in recycled memory, according to the cache */

    /* how often another client bound the first unbound slot of a list before this operation could */
    unsigned lost_slots;

    /* Memory that is not initialized. */
    uint64_t short_hashes[SMART_SHORT_KEY + 1]; /* memory for `hash` if the key is short */
} smart_op;

/* An internal node as it was READ. ctl, fp and info are the words of its header (layout.h). */
typedef struct smart_node {
    far_addr addr;
    uint64_t ctl, fp, info;
    unsigned depth;  /* length of the node's prefix in bytes */
    unsigned layout; /* layout of the node, a smart_layout */
    unsigned words;  /* number of slots that were READ */
    uint64_t *image; /* scratch memory with the header and the slots that were READ */
} smart_node;

/* A leaf as it was READ. smart_take_leaf checks the lengths and makes key and value point into the image. */
typedef struct smart_leaf {
    far_addr addr;
    uint64_t ctl;
    unsigned kind, class; /* a smart_kind; the size class of the leaf */
    uint8_t *image;       /* scratch memory with all bytes of the class */
    far_bytes key, value;
    uint64_t meta;
} smart_leaf;

/* A leaf that was unlinked from the tree and must be retired. */
typedef struct smart_old_leaf {
    far_addr addr;
    unsigned class; /* size class of the leaf */
} smart_old_leaf;

/* The address of a slot, and the word that was READ from it */
typedef struct smart_link {
    far_addr slot;
    uint64_t word;
} smart_link;

/* The result of smart_find for the key. */
typedef enum smart_outcome {
    SMART_HIT,        /* a leaf with the key, LIVE or PENDING */
    SMART_EMPTY,      /* the key is absent, because its slot is unbound or a tombstone */
    SMART_DEAD_LEAF,  /* the key is absent, because its slot names a DEAD leaf, or a chain that ends with one */
    SMART_OTHER_LEAF, /* the key is absent, because its slot names a leaf with another key */
    SMART_OTHER_NODE, /* the key is absent, because its slot names a node with a prefix that is no prefix of the key */
} smart_outcome;

/* The place where the search for a key ended. Unless `proven` is set, only outcome, leaf and mark are valid. */
typedef struct smart_spot {
    smart_outcome outcome;
    bool proven;   /* false: a HIT on a leaf that certified itself; the search did not read the deciding node */
    uint32_t mark; /* RDWC number of the batch that READ the word or leaf on which the outcome rests */

    /* The deciding node and its slot for the key. */
    far_addr node;         /* address of the deciding node; 0: the root */
    unsigned depth;        /* length of its prefix in bytes */
    unsigned layout;       /* its layout; SMART_LAYOUTS: unknown, because a traversal found the slot */
    unsigned children;     /* number of children among those of its slots that were READ */
    far_addr slot;         /* address of the slot for the key; 0: the node is a full list without such a slot */
    unsigned at;           /* index of the key's slot in the node */
    uint64_t word;         /* the word that was READ from the key's slot */
    smart_node node_image; /* the whole node, if it was the target of the operation; otherwise `words` is 0 */

    /* The slot that names the deciding node, in the node above it. */
    /* address of that slot; 0: unknown, because the search began at the deciding node, or the deciding node is the
     * root */
    far_addr parent_slot;
    uint64_t parent_word;

    /* The object that the key's slot names. */
    smart_node child; /* header of the node that the slot names, only for SMART_OTHER_NODE */
    smart_leaf leaf;  /* the last leaf of the chain, for all outcomes with a leaf */
    unsigned chain;   /* number of replaced leaves before `leaf` in the chain */
    /* the first of the replaced leaves in the chain; this field must be the last one, because smart_spot_clear skips
     * it */
    smart_old_leaf old_leaves[SMART_CHAIN_MAX];
} smart_spot;


static inline void smart_spot_clear(smart_spot *s) {
    memset(s, 0, offsetof(smart_spot, old_leaves));
}


/* Prepares the spot for a leaf that is found without its deciding node, so it has no slot and no chain. */
static inline void smart_spot_set_unproven(smart_spot *s) {
    s->proven = false;
    s->node = s->slot = s->parent_slot = 0;
    s->word = 0;
    s->chain = 0;
}


static inline smart_state *smart_state_of(const far_index *index) {
    return index->state;
}


/* Initializes an operation that has no key. smart_op_begin also sets the key. */
static inline void smart_op_init(smart_op *op, far_task *t, far_index *index) {
    op->t = t;
    op->index = index;
    op->st = smart_state_of(index);
    memset((char *)op + offsetof(smart_op, other_leaf_word), 0,
           offsetof(smart_op, short_hashes) - offsetof(smart_op, other_leaf_word));
}


/* Returns the number of attempts after which an operation that waits for another client checks whether that client is
 * still alive. */
static inline unsigned smart_liveness_check_interval(const smart_state *st) {
    return (st->attempts_per_pin + 2) / 3;
}


static inline bool smart_liveness_check_is_due(const smart_state *st, unsigned attempt) {
    return attempt % smart_liveness_check_interval(st) == smart_liveness_check_interval(st) - 1;
}


/* Returns the size class of the leaf that the word names. */
static inline unsigned smart_leaf_class(const smart_state *st, uint64_t word) {
    return st->has_fingerprints ? st->leaf_class : smart_word_hint(word);
}


/* Returns the word with a size hint that makes smart_put_read_node READ all slots of a node with this layout. */
static inline uint64_t smart_word_for_whole_node(uint64_t word, unsigned layout) {
    return layout >= SMART_DIR ? word
                               : smart_word_with_read_type(
                                     word, smart_read_type_for(smart_layout_slots(layout), layout, SMART_READ_TYPES));
}


/* Returns the hash of the first `depth` bytes of the key. Hashes that are not known yet are computed and stored in the
 * operation. */
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


/* Returns the address of the root's slot for keys that begin with `byte`. */
static inline far_addr smart_root_slot(const smart_state *st, unsigned byte) {
    return st->stripe[byte % st->stripes] + 8ull * (byte / st->stripes);
}


/* Returns the index of the first of the SMART_NEIGHBOURS slots of a DIR node that are READ together with slot `at`. */
static inline unsigned smart_first_neighbour(unsigned at) {
    return at < SMART_PARTS - SMART_NEIGHBOURS ? at : SMART_PARTS - SMART_NEIGHBOURS;
}


/* Returns the number of words that name a child. */
static inline unsigned smart_count_children(const uint64_t *words, unsigned count) {
    unsigned live = 0;
    for (unsigned i = 0; i < count; i++)
        live += smart_word_kind_of(words[i]) != SMART_NONE;
    return live;
}


/* number of lock words for lockfree_nodes=off, stored after the slots of each stripe (baseline.c) */
#define SMART_NODE_LOCKS 64u


static inline uint64_t smart_stripe_slots(unsigned stripes) {
    return (SMART_ROOT_SLOTS + stripes - 1) / stripes * 8ull;
}


static inline uint64_t smart_stripe_bytes(unsigned stripes) {
    return smart_stripe_slots(stripes) + 8ull * SMART_NODE_LOCKS;
}


/* Functions that return int return an error (less than 0) or a result (0 or more). The following enumerations list the
 * results. */

/* Results of functions that change the tree. */
enum {
    SMART_LOST,   /* nothing changed, because another client was faster; the caller backs off and searches again */
    SMART_DONE,   /* the change took effect */
    SMART_RESUME, /* no race was lost, but the operation must search again before it can continue */
    SMART_GREW,   /* smart_replace only: done, and the copy contains a leaf with the operation's key */
};

/* Results of smart_common_prefix. */
enum {
    SMART_NO_LEAF,      /* no leaf exists below the child, so its prefix is not known */
    SMART_PREFIX_KNOWN, /* the result is set */
};

/* Result of functions that search or READ leaves, in addition to 0 (found): the search must begin again at the root. */
enum { SMART_SEARCH_AGAIN = 1 };


/* find.c: searching from the root, and gets. */

/* Sets up the operation. Returns FAR_ERR_NO_MEMORY if there is no scratch memory for the prefix hashes. */
int smart_op_begin(smart_op *op, far_task *t, far_index *index, far_bytes key);
/* Numbers the open batch for RDWC (see index/common/rdwc.h), posts it and waits. Every batch whose READs decide the
 * result of an operation is posted with this function. */
int smart_wait(smart_op *op);
/* Drops the pin and takes a new one. Objects that the operation has READ before may be reused, so the operation must
 * search again. */
int smart_renew_pin(smart_op *op);
/* Makes this node the target of the operation (see smart_op). */
void smart_set_target(smart_op *op, far_addr node, unsigned depth, unsigned layout);
/* Searches for the key of the operation. If `cached` is set, the search may begin at a node or leaf that the cache
 * names. Otherwise it begins at the root, and the result is proven and has a parent slot. The search completes the
 * replacement of frozen nodes that it meets. */
int smart_find(smart_op *op, bool cached, smart_spot *spot);
/* Like smart_find with the cache, for operations that only read or delete the leaf. If there is no memory to complete
 * the replacement of a frozen node, the search uses the frozen words. */
int smart_find_leaf(smart_op *op, smart_spot *spot);
/* Returns whether one READ of `bytes` bytes at addr, which showed this ctl word, may have returned words of two
 * incarnations. */
bool smart_may_mix_incarnations(const smart_op *op, uint64_t ctl, far_addr addr, unsigned bytes);
/* Returns whether the leaf certifies itself and its value belongs to the same incarnation as its ctl word. */
bool smart_leaf_is_certain(const smart_op *op, const smart_leaf *leaf);
int smart_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int smart_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]);

/* node.c: reading, searching and building internal nodes. */

/* Returns FAR_ERR_CORRUPT with a message that names the object. */
int smart_fail_corrupt(const far_index *index, far_addr addr, const char *what);
/* Returns FAR_ERR_CORRUPT unless the root's slot for `byte` may contain this word. */
int smart_check_root_slot(const smart_op *op, unsigned byte, uint64_t word);
/* Adds a READ of the node that the word names. Its size follows from the size hint in the word; for a DIR node only the
 * header is READ, or the whole node if `whole` is set. */
int smart_put_read_node(smart_op *op, uint64_t word, bool whole, smart_node *node);
/* READs the node like smart_put_read_node, and waits. */
int smart_fetch_node(smart_op *op, uint64_t word, bool whole, smart_node *node);
/* Adds a READ of the first `bytes` bytes of the node at addr. */
int smart_put_read_bytes(smart_op *op, far_addr addr, unsigned bytes, smart_node *node);
/* Interprets the image of the node after the wait. Returns false if the image is not that of a node of this index. */
bool smart_take_node(const smart_op *op, smart_node *node);
/* Does the same as smart_take_node, but does not check the slot words. The caller checks each word that it uses. */
bool smart_take_header(const smart_op *op, smart_node *node);
/* READs further slots of a node, until at least `words` slots were READ. At least doubles the number of slots. */
int smart_read_more(smart_op *op, smart_node *node, unsigned words);
/* Like smart_read_more, in two steps: this function adds the READ, and smart_take_more interprets it. *want is the
 * argument for smart_take_more; it equals node->words if no READ was added. */
int smart_put_read_more(smart_op *op, smart_node *node, unsigned words, unsigned *want);
int smart_take_more(smart_op *op, smart_node *node, unsigned want);
/* Raises the size hint in the slot word that names the node to the number of slots that were READ. Does not wait.
 * Returns the word that the slot contains if the CAS succeeds. */
uint64_t smart_raise_hint(smart_op *op, far_addr slot, uint64_t word, const smart_node *node);
/* READs the node that `word` names, and waits. The operation has READ `word` from an unfrozen slot of a proven node. So
 * memory that contains no node is damage, and the function returns FAR_ERR_CORRUPT. */
int smart_read_node(smart_op *op, uint64_t word, bool whole, smart_node *node);
/* Returns whether the prefix of the node is a prefix of the operation's key. */
bool smart_prefix_matches(const smart_op *op, const smart_node *node);
/* Searches a list for the slot of a partial key. Returns true and sets *at to the index of that slot, or returns false
 * and sets *at to the index of the first unbound slot. *at equals node->words if neither is among the slots that were
 * READ. */
bool smart_find_slot(const smart_node *node, unsigned part, unsigned *at);
/* Returns the number of children among the slots that were READ. */
unsigned smart_node_children(const smart_node *node);
/* Returns whether the node, which must have been READ as a whole, has one child and that child may take the node's
 * place. */
bool smart_can_merge(const smart_state *st, const smart_node *node);
/* Writes the header of a node with the first `depth` bytes of the key as prefix into the image, with empty slots. */
void smart_build_node(const smart_op *op, uint64_t *image, smart_layout layout, unsigned depth, bool recycled);
/* Returns the smallest layout for this number of children. */
smart_layout smart_layout_for(const smart_state *st, unsigned children);
/* Returns the memory node on which a new node is allocated. `near` is the slot that will name the new node. */
unsigned smart_choose_memory_node(const smart_op *op, uint64_t fp, far_addr near);
/* Posts a CAS that makes a linked PENDING object LIVE; does not wait. */
void smart_mark_live(smart_op *op, far_addr addr, uint64_t ctl);
/* Finds out how many bytes the key shares with the prefix of `child`, which is no prefix of the key. The caller must
 * know that the first `from` bytes agree. Sets *common to the number of shared bytes and *part to the child's byte at
 * that depth. If the prefix is not in the child's header and no leaf exists below the child, the result is
 * SMART_NO_LEAF. In that case *stuck is the link of a node in that subtree that must be replaced first, because the
 * node is empty or frozen. */
int smart_common_prefix(smart_op *op, unsigned from, smart_link link, const smart_node *child, unsigned *common,
                        unsigned *part, smart_link *stuck);

/* leaf.c: reading and building leaves. */

/* Returns the smart_kind of a leaf for a key and a value of these lengths. */
unsigned smart_kind_for(const smart_state *st, size_t key_length, size_t value_length);
/* Allocates a leaf with the operation's key, preferably on the given memory node, and builds its image in scratch
 * memory. seen_early: clients with a stale pointer may reach the leaf before it is linked, so it starts PENDING even in
 * memory that is not recycled. */
int smart_make_leaf(smart_op *op, unsigned kind, far_bytes value, unsigned node, bool seen_early, smart_leaf *leaf);
void smart_free_leaf(smart_op *op, const smart_leaf *leaf);          /* frees a leaf that was never linked */
void smart_retire_leaf(smart_op *op, far_addr addr, unsigned class); /* retires an unlinked leaf */
/* returns the checksum that the leaf should have */
uint64_t smart_leaf_chk(const smart_state *st, const smart_leaf *leaf);
/* Adds a READ of the whole leaf. */
int smart_put_read_leaf(smart_op *op, far_addr addr, unsigned class, smart_leaf *leaf);
/* READs the whole leaf and waits. flags: FAR_VERB_.. flags of the READ. */
int smart_fetch_leaf(smart_op *op, far_addr addr, unsigned class, unsigned flags, smart_leaf *leaf);
/* Returns whether the image shows no unfinished update in place. */
bool smart_leaf_is_whole(const smart_op *op, const smart_leaf *leaf);
/* Interprets the image of the leaf after the wait. Returns false if the image is not that of a leaf of this class. */
bool smart_take_leaf(smart_leaf *leaf, unsigned class);
/* Interprets the image of the leaf after the wait, in the common case of a get. Returns true if the leaf has the
 * operation's key, certifies itself (its checksum fits its key, address and incarnation), and is not in recycled
 * memory. If it returns false, the caller must use the slower functions to find out the reason. */
bool smart_take_hit(const smart_op *op, smart_leaf *leaf);
/* READs a proven leaf and follows its chain to the last leaf, until no half-done update is visible. *chain is the
 * number of replaced leaves before the last one; `old` receives the first of them. */
int smart_read_leaf(smart_op *op, far_addr addr, unsigned class, smart_leaf *leaf, unsigned *chain,
                    smart_old_leaf old[SMART_CHAIN_MAX]);
/* Returns the slot word that names the leaf. */
uint64_t smart_leaf_word(const smart_state *st, const smart_leaf *leaf, unsigned part);
/* Returns whether the fingerprint in the word proves that the leaf has another key than the operation's. */
bool smart_fingerprint_differs(const smart_op *op, uint64_t word);
/* Returns 7 bits of a hash of the whole key, which slot words of leaves contain. */
unsigned smart_fingerprint(const smart_state *st, far_bytes key);

/* write_insert.c: put, and inserting a leaf where smart_find ended. */
int smart_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int smart_insert_at(smart_op *op, const smart_spot *spot, far_bytes value);

/* write_update.c: changing the value of a leaf. */

/* Writes the value into the leaf that smart_find found. *sealed is set once the RDWC round is closed for writers (see
 * index/common/rdwc.h); the function closes the round if it is open, and then sets *value to the value of the last
 * writer of the round. */
int smart_update_at(smart_op *op, smart_spot *spot, far_bytes *value, bool *sealed);
/* Changes a proven slot so that it names the last leaf of its chain, or no leaf if the last leaf is DEAD. Retires the
 * leaves that precede the last one. */
int smart_unlink_old_leaves(smart_op *op, const smart_spot *spot);

/* remove.c: deleting, and cleaning up after updates and deletes. */
int smart_remove(far_task *t, far_index *index, far_bytes key);
/* Starts a background task that unlinks old leaves from the slot of the key and, if `merge` is set, removes or merges
 * nodes above it that are left with no child or one child. */
void smart_tidy_later(smart_op *op, bool merge);
/* The idle hook of the kind. Merges the nodes of the first entry of the merge queue, if the entry is due, that is, if
 * its delay (MERGE_AFTER in remove.c) is over. Returns 1 if there was a due entry. */
int smart_run_due_merge(far_task *t, far_index *index);
smart_merge_queue *smart_merge_queue_new(void);
/* Charges the memory of the queue's entries to the budget of this cache. */
void smart_merge_queue_set_budget(smart_merge_queue *queue, smart_cache *cache);
void smart_merge_queue_free(smart_merge_queue *queue);

/* restructure.c: replacing a node (REPLACE). */

/* Freezes the node that `parent_word` in the slot `parent_slot` names, and makes the slot name the remaining content,
 * which is nothing, its only child, or a copy with the children. `layout` is the layout of the node, or SMART_LAYOUTS
 * if it is not known. `seen` is the node as it was READ, or NULL; if `seen` is not the whole node, the node is READ
 * again. `grow` is NULL, or the value of a new leaf with the operation's key that the copy should contain. Returns
 * SMART_DONE if the slot was changed, or SMART_GREW if the copy also contains the new leaf. */
int smart_replace(smart_op *op, far_addr parent_slot, uint64_t parent_word, unsigned layout, const smart_node *seen,
                  const far_bytes *grow);

/* write_in_place.c: updating VI leaves in place under their lock. */
int smart_update_locked(smart_op *op, const smart_spot *spot, far_bytes value);
/* If the holder of the leaf lock is a failed client, completes its update and releases the lock. Returns 1 if the
 * caller should READ the lock again, because this client or another one took over; 0 if the holder is alive, or if the
 * lock no longer belongs to the redo record that it named. */
int smart_recover_lock(smart_op *op, far_addr lock_at, uint64_t lock);
/* Like smart_recover_lock, but called by a walk. If the holder is alive, the function also reports the holder's redo
 * record. */
int smart_walk_lock(smart_op *op, far_addr lock_at, uint64_t lock, far_walk *walk);
/* Sets *owner to the owner of the lock (pool/format/owner.h), or to 0 if the lock word names none. */
int smart_lock_holder(smart_op *op, uint64_t lock, uint64_t *owner);
smart_redo_pool *smart_redo_pool_new(const far_index *index);
void smart_redo_pool_free(smart_redo_pool *pool);

/* baseline.c: the node locks of lockfree_nodes=off. */
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
int smart_object_keys(far_task *t, far_index *index, unsigned type, const void *object, uint64_t bytes, far_keys *keys);

/* cache.c: the ART cache. Its words have the form of slot words, but the frozen bit, which the cache never stores, has
 * another meaning there, namely that the object which the word names is in recycled memory, so that its ctl word must
 * be READ first. */
#define SMART_CACHED_RECYCLED SMART_FROZEN_BIT

/* The cached information for a key: the deepest cached node on the path of the key, and that node's slot word for the
 * key. */
typedef struct smart_cached {
    far_addr node;   /* address of the node; 0: the root */
    unsigned depth;  /* length of the node's prefix in bytes */
    uint64_t word;   /* the node's slot word for the key; 0: not cached */
    unsigned words;  /* number of slots of the node that the cache contains */
    unsigned layout; /* layout of the node */
    bool recycled;   /* the node is in recycled memory */
} smart_cached;

/* Creates the cache. Sets *cache to NULL if the handle's budget cannot register another cache; the index then works
 * without a cache. */
int smart_cache_new(far_index *index, bool fifo, smart_cache **cache);
void smart_cache_free(smart_cache *cache);
size_t smart_cache_bytes(far_index *index);
/* Takes bytes of the cache's budget for another data structure of the index. Returns false if the budget is spent.
 * Without a cache there is no budget, so it returns true if `cache` is NULL. */
bool smart_cache_reserve_budget(smart_cache *cache, size_t bytes);
void smart_cache_return_budget(smart_cache *cache, size_t bytes);
/* Looks up the deepest cached node with a depth less than `below` on the path of the key. Returns false if there is
 * none. */
bool smart_cache_probe(smart_cache *cache, far_bytes key, unsigned below, smart_cached *result);
/* Prefetches the local node below the topmost one for a key that will be probed soon, because it is probably not in the
 * processor's cache. */
void smart_cache_prefetch(smart_cache *cache, far_bytes key);
/* Stores the slots of a node that were READ. The prefix of the node must be a prefix of the key. */
void smart_cache_store_node(smart_cache *cache, far_bytes key, const smart_node *node);
/* Stores one slot word of the node at that depth on the path of the key. node 0: a word of the root. linked_in is the
 * epoch of the operation's pin if the operation saw the node linked under this pin, otherwise 0. */
void smart_cache_store_word(smart_cache *cache, far_bytes key, far_addr node, unsigned depth, unsigned layout,
                            uint64_t word, uint64_t linked_in);
/* Records that the node was found in recycled memory. */
void smart_cache_mark_recycled(smart_cache *cache, far_bytes key, far_addr node, unsigned depth);
/* Returns the size hint that the slot word of this node is expected to contain; 0: not known. */
unsigned smart_cache_size_hint(smart_cache *cache, far_bytes key, far_addr node, unsigned depth);
/* Returns the epoch of the pin under which an operation of this handle last saw this DIR node linked, or a much older
 * epoch if no operation did. */
uint64_t smart_cache_linked_in(smart_cache *cache, far_bytes key, far_addr node, unsigned depth);
/* Drops the content of a node that was found to be stale. With node 0, drops the word of the root. */
void smart_cache_drop(smart_cache *cache, far_bytes key, far_addr node, unsigned depth);

#endif
