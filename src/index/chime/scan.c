/* CHIME: scans. A scan has a position: a forward scan continues with the smallest key at or after its position, a
 * backward scan with the greatest key at or before it. The scan READs the leaves from its position on in one batch, as
 * many as it probably needs. It delivers the pairs of the leaf that contains the position, from the position to the end
 * of the leaf in the direction of the scan, and then moves the position there: to the high fence (the first key beyond
 * the leaf) in a forward scan, immediately before the low fence (the first key of the leaf) in a backward scan. The
 * fences of adjacent leaves leave no gap and do not overlap. Therefore a scan neither misses a key nor returns a key
 * twice, although leaves are split and merged concurrently.
 *
 * The parent, which names the leaves of a batch, may be outdated. Leaves have only right siblings. So if a leaf was
 * split, a forward scan follows the sibling pointers after it has delivered the left part. A backward scan needs the
 * right part first: it steps right from the left part, and afterwards returns to the image of the left part. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch/epoch.h"

/* limit of the right siblings that a forward scan READs one by one before it begins a new batch */
#define NEW_SIBLINGS_MAX 8u

typedef struct scan_state {
    chime_op op; /* state of the operation; op.key is the position of the scan */
    chime_delivery delivery;
    bool backward;
    /* The first 8 bytes of the keys that the scan may still return are at least `least` and at most `most`. In an index
     * without pair blocks, all keys with such numbers belong to the rest of the range. */
    uint64_t least, most;
    bool ends;                       /* the range has a bound in the direction of the scan */
    chime_key end;                   /* this bound: a forward scan ends before this key, a backward scan after it */
    uint8_t position[CHIME_KEY_MAX]; /* bytes of op.key, in an index with pair blocks */
    chime_leaf_list list;            /* leaves of this batch */
    chime_node node[CHIME_SCAN_LEAVES];
    /* a leaf that the parent does not name yet because its left neighbour was split recently; it is READ alone */
    chime_node extra;
    chime_ptr stale;      /* the node whose pointer was found outdated */
    unsigned stale_level; /* level of this node */
    chime_ptr taken;      /* the leaf that absorbed the outdated leaf and contains its items now; 0: none */
} scan_state;


/* The position and the range. */

static const uint8_t greatest_key[CHIME_KEY_MAX] = {[0 ... CHIME_KEY_MAX - 1] = 0xff};


/* Sets the position of a scan in an index with pair blocks to a key, or immediately before it. */
static void set_position_to_bytes(scan_state *p, far_bytes key, bool before) {
    far_bytes_copy(p->position, key);
    p->op.key = (chime_key){
        .bytes = {p->position, key.length}, .first = chime_key_number(key.data, key.length), .before = before};
    *(p->backward ? &p->most : &p->least) = p->op.key.first;
}


/* In an index without pair blocks, every key is a number, so the position before a key is this number minus 1. */
static void set_position_to_number(scan_state *p, uint64_t first) {
    p->op.key.first = first;
    *(p->backward ? &p->most : &p->least) = first;
}


/* Sets the range of a scan in an index without pair blocks. Returns false if the range is empty. */
static bool set_range_of_numbers(scan_state *p, const far_scan_chunk *scan) {
    uint64_t from = chime_key_number(scan->from.data, scan->from.length),
             to = scan->bounded ? chime_key_number(scan->to.data, scan->to.length) : 0;
    if ((scan->after && from == UINT64_MAX) || (scan->bounded && !scan->to_included && to == 0))
        return false;
    p->least = from + scan->after;
    p->most = scan->bounded ? to - !scan->to_included : UINT64_MAX;
    p->end.first = p->backward ? from : to;
    set_position_to_number(p, p->backward ? p->most : p->least);
    return p->least <= p->most;
}


static void set_range_of_bytes(scan_state *p, const far_scan_chunk *scan) {
    p->least = chime_key_number(scan->from.data, scan->from.length);
    p->most = scan->bounded ? chime_key_number(scan->to.data, scan->to.length) : UINT64_MAX;
    if (!p->backward)
        set_position_to_bytes(p, scan->from, false);
    else if (scan->bounded)
        set_position_to_bytes(p, scan->to, !scan->to_included);
    else
        set_position_to_bytes(p, (far_bytes){greatest_key, CHIME_KEY_MAX}, false);
    if (p->ends)
        chime_key_make(p->op.st, p->backward ? scan->from : scan->to, &p->end);
}


/* Sets the range and the position. Returns false if the range is empty. */
static bool set_range(scan_state *p, const far_scan_chunk *scan) {
    int order = scan->bounded ? far_bytes_compare(scan->from, scan->to) : -1;
    p->backward = scan->backward;
    p->ends = p->backward || scan->bounded;
    p->list.at = &p->op.key;
    p->list.end = p->ends ? &p->end : NULL;
    p->list.backward = p->backward;
    if (order > 0 || (order == 0 && !scan->to_included))
        return false;
    if (p->op.st->inline_items)
        return set_range_of_numbers(p, scan);
    set_range_of_bytes(p, scan);
    return true;
}


/* Moves the position of a forward scan to the high fence of the leaf, after the pairs of the leaf were delivered.
 * Returns 1 if the scan ends there. */
static int advance_forward(scan_state *p, bool last, const chime_fence *high) {
    uint8_t small[8];
    if (last || (p->ends && chime_compare_fence_to_key(p->op.st, high, &p->end) >= 0)) {
        p->delivery.scan->end = true;
        return 1;
    }
    if (p->op.st->inline_items)
        set_position_to_number(p, high->first);
    else
        set_position_to_bytes(p, chime_fence_bytes(high, small), false);
    return 0;
}


/* Moves the position of a backward scan immediately before the low fence of the leaf. Returns 1 if the scan ends there.
 */
static int advance_backward(scan_state *p, const chime_fence *low) {
    uint8_t small[8];
    if (chime_compare_fence_to_key(p->op.st, low, &p->end) <= 0) {
        p->delivery.scan->end = true;
        return 1;
    }
    if (p->op.st->inline_items)
        set_position_to_number(p, low->first - 1);
    else
        set_position_to_bytes(p, chime_fence_bytes(low, small), true);
    return 0;
}


/* One leaf. */

/* Delivers the pairs of the leaf, which contains the position, and moves the position. Returns 1 if the scan is
 * complete. */
static int deliver_and_advance(scan_state *p, chime_node *n, const chime_fence *low, const chime_fence *high) {
    const chime_state *st = p->op.st;
    bool last = !chime_h1_sibling(chime_tail(st, n->w)[CHIME_TAIL_H1]);
    uint64_t least = p->least > low->first ? p->least : low->first,
             beyond = last ? UINT64_MAX : high->first - st->inline_items, most = p->most < beyond ? p->most : beyond;
    int err = chime_deliver_leaf(&p->op, &p->delivery, n, least, most);
    if (err < 0 || p->delivery.enough)
        return err < 0 ? err : 1;
    return p->backward ? advance_backward(p, low) : advance_forward(p, last, high);
}


/* Records that the pointer to a leaf is outdated. Returns CHIME_STALE + 1. */
static int note_stale_leaf(scan_state *p, chime_ptr leaf) {
    p->stale = leaf;
    p->stale_level = 0;
    p->taken = chime_ptr_is_in_pool(&p->op, p->op.absorber) ? p->op.absorber : 0;
    return CHIME_STALE + 1;
}


/* Processes the image of a leaf, after READing it again if a change was in progress. Returns 0 if the position has
 * moved on, 1 if the scan is complete, CHIME_RIGHT + 1 if the position belongs to a leaf further right, CHIME_STALE + 1
 * if the pointer to the leaf is outdated. */
static int scan_leaf(scan_state *p, chime_node *n) {
    chime_op *op = &p->op;
    chime_fence low, high;
    const uint64_t *tail = chime_tail(op->st, n->w);
    op->absorber = 0;
    int err = chime_classify_scanned_leaf(op, n);
    if (err == CHIME_AGAIN)
        err = chime_read_node(op, n->ptr, n);
    if (err == 0 && chime_h0_level(tail[CHIME_TAIL_H0]) != 0)
        return chime_report_corrupt(op->index, n->ptr, "it is not a leaf, although its parent is of level 1");
    if (err == 0)
        err = chime_check_and_read_range(op, tail, &low, &high);
    if (err == CHIME_STALE)
        return note_stale_leaf(p, n->ptr);
    return err < 0 ? err : err > 0 ? err + 1 : deliver_and_advance(p, n, &low, &high);
}


/* READs the right sibling of the leaf into p->extra. Returns 0, or CHIME_STALE + 1. */
static int read_right_sibling(scan_state *p, chime_node *n) {
    chime_ptr next = chime_h1_sibling(chime_tail(p->op.st, n->w)[CHIME_TAIL_H1]);
    p->op.absorber = 0;
    int err = chime_read_node(&p->op, next, &p->extra);
    return err > 0 ? note_stale_leaf(p, next) : err;
}


/* Processes the leaf at the position, which is the leaf of this image or a leaf further right. Sets *done to the leaf
 * that was processed. Returns like scan_leaf, but never CHIME_RIGHT + 1. */
static int scan_from_leaf(scan_state *p, chime_node *n, chime_node **done) {
    chime_op *op = &p->op;
    unsigned moves = 0;
    *done = n;
    for (;;) {
        int err = scan_leaf(p, *done);
        if (err != CHIME_RIGHT + 1)
            return err;
        chime_ptr from = (*done)->ptr, next = chime_h1_sibling(chime_tail(op->st, (*done)->w)[CHIME_TAIL_H1]);
        if ((err = chime_move_right(op, 0, from, next, &moves)) != CHIME_RIGHT)
            return err < 0 ? err : note_stale_leaf(p, from);
        if ((err = read_right_sibling(p, *done)) != 0)
            return err;
        *done = &p->extra;
    }
}


/* Batches of leaves. */

/* Records that the pointer to a parent is outdated. Returns CHIME_STALE + 1. */
static int note_stale_parent(scan_state *p, chime_ptr parent) {
    p->stale = parent;
    p->stale_level = 1;
    return CHIME_STALE + 1;
}


/* Lists the leaves from the position on, as far as a single parent names them. A tree of one leaf has no parent.
 * Returns 0, CHIME_STALE + 1 or an error. */
static int list_leaves(scan_state *p) {
    chime_op *op = &p->op;
    chime_state *st = op->st;
    chime_ptr parent;
    chime_route r;
    p->list.wanted = p->delivery.wanted;
    int err = chime_descend(op, 1, &parent);
    if (err == CHIME_NO_LEVEL)
        return chime_descend(op, 0, &p->list.leaf[0]);
    for (unsigned moves = 0; err >= 0;) {
        op->path[1] = parent;
        if (st->cache && chime_cache_children(st->cache, st, parent, far_epoch(op->t), &p->list))
            return 0;
        chime_inner *inner = far_scratch(op->t, sizeof(*inner));
        if (!inner)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
        if ((err = chime_read_inner(op, parent, inner)) != 0)
            return err < 0 ? err : note_stale_parent(p, parent);
        if (st->cache)
            chime_cache_put(st->cache, st, inner, far_epoch(op->t));
        chime_route_in_node(st, inner, &op->key, &r);
        if (!r.right)
            return chime_list_children(st, inner, &p->list) ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
        if ((err = chime_move_right(op, 1, parent, r.next, &moves)) != CHIME_RIGHT)
            return err < 0 ? err : note_stale_parent(p, parent);
        parent = r.next;
    }
    return err;
}


static int read_leaves(scan_state *p) {
    chime_op *op = &p->op;
    for (unsigned i = 0; i < p->list.count; i++) {
        p->node[i] = (chime_node){.ptr = p->list.leaf[i], .w = chime_alloc_image(op)};
        if (!p->node[i].w || !chime_ptr_is_in_pool(op, p->node[i].ptr)) {
            far_discard_batch(op->t);
            return p->node[i].w ? chime_report_corrupt(op->index, p->node[i].ptr,
                                                       "a parent points to it, but this address is outside of the pool")
                                : FAR_ERR_NO_MEMORY;
        }
        chime_batch_read_node_and_s(op, &p->node[i]);
    }
    return chime_wait(op);
}


/* Finds the leaf `next` in the batch, after leaf i. Returns its number, or 0 if it is not there. */
static unsigned find_in_batch(const scan_state *p, unsigned i, chime_ptr next) {
    for (unsigned later = i + 1; later < p->list.count; later++)
        if (p->list.leaf[later] == next)
            return later;
    return 0;
}


/* After a forward scan has processed leaf i of the batch: if the leaf was split after its parent was READ, its sibling
 * is not the next leaf of the batch. The new leaves in between are READ one by one. Returns like scan_leaf, and sets *i
 * to the last leaf before the one with which the batch continues. */
static int scan_new_siblings(scan_state *p, unsigned *i, chime_node *done) {
    for (unsigned moves = 0; *i + 1 < p->list.count; moves++) {
        unsigned later = find_in_batch(p, *i, chime_h1_sibling(chime_tail(p->op.st, done->w)[CHIME_TAIL_H1]));
        if (later || moves == NEW_SIBLINGS_MAX) {
            *i = later ? later - 1 : p->list.count;
            return 0;
        }
        int err = read_right_sibling(p, done);
        if (err != 0 || (err = scan_from_leaf(p, &p->extra, &done)) != 0)
            return err;
    }
    return 0;
}


/* After a backward scan has processed a right part of leaf i, because the leaf was split: the image of the left part
 * follows, unless another new leaf is in between. Returns like scan_leaf. */
static int scan_left_part(scan_state *p, unsigned *i) {
    int err = scan_leaf(p, &p->node[*i]);
    if (err != CHIME_RIGHT + 1)
        return err;
    *i = p->list.count; /* A new batch READs the leaf in between. */
    return 0;
}


/* READs and processes one batch of leaves. Returns 0 if the scan continues at its position, 1 if it is complete,
 * CHIME_STALE + 1 if the pointer p->stale is outdated. */
static int scan_batch(scan_state *p) {
    chime_op *op = &p->op;
    int err = 0;
    p->list.count = 1;
    if (p->taken)
        p->list.leaf[0] = p->taken;
    else
        err = list_leaves(p);
    p->taken = 0;
    if (err < 0 || err == CHIME_STALE + 1 || (err = read_leaves(p)) < 0)
        return err;
    /* If processing a leaf renews the pin, pair blocks that the other images name may have been reused, so the batch
     * ends there. */
    unsigned pins = op->pin_renewals;
    for (unsigned i = 0; i < p->list.count && op->pin_renewals == pins; i++) {
        chime_node *done;
        if ((err = scan_from_leaf(p, &p->node[i], &done)) != 0)
            return err;
        if (!p->backward)
            err = scan_new_siblings(p, &i, done);
        else if (done != &p->node[i] && op->pin_renewals == pins)
            err = scan_left_part(p, &i);
        if (err != 0)
            return err;
    }
    return 0;
}


int chime_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    scan_state *p = far_scratch(t, sizeof(*p));
    if (!p)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    /* The other fields are set before they are used; clearing all of them would cost as much as reading a leaf. */
    p->delivery = (chime_delivery){.scan = scan, .wanted = scan->wanted};
    p->end = (chime_key){.first = 0};
    p->extra = (chime_node){.ptr = 0};
    p->taken = 0;
    chime_begin_op(&p->op, t, index, (far_bytes){NULL, 0});
    if (!set_range(p, scan)) {
        scan->end = true;
        return 0;
    }
    int err = 0;
    while (err == 0 || err == CHIME_STALE + 1) {
        far_scratch_mark here = far_scratch_here(t);
        p->extra.w = NULL;
        if ((err = scan_batch(p)) == CHIME_STALE + 1) {
            int gone = chime_drop_stale_path(&p->op, p->stale, p->stale_level);
            if (gone >= 0 && p->op.restarts % p->op.st->lock_attempts == 0)
                gone = chime_renew_pin(&p->op);
            err = gone < 0 ? gone : err;
        } else if (err == 0)
            p->op.restarts = 0;
        far_scratch_back(t, here);
    }
    if (err >= 0)
        chime_finish_op(&p->op);
    return err < 0 ? err : 0;
}
