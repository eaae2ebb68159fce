/* Writes of the pointer layout: find the key, then change one word by CAS. Operations that a single CAS cannot do use
 * the lock of the main bucket (pointer/write_locked.c).
 *
 * An insert takes the first EMPTY word in the key's own probe order. Within a *cycle* of the bucket no word becomes
 * EMPTY again: words change from EMPTY to live to TOMB. It follows that of two inserts of the same key only one
 * succeeds (the first-EMPTY lemma). Proof: Suppose p is the first EMPTY word in the image of insert A, the image does
 * not contain the key, and A's CAS of p succeeds. Could another insert B of the key have succeeded before that in the
 * same cycle? If B took a word before p, A would have seen this word either EMPTY, and then chosen it, or with the key.
 * If B took a word after p, B saw p non-EMPTY, but p was EMPTY until A's CAS.
 *
 * A cycle begins when the bucket gets its version, and again whenever a bucket without EMPTY words is reopened
 * (reopen_bucket in pointer/write_locked.c): its TOMBs become EMPTY words of the next cycle, and then the header is
 * changed to that cycle. The lemma needs an image in which all words belong to one cycle. If the CAS of an EMPTY word
 * succeeds, no cycle has begun since this word was read. The header proves that no cycle began while the words before
 * it were read: the header is read before the image in the same batch, and again in the image, and both copies must
 * show the same cycle. A cycle number is not used again under one pin (shard_next_cycle). Cycle 0 needs no such proof,
 * because no cycle precedes cycle 0. */
#include "base/error.h"
#include "index/common/rdwc.h"
#include "index/shard/shard.h"

#include <string.h>


/* Returns the first slot in the key's probe order for which `is` returns true, or -1. The probe order begins at a cache
 * line that the hash selects, and wraps around. */
static int first_matching_slot(const shard_op *op, const uint64_t *w, bool (*is)(uint64_t header, uint64_t word)) {
    unsigned start = shard_start_line(op) * SHARD_LINE;
    for (unsigned i = 0; i < SHARD_WORDS; i++) {
        unsigned slot = (start + i) % SHARD_WORDS;
        if (slot < op->st->slots && is(w[SHARD_P_HEADER], w[slot]))
            return (int)slot;
    }
    return -1;
}


static bool word_is_empty(uint64_t header, uint64_t word) {
    (void)header;
    return shard_is_empty(word);
}


static bool word_is_open(uint64_t header, uint64_t word) {
    return shard_is_empty(word) && shard_empty_cycle(word) == shard_header_cycle(header);
}


/* Returns true for a closed word: a TOMB, or an EMPTY word of a cycle that the header does not name. Such an EMPTY word
 * exists if the client that reopened the bucket failed before it changed the header. A cycle is a period between two
 * reopenings of the bucket. */
bool shard_p_word_is_closed(uint64_t header, uint64_t word) {
    return shard_is_tomb(word) || (shard_is_empty(word) && !word_is_open(header, word));
}


int shard_p_first_empty(const shard_op *op, const uint64_t *w) {
    return first_matching_slot(op, w, word_is_empty);
}


int shard_p_first_open(const shard_op *op, const uint64_t *w) {
    return first_matching_slot(op, w, word_is_open);
}


int shard_p_first_closed(const shard_op *op, const uint64_t *w) {
    return first_matching_slot(op, w, shard_p_word_is_closed);
}


void shard_p_retire_block(shard_op *op, uint64_t word) {
    far_retire(op->t, op->index, SHARD_TYPE_BLOCK, shard_entry_addr(word), shard_class_bytes(shard_entry_class(word)));
}


/* Adds the WRITE of the new pair block to the batch that reads the main bucket. */
static int add_block_write(shard_op *op, far_bytes value) {
    far_point(op->t, "shard:seal");
    far_rdwc_seal(op->t, &value);
    uint64_t used = sizeof(shard_block) + op->key.length + value.length;
    op->class = shard_class_of(used);
    far_object object;
    int err = far_alloc(op->t, op->index, SHARD_TYPE_BLOCK, shard_class_bytes(op->class), far_addr_node(op->part->pcb),
                        0, &object);
    if (err < 0)
        return err;
    op->block = object.addr;
    uint64_t bytes = (used + 7) & ~7ull;
    shard_block *block = far_scratch(op->t, bytes);
    if (!block)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a pair block");
    memset((char *)block + bytes - 8, 0, 8); /* fill the padding after the value with zeroes */
    *block = (shard_block){op->h, (uint16_t)op->key.length, 0, (uint32_t)value.length};
    far_bytes_copy(block->bytes, op->key);
    far_bytes_copy(block->bytes + op->key.length, value);
    far_write_ahead(op->t, op->block, block, bytes);
    op->written = true;
    return 0;
}


/* Returns true if the bucket is at the version of the root word and no split has begun. */
static inline bool main_is_writable(const shard_op *op) {
    uint64_t header = op->main->w[SHARD_P_HEADER];
    return shard_header_v(header) == op->d && shard_header_op(header) != SHARD_OP_SPLIT;
}


enum { SPLIT_FIRST = SHARD_DONE + 1 }; /* a result that attempts return in addition to SHARD_AGAIN and SHARD_DONE */


/* Called with an image that is not writable. Returns SPLIT_FIRST if the caller must split the bucket, otherwise the
 * result of a retry. */
static __attribute__((noinline)) int handle_unwritable(shard_op *op) {
    uint64_t header = op->main->w[SHARD_P_HEADER];
    bool behind = shard_main_fits_root(op, header) && shard_header_v(header) + 1 == op->d;
    int err;
    if (shard_header_op(header) == SHARD_OP_SPLIT || (behind && shard_header_owner(header))) {
        if (op->attempt % 4 == 3 && (err = shard_p_recover_lock(op->t, op->index, op->part, op->main)) < 0)
            return err;
        return shard_retry(op, !behind);
    }
    return behind ? SPLIT_FIRST : shard_retry(op, true);
}


/* Returns true if all words of the image have version v and no word is frozen, so that no split has begun. */
static bool no_split_has_begun(const shard_op *op, unsigned v) {
    if (shard_p_match_map(op->st->wide, &(shard_sieve){SHARD_FROZEN >> 32, 0, 0}, op->main->w))
        return false;
    return shard_is_uniform(op->st, op->main->w, v);
}


/* Returns true if levels 2 and 3 may have an old copy of a key that is at level 1. A drain that failed after it had
 * linked the key at level 1, and before it cleared the old word, leaves such a copy. */
static inline bool may_have_old_copy(const shard_op *op) {
    if (op->phase == SHARD_STABLE) /* the bucket is at version d, so the previous generation was drained */
        return false;
    unsigned generation[2], count = shard_generations_to_search(op, op->main->w[SHARD_P_HEADER], generation);
    return count && generation[0] != op->d;
}


/* Handles a CAS of the key's word that failed because another client had changed the word. If the other client has
 * replaced or deleted the key, an update counts as executed immediately before that change, and the value of the update
 * counts as superseded. */
static __attribute__((noinline)) int handle_lost_cas(shard_op *op, uint64_t old, bool remove) {
    if (remove || !op->st->absorb || shard_is_frozen(old) || !(shard_is_live(old) || shard_is_tomb(old)) ||
        !shard_stamp_is(old, op->d))
        return SHARD_AGAIN;
    shard_count_event(&op->st->counters.absorbed); /* the update took effect and was superseded at once */
    shard_drop_block(op);
    return SHARD_DONE;
}


/* Finishes an update or delete after the CAS of the key's word, which returned `old`. If the CAS succeeded, retires the
 * replaced pair block and returns SHARD_DONE, otherwise returns the result of handle_lost_cas. */
static inline int finish_replacement(shard_op *op, uint64_t expected, uint64_t old, bool remove) {
    if (old != expected)
        return handle_lost_cas(op, old, remove);
    shard_p_retire_block(op, old);
    op->block = 0;
    return SHARD_DONE;
}


static int replace_entry(shard_op *op, const shard_hit *hit, bool remove) {
    uint64_t old,
        word = remove ? shard_tomb(op->d) : shard_entry(op->d, shard_entry_tag(hit->word), op->class, op->block);
    far_point(op->t, "shard:replace");
    int err = far_cas_word(op->t, hit->addr, hit->word, word, &old);
    return err < 0 ? err : finish_replacement(op, hit->word, old, remove);
}


static int insert_entry(shard_op *op, int slot) {
    uint64_t old, empty = op->main->w[slot];
    uint64_t word = shard_entry(op->d, shard_tag(op->h, op->st->p, op->st->b, op->d), op->class, op->block);
    far_point(op->t, "shard:insert");
    int err = far_cas_word(op->t, op->main->addr + 8ull * (unsigned)slot, empty, word, &old);
    if (err < 0)
        return err;
    if (old != empty)
        return SHARD_AGAIN;
    op->block = 0;
    return SHARD_DONE;
}


/* Splits the main bucket, which is at version d-1. The split also makes the operation's change if the image proves that
 * the change is correct, which requires that the key cannot be at levels 2 and 3. */
static int split_and_change(shard_op *op, far_op_kind how, int *delta) {
    shard_own_change own = {.op = op, .slot = -1, .remove = how == FAR_OP_DELETE};
    shard_hit hit;
    bool along = op->st->combining && op->st->ordered_cas && no_split_has_begun(op, op->d - 1) &&
                 !(shard_header_fnew(op->main->w[SHARD_P_HEADER]) & shard_overflow_bit(op->st, op->h));
    int err = along ? shard_find_l1(op, op->main->w[SHARD_P_HEADER], false, &hit) : 0;
    if (err == SHARD_FOUND)
        own.slot = hit.slot;
    if (err < 0 || (along && (err = shard_presence_error(how, own.slot >= 0)) < 0))
        return err;
    op->did_extra_work = true;
    err = shard_p_split(op->t, op->index, op->part, op->d, op->graced, op->main, along ? &own : NULL);
    if (err <= 0)
        return err < 0 ? err : shard_retry(op, false);
    if (!own.carried)
        return SHARD_AGAIN;
    *delta = how == FAR_OP_DELETE ? -1 : own.slot < 0;
    if (own.slot >= 0)
        return finish_replacement(op, own.expected, own.found, own.remove);
    if (own.found != own.expected)
        return SHARD_AGAIN;
    op->block = 0;
    return SHARD_DONE;
}


/* Returns true if every word of the image was read in the cycle of the EMPTY word. If this cycle is later than 0,
 * records that the partition has reopened buckets, so that later inserts read the header first. */
static bool prove_one_cycle(const shard_op *op, uint64_t empty) {
    unsigned cycle = shard_empty_cycle(empty);
    if (cycle == 0)
        return true;
    atomic_store_explicit(&op->part->reopened_at, op->d + 1, memory_order_relaxed);
    return op->header_first && shard_header_v(op->header_before) == op->d &&
           shard_header_cycle(op->header_before) == cycle;
}


/* Applies the change after the key was searched in op->main. Returns SHARD_AGAIN if the bucket is not writable any
 * more, or if another attempt must READ it again. */
static int apply_change(shard_op *op, far_op_kind how, bool present, const shard_hit *hit, int *delta) {
    int refused = shard_presence_error(how, present);
    if (refused < 0)
        return refused;
    if (!main_is_writable(op))
        return SHARD_AGAIN;
    *delta = how == FAR_OP_DELETE ? -1 : !present;
    bool always_locks = !op->st->ordered_cas;
    if (present && hit->slot >= 0 && !may_have_old_copy(op) && !always_locks) {
        if (shard_is_frozen(hit->word) || !shard_stamp_is(hit->word, op->d))
            return SHARD_AGAIN;
        return replace_entry(op, hit, how == FAR_OP_DELETE);
    }
    if (!no_split_has_begun(op, op->d))
        return SHARD_AGAIN;
    int slot = present || always_locks ? -1 : shard_p_first_empty(op, op->main->w);
    if (slot >= 0 && prove_one_cycle(op, op->main->w[slot]))
        return insert_entry(op, slot);
    if (slot >= 0 && (!op->header_first || word_is_open(op->main->w[SHARD_P_HEADER], op->main->w[slot])))
        /* The image may contain words of two cycles. The next attempt reads the header first, or finds that the new
         * cycle has begun. */
        return SHARD_AGAIN;
    shard_count_event(&op->st->counters.under_lock);
    return shard_p_change_under_lock(op, how, present ? hit : NULL);
}


static int attempt_write(shard_op *op, far_op_kind how, far_bytes value, uint32_t *mark, int *delta) {
    shard_hit hit;
    int err;
    shard_start_attempt(op);
    if (shard_must_wait_for_sweep(op))
        return shard_wait_for_sweep(op);
    if (shard_must_cancel_shrink(op, how))
        return shard_cancel_shrink(op);
    op->header_first =
        how != FAR_OP_DELETE && atomic_load_explicit(&op->part->reopened_at, memory_order_relaxed) == op->d + 1;
    if ((err = shard_locate_main(op)) != 0)
        return err < 0 ? err : shard_retry(op, true);
    bool seals = how != FAR_OP_DELETE && !op->written;
    if (seals && (err = add_block_write(op, value)) < 0)
        return err;
    /* If this operation seals its RDWC round, add_block_write has just done so. The mark is the number of the next
     * batch, so all writers of the sealed round joined before that batch is posted. */
    uint32_t read_mark = far_rdwc_mark(op->t);
    if (seals)
        *mark = read_mark;
    if ((err = shard_read_main(op)) < 0)
        return err;
    far_point(op->t, "shard:main_bucket_read");
    if (!main_is_writable(op))
        return (err = handle_unwritable(op)) == SPLIT_FIRST ? split_and_change(op, how, delta) : err;
    if ((err = shard_find_key(op, false, &hit, &read_mark)) < 0)
        return err;
    if (err == SHARD_START_OVER)
        return shard_retry(op, true);
    if ((err = apply_change(op, how, err == SHARD_FOUND, &hit, delta)) != SHARD_AGAIN)
        return err;
    if (op->attempt % 4 == 3 && (err = shard_p_recover_lock(op->t, op->index, op->part, op->main)) < 0)
        return err;
    return shard_retry(op, true);
}


static int write_key(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    shard_op op;
    uint32_t mark = 0;
    int delta = 0, err = shard_begin_operation(&op, t, index, key);
    far_scratch_mark scratch = far_scratch_here(t);
    while (err == SHARD_AGAIN) {
        err = shard_confirm_miss(&op, attempt_write(&op, how, value, &mark, &delta));
        if (err == SHARD_AGAIN)
            far_scratch_back(t, scratch);
    }
    if (shard_session_is_lost(err))
        return err;
    if (op.block)
        shard_drop_block(&op);
    if (err < 0)
        return err;
    far_rdwc_done(t, mark);
    if (delta)
        shard_after_change(&op, delta);
    return 0;
}


int shard_p_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    return write_key(t, index, how, key, value);
}


int shard_p_remove(far_task *t, far_index *index, far_bytes key) {
    return write_key(t, index, FAR_OP_DELETE, key, (far_bytes){NULL, 0});
}
