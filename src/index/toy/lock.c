/* locks=on: one writer at a time per slot. A lock names its holder, so that whoever waits can ask whether it lives: the
 * lock of a dead client is taken over. Nothing is half done under a lock (the slot changes by one WRITE), so there is
 * nothing to repair. */
#include "index/toy/toy.h"
#include "pool/epoch.h"
#include "pool/owner.h"

#define ASK_EVERY 4  /* attempts between two looks at the holder */
#define PATIENCE  16 /* attempts under one pin */


static far_addr lock_addr(const far_index *index, uint64_t slot) {
    return toy_slot_addr(toy_state_of(index), slot) + 8;
}


/* A long wait: nothing may be held back by our pin. What was read under it is forgotten. */
static int renew_pin(far_task *t) {
    far_pin_drop(t);
    return far_pin_take(t);
}


int toy_lock_slot(far_task *t, far_index *index, uint64_t slot) {
    unsigned ask_every = toy_state_of(index)->fault == TOY_FORGOTTEN_LOCK ? 0 : ASK_EVERY;
    int locked;
    while ((locked = far_lock_take(t, lock_addr(index, slot), PATIENCE, ask_every)) == 0)
        if ((locked = renew_pin(t)) < 0)
            break;
    if (locked < 0)
        return locked;
    far_point(t, "toy:locked");
    return 0;
}


int toy_unlock_slot(far_task *t, far_index *index, uint64_t slot) {
    return far_write_word(t, lock_addr(index, slot), 0);
}


int toy_free_dead_lock(far_task *t, far_index *index, uint64_t slot, uint64_t lock) {
    if (toy_state_of(index)->fault == TOY_FORGOTTEN_LOCK)
        return 0;
    return far_locks_free_dead(t, lock_addr(index, slot), &lock, 1);
}
