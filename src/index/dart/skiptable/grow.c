/* Segments of the skip table. A segment is created when it is first needed, and replaced when it is full or nearly
 * empty. To replace a segment, a client freezes all of its slots, so that their words are final, copies the entries to
 * a new segment, and changes the directory word by one CAS. Every client that meets a frozen slot and needs the segment
 * does the same. Any number of clients may copy the entries; the CAS decides which copy is used. The copy needs the
 * hash of each entry, which is computed from the prefix in the header of the entry's node.
 *
 * The directory grows in the same way: a full segment of 2^segment_log groups is replaced by a table of 16 directory
 * words, each with a segment for 1/16 of the groups. This replacement is one CAS of a directory word, too, so no client
 * ever has to search in two places. A table is never replaced, so handles may cache the address of a table without a
 * limit of time. Other files call dart_est_grow, dart_est_make_segments and dart_est_shrink_segments. */
#include "base/error.h"
#include "index/dart/skiptable/skiptable.h"
#include "pool/epoch/epoch.h"

#define VERBS_AT_ONCE   256u
#define TARGETS_AT_ONCE 128u
#define HEAD_BYTES      32u /* number of bytes that are read of each node; no node is smaller */
#define SHRINKS_AT_ONCE 64u


/* ---- Reading the nodes that entries name ---- */

static bool parse_head(far_index *index, dart_target *target, const void *head, unsigned bytes) {
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


static int read_heads(far_task *t, far_index *index, dart_target *targets, unsigned count) {
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t(*heads)[HEAD_BYTES / 8] = far_scratch(t, count * sizeof(*heads));
    if (!heads)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the upkeep of the skip table");
    for (unsigned i = 0; i < count; i++)
        if (targets[i].addr)
            far_read(t, targets[i].addr, heads[i], HEAD_BYTES);
    int err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < count; i++) {
        if (!targets[i].addr || parse_head(index, &targets[i], heads[i], HEAD_BYTES))
            continue;
        /* The first READ did not cover the long prefixes. They are rare, so their nodes are read again one by one. */
        unsigned bytes = dart_header_bytes(targets[i].depth) + 8;
        void *head = far_scratch(t, bytes);
        if (!head)
            err = far_fail(FAR_ERR_NO_MEMORY, "no local memory for the upkeep of the skip table");
        else if (far_read(t, targets[i].addr, head, bytes), (err = far_wait(t)) >= 0)
            parse_head(index, &targets[i], head, bytes);
    }
    far_scratch_back(t, mark);
    return err;
}


int dart_est_read_targets(far_task *t, far_index *index, dart_target *targets, unsigned count) {
    int err = 0;
    for (unsigned at = 0; err >= 0 && at < count; at += TARGETS_AT_ONCE)
        err = read_heads(t, index, targets + at, count - at < TARGETS_AT_ONCE ? count - at : TARGETS_AT_ONCE);
    return err < 0 ? err : 0;
}


/* ---- Creating segments ---- */

static int cache_dir_word(far_task *t, dart_est *est, const dart_dir_slot *dir, uint64_t word) {
    int err = dart_est_check_dir_word(est, dir, word);
    if (err >= 0)
        dart_directory_set(&est->directory, dir->number, word, far_epoch(t));
    return err;
}


typedef struct first_segment {
    far_addr addr;
    uint64_t seen; /* directory word that the CAS returned; 0 if this client has created the segment */
} first_segment;


/* Allocates empty segments and adds their WRITEs to the batch. Returns the number of allocated segments, which is
 * smaller than count if memory was exhausted; or an error, after which no segment is allocated. Sets *apart if a
 * segment is on another memory node than its directory word. */
static int add_empty_segments(far_task *t, far_index *index, const dart_dir_slot *dirs, unsigned count,
                              first_segment *made, bool *apart) {
    void *zeros = far_scratch(t, dart_segment_bytes(0));
    if (!zeros)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the upkeep of the skip table");
    memset(zeros, 0, dart_segment_bytes(0));
    for (unsigned i = 0; i < count; i++) {
        far_object object;
        unsigned node = far_addr_node(dirs[i].addr);
        int err = far_alloc(t, index, DART_TYPE_EST_SEGMENT, dart_segment_bytes(0), node, 0, &object);
        if (err < 0)
            return i > 0 ? (int)i : err;
        made[i].addr = object.addr;
        *apart |= far_addr_node(object.addr) != node;
        far_write(t, object.addr, zeros, dart_segment_bytes(0));
    }
    return (int)count;
}


/* Stores the new segments in the directory by CAS. */
static int link_empty_segments(far_task *t, const dart_dir_slot *dirs, int count, first_segment *made, bool apart) {
    int err = apart ? far_wait(t) : 0;
    if (err < 0)
        return err;
    far_point(t, "dart:est_install_segments");
    for (int i = 0; i < count; i++)
        far_cas(t, dirs[i].addr, 0, dart_directory_word(0, made[i].addr), &made[i].seen);
    return far_wait(t);
}


int dart_est_make_segments(far_task *t, far_index *index, const dart_dir_slot *dirs, unsigned count, uint64_t *words) {
    dart_est *est = dart_est_of(index);
    first_segment *made = far_scratch(t, count * sizeof(*made));
    bool apart = false;
    int n = made ? add_empty_segments(t, index, dirs, count, made, &apart) : FAR_ERR_NO_MEMORY, err;
    if (n < 0)
        return n;
    if ((err = link_empty_segments(t, dirs, n, made, apart)) < 0) {
        /* if the fabric has refused the batch, its verbs are still in the open batch, and are dropped here */
        far_discard_batch(t);
        for (int i = 0; i < n && !dart_session_is_lost(err); i++)
            far_free(t, index, DART_TYPE_EST_SEGMENT, made[i].addr, dart_segment_bytes(0));
        return err;
    }
    for (int i = 0; i < n; i++) {
        uint64_t mine = dart_directory_word(0, made[i].addr);
        words[i] = made[i].seen ? 0 : mine;
        if (made[i].seen)
            far_free(t, index, DART_TYPE_EST_SEGMENT, made[i].addr, dart_segment_bytes(0));
        int sound = cache_dir_word(t, est, &dirs[i], made[i].seen ? made[i].seen : mine);
        err = sound < 0 ? sound : err;
    }
    return err < 0 ? err : n;
}


/* ---- Contention at the same segment ---- */

#define POLLS_BEFORE_HELPING 8u

/* Keeps most of the clients that meet the same full segment from copying it, too. Each client first freezes slot 0. The
 * word that the CAS of slot 0 returns shows whether this client is the first. A client that is not the first polls the
 * directory word for some round trips before it helps. Helping is always safe, but it would be wasted work. If the
 * caller knows that another client has already begun, it sets `begun`. Returns 1 if the segment was replaced in the
 * meantime, 0 if the caller must replace it, or an error. */
static int wait_for_first_freezer(far_task *t, far_index *index, const dart_dir_slot *dir, uint64_t word, bool begun) {
    uint64_t seen;
    if (!begun && dart_of(index)->masked_freeze && far_task_capabilities(t)->masked_cas) {
        far_masked_cas(t, dart_word_addr(word), 0, 0, DART_FROZEN, DART_FROZEN, &seen);
        int err = far_wait(t);
        if (err < 0)
            return err;
        begun = dart_is_frozen(seen);
    }
    for (unsigned polls = 0; begun && polls < POLLS_BEFORE_HELPING; polls++) {
        far_back_off(t, polls / 2);
        int err = far_read_word(t, dir->addr, &seen);
        if (err < 0 || (seen != word && (err = cache_dir_word(t, dart_est_of(index), dir, seen)) < 0))
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


static int freeze_segment(far_task *t, far_index *index, uint64_t word, uint64_t *words, unsigned count) {
    int err = dart_of(index)->masked_freeze && far_task_capabilities(t)->masked_cas
                  ? freeze_masked(t, dart_word_addr(word), words, count)
                  : freeze_by_cas(t, dart_word_addr(word), words, count);
    for (unsigned i = 0; i < count; i++)
        words[i] = dart_thawed(words[i]);
    return err;
}


/* ---- Copying ---- */

typedef struct old_entry { /* an entry of the segment that is replaced */
    uint64_t word, hash;
    unsigned slot;
} old_entry;

typedef struct replacement { /* The replacement of a segment, by another segment or by a table with several segments. */
    dart_dir_slot dir;
    uint64_t word;
    unsigned count, live; /* count: number of slots of the old segment; live: number of entries that are copied */
    old_entry *entries;
    unsigned log_groups; /* log2 of the total number of groups in the new segments */
    unsigned pieces;     /* number of new segments: 1, or 16 for a table, or 0 if none was allocated */
    far_addr table, piece[DART_TABLE_WORDS];
} replacement;


/* Copies an entry into the image of the new segments. The entry keeps its slot number within its group if possible,
 * because handles cache this position. If the number of groups doubles, or the groups are distributed over a table,
 * every entry can keep its slot number. */
static void copy_entry(uint64_t *image, const replacement *c, const old_entry *entry) {
    uint64_t *group = image + dart_hash_group(entry->hash, c->dir.level, c->log_groups) * DART_EST_GROUP_SLOTS;
    unsigned main = dart_hash_main(entry->hash) ? 2 * DART_EST_BUCKET : 0, old = entry->slot % DART_EST_GROUP_SLOTS;
    bool belongs = old / DART_EST_BUCKET == 1 || old / DART_EST_BUCKET == main / DART_EST_BUCKET;
    uint64_t *slot = belongs ? &group[old] : &group[main];
    for (unsigned i = 0; *slot && i < 2 * DART_EST_BUCKET; i++)
        slot = &group[i < DART_EST_BUCKET ? main + i : i];
    if (*slot == 0)
        /* An entry for which there is no free slot is dropped; operations that miss the entry will queue it again. */
        *slot = entry->word;
}


/* Collects the entries of live nodes, with their hashes. Tentative words are dropped: their slots are frozen, so the
 * CAS by which a client would commit such a word fails. */
static int collect_live_entries(far_task *t, far_index *index, const uint64_t *words, replacement *c) {
    dart_est *est = dart_est_of(index);
    dart_target *targets = far_scratch(t, TARGETS_AT_ONCE * sizeof(*targets));
    if (!targets)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the upkeep of the skip table");
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
            if (dart_dir_number(est, hash, c->dir.level) == c->dir.number)
                c->entries[c->live++] = (old_entry){words[some[j]], hash, some[j]};
        }
    }
    return 0;
}


/* Returns log2 of the number of groups in each new segment. */

static unsigned piece_log_groups(const replacement *c) {
    return c->table ? c->log_groups - DART_TABLE_LOG : c->log_groups;
}


static void free_new(far_task *t, far_index *index, replacement *c) {
    for (unsigned i = 0; i < c->pieces; i++)
        far_free(t, index, DART_TYPE_EST_SEGMENT, c->piece[i], dart_segment_bytes(piece_log_groups(c)));
    if (c->table)
        far_free(t, index, DART_TYPE_EST_DIRECTORY, c->table, DART_TABLE_BYTES);
    c->table = c->pieces = 0;
}


/* Allocates new segments with 2^log_groups groups in all. If one segment would become too large, allocates a table and
 * 16 segments for it, which will later grow independently of each other. Returns 0 or an error. */
static int allocate_new(far_task *t, far_index *index, replacement *c, unsigned log_groups) {
    const dart_est *est = dart_est_of(index);
    unsigned old = dart_directory_log_groups(c->word), node = far_addr_node(c->dir.addr), pieces = 1;
    far_object object;
    int err = 0;
    c->log_groups = log_groups < DART_LOG_GROUPS_MAX ? log_groups : DART_LOG_GROUPS_MAX;
    while (dart_segment_bytes(c->log_groups) > far_object_bytes_max(far_task_pool(t)))
        c->log_groups--;
    if (log_groups > est->segment_log && dart_dir_slot_may_be_table(est, &c->dir)) {
        if ((err = far_alloc(t, index, DART_TYPE_EST_DIRECTORY, DART_TABLE_BYTES, node, 0, &object)) < 0)
            return err;
        c->log_groups = log_groups < old ? log_groups : old;
        c->log_groups = c->log_groups < DART_TABLE_LOG ? DART_TABLE_LOG : c->log_groups;
        c->table = object.addr;
        node = far_addr_node(c->table);
        pieces = DART_TABLE_WORDS;
    }
    uint64_t bytes = dart_segment_bytes(piece_log_groups(c));
    while (c->pieces < pieces && (err = far_alloc(t, index, DART_TYPE_EST_SEGMENT, bytes, node, 0, &object)) >= 0)
        c->piece[c->pieces++] = object.addr;
    if (err < 0)
        free_new(t, index, c);
    return err;
}


/* Adds the WRITEs of the new segments and the table to the batch. Sets *new to the new directory word, which is 0 if
 * nothing was allocated. Sets *apart if a new object is on another memory node than the directory word. */
static int add_new_writes(far_task *t, const replacement *c, uint64_t *new, uint64_t words[DART_TABLE_WORDS],
                          bool *apart) {
    uint64_t bytes = dart_segment_bytes(c->log_groups), piece = dart_segment_bytes(piece_log_groups(c));
    uint64_t *image = c->pieces ? far_scratch(t, bytes) : NULL;
    unsigned node = far_addr_node(c->dir.addr);
    *new = 0;
    if (!image)
        return c->pieces ? far_fail(FAR_ERR_NO_MEMORY, "no local memory for the upkeep of the skip table") : 0;
    memset(image, 0, bytes);
    for (unsigned i = 0; i < c->live; i++)
        copy_entry(image, c, &c->entries[i]);
    for (unsigned i = 0; i < c->pieces; i++) {
        *apart |= far_addr_node(c->piece[i]) != node;
        words[i] = dart_directory_word(piece_log_groups(c), c->piece[i]);
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


/* After an error the new segments were not published, so their memory is freed. If the session is lost, it is unknown
 * whether the new segments were published; then their memory is not freed, and a collection finds it. */
static void clean_up_after_error(far_task *t, far_index *index, replacement *c, int err) {
    if (err < 0)
        far_discard_batch(t);
    if (err < 0 && !dart_session_is_lost(err))
        free_new(t, index, c);
}


/* Publishes the new segments, or an empty directory word if there are none, by one CAS. The client whose CAS succeeds
 * retires the old segment. Returns 0 or an error. */
static int publish_new(far_task *t, far_index *index, replacement *c) {
    dart_est *est = dart_est_of(index);
    uint64_t new, seen, words[DART_TABLE_WORDS];
    bool apart = false;
    int err = add_new_writes(t, c, &new, words, &apart);
    if (err < 0 || (apart && (err = far_wait(t)) < 0))
        return err;
    if (c->table)
        far_point(t, "dart:est_install_table");
    else
        far_point(t, "dart:est_install_grown");
    if ((err = far_cas_word(t, c->dir.addr, c->word, new, &seen)) < 0)
        return err;
    if (seen != c->word) {
        free_new(t, index, c);
        return cache_dir_word(t, est, &c->dir, seen);
    }
    dart_directory_set(&est->directory, c->dir.number, new, far_epoch(t));
    for (unsigned i = 0; c->table && i < DART_TABLE_WORDS; i++)
        dart_directory_set(&est->directory, dart_dir_slot_below(&c->dir, new, i).number, words[i], far_epoch(t));
    far_retire(t, index, DART_TYPE_EST_SEGMENT, dart_word_addr(c->word),
               dart_segment_bytes(dart_directory_log_groups(c->word)));
    return 0;
}


/* Returns log2 of the number of groups for the entries that are copied: the least number for which the entries fill at
 * most two thirds of the slots. The result is at most the old number, or with `grow` at most one more. With `grow`, and
 * if more than a quarter of the old slots are in use, the number is doubled in any case. */
static unsigned log_groups_for(const replacement *c, bool grow) {
    unsigned old = dart_directory_log_groups(c->word), log_groups = grow && c->live > c->count / 4 ? old + 1 : 0;
    while (log_groups < old + grow && (DART_EST_GROUP_SLOTS << log_groups) * 2 < c->live * 3)
        log_groups++;
    return log_groups;
}


/* Freezes the old segment, copies its entries and publishes the copy. The caller may have allocated the new segments
 * already. Returns 0 or an error. */
static int replace_segment(far_task *t, far_index *index, replacement *c, bool grow) {
    c->count = DART_EST_GROUP_SLOTS << dart_directory_log_groups(c->word);
    c->entries = far_scratch(t, c->count * sizeof(*c->entries));
    uint64_t *words = far_scratch(t, c->count * 8ull);
    if (!words || !c->entries)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the upkeep of the skip table");

    int err = freeze_segment(t, index, c->word, words, c->count);
    if (err < 0)
        return err;
    far_point(t, "dart:est_frozen");
    if ((err = collect_live_entries(t, index, words, c)) < 0)
        return err;

    if (c->pieces == 0 && c->live > 0) {
        if ((err = allocate_new(t, index, c, log_groups_for(c, grow))) < 0 && err != FAR_ERR_NO_MEMORY)
            return err;
        /* Without memory for a new segment, the directory word becomes 0 and the entries are dropped, because the old
         * segment must not stay frozen. */
    }
    return publish_new(t, index, c);
}


int dart_est_grow(far_task *t, far_index *index, const dart_dir_slot *dir, uint64_t word, bool help) {
    far_scratch_mark mark = far_scratch_here(t);
    replacement c = {.dir = *dir, .word = word};
    /* allocate the new segments before any slot is frozen, so that after a failure the old segment is unchanged */
    int err = help ? 0 : allocate_new(t, index, &c, dart_directory_log_groups(word) + 1);
    if (err >= 0 && (err = wait_for_first_freezer(t, index, dir, word, help)) == 0)
        err = replace_segment(t, index, &c, true);
    else if (err > 0)
        free_new(t, index, &c);
    clean_up_after_error(t, index, &c, err);
    far_scratch_back(t, mark);
    return err < 0 ? err : 0;
}


/* ---- Shrinking ---- */

void dart_est_mark_emptied(dart_est *est, unsigned at) {
    uint64_t bit = 1ull << at % 64;
    if (!(atomic_fetch_or_explicit(&est->emptied[at / 64], bit, memory_order_relaxed) & bit))
        atomic_fetch_add_explicit(&est->emptied_count, 1, memory_order_relaxed);
}


static int shrink_segment(far_task *t, far_index *index, unsigned at) {
    replacement c = {0};
    int err = dart_est_find_dir_slot(t, index, at, &c.dir);
    if (err < 0 || (err = far_read_word(t, c.dir.addr, &c.word)) < 0 ||
        (err = dart_est_check_dir_word(dart_est_of(index), &c.dir, c.word)) < 0 || c.word == 0 || dart_is_table(c.word))
        return err;
    uint64_t word = c.word;
    far_scratch_mark mark = far_scratch_here(t);
    unsigned count = DART_EST_GROUP_SLOTS << dart_directory_log_groups(word), used = 0;
    uint64_t *words = far_scratch(t, count * 8ull);
    if (!words)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the upkeep of the skip table");
    for (unsigned i = 0; i < count; i += FAR_VERB_BYTES_MAX / 8)
        far_read(t, dart_word_addr(word) + i * 8ull, words + i,
                 (count - i < FAR_VERB_BYTES_MAX / 8 ? count - i : FAR_VERB_BYTES_MAX / 8) * 8ull);
    if ((err = far_wait(t)) >= 0) {
        for (unsigned i = 0; i < count; i++)
            used += dart_thawed(words[i]) != 0;
        if (used == 0 || (count > DART_EST_GROUP_SLOTS && used * 10 <= count * 3))
            clean_up_after_error(t, index, &c, err = replace_segment(t, index, &c, false));
    }
    far_scratch_back(t, mark);
    return err;
}


int dart_est_shrink_segments(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    unsigned words = DART_DIR_NUMBERS / 64, done = 0;
    int err = 0;
    if (atomic_load_explicit(&est->emptied_count, memory_order_relaxed) == 0)
        return 0;
    for (unsigned n = 0; n < words && done < SHRINKS_AT_ONCE && err >= 0; n++) {
        unsigned w = est->shrink_cursor++ % words;
        uint64_t bits = atomic_exchange_explicit(&est->emptied[w], 0, memory_order_relaxed);
        for (; bits && err >= 0; bits &= bits - 1, done++) {
            atomic_fetch_sub_explicit(&est->emptied_count, 1, memory_order_relaxed);
            err = shrink_segment(t, index, w * 64 + (unsigned)__builtin_ctzll(bits));
        }
    }
    return err < 0 ? err : atomic_load_explicit(&est->emptied_count, memory_order_relaxed) > 0;
}
