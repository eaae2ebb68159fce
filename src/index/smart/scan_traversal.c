/* Traversals of the tree in key order (traversal.h): the root, the leaves, and the order of the steps. scan.c and
 * check.c call smart_traversal_run.
 *
 * The stack of items has the next item on top, so that work at the front of the range moves few items. As long as a
 * node is among the next items, these nodes are READ together and their children take their places; then the leaves at
 * the front are READ together. So a scan takes one round trip per level of the tree and one for the leaves. A frozen
 * word ends the traversal. Then the replacement of its node is completed, and the next traversal begins at the last
 * key. */
#include "base/error.h"
#include "index/smart/traversal.h"

#include <stdlib.h>

#define BATCH_BYTES (512u << 10)
#define FIRST_ITEMS 160 /* enough for most scans */


int smart_report_found_nodes(smart_traversal *p, int found) {
    int err = 0;
    for (; found >= 0 && err >= 0; found = p->found_nodes[found].next)
        err = p->each_node_once(p, p->found_nodes[found].addr, p->found_nodes[found].layout);
    return err;
}


/* Leaves. */

/* Adds the READ of the leaf that the word names, and sets *image to the memory of its image. */
static int put_leaf_read(smart_traversal *p, uint64_t word, uint8_t **image) {
    unsigned class = smart_leaf_class(p->op.st, word);
    smart_leaf leaf;
    if (p->reads_ahead && smart_take_readahead_leaf(p, word, &leaf)) {
        *image = leaf.image;
        return 0;
    }
    if (class >= SMART_CLASSES)
        return smart_fail_corrupt(p->op.index, smart_word_addr(word), "slot of the leaf");
    *image = far_scratch(p->op.t, smart_class_bytes(class));
    if (!*image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    /* The order of these READs does not matter, because each leaf belongs to another key. */
    far_read_marked(p->op.t, smart_word_addr(word), *image, smart_class_bytes(class), FAR_VERB_ANY_ORDER);
    return 0;
}


/* Adds READs of the leaves of the next items, at most `most`, unless they were READ in advance. Returns the number of
 * leaves, or an error. */
static int put_leaf_reads(smart_traversal *p, size_t most, uint8_t **images) {
    size_t count = 0, bytes = 0;
    most = most < p->count ? most : p->count;
    for (; count < most && bytes < BATCH_BYTES; count++) {
        uint64_t word = smart_item_at(p, count)->word;
        if (smart_word_kind_of(word) != SMART_LEAF)
            break;
        int err = put_leaf_read(p, word, &images[count]);
        if (err < 0)
            return err;
        bytes += smart_class_bytes(smart_leaf_class(p->op.st, word));
    }
    return (int)count;
}


/* Interprets the leaf of the item, which was READ into the image. If the leaf was replaced or changed meanwhile, READs
 * it again, with its successors. The fields of the spot that describe the slot are set only if the leaf is DEAD or the
 * slot names an older leaf. */
static int take_leaf(smart_traversal *p, const smart_item *item, uint8_t *image, smart_spot *s) {
    unsigned class = smart_leaf_class(p->op.st, item->word);
    s->leaf.addr = smart_word_addr(item->word);
    s->leaf.image = image;
    s->outcome = SMART_HIT;
    s->chain = 0;
    bool is_sound = smart_take_leaf(&s->leaf, class);
    if (is_sound && smart_ctl_state(s->leaf.ctl) <= SMART_LIVE &&
        (s->leaf.kind != SMART_VI || smart_leaf_is_whole(&p->op, &s->leaf)))
        return 0;
    s->slot = item->slot;
    s->word = item->word;
    s->depth = item->depth;
    int err = 0;
    if (!is_sound || smart_ctl_state(s->leaf.ctl) != SMART_DEAD)
        err = smart_read_leaf(&p->op, s->leaf.addr, class, &s->leaf, &s->chain, s->old_leaves);
    p->run_again = err == SMART_SEARCH_AGAIN;
    if (err == 0 && smart_ctl_state(s->leaf.ctl) == SMART_DEAD)
        s->outcome = SMART_DEAD_LEAF;
    return err;
}


/* Visits the leaf of the next item, which was READ into the image, and takes the item off the stack. */
static inline int visit_leaf(smart_traversal *p, uint8_t *image, smart_spot *s) {
    const smart_item *item = smart_item_at(p, 0);
    int err = take_leaf(p, item, image, s);
    if (err != 0)
        return err;
    p->count--;
    if (p->wanted > 1)
        p->wanted--;
    if (item->found < 0 || (err = smart_report_found_nodes(p, item->found)) >= 0)
        err = p->each_leaf(p, item, s);
    if (p->readahead_leaves_left)
        p->readahead_leaves_left--;
    return err;
}


/* READs the leaves of the next items together, at most `most`, and visits them. */
static int visit_leaves(smart_traversal *p, size_t most, smart_spot *s) {
    uint8_t *images[SMART_SCAN_BATCH_MAX];
    size_t batch = p->op.st->scan_batch;
    int count = put_leaf_reads(p, most < batch ? most : batch, images);
    int err = count < 0 ? count : smart_wait(&p->op);
    for (int i = 0; i < count && err == 0; i++)
        err = visit_leaf(p, images[i], s);
    return err;
}


/* READs the leaves of the next items one after the other and visits them, up to the next node. */
static int visit_leaves_singly(smart_traversal *p, smart_spot *s) {
    uint8_t *image = NULL;
    unsigned room = 0; /* size of the image in bytes */
    int err = 0;
    while (p->count > 0 && err == 0) {
        const smart_item *item = smart_item_at(p, 0);
        if (smart_word_kind_of(item->word) != SMART_LEAF)
            break;
        unsigned class = smart_leaf_class(p->op.st, item->word);
        if (class >= SMART_CLASSES)
            return smart_fail_corrupt(p->op.index, smart_word_addr(item->word), "slot of the leaf");
        unsigned bytes = smart_class_bytes(class);
        if (bytes > room && !(image = far_scratch(p->op.t, room = bytes)))
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
        err = far_read_now(p->op.t, smart_word_addr(item->word), image, bytes, 0);
        if (err >= 0)
            err = visit_leaf(p, image, s);
    }
    return err;
}


/* The root. */

/* READs the next part of the root. The stack must be empty, which means that all items before these slots were visited.
 */
static int read_root_slots(smart_traversal *p) {
    smart_state *st = p->op.st;
    unsigned left = p->root_end - p->root_next, stripes = st->stripes, path = smart_part(p->op.key, 0);
    unsigned count = p->root_part < left ? p->root_part : left;
    p->root_part = p->steps_singly ? 4 * count : SMART_ROOT_SLOTS;
    unsigned first = p->backward ? p->root_end - count : p->root_next, end = first + count;
    uint64_t words = smart_stripe_slots(stripes) / 8, *image = far_scratch(p->op.t, 8 * words * stripes);
    if (!image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    for (unsigned i = 0; i < stripes; i++) {
        unsigned low = first <= i ? 0 : (first - i + stripes - 1) / stripes,
                 high = end <= i ? 0 : (end - i + stripes - 1) / stripes;
        if (low < high)
            far_read(p->op.t, st->stripe[i] + 8ull * low, image + words * i + low, 8ull * (high - low));
    }
    int err = smart_wait(&p->op);
    if (err < 0 || (err = smart_make_room_for_items(p, count)) < 0)
        return err;
    if (p->backward)
        p->root_end = first;
    else
        p->root_next = end;
    for (unsigned i = 0; i < count; i++) {
        unsigned b = p->backward ? first + i : end - 1 - i;
        uint64_t word = image[words * (b % stripes) + b / stripes];
        if ((err = smart_check_root_slot(&p->op, b, word)) < 0)
            return err;
        if (smart_word_kind_of(word) != SMART_NONE)
            p->items[p->count++] = (smart_item){.word = word,
                                                .slot = smart_root_slot(st, b),
                                                .last = SMART_PARTS - 1,
                                                .on_low = p->op.key.length && b == path,
                                                .on_high = p->bounded && b == smart_part(p->high.key, 0),
                                                .found = -1};
    }
    return 0;
}


/* Begins a traversal with READs of the root, in one batch with the nodes and leaves that the cache names. */
static int begin_traversal(smart_traversal *p) {
    p->run_again = false;
    p->op.is_traversal = true;
    p->count = 0;
    p->readahead = NULL;
    p->readahead_leaves_left = 0;
    p->root_next = p->op.key.length ? smart_part(p->op.key, 0) : 0;
    p->root_end = p->bounded && p->high.key.length ? smart_part(p->high.key, 0) + 1 : SMART_ROOT_SLOTS;
    /* There are usually many keys below one slot of the root. */
    p->root_part = p->steps_singly ? (unsigned)(p->wanted < 256 ? p->wanted : 256) / 16 + 1 : SMART_ROOT_SLOTS;
    bool foresee = p->reads_ahead && p->op.st->cache && smart_readahead_decide(p->op.st);
    int err = foresee ? smart_read_ahead(p, &p->root_part) : 0;
    return err < 0 ? err : read_root_slots(p);
}


/* Completes the replacement of the node in which the traversal found a frozen word. Afterwards the traversal must be
 * run again. */
static int complete_replacement(smart_traversal *p) {
    far_count_retry(p->op.t);
    int err = smart_replace(&p->op, p->frozen_item.slot, p->frozen_item.word, SMART_LAYOUTS, NULL, NULL);
    if (err == FAR_ERR_NO_MEMORY) {
        p->accept_frozen = true;
        err = 0;
    }
    p->run_again = err >= 0;
    return err < 0 ? err : SMART_TRAVERSAL_STOPS;
}


/* Takes the next step of the traversal: READs a part of the root, nodes, or leaves. */
static int take_step(smart_traversal *p, smart_spot *s) {
    size_t batch = p->op.st->scan_batch, ahead = p->wanted ? p->wanted : batch;
    if (p->count == 0)
        return read_root_slots(p);
    if (p->steps_singly && smart_word_kind_of(smart_item_at(p, 0)->word) == SMART_LEAF)
        return visit_leaves_singly(p, s);
    int result = p->steps_singly ? smart_expand_next(p) : smart_expand_nodes(p, ahead < batch ? ahead : batch);
    if (result == SMART_NO_NODE)
        return visit_leaves(p, ahead, s);
    if (result == SMART_MET_FROZEN)
        return complete_replacement(p);
    return result == SMART_EXPANDED ? 0 : result;
}


int smart_traversal_run(smart_traversal *p) {
    smart_item first_items[FIRST_ITEMS];
    smart_spot spot;
    smart_spot_clear(&spot);
    spot.proven = true;
    spot.layout = SMART_LAYOUTS;
    p->items = p->first_items = first_items;
    p->size = FIRST_ITEMS;
    int err = begin_traversal(p);
    while (err == 0 && (p->count > 0 || p->root_next < p->root_end)) {
        far_scratch_mark here = far_scratch_here(p->op.t);
        err = take_step(p, &spot);
        if (err < 0)
            far_discard_batch(p->op.t);
        far_scratch_back(p->op.t, here);
    }
    if (err < 0)
        far_discard_batch(p->op.t);
    smart_readahead_evaluate(p);
    if (p->items != first_items)
        free(p->items);
    free(p->found_nodes);
    p->items = p->first_items = NULL;
    p->found_nodes = NULL;
    p->found_count = p->found_size = 0;
    return err;
}
