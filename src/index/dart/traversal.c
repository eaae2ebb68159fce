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
#define PREFETCHED  4u
#define SMALL_NODE  8u /* all children of a node with at most this many slots become entries of the frontier at once */
#define LEAF_MEMORY 512u /* bytes of the memory that small leaves share */
#define ROOT_SLOTS  16u  /* number of slots of the root that are read together if objects are read one by one */


static int fail_no_memory(void) {
    return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a scan");
}


/* ---- The frontier ---- */

/* Returns a new entry of the frontier, in memory of an entry that was used before if there is one. The caller sets all
 * its fields. */
static inline dart_item *new_item(far_task *t, dart_traversal *traversal) {
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


static inline void remove_item(dart_traversal *traversal, dart_item **at) {
    dart_item *item = *at;
    *at = item->next;
    item->next = traversal->free_items;
    traversal->free_items = item;
    if (item->kind == DART_ITEM_REST) {
        item->rest->next_free = traversal->free_rests;
        traversal->free_rests = item->rest;
    }
}


dart_item *dart_traversal_add_rest(far_task *t, dart_traversal *traversal, dart_item **at, const dart_view *view,
                                   const dart_range *range, dart_clip clip) {
    dart_item *item = new_item(t, traversal);
    dart_rest *rest = item ? new_rest(t, traversal) : NULL;
    if (!rest)
        return NULL;
    dart_rest_init(rest, view, range, clip, traversal->backward, traversal->wanted);
    item->kind = DART_ITEM_REST;
    item->rest = rest;
    item->next = *at;
    *at = item;
    return item;
}


/* Inserts a slot into the frontier at *at. word: the slot's word, without the frozen bit. */
static inline dart_item *add_slot(far_task *t, dart_traversal *traversal, dart_item **at, uint64_t word, unsigned rank,
                                  const dart_header *parent, const dart_range *range, const dart_clip *clip) {
    dart_item *item = new_item(t, traversal);
    if (!item)
        return NULL;
    item->next = *at;
    item->word = word;
    item->parent = parent;
    item->range = range;
    item->image = NULL;
    item->rank = (uint16_t)rank;
    item->kind = dart_class_is_inner(dart_word_class(word)) ? DART_ITEM_NODE : DART_ITEM_LEAF;
    item->contains_from = rank == clip->from_rank;
    item->contains_to = rank == clip->to_rank;
    item->whole = false;
    *at = item;
    if (traversal->one_by_one)
        far_prefetch(t, dart_word_addr(word));
    return item;
}


/* Takes some children of the rest at *at. Takes more than one only if objects are read one by one. */
static inline int take_children(far_task *t, dart_traversal *traversal, dart_item **at) {
    size_t most = !traversal->one_by_one ? 1 : traversal->wanted < PREFETCHED ? traversal->wanted : PREFETCHED;
    dart_rest *rest = (*at)->rest;
    do {
        unsigned rank = dart_rest_next_rank(rest);
        uint64_t word = dart_rest_take(rest);
        dart_item *item = add_slot(t, traversal, at, word, rank, rest->view.header, rest->range, &rest->clip);
        if (!item)
            return fail_no_memory();
        at = &item->next;
    } while (--most > 0 && dart_rest_settle(rest) == DART_REST_READY);
    return 0;
}


/* Inserts all children of a small node that are inside the range into the frontier at *at. */
static int add_all_children(far_task *t, dart_traversal *traversal, dart_item **at, const dart_view *view,
                            const dart_range *range, const dart_clip *clip) {
    const dart_item *behind = *at;
    for (unsigned i = 0; i < view->count; i++) {
        uint64_t word = dart_thawed(view->slots[i]);
        unsigned rank = dart_symbol_rank(dart_word_symbol(word));
        if (!dart_is_child(word) || rank < clip->low || rank >= clip->high)
            continue;
        dart_item **place = at;
        while (*place != behind && ((*place)->rank < rank) != traversal->backward)
            place = &(*place)->next;
        if (!add_slot(t, traversal, place, word, rank, view->header, range, clip))
            return fail_no_memory();
    }
    return 0;
}


bool dart_traversal_next_key(dart_traversal *traversal, uint8_t *place, size_t *length) {
    while (traversal->frontier && traversal->frontier->kind == DART_ITEM_REST &&
           dart_rest_settle(traversal->frontier->rest) == DART_REST_EMPTY)
        remove_item(traversal, &traversal->frontier);
    const dart_item *item = traversal->frontier;
    if (!item)
        return false;
    bool rest = item->kind == DART_ITEM_REST;
    const dart_header *parent = rest ? item->rest->view.header : item->parent;
    unsigned depth = dart_header_depth(parent),
             symbol = dart_rank_symbol(rest ? dart_rest_next_rank(item->rest) : item->rank);
    memcpy(place, parent->prefix, depth);
    if (symbol != DART_SYMBOL_END)
        place[depth] = (uint8_t)symbol;
    *length = depth + (symbol != DART_SYMBOL_END);
    return true;
}


static inline dart_node item_child(const dart_item *item) {
    return (dart_node){dart_word_addr(item->word), dart_word_type(item->word),
                       dart_header_depth(item->parent) + 1 + dart_word_len(item->word)};
}


void dart_traversal_remember(far_task *t, const far_index *index, const dart_view *view) {
    uint64_t words[DART_RANKS];
    unsigned count = dart_inner_children(view, words);
    dart_scan_cache_put(t, index, &view->node, words, count);
}


/* Describes the child of a slot in a view, without an image. Returns the number of its bytes, or 0 if its depth is
 * impossible. */
static inline unsigned describe_node(const far_index *index, const dart_item *item, dart_view *view) {
    view->node = item_child(item);
    view->first = 0;
    view->count = dart_node_slots(view->node.type, view->node.depth, dart_of(index)->bucket);
    view->whole = true;
    return view->node.depth > DART_KEY_MAX ? 0 : dart_header_bytes(view->node.depth) + 8 * view->count;
}


/* Replaces the inner node at *at by its children. view: describes the node; image: the image of the node. */
static inline int open_node(far_task *t, far_index *index, dart_traversal *traversal, dart_item **at, dart_view *view,
                            uint64_t *image) {
    dart_item *item = *at;
    view->header = (const dart_header *)image;
    view->slots = (uint64_t *)((char *)image + dart_header_bytes(view->node.depth));
    if (view->header->word != dart_header_word(view->node.depth, view->node.type))
        return dart_fail_corrupt(index, "node", view->node.addr);
    int err = traversal->visit_node ? traversal->visit_node(t, index, view, item, traversal->ctx) : 0;
    if (err < 0)
        return err;
    if (traversal->reads == DART_READ_LEAVES && !traversal->one_by_one)
        dart_traversal_remember(t, index, view);
    dart_clip clip = {0, DART_RANKS, DART_NO_RANK, DART_NO_RANK};
    if (item->contains_from || item->contains_to)
        clip = dart_clip_children(view->header, item->range, item->contains_from, item->contains_to);
    if (view->count <= SMALL_NODE)
        err = add_all_children(t, traversal, &item->next, view, item->range, &clip);
    else if (!dart_traversal_add_rest(t, traversal, &item->next, view, item->range, clip))
        err = fail_no_memory();
    remove_item(traversal, at);
    return err;
}


/* Takes children of the rest at *at, or removes it if it is empty. Returns 1 if its next slot was not read, 0, or an
 * error. */
static inline int settle_rest(far_task *t, dart_traversal *traversal, dart_item **at) {
    dart_rest_state state = dart_rest_settle((*at)->rest);
    if (state == DART_REST_EMPTY)
        remove_item(traversal, at);
    return state == DART_REST_READY ? take_children(t, traversal, at) : state == DART_REST_UNREAD;
}


/* Takes children and opens nodes until the entry at *at is a slot whose child must be read, or a leaf, or a rest whose
 * next slot was not read. Returns 1; 0 if the frontier has no such entry from *at on; or an error. */
static int settle_entry(far_task *t, far_index *index, dart_traversal *traversal, dart_item **at) {
    int result = 0;
    for (dart_item *item; result == 0 && (item = *at) != NULL;) {
        if (item->kind == DART_ITEM_LEAF)
            return 1;
        if (item->kind == DART_ITEM_REST) {
            result = settle_rest(t, traversal, at);
            continue;
        }
        dart_view view;
        describe_node(index, item, &view);
        uint64_t *image = item->image ? item->image : dart_read_ahead_image(traversal->read_ahead, &view.node);
        if (!image)
            return 1;
        result = open_node(t, index, traversal, at, &view, image);
    }
    return result;
}


/* ---- Reading in batches ---- */

static inline uint64_t leaf_read_bytes(const far_index *index, const dart_traversal *traversal, uint64_t word) {
    uint64_t code = dart_leaf_code(word),
             bytes = code == DART_SIZE_CODE_LONG ? DART_CHUNK_READ : dart_code_bytes((unsigned)code);
    if (traversal->reads == DART_READ_LEAVES)
        return bytes;
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
    if (item->kind == DART_ITEM_LEAF) {
        if (dart_word_len(item->word) == 0)
            return dart_fail_corrupt(index, "leaf (its slot has no size code)", dart_word_addr(item->word));
        return (int64_t)leaf_read_bytes(index, traversal, item->word);
    }
    dart_view view;
    unsigned bytes = describe_node(index, item, &view);
    return bytes ? (int64_t)bytes : dart_fail_corrupt(index, "node (its slot has an impossible depth)", view.node.addr);
}


/* Returns true if a leaf was read whose length the size code of its slot cannot express, so that its rest must be read.
 */
static bool lacks_rest_of_leaf(const dart_traversal *traversal, const dart_item *item) {
    return item->kind == DART_ITEM_LEAF && item->image && dart_word_len(item->word) == DART_SIZE_CODE_LONG &&
           !item->whole && traversal->reads == DART_READ_LEAVES;
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
        if (!lacks_rest_of_leaf(traversal, item))
            continue;
        any = true;
        err = add_whole_leaf_read(t, index, item);
    }
    if (err < 0)
        far_discard_batch(t);
    return err < 0 || !any ? err : far_wait(t);
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
        if (r->items[i]->kind == DART_ITEM_LEAF) /* Leaves never change, so the order of this READ does not matter. */
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
    return wanted + 8;
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
    if (scan && item->kind == DART_ITEM_LEAF && r->children >= traversal->wanted) {
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
    r->nodes += item->kind == DART_ITEM_NODE;
    r->sum += (uint64_t)more;
    /* The leaf at the start of a backward scan often has the excluded upper bound itself as its key. If it counted as a
     * wanted leaf, the scan would need one more round for its last leaf. */
    bool excluded = traversal->backward && contains_start && item->kind == DART_ITEM_LEAF && !item->range->to_included;
    r->children += excluded ? 0 : contains_start && scan ? 1 : dart_expected_children(dart_word_type(item->word));
    if (scan && traversal->read_ahead && item->kind == DART_ITEM_NODE)
        collect_read_ahead(t, index, traversal, item, &r->children);
    return 0;
}


/* Chooses what a round reads, from the start of the frontier on. If the slots of the root that were read do not
 * suffice, the round reads more of them together with the objects before them. */
static int plan_round(far_task *t, far_index *index, dart_traversal *traversal, reading *r) {
    bool scan = traversal->reads == DART_READ_LEAVES;
    size_t most = scan ? AHEAD_SCAN : AHEAD_WALK, ahead = traversal->wanted < most ? traversal->wanted : most;
    ahead += scan ? ahead - ahead / 4 + 8 : 0; /* some superfluous READs cost less than another round */
    int err = 0, more = 1;
    r->count = r->nodes = 0;
    r->sum = r->children = 0;
    r->unread = NULL;
    for (dart_item **at = &traversal->frontier;
         err >= 0 && !r->unread && r->children < ahead && r->nodes < NODES_AT_ONCE && r->count < ITEMS_AT_ONCE &&
         r->sum < BYTES_AT_ONCE;
         at = &(*at)->next) {
        if ((more = settle_entry(t, index, traversal, at)) <= 0)
            return more;
        if ((*at)->kind == DART_ITEM_REST)
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


/* Returns true if the part of a leaf that the traversal needs was read. */
static bool leaf_was_read(const dart_traversal *traversal, const dart_item *leaf) {
    if (traversal->reads == DART_READ_SLOTS && dart_word_len(leaf->word) != DART_SIZE_CODE_LONG)
        return true;
    return leaf->image && !lacks_rest_of_leaf(traversal, leaf);
}


/* Removes entries that are not leaves from the start of the frontier, and reads in batches, until the first entry is a
 * leaf that was read. Returns 1; 0 if no leaf remains; or an error. */
static int find_leaf_in_batches(far_task *t, far_index *index, dart_traversal *traversal) {
    int result;
    while ((result = settle_entry(t, index, traversal, &traversal->frontier)) == 1) {
        const dart_item *first = traversal->frontier;
        if (first->kind == DART_ITEM_LEAF && leaf_was_read(traversal, first))
            return 1;
        if ((result = read_round(t, index, traversal)) < 0)
            return result;
    }
    return result;
}


/* ---- Reading one by one ---- */

/* Returns memory for the image of a leaf. A caller uses only the leaf that it got last, so small leaves share memory. */
static inline uint64_t *leaf_memory(far_task *t, dart_traversal *traversal, uint64_t bytes) {
    if (bytes > LEAF_MEMORY)
        return far_scratch(t, bytes);
    if (!traversal->leaf_memory)
        traversal->leaf_memory = far_scratch(t, LEAF_MEMORY);
    return traversal->leaf_memory;
}


/* Reads the first entry of the frontier, which is a leaf. Returns 1 or an error. */
static inline int read_first_leaf(far_task *t, far_index *index, dart_traversal *traversal) {
    dart_item *leaf = traversal->frontier;
    unsigned code = dart_leaf_code(leaf->word);
    if (code == 0)
        return dart_fail_corrupt(index, "leaf (its slot has no size code)", dart_word_addr(leaf->word));
    uint64_t bytes = leaf_read_bytes(index, traversal, leaf->word);
    if (bytes == 0)
        return 1;
    if (!(leaf->image = leaf_memory(t, traversal, bytes)))
        return fail_no_memory();
    int err = far_read_now(t, dart_word_addr(leaf->word), leaf->image, bytes, FAR_VERB_ANY_ORDER);
    if (err >= 0 && code == DART_SIZE_CODE_LONG && traversal->reads == DART_READ_LEAVES)
        err = read_long_leaves(t, index, traversal);
    return err < 0 ? err : 1;
}


/* Reads the first entry of the frontier, which is an inner node, and replaces it by its children. */
static inline int read_first_node(far_task *t, far_index *index, dart_traversal *traversal) {
    dart_view view;
    unsigned bytes = describe_node(index, traversal->frontier, &view);
    if (bytes == 0)
        return dart_fail_corrupt(index, "node (its slot has an impossible depth)", view.node.addr);
    uint64_t *image = far_scratch(t, bytes);
    if (!image)
        return fail_no_memory();
    int err = far_read_now(t, view.node.addr, image, bytes, 0);
    return err < 0 ? err : open_node(t, index, traversal, &traversal->frontier, &view, image);
}


/* Does the same as find_leaf_in_batches, but reads each object when it is needed. */
static inline int find_leaf_one_by_one(far_task *t, far_index *index, dart_traversal *traversal) {
    int result = 0;
    for (dart_item *first; result >= 0 && (first = traversal->frontier) != NULL;) {
        if (first->kind == DART_ITEM_LEAF)
            return read_first_leaf(t, index, traversal);
        if (first->kind == DART_ITEM_NODE) {
            result = read_first_node(t, index, traversal);
        } else if ((result = settle_rest(t, traversal, &traversal->frontier)) == 1) {
            dart_rest_add_next_read(t, first->rest, ROOT_SLOTS);
            result = far_wait(t);
        }
    }
    return result;
}


/* ---- Visiting ---- */

static int find_leaf(far_task *t, far_index *index, dart_traversal *traversal) {
    return traversal->one_by_one ? find_leaf_one_by_one(t, index, traversal)
                                 : find_leaf_in_batches(t, index, traversal);
}


/* Called when the frontier is empty. Returns 1 if the traversal has started again, 0 if it is complete, or an error. */
static int continue_traversal(far_task *t, far_index *index, dart_traversal *traversal) {
    int more = traversal->start_node ? dart_traversal_leave_start_node(t, traversal) : 0;
    int err = more > 0 ? dart_traversal_start(t, index, traversal) : 0;
    return err < 0 ? err : more;
}


int dart_traversal_next(far_task *t, far_index *index, dart_traversal *traversal, const dart_item **leaf) {
    int result = traversal->started ? 0 : dart_traversal_start(t, index, traversal);
    while (result >= 0 && (result = find_leaf(t, index, traversal)) == 0)
        if ((result = continue_traversal(t, index, traversal)) == 0)
            return 0;
    if (result < 0)
        return result;
    const dart_item *item = *leaf = traversal->frontier;
    if (item->image && !dart_leaf_is_sound(index, item->word, item->image[0]))
        return dart_fail_corrupt(index, "leaf", dart_word_addr(item->word));
    remove_item(traversal, &traversal->frontier);
    traversal->wanted -= traversal->wanted > 1;
    return 1;
}
