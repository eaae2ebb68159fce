/* LOCATE: the descent to a key. A step is a batch of READs; nothing negative is concluded before exact evidence (the
 * header of a node, or the key of a leaf) covers the path. */
#include "base/error.h"
#include "index/dart/slots.h"
#include "index/rdwc.h"

#include <string.h>

#define HEADER_WITH_BUCKET 32u  /* bytes: up to here a header is read with the only bucket, in one READ */
#define HEADER_TO_BUCKET   288u /* bytes: up to here one READ holds a header that is wanted and a later bucket */


int dart_corrupt(const far_index *index, const char *what, far_addr addr) {
    return far_fail(FAR_ERR_CORRUPT, "index '%s': the %s at %#llx is broken", index->name, what,
                    (unsigned long long)addr);
}


static int no_memory(void) {
    return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
}


/* ---- Starting ---- */

static void start_at_root(const far_index *index, dart_find *f) {
    f->to_root = true;
    f->used = -1;
    f->node = (dart_node){dart_of(index)->root, DART_N256, 0};
    f->known = f->start_depth = f->path.count = 0;
    f->stage = DART_STAGE_BUCKET;
}


void dart_find_init(dart_find *f, far_bytes key, dart_seek seek) {
    dart_path path = f->path;
    memset(f, 0, offsetof(dart_find, probe) + offsetof(dart_probe, starts));
    path.count = 0;
    f->path = path; /* its memory is used again by a retry */
    f->key = key;
    f->seek = seek;
    f->used = -1;
    f->stage = DART_STAGE_PROBE;
}


void dart_find_from_slot(far_task *t, const far_index *index, dart_find *f) {
    if (dart_slots_get(t, index, f->key, &f->kept))
        f->stage = DART_STAGE_SLOT;
}


/* The start was not above the key: shorter prefixes, then the root. */
static int restart(const far_index *index, dart_find *f) {
    if (f->used >= 0)
        f->stale[f->used] = true;
    f->path.count = f->known = 0;
    f->used = -1;
    if (f->to_root)
        return dart_corrupt(index, "tree below the root", dart_of(index)->root);
    f->stage = DART_STAGE_PROBE;
    return 0;
}


/* ---- Reading nodes ---- */

/* Puts the READs of the slots in which the symbol may stand. With the header when it comes for nothing, or when it is
 * wanted. */
static int put_view(far_task *t, const far_index *index, const dart_node *node, const dart_find *f, bool with_header,
                    dart_view *view) {
    const dart_index *dart = dart_of(index);
    unsigned header = dart_header_bytes(node->depth);
    bool one_bucket = dart_buckets(node->type, dart->bucket) == 1 && node->type != DART_N256;
    *view = (dart_view){.node = *node};
    dart_slot_range(dart, node->type, node->depth, dart_symbol(f->key, node->depth), &view->first, &view->count);
    if (node->type == DART_N256 &&
        f->seek == DART_SEEK_DELETE) { /* some neighbours tell whether the node has become empty */
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
        return no_memory();
    view->slots = (uint64_t *)(image + header) + (inlined ? view->first : 0);
    /* A candidate of another length, with the same fingerprint, has another depth than it seems: the READ may go beyond
     * the node. */
    unsigned flags = f->stage == DART_STAGE_CANDIDATES && header > 8 ? FAR_VERB_UNPROVEN : 0;
    if (inlined) {
        dart_share_read(t, f->probe.shared, node->addr, image, end, flags);
        view->header = (const dart_header *)image;
        return 0;
    }
    dart_share_read(t, f->probe.shared, dart_slot_addr(node, view->first), view->slots, 8ull * view->count, flags);
    if (with_header && dart->header_inline) {
        dart_share_read(t, f->probe.shared, node->addr, image, header, flags);
        view->header = (const dart_header *)image;
    }
    return 0;
}


static int put_header(far_task *t, dart_shared *shared, const dart_node *node, unsigned flags, dart_header **header) {
    *header = far_scratch(t, dart_header_bytes(node->depth));
    if (!*header)
        return no_memory();
    dart_share_read(t, shared, node->addr, *header, dart_header_bytes(node->depth), flags);
    return 0;
}


int dart_read_header(far_task *t, far_index *index, const dart_node *node, dart_header **header) {
    if (!(*header = far_scratch(t, dart_header_bytes(node->depth))))
        return no_memory();
    int err = far_read_now(t, node->addr, *header, dart_header_bytes(node->depth), 0);
    if (err < 0)
        return err;
    return dart_header_is(*header, node) ? 0 : dart_corrupt(index, "node", node->addr);
}


int dart_is_live(far_task *t, far_index *index, const dart_node *node) {
    (void)index;
    uint64_t word;
    int err = far_read_word(t, dart_slot_addr(node, 0), &word);
    return err < 0 ? err : !dart_is_frozen(word);
}


/* ---- Steps ---- */

static int push_step(far_task *t, dart_find *f, const dart_node *node, far_addr slot, uint64_t word) {
    dart_path *path = &f->path;
    if (path->count == path->size) {
        unsigned size = path->size ? 2 * path->size : 16;
        dart_step *steps = far_scratch(t, size * sizeof(*steps));
        if (!steps)
            return no_memory();
        if (path->count)
            memcpy(steps, path->steps, path->count * sizeof(*steps));
        path->steps = steps;
        path->size = size;
    }
    path->steps[path->count++] = (dart_step){*node, slot, word, f->claim};
    return 0;
}


static int done(dart_find *f, dart_outcome outcome) {
    f->outcome = outcome;
    f->stage = DART_STAGE_DONE;
    if (f->path.count)
        f->claim = f->path.steps[outcome == DART_DIVERGED ? f->at : f->path.count - 1].claim;
    return 1;
}


/* `other` is a key or prefix below the slot that was followed last, and parts from the key at `split`. The deepest node
 * above that is on the key's path. */
static int diverged(const far_index *index, dart_find *f, far_bytes other, unsigned split) {
    if (split < f->start_depth)
        return restart(index, f);
    unsigned at = f->path.count;
    while (at > 0 && f->path.steps[at - 1].node.depth > split)
        at--;
    if (at == 0 || split == f->path.steps[at - 1].node.depth)
        return dart_corrupt(index, "subtree", f->node.addr);
    f->at = at - 1;
    f->split = split;
    f->other = other;
    return done(f, DART_DIVERGED);
}


/* A word with the key's symbol was found in the last node of the path. */
static int follow_word(const far_index *index, dart_find *f, uint64_t word) {
    const dart_step *step = &f->path.steps[f->path.count - 1];
    if (!dart_is_child(word)) {
        if (f->known >= step->node.depth)
            return done(f, DART_ABSENT);
        f->asked = step->node;
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
        return dart_corrupt(index, "slot", step->slot);
    if (child.depth > f->key.length) { /* the key ends above it */
        f->at = f->path.count - 1;
        if (f->seek != DART_SEEK_PLACE && f->known >= step->node.depth)
            return done(f, DART_DIVERGED);
        f->asked = child;
        f->stage = DART_STAGE_HEADER;
        return 0;
    }
    if (f->known >= step->node.depth && child.depth == step->node.depth + 1)
        f->known = child.depth;
    f->node = child;
    f->stage = DART_STAGE_BUCKET;
    return 0;
}


/* The bucket of the current node is there. */
static int follow(far_task *t, far_index *index, dart_find *f) {
    dart_view *view = &f->view;
    int found = dart_view_search(dart_of(index), view, dart_symbol(f->key, f->node.depth));
    uint64_t word = found < 0 ? 0 : view->slots[found];
    int err = push_step(t, f, &f->node, found < 0 ? 0 : dart_slot_addr(&f->node, view->first + (unsigned)found), word);
    return err < 0 ? err : follow_word(index, f, word);
}


static int take_bucket(far_task *t, far_index *index, dart_find *f) {
    dart_view *view = &f->view;
    far_point(t, "dart:bucket");
    if (dart_any_unfrozen(view->slots, view->count)) /* linked now; else it was when the word above was read */
        f->claim = f->mark;
    if (view->header) {
        if (!dart_header_is(view->header, &f->node))
            return dart_corrupt(index, "node", f->node.addr);
        far_bytes prefix = {view->header->prefix, f->node.depth};
        unsigned same = dart_lcp(prefix, f->key);
        if (same < f->node.depth)
            return diverged(index, f, prefix, same);
        f->known = f->node.depth;
    }
    return follow(t, index, f);
}


/* The deepest candidate that is alive and on the key's path. Its contents count from now on: an unfrozen slot proves
 * that it was linked while this READ was under way. */
static int take_candidates(far_task *t, far_index *index, dart_find *f) {
    int best = -1;
    for (unsigned i = 0; i < f->probe.count; i++) {
        const dart_view *view = &f->candidates[i];
        bool right = f->probe.starts[i].on_path;
        if (!right) {
            far_bytes prefix = {view->header->prefix, view->node.depth};
            right = dart_header_is(view->header, &view->node) && dart_lcp(prefix, f->key) >= view->node.depth;
        }
        f->stale[i] = !right || !dart_any_unfrozen(view->slots, view->count);
        if (f->stale[i])
            far_count_stale(t);
        if (!f->stale[i] && (best < 0 || view->node.depth > f->candidates[best].node.depth))
            best = (int)i;
    }
    if (best < 0) {
        dart_est_drop_stale(t, index, f); /* the next question forgets them */
        f->stage = DART_STAGE_PROBE;
        return 0;
    }
    f->used = best;
    f->view = f->candidates[best];
    f->node = f->view.node;
    f->known = f->start_depth = f->node.depth;
    f->claim = f->mark;
    return follow(t, index, f);
}


static int take_header(far_task *t, far_index *index, dart_find *f) {
    (void)t;
    if (!dart_header_is(f->evidence, &f->asked))
        return dart_corrupt(index, "node", f->asked.addr);
    far_bytes prefix = {f->evidence->prefix, f->asked.depth};
    unsigned same = dart_lcp(prefix, f->key);
    if (same < f->asked.depth)
        return diverged(index, f, prefix, same);
    f->known =
        f->asked.depth; /* that of the node where the descent ended: a child beyond the end of the key cannot match */
    return done(f, DART_ABSENT);
}


static int take_leaf(far_task *t, far_index *index, dart_find *f) {
    unsigned code = dart_word_len(f->leaf_word);
    uint64_t used = dart_leaf_used(f->leaf[0]);
    far_bytes key = {f->leaf + 1, dart_leaf_klen(f->leaf[0])};
    if (key.length > dart_of(index)->max_key || used > dart_leaf_bytes(code, f->leaf[0]) ||
        dart_leaf_vlen(f->leaf[0]) > FAR_VALUE_MAX)
        return dart_corrupt(index, "leaf", dart_word_addr(f->leaf_word));
    if (code == DART_SIZE_CODE_LONG && f->stage == DART_STAGE_LEAF && f->seek == DART_SEEK_VALUE &&
        used > DART_CHUNK_READ) {
        uint64_t *whole = far_scratch(t, (used + 7) / 8 * 8);
        if (!whole)
            return no_memory();
        memcpy(whole, f->leaf, DART_CHUNK_READ);
        f->leaf = whole;
        f->stage = DART_STAGE_LEAF_REST;
        return 0;
    }
    unsigned same = dart_lcp(key, f->key);
    if (same == key.length && same == f->key.length)
        return done(f, DART_FOUND);
    return diverged(index, f, key, same);
}


/* flags UNPROVEN: it must come after the slot, as another's READ of it might not. */
static int put_leaf(far_task *t, const far_index *index, dart_find *f, unsigned flags) {
    unsigned code = dart_word_len(f->leaf_word);
    uint64_t bytes = code == DART_SIZE_CODE_LONG ? DART_CHUNK_READ : dart_code_bytes(code);
    if (code == 0)
        return dart_corrupt(index, "slot", f->path.steps[f->path.count - 1].slot);
    far_point(t, "dart:leaf");
    f->leaf = far_scratch(t, bytes);
    if (!f->leaf)
        return no_memory();
    dart_share_read(t, flags & FAR_VERB_UNPROVEN ? NULL : f->probe.shared, dart_word_addr(f->leaf_word), f->leaf, bytes,
                    flags);
    return 0;
}


/* The slot that was kept, and its leaf behind it. */
static int put_slot(far_task *t, const far_index *index, dart_find *f) {
    dart_share_read(t, f->probe.shared, f->kept.slot, &f->slot_word, 8, 0);
    f->leaf_word = f->kept.word;
    return f->kept.leaf_with_slot ? put_leaf(t, index, f, f->kept.young ? FAR_VERB_ANY_ORDER : FAR_VERB_UNPROVEN) : 0;
}


int dart_find_at_slot(far_task *t, far_index *index, dart_find *f, uint64_t word) {
    f->claim = f->mark;
    f->node = f->kept.node;
    f->start_depth = f->node.depth;
    f->known = f->kept.exact ? f->node.depth : 0;
    int err = push_step(t, f, &f->node, f->kept.slot, word);
    return err < 0 ? err : follow_word(index, f, word);
}


/* A frozen slot proves nothing: the node may have been replaced long ago. */
static int take_slot(far_task *t, far_index *index, dart_find *f) {
    far_point(t, "dart:slot");
    if (dart_is_frozen(f->slot_word)) {
        dart_slots_drop(index, f->key);
        f->probe.dead = f->kept.node.addr;
        f->stage = DART_STAGE_PROBE;
        return 0;
    }
    int result = dart_find_at_slot(t, index, f, f->slot_word);
    bool has_leaf = f->kept.leaf_with_slot && f->slot_word == f->kept.word;
    return result == 0 && has_leaf ? take_leaf(t, index, f) : result;
}


/* The question to the skip table, or the root when there is none or it was no help. */
static int put_probe(far_task *t, far_index *index, dart_find *f) {
    int waits = 0;
    if (!dart_of(index)->est || f->to_root || (f->probe.asked && f->probe.below == 0)) {
        start_at_root(index, f);
        return 0;
    }
    if ((waits = dart_est_ask(t, index, f->key, &f->probe)) < 0)
        return waits;
    f->probe.asked = true;
    f->stage = waits ? DART_STAGE_ANSWER : f->probe.count ? DART_STAGE_CANDIDATES : DART_STAGE_PROBE;
    return waits;
}


static int put_candidates(far_task *t, far_index *index, dart_find *f) {
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < f->probe.count; i++) {
        const dart_node *node = &f->probe.starts[i].node;
        dart_view *view = &f->candidates[i];
        bool on_path = f->probe.starts[i].on_path;
        if ((err = put_view(t, index, node, f, !on_path, view)) >= 0 && !view->header && !on_path) {
            dart_header *header;
            err = put_header(t, f->probe.shared, node, FAR_VERB_UNPROVEN, &header);
            view->header = header;
        }
    }
    return err;
}


int dart_find_put(far_task *t, far_index *index, dart_find *f) {
    int err;
    while (f->stage == DART_STAGE_PROBE)
        if ((err = put_probe(t, index, f)) != 0)
            return err < 0 ? err : 0;
    switch (f->stage) {
    case DART_STAGE_SLOT:
        return put_slot(t, index, f);
    case DART_STAGE_CANDIDATES:
        return put_candidates(t, index, f);
    case DART_STAGE_BUCKET:
        return put_view(t, index, &f->node, f, f->seek == DART_SEEK_PLACE && f->known < f->node.depth, &f->view);
    case DART_STAGE_HEADER:
        return put_header(t, f->probe.shared, &f->asked, 0, &f->evidence);
    case DART_STAGE_LEAF:
        return put_leaf(t, index, f, 0);
    case DART_STAGE_LEAF_REST:
        far_read(t, dart_word_addr(f->leaf_word) + DART_CHUNK_READ, (char *)f->leaf + DART_CHUNK_READ,
                 (dart_leaf_used(f->leaf[0]) - DART_CHUNK_READ + 7) / 8 * 8);
        return 0;
    default: /* ANSWER: its READs are put already */
        return 0;
    }
}


static int take_answer(far_task *t, far_index *index, dart_find *f) {
    int again = dart_est_answer(t, index, f->key, &f->probe);
    if (again == 0)
        f->stage = f->probe.count ? DART_STAGE_CANDIDATES : DART_STAGE_PROBE;
    return again < 0 ? again : 0;
}


/* A get found its key: the next one may begin where it was. */
static void keep_slot(far_task *t, const far_index *index, const dart_find *f) {
    const dart_step *step = f->path.count ? &f->path.steps[f->path.count - 1] : NULL;
    if (f->outcome != DART_FOUND || dart_is_frozen(step->word) || (f->kept.current && f->kept.word == step->word))
        return;
    dart_slots_put(t, index, f->key, step, step->word);
}


int dart_find_take(far_task *t, far_index *index, dart_find *f) {
    int result = 0;
    switch (f->stage) {
    case DART_STAGE_SLOT:
        far_count_cache(t, !dart_is_frozen(f->slot_word));
        result = take_slot(t, index, f);
        break;
    case DART_STAGE_ANSWER:
        result = take_answer(t, index, f);
        break;
    case DART_STAGE_CANDIDATES:
        result = take_candidates(t, index, f);
        break;
    case DART_STAGE_BUCKET:
        result = take_bucket(t, index, f);
        break;
    case DART_STAGE_HEADER:
        result = take_header(t, index, f);
        break;
    case DART_STAGE_LEAF:
    case DART_STAGE_LEAF_REST:
        result = take_leaf(t, index, f);
        break;
    default:
        result = 1;
    }
    if (result == 1 && f->probe.asked)
        dart_est_repair(t, index, f);
    if (result == 1 && f->seek == DART_SEEK_VALUE)
        keep_slot(t, index, f);
    return result;
}


int dart_find_run(far_task *t, far_index *index, dart_find *f) {
    int result = f->stage == DART_STAGE_DONE;
    while (result == 0) {
        if ((result = dart_find_put(t, index, f)) < 0) {
            far_forget(t);
            return result;
        }
        f->mark = far_rdwc_mark(t);
        if ((result = far_wait(t)) >= 0)
            result = dart_find_take(t, index, f);
    }
    return result < 0 ? result : 0;
}


int dart_find_resume(far_task *t, far_index *index, dart_find *f, unsigned at, uint64_t word) {
    dart_step *step = &f->path.steps[at];
    (void)t;
    f->path.count = at + 1;
    f->node = step->node;
    f->known = step->node.depth; /* the node is on the key's path: that was the outcome */
    f->claim = f->mark;
    step->word = word;
    step->claim = f->claim;
    int result = follow_word(index, f, word);
    return result < 0 ? result : 0;
}


/* ---- get ---- */

static int give(const dart_find *f, far_out *out) {
    if (f->outcome != DART_FOUND)
        return FAR_ERR_NOT_FOUND;
    unsigned klen = dart_leaf_klen(f->leaf[0]);
    return far_out_give(out, (const char *)(f->leaf + 1) + klen, dart_leaf_vlen(f->leaf[0]));
}


int dart_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    dart_find f;
    f.path = (dart_path){0};
    dart_find_init(&f, key, DART_SEEK_VALUE);
    dart_find_from_slot(t, index, &f);
    int err = dart_find_run(t, index, &f);
    if (err < 0)
        return err;
    far_rdwc_done(t, f.claim);
    return give(&f, out);
}


/* In lockstep: as many round trips as the longest of them, and of equal READs one. */
int dart_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]) {
    dart_find *finds = far_scratch(t, count * sizeof(*finds));
    dart_shared shared;
    if (!finds || !dart_share_init(t, &shared, count))
        return no_memory();
    for (size_t i = 0; i < count; i++) {
        finds[i].path = (dart_path){0};
        dart_find_init(&finds[i], keys[i], DART_SEEK_VALUE);
        finds[i].probe.shared = &shared;
        dart_find_from_slot(t, index, &finds[i]);
    }
    for (size_t running = count; running > 0;) {
        int err = 0;
        for (size_t i = 0; err >= 0 && i < count; i++)
            if (finds[i].stage != DART_STAGE_DONE)
                err = dart_find_put(t, index, &finds[i]);
        if (err < 0) {
            far_forget(t);
            return err;
        }
        if ((err = far_wait(t)) < 0)
            return err;
        dart_share_end(&shared);
        for (size_t i = 0; i < count; i++) {
            if (finds[i].stage == DART_STAGE_DONE)
                continue;
            if ((err = dart_find_take(t, index, &finds[i])) < 0)
                return err;
            if (err == 1) {
                results[i] = give(&finds[i], outs[i]);
                running--;
            }
        }
    }
    return 0;
}
