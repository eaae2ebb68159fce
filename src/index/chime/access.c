/* CHIME: the verbs of an operation on one node. This file reads nodes, takes and frees their locks, and writes changes
 * in the order that readers and repair after a client failure depend on. All operations use it; its functions are
 * declared in chime.h. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch/epoch.h"

#include <assert.h>


int chime_begin_op(chime_op *op, far_task *t, far_index *index, far_bytes key) {
    memset(op, 0, sizeof(*op));
    op->t = t;
    op->index = index;
    op->st = chime_state_of(index);
    op->right_moves_allowed = CHIME_RIGHT_MOVES_FIRST;
    chime_key_make(op->st, key, &op->key);
    op->home_slot = chime_home_slot(op->st, op->key.hash);
    return 0;
}


int chime_wait(chime_op *op) {
    assert(op->write_words_used <= CHIME_OP_WORDS);
    op->rdwc_mark = far_rdwc_mark(op->t);
    op->write_words_used = 0;
    return far_wait(op->t);
}


void chime_free_new_block(chime_op *op) {
    if (op->new_block)
        far_free(op->t, op->index, CHIME_TYPE_BLOCK, op->new_block, op->new_block_bytes);
    op->new_block = 0;
}


void chime_free_new_node(chime_op *op) {
    if (op->new_node.addr)
        far_free(op->t, op->index, CHIME_TYPE_NODE, op->new_node.addr, op->st->node_bytes);
    op->new_node.addr = 0;
}


/* While an operation waits for a long time, its old pin would keep all clients from reusing memory. The function first
 * waits until the unlock that chime_unlock_unchanged may have posted is complete, because other clients take the new
 * pin as proof that all verbs posted under the old pin have completed. */
int chime_renew_pin(chime_op *op) {
    chime_free_new_block(op);
    chime_free_new_node(op);
    far_wait_for_posted(op->t);
    op->pin_renewals++;
    far_pin_drop(op->t);
    return far_pin_take(op->t);
}


int chime_report_corrupt(const far_index *index, chime_ptr p, const char *what) {
    return far_fail(FAR_ERR_CORRUPT, "index '%s': node at %#llx: %s", index->name,
                    (unsigned long long)chime_ptr_addr(p), what);
}


uint64_t *chime_alloc_image(chime_op *op) {
    uint64_t *w = far_scratch(op->t, op->st->node_bytes);
    if (!w)
        far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    return w;
}


bool chime_ptr_is_in_pool(const chime_op *op, chime_ptr p) {
    return chime_ptr_addr(p) && far_task_reaches(op->t, chime_ptr_addr(p), op->st->node_bytes);
}


/* Reading nodes. A pointer may be outdated when it is used, for example because it was cached. Every caller must
 * therefore check the incarnation tag and the valid bit of the lines after the READ. The flag FAR_VERB_UNPROVEN marks
 * such READs for the memory checker of the simulator. */

static void batch_read_bytes(chime_op *op, chime_node *n, unsigned from, unsigned end) {
    far_read_marked(op->t, chime_ptr_addr(n->ptr) + from, (char *)n->w + from, end - from, FAR_VERB_UNPROVEN);
}


void chime_batch_read_slots(chime_op *op, chime_node *n, unsigned first, unsigned count) {
    const chime_state *st = op->st;
    unsigned span = st->span, last = first + count - 1;
    assert(first < span && count > 0 && count <= span);
    if (last < span) {
        batch_read_bytes(op, n, chime_read_begin(st->per_line, first), chime_read_end(st->per_line, last));
        return;
    }
    if (!st->wrap) {
        batch_read_bytes(op, n, chime_read_begin(st->per_line, first), chime_read_end(st->per_line, span - 1));
        return;
    }
    /* The wanted slots continue at slot 0 after the last slot, and both parts touch the same line or overlap. So one
     * READ of all lines replaces two READs. */
    if (chime_line(st, last - span) >= chime_line(st, first)) {
        batch_read_bytes(op, n, 0, chime_tail_offset(st->per_line, span));
        return;
    }
    batch_read_bytes(op, n, chime_read_begin(st->per_line, first), chime_read_end(st->per_line, span - 1));
    batch_read_bytes(op, n, 0, chime_read_end(st->per_line, last - span));
}


void chime_batch_read_tail(chime_op *op, chime_node *n) {
    batch_read_bytes(op, n, op->st->lines * CHIME_LINE, op->st->node_bytes);
}


void chime_batch_read_node(chime_op *op, chime_node *n) {
    batch_read_bytes(op, n, 0, op->st->node_bytes);
}


void chime_batch_read_s(chime_op *op, chime_node *n, unsigned which) {
    far_read_marked(op->t, chime_tail_addr(op->st, n->ptr, CHIME_TAIL_S), &n->s[which], 8, FAR_VERB_UNPROVEN);
}


void chime_batch_read_node_and_s(chime_op *op, chime_node *n) {
    chime_batch_read_s(op, n, 0);
    chime_batch_read_node(op, n);
    chime_batch_read_s(op, n, 1);
}


bool chime_read_is_stable(const chime_node *n) {
    return n->s[0] == n->s[1] && !chime_nonce_busy(n->s[0]);
}


/* Returns whether the pointer of the node is outdated. There are two cases: the memory holds another incarnation, or
 * the node was merged into its left neighbour and is invalid. In the second case the function sets op->absorber to that
 * neighbour. */
static bool node_is_gone(chime_op *op, chime_node *n) {
    const chime_state *st = op->st;
    unsigned tag = chime_ptr_tag(n->ptr);
    const uint64_t *tail = chime_tail(st, n->w);
    bool gone = !chime_h0_valid(tail[CHIME_TAIL_H0]) || chime_h0_tag(tail[CHIME_TAIL_H0]) != tag;
    for (unsigned line = 0; line < st->lines && !gone; line++)
        gone = !chime_line_is_current(st, n->w, line, tag);
    if (gone && chime_h0_tag(tail[CHIME_TAIL_H0]) == tag)
        op->absorber = tail[CHIME_TAIL_ABSORBER];
    return gone;
}


/* Judges a node by S, its lines and its tail, without the hop bitmaps. Returns 0, CHIME_STALE or CHIME_AGAIN. */
static int classify_lines(chime_op *op, chime_node *n) {
    uint64_t h0 = chime_tail(op->st, n->w)[CHIME_TAIL_H0];
    /* A damaged pivot or child pointer only leads to a wrong node, whose fences show that; so it affects few keys. */
    if (op->index->lenient && chime_h0_level(h0) > 0 && chime_h0_valid(h0) && chime_h0_tag(h0) == chime_ptr_tag(n->ptr))
        return 0;
    if (!chime_node_is_consistent(op->st, n->w, chime_ptr_tag(n->ptr)))
        return node_is_gone(op, n) ? CHIME_STALE : CHIME_AGAIN;
    return chime_read_is_stable(n) ? 0 : CHIME_AGAIN;
}


int chime_classify_node(chime_op *op, chime_node *n) {
    int err = classify_lines(op, n);
    bool leaf = err == 0 && chime_h0_level(chime_tail(op->st, n->w)[CHIME_TAIL_H0]) == 0;
    return leaf && !chime_hop_bitmaps_agree(op->st, n->w) ? CHIME_AGAIN : err;
}


/* Where lines can tear, a client makes S (the structure nonce in the tail) busy before it changes a slot or a header.
 * So two equal values of S that are not busy prove that no change overlapped with the READ. Where lines do not tear, S
 * is never busy, and one change may overlap; the hop bitmaps show whether it has moved an item. */
int chime_classify_scanned_leaf(chime_op *op, chime_node *n) {
    return op->st->lines_can_tear ? classify_lines(op, n) : chime_classify_node(op, n);
}


#define CHECK_HOLDER_EVERY 4 /* number of attempts between two checks whether the lock holder has failed */
/* after this many READs that find an inconsistent node with a free lock, the node is corrupt */
#define INCONSISTENT_READS_MAX 64


/* A client that changes a node takes the node's lock first, then makes S (the structure nonce in the tail) busy, and
 * clears busy before it frees the lock. If a READ shows a free lock between two equal values of S, then no client is
 * changing the node, and an inconsistency is permanent. */
int chime_wait_for_change_end(chime_op *op, chime_node *n, unsigned attempt, unsigned *at_rest) {
    uint64_t lock = chime_tail(op->st, n->w)[CHIME_TAIL_L];
    int err = 0;
    far_count_retry(op->t);
    *at_rest = n->s[0] == n->s[1] && !chime_lock_is_held(lock) ? *at_rest + 1 : 0;
    if (*at_rest == INCONSISTENT_READS_MAX)
        return chime_report_corrupt(op->index, n->ptr, "its lines contradict each other although its lock is free");
    if (attempt % CHECK_HOLDER_EVERY == CHECK_HOLDER_EVERY - 1 &&
        (err = chime_repair_if_holder_failed(op, n->ptr, lock)) < 0)
        return err;
    far_back_off(op->t, attempt);
    return attempt % op->st->lock_attempts == op->st->lock_attempts - 1 ? chime_renew_pin(op) : 0;
}


int chime_read_node(chime_op *op, chime_ptr p, chime_node *n) {
    unsigned at_rest = 0;
    n->ptr = p;
    if (!chime_ptr_is_in_pool(op, p))
        return CHIME_STALE;
    if (!n->w && !(n->w = chime_alloc_image(op)))
        return FAR_ERR_NO_MEMORY;
    for (unsigned attempt = 0;; attempt++) {
        chime_batch_read_node_and_s(op, n);
        int err = chime_wait(op);
        if (err < 0 || (err = chime_classify_node(op, n)) != CHIME_AGAIN)
            return err;
        if ((err = chime_wait_for_change_end(op, n, attempt, &at_rest)) < 0)
            return err;
    }
}


/* Taking and freeing the lock of a node. */

uint64_t chime_next_nonce(chime_op *op) {
    return atomic_fetch_add_explicit(&op->st->nonce, 1, memory_order_relaxed);
}


void chime_batch_lock(chime_op *op, chime_ptr p, unsigned behind, chime_lock *lock) {
    far_addr at = chime_tail_addr(op->st, p, CHIME_TAIL_L);
    lock->new_word = chime_lock_make(far_owner_of_task(op->t), chime_next_nonce(op), behind);
    assert(chime_lock_is_held(lock->new_word));
    if (op->st->masked_cas) {
        far_masked_cas(op->t, at, 0, 1, lock->new_word, ~0ull, &lock->old_word);
        far_mark(op->t, FAR_VERB_UNPROVEN);
        return;
    }
    far_cas(op->t, at, 0, lock->new_word, &lock->old_word);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    /* Without masked CAS, the occupancy map is stored in word V of the tail. V is READ by a CAS whose comparison can
     * never succeed. A plain READ could take effect before the CAS that takes the lock, while atomics keep their order.
     * A failed CAS writes nothing; an FAA of 0 might write back an older value of V. */
    far_cas(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_V), ~0ull, ~0ull, &lock->v_word);
    far_mark(op->t, FAR_VERB_UNPROVEN);
}


int chime_take_lock_result(chime_op *op, chime_lock *lock) {
    if (lock->old_word == CHIME_LOCK_DEAD)
        return CHIME_STALE;
    if (op->st->masked_cas ? chime_lock_is_held(lock->old_word) : lock->old_word != 0)
        return CHIME_AGAIN;
    lock->map = chime_map_from_word(op->st->masked_cas ? lock->old_word : lock->v_word);
    return 0;
}


uint64_t chime_new_s(chime_op *op, bool busy) {
    return chime_nonce_make(far_task_client(op->t), far_task_generation(op->t), chime_next_nonce(op), busy);
}


/* The memory may belong to another incarnation by now. The CAS frees the lock only if the memory still contains the
 * lock word that this task wrote. */
int chime_unlock_unchanged(chime_op *op, chime_ptr p, const chime_lock *lock) {
    far_cas(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_L), lock->new_word, lock->old_word, NULL);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return far_post(op->t);
}


/* Returns memory for words of a WRITE, which must stay valid until the batch completes. The first words come from the
 * operation itself, so that the end of a change cannot fail for lack of memory. */
static uint64_t *alloc_write_words(chime_op *op, unsigned count) {
    if (op->write_words_used + count < CHIME_OP_WORDS) {
        op->write_words_used += count;
        return op->write_words + op->write_words_used - count;
    }
    uint64_t *words = far_scratch(op->t, count * 8ull);
    if (!words)
        far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    return words;
}


int chime_batch_unlock(chime_op *op, chime_ptr p, uint64_t map) {
    uint64_t *words = alloc_write_words(op, 3);
    if (!words)
        return FAR_ERR_NO_MEMORY;
    words[0] = chime_map_to_word(map);
    words[1] = chime_new_s(op, false);
    words[2] = op->next_owner ? op->next_owner : op->st->masked_cas ? chime_map_to_word(map) : 0;
    op->next_owner_map = map;
    if (op->st->masked_cas)
        far_write(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_S), words + 1, 16);
    else
        far_write(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_V), words, 24);
    return 0;
}


int chime_batch_set_busy(chime_op *op, chime_ptr p) {
    uint64_t *word = op->st->lines_can_tear ? alloc_write_words(op, 1) : NULL;
    if (!op->st->lines_can_tear)
        return 0;
    if (!word)
        return FAR_ERR_NO_MEMORY;
    *word = chime_new_s(op, true);
    far_write(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_S), word, 8);
    return 0;
}


/* Writing changes. The order of the WRITEs matters because the client can fail after each WRITE, and readers can see
 * any state in between. */

static void batch_write_words(chime_op *op, chime_node *n, unsigned first, unsigned count) {
    far_write(op->t, chime_ptr_addr(n->ptr) + 8ull * first, n->w + first, 8ull * count);
}


void chime_batch_changed_lines(chime_op *op, chime_node *n, const uint64_t *before, unsigned first) {
    const chime_state *st = op->st;
    for (unsigned i = 0; i < st->lines; i++) {
        unsigned nth = st->hop_writes_ascending ? i : st->lines - 1 - i, line = (first + nth) % st->lines, from = 8,
                 end = 0;
        for (unsigned k = 0; k < 8; k++)
            if (n->w[line * 8 + k] != before[line * 8 + k]) {
                from = k < from ? k : from;
                end = k + 1;
            }
        if (end)
            batch_write_words(op, n, line * 8 + from, end - from);
    }
}


/* A slot is overwritten only while its occupied bit is clear. So if the client fails between two of the WRITEs, no slot
 * contains half of one item and half of another, and every item is in at least one slot. */
int chime_batch_moves(chime_op *op, chime_node *n, const uint64_t *before, const chime_move *moves, unsigned count,
                      unsigned at) {
    const chime_state *st = op->st;
    uint64_t h1[CHIME_SPAN_MAX], *words = alloc_write_words(op, (count + 1) * 2);
    if (!words)
        return FAR_ERR_NO_MEMORY;
    assert(at < st->span && count <= st->span);
    for (unsigned line = 0; line < st->lines; line++)
        h1[line] = before[chime_h1_offset(st->per_line, line) / 8];
    for (unsigned i = 0; i <= count; i++) {
        unsigned to = i < count ? moves[i].to : at, line = chime_line(st, to),
                 bit = 1u << chime_slot_in_line(st->per_line, to);
        far_addr header = chime_ptr_addr(n->ptr) + chime_h1_offset(st->per_line, line);
        if (chime_h1_occupied(h1[line]) & bit) {
            h1[line] = chime_h1_with_occupied(h1[line], chime_h1_occupied(h1[line]) & ~bit);
            words[2 * i] = h1[line];
            far_write(op->t, header, &words[2 * i], 8);
        }
        batch_write_words(op, n, chime_slot_offset(st->per_line, to) / 8, 2);
        h1[line] = chime_h1_with_occupied(h1[line], chime_h1_occupied(h1[line]) | bit);
        words[2 * i + 1] = h1[line];
        far_write(op->t, header, &words[2 * i + 1], 8);
    }
    for (unsigned line = 0; line < st->lines; line++)
        if (*chime_h0(st, n->w, line) != before[chime_h0_offset(st->per_line, line) / 8])
            batch_write_words(op, n, chime_h0_offset(st->per_line, line) / 8, 1);
    return 0;
}


int chime_batch_image(chime_op *op, chime_node *n, const uint64_t *before) {
    const chime_state *st = op->st;
    if (!st->lines_can_tear) {
        batch_write_words(op, n, 0, st->lines * 8 + CHIME_TAIL_S);
        return 0;
    }
    for (unsigned line = 0; line < st->lines; line++) {
        for (unsigned slot = line * st->per_line; slot < (line + 1) * st->per_line; slot++)
            if (chime_slot_is_occupied(st, n->w, slot) &&
                memcmp(chime_slot(st, n->w, slot), before + chime_slot_offset(st->per_line, slot) / 8, 16))
                batch_write_words(op, n, chime_slot_offset(st->per_line, slot) / 8, 2);
        if (memcmp(chime_h0(st, n->w, line), before + chime_h0_offset(st->per_line, line) / 8, 16))
            batch_write_words(op, n, chime_h0_offset(st->per_line, line) / 8, 2);
    }
    batch_write_words(op, n, st->lines * 8, CHIME_TAIL_S);
    return 0;
}
