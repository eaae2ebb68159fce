/* Locks of nodes: their entries change under the lock only. And gates: of the tasks of a handle one replaces a leaf,
 * the others wait for it without verbs. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch.h"


uint64_t dolphin_locked_by_me(const dolphin_op *op, uint64_t word) {
    return dolphin_lock_free(word) | far_owner_of_task(op->t) << DOLPHIN_OWNER_SHIFT;
}


/* Entries of the root have a lock each: they share nothing. */
far_addr dolphin_lock_place(const dolphin_op *op, uint64_t word) {
    far_addr addr = dolphin_entry_addr(word);
    return word == op->st->root ? addr + DOLPHIN_ROOT_LOCKS + 8ull * ((const uint8_t *)op->key.data)[0] : addr;
}


/* {CAS lock, READ lock, READ node}: READs keep their order, so what the second one shows is current if the first shows
 * us as the holder, whenever the CAS took effect. words: [0] what the CAS found, [1] what was READ. */
static int put_lock(dolphin_op *op, uint64_t word, uint64_t words[2], dolphin_node *node) {
    far_addr addr = dolphin_entry_addr(word);
    if (!far_task_reaches(op->t, addr, dolphin_class_bytes(dolphin_entry_class(word))))
        return dolphin_broken(op->index, addr, "node");
    far_addr lock = dolphin_lock_place(op, word);
    far_cas(op->t, lock, dolphin_lock_free(word), dolphin_locked_by_me(op, word), &words[0]);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    far_read(op->t, lock, &words[1], 8);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return dolphin_put_read_node(op, word, node);
}


/* After the wait. */
static int take_lock(dolphin_op *op, const uint64_t words[2], dolphin_node *node) {
    uint64_t word = node->word;
    int err = 0;
    if (words[0] != dolphin_lock_free(word)) {
        if (!dolphin_is_life(words[0], word) || (words[0] & DOLPHIN_FROZEN))
            return DOLPHIN_GONE;
        return (err = dolphin_take_node(op, node, true)) < 0 ? err : err == 1 ? DOLPHIN_BUSY : DOLPHIN_GONE;
    }
    if (words[1] != dolphin_locked_by_me(op, word)) {
        err = dolphin_put_read_node(op, word, node);
        err = err < 0 ? err : dolphin_wait(op);
    }
    if (err >= 0)
        err = dolphin_take_node(op, node, true);
    if (err < 0)
        dolphin_unlock(op, word);
    far_point(op->t, "dolphin:locked");
    return err < 0 ? err : err == 0 ? dolphin_broken(op->index, dolphin_entry_addr(word), "node") : DOLPHIN_LOCKED;
}


int dolphin_lock(dolphin_op *op, uint64_t word, dolphin_node *node) {
    uint64_t words[2];
    int err = put_lock(op, word, words, node);
    if (err < 0 || (err = dolphin_wait(op)) < 0)
        return err;
    return take_lock(op, words, node);
}


/* By CAS: atomics keep their order with those before it, a WRITE would not. */
void dolphin_put_unlock(dolphin_op *op, uint64_t word) {
    far_cas(op->t, dolphin_lock_place(op, word), dolphin_locked_by_me(op, word), dolphin_lock_free(word), NULL);
}


int dolphin_unlock(dolphin_op *op, uint64_t word) {
    dolphin_put_unlock(op, word);
    return dolphin_wait(op);
}


static _Atomic uint64_t *gate_of(dolphin_op *op, uint64_t entry) {
    return &op->st->gates[(dolphin_entry_addr(entry) / 64 * 0x9e3779b97f4a7c15ull) >> 56];
}


bool dolphin_gate_enter(dolphin_op *op, uint64_t entry) {
    uint64_t open = 0;
    return atomic_compare_exchange_strong(gate_of(op, entry), &open, dolphin_entry_addr(entry));
}


void dolphin_gate_leave(dolphin_op *op, uint64_t entry) {
    atomic_store(gate_of(op, entry), 0);
}


/* Without a pin: the holder of the lock may wait for all pins. Nothing that was seen before counts afterwards; but
 * the holder has put what it made into the cache. */
int dolphin_gate_wait(dolphin_op *op, uint64_t entry) {
    op->fresh = false;
    far_count_lock_retry(op->t);
    far_pin_drop(op->t);
    while (atomic_load(gate_of(op, entry)) != 0)
        far_back_off(op->t, 0);
    return far_pin_take(op->t);
}


static bool still_there(const dolphin_spot *spot, uint64_t entry) {
    return spot->outcome == DOLPHIN_AT_LEAF && dolphin_entry_same(spot->entry, entry);
}


/* A leaf that is to be written is frozen: it is being replaced, or whoever did that is dead. Its node and its spear
 * word tell when that is over; whoever entered it again and again would keep others inside, and the change waiting. */
static int wait_for_change(dolphin_op *op, far_scratch_mark here, dolphin_spot *spot) {
    uint64_t leaf = spot->entry, *spear;
    bool again = spot->fresh || (op->full && dolphin_entry_same(op->full, leaf)); /* else it is over, most likely */
    if (atomic_load(gate_of(op, leaf)) == dolphin_entry_addr(leaf)) {
        int err = dolphin_gate_wait(op, leaf);
        far_scratch_back(op->t, here);
        return err < 0 ? err : dolphin_locate(op, false, spot);
    }
    for (;; again = true) {
        if (again)
            far_sleep(op->t, 4 * op->trip); /* as many round trips as a change takes */
        int err = again ? dolphin_again(op) : 0;
        if (err == 0 && again && dolphin_is_time_to_help(op))
            err = dolphin_help(op);
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
        err = dolphin_locate(op, true, spot);
        if (err < 0 || !still_there(spot, leaf) || !(*spear & DOLPHIN_FROZEN))
            return err;
    }
}


/* The first time at once, then a while later. */
int dolphin_look_again(dolphin_op *op, int why, far_scratch_mark here, dolphin_spot *spot) {
    int err = 0;
    if (why == DOLPHIN_IS_FROZEN)
        return wait_for_change(op, here, spot);
    if (why == DOLPHIN_STALE && spot->fresh)
        err = dolphin_odd(op, dolphin_entry_addr(spot->entry), "leaf");
    else if (op->looked)
        err = dolphin_again(op);
    op->looked = true;
    far_scratch_back(op->t, here);
    return err < 0 ? err : dolphin_locate(op, op->fresh, spot);
}
