/* hot_updates=on: values of any size are updated in one round trip, {WRITE value block, CAS key word, CAS value word},
 * if a slot hint contains the slot and a recent value word. The client does not enter the leaf. Instead, a client that
 * replaces the leaf freezes every value word before it copies the leaf, so that a concurrent hot update fails.
 *
 * The first CAS compares the key word with itself and changes nothing. Its result shows whether the key is LIVE before
 * the second CAS takes effect. If the second CAS succeeds:
 * - The value word is still the one from the hint. The hint is so recent that neither the value block of that word nor
 *   the leaf can have been reused since (dolphin_slot_hint_get_value). The value word is not frozen, so the leaf is
 *   authoritative for the key.
 * - If the key was LIVE at the first CAS, the update took effect at the second CAS, or just before a delete between the
 *   two CASes.
 * - If the key was not LIVE, the slot is DEAD for ever. No client uses the new value, and it is retired with the leaf.
 *
 * If the second CAS fails, nothing was changed. The other update that caused this may be older than this operation, so
 * this operation tries once more with the value word that the CAS returned. If the second try fails too, a client has
 * updated or deleted the key during this operation, and our update counts as one just before that change. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"


static bool value_word_is_usable(uint64_t vword) {
    return vword && !(vword & DOLPHIN_VALUE_FROZEN) && dolphin_value_is_sound(vword);
}


/* Posts the two CASes and waits: one round trip. */
static int cas_key_and_value(dolphin_op *op, far_addr leaf, unsigned slot, uint64_t held, uint64_t old, uint64_t vword,
                             uint64_t *alive, uint64_t *seen) {
    far_point(op->t, "dolphin:update_hot");
    far_cas(op->t, dolphin_kword_addr(leaf, slot), held, held, alive);
    far_cas(op->t, dolphin_vword_addr(leaf, op->st->slots, slot), old, vword, seen);
    return dolphin_wait(op);
}


/* Called after the CAS has stored our value word. Retires the value block of the replaced value word and updates the
 * hint. */
static int finish_replaced_value(dolphin_op *op, const dolphin_location *location, unsigned slot, uint64_t old,
                                 uint64_t vword) {
    dolphin_retire_value(op, old);
    dolphin_slot_hint_set_value(op, location->entry, slot, vword);
    return 0;
}


int dolphin_update_hot(dolphin_op *op, const dolphin_location *location, unsigned slot, uint64_t old, far_bytes value) {
    far_addr leaf = dolphin_entry_addr(location->entry);
    unsigned depth = dolphin_leaf_depth(location->depth);
    uint64_t vword, alive, seen;
    uint8_t *block;
    if (op->key.length < depth || op->key.length - depth > DOLPHIN_INLINE_MAX)
        return 1;
    uint64_t held = dolphin_kword_with_state(dolphin_inline_kword(op->key, depth), DOLPHIN_SLOT_LIVE);
    far_rdwc_seal(op->t, &value);
    int err = dolphin_build_value(op, value, far_addr_node(leaf), &vword, &block);
    if (err == 0)
        err = dolphin_write_block(op, dolphin_value_block(vword), block, dolphin_value_block_bytes(vword), leaf);
    if (err < 0 || (err = cas_key_and_value(op, leaf, slot, held, old, vword, &alive, &seen)) < 0)
        return err;
    far_rdwc_done(op->t, op->last_mark);
    if (seen == old) {
        finish_replaced_value(op, location, slot, old, vword);
        return alive == held ? 0 : 1;
    }
    far_count_retry(op->t);
    if (alive != held || !value_word_is_usable(seen)) {
        dolphin_free_value(op, vword);
        return 1;
    }
    old = seen;
    if ((err = cas_key_and_value(op, leaf, slot, held, old, vword, &alive, &seen)) < 0)
        return err;
    if (seen == old)
        /* The key was LIVE at the first try. If another client has deleted it since, this update counts as one just
         * before that delete. */
        return finish_replaced_value(op, location, slot, old, vword);
    dolphin_free_value(op, vword);
    if (value_word_is_usable(seen))
        dolphin_slot_hint_set_value(op, location->entry, slot, seen);
    /* A DEAD slot that still has its key shows that the key was deleted and not moved to another leaf, because recovery
     * marks moved slots as holes. */
    bool deleted = seen == 0 && alive == dolphin_kword_with_state(held, DOLPHIN_SLOT_DEAD);
    return value_word_is_usable(seen) || deleted ? 0 : 1;
}


/* Value words that are 0 need not be frozen, because only an insert can change them, and no writer is inside the leaf.
 */
int dolphin_freeze_values(dolphin_op *op, const dolphin_leaf *leaf) {
    uint64_t *vwords = leaf->image + DOLPHIN_LEAF_HEADER / 8 + op->st->slots, seen[DOLPHIN_SLOTS_MAX];
    if (!op->st->hot_updates)
        return 0;
    for (unsigned i = 0; i < op->st->slots; i++)
        if (vwords[i] && !(vwords[i] & DOLPHIN_VALUE_FROZEN))
            far_faa(op->t, dolphin_vword_addr(leaf->addr, op->st->slots, i), DOLPHIN_VALUE_FROZEN, &seen[i]);
    int err = dolphin_wait(op);
    for (unsigned i = 0; i < op->st->slots && err == 0; i++)
        if (vwords[i] && !(vwords[i] & DOLPHIN_VALUE_FROZEN))
            vwords[i] = seen[i] | DOLPHIN_VALUE_FROZEN;
    far_point(op->t, "dolphin:values_frozen");
    return err;
}


/* Clears the FROZEN bits of the value words first and of the leaf last. If this client fails in between, the leaf is
 * still frozen, so another client finds the leaf and thaws the rest. */
void dolphin_batch_thaw(dolphin_op *op, const dolphin_leaf *leaf) {
    for (unsigned i = 0; i < op->st->slots && op->st->hot_updates; i++) {
        uint64_t vword = dolphin_vwords(op, leaf)[i];
        if (vword & DOLPHIN_VALUE_FROZEN)
            far_cas(op->t, dolphin_vword_addr(leaf->addr, op->st->slots, i), vword, dolphin_value_unfrozen(vword),
                    NULL);
    }
    far_faa(op->t, leaf->addr, 0 - DOLPHIN_FROZEN, NULL);
}
