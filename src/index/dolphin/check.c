/* Traversals of the whole index in key order: the mark phase of memory collection (dolphin_walk), which also recovers
 * locks of failed clients; the search for damage (dolphin_check); and counting keys (dolphin_usage). A traversal
 * consists of slices. Each slice has its own pin, begins at the root, and descends to the key where the last slice
 * ended. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch/epoch.h"

#include <stdlib.h>

#define LEVELS_MAX 260u
#define BATCH      16u
/* After this many inconsistent reads without progress, the cause is damage and not a concurrent change. */
#define ATTEMPTS_MAX 200u

enum { SLICE_DONE = 1, RETRY_SLICE = 2 };

/* A traversal visits all nodes and leaves in the order of their keys. */
typedef struct traversal traversal;
struct traversal {
    dolphin_op op;

    /* The caller's functions, which are called for each object that the traversal visits. */
    void *ctx; /* the far_walk, far_report or far_usage of the caller */
    int (*visit_node)(traversal *t, const dolphin_node *node);
    int (*visit_leaf)(traversal *t, const dolphin_leaf *leaf);
    /* called for a locked node; returns 1 if the node was repaired, so that a new slice must begin */
    int (*recover)(traversal *t, const dolphin_node *node);
    far_report *report;

    /* State of the current slice, which is the part of the traversal under one pin. */
    dolphin_node *stack; /* the nodes from the root to the current node */
    unsigned levels;     /* number of nodes on the stack */
    unsigned leaves_left;
    unsigned failed_attempts;      /* number of inconsistent reads since the cursor moved last */
    dolphin_recheck_list rechecks; /* objects that check must examine again after this slice */

    /* State of the whole traversal. The cursor is the smallest key that was not visited yet. */
    bool finished;
    size_t length;
    uint8_t cursor[FAR_KEY_MAX + 8], next[FAR_KEY_MAX + 8];
};


static void move_cursor_beyond(traversal *t, const dolphin_node *node, unsigned hi) {
    size_t length;
    t->failed_attempts = 0;
    if (!dolphin_first_key_beyond(dolphin_node_prefix(node), node->depth, hi, t->next, &length)) {
        t->finished = true;
        return;
    }
    memcpy(t->cursor, t->next, length);
    t->length = length;
}


static far_bytes current_cursor(const traversal *t) {
    return (far_bytes){t->cursor, t->length};
}


/* Called when READ data contradict each other, probably because of a concurrent change. Begins a new slice, or fails
 * after too many tries. */
static int retry_inconsistent(traversal *t, far_addr addr, const char *what) {
    if (++t->failed_attempts < ATTEMPTS_MAX)
        return RETRY_SLICE;
    return dolphin_fail_corrupt(t->op.index, addr, what);
}


/* Returns true if this node may be the child that its entry in `above` names: it must be deeper, its prefix must begin
 * with the prefix of the parent, and the next byte must match the position of the entry. */
static bool node_fits_below(const dolphin_node *above, const dolphin_node *node) {
    const uint8_t *prefix = dolphin_node_prefix(node);
    return node->depth > above->depth && memcmp(prefix, dolphin_node_prefix(above), above->depth) == 0 &&
           prefix[above->depth] + 1u == dolphin_entry_lb(node->word);
}


/* READs a node and pushes it onto the stack. Calls `recover` if the node is locked, and `visit_node` if this is its
 * first visit. */
static int descend_to_node(traversal *t, uint64_t word) {
    dolphin_node *node = &t->stack[t->levels];
    if (t->levels == LEVELS_MAX)
        return dolphin_fail_corrupt(t->op.index, dolphin_entry_addr(word), "node");
    int err = dolphin_batch_read_node(&t->op, word, node);
    if (err < 0 || (err = dolphin_wait(&t->op)) < 0 || (err = dolphin_validate_node(&t->op, node, true)) < 0)
        return err;
    if (err == 0)
        return retry_inconsistent(t, dolphin_entry_addr(word), "node");
    if (t->levels && !node_fits_below(&t->stack[t->levels - 1], node))
        return dolphin_fail_corrupt(t->op.index, dolphin_entry_addr(word), "node");
    if (t->levels && dolphin_lock_owner(node->image[0]) && !(node->image[0] & DOLPHIN_FROZEN) && t->recover &&
        (err = t->recover(t, node)) != 0)
        return err < 0 ? err : RETRY_SLICE;
    far_bytes prefix = {dolphin_node_prefix(node), node->depth};
    t->levels++;
    /* If this condition is false, an earlier slice has already visited this node. */
    bool first = t->levels > 1 && far_bytes_compare(current_cursor(t), prefix) <= 0;
    return first && t->visit_node ? t->visit_node(t, node) : 0;
}


/* Returns the position in the node where the traversal continues, or -1 if the cursor is beyond the node. */
static int position_to_resume(const traversal *t, const dolphin_node *node) {
    far_bytes cursor = current_cursor(t);
    if (dolphin_node_has_prefix_of(node, cursor))
        return (int)dolphin_position(cursor, node->depth);
    return far_bytes_compare(cursor, (far_bytes){dolphin_node_prefix(node), node->depth}) < 0 ? 0 : -1;
}


/* Returns true if the header of the leaf agrees with its entry. A frozen leaf may cover more positions than its entry,
 * because another client is replacing the upper part of the leaf. */
static bool leaf_matches_entry(const traversal *t, const dolphin_node *node, const dolphin_leaf *leaf, unsigned hi) {
    uint64_t ident = dolphin_ident(leaf), spear = dolphin_spear(leaf);
    if (!dolphin_control_matches(spear, leaf->entry) || !dolphin_leaf_ident_is_sound(ident, t->op.st->slots))
        return false;
    if (node->depth == 0)
        return dolphin_ident_depth(ident) == 1 && dolphin_ident_lo(ident) == 0 &&
               dolphin_ident_hi(ident) == DOLPHIN_LAST_POSITION;
    return dolphin_ident_depth(ident) == node->depth && dolphin_ident_lo(ident) == dolphin_entry_lb(leaf->entry) &&
           dolphin_ident_hi(ident) >= hi && (dolphin_ident_hi(ident) == hi || (spear & DOLPHIN_FROZEN)) &&
           leaf->image[2] == node->image[2];
}


/* READs the leaves from this position on, several in one batch, and visits them. */
static int visit_leaves(traversal *t, const dolphin_node *node, unsigned position) {
    dolphin_op *op = &t->op;
    dolphin_leaf leaves[BATCH];
    unsigned count = 0, most = t->leaves_left < BATCH ? t->leaves_left : BATCH;
    while (count < most && position < DOLPHIN_POSITIONS) {
        uint64_t entry = node->entries[dolphin_find_entry(node, position)];
        if (dolphin_entry_kind(entry) != DOLPHIN_KIND_LEAF)
            break;
        int err = dolphin_batch_read_leaf(op, entry, &leaves[count]);
        if (err < 0) {
            far_discard_batch(op->t);
            return err;
        }
        count++;
        position = dolphin_next_lb(node, dolphin_entry_lb(entry));
    }
    int err = dolphin_wait(op);
    for (unsigned i = 0; i < count && err == 0; i++) {
        unsigned hi = dolphin_next_lb(node, dolphin_entry_lb(leaves[i].entry)) - 1;
        if (!leaf_matches_entry(t, node, &leaves[i], hi))
            return retry_inconsistent(t, leaves[i].addr, "leaf");
        if ((err = t->visit_leaf(t, &leaves[i])) < 0)
            return err;
        move_cursor_beyond(t, node, hi);
        if (--t->leaves_left == 0)
            return SLICE_DONE;
    }
    return err;
}


/* Returns true if a NULL interval does not end where the next entry begins. It may overlap the next entry while another
 * client holds the lock and is splitting the interval. */
static bool null_has_wrong_end(const dolphin_node *node, uint64_t entry, unsigned hi) {
    if (dolphin_entry_kind(entry) != DOLPHIN_KIND_NULL || dolphin_entry_hi(entry) == hi)
        return false;
    return dolphin_entry_hi(entry) < hi || !dolphin_lock_owner(node->image[0]);
}


/* Advances by one step from the node on top of the stack: to a child node, over leaves, over a NULL interval, or back
 * to the parent. */
static int advance_one_step(traversal *t) {
    const dolphin_node *node = &t->stack[t->levels - 1];
    int position = position_to_resume(t, node);
    if (position < 0) {
        if (--t->levels == 0)
            t->finished = true;
        else { /* the cursor has passed the last key below this node */
            const dolphin_node *above = &t->stack[t->levels - 1];
            if (position_to_resume(t, above) == (int)dolphin_entry_lb(node->word))
                move_cursor_beyond(t, above, dolphin_entry_lb(node->word));
        }
        return 0;
    }
    int at = dolphin_find_entry(node, (unsigned)position);
    uint64_t entry = at < 0 ? 0 : node->entries[at];
    unsigned next = dolphin_next_lb(node, dolphin_entry_lb(entry));
    if (!dolphin_entry_may_cover(entry, (unsigned)position) || null_has_wrong_end(node, entry, next - 1))
        return retry_inconsistent(t, dolphin_entry_addr(node->word), "node");
    if (dolphin_entry_is_node(entry))
        return descend_to_node(t, entry);
    if (dolphin_entry_kind(entry) == DOLPHIN_KIND_LEAF)
        return visit_leaves(t, node, (unsigned)position);
    move_cursor_beyond(t, node, next - 1);
    return 0;
}


static int traverse_slice(traversal *t) {
    far_scratch_mark here = far_scratch_here(t->op.t);
    t->leaves_left = t->op.st->walk_slice;
    t->levels = 0;
    int err = far_pin_take(t->op.t);
    if (err == 0 && !(t->stack = far_scratch(t->op.t, LEVELS_MAX * sizeof(*t->stack))))
        err = far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    if (err == 0)
        err = descend_to_node(t, t->op.st->root);
    while (err == 0 && !t->finished)
        err = advance_one_step(t);
    if (err < 0)
        far_discard_batch(t->op.t);
    far_pin_drop(t->op.t);
    int found = t->rechecks.count && err >= 0 ? dolphin_recheck_all(t->op.t, &t->rechecks, t->ctx) : 0;
    err = found < 0 ? found : err;
    far_scratch_back(t->op.t, here);
    if (err == RETRY_SLICE)
        far_back_off(t->op.t, t->failed_attempts < 6 ? t->failed_attempts : 6);
    return err < 0 ? err : 0;
}


static int run_traversal(traversal *t, far_task *task, far_index *index, void *ctx) {
    int err = 0;
    if (!t)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    dolphin_begin_op(&t->op, task, index, (far_bytes){t->cursor, 1});
    t->op.reads_whole_root = true;
    t->ctx = ctx;
    t->length = 1;
    while (err == 0 && !t->finished)
        err = traverse_slice(t);
    free(t);
    return err;
}


/* Returns the last position for which the entries of the node name the leaf. */
static unsigned last_position_of_leaf(const dolphin_node *node, const dolphin_leaf *leaf) {
    return node->depth ? dolphin_next_lb(node, dolphin_entry_lb(leaf->entry)) - 1 : DOLPHIN_LAST_POSITION;
}


/* dolphin_walk, the mark phase of memory collection. */

static int report_node(traversal *t, const dolphin_node *node) {
    return far_walk_object(t->ctx, t->op.index, DOLPHIN_TYPE_NODE, dolphin_entry_addr(node->word),
                           dolphin_class_bytes(node->class));
}


/* Reports the key blocks and value blocks of all slots to the mark phase. A DEAD slot keeps them until the leaf is
 * replaced. An EMPTY slot may have a value block, because with insert=ticket the value is written before the key; the
 * leaf owns that value block from then on. */
static int report_leaf(traversal *t, const dolphin_leaf *leaf) {
    dolphin_op *op = &t->op;
    const uint64_t *kwords = dolphin_kwords(leaf), *vwords = dolphin_vwords(op, leaf);
    int err = far_walk_object(t->ctx, op->index, DOLPHIN_TYPE_LEAF, leaf->addr, op->st->leaf_bytes);
    uint64_t lock = leaf->image[DOLPHIN_LEAF_LOCK / 8];
    if (err >= 0 && lock)
        err = far_locks_release_failed(op->t, leaf->addr + DOLPHIN_LEAF_LOCK, &lock, 1);
    for (unsigned i = 0; i < op->st->slots && err >= 0; i++) {
        if (!dolphin_kword_is_sound(kwords[i]) || (!op->st->raw_values && !dolphin_value_is_sound(vwords[i])))
            return dolphin_fail_corrupt(op->index, leaf->addr, "leaf");
        if (dolphin_kword_is_block(kwords[i]))
            err = far_walk_object(t->ctx, op->index, DOLPHIN_TYPE_KEY, dolphin_kword_block(kwords[i]),
                                  dolphin_kword_block_bytes(kwords[i]));
        if (err >= 0 && !op->st->raw_values && dolphin_value_is_block(vwords[i]))
            err = far_walk_object(t->ctx, op->index, DOLPHIN_TYPE_VALUE, dolphin_value_block(vwords[i]),
                                  dolphin_value_block_bytes(vwords[i]));
    }
    return err;
}


static int recover_locked_node(traversal *t, const dolphin_node *node) {
    return dolphin_take_over_lock(&t->op, node->word, node->image[0]);
}


/* Takes over the root locks of failed clients. There is one lock per first byte. */
static int recover_root_locks(far_task *task, far_index *index) {
    const dolphin_state *st = dolphin_state_of(index);
    far_scratch_mark here = far_scratch_here(task);
    uint64_t *locks = far_scratch(task, 256 * sizeof(*locks));
    int err = locks ? far_pin_take(task) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    if (err == 0) {
        far_read(task, dolphin_entry_addr(st->root) + DOLPHIN_ROOT_LOCKS, locks, 256 * sizeof(*locks));
        err = far_wait(task);
    }
    for (unsigned i = 0; i < 256 && err >= 0; i++) {
        uint8_t byte = (uint8_t)i;
        dolphin_op op;
        dolphin_begin_op(&op, task, index, (far_bytes){&byte, 1});
        if (dolphin_lock_owner(locks[i]))
            err = dolphin_take_over_lock(&op, st->root, locks[i]);
    }
    far_pin_drop(task);
    far_scratch_back(task, here);
    return err < 0 ? err : 0;
}


int dolphin_walk(far_task *task, far_index *index, far_walk *walk) {
    const dolphin_state *st = dolphin_state_of(index);
    traversal *t = calloc(1, sizeof(*t));
    int err = far_walk_object(walk, index, DOLPHIN_TYPE_ROOT, index->descriptor, sizeof(dolphin_root));
    if (err >= 0)
        err = far_walk_object(walk, index, DOLPHIN_TYPE_ROOT, dolphin_entry_addr(st->root), DOLPHIN_ROOT_BYTES);
    if (err >= 0)
        err = recover_root_locks(task, index);
    if (err < 0) {
        free(t);
        return err;
    }
    if (t) {
        t->visit_node = report_node;
        t->visit_leaf = report_leaf;
        t->recover = recover_locked_node;
    }
    return run_traversal(t, task, index, walk);
}


/* dolphin_check, the search for damage. */

/* Notes a locked or frozen object for a later check. The lock may name a client that no longer works on the object,
 * which is damage. This can only be decided later, when the traversal holds no pin. */
static void note_for_recheck(traversal *t, const dolphin_node *above, uint64_t entry, uint64_t owner,
                             const uint64_t *image, uint64_t bytes) {
    dolphin_recheck one = {.above = above->word,
                           .entry = entry,
                           .at_root = above->depth == 0,
                           .addr = dolphin_entry_addr(entry),
                           .image = image,
                           .bytes = bytes};
    for (unsigned i = 0; i < above->capacity; i++)
        if (above->entries[i] == entry)
            one.entry_addr = dolphin_entry_word_addr(above, i);
    if (image[0] & DOLPHIN_FROZEN)
        dolphin_recheck_add(&t->rechecks, one);
    one.owner = owner;
    if (owner)
        dolphin_recheck_add(&t->rechecks, one);
}


static int check_node(traversal *t, const dolphin_node *node) {
    unsigned long long addr = dolphin_entry_addr(node->word);
    bool seen[DOLPHIN_POSITIONS] = {false};
    for (unsigned i = 0; i < node->capacity; i++) {
        unsigned lb = dolphin_entry_lb(node->entries[i]);
        if (node->entries[i] == 0)
            continue;
        if (seen[lb])
            far_report_problem(t->ctx, "node at %#llx: it has two entries for position %u", addr, lb);
        seen[lb] = true;
    }
    if (!seen[0])
        far_report_problem(t->ctx, "node at %#llx: it has no entry for position 0", addr);
    unsigned bytes = dolphin_class_bytes(node->class);
    note_for_recheck(t, &t->stack[t->levels - 2], node->word, dolphin_lock_owner(node->image[0]), node->image, bytes);
    if (!dolphin_lock_is_sound(node->image[0], node->word))
        far_report_problem(t->ctx, "node at %#llx: its lock word is damaged", addr);
    if (node->image[2] != dolphin_prefix_word(t->op.st, dolphin_node_prefix(node), node->depth))
        far_report_problem(t->ctx, "node at %#llx: its prefix word does not match its prefix", addr);
    return 0;
}


/* Returns the value word of a pair as it was READ with its leaf. */
static uint64_t vword_of_pair(const dolphin_op *op, const dolphin_pairs *pairs, unsigned i) {
    return dolphin_vwords(op, pairs->leaf)[pairs->pair[i].slot];
}


/* Decodes the values as gets and scans do, and reports the errors. */
static int check_values(traversal *t, dolphin_pairs *pairs) {
    dolphin_op *op = &t->op;
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    far_bytes value;
    int err = 0;
    for (unsigned i = 0; i < pairs->count && err >= 0; i++)
        err = dolphin_batch_read_value(op, vword_of_pair(op, pairs, i), &blocks[i]);
    if (err < 0) {
        far_discard_batch(op->t);
        return err;
    }
    err = dolphin_wait(op);
    for (unsigned i = 0; i < pairs->count && err == 0; i++) {
        uint64_t vword = vword_of_pair(op, pairs, i);
        if (vword && dolphin_decode_value(op, dolphin_pair_key(pairs, i), vword, blocks[i], &value) < 0)
            far_report_problem(t->ctx, "%s", far_last_error());
    }
    return err;
}


/* Examines LIVE slots with a value word that was READ as 0. An insert writes the value before the key becomes LIVE, and
 * a delete clears it after the key is DEAD. The only exception is a leaf that is being narrowed (dolphin_narrow_leaf),
 * and such a leaf is frozen until its moved keys are removed. So if the key word is LIVE before and after a READ of the
 * value word as 0, and the leaf is not frozen, the value was lost. A put of this key would wait for ever, because the
 * slot looks as if a delete were in progress. */
static int check_missing_values(traversal *t, const dolphin_pairs *pairs) {
    far_task *task = t->op.t;
    const dolphin_leaf *leaf = pairs->leaf;
    uint64_t before, value, spear, after;
    int err = 0;
    for (unsigned i = 0; i < pairs->count && err == 0; i++) {
        unsigned slot = (unsigned)pairs->pair[i].slot;
        far_addr key_at = dolphin_kword_addr(leaf->addr, slot);
        if (vword_of_pair(&t->op, pairs, i))
            continue;
        far_point(task, "dolphin:reread_missing_value");
        far_read(task, key_at, &before, 8);
        far_read(task, dolphin_vword_addr(leaf->addr, t->op.st->slots, slot), &value, 8);
        far_read(task, leaf->addr, &spear, 8);
        far_read(task, key_at, &after, 8);
        err = dolphin_wait(&t->op);
        if (err == 0 && value == 0 && before == after && dolphin_slot_state_of(after) == DOLPHIN_SLOT_LIVE &&
            !(spear & DOLPHIN_FROZEN))
            far_report_problem(t->ctx, "leaf at %#llx: the key of slot %u has no value", (unsigned long long)leaf->addr,
                               slot);
    }
    return err;
}


/* Reports the keys that do not belong to the leaf, or do not match their key words. */
static void check_keys(traversal *t, dolphin_pairs *pairs) {
    const dolphin_leaf *leaf = pairs->leaf;
    uint64_t ident = dolphin_ident(leaf);
    unsigned long long addr = leaf->addr;
    uint8_t prefix[FAR_KEY_MAX];
    memcpy(prefix, pairs->key, pairs->depth);
    for (unsigned i = 0; i < pairs->count; i++) {
        far_bytes key = dolphin_pair_key(pairs, i);
        unsigned slot = (unsigned)pairs->pair[i].slot, position = dolphin_position(key, pairs->depth);
        if (key.length < pairs->depth || memcmp(key.data, prefix, pairs->depth) != 0 ||
            position < dolphin_ident_lo(ident) || position > dolphin_ident_hi(ident))
            far_report_problem(t->ctx, "leaf at %#llx: the key of slot %u does not belong to this leaf", addr, slot);
        if (!dolphin_kword_may_be(t->op.st, dolphin_kwords(leaf)[slot], key, pairs->depth))
            far_report_problem(t->ctx, "leaf at %#llx: the key word of slot %u does not match its key", addr, slot);
        if (key.length > FAR_KEY_MAX)
            far_report_problem(t->ctx, "leaf at %#llx: it has a key of %zu bytes, which is too long", addr, key.length);
    }
}


static int check_leaf(traversal *t, const dolphin_leaf *leaf) {
    dolphin_op *op = &t->op;
    unsigned long long addr = leaf->addr;
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf));
    const uint64_t *kwords = dolphin_kwords(leaf), *vwords = dolphin_vwords(op, leaf);
    dolphin_pairs pairs;
    for (unsigned i = 0; i < op->st->slots; i++) {
        if (!dolphin_kword_is_sound(kwords[i])) {
            far_report_problem(t->ctx, "leaf at %#llx: the key word of slot %u is damaged", addr, i);
            return 0;
        }
        if (!op->st->raw_values && !dolphin_value_is_sound(vwords[i]))
            far_report_problem(t->ctx, "leaf at %#llx: the value word of slot %u is damaged", addr, i);
    }
    uint8_t prefix[FAR_KEY_MAX];
    const dolphin_node *node = &t->stack[t->levels - 1];
    note_for_recheck(t, node, leaf->entry, leaf->image[DOLPHIN_LEAF_LOCK / 8] & FAR_OWNER_MASK, leaf->image,
                     op->st->leaf_bytes);
    memcpy(prefix, dolphin_node_prefix(node), node->depth);
    if (node->depth == 0)
        prefix[0] = (uint8_t)(dolphin_entry_lb(leaf->entry) - 1);
    if (leaf->image[2] != dolphin_prefix_word(op->st, prefix, depth))
        far_report_problem(t->ctx, "leaf at %#llx: its prefix word does not match the prefix of its node", addr);
    int err = dolphin_read_pairs(op, leaf, prefix, last_position_of_leaf(node, leaf), NULL, 0, &pairs);
    if (err < 0)
        return err;
    check_keys(t, &pairs);
    if (op->st->raw_values)
        return 0;
    err = check_values(t, &pairs);
    return err < 0 ? err : check_missing_values(t, &pairs);
}


/* Checks that the root has one entry for each position, in order, and one lock word for each byte. No operation moves
 * these entries or lock words. */
static int check_root(far_task *task, far_index *index, dolphin_recheck_list *rechecks, far_report *report) {
    uint64_t root = dolphin_state_of(index)->root, *image = far_scratch(task, DOLPHIN_ROOT_BYTES);
    unsigned long long addr = dolphin_entry_addr(root);
    int err = image ? far_pin_take(task) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a check");
    if (err < 0)
        return err;
    far_read(task, addr, image, DOLPHIN_ROOT_BYTES);
    err = far_wait(task);
    far_pin_drop(task);
    for (unsigned i = 0; i < DOLPHIN_POSITIONS && err == 0; i++) {
        uint64_t entry = image[DOLPHIN_NODE_HEADER / 8 + i];
        if (!dolphin_entry_is_sound(entry) || !dolphin_entry_may_cover(entry, i) || dolphin_entry_lb(entry) != i)
            far_report_problem(report, "root at %#llx: the entry of position %u is damaged", addr, i);
    }
    for (unsigned i = 0; i < 256 && err == 0; i++) {
        uint64_t lock = image[DOLPHIN_ROOT_LOCKS / 8 + i];
        if (!dolphin_lock_is_sound(lock, root) || (lock & DOLPHIN_FROZEN))
            far_report_problem(report, "root at %#llx: the lock word of byte %u is damaged", addr, i);
        if (dolphin_lock_owner(lock))
            dolphin_recheck_add(rechecks, (dolphin_recheck){.owner = dolphin_lock_owner(lock),
                                                            .addr = addr,
                                                            .image = image,
                                                            .bytes = DOLPHIN_ROOT_BYTES});
    }
    return err < 0 ? err : dolphin_recheck_all(task, rechecks, report);
}


int dolphin_check(far_task *task, far_index *index, far_report *report) {
    far_scratch_mark here = far_scratch_here(task);
    traversal *t = calloc(1, sizeof(*t));
    int err = t ? check_root(task, index, &t->rechecks, report) : 0;
    far_scratch_back(task, here);
    if (err < 0) {
        free(t);
        return err;
    }
    if (t) {
        t->visit_node = check_node;
        t->visit_leaf = check_leaf;
    }
    err = run_traversal(t, task, index, report);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(report, "%s", far_last_error());
        return 0;
    }
    return err;
}


/* dolphin_object_keys, for a salvage. A leaf does not contain the prefix of its keys. Therefore the keys of a leaf are
 * given together with the node that names the leaf. Keys in key blocks are whole. */

/* READs a leaf and gives the keys that are stored in its key words. */
static int give_leaf_keys(far_task *task, far_index *index, uint64_t entry, const uint8_t *prefix, unsigned depth,
                          far_keys *keys) {
    dolphin_op op;
    dolphin_leaf leaf;
    uint8_t key[FAR_KEY_MAX + DOLPHIN_INLINE_MAX];
    dolphin_begin_op(&op, task, index, (far_bytes){prefix, depth});
    if (!far_task_reaches(task, dolphin_entry_addr(entry), op.st->leaf_bytes))
        return 0;
    int err = dolphin_batch_read_leaf(&op, entry, &leaf);
    if (err < 0)
        return err;
    far_mark(task, FAR_VERB_SYSTEM);
    if ((err = dolphin_wait(&op)) < 0)
        return err;
    memcpy(key, prefix, depth);
    for (unsigned i = 0; i < op.st->slots && err >= 0; i++) {
        uint64_t kword = dolphin_kwords(&leaf)[i];
        if (dolphin_slot_state_of(kword) != DOLPHIN_SLOT_LIVE || dolphin_kword_is_block(kword))
            continue;
        dolphin_inline_bytes(kword, key + depth);
        err = far_keys_give(keys, (far_bytes){key, depth + dolphin_kword_length(kword)});
    }
    return err;
}


static int give_keys_below_node(far_task *task, far_index *index, const uint64_t *image, uint64_t bytes,
                                far_keys *keys) {
    unsigned depth = dolphin_ident_depth(image[1]), leaf_depth = dolphin_leaf_depth(depth);
    uint64_t at = DOLPHIN_NODE_HEADER + dolphin_stored_prefix_bytes(depth);
    uint8_t prefix[FAR_KEY_MAX + 1];
    int err = 0;
    if (image[1] >> 40 != DOLPHIN_NODE_MAGIC || depth > FAR_KEY_MAX || at > bytes)
        return 0;
    memcpy(prefix, image + (depth > DOLPHIN_INLINE_PREFIX_MAX ? 3 : 2), depth);
    for (; at + 8 <= bytes && err >= 0; at += 8) {
        uint64_t entry = image[at / 8];
        if (dolphin_entry_kind(entry) != DOLPHIN_KIND_LEAF || !dolphin_entry_is_sound(entry))
            continue;
        if (depth == 0)
            prefix[0] = (uint8_t)(dolphin_entry_lb(entry) - 1);
        far_scratch_mark here = far_scratch_here(task);
        err = give_leaf_keys(task, index, entry, prefix, leaf_depth, keys);
        far_scratch_back(task, here);
    }
    return err;
}


int dolphin_object_keys(far_task *task, far_index *index, unsigned type, const void *object, uint64_t bytes,
                        far_keys *keys) {
    uint16_t length;
    if ((type == DOLPHIN_TYPE_NODE || type == DOLPHIN_TYPE_ROOT) && bytes >= DOLPHIN_NODE_HEADER)
        return give_keys_below_node(task, index, object, bytes, keys);
    if (type != DOLPHIN_TYPE_KEY)
        return 0;
    memcpy(&length, object, sizeof(length));
    if (length == 0 || sizeof(length) + length > bytes)
        return 0;
    return far_keys_give(keys, (far_bytes){(const char *)object + sizeof(length), length});
}


/* dolphin_usage, which counts keys and bytes. */

static int count_leaf(traversal *t, const dolphin_leaf *leaf) {
    dolphin_op *op = &t->op;
    far_usage *usage = t->ctx;
    const dolphin_node *node = &t->stack[t->levels - 1];
    dolphin_pairs pairs;
    uint64_t lengths[DOLPHIN_SLOTS_MAX];
    uint8_t prefix[FAR_KEY_MAX] = {0};
    memcpy(prefix, dolphin_node_prefix(node), node->depth);
    int err = dolphin_read_pairs(op, leaf, prefix, last_position_of_leaf(node, leaf), NULL, 0, &pairs);
    if (err < 0)
        return err;
    for (unsigned i = 0; i < pairs.count; i++) {
        uint64_t vword = vword_of_pair(op, &pairs, i);
        lengths[i] = op->st->raw_values                        ? 8
                     : vword && !dolphin_value_is_block(vword) ? dolphin_value_inline_bytes(vword)
                                                               : 0;
        if (!op->st->raw_values && dolphin_value_is_block(vword))
            far_read(op->t, dolphin_value_block(vword), &lengths[i], 8);
    }
    if ((err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < pairs.count; i++) {
        if (!op->st->raw_values && vword_of_pair(op, &pairs, i) == 0)
            continue; /* an insert or a delete of this key is in progress */
        usage->keys++;
        usage->key_bytes += dolphin_pair_key(&pairs, i).length;
        usage->value_bytes += dolphin_value_head_length(lengths[i]);
    }
    return 0;
}


int dolphin_usage(far_task *task, far_index *index, far_usage *usage) {
    traversal *t = calloc(1, sizeof(*t));
    if (t)
        t->visit_leaf = count_leaf;
    return run_traversal(t, task, index, usage);
}
