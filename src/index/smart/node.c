/* This file reads internal nodes, searches in them, and builds new ones. */
#include "base/error.h"
#include "index/smart/smart.h"

#include <string.h>


int smart_fail_corrupt(const far_index *index, far_addr addr, const char *what) {
    return far_fail(FAR_ERR_CORRUPT, "index '%s': the %s at %#llx is corrupt", index->name, what,
                    (unsigned long long)addr);
}


/* The slots of the root are bound when the index is created and are never frozen. Any other word is damage. */
int smart_check_root_slot(const smart_op *op, unsigned byte, uint64_t word) {
    bool sound = smart_word_is_sound(word) && (word & SMART_BOUND) && !(word & SMART_FROZEN_BIT) &&
                 smart_word_part(word) == byte;
    return sound ? 0 : smart_fail_corrupt(op->index, smart_root_slot(op->st, byte), "slot of the root");
}


static unsigned bytes_to_read(uint64_t word, bool whole) {
    unsigned type = smart_word_read_type(word);
    return type == SMART_READ_DIR ? (whole ? smart_layout_bytes(SMART_DIR) : SMART_HEADER) : smart_read_bytes(type);
}


/* Prepares the node and its image for a READ. */
static inline int prepare_node_read(smart_op *op, far_addr addr, unsigned bytes, smart_node *node) {
    *node = (smart_node){.addr = addr, .words = (bytes - SMART_HEADER) / 8, .image = far_scratch(op->t, bytes)};
    return node->image ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
}


int smart_put_read_node(smart_op *op, uint64_t word, bool whole, smart_node *node) {
    return smart_put_read_bytes(op, smart_word_addr(word), bytes_to_read(word, whole), node);
}


int smart_put_read_bytes(smart_op *op, far_addr addr, unsigned bytes, smart_node *node) {
    int err = prepare_node_read(op, addr, bytes, node);
    if (err == 0)
        far_read(op->t, addr, node->image, bytes);
    return err;
}


int smart_fetch_node(smart_op *op, uint64_t word, bool whole, smart_node *node) {
    unsigned bytes = bytes_to_read(word, whole);
    int err = prepare_node_read(op, smart_word_addr(word), bytes, node);
    if (err < 0)
        return err;
    op->mark = far_rdwc_mark(op->t);
    return far_read_now(op->t, node->addr, node->image, bytes, 0);
}


bool smart_take_header(const smart_op *op, smart_node *node) {
    node->ctl = node->image[0];
    node->fp = node->image[1];
    node->info = node->image[2];
    node->depth = smart_info_depth(node->info);
    node->layout = smart_ctl_layout(node->ctl);
    if (smart_ctl_kind(node->ctl) != SMART_INTERNAL_NODE || smart_ctl_tag(node->ctl) != op->st->tag ||
        node->layout >= SMART_LAYOUTS)
        return false;
    return smart_ctl_state(node->ctl) <= SMART_FROZEN && node->depth > 0 &&
           node->words <= smart_layout_slots(node->layout) &&
           smart_info_tail(node->info) == (node->depth < SMART_TAIL_MAX ? node->depth : SMART_TAIL_MAX);
}


bool smart_take_node(const smart_op *op, smart_node *node) {
    if (!smart_take_header(op, node))
        return false;
    if (op->index->lenient) /* smart_descend checks the slot that is used */
        return true;
    for (unsigned i = 0; i < node->words; i++)
        if (!smart_word_is_sound(smart_slots(node)[i]))
            return false;
    return true;
}


/* Each READ at least doubles the number of slots, so that even a long list takes few round trips. */
int smart_put_read_more(smart_op *op, smart_node *node, unsigned words, unsigned *want) {
    unsigned have = node->words, slots = smart_layout_slots(node->layout);
    *want = words > 2 * have ? words : 2 * have;
    if (*want > slots || *want == 0) /* 0: damage has turned a directory, of which the header was read, into a list */
        *want = slots;
    if (*want <= have) {
        *want = have;
        return 0;
    }
    uint64_t *image = far_scratch(op->t, SMART_HEADER + 8ull * *want);
    if (!image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    memcpy(image, node->image, SMART_HEADER + 8ull * have);
    node->image = image;
    far_read(op->t, smart_slot_addr(node->addr, have), &smart_slots(node)[have], 8ull * (*want - have));
    return 0;
}


int smart_take_more(smart_op *op, smart_node *node, unsigned want) {
    for (unsigned i = node->words; i < want && !op->index->lenient; i++)
        if (!smart_word_is_sound(smart_slots(node)[i]))
            return smart_fail_corrupt(op->index, node->addr, "node");
    node->words = want;
    return 0;
}


int smart_read_more(smart_op *op, smart_node *node, unsigned words) {
    unsigned want;
    int err = smart_put_read_more(op, node, words, &want);
    if (err < 0 || want == node->words || (err = smart_wait(op)) < 0)
        return err;
    return smart_take_more(op, node, want);
}


uint64_t smart_raise_hint(smart_op *op, far_addr slot, uint64_t word, const smart_node *node) {
    unsigned type = smart_read_type_for(node->words, node->layout, op->st->node_types);
    /* In a damaged node, READs of more slots may find the damaged ones. */
    if (type == smart_word_read_type(word) || op->index->lenient)
        return word;
    uint64_t better = smart_word_with_read_type(word, type);
    far_cas(op->t, slot, word, better, NULL);
    far_post(op->t);
    return better;
}


int smart_read_node(smart_op *op, uint64_t word, bool whole, smart_node *node) {
    int err = smart_fetch_node(op, word, whole, node);
    if (err < 0)
        return err;
    if (!smart_take_node(op, node))
        return smart_fail_corrupt(op->index, node->addr, "node");
    if (smart_ctl_state(node->ctl) == SMART_PENDING)
        smart_mark_live(op, node->addr, node->ctl);
    return whole ? smart_read_more(op, node, smart_layout_slots(node->layout)) : 0;
}


bool smart_prefix_matches(const smart_op *op, const smart_node *node) {
    return node->depth <= op->key.length && node->fp == smart_prefix_hash(op, node->depth);
}


bool smart_find_slot(const smart_node *node, unsigned part, unsigned *at) {
    const uint64_t *slots = smart_slots(node);
    for (*at = 0; *at < node->words; (*at)++) {
        if (!(slots[*at] & SMART_BOUND))
            return false;
        if (smart_word_part(slots[*at]) == part)
            return true;
    }
    return false;
}


unsigned smart_node_children(const smart_node *node) {
    return smart_count_children(smart_slots(node), node->words);
}


/* Returns whether the node may be replaced by its only child. Without path compression every byte of a common prefix
 * keeps its node, so a node stays if its only child is a node. */
bool smart_can_merge(const smart_state *st, const smart_node *node) {
    unsigned nodes = 0;
    for (unsigned i = 0; i < node->words; i++)
        nodes += smart_word_kind_of(smart_slots(node)[i]) == SMART_NODE;
    return smart_node_children(node) == 1 && (st->path_compression || nodes == 0);
}


void smart_build_node(const smart_op *op, uint64_t *image, smart_layout layout, unsigned depth, bool recycled) {
    memset(image, 0, smart_layout_bytes(layout));
    image[0] = smart_node_ctl(recycled ? SMART_PENDING : SMART_LIVE, recycled, layout, (unsigned)far_task_random(op->t),
                              op->st->tag);
    image[1] = smart_prefix_hash(op, depth);
    image[2] = smart_info(op->key.data, depth);
}


smart_layout smart_layout_for(const smart_state *st, unsigned children) {
    if (st->paper_layout)
        return SMART_PAPER;
    unsigned layout = SMART_L128;
    while (layout < SMART_DIR && children > smart_layout_slots(layout))
        layout++;
    return layout;
}


/* Returns the memory node for a new node. With place=spread, the READs of nodes are distributed over all memory nodes.
 * With place=near, the new node is placed on the memory node of the slot that will name it. Then the WRITE of the node
 * and the CAS of that slot fit into one batch, which saves a round trip. */
unsigned smart_choose_memory_node(const smart_op *op, uint64_t fp, far_addr near) {
    return op->st->spread_nodes ? (unsigned)(fp % far_task_nodes(op->t)) : far_addr_node(near);
}


void smart_mark_live(smart_op *op, far_addr addr, uint64_t ctl) {
    far_cas(op->t, addr, ctl, smart_ctl_with_state(ctl, SMART_LIVE), NULL);
    far_post(op->t);
}


static int read_leaf_key(smart_op *op, uint64_t word, far_bytes *key) {
    smart_leaf leaf;
    unsigned class = smart_leaf_class(op->st, word);
    int err = smart_put_read_leaf(op, smart_word_addr(word), class, &leaf);
    if (err < 0 || (err = smart_wait(op)) < 0)
        return err;
    if (!smart_take_leaf(&leaf, class))
        return smart_fail_corrupt(op->index, leaf.addr, "leaf");
    *key = leaf.key;
    return 0;
}


/* Appends the children of the node to the list, up to and including the first leaf. */
static int list_children(smart_op *op, const smart_node *node, smart_link **list, unsigned *count, unsigned *size) {
    if (*count + node->words > *size) {
        smart_link *more = far_scratch(op->t, 2 * (*count + node->words) * sizeof(*more));
        if (!more)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
        if (*count)
            memcpy(more, *list, *count * sizeof(*more));
        *size = 2 * (*count + node->words);
        *list = more;
    }
    for (unsigned i = 0; i < node->words; i++) {
        uint64_t word = smart_slots(node)[i] & ~SMART_FROZEN_BIT;
        if (smart_word_kind_of(word) == SMART_NONE)
            continue;
        (*list)[(*count)++] = (smart_link){smart_slot_addr(node->addr, i), word};
        if (smart_word_kind_of(word) == SMART_LEAF)
            break;
    }
    return 0;
}


static bool has_frozen_word(const smart_node *node) {
    for (unsigned i = 0; i < node->words; i++)
        if (smart_slots(node)[i] & SMART_FROZEN_BIT)
            return true;
    return false;
}


/* Finds the key of any leaf below the link. The key begins with the whole prefix of the node at the link; keys never
 * change, so a DEAD leaf can be used as well. The search visits all nodes of the subtree until it finds a leaf. If
 * there is no leaf, *key is {NULL, 0}, and *stuck is the link of the first node that was found empty or frozen, which
 * can be replaced. */
static int find_key_below(smart_op *op, smart_link link, far_bytes *key, smart_link *stuck) {
    smart_link *list = NULL;
    unsigned count = 0, size = 0;
    *key = (far_bytes){NULL, 0};
    *stuck = (smart_link){0, 0};
    for (;;) {
        smart_node node;
        int err = smart_read_node(op, link.word, true, &node);
        unsigned before = count;
        if (err < 0 || (err = list_children(op, &node, &list, &count, &size)) < 0)
            return err;
        if (!stuck->slot && (count == before || has_frozen_word(&node)))
            *stuck = link;
        if (count == 0)
            return 0;
        link = list[--count];
        if (smart_word_kind_of(link.word) == SMART_LEAF)
            return read_leaf_key(op, link.word, key);
    }
}


int smart_common_prefix(smart_op *op, unsigned from, smart_link link, const smart_node *child, unsigned *common,
                        unsigned *part, smart_link *stuck) {
    const uint8_t *key = op->key.data;
    unsigned d = from, depth = child->depth;
    if (depth - smart_info_tail(child->info) <= from) {
        while (d < depth && d < op->key.length && smart_info_byte(child->info, d) == key[d])
            d++;
        if (d == depth)
            return smart_fail_corrupt(op->index, child->addr, "node");
        *part = smart_info_byte(child->info, d);
    } else {
        far_bytes below;
        int err = find_key_below(op, link, &below, stuck);
        if (err < 0 || !below.data)
            return err < 0 ? err : SMART_NO_LEAF;
        const uint8_t *other = below.data;
        while (d < depth && d < op->key.length && d < below.length && other[d] == key[d])
            d++;
        if (d == depth || d >= below.length)
            return smart_fail_corrupt(op->index, child->addr, "node");
        *part = other[d];
    }
    *common = d;
    return SMART_PREFIX_KNOWN;
}
