/* lockfree_nodes=off, for comparisons: a lock around every change of a node, as before the paper. The slots are still
 * changed by CAS, so nothing can be half done under a lock; the lock of a dead client is taken over as it is. The locks
 * lie behind the root's slots on each memory node, and a node has one of them by its address. */
#include "index/smart/smart.h"
#include "pool/epoch.h"
#include "pool/owner.h"


far_addr smart_node_lock(const smart_op *op, const smart_spot *s) {
    unsigned node = far_addr_node(s->slot ? s->slot : s->node);
    uint64_t number = ((s->node ? s->node : s->slot) * 0x9e3779b97f4a7c15ull >> 32) % SMART_NODE_LOCKS;
    return op->st->stripe[node] + smart_stripe_slots(op->st->stripes) + 8 * number;
}


/* 1: locked; 0: not, find again. */
int smart_lock_node(smart_op *op, far_addr lock) {
    int locked = far_lock_take(op->t, lock, op->st->patience, smart_ask_every(op->st));
    if (locked != 0)
        return locked;
    int err = smart_renew_pin(op); /* a long wait: nothing is held back by us */
    return err < 0 ? err : 0;
}


int smart_unlock_node(smart_op *op, far_addr lock) {
    return far_write_word(op->t, lock, 0);
}


/* For a walk: no word names a dead client afterwards. */
int smart_free_dead_node_locks(far_task *t, far_index *index) {
    const smart_state *st = smart_state_of(index);
    uint64_t words[SMART_NODE_LOCKS];
    int err = st->node_locks ? far_pin_take(t) : 0;
    for (unsigned i = 0; st->node_locks && err >= 0 && i < st->stripes; i++) {
        far_addr first = st->stripe[i] + smart_stripe_slots(st->stripes);
        far_read(t, first, words, sizeof(words));
        err = far_wait(t);
        if (err >= 0)
            err = far_locks_free_dead(t, first, words, SMART_NODE_LOCKS);
    }
    if (st->node_locks)
        far_pin_drop(t);
    return err < 0 ? err : 0;
}
