/* Segments of the skip table: made when first needed, replaced by a copy of another size. All slots are frozen first,
 * so what is copied is final; then one CAS of the directory word. Whoever meets a frozen slot and needs the segment
 * does the same: any number of clients may copy, one wins. The copy needs the hash of every entry: node headers hold
 * the prefix.
 *
 * So the directory grows as well: a segment of 16 groups that is full is replaced by a table of 16 words, each with one
 * of these groups as its segment. It is one replacement like the others, and no client ever has to look in two places. A
 * table stays for ever, so that handles may keep where it is. */
#include "base/error.h"
#include "index/dart/est.h"
#include "pool/epoch.h"

#define VERBS_AT_ONCE   256u
#define TARGETS_AT_ONCE 128u
#define HEAD_BYTES      32u /* no node is smaller */
#define TIDY_AT_ONCE    64u


/* ---- Nodes that entries name ---- */

static bool take_head(far_index *index, dart_target *target, const void *head, unsigned bytes) {
    const dart_header *header = head;
    unsigned depth = dart_header_depth(header), slot = dart_header_bytes(depth);
    target->depth = depth;
    target->sound = dart_header_is_sound(header) && depth <= dart_of(index)->max_key;
    if (!target->sound || slot + 8 > bytes)
        return !target->sound;
    uint64_t word;
    memcpy(&word, (const char *)head + slot, 8);
    target->frozen = dart_is_frozen(word);
    memcpy(target->prefix, header->prefix, depth < DART_EST_PREFIX_MAX ? depth : DART_EST_PREFIX_MAX);
    return true;
}


static int read_some(far_task *t, far_index *index, dart_target *targets, unsigned count) {
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t(*heads)[HEAD_BYTES / 8] = far_scratch(t, count * sizeof(*heads));
    if (!heads)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
    for (unsigned i = 0; i < count; i++)
        if (targets[i].addr)
            far_read(t, targets[i].addr, heads[i], HEAD_BYTES);
    int err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < count; i++) {
        if (!targets[i].addr || take_head(index, &targets[i], heads[i], HEAD_BYTES))
            continue;
        unsigned bytes = dart_header_bytes(targets[i].depth) + 8; /* long prefixes are rare: one by one */
        void *head = far_scratch(t, bytes);
        if (!head)
            err = far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
        else if (far_read(t, targets[i].addr, head, bytes), (err = far_wait(t)) >= 0)
            take_head(index, &targets[i], head, bytes);
    }
    far_scratch_back(t, mark);
    return err;
}


int dart_est_read_targets(far_task *t, far_index *index, dart_target *targets, unsigned count) {
    int err = 0;
    for (unsigned at = 0; err >= 0 && at < count; at += TARGETS_AT_ONCE)
        err = read_some(t, index, targets + at, count - at < TARGETS_AT_ONCE ? count - at : TARGETS_AT_ONCE);
    return err < 0 ? err : 0;
}


/* ---- Making ---- */

static int know_seen(far_task *t, dart_est *est, const dart_spot *spot, uint64_t word) {
    int err = dart_est_check_word(est, spot, word);
    if (err >= 0)
        dart_directory_set(&est->directory, spot->at, word, far_epoch(t));
    return err;
}


typedef struct first_segment {
    far_addr addr;
    uint64_t seen; /* of the directory word; 0: it is ours */
} first_segment;


/* Puts the WRITEs of empty segments. Returns how many: fewer than asked for when one could not be had; or an error, and there is
 * none. *apart: one of them lies on another node than its directory word. */
static int put_empty(far_task *t, far_index *index, const dart_spot *spots, unsigned count, first_segment *made,
                     bool *apart) {
    void *zeros = far_scratch(t, dart_segment_bytes(0));
    if (!zeros)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
    memset(zeros, 0, dart_segment_bytes(0));
    for (unsigned i = 0; i < count; i++) {
        far_object object;
        unsigned node = far_addr_node(spots[i].addr);
        int err = far_alloc(t, index, DART_TYPE_EST_SEGMENT, dart_segment_bytes(0), node, 0, &object);
        if (err < 0)
            return i > 0 ? (int)i : err;
        made[i].addr = object.addr;
        *apart |= far_addr_node(object.addr) != node;
        far_write(t, object.addr, zeros, dart_segment_bytes(0));
    }
    return (int)count;
}


/* Puts the segments into the directory. */
static int show_empty(far_task *t, const dart_spot *spots, int count, first_segment *made, bool apart) {
    int err = apart ? far_wait(t) : 0;
    if (err < 0)
        return err;
    far_point(t, "dart:est_segments");
    for (int i = 0; i < count; i++)
        far_cas(t, spots[i].addr, 0, dart_directory_word(0, made[i].addr), &made[i].seen);
    return far_wait(t);
}


int dart_est_make_segments(far_task *t, far_index *index, const dart_spot *spots, unsigned count, uint64_t *words) {
    dart_est *est = dart_est_of(index);
    first_segment *made = far_scratch(t, count * sizeof(*made));
    bool apart = false;
    int n = made ? put_empty(t, index, spots, count, made, &apart) : FAR_ERR_NO_MEMORY, err;
    if (n < 0)
        return n;
    if ((err = show_empty(t, spots, n, made, apart)) < 0) {
        far_forget(t); /* a batch that is refused is not posted */
        for (int i = 0; i < n && !dart_is_lost(err); i++)
            far_free(t, index, DART_TYPE_EST_SEGMENT, made[i].addr, dart_segment_bytes(0));
        return err;
    }
    for (int i = 0; i < n; i++) {
        uint64_t mine = dart_directory_word(0, made[i].addr);
        words[i] = made[i].seen ? 0 : mine;
        if (made[i].seen)
            far_free(t, index, DART_TYPE_EST_SEGMENT, made[i].addr, dart_segment_bytes(0));
        int sound = know_seen(t, est, &spots[i], made[i].seen ? made[i].seen : mine);
        err = sound < 0 ? sound : err;
    }
    return err < 0 ? err : n;
}


/* ---- Others at the same segment ---- */

#define CROWD_POLLS 8u

/* Many clients may meet a full segment at once. Its first slot tells them who came first; the others give that one some
 * round trips before they help, which is always safe. begun: somebody has. 1: the segment was replaced meanwhile. */
static int let_others_finish(far_task *t, far_index *index, const dart_spot *spot, uint64_t word, bool begun) {
    uint64_t seen;
    if (!begun && dart_of(index)->masked_freeze && far_task_capabilities(t)->masked_cas) {
        far_masked_cas(t, dart_word_addr(word), 0, 0, DART_FROZEN, DART_FROZEN, &seen);
        int err = far_wait(t);
        if (err < 0)
            return err;
        begun = dart_is_frozen(seen);
    }
    for (unsigned polls = 0; begun && polls < CROWD_POLLS; polls++) {
        far_back_off(t, polls / 2);
        int err = far_read_word(t, spot->addr, &seen);
        if (err < 0 || (seen != word && (err = know_seen(t, dart_est_of(index), spot, seen)) < 0))
            return err;
        if (seen != word)
            return 1;
    }
    return 0;
}


/* ---- Freezing ---- */

static int freeze_masked(far_task *t, far_addr segment, uint64_t *words, unsigned count) {
    for (unsigned at = 0; at < count; at += VERBS_AT_ONCE) {
        for (unsigned i = at; i < count && i < at + VERBS_AT_ONCE; i++)
            far_masked_cas(t, segment + i * 8ull, 0, 0, DART_FROZEN, DART_FROZEN, &words[i]);
        int err = far_wait(t);
        if (err < 0)
            return err;
    }
    return 0;
}


static int freeze_by_cas(far_task *t, far_addr segment, uint64_t *words, unsigned count) {
    uint64_t seen[VERBS_AT_ONCE];
    for (unsigned at = 0; at < count; at += VERBS_AT_ONCE) {
        unsigned n = count - at < VERBS_AT_ONCE ? count - at : VERBS_AT_ONCE;
        far_read(t, segment + at * 8ull, words + at, n * 8ull);
        int err = far_wait(t);
        for (bool moved = true; err >= 0 && moved;) {
            moved = false;
            for (unsigned i = 0; i < n; i++) {
                seen[i] = words[at + i];
                if (!dart_is_frozen(words[at + i]))
                    far_cas(t, segment + (at + i) * 8ull, words[at + i], words[at + i] | DART_FROZEN, &seen[i]);
            }
            err = far_wait(t);
            for (unsigned i = 0; err >= 0 && i < n; i++) {
                bool lost = !dart_is_frozen(words[at + i]) && seen[i] != words[at + i];
                moved |= lost && !dart_is_frozen(seen[i]);
                words[at + i] = lost ? seen[i] : words[at + i] | DART_FROZEN;
            }
        }
        if (err < 0)
            return err;
    }
    return 0;
}


static int freeze(far_task *t, far_index *index, uint64_t word, uint64_t *words, unsigned count) {
    int err = dart_of(index)->masked_freeze && far_task_capabilities(t)->masked_cas
                  ? freeze_masked(t, dart_word_addr(word), words, count)
                  : freeze_by_cas(t, dart_word_addr(word), words, count);
    for (unsigned i = 0; i < count; i++)
        words[i] = dart_thawed(words[i]);
    return err;
}


/* ---- Copying ---- */

typedef struct old_entry { /* of a segment that is being replaced */
    uint64_t word, hash;
    unsigned slot;
} old_entry;

typedef struct copy { /* a segment that is being replaced: by another, or by a table of some */
    dart_spot spot;
    uint64_t word;
    unsigned count, live; /* slots of the old one; entries of it that stay */
    old_entry *entries;
    unsigned log_groups; /* of all that is new */
    unsigned pieces;     /* segments into which that is cut: 1, or as many as a table has words; 0: there is none */
    far_addr table, piece[DART_TABLE_WORDS];
} copy;


/* An entry stays where it was in its group if it can: handles know that place. When groups are twice as many, or cut
 * into pieces, all can. */
static void put_into(uint64_t *image, const copy *c, const old_entry *entry) {
    uint64_t *group = image + dart_hash_group(entry->hash, c->spot.level, c->log_groups) * DART_EST_GROUP_SLOTS;
    unsigned main = dart_hash_main(entry->hash) ? 2 * DART_EST_BUCKET : 0, old = entry->slot % DART_EST_GROUP_SLOTS;
    bool belongs = old / DART_EST_BUCKET == 1 || old / DART_EST_BUCKET == main / DART_EST_BUCKET;
    uint64_t *slot = belongs ? &group[old] : &group[main];
    for (unsigned i = 0; *slot && i < 2 * DART_EST_BUCKET; i++)
        slot = &group[i < DART_EST_BUCKET ? main + i : i];
    if (*slot == 0)
        *slot = entry->word; /* what does not fit will be missed, and made again */
}


/* Entries of live nodes, with their hashes. Tentative ones are dropped: their owners will notice. */
static int find_entries(far_task *t, far_index *index, const uint64_t *words, copy *c) {
    dart_est *est = dart_est_of(index);
    dart_target *targets = far_scratch(t, TARGETS_AT_ONCE * sizeof(*targets));
    if (!targets)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
    c->live = 0;
    for (unsigned i = 0; i < c->count;) {
        unsigned n = 0, some[TARGETS_AT_ONCE];
        for (; i < c->count && n < TARGETS_AT_ONCE; i++)
            if (dart_est_is_committed(words[i])) {
                targets[n].addr = dart_word_addr(words[i]);
                some[n++] = i;
            }
        int err = n ? dart_est_read_targets(t, index, targets, n) : 0;
        if (err < 0)
            return err;
        for (unsigned j = 0; j < n; j++) {
            const dart_target *target = &targets[j];
            unsigned delta = dart_est_delta(words[some[j]]), length = target->depth - delta;
            if (!target->sound || target->frozen || target->depth <= delta || length > DART_EST_PREFIX_MAX)
                continue;
            uint64_t hash = dart_est_hash(est, target->prefix, length);
            if (dart_number(est, hash, c->spot.level) == c->spot.at)
                c->entries[c->live++] = (old_entry){words[some[j]], hash, some[j]};
        }
    }
    return 0;
}


/* ---- What comes in its place ---- */

static unsigned piece_log(const copy *c) {
    return c->table ? c->log_groups - DART_TABLE_LOG : c->log_groups;
}


static void give_back(far_task *t, far_index *index, copy *c) {
    for (unsigned i = 0; i < c->pieces; i++)
        far_free(t, index, DART_TYPE_EST_SEGMENT, c->piece[i], dart_segment_bytes(piece_log(c)));
    if (c->table)
        far_free(t, index, DART_TYPE_EST_DIRECTORY, c->table, DART_TABLE_BYTES);
    c->table = c->pieces = 0;
}


/* So many groups in all. A segment that would have too many becomes a table: its groups then grow each for itself. */
static int allocate(far_task *t, far_index *index, copy *c, unsigned log_groups) {
    const dart_est *est = dart_est_of(index);
    unsigned old = dart_directory_log_groups(c->word), node = far_addr_node(c->spot.addr), pieces = 1;
    far_object object;
    int err = 0;
    c->log_groups = log_groups < DART_LOG_GROUPS_MAX ? log_groups : DART_LOG_GROUPS_MAX;
    if (log_groups > est->segment_log && dart_spot_may_be_table(est, &c->spot)) {
        if ((err = far_alloc(t, index, DART_TYPE_EST_DIRECTORY, DART_TABLE_BYTES, node, 0, &object)) < 0)
            return err;
        c->log_groups = log_groups < old ? log_groups : old;
        c->log_groups = c->log_groups < DART_TABLE_LOG ? DART_TABLE_LOG : c->log_groups;
        c->table = object.addr;
        node = far_addr_node(c->table);
        pieces = DART_TABLE_WORDS;
    }
    uint64_t bytes = dart_segment_bytes(piece_log(c));
    while (c->pieces < pieces && (err = far_alloc(t, index, DART_TYPE_EST_SEGMENT, bytes, node, 0, &object)) >= 0)
        c->piece[c->pieces++] = object.addr;
    if (err < 0)
        give_back(t, index, c);
    return err;
}


/* Puts the WRITEs of what is new, and tells its directory word; 0: there is nothing. *apart: a part of it lies on
 * another node than the directory word. */
static int put_new(far_task *t, const copy *c, uint64_t *new, uint64_t words[DART_TABLE_WORDS], bool *apart) {
    uint64_t bytes = dart_segment_bytes(c->log_groups), piece = dart_segment_bytes(piece_log(c));
    uint64_t *image = c->pieces ? far_scratch(t, bytes) : NULL;
    unsigned node = far_addr_node(c->spot.addr);
    *new = 0;
    if (!image)
        return c->pieces ? far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep") : 0;
    memset(image, 0, bytes);
    for (unsigned i = 0; i < c->live; i++)
        put_into(image, c, &c->entries[i]);
    for (unsigned i = 0; i < c->pieces; i++) {
        *apart |= far_addr_node(c->piece[i]) != node;
        words[i] = dart_directory_word(piece_log(c), c->piece[i]);
        for (uint64_t done = 0; done < piece; done += FAR_VERB_BYTES_MAX)
            far_write(t, c->piece[i] + done, (char *)image + i * piece + done,
                      piece - done < FAR_VERB_BYTES_MAX ? piece - done : FAR_VERB_BYTES_MAX);
    }
    *new = words[0];
    if (c->table) {
        *apart |= far_addr_node(c->table) != node;
        far_write(t, c->table, words, DART_TABLE_BYTES);
        *new = dart_table_word(c->table);
    }
    return 0;
}


/* An error before what is new was shown: nobody knows of it. (Of a session that is lost nothing can be said; the sweep
 * finds what it had in hand.) */
static void give_up(far_task *t, far_index *index, copy *c, int err) {
    if (err < 0)
        far_forget(t);
    if (err < 0 && !dart_is_lost(err))
        give_back(t, index, c);
}


/* Shows what is new, or nothing; whoever wins retires the old one. */
static int publish(far_task *t, far_index *index, copy *c) {
    dart_est *est = dart_est_of(index);
    uint64_t new, seen, words[DART_TABLE_WORDS];
    bool apart = false;
    int err = put_new(t, c, &new, words, &apart);
    if (err < 0 || (apart && (err = far_wait(t)) < 0))
        return err;
    if (c->table)
        far_point(t, "dart:est_table");
    else
        far_point(t, "dart:est_grow");
    if ((err = far_cas_word(t, c->spot.addr, c->word, new, &seen)) < 0)
        return err;
    if (seen != c->word) {
        give_back(t, index, c);
        return know_seen(t, est, &c->spot, seen);
    }
    dart_directory_set(&est->directory, c->spot.at, new, far_epoch(t));
    for (unsigned i = 0; c->table && i < DART_TABLE_WORDS; i++)
        dart_directory_set(&est->directory, dart_spot_below(&c->spot, new, i).at, words[i], far_epoch(t));
    far_retire(t, index, DART_TYPE_EST_SEGMENT, dart_word_addr(c->word),
               dart_segment_bytes(dart_directory_log_groups(c->word)));
    return 0;
}


/* grow: there are more groups than before, if many of the slots are in use; else as many as the entries need. */
static unsigned groups_for(const copy *c, bool grow) {
    unsigned old = dart_directory_log_groups(c->word), log_groups = grow && c->live > c->count / 4 ? old + 1 : 0;
    while (log_groups < old + grow && (DART_EST_GROUP_SLOTS << log_groups) * 2 < c->live * 3)
        log_groups++;
    return log_groups;
}


/* The caller has allocated, or need not. */
static int replace(far_task *t, far_index *index, copy *c, bool grow) {
    c->count = DART_EST_GROUP_SLOTS << dart_directory_log_groups(c->word);
    c->entries = far_scratch(t, c->count * sizeof(*c->entries));
    uint64_t *words = far_scratch(t, c->count * 8ull);
    if (!words || !c->entries)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");

    int err = freeze(t, index, c->word, words, c->count);
    if (err < 0)
        return err;
    far_point(t, "dart:est_frozen");
    if ((err = find_entries(t, index, words, c)) < 0)
        return err;

    if (c->pieces == 0 && c->live > 0) {
        if ((err = allocate(t, index, c, groups_for(c, grow))) < 0 && err != FAR_ERR_NO_MEMORY)
            return err;
        /* frozen it must not stay: without memory there is no segment */
    }
    return publish(t, index, c);
}


int dart_est_grow(far_task *t, far_index *index, const dart_spot *spot, uint64_t word, bool help) {
    far_scratch_mark mark = far_scratch_here(t);
    copy c = {.spot = *spot, .word = word};
    int err = help ? 0 : allocate(t, index, &c, dart_directory_log_groups(word) + 1); /* before anything is frozen */
    if (err >= 0 && (err = let_others_finish(t, index, spot, word, help)) == 0)
        err = replace(t, index, &c, true);
    else if (err > 0)
        give_back(t, index, &c);
    give_up(t, index, &c, err);
    far_scratch_back(t, mark);
    return err < 0 ? err : 0;
}


/* ---- Getting smaller ---- */

void dart_est_note_empty(dart_est *est, unsigned at) {
    uint64_t bit = 1ull << at % 64;
    if (!(atomic_fetch_or_explicit(&est->emptied[at / 64], bit, memory_order_relaxed) & bit))
        atomic_fetch_add_explicit(&est->emptied_count, 1, memory_order_relaxed);
}


static int tidy_one(far_task *t, far_index *index, unsigned at) {
    copy c = {0};
    int err = dart_est_find_spot(t, index, at, &c.spot);
    if (err < 0 || (err = far_read_word(t, c.spot.addr, &c.word)) < 0 ||
        (err = dart_est_check_word(dart_est_of(index), &c.spot, c.word)) < 0 || c.word == 0 || dart_is_table(c.word))
        return err;
    uint64_t word = c.word;
    far_scratch_mark mark = far_scratch_here(t);
    unsigned count = DART_EST_GROUP_SLOTS << dart_directory_log_groups(word), used = 0;
    uint64_t *words = far_scratch(t, count * 8ull);
    if (!words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
    for (unsigned i = 0; i < count; i += FAR_VERB_BYTES_MAX / 8)
        far_read(t, dart_word_addr(word) + i * 8ull, words + i,
                 (count - i < FAR_VERB_BYTES_MAX / 8 ? count - i : FAR_VERB_BYTES_MAX / 8) * 8ull);
    if ((err = far_wait(t)) >= 0) {
        for (unsigned i = 0; i < count; i++)
            used += dart_thawed(words[i]) != 0;
        if (used == 0 || (count > DART_EST_GROUP_SLOTS && used * 10 <= count * 3))
            give_up(t, index, &c, err = replace(t, index, &c, false));
    }
    far_scratch_back(t, mark);
    return err;
}


int dart_est_tidy(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    unsigned words = DART_NUMBERS / 64, done = 0;
    int err = 0;
    if (atomic_load_explicit(&est->emptied_count, memory_order_relaxed) == 0)
        return 0;
    for (unsigned n = 0; n < words && done < TIDY_AT_ONCE && err >= 0; n++) {
        unsigned w = est->tidy_at++ % words;
        uint64_t bits = atomic_exchange_explicit(&est->emptied[w], 0, memory_order_relaxed);
        for (; bits && err >= 0; bits &= bits - 1, done++) {
            atomic_fetch_sub_explicit(&est->emptied_count, 1, memory_order_relaxed);
            err = tidy_one(t, index, w * 64 + (unsigned)__builtin_ctzll(bits));
        }
    }
    return err < 0 ? err : atomic_load_explicit(&est->emptied_count, memory_order_relaxed) > 0;
}
