/* Recovery: a client that held a node lock has failed, and another client takes over its lock. Before it does anything
 * else, it repairs the node and unlocks it. It finds one of these states:
 *
 * - A leaf is frozen and no entry was changed. The leaf is thawed; nothing had happened.
 * - A leaf is frozen, and entries for the upper part of its interval already name new leaves. The leaf is narrowed to
 *   the rest of its interval and thawed. This needs no memory, so recovery works in a full pool.
 * - A child node is frozen, which happens under the lock of its parent. The client was going to replace it by a copy
 *   and did not. The child is thawed by locking it, then repaired in the same way, then unlocked.
 * - A NULL interval overlaps entries that were added for its upper part. It is shortened to end before them.
 * - All entries were changed. Only the lock is left.
 *
 * So a node that is not locked has no frozen child. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch/epoch.h"

#define LEVELS_MAX 260


static int recover_node(dolphin_op *op, dolphin_node *node, unsigned level);


/* READs the control words of all children; words[i] belongs to entry i, and is 0 if that entry has no child. */
static int read_child_control_words(dolphin_op *op, const dolphin_node *node, uint64_t *words) {
    for (unsigned i = 0; i < node->capacity; i++) {
        uint64_t entry = node->entries[i];
        words[i] = 0;
        if (dolphin_entry_kind(entry) < DOLPHIN_KIND_LEAF ||
            (node->depth == 0 && dolphin_entry_lb(entry) != dolphin_position(op->key, 0)))
            continue; /* In the root, only one entry belongs to this lock. */
        if (!far_task_reaches(op->t, dolphin_entry_addr(entry), 8)) {
            far_discard_batch(op->t);
            return dolphin_fail_corrupt(op->index, dolphin_entry_addr(node->word), "node");
        }
        far_read(op->t, dolphin_entry_addr(entry), &words[i], 8);
    }
    return dolphin_wait(op);
}


/* Waits until all current readers have finished. A READ of the leaf may have returned the header from before the
 * narrowing together with the spear word from after the thawing, and would accept the leaf for keys that it no longer
 * owns. So the leaf must stay frozen until all such READs are over. */
static int wait_for_readers(dolphin_op *op) {
    far_point(op->t, "dolphin:wait_for_readers");
    return far_pin_after_epochs(op->t, 1);
}


static int recover_leaf(dolphin_op *op, dolphin_node *node, unsigned at) {
    static const uint64_t uncut[2] = {0};
    uint64_t entry = node->entries[at], ident;
    unsigned lb = dolphin_entry_lb(entry);
    int err = far_read_word(op->t, dolphin_entry_addr(entry) + 8, &ident);
    if (err < 0)
        return err;
    unsigned hi = node->depth ? dolphin_next_lb(node, lb) - 1 : DOLPHIN_LAST_POSITION;
    bool narrow = dolphin_ident_hi(ident) != hi;
    if (narrow && (err = dolphin_narrow_leaf(op, node, at)) < 0)
        return err;
    if ((narrow || (ident & DOLPHIN_NARROWED)) && (err = wait_for_readers(op)) < 0)
        return err;
    dolphin_leaf leaf = {.entry = entry, .addr = dolphin_entry_addr(entry)};
    if (op->st->hot_updates && (err = dolphin_read_leaf(op, entry, &leaf)) < 0)
        return err;
    /* Resets the words `cut` and `moved`, which the failed client may have written. The next client that splits the
     * leaf writes its own values. A READ at that moment must not return a mixture of words of both clients. */
    far_write(op->t, leaf.addr + DOLPHIN_LEAF_CUT, uncut, sizeof(uncut));
    dolphin_batch_thaw(op, &leaf);
    return dolphin_wait(op);
}


/* Thaws a frozen child node of a locked parent. Only the holder of the parent's lock changes a frozen node. So the CAS
 * on the child's lock word succeeds, because its expected value was READ under the parent's lock. */
static int recover_frozen_child(dolphin_op *op, uint64_t word, uint64_t lock, unsigned level) {
    uint64_t mine = dolphin_lock_word_of(op, word);
    dolphin_node child;
    int err = dolphin_cas_and_wait(op, dolphin_entry_addr(word), lock, mine, NULL);
    if (err < 0)
        return err;
    err = dolphin_batch_read_node(op, word, &child);
    if (err == 0 && (err = dolphin_wait(op)) == 0 && (err = dolphin_validate_node(op, &child, true)) == 1)
        err = recover_node(op, &child, level + 1);
    if (err < 0) { /* restore the lock word of the failed client, so that another client can repair the node */
        far_discard_batch(op->t);
        dolphin_cas_and_wait(op, dolphin_entry_addr(word), mine, lock, NULL);
        return err;
    }
    return dolphin_unlock(op, word);
}


static int narrow_overlapping_nulls(dolphin_op *op, dolphin_node *node) {
    for (unsigned i = 0; i < node->capacity && node->depth; i++) {
        uint64_t entry = node->entries[i];
        unsigned lb = dolphin_entry_lb(entry), hi = dolphin_next_lb(node, lb) - 1;
        if (dolphin_entry_kind(entry) != DOLPHIN_KIND_NULL || dolphin_entry_hi(entry) == hi)
            continue;
        node->entries[i] = dolphin_null_entry(lb, hi);
        far_cas(op->t, dolphin_entry_word_addr(node, i), entry, node->entries[i], NULL);
    }
    return dolphin_wait(op);
}


static int recover_node(dolphin_op *op, dolphin_node *node, unsigned level) {
    uint64_t *words = far_scratch(op->t, node->capacity * sizeof(*words));
    if (!words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    if (level > LEVELS_MAX)
        return dolphin_fail_corrupt(op->index, dolphin_entry_addr(node->word), "node");
    int err = read_child_control_words(op, node, words);
    if (err == 0)
        err = narrow_overlapping_nulls(op, node);
    for (unsigned i = 0; i < node->capacity && err == 0; i++) {
        uint64_t entry = node->entries[i];
        if (!(words[i] & DOLPHIN_FROZEN) || !dolphin_control_matches(words[i], entry))
            continue;
        err =
            dolphin_entry_is_node(entry) ? recover_frozen_child(op, entry, words[i], level) : recover_leaf(op, node, i);
    }
    return err;
}


int dolphin_take_over_lock(dolphin_op *op, uint64_t word, uint64_t lock) {
    uint64_t mine = dolphin_lock_word_of(op, word), seen;
    dolphin_node node;
    int err = far_holder_confirm_failed(op->t, dolphin_lock_owner(lock));
    if (err <= 0)
        return err;
    if ((err = dolphin_cas_and_wait(op, dolphin_lock_addr(op, word), lock, mine, &seen)) < 0 || seen != lock)
        return err;
    far_point(op->t, "dolphin:taken_over");
    err = dolphin_batch_read_node(op, word, &node);
    if (err == 0 && (err = dolphin_wait(op)) == 0 && (err = dolphin_validate_node(op, &node, true)) == 1)
        err = recover_node(op, &node, 0);
    if (err < 0) {
        far_discard_batch(op->t);
        dolphin_cas_and_wait(op, dolphin_lock_addr(op, word), mine, lock, &seen);
        return err;
    }
    err = dolphin_unlock(op, word);
    return err < 0 ? err : 1;
}


/* Looks for damage: a child that is frozen although no client can be replacing it. The function posts {READ control
 * word, READ lock}, in this order. A client that freezes a child has locked the parent before and unlocks the parent
 * afterwards. So if the child is frozen and the parent is not locked, the change normally ended between the two READs.
 * If the function observes this again and again, the node is damaged. Returns 0 if it did not observe this state, 1 if
 * it did, or FAR_ERR_CORRUPT. */
static int check_frozen_child(dolphin_op *op, uint64_t entry, uint64_t above) {
    uint64_t word, lock;
    if (dolphin_entry_kind(entry) < DOLPHIN_KIND_LEAF)
        return 0;
    if (!far_task_reaches(op->t, dolphin_entry_addr(entry), 8))
        return dolphin_fail_corrupt(op->index, dolphin_entry_addr(above), "node");
    far_read(op->t, dolphin_entry_addr(entry), &word, 8);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    far_read(op->t, dolphin_lock_addr(op, above), &lock, 8);
    int err = dolphin_wait(op);
    if (err < 0 || !dolphin_control_matches(word, entry) || !(word & DOLPHIN_FROZEN) || dolphin_lock_owner(lock) ||
        (lock & DOLPHIN_FROZEN))
        return err;
    /* This check runs only at every fourth attempt, so one observation counts for four. */
    op->inconsistent_reads += DOLPHIN_RECOVER_EVERY - 1;
    err = dolphin_retry_inconsistent(op, dolphin_entry_addr(entry), dolphin_entry_is_node(entry) ? "node" : "leaf");
    return err < 0 ? err : 1;
}


/* Descends from the root to op->key. If it finds the lock of a failed client, it takes over that lock and ends;
 * otherwise it continues at the next level. */
int dolphin_recover_path(dolphin_op *op) {
    far_scratch_mark here = far_scratch_here(op->t);
    uint64_t word = op->st->root;
    int err = 0;
    for (unsigned level = 0; level < LEVELS_MAX && word && err == 0; level++) {
        dolphin_node node;
        uint64_t lock;
        err = dolphin_batch_read_node(op, word, &node);
        far_read(op->t, dolphin_lock_addr(op, word), &lock, 8);
        if (err < 0)
            far_discard_batch(op->t);
        if (err < 0 || (err = dolphin_wait(op)) < 0 || (err = dolphin_validate_node(op, &node, true)) <= 0)
            break;
        if (dolphin_lock_owner(lock) && !(lock & DOLPHIN_FROZEN) && (err = dolphin_take_over_lock(op, word, lock)) != 0)
            break;
        int at = dolphin_node_has_prefix_of(&node, op->key)
                     ? dolphin_find_entry(&node, dolphin_position(op->key, node.depth))
                     : -1;
        uint64_t entry = at < 0 ? 0 : node.entries[at];
        if ((err = check_frozen_child(op, entry, word)) == 0)
            word = dolphin_entry_is_node(entry) ? entry : 0;
    }
    far_scratch_back(op->t, here);
    return err < 0 ? err : 0;
}
