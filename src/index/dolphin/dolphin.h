/* Dolphin: the types and functions that the files of this folder share. README.md in this folder explains the protocol,
 * layout.h defines every bit in far memory.
 *
 * Conventions:
 * - Functions named dolphin_batch_... append verbs to the open batch of the task and do not post it. The next wait
 *   (dolphin_wait) posts the batch and returns when all its verbs have completed: one round trip.
 * - A node or leaf is named by its entry word (layout.h), which holds its address, its reuse tag and its kind.
 *   Variables called `word` or `entry` hold such words.
 * - Functions return 0 or a positive value as documented, or a negative FAR_ERR_ code.
 * - A pin keeps every far object that was linked when the pin was taken from being reused (pool/epoch/epoch.h). */
#ifndef FAR_INDEX_DOLPHIN_DOLPHIN_H
#define FAR_INDEX_DOLPHIN_DOLPHIN_H

#include "index/common/rdwc.h"
#include "index/dolphin/layout.h"

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
typedef struct dolphin_slot_hints dolphin_slot_hints;

/* An open index in one handle. All fields except `gates` (local locks, the last field) are constant while the index is
 * open. */
typedef struct dolphin_state {
    /* From the descriptor in far memory, and from the options. */
    uint64_t root;       /* entry word of the root node */
    unsigned slots;      /* number of slots in a leaf */
    unsigned leaf_bytes; /* size of a leaf in far memory */
    bool raw_values;     /* value_size=8: each value word is the 8-byte value itself */
    bool last_byte_coverage, exclusive_writes, split_arrays, insert_by_ticket, indirect_values;
    /* hot_updates=on: values are updated in one round trip (write_hot.c), and the value words of a leaf are frozen
     * together with the leaf */
    bool hot_updates;
    bool has_masked_cas; /* every memory node of the pool supports masked CAS */
    unsigned scan_batch, walk_slice;
    unsigned attempts_per_pin; /* option `patience`: an operation renews its pin after this number of retries */
    unsigned calm_after;
    uint64_t poison, hash_seed; /* secret random words of the index, set at its creation */

    /* Structures in local memory, which all sessions of the handle share. */
    dolphin_cache *cache; /* cache of inner nodes; NULL when the option is off or the handle has no cache budget */
    /* table of slot hints; NULL when the option is off; exists only together with a cache */
    dolphin_slot_hints *slot_hints;
    /* A gate lets only one task of this handle replace a leaf, while the other tasks wait without verbs (lock.c). A
     * gate word is the address of the leaf that is being replaced, or 0 if the gate is open. The hash of a leaf's
     * address selects its gate. */
    _Atomic uint64_t gates[DOLPHIN_GATES];
} dolphin_state;

#define DOLPHIN_NO_TICKET UINT64_MAX

/* The state of one operation, on the stack of its task. */
typedef struct dolphin_op {
    far_task *t;
    far_index *index;
    dolphin_state *st;
    far_bytes key;

    /* Numbers that RDWC (index/common/rdwc.h) gives to batches. */
    uint32_t last_mark;  /* number of the batch that the operation waited for last */
    uint32_t enter_mark; /* number of the batch that entered the leaf */

    /* Counts and flags that control the retries of the operation. */
    unsigned attempt;            /* number of retries so far; it determines the back-off and the renewal of the pin */
    unsigned inconsistent_reads; /* number of times that READ data contradicted each other */
    bool retried;                /* the operation has already located its key a second time */
    /* set by scans and traversals, which visit many keys: they READ the whole root and not only one entry */
    bool reads_whole_root;
    bool skip_cache; /* the next dolphin_locate must READ the node instead of trusting the cache */
    /* duration of the batch that entered the leaf, in nanoseconds; an estimate for the length of waits */
    uint64_t round_trip_ns;
    /* Entry word of a leaf that this operation found without an empty slot. The operation does not enter that leaf
     * again. 0: none. */
    uint64_t full_leaf;

    /* State of an insert by ticket (insert=ticket). */
    uint64_t ticket;      /* slot number that this operation has drawn and not yet used; else DOLPHIN_NO_TICKET */
    uint64_t last_ticket; /* slot number drawn last, kept after the ticket was used or returned */
    /* number that the FAA added to the spear word (the control word of the leaf) to draw the ticket */
    uint64_t ticket_addend;
    /* Spear word that the FAA returned when it drew the ticket. Its sum field covers the keys of all lower tickets. */
    uint64_t spear_at_draw;

    bool session_lost; /* Set when a verb failed. Posted verbs may still take effect then, so no memory may be freed. */
} dolphin_op;

/* A copy of an inner node, as it was READ. */
typedef struct dolphin_node {
    uint64_t word;   /* entry word that names the node, as READ from its parent or from the cache */
    uint64_t *image; /* the whole node, in scratch memory */
    unsigned depth, class, capacity;
    uint64_t *entries; /* the entries of the node; points into the image */
    bool proven;       /* the node was linked at some moment of this operation, with the content of the image */
} dolphin_node;

/* Result of the search for a key. AT_LEAF: the entry for the key names a leaf. AT_NULL: the entry is a NULL interval,
 * so the key is absent. AT_DIVERGENCE: the entry names a node with a different prefix, so the key is absent.
 */
typedef enum { DOLPHIN_AT_LEAF, DOLPHIN_AT_NULL, DOLPHIN_AT_DIVERGENCE } dolphin_outcome;

/* The place in the tree where the search for a key ended (dolphin_locate). */
typedef struct dolphin_location {
    dolphin_outcome outcome;
    uint64_t node_word;   /* entry word of the deepest node that covers the key */
    unsigned depth;       /* depth of that node */
    bool node_is_fresh;   /* the node was READ in this operation, is proven, and is stored in `node` */
    dolphin_node node;    /* valid only if node_is_fresh; otherwise the entry came from the cache */
    unsigned position;    /* position of the key in that node */
    uint64_t entry;       /* entry of that node for this position */
    dolphin_node child;   /* the node that the entry names, valid only for AT_DIVERGENCE */
    uint64_t parent_word; /* entry word of the parent of `node` if the search passed through it, else 0 */
} dolphin_location;

/* A copy of a leaf, as it was READ: the header, the key words, and if `whole` also the value words. */
typedef struct dolphin_leaf {
    uint64_t entry; /* entry word that led to the leaf */
    far_addr addr;
    uint64_t *image; /* copy of the leaf, in scratch memory */
    bool whole;
} dolphin_leaf;

/* A key-value pair that is written into a new leaf. */
typedef struct dolphin_item {
    far_bytes key; /* the whole key */
    /* The key word of the pair in the old leaf. If it names a key block, the new leaf uses the same block. 0: the key
     * is new. */
    uint64_t kword;
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


/* Returns the value word of a slot with the FROZEN bit removed. */
static inline uint64_t dolphin_vword(const dolphin_op *op, const dolphin_leaf *leaf, unsigned slot) {
    uint64_t word = dolphin_vwords(op, leaf)[slot];
    return op->st->raw_values ? word : dolphin_value_unfrozen(word);
}


static inline uint64_t dolphin_spear(const dolphin_leaf *leaf) {
    return leaf->image[0];
}


static inline uint64_t dolphin_ident(const dolphin_leaf *leaf) {
    return leaf->image[1];
}


/* Returns the depth of the leaves below a node. It equals the depth of the node, except below the root: each root entry
 * stands for one first byte, so a leaf there has depth 1 and covers all positions at that depth. */
static inline unsigned dolphin_leaf_depth(unsigned node_depth) {
    return node_depth ? node_depth : 1;
}


static inline far_addr dolphin_entry_word_addr(const dolphin_node *node, unsigned at) {
    return dolphin_entry_addr(node->word) + 8ull * (uint64_t)(node->entries + at - node->image);
}


/* keys.c: comparing keys with key words, and reading key blocks. */
uint64_t dolphin_prefix_word(const dolphin_state *st, const void *bytes, unsigned depth);
uint64_t dolphin_key_hash(const dolphin_state *st, far_bytes key);
unsigned dolphin_fingerprint(const dolphin_state *st, far_bytes key);
uint64_t dolphin_expected_kword(const dolphin_state *st, far_bytes key, unsigned depth);
bool dolphin_kword_may_be(const dolphin_state *st, uint64_t kword, far_bytes key, unsigned depth);
/* Stores into `found` the slots that are in one of the given states and may hold op->key, the highest slot first.
 * Returns their number. `states` is a set of DOLPHIN_STATE_BIT. */
unsigned dolphin_find_candidates(const dolphin_op *op, const dolphin_leaf *leaf, unsigned states, unsigned found[]);
#define DOLPHIN_STATE_BIT(state) (1u << (state))
/* Sets the message that the object at this address is broken and returns FAR_ERR_CORRUPT. `what` names its type. */
int dolphin_fail_corrupt(const far_index *index, far_addr addr, const char *what);
/* Appends the READ of the key block that the key word names. After the wait, dolphin_decode_key validates the block and
 * returns the key in it. */
int dolphin_batch_read_key(dolphin_op *op, uint64_t kword, uint8_t **block);
int dolphin_decode_key(const dolphin_op *op, uint64_t kword, const uint8_t *block, far_bytes *key);
/* Computes the smallest key that is greater than every key with this prefix of `depth` bytes. Returns false if there is
 * no such key, because all bytes of the prefix are FF. */
bool dolphin_first_key_after_prefix(const uint8_t *prefix, unsigned depth, uint8_t *key, size_t *length);

/* value.c: value words, value blocks, and the allocation of key blocks. */
int dolphin_build_value(dolphin_op *op, far_bytes value, unsigned node, uint64_t *vword, uint8_t **block);
/* Frees a value block at once. Only for a block that no other client can have found. */
void dolphin_free_value(dolphin_op *op, uint64_t vword);
/* Retires the value block of an unlinked value word. Does nothing if the word names no value block. */
void dolphin_retire_value(dolphin_op *op, uint64_t vword);
int dolphin_batch_read_value(dolphin_op *op, uint64_t vword, uint8_t **block);
/* READs the value blocks that the value words name, in one batch, and waits. blocks[i] is NULL if vwords[i] names none.
 * If the value blocks of the first words have `most` bytes or more, stores their smaller number in *count. */
int dolphin_read_values(dolphin_op *op, const uint64_t vwords[], unsigned *count, uint64_t most, uint8_t *blocks[]);
int dolphin_decode_value(const dolphin_op *op, far_bytes key, uint64_t vword, const uint8_t *block, far_bytes *value);
/* Allocates a key block for op->key and builds its image. The caller appends the WRITE of the image. */
int dolphin_build_key(dolphin_op *op, unsigned node, uint64_t *kword, uint8_t **block);
void dolphin_free_key(dolphin_op *op, uint64_t kword);
void dolphin_retire_key(dolphin_op *op, uint64_t kword);

/* node.c: reading, validating and searching copies of inner nodes. */
int dolphin_batch_read_node(dolphin_op *op, uint64_t word, dolphin_node *node);
/* Validates a node after the wait for its READ. Returns 1 if the memory still holds the named node, which is then
 * marked as proven; 0 if the node was replaced; FAR_ERR_CORRUPT if it is damaged. `linked` means that the entry word of
 * the node was READ from a proven node in this operation. Only then is a frozen node accepted. */
int dolphin_validate_node(const dolphin_op *op, dolphin_node *node, bool linked);
bool dolphin_node_has_prefix_of(const dolphin_node *node, far_bytes key);
const uint8_t *dolphin_node_prefix(const dolphin_node *node);
/* Returns the index of the entry with the greatest lower bound that does not exceed the position, or -1. */
int dolphin_find_entry(const dolphin_node *node, unsigned position);
/* Returns the smallest lower bound in the node that is greater than `lb`, or DOLPHIN_POSITIONS if no entry has a
 * greater one. */
unsigned dolphin_next_lb(const dolphin_node *node, unsigned lb);
unsigned dolphin_count_free_entries(const dolphin_node *node);
int dolphin_init_node_image(dolphin_op *op, const uint8_t *prefix, unsigned depth, unsigned class, dolphin_node *node);
unsigned dolphin_choose_memory_node(const dolphin_op *op, const uint8_t *prefix, unsigned depth);

/* find.c: waits and retries, locating a key, gets. */
void dolphin_begin_op(dolphin_op *op, far_task *t, far_index *index, far_bytes key);
/* far_wait, which also records the RDWC mark of the batch and whether the session was lost. */
int dolphin_wait(dolphin_op *op);
/* Appends a CAS to the open batch and waits for the batch. */
int dolphin_cas_and_wait(dolphin_op *op, far_addr addr, uint64_t expected, uint64_t desired, uint64_t *old);
/* Waits for a while before a retry, and renews the pin after every attempts_per_pin retries. Afterwards the caller must
 * not use anything that it READ under the old pin. */
int dolphin_back_off(dolphin_op *op);
/* Backs off because READ data contradict each other, usually because another client is changing the object at `addr`.
 * After many such reads the data must be damaged, and the function returns FAR_ERR_CORRUPT with a message in which
 * `what` names the object. */
int dolphin_retry_inconsistent(dolphin_op *op, far_addr addr, const char *what);
int dolphin_renew_pin(dolphin_op *op);
/* Finds the entry for op->key. With `read_node` the deepest node is READ even if the cache contains it. */
int dolphin_locate(dolphin_op *op, bool read_node, dolphin_location *location);
/* Inserts the node into the cache. A frozen node is about to be replaced and is not inserted. */
void dolphin_cache_unless_frozen(dolphin_op *op, const dolphin_node *node);
int dolphin_read_leaf(dolphin_op *op, uint64_t entry, dolphin_leaf *leaf);
bool dolphin_leaf_covers(const dolphin_op *op, const dolphin_leaf *leaf, uint64_t ident);
bool dolphin_kword_is_live_key(const dolphin_op *op, unsigned depth, uint64_t kword);
/* Looks up op->key in a leaf that was READ as a whole, and returns its value in *out. Returns 0, FAR_ERR_NOT_FOUND or
 * an error. */
int dolphin_get_from_leaf(dolphin_op *op, const dolphin_leaf *leaf, far_out *out);
int dolphin_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int dolphin_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                     int results[]);

/* write.c, remove.c: operations that write to one leaf (put, insert, update, delete). */
int dolphin_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int dolphin_remove(far_task *t, far_index *index, far_bytes key);
/* Reasons for which an operation leaves a leaf without a result and must locate its key again:
 *   STALE   the entry does not name this leaf any more, or the leaf does not cover the key
 *   FROZEN  another client is replacing the leaf
 *   FULL    the leaf has no empty slot
 *   RETRY   another client won a race, for example for the slot */
enum { DOLPHIN_LEAF_STALE = 1, DOLPHIN_LEAF_FROZEN, DOLPHIN_LEAF_FULL, DOLPHIN_RETRY };
/* Enters the leaf: increments its count of writers, and READs its header and key words (with `whole` also its values).
 * `draw` is 0, or the addend of dolphin_ticket_addend to draw a ticket with the same FAA. Returns 0 if the operation is
 * inside and may write; otherwise STALE or FROZEN, and the operation has left the leaf again. */
int dolphin_enter_leaf(dolphin_op *op, uint64_t entry, bool whole, uint64_t draw, dolphin_leaf *leaf);
void dolphin_batch_leave(dolphin_op *op, const dolphin_leaf *leaf);
/* Leaves the leaf and does not wait for the verbs. */
void dolphin_leave_leaf(dolphin_op *op, const dolphin_leaf *leaf);
/* Sets *same to whether the key word, which may name a key block, holds op->key. READs the key block if necessary. */
int dolphin_compare_key(dolphin_op *op, const dolphin_leaf *leaf, uint64_t kword, bool *same);
/* write_hot.c: hot_updates=on. Updates the key in that slot in one round trip. `old` is a recent value word of the
 * slot. Returns 0 if the update took effect, 1 if the caller must use the usual protocol. */
int dolphin_update_hot(dolphin_op *op, const dolphin_location *location, unsigned slot, uint64_t old, far_bytes value);
/* Freezes the value words of a leaf that is frozen and drained of writers, so that hot updates fail. */
int dolphin_freeze_values(dolphin_op *op, const dolphin_leaf *leaf);
/* Appends the verbs that thaw a leaf: they clear the FROZEN bits of the value words, which must have been READ while
 * they were frozen, and then the FROZEN bit of the leaf. */
void dolphin_batch_thaw(dolphin_op *op, const dolphin_leaf *leaf);
/* Appends the WRITE of a key block or value block. If the block and the leaf are on different memory nodes, also waits
 * for the WRITE, because verbs to two memory nodes have no order. */
int dolphin_write_block(dolphin_op *op, far_addr at, const uint8_t *block, uint64_t bytes, far_addr leaf);
/* write_ticket.c: insert=ticket, in which an FAA draws the slot number for an insert. Draws a ticket in a leaf that the
 * operation has entered without a ticket. */
int dolphin_draw_ticket(dolphin_op *op, dolphin_leaf *leaf);
/* Returns the number that an FAA adds to the spear word of a leaf of this depth to draw a ticket for op->key. */
uint64_t dolphin_ticket_addend(const dolphin_op *op, unsigned depth);
/* Records a drawn ticket in the operation. `seen` is the spear word that the FAA returned. */
void dolphin_record_ticket(dolphin_op *op, uint64_t draw, uint64_t seen);
/* Inserts op->key into the slot of its ticket. Returns 0 or RETRY after it has left the leaf. Returns FULL,
 * FAR_ERR_EXISTS or another error while the operation is still counted as a writer of the leaf. */
int dolphin_insert_by_ticket(dolphin_op *op, const dolphin_leaf *leaf, far_bytes value);
/* Finds the slot of op->key among the slots in these states and READs key blocks if necessary. Sets *slot to -1 if the
 * key is absent. */
int dolphin_find_slot(dolphin_op *op, const dolphin_leaf *leaf, unsigned states, int *slot);

/* leaf_build.c: images of new leaves, built from sorted items. */
unsigned dolphin_choose_split(const dolphin_item *items, unsigned count, unsigned depth, int new_item);
void dolphin_fill_leaf(const dolphin_op *op, uint64_t *image, const dolphin_item *items, unsigned count,
                       const uint8_t *prefix, unsigned depth, unsigned lo, unsigned hi);
void dolphin_sort_items(dolphin_item *items, unsigned count);

/* lock.c: node locks in far memory, and gates in local memory (dolphin_state says what a gate is). */
enum { DOLPHIN_LOCKED = 0, DOLPHIN_BUSY = 1, DOLPHIN_UNLINKED = 2 };
far_addr dolphin_lock_addr(const dolphin_op *op, uint64_t word);
uint64_t dolphin_lock_word_of(const dolphin_op *op, uint64_t word);
/* Tries once to lock the node. LOCKED: `node` holds its content, READ under the lock. BUSY: another client holds the
 * lock; `node` was READ but its entries may be from different moments. UNLINKED: the node was replaced. */
int dolphin_lock(dolphin_op *op, uint64_t word, dolphin_node *node);
void dolphin_batch_unlock(dolphin_op *op, uint64_t word);
int dolphin_unlock(dolphin_op *op, uint64_t word);
/* Closes the gate for this leaf, so that other tasks of this handle that want to replace the leaf wait. Returns false
 * if the gate is closed already. */
bool dolphin_gate_enter(dolphin_op *op, uint64_t entry);
void dolphin_gate_leave(dolphin_op *op, uint64_t entry);
/* Waits without a pin until the gate is open, then takes a new pin. */
int dolphin_gate_wait(dolphin_op *op, uint64_t entry);
/* Locates op->key again after a write at `location` returned `why` (STALE, FROZEN or RETRY), and updates `location`.
 * For FROZEN it first waits until the leaf has been replaced. Releases the scratch memory that was allocated since
 * `here`. */
int dolphin_locate_again(dolphin_op *op, int why, far_scratch_mark here, dolphin_location *location);

/* restructure.c: structure changes. The first two functions return 1 if the change was made and contains the key, 0 if
 * the caller must locate the key again, or an error. */
int dolphin_fill_null(dolphin_op *op, const dolphin_location *location, far_bytes value);
int dolphin_split_path(dolphin_op *op, const dolphin_location *location, far_bytes value);
/* restructure_leaf.c: replaces a leaf by one leaf, by two leaves, by a node with two leaves, or by a NULL entry. If
 * `value` is not NULL, the new leaves contain op->key with this value. Returns 1 if the change was made, 0 if the
 * caller must locate the key again, or an error. */
int dolphin_replace_leaf(dolphin_op *op, const dolphin_location *location, far_op_kind how, const far_bytes *value);
/* Reduces a frozen leaf below a locked node to the interval for which entry `at` still names the leaf. This repairs the
 * work of a failed client, which had already linked new leaves for the upper part. The slots of the upper part are
 * removed from the old leaf. */
int dolphin_narrow_leaf(dolphin_op *op, const dolphin_node *node, unsigned at);

/* restructure_node.c: replaces the node of the location by a larger copy, or removes it if it is empty or has a single
 * child node. Returns 0 (locate again) or an error. */
int dolphin_replace_node(dolphin_op *op, const dolphin_location *location);
/* restructure_merge.c: after a delete of op->key, merges small adjacent leaves and removes empty nodes. Returns 1 if it
 * changed the tree, so that the parent should be examined too; 0 if there is nothing to do or another client is
 * changing the nodes. */
int dolphin_merge_leaves(dolphin_op *op);

/* recover.c: repair after the failure of a client that held node locks. */
#define DOLPHIN_RECOVER_EVERY 4u /* an operation looks for failed lock holders at every fourth unsuccessful attempt */
static inline bool dolphin_recovery_is_due(const dolphin_op *op) {
    return op->attempt % DOLPHIN_RECOVER_EVERY == DOLPHIN_RECOVER_EVERY - 1;
}
/* Visits the nodes from the root to op->key and takes over the lock of a failed client. Returns 0 or an error. */
int dolphin_recover_path(dolphin_op *op);
/* Takes over the node lock with this lock word if its holder has failed, repairs the node and unlocks it. Returns 1 if
 * it did so, 0 if the holder is alive or another client was faster. */
int dolphin_take_over_lock(dolphin_op *op, uint64_t word, uint64_t lock);

/* scan_range.c: the range of keys that a scan still has to visit. */
typedef struct dolphin_bound {
    size_t length;
    uint8_t bytes[FAR_KEY_MAX + 8];
} dolphin_bound;
typedef struct dolphin_range {
    bool backward; /* the scan lowers `last`; otherwise it raises `first` */
    bool empty;
    dolphin_bound first, last; /* both belong to the range */
} dolphin_range;
void dolphin_range_of_chunk(const far_scan_chunk *scan, dolphin_range *range);
/* Returns the bound of the range where the scan continues: the first one, or the last one of a backward scan. */
far_bytes dolphin_range_cursor(const dolphin_range *range);
/* Moves the cursor beyond an interval of positions, in the direction of the scan. The prefix of the interval is the
 * first `depth` bytes of the cursor. */
void dolphin_range_leave_interval(dolphin_range *range, unsigned depth, unsigned lo, unsigned hi);
/* Moves the cursor beyond this key, in the direction of the scan. */
void dolphin_range_leave_key(dolphin_range *range, far_bytes key);
/* Moves the cursor to the first key with this prefix, or to the last one in a backward scan. The cursor does not have
 * the prefix. Returns false if the cursor has already passed these keys. */
bool dolphin_range_enter_prefix(dolphin_range *range, far_bytes prefix);
/* Returns the position at this depth where the scan ends, among the keys with the same first `depth` bytes as the
 * cursor. */
unsigned dolphin_range_end_position(const dolphin_range *range, unsigned depth);
/* Stores the order words of the bounds in a leaf with this prefix, which contains the cursor. */
void dolphin_range_order_words(const dolphin_range *range, const uint8_t *prefix, unsigned depth, uint64_t *first,
                               uint64_t *last);
bool dolphin_range_contains(const dolphin_range *range, far_bytes key);

/* scan.c: scans over a range of keys. */
/* Returns 0 if the leaf, as READ, contains the current state of op->key; STALE if it does not cover the key or was
 * replaced; FROZEN if it is being replaced. */
int dolphin_classify_leaf(const dolphin_op *op, const dolphin_leaf *leaf);
int dolphin_batch_read_leaf(dolphin_op *op, uint64_t entry, dolphin_leaf *leaf);
int dolphin_scan(far_task *t, far_index *index, far_scan_chunk *scan);

/* leaf_pairs.c: the LIVE pairs of a leaf in the order of their keys. */
typedef struct dolphin_pair {
    uint64_t order; /* order word of the key (layout.h), with ORDER_LONG if the key is in a key block */
    uint64_t slot;
} dolphin_pair;
typedef struct dolphin_pairs {
    const dolphin_leaf *leaf;
    unsigned depth, count;
    bool whole; /* all pairs of the leaf that are in the range are here; otherwise only the first ones */
    dolphin_pair pair[DOLPHIN_SLOTS_MAX];
    far_bytes long_key[DOLPHIN_SLOTS_MAX]; /* by slot: the keys in key blocks */
    uint8_t key[FAR_KEY_MAX + 8];          /* the prefix of the leaf, then space for the suffix of an inline key */
} dolphin_pairs;
/* Stores the pairs of the leaf whose keys are in the range, in the direction of the scan, and READs the key blocks of
 * the leaf. If `most` is 1, only the first pair is stored, or several pairs that begin alike.
 * `range` is NULL if the caller wants all pairs. `hi` is the last position for which the entry of the leaf names it. */
int dolphin_read_pairs(dolphin_op *op, const dolphin_leaf *leaf, const uint8_t *prefix, unsigned hi,
                       const dolphin_range *range, unsigned most, dolphin_pairs *pairs);
static inline bool dolphin_pair_is_long(dolphin_pair pair) {
    return pair.order & DOLPHIN_ORDER_LONG;
}
/* Returns the key of a pair. The string is valid until the next call. */
static inline far_bytes dolphin_pair_key(dolphin_pairs *pairs, unsigned i) {
    dolphin_pair pair = pairs->pair[i];
    if (dolphin_pair_is_long(pair))
        return pairs->long_key[pair.slot];
    uint64_t depth = pairs->depth, suffix = __builtin_bswap64(pair.order << 4);
    memcpy(pairs->key + depth, &suffix, 8);
    return (far_bytes){pairs->key, depth + (pair.order & DOLPHIN_INLINE_MAX)};
}
/* Returns the set of slots (one bit per slot) whose keys another leaf already owns, because a client failed after it
 * had replaced a part of this leaf. The key blocks of these slots must not be READ. */
uint64_t dolphin_moved_slots(const dolphin_leaf *leaf, unsigned hi);
/* Computes the smallest key with this prefix whose position is greater than `hi`, or the first key after the prefix.
 * Returns false if there is no such key. `key` may be the same memory as `prefix`. */
bool dolphin_first_key_beyond(const uint8_t *prefix, unsigned depth, unsigned hi, uint8_t *key, size_t *length);

/* check_suspects.c: objects that `check` found locked or frozen. They may be in use by a live client, so check reads
 * them again later, when it holds no pin. */
/* size of the list of objects from one slice of the traversal, and largest number of problems that are reported in this
 * way */
#define DOLPHIN_RECHECKS_MAX 16u
typedef struct dolphin_recheck {
    uint64_t owner;      /* owner named in the lock word of the object; 0: the object is frozen */
    uint64_t above;      /* entry word of the parent node; 0: the object is the root */
    uint64_t entry;      /* entry of the parent that names the object */
    far_addr entry_addr; /* far address of that entry, in the memory of the parent */
    bool at_root;        /* true if the parent is the root */
    far_addr addr;
    const void *image; /* content of the object when check found it, in scratch memory */
    uint64_t bytes;
} dolphin_recheck;
typedef struct dolphin_recheck_list {
    unsigned count, problem_count;
    dolphin_recheck list[DOLPHIN_RECHECKS_MAX];
} dolphin_recheck_list;
void dolphin_recheck_add(dolphin_recheck_list *all, dolphin_recheck one);
int dolphin_recheck_all(far_task *t, dolphin_recheck_list *all, far_report *report);

/* check.c: traversals that visit all nodes and leaves of the index. */
int dolphin_walk(far_task *t, far_index *index, far_walk *walk);
int dolphin_check(far_task *t, far_index *index, far_report *report);
int dolphin_usage(far_task *t, far_index *index, far_usage *usage);
int dolphin_object_keys(far_task *task, far_index *index, unsigned type, const void *object, uint64_t bytes,
                        far_keys *keys);

/* cache.c: the local cache of inner nodes. */
/* The result of a cache lookup for a key. */
typedef struct dolphin_cache_hit {
    uint64_t node;  /* entry word of the deepest cached node that covers the key */
    unsigned depth; /* depth of the node that `node` names */
    uint64_t entry; /* the entry of this node that owns the position of the key */
} dolphin_cache_hit;
/* Sets *cache to NULL and returns 0 if the handle has no cache budget. */
int dolphin_cache_new(far_index *index, dolphin_cache **cache);
void dolphin_cache_free(dolphin_cache *cache);
size_t dolphin_cache_bytes(far_index *index);
struct far_budget_cache *dolphin_cache_budget(const dolphin_cache *cache);
bool dolphin_cache_probe(dolphin_cache *cache, far_bytes key, uint64_t epoch, dolphin_cache_hit *hit);
/* Looks up the key, and stores up to `most` entries of the deepest cached node: first the one that owns the position of
 * the key, then those that follow it in the order of their lower bounds, or that precede it with `backward`. Returns
 * their number; 0 if the cache does not contain the key. */
unsigned dolphin_cache_entries_from(dolphin_cache *cache, far_bytes key, uint64_t epoch, bool backward, unsigned most,
                                    uint64_t entries[]);
void dolphin_cache_insert(dolphin_cache *cache, far_bytes key, uint64_t epoch, const dolphin_node *node);
void dolphin_cache_drop(dolphin_cache *cache, far_bytes key, uint64_t word);

/* cache_hints.c: slot hints, which remember the slot of a key in its leaf. */
/* Sets *hints to NULL and returns 0 if the handle has no cache budget. */
int dolphin_slot_hints_new(far_index *index, dolphin_slot_hints **hints);
void dolphin_slot_hints_free(dolphin_slot_hints *hints);
/* Returns the remembered slot of op->key in the leaf with this entry word, or -1. */
int dolphin_slot_hint_get(const dolphin_op *op, uint64_t entry);
/* Returns true if the slot hint recorded that this leaf is in uncounted mode, in which hot updates do not change the
 * leaf's number of writers. */
bool dolphin_slot_hint_is_uncounted(const dolphin_op *op, uint64_t entry);
void dolphin_slot_hint_set_uncounted(const dolphin_op *op, uint64_t entry, unsigned slot);
void dolphin_slot_hint_set(const dolphin_op *op, uint64_t entry, unsigned slot);
/* hot_updates=on: returns the remembered value word of that slot. Returns 0 if there is none, or if it was observed so
 * long ago that its value block may have been reused. */
uint64_t dolphin_slot_hint_get_value(const dolphin_op *op, uint64_t entry, unsigned slot);
void dolphin_slot_hint_set_value(const dolphin_op *op, uint64_t entry, unsigned slot, uint64_t vword);

/* baseline.c: sync=exclusive. A lock per leaf is held around every write, as in the indexes that the paper compares
 * with. Returns 0 if the leaf is locked, or DOLPHIN_RETRY if the caller must locate its key again. */
int dolphin_lock_leaf(dolphin_op *op, uint64_t entry);
void dolphin_batch_unlock_leaf(dolphin_op *op, uint64_t entry);

#endif
