/* LOCATE: the descent to a key, and the operations get and multi-get. The descent is a state machine (dart_find in
 * dart.h). Each stage is one batch of READs. The descent reports "absent" or a place for a write only after exact
 * evidence, which is the header of a node or the key of a leaf, has proved the path. */
#include "base/error.h"
#include "index/common/rdwc.h"
#include "index/dart/cache_slots.h"

#include <string.h>

/* a header of at most this many bytes is always read together with the node's only bucket, even if the header is not
 * needed, because that costs no further READ */
#define HEADER_WITH_BUCKET 32u
/* if a header is needed, one READ covers the header, the bucket and the bytes in between, provided that these are at
 * most this many bytes */
#define HEADER_TO_BUCKET 288u


int dart_fail_corrupt(const far_index *index, const char *what, far_addr addr) {
    return far_fail(FAR_ERR_CORRUPT, "index '%s': the %s at address %#llx is damaged", index->name, what,
                    (unsigned long long)addr);
}


static int fail_no_memory(void) {
    return far_fail(FAR_ERR_NO_MEMORY, "no local memory for an operation");
}


/* ---- Starting a descent ---- */

static void start_at_root(const far_index *index, dart_find *f) {
    f->from_root = true;
    f->used_start = -1;
    f->node = (dart_node){dart_of(index)->root, DART_N256, 0};
    f->proven_depth = f->start_depth = f->path.count = 0;
    f->stage = DART_STAGE_BUCKET;
}


void dart_find_init(dart_find *f, far_bytes key, dart_seek seek) {
    dart_path path = f->path;
    memset(f, 0, offsetof(dart_find, lookup) + offsetof(dart_lookup, starts));
    path.count = 0;
    f->path = path; /* keep the path's array, so that a retry of the descent uses the same memory again */
    f->key = key;
    f->seek = seek;
    f->used_start = -1;
    f->stage = DART_STAGE_LOOKUP;
}


void dart_find_try_cached_slot(far_task *t, const far_index *index, dart_find *f) {
    if (dart_slot_cache_get(t, index, f->key, &f->cached))
        f->stage = DART_STAGE_CACHED_SLOT;
}


/* Called when a start turned out to be off the key's path. The next lookup round looks up shorter prefixes; after that
 * round the descent starts at the root. Returns 0 or an error. */
static int restart_with_shorter_prefixes(const far_index *index, dart_find *f) {
    if (f->used_start >= 0)
        f->stale[f->used_start] = true;
    f->path.count = f->proven_depth = 0;
    f->used_start = -1;
    if (f->from_root)
        return dart_fail_corrupt(index, "root's subtree", dart_of(index)->root);
    f->stage = DART_STAGE_LOOKUP;
    return 0;
}


/* ---- Reading nodes ---- */

/* Adds the READs of those slots of a node in which the key's next symbol may be stored. Includes the header if reading
 * it costs no additional READ, or if with_header requires the header. */
static int add_view_reads(far_task *t, const far_index *index, const dart_node *node, const dart_find *f,
                          bool with_header, dart_view *view) {
    const dart_index *dart = dart_of(index);
    unsigned header = dart_header_bytes(node->depth);
    bool one_bucket = dart_buckets(node->type, dart->bucket) == 1 && node->type != DART_N256;
    *view = (dart_view){.node = *node};
    dart_slot_range(dart, node->type, node->depth, dart_symbol(f->key, node->depth), &view->first, &view->count);
    if (node->type == DART_N256 && f->seek == DART_SEEK_DELETE) {
        /* A delete also reads the neighbouring slots, which show whether the node may have become empty. */
        view->first -= view->first % dart->bucket;
        view->count =
            view->first + dart->bucket <= DART_NODE_SLOTS_MAX ? dart->bucket : DART_NODE_SLOTS_MAX - view->first;
    }
    if (!dart->hashed_nodes) {
        view->first = 0;
        view->count = dart_node_slots(node->type, node->depth, dart->bucket);
    }
    view->whole = view->count == dart_node_slots(node->type, node->depth, dart->bucket);
    uint64_t end = header + 8ull * (view->first + view->count);
    bool inlined =
        !dart->hashed_nodes || (dart->header_inline && ((one_bucket && (header <= HEADER_WITH_BUCKET || with_header)) ||
                                                        (with_header && end <= HEADER_TO_BUCKET)));
    char *image = far_scratch(t, inlined ? end : header + 8ull * view->count);
    if (!image)
        return fail_no_memory();
    view->slots = (uint64_t *)(image + header) + (inlined ? view->first : 0);
    /* A candidate may belong to the entry of a prefix of another length that has the same fingerprint. Then the
     * candidate has another depth than its entry says, and the READ may extend beyond the node into other memory.
     * UNPROVEN permits such a READ. */
    unsigned flags = f->stage == DART_STAGE_CANDIDATES && header > 8 ? FAR_VERB_UNPROVEN : 0;
    if (inlined) {
        dart_add_shared_read(t, f->lookup.shared, node->addr, image, end, flags);
        view->header = (const dart_header *)image;
        return 0;
    }
    dart_add_shared_read(t, f->lookup.shared, dart_slot_addr(node, view->first), view->slots, 8ull * view->count,
                         flags);
    if (with_header && dart->header_inline) {
        dart_add_shared_read(t, f->lookup.shared, node->addr, image, header, flags);
        view->header = (const dart_header *)image;
    }
    return 0;
}


static int add_header_read(far_task *t, dart_shared_reads *shared, const dart_node *node, unsigned flags,
                           dart_header **header) {
    *header = far_scratch(t, dart_header_bytes(node->depth));
    if (!*header)
        return fail_no_memory();
    dart_add_shared_read(t, shared, node->addr, *header, dart_header_bytes(node->depth), flags);
    return 0;
}


/* ---- The steps of a descent ---- */

static int push_step(far_task *t, dart_find *f, const dart_node *node, far_addr slot, uint64_t word) {
    dart_path *path = &f->path;
    if (path->count == path->size) {
        unsigned size = path->size ? 2 * path->size : 16;
        dart_step *steps = far_scratch(t, size * sizeof(*steps));
        if (!steps)
            return fail_no_memory();
        if (path->count)
            memcpy(steps, path->steps, path->count * sizeof(*steps));
        path->steps = steps;
        path->size = size;
    }
    path->steps[path->count++] = (dart_step){*node, slot, word, f->linearization_mark};
    return 0;
}


static int finish_descent(dart_find *f, dart_outcome outcome) {
    f->outcome = outcome;
    f->stage = DART_STAGE_DONE;
    if (f->path.count)
        f->linearization_mark =
            f->path.steps[outcome == DART_DIVERGED ? f->diverged_step : f->path.count - 1].linearization_mark;
    return 1;
}


/* Ends the descent with the result DIVERGED: `other`, a key or prefix found below the slot that was followed last,
 * differs from the key at depth `split`. The last node of the path with a depth of at most `split` is still on the
 * key's path, so the key diverges inside the child of that node's slot. If the descent started deeper than `split`, its
 * start was not on the key's path, and the descent starts again. */
static int finish_diverged(const far_index *index, dart_find *f, far_bytes other, unsigned split) {
    if (split < f->start_depth)
        return restart_with_shorter_prefixes(index, f);
    unsigned at = f->path.count;
    while (at > 0 && f->path.steps[at - 1].node.depth > split)
        at--;
    if (at == 0 || split == f->path.steps[at - 1].node.depth)
        return dart_fail_corrupt(index, "subtree", f->node.addr);
    f->diverged_step = at - 1;
    f->diverged_depth = split;
    f->diverged_key = other;
    return finish_descent(f, DART_DIVERGED);
}


/* Follows `word`, the slot word with the key's symbol that was found in the last node of the path. Ends the descent if
 * there is no child. */
static int follow_word(const far_index *index, dart_find *f, uint64_t word) {
    const dart_step *step = &f->path.steps[f->path.count - 1];
    if (!dart_is_child(word)) {
        if (f->proven_depth >= step->node.depth)
            return finish_descent(f, DART_ABSENT);
        f->header_node = step->node;
        f->stage = DART_STAGE_HEADER;
        return 0;
    }
    if (dart_is_leaf(word)) {
        f->leaf_word = word;
        f->stage = DART_STAGE_LEAF;
        return 0;
    }
    dart_node child = {dart_word_addr(word), dart_word_type(word), step->node.depth + 1 + dart_word_len(word)};
    if (child.depth > DART_KEY_MAX)
        return dart_fail_corrupt(index, "slot", step->slot);
    if (child.depth > f->key.length) { /* the key ends before the depth of the child */
        f->diverged_step = f->path.count - 1;
        if (f->seek != DART_SEEK_INSERT && f->proven_depth >= step->node.depth)
            return finish_descent(f, DART_DIVERGED);
        f->header_node = child;
        f->stage = DART_STAGE_HEADER;
        return 0;
    }
    if (f->proven_depth >= step->node.depth && child.depth == step->node.depth + 1)
        f->proven_depth = child.depth;
    f->node = child;
    f->stage = DART_STAGE_BUCKET;
    return 0;
}


/* Searches the current node's bucket for the key's symbol, and follows the word that was found. The bucket was read
 * before. */
static int follow_bucket(far_task *t, far_index *index, dart_find *f) {
    dart_view *view = &f->view;
    int found = dart_view_search(dart_of(index), view, dart_symbol(f->key, f->node.depth));
    uint64_t word = found < 0 ? 0 : view->slots[found];
    int err = push_step(t, f, &f->node, found < 0 ? 0 : dart_slot_addr(&f->node, view->first + (unsigned)found), word);
    return err < 0 ? err : follow_word(index, f, word);
}


static int process_bucket(far_task *t, far_index *index, dart_find *f) {
    dart_view *view = &f->view;
    far_point(t, "dart:bucket_read");
    /* An unfrozen slot proves that the current node is linked now. If all slots are frozen, the node was linked when
     * the slot word that names it was read. */
    if (dart_any_unfrozen(view->slots, view->count))
        f->linearization_mark = f->batch_mark;
    if (view->header) {
        if (!dart_header_matches(view->header, &f->node))
            return dart_fail_corrupt(index, "node", f->node.addr);
        far_bytes prefix = {view->header->prefix, f->node.depth};
        unsigned same = dart_common_prefix(prefix, f->key);
        if (same < f->node.depth)
            return finish_diverged(index, f, prefix, same);
        f->proven_depth = f->node.depth;
    }
    return follow_bucket(t, index, f);
}


/* Chooses the deepest candidate that is live and on the key's path, and continues there. An unfrozen slot proves that
 * the candidate was linked when it was read, so its contents are valid for this operation. */
static int process_candidates(far_task *t, far_index *index, dart_find *f) {
    int best = -1;
    for (unsigned i = 0; i < f->lookup.count; i++) {
        const dart_view *view = &f->candidates[i];
        bool right = f->lookup.starts[i].on_path;
        if (!right) {
            far_bytes prefix = {view->header->prefix, view->node.depth};
            right = dart_header_matches(view->header, &view->node) &&
                    dart_common_prefix(prefix, f->key) >= view->node.depth;
        }
        f->stale[i] = !right || !dart_any_unfrozen(view->slots, view->count);
        if (f->stale[i])
            far_count_stale(t);
        if (!f->stale[i] && (best < 0 || view->node.depth > f->candidates[best].node.depth))
            best = (int)i;
    }
    if (best < 0) {
        /* the next lookup round clears the candidates, so stale starts are dropped now */
        dart_est_drop_stale(t, index, f);
        f->stage = DART_STAGE_LOOKUP;
        return 0;
    }
    f->used_start = best;
    f->view = f->candidates[best];
    f->node = f->view.node;
    f->proven_depth = f->start_depth = f->node.depth;
    f->linearization_mark = f->batch_mark;
    return follow_bucket(t, index, f);
}


static int process_header(far_task *t, far_index *index, dart_find *f) {
    (void)t;
    if (!dart_header_matches(f->evidence, &f->header_node))
        return dart_fail_corrupt(index, "node", f->header_node.addr);
    far_bytes prefix = {f->evidence->prefix, f->header_node.depth};
    unsigned same = dart_common_prefix(prefix, f->key);
    if (same < f->header_node.depth)
        return finish_diverged(index, f, prefix, same);
    /* The prefix of header_node is a prefix of the key. So header_node is the node at which the descent ended. (It can
     * also be the child of that node, but only if the child is deeper than the key is long, and then the code above has
     * ended the descent.) */
    f->proven_depth = f->header_node.depth;
    return finish_descent(f, DART_ABSENT);
}


static int process_leaf(far_task *t, far_index *index, dart_find *f) {
    unsigned code = dart_word_len(f->leaf_word);
    uint64_t used = dart_leaf_used(f->leaf[0]);
    far_bytes key = {f->leaf + 1, dart_leaf_klen(f->leaf[0])};
    if (key.length > dart_of(index)->max_key || used > dart_leaf_bytes(code, f->leaf[0]) ||
        dart_leaf_vlen(f->leaf[0]) > FAR_VALUE_MAX)
        return dart_fail_corrupt(index, "leaf", dart_word_addr(f->leaf_word));
    if (code == DART_SIZE_CODE_LONG && f->stage == DART_STAGE_LEAF && f->seek == DART_SEEK_VALUE &&
        used > DART_CHUNK_READ) {
        uint64_t *whole = far_scratch(t, (used + 7) / 8 * 8);
        if (!whole)
            return fail_no_memory();
        memcpy(whole, f->leaf, DART_CHUNK_READ);
        f->leaf = whole;
        f->stage = DART_STAGE_LEAF_REST;
        return 0;
    }
    unsigned same = dart_common_prefix(key, f->key);
    if (same == key.length && same == f->key.length)
        return finish_descent(f, DART_FOUND);
    return finish_diverged(index, f, key, same);
}


/* Adds the READ of the leaf. With flag UNPROVEN the READ of the leaf must take effect after the READ of the slot in the
 * same batch. So this READ is not replaced by the READ of the same leaf that another descent added, because that READ
 * may be earlier in the batch. */
static int add_leaf_read(far_task *t, const far_index *index, dart_find *f, unsigned flags) {
    unsigned code = dart_word_len(f->leaf_word);
    uint64_t bytes = code == DART_SIZE_CODE_LONG ? DART_CHUNK_READ : dart_code_bytes(code);
    if (code == 0)
        return dart_fail_corrupt(index, "slot", f->path.steps[f->path.count - 1].slot);
    far_point(t, "dart:read_leaf");
    f->leaf = far_scratch(t, bytes);
    if (!f->leaf)
        return fail_no_memory();
    dart_add_shared_read(t, flags & FAR_VERB_UNPROVEN ? NULL : f->lookup.shared, dart_word_addr(f->leaf_word), f->leaf,
                         bytes, flags);
    return 0;
}


/* Adds the READ of the cached slot, and after it the READ of the leaf. */
static int add_cached_slot_reads(far_task *t, const far_index *index, dart_find *f) {
    dart_add_shared_read(t, f->lookup.shared, f->cached.slot, &f->slot_word, 8, 0);
    f->leaf_word = f->cached.word;
    return f->cached.leaf_with_slot
               ? add_leaf_read(t, index, f, f->cached.leaf_not_reused ? FAR_VERB_ANY_ORDER : FAR_VERB_UNPROVEN)
               : 0;
}


int dart_find_continue_at_slot(far_task *t, far_index *index, dart_find *f, uint64_t word) {
    f->linearization_mark = f->batch_mark;
    f->node = f->cached.node;
    f->start_depth = f->node.depth;
    f->proven_depth = f->cached.has_key ? f->node.depth : 0;
    int err = push_step(t, f, &f->node, f->cached.slot, word);
    return err < 0 ? err : follow_word(index, f, word);
}


/* Continues the descent at the cached slot. A frozen word in this slot proves nothing, because the node may have been
 * replaced long ago; then the descent starts again with the skip table. */
static int process_cached_slot(far_task *t, far_index *index, dart_find *f) {
    far_point(t, "dart:slot_read");
    if (dart_is_frozen(f->slot_word)) {
        dart_slot_cache_drop(index, f->key);
        f->lookup.stale_node = f->cached.node.addr;
        f->stage = DART_STAGE_LOOKUP;
        return 0;
    }
    int result = dart_find_continue_at_slot(t, index, f, f->slot_word);
    bool has_leaf = f->cached.leaf_with_slot && f->slot_word == f->cached.word;
    return result == 0 && has_leaf ? process_leaf(t, index, f) : result;
}


/* Begins the next round of the skip table lookup. The descent starts at the root if there is no skip table, or if no
 * round returned a usable start. */
static int start_lookup_round(far_task *t, far_index *index, dart_find *f) {
    int waits = 0;
    if (!dart_of(index)->est || f->from_root || (f->lookup.started && f->lookup.shorter_than == 0)) {
        start_at_root(index, f);
        return 0;
    }
    if ((waits = dart_est_lookup_add_reads(t, index, f->key, &f->lookup)) < 0)
        return waits;
    f->lookup.started = true;
    f->stage = waits ? DART_STAGE_LOOKUP_READS : f->lookup.count ? DART_STAGE_CANDIDATES : DART_STAGE_LOOKUP;
    return waits;
}


static int add_candidate_reads(far_task *t, far_index *index, dart_find *f) {
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < f->lookup.count; i++) {
        const dart_node *node = &f->lookup.starts[i].node;
        dart_view *view = &f->candidates[i];
        bool on_path = f->lookup.starts[i].on_path;
        if ((err = add_view_reads(t, index, node, f, !on_path, view)) >= 0 && !view->header && !on_path) {
            dart_header *header;
            err = add_header_read(t, f->lookup.shared, node, FAR_VERB_UNPROVEN, &header);
            view->header = header;
        }
    }
    return err;
}


int dart_find_add_reads(far_task *t, far_index *index, dart_find *f) {
    int err;
    while (f->stage == DART_STAGE_LOOKUP)
        if ((err = start_lookup_round(t, index, f)) != 0)
            return err < 0 ? err : 0;
    switch (f->stage) {
    case DART_STAGE_CACHED_SLOT:
        return add_cached_slot_reads(t, index, f);
    case DART_STAGE_CANDIDATES:
        return add_candidate_reads(t, index, f);
    case DART_STAGE_BUCKET:
        return add_view_reads(t, index, &f->node, f, f->seek == DART_SEEK_INSERT && f->proven_depth < f->node.depth,
                              &f->view);
    case DART_STAGE_HEADER:
        return add_header_read(t, f->lookup.shared, &f->header_node, 0, &f->evidence);
    case DART_STAGE_LEAF:
        return add_leaf_read(t, index, f, 0);
    case DART_STAGE_LEAF_REST:
        far_read(t, dart_word_addr(f->leaf_word) + DART_CHUNK_READ, (char *)f->leaf + DART_CHUNK_READ,
                 (dart_leaf_used(f->leaf[0]) - DART_CHUNK_READ + 7) / 8 * 8);
        return 0;
    default: /* LOOKUP_READS: the stage before has already added the READs. */
        return 0;
    }
}


static int process_lookup_reads(far_task *t, far_index *index, dart_find *f) {
    int again = dart_est_lookup_process_reads(t, index, f->key, &f->lookup);
    if (again == 0)
        f->stage = f->lookup.count ? DART_STAGE_CANDIDATES : DART_STAGE_LOOKUP;
    return again < 0 ? again : 0;
}


/* Stores the slot in which a get found its key in the slot cache, so that the next get of the key can start there. */
static void cache_leaf_slot(far_task *t, const far_index *index, const dart_find *f) {
    const dart_step *step = f->path.count ? &f->path.steps[f->path.count - 1] : NULL;
    if (f->outcome != DART_FOUND || dart_is_frozen(step->word) ||
        (f->cached.is_current && f->cached.word == step->word))
        return;
    dart_slot_cache_put(t, index, f->key, step, step->word);
}


int dart_find_process_reads(far_task *t, far_index *index, dart_find *f) {
    int result = 0;
    switch (f->stage) {
    case DART_STAGE_CACHED_SLOT:
        far_count_cache(t, !dart_is_frozen(f->slot_word));
        result = process_cached_slot(t, index, f);
        break;
    case DART_STAGE_LOOKUP_READS:
        result = process_lookup_reads(t, index, f);
        break;
    case DART_STAGE_CANDIDATES:
        result = process_candidates(t, index, f);
        break;
    case DART_STAGE_BUCKET:
        result = process_bucket(t, index, f);
        break;
    case DART_STAGE_HEADER:
        result = process_header(t, index, f);
        break;
    case DART_STAGE_LEAF:
    case DART_STAGE_LEAF_REST:
        result = process_leaf(t, index, f);
        break;
    default:
        result = 1;
    }
    if (result == 1 && f->lookup.started)
        dart_est_record_descent(t, index, f);
    if (result == 1 && f->seek == DART_SEEK_VALUE)
        cache_leaf_slot(t, index, f);
    return result;
}


int dart_find_run(far_task *t, far_index *index, dart_find *f) {
    int result = f->stage == DART_STAGE_DONE;
    while (result == 0) {
        if ((result = dart_find_add_reads(t, index, f)) < 0) {
            far_discard_batch(t);
            return result;
        }
        f->batch_mark = far_rdwc_mark(t);
        if ((result = far_wait(t)) >= 0)
            result = dart_find_process_reads(t, index, f);
    }
    return result < 0 ? result : 0;
}


int dart_find_resume(far_task *t, far_index *index, dart_find *f, unsigned at, uint64_t word) {
    dart_step *step = &f->path.steps[at];
    (void)t;
    f->path.count = at + 1;
    f->node = step->node;
    f->proven_depth = step->node.depth; /* the descent has proved that this node is on the key's path */
    f->linearization_mark = f->batch_mark;
    step->word = word;
    step->linearization_mark = f->linearization_mark;
    int result = follow_word(index, f, word);
    return result < 0 ? result : 0;
}


/* ---- get and multi-get ---- */

static int output_value(const dart_find *f, far_out *out) {
    if (f->outcome != DART_FOUND)
        return FAR_ERR_NOT_FOUND;
    unsigned klen = dart_leaf_klen(f->leaf[0]);
    return far_out_give(out, (const char *)(f->leaf + 1) + klen, dart_leaf_vlen(f->leaf[0]));
}


int dart_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    dart_find f;
    f.path = (dart_path){0};
    dart_find_init(&f, key, DART_SEEK_VALUE);
    dart_find_try_cached_slot(t, index, &f);
    int err = dart_find_run(t, index, &f);
    if (err < 0)
        return err;
    far_rdwc_done(t, f.linearization_mark);
    return output_value(&f, out);
}


/* The descents of a multi-get advance in lockstep. So the multi-get takes only the round trips of its longest descent,
 * and equal READs of one batch are sent only once. */
int dart_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]) {
    dart_find *finds = far_scratch(t, count * sizeof(*finds));
    dart_shared_reads shared;
    if (!finds || !dart_shared_reads_init(t, &shared, count))
        return fail_no_memory();
    for (size_t i = 0; i < count; i++) {
        finds[i].path = (dart_path){0};
        dart_find_init(&finds[i], keys[i], DART_SEEK_VALUE);
        finds[i].lookup.shared = &shared;
        dart_find_try_cached_slot(t, index, &finds[i]);
    }
    for (size_t running = count; running > 0;) {
        int err = 0;
        for (size_t i = 0; err >= 0 && i < count; i++)
            if (finds[i].stage != DART_STAGE_DONE)
                err = dart_find_add_reads(t, index, &finds[i]);
        if (err < 0) {
            far_discard_batch(t);
            return err;
        }
        if ((err = far_wait(t)) < 0)
            return err;
        dart_shared_reads_copy(&shared);
        for (size_t i = 0; i < count; i++) {
            if (finds[i].stage == DART_STAGE_DONE)
                continue;
            if ((err = dart_find_process_reads(t, index, &finds[i])) < 0)
                return err;
            if (err == 1) {
                results[i] = output_value(&finds[i], outs[i]);
                running--;
            }
        }
    }
    return 0;
}
