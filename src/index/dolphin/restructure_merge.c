/* Merging two small adjacent leaves into one, called after deletes (dolphin_merge_leaves). During one incarnation of a
 * node the interval of an entry may only become smaller. A merge widens an interval, so it replaces the node by a copy.
 * If the merged leaf is the only child that is left, the leaf replaces the node itself. */
#include "base/error.h"
#include "index/dolphin/restructure.h"

typedef struct leaf_pair { /* entries of two leaves that have only NULL intervals between them */
    uint64_t first, second;
} leaf_pair;


static unsigned count_live_slots(const dolphin_op *op, const dolphin_leaf *leaf) {
    unsigned count = 0;
    for (unsigned i = 0; i < op->st->slots; i++)
        count += dolphin_slot_state_of(dolphin_kwords(leaf)[i]) == DOLPHIN_SLOT_LIVE;
    return count;
}


/* Returns the entry of the nearest leaf before (side -1) or after (side 1) entry i. Only NULL intervals may be between
 * the two entries; otherwise the result is 0. */
static uint64_t adjacent_leaf(const uint64_t *entries, unsigned count, unsigned i, int side) {
    for (int k = (int)i + side; k >= 0 && k < (int)count; k += side)
        if (dolphin_entry_kind(entries[k]) != DOLPHIN_KIND_NULL)
            return dolphin_entry_kind(entries[k]) == DOLPHIN_KIND_LEAF ? entries[k] : 0;
    return 0;
}


/* READs the leaf of op->key and the adjacent leaves, and chooses two leaves if their keys together fit into three
 * quarters of one. If the delete has left a NULL interval, it examines the two leaves around that interval. Returns 1
 * if it found a pair, 2 if the node has no leaf and at most one child node, 0 if nothing is worth changing. */
static int choose_merge(dolphin_op *op, const dolphin_location *location, leaf_pair *found) {
    uint64_t *entries = far_scratch(op->t, location->node.capacity * sizeof(*entries)), near[3] = {0};
    dolphin_leaf leaves[3];
    unsigned held[3] = {0}, nodes = 0, all = 0, i = 0;
    if (!entries)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    unsigned count = dolphin_collect_entries(&location->node, entries);
    for (unsigned k = 0; k < count; k++) {
        nodes += dolphin_entry_is_node(entries[k]);
        all += dolphin_entry_kind(entries[k]) == DOLPHIN_KIND_LEAF;
        if (dolphin_entry_lb(entries[k]) <= location->position)
            i = k;
    }
    if (all == 0 && nodes <= 1)
        return 2;
    near[0] = adjacent_leaf(entries, count, i, -1);
    near[1] = dolphin_entry_kind(entries[i]) == DOLPHIN_KIND_LEAF ? entries[i] : 0;
    near[2] = adjacent_leaf(entries, count, i, 1);
    int err = 0;
    for (unsigned k = 0; k < 3 && err == 0; k++)
        if (near[k])
            err = dolphin_batch_read_leaf(op, near[k], &leaves[k]);
    if (err < 0)
        far_discard_batch(op->t);
    if (err < 0 || (err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned k = 0; k < 3; k++)
        if (near[k])
            held[k] = count_live_slots(op, &leaves[k]);
    unsigned most = op->st->slots * 3 / 4;
    if (near[1] && near[2] && held[1] + held[2] <= most)
        *found = (leaf_pair){near[1], near[2]};
    else if (near[0] && near[1] && held[0] + held[1] <= most)
        *found = (leaf_pair){near[0], near[1]};
    else if (!near[1] && near[0] && near[2] && held[0] + held[2] <= most)
        *found = (leaf_pair){near[0], near[2]};
    else
        /* A leaf without a neighbour stays below its node; moving it up would require a copy larger than the node. */
        return 0;
    return 1;
}


static int find_exact_entry(const dolphin_node *node, uint64_t entry) {
    for (unsigned i = 0; i < node->capacity; i++)
        if (entry && node->entries[i] == entry)
            return (int)i;
    return -1;
}


/* Checks under the lock of the node that only NULL intervals are between the two leaves, because other clients may have
 * filled these intervals since the leaves were chosen. */
static bool leaves_are_adjacent(const dolphin_node *node, const leaf_pair *p) {
    unsigned from = dolphin_entry_lb(p->first), to = dolphin_entry_lb(p->second);
    for (unsigned i = 0; i < node->capacity; i++) {
        unsigned lb = dolphin_entry_lb(node->entries[i]);
        if (node->entries[i] && lb > from && lb < to && dolphin_entry_kind(node->entries[i]) != DOLPHIN_KIND_NULL)
            return false;
    }
    return true;
}


/* Thaws the leaves that were frozen, after a failed or abandoned merge. Returns `result` unless thawing fails. */
static int thaw_leaves(dolphin_op *op, dolphin_content *const it[2], unsigned frozen, int result) {
    if (result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE)
        return result;
    far_discard_batch(op->t);
    for (unsigned i = 0; i < frozen; i++)
        dolphin_batch_thaw(op, &it[i]->leaf);
    int err = dolphin_wait(op);
    return err < 0 ? err : result;
}


/* Returns true if every item can be stored in a leaf of this depth: a key without a key block must have at most 7 bytes
 * after this depth. */
static bool items_fit_at_depth(const dolphin_content *it, unsigned depth) {
    for (unsigned i = 0; i < it->count; i++)
        if (!dolphin_kword_is_block(it->items[i].kword) && it->items[i].key.length - depth > DOLPHIN_INLINE_MAX)
            return false;
    return true;
}


/* Plans the merged leaf below a copy of the node, or in place of the node. it[0] holds the items of both leaves. */
static int plan_merge(dolphin_change *c, const dolphin_node *old, unsigned above_at, dolphin_content *const it[2],
                      unsigned *depth) {
    dolphin_op *op = c->op;
    uint64_t *entries = far_scratch(op->t, old->capacity * sizeof(*entries)), above = c->node.entries[above_at];
    unsigned count, kept = 0, lb = dolphin_entry_lb(above), up = dolphin_leaf_depth(c->node.depth);
    if (!entries)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    const dolphin_content *last = it[1];
    count = dolphin_collect_entries(old, entries);
    for (unsigned i = 0; i < count; i++) { /* keep all entries except the NULL intervals between the two leaves */
        unsigned at = dolphin_entry_lb(entries[i]);
        if (at <= it[0]->lo || at > last->hi)
            entries[kept++] = entries[i];
    }
    bool only = true;
    for (unsigned i = 0; i < kept; i++)
        only &= dolphin_entry_kind(entries[i]) == DOLPHIN_KIND_NULL || dolphin_entry_lb(entries[i]) == it[0]->lo;
    bool instead = only && items_fit_at_depth(it[0], up);
    *depth = instead ? up : it[0]->depth;
    int err = dolphin_alloc_leaf(c, 0, far_addr_node(dolphin_entry_addr(old->word)));
    if (err == 0 && instead)
        err = dolphin_wait(op);
    if (err == 0 && !instead)
        err = dolphin_build_copy(c, old, entries, kept);
    if (err < 0)
        return err;
    unsigned lo = instead ? c->node.depth ? lb : 0 : it[0]->lo;
    unsigned hi = instead ? c->node.depth ? lb : DOLPHIN_LAST_POSITION : last->hi;
    dolphin_fill_leaf(op, c->leaf[0].image, it[0]->items, it[0]->count, it[0]->prefix, *depth, lo, hi);
    if (instead) {
        c->replacement = dolphin_new_object_entry(&c->leaf[0], lb);
        return 0;
    }
    uint64_t *made = c->inner.image + (old->entries - old->image);
    for (unsigned i = 0; i < kept; i++)
        if (dolphin_entry_lb(made[i]) == it[0]->lo)
            made[i] = dolphin_new_object_entry(&c->leaf[0], it[0]->lo);
    c->replacement = dolphin_new_object_entry(&c->inner, lb);
    return 0;
}


/* Does the merge while the node and its parent are locked. */
static int merge_locked(dolphin_change *c, const dolphin_node *old, unsigned above_at, const leaf_pair *p) {
    dolphin_op *op = c->op;
    dolphin_content *it[2] = {far_scratch(op->t, sizeof(**it)), far_scratch(op->t, sizeof(**it))};
    unsigned frozen = 0, depth = 0;
    int at[2] = {find_exact_entry(old, p->first), find_exact_entry(old, p->second)}, err = 0;
    bool waited;
    if (!it[0] || !it[1])
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    if (at[0] < 0 || at[1] < 0 || !leaves_are_adjacent(old, p))
        return 1;
    /* `frozen` also counts a leaf that was frozen but whose writers have not all left */
    for (; frozen < 2 && err == 0; frozen += err == 0 || it[frozen]->leaf.addr) {
        dolphin_set_leaf_bounds(old, (unsigned)at[frozen], it[frozen]);
        err = dolphin_freeze_and_drain(c, old->entries[at[frozen]], true, &it[frozen]->leaf, &waited);
    }
    for (unsigned i = 0; i < 2 && err == 0; i++)
        err = dolphin_read_content(op, it[i]);
    if (err == 0 && it[0]->count + it[1]->count > op->st->slots * 3 / 4)
        err = 1; /* too many keys were inserted since the leaves were chosen */
    if (err == 0) {
        memcpy(it[0]->items + it[0]->count, it[1]->items, it[1]->count * sizeof(it[1]->items[0]));
        it[0]->count += it[1]->count;
    }
    if (err == 0) {
        dolphin_sort_items(it[0]->items, it[0]->count);
        err = plan_merge(c, old, above_at, it, &depth);
    }
    if (err != 0)
        return thaw_leaves(op, it, frozen, err);
    if ((err = dolphin_install_copy(c, old, above_at)) < 0)
        return err;
    for (unsigned i = 0; i < 2; i++) {
        it[i]->count = it[0]->count;
        memcpy(it[i]->items, it[0]->items, it[0]->count * sizeof(it[0]->items[0]));
        dolphin_retire_content(op, it[i], depth);
    }
    return 0;
}


int dolphin_merge_leaves(dolphin_op *op) {
    dolphin_location location;
    leaf_pair found = {0};
    int err = dolphin_locate(op, true, &location);
    if (err < 0 || location.depth == 0 || location.outcome == DOLPHIN_AT_DIVERGENCE)
        return err;
    if ((err = choose_merge(op, &location, &found)) <= 0)
        return err;
    if (err == 2) {
        err = dolphin_replace_node(op, &location);
        return err < 0 ? err : 1;
    }
    dolphin_change c = {.op = op};
    dolphin_node old;
    unsigned at;
    far_point(op->t, "dolphin:merge_found");
    if ((err = dolphin_lock_node_and_parent(&c, location.node_word, &old, &at)) <= 0)
        return err;
    far_point(op->t, "dolphin:merge_locked");
    err = merge_locked(&c, &old, at, &found);
    if (err == 0)
        return 1;
    return dolphin_unlock_node_and_parent(&c, old.word, err < 0 ? err : 0);
}
