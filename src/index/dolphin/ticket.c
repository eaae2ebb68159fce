/* insert=ticket: {FAA spear, READ key words}, {WRITE value, CAS key word EMPTY -> LIVE, FAA out}: two round trips. The
 * first FAA counts us in and draws a ticket: a slot that nobody else writes to, so that its value may be written before
 * the slot is taken.
 *
 * A key becomes LIVE in slot t only when no slot below t can come to hold it. So of two inserts of one key the upper
 * one looks at the slot of the lower one. Whoever draws a ticket adds a hash of its key to the sum in the same word:
 * where one slot below is still empty (its holder is on the way, or dead, or came through an old pointer), the sum less
 * the keys of the others says whether that can be our key. Where it can, where several are empty, or where one is
 * reserved for the key: {CAS EMPTY -> RESERVED, READ}, a round trip more, most often one, since those above can pass a
 * slot that says whose it is. Others are left a while, and then the slot is taken from them: EMPTY or RESERVED -> DEAD.
 * Whoever gives up its ticket does that itself. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"

#define PATIENCE 4 /* looks before slots are taken from others */


uint64_t dolphin_draw(const dolphin_op *op, unsigned depth) {
    return DOLPHIN_TICKET + dolphin_key_sum(dolphin_kword_of(op->st, op->key, depth));
}


void dolphin_keep_ticket(dolphin_op *op, uint64_t draw, uint64_t seen) {
    op->ticket = dolphin_ticket(seen);
    op->drawn = draw;
    op->below = seen;
}


/* A put that did not find the key: its ticket comes late. */
int dolphin_take_ticket(dolphin_op *op, dolphin_leaf *leaf) {
    uint64_t seen, draw = dolphin_draw(op, dolphin_ident_depth(dolphin_ident(leaf)));
    far_faa(op->t, leaf->addr, draw, &seen);
    far_read(op->t, leaf->addr + DOLPHIN_LEAF_HEADER, leaf->image + DOLPHIN_LEAF_HEADER / 8, 8ull * op->st->slots);
    int err = dolphin_wait(op);
    if (err == 0)
        dolphin_keep_ticket(op, draw, seen);
    return err;
}


/* Slots below ours that may still come to hold the key: how many, and which. FAR_ERR_EXISTS: one does. */
static int look_below(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, unsigned pending[], unsigned *count) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    *count = 0;
    for (unsigned i = 0; i < slot; i++) {
        dolphin_slot_state state = dolphin_state_of_slot(kwords[i]);
        bool same = state == DOLPHIN_EMPTY;
        if (!dolphin_kword_is_sound(kwords[i]))
            return dolphin_broken(op->index, leaf->addr, "leaf");
        int err =
            state == DOLPHIN_RESERVED || state == DOLPHIN_HELD ? dolphin_is_same_key(op, leaf, kwords[i], &same) : 0;
        if (err < 0)
            return err;
        if (same && state == DOLPHIN_HELD)
            return FAR_ERR_EXISTS;
        if (same)
            pending[(*count)++] = i;
    }
    return 0;
}


/* Of the keys that the slots below were given out to, all but one are there to be seen: the sum tells whether that one
 * may be ours; if it is reserved for our key, it says so too. A hole does not say whose it was. */
static bool may_be_ours(const dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, unsigned pending) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    uint64_t sum = op->below / DOLPHIN_SUM * DOLPHIN_SUM;
    for (unsigned i = 0; i < slot; i++) {
        if (kwords[i] == DOLPHIN_HOLE)
            return true;
        if (i != pending)
            sum -= dolphin_key_sum(kwords[i]);
    }
    return sum == op->drawn - DOLPHIN_TICKET;
}


/* From the first one that counts. */
static void put_read_below(dolphin_op *op, const dolphin_leaf *leaf, unsigned first, unsigned slot) {
    far_read(op->t, dolphin_key_at(leaf->addr, first), leaf->image + DOLPHIN_LEAF_HEADER / 8 + first,
             8ull * (slot - first));
}


static void put_kills(dolphin_op *op, const dolphin_leaf *leaf, const unsigned pending[], unsigned count) {
    far_point(op->t, "dolphin:kill");
    for (unsigned i = 0; i < count; i++) {
        uint64_t kword = dolphin_kwords(leaf)[pending[i]];
        far_cas(op->t, dolphin_key_at(leaf->addr, pending[i]), kword, dolphin_with_state(kword, DOLPHIN_DEAD), NULL);
    }
}


/* Until no slot below can come to hold the key, as far as was READ. 0, FAR_ERR_EXISTS or an error. */
static int clear_below(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot) {
    unsigned pending[DOLPHIN_SLOTS_MAX], count;
    for (unsigned look = 0;; look++) {
        int err = look_below(op, leaf, slot, pending, &count);
        if (err < 0 || count == 0)
            return err;
        far_count_retry(op->t);
        if (look < PATIENCE)
            far_sleep(op->t, far_rtt(op->t));
        else
            put_kills(op, leaf, pending, count);
        put_read_below(op, leaf, pending[0], slot); /* a kill that it overtakes shows in the next one */
        if ((err = dolphin_wait(op)) < 0)
            return err;
    }
}


typedef struct item { /* what is put in */
    uint64_t kword, vword;
    uint8_t *key_block, *block;
} item;


static int make_item(dolphin_op *op, const dolphin_leaf *leaf, far_bytes value, item *it) {
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf)), node = far_addr_node(leaf->addr);
    *it = (item){0};
    int err = dolphin_make_value(op, value, node, &it->vword, &it->block);
    if (err == 0 && op->key.length - depth <= DOLPHIN_INLINE_MAX)
        it->kword = dolphin_inline_kword(op->key, depth);
    else if (err == 0 && (err = dolphin_make_key(op, node, &it->kword, &it->key_block)) < 0)
        dolphin_drop_value(op, it->vword);
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


/* {WRITE value, CAS key word, leave}. LOST: the slot was taken from us. */
static int publish(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, const item *it, uint64_t was) {
    uint64_t seen;
    far_write(op->t, dolphin_value_at(leaf->addr, op->st->slots, slot), &it->vword, 8);
    far_cas(op->t, dolphin_key_at(leaf->addr, slot), was, dolphin_with_state(it->kword, DOLPHIN_HELD), &seen);
    op->ticket = DOLPHIN_NO_TICKET;
    dolphin_put_leave(op, leaf);
    int err = dolphin_wait(op);
    if (err < 0 || seen == was)
        return err;
    if (was == 0)
        dolphin_drop_key(op, it->kword); /* nothing names it; the value goes with the leaf */
    return DOLPHIN_LOST;
}


int dolphin_insert_by_ticket(dolphin_op *op, const dolphin_leaf *leaf, far_bytes value) {
    unsigned pending[DOLPHIN_SLOTS_MAX], count, slot = (unsigned)op->ticket;
    uint64_t seen;
    item it;
    if (op->ticket >= op->st->slots)
        return DOLPHIN_FULL;
    int err = look_below(op, leaf, slot, pending, &count);
    if (err == 0 && dolphin_kwords(leaf)[slot] != 0) { /* taken from us already, or a ticket of an earlier life */
        dolphin_leave(op, leaf);
        return DOLPHIN_LOST;
    }
    if (err < 0 || (err = make_item(op, leaf, value, &it)) < 0)
        return err;
    if (count == 1 && !may_be_ours(op, leaf, slot, pending[0]))
        count = 0;
    far_point(op->t, "dolphin:ticket");
    if (count == 0)
        return publish(op, leaf, slot, &it, 0);
    uint64_t mine = dolphin_with_state(it.kword, DOLPHIN_RESERVED);
    far_cas(op->t, dolphin_key_at(leaf->addr, slot), 0, mine, &seen);
    put_read_below(op, leaf, pending[0], slot); /* before or after the CAS: a slot that is taken stays taken */
    if ((err = dolphin_wait(op)) < 0)
        return err;
    if (seen != 0) {
        dolphin_drop_value(op, it.vword);
        dolphin_drop_key(op, it.kword);
        dolphin_leave(op, leaf);
        return DOLPHIN_LOST;
    }
    op->ticket = DOLPHIN_NO_TICKET;
    far_point(op->t, "dolphin:reserved");
    if ((err = clear_below(op, leaf, slot)) == 0)
        return publish(op, leaf, slot, &it, mine);
    dolphin_drop_value(op, it.vword); /* the key block goes with the leaf */
    far_cas(op->t, dolphin_key_at(leaf->addr, slot), mine, dolphin_with_state(mine, DOLPHIN_DEAD), NULL);
    return err; /* with the leave */
}
