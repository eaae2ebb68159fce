/* CHIME: the descent from the root through cached inner nodes to a leaf, or to a node of any level. Each step goes to
 * the child that the node names for the key, or to the right sibling if the key is at or after the high fence. Pivots
 * may be missing, but they are never wrong. This file also records half splits (nodes to which only their left sibling
 * points) and decides when an operation must insert a missing pivot. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch/epoch.h"

/* Number of descents that may end at an outdated pointer although no client is changing the tree. After more such
 * descents the tree counts as corrupt. */
#define STALE_PATHS_MAX 64
/* Number of round trips within which a client that splits a node normally inserts the pivot. After this time another
 * client inserts the pivot. */
#define HELP_AFTER 32u
/* Number of round trips before a parent with an added child is READ again. The delay lets one READ serve several
 * splits. */
#define RENEW_AFTER 64u
/* Number of round trips for which a recorded split leads writers from the left part to the right one without a verb. */
#define FOLLOW_FOR 512u


int chime_read_root(chime_op *op, uint64_t *root) {
    far_read(op->t, op->index->descriptor + CHIME_ROOT_WORD, root, 8);
    int err = chime_wait(op);
    if (err < 0)
        return err;
    if (!chime_ptr_is_in_pool(op, *root) || chime_ptr_low(*root) >= CHIME_LEVELS)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': its root pointer is invalid", op->index->name);
    atomic_store_explicit(&op->st->root, *root, memory_order_relaxed);
    return 0;
}


int chime_read_inner(chime_op *op, chime_ptr p, chime_inner *inner) {
    chime_node n = {0};
    int err = chime_read_node(op, p, &n);
    return err != 0 ? err : chime_decode_inner(op, &n, inner);
}


/* Routes the key through the inner node p, which is taken from the cache or READ. Returns 0 if it was cached, 1 if it
 * was READ, CHIME_STALE + 1 if the pointer is outdated. */
static int route_by_node(chime_op *op, chime_ptr p, chime_route *r) {
    chime_state *st = op->st;
    if (st->cache && chime_cache_route_or_renew(st->cache, st, p, &op->key, far_epoch(op->t), r))
        return 0;
    far_scratch_mark here = far_scratch_here(op->t);
    chime_inner *inner = far_scratch(op->t, sizeof(*inner));
    int err = inner ? chime_read_inner(op, p, inner) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    if (err == 0) {
        chime_route_in_node(st, inner, &op->key, r);
        if (st->cache)
            chime_cache_put(st->cache, st, inner, far_epoch(op->t));
    }
    far_scratch_back(op->t, here);
    return err < 0 ? err : err == 0 ? 1 : CHIME_STALE + 1;
}


bool chime_find_cached_leaf(chime_op *op, chime_ptr *leaf) {
    chime_state *st = op->st;
    uint64_t root = atomic_load_explicit(&st->root, memory_order_relaxed);
    chime_route r;
    if (!root || !st->cache)
        return false;
    *leaf = chime_ptr_without_low(root);
    for (unsigned at = chime_ptr_low(root); at > 0; at--) {
        if (!chime_cache_route(st->cache, st, *leaf, &op->key, far_epoch(op->t), &r) || r.right || r.level != at)
            return false;
        *leaf = r.next;
    }
    return chime_ptr_is_in_pool(op, *leaf);
}


/* Half splits. If only its left sibling points to a node, then the node was split off recently and its splitter is
 * about to insert the pivot, or the splitter has failed. An operation that meets such a node records it, and adds it as
 * a child to the cached parent, so that later operations of this handle find it directly. After RENEW_AFTER round trips
 * that parent is READ again. If the pivot is still missing then, the next operation that follows the sibling pointer
 * inserts the pivot. */

static chime_half_split *find_half_split(chime_state *st, chime_ptr node) {
    for (unsigned i = 0; i < CHIME_HALF_SPLITS; i++)
        if (st->half_splits[i].node == node)
            return &st->half_splits[i];
    return NULL;
}


/* Adds the half split to the list of the handle, in place of the oldest entry. The caller must hold half_lock. */
static void add_half_split(chime_op *op, const chime_half_split *half) {
    chime_state *st = op->st;
    st->half_splits[st->half_next++ % CHIME_HALF_SPLITS] = *half;
    uint64_t due = half->first_met + RENEW_AFTER * far_rtt(op->t);
    if (half->parent && atomic_load_explicit(&st->half_renew_at, memory_order_relaxed) > due)
        atomic_store_explicit(&st->half_renew_at, due, memory_order_relaxed);
    if (half->left)
        atomic_store_explicit(&st->half_follow_until, half->first_met + FOLLOW_FOR * far_rtt(op->t),
                              memory_order_relaxed);
}


/* Returns whether op->key is certainly not smaller than a low fence of which only the first 8 bytes are known. */
static bool key_is_at_or_after(const chime_op *op, uint64_t low) {
    return op->st->key_fits_word ? op->key.first >= low : op->key.first > low;
}


/* Searches the half splits that this handle has recorded for the node `left`, except old ones. Returns the one whose
 * right part has the largest low fence that is not above op->key, or NULL if there is none. */
static const chime_half_split *find_right_part(const chime_op *op, chime_ptr left, uint64_t now) {
    const chime_state *st = op->st;
    const chime_half_split *best = NULL;
    for (unsigned i = 0; i < CHIME_HALF_SPLITS; i++) {
        const chime_half_split *h = &st->half_splits[i];
        if (h->left == left && h->first_met + FOLLOW_FOR * far_rtt(op->t) > now && key_is_at_or_after(op, h->low) &&
            (!best || h->low > best->low))
            best = h;
    }
    return best;
}


chime_ptr chime_follow_recent_splits(chime_op *op, chime_ptr leaf) {
    chime_state *st = op->st;
    uint64_t until = atomic_load_explicit(&st->half_follow_until, memory_order_relaxed),
             now = until ? far_now(op->t) : 0;
    if (now >= until)
        return leaf;
    far_spin_lock(&st->half_lock);
    for (unsigned i = 0; i < CHIME_HALF_SPLITS; i++) {
        const chime_half_split *part = find_right_part(op, leaf, now);
        if (!part)
            break;
        leaf = part->node;
    }
    far_spin_unlock(&st->half_lock);
    return leaf;
}


/* Requests a new READ of parents to which a half split was added RENEW_AFTER round trips ago. */
static void renew_due_parents(chime_op *op) {
    chime_state *st = op->st;
    uint64_t due = atomic_load_explicit(&st->half_renew_at, memory_order_relaxed), next = UINT64_MAX;
    if (due == UINT64_MAX || far_now(op->t) < due)
        return;
    chime_ptr gone[CHIME_HALF_SPLITS];
    unsigned count = 0;
    uint64_t now = far_now(op->t), wait = RENEW_AFTER * far_rtt(op->t);
    far_spin_lock(&st->half_lock);
    for (unsigned i = 0; i < CHIME_HALF_SPLITS; i++) {
        chime_half_split *h = &st->half_splits[i];
        if (h->parent && h->first_met + wait <= now) {
            gone[count++] = h->parent;
            h->parent = 0;
        } else if (h->parent && h->first_met + wait < next)
            next = h->first_met + wait;
    }
    atomic_store_explicit(&st->half_renew_at, next, memory_order_relaxed);
    far_spin_unlock(&st->half_lock);
    for (unsigned i = 0; i < count; i++)
        chime_cache_request_renewal(st->cache, gone[i]);
}


void chime_note_own_split(chime_op *op, chime_ptr left, const chime_fence *low, chime_ptr node) {
    chime_state *st = op->st;
    far_spin_lock(&st->half_lock);
    add_half_split(op, &(chime_half_split){.node = node, .left = left, .low = low->first, .first_met = far_now(op->t)});
    far_spin_unlock(&st->half_lock);
}


void chime_note_half_split(chime_op *op, unsigned level, chime_ptr left, const chime_fence *low, chime_ptr node) {
    chime_state *st = op->st;
    chime_ptr parent = level + 1 < CHIME_LEVELS ? op->path[level + 1] : 0;
    bool noted = parent && low && st->cache && chime_cache_add_child(st->cache, st, parent, low, node);
    uint64_t now = far_now(op->t);
    far_spin_lock(&st->half_lock);
    chime_half_split *h = find_half_split(st, node);
    if (!h)
        add_half_split(op, &(chime_half_split){.node = node,
                                               .left = low && level == 0 ? left : 0,
                                               .low = low ? low->first : 0,
                                               .parent = noted ? parent : 0,
                                               .first_met = now});
    else if (now - h->first_met > HELP_AFTER * far_rtt(op->t)) {
        h->node = h->left = h->parent = 0;
        op->help_node = node;
        op->help_level = level;
    }
    far_spin_unlock(&st->half_lock);
    if (!noted && parent && st->cache)
        chime_cache_request_renewal(st->cache, parent);
    if (!parent)
        atomic_store_explicit(&st->root, 0, memory_order_relaxed);
}


/* Counts one move to a right sibling. After many such moves the function returns CHIME_AGAIN: the descent started from
 * outdated nodes, and a new descent from the root is now shorter. The next descent may move twice as often, in case the
 * pivots are really missing. */
int chime_count_right_move(chime_op *op, chime_ptr to, unsigned *moves) {
    if (op->st->cache)
        far_count_stale(op->t); /* the cached parent lacks the pivot of a split */
    if (++*moves <= op->right_moves_allowed)
        return CHIME_RIGHT;
    if (op->right_moves_allowed >= CHIME_RIGHT_MOVES_MAX)
        return chime_report_corrupt(op->index, to, "the chain of its siblings does not end");
    op->right_moves_allowed *= 2;
    far_count_retry(op->t);
    return CHIME_AGAIN;
}


int chime_move_right(chime_op *op, unsigned level, chime_ptr from, chime_ptr to, unsigned *moves) {
    const chime_fence *low = op->right_node == to ? &op->right_fence : NULL;
    chime_note_half_split(op, level, from, low, to);
    op->right_node = 0;
    return chime_count_right_move(op, to, moves);
}


int chime_descend(chime_op *op, unsigned level, chime_ptr *node) {
    chime_state *st = op->st;
    bool cached = true;
    int err;
    op->right_node = 0;
    renew_due_parents(op);
    for (;;) {
        unsigned moves = 0;
        uint64_t root = atomic_load_explicit(&st->root, memory_order_relaxed);
        if (!root || chime_ptr_low(root) < level) {
            if ((err = chime_read_root(op, &root)) < 0)
                return err;
            if (chime_ptr_low(root) < level)
                return CHIME_NO_LEVEL;
        }
        chime_ptr p = chime_ptr_without_low(root);
        unsigned at = chime_ptr_low(root);
        memset(op->path, 0, sizeof(op->path));
        for (err = 0; at > level && err >= 0 && err <= 1;) {
            chime_route r;
            if ((err = route_by_node(op, p, &r)) < 0)
                return err;
            cached &= err == 0;
            if (err > 1)
                break;
            if (r.level != at)
                return chime_report_corrupt(op->index, p, "its level is not one below the level of its parent");
            if (!r.right)
                op->path[at--] = p;
            else if ((err = chime_move_right(op, at, p, r.next, &moves)) == CHIME_RIGHT)
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
        if ((err = chime_drop_stale_path(op, p, at)) < 0)
            return err;
        if (op->restarts % op->st->lock_attempts == 0 && (err = chime_renew_pin(op)) < 0)
            return err;
    }
}


/* Called when descents keep ending at an outdated pointer of this parent. If a client failed in the middle of a merge,
 * it still holds the lock of the parent, and the repair of the parent removes the pointer. Returns 2 if the parent is
 * not locked, otherwise the result of chime_repair_if_holder_failed. The tree is corrupt if the parent is not locked
 * and still contains the pointer. */
static int repair_parent_if_locked(chime_op *op, chime_ptr parent) {
    chime_node n = {.ptr = parent, .w = chime_alloc_image(op)};
    if (!n.w)
        return FAR_ERR_NO_MEMORY;
    chime_batch_read_tail(op, &n);
    int err = chime_wait(op);
    uint64_t lock = err < 0 ? 0 : chime_tail(op->st, n.w)[CHIME_TAIL_L];
    if (err < 0)
        return err;
    return chime_lock_is_held(lock) && lock != CHIME_LOCK_DEAD ? chime_repair_if_holder_failed(op, parent, lock) : 2;
}


static void forget_half_split(chime_state *st, chime_ptr node) {
    far_spin_lock(&st->half_lock);
    chime_half_split *h = find_half_split(st, node);
    if (h)
        h->node = h->left = h->parent = 0;
    far_spin_unlock(&st->half_lock);
}


int chime_drop_stale_path(chime_op *op, chime_ptr node, unsigned level) {
    chime_state *st = op->st;
    far_scratch_mark here = far_scratch_here(op->t);
    int err = 0;
    op->restarts++;
    far_count_retry(op->t);
    forget_half_split(st, node);
    if (st->cache) {
        far_count_stale(op->t);
        chime_cache_drop(st->cache, node);
    }
    for (unsigned i = 1; st->cache && i <= op->restarts && level + i < CHIME_LEVELS && op->path[level + i]; i++)
        chime_cache_drop(st->cache, op->path[level + i]);
    if (level + 1 >= CHIME_LEVELS || !op->path[level + 1] || op->restarts > 2)
        atomic_store_explicit(&st->root, 0, memory_order_relaxed);
    if (op->restarts > 3) {
        chime_ptr parent = level + 1 < CHIME_LEVELS ? op->path[level + 1] : 0;
        if (parent && chime_ptr_is_in_pool(op, parent))
            err = repair_parent_if_locked(op, parent);
        if ((err == 2 || !parent) && op->restarts > STALE_PATHS_MAX)
            err = chime_report_corrupt(op->index, node, "its parent points to it, but the node does not exist");
        far_back_off(op->t, op->restarts < 8 ? op->restarts : 8);
    }
    far_scratch_back(op->t, here);
    return err < 0 ? err : 0;
}


void chime_finish_op(chime_op *op) {
    if (!op->help_node)
        return;
    atomic_fetch_add_explicit(&op->st->counts.helps, 1, memory_order_relaxed);
    if (!chime_add_pivot_in_background(op, op->help_level + 1, op->help_node))
        (void)chime_add_pivot(op->t, op->index, op->help_level + 1, op->help_node);
    op->help_node = 0;
}
