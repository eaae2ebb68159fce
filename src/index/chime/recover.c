/* CHIME: repair of a node after the failure of the client that holds its lock. The session of that client is fenced, so
 * nothing changes in the node until another client takes over the lock, by a CAS that expects exactly the failed
 * client's lock word. The image of the node that was READ before the CAS is therefore still correct after the CAS. The
 * node and its right sibling show which change the failed client had begun:
 *
 *     lines with two node versions, the old sibling's absorber is this node   a merge was being written; redo it
 *     lines with two node versions otherwise                                  a split was being written; redo it
 *     one node version, the sibling's absorber is this node                   a merge was committed; perform it
 *     an item in two slots                                                    a hop was being written; clear one
 *     this node has an absorber                                               its left neighbour is repaired instead
 *     a child has an absorber                                                 the parent must remove that child
 *
 * A repair never moves an item, and it writes in the same order as the change itself. If the repairing client fails
 * too, the next client can repair again. Other files call chime_repair_if_holder_failed. */
#include "base/error.h"
#include "index/chime/chime.h"

/* limit for nested repairs: the repair of a node may need the repair of its neighbour first */
#define REPAIR_DEPTH_MAX 6
/* Limit for the number of READs of the absorber (the left neighbour that takes over the items of a node in a merge)
 * while this client waits until the merge is complete. The wait is limited because this client holds the lock of the
 * parent meanwhile. */
#define ABSORBER_READS_MAX 1000u

typedef struct repair {
    chime_op *op;
    chime_node node;    /* image of the node that is repaired; changed to the state after the repair */
    chime_node sibling; /* right sibling of the node, which the node absorbs or which its split has created */
    chime_node old;     /* image of the node as it was found, before the repair */
    uint64_t mine;      /* lock word with which this task has taken over the lock */
    unsigned level;
    /* absorbed children that the repair removed from the node, and that must be retired */
    chime_ptr removed[CHIME_SPAN_MAX];
    uint64_t removed_low[CHIME_SPAN_MAX]; /* low fences of the removed children, in the same order */
    unsigned removed_count;
} repair;


/* Returns a word that identifies an item independently of its slot. */
static uint64_t item_identity(const repair *r, uint64_t *w, unsigned slot) {
    const chime_state *st = r->op->st;
    const uint64_t *words = chime_slot(st, w, slot);
    if (r->level)
        return words[1];
    return st->inline_items ? words[0] : chime_value_identity(words[1]);
}


static bool node_has_item(const repair *r, uint64_t *w, uint64_t item) {
    const chime_state *st = r->op->st;
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_slot_is_occupied(st, w, slot) && item_identity(r, w, slot) == item)
            return true;
    return false;
}


static void clear_items_also_in(repair *r, uint64_t *w) { /* Clears the items that image w contains too. */
    const chime_state *st = r->op->st;
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_slot_is_occupied(st, r->node.w, slot) && node_has_item(r, w, item_identity(r, r->node.w, slot)))
            chime_set_slot_occupied(st, r->node.w, slot, false);
}


static void clear_duplicate_items(repair *r) {
    const chime_state *st = r->op->st;
    for (unsigned slot = 0; slot < st->span; slot++)
        for (unsigned other = slot + 1; chime_slot_is_occupied(st, r->node.w, slot) && other < st->span; other++)
            if (chime_slot_is_occupied(st, r->node.w, other) &&
                item_identity(r, r->node.w, other) == item_identity(r, r->node.w, slot))
                chime_set_slot_occupied(st, r->node.w, other, false);
}


static int read_node_unchecked(chime_op *op, chime_ptr p, chime_node *n) {
    n->ptr = p;
    if (!chime_ptr_is_in_pool(op, p))
        return chime_report_corrupt(op->index, p, "a pointer leads to this address, which is outside of the pool");
    if (!n->w && !(n->w = chime_alloc_image(op)))
        return FAR_ERR_NO_MEMORY;
    chime_batch_read_node_and_s(op, n);
    return chime_wait(op);
}


int chime_read_tail(chime_op *op, chime_ptr p, chime_node *n) {
    n->ptr = p;
    if (!chime_ptr_is_in_pool(op, p))
        return chime_report_corrupt(op->index, p, "a pointer leads to this address, which is outside of the pool");
    if (!n->w && !(n->w = chime_alloc_image(op)))
        return FAR_ERR_NO_MEMORY;
    chime_batch_read_tail(op, n);
    return chime_wait(op);
}


static bool tag_matches(const chime_state *st, chime_node *n) {
    return chime_h0_tag(chime_tail(st, n->w)[CHIME_TAIL_H0]) == chime_ptr_tag(n->ptr);
}


/* Called for a node b that is being absorbed by node a. Node a contains the items of b once the merge is complete. The
 * lock of b is never taken over, because the repair of the parent sets it to dead. So instead of b, the function
 * repairs a if the holder of a's lock has failed. Returns 2, or an error. */
static int repair_absorber(chime_op *op, chime_ptr b, chime_ptr a) {
    chime_node n = {0};
    int err = chime_read_tail(op, a, &n);
    const uint64_t *tail = err < 0 ? NULL : chime_tail(op->st, n.w);
    if (err < 0)
        return err;
    uint64_t lock = tail[CHIME_TAIL_L];
    if (tag_matches(op->st, &n) && chime_h1_sibling(tail[CHIME_TAIL_H1]) == b && chime_lock_is_held(lock) &&
        lock != CHIME_LOCK_DEAD && (err = chime_repair_if_holder_failed(op, a, lock)) < 0)
        return err;
    return 2;
}


/* Marks all lines of the sibling invalid, because the client that committed the merge may have failed after only some
 * of the lines. */
static int invalidate_sibling(repair *r) {
    chime_op *op = r->op;
    chime_node after = {.ptr = r->sibling.ptr, .w = chime_alloc_image(op)};
    if (!after.w)
        return FAR_ERR_NO_MEMORY;
    memcpy(after.w, r->sibling.w, op->st->node_bytes);
    chime_set_valid(op->st, after.w, false);
    int err = chime_batch_image(op, &after, r->sibling.w);
    return err < 0 ? err : chime_wait(op);
}


/* Lets the node absorb its sibling, as if the merge had just been committed. `nv` is the node version after the merge.
 */
static int redo_absorb(repair *r, unsigned nv) {
    chime_op *op = r->op;
    const chime_state *st = op->st;
    uint64_t *tail = chime_tail(st, r->node.w), *its = chime_tail(st, r->sibling.w);
    int err = invalidate_sibling(r);
    if (err < 0)
        return err;
    clear_items_also_in(r, r->sibling.w);
    if (r->level == 0) {
        clear_duplicate_items(r);
        chime_build_hop_bitmaps(st, r->node.w);
    }
    if (!chime_absorb(st, r->node.w, r->sibling.w))
        return chime_report_corrupt(op->index, r->node.ptr, "the items of the sibling that it absorbs do not fit");
    chime_set_sibling_nv(st, r->node.w, chime_h1_sibling(its[CHIME_TAIL_H1]), nv);
    tail[CHIME_TAIL_HIGH] = its[CHIME_TAIL_HIGH];
    return 0;
}


/* Completes a split of the node by clearing the items that the new node contains. */
static int redo_split(repair *r, chime_ptr made, unsigned nv) {
    chime_op *op = r->op;
    int err = read_node_unchecked(op, made, &r->sibling);
    if (err < 0)
        return err;
    if (!tag_matches(op->st, &r->sibling))
        return chime_report_corrupt(op->index, r->node.ptr, "it was split, but the new right node does not exist");
    clear_items_also_in(r, r->sibling.w);
    chime_set_sibling_nv(op->st, r->node.w, made, nv);
    chime_tail(op->st, r->node.w)[CHIME_TAIL_HIGH] = chime_tail(op->st, r->sibling.w)[CHIME_TAIL_LOW];
    return 0;
}


/* Determines which change was in progress, and sets the node's version, fences and items to the state after that
 * change. */
static int redo_node_change(repair *r) {
    chime_op *op = r->op;
    const chime_state *st = op->st;
    uint64_t *tail = chime_tail(st, r->node.w), first = chime_h1_sibling_nv(*chime_h1(st, r->node.w, 0));
    bool two = false;
    for (unsigned line = 0; line < st->lines; line++)
        two |= chime_h1_sibling_nv(*chime_h1(st, r->node.w, line)) != chime_h1_sibling_nv(tail[CHIME_TAIL_H1]);
    chime_ptr sibling = chime_h1_sibling(tail[CHIME_TAIL_H1]);
    unsigned nv = two ? chime_h1_nv(first) : chime_h1_nv(tail[CHIME_TAIL_H1]) + 1;
    int err;
    if (sibling) {
        if ((err = read_node_unchecked(op, sibling, &r->sibling)) < 0)
            return err;
        if (!tag_matches(st, &r->sibling))
            return chime_report_corrupt(op->index, r->node.ptr, "its right sibling does not exist");
        if (chime_tail(st, r->sibling.w)[CHIME_TAIL_ABSORBER] == r->node.ptr)
            return redo_absorb(r, nv);
    }
    if (two)
        return redo_split(r, chime_h1_sibling(first), nv);
    if (sibling)
        tail[CHIME_TAIL_HIGH] = chime_tail(st, r->sibling.w)[CHIME_TAIL_LOW];
    return 0;
}


/* Removing absorbed children from their parent. */

/* Waits until the absorber `a` contains the items of `b`: either this client repairs it, or the client that holds its
 * lock completes the merge. Returns 0, or CHIME_AGAIN if that takes too long. */
static int wait_for_absorber(repair *r, chime_ptr b, chime_ptr a) {
    chime_op *op = r->op;
    chime_node n = {0};
    for (unsigned attempt = 0; attempt < ABSORBER_READS_MAX; attempt++) {
        int err = chime_read_tail(op, a, &n);
        if (err < 0)
            return err;
        const uint64_t *tail = chime_tail(op->st, n.w);
        if (!tag_matches(op->st, &n) || chime_h1_sibling(tail[CHIME_TAIL_H1]) != b)
            return 0;
        uint64_t lock = tail[CHIME_TAIL_L];
        if (chime_lock_is_held(lock) && lock != CHIME_LOCK_DEAD &&
            (err = chime_repair_if_holder_failed(op, a, lock)) != 0) {
            if (err < 0)
                return err;
            continue;
        }
        far_back_off(op->t, attempt < 8 ? attempt : 8);
    }
    return CHIME_AGAIN;
}


static int remove_absorbed_child(repair *r, unsigned slot, const uint64_t *tail) {
    chime_op *op = r->op;
    const chime_state *st = op->st;
    chime_ptr b = chime_slot(st, r->node.w, slot)[1];
    uint64_t lock = tail[CHIME_TAIL_L], seen;
    int err = wait_for_absorber(r, b, tail[CHIME_TAIL_ABSORBER]);
    if (err != 0)
        return err;
    if (lock != CHIME_LOCK_DEAD) {
        far_cas(op->t, chime_tail_addr(st, b, CHIME_TAIL_L), lock, CHIME_LOCK_DEAD, &seen);
        if ((err = chime_wait(op)) < 0)
            return err;
        if (seen != lock)
            return CHIME_AGAIN;
    }
    chime_set_slot_occupied(st, r->node.w, slot, false);
    r->removed[r->removed_count] = b;
    r->removed_low[r->removed_count++] = tail[CHIME_TAIL_LOW];
    return 0;
}


static int remove_absorbed_children(repair *r) {
    chime_op *op = r->op;
    const chime_state *st = op->st;
    uint64_t *tails = far_scratch(op->t, st->span * 64ull);
    int err = 0;
    if (!tails)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a repair");
    for (unsigned slot = 0; slot < st->span; slot++) {
        chime_ptr child = chime_slot(st, r->node.w, slot)[1];
        if (!chime_slot_is_occupied(st, r->node.w, slot))
            continue;
        if (!chime_ptr_is_in_pool(op, child)) {
            far_discard_batch(op->t);
            return chime_report_corrupt(op->index, r->node.ptr, "one of its child pointers leads outside of the pool");
        }
        far_read(op->t, chime_tail_addr(st, child, 0), tails + slot * 8, 64);
        far_mark(op->t, FAR_VERB_UNPROVEN);
    }
    if ((err = chime_wait(op)) < 0)
        return err;
    for (unsigned slot = 0; slot < st->span && err == 0; slot++) {
        const uint64_t *tail = tails + slot * 8;
        if (chime_slot_is_occupied(st, r->node.w, slot) && tail[CHIME_TAIL_ABSORBER] &&
            chime_h0_tag(tail[CHIME_TAIL_H0]) == chime_ptr_tag(chime_slot(st, r->node.w, slot)[1]))
            err = remove_absorbed_child(r, slot, tail);
    }
    return err;
}


static int write_repaired_node(repair *r) {
    chime_op *op = r->op;
    const chime_state *st = op->st;
    if (r->level == 0) {
        clear_duplicate_items(r);
        chime_build_hop_bitmaps(st, r->node.w);
    }
    int err = chime_batch_image(op, &r->node, r->old.w);
    if (err < 0 || (err = chime_batch_unlock(op, r->node.ptr, chime_occupancy_map(st, r->node.w))) < 0 ||
        (err = chime_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < r->removed_count; i++) {
        far_retire(op->t, op->index, CHIME_TYPE_NODE, chime_ptr_addr(r->removed[i]), st->node_bytes);
        if (r->level == 1)
            chime_retire_fence(op, r->removed_low[i]);
    }
    return 0;
}


/* Repairs the node while this task holds its lock. The node is READ again, because after the first READ another client
 * may have begun a repair and failed or given up. */
static int repair_locked_node(repair *r) {
    chime_op *op = r->op;
    uint64_t *s = &op->write_words[CHIME_OP_WORDS - 1];
    *s = chime_new_s(op, op->st->lines_can_tear);
    /* Stores a new S (the structure nonce) before the first change, so that readers notice the repair. */
    far_write(op->t, chime_tail_addr(op->st, r->node.ptr, CHIME_TAIL_S), s, 8);
    int err = read_node_unchecked(op, r->node.ptr, &r->node);
    if (err < 0)
        return err;
    memcpy(r->old.w, r->node.w, op->st->node_bytes);
    r->level = chime_h0_level(chime_tail(op->st, r->node.w)[CHIME_TAIL_H0]);
    if (r->level >= CHIME_LEVELS)
        return chime_report_corrupt(op->index, r->node.ptr, "its level is invalid");
    if ((err = redo_node_change(r)) != 0 || (r->level && (err = remove_absorbed_children(r)) != 0))
        return err;
    return write_repaired_node(r);
}


static int take_over_and_repair(chime_op *op, chime_ptr p, uint64_t lock) {
    repair *r = far_scratch(op->t, sizeof(*r));
    uint64_t seen;
    if (!r)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a repair");
    memset(r, 0, sizeof(*r));
    r->op = op;
    r->old.w = chime_alloc_image(op);
    int err = r->old.w ? read_node_unchecked(op, p, &r->node) : FAR_ERR_NO_MEMORY;
    if (err < 0)
        return err;
    const uint64_t *tail = chime_tail(op->st, r->node.w);
    if (tail[CHIME_TAIL_L] != lock)
        return 1;
    if (!tag_matches(op->st, &r->node))
        return 2;
    if (tail[CHIME_TAIL_ABSORBER])
        return repair_absorber(op, p, tail[CHIME_TAIL_ABSORBER]);
    if (!chime_h0_valid(tail[CHIME_TAIL_H0]))
        return chime_report_corrupt(op->index, p, "it is marked invalid, but no node has absorbed it");
    r->mine = chime_lock_make(far_owner_of_task(op->t), chime_next_nonce(op), 0);
    far_point(op->t, "chime:takeover");
    far_cas(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_L), lock, r->mine, &seen);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    if ((err = chime_wait(op)) < 0)
        return err;
    if (seen != lock)
        return 1;
    far_point(op->t, "chime:repair");
    atomic_fetch_add_explicit(&op->st->counts.repairs, 1, memory_order_relaxed);
    if ((err = repair_locked_node(r)) == 0)
        return 1;
    /* The repair failed, so the lock word of the failed client is restored, and another client can try the repair. */
    if (!chime_session_is_lost(err)) {
        far_discard_batch(op->t);
        far_cas(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_L), r->mine, lock, NULL);
        int back = chime_wait(op);
        err = back < 0 ? back : err;
    }
    return err < 0 ? err : 0;
}


int chime_repair_if_holder_failed(chime_op *op, chime_ptr p, uint64_t lock) {
    if (lock == CHIME_LOCK_DEAD || !chime_lock_is_held(lock))
        return 0;
    int err = far_holder_confirm_failed(op->t, chime_lock_owner(lock));
    if (err <= 0)
        return err;
    if (op->repair_depth == REPAIR_DEPTH_MAX)
        return chime_report_corrupt(op->index, p, "repairs of this node and its neighbours wait for each other");
    far_scratch_mark here = far_scratch_here(op->t);
    op->repair_depth++;
    err = take_over_and_repair(op, p, lock);
    op->repair_depth--;
    far_scratch_back(op->t, here);
    return err;
}
