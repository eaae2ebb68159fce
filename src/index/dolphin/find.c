/* Finding: from the deepest node that the cache knows, else from the root, down to the entry for the key.
 *
 * A node is proven when it was READ in this operation and was linked at that moment: it is not frozen (whoever unlinks
 * a node freezes it first), or its word was READ from a proven node. Only a proven node may say that a key is absent. A
 * leaf that is LIVE with the tag of the entry, and not frozen, speaks for its keys whatever way led to it; a frozen one
 * does if a proven node, READ after it, still names it. Nobody who reads waits. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch.h"

enum { AGAIN = 1 };

#define ODD_MAX   100
#define STEPS_MAX 1024 /* of one search: nodes that it goes through, and those that were not what the cache said */


void dolphin_begin(dolphin_op *op, far_task *t, far_index *index, far_bytes key) {
    *op = (dolphin_op){.t = t,
                       .index = index,
                       .st = dolphin_state_of(index),
                       .key = key,
                       .ticket = DOLPHIN_NO_TICKET,
                       .last_ticket = DOLPHIN_NO_TICKET};
}


static inline int note_loss(dolphin_op *op, int err) {
    if (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE)
        op->lost = true;
    return err;
}


int dolphin_wait(dolphin_op *op) {
    op->mark = far_rdwc_mark(op->t);
    return note_loss(op, far_wait(op->t));
}


/* The last READ of a batch, and the wait. */
static int read_now(dolphin_op *op, far_addr addr, void *to, size_t bytes, unsigned flags) {
    op->mark = far_rdwc_mark(op->t);
    return note_loss(op, far_read_now(op->t, addr, to, bytes, flags));
}


int dolphin_cas(dolphin_op *op, far_addr addr, uint64_t expected, uint64_t desired, uint64_t *old) {
    op->mark = far_rdwc_mark(op->t);
    return note_loss(op, far_cas_word(op->t, addr, expected, desired, old));
}


/* What was seen under the old pin says nothing any more. */
int dolphin_renew_pin(dolphin_op *op) {
    far_pin_drop(op->t);
    return far_pin_take(op->t);
}


int dolphin_again(dolphin_op *op) {
    unsigned attempt = op->attempt++;
    far_count_retry(op->t);
    far_back_off(op->t, attempt < 6 ? attempt : 6);
    return op->attempt % op->st->patience == 0 ? dolphin_renew_pin(op) : 0;
}


int dolphin_odd(dolphin_op *op, far_addr addr, const char *what) {
    return ++op->odd > ODD_MAX ? dolphin_broken(op->index, addr, what) : dolphin_again(op);
}


/* One READ of a node. 1: it is that, and cached; 0: not any more. */
static int read_node(dolphin_op *op, uint64_t word, bool linked, dolphin_node *node) {
    int err = dolphin_put_read_node(op, word, node);
    if (err < 0 || (err = dolphin_wait(op)) < 0 || (err = dolphin_take_node(op, node, linked)) <= 0)
        return err;
    return 1;
}


void dolphin_keep_node(dolphin_op *op, const dolphin_node *node) {
    if (op->st->cache && !(node->image[0] & DOLPHIN_FROZEN))
        dolphin_cache_node(op->st->cache, op->key, far_epoch(op->t), node);
}


/* The spot is at this node, which is fresh. */
static int arrive(dolphin_op *op, dolphin_spot *s, const dolphin_node *node) {
    s->node = *node;
    s->parent = node->word;
    s->depth = node->depth;
    s->fresh = true;
    s->position = dolphin_position(op->key, node->depth);
    int at = dolphin_lookup(node, s->position);
    s->entry = at < 0 ? 0 : node->entries[at];
    dolphin_keep_node(op, node);
    return 0;
}


/* The node that the spot is at came from the cache: READs it through its own word, or one above it. */
static int refresh(dolphin_op *op, dolphin_spot *s) {
    dolphin_node node;
    far_count_stale(op->t);
    for (unsigned steps = 0; steps < STEPS_MAX; steps++) {
        bool root = s->parent == op->st->root;
        int err = read_node(op, s->parent, root, &node);
        if (err < 0)
            return err;
        if (err == 1 && dolphin_has_prefix_of(&node, op->key)) {
            s->above = 0;
            return arrive(op, s, &node);
        }
        if (root)
            return dolphin_broken(op->index, dolphin_entry_addr(s->parent), "root");
        dolphin_hint hint;
        dolphin_cache_drop(op->st->cache, op->key, s->parent);
        s->parent = dolphin_cache_probe(op->st->cache, op->key, far_epoch(op->t), &hint) ? hint.node : op->st->root;
    }
    return dolphin_broken(op->index, op->index->descriptor, "cache");
}


/* The entry names a node. 0: the spot is there now, or at its end (*ended); AGAIN: the node was replaced meanwhile. */
static int step_down(dolphin_op *op, dolphin_spot *s, bool *ended) {
    dolphin_node node;
    int err = read_node(op, s->entry, s->fresh, &node);
    if (err < 0)
        return err;
    if (err == 0)
        return s->fresh ? AGAIN : refresh(op, s);
    if (node.depth <= s->depth)
        return dolphin_broken(op->index, dolphin_entry_addr(s->entry), "node");
    if (dolphin_has_prefix_of(&node, op->key)) {
        s->above = s->parent;
        return arrive(op, s, &node);
    }
    if (!s->fresh)
        return refresh(op, s);
    s->child = node;
    s->outcome = DOLPHIN_AT_PATH;
    *ended = true;
    return 0;
}


static int try_to_locate(dolphin_op *op, bool fresh, dolphin_spot *s) {
    dolphin_hint hint;
    bool known = op->st->cache && dolphin_cache_probe(op->st->cache, op->key, far_epoch(op->t), &hint), ended = false;
    int err = 0;
    s->fresh = false;
    s->above = 0;
    s->parent = known ? hint.node : op->st->root;
    s->depth = known ? hint.depth : 0;
    s->position = dolphin_position(op->key, s->depth);
    s->entry = known ? hint.entry : 0;
    for (unsigned steps = 0; steps < STEPS_MAX && !ended; steps++) {
        unsigned kind = dolphin_entry_kind(s->entry);
        if (!dolphin_entry_may_cover(s->entry, s->position)) {
            if (s->fresh)
                return AGAIN; /* the READ of the node fell into a change of it */
            err = refresh(op, s);
        } else if (kind >= DOLPHIN_NODE) {
            err = step_down(op, s, &ended);
        } else if (!s->fresh && (fresh || kind == DOLPHIN_NULL)) {
            err = refresh(op, s);
        } else {
            s->outcome = kind == DOLPHIN_NULL ? DOLPHIN_AT_NULL : DOLPHIN_AT_LEAF;
            ended = true;
        }
        if (err != 0)
            return err;
    }
    return ended ? 0 : dolphin_broken(op->index, op->index->descriptor, "tree");
}


/* fresh: the node is to be READ, whatever the cache says. */
int dolphin_locate(dolphin_op *op, bool fresh, dolphin_spot *spot) {
    for (unsigned attempt = 0;; attempt++) {
        int err = try_to_locate(op, fresh, spot);
        if (err != AGAIN) {
            if (op->st->cache && err == 0)
                far_count_cache(op->t, !spot->fresh);
            return err;
        }
        if ((err = dolphin_odd(op, dolphin_entry_addr(spot->parent), "node")) < 0)
            return err;
    }
}


int dolphin_put_read_leaf(dolphin_op *op, uint64_t entry, dolphin_leaf *leaf) {
    *leaf = (dolphin_leaf){.entry = entry, .addr = dolphin_entry_addr(entry), .whole = true};
    if (!far_task_reaches(op->t, leaf->addr, op->st->leaf_bytes))
        return dolphin_broken(op->index, leaf->addr, "leaf");
    if (!(leaf->image = far_scratch(op->t, op->st->leaf_bytes)))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    far_read(op->t, leaf->addr, leaf->image, op->st->leaf_bytes);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return 0;
}


int dolphin_read_leaf(dolphin_op *op, uint64_t entry, dolphin_leaf *leaf) {
    int err = dolphin_put_read_leaf(op, entry, leaf);
    return err < 0 ? err : dolphin_wait(op);
}


/* The key is one of those that the leaf is for. */
bool dolphin_leaf_covers(const dolphin_op *op, const dolphin_leaf *leaf, uint64_t ident) {
    unsigned depth = dolphin_ident_depth(ident), position = dolphin_position(op->key, depth);
    return dolphin_leaf_ident_is_sound(ident, op->st->slots) && op->key.length >= depth &&
           dolphin_ident_lo(ident) <= position && position <= dolphin_ident_hi(ident) &&
           leaf->image[2] == dolphin_prefix_word(op->st, op->key.data, depth);
}


/* The key word is that of the key, LIVE, in the leaf of this entry; only of keys that need no block. The depth of a
 * leaf is that of its node, which the cache knows. */
bool dolphin_is_held_by(const dolphin_op *op, unsigned depth, uint64_t kword) {
    return op->key.length >= depth && op->key.length - depth <= DOLPHIN_INLINE_MAX &&
           kword == dolphin_with_state(dolphin_inline_kword(op->key, depth), DOLPHIN_HELD);
}


/* A LIVE slot whose value was READ before it was there (POISON, or 0), or is there no more. */
static int look_again(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, uint64_t *vword) {
    uint64_t kword;
    far_point(op->t, "dolphin:look_again");
    far_read(op->t, dolphin_key_at(leaf->addr, slot), &kword, 8);
    return read_now(op, dolphin_value_at(leaf->addr, op->st->slots, slot), vword, 8, 0);
}


static int give_word(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, far_out *out) {
    uint64_t vword = dolphin_vwords(op, leaf)[slot];
    if (vword == op->st->poison) {
        int err = look_again(op, leaf, slot, &vword);
        if (err < 0)
            return err;
    }
    return far_out_give(out, &vword, 8);
}


/* Key blocks and value blocks of all candidates together. */
static int answer_from_blocks(dolphin_op *op, const dolphin_leaf *leaf, const unsigned found[], unsigned count,
                              far_out *out) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    uint8_t *keys[DOLPHIN_SLOTS_MAX], *values[DOLPHIN_SLOTS_MAX];
    uint64_t vwords[DOLPHIN_SLOTS_MAX];
    int err;
    for (unsigned i = 0; i < count; i++) {
        vwords[i] = dolphin_vwords(op, leaf)[found[i]];
        keys[i] = NULL;
        if (!op->st->words && vwords[i] == 0 && (err = look_again(op, leaf, found[i], &vwords[i])) < 0)
            return err;
    }
    for (unsigned i = 0; i < count; i++) {
        err = dolphin_put_read_value(op, vwords[i], &values[i]);
        if (err == 0 && dolphin_kword_is_block(kwords[found[i]]))
            err = dolphin_put_read_key(op, kwords[found[i]], &keys[i]);
        if (err < 0) {
            far_forget(op->t);
            return err;
        }
    }
    if ((err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < count; i++) {
        far_bytes key = op->key, value = {&vwords[i], 0};
        if (keys[i] && (err = dolphin_take_key(op, kwords[found[i]], keys[i], &key)) < 0)
            return err;
        if (far_bytes_compare(key, op->key) != 0)
            continue;
        if (op->st->words)
            return give_word(op, leaf, found[i], out);
        if (vwords[i] == 0)
            return FAR_ERR_NOT_FOUND;
        if ((err = dolphin_take_value(op, op->key, vwords[i], values[i], &value)) < 0)
            return err;
        return far_out_give(out, value.data, value.length);
    }
    return FAR_ERR_NOT_FOUND;
}


/* The highest slot wins: of two lives of a key in one READ it is the later one. */
int dolphin_answer(dolphin_op *op, const dolphin_leaf *leaf, far_out *out) {
    unsigned found[DOLPHIN_SLOTS_MAX];
    unsigned count = dolphin_candidates(op, leaf, DOLPHIN_STATE_BIT(DOLPHIN_HELD), found);
    if (count == 0)
        return FAR_ERR_NOT_FOUND;
    bool block = dolphin_kword_is_block(dolphin_kwords(leaf)[found[0]]);
    if (!block) {
        dolphin_hint_set(op, leaf->entry, found[0]);
        dolphin_hint_set_word(op, leaf->entry, found[0], dolphin_vwords(op, leaf)[found[0]]);
    }
    if (!block && op->st->words)
        return give_word(op, leaf, found[0], out);
    if (!block)
        count = 1;
    return answer_from_blocks(op, leaf, found, count, out);
}


/* A leaf that was READ through this entry: 0, it speaks for the key; or STALE, IS_FROZEN. */
int dolphin_accept_leaf(const dolphin_op *op, const dolphin_leaf *leaf) {
    uint64_t spear = dolphin_spear(leaf);
    if (!dolphin_is_life(spear, leaf->entry))
        return DOLPHIN_STALE;
    if (spear & DOLPHIN_FROZEN)
        return DOLPHIN_IS_FROZEN;
    return dolphin_leaf_covers(op, leaf, dolphin_ident(leaf)) ? 0 : DOLPHIN_STALE;
}


/* The three words of the slot that the hint names, in this order: a leaf that is seen to speak for the key, then the
 * key, then its value. 0 or FAR_ERR_TOO_SMALL: that was it; 1: it was not. */
static int get_by_hint(dolphin_op *op, const dolphin_spot *spot, unsigned slot, far_out *out) {
    uint64_t entry = spot->entry;
    far_addr leaf = dolphin_entry_addr(entry);
    uint64_t spear, kword, vword;
    uint8_t *block;
    far_bytes value = {&vword, 8};
    far_read_marked(op->t, leaf, &spear, 8, FAR_VERB_UNPROVEN);
    far_read_marked(op->t, dolphin_key_at(leaf, slot), &kword, 8, FAR_VERB_UNPROVEN);
    int err = read_now(op, dolphin_value_at(leaf, op->st->slots, slot), &vword, 8, FAR_VERB_UNPROVEN);
    if (err < 0)
        return err;
    if (!dolphin_is_life(spear, entry) || (spear & DOLPHIN_FROZEN) ||
        !dolphin_is_held_by(op, dolphin_leaf_depth(spot->depth), kword) || (!op->st->words && vword == 0))
        return 1;
    far_rdwc_done(op->t, op->mark);
    if (op->st->words)
        return far_out_give(out, &vword, 8);
    dolphin_hint_set_word(op, entry, slot, vword);
    if ((err = dolphin_put_read_value(op, vword, &block)) < 0 || (block && (err = dolphin_wait(op)) < 0) ||
        (err = dolphin_take_value(op, op->key, vword, block, &value)) < 0)
        return err;
    return far_out_give(out, value.data, value.length);
}


/* What a leaf says, as it was READ in that batch or later. */
static int answer_as_of(dolphin_op *op, uint32_t mark, const dolphin_leaf *leaf, far_out *out) {
    int err = dolphin_answer(op, leaf, out);
    far_rdwc_done(op->t, mark);
    return err;
}


int dolphin_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    dolphin_op op;
    dolphin_spot spot;
    dolphin_leaf leaf = {0}, kept = {0}; /* kept: READ when it was frozen already */
    uint32_t kept_mark = 0;
    dolphin_begin(&op, t, index, key);
    far_scratch_mark here = far_scratch_here(t);
    for (bool fresh = false;; fresh = true) {
        unsigned renewed = op.attempt / op.st->patience;
        int err = dolphin_locate(&op, fresh, &spot);
        if (err < 0)
            return err;
        if (spot.outcome != DOLPHIN_AT_LEAF)
            return FAR_ERR_NOT_FOUND;
        if (op.attempt / op.st->patience != renewed)
            kept.entry = 0;
        if (kept.entry && dolphin_entry_same(kept.entry, spot.entry) && dolphin_leaf_covers(&op, &kept, kept.image[1]))
            return answer_as_of(&op, kept_mark, &kept, out);
        int slot = op.st->hints && !fresh ? dolphin_hint_slot(&op, spot.entry) : -1;
        if (slot >= 0 && (err = get_by_hint(&op, &spot, (unsigned)slot, out)) != 1)
            return err;
        if ((err = dolphin_read_leaf(&op, spot.entry, &leaf)) < 0)
            return err;
        far_point(t, "dolphin:leaf_read");
        if ((err = dolphin_accept_leaf(&op, &leaf)) == 0)
            return answer_as_of(&op, op.mark, &leaf, out);
        kept.entry = 0;
        kept_mark = op.mark;
        if (err == DOLPHIN_IS_FROZEN)
            kept = leaf;
        if (fresh && (err = dolphin_odd(&op, leaf.addr, "leaf")) < 0)
            return err;
        if (op.attempt && op.attempt % op.st->patience == 0) { /* under a new pin */
            kept.entry = 0;
            far_scratch_back(t, here);
        }
    }
}


#define MANY_BYTES (256u << 10) /* of value blocks that are READ together; the rest is left to each get */

typedef struct wanted { /* one of many gets */
    dolphin_leaf *leaf; /* NULL: not known */
    uint64_t vword;     /* 0: not found, or to be done alone */
    uint8_t *block;
} wanted;


/* What the leaf says, if that takes no further look at it. A block's READ is put. */
static int look_at_one(dolphin_op *op, wanted *w, uint64_t *bytes, int *result) {
    unsigned found[DOLPHIN_SLOTS_MAX];
    if (!w->leaf || dolphin_accept_leaf(op, w->leaf) != 0)
        return 0;
    unsigned count = dolphin_candidates(op, w->leaf, DOLPHIN_STATE_BIT(DOLPHIN_HELD), found);
    uint64_t vword = count ? dolphin_vwords(op, w->leaf)[found[0]] : 0, missing = op->st->words ? op->st->poison : 0;
    if (count == 0)
        *result = FAR_ERR_NOT_FOUND;
    if (count == 0 || dolphin_kword_is_block(dolphin_kwords(w->leaf)[found[0]]) || vword == missing)
        return 0;
    if (!op->st->words && dolphin_value_is_block(vword) && (*bytes += dolphin_value_block_bytes(vword)) > MANY_BYTES)
        return 0;
    *result = 0; /* until its value says something else */
    w->vword = vword;
    return dolphin_put_read_value(op, vword, &w->block);
}


static int give_one(dolphin_op *op, const wanted *w, far_out *out) {
    far_bytes value = {&w->vword, 8};
    int err = op->st->words ? 0 : dolphin_take_value(op, op->key, w->vword, w->block, &value);
    return err < 0 ? err : far_out_give(out, value.data, value.length);
}


/* The leaves that the cache knows for the keys, each once. */
static int put_read_leaves(dolphin_op *op, size_t count, const far_bytes keys[], wanted *w, dolphin_leaf *leaves) {
    dolphin_hint hint;
    size_t known = 0, k;
    for (size_t i = 0; i < count; i++) {
        w[i] = (wanted){0};
        if (!dolphin_cache_probe(op->st->cache, keys[i], far_epoch(op->t), &hint) ||
            dolphin_entry_kind(hint.entry) != DOLPHIN_LEAF)
            continue;
        for (k = 0; k < known && !dolphin_entry_same(leaves[k].entry, hint.entry); k++)
            ;
        int err = k < known ? 0 : dolphin_put_read_leaf(op, hint.entry, &leaves[known++]);
        if (err < 0)
            return err;
        w[i].leaf = &leaves[k];
    }
    return 0;
}


/* Those whose leaves the cache knows in one batch, their value blocks in another; the others each for itself. With
 * RDWC all of them do, where that spares READs: what others read at the same time is not read again. */
int dolphin_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                     int results[]) {
    dolphin_op op;
    uint64_t bytes = 0;
    dolphin_begin(&op, t, index, keys[0]);
    for (size_t i = 0; i < count; i++)
        results[i] = FAR_GET_ALONE;
    if (!op.st->cache || far_rdwc_spares_reads(t))
        return 0;
    dolphin_leaf *leaves = far_scratch(t, count * sizeof(*leaves));
    wanted *w = far_scratch(t, count * sizeof(*w));
    if (!leaves || !w)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for leaves");
    int err = put_read_leaves(&op, count, keys, w, leaves);
    if (err == 0)
        err = dolphin_wait(&op);
    for (size_t i = 0; i < count && err == 0; i++) {
        op.key = keys[i];
        err = look_at_one(&op, &w[i], &bytes, &results[i]);
    }
    if (err == 0 && bytes)
        err = dolphin_wait(&op);
    if (err < 0)
        far_forget(t);
    for (size_t i = 0; i < count && err == 0; i++) {
        far_count_cache(t, results[i] != FAR_GET_ALONE);
        op.key = keys[i];
        if (results[i] == 0)
            results[i] = give_one(&op, &w[i], outs[i]);
    }
    return err < 0 ? err : 0;
}
