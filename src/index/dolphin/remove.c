/* Deleting: {enter}, {CAS key word LIVE -> DEAD, leave}; one word, so that of two deletes one finds the key. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#define LEVELS_MAX 260u

#define HELD DOLPHIN_STATE_BIT(DOLPHIN_HELD)


static unsigned count_held(const dolphin_op *op, const dolphin_leaf *leaf) {
    unsigned count = 0;
    for (unsigned i = 0; i < op->st->slots; i++)
        count += dolphin_state_of_slot(dolphin_kwords(leaf)[i]) == DOLPHIN_HELD;
    return count;
}


/* The block goes with whoever takes the word out; if an update comes in between, the next copy of the leaf finds it. */
static int remove_slot(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot) {
    uint64_t kword = dolphin_kwords(leaf)[slot], seen, vword = 0, vseen = 0;
    far_point(op->t, "dolphin:remove");
    far_cas(op->t, dolphin_key_at(leaf->addr, slot), kword, dolphin_with_state(kword, DOLPHIN_DEAD), &seen);
    if (!op->st->words) {
        vword = dolphin_vwords(op, leaf)[slot];
        if (vword)
            far_cas(op->t, dolphin_value_at(leaf->addr, op->st->slots, slot), vword, 0, &vseen);
    }
    dolphin_put_leave(op, leaf);
    int err = dolphin_wait(op);
    if (err < 0)
        return err;
    if (vword && vseen == vword)
        dolphin_retire_value(op, vword);
    return seen == kword ? 0 : FAR_ERR_NOT_FOUND;
}


/* 0, FAR_ERR_NOT_FOUND or an error; or STALE, IS_FROZEN. *left: keys in the leaf afterwards. */
static int remove_in(dolphin_op *op, uint64_t entry, unsigned *left) {
    dolphin_leaf leaf;
    int slot, err = dolphin_enter(op, entry, !op->st->words, 0, &leaf);
    if (err != 0)
        return err;
    *left = count_held(op, &leaf) - 1;
    if ((err = dolphin_find_slot(op, &leaf, HELD, &slot)) == 0 && slot >= 0)
        return remove_slot(op, &leaf, (unsigned)slot);
    dolphin_leave(op, &leaf);
    return err < 0 ? err : FAR_ERR_NOT_FOUND;
}


/* The key is gone already: whatever keeps this from being done, the next one may do it. A leaf with an eighth of its
 * keys left is looked at once, with its neighbours; one that got empty goes: then its node, and those above, are looked
 * at too. */
static int tidy_up(dolphin_op *op, const dolphin_spot *spot, unsigned left) {
    if (left > 0 && left != op->st->slots / 8)
        return 0;
    int err = left == 0 ? dolphin_replace(op, spot, FAR_OP_DELETE, NULL) : 0;
    bool merge = spot->depth > 0;
    for (unsigned level = 0; level < LEVELS_MAX && err == 0 && merge; level++) {
        err = dolphin_merge(op);
        merge = err == 1;
        err = err < 0 ? err : 0;
    }
    return err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE ? err : 0;
}


int dolphin_remove(far_task *t, far_index *index, far_bytes key) {
    dolphin_op op;
    dolphin_spot spot;
    dolphin_begin(&op, t, index, key);
    far_scratch_mark here = far_scratch_here(t);
    int err = dolphin_locate(&op, false, &spot);
    while (err == 0) {
        unsigned left = 0;
        op.fresh = true;
        if (spot.outcome != DOLPHIN_AT_LEAF)
            return FAR_ERR_NOT_FOUND;
        if (op.st->exclusive && (err = dolphin_lock_leaf(&op, spot.entry)) < 0)
            return err;
        if (err == 0 && (err = remove_in(&op, spot.entry, &left)) == 0)
            return tidy_up(&op, &spot, left);
        if (err > 0)
            err = dolphin_look_again(&op, err, here, &spot);
    }
    return err;
}
