/* Attempts of an operation, for both layouts: begin, locate and read the main bucket, lock it, and prepare a retry.
 *
 * An attempt relies on one root word of its partition, which shard_start_attempt takes from the cache. If the attempt
 * observes a bucket that does not fit this root word, it reads the root word again and starts over. */
#include "base/error.h"
#include "index/shard/shard.h"
#include "pool/epoch/epoch.h"

#include <string.h>

/* number of attempts after which the pin is renewed, so that an operation that retries for long does not hold back the
 * epoch */
#define RENEW_EVERY 8


int shard_begin_operation(shard_op *op, far_task *t, far_index *index, far_bytes key) {
    shard_state *st = shard_state_of(index);
    op->t = t;
    op->index = index;
    op->st = st;
    op->key = key;
    op->h = shard_hash(index, key);
    op->part = &st->part[op->h & shard_mask(st->p)];
    memset(&op->root, 0, sizeof(*op) - offsetof(shard_op, root));
    shard_image *images = far_scratch(t, 2 * sizeof(*images));
    if (!images)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    op->main = &images[0];
    op->other = &images[1];
    return shard_ensure_roots_read(t, index);
}


static inline int locate_bucket(shard_op *op, uint64_t bucket, shard_image *image) {
    image->bucket = bucket;
    image->addr = shard_cached_bucket_addr(op->st, op->part, bucket);
    if (image->addr)
        return 0;
    int err = shard_bucket_addr(op->t, op->st, op->part, bucket, &image->addr);
    return err < 0 ? err : image->addr == 0;
}


/* Returns true if the parent of the key's bucket is known to be split already, so that only the child need be read.
 * This knowledge is a hint. If the hint was wrong, the operation finds the child unwritten and retries; a retry
 * (attempt > 0) does not use the hint. */
static bool parent_is_known_split(const shard_op *op) {
    uint64_t parents = 1ull << (op->st->b + op->d - 1);
    return op->attempt == 0 &&
           shard_chunk_is_known_done(op->part, op->d, (op->bucket - parents) / shard_chunk_size(parents));
}


/* Called if the key moves to the child in the doubling that is in progress. Locates child and parent, because the key
 * may still be in the parent. Returns 0, 1 if an address is unknown, or an error. */
static __attribute__((noinline)) int locate_child_and_parent(shard_op *op) {
    op->paired = !parent_is_known_split(op);
    int err = locate_bucket(op, op->bucket, op->main);
    if (err == 0 && op->paired)
        err = locate_bucket(op, shard_parent(op->bucket, op->st->b, op->d), op->other);
    return err;
}


/* While the partition grows, a key that moves is searched first in the child and then in the parent. By this order an
 * unwritten child proves that the parent was unchanged when the child was read, because a split writes the child before
 * the parent (rule R1 in find.c). */
int shard_locate_main(shard_op *op) {
    if (op->phase == SHARD_GROW && shard_key_moves(op->h, op->st->p, op->st->b, op->d))
        return locate_child_and_parent(op);
    return locate_bucket(op, op->bucket, op->main);
}


void shard_add_main_reads(shard_op *op) {
    if (op->header_first)
        far_read(op->t, op->main->addr + 8 * SHARD_P_HEADER, &op->header_before, 8);
    far_read(op->t, op->main->addr, op->main->w, SHARD_BUCKET_BYTES);
    if (op->paired && op->st->pair_read)
        far_read(op->t, op->other->addr, op->other->w, SHARD_BUCKET_BYTES);
}


bool shard_is_unwritten(const shard_state *st, const uint64_t *w) {
    if (!st->inlined)
        return shard_p_any_zero(st->wide, w);
    if (w[SHARD_I_H] == 0)
        return true;
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++)
        if (w[2 * i + 1] == 0)
            return true;
    return false;
}


/* If the child was read unwritten, the parent becomes the main bucket (rule R1 in find.c). With the option pair_read
 * the parent was read after the child in the same batch; otherwise the parent is read now. */
int shard_select_main(shard_op *op) {
    if (!op->paired || !shard_is_unwritten(op->st, op->main->w))
        return 0;
    shard_image *child = op->main;
    op->main = op->other;
    op->other = child;
    op->child_unwritten = true;
    return op->st->pair_read ? 0 : far_read_now(op->t, op->main->addr, op->main->w, SHARD_BUCKET_BYTES, 0);
}


int shard_read_main(shard_op *op) {
    if (!op->header_first && !op->paired)
        return far_read_now(op->t, op->main->addr, op->main->w, SHARD_BUCKET_BYTES, 0);
    shard_add_main_reads(op);
    int err = far_wait(op->t);
    return err < 0 ? err : shard_select_main(op);
}


int shard_i_read_half(shard_op *op) {
    const shard_state *st = op->st;
    if (op->phase == SHARD_GROW && shard_key_moves(op->h, st->p, st->b, op->d))
        return 0; /* the key may be in the child or in the parent */
    int err = locate_bucket(op, op->bucket, op->main);
    if (err)
        return err < 0 ? err : 0;
    unsigned word = shard_i_half(op) * 2 * SHARD_I_HALF;
    err = far_read_now(op->t, op->main->addr + 8 * word, &op->main->w[word], SHARD_BUCKET_BYTES / 2, 0);
    return err < 0 ? err : 1;
}


static void add_bucket_reads(shard_op *op, shard_image *image, shard_extra_words *extra) {
    far_read(op->t, image->addr, image->w, SHARD_BUCKET_BYTES);
    for (unsigned i = 0; extra && i < extra->count; i++)
        far_read(op->t, extra->at[i], &extra->word[i], 8);
}


/* Locks the bucket and reads it, in the cases for which far_cas_and_read is not enough: if other words must be read
 * together with the bucket, or if the fabric does not order READs after atomics. In the second case an 8-byte READ of
 * the lock precedes the other READs. READs are ordered among themselves, so if the first READ returns this client's
 * lock word, the READs after it were executed under the lock. If the first READ returns another value although the CAS
 * of the lock succeeded, everything is read once more. */
static __attribute__((noinline)) int lock_and_read_extras(shard_op *op, shard_image *image, far_addr lock,
                                                          uint64_t expected, uint64_t mine, uint64_t *old,
                                                          shard_extra_words *extra) {
    uint64_t seen = mine;
    far_cas(op->t, lock, expected, mine, old);
    if (!far_task_capabilities(op->t)->atomics_in_order)
        far_read(op->t, lock, &seen, 8);
    add_bucket_reads(op, image, extra);
    int err = far_wait(op->t);
    if (err < 0 || *old != expected || seen == mine)
        return err;
    add_bucket_reads(op, image, extra);
    return far_wait(op->t);
}


int shard_lock_and_read(shard_op *op, shard_image *image, unsigned word, uint64_t expected, uint64_t mine,
                        uint64_t *old, shard_extra_words *extra) {
    far_addr lock = image->addr + 8 * word;
    int err = extra || !far_task_capabilities(op->t)->atomics_in_order
                  ? lock_and_read_extras(op, image, lock, expected, mine, old, extra)
                  : far_cas_and_read(op->t, lock, expected, mine, old, image->addr, image->w, SHARD_BUCKET_BYTES);
    if (err < 0 || *old != expected) {
        shard_release_latch(op);
        return err < 0 ? err : 0;
    }
    far_point(op->t, "shard:locked");
    return 1;
}


/* Frees the operation's new pair block. This function is also called before a pin is dropped, because a pair block that
 * no entry names must not outlive the pin under which it was allocated. */
void shard_drop_block(shard_op *op) {
    if (op->block)
        far_free(op->t, op->index, SHARD_TYPE_BLOCK, op->block, shard_class_bytes(op->class));
    op->block = 0;
    op->written = false;
}


int shard_retry(shard_op *op, bool refresh) {
    int err = 0;
    far_count_retry(op->t);
    op->attempt++;
    if (op->attempt % RENEW_EVERY == 0) {
        shard_drop_block(op);
        far_pin_drop(op->t);
        err = far_pin_take(op->t);
    }
    if (refresh)
        far_count_stale(op->t);
    if (err >= 0 && refresh)
        err = shard_refresh_root(op->t, op->part);
    if (err >= 0 && op->attempt > 1)
        far_back_off(op->t, op->attempt < 8 ? op->attempt - 2 : 6);
    return err;
}
