/* CHIME: inserting a pivot into the parent, for a node to which only its left sibling points. If the parent is full it
 * is split, and if there is no parent a new root is created. The client that splits a node starts this in the
 * background; other clients start it if that client seems to have failed. If two clients do so, the second one finds
 * that the pivot is present or that the node no longer exists, and does nothing. Other files call chime_add_pivot. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch/epoch.h"
#include "task/latch.h"

#define CHECK_HOLDER_EVERY 4
/* limit of the exponent of the back-off; it is small because only one task of a compute node tries to take the lock */
#define BACK_OFF_EXPONENT_MAX 2
#define COMBINED_PIVOTS_MAX   16 /* largest number of pivots that one change inserts */

/* A pivot that is being inserted. The structure belongs to the inserting task; other tasks read it while that task
 * waits in the queue of the latch. */
typedef struct pivot {
    /* entry in the queue of the parent's latch; `served` is set by another task that inserts this pivot */
    chime_waiter waiter;
    unsigned level;          /* level of the parent */
    chime_ptr child;         /* the node for which the pivot is inserted */
    chime_ptr split_sibling; /* new right part of a parent that was split, which needs a pivot itself; 0: none */
    uint64_t low;            /* low fence of the child, which is its pivot */
    uint8_t bytes[CHIME_KEY_MAX + 8]; /* the key to which `low` refers */
    size_t length;
    unsigned attempts; /* number of failed attempts, because another client held the lock of the parent */
} pivot;


/* Returns whether a new node may be placed on this memory node. Nodes that are neighbours are stored on different
 * memory nodes. A scan READs several neighbours in one batch; if they shared a memory node, that memory node would
 * serve most of the READs of a range that many clients scan. */
bool chime_memory_node_is_allowed(chime_op *op, unsigned node, chime_ptr left, chime_ptr right) {
    return far_task_nodes(op->t) == 1 || ((!left || node != far_addr_node(chime_ptr_addr(left))) &&
                                          (!right || node != far_addr_node(chime_ptr_addr(right))));
}


unsigned chime_choose_memory_node(chime_op *op, chime_ptr left, chime_ptr right) {
    unsigned nodes = far_task_nodes(op->t), node = (unsigned)(far_task_random(op->t) % nodes);
    for (unsigned i = 0; i < 2 && !chime_memory_node_is_allowed(op, node, left, right); i++)
        node = (node + 1) % nodes;
    return node;
}


static void batch_read_child_tail(chime_op *op, const pivot *p, uint64_t tail[8]) {
    far_read(op->t, chime_tail_addr(op->st, p->child, CHIME_TAIL_H0), tail, CHIME_LINE);
    far_mark(op->t, FAR_VERB_UNPROVEN);
}


static bool child_is_current(const pivot *p, const uint64_t tail[8]) {
    return chime_h0_tag(tail[CHIME_TAIL_H0]) == chime_ptr_tag(p->child) && chime_h0_valid(tail[CHIME_TAIL_H0]);
}


/* READs the low fence of the child, which is the pivot. Returns 0, or 1 if the child no longer exists. */
static int read_child_low(chime_op *op, pivot *p) {
    uint64_t tail[8];
    if (!chime_ptr_is_in_pool(op, p->child))
        return 1;
    batch_read_child_tail(op, p, tail);
    int err = chime_wait(op);
    if (err < 0)
        return err;
    if (!child_is_current(p, tail))
        return 1;
    chime_fence low = {.word = tail[CHIME_TAIL_LOW]}, *list = &low;
    if ((err = chime_read_fences(op, &list, 1)) < 0)
        return err;
    p->low = low.word;
    p->length = op->st->inline_items            ? 8
                : chime_ref_is_inline(low.word) ? (low.word ? chime_ref_length(low.word) : 0)
                                                : low.bytes.length;
    for (unsigned i = 0; i < 8; i++)
        p->bytes[i] = (uint8_t)(low.first >> (56 - 8 * i));
    if (low.bytes.data)
        memcpy(p->bytes, low.bytes.data, low.bytes.length);
    return 0;
}


static void set_key_to_pivot(chime_op *op, const pivot *p) {
    chime_key_make(op->st, (far_bytes){p->bytes, p->length}, &op->key);
}


/* Creates a new root above the old one, with the old root and the child as its children. Returns 0 if the tree has
 * gained a level, whether by this client or by another one. */
static int grow_root(chime_op *op, const pivot *p) {
    chime_state *st = op->st;
    uint64_t old, seen;
    far_object object;
    int err = chime_read_root(op, &old);
    if (err < 0)
        return err;
    if (chime_ptr_low(old) + 1 != p->level)
        return chime_ptr_low(old) >= p->level ? 0
                                              : chime_report_corrupt(op->index, p->child, "it is higher than the root");
    uint64_t *w = chime_alloc_image(op), *tail;
    if (!w)
        return FAR_ERR_NO_MEMORY;
    err = far_alloc(op->t, op->index, CHIME_TYPE_NODE, st->node_bytes, chime_choose_memory_node(op, 0, 0), 0, &object);
    if (err < 0)
        return err;
    chime_ptr made = chime_ptr_make(object.addr, (unsigned)object.epoch, p->level);
    chime_init_node(st, w, chime_ptr_tag(made), p->level);
    chime_slot(st, w, 0)[1] = chime_ptr_without_low(old);
    chime_slot(st, w, 1)[0] = p->low;
    chime_slot(st, w, 1)[1] = p->child;
    chime_set_slot_occupied(st, w, 0, true);
    chime_set_slot_occupied(st, w, 1, true);
    tail = chime_tail(st, w);
    tail[CHIME_TAIL_S] = chime_new_s(op, false);
    chime_set_unlocked_words(st, tail, chime_occupancy_map(st, w));
    far_point(op->t, "chime:root_begin");
    far_write(op->t, object.addr, w, st->node_bytes);
    if ((err = chime_wait(op)) < 0)
        return err;
    far_point(op->t, "chime:root");
    far_cas(op->t, op->index->descriptor + CHIME_ROOT_WORD, old, made, &seen);
    if ((err = chime_wait(op)) < 0)
        return err;
    if (seen != old) {
        far_free(op->t, op->index, CHIME_TYPE_NODE, object.addr, st->node_bytes);
        return chime_read_root(op, &old);
    }
    atomic_fetch_add_explicit(&st->counts.grown, 1, memory_order_relaxed);
    atomic_store_explicit(&st->root, made, memory_order_relaxed);
    return 0;
}


static void cache_inner_node(chime_op *op, chime_node *n) {
    chime_inner *inner = op->st->cache ? far_scratch(op->t, sizeof(*inner)) : NULL;
    if (inner && chime_decode_inner(op, n, inner) == 0)
        chime_cache_put(op->st->cache, op->st, inner, far_epoch(op->t));
}


static unsigned fill_free_slot(chime_op *op, chime_node *n, const pivot *p) {
    const chime_state *st = op->st;
    unsigned slot = (unsigned)chime_find_free_slot(st, n->w, 0, st->span);
    uint64_t *words = chime_slot(st, n->w, slot);
    words[0] = p->low;
    words[1] = p->child;
    chime_set_slot_occupied(st, n->w, slot, true);
    return slot;
}


/* Adds the WRITEs that put the pivots into free slots. Where lines cannot tear, each line is written once, with all its
 * new pivots and their occupied bits. If the client fails after some of the WRITEs, no slot is marked occupied without
 * its pivot. */
static int batch_pivot_slots(chime_op *op, chime_node *n, pivot *const all[], unsigned count, uint64_t *before) {
    int err = 0;
    for (unsigned i = 0; i < count && err >= 0; i++) {
        if (i > 0 && op->st->lines_can_tear)
            memcpy(before, n->w, op->st->node_bytes);
        unsigned slot = fill_free_slot(op, n, all[i]);
        if (op->st->lines_can_tear)
            err = chime_batch_moves(op, n, before, NULL, 0, slot);
    }
    if (!op->st->lines_can_tear)
        chime_batch_changed_lines(op, n, before, 0);
    return err;
}


static int unlock_and_wait(chime_op *op, chime_node *n, uint64_t map) {
    int err = chime_batch_unlock(op, n->ptr, map);
    if (err < 0) {
        far_discard_batch(op->t);
        return err;
    }
    return (err = chime_wait(op)) < 0 ? err : 1;
}


/* Combined pivots. A task that holds the latch of an inner node also inserts the pivots of the tasks that wait for this
 * latch. So if many children of one parent are split at once, the parent is locked once per compute node. */

/* Lists the task's own pivot and then the waiting ones. The caller must hold the latch. Returns their number. */
static unsigned list_waiting_pivots(chime_op *op, pivot *mine, chime_ptr node, pivot *all[COMBINED_PIVOTS_MAX]) {
    chime_waiter *waiting[COMBINED_PIVOTS_MAX];
    unsigned count = chime_list_waiters(&op->st->pivots, node, COMBINED_PIVOTS_MAX - 1, waiting);
    all[0] = mine;
    for (unsigned i = 0; i < count; i++)
        all[i + 1] = (pivot *)waiting[i];
    return count + 1;
}


static bool has_child(const chime_state *st, uint64_t *w, chime_ptr child) {
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_slot_is_occupied(st, w, slot) && chime_slot(st, w, slot)[1] == child)
            return true;
    return false;
}


/* Returns whether the list contains a pivot for the same child. The splitter and a task that helps it may wait with the
 * same pivot. */
static bool pivot_is_listed(pivot *const all[], unsigned count, const pivot *p) {
    for (unsigned i = 0; i < count; i++)
        if (all[i]->child == p->child)
            return true;
    return false;
}


static void mark_served(chime_op *op, chime_ptr node, pivot *const all[], unsigned count) {
    chime_state *st = op->st;
    far_spin_lock(&st->pivots.lock);
    for (chime_waiter *w = st->pivots.first; w; w = w->next)
        w->served |= w->node == node && pivot_is_listed(all, count, (pivot *)w);
    far_spin_unlock(&st->pivots.lock);
    atomic_fetch_add_explicit(&st->counts.combined_pivots, count - 1, memory_order_relaxed);
}


/* Reduces the list to the pivots that belong to this node, that are not present yet, and for which there is room. The
 * task's own pivot stays the first. Returns their number. */
static int choose_combined_pivots(chime_op *op, chime_node *n, pivot *all[], unsigned listed, uint64_t tails[][8]) {
    const chime_state *st = op->st;
    unsigned count = 1, room = st->span - chime_count_items(st, n->w);
    int err = 0;
    for (unsigned i = 1; i < listed && count < room; i++) {
        if (!child_is_current(all[i], tails[i]) || has_child(st, n->w, all[i]->child) ||
            pivot_is_listed(all, count, all[i]))
            continue;
        set_key_to_pivot(op, all[i]);
        if ((err = chime_check_range(op, chime_tail(st, n->w))) < 0)
            return err;
        if (err == 0)
            all[count++] = all[i];
    }
    return (int)count;
}


/* Inserts the pivots into the locked node and unlocks it. Returns 1. */
static int insert_pivots(chime_op *op, chime_node *n, pivot *all[], unsigned count) {
    uint64_t *before = chime_alloc_image(op);
    if (!before)
        return FAR_ERR_NO_MEMORY;
    memcpy(before, n->w, op->st->node_bytes);
    far_point(op->t, "chime:pivot");
    int err = chime_batch_set_busy(op, n->ptr);
    if (err < 0 || (err = batch_pivot_slots(op, n, all, count, before)) < 0)
        return err;
    if ((err = unlock_and_wait(op, n, chime_occupancy_map(op->st, n->w))) != 1)
        return err;
    mark_served(op, n->ptr, all, count);
    cache_inner_node(op, n);
    return 1;
}


/* Returns the index of the first child that moves to the new right node. This is normally the middle one. If a new
 * largest pivot arrives at the right end of the tree, no child moves, so that ascending inserts leave full nodes. */
static unsigned choose_split_index(const chime_op *op, const chime_inner *inner) {
    bool appends = !inner->bounded && chime_compare_fence_to_key(op->st, &inner->pivot[inner->count - 1], &op->key) < 0;
    return appends ? inner->count : inner->count / 2;
}


static void build_right(chime_op *op, const chime_inner *inner, unsigned from, pivot *p, uint64_t *w, unsigned tag,
                        bool with) {
    const chime_state *st = op->st;
    uint64_t *tail = chime_tail(st, w);
    unsigned slot = 0;
    chime_init_node(st, w, tag, inner->level);
    for (unsigned i = from; i < inner->count; i++, slot++) {
        chime_slot(st, w, slot)[0] = inner->pivot[i].word;
        chime_slot(st, w, slot)[1] = inner->child[i];
        chime_set_slot_occupied(st, w, slot, true);
    }
    if (with) {
        chime_slot(st, w, slot)[0] = p->low;
        chime_slot(st, w, slot)[1] = p->child;
        chime_set_slot_occupied(st, w, slot, true);
    }
    chime_set_sibling_nv(st, w, inner->sibling, 0);
    tail[CHIME_TAIL_LOW] = from < inner->count ? inner->pivot[from].word : p->low;
    tail[CHIME_TAIL_HIGH] = inner->high.word;
    tail[CHIME_TAIL_S] = chime_new_s(op, false);
    chime_set_unlocked_words(st, tail, chime_occupancy_map(st, w));
}


static int publish_split(chime_op *op, chime_node *n, const chime_inner *inner, unsigned from, pivot *p, uint64_t low,
                         bool with) {
    const chime_state *st = op->st;
    uint64_t *before = chime_alloc_image(op), *tail = chime_tail(st, n->w);
    chime_node more = {.ptr = n->ptr, .w = chime_alloc_image(op)};
    int err;
    if (!before || !more.w)
        return FAR_ERR_NO_MEMORY;
    memcpy(before, n->w, st->node_bytes);
    for (unsigned slot = 0; slot < st->span; slot++)
        for (unsigned i = from; i < inner->count; i++)
            if (chime_slot_is_occupied(st, n->w, slot) && chime_slot(st, n->w, slot)[1] == inner->child[i])
                chime_set_slot_occupied(st, n->w, slot, false);
    chime_set_sibling_nv(st, n->w, p->split_sibling, chime_h1_nv(tail[CHIME_TAIL_H1]) + 1);
    tail[CHIME_TAIL_HIGH] = low;
    memcpy(more.w, n->w, st->node_bytes);
    if ((err = chime_batch_set_busy(op, n->ptr)) < 0 || (err = chime_batch_image(op, n, before)) < 0)
        return err;
    if (!with && (err = batch_pivot_slots(op, &more, &p, 1, n->w)) < 0)
        return err;
    if ((err = unlock_and_wait(op, n, chime_occupancy_map(st, more.w))) == 1)
        cache_inner_node(op, &more);
    return err;
}


static int split_inner(chime_op *op, chime_node *n, pivot *p) {
    const chime_state *st = op->st;
    chime_inner *inner = far_scratch(op->t, sizeof(*inner));
    uint64_t *w = chime_alloc_image(op);
    far_object object;
    int err = inner && w ? chime_decode_inner(op, n, inner) : FAR_ERR_NO_MEMORY;
    if (err < 0)
        return err;
    unsigned from = choose_split_index(op, inner);
    bool with = from == inner->count || chime_compare_fence_to_key(st, &inner->pivot[from], &op->key) <= 0;
    unsigned where = chime_choose_memory_node(op, n->ptr, inner->sibling);
    if ((err = far_alloc(op->t, op->index, CHIME_TYPE_NODE, st->node_bytes, where, 0, &object)) < 0)
        return err;
    p->split_sibling = chime_ptr_make(object.addr, (unsigned)object.epoch, 0);
    build_right(op, inner, from, p, w, chime_ptr_tag(p->split_sibling), with);
    far_point(op->t, "chime:inner_begin");
    far_write(op->t, object.addr, w, st->node_bytes);
    if ((err = chime_wait(op)) < 0)
        return err;
    far_point(op->t, "chime:inner_split");
    err = publish_split(op, n, inner, from, p, chime_tail(st, w)[CHIME_TAIL_LOW], with);
    /* After the loss of the session, the WRITE that makes the left node point to the new node may have taken effect, so
     * the new node must not be freed. */
    if (err < 0 && !chime_session_is_lost(err)) {
        far_discard_batch(op->t);
        far_free(op->t, op->index, CHIME_TYPE_NODE, object.addr, st->node_bytes);
    }
    p->split_sibling = err < 0 ? 0 : p->split_sibling;
    return err < 0 ? err : 1;
}


/* Inserts the pivot while this task holds the lock. Returns 1 if the pivot is inserted and the lock freed; 2 if there
 * is nothing to do; 0 if the pivot belongs to another node. In the last case *node is that other node, or 0 if a new
 * descent is needed. */
static int insert_under_lock(chime_op *op, chime_node *n, pivot *p, chime_ptr *node) {
    const chime_state *st = op->st;
    pivot *all[COMBINED_PIVOTS_MAX];
    uint64_t tails[COMBINED_PIVOTS_MAX][8];
    unsigned listed = list_waiting_pivots(op, p, n->ptr, all);
    chime_batch_read_node_and_s(op, n);
    for (unsigned i = 0; i < listed; i++)
        batch_read_child_tail(op, all[i], tails[i]);
    int err = chime_wait(op);
    if (err < 0)
        return err;
    const uint64_t *tail = chime_tail(st, n->w);
    unsigned tag = chime_ptr_tag(n->ptr);
    if (chime_h0_tag(tail[CHIME_TAIL_H0]) != tag || !chime_h0_valid(tail[CHIME_TAIL_H0])) {
        *node = 0;
        return 0;
    }
    if (!chime_node_is_consistent(st, n->w, tag) || chime_h0_level(tail[CHIME_TAIL_H0]) != p->level)
        return chime_report_corrupt(op->index, n->ptr, "its lines have different siblings or node versions");
    if ((err = chime_check_range(op, tail)) != 0) {
        *node = err == CHIME_RIGHT ? chime_h1_sibling(tail[CHIME_TAIL_H1]) : 0;
        return err < 0 ? err : 0;
    }
    if (!child_is_current(p, tails[0]))
        return 2; /* the left neighbour has absorbed the child in the meantime */
    if (has_child(st, n->w, p->child)) {
        cache_inner_node(op, n);
        return 2;
    }
    if (chime_find_free_slot(st, n->w, 0, st->span) < 0)
        return split_inner(op, n, p);
    int count = choose_combined_pivots(op, n, all, listed, tails);
    return count < 0 ? count : insert_pivots(op, n, all, (unsigned)count);
}


/* Takes the lock of an inner node. The caller must hold its latch. Returns 0, CHIME_STALE, or CHIME_AGAIN after
 * lock_attempts attempts, which gives another task of the latch queue its turn. */
static int lock_inner_node(chime_op *op, chime_ptr node, pivot *p, chime_lock *lock) {
    for (unsigned attempt = 0;; attempt++) {
        chime_batch_lock(op, node, 0, lock);
        int err = chime_wait(op);
        if (err < 0 || (err = chime_take_lock_result(op, lock)) != CHIME_AGAIN)
            return err;
        far_count_lock_retry(op->t);
        if (++p->attempts % CHECK_HOLDER_EVERY == 0 &&
            (err = chime_repair_if_holder_failed(op, node, lock->old_word)) != 0 && err != 1)
            return err < 0 ? err : CHIME_STALE;
        if (attempt + 1 == op->st->lock_attempts)
            return CHIME_AGAIN;
        far_back_off(op->t, attempt < BACK_OFF_EXPONENT_MAX ? attempt : BACK_OFF_EXPONENT_MAX);
    }
}


/* Tries to insert the pivot into *node. Returns 1 or 2 if the pivot is present afterwards; 0 if the search must
 * continue, at the new *node, or from the root if *node is 0. */
static int try_inner_node(chime_op *op, chime_ptr *node, pivot *p) {
    chime_node n = {.ptr = *node, .w = chime_alloc_image(op)};
    chime_lock lock;
    if (!n.w)
        return FAR_ERR_NO_MEMORY;
    if (!chime_ptr_is_in_pool(op, *node)) {
        *node = 0;
        return 0;
    }
    chime_latch_as_waiter(&op->st->pivots, op->t, &p->waiter, n.ptr);
    int err = 0, state = p->waiter.served ? CHIME_AGAIN : lock_inner_node(op, n.ptr, p, &lock);
    if (state == 0) {
        far_point(op->t, "chime:parent_locked");
        err = insert_under_lock(op, &n, p, node);
        if (err != 1 && !chime_session_is_lost(err)) {
            far_discard_batch(op->t);
            int unlocked = chime_unlock_unchanged(op, n.ptr, &lock);
            err = unlocked < 0 ? unlocked : err;
        }
    }
    far_unlatch(op->t, chime_ptr_addr(n.ptr));
    if (state == CHIME_STALE)
        *node = 0;
    return state < 0 ? state : p->waiter.served ? 2 : err;
}


static int add_one_pivot(chime_op *op, pivot *p) {
    for (;;) {
        unsigned moves = 0;
        far_scratch_mark here = far_scratch_here(op->t);
        int err = read_child_low(op, p);
        chime_ptr node = 0, from = 0;
        if (err != 0)
            return err < 0 ? err : 0;
        set_key_to_pivot(op, p);
        if ((err = chime_descend(op, p->level, &node)) == CHIME_NO_LEVEL) {
            err = grow_root(op, p);
            node = 0;
        }
        while (err >= 0 && node) {
            from = node;
            if ((err = try_inner_node(op, &node, p)) != 0)
                return err < 0 ? err : 0;
            if (node == from) { /* another client held the lock during all attempts */
                err = chime_renew_pin(op);
                break;
            }
            if (node && (err = chime_count_right_move(op, node, &moves)) != CHIME_RIGHT)
                break;
        }
        if (err >= 0 && from && !node)
            err = chime_drop_stale_path(op, from, p->level);
        if (err < 0)
            return err;
        far_scratch_back(op->t, here);
    }
}


/* Inserts the pivot for `child` into its parent. A split of the parent produces a node that needs a pivot one level
 * higher, so the loop continues until no parent is split. */
int chime_add_pivot(far_task *t, far_index *index, unsigned level, chime_ptr child) {
    chime_op *op = far_scratch(t, sizeof(*op));
    pivot *p = far_scratch(t, sizeof(*p));
    if (!op || !p)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a pivot");
    memset(p, 0, sizeof(*p));
    p->level = level;
    p->child = child;
    chime_begin_op(op, t, index, (far_bytes){p->bytes, 1});
    for (;;) {
        p->split_sibling = 0;
        int err = p->level < CHIME_LEVELS ? add_one_pivot(op, p)
                                          : chime_report_corrupt(index, p->child, "the tree has too many levels");
        if (err < 0 || !p->split_sibling)
            return err;
        p->child = p->split_sibling;
        p->level++;
        op->restarts = 0;
    }
}


typedef struct pivot_request {
    unsigned level;
    chime_ptr child;
} pivot_request;


static void run_pivot_task(far_task *t, far_index *index, void *arg) {
    const pivot_request *l = arg;
    /* An error is ignored, because the tree is correct without the pivot and another client will insert it. */
    (void)chime_add_pivot(t, index, l->level, l->child);
}


bool chime_add_pivot_in_background(chime_op *op, unsigned level, chime_ptr child) {
    pivot_request l = {level, child};
    return far_index_spawn(op->t, op->index, run_pivot_task, &l, sizeof(l));
}
