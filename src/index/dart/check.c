/* The operations walk, check and usage. They traverse the tree in slices, each under its own pin, so that they do not
 * hold back the reclamation of memory. A slice ends at a key, and the next slice begins there. */
#include "base/error.h"
#include "index/dart/baseline.h"
#include "index/dart/traversal.h"
#include "pool/epoch/epoch.h"

#include <stdlib.h>
#include <string.h>

typedef int (*leaf_fn)(far_task *t, far_index *index, const dart_item *leaf, void *ctx);

typedef struct sliced_traversal {
    dart_traversal traversal;
    leaf_fn leaf;
    void *ctx;
    uint8_t *place; /* the least key of the slice */
    size_t length;
    bool more;
    unsigned number; /* number of the slice, from 1 on */
} sliced_traversal;


static int traverse_slice(far_task *t, far_index *index, sliced_traversal *s) {
    dart_traversal traversal = s->traversal;
    const dart_item *leaf;
    int result = 0;
    traversal.range.from = (far_bytes){s->place, s->length};
    for (unsigned n = 0;
         n < dart_of(index)->walk_slice && (result = dart_traversal_next(t, index, &traversal, &leaf)) == 1; n++)
        if ((result = s->leaf(t, index, leaf, s->ctx)) < 0)
            return result;
    if (result < 0)
        return result;
    /* The traversal used the bytes of s->place as its lower bound until its last call above, so they are overwritten
     * only now. */
    s->more = dart_traversal_next_key(&traversal, s->place, &s->length);
    return 0;
}


static int traverse_slices(far_task *t, far_index *index, sliced_traversal *s) {
    int err = 0;
    s->place = malloc(DART_KEY_MAX + 1);
    if (!s->place)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a walk");
    s->more = true;
    s->traversal.wanted = dart_of(index)->walk_slice;
    while (err >= 0 && s->more) {
        far_scratch_mark mark = far_scratch_here(t);
        s->number++;
        if ((err = far_pin_take(t)) >= 0)
            err = traverse_slice(t, index, s);
        far_pin_drop(t);
        far_scratch_back(t, mark);
    }
    free(s->place);
    return err < 0 ? err : 0;
}


/* ---- Walk ---- */

/* The nodes that a walk with walk->once has reported. Such a walk must not report a node twice, but a slice may also
 * read nodes that belong to the next slice. Therefore the nodes of the current slice and of the slice before it are
 * remembered. */
typedef struct reported_nodes {
    far_addr *nodes;
    size_t count, size;
} reported_nodes;

typedef struct walk_state {
    far_walk *walk;
    const sliced_traversal *traversal;
    unsigned number; /* number of the slice whose nodes `now` contains */
    reported_nodes before, now;
} walk_state;


static int compare_addrs(const void *a, const void *b) {
    far_addr x = *(const far_addr *)a, y = *(const far_addr *)b;
    return (x > y) - (x < y);
}


/* Records that the walk has reported a node. Returns 1 if an earlier slice has reported the node, 0 if not, or an
 * error. */
static int note_reported(walk_state *w, far_addr node, const dart_item *item) {
    if (w->number != w->traversal->number) {
        reported_nodes old = w->before;
        w->before = w->now;
        w->now = (reported_nodes){old.nodes, 0, old.size};
        w->number = w->traversal->number;
        if (w->before.count)
            qsort(w->before.nodes, w->before.count, sizeof(far_addr), compare_addrs);
    }
    /* an earlier slice has read every node on the path of the slice's first key */
    if (item ? item->contains_from : w->traversal->length > 0)
        return 1;
    bool known =
        w->before.count && bsearch(&node, w->before.nodes, w->before.count, sizeof(node), compare_addrs) != NULL;
    if (w->now.count == w->now.size) {
        size_t size = w->now.size ? 2 * w->now.size : 1024;
        far_addr *nodes = realloc(w->now.nodes, size * sizeof(*nodes));
        if (!nodes)
            return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a walk");
        w->now.nodes = nodes;
        w->now.size = size;
    }
    w->now.nodes[w->now.count++] = node;
    return known;
}


static int walk_node(far_task *t, far_index *index, const dart_view *view, const dart_item *item, void *ctx) {
    (void)t;
    walk_state *w = ctx;
    int known = w->walk->once ? note_reported(w, view->node.addr, item) : 0;
    if (known)
        return known < 0 ? known : 0;
    return far_walk_object(w->walk, index, DART_TYPE_NODE, view->node.addr,
                           dart_node_size(dart_of(index), &view->node));
}


static int walk_leaf(far_task *t, far_index *index, const dart_item *leaf, void *ctx) {
    (void)t;
    const walk_state *w = ctx;
    uint64_t bytes = dart_leaf_bytes(dart_word_len(leaf->word), leaf->image ? leaf->image[0] : 0);
    return far_walk_object(w->walk, index, DART_TYPE_LEAF, dart_word_addr(leaf->word), bytes);
}


int dart_walk(far_task *t, far_index *index, far_walk *walk) {
    walk_state w = {.walk = walk};
    sliced_traversal s = {
        .traversal = {.reads = DART_READ_SLOTS, .visit_node = walk_node, .ctx = &w}, .leaf = walk_leaf, .ctx = &w};
    w.traversal = &s;
    int err = far_walk_object(walk, index, DART_TYPE_SUPER, index->descriptor, sizeof(dart_super));
    if (err >= 0)
        err = dart_locks_walk(t, index, walk);
    if (err >= 0)
        err = traverse_slices(t, index, &s);
    free(w.before.nodes);
    free(w.now.nodes);
    return err < 0 ? err : dart_est_walk(t, index, walk);
}


/* ---- Check ---- */

static int report_gap(far_task *t, const dart_view *view, unsigned slot, far_report *report) {
    /* A client assigns the slots of a bucket in ascending order. An insert filled a later slot of this bucket, so this
     * slot was assigned before. The gap is an error only if this slot is still empty now. */
    uint64_t word;
    int err = far_read_word(t, dart_slot_addr(&view->node, slot), &word);
    if (err >= 0 && dart_is_empty(word))
        far_report_problem(report, "node %#llx: slot %u is empty, but a later slot of its bucket is not",
                           (unsigned long long)view->node.addr, slot);
    return err;
}


static int check_bucket(far_task *t, far_index *index, const dart_view *view, unsigned bucket, far_report *report) {
    const dart_index *dart = dart_of(index);
    unsigned count = dart_bucket_slots(view->node.type, view->node.depth, dart->bucket),
             buckets = dart_buckets(view->node.type, dart->bucket);
    uint8_t seen[DART_NODE_SLOTS_MAX] = {0};
    int empty = -1, err = 0;
    bool reported = false;
    for (unsigned i = bucket * count; err >= 0 && i < (bucket + 1) * count; i++) {
        uint64_t word = view->slots[i];
        unsigned symbol = dart_word_symbol(word);
        if (dart_is_empty(word)) {
            empty = empty < 0 ? (int)i : empty;
            continue;
        }
        if (view->node.type == DART_N256 ? symbol != i : dart_bucket_of(symbol, buckets) != bucket || seen[symbol])
            far_report_problem(report, "node %#llx: symbol %u is in slot %u, which is a wrong or second slot for it",
                               (unsigned long long)view->node.addr, symbol, i);
        seen[symbol] = 1;
        if (view->node.type != DART_N256 && empty >= 0 && !reported) {
            reported = true; /* one report for each bucket */
            err = report_gap(t, view, (unsigned)empty, report);
        }
        if (dart_is_child(word) && dart_is_leaf(word) && dart_word_len(word) == 0)
            far_report_problem(report, "node %#llx: slot %u names a leaf, but has no size code",
                               (unsigned long long)view->node.addr, i);
    }
    return err;
}


static int check_node(far_task *t, far_index *index, const dart_view *view, const dart_item *item, void *ctx) {
    far_report *report = ctx;
    const dart_header *above = item ? item->parent : NULL;
    unsigned depth = above ? dart_header_depth(above) : 0;
    if (above && (memcmp(above->prefix, view->header->prefix, depth) != 0 ||
                  view->header->prefix[depth] != dart_rank_symbol(item->rank)))
        far_report_problem(report, "node %#llx: its prefix does not extend the prefix and symbol of its parent's slot",
                           (unsigned long long)view->node.addr);
    if (!item) /* no item: the node is the root, which no client freezes */
        for (unsigned i = 0; i < view->count; i++)
            if (dart_is_frozen(view->slots[i]))
                far_report_problem(report, "the root's slot %u is frozen, which is never allowed", i);
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < dart_buckets(view->node.type, dart_of(index)->bucket); i++)
        err = check_bucket(t, index, view, i, report);
    return err;
}


static int check_leaf(far_task *t, far_index *index, const dart_item *leaf, void *ctx) {
    (void)t, (void)index;
    unsigned depth = dart_header_depth(leaf->parent), klen = dart_leaf_klen(leaf->image[0]);
    far_bytes key = {leaf->image + 1, klen};
    if (klen < depth || memcmp(key.data, leaf->parent->prefix, depth) != 0 ||
        dart_symbol(key, depth) != dart_rank_symbol(leaf->rank))
        far_report_problem(ctx, "leaf %#llx: its key does not have the prefix and symbol of its slot",
                           (unsigned long long)dart_word_addr(leaf->word));
    return 0;
}


int dart_check(far_task *t, far_index *index, far_report *report) {
    sliced_traversal s = {.traversal = {.reads = DART_READ_KEYS, .visit_node = check_node, .ctx = report},
                          .leaf = check_leaf,
                          .ctx = report};
    int err = traverse_slices(t, index, &s);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(report, "%s", far_last_error());
        err = 0;
    }
    if (err >= 0)
        err = dart_locks_check(t, index, report);
    return err < 0 ? err : dart_est_check(t, index, report);
}


/* ---- Salvage ---- */

int dart_object_keys(far_task *t, far_index *index, unsigned type, const void *object, uint64_t bytes, far_keys *keys) {
    uint64_t header;
    (void)t, (void)index;
    memcpy(&header, object, sizeof(header));
    unsigned length = dart_leaf_klen(header);
    if (type != DART_TYPE_LEAF || length == 0 || DART_LEAF_HEADER + length > bytes)
        return 0;
    return far_keys_give(keys, (far_bytes){(const char *)object + DART_LEAF_HEADER, length});
}


/* ---- Usage ---- */

typedef struct count_state {
    far_usage *usage;
    sliced_traversal *traversal;
} count_state;


static int count_leaf(far_task *t, far_index *index, const dart_item *leaf, void *ctx) {
    (void)t, (void)index;
    count_state *c = ctx;
    far_bytes key = {leaf->image + 1, dart_leaf_klen(leaf->image[0])};
    if (leaf->contains_from && far_bytes_compare(key, (far_bytes){c->traversal->place, c->traversal->length}) < 0)
        return 0; /* the previous slice has counted this leaf */
    c->usage->keys++;
    c->usage->key_bytes += key.length;
    c->usage->value_bytes += dart_leaf_vlen(leaf->image[0]);
    return 0;
}


int dart_usage(far_task *t, far_index *index, far_usage *usage) {
    count_state c = {.usage = usage};
    sliced_traversal s = {.traversal = {.reads = DART_READ_KEYS}, .leaf = count_leaf, .ctx = &c};
    c.traversal = &s;
    int err = traverse_slices(t, index, &s);
    return err < 0 ? err : dart_est_usage(t, index, usage);
}
