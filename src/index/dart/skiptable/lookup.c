/* Lookups in the skip table, which are the first step of LOCATE (the descent to a key, find.c). After the descent, this
 * file also renews cached entries, records the cost of the descent, and queues missing entries. find.c calls
 * dart_est_lookup_add_reads, dart_est_lookup_process_reads and dart_est_record_descent. */
#include "base/error.h"
#include "base/hash.h"
#include "index/dart/skiptable/skiptable.h"
#include "pool/epoch/epoch.h"


/* The state of one lookup, over both of its rounds. */
typedef struct lookup_state {
    const dart_list *list;
    unsigned usable; /* number of lengths of the list that are shorter than the key */
    dart_choice choice;
    unsigned class;
    /* batches: round trips so far; probes: number of bucket READs beyond the first in each round trip */
    unsigned batches, probes;
    unsigned wasted;          /* number of rounds that returned no usable start */
    uint32_t tried;           /* bitmap of the list positions that were looked up in far memory */
    unsigned first, count;    /* the lookup uses the list positions [first, first + count) in this round */
    dart_bucket_read *reads;  /* one bucket read for each list position of this round */
} lookup_state;


uint64_t dart_est_hash(const dart_est *est, const void *prefix, unsigned length) {
    return far_hash((far_bytes){prefix, length}, est->seed + length * 0x9e3779b97f4a7c15ull);
}


/* ---- Reading one bucket pair ---- */

void dart_bucket_read_init(const dart_est *est, dart_bucket_read *r, const void *prefix, unsigned length) {
    memset(r, 0, offsetof(dart_bucket_read, slots));
    r->length = length;
    r->hash = dart_est_hash(est, prefix, length);
    r->dir = dart_dir_slot_at(est, dart_hash_directory(r->hash, est->bits));
}


int dart_est_check_dir_word(const dart_est *est, const dart_dir_slot *dir, uint64_t word) {
    far_addr addr = dart_word_addr(word);
    unsigned log_groups = dart_directory_log_groups(word);
    bool sound = dart_is_table(word)
                     ? word == dart_table_word(addr) && dart_dir_slot_may_be_table(est, dir)
                     : word == dart_directory_word(log_groups, addr) && log_groups <= DART_LOG_GROUPS_MAX;
    return word == 0 || (sound && addr)
               ? 0
               : far_fail(FAR_ERR_CORRUPT, "dart: word %#llx in the directory of the skip table is damaged",
                          (unsigned long long)word);
}


uint64_t dart_est_follow_cached_tables(dart_est *est, uint64_t hash, uint64_t epoch, dart_dir_slot *dir, bool *fresh) {
    uint64_t word;
    while (dart_is_table(word = dart_directory_get(&est->directory, dir->number, epoch, fresh)))
        *dir = dart_dir_slot_below(dir, word, dart_hash_table(hash, dir->level + 1));
    return word;
}


int dart_est_find_dir_slot(far_task *t, far_index *index, unsigned at, dart_dir_slot *dir) {
    dart_est *est = dart_est_of(index);
    unsigned level = (31 - (unsigned)__builtin_clz(at) - est->bits) / DART_TABLE_LOG;
    *dir = dart_dir_slot_at(est, at >> level * DART_TABLE_LOG & ((1u << est->bits) - 1));
    while (level-- > 0) {
        bool fresh;
        uint64_t word = dart_directory_get(&est->directory, dir->number, far_epoch(t), &fresh);
        int err = dart_is_table(word) ? 0 : far_read_word(t, dir->addr, &word);
        if (err < 0 || (err = dart_est_check_dir_word(est, dir, word)) < 0)
            return err;
        if (!dart_is_table(word))
            return far_fail(FAR_ERR_CORRUPT, "dart: the directory of the skip table is damaged: a table is missing");
        *dir = dart_dir_slot_below(dir, word, at >> level * DART_TABLE_LOG & (DART_TABLE_WORDS - 1));
    }
    return 0;
}


/* If the tag of the directory word is too old, the same batch reads the directory word again, before the bucket. A
 * memory node executes these two READs in order. So if the directory word is unchanged, its segment was linked when the
 * bucket was read, and the segment's memory is not reused while the pin is held. */
bool dart_bucket_read_add_verbs(far_task *t, dart_est *est, dart_bucket_read *r) {
    r->reads_word = r->reads_slots = false;
    if (r->done)
        return false;
    if (!r->cache_consulted) {
        r->cache_consulted = true;
        r->word = dart_est_follow_cached_tables(est, r->hash, far_epoch(t), &r->dir, &r->word_is_usable);
    }
    if (!r->word_is_current && !r->word_is_usable) {
        dart_add_shared_read(t, r->shared, r->dir.addr, &r->seen_word, 8, 0);
        r->reads_word = true;
        if (r->word == 0 || far_addr_node(dart_word_addr(r->word)) != far_addr_node(r->dir.addr))
            return true;
    }
    /* If this batch also reads the directory word, the READ of the bucket is not shared, because another descent's READ
     * of the same bucket might precede the READ of the directory word in the batch. */
    dart_add_shared_read(t, r->reads_word ? NULL : r->shared, dart_est_slot_addr(r, 0), r->slots, DART_EST_READ_BYTES,
                         r->reads_word ? FAR_VERB_UNPROVEN : 0);
    r->reads_slots = true;
    return true;
}


/* Processes a directory word that was read. If the word names a table, a word of this table must be read next. If it
 * names a segment, the bucket in this segment must be read, unless the same batch has read it. Returns 1 if something
 * must still be read, 0 if not, or an error. */
static int process_dir_word(far_task *t, dart_est *est, dart_bucket_read *r) {
    bool same = r->seen_word == r->word;
    int err = dart_est_check_dir_word(est, &r->dir, r->seen_word);
    if (err < 0)
        return err;
    dart_directory_set(&est->directory, r->dir.number, r->seen_word, far_epoch(t));
    if (dart_is_table(r->seen_word)) {
        r->dir = dart_dir_slot_below(&r->dir, r->seen_word, dart_hash_table(r->hash, r->dir.level + 1));
        r->cache_consulted = false;
        return 1;
    }
    r->word_is_current = true;
    r->word = r->seen_word;
    r->done = r->word == 0;
    return !r->done && !(same && r->reads_slots);
}


int dart_bucket_read_process(far_task *t, dart_est *est, dart_bucket_read *r) {
    int again = r->reads_word ? process_dir_word(t, est, r) : 0;
    if (again || r->done)
        return again;
    if (dart_any_unfrozen(r->slots, DART_EST_READ_SLOTS))
        dart_directory_set(&est->directory, r->dir.number, r->word, far_epoch(t));
    /* The slots are frozen and the directory word is from the cache, so the segment may have been replaced long ago,
     * and the directory word must be read again. */
    if (dart_est_any_frozen(r->slots, DART_EST_READ_SLOTS) && !r->word_is_current) {
        r->word_is_usable = false;
        return 1;
    }
    r->done = true;
    return 0;
}


int dart_bucket_reads_run(far_task *t, dart_est *est, dart_bucket_read *reads, unsigned count) {
    for (bool more = true; more;) {
        more = false;
        for (unsigned i = 0; i < count; i++)
            more |= dart_bucket_read_add_verbs(t, est, &reads[i]);
        int err = more ? far_wait(t) : 0;
        for (unsigned i = 0; err >= 0 && i < count; i++)
            if (reads[i].reads_word || reads[i].reads_slots)
                err = dart_bucket_read_process(t, est, &reads[i]);
        if (err < 0)
            return err;
    }
    return 0;
}


/* ---- LOCATE, step 1: the lookup ---- */

static lookup_state *begin_lookup(far_task *t, dart_est *est, far_bytes key) {
    lookup_state *a = far_scratch(t, sizeof(*a));
    if (!a)
        return NULL;
    memset(a, 0, sizeof(*a));
    a->list = dart_est_list(est);
    while (a->usable < a->list->lookup_count && a->list->lookup[a->usable] < key.length)
        a->usable++;
    a->class = dart_length_class_of(key.length);
    a->choice = dart_choose_arm(&est->classes[a->class], a->usable, est->width);
    a->first = a->choice.first;
    a->count = a->choice.count;
    return a;
}


static bool add_start(far_task *t, far_index *index, dart_lookup *lookup, far_bytes key, unsigned length, uint64_t word,
                      far_addr entry, unsigned slot, bool current) {
    unsigned depth = length + dart_est_delta(word), type = dart_est_type(word);
    if (depth > key.length || type < DART_N4 || type > DART_N256 || lookup->count == DART_STARTS_MAX)
        return false;
    /* The entry may belong to a prefix of another length with the same fingerprint. Then the depth computed from the
     * entry is wrong, and a node of this depth might extend beyond the end of the memory. */
    if (!far_task_reaches(t, dart_word_addr(word),
                          dart_node_bytes((dart_node_type)type, depth, dart_of(index)->bucket)))
        return false;
    lookup->starts[lookup->count++] =
        (dart_start){{dart_word_addr(word), (dart_node_type)type, depth}, length, slot, entry, word, current, false};
    return true;
}


static bool look_up_cached_length(far_task *t, far_index *index, far_bytes key, unsigned length, dart_lookup *lookup) {
    dart_est *est = dart_est_of(index);
    uint64_t word;
    bool current;
    return dart_express_get(&est->express, dart_est_hash(est, key.data, length), far_epoch(t), &word, &current) &&
           dart_word_addr(word) != lookup->stale_node &&
           add_start(t, index, lookup, key, length, word, 0, dart_word_position(word), current);
}


/* Returns the node of depth 1 below the root as if it were an entry of length 1. The table itself has no entries of
 * length 1. */
static bool look_up_below_root(far_task *t, dart_est *est, far_bytes key, dart_lookup *lookup) {
    dart_start *start = &lookup->starts[0];
    *start = (dart_start){.length = 1, .on_path = true};
    if (key.length == 0 ||
        !dart_below_root_get(&est->below_root, *(const uint8_t *)key.data, far_epoch(t), &start->node,
                             &start->is_recent) ||
        start->node.addr == lookup->stale_node)
        return false;
    lookup->count = 1;
    return true;
}


/* Looks up the chosen lengths in the express cache. If the root was chosen, looks up all lengths, and then the node
 * below the root. Returns true if a cached entry was found. */
static bool look_up_caches(far_task *t, far_index *index, const lookup_state *a, far_bytes key, dart_lookup *lookup) {
    bool hit = false;
    unsigned first = a->count ? a->first : 0, count = a->count ? a->count : a->usable;
    if (dart_est_of(index)->express.count == 0)
        return false;
    for (unsigned i = count; i-- > 0 && !hit;)
        hit = look_up_cached_length(t, index, key, a->list->lookup[first + i], lookup);
    if (!hit && a->count == 0)
        hit = look_up_below_root(t, dart_est_of(index), key, lookup);
    far_count_cache(t, hit);
    return hit;
}


int dart_est_lookup_add_reads(far_task *t, far_index *index, far_bytes key, dart_lookup *lookup) {
    dart_est *est = dart_est_of(index);
    lookup_state *a = lookup->state;
    lookup->count = 0;
    if (!est)
        return 0;
    if (!lookup->started) {
        lookup->started = true;
        if (!(lookup->state = a = begin_lookup(t, est, key)))
            return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a lookup");
        lookup->shorter_than = a->count ? a->list->lookup[a->first] : 0;
        if (look_up_caches(t, index, a, key, lookup)) {
            /* If the cached node was replaced, the table may name the replacement under the same length. So the second
             * round must include the length of the cached entry. */
            lookup->shorter_than = lookup->starts[0].length + 1;
            return 0;
        }
    } else {
        a->wasted++;
        a->first = a->count = 0;
        while (a->count < a->usable && a->list->lookup[a->count] < lookup->shorter_than)
            a->count++;
        lookup->shorter_than = 0;
    }
    if (a->count == 0)
        return 0;
    if (!(a->reads = far_scratch(t, a->count * sizeof(*a->reads))))
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a lookup");
    a->probes += a->count - 1;
    for (unsigned i = 0; i < a->count; i++) {
        dart_bucket_read_init(est, &a->reads[i], key.data, a->list->lookup[a->first + i]);
        a->reads[i].shared = lookup->shared;
        dart_bucket_read_add_verbs(t, est, &a->reads[i]);
        a->tried |= 1u << (a->first + i);
    }
    return 1;
}


static void collect_starts(far_task *t, far_index *index, const lookup_state *a, far_bytes key, dart_lookup *lookup) {
    const dart_est *est = dart_est_of(index);
    for (unsigned i = a->count; i-- > 0;) {
        const dart_bucket_read *r = &a->reads[i];
        for (unsigned s = 0; r->word && s < DART_EST_READ_SLOTS; s++)
            if (dart_est_is_committed(r->slots[s]) && !dart_is_frozen(r->slots[s]) &&
                dart_est_fingerprint(r->slots[s]) == dart_est_fingerprint_of(est, r->hash))
                add_start(t, index, lookup, key, r->length, r->slots[s], dart_est_slot_addr(r, s), s + 1, false);
    }
}


int dart_est_lookup_process_reads(far_task *t, far_index *index, far_bytes key, dart_lookup *lookup) {
    dart_est *est = dart_est_of(index);
    lookup_state *a = lookup->state;
    bool more = false;
    a->batches++;
    for (unsigned i = 0; i < a->count; i++) {
        dart_bucket_read *r = &a->reads[i];
        int again = r->reads_word || r->reads_slots ? dart_bucket_read_process(t, est, r) : 0;
        if (again < 0)
            return again;
        more |= dart_bucket_read_add_verbs(t, est, r);
    }
    if (more)
        return 1;
    far_point(t, "dart:est_buckets_read");
    collect_starts(t, index, a, key, lookup);
    return 0;
}


int dart_est_lookup(far_task *t, far_index *index, far_bytes key, dart_start *starts, unsigned max) {
    dart_lookup lookup = {0};
    int err = dart_est_lookup_add_reads(t, index, key, &lookup);
    while (err > 0)
        err = (err = far_wait(t)) < 0 ? err : dart_est_lookup_process_reads(t, index, key, &lookup);
    if (err < 0)
        return err;
    unsigned count = lookup.count < max ? lookup.count : max;
    memcpy(starts, lookup.starts, count * sizeof(*starts));
    return (int)count;
}


int dart_est_lookup_all(far_task *t, far_index *index, far_bytes key, dart_start *starts, unsigned max) {
    dart_est *est = dart_est_of(index);
    lookup_state a = {.list = dart_est_list(est)};
    dart_lookup lookup = {0};
    while (a.count < a.list->lookup_count && a.list->lookup[a.count] < key.length)
        a.count++;
    if (a.count < DART_CHAIN_LENGTHS)
        return 0;
    if (!(a.reads = far_scratch(t, a.count * sizeof(*a.reads))))
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a lookup");
    for (unsigned i = 0; i < a.count; i++)
        dart_bucket_read_init(est, &a.reads[i], key.data, a.list->lookup[i]);
    int err = dart_bucket_reads_run(t, est, a.reads, a.count);
    if (err < 0)
        return err;
    collect_starts(t, index, &a, key, &lookup);
    unsigned count = lookup.count < max ? lookup.count : max;
    memcpy(starts, lookup.starts, count * sizeof(*starts));
    return (int)count;
}


/* ---- What the handle learns from a descent ---- */

/* True if step i of the path is certainly on the key's path, and the slot of this step was seen unfrozen, which proves
 * that the node of this step is linked. */
static bool step_is_proved(const dart_find *f, unsigned i) {
    const dart_step *step = &f->path.steps[i];
    size_t known = f->outcome == DART_FOUND                                             ? f->key.length
                   : f->outcome == DART_DIVERGED && f->diverged_depth > f->proven_depth ? f->diverged_depth
                                                                                        : f->proven_depth;
    return step->node.depth <= known && step->slot && !dart_is_frozen(step->word);
}


/* Returns the number of the step whose node an entry of this length should name. Returns -1 if this node is not on the
 * path, or if the path starts too deep to decide. */
static int step_of_length(const dart_find *f, unsigned length) {
    for (unsigned i = 1; i < f->path.count; i++)
        if (f->path.steps[i - 1].node.depth < length && length <= f->path.steps[i].node.depth)
            return step_is_proved(f, i) && f->path.steps[i].node.depth - length <= DART_EST_DELTA_MAX ? (int)i : -1;
    return -1;
}


static void cache_entry(far_task *t, dart_est *est, const dart_node *node, const void *prefix, unsigned length,
                        unsigned position_in_pair) {
    uint64_t hash = dart_est_hash(est, prefix, length);
    dart_express_put(&est->express, hash, dart_est_word(position_in_pair, node->depth - length, node->type, node->addr),
                     far_epoch(t));
}


void dart_est_cache_linked(far_task *t, far_index *index, const dart_node *node, unsigned parent_depth,
                           far_bytes prefix) {
    dart_est *est = dart_est_of(index);
    const dart_list *list = dart_est_list(est);
    for (unsigned i = 0; est->express.count && i < list->lookup_count; i++)
        if (list->lookup[i] > parent_depth && list->lookup[i] <= node->depth &&
            node->depth - list->lookup[i] <= DART_EST_DELTA_MAX)
            cache_entry(t, est, node, prefix.data, list->lookup[i], 0);
}


/* Stores in the express cache the deepest node of the path that an entry can name, and renews the tag of the cached
 * entry through which the descent started. */
static void cache_entries(far_task *t, dart_est *est, const lookup_state *a, const dart_find *f) {
    const dart_start *used =
        f->used_start >= 0 && f->path.count && step_is_proved(f, 0) ? &f->lookup.starts[f->used_start] : NULL;
    for (unsigned i = a->usable; i-- > 0;) {
        unsigned length = a->list->lookup[i];
        int step = step_of_length(f, length);
        if (step >= 0)
            cache_entry(t, est, &f->path.steps[step].node, f->key.data, length, 0);
        if (step >= 0 || (used && used->length == length))
            break;
    }
    unsigned below = used ? 0 : 1; /* number of the step of the node below the root, if it is on the path */
    bool renew = used ? used->on_path && !used->is_recent : f->path.count > 1 && f->path.steps[0].node.depth == 0;
    if (renew && f->path.steps[below].node.depth == 1 && step_is_proved(f, below))
        dart_below_root_put(&est->below_root, *(const uint8_t *)f->key.data, &f->path.steps[below].node, far_epoch(t));
    if (used && !used->on_path && !used->is_recent)
        cache_entry(t, est, &f->path.steps[0].node, f->key.data, used->length, used->position);
}


void dart_est_drop_stale(far_task *t, far_index *index, const dart_find *f) {
    dart_est *est = dart_est_of(index);
    for (unsigned i = 0; i < f->lookup.count; i++) {
        const dart_start *start = &f->lookup.starts[i];
        const dart_view *view = &f->candidates[i];
        if (!f->stale[i] || (view->slots && dart_any_unfrozen(view->slots, view->count)))
            /* An unfrozen slot proves that the node is live, so its entry is not stale: it belongs to another prefix
             * with the same fingerprint. */
            continue;
        if (start->on_path)
            dart_below_root_drop(&est->below_root, *(const uint8_t *)f->key.data);
        if (est->express.count)
            dart_express_drop(&est->express, dart_est_hash(est, f->key.data, start->length));
        bool clears = f->seek == DART_SEEK_VALUE || dart_est_is_eager(est);
        /* The client that replaced the node removes the entry, so other clients usually leave the entry in the table.
         * That client may have failed before the removal. Therefore a get that meets the entry starts a task that
         * clears it. With upkeep_batch=1 (dart_est_is_eager) every operation does so. */
        if (start->entry && est->update && clears)
            dart_est_clear_entry_later(t, index, start->entry, start->word);
    }
}


static bool length_had_start(const dart_find *f, unsigned length) {
    for (unsigned i = 0; i < f->lookup.count; i++)
        if (f->lookup.starts[i].length == length && !f->stale[i])
            return true;
    return false;
}


/* Queues the registration of the deepest node of a get that started at the root by choice. Such a get does not read the
 * table and so does not detect missing entries. Small nodes are registered only after a get missed their entries, so
 * without this function the root would remain the better choice forever. Each prefix is queued only once in a while. */
static void queue_missed_entry(far_task *t, far_index *index, const lookup_state *a, const dart_find *f) {
    dart_est *est = dart_est_of(index);
    for (unsigned i = a->usable; i-- > 0;) {
        unsigned length = a->list->lookup[i];
        int step = step_of_length(f, length);
        if (step < 0)
            continue;
        uint64_t hash = dart_est_hash(est, f->key.data, length), bit = 1ull << (hash & 63);
        _Atomic uint64_t *word = &est->root_gets[(hash >> 6) % DART_ROOT_GET_WORDS];
        if (dart_est_saved_round_trips(f, (unsigned)step) == 0 ||
            atomic_load_explicit(word, memory_order_relaxed) & bit)
            return;
        if (!dart_est_queue_length(t, index, &f->path.steps[step].node, f->key.data, length))
            return;
        atomic_fetch_or_explicit(word, bit, memory_order_relaxed);
        if (dart_count_relaxed(&est->root_get_count) % (DART_ROOT_GET_WORDS * 32) == DART_ROOT_GET_WORDS * 32 - 1)
            for (unsigned w = 0; w < DART_ROOT_GET_WORDS; w++)
                atomic_store_explicit(&est->root_gets[w], 0, memory_order_relaxed);
        return;
    }
}


void dart_est_record_descent(far_task *t, far_index *index, const dart_find *f) {
    dart_est *est = dart_est_of(index);
    const lookup_state *a = f->lookup.state;
    if (!est || !a)
        return;
    dart_record_arm_cost(&est->classes[a->class], a->choice.arm, a->usable, est->width,
                         a->batches + a->wasted + f->path.count, a->probes);
    if (est->express.count)
        cache_entries(t, est, a, f);
    dart_est_drop_stale(t, index, f);
    if (f->seek == DART_SEEK_VALUE && a->choice.count == 0 && est->update)
        queue_missed_entry(t, index, a, f);
    for (unsigned i = a->usable; i-- > 0 && est->update;) {
        unsigned length = a->list->lookup[i];
        int step = a->tried >> i & 1 && !length_had_start(f, length) ? step_of_length(f, length) : -1;
        if (step < 0)
            continue;
        /* A write queues an entry only if the entry saves several round trips. Entries that save less are registered by
         * the client that links the node, or by a get that misses them. */
        if (f->seek == DART_SEEK_VALUE || dart_est_is_eager(est) ||
            dart_est_saved_round_trips(f, (unsigned)step) >= DART_WORTH_REGISTERING)
            dart_est_queue_length(t, index, &f->path.steps[step].node, f->key.data, length);
        break;
    }
    if (f->seek == DART_SEEK_VALUE && !atomic_load_explicit(&est->adjust.had_get, memory_order_relaxed))
        atomic_store_explicit(&est->adjust.had_get, true, memory_order_relaxed);
    if (est->adjusting && dart_count_relaxed(&est->adjust.operations) % est->sample_every == 0)
        dart_est_sample_key(est, f->key);
}
