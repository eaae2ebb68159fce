/* Layout P, writing: find, then one CAS on the word. An insert takes the first EMPTY word in the key's own order, and
 * words never become EMPTY again within an era: so of two inserts of a key only one can win (the first-EMPTY lemma).
 * What cannot be done by one CAS goes through the home lock (home_lock.c).
 *
 * An era of a bucket begins with its version, and whenever a bucket without an EMPTY word is opened again (reopen,
 * home_lock.c). Then its TOMBs are EMPTY words of the new era, and after that the header says so. The lemma holds for
 * an image that is of one era as a whole. An EMPTY word that is still there when the CAS comes says that no era began
 * after it was read; that none began while the words before it were read is proved by the header, read ahead of the
 * image: numbers of eras follow the epoch, so that none comes back under one pin. (Of era 0 nothing need be proved: none
 * came before it.) */
#include "base/error.h"
#include "index/rdwc.h"
#include "index/shard/shard.h"

#include <string.h>


/* The slots of a bucket in the order of a key: from a line that its hash chooses, cyclic. */
static int first_slot(const shard_try *y, const uint64_t *w, bool (*is)(uint64_t header, uint64_t word)) {
    unsigned start = shard_start_line(y) * SHARD_LINE;
    for (unsigned i = 0; i < SHARD_WORDS; i++) {
        unsigned slot = (start + i) % SHARD_WORDS;
        if (slot < y->st->slots && is(w[SHARD_P_HEADER], w[slot]))
            return (int)slot;
    }
    return -1;
}


static bool is_empty(uint64_t header, uint64_t word) {
    (void)header;
    return shard_is_empty(word);
}


static bool is_open(uint64_t header, uint64_t word) {
    return shard_is_empty(word) && shard_empty_era(word) == shard_header_era(header);
}


/* A TOMB; or an EMPTY word that the header does not know of, because who opened the bucket again has died. */
bool shard_p_is_closed(uint64_t header, uint64_t word) {
    return shard_is_tomb(word) || (shard_is_empty(word) && !is_open(header, word));
}


int shard_p_first_empty(const shard_try *y, const uint64_t *w) {
    return first_slot(y, w, is_empty);
}


int shard_p_first_open(const shard_try *y, const uint64_t *w) {
    return first_slot(y, w, is_open);
}


int shard_p_first_closed(const shard_try *y, const uint64_t *w) {
    return first_slot(y, w, shard_p_is_closed);
}


void shard_p_retire(shard_try *y, uint64_t word) {
    far_retire(y->t, y->index, SHARD_TYPE_BLOCK, shard_entry_addr(word), shard_class_bytes(shard_entry_class(word)));
}


/* Puts the WRITE of the new block, which the READ of its home bucket waits for. */
static int put_block(shard_try *y, far_bytes value) {
    far_point(y->t, "shard:seal");
    far_rdwc_seal(y->t, &value);
    uint64_t used = sizeof(shard_block) + y->key.length + value.length;
    y->class = shard_class_of(used);
    far_object object;
    int err = far_alloc(y->t, y->index, SHARD_TYPE_BLOCK, shard_class_bytes(y->class), far_addr_node(y->part->pcb), 0,
                        &object);
    if (err < 0)
        return err;
    y->block = object.addr;
    uint64_t bytes = (used + 7) & ~7ull;
    shard_block *block = far_scratch(y->t, bytes);
    if (!block)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a block");
    memset((char *)block + bytes - 8, 0, 8); /* behind the value */
    *block = (shard_block){y->h, (uint16_t)y->key.length, 0, (uint32_t)value.length};
    far_bytes_copy(block->bytes, y->key);
    far_bytes_copy(block->bytes + y->key.length, value);
    far_write_ahead(y->t, y->block, block, bytes);
    y->written = true;
    return 0;
}


/* At the version that counts, and no split has begun. */
static inline bool is_writable(const shard_try *y) {
    uint64_t header = y->home->w[SHARD_P_HEADER];
    return shard_header_v(header) == y->d && shard_header_op(header) != SHARD_OP_SPLIT;
}


enum { SPLIT_FIRST = SHARD_DONE + 1 }; /* besides what an attempt says */


/* What to do about an image that is not. */
static __attribute__((noinline)) int make_writable(shard_try *y) {
    uint64_t header = y->home->w[SHARD_P_HEADER];
    bool behind = shard_home_is_right(y, header) && shard_header_v(header) + 1 == y->d;
    int err;
    if (shard_header_op(header) == SHARD_OP_SPLIT || (behind && shard_header_owner(header))) {
        if (y->attempt % 4 == 3 && (err = shard_p_help(y->t, y->index, y->part, y->home)) < 0)
            return err;
        return shard_retry(y, !behind);
    }
    return behind ? SPLIT_FIRST : shard_retry(y, true);
}


static bool is_calm(const shard_try *y, unsigned v) { /* no split has begun */
    if (shard_p_map(y->st->wide, &(shard_sieve){SHARD_FROZEN >> 32, 0, 0}, y->home->w))
        return false;
    return shard_uniform(y->st, y->home->w, v);
}


/* An old copy at level 2 may hide behind the one at level 1 (a drain that died). */
static inline bool may_have_copy(const shard_try *y) {
    if (y->phase == SHARD_STABLE) /* home is at d: all of the generation before was drained */
        return false;
    unsigned generation[2], count = shard_generations(y, y->home->w[SHARD_P_HEADER], generation);
    return count && generation[0] != y->d;
}


/* Somebody else changed the word that held the key. */
static __attribute__((noinline)) int settle_lost(shard_try *y, uint64_t old, bool remove) {
    if (remove || !y->st->absorb || shard_is_frozen(old) || !(shard_is_live(old) || shard_is_tomb(old)) ||
        !shard_stamp_is(old, y->d))
        return SHARD_AGAIN;
    shard_count(&y->st->counters.absorbed); /* overwritten or deleted at once */
    shard_drop_block(y);
    return SHARD_DONE;
}


/* After the CAS of a word that held the key. */
static inline int settle(shard_try *y, uint64_t expected, uint64_t old, bool remove) {
    if (old != expected)
        return settle_lost(y, old, remove);
    shard_p_retire(y, old);
    y->block = 0;
    return SHARD_DONE;
}


static int replace(shard_try *y, const shard_hit *hit, bool remove) {
    uint64_t old, word = remove ? shard_tomb(y->d) : shard_entry(y->d, shard_entry_tag(hit->word), y->class, y->block);
    far_point(y->t, "shard:replace");
    int err = far_cas_word(y->t, hit->addr, hit->word, word, &old);
    return err < 0 ? err : settle(y, hit->word, old, remove);
}


static int insert(shard_try *y, int slot) {
    uint64_t old, empty = y->home->w[slot];
    uint64_t word = shard_entry(y->d, shard_tag(y->h, y->st->p, y->st->b, y->d), y->class, y->block);
    far_point(y->t, "shard:insert");
    int err = far_cas_word(y->t, y->home->addr + 8ull * (unsigned)slot, empty, word, &old);
    if (err < 0)
        return err;
    if (old != empty)
        return SHARD_AGAIN;
    y->block = 0;
    return SHARD_DONE;
}


/* Splits the home bucket, which is at d-1. The change goes along when the image says what it is: the levels below have
 * no part in it. */
static int split_and_change(shard_try *y, far_op_kind how, int *delta) {
    shard_own own = {.y = y, .slot = -1, .remove = how == FAR_OP_DELETE};
    shard_hit hit;
    bool along = y->st->combining && y->st->ordered_cas && is_calm(y, y->d - 1) &&
                 !(shard_header_fnew(y->home->w[SHARD_P_HEADER]) & shard_bit(y->st, y->h));
    int err = along ? shard_find_l1(y, y->home->w[SHARD_P_HEADER], false, &hit) : 0;
    if (err == SHARD_FOUND)
        own.slot = hit.slot;
    if (err < 0 || (along && (err = shard_refusal(how, own.slot >= 0)) < 0))
        return err;
    y->had_more_to_do = true;
    err = shard_p_split(y->t, y->index, y->part, y->d, y->graced, y->home, along ? &own : NULL);
    if (err <= 0)
        return err < 0 ? err : shard_retry(y, false);
    if (!own.carried)
        return SHARD_AGAIN;
    *delta = how == FAR_OP_DELETE ? -1 : own.slot < 0;
    if (own.slot >= 0)
        return settle(y, own.expected, own.found, own.remove);
    if (own.found != own.expected)
        return SHARD_AGAIN;
    y->block = 0;
    return SHARD_DONE;
}


/* Whether every word of the image was read in the era of the EMPTY word. */
static bool is_of_one_era(const shard_try *y, uint64_t empty) {
    unsigned era = shard_empty_era(empty);
    if (era == 0)
        return true;
    atomic_store_explicit(&y->part->eras, y->d + 1, memory_order_relaxed);
    return y->dated && shard_header_v(y->before) == y->d && shard_header_era(y->before) == era;
}


/* With a writable image, after it was searched. */
static int apply(shard_try *y, far_op_kind how, bool present, const shard_hit *hit, int *delta) {
    int refused = shard_refusal(how, present);
    if (refused < 0)
        return refused;
    if (!is_writable(y))
        return SHARD_AGAIN;
    *delta = how == FAR_OP_DELETE ? -1 : !present;
    bool always_locks = !y->st->ordered_cas;
    if (present && hit->slot >= 0 && !may_have_copy(y) && !always_locks) {
        if (shard_is_frozen(hit->word) || !shard_stamp_is(hit->word, y->d))
            return SHARD_AGAIN;
        return replace(y, hit, how == FAR_OP_DELETE);
    }
    if (!is_calm(y, y->d))
        return SHARD_AGAIN;
    int slot = present || always_locks ? -1 : shard_p_first_empty(y, y->home->w);
    if (slot >= 0 && is_of_one_era(y, y->home->w[slot]))
        return insert(y, slot);
    if (slot >= 0 && (!y->dated || is_open(y->home->w[SHARD_P_HEADER], y->home->w[slot])))
        return SHARD_AGAIN; /* the next look is dated, or comes after the era has begun */
    shard_count(&y->st->counters.under_lock);
    return shard_p_change_under_lock(y, how, present ? hit : NULL);
}


static int attempt(shard_try *y, far_op_kind how, far_bytes value, uint32_t *mark, int *delta) {
    shard_hit hit;
    int err;
    shard_attempt(y);
    if (shard_must_wait(y))
        return shard_wait_for_sweep(y);
    if (shard_must_call_off(y, how))
        return shard_call_off(y);
    y->dated = how != FAR_OP_DELETE && atomic_load_explicit(&y->part->eras, memory_order_relaxed) == y->d + 1;
    if ((err = shard_place_home(y)) != 0)
        return err < 0 ? err : shard_retry(y, true);
    bool seals = how != FAR_OP_DELETE && !y->written;
    if (seals && (err = put_block(y, value)) < 0)
        return err;
    uint32_t read_mark = far_rdwc_mark(y->t); /* after the seal: all whose value is written came before this batch */
    if (seals)
        *mark = read_mark;
    if ((err = shard_read_home(y)) < 0)
        return err;
    far_point(y->t, "shard:home_read");
    if (!is_writable(y))
        return (err = make_writable(y)) == SPLIT_FIRST ? split_and_change(y, how, delta) : err;
    if ((err = shard_find(y, false, &hit, &read_mark)) < 0)
        return err;
    if (err == SHARD_START_OVER)
        return shard_retry(y, true);
    if ((err = apply(y, how, err == SHARD_FOUND, &hit, delta)) != SHARD_AGAIN)
        return err;
    if (y->attempt % 4 == 3 && (err = shard_p_help(y->t, y->index, y->part, y->home)) < 0)
        return err;
    return shard_retry(y, true);
}


static int write_key(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    shard_try y;
    uint32_t mark = 0;
    int delta = 0, err = shard_begin(&y, t, index, key);
    far_scratch_mark scratch = far_scratch_here(t);
    while (err == SHARD_AGAIN) {
        err = shard_believe_miss(&y, attempt(&y, how, value, &mark, &delta));
        if (err == SHARD_AGAIN)
            far_scratch_back(t, scratch);
    }
    if (shard_is_lost(err))
        return err;
    if (y.block)
        shard_drop_block(&y);
    if (err < 0)
        return err;
    far_rdwc_done(t, mark);
    if (delta)
        shard_after_change(&y, delta);
    return 0;
}


int shard_p_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    return write_key(t, index, how, key, value);
}


int shard_p_remove(far_task *t, far_index *index, far_bytes key) {
    return write_key(t, index, FAR_OP_DELETE, key, (far_bytes){NULL, 0});
}
