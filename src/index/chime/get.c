/* CHIME: get and multi-get. A get READs the neighbourhood of the key, in one round trip. A key that is found needs no
 * further proof, because a valid line of the right incarnation contains the current value at the instant of the READ.
 *
 * If the key is not seen, it may have moved during the READ. A second READ with the fences, between two READs of S (the
 * structure nonce in the tail), decides. Two equal values of S prove that at most one change overlapped, and the hop
 * bitmap shows whether one change has moved the key. Where the fabric can tear lines, every answer needs equal values
 * of S that are not busy. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch/epoch.h"

typedef struct answer {
    int slot; /* slot of the key; -1: the key is absent */
    chime_ptr leaf;
    const uint64_t *value; /* value words of the key; points into the image of the leaf */
    chime_block block;
} answer;


/* Returns whether the first batch should READ everything that proves the absence of the key, so that no second batch is
 * needed. That costs two more verbs and is worthwhile if many gets find no key. */
static bool proof_is_in_first_batch(chime_state *st) {
    if (st->miss != CHIME_MISS_ADAPTIVE)
        return st->miss != CHIME_MISS_CONFIRM;
    return atomic_load_explicit(&st->misses, memory_order_relaxed) >
           atomic_load_explicit(&st->gets, memory_order_relaxed) / 8 + 1;
}


static void count_get(chime_state *st, bool found) {
    uint64_t gets = atomic_load_explicit(&st->gets, memory_order_relaxed),
             misses = atomic_load_explicit(&st->misses, memory_order_relaxed);
    if (gets >= 1024) { /* Both counts are halved when 1024 is reached, so that recent gets count more than old ones. */
        gets /= 2;
        misses /= 2;
        atomic_store_explicit(&st->misses, misses, memory_order_relaxed);
    }
    atomic_store_explicit(&st->gets, gets + 1, memory_order_relaxed);
    if (!found)
        atomic_store_explicit(&st->misses, misses + 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&st->counts.gets, 1, memory_order_relaxed);
}


/* How a get proves that a key which it did not see is absent: by the short duration of the READ, or by two equal values
 * of S. */
typedef enum { NO_PROOF, BY_TIME, BY_S } proof;


static proof choose_first_proof(chime_state *st) {
    if (!proof_is_in_first_batch(st))
        return NO_PROOF;
    return st->miss == CHIME_MISS_TIME || st->miss == CHIME_MISS_UNSAFE ? BY_TIME : BY_S;
}


/* Returns whether the READ took less than one and a half of the fabric's guaranteed round trip. If so, at most one
 * change of the node overlapped the READ, because two changes are at least one round trip apart: the task of the second
 * change waits for its lock, or for the handover of the lock, before it posts its first WRITE. A READ itself takes one
 * round trip; the remaining half is a margin for the cost of posting. */
static bool read_was_short(chime_op *op, uint64_t start) {
    uint64_t rtt = far_task_capabilities(op->t)->min_rtt;
    return op->st->miss == CHIME_MISS_UNSAFE || far_now(op->t) - start < rtt + rtt / 2;
}


static void batch_leaf_reads(chime_op *op, chime_node *n, proof by) {
    const chime_state *st = op->st;
    bool bracketed = by == BY_S || st->lines_can_tear;
    if (bracketed)
        chime_batch_read_s(op, n, 0);
    if (st->hopscotch && (by || !st->replication))
        chime_batch_read_tail(op, n);
    if (st->hopscotch)
        chime_batch_read_slots(op, n, op->home_slot, st->hop);
    else
        chime_batch_read_node(op, n);
    if (bracketed)
        chime_batch_read_s(op, n, 1);
}


/* Judges a READ that did not see the key. `stable` means that at most one change overlapped the READ. Returns 0 if the
 * key is absent, or CHIME_RIGHT, CHIME_STALE or CHIME_AGAIN. */
static int classify_miss(chime_op *op, chime_node *n, bool stable) {
    const chime_state *st = op->st;
    const uint64_t *tail = chime_tail(st, n->w);
    unsigned tag = chime_ptr_tag(n->ptr);
    if (chime_h0_tag(tail[CHIME_TAIL_H0]) != tag || !chime_h0_valid(tail[CHIME_TAIL_H0])) {
        op->absorber = chime_h0_tag(tail[CHIME_TAIL_H0]) == tag ? tail[CHIME_TAIL_ABSORBER] : 0;
        return CHIME_STALE;
    }
    if (!stable)
        return CHIME_AGAIN;
    int err = chime_check_range(op, tail);
    if (err != 0)
        return err;
    for (unsigned i = 0; i < st->hop && (st->wrap || op->home_slot + i < st->span); i++) {
        unsigned line = chime_line(st, chime_slot_after(st, op->home_slot, i));
        if (!chime_line_is_current(st, n->w, line, tag) ||
            chime_h1_sibling_nv(*chime_h1(st, n->w, line)) != chime_h1_sibling_nv(tail[CHIME_TAIL_H1]))
            return CHIME_AGAIN;
    }
    return chime_hop_bitmap_agrees(st, n->w, op->home_slot) ? 0 : CHIME_AGAIN;
}


/* Searches the key in one leaf. Returns 0 if the answer is known; CHIME_STALE; or CHIME_RIGHT, and then *leaf is the
 * right sibling. */
static int search_leaf(chime_op *op, chime_ptr *leaf, answer *a) {
    chime_node n = {.ptr = *leaf};
    unsigned at_rest = 0;
    proof by = choose_first_proof(op->st);
    if (!chime_ptr_is_in_pool(op, *leaf))
        return CHIME_STALE;
    if (!(n.w = chime_alloc_image(op)))
        return FAR_ERR_NO_MEMORY;
    for (unsigned attempt = 0;; attempt++) {
        uint64_t start = far_now(op->t);
        batch_leaf_reads(op, &n, by);
        int err = chime_wait(op);
        if (err < 0)
            return err;
        bool stable = by == BY_TIME && !op->st->lines_can_tear ? read_was_short(op, start) : chime_read_is_stable(&n);
        a->slot = -1;
        if ((!op->st->lines_can_tear || chime_read_is_stable(&n)) &&
            (err = chime_find_item(op, &n, &a->slot, &a->block)) < 0)
            return err;
        if (a->slot >= 0) {
            a->value = chime_slot(op->st, n.w, (unsigned)a->slot) + 1;
            a->leaf = n.ptr;
            return 0;
        }
        if (by == NO_PROOF || (by == BY_TIME && !stable)) {
            by = BY_S;
            far_point(op->t, "chime:confirm");
            continue;
        }
        if ((err = classify_miss(op, &n, stable)) == CHIME_RIGHT)
            *leaf = chime_h1_sibling(chime_tail(op->st, n.w)[CHIME_TAIL_H1]);
        if (err != CHIME_AGAIN)
            return err;
        by = op->st->miss == CHIME_MISS_UNSAFE ? by : BY_S;
        if ((err = chime_wait_for_change_end(op, &n, attempt, &at_rest)) < 0)
            return err;
    }
}


/* Descends to the leaf of the key and searches it, until the answer is known. */
static int search_tree(chime_op *op, answer *a) {
    for (;;) {
        far_scratch_mark here = far_scratch_here(op->t);
        chime_ptr leaf, from;
        unsigned moves = 0;
        op->absorber = 0;
        int err = chime_descend(op, 0, &leaf);
        for (from = leaf; err == 0 && (err = search_leaf(op, &leaf, a)) == CHIME_RIGHT &&
                          (err = chime_move_right(op, 0, from, leaf, &moves)) == CHIME_RIGHT;
             err = 0)
            from = leaf;
        if (err == CHIME_STALE && op->absorber && chime_ptr_is_in_pool(op, op->absorber)) {
            /* The left neighbour has absorbed the leaf and contains its items now. */
            leaf = op->absorber;
            err = search_leaf(op, &leaf, a);
        }
        if (err <= 0)
            return err;
        if (err != CHIME_AGAIN && (err = chime_drop_stale_path(op, from, 0)) < 0)
            return err;
        far_scratch_back(op->t, here);
        if (op->restarts % op->st->lock_attempts == 0 && (err = chime_renew_pin(op)) < 0)
            return err;
    }
}


/* READs the slot in which the key was found last, according to the hotspot buffer. Returns 1 if the key is still there,
 * which answers the get, otherwise 0. */
static int search_hotspot(chime_op *op, answer *a) {
    chime_state *st = op->st;
    chime_ptr where = chime_hot_find(st->hot, op->key.hash, far_epoch(op->t));
    chime_node n = {.ptr = chime_ptr_without_low(where)};
    unsigned distance = chime_ptr_low(where),
             slot = chime_slot_after(st, op->home_slot, distance < st->hop ? distance : 0);
    if (!where || distance >= st->hop || !chime_ptr_is_in_pool(op, n.ptr))
        return 0;
    if (!(n.w = chime_alloc_image(op)))
        return FAR_ERR_NO_MEMORY;
    atomic_fetch_add_explicit(&st->counts.speculated, 1, memory_order_relaxed);
    if (st->lines_can_tear)
        chime_batch_read_s(op, &n, 0);
    chime_batch_read_slots(op, &n, slot, 1);
    if (st->lines_can_tear)
        chime_batch_read_s(op, &n, 1);
    int err = chime_wait(op);
    if (err < 0)
        return err;
    const uint64_t *words = chime_slot(st, n.w, slot);
    bool there = (!st->lines_can_tear || chime_read_is_stable(&n)) &&
                 chime_line_is_current(st, n.w, chime_line(st, slot), chime_ptr_tag(n.ptr)) &&
                 chime_slot_is_occupied(st, n.w, slot) && words[0] == op->key.first;
    if (there && !st->inline_items) {
        there =
            chime_value_distance(words[1]) == distance && chime_value_fingerprint(words[1]) == (op->key.hash & 1023);
        if (there && (err = chime_read_block(op, words[1], &a->block)) < 0)
            return err;
        there = there && far_bytes_equal(a->block.key, op->key.bytes);
    }
    if (!there) {
        chime_hot_drop(st->hot, op->key.hash);
        return 0;
    }
    atomic_fetch_add_explicit(&st->counts.speculations_correct, 1, memory_order_relaxed);
    a->slot = (int)slot;
    a->leaf = n.ptr;
    a->value = words + 1;
    return 1;
}


static int return_value(chime_op *op, const answer *a, far_out *out) {
    chime_state *st = op->st;
    if (st->hot)
        chime_hot_put(st->hot, op->t, op->key.hash, a->leaf, chime_distance(st, op->home_slot, (unsigned)a->slot),
                      far_epoch(op->t));
    return st->inline_items ? far_out_give(out, a->value, st->value_bytes)
                            : far_out_give(out, a->block.value.data, a->block.value.length);
}


int chime_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    chime_op op;
    answer a;
    chime_begin_op(&op, t, index, key);
    int err = op.st->hot ? search_hotspot(&op, &a) : 0;
    if (err == 0)
        err = search_tree(&op, &a);
    if (err < 0)
        return err;
    far_rdwc_done(t, op.rdwc_mark);
    count_get(op.st, a.slot >= 0);
    chime_finish_op(&op);
    return a.slot >= 0 ? return_value(&op, &a, out) : FAR_ERR_NOT_FOUND;
}


/* Multi-get. If the cache leads to the leaf of a key, the neighbourhood of the key is READ in the first batch, and its
 * pair block in a second one. Keys that these batches do not answer are left to single gets (FAR_GET_ALONE). Where RDWC
 * (read delegation and write combining) merges equal READs, all keys are left to single gets, because single gets can
 * be merged with gets of other tasks and can use the hotspot buffer. */

typedef struct batched_get {
    chime_op op;
    chime_node n;
    int slot;
    chime_block block;
    bool under_way;
} batched_get;


static int read_neighbourhoods(far_task *t, batched_get *all, size_t count) {
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        batched_get *g = &all[i];
        if (!(g->under_way = chime_find_cached_leaf(&g->op, &g->n.ptr)))
            continue;
        if (!(g->n.w = chime_alloc_image(&g->op))) {
            far_discard_batch(t);
            return FAR_ERR_NO_MEMORY;
        }
        batch_leaf_reads(&g->op, &g->n, NO_PROOF);
        any = true;
    }
    return any ? far_wait(t) : 0;
}


/* Finds the slots that may contain the keys, and READs their pair blocks in one batch. */
static int pick_candidates(far_task *t, batched_get *all, size_t count) {
    int err;
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        batched_get *g = &all[i];
        const chime_state *st = g->op.st;
        g->slot = -1;
        if (!g->under_way || (st->lines_can_tear && !chime_read_is_stable(&g->n)))
            continue;
        for (unsigned k = 0; k < st->hop && g->slot < 0 && (st->wrap || g->op.home_slot + k < st->span); k++) {
            unsigned at = chime_slot_after(st, g->op.home_slot, k);
            const uint64_t *words = chime_slot(st, g->n.w, at);
            if (chime_slot_is_occupied(st, g->n.w, at) && words[0] == g->op.key.first &&
                chime_line_is_current(st, g->n.w, chime_line(st, at), chime_ptr_tag(g->n.ptr)) &&
                (st->inline_items ||
                 (chime_value_fingerprint(words[1]) == (g->op.key.hash & 1023) && chime_value_distance(words[1]) == k)))
                g->slot = (int)at;
        }
        if (g->slot >= 0 && !st->inline_items) {
            if ((err = chime_batch_read_block(&g->op, chime_slot(st, g->n.w, (unsigned)g->slot)[1], &g->block)) < 0)
                return err;
            any = true;
        }
    }
    return any ? far_wait(t) : 0;
}


int chime_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                   int results[]) {
    chime_state *st = chime_state_of(index);
    batched_get *all = far_rdwc_saves_reads(t) ? NULL : far_scratch(t, count * sizeof(*all));
    for (size_t i = 0; i < count; i++)
        results[i] = FAR_GET_ALONE;
    if (!all)
        return 0;
    for (size_t i = 0; i < count; i++) {
        memset(&all[i], 0, sizeof(all[i]));
        chime_begin_op(&all[i].op, t, index, keys[i]);
    }
    int err = read_neighbourhoods(t, all, count);
    if (err < 0 || (err = pick_candidates(t, all, count)) < 0)
        return err;
    for (size_t i = 0; i < count; i++) {
        batched_get *g = &all[i];
        if (g->slot < 0)
            continue;
        answer a = {g->slot, g->n.ptr, chime_slot(st, g->n.w, (unsigned)g->slot) + 1, g->block};
        if (!st->inline_items) {
            if ((err = chime_parse_block(&g->op, *a.value, &a.block)) < 0)
                return err;
            if (far_bytes_compare(a.block.key, keys[i]) != 0)
                continue;
        }
        far_count_cache(t, true);
        count_get(st, true);
        results[i] = return_value(&g->op, &a, outs[i]);
    }
    return 0;
}
