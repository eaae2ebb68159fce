/* Merging: a node takes in its right sibling, both children of one parent, all three locked. The sibling says where its
 * items are going (aux) before it turns invalid; it is invalid in all lines before the first line of the other shows
 * its items; nobody can lock it any more before the parent lets go of it. Whoever dies in between is finished by
 * repair.c. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "task/latch.h"

#include <stdlib.h>

#define ATTEMPTS 4 /* of one merge before it is put off */
#define BUSY     2

typedef struct merging {
    chime_op op;
    unsigned level; /* of the two */
    chime_node p, a, b;
    chime_lock lock_p, lock_a, lock_b;
    bool locked_p, locked_a, locked_b;
    bool latched_p, latched_a, latched_b;
    chime_inner inner;
    unsigned slot; /* of b in p */
    bool looked;   /* the nodes were looked at: nothing is to be merged */
} merging;


/* The rule by which node a finds places for the items is fixed: a repair that begins again where the merge began gives the same
 * node. */
bool chime_absorb(const chime_state *st, uint64_t *a, uint64_t *b) {
    unsigned level = chime_h0_level(chime_tail(st, a)[CHIME_TAIL_H0]);
    for (unsigned slot = 0; slot < st->span; slot++) {
        if (!chime_is_occupied(st, b, slot))
            continue;
        const uint64_t *words = chime_slot(st, b, slot);
        unsigned home = level ? 0 : chime_home_of(st, b, slot);
        int to = level ? chime_free_among(st, a, 0, st->span) : home < st->span ? chime_free_near(st, a, home) : -1;
        if (to < 0)
            return false;
        if (level) {
            memcpy(chime_slot(st, a, (unsigned)to), words, chime_slot_bytes(st->per_line));
            chime_set_occupied(st, a, (unsigned)to, true);
        } else
            chime_place(st, a, (unsigned)to, home, words[0], words + 1);
    }
    return true;
}


/* Puts the WRITEs that make a (whose image is what it holds without b) the owner of b's range, up to the unlock. */
int chime_put_extended(chime_op *op, chime_node *a, chime_node *b, const uint64_t *before, bool *fits) {
    const chime_state *st = op->st;
    uint64_t *tail = chime_tail(st, a->w), *its = chime_tail(st, b->w);
    unsigned nv = chime_h1_nv(tail[CHIME_TAIL_H1]) + 1;
    if (!(*fits = chime_absorb(st, a->w, b->w)))
        return 0;
    chime_set_shape(st, a->w, chime_h1_sibling(its[CHIME_TAIL_H1]), nv);
    if (chime_h0_level(tail[CHIME_TAIL_H0]) == 0)
        chime_build_maps(st, a->w);
    tail[CHIME_TAIL_HIGH] = its[CHIME_TAIL_HIGH];
    int err = chime_put_busy(op, a->ptr);
    if (err < 0 || (err = chime_put_image(op, a, before)) < 0)
        return err;
    return chime_put_unlock(op, a->ptr, chime_occupied_map(st, a->w));
}


static bool try_latch(merging *m, chime_ptr p, bool *latched) {
    return *latched = far_latch_try(m->op.t, chime_ptr_addr(p));
}


static void release(merging *m) {
    far_task *t = m->op.t;
    far_forget(t);
    if (m->locked_b)
        chime_unlock_unchanged(&m->op, m->b.ptr, &m->lock_b);
    if (m->locked_a)
        chime_unlock_unchanged(&m->op, m->a.ptr, &m->lock_a);
    if (m->locked_p)
        chime_unlock_unchanged(&m->op, m->p.ptr, &m->lock_p);
    if (m->latched_b)
        far_unlatch(t, chime_ptr_addr(m->b.ptr));
    if (m->latched_a)
        far_unlatch(t, chime_ptr_addr(m->a.ptr));
    if (m->latched_p)
        far_unlatch(t, chime_ptr_addr(m->p.ptr));
}


/* 1: the parent is locked, and a and b are two children of it side by side. 0: not now. */
static int lock_parent(merging *m) {
    chime_op *op = &m->op;
    const chime_state *st = op->st;
    int err = chime_descend(op, m->level + 1, &m->p.ptr);
    m->looked = err == CHIME_NO_LEVEL;
    if (err != 0 || !chime_ptr_is_sound(op, m->p.ptr) || !try_latch(m, m->p.ptr, &m->latched_p))
        return err < 0 ? err : 0;
    chime_put_lock(op, m->p.ptr, 0, &m->lock_p);
    if ((err = chime_wait(op)) < 0)
        return err;
    if (!(m->locked_p = chime_lock_result(op, &m->lock_p) == 0))
        return 0;
    if (!(m->p.w = chime_new_image(op)))
        return FAR_ERR_NO_MEMORY;
    chime_put_read_all(op, &m->p);
    if ((err = chime_wait(op)) < 0)
        return err;
    const uint64_t *tail = chime_tail(st, m->p.w);
    if (!chime_is_whole(st, m->p.w, chime_ptr_tag(m->p.ptr)) || chime_h0_level(tail[CHIME_TAIL_H0]) != m->level + 1)
        return 0;
    if ((err = chime_check_range(op, tail)) != 0 || (err = chime_decode(op, &m->p, &m->inner)) < 0)
        return err < 0 ? err : 0;
    unsigned at = 0;
    while (at + 1 < m->inner.count && chime_fence_compare(st, &m->inner.pivot[at + 1], &op->key) <= 0)
        at++;
    if (at == 0) /* the first child is never taken in: it may take in the second */
        at = 1;
    if ((m->looked = at >= m->inner.count))
        return 0;
    m->a.ptr = m->inner.child[at - 1];
    m->b.ptr = m->inner.child[at];
    for (m->slot = 0; m->slot < st->span; m->slot++)
        if (chime_is_occupied(st, m->p.w, m->slot) && chime_slot(st, m->p.w, m->slot)[1] == m->b.ptr)
            break;
    return m->slot < st->span && chime_ptr_is_sound(op, m->a.ptr) && chime_ptr_is_sound(op, m->b.ptr);
}


static int lock_both(merging *m) {
    chime_op *op = &m->op;
    if (!try_latch(m, m->a.ptr, &m->latched_a) || !try_latch(m, m->b.ptr, &m->latched_b))
        return 0;
    if (!(m->a.w = chime_new_image(op)) || !(m->b.w = chime_new_image(op)))
        return FAR_ERR_NO_MEMORY;
    chime_put_lock(op, m->a.ptr, 0, &m->lock_a);
    chime_put_lock(op, m->b.ptr, 0, &m->lock_b);
    int err = chime_wait(op);
    if (err < 0)
        return err;
    m->locked_a = chime_lock_result(op, &m->lock_a) == 0;
    m->locked_b = chime_lock_result(op, &m->lock_b) == 0;
    if (!m->locked_a || !m->locked_b)
        return 0;
    far_point(op->t, "chime:merge_locked");
    chime_put_read_all(op, &m->a);
    chime_put_read_all(op, &m->b);
    if ((err = chime_wait(op)) < 0)
        return err;
    return chime_is_whole(op->st, m->a.w, chime_ptr_tag(m->a.ptr)) &&
           chime_is_whole(op->st, m->b.w, chime_ptr_tag(m->b.ptr)) &&
           chime_h1_sibling(chime_tail(op->st, m->a.w)[CHIME_TAIL_H1]) == m->b.ptr;
}


static bool is_worth_it(const merging *m) {
    const chime_state *st = m->op.st;
    unsigned a = chime_count_items(st, m->a.w), b = chime_count_items(st, m->b.w);
    bool sparse = (a + b) * 5 <= st->span * 2;
    bool any = m->level || st->merge == CHIME_MERGE_SPARSE;
    return b == 0 || (sparse && (any || a == 0));
}


/* b says where its items go, and turns invalid. */
static int commit(merging *m, const uint64_t *before) {
    chime_op *op = &m->op;
    uint64_t *aux = &chime_tail(op->st, m->b.w)[CHIME_TAIL_AUX];
    *aux = m->a.ptr;
    chime_set_valid(op->st, m->b.w, false);
    int err = chime_put_busy(op, m->b.ptr);
    if (err < 0)
        return err;
    far_write(op->t, chime_tail_addr(op->st, m->b.ptr, CHIME_TAIL_AUX), aux, 8);
    if ((err = chime_put_image(op, &m->b, before)) < 0)
        return err;
    m->locked_b = false;
    return chime_wait(op);
}


/* From here on it is finished, by us or by who finds our locks. */
static int finish(merging *m, uint64_t *before_a, const uint64_t *before_b, uint64_t *before_p) {
    chime_op *op = &m->op;
    const chime_state *st = op->st;
    static const uint64_t dead = CHIME_LOCK_DEAD;
    bool fits;
    int err = commit(m, before_b);
    if (err < 0)
        return err;
    m->locked_a = m->locked_p = false;
    far_point(op->t, "chime:merge_committed");
    if ((err = chime_put_extended(op, &m->a, &m->b, before_a, &fits)) < 0)
        return err;
    far_write(op->t, chime_tail_addr(st, m->b.ptr, CHIME_TAIL_L), &dead, 8);
    if ((err = chime_wait(op)) < 0)
        return err;
    far_point(op->t, "chime:merge_extended");
    memcpy(before_p, m->p.w, st->node_bytes);
    chime_set_occupied(st, m->p.w, m->slot, false);
    if ((err = chime_put_busy(op, m->p.ptr)) < 0)
        return err;
    chime_put_lines(op, &m->p, before_p, 0);
    if ((err = chime_put_unlock(op, m->p.ptr, chime_occupied_map(st, m->p.w))) < 0 || (err = chime_wait(op)) < 0)
        return err;
    far_retire(op->t, op->index, CHIME_TYPE_NODE, chime_ptr_addr(m->b.ptr), st->node_bytes);
    if (m->level == 0)
        chime_retire_fence(op, chime_tail(st, m->b.w)[CHIME_TAIL_LOW]);
    if (st->cache) {
        chime_cache_drop(st->cache, m->p.ptr);
        chime_cache_drop(st->cache, m->a.ptr);
        chime_cache_drop(st->cache, m->b.ptr);
    }
    atomic_fetch_add_explicit(&op->st->counts.merges, 1, memory_order_relaxed);
    return 1;
}


/* 1: merged, and the parent may be next. */
static int merge(merging *m) {
    chime_op *op = &m->op;
    const chime_state *st = op->st;
    int err = lock_parent(m);
    if (err <= 0)
        return err;
    far_point(op->t, "chime:merge_parent");
    if ((err = lock_both(m)) <= 0)
        return err;
    uint64_t *before_a = chime_new_image(op), *before_b = chime_new_image(op), *before_p = chime_new_image(op);
    if (!before_a || !before_b || !before_p)
        return FAR_ERR_NO_MEMORY;
    memcpy(before_a, m->a.w, st->node_bytes);
    memcpy(before_b, m->b.w, st->node_bytes);
    memcpy(before_p, m->a.w, st->node_bytes); /* a trial on a copy */
    if ((m->looked = !is_worth_it(m) || !chime_absorb(st, before_p, m->b.w)))
        return 0;
    return finish(m, before_a, before_b, before_p);
}


typedef struct later {
    unsigned level;
    uint32_t length;
    uint8_t key[CHIME_KEY_MAX];
} later;


/* One level. 1: the level above may be next; 0: not; BUSY: others hold a lock. */
static int merge_level(far_task *t, far_index *index, const later *l, unsigned level) {
    far_scratch_mark here = far_scratch_here(t);
    merging *m = far_scratch(t, sizeof(*m));
    int err = m ? 0 : FAR_ERR_NO_MEMORY;
    for (unsigned attempt = 0; err == 0 && attempt < ATTEMPTS; attempt++) {
        memset(m, 0, sizeof(*m));
        m->level = level;
        chime_begin(&m->op, t, index, (far_bytes){l->key, l->length});
        err = merge(m);
        release(m);
        if (err != 0 || m->looked)
            break;
        far_back_off(t, attempt < 6 ? attempt : 6); /* somebody works on one of the three */
    }
    unsigned children = err < 0 ? CHIME_SPAN_MAX : m->inner.count;
    bool busy = err == 0 && !m->looked;
    if (err >= 0) /* what was put and not waited for used none of it */
        far_scratch_back(t, here);
    return err < 0 ? err : busy ? BUSY : children && children * 5 <= chime_state_of(index)->span * 2;
}


/* Merges that could not be done when they were due wait for a quiet moment. */
static void put_off(chime_state *st, const later *l, unsigned level) {
    later *copy = malloc(sizeof(*copy));
    if (!copy)
        return;
    memcpy(copy, l, sizeof(*copy));
    copy->level = level;
    far_spin_lock(&st->merge_lock);
    bool room = st->merge_count < CHIME_MERGES_MAX;
    if (room)
        st->merge_later[st->merge_count++] = copy;
    far_spin_unlock(&st->merge_lock);
    if (!room)
        free(copy);
}


static void merge_up(far_task *t, far_index *index, const later *l) {
    unsigned level = l->level;
    int err = 1;
    while (err == 1 && level + 1 < CHIME_LEVELS && (err = merge_level(t, index, l, level)) == 1)
        level++;
    if (err == BUSY)
        put_off(chime_state_of(index), l, level);
}


static void merge_in_background(far_task *t, far_index *index, void *arg) {
    merge_up(t, index, arg);
}


int chime_merge_some(far_task *t, far_index *index) {
    chime_state *st = chime_state_of(index);
    far_spin_lock(&st->merge_lock);
    unsigned count = st->merge_count;
    later *l = count ? st->merge_later[--st->merge_count] : NULL;
    far_spin_unlock(&st->merge_lock);
    if (!l)
        return 0;
    merge_up(t, index, l);
    free(l);
    return count > 1;
}


void chime_forget_merges(chime_state *st) {
    while (st->merge_count)
        free(st->merge_later[--st->merge_count]);
}


int chime_merge_later(chime_op *op, unsigned level) {
    later l = {.level = level, .length = (uint32_t)op->key.bytes.length};
    if (atomic_load_explicit(&op->st->root, memory_order_relaxed) &&
        chime_ptr_low(atomic_load_explicit(&op->st->root, memory_order_relaxed)) <= level)
        return 0; /* the root has no parent */
    memcpy(l.key, op->key.bytes.data, op->key.bytes.length);
    (void)far_index_spawn(op->t, op->index, merge_in_background, &l, sizeof(l)); /* no task is free: the next delete */
    return 0;
}
