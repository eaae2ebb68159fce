/* With the option locks=on, there is one writer at a time per slot. The lock word names its holder, so a waiting client
 * can find out whether the holder is alive, and takes over the lock of a failed client. The slot changes by one WRITE,
 * so nothing can be half done under a lock and nothing has to be repaired. write.c takes and releases the locks. */
#include "index/toy/toy.h"
#include "pool/epoch/epoch.h"
#include "pool/format/owner.h"

#define ASK_EVERY 4 /* failed attempts between two checks whether the holder is alive */
/* failed attempts after which the pin is renewed, so that a long wait does not hold back the epoch */
#define PATIENCE 16


static far_addr lock_addr(const far_index *index, uint64_t slot) {
    return toy_slot_addr(toy_state_of(index), slot) + 8;
}


/* After a long wait the pin is renewed, so that it does not hold back the reuse of memory. Everything that was read
 * under the old pin is void then. */
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
    return far_locks_release_failed(t, lock_addr(index, slot), &lock, 1);
}
