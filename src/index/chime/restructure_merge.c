/* CHIME: merging. A node absorbs its right sibling while both nodes and their common parent are locked. First the
 * client writes the pointer to the absorbing node into the `absorber` field of the sibling. This WRITE commits the
 * merge, and all lines of the sibling become invalid. Then the left node is written with the items and the range of
 * both nodes. The sibling's lock becomes dead before its pivot is removed from the parent, so no client can lock the
 * sibling any more. If the client fails in between, recover.c completes the merge. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "task/latch.h"

#include <stdlib.h>

#define ATTEMPTS_MAX 4 /* number of attempts of one merge before the merge is deferred until the handle is idle */
#define MERGE_BUSY   2

/* A merge, in which `left` absorbs `right`; both are children of `parent`. */
typedef struct merging {
    chime_op op;
    unsigned level; /* level of the two children */
    chime_node parent, left, right;
    chime_lock lock_parent, lock_left, lock_right;
    bool locked_parent, locked_left, locked_right;
    bool latched_parent, latched_left, latched_right;
    chime_inner inner;     /* the decoded parent */
    unsigned slot;         /* slot of `right` in the parent */
    bool nothing_to_merge; /* the attempt has read the nodes and decided against a merge */
} merging;


/* Copies the items of `b` into free slots of `a`, which are chosen by a fixed rule. A repair that starts from the same
 * images therefore produces the same node as the client that failed. Returns false if the items do not fit. */
bool chime_absorb(const chime_state *st, uint64_t *a, uint64_t *b) {
    unsigned level = chime_h0_level(chime_tail(st, a)[CHIME_TAIL_H0]);
    for (unsigned slot = 0; slot < st->span; slot++) {
        if (!chime_slot_is_occupied(st, b, slot))
            continue;
        const uint64_t *words = chime_slot(st, b, slot);
        unsigned home = level ? 0 : chime_item_home_slot(st, b, slot);
        int to = level             ? chime_find_free_slot(st, a, 0, st->span)
                 : home < st->span ? chime_find_free_near_home(st, a, home)
                                   : -1;
        if (to < 0)
            return false;
        if (level) {
            memcpy(chime_slot(st, a, (unsigned)to), words, chime_slot_bytes(st->per_line));
            chime_set_slot_occupied(st, a, (unsigned)to, true);
        } else
            chime_place_item(st, a, (unsigned)to, home, words[0], words + 1);
    }
    return true;
}


/* `before` must be the image of `a` as it is in far memory, without the items of `b`. */
int chime_batch_absorbed_image(chime_op *op, chime_node *a, chime_node *b, const uint64_t *before, bool *fits) {
    const chime_state *st = op->st;
    uint64_t *tail = chime_tail(st, a->w), *its = chime_tail(st, b->w);
    unsigned nv = chime_h1_nv(tail[CHIME_TAIL_H1]) + 1;
    if (!(*fits = chime_absorb(st, a->w, b->w)))
        return 0;
    chime_set_sibling_nv(st, a->w, chime_h1_sibling(its[CHIME_TAIL_H1]), nv);
    if (chime_h0_level(tail[CHIME_TAIL_H0]) == 0)
        chime_build_hop_bitmaps(st, a->w);
    tail[CHIME_TAIL_HIGH] = its[CHIME_TAIL_HIGH];
    int err = chime_batch_set_busy(op, a->ptr);
    if (err < 0 || (err = chime_batch_image(op, a, before)) < 0)
        return err;
    return chime_batch_unlock(op, a->ptr, chime_occupancy_map(st, a->w));
}


static bool try_latch_node(merging *m, chime_ptr p, bool *latched) {
    return *latched = far_latch_try(m->op.t, chime_ptr_addr(p));
}


static void release_locks_and_latches(merging *m) {
    far_task *t = m->op.t;
    far_discard_batch(t);
    if (m->locked_right)
        chime_unlock_unchanged(&m->op, m->right.ptr, &m->lock_right);
    if (m->locked_left)
        chime_unlock_unchanged(&m->op, m->left.ptr, &m->lock_left);
    if (m->locked_parent)
        chime_unlock_unchanged(&m->op, m->parent.ptr, &m->lock_parent);
    if (m->latched_right)
        far_unlatch(t, chime_ptr_addr(m->right.ptr));
    if (m->latched_left)
        far_unlatch(t, chime_ptr_addr(m->left.ptr));
    if (m->latched_parent)
        far_unlatch(t, chime_ptr_addr(m->parent.ptr));
}


/* Locks the parent and chooses two adjacent children, `left` and `right`, at op->key. Returns 1 if they are chosen, 0
 * if the merge is not possible now or not needed. */
static int lock_parent_and_choose(merging *m) {
    chime_op *op = &m->op;
    const chime_state *st = op->st;
    int err = chime_descend(op, m->level + 1, &m->parent.ptr);
    m->nothing_to_merge = err == CHIME_NO_LEVEL;
    if (err != 0 || !chime_ptr_is_in_pool(op, m->parent.ptr) || !try_latch_node(m, m->parent.ptr, &m->latched_parent))
        return err < 0 ? err : 0;
    chime_batch_lock(op, m->parent.ptr, 0, &m->lock_parent);
    if ((err = chime_wait(op)) < 0)
        return err;
    if (!(m->locked_parent = chime_take_lock_result(op, &m->lock_parent) == 0))
        return 0;
    if (!(m->parent.w = chime_alloc_image(op)))
        return FAR_ERR_NO_MEMORY;
    chime_batch_read_node_and_s(op, &m->parent);
    if ((err = chime_wait(op)) < 0)
        return err;
    const uint64_t *tail = chime_tail(st, m->parent.w);
    if (!chime_node_is_consistent(st, m->parent.w, chime_ptr_tag(m->parent.ptr)) ||
        chime_h0_level(tail[CHIME_TAIL_H0]) != m->level + 1)
        return 0;
    if ((err = chime_check_range(op, tail)) != 0 || (err = chime_decode_inner(op, &m->parent, &m->inner)) < 0)
        return err < 0 ? err : 0;
    unsigned at = 0;
    while (at + 1 < m->inner.count && chime_compare_fence_to_key(st, &m->inner.pivot[at + 1], &op->key) <= 0)
        at++;
    /* The first child of a parent is never absorbed, because its low fence is that of the parent; but it may absorb the
     * second one. */
    if (at == 0)
        at = 1;
    if ((m->nothing_to_merge = at >= m->inner.count))
        return 0;
    m->left.ptr = m->inner.child[at - 1];
    m->right.ptr = m->inner.child[at];
    for (m->slot = 0; m->slot < st->span; m->slot++)
        if (chime_slot_is_occupied(st, m->parent.w, m->slot) && chime_slot(st, m->parent.w, m->slot)[1] == m->right.ptr)
            break;
    return m->slot < st->span && chime_ptr_is_in_pool(op, m->left.ptr) && chime_ptr_is_in_pool(op, m->right.ptr);
}


static int lock_children(merging *m) {
    chime_op *op = &m->op;
    if (!try_latch_node(m, m->left.ptr, &m->latched_left) || !try_latch_node(m, m->right.ptr, &m->latched_right))
        return 0;
    if (!(m->left.w = chime_alloc_image(op)) || !(m->right.w = chime_alloc_image(op)))
        return FAR_ERR_NO_MEMORY;
    chime_batch_lock(op, m->left.ptr, 0, &m->lock_left);
    chime_batch_lock(op, m->right.ptr, 0, &m->lock_right);
    int err = chime_wait(op);
    if (err < 0)
        return err;
    m->locked_left = chime_take_lock_result(op, &m->lock_left) == 0;
    m->locked_right = chime_take_lock_result(op, &m->lock_right) == 0;
    if (!m->locked_left || !m->locked_right)
        return 0;
    far_point(op->t, "chime:merge_locked");
    chime_batch_read_node_and_s(op, &m->left);
    chime_batch_read_node_and_s(op, &m->right);
    if ((err = chime_wait(op)) < 0)
        return err;
    return chime_node_is_consistent(op->st, m->left.w, chime_ptr_tag(m->left.ptr)) &&
           chime_node_is_consistent(op->st, m->right.w, chime_ptr_tag(m->right.ptr)) &&
           chime_h1_sibling(chime_tail(op->st, m->left.w)[CHIME_TAIL_H1]) == m->right.ptr;
}


static bool merge_is_worthwhile(const merging *m) {
    const chime_state *st = m->op.st;
    unsigned a = chime_count_items(st, m->left.w), b = chime_count_items(st, m->right.w);
    bool sparse = (a + b) * 5 <= st->span * 2;
    bool any = m->level || st->merge == CHIME_MERGE_SPARSE;
    return b == 0 || (sparse && (any || a == 0));
}


/* Writes the `absorber` field of the right node, which commits the merge, and marks all lines of the right node
 * invalid. */
static int commit_merge(merging *m, const uint64_t *before) {
    chime_op *op = &m->op;
    uint64_t *aux = &chime_tail(op->st, m->right.w)[CHIME_TAIL_ABSORBER];
    *aux = m->left.ptr;
    chime_set_valid(op->st, m->right.w, false);
    int err = chime_batch_set_busy(op, m->right.ptr);
    if (err < 0)
        return err;
    far_write(op->t, chime_tail_addr(op->st, m->right.ptr, CHIME_TAIL_ABSORBER), aux, 8);
    if ((err = chime_batch_image(op, &m->right, before)) < 0)
        return err;
    m->locked_right = false;
    return chime_wait(op);
}


/* Commits the merge and completes it. The merge cannot be undone after the commit. If this client fails after the
 * commit, the client that finds its locks completes the merge. */
static int complete_merge(merging *m, uint64_t *before_left, const uint64_t *before_right, uint64_t *before_parent) {
    chime_op *op = &m->op;
    const chime_state *st = op->st;
    static const uint64_t dead = CHIME_LOCK_DEAD;
    bool fits;
    int err = commit_merge(m, before_right);
    if (err < 0)
        return err;
    m->locked_left = m->locked_parent = false;
    far_point(op->t, "chime:merge_committed");
    if ((err = chime_batch_absorbed_image(op, &m->left, &m->right, before_left, &fits)) < 0)
        return err;
    far_write(op->t, chime_tail_addr(st, m->right.ptr, CHIME_TAIL_L), &dead, 8);
    if ((err = chime_wait(op)) < 0)
        return err;
    far_point(op->t, "chime:merge_extended");
    memcpy(before_parent, m->parent.w, st->node_bytes);
    chime_set_slot_occupied(st, m->parent.w, m->slot, false);
    if ((err = chime_batch_set_busy(op, m->parent.ptr)) < 0)
        return err;
    chime_batch_changed_lines(op, &m->parent, before_parent, 0);
    if ((err = chime_batch_unlock(op, m->parent.ptr, chime_occupancy_map(st, m->parent.w))) < 0 ||
        (err = chime_wait(op)) < 0)
        return err;
    far_retire(op->t, op->index, CHIME_TYPE_NODE, chime_ptr_addr(m->right.ptr), st->node_bytes);
    if (m->level == 0)
        chime_retire_fence(op, chime_tail(st, m->right.w)[CHIME_TAIL_LOW]);
    if (st->cache) {
        chime_cache_drop(st->cache, m->parent.ptr);
        chime_cache_drop(st->cache, m->left.ptr);
        chime_cache_drop(st->cache, m->right.ptr);
    }
    atomic_fetch_add_explicit(&op->st->counts.merges, 1, memory_order_relaxed);
    return 1;
}


/* Makes one attempt at the merge. Returns 1 if two nodes were merged, so that the parent may be the next candidate,
 * otherwise 0. */
static int try_merge(merging *m) {
    chime_op *op = &m->op;
    const chime_state *st = op->st;
    int err = lock_parent_and_choose(m);
    if (err <= 0)
        return err;
    far_point(op->t, "chime:merge_parent");
    if ((err = lock_children(m)) <= 0)
        return err;
    uint64_t *before_left = chime_alloc_image(op), *before_right = chime_alloc_image(op),
             *before_parent = chime_alloc_image(op);
    if (!before_left || !before_right || !before_parent)
        return FAR_ERR_NO_MEMORY;
    memcpy(before_left, m->left.w, st->node_bytes);
    memcpy(before_right, m->right.w, st->node_bytes);
    memcpy(before_parent, m->left.w, st->node_bytes); /* first try on a copy whether the items fit into the left node */
    if ((m->nothing_to_merge = !merge_is_worthwhile(m) || !chime_absorb(st, before_parent, m->right.w)))
        return 0;
    return complete_merge(m, before_left, before_right, before_parent);
}


typedef struct merge_request {
    unsigned level;
    uint32_t length;
    uint8_t key[CHIME_KEY_MAX];
} merge_request;


/* Merges on one level. Returns 1 if the parent's level is the next candidate, 0 if not, MERGE_BUSY if other clients
 * held one of the locks during all attempts. */
static int merge_level(far_task *t, far_index *index, const merge_request *l, unsigned level) {
    far_scratch_mark here = far_scratch_here(t);
    merging *m = far_scratch(t, sizeof(*m));
    int err = m ? 0 : FAR_ERR_NO_MEMORY;
    for (unsigned attempt = 0; err == 0 && attempt < ATTEMPTS_MAX; attempt++) {
        memset(m, 0, sizeof(*m));
        m->level = level;
        chime_begin_op(&m->op, t, index, (far_bytes){l->key, l->length});
        err = try_merge(m);
        release_locks_and_latches(m);
        if (err != 0 || m->nothing_to_merge)
            break;
        /* The attempt has failed because another client works on the parent or on one of the two children. */
        far_back_off(t, attempt < 6 ? attempt : 6);
    }
    unsigned children = err < 0 ? CHIME_SPAN_MAX : m->inner.count;
    bool busy = err == 0 && !m->nothing_to_merge;
    /* The verbs that may still be pending, such as unlocks, do not use this scratch memory, so it can be released. */
    if (err >= 0)
        far_scratch_back(t, here);
    return err < 0 ? err : busy ? MERGE_BUSY : children && children * 5 <= chime_state_of(index)->span * 2;
}


/* Adds the merge to the deferred ones, which chime_run_deferred_merge tries again when the handle is idle. */
static void defer_merge(chime_state *st, const merge_request *l, unsigned level) {
    merge_request *copy = malloc(sizeof(*copy));
    if (!copy)
        return;
    memcpy(copy, l, sizeof(*copy));
    copy->level = level;
    far_spin_lock(&st->merge_lock);
    bool room = st->deferred_merge_count < CHIME_MERGES_MAX;
    if (room)
        st->deferred_merges[st->deferred_merge_count++] = copy;
    far_spin_unlock(&st->merge_lock);
    if (!room)
        free(copy);
}


static void merge_upwards(far_task *t, far_index *index, const merge_request *l) {
    unsigned level = l->level;
    int err = 1;
    while (err == 1 && level + 1 < CHIME_LEVELS && (err = merge_level(t, index, l, level)) == 1)
        level++;
    if (err == MERGE_BUSY)
        defer_merge(chime_state_of(index), l, level);
}


static void run_merge_task(far_task *t, far_index *index, void *arg) {
    merge_upwards(t, index, arg);
}


int chime_run_deferred_merge(far_task *t, far_index *index) {
    chime_state *st = chime_state_of(index);
    far_spin_lock(&st->merge_lock);
    unsigned count = st->deferred_merge_count;
    merge_request *l = count ? st->deferred_merges[--st->deferred_merge_count] : NULL;
    far_spin_unlock(&st->merge_lock);
    if (!l)
        return 0;
    merge_upwards(t, index, l);
    free(l);
    return count > 1;
}


void chime_free_deferred_merges(chime_state *st) {
    while (st->deferred_merge_count)
        free(st->deferred_merges[--st->deferred_merge_count]);
}


int chime_merge_in_background(chime_op *op, unsigned level) {
    merge_request l = {.level = level, .length = (uint32_t)op->key.bytes.length};
    if (atomic_load_explicit(&op->st->root, memory_order_relaxed) &&
        chime_ptr_low(atomic_load_explicit(&op->st->root, memory_order_relaxed)) <= level)
        return 0; /* a node of the root's level has no parent, so it cannot be merged */
    memcpy(l.key, op->key.bytes.data, op->key.bytes.length);
    /* if no task is free, a later delete will start the merge */
    (void)far_index_spawn(op->t, op->index, run_merge_task, &l, sizeof(l));
    return 0;
}
