/* get: one READ of the neighbourhood. A key that is found needs no other proof: a line that is valid, of the right
 * incarnation and holds the key holds its current value at that instant. That it is absent is decided by a second READ
 * with the node's fences, between two looks at S: at most one change can have been seen in part then, and the hop
 * bitmap shows that one. With units of 8 bytes every answer needs S unchanged and not busy. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch.h"

typedef struct answer {
    int slot; /* -1: the key is absent */
    chime_ptr leaf;
    const uint64_t *value; /* as the slot has it */
    chime_block block;
} answer;


/* Many keys that are not there: the proof goes into the first batch. */
static bool brackets(chime_state *st) {
    if (st->miss != CHIME_MISS_ADAPTIVE)
        return st->miss != CHIME_MISS_CONFIRM;
    return atomic_load_explicit(&st->misses, memory_order_relaxed) >
           atomic_load_explicit(&st->gets, memory_order_relaxed) / 8 + 1;
}


static void count_get(chime_state *st, bool found) {
    uint64_t gets = atomic_load_explicit(&st->gets, memory_order_relaxed),
             misses = atomic_load_explicit(&st->misses, memory_order_relaxed);
    if (gets >= 1024) { /* the past fades */
        gets /= 2;
        misses /= 2;
        atomic_store_explicit(&st->misses, misses, memory_order_relaxed);
    }
    atomic_store_explicit(&st->gets, gets + 1, memory_order_relaxed);
    if (!found)
        atomic_store_explicit(&st->misses, misses + 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&st->counts.gets, 1, memory_order_relaxed);
}


typedef enum { NO_PROOF, BY_TIME, BY_S } proof; /* that a key which is not seen is not there */


static proof first_proof(chime_state *st) {
    if (!brackets(st))
        return NO_PROOF;
    return st->miss == CHIME_MISS_TIME || st->miss == CHIME_MISS_UNSAFE ? BY_TIME : BY_S;
}


/* Two changes of a node are at least a round trip apart: the second one's lock, or the word that hands it over, is
 * waited for before the first of its WRITEs is posted. What was READ in less than that, beyond the round trip that any
 * READ takes, has seen one of them at most, as S would tell. Half of it is left for the cost of posting. */
static bool was_short(chime_op *op, uint64_t start) {
    uint64_t rtt = far_task_capabilities(op->t)->min_rtt;
    return op->st->miss == CHIME_MISS_UNSAFE || far_now(op->t) - start < rtt + rtt / 2;
}


static void put_reads(chime_op *op, chime_node *n, proof by) {
    const chime_state *st = op->st;
    bool bracketed = by == BY_S || st->words;
    if (bracketed)
        chime_put_read_s(op, n, 0);
    if (st->hopscotch && (by || !st->replication))
        chime_put_read_tail(op, n);
    if (st->hopscotch)
        chime_put_read_slots(op, n, op->home, st->hop);
    else
        chime_put_read_whole(op, n);
    if (bracketed)
        chime_put_read_s(op, n, 1);
}


/* The key was not seen. quiet: at most one change was. 0: it is absent; CHIME_RIGHT, _STALE, _AGAIN. */
static int judge(chime_op *op, chime_node *n, bool quiet) {
    const chime_state *st = op->st;
    const uint64_t *tail = chime_tail(st, n->w);
    unsigned tag = chime_ptr_tag(n->ptr);
    if (chime_h0_tag(tail[CHIME_TAIL_H0]) != tag || !chime_h0_valid(tail[CHIME_TAIL_H0])) {
        op->aux = chime_h0_tag(tail[CHIME_TAIL_H0]) == tag ? tail[CHIME_TAIL_AUX] : 0;
        return CHIME_STALE;
    }
    if (!quiet)
        return CHIME_AGAIN;
    int err = chime_check_range(op, tail);
    if (err != 0)
        return err;
    for (unsigned i = 0; i < st->hop && (st->wrap || op->home + i < st->span); i++) {
        unsigned line = chime_line(st, chime_step(st, op->home, i));
        if (!chime_line_is(st, n->w, line, tag) ||
            chime_h1_shape(*chime_h1(st, n->w, line)) != chime_h1_shape(tail[CHIME_TAIL_H1]))
            return CHIME_AGAIN;
    }
    return chime_map_agrees(st, n->w, op->home) ? 0 : CHIME_AGAIN;
}


/* 0: answered. CHIME_RIGHT: *leaf is the sibling; CHIME_STALE. */
static int look(chime_op *op, chime_ptr *leaf, answer *a) {
    chime_node n = {.ptr = *leaf};
    unsigned at_rest = 0;
    proof by = first_proof(op->st);
    if (!chime_ptr_is_sound(op, *leaf))
        return CHIME_STALE;
    if (!(n.w = chime_new_image(op)))
        return FAR_ERR_NO_MEMORY;
    for (unsigned attempt = 0;; attempt++) {
        uint64_t start = far_now(op->t);
        put_reads(op, &n, by);
        int err = chime_wait(op);
        if (err < 0)
            return err;
        bool quiet = by == BY_TIME && !op->st->words ? was_short(op, start) : chime_is_quiet(&n);
        a->slot = -1;
        if ((!op->st->words || chime_is_quiet(&n)) && (err = chime_find_item(op, &n, &a->slot, &a->block)) < 0)
            return err;
        if (a->slot >= 0) {
            a->value = chime_slot(op->st, n.w, (unsigned)a->slot) + 1;
            a->leaf = n.ptr;
            return 0;
        }
        if (by == NO_PROOF || (by == BY_TIME && !quiet)) {
            by = BY_S;
            far_point(op->t, "chime:confirm");
            continue;
        }
        if ((err = judge(op, &n, quiet)) == CHIME_RIGHT)
            *leaf = chime_h1_sibling(chime_tail(op->st, n.w)[CHIME_TAIL_H1]);
        if (err != CHIME_AGAIN)
            return err;
        by = op->st->miss == CHIME_MISS_UNSAFE ? by : BY_S;
        if ((err = chime_wait_for_change(op, &n, attempt, &at_rest)) < 0)
            return err;
    }
}


/* Through the tree. */
static int find(chime_op *op, answer *a) {
    for (;;) {
        far_scratch_mark here = far_scratch_here(op->t);
        chime_ptr leaf, from;
        unsigned moves = 0;
        op->aux = 0;
        int err = chime_descend(op, 0, &leaf);
        for (from = leaf; err == 0 && (err = look(op, &leaf, a)) == CHIME_RIGHT &&
                          (err = chime_go_right(op, 0, from, leaf, &moves)) == CHIME_RIGHT;
             err = 0)
            from = leaf;
        if (err == CHIME_STALE && op->aux && chime_ptr_is_sound(op, op->aux)) { /* a neighbour took the leaf in */
            leaf = op->aux;
            err = look(op, &leaf, a);
        }
        if (err <= 0)
            return err;
        if (err != CHIME_AGAIN && (err = chime_not_there(op, from, 0)) < 0)
            return err;
        far_scratch_back(op->t, here);
        if (op->restarts % op->st->patience == 0 && (err = chime_renew_pin(op)) < 0)
            return err;
    }
}


/* Straight to the slot where the key was last found. 1: it is there. */
static int speculate(chime_op *op, answer *a) {
    chime_state *st = op->st;
    chime_ptr where = chime_hot_find(st->hot, op->key.hash, far_epoch(op->t));
    chime_node n = {.ptr = chime_ptr_plain(where)};
    unsigned distance = chime_ptr_low(where), slot = chime_step(st, op->home, distance < st->hop ? distance : 0);
    if (!where || distance >= st->hop || !chime_ptr_is_sound(op, n.ptr))
        return 0;
    if (!(n.w = chime_new_image(op)))
        return FAR_ERR_NO_MEMORY;
    atomic_fetch_add_explicit(&st->counts.speculated, 1, memory_order_relaxed);
    if (st->words)
        chime_put_read_s(op, &n, 0);
    chime_put_read_slots(op, &n, slot, 1);
    if (st->words)
        chime_put_read_s(op, &n, 1);
    int err = chime_wait(op);
    if (err < 0)
        return err;
    const uint64_t *words = chime_slot(st, n.w, slot);
    bool there = (!st->words || chime_is_quiet(&n)) &&
                 chime_line_is(st, n.w, chime_line(st, slot), chime_ptr_tag(n.ptr)) &&
                 chime_is_occupied(st, n.w, slot) && words[0] == op->key.first;
    if (there && !st->fixed) {
        there = chime_value_distance(words[1]) == distance && chime_value_print(words[1]) == (op->key.hash & 1023);
        if (there && (err = chime_read_block(op, words[1], &a->block)) < 0)
            return err;
        there = there && far_bytes_equal(a->block.key, op->key.bytes);
    }
    if (!there) {
        chime_hot_drop(st->hot, op->key.hash);
        return 0;
    }
    atomic_fetch_add_explicit(&st->counts.speculated_well, 1, memory_order_relaxed);
    a->slot = (int)slot;
    a->leaf = n.ptr;
    a->value = words + 1;
    return 1;
}


static int give(chime_op *op, const answer *a, far_out *out) {
    chime_state *st = op->st;
    if (st->hot)
        chime_hot_put(st->hot, op->t, op->key.hash, a->leaf, chime_distance(st, op->home, (unsigned)a->slot),
                      far_epoch(op->t));
    return st->fixed ? far_out_give(out, a->value, st->value_bytes)
                     : far_out_give(out, a->block.value.data, a->block.value.length);
}


int chime_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    chime_op op;
    answer a;
    chime_begin(&op, t, index, key);
    int err = op.st->hot ? speculate(&op, &a) : 0;
    if (err == 0)
        err = find(&op, &a);
    if (err < 0)
        return err;
    far_rdwc_done(t, op.mark);
    count_get(op.st, a.slot >= 0);
    chime_finish(&op);
    return a.slot >= 0 ? give(&op, &a, out) : FAR_ERR_NOT_FOUND;
}


/* Several gets: the neighbourhoods of all whose way down is cached in one batch, then their blocks. Where RDWC spares READs
 * each is done by itself: it is merged with those of others, and reads one slot where it is told which. */

typedef struct together {
    chime_op op;
    chime_node n;
    int slot;
    chime_block block;
    bool under_way;
} together;


static int look_together(far_task *t, together *all, size_t count) {
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        together *g = &all[i];
        if (!(g->under_way = chime_way_is_cached(&g->op, &g->n.ptr)))
            continue;
        if (!(g->n.w = chime_new_image(&g->op))) {
            far_forget(t);
            return FAR_ERR_NO_MEMORY;
        }
        put_reads(&g->op, &g->n, NO_PROOF);
        any = true;
    }
    return any ? far_wait(t) : 0;
}


/* The slots that may be it; blocks are READ together. */
static int pick_together(far_task *t, together *all, size_t count) {
    int err;
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        together *g = &all[i];
        const chime_state *st = g->op.st;
        g->slot = -1;
        if (!g->under_way || (st->words && !chime_is_quiet(&g->n)))
            continue;
        for (unsigned k = 0; k < st->hop && g->slot < 0 && (st->wrap || g->op.home + k < st->span); k++) {
            unsigned at = chime_step(st, g->op.home, k);
            const uint64_t *words = chime_slot(st, g->n.w, at);
            if (chime_is_occupied(st, g->n.w, at) && words[0] == g->op.key.first &&
                chime_line_is(st, g->n.w, chime_line(st, at), chime_ptr_tag(g->n.ptr)) &&
                (st->fixed ||
                 (chime_value_print(words[1]) == (g->op.key.hash & 1023) && chime_value_distance(words[1]) == k)))
                g->slot = (int)at;
        }
        if (g->slot >= 0 && !st->fixed) {
            if ((err = chime_put_read_block(&g->op, chime_slot(st, g->n.w, (unsigned)g->slot)[1], &g->block)) < 0)
                return err;
            any = true;
        }
    }
    return any ? far_wait(t) : 0;
}


int chime_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                   int results[]) {
    chime_state *st = chime_state_of(index);
    together *all = far_rdwc_spares_reads(t) ? NULL : far_scratch(t, count * sizeof(*all));
    for (size_t i = 0; i < count; i++)
        results[i] = FAR_GET_ALONE;
    if (!all)
        return 0;
    for (size_t i = 0; i < count; i++) {
        memset(&all[i], 0, sizeof(all[i]));
        chime_begin(&all[i].op, t, index, keys[i]);
    }
    int err = look_together(t, all, count);
    if (err < 0 || (err = pick_together(t, all, count)) < 0)
        return err;
    for (size_t i = 0; i < count; i++) {
        together *g = &all[i];
        if (g->slot < 0)
            continue;
        answer a = {g->slot, g->n.ptr, chime_slot(st, g->n.w, (unsigned)g->slot) + 1, g->block};
        if (!st->fixed) {
            if ((err = chime_take_block(&g->op, *a.value, &a.block)) < 0)
                return err;
            if (far_bytes_compare(a.block.key, keys[i]) != 0)
                continue;
        }
        far_count_cache(t, true);
        count_get(st, true);
        results[i] = give(&g->op, &a, outs[i]);
    }
    return 0;
}
