/* Scans. A cursor goes up through the keys: the leaf that it lies in is READ, with those that follow it in the node;
 * the pairs of each that speaks for the cursor are given, and the cursor moves behind what the leaf is for. Whatever
 * happens to leaves meanwhile, the cursor misses nothing and passes nothing twice. What is empty is said by a proven
 * node. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch.h"

#include <stdlib.h>

#define BATCH_MAX   (1 + DOLPHIN_HINT_MORE)
#define WANTED_MAX  65536u
#define VALUE_BYTES (256u << 10) /* READ at once */

typedef struct cursor {
    dolphin_op op;
    far_scan_chunk *scan;
    size_t left; /* pairs still wanted */
    bool over;   /* there is nothing beyond */
    size_t length;
    uint8_t key[FAR_KEY_MAX + 8], next[FAR_KEY_MAX + 8];
} cursor;


static void move_beyond(cursor *c, unsigned depth, unsigned hi) {
    size_t length;
    if (!dolphin_beyond(c->key, depth, hi, c->next, &length)) {
        c->over = true;
        return;
    }
    memcpy(c->key, c->next, length);
    c->length = length;
}


static bool is_beyond_bound(const cursor *c) {
    return c->scan->bounded && far_bytes_compare((far_bytes){c->key, c->length}, c->scan->to) >= 0;
}


/* Values of pairs [from, to), some of them at once. 0, or 1: enough. */
static int give_pairs(cursor *c, const dolphin_leaf *leaf, const dolphin_pair *pairs, unsigned count) {
    dolphin_op *op = &c->op;
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    uint64_t words[DOLPHIN_SLOTS_MAX], again[DOLPHIN_SLOTS_MAX], missing = op->st->words ? op->st->poison : 0;
    int err = 0;
    bool look = false;
    for (unsigned i = 0; i < count; i++) {
        words[i] = pairs[i].vword;
        if (words[i] == missing) { /* READ before the insert; or after a delete */
            far_read(op->t, dolphin_value_at(leaf->addr, op->st->slots, pairs[i].slot), &again[i], 8);
            look = true;
        }
    }
    if (look && (err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < count; i++)
        if (words[i] == missing)
            words[i] = again[i];
    for (unsigned from = 0, to; from < count && err == 0; from = to) {
        uint64_t bytes = 0;
        for (to = from; to < count && bytes < VALUE_BYTES && (to - from < c->left || to == from); to++) {
            if ((err = dolphin_put_read_value(op, words[to], &blocks[to])) < 0) {
                far_forget(op->t);
                return err;
            }
            bytes += blocks[to] ? dolphin_value_block_bytes(words[to]) : 0;
        }
        if ((err = dolphin_wait(op)) < 0)
            return err;
        for (unsigned i = from; i < to && err == 0; i++) {
            far_bytes value = {&words[i], 8};
            if (!op->st->words && words[i] == 0)
                continue; /* deleted meanwhile */
            if (!op->st->words && (err = dolphin_take_value(op, pairs[i].key, words[i], blocks[i], &value)) < 0)
                return err;
            if ((err = far_scan_give(c->scan, pairs[i].key, value)) == 0 && --c->left == 0)
                err = 1; /* all that was wanted: no need to look for more */
        }
    }
    return err;
}


/* The pairs of a leaf from the cursor on, up to position hi; the cursor moves. 1: enough. */
static int give_leaf(cursor *c, const dolphin_leaf *leaf, unsigned hi) {
    dolphin_op *op = &c->op;
    dolphin_pair *pairs = far_scratch(op->t, op->st->slots * sizeof(*pairs));
    unsigned count, first = 0, depth = dolphin_ident_depth(dolphin_ident(leaf));
    if (!pairs)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    int err = dolphin_read_pairs(op, leaf, c->key, hi, pairs, &count);
    if (err < 0)
        return err;
    while (first < count && far_bytes_compare(pairs[first].key, (far_bytes){c->key, c->length}) < 0)
        first++;
    if ((err = give_pairs(c, leaf, pairs + first, count - first)) != 0)
        return err;
    move_beyond(c, depth, hi);
    return 0;
}


/* The leaf of the spot, and those that follow it, as many as will be needed. */
static unsigned choose_leaves(cursor *c, const dolphin_spot *spot, uint64_t entries[BATCH_MAX]) {
    dolphin_op *op = &c->op;
    size_t usual = op->st->slots * 7 / 10 + 1, wanted = (c->left + usual / 2) / usual + 1; /* half of the first */
    unsigned most = wanted < op->st->scan_batch ? (unsigned)wanted : op->st->scan_batch, count = 1;
    dolphin_hint hint = {0};
    entries[0] = spot->entry;
    if (spot->depth == 0)
        return 1; /* leaves below the root have a byte each */
    if (spot->fresh) {
        unsigned lb = dolphin_entry_lb(spot->entry);
        while (count < most && (lb = dolphin_next_lb(&spot->node, lb)) < DOLPHIN_POSITIONS)
            entries[count++] = spot->node.entries[dolphin_lookup(&spot->node, lb)];
    } else if (dolphin_cache_probe(op->st->cache, op->key, far_epoch(op->t), &hint) && hint.entry == spot->entry)
        for (; count < most && count - 1 < hint.more; count++)
            entries[count] = hint.next[count - 1];
    for (unsigned i = 1; i < count; i++) {
        unsigned lb = dolphin_entry_lb(entries[i]);
        far_bytes low = {c->next, spot->depth + 1u};
        memcpy(c->next, c->key, spot->depth);
        c->next[spot->depth] = (uint8_t)(lb - 1);
        if (dolphin_entry_kind(entries[i]) != DOLPHIN_LEAF || lb == 0 ||
            (c->scan->bounded && far_bytes_compare(low, c->scan->to) >= 0))
            return i;
    }
    return count;
}


/* Where an entry ends: where it says, or its leaf; or before, where the next one begins: a dead client was about to narrow
 * it, and the upper part is elsewhere already. */
static unsigned end_of(const dolphin_node *node, uint64_t entry, unsigned hi) {
    unsigned next = dolphin_next_lb(node, dolphin_entry_lb(entry));
    return next <= hi ? next - 1 : hi;
}


/* NULLs side by side are passed together. */
static void pass_nulls(cursor *c, const dolphin_spot *spot) {
    uint64_t entry = spot->entry;
    unsigned hi = end_of(&spot->node, entry, dolphin_entry_hi(entry));
    while (hi < DOLPHIN_LAST) {
        entry = spot->node.entries[dolphin_lookup(&spot->node, hi + 1)];
        if (dolphin_entry_kind(entry) != DOLPHIN_NULL || !dolphin_entry_may_cover(entry, hi + 1))
            break;
        hi = end_of(&spot->node, entry, dolphin_entry_hi(entry));
    }
    move_beyond(c, spot->depth, hi);
}


/* Below the entry is one node, with another prefix: the cursor lies before all its keys, or behind them. */
static void pass_path(cursor *c, const dolphin_spot *spot) {
    far_bytes prefix = {dolphin_node_prefix(&spot->child), spot->child.depth};
    if (far_bytes_compare((far_bytes){c->key, c->length}, prefix) > 0) {
        move_beyond(c, spot->depth, spot->position);
        return;
    }
    memcpy(c->key, prefix.data, prefix.length);
    c->length = prefix.length;
}


/* A frozen leaf speaks for what its node still names it for. */
static unsigned hi_of_kept(const dolphin_spot *spot, const dolphin_leaf *kept) {
    unsigned hi = dolphin_ident_hi(dolphin_ident(kept));
    return spot->depth ? end_of(&spot->node, spot->entry, hi) : hi;
}


/* READs and gives. 0: go on; 1: enough; *fresh: the node is to be READ before the next look. */
static int give_leaves(cursor *c, const dolphin_spot *spot, dolphin_leaf *kept, bool *fresh) {
    dolphin_op *op = &c->op;
    uint64_t entries[BATCH_MAX];
    dolphin_leaf leaves[BATCH_MAX];
    unsigned count = choose_leaves(c, spot, entries);
    for (unsigned i = 0; i < count; i++) {
        int err = dolphin_put_read_leaf(op, entries[i], &leaves[i]);
        if (err < 0) {
            far_forget(op->t);
            return err;
        }
    }
    int err = dolphin_wait(op);
    far_point(op->t, "dolphin:scan_read");
    for (unsigned i = 0; i < count && err == 0 && !c->over && !is_beyond_bound(c); i++) {
        op->key = (far_bytes){c->key, c->length};
        int why = dolphin_accept_leaf(op, &leaves[i]);
        if (why == 0)
            err = give_leaf(c, &leaves[i], dolphin_ident_hi(dolphin_ident(&leaves[i])));
        else {
            *fresh = true;
            kept->entry = 0;
            if (why == DOLPHIN_IS_FROZEN)
                *kept = leaves[i];
            return 0;
        }
    }
    return err;
}


int dolphin_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    cursor *c = far_scratch(t, sizeof(*c));
    if (!c)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    c->scan = scan;
    c->over = false;
    c->left = (scan->wanted < WANTED_MAX ? scan->wanted : WANTED_MAX) + (scan->after ? 1 : 0);
    c->length = scan->from.length ? scan->from.length : 1;
    c->key[0] = 0;
    if (scan->from.length)
        memcpy(c->key, scan->from.data, scan->from.length);
    dolphin_begin(&c->op, t, index, (far_bytes){c->key, c->length});
    c->op.tours = true;
    dolphin_leaf kept = {0};
    bool fresh = false;
    int err = 0;
    far_scratch_mark here = far_scratch_here(t);
    while (err == 0 && !c->over && !is_beyond_bound(c)) {
        dolphin_spot spot;
        unsigned attempts = c->op.attempt;
        if (!kept.entry)
            far_scratch_back(t, here);
        c->op.key = (far_bytes){c->key, c->length};
        if ((err = dolphin_locate(&c->op, fresh, &spot)) < 0)
            return err;
        bool again = fresh;
        fresh = false;
        if (spot.outcome == DOLPHIN_AT_NULL)
            pass_nulls(c, &spot);
        else if (spot.outcome == DOLPHIN_AT_PATH)
            pass_path(c, &spot);
        else if (kept.entry && attempts == c->op.attempt && dolphin_entry_same(kept.entry, spot.entry) &&
                 dolphin_leaf_covers(&c->op, &kept, dolphin_ident(&kept))) {
            err = give_leaf(c, &kept, hi_of_kept(&spot, &kept));
            kept.entry = 0;
        } else {
            bool in_vain = kept.entry != 0; /* a leaf was kept, and does not speak for the cursor */
            kept.entry = 0;
            err = give_leaves(c, &spot, &kept, &fresh);
            if (err == 0 && fresh && again && (in_vain || !kept.entry)) {
                kept.entry = 0; /* the pin may be another one then */
                err = dolphin_odd(&c->op, dolphin_entry_addr(spot.entry), "leaf");
            }
        }
    }
    scan->end = err == 0;
    return err < 0 ? err : 0;
}
