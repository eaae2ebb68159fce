/* Standing in a queue: tasks that wait for the latch of a node say with what, so that who holds it can do that for them, and
 * one lock in far memory serves all that one compute node has for the node. */
#include "index/chime/chime.h"
#include "task/latch.h"

#define ALONG_MAX 64 /* inserts that one change takes along: more find no room */


/* An entry of the queue stays where it is as long as the latch is another's. */
void chime_latch_queued(chime_queue *queue, far_task *t, chime_waiting *me, chime_ptr node) {
    *me = (chime_waiting){.task = t, .node = node};
    if (far_latch_try(t, chime_ptr_addr(node)))
        return;
    far_spin_lock(&queue->lock);
    me->next = queue->first;
    queue->first = me;
    far_spin_unlock(&queue->lock);
    far_latch(t, chime_ptr_addr(node));
    far_spin_lock(&queue->lock);
    chime_waiting **link = &queue->first;
    while (*link != me)
        link = &(*link)->next;
    *link = me->next;
    far_spin_unlock(&queue->lock);
}


unsigned chime_list_queue(chime_queue *queue, chime_ptr node, unsigned most, chime_waiting *all[]) {
    unsigned count = 0;
    far_spin_lock(&queue->lock);
    for (chime_waiting *w = queue->first; w && count < most; w = w->next)
        if (w->node == node && !w->served)
            all[count++] = w;
    far_spin_unlock(&queue->lock);
    return count;
}


chime_waiting *chime_find_queued(chime_queue *queue, const far_task *t) {
    far_spin_lock(&queue->lock);
    chime_waiting *w = queue->first;
    while (w && w->task != t)
        w = w->next;
    far_spin_unlock(&queue->lock);
    return w;
}


/* Inserts that wait for a leaf go in with the insert of the task that has locked it: those whose keys belong there,
 * are not there, and find a free slot near their home. Nothing moves for them, and no slot is changed twice: to a
 * reader that sees a part of it, between two equal S, it is one change. */

static bool has_key(const chime_state *st, uint64_t *w, unsigned home, uint64_t key) {
    for (unsigned i = 0; i < st->hop && (st->wrap || home + i < st->span); i++) {
        unsigned slot = chime_step(st, home, i);
        if (chime_is_occupied(st, w, slot) && chime_slot(st, w, slot)[0] == key)
            return true;
    }
    return false;
}


static bool belongs(const uint64_t *tail, uint64_t key) { /* keys and fences are numbers */
    return tail[CHIME_TAIL_LOW] <= key && (!chime_h1_sibling(tail[CHIME_TAIL_H1]) || key < tail[CHIME_TAIL_HIGH]);
}


unsigned chime_take_along(chime_op *op, chime_ptr leaf, uint64_t *w, chime_insert **along) {
    chime_state *st = op->st;
    chime_waiting *all[ALONG_MAX];
    unsigned listed = st->along ? chime_list_queue(&st->inserts, leaf, ALONG_MAX, all) : 0, count = 0;
    for (unsigned i = 0; i < listed; i++) {
        chime_insert *insert = (chime_insert *)all[i];
        int slot = chime_free_near(st, w, insert->home);
        if (slot < 0 || !belongs(chime_tail(st, w), insert->key) || has_key(st, w, insert->home, insert->key))
            continue;
        chime_place(st, w, (unsigned)slot, insert->home, insert->key, insert->value);
        insert->waiting.served = true;
        insert->along = *along;
        *along = insert;
        count++;
    }
    return count;
}


/* If the session of who took them along was lost over it, they may be in or not. */
void chime_tell_along(chime_op *op, chime_insert **along, int err) {
    bool lost = chime_is_lost(err);
    for (chime_insert *i = *along; i; i = i->along) {
        i->lost = lost;
        i->waiting.served = lost || err >= 0;
        atomic_fetch_add_explicit(&op->st->counts.inserts_along, err >= 0, memory_order_relaxed);
    }
    *along = NULL;
}
