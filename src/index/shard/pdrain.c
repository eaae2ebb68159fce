/* Layout P: drains entries of levels 2 and 3. Each one moves under the home lock of its key: first it is linked where
 * it goes, then unlinked where it was. Who dies in between leaves two entries with one block. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <string.h>

enum { MOVE_TRIPS = 5 }; /* of one entry, mostly */


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
    y->trips--;
    int err = shard_put_overflow(y, y->d, &o);
    if (err)
        return err < 0 ? err : 0;
    if ((err = far_wait(y->t)) < 0)
        return err;
    shard_p_node node = o.node.p;
    shard_chain chain = {0};
    if (names(o.l2[0], 8, entry) || names(o.l2[1], 8, entry) || names(node.entry, SHARD_P_NODE_SLOTS, entry))
        return 1;
    for (far_addr at = node.next; at; at = node.next) {
        if ((err = shard_follow(y->index, &chain, at)) < 0)
            return err;
        far_read(y->t, at, &node, sizeof(node));
        if ((err = far_wait(y->t)) < 0)
            return err;
        if (names(node.entry, SHARD_P_NODE_SLOTS, entry))
            return 1;
    }
    return 0;
}


/* Under the lock: at `at` stands `entry`. SHARD_GONE: it is at version d now, and no longer there. */
static int move_up(shard_try *y, far_addr at, uint64_t entry) {
    uint64_t old;
    int err;
    for (;;) { /* ends: only inserts that won their word make it begin again, and the words of a bucket are few */
        if ((err = is_linked(y, entry)) < 0)
            return err;
        if (err == 0 && (err = shard_p_place(y, shard_entry_class(entry), shard_entry_addr(entry))) < 0)
            return err;
        if (err == SHARD_DONE)
            break;
        far_read(y->t, y->home->addr, y->home->w, 8 * SHARD_P_SLOTS); /* an insert took the word: look again */
        if ((err = far_wait(y->t)) < 0)
            return err;
    }
    far_point(y->t, "shard:drained_up");
    shard_count(&y->st->counters.drained);
    err = far_cas_word(y->t, at, entry, 0, &old);
    return err < 0 ? err : old == entry ? SHARD_GONE : SHARD_LEFT;
}


static int drain_entry(shard_try *y, far_addr at, uint64_t entry, uint64_t h) {
    shard_beside source = {.count = 1, .at = {at}};
    y->trips--;
    int err = shard_drain_home(y, h);
    if (err < 0)
        return err;
    far_read(y->t, y->home->addr, y->home->w, SHARD_BUCKET_BYTES);
    if ((err = far_wait(y->t)) < 0)
        return err;
    uint64_t header = y->home->w[SHARD_P_HEADER];
    if (shard_header_v(header) != y->d)
        return SHARD_LEFT;
    if (shard_header_owner(header)) {
        err = shard_p_help(y->t, y->index, y->part, y->home);
        return err < 0 ? err : SHARD_LEFT;
    }
    bool full = shard_p_first_open(y, y->home->w) < 0 && shard_p_first_closed(y, y->home->w) < 0;
    if (full && (err = shard_make_overflow(y->t, y->index, y->part, y->d)) < 0)
        return err;
    far_point(y->t, "shard:drain_lock");
    if ((err = shard_p_lock(y, &source)) <= 0)
        return err < 0 ? err : SHARD_LEFT;
    y->trips -= MOVE_TRIPS - 1;
    if (source.word[0] == entry)
        err = move_up(y, at, entry);
    else
        err = source.word[0] == 0 ? SHARD_GONE : SHARD_LEFT;
    if (shard_is_lost(err)) {
        shard_unlatch(y);
        return err;
    }
    int unlocked = shard_p_unlock(y, true);
    return unlocked < 0 ? unlocked : err;
}


/* Of a bucket of level 2, or of a node of a chain. The hashes stand at the head of the blocks, which are
 * not used again under the pin that saw their entries. */
int shard_p_drain_words(shard_try *y, far_addr at, const uint64_t *words, unsigned count) {
    uint64_t h[SHARD_L2_P_SLOTS];
    int all = SHARD_GONE, trips = y->trips;
    for (unsigned i = 0; i < count; i++)
        if (shard_is_live(words[i]) && trips-- > 0)
            far_read(y->t, shard_entry_addr(words[i]), &h[i], 8);
    if (trips == y->trips)
        return SHARD_GONE;
    int err = far_wait(y->t);
    if (err < 0)
        return err;
    for (unsigned i = 0; i < count; i++) {
        if (!shard_is_live(words[i]))
            continue;
        if (y->trips <= 0)
            return SHARD_MORE;
        if ((err = drain_entry(y, at + 8 * i, words[i], h[i])) < 0)
            return err;
        if (err == SHARD_LEFT)
            all = SHARD_LEFT;
    }
    return all;
}
