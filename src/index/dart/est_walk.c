/* Walk, check and counts of the skip table: in slices of the directory, each under its own pin. */
#include "base/error.h"
#include "index/dart/est.h"
#include "pool/epoch.h"
#include "pool/owner.h"


/* A run of words in the directory, or in one table of it, none of which is a table. */
typedef struct run {
    dart_spot spot; /* of the first */
    unsigned count;
    uint64_t words[DART_SEGMENTS_AT_ONCE];
} run;


static int read_segments(far_task *t, const uint64_t *words, uint64_t **slots, unsigned count) {
    bool any = false;
    for (unsigned i = 0; i < count; i++) {
        slots[i] = NULL;
        if (words[i] == 0)
            continue;
        uint64_t bytes = dart_segment_bytes(dart_directory_log_groups(words[i]));
        if (!(slots[i] = far_scratch(t, bytes)))
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for segments");
        for (uint64_t at = 0; at < bytes; at += FAR_VERB_BYTES_MAX)
            far_read(t, dart_word_addr(words[i]) + at, (char *)slots[i] + at,
                     bytes - at < FAR_VERB_BYTES_MAX ? bytes - at : FAR_VERB_BYTES_MAX);
        any = true;
    }
    return any ? far_wait(t) : 0;
}


/* A run of directory words: one READ for each stripe. */
static int read_striped(far_task *t, const dart_est *est, unsigned from, unsigned count, uint64_t *words) {
    uint64_t *lines = far_scratch(t, count * 8ull);
    unsigned put = 0, starts[DART_STRIPES_MAX];
    if (!lines)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for directory words");
    for (unsigned i = 0; i < est->stripes && i < count; i++) {
        unsigned n = (count - i + est->stripes - 1) / est->stripes;
        far_read(t, dart_spot_at(est, from + i).addr, lines + put, n * 8ull);
        starts[i] = put;
        put += n;
    }
    int err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < count; i++)
        words[i] = lines[starts[i % est->stripes] + i / est->stripes];
    return err;
}


static dart_spot spot_in_run(const dart_est *est, const run *r, unsigned i) {
    if (r->spot.level == 0)
        return dart_spot_at(est, (r->spot.at & ((1u << est->bits) - 1)) + i);
    return (dart_spot){r->spot.at + i, r->spot.level, r->spot.addr + i * 8ull};
}


/* The words from this one on, up to the next table; count is how many there may be. */
static int read_run(far_task *t, const dart_est *est, run *r) {
    int err;
    if (r->spot.level == 0) {
        err = read_striped(t, est, r->spot.at & ((1u << est->bits) - 1), r->count, r->words);
    } else {
        far_read(t, r->spot.addr, r->words, r->count * 8ull);
        err = far_wait(t);
    }
    for (unsigned i = 0; err >= 0 && i < r->count; i++) {
        dart_spot spot = spot_in_run(est, r, i);
        err = dart_est_check_word(est, &spot, r->words[i]);
        if (dart_is_table(r->words[i]) && i > 0)
            r->count = i;
    }
    return err;
}


/* Bits of a place below those that lead to words of this level. */
static unsigned bits_below(const dart_est *est, unsigned level) {
    return dart_est_place_bits(est) - est->bits - level * DART_TABLE_LOG;
}


/* The run that begins at this place; `each` is told of tables on the way that begin there, from this level on: it knows
 * of those above. */
static int find_run(far_task *t, far_index *index, unsigned place, unsigned level, run *r, dart_segment_fn *each,
                    void *ctx) {
    const dart_est *est = dart_est_of(index);
    unsigned most = (dart_of(index)->walk_slice + 3) / 4, below = bits_below(est, 0), in_table = 1u << est->bits;
    most = most < DART_SEGMENTS_AT_ONCE ? most : DART_SEGMENTS_AT_ONCE;
    r->spot = dart_spot_at(est, place >> below);
    for (;;) {
        unsigned rest = in_table - (r->spot.at & (in_table - 1));
        r->count = rest < most ? rest : most;
        int err = read_run(t, est, r);
        if (err < 0 || !dart_is_table(r->words[0]))
            return err;
        if ((place & ((1u << below) - 1)) == 0 && r->spot.level >= level &&
            (err = each(t, index, &r->spot, r->words[0], NULL, 0, ctx)) < 0)
            return err;
        in_table = DART_TABLE_WORDS;
        below -= DART_TABLE_LOG;
        r->spot = dart_spot_below(&r->spot, r->words[0], place >> below & (in_table - 1));
    }
}


enum { AGAIN = 1, TABLE = 2 }; /* what became of a segment: it has changed; it is a table now */


/* A segment that has changed, as it is now. */
static int one_again(far_task *t, far_index *index, const dart_spot *spot, dart_segment_fn *each, void *ctx) {
    uint64_t word, *slots;
    int err = far_read_word(t, spot->addr, &word);
    if (err < 0 || (err = dart_est_check_word(dart_est_of(index), spot, word)) < 0 || dart_is_table(word))
        return err < 0 ? err : TABLE;
    if ((err = read_segments(t, &word, &slots, 1)) < 0 || !slots)
        return err;
    return each(t, index, spot, word, slots, DART_EST_GROUP_SLOTS << dart_directory_log_groups(word), ctx);
}


/* A run from this place on, as find_run. How many words of it are done: 0: the first has become a table; or an error. */
static int each_of_run(far_task *t, far_index *index, unsigned place, unsigned level, run *r, dart_segment_fn *each,
                       void *ctx) {
    uint64_t *slots[DART_SEGMENTS_AT_ONCE];
    int err = find_run(t, index, place, level, r, each, ctx);
    if (err >= 0)
        err = read_segments(t, r->words, slots, r->count);
    unsigned i = 0;
    for (; err >= 0 && i < r->count; i++) {
        dart_spot spot = spot_in_run(dart_est_of(index), r, i);
        if (slots[i])
            err = each(t, index, &spot, r->words[i], slots[i],
                       DART_EST_GROUP_SLOTS << dart_directory_log_groups(r->words[i]), ctx);
        while (err == AGAIN)
            err = one_again(t, index, &spot, each, ctx);
        if (err == TABLE)
            break; /* the next run begins in it */
    }
    return err < 0 ? err : (int)i;
}


int dart_est_each_segment(far_task *t, far_index *index, unsigned *place, dart_segment_fn *each, void *ctx) {
    far_scratch_mark mark = far_scratch_here(t);
    run *r = far_scratch(t, sizeof(*r));
    int done = r ? each_of_run(t, index, *place, 0, r, each, ctx) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    while (done == 0) /* in the new table, at the same place: a later call would tell of the tables above once more */
        done = each_of_run(t, index, *place, r->spot.level, r, each, ctx);
    if (done < 0) {
        far_forget(t);
    } else {
        unsigned below = bits_below(dart_est_of(index), r->spot.level);
        *place = ((*place >> below) + (unsigned)done) << below;
    }
    far_scratch_back(t, mark);
    return done < 0 ? done : 0;
}


static int whole_table(far_task *t, far_index *index, dart_segment_fn *each, void *ctx) {
    int err = 0;
    for (unsigned place = 0; err >= 0 && place < dart_est_places(dart_est_of(index));) {
        if ((err = far_pin_take(t)) >= 0)
            err = dart_est_each_segment(t, index, &place, each, ctx);
        far_pin_drop(t);
    }
    return err < 0 ? err : 0;
}


/* ---- Walk ---- */

static bool must_go(const dart_target *target, uint64_t word) {
    return dart_est_is_tentative(word) || (target->addr && (!target->sound || target->frozen));
}


/* Entries of frozen nodes go: such a node may be one that a dead client unlinked and never retired, which the sweep
 * will free. So do all tentative words, of the living too: a client that has seen such a node unfrozen would commit
 * its word behind us. One that comes later sees it frozen. Afterwards no word names a dead client. 1: one has changed meanwhile, look
 * again. */
static int clear_slots(far_task *t, far_index *index, uint64_t word, const uint64_t *slots, unsigned count) {
    dart_target *targets = far_scratch(t, count * sizeof(*targets));
    uint64_t *seen = far_scratch(t, count * 8ull);
    bool any = false, lost = false;
    if (!targets || !seen)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    for (unsigned i = 0; i < count; i++) {
        targets[i].addr = dart_est_is_committed(slots[i]) ? dart_word_addr(slots[i]) : 0;
        any |= targets[i].addr != 0;
    }
    int err = any ? dart_est_read_targets(t, index, targets, count) : 0;
    if (err < 0)
        return err;
    far_point(t, "dart:est_clear");
    for (unsigned i = 0; i < count; i++) {
        seen[i] = slots[i];
        if (must_go(&targets[i], slots[i]))
            far_cas(t, dart_word_addr(word) + i * 8ull, slots[i], 0, &seen[i]);
    }
    err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < count; i++)
        lost |= seen[i] != slots[i];
    return err < 0 ? err : lost;
}


static int walk_segment(far_task *t, far_index *index, const dart_spot *spot, uint64_t word, const uint64_t *slots,
                        unsigned count, void *ctx) {
    if (dart_is_table(word))
        return far_walk_object(ctx, index, DART_TYPE_EST_DIRECTORY, dart_word_addr(word), DART_TABLE_BYTES);
    if (dart_est_any_frozen(slots, count)) { /* by one who may be dead */
        int err = dart_est_grow(t, index, spot, word, true);
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


static int free_dead_adjuster(far_task *t, far_index *index) {
    far_addr addr = index->descriptor + offsetof(dart_super, adjuster);
    uint64_t word;
    int err = far_read_word(t, addr, &word);
    return err < 0 ? err : far_locks_free_dead(t, addr, &word, 1);
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
        if ((err = free_dead_adjuster(t, index)) >= 0)
            err = far_read_word(t, index->descriptor + offsetof(dart_super, list), &word);
        if (err >= 0) /* with the pin: who is told looks whether it is free */
            err = far_walk_object(walk, index, DART_TYPE_LIST, dart_word_addr(word), sizeof(dart_list));
        far_pin_drop(t);
    }
    return err < 0 ? err : whole_table(t, index, walk_segment, walk);
}


/* ---- Check ---- */

/* An entry that does not lie where its node's prefix hashes to would never be found; one whose node is no node breaks
 * E1. */
static int check_segment(far_task *t, far_index *index, const dart_spot *spot, uint64_t word, const uint64_t *slots,
                         unsigned count, void *ctx) {
    const dart_est *est = dart_est_of(index);
    far_report *report = ctx;
    far_scratch_mark mark = far_scratch_here(t);
    dart_target *targets = far_scratch(t, count * sizeof(*targets));
    bool any = false;
    if (dart_is_table(word))
        return 0;
    if (!targets)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a check");
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
            far_report_problem(report, "skip table: entry %#llx of directory word %#x names no node",
                               (unsigned long long)slots[i], spot->at);
            continue;
        }
        uint64_t hash = dart_est_hash(est, target->prefix, length);
        unsigned group = i / DART_EST_GROUP_SLOTS, bucket = i % DART_EST_GROUP_SLOTS / DART_EST_BUCKET;
        if (dart_number(est, hash, spot->level) != spot->at ||
            dart_hash_group(hash, spot->level, dart_directory_log_groups(word)) != group ||
            (bucket != 1 && bucket / 2 != dart_hash_main(hash)) ||
            dart_est_fingerprint(slots[i]) != dart_est_fingerprint_of(est, hash))
            far_report_problem(report, "skip table: entry %#llx of directory word %#x lies in a wrong place",
                               (unsigned long long)slots[i], spot->at);
    }
    far_scratch_back(t, mark);
    return err;
}


int dart_est_check(far_task *t, far_index *index, far_report *report) {
    return dart_est_of(index) ? whole_table(t, index, check_segment, report) : 0;
}


/* ---- Counts ---- */

static int count_segment(far_task *t, far_index *index, const dart_spot *spot, uint64_t word, const uint64_t *slots,
                         unsigned count, void *ctx) {
    (void)t, (void)index, (void)spot;
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
    return whole_table(t, index, count_segment, counts);
}


int dart_est_usage(far_task *t, far_index *index, far_usage *usage) {
    (void)t, (void)index, (void)usage; /* its bytes are seen by the pool */
    return 0;
}
