/* Writing into a leaf: insert, update and put.
 *
 * Batch 1 enters the leaf: {FAA spear, READ header and key words}. What the FAA returns says whether the leaf is ours
 * to write: LIVE, with the tag of the entry, not frozen; from then until we leave, whoever wants to replace the leaf
 * waits. Update: {WRITE value, FAA leave}. Insert: {CAS key word EMPTY -> RESERVED}, {WRITE value, CAS RESERVED ->
 * LIVE, FAA leave}. A slot serves one key once: it is emptied only by copying the leaf. Inserts take the first empty
 * slot, one after another: so two of one key meet. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#define HELD     DOLPHIN_STATE_BIT(DOLPHIN_HELD)
#define RESERVED DOLPHIN_STATE_BIT(DOLPHIN_RESERVED)


int dolphin_enter(dolphin_op *op, uint64_t entry, bool whole, uint64_t draw, dolphin_leaf *leaf) {
    const dolphin_state *st = op->st;
    unsigned bytes = whole || !st->split_arrays ? st->leaf_bytes : DOLPHIN_LEAF_HEADER + 8 * st->slots;
    uint64_t seen;
    *leaf = (dolphin_leaf){.entry = entry, .addr = dolphin_entry_addr(entry), .whole = bytes == st->leaf_bytes};
    if (!far_task_reaches(op->t, leaf->addr, st->leaf_bytes))
        return dolphin_broken(op->index, leaf->addr, "leaf");
    if (!(leaf->image = far_scratch(op->t, st->leaf_bytes)))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    far_faa(op->t, leaf->addr, DOLPHIN_ENTER + draw, &seen);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    far_read(op->t, leaf->addr, leaf->image, bytes);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    uint64_t started = far_now(op->t);
    int err = dolphin_wait(op);
    if (err < 0)
        return err;
    op->trip = far_now(op->t) - started;
    op->entered = op->mark;
    far_point(op->t, "dolphin:entered");
    leaf->image[0] = seen;
    err = DOLPHIN_STALE;
    if (dolphin_is_life(seen, entry)) {
        if (seen & DOLPHIN_FROZEN)
            err = DOLPHIN_IS_FROZEN;
        else if (dolphin_leaf_covers(op, leaf, dolphin_ident(leaf))) {
            if (draw)
                dolphin_keep_ticket(op, draw, seen);
            op->last_ticket = op->ticket;
            return 0;
        }
    }
    dolphin_leave(op, leaf); /* a ticket of a leaf that is not ours to write is a hole, which others fill */
    return err;
}


/* A ticket that is not going to be used: its slot is a hole. Beyond the slots it is given back, so that the tickets do
 * not run out; but for the first one, which tells the others that somebody replaces the leaf. */
void dolphin_put_leave(dolphin_op *op, const dolphin_leaf *leaf) {
    bool back = op->ticket != DOLPHIN_NO_TICKET && op->ticket > op->st->slots;
    if (op->ticket < op->st->slots)
        far_cas(op->t, dolphin_key_at(leaf->addr, (unsigned)op->ticket), 0, DOLPHIN_HOLE, NULL);
    op->ticket = DOLPHIN_NO_TICKET;
    far_faa(op->t, leaf->addr, DOLPHIN_EXIT - (back ? op->drawn : 0), NULL);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    if (op->st->exclusive)
        dolphin_put_unlock_leaf(op, leaf->entry);
}


void dolphin_leave(dolphin_op *op, const dolphin_leaf *leaf) {
    dolphin_put_leave(op, leaf);
    far_post(op->t);
}


int dolphin_find_slot(dolphin_op *op, const dolphin_leaf *leaf, unsigned states, int *slot) {
    unsigned found[DOLPHIN_SLOTS_MAX], count = dolphin_candidates(op, leaf, states, found);
    const uint64_t *kwords = dolphin_kwords(leaf);
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    *slot = count ? (int)found[0] : -1;
    if (count == 0 || !dolphin_kword_is_block(kwords[found[0]]))
        return 0;
    for (unsigned i = 0; i < count; i++) {
        int err = dolphin_put_read_key(op, kwords[found[i]], &blocks[i]);
        if (err < 0) {
            far_forget(op->t);
            return err;
        }
    }
    int err = dolphin_wait(op);
    *slot = -1;
    for (unsigned i = 0; i < count && err >= 0 && *slot < 0; i++) {
        far_bytes key;
        err = dolphin_take_key(op, kwords[found[i]], blocks[i], &key);
        if (err >= 0 && far_bytes_compare(key, op->key) == 0)
            *slot = (int)found[i];
    }
    return err < 0 ? err : 0;
}


int dolphin_write_block(dolphin_op *op, far_addr at, const uint8_t *block, uint64_t bytes, far_addr leaf) {
    if (!block)
        return 0;
    far_write(op->t, at, block, bytes);
    return far_addr_node(at) == far_addr_node(leaf) ? 0 : dolphin_wait(op);
}


/* A value word for the slot, with the WRITE of its block put. */
static int put_value(dolphin_op *op, const dolphin_leaf *leaf, far_bytes value, uint64_t *vword) {
    uint8_t *block;
    int err = dolphin_make_value(op, value, far_addr_node(leaf->addr), vword, &block);
    return err < 0 ? err
                   : dolphin_write_block(op, dolphin_value_block(*vword), block, dolphin_value_block_bytes(*vword),
                                         leaf->addr);
}


/* Updates. */

/* The key was seen alive in the batch that entered the leaf, and an update may count as one just before a delete that
 * came since: RDWC leaves out who joined later. */
static void seal_update(dolphin_op *op, far_bytes *value) {
    far_rdwc_seal_before(op->t, op->entered, value);
    far_rdwc_done(op->t, op->entered);
}


/* inside: counted, and to be counted out. */
static int update_word(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, far_bytes value, bool inside) {
    uint64_t vword;
    seal_update(op, &value);
    memcpy(&vword, value.data, 8);
    far_write(op->t, dolphin_value_at(leaf->addr, op->st->slots, slot), &vword, 8);
    if (inside)
        dolphin_put_leave(op, leaf);
    return dolphin_wait(op);
}


/* A value word that was READ as 0 in a LIVE slot: before the insert, or after a delete. A CAS from that 0 would fail on
 * the insert itself. One that was frozen: before the leaf thawed, as we are inside. 0: *old is set; FAR_ERR_NOT_FOUND.
 */
static int value_of_slot(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, uint64_t *old) {
    uint64_t kword;
    *old = dolphin_vwords(op, leaf)[slot];
    if (*old && !(*old & DOLPHIN_VALUE_FROZEN))
        return 0;
    far_read(op->t, dolphin_key_at(leaf->addr, slot), &kword, 8);
    far_read(op->t, dolphin_value_at(leaf->addr, op->st->slots, slot), old, 8);
    int err = dolphin_wait(op);
    return err < 0 ? err : *old ? 0 : FAR_ERR_NOT_FOUND;
}


/* A CAS that fails: somebody updated or deleted since we READ the word, and our update came just before that. */
static int update_block(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, far_bytes value) {
    uint64_t old, vword, seen;
    seal_update(op, &value);
    int err = value_of_slot(op, leaf, slot, &old);
    if (err == 0 && (!dolphin_value_is_sound(old) || (old & DOLPHIN_VALUE_FROZEN)))
        err = dolphin_broken(op->index, leaf->addr, "leaf");
    if (err == 0)
        err = put_value(op, leaf, value, &vword);
    if (err < 0) {
        dolphin_leave(op, leaf);
        return err;
    }
    far_point(op->t, "dolphin:update");
    far_cas(op->t, dolphin_value_at(leaf->addr, op->st->slots, slot), old, vword, &seen);
    dolphin_put_leave(op, leaf);
    if ((err = dolphin_wait(op)) < 0)
        return err;
    if (seen == old) {
        dolphin_retire_value(op, old);
        dolphin_hint_set_word(op, leaf->entry, slot, vword);
    } else
        dolphin_drop_value(op, vword);
    return 0;
}


/* Inserts. */

/* Another insert of the key has a slot and is not through: a while is left to it, then the slot is taken from it. 0: it
 * has none any more (*kword says what became of it). */
static int wait_for_twin(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, uint64_t *kword) {
    uint64_t seen;
    far_sleep(op->t, 2 * far_rtt(op->t));
    far_count_retry(op->t);
    far_point(op->t, "dolphin:kill");
    uint64_t dead = dolphin_with_state(*kword, DOLPHIN_DEAD);
    int err = dolphin_cas(op, dolphin_key_at(leaf->addr, slot), *kword, dead, &seen);
    *kword = seen == *kword ? dead : seen;
    return err;
}


/* The key word at this slot, of the key or of another one (for which *same is false). */
int dolphin_is_same_key(dolphin_op *op, const dolphin_leaf *leaf, uint64_t kword, bool *same) {
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf));
    uint8_t *block;
    far_bytes key;
    *same = dolphin_kword_may_be(op->st, kword, op->key, depth);
    if (!*same || !dolphin_kword_is_block(kword))
        return 0;
    int err = dolphin_put_read_key(op, kword, &block);
    if (err < 0 || (err = dolphin_wait(op)) < 0 || (err = dolphin_take_key(op, kword, block, &key)) < 0)
        return err;
    *same = far_bytes_compare(key, op->key) == 0;
    return 0;
}


/* A slot below ours is taken by `kword`. FAR_ERR_EXISTS: the key is there. */
static int pass_slot(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, uint64_t kword) {
    bool same = false;
    dolphin_slot_state state = dolphin_state_of_slot(kword);
    if (!dolphin_kword_is_sound(kword))
        return dolphin_broken(op->index, leaf->addr, "leaf");
    int err = state == DOLPHIN_RESERVED || state == DOLPHIN_HELD ? dolphin_is_same_key(op, leaf, kword, &same) : 0;
    if (err < 0 || !same)
        return err;
    if (state == DOLPHIN_RESERVED && (err = wait_for_twin(op, leaf, slot, &kword)) < 0)
        return err;
    return dolphin_state_of_slot(kword) == DOLPHIN_HELD ? FAR_ERR_EXISTS : 0;
}


/* Takes the first empty slot; each that was lost to another insert is passed. 0: *slot is ours; FAR_ERR_EXISTS;
 * DOLPHIN_FULL. */
static int reserve_slot(dolphin_op *op, const dolphin_leaf *leaf, uint64_t kword, unsigned *slot) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    uint64_t seen, mine = dolphin_with_state(kword, DOLPHIN_RESERVED);
    for (unsigned i = 0; i < op->st->slots; i++) {
        seen = kwords[i];
        if (seen == 0) {
            far_cas(op->t, dolphin_key_at(leaf->addr, i), 0, mine, &seen);
            int err = dolphin_wait(op);
            if (err < 0)
                return err;
            if (seen == 0) {
                *slot = i;
                return 0;
            }
            far_count_retry(op->t);
        }
        int err = pass_slot(op, leaf, i, seen);
        if (err != 0)
            return err;
    }
    return DOLPHIN_FULL;
}


static bool has_room(const dolphin_op *op, const dolphin_leaf *leaf) {
    for (unsigned i = 0; i < op->st->slots; i++)
        if (dolphin_kwords(leaf)[i] == 0)
            return true;
    return false;
}


/* 0: done; LOST: the slot was taken from us; FULL; FAR_ERR_EXISTS: it came meanwhile; or another error. */
static int insert_inside(dolphin_op *op, const dolphin_leaf *leaf, far_bytes value) {
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf)), slot = 0, node = far_addr_node(leaf->addr);
    uint64_t kword = 0, vword = 0, seen;
    uint8_t *key_block = NULL, *block;
    if (!has_room(op, leaf))
        return DOLPHIN_FULL;
    int err = dolphin_make_value(op, value, node, &vword, &block);
    if (err < 0)
        return err;
    if (op->key.length - depth <= DOLPHIN_INLINE_MAX)
        kword = dolphin_inline_kword(op->key, depth);
    else if ((err = dolphin_make_key(op, node, &kword, &key_block)) < 0) {
        dolphin_drop_value(op, vword);
        return err;
    }
    if (key_block)
        err = dolphin_write_block(op, dolphin_kword_block(kword), key_block, dolphin_kword_block_bytes(kword),
                                  leaf->addr);
    if (err == 0 && block)
        err = dolphin_write_block(op, dolphin_value_block(vword), block, dolphin_value_block_bytes(vword), leaf->addr);
    if (err == 0 && (err = reserve_slot(op, leaf, kword, &slot)) != 0) {
        far_forget(op->t); /* the blocks, if no CAS was posted behind them */
        dolphin_drop_value(op, vword);
        dolphin_drop_key(op, kword);
        return err;
    }
    if (err < 0)
        return err;
    far_point(op->t, "dolphin:reserved");
    uint64_t mine = dolphin_with_state(kword, DOLPHIN_RESERVED);
    far_write(op->t, dolphin_value_at(leaf->addr, op->st->slots, slot), &vword, 8);
    far_cas(op->t, dolphin_key_at(leaf->addr, slot), mine, dolphin_with_state(kword, DOLPHIN_HELD), &seen);
    dolphin_put_leave(op, leaf);
    if ((err = dolphin_wait(op)) < 0)
        return err;
    return seen == mine ? 0 : DOLPHIN_LOST; /* what the lost slot names goes with its leaf */
}


/* The operation in one leaf. 0 or its result; or STALE, IS_FROZEN, FULL, LOST. */
static int write_leaf(dolphin_op *op, const dolphin_spot *spot, far_op_kind how, far_bytes value) {
    dolphin_leaf leaf;
    uint64_t draw = op->st->tickets && how == FAR_OP_INSERT ? dolphin_draw(op, dolphin_leaf_depth(spot->depth)) : 0;
    int slot, err = dolphin_enter(op, spot->entry, !op->st->words && how != FAR_OP_INSERT, draw, &leaf);
    if (err != 0)
        return err;
    if ((err = dolphin_find_slot(op, &leaf, HELD, &slot)) == 0) {
        far_note_added(op->t, slot < 0);
        if (slot >= 0 && how == FAR_OP_INSERT)
            err = FAR_ERR_EXISTS;
        else if (slot >= 0 && !dolphin_kword_is_block(dolphin_kwords(&leaf)[slot]))
            dolphin_hint_set(op, spot->entry, (unsigned)slot);
        if (err == 0 && slot >= 0) {
            err = op->st->words ? update_word(op, &leaf, (unsigned)slot, value, true)
                                : update_block(op, &leaf, (unsigned)slot, value);
            return err == FAR_ERR_NOT_FOUND && how == FAR_OP_PUT ? DOLPHIN_LOST : err; /* deleted since: insert it */
        }
        if (slot < 0 && how == FAR_OP_UPDATE) {
            far_rdwc_done(op->t, op->entered);
            err = FAR_ERR_NOT_FOUND;
        } else if (slot < 0) {
            err = op->st->tickets && !draw ? dolphin_take_ticket(op, &leaf) : 0;
            far_rdwc_seal(op->t, &value);
            if (err == 0)
                err = op->st->tickets ? dolphin_insert_by_ticket(op, &leaf, value) : insert_inside(op, &leaf, value);
            if (err == 0)
                far_rdwc_done(op->t, op->mark);
            if (err == 0 || err == DOLPHIN_LOST)
                return err;
            if (err == FAR_ERR_EXISTS && how == FAR_OP_PUT)
                err = DOLPHIN_LOST;
        }
    }
    dolphin_leave(op, &leaf);
    return err;
}


/* calm_after: updates of hot keys meet in the leaf, again and again. To count them, all at one word, is what limits them:
 * from now on a client that finds the leaf CALM, and not frozen, writes under its pin alone, and one that freezes it waits for all pins
 * of that time. That is long, so it is done when as many updates as it is worth have met, on the average. seen: the spear
 * word before we were counted in. */
static void put_calm(dolphin_op *op, const dolphin_leaf *leaf, uint64_t seen) {
    uint64_t inside = seen + DOLPHIN_ENTER, mask = DOLPHIN_TAG_MASK | DOLPHIN_LIVE | DOLPHIN_FROZEN;
    if (dolphin_count(seen) == 0 || !op->st->calm_after || far_task_random(op->t) % op->st->calm_after)
        return;
    if (op->st->masked)
        far_masked_cas(op->t, leaf->addr, seen & mask, mask, DOLPHIN_CALM, DOLPHIN_CALM, NULL);
    else
        far_cas(op->t, leaf->addr, inside, inside | DOLPHIN_CALM, NULL); /* if nobody came or went since */
}


/* Of a key whose slot is remembered, 16 bytes decide: {FAA spear, READ key word}; {READ spear, READ key word} if the leaf
 * is CALM. 0: done; 1: it is not there; or STALE etc. are left to the next look. */
static int update_by_hint(dolphin_op *op, const dolphin_spot *spot, unsigned slot, far_bytes value) {
    dolphin_leaf leaf = {.entry = spot->entry, .addr = dolphin_entry_addr(spot->entry)};
    bool calm = dolphin_hint_is_calm(op, spot->entry);
    uint64_t seen, kword;
    if (calm)
        far_read(op->t, leaf.addr, &seen, 8);
    else
        far_faa(op->t, leaf.addr, DOLPHIN_ENTER, &seen);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    far_read(op->t, dolphin_key_at(leaf.addr, slot), &kword, 8);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    int err = dolphin_wait(op);
    if (err < 0)
        return err;
    op->entered = op->mark;
    far_point(op->t, "dolphin:entered");
    if (dolphin_is_life(seen, spot->entry) && !(seen & DOLPHIN_FROZEN) && (!calm || (seen & DOLPHIN_CALM)) &&
        dolphin_is_held_by(op, dolphin_leaf_depth(spot->depth), kword)) {
        if (!calm && (seen & DOLPHIN_CALM))
            dolphin_hint_set_calm(op, spot->entry, slot);
        else if (!calm)
            put_calm(op, &leaf, seen);
        return update_word(op, &leaf, slot, value, !calm);
    }
    if (!calm)
        dolphin_leave(op, &leaf);
    return 1;
}


static bool may_go_by_hint(const dolphin_op *op, far_op_kind how) {
    return op->st->hints && (op->st->words || op->st->hot) && !op->st->exclusive && how != FAR_OP_INSERT;
}


/* 0: done; 1: to be done as usual; or an error. */
static int write_by_hint(dolphin_op *op, const dolphin_spot *spot, far_bytes value) {
    int slot = dolphin_hint_slot(op, spot->entry);
    if (slot < 0)
        return 1;
    if (op->st->words)
        return update_by_hint(op, spot, (unsigned)slot, value);
    uint64_t old = dolphin_hint_word(op, spot->entry, (unsigned)slot);
    return old ? dolphin_update_hot(op, spot, (unsigned)slot, old, value) : 1;
}


static int after_change(int err) {
    return err < 0 ? err : err == 1 ? 0 : DOLPHIN_LOST;
}


/* The leaf of the spot has no room. A slot is emptied only by copying: that stays so for the life of the leaf, and who
 * comes back to it does not look into it again. Whose ticket was the first beyond its slots replaces it; the others
 * look first whether it does. */
static int write_full(dolphin_op *op, const dolphin_spot *spot, far_op_kind how, far_bytes value) {
    bool first = op->full || op->last_ticket == DOLPHIN_NO_TICKET || op->last_ticket <= op->st->slots;
    op->full = spot->entry;
    if (!first)
        return DOLPHIN_IS_FROZEN;
    far_rdwc_seal(op->t, &value);
    return after_change(dolphin_replace(op, spot, how, &value));
}


/* 0: done, or the result; or STALE, IS_FROZEN; or LOST: look again. */
static int write_at(dolphin_op *op, const dolphin_spot *spot, far_op_kind how, far_bytes value) {
    int err;
    if (spot->outcome != DOLPHIN_AT_LEAF && how == FAR_OP_UPDATE)
        return FAR_ERR_NOT_FOUND;
    far_note_added(op->t, spot->outcome != DOLPHIN_AT_LEAF);
    if (spot->outcome != DOLPHIN_AT_LEAF)
        far_rdwc_seal(op->t, &value);
    if (spot->outcome == DOLPHIN_AT_NULL)
        return after_change(dolphin_fill(op, spot, value));
    if (spot->outcome == DOLPHIN_AT_PATH)
        return after_change(dolphin_part_path(op, spot, value));
    if (op->full && how == FAR_OP_INSERT && dolphin_entry_same(op->full, spot->entry))
        return write_full(op, spot, how, value);
    if (!spot->fresh && may_go_by_hint(op, how) && (err = write_by_hint(op, spot, value)) <= 0)
        return err;
    if (op->st->exclusive && (err = dolphin_lock_leaf(op, spot->entry)) != 0)
        return err;
    err = write_leaf(op, spot, how, value);
    return err == DOLPHIN_FULL ? write_full(op, spot, how, value) : err;
}


int dolphin_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    dolphin_op op;
    dolphin_spot spot;
    dolphin_begin(&op, t, index, key);
    far_scratch_mark here = far_scratch_here(t);
    int err = dolphin_locate(&op, false, &spot);
    while (err == 0) {
        op.fresh = true;
        if ((err = write_at(&op, &spot, how, value)) <= 0)
            return err;
        err = dolphin_look_again(&op, err, here, &spot);
    }
    return err;
}
