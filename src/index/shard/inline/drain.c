/* Inline layout: moves the pairs of levels 2 and 3 up. The hash of a pair, and so its main bucket, follows from the
 * pair's place and remainder. restructure_drain.c calls this file for each level-2 bucket and chain node.
 *
 * Moving a pair takes two round trips. The first round trip locks the main bucket and reads the bucket and the pair.
 * The second round trip writes the pair to its new place, clears the old place, and frees the lock, in this order. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <string.h>

enum {
    MOVE_TRIPS = 2,  /* usual number of round trips to move one pair */
    PLACE_TRIPS = 3, /* additional round trips if the pair must again be placed at level 2 or 3 */
};

typedef struct source_pair { /* the pair to be moved */
    far_addr addr;           /* address of the pair's value */
    int level;
    /* word of the pair that contains its live bit, as it was read: the key word (kw) at level 2, the state at level 3
     */
    uint64_t mark;
    uint64_t key;
} source_pair;


static bool mark_is_live(const source_pair *s, uint64_t mark) {
    return s->level == 2 ? shard_is_live(mark) : mark & SHARD_STATE_LIVE;
}


static uint64_t freed_mark(const source_pair *s) {
    return s->level == 2 ? shard_kw_free(shard_kw_gen(s->mark)) : shard_state_word(0, 0, shard_state_gen(s->mark));
}


/* Returns 1 if an earlier drain, which failed, has already put the key at version d; 0 if not; or an error. A
 * generation never has two copies of a key. So below level 1 only generation d is searched, and only if the main
 * bucket's filter has the key's bit. */
static int check_already_moved(shard_op *op) {
    shard_hit above, hits[SHARD_COPIES_MAX];
    unsigned count = 0;
    uint64_t header = op->main->w[SHARD_I_H];
    if (shard_i_find_l1(op, &above))
        return 1;
    if (!(shard_header_fnew(header) & shard_overflow_bit(op->st, op->h)))
        return 0;
    op->trips--;
    int err = shard_find_overflow(op, shard_header(op->d, shard_header_fnew(header), 0), false, hits, &count);
    return err < 0 ? err : count > 0;
}


/* Moves a pair to version d. The caller holds the lock of the main bucket, which is at version d. `value` is the value
 * of the pair. Frees the lock, unless it returns an error. */
static int move_pair_up(shard_op *op, const source_pair *s, uint64_t value) {
    unsigned words = 2;
    uint64_t slot[3], free = freed_mark(s);
    far_addr at = 0;
    int empty = shard_i_find_free_slot(op, op->main->w), err = check_already_moved(op);
    if (err < 0)
        return err;
    if (err == 1) {
        words = 0;
    } else if (empty >= 0) {
        at = op->main->addr + 16ull * (unsigned)empty;
        slot[0] = value;
        slot[1] = shard_kw(op->d, false, shard_kw_gen(op->main->w[2 * empty + 1]) + 1, shard_rem(op, -1));
    } else {
        op->trips -= PLACE_TRIPS;
        if ((err = shard_i_place_in_overflow(op, value, &at, slot, &words)) < 0)
            return err;
    }
    far_point(op->t, "shard:drain_move");
    if (words)
        far_write(op->t, at, slot, 8 * words);
    far_write(op->t, s->addr + (s->level == 2 ? 8 : 16), &free, 8);
    shard_count_event(&op->st->counters.drained);
    err = shard_i_unlock(op, op->main);
    return err < 0 ? err : SHARD_DRAINED;
}


static int drain_pair(shard_op *op, const source_pair *s, uint64_t h) {
    uint64_t seen;
    shard_extra_words pair = {.count = 2, .at = {s->addr, s->addr + (s->level == 2 ? 8 : 16)}};
    op->key = (far_bytes){&s->key, 8};
    op->trips--;
    int err = shard_drain_target(op, h);
    if (err < 0 || (err = shard_i_lock(op, op->main, &seen, &pair)) < 0)
        return err;
    if (err == 0) {
        err = shard_i_recover_lock(op->t, op->index, op->part, op->main, seen);
        return err < 0 ? err : SHARD_DRAIN_BLOCKED;
    }
    if (shard_header_v(op->main->w[SHARD_I_H]) != op->d || pair.word[1] != s->mark) {
        err = shard_i_unlock(op, op->main);
        return err < 0 ? err : mark_is_live(s, pair.word[1]) ? SHARD_DRAIN_BLOCKED : SHARD_DRAINED;
    }
    op->trips -= MOVE_TRIPS - 1;
    err = move_pair_up(op, s, pair.word[0]);
    if (err < 0 && !shard_session_is_lost(err)) {
        /* the error occurred before any change, so the lock can be freed */
        int unlocked = shard_i_unlock(op, op->main);
        return unlocked < 0 ? unlocked : err;
    }
    shard_release_latch(op);
    return err;
}


int shard_i_drain_l2(shard_op *op, far_addr at, const uint64_t *words, uint64_t bucket) {
    const shard_state *st = op->st;
    int all = SHARD_DRAINED;
    for (unsigned i = 0; i < SHARD_L2_I_SLOTS; i++) {
        uint64_t kw = words[2 * i + 1];
        if (!shard_is_live(kw))
            continue;
        /* At its beginning a step has more round trips than MOVE_TRIPS, so each step moves at least one pair. */
        if (op->trips < MOVE_TRIPS)
            return SHARD_DRAIN_MORE;
        bool choice = shard_kw_choice(kw);
        uint64_t level = shard_unquotient(shard_kw_rem(kw), bucket, op->part->number, st->p, st->implied);
        uint64_t h = shard_unrehash(level, st->level_seed[choice], st->p, st->hash_bits);
        int err = drain_pair(op, &(source_pair){at + 16 * i, 2, kw, shard_i_key(st, h)}, h);
        if (err < 0)
            return err;
        if (err == SHARD_DRAIN_BLOCKED)
            all = SHARD_DRAIN_BLOCKED;
    }
    return all;
}


int shard_i_drain_node(shard_op *op, far_addr at, const shard_i_node *node) {
    int all = SHARD_DRAINED;
    for (unsigned i = 0; i < SHARD_I_NODE_SLOTS; i++) {
        const shard_i_slot *slot = &node->slot[i];
        if (!(slot->state & SHARD_STATE_LIVE))
            continue;
        if (op->trips <= 0)
            return SHARD_DRAIN_MORE;
        /* A level-3 slot crosses cache lines, so one READ may return the key of one pair and the state of another. If
         * the state is the same before and after the READ of the key, key and state belong together. */
        uint64_t again[2];
        far_read(op->t, at + i * sizeof(*slot) + 8, &again[0], 8);
        far_read(op->t, at + i * sizeof(*slot) + 16, &again[1], 8);
        int err = far_wait(op->t);
        op->trips--;
        if (err < 0)
            return err;
        if (again[1] == slot->state) {
            uint64_t h = shard_hash(op->index, (far_bytes){&again[0], 8});
            err = drain_pair(op, &(source_pair){at + i * sizeof(*slot), 3, slot->state, again[0]}, h);
        } else {
            err = again[1] & SHARD_STATE_LIVE ? SHARD_DRAIN_BLOCKED : SHARD_DRAINED;
        }
        if (err < 0)
            return err;
        if (err == SHARD_DRAIN_BLOCKED)
            all = SHARD_DRAIN_BLOCKED;
    }
    return all;
}
