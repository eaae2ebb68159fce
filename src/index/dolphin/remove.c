/* Deleting a key: {enter the leaf}, {CAS key word LIVE -> DEAD, leave}. The state is changed by a CAS on one word, so
 * only one of two concurrent deletes of a key succeeds. A leaf that has become small or empty is merged with its
 * neighbours.
 *
 * The READ of the first batch does not show how many keys remain after the CAS. If clients A and B delete the last two
 * keys concurrently, both READs show the key of the other client. Therefore, if the first READ has shown only few keys,
 * the client READs the key words again after the CAS, in a third batch. (A READ in the batch of the CAS would not
 * suffice, because it may take effect before the CAS.) The client with the last CAS then sees all deletes. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#define LEVELS_MAX 260u

#define LIVE_SLOTS DOLPHIN_STATE_BIT(DOLPHIN_SLOT_LIVE)

/* The number of deletes that are expected to enter the leaf and to take effect while one delete is inside. */
#define LATER_DELETES 4u


/* Returns the greatest number of keys with which a leaf is considered for a merge. */
static unsigned few_keys(const dolphin_op *op) {
    return op->st->slots / 8;
}


static unsigned count_live_slots(const dolphin_op *op, const dolphin_leaf *leaf) {
    unsigned count = 0;
    for (unsigned i = 0; i < op->st->slots; i++)
        count += dolphin_slot_state_of(dolphin_kwords(leaf)[i]) == DOLPHIN_SLOT_LIVE;
    return count;
}


/* Marks the slot as DEAD and removes its value word. The client whose CAS removes the value word retires the value
 * block. If a concurrent update makes this CAS fail, the value block of that update stays in the DEAD slot, and is
 * retired when the leaf is copied. */
static int remove_slot(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot) {
    uint64_t kword = dolphin_kwords(leaf)[slot], seen, vword = 0, vseen = 0;
    far_point(op->t, "dolphin:remove");
    far_cas(op->t, dolphin_kword_addr(leaf->addr, slot), kword, dolphin_kword_with_state(kword, DOLPHIN_SLOT_DEAD),
            &seen);
    if (!op->st->raw_values) {
        vword = dolphin_vwords(op, leaf)[slot];
        if (vword)
            far_cas(op->t, dolphin_vword_addr(leaf->addr, op->st->slots, slot), vword, 0, &vseen);
    }
    dolphin_batch_leave(op, leaf);
    int err = dolphin_wait(op);
    if (err < 0)
        return err;
    if (vword && vseen == vword)
        dolphin_retire_value(op, vword);
    return seen == kword ? 0 : FAR_ERR_NOT_FOUND;
}


/* Returns the number of keys that remain after the delete. `before` is the number of keys that the client saw when it
 * entered the leaf. If deletes by the writers that were inside then, and LATER_DELETES more, may leave few keys, the
 * client READs the key words again. The pin of the operation prevents the reuse of the leaf. An error of this READ is
 * ignored, because the key is already deleted. */
static unsigned count_remaining(dolphin_op *op, const dolphin_leaf *leaf, unsigned before) {
    if (before - 1 > few_keys(op) + dolphin_writer_count(leaf->image[0]) + LATER_DELETES)
        return before - 1;
    far_read(op->t, dolphin_kword_addr(leaf->addr, 0), leaf->image + DOLPHIN_LEAF_HEADER / 8, 8ull * op->st->slots);
    return dolphin_wait(op) < 0 ? before - 1 : count_live_slots(op, leaf);
}


/* Deletes op->key from the leaf. Returns 0; STALE or FROZEN if the caller must locate the key again; FAR_ERR_NOT_FOUND
 * or another error. *before is the number of keys when the client entered the leaf, and *left the number after the
 * delete. */
static int remove_from_leaf(dolphin_op *op, uint64_t entry, unsigned *before, unsigned *left) {
    dolphin_leaf leaf;
    int slot, err = dolphin_enter_leaf(op, entry, !op->st->raw_values, 0, &leaf);
    if (err != 0)
        return err;
    *before = count_live_slots(op, &leaf);
    if ((err = dolphin_find_slot(op, &leaf, LIVE_SLOTS, &slot)) == 0 && slot >= 0) {
        if ((err = remove_slot(op, &leaf, (unsigned)slot)) == 0)
            *left = count_remaining(op, &leaf, *before);
        return err;
    }
    dolphin_leave_leaf(op, &leaf);
    return err < 0 ? err : FAR_ERR_NOT_FOUND;
}


/* Tidies up after a delete. The key is already deleted, so most errors are ignored here, and a later delete may try
 * again. A leaf is considered for a merge with its neighbours by each client that saw more than few keys before its
 * delete and only few after it, so that not every later delete considers it again. An empty leaf is replaced by NULL,
 * and then its node and the ancestors are considered for removal. */
static int merge_after_delete(dolphin_op *op, const dolphin_location *location, unsigned before, unsigned left) {
    if (left > 0 && (before <= few_keys(op) || left > few_keys(op)))
        return 0;
    int err = left == 0 ? dolphin_replace_leaf(op, location, FAR_OP_DELETE, NULL) : 0;
    bool merge = location->depth > 0;
    for (unsigned level = 0; level < LEVELS_MAX && err == 0 && merge; level++) {
        err = dolphin_merge_leaves(op);
        merge = err == 1;
        err = err < 0 ? err : 0;
    }
    return err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE ? err : 0;
}


int dolphin_remove(far_task *t, far_index *index, far_bytes key) {
    dolphin_op op;
    dolphin_location location;
    dolphin_begin_op(&op, t, index, key);
    far_scratch_mark here = far_scratch_here(t);
    int err = dolphin_locate(&op, false, &location);
    while (err == 0) {
        unsigned before = 0, left = 0;
        op.skip_cache = true;
        if (location.outcome != DOLPHIN_AT_LEAF)
            return FAR_ERR_NOT_FOUND;
        if (op.st->exclusive_writes && (err = dolphin_lock_leaf(&op, location.entry)) < 0)
            return err;
        if (err == 0 && (err = remove_from_leaf(&op, location.entry, &before, &left)) == 0)
            return merge_after_delete(&op, &location, before, left);
        if (err > 0)
            err = dolphin_locate_again(&op, err, here, &location);
    }
    return err;
}
