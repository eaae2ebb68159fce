/* Traversals of the tree in key order (traversal.h), and scans. check.c uses the traversals too.
 *
 * The stack of items has the next item on top, so that work at the front of the range moves few items. As long as a
 * node is among the next items, these nodes are READ together and their children take their places; then the leaves at
 * the front are READ together. So a scan takes one round trip per level of the tree and one for the leaves. A frozen
 * word ends the traversal. Then the replacement of its node is completed, and the next traversal begins at the last
 * key. */
#include "base/error.h"
#include "index/smart/smart.h"
#include "index/smart/traversal.h"

#include <stdlib.h>
#include <string.h>

enum { NO_NODE, EXPANDED, MET_FROZEN }; /* results of expand_nodes; expand_node returns MET_FROZEN too */

#define BATCH_NODES 64
#define BATCH_BYTES (512u << 10)


/* Returns item number i, counted from the next item (0). */
static smart_item *item_at(const smart_traversal *p, size_t i) {
    return &p->items[p->count - 1 - i];
}


static int make_room_for_items(smart_traversal *p, size_t more) {
    if (p->count + more <= p->size)
        return 0;
    size_t size = p->size ? 2 * p->size : 512;
    while (size < p->count + more)
        size *= 2;
    smart_item *items = realloc(p->items, size * sizeof(*items));
    if (!items)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    p->items = items;
    p->size = size;
    return 0;
}


static int compare_parts_descending(const void *a, const void *b) {
    unsigned x = smart_part_rank(smart_word_part(((const smart_item *)a)->word));
    unsigned y = smart_part_rank(smart_word_part(((const smart_item *)b)->word));
    return (x < y) - (x > y);
}


static int report_found_nodes(smart_traversal *p, int found) {
    int err = 0;
    for (; found >= 0 && err >= 0; found = p->found_nodes[found].next)
        err = p->each_node_once(p, p->found_nodes[found].addr, p->found_nodes[found].layout);
    return err;
}


/* Appends a node to the nodes that are reported together with the next leaf. If the traversal began in the middle of
 * the node, the node is left out, because the previous traversal reported it. */
static int note_found_node(smart_traversal *p, const smart_node *node, int next, int *found) {
    if (p->found_count == p->found_size) {
        int size = p->found_size ? 2 * p->found_size : 256;
        smart_found_node *nodes = realloc(p->found_nodes, (size_t)size * sizeof(*nodes));
        if (!nodes)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
        p->found_nodes = nodes;
        p->found_size = size;
    }
    p->found_nodes[p->found_count] = (smart_found_node){node->addr, node->layout, next};
    *found = p->found_count++;
    return 0;
}


/* Replaces item number `at`, which names a node, by its children within the range. Returns MET_FROZEN if one of its
 * words is frozen. */
static int expand_node(smart_traversal *p, size_t at, const smart_node *node, bool on_path, bool on_end, int found) {
    const uint64_t *slots = smart_slots(node);
    smart_item made[SMART_PARTS + 1];
    size_t count = 0;
    unsigned from = on_path ? smart_part_rank(smart_part(p->op.key, node->depth)) : 0;
    unsigned until = on_end ? smart_part_rank(smart_part(p->end.key, node->depth)) : SMART_PARTS;
    for (unsigned i = 0; i < node->words; i++) {
        if ((slots[i] & SMART_FROZEN_BIT) && !p->accept_frozen)
            return MET_FROZEN;
        if (!(slots[i] & SMART_BOUND)) {
            if (node->layout != SMART_DIR)
                break;
            continue;
        }
        unsigned rank = smart_part_rank(smart_word_part(slots[i]));
        if (smart_word_kind_of(slots[i]) == SMART_NONE || rank < from || rank > until)
            continue;
        far_addr slot = smart_slot_addr(node->addr, i);
        made[count++] = (smart_item){slots[i] & ~SMART_FROZEN_BIT, slot, node->fp, node->depth, on_path && rank == from,
                                     on_end && rank == until,      -1};
    }
    qsort(made, count, sizeof(made[0]), compare_parts_descending);
    int err = count ? make_room_for_items(p, count) : report_found_nodes(p, found);
    if (err < 0)
        return err;
    if (count)
        made[count - 1].found = found;
    smart_item *place = item_at(p, at);
    memmove(place + count, place + 1, at * sizeof(*place));
    memcpy(place, made, count * sizeof(made[0]));
    p->count = p->count - 1 + count;
    return 0;
}


/* Determines where the keys below a node on the path are, relative to the first key of the range. *result is -1 if all
 * these keys precede the first key, 0 if the node's prefix is a prefix of it, 1 if all these keys follow it. */
static int find_side_of_start(smart_traversal *p, const smart_item *item, const smart_node *node, int *result) {
    unsigned common, part;
    smart_link stuck;
    *result = 0;
    if (smart_prefix_matches(&p->op, node))
        return 0;
    int err = smart_common_prefix(&p->op, item->depth + 1, (smart_link){item->slot, item->word}, node, &common, &part,
                                  &stuck);
    if (err < 0)
        return err;
    /* The subtree has no keys. It counts as following the first key of the range, so that a walk reports the node; the
     * previous traversal may not have reported it. */
    if (err == SMART_NO_LEAF)
        *result = 1;
    else
        *result = common == p->op.key.length || part > ((const uint8_t *)p->op.key.data)[common] ? 1 : -1;
    return 0;
}


/* Returns where the keys below a node are, relative to the key before which the range ends, as far as the node's header
 * shows this: 1 if all keys of the subtree follow the end key, -1 if all precede it, 0 if the node is on the path to
 * the end key or the header does not decide. */
static int find_side_of_end(const smart_traversal *p, const smart_item *item, const smart_node *node) {
    const uint8_t *end = p->end.key.data;
    unsigned d = item->depth + 1;
    if (smart_prefix_matches(&p->end, node) || node->depth - smart_info_tail(node->info) > d)
        return 0;
    while (d < node->depth && d < p->end.key.length && smart_info_byte(node->info, d) == end[d])
        d++;
    if (d == node->depth)
        return 0;
    return d == p->end.key.length || smart_info_byte(node->info, d) > end[d] ? 1 : -1;
}


static void drop_item(smart_traversal *p, size_t at) {
    smart_item *place = item_at(p, at);
    memmove(place, place + 1, at * sizeof(*place));
    p->count--;
}


static int visit_node(smart_traversal *p, const smart_item *item, const smart_node *node) {
    return p->each_node ? p->each_node(p, item, node) : 0;
}


/* Returns an estimate of the number of items that will replace this one. A node on the path to the first key counts as
 * 0, because most of its keys may be outside the range. */
static size_t expected_items(const smart_item *item) {
    unsigned type = smart_word_read_type(item->word);
    if (smart_word_kind_of(item->word) != SMART_NODE)
        return 1;
    if (item->on_path)
        return 0;
    return type == SMART_READ_DIR ? smart_layout_slots(SMART_L512) : (smart_read_bytes(type) - SMART_HEADER) / 16;
}


/* Interprets the nodes that were READ. The size hints in their slot words may be outdated. So if the READ of a list
 * returned no unbound slot, the list is READ to its end in one more round trip, and its hint is raised. */
static int read_missing_slots(smart_traversal *p, smart_node *nodes, const size_t *at, size_t count) {
    unsigned want[BATCH_NODES], seen;
    int err = 0;
    for (size_t i = 0; i < count; i++) {
        smart_node *node = &nodes[i];
        if (!smart_take_node(&p->op, node))
            return smart_fail_corrupt(p->op.index, node->addr, "node");
        want[i] = node->words;
        bool full = !smart_find_slot(node, SMART_PARTS, &seen) && seen == node->words;
        /* A check also examines the slots after the first unbound slot. */
        bool more = node->layout != SMART_DIR && (full || p->each_node);
        if (more && (err = smart_put_read_more(&p->op, node, smart_layout_slots(node->layout), &want[i])) < 0)
            return err;
    }
    if ((err = smart_wait(&p->op)) < 0)
        return err;
    for (size_t i = 0; i < count && err == 0; i++) {
        bool grown = want[i] > nodes[i].words;
        err = smart_take_more(&p->op, &nodes[i], want[i]);
        const smart_item *item = item_at(p, at[i]);
        if (err == 0 && grown && !p->accept_frozen && !p->each_node)
            smart_raise_hint(&p->op, item->slot, item->word, &nodes[i]);
    }
    return err;
}


/* The size hint of a word may be too low: an insert that begins at a cached node does not READ the slot that names this
 * node, and so does not raise the hint. Therefore this function returns the word with at least the hint that covers all
 * slots of a smallest list. If the list is larger, the traversal raises the hint. */
static uint64_t word_reading_whole_list(uint64_t word) {
    return smart_word_read_type(word) == 0 ? smart_word_with_read_type(word, 1) : word;
}


/* Prefetches the objects of the next items, which will be READ next, unless they were READ in advance. */
static void prefetch_front(const smart_traversal *p, size_t most) {
    for (size_t i = 0; i < p->count && i < most && !p->reads_ahead; i++)
        far_prefetch(p->op.t, smart_word_addr(item_at(p, i)->word));
}


/* READs the nodes among the next items and replaces these items by their children. Considers only as many of the next
 * items as will probably yield `ahead` items. */
static int expand_nodes(smart_traversal *p, size_t ahead) {
    size_t at[BATCH_NODES], count = 0;
    smart_node *nodes = far_scratch(p->op.t, BATCH_NODES * sizeof(*nodes));
    int err, where;
    if (!nodes)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    size_t most = p->op.st->scan_batch < BATCH_NODES ? p->op.st->scan_batch : BATCH_NODES;
    bool ready = true; /* true while no item before the current one needs a READ */
    prefetch_front(p, most);
    for (size_t i = 0, sum = 0; i < p->count && sum < ahead && count < most; i++) {
        const smart_item *item = item_at(p, i);
        sum += expected_items(item);
        if (smart_word_kind_of(item->word) != SMART_NODE) {
            ready = ready && smart_was_read_ahead(p, item->word);
            continue;
        }
        uint64_t word = word_reading_whole_list(item->word);
        bool foreseen = smart_take_readahead_node(p, word, &nodes[count]);
        if (!foreseen && ready && i > 0)
            /* The items before this one are ready, and are visited first, because they may be all that the caller
             * wants. */
            break;
        ready = ready && foreseen;
        if (!foreseen && (err = smart_put_read_node(&p->op, word, true, &nodes[count])) < 0)
            return err;
        at[count++] = i;
    }
    if (count == 0)
        return NO_NODE;
    if ((err = smart_wait(&p->op)) < 0)
        return err;
    if ((err = read_missing_slots(p, nodes, at, count)) < 0)
        return err;
    for (size_t i = count; i-- > 0;) {
        smart_item item = *item_at(p, at[i]);
        smart_node *node = &nodes[i];
        if (node->depth <= item.depth)
            return smart_fail_corrupt(p->op.index, node->addr, "node");
        if (smart_ctl_state(node->ctl) == SMART_PENDING)
            smart_mark_live(&p->op, node->addr, node->ctl);
        where = 1;
        if (item.on_path && (err = find_side_of_start(p, &item, node, &where)) < 0)
            return err;
        int end = item.on_end ? find_side_of_end(p, &item, node) : -1;
        if (where < 0 || end > 0) {
            drop_item(p, at[i]);
            continue;
        }
        /* The prefix of this node is a prefix of the key. With the node in the cache, the next scan can read ahead more
         * objects. */
        if (where == 0 && item.on_path && p->reads_ahead && p->op.st->cache && !smart_was_read_ahead(p, item.word))
            smart_cache_store_node(p->op.st->cache, p->op.key, node);
        int found = item.found;
        if ((err = visit_node(p, &item, node)) < 0 ||
            (p->each_node_once && where > 0 && (err = note_found_node(p, node, item.found, &found)) < 0))
            return err;
        if ((err = expand_node(p, at[i], node, where == 0, end == 0 && smart_prefix_matches(&p->end, node), found)) !=
            0) {
            p->frozen_item = item;
            return err < 0 ? err : MET_FROZEN;
        }
    }
    return EXPANDED;
}


/* READs the leaves of the next items, at most `most`, and visits them. */
static int visit_leaves(smart_traversal *p, size_t most) {
    size_t count = 0, bytes = 0;
    size_t batch = p->op.st->scan_batch;
    smart_leaf *leaves = far_scratch(p->op.t, batch * sizeof(*leaves));
    int err = 0;
    if (!leaves)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    prefetch_front(p, most < batch ? most : batch);
    while (count < p->count && count < most && count < batch && (count == 0 || bytes < BATCH_BYTES)) {
        uint64_t word = item_at(p, count)->word;
        if (smart_word_kind_of(word) != SMART_LEAF)
            break;
        unsigned class = smart_leaf_class(p->op.st, word);
        if (!smart_take_readahead_leaf(p, word, &leaves[count])) {
            if ((err = smart_put_read_leaf(&p->op, smart_word_addr(word), class, &leaves[count])) < 0)
                return err;
            far_mark(p->op.t, FAR_VERB_ANY_ORDER); /* each leaf is an independent READ of another key */
        }
        bytes += smart_class_bytes(class);
        count++;
    }
    if ((err = smart_wait(&p->op)) < 0)
        return err;
    for (size_t i = 0; i < count && err == 0; i++) {
        smart_item item = *item_at(p, 0);
        smart_leaf *leaf = &leaves[i];
        smart_spot s = {.outcome = SMART_HIT,
                        .proven = true,
                        .slot = item.slot,
                        .word = item.word,
                        .depth = item.depth,
                        .layout = SMART_LAYOUTS};
        unsigned class = smart_leaf_class(p->op.st, item.word);
        bool plain = smart_take_leaf(leaf, class) && smart_ctl_state(leaf->ctl) != SMART_REPLACED &&
                     smart_leaf_is_whole(&p->op, leaf);
        if (plain)
            s.leaf = *leaf;
        else if ((err = smart_read_leaf(&p->op, leaf->addr, class, &s.leaf, &s.chain, s.old_leaves)) != 0) {
            p->run_again = err == SMART_SEARCH_AGAIN;
            return err;
        }
        if (smart_ctl_state(s.leaf.ctl) == SMART_DEAD)
            s.outcome = SMART_DEAD_LEAF;
        p->count--;
        p->wanted -= p->wanted > 1;
        if ((err = report_found_nodes(p, item.found)) >= 0)
            err = p->each_leaf(p, &item, &s);
        p->readahead_leaves_left -= p->readahead_leaves_left > 0;
    }
    return err;
}


/* READs the slots p->root_next to end - 1 of the root. The stack must be empty, which means that all items before these
 * slots were visited. */
static int read_root_slots(smart_traversal *p, unsigned end) {
    smart_state *st = p->op.st;
    unsigned first = p->root_next, stripes = st->stripes, path = smart_part(p->op.key, 0);
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
    if (err < 0 || (err = make_room_for_items(p, SMART_ROOT_SLOTS)) < 0)
        return err;
    p->root_next = end;
    for (unsigned b = end; b-- > first;) {
        uint64_t word = image[words * (b % stripes) + b / stripes];
        if ((err = smart_check_root_slot(&p->op, b, word)) < 0)
            return err;
        if (smart_word_kind_of(word) != SMART_NONE)
            p->items[p->count++] = (smart_item){.word = word,
                                                .slot = smart_root_slot(st, b),
                                                .on_path = p->op.key.length && b == path,
                                                .on_end = p->bounded && b == smart_part(p->end.key, 0),
                                                .found = -1};
    }
    return 0;
}


/* Begins a traversal with READs of the root, in one batch with the nodes and leaves that the cache names. */
static int begin_traversal(smart_traversal *p) {
    unsigned first = p->op.key.length ? smart_part(p->op.key, 0) : 0, end = SMART_ROOT_SLOTS;
    if (p->bounded && p->end.key.length)
        end = smart_part(p->end.key, 0) + 1;
    p->run_again = false;
    p->op.is_traversal = true;
    p->count = 0;
    p->readahead = NULL;
    p->readahead_leaves_left = 0;
    p->root_next = first;
    p->root_end = end;
    bool foresee = p->reads_ahead && p->op.st->cache && smart_readahead_decide(p->op.st);
    int err = foresee ? smart_read_ahead(p, first, &end) : 0;
    return err < 0 ? err : read_root_slots(p, end);
}


int smart_traversal_run(smart_traversal *p) {
    int err = begin_traversal(p);
    while (err == 0 && (p->count > 0 || p->root_next < p->root_end)) {
        far_scratch_mark here = far_scratch_here(p->op.t);
        size_t batch = p->op.st->scan_batch, ahead = p->wanted ? p->wanted : batch;
        if (p->count == 0)
            err = read_root_slots(p, p->root_end);
        else if ((err = expand_nodes(p, ahead < batch ? ahead : batch)) == NO_NODE)
            err = visit_leaves(p, ahead);
        else if (err == MET_FROZEN) {
            far_count_retry(p->op.t);
            err = smart_replace(&p->op, p->frozen_item.slot, p->frozen_item.word, SMART_LAYOUTS, NULL, NULL);
            if (err == FAR_ERR_NO_MEMORY) {
                p->accept_frozen = true;
                err = 0;
            }
            p->run_again = err >= 0;
            err = err < 0 ? err : SMART_TRAVERSAL_STOPS;
        } else if (err == EXPANDED)
            err = 0;
        if (err < 0)
            far_discard_batch(p->op.t);
        far_scratch_back(p->op.t, here);
    }
    if (err < 0)
        far_discard_batch(p->op.t);
    smart_readahead_evaluate(p);
    free(p->items);
    free(p->found_nodes);
    p->items = NULL;
    p->found_nodes = NULL;
    p->size = 0;
    p->found_count = p->found_size = 0;
    return err;
}


/* The traversal for one chunk of a scan. */

typedef struct scan_traversal {
    smart_traversal traversal;
    far_scan_chunk *scan;
    uint8_t *last; /* key of the last pair that was given to the scan; `length` is its length in bytes */
    size_t length;
    /* true once a pair with a key after the start of the chunk was given, so that the chunk may end: the next chunk
     * then begins at a later key */
    bool any;
} scan_traversal;


/* Gives one pair to the scan. The chunk ends with the last leaf that was READ in advance, so that the next chunk can
 * read ahead from there. */
static int give_pair(smart_traversal *p, const smart_item *item, const smart_spot *s) {
    (void)item;
    scan_traversal *sp = (scan_traversal *)p;
    bool last = p->readahead_leaves_left == 1;
    if (s->outcome == SMART_HIT) {
        memcpy(sp->last, s->leaf.key.data, s->leaf.key.length);
        sp->length = s->leaf.key.length;
        sp->any = sp->any || far_bytes_compare(s->leaf.key, sp->scan->from) > 0;
        int err = far_scan_give(sp->scan, s->leaf.key, s->leaf.value);
        if (err != 0)
            return err;
    }
    return last && sp->any;
}


int smart_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    scan_traversal sp = {
        .scan = scan,
        .last = far_scratch(t, SMART_KEY_MAX + 1),
        .traversal = {.each_leaf = give_pair, .wanted = scan->wanted, .bounded = scan->bounded, .reads_ahead = true}};
    far_bytes from = scan->from;
    int err;
    if (!sp.last)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    if (sp.traversal.wanted && scan->after)
        sp.traversal.wanted++;
    if (scan->bounded && (err = smart_op_begin(&sp.traversal.end, t, index, scan->to)) < 0)
        return err;
    for (unsigned attempt = 0;; attempt++) {
        if ((err = smart_op_begin(&sp.traversal.op, t, index, from)) < 0)
            return err;
        err = smart_traversal_run(&sp.traversal);
        if (err < 0 || !sp.traversal.run_again)
            break;
        far_back_off(t, attempt);
        if (sp.length) {
            uint8_t *copy = far_scratch(t, sp.length);
            if (!copy)
                return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
            memcpy(copy, sp.last, sp.length);
            from = (far_bytes){copy, sp.length};
        }
    }
    scan->end = err == 0;
    return err < 0 ? err : 0;
}
