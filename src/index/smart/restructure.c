/* REPLACE: the procedure that removes, merges, grows and compacts nodes. First all words of the node are frozen, so
 * that no client can change the node any more. The frozen words then determine the object that takes the node's place,
 * and one CAS of the slot above the node publishes that object. A client that meets a frozen word runs the same
 * procedure. Any number of clients may do so at once, and only one of their CASes succeeds. Other files call
 * smart_replace. */
#include "base/error.h"
#include "index/smart/smart.h"

#include <string.h>

enum { NOT_YET, ALL_FROZEN }; /* results of one round of freezing */

typedef struct copy { /* The new node that takes the place of the frozen one. object.addr is 0 if there is none. */
    far_object object;
    smart_layout layout;
    uint64_t *image;
    smart_leaf leaf; /* the new leaf in the copy; addr 0: none */
} copy;


/* Runs one round of freezing, which posts a CAS of the ctl word and of each slot word that is not frozen. Words that
 * other clients have changed meanwhile are tried again in the next round. Returns ALL_FROZEN if there was no word left
 * to freeze. */
static int freeze_round(smart_op *op, smart_node *node, uint64_t *seen) {
    uint64_t *slots = smart_slots(node), ctl = node->ctl, ctl_seen = ctl;
    unsigned count = smart_layout_slots(node->layout), end = 0, posted = 0;
    bool list = node->layout != SMART_DIR;
    while (end < count && (!list || (slots[end] & SMART_BOUND)))
        end++;
    if (list && end < count)
        end++; /* The first unbound slot is frozen too, so that no client can bind it. */
    if (smart_ctl_state(ctl) != SMART_FROZEN && ++posted)
        far_cas(op->t, node->addr, ctl, smart_ctl_with_state(ctl, SMART_FROZEN), &ctl_seen);
    for (unsigned i = 0; i < end; i++)
        if (!((seen[i] = slots[i]) & SMART_FROZEN_BIT) && ++posted)
            far_cas(op->t, smart_slot_addr(node->addr, i), slots[i], slots[i] | SMART_FROZEN_BIT, &seen[i]);
    if (!posted)
        return ALL_FROZEN;
    int err = smart_wait(op);
    if (err < 0)
        return err;
    node->ctl = ctl_seen == ctl ? smart_ctl_with_state(ctl, SMART_FROZEN) : ctl_seen;
    for (unsigned i = 0; i < end; i++) {
        if (!smart_word_is_sound(seen[i]))
            return smart_fail_corrupt(op->index, node->addr, "node");
        slots[i] = seen[i] == slots[i] ? slots[i] | SMART_FROZEN_BIT : seen[i];
    }
    return NOT_YET;
}


static int freeze_node(smart_op *op, smart_node *node) {
    uint64_t *seen = far_scratch(op->t, 8ull * smart_layout_slots(node->layout));
    if (!seen)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    int err;
    while ((err = freeze_round(op, node, seen)) == NOT_YET)
        far_point(op->t, "smart:freezing");
    return err < 0 ? err : 0;
}


static int allocate_copy(smart_op *op, far_addr parent_slot, uint64_t fp, smart_layout layout, unsigned flags,
                         copy *c) {
    c->layout = layout;
    c->leaf.addr = 0;
    return far_alloc(op->t, op->index, SMART_TYPE_NODE, smart_layout_bytes(layout),
                     smart_choose_memory_node(op, fp, parent_slot), flags, &c->object);
}


static void free_copy(smart_op *op, copy *c) {
    if (c->object.addr)
        far_free(op->t, op->index, SMART_TYPE_NODE, c->object.addr, smart_layout_bytes(c->layout));
    if (c->leaf.addr)
        smart_free_leaf(op, &c->leaf);
}


static void append_word(copy *c, unsigned *count, uint64_t word) {
    uint64_t *slots = c->image + SMART_HEADER / 8;
    slots[c->layout == SMART_DIR ? smart_word_part(word) : *count] = word;
    (*count)++;
}


/* Fills the copy with the live words of the frozen node, and with the new leaf if there is one. Adds the WRITEs of the
 * copy and of that leaf. */
static int fill_copy(smart_op *op, const smart_node *node, copy *c, unsigned *count) {
    unsigned bytes = smart_layout_bytes(c->layout);
    c->image = far_scratch(op->t, bytes);
    if (!c->image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    memset(c->image, 0, bytes);
    c->image[0] = smart_node_ctl(c->object.used ? SMART_PENDING : SMART_LIVE, c->object.used, c->layout,
                                 (unsigned)far_task_random(op->t), op->st->tag);
    c->image[1] = node->fp;
    c->image[2] = node->info;
    *count = 0;
    for (unsigned i = 0; i < node->words; i++)
        if (smart_word_kind_of(smart_slots(node)[i]) != SMART_NONE)
            append_word(c, count, smart_slots(node)[i] & ~SMART_FROZEN_BIT);
    if (c->leaf.addr)
        append_word(c, count, smart_leaf_word(op->st, &c->leaf, smart_part(op->key, node->depth)));
    far_write(op->t, c->object.addr, c->image, bytes);
    if (c->leaf.addr)
        far_write(op->t, c->leaf.addr, c->leaf.image, smart_class_bytes(c->leaf.class));
    return 0;
}


/* Returns whether the node has a child for this partial key. If so, another client was faster, and the copy gets no new
 * leaf. */
static bool node_has_part(const smart_node *node, unsigned part) {
    for (unsigned i = 0; i < node->words; i++) {
        uint64_t word = smart_slots(node)[i];
        if (smart_word_kind_of(word) != SMART_NONE && smart_word_part(word) == part)
            return true;
    }
    return false;
}


/* Returns whether both words name the same node, so that they differ at most in their size hints. */
static bool word_names_same_node(uint64_t word, uint64_t other) {
    return smart_word_is_sound(word) && !(word & SMART_FROZEN_BIT) && smart_word_kind_of(word) == SMART_NODE &&
           smart_word_addr(word) == smart_word_addr(other) && smart_word_part(word) == smart_word_part(other);
}


/* Changes the slot above the node from the word that names the node to `word`. If only the size hint in the slot
 * differs from parent_word, tries again. Returns SMART_LOST if the slot does not name the node any more. */
static int move_parent_slot(smart_op *op, far_addr parent_slot, uint64_t parent_word, uint64_t word, bool copied) {
    for (;;) {
        uint64_t seen;
        far_cas(op->t, parent_slot, parent_word, copied ? smart_word_with_gap0(word, parent_word & SMART_GAP0) : word,
                &seen);
        int err = smart_wait(op);
        if (err < 0 || seen == parent_word)
            return err < 0 ? err : SMART_DONE;
        if (!word_names_same_node(seen, parent_word))
            return SMART_LOST;
        parent_word = seen;
    }
}


/* Publishes the replacement by the CAS of the slot above the node. The WRITEs of the copy take effect before that CAS:
 * WRITEs to the memory node of the slot are in the same batch, and the others are waited for. The client whose CAS
 * succeeds retires the frozen node. */
static int publish_replacement(smart_op *op, const smart_node *node, far_addr parent_slot, uint64_t parent_word,
                               uint64_t word, const copy *c) {
    int err;
    far_point(op->t, "smart:frozen");
    if (c->object.addr &&
        (far_addr_node(c->object.addr) != far_addr_node(parent_slot) ||
         (c->leaf.addr && far_addr_node(c->leaf.addr) != far_addr_node(parent_slot))) &&
        (err = smart_wait(op)) < 0)
        return err;
    if ((err = move_parent_slot(op, parent_slot, parent_word, word, c->object.addr != 0)) != SMART_DONE)
        return err;
    far_point(op->t, "smart:replaced");
    far_retire(op->t, op->index, SMART_TYPE_NODE, node->addr, smart_layout_bytes(node->layout));
    if (c->object.addr && op->st->cache && !op->is_traversal) {
        smart_node made = {.addr = c->object.addr,
                           .ctl = c->image[0],
                           .fp = c->image[1],
                           .info = c->image[2],
                           .depth = node->depth,
                           .layout = c->layout,
                           .words = smart_layout_slots(c->layout),
                           .image = c->image};
        smart_cache_store_node(op->st->cache, op->key, &made);
    }
    if (c->object.addr && c->object.used)
        smart_mark_live(op, c->object.addr, c->image[0]);
    if (c->leaf.addr && smart_ctl_state(c->leaf.ctl) == SMART_PENDING)
        smart_mark_live(op, c->leaf.addr, c->leaf.ctl);
    return SMART_DONE;
}


/* Decides from the words of the frozen node what takes its place: nothing, its only child, or a copy of it. */
static int replace_frozen_node(smart_op *op, const smart_node *node, far_addr parent_slot, uint64_t parent_word,
                               const far_bytes *grow, copy *c) {
    unsigned live = smart_node_children(node), part = smart_word_part(parent_word), count = 0;
    uint64_t word = smart_tombstone(part);
    copy none = {0};
    int err;
    if (grow && node_has_part(node, smart_part(op->key, node->depth)))
        grow = NULL;
    if (live == 0 && !grow)
        return publish_replacement(op, node, parent_slot, parent_word, word, &none);
    bool merges = !grow && smart_can_merge(op->st, node);
    for (unsigned i = 0; merges && i < node->words; i++)
        if (smart_word_kind_of(smart_slots(node)[i]) != SMART_NONE) {
            word = smart_word_with_part(smart_slots(node)[i] & ~SMART_FROZEN_BIT, part);
            if (smart_word_kind_of(word) == SMART_NODE)
                word = smart_word_with_gap0(word, false);
            return publish_replacement(op, node, parent_slot, parent_word, word, &none);
        }
    live += grow != NULL;
    smart_layout layout = smart_layout_for(op->st, live);
    /* If the list got more children before its words were frozen, the copy needs a larger layout. */
    if (c->object.addr && layout > c->layout) {
        free_copy(op, c);
        c->object.addr = 0;
    }
    if (!c->object.addr && (err = allocate_copy(op, parent_slot, node->fp, layout, FAR_ALLOC_HEADROOM, c)) < 0)
        return err;
    /* Other clients READ a slot of a DIR node without its header. A client with a stale pointer to an earlier
     * incarnation of the copy's memory could therefore find the leaf before the copy is linked. So the leaf must start
     * PENDING. */
    bool seen_early = c->object.used && c->layout == SMART_DIR;
    if (grow && (err = smart_make_leaf(op, smart_kind_for(op->st, op->key.length, grow->length), *grow,
                                       far_addr_node(c->object.addr), seen_early, &c->leaf)) < 0)
        /* Without memory for the leaf the copy is published nevertheless, because no write can change the frozen node
         * until it is replaced. The insert then searches again and fails. */
        c->leaf.addr = 0;
    if ((err = fill_copy(op, node, c, &count)) < 0)
        return err;
    word = smart_word(c->object.addr, part, SMART_NODE, smart_read_type_for(count + 1, c->layout, op->st->node_types));
    return publish_replacement(op, node, parent_slot, parent_word, word, c);
}


/* READs the whole node, or uses the image in `seen` if that image contains the whole node. If a word has changed since
 * it was READ, the CAS that freezes the word fails and shows the change. */
static int read_whole_node(smart_op *op, uint64_t word, unsigned layout, const smart_node *seen, smart_node *node) {
    if (!seen || seen->addr != smart_word_addr(word) || !seen->words || seen->words != smart_layout_slots(seen->layout))
        return smart_read_node(op, smart_word_for_whole_node(word, layout), true, node);
    *node = *seen;
    return 0;
}


int smart_replace(smart_op *op, far_addr parent_slot, uint64_t parent_word, unsigned layout, const smart_node *seen,
                  const far_bytes *grow) {
    smart_node node;
    copy c = {0};
    int err = read_whole_node(op, parent_word, layout, seen, &node);
    if (err < 0)
        return err;
    /* When a node grows, the copy is allocated before any word is frozen, because once words are frozen the replacement
     * must be completed, and a full pool would prevent that. The copy has room for more children than the live ones, so
     * that inserts into a list where keys are often inserted and deleted do not always make a copy. If many clients
     * insert into the list at the same time, the copy has room for many more, because each growth and each race for the
     * first unbound slot delays all of them. */
    if (grow) {
        unsigned live = smart_node_children(&node), more = op->lost_slots ? 4 * live : live / 2;
        smart_layout layout =
            smart_layout_for(op->st, op->lost_slots < SMART_CONTENTION_LIMIT ? live + 1 + more : SMART_PARTS);
        if ((err = allocate_copy(op, parent_slot, node.fp, layout, 0, &c)) < 0)
            return err;
    }
    far_point(op->t, "smart:freeze");
    err = freeze_node(op, &node);
    if (err >= 0)
        err = replace_frozen_node(op, &node, parent_slot, parent_word, grow, &c);
    if (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE)
        return err;
    bool grown = err == SMART_DONE && c.leaf.addr;
    if (err <= 0 || !c.image)
        free_copy(op, &c);
    return grown ? SMART_GREW : err;
}
