/* insert=ticket: an insert in two round trips, {FAA spear, READ key words} and {WRITE value, CAS key word EMPTY ->
 * LIVE, FAA spear}. The first FAA changes three fields of the spear word: it adds 1 to the number of writers, it draws
 * a ticket, and it adds a hash of the key to the field `sum`. The ticket is the number of a slot that no other insert
 * writes to, so the value may be written before the key word. The second FAA subtracts 1 from the number of writers
 * (the client leaves the leaf).
 *
 * Two inserts of one key must not both succeed. The rule is: an insert makes the key LIVE in its slot t only when no
 * slot below t can come to hold the same key. So of two inserts of one key, the one with the higher slot checks the
 * lower slot. A lower slot may still be EMPTY for one of three reasons: the client that drew its ticket has not written
 * yet; this client has failed; or it found that it had followed an outdated pointer to this leaf, and will give its
 * ticket up. The insert finds out from `sum` which key such a slot is for. The spear word that its first FAA returned
 * contains the sum of the hashes for all lower slots. The sum minus the hashes of the keys that are visible in the
 * other lower slots is the hash of the missing key.
 *
 * One more round trip is needed if the missing key may be the same, if several lower slots are EMPTY, or if one is
 * RESERVED for the same key. The insert then posts {CAS EMPTY -> RESERVED, READ lower slots}. Its RESERVED key word
 * shows inserts in higher slots which key it is for. It waits for the lower slots for a few round trips, and then takes
 * them from their clients (EMPTY or RESERVED -> DEAD). A client that gives up its ticket marks its slot as DEAD
 * itself. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#define READS_BEFORE_KILL 4 /* number of times that the lower slots are READ before they are taken from their clients */


uint64_t dolphin_ticket_addend(const dolphin_op *op, unsigned depth) {
    return DOLPHIN_TICKET + dolphin_key_sum(dolphin_expected_kword(op->st, op->key, depth));
}


void dolphin_record_ticket(dolphin_op *op, uint64_t draw, uint64_t seen) {
    op->ticket = dolphin_ticket(seen);
    op->ticket_addend = draw;
    op->spear_at_draw = seen;
}


/* Draws a ticket for a put that entered the leaf without one. Puts enter without a ticket because most puts find their
 * key. */
int dolphin_draw_ticket(dolphin_op *op, dolphin_leaf *leaf) {
    uint64_t seen, draw = dolphin_ticket_addend(op, dolphin_ident_depth(dolphin_ident(leaf)));
    far_faa(op->t, leaf->addr, draw, &seen);
    far_read(op->t, leaf->addr + DOLPHIN_LEAF_HEADER, leaf->image + DOLPHIN_LEAF_HEADER / 8, 8ull * op->st->slots);
    int err = dolphin_wait(op);
    if (err == 0)
        dolphin_record_ticket(op, draw, seen);
    return err;
}


/* Finds the slots below ours that may still come to hold the key. Stores them in `pending`, and their number. Returns
 * FAR_ERR_EXISTS if a lower slot already holds the key. */
static int find_pending_below(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, unsigned pending[],
                              unsigned *count) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    *count = 0;
    for (unsigned i = 0; i < slot; i++) {
        dolphin_slot_state state = dolphin_slot_state_of(kwords[i]);
        bool same = state == DOLPHIN_SLOT_EMPTY;
        if (!dolphin_kword_is_sound(kwords[i]))
            return dolphin_fail_corrupt(op->index, leaf->addr, "leaf");
        int err = state == DOLPHIN_SLOT_RESERVED || state == DOLPHIN_SLOT_LIVE
                      ? dolphin_compare_key(op, leaf, kwords[i], &same)
                      : 0;
        if (err < 0)
            return err;
        if (same && state == DOLPHIN_SLOT_LIVE)
            return FAR_ERR_EXISTS;
        if (same)
            pending[(*count)++] = i;
    }
    return 0;
}


/* Returns true if the pending slot may be for op->key. The pending slot must be the only lower slot whose key is not
 * visible. Then the hash of its key is the sum in the spear word minus the hashes of the keys in the other lower slots.
 * The result is also true if a hole is among the lower slots, because the hash of the hole's key is unknown. */
static bool pending_slot_may_be_same_key(const dolphin_op *op, const dolphin_leaf *leaf, unsigned slot,
                                         unsigned pending) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    uint64_t sum = op->spear_at_draw / DOLPHIN_SUM * DOLPHIN_SUM;
    for (unsigned i = 0; i < slot; i++) {
        if (kwords[i] == DOLPHIN_SLOT_HOLE)
            return true;
        if (i != pending)
            sum -= dolphin_key_sum(kwords[i]);
    }
    return sum == op->ticket_addend - DOLPHIN_TICKET;
}


/* READs the key words of the slots from the first pending one up to our slot. */
static void batch_read_below(dolphin_op *op, const dolphin_leaf *leaf, unsigned first, unsigned slot) {
    far_read(op->t, dolphin_kword_addr(leaf->addr, first), leaf->image + DOLPHIN_LEAF_HEADER / 8 + first,
             8ull * (slot - first));
}


static void batch_kills(dolphin_op *op, const dolphin_leaf *leaf, const unsigned pending[], unsigned count) {
    far_point(op->t, "dolphin:set_slot_dead");
    for (unsigned i = 0; i < count; i++) {
        uint64_t kword = dolphin_kwords(leaf)[pending[i]];
        far_cas(op->t, dolphin_kword_addr(leaf->addr, pending[i]), kword,
                dolphin_kword_with_state(kword, DOLPHIN_SLOT_DEAD), NULL);
    }
}


/* Waits until no lower slot can come to hold the key, according to the key words READ last. Returns 0, FAR_ERR_EXISTS
 * or an error. */
static int wait_for_lower_slots(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot) {
    unsigned pending[DOLPHIN_SLOTS_MAX], count;
    for (unsigned look = 0;; look++) {
        int err = find_pending_below(op, leaf, slot, pending, &count);
        if (err < 0 || count == 0)
            return err;
        far_count_retry(op->t);
        if (look < READS_BEFORE_KILL)
            far_sleep(op->t, far_rtt(op->t));
        else
            batch_kills(op, leaf, pending, count);
        /* If the READ is executed before the CAS that takes a slot away, the next turn of the loop sees the result of
         * that CAS. */
        batch_read_below(op, leaf, pending[0], slot);
        if ((err = dolphin_wait(op)) < 0)
            return err;
    }
}


typedef struct new_item { /* the words, key block and value block of the new key */
    uint64_t kword, vword;
    uint8_t *key_block, *block;
} new_item;


static int build_item(dolphin_op *op, const dolphin_leaf *leaf, far_bytes value, new_item *it) {
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf)), node = far_addr_node(leaf->addr);
    *it = (new_item){0};
    int err = dolphin_build_value(op, value, node, &it->vword, &it->block);
    if (err == 0 && op->key.length - depth <= DOLPHIN_INLINE_MAX)
        it->kword = dolphin_inline_kword(op->key, depth);
    else if (err == 0 && (err = dolphin_build_key(op, node, &it->kword, &it->key_block)) < 0)
        dolphin_free_value(op, it->vword);
    if (err < 0)
        return err;
    if (it->block)
        far_write(op->t, dolphin_value_block(it->vword), it->block, dolphin_value_block_bytes(it->vword));
    if (it->key_block)
        far_write(op->t, dolphin_kword_block(it->kword), it->key_block, dolphin_kword_block_bytes(it->kword));
    bool near = (!it->block || far_addr_node(dolphin_value_block(it->vword)) == node) &&
                (!it->key_block || far_addr_node(dolphin_kword_block(it->kword)) == node);
    return near ? 0 : dolphin_wait(op);
}


/* Posts {WRITE value, CAS key word, leave}. `was` is the expected key word of the slot: 0 or our own RESERVED key word.
 * Returns RETRY if another client has marked the slot as DEAD. */
static int publish_slot(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, const new_item *it, uint64_t was) {
    uint64_t seen;
    far_write(op->t, dolphin_vword_addr(leaf->addr, op->st->slots, slot), &it->vword, 8);
    far_cas(op->t, dolphin_kword_addr(leaf->addr, slot), was, dolphin_kword_with_state(it->kword, DOLPHIN_SLOT_LIVE),
            &seen);
    op->ticket = DOLPHIN_NO_TICKET;
    dolphin_batch_leave(op, leaf);
    int err = dolphin_wait(op);
    if (err < 0 || seen == was)
        return err;
    if (was == 0)
        /* No key word names the key block, so it is freed. The value word stays in the slot and is retired with the
         * leaf. */
        dolphin_free_key(op, it->kword);
    return DOLPHIN_RETRY;
}


int dolphin_insert_by_ticket(dolphin_op *op, const dolphin_leaf *leaf, far_bytes value) {
    unsigned pending[DOLPHIN_SLOTS_MAX], count, slot = (unsigned)op->ticket;
    uint64_t seen;
    new_item it;
    if (op->ticket >= op->st->slots)
        return DOLPHIN_LEAF_FULL;
    int err = find_pending_below(op, leaf, slot, pending, &count);
    /* The slot of a ticket should be EMPTY. If it is not, another insert has marked it as DEAD, or the READ returned
     * key words of an earlier incarnation. */
    if (err == 0 && dolphin_kwords(leaf)[slot] != 0) {
        dolphin_leave_leaf(op, leaf);
        return DOLPHIN_RETRY;
    }
    if (err < 0 || (err = build_item(op, leaf, value, &it)) < 0)
        return err;
    if (count == 1 && !pending_slot_may_be_same_key(op, leaf, slot, pending[0]))
        count = 0;
    far_point(op->t, "dolphin:ticket_drawn");
    if (count == 0)
        return publish_slot(op, leaf, slot, &it, 0);
    uint64_t mine = dolphin_kword_with_state(it.kword, DOLPHIN_SLOT_RESERVED);
    far_cas(op->t, dolphin_kword_addr(leaf->addr, slot), 0, mine, &seen);
    /* The READ may be executed before or after the CAS. The order does not matter, because a slot that is not EMPTY
     * never becomes EMPTY again. */
    batch_read_below(op, leaf, pending[0], slot);
    if ((err = dolphin_wait(op)) < 0)
        return err;
    if (seen != 0) {
        dolphin_free_value(op, it.vword);
        dolphin_free_key(op, it.kword);
        dolphin_leave_leaf(op, leaf);
        return DOLPHIN_RETRY;
    }
    op->ticket = DOLPHIN_NO_TICKET;
    far_point(op->t, "dolphin:reserved");
    if ((err = wait_for_lower_slots(op, leaf, slot)) == 0)
        return publish_slot(op, leaf, slot, &it, mine);
    /* only the value block is freed, because the slot names the key block, which is retired with the leaf */
    dolphin_free_value(op, it.vword);
    far_cas(op->t, dolphin_kword_addr(leaf->addr, slot), mine, dolphin_kword_with_state(mine, DOLPHIN_SLOT_DEAD), NULL);
    return err; /* the caller leaves the leaf, which posts this CAS */
}
