/* A tour: the way through nodes in the order of keys, for scans, walks, checks and sums. */
#include "index/dart/tour.h"
#include "base/error.h"
#include "index/dart/ahead.h"

#include <string.h>

#define NODES_AT_ONCE 48
#define ITEMS_AT_ONCE 192
#define BYTES_AT_ONCE (256u << 10)
#define AHEAD_SCAN    256u /* children */
#define AHEAD_WALK    128u /* less: a slice should not read large nodes of the next one */


static int no_memory(void) {
    return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
}


bool dart_leaf_is_sound(const far_index *index, uint64_t word, uint64_t header) {
    return dart_word_len(word) != 0 && dart_leaf_klen(header) <= dart_of(index)->max_key &&
           dart_leaf_vlen(header) <= FAR_VALUE_MAX &&
           dart_leaf_used(header) <= dart_leaf_bytes(dart_word_len(word), header);
}


/* The place (prefix and symbol) against a bound: before, equal, after; *covers: it is a proper beginning of the bound.
 */
static int compare_place(const dart_header *above, unsigned symbol, far_bytes bound, bool *covers) {
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


size_t dart_item_place(const dart_item *item, uint8_t *place) {
    unsigned depth = dart_header_depth(item->above);
    memcpy(place, item->above->prefix, depth);
    if (item->symbol == DART_SYMBOL_END)
        return depth;
    place[depth] = (uint8_t)item->symbol;
    return depth + 1;
}


/* A child as an item, if it lies inside the bounds; 1: it and all that follow lie behind them. */
static int add_item(far_task *t, const dart_tour *tour, const dart_header *above, const far_bytes *from, uint64_t word,
                    dart_item ***last) {
    unsigned symbol = dart_word_symbol(word);
    bool covers, ignored;
    if (compare_place(above, symbol, *from, &covers) < 0 && !covers)
        return 0;
    if (tour->bounded && compare_place(above, symbol, tour->to, &ignored) >= 0)
        return 1;
    dart_item *item = far_scratch(t, sizeof(*item));
    if (!item)
        return no_memory();
    *item = (dart_item){NULL, word, above, symbol, covers, from, NULL};
    **last = item;
    *last = &item->next;
    return 0;
}


/* The words of the children of a node in order. Returns how many. */
static unsigned order_children(const dart_view *view, uint64_t words[DART_NODE_SLOTS_MAX]) {
    uint64_t there[(DART_NODE_SLOTS_MAX + 63) / 64] = {0}; /* a bit per rank of a symbol */
    uint16_t at[DART_NODE_SLOTS_MAX];                      /* its slot */
    unsigned count = 0;
    for (unsigned i = 0; i < view->count; i++) {
        if (!dart_is_child(view->slots[i]))
            continue;
        unsigned rank = dart_symbol_rank(dart_word_symbol(view->slots[i]));
        there[rank / 64] |= 1ull << rank % 64;
        at[rank] = (uint16_t)i;
    }
    for (unsigned w = 0; w < sizeof(there) / 8; w++)
        for (uint64_t rest = there[w]; rest; rest &= rest - 1) /* in an item F is a mark of our own */
            words[count++] = dart_thawed(view->slots[at[w * 64 + (unsigned)__builtin_ctzll(rest)]]);
    return count;
}


/* The children of a node as items in order, from a place on; those outside the bounds are left out. *last: where the
 * next one is hung. A scan keeps the inner ones in mind. */
static int add_items(far_task *t, const far_index *index, const dart_tour *tour, const dart_view *view,
                     const far_bytes *from, dart_item ***last) {
    uint64_t words[DART_NODE_SLOTS_MAX];
    unsigned count = order_children(view, words), inner = 0;
    int err = 0;
    for (unsigned i = 0; i < count && err == 0; i++)
        err = add_item(t, tour, view->header, from, words[i], last);
    for (unsigned i = 0; i < count; i++)
        if (dart_is_inner(words[i]))
            words[inner++] = words[i];
    if (tour->reads == DART_READ_LEAVES)
        dart_ahead_keep(t, index, &view->node, words, inner);
    return err < 0 ? err : 0;
}


static uint64_t leaf_read_bytes(const far_index *index, const dart_tour *tour, uint64_t word) {
    uint64_t code = dart_word_len(word),
             bytes = code == DART_SIZE_CODE_LONG ? DART_CHUNK_READ : dart_code_bytes((unsigned)code);
    uint64_t keys = (DART_LEAF_HEADER + dart_of(index)->max_key + 7) / 8 * 8;
    if (tour->reads == DART_READ_SLOTS)
        return code == DART_SIZE_CODE_LONG ? 8 : 0;
    return tour->reads == DART_READ_KEYS && keys < bytes ? keys : bytes;
}


static dart_node child_of(const dart_item *item) {
    return (dart_node){dart_word_addr(item->word), dart_word_type(item->word),
                       dart_header_depth(item->above) + 1 + dart_word_len(item->word)};
}


/* What is to be read of an item; 0: nothing, or nothing more. */
static int64_t bytes_of_item(const far_index *index, const dart_tour *tour, const dart_item *item) {
    if (item->image)
        return 0;
    if (dart_is_leaf(item->word)) {
        if (dart_word_len(item->word) == 0)
            return dart_corrupt(index, "node with a slot of no size", dart_word_addr(item->word));
        return (int64_t)leaf_read_bytes(index, tour, item->word);
    }
    dart_node node = child_of(item);
    if (node.depth > DART_KEY_MAX)
        return dart_corrupt(index, "node with a slot", node.addr);
    return dart_node_bytes(node.type, node.depth, dart_of(index)->bucket);
}


/* Puts the READs of items. What lies side by side, as leaves do that one client has written in order, is one READ. */
static int put_items(far_task *t, dart_item *const *items, const uint32_t *bytes, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        far_prefetch(t, dart_word_addr(items[i]->word));
    for (unsigned i = 0, end; i < count; i = end) {
        far_addr addr = dart_word_addr(items[i]->word);
        uint64_t whole = bytes[i], at = 0;
        for (end = i + 1; end < count && dart_word_addr(items[end]->word) == addr + whole; end++)
            whole += bytes[end];
        char *image = far_scratch(t, whole);
        if (!image)
            return no_memory();
        far_read(t, addr, image, whole);
        if (dart_is_leaf(items[i]->word)) /* never changes */
            far_mark(t, FAR_VERB_ANY_ORDER);
        for (unsigned j = i; j < end; at += bytes[j++])
            items[j]->image = (uint64_t *)(image + at);
    }
    return 0;
}


/* The rest of leaves whose slots do not tell their size. */
static int read_rest(far_task *t, far_index *index, const dart_tour *tour) {
    bool any = false;
    for (dart_item *item = tour->first; item; item = item->next) {
        if (!item->image || !dart_is_leaf(item->word) || dart_word_len(item->word) != DART_SIZE_CODE_LONG ||
            dart_is_frozen(item->word))
            continue;
        uint64_t used = dart_leaf_used(item->image[0]);
        if (!dart_leaf_is_sound(index, item->word, item->image[0]))
            return dart_corrupt(index, "leaf", dart_word_addr(item->word));
        uint64_t *whole = far_scratch(t, (used + 7) / 8 * 8);
        if (!whole) {
            far_forget(t);
            return no_memory();
        }
        far_read(t, dart_word_addr(item->word), whole, (used + 7) / 8 * 8);
        item->image = whole;
        item->word |= DART_FROZEN; /* this mark says that the leaf was read */
        any = true;
    }
    return any ? far_wait(t) : 0;
}


/* Puts the children of every inner node that was read, by an item or ahead, in its place. */
static int expand(far_task *t, far_index *index, dart_tour *tour) {
    for (dart_item **at = &tour->first; *at;) {
        dart_item *item = *at;
        dart_node child = child_of(item);
        if (!item->image && dart_is_inner(item->word))
            item->image = dart_ahead_find(tour->ahead, &child);
        if (!item->image || dart_is_leaf(item->word)) {
            at = &item->next;
            continue;
        }
        dart_view view = {.node = child, .header = (const dart_header *)item->image, .whole = true};
        view.count = dart_node_slots(view.node.type, view.node.depth, dart_of(index)->bucket);
        view.slots = (uint64_t *)((char *)item->image + dart_header_bytes(view.node.depth));
        if (!dart_header_is(view.header, &view.node))
            return dart_corrupt(index, "node", view.node.addr);
        int err = tour->node ? tour->node(t, index, &view, item, tour->ctx) : 0;
        dart_item **last = at, *rest = item->next;
        *last = NULL;
        if (err < 0 || (err = add_items(t, index, tour, &view, item->from, &last)) < 0)
            return err;
        *last = rest; /* next come its children, which may have been read with it */
    }
    return 0;
}


/* What is kept below the node of an item goes with its READ. */
static void look_ahead(far_task *t, const far_index *index, dart_tour *tour, const dart_item *item) {
    dart_node node = child_of(item);
    bool ends = false;
    if (tour->bounded)
        compare_place(item->above, item->symbol, tour->to, &ends);
    dart_ahead_gather(t, index, tour->ahead, &node, item->covers ? item->from : NULL, ends ? &tour->to : NULL);
}


/* Leaves that a look ahead is to promise: some more than are wanted, because a round more costs more. */
static size_t enough_ahead(const dart_tour *tour) {
    size_t wanted = tour->wanted < AHEAD_SCAN ? tour->wanted : AHEAD_SCAN;
    return wanted + wanted / 4 + 8;
}


/* One batch: what stands near the beginning of the front. */
static int one_round(far_task *t, far_index *index, dart_tour *tour) {
    bool scan = tour->reads == DART_READ_LEAVES;
    size_t most = scan ? AHEAD_SCAN : AHEAD_WALK, ahead = tour->wanted < most ? tour->wanted : most, children = 0;
    ahead += scan ? ahead + 8 : 0; /* some nodes more, because a round more costs more */
    unsigned nodes = 0, count = 0;
    uint64_t sum = 0;
    dart_item *items[ITEMS_AT_ONCE];
    uint32_t bytes[ITEMS_AT_ONCE];
    far_point(t, "dart:tour");
    tour->ahead = scan ? dart_ahead_new(t, index, enough_ahead(tour)) : NULL;
    for (dart_item *item = tour->first;
         item && children < ahead && nodes < NODES_AT_ONCE && count < ITEMS_AT_ONCE && sum < BYTES_AT_ONCE;
         item = item->next) {
        if (scan && dart_is_leaf(item->word) && children >= tour->wanted) {
            children++;
            continue;
        }
        int64_t more = bytes_of_item(index, tour, item);
        if (more < 0)
            return (int)more;
        if (more > 0) {
            items[count] = item;
            bytes[count++] = (uint32_t)more;
        }
        nodes += dart_is_inner(item->word);
        sum += (uint64_t)more;
        children += item->covers && scan ? 1 : dart_usual_children(dart_word_type(item->word));
        if (tour->ahead) {
            size_t before = tour->ahead->leaves = children;
            if (dart_is_inner(item->word))
                look_ahead(t, index, tour, item);
            children += tour->ahead->leaves - before;
        }
    }
    int err = put_items(t, items, bytes, count);
    if (err >= 0)
        err = dart_ahead_put(t, index, tour->ahead);
    if (err < 0) {
        far_forget(t);
        return err;
    }
    err = count ? far_wait(t) : 0;
    if (err >= 0 && scan) {
        bool any = false;
        for (dart_item *item = tour->first; item && !any; item = item->next)
            any = item->image && dart_is_leaf(item->word) && dart_word_len(item->word) == DART_SIZE_CODE_LONG &&
                  !dart_is_frozen(item->word);
        err = any ? read_rest(t, index, tour) : 0;
    }
    return err < 0 ? err : expand(t, index, tour);
}


/* A node that is exhausted before the tour is over costs more than the way from the root. Known to be enough: all keys
 * up to the end begin with its prefix. Likely: it has twice as many children as leaves are wanted. */
static bool is_enough(const dart_tour *tour, unsigned depth, dart_node_type type) {
    return (tour->bounded && dart_lcp(tour->from, tour->to) >= depth) || dart_usual_children(type) / 2 >= tour->wanted;
}


/* Reads the whole nodes that entries name. Returns how many of them are linked (a slot is not frozen) and have a prefix
 * that the first key begins with, the deepest first: all keys with that prefix are below it. */
static int read_starts(far_task *t, far_index *index, const dart_tour *tour, const dart_start *starts, int count,
                       dart_view *views) {
    for (int i = 0; i < count; i++) {
        const dart_node *node = &starts[i].node;
        unsigned header = dart_header_bytes(node->depth),
                 slots = dart_node_slots(node->type, node->depth, dart_of(index)->bucket);
        char *image = far_scratch(t, header + 8ull * slots);
        if (!image) {
            far_forget(t);
            return no_memory();
        }
        far_read(t, node->addr, image, header + 8ull * slots);
        far_mark(t, FAR_VERB_UNPROVEN); /* an entry of another length: it has another depth than it seems */
        views[i] = (dart_view){*node, 0, slots, (uint64_t *)(image + header), (const dart_header *)image, true};
    }
    int err = count > 0 ? far_wait(t) : count, good = 0;
    for (int i = 0; err >= 0 && i < count; i++) {
        dart_view view = views[i];
        far_bytes prefix = {view.header->prefix, view.node.depth};
        bool right = dart_header_is(view.header, &view.node) && dart_lcp(prefix, tour->from) == prefix.length &&
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


/* At a node on the way to the first key that holds enough. */
static int begin_express(far_task *t, far_index *index, dart_tour *tour) {
    dart_start starts[DART_STARTS_MAX];
    dart_view views[DART_STARTS_MAX];
    int count = dart_est_lookup(t, index, tour->from, starts, DART_STARTS_MAX);
    for (int i = 0; i < count; i++)
        if (!is_enough(tour, starts[i].node.depth, starts[i].node.type))
            starts[i--] = starts[--count];
    count = read_starts(t, index, tour, starts, count, views);
    if (count <= 0)
        return count;
    dart_item **last = &tour->first;
    tour->top = views[0].header;
    return add_items(t, index, tour, &views[0], &tour->from, &last);
}


/* The first place behind all keys that begin with the prefix of a node: 1; 0: there is none. */
static int place_behind(far_task *t, const dart_header *node, far_bytes *behind) {
    size_t length = dart_header_depth(node);
    uint8_t *place = far_scratch(t, length + 1);
    if (!place)
        return no_memory();
    memcpy(place, node->prefix, length);
    while (length > 0 && place[length - 1] == 0xff)
        length--;
    if (length == 0)
        return 0;
    place[length - 1]++;
    *behind = (far_bytes){place, length};
    return 1;
}


/* At all nodes on the way to the first key that the skip table names, and the root, read in one batch: the children of
 * the deepest, then those of each above it, from the place behind the one below on. Where the tree is deep that is many
 * levels at once. 1: it has begun; 0: the table names none. */
static int begin_chain(far_task *t, far_index *index, dart_tour *tour) {
    dart_start starts[DART_STARTS_MAX + 1];
    dart_view views[DART_STARTS_MAX + 1];
    int count = dart_est_lookup_all(t, index, tour->from, starts, DART_STARTS_MAX);
    if (count <= 0)
        return count;
    starts[count] = (dart_start){.node = {dart_of(index)->root, DART_N256, 0}};
    count = read_starts(t, index, tour, starts, count + 1, views);
    dart_item **last = &tour->first;
    const far_bytes *from = &tour->from;
    int err = count < 0 ? count : 1;
    for (int i = 0; i < count && err > 0; i++) {
        if ((err = add_items(t, index, tour, &views[i], from, &last)) < 0)
            return err;
        far_bytes *behind = far_scratch(t, sizeof(*behind));
        if (!behind)
            return no_memory();
        err = place_behind(t, views[i].header, behind); /* 0: nothing is behind it, nor behind those above */
        from = behind;
    }
    return err < 0 ? err : 1;
}


/* Puts the READs of all that earlier scans saw between the root and the leaves that are wanted; false: they saw too
 * little, and none is put. */
static bool foresees(far_task *t, far_index *index, dart_tour *tour, const dart_node *root) {
    dart_ahead *ahead = tour->express ? dart_ahead_new(t, index, enough_ahead(tour)) : NULL;
    dart_ahead_gather(t, index, ahead, root, &tour->from, tour->bounded ? &tour->to : NULL);
    if (!ahead || ahead->leaves < tour->wanted || dart_ahead_put(t, index, ahead) < 0)
        return false;
    tour->ahead = ahead;
    return true;
}


/* The root is read like any node. */
static int begin(far_task *t, far_index *index, dart_tour *tour) {
    dart_node root = {dart_of(index)->root, DART_N256, 0};
    dart_view view;
    dart_item **last = &tour->first;
    int err = 0;
    tour->begun = true;
    tour->top = NULL;
    tour->ahead = NULL;
    if (tour->express && dart_of(index)->est && tour->from.length > 0 && is_enough(tour, 2, DART_N256))
        err = begin_express(t, index, tour);
    else if (!foresees(t, index, tour, &root) && tour->express && dart_of(index)->est && tour->from.length > 0)
        err = begin_chain(t, index, tour);
    if (err != 0 || tour->top)
        return err;
    err = dart_read_node(t, index, &root, &view);
    if (err >= 0 && tour->node)
        err = tour->node(t, index, &view, NULL, tour->ctx);
    if (err < 0 || (err = add_items(t, index, tour, &view, &tour->from, &last)) < 0)
        return err;
    return tour->ahead ? expand(t, index, tour) : 0;
}


/* Behind all keys that begin with the prefix of the node at which it began: 1; or 0, when there is nothing behind. */
static int go_behind(far_task *t, dart_tour *tour) {
    int more = place_behind(t, tour->top, &tour->from);
    if (more <= 0)
        return more;
    tour->begun = tour->express = false; /* now from the root */
    return !tour->bounded || far_bytes_compare(tour->from, tour->to) < 0;
}


int dart_tour_next(far_task *t, far_index *index, dart_tour *tour, dart_item *leaf) {
    int err = tour->begun ? 0 : begin(t, index, tour);
    while (err >= 0) {
        if (!tour->first) {
            if (!tour->top || (err = go_behind(t, tour)) <= 0)
                break;
            err = begin(t, index, tour);
            continue;
        }
        dart_item *item = tour->first;
        bool read = item->image || (tour->reads == DART_READ_SLOTS && dart_word_len(item->word) != DART_SIZE_CODE_LONG);
        if (dart_is_leaf(item->word) && read) {
            if (item->image && !dart_leaf_is_sound(index, item->word, item->image[0]))
                return dart_corrupt(index, "leaf", dart_word_addr(item->word));
            *leaf = *item;
            tour->first = item->next;
            tour->wanted -= tour->wanted > 1;
            return 1;
        }
        err = one_round(t, index, tour);
    }
    return err < 0 ? err : 0;
}
