/* Pivots: a node that only its left sibling names gets its place in the level above; that level is split, or made, if
 * it must be. Anybody can do this, and more than one: whoever comes second finds the pivot there, or the node gone. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch.h"
#include "task/latch.h"

#define ASK_EVERY    4
#define BACK_OFF_MAX 2  /* as a power of two: one task of a compute node asks for the lock, for all that wait */
#define TOGETHER_MAX 16 /* pivots that go in under one lock */

void chime_set_free(const chime_state *st, uint64_t *tail, uint64_t map);

typedef struct pivot {
    chime_waiting waiting;  /* for the node that gets it; served: another task has put it in */
    unsigned level;         /* of the node that gets it */
    chime_ptr child, above; /* above: a node that was split for it, and needs a pivot itself; 0: none */
    uint64_t low;
    uint8_t bytes[CHIME_KEY_MAX + 8]; /* what low stands for */
    size_t length;
    unsigned attempts; /* at locks that others hold */
} pivot;


/* Neighbours lie on different memory nodes: a scan READs several in one batch, and where many scan one range, no memory
 * node serves most of it. */
bool chime_is_place(chime_op *op, unsigned node, chime_ptr left, chime_ptr right) {
    return far_task_nodes(op->t) == 1 || ((!left || node != far_addr_node(chime_ptr_addr(left))) &&
                                          (!right || node != far_addr_node(chime_ptr_addr(right))));
}


unsigned chime_place_node(chime_op *op, chime_ptr left, chime_ptr right) {
    unsigned nodes = far_task_nodes(op->t), node = (unsigned)(far_task_random(op->t) % nodes);
    for (unsigned i = 0; i < 2 && !chime_is_place(op, node, left, right); i++)
        node = (node + 1) % nodes;
    return node;
}


static void put_read_child(chime_op *op, const pivot *p, uint64_t tail[8]) {
    far_read(op->t, chime_tail_addr(op->st, p->child, CHIME_TAIL_H0), tail, CHIME_LINE);
    far_mark(op->t, FAR_VERB_UNPROVEN);
}


static bool child_lives(const pivot *p, const uint64_t tail[8]) {
    return chime_h0_tag(tail[CHIME_TAIL_H0]) == chime_ptr_tag(p->child) && chime_h0_valid(tail[CHIME_TAIL_H0]);
}


/* 0: the child lives, and its low is known. 1: it is gone. */
static int read_low(chime_op *op, pivot *p) {
    uint64_t tail[8];
    if (!chime_ptr_is_sound(op, p->child))
        return 1;
    put_read_child(op, p, tail);
    int err = chime_wait(op);
    if (err < 0)
        return err;
    if (!child_lives(p, tail))
        return 1;
    chime_fence low = {.word = tail[CHIME_TAIL_LOW]}, *list = &low;
    if ((err = chime_read_fences(op, &list, 1)) < 0)
        return err;
    p->low = low.word;
    p->length = op->st->fixed                   ? 8
                : chime_ref_is_inline(low.word) ? (low.word ? chime_ref_length(low.word) : 0)
                                                : low.bytes.length;
    for (unsigned i = 0; i < 8; i++)
        p->bytes[i] = (uint8_t)(low.first >> (56 - 8 * i));
    if (low.bytes.data)
        memcpy(p->bytes, low.bytes.data, low.bytes.length);
    return 0;
}


static void set_key(chime_op *op, const pivot *p) {
    chime_key_make(op->st, (far_bytes){p->bytes, p->length}, &op->key);
}


/* A root above the old one, with the child at its side. 0: there is a level more, by us or by others. */
static int grow_root(chime_op *op, const pivot *p) {
    chime_state *st = op->st;
    uint64_t old, seen;
    far_object object;
    int err = chime_read_root(op, &old);
    if (err < 0)
        return err;
    if (chime_ptr_low(old) + 1 != p->level)
        return chime_ptr_low(old) >= p->level ? 0 : chime_broken(op->index, p->child, "it lies above the root");
    uint64_t *w = chime_new_image(op), *tail;
    if (!w)
        return FAR_ERR_NO_MEMORY;
    err = far_alloc(op->t, op->index, CHIME_TYPE_NODE, st->node_bytes, chime_place_node(op, 0, 0), 0, &object);
    if (err < 0)
        return err;
    chime_ptr made = chime_ptr_make(object.addr, (unsigned)object.epoch, p->level);
    chime_empty_node(st, w, chime_ptr_tag(made), p->level);
    chime_slot(st, w, 0)[1] = chime_ptr_plain(old);
    chime_slot(st, w, 1)[0] = p->low;
    chime_slot(st, w, 1)[1] = p->child;
    chime_set_occupied(st, w, 0, true);
    chime_set_occupied(st, w, 1, true);
    tail = chime_tail(st, w);
    tail[CHIME_TAIL_S] = chime_fresh_s(op, false);
    chime_set_free(st, tail, chime_occupied_map(st, w));
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


static void keep(chime_op *op, chime_node *n) {
    chime_inner *inner = op->st->cache ? far_scratch(op->t, sizeof(*inner)) : NULL;
    if (inner && chime_decode(op, n, inner) == 0)
        chime_cache_put(op->st->cache, op->st, inner, far_epoch(op->t));
}


static unsigned set_slot(chime_op *op, chime_node *n, const pivot *p) {
    const chime_state *st = op->st;
    unsigned slot = (unsigned)chime_free_among(st, n->w, 0, st->span);
    uint64_t *words = chime_slot(st, n->w, slot);
    words[0] = p->low;
    words[1] = p->child;
    chime_set_occupied(st, n->w, slot, true);
    return slot;
}


/* Puts the WRITEs of pivots for which there is room. A line goes out once, with all that is new in it: who dies in
 * between leaves no slot that is occupied and not written. */
static int add_to_slots(chime_op *op, chime_node *n, pivot *const all[], unsigned count, uint64_t *before) {
    int err = 0;
    for (unsigned i = 0; i < count && err >= 0; i++) {
        if (i > 0 && op->st->words)
            memcpy(before, n->w, op->st->node_bytes);
        unsigned slot = set_slot(op, n, all[i]);
        if (op->st->words)
            err = chime_put_moves(op, n, before, NULL, 0, slot);
    }
    if (!op->st->words)
        chime_put_lines(op, n, before, 0);
    return err;
}


static int commit(chime_op *op, chime_node *n, uint64_t map) {
    int err = chime_put_unlock(op, n->ptr, map);
    if (err < 0) {
        far_forget(op->t);
        return err;
    }
    return (err = chime_wait(op)) < 0 ? err : 1;
}


/* Pivots that go in together. The task that holds the latch of a node knows those that wait for it, and puts their pivots in
 * with its own: a node that many of its children are split under at once is locked once for all that one compute node has. */

/* The latch is held. How many: mine first, then those who wait. */
static unsigned list_together(chime_op *op, pivot *mine, chime_ptr node, pivot *all[TOGETHER_MAX]) {
    chime_waiting *waiting[TOGETHER_MAX];
    unsigned count = chime_list_queue(&op->st->pivots, node, TOGETHER_MAX - 1, waiting);
    all[0] = mine;
    for (unsigned i = 0; i < count; i++)
        all[i + 1] = (pivot *)waiting[i];
    return count + 1;
}


static bool has_child(const chime_state *st, uint64_t *w, chime_ptr child) {
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_is_occupied(st, w, slot) && chime_slot(st, w, slot)[1] == child)
            return true;
    return false;
}


/* A splitter and a helper may wait with the same pivot. */
static bool is_chosen(pivot *const all[], unsigned count, const pivot *p) {
    for (unsigned i = 0; i < count; i++)
        if (all[i]->child == p->child)
            return true;
    return false;
}


static void tell_in(chime_op *op, chime_ptr node, pivot *const all[], unsigned count) {
    chime_state *st = op->st;
    far_spin_lock(&st->pivots.lock);
    for (chime_waiting *w = st->pivots.first; w; w = w->next)
        w->served |= w->node == node && is_chosen(all, count, (pivot *)w);
    far_spin_unlock(&st->pivots.lock);
    atomic_fetch_add_explicit(&st->counts.along, count - 1, memory_order_relaxed);
}


/* Of those who wait, the pivots that belong here, for which there is room beside mine. */
static int choose(chime_op *op, chime_node *n, pivot *all[], unsigned listed, uint64_t tails[][8]) {
    const chime_state *st = op->st;
    unsigned count = 1, room = st->span - chime_count_items(st, n->w);
    int err = 0;
    for (unsigned i = 1; i < listed && count < room; i++) {
        if (!child_lives(all[i], tails[i]) || has_child(st, n->w, all[i]->child) || is_chosen(all, count, all[i]))
            continue;
        set_key(op, all[i]);
        if ((err = chime_check_range(op, chime_tail(st, n->w))) < 0)
            return err;
        if (err == 0)
            all[count++] = all[i];
    }
    return (int)count;
}


/* 1: done. */
static int add_pivots_here(chime_op *op, chime_node *n, pivot *all[], unsigned count) {
    uint64_t *before = chime_new_image(op);
    if (!before)
        return FAR_ERR_NO_MEMORY;
    memcpy(before, n->w, op->st->node_bytes);
    far_point(op->t, "chime:pivot");
    int err = chime_put_busy(op, n->ptr);
    if (err < 0 || (err = add_to_slots(op, n, all, count, before)) < 0)
        return err;
    if ((err = commit(op, n, chime_occupied_map(op->st, n->w))) != 1)
        return err;
    tell_in(op, n->ptr, all, count);
    keep(op, n);
    return 1;
}


/* The children from the middle on go to a new node; a largest one at the right end goes alone. */
static unsigned split_at(const chime_op *op, const chime_inner *inner) {
    bool appends = !inner->bounded && chime_fence_compare(op->st, &inner->pivot[inner->count - 1], &op->key) < 0;
    return appends ? inner->count : inner->count / 2;
}


static void build_right(chime_op *op, const chime_inner *inner, unsigned from, pivot *p, uint64_t *w, unsigned tag,
                        bool with) {
    const chime_state *st = op->st;
    uint64_t *tail = chime_tail(st, w);
    unsigned slot = 0;
    chime_empty_node(st, w, tag, inner->level);
    for (unsigned i = from; i < inner->count; i++, slot++) {
        chime_slot(st, w, slot)[0] = inner->pivot[i].word;
        chime_slot(st, w, slot)[1] = inner->child[i];
        chime_set_occupied(st, w, slot, true);
    }
    if (with) {
        chime_slot(st, w, slot)[0] = p->low;
        chime_slot(st, w, slot)[1] = p->child;
        chime_set_occupied(st, w, slot, true);
    }
    chime_set_shape(st, w, inner->sibling, 0);
    tail[CHIME_TAIL_LOW] = from < inner->count ? inner->pivot[from].word : p->low;
    tail[CHIME_TAIL_HIGH] = inner->high.word;
    tail[CHIME_TAIL_S] = chime_fresh_s(op, false);
    chime_set_free(st, tail, chime_occupied_map(st, w));
}


static int publish_split(chime_op *op, chime_node *n, const chime_inner *inner, unsigned from, pivot *p, uint64_t low,
                         bool with) {
    const chime_state *st = op->st;
    uint64_t *before = chime_new_image(op), *tail = chime_tail(st, n->w);
    chime_node more = {.ptr = n->ptr, .w = chime_new_image(op)};
    int err;
    if (!before || !more.w)
        return FAR_ERR_NO_MEMORY;
    memcpy(before, n->w, st->node_bytes);
    for (unsigned slot = 0; slot < st->span; slot++)
        for (unsigned i = from; i < inner->count; i++)
            if (chime_is_occupied(st, n->w, slot) && chime_slot(st, n->w, slot)[1] == inner->child[i])
                chime_set_occupied(st, n->w, slot, false);
    chime_set_shape(st, n->w, p->above, chime_h1_nv(tail[CHIME_TAIL_H1]) + 1);
    tail[CHIME_TAIL_HIGH] = low;
    memcpy(more.w, n->w, st->node_bytes);
    if ((err = chime_put_busy(op, n->ptr)) < 0 || (err = chime_put_image(op, n, before)) < 0)
        return err;
    if (!with && (err = add_to_slots(op, &more, &p, 1, n->w)) < 0)
        return err;
    if ((err = commit(op, n, chime_occupied_map(st, more.w))) == 1)
        keep(op, &more);
    return err;
}


static int split_inner(chime_op *op, chime_node *n, pivot *p) {
    const chime_state *st = op->st;
    chime_inner *inner = far_scratch(op->t, sizeof(*inner));
    uint64_t *w = chime_new_image(op);
    far_object object;
    int err = inner && w ? chime_decode(op, n, inner) : FAR_ERR_NO_MEMORY;
    if (err < 0)
        return err;
    unsigned from = split_at(op, inner);
    bool with = from == inner->count || chime_fence_compare(st, &inner->pivot[from], &op->key) <= 0;
    unsigned where = chime_place_node(op, n->ptr, inner->sibling);
    if ((err = far_alloc(op->t, op->index, CHIME_TYPE_NODE, st->node_bytes, where, 0, &object)) < 0)
        return err;
    p->above = chime_ptr_make(object.addr, (unsigned)object.epoch, 0);
    build_right(op, inner, from, p, w, chime_ptr_tag(p->above), with);
    far_point(op->t, "chime:inner_begin");
    far_write(op->t, object.addr, w, st->node_bytes);
    if ((err = chime_wait(op)) < 0)
        return err;
    far_point(op->t, "chime:inner_split");
    err = publish_split(op, n, inner, from, p, chime_tail(st, w)[CHIME_TAIL_LOW], with);
    if (err < 0 && !chime_is_lost(err)) { /* else its left neighbour may name it by now */
        far_forget(op->t);
        far_free(op->t, op->index, CHIME_TYPE_NODE, object.addr, st->node_bytes);
    }
    p->above = err < 0 ? 0 : p->above;
    return err < 0 ? err : 1;
}


/* The lock is held. 1: the pivot is in, and the lock free; 2: nothing is to be done; 0: not here, and *node is where.
 */
static int locked(chime_op *op, chime_node *n, pivot *p, chime_ptr *node) {
    const chime_state *st = op->st;
    pivot *all[TOGETHER_MAX];
    uint64_t tails[TOGETHER_MAX][8];
    unsigned listed = list_together(op, p, n->ptr, all);
    chime_put_read_all(op, n);
    for (unsigned i = 0; i < listed; i++)
        put_read_child(op, all[i], tails[i]);
    int err = chime_wait(op);
    if (err < 0)
        return err;
    const uint64_t *tail = chime_tail(st, n->w);
    unsigned tag = chime_ptr_tag(n->ptr);
    if (chime_h0_tag(tail[CHIME_TAIL_H0]) != tag || !chime_h0_valid(tail[CHIME_TAIL_H0])) {
        *node = 0;
        return 0;
    }
    if (!chime_is_whole(st, n->w, tag) || chime_h0_level(tail[CHIME_TAIL_H0]) != p->level)
        return chime_broken(op->index, n->ptr, "its lines do not belong together");
    if ((err = chime_check_range(op, tail)) != 0) {
        *node = err == CHIME_RIGHT ? chime_h1_sibling(tail[CHIME_TAIL_H1]) : 0;
        return err < 0 ? err : 0;
    }
    if (!child_lives(p, tails[0]))
        return 2; /* the child was taken in by its neighbour meanwhile */
    if (has_child(st, n->w, p->child)) {
        keep(op, n);
        return 2;
    }
    if (chime_free_among(st, n->w, 0, st->span) < 0)
        return split_inner(op, n, p);
    int count = choose(op, n, all, listed, tails);
    return count < 0 ? count : add_pivots_here(op, n, all, (unsigned)count);
}


/* The latch is held, and kept while others hold the lock: 0, CHIME_STALE, or CHIME_AGAIN after some attempts. */
static int lock_node(chime_op *op, chime_ptr node, pivot *p, chime_lock *lock) {
    for (unsigned attempt = 0;; attempt++) {
        chime_put_lock(op, node, 0, lock);
        int err = chime_wait(op);
        if (err < 0 || (err = chime_lock_result(op, lock)) != CHIME_AGAIN)
            return err;
        far_count_lock_retry(op->t);
        if (++p->attempts % ASK_EVERY == 0 && (err = chime_resolve(op, node, lock->old)) != 0 && err != 1)
            return err < 0 ? err : CHIME_STALE;
        if (attempt + 1 == op->st->patience)
            return CHIME_AGAIN;
        far_back_off(op->t, attempt < BACK_OFF_MAX ? attempt : BACK_OFF_MAX);
    }
}


/* 1, 2: it is in; 0: find again (*node: there, or from the root if 0). */
static int try_node(chime_op *op, chime_ptr *node, pivot *p) {
    chime_node n = {.ptr = *node, .w = chime_new_image(op)};
    chime_lock lock;
    if (!n.w)
        return FAR_ERR_NO_MEMORY;
    if (!chime_ptr_is_sound(op, *node)) {
        *node = 0;
        return 0;
    }
    chime_latch_queued(&op->st->pivots, op->t, &p->waiting, n.ptr);
    int err = 0, state = p->waiting.served ? CHIME_AGAIN : lock_node(op, n.ptr, p, &lock);
    if (state == 0) {
        far_point(op->t, "chime:parent_locked");
        err = locked(op, &n, p, node);
        if (err != 1 && !chime_is_lost(err)) {
            far_forget(op->t);
            int unlocked = chime_unlock_unchanged(op, n.ptr, &lock);
            err = unlocked < 0 ? unlocked : err;
        }
    }
    far_unlatch(op->t, chime_ptr_addr(n.ptr));
    if (state == CHIME_STALE)
        *node = 0;
    return state < 0 ? state : p->waiting.served ? 2 : err;
}


static int add_one(chime_op *op, pivot *p) {
    for (;;) {
        unsigned moves = 0;
        far_scratch_mark here = far_scratch_here(op->t);
        int err = read_low(op, p);
        chime_ptr node = 0, from = 0;
        if (err != 0)
            return err < 0 ? err : 0;
        set_key(op, p);
        if ((err = chime_descend(op, p->level, &node)) == CHIME_NO_LEVEL) {
            err = grow_root(op, p);
            node = 0;
        }
        while (err >= 0 && node) {
            from = node;
            if ((err = try_node(op, &node, p)) != 0)
                return err < 0 ? err : 0;
            if (node == from) { /* others hold its lock all the time */
                err = chime_renew_pin(op);
                break;
            }
            if (node && (err = chime_count_move(op, node, &moves)) != CHIME_RIGHT)
                break;
        }
        if (err >= 0 && from && !node)
            err = chime_not_there(op, from, p->level);
        if (err < 0)
            return err;
        far_scratch_back(op->t, here);
    }
}


/* Splits on the way up are followed to the top. */
int chime_add_pivot(far_task *t, far_index *index, unsigned level, chime_ptr child) {
    chime_op *op = far_scratch(t, sizeof(*op));
    pivot *p = far_scratch(t, sizeof(*p));
    if (!op || !p)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a pivot");
    memset(p, 0, sizeof(*p));
    p->level = level;
    p->child = child;
    chime_begin(op, t, index, (far_bytes){p->bytes, 1});
    for (;;) {
        p->above = 0;
        int err = p->level < CHIME_LEVELS ? add_one(op, p) : chime_broken(index, p->child, "the tree is too high");
        if (err < 0 || !p->above)
            return err;
        p->child = p->above;
        p->level++;
        op->restarts = 0;
    }
}


typedef struct later {
    unsigned level;
    chime_ptr child;
} later;


static void add_in_background(far_task *t, far_index *index, void *arg) {
    const later *l = arg;
    (void)chime_add_pivot(t, index, l->level, l->child); /* without it the tree is right all the same */
}


bool chime_add_pivot_later(chime_op *op, unsigned level, chime_ptr child) {
    later l = {level, child};
    return far_index_spawn(op->t, op->index, add_in_background, &l, sizeof(l));
}
