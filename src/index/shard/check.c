/* Whether what a tour (tour.h) meets is as it should be: entries, pairs, locks. What it finds wrong is looked at again: a
 * word that changed meanwhile is no problem. Buckets by themselves: check_bucket.c. */
#include "base/error.h"
#include "index/shard/tour.h"
#include "pool/owner.h"

#include <string.h>

enum { STUCK_MAX = 8 };


typedef struct locked { /* a bucket of the body that a tour is in */
    const shard_tour *tour;
    const shard_image *image;
} locked;


/* With a pin, which is younger than the image: what was a bucket then is none if the body was replaced meanwhile. */
static int is_unchanged(far_task *t, void *arg) {
    const locked *bucket = arg;
    uint64_t now[SHARD_WORDS];
    if (shard_body_of(bucket->tour->part) != bucket->tour->body)
        return 0;
    far_read(t, bucket->image->addr, now, sizeof(now));
    int err = far_wait(t);
    return err < 0 ? err : memcmp(now, bucket->image->w, sizeof(now)) == 0;
}


/* A lock is held, and its holder is not there. Without a pin. */
int shard_check_locks(shard_tour *r, shard_image *images, uint64_t count) {
    int err = 0;
    for (uint64_t i = 0; err >= 0 && i < count && r->stuck < STUCK_MAX; i++) {
        uint64_t lock = images[i].w[r->st->inlined ? SHARD_I_K : SHARD_P_HEADER];
        if (shard_unwritten(r->st, images[i].w) || shard_is_unlocked(r->st, &images[i]))
            continue;
        err = far_is_stuck(r->t, r->st->inlined ? shard_k_owner(lock) : shard_header_owner(lock), FAR_ANY_GENERATION,
                           is_unchanged, &(locked){r, &images[i]});
        if (err <= 0)
            continue;
        r->stuck++;
        far_report_problem(r->report, "partition %llu, level 1, bucket %llu: it is locked, and nobody alive holds it",
                           (unsigned long long)r->part->number, (unsigned long long)images[i].bucket);
    }
    return err < 0 ? err : 0;
}


static bool lies_right(shard_tour *r, uint64_t word, const shard_block *block, int level, uint64_t bucket, unsigned v) {
    const shard_state *st = r->st;
    uint64_t level_hash[3];
    if ((block->h & shard_mask(st->p)) != r->part->number)
        return false;
    shard_levels(st, block->h, level_hash);
    if (level == 1)
        return !shard_stamp_is(word, v) || (bucket == shard_bucket(block->h, st->p, st->b, v) &&
                                            shard_entry_tag(word) == shard_tag(block->h, st->p, st->b, v));
    if (shard_entry_tag(word) != shard_top_tag(block->h))
        return false;
    return level == 3 || bucket == shard_bucket(level_hash[0], st->p, st->b, v) ||
           bucket == shard_bucket(level_hash[1], st->p, st->b, v);
}


/* A key below level 1 is announced by the filter of its home. */
static int is_announced(shard_tour *r, uint64_t h, unsigned generation) {
    int err = shard_refresh(r->t, r->part); /* the key may be one of a doubling that came after the root was read */
    uint64_t root = atomic_load_explicit(&r->part->root, memory_order_acquire), header;
    for (unsigned d = shard_root_d(root) + 1; err >= 0 && d-- > 0;) {
        far_addr addr;
        err = shard_bucket_addr(r->t, r->st, r->part, shard_bucket(h, r->st->p, r->st->b, d), &addr);
        if (err < 0)
            return err;
        if (addr == 0)
            continue; /* the partition shrinks */
        if ((err = far_read_word(r->t, addr + 8 * (shard_header_at(r->st)), &header)) < 0)
            return err;
        if (header == 0)
            continue;
        unsigned v = shard_header_v(header), bit = shard_bit(r->st, h);
        return (v == generation && shard_header_fnew(header) & bit) ||
               (v == generation + 1 && shard_header_fold(header) & bit);
    }
    return err;
}


static int check_entry(shard_tour *r, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v) {
    uint64_t bytes = shard_class_bytes(shard_entry_class(word)), now;
    shard_block *block = far_scratch(r->t, bytes);
    if (!block)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a block");
    far_read(r->t, shard_entry_addr(word), block, bytes < 4096 ? bytes : 4096);
    int err = far_wait(r->t);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(r->report, "partition %llu: an entry points outside the pool",
                           (unsigned long long)r->part->number);
        return 0;
    }
    if (err < 0)
        return err;
    const char *what = NULL;
    uint64_t used = sizeof(*block) + block->key_length + (uint64_t)block->value_length;
    if (used > bytes || shard_class_of(used) != shard_entry_class(word))
        what = "the lengths in a block do not fit its class";
    else if (used <= 4096 && shard_hash(r->index, (far_bytes){block->bytes, block->key_length}) != block->h)
        what = "a block's hash is not that of its key";
    else if (!lies_right(r, word, block, level, bucket, v))
        what = "an entry lies in another bucket than its key";
    else if (level > 1) {
        if ((err = is_announced(r, block->h, v)) < 0)
            return err;
        what = err ? NULL : "a key of level 2 or 3 is not in the filter of its bucket";
    }
    if (!what)
        return 0;
    if ((err = far_read_word(r->t, at, &now)) < 0)
        return err;
    if (now == word)
        far_report_problem(r->report, "partition %llu, level %d, bucket %llu, version %u: %s",
                           (unsigned long long)r->part->number, level, (unsigned long long)bucket, v, what);
    return 0;
}


static int check_pair(shard_tour *r, far_addr mark_at, uint64_t mark, uint64_t h, int level, uint64_t bucket,
                      unsigned v) {
    const shard_state *st = r->st;
    const char *what = NULL;
    uint64_t level_hash[3], now;
    int err;
    shard_levels(st, h, level_hash);
    if ((h & shard_mask(st->p)) != r->part->number)
        what = "a pair lies in another partition than its key";
    else if (level == 1 && shard_kw_stamp_is(mark, v) && bucket != shard_bucket(h, st->p, st->b, v))
        what = "a pair lies in another bucket than its key";
    else if (level == 2 && bucket != shard_bucket(level_hash[shard_kw_choice(mark)], st->p, st->b, v))
        what = "a pair lies in another bucket than its key";
    else if (level > 1) {
        if ((err = is_announced(r, h, v)) < 0)
            return err;
        what = err ? NULL : "a key of level 2 or 3 is not in the filter of its bucket";
    }
    if (!what)
        return 0;
    uint64_t key;
    far_read(r->t, mark_at - 8, &key, 8); /* level 3: the key, which may have been read before its state */
    far_read(r->t, mark_at, &now, 8);
    if ((err = far_wait(r->t)) < 0)
        return err;
    if (now == mark && (level < 3 || shard_hash(r->index, (far_bytes){&key, 8}) == h))
        far_report_problem(r->report, "partition %llu, level %d, bucket %llu, version %u: %s",
                           (unsigned long long)r->part->number, level, (unsigned long long)bucket, v, what);
    return 0;
}


int shard_check(far_task *t, far_index *index, far_report *report) {
    return shard_tour_all(&(shard_tour){.t = t,
                                        .index = index,
                                        .st = shard_state_of(index),
                                        .report = report,
                                        .each = check_entry,
                                        .each_pair = check_pair});
}
