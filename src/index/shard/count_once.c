/* Counts each key of a growing partition once. A traversal may meet a key several times: in the parent and then in the
 * child, or at level 2 or 3 and then at the place to which a drain has moved the key. For one partition at a time, this
 * file records the version at which each bucket was counted, and the keys that were counted at levels 2 and 3. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST = 64 };


static int fail_no_memory(void) {
    return far_fail(FAR_ERR_NO_MEMORY, "no memory to count keys");
}


void shard_counted_begin(shard_counted *c) {
    if (c->seen)
        memset(c->seen, 0, c->buckets);
    if (c->overflow)
        memset(c->overflow, 0, c->room * sizeof(*c->overflow));
    c->count = 0;
}


void shard_counted_end(shard_counted *c) {
    free(c->seen);
    free(c->overflow);
    *c = (shard_counted){0};
}


static int reserve_bucket_bytes(shard_counted *c, uint64_t bucket) {
    uint64_t buckets = c->buckets ? c->buckets : LEAST;
    while (buckets <= bucket)
        buckets *= 2;
    if (buckets == c->buckets)
        return 0;
    uint8_t *seen = realloc(c->seen, buckets);
    if (!seen)
        return fail_no_memory();
    memset(seen + c->buckets, 0, buckets - c->buckets);
    c->seen = seen;
    c->buckets = buckets;
    return 0;
}


static bool word_moves_to_child(const shard_state *st, uint64_t word, unsigned v) {
    if (!st->inlined)
        return shard_tag_moves(word, v);
    return shard_kw_rem(word) >> (st->p + st->b + v - 1 - st->implied) % 64 & 1;
}


/* Returns 1 if the bucket is being split and its child is complete, 0 if not, or an error. If the child is complete,
 * the keys that leave the parent are in the child, where they may have been changed or deleted since. The pair blocks
 * that the parent still names for these keys may have been reused. This state is possible although the traversal has
 * recovered the locks of failed clients before: a live client may be finishing such a split. */
int shard_child_is_complete(far_task *t, shard_state *st, shard_partition *part, const shard_image *image) {
    uint64_t header = image->w[shard_header_at(st)], w[SHARD_WORDS];
    far_addr child;
    if (!shard_is_splitting(st, header))
        return 0;
    if (shard_header_v(header) + 1 >= SHARD_VERSIONS)
        return far_fail(FAR_ERR_CORRUPT, "the version of a bucket of a shard index is corrupt");
    int err = shard_bucket_addr(t, st, part, image->bucket + (1ull << (st->b + shard_header_v(header))), &child);
    if (err < 0 || child == 0)
        return err;
    far_read(t, child, w, sizeof(w));
    err = far_wait(t);
    return err < 0 ? err : !shard_is_unwritten(st, w);
}


/* Clears the words of the keys that leave the parent in the split after version v, the version of the image. These keys
 * are counted in the complete child instead. */
void shard_clear_moved_words(const shard_state *st, uint64_t *w, unsigned v) {
    for (unsigned i = st->inlined; i < SHARD_P_SLOTS; i += 1 + st->inlined) {
        bool old = st->inlined ? shard_kw_stamp_is(w[i], v) : shard_stamp_is(w[i], v);
        if (shard_is_live(w[i]) && old && word_moves_to_child(st, w[i], v + 1))
            w[i] = st->inlined ? shard_kw_empty(v, 0) : shard_empty(v);
    }
}


/* Returns 1 if the keys of a bucket must be counted, 0 if they were already counted in the parent. v is the version of
 * the keys that are still in the bucket. */
int shard_count_bucket_once(shard_counted *c, const shard_state *st, uint64_t bucket, unsigned v) {
    unsigned born = shard_segment(bucket, st->b);
    uint64_t parent = born ? shard_parent(bucket, st->b, born) : 0;
    int err = reserve_bucket_bytes(c, bucket);
    if (err < 0)
        return err;
    /* if the parent was counted before its split, the keys of this bucket were counted there */
    if (born && c->seen[parent] <= born) {
        c->seen[bucket] = c->seen[parent];
        return 0;
    }
    c->seen[bucket] = (uint8_t)(v + 1);
    return 1;
}


/* Returns `what`, or another value if `what` is 0, because 0 marks a free position in the hash table. */
static uint64_t nonzero_identity(uint64_t what) {
    return what ? what : SHARD_FACTOR;
}


static uint64_t *find_place(const shard_counted *c, uint64_t what) {
    uint64_t at = what * SHARD_FACTOR >> 32 & (c->room - 1);
    while (c->overflow[at] && c->overflow[at] != what)
        at = (at + 1) & (c->room - 1);
    return &c->overflow[at];
}


bool shard_counted_contains(const shard_counted *c, uint64_t what) {
    return c->room && *find_place(c, nonzero_identity(what)) != 0;
}


int shard_count_overflow_once(shard_counted *c, uint64_t what) {
    what = nonzero_identity(what);
    if (2 * (c->count + 1) > c->room) {
        shard_counted larger = {.room = c->room ? 2 * c->room : LEAST};
        if (!(larger.overflow = calloc(larger.room, sizeof(*larger.overflow))))
            return fail_no_memory();
        for (uint64_t i = 0; i < c->room; i++)
            if (c->overflow[i])
                *find_place(&larger, c->overflow[i]) = c->overflow[i];
        free(c->overflow);
        c->overflow = larger.overflow;
        c->room = larger.room;
    }
    uint64_t *place = find_place(c, what);
    if (*place)
        return 0;
    *place = what;
    c->count++;
    return 1;
}
