/* The way down: from the root through cached nodes to the leaf, or to a node of any level. A node is entered by what
 * its parent says, and left for its right sibling when the key lies beyond: pivots may be missing, never wrong. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch.h"

#define REST_MAX    64   /* times that a tree nobody changes may lead nowhere */
#define HELP_AFTER  32u  /* round trips: a splitter that lives has put its pivot in by then */
#define RENEW_AFTER 64u  /* round trips: until then others note theirs in the same parent */
#define LEAD_FOR    512u /* round trips: until then a node that was split leads to its other part without a verb */


int chime_read_root(chime_op *op, uint64_t *root) {
    far_read(op->t, op->index->descriptor + CHIME_ROOT_WORD, root, 8);
    int err = chime_wait(op);
    if (err < 0)
        return err;
    if (!chime_ptr_is_sound(op, *root) || chime_ptr_low(*root) >= CHIME_LEVELS)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': its root is broken", op->index->name);
    atomic_store_explicit(&op->st->root, *root, memory_order_relaxed);
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
    if (st->cache && chime_cache_route_renewed(st->cache, st, p, &op->key, far_epoch(op->t), r))
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


bool chime_way_is_cached(chime_op *op, chime_ptr *leaf) {
    chime_state *st = op->st;
    uint64_t root = atomic_load_explicit(&st->root, memory_order_relaxed);
    chime_route r;
    if (!root || !st->cache)
        return false;
    *leaf = chime_ptr_plain(root);
    for (unsigned at = chime_ptr_low(root); at > 0; at--) {
        if (!chime_cache_route(st->cache, st, *leaf, &op->key, far_epoch(op->t), &r) || r.right || r.level != at)
            return false;
        *leaf = r.next;
    }
    return chime_ptr_is_sound(op, *leaf);
}


/* Nodes that only their siblings name: their splitters are about to put the pivots in, or are dead. Whoever meets one
 * notes it in the cached parent, so that the others of this compute node need not come the same way. Some time later
 * that parent is READ again; whoever goes right then, because the pivot is still missing, puts it in. */

static chime_half_split *find_half(chime_state *st, chime_ptr node) {
    for (unsigned i = 0; i < CHIME_HALF_SPLITS; i++)
        if (st->half[i].node == node)
            return &st->half[i];
    return NULL;
}


/* Under half_lock. */
static void note_half(chime_op *op, const chime_half_split *half) {
    chime_state *st = op->st;
    st->half[st->half_next++ % CHIME_HALF_SPLITS] = *half;
    uint64_t due = half->since + RENEW_AFTER * far_rtt(op->t);
    if (half->above && atomic_load_explicit(&st->half_due, memory_order_relaxed) > due)
        atomic_store_explicit(&st->half_due, due, memory_order_relaxed);
    if (half->left)
        atomic_store_explicit(&st->half_until, half->since + LEAD_FOR * far_rtt(op->t), memory_order_relaxed);
}


static bool lies_beyond(const chime_op *op, uint64_t low) { /* only the first bytes of low are known */
    return op->st->exact ? op->key.first >= low : op->key.first > low;
}


/* The last of the parts of this node that begin before the key; NULL: none is known. */
static const chime_half_split *find_part(const chime_op *op, chime_ptr left, uint64_t now) {
    const chime_state *st = op->st;
    const chime_half_split *best = NULL;
    for (unsigned i = 0; i < CHIME_HALF_SPLITS; i++) {
        const chime_half_split *h = &st->half[i];
        if (h->left == left && h->since + LEAD_FOR * far_rtt(op->t) > now && lies_beyond(op, h->low) &&
            (!best || h->low > best->low))
            best = h;
    }
    return best;
}


chime_ptr chime_follow_splits(chime_op *op, chime_ptr leaf) {
    chime_state *st = op->st;
    uint64_t until = atomic_load_explicit(&st->half_until, memory_order_relaxed), now = until ? far_now(op->t) : 0;
    if (now >= until)
        return leaf;
    far_spin_lock(&st->half_lock);
    for (unsigned i = 0; i < CHIME_HALF_SPLITS; i++) {
        const chime_half_split *part = find_part(op, leaf, now);
        if (!part)
            break;
        leaf = part->node;
    }
    far_spin_unlock(&st->half_lock);
    return leaf;
}


/* Parents that were noted in long ago are READ again. */
static void renew_due(chime_op *op) {
    chime_state *st = op->st;
    uint64_t due = atomic_load_explicit(&st->half_due, memory_order_relaxed), next = UINT64_MAX;
    if (due == UINT64_MAX || far_now(op->t) < due)
        return;
    chime_ptr gone[CHIME_HALF_SPLITS];
    unsigned count = 0;
    uint64_t now = far_now(op->t), wait = RENEW_AFTER * far_rtt(op->t);
    far_spin_lock(&st->half_lock);
    for (unsigned i = 0; i < CHIME_HALF_SPLITS; i++) {
        chime_half_split *h = &st->half[i];
        if (h->above && h->since + wait <= now) {
            gone[count++] = h->above;
            h->above = 0;
        } else if (h->above && h->since + wait < next)
            next = h->since + wait;
    }
    atomic_store_explicit(&st->half_due, next, memory_order_relaxed);
    far_spin_unlock(&st->half_lock);
    for (unsigned i = 0; i < count; i++)
        chime_cache_renew(st->cache, gone[i]);
}


void chime_note_own_split(chime_op *op, chime_ptr left, const chime_fence *low, chime_ptr node) {
    chime_state *st = op->st;
    far_spin_lock(&st->half_lock);
    note_half(op, &(chime_half_split){.node = node, .left = left, .low = low->first, .since = far_now(op->t)});
    far_spin_unlock(&st->half_lock);
}


void chime_note_split(chime_op *op, unsigned level, chime_ptr left, const chime_fence *low, chime_ptr node) {
    chime_state *st = op->st;
    chime_ptr above = level + 1 < CHIME_LEVELS ? op->path[level + 1] : 0;
    bool noted = above && low && st->cache && chime_cache_add(st->cache, st, above, low, node);
    uint64_t now = far_now(op->t);
    far_spin_lock(&st->half_lock);
    chime_half_split *h = find_half(st, node);
    if (!h)
        note_half(op, &(chime_half_split){.node = node,
                                          .left = low && level == 0 ? left : 0,
                                          .low = low ? low->first : 0,
                                          .above = noted ? above : 0,
                                          .since = now});
    else if (now - h->since > HELP_AFTER * far_rtt(op->t)) {
        h->node = h->left = h->above = 0;
        op->help = node;
        op->help_level = level;
    }
    far_spin_unlock(&st->half_lock);
    if (!noted && above && st->cache)
        chime_cache_renew(st->cache, above);
    if (!above)
        atomic_store_explicit(&st->root, 0, memory_order_relaxed);
}


/* Many moves in one descent: much has changed since it began, and the way from the top is shorter by now. If it is not,
 * more of them are allowed the next time. */
int chime_count_move(chime_op *op, chime_ptr to, unsigned *moves) {
    if (op->st->cache)
        far_count_stale(op->t); /* the parent has not heard of a split */
    if (++*moves <= op->moves_allowed)
        return CHIME_RIGHT;
    if (op->moves_allowed >= CHIME_MOVES_MAX)
        return chime_broken(op->index, to, "its siblings have no end");
    op->moves_allowed *= 2;
    far_count_retry(op->t);
    return CHIME_AGAIN;
}


int chime_go_right(chime_op *op, unsigned level, chime_ptr from, chime_ptr to, unsigned *moves) {
    const chime_fence *low = op->beyond_node == to ? &op->beyond : NULL;
    chime_note_split(op, level, from, low, to);
    op->beyond_node = 0;
    return chime_count_move(op, to, moves);
}


int chime_descend(chime_op *op, unsigned level, chime_ptr *node) {
    chime_state *st = op->st;
    bool cached = true;
    int err;
    op->beyond_node = 0;
    renew_due(op);
    for (;;) {
        unsigned moves = 0;
        uint64_t root = atomic_load_explicit(&st->root, memory_order_relaxed);
        if (!root || chime_ptr_low(root) < level) {
            if ((err = chime_read_root(op, &root)) < 0)
                return err;
            if (chime_ptr_low(root) < level)
                return CHIME_NO_LEVEL;
        }
        chime_ptr p = chime_ptr_plain(root);
        unsigned at = chime_ptr_low(root);
        memset(op->path, 0, sizeof(op->path));
        for (err = 0; at > level && err >= 0 && err <= 1;) {
            chime_route r;
            if ((err = route(op, p, &r)) < 0)
                return err;
            cached &= err == 0;
            if (err > 1)
                break;
            if (r.level != at)
                return chime_broken(op->index, p, "it has another level than its parent says");
            if (!r.right)
                op->path[at--] = p;
            else if ((err = chime_go_right(op, at, p, r.next, &moves)) == CHIME_RIGHT)
                err = 0;
            p = r.next;
        }
        if (err < 0)
            return err;
        if (err == CHIME_AGAIN)
            continue;
        if (err <= 1) {
            *node = p;
            far_count_cache(op->t, cached);
            return 0;
        }
        if ((err = chime_not_there(op, p, at)) < 0)
            return err;
        if (op->restarts % op->st->patience == 0 && (err = chime_renew_pin(op)) < 0)
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


static void forget_half(chime_state *st, chime_ptr node) {
    far_spin_lock(&st->half_lock);
    chime_half_split *h = find_half(st, node);
    if (h)
        h->node = h->left = h->above = 0;
    far_spin_unlock(&st->half_lock);
}


int chime_not_there(chime_op *op, chime_ptr node, unsigned level) {
    chime_state *st = op->st;
    far_scratch_mark here = far_scratch_here(op->t);
    int err = 0;
    op->restarts++;
    far_count_retry(op->t);
    forget_half(st, node);
    if (st->cache) {
        far_count_stale(op->t);
        chime_cache_drop(st->cache, node);
    }
    for (unsigned i = 1; st->cache && i <= op->restarts && level + i < CHIME_LEVELS && op->path[level + i]; i++)
        chime_cache_drop(st->cache, op->path[level + i]);
    if (level + 1 >= CHIME_LEVELS || !op->path[level + 1] || op->restarts > 2)
        atomic_store_explicit(&st->root, 0, memory_order_relaxed);
    if (op->restarts > 3) {
        chime_ptr above = level + 1 < CHIME_LEVELS ? op->path[level + 1] : 0;
        if (above && chime_ptr_is_sound(op, above))
            err = look_above(op, above);
        if ((err == 2 || !above) && op->restarts > REST_MAX)
            err = chime_broken(op->index, node, "what is above leads to it, but it is gone");
        far_back_off(op->t, op->restarts < 8 ? op->restarts : 8);
    }
    far_scratch_back(op->t, here);
    return err < 0 ? err : 0;
}


void chime_finish(chime_op *op) {
    if (!op->help)
        return;
    atomic_fetch_add_explicit(&op->st->counts.helps, 1, memory_order_relaxed);
    if (!chime_add_pivot_later(op, op->help_level + 1, op->help))
        (void)chime_add_pivot(op->t, op->index, op->help_level + 1, op->help);
    op->help = 0;
}
