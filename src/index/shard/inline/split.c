/* Inline layout: splits a bucket at version d-1, whose lock is held, into a parent and a child at version d, and
 * finishes the splits of failed clients. A split takes one round trip: WRITE of the parent with the marks MOVING (header
 * H) and LEAVING (pairs that move), WRITE of the child, WRITE of the parent.
 *
 * The words of a WRITE become visible in ascending order. The last two words of a bucket are its header H and its lock
 * word K. Therefore the child's H shows that the child's pairs are written, and the child's K shows that the child may
 * be locked. The parent's H and K are the last words of the split. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/format/clients.h"

#include <string.h>

enum { ANNOUNCED_BYTES = 8 * (SHARD_I_H + 1) }; /* the part of the parent that announces a split: all but the lock K */


/* Returns true if the pair leaves the bucket at version d. The hash bit that decides is part of the remainder. */
static bool pair_moves(const shard_state *st, uint64_t kw, unsigned d) {
    return shard_kw_rem(kw) >> (st->p + st->b + d - 1 - st->implied) & 1;
}


static void finish_half(const uint64_t *from, unsigned d, uint64_t *to) {
    to[SHARD_I_H] = shard_header(d, 0, shard_header_fnew(from[SHARD_I_H]));
    to[SHARD_I_K] = SHARD_K_FREE;
}


/* Builds the image of the parent after the split. Pairs that stay keep their slots, because a reader may see some words
 * from before the split and others from after it. Words that have version d already, from the split of a failed client,
 * are kept as well. */
static void build_parent(const shard_state *st, const uint64_t *from, unsigned d, uint64_t *to) {
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++) {
        uint64_t kw = from[2 * i + 1];
        bool here = (kw & SHARD_V) && (shard_kw_stamp_is(kw, d) || !pair_moves(st, kw, d));
        /* Values are copied even for pairs that leave, because a reader may combine this value with the old key word.
         */
        to[2 * i] = from[2 * i];
        to[2 * i + 1] =
            here ? shard_kw(d, false, shard_kw_gen(kw), shard_kw_rem(kw)) : shard_kw_empty(d, shard_kw_gen(kw));
    }
    finish_half(from, d, to);
}


/* Builds the image that announces the split: the parent with the mark MOVING in its header and the mark LEAVING in each
 * pair that moves. It ends with the header, so that it does not change the lock. */
static void build_announcement(const shard_state *st, const uint64_t *from, unsigned d, uint64_t *to) {
    memcpy(to, from, ANNOUNCED_BYTES);
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++)
        if ((from[2 * i + 1] & SHARD_V) && !shard_kw_stamp_is(from[2 * i + 1], d) && pair_moves(st, from[2 * i + 1], d))
            to[2 * i + 1] |= SHARD_I_LEAVING;
    to[SHARD_I_H] |= SHARD_MOVING;
}


/* Builds the image of the child. The pairs that move to the child get new slots in their keys' probe order, which is
 * safe because no client has read the child yet. */
static void build_child(const shard_state *st, const shard_partition *part, const shard_image *parent, unsigned d,
                        uint64_t *to) {
    const uint64_t *from = parent->w;
    shard_op op = {.st = (shard_state *)st};
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++) {
        to[2 * i] = 0;
        to[2 * i + 1] = shard_kw_empty(d, 0);
    }
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++) {
        uint64_t kw = from[2 * i + 1];
        if (!(kw & SHARD_V) || shard_kw_stamp_is(kw, d) || !pair_moves(st, kw, d))
            continue;
        op.h = shard_unquotient(shard_kw_rem(kw), parent->bucket, part->number, st->p, st->implied);
        unsigned slot = (unsigned)shard_i_find_free_slot(&op, to);
        to[2 * slot] = from[2 * i];
        to[2 * slot + 1] = shard_kw(d, false, 1, shard_kw_rem(kw));
    }
    finish_half(from, d, to);
}


static int find_slot(const shard_op *op, const uint64_t *w) {
    for (int i = 0; i < SHARD_I_SLOTS; i++)
        if (shard_kw_matches(w[2 * i + 1], shard_rem(op, -1), false))
            return i;
    return -1;
}


/* Returns a slot for a new pair, or -1. In the parent the slot must have been free before the split too, because a
 * reader may combine the new value with the key word that the slot had before. */
static int find_safe_slot(const shard_op *op, const uint64_t *half, const uint64_t *before) {
    uint64_t w[SHARD_WORDS];
    memcpy(w, half, sizeof(w));
    for (unsigned i = 0; before && i < SHARD_I_SLOTS; i++)
        if (before[2 * i + 1] & SHARD_V)
            w[2 * i + 1] = before[2 * i + 1];
    return shard_i_find_free_slot(op, w);
}


/* Applies the operation's own change to the half (parent or child) to which the key belongs. `before` is the parent
 * before the split. */
static void apply_own_change(shard_own_change *own, unsigned d, uint64_t *child, uint64_t *parent,
                             const uint64_t *before) {
    const shard_op *op = own->op;
    bool moves = shard_key_moves(op->h, op->st->p, op->st->b, d);
    uint64_t *half = moves ? child : parent;
    int slot = own->slot >= 0 ? find_slot(op, half) : find_safe_slot(op, half, moves ? NULL : before);
    if (slot < 0)
        return;
    uint64_t *kw = &half[2 * slot + 1];
    if (own->remove)
        *kw = shard_kw_empty(d, shard_kw_gen(*kw));
    else
        half[2 * slot] = own->value;
    if (own->slot < 0)
        *kw = shard_kw(d, false, shard_kw_gen(*kw) + 1, shard_rem(op, -1));
    own->carried = true;
    shard_count_event(&op->st->counters.merged);
}


/* Writes child and parent. The caller holds the parent's lock, which the last WRITE frees. `child` is 0 if the child is
 * complete already. `own` is the operation's own change, or NULL. Returns 0 or an error. */
static int write_halves(far_task *t, shard_state *st, const shard_partition *part, const shard_image *parent,
                        far_addr child, shard_own_change *own) {
    unsigned d = shard_header_v(parent->w[SHARD_I_H]) + 1;
    uint64_t *images = far_scratch(t, 3 * SHARD_BUCKET_BYTES), *announcement = images + 2 * SHARD_WORDS;
    int err;
    if (!images)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    build_announcement(st, parent->w, d, announcement);
    build_child(st, part, parent, d, images);
    build_parent(st, parent->w, d, images + SHARD_WORDS);
    if (own)
        apply_own_change(own, d, images, images + SHARD_WORDS, parent->w);
    far_point(t, "shard:write_halves");
    far_write(t, parent->addr, announcement, ANNOUNCED_BYTES);
    if (!st->combining && (err = far_wait(t)) < 0)
        return err;
    if (child)
        far_write(t, child, images, SHARD_BUCKET_BYTES);
    if (!st->combining && (err = far_wait(t)) < 0)
        return err;
    far_write(t, parent->addr, images + SHARD_WORDS, SHARD_BUCKET_BYTES);
    return far_wait(t);
}


int shard_i_child_addr(far_task *t, shard_state *st, shard_partition *part, uint64_t parent, unsigned d,
                       far_addr *child) {
    if (d == 0 || d >= SHARD_VERSIONS ||
        st->p + st->b + d - 1 < st->implied) /* the version in the bucket's header is damaged */
        return far_fail(FAR_ERR_CORRUPT, "the version of a bucket of a shard index is corrupt");
    int err = shard_bucket_addr(t, st, part, parent + (1ull << (st->b + d - 1)), child);
    if (err >= 0 && *child == 0)
        return far_fail(FAR_ERR_CORRUPT, "a segment of a shard index is missing");
    return err;
}


static int child_addr_of(far_task *t, shard_state *st, shard_partition *part, const shard_image *parent,
                         far_addr *child) {
    return shard_i_child_addr(t, st, part, parent->bucket, shard_header_v(parent->w[SHARD_I_H]) + 1, child);
}


int shard_i_split(shard_op *op, const shard_image *parent, shard_own_change *own) {
    far_addr child;
    int err = child_addr_of(op->t, op->st, op->part, parent, &child);
    if (err >= 0)
        err = write_halves(op->t, op->st, op->part, parent, child, own);
    if (err < 0 && !shard_session_is_lost(err)) {
        shard_i_unlock(op, parent); /* the error occurred before any change, so the lock can be freed */
        return err;
    }
    shard_count_event(&op->st->counters.splits_graced);
    shard_release_latch(op);
    return err < 0 ? err : 1;
}


/* Finishes the split of a failed client. The caller has taken over the lock of the failed client. Returns 0 or an
 * error. */
static int finish_split(far_task *t, far_index *index, shard_partition *part, shard_image *parent) {
    shard_state *st = shard_state_of(index);
    far_addr child;
    uint64_t *w = far_scratch(t, SHARD_BUCKET_BYTES), old;
    if (!w)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a bucket");
    int err = child_addr_of(t, st, part, parent, &child);
    if (err < 0)
        return err;
    far_read(t, child, w, SHARD_BUCKET_BYTES);
    if ((err = far_wait(t)) < 0)
        return err;
    if (shard_is_unwritten(st, w))
        return write_halves(t, st, part, parent, child, NULL);
    if (w[SHARD_I_K] == 0 && (err = far_cas_word(t, child + 8 * SHARD_I_K, 0, SHARD_K_FREE, &old)) < 0)
        return err;
    return write_halves(t, st, part, parent, 0, NULL);
}


int shard_i_recover_lock(far_task *t, far_index *index, shard_partition *part, const shard_image *image, uint64_t k) {
    shard_state *st = shard_state_of(index);
    uint64_t mine = shard_k(far_task_client(t), far_task_number(t)), old;
    far_addr at = image->addr + 8 * SHARD_I_K;
    if (shard_k_owner(k) == 0)
        return 0;
    int dead = far_client_confirm_failed_pinned(t, shard_k_owner(k), FAR_ANY_GENERATION);
    if (dead <= 0)
        return dead;
    int err = far_cas_word(t, at, k, mine, &old);
    if (err < 0 || old != k)
        return err;
    shard_count_event(&st->counters.takeovers);
    far_point(t, "shard:taken_over");
    shard_image *now = far_scratch(t, sizeof(*now));
    if (!now)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a bucket");
    now->bucket = image->bucket;
    now->addr = image->addr;
    far_read(t, now->addr, now->w, SHARD_BUCKET_BYTES);
    if ((err = far_wait(t)) < 0)
        return err;
    if (now->w[SHARD_I_H] & SHARD_MOVING)
        return finish_split(t, index, part, now);
    return far_write_word(t, at, SHARD_K_FREE);
}
