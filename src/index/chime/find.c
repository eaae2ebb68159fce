/* The way down: from the root through cached nodes to the leaf, or to a node of any level. A node is entered by what
 * its parent says, and left for its right sibling when the key lies beyond: pivots may be missing, never wrong. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch.h"

#define REST_MAX 64 /* times that a tree nobody changes may lead nowhere */


int chime_read_root(chime_op *op) {
    uint64_t word;
    far_read(op->t, op->index->descriptor + CHIME_ROOT_WORD, &word, 8);
    int err = chime_wait(op);
    if (err < 0)
        return err;
    if (!chime_ptr_is_sound(op, word) || chime_ptr_low(word) >= CHIME_LEVELS)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': its root is broken", op->index->name);
    atomic_store_explicit(&op->st->root, word, memory_order_relaxed);
    return 0;
}


int chime_read_inner(chime_op *op, chime_ptr p, chime_inner *inner) {
    chime_node n = {0};
    int err = chime_read_node(op, p, &n);
    return err != 0 ? err : chime_decode(op, &n, inner);
}


/* Where the node sends the key: from the cache, or by READing it. */
static int route(chime_op *op, chime_ptr p, chime_route *r) {
    chime_state *st = op->st;
    if (st->cache && chime_cache_route(st->cache, st, p, &op->key, far_epoch(op->t), r))
        return 0;
    far_scratch_mark here = far_scratch_here(op->t);
    chime_inner *inner = far_scratch(op->t, sizeof(*inner));
    int err = inner ? chime_read_inner(op, p, inner) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    if (err == 0) {
        chime_route_in(st, inner, &op->key, r);
        if (st->cache)
            chime_cache_put(st->cache, st, inner, far_epoch(op->t));
    }
    far_scratch_back(op->t, here);
    return err < 0 ? err : err == 0 ? 1 : CHIME_STALE + 1;
}


int chime_descend(chime_op *op, unsigned level, chime_ptr *node) {
    chime_state *st = op->st;
    unsigned moves = 0;
    bool cached = true;
    int err;
    for (;;) {
        uint64_t root = atomic_load_explicit(&st->root, memory_order_relaxed);
        if (!root || chime_ptr_low(root) < level) {
            if ((err = chime_read_root(op)) < 0)
                return err;
            root = atomic_load_explicit(&st->root, memory_order_relaxed);
            if (!root || chime_ptr_low(root) < level)
                return CHIME_NO_LEVEL;
        }
        chime_ptr p = chime_ptr_plain(root);
        unsigned at = chime_ptr_low(root);
        memset(op->path, 0, sizeof(op->path));
        for (err = 0; at > level && err <= 1;) {
            chime_route r;
            if ((err = route(op, p, &r)) < 0)
                return err;
            cached &= err == 0;
            if (err > 1)
                break;
            if (r.level != at)
                return chime_broken(op->index, p, "it has another level than its parent says");
            if (!r.right) {
                op->path[at--] = p;
                p = r.next;
            } else {
                if (++moves > CHIME_MOVES_MAX)
                    return chime_broken(op->index, p, "its siblings have no end");
                chime_went_right(op, at, p, r.next);
                p = r.next;
            }
        }
        if (err <= 1) {
            *node = p;
            far_count_cache(op->t, cached);
            return 0;
        }
        if ((err = chime_not_there(op, p, at)) < 0)
            return err;
    }
}


/* The tree is at rest around here, and yet leads nowhere: damage. A merge whose client died is finished here. */
static int look_above(chime_op *op, chime_ptr above) {
    chime_node n = {.ptr = above, .w = chime_new_image(op)};
    if (!n.w)
        return FAR_ERR_NO_MEMORY;
    chime_put_read_tail(op, &n);
    int err = chime_wait(op);
    uint64_t lock = err < 0 ? 0 : chime_tail(op->st, n.w)[CHIME_TAIL_L];
    if (err < 0)
        return err;
    return chime_lock_is_held(lock) && lock != CHIME_LOCK_DEAD ? chime_resolve(op, above, lock) : 2;
}


int chime_not_there(chime_op *op, chime_ptr node, unsigned level) {
    chime_state *st = op->st;
    far_scratch_mark here = far_scratch_here(op->t);
    int err = 0;
    op->restarts++;
    far_count_retry(op->t);
    if (st->cache)
        chime_cache_drop(st->cache, node);
    for (unsigned i = 1; st->cache && i <= op->restarts && level + i < CHIME_LEVELS && op->path[level + i]; i++)
        chime_cache_drop(st->cache, op->path[level + i]);
    if (level + 1 >= CHIME_LEVELS || !op->path[level + 1] || op->restarts > 2)
        atomic_store_explicit(&st->root, 0, memory_order_relaxed);
    if (op->restarts > 3) {
        chime_ptr above = level + 1 < CHIME_LEVELS ? op->path[level + 1] : 0;
        if (above && chime_ptr_is_sound(op, above))
            err = look_above(op, above);
        if (err == 2 && op->restarts > REST_MAX)
            err = chime_broken(op->index, node, "its parent leads to it, but it is gone");
        far_back_off(op->t, op->restarts < 8 ? op->restarts : 8);
    }
    far_scratch_back(op->t, here);
    return err < 0 ? err : 0;
}


/* A node that only its sibling names: its splitter is about to put the pivot in, or is dead. Met again some time later:
 * we do it. */
void chime_went_right(chime_op *op, unsigned level, chime_ptr from, chime_ptr to) {
    chime_state *st = op->st;
    uint64_t now = far_now(op->t);
    (void)from;
    if (level + 1 < CHIME_LEVELS && op->path[level + 1] && st->cache)
        chime_cache_drop(st->cache, op->path[level + 1]);
    if (level + 1 >= CHIME_LEVELS || !op->path[level + 1])
        atomic_store_explicit(&st->root, 0, memory_order_relaxed);
    far_spin_lock(&st->half_lock);
    chime_half_split *h = NULL;
    for (unsigned i = 0; i < CHIME_HALF_SPLITS && !h; i++)
        if (st->half[i].node == to)
            h = &st->half[i];
    if (!h)
        st->half[st->half_next++ % CHIME_HALF_SPLITS] = (chime_half_split){to, now};
    else if (now - h->since > 32 * far_rtt(op->t)) {
        h->node = 0;
        op->help = to;
        op->help_level = level;
    }
    far_spin_unlock(&st->half_lock);
}


void chime_finish(chime_op *op) {
    if (!op->help)
        return;
    atomic_fetch_add_explicit(&op->st->counts.helps, 1, memory_order_relaxed);
    chime_add_pivot_later(op, op->help_level + 1, op->help);
    op->help = 0;
}
