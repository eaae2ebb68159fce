/* Repair: the lock of a node names somebody who is dead. Its session is fenced, so nothing changes in the node until
 * the lock is taken over, by CAS on exactly that word; what was READ before is what there is. Whatever the dead one was
 * about can be told from the node and its neighbours:
 *
 *   lines of two shapes, the old sibling says aux = this node   it was taking in that sibling: done again
 *   lines of two shapes else                                    it was being split: done again from the new node
 *   one shape, the sibling says aux = this node                 it was about to take it in: done
 *   an item in two slots                                        a hop: one of them goes
 *   aux is set in this node itself                              its neighbour takes it in: that one is repaired
 *   a child with aux set                                        the parent had not let go of it yet: it does
 *
 * Repair never moves an item and writes in the order of the changes themselves, so that it can be repaired in turn. */
#include "base/error.h"
#include "index/chime/chime.h"

#define REPAIRS_MAX 6     /* inside of one another */
#define WAIT_MAX    1000u /* looks at a neighbour that somebody alive is repairing, under our own lock */

typedef struct repair {
    chime_op *op;
    chime_node x, b, old; /* the node; a sibling; x as it was found */
    uint64_t mine;
    unsigned level;
    chime_ptr gone[CHIME_SPAN_MAX]; /* children that the parent lets go of */
    uint64_t gone_low[CHIME_SPAN_MAX];
    unsigned gone_count;
} repair;


/* What makes an item the same wherever it lies. */
static uint64_t identity(const repair *r, uint64_t *w, unsigned slot) {
    const chime_state *st = r->op->st;
    const uint64_t *words = chime_slot(st, w, slot);
    if (r->level)
        return words[1];
    return st->fixed ? words[0] : chime_value_identity(words[1]);
}


static bool holds(const repair *r, uint64_t *w, uint64_t item) {
    const chime_state *st = r->op->st;
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_is_occupied(st, w, slot) && identity(r, w, slot) == item)
            return true;
    return false;
}


static void take_away(repair *r, uint64_t *w) { /* what is also in w */
    const chime_state *st = r->op->st;
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_is_occupied(st, r->x.w, slot) && holds(r, w, identity(r, r->x.w, slot)))
            chime_set_occupied(st, r->x.w, slot, false);
}


static void keep_one_of_each(repair *r) {
    const chime_state *st = r->op->st;
    for (unsigned slot = 0; slot < st->span; slot++)
        for (unsigned other = slot + 1; chime_is_occupied(st, r->x.w, slot) && other < st->span; other++)
            if (chime_is_occupied(st, r->x.w, other) && identity(r, r->x.w, other) == identity(r, r->x.w, slot))
                chime_set_occupied(st, r->x.w, other, false);
}


static int read_raw(chime_op *op, chime_ptr p, chime_node *n) {
    n->ptr = p;
    if (!chime_ptr_is_sound(op, p))
        return chime_broken(op->index, p, "a pointer leads there");
    if (!n->w && !(n->w = chime_new_image(op)))
        return FAR_ERR_NO_MEMORY;
    chime_put_read_all(op, n);
    return chime_wait(op);
}


int chime_read_tail(chime_op *op, chime_ptr p, chime_node *n) {
    n->ptr = p;
    if (!chime_ptr_is_sound(op, p))
        return chime_broken(op->index, p, "a pointer leads there");
    if (!n->w && !(n->w = chime_new_image(op)))
        return FAR_ERR_NO_MEMORY;
    chime_put_read_tail(op, n);
    return chime_wait(op);
}


static bool is_incarnation(const chime_state *st, chime_node *n) {
    return chime_h0_tag(chime_tail(st, n->w)[CHIME_TAIL_H0]) == chime_ptr_tag(n->ptr);
}


/* The node is being taken in by its neighbour, which shows the items once that is done. Nobody takes over its own lock:
 * the parent's repair ends it. */
static int help_neighbour(chime_op *op, chime_ptr b, chime_ptr a) {
    chime_node n = {0};
    int err = chime_read_tail(op, a, &n);
    const uint64_t *tail = err < 0 ? NULL : chime_tail(op->st, n.w);
    if (err < 0)
        return err;
    uint64_t lock = tail[CHIME_TAIL_L];
    if (is_incarnation(op->st, &n) && chime_h1_sibling(tail[CHIME_TAIL_H1]) == b && chime_lock_is_held(lock) &&
        lock != CHIME_LOCK_DEAD && (err = chime_resolve(op, a, lock)) < 0)
        return err;
    return 2;
}


/* The sibling that is to be taken in, whole and invalid in all its lines. */
static int invalidate(repair *r) {
    chime_op *op = r->op;
    chime_node after = {.ptr = r->b.ptr, .w = chime_new_image(op)};
    if (!after.w)
        return FAR_ERR_NO_MEMORY;
    memcpy(after.w, r->b.w, op->st->node_bytes);
    chime_set_valid(op->st, after.w, false);
    int err = chime_put_image(op, &after, r->b.w);
    return err < 0 ? err : chime_wait(op);
}


/* x takes in b, from the beginning. */
static int extend(repair *r, unsigned nv) {
    chime_op *op = r->op;
    const chime_state *st = op->st;
    uint64_t *tail = chime_tail(st, r->x.w), *its = chime_tail(st, r->b.w);
    int err = invalidate(r);
    if (err < 0)
        return err;
    take_away(r, r->b.w);
    if (r->level == 0) {
        keep_one_of_each(r);
        chime_build_maps(st, r->x.w);
    }
    if (!chime_absorb(st, r->x.w, r->b.w))
        return chime_broken(op->index, r->x.ptr, "the items of its sibling do not fit");
    chime_set_shape(st, r->x.w, chime_h1_sibling(its[CHIME_TAIL_H1]), nv);
    tail[CHIME_TAIL_HIGH] = its[CHIME_TAIL_HIGH];
    return 0;
}


/* x was split: what is in the new node is not in x. */
static int redo_split(repair *r, chime_ptr made, unsigned nv) {
    chime_op *op = r->op;
    int err = read_raw(op, made, &r->b);
    if (err < 0)
        return err;
    if (!is_incarnation(op->st, &r->b))
        return chime_broken(op->index, r->x.ptr, "it was split, and its other part is gone");
    take_away(r, r->b.w);
    chime_set_shape(op->st, r->x.w, made, nv);
    chime_tail(op->st, r->x.w)[CHIME_TAIL_HIGH] = chime_tail(op->st, r->b.w)[CHIME_TAIL_LOW];
    return 0;
}


/* Shape, range and items of x as they are when the change is through. */
static int mend(repair *r) {
    chime_op *op = r->op;
    const chime_state *st = op->st;
    uint64_t *tail = chime_tail(st, r->x.w), first = chime_h1_shape(*chime_h1(st, r->x.w, 0));
    bool two = false;
    for (unsigned line = 0; line < st->lines; line++)
        two |= chime_h1_shape(*chime_h1(st, r->x.w, line)) != chime_h1_shape(tail[CHIME_TAIL_H1]);
    chime_ptr sibling = chime_h1_sibling(tail[CHIME_TAIL_H1]);
    unsigned nv = two ? chime_h1_nv(first) : chime_h1_nv(tail[CHIME_TAIL_H1]) + 1;
    int err;
    if (sibling) {
        if ((err = read_raw(op, sibling, &r->b)) < 0)
            return err;
        if (!is_incarnation(st, &r->b))
            return chime_broken(op->index, r->x.ptr, "its sibling is gone");
        if (chime_tail(st, r->b.w)[CHIME_TAIL_AUX] == r->x.ptr)
            return extend(r, nv);
    }
    if (two)
        return redo_split(r, chime_h1_sibling(first), nv);
    if (sibling)
        tail[CHIME_TAIL_HIGH] = chime_tail(st, r->b.w)[CHIME_TAIL_LOW];
    return 0;
}


/* Children. */

/* The neighbour has the items of b: by us, or by somebody alive who is at it. */
static int wait_for_neighbour(repair *r, chime_ptr b, chime_ptr a) {
    chime_op *op = r->op;
    chime_node n = {0};
    for (unsigned attempt = 0; attempt < WAIT_MAX; attempt++) {
        int err = chime_read_tail(op, a, &n);
        if (err < 0)
            return err;
        const uint64_t *tail = chime_tail(op->st, n.w);
        if (!is_incarnation(op->st, &n) || chime_h1_sibling(tail[CHIME_TAIL_H1]) != b)
            return 0;
        uint64_t lock = tail[CHIME_TAIL_L];
        if (chime_lock_is_held(lock) && lock != CHIME_LOCK_DEAD && (err = chime_resolve(op, a, lock)) != 0) {
            if (err < 0)
                return err;
            continue;
        }
        far_back_off(op->t, attempt < 8 ? attempt : 8);
    }
    return CHIME_AGAIN;
}


static int let_go(repair *r, unsigned slot, const uint64_t *tail) {
    chime_op *op = r->op;
    const chime_state *st = op->st;
    chime_ptr b = chime_slot(st, r->x.w, slot)[1];
    uint64_t lock = tail[CHIME_TAIL_L], seen;
    int err = wait_for_neighbour(r, b, tail[CHIME_TAIL_AUX]);
    if (err != 0)
        return err;
    if (lock != CHIME_LOCK_DEAD) {
        far_cas(op->t, chime_tail_addr(st, b, CHIME_TAIL_L), lock, CHIME_LOCK_DEAD, &seen);
        if ((err = chime_wait(op)) < 0)
            return err;
        if (seen != lock)
            return CHIME_AGAIN;
    }
    chime_set_occupied(st, r->x.w, slot, false);
    r->gone[r->gone_count] = b;
    r->gone_low[r->gone_count++] = tail[CHIME_TAIL_LOW];
    return 0;
}


static int mend_children(repair *r) {
    chime_op *op = r->op;
    const chime_state *st = op->st;
    uint64_t *tails = far_scratch(op->t, st->span * 64ull);
    int err = 0;
    if (!tails)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a repair");
    for (unsigned slot = 0; slot < st->span; slot++) {
        chime_ptr child = chime_slot(st, r->x.w, slot)[1];
        if (!chime_is_occupied(st, r->x.w, slot))
            continue;
        if (!chime_ptr_is_sound(op, child)) {
            far_forget(op->t);
            return chime_broken(op->index, r->x.ptr, "a child of it is outside of the pool");
        }
        far_read(op->t, chime_tail_addr(st, child, 0), tails + slot * 8, 64);
        far_mark(op->t, FAR_VERB_UNPROVEN);
    }
    if ((err = chime_wait(op)) < 0)
        return err;
    for (unsigned slot = 0; slot < st->span && err == 0; slot++) {
        const uint64_t *tail = tails + slot * 8;
        if (chime_is_occupied(st, r->x.w, slot) && tail[CHIME_TAIL_AUX] &&
            chime_h0_tag(tail[CHIME_TAIL_H0]) == chime_ptr_tag(chime_slot(st, r->x.w, slot)[1]))
            err = let_go(r, slot, tail);
    }
    return err;
}


static int write_back(repair *r) {
    chime_op *op = r->op;
    const chime_state *st = op->st;
    if (r->level == 0) {
        keep_one_of_each(r);
        chime_build_maps(st, r->x.w);
    }
    int err = chime_put_image(op, &r->x, r->old.w);
    if (err < 0 || (err = chime_put_unlock(op, r->x.ptr, chime_occupied_map(st, r->x.w))) < 0 ||
        (err = chime_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < r->gone_count; i++) {
        far_retire(op->t, op->index, CHIME_TYPE_NODE, chime_ptr_addr(r->gone[i]), st->node_bytes);
        if (r->level == 1)
            chime_retire_fence(op, r->gone_low[i]);
    }
    return 0;
}


/* The lock is ours. Another one may have begun to repair since we looked, and given up: once more. */
static int run(repair *r) {
    chime_op *op = r->op;
    uint64_t *s = &op->words[CHIME_OP_WORDS - 1];
    *s = chime_fresh_s(op, op->st->words);
    far_write(op->t, chime_tail_addr(op->st, r->x.ptr, CHIME_TAIL_S), s, 8); /* before the first change */
    int err = read_raw(op, r->x.ptr, &r->x);
    if (err < 0)
        return err;
    memcpy(r->old.w, r->x.w, op->st->node_bytes);
    r->level = chime_h0_level(chime_tail(op->st, r->x.w)[CHIME_TAIL_H0]);
    if (r->level >= CHIME_LEVELS)
        return chime_broken(op->index, r->x.ptr, "its level is none");
    if ((err = mend(r)) != 0 || (r->level && (err = mend_children(r)) != 0))
        return err;
    return write_back(r);
}


static int take_over(chime_op *op, chime_ptr p, uint64_t lock) {
    repair *r = far_scratch(op->t, sizeof(*r));
    uint64_t seen;
    if (!r)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a repair");
    memset(r, 0, sizeof(*r));
    r->op = op;
    r->old.w = chime_new_image(op);
    int err = r->old.w ? read_raw(op, p, &r->x) : FAR_ERR_NO_MEMORY;
    if (err < 0)
        return err;
    const uint64_t *tail = chime_tail(op->st, r->x.w);
    if (tail[CHIME_TAIL_L] != lock)
        return 1;
    if (!is_incarnation(op->st, &r->x))
        return 2;
    if (tail[CHIME_TAIL_AUX])
        return help_neighbour(op, p, tail[CHIME_TAIL_AUX]);
    if (!chime_h0_valid(tail[CHIME_TAIL_H0]))
        return chime_broken(op->index, p, "it is gone, but to nowhere");
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
    if ((err = run(r)) == 0)
        return 1;
    if (!chime_is_lost(err)) { /* somebody else may have more luck */
        far_forget(op->t);
        far_cas(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_L), r->mine, lock, NULL);
        int back = chime_wait(op);
        err = back < 0 ? back : err;
    }
    return err < 0 ? err : 0;
}


int chime_resolve(chime_op *op, chime_ptr p, uint64_t lock) {
    if (lock == CHIME_LOCK_DEAD || !chime_lock_is_held(lock))
        return 0;
    int err = far_holder_is_dead(op->t, chime_lock_owner(lock));
    if (err <= 0)
        return err;
    if (op->repairs == REPAIRS_MAX)
        return chime_broken(op->index, p, "repairs lead from one node to another without end");
    far_scratch_mark here = far_scratch_here(op->t);
    op->repairs++;
    err = take_over(op, p, lock);
    op->repairs--;
    far_scratch_back(op->t, here);
    return err;
}
