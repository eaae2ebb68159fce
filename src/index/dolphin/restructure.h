/* A structure change under the lock of one node. The client first builds the new nodes and leaves where no other client
 * can find them, and then changes entries of the locked node by CAS. restructure.c, restructure_leaf.c,
 * restructure_node.c, restructure_merge.c and recover.c share this header. */
#ifndef FAR_INDEX_DOLPHIN_RESTRUCTURE_H
#define FAR_INDEX_DOLPHIN_RESTRUCTURE_H

#include "index/dolphin/dolphin.h"

#define DOLPHIN_ADDS_MAX 2u

/* A node or leaf that this change has allocated. */
typedef struct dolphin_new_object {
    far_addr addr;    /* address of the allocated memory; 0: nothing was allocated */
    uint64_t control; /* control word that the previous incarnation left in this memory */
    uint64_t *image;  /* content to write; the control word is not written but changed by FAA or CAS */
    unsigned bytes;
    bool leaf;
    bool linked; /* the object may be visible to other clients: it must not be freed */
} dolphin_new_object;

typedef struct dolphin_change {
    dolphin_op *op;
    dolphin_node node; /* the node with the entries to change; this client holds its lock */
    dolphin_new_object leaf[2], inner;
    uint64_t kword, vword; /* key word and value word of the pair that the change inserts; 0: none, or already used */
    bool item_linked;      /* the blocks that `kword` and `vword` name may be visible to other clients */
    /* Set if a new object was written to another memory node than the one that contains the entries. Verbs to different
     * memory nodes have no order, so the client must wait before it changes the entries. */
    bool entries_must_wait;

    /* The entries to change: first the added entries are stored, in descending order of their lower bounds, and then
     * the entry with the index replaced_index is replaced. */
    uint64_t added[DOLPHIN_ADDS_MAX];
    unsigned added_count;
    unsigned replaced_index;
    uint64_t replacement;
} dolphin_change;

/* Allocate memory for a leaf or an inner node, on the given memory node if possible, and append the READ of its control
 * word. dolphin_alloc_inner also initialises the image with room for this number of entries. */
int dolphin_alloc_leaf(dolphin_change *c, unsigned which, unsigned node);
int dolphin_alloc_inner(dolphin_change *c, const uint8_t *prefix, unsigned depth, unsigned entries,
                        dolphin_node *image);
/* Builds the key word and the value word for op->key in a leaf of this depth, and appends the WRITEs of the key block
 * and value block that they need. */
int dolphin_build_item(dolphin_change *c, far_bytes value, unsigned depth, unsigned node);
/* Frees all objects of the change, with key blocks and value blocks, that were not linked. All verbs that use them must
 * have completed. */
void dolphin_abandon_change(dolphin_change *c);
/* Returns the entry word for a new object. The READ of its control word must have completed. */
uint64_t dolphin_new_object_entry(const dolphin_new_object *made, unsigned lb);
/* Appends the verbs that write the new objects and make them LIVE. Returns false if one of the objects is on another
 * memory node than the locked node; in that case the caller must wait before it changes entries. */
bool dolphin_batch_activations(dolphin_change *c);
/* Activates the new objects, then changes the entries, then unlocks the node if `unlock`. */
int dolphin_publish_change(dolphin_change *c, bool unlock);
/* Locks the node with this entry word, in one batch with the verbs appended so far. LOCKED: `entry` is still the entry
 * for op->key, and c->replaced_index is its index. BUSY or UNLINKED: the change was abandoned. */
int dolphin_lock_for_change(dolphin_change *c, uint64_t word, uint64_t entry);
/* Unlocks the node and abandons the change. Returns `result`, or the error of unlocking. */
int dolphin_end_change(dolphin_change *c, int result);

/* The final content of a leaf that is being replaced, and the place of the leaf in the tree. */
typedef struct dolphin_content {
    dolphin_leaf leaf;
    dolphin_item items[2 * DOLPHIN_SLOTS_MAX]; /* array with room for the pairs of two leaves, which a merge needs */
    unsigned count;
    int new_item;            /* index of the item that this change inserts; -1: none */
    uint64_t replaced_value; /* value word that a put or update replaces, or 0 */
    /* one bit per slot: set if a failed client has already linked the key of this slot in another leaf */
    uint64_t moved_slots;
    uint16_t position[DOLPHIN_SLOTS_MAX]; /* position of the key of each slot */
    uint8_t prefix[FAR_KEY_MAX];
    /* depth of the leaf; first and last position for which the entries of its node name the leaf */
    unsigned depth, lo, hi;
} dolphin_content;

/* restructure_leaf.c. Sets the prefix, depth and interval of the leaf that entry `at` of the locked node names. */
void dolphin_set_leaf_bounds(const dolphin_node *node, unsigned at, dolphin_content *it);
/* Freezes the leaf (unless `freeze` is false because the leaf is frozen already), waits until no writer is inside, and
 * READs its final content. If *waited is set on return, the operation has a new pin and the objects of the change were
 * freed. */
int dolphin_freeze_and_drain(dolphin_change *c, uint64_t entry, bool freeze, dolphin_leaf *leaf, bool *waited);
/* Appends the LIVE pairs of the leaf to the items. */
int dolphin_read_content(dolphin_op *op, dolphin_content *it);
/* Retires the replaced leaf and the key blocks and value blocks that only this leaf named. `depth` is the depth of the
 * new leaves. */
void dolphin_retire_content(dolphin_op *op, const dolphin_content *it, unsigned depth);

/* restructure_node.c: replacing a node by a copy. In these functions c.node is the parent of that node and must be
 * locked. */
/* Stores the entries of the node in ascending order, with adjacent NULL intervals joined. Returns their number. */
unsigned dolphin_collect_entries(const dolphin_node *node, uint64_t *entries);
int dolphin_build_copy(dolphin_change *c, const dolphin_node *old, const uint64_t *entries, unsigned count);
int dolphin_install_copy(dolphin_change *c, const dolphin_node *old, unsigned at);
/* Locks the parent and then the node. Returns 1 and sets *at to the index of the parent's entry for the node; or 0 if
 * the caller must locate its key again. */
int dolphin_lock_node_and_parent(dolphin_change *c, uint64_t word, dolphin_node *old, unsigned *at);
int dolphin_unlock_node_and_parent(dolphin_change *c, uint64_t word, int result);

/* Plans the entries that replace an entry for the interval [lo, hi] by the new inner node at one position of this
 * interval, with NULL intervals on both sides. */
void dolphin_plan_inner_entries(dolphin_change *c, unsigned position, unsigned lo, unsigned hi);

#endif
