/* Small leaves side by side become one, in a copy of their node: inside one life of a node an entry's positions only
 * become fewer, never more. With nothing else left, a leaf takes the place of the node itself. */
#include "base/error.h"
#include "index/dolphin/change.h"

typedef struct pair { /* two leaves with nothing but NULLs between them */
    uint64_t first, second;
} pair;


static unsigned count_held(const dolphin_op *op, const dolphin_leaf *leaf) {
    unsigned count = 0;
    for (unsigned i = 0; i < op->st->slots; i++)
        count += dolphin_state_of_slot(dolphin_kwords(leaf)[i]) == DOLPHIN_HELD;
    return count;
}


/* The leaf next to entry i, on one side; 0: there is none. */
static uint64_t neighbour(const uint64_t *entries, unsigned count, unsigned i, int side) {
    for (int k = (int)i + side; k >= 0 && k < (int)count; k += side)
        if (dolphin_entry_kind(entries[k]) != DOLPHIN_NULL)
            return dolphin_entry_kind(entries[k]) == DOLPHIN_LEAF ? entries[k] : 0;
    return 0;
}


/* Looks at the leaf of the key, or what is next to the hole that it left. 1: *found is worth it; 2: the node holds
 * nothing, or one node; 0: all is well. */
static int look(dolphin_op *op, const dolphin_spot *spot, pair *found) {
    uint64_t *entries = far_scratch(op->t, spot->node.capacity * sizeof(*entries)), near[3] = {0};
    dolphin_leaf leaves[3];
    unsigned held[3] = {0}, nodes = 0, all = 0, i = 0;
    if (!entries)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    unsigned count = dolphin_collect(&spot->node, entries);
    for (unsigned k = 0; k < count; k++) {
        nodes += dolphin_entry_is_node(entries[k]);
        all += dolphin_entry_kind(entries[k]) == DOLPHIN_LEAF;
        if (dolphin_entry_lb(entries[k]) <= spot->position)
            i = k;
    }
    if (all == 0 && nodes <= 1)
        return 2;
    near[0] = neighbour(entries, count, i, -1);
    near[1] = dolphin_entry_kind(entries[i]) == DOLPHIN_LEAF ? entries[i] : 0;
    near[2] = neighbour(entries, count, i, 1);
    int err = 0;
    for (unsigned k = 0; k < 3 && err == 0; k++)
        if (near[k])
            err = dolphin_put_read_leaf(op, near[k], &leaves[k]);
    if (err < 0)
        far_forget(op->t);
    if (err < 0 || (err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned k = 0; k < 3; k++)
        if (near[k])
            held[k] = count_held(op, &leaves[k]);
    unsigned most = op->st->slots * 3 / 4;
    if (near[1] && near[2] && held[1] + held[2] <= most)
        *found = (pair){near[1], near[2]};
    else if (near[0] && near[1] && held[0] + held[1] <= most)
        *found = (pair){near[0], near[1]};
    else if (!near[1] && near[0] && near[2] && held[0] + held[2] <= most)
        *found = (pair){near[0], near[2]};
    else
        return 0; /* one leaf alone stays below its node: a copy of it would take more memory than the node */
    return 1;
}


static int entry_of(const dolphin_node *node, uint64_t entry) {
    for (unsigned i = 0; i < node->capacity; i++)
        if (entry && node->entries[i] == entry)
            return (int)i;
    return -1;
}


/* Between the two is still nothing but NULL: what was looked at without a lock may have been filled. */
static bool are_neighbours(const dolphin_node *node, const pair *p) {
    unsigned from = dolphin_entry_lb(p->first), to = dolphin_entry_lb(p->second);
    for (unsigned i = 0; i < node->capacity; i++) {
        unsigned lb = dolphin_entry_lb(node->entries[i]);
        if (node->entries[i] && lb > from && lb < to && dolphin_entry_kind(node->entries[i]) != DOLPHIN_NULL)
            return false;
    }
    return true;
}


/* Lets the leaves go that were frozen. */
static int thaw(dolphin_op *op, dolphin_content *const it[2], unsigned frozen, int result) {
    if (result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE)
        return result;
    far_forget(op->t);
    for (unsigned i = 0; i < frozen; i++)
        dolphin_put_thaw(op, &it[i]->leaf);
    int err = dolphin_wait(op);
    return err < 0 ? err : result;
}


/* Every item can be written at this depth: what is not in a block has at most 7 bytes left. */
static bool fits_at(const dolphin_content *it, unsigned depth) {
    for (unsigned i = 0; i < it->count; i++)
        if (!dolphin_kword_is_block(it->items[i].kword) && it->items[i].key.length - depth > DOLPHIN_INLINE_MAX)
            return false;
    return true;
}


/* The new leaf and the new node, or the leaf alone. it[0] has the items of both. */
static int plan(dolphin_change *c, const dolphin_node *old, unsigned above_at, dolphin_content *const it[2],
                unsigned *depth) {
    dolphin_op *op = c->op;
    uint64_t *entries = far_scratch(op->t, old->capacity * sizeof(*entries)), above = c->node.entries[above_at];
    unsigned count, kept = 0, lb = dolphin_entry_lb(above), up = dolphin_leaf_depth(c->node.depth);
    if (!entries)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    const dolphin_content *last = it[1];
    count = dolphin_collect(old, entries);
    for (unsigned i = 0; i < count; i++) { /* what lies between them goes */
        unsigned at = dolphin_entry_lb(entries[i]);
        if (at <= it[0]->lo || at > last->hi)
            entries[kept++] = entries[i];
    }
    bool only = true;
    for (unsigned i = 0; i < kept; i++)
        only &= dolphin_entry_kind(entries[i]) == DOLPHIN_NULL || dolphin_entry_lb(entries[i]) == it[0]->lo;
    bool instead = only && fits_at(it[0], up);
    *depth = instead ? up : it[0]->depth;
    int err = dolphin_make_leaf(c, 0, far_addr_node(dolphin_entry_addr(old->word)));
    if (err == 0 && instead)
        err = dolphin_wait(op);
    if (err == 0 && !instead)
        err = dolphin_copy_made(c, old, entries, kept);
    if (err < 0)
        return err;
    unsigned lo = instead ? c->node.depth ? lb : 0 : it[0]->lo;
    unsigned hi = instead ? c->node.depth ? lb : DOLPHIN_LAST : last->hi;
    dolphin_fill_leaf(op, c->leaf[0].image, it[0]->items, it[0]->count, it[0]->prefix, *depth, lo, hi);
    if (instead) {
        c->entry = dolphin_made_entry(&c->leaf[0], lb);
        return 0;
    }
    uint64_t *made = c->inner.image + (old->entries - old->image);
    for (unsigned i = 0; i < kept; i++)
        if (dolphin_entry_lb(made[i]) == it[0]->lo)
            made[i] = dolphin_made_entry(&c->leaf[0], it[0]->lo);
    c->entry = dolphin_made_entry(&c->inner, lb);
    return 0;
}


/* Both nodes are locked. */
static int merge_locked(dolphin_change *c, const dolphin_node *old, unsigned above_at, const pair *p) {
    dolphin_op *op = c->op;
    dolphin_content *it[2] = {far_scratch(op->t, sizeof(**it)), far_scratch(op->t, sizeof(**it))};
    unsigned frozen = 0, depth = 0;
    int at[2] = {entry_of(old, p->first), entry_of(old, p->second)}, err = 0;
    bool waited;
    if (!it[0] || !it[1])
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    if (at[0] < 0 || at[1] < 0 || !are_neighbours(old, p))
        return 1;
    for (; frozen < 2 && err == 0; frozen += err == 0 || it[frozen]->leaf.addr) { /* frozen, and perhaps not drained */
        dolphin_set_bounds(old, (unsigned)at[frozen], it[frozen]);
        err = dolphin_freeze_and_drain(c, old->entries[at[frozen]], true, &it[frozen]->leaf, &waited);
    }
    for (unsigned i = 0; i < 2 && err == 0; i++)
        err = dolphin_read_content(op, it[i]);
    if (err == 0 && it[0]->count + it[1]->count > op->st->slots * 3 / 4)
        err = 1; /* others put keys in meanwhile */
    if (err == 0) {
        memcpy(it[0]->items + it[0]->count, it[1]->items, it[1]->count * sizeof(it[1]->items[0]));
        it[0]->count += it[1]->count;
    }
    if (err == 0) {
        dolphin_sort_items(it[0]->items, it[0]->count);
        err = plan(c, old, above_at, it, &depth);
    }
    if (err != 0)
        return thaw(op, it, frozen, err);
    if ((err = dolphin_switch_over(c, old, above_at)) < 0)
        return err;
    for (unsigned i = 0; i < 2; i++) {
        it[i]->count = it[0]->count;
        memcpy(it[i]->items, it[0]->items, it[0]->count * sizeof(it[0]->items[0]));
        dolphin_retire_content(op, it[i], depth);
    }
    return 0;
}


int dolphin_merge(dolphin_op *op) {
    dolphin_spot spot;
    pair found = {0};
    int err = dolphin_locate(op, true, &spot);
    if (err < 0 || spot.depth == 0 || spot.outcome == DOLPHIN_AT_PATH)
        return err;
    if ((err = look(op, &spot, &found)) <= 0)
        return err;
    if (err == 2) {
        err = dolphin_copy_node(op, &spot);
        return err < 0 ? err : 1;
    }
    dolphin_change c = {.op = op};
    dolphin_node old;
    unsigned at;
    far_point(op->t, "dolphin:merge_found");
    if ((err = dolphin_lock_both(&c, spot.parent, &old, &at)) <= 0)
        return err;
    far_point(op->t, "dolphin:merge");
    err = merge_locked(&c, &old, at, &found);
    if (err == 0)
        return 1;
    return dolphin_unlock_both(&c, old.word, err < 0 ? err : 0);
}
