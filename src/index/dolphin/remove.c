/* Deleting a key: {enter the leaf}, {CAS key word LIVE -> DEAD, leave}. The state is changed by a CAS on one word, so
 * only one of two concurrent deletes of a key succeeds. A leaf that has become small or empty is merged with its
 * neighbours. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#define LEVELS_MAX 260u

#define LIVE_SLOTS DOLPHIN_STATE_BIT(DOLPHIN_SLOT_LIVE)


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


/* Deletes op->key from the leaf. Returns 0; STALE or FROZEN if the caller must locate the key again; FAR_ERR_NOT_FOUND
 * or another error. *left is the number of keys that remain in the leaf. */
static int remove_from_leaf(dolphin_op *op, uint64_t entry, unsigned *left) {
    dolphin_leaf leaf;
    int slot, err = dolphin_enter_leaf(op, entry, !op->st->raw_values, 0, &leaf);
    if (err != 0)
        return err;
    *left = count_live_slots(op, &leaf) - 1;
    if ((err = dolphin_find_slot(op, &leaf, LIVE_SLOTS, &slot)) == 0 && slot >= 0)
        return remove_slot(op, &leaf, (unsigned)slot);
    dolphin_leave_leaf(op, &leaf);
    return err < 0 ? err : FAR_ERR_NOT_FOUND;
}


/* Tidies up after a delete. The key is already deleted, so most errors are ignored here, and a later delete may try
 * again. A leaf is considered for a merge with its neighbours when the number of its keys falls to exactly an eighth of
 * its slots, so that not every later delete considers it again. An empty leaf is replaced by NULL, and then its node
 * and the ancestors are considered for removal. */
static int merge_after_delete(dolphin_op *op, const dolphin_location *location, unsigned left) {
    if (left > 0 && left != op->st->slots / 8)
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
        unsigned left = 0;
        op.skip_cache = true;
        if (location.outcome != DOLPHIN_AT_LEAF)
            return FAR_ERR_NOT_FOUND;
        if (op.st->exclusive_writes && (err = dolphin_lock_leaf(&op, location.entry)) < 0)
            return err;
        if (err == 0 && (err = remove_from_leaf(&op, location.entry, &left)) == 0)
            return merge_after_delete(&op, &location, left);
        if (err > 0)
            err = dolphin_locate_again(&op, err, here, &location);
    }
    return err;
}
