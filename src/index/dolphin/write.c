/* Writing into a leaf: put, insert and update.
 *
 * Batch 1 enters the leaf: {FAA spear, READ header and key words}. The FAA increments the number of writers, and the
 * value that it returns decides whether this client may write: the leaf must be LIVE with the tag of the entry, and not
 * frozen. Until the client leaves, another client that wants to replace the leaf waits for it.
 *
 * - Update: {WRITE value, FAA leave}.
 * - Insert (insert=cas; write_ticket.c has the default): {CAS key word EMPTY -> RESERVED}, then {WRITE value, CAS
 *   RESERVED -> LIVE, FAA leave}.
 *
 * A slot is used for one key only once. The slots of deleted keys are reclaimed by copying the leaf. Inserts try the
 * first empty slot, then the next one, in this order, so two concurrent inserts of the same key meet in one slot. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#define LIVE_SLOTS DOLPHIN_STATE_BIT(DOLPHIN_SLOT_LIVE)
#define RESERVED   DOLPHIN_STATE_BIT(DOLPHIN_SLOT_RESERVED)


int dolphin_enter_leaf(dolphin_op *op, uint64_t entry, bool whole, uint64_t draw, dolphin_leaf *leaf) {
    const dolphin_state *st = op->st;
    unsigned bytes = whole || !st->split_arrays ? st->leaf_bytes : DOLPHIN_LEAF_HEADER + 8 * st->slots;
    uint64_t seen;
    *leaf = (dolphin_leaf){.entry = entry, .addr = dolphin_entry_addr(entry), .whole = bytes == st->leaf_bytes};
    if (!far_task_reaches(op->t, leaf->addr, st->leaf_bytes))
        return dolphin_fail_corrupt(op->index, leaf->addr, "leaf");
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
    op->round_trip_ns = far_now(op->t) - started;
    op->enter_mark = op->last_mark;
    far_point(op->t, "dolphin:entered");
    leaf->image[0] = seen;
    err = DOLPHIN_LEAF_STALE;
    if (dolphin_control_matches(seen, entry)) {
        if (seen & DOLPHIN_FROZEN)
            err = DOLPHIN_LEAF_FROZEN;
        else if (dolphin_leaf_covers(op, leaf, dolphin_ident(leaf))) {
            if (draw)
                dolphin_record_ticket(op, draw, seen);
            op->last_ticket = op->ticket;
            return 0;
        }
    }
    /* A ticket may have been drawn in a leaf that this client must not write to. Its slot becomes a hole, which the
     * next inserts mark as DEAD. */
    dolphin_leave_leaf(op, leaf);
    return err;
}


/* Appends the verb that leaves the leaf. Also gives up an unused ticket. The slot of the ticket becomes a hole (a slot
 * that no insert will use), so that later inserts do not wait for it. A ticket beyond the last slot is returned, so
 * that the ticket field does not overflow. The first ticket beyond the last slot is not returned, because as long as
 * the ticket field shows it, other inserts leave the replacement of the leaf to the client that drew this ticket. */
void dolphin_batch_leave(dolphin_op *op, const dolphin_leaf *leaf) {
    bool back = op->ticket != DOLPHIN_NO_TICKET && op->ticket > op->st->slots;
    if (op->ticket < op->st->slots)
        far_cas(op->t, dolphin_kword_addr(leaf->addr, (unsigned)op->ticket), 0, DOLPHIN_SLOT_HOLE, NULL);
    op->ticket = DOLPHIN_NO_TICKET;
    far_faa(op->t, leaf->addr, DOLPHIN_EXIT - (back ? op->ticket_addend : 0), NULL);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    if (op->st->exclusive_writes)
        dolphin_batch_unlock_leaf(op, leaf->entry);
}


void dolphin_leave_leaf(dolphin_op *op, const dolphin_leaf *leaf) {
    dolphin_batch_leave(op, leaf);
    far_post(op->t);
}


int dolphin_find_slot(dolphin_op *op, const dolphin_leaf *leaf, unsigned states, int *slot) {
    unsigned found[DOLPHIN_SLOTS_MAX], count = dolphin_find_candidates(op, leaf, states, found);
    const uint64_t *kwords = dolphin_kwords(leaf);
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    *slot = count ? (int)found[0] : -1;
    if (count == 0 || !dolphin_kword_is_block(kwords[found[0]]))
        return 0;
    for (unsigned i = 0; i < count; i++) {
        int err = dolphin_batch_read_key(op, kwords[found[i]], &blocks[i]);
        if (err < 0) {
            far_discard_batch(op->t);
            return err;
        }
    }
    int err = dolphin_wait(op);
    *slot = -1;
    for (unsigned i = 0; i < count && err >= 0 && *slot < 0; i++) {
        far_bytes key;
        err = dolphin_decode_key(op, kwords[found[i]], blocks[i], &key);
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


/* Builds the value word for a slot and appends the WRITE of its value block, if there is one. */
static int build_and_batch_value(dolphin_op *op, const dolphin_leaf *leaf, far_bytes value, uint64_t *vword) {
    uint8_t *block;
    int err = dolphin_build_value(op, value, far_addr_node(leaf->addr), vword, &block);
    return err < 0 ? err
                   : dolphin_write_block(op, dolphin_value_block(*vword), block, dolphin_value_block_bytes(*vword),
                                         leaf->addr);
}


/* Updates. */

/* Closes the RDWC round of this update and takes the value of the round. The batch that entered the leaf saw the key
 * LIVE, and the update may take effect just before a delete that followed that batch. A client that joined the round
 * after this batch may also have joined after that delete, so its value is left out. */
static void seal_update_round(dolphin_op *op, far_bytes *value) {
    far_rdwc_seal_before(op->t, op->enter_mark, value);
    far_rdwc_done(op->t, op->enter_mark);
}


/* Overwrites the value word with one WRITE. `inside` is true if this client was counted as a writer of the leaf and
 * must leave the leaf. */
static int update_raw_value(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, far_bytes value, bool inside) {
    uint64_t vword;
    seal_update_round(op, &value);
    memcpy(&vword, value.data, 8);
    far_write(op->t, dolphin_vword_addr(leaf->addr, op->st->slots, slot), &vword, 8);
    if (inside)
        dolphin_batch_leave(op, leaf);
    return dolphin_wait(op);
}


/* Returns the current value word of a LIVE slot in *old, or FAR_ERR_NOT_FOUND if the key was deleted. The word in the
 * leaf image may be too old in two cases. It is 0 if it was READ before the insert wrote the value, or after a delete;
 * a CAS from that 0 would fail although the key is present. It has the FROZEN bit if it was READ before the leaf was
 * thawed. The word in far memory cannot be frozen now, because this client is inside the leaf. So in both cases the
 * word is READ again, after the key word. */
static int read_current_value_word(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, uint64_t *old) {
    uint64_t kword;
    *old = dolphin_vwords(op, leaf)[slot];
    if (*old && !(*old & DOLPHIN_VALUE_FROZEN))
        return 0;
    far_read(op->t, dolphin_kword_addr(leaf->addr, slot), &kword, 8);
    far_read(op->t, dolphin_vword_addr(leaf->addr, op->st->slots, slot), old, 8);
    int err = dolphin_wait(op);
    return err < 0 ? err : *old ? 0 : FAR_ERR_NOT_FOUND;
}


/* A failed CAS counts as success. Another client has updated or deleted the key since this operation READ the word, so
 * this update took effect just before that change and was overwritten at once. */
static int update_value_word(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, far_bytes value) {
    uint64_t old, vword, seen;
    seal_update_round(op, &value);
    int err = read_current_value_word(op, leaf, slot, &old);
    if (err == 0 && (!dolphin_value_is_sound(old) || (old & DOLPHIN_VALUE_FROZEN)))
        err = dolphin_fail_corrupt(op->index, leaf->addr, "leaf");
    if (err == 0)
        err = build_and_batch_value(op, leaf, value, &vword);
    if (err < 0) {
        dolphin_leave_leaf(op, leaf);
        return err;
    }
    far_point(op->t, "dolphin:update");
    far_cas(op->t, dolphin_vword_addr(leaf->addr, op->st->slots, slot), old, vword, &seen);
    dolphin_batch_leave(op, leaf);
    if ((err = dolphin_wait(op)) < 0)
        return err;
    if (seen == old) {
        dolphin_retire_value(op, old);
        dolphin_slot_hint_set_value(op, leaf->entry, slot, vword);
    } else
        dolphin_free_value(op, vword);
    return 0;
}


/* Inserts. */

/* Called when another insert has RESERVED a slot for the same key. Waits for two round trips, then takes the slot away
 * from that insert (RESERVED -> DEAD). Afterwards the slot is not RESERVED any more; *kword is its new key word, which
 * is LIVE if the other insert was faster. */
static int kill_reservation(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, uint64_t *kword) {
    uint64_t seen;
    far_sleep(op->t, 2 * far_rtt(op->t));
    far_count_retry(op->t);
    far_point(op->t, "dolphin:set_slot_dead");
    uint64_t dead = dolphin_kword_with_state(*kword, DOLPHIN_SLOT_DEAD);
    int err = dolphin_cas_and_wait(op, dolphin_kword_addr(leaf->addr, slot), *kword, dead, &seen);
    *kword = seen == *kword ? dead : seen;
    return err;
}


/* Sets *same to whether this key word holds op->key. */
int dolphin_compare_key(dolphin_op *op, const dolphin_leaf *leaf, uint64_t kword, bool *same) {
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf));
    uint8_t *block;
    far_bytes key;
    *same = dolphin_kword_may_be(op->st, kword, op->key, depth);
    if (!*same || !dolphin_kword_is_block(kword))
        return 0;
    int err = dolphin_batch_read_key(op, kword, &block);
    if (err < 0 || (err = dolphin_wait(op)) < 0 || (err = dolphin_decode_key(op, kword, block, &key)) < 0)
        return err;
    *same = far_bytes_compare(key, op->key) == 0;
    return 0;
}


/* Examines an occupied slot below the slot of this insert; `kword` is its key word. Returns 0 if the slot cannot come
 * to hold op->key, or FAR_ERR_EXISTS if it holds that key. If another insert has RESERVED the slot for op->key, the
 * function first takes the slot away from that insert. */
static int pass_occupied_slot(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, uint64_t kword) {
    bool same = false;
    dolphin_slot_state state = dolphin_slot_state_of(kword);
    if (!dolphin_kword_is_sound(kword))
        return dolphin_fail_corrupt(op->index, leaf->addr, "leaf");
    int err =
        state == DOLPHIN_SLOT_RESERVED || state == DOLPHIN_SLOT_LIVE ? dolphin_compare_key(op, leaf, kword, &same) : 0;
    if (err < 0 || !same)
        return err;
    if (state == DOLPHIN_SLOT_RESERVED && (err = kill_reservation(op, leaf, slot, &kword)) < 0)
        return err;
    return dolphin_slot_state_of(kword) == DOLPHIN_SLOT_LIVE ? FAR_ERR_EXISTS : 0;
}


/* Reserves the first empty slot. If another insert takes that slot first, its key is compared and the next slot is
 * tried. Returns 0 with *slot set, FAR_ERR_EXISTS, FULL, or an error. */
static int reserve_first_empty_slot(dolphin_op *op, const dolphin_leaf *leaf, uint64_t kword, unsigned *slot) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    uint64_t seen, mine = dolphin_kword_with_state(kword, DOLPHIN_SLOT_RESERVED);
    for (unsigned i = 0; i < op->st->slots; i++) {
        seen = kwords[i];
        if (seen == 0) {
            far_cas(op->t, dolphin_kword_addr(leaf->addr, i), 0, mine, &seen);
            int err = dolphin_wait(op);
            if (err < 0)
                return err;
            if (seen == 0) {
                *slot = i;
                return 0;
            }
            far_count_retry(op->t);
        }
        int err = pass_occupied_slot(op, leaf, i, seen);
        if (err != 0)
            return err;
    }
    return DOLPHIN_LEAF_FULL;
}


static bool leaf_has_empty_slot(const dolphin_op *op, const dolphin_leaf *leaf) {
    for (unsigned i = 0; i < op->st->slots; i++)
        if (dolphin_kwords(leaf)[i] == 0)
            return true;
    return false;
}


/* Inserts op->key without a ticket. Returns 0 if the key was inserted, or RETRY if another insert of this key took the
 * slot away; in these two cases the client has left the leaf. Returns FULL, FAR_ERR_EXISTS or another error while the
 * client is still inside. */
static int insert_by_cas(dolphin_op *op, const dolphin_leaf *leaf, far_bytes value) {
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf)), slot = 0, node = far_addr_node(leaf->addr);
    uint64_t kword = 0, vword = 0, seen;
    uint8_t *key_block = NULL, *block;
    if (!leaf_has_empty_slot(op, leaf))
        return DOLPHIN_LEAF_FULL;
    int err = dolphin_build_value(op, value, node, &vword, &block);
    if (err < 0)
        return err;
    if (op->key.length - depth <= DOLPHIN_INLINE_MAX)
        kword = dolphin_inline_kword(op->key, depth);
    else if ((err = dolphin_build_key(op, node, &kword, &key_block)) < 0) {
        dolphin_free_value(op, vword);
        return err;
    }
    if (key_block)
        err = dolphin_write_block(op, dolphin_kword_block(kword), key_block, dolphin_kword_block_bytes(kword),
                                  leaf->addr);
    if (err == 0 && block)
        err = dolphin_write_block(op, dolphin_value_block(vword), block, dolphin_value_block_bytes(vword), leaf->addr);
    if (err == 0 && (err = reserve_first_empty_slot(op, leaf, kword, &slot)) != 0) {
        /* drop the WRITEs of the key block and the value block, unless a CAS was already posted after them */
        far_discard_batch(op->t);
        dolphin_free_value(op, vword);
        dolphin_free_key(op, kword);
        return err;
    }
    if (err < 0)
        return err;
    far_point(op->t, "dolphin:reserved");
    uint64_t mine = dolphin_kword_with_state(kword, DOLPHIN_SLOT_RESERVED);
    far_write(op->t, dolphin_vword_addr(leaf->addr, op->st->slots, slot), &vword, 8);
    far_cas(op->t, dolphin_kword_addr(leaf->addr, slot), mine, dolphin_kword_with_state(kword, DOLPHIN_SLOT_LIVE),
            &seen);
    dolphin_batch_leave(op, leaf);
    if ((err = dolphin_wait(op)) < 0)
        return err;
    /* the key block and value block of a lost slot are retired together with the leaf */
    return seen == mine ? 0 : DOLPHIN_RETRY;
}


/* Does the operation in one leaf. Returns 0, its final error, or STALE, FROZEN, FULL or RETRY. */
static int write_in_leaf(dolphin_op *op, const dolphin_location *location, far_op_kind how, far_bytes value) {
    dolphin_leaf leaf;
    uint64_t draw = op->st->insert_by_ticket && how == FAR_OP_INSERT
                        ? dolphin_ticket_addend(op, dolphin_leaf_depth(location->depth))
                        : 0;
    int slot, err = dolphin_enter_leaf(op, location->entry, !op->st->raw_values && how != FAR_OP_INSERT, draw, &leaf);
    if (err != 0)
        return err;
    if ((err = dolphin_find_slot(op, &leaf, LIVE_SLOTS, &slot)) == 0) {
        far_note_added(op->t, slot < 0);
        if (slot >= 0 && how == FAR_OP_INSERT)
            err = FAR_ERR_EXISTS;
        else if (slot >= 0 && !dolphin_kword_is_block(dolphin_kwords(&leaf)[slot]))
            dolphin_slot_hint_set(op, location->entry, (unsigned)slot);
        if (err == 0 && slot >= 0) {
            err = op->st->raw_values ? update_raw_value(op, &leaf, (unsigned)slot, value, true)
                                     : update_value_word(op, &leaf, (unsigned)slot, value);
            /* If the key was deleted meanwhile, a put starts again and inserts it. */
            return err == FAR_ERR_NOT_FOUND && how == FAR_OP_PUT ? DOLPHIN_RETRY : err;
        }
        if (slot < 0 && how == FAR_OP_UPDATE) {
            far_rdwc_done(op->t, op->enter_mark);
            err = FAR_ERR_NOT_FOUND;
        } else if (slot < 0) {
            err = op->st->insert_by_ticket && !draw ? dolphin_draw_ticket(op, &leaf) : 0;
            far_rdwc_seal(op->t, &value);
            if (err == 0)
                err = op->st->insert_by_ticket ? dolphin_insert_by_ticket(op, &leaf, value)
                                               : insert_by_cas(op, &leaf, value);
            if (err == 0)
                far_rdwc_done(op->t, op->last_mark);
            if (err == 0 || err == DOLPHIN_RETRY)
                return err;
            if (err == FAR_ERR_EXISTS && how == FAR_OP_PUT)
                err = DOLPHIN_RETRY;
        }
    }
    dolphin_leave_leaf(op, &leaf);
    return err;
}


/* calm_after=N: appends a verb that switches the leaf to uncounted mode. When updates of a hot leaf meet often, the
 * FAAs on its spear word limit the throughput. In uncounted mode, hot updates do not change the number of writers: a
 * client that READs a spear word that is UNCOUNTED and not frozen may write while it holds its pin. A client that
 * replaces the leaf must then wait until all pins are newer. This wait is long, so the switch is made with probability
 * 1/N whenever an update finds another writer inside. `seen` is the spear word before this client entered. */
static void batch_switch_to_uncounted(dolphin_op *op, const dolphin_leaf *leaf, uint64_t seen) {
    uint64_t inside = seen + DOLPHIN_ENTER, mask = DOLPHIN_TAG_MASK | DOLPHIN_LIVE | DOLPHIN_FROZEN;
    if (dolphin_writer_count(seen) == 0 || !op->st->calm_after || far_task_random(op->t) % op->st->calm_after)
        return;
    if (op->st->has_masked_cas)
        far_masked_cas(op->t, leaf->addr, seen & mask, mask, DOLPHIN_UNCOUNTED, DOLPHIN_UNCOUNTED, NULL);
    else
        /* This CAS fails if another client has entered or left the leaf since. */
        far_cas(op->t, leaf->addr, inside, inside | DOLPHIN_UNCOUNTED, NULL);
}


/* Updates a key with a slot that is known from a hint. Instead of all key words it READs one: {FAA spear, READ key
 * word}, or {READ spear, READ key word} if the leaf is in uncounted mode. Returns 0 if the update is done, or 1 if the
 * hint does not apply or the leaf cannot be written now, so that the caller must use the usual protocol. */
static int update_by_hint(dolphin_op *op, const dolphin_location *location, unsigned slot, far_bytes value) {
    dolphin_leaf leaf = {.entry = location->entry, .addr = dolphin_entry_addr(location->entry)};
    bool uncounted = dolphin_slot_hint_is_uncounted(op, location->entry);
    uint64_t seen, kword;
    if (uncounted)
        far_read(op->t, leaf.addr, &seen, 8);
    else
        far_faa(op->t, leaf.addr, DOLPHIN_ENTER, &seen);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    far_read(op->t, dolphin_kword_addr(leaf.addr, slot), &kword, 8);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    int err = dolphin_wait(op);
    if (err < 0)
        return err;
    op->enter_mark = op->last_mark;
    far_point(op->t, "dolphin:entered");
    if (dolphin_control_matches(seen, location->entry) && !(seen & DOLPHIN_FROZEN) &&
        (!uncounted || (seen & DOLPHIN_UNCOUNTED)) &&
        dolphin_kword_is_live_key(op, dolphin_leaf_depth(location->depth), kword)) {
        if (!uncounted && (seen & DOLPHIN_UNCOUNTED))
            dolphin_slot_hint_set_uncounted(op, location->entry, slot);
        else if (!uncounted)
            batch_switch_to_uncounted(op, &leaf, seen);
        return update_raw_value(op, &leaf, slot, value, !uncounted);
    }
    if (!uncounted)
        dolphin_leave_leaf(op, &leaf);
    return 1;
}


static bool may_use_hint(const dolphin_op *op, far_op_kind how) {
    return op->st->slot_hints && (op->st->raw_values || op->st->hot_updates) && !op->st->exclusive_writes &&
           how != FAR_OP_INSERT;
}


/* Updates op->key through its slot hint. Returns 0 if the update is done, 1 if there is no usable hint, so that the
 * caller must use the usual protocol, or an error. */
static int write_by_hint(dolphin_op *op, const dolphin_location *location, far_bytes value) {
    int slot = dolphin_slot_hint_get(op, location->entry);
    if (slot < 0)
        return 1;
    if (op->st->raw_values)
        return update_by_hint(op, location, (unsigned)slot, value);
    uint64_t old = dolphin_slot_hint_get_value(op, location->entry, (unsigned)slot);
    return old ? dolphin_update_hot(op, location, (unsigned)slot, old, value) : 1;
}


static int result_of_change(int err) {
    return err < 0 ? err : err == 1 ? 0 : DOLPHIN_RETRY;
}


/* Called when the leaf has no empty slot. The leaf stays full until it is replaced, so the operation records it and
 * does not enter the leaf again. The client that drew the first ticket beyond the last slot replaces the leaf. For the
 * other clients the function returns FROZEN, so that they first wait for this replacement. */
static int write_to_full_leaf(dolphin_op *op, const dolphin_location *location, far_op_kind how, far_bytes value) {
    bool first = op->full_leaf || op->last_ticket == DOLPHIN_NO_TICKET || op->last_ticket <= op->st->slots;
    op->full_leaf = location->entry;
    if (!first)
        return DOLPHIN_LEAF_FROZEN;
    far_rdwc_seal(op->t, &value);
    return result_of_change(dolphin_replace_leaf(op, location, how, &value));
}


/* Makes one attempt of the operation at the place where its search ended. Returns 0 or the final result of the
 * operation; or STALE, FROZEN or RETRY, and then the caller must locate the key again. */
static int write_at_location(dolphin_op *op, const dolphin_location *location, far_op_kind how, far_bytes value) {
    int err;
    if (location->outcome != DOLPHIN_AT_LEAF && how == FAR_OP_UPDATE)
        return FAR_ERR_NOT_FOUND;
    far_note_added(op->t, location->outcome != DOLPHIN_AT_LEAF);
    if (location->outcome != DOLPHIN_AT_LEAF)
        far_rdwc_seal(op->t, &value);
    if (location->outcome == DOLPHIN_AT_NULL)
        return result_of_change(dolphin_fill_null(op, location, value));
    if (location->outcome == DOLPHIN_AT_DIVERGENCE)
        return result_of_change(dolphin_split_path(op, location, value));
    if (op->full_leaf && how == FAR_OP_INSERT && dolphin_entries_match(op->full_leaf, location->entry))
        return write_to_full_leaf(op, location, how, value);
    if (!location->node_is_fresh && may_use_hint(op, how) && (err = write_by_hint(op, location, value)) <= 0)
        return err;
    if (op->st->exclusive_writes && (err = dolphin_lock_leaf(op, location->entry)) != 0)
        return err;
    err = write_in_leaf(op, location, how, value);
    return err == DOLPHIN_LEAF_FULL ? write_to_full_leaf(op, location, how, value) : err;
}


int dolphin_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    dolphin_op op;
    dolphin_location location;
    dolphin_begin_op(&op, t, index, key);
    far_scratch_mark here = far_scratch_here(t);
    int err = dolphin_locate(&op, false, &location);
    while (err == 0) {
        op.skip_cache = true;
        if ((err = write_at_location(&op, &location, how, value)) <= 0)
            return err;
        err = dolphin_locate_again(&op, err, here, &location);
    }
    return err;
}
