/* Verbs on nodes: reading parts of them, locking them, and the WRITEs of a change in the order that crashes and readers
 * can bear. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch.h"

#include <assert.h>


int chime_begin(chime_op *op, far_task *t, far_index *index, far_bytes key) {
    memset(op, 0, sizeof(*op));
    op->t = t;
    op->index = index;
    op->st = chime_state_of(index);
    op->moves_allowed = CHIME_MOVES_FIRST;
    chime_key_make(op->st, key, &op->key);
    op->home = chime_home(op->st, op->key.hash);
    return 0;
}


int chime_wait(chime_op *op) {
    assert(op->words_used <= CHIME_OP_WORDS);
    op->mark = far_rdwc_mark(op->t);
    op->words_used = 0;
    return far_wait(op->t);
}


void chime_drop_block(chime_op *op) {
    if (op->block)
        far_free(op->t, op->index, CHIME_TYPE_BLOCK, op->block, op->block_bytes);
    op->block = 0;
}


void chime_drop_spare(chime_op *op) {
    if (op->spare.addr)
        far_free(op->t, op->index, CHIME_TYPE_NODE, op->spare.addr, op->st->node_bytes);
    op->spare.addr = 0;
}


/* A long wait for others holds nothing back. An unlock that is still under way counts as held under the old pin: others
 * go by that. */
int chime_renew_pin(chime_op *op) {
    chime_drop_block(op);
    chime_drop_spare(op);
    far_wait_for_posted(op->t);
    op->pins++;
    far_pin_drop(op->t);
    return far_pin_take(op->t);
}


int chime_broken(const far_index *index, chime_ptr p, const char *what) {
    return far_fail(FAR_ERR_CORRUPT, "index '%s': node at %#llx: %s", index->name,
                    (unsigned long long)chime_ptr_addr(p), what);
}


uint64_t *chime_new_image(chime_op *op) {
    uint64_t *w = far_scratch(op->t, op->st->node_bytes);
    if (!w)
        far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    return w;
}


bool chime_ptr_is_sound(const chime_op *op, chime_ptr p) {
    return chime_ptr_addr(p) && far_task_reaches(op->t, chime_ptr_addr(p), op->st->node_bytes);
}


/* Reading. Where a pointer came from may be long ago: whoever READs looks at tag and valid. */

static void put_read(chime_op *op, chime_node *n, unsigned from, unsigned end) {
    far_read_marked(op->t, chime_ptr_addr(n->ptr) + from, (char *)n->w + from, end - from, FAR_VERB_UNPROVEN);
}


void chime_put_read_slots(chime_op *op, chime_node *n, unsigned first, unsigned count) {
    const chime_state *st = op->st;
    unsigned span = st->span, last = first + count - 1;
    assert(first < span && count > 0 && count <= span);
    if (last < span) {
        put_read(op, n, chime_read_from(st->per_line, first), chime_read_end(st->per_line, last));
        return;
    }
    if (!st->wrap) {
        put_read(op, n, chime_read_from(st->per_line, first), chime_read_end(st->per_line, span - 1));
        return;
    }
    if (chime_line(st, last - span) >= chime_line(st, first)) { /* all the way round */
        put_read(op, n, 0, chime_tail_at(st->per_line, span));
        return;
    }
    put_read(op, n, chime_read_from(st->per_line, first), chime_read_end(st->per_line, span - 1));
    put_read(op, n, 0, chime_read_end(st->per_line, last - span));
}


void chime_put_read_tail(chime_op *op, chime_node *n) {
    put_read(op, n, op->st->lines * CHIME_LINE, op->st->node_bytes);
}


void chime_put_read_whole(chime_op *op, chime_node *n) {
    put_read(op, n, 0, op->st->node_bytes);
}


void chime_put_read_s(chime_op *op, chime_node *n, unsigned which) {
    far_read_marked(op->t, chime_tail_addr(op->st, n->ptr, CHIME_TAIL_S), &n->s[which], 8, FAR_VERB_UNPROVEN);
}


void chime_put_read_all(chime_op *op, chime_node *n) {
    chime_put_read_s(op, n, 0);
    chime_put_read_whole(op, n);
    chime_put_read_s(op, n, 1);
}


bool chime_is_quiet(const chime_node *n) {
    return n->s[0] == n->s[1] && !chime_nonce_busy(n->s[0]);
}


/* Another incarnation, or none any more: no line of it can be trusted from now on. */
static bool is_gone(chime_op *op, chime_node *n) {
    const chime_state *st = op->st;
    unsigned tag = chime_ptr_tag(n->ptr);
    const uint64_t *tail = chime_tail(st, n->w);
    bool gone = !chime_h0_valid(tail[CHIME_TAIL_H0]) || chime_h0_tag(tail[CHIME_TAIL_H0]) != tag;
    for (unsigned line = 0; line < st->lines && !gone; line++)
        gone = !chime_line_is(st, n->w, line, tag);
    if (gone && chime_h0_tag(tail[CHIME_TAIL_H0]) == tag)
        op->aux = tail[CHIME_TAIL_AUX];
    return gone;
}


int chime_node_state(chime_op *op, chime_node *n) {
    if (is_gone(op, n))
        return CHIME_STALE;
    if (!chime_is_quiet(n) || !chime_is_whole(op->st, n->w, chime_ptr_tag(n->ptr)))
        return CHIME_AGAIN;
    bool leaf = chime_h0_level(chime_tail(op->st, n->w)[CHIME_TAIL_H0]) == 0;
    return leaf && !chime_maps_agree(op->st, n->w) ? CHIME_AGAIN : 0;
}


#define ASK_EVERY    4  /* attempts between two looks at who holds a lock */
#define TORN_AT_REST 64 /* times that a node nobody changes may look half changed: then it is damaged */


/* Whoever changes a node holds its lock from before S turns busy until after it is not busy any more: where the lock is
 * free between two looks at the same S, nobody is changing the node. */
int chime_wait_for_change(chime_op *op, chime_node *n, unsigned attempt, unsigned *at_rest) {
    uint64_t lock = chime_tail(op->st, n->w)[CHIME_TAIL_L];
    int err = 0;
    far_count_retry(op->t);
    *at_rest = n->s[0] == n->s[1] && !chime_lock_is_held(lock) ? *at_rest + 1 : 0;
    if (*at_rest == TORN_AT_REST)
        return chime_broken(op->index, n->ptr, "it looks half changed, and nobody changes it");
    if (attempt % ASK_EVERY == ASK_EVERY - 1 && (err = chime_resolve(op, n->ptr, lock)) < 0)
        return err;
    far_back_off(op->t, attempt);
    return attempt % op->st->patience == op->st->patience - 1 ? chime_renew_pin(op) : 0;
}


int chime_read_node(chime_op *op, chime_ptr p, chime_node *n) {
    unsigned at_rest = 0;
    n->ptr = p;
    if (!chime_ptr_is_sound(op, p))
        return CHIME_STALE;
    if (!n->w && !(n->w = chime_new_image(op)))
        return FAR_ERR_NO_MEMORY;
    for (unsigned attempt = 0;; attempt++) {
        chime_put_read_all(op, n);
        int err = chime_wait(op);
        if (err < 0 || (err = chime_node_state(op, n)) != CHIME_AGAIN)
            return err;
        if ((err = chime_wait_for_change(op, n, attempt, &at_rest)) < 0)
            return err;
    }
}


/* Locks. */

uint64_t chime_next_nonce(chime_op *op) {
    return atomic_fetch_add_explicit(&op->st->nonce, 1, memory_order_relaxed);
}


void chime_put_lock(chime_op *op, chime_ptr p, unsigned behind, chime_lock *lock) {
    far_addr at = chime_tail_addr(op->st, p, CHIME_TAIL_L);
    lock->mine = chime_lock_make(far_owner_of_task(op->t), chime_next_nonce(op), behind);
    assert(chime_lock_is_held(lock->mine));
    if (op->st->masked) {
        far_masked_cas(op->t, at, 0, 1, lock->mine, ~0ull, &lock->old);
        far_mark(op->t, FAR_VERB_UNPROVEN);
        return;
    }
    far_cas(op->t, at, 0, lock->mine, &lock->old);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    /* The map is read by a CAS that never matches: atomics keep their order, and one that fails writes nothing. */
    far_cas(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_V), ~0ull, ~0ull, &lock->v);
    far_mark(op->t, FAR_VERB_UNPROVEN);
}


int chime_lock_result(chime_op *op, chime_lock *lock) {
    if (lock->old == CHIME_LOCK_DEAD)
        return CHIME_STALE;
    if (op->st->masked ? chime_lock_is_held(lock->old) : lock->old != 0)
        return CHIME_AGAIN;
    lock->map = chime_word_map(op->st->masked ? lock->old : lock->v);
    return 0;
}


uint64_t chime_fresh_s(chime_op *op, bool busy) {
    return chime_nonce_make(far_task_client(op->t), far_task_generation(op->t), chime_next_nonce(op), busy);
}


/* The node may be another by now: only our own word is taken away. */
int chime_unlock_unchanged(chime_op *op, chime_ptr p, const chime_lock *lock) {
    far_cas(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_L), lock->mine, lock->old, NULL);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return far_post(op->t);
}


/* What finishes a change must not fail for want of memory: a few words are the operation's own. */
static uint64_t *new_words(chime_op *op, unsigned count) {
    if (op->words_used + count < CHIME_OP_WORDS) {
        op->words_used += count;
        return op->words + op->words_used - count;
    }
    uint64_t *words = far_scratch(op->t, count * 8ull);
    if (!words)
        far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    return words;
}


int chime_put_unlock(chime_op *op, chime_ptr p, uint64_t map) {
    uint64_t *words = new_words(op, 3);
    if (!words)
        return FAR_ERR_NO_MEMORY;
    words[0] = chime_map_word(map);
    words[1] = chime_fresh_s(op, false);
    words[2] = op->heir ? op->heir : op->st->masked ? chime_map_word(map) : 0;
    op->heir_map = map;
    if (op->st->masked)
        far_write(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_S), words + 1, 16);
    else
        far_write(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_V), words, 24);
    return 0;
}


int chime_put_busy(chime_op *op, chime_ptr p) {
    uint64_t *word = op->st->words ? new_words(op, 1) : NULL;
    if (!op->st->words)
        return 0;
    if (!word)
        return FAR_ERR_NO_MEMORY;
    *word = chime_fresh_s(op, true);
    far_write(op->t, chime_tail_addr(op->st, p, CHIME_TAIL_S), word, 8);
    return 0;
}


/* Writing. */

static void put_words(chime_op *op, chime_node *n, unsigned first, unsigned count) {
    far_write(op->t, chime_ptr_addr(n->ptr) + 8ull * first, n->w + first, 8ull * count);
}


void chime_put_lines(chime_op *op, chime_node *n, const uint64_t *before, unsigned first) {
    const chime_state *st = op->st;
    for (unsigned i = 0; i < st->lines; i++) {
        unsigned nth = st->rising ? i : st->lines - 1 - i, line = (first + nth) % st->lines, from = 8, end = 0;
        for (unsigned k = 0; k < 8; k++)
            if (n->w[line * 8 + k] != before[line * 8 + k]) {
                from = k < from ? k : from;
                end = k + 1;
            }
        if (end)
            put_words(op, n, line * 8 + from, end - from);
    }
}


/* A slot is changed only while it is not occupied: whoever is cut in between leaves no slot that is half of two items,
 * and every item at least once. */
int chime_put_moves(chime_op *op, chime_node *n, const uint64_t *before, const chime_move *moves, unsigned count,
                    unsigned at) {
    const chime_state *st = op->st;
    uint64_t h1[CHIME_SPAN_MAX], *words = new_words(op, (count + 1) * 2);
    if (!words)
        return FAR_ERR_NO_MEMORY;
    assert(at < st->span && count <= st->span);
    for (unsigned line = 0; line < st->lines; line++)
        h1[line] = before[chime_h1_at(st->per_line, line) / 8];
    for (unsigned i = 0; i <= count; i++) {
        unsigned to = i < count ? moves[i].to : at, line = chime_line(st, to),
                 bit = 1u << chime_in_line(st->per_line, to);
        far_addr header = chime_ptr_addr(n->ptr) + chime_h1_at(st->per_line, line);
        if (chime_h1_occupied(h1[line]) & bit) {
            h1[line] = chime_h1_with_occupied(h1[line], chime_h1_occupied(h1[line]) & ~bit);
            words[2 * i] = h1[line];
            far_write(op->t, header, &words[2 * i], 8);
        }
        put_words(op, n, chime_slot_at(st->per_line, to) / 8, 2);
        h1[line] = chime_h1_with_occupied(h1[line], chime_h1_occupied(h1[line]) | bit);
        words[2 * i + 1] = h1[line];
        far_write(op->t, header, &words[2 * i + 1], 8);
    }
    for (unsigned line = 0; line < st->lines; line++)
        if (*chime_h0(st, n->w, line) != before[chime_h0_at(st->per_line, line) / 8])
            put_words(op, n, chime_h0_at(st->per_line, line) / 8, 1);
    return 0;
}


int chime_put_image(chime_op *op, chime_node *n, const uint64_t *before) {
    const chime_state *st = op->st;
    if (!st->words) {
        put_words(op, n, 0, st->lines * 8 + CHIME_TAIL_S);
        return 0;
    }
    for (unsigned line = 0; line < st->lines; line++) {
        for (unsigned slot = line * st->per_line; slot < (line + 1) * st->per_line; slot++)
            if (chime_is_occupied(st, n->w, slot) &&
                memcmp(chime_slot(st, n->w, slot), before + chime_slot_at(st->per_line, slot) / 8, 16))
                put_words(op, n, chime_slot_at(st->per_line, slot) / 8, 2);
        if (memcmp(chime_h0(st, n->w, line), before + chime_h0_at(st->per_line, line) / 8, 16))
            put_words(op, n, chime_h0_at(st->per_line, line) / 8, 2);
    }
    put_words(op, n, st->lines * 8, CHIME_TAIL_S);
    return 0;
}
