/* Reading the skip table: LOCATE's first step, and what is learnt from how it ended. */
#include "base/error.h"
#include "base/hash.h"
#include "index/dart/est.h"
#include "pool/epoch.h"


/* One LOCATE's dealings with the table, over all its questions. */
typedef struct asking {
    const dart_list *list;
    unsigned usable; /* how many lengths of the list are shorter than the key */
    dart_choice choice;
    unsigned class;
    unsigned batches, probes; /* round trips; bucket READs beyond the first */
    unsigned wasted;          /* questions whose candidates were of no use */
    uint32_t tried;           /* positions in the list that were looked for in far memory */
    unsigned first, count;    /* positions of this question */
    dart_est_read *reads;     /* one each */
} asking;


uint64_t dart_est_hash(const dart_est *est, const void *prefix, unsigned length) {
    return far_hash((far_bytes){prefix, length}, est->seed + length * 0x9e3779b97f4a7c15ull);
}


/* ---- One bucket ---- */

void dart_est_read_init(const dart_est *est, dart_est_read *r, const void *prefix, unsigned length) {
    memset(r, 0, offsetof(dart_est_read, slots));
    r->length = length;
    r->hash = dart_est_hash(est, prefix, length);
    r->spot = dart_spot_at(est, dart_hash_directory(r->hash, est->bits));
}


int dart_est_check_word(const dart_est *est, const dart_spot *spot, uint64_t word) {
    far_addr addr = dart_word_addr(word);
    unsigned log_groups = dart_directory_log_groups(word);
    bool sound = dart_is_table(word)
                     ? word == dart_table_word(addr) && dart_spot_may_be_table(est, spot)
                     : word == dart_directory_word(log_groups, addr) && log_groups <= DART_LOG_GROUPS_MAX;
    return word == 0 || (sound && addr)
               ? 0
               : far_fail(FAR_ERR_CORRUPT, "dart: directory word %#llx is broken", (unsigned long long)word);
}


uint64_t dart_est_know(dart_est *est, uint64_t hash, uint64_t epoch, dart_spot *spot, bool *fresh) {
    uint64_t word;
    while (dart_is_table(word = dart_directory_get(&est->directory, spot->at, epoch, fresh)))
        *spot = dart_spot_below(spot, word, dart_hash_table(hash, spot->level + 1));
    return word;
}


int dart_est_find_spot(far_task *t, far_index *index, unsigned at, dart_spot *spot) {
    dart_est *est = dart_est_of(index);
    unsigned level = (31 - (unsigned)__builtin_clz(at) - est->bits) / DART_TABLE_LOG;
    *spot = dart_spot_at(est, at >> level * DART_TABLE_LOG & ((1u << est->bits) - 1));
    while (level-- > 0) {
        bool fresh;
        uint64_t word = dart_directory_get(&est->directory, spot->at, far_epoch(t), &fresh);
        int err = dart_is_table(word) ? 0 : far_read_word(t, spot->addr, &word);
        if (err < 0 || (err = dart_est_check_word(est, spot, word)) < 0)
            return err;
        if (!dart_is_table(word))
            return far_fail(FAR_ERR_CORRUPT, "dart: a table of the directory is gone");
        *spot = dart_spot_below(spot, word, at >> level * DART_TABLE_LOG & (DART_TABLE_WORDS - 1));
    }
    return 0;
}


/* With a word whose tag is too old, the word is read again in front of the bucket. On one memory node these READs keep
 * their order: if the word is still the same, its segment was linked before the bucket was read, and is not reused
 * while the pin is held. */
bool dart_est_read_put(far_task *t, dart_est *est, dart_est_read *r) {
    r->asked_word = r->asked_slots = false;
    if (r->done)
        return false;
    if (!r->known) {
        r->known = true;
        r->word = dart_est_know(est, r->hash, far_epoch(t), &r->spot, &r->fresh);
    }
    if (!r->sure_word && !r->fresh) {
        dart_share_read(t, r->shared, r->spot.addr, &r->seen_word, 8, 0);
        r->asked_word = true;
        if (r->word == 0 || far_addr_node(dart_word_addr(r->word)) != far_addr_node(r->spot.addr))
            return true;
    }
    /* Another's READ of the bucket might be in front of the word. */
    dart_share_read(t, r->asked_word ? NULL : r->shared, dart_est_slot_addr(r, 0), r->slots, DART_EST_READ_BYTES,
                    r->asked_word ? FAR_VERB_UNPROVEN : 0);
    r->asked_slots = true;
    return true;
}


/* A word of the directory that was read: 1: a word of its table, or a bucket of its segment, is still to be read. */
static int take_word(far_task *t, dart_est *est, dart_est_read *r) {
    bool same = r->seen_word == r->word;
    int err = dart_est_check_word(est, &r->spot, r->seen_word);
    if (err < 0)
        return err;
    dart_directory_set(&est->directory, r->spot.at, r->seen_word, far_epoch(t));
    if (dart_is_table(r->seen_word)) {
        r->spot = dart_spot_below(&r->spot, r->seen_word, dart_hash_table(r->hash, r->spot.level + 1));
        r->known = false;
        return 1;
    }
    r->sure_word = true;
    r->word = r->seen_word;
    r->done = r->word == 0;
    return !r->done && !(same && r->asked_slots);
}


int dart_est_read_take(far_task *t, dart_est *est, dart_est_read *r) {
    int again = r->asked_word ? take_word(t, est, r) : 0;
    if (again || r->done)
        return again;
    if (dart_any_unfrozen(r->slots, DART_EST_READ_SLOTS))
        dart_directory_set(&est->directory, r->spot.at, r->word, far_epoch(t));
    if (dart_est_any_frozen(r->slots, DART_EST_READ_SLOTS) && !r->sure_word) { /* perhaps it was replaced long ago */
        r->fresh = false;
        return 1;
    }
    r->done = true;
    return 0;
}


int dart_est_read_all(far_task *t, dart_est *est, dart_est_read *reads, unsigned count) {
    for (bool more = true; more;) {
        more = false;
        for (unsigned i = 0; i < count; i++)
            more |= dart_est_read_put(t, est, &reads[i]);
        int err = more ? far_wait(t) : 0;
        for (unsigned i = 0; err >= 0 && i < count; i++)
            if (reads[i].asked_word || reads[i].asked_slots)
                err = dart_est_read_take(t, est, &reads[i]);
        if (err < 0)
            return err;
    }
    return 0;
}


/* ---- LOCATE, step 1 ---- */

static asking *begin(far_task *t, dart_est *est, far_bytes key) {
    asking *a = far_scratch(t, sizeof(*a));
    if (!a)
        return NULL;
    memset(a, 0, sizeof(*a));
    a->list = dart_est_list(est);
    while (a->usable < a->list->lookup_count && a->list->lookup[a->usable] < key.length)
        a->usable++;
    a->class = dart_class_of(key.length);
    a->choice = dart_choose(&est->classes[a->class], a->usable, est->width);
    a->first = a->choice.first;
    a->count = a->choice.count;
    return a;
}


static bool add_start(far_task *t, far_index *index, dart_probe *probe, far_bytes key, unsigned length, uint64_t word,
                      far_addr entry, unsigned slot, bool current) {
    unsigned depth = length + dart_est_delta(word), type = dart_est_type(word);
    if (depth > key.length || type < DART_N4 || type > DART_N256 || probe->count == DART_STARTS_MAX)
        return false;
    /* An entry of another length whose fingerprint clashes: seen with this depth the node may reach beyond the memory.
     */
    if (!far_task_reaches(t, dart_word_addr(word),
                          dart_node_bytes((dart_node_type)type, depth, dart_of(index)->bucket)))
        return false;
    probe->starts[probe->count++] =
        (dart_start){{dart_word_addr(word), (dart_node_type)type, depth}, length, slot, entry, word, current, false};
    return true;
}


static bool ask_cache_for(far_task *t, far_index *index, far_bytes key, unsigned length, dart_probe *probe) {
    dart_est *est = dart_est_of(index);
    uint64_t word;
    bool current;
    return dart_express_get(&est->express, dart_est_hash(est, key.data, length), far_epoch(t), &word, &current) &&
           dart_word_addr(word) != probe->dead &&
           add_start(t, index, probe, key, length, word, 0, dart_hint(word), current);
}


/* The node below the root, as an entry of length 1, which is in no table. */
static bool ask_below_root(far_task *t, dart_est *est, far_bytes key, dart_probe *probe) {
    dart_start *start = &probe->starts[0];
    *start = (dart_start){.length = 1, .on_path = true};
    if (key.length == 0 ||
        !dart_below_root_get(&est->below_root, *(const uint8_t *)key.data, far_epoch(t), &start->node,
                             &start->current) ||
        start->node.addr == probe->dead)
        return false;
    probe->count = 1;
    return true;
}


/* The chosen lengths; with the root as the choice all of them, and then the node below it. */
static bool ask_cache(far_task *t, far_index *index, const asking *a, far_bytes key, dart_probe *probe) {
    bool hit = false;
    unsigned first = a->count ? a->first : 0, count = a->count ? a->count : a->usable;
    if (dart_est_of(index)->express.count == 0)
        return false;
    for (unsigned i = count; i-- > 0 && !hit;)
        hit = ask_cache_for(t, index, key, a->list->lookup[first + i], probe);
    if (!hit && a->count == 0)
        hit = ask_below_root(t, dart_est_of(index), key, probe);
    far_count_cache(t, hit);
    return hit;
}


int dart_est_ask(far_task *t, far_index *index, far_bytes key, dart_probe *probe) {
    dart_est *est = dart_est_of(index);
    asking *a = probe->private;
    probe->count = 0;
    if (!est)
        return 0;
    if (!probe->asked) {
        probe->asked = true;
        if (!(probe->private = a = begin(t, est, key)))
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a lookup");
        probe->below = a->count ? a->list->lookup[a->first] : 0;
        if (ask_cache(t, index, a, key, probe)) {
            probe->below = probe->starts[0].length + 1; /* of a node that was replaced: the table knows the new one */
            return 0;
        }
    } else {
        a->wasted++;
        a->first = a->count = 0;
        while (a->count < a->usable && a->list->lookup[a->count] < probe->below)
            a->count++;
        probe->below = 0;
    }
    if (a->count == 0)
        return 0;
    if (!(a->reads = far_scratch(t, a->count * sizeof(*a->reads))))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a lookup");
    a->probes += a->count - 1;
    for (unsigned i = 0; i < a->count; i++) {
        dart_est_read_init(est, &a->reads[i], key.data, a->list->lookup[a->first + i]);
        a->reads[i].shared = probe->shared;
        dart_est_read_put(t, est, &a->reads[i]);
        a->tried |= 1u << (a->first + i);
    }
    return 1;
}


static void collect(far_task *t, far_index *index, const asking *a, far_bytes key, dart_probe *probe) {
    const dart_est *est = dart_est_of(index);
    for (unsigned i = a->count; i-- > 0;) {
        const dart_est_read *r = &a->reads[i];
        for (unsigned s = 0; r->word && s < DART_EST_READ_SLOTS; s++)
            if (dart_est_is_committed(r->slots[s]) && !dart_is_frozen(r->slots[s]) &&
                dart_est_fingerprint(r->slots[s]) == dart_est_fingerprint_of(est, r->hash))
                add_start(t, index, probe, key, r->length, r->slots[s], dart_est_slot_addr(r, s), s + 1, false);
    }
}


int dart_est_answer(far_task *t, far_index *index, far_bytes key, dart_probe *probe) {
    dart_est *est = dart_est_of(index);
    asking *a = probe->private;
    bool more = false;
    a->batches++;
    for (unsigned i = 0; i < a->count; i++) {
        dart_est_read *r = &a->reads[i];
        int again = r->asked_word || r->asked_slots ? dart_est_read_take(t, est, r) : 0;
        if (again < 0)
            return again;
        more |= dart_est_read_put(t, est, r);
    }
    if (more)
        return 1;
    far_point(t, "dart:est_answer");
    collect(t, index, a, key, probe);
    return 0;
}


int dart_est_lookup(far_task *t, far_index *index, far_bytes key, dart_start *starts, unsigned max) {
    dart_probe probe = {0};
    int err = dart_est_ask(t, index, key, &probe);
    while (err > 0)
        err = (err = far_wait(t)) < 0 ? err : dart_est_answer(t, index, key, &probe);
    if (err < 0)
        return err;
    unsigned count = probe.count < max ? probe.count : max;
    memcpy(starts, probe.starts, count * sizeof(*starts));
    return (int)count;
}


int dart_est_lookup_all(far_task *t, far_index *index, far_bytes key, dart_start *starts, unsigned max) {
    dart_est *est = dart_est_of(index);
    asking a = {.list = dart_est_list(est)};
    dart_probe probe = {0};
    while (a.count < a.list->lookup_count && a.list->lookup[a.count] < key.length)
        a.count++;
    if (a.count < DART_CHAIN_LENGTHS)
        return 0;
    if (!(a.reads = far_scratch(t, a.count * sizeof(*a.reads))))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a lookup");
    for (unsigned i = 0; i < a.count; i++)
        dart_est_read_init(est, &a.reads[i], key.data, a.list->lookup[i]);
    int err = dart_est_read_all(t, est, a.reads, a.count);
    if (err < 0)
        return err;
    collect(t, index, &a, key, &probe);
    unsigned count = probe.count < max ? probe.count : max;
    memcpy(starts, probe.starts, count * sizeof(*starts));
    return (int)count;
}


/* ---- What is learnt ---- */

/* Step i of the path is on the key's way, and a slot of it was seen unfrozen. */
static bool is_proved(const dart_find *f, unsigned i) {
    const dart_step *step = &f->path.steps[i];
    size_t known = f->outcome == DART_FOUND                             ? f->key.length
                   : f->outcome == DART_DIVERGED && f->split > f->known ? f->split
                                                                        : f->known;
    return step->node.depth <= known && step->slot && !dart_is_frozen(step->word);
}


/* Position of the step that an entry of this length should name; -1: it is not on the path, or the path begins too far
 * down to know. */
static int step_of_length(const dart_find *f, unsigned length) {
    for (unsigned i = 1; i < f->path.count; i++)
        if (f->path.steps[i - 1].node.depth < length && length <= f->path.steps[i].node.depth)
            return is_proved(f, i) && f->path.steps[i].node.depth - length <= DART_EST_DELTA_MAX ? (int)i : -1;
    return -1;
}


static void keep(far_task *t, dart_est *est, const dart_node *node, const void *prefix, unsigned length,
                 unsigned hint) {
    uint64_t hash = dart_est_hash(est, prefix, length);
    dart_express_put(&est->express, hash, dart_est_word(hint, node->depth - length, node->type, node->addr),
                     far_epoch(t));
}


void dart_est_keep_linked(far_task *t, far_index *index, const dart_node *node, unsigned parent_depth,
                          far_bytes prefix) {
    dart_est *est = dart_est_of(index);
    const dart_list *list = dart_est_list(est);
    for (unsigned i = 0; est->express.count && i < list->lookup_count; i++)
        if (list->lookup[i] > parent_depth && list->lookup[i] <= node->depth &&
            node->depth - list->lookup[i] <= DART_EST_DELTA_MAX)
            keep(t, est, node, prefix.data, list->lookup[i], 0);
}


/* The deepest node on the path that an entry could name goes into the express cache; that of the entry that was used
 * stays fresh. */
static void keep_entries(far_task *t, dart_est *est, const asking *a, const dart_find *f) {
    const dart_start *used = f->used >= 0 && f->path.count && is_proved(f, 0) ? &f->probe.starts[f->used] : NULL;
    for (unsigned i = a->usable; i-- > 0;) {
        unsigned length = a->list->lookup[i];
        int step = step_of_length(f, length);
        if (step >= 0)
            keep(t, est, &f->path.steps[step].node, f->key.data, length, 0);
        if (step >= 0 || (used && used->length == length))
            break;
    }
    unsigned below = used ? 0 : 1; /* position of the node below the root, if it is on the path */
    bool renew = used ? used->on_path && !used->current : f->path.count > 1 && f->path.steps[0].node.depth == 0;
    if (renew && f->path.steps[below].node.depth == 1 && is_proved(f, below))
        dart_below_root_put(&est->below_root, *(const uint8_t *)f->key.data, &f->path.steps[below].node, far_epoch(t));
    if (used && !used->on_path && !used->current)
        keep(t, est, &f->path.steps[0].node, f->key.data, used->length, used->slot);
}


void dart_est_drop_stale(far_task *t, far_index *index, const dart_find *f) {
    dart_est *est = dart_est_of(index);
    for (unsigned i = 0; i < f->probe.count; i++) {
        const dart_start *start = &f->probe.starts[i];
        const dart_view *view = &f->candidates[i];
        if (!f->stale[i] || (view->slots && dart_any_unfrozen(view->slots, view->count)))
            continue; /* another prefix with the same fingerprint */
        if (start->on_path)
            dart_below_root_drop(&est->below_root, *(const uint8_t *)f->key.data);
        if (est->express.count)
            dart_express_drop(&est->express, dart_est_hash(est, f->key.data, start->length));
        bool clears = f->seek == DART_SEEK_VALUE || dart_est_is_eager(est);
        if (start->entry && est->update && clears) /* the client that replaced the node will do it, if alive */
            dart_est_spawn_clear(t, index, start->entry, start->word);
    }
}


static bool was_given(const dart_find *f, unsigned length) {
    for (unsigned i = 0; i < f->probe.count; i++)
        if (f->probe.starts[i].length == length && !f->stale[i])
            return true;
    return false;
}


/* A get came down from the root by choice, and so does not know what the table holds: small nodes are not there before
 * somebody misses them. Its deepest node is looked up in the background, once in a while: otherwise the root would stay
 * the better choice. */
static void ask_for_entry(far_task *t, far_index *index, const asking *a, const dart_find *f) {
    dart_est *est = dart_est_of(index);
    for (unsigned i = a->usable; i-- > 0;) {
        unsigned length = a->list->lookup[i];
        int step = step_of_length(f, length);
        if (step < 0)
            continue;
        uint64_t hash = dart_est_hash(est, f->key.data, length), bit = 1ull << (hash & 63);
        _Atomic uint64_t *word = &est->asked[(hash >> 6) % DART_ASKED_WORDS];
        if (dart_est_saves(f, (unsigned)step) == 0 || atomic_load_explicit(word, memory_order_relaxed) & bit)
            return;
        if (!dart_est_wish_length(t, index, &f->path.steps[step].node, f->key.data, length))
            return;
        atomic_fetch_or_explicit(word, bit, memory_order_relaxed);
        if (dart_count_roughly(&est->asked_count) % (DART_ASKED_WORDS * 32) == DART_ASKED_WORDS * 32 - 1)
            for (unsigned w = 0; w < DART_ASKED_WORDS; w++)
                atomic_store_explicit(&est->asked[w], 0, memory_order_relaxed);
        return;
    }
}


void dart_est_repair(far_task *t, far_index *index, const dart_find *f) {
    dart_est *est = dart_est_of(index);
    const asking *a = f->probe.private;
    if (!est || !a)
        return;
    dart_chosen_cost(&est->classes[a->class], a->choice.arm, a->usable, est->width,
                     a->batches + a->wasted + f->path.count, a->probes);
    if (est->express.count)
        keep_entries(t, est, a, f);
    dart_est_drop_stale(t, index, f);
    if (f->seek == DART_SEEK_VALUE && a->choice.count == 0 && est->update)
        ask_for_entry(t, index, a, f);
    for (unsigned i = a->usable; i-- > 0 && est->update;) {
        unsigned length = a->list->lookup[i];
        int step = a->tried >> i & 1 && !was_given(f, length) ? step_of_length(f, length) : -1;
        if (step < 0)
            continue;
        /* A write that it would save one round trip leaves it to those who link the node, or read. */
        if (f->seek == DART_SEEK_VALUE || dart_est_is_eager(est) ||
            dart_est_saves(f, (unsigned)step) >= DART_SAVES_MUCH)
            dart_est_wish_length(t, index, &f->path.steps[step].node, f->key.data, length);
        break;
    }
    if (f->seek == DART_SEEK_VALUE && !atomic_load_explicit(&est->adjust.read_from, memory_order_relaxed))
        atomic_store_explicit(&est->adjust.read_from, true, memory_order_relaxed);
    if (est->adjusting && dart_count_roughly(&est->adjust.seen) % est->sample_every == 0)
        dart_est_sample(est, f->key);
}
