/* lockfree_nodes=off, for comparisons: a lock around every change of a node, as before the paper. The slots are still
 * changed by CAS, so nothing can be half done under a lock; the lock of a dead client is taken over as it is. The locks
 * lie behind the root's slots on each memory node, and a node has one of them by its address. */
#include "index/smart/smart.h"
#include "pool/clients.h"
#include "pool/epoch.h"


far_addr smart_node_lock(const smart_op *op, const smart_spot *s) {
    unsigned node = far_addr_node(s->slot ? s->slot : s->node);
    uint64_t number = ((s->node ? s->node : s->slot) * 0x9e3779b97f4a7c15ull >> 32) % SMART_NODE_LOCKS;
    return op->st->stripe[node] + smart_stripe_slots(op->st->stripes) + 8 * number;
}


/* 1: locked; 0: not, find again. */
int smart_lock_node(smart_op *op, far_addr lock) {
    uint64_t mine = smart_lock_owner(far_task_client(op->t), far_task_generation(op->t), far_task_number(op->t)),
             expected = 0, old;
    for (unsigned attempt = 0; attempt < op->st->patience; attempt++) {
        int err = far_cas_word(op->t, lock, expected, mine, &old);
        if (err < 0 || old == expected)
            return err < 0 ? err : 1;
        far_count_retry(op->t);
        expected = 0;
        if (old && smart_is_time_to_ask(op->st, attempt)) {
            if ((err = far_is_dead(op->t, smart_lock_client(old), smart_lock_generation(old))) < 0)
                return err;
            expected = err ? old : 0;
        }
        if (!expected)
            far_back_off(op->t, attempt);
    }
    int err = smart_renew_pin(op); /* a long wait: nothing is held back by us */
    return err < 0 ? err : 0;
}


int smart_unlock_node(smart_op *op, far_addr lock) {
    return far_write_word(op->t, lock, 0);
}


/* For a walk: no word names a dead client afterwards. */
int smart_free_dead_node_locks(far_task *t, far_index *index) {
    const smart_state *st = smart_state_of(index);
    uint64_t words[SMART_NODE_LOCKS], old;
    int err = st->node_locks ? far_pin_take(t) : 0;
    for (unsigned i = 0; st->node_locks && err >= 0 && i < st->stripes; i++) {
        far_addr first = st->stripe[i] + smart_stripe_slots(st->stripes);
        far_read(t, first, words, sizeof(words));
        err = far_wait(t);
        for (unsigned n = 0; err >= 0 && n < SMART_NODE_LOCKS; n++) {
            if (words[n] && (err = far_is_dead(t, smart_lock_client(words[n]), smart_lock_generation(words[n]))) > 0)
                err = far_cas_word(t, first + 8 * n, words[n], 0, &old);
        }
    }
    if (st->node_locks)
        far_pin_drop(t);
    return err < 0 ? err : 0;
}
