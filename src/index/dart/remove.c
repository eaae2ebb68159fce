/* The operation delete. One CAS replaces the leaf's word by a TOMB, which keeps the symbol so that the symbol's next
 * leaf uses the same slot (rule W of README.md). A background task then rebuilds nodes that have few children left,
 * merges them into their parent's slot, or removes them. */
#include "index/dart/cache_slots.h"
#include "index/dart/write.h"

#include <string.h>


static unsigned count_children(const uint64_t *slots, unsigned count) {
    unsigned children = 0;
    for (unsigned i = 0; i < count; i++)
        children += dart_is_child(slots[i]);
    return children;
}


/* True if the slots that were read contain so few children that reading the whole node is worthwhile. */
static bool view_suggests_shrinking(const dart_index *dart, const dart_view *view) {
    unsigned left = count_children(view->slots, view->count);
    bool one_bucket = dart_buckets(view->node.type, dart->bucket) == 1 && view->node.type != DART_N256;
    return one_bucket ? left <= 1 : left <= dart->bucket / 4;
}


static bool node_should_shrink(const dart_index *dart, const dart_view *view) {
    unsigned left = count_children(view->slots, view->count);
    return left <= 1 || (dart_buckets(view->node.type, dart->bucket) > 1 || view->node.type == DART_N256
                             ? 4 * left <= dart_capacity(view->node.type)
                             : false);
}


/* Reads a node again, and replaces the node if it has few children left. If the node had no child and was removed,
 * continues with its parent, and so on upwards. */
static void shrink_node(far_task *t, far_index *index, void *arg) { /* arg: a dart_node, followed by its prefix */
    dart_node node = *(const dart_node *)arg;
    const void *prefix = (const dart_node *)arg + 1;
    while (node.depth > 0) {
        far_scratch_mark mark = far_scratch_here(t);
        dart_view view;
        dart_replace r = {.node = node, .prefix = {prefix, node.depth}, .view = &view};
        far_point(t, "dart:shrink");
        if (dart_read_node(t, index, &node, &view) < 0 || !node_should_shrink(dart_of(index), &view))
            return;
        r.freeze_started = !dart_any_unfrozen(view.slots, view.count);
        if (dart_find_parent(t, index, &node, r.prefix, &r.parent) <= 0)
            return;
        r.has_parent = true;
        /* A node with one child stays if it is a link of a chain, which exists because a longer skip does not fit into
         * a slot. */
        if (count_children(view.slots, view.count) == 1) {
            for (unsigned i = 0; i < view.count; i++)
                if (dart_is_inner(view.slots[i]) &&
                    dart_word_len(view.slots[i]) + 1 + dart_word_len(r.parent.word) > dart_of(index)->max_skip)
                    return;
        }
        if (dart_replace_node(t, index, &r) < 0 || !r.became_tomb)
            return;
        node = r.parent.node;
        far_scratch_back(t, mark);
    }
}


void dart_shrink_later(far_task *t, far_index *index, const dart_node *node, far_bytes prefix) {
    size_t bytes = sizeof(*node) + node->depth;
    dart_node *job = far_scratch(t, bytes);
    if (!job)
        return;
    *job = *node;
    memcpy(job + 1, prefix.data, node->depth);
    if (!far_index_spawn(t, index, shrink_node, job, bytes))
        shrink_node(t, index, job);
}


static int remove_leaf(far_task *t, far_index *index, dart_write *w) {
    dart_find *f = &w->find;
    if (f->outcome != DART_FOUND)
        return FAR_ERR_NOT_FOUND;
    unsigned at = f->path.count - 1;
    const dart_step *step = &f->path.steps[at];
    unsigned symbol = dart_word_symbol(step->word);
    dart_piggyback piggyback = {DART_PIGGYBACK_DELETE, symbol, dart_thawed(step->word), 0};
    uint64_t seen;
    w->old = dart_word_addr(step->word);
    w->old_bytes = dart_leaf_bytes(dart_word_len(step->word), f->leaf[0]);
    if (dart_is_frozen(step->word))
        return dart_write_replace_node(t, index, w, at, true, piggyback);
    int err = dart_write_cas(t, w, step->slot, step->word, dart_tomb(symbol), &seen);
    if (err < 0)
        return err;
    if (seen == step->word) {
        if (f->view.node.addr == step->node.addr)
            f->view.slots[(step->slot - dart_slot_addr(&step->node, f->view.first)) / 8] = dart_tomb(symbol);
        return DART_WRITE_DONE;
    }
    if (dart_is_frozen(seen)) {
        f->view.node.addr = 0;
        return dart_write_replace_node(t, index, w, at, true, piggyback);
    }
    return dart_write_resume(t, index, w, at, seen);
}


int dart_remove(far_task *t, far_index *index, far_bytes key) {
    dart_write w;
    dart_write_init(&w, FAR_OP_DELETE, key, (far_bytes){NULL, 0});
    const dart_index *dart = dart_of(index);
    dart_find_init(&w.find, key, DART_SEEK_DELETE);
    int result = dart_write_run(t, index, &w, remove_leaf);
    if (result < 0)
        return result;
    far_retire(t, index, DART_TYPE_LEAF, w.old, w.old_bytes);
    dart_slot_cache_drop(index, key);
    const dart_node *node = &w.find.path.steps[w.find.path.count - 1].node;
    const dart_view *view = &w.find.view;
    if (dart->shrink && node->depth > 0 && (view->node.addr != node->addr || view_suggests_shrinking(dart, view)))
        dart_shrink_later(t, index, node, (far_bytes){key.data, node->depth});
    return 0;
}
