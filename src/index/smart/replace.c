/* REPLACE: removing, merging, growing and compacting a node are one thing. All its words are frozen, so that nobody can
 * change it any more; then it is decided from the frozen words what takes its place, and the slot above is moved by one
 * CAS. Whoever meets a frozen word does the same: any number may help, one wins. */
#include "base/error.h"
#include "index/smart/smart.h"

#include <string.h>

enum { NOT_YET, ALL_FROZEN }; /* of one round of freezing */

typedef struct copy { /* what takes the place of the node */
    far_object object;
    smart_layout layout;
    uint64_t *image;
    smart_leaf leaf; /* addr 0: none */
} copy;


/* One round of freezing: CASes of all words that do not carry F yet. */
static int freeze_round(smart_op *op, smart_node *node, uint64_t *seen) {
    uint64_t *slots = smart_slots(node), ctl = node->ctl, ctl_seen = ctl;
    unsigned count = smart_layout_slots(node->layout), end = 0, posted = 0;
    bool list = node->layout != SMART_DIR;
    while (end < count && (!list || (slots[end] & SMART_BOUND)))
        end++;
    if (list && end < count)
        end++; /* the frontier */
    if (smart_ctl_state(ctl) != SMART_FROZEN && ++posted)
        far_cas(op->t, node->addr, ctl, smart_ctl_with_state(ctl, SMART_FROZEN), &ctl_seen);
    for (unsigned i = 0; i < end; i++)
        if (!((seen[i] = slots[i]) & SMART_F) && ++posted)
            far_cas(op->t, smart_slot_addr(node->addr, i), slots[i], slots[i] | SMART_F, &seen[i]);
    if (!posted)
        return ALL_FROZEN;
    int err = smart_wait(op);
    if (err < 0)
        return err;
    node->ctl = ctl_seen == ctl ? smart_ctl_with_state(ctl, SMART_FROZEN) : ctl_seen;
    for (unsigned i = 0; i < end; i++) {
        if (!smart_word_is_sound(seen[i]))
            return smart_broken(op->index, node->addr, "node");
        slots[i] = seen[i] == slots[i] ? slots[i] | SMART_F : seen[i];
    }
    return NOT_YET;
}


static int freeze(smart_op *op, smart_node *node) {
    uint64_t *seen = far_scratch(op->t, 8ull * smart_layout_slots(node->layout));
    if (!seen)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    int err;
    while ((err = freeze_round(op, node, seen)) == NOT_YET)
        far_point(op->t, "smart:freezing");
    return err < 0 ? err : 0;
}


static int make_copy(smart_op *op, far_addr up, uint64_t fp, smart_layout layout, unsigned flags, copy *c) {
    c->layout = layout;
    c->leaf.addr = 0;
    return far_alloc(op->t, op->index, SMART_TYPE_NODE, smart_layout_bytes(layout), smart_place(op, fp, up), flags,
                     &c->object);
}


static void free_copy(smart_op *op, copy *c) {
    if (c->object.addr)
        far_free(op->t, op->index, SMART_TYPE_NODE, c->object.addr, smart_layout_bytes(c->layout));
    if (c->leaf.addr)
        smart_free_leaf(op, &c->leaf);
}


static void add_word(copy *c, unsigned *count, uint64_t word) {
    uint64_t *slots = c->image + SMART_HEADER / 8;
    slots[c->layout == SMART_DIR ? smart_word_part(word) : *count] = word;
    (*count)++;
}


/* The live words of the frozen node, and the new leaf if there is one. */
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
        if (smart_word_is(smart_slots(node)[i]) != SMART_NONE)
            add_word(c, count, smart_slots(node)[i] & ~SMART_F);
    if (c->leaf.addr)
        add_word(c, count, smart_leaf_word(op->st, &c->leaf, smart_part(op->key, node->depth)));
    far_write(op->t, c->object.addr, c->image, bytes);
    if (c->leaf.addr)
        far_write(op->t, c->leaf.addr, c->leaf.image, smart_class_bytes(c->leaf.class));
    return 0;
}


/* The new leaf has a place in the copy unless somebody was faster. */
static bool has_part(const smart_node *node, unsigned part) {
    for (unsigned i = 0; i < node->words; i++) {
        uint64_t word = smart_slots(node)[i];
        if (smart_word_is(word) != SMART_NONE && smart_word_part(word) == part)
            return true;
    }
    return false;
}


/* The slot still names the node; only the hint in its word is another. */
static bool names_the_same(uint64_t word, uint64_t other) {
    return smart_word_is_sound(word) && !(word & SMART_F) && smart_word_is(word) == SMART_NODE &&
           smart_word_addr(word) == smart_word_addr(other) && smart_word_part(word) == smart_word_part(other);
}


/* The CAS of the slot above, from whatever it says of the node. */
static int move_slot(smart_op *op, far_addr up, uint64_t up_word, uint64_t word, bool copied) {
    for (;;) {
        uint64_t seen;
        far_cas(op->t, up, up_word, copied ? smart_word_with_gap0(word, up_word & SMART_GAP0) : word, &seen);
        int err = smart_wait(op);
        if (err < 0 || seen == up_word)
            return err < 0 ? err : SMART_DONE;
        if (!names_the_same(seen, up_word))
            return SMART_LOST;
        up_word = seen;
    }
}


/* Swings the slot above, with the copy's WRITEs before it. */
static int swing(smart_op *op, const smart_node *node, far_addr up, uint64_t up_word, uint64_t word, const copy *c) {
    int err;
    far_point(op->t, "smart:frozen");
    if (c->object.addr &&
        (far_addr_node(c->object.addr) != far_addr_node(up) ||
         (c->leaf.addr && far_addr_node(c->leaf.addr) != far_addr_node(up))) &&
        (err = smart_wait(op)) < 0)
        return err;
    if ((err = move_slot(op, up, up_word, word, c->object.addr != 0)) != SMART_DONE)
        return err;
    far_point(op->t, "smart:replaced");
    far_retire(op->t, op->index, SMART_TYPE_NODE, node->addr, smart_layout_bytes(node->layout));
    if (c->object.addr && op->st->cache && !op->passes) {
        smart_node made = {.addr = c->object.addr,
                           .ctl = c->image[0],
                           .fp = c->image[1],
                           .info = c->image[2],
                           .depth = node->depth,
                           .layout = c->layout,
                           .words = smart_layout_slots(c->layout),
                           .image = c->image};
        smart_cache_node(op->st->cache, op->key, &made);
    }
    if (c->object.addr && c->object.used)
        smart_flip(op, c->object.addr, c->image[0]);
    if (c->leaf.addr && smart_ctl_state(c->leaf.ctl) == SMART_PENDING)
        smart_flip(op, c->leaf.addr, c->leaf.ctl);
    return SMART_DONE;
}


/* Frozen. */
static int put_in_place(smart_op *op, const smart_node *node, far_addr up, uint64_t up_word, const far_bytes *grow,
                        copy *c) {
    unsigned live = smart_live_children(node), part = smart_word_part(up_word), count = 0;
    uint64_t word = smart_tombstone(part);
    copy none = {0};
    int err;
    if (grow && has_part(node, smart_part(op->key, node->depth)))
        grow = NULL;
    if (live == 0 && !grow)
        return swing(op, node, up, up_word, word, &none);
    bool merges = !grow && smart_can_merge(op->st, node);
    for (unsigned i = 0; merges && i < node->words; i++)
        if (smart_word_is(smart_slots(node)[i]) != SMART_NONE) {
            word = smart_word_with_part(smart_slots(node)[i] & ~SMART_F, part);
            if (smart_word_is(word) == SMART_NODE)
                word = smart_word_with_gap0(word, false);
            return swing(op, node, up, up_word, word, &none);
        }
    live += grow != NULL;
    smart_layout layout = smart_layout_for(op->st, live);
    if (c->object.addr && layout > c->layout) { /* others came before the words were frozen */
        free_copy(op, c);
        c->object.addr = 0;
    }
    if (!c->object.addr && (err = make_copy(op, up, node->fp, layout, FAR_ALLOC_RESERVE, c)) < 0)
        return err;
    /* Slots of a DIR node are READ alone: a client that comes by a pointer to an earlier life of the copy finds the leaf. */
    bool seen_early = c->object.used && c->layout == SMART_DIR;
    if (grow && (err = smart_make_leaf(op, smart_kind_for(op->st, op->key.length, grow->length), *grow,
                                       far_addr_node(c->object.addr), seen_early, &c->leaf)) < 0)
        c->leaf.addr = 0; /* no memory: the copy is made all the same, the operation finds out */
    if ((err = fill_copy(op, node, c, &count)) < 0)
        return err;
    word = smart_word(c->object.addr, part, SMART_NODE, smart_read_type_for(count + 1, c->layout, op->st->node_types));
    return swing(op, node, up, up_word, word, c);
}


/* What was READ before will do, if it is this node: words that changed since are seen when they are frozen. */
static int read_all(smart_op *op, uint64_t word, unsigned layout, const smart_node *seen, smart_node *node) {
    if (!seen || seen->addr != smart_word_addr(word) || !seen->words || seen->words != smart_layout_slots(seen->layout))
        return smart_read_node(op, smart_word_for_all(word, layout), true, node);
    *node = *seen;
    return 0;
}


int smart_replace(smart_op *op, far_addr up, uint64_t up_word, unsigned layout, const smart_node *seen,
                  const far_bytes *grow) {
    smart_node node;
    copy c = {0};
    int err = read_all(op, up_word, layout, seen, &node);
    if (err < 0)
        return err;
    /* A full pool is found out before anything is frozen: afterwards the copy must be made. It has room for some more
     * than what lives: where keys come and go not every insert makes a copy. Where many insert at once it has room for
     * many more: each growth, and each list with its one frontier, holds all of them up. */
    if (grow) {
        unsigned live = smart_live_children(&node), more = op->lost ? 4 * live : live / 2;
        smart_layout layout = smart_layout_for(op->st, op->lost < SMART_CROWD ? live + 1 + more : SMART_PARTS);
        if ((err = make_copy(op, up, node.fp, layout, 0, &c)) < 0)
            return err;
    }
    far_point(op->t, "smart:freeze");
    err = freeze(op, &node);
    if (err >= 0)
        err = put_in_place(op, &node, up, up_word, grow, &c);
    if (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE)
        return err;
    bool grown = err == SMART_DONE && c.leaf.addr;
    if (err <= 0 || !c.image)
        free_copy(op, &c);
    return grown ? SMART_GREW : err;
}
