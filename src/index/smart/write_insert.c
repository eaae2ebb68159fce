/* Put, and inserting a leaf into an unbound slot, over a tombstone or a DEAD leaf, or by a new node between a slot and
 * the child that it names. Each insert takes effect by one CAS of one slot. The kind calls smart_put; smart_put calls
 * write_update.c if the key is present. */
#include "base/error.h"
#include "index/smart/smart.h"
#include "pool/epoch/epoch.h"

#include <string.h>


/* Called after the CAS of the slot succeeded. Makes the leaf LIVE, updates the cache, and raises the size hint in the
 * slot above if the list has outgrown the hint. The function does not wait for these verbs, because other clients
 * handle a PENDING leaf and an outdated hint. */
static void finish_insert(smart_op *op, const smart_spot *s, const smart_leaf *leaf, uint64_t word) {
    far_point(op->t, "smart:linked");
    if (smart_ctl_state(leaf->ctl) == SMART_PENDING)
        smart_mark_live(op, leaf->addr, leaf->ctl);
    if (op->st->cache)
        smart_cache_store_word(op->st->cache, op->key, s->node, s->depth, s->layout, word, far_epoch(op->t));
    if (!s->parent_slot || s->layout == SMART_DIR)
        return;
    unsigned type = smart_read_type_for(s->at + 2, s->layout, op->st->node_types);
    if (type > smart_word_read_type(s->parent_word)) {
        far_cas(op->t, s->parent_slot, s->parent_word, smart_word_with_read_type(s->parent_word, type), NULL);
        far_post(op->t);
    }
}


static void retire_chain(smart_op *op, const smart_spot *s) {
    for (unsigned i = 0; i < s->chain; i++)
        smart_retire_leaf(op, s->old_leaves[i].addr, s->old_leaves[i].class);
    smart_retire_leaf(op, s->leaf.addr, s->leaf.class);
}


static unsigned leaf_kind_for(const smart_op *op, far_bytes value) {
    return smart_kind_for(op->st, op->key.length, value.length);
}


/* Returns whether the list should be replaced by a DIR node at once, because too many clients insert into it: clients
 * that lose the race for its first unbound slot compete again for the next one. In a DIR node each partial key has its
 * own slot, so inserts of different partial keys do not compete. */
static bool list_is_contended(const smart_op *op, const smart_spot *s) {
    return op->lost_slots >= SMART_CONTENTION_LIMIT && s->layout < SMART_DIR;
}


/* Inserts a leaf into a slot that was unbound, was a tombstone, or named a DEAD leaf. If another client has bound the
 * first unbound slot of a list to another partial key, the function continues with the next slot. */
static int insert_into_slot(smart_op *op, smart_spot s, far_bytes value) {
    smart_leaf leaf;
    uint64_t seen, word;
    unsigned part = smart_part(op->key, s.depth);
    int err = smart_make_leaf(op, leaf_kind_for(op, value), value, far_addr_node(s.slot), false, &leaf);
    if (err < 0)
        return err;
    word = smart_leaf_word(op->st, &leaf, part);
    far_write(op->t, leaf.addr, leaf.image, smart_class_bytes(leaf.class));
    uint32_t mark = 0;
    far_point(op->t, "smart:insert");
    if (far_addr_node(leaf.addr) != far_addr_node(s.slot)) {
        if ((err = smart_wait(op)) < 0)
            return err;
        mark = op->mark;
    }
    for (;;) {
        far_cas(op->t, s.slot, s.word, word, &seen);
        if ((err = smart_wait(op)) < 0)
            return err;
        if (mark == 0)
            mark = op->mark;
        if (seen == s.word) {
            finish_insert(op, &s, &leaf, word);
            if (s.outcome == SMART_DEAD_LEAF)
                retire_chain(op, &s);
            far_rdwc_done(op->t, mark);
            return SMART_DONE;
        }
        bool listed = s.word == 0 && s.layout != SMART_DIR;
        op->lost_slots += listed;
        bool next = listed && !(seen & SMART_FROZEN_BIT) && smart_word_part(seen) != part &&
                    s.at + 1 < smart_layout_slots(s.layout) && !list_is_contended(op, &s);
        if (!next)
            break;
        s.slot += 8;
        s.at++;
    }
    smart_free_leaf(op, &leaf);
    return SMART_LOST;
}


typedef struct new_branch { /* a new node between a slot and the child that the slot names */
    far_object object;
    /* The new leaf; addr 0: no leaf. Without path compression each common byte has a node of its own. Then each attempt
     * inserts one node that has only the old child, until only the byte that differs is left; the last node also gets
     * the leaf. */
    smart_leaf leaf;
    uint64_t *image, word;
    unsigned depth, bytes;
    smart_layout layout;
} new_branch;


static int allocate_branch(smart_op *op, const smart_spot *s, new_branch *f, far_bytes value) {
    bool with_leaf = op->st->path_compression || f->depth == s->depth + 1;
    if (!with_leaf)
        f->depth = s->depth + 1;
    f->layout = smart_layout_for(op->st, 2);
    f->bytes = smart_layout_bytes(f->layout);
    f->leaf.addr = 0;
    f->image = far_scratch(op->t, f->bytes);
    if (!f->image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    unsigned place = smart_choose_memory_node(op, smart_prefix_hash(op, f->depth), s->slot);
    int err = far_alloc(op->t, op->index, SMART_TYPE_NODE, f->bytes, place, 0, &f->object);
    if (err >= 0 && with_leaf &&
        (err = smart_make_leaf(op, leaf_kind_for(op, value), value, far_addr_node(f->object.addr), false, &f->leaf)) <
            0)
        far_free(op->t, op->index, SMART_TYPE_NODE, f->object.addr, f->bytes);
    return err;
}


/* Builds the image of the new node. The child itself does not change. In the new node it has the partial key
 * child_part, or the partial key of the operation's key if the node has no leaf. */
static void fill_branch_node(smart_op *op, const smart_spot *s, new_branch *f, unsigned child_part,
                             unsigned child_depth) {
    unsigned mine = smart_part(op->key, f->depth);
    uint64_t child = smart_word_with_part(s->word, f->leaf.addr ? child_part : mine),
             *slots = f->image + SMART_HEADER / 8;
    if (child_depth)
        child = smart_word_with_gap0(child, child_depth == f->depth + 1);
    smart_build_node(op, f->image, f->layout, f->depth, f->object.used);
    slots[0] = child;
    if (f->leaf.addr)
        slots[1] = smart_leaf_word(op->st, &f->leaf, mine);
    uint64_t word = smart_word(f->object.addr, smart_part(op->key, s->depth), SMART_NODE,
                               smart_read_type_for(3, f->layout, op->st->node_types));
    f->word = smart_word_with_gap0(word, f->depth == s->depth + 1);
}


static void finish_branch(smart_op *op, const smart_spot *s, const new_branch *f) {
    far_point(op->t, "smart:branched");
    if (f->object.used)
        smart_mark_live(op, f->object.addr, f->image[0]);
    if (f->leaf.addr && smart_ctl_state(f->leaf.ctl) == SMART_PENDING)
        smart_mark_live(op, f->leaf.addr, f->leaf.ctl);
    if (!op->st->cache)
        return;
    smart_node made = {.addr = f->object.addr,
                       .ctl = f->image[0],
                       .fp = f->image[1],
                       .info = f->image[2],
                       .depth = f->depth,
                       .layout = f->layout,
                       .words = 3,
                       .image = f->image};
    /* the new node is stored first, so that cached nodes below the child stay below it */
    smart_cache_store_node(op->st->cache, op->key, &made);
    smart_cache_store_word(op->st->cache, op->key, s->node, s->depth, s->layout, f->word, far_epoch(op->t));
}


/* Inserts a node with the old child and the new leaf as its children, which share `depth` bytes. The old child itself
 * is not changed. */
static int insert_branch(smart_op *op, const smart_spot *s, unsigned depth, unsigned child_part, unsigned child_depth,
                         far_bytes value) {
    new_branch f = {.depth = depth};
    uint64_t seen;
    int err = allocate_branch(op, s, &f, value);
    if (err < 0)
        return err;
    fill_branch_node(op, s, &f, child_part, child_depth);

    far_write(op->t, f.object.addr, f.image, f.bytes);
    if (f.leaf.addr)
        far_write(op->t, f.leaf.addr, f.leaf.image, smart_class_bytes(f.leaf.class));
    uint32_t mark = 0;
    unsigned node = far_addr_node(s->slot);
    far_point(op->t, "smart:branch");
    if (far_addr_node(f.object.addr) != node || (f.leaf.addr && far_addr_node(f.leaf.addr) != node)) {
        if ((err = smart_wait(op)) < 0)
            return err;
        mark = op->mark;
    }
    far_cas(op->t, s->slot, s->word, f.word, &seen);
    if ((err = smart_wait(op)) < 0)
        return err;
    if (seen == s->word) {
        finish_branch(op, s, &f);
        if (!f.leaf.addr)
            /* a node was added for one common byte; after a new search, the insert continues with the next byte */
            return SMART_RESUME;
        far_rdwc_done(op->t, mark ? mark : op->mark);
        return SMART_DONE;
    }
    far_free(op->t, op->index, SMART_TYPE_NODE, f.object.addr, f.bytes);
    if (f.leaf.addr)
        smart_free_leaf(op, &f.leaf);
    return SMART_LOST;
}


static int branch_at_leaf(smart_op *op, const smart_spot *s, far_bytes value) {
    const uint8_t *mine = op->key.data, *other = s->leaf.key.data;
    unsigned d = 0;
    while (d < op->key.length && d < s->leaf.key.length && mine[d] == other[d])
        d++;
    if (d <= s->depth)
        return smart_fail_corrupt(op->index, s->leaf.addr, "leaf");
    return insert_branch(op, s, d, smart_part(s->leaf.key, d), 0, value);
}


static int branch_at_node(smart_op *op, const smart_spot *s, far_bytes value) {
    unsigned d, part;
    smart_link stuck;
    int err = smart_common_prefix(op, s->depth + 1, (smart_link){s->slot, s->word}, &s->child, &d, &part, &stuck);
    if (err == SMART_PREFIX_KNOWN)
        return insert_branch(op, s, d, part, s->child.depth, value);
    if (err == SMART_NO_LEAF) {
        /* the replaced node is not on the path of the key, so it must not be cached for that key */
        op->is_traversal = true;
        err = smart_replace(op, stuck.slot, stuck.word, SMART_LAYOUTS, NULL, NULL);
        op->is_traversal = false;
    }
    return err < 0 ? err : SMART_LOST;
}


static int grow_list(smart_op *op, const smart_spot *s, far_bytes value) {
    if (!s->parent_slot) {
        op->bypass_cache = op->target_depth != 0;
        smart_set_target(op, s->node, s->depth, s->layout);
        return SMART_RESUME;
    }
    /* RDWC mark of the last batch so far; the batch that writes the leaf is posted after it */
    uint32_t mark = op->mark;
    int err = smart_replace(op, s->parent_slot, s->parent_word, s->layout, &s->node_image, &value);
    op->lost_slots = 0;
    if (err == SMART_GREW)
        far_rdwc_done(op->t, mark);
    return err < 0 ? err : err == SMART_GREW ? SMART_DONE : SMART_LOST;
}


static int insert_without_lock(smart_op *op, const smart_spot *s, far_bytes value) {
    switch (s->outcome) {
    case SMART_EMPTY:
        if (s->layout != SMART_DIR && (s->at >= smart_layout_slots(s->layout) || list_is_contended(op, s)))
            return grow_list(op, s, value);
        return insert_into_slot(op, *s, value);
    case SMART_DEAD_LEAF:
        if (s->chain > SMART_CHAIN_MAX) {
            int err = smart_unlink_old_leaves(op, s);
            return err < 0 ? err : SMART_LOST;
        }
        return insert_into_slot(op, *s, value);
    case SMART_OTHER_LEAF:
        return branch_at_leaf(op, s, value);
    case SMART_OTHER_NODE:
        return branch_at_node(op, s, value);
    case SMART_HIT:
        break;
    }
    return SMART_LOST;
}


int smart_insert_at(smart_op *op, const smart_spot *s, far_bytes value) {
    if (!op->st->node_locks)
        return insert_without_lock(op, s, value);
    far_addr lock = smart_node_lock(op, s);
    int err = smart_lock_node(op, lock);
    if (err <= 0)
        return err;
    err = insert_without_lock(op, s, value);
    if (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE)
        return err;
    int unlocked = smart_unlock_node(op, lock);
    return unlocked < 0 ? unlocked : err;
}


int smart_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    smart_op op;
    smart_spot *spot = far_scratch(t, sizeof(*spot));
    bool sealed = false;
    if (!spot)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    int err = smart_op_begin(&op, t, index, key);
    op.expects_absent = how == FAR_OP_INSERT;
    op.never_inserts = how == FAR_OP_UPDATE;
    for (unsigned attempt = 0; err >= 0; attempt++) {
        far_scratch_mark here = far_scratch_here(t);
        if ((err = smart_find(&op, true, spot)) < 0)
            return err;
        far_point(t, "smart:search_done");
        far_note_added(t, spot->outcome != SMART_HIT);
        if (spot->outcome == SMART_HIT) {
            if (how == FAR_OP_INSERT)
                return FAR_ERR_EXISTS;
            err = smart_update_at(&op, spot, &value, &sealed);
        } else {
            if (how == FAR_OP_UPDATE) {
                far_rdwc_done(t, spot->mark);
                return FAR_ERR_NOT_FOUND;
            }
            if (!sealed)
                far_rdwc_seal(t, &value);
            sealed = true;
            err = smart_insert_at(&op, spot, value);
        }
        if (err < 0 || err == SMART_DONE)
            break;
        far_scratch_back(t, here);
        if (err == SMART_RESUME)
            continue;
        far_count_retry(t);
        far_back_off(t, attempt);
    }
    return err < 0 ? err : 0;
}
