/* Layout P: drains entries of levels 2 and 3. Each one moves under the home lock of its key: first it is linked where
 * it goes, then unlinked where it was. Who dies in between leaves two entries with one block. */
#include "index/shard/shard.h"
#include "runtime/error.h"

#include <string.h>


static bool names(const uint64_t *words, unsigned count, uint64_t entry) {
    for (unsigned i = 0; i < count; i++)
        if (shard_is_live(words[i]) && shard_entry_block(words[i]) == shard_entry_block(entry))
            return true;
    return false;
}


/* Whether a drain that died has linked the block at the new generation already. */
static int is_linked(shard_try *y, uint64_t entry) {
    if (names(y->home->w, SHARD_P_SLOTS, entry))
        return 1;
    if (!(shard_header_fnew(y->home->w[SHARD_P_HEADER]) & shard_bit(y->st, y->h)))
        return 0;
    shard_overflow o;
    int err = shard_put_overflow(y, y->d, &o);
    if (err)
        return err < 0 ? err : 0;
    if ((err = far_wait(y->t)) < 0)
        return err;
    shard_p_node node = o.node.p;
    if (names(o.l2[0], 8, entry) || names(o.l2[1], 8, entry) || names(node.entry, 7, entry))
        return 1;
    for (far_addr at = node.next; at; at = node.next) {
        far_read(y->t, at, &node, sizeof(node));
        if ((err = far_wait(y->t)) < 0)
            return err;
        if (names(node.entry, 7, entry))
            return 1;
    }
    return 0;
}


/* Under the lock. 1: moved, or gone. */
static int move_up(shard_try *y, far_addr at, uint64_t entry) {
    uint64_t word, old;
    int err = far_read_word(y->t, at, &word);
    if (err < 0)
        return err;
    if (word != entry)
        return word == 0;
    for (;;) {
        if ((err = is_linked(y, entry)) < 0)
            return err;
        if (err == 1 || (err = shard_p_place(y, shard_entry_class(entry), shard_entry_addr(entry))) < 0)
            break;
        if (err == 1)
            break;
        far_read(y->t, y->home->addr, y->home->w, 8 * SHARD_P_SLOTS); /* an insert took the word: look again */
        if ((err = far_wait(y->t)) < 0)
            return err;
    }
    if (err < 0)
        return err;
    far_point(y->t, "shard:drained_up");
    shard_count(&y->st->counters.drained);
    err = far_cas_word(y->t, at, entry, 0, &old);
    return err < 0 ? err : old == entry;
}


/* 1: the entry is gone from there; 0: not now. */
static int drain_entry(shard_try *y, far_addr at, uint64_t entry) {
    shard_state *st = y->st;
    uint64_t h;
    int err = far_read_word(y->t, shard_entry_addr(entry), &h);
    if (err < 0 || (err = shard_drain_home(y, h)) < 0)
        return err;
    far_read(y->t, y->home->addr, y->home->w, SHARD_BUCKET_BYTES);
    if ((err = far_wait(y->t)) < 0)
        return err;
    uint64_t header = y->home->w[SHARD_P_HEADER];
    if (shard_header_v(header) != y->d)
        return 0;
    if (shard_header_owner(header)) {
        err = shard_p_help(y->t, y->index, y->part, y->home);
        return err < 0 ? err : 0;
    }
    bool closed = shard_p_first_empty(y, y->home->w) < 0, tomb = shard_p_first_tomb(y, y->home->w) >= 0;
    if (closed && (err = shard_make_overflow(y->t, y->index, y->part, y->d)) < 0)
        return err;
    far_point(y->t, "shard:drain_lock");
    if ((err = shard_p_lock(y, closed && !tomb ? shard_bit(st, h) : 0)) <= 0)
        return err;
    err = move_up(y, at, entry);
    if (shard_is_lost(err)) {
        shard_unlatch(y);
        return err;
    }
    int unlocked = shard_p_unlock(y, true);
    return unlocked < 0 ? unlocked : err;
}


/* Of a bucket of level 2, or of a node of a chain. */
int shard_p_drain_words(shard_try *y, far_addr at, const uint64_t *words, unsigned count) {
    bool all = true;
    for (unsigned i = 0; i < count; i++) {
        if (!shard_is_live(words[i]))
            continue;
        int err = drain_entry(y, at + 8 * i, words[i]);
        if (err < 0)
            return err;
        all &= err == 1;
    }
    return all;
}
