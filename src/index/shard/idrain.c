/* Layout I: moves pairs of levels 2 and 3 up. The hash, and so the home of a pair, follows from where it lies. Two
 * round trips: {lock of the home, READ home, READ the pair}, then {WRITE where it goes, WRITE where it was, free the
 * lock}, in this order. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <string.h>

enum {
    MOVE_TRIPS = 2,  /* of one pair, mostly */
    PLACE_TRIPS = 3, /* more, if it goes below level 1 again */
};

typedef struct source { /* a pair to be moved */
    far_addr addr;      /* of its value */
    int level;
    uint64_t mark; /* kw or state as it was seen */
    uint64_t key;
} source;


static bool is_live(const source *s, uint64_t mark) {
    return s->level == 2 ? shard_is_live(mark) : mark & SHARD_STATE_LIVE;
}


static uint64_t freed(const source *s) {
    return s->level == 2 ? shard_kw_free(shard_kw_gen(s->mark)) : shard_state_word(0, 0, shard_state_gen(s->mark));
}


/* Whether a drain that died has put the key at version d already. Its own generation holds no second copy, so that of
 * version d alone is looked at, and only if the home says that the key may lie there. */
static int is_moved(shard_try *y) {
    shard_hit above, hits[SHARD_COPIES_MAX];
    unsigned count = 0;
    uint64_t header = y->home->w[SHARD_I_H];
    if (shard_i_find_l1(y, &above))
        return 1;
    if (!(shard_header_fnew(header) & shard_bit(y->st, y->h)))
        return 0;
    y->trips--;
    int err = shard_find_overflow(y, shard_header(y->d, shard_header_fnew(header), 0), false, hits, &count);
    return err < 0 ? err : count > 0;
}


/* Under the lock, at version d; value: of the pair. The lock is freed, unless it is an error. */
static int move_up(shard_try *y, const source *s, uint64_t value) {
    unsigned words = 2;
    uint64_t slot[3], free = freed(s);
    far_addr at = 0;
    int empty = shard_i_free_slot(y, y->home->w), err = is_moved(y);
    if (err < 0)
        return err;
    if (err == 1) {
        words = 0;
    } else if (empty >= 0) {
        at = y->home->addr + 16ull * (unsigned)empty;
        slot[0] = value;
        slot[1] = shard_kw(y->d, false, shard_kw_gen(y->home->w[2 * empty + 1]) + 1, shard_rem(y, -1));
    } else {
        y->trips -= PLACE_TRIPS;
        if ((err = shard_i_place(y, value, &at, slot, &words)) < 0)
            return err;
    }
    far_point(y->t, "shard:drain_move");
    if (words)
        far_write(y->t, at, slot, 8 * words);
    far_write(y->t, s->addr + (s->level == 2 ? 8 : 16), &free, 8);
    shard_count(&y->st->counters.drained);
    err = shard_i_unlock(y, y->home);
    return err < 0 ? err : SHARD_GONE;
}


static int drain_pair(shard_try *y, const source *s, uint64_t h) {
    uint64_t seen;
    shard_beside pair = {.count = 2, .at = {s->addr, s->addr + (s->level == 2 ? 8 : 16)}};
    y->key = (far_bytes){&s->key, 8};
    y->trips--;
    int err = shard_drain_home(y, h);
    if (err < 0 || (err = shard_i_lock(y, y->home, &seen, &pair)) < 0)
        return err;
    if (err == 0) {
        err = shard_i_help(y->t, y->index, y->part, y->home, seen);
        return err < 0 ? err : SHARD_LEFT;
    }
    if (shard_header_v(y->home->w[SHARD_I_H]) != y->d || pair.word[1] != s->mark) {
        err = shard_i_unlock(y, y->home);
        return err < 0 ? err : is_live(s, pair.word[1]) ? SHARD_LEFT : SHARD_GONE;
    }
    y->trips -= MOVE_TRIPS - 1;
    err = move_up(y, s, pair.word[0]);
    if (err < 0 && !shard_is_lost(err)) {
        int unlocked = shard_i_unlock(y, y->home); /* nothing was changed */
        return unlocked < 0 ? unlocked : err;
    }
    shard_unlatch(y);
    return err;
}


int shard_i_drain_l2(shard_try *y, far_addr at, const uint64_t *words, uint64_t bucket) {
    const shard_state *st = y->st;
    int all = SHARD_GONE;
    for (unsigned i = 0; i < SHARD_L2_I_SLOTS; i++) {
        uint64_t kw = words[2 * i + 1];
        if (!shard_is_live(kw))
            continue;
        if (y->trips < MOVE_TRIPS) /* a step has more than that at its beginning */
            return SHARD_MORE;
        bool choice = shard_kw_choice(kw);
        uint64_t level = shard_unquotient(shard_kw_rem(kw), bucket, y->part->number, st->p, st->implied);
        uint64_t h = shard_unrehash(level, st->level_seed[choice], st->p, st->hash_bits);
        int err = drain_pair(y, &(source){at + 16 * i, 2, kw, shard_i_key(st, h)}, h);
        if (err < 0)
            return err;
        if (err == SHARD_LEFT)
            all = SHARD_LEFT;
    }
    return all;
}


int shard_i_drain_node(shard_try *y, far_addr at, const shard_i_node *node) {
    int all = SHARD_GONE;
    for (unsigned i = 0; i < SHARD_I_NODE_SLOTS; i++) {
        const shard_i_slot *slot = &node->slot[i];
        if (!(slot->state & SHARD_STATE_LIVE))
            continue;
        if (y->trips <= 0)
            return SHARD_MORE;
        uint64_t again[2]; /* the slot crosses lines: key between two looks at the state */
        far_read(y->t, at + i * sizeof(*slot) + 8, &again[0], 8);
        far_read(y->t, at + i * sizeof(*slot) + 16, &again[1], 8);
        int err = far_wait(y->t);
        y->trips--;
        if (err < 0)
            return err;
        if (again[1] == slot->state) {
            uint64_t h = shard_hash(y->index, (far_bytes){&again[0], 8});
            err = drain_pair(y, &(source){at + i * sizeof(*slot), 3, slot->state, again[0]}, h);
        } else {
            err = again[1] & SHARD_STATE_LIVE ? SHARD_LEFT : SHARD_GONE;
        }
        if (err < 0)
            return err;
        if (err == SHARD_LEFT)
            all = SHARD_LEFT;
    }
    return all;
}
