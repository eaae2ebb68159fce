/* Node locks and gates. Entries of a node are changed only under the lock of the node, which is a word in far memory. A
 * gate is local: when several tasks of one handle want to replace the same leaf, one of them does it and the others
 * wait without verbs. dolphin_locate_again, which decides how an operation waits before a retry, is also here. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch/epoch.h"


uint64_t dolphin_lock_word_of(const dolphin_op *op, uint64_t word) {
    return dolphin_unlocked_word(word) | far_owner_of_task(op->t) << DOLPHIN_OWNER_SHIFT;
}


/* Returns the address of the lock for this node. In the root each entry has a lock of its own, so that changes below
 * different first bytes do not wait for each other. */
far_addr dolphin_lock_addr(const dolphin_op *op, uint64_t word) {
    far_addr addr = dolphin_entry_addr(word);
    return word == op->st->root ? addr + DOLPHIN_ROOT_LOCKS + 8ull * ((const uint8_t *)op->key.data)[0] : addr;
}


/* Appends {CAS lock, READ lock, READ node}. The two READs are executed in this order. So if the READ of the lock shows
 * this client as the owner, the content of the node was READ under the lock, although the CAS may be executed before or
 * after the READs. words[0] is the result of the CAS, words[1] that of the READ of the lock. */
static int batch_lock(dolphin_op *op, uint64_t word, uint64_t words[2], dolphin_node *node) {
    far_addr addr = dolphin_entry_addr(word);
    if (!far_task_reaches(op->t, addr, dolphin_class_bytes(dolphin_entry_class(word))))
        return dolphin_fail_corrupt(op->index, addr, "node");
    far_addr lock = dolphin_lock_addr(op, word);
    far_cas(op->t, lock, dolphin_unlocked_word(word), dolphin_lock_word_of(op, word), &words[0]);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    far_read(op->t, lock, &words[1], 8);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return dolphin_batch_read_node(op, word, node);
}


/* Evaluates the batch of batch_lock after the wait. Returns DOLPHIN_LOCKED if the CAS took the lock, DOLPHIN_BUSY if
 * another client holds it, DOLPHIN_UNLINKED if the node was replaced, or an error. If the CAS took the lock but the
 * READs were executed before it, the node is READ again, because it may have changed in between. */
static int finish_lock(dolphin_op *op, const uint64_t words[2], dolphin_node *node) {
    uint64_t word = node->word;
    int err = 0;
    if (words[0] != dolphin_unlocked_word(word)) {
        if (!dolphin_control_matches(words[0], word) || (words[0] & DOLPHIN_FROZEN))
            return DOLPHIN_UNLINKED;
        return (err = dolphin_validate_node(op, node, true)) < 0 ? err : err == 1 ? DOLPHIN_BUSY : DOLPHIN_UNLINKED;
    }
    if (words[1] != dolphin_lock_word_of(op, word)) {
        err = dolphin_batch_read_node(op, word, node);
        err = err < 0 ? err : dolphin_wait(op);
    }
    if (err >= 0)
        err = dolphin_validate_node(op, node, true);
    if (err < 0)
        dolphin_unlock(op, word);
    far_point(op->t, "dolphin:locked");
    return err < 0    ? err
           : err == 0 ? dolphin_fail_corrupt(op->index, dolphin_entry_addr(word), "node")
                      : DOLPHIN_LOCKED;
}


int dolphin_lock(dolphin_op *op, uint64_t word, dolphin_node *node) {
    uint64_t words[2];
    int err = batch_lock(op, word, words, node);
    if (err < 0 || (err = dolphin_wait(op)) < 0)
        return err;
    return finish_lock(op, words, node);
}


/* Unlocks by CAS, not by WRITE. Atomics are executed in the order in which they were posted, but a WRITE could be
 * executed before the atomics that change the entries. */
void dolphin_batch_unlock(dolphin_op *op, uint64_t word) {
    far_cas(op->t, dolphin_lock_addr(op, word), dolphin_lock_word_of(op, word), dolphin_unlocked_word(word), NULL);
}


int dolphin_unlock(dolphin_op *op, uint64_t word) {
    dolphin_batch_unlock(op, word);
    return dolphin_wait(op);
}


static _Atomic uint64_t *gate_for(dolphin_op *op, uint64_t entry) {
    return &op->st->gates[(dolphin_entry_addr(entry) / 64 * 0x9e3779b97f4a7c15ull) >> 56];
}


bool dolphin_gate_enter(dolphin_op *op, uint64_t entry) {
    uint64_t open = 0;
    return atomic_compare_exchange_strong(gate_for(op, entry), &open, dolphin_entry_addr(entry));
}


void dolphin_gate_leave(dolphin_op *op, uint64_t entry) {
    atomic_store(gate_for(op, entry), 0);
}


/* Waits until the gate is open, but not longer than for a stalled client. The function drops the pin meanwhile, because
 * the task that holds the gate may wait until all older pins are gone. Afterwards nothing that was READ before may be
 * used. The cache may be used, because the task that held the gate has inserted the changed node into the cache. */
int dolphin_gate_wait(dolphin_op *op, uint64_t entry) {
    op->skip_cache = false;
    far_count_lock_retry(op->t);
    far_pin_drop(op->t);
    while (atomic_load(gate_for(op, entry)) != 0) {
        far_back_off(op->t, 0);
        int err = far_stall_wait(op->t);
        if (err < 0)
            return err;
    }
    return far_pin_take(op->t);
}


static bool location_is_same_leaf(const dolphin_location *location, uint64_t entry) {
    return location->outcome == DOLPHIN_AT_LEAF && dolphin_entries_match(location->entry, entry);
}


/* Waits until a frozen leaf was replaced or thawed, by the client that froze it or by recovery. It polls the node above
 * and the spear word of the leaf. It does not enter the leaf: repeated entering would keep the number of writers above
 * 0, and the client that replaces the leaf waits for 0. */
static int wait_until_replaced(dolphin_op *op, far_scratch_mark here, dolphin_location *location) {
    uint64_t leaf = location->entry, *spear;
    /* If the node comes from the cache, the replacement has probably finished already, so the first poll is made
     * without a pause. If this operation found the leaf full, the replacement has just begun, so a pause precedes the
     * first poll. */
    bool again = location->node_is_fresh || (op->full_leaf && dolphin_entries_match(op->full_leaf, leaf));
    if (atomic_load(gate_for(op, leaf)) == dolphin_entry_addr(leaf)) {
        int err = dolphin_gate_wait(op, leaf);
        far_scratch_back(op->t, here);
        return err < 0 ? err : dolphin_locate(op, false, location);
    }
    for (;; again = true) {
        if (again)
            far_sleep(op->t, 4 * op->round_trip_ns); /* a structure change takes about four round trips */
        int err = again ? dolphin_back_off(op) : 0;
        if (err == 0 && again && dolphin_recovery_is_due(op))
            err = dolphin_recover_path(op);
        if (err < 0)
            return err;
        far_scratch_back(op->t, here);
        if (!(spear = far_scratch(op->t, 8)))
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
        *spear = DOLPHIN_FROZEN;
        if (again) {
            far_read(op->t, dolphin_entry_addr(leaf), spear, 8);
            far_mark(op->t, FAR_VERB_UNPROVEN);
        }
        err = dolphin_locate(op, true, location);
        if (err < 0 || !location_is_same_leaf(location, leaf) || !(*spear & DOLPHIN_FROZEN))
            return err;
    }
}


/* The first retry is made at once, and later retries after a pause. */
int dolphin_locate_again(dolphin_op *op, int why, far_scratch_mark here, dolphin_location *location) {
    int err = 0;
    if (why == DOLPHIN_LEAF_FROZEN)
        return wait_until_replaced(op, here, location);
    if (why == DOLPHIN_LEAF_STALE && location->node_is_fresh)
        err = dolphin_retry_inconsistent(op, dolphin_entry_addr(location->entry), "leaf");
    else if (op->retried)
        err = dolphin_back_off(op);
    op->retried = true;
    far_scratch_back(op->t, here);
    return err < 0 ? err : dolphin_locate(op, op->skip_cache, location);
}
