/* Layout I: a bucket at version d-1, whose lock is held, becomes two at version d, in one round trip: {WRITE H with
 * MOVING, WRITE child, WRITE parent}. Each WRITE rises: the child's H tells that its pairs are there, its K that it may
 * be locked; the parent's H and K are its last words. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/clients.h"

#include <string.h>


/* Whether the pair leaves the bucket at version d: the bit is in the remainder. */
static bool leaves(const shard_state *st, uint64_t kw, unsigned d) {
    return shard_kw_rem(kw) >> (st->p + st->b + d - 1 - st->implied) & 1;
}


static void finish_image(const uint64_t *from, unsigned d, uint64_t *to) {
    to[SHARD_I_H] = shard_header(d, 0, shard_header_fnew(from[SHARD_I_H]));
    to[SHARD_I_K] = SHARD_K_FREE;
}


/* What stays, where it is: a reader may see some of it before and some after. Words that are at d already (of a split
 * that was taken over) stay too. */
static void build_parent(const shard_state *st, const uint64_t *from, unsigned d, uint64_t *to) {
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++) {
        uint64_t kw = from[2 * i + 1];
        bool here = (kw & SHARD_V) && (shard_kw_stamp_is(kw, d) || !leaves(st, kw, d));
        to[2 * i] = from[2 * i]; /* also of what leaves: a reader may meet the value before the kw that takes it away */
        to[2 * i + 1] =
            here ? shard_kw(d, false, shard_kw_gen(kw), shard_kw_rem(kw)) : shard_kw_empty(d, shard_kw_gen(kw));
    }
    finish_image(from, d, to);
}


/* What leaves. Nobody has seen the child: its pairs go where they are looked for first. */
static void build_child(const shard_state *st, const shard_partition *part, const shard_image *parent, unsigned d,
                        uint64_t *to) {
    const uint64_t *from = parent->w;
    shard_try y = {.st = (shard_state *)st};
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++) {
        to[2 * i] = 0;
        to[2 * i + 1] = shard_kw_empty(d, 0);
    }
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++) {
        uint64_t kw = from[2 * i + 1];
        if (!(kw & SHARD_V) || shard_kw_stamp_is(kw, d) || !leaves(st, kw, d))
            continue;
        y.h = shard_unquotient(shard_kw_rem(kw), parent->bucket, part->number, st->p, st->implied);
        unsigned slot = (unsigned)shard_i_free_slot(&y, to);
        to[2 * slot] = from[2 * i];
        to[2 * slot + 1] = shard_kw(d, false, 1, shard_kw_rem(kw));
    }
    finish_image(from, d, to);
}


static int slot_of(const shard_try *y, const uint64_t *w) {
    for (int i = 0; i < SHARD_I_SLOTS; i++)
        if (shard_kw_holds(w[2 * i + 1], shard_rem(y, -1), false))
            return i;
    return -1;
}


/* A slot for a new pair that nobody can take for another's: in the parent, one that was free before the split as well,
 * because a reader may meet the new value beside the old kw. */
static int free_slot(const shard_try *y, const uint64_t *half, const uint64_t *before) {
    uint64_t w[SHARD_WORDS];
    memcpy(w, half, sizeof(w));
    for (unsigned i = 0; before && i < SHARD_I_SLOTS; i++)
        if (before[2 * i + 1] & SHARD_V)
            w[2 * i + 1] = before[2 * i + 1];
    return shard_i_free_slot(y, w);
}


/* Changes the half that the key belongs to: child, or parent, which was `before`. */
static void change_own(shard_own *own, unsigned d, uint64_t *child, uint64_t *parent, const uint64_t *before) {
    const shard_try *y = own->y;
    bool leaves_it = shard_changes(y->h, y->st->p, y->st->b, d);
    uint64_t *half = leaves_it ? child : parent;
    int slot = own->slot >= 0 ? slot_of(y, half) : free_slot(y, half, leaves_it ? NULL : before);
    if (slot < 0)
        return;
    uint64_t *kw = &half[2 * slot + 1];
    if (own->remove)
        *kw = shard_kw_empty(d, shard_kw_gen(*kw));
    else
        half[2 * slot] = own->value;
    if (own->slot < 0)
        *kw = shard_kw(d, false, shard_kw_gen(*kw) + 1, shard_rem(y, -1));
    own->carried = true;
    shard_count(&y->st->counters.merged);
}


/* The parent's lock is held. child 0: it is complete. own: or NULL. Frees the lock. */
static int write_halves(far_task *t, shard_state *st, const shard_partition *part, const shard_image *parent,
                        far_addr child, shard_own *own) {
    unsigned d = shard_header_v(parent->w[SHARD_I_H]) + 1;
    uint64_t *images = far_scratch(t, 2 * SHARD_BUCKET_BYTES), moving = parent->w[SHARD_I_H] | SHARD_MOVING;
    int err;
    if (!images)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    build_child(st, part, parent, d, images);
    build_parent(st, parent->w, d, images + SHARD_WORDS);
    if (own)
        change_own(own, d, images, images + SHARD_WORDS, parent->w);
    far_point(t, "shard:write_halves");
    far_write(t, parent->addr + 8 * SHARD_I_H, &moving, 8);
    if (!st->combining && (err = far_wait(t)) < 0)
        return err;
    if (child)
        far_write(t, child, images, SHARD_BUCKET_BYTES);
    if (!st->combining && (err = far_wait(t)) < 0)
        return err;
    far_write(t, parent->addr, images + SHARD_WORDS, SHARD_BUCKET_BYTES);
    return far_wait(t);
}


int shard_i_child(far_task *t, shard_state *st, shard_partition *part, uint64_t parent, unsigned d, far_addr *child) {
    if (d == 0 || d >= SHARD_VERSIONS || st->p + st->b + d - 1 < st->implied) /* the version of the bucket's header is damaged */
        return far_fail(FAR_ERR_CORRUPT, "the version of a bucket of a shard index is broken");
    int err = shard_bucket_addr(t, st, part, parent + (1ull << (st->b + d - 1)), child);
    if (err >= 0 && *child == 0)
        return far_fail(FAR_ERR_CORRUPT, "a segment of a shard index is missing");
    return err;
}


static int child_of(far_task *t, shard_state *st, shard_partition *part, const shard_image *parent, far_addr *child) {
    return shard_i_child(t, st, part, parent->bucket, shard_header_v(parent->w[SHARD_I_H]) + 1, child);
}


int shard_i_split(shard_try *y, const shard_image *parent, shard_own *own) {
    far_addr child;
    int err = child_of(y->t, y->st, y->part, parent, &child);
    if (err >= 0)
        err = write_halves(y->t, y->st, y->part, parent, child, own);
    if (err < 0 && !shard_is_lost(err)) {
        shard_i_unlock(y, parent); /* nothing was changed */
        return err;
    }
    shard_count(&y->st->counters.splits_graced);
    shard_unlatch(y);
    return err < 0 ? err : 1;
}


/* A split that its owner did not finish; the lock is ours now. */
static int finish_split(far_task *t, far_index *index, shard_partition *part, shard_image *parent) {
    shard_state *st = shard_state_of(index);
    far_addr child;
    uint64_t *w = far_scratch(t, SHARD_BUCKET_BYTES), old;
    if (!w)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a bucket");
    int err = child_of(t, st, part, parent, &child);
    if (err < 0)
        return err;
    far_read(t, child, w, SHARD_BUCKET_BYTES);
    if ((err = far_wait(t)) < 0)
        return err;
    if (shard_unwritten(st, w))
        return write_halves(t, st, part, parent, child, NULL);
    if (w[SHARD_I_K] == 0 && (err = far_cas_word(t, child + 8 * SHARD_I_K, 0, SHARD_K_FREE, &old)) < 0)
        return err;
    return write_halves(t, st, part, parent, 0, NULL);
}


int shard_i_help(far_task *t, far_index *index, shard_partition *part, const shard_image *image, uint64_t k) {
    shard_state *st = shard_state_of(index);
    uint64_t mine = shard_k(far_task_client(t), far_task_number(t)), old;
    far_addr at = image->addr + 8 * SHARD_I_K;
    if (shard_k_owner(k) == 0)
        return 0;
    int dead = far_is_dead_pinned(t, shard_k_owner(k), FAR_ANY_GENERATION);
    if (dead <= 0)
        return dead;
    int err = far_cas_word(t, at, k, mine, &old);
    if (err < 0 || old != k)
        return err;
    shard_count(&st->counters.takeovers);
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
