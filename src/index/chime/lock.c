/* The lock of a leaf that is to be changed: taken in far memory by one task of a compute node, and handed on to those of it
 * that wait. */
#include "index/chime/write.h"
#include "pool/epoch.h"
#include "task/latch.h"

#include <stdlib.h>

#define ASK_EVERY     4
#define CROWD_LEVEL   1  /* the root of a tree with few leaves is no higher than that */
#define HANDOVERS_MAX 32 /* of a lock inside of a compute node, in a row */


/* Handing the lock over. Whoever waits for the latch is named in the word that would have freed the lock: of tasks of
 * one compute node only the first asks for it in far memory. It READs the whole leaf, and hands on what it knows too, so
 * that the others need only their WRITEs. After some turns the lock is free again, for other compute nodes. */

enum {
    GIFT_LOCK,
    GIFT_MAP,
    GIFT_TURNS,
    GIFT_BEFORE, /* the giver's word, if its WRITE failed: it may have been done */
    GIFT_VIEW,   /* memory that holds the whole leaf as it is now, for the heir to free; 0: none */
};

far_task *chime_next_in_turn(const chime_op *op, const chime_change *c, chime_ptr leaf) {
    return c->turns < HANDOVERS_MAX && op->st->handover ? far_latch_next(op->t, chime_ptr_addr(leaf)) : NULL;
}


bool chime_goes_along(const chime_op *op, const chime_change *c) {
    return op->st->along && c->how == FAR_OP_INSERT;
}


/* How many will have the lock in turn after the task that holds the latch. */
static unsigned behind(const chime_op *op, const chime_change *c, chime_ptr leaf) {
    unsigned most = HANDOVERS_MAX - c->turns, waiting = 0;
    if (op->st->handover)
        waiting = far_latch_waiting(op->t, chime_ptr_addr(leaf), most);
    return waiting && chime_goes_along(op, c) ? 1 : waiting; /* the others will most likely go in with it */
}


/* A task that waits for the latch, and has nothing to do under the lock of this leaf: its insert is done, or it waits with a
 * pivot, because the way it knows leads to an inner node that lay here once. It would not know what lock it has. */
static bool is_no_heir(const chime_op *op, const far_task *t) {
    const chime_waiting *insert = chime_find_queued(&op->st->inserts, t);
    return (insert && insert->served) || chime_find_queued(&op->st->pivots, t);
}


void chime_choose_heir(chime_op *op, const chime_change *c, chime_ptr leaf) {
    far_task *heir = chime_next_in_turn(op, c, leaf);
    if (heir && is_no_heir(op, heir))
        heir = NULL;
    op->heir = heir ? chime_lock_make(far_owner_of_task(heir), chime_next_nonce(op), behind(op, c, leaf) - 1) : 0;
}


/* The holder of a lock needs some round trips more, and they take longer where much is going on: asking again before that
 * would only add to it. As a power of two times the round trip of a network at rest. */
static unsigned slowness(const chime_op *op) {
    uint64_t took = atomic_load_explicit(&op->st->lock_ns, memory_order_relaxed), rtt = far_rtt(op->t);
    unsigned bits = 0;
    while (bits < 6 && (rtt << bits) * 3 / 2 < took)
        bits++;
    return bits;
}


/* When to ask again, in round trips: the lock word tells how many it will be handed on to, one for each. The holder itself
 * needs about two more. An insert waits longer at first, because the holder may split what it has locked, and because more
 * of its own compute node go in with it then; but each time that it finds the lock held it asks sooner: whoever sleeps
 * longer than others loses the lock to them again and again. */
static uint64_t turns_to_wait(const chime_change *c, unsigned attempt, uint64_t lock) {
    unsigned more = !chime_inserts(c) ? 1 + (attempt > 0) : attempt < 3 ? 8u >> attempt : 1;
    return chime_lock_behind(lock) + more;
}


bool chime_is_growing(const chime_op *op) {
    uint64_t root = atomic_load_explicit(&op->st->root, memory_order_relaxed);
    return op->st->crowd && root && chime_ptr_low(root) <= CROWD_LEVEL;
}


/* Somebody holds the lock. CHIME_AGAIN: it is worth another attempt; CHIME_STALE: the node is going. */
static int held(chime_op *op, chime_change *c, chime_ptr leaf, uint64_t lock) {
    unsigned attempt = c->attempts++;
    int err = 0;
    far_count_lock_retry(op->t);
    if (attempt % ASK_EVERY == ASK_EVERY - 1 && (err = chime_resolve(op, leaf, lock)) != 0)
        return err < 0 ? err : err == 2 ? CHIME_STALE : CHIME_AGAIN;
    if (chime_inserts(c) && chime_is_growing(op))
        chime_take_spare(op, leaf);
    far_back_off_for(op->t, turns_to_wait(c, attempt, lock) * (far_rtt(op->t) << slowness(op)));
    return CHIME_AGAIN;
}


/* {lock}, with what may be READ in the same batch. */
static int lock_leaf(chime_op *op, chime_change *c, chime_node *n, chime_lock *lock) {
    chime_put_lock(op, n->ptr, behind(op, c, n->ptr), lock);
    c->known = 0;
    if (op->st->fused) {
        c->known = op->st->hopscotch && !chime_next_in_turn(op, c, n->ptr) ? op->st->hop : op->st->span;
        chime_put_change_reads(op, c, n, c->known);
    }
    int err = chime_wait(op);
    return err < 0 ? err : chime_lock_result(op, lock);
}


/* The latch is kept while others hold the lock: of this compute node one task asks for it, the others wait without
 * verbs. After so many attempts it is somebody else's turn. */
static int lock_in_turn(chime_op *op, chime_change *c, chime_node *n, chime_lock *lock) {
    int err = lock_leaf(op, c, n, lock);
    while (err == CHIME_AGAIN && (err = held(op, c, n->ptr, lock->old)) == CHIME_AGAIN &&
           c->attempts % op->st->patience != 0) {
        uint64_t start = far_now(op->t);
        err = lock_leaf(op, c, n, lock);
        atomic_store_explicit(&op->st->lock_ns, far_now(op->t) - start, memory_order_relaxed);
    }
    return err;
}


/* What is known of the leaf, in memory that goes from one to the next. */
static uint64_t *view_for_heir(chime_op *op, chime_change *c, const chime_node *n) {
    uint64_t *view = c->view;
    c->view = NULL;
    if (c->known == op->st->span && (view || (view = malloc(op->st->node_bytes))))
        return memcpy(view, n->w, op->st->node_bytes);
    free(view);
    return NULL;
}


void chime_leave_lock(chime_op *op, chime_change *c, const chime_node *n, const chime_lock *lock, int err) {
    uint64_t gift[FAR_GIFT_WORDS] = {[GIFT_LOCK] = op->heir, [GIFT_MAP] = op->heir_map, [GIFT_TURNS] = c->turns + 1};
    if (op->heir && chime_is_lost(err))
        gift[GIFT_BEFORE] = lock->mine;
    else if (op->heir)
        gift[GIFT_VIEW] = (uintptr_t)view_for_heir(op, c, n);
    if (op->heir)
        far_unlatch_gift(op->t, chime_ptr_addr(n->ptr), gift);
    else
        far_unlatch(op->t, chime_ptr_addr(n->ptr));
    free(c->view);
    c->view = NULL;
    op->heir = 0;
}


static void inherit(chime_op *op, chime_change *c, chime_node *n, const uint64_t *gift, chime_lock *lock) {
    c->known = 0;
    c->view = (uint64_t *)(uintptr_t)gift[GIFT_VIEW];
    if (c->view) {
        memcpy(n->w, c->view, op->st->node_bytes);
        c->known = op->st->span;
    }
    c->turns = (unsigned)gift[GIFT_TURNS];
    lock->mine = gift[GIFT_LOCK];
    lock->map = gift[GIFT_MAP];
    lock->old = op->st->masked ? chime_map_word(lock->map) : 0;
}


/* The giver's session was lost over its last WRITE. Either that was done, and the lock is ours, or the giver still
 * holds it, until it is found dead; what is decided then stays so. */
static int settle_gift(chime_op *op, chime_change *c, chime_node *n, uint64_t *gift, chime_lock *lock) {
    const uint64_t *tail = chime_tail(op->st, n->w);
    for (bool ours = false;;) {
        chime_put_read_all(op, n);
        int err = chime_wait(op);
        if (err < 0)
            return err;
        if (tail[CHIME_TAIL_L] == gift[GIFT_LOCK] && !ours) { /* its lines may be older than this: now nobody writes */
            ours = true;
            continue;
        }
        if (tail[CHIME_TAIL_L] == gift[GIFT_LOCK]) {
            gift[GIFT_MAP] = chime_occupied_map(op->st, n->w);
            inherit(op, c, n, gift, lock);
            return 0;
        }
        if (tail[CHIME_TAIL_L] != gift[GIFT_BEFORE])
            return lock_in_turn(op, c, n, lock);
        if ((err = held(op, c, n->ptr, tail[CHIME_TAIL_L])) < 0)
            return err;
    }
}


int chime_take_lock(chime_op *op, chime_change *c, chime_node *n, chime_lock *lock) {
    uint64_t gift[FAR_GIFT_WORDS];
    c->turns = 0;
    if (!far_latch_gift(op->t, chime_ptr_addr(n->ptr), gift))
        return lock_in_turn(op, c, n, lock);
    if (gift[GIFT_BEFORE])
        return settle_gift(op, c, n, gift, lock);
    inherit(op, c, n, gift, lock);
    return 0;
}
