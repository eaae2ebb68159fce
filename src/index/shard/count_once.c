/* Who counts keys while a partition grows meets some of them twice: in the parent and then in the child, at level 2 or 3
 * and then where a drain has brought them. It remembers, of one partition, at which version it counted each
 * bucket, and what it met there. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST = 64 };


static int no_memory(void) {
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


static int make_room(shard_counted *c, uint64_t bucket) {
    uint64_t buckets = c->buckets ? c->buckets : LEAST;
    while (buckets <= bucket)
        buckets *= 2;
    if (buckets == c->buckets)
        return 0;
    uint8_t *seen = realloc(c->seen, buckets);
    if (!seen)
        return no_memory();
    memset(seen + c->buckets, 0, buckets - c->buckets);
    c->seen = seen;
    c->buckets = buckets;
    return 0;
}


static bool leaves(const shard_state *st, uint64_t word, unsigned v) {
    if (!st->inlined)
        return shard_tag_changes(word, v);
    return shard_kw_rem(word) >> (st->p + st->b + v - 1 - st->implied) % 64 & 1;
}


/* 1: the bucket is being split, and its child is complete: what leaves is there, perhaps changed or deleted since, and
 * the blocks that are still named here may be others'. Who splits it may be finishing that for a dead client. */
int shard_has_left(far_task *t, shard_state *st, shard_partition *part, const shard_image *image) {
    uint64_t header = image->w[shard_header_at(st)], w[SHARD_WORDS];
    far_addr child;
    if (!shard_is_splitting(st, header))
        return 0;
    if (shard_header_v(header) + 1 >= SHARD_VERSIONS)
        return far_fail(FAR_ERR_CORRUPT, "the version of a bucket of a shard index is broken");
    int err = shard_bucket_addr(t, st, part, image->bucket + (1ull << (st->b + shard_header_v(header))), &child);
    if (err < 0 || child == 0)
        return err;
    far_read(t, child, w, sizeof(w));
    err = far_wait(t);
    return err < 0 ? err : !shard_unwritten(st, w);
}


/* The words of a bucket that is being split, at version v, without those that have left: they are in the child, which
 * is complete. */
void shard_forget_what_left(const shard_state *st, uint64_t *w, unsigned v) {
    for (unsigned i = st->inlined; i < SHARD_P_SLOTS; i += 1 + st->inlined) {
        bool old = st->inlined ? shard_kw_stamp_is(w[i], v) : shard_stamp_is(w[i], v);
        if (shard_is_live(w[i]) && old && leaves(st, w[i], v + 1))
            w[i] = st->inlined ? shard_kw_empty(v, 0) : shard_empty(v);
    }
}


/* v: the version of which its keys are. 1: they are to be counted; 0: they were, with its parent. */
int shard_counted_bucket(shard_counted *c, const shard_state *st, uint64_t bucket, unsigned v) {
    unsigned born = shard_segment(bucket, st->b);
    uint64_t parent = born ? shard_parent(bucket, st->b, born) : 0;
    int err = make_room(c, bucket);
    if (err < 0)
        return err;
    if (born && c->seen[parent] <= born) { /* counted before it was split */
        c->seen[bucket] = c->seen[parent];
        return 0;
    }
    c->seen[bucket] = (uint8_t)(v + 1);
    return 1;
}


static uint64_t not_zero(uint64_t what) { /* 0 is an empty place */
    return what ? what : SHARD_FACTOR;
}


static uint64_t *place_of(const shard_counted *c, uint64_t what) {
    uint64_t at = what * SHARD_FACTOR >> 32 & (c->room - 1);
    while (c->overflow[at] && c->overflow[at] != what)
        at = (at + 1) & (c->room - 1);
    return &c->overflow[at];
}


bool shard_counted_knows(const shard_counted *c, uint64_t what) {
    return c->room && *place_of(c, not_zero(what)) != 0;
}


/* 1: it is new. */
int shard_counted_in_overflow(shard_counted *c, uint64_t what) {
    what = not_zero(what);
    if (2 * (c->count + 1) > c->room) {
        shard_counted larger = {.room = c->room ? 2 * c->room : LEAST};
        if (!(larger.overflow = calloc(larger.room, sizeof(*larger.overflow))))
            return no_memory();
        for (uint64_t i = 0; i < c->room; i++)
            if (c->overflow[i])
                *place_of(&larger, c->overflow[i]) = c->overflow[i];
        free(c->overflow);
        c->overflow = larger.overflow;
        c->room = larger.room;
    }
    uint64_t *place = place_of(c, what);
    if (*place)
        return 0;
    *place = what;
    c->count++;
    return 1;
}
