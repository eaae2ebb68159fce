/* insert, update, put: a leaf is written unseen together with the first READ; one CAS publishes it. */
#include "index/dart/write.h"
#include "base/error.h"
#include "index/dart/slots.h"
#include "index/rdwc.h"
#include "pool/epoch.h"

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
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
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


/* ---- Going on after a lost CAS ---- */

int dart_write_frozen(far_task *t, far_index *index, dart_write *w, unsigned at, bool begun, dart_rider rider) {
    dart_find *f = &w->find;
    const dart_step *step = &f->path.steps[at];
    dart_replace r = {
        .node = step->node, .prefix = {w->key.data, step->node.depth}, .rider = rider, .lost = w->lost, .begun = begun};
    w->lost = 0;
    if (at > 0) {
        r.has_parent = true;
        r.parent = f->path.steps[at - 1];
    }
    if (f->view.node.addr == step->node.addr) {
        r.view = &f->view;
        for (unsigned i = 0; i < f->view.count; i++)
            r.begun |= dart_is_frozen(f->view.slots[i]);
    }
    if (at == 0 && f->used >= 0)
        r.named = &f->probe.starts[f->used];
    far_point(t, "dart:replace");
    int err = dart_replace_node(t, index, &r);
    if (err < 0)
        return err;
    if (r.carried) {
        f->mark = r.mark;
        return DART_WRITE_DONE;
    }
    return DART_WRITE_AGAIN;
}


int dart_write_resume(far_task *t, far_index *index, dart_write *w, unsigned at, uint64_t word) {
    far_count_retry(t);
    int err = dart_find_resume(t, index, &w->find, at, word);
    return err < 0 ? err : DART_WRITE_RESUME;
}


int dart_write_cas(far_task *t, dart_write *w, far_addr slot, uint64_t expected, uint64_t desired, uint64_t *seen) {
    far_point(t, "dart:publish");
    far_cas(t, slot, expected, desired, seen);
    w->find.mark = far_rdwc_mark(t);
    return far_wait(t);
}


/* ---- The key is there ---- */

static int change_leaf(far_task *t, far_index *index, dart_write *w) {
    dart_find *f = &w->find;
    unsigned at = f->path.count - 1;
    const dart_step *step = &f->path.steps[at];
    uint64_t seen, word = word_of_leaf(w, step->node.depth);
    dart_rider rider = {DART_RIDE_UPDATE, dart_word_symbol(word), dart_thawed(step->word), word};
    if (w->how == FAR_OP_INSERT)
        return FAR_ERR_EXISTS;
    w->old = dart_word_addr(step->word);
    w->old_bytes = dart_leaf_bytes(dart_word_len(step->word), f->leaf[0]);
    if (dart_is_frozen(step->word))
        return dart_write_frozen(t, index, w, at, true, rider);
    int err = dart_write_cas(t, w, step->slot, step->word, word, &seen);
    if (err < 0)
        return err;
    if (seen == step->word) {
        dart_slots_put(t, index, w->key, step, word);
        return DART_WRITE_DONE;
    }
    if (dart_is_frozen(seen)) {
        f->view.node.addr = 0; /* what was read is old */
        return dart_write_frozen(t, index, w, at, true, rider);
    }
    w->old = 0;
    if (dart_of(index)->absorb &&
        !dart_is_inner(seen)) { /* superseded after it was read: the write counts just before that */
        f->mark = f->claim;
        return DART_WRITE_ABSORBED;
    }
    return dart_write_resume(t, index, w, at, seen);
}


/* The word of the leaf is known, without a READ: the CAS goes with the WRITE of the new leaf, which lies on the same
 * memory node and so is there first. Lost, it shows the word that stands there. That may be older than this operation:
 * an update is not absorbed by it, and a frozen one proves nothing. */
static int change_at_once(far_task *t, far_index *index, dart_write *w) {
    dart_find *f = &w->find;
    const dart_kept *kept = &f->kept;
    dart_step step = {.node = kept->node, .slot = kept->slot, .word = kept->word};
    uint64_t seen, word = word_of_leaf(w, kept->node.depth);
    if (f->stage != DART_STAGE_SLOT || !kept->exact || !kept->young ||
        far_addr_node(w->leaf) != far_addr_node(kept->slot))
        return DART_WRITE_RESUME;
    int err = dart_write_cas(t, w, kept->slot, kept->word, word, &seen);
    if (err < 0)
        return err;
    far_count_cache(t, seen == kept->word);
    if (seen == kept->word) {
        dart_slots_put(t, index, w->key, &step, word);
        w->old = dart_word_addr(kept->word);
        w->old_bytes = dart_code_bytes(dart_word_len(kept->word));
        far_rdwc_done(t, f->mark);
        return DART_WRITE_DONE;
    }
    far_count_retry(t);
    f->stage = DART_STAGE_PROBE;
    if (dart_is_frozen(seen)) {
        dart_slots_drop(index, w->key);
        f->probe.dead = kept->node.addr;
        return DART_WRITE_RESUME;
    }
    err = dart_find_at_slot(t, index, f, seen);
    return err < 0 ? err : DART_WRITE_RESUME;
}


/* ---- The key is not there ---- */

/* In the last node of the path: into its TOMB, or the lowest EMPTY slot; every word that a lost CAS shows is looked at
 * (rule W). */
static int add_leaf(far_task *t, far_index *index, dart_write *w) {
    dart_find *f = &w->find;
    unsigned at = f->path.count - 1;
    dart_step *step = &f->path.steps[at];
    uint64_t word = word_of_leaf(w, step->node.depth), seen;
    dart_rider rider = {DART_RIDE_INSERT, dart_word_symbol(word), 0, word};
    for (;;) {
        bool crowded = w->lost >= DART_CROWD && step->node.type < DART_N256;
        if (step->slot == 0 || dart_is_frozen(step->word) || crowded)
            return dart_write_frozen(t, index, w, at, dart_is_frozen(step->word), rider);
        int err = dart_write_cas(t, w, step->slot, step->word, word, &seen);
        if (err < 0)
            return err;
        if (seen == step->word)
            return DART_WRITE_DONE;
        if (dart_is_frozen(seen)) {
            f->view.node.addr = 0;
            return dart_write_frozen(t, index, w, at, true, rider);
        }
        if (!dart_is_empty(seen) && dart_word_symbol(seen) == rider.symbol)
            return dart_write_resume(t, index, w, at, seen);
        w->lost++;
        if (f->view.node.addr != step->node.addr || dart_is_empty(seen))
            return DART_WRITE_AGAIN;
        far_count_retry(t);
        f->view.slots[(step->slot - dart_slot_addr(&step->node, f->view.first)) / 8] = seen;
        int next = dart_view_search(dart_of(index), &f->view, rider.symbol);
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


/* Puts the WRITE of a new N4 at this depth of the key. */
static int put_node(far_task *t, far_index *index, const dart_write *w, unsigned depth, const dart_step *above,
                    const dart_children *children, made_node *node) {
    const dart_index *dart = dart_of(index);
    uint64_t bytes = dart_node_bytes(DART_N4, depth, dart->bucket);
    void *image = far_scratch(t, bytes);
    far_object object;
    if (!image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    unsigned where = dart_place(dart, far_task_nodes(t), (far_bytes){w->key.data, depth}, above->node.depth,
                                far_addr_node(above->slot));
    int err = far_alloc(t, index, DART_TYPE_NODE, bytes, where, 0, &object);
    if (err < 0)
        return err;
    *node = (made_node){object.addr, depth};
    dart_build(dart, DART_N4, (far_bytes){w->key.data, depth}, false, children, image);
    far_write(t, object.addr, image, bytes);
    return 0;
}


/* The node of a split, and above it one-child nodes where a skip would be too long. Returns how many, nodes[0] the
 * topmost. */
static int put_split(far_task *t, far_index *index, const dart_write *w, const dart_step *step, made_node *nodes) {
    const dart_index *dart = dart_of(index);
    const dart_find *f = &w->find;
    unsigned links = (f->split - step->node.depth - 1) / (dart->max_skip + 1), made = 0;
    dart_children *children = far_scratch(t, sizeof(*children));
    if (!children)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    unsigned below = step->node.depth + 1 + dart_word_len(step->word); /* depth of an inner child */
    children->count = 2;
    children->words[0] = dart_word_moved(step->word, dart_symbol(f->other, f->split), below - f->split - 1);
    children->words[1] = word_of_leaf(w, f->split);
    unsigned depth = f->split;
    int err = put_node(t, index, w, depth, step, children, &nodes[links]);
    for (made = 1; err >= 0 && made <= links; made++) {
        unsigned above = step->node.depth + (links - made + 1) * (dart->max_skip + 1);
        children->count = 1;
        children->words[0] =
            dart_word(dart_symbol(w->key, above), depth - above - 1, DART_N4, nodes[links - made + 1].addr);
        depth = above;
        err = put_node(t, index, w, depth, step, children, &nodes[links - made]);
    }
    if (err < 0) {
        far_forget(t);
        free_nodes(t, index, nodes + links + 2 - made, made - 1);
        return err;
    }
    return (int)links + 1;
}


/* Inside the child of a slot: a new node above it holds both. */
static int split(far_task *t, far_index *index, dart_write *w) {
    dart_find *f = &w->find;
    unsigned at = f->at;
    const dart_step *step = &f->path.steps[at];
    if (dart_is_frozen(step->word))
        return dart_write_frozen(t, index, w, at, true, (dart_rider){0});
    made_node *nodes =
        far_scratch(t, ((f->split - step->node.depth - 1) / (dart_of(index)->max_skip + 1) + 1) * sizeof(*nodes));
    if (!nodes)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    int made = put_split(t, index, w, step, nodes), err;
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
                              dart_est_saves(f, at + 1) >= DART_SAVES_MUCH, NULL);
            parent = node.depth;
        }
        return DART_WRITE_DONE;
    }
    free_nodes(t, index, nodes, (unsigned)made);
    if (dart_is_frozen(seen)) {
        f->view.node.addr = 0;
        return dart_write_frozen(t, index, w, at, true, (dart_rider){0});
    }
    return dart_write_resume(t, index, w, at, seen);
}


/* ---- The loop ---- */

#define PATIENCE 16 /* attempts under one pin */


/* A long wait for others: nothing is held back, and nothing that was seen before counts. */
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


static int apply(far_task *t, far_index *index, dart_write *w) {
    if (w->find.outcome == DART_FOUND)
        return change_leaf(t, index, w);
    if (w->how == FAR_OP_UPDATE)
        return FAR_ERR_NOT_FOUND;
    return w->find.outcome == DART_ABSENT ? add_leaf(t, index, w) : split(t, index, w);
}


int dart_write_run(far_task *t, far_index *index, dart_write *w,
                   int (*apply_one)(far_task *t, far_index *index, dart_write *w)) {
    far_scratch_mark mark = far_scratch_here(t);
    for (unsigned attempt = 0, resumed = 0;;) {
        int result = dart_find_run(t, index, &w->find);
        w->old = 0;
        if (result >= 0)
            result = dart_write_locked(t, index, w, apply_one);
        if (result == FAR_ERR_EXISTS || result == FAR_ERR_NOT_FOUND)
            far_rdwc_done(t, w->find.claim);
        if (result < 0)
            return result;
        if (result == DART_WRITE_DONE || result == DART_WRITE_ABSORBED) {
            far_rdwc_done(t, w->find.mark);
            return result;
        }
        if (result == DART_WRITE_RESUME && ++resumed % PATIENCE == 0)
            result = DART_WRITE_AGAIN; /* what a search that goes on has in hand is more each time */
        if (result == DART_WRITE_AGAIN) {
            far_count_retry(t);
            if (attempt++ > 0)
                far_back_off(t, attempt - 1);
            far_scratch_back(t, mark); /* all verbs were waited for */
            if (attempt % PATIENCE == 0 && (result = renew_pin(t, index, w)) < 0)
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
    dart_find_init(&w.find, key, how == FAR_OP_UPDATE ? DART_SEEK_UPDATE : DART_SEEK_PLACE);
    if (how != FAR_OP_INSERT)
        dart_find_from_slot(t, index, &w.find);
    bool kept = w.find.stage == DART_STAGE_SLOT;
    int result = make_leaf(t, index, &w, kept ? far_addr_node(w.find.kept.slot) : FAR_NODE_ANY);
    if (result < 0)
        return result;
    result = change_at_once(t, index, &w);
    if (result == DART_WRITE_RESUME)
        result = dart_write_run(t, index, &w, apply);
    if (result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE)
        return result;
    if (result != DART_WRITE_DONE) {
        far_forget(t); /* its WRITE was posted with the first READ, or never */
        if (w.leaf)
            far_free(t, index, DART_TYPE_LEAF, w.leaf, w.leaf_bytes);
    } else if (w.old) {
        far_retire(t, index, DART_TYPE_LEAF, w.old, w.old_bytes);
    }
    far_note_added(t, result == DART_WRITE_DONE && !w.old);
    return result < 0 ? result : 0;
}
