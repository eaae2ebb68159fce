/* Layout I: drains pairs of levels 2 and 3. The hash, and so the home of a pair, follows from where it
 * lies. Under the lock of its home one batch moves it: {WRITE where it goes, WRITE where it was, free the lock}, in
 * this order. */
#include "index/shard/shard.h"
#include "runtime/error.h"

#include <string.h>

typedef struct source { /* a pair to be moved */
    far_addr addr;      /* of its value */
    int level;
    uint64_t mark; /* kw or state as it was seen */
    uint64_t key;
} source;


static bool is_linked(shard_try *y, const shard_hit *hits, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (hits[i].generation == y->d)
            return true;
    return false;
}


/* Under the lock. 1: moved, or gone; 0: it changed. The lock is freed. */
static int move_up(shard_try *y, const source *s) {
    unsigned mark_at = s->level == 2 ? 8 : 16, words = 2, count;
    uint64_t value, mark, slot[3], free;
    shard_hit above, hits[SHARD_COPIES_MAX];
    far_addr at = 0;
    far_read(y->t, s->addr, &value, 8);
    far_read(y->t, s->addr + mark_at, &mark, 8);
    int err = far_wait(y->t);
    if (err < 0)
        return err;
    if (mark != s->mark) {
        err = shard_i_unlock(y, y->home);
        return err < 0 ? err : 0;
    }
    if ((err = shard_find_overflow(y, y->home->w[SHARD_I_H], false, hits, &count)) < 0)
        return err;
    int empty = shard_i_free_slot(y, y->home->w);
    if (shard_i_find_l1(y, &above) || is_linked(y, hits, count)) {
        words = 0; /* moved by a drain that died */
    } else if (empty >= 0) {
        at = y->home->addr + 16ull * (unsigned)empty;
        slot[0] = value;
        slot[1] = shard_kw(y->d, false, shard_kw_gen(y->home->w[2 * empty + 1]) + 1, shard_rem(y, -1));
    } else if ((err = shard_i_place(y, value, &at, slot, &words)) < 0) {
        return err;
    }
    free = s->level == 2 ? shard_kw_free(shard_kw_gen(mark)) : shard_state_word(0, 0, shard_state_gen(mark));
    far_point(y->t, "shard:drain_move");
    if (words)
        far_write(y->t, at, slot, 8 * words);
    far_write(y->t, s->addr + mark_at, &free, 8);
    shard_count(&y->st->counters.drained);
    err = shard_i_unlock(y, y->home);
    return err < 0 ? err : 1;
}


static int drain_pair(shard_try *y, const source *s, uint64_t h) {
    uint64_t seen;
    y->key = (far_bytes){&s->key, 8};
    int err = shard_drain_home(y, h);
    if (err < 0 || (err = shard_i_lock(y, y->home, &seen)) < 0)
        return err;
    if (err == 0) {
        err = shard_i_help(y->t, y->index, y->part, y->home, seen);
        return err < 0 ? err : 0;
    }
    if (shard_header_v(y->home->w[SHARD_I_H]) != y->d) {
        err = shard_i_unlock(y, y->home);
        return err < 0 ? err : 0;
    }
    err = move_up(y, s);
    if (err < 0 && !shard_is_lost(err)) {
        int unlocked = shard_i_unlock(y, y->home); /* nothing was changed */
        return unlocked < 0 ? unlocked : err;
    }
    shard_unlatch(y);
    return err;
}


int shard_i_drain_l2(shard_try *y, far_addr at, const uint64_t *words, uint64_t bucket) {
    const shard_state *st = y->st;
    bool all = true;
    for (unsigned i = 0; i < SHARD_L2_I_SLOTS; i++) {
        uint64_t kw = words[2 * i + 1];
        if (!(kw & SHARD_V))
            continue;
        bool choice = shard_kw_choice(kw);
        uint64_t level = shard_unquotient(shard_kw_rem(kw), bucket, y->part->number, st->p, st->implied);
        uint64_t h = shard_unrehash(level, st->level_seed[choice], st->p, st->hash_bits);
        int err = drain_pair(y, &(source){at + 16 * i, 2, kw, shard_i_key(st, h)}, h);
        if (err < 0)
            return err;
        all &= err == 1;
    }
    return all;
}


int shard_i_drain_node(shard_try *y, far_addr at, const shard_i_node *node) {
    bool all = true;
    for (unsigned i = 0; i < 5; i++) {
        const shard_i_slot *slot = &node->slot[i];
        if (!(slot->state & SHARD_STATE_LIVE))
            continue;
        uint64_t again[2]; /* the slot crosses lines: key between two looks at the state */
        far_read(y->t, at + i * sizeof(*slot) + 8, &again[0], 8);
        far_read(y->t, at + i * sizeof(*slot) + 16, &again[1], 8);
        int err = far_wait(y->t);
        if (err >= 0 && again[1] == slot->state) {
            uint64_t h = shard_hash(y->index, (far_bytes){&again[0], 8});
            err = drain_pair(y, &(source){at + i * sizeof(*slot), 3, slot->state, again[0]}, h);
        }
        if (err < 0)
            return err;
        all &= err == 1;
    }
    return all;
}
