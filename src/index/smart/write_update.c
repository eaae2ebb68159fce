/* Updating the value of a leaf, in one of three ways. write_insert.c calls smart_update_at when the key is present.
 *
 * - An 8-byte value is overwritten by one WRITE, without a lock. A WRITE that takes effect after the leaf was deleted
 *   is harmless, because no client reads the value of a leaf that is not LIVE.
 * - A value of a VI leaf is overwritten in place under the leaf's lock (write_in_place.c).
 * - In all other cases a new leaf is written, and one CAS turns the ctl word of the old leaf into a pointer to the new
 *   leaf. The slot is changed later. */
#include "base/error.h"
#include "index/smart/smart.h"
#include "pool/epoch/epoch.h"

#include <string.h>


static bool fits_in_place(const smart_state *st, const smart_leaf *leaf, far_bytes value) {
    if (leaf->kind == SMART_C8 || leaf->kind == SMART_VW)
        return value.length == 8;
    return leaf->kind == SMART_VI && smart_kind_for(st, leaf->key.length, value.length) == SMART_VI &&
           smart_leaf_bytes(SMART_VI, leaf->key.length, value.length) <= smart_class_bytes(leaf->class);
}


static int write_value_word(smart_op *op, const smart_spot *s, far_bytes value) {
    uint64_t word;
    memcpy(&word, value.data, 8);
    far_point(op->t, "smart:write_word");
    op->mark = far_rdwc_mark(op->t);
    int err =
        far_write_word(op->t, s->leaf.addr + smart_value_offset(s->leaf.kind, (unsigned)s->leaf.key.length), word);
    if (err < 0)
        return err;
    far_rdwc_done(op->t, s->mark);
    return SMART_DONE;
}


static int replace_leaf(smart_op *op, smart_spot *s, far_bytes value) {
    smart_leaf made;
    const smart_leaf *leaf = &s->leaf;
    uint64_t live = smart_ctl_with_state(leaf->ctl, SMART_LIVE), seen;
    unsigned kind = smart_kind_for(op->st, op->key.length, value.length);
    int err = smart_make_leaf(op, kind, value, far_addr_node(leaf->addr), false, &made);
    if (err < 0)
        return err;
    far_write(op->t, made.addr, made.image, smart_class_bytes(made.class));
    uint32_t mark = 0;
    if (far_addr_node(made.addr) != far_addr_node(leaf->addr)) {
        if ((err = smart_wait(op)) < 0)
            return err;
        mark = op->mark;
    }
    far_point(op->t, "smart:replace_leaf");
    if (leaf->ctl != live)
        far_cas(op->t, leaf->addr, leaf->ctl, live, NULL);
    far_cas(op->t, leaf->addr, live, smart_ctl_replaced(live, made.addr, made.class), &seen);
    if ((err = smart_wait(op)) < 0)
        return err;
    if (seen != live) {
        smart_free_leaf(op, &made);
        return SMART_LOST;
    }
    far_point(op->t, "smart:leaf_replaced");
    if (smart_ctl_state(made.ctl) == SMART_PENDING)
        smart_mark_live(op, made.addr, made.ctl);
    far_rdwc_done(op->t, mark ? mark : op->mark);
    smart_tidy_later(op, false);
    return SMART_DONE;
}


/* Operations that joined the RDWC round after this operation READ the leaf as LIVE may have been invoked after a delete
 * of the key. An update in place cannot exclude such a delete. So the value of the round is chosen only among the
 * operations that joined before the leaf was READ. */
int smart_update_at(smart_op *op, smart_spot *s, far_bytes *value, bool *sealed) {
    bool in_place = fits_in_place(op->st, &s->leaf, *value);
    if (!*sealed) {
        size_t length = value->length;
        far_rdwc_seal_before(op->t, in_place ? s->mark : UINT32_MAX, value);
        in_place = in_place && (value->length == length || fits_in_place(op->st, &s->leaf, *value));
        *sealed = true;
    }
    if (!in_place)
        return replace_leaf(op, s, *value);
    if (s->leaf.kind != SMART_VI)
        return write_value_word(op, s, *value);
    int err = smart_update_locked(op, s, *value);
    /* If there is no memory for a redo record, the leaf is replaced. */
    return err == FAR_ERR_NO_MEMORY ? replace_leaf(op, s, *value) : err;
}


/* The client whose CAS moves the slot from one leaf to a later leaf of its chain retires the leaves before that one. */
int smart_unlink_old_leaves(smart_op *op, const smart_spot *s) {
    unsigned part = smart_word_part(s->word), count = s->chain < SMART_CHAIN_MAX ? s->chain : SMART_CHAIN_MAX;
    uint64_t word, seen;
    bool whole = s->chain <= SMART_CHAIN_MAX, gone = s->outcome == SMART_DEAD_LEAF && whole;
    if (!s->proven || (s->outcome != SMART_HIT && s->outcome != SMART_DEAD_LEAF) || (count == 0 && !gone))
        return SMART_LOST;
    if (gone)
        word = smart_tombstone(part);
    else if (whole)
        word = smart_leaf_word(op->st, &s->leaf, part);
    else {
        count = SMART_CHAIN_MAX - 1;
        smart_leaf next = {.addr = s->old_leaves[count].addr, .class = s->old_leaves[count].class, .key = s->leaf.key};
        word = smart_leaf_word(op->st, &next, part);
    }
    far_point(op->t, "smart:fix_slot");
    far_cas(op->t, s->slot, s->word, word, &seen);
    int err = smart_wait(op);
    if (err < 0 || seen != s->word)
        return err < 0 ? err : SMART_LOST;
    far_point(op->t, "smart:slot_fixed");
    for (unsigned i = 0; i < count; i++)
        smart_retire_leaf(op, s->old_leaves[i].addr, s->old_leaves[i].class);
    if (gone)
        smart_retire_leaf(op, s->leaf.addr, s->leaf.class);
    if (op->st->cache && s->layout < SMART_LAYOUTS)
        smart_cache_store_word(op->st->cache, op->key, s->node, s->depth, s->layout, word, far_epoch(op->t));
    return SMART_DONE;
}
