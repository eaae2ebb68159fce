/* Walk, check, usage and load: passes over the levels, each from left to right along the siblings, in slices with a pin
 * of their own. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch.h"
#include "pool/owner.h"

#include <stdlib.h>

typedef struct tour tour;
struct tour {
    int (*each)(tour *tour, chime_op *op, chime_node *n, unsigned level); /* pinned */
    void *ctx;
    unsigned level;
    unsigned restarts; /* ways down to the node at the cursor that led to nothing, in this slice and those before */
    chime_ptr next; /* the sibling of the node that was visited last: what fences say alone is not trusted; 0: none */
    bool leaves_only, repairs;
    bool again;                 /* this node was visited before, and has taken in its right neighbour since */
    bool fresh[CHIME_SPAN_MAX]; /* slots with items that were not */
    size_t length;              /* of the cursor */
    uint8_t cursor[CHIME_KEY_MAX + 8];
    far_suspects locks; /* of this slice, for check */
};


static void keep_cursor(tour *v, const chime_state *st, const chime_fence *high) {
    uint8_t bytes[8];
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(high->first >> (56 - 8 * i));
    v->length = st->fixed ? 8 : high->bytes.data ? high->bytes.length : high->word ? chime_ref_length(high->word) : 0;
    memcpy(v->cursor, high->bytes.data ? high->bytes.data : bytes, v->length);
}


/* A node at the cursor: the sibling of the last one, or, where that was taken in meanwhile, by the way down. 0: read,
 * checked to hold it; CHIME_STALE. */
static int read_at(chime_op *op, tour *v, chime_node *n) {
    chime_ptr p = v->next, sibling = p;
    int err = p ? 0 : chime_descend(op, v->level, &p);
    v->next = 0;
    for (unsigned moves = 0; err == 0; moves++) {
        if ((err = chime_read_node(op, p, n)) != 0)
            break;
        uint64_t lock = chime_tail(op->st, n->w)[CHIME_TAIL_L];
        if (v->repairs && chime_lock_is_held(lock) && (err = chime_resolve(op, p, lock)) != 0) {
            if (err < 0)
                return err;
            err = 0;
            if (moves > CHIME_MOVES_MAX)
                return chime_broken(op->index, p, "its siblings have no end");
            continue;
        }
        err = chime_check_range(op, chime_tail(op->st, n->w));
        if (err > 0 && p == sibling)
            return chime_broken(op->index, p, "it does not begin where its neighbour ends, or ends before");
        if (err != CHIME_RIGHT)
            break;
        p = chime_h1_sibling(chime_tail(op->st, n->w)[CHIME_TAIL_H1]);
        if ((err = chime_go_right(op, v->level, n->ptr, p, &moves)) != CHIME_RIGHT)
            return err < 0 ? err : CHIME_STALE;
        err = 0;
    }
    if (err == CHIME_STALE) {
        int gone = chime_not_there(op, p, v->level);
        return gone < 0 ? gone : CHIME_STALE;
    }
    return err == CHIME_NO_LEVEL ? chime_broken(op->index, p, "the tree lost a level") : err;
}


static chime_block *new_heads(chime_op *op) {
    chime_block *heads = far_scratch(op->t, op->st->span * sizeof(*heads));
    if (!heads)
        far_fail(FAR_ERR_NO_MEMORY, "no memory to look at a leaf");
    return heads;
}


static int read_heads(chime_op *op, chime_node *n, chime_block *heads) {
    const chime_state *st = op->st;
    bool any = false;
    int err = 0;
    if (st->fixed)
        return 0;
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_is_occupied(st, n->w, slot)) {
            if ((err = chime_put_read_head(op, chime_slot(st, n->w, slot)[1], &heads[slot])) < 0)
                return err;
            any = true;
        }
    if (any && (err = chime_wait(op)) < 0)
        return err;
    for (unsigned slot = 0; slot < st->span && err >= 0; slot++)
        if (chime_is_occupied(st, n->w, slot))
            err = chime_take_head(op, chime_slot(st, n->w, slot)[1], &heads[slot]);
    return err;
}


/* What the cursor has passed was told already. */
static int find_fresh(chime_op *op, tour *v, chime_node *n) {
    const chime_state *st = op->st;
    chime_fence low = {.word = chime_tail(st, n->w)[CHIME_TAIL_LOW]}, *list = &low;
    chime_block *heads = new_heads(op);
    int err = heads ? chime_read_fences(op, &list, 1) : FAR_ERR_NO_MEMORY;
    if (err < 0)
        return err;
    v->again = chime_fence_compare(st, &low, &op->key) < 0;
    memset(v->fresh, 1, sizeof(v->fresh));
    if (!v->again || v->level || (err = read_heads(op, n, heads)) < 0)
        return err;
    for (unsigned slot = 0; slot < st->span; slot++) {
        uint64_t first = chime_slot(st, n->w, slot)[0];
        bool before = first < op->key.first;
        if (first == op->key.first && !st->fixed && chime_is_occupied(st, n->w, slot))
            before = far_bytes_compare(heads[slot].key, op->key.bytes) < 0;
        v->fresh[slot] = !before;
    }
    return 0;
}


/* 1: the level is done; 0: there is more. */
static int one_slice(far_task *t, far_index *index, tour *v) {
    chime_op op;
    chime_begin(&op, t, index, (far_bytes){v->cursor, v->length});
    if (op.st->fixed && v->length == 0)
        op.key.first = 0;
    op.restarts = v->restarts;
    for (unsigned i = 0; i < op.st->walk_slice; i++) {
        far_scratch_mark here = far_scratch_here(t);
        chime_node n = {0};
        int err = read_at(&op, v, &n);
        if (err == CHIME_STALE) {
            v->restarts = op.restarts;
            far_count_retry(t);
            far_scratch_back(t, here);
            continue;
        }
        if (err < 0 || (err = find_fresh(&op, v, &n)) < 0 || (err = v->each(v, &op, &n, v->level)) < 0)
            return err;
        const uint64_t *tail = chime_tail(op.st, n.w);
        chime_fence high = {.word = tail[CHIME_TAIL_HIGH]}, *list = &high;
        if (!chime_h1_sibling(tail[CHIME_TAIL_H1]))
            return 1;
        if ((err = chime_read_fences(&op, &list, 1)) < 0)
            return err;
        if (chime_fence_compare(op.st, &high, &op.key) <= 0)
            return chime_broken(index, n.ptr, "it ends before it begins");
        keep_cursor(v, op.st, &high);
        v->next = chime_h1_sibling(tail[CHIME_TAIL_H1]);
        chime_key_make(op.st, (far_bytes){v->cursor, v->length}, &op.key);
        v->restarts = op.restarts = 0;
        far_scratch_back(t, here);
    }
    return 0;
}


static int one_level(far_task *t, far_index *index, tour *v) {
    int err = 0;
    v->length = 0;
    v->next = 0;
    v->restarts = 0;
    memset(v->cursor, 0, 8);
    if (chime_state_of(index)->fixed)
        v->length = 8;
    while (err == 0) {
        far_scratch_mark here = far_scratch_here(t);
        if ((err = far_pin_take(t)) >= 0)
            err = one_slice(t, index, v);
        far_pin_drop(t);
        int locks = err >= 0 && v->locks.count ? far_suspects_check(t, &v->locks, v->ctx) : 0;
        if (locks < 0)
            err = locks;
        far_scratch_back(t, here);
    }
    return err < 0 ? err : 0;
}


static int run(far_task *t, far_index *index, tour *v) {
    chime_op op;
    chime_begin(&op, t, index, (far_bytes){"", 0});
    int err = far_pin_take(t);
    uint64_t root = 0;
    if (err >= 0)
        err = chime_read_root(&op, &root);
    far_pin_drop(t);
    unsigned top = chime_ptr_low(root);
    for (unsigned level = v->leaves_only ? 0 : top; err >= 0; level--) {
        v->level = level;
        if ((err = one_level(t, index, v)) < 0 || level == 0)
            break;
    }
    return err;
}


static int start(far_task *t, far_index *index, void *ctx, bool leaves_only, bool repairs,
                 int (*each)(tour *tour, chime_op *op, chime_node *n, unsigned level)) {
    tour *v = calloc(1, sizeof(*v));
    if (!v)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    v->ctx = ctx;
    v->leaves_only = leaves_only;
    v->repairs = repairs;
    v->each = each;
    int err = run(t, index, v);
    free(v);
    return err;
}


/* Walk. */

static int walk_node(tour *v, chime_op *op, chime_node *n, unsigned level) {
    far_walk *walk = v->ctx;
    const chime_state *st = op->st;
    uint64_t low = chime_tail(st, n->w)[CHIME_TAIL_LOW];
    int err = 0;
    if (!v->again)
        err = far_walk_object(walk, op->index, CHIME_TYPE_NODE, chime_ptr_addr(n->ptr), st->node_bytes);
    if (level || st->fixed)
        return err;
    if (err >= 0 && !v->again && !chime_ref_is_inline(low))
        err = far_walk_object(walk, op->index, CHIME_TYPE_KEY, chime_ref_addr(low),
                              chime_key_block_bytes(chime_ref_length(low)));
    for (unsigned slot = 0; slot < st->span && err >= 0; slot++) {
        uint64_t word = chime_slot(st, n->w, slot)[1];
        if (!chime_is_occupied(st, n->w, slot) || !v->fresh[slot])
            continue;
        if (chime_value_class(word) >= CHIME_CLASSES)
            return chime_broken(op->index, n->ptr, "a slot names a block of no size");
        err = far_walk_object(walk, op->index, CHIME_TYPE_BLOCK, chime_value_block(word),
                              chime_class_bytes(chime_value_class(word)));
    }
    return err;
}


int chime_walk(far_task *t, far_index *index, far_walk *walk) {
    int err = far_walk_object(walk, index, CHIME_TYPE_ROOT, index->descriptor, sizeof(chime_root));
    return err < 0 ? err : start(t, index, walk, false, true, walk_node);
}


/* Check. */

static int check_item(chime_op *op, chime_node *n, unsigned slot, const chime_block *head, far_report *report) {
    const chime_state *st = op->st;
    const uint64_t *words = chime_slot(st, n->w, slot), *tail = chime_tail(st, n->w);
    unsigned long long addr = chime_ptr_addr(n->ptr);
    uint8_t bytes[8];
    chime_op item = *op;
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(words[0] >> (56 - 8 * i));
    chime_key_make(st, st->fixed ? (far_bytes){bytes, 8} : head->key, &item.key);
    if (item.key.first != words[0])
        far_report_problem(report, "leaf at %#llx: slot %u names another key than its block", addr, slot);
    if (chime_home_of(st, n->w, slot) != chime_home(st, item.key.hash))
        far_report_problem(report, "leaf at %#llx: the key in slot %u has no business there", addr, slot);
    if (!st->fixed && chime_value_print(words[1]) != (item.key.hash & 1023))
        far_report_problem(report, "leaf at %#llx: slot %u has another key's fingerprint", addr, slot);
    int err = chime_check_range(&item, tail);
    if (err > 0)
        far_report_problem(report, "leaf at %#llx: the key in slot %u is outside of its range", addr, slot);
    return err < 0 ? err : 0;
}


/* The tail may have been READ before an insert took the lock, and the lines while it wrote them: a map is wrong only if
 * it stays so while nobody changes the leaf. 1: it is. */
static int check_map(chime_op *op, chime_node *n) {
    const chime_state *st = op->st;
    const uint64_t *tail = chime_tail(st, n->w);
    for (unsigned look = 0; look < 3; look++) {
        uint64_t lock = tail[CHIME_TAIL_L], s = tail[CHIME_TAIL_S];
        if (chime_lock_is_held(lock) ||
            chime_word_map(st->masked ? lock : tail[CHIME_TAIL_V]) == chime_occupied_map(st, n->w))
            return 0;
        int err = chime_read_node(op, n->ptr, n);
        if (err != 0 || tail[CHIME_TAIL_S] != s || tail[CHIME_TAIL_L] != lock)
            return err < 0 ? err : 0;
    }
    return 1;
}


static int check_leaf(chime_op *op, chime_node *n, far_report *report) {
    const chime_state *st = op->st;
    chime_block *heads = new_heads(op);
    unsigned long long addr = chime_ptr_addr(n->ptr);
    int err = heads ? read_heads(op, n, heads) : FAR_ERR_NO_MEMORY;
    for (unsigned slot = 0; slot < st->span && err >= 0; slot++)
        if (chime_is_occupied(st, n->w, slot))
            err = check_item(op, n, slot, &heads[slot], report);
    if (err < 0)
        return err;
    for (unsigned a = 0; a < st->span; a++)
        for (unsigned b = a + 1; b < st->span; b++)
            if (chime_is_occupied(st, n->w, a) && chime_is_occupied(st, n->w, b) &&
                chime_slot(st, n->w, a)[0] == chime_slot(st, n->w, b)[0] &&
                (st->fixed || far_bytes_compare(heads[a].key, heads[b].key) == 0))
                far_report_problem(report, "leaf at %#llx: slots %u and %u have the same key", addr, a, b);
    if ((err = check_map(op, n)) > 0)
        far_report_problem(report, "leaf at %#llx: its map does not show what is free", addr);
    return err < 0 ? err : 0;
}


/* What is wrong with a child, as its tail says; NULL: nothing. A node begins for ever where its pivot says. */
static int look_at_child(chime_op *op, chime_ptr p, const chime_fence *pivot, const char **what) {
    chime_node n = {0};
    int err = chime_read_tail(op, p, &n);
    if (err < 0)
        return err;
    const uint64_t *tail = chime_tail(op->st, n.w);
    chime_fence low = {.word = tail[CHIME_TAIL_LOW]}, *list = &low;
    if (chime_h0_tag(tail[CHIME_TAIL_H0]) != chime_ptr_tag(p) || !chime_h0_valid(tail[CHIME_TAIL_H0])) {
        *what = "where no node is";
        return 0;
    }
    if (low.word == pivot->word)
        return 0;
    if ((err = chime_read_fences(op, &list, 1)) == 0 && chime_compare_fences(op->st, &low, pivot) != 0)
        *what = "which begins elsewhere";
    return err;
}


/* A child is let go of under the lock of its parent: one that is gone while the parent is at rest was never there. */
static int check_child(chime_op *op, const chime_node *n, const chime_inner *inner, unsigned i, far_report *report) {
    const uint64_t *tail = chime_tail(op->st, n->w);
    far_scratch_mark here = far_scratch_here(op->t);
    chime_node now = {0};
    const char *what = NULL;
    int err = chime_lock_is_held(tail[CHIME_TAIL_L]) ? 0 : look_at_child(op, inner->child[i], &inner->pivot[i], &what);
    if (err >= 0 && what && (err = chime_read_tail(op, n->ptr, &now)) >= 0 &&
        memcmp(chime_tail(op->st, now.w), tail, 8 * (CHIME_TAIL_L + 1)) == 0)
        far_report_problem(report, "node at %#llx: child %u leads to %#llx, %s",
                           (unsigned long long)chime_ptr_addr(n->ptr), i,
                           (unsigned long long)chime_ptr_addr(inner->child[i]), what);
    far_scratch_back(op->t, here);
    return err < 0 ? err : 0;
}


static int check_inner(chime_op *op, chime_node *n, unsigned level, far_report *report) {
    const chime_state *st = op->st;
    chime_inner *inner = far_scratch(op->t, sizeof(*inner));
    unsigned long long addr = chime_ptr_addr(n->ptr);
    int err = inner ? chime_decode(op, n, inner) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    if (err < 0)
        return err;
    for (unsigned i = 0; i < inner->count; i++) {
        if (!chime_ptr_is_sound(op, inner->child[i]))
            far_report_problem(report, "node at %#llx: child %u is outside of the pool", addr, i);
        else if ((err = check_child(op, n, inner, i, report)) < 0)
            return err;
        for (unsigned k = 0; k < i; k++)
            if (inner->child[k] == inner->child[i] || inner->pivot[k].word == inner->pivot[i].word)
                far_report_problem(report, "node at %#llx: children %u and %u are the same", addr, k, i);
    }
    if (inner->level != level)
        far_report_problem(report, "node at %#llx: level %u where %u belongs", addr, inner->level, level);
    (void)st;
    return 0;
}


static int check_node(tour *v, chime_op *op, chime_node *n, unsigned level) {
    uint64_t lock = chime_tail(op->st, n->w)[CHIME_TAIL_L];
    if (chime_lock_is_held(lock))
        far_suspect(&v->locks, chime_tail_addr(op->st, n->ptr, CHIME_TAIL_L), lock, chime_lock_owner(lock));
    return level ? check_inner(op, n, level, v->ctx) : check_leaf(op, n, v->ctx);
}


int chime_check(far_task *t, far_index *index, far_report *report) {
    int err = start(t, index, report, false, false, check_node);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(report, "%s", far_last_error());
        return 0;
    }
    return err;
}


/* Usage and load. */

static int count_keys(tour *v, chime_op *op, chime_node *n, unsigned level) {
    far_usage *usage = v->ctx;
    chime_block *heads = new_heads(op);
    int err = heads ? read_heads(op, n, heads) : FAR_ERR_NO_MEMORY;
    (void)level;
    for (unsigned slot = 0; slot < op->st->span && err >= 0; slot++)
        if (chime_is_occupied(op->st, n->w, slot) && v->fresh[slot]) {
            usage->keys++;
            usage->key_bytes += op->st->fixed ? op->st->key_bytes : heads[slot].key.length;
            usage->value_bytes += op->st->fixed ? op->st->value_bytes : heads[slot].value.length;
        }
    return err;
}


int chime_usage(far_task *t, far_index *index, far_usage *usage) {
    return start(t, index, usage, true, false, count_keys);
}


static int count_slots(tour *v, chime_op *op, chime_node *n, unsigned level) {
    far_load *load = v->ctx;
    (void)level;
    load->slots += v->again ? 0 : op->st->span;
    for (unsigned slot = 0; slot < op->st->span; slot++)
        load->keys[0] += chime_is_occupied(op->st, n->w, slot) && v->fresh[slot];
    return 0;
}


int chime_load_factor(far_task *t, far_index *index, far_load *load) {
    *load = (far_load){0};
    return start(t, index, load, true, false, count_slots);
}
