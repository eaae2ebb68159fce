/* sync=exclusive, the baseline: {CAS lock}, {enter}, {WRITE, leave, unlock}. One writer at a time is in a leaf, a round
 * trip is added to every write. Nothing rests on it: the spear word still says who is inside. So the lock of a dead
 * client is taken over as it is, and one that went with its leaf is forgotten. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"


static far_addr lock_of(uint64_t entry) {
    return dolphin_entry_addr(entry) + DOLPHIN_LEAF_LOCK;
}


static int try_lock(dolphin_op *op, uint64_t entry, uint64_t expected, uint64_t *seen) {
    far_cas(op->t, lock_of(entry), expected, far_owner_of_task(op->t), seen);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return dolphin_wait(op);
}


int dolphin_lock_leaf(dolphin_op *op, uint64_t entry) {
    uint64_t seen;
    if (!far_task_reaches(op->t, dolphin_entry_addr(entry), op->st->leaf_bytes))
        return dolphin_broken(op->index, dolphin_entry_addr(entry), "leaf");
    for (unsigned attempt = 0; attempt < op->st->patience; attempt++) {
        int err = try_lock(op, entry, 0, &seen);
        if (err < 0 || seen == 0 || seen == far_owner_of_task(op->t))
            return err;
        if (attempt % 4 == 3 || attempt + 1 == op->st->patience) {
            uint64_t holder = seen;
            if ((err = far_holder_is_dead(op->t, holder)) < 0)
                return err;
            if (err == 1 && ((err = try_lock(op, entry, holder, &seen)) < 0 || seen == holder))
                return err;
        }
        far_count_lock_retry(op->t);
        far_back_off(op->t, attempt < 6 ? attempt : 6);
    }
    return DOLPHIN_LOST;
}


void dolphin_put_unlock_leaf(dolphin_op *op, uint64_t entry) {
    far_cas(op->t, lock_of(entry), far_owner_of_task(op->t), 0, NULL);
    far_mark(op->t, FAR_VERB_UNPROVEN);
}
