/* Pointer layout: moves the entries of levels 2 and 3 up to level 1, or to level 2 or 3 of the next generation if their
 * bucket is full. restructure_drain.c calls this file for each level-2 bucket and chain node.
 *
 * Each entry is moved under the lock of the main bucket of its key. The entry is linked at its new place first and then
 * removed from the old place. If the client fails in between, two entries name the same pair block, and the next drain
 * detects this (check_already_linked). */
#include "base/error.h"
#include "index/shard/shard.h"

#include <string.h>

enum { MOVE_TRIPS = 5 }; /* usual number of round trips to move one entry */


static bool words_name_block(const uint64_t *words, unsigned count, uint64_t entry) {
    for (unsigned i = 0; i < count; i++)
        if (shard_is_live(words[i]) && shard_entry_block(words[i]) == shard_entry_block(entry))
            return true;
    return false;
}


/* Returns 1 if an entry of the new generation already names the same pair block, because an earlier drain failed after
 * it had linked the pair block; 0 if not; or an error. */
static int check_already_linked(shard_op *op, uint64_t entry) {
    if (words_name_block(op->main->w, SHARD_P_SLOTS, entry))
        return 1;
    if (!(shard_header_fnew(op->main->w[SHARD_P_HEADER]) & shard_overflow_bit(op->st, op->h)))
        return 0;
    shard_overflow o;
    op->trips--;
    int err = shard_add_overflow_reads(op, op->d, &o);
    if (err)
        return err < 0 ? err : 0;
    if ((err = far_wait(op->t)) < 0)
        return err;
    shard_p_node node = o.node.p;
    shard_chain chain = {0};
    if (words_name_block(o.l2[0], 8, entry) || words_name_block(o.l2[1], 8, entry) ||
        words_name_block(node.entry, SHARD_P_NODE_SLOTS, entry))
        return 1;
    for (far_addr at = node.next; at; at = node.next) {
        if ((err = shard_chain_step(op->index, &chain, at)) < 0)
            return err;
        far_read(op->t, at, &node, sizeof(node));
        if ((err = far_wait(op->t)) < 0)
            return err;
        if (words_name_block(node.entry, SHARD_P_NODE_SLOTS, entry))
            return 1;
    }
    return 0;
}


/* Moves an entry of the previous generation to the main bucket of its key, which is at version op->d, or to level 2 or
 * 3 of generation op->d if that bucket is full. The caller holds the lock of the main bucket, and the word at `at`
 * contains `entry`. Returns SHARD_DRAINED when the entry is at its new place and its old word is cleared, and
 * SHARD_DRAIN_BLOCKED if the old word has changed. */
static int move_entry_up(shard_op *op, far_addr at, uint64_t entry) {
    uint64_t old;
    int err;
    /* The loop repeats only after an unlocked insert has taken the chosen slot. A bucket has few slots, so the loop
     * ends. */
    for (;;) {
        if ((err = check_already_linked(op, entry)) < 0)
            return err;
        if (err == 0 && (err = shard_p_place_entry(op, shard_entry_class(entry), shard_entry_addr(entry))) < 0)
            return err;
        if (err == SHARD_DONE)
            break;
        /* an unlocked insert took the slot, so the bucket is read again */
        far_read(op->t, op->main->addr, op->main->w, 8 * SHARD_P_SLOTS);
        if ((err = far_wait(op->t)) < 0)
            return err;
    }
    far_point(op->t, "shard:clear_drained_entry");
    shard_count_event(&op->st->counters.drained);
    err = far_cas_word(op->t, at, entry, 0, &old);
    return err < 0 ? err : old == entry ? SHARD_DRAINED : SHARD_DRAIN_BLOCKED;
}


static int drain_entry(shard_op *op, far_addr at, uint64_t entry, uint64_t h) {
    shard_extra_words source = {.count = 1, .at = {at}};
    op->trips--;
    int err = shard_drain_target(op, h);
    if (err < 0)
        return err;
    far_read(op->t, op->main->addr, op->main->w, SHARD_BUCKET_BYTES);
    if ((err = far_wait(op->t)) < 0)
        return err;
    uint64_t header = op->main->w[SHARD_P_HEADER];
    if (shard_header_v(header) != op->d)
        return SHARD_DRAIN_BLOCKED;
    if (shard_header_owner(header)) {
        err = shard_p_recover_lock(op->t, op->index, op->part, op->main);
        return err < 0 ? err : SHARD_DRAIN_BLOCKED;
    }
    bool full = shard_p_first_open(op, op->main->w) < 0 && shard_p_first_closed(op, op->main->w) < 0;
    if (full && (err = shard_make_overflow_tables(op->t, op->index, op->part, op->d)) < 0)
        return err;
    far_point(op->t, "shard:drain_lock");
    if ((err = shard_p_lock(op, &source)) <= 0)
        return err < 0 ? err : SHARD_DRAIN_BLOCKED;
    op->trips -= MOVE_TRIPS - 1;
    if (source.word[0] == entry)
        err = move_entry_up(op, at, entry);
    else
        err = source.word[0] == 0 ? SHARD_DRAINED : SHARD_DRAIN_BLOCKED;
    if (shard_session_is_lost(err)) {
        shard_release_latch(op);
        return err;
    }
    int unlocked = shard_p_unlock(op, true);
    return unlocked < 0 ? unlocked : err;
}


/* Drains a level-2 bucket or a chain node. The hash of a key is stored at the beginning of its pair block. The pair
 * block may be read, because its memory is not reused under the pin under which the entry was read. */
int shard_p_drain_words(shard_op *op, far_addr at, const uint64_t *words, unsigned count) {
    uint64_t h[SHARD_L2_P_SLOTS];
    int all = SHARD_DRAINED, trips = op->trips;
    for (unsigned i = 0; i < count; i++)
        if (shard_is_live(words[i]) && trips-- > 0)
            far_read(op->t, shard_entry_addr(words[i]), &h[i], 8);
    if (trips == op->trips)
        return SHARD_DRAINED;
    int err = far_wait(op->t);
    if (err < 0)
        return err;
    for (unsigned i = 0; i < count; i++) {
        if (!shard_is_live(words[i]))
            continue;
        if (op->trips <= 0)
            return SHARD_DRAIN_MORE;
        if ((err = drain_entry(op, at + 8 * i, words[i], h[i])) < 0)
            return err;
        if (err == SHARD_DRAIN_BLOCKED)
            all = SHARD_DRAIN_BLOCKED;
    }
    return all;
}
