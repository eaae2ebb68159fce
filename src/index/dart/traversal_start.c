/* The places at which a traversal starts: the root, or nodes that the skip table names on the path of the first wanted
 * key. In a backward traversal, the first wanted key is the upper bound of the range. */
#include "base/error.h"
#include "index/dart/cache_scan.h"
#include "index/dart/traversal.h"

#include <string.h>

#define ROOT_MARGIN 8u /* number of slots of the root that are read beyond those that the scan cache promises */


static int fail_no_memory(void) {
    return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a scan");
}


/* Returns whether all wanted keys begin with the prefix of a node of this depth that is on the path of the first one. */
static bool prefix_covers_range(const dart_traversal *traversal, unsigned depth) {
    return traversal->range.bounded && dart_common_prefix(traversal->range.from, traversal->range.to) >= depth;
}


/* Returns whether a node of this type has, on average, at least two children for each wanted leaf. */
static bool type_is_enough(const dart_traversal *traversal, dart_node_type type) {
    return dart_expected_children(type) / 2 >= traversal->wanted;
}


/* Returns whether an N256 has probably enough children from the symbol of the first wanted key on. The node is on the
 * path of this key. The children of an N256 are spread over all symbols, which is not so in smaller nodes. */
static bool children_are_enough(const dart_traversal *traversal, const dart_node *node) {
    unsigned rank = dart_symbol_rank(dart_symbol(*dart_traversal_first_key(traversal), node->depth)),
             ranks = traversal->backward ? rank + 1 : DART_RANKS - rank;
    return dart_expected_children(DART_N256) * ranks / DART_RANKS >= traversal->wanted;
}


/* Decides whether a traversal should start at a node. If the node's subtree is exhausted too early, the traversal costs
 * more than a traversal from the root. */
static bool subtree_is_enough(const dart_traversal *traversal, const dart_node *node) {
    return prefix_covers_range(traversal, node->depth) ||
           (type_is_enough(traversal, node->type) && (node->type != DART_N256 || children_are_enough(traversal, node)));
}


/* Reads all slots of the nodes that skip table entries name. Stores in *views, the deepest first, the nodes that are
 * linked (a slot is unfrozen) and whose prefix is a prefix of the first wanted key. Returns the number of these nodes,
 * or an error. All keys with the prefix of such a node are below that node. */
static int read_start_nodes(far_task *t, far_index *index, const dart_traversal *traversal, const dart_start *starts,
                            int count, dart_view *views) {
    const far_bytes *key = dart_traversal_first_key(traversal);
    for (int i = 0; i < count; i++) {
        const dart_node *node = &starts[i].node;
        unsigned header = dart_header_bytes(node->depth),
                 slots = dart_node_slots(node->type, node->depth, dart_of(index)->bucket);
        char *image = far_scratch(t, header + 8ull * slots);
        if (!image) {
            far_discard_batch(t);
            return fail_no_memory();
        }
        far_read(t, node->addr, image, header + 8ull * slots);
        /* the entry may belong to a prefix of another length, so the depth in the entry may be wrong */
        far_mark(t, FAR_VERB_UNPROVEN);
        views[i] = (dart_view){*node, 0, slots, (uint64_t *)(image + header), (const dart_header *)image, true};
    }
    int err = count > 0 ? far_wait(t) : count, good = 0;
    for (int i = 0; err >= 0 && i < count; i++) {
        dart_view view = views[i];
        far_bytes prefix = {view.header->prefix, view.node.depth};
        bool right = dart_header_matches(view.header, &view.node) &&
                     dart_common_prefix(prefix, *key) == prefix.length && dart_any_unfrozen(view.slots, view.count);
        int at = good;
        while (at > 0 && views[at - 1].node.depth < view.node.depth)
            at--;
        if (!right || (at > 0 && views[at - 1].node.depth == view.node.depth))
            continue;
        memmove(&views[at + 1], &views[at], (size_t)(good - at) * sizeof(*views));
        views[at] = view;
        good++;
    }
    return err < 0 ? err : good;
}


/* Makes the children of a start node the last entry of the frontier. Returns 1 or an error. */
static int add_start(far_task *t, const far_index *index, dart_traversal *traversal, dart_item ***last,
                     const dart_view *view, const dart_range *range) {
    if (view->whole && traversal->reads == DART_READ_LEAVES && !traversal->one_by_one)
        dart_traversal_remember(t, index, view);
    dart_clip clip = dart_clip_children(view->header, range, true, true);
    dart_item *item = dart_traversal_add_rest(t, traversal, *last, view, range, clip);
    if (!item)
        return fail_no_memory();
    *last = &item->next;
    return 1;
}


/* Starts at the deepest suitable node on the path of the first wanted key that the skip table names. Returns 1, 0 if
 * there is none, or an error. */
static int start_at_express_node(far_task *t, far_index *index, dart_traversal *traversal) {
    dart_start starts[DART_STARTS_MAX];
    dart_view views[DART_STARTS_MAX];
    int count = dart_est_lookup(t, index, *dart_traversal_first_key(traversal), starts, DART_STARTS_MAX);
    for (int i = 0; i < count; i++)
        if (!subtree_is_enough(traversal, &starts[i].node))
            starts[i--] = starts[--count];
    count = read_start_nodes(t, index, traversal, starts, count, views);
    if (count <= 0)
        return count;
    dart_item **last = &traversal->frontier;
    traversal->start_node = views[0].header;
    return add_start(t, index, traversal, &last, &views[0], &traversal->range);
}


/* Computes the least key that is greater than all keys with the prefix of a node. Returns 1; 0 if there is no such key;
 * or an error. */
static int key_after_prefix(far_task *t, const dart_header *node, far_bytes *next_key) {
    size_t length = dart_header_depth(node);
    uint8_t *place = far_scratch(t, length + 1);
    if (!place)
        return fail_no_memory();
    memcpy(place, node->prefix, length);
    while (length > 0 && place[length - 1] == 0xff)
        length--;
    if (length == 0)
        return 0;
    place[length - 1]++;
    *next_key = (far_bytes){place, length};
    return 1;
}


/* Removes from the range the keys with the prefix of a node, and all keys that a traversal visits before them. Returns
 * 1, 0 if no key remains, or an error. */
static int cut_range_at_prefix(far_task *t, bool backward, const dart_header *node, dart_range *range) {
    if (backward) { /* The keys before the node's subtree are less than its prefix. */
        range->to = (far_bytes){node->prefix, dart_header_depth(node)};
        range->bounded = true;
        range->to_included = false;
    } else {
        int more = key_after_prefix(t, node, &range->from);
        if (more <= 0)
            return more;
    }
    return !range->bounded || far_bytes_compare(range->from, range->to) < 0;
}


int dart_traversal_leave_start_node(far_task *t, dart_traversal *traversal) {
    int more = cut_range_at_prefix(t, traversal->backward, traversal->start_node, &traversal->range);
    traversal->started = traversal->express = false; /* The next round will start the traversal again, at the root. */
    return more;
}


/* Starts at several nodes at once: the root, and all nodes on the path of the first wanted key that the skip table
 * names. One batch reads all of them. The frontier gets the children of the deepest node and then, for each higher
 * node, those of its children that are beyond the prefix of the node below. In a deep tree this saves many rounds.
 * Returns 1 if the traversal was started; 0 if the skip table names no nodes; or an error. */
static int start_at_express_chain(far_task *t, far_index *index, dart_traversal *traversal) {
    dart_start starts[DART_STARTS_MAX + 1];
    dart_view views[DART_STARTS_MAX + 1];
    int count = dart_est_lookup_all(t, index, *dart_traversal_first_key(traversal), starts, DART_STARTS_MAX);
    if (count <= 0)
        return count;
    starts[count] = (dart_start){.node = {dart_of(index)->root, DART_N256, 0}};
    count = read_start_nodes(t, index, traversal, starts, count + 1, views);
    dart_item **last = &traversal->frontier;
    const dart_range *range = &traversal->range;
    int err = count < 0 ? count : 1;
    for (int i = 0; i < count && err > 0; i++) {
        if ((err = add_start(t, index, traversal, &last, &views[i], range)) < 0)
            return err;
        dart_range *rest = far_scratch(t, sizeof(*rest));
        if (!rest)
            return fail_no_memory();
        *rest = *range;
        /* the result 0 means that no wanted key is beyond the prefix of this node, and so none is beyond the prefixes
         * of the nodes above it */
        err = cut_range_at_prefix(t, traversal->backward, views[i].header, rest);
        range = rest;
    }
    return err < 0 ? err : 1;
}


/* Adds the READs of the nodes that the scan cache names between the root and the wanted leaves. Returns false, without
 * READs, if the scan cache names too few nodes. */
static bool add_cached_reads(far_task *t, far_index *index, dart_traversal *traversal, const dart_node *root) {
    const dart_range *range = &traversal->range;
    dart_read_ahead *ahead = dart_read_ahead_new(t, index, dart_read_ahead_goal(traversal), traversal->backward);
    dart_read_ahead_collect(t, index, ahead, root, &range->from, range->bounded ? &range->to : NULL);
    if (!ahead || ahead->expected_leaves < traversal->wanted || dart_read_ahead_add_reads(t, index, ahead) < 0)
        return false;
    traversal->read_ahead = ahead;
    return true;
}


static const dart_header root_header = {.word = DART_N256 << 12};


/* Prepares a view of the root in which no slot was read yet. */
static int make_root_view(far_task *t, const far_index *index, dart_view *view) {
    uint64_t *slots = far_scratch(t, DART_RANKS * sizeof(*slots));
    *view = (dart_view){
        .node = {dart_of(index)->root, DART_N256, 0}, .count = DART_RANKS, .slots = slots, .header = &root_header};
    return slots ? 0 : fail_no_memory();
}


/* Chooses the ranks of the root that are read together with the nodes of the read-ahead, and probably suffice. */
static void choose_root_ranks(const dart_traversal *traversal, const dart_rest *rest, unsigned *low, unsigned *high) {
    const dart_read_ahead *ahead = traversal->read_ahead;
    *low = rest->clip.low;
    *high = rest->clip.high;
    if (traversal->backward)
        *low = ahead->last_rank > *low + ROOT_MARGIN ? ahead->last_rank - ROOT_MARGIN : *low;
    else
        *high = ahead->last_rank + ROOT_MARGIN < *high ? ahead->last_rank + ROOT_MARGIN : *high;
}


/* Starts at the root, of which only the needed slots are read, together with the nodes of the read-ahead. */
static int start_at_root_slots(far_task *t, far_index *index, dart_traversal *traversal) {
    dart_view view;
    unsigned low, high;
    dart_item **last = &traversal->frontier;
    int err = make_root_view(t, index, &view);
    if (err < 0 || (err = add_start(t, index, traversal, &last, &view, &traversal->range)) < 0) {
        far_discard_batch(t);
        return err;
    }
    dart_rest *rest = traversal->frontier->rest;
    dart_rest_set_unread(rest);
    if (traversal->one_by_one) /* The slots are read when they are needed. */
        return 0;
    choose_root_ranks(traversal, rest, &low, &high);
    dart_rest_add_read(t, rest, low, high);
    return far_wait(t);
}


/* Starts at the root, of which all slots are read. A traversal other than a scan needs them, and a scan stores them in
 * the scan cache. */
static int start_at_whole_root(far_task *t, far_index *index, dart_traversal *traversal) {
    dart_node root = {dart_of(index)->root, DART_N256, 0};
    dart_view view;
    dart_item **last = &traversal->frontier;
    int err = dart_read_node(t, index, &root, &view);
    if (err >= 0 && traversal->visit_node)
        err = traversal->visit_node(t, index, &view, NULL, traversal->ctx);
    return err < 0 ? err : add_start(t, index, traversal, &last, &view, &traversal->range);
}


static bool has_first_key(const dart_traversal *traversal) {
    return (!traversal->backward || traversal->range.bounded) && dart_traversal_first_key(traversal)->length > 0;
}


/* Starts a scan with batches: from the skip table, or from the root together with nodes of the scan cache, or from the
 * root alone. */
static int start_scan(far_task *t, far_index *index, dart_traversal *traversal) {
    dart_node root = {dart_of(index)->root, DART_N256, 0};
    bool express = traversal->express && dart_of(index)->est && has_first_key(traversal);
    int err = 0;
    if (express && (prefix_covers_range(traversal, 2) || type_is_enough(traversal, DART_N256))) {
        err = start_at_express_node(t, index, traversal);
        if (err != 0)
            return err;
        add_cached_reads(t, index, traversal, &root);
    } else if (!add_cached_reads(t, index, traversal, &root) && express) {
        err = start_at_express_chain(t, index, traversal);
    }
    if (err != 0)
        return err;
    return traversal->read_ahead ? start_at_root_slots(t, index, traversal) : start_at_whole_root(t, index, traversal);
}


/* On a fabric that executes verbs at once there are no round trips, so batches would not save time. */
static bool reads_one_by_one(far_task *t, const far_index *index) {
    dart_one_by_one when = dart_of(index)->one_by_one;
    return when == DART_ONE_BY_ONE_ALWAYS || (when == DART_ONE_BY_ONE_IF_MAPPED && far_task_fabric(t)->at_once);
}


int dart_traversal_start(far_task *t, far_index *index, dart_traversal *traversal) {
    traversal->started = true;
    traversal->start_node = NULL;
    traversal->read_ahead = NULL;
    traversal->one_by_one = reads_one_by_one(t, index);
    if (traversal->reads != DART_READ_LEAVES)
        return start_at_whole_root(t, index, traversal);
    return traversal->one_by_one ? start_at_root_slots(t, index, traversal) : start_scan(t, index, traversal);
}
