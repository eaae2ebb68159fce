/* Reading, for both layouts: the home bucket, then, if its filter says so, the levels below. How a layout recognises
 * its key: pfind.c, ifind.c. An image is one READ of a bucket, whose words may be of different moments. What it proves
 * of a key, where v is the version of its header:
 *
 *   R1  A child of which a word is zero is not written yet: its parent counts, read after it.
 *
 *   R2  A hit counts if the key stays in the bucket at version v+1; else only if the child was seen unwritten before, or
 *       if no split has begun: the header is not marked, the word not frozen.
 *
 *   R3  A miss counts if the key stays; else only in an image whose words are all of version v, and as in R2.
 *
 *   R4  After a miss generation v is looked at if the key's bit of fnew is set, and v-1 if its bit of fold is set and the
 *       drain of v-1 is not known to have ended.
 *
 *   R5  Of a generation both buckets of level 2 and the whole chain are read, the older generation before the newer.
 *
 *   R6  A miss there is believed when level 1, read again, says the same: a drain may have moved the key up.
 *
 *   R7  While the partition shrinks, a miss is believed when the root, read after all that, names the same body (shrink.c). */
#include "base/error.h"
#include "index/rdwc.h"
#include "index/shard/shard.h"

#include <string.h>


bool shard_uniform(const shard_state *st, const uint64_t *w, unsigned v) {
    if (shard_header_v(w[shard_header_at(st)]) != v)
        return false;
    if (!st->inlined)
        return shard_p_all_stamped(st->wide, w, v);
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++)
        if (!shard_kw_stamp_is(w[2 * i + 1], v))
            return false;
    return true;
}


static bool miss_counts(const shard_try *y, uint64_t header) { /* R3; R1 for a child that is read alone */
    unsigned v = shard_header_v(header);
    if (!shard_changes(y->h, y->st->p, y->st->b, v + 1))
        return !shard_unwritten(y->st, y->home->w);
    return shard_uniform(y->st, y->home->w, v) && (!shard_may_lose(y, header) || !shard_is_splitting(y->st, header));
}


int shard_find_l1(shard_try *y, uint64_t header, bool whole, shard_hit *hit) {
    if (y->st->inlined)
        return shard_i_find_l1(y, hit) ? SHARD_FOUND : SHARD_ABSENT;
    return shard_p_find_l1(y, shard_header_v(header), whole, hit);
}


/* Level 2 and 3. */

/* R4: the generations to look at, the older one first: a drain moves from there to the newer. */
unsigned shard_generations(const shard_try *y, uint64_t header, unsigned generation[2]) {
    unsigned v = shard_header_v(header), count = 0, bit = shard_bit(y->st, y->h);
    bool stable =
        y->d > v ||
        (y->d == v && (y->phase == SHARD_STABLE || y->phase == SHARD_SHRINK)); /* the generation before was drained */
    if (shard_header_fold(header) & bit && !stable && v > 0)
        generation[count++] = v - 1;
    if (shard_header_fnew(header) & bit)
        generation[count++] = v;
    return count;
}


/* R5, and the second look of R6. again: home is read once more, behind all that; NULL: not. Its address is 0 then if the
 * nodes of a chain had to be read after it. 1: look again. */
static int look_into_overflow(shard_try *y, uint64_t header, bool whole, shard_hits *hits, shard_image *again) {
    unsigned generation[2], generations = shard_generations(y, header, generation);
    shard_overflow o[2];
    int none[2] = {1, 1}, err;
    hits->count = 0;
    for (unsigned i = 0; i < generations; i++)
        if ((none[i] = shard_put_overflow(y, generation[i], &o[i])) < 0)
            return none[i];
    if (again)
        far_read(y->t, y->home->addr, again->w, SHARD_BUCKET_BYTES);
    if ((err = far_wait(y->t)) < 0)
        return err;
    bool chained = false; /* R6: what is read after the second look is not covered by it */
    for (unsigned i = 0; i < generations; i++)
        chained |= !none[i] && *shard_next_of(y->st, &o[i].node) != 0;
    if (again)
        again->addr = chained ? 0 : y->home->addr;
    for (unsigned i = 0; i < generations; i++) {
        if (none[i])
            continue;
        if (i == 1 && *shard_next_of(y->st, &o[0].node)) { /* R5: the chain of the older one was read after this one */
            if ((none[1] = shard_put_overflow(y, generation[1], &o[1])) < 0 || (err = far_wait(y->t)) < 0)
                return err < 0 ? err : none[1];
        }
        err = (y->st->inlined ? shard_i_gather_overflow : shard_p_gather_overflow)(y, &o[i], generation[i], hits);
        if (err < 0)
            return err;
    }
    if (y->st->inlined)
        return shard_i_drop_false_hits(y, hits);
    if (hits->count && ((err = shard_p_put_blocks(y, hits)) < 0 || (err = far_wait(y->t)) < 0))
        return err;
    return shard_p_see_blocks(y, hits, whole);
}


static int find_overflow(shard_try *y, uint64_t header, bool whole, shard_hit hits[SHARD_COPIES_MAX], unsigned *count,
                         shard_image *again) {
    shard_hits all;
    int err;
    y->had_more_to_do = true;
    while ((err = look_into_overflow(y, header, whole, &all, again)) == 1)
        far_count_retry(y->t);
    *count = all.count < SHARD_COPIES_MAX ? all.count : SHARD_COPIES_MAX;
    memcpy(hits, all.hit, *count * sizeof(*hits));
    return err;
}


int shard_find_overflow(shard_try *y, uint64_t header, bool whole, shard_hit hits[SHARD_COPIES_MAX], unsigned *count) {
    return find_overflow(y, header, whole, hits, count, NULL);
}


/* What of the header decides where a key may lie. */
static uint64_t relevant(const shard_try *y, uint64_t header) {
    unsigned generation[2] = {0, 0}, count = shard_generations(y, header, generation);
    return (uint64_t)shard_header_v(header) << 32 | count << 16 | generation[0] << 8 | generation[1];
}


/* What the image of home proves. SHARD_ABSENT: that the key is not at level 1. */
static inline __attribute__((always_inline)) int look_at_home(shard_try *y, bool whole, shard_hit *hit) {
    uint64_t header = shard_home_header(y);
    if (!shard_home_is_right(y, header))
        return SHARD_START_OVER;
    int err = shard_find_l1(y, header, whole, hit);
    if (err == SHARD_FOUND)
        return shard_hit_counts(y, header, hit) ? SHARD_FOUND : SHARD_START_OVER;
    return err == SHARD_ABSENT && !miss_counts(y, header) ? SHARD_START_OVER : err;
}


/* Home is read again, after the levels below: the second look went along with the READs there, behind them, or is made
 * now. */
static int look_again(shard_try *y, shard_image *second, uint32_t read_mark, bool whole, shard_hit *hit,
                      uint32_t *mark) {
    int err;
    y->child_unwritten = false;
    if (second && second->addr) {
        second->bucket = y->home->bucket;
        y->spare = y->home;
        y->home = second;
        *mark = read_mark;
        return look_at_home(y, whole, hit);
    }
    *mark = far_rdwc_mark(y->t);
    if ((err = shard_place_home(y)) != 0)
        return err < 0 ? err : SHARD_START_OVER;
    return (err = shard_read_home(y)) < 0 ? err : look_at_home(y, whole, hit);
}


/* The key is not at level 1: at the levels below, if the filter says so. A miss there is believed when level 1, read
 * again, says the same as before: a drain may have moved the key up (R6). */
static __attribute__((noinline)) int find_in_overflow(shard_try *y, bool whole, shard_hit *hit, uint32_t *mark) {
    uint64_t before = 0;
    for (bool again = false;; again = true) {
        uint64_t header = shard_home_header(y), now = relevant(y, header);
        unsigned generation[2], count;
        if (shard_generations(y, header, generation) == 0 || (again && now == before))
            return SHARD_ABSENT;
        before = now;
        far_point(y->t, "shard:l1_missed");
        shard_hit hits[SHARD_COPIES_MAX];
        shard_image *second = y->paired ? NULL : y->spare;
        uint32_t read_mark = far_rdwc_mark(y->t);
        int err = find_overflow(y, header, whole, hits, &count, second);
        if (err < 0)
            return err;
        if (count) {
            *hit = hits[count - 1];
            hit->only = count == 1;
            return SHARD_FOUND;
        }
        far_point(y->t, "shard:l2_missed");
        if ((err = look_again(y, second, read_mark, whole, hit, mark)) != SHARD_ABSENT)
            return err;
    }
}


int shard_find(shard_try *y, bool whole, shard_hit *hit, uint32_t *mark) {
    int err = look_at_home(y, whole, hit);
    return err == SHARD_ABSENT ? find_in_overflow(y, whole, hit, mark) : err;
}


/* Get. */

/* 1: the value is that of the key. */
static int confirm_pair(shard_try *y, shard_hit *hit) {
    uint64_t marks[2];
    if (!shard_i_put_confirm(y, hit, marks))
        return 1;
    int err = far_wait(y->t);
    return err < 0 ? err : marks[0] == hit->word && marks[1] == hit->word;
}


static inline int confirm(shard_try *y, shard_hit *hit) {
    return y->st->inlined && !shard_i_is_whole(y->st, hit) ? confirm_pair(y, hit) : 1;
}


static inline __attribute__((always_inline)) int give(const shard_try *y, const shard_hit *hit, far_out *out) {
    if (y->st->inlined)
        return far_out_give(out, &hit->value, 8);
    return far_out_give(out, hit->block->bytes + hit->block->key_length, hit->block->value_length);
}


/* 1: found in the part of the bucket where it should be; 0: look at all of it. */
static __attribute__((noinline)) int find_in_window(shard_try *y, shard_hit *hit, uint32_t *mark) {
    *mark = far_rdwc_mark(y->t);
    int err = shard_put_window(y);
    if (err <= 0 || (err = far_wait(y->t)) < 0)
        return err;
    uint64_t header = shard_home_header(y);
    if (!shard_home_is_right(y, header) || (err = shard_find_l1(y, header, true, hit)) <= 0)
        return err < 0 ? err : 0;
    return shard_hit_counts(y, header, hit) ? confirm(y, hit) : 0;
}


/* A shard_found. */
static int find_in_home(shard_try *y, shard_hit *hit, uint32_t *mark) {
    int err = shard_place_home(y);
    if (err != 0)
        return err < 0 ? err : SHARD_START_OVER;
    if ((err = shard_read_home(y)) < 0)
        return err;
    far_point(y->t, "shard:home_read");
    if ((err = shard_find(y, true, hit, mark)) != SHARD_FOUND)
        return err;
    err = confirm(y, hit);
    return err == 0 ? SHARD_START_OVER : err;
}


enum { OPTIMISTIC_TRIES = 4 };


/* ordered_cas=off, as in the paper's baseline: who reads beside locks looks at the header again. Our readers do not need
 * that, so after some tries they go by what they have: the holder of a lock may be dead. 1: it counts; 0: once more. */
static int is_still_so(shard_try *y) {
    if (y->st->ordered_cas || y->st->inlined || y->attempt >= OPTIMISTIC_TRIES)
        return 1;
    uint64_t header;
    int err = far_read_word(y->t, y->home->addr + 8ull * SHARD_P_HEADER, &header);
    return err < 0 ? err : header == shard_home_header(y);
}


int shard_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    shard_try y;
    int err = shard_begin(&y, t, index, key);
    far_scratch_mark scratch = far_scratch_here(t);
    if (err >= 0 && y.st->inlined && shard_i_too_wide(y.st, key))
        return FAR_ERR_NOT_FOUND;
    while (err >= 0) {
        shard_hit hit;
        int same;
        shard_attempt(&y);
        uint32_t mark = 0;
        err = y.st->window_read ? find_in_window(&y, &hit, &mark) : 0;
        if (err == 0) {
            mark = far_rdwc_mark(t);
            if ((err = find_in_home(&y, &hit, &mark)) == SHARD_ABSENT)
                err = FAR_ERR_NOT_FOUND;
        }
        if ((err == SHARD_FOUND || err == FAR_ERR_NOT_FOUND) && (same = is_still_so(&y)) <= 0)
            err = same;
        err = shard_believe_miss(&y, err);
        if (y.phase == SHARD_GROW && (err == SHARD_FOUND || err == FAR_ERR_NOT_FOUND))
            shard_move_after_read(&y);
        if (err == SHARD_FOUND) {
            far_rdwc_done(t, mark);
            return give(&y, &hit, out);
        }
        if (err >= 0)
            err = shard_retry(&y, true);
        far_scratch_back(t, scratch);
    }
    return err;
}


/* Many gets: the homes of all in one round trip, then all that their matches need. What takes more is left to a get of
 * its own. */

typedef struct one_of_many {
    shard_try y;
    shard_hits hits;
    uint64_t marks[2];
    bool open, put, confirmed;
} one_of_many;


/* After its home was read: puts the READs that a match needs. */
static int put_matches(one_of_many *m) {
    shard_try *y = &m->y;
    int err = shard_see_home(y);
    m->hits.count = 0;
    if (err < 0 || !(m->put = shard_home_is_right(y, shard_home_header(y))))
        return err;
    if (!y->st->inlined) {
        shard_p_gather_l1(y, &m->hits);
        return shard_p_put_blocks(y, &m->hits);
    }
    m->hits.count = shard_i_find_l1(y, &m->hits.hit[0]);
    m->confirmed = !m->hits.count || !shard_i_put_confirm(y, &m->hits.hit[0], m->marks);
    return 0;
}


/* With all of that read. 1: *result is known. */
static int see_matches(one_of_many *m, bool window, far_out *out, int *result) {
    shard_try *y = &m->y;
    unsigned generation[2];
    uint64_t header = shard_home_header(y);
    int err = y->st->inlined ? 0 : shard_p_see_blocks(y, &m->hits, true);
    if (err < 0)
        return err;
    const shard_hit *hit = &m->hits.hit[0];
    if (m->hits.count) {
        bool confirmed = !y->st->inlined || m->confirmed || (m->marks[0] == hit->word && m->marks[1] == hit->word);
        if (!shard_hit_counts(y, header, hit) || !confirmed)
            return 0;
        *result = give(y, hit, out);
        return 1;
    }
    *result = FAR_ERR_NOT_FOUND;
    return !window && y->phase != SHARD_SHRINK && miss_counts(y, header) &&
           shard_generations(y, header, generation) == 0;
}


static int look_at_all(far_task *t, one_of_many *many, size_t count, bool window, far_out *outs[], int results[]) {
    int err = 0;
    for (size_t i = 0; err >= 0 && i < count; i++) {
        many[i].put = false;
        if (!many[i].open)
            continue;
        shard_attempt(&many[i].y);
        err = window ? shard_put_window(&many[i].y) : shard_place_home(&many[i].y);
        many[i].put = err == (window ? 1 : 0);
        if (many[i].put && !window)
            shard_put_home(&many[i].y);
    }
    int waited = far_wait(t);
    if (err < 0 || (err = waited) < 0)
        return err;
    far_point(t, "shard:homes_read");
    for (size_t i = 0; err >= 0 && i < count; i++)
        if (many[i].put)
            err = put_matches(&many[i]);
    waited = far_wait(t);
    if (err < 0 || (err = waited) < 0)
        return err;
    for (size_t i = 0; err >= 0 && i < count; i++)
        if (many[i].put && (err = see_matches(&many[i], window, outs[i], &results[i])) == 1)
            many[i].open = false;
    return err;
}


int shard_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                   int results[]) {
    one_of_many *many = far_scratch(t, count * sizeof(*many));
    int err = 0;
    if (!many)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    for (size_t i = 0; !shard_state_of(index)->ordered_cas && i < count; i++)
        results[i] = FAR_GET_ALONE; /* each looks at its header again */
    if (!shard_state_of(index)->ordered_cas)
        return 0;
    for (size_t i = 0; err >= 0 && i < count; i++) {
        err = shard_begin(&many[i].y, t, index, keys[i]);
        many[i].open = !shard_state_of(index)->inlined || !shard_i_too_wide(shard_state_of(index), keys[i]);
        results[i] = FAR_ERR_NOT_FOUND;
    }
    if (err < 0)
        return err;
    if (shard_state_of(index)->window_read)
        err = look_at_all(t, many, count, true, outs, results);
    if (err >= 0)
        err = look_at_all(t, many, count, false, outs, results);
    if (shard_is_lost(err))
        return err;
    for (size_t i = 0; i < count; i++) { /* any other error is one get's: each open one is run alone, and hears it */
        if (many[i].open)
            results[i] = FAR_GET_ALONE;
        else
            shard_move_after_read(&many[i].y);
    }
    return 0;
}
