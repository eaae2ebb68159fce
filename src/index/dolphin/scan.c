/* Scans, in ascending and in descending key order. A scan has a range of keys that it still has to visit (scan_range.c);
 * the cursor is the bound of this range where the scan continues. Each turn READs the leaf that covers the cursor, and
 * in the same batch the leaves of the same node that follow in the direction of the scan. The scan emits the pairs of
 * each leaf that is authoritative for the cursor, and moves the cursor beyond the interval of that leaf. So no key is
 * skipped and no key is emitted twice, even during structure changes. An interval is skipped as empty only if a proven
 * node (one that was linked when this operation READ it) has a NULL entry for the interval. */
#include "base/error.h"
#include "index/common/results.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch/epoch.h"

#define BATCH_MAX  8u /* greatest value of the option `scan_batch` */
#define WANTED_MAX 65536u
/* limit on the bytes of value blocks that are READ in one batch, so that a scan of large values does not need much
 * scratch memory */
#define VALUE_BYTES (256u << 10)

typedef struct cursor {
    dolphin_op op;
    far_scan_chunk *scan;
    unsigned pairs_wanted; /* number of pairs that the caller still wants */
    dolphin_range range;
    dolphin_pairs pairs; /* the pairs of the leaf that is being emitted */
} cursor;


/* Returns the address of the value word of a pair in the image of its leaf. */
static uint64_t *vword_of_pair(const cursor *c, unsigned i) {
    return c->pairs.leaf->image + DOLPHIN_LEAF_HEADER / 8 + c->op.st->slots + c->pairs.pair[i].slot;
}


/* READs value words again that were READ before the insert wrote them, or after a delete cleared them. Afterwards a
 * word without a value means that the key was deleted. */
static int reread_missing_values(cursor *c, unsigned from, unsigned to) {
    dolphin_op *op = &c->op;
    uint64_t missing = op->st->raw_values ? op->st->poison : 0, *vwords = vword_of_pair(c, 0) - c->pairs.pair[0].slot;
    bool any = false;
    for (unsigned i = from; i < to; i++) {
        unsigned slot = (unsigned)c->pairs.pair[i].slot;
        if (vwords[slot] != missing)
            continue;
        far_read(op->t, dolphin_vword_addr(c->pairs.leaf->addr, op->st->slots, slot), &vwords[slot], 8);
        any = true;
    }
    return any ? dolphin_wait(op) : 0;
}


/* Emits pairs whose values are in value blocks or have variable length. Stores in *to the pair where the next call
 * continues, because the value blocks may be too large for one batch. Returns 1 if the caller of the scan wants no
 * more. */
static int emit_decoded_values(cursor *c, unsigned from, unsigned *to) {
    uint64_t vwords[DOLPHIN_SLOTS_MAX];
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    unsigned count = *to - from;
    int err = reread_missing_values(c, from, *to);
    for (unsigned i = 0; i < count; i++)
        vwords[i] = *vword_of_pair(c, from + i);
    if (err == 0)
        err = dolphin_read_values(&c->op, vwords, &count, VALUE_BYTES, blocks);
    for (unsigned i = 0; i < count && err == 0; i++) {
        if (vwords[i] == 0)
            continue; /* the pair is not emitted, because its key was deleted meanwhile */
        far_bytes key = dolphin_pair_key(&c->pairs, from + i), value = {&vwords[i], 8};
        if ((err = dolphin_decode_value(&c->op, key, vwords[i], blocks[i], &value)) == 0) {
            err = far_scan_add(c->scan, key, value);
            c->pairs_wanted--;
        }
    }
    *to = from + count;
    return err;
}


/* Emits pairs with value_size=8, whose values are the value words. */
static int emit_raw_values(cursor *c, unsigned from, unsigned to) {
    far_scan_chunk *scan = c->scan;
    const uint64_t poison = c->op.st->poison, *vwords = dolphin_vwords(&c->op, c->pairs.leaf);
    bool again = false;
    int err = 0;
    c->pairs_wanted -= to - from;
    for (unsigned i = from; i < to && err == 0; i++) {
        const uint64_t *vword = &vwords[c->pairs.pair[i].slot];
        if (*vword == poison && !again) {
            if ((err = reread_missing_values(c, i, to)) < 0)
                return err;
            again = true;
        }
        err = far_scan_add(scan, dolphin_pair_key(&c->pairs, i), (far_bytes){vword, 8});
    }
    return err;
}


/* Emits the collected pairs. Returns 1 if the caller wants no more. */
static int emit_pairs(cursor *c) {
    int err = 0;
    for (unsigned from = 0, to; from < c->pairs.count && err == 0; from = to) {
        unsigned left = c->pairs.count - from;
        to = from + (left < c->pairs_wanted ? left : c->pairs_wanted);
        err = c->op.st->raw_values ? emit_raw_values(c, from, to) : emit_decoded_values(c, from, &to);
    }
    return err;
}


/* Emits the pairs of a leaf that are in the range and have positions up to `hi`, and moves the cursor beyond them.
 * Returns 1 if the caller wants no more. */
static int emit_leaf(cursor *c, const dolphin_leaf *leaf, unsigned hi) {
    uint64_t ident = dolphin_ident(leaf);
    const uint8_t *prefix = dolphin_range_cursor(&c->range).data;
    int err = dolphin_read_pairs(&c->op, leaf, prefix, hi, &c->range, c->pairs_wanted, &c->pairs);
    if (err != 0 || (err = emit_pairs(c)) != 0)
        return err;
    if (c->pairs.whole)
        dolphin_range_leave_interval(&c->range, dolphin_ident_depth(ident), dolphin_ident_lo(ident), hi);
    else
        dolphin_range_leave_key(&c->range, dolphin_pair_key(&c->pairs, c->pairs.count - 1));
    return 0;
}


/* Returns the entry of the node that comes after this one in the direction of the scan, or 0. */
static uint64_t next_entry(const cursor *c, const dolphin_node *node, uint64_t entry) {
    unsigned lb = dolphin_entry_lb(entry), next = c->range.backward ? lb - 1 : dolphin_next_lb(node, lb);
    int at = next < DOLPHIN_POSITIONS ? dolphin_find_entry(node, next) : -1;
    return at < 0 ? 0 : node->entries[at];
}


/* Stores the entry of the location and the entries that come after it in the same node. Returns their number. */
static unsigned list_entries(cursor *c, const dolphin_location *location, unsigned most, uint64_t entries[]) {
    unsigned count = 1;
    entries[0] = location->entry;
    if (most == 1 || location->depth == 0) /* each leaf below the root has its own entry of the root */
        return 1;
    if (!location->node_is_fresh) {
        count = dolphin_cache_entries_from(c->op.st->cache, c->op.key, far_epoch(c->op.t), c->range.backward, most,
                                           entries);
        if (count && entries[0] == location->entry)
            return count;
        entries[0] = location->entry; /* another task has changed the cached node meanwhile */
        return 1;
    }
    while (count < most && (entries[count] = next_entry(c, &location->node, entries[count - 1])) != 0)
        count++;
    return count;
}


/* Stores the entry of the location and the leaf entries that come after it in the same node, as many as the scan will
 * probably need. */
static unsigned choose_leaves(cursor *c, const dolphin_location *location, uint64_t entries[BATCH_MAX]) {
    dolphin_op *op = &c->op;
    /* On average, half of the first leaf is outside of the range. */
    unsigned usual = op->st->slots * 7 / 10 + 1, wanted = (c->pairs_wanted + usual / 2) / usual + 1;
    unsigned most = wanted < op->st->scan_batch ? wanted : op->st->scan_batch;
    unsigned count = list_entries(c, location, most, entries), chosen = 1;
    unsigned end = count > 1 ? dolphin_range_end_position(&c->range, location->depth) : 0;
    for (; chosen < count && dolphin_entry_kind(entries[chosen]) == DOLPHIN_KIND_LEAF; chosen++)
        if (c->range.backward ? dolphin_entry_lb(entries[chosen - 1]) <= end : dolphin_entry_lb(entries[chosen]) > end)
            break; /* the leaf has no key in the range */
    return chosen;
}


/* Returns the last position of the interval of an entry. `hi` is the end according to the entry or its leaf. The
 * interval ends earlier, where the next entry begins, if a client added that next entry and then failed. */
static unsigned last_position_of_entry(const dolphin_node *node, uint64_t entry, unsigned hi) {
    unsigned next = dolphin_next_lb(node, dolphin_entry_lb(entry));
    return next <= hi ? next - 1 : hi;
}


/* Returns the NULL entry of this position, or 0 if another entry owns the position. */
static uint64_t find_null(const dolphin_node *node, unsigned position) {
    int at = position < DOLPHIN_POSITIONS ? dolphin_find_entry(node, position) : -1;
    uint64_t entry = at < 0 ? 0 : node->entries[at];
    return dolphin_entry_kind(entry) == DOLPHIN_KIND_NULL && dolphin_entry_may_cover(entry, position) ? entry : 0;
}


/* Moves the cursor beyond all adjacent NULL intervals. */
static void skip_nulls(cursor *c, const dolphin_location *location) {
    const dolphin_node *node = &location->node;
    unsigned lo = DOLPHIN_LAST_POSITION, hi = 0;
    for (uint64_t entry = location->entry; entry != 0; entry = find_null(node, c->range.backward ? lo - 1 : hi + 1)) {
        lo = dolphin_entry_lb(entry);
        hi = last_position_of_entry(node, entry, dolphin_entry_hi(entry));
    }
    dolphin_range_leave_interval(&c->range, location->depth, lo, hi);
}


/* Called when the entry names a node with another prefix than the cursor. The keys of that node are all greater than
 * the cursor or all smaller. Moves the cursor to the first of these keys in the direction of the scan, or skips the
 * node. */
static void skip_divergent_node(cursor *c, const dolphin_location *location) {
    far_bytes prefix = {dolphin_node_prefix(&location->child), location->child.depth};
    if (!dolphin_range_enter_prefix(&c->range, prefix))
        dolphin_range_leave_interval(&c->range, location->depth, location->position, location->position);
}


/* A frozen leaf is authoritative only for the interval for which the proven node still names it. */
static unsigned last_position_of_frozen(const dolphin_location *location, const dolphin_leaf *frozen_leaf) {
    unsigned hi = dolphin_ident_hi(dolphin_ident(frozen_leaf));
    return location->depth ? last_position_of_entry(&location->node, location->entry, hi) : hi;
}


static int read_leaves(dolphin_op *op, const uint64_t entries[], unsigned count, dolphin_leaf leaves[]) {
    for (unsigned i = 0; i < count; i++) {
        int err = dolphin_batch_read_leaf(op, entries[i], &leaves[i]);
        if (err < 0) {
            far_discard_batch(op->t);
            return err;
        }
    }
    return dolphin_wait(op);
}


/* READs leaves and emits their pairs. Returns 0 to continue or 1 if the caller wants no more. Sets *fresh if the next
 * turn must READ the node, because a leaf was frozen or stale. A frozen leaf is stored in *frozen_leaf for that turn.
 */
static int read_and_emit_leaves(cursor *c, const dolphin_location *location, dolphin_leaf *frozen_leaf, bool *fresh) {
    dolphin_op *op = &c->op;
    uint64_t entries[BATCH_MAX];
    dolphin_leaf leaves[BATCH_MAX];
    unsigned count = choose_leaves(c, location, entries);
    int err = read_leaves(op, entries, count, leaves);
    far_point(op->t, "dolphin:scan_read");
    for (unsigned i = 0; i < count && err == 0 && !c->range.empty; i++) {
        op->key = dolphin_range_cursor(&c->range);
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


/* Visits the whole range. Returns 0, 1 if the caller wants no more pairs, or an error. */
static int visit_range(cursor *c) {
    dolphin_leaf frozen_leaf = {0};
    bool fresh = false;
    int err = 0;
    far_scratch_mark here = far_scratch_here(c->op.t);
    while (err == 0 && !c->range.empty) {
        dolphin_location location;
        unsigned attempts = c->op.attempt;
        if (!frozen_leaf.entry)
            far_scratch_back(c->op.t, here);
        c->op.key = dolphin_range_cursor(&c->range);
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
    return err;
}


int dolphin_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    cursor *c = far_scratch(t, sizeof(*c));
    if (!c)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    c->scan = scan;
    c->pairs_wanted = scan->wanted < WANTED_MAX ? (unsigned)scan->wanted : WANTED_MAX;
    dolphin_range_of_chunk(scan, &c->range);
    dolphin_begin_op(&c->op, t, index, dolphin_range_cursor(&c->range));
    c->op.reads_whole_root = true;
    int err = visit_range(c);
    scan->end = err == 0;
    return err < 0 ? err : 0;
}
