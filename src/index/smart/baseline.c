/* The option lockfree_nodes=off is a baseline for comparisons. With it every insert locks the deciding node of its key
 * (smart.h), as in an ART without SMART's lock-free nodes. Slots are changed by CAS as usual, so nothing is half done
 * under a lock, and the lock of a failed client can simply be taken over. The lock words are stored after the root's
 * slots on each memory node; a hash of a node's address selects its lock. write_insert.c takes and releases the
 * locks. */
#include "index/smart/smart.h"
#include "pool/epoch/epoch.h"
#include "pool/format/owner.h"


far_addr smart_node_lock(const smart_op *op, const smart_spot *s) {
    unsigned node = far_addr_node(s->slot ? s->slot : s->node);
    uint64_t number = ((s->node ? s->node : s->slot) * 0x9e3779b97f4a7c15ull >> 32) % SMART_NODE_LOCKS;
    return op->st->stripe[node] + smart_stripe_slots(op->st->stripes) + 8 * number;
}


/* Tries to take the lock of a node. Returns 1 if the lock was taken. Returns 0 if a live client holds the lock; in that
 * case the pin was renewed, so the caller must search again. */
int smart_lock_node(smart_op *op, far_addr lock) {
    int locked = far_lock_take(op->t, lock, op->st->attempts_per_pin, smart_liveness_check_interval(op->st));
    if (locked != 0)
        return locked;
    /* After a long wait the operation renews its pin, so that the old pin does not delay the reuse of memory. */
    int err = smart_renew_pin(op);
    return err < 0 ? err : 0;
}


int smart_unlock_node(smart_op *op, far_addr lock) {
    return far_write_word(op->t, lock, 0);
}


/* Called by a walk. Frees all node locks of failed clients. Returns 0 or an error; after 0 no lock word names a failed
 * client. */
int smart_free_dead_node_locks(far_task *t, far_index *index) {
    const smart_state *st = smart_state_of(index);
    uint64_t words[SMART_NODE_LOCKS];
    int err = st->node_locks ? far_pin_take(t) : 0;
    for (unsigned i = 0; st->node_locks && err >= 0 && i < st->stripes; i++) {
        far_addr first = st->stripe[i] + smart_stripe_slots(st->stripes);
        far_read(t, first, words, sizeof(words));
        err = far_wait(t);
        if (err >= 0)
            err = far_locks_release_failed(t, first, words, SMART_NODE_LOCKS);
    }
    if (st->node_locks)
        far_pin_drop(t);
    return err < 0 ? err : 0;
}
