/* Replacing a leaf: by a copy without the slots of deleted keys, by two leaves (split), by a node with two leaves
 * (deepen), or by NULL. dolphin_replace_leaf runs when an insert finds no empty slot and when a delete empties a leaf.
 *
 * The steps are: {lock the node}, {FAA FROZEN, READ spear, READ leaf}, {write the new leaves, change the entries,
 * unlock}. Writers that enter after the FAA see FROZEN and leave again. If the spear word that was READ shows no writer
 * inside, the leaf that was READ after it is final. Otherwise the two READs are repeated. If a writer stays inside,
 * because it has failed or is stalled, the client waits for epochs instead: every writer that was inside at the FAA
 * held a pin. */
#include "base/error.h"
#include "index/dolphin/restructure.h"
#include "pool/epoch/epoch.h"

/* Number of READs of the spear word before the client waits for epochs. Waiting for epochs takes milliseconds, and
 * meanwhile all writers of the leaf have to wait, so it is worth polling for long. With many clients the number of
 * writers is rarely 0, because clients that enter late are counted too until they have seen FROZEN and left. They do
 * not enter again (wait_until_replaced in lock.c), so their number decreases. */
#define POLLS 512

static bool leaf_is_drained(uint64_t spear) {
    return (spear & DOLPHIN_FROZEN) && !(spear & DOLPHIN_UNCOUNTED) && dolphin_writer_count(spear) == 0;
}


/* Returns true if the leaf is frozen and in uncounted mode, in which it may have writers that the spear word does not
 * count. */
static bool leaf_is_frozen_uncounted(uint64_t spear) {
    return (spear & DOLPHIN_FROZEN) && (spear & DOLPHIN_UNCOUNTED);
}


/* Waits until all pins are newer than the freeze. Then every writer that was inside has left, or has failed and is
 * fenced, so the content that is READ afterwards is final. */
static int drain_by_epochs(dolphin_op *op, const dolphin_leaf *leaf) {
    far_point(op->t, "dolphin:drain");
    int err = far_pin_after_epochs(op->t, 1);
    if (err < 0)
        return err;
    far_read(op->t, leaf->addr, leaf->image, op->st->leaf_bytes);
    return dolphin_wait(op);
}


int dolphin_freeze_and_drain(dolphin_change *c, uint64_t entry, bool freeze, dolphin_leaf *leaf, bool *waited) {
    dolphin_op *op = c->op;
    uint64_t spear;
    *waited = false;
    *leaf = (dolphin_leaf){.entry = entry, .addr = dolphin_entry_addr(entry), .whole = true};
    if (!(leaf->image = far_scratch(op->t, op->st->leaf_bytes))) {
        leaf->addr = 0; /* the address 0 shows the caller that the leaf was not frozen */
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
        if (leaf_is_drained(spear))
            return dolphin_freeze_values(op, leaf);
        if (leaf_is_frozen_uncounted(spear))
            break;
        far_count_retry(op->t);
        far_sleep(op->t, far_rtt(op->t));
    }
    dolphin_abandon_change(c);
    *waited = true;
    int err = drain_by_epochs(op, leaf);
    return err < 0 ? err : dolphin_freeze_values(op, leaf);
}


/* Thaws the leaf after an error, so that writers may enter again. No entry was changed. */
static int thaw_and_end(dolphin_change *c, const dolphin_content *it, int result) {
    far_discard_batch(c->op->t);
    if (it->leaf.addr) {
        dolphin_batch_thaw(c->op, &it->leaf);
        int err = dolphin_wait(c->op);
        if (err < 0)
            return err;
    }
    return dolphin_end_change(c, result);
}


/* Rebuilds the whole key of each LIVE slot. All key blocks are READ in one batch. */
int dolphin_read_content(dolphin_op *op, dolphin_content *it) {
    const uint64_t *kwords = dolphin_kwords(&it->leaf);
    it->moved_slots = dolphin_moved_slots(&it->leaf, it->hi);
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    int err = 0;
    for (unsigned i = 0; i < op->st->slots; i++) {
        blocks[i] = NULL;
        if (!dolphin_kword_is_sound(kwords[i]))
            return dolphin_fail_corrupt(op->index, it->leaf.addr, "leaf");
        if (dolphin_slot_state_of(kwords[i]) == DOLPHIN_SLOT_LIVE && dolphin_kword_is_block(kwords[i]) &&
            !(it->moved_slots >> i & 1) && (err = dolphin_batch_read_key(op, kwords[i], &blocks[i])) < 0)
            return err;
    }
    if ((err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < op->st->slots; i++) {
        if (dolphin_slot_state_of(kwords[i]) != DOLPHIN_SLOT_LIVE || (it->moved_slots >> i & 1))
            continue;
        dolphin_item *item = &it->items[it->count];
        *item = (dolphin_item){.kword = kwords[i] & DOLPHIN_KEY_MASK, .vword = dolphin_vword(op, &it->leaf, i)};
        if (blocks[i]) {
            if ((err = dolphin_decode_key(op, kwords[i], blocks[i], &item->key)) < 0)
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
            return dolphin_fail_corrupt(op->index, it->leaf.addr, "leaf");
        unsigned position = it->position[i] = (uint16_t)dolphin_position(item->key, it->depth);
        if (position < it->lo || position > it->hi) { /* a failed client has already linked this key in another leaf */
            it->moved_slots |= 1ull << i;
            continue;
        }
        it->count++;
    }
    return 0;
}


void dolphin_set_leaf_bounds(const dolphin_node *node, unsigned at, dolphin_content *it) {
    unsigned lb = dolphin_entry_lb(node->entries[at]);
    it->count = 0;
    it->new_item = -1;
    it->replaced_value = it->moved_slots = 0;
    it->depth = dolphin_leaf_depth(node->depth);
    it->lo = node->depth ? lb : 0;
    it->hi = node->depth ? dolphin_next_lb(node, lb) - 1 : DOLPHIN_LAST_POSITION;
    if (node->depth)
        memcpy(it->prefix, dolphin_node_prefix(node), node->depth);
    else
        it->prefix[0] = (uint8_t)(lb - 1);
}


/* Adds op->key to the items, or replaces its value. Returns FAR_ERR_EXISTS if an insert finds the key. */
static int add_new_item(dolphin_change *c, dolphin_content *it, far_op_kind how) {
    dolphin_op *op = c->op;
    for (unsigned i = 0; i < it->count; i++)
        if (far_bytes_compare(it->items[i].key, op->key) == 0) {
            if (how == FAR_OP_INSERT)
                return FAR_ERR_EXISTS;
            far_note_added(op->t, false);
            it->replaced_value = it->items[i].vword;
            it->items[i].vword = c->vword;
            c->vword = 0; /* the key exists, so this change uses no new key block */
            return 0;
        }
    far_note_added(op->t, true);
    it->items[it->count++] = (dolphin_item){op->key, c->kword, c->vword};
    c->vword = c->kword = 0;
    dolphin_sort_items(it->items, it->count);
    for (unsigned i = 0; i < it->count; i++)
        if (far_bytes_compare(it->items[i].key, op->key) == 0)
            it->new_item = (int)i;
    return 0;
}


/* Splits the items into two new leaves of this depth. *middle is the lower bound of the second leaf. */
static void fill_two_leaves(dolphin_change *c, const dolphin_content *it, unsigned depth, unsigned lo, unsigned hi,
                            unsigned *middle) {
    unsigned cut = dolphin_choose_split(it->items, it->count, depth, it->new_item);
    const uint8_t *prefix = it->items[0].key.data;
    *middle = dolphin_position(it->items[cut].key, depth);
    dolphin_fill_leaf(c->op, c->leaf[0].image, it->items, cut, prefix, depth, lo, *middle - 1);
    dolphin_fill_leaf(c->op, c->leaf[1].image, it->items + cut, it->count - cut, prefix, depth, *middle, hi);
}


/* Called when all keys have the same position in the old leaf, so the leaf cannot be split there. Plans a node at the
 * first depth at which the keys differ, with two leaves below it. */
static int plan_deeper_node(dolphin_change *c, const dolphin_content *it) {
    dolphin_op *op = c->op;
    const uint8_t *first = it->items[0].key.data, *last = it->items[it->count - 1].key.data;
    unsigned depth = it->depth, middle;
    while (depth < it->items[0].key.length && first[depth] == last[depth])
        depth++;
    dolphin_node inner;
    int err = dolphin_alloc_inner(c, first, depth, 2, &inner);
    if (err < 0 || (err = dolphin_wait(op)) < 0)
        return err;
    fill_two_leaves(c, it, depth, 0, DOLPHIN_LAST_POSITION, &middle);
    inner.entries[0] = dolphin_new_object_entry(&c->leaf[0], 0);
    inner.entries[1] = dolphin_new_object_entry(&c->leaf[1], middle);
    unsigned lb = dolphin_entry_lb(c->node.entries[c->replaced_index]);
    if (c->node.depth)
        dolphin_plan_inner_entries(c, dolphin_position(it->items[0].key, it->depth), it->lo, it->hi);
    else
        dolphin_plan_inner_entries(c, lb, lb, lb);
    return 0;
}


/* Plans the replacement according to the number of items: NULL, one leaf, two leaves, or a node with two leaves. */
static int plan_replacement(dolphin_change *c, const dolphin_content *it) {
    dolphin_op *op = c->op;
    unsigned lb = dolphin_entry_lb(c->node.entries[c->replaced_index]), slots = op->st->slots, middle;
    unsigned hi = c->node.depth ? it->hi : lb;
    for (unsigned i = 0; i < 2; i++)
        if (c->leaf[i].addr)
            c->leaf[i].image[1] = 0; /* ident 0 marks the new leaf as unused until dolphin_fill_leaf writes it */
    if (it->count == 0) {
        c->replacement = dolphin_null_entry(lb, hi);
        return 0;
    }
    if (it->count <= slots * 3 / 4 || it->count == 1 || (it->new_item < 0 && it->count <= slots)) {
        dolphin_fill_leaf(op, c->leaf[0].image, it->items, it->count, it->prefix, it->depth, it->lo, it->hi);
        c->replacement = dolphin_new_object_entry(&c->leaf[0], lb);
        return 0;
    }
    if (c->node.depth == 0 ||
        dolphin_position(it->items[0].key, it->depth) == dolphin_position(it->items[it->count - 1].key, it->depth))
        return plan_deeper_node(c, it);
    fill_two_leaves(c, it, it->depth, it->lo, it->hi, &middle);
    c->replacement = dolphin_new_object_entry(&c->leaf[0], lb);
    c->added[c->added_count++] = dolphin_new_object_entry(&c->leaf[1], middle);
    return 0;
}


/* Appends the WRITE of `cut` and `moved` to the old leaf, if entries will be added and a moved key has a key block. The
 * entries are changed one after the other. If this client fails in between, another client finds the old leaf half
 * replaced. That client must not READ the key blocks of the moved keys, because another leaf owns these blocks. */
static void batch_write_cut(dolphin_change *c, const dolphin_content *it) {
    const uint64_t *kwords = dolphin_kwords(&it->leaf);
    uint64_t *cut = it->leaf.image + DOLPHIN_LEAF_CUT / 8;
    bool blocks = false;
    if (c->added_count == 0)
        return;
    far_point(c->op->t, "dolphin:write_cut");
    cut[0] = dolphin_entry_lb(c->added[c->added_count - 1]);
    cut[1] = 0;
    for (unsigned i = 0; i < c->op->st->slots; i++) {
        if (dolphin_slot_state_of(kwords[i]) != DOLPHIN_SLOT_LIVE || it->position[i] < cut[0])
            continue;
        cut[1] |= 1ull << i;
        blocks |= dolphin_kword_is_block(kwords[i]);
    }
    if (!blocks)
        return;
    far_write(c->op->t, it->leaf.addr + DOLPHIN_LEAF_CUT, cut, 16);
    c->entries_must_wait = far_addr_node(it->leaf.addr) != far_addr_node(dolphin_entry_addr(c->node.word));
}


static bool key_block_is_reused(const dolphin_content *it, unsigned depth, uint64_t kword) {
    for (unsigned i = 0; i < it->count; i++)
        if (it->items[i].kword == (kword & DOLPHIN_KEY_MASK))
            return it->items[i].key.length - depth > DOLPHIN_INLINE_MAX;
    return false;
}


void dolphin_retire_content(dolphin_op *op, const dolphin_content *it, unsigned depth) {
    const uint64_t *kwords = dolphin_kwords(&it->leaf), *vwords = dolphin_vwords(op, &it->leaf);
    far_retire(op->t, op->index, DOLPHIN_TYPE_LEAF, it->leaf.addr, op->st->leaf_bytes);
    for (unsigned i = 0; i < op->st->slots; i++) {
        bool held = dolphin_slot_state_of(kwords[i]) == DOLPHIN_SLOT_LIVE;
        if (!key_block_is_reused(it, depth, kwords[i]))
            dolphin_retire_key(op, kwords[i]);
        if (!held)
            dolphin_retire_value(op, vwords[i]);
    }
    dolphin_retire_value(op, it->replaced_value);
}


static unsigned depth_of_new_leaves(const dolphin_change *c, const dolphin_content *it) {
    return c->inner.addr ? dolphin_ident_depth(c->inner.image[1]) : it->depth;
}


static unsigned memory_node_for_leaves(const dolphin_op *op, const dolphin_node *node, const uint8_t *prefix) {
    return node->depth ? far_addr_node(dolphin_entry_addr(node->word)) : dolphin_choose_memory_node(op, prefix, 1);
}


/* Allocates the new leaves, and the key block and value block of the new pair. Without a new pair, all pairs fit into
 * one leaf. */
static int alloc_all(dolphin_change *c, const far_bytes *value, unsigned place, unsigned depth) {
    int err = 0;
    for (unsigned i = 0; i < (value ? 2u : 1u) && err == 0; i++)
        err = dolphin_alloc_leaf(c, i, place);
    if (err == 0 && value)
        err = dolphin_build_item(c, *value, depth, place);
    return err;
}


/* Replaces the leaf after its node was locked. The caller has allocated the new objects in c. */
static int replace_locked(dolphin_change *c, dolphin_content *it, far_op_kind how, const far_bytes *value,
                          unsigned place) {
    dolphin_op *op = c->op;
    bool waited;
    int err = dolphin_freeze_and_drain(c, c->node.entries[c->replaced_index], true, &it->leaf, &waited);
    if (err == 0 && waited) {
        err = alloc_all(c, value, place, it->depth);
        err = err < 0 ? err : dolphin_wait(op);
    }
    if (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE)
        return err;
    uint64_t kword = c->kword, vword = c->vword;
    if (err == 0)
        err = dolphin_read_content(op, it);
    if (err == 0 && value)
        err = add_new_item(c, it, how);
    else if (err == 0)
        dolphin_sort_items(it->items, it->count);
    if (err == 0)
        err = plan_replacement(c, it);
    if (err < 0) {
        c->kword = kword;
        c->vword = vword;
        return err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE ? err : thaw_and_end(c, it, err);
    }
    uint64_t unused_key = value && c->kword ? c->kword : 0;
    if (c->inner.addr && value && it->new_item >= 0 &&
        op->key.length - dolphin_ident_depth(c->inner.image[1]) <= DOLPHIN_INLINE_MAX)
        unused_key = kword;
    batch_write_cut(c, it);
    if ((err = dolphin_publish_change(c, true)) < 0)
        return err;
    far_point(op->t, "dolphin:replaced");
    dolphin_free_key(op, unused_key);
    dolphin_retire_content(op, it, depth_of_new_leaves(c, it));
    c->item_linked = true;
    dolphin_abandon_change(c);
    return value ? 1 : 0;
}


int dolphin_replace_leaf(dolphin_op *op, const dolphin_location *location, far_op_kind how, const far_bytes *value) {
    dolphin_change c = {.op = op};
    dolphin_content *it = far_scratch(op->t, sizeof(*it));
    if (!it)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    if (!dolphin_gate_enter(op, location->entry))
        return dolphin_gate_wait(op, location->entry);
    dolphin_node near = {.word = location->node_word, .depth = location->depth};
    unsigned place = memory_node_for_leaves(op, &near, op->key.data);
    bool grow = false;
    int err = alloc_all(&c, value, place, dolphin_leaf_depth(location->depth));
    if (err < 0)
        dolphin_abandon_change(&c);
    else if ((err = dolphin_lock_for_change(&c, location->node_word, location->entry)) == DOLPHIN_LOCKED) {
        /* a delete adds no entry, so it needs no larger node, which might be missing in a full pool */
        grow = value && c.node.depth && dolphin_count_free_entries(&c.node) < DOLPHIN_ADDS_MAX;
        if (grow)
            err = dolphin_end_change(&c, 0);
        else {
            dolphin_set_leaf_bounds(&c.node, c.replaced_index, it);
            err = replace_locked(&c, it, how, value, place);
        }
    } else
        err = err < 0 ? err : 0;
    dolphin_gate_leave(op, location->entry);
    return grow && err == 0 ? dolphin_replace_node(op, location) : err;
}


/* The key blocks of moved slots belong to other leaves, so these slots are cleared without retiring the blocks. In each
 * slot the value word is cleared before the key word. If this client fails in between, the next client still finds the
 * key word and finishes the slot. */
int dolphin_narrow_leaf(dolphin_op *op, const dolphin_node *node, unsigned at) {
    dolphin_change c = {.op = op, .node = *node, .replaced_index = at};
    dolphin_content *it = far_scratch(op->t, sizeof(*it));
    bool waited;
    if (!it)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    dolphin_set_leaf_bounds(node, at, it);
    int err = dolphin_freeze_and_drain(&c, node->entries[at], false, &it->leaf, &waited);
    if (err < 0 || (err = dolphin_read_content(op, it)) < 0)
        return err;
    for (unsigned i = 0; i < op->st->slots; i++) {
        uint64_t vword = dolphin_vwords(op, &it->leaf)[i];
        if (!(it->moved_slots >> i & 1))
            continue;
        if (!op->st->raw_values)
            far_cas(op->t, dolphin_vword_addr(it->leaf.addr, op->st->slots, i), vword, 0, NULL);
        far_cas(op->t, dolphin_kword_addr(it->leaf.addr, i), dolphin_kwords(&it->leaf)[i], DOLPHIN_SLOT_HOLE, NULL);
    }
    far_cas(op->t, it->leaf.addr + 8, dolphin_ident(&it->leaf),
            dolphin_narrowed_ident(dolphin_ident(&it->leaf), it->hi), NULL);
    return dolphin_wait(op);
}
