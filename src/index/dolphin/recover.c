/* What a dead client left under the lock of a node. Whoever takes the lock over puts it right before anything else:
 *
 * - A leaf is frozen, the entries are as they were: it thaws. Nothing was changed.
 * - A leaf is frozen, and entries for its upper part lead elsewhere already: that part goes from it, and it thaws. No
 * memory is needed, so that nobody waits for the dead in a pool that is full.
 * - A node below is frozen, which is done under the lock of the node above: it was to be replaced by a copy, and was
 * not. It thaws, locked by us, and is put right in the same way.
 * - A NULL was to become smaller, and entries for its upper part are there already: it ends where they begin.
 * - All entries are changed: there is only the lock.
 *
 * So a node that is not locked has no frozen child. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch.h"

#define LEVELS_MAX 260


static int recover(dolphin_op *op, dolphin_node *node, unsigned level);


/* The control words of all children, by entry. */
static int read_children(dolphin_op *op, const dolphin_node *node, uint64_t *words) {
    for (unsigned i = 0; i < node->capacity; i++) {
        uint64_t entry = node->entries[i];
        words[i] = 0;
        if (dolphin_entry_kind(entry) < DOLPHIN_LEAF ||
            (node->depth == 0 && dolphin_entry_lb(entry) != dolphin_position(op->key, 0)))
            continue; /* of the root one entry: the others are not under this lock */
        if (!far_task_reaches(op->t, dolphin_entry_addr(entry), 8)) {
            far_forget(op->t);
            return dolphin_broken(op->index, dolphin_entry_addr(node->word), "node");
        }
        far_read(op->t, dolphin_entry_addr(entry), &words[i], 8);
    }
    return dolphin_wait(op);
}


/* One READ of a leaf may show what it was for before, and that it is not frozen, which came later: until all who READ
 * it meanwhile are through. */
static int wait_for_readers(dolphin_op *op) {
    far_point(op->t, "dolphin:narrowed");
    return far_pin_after_epochs(op->t, 1);
}


static int recover_leaf(dolphin_op *op, dolphin_node *node, unsigned at) {
    static const uint64_t uncut[2] = {0};
    uint64_t entry = node->entries[at], ident;
    unsigned lb = dolphin_entry_lb(entry);
    int err = far_read_word(op->t, dolphin_entry_addr(entry) + 8, &ident);
    if (err < 0)
        return err;
    unsigned hi = node->depth ? dolphin_next_lb(node, lb) - 1 : DOLPHIN_LAST;
    bool narrow = dolphin_ident_hi(ident) != hi;
    if (narrow && (err = dolphin_narrow(op, node, at)) < 0)
        return err;
    if ((narrow || (ident & DOLPHIN_NARROWED)) && (err = wait_for_readers(op)) < 0)
        return err;
    dolphin_leaf leaf = {.entry = entry, .addr = dolphin_entry_addr(entry)};
    if (op->st->hot && (err = dolphin_read_leaf(op, entry, &leaf)) < 0)
        return err;
    far_write(op->t, leaf.addr + DOLPHIN_LEAF_CUT, uncut, sizeof(uncut)); /* the next change says it anew */
    dolphin_put_thaw(op, &leaf);
    return dolphin_wait(op);
}


/* A frozen node is changed only by the client that has the lock of the node above: the CAS finds what was READ under that lock. */
static int recover_child(dolphin_op *op, uint64_t word, uint64_t lock, unsigned level) {
    uint64_t mine = dolphin_locked_by_me(op, word);
    dolphin_node child;
    int err = dolphin_cas(op, dolphin_entry_addr(word), lock, mine, NULL);
    if (err < 0)
        return err;
    err = dolphin_put_read_node(op, word, &child);
    if (err == 0 && (err = dolphin_wait(op)) == 0 && (err = dolphin_take_node(op, &child, true)) == 1)
        err = recover(op, &child, level + 1);
    if (err < 0) { /* as it was: another one will try */
        far_forget(op->t);
        dolphin_cas(op, dolphin_entry_addr(word), mine, lock, NULL);
        return err;
    }
    return dolphin_unlock(op, word);
}


static int recover_nulls(dolphin_op *op, dolphin_node *node) {
    for (unsigned i = 0; i < node->capacity && node->depth; i++) {
        uint64_t entry = node->entries[i];
        unsigned lb = dolphin_entry_lb(entry), hi = dolphin_next_lb(node, lb) - 1;
        if (dolphin_entry_kind(entry) != DOLPHIN_NULL || dolphin_entry_hi(entry) == hi)
            continue;
        node->entries[i] = dolphin_null(lb, hi);
        far_cas(op->t, dolphin_entry_place(node, i), entry, node->entries[i], NULL);
    }
    return dolphin_wait(op);
}


static int recover(dolphin_op *op, dolphin_node *node, unsigned level) {
    uint64_t *words = far_scratch(op->t, node->capacity * sizeof(*words));
    if (!words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    if (level > LEVELS_MAX)
        return dolphin_broken(op->index, dolphin_entry_addr(node->word), "node");
    int err = read_children(op, node, words);
    if (err == 0)
        err = recover_nulls(op, node);
    for (unsigned i = 0; i < node->capacity && err == 0; i++) {
        uint64_t entry = node->entries[i];
        if (!(words[i] & DOLPHIN_FROZEN) || !dolphin_is_life(words[i], entry))
            continue;
        err = dolphin_entry_is_node(entry) ? recover_child(op, entry, words[i], level) : recover_leaf(op, node, i);
    }
    return err;
}


int dolphin_take_over(dolphin_op *op, uint64_t word, uint64_t lock) {
    uint64_t mine = dolphin_locked_by_me(op, word), seen;
    dolphin_node node;
    int err = far_holder_is_dead(op->t, dolphin_lock_owner(lock));
    if (err <= 0)
        return err;
    if ((err = dolphin_cas(op, dolphin_lock_place(op, word), lock, mine, &seen)) < 0 || seen != lock)
        return err;
    far_point(op->t, "dolphin:taken_over");
    err = dolphin_put_read_node(op, word, &node);
    if (err == 0 && (err = dolphin_wait(op)) == 0 && (err = dolphin_take_node(op, &node, true)) == 1)
        err = recover(op, &node, 0);
    if (err < 0) {
        far_forget(op->t);
        dolphin_cas(op, dolphin_lock_place(op, word), mine, lock, &seen);
        return err;
    }
    err = dolphin_unlock(op, word);
    return err < 0 ? err : 1;
}


/* {READ control word, READ lock}, in this order, of a frozen child of this node. Whoever freezes it has the lock before
 * and for longer: frozen, and then not locked, it is a change that ended in between. Seen again and again, it is
 * damage. 0: not so. */
static int look_at_frozen(dolphin_op *op, uint64_t entry, uint64_t above) {
    uint64_t word, lock;
    if (dolphin_entry_kind(entry) < DOLPHIN_LEAF)
        return 0;
    if (!far_task_reaches(op->t, dolphin_entry_addr(entry), 8))
        return dolphin_broken(op->index, dolphin_entry_addr(above), "node");
    far_read(op->t, dolphin_entry_addr(entry), &word, 8);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    far_read(op->t, dolphin_lock_place(op, above), &lock, 8);
    int err = dolphin_wait(op);
    if (err < 0 || !dolphin_is_life(word, entry) || !(word & DOLPHIN_FROZEN) || dolphin_lock_owner(lock) ||
        (lock & DOLPHIN_FROZEN))
        return err;
    op->odd += DOLPHIN_HELP_EVERY - 1; /* this look stands for those that were not done */
    err = dolphin_odd(op, dolphin_entry_addr(entry), dolphin_entry_is_node(entry) ? "node" : "leaf");
    return err < 0 ? err : 1;
}


/* A lock on the way whose holder is dead is taken over, and the next level is looked at with what that left. */
int dolphin_help(dolphin_op *op) {
    far_scratch_mark here = far_scratch_here(op->t);
    uint64_t word = op->st->root;
    int err = 0;
    for (unsigned level = 0; level < LEVELS_MAX && word && err == 0; level++) {
        dolphin_node node;
        uint64_t lock;
        err = dolphin_put_read_node(op, word, &node);
        far_read(op->t, dolphin_lock_place(op, word), &lock, 8);
        if (err < 0)
            far_forget(op->t);
        if (err < 0 || (err = dolphin_wait(op)) < 0 || (err = dolphin_take_node(op, &node, true)) <= 0)
            break;
        if (dolphin_lock_owner(lock) && !(lock & DOLPHIN_FROZEN) && (err = dolphin_take_over(op, word, lock)) != 0)
            break;
        int at =
            dolphin_has_prefix_of(&node, op->key) ? dolphin_lookup(&node, dolphin_position(op->key, node.depth)) : -1;
        uint64_t entry = at < 0 ? 0 : node.entries[at];
        if ((err = look_at_frozen(op, entry, word)) == 0)
            word = dolphin_entry_is_node(entry) ? entry : 0;
    }
    far_scratch_back(op->t, here);
    return err < 0 ? err : 0;
}
