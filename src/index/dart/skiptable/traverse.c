/* Walk, check and counts of the skip table. These operations visit the segments in slices of the directory, each slice
 * under its own pin. They use dart_est_visit_segments, which adjust.c uses, too. */
#include "base/error.h"
#include "index/dart/skiptable/skiptable.h"
#include "pool/epoch/epoch.h"
#include "pool/format/owner.h"


/* Consecutive words of the directory, or of one table. Only the first word may name a table. */
typedef struct word_run {
    dart_dir_slot dir; /* directory slot of the first word */
    unsigned count;
    uint64_t words[DART_SEGMENTS_AT_ONCE];
} word_run;


static int read_segments(far_task *t, const uint64_t *words, uint64_t **slots, unsigned count) {
    bool any = false;
    for (unsigned i = 0; i < count; i++) {
        slots[i] = NULL;
        if (words[i] == 0)
            continue;
        uint64_t bytes = dart_segment_bytes(dart_directory_log_groups(words[i]));
        if (!(slots[i] = far_scratch(t, bytes)))
            return far_fail(FAR_ERR_NO_MEMORY, "no local memory for segments");
        for (uint64_t at = 0; at < bytes; at += FAR_VERB_BYTES_MAX)
            far_read(t, dart_word_addr(words[i]) + at, (char *)slots[i] + at,
                     bytes - at < FAR_VERB_BYTES_MAX ? bytes - at : FAR_VERB_BYTES_MAX);
        any = true;
    }
    return any ? far_wait(t) : 0;
}


/* Reads consecutive words of the directory, with one READ for each stripe. */
static int read_striped(far_task *t, const dart_est *est, unsigned from, unsigned count, uint64_t *words) {
    uint64_t *lines = far_scratch(t, count * 8ull);
    unsigned put = 0, starts[DART_STRIPES_MAX];
    if (!lines)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for directory words");
    for (unsigned i = 0; i < est->stripes && i < count; i++) {
        unsigned n = (count - i + est->stripes - 1) / est->stripes;
        far_read(t, dart_dir_slot_at(est, from + i).addr, lines + put, n * 8ull);
        starts[i] = put;
        put += n;
    }
    int err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < count; i++)
        words[i] = lines[starts[i % est->stripes] + i / est->stripes];
    return err;
}


static dart_dir_slot dir_slot_in_run(const dart_est *est, const word_run *r, unsigned i) {
    if (r->dir.level == 0)
        return dart_dir_slot_at(est, (r->dir.number & ((1u << est->bits) - 1)) + i);
    return (dart_dir_slot){r->dir.number + i, r->dir.level, r->dir.addr + i * 8ull};
}


/* Reads at most r->count words from r->dir on, up to the next word that names a table. Returns 0 or an error. */
static int read_run(far_task *t, const dart_est *est, word_run *r) {
    int err;
    if (r->dir.level == 0) {
        err = read_striped(t, est, r->dir.number & ((1u << est->bits) - 1), r->count, r->words);
    } else {
        far_read(t, r->dir.addr, r->words, r->count * 8ull);
        err = far_wait(t);
    }
    for (unsigned i = 0; err >= 0 && i < r->count; i++) {
        dart_dir_slot dir = dir_slot_in_run(est, r, i);
        err = dart_est_check_dir_word(est, &dir, r->words[i]);
        if (dart_is_table(r->words[i]) && i > 0)
            r->count = i;
    }
    return err;
}


/* Returns the number of low bits of a place (position in hash order, skiptable.h) that do not take part in selecting a
 * directory word at this level. */
static unsigned bits_below(const dart_est *est, unsigned level) {
    return dart_est_place_bits(est) - est->bits - level * DART_TABLE_LOG;
}


/* Finds and reads the run of directory words that begins at this place (position in hash order, skiptable.h). The path
 * to the run may lead through tables. Calls `each` for those of these tables that begin at this place, so that it is
 * called once for each table. Leaves out the tables above `level`, because `each` was called for them before. Returns 0
 * or an error. */
static int find_run(far_task *t, far_index *index, unsigned place, unsigned level, word_run *r, dart_segment_fn *each,
                    void *ctx) {
    const dart_est *est = dart_est_of(index);
    unsigned most = (dart_of(index)->walk_slice + 3) / 4, below = bits_below(est, 0), in_table = 1u << est->bits;
    most = most < DART_SEGMENTS_AT_ONCE ? most : DART_SEGMENTS_AT_ONCE;
    r->dir = dart_dir_slot_at(est, place >> below);
    for (;;) {
        unsigned rest = in_table - (r->dir.number & (in_table - 1));
        r->count = rest < most ? rest : most;
        int err = read_run(t, est, r);
        if (err < 0 || !dart_is_table(r->words[0]))
            return err;
        if ((place & ((1u << below) - 1)) == 0 && r->dir.level >= level &&
            (err = each(t, index, &r->dir, r->words[0], NULL, 0, ctx)) < 0)
            return err;
        in_table = DART_TABLE_WORDS;
        below -= DART_TABLE_LOG;
        r->dir = dart_dir_slot_below(&r->dir, r->words[0], place >> below & (in_table - 1));
    }
}


/* Results of visiting a segment. SEGMENT_CHANGED: the segment has changed and must be visited again. SEGMENT_IS_TABLE:
 * a table has replaced the segment. */
enum { SEGMENT_CHANGED = 1, SEGMENT_IS_TABLE = 2 };


/* Visits a segment again after it has changed: reads the current directory word and the segment that this word names.
 */
static int visit_again(far_task *t, far_index *index, const dart_dir_slot *dir, dart_segment_fn *each, void *ctx) {
    uint64_t word, *slots;
    int err = far_read_word(t, dir->addr, &word);
    if (err < 0 || (err = dart_est_check_dir_word(dart_est_of(index), dir, word)) < 0 || dart_is_table(word))
        return err < 0 ? err : SEGMENT_IS_TABLE;
    if ((err = read_segments(t, &word, &slots, 1)) < 0 || !slots)
        return err;
    return each(t, index, dir, word, slots, DART_EST_GROUP_SLOTS << dart_directory_log_groups(word), ctx);
}


/* Visits the run that begins at this place. Returns the number of words that were visited; 0 if a table has taken the
 * place of the first segment; or an error. */
static int visit_run(far_task *t, far_index *index, unsigned place, unsigned level, word_run *r, dart_segment_fn *each,
                     void *ctx) {
    uint64_t *slots[DART_SEGMENTS_AT_ONCE];
    int err = find_run(t, index, place, level, r, each, ctx);
    if (err >= 0)
        err = read_segments(t, r->words, slots, r->count);
    unsigned i = 0;
    for (; err >= 0 && i < r->count; i++) {
        dart_dir_slot dir = dir_slot_in_run(dart_est_of(index), r, i);
        if (slots[i])
            err = each(t, index, &dir, r->words[i], slots[i],
                       DART_EST_GROUP_SLOTS << dart_directory_log_groups(r->words[i]), ctx);
        while (err == SEGMENT_CHANGED)
            err = visit_again(t, index, &dir, each, ctx);
        if (err == SEGMENT_IS_TABLE)
            break; /* the segments of this table are not in the current run; the next run begins in the table */
    }
    return err < 0 ? err : (int)i;
}


int dart_est_visit_segments(far_task *t, far_index *index, unsigned *place, dart_segment_fn *each, void *ctx) {
    far_scratch_mark mark = far_scratch_here(t);
    word_run *r = far_scratch(t, sizeof(*r));
    int done =
        r ? visit_run(t, index, *place, 0, r, each, ctx) : far_fail(FAR_ERR_NO_MEMORY, "no local memory for a walk");
    /* Continue at the same place in the new table within this call, because a later call would report the tables above
     * the new table once more. */
    while (done == 0)
        done = visit_run(t, index, *place, r->dir.level, r, each, ctx);
    if (done < 0) {
        far_discard_batch(t);
    } else {
        unsigned below = bits_below(dart_est_of(index), r->dir.level);
        *place = ((*place >> below) + (unsigned)done) << below;
    }
    far_scratch_back(t, mark);
    return done < 0 ? done : 0;
}


static int visit_all_segments(far_task *t, far_index *index, dart_segment_fn *each, void *ctx) {
    int err = 0;
    for (unsigned place = 0; err >= 0 && place < dart_est_places(dart_est_of(index));) {
        if ((err = far_pin_take(t)) >= 0)
            err = dart_est_visit_segments(t, index, &place, each, ctx);
        far_pin_drop(t);
    }
    return err < 0 ? err : 0;
}


/* ---- Walk ---- */

static bool entry_must_be_cleared(const dart_target *target, uint64_t word) {
    return dart_est_is_tentative(word) || (target->addr && (!target->sound || target->frozen));
}


/* Clears the entries of frozen nodes, because a client that failed may have unlinked such a node without retiring it;
 * then the collection will free the node. Clears all tentative words, also those of living clients. A living client may
 * have seen its node unfrozen before this walk, and would commit its tentative word after the walk. A client that
 * writes its tentative word later will see that the node is frozen. So after the walk no word names an unlinked node.
 * Returns 1 if a word changed in the meantime, so that the segment must be visited again; 0 if not; or an error. */
static int clear_slots(far_task *t, far_index *index, uint64_t word, const uint64_t *slots, unsigned count) {
    dart_target *targets = far_scratch(t, count * sizeof(*targets));
    uint64_t *seen = far_scratch(t, count * 8ull);
    bool any = false, lost = false;
    if (!targets || !seen)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a walk");
    for (unsigned i = 0; i < count; i++) {
        targets[i].addr = dart_est_is_committed(slots[i]) ? dart_word_addr(slots[i]) : 0;
        any |= targets[i].addr != 0;
    }
    int err = any ? dart_est_read_targets(t, index, targets, count) : 0;
    if (err < 0)
        return err;
    far_point(t, "dart:est_clear_dead");
    for (unsigned i = 0; i < count; i++) {
        seen[i] = slots[i];
        if (entry_must_be_cleared(&targets[i], slots[i]))
            far_cas(t, dart_word_addr(word) + i * 8ull, slots[i], 0, &seen[i]);
    }
    err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < count; i++)
        lost |= seen[i] != slots[i];
    return err < 0 ? err : lost;
}


static int walk_segment(far_task *t, far_index *index, const dart_dir_slot *dir, uint64_t word, const uint64_t *slots,
                        unsigned count, void *ctx) {
    if (dart_is_table(word))
        return far_walk_object(ctx, index, DART_TYPE_EST_DIRECTORY, dart_word_addr(word), DART_TABLE_BYTES);
    /* The client that froze the segment may have failed, so the walk completes the replacement. */
    if (dart_est_any_frozen(slots, count)) {
        int err = dart_est_grow(t, index, dir, word, true);
        return err < 0 ? err : 1;
    }
    far_scratch_mark mark = far_scratch_here(t);
    int err = clear_slots(t, index, word, slots, count);
    far_scratch_back(t, mark);
    if (err != 0)
        return err;
    return far_walk_object(ctx, index, DART_TYPE_EST_SEGMENT, dart_word_addr(word),
                           dart_segment_bytes(dart_directory_log_groups(word)));
}


static int free_failed_adjuster(far_task *t, far_index *index) {
    far_addr addr = index->descriptor + offsetof(dart_super, adjuster);
    uint64_t word;
    int err = far_read_word(t, addr, &word);
    return err < 0 ? err : far_locks_release_failed(t, addr, &word, 1);
}


int dart_est_walk(far_task *t, far_index *index, far_walk *walk) {
    const dart_est *est = dart_est_of(index);
    if (!est)
        return 0;
    uint64_t bytes = ((1ull << est->bits) + est->stripes - 1) / est->stripes * 8, word = 0;
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < est->stripes; i++)
        err = far_walk_object(walk, index, DART_TYPE_EST_DIRECTORY, est->stripe[i], bytes);
    if (err >= 0 && (err = far_pin_take(t)) >= 0) {
        if ((err = free_failed_adjuster(t, index)) >= 0)
            err = far_read_word(t, index->descriptor + offsetof(dart_super, list), &word);
        /* The receiver of the walk checks whether the reported object is free. So the pin under which the list word was
         * read must still be held: without it another handle could have replaced the list, and the list's memory could
         * be free. */
        if (err >= 0)
            err = far_walk_object(walk, index, DART_TYPE_LIST, dart_word_addr(word), sizeof(dart_list));
        far_pin_drop(t);
    }
    return err < 0 ? err : visit_all_segments(t, index, walk_segment, walk);
}


/* ---- Check ---- */

/* Reports entries that are not in the bucket of their node's prefix, because no lookup would find such entries. Also
 * reports entries that name no valid node, because they violate invariant E1 (a committed entry never names a retired
 * node). */
static int check_segment(far_task *t, far_index *index, const dart_dir_slot *dir, uint64_t word, const uint64_t *slots,
                         unsigned count, void *ctx) {
    const dart_est *est = dart_est_of(index);
    far_report *report = ctx;
    far_scratch_mark mark = far_scratch_here(t);
    dart_target *targets = far_scratch(t, count * sizeof(*targets));
    bool any = false;
    if (dart_is_table(word))
        return 0;
    if (!targets)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a check");
    for (unsigned i = 0; i < count; i++) {
        targets[i].addr = dart_est_is_committed(slots[i]) ? dart_word_addr(slots[i]) : 0;
        any |= targets[i].addr != 0;
    }
    int err = any ? dart_est_read_targets(t, index, targets, count) : 0;
    for (unsigned i = 0; err >= 0 && any && i < count; i++) {
        const dart_target *target = &targets[i];
        unsigned delta = dart_est_delta(slots[i]), length = target->depth - delta;
        if (!target->addr)
            continue;
        if (!target->sound || target->depth <= delta || length > DART_EST_PREFIX_MAX) {
            far_report_problem(report, "skip table: entry %#llx of directory word %#x does not name a valid node",
                               (unsigned long long)slots[i], dir->number);
            continue;
        }
        uint64_t hash = dart_est_hash(est, target->prefix, length);
        unsigned group = i / DART_EST_GROUP_SLOTS, bucket = i % DART_EST_GROUP_SLOTS / DART_EST_BUCKET;
        if (dart_dir_number(est, hash, dir->level) != dir->number ||
            dart_hash_group(hash, dir->level, dart_directory_log_groups(word)) != group ||
            (bucket != 1 && bucket / 2 != dart_hash_main(hash)) ||
            dart_est_fingerprint(slots[i]) != dart_est_fingerprint_of(est, hash))
            far_report_problem(report,
                               "skip table: entry %#llx of directory word %#x is not in the bucket of its prefix",
                               (unsigned long long)slots[i], dir->number);
    }
    far_scratch_back(t, mark);
    return err;
}


int dart_est_check(far_task *t, far_index *index, far_report *report) {
    return dart_est_of(index) ? visit_all_segments(t, index, check_segment, report) : 0;
}


/* ---- Counts ---- */

static int count_segment(far_task *t, far_index *index, const dart_dir_slot *dir, uint64_t word, const uint64_t *slots,
                         unsigned count, void *ctx) {
    (void)t, (void)index, (void)dir;
    dart_est_counts *counts = ctx;
    if (dart_is_table(word)) {
        counts->tables++;
        counts->bytes += DART_TABLE_BYTES;
        return 0;
    }
    counts->segments++;
    counts->slots += count;
    counts->bytes += dart_segment_bytes(dart_directory_log_groups(word));
    for (unsigned i = 0; i < count; i++) {
        counts->entries += dart_est_is_committed(slots[i]);
        counts->tentative += dart_est_is_tentative(slots[i]);
    }
    return 0;
}


int dart_est_count(far_task *t, far_index *index, dart_est_counts *counts) {
    *counts = (dart_est_counts){0};
    if (!dart_est_of(index))
        return 0;
    counts->bytes = 8ull << dart_est_of(index)->bits;
    return visit_all_segments(t, index, count_segment, counts);
}


int dart_est_usage(far_task *t, far_index *index, far_usage *usage) {
    (void)t, (void)index, (void)usage; /* The pool counts the bytes of the skip table. */
    return 0;
}
