/* CHIME: tasks that wait for the latch of a node. A waiting task publishes its insert or pivot in a queue of the
 * handle. The lock holder can then include that work in its own change, so that one lock in far memory serves several
 * tasks of one compute node. */
#include "index/chime/chime.h"
#include "task/latch.h"

/* largest number of inserts that one change combines; a leaf rarely has room for more */
#define COMBINED_INSERTS_MAX 64


/* The queue contains a pointer to `me`. The entry remains valid while another task holds the latch, because only the
 * waiting task itself removes it, after it got the latch. */
void chime_latch_as_waiter(chime_queue *queue, far_task *t, chime_waiter *me, chime_ptr node) {
    *me = (chime_waiter){.task = t, .node = node};
    if (far_latch_try(t, chime_ptr_addr(node)))
        return;
    far_spin_lock(&queue->lock);
    me->next = queue->first;
    queue->first = me;
    far_spin_unlock(&queue->lock);
    far_latch(t, chime_ptr_addr(node));
    far_spin_lock(&queue->lock);
    chime_waiter **link = &queue->first;
    while (*link != me)
        link = &(*link)->next;
    *link = me->next;
    far_spin_unlock(&queue->lock);
}


unsigned chime_list_waiters(chime_queue *queue, chime_ptr node, unsigned most, chime_waiter *all[]) {
    unsigned count = 0;
    far_spin_lock(&queue->lock);
    for (chime_waiter *w = queue->first; w && count < most; w = w->next)
        if (w->node == node && !w->served)
            all[count++] = w;
    far_spin_unlock(&queue->lock);
    return count;
}


chime_waiter *chime_find_waiter(chime_queue *queue, const far_task *t) {
    far_spin_lock(&queue->lock);
    chime_waiter *w = queue->first;
    while (w && w->task != t)
        w = w->next;
    far_spin_unlock(&queue->lock);
    return w;
}


/* Combined inserts. The lock holder also inserts the waiting keys that belong to its leaf, are not present yet, and
 * find a free slot in their neighbourhood. No item moves for these keys, and no slot changes twice. Therefore all of
 * these inserts count as one change for a reader that sees part of the change between two equal values of S (the
 * structure nonce of the leaf). */

static bool leaf_has_key(const chime_state *st, uint64_t *w, unsigned home, uint64_t key) {
    for (unsigned i = 0; i < st->hop && (st->wrap || home + i < st->span); i++) {
        unsigned slot = chime_slot_after(st, home, i);
        if (chime_slot_is_occupied(st, w, slot) && chime_slot(st, w, slot)[0] == key)
            return true;
    }
    return false;
}


/* Returns whether the key is inside the fences of the leaf. Only for indexes with inline items, where keys and fences
 * are numbers. */
static bool key_is_in_range(const uint64_t *tail, uint64_t key) {
    return tail[CHIME_TAIL_LOW] <= key && (!chime_h1_sibling(tail[CHIME_TAIL_H1]) || key < tail[CHIME_TAIL_HIGH]);
}


unsigned chime_combine_inserts(chime_op *op, chime_ptr leaf, uint64_t *w, chime_insert **combined) {
    chime_state *st = op->st;
    chime_waiter *all[COMBINED_INSERTS_MAX];
    unsigned listed = st->combine_inserts ? chime_list_waiters(&st->inserts, leaf, COMBINED_INSERTS_MAX, all) : 0,
             count = 0;
    for (unsigned i = 0; i < listed; i++) {
        chime_insert *insert = (chime_insert *)all[i];
        int slot = chime_find_free_near_home(st, w, insert->home_slot);
        if (slot < 0 || !key_is_in_range(chime_tail(st, w), insert->key) ||
            leaf_has_key(st, w, insert->home_slot, insert->key))
            continue;
        chime_place_item(st, w, (unsigned)slot, insert->home_slot, insert->key, insert->value);
        insert->waiter.served = true;
        insert->next_combined = *combined;
        *combined = insert;
        count++;
    }
    return count;
}


/* If the lock holder lost its session during the change, the combined inserts may or may not have taken effect. After
 * any other error they have not, and their tasks try again. */
void chime_report_combined_inserts(chime_op *op, chime_insert **combined, int err) {
    bool lost = chime_session_is_lost(err);
    for (chime_insert *i = *combined; i; i = i->next_combined) {
        i->outcome_unknown = lost;
        i->waiter.served = lost || err >= 0;
        atomic_fetch_add_explicit(&op->st->counts.combined_inserts, err >= 0, memory_order_relaxed);
    }
    *combined = NULL;
}
