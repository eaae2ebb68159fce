/* Scans. A cursor moves through the keys in ascending order. Each turn READs the leaf that covers the cursor, and in
 * the same batch the following leaves of the same node. The scan emits the pairs of each leaf that is authoritative for
 * the cursor, and moves the cursor to the first key after the interval of that leaf. So no key is skipped and no key is
 * emitted twice, even during structure changes. An interval is skipped as empty only if a proven node (one that was
 * linked when this operation READ it) has a NULL entry for the interval. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch/epoch.h"

#include <stdlib.h>

#define BATCH_MAX  (1 + DOLPHIN_CACHE_NEXT_MAX)
#define WANTED_MAX 65536u
/* limit on the bytes of value blocks that are READ in one batch, so that a scan of large values does not need much
 * scratch memory */
#define VALUE_BYTES (256u << 10)

typedef struct cursor {
    dolphin_op op;
    far_scan_chunk *scan;
    size_t pairs_wanted; /* number of pairs that the caller still wants */
    bool finished;       /* no key is greater than or equal to the cursor */
    size_t length;
    uint8_t key[FAR_KEY_MAX + 8]; /* the cursor: the smallest key that was neither emitted nor skipped */
    uint8_t next_key[FAR_KEY_MAX + 8];
} cursor;


static void move_cursor_beyond(cursor *c, unsigned depth, unsigned hi) {
    size_t length;
    if (!dolphin_first_key_beyond(c->key, depth, hi, c->next_key, &length)) {
        c->finished = true;
        return;
    }
    memcpy(c->key, c->next_key, length);
    c->length = length;
}


static bool cursor_is_beyond_bound(const cursor *c) {
    return c->scan->bounded && far_bytes_compare((far_bytes){c->key, c->length}, c->scan->to) >= 0;
}


/* READs the values of the pairs, several in one batch, and emits the pairs. Returns 1 if the caller wants no more. */
static int emit_pairs(cursor *c, const dolphin_leaf *leaf, const dolphin_pair *pairs, unsigned count) {
    dolphin_op *op = &c->op;
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    uint64_t words[DOLPHIN_SLOTS_MAX], again[DOLPHIN_SLOTS_MAX], missing = op->st->raw_values ? op->st->poison : 0;
    int err = 0;
    bool look = false;
    for (unsigned i = 0; i < count; i++) {
        words[i] = pairs[i].vword;
        /* This value word was READ before the insert wrote it, or after a delete cleared it. It is READ again to
         * distinguish the two cases. */
        if (words[i] == missing) {
            far_read(op->t, dolphin_vword_addr(leaf->addr, op->st->slots, pairs[i].slot), &again[i], 8);
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
        for (to = from; to < count && bytes < VALUE_BYTES && (to - from < c->pairs_wanted || to == from); to++) {
            if ((err = dolphin_batch_read_value(op, words[to], &blocks[to])) < 0) {
                far_discard_batch(op->t);
                return err;
            }
            bytes += blocks[to] ? dolphin_value_block_bytes(words[to]) : 0;
        }
        if ((err = dolphin_wait(op)) < 0)
            return err;
        for (unsigned i = from; i < to && err == 0; i++) {
            far_bytes value = {&words[i], 8};
            if (!op->st->raw_values && words[i] == 0)
                continue; /* the pair is not emitted, because its key was deleted meanwhile */
            if (!op->st->raw_values && (err = dolphin_decode_value(op, pairs[i].key, words[i], blocks[i], &value)) < 0)
                return err;
            if ((err = far_scan_give(c->scan, pairs[i].key, value)) == 0 && --c->pairs_wanted == 0)
                err = 1; /* the caller has all the pairs that it wants */
        }
    }
    return err;
}


/* Emits the pairs of a leaf from the cursor up to position hi, and moves the cursor beyond hi. Returns 1 if the caller
 * wants no more. */
static int emit_leaf(cursor *c, const dolphin_leaf *leaf, unsigned hi) {
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
    if ((err = emit_pairs(c, leaf, pairs + first, count - first)) != 0)
        return err;
    move_cursor_beyond(c, depth, hi);
    return 0;
}


/* Stores the entry of the location and the following leaf entries of the same node, as many as the scan will probably
 * need. */
static unsigned choose_leaves(cursor *c, const dolphin_location *location, uint64_t entries[BATCH_MAX]) {
    dolphin_op *op = &c->op;
    /* On average, half of the first leaf is before the cursor. */
    size_t usual = op->st->slots * 7 / 10 + 1, wanted = (c->pairs_wanted + usual / 2) / usual + 1;
    unsigned most = wanted < op->st->scan_batch ? (unsigned)wanted : op->st->scan_batch, count = 1;
    dolphin_cache_hit hit = {0};
    entries[0] = location->entry;
    if (location->depth == 0)
        return 1; /* each leaf below the root has its own entry of the root, which was not READ */
    if (location->node_is_fresh) {
        unsigned lb = dolphin_entry_lb(location->entry);
        while (count < most && (lb = dolphin_next_lb(&location->node, lb)) < DOLPHIN_POSITIONS)
            entries[count++] = location->node.entries[dolphin_find_entry(&location->node, lb)];
    } else if (dolphin_cache_probe(op->st->cache, op->key, far_epoch(op->t), &hit) && hit.entry == location->entry)
        for (; count < most && count - 1 < hit.next_count; count++)
            entries[count] = hit.next[count - 1];
    for (unsigned i = 1; i < count; i++) {
        unsigned lb = dolphin_entry_lb(entries[i]);
        far_bytes low = {c->next_key, location->depth + 1u};
        memcpy(c->next_key, c->key, location->depth);
        c->next_key[location->depth] = (uint8_t)(lb - 1);
        if (dolphin_entry_kind(entries[i]) != DOLPHIN_KIND_LEAF || lb == 0 ||
            (c->scan->bounded && far_bytes_compare(low, c->scan->to) >= 0))
            return i;
    }
    return count;
}


/* Returns the last position of the interval of an entry. `hi` is the end according to the entry or its leaf. The
 * interval ends earlier, where the next entry begins, if a client added that next entry and then failed. */
static unsigned last_position_of_entry(const dolphin_node *node, uint64_t entry, unsigned hi) {
    unsigned next = dolphin_next_lb(node, dolphin_entry_lb(entry));
    return next <= hi ? next - 1 : hi;
}


/* Moves the cursor beyond all adjacent NULL intervals. */
static void skip_nulls(cursor *c, const dolphin_location *location) {
    uint64_t entry = location->entry;
    unsigned hi = last_position_of_entry(&location->node, entry, dolphin_entry_hi(entry));
    while (hi < DOLPHIN_LAST_POSITION) {
        entry = location->node.entries[dolphin_find_entry(&location->node, hi + 1)];
        if (dolphin_entry_kind(entry) != DOLPHIN_KIND_NULL || !dolphin_entry_may_cover(entry, hi + 1))
            break;
        hi = last_position_of_entry(&location->node, entry, dolphin_entry_hi(entry));
    }
    move_cursor_beyond(c, location->depth, hi);
}


/* Called when the entry names a node with another prefix than the cursor. The keys of that node are all greater than
 * the cursor or all smaller. Moves the cursor to the first of these keys, or skips the node. */
static void skip_divergent_node(cursor *c, const dolphin_location *location) {
    far_bytes prefix = {dolphin_node_prefix(&location->child), location->child.depth};
    if (far_bytes_compare((far_bytes){c->key, c->length}, prefix) > 0) {
        move_cursor_beyond(c, location->depth, location->position);
        return;
    }
    memcpy(c->key, prefix.data, prefix.length);
    c->length = prefix.length;
}


/* A frozen leaf is authoritative only for the interval for which the proven node still names it. */
static unsigned last_position_of_frozen(const dolphin_location *location, const dolphin_leaf *frozen_leaf) {
    unsigned hi = dolphin_ident_hi(dolphin_ident(frozen_leaf));
    return location->depth ? last_position_of_entry(&location->node, location->entry, hi) : hi;
}


/* READs leaves and emits their pairs. Returns 0 to continue or 1 if the caller wants no more. Sets *fresh if the next
 * turn must READ the node, because a leaf was frozen or stale. A frozen leaf is stored in *frozen_leaf for that turn.
 */
static int read_and_emit_leaves(cursor *c, const dolphin_location *location, dolphin_leaf *frozen_leaf, bool *fresh) {
    dolphin_op *op = &c->op;
    uint64_t entries[BATCH_MAX];
    dolphin_leaf leaves[BATCH_MAX];
    unsigned count = choose_leaves(c, location, entries);
    for (unsigned i = 0; i < count; i++) {
        int err = dolphin_batch_read_leaf(op, entries[i], &leaves[i]);
        if (err < 0) {
            far_discard_batch(op->t);
            return err;
        }
    }
    int err = dolphin_wait(op);
    far_point(op->t, "dolphin:scan_read");
    for (unsigned i = 0; i < count && err == 0 && !c->finished && !cursor_is_beyond_bound(c); i++) {
        op->key = (far_bytes){c->key, c->length};
        int why = dolphin_classify_leaf(op, &leaves[i]);
        if (why == 0)
            err = emit_leaf(c, &leaves[i], dolphin_ident_hi(dolphin_ident(&leaves[i])));
        else {
            *fresh = true;
            frozen_leaf->entry = 0;
            if (why == DOLPHIN_LEAF_FROZEN)
                *frozen_leaf = leaves[i];
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
    c->finished = false;
    c->pairs_wanted = (scan->wanted < WANTED_MAX ? scan->wanted : WANTED_MAX) + (scan->after ? 1 : 0);
    c->length = scan->from.length ? scan->from.length : 1;
    c->key[0] = 0;
    if (scan->from.length)
        memcpy(c->key, scan->from.data, scan->from.length);
    dolphin_begin_op(&c->op, t, index, (far_bytes){c->key, c->length});
    c->op.reads_whole_root = true;
    dolphin_leaf frozen_leaf = {0};
    bool fresh = false;
    int err = 0;
    far_scratch_mark here = far_scratch_here(t);
    while (err == 0 && !c->finished && !cursor_is_beyond_bound(c)) {
        dolphin_location location;
        unsigned attempts = c->op.attempt;
        if (!frozen_leaf.entry)
            far_scratch_back(t, here);
        c->op.key = (far_bytes){c->key, c->length};
        if ((err = dolphin_locate(&c->op, fresh, &location)) < 0)
            return err;
        bool again = fresh;
        fresh = false;
        if (location.outcome == DOLPHIN_AT_NULL)
            skip_nulls(c, &location);
        else if (location.outcome == DOLPHIN_AT_DIVERGENCE)
            skip_divergent_node(c, &location);
        else if (frozen_leaf.entry && attempts == c->op.attempt &&
                 dolphin_entries_match(frozen_leaf.entry, location.entry) &&
                 dolphin_leaf_covers(&c->op, &frozen_leaf, dolphin_ident(&frozen_leaf))) {
            err = emit_leaf(c, &frozen_leaf, last_position_of_frozen(&location, &frozen_leaf));
            frozen_leaf.entry = 0;
        } else {
            bool in_vain = frozen_leaf.entry != 0; /* the frozen leaf of the last turn did not cover the cursor */
            frozen_leaf.entry = 0;
            err = read_and_emit_leaves(c, &location, &frozen_leaf, &fresh);
            if (err == 0 && fresh && again && (in_vain || !frozen_leaf.entry)) {
                /* The pin may have been renewed, so the content of the frozen leaf must not be used any more. */
                frozen_leaf.entry = 0;
                err = dolphin_retry_inconsistent(&c->op, dolphin_entry_addr(location.entry), "leaf");
            }
        }
    }
    scan->end = err == 0;
    return err < 0 ? err : 0;
}
