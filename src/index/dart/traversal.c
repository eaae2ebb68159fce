/* Traversals in key order, for scans, walks, checks and counts. traversal.h describes their state; other files call
 * dart_traversal_next. */
#include "index/dart/traversal.h"
#include "base/error.h"
#include "index/dart/cache_scan.h"

#include <string.h>

#define NODES_AT_ONCE 48
#define ITEMS_AT_ONCE 192
#define BYTES_AT_ONCE (256u << 10)
#define AHEAD_SCAN    256u /* maximal number of expected children that a round of a scan reads */
/* maximal number of expected children that a round of a walk reads; smaller than for a scan, because a slice should not
 * read large nodes of the next slice */
#define AHEAD_WALK 128u


static int fail_no_memory(void) {
    return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a scan");
}


bool dart_leaf_is_sound(const far_index *index, uint64_t word, uint64_t header) {
    return dart_word_len(word) != 0 && dart_leaf_klen(header) <= dart_of(index)->max_key &&
           dart_leaf_vlen(header) <= FAR_VALUE_MAX &&
           dart_leaf_used(header) <= dart_leaf_bytes(dart_word_len(word), header);
}


/* Compares a slot, that is, all keys that begin with the prefix of the slot's node and the slot's symbol, with a bound.
 * Returns -1, 0 or 1. Sets *covers, and returns -1, if prefix and symbol together are a proper prefix of the bound. */
static int compare_slot_with_bound(const dart_header *above, unsigned symbol, far_bytes bound, bool *covers) {
    unsigned depth = dart_header_depth(above);
    size_t common = depth < bound.length ? depth : bound.length;
    int order = common ? memcmp(above->prefix, bound.data, common) : 0;
    *covers = false;
    if (order)
        return order < 0 ? -1 : 1;
    if (symbol == DART_SYMBOL_END)
        return (depth > bound.length) - (depth < bound.length);
    if (depth >= bound.length)
        return 1;
    unsigned byte = ((const uint8_t *)bound.data)[depth];
    if (symbol != byte)
        return symbol < byte ? -1 : 1;
    *covers = depth + 1 < bound.length;
    return *covers ? -1 : 0;
}


size_t dart_item_first_key(const dart_item *item, uint8_t *place) {
    unsigned depth = dart_header_depth(item->parent);
    memcpy(place, item->parent->prefix, depth);
    if (item->symbol == DART_SYMBOL_END)
        return depth;
    place[depth] = (uint8_t)item->symbol;
    return depth + 1;
}


/* Appends a child to the frontier if the child is inside the bounds. Returns 1 if this child and all later children are
 * beyond the upper bound, 0 if not, or an error. */
static int add_item(far_task *t, const dart_traversal *traversal, const dart_header *above, const far_bytes *from,
                    uint64_t word, dart_item ***last) {
    unsigned symbol = dart_word_symbol(word);
    bool covers, ignored;
    if (compare_slot_with_bound(above, symbol, *from, &covers) < 0 && !covers)
        return 0;
    if (traversal->bounded && compare_slot_with_bound(above, symbol, traversal->to, &ignored) >= 0)
        return 1;
    dart_item *item = far_scratch(t, sizeof(*item));
    if (!item)
        return fail_no_memory();
    *item = (dart_item){NULL, word, above, symbol, covers, from, NULL};
    **last = item;
    *last = &item->next;
    return 0;
}


/* Returns the number of children of a node, and their words in key order. */
static unsigned sort_children(const dart_view *view, uint64_t words[DART_NODE_SLOTS_MAX]) {
    uint64_t present[(DART_NODE_SLOTS_MAX + 63) / 64] = {0}; /* bitmap: one bit for the rank of each child's symbol */
    uint16_t at[DART_NODE_SLOTS_MAX]; /* for each rank in the bitmap: number of the slot of that child */
    unsigned count = 0;
    for (unsigned i = 0; i < view->count; i++) {
        if (!dart_is_child(view->slots[i]))
            continue;
        unsigned rank = dart_symbol_rank(dart_word_symbol(view->slots[i]));
        present[rank / 64] |= 1ull << rank % 64;
        at[rank] = (uint16_t)i;
    }
    for (unsigned w = 0; w < sizeof(present) / 8; w++)
        /* The traversal clears the frozen bit of each word, because it uses this bit as a mark of its own. */
        for (uint64_t rest = present[w]; rest; rest &= rest - 1)
            words[count++] = dart_thawed(view->slots[at[w * 64 + (unsigned)__builtin_ctzll(rest)]]);
    return count;
}


/* Appends the children of a node to the frontier in key order; children outside the bounds are left out. from: lower
 * bound of the wanted keys; NULL: no bound. *last: the pointer to which the next item will be linked. A scan also
 * stores the inner children in the scan cache. */
static int add_items(far_task *t, const far_index *index, const dart_traversal *traversal, const dart_view *view,
                     const far_bytes *from, dart_item ***last) {
    uint64_t words[DART_NODE_SLOTS_MAX];
    unsigned count = sort_children(view, words), inner = 0;
    int err = 0;
    for (unsigned i = 0; i < count && err == 0; i++)
        err = add_item(t, traversal, view->header, from, words[i], last);
    for (unsigned i = 0; i < count; i++)
        if (dart_is_inner(words[i]))
            words[inner++] = words[i];
    if (traversal->reads == DART_READ_LEAVES)
        dart_scan_cache_put(t, index, &view->node, words, inner);
    return err < 0 ? err : 0;
}


static uint64_t leaf_read_bytes(const far_index *index, const dart_traversal *traversal, uint64_t word) {
    uint64_t code = dart_word_len(word),
             bytes = code == DART_SIZE_CODE_LONG ? DART_CHUNK_READ : dart_code_bytes((unsigned)code);
    uint64_t keys = (DART_LEAF_HEADER + dart_of(index)->max_key + 7) / 8 * 8;
    if (traversal->reads == DART_READ_SLOTS)
        return code == DART_SIZE_CODE_LONG ? 8 : 0;
    return traversal->reads == DART_READ_KEYS && keys < bytes ? keys : bytes;
}


static dart_node item_child(const dart_item *item) {
    return (dart_node){dart_word_addr(item->word), dart_word_type(item->word),
                       dart_header_depth(item->parent) + 1 + dart_word_len(item->word)};
}


/* Returns the number of bytes that must be read of an item; 0 if nothing must be read, or if the item was read already.
 */
static int64_t item_read_bytes(const far_index *index, const dart_traversal *traversal, const dart_item *item) {
    if (item->image)
        return 0;
    if (dart_is_leaf(item->word)) {
        if (dart_word_len(item->word) == 0)
            return dart_fail_corrupt(index, "leaf (its slot has no size code)", dart_word_addr(item->word));
        return (int64_t)leaf_read_bytes(index, traversal, item->word);
    }
    dart_node node = item_child(item);
    if (node.depth > DART_KEY_MAX)
        return dart_fail_corrupt(index, "node (its slot has an impossible depth)", node.addr);
    return dart_node_bytes(node.type, node.depth, dart_of(index)->bucket);
}


/* Adds the READs of items to the batch. A single READ covers objects that are adjacent in memory, such as leaves that
 * one client wrote in key order. Returns 0 or an error. */
static int add_item_reads(far_task *t, dart_item *const *items, const uint32_t *bytes, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        far_prefetch(t, dart_word_addr(items[i]->word));
    for (unsigned i = 0, end; i < count; i = end) {
        far_addr addr = dart_word_addr(items[i]->word);
        uint64_t whole = bytes[i], at = 0;
        for (end = i + 1; end < count && dart_word_addr(items[end]->word) == addr + whole; end++)
            whole += bytes[end];
        char *image = far_scratch(t, whole);
        if (!image)
            return fail_no_memory();
        far_read(t, addr, image, whole);
        if (dart_is_leaf(items[i]->word)) /* Leaves never change, so the order of this READ does not matter. */
            far_mark(t, FAR_VERB_ANY_ORDER);
        for (unsigned j = i; j < end; at += bytes[j++])
            items[j]->image = (uint64_t *)(image + at);
    }
    return 0;
}


/* Reads the rest of those leaves whose length the size code of their slot cannot express. */
static int read_long_leaves(far_task *t, far_index *index, const dart_traversal *traversal) {
    bool any = false;
    for (dart_item *item = traversal->frontier; item; item = item->next) {
        if (!item->image || !dart_is_leaf(item->word) || dart_word_len(item->word) != DART_SIZE_CODE_LONG ||
            dart_is_frozen(item->word))
            continue;
        uint64_t used = dart_leaf_used(item->image[0]);
        if (!dart_leaf_is_sound(index, item->word, item->image[0]))
            return dart_fail_corrupt(index, "leaf", dart_word_addr(item->word));
        uint64_t *whole = far_scratch(t, (used + 7) / 8 * 8);
        if (!whole) {
            far_discard_batch(t);
            return fail_no_memory();
        }
        far_read(t, dart_word_addr(item->word), whole, (used + 7) / 8 * 8);
        item->image = whole;
        item->word |= DART_FROZEN; /* sets the traversal's mark: the whole leaf was read */
        any = true;
    }
    return any ? far_wait(t) : 0;
}


/* Replaces every inner node of the frontier whose image was read (in this round or by read-ahead) by its children. */
static int expand_items(far_task *t, far_index *index, dart_traversal *traversal) {
    for (dart_item **at = &traversal->frontier; *at;) {
        dart_item *item = *at;
        dart_node child = item_child(item);
        if (!item->image && dart_is_inner(item->word))
            item->image = dart_read_ahead_image(traversal->read_ahead, &child);
        if (!item->image || dart_is_leaf(item->word)) {
            at = &item->next;
            continue;
        }
        dart_view view = {.node = child, .header = (const dart_header *)item->image, .whole = true};
        view.count = dart_node_slots(view.node.type, view.node.depth, dart_of(index)->bucket);
        view.slots = (uint64_t *)((char *)item->image + dart_header_bytes(view.node.depth));
        if (!dart_header_matches(view.header, &view.node))
            return dart_fail_corrupt(index, "node", view.node.addr);
        int err = traversal->visit_node ? traversal->visit_node(t, index, &view, item, traversal->ctx) : 0;
        dart_item **last = at, *rest = item->next;
        *last = NULL;
        if (err < 0 || (err = add_items(t, index, traversal, &view, item->from, &last)) < 0)
            return err;
        *last = rest; /* The loop continues with the first child, because it may have been read ahead as well. */
    }
    return 0;
}


/* Adds to the read-ahead the nodes that the scan cache names below the node of an item. */
static void collect_read_ahead(far_task *t, const far_index *index, dart_traversal *traversal, const dart_item *item) {
    dart_node node = item_child(item);
    bool ends = false;
    if (traversal->bounded)
        compare_slot_with_bound(item->parent, item->symbol, traversal->to, &ends);
    dart_read_ahead_collect(t, index, traversal->read_ahead, &node, item->contains_start ? item->from : NULL,
                            ends ? &traversal->to : NULL);
}


/* Returns the number of leaves for which nodes are read ahead. This number is larger than the number of wanted leaves,
 * because some superfluous READs cost less than another round. */
static size_t read_ahead_goal(const dart_traversal *traversal) {
    size_t wanted = traversal->wanted < AHEAD_SCAN ? traversal->wanted : AHEAD_SCAN;
    return wanted + wanted / 4 + 8;
}


/* Runs a round: reads the items near the start of the frontier in one batch, and replaces the inner nodes by their
 * children. */
static int read_round(far_task *t, far_index *index, dart_traversal *traversal) {
    bool scan = traversal->reads == DART_READ_LEAVES;
    size_t most = scan ? AHEAD_SCAN : AHEAD_WALK, ahead = traversal->wanted < most ? traversal->wanted : most,
           children = 0;
    ahead += scan ? ahead + 8 : 0; /* some superfluous READs cost less than another round */
    unsigned nodes = 0, count = 0;
    uint64_t sum = 0;
    dart_item *items[ITEMS_AT_ONCE];
    uint32_t bytes[ITEMS_AT_ONCE];
    far_point(t, "dart:expand_frontier");
    traversal->read_ahead = scan ? dart_read_ahead_new(t, index, read_ahead_goal(traversal)) : NULL;
    for (dart_item *item = traversal->frontier;
         item && children < ahead && nodes < NODES_AT_ONCE && count < ITEMS_AT_ONCE && sum < BYTES_AT_ONCE;
         item = item->next) {
        if (scan && dart_is_leaf(item->word) && children >= traversal->wanted) {
            children++;
            continue;
        }
        int64_t more = item_read_bytes(index, traversal, item);
        if (more < 0)
            return (int)more;
        if (more > 0) {
            items[count] = item;
            bytes[count++] = (uint32_t)more;
        }
        nodes += dart_is_inner(item->word);
        sum += (uint64_t)more;
        children += item->contains_start && scan ? 1 : dart_expected_children(dart_word_type(item->word));
        if (traversal->read_ahead) {
            size_t before = traversal->read_ahead->expected_leaves = children;
            if (dart_is_inner(item->word))
                collect_read_ahead(t, index, traversal, item);
            children += traversal->read_ahead->expected_leaves - before;
        }
    }
    int err = add_item_reads(t, items, bytes, count);
    if (err >= 0)
        err = dart_read_ahead_add_reads(t, index, traversal->read_ahead);
    if (err < 0) {
        far_discard_batch(t);
        return err;
    }
    err = count ? far_wait(t) : 0;
    if (err >= 0 && scan) {
        bool any = false;
        for (dart_item *item = traversal->frontier; item && !any; item = item->next)
            any = item->image && dart_is_leaf(item->word) && dart_word_len(item->word) == DART_SIZE_CODE_LONG &&
                  !dart_is_frozen(item->word);
        err = any ? read_long_leaves(t, index, traversal) : 0;
    }
    return err < 0 ? err : expand_items(t, index, traversal);
}


/* Decides whether a traversal should start at a node of this depth and type. If the node's subtree is exhausted too
 * early, the traversal costs more than a traversal from the root. The subtree is certainly enough if all wanted keys
 * begin with the node's prefix. The subtree is probably enough if a node of this type has, on average, at least two
 * children for each wanted leaf. */
static bool subtree_is_enough(const dart_traversal *traversal, unsigned depth, dart_node_type type) {
    return (traversal->bounded && dart_common_prefix(traversal->from, traversal->to) >= depth) ||
           dart_expected_children(type) / 2 >= traversal->wanted;
}


/* Reads all slots of the nodes that skip table entries name. Stores in *views, the deepest first, the nodes that are
 * linked (a slot is unfrozen) and whose prefix is a prefix of the first wanted key. Returns the number of these nodes,
 * or an error. All keys with the prefix of such a node are below that node. */
static int read_start_nodes(far_task *t, far_index *index, const dart_traversal *traversal, const dart_start *starts,
                            int count, dart_view *views) {
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
                     dart_common_prefix(prefix, traversal->from) == prefix.length &&
                     dart_any_unfrozen(view.slots, view.count);
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


/* Starts at the deepest suitable node on the path of the first wanted key that the skip table names. Leaves
 * traversal->start_node NULL if there is none. */
static int start_at_express_node(far_task *t, far_index *index, dart_traversal *traversal) {
    dart_start starts[DART_STARTS_MAX];
    dart_view views[DART_STARTS_MAX];
    int count = dart_est_lookup(t, index, traversal->from, starts, DART_STARTS_MAX);
    for (int i = 0; i < count; i++)
        if (!subtree_is_enough(traversal, starts[i].node.depth, starts[i].node.type))
            starts[i--] = starts[--count];
    count = read_start_nodes(t, index, traversal, starts, count, views);
    if (count <= 0)
        return count;
    dart_item **last = &traversal->frontier;
    traversal->start_node = views[0].header;
    return add_items(t, index, traversal, &views[0], &traversal->from, &last);
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


/* Starts at several nodes at once: the root, and all nodes on the path of the first wanted key that the skip table
 * names. One batch reads all of them. The frontier gets the children of the deepest node and then, for each higher
 * node, those of its children that follow the prefix of the node below. In a deep tree this saves many rounds. Returns
 * 1 if the traversal was started; 0 if the skip table names no nodes; or an error. */
static int start_at_express_chain(far_task *t, far_index *index, dart_traversal *traversal) {
    dart_start starts[DART_STARTS_MAX + 1];
    dart_view views[DART_STARTS_MAX + 1];
    int count = dart_est_lookup_all(t, index, traversal->from, starts, DART_STARTS_MAX);
    if (count <= 0)
        return count;
    starts[count] = (dart_start){.node = {dart_of(index)->root, DART_N256, 0}};
    count = read_start_nodes(t, index, traversal, starts, count + 1, views);
    dart_item **last = &traversal->frontier;
    const far_bytes *from = &traversal->from;
    int err = count < 0 ? count : 1;
    for (int i = 0; i < count && err > 0; i++) {
        if ((err = add_items(t, index, traversal, &views[i], from, &last)) < 0)
            return err;
        far_bytes *next_key = far_scratch(t, sizeof(*next_key));
        if (!next_key)
            return fail_no_memory();
        /* the result 0 means that no key follows the prefix of this node, and so none follows the prefixes of the nodes
         * above it */
        err = key_after_prefix(t, views[i].header, next_key);
        from = next_key;
    }
    return err < 0 ? err : 1;
}


/* Adds the READs of the nodes that the scan cache names between the root and the wanted leaves. Returns false, without
 * READs, if the scan cache names too few nodes. */
static bool add_cached_reads(far_task *t, far_index *index, dart_traversal *traversal, const dart_node *root) {
    dart_read_ahead *ahead = traversal->express ? dart_read_ahead_new(t, index, read_ahead_goal(traversal)) : NULL;
    dart_read_ahead_collect(t, index, ahead, root, &traversal->from, traversal->bounded ? &traversal->to : NULL);
    if (!ahead || ahead->expected_leaves < traversal->wanted || dart_read_ahead_add_reads(t, index, ahead) < 0)
        return false;
    traversal->read_ahead = ahead;
    return true;
}


/* Fills the frontier: from the skip table, from the root together with nodes of the scan cache, or from the root alone.
 */
static int start_traversal(far_task *t, far_index *index, dart_traversal *traversal) {
    dart_node root = {dart_of(index)->root, DART_N256, 0};
    dart_view view;
    dart_item **last = &traversal->frontier;
    int err = 0;
    traversal->started = true;
    traversal->start_node = NULL;
    traversal->read_ahead = NULL;
    if (traversal->express && dart_of(index)->est && traversal->from.length > 0 &&
        subtree_is_enough(traversal, 2, DART_N256))
        err = start_at_express_node(t, index, traversal);
    else if (!add_cached_reads(t, index, traversal, &root) && traversal->express && dart_of(index)->est &&
             traversal->from.length > 0)
        err = start_at_express_chain(t, index, traversal);
    if (err != 0 || traversal->start_node)
        return err;
    err = dart_read_node(t, index, &root, &view);
    if (err >= 0 && traversal->visit_node)
        err = traversal->visit_node(t, index, &view, NULL, traversal->ctx);
    if (err < 0 || (err = add_items(t, index, traversal, &view, &traversal->from, &last)) < 0)
        return err;
    return traversal->read_ahead ? expand_items(t, index, traversal) : 0;
}


/* Called when the subtree of the start node is exhausted: prepares the traversal to continue with the first key after
 * the prefix of the start node. Returns 1, 0 if no wanted keys follow, or an error. */
static int continue_after_start_node(far_task *t, dart_traversal *traversal) {
    int more = key_after_prefix(t, traversal->start_node, &traversal->from);
    if (more <= 0)
        return more;
    traversal->started = traversal->express = false; /* The next round will start the traversal again, at the root. */
    return !traversal->bounded || far_bytes_compare(traversal->from, traversal->to) < 0;
}


int dart_traversal_next(far_task *t, far_index *index, dart_traversal *traversal, dart_item *leaf) {
    int err = traversal->started ? 0 : start_traversal(t, index, traversal);
    while (err >= 0) {
        if (!traversal->frontier) {
            if (!traversal->start_node || (err = continue_after_start_node(t, traversal)) <= 0)
                break;
            err = start_traversal(t, index, traversal);
            continue;
        }
        dart_item *item = traversal->frontier;
        bool read =
            item->image || (traversal->reads == DART_READ_SLOTS && dart_word_len(item->word) != DART_SIZE_CODE_LONG);
        if (dart_is_leaf(item->word) && read) {
            if (item->image && !dart_leaf_is_sound(index, item->word, item->image[0]))
                return dart_fail_corrupt(index, "leaf", dart_word_addr(item->word));
            *leaf = *item;
            traversal->frontier = item->next;
            traversal->wanted -= traversal->wanted > 1;
            return 1;
        }
        err = read_round(t, index, traversal);
    }
    return err < 0 ? err : 0;
}
