/* Pointer layout: writes under the lock of the main bucket (its header is the lock). They are needed for keys that
 * overflow to levels 2 and 3, for closed buckets (which have no EMPTY word left, so TOMBs must be reused), and for keys
 * of which a failed drain may have left a copy below level 1. Gets never take the lock. Inserts, updates and deletes
 * that one CAS can do do not take the lock either. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch/epoch.h"

#include <string.h>


static uint64_t *header_word(shard_op *op) {
    return &op->main->w[SHARD_P_HEADER];
}


int shard_p_lock(shard_op *op, shard_extra_words *extra) {
    uint64_t expected = *header_word(op), old;
    if (shard_header_owner(expected) || !far_latch_try(op->t, op->main->addr))
        return 0;
    op->latched = op->main->addr;
    uint64_t mine = shard_header_locked(expected, far_task_client(op->t), SHARD_OP_OTHER);
    int err = shard_lock_and_read(op, op->main, SHARD_P_HEADER, expected, mine, &old, extra);
    if (err == 1)
        /* sets the owner in the image, because the image may have been read before the CAS that took the lock */
        *header_word(op) = mine;
    return err;
}


int shard_p_unlock(shard_op *op, bool wait) {
    uint64_t *word = far_scratch(op->t, sizeof(*word));
    int err;
    if (!word)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a word");
    *word = shard_header_unlocked(*header_word(op));
    far_write(op->t, op->main->addr + 8 * SHARD_P_HEADER, word, 8);
    err = wait ? far_wait(op->t) : far_post(op->t);
    shard_release_latch(op);
    return err;
}


/* Puts the entry into the first free word of the chain that begins at `head`, and appends a node if there is none. */
static int place_in_chain(shard_op *op, far_addr head, uint64_t word) {
    shard_p_node node;
    shard_chain chain = {0};
    op->insert_level = 3;
    shard_request_doubling(op->part, shard_main_version(op) + 1);
    for (far_addr at = head;; at = node.next, op->nodes_passed++) {
        int err = shard_chain_step(op->index, &chain, at);
        if (err < 0)
            return err;
        far_read(op->t, at, &node, sizeof(node));
        if ((err = far_wait(op->t)) < 0)
            return err;
        for (unsigned i = 0; i < SHARD_P_NODE_SLOTS; i++) {
            uint64_t old = 1;
            if (node.entry[i] == 0 && (err = far_cas_word(op->t, at + 8 * i, 0, word, &old)) < 0)
                return err;
            if (old == 0)
                return SHARD_DONE;
        }
        if (node.next == 0 && (err = shard_append_node(op, at, &(shard_p_node){.entry = {word}})) != 0)
            return err;
        if (node.next == 0) {
            far_read(op->t, at + offsetof(shard_p_node, next), &node.next, 8);
            if ((err = far_wait(op->t)) < 0)
                return err;
        }
    }
}


/* Puts the entry at level 2 or 3. The filter bit and the count in the header are written first, so that no search can
 * miss the key. */
static int place_in_overflow(shard_op *op, uint64_t word) {
    shard_overflow *o = far_scratch(op->t, sizeof(*o));
    if (!o)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    /* The bucket may have had a free slot before it was locked. Then the tables were not made before, so they are made
     * now. */
    int err = shard_make_overflow_tables(op->t, op->index, op->part, op->d);
    if (err < 0)
        return err;
    if ((err = shard_add_overflow_reads(op, op->d, o)) == 1)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a level-2 table is missing", op->index->name);
    uint64_t before = *header_word(op);
    *header_word(op) = shard_header_add_overflowed(before, shard_overflow_bit(op->st, op->h));
    far_write(op->t, op->main->addr + 8 * SHARD_P_HEADER, header_word(op), 8);
    if (err < 0 || (err = far_wait(op->t)) < 0)
        return err;
    shard_count_event(&op->st->counters.overflows);
    op->insert_level = 2;
    for (unsigned choice = 0; choice < 2; choice++)
        for (unsigned i = 0; i < op->st->l2_slots; i++) {
            uint64_t old = 1;
            if (o->l2[choice][i] == 0 && (err = far_cas_word(op->t, o->at[choice] + 8 * i, 0, word, &old)) < 0)
                return err;
            if (old == 0)
                return SHARD_DONE;
        }
    if ((err = place_in_chain(op, o->head, word)) < 0)
        /* If there is no memory for a chain node, nothing was stored, so the header is restored without the filter bit
         * and the count. */
        *header_word(op) = before;
    return err;
}


/* Inserts an entry into a closed bucket and reopens the bucket. A closed bucket has no EMPTY word of its cycle, so no
 * client changes its free words without the lock. The entry is written to `slot`. In the same round trip all other free
 * words become EMPTY words of the next cycle, if a next cycle may begin. The new cycle is written to the header when
 * the lock is freed, and no client uses these words before that. If the client fails before that, the words count as
 * closed, and the next client that takes the lock reopens the bucket again. */
static int reopen_bucket(shard_op *op, unsigned slot, uint64_t entry) {
    uint64_t *w = op->main->w, header = *header_word(op), old[SHARD_P_SLOTS];
    unsigned cycle = shard_next_cycle(header, far_epoch(op->t)), opened = 0;
    if (cycle == 0)
        /* requests an epoch, because a new cycle may begin only in a later epoch */
        far_epoch_request(far_task_pool(op->t));
    for (unsigned i = 0; i < op->st->slots; i++) {
        if (!shard_p_word_is_closed(header, w[i]) || (i != slot && cycle == 0))
            continue;
        far_cas(op->t, op->main->addr + 8ull * i, w[i], i == slot ? entry : shard_empty_in_cycle(op->d, cycle),
                &old[i]);
        opened += i != slot;
    }
    int err = far_wait(op->t);
    for (unsigned i = 0; err >= 0 && i < op->st->slots; i++)
        if (shard_p_word_is_closed(header, w[i]) && (i == slot || cycle) && old[i] != w[i])
            return far_fail(FAR_ERR_CORRUPT, "index '%s': a free slot changed although its bucket was locked",
                            op->index->name);
    if (err < 0)
        return err;
    far_point(op->t, "shard:reopened");
    if (opened) {
        *header_word(op) = shard_header_in_cycle(header, cycle);
        shard_count_event(&op->st->counters.reopened);
    }
    return SHARD_DONE;
}


/* Places a new entry. Even under the lock, EMPTY words must be taken in the key's probe order, because other clients
 * insert without the lock. If the bucket has no EMPTY word, any closed word is used, and if it has no closed word
 * either, levels 2 and 3 are used. */
int shard_p_place_entry(shard_op *op, unsigned class, far_addr block) {
    uint64_t word = shard_entry(op->d, shard_tag(op->h, op->st->p, op->st->b, op->d), class, block), old;
    int slot = shard_p_first_open(op, op->main->w), err;
    if (slot >= 0) {
        uint64_t expected = op->main->w[slot];
        err = far_cas_word(op->t, op->main->addr + 8ull * (unsigned)slot, expected, word, &old);
        return err < 0 ? err : old == expected ? SHARD_DONE : SHARD_AGAIN;
    }
    if ((slot = shard_p_first_closed(op, op->main->w)) >= 0)
        return reopen_bucket(op, (unsigned)slot, word);
    far_point(op->t, "shard:place_in_overflow");
    return place_in_overflow(op, shard_entry(0, shard_top_tag(op->h), class, block));
}


static int clear_copies(shard_op *op, const shard_hit *hits, unsigned count) {
    uint64_t old[SHARD_COPIES_MAX];
    if (count == 0)
        return 0;
    for (unsigned i = 0; i < count; i++)
        far_cas(op->t, hits[i].addr, hits[i].word, 0, &old[i]);
    int err = far_wait(op->t);
    for (unsigned i = 0; err >= 0 && i < count; i++)
        if (old[i] != hits[i].word)
            return far_fail(FAR_ERR_CORRUPT, "index '%s': a key at level 2 changed although its bucket was locked",
                            op->index->name);
    if (err >= 0)
        shard_uncount_overflow(op, header_word(op), hits, count);
    return err;
}


/* Changes a key that is at level 1. The copies of the key at levels 2 and 3 are removed first, so that they cannot
 * become visible when the key at level 1 is deleted. Only the lock holder changes these copies. */
static int change_at_level_1(shard_op *op, far_op_kind how, shard_hit hit, const shard_hit *hits, unsigned count) {
    int err = clear_copies(op, hits, count);
    if (err < 0)
        return err;
    far_point(op->t, "shard:copies_cleared");
    uint64_t old, word = how == FAR_OP_DELETE ? shard_tomb(op->d)
                                              : shard_entry(op->d, shard_entry_tag(hit.word), op->class, op->block);
    if ((err = far_cas_word(op->t, hit.addr, hit.word, word, &old)) < 0)
        return err;
    if (old != hit.word)
        return SHARD_AGAIN;
    shard_p_retire_block(op, hit.word);
    return SHARD_DONE;
}


/* Changes a key that is only below level 1. `hits` has the older generation first. */
static int change_in_overflow(shard_op *op, far_op_kind how, const shard_hit *hits, unsigned count) {
    const shard_hit *last = &hits[count - 1];
    uint64_t old, word = how == FAR_OP_DELETE ? 0 : shard_entry(0, shard_top_tag(op->h), op->class, op->block);
    int err = clear_copies(op, hits, count - 1);
    if (err < 0 || (err = far_cas_word(op->t, last->addr, last->word, word, &old)) < 0)
        return err;
    if (old != last->word)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a key at level 2 changed although its bucket was locked",
                        op->index->name);
    shard_p_retire_block(op, last->word);
    if (how == FAR_OP_DELETE)
        shard_uncount_overflow(op, header_word(op), last, 1);
    return SHARD_DONE;
}


/* Returns true if the key is still at the place below level 1 where it was seen before the lock was taken, and has no
 * other copy there. An equal word is sufficient proof: the pair block that the word names is not reused while this
 * client is pinned, so the word cannot have changed and changed back. */
static bool seen_word_is_unchanged(const shard_op *op, const shard_hit *seen, const shard_extra_words *extra) {
    unsigned generation[2];
    return extra->count && extra->word[0] == seen->word &&
           shard_generations_to_search(op, op->main->w[SHARD_P_HEADER], generation) == 1 &&
           generation[0] == seen->generation;
}


static int change_locked(shard_op *op, far_op_kind how, const shard_hit *seen, const shard_extra_words *extra) {
    shard_hit above, hits[SHARD_COPIES_MAX];
    unsigned count = 1;
    int found = shard_find_l1(op, *header_word(op), false, &above), err = 0;
    if (seen_word_is_unchanged(op, seen, extra))
        hits[0] = *seen;
    else if (found >= 0)
        err = shard_find_overflow(op, *header_word(op), false, hits, &count);
    if (found < 0 || err < 0)
        return found < 0 ? found : err;
    bool present = found || count;
    if ((err = shard_presence_error(how, present)) < 0)
        return err;
    /* `inserting` was determined before the lock was taken. If the key was inserted or deleted since, the caller's
     * change of the number of keys would be wrong. */
    if (present == op->inserting)
        return SHARD_AGAIN;
    if (found)
        return change_at_level_1(op, how, above, hits, count);
    if (count)
        return change_in_overflow(op, how, hits, count);
    return shard_p_place_entry(op, op->class, op->block);
}


int shard_p_change_under_lock(shard_op *op, far_op_kind how, const shard_hit *seen) {
    bool full = shard_p_first_open(op, op->main->w) < 0 && shard_p_first_closed(op, op->main->w) < 0;
    bool below = seen && seen->slot < 0 && seen->only_copy;
    shard_extra_words extra = {.count = below, .at = {below ? seen->addr : 0}};
    int err = 0;
    op->inserting = !seen;
    if (op->inserting && full && (err = shard_make_overflow_tables(op->t, op->index, op->part, op->d)) < 0)
        return err;
    if ((err = shard_p_lock(op, below ? &extra : NULL)) <= 0)
        return err;
    err = change_locked(op, how, seen, &extra);
    if (shard_session_is_lost(err)) {
        shard_release_latch(op);
        return err;
    }
    int unlocked = shard_p_unlock(op, err != SHARD_DONE);
    if (err == SHARD_DONE)
        op->block = 0;
    return unlocked < 0 ? unlocked : err;
}
