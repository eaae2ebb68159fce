/* locks=on: one writer at a time per slot. A lock names its holder, so that whoever waits can ask whether it lives: the
 * lock of a dead client is taken over. Nothing is half done under a lock (the slot changes by one WRITE), so there is
 * nothing to repair. */
#include "index/toy/toy.h"
#include "pool/clients.h"
#include "pool/epoch.h"

#define ASK_EVERY 4 /* attempts between two looks at the holder */


static far_addr lock_addr(const far_index *index, uint64_t slot) {
    return toy_slot_addr(toy_state_of(index), slot) + 8;
}


/* A long wait: nothing may be held back by our pin. What was read under it is forgotten. */
static int renew_pin(far_task *t) {
    far_pin_drop(t);
    return far_pin_take(t);
}


int toy_lock_slot(far_task *t, far_index *index, uint64_t slot) {
    uint64_t mine = toy_lock(far_task_client(t), far_task_generation(t), far_task_number(t)), expected = 0, old;
    for (unsigned attempt = 0;; attempt++) {
        int err = far_cas_word(t, lock_addr(index, slot), expected, mine, &old);
        if (err < 0)
            return err;
        if (old == expected) {
            far_point(t, "toy:locked");
            return 0;
        }
        far_count_retry(t);
        expected = 0;
        if (old && attempt % ASK_EVERY == ASK_EVERY - 1) {
            bool takes_over = toy_state_of(index)->fault != TOY_FORGOTTEN_LOCK;
            int dead = takes_over ? far_is_dead(t, toy_lock_client(old), toy_lock_generation(old)) : 0;
            if (dead < 0 || (dead == 0 && (dead = renew_pin(t)) < 0))
                return dead;
            if (dead) {
                expected = old;
                continue;
            }
        }
        if (old)
            far_back_off(t, attempt);
    }
}


int toy_unlock_slot(far_task *t, far_index *index, uint64_t slot) {
    return far_write_word(t, lock_addr(index, slot), 0);
}


int toy_free_dead_lock(far_task *t, far_index *index, uint64_t slot, uint64_t lock) {
    uint64_t old;
    if (toy_state_of(index)->fault == TOY_FORGOTTEN_LOCK)
        return 0;
    int dead = far_is_dead(t, toy_lock_client(lock), toy_lock_generation(lock));
    return dead <= 0 ? dead : far_cas_word(t, lock_addr(index, slot), lock, 0, &old);
}
