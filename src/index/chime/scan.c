/* CHIME: scans. A scan keeps a cursor, the smallest key that it may still return. It READs the leaves from the cursor
 * on in one batch, as many as it probably needs. From each leaf it returns the pairs between the cursor and the high
 * fence (the first key beyond the leaf), in order, and then sets the cursor to the high fence. The fences of adjacent
 * leaves leave no gap and do not overlap. Therefore a scan neither misses a key nor returns a key twice, although
 * leaves are split and merged concurrently. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch/epoch.h"

#include <stdlib.h>

/* limit for the pair blocks that one batch READs, in bytes; a single larger pair block is READ alone */
#define BLOCK_BYTES_MAX (256u << 10)

typedef struct pair {
    uint64_t first;
    const uint64_t *value; /* value words of the pair; points into the image of the leaf */
    chime_block block;
} pair;

typedef struct scan_state {
    chime_op op; /* state of the operation; op.key is the cursor */
    far_scan_chunk *scan;
    chime_key to;
    bool enough;
    bool begun;   /* the first batch was processed, so the cursor is the low fence of a leaf */
    size_t given; /* number of pairs returned to the caller so far */
    uint8_t cursor[CHIME_KEY_MAX + 8];
    unsigned count; /* number of leaves in this batch */
    chime_ptr leaf[CHIME_SCAN_LEAVES];
    chime_node node[CHIME_SCAN_LEAVES];
    /* a leaf that the parent does not name yet because its left neighbour was split recently; it is READ alone */
    chime_node extra;
    chime_ptr taken; /* the node that absorbed the leaf at the cursor and contains its items now; 0: none */
} scan_state;


static void set_cursor(scan_state *p, const void *bytes, size_t length) {
    memmove(p->cursor, bytes, length);
    if (p->op.st->inline_items && length < 8) { /* a scan from the beginning starts at key 0 */
        memset(p->cursor + length, 0, 8 - length);
        length = 8;
    }
    chime_key_make(p->op.st, (far_bytes){p->cursor, length}, &p->op.key);
}


static int compare_pairs_by_first(const void *a, const void *b) {
    const pair *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}


static int compare_pairs_by_key(const void *a, const void *b) {
    return far_bytes_compare(((const pair *)a)->block.key, ((const pair *)b)->block.key);
}


static int give_inline_pairs(scan_state *p, const pair *pairs, unsigned count) {
    const chime_state *st = p->op.st;
    for (unsigned i = 0; i < count && !p->enough; i++) {
        uint8_t key[8];
        for (unsigned k = 0; k < 8; k++)
            key[k] = (uint8_t)(pairs[i].first >> (56 - 8 * k));
        int err = far_scan_give(p->scan, (far_bytes){key, st->key_bytes}, (far_bytes){pairs[i].value, st->value_bytes});
        if (err < 0)
            return err;
        p->enough = err == 1;
        p->given++;
    }
    return 0;
}


/* Returns how many of the pairs form the next batch of pair block READs. Pairs with equal first 8 bytes stay in one
 * batch, because only their pair blocks show their order. */
static unsigned count_next_pairs(const scan_state *p, const pair *pairs, unsigned count) {
    unsigned n = 0;
    uint64_t bytes = 0;
    while (n < count) {
        unsigned same = n;
        uint64_t more = 0;
        while (same < count && pairs[same].first == pairs[n].first)
            more += chime_class_bytes(chime_value_class(*pairs[same++].value));
        if (n && (bytes + more > BLOCK_BYTES_MAX || n >= p->scan->wanted))
            break;
        bytes += more;
        n = same;
    }
    return n;
}


static int give_block_pairs(scan_state *p, pair *pairs, unsigned count) {
    chime_op *op = &p->op;
    int err;
    while (count && !p->enough) {
        far_scratch_mark here = far_scratch_here(op->t);
        unsigned n = count_next_pairs(p, pairs, count);
        for (unsigned i = 0; i < n; i++)
            if ((err = chime_batch_read_block(op, *pairs[i].value, &pairs[i].block)) < 0)
                return err;
        if ((err = chime_wait(op)) < 0)
            return err;
        for (unsigned i = 0; i < n; i++)
            if ((err = chime_parse_block(op, *pairs[i].value, &pairs[i].block)) < 0)
                return err;
        qsort(pairs, n, sizeof(*pairs), compare_pairs_by_key);
        for (unsigned i = 0; i < n && !p->enough; i++) {
            if ((err = far_scan_give(p->scan, pairs[i].block.key, pairs[i].block.value)) < 0)
                return err;
            p->enough = err == 1;
            p->given++;
        }
        far_scratch_back(op->t, here);
        pairs += n;
        count -= n;
    }
    return 0;
}


/* Returns the pairs of the leaf that are not below the cursor to the caller of the scan. */
static int give_leaf_pairs(scan_state *p, chime_node *n) {
    const chime_state *st = p->op.st;
    far_scratch_mark here = far_scratch_here(p->op.t);
    pair *pairs = far_scratch(p->op.t, st->span * sizeof(*pairs));
    unsigned count = 0;
    if (!pairs)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    for (unsigned slot = 0; slot < st->span; slot++) {
        const uint64_t *words = chime_slot(st, n->w, slot);
        if (!chime_slot_is_occupied(st, n->w, slot) || words[0] < p->op.key.first ||
            (p->scan->bounded && words[0] > p->to.first))
            continue;
        pairs[count++] = (pair){.first = words[0], .value = words + 1};
    }
    qsort(pairs, count, sizeof(pairs[0]), compare_pairs_by_first);
    int err = st->inline_items ? give_inline_pairs(p, pairs, count) : give_block_pairs(p, pairs, count);
    far_scratch_back(p->op.t, here);
    return err;
}


/* Sets the cursor to the high fence of the leaf, after all its pairs were returned. Returns 1 if the scan ends there.
 */
static int advance_cursor(scan_state *p, chime_node *n) {
    const chime_state *st = p->op.st;
    const uint64_t *tail = chime_tail(st, n->w);
    chime_fence high = {.word = tail[CHIME_TAIL_HIGH]}, *list = &high;
    uint8_t bytes[8];
    if (!chime_h1_sibling(tail[CHIME_TAIL_H1])) {
        p->scan->end = true;
        return 1;
    }
    int err = chime_read_fences(&p->op, &list, 1);
    if (err < 0)
        return err;
    if (p->scan->bounded && chime_compare_fence_to_key(st, &high, &p->to) >= 0) {
        p->scan->end = true;
        return 1;
    }
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(high.first >> (56 - 8 * i));
    if (high.bytes.data)
        set_cursor(p, high.bytes.data, high.bytes.length);
    else
        set_cursor(p, bytes, st->inline_items ? 8 : high.word ? chime_ref_length(high.word) : 0);
    return 0;
}


/* Returns how many leaves the next batch READs. The estimate assumes that leaves are 60 % full. */
static unsigned leaves_wanted(const scan_state *p) {
    uint64_t wanted = p->scan->wanted > p->given ? p->scan->wanted - p->given : 1, per_leaf = p->op.st->span * 6 / 10;
    if (wanted >= per_leaf * (CHIME_SCAN_LEAVES - 1))
        return CHIME_SCAN_LEAVES;
    return (unsigned)((wanted + per_leaf - 1) / per_leaf) + !p->begun;
}


/* Lists the leaves from the cursor on, as far as a single parent names them. A tree of one leaf has no parent. */
static int list_leaves(scan_state *p) {
    chime_op *op = &p->op;
    chime_state *st = op->st;
    chime_ptr parent;
    unsigned most = leaves_wanted(p);
    const chime_key *to = p->scan->bounded ? &p->to : NULL;
    int err = chime_descend(op, 1, &parent);
    if (err == CHIME_NO_LEVEL) {
        p->count = 1;
        return chime_descend(op, 0, &p->leaf[0]);
    }
    unsigned moves = 0;
    while (err == 0) {
        if (st->cache &&
            (p->count = chime_cache_children(st->cache, st, parent, &op->key, to, far_epoch(op->t), most, p->leaf))) {
            op->path[1] = parent;
            return 0;
        }
        chime_inner *inner = far_scratch(op->t, sizeof(*inner));
        chime_route r;
        if (!inner)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
        if ((err = chime_read_inner(op, parent, inner)) != 0)
            return err;
        if (st->cache)
            chime_cache_put(st->cache, st, inner, far_epoch(op->t));
        chime_route_in_node(st, inner, &op->key, &r);
        if (r.right) {
            if ((err = chime_move_right(op, 1, parent, r.next, &moves)) != CHIME_RIGHT)
                return err;
            parent = r.next;
            err = 0;
            continue;
        }
        op->path[1] = parent;
        unsigned at = 0;
        while (inner->child[at] != r.next)
            at++;
        for (p->count = 0; at < inner->count && p->count < most; at++) {
            if (p->count && to && chime_compare_fence_to_key(st, &inner->pivot[at], to) >= 0)
                break;
            p->leaf[p->count++] = inner->child[at];
        }
        return 0;
    }
    return err;
}


static int read_leaves(scan_state *p) {
    chime_op *op = &p->op;
    for (unsigned i = 0; i < p->count; i++) {
        p->node[i] = (chime_node){.ptr = p->leaf[i], .w = chime_alloc_image(op)};
        if (!p->node[i].w || !chime_ptr_is_in_pool(op, p->leaf[i])) {
            far_discard_batch(op->t);
            return p->node[i].w ? chime_report_corrupt(op->index, p->leaf[i],
                                                       "a parent points to it, but this address is outside of the pool")
                                : FAR_ERR_NO_MEMORY;
        }
        chime_batch_read_node_and_s(op, &p->node[i]);
    }
    return chime_wait(op);
}


/* Processes the leaf at the cursor from its image, after READing it again if a change was in progress, and follows
 * sibling pointers if the cursor belongs to a leaf further right. Returns 0 if the cursor has moved on, 1 if the scan
 * is complete, CHIME_STALE + 1 if the pointer is outdated. */
static int give_current_leaf(scan_state *p, chime_node *n) {
    chime_op *op = &p->op;
    int err = chime_classify_node(op, n);
    if (err == CHIME_AGAIN)
        err = chime_read_node(op, n->ptr, n);
    if (err < 0)
        return err;
    if (err == 0)
        err = chime_check_range(op, chime_tail(op->st, n->w));
    for (unsigned moves = 0; err == CHIME_RIGHT;) {
        chime_ptr next = chime_h1_sibling(chime_tail(op->st, n->w)[CHIME_TAIL_H1]);
        if ((err = chime_move_right(op, 0, n->ptr, next, &moves)) == CHIME_RIGHT &&
            (err = chime_read_node(op, next, n)) == 0)
            err = chime_check_range(op, chime_tail(op->st, n->w));
    }
    if (err < 0)
        return err;
    if (err > 0)
        return CHIME_STALE + 1;
    if ((err = give_leaf_pairs(p, n)) < 0)
        return err;
    return p->enough ? 1 : advance_cursor(p, n);
}


/* READs and processes one batch of leaves. Returns 0 if the scan continues at the cursor, 1 if it is complete,
 * CHIME_STALE + 1 if the first pointer is outdated. */
static int scan_batch(scan_state *p) {
    chime_op *op = &p->op;
    int err = p->taken ? 0 : list_leaves(p);
    if (p->taken) {
        p->count = 1;
        p->leaf[0] = p->taken;
        p->taken = 0;
    }
    if (err > 0)
        return CHIME_STALE + 1;
    if (err < 0 || (err = read_leaves(p)) < 0)
        return err;
    /* If processing a leaf renews the pin, pair blocks that the later leaves name may have been reused, so the batch
     * ends there. */
    unsigned pins = op->pin_renewals;
    for (unsigned i = 0; i < p->count && op->pin_renewals == pins; i++) {
        chime_node *n = &p->node[i];
        if ((err = give_current_leaf(p, n)) != 0)
            return err;
        /* If the leaf was split after its parent was READ, its sibling is not the next leaf of the batch. The new
         * leaves in between are READ one by one. */
        chime_ptr next = chime_h1_sibling(chime_tail(op->st, n->w)[CHIME_TAIL_H1]);
        for (unsigned moves = 0; i + 1 < p->count && next != p->leaf[i + 1]; moves++) {
            if (moves > 8)
                return 0;
            p->extra.w = p->extra.w ? p->extra.w : chime_alloc_image(op);
            if (!p->extra.w)
                return FAR_ERR_NO_MEMORY;
            if ((err = chime_read_node(op, next, &p->extra)) != 0)
                return err < 0 ? err : 0;
            if ((err = give_current_leaf(p, &p->extra)) != 0)
                return err;
            next = chime_h1_sibling(chime_tail(op->st, p->extra.w)[CHIME_TAIL_H1]);
        }
    }
    return 0;
}


int chime_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    scan_state *p = far_scratch(t, sizeof(*p));
    if (!p)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    memset(p, 0, sizeof(*p));
    p->scan = scan;
    chime_begin_op(&p->op, t, index, scan->from);
    set_cursor(p, scan->from.data, scan->from.length);
    if (scan->bounded)
        chime_key_make(p->op.st, scan->to, &p->to);
    if (scan->bounded && far_bytes_compare(scan->from, scan->to) >= 0) {
        scan->end = true;
        return 0;
    }
    int err = 0;
    while (err == 0 || err == CHIME_STALE + 1) {
        far_scratch_mark here = far_scratch_here(t);
        p->extra.w = NULL;
        if ((err = scan_batch(p)) == CHIME_STALE + 1) {
            int gone = chime_drop_stale_path(&p->op, p->leaf[0], 0);
            if (gone >= 0 && p->op.restarts % p->op.st->lock_attempts == 0)
                gone = chime_renew_pin(&p->op);
            p->taken = chime_ptr_is_in_pool(&p->op, p->op.absorber) ? p->op.absorber : 0;
            p->op.absorber = 0;
            err = gone < 0 ? gone : err;
        } else if (err == 0) {
            p->op.restarts = 0;
            p->begun = true;
        }
        far_scratch_back(t, here);
    }
    if (err >= 0)
        chime_finish_op(&p->op);
    return err < 0 ? err : 0;
}
