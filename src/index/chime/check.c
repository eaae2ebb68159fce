/* CHIME: operations on the whole index: walk (all objects, for garbage collection), check (consistency), usage and load
 * factor. Each traverses the levels of the tree, and each level from left to right along the sibling pointers. The
 * traversal works in slices, each with a pin of its own. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch/epoch.h"
#include "pool/format/owner.h"

#include <stdlib.h>

typedef struct traversal traversal;

/* State of a traversal. */
struct traversal {
    /* function that is called for each node, under a pin */
    int (*each)(traversal *traversal, chime_op *op, chime_node *n, unsigned level);
    void *ctx; /* argument for `each` */
    unsigned level;
    /* position of the traversal */
    unsigned restarts; /* failed descents to the node at the cursor, in this slice and in earlier ones */
    /* right sibling of the node visited last; 0: none. Following this pointer also checks that the fences of both nodes
     * agree */
    chime_ptr next;
    size_t length; /* length of the cursor, in bytes */
    uint8_t cursor[CHIME_KEY_MAX + 8];
    /* what the traversal visits and repairs */
    bool leaves_only;
    bool repairs;        /* if the lock holder of a node has failed, the node is repaired before the visit */
    bool visited_before; /* the current node was visited earlier and has absorbed its right neighbour since */
    bool unvisited[CHIME_SPAN_MAX]; /* unvisited[i]: the item in slot i of the current node was not visited earlier */
    far_suspects locks;             /* locks that `check` found held in this slice; it examines them again later */
};


static void set_cursor_to_fence(traversal *v, const chime_state *st, const chime_fence *high) {
    uint8_t bytes[8];
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(high->first >> (56 - 8 * i));
    v->length = st->inline_items   ? 8
                : high->bytes.data ? high->bytes.length
                : high->word       ? chime_ref_length(high->word)
                                   : 0;
    memcpy(v->cursor, high->bytes.data ? high->bytes.data : bytes, v->length);
}


/* READs the node at the cursor: the sibling of the node visited last or, if that was merged in the meantime, the result
 * of a descent. Returns 0 if the node was READ and its fences contain the cursor, or CHIME_STALE. */
static int read_node_at_cursor(chime_op *op, traversal *v, chime_node *n) {
    chime_ptr p = v->next, sibling = p;
    int err = p ? 0 : chime_descend(op, v->level, &p);
    v->next = 0;
    for (unsigned moves = 0; err == 0; moves++) {
        if ((err = chime_read_node(op, p, n)) != 0)
            break;
        uint64_t lock = chime_tail(op->st, n->w)[CHIME_TAIL_L];
        if (v->repairs && chime_lock_is_held(lock) && (err = chime_repair_if_holder_failed(op, p, lock)) != 0) {
            if (err < 0)
                return err;
            err = 0;
            if (moves > CHIME_RIGHT_MOVES_MAX)
                return chime_report_corrupt(op->index, p, "the chain of its siblings does not end");
            continue;
        }
        err = chime_check_range(op, chime_tail(op->st, n->w));
        if (err > 0 && p == sibling)
            return chime_report_corrupt(op->index, p, "its fences do not match those of its left sibling");
        if (err != CHIME_RIGHT)
            break;
        p = chime_h1_sibling(chime_tail(op->st, n->w)[CHIME_TAIL_H1]);
        if ((err = chime_move_right(op, v->level, n->ptr, p, &moves)) != CHIME_RIGHT)
            return err < 0 ? err : CHIME_STALE;
        err = 0;
    }
    if (err == CHIME_STALE) {
        int gone = chime_drop_stale_path(op, p, v->level);
        return gone < 0 ? gone : CHIME_STALE;
    }
    return err == CHIME_NO_LEVEL ? chime_report_corrupt(op->index, p, "the tree has lost a level") : err;
}


static chime_block *alloc_block_heads(chime_op *op) {
    chime_block *heads = far_scratch(op->t, op->st->span * sizeof(*heads));
    if (!heads)
        far_fail(FAR_ERR_NO_MEMORY, "no memory to read a leaf");
    return heads;
}


static int read_block_heads(chime_op *op, chime_node *n, chime_block *heads) {
    const chime_state *st = op->st;
    bool any = false;
    int err = 0;
    if (st->inline_items)
        return 0;
    for (unsigned slot = 0; slot < st->span; slot++)
        if (chime_slot_is_occupied(st, n->w, slot)) {
            if ((err = chime_batch_read_block_head(op, chime_slot(st, n->w, slot)[1], &heads[slot])) < 0)
                return err;
            any = true;
        }
    if (any && (err = chime_wait(op)) < 0)
        return err;
    for (unsigned slot = 0; slot < st->span && err >= 0; slot++)
        if (chime_slot_is_occupied(st, n->w, slot))
            err = chime_parse_block_head(op, chime_slot(st, n->w, slot)[1], &heads[slot]);
    return err;
}


/* Sets v->unvisited for the items of the node that were not visited before. If the low fence of the node is below the
 * cursor, the traversal visited the node earlier, and the node has absorbed its right neighbour since. In that case
 * only items at or above the cursor are new. */
static int mark_unvisited_items(chime_op *op, traversal *v, chime_node *n) {
    const chime_state *st = op->st;
    chime_fence low = {.word = chime_tail(st, n->w)[CHIME_TAIL_LOW]}, *list = &low;
    chime_block *heads = alloc_block_heads(op);
    int err = heads ? chime_read_fences(op, &list, 1) : FAR_ERR_NO_MEMORY;
    if (err < 0)
        return err;
    v->visited_before = chime_compare_fence_to_key(st, &low, &op->key) < 0;
    memset(v->unvisited, 1, sizeof(v->unvisited));
    if (!v->visited_before || v->level || (err = read_block_heads(op, n, heads)) < 0)
        return err;
    for (unsigned slot = 0; slot < st->span; slot++) {
        uint64_t first = chime_slot(st, n->w, slot)[0];
        bool before = first < op->key.first;
        if (first == op->key.first && !st->inline_items && chime_slot_is_occupied(st, n->w, slot))
            before = far_bytes_compare(heads[slot].key, op->key.bytes) < 0;
        v->unvisited[slot] = !before;
    }
    return 0;
}


/* Visits at most walk_slice nodes under one pin. Returns 1 if the level is complete, 0 if the next slice continues. */
static int visit_slice(far_task *t, far_index *index, traversal *v) {
    chime_op op;
    chime_begin_op(&op, t, index, (far_bytes){v->cursor, v->length});
    if (op.st->inline_items && v->length == 0)
        op.key.first = 0;
    op.restarts = v->restarts;
    for (unsigned i = 0; i < op.st->walk_slice; i++) {
        far_scratch_mark here = far_scratch_here(t);
        chime_node n = {0};
        int err = read_node_at_cursor(&op, v, &n);
        if (err == CHIME_STALE) {
            v->restarts = op.restarts;
            far_count_retry(t);
            far_scratch_back(t, here);
            continue;
        }
        if (err < 0 || (err = mark_unvisited_items(&op, v, &n)) < 0 || (err = v->each(v, &op, &n, v->level)) < 0)
            return err;
        const uint64_t *tail = chime_tail(op.st, n.w);
        chime_fence high = {.word = tail[CHIME_TAIL_HIGH]}, *list = &high;
        if (!chime_h1_sibling(tail[CHIME_TAIL_H1]))
            return 1;
        if ((err = chime_read_fences(&op, &list, 1)) < 0)
            return err;
        if (chime_compare_fence_to_key(op.st, &high, &op.key) <= 0)
            return chime_report_corrupt(index, n.ptr, "its high fence is too small");
        set_cursor_to_fence(v, op.st, &high);
        v->next = chime_h1_sibling(tail[CHIME_TAIL_H1]);
        chime_key_make(op.st, (far_bytes){v->cursor, v->length}, &op.key);
        v->restarts = op.restarts = 0;
        far_scratch_back(t, here);
    }
    return 0;
}


static int visit_level(far_task *t, far_index *index, traversal *v) {
    int err = 0;
    v->length = 0;
    v->next = 0;
    v->restarts = 0;
    memset(v->cursor, 0, 8);
    if (chime_state_of(index)->inline_items)
        v->length = 8;
    while (err == 0) {
        far_scratch_mark here = far_scratch_here(t);
        if ((err = far_pin_take(t)) >= 0)
            err = visit_slice(t, index, v);
        far_pin_drop(t);
        int locks = err >= 0 && v->locks.count ? far_suspects_check(t, &v->locks, v->ctx) : 0;
        if (locks < 0)
            err = locks;
        far_scratch_back(t, here);
    }
    return err < 0 ? err : 0;
}


static int visit_levels(far_task *t, far_index *index, traversal *v) {
    chime_op op;
    chime_begin_op(&op, t, index, (far_bytes){"", 0});
    int err = far_pin_take(t);
    uint64_t root = 0;
    if (err >= 0)
        err = chime_read_root(&op, &root);
    far_pin_drop(t);
    unsigned top = chime_ptr_low(root);
    for (unsigned level = v->leaves_only ? 0 : top; err >= 0; level--) {
        v->level = level;
        if ((err = visit_level(t, index, v)) < 0 || level == 0)
            break;
    }
    return err;
}


static int traverse_index(far_task *t, far_index *index, void *ctx, bool leaves_only, bool repairs,
                          int (*each)(traversal *traversal, chime_op *op, chime_node *n, unsigned level)) {
    traversal *v = calloc(1, sizeof(*v));
    if (!v)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    v->ctx = ctx;
    v->leaves_only = leaves_only;
    v->repairs = repairs;
    v->each = each;
    int err = visit_levels(t, index, v);
    free(v);
    return err;
}


/* The walk, which reports all objects of the index to the garbage collection. */

static int walk_node(traversal *v, chime_op *op, chime_node *n, unsigned level) {
    far_walk *walk = v->ctx;
    const chime_state *st = op->st;
    uint64_t low = chime_tail(st, n->w)[CHIME_TAIL_LOW];
    int err = 0;
    if (!v->visited_before)
        err = far_walk_object(walk, op->index, CHIME_TYPE_NODE, chime_ptr_addr(n->ptr), st->node_bytes);
    if (level || st->inline_items)
        return err;
    if (err >= 0 && !v->visited_before && !chime_ref_is_inline(low))
        err = far_walk_object(walk, op->index, CHIME_TYPE_KEY, chime_ref_addr(low),
                              chime_key_block_bytes(chime_ref_length(low)));
    for (unsigned slot = 0; slot < st->span && err >= 0; slot++) {
        uint64_t word = chime_slot(st, n->w, slot)[1];
        if (!chime_slot_is_occupied(st, n->w, slot) || !v->unvisited[slot])
            continue;
        if (chime_value_class(word) >= CHIME_CLASSES)
            return chime_report_corrupt(op->index, n->ptr, "a slot refers to a pair block of an invalid size");
        err = far_walk_object(walk, op->index, CHIME_TYPE_BLOCK, chime_value_block(word),
                              chime_class_bytes(chime_value_class(word)));
    }
    return err;
}


int chime_walk(far_task *t, far_index *index, far_walk *walk) {
    int err = far_walk_object(walk, index, CHIME_TYPE_ROOT, index->descriptor, sizeof(chime_root));
    return err < 0 ? err : traverse_index(t, index, walk, false, true, walk_node);
}


/* The check, which reports inconsistencies. */

static int check_item(chime_op *op, chime_node *n, unsigned slot, const chime_block *head, far_report *report) {
    const chime_state *st = op->st;
    const uint64_t *words = chime_slot(st, n->w, slot), *tail = chime_tail(st, n->w);
    unsigned long long addr = chime_ptr_addr(n->ptr);
    uint8_t bytes[8];
    chime_op item = *op;
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(words[0] >> (56 - 8 * i));
    chime_key_make(st, st->inline_items ? (far_bytes){bytes, 8} : head->key, &item.key);
    if (item.key.first != words[0])
        far_report_problem(report, "leaf at %#llx: the key word of slot %u differs from the key in its pair block",
                           addr, slot);
    if (chime_item_home_slot(st, n->w, slot) != chime_home_slot(st, item.key.hash))
        far_report_problem(report, "leaf at %#llx: the key in slot %u is outside of its neighbourhood", addr, slot);
    if (!st->inline_items && chime_value_fingerprint(words[1]) != (item.key.hash & 1023))
        far_report_problem(report, "leaf at %#llx: the fingerprint in slot %u does not match its key", addr, slot);
    int err = chime_check_range(&item, tail);
    if (err > 0)
        far_report_problem(report, "leaf at %#llx: the key in slot %u is outside of the leaf's fences", addr, slot);
    return err < 0 ? err : 0;
}


/* Checks the occupancy map in the lock word. The READ of the node may have returned the tail from before an insert took
 * the lock, and the lines from the time when the insert wrote them. So the map is wrong only if it stays wrong while
 * neither the lock word nor S (the structure nonce in the tail, which every change of the node replaces) changes.
 * Returns 1 if the map is wrong, 0 if not, or an error. */
static int check_map(chime_op *op, chime_node *n) {
    const chime_state *st = op->st;
    const uint64_t *tail = chime_tail(st, n->w);
    for (unsigned look = 0; look < 3; look++) {
        uint64_t lock = tail[CHIME_TAIL_L], s = tail[CHIME_TAIL_S];
        if (chime_lock_is_held(lock) ||
            chime_map_from_word(st->masked_cas ? lock : tail[CHIME_TAIL_V]) == chime_occupancy_map(st, n->w))
            return 0;
        int err = chime_read_node(op, n->ptr, n);
        if (err != 0 || tail[CHIME_TAIL_S] != s || tail[CHIME_TAIL_L] != lock)
            return err < 0 ? err : 0;
    }
    return 1;
}


static int check_leaf(chime_op *op, chime_node *n, far_report *report) {
    const chime_state *st = op->st;
    chime_block *heads = alloc_block_heads(op);
    unsigned long long addr = chime_ptr_addr(n->ptr);
    int err = heads ? read_block_heads(op, n, heads) : FAR_ERR_NO_MEMORY;
    for (unsigned slot = 0; slot < st->span && err >= 0; slot++)
        if (chime_slot_is_occupied(st, n->w, slot))
            err = check_item(op, n, slot, &heads[slot], report);
    if (err < 0)
        return err;
    for (unsigned a = 0; a < st->span; a++)
        for (unsigned b = a + 1; b < st->span; b++)
            if (chime_slot_is_occupied(st, n->w, a) && chime_slot_is_occupied(st, n->w, b) &&
                chime_slot(st, n->w, a)[0] == chime_slot(st, n->w, b)[0] &&
                (st->inline_items || far_bytes_compare(heads[a].key, heads[b].key) == 0))
                far_report_problem(report, "leaf at %#llx: slots %u and %u have the same key", addr, a, b);
    if ((err = check_map(op, n)) > 0)
        far_report_problem(report, "leaf at %#llx: its occupancy map differs from its occupied slots", addr);
    return err < 0 ? err : 0;
}


/* Compares the tail of a child with the pivot that leads to the child. The low fence of a node never changes, so it
 * must be equal to the pivot. Sets *what to a description of the problem, or leaves *what NULL. Returns 0 or an error.
 */
static int find_child_problem(chime_op *op, chime_ptr p, const chime_fence *pivot, const char **what) {
    chime_node n = {0};
    int err = chime_read_tail(op, p, &n);
    if (err < 0)
        return err;
    const uint64_t *tail = chime_tail(op->st, n.w);
    chime_fence low = {.word = tail[CHIME_TAIL_LOW]}, *list = &low;
    if (chime_h0_tag(tail[CHIME_TAIL_H0]) != chime_ptr_tag(p) || !chime_h0_valid(tail[CHIME_TAIL_H0])) {
        *what = "where there is no such node";
        return 0;
    }
    if (low.word == pivot->word)
        return 0;
    if ((err = chime_read_fences(op, &list, 1)) == 0 && chime_compare_fences(op->st, &low, pivot) != 0)
        *what = "whose low fence differs from the pivot";
    return err;
}


/* Checks child i of the inner node n. A child is removed under the lock of its parent. So a problem with a child is
 * reported only if the parent's tail is the same, and not locked, before and after the READ of the child. */
static int check_child(chime_op *op, const chime_node *n, const chime_inner *inner, unsigned i, far_report *report) {
    const uint64_t *tail = chime_tail(op->st, n->w);
    far_scratch_mark here = far_scratch_here(op->t);
    chime_node now = {0};
    const char *what = NULL;
    int err =
        chime_lock_is_held(tail[CHIME_TAIL_L]) ? 0 : find_child_problem(op, inner->child[i], &inner->pivot[i], &what);
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
    int err = inner ? chime_decode_inner(op, n, inner) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    if (err < 0)
        return err;
    for (unsigned i = 0; i < inner->count; i++) {
        if (!chime_ptr_is_in_pool(op, inner->child[i]))
            far_report_problem(report, "node at %#llx: child %u is outside of the pool", addr, i);
        else if ((err = check_child(op, n, inner, i, report)) < 0)
            return err;
        for (unsigned k = 0; k < i; k++)
            if (inner->child[k] == inner->child[i] || inner->pivot[k].word == inner->pivot[i].word)
                far_report_problem(report, "node at %#llx: children %u and %u have the same pointer or the same pivot",
                                   addr, k, i);
    }
    if (inner->level != level)
        far_report_problem(report, "node at %#llx: its level is %u instead of %u", addr, inner->level, level);
    (void)st;
    return 0;
}


static int check_node(traversal *v, chime_op *op, chime_node *n, unsigned level) {
    uint64_t lock = chime_tail(op->st, n->w)[CHIME_TAIL_L];
    if (chime_lock_is_held(lock))
        far_suspects_add(&v->locks, chime_tail_addr(op->st, n->ptr, CHIME_TAIL_L), lock, chime_lock_owner(lock));
    return level ? check_inner(op, n, level, v->ctx) : check_leaf(op, n, v->ctx);
}


int chime_check(far_task *t, far_index *index, far_report *report) {
    int err = traverse_index(t, index, report, false, false, check_node);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(report, "%s", far_last_error());
        return 0;
    }
    return err;
}


/* Salvage: the keys in the slots of a leaf, or the key of a pair block. The pivots of an inner node are also given.
 * Most of them are keys of the index, and a lookup finds out. */

/* Returns whether most lines of the image are valid and belong to one incarnation of a node. */
static bool looks_like_node(const chime_state *st, uint64_t *w) {
    unsigned tag = chime_h0_tag(*chime_h0(st, w, 0)), other = chime_h0_tag(*chime_h0(st, w, 1)), same = 0, others = 0;
    for (unsigned line = 0; line < st->lines; line++) {
        uint64_t h0 = *chime_h0(st, w, line);
        same += chime_h0_valid(h0) && chime_h0_tag(h0) == tag;
        others += chime_h0_valid(h0) && chime_h0_tag(h0) == other;
    }
    return 2 * same > st->lines || 2 * others > st->lines;
}


static int give_slot_keys(const chime_state *st, uint64_t *w, far_keys *keys) {
    int err = 0;
    for (unsigned slot = 0; slot < st->span && err >= 0; slot++) {
        uint64_t first = *chime_slot(st, w, slot);
        uint8_t key[8];
        if (first == 0 && !chime_slot_is_occupied(st, w, slot))
            continue;
        for (unsigned i = 0; i < 8; i++)
            key[i] = (uint8_t)(first >> (56 - 8 * i));
        err = far_keys_give(keys, (far_bytes){key, st->key_bytes});
    }
    return err;
}


int chime_object_keys(far_task *t, far_index *index, unsigned type, const void *object, uint64_t bytes,
                      far_keys *keys) {
    const chime_state *st = chime_state_of(index);
    uint64_t head;
    (void)t;
    if (type == CHIME_TYPE_NODE && st->inline_items && bytes >= st->node_bytes &&
        looks_like_node(st, (uint64_t *)object))
        return give_slot_keys(st, (uint64_t *)object, keys);
    if (type != CHIME_TYPE_BLOCK)
        return 0;
    memcpy(&head, object, sizeof(head));
    size_t length = chime_block_key_length(head);
    if (length == 0 || CHIME_BLOCK_HEAD + length > bytes)
        return 0;
    return far_keys_give(keys, (far_bytes){(const char *)object + CHIME_BLOCK_HEAD, length});
}


/* Usage and load factor, which count the items and slots of the leaves. */

static int count_keys(traversal *v, chime_op *op, chime_node *n, unsigned level) {
    far_usage *usage = v->ctx;
    chime_block *heads = alloc_block_heads(op);
    int err = heads ? read_block_heads(op, n, heads) : FAR_ERR_NO_MEMORY;
    (void)level;
    for (unsigned slot = 0; slot < op->st->span && err >= 0; slot++)
        if (chime_slot_is_occupied(op->st, n->w, slot) && v->unvisited[slot]) {
            usage->keys++;
            usage->key_bytes += op->st->inline_items ? op->st->key_bytes : heads[slot].key.length;
            usage->value_bytes += op->st->inline_items ? op->st->value_bytes : heads[slot].value.length;
        }
    return err;
}


int chime_usage(far_task *t, far_index *index, far_usage *usage) {
    return traverse_index(t, index, usage, true, false, count_keys);
}


static int count_slots(traversal *v, chime_op *op, chime_node *n, unsigned level) {
    far_load *load = v->ctx;
    (void)level;
    load->slots += v->visited_before ? 0 : op->st->span;
    for (unsigned slot = 0; slot < op->st->span; slot++)
        load->keys[0] += chime_slot_is_occupied(op->st, n->w, slot) && v->unvisited[slot];
    return 0;
}


int chime_load_factor(far_task *t, far_index *index, far_load *load) {
    *load = (far_load){0};
    return traverse_index(t, index, load, true, false, count_slots);
}
