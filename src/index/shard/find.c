/* Searches and gets, for both layouts: the main bucket of the key is searched first, then levels 2 and 3 if the filter
 * in the bucket's header has the key's bit. pointer/find.c and inline/find.c recognise the key in a bucket.
 *
 * An *image* is the result of one READ of a bucket. Its words may have been read at different moments, and splits and
 * drains may be in progress. The following rules say what an image proves about a key. v is the version in the header
 * of the image. A key *stays* if it does not leave the bucket in the split to version v+1. A *hit* is a word of the
 * image that contains the key; a *miss* is an image without such a word. fnew and fold are the two filters in the
 * header (layout.h). Generation g of levels 2 and 3 contains the keys that overflowed at version g.
 *
 * - R1. If a word of a child is zero, the child is not written yet. The parent decides instead, and it must be read
 *   after the child.
 * - R2. A hit is valid if the key stays. Otherwise the hit is valid only if the child was seen unwritten before, or if
 *   no split has begun, that is, the header has no split mark and the word of the hit is not frozen.
 * - R3. A miss is valid if the key stays. Otherwise all words of the image must have version v, and either the child
 *   was seen unwritten before or the header has no split mark.
 * - R4. After a miss, generation v is searched if the key's bit is set in fnew, and generation v-1 is searched if the
 *   bit is set in fold and the drain of v-1 is not known to have ended.
 * - R5. To search a generation, both level-2 buckets of the key and the whole chain are read. The older generation is
 *   read before the newer generation, because a drain moves keys in that direction.
 * - R6. A miss at levels 2 and 3 is valid only if level 1, read again afterwards, misses again and its header selects
 *   the same generations. Otherwise a drain may have moved the key up between the reads.
 * - R7. While the partition shrinks, a miss is valid only if the root word, read after everything else, still names the
 *   same directory (restructure_shrink.c).
 * - R8. Inline layout: if only half of a bucket was read, without its header, a hit is valid unless its key word has the
 *   mark LEAVING. A split writes this mark into all pairs that move before it writes the child, and the mark and the
 *   value are in the same tearing granule. So a hit without the mark was read before the child could be read, when the
 *   parent was the only bucket with the pair. A miss proves nothing. */
#include "base/error.h"
#include "index/common/rdwc.h"
#include "index/shard/shard.h"

#include <string.h>


bool shard_is_uniform(const shard_state *st, const uint64_t *w, unsigned v) {
    if (shard_header_v(w[shard_header_at(st)]) != v)
        return false;
    if (!st->inlined)
        return shard_p_all_stamped(st->wide, w, v);
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++)
        if (!shard_kw_stamp_is(w[2 * i + 1], v))
            return false;
    return true;
}


/* Returns true if a miss in the image of the main bucket is valid, by rule R3, and by rule R1 for a child that is read
 * without its parent. */
static bool miss_is_valid(const shard_op *op, uint64_t header) {
    unsigned v = shard_header_v(header);
    if (!shard_key_moves(op->h, op->st->p, op->st->b, v + 1))
        return !shard_is_unwritten(op->st, op->main->w);
    return shard_is_uniform(op->st, op->main->w, v) &&
           (!shard_key_may_leave(op, header) || !shard_is_splitting(op->st, header));
}


int shard_find_l1(shard_op *op, uint64_t header, bool whole, shard_hit *hit) {
    if (op->st->inlined)
        return shard_i_find_l1(op, hit) ? SHARD_FOUND : SHARD_ABSENT;
    return shard_p_find_l1(op, shard_header_v(header), whole, hit);
}


/* ---- Levels 2 and 3 ---- */

/* Rule R4: stores in `generation` the generations that must be searched, and returns their number. The older generation
 * is first, because a drain moves keys from the older to the newer generation. */
unsigned shard_generations_to_search(const shard_op *op, uint64_t header, unsigned generation[2]) {
    unsigned v = shard_header_v(header), count = 0, bit = shard_overflow_bit(op->st, op->h);
    /* true if the drain of generation v-1 has ended: the phases STABLE and SHRINK follow the drain, and a doubling
     * begins only after the drain of the previous doubling */
    bool stable = op->d > v || (op->d == v && (op->phase == SHARD_STABLE || op->phase == SHARD_SHRINK));
    if (shard_header_fold(header) & bit && !stable && v > 0)
        generation[count++] = v - 1;
    if (shard_header_fnew(header) & bit)
        generation[count++] = v;
    return count;
}


/* Searches levels 2 and 3 once (rule R5). If `again` is not NULL, the same batch reads the main bucket again at its
 * end, as rule R6 requires. again->addr is set to 0 if this second READ of the main bucket came too early, because
 * further nodes of a chain had to be read after it. Returns 1 if the search must be repeated, 0 if not, or an error. */
static int search_overflow_once(shard_op *op, uint64_t header, bool whole, shard_hits *hits, shard_image *again) {
    unsigned generation[2], generations = shard_generations_to_search(op, header, generation);
    shard_overflow o[2];
    int none[2] = {1, 1}, err;
    hits->count = 0;
    for (unsigned i = 0; i < generations; i++)
        if ((none[i] = shard_add_overflow_reads(op, generation[i], &o[i])) < 0)
            return none[i];
    if (again)
        far_read(op->t, op->main->addr, again->w, SHARD_BUCKET_BYTES);
    if ((err = far_wait(op->t)) < 0)
        return err;
    /* true if further chain nodes are read after `again`; then `again` is too early for rule R6 */
    bool chained = false;
    for (unsigned i = 0; i < generations; i++)
        chained |= !none[i] && *shard_next_of(op->st, &o[i].node) != 0;
    if (again)
        again->addr = chained ? 0 : op->main->addr;
    for (unsigned i = 0; i < generations; i++) {
        if (none[i])
            continue;
        /* The chain of the older generation was read after the level-2 buckets of the newer generation, so these
         * buckets are read again (rule R5). */
        if (i == 1 && *shard_next_of(op->st, &o[0].node)) {
            if ((none[1] = shard_add_overflow_reads(op, generation[1], &o[1])) < 0 || (err = far_wait(op->t)) < 0)
                return err < 0 ? err : none[1];
        }
        err = (op->st->inlined ? shard_i_gather_overflow : shard_p_gather_overflow)(op, &o[i], generation[i], hits);
        if (err < 0)
            return err;
    }
    if (op->st->inlined)
        return shard_i_drop_false_hits(op, hits);
    if (hits->count && ((err = shard_p_add_block_reads(op, hits)) < 0 || (err = far_wait(op->t)) < 0))
        return err;
    return shard_p_keep_matching_blocks(op, hits, whole);
}


static int search_overflow(shard_op *op, uint64_t header, bool whole, shard_hit hits[SHARD_COPIES_MAX], unsigned *count,
                           shard_image *again) {
    shard_hits all;
    int err;
    op->did_extra_work = true;
    while ((err = search_overflow_once(op, header, whole, &all, again)) == 1)
        far_count_retry(op->t);
    *count = all.count < SHARD_COPIES_MAX ? all.count : SHARD_COPIES_MAX;
    memcpy(hits, all.hit, *count * sizeof(*hits));
    return err;
}


int shard_find_overflow(shard_op *op, uint64_t header, bool whole, shard_hit hits[SHARD_COPIES_MAX], unsigned *count) {
    return search_overflow(op, header, whole, hits, count, NULL);
}


/* Returns a value that is equal for two headers if they have the same version and select the same generations to
 * search. */
static uint64_t search_scope(const shard_op *op, uint64_t header) {
    unsigned generation[2] = {0, 0}, count = shard_generations_to_search(op, header, generation);
    return (uint64_t)shard_header_v(header) << 32 | count << 16 | generation[0] << 8 | generation[1];
}


/* Searches the image of the main bucket and applies rules R2 and R3. SHARD_ABSENT means that the key is not at level 1.
 */
static inline __attribute__((always_inline)) int search_main_bucket(shard_op *op, bool whole, shard_hit *hit) {
    uint64_t header = shard_main_header(op);
    if (!shard_main_fits_root(op, header))
        return SHARD_START_OVER;
    int err = shard_find_l1(op, header, whole, hit);
    if (err == SHARD_FOUND)
        return shard_hit_is_valid(op, header, hit) ? SHARD_FOUND : SHARD_START_OVER;
    return err == SHARD_ABSENT && !miss_is_valid(op, header) ? SHARD_START_OVER : err;
}


/* Searches the main bucket again after levels 2 and 3 were searched (rule R6). `second` is the image of the main bucket
 * that was read at the end of the batch for levels 2 and 3. If there is no such image, or it was read too early, the
 * bucket is read now. */
static int search_main_again(shard_op *op, shard_image *second, uint32_t read_mark, bool whole, shard_hit *hit,
                             uint32_t *mark) {
    int err;
    op->child_unwritten = false;
    if (second && second->addr) {
        second->bucket = op->main->bucket;
        op->other = op->main;
        op->main = second;
        *mark = read_mark;
        return search_main_bucket(op, whole, hit);
    }
    *mark = far_rdwc_mark(op->t);
    if ((err = shard_locate_main(op)) != 0)
        return err < 0 ? err : SHARD_START_OVER;
    return (err = shard_read_main(op)) < 0 ? err : search_main_bucket(op, whole, hit);
}


/* Called when the key is not at level 1. Searches levels 2 and 3 if the filters have the key's bit. Repeats this until
 * a search of levels 2 and 3 and the following second search of level 1 agree that the key is absent (rule R6). Returns
 * SHARD_FOUND, SHARD_ABSENT or SHARD_START_OVER, or an error. */
static __attribute__((noinline)) int find_below_level_1(shard_op *op, bool whole, shard_hit *hit, uint32_t *mark) {
    uint64_t before = 0;
    for (bool again = false;; again = true) {
        uint64_t header = shard_main_header(op), now = search_scope(op, header);
        unsigned generation[2], count;
        if (shard_generations_to_search(op, header, generation) == 0 || (again && now == before))
            return SHARD_ABSENT;
        before = now;
        far_point(op->t, "shard:l1_missed");
        shard_hit hits[SHARD_COPIES_MAX];
        shard_image *second = op->paired ? NULL : op->other;
        uint32_t read_mark = far_rdwc_mark(op->t);
        int err = search_overflow(op, header, whole, hits, &count, second);
        if (err < 0)
            return err;
        if (count) {
            *hit = hits[count - 1];
            hit->only_copy = count == 1;
            return SHARD_FOUND;
        }
        far_point(op->t, "shard:l2_missed");
        if ((err = search_main_again(op, second, read_mark, whole, hit, mark)) != SHARD_ABSENT)
            return err;
    }
}


int shard_find_key(shard_op *op, bool whole, shard_hit *hit, uint32_t *mark) {
    int err = search_main_bucket(op, whole, hit);
    return err == SHARD_ABSENT ? find_below_level_1(op, whole, hit, mark) : err;
}


/* ---- Get ---- */

/* Verifies that the value of a hit belongs to the key, by reading key and value again in order. Returns 1 if the value
 * belongs to the key, 0 if not, or an error. */
static int confirm_value(shard_op *op, shard_hit *hit) {
    uint64_t marks[2];
    if (!shard_i_add_confirming_reads(op, hit, marks))
        return 1;
    int err = far_wait(op->t);
    return err < 0 ? err : marks[0] == hit->word && marks[1] == hit->word;
}


static inline int confirm_hit(shard_op *op, shard_hit *hit) {
    return op->st->inlined && !shard_i_hit_is_atomic(op->st, hit) ? confirm_value(op, hit) : 1;
}


static inline __attribute__((always_inline)) int give_value(const shard_op *op, const shard_hit *hit, far_out *out) {
    if (op->st->inlined)
        return far_out_give(out, &hit->value, 8);
    return far_out_give(out, hit->block->bytes + hit->block->key_length, hit->block->value_length);
}


/* Inline layout: searches only the half of the bucket where the key most likely is (rule R8). Returns 1 if the key was
 * found, 0 if the whole bucket must be searched, or an error. */
static int find_in_half(shard_op *op, shard_hit *hit, uint32_t *mark) {
    *mark = far_rdwc_mark(op->t);
    int err = shard_i_read_half(op);
    if (err <= 0)
        return err;
    far_point(op->t, "shard:half_read");
    return shard_i_find_in_half(op, hit) ? confirm_hit(op, hit) : 0;
}


/* Searches the whole main bucket and the levels below. Returns SHARD_FOUND, SHARD_ABSENT or SHARD_START_OVER, or an
 * error. */
static int find_in_bucket(shard_op *op, shard_hit *hit, uint32_t *mark) {
    int err = shard_locate_main(op);
    if (err != 0)
        return err < 0 ? err : SHARD_START_OVER;
    if ((err = shard_read_main(op)) < 0)
        return err;
    far_point(op->t, "shard:main_bucket_read");
    if ((err = shard_find_key(op, true, hit, mark)) != SHARD_FOUND)
        return err;
    err = confirm_hit(op, hit);
    return err == 0 ? SHARD_START_OVER : err;
}


enum { OPTIMISTIC_TRIES = 4 };


/* Used with ordered_cas=off, the paper's baseline, in which a reader that runs concurrently with lock holders must read
 * the header again. The rules R1 to R7 do not need this READ. Therefore, after some tries, the get accepts its result
 * although the bucket is locked, because a failed lock holder would never release the lock. Returns 1 if the result is
 * accepted, and 0 if the get must retry. */
static int recheck_header(shard_op *op) {
    if (op->st->ordered_cas || op->st->inlined || op->attempt >= OPTIMISTIC_TRIES)
        return 1;
    uint64_t header;
    int err = far_read_word(op->t, op->main->addr + 8ull * SHARD_P_HEADER, &header);
    return err < 0 ? err : header == shard_main_header(op);
}


int shard_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    shard_op op;
    int err = shard_begin_operation(&op, t, index, key);
    far_scratch_mark scratch = far_scratch_here(t);
    if (err >= 0 && op.st->inlined && shard_i_too_wide(op.st, key))
        return FAR_ERR_NOT_FOUND;
    while (err >= 0) {
        shard_hit hit;
        int same;
        shard_start_attempt(&op);
        uint32_t mark = 0;
        err = op.st->half_read ? find_in_half(&op, &hit, &mark) : 0;
        if (err == 0) {
            mark = far_rdwc_mark(t);
            if ((err = find_in_bucket(&op, &hit, &mark)) == SHARD_ABSENT)
                err = FAR_ERR_NOT_FOUND;
        }
        if ((err == SHARD_FOUND || err == FAR_ERR_NOT_FOUND) && (same = recheck_header(&op)) <= 0)
            err = same;
        err = shard_confirm_miss(&op, err);
        if (op.phase == SHARD_GROW && (err == SHARD_FOUND || err == FAR_ERR_NOT_FOUND))
            shard_split_after_read(&op);
        if (err == SHARD_FOUND) {
            far_rdwc_done(t, mark);
            return give_value(&op, &hit, out);
        }
        if (err >= 0)
            err = shard_retry(&op, true);
        far_scratch_back(t, scratch);
    }
    return err;
}


/* ---- Many gets ----
 *
 * One batch reads the main buckets of all keys, and the next batch reads the pair blocks or words that the matches in
 * these buckets need. A get that needs further READs is executed by itself afterwards. The buckets are read whole (rule
 * R8 is not used), because one key that is not in its half would cost the whole batch a round trip. */

typedef struct batched_get {
    shard_op op;
    shard_hits hits;
    uint64_t marks[2];
    bool unresolved, posted, confirmed;
} batched_get;


/* Called when the main bucket of this get has been read. Adds the READs that verify a match. Returns 0 or an error. */
static int add_match_reads(batched_get *m) {
    shard_op *op = &m->op;
    int err = shard_select_main(op);
    m->hits.count = 0;
    if (err < 0 || !(m->posted = shard_main_fits_root(op, shard_main_header(op))))
        return err;
    if (!op->st->inlined) {
        shard_p_gather_l1(op, &m->hits);
        return shard_p_add_block_reads(op, &m->hits);
    }
    m->hits.count = shard_i_find_l1(op, &m->hits.hit[0]);
    m->confirmed = !m->hits.count || !shard_i_add_confirming_reads(op, &m->hits.hit[0], m->marks);
    return 0;
}


/* Called when the READs of add_match_reads have completed. Returns 1 if *result is final, 0 if the get must be executed
 * by itself, or an error. */
static int check_matches(batched_get *m, far_out *out, int *result) {
    shard_op *op = &m->op;
    unsigned generation[2];
    uint64_t header = shard_main_header(op);
    int err = op->st->inlined ? 0 : shard_p_keep_matching_blocks(op, &m->hits, true);
    if (err < 0)
        return err;
    const shard_hit *hit = &m->hits.hit[0];
    if (m->hits.count) {
        bool confirmed = !op->st->inlined || m->confirmed || (m->marks[0] == hit->word && m->marks[1] == hit->word);
        if (!shard_hit_is_valid(op, header, hit) || !confirmed)
            return 0;
        *result = give_value(op, hit, out);
        return 1;
    }
    *result = FAR_ERR_NOT_FOUND;
    return op->phase != SHARD_SHRINK && miss_is_valid(op, header) &&
           shard_generations_to_search(op, header, generation) == 0;
}


static int get_all_once(far_task *t, batched_get *many, size_t count, far_out *outs[], int results[]) {
    int err = 0;
    for (size_t i = 0; err >= 0 && i < count; i++) {
        many[i].posted = false;
        if (!many[i].unresolved)
            continue;
        shard_start_attempt(&many[i].op);
        err = shard_locate_main(&many[i].op);
        many[i].posted = err == 0;
        if (many[i].posted)
            shard_add_main_reads(&many[i].op);
    }
    int waited = far_wait(t);
    if (err < 0 || (err = waited) < 0)
        return err;
    far_point(t, "shard:main_buckets_read");
    for (size_t i = 0; err >= 0 && i < count; i++)
        if (many[i].posted)
            err = add_match_reads(&many[i]);
    waited = far_wait(t);
    if (err < 0 || (err = waited) < 0)
        return err;
    for (size_t i = 0; err >= 0 && i < count; i++)
        if (many[i].posted && (err = check_matches(&many[i], outs[i], &results[i])) == 1)
            many[i].unresolved = false;
    return err;
}


int shard_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                   int results[]) {
    batched_get *many = far_scratch(t, count * sizeof(*many));
    int err = 0;
    if (!many)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    for (size_t i = 0; !shard_state_of(index)->ordered_cas && i < count; i++)
        results[i] = FAR_GET_ALONE; /* with ordered_cas=off each get must read its header again, by itself */
    if (!shard_state_of(index)->ordered_cas)
        return 0;
    for (size_t i = 0; err >= 0 && i < count; i++) {
        err = shard_begin_operation(&many[i].op, t, index, keys[i]);
        many[i].unresolved = !shard_state_of(index)->inlined || !shard_i_too_wide(shard_state_of(index), keys[i]);
        results[i] = FAR_ERR_NOT_FOUND;
    }
    if (err < 0)
        return err;
    err = get_all_once(t, many, count, outs, results);
    if (shard_session_is_lost(err))
        return err;
    for (size_t i = 0; i < count;
         /* Any other error concerns a single get. Each get without a result is executed by itself and reports its own
          * error. */
         i++) {
        if (many[i].unresolved)
            results[i] = FAR_GET_ALONE;
        else
            shard_split_after_read(&many[i].op);
    }
    return 0;
}
