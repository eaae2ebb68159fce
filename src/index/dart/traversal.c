/* Traversals in key order, for scans, walks, checks and counts. traversal.h describes their state; other files call
 * dart_traversal_next.
 *
 * On a network, a round reads the nodes and leaves near the start of the frontier in one batch. If the memory is mapped
 * into the process, a round trip costs nothing, and then each object is read when the traversal reaches it. */
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
/* maximal number of children that are taken from a node together if objects are read one by one, so that their cache
 * misses overlap */
#define PREFETCHED 4u
#define ROOT_SLOTS 16u /* number of slots of the root that are read together if objects are read one by one */


static int fail_no_memory(void) {
    return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a scan");
}


bool dart_leaf_is_sound(const far_index *index, uint64_t word, uint64_t header) {
    return dart_word_len(word) != 0 && dart_leaf_klen(header) <= dart_of(index)->max_key &&
           dart_leaf_vlen(header) <= FAR_VALUE_MAX &&
           dart_leaf_used(header) <= dart_leaf_bytes(dart_word_len(word), header);
}


/* ---- The frontier ---- */

/* Returns a new entry of the frontier, in memory of an entry that was used before if there is one. The caller sets all
 * its fields. */
static dart_item *new_item(far_task *t, dart_traversal *traversal) {
    dart_item *item = traversal->free_items;
    if (!item)
        return far_scratch(t, sizeof(*item));
    traversal->free_items = item->next;
    return item;
}


static dart_rest *new_rest(far_task *t, dart_traversal *traversal) {
    dart_rest *rest = traversal->free_rests;
    if (!rest)
        return far_scratch(t, sizeof(*rest));
    traversal->free_rests = rest->next_free;
    return rest;
}


static void remove_item(dart_traversal *traversal, dart_item **at) {
    dart_item *item = *at;
    *at = item->next;
    item->next = traversal->free_items;
    traversal->free_items = item;
    if (item->rest) {
        item->rest->next_free = traversal->free_rests;
        traversal->free_rests = item->rest;
    }
}


dart_item *dart_traversal_add_rest(far_task *t, dart_traversal *traversal, dart_item **at, const dart_view *view,
                                   const dart_range *range, bool contains_from, bool contains_to) {
    dart_item *item = new_item(t, traversal);
    dart_rest *rest = item ? new_rest(t, traversal) : NULL;
    if (!rest)
        return NULL;
    dart_rest_init(rest, view, range, contains_from, contains_to, traversal->backward);
    item->rest = rest;
    item->next = *at;
    *at = item;
    return item;
}


/* Takes the next child of the rest at *at, and makes it the entry before the rest. */
static dart_item *take_child(far_task *t, dart_traversal *traversal, dart_item **at) {
    dart_rest *rest = (*at)->rest;
    dart_item *item = new_item(t, traversal);
    if (!item)
        return NULL;
    unsigned rank = dart_rest_next_rank(rest);
    *item = (dart_item){.next = *at,
                        .word = dart_rest_take(rest),
                        .parent = rest->view.header,
                        .range = rest->range,
                        .symbol = dart_rank_symbol(rank),
                        .contains_from = rank == rest->from_rank,
                        .contains_to = rank == rest->to_rank};
    *at = item;
    return item;
}


/* Takes some children of the rest at *at. Takes more than one only if objects are read one by one. */
static int take_children(far_task *t, dart_traversal *traversal, dart_item **at) {
    size_t most = !traversal->one_by_one ? 1 : traversal->wanted < PREFETCHED ? traversal->wanted : PREFETCHED;
    dart_item *rest = *at;
    do {
        dart_item *item = take_child(t, traversal, at);
        if (!item)
            return fail_no_memory();
        if (traversal->one_by_one)
            far_prefetch(t, dart_word_addr(item->word));
        at = &item->next;
    } while (--most > 0 && dart_rest_settle(rest->rest) == DART_REST_READY);
    return 0;
}


bool dart_traversal_next_key(dart_traversal *traversal, uint8_t *place, size_t *length) {
    while (traversal->frontier && traversal->frontier->rest &&
           dart_rest_settle(traversal->frontier->rest) == DART_REST_EMPTY)
        remove_item(traversal, &traversal->frontier);
    const dart_item *item = traversal->frontier;
    if (!item)
        return false;
    const dart_header *parent = item->rest ? item->rest->view.header : item->parent;
    unsigned depth = dart_header_depth(parent),
             symbol = item->rest ? dart_rank_symbol(dart_rest_next_rank(item->rest)) : item->symbol;
    memcpy(place, parent->prefix, depth);
    if (symbol != DART_SYMBOL_END)
        place[depth] = (uint8_t)symbol;
    *length = depth + (symbol != DART_SYMBOL_END);
    return true;
}


static dart_node item_child(const dart_item *item) {
    return (dart_node){dart_word_addr(item->word), dart_word_type(item->word),
                       dart_header_depth(item->parent) + 1 + dart_word_len(item->word)};
}


/* Stores in the scan cache which inner children a scan has seen in a node. */
static void remember_children(far_task *t, const far_index *index, const dart_traversal *traversal, dart_rest *rest) {
    uint64_t words[DART_RANKS];
    if (traversal->reads != DART_READ_LEAVES || traversal->one_by_one)
        return;
    unsigned count = dart_rest_inner_children(rest, words);
    dart_scan_cache_put(t, index, &rest->view.node, words, count);
}


/* Replaces the inner node at *at, whose image was read, by its children. */
static int open_node(far_task *t, far_index *index, dart_traversal *traversal, dart_item **at) {
    dart_item *item = *at;
    dart_view view = {.node = item_child(item), .header = (const dart_header *)item->image, .whole = true};
    view.count = dart_node_slots(view.node.type, view.node.depth, dart_of(index)->bucket);
    view.slots = (uint64_t *)((char *)item->image + dart_header_bytes(view.node.depth));
    if (!dart_header_matches(view.header, &view.node))
        return dart_fail_corrupt(index, "node", view.node.addr);
    int err = traversal->visit_node ? traversal->visit_node(t, index, &view, item, traversal->ctx) : 0;
    if (err < 0)
        return err;
    dart_item *rest = dart_traversal_add_rest(t, traversal, &item->next, &view, item->range, item->contains_from,
                                              item->contains_to);
    if (!rest)
        return fail_no_memory();
    remember_children(t, index, traversal, rest->rest);
    remove_item(traversal, at);
    return 0;
}


/* Takes children and opens nodes until the entry at *at is a slot whose child must be read, or a leaf, or a rest whose
 * next slot was not read. Returns 1; 0 if the frontier has no such entry from *at on; or an error. */
static int settle_entry(far_task *t, far_index *index, dart_traversal *traversal, dart_item **at) {
    int err = 0;
    while (*at && err >= 0) {
        dart_item *item = *at;
        if (item->rest) {
            dart_rest_state state = dart_rest_settle(item->rest);
            if (state == DART_REST_UNREAD)
                return 1;
            if (state == DART_REST_EMPTY)
                remove_item(traversal, at);
            else
                err = take_children(t, traversal, at);
            continue;
        }
        if (dart_is_leaf(item->word))
            return 1;
        dart_node child = item_child(item);
        if (!item->image && !(item->image = dart_read_ahead_image(traversal->read_ahead, &child)))
            return 1;
        err = open_node(t, index, traversal, at);
    }
    return err;
}


/* ---- Reading ---- */

static uint64_t leaf_read_bytes(const far_index *index, const dart_traversal *traversal, uint64_t word) {
    uint64_t code = dart_word_len(word),
             bytes = code == DART_SIZE_CODE_LONG ? DART_CHUNK_READ : dart_code_bytes((unsigned)code);
    uint64_t keys = (DART_LEAF_HEADER + dart_of(index)->max_key + 7) / 8 * 8;
    if (traversal->reads == DART_READ_SLOTS)
        return code == DART_SIZE_CODE_LONG ? 8 : 0;
    return traversal->reads == DART_READ_KEYS && keys < bytes ? keys : bytes;
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


/* Returns true if a leaf was read whose length the size code of its slot cannot express, so that its rest must be read.
 */
static bool lacks_rest_of_leaf(const dart_traversal *traversal, const dart_item *item) {
    return traversal->reads == DART_READ_LEAVES && item->image && dart_is_leaf(item->word) &&
           dart_word_len(item->word) == DART_SIZE_CODE_LONG && !item->whole;
}


/* Adds the READ of such a leaf. */
static int add_whole_leaf_read(far_task *t, const far_index *index, dart_item *item) {
    uint64_t used = dart_leaf_used(item->image[0]);
    if (!dart_leaf_is_sound(index, item->word, item->image[0]))
        return dart_fail_corrupt(index, "leaf", dart_word_addr(item->word));
    uint64_t *whole = far_scratch(t, (used + 7) / 8 * 8);
    if (!whole)
        return fail_no_memory();
    far_read(t, dart_word_addr(item->word), whole, (used + 7) / 8 * 8);
    item->image = whole;
    item->whole = true;
    return 0;
}


/* Reads the rest of all leaves of the frontier that lack it. */
static int read_long_leaves(far_task *t, far_index *index, const dart_traversal *traversal) {
    int err = 0;
    bool any = false;
    for (dart_item *item = traversal->frontier; item && err >= 0; item = item->next) {
        if (item->rest || !lacks_rest_of_leaf(traversal, item))
            continue;
        any = true;
        err = add_whole_leaf_read(t, index, item);
    }
    if (err < 0)
        far_discard_batch(t);
    return err < 0 || !any ? err : far_wait(t);
}


/* Reads the first entry of the frontier, on mapped memory. */
static int read_first(far_task *t, far_index *index, dart_traversal *traversal) {
    dart_item *item = traversal->frontier;
    if (item->rest) {
        dart_rest_add_next_read(t, item->rest, ROOT_SLOTS);
        return far_wait(t);
    }
    int64_t bytes = item_read_bytes(index, traversal, item);
    if (bytes > 0 && !(item->image = far_scratch(t, (size_t)bytes)))
        return fail_no_memory();
    if (bytes <= 0)
        return (int)bytes;
    int err = far_read_now(t, dart_word_addr(item->word), item->image, (size_t)bytes,
                           dart_is_leaf(item->word) ? FAR_VERB_ANY_ORDER : 0);
    return err >= 0 && lacks_rest_of_leaf(traversal, item) ? read_long_leaves(t, index, traversal) : err;
}


typedef struct reading { /* what a round reads */
    unsigned count, nodes;
    uint64_t sum;      /* bytes of the items */
    size_t children;   /* expected number of children of the entries that the round has passed */
    dart_rest *unread; /* the rest of the root, of which more slots must be read; or NULL */
    dart_item *items[ITEMS_AT_ONCE];
    uint32_t bytes[ITEMS_AT_ONCE];
} reading;


/* Adds the READs of items to the batch. A single READ covers objects that are adjacent in memory, such as leaves that
 * one client wrote in key order. Returns 0 or an error. */
static int add_item_reads(far_task *t, const reading *r) {
    for (unsigned i = 0; i < r->count; i++)
        far_prefetch(t, dart_word_addr(r->items[i]->word));
    for (unsigned i = 0, end; i < r->count; i = end) {
        far_addr addr = dart_word_addr(r->items[i]->word);
        uint64_t whole = r->bytes[i], at = 0;
        for (end = i + 1; end < r->count && dart_word_addr(r->items[end]->word) == addr + whole; end++)
            whole += r->bytes[end];
        char *image = far_scratch(t, whole);
        if (!image)
            return fail_no_memory();
        far_read(t, addr, image, whole);
        if (dart_is_leaf(r->items[i]->word)) /* Leaves never change, so the order of this READ does not matter. */
            far_mark(t, FAR_VERB_ANY_ORDER);
        for (unsigned j = i; j < end; at += r->bytes[j++])
            r->items[j]->image = (uint64_t *)(image + at);
    }
    return 0;
}


/* Returns the number of leaves for which nodes are read ahead. This number is larger than the number of wanted leaves,
 * because some superfluous READs cost less than another round. */
size_t dart_read_ahead_goal(const dart_traversal *traversal) {
    size_t wanted = traversal->wanted < AHEAD_SCAN ? traversal->wanted : AHEAD_SCAN;
    return wanted + wanted / 4 + 8;
}


/* Makes a new list of nodes that a round of a scan reads ahead, in front of the lists of earlier rounds. */
static void new_read_ahead(far_task *t, const far_index *index, dart_traversal *traversal) {
    dart_read_ahead *ahead = dart_read_ahead_new(t, index, dart_read_ahead_goal(traversal), traversal->backward);
    if (!ahead)
        return;
    ahead->older = traversal->read_ahead;
    traversal->read_ahead = ahead;
}


/* Adds to the read-ahead the nodes that the scan cache names below the node of an item. */
static void collect_read_ahead(far_task *t, const far_index *index, dart_traversal *traversal, const dart_item *item,
                               size_t *children) {
    dart_node node = item_child(item);
    size_t before = traversal->read_ahead->expected_leaves = *children;
    dart_read_ahead_collect(t, index, traversal->read_ahead, &node, item->contains_from ? &item->range->from : NULL,
                            item->contains_to ? &item->range->to : NULL);
    *children += traversal->read_ahead->expected_leaves - before;
}


/* Adds the READ of a slot's child to the round, unless the child is superfluous. */
static int plan_item(far_task *t, far_index *index, dart_traversal *traversal, reading *r, dart_item *item) {
    bool scan = traversal->reads == DART_READ_LEAVES,
         contains_start = traversal->backward ? item->contains_to : item->contains_from;
    if (scan && dart_is_leaf(item->word) && r->children >= traversal->wanted) {
        r->children++;
        return 0;
    }
    int64_t more = item_read_bytes(index, traversal, item);
    if (more < 0)
        return (int)more;
    if (more > 0) {
        r->items[r->count] = item;
        r->bytes[r->count++] = (uint32_t)more;
    }
    r->nodes += dart_is_inner(item->word);
    r->sum += (uint64_t)more;
    r->children += contains_start && scan ? 1 : dart_expected_children(dart_word_type(item->word));
    if (scan && traversal->read_ahead && dart_is_inner(item->word))
        collect_read_ahead(t, index, traversal, item, &r->children);
    return 0;
}


/* Chooses what a round reads, from the start of the frontier on. If the slots of the root that were read do not
 * suffice, the round reads more of them together with the objects before them. */
static int plan_round(far_task *t, far_index *index, dart_traversal *traversal, reading *r) {
    bool scan = traversal->reads == DART_READ_LEAVES;
    size_t most = scan ? AHEAD_SCAN : AHEAD_WALK, ahead = traversal->wanted < most ? traversal->wanted : most;
    ahead += scan ? ahead + 8 : 0; /* some superfluous READs cost less than another round */
    int err = 0, more = 1;
    r->count = r->nodes = 0;
    r->sum = r->children = 0;
    r->unread = NULL;
    for (dart_item **at = &traversal->frontier; err >= 0 && !r->unread && r->children < ahead &&
                                                r->nodes < NODES_AT_ONCE && r->count < ITEMS_AT_ONCE &&
                                                r->sum < BYTES_AT_ONCE;
         at = &(*at)->next) {
        if ((more = settle_entry(t, index, traversal, at)) <= 0)
            return more;
        if ((*at)->rest)
            r->unread = (*at)->rest;
        else
            err = plan_item(t, index, traversal, r, *at);
    }
    return err;
}


/* Runs a round: reads the entries near the start of the frontier in one batch. */
static int read_round(far_task *t, far_index *index, dart_traversal *traversal) {
    reading r;
    far_point(t, "dart:expand_frontier");
    if (traversal->reads == DART_READ_LEAVES)
        new_read_ahead(t, index, traversal);
    int err = plan_round(t, index, traversal, &r);
    if (err >= 0)
        err = add_item_reads(t, &r);
    if (err >= 0 && r.unread)
        dart_rest_add_next_read(t, r.unread, DART_RANKS);
    if (err >= 0)
        err = dart_read_ahead_add_reads(t, index, traversal->read_ahead);
    if (err < 0) {
        far_discard_batch(t);
        return err;
    }
    err = far_wait(t);
    return err < 0 ? err : read_long_leaves(t, index, traversal);
}


/* ---- Visiting ---- */

/* Returns true if the part of a leaf that the traversal needs was read. */
static bool leaf_was_read(const dart_traversal *traversal, const dart_item *leaf) {
    if (traversal->reads == DART_READ_SLOTS && dart_word_len(leaf->word) != DART_SIZE_CODE_LONG)
        return true;
    return leaf->image && !lacks_rest_of_leaf(traversal, leaf);
}


static int visit_leaf(const far_index *index, dart_traversal *traversal, dart_item *leaf) {
    const dart_item *item = traversal->frontier;
    if (item->image && !dart_leaf_is_sound(index, item->word, item->image[0]))
        return dart_fail_corrupt(index, "leaf", dart_word_addr(item->word));
    *leaf = *item;
    remove_item(traversal, &traversal->frontier);
    traversal->wanted -= traversal->wanted > 1;
    return 1;
}


int dart_traversal_next(far_task *t, far_index *index, dart_traversal *traversal, dart_item *leaf) {
    int err = traversal->started ? 0 : dart_traversal_start(t, index, traversal);
    while (err >= 0) {
        int more = settle_entry(t, index, traversal, &traversal->frontier);
        if (more < 0)
            return more;
        const dart_item *first = traversal->frontier;
        if (!first) {
            if (!traversal->start_node || (err = dart_traversal_leave_start_node(t, traversal)) <= 0)
                break;
            err = dart_traversal_start(t, index, traversal);
            continue;
        }
        if (!first->rest && dart_is_leaf(first->word) && leaf_was_read(traversal, first))
            return visit_leaf(index, traversal, leaf);
        err = traversal->one_by_one ? read_first(t, index, traversal) : read_round(t, index, traversal);
    }
    return err < 0 ? err : 0;
}
