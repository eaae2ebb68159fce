/* The option sync=exclusive: writers of a leaf exclude each other, for comparison with other indexes. A write becomes
 * three batches, {CAS lock}, {enter}, {WRITE, leave, unlock}, which is one round trip more. Correctness does not depend
 * on this lock, because writers are still counted in the spear word of the leaf (its control word). Therefore the lock
 * of a failed client is taken over without any repair, and the lock word of a replaced leaf needs no attention. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"


static far_addr leaf_lock_addr(uint64_t entry) {
    return dolphin_entry_addr(entry) + DOLPHIN_LEAF_LOCK;
}


static int try_lock_leaf(dolphin_op *op, uint64_t entry, uint64_t expected, uint64_t *seen) {
    far_cas(op->t, leaf_lock_addr(entry), expected, far_owner_of_task(op->t), seen);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return dolphin_wait(op);
}


int dolphin_lock_leaf(dolphin_op *op, uint64_t entry) {
    uint64_t seen;
    if (!far_task_reaches(op->t, dolphin_entry_addr(entry), op->st->leaf_bytes))
        return dolphin_fail_corrupt(op->index, dolphin_entry_addr(entry), "leaf");
    for (unsigned attempt = 0; attempt < op->st->attempts_per_pin; attempt++) {
        int err = try_lock_leaf(op, entry, 0, &seen);
        if (err < 0 || seen == 0 || seen == far_owner_of_task(op->t))
            return err;
        if (attempt % 4 == 3 || attempt + 1 == op->st->attempts_per_pin) {
            uint64_t holder = seen;
            if ((err = far_holder_confirm_failed(op->t, holder)) < 0)
                return err;
            if (err == 1 && ((err = try_lock_leaf(op, entry, holder, &seen)) < 0 || seen == holder))
                return err;
        }
        far_count_lock_retry(op->t);
        far_back_off(op->t, attempt < 6 ? attempt : 6);
    }
    return DOLPHIN_RETRY;
}


void dolphin_batch_unlock_leaf(dolphin_op *op, uint64_t entry) {
    far_cas(op->t, leaf_lock_addr(entry), far_owner_of_task(op->t), 0, NULL);
    far_mark(op->t, FAR_VERB_UNPROVEN);
}
