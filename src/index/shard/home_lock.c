/* Layout P under the home lock: keys that overflow, closed buckets (no EMPTY word left: TOMBs are used again), and keys
 * of which an old copy may hide below. The lock is the header; gets, and inserts, updates and deletes that one CAS
 * does, never take it. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch.h"

#include <string.h>


static uint64_t *header_of(shard_try *y) {
    return &y->home->w[SHARD_P_HEADER];
}


int shard_p_lock(shard_try *y, shard_beside *beside) {
    uint64_t expected = *header_of(y), old;
    if (shard_header_owner(expected) || !far_latch_try(y->t, y->home->addr))
        return 0;
    y->latched = y->home->addr;
    uint64_t mine = shard_header_locked(expected, far_task_client(y->t), SHARD_OP_OTHER);
    int err = shard_lock_and_read(y, y->home, SHARD_P_HEADER, expected, mine, &old, beside);
    if (err == 1)
        *header_of(y) = mine; /* the image may have been cut before it */
    return err;
}


int shard_p_unlock(shard_try *y, bool wait) {
    uint64_t *word = far_scratch(y->t, sizeof(*word));
    int err;
    if (!word)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a word");
    *word = shard_header_unlocked(*header_of(y));
    far_write(y->t, y->home->addr + 8 * SHARD_P_HEADER, word, 8);
    err = wait ? far_wait(y->t) : far_post(y->t);
    shard_unlatch(y);
    return err;
}


/* Somewhere in the chain, from the head on. */
static int place_in_chain(shard_try *y, far_addr head, uint64_t word) {
    shard_p_node node;
    shard_chain chain = {0};
    y->landed = 3;
    shard_want(y->part, shard_home_v(y) + 1);
    for (far_addr at = head;; at = node.next, y->walked++) {
        int err = shard_follow(y->index, &chain, at);
        if (err < 0)
            return err;
        far_read(y->t, at, &node, sizeof(node));
        if ((err = far_wait(y->t)) < 0)
            return err;
        for (unsigned i = 0; i < SHARD_P_NODE_SLOTS; i++) {
            uint64_t old = 1;
            if (node.entry[i] == 0 && (err = far_cas_word(y->t, at + 8 * i, 0, word, &old)) < 0)
                return err;
            if (old == 0)
                return SHARD_DONE;
        }
        if (node.next == 0 && (err = shard_append_node(y, at, &(shard_p_node){.entry = {word}})) != 0)
            return err;
        if (node.next == 0) {
            far_read(y->t, at + offsetof(shard_p_node, next), &node.next, 8);
            if ((err = far_wait(y->t)) < 0)
                return err;
        }
    }
}


/* The key is announced, and counted, before it is there. */
static int place_in_overflow(shard_try *y, uint64_t word) {
    shard_overflow *o = far_scratch(y->t, sizeof(*o));
    if (!o)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    int err = shard_make_overflow(y->t, y->index, y->part, y->d); /* the bucket may have had room before the lock */
    if (err < 0)
        return err;
    if ((err = shard_put_overflow(y, y->d, o)) == 1)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a table of level 2 is missing", y->index->name);
    uint64_t before = *header_of(y);
    *header_of(y) = shard_header_overflows(before, shard_bit(y->st, y->h));
    far_write(y->t, y->home->addr + 8 * SHARD_P_HEADER, header_of(y), 8);
    if (err < 0 || (err = far_wait(y->t)) < 0)
        return err;
    shard_count(&y->st->counters.overflows);
    y->landed = 2;
    for (unsigned choice = 0; choice < 2; choice++)
        for (unsigned i = 0; i < y->st->l2_slots; i++) {
            uint64_t old = 1;
            if (o->l2[choice][i] == 0 && (err = far_cas_word(y->t, o->at[choice] + 8 * i, 0, word, &old)) < 0)
                return err;
            if (old == 0)
                return SHARD_DONE;
        }
    if ((err = place_in_chain(y, o->head, word)) < 0)
        *header_of(y) = before; /* without memory for a node nothing is there that was announced */
    return err;
}


/* A closed bucket: no EMPTY word of its era is left, so nobody changes one of its free words without the lock. The entry
 * goes to one of them, and the others become EMPTY words of the next era, in the same round trip, if one may begin. The
 * header says so when the lock is freed: nobody uses them before. A client that dies on the way leaves words that
 * the next one finds here. */
static int reopen(shard_try *y, unsigned slot, uint64_t entry) {
    uint64_t *w = y->home->w, header = *header_of(y), old[SHARD_P_SLOTS];
    unsigned era = shard_next_era(header, far_epoch(y->t)), opened = 0;
    if (era == 0)
        far_epoch_request(far_task_pool(y->t)); /* an era may begin soon */
    for (unsigned i = 0; i < y->st->slots; i++) {
        if (!shard_p_is_closed(header, w[i]) || (i != slot && era == 0))
            continue;
        far_cas(y->t, y->home->addr + 8ull * i, w[i], i == slot ? entry : shard_empty_again(y->d, era), &old[i]);
        opened += i != slot;
    }
    int err = far_wait(y->t);
    for (unsigned i = 0; err >= 0 && i < y->st->slots; i++)
        if (shard_p_is_closed(header, w[i]) && (i == slot || era) && old[i] != w[i])
            return far_fail(FAR_ERR_CORRUPT, "index '%s': a free word changed under the lock of its bucket",
                            y->index->name);
    if (err < 0)
        return err;
    far_point(y->t, "shard:reopened");
    if (opened) {
        *header_of(y) = shard_header_of_era(header, era);
        shard_count(&y->st->counters.reopened);
    }
    return SHARD_DONE;
}


/* A new entry: EMPTY words are still taken in the key's order, because others insert without the lock; then any word
 * that is free; then below. */
int shard_p_place(shard_try *y, unsigned class, far_addr block) {
    uint64_t word = shard_entry(y->d, shard_tag(y->h, y->st->p, y->st->b, y->d), class, block), old;
    int slot = shard_p_first_open(y, y->home->w), err;
    if (slot >= 0) {
        uint64_t expected = y->home->w[slot];
        err = far_cas_word(y->t, y->home->addr + 8ull * (unsigned)slot, expected, word, &old);
        return err < 0 ? err : old == expected ? SHARD_DONE : SHARD_AGAIN;
    }
    if ((slot = shard_p_first_closed(y, y->home->w)) >= 0)
        return reopen(y, (unsigned)slot, word);
    far_point(y->t, "shard:place_in_overflow");
    return place_in_overflow(y, shard_entry(0, shard_top_tag(y->h), class, block));
}


static int clear_copies(shard_try *y, const shard_hit *hits, unsigned count) {
    uint64_t old[SHARD_COPIES_MAX];
    if (count == 0)
        return 0;
    for (unsigned i = 0; i < count; i++)
        far_cas(y->t, hits[i].addr, hits[i].word, 0, &old[i]);
    int err = far_wait(y->t);
    for (unsigned i = 0; err >= 0 && i < count; i++)
        if (old[i] != hits[i].word)
            return far_fail(FAR_ERR_CORRUPT, "index '%s': a key of level 2 changed under its lock", y->index->name);
    if (err >= 0)
        shard_recover(y, header_of(y), hits, count);
    return err;
}


/* The key is at level 1, and nobody but us changes its copies below: those go first. */
static int change_above(shard_try *y, far_op_kind how, shard_hit hit, const shard_hit *hits, unsigned count) {
    int err = clear_copies(y, hits, count);
    if (err < 0)
        return err;
    far_point(y->t, "shard:copies_cleared");
    uint64_t old, word = how == FAR_OP_DELETE ? shard_tomb(y->d)
                                              : shard_entry(y->d, shard_entry_tag(hit.word), y->class, y->block);
    if ((err = far_cas_word(y->t, hit.addr, hit.word, word, &old)) < 0)
        return err;
    if (old != hit.word)
        return SHARD_AGAIN;
    shard_p_retire(y, hit.word);
    return SHARD_DONE;
}


/* The key is below only; hits: the older generation first. */
static int change_in_overflow(shard_try *y, far_op_kind how, const shard_hit *hits, unsigned count) {
    const shard_hit *last = &hits[count - 1];
    uint64_t old, word = how == FAR_OP_DELETE ? 0 : shard_entry(0, shard_top_tag(y->h), y->class, y->block);
    int err = clear_copies(y, hits, count - 1);
    if (err < 0 || (err = far_cas_word(y->t, last->addr, last->word, word, &old)) < 0)
        return err;
    if (old != last->word)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a key of level 2 changed under its lock", y->index->name);
    shard_p_retire(y, last->word);
    if (how == FAR_OP_DELETE)
        shard_recover(y, header_of(y), last, 1);
    return SHARD_DONE;
}


/* Whether the key lies below where it was seen before the lock was taken, and nowhere else there: that word is the same
 * under the lock. (Its block is not used again while we are pinned, so the word did not go and come back.) */
static bool is_still_there(const shard_try *y, const shard_hit *seen, const shard_beside *beside) {
    unsigned generation[2];
    return beside->count && beside->word[0] == seen->word &&
           shard_generations(y, y->home->w[SHARD_P_HEADER], generation) == 1 && generation[0] == seen->generation;
}


static int change(shard_try *y, far_op_kind how, const shard_hit *seen, const shard_beside *beside) {
    shard_hit above, hits[SHARD_COPIES_MAX];
    unsigned count = 1;
    int found = shard_find_l1(y, *header_of(y), false, &above), err = 0;
    if (is_still_there(y, seen, beside))
        hits[0] = *seen;
    else if (found >= 0)
        err = shard_find_overflow(y, *header_of(y), false, hits, &count);
    if (found < 0 || err < 0)
        return found < 0 ? found : err;
    bool present = found || count;
    if ((err = shard_refusal(how, present)) < 0)
        return err;
    if (present == y->inserting) /* the key would be counted wrongly: start over */
        return SHARD_AGAIN;
    if (found)
        return change_above(y, how, above, hits, count);
    if (count)
        return change_in_overflow(y, how, hits, count);
    return shard_p_place(y, y->class, y->block);
}


int shard_p_change_under_lock(shard_try *y, far_op_kind how, const shard_hit *seen) {
    bool full = shard_p_first_open(y, y->home->w) < 0 && shard_p_first_closed(y, y->home->w) < 0;
    bool below = seen && seen->slot < 0 && seen->only;
    shard_beside beside = {.count = below, .at = {below ? seen->addr : 0}};
    int err = 0;
    y->inserting = !seen;
    if (y->inserting && full && (err = shard_make_overflow(y->t, y->index, y->part, y->d)) < 0)
        return err;
    if ((err = shard_p_lock(y, below ? &beside : NULL)) <= 0)
        return err;
    err = change(y, how, seen, &beside);
    if (shard_is_lost(err)) {
        shard_unlatch(y);
        return err;
    }
    int unlocked = shard_p_unlock(y, err != SHARD_DONE);
    if (err == SHARD_DONE)
        y->block = 0;
    return unlocked < 0 ? unlocked : err;
}
