/* Inserting: into a free slot, over a tombstone or a dead leaf, or by a new node between the slot and what it names.
 * Each is one CAS. */
#include "base/error.h"
#include "index/smart/smart.h"

#include <string.h>


/* The CAS of a slot won: what others need to know at once, and what they could find out themselves. */
static void linked(smart_op *op, const smart_spot *s, const smart_leaf *leaf, uint64_t word) {
    far_point(op->t, "smart:linked");
    if (smart_ctl_state(leaf->ctl) == SMART_PENDING)
        smart_flip(op, leaf->addr, leaf->ctl);
    if (op->st->cache)
        smart_cache_word(op->st->cache, op->key, s->node, s->depth, s->layout, word);
    if (!s->up || s->layout == SMART_DIR)
        return;
    unsigned type = smart_read_type_for(s->at + 2, s->layout, op->st->node_types);
    if (type > smart_word_read_type(s->up_word)) {
        far_cas(op->t, s->up, s->up_word, smart_word_with_read_type(s->up_word, type), NULL);
        far_post(op->t);
    }
}


static void retire_old(smart_op *op, const smart_spot *s) {
    for (unsigned i = 0; i < s->chain; i++)
        smart_retire_leaf(op, s->old[i].addr, s->old[i].class);
    smart_retire_leaf(op, s->leaf.addr, s->leaf.class);
}


static unsigned kind_for(const smart_op *op, far_bytes value) {
    return smart_kind_for(op->st, op->key.length, value.length);
}


/* So many insert into this list at once that those who lose its frontier follow each other from slot to slot. In a node
 * with a slot for each byte they do not meet: it grows at once. */
static bool is_crowded(const smart_op *op, const smart_spot *s) {
    return op->lost >= SMART_CROWD && s->layout < SMART_DIR;
}


/* The leaf takes the slot: it was unbound, a tombstone, or named a dead leaf. In a list another partial key may have
 * taken the frontier: then it is the next one. */
static int take_slot(smart_op *op, smart_spot s, far_bytes value) {
    smart_leaf leaf;
    uint64_t seen, word;
    unsigned part = smart_part(op->key, s.depth);
    int err = smart_make_leaf(op, kind_for(op, value), value, far_addr_node(s.slot), false, &leaf);
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
            linked(op, &s, &leaf, word);
            if (s.outcome == SMART_GONE)
                retire_old(op, &s);
            far_rdwc_done(op->t, mark);
            return SMART_DONE;
        }
        bool listed = s.word == 0 && s.layout != SMART_DIR;
        op->lost += listed;
        bool next = listed && !(seen & SMART_F) && smart_word_part(seen) != part &&
                    s.at + 1 < smart_layout_slots(s.layout) && !is_crowded(op, &s);
        if (!next)
            break;
        s.slot += 8;
        s.at++;
    }
    smart_free_leaf(op, &leaf);
    return SMART_LOST;
}


typedef struct fork { /* a new node between the slot and what it names */
    far_object object;
    smart_leaf leaf; /* addr 0: without path compression a node that only holds the child comes first */
    uint64_t *image, word;
    unsigned depth, bytes;
    smart_layout layout;
} fork;


static int make_fork(smart_op *op, const smart_spot *s, fork *f, far_bytes value) {
    bool with_leaf = op->st->paths || f->depth == s->depth + 1;
    if (!with_leaf)
        f->depth = s->depth + 1;
    f->layout = smart_layout_for(op->st, 2);
    f->bytes = smart_layout_bytes(f->layout);
    f->leaf.addr = 0;
    f->image = far_scratch(op->t, f->bytes);
    if (!f->image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    unsigned place = smart_place(op, smart_prefix_hash(op, f->depth), s->slot);
    int err = far_alloc(op->t, op->index, SMART_TYPE_NODE, f->bytes, place, 0, &f->object);
    if (err >= 0 && with_leaf &&
        (err = smart_make_leaf(op, kind_for(op, value), value, far_addr_node(f->object.addr), false, &f->leaf)) < 0)
        far_free(op->t, op->index, SMART_TYPE_NODE, f->object.addr, f->bytes);
    return err;
}


/* The child keeps its object; in the new node it has the partial key child_part, or that of the key. */
static void fill_fork(smart_op *op, const smart_spot *s, fork *f, unsigned child_part, unsigned child_depth) {
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


static void forked(smart_op *op, const smart_spot *s, const fork *f) {
    far_point(op->t, "smart:branched");
    if (f->object.used)
        smart_flip(op, f->object.addr, f->image[0]);
    if (f->leaf.addr && smart_ctl_state(f->leaf.ctl) == SMART_PENDING)
        smart_flip(op, f->leaf.addr, f->leaf.ctl);
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
    smart_cache_node(op->st->cache, op->key, &made); /* first: what is known of the child moves below it */
    smart_cache_word(op->st->cache, op->key, s->node, s->depth, s->layout, f->word);
}


/* A new node with the child and the new leaf, which part after `depth` bytes: the child itself is not touched. */
static int branch(smart_op *op, const smart_spot *s, unsigned depth, unsigned child_part, unsigned child_depth,
                  far_bytes value) {
    fork f = {.depth = depth};
    uint64_t seen;
    int err = make_fork(op, s, &f, value);
    if (err < 0)
        return err;
    fill_fork(op, s, &f, child_part, child_depth);

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
        forked(op, s, &f);
        if (!f.leaf.addr)
            return SMART_ONWARD; /* to the next byte */
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
        return smart_broken(op->index, s->leaf.addr, "leaf");
    return branch(op, s, d, smart_part(s->leaf.key, d), 0, value);
}


static int branch_at_node(smart_op *op, const smart_spot *s, far_bytes value) {
    unsigned d, part;
    smart_link stuck;
    int err = smart_common_prefix(op, s->depth + 1, (smart_link){s->slot, s->word}, &s->child, &d, &part, &stuck);
    if (err == SMART_PREFIX_KNOWN)
        return branch(op, s, d, part, s->child.depth, value);
    if (err == SMART_NO_LEAF) {
        op->passes = true; /* what is replaced does not lie on the way of the key */
        err = smart_replace(op, stuck.slot, stuck.word, SMART_LAYOUTS, NULL, NULL);
        op->passes = false;
    }
    return err < 0 ? err : SMART_LOST;
}


static int grow(smart_op *op, const smart_spot *s, far_bytes value) {
    if (!s->up) {
        op->uncached = op->below != 0;
        smart_want_up(op, s->node, s->depth, s->layout);
        return SMART_ONWARD;
    }
    uint32_t mark = op->mark; /* the leaf is written after this */
    int err = smart_replace(op, s->up, s->up_word, s->layout, &s->owner, &value);
    op->lost = 0;
    if (err == SMART_GREW)
        far_rdwc_done(op->t, mark);
    return err < 0 ? err : err == SMART_GREW ? SMART_DONE : SMART_LOST;
}


static int insert_at(smart_op *op, const smart_spot *s, far_bytes value) {
    switch (s->outcome) {
    case SMART_EMPTY:
        if (s->layout != SMART_DIR && (s->at >= smart_layout_slots(s->layout) || is_crowded(op, s)))
            return grow(op, s, value);
        return take_slot(op, *s, value);
    case SMART_GONE:
        if (s->chain > SMART_CHAIN_MAX) {
            int err = smart_fix_slot(op, s);
            return err < 0 ? err : SMART_LOST;
        }
        return take_slot(op, *s, value);
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
        return insert_at(op, s, value);
    far_addr lock = smart_node_lock(op, s);
    int err = smart_lock_node(op, lock);
    if (err <= 0)
        return err;
    err = insert_at(op, s, value);
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
    int err = smart_begin(&op, t, index, key);
    op.absent = how == FAR_OP_INSERT;
    op.only_present = how == FAR_OP_UPDATE;
    for (unsigned attempt = 0; err >= 0; attempt++) {
        far_scratch_mark here = far_scratch_here(t);
        if ((err = smart_find(&op, true, spot)) < 0)
            return err;
        far_point(t, "smart:found");
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
        if (err == SMART_ONWARD)
            continue;
        far_count_retry(t);
        far_back_off(t, attempt);
    }
    return err < 0 ? err : 0;
}
