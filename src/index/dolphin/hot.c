/* hot_updates=on: values of any size are updated in one round trip, {WRITE block, CAS key word, CAS value word}, where a
 * hint knows the slot and what its value word was. Nobody is counted in: what keeps the update from a leaf that is being
 * copied is its value word, which is frozen before it is copied.
 *
 * The first CAS changes nothing: it tells, before the second one, whether the key is alive. The second one succeeds:
 * - the word names what it named when the hint was set: that was so lately that neither the block nor the leaf can have
 *   been used anew (dolphin_hint_word); and the leaf, not frozen, speaks for the key.
 * - the key was alive at the first one: the update took effect at the second; or just before a delete in between.
 * - it was not: the slot is dead for ever, and what it names goes with the leaf. Nobody saw it.
 * It fails: nothing happened, perhaps long before this operation. Another update: once more, with what the CAS found. If
 * that fails too, somebody wrote or deleted meanwhile, and our update came just before. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"


static bool is_usable(uint64_t vword) {
    return vword && !(vword & DOLPHIN_VALUE_FROZEN) && dolphin_value_is_sound(vword);
}


/* One round trip. */
static int try_once(dolphin_op *op, far_addr leaf, unsigned slot, uint64_t held, uint64_t old, uint64_t vword,
                    uint64_t *alive, uint64_t *seen) {
    far_point(op->t, "dolphin:hot");
    far_cas(op->t, dolphin_key_at(leaf, slot), held, held, alive);
    far_cas(op->t, dolphin_value_at(leaf, op->st->slots, slot), old, vword, seen);
    return dolphin_wait(op);
}


/* The new word is in the slot. */
static int took_effect(dolphin_op *op, const dolphin_spot *spot, unsigned slot, uint64_t old, uint64_t vword) {
    dolphin_retire_value(op, old);
    dolphin_hint_set_word(op, spot->entry, slot, vword);
    return 0;
}


int dolphin_update_hot(dolphin_op *op, const dolphin_spot *spot, unsigned slot, uint64_t old, far_bytes value) {
    far_addr leaf = dolphin_entry_addr(spot->entry);
    unsigned depth = dolphin_leaf_depth(spot->depth);
    uint64_t vword, alive, seen;
    uint8_t *block;
    if (op->key.length < depth || op->key.length - depth > DOLPHIN_INLINE_MAX)
        return 1;
    uint64_t held = dolphin_with_state(dolphin_inline_kword(op->key, depth), DOLPHIN_HELD);
    far_rdwc_seal(op->t, &value);
    int err = dolphin_make_value(op, value, far_addr_node(leaf), &vword, &block);
    if (err == 0)
        err = dolphin_write_block(op, dolphin_value_block(vword), block, dolphin_value_block_bytes(vword), leaf);
    if (err < 0 || (err = try_once(op, leaf, slot, held, old, vword, &alive, &seen)) < 0)
        return err;
    far_rdwc_done(op->t, op->mark);
    if (seen == old) {
        took_effect(op, spot, slot, old, vword);
        return alive == held ? 0 : 1;
    }
    far_count_retry(op->t);
    if (alive != held || !is_usable(seen)) {
        dolphin_drop_value(op, vword);
        return 1;
    }
    old = seen;
    if ((err = try_once(op, leaf, slot, held, old, vword, &alive, &seen)) < 0)
        return err;
    if (seen == old)
        return took_effect(op, spot, slot, old, vword); /* alive, or deleted since the first look */
    dolphin_drop_value(op, vword);
    if (is_usable(seen))
        dolphin_hint_set_word(op, spot->entry, slot, seen);
    bool deleted = seen == 0 && alive == dolphin_with_state(held, DOLPHIN_DEAD); /* and not moved: that leaves a hole */
    return is_usable(seen) || deleted ? 0 : 1;
}


/* Words that are 0 stay 0: only an insert changes them, and none is inside. */
int dolphin_freeze_values(dolphin_op *op, const dolphin_leaf *leaf) {
    uint64_t *vwords = leaf->image + DOLPHIN_LEAF_HEADER / 8 + op->st->slots, seen[DOLPHIN_SLOTS_MAX];
    if (!op->st->hot)
        return 0;
    for (unsigned i = 0; i < op->st->slots; i++)
        if (vwords[i] && !(vwords[i] & DOLPHIN_VALUE_FROZEN))
            far_faa(op->t, dolphin_value_at(leaf->addr, op->st->slots, i), DOLPHIN_VALUE_FROZEN, &seen[i]);
    int err = dolphin_wait(op);
    for (unsigned i = 0; i < op->st->slots && err == 0; i++)
        if (vwords[i] && !(vwords[i] & DOLPHIN_VALUE_FROZEN))
            vwords[i] = seen[i] | DOLPHIN_VALUE_FROZEN;
    far_point(op->t, "dolphin:values_frozen");
    return err;
}


/* The leaf comes last: while it is frozen, whoever takes over finds what is left. */
void dolphin_put_thaw(dolphin_op *op, const dolphin_leaf *leaf) {
    for (unsigned i = 0; i < op->st->slots && op->st->hot; i++) {
        uint64_t vword = dolphin_vwords(op, leaf)[i];
        if (vword & DOLPHIN_VALUE_FROZEN)
            far_cas(op->t, dolphin_value_at(leaf->addr, op->st->slots, i), vword, dolphin_value_thawed(vword), NULL);
    }
    far_faa(op->t, leaf->addr, 0 - DOLPHIN_FROZEN, NULL);
}
