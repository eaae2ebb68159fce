/* Attempts. Each goes by one root word, taken at its beginning; whatever it sees that does not fit that root makes it
 * look at the root again and start over. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch.h"

#include <string.h>

#define RENEW_EVERY 8 /* attempts under one pin */


int shard_begin(shard_try *y, far_task *t, far_index *index, far_bytes key) {
    shard_state *st = shard_state_of(index);
    y->t = t;
    y->index = index;
    y->st = st;
    y->key = key;
    y->h = shard_hash(index, key);
    y->part = &st->part[y->h & shard_mask(st->p)];
    memset(&y->root, 0, sizeof(*y) - offsetof(shard_try, root));
    shard_image *images = far_scratch(t, 2 * sizeof(*images));
    if (!images)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    y->home = &images[0];
    y->spare = &images[1];
    return shard_hear(t, index);
}


static inline int place_bucket(shard_try *y, uint64_t bucket, shard_image *image) {
    image->bucket = bucket;
    image->addr = shard_known_addr(y->st, y->part, bucket);
    if (image->addr)
        return 0;
    int err = shard_bucket_addr(y->t, y->st, y->part, bucket, &image->addr);
    return err < 0 ? err : image->addr == 0;
}


/* The chunk of the child's parent is known to be split. It is a hint: who finds the child not written after all starts
 * over, and asks for no hint then. */
static bool is_swept(const shard_try *y) {
    uint64_t parents = 1ull << (y->st->b + y->d - 1);
    return y->attempt == 0 && shard_knows_done(y->part, y->d, (y->bucket - parents) / shard_chunk(parents));
}


/* The key changes its bucket with the doubling that is under way: it lies in the child, or still in its parent. */
static __attribute__((noinline)) int place_pair(shard_try *y) {
    y->paired = !is_swept(y);
    int err = place_bucket(y, y->bucket, y->home);
    if (err == 0 && y->paired)
        err = place_bucket(y, shard_parent(y->bucket, y->st->b, y->d), y->spare);
    return err;
}


/* 1: the place is not known; the root is behind. While the partition grows, a key that changes its bucket is looked for
 * in the child, then in the parent: in this order (R1, find.c: a child is written before its parent changes). */
int shard_place_home(shard_try *y) {
    if (y->phase == SHARD_GROW && shard_changes(y->h, y->st->p, y->st->b, y->d))
        return place_pair(y);
    return place_bucket(y, y->bucket, y->home);
}


void shard_put_home(shard_try *y) {
    if (y->dated)
        far_read(y->t, y->home->addr + 8 * SHARD_P_HEADER, &y->before, 8);
    far_read(y->t, y->home->addr, y->home->w, SHARD_BUCKET_BYTES);
    if (y->paired && y->st->pair_read)
        far_read(y->t, y->spare->addr, y->spare->w, SHARD_BUCKET_BYTES);
}


/* R1: words of a written bucket are never zero. */
bool shard_unwritten(const shard_state *st, const uint64_t *w) {
    if (!st->inlined)
        return shard_p_any_zero(st->wide, w);
    if (w[SHARD_I_H] == 0)
        return true;
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++)
        if (w[2 * i + 1] == 0)
            return true;
    return false;
}


/* R1: an unwritten child leaves it to its parent, which was read, or is read now, after it. */
int shard_see_home(shard_try *y) {
    if (!y->paired || !shard_unwritten(y->st, y->home->w))
        return 0;
    shard_image *child = y->home;
    y->home = y->spare;
    y->spare = child;
    y->child_unwritten = true;
    return y->st->pair_read ? 0 : far_read_now(y->t, y->home->addr, y->home->w, SHARD_BUCKET_BYTES, 0);
}


int shard_read_home(shard_try *y) {
    if (!y->dated && !y->paired)
        return far_read_now(y->t, y->home->addr, y->home->w, SHARD_BUCKET_BYTES, 0);
    shard_put_home(y);
    int err = far_wait(y->t);
    return err < 0 ? err : shard_see_home(y);
}


/* With window_read: the two lines at which the key's order of slots begins, and the header. Most keys lie there; a miss says
 * nothing. 1: put. */
int shard_put_window(shard_try *y) {
    const shard_state *st = y->st;
    if (y->phase == SHARD_GROW && shard_changes(y->h, st->p, st->b, y->d))
        return 0;
    unsigned line = shard_start_line(y), header = shard_header_at(st);
    int err = place_bucket(y, y->bucket, y->home);
    if (err)
        return err < 0 ? err : 0;
    memset(y->home->w, 0, sizeof(y->home->w));
    far_read(y->t, y->home->addr + 64 * line, &y->home->w[SHARD_LINE * line], line < 7 ? 128 : 64);
    if (line == 7)
        far_read(y->t, y->home->addr, y->home->w, 64);
    else if (line < 6)
        far_read(y->t, y->home->addr + 8 * header, &y->home->w[header], 8);
    return 1;
}


static void put_reads(shard_try *y, shard_image *image, shard_beside *beside) {
    far_read(y->t, image->addr, image->w, SHARD_BUCKET_BYTES);
    for (unsigned i = 0; beside && i < beside->count; i++)
        far_read(y->t, beside->at[i], &beside->word[i], 8);
}


/* Where an atomic and a READ have no order, an 8-byte READ stands between them: if it shows our lock, the READs after
 * it ran under the lock. */
static __attribute__((noinline)) int lock_and_read_beside(shard_try *y, shard_image *image, far_addr lock,
                                                          uint64_t expected, uint64_t mine, uint64_t *old,
                                                          shard_beside *beside) {
    uint64_t seen = mine;
    far_cas(y->t, lock, expected, mine, old);
    if (!far_task_capabilities(y->t)->atomics_in_order)
        far_read(y->t, lock, &seen, 8);
    put_reads(y, image, beside);
    int err = far_wait(y->t);
    if (err < 0 || *old != expected || seen == mine)
        return err;
    put_reads(y, image, beside);
    return far_wait(y->t);
}


/* The latch is held: takes the lock, a word of the bucket, and reads the bucket, in one batch. */
int shard_lock_and_read(shard_try *y, shard_image *image, unsigned word, uint64_t expected, uint64_t mine,
                        uint64_t *old, shard_beside *beside) {
    far_addr lock = image->addr + 8 * word;
    int err = beside || !far_task_capabilities(y->t)->atomics_in_order
                  ? lock_and_read_beside(y, image, lock, expected, mine, old, beside)
                  : far_cas_and_read(y->t, lock, expected, mine, old, image->addr, image->w, SHARD_BUCKET_BYTES);
    if (err < 0 || *old != expected) {
        shard_unlatch(y);
        return err < 0 ? err : 0;
    }
    far_point(y->t, "shard:locked");
    return 1;
}


/* Gives back what is private, so that the pin can go. */
void shard_drop_block(shard_try *y) {
    if (y->block)
        far_free(y->t, y->index, SHARD_TYPE_BLOCK, y->block, shard_class_bytes(y->class));
    y->block = 0;
    y->written = false;
}


int shard_retry(shard_try *y, bool refresh) {
    int err = 0;
    far_count_retry(y->t);
    y->attempt++;
    if (y->attempt % RENEW_EVERY == 0) {
        shard_drop_block(y);
        far_pin_drop(y->t);
        err = far_pin_take(y->t);
    }
    if (refresh)
        far_count_stale(y->t);
    if (err >= 0 && refresh)
        err = shard_refresh(y->t, y->part);
    if (err >= 0 && y->attempt > 1)
        far_back_off(y->t, y->attempt < 8 ? y->attempt - 2 : 6);
    return err;
}
