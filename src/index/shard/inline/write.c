/* Writes of the inline layout. The first round trip locks the main bucket (lock word K) and reads it. The second round
 * trip writes the changed words and frees the lock. */
#include "base/error.h"
#include "index/common/rdwc.h"
#include "index/shard/shard.h"
#include "pool/format/clients.h"

#include <string.h>

typedef struct pending_write { /* a write operation in progress */
    far_op_kind how;
    far_bytes value;
    int delta;
    uint32_t mark;
    bool observed;           /* true if the key was read while another client had the lock */
    uint64_t observed_value; /* the value that the key had in that READ */
    uint32_t observed_mark;  /* RDWC mark of the batch that read the value, or of an earlier batch */
} pending_write;


int shard_i_lock(shard_op *op, shard_image *image, uint64_t *seen, shard_extra_words *extra) {
    far_point(op->t, "shard:lock");
    far_latch(op->t, image->addr);
    op->latched = image->addr;
    return shard_lock_and_read(op, image, SHARD_I_K, SHARD_K_FREE,
                               shard_k(far_task_client(op->t), far_task_number(op->t)), seen, extra);
}


/* Adds the WRITE that frees the lock after the other verbs of the batch, and waits for all of them. */
int shard_i_unlock(shard_op *op, const shard_image *image) {
    int err = far_write_word(op->t, image->addr + 8 * SHARD_I_K, SHARD_K_FREE);
    shard_release_latch(op);
    return err;
}


/* Writes the words of the locked main bucket from `first` on, as they are in the image, and frees the lock, which is the
 * last word. So a change and the unlock are one WRITE, whose words become visible in rising order. The words between
 * them do not change: the image was read under the lock, and only the holder of the lock writes to the bucket. */
static int write_and_unlock(shard_op *op, unsigned first) {
    op->main->w[SHARD_I_K] = SHARD_K_FREE;
    int err = far_write_now(op->t, op->main->addr + 8 * first, &op->main->w[first], 8 * (SHARD_WORDS - first));
    shard_release_latch(op);
    return err;
}


int shard_i_find_free_slot(const shard_op *op, const uint64_t *w) {
    /* A cache line has four slots, so this is the first slot of the key's start line. All slots of this half of the
     * bucket precede those of the other half. */
    unsigned start = shard_start_line(op) * 4;
    for (unsigned i = 0; i < 2 * SHARD_I_HALF; i++) {
        unsigned slot = (start + i) % SHARD_I_HALF + ((start + i / SHARD_I_HALF * SHARD_I_HALF) & SHARD_I_HALF);
        if (slot < op->st->slots && shard_kw_is_empty(w[2 * slot + 1]))
            return (int)slot;
    }
    return -1;
}


/* Claims a slot at level 2 or 3 by CAS. The keys of many buckets share these slots, so the lock of one bucket does not
 * protect them. Returns 1 if the slot was claimed, 0 if not, or an error. */
static int claim_slot(shard_op *op, far_addr at, uint64_t expected, uint64_t busy) {
    uint64_t old;
    int err = far_cas_word(op->t, at, expected, busy, &old);
    return err < 0 ? err : old == expected;
}


/* Returns 1 if a slot can be claimed, because it is free or because the client that has claimed it has failed; 0 if
 * not; or an error. The check whether a client has failed costs round trips, so it is made only for claimed slots. */
static int check_claimable(shard_op *op, bool free, bool busy, unsigned owner) {
    if (free || !busy)
        return free;
    return owner == far_task_client(op->t) ? 0 : far_client_confirm_failed(op->t, owner, FAR_ANY_GENERATION);
}


static int place_at_l2(shard_op *op, const shard_overflow *o, uint64_t value, far_addr *at, uint64_t slot[3]) {
    for (unsigned choice = 0; choice < 2; choice++)
        for (unsigned i = 0; i < op->st->l2_slots; i++) {
            uint64_t kw = o->l2[choice][2 * i + 1];
            int err = check_claimable(op, shard_kw_is_free(kw), shard_kw_is_busy(kw), shard_kw_owner(kw));
            *at = o->at[choice] + 16 * i;
            if (err > 0)
                err = claim_slot(op, *at + 8, kw, shard_kw_busy(far_task_client(op->t), shard_kw_gen(kw)));
            if (err < 0)
                return err;
            if (err == 0)
                continue;
            slot[0] = value;
            slot[1] = shard_kw(0, choice, shard_kw_gen(kw) + 1, shard_rem(op, (int)choice));
            return 1;
        }
    return 0;
}


static int place_in_chain(shard_op *op, far_addr head, uint64_t value, far_addr *at, uint64_t slot[3],
                          unsigned *words) {
    shard_i_node node;
    shard_chain chain = {0};
    slot[0] = value;
    memcpy(&slot[1], op->key.data, 8);
    op->insert_level = 3;
    shard_request_doubling(op->part, shard_main_version(op) + 1);
    for (far_addr here = head;; here = node.next, op->nodes_passed++) {
        int err = shard_chain_step(op->index, &chain, here);
        if (err < 0)
            return err;
        far_read(op->t, here, &node, sizeof(node));
        err = far_wait(op->t);
        for (unsigned i = 0; err >= 0 && i < SHARD_I_NODE_SLOTS; i++) {
            uint64_t state = node.slot[i].state, gen = shard_state_gen(state);
            *at = here + i * sizeof(shard_i_slot);
            err = check_claimable(op, shard_state_is_free(state), state & SHARD_STATE_BUSY, shard_state_owner(state));
            if (err > 0)
                err = claim_slot(op, *at + 16, state, shard_state_word(SHARD_STATE_BUSY, far_task_client(op->t), gen));
            if (err == 1) {
                slot[2] = shard_state_word(SHARD_STATE_LIVE, 0, gen + 1);
                *words = 3;
                return 1;
            }
        }
        if (err >= 0 && node.next == 0) {
            shard_i_node last = {.slot = {{slot[0], slot[1], shard_state_word(SHARD_STATE_LIVE, 0, 1)}}};
            err = shard_append_node(op, here, &last);
        }
        if (err == 1) {
            *words = 0;
            return 1;
        }
        if (err >= 0 && node.next == 0)
            err = far_read_word(op->t, here + offsetof(shard_i_node, next), &node.next);
        if (err < 0)
            return err;
    }
}


/* Places a pair at level 2 or 3, because the main bucket is full. The filter bit in the header is written first, so
 * that no search can miss the key. Sets *words to 0 if the pair has been written already, in a new chain node. */
int shard_i_place_in_overflow(shard_op *op, uint64_t value, far_addr *at, uint64_t slot[3], unsigned *words) {
    shard_overflow o;
    uint64_t *header = &op->main->w[SHARD_I_H], before = *header;
    unsigned d = shard_header_v(before);
    int err = shard_make_overflow_tables(op->t, op->index, op->part, d);
    if (err < 0 || (err = shard_add_overflow_reads(op, d, &o)) < 0)
        return err;
    if (err == 1)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a level-2 table is missing", op->index->name);
    *header = shard_header_add_overflowed(before, shard_overflow_bit(op->st, op->h));
    far_write(op->t, op->main->addr + 8 * SHARD_I_H, header, 8);
    if ((err = far_wait(op->t)) < 0)
        return err;
    shard_count_event(&op->st->counters.overflows);
    op->insert_level = 2;
    far_point(op->t, "shard:place_in_overflow");
    *words = 2;
    if ((err = place_at_l2(op, &o, value, at, slot)) == 0)
        err = place_in_chain(op, o.head, value, at, slot, words);
    /* If there is no memory for a chain node, nothing was stored, so the header is restored without the filter bit and
     * the count. */
    if (err < 0 && !shard_session_is_lost(err)) {
        *header = before;
        far_write(op->t, op->main->addr + 8 * SHARD_I_H, header, 8); /* the caller's unlock completes the batch */
    }
    return err;
}


/* Adds WRITEs that free the key's copies at levels 2 and 3. */
static int add_copy_clears(shard_op *op, const shard_hit *hits, unsigned count) {
    uint64_t *words = far_scratch(op->t, 8 * SHARD_COPIES_MAX);
    if (!words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for words");
    for (unsigned i = 0; i < count; i++) {
        bool l2 = hits[i].level == 2;
        words[i] =
            l2 ? shard_kw_free(shard_kw_gen(hits[i].word)) : shard_state_word(0, 0, shard_state_gen(hits[i].word));
        far_write(op->t, hits[i].addr + (l2 ? 8 : 16), &words[i], 8);
    }
    return 0;
}


static void seal_value(shard_op *op, pending_write *c, uint64_t *value) {
    far_point(op->t, "shard:seal");
    far_rdwc_seal(op->t, &c->value);
    /* Operations that joined the RDWC round after the value was observed are now part of the round. The observation is
     * earlier than these operations, so it no longer applies. */
    c->observed = false;
    c->mark = far_rdwc_mark(op->t);
    memcpy(value, c->value.data, 8);
}


static int insert_below_level_1(shard_op *op, uint64_t value) {
    unsigned words;
    uint64_t pair[3];
    far_addr at;
    int err = shard_i_place_in_overflow(op, value, &at, pair, &words);
    if (err < 0)
        return err;
    far_point(op->t, "shard:insert");
    if (words)
        far_write_ahead(op->t, at, pair, 8 * words);
    return shard_i_unlock(op, op->main);
}


static int insert_into_slot(shard_op *op, unsigned slot, uint64_t value) {
    uint64_t *pair = &op->main->w[2 * slot], empty = pair[1];
    pair[0] = value;
    pair[1] = shard_kw(op->d, false, shard_kw_gen(empty) + 1, shard_rem(op, -1));
    far_point(op->t, "shard:insert");
    int err = write_and_unlock(op, 2 * slot);
    pair[1] = empty; /* add_sample (load_factor.c) counts the keys that were in the bucket before this insert */
    return err;
}


static int insert_pair(shard_op *op, pending_write *c) {
    int slot = shard_i_find_free_slot(op, op->main->w);
    uint64_t value;
    seal_value(op, c, &value);
    int err = slot < 0 ? insert_below_level_1(op, value) : insert_into_slot(op, (unsigned)slot, value);
    return err < 0 ? err : SHARD_DONE;
}


/* Deletes a key from level 1, if it is there (`above`), and its copies at levels 2 and 3. */
static int delete_pair(shard_op *op, const shard_hit *above, const shard_hit *hits, unsigned count) {
    unsigned first = above ? 2 * (unsigned)above->slot + 1 : SHARD_I_H;
    int err = add_copy_clears(op, hits, count);
    if (err < 0)
        return err;
    if (above)
        op->main->w[first] = shard_kw_empty(op->d, shard_kw_gen(above->word));
    /* The header is written after the WRITEs that free the copies. If the client fails in between, the filter has an
     * unnecessary bit, which is harmless. */
    shard_uncount_overflow(op, &op->main->w[SHARD_I_H], hits, count);
    far_point(op->t, "shard:replace");
    return write_and_unlock(op, first);
}


/* Writes the new value of a key that is only at levels 2 and 3, and frees the older copies. */
static int update_below_level_1(shard_op *op, uint64_t value, const shard_hit *hits, unsigned count) {
    int err = add_copy_clears(op, hits, count - 1);
    if (err < 0)
        return err;
    far_write_ahead(op->t, hits[count - 1].addr, &value, 8);
    far_point(op->t, "shard:replace");
    return shard_i_unlock(op, op->main);
}


static int update_slot(shard_op *op, unsigned slot, uint64_t value) {
    op->main->w[2 * slot] = value;
    far_point(op->t, "shard:replace");
    return write_and_unlock(op, 2 * slot);
}


/* Changes or deletes a key that is present. The key is at level 1 (`above`), or only at levels 2 and 3 (`hits`, the
 * older generation first). */
static int replace_or_delete(shard_op *op, pending_write *c, const shard_hit *above, const shard_hit *hits,
                             unsigned count) {
    uint64_t value;
    int err;
    if (c->how == FAR_OP_DELETE) {
        err = delete_pair(op, above, hits, count);
    } else {
        seal_value(op, c, &value);
        err = above ? update_slot(op, (unsigned)above->slot, value) : update_below_level_1(op, value, hits, count);
    }
    return err < 0 ? err : SHARD_DONE;
}


/* Applies the write to the locked bucket. The caller holds the lock of the bucket, which is at version d. If the
 * function returns an error, nothing was changed and the lock is still held. */
static int apply_change(shard_op *op, pending_write *c) {
    shard_hit above, hits[SHARD_COPIES_MAX];
    unsigned generation[2], count = 0;
    bool found = shard_i_find_l1(op, &above);
    int err = 0;
    if (shard_generations_to_search(op, op->main->w[SHARD_I_H], generation) &&
        (err = shard_find_overflow(op, op->main->w[SHARD_I_H], false, hits, &count)) < 0)
        return err;
    bool present = found || count;
    if ((err = shard_presence_error(c->how, present)) < 0)
        return err;
    c->delta = c->how == FAR_OP_DELETE ? -1 : !present;
    return present ? replace_or_delete(op, c, found ? &above : NULL, hits, count) : insert_pair(op, c);
}


/* Returns true if another client's write supersedes this operation. Called when another client holds the lock, but the
 * bucket was read, just as a get would read it. The first such read records the key's value. If a later read of the
 * same operation shows another value, some client has written or deleted the key in between and found the key present.
 * An update or put can be ordered immediately before that write. The operation is then superseded at once, so its value
 * need not be written, and the operation is done. The RDWC round (operations of a handle on one key that share one
 * execution) then serves only the operations that joined before the first read, because only for them both reads are
 * within the operation. */
static bool detect_superseded(shard_op *op, pending_write *c, uint32_t mark) {
    shard_hit hit;
    uint64_t header = op->main->w[SHARD_I_H];
    if (!shard_main_fits_root(op, header) || !shard_i_find_l1(op, &hit) || !shard_hit_is_valid(op, header, &hit))
        return false;
    if (!c->observed) {
        c->observed = true;
        c->observed_value = hit.value;
        c->observed_mark = mark;
    }
    if (hit.value == c->observed_value)
        return false;
    far_rdwc_seal_before(op->t, c->observed_mark, &c->value);
    shard_count_event(&op->st->counters.absorbed);
    c->mark = c->observed_mark;
    c->delta = 0;
    return true;
}


/* Called when the bucket was read in the batch with the RDWC mark `mark`, and another client holds its lock. Returns 1
 * if this operation is superseded by a write of another client, 0 if not, or an error. The first call reads the bucket
 * once more by a READ without a CAS, because if many clients write one key, the CASes of its lock are the slowest
 * verbs. */
static int watch_locked_bucket(shard_op *op, pending_write *c, uint32_t mark) {
    bool writes_over = c->how == FAR_OP_UPDATE || c->how == FAR_OP_PUT;
    /* Without atomic 16-byte READs, the value and the key word may have been read at different moments, so the read
     * proves nothing. */
    if (!op->st->absorb || !writes_over || !op->st->whole_pairs)
        return 0;
    if (detect_superseded(op, c, mark))
        return 1;
    if (!c->observed || op->attempt > 0)
        return 0;
    far_point(op->t, "shard:reread_locked_bucket");
    far_read(op->t, op->main->addr, op->main->w, SHARD_BUCKET_BYTES);
    int err = far_wait(op->t);
    return err < 0 ? err : detect_superseded(op, c, mark);
}


/* Waits after the bucket could not be locked; `seen` is the lock word that was found. */
static int wait_for_lock(shard_op *op, const shard_image *image, uint64_t seen) {
    int err = 0;
    if (op->attempt % 4 == 3)
        err = shard_i_recover_lock(op->t, op->index, op->part, image, seen);
    return err < 0 ? err : shard_retry(op, seen == 0 || op->attempt % 4 == 3);
}


/* Splits the main bucket, which is at version d-1 and locked. The split also makes the operation's change, unless the
 * key may be at levels 2 and 3. */
static int split_and_change(shard_op *op, pending_write *c) {
    shard_own_change own = {.op = op, .slot = -1, .remove = c->how == FAR_OP_DELETE};
    shard_hit hit;
    bool along = op->st->combining && !(shard_header_fnew(op->main->w[SHARD_I_H]) & shard_overflow_bit(op->st, op->h));
    if (along && shard_i_find_l1(op, &hit))
        own.slot = hit.slot;
    int refused = along ? shard_presence_error(c->how, own.slot >= 0) : 0;
    if (along && refused == 0 && !own.remove)
        seal_value(op, c, &own.value);
    op->did_extra_work = true;
    int err = shard_i_split(op, op->main, along && refused == 0 ? &own : NULL);
    if (err < 0 || refused < 0)
        return err < 0 ? err : refused;
    c->delta = own.remove ? -1 : own.slot < 0;
    return own.carried ? SHARD_DONE : SHARD_AGAIN;
}


/* Splits the parent of an unwritten child, so that the operation can then write to the child. */
static int split_parent_first(shard_op *op, pending_write *c) {
    uint64_t seen;
    op->other->bucket = shard_parent(op->main->bucket, op->st->b, op->d);
    int err = shard_bucket_addr(op->t, op->st, op->part, op->other->bucket, &op->other->addr);
    if (err < 0 || (err = shard_i_lock(op, op->other, &seen, NULL)) < 0)
        return err;
    if (err == 0)
        return wait_for_lock(op, op->other, seen);
    if (shard_header_v(op->other->w[SHARD_I_H]) + 1 == op->d) {
        shard_image *child = op->main;
        op->main = op->other;
        op->other = child;
        return split_and_change(op, c);
    }
    err = shard_i_unlock(op, op->other);
    return err < 0 ? err : shard_retry(op, true);
}


static int attempt_write(shard_op *op, pending_write *c) {
    const shard_state *st = op->st;
    uint64_t seen;
    shard_start_attempt(op);
    if (shard_must_wait_for_sweep(op))
        return shard_wait_for_sweep(op);
    if (shard_must_cancel_shrink(op, c->how))
        return shard_cancel_shrink(op);
    op->main->bucket = op->bucket;
    int err = shard_bucket_addr(op->t, op->st, op->part, op->main->bucket, &op->main->addr);
    if (err < 0 || op->main->addr == 0)
        return err < 0 ? err : shard_retry(op, true);
    uint32_t mark = far_rdwc_mark(op->t);
    if ((err = shard_i_lock(op, op->main, &seen, NULL)) < 0)
        return err;
    if (err == 0 && (err = watch_locked_bucket(op, c, mark)) != 0)
        return err < 0 ? err : SHARD_DONE;
    if (err == 0 && seen == 0 && op->phase == SHARD_GROW && shard_key_moves(op->h, st->p, st->b, op->d))
        return split_parent_first(op, c);
    if (err == 0)
        return wait_for_lock(op, op->main, seen);

    unsigned v = shard_header_v(op->main->w[SHARD_I_H]);
    if (v + 1 == op->d && op->phase == SHARD_GROW)
        return split_and_change(op, c);
    if (v == op->d) {
        err = apply_change(op, c);
        if (err == SHARD_DONE || shard_session_is_lost(err))
            return err;
        int unlocked = shard_i_unlock(op, op->main);
        return unlocked < 0 ? unlocked : err;
    }
    err = shard_i_unlock(op, op->main);
    return err < 0 ? err : shard_retry(op, true);
}


static int write_key(far_task *t, far_index *index, pending_write *c, far_bytes key) {
    shard_op op;
    int err = shard_begin_operation(&op, t, index, key);
    if (err >= 0 && shard_i_too_wide(op.st, key))
        return far_fail(FAR_ERR_INVALID, "index '%s': with narrow=on a key must be a number below 2^%u", index->name,
                        op.st->hash_bits);
    far_scratch_mark scratch = far_scratch_here(t);
    while (err == SHARD_AGAIN) {
        err = shard_confirm_miss(&op, attempt_write(&op, c));
        far_scratch_back(t, scratch);
    }
    shard_release_latch(&op); /* the session was lost while the operation held the local latch of the bucket */
    if (err < 0)
        return err;
    far_rdwc_done(t, c->mark);
    if (c->delta)
        shard_after_change(&op, c->delta);
    return 0;
}


int shard_i_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    return write_key(t, index, &(pending_write){.how = how, .value = value}, key);
}


int shard_i_remove(far_task *t, far_index *index, far_bytes key) {
    return write_key(t, index, &(pending_write){.how = FAR_OP_DELETE}, key);
}
