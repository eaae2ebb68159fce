/* A leaf is replaced by what is in it: by one leaf without its dead slots, by two, by a node with two, or by nothing.
 *
 * {lock of the node}, {FAA FROZEN, READ spear, READ leaf}: writers that come now leave again. If the spear READ shows
 * nobody inside, the leaf READ after it is final; else it is polled, and when somebody stays inside (dead, or stalled)
 * the pins decide: whoever was inside when it was frozen held one. Then {new leaves, entries, unlock}. */
#include "base/error.h"
#include "index/dolphin/change.h"
#include "pool/epoch.h"

/* Looks before the epochs decide, which take milliseconds, in which all writers of the leaf come to wait. Who comes late, finds
 * the leaf frozen and goes again counts too: with many clients nobody may be inside who writes, and yet the count is seen
 * to be 0 only now and then. Who found it frozen waits outside, so that they become fewer. */
#define POLLS 512

static bool is_final(uint64_t spear) {
    return (spear & DOLPHIN_FROZEN) && !(spear & DOLPHIN_CALM) && dolphin_count(spear) == 0;
}


/* Writers are inside that nobody counts. */
static bool is_calm(uint64_t spear) {
    return (spear & DOLPHIN_FROZEN) && (spear & DOLPHIN_CALM);
}


/* All who were inside when the leaf was frozen have left, or are dead and fenced, when all pins are newer. */
static int drain_by_epochs(dolphin_op *op, const dolphin_leaf *leaf) {
    far_point(op->t, "dolphin:drain");
    int err = far_pin_after_epochs(op->t, 1);
    if (err < 0)
        return err;
    far_read(op->t, leaf->addr, leaf->image, op->st->leaf_bytes);
    return dolphin_wait(op);
}


/* freeze: it is not frozen yet. 0: the leaf is final; *waited: under a new pin, and what was made is not there any
 * more.
 */
int dolphin_freeze_and_drain(dolphin_change *c, uint64_t entry, bool freeze, dolphin_leaf *leaf, bool *waited) {
    dolphin_op *op = c->op;
    uint64_t spear;
    *waited = false;
    *leaf = (dolphin_leaf){.entry = entry, .addr = dolphin_entry_addr(entry), .whole = true};
    if (!(leaf->image = far_scratch(op->t, op->st->leaf_bytes))) {
        leaf->addr = 0; /* the leaf is not frozen */
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    }
    memset(leaf->image, 0, op->st->leaf_bytes);
    for (unsigned polls = 0; polls < POLLS; polls++) {
        if (freeze && polls == 0)
            far_faa(op->t, leaf->addr, DOLPHIN_FROZEN, NULL);
        far_read(op->t, leaf->addr, &spear, 8);
        far_read(op->t, leaf->addr, leaf->image, op->st->leaf_bytes);
        int err = dolphin_wait(op);
        if (err < 0)
            return err;
        far_point(op->t, "dolphin:frozen");
        if (is_final(spear))
            return dolphin_freeze_values(op, leaf);
        if (is_calm(spear))
            break;
        far_count_retry(op->t);
        far_sleep(op->t, far_rtt(op->t));
    }
    dolphin_abandon(c);
    *waited = true;
    int err = drain_by_epochs(op, leaf);
    return err < 0 ? err : dolphin_freeze_values(op, leaf);
}


/* Nothing was changed: writers may come again. */
static int thaw(dolphin_change *c, const dolphin_content *it, int result) {
    far_forget(c->op->t);
    if (it->leaf.addr) {
        dolphin_put_thaw(c->op, &it->leaf);
        int err = dolphin_wait(c->op);
        if (err < 0)
            return err;
    }
    return dolphin_change_end(c, result);
}


/* Whole keys of LIVE slots; key blocks are READ in one batch. */
int dolphin_read_content(dolphin_op *op, dolphin_content *it) {
    const uint64_t *kwords = dolphin_kwords(&it->leaf);
    it->elsewhere = dolphin_parted(&it->leaf, it->hi);
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    int err = 0;
    for (unsigned i = 0; i < op->st->slots; i++) {
        blocks[i] = NULL;
        if (!dolphin_kword_is_sound(kwords[i]))
            return dolphin_broken(op->index, it->leaf.addr, "leaf");
        if (dolphin_state_of_slot(kwords[i]) == DOLPHIN_HELD && dolphin_kword_is_block(kwords[i]) &&
            !(it->elsewhere >> i & 1) && (err = dolphin_put_read_key(op, kwords[i], &blocks[i])) < 0)
            return err;
    }
    if ((err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < op->st->slots; i++) {
        if (dolphin_state_of_slot(kwords[i]) != DOLPHIN_HELD || (it->elsewhere >> i & 1))
            continue;
        dolphin_item *item = &it->items[it->count];
        *item = (dolphin_item){.kword = kwords[i] & DOLPHIN_KEY_MASK, .vword = dolphin_vword(op, &it->leaf, i)};
        if (blocks[i]) {
            if ((err = dolphin_take_key(op, kwords[i], blocks[i], &item->key)) < 0)
                return err;
        } else {
            unsigned length = it->depth + dolphin_kword_length(kwords[i]);
            uint8_t suffix[DOLPHIN_INLINE_MAX], *key = far_scratch(op->t, length ? length : 1);
            if (!key)
                return far_fail(FAR_ERR_NO_MEMORY, "no memory for keys");
            dolphin_inline_bytes(kwords[i], suffix);
            memcpy(key, it->prefix, it->depth);
            memcpy(key + it->depth, suffix, length - it->depth);
            item->key = (far_bytes){key, length};
        }
        if (item->key.length < it->depth || memcmp(item->key.data, it->prefix, it->depth) != 0)
            return dolphin_broken(op->index, it->leaf.addr, "leaf");
        unsigned position = it->position[i] = (uint16_t)dolphin_position(item->key, it->depth);
        if (position < it->lo || position > it->hi) { /* a dead client got as far as to put it elsewhere */
            it->elsewhere |= 1ull << i;
            continue;
        }
        it->count++;
    }
    return 0;
}


/* The leaf below entry `at` of the locked node: what it is for. */
void dolphin_set_bounds(const dolphin_node *node, unsigned at, dolphin_content *it) {
    unsigned lb = dolphin_entry_lb(node->entries[at]);
    it->count = 0;
    it->fresh = -1;
    it->gone_value = it->elsewhere = 0;
    it->depth = dolphin_leaf_depth(node->depth);
    it->lo = node->depth ? lb : 0;
    it->hi = node->depth ? dolphin_next_lb(node, lb) - 1 : DOLPHIN_LAST;
    if (node->depth)
        memcpy(it->prefix, dolphin_node_prefix(node), node->depth);
    else
        it->prefix[0] = (uint8_t)(lb - 1);
}


/* The key that brought all this about joins the others. FAR_ERR_EXISTS: an insert, and it is there. */
static int add_item(dolphin_change *c, dolphin_content *it, far_op_kind how) {
    dolphin_op *op = c->op;
    for (unsigned i = 0; i < it->count; i++)
        if (far_bytes_compare(it->items[i].key, op->key) == 0) {
            if (how == FAR_OP_INSERT)
                return FAR_ERR_EXISTS;
            far_note_added(op->t, false);
            it->gone_value = it->items[i].vword;
            it->items[i].vword = c->vword;
            c->vword = 0; /* its key block is not used */
            return 0;
        }
    far_note_added(op->t, true);
    it->items[it->count++] = (dolphin_item){op->key, c->kword, c->vword};
    c->vword = c->kword = 0;
    dolphin_sort_items(it->items, it->count);
    for (unsigned i = 0; i < it->count; i++)
        if (far_bytes_compare(it->items[i].key, op->key) == 0)
            it->fresh = (int)i;
    return 0;
}


/* Two leaves at this depth, below the node that has this prefix. */
static void fill_two(dolphin_change *c, const dolphin_content *it, unsigned depth, unsigned lo, unsigned hi,
                     unsigned *middle) {
    unsigned cut = dolphin_cut(it->items, it->count, depth, it->fresh);
    const uint8_t *prefix = it->items[0].key.data;
    *middle = dolphin_position(it->items[cut].key, depth);
    dolphin_fill_leaf(c->op, c->leaf[0].image, it->items, cut, prefix, depth, lo, *middle - 1);
    dolphin_fill_leaf(c->op, c->leaf[1].image, it->items + cut, it->count - cut, prefix, depth, *middle, hi);
}


/* All keys go on in the same byte: a node where they part. */
static int deepen(dolphin_change *c, const dolphin_content *it) {
    dolphin_op *op = c->op;
    const uint8_t *first = it->items[0].key.data, *last = it->items[it->count - 1].key.data;
    unsigned depth = it->depth, middle;
    while (depth < it->items[0].key.length && first[depth] == last[depth])
        depth++;
    dolphin_node inner;
    int err = dolphin_make_inner(c, first, depth, 2, &inner);
    if (err < 0 || (err = dolphin_wait(op)) < 0)
        return err;
    fill_two(c, it, depth, 0, DOLPHIN_LAST, &middle);
    inner.entries[0] = dolphin_made_entry(&c->leaf[0], 0);
    inner.entries[1] = dolphin_made_entry(&c->leaf[1], middle);
    unsigned lb = dolphin_entry_lb(c->node.entries[c->at]);
    if (c->node.depth)
        dolphin_plan_node(c, dolphin_position(it->items[0].key, it->depth), it->lo, it->hi);
    else
        dolphin_plan_node(c, lb, lb, lb);
    return 0;
}


/* What takes the place of the leaf. */
static int plan(dolphin_change *c, const dolphin_content *it) {
    dolphin_op *op = c->op;
    unsigned lb = dolphin_entry_lb(c->node.entries[c->at]), slots = op->st->slots, middle;
    unsigned hi = c->node.depth ? it->hi : lb;
    for (unsigned i = 0; i < 2; i++)
        if (c->leaf[i].addr)
            c->leaf[i].image[1] = 0; /* not used until it is filled */
    if (it->count == 0) {
        c->entry = dolphin_null(lb, hi);
        return 0;
    }
    if (it->count <= slots * 3 / 4 || it->count == 1 || (it->fresh < 0 && it->count <= slots)) {
        dolphin_fill_leaf(op, c->leaf[0].image, it->items, it->count, it->prefix, it->depth, it->lo, it->hi);
        c->entry = dolphin_made_entry(&c->leaf[0], lb);
        return 0;
    }
    if (c->node.depth == 0 ||
        dolphin_position(it->items[0].key, it->depth) == dolphin_position(it->items[it->count - 1].key, it->depth))
        return deepen(c, it);
    fill_two(c, it, it->depth, it->lo, it->hi, &middle);
    c->entry = dolphin_made_entry(&c->leaf[0], lb);
    c->add[c->adds++] = dolphin_made_entry(&c->leaf[1], middle);
    return 0;
}


/* Entries change one by one. Before, the old leaf says which of its keys the first of them take from it, if their blocks
 * do not lie in it: whoever finds it half replaced cannot READ them any more. */
static void put_cut(dolphin_change *c, const dolphin_content *it) {
    const uint64_t *kwords = dolphin_kwords(&it->leaf);
    uint64_t *cut = it->leaf.image + DOLPHIN_LEAF_CUT / 8;
    bool blocks = false;
    if (c->adds == 0)
        return;
    far_point(c->op->t, "dolphin:cut");
    cut[0] = dolphin_entry_lb(c->add[c->adds - 1]);
    cut[1] = 0;
    for (unsigned i = 0; i < c->op->st->slots; i++) {
        if (dolphin_state_of_slot(kwords[i]) != DOLPHIN_HELD || it->position[i] < cut[0])
            continue;
        cut[1] |= 1ull << i;
        blocks |= dolphin_kword_is_block(kwords[i]);
    }
    if (!blocks)
        return;
    far_write(c->op->t, it->leaf.addr + DOLPHIN_LEAF_CUT, cut, 16);
    c->apart = far_addr_node(it->leaf.addr) != far_addr_node(dolphin_entry_addr(c->node.word));
}


static bool goes_on(const dolphin_content *it, unsigned depth, uint64_t kword) {
    for (unsigned i = 0; i < it->count; i++)
        if (it->items[i].kword == (kword & DOLPHIN_KEY_MASK))
            return it->items[i].key.length - depth > DOLPHIN_INLINE_MAX;
    return false;
}


/* The old leaf, and what only it named. */
void dolphin_retire_content(dolphin_op *op, const dolphin_content *it, unsigned depth) {
    const uint64_t *kwords = dolphin_kwords(&it->leaf), *vwords = dolphin_vwords(op, &it->leaf);
    far_retire(op->t, op->index, DOLPHIN_TYPE_LEAF, it->leaf.addr, op->st->leaf_bytes);
    for (unsigned i = 0; i < op->st->slots; i++) {
        bool held = dolphin_state_of_slot(kwords[i]) == DOLPHIN_HELD;
        if (!goes_on(it, depth, kwords[i]))
            dolphin_retire_key(op, kwords[i]);
        if (!held)
            dolphin_retire_value(op, vwords[i]);
    }
    dolphin_retire_value(op, it->gone_value);
}


/* The depth of the new leaves. */
static unsigned new_depth(const dolphin_change *c, const dolphin_content *it) {
    return c->inner.addr ? dolphin_ident_depth(c->inner.image[1]) : it->depth;
}


static unsigned place_leaves(const dolphin_op *op, const dolphin_node *node, const uint8_t *prefix) {
    return node->depth ? far_addr_node(dolphin_entry_addr(node->word)) : dolphin_place(op, prefix, 1);
}


static int make_all(dolphin_change *c, const far_bytes *value, unsigned place, unsigned depth, unsigned leaves) {
    int err = 0;
    for (unsigned i = 0; i < leaves && err == 0; i++)
        err = dolphin_make_leaf(c, i, place);
    if (err == 0 && value)
        err = dolphin_make_item(c, *value, depth, place);
    return err;
}


/* With the lock; what was made is in c. */
static int replace_locked(dolphin_change *c, dolphin_content *it, far_op_kind how, const far_bytes *value,
                          unsigned place) {
    dolphin_op *op = c->op;
    bool waited;
    int err = dolphin_freeze_and_drain(c, c->node.entries[c->at], true, &it->leaf, &waited);
    if (err == 0 && waited) {
        err = make_all(c, value, place, it->depth, 2);
        err = err < 0 ? err : dolphin_wait(op);
    }
    if (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE)
        return err;
    uint64_t kword = c->kword, vword = c->vword;
    if (err == 0)
        err = dolphin_read_content(op, it);
    if (err == 0 && value)
        err = add_item(c, it, how);
    else if (err == 0)
        dolphin_sort_items(it->items, it->count);
    if (err == 0)
        err = plan(c, it);
    if (err < 0) {
        c->kword = kword;
        c->vword = vword;
        return err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE ? err : thaw(c, it, err);
    }
    uint64_t unused_key = value && c->kword ? c->kword : 0;
    if (c->inner.addr && value && it->fresh >= 0 &&
        op->key.length - dolphin_ident_depth(c->inner.image[1]) <= DOLPHIN_INLINE_MAX)
        unused_key = kword;
    put_cut(c, it);
    if ((err = dolphin_publish(c, true)) < 0)
        return err;
    far_point(op->t, "dolphin:replaced");
    dolphin_drop_key(op, unused_key);
    dolphin_retire_content(op, it, new_depth(c, it));
    c->item_linked = true;
    dolphin_abandon(c);
    return value ? 1 : 0;
}


int dolphin_replace(dolphin_op *op, const dolphin_spot *spot, far_op_kind how, const far_bytes *value) {
    dolphin_change c = {.op = op};
    dolphin_content *it = far_scratch(op->t, sizeof(*it));
    if (!it)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    if (!dolphin_gate_enter(op, spot->entry))
        return dolphin_gate_wait(op, spot->entry);
    dolphin_node near = {.word = spot->parent, .depth = spot->depth};
    unsigned place = place_leaves(op, &near, op->key.data);
    bool grow = false;
    int err = make_all(&c, value, place, dolphin_leaf_depth(spot->depth), 2);
    if (err < 0)
        dolphin_abandon(&c);
    else if ((err = dolphin_change_lock(&c, spot->parent, spot->entry)) == DOLPHIN_LOCKED) {
        grow = c.node.depth && dolphin_free_entries(&c.node) < DOLPHIN_ADDS_MAX;
        if (grow)
            err = dolphin_change_end(&c, 0);
        else {
            dolphin_set_bounds(&c.node, c.at, it);
            err = replace_locked(&c, it, how, value, place);
        }
    } else
        err = err < 0 ? err : 0;
    dolphin_gate_leave(op, spot->entry);
    return grow && err == 0 ? dolphin_copy_node(op, spot) : err;
}


/* The blocks of keys that are elsewhere already are not those of this leaf any more: nothing of them is left in it. The
 * key goes last, so that a client that comes after a death in between still finds it, and takes its value out. */
int dolphin_narrow(dolphin_op *op, const dolphin_node *node, unsigned at) {
    dolphin_change c = {.op = op, .node = *node, .at = at};
    dolphin_content *it = far_scratch(op->t, sizeof(*it));
    bool waited;
    if (!it)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    dolphin_set_bounds(node, at, it);
    int err = dolphin_freeze_and_drain(&c, node->entries[at], false, &it->leaf, &waited);
    if (err < 0 || (err = dolphin_read_content(op, it)) < 0)
        return err;
    for (unsigned i = 0; i < op->st->slots; i++) {
        uint64_t vword = dolphin_vwords(op, &it->leaf)[i];
        if (!(it->elsewhere >> i & 1))
            continue;
        if (!op->st->words)
            far_cas(op->t, dolphin_value_at(it->leaf.addr, op->st->slots, i), vword, 0, NULL);
        far_cas(op->t, dolphin_key_at(it->leaf.addr, i), dolphin_kwords(&it->leaf)[i], DOLPHIN_HOLE, NULL);
    }
    far_cas(op->t, it->leaf.addr + 8, dolphin_ident(&it->leaf), dolphin_leaf_narrowed(dolphin_ident(&it->leaf), it->hi),
            NULL);
    return dolphin_wait(op);
}
