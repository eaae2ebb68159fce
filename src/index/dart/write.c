/* The operations insert, update and put. The new leaf is written in the same batch as the first READ of the descent,
 * when no slot names the leaf yet. One CAS of a slot publishes the leaf. The entry point for other files is dart_put;
 * remove.c uses the loop dart_write_run. */
#include "index/dart/write.h"
#include "base/error.h"
#include "index/common/rdwc.h"
#include "index/dart/cache_slots.h"
#include "pool/epoch/epoch.h"

#include <string.h>


/* ---- The new leaf ---- */

static int make_leaf(far_task *t, far_index *index, dart_write *w, unsigned near) {
    uint64_t header = dart_leaf_header(w->key.length, w->value.length), used = dart_leaf_used(header);
    uint64_t least = used < dart_of(index)->leaf_min ? dart_of(index)->leaf_min : used;
    far_object object;
    w->code = dart_size_code(least);
    w->leaf_bytes = dart_leaf_bytes(w->code, header);
    char *image = far_scratch(t, w->leaf_bytes);
    if (!image)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for an operation");
    memcpy(image, &header, sizeof(header));
    memcpy(image + DART_LEAF_HEADER, w->key.data, w->key.length);
    if (w->value.length)
        memcpy(image + DART_LEAF_HEADER + w->key.length, w->value.data, w->value.length);
    memset(image + used, 0, w->leaf_bytes - used);
    int err = far_alloc(t, index, DART_TYPE_LEAF, w->leaf_bytes, near, 0, &object);
    if (err < 0)
        return err;
    w->leaf = object.addr;
    far_write(t, w->leaf, image, (used + 7) / 8 * 8);
    return 0;
}


static uint64_t word_of_leaf(const dart_write *w, unsigned depth) {
    return dart_leaf_word(dart_symbol(w->key, depth), w->code, w->leaf);
}


/* ---- Continuing after a CAS that lost, or a frozen slot ---- */

int dart_write_replace_node(far_task *t, far_index *index, dart_write *w, unsigned at, bool freeze_started,
                            dart_piggyback piggyback) {
    dart_find *f = &w->find;
    const dart_step *step = &f->path.steps[at];
    dart_replace r = {.node = step->node,
                      .prefix = {w->key.data, step->node.depth},
                      .piggyback = piggyback,
                      .lost_slots = w->lost_slots,
                      .freeze_started = freeze_started};
    w->lost_slots = 0;
    if (at > 0) {
        r.has_parent = true;
        r.parent = f->path.steps[at - 1];
    }
    if (f->view.node.addr == step->node.addr) {
        r.view = &f->view;
        for (unsigned i = 0; i < f->view.count; i++)
            r.freeze_started |= dart_is_frozen(f->view.slots[i]);
    }
    if (at == 0 && f->used_start >= 0)
        r.known_entry = &f->lookup.starts[f->used_start];
    far_point(t, "dart:replace");
    int err = dart_replace_node(t, index, &r);
    if (err < 0)
        return err;
    if (r.piggyback_done) {
        f->batch_mark = r.batch_mark;
        return DART_WRITE_DONE;
    }
    return DART_WRITE_RESTART;
}


int dart_write_resume(far_task *t, far_index *index, dart_write *w, unsigned at, uint64_t word) {
    far_count_retry(t);
    int err = dart_find_resume(t, index, &w->find, at, word);
    return err < 0 ? err : DART_WRITE_RESUME;
}


int dart_write_cas(far_task *t, dart_write *w, far_addr slot, uint64_t expected, uint64_t desired, uint64_t *seen) {
    far_point(t, "dart:publish");
    far_cas(t, slot, expected, desired, seen);
    w->find.batch_mark = far_rdwc_mark(t);
    return far_wait(t);
}


/* ---- The key exists ---- */

static int change_leaf(far_task *t, far_index *index, dart_write *w) {
    dart_find *f = &w->find;
    unsigned at = f->path.count - 1;
    const dart_step *step = &f->path.steps[at];
    uint64_t seen, word = word_of_leaf(w, step->node.depth);
    dart_piggyback piggyback = {DART_PIGGYBACK_UPDATE, dart_word_symbol(word), dart_thawed(step->word), word};
    if (w->how == FAR_OP_INSERT)
        return FAR_ERR_EXISTS;
    w->old = dart_word_addr(step->word);
    w->old_bytes = dart_leaf_bytes(dart_word_len(step->word), f->leaf[0]);
    if (dart_is_frozen(step->word))
        return dart_write_replace_node(t, index, w, at, true, piggyback);
    int err = dart_write_cas(t, w, step->slot, step->word, word, &seen);
    if (err < 0)
        return err;
    if (seen == step->word) {
        dart_slot_cache_put(t, index, w->key, step, word);
        return DART_WRITE_DONE;
    }
    if (dart_is_frozen(seen)) {
        /* the view of the node was read before this frozen word was seen, so the view must not be used */
        f->view.node.addr = 0;
        return dart_write_replace_node(t, index, w, at, true, piggyback);
    }
    w->old = 0;
    if (dart_of(index)->absorb && !dart_is_inner(seen)) {
        /* Another write superseded the old leaf after this operation had read that leaf. So this write linearizes
         * immediately before the other write, although the leaf of this write is never linked. */
        f->batch_mark = f->linearization_mark;
        return DART_WRITE_SUPERSEDED;
    }
    return dart_write_resume(t, index, w, at, seen);
}


/* Replaces the leaf without a READ, because the slot cache has the slot and the word of the old leaf. The CAS is in one
 * batch with the WRITE of the new leaf. Slot and new leaf are on the same memory node, so the leaf is written before
 * the CAS publishes it.
 *
 * If the CAS loses, it returns the word that the slot contains. That word may have been there before this operation
 * began. Therefore a different leaf in the slot does not count as a write that superseded this write, and a frozen word
 * does not prove that the node is still linked. */
static int change_leaf_by_cache(far_task *t, far_index *index, dart_write *w) {
    dart_find *f = &w->find;
    const dart_cached_slot *cached = &f->cached;
    dart_step step = {.node = cached->node, .slot = cached->slot, .word = cached->word};
    uint64_t seen, word = word_of_leaf(w, cached->node.depth);
    if (f->stage != DART_STAGE_CACHED_SLOT || !cached->has_key || !cached->leaf_not_reused ||
        far_addr_node(w->leaf) != far_addr_node(cached->slot))
        return DART_WRITE_RESUME;
    int err = dart_write_cas(t, w, cached->slot, cached->word, word, &seen);
    if (err < 0)
        return err;
    far_count_cache(t, seen == cached->word);
    if (seen == cached->word) {
        dart_slot_cache_put(t, index, w->key, &step, word);
        w->old = dart_word_addr(cached->word);
        w->old_bytes = dart_code_bytes(dart_word_len(cached->word));
        far_rdwc_done(t, f->batch_mark);
        return DART_WRITE_DONE;
    }
    far_count_retry(t);
    f->stage = DART_STAGE_LOOKUP;
    if (dart_is_frozen(seen)) {
        dart_slot_cache_drop(index, w->key);
        f->lookup.stale_node = cached->node.addr;
        return DART_WRITE_RESUME;
    }
    err = dart_find_continue_at_slot(t, index, f, seen);
    return err < 0 ? err : DART_WRITE_RESUME;
}


/* ---- The key is absent ---- */

/* Inserts the leaf into the last node of the path: into the TOMB of its symbol, or into the lowest EMPTY slot of the
 * bucket. If a CAS loses, the word that won is examined before the next slot is tried, because this word may belong to
 * the same symbol (rule W of README.md). */
static int add_leaf(far_task *t, far_index *index, dart_write *w) {
    dart_find *f = &w->find;
    unsigned at = f->path.count - 1;
    dart_step *step = &f->path.steps[at];
    uint64_t word = word_of_leaf(w, step->node.depth), seen;
    dart_piggyback piggyback = {DART_PIGGYBACK_INSERT, dart_word_symbol(word), 0, word};
    for (;;) {
        bool contended = w->lost_slots >= DART_CONTENDED_SLOTS && step->node.type < DART_N256;
        if (step->slot == 0 || dart_is_frozen(step->word) || contended)
            return dart_write_replace_node(t, index, w, at, dart_is_frozen(step->word), piggyback);
        int err = dart_write_cas(t, w, step->slot, step->word, word, &seen);
        if (err < 0)
            return err;
        if (seen == step->word)
            return DART_WRITE_DONE;
        if (dart_is_frozen(seen)) {
            f->view.node.addr = 0;
            return dart_write_replace_node(t, index, w, at, true, piggyback);
        }
        if (!dart_is_empty(seen) && dart_word_symbol(seen) == piggyback.symbol)
            return dart_write_resume(t, index, w, at, seen);
        w->lost_slots++;
        if (f->view.node.addr != step->node.addr || dart_is_empty(seen))
            return DART_WRITE_RESTART;
        far_count_retry(t);
        f->view.slots[(step->slot - dart_slot_addr(&step->node, f->view.first)) / 8] = seen;
        int next = dart_view_search(dart_of(index), &f->view, piggyback.symbol);
        step->slot = next < 0 ? 0 : dart_slot_addr(&step->node, f->view.first + (unsigned)next);
        step->word = next < 0 ? 0 : f->view.slots[next];
    }
}


typedef struct made_node {
    far_addr addr;
    unsigned depth;
} made_node;


static void free_nodes(far_task *t, far_index *index, const made_node *nodes, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        far_free(t, index, DART_TYPE_NODE, nodes[i].addr,
                 dart_node_bytes(DART_N4, nodes[i].depth, dart_of(index)->bucket));
}


/* Allocates an N4 at this depth of the key's path and adds its WRITE to the batch. */
static int add_node_write(far_task *t, far_index *index, const dart_write *w, unsigned depth, const dart_step *above,
                          const dart_children *children, made_node *node) {
    const dart_index *dart = dart_of(index);
    uint64_t bytes = dart_node_bytes(DART_N4, depth, dart->bucket);
    void *image = far_scratch(t, bytes);
    far_object object;
    if (!image)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for an operation");
    unsigned where = dart_choose_memory_node(dart, far_task_nodes(t), (far_bytes){w->key.data, depth},
                                             above->node.depth, far_addr_node(above->slot));
    int err = far_alloc(t, index, DART_TYPE_NODE, bytes, where, 0, &object);
    if (err < 0)
        return err;
    *node = (made_node){object.addr, depth};
    dart_build_node(dart, DART_N4, (far_bytes){w->key.data, depth}, children, image);
    far_write(t, object.addr, image, bytes);
    return 0;
}


/* Allocates the N4 of a split, and above it nodes with one child wherever a skip would be too long for a slot, and adds
 * the WRITEs of these nodes to the batch. nodes[0] is the topmost node. Returns the number of nodes; or an error, after
 * which no node is allocated. */
static int add_split_writes(far_task *t, far_index *index, const dart_write *w, const dart_step *step,
                            made_node *nodes) {
    const dart_index *dart = dart_of(index);
    const dart_find *f = &w->find;
    unsigned links = (f->diverged_depth - step->node.depth - 1) / (dart->max_skip + 1), made = 0;
    dart_children *children = far_scratch(t, sizeof(*children));
    if (!children)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for an operation");
    /* depth of the child in this slot, if the child is an inner node */
    unsigned below = step->node.depth + 1 + dart_word_len(step->word);
    children->count = 2;
    children->words[0] =
        dart_word_moved(step->word, dart_symbol(f->diverged_key, f->diverged_depth), below - f->diverged_depth - 1);
    children->words[1] = word_of_leaf(w, f->diverged_depth);
    unsigned depth = f->diverged_depth;
    int err = add_node_write(t, index, w, depth, step, children, &nodes[links]);
    for (made = 1; err >= 0 && made <= links; made++) {
        unsigned above = step->node.depth + (links - made + 1) * (dart->max_skip + 1);
        children->count = 1;
        children->words[0] =
            dart_word(dart_symbol(w->key, above), depth - above - 1, DART_N4, nodes[links - made + 1].addr);
        depth = above;
        err = add_node_write(t, index, w, depth, step, children, &nodes[links - made]);
    }
    if (err < 0) {
        far_discard_batch(t);
        free_nodes(t, index, nodes + links + 2 - made, made - 1);
        return err;
    }
    return (int)links + 1;
}


/* Inserts the key where it diverges inside the child of a slot: links a new N4, which contains that child and the new
 * leaf, into the slot. Returns DART_WRITE_DONE if the key was inserted, DART_WRITE_RESUME or DART_WRITE_RESTART if the
 * search must continue, or an error. */
static int split_slot(far_task *t, far_index *index, dart_write *w) {
    dart_find *f = &w->find;
    unsigned at = f->diverged_step;
    const dart_step *step = &f->path.steps[at];
    if (dart_is_frozen(step->word))
        return dart_write_replace_node(t, index, w, at, true, (dart_piggyback){0});
    made_node *nodes = far_scratch(
        t, ((f->diverged_depth - step->node.depth - 1) / (dart_of(index)->max_skip + 1) + 1) * sizeof(*nodes));
    if (!nodes)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for an operation");
    int made = add_split_writes(t, index, w, step, nodes), err;
    if (made < 0)
        return made;
    bool ordered = dart_of(index)->colocate;
    for (int i = 0; i < made; i++)
        ordered &= far_addr_node(nodes[i].addr) == far_addr_node(step->slot);
    if (!ordered && (err = far_wait(t)) < 0)
        return err;
    uint64_t seen,
        word = dart_word(dart_word_symbol(step->word), nodes[0].depth - step->node.depth - 1, DART_N4, nodes[0].addr);
    if ((err = dart_write_cas(t, w, step->slot, step->word, word, &seen)) < 0)
        return err;
    if (seen == step->word) {
        far_point(t, "dart:split");
        unsigned parent = step->node.depth;
        for (int i = 0; dart_of(index)->est && i < made; i++) {
            dart_node node = {nodes[i].addr, DART_N4, nodes[i].depth};
            dart_est_register(t, index, &node, parent, (far_bytes){w->key.data, node.depth},
                              dart_est_saved_round_trips(f, at + 1) >= DART_WORTH_REGISTERING, NULL);
            parent = node.depth;
        }
        return DART_WRITE_DONE;
    }
    free_nodes(t, index, nodes, (unsigned)made);
    if (dart_is_frozen(seen)) {
        f->view.node.addr = 0;
        return dart_write_replace_node(t, index, w, at, true, (dart_piggyback){0});
    }
    return dart_write_resume(t, index, w, at, seen);
}


/* ---- The loop of all writes ---- */

#define ATTEMPTS_PER_PIN 16 /* After this many attempts the operation renews its pin. */


/* Renews the pin after many failed attempts, so that this operation does not hold back the reclamation of memory while
 * other clients make progress. The new leaf was allocated under the old pin, so the leaf is allocated and written
 * again. Nothing that was read under the old pin may be used. */
static int renew_pin(far_task *t, far_index *index, dart_write *w) {
    unsigned near = w->leaf ? far_addr_node(w->leaf) : 0;
    bool writes = w->leaf != 0;
    if (writes)
        far_free(t, index, DART_TYPE_LEAF, w->leaf, w->leaf_bytes);
    w->leaf = 0;
    far_pin_drop(t);
    int err = far_pin_take(t);
    return err < 0 || !writes ? err : make_leaf(t, index, w, near);
}


static int apply_put(far_task *t, far_index *index, dart_write *w) {
    if (w->find.outcome == DART_FOUND)
        return change_leaf(t, index, w);
    if (w->how == FAR_OP_UPDATE)
        return FAR_ERR_NOT_FOUND;
    return w->find.outcome == DART_ABSENT ? add_leaf(t, index, w) : split_slot(t, index, w);
}


int dart_write_run(far_task *t, far_index *index, dart_write *w,
                   int (*apply_one)(far_task *t, far_index *index, dart_write *w)) {
    far_scratch_mark mark = far_scratch_here(t);
    for (unsigned attempt = 0, resumed = 0;;) {
        int result = dart_find_run(t, index, &w->find);
        w->old = 0;
        if (result >= 0)
            result = dart_write_apply_locked(t, index, w, apply_one);
        if (result == FAR_ERR_EXISTS || result == FAR_ERR_NOT_FOUND)
            far_rdwc_done(t, w->find.linearization_mark);
        if (result < 0)
            return result;
        if (result == DART_WRITE_DONE || result == DART_WRITE_SUPERSEDED) {
            far_rdwc_done(t, w->find.batch_mark);
            return result;
        }
        if (result == DART_WRITE_RESUME && ++resumed % ATTEMPTS_PER_PIN == 0)
            /* Each resumed descent allocates more scratch memory; a restart releases this memory. */
            result = DART_WRITE_RESTART;
        if (result == DART_WRITE_RESTART) {
            far_count_retry(t);
            if (attempt++ > 0)
                far_back_off(t, attempt - 1);
            /* releases the memory of the last attempt, because no pending verb uses this memory */
            far_scratch_back(t, mark);
            if (attempt % ATTEMPTS_PER_PIN == 0 && (result = renew_pin(t, index, w)) < 0)
                return result;
            w->find.path = (dart_path){0};
            dart_find_init(&w->find, w->key, w->find.seek);
        }
    }
}


int dart_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    dart_write w;
    dart_write_init(&w, how, key, value);
    far_rdwc_seal(t, &w.value);
    dart_find_init(&w.find, key, how == FAR_OP_UPDATE ? DART_SEEK_UPDATE : DART_SEEK_INSERT);
    if (how != FAR_OP_INSERT)
        dart_find_try_cached_slot(t, index, &w.find);
    bool from_cache = w.find.stage == DART_STAGE_CACHED_SLOT;
    int result = make_leaf(t, index, &w, from_cache ? far_addr_node(w.find.cached.slot) : FAR_NODE_ANY);
    if (result < 0)
        return result;
    result = change_leaf_by_cache(t, index, &w);
    if (result == DART_WRITE_RESUME)
        result = dart_write_run(t, index, &w, apply_put);
    if (result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE)
        return result;
    if (result != DART_WRITE_DONE) {
        /* If the leaf's WRITE was not posted with the first READ, it is still in the batch and is discarded here. */
        far_discard_batch(t);
        if (w.leaf)
            far_free(t, index, DART_TYPE_LEAF, w.leaf, w.leaf_bytes);
    } else if (w.old) {
        far_retire(t, index, DART_TYPE_LEAF, w.old, w.old_bytes);
    }
    far_note_added(t, result == DART_WRITE_DONE && !w.old);
    return result < 0 ? result : 0;
}
