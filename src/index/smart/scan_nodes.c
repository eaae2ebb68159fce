/* Nodes in a traversal (traversal.h): READs the nodes among the next items of the stack, and replaces each of them by
 * its children in the range. scan_traversal.c calls smart_expand_nodes.
 *
 * A list node is READ as a whole, and its children are put in order by a bitmap of their ranks. The slots of a DIR node
 * are in key order already, except for EOK, which has the last slot and the lowest rank. */
#include "base/error.h"
#include "index/smart/traversal.h"

#include <stdlib.h>

#define BATCH_NODES 64

/* The ranks of those children of a node that may have keys in the range of the traversal. */
typedef struct ranks {
    unsigned first, last;
    int low, high; /* rank of the child that may contain the lower or upper bound; -1: the node is not on its path */
} ranks;

/* A node that is being replaced by its children. */
typedef struct expansion {
    smart_item item;
    size_t at; /* number of the item on the stack, counted from the next item (0) */
    smart_node node;
    bool in_parts; /* only the slots of these ranks were READ, and not the header */
    ranks ranks;   /* ranks of the children that take the place of the node */
} expansion;


int smart_make_room_for_items(smart_traversal *p, size_t more) {
    if (p->count + more <= p->size)
        return 0;
    size_t size = 2 * p->size;
    while (size < p->count + more)
        size *= 2;
    smart_item *items = realloc(p->items == p->first_items ? NULL : p->items, size * sizeof(*items));
    if (!items)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    if (p->items == p->first_items)
        memcpy(items, p->items, p->count * sizeof(*items));
    p->items = items;
    p->size = size;
    return 0;
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


/* Bounds of the ranks. */

static ranks ranks_in_range(const smart_traversal *p, const smart_item *item, unsigned depth) {
    ranks r = {.first = item->first, .last = item->last, .low = -1, .high = -1};
    if (item->on_low) {
        r.low = (int)smart_part_rank(smart_part(p->op.key, depth));
        r.first = (unsigned)r.low > r.first ? (unsigned)r.low : r.first;
    }
    if (item->on_high) {
        r.high = (int)smart_part_rank(smart_part(p->high.key, depth));
        r.last = (unsigned)r.high < r.last ? (unsigned)r.high : r.last;
    }
    return r;
}


/* Returns whether the subtree may contain the bound at which the traversal begins. */
static bool is_at_beginning(const smart_traversal *p, const smart_item *item) {
    return p->backward ? item->on_high : item->on_low;
}


static bool names_dir(uint64_t word) {
    return smart_word_kind_of(word) == SMART_NODE && smart_word_read_type(word) == SMART_READ_DIR;
}


/* Returns whether the slot word proves the prefix of the DIR node that it names, so that the header need not be READ:
 * the prefix is one byte longer than that of the node with the slot. */
static bool names_dir_of_known_prefix(uint64_t word) {
    return names_dir(word) && (word & SMART_GAP0);
}


/* Returns an estimate of the number of leaves that a node yields. A node at the beginning of the range counts as 0,
 * because most of its keys may be outside the range, unless it is a DIR node, whose ranks in the range are known. */
static size_t expected_leaves(const smart_traversal *p, const smart_item *item) {
    unsigned type = smart_word_read_type(item->word);
    if (names_dir_of_known_prefix(item->word)) {
        ranks r = ranks_in_range(p, item, item->depth + 1u);
        return r.first <= r.last ? (r.last - r.first + 1) / 2 : 0;
    }
    if (is_at_beginning(p, item))
        return 0;
    return type == SMART_READ_DIR ? smart_layout_slots(SMART_L512) : (smart_read_bytes(type) - SMART_HEADER) / 16;
}


/* Children. */

/* Returns the part of an item that all children of the node have in common. */
static smart_item common_part_of_children(const smart_node *node) {
    return (smart_item){.fp = node->fp, .depth = (uint16_t)node->depth, .last = SMART_PARTS - 1, .found = -1};
}


/* Puts the child in this slot on the stack, whose next free place is `top`. Returns the place after it. If the children
 * will be READ one by one, the processor already loads them now, so that its cache misses overlap. */
static inline smart_item *push_child(smart_traversal *p, smart_item *top, const smart_item *common,
                                     const smart_node *node, unsigned slot) {
    *top = *common;
    top->word = smart_slots(node)[slot] & ~SMART_FROZEN_BIT;
    top->slot = smart_slot_addr(node->addr, slot);
    if (p->steps_singly)
        far_prefetch(p->op.t, smart_word_addr(top->word));
    return top + 1;
}


/* Classifies the slot word of a node. Returns 1 if it names a child, 0 if not, SMART_MET_FROZEN if it is frozen, or an
 * error. */
static inline int examine_word(const smart_traversal *p, const smart_node *node, uint64_t word) {
    if ((word & SMART_FROZEN_BIT) && !p->accept_frozen)
        return SMART_MET_FROZEN;
    if (!smart_word_is_sound(word))
        return smart_fail_corrupt(p->op.index, node->addr, "node");
    return smart_word_kind_of(word) != SMART_NONE;
}


/* Puts the children of a DIR node on the stack. The slot of rank r is r - 1, and that of rank 0 is EOK. */
static int push_dir_children(smart_traversal *p, const expansion *x) {
    const smart_item common = common_part_of_children(&x->node);
    const uint64_t *slots = smart_slots(&x->node);
    smart_item *top = &p->items[p->count];
    int step = p->backward ? 1 : -1;
    unsigned rank = p->backward ? x->ranks.first : x->ranks.last;
    for (unsigned left = x->ranks.last + 1 - x->ranks.first; left > 0; left--, rank += (unsigned)step) {
        unsigned slot = rank ? rank - 1 : SMART_PART_EOK;
        if (slots[slot] == 0)
            continue;
        int child = examine_word(p, &x->node, slots[slot]);
        if (child == 1)
            top = push_child(p, top, &common, &x->node, slot);
        else if (child)
            return child;
    }
    p->count = (size_t)(top - p->items);
    return 0;
}


#define RANK_WORDS (SMART_PARTS / 64 + 1)

/* The children of a list node, in key order. */
typedef struct children {
    uint64_t present[RANK_WORDS]; /* bitmap of the ranks of the children */
    uint64_t used;                /* bitmap of the words of `present` that are not zero */
    uint16_t slot[SMART_PARTS];   /* for each rank in the bitmap: the slot of that child */
} children;


static int collect_children(const smart_traversal *p, const expansion *x, children *c) {
    const uint64_t *slots = smart_slots(&x->node);
    memset(c->present, 0, sizeof(c->present));
    c->used = 0;
    for (unsigned i = 0; i < x->node.words; i++) {
        int child = examine_word(p, &x->node, slots[i]);
        if (child < 0 || child == SMART_MET_FROZEN)
            return child;
        if (!(slots[i] & SMART_BOUND))
            break;
        unsigned rank = smart_part_rank(smart_word_part(slots[i]));
        if (child == 0 || rank < x->ranks.first || rank > x->ranks.last)
            continue;
        c->present[rank / 64] |= 1ull << rank % 64;
        c->used |= 1ull << rank / 64;
        c->slot[rank] = (uint16_t)i;
    }
    return 0;
}


/* Removes one bit from the bitmap and returns its number: the first bit if the traversal runs backward, else the last
 * bit, because the child that is visited next is put on the stack last. */
static inline unsigned take_bit(bool backward, uint64_t *bits) {
    unsigned bit = backward ? (unsigned)__builtin_ctzll(*bits) : 63 - (unsigned)__builtin_clzll(*bits);
    *bits &= ~(1ull << bit);
    return bit;
}


static int push_list_children(smart_traversal *p, const expansion *x) {
    children c;
    const smart_item common = common_part_of_children(&x->node);
    smart_item *top = &p->items[p->count];
    const bool backward = p->backward;
    int err = collect_children(p, x, &c);
    if (err != 0)
        return err;
    for (uint64_t used = c.used; used;) {
        unsigned w = take_bit(backward, &used);
        for (uint64_t rest = c.present[w]; rest;)
            top = push_child(p, top, &common, &x->node, c.slot[64 * w + take_bit(backward, &rest)]);
    }
    p->count = (size_t)(top - p->items);
    return 0;
}


static bool item_has_rank(const smart_item *item, int rank) {
    return (int)smart_part_rank(smart_word_part(item->word)) == rank;
}


/* Marks the children that may contain the bounds of the range. The children are the items of the stack from number
 * `begin` on. */
static void mark_bounds(smart_traversal *p, const expansion *x, size_t begin) {
    smart_item *lowest = &p->items[p->backward ? begin : p->count - 1],
               *highest = &p->items[p->backward ? p->count - 1 : begin];
    lowest->on_low = item_has_rank(lowest, x->ranks.low);
    highest->on_high = item_has_rank(highest, x->ranks.high);
}


/* Puts the slots of a DIR node that were not READ back on the stack, below the children. */
static void push_remainder(smart_traversal *p, const expansion *x) {
    ranks all = ranks_in_range(p, &x->item, x->node.depth);
    smart_item rest = x->item;
    rest.first = (uint16_t)(p->backward ? all.first : x->ranks.last + 1);
    rest.last = (uint16_t)(p->backward ? x->ranks.first - 1 : all.last);
    rest.found = -1;
    if (p->backward)
        rest.on_high = false;
    else
        rest.on_low = false;
    if (p->backward ? x->ranks.first == all.first : x->ranks.last == all.last)
        return;
    p->items[p->count++] = rest;
    far_point(p->op.t, "smart:remainder");
}


/* Puts the children of the node in the range on the stack, the next one on top. Returns SMART_MET_FROZEN if one of
 * their words is frozen. */
static int push_children(smart_traversal *p, const expansion *x, int found) {
    if (x->in_parts)
        push_remainder(p, x);
    size_t begin = p->count;
    int err = 0;
    if (x->ranks.first <= x->ranks.last)
        err = x->node.layout == SMART_DIR ? push_dir_children(p, x) : push_list_children(p, x);
    if (err != 0)
        return err;
    if (p->count == begin)
        return found < 0 ? 0 : smart_report_found_nodes(p, found);
    mark_bounds(p, x, begin);
    smart_item_at(p, 0)->found = found;
    return 0;
}


/* Determines where the keys below a node are, relative to the bound that is the key of `bound`. *side is -1 if all
 * these keys precede the bound, 0 if the node's prefix is a prefix of it, 1 if all these keys follow it. A subtree
 * without keys gets `side_of_none`. */
static int find_side(smart_op *bound, const smart_item *item, const smart_node *node, int side_of_none, int *side) {
    unsigned common, part;
    smart_link stuck;
    *side = 0;
    if (smart_prefix_matches(bound, node))
        return 0;
    int err = smart_common_prefix(bound, item->depth + 1u, (smart_link){item->slot, item->word}, node, &common, &part,
                                  &stuck);
    if (err < 0)
        return err;
    if (err == SMART_NO_LEAF)
        *side = side_of_none;
    else
        *side = common == bound->key.length || part > ((const uint8_t *)bound->key.data)[common] ? 1 : -1;
    return 0;
}


/* Determines which children of a node that was READ as a whole are in the range. Returns 1 if there may be such
 * children, 0 if not, or an error. */
static int find_children_in_range(smart_traversal *p, expansion *x, bool *is_whole) {
    int low = 1, high = -1, err = 0;
    smart_item *item = &x->item;
    /* A scan leaves out a subtree without keys. If it did not, it would return a key that another client inserts there
     * before the traversal READs the nodes below, on either side of the bound. For a walk or a check, such a subtree
     * counts as inside the range, so that its nodes are reported; the previous traversal may not have reported them. */
    int inside = p->each_node || p->each_node_once ? 1 : -1;
    if (item->on_low)
        err = find_side(&p->op, item, &x->node, inside, &low);
    if (item->on_high && err >= 0)
        err = find_side(&p->high, item, &x->node, -inside, &high);
    if (err < 0 || low < 0 || high > 0)
        return err;
    /* The prefix of this node is a prefix of the bound at which the traversal begins. With the node in the cache, the
     * next scan can read ahead more objects. */
    if (p->reads_ahead && is_at_beginning(p, item) && (p->backward ? high : low) == 0 &&
        !smart_was_read_ahead(p, item->word))
        smart_cache_store_node(p->op.st->cache, p->backward ? p->high.key : p->op.key, &x->node);
    item->on_low = low == 0;
    item->on_high = high == 0;
    x->ranks = ranks_in_range(p, item, x->node.depth);
    *is_whole = low > 0;
    return 1;
}


/* Puts the children of a node on the stack. The item of the node is not there any more. */
static int replace_by_children(smart_traversal *p, expansion *x) {
    int found = x->item.found, err;
    bool is_whole = false;
    if (x->in_parts)
        return push_children(p, x, found);
    if (smart_ctl_state(x->node.ctl) == SMART_PENDING)
        smart_mark_live(&p->op, x->node.addr, x->node.ctl);
    if ((err = find_children_in_range(p, x, &is_whole)) <= 0)
        return err;
    if ((p->each_node && (err = p->each_node(p, &x->item, &x->node)) < 0) ||
        (p->each_node_once && is_whole && (err = note_found_node(p, &x->node, x->item.found, &found)) < 0))
        return err;
    return push_children(p, x, found);
}


/* READs. */

/* READs those slots of a DIR node that the next leaves probably belong to. */
static int read_part(smart_traversal *p, expansion *x) {
    unsigned most = smart_slots_of_part(p);
    const smart_item *item = &x->item;
    ranks *r = &x->ranks;
    x->node = (smart_node){.addr = smart_word_addr(item->word),
                           .depth = item->depth + 1u,
                           .layout = SMART_DIR,
                           .words = smart_layout_slots(SMART_DIR),
                           .image = far_scratch(p->op.t, smart_layout_bytes(SMART_DIR))};
    if (!x->node.image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    *r = ranks_in_range(p, item, x->node.depth);
    if (p->backward && r->last + 1 > r->first + most)
        r->first = r->last + 1 - most;
    else if (r->last + 1 > r->first + most)
        r->last = r->first + most - 1;
    uint64_t *slots = smart_slots(&x->node);
    unsigned begin = r->first ? r->first - 1 : 0; /* the slot of the first rank after EOK */
    if (r->first == 0)
        far_read(p->op.t, smart_slot_addr(x->node.addr, SMART_PART_EOK), &slots[SMART_PART_EOK], 8);
    if (r->last <= begin)
        return smart_wait(&p->op);
    return far_read_now(p->op.t, smart_slot_addr(x->node.addr, begin), &slots[begin], 8ull * (r->last - begin), 0);
}


/* The size hint of a word may be too low: an insert that begins at a cached node does not READ the slot that names this
 * node, and so does not raise the hint. Therefore this function returns the word with at least the hint that covers all
 * slots of a smallest list. If the list is larger, the traversal raises the hint. */
static uint64_t word_reading_whole_list(uint64_t word) {
    return smart_word_read_type(word) == 0 ? smart_word_with_read_type(word, 1) : word;
}


/* Adds READs of the nodes among the next items, and stores one expansion for each. Returns their number, or an error.
 */
static int put_node_reads(smart_traversal *p, size_t ahead, expansion *list) {
    size_t most = p->op.st->scan_batch < BATCH_NODES ? p->op.st->scan_batch : BATCH_NODES, count = 0;
    bool ready = true; /* true while no item before the current one needs a READ */
    for (size_t i = 0, sum = 0; i < p->count && sum < ahead && count < most; i++) {
        const smart_item *item = smart_item_at(p, i);
        if (smart_word_kind_of(item->word) != SMART_NODE) {
            ready = ready && smart_was_read_ahead(p, item->word);
            sum++;
            continue;
        }
        sum += expected_leaves(p, item);
        expansion *x = &list[count];
        x->item = *item;
        x->at = i;
        x->in_parts = false;
        uint64_t word = word_reading_whole_list(item->word);
        bool foreseen = smart_take_readahead_node(p, word, &x->node);
        if (!foreseen && ready && i > 0)
            /* The items before this one are ready, and are visited first, because they may be all that the caller
             * wants. */
            break;
        ready = ready && foreseen;
        int err = foreseen ? 0 : smart_put_read_node(&p->op, word, true, &x->node);
        if (err < 0)
            return err;
        count++;
    }
    return (int)count;
}


/* Interprets the header of the node. If the node has slots that were not READ and may be needed, adds the READ of all
 * of them. *want gets the number of slots of the node that are READ then. */
static int take_node(smart_traversal *p, expansion *x, unsigned *want) {
    smart_node *node = &x->node;
    *want = node->words;
    if (x->in_parts)
        return 0;
    /* A scan checks only the slot words that it uses. */
    bool is_sound = p->wanted ? smart_take_header(&p->op, node) : smart_take_node(&p->op, node);
    if (!is_sound || node->depth <= x->item.depth)
        return smart_fail_corrupt(p->op.index, node->addr, "node");
    /* A check also examines the slots after the first unbound slot. */
    bool ends = node->layout == SMART_DIR || !(smart_slots(node)[node->words - 1] & SMART_BOUND);
    if (node->words == smart_layout_slots(node->layout) || (ends && node->layout != SMART_DIR && !p->each_node))
        return 0;
    return smart_put_read_more(&p->op, node, smart_layout_slots(node->layout), want);
}


/* Interprets the slots that a second READ has added to a list, and raises the size hint in the word that names it. */
static int take_rest_of_node(smart_traversal *p, expansion *x, unsigned want) {
    int err = smart_take_more(&p->op, &x->node, want);
    if (err == 0 && !p->accept_frozen && !p->each_node)
        smart_raise_hint(&p->op, x->item.slot, x->item.word, &x->node);
    return err;
}


/* Interprets the nodes that were READ. The size hints in their slot words may be outdated. So if the READ of a list
 * returned no unbound slot, the list is READ to its end in one more round trip, and its hint is raised. */
static int take_nodes(smart_traversal *p, expansion *list, size_t count) {
    unsigned want[BATCH_NODES];
    bool any = false;
    int err = 0;
    for (size_t i = 0; i < count; i++) {
        if ((err = take_node(p, &list[i], &want[i])) < 0)
            return err;
        any = any || want[i] > list[i].node.words;
    }
    if (any)
        err = smart_wait(&p->op);
    for (size_t i = 0; i < count && any && err >= 0; i++)
        if (want[i] > list[i].node.words)
            err = take_rest_of_node(p, &list[i], want[i]);
    return err;
}


/* Takes the items up to the last node off the stack, and puts them back, with the nodes replaced by their children. */
static int replace_nodes(smart_traversal *p, expansion *list, size_t count) {
    size_t front = list[count - 1].at + 1, more = front;
    for (size_t i = 0; i < count; i++)
        more += list[i].node.words;
    int err = smart_make_room_for_items(p, more);
    smart_item *items = far_scratch(p->op.t, front * sizeof(*items));
    if (err < 0 || !items)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    p->count -= front;
    memcpy(items, &p->items[p->count], front * sizeof(*items));
    for (size_t i = 0; i < front; i++) {
        if (count == 0 || list[count - 1].at != front - 1 - i) {
            p->items[p->count++] = items[i];
            continue;
        }
        expansion *x = &list[--count];
        if ((err = replace_by_children(p, x)) != 0) {
            p->frozen_item = items[i];
            return err;
        }
    }
    return 0;
}


int smart_expand_nodes(smart_traversal *p, size_t ahead) {
    expansion *list = far_scratch(p->op.t, BATCH_NODES * sizeof(*list));
    if (!list)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    int count = put_node_reads(p, ahead, list), err;
    if (count <= 0)
        return count < 0 ? count : SMART_NO_NODE;
    if ((err = smart_wait(&p->op)) < 0 || (err = take_nodes(p, list, (size_t)count)) < 0)
        return err;
    err = replace_nodes(p, list, (size_t)count);
    return err == 0 ? SMART_EXPANDED : err;
}


int smart_expand_next(smart_traversal *p) {
    expansion x;
    unsigned want;
    x.item = *smart_item_at(p, 0);
    x.in_parts = names_dir_of_known_prefix(x.item.word);
    int err =
        x.in_parts ? read_part(p, &x) : smart_fetch_node(&p->op, word_reading_whole_list(x.item.word), true, &x.node);
    if (err < 0 || (err = take_node(p, &x, &want)) < 0)
        return err;
    if (want > x.node.words && ((err = smart_wait(&p->op)) < 0 || (err = take_rest_of_node(p, &x, want)) < 0))
        return err;
    if ((err = smart_make_room_for_items(p, x.node.words)) < 0)
        return err;
    p->count--;
    p->frozen_item = x.item;
    err = replace_by_children(p, &x);
    return err == 0 ? SMART_EXPANDED : err;
}
