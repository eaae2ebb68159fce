/* CHIME: how a write gets the lock of its leaf. The lock is a word in far memory. Of the tasks of one compute node,
 * only the one that holds the local latch of the leaf tries to take it; the others wait in the latch's queue without
 * sending verbs. When the holder is done, it can hand the lock over to the next task in the queue instead of freeing
 * it. write.c calls chime_lock_leaf and chime_release_latch. */
#include "index/chime/write.h"
#include "pool/epoch/epoch.h"
#include "task/latch.h"

#include <stdlib.h>

#define CHECK_HOLDER_EVERY 4
#define SMALL_TREE_LEVEL   1 /* a tree has few leaves if its root has at most this level */
/* Largest number of handovers in a row. After this number the lock is freed, so that other compute nodes can take it.
 */
#define HANDOVERS_MAX 32


/* Handover. The WRITE that would free the lock writes the lock word of the next task instead. Together with the latch,
 * the next task gets the words listed here. The first task READs the whole leaf and passes its image on. Later tasks
 * therefore only post their WRITEs, which take one round trip. */

enum {
    HANDOVER_LOCK,
    HANDOVER_MAP,
    HANDOVER_COUNT,
    /* the previous owner's lock word, if its session was lost during the handover, so that the WRITE may not have taken
     * effect; otherwise 0 */
    HANDOVER_UNCERTAIN_LOCK,
    HANDOVER_IMAGE, /* address of a local image of the leaf as it is now, which the next owner frees; 0: none */
};

far_task *chime_next_latch_waiter(const chime_op *op, const chime_change *c, chime_ptr leaf) {
    return c->handovers < HANDOVERS_MAX && op->st->handover ? far_latch_next(op->t, chime_ptr_addr(leaf)) : NULL;
}


bool chime_may_be_combined(const chime_op *op, const chime_change *c) {
    return op->st->combine_inserts && c->how == FAR_OP_INSERT;
}


/* Returns the number of tasks that will get the lock one after the other, after the task that holds the latch. */
static unsigned count_planned_handovers(const chime_op *op, const chime_change *c, chime_ptr leaf) {
    unsigned most = HANDOVERS_MAX - c->handovers, waiting = 0;
    if (op->st->handover)
        waiting = far_latch_waiting(op->t, chime_ptr_addr(leaf), most);
    /* The tasks that wait with an insert will most likely be served by this one change, so one handover at most is
     * announced. */
    return waiting && chime_may_be_combined(op, c) ? 1 : waiting;
}


/* Returns whether this waiting task has nothing to do under the lock of the leaf. Either its insert was done by another
 * task, or it waits with a pivot because an outdated pointer made it take the leaf for an inner node. Such a task must
 * not become the lock owner, because it would not recognise the handover and the lock would stay held. */
static bool task_needs_no_lock(const chime_op *op, const far_task *t) {
    const chime_waiter *insert = chime_find_waiter(&op->st->inserts, t);
    return (insert && insert->served) || chime_find_waiter(&op->st->pivots, t);
}


void chime_choose_next_owner(chime_op *op, const chime_change *c, chime_ptr leaf) {
    far_task *heir = chime_next_latch_waiter(op, c, leaf);
    if (heir && task_needs_no_lock(op, heir))
        heir = NULL;
    op->next_owner =
        heir ? chime_lock_make(far_owner_of_task(heir), chime_next_nonce(op), count_planned_handovers(op, c, leaf) - 1)
             : 0;
}


/* Returns how much slower the fabric is than without load, as a power of two, by comparing the duration of the last
 * repeated lock attempt with the base round trip. The lock holder needs a few more round trips, which take longer under
 * load. An attempt before the holder is done would fail, and would only add to the load. */
static unsigned load_exponent(const chime_op *op) {
    uint64_t took = atomic_load_explicit(&op->st->lock_ns, memory_order_relaxed), rtt = far_rtt(op->t);
    unsigned bits = 0;
    while (bits < 6 && (rtt << bits) * 3 / 2 < took)
        bits++;
    return bits;
}


/* Returns the number of round trips to wait before the next attempt. This is one per handover that the lock word
 * announces, plus the time that the holder itself needs. An insert waits longer before its first repeated attempt. The
 * holder may be splitting the leaf, and meanwhile more inserts of the same compute node can be combined with this
 * insert. With each failed attempt the client waits less, because a client that always waited longer than others would
 * lose the lock to them again and again. */
static uint64_t round_trips_to_wait(const chime_change *c, unsigned attempt, uint64_t lock) {
    unsigned more = !chime_may_insert(c) ? 1 + (attempt > 0) : attempt < 3 ? 8u >> attempt : 1;
    return chime_lock_handovers(lock) + more;
}


bool chime_tree_is_small(const chime_op *op) {
    uint64_t root = atomic_load_explicit(&op->st->root, memory_order_relaxed);
    return op->st->split_early && root && chime_ptr_low(root) <= SMALL_TREE_LEVEL;
}


/* Called when another client holds the lock. Waits until the next attempt is worthwhile, and repairs the leaf if the
 * holder has failed. Returns CHIME_AGAIN to try again, or CHIME_STALE if the leaf is being merged. */
static int wait_for_lock(chime_op *op, chime_change *c, chime_ptr leaf, uint64_t lock) {
    unsigned attempt = c->attempts++;
    int err = 0;
    far_count_lock_retry(op->t);
    if (attempt % CHECK_HOLDER_EVERY == CHECK_HOLDER_EVERY - 1 &&
        (err = chime_repair_if_holder_failed(op, leaf, lock)) != 0)
        return err < 0 ? err : err == 2 ? CHIME_STALE : CHIME_AGAIN;
    if (chime_may_insert(c) && chime_tree_is_small(op))
        chime_prealloc_node(op, leaf);
    far_back_off_for(op->t, round_trips_to_wait(c, attempt, lock) * (far_rtt(op->t) << load_exponent(op)));
    return CHIME_AGAIN;
}


/* Makes one attempt to take the lock. The batch contains the atomic on the lock word, and also the READs if the fabric
 * executes atomics before later READs. Returns 0, CHIME_AGAIN, CHIME_STALE or an error. */
static int try_far_lock(chime_op *op, chime_change *c, chime_node *n, chime_lock *lock) {
    chime_batch_lock(op, n->ptr, count_planned_handovers(op, c, n->ptr), lock);
    c->slots_read = 0;
    if (op->st->fuse_lock_and_read) {
        c->slots_read = op->st->hopscotch && !chime_next_latch_waiter(op, c, n->ptr) ? op->st->hop : op->st->span;
        chime_batch_change_reads(op, c, n, c->slots_read);
    }
    int err = chime_wait(op);
    return err < 0 ? err : chime_take_lock_result(op, lock);
}


/* Tries until the lock is taken. The task keeps the latch meanwhile, so the other tasks of this compute node send no
 * verbs for this leaf. After lock_attempts attempts it returns CHIME_AGAIN, which gives another task of the queue its
 * turn. */
static int take_far_lock(chime_op *op, chime_change *c, chime_node *n, chime_lock *lock) {
    int err = try_far_lock(op, c, n, lock);
    while (err == CHIME_AGAIN && (err = wait_for_lock(op, c, n->ptr, lock->old_word)) == CHIME_AGAIN &&
           c->attempts % op->st->lock_attempts != 0) {
        uint64_t start = far_now(op->t);
        err = try_far_lock(op, c, n, lock);
        atomic_store_explicit(&op->st->lock_ns, far_now(op->t) - start, memory_order_relaxed);
    }
    return err;
}


/* Returns the image of the leaf for the next owner, or NULL if this task has not READ the whole leaf. One allocation is
 * passed from owner to owner. */
static uint64_t *image_for_next_owner(chime_op *op, chime_change *c, const chime_node *n) {
    uint64_t *view = c->shared_image;
    c->shared_image = NULL;
    if (c->slots_read == op->st->span && (view || (view = malloc(op->st->node_bytes))))
        return memcpy(view, n->w, op->st->node_bytes);
    free(view);
    return NULL;
}


void chime_release_latch(chime_op *op, chime_change *c, const chime_node *n, const chime_lock *lock, int err) {
    uint64_t handover[FAR_HANDOVER_WORDS] = {
        [HANDOVER_LOCK] = op->next_owner, [HANDOVER_MAP] = op->next_owner_map, [HANDOVER_COUNT] = c->handovers + 1};
    if (op->next_owner && chime_session_is_lost(err))
        handover[HANDOVER_UNCERTAIN_LOCK] = lock->new_word;
    else if (op->next_owner)
        handover[HANDOVER_IMAGE] = (uintptr_t)image_for_next_owner(op, c, n);
    if (op->next_owner)
        far_unlatch_handover(op->t, chime_ptr_addr(n->ptr), handover);
    else
        far_unlatch(op->t, chime_ptr_addr(n->ptr));
    free(c->shared_image);
    c->shared_image = NULL;
    op->next_owner = 0;
}


static void accept_handover(chime_op *op, chime_change *c, chime_node *n, const uint64_t *handover, chime_lock *lock) {
    c->slots_read = 0;
    c->shared_image = (uint64_t *)(uintptr_t)handover[HANDOVER_IMAGE];
    if (c->shared_image) {
        memcpy(n->w, c->shared_image, op->st->node_bytes);
        c->slots_read = op->st->span;
    }
    c->handovers = (unsigned)handover[HANDOVER_COUNT];
    lock->new_word = handover[HANDOVER_LOCK];
    lock->map = handover[HANDOVER_MAP];
    lock->old_word = op->st->masked_cas ? chime_map_to_word(lock->map) : 0;
}


/* Called when the previous owner lost its session during the WRITE that hands the lock over. Two cases are possible.
 * Either the WRITE took effect, so this task holds the lock; or the lock word still names the previous owner, until a
 * repair frees the lock. The function READs the lock word until it shows one of these cases. Since the previous session
 * is fenced, the outcome cannot change any more. */
static int resolve_uncertain_handover(chime_op *op, chime_change *c, chime_node *n, uint64_t *handover,
                                      chime_lock *lock) {
    const uint64_t *tail = chime_tail(op->st, n->w);
    for (bool ours = false;;) {
        chime_batch_read_node_and_s(op, n);
        int err = chime_wait(op);
        if (err < 0)
            return err;
        if (tail[CHIME_TAIL_L] == handover[HANDOVER_LOCK] && !ours) {
            /* The lock word shows that this task holds the lock, but the lines of the same READ may be older than the
             * lock word. So the leaf is READ once more; now no other client writes to it. */
            ours = true;
            continue;
        }
        if (tail[CHIME_TAIL_L] == handover[HANDOVER_LOCK]) {
            handover[HANDOVER_MAP] = chime_occupancy_map(op->st, n->w);
            accept_handover(op, c, n, handover, lock);
            return 0;
        }
        if (tail[CHIME_TAIL_L] != handover[HANDOVER_UNCERTAIN_LOCK])
            return take_far_lock(op, c, n, lock);
        if ((err = wait_for_lock(op, c, n->ptr, tail[CHIME_TAIL_L])) < 0)
            return err;
    }
}


int chime_lock_leaf(chime_op *op, chime_change *c, chime_node *n, chime_lock *lock) {
    uint64_t handover[FAR_HANDOVER_WORDS];
    c->handovers = 0;
    if (!far_latch_take_handover(op->t, chime_ptr_addr(n->ptr), handover))
        return take_far_lock(op, c, n, lock);
    if (handover[HANDOVER_UNCERTAIN_LOCK])
        return resolve_uncertain_handover(op, c, n, handover, lock);
    accept_handover(op, c, n, handover, lock);
    return 0;
}
