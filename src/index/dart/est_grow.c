/* Segments of the skip table: made when first needed, replaced by a copy of another size. All slots are frozen first,
 * so what is copied is final; then one CAS of the directory word. Whoever meets a frozen slot and needs the segment
 * does the same: any number of clients may copy, one wins. The copy needs the hash of every entry: node headers hold
 * the prefix. */
#include "base/error.h"
#include "index/dart/est.h"
#include "pool/epoch.h"

#define VERBS_AT_ONCE   256u
#define TARGETS_AT_ONCE 32u
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

static unsigned node_of_word(const dart_est *est, unsigned at) {
    return far_addr_node(dart_est_directory_addr(est, at));
}


typedef struct first_segment {
    far_addr addr;
    uint64_t seen; /* of the directory word; 0: it is ours */
} first_segment;


/* Puts the WRITEs of empty segments. Returns how many: fewer than asked for when one could not be had; or an error, and there is
 * none. *apart: one of them lies on another node than its directory word. */
static int put_empty(far_task *t, far_index *index, const unsigned *at, unsigned count, first_segment *made,
                     bool *apart) {
    dart_est *est = dart_est_of(index);
    void *zeros = far_scratch(t, dart_segment_bytes(0));
    if (!zeros)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
    memset(zeros, 0, dart_segment_bytes(0));
    for (unsigned i = 0; i < count; i++) {
        far_object object;
        int err =
            far_alloc(t, index, DART_TYPE_EST_SEGMENT, dart_segment_bytes(0), node_of_word(est, at[i]), 0, &object);
        if (err < 0)
            return i > 0 ? (int)i : err;
        made[i].addr = object.addr;
        *apart |= far_addr_node(object.addr) != node_of_word(est, at[i]);
        far_write(t, object.addr, zeros, dart_segment_bytes(0));
    }
    return (int)count;
}


/* Puts the segments into the directory. */
static int show_empty(far_task *t, const dart_est *est, const unsigned *at, int count, first_segment *made,
                      bool apart) {
    int err = apart ? far_wait(t) : 0;
    if (err < 0)
        return err;
    far_point(t, "dart:est_segments");
    for (int i = 0; i < count; i++)
        far_cas(t, dart_est_directory_addr(est, at[i]), 0, dart_directory_word(0, made[i].addr), &made[i].seen);
    return far_wait(t);
}


int dart_est_make_segments(far_task *t, far_index *index, const unsigned *at, unsigned count, uint64_t *words) {
    dart_est *est = dart_est_of(index);
    first_segment *made = far_scratch(t, count * sizeof(*made));
    bool apart = false;
    int n = made ? put_empty(t, index, at, count, made, &apart) : FAR_ERR_NO_MEMORY, err;
    if (n < 0)
        return n;
    if ((err = show_empty(t, est, at, n, made, apart)) < 0) {
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
        dart_directory_set(&est->directory, at[i], made[i].seen ? made[i].seen : mine, far_epoch(t));
    }
    return n;
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

static bool put_into(uint64_t *image, unsigned log_groups, uint64_t hash, uint64_t word) {
    uint64_t *group = image + dart_hash_group(hash, log_groups) * DART_EST_GROUP_SLOTS;
    uint64_t *main = group + (dart_hash_main(hash) ? 2 * DART_EST_BUCKET : 0), *overflow = group + DART_EST_BUCKET;
    for (unsigned i = 0; i < 2 * DART_EST_BUCKET; i++) {
        uint64_t *slot = i < DART_EST_BUCKET ? &main[i] : &overflow[i - DART_EST_BUCKET];
        if (*slot == 0) {
            *slot = word;
            return true;
        }
    }
    return false;
}


/* Entries of live nodes, with their hashes, moved to the front of words. Tentative ones are dropped: their owners will
 * notice. */
static int find_hashes(far_task *t, far_index *index, unsigned at, uint64_t *words, uint64_t *hashes, unsigned count,
                       unsigned *live) {
    dart_est *est = dart_est_of(index);
    dart_target *targets = far_scratch(t, TARGETS_AT_ONCE * sizeof(*targets));
    if (!targets)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
    *live = 0;
    for (unsigned i = 0; i < count;) {
        unsigned n = 0;
        uint64_t some[TARGETS_AT_ONCE];
        for (; i < count && n < TARGETS_AT_ONCE; i++)
            if (dart_est_is_committed(words[i])) {
                targets[n].addr = dart_word_addr(words[i]);
                some[n++] = words[i];
            }
        int err = n ? dart_est_read_targets(t, index, targets, n) : 0;
        if (err < 0)
            return err;
        for (unsigned j = 0; j < n; j++) {
            const dart_target *target = &targets[j];
            unsigned delta = dart_est_delta(some[j]), length = target->depth - delta;
            if (!target->sound || target->frozen || target->depth <= delta || length > DART_EST_PREFIX_MAX)
                continue;
            uint64_t hash = dart_est_hash(est, target->prefix, length);
            if (dart_hash_directory(hash, est->bits) != at)
                continue;
            words[*live] = some[j];
            hashes[(*live)++] = hash;
        }
    }
    return 0;
}


typedef struct copy {         /* a segment that is being replaced */
    unsigned at, count, live; /* count: slots of the old one */
    uint64_t word, *words, *hashes;
    unsigned log_groups; /* of the new one */
    far_object object;   /* addr 0: there is none */
} copy;


static int allocate(far_task *t, far_index *index, copy *c) {
    int err = far_alloc(t, index, DART_TYPE_EST_SEGMENT, dart_segment_bytes(c->log_groups),
                        node_of_word(dart_est_of(index), c->at), 0, &c->object);
    if (err < 0)
        c->object.addr = 0;
    return err;
}


/* An error before the new segment was shown: nobody knows of it. (Of a session that is lost nothing can be said; the sweep
 * finds what it had in hand.) */
static int give_up(far_task *t, far_index *index, const copy *c, int err) {
    if (err < 0)
        far_forget(t);
    if (err < 0 && c->object.addr && !dart_is_lost(err))
        far_free(t, index, DART_TYPE_EST_SEGMENT, c->object.addr, dart_segment_bytes(c->log_groups));
    return err;
}


/* Shows the new segment, or none; whoever wins retires the old one. */
static int publish(far_task *t, far_index *index, copy *c) {
    dart_est *est = dart_est_of(index);
    far_addr directory = dart_est_directory_addr(est, c->at);
    uint64_t new = 0, seen, bytes = dart_segment_bytes(c->log_groups);
    int err;
    if (c->object.addr) {
        uint64_t *image = far_scratch(t, bytes);
        if (!image)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
        memset(image, 0, bytes);
        for (unsigned i = 0; i < c->live; i++)
            put_into(image, c->log_groups, c->hashes[i],
                     c->words[i]); /* what does not fit will be missed, and made again */
        for (uint64_t done = 0; done < bytes; done += FAR_VERB_BYTES_MAX)
            far_write(t, c->object.addr + done, (char *)image + done,
                      bytes - done < FAR_VERB_BYTES_MAX ? bytes - done : FAR_VERB_BYTES_MAX);
        if (far_addr_node(c->object.addr) != far_addr_node(directory) && (err = far_wait(t)) < 0)
            return err;
        new = dart_directory_word(c->log_groups, c->object.addr);
    }
    far_point(t, "dart:est_grow");
    if ((err = far_cas_word(t, directory, c->word, new, &seen)) < 0)
        return err;
    if (seen == c->word)
        far_retire(t, index, DART_TYPE_EST_SEGMENT, dart_word_addr(c->word),
                   dart_segment_bytes(dart_directory_log_groups(c->word)));
    else if (c->object.addr)
        far_free(t, index, DART_TYPE_EST_SEGMENT, c->object.addr, bytes);
    dart_directory_set(&est->directory, c->at, seen == c->word ? new : seen, far_epoch(t));
    return 0;
}


/* grow: the new one has twice the size at least; else as many groups as the entries need. The caller has allocated, or
 * need not. */
static int replace(far_task *t, far_index *index, copy *c, bool grow) {
    unsigned old = dart_directory_log_groups(c->word);
    c->count = DART_EST_GROUP_SLOTS << old;
    c->words = far_scratch(t, c->count * 8ull);
    c->hashes = far_scratch(t, c->count * 8ull);
    if (!c->words || !c->hashes)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");

    int err = freeze(t, index, c->word, c->words, c->count);
    if (err < 0)
        return err;
    far_point(t, "dart:est_frozen");
    if ((err = find_hashes(t, index, c->at, c->words, c->hashes, c->count, &c->live)) < 0)
        return err;

    if (c->object.addr == 0 && c->live > 0) {
        c->log_groups = grow && c->live > c->count / 4 ? old + 1 : 0;
        while (c->log_groups < old + grow && (DART_EST_GROUP_SLOTS << c->log_groups) * 2 < c->live * 3)
            c->log_groups++;
        c->log_groups = c->log_groups < DART_LOG_GROUPS_MAX ? c->log_groups : DART_LOG_GROUPS_MAX;
        if ((err = allocate(t, index, c)) < 0 && err != FAR_ERR_NO_MEMORY)
            return err;
        /* frozen it must not stay: without memory there is no segment */
    }
    return publish(t, index, c);
}


int dart_est_grow(far_task *t, far_index *index, unsigned at, uint64_t word, bool help) {
    far_scratch_mark mark = far_scratch_here(t);
    unsigned old = dart_directory_log_groups(word);
    copy c = {.at = at, .word = word, .log_groups = old < DART_LOG_GROUPS_MAX ? old + 1 : old};
    int err = help ? 0 : allocate(t, index, &c); /* before anything is frozen */
    if (err >= 0)
        err = give_up(t, index, &c, replace(t, index, &c, true));
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
    dart_est *est = dart_est_of(index);
    uint64_t word;
    int err = far_read_word(t, dart_est_directory_addr(est, at), &word);
    if (err < 0 || word == 0)
        return err;
    far_scratch_mark mark = far_scratch_here(t);
    unsigned count = DART_EST_GROUP_SLOTS << dart_directory_log_groups(word), used = 0;
    uint64_t *words = far_scratch(t, count * 8ull);
    copy c = {.at = at, .word = word};
    if (!words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for upkeep");
    for (unsigned i = 0; i < count; i += FAR_VERB_BYTES_MAX / 8)
        far_read(t, dart_word_addr(word) + i * 8ull, words + i,
                 (count - i < FAR_VERB_BYTES_MAX / 8 ? count - i : FAR_VERB_BYTES_MAX / 8) * 8ull);
    if ((err = far_wait(t)) >= 0) {
        for (unsigned i = 0; i < count; i++)
            used += dart_thawed(words[i]) != 0;
        if (used == 0 || (count > DART_EST_GROUP_SLOTS && used * 10 <= count * 3))
            err = give_up(t, index, &c, replace(t, index, &c, false));
    }
    far_scratch_back(t, mark);
    return err;
}


int dart_est_tidy(far_task *t, far_index *index) {
    dart_est *est = dart_est_of(index);
    unsigned words = (1u << est->bits) / 64 + 1, done = 0;
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
