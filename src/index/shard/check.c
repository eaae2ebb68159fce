/* Check of a shard index, by a traversal (traversal.h): verifies entries, pairs and locks. A word that seems wrong is
 * read again, because the word may have changed meanwhile. check_bucket.c checks buckets as a whole. */
#include "base/error.h"
#include "index/shard/traversal.h"
#include "pool/format/owner.h"

#include <string.h>

enum { STUCK_MAX = 8 };


/* A locked bucket that a traversal visits, and the image in which its lock was seen. */
typedef struct locked_bucket {
    const shard_traversal *tour;
    const shard_image *image;
} locked_bucket;


/* Returns 1 if the bucket still equals its image, 0 if not, or an error. The caller's pin is newer than the image. If
 * the directory was replaced meanwhile, the address no longer belongs to a bucket, and the result is 0. */
static int image_is_unchanged(far_task *t, void *arg) {
    const locked_bucket *bucket = arg;
    uint64_t now[SHARD_WORDS];
    if (shard_directory_number(bucket->tour->part) != bucket->tour->directory)
        return 0;
    far_read(t, bucket->image->addr, now, sizeof(now));
    int err = far_wait(t);
    return err < 0 ? err : memcmp(now, bucket->image->w, sizeof(now)) == 0;
}


int shard_check_locks(shard_traversal *r, shard_image *images, uint64_t count) {
    int err = 0;
    for (uint64_t i = 0; err >= 0 && i < count && r->stuck < STUCK_MAX; i++) {
        uint64_t lock = images[i].w[r->st->inlined ? SHARD_I_K : SHARD_P_HEADER];
        if (shard_is_unwritten(r->st, images[i].w) || shard_is_unlocked(r->st, &images[i]))
            continue;
        err = far_confirm_abandoned(r->t, r->st->inlined ? shard_k_owner(lock) : shard_header_owner(lock),
                                    FAR_ANY_GENERATION, image_is_unchanged, &(locked_bucket){r, &images[i]});
        if (err <= 0)
            continue;
        r->stuck++;
        far_report_problem(r->report, "partition %llu, level 1, bucket %llu: locked, but no live client holds the lock",
                           (unsigned long long)r->part->number, (unsigned long long)images[i].bucket);
    }
    return err < 0 ? err : 0;
}


static bool entry_is_in_right_bucket(shard_traversal *r, uint64_t word, const shard_block *block, int level,
                                     uint64_t bucket, unsigned v) {
    const shard_state *st = r->st;
    uint64_t level_hash[3];
    if ((block->h & shard_mask(st->p)) != r->part->number)
        return false;
    shard_level_hashes(st, block->h, level_hash);
    if (level == 1)
        return !shard_stamp_is(word, v) || (bucket == shard_bucket(block->h, st->p, st->b, v) &&
                                            shard_entry_tag(word) == shard_tag(block->h, st->p, st->b, v));
    if (shard_entry_tag(word) != shard_top_tag(block->h))
        return false;
    return level == 3 || bucket == shard_bucket(level_hash[0], st->p, st->b, v) ||
           bucket == shard_bucket(level_hash[1], st->p, st->b, v);
}


/* Checks the filter bit of a key at level 2 or 3. Returns 1 if the filter in the header of the key's main bucket has
 * the bit of the key, which is required for every such key; 0 if not; or an error. */
static int check_key_in_filter(shard_traversal *r, uint64_t h, unsigned generation) {
    /* A doubling that began after the traversal had read the root word may have moved the key, so the root word is read
     * again. */
    int err = shard_refresh_root(r->t, r->part);
    uint64_t root = atomic_load_explicit(&r->part->root, memory_order_acquire), header;
    for (unsigned d = shard_root_d(root) + 1; err >= 0 && d-- > 0;) {
        far_addr addr;
        err = shard_bucket_addr(r->t, r->st, r->part, shard_bucket(h, r->st->p, r->st->b, d), &addr);
        if (err < 0)
            return err;
        if (addr == 0)
            continue; /* the segment does not exist, because the partition has shrunk */
        if ((err = far_read_word(r->t, addr + 8 * (shard_header_at(r->st)), &header)) < 0)
            return err;
        if (header == 0)
            continue;
        unsigned v = shard_header_v(header), bit = shard_overflow_bit(r->st, h);
        return (v == generation && shard_header_fnew(header) & bit) ||
               (v == generation + 1 && shard_header_fold(header) & bit);
    }
    return err;
}


static int check_entry(shard_traversal *r, far_addr at, uint64_t word, int level, uint64_t bucket, unsigned v) {
    uint64_t bytes = shard_class_bytes(shard_entry_class(word)), now;
    shard_block *block = far_scratch(r->t, bytes);
    if (!block)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a pair block");
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
        what = "the lengths in the pair block do not fit its size class";
    else if (used <= 4096 && shard_hash(r->index, (far_bytes){block->bytes, block->key_length}) != block->h)
        what = "the hash in the pair block is not the hash of its key";
    else if (!entry_is_in_right_bucket(r, word, block, level, bucket, v))
        what = "an entry is in a bucket that its key does not belong to";
    else if (level > 1) {
        if ((err = check_key_in_filter(r, block->h, v)) < 0)
            return err;
        what = err ? NULL : "a key is at level 2 or 3, but the filter of its bucket does not contain it";
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


static int check_pair(shard_traversal *r, far_addr mark_at, uint64_t mark, uint64_t h, int level, uint64_t bucket,
                      unsigned v) {
    const shard_state *st = r->st;
    const char *what = NULL;
    uint64_t level_hash[3], now;
    int err;
    shard_level_hashes(st, h, level_hash);
    if ((h & shard_mask(st->p)) != r->part->number)
        what = "a pair is in a partition that its key does not belong to";
    else if (level == 1 && shard_kw_stamp_is(mark, v) && bucket != shard_bucket(h, st->p, st->b, v))
        what = "a pair is in a bucket that its key does not belong to";
    else if (level == 2 && bucket != shard_bucket(level_hash[shard_kw_choice(mark)], st->p, st->b, v))
        what = "a pair is in a bucket that its key does not belong to";
    else if (level > 1) {
        if ((err = check_key_in_filter(r, h, v)) < 0)
            return err;
        what = err ? NULL : "a key is at level 2 or 3, but the filter of its bucket does not contain it";
    }
    if (!what)
        return 0;
    uint64_t key;
    /* At level 3 the word before the state is the key. The first READ may have returned the key of an earlier pair
     * together with this state, so both are read again, the key first. */
    far_read(r->t, mark_at - 8, &key, 8);
    far_read(r->t, mark_at, &now, 8);
    if ((err = far_wait(r->t)) < 0)
        return err;
    if (now == mark && (level < 3 || shard_hash(r->index, (far_bytes){&key, 8}) == h))
        far_report_problem(r->report, "partition %llu, level %d, bucket %llu, version %u: %s",
                           (unsigned long long)r->part->number, level, (unsigned long long)bucket, v, what);
    return 0;
}


int shard_check(far_task *t, far_index *index, far_report *report) {
    return shard_traverse(&(shard_traversal){.t = t,
                                             .index = index,
                                             .st = shard_state_of(index),
                                             .report = report,
                                             .each = check_entry,
                                             .each_pair = check_pair});
}
