/* walk, check and usage: tours in slices, each under its own pin, so that they hold nobody back. A slice ends at a
 * place, where the next one begins. */
#include "base/error.h"
#include "index/dart/lock.h"
#include "index/dart/tour.h"
#include "pool/epoch.h"

#include <stdlib.h>
#include <string.h>

typedef int (*leaf_fn)(far_task *t, far_index *index, const dart_item *leaf, void *ctx);

typedef struct slices {
    dart_tour tour;
    leaf_fn leaf;
    void *ctx;
    uint8_t *place; /* where the slice begins */
    size_t length;
    bool more;
    unsigned number; /* of the slice, from 1 on */
} slices;


static int one_slice(far_task *t, far_index *index, slices *s) {
    dart_tour tour = s->tour;
    dart_item leaf;
    int result = 0;
    tour.from = (far_bytes){s->place, s->length};
    for (unsigned n = 0; n < dart_of(index)->walk_slice && (result = dart_tour_next(t, index, &tour, &leaf)) == 1; n++)
        if ((result = s->leaf(t, index, &leaf, s->ctx)) < 0)
            return result;
    if (result < 0)
        return result;
    if ((s->more = tour.first != NULL)) {
        uint8_t *place = far_scratch(t, DART_KEY_MAX + 1);
        if (!place)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
        s->length = dart_item_place(tour.first, place); /* the old place is still in use by the tour */
        memcpy(s->place, place, s->length);
    }
    return 0;
}


static int each_slice(far_task *t, far_index *index, slices *s) {
    int err = 0;
    s->place = malloc(DART_KEY_MAX + 1);
    if (!s->place)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    s->more = true;
    s->tour.wanted = dart_of(index)->walk_slice;
    while (err >= 0 && s->more) {
        far_scratch_mark mark = far_scratch_here(t);
        s->number++;
        if ((err = far_pin_take(t)) >= 0)
            err = one_slice(t, index, s);
        far_pin_drop(t);
        far_scratch_back(t, mark);
    }
    free(s->place);
    return err < 0 ? err : 0;
}


/* ---- walk ---- */

/* For a walk that measures: nodes that were reported. A slice reads some nodes of the next one. */
typedef struct met {
    far_addr *nodes;
    size_t count, size;
} met;

typedef struct walking {
    far_walk *walk;
    const slices *slices;
    unsigned number; /* of the slice that now is of */
    met before, now;
} walking;


static int compare_addrs(const void *a, const void *b) {
    far_addr x = *(const far_addr *)a, y = *(const far_addr *)b;
    return (x > y) - (x < y);
}


/* 1: a slice before has reported it; 0: none has. */
static int was_met(walking *w, far_addr node, const dart_item *item) {
    if (w->number != w->slices->number) {
        met old = w->before;
        w->before = w->now;
        w->now = (met){old.nodes, 0, old.size};
        w->number = w->slices->number;
        if (w->before.count)
            qsort(w->before.nodes, w->before.count, sizeof(far_addr), compare_addrs);
    }
    if (item ? item->covers : w->slices->length > 0) /* the node lies around the beginning of the slice */
        return 1;
    bool known =
        w->before.count && bsearch(&node, w->before.nodes, w->before.count, sizeof(node), compare_addrs) != NULL;
    if (w->now.count == w->now.size) {
        size_t size = w->now.size ? 2 * w->now.size : 1024;
        far_addr *nodes = realloc(w->now.nodes, size * sizeof(*nodes));
        if (!nodes)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
        w->now.nodes = nodes;
        w->now.size = size;
    }
    w->now.nodes[w->now.count++] = node;
    return known;
}


static int walk_node(far_task *t, far_index *index, const dart_view *view, const dart_item *item, void *ctx) {
    (void)t;
    walking *w = ctx;
    int known = w->walk->once ? was_met(w, view->node.addr, item) : 0;
    if (known)
        return known < 0 ? known : 0;
    if (dart_header_spare(view->header))
        return far_walk_object(w->walk, index, DART_TYPE_SPARE, view->node.addr,
                               dart_node_bytes(DART_N256, DART_KEY_MAX, 16));
    return far_walk_object(w->walk, index, DART_TYPE_NODE, view->node.addr,
                           dart_node_size(dart_of(index), &view->node));
}


static int walk_leaf(far_task *t, far_index *index, const dart_item *leaf, void *ctx) {
    (void)t;
    const walking *w = ctx;
    uint64_t bytes = dart_leaf_bytes(dart_word_len(leaf->word), leaf->image ? leaf->image[0] : 0);
    return far_walk_object(w->walk, index, DART_TYPE_LEAF, dart_word_addr(leaf->word), bytes);
}


int dart_walk(far_task *t, far_index *index, far_walk *walk) {
    walking w = {.walk = walk};
    slices s = {.tour = {.reads = DART_READ_SLOTS, .node = walk_node, .ctx = &w}, .leaf = walk_leaf, .ctx = &w};
    w.slices = &s;
    int err = far_walk_object(walk, index, DART_TYPE_SUPER, index->descriptor, sizeof(dart_super));
    if (err >= 0)
        err = dart_locks_walk(t, index, walk);
    if (err >= 0)
        err = each_slice(t, index, &s);
    free(w.before.nodes);
    free(w.now.nodes);
    return err < 0 ? err : dart_est_walk(t, index, walk);
}


/* ---- check ---- */

static int tell_gap(far_task *t, const dart_view *view, unsigned slot, far_report *report) {
    uint64_t word; /* a slot behind it was assigned when it was EMPTY: allowed only while they were read */
    int err = far_read_word(t, dart_slot_addr(&view->node, slot), &word);
    if (err >= 0 && dart_is_empty(word))
        far_report_problem(report, "node %#llx: slot %u is empty before one that is not",
                           (unsigned long long)view->node.addr, slot);
    return err;
}


static int check_bucket(far_task *t, far_index *index, const dart_view *view, unsigned bucket, far_report *report) {
    const dart_index *dart = dart_of(index);
    unsigned count = dart_bucket_slots(view->node.type, view->node.depth, dart->bucket),
             buckets = dart_buckets(view->node.type, dart->bucket);
    uint8_t seen[DART_NODE_SLOTS_MAX] = {0};
    int empty = -1, err = 0;
    bool told = false;
    for (unsigned i = bucket * count; err >= 0 && i < (bucket + 1) * count; i++) {
        uint64_t word = view->slots[i];
        unsigned symbol = dart_word_symbol(word);
        if (dart_is_empty(word)) {
            empty = empty < 0 ? (int)i : empty;
            continue;
        }
        if (view->node.type == DART_N256 ? symbol != i : dart_bucket_of(symbol, buckets) != bucket || seen[symbol])
            far_report_problem(report, "node %#llx: symbol %u stands in slot %u", (unsigned long long)view->node.addr,
                               symbol, i);
        seen[symbol] = 1;
        if (view->node.type != DART_N256 && empty >= 0 && !told) {
            told = true; /* once, however many slots stand behind it */
            err = tell_gap(t, view, (unsigned)empty, report);
        }
        if (dart_is_child(word) && dart_is_leaf(word) && dart_word_len(word) == 0)
            far_report_problem(report, "node %#llx: slot %u names a leaf of no size",
                               (unsigned long long)view->node.addr, i);
    }
    return err;
}


static int check_node(far_task *t, far_index *index, const dart_view *view, const dart_item *item, void *ctx) {
    far_report *report = ctx;
    const dart_header *above = item ? item->above : NULL;
    unsigned depth = above ? dart_header_depth(above) : 0;
    if (above &&
        (memcmp(above->prefix, view->header->prefix, depth) != 0 || view->header->prefix[depth] != item->symbol))
        far_report_problem(report, "node %#llx: its prefix does not go on that of the node above",
                           (unsigned long long)view->node.addr);
    if (!item) /* the root: nobody freezes it */
        for (unsigned i = 0; i < view->count; i++)
            if (dart_is_frozen(view->slots[i]))
                far_report_problem(report, "the root is frozen at slot %u", i);
    int err = 0;
    for (unsigned i = 0; err >= 0 && i < dart_buckets(view->node.type, dart_of(index)->bucket); i++)
        err = check_bucket(t, index, view, i, report);
    return err;
}


static int check_leaf(far_task *t, far_index *index, const dart_item *leaf, void *ctx) {
    (void)t, (void)index;
    unsigned depth = dart_header_depth(leaf->above), klen = dart_leaf_klen(leaf->image[0]);
    far_bytes key = {leaf->image + 1, klen};
    if (klen < depth || memcmp(key.data, leaf->above->prefix, depth) != 0 || dart_symbol(key, depth) != leaf->symbol)
        far_report_problem(ctx, "leaf %#llx: its key does not belong to its slot",
                           (unsigned long long)dart_word_addr(leaf->word));
    return 0;
}


int dart_check(far_task *t, far_index *index, far_report *report) {
    slices s = {
        .tour = {.reads = DART_READ_KEYS, .node = check_node, .ctx = report}, .leaf = check_leaf, .ctx = report};
    int err = each_slice(t, index, &s);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(report, "%s", far_last_error());
        err = 0;
    }
    if (err >= 0)
        err = dart_locks_check(t, index, report);
    return err < 0 ? err : dart_est_check(t, index, report);
}


/* ---- usage ---- */

typedef struct counting {
    far_usage *usage;
    slices *slices;
} counting;


static int count_leaf(far_task *t, far_index *index, const dart_item *leaf, void *ctx) {
    (void)t, (void)index;
    counting *c = ctx;
    far_bytes key = {leaf->image + 1, dart_leaf_klen(leaf->image[0])};
    if (leaf->covers && far_bytes_compare(key, (far_bytes){c->slices->place, c->slices->length}) < 0)
        return 0; /* the slice before had it */
    c->usage->keys++;
    c->usage->key_bytes += key.length;
    c->usage->value_bytes += dart_leaf_vlen(leaf->image[0]);
    return 0;
}


int dart_usage(far_task *t, far_index *index, far_usage *usage) {
    counting c = {.usage = usage};
    slices s = {.tour = {.reads = DART_READ_KEYS}, .leaf = count_leaf, .ctx = &c};
    c.slices = &s;
    int err = each_slice(t, index, &s);
    return err < 0 ? err : dart_est_usage(t, index, usage);
}
