/* Locating a key, and gets. dolphin_locate starts at the deepest node that the cache contains, or at the root, and
 * descends to the entry for the key. All operations begin with dolphin_locate.
 *
 * A node is proven if it was READ in this operation and was linked at that moment. This holds in two cases: the node is
 * not frozen, because a client freezes a node before it unlinks the node; or the entry word that names the node was
 * READ from a proven node. Only a proven node can prove that a key is absent.
 *
 * A leaf is authoritative for its keys (a get may trust it) if it is LIVE, has the tag of the entry, and is not frozen.
 * The age of the entry does not matter. A frozen leaf is authoritative if a proven node that was READ after the leaf
 * still names the leaf. Therefore gets and scans never wait for a structure change. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch/epoch.h"

enum { TORN = 1 };

#define INCONSISTENT_MAX 100
/* limit for one search, counting visited nodes and outdated cache entries; beyond it the index counts as damaged */
#define STEPS_MAX 1024


void dolphin_begin_op(dolphin_op *op, far_task *t, far_index *index, far_bytes key) {
    *op = (dolphin_op){.t = t,
                       .index = index,
                       .st = dolphin_state_of(index),
                       .key = key,
                       .ticket = DOLPHIN_NO_TICKET,
                       .last_ticket = DOLPHIN_NO_TICKET};
}


static inline int note_session_loss(dolphin_op *op, int err) {
    if (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE)
        op->session_lost = true;
    return err;
}


int dolphin_wait(dolphin_op *op) {
    op->last_mark = far_rdwc_mark(op->t);
    return note_session_loss(op, far_wait(op->t));
}


/* Appends the last READ of a batch and waits. */
static int read_and_wait(dolphin_op *op, far_addr addr, void *to, size_t bytes, unsigned flags) {
    op->last_mark = far_rdwc_mark(op->t);
    return note_session_loss(op, far_read_now(op->t, addr, to, bytes, flags));
}


int dolphin_cas_and_wait(dolphin_op *op, far_addr addr, uint64_t expected, uint64_t desired, uint64_t *old) {
    op->last_mark = far_rdwc_mark(op->t);
    return note_session_loss(op, far_cas_word(op->t, addr, expected, desired, old));
}


/* Replaces the pin. Pointers that were READ under the old pin must not be used any more. */
int dolphin_renew_pin(dolphin_op *op) {
    far_pin_drop(op->t);
    return far_pin_take(op->t);
}


int dolphin_back_off(dolphin_op *op) {
    unsigned attempt = op->attempt++;
    far_count_retry(op->t);
    far_back_off(op->t, attempt < 6 ? attempt : 6);
    return op->attempt % op->st->attempts_per_pin == 0 ? dolphin_renew_pin(op) : 0;
}


int dolphin_retry_inconsistent(dolphin_op *op, far_addr addr, const char *what) {
    return ++op->inconsistent_reads > INCONSISTENT_MAX ? dolphin_fail_corrupt(op->index, addr, what)
                                                       : dolphin_back_off(op);
}


/* READs and validates a node. Returns 1 if the memory still holds this node, 0 if it was replaced. */
static int read_and_cache_node(dolphin_op *op, uint64_t word, bool linked, dolphin_node *node) {
    int err = dolphin_batch_read_node(op, word, node);
    if (err < 0 || (err = dolphin_wait(op)) < 0 || (err = dolphin_validate_node(op, node, linked)) <= 0)
        return err;
    return 1;
}


void dolphin_cache_unless_frozen(dolphin_op *op, const dolphin_node *node) {
    if (op->st->cache && !(node->image[0] & DOLPHIN_FROZEN))
        dolphin_cache_insert(op->st->cache, op->key, far_epoch(op->t), node);
}


/* Sets the location to this node, which was just READ and is proven. */
static int set_location_at(dolphin_op *op, dolphin_location *s, const dolphin_node *node) {
    s->node = *node;
    s->node_word = node->word;
    s->depth = node->depth;
    s->node_is_fresh = true;
    s->position = dolphin_position(op->key, node->depth);
    int at = dolphin_find_entry(node, s->position);
    s->entry = at < 0 ? 0 : node->entries[at];
    dolphin_cache_unless_frozen(op, node);
    return 0;
}


/* READs the node of the location again, because it came from the cache. If the node was replaced, tries the next cached
 * ancestor, and finally the root, until it finds a node that covers the key. */
static int reread_node(dolphin_op *op, dolphin_location *s) {
    dolphin_node node;
    far_count_stale(op->t);
    for (unsigned steps = 0; steps < STEPS_MAX; steps++) {
        bool root = s->node_word == op->st->root;
        int err = read_and_cache_node(op, s->node_word, root, &node);
        if (err < 0)
            return err;
        if (err == 1 && dolphin_node_has_prefix_of(&node, op->key)) {
            s->parent_word = 0;
            return set_location_at(op, s, &node);
        }
        if (root)
            return dolphin_fail_corrupt(op->index, dolphin_entry_addr(s->node_word), "root");
        dolphin_cache_hit hit;
        dolphin_cache_drop(op->st->cache, op->key, s->node_word);
        s->node_word = dolphin_cache_probe(op->st->cache, op->key, far_epoch(op->t), &hit) ? hit.node : op->st->root;
    }
    return dolphin_fail_corrupt(op->index, op->index->descriptor, "cache");
}


/* Descends to the node that the entry names. Returns 0 if the location is now at that child. Also returns 0, with
 * *ended set, if the search ends because the prefix of the child differs from the key. Returns TORN if the child was
 * replaced meanwhile. */
static int descend_to_child(dolphin_op *op, dolphin_location *s, bool *ended) {
    dolphin_node node;
    int err = read_and_cache_node(op, s->entry, s->node_is_fresh, &node);
    if (err < 0)
        return err;
    if (err == 0)
        return s->node_is_fresh ? TORN : reread_node(op, s);
    if (node.depth <= s->depth)
        return dolphin_fail_corrupt(op->index, dolphin_entry_addr(s->entry), "node");
    if (dolphin_node_has_prefix_of(&node, op->key)) {
        s->parent_word = s->node_word;
        return set_location_at(op, s, &node);
    }
    if (!s->node_is_fresh)
        return reread_node(op, s);
    s->child = node;
    s->outcome = DOLPHIN_AT_DIVERGENCE;
    *ended = true;
    return 0;
}


static int try_to_locate(dolphin_op *op, bool fresh, dolphin_location *s) {
    dolphin_cache_hit hit;
    bool known = op->st->cache && dolphin_cache_probe(op->st->cache, op->key, far_epoch(op->t), &hit), ended = false;
    int err = 0;
    s->node_is_fresh = false;
    s->parent_word = 0;
    s->node_word = known ? hit.node : op->st->root;
    s->depth = known ? hit.depth : 0;
    s->position = dolphin_position(op->key, s->depth);
    s->entry = known ? hit.entry : 0;
    for (unsigned steps = 0; steps < STEPS_MAX && !ended; steps++) {
        unsigned kind = dolphin_entry_kind(s->entry);
        if (!dolphin_entry_may_cover(s->entry, s->position)) {
            if (s->node_is_fresh)
                return TORN; /* the entries of the node were READ while another client changed them */
            err = reread_node(op, s);
        } else if (kind >= DOLPHIN_KIND_NODE) {
            err = descend_to_child(op, s, &ended);
        } else if (!s->node_is_fresh && (fresh || kind == DOLPHIN_KIND_NULL)) {
            err = reread_node(op, s);
        } else {
            s->outcome = kind == DOLPHIN_KIND_NULL ? DOLPHIN_AT_NULL : DOLPHIN_AT_LEAF;
            ended = true;
        }
        if (err != 0)
            return err;
    }
    return ended ? 0 : dolphin_fail_corrupt(op->index, op->index->descriptor, "tree");
}


int dolphin_locate(dolphin_op *op, bool fresh, dolphin_location *location) {
    for (unsigned attempt = 0;; attempt++) {
        int err = try_to_locate(op, fresh, location);
        if (err != TORN) {
            if (op->st->cache && err == 0)
                far_count_cache(op->t, !location->node_is_fresh);
            return err;
        }
        if ((err = dolphin_retry_inconsistent(op, dolphin_entry_addr(location->node_word), "node")) < 0)
            return err;
    }
}


int dolphin_batch_read_leaf(dolphin_op *op, uint64_t entry, dolphin_leaf *leaf) {
    *leaf = (dolphin_leaf){.entry = entry, .addr = dolphin_entry_addr(entry), .whole = true};
    if (!far_task_reaches(op->t, leaf->addr, op->st->leaf_bytes))
        return dolphin_fail_corrupt(op->index, leaf->addr, "leaf");
    if (!(leaf->image = far_scratch(op->t, op->st->leaf_bytes)))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    far_read(op->t, leaf->addr, leaf->image, op->st->leaf_bytes);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return 0;
}


int dolphin_read_leaf(dolphin_op *op, uint64_t entry, dolphin_leaf *leaf) {
    int err = dolphin_batch_read_leaf(op, entry, leaf);
    return err < 0 ? err : dolphin_wait(op);
}


/* Returns true if the prefix and the interval of the leaf cover op->key. */
bool dolphin_leaf_covers(const dolphin_op *op, const dolphin_leaf *leaf, uint64_t ident) {
    unsigned depth = dolphin_ident_depth(ident), position = dolphin_position(op->key, depth);
    return dolphin_leaf_ident_is_sound(ident, op->st->slots) && op->key.length >= depth &&
           dolphin_ident_lo(ident) <= position && position <= dolphin_ident_hi(ident) &&
           leaf->image[2] == dolphin_prefix_word(op->st, op->key.data, depth);
}


/* Returns true if the key word is LIVE and holds op->key, in a leaf of this depth. Always false for a key that needs a
 * key block. Callers take the depth from the node above the leaf, which the cache contains. */
bool dolphin_kword_is_live_key(const dolphin_op *op, unsigned depth, uint64_t kword) {
    return op->key.length >= depth && op->key.length - depth <= DOLPHIN_INLINE_MAX &&
           kword == dolphin_kword_with_state(dolphin_inline_kword(op->key, depth), DOLPHIN_SLOT_LIVE);
}


/* READs the value word of a LIVE slot again, after its key word. The value word that was READ first was POISON or 0,
 * because it was READ before the insert wrote the value, or after a delete removed it. */
static int reread_value(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, uint64_t *vword) {
    uint64_t kword;
    far_point(op->t, "dolphin:read_pair_again");
    far_read(op->t, dolphin_kword_addr(leaf->addr, slot), &kword, 8);
    return read_and_wait(op, dolphin_vword_addr(leaf->addr, op->st->slots, slot), vword, 8, 0);
}


static int return_raw_value(dolphin_op *op, const dolphin_leaf *leaf, unsigned slot, far_out *out) {
    uint64_t vword = dolphin_vwords(op, leaf)[slot];
    if (vword == op->st->poison) {
        int err = reread_value(op, leaf, slot, &vword);
        if (err < 0)
            return err;
        if (vword == op->st->poison && op->index->lenient) /* damage has made an empty slot LIVE */
            return dolphin_fail_corrupt(op->index, leaf->addr, "leaf");
    }
    return far_out_give(out, &vword, 8);
}


/* Chooses among several candidates, or reads a value block. It READs the key blocks and value blocks of all candidates
 * in one batch. */
static int get_from_blocks(dolphin_op *op, const dolphin_leaf *leaf, const unsigned found[], unsigned count,
                           far_out *out) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    uint8_t *keys[DOLPHIN_SLOTS_MAX], *values[DOLPHIN_SLOTS_MAX];
    uint64_t vwords[DOLPHIN_SLOTS_MAX];
    int err;
    for (unsigned i = 0; i < count; i++) {
        vwords[i] = dolphin_vwords(op, leaf)[found[i]];
        keys[i] = NULL;
        if (!op->st->raw_values && vwords[i] == 0 && (err = reread_value(op, leaf, found[i], &vwords[i])) < 0)
            return err;
    }
    for (unsigned i = 0; i < count; i++) {
        err = dolphin_batch_read_value(op, vwords[i], &values[i]);
        if (err == 0 && dolphin_kword_is_block(kwords[found[i]]))
            err = dolphin_batch_read_key(op, kwords[found[i]], &keys[i]);
        if (err < 0) {
            far_discard_batch(op->t);
            return err;
        }
    }
    if ((err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < count; i++) {
        far_bytes key = op->key, value = {&vwords[i], 0};
        if (keys[i] && (err = dolphin_decode_key(op, kwords[found[i]], keys[i], &key)) < 0)
            return err;
        if (far_bytes_compare(key, op->key) != 0)
            continue;
        if (op->st->raw_values)
            return return_raw_value(op, leaf, found[i], out);
        if (vwords[i] == 0)
            return FAR_ERR_NOT_FOUND;
        if ((err = dolphin_decode_value(op, op->key, vwords[i], values[i], &value)) < 0)
            return err;
        return far_out_give(out, value.data, value.length);
    }
    return FAR_ERR_NOT_FOUND;
}


/* The candidate in the highest slot is the right one. If one READ shows the same key LIVE in two slots, the key was
 * deleted from the lower slot and inserted again in the higher one. */
int dolphin_get_from_leaf(dolphin_op *op, const dolphin_leaf *leaf, far_out *out) {
    unsigned found[DOLPHIN_SLOTS_MAX];
    unsigned count = dolphin_find_candidates(op, leaf, DOLPHIN_STATE_BIT(DOLPHIN_SLOT_LIVE), found);
    if (count == 0)
        return FAR_ERR_NOT_FOUND;
    bool block = dolphin_kword_is_block(dolphin_kwords(leaf)[found[0]]);
    if (!block) {
        dolphin_slot_hint_set(op, leaf->entry, found[0]);
        dolphin_slot_hint_set_value(op, leaf->entry, found[0], dolphin_vwords(op, leaf)[found[0]]);
    }
    if (!block && op->st->raw_values)
        return return_raw_value(op, leaf, found[0], out);
    if (!block)
        count = 1;
    return get_from_blocks(op, leaf, found, count, out);
}


int dolphin_classify_leaf(const dolphin_op *op, const dolphin_leaf *leaf) {
    uint64_t spear = dolphin_spear(leaf);
    if (!dolphin_control_matches(spear, leaf->entry))
        return DOLPHIN_LEAF_STALE;
    if (spear & DOLPHIN_FROZEN)
        return DOLPHIN_LEAF_FROZEN;
    return dolphin_leaf_covers(op, leaf, dolphin_ident(leaf)) ? 0 : DOLPHIN_LEAF_STALE;
}


/* Tries a get by slot hint. It READs three words in this order: the spear word, which shows whether the leaf is
 * authoritative, the key word, and the value word. Returns 1 if the hint does not apply; otherwise the result of the
 * get. */
static int get_by_hint(dolphin_op *op, const dolphin_location *location, unsigned slot, far_out *out) {
    uint64_t entry = location->entry;
    far_addr leaf = dolphin_entry_addr(entry);
    uint64_t spear, kword, vword;
    uint8_t *block;
    far_bytes value = {&vword, 8};
    far_read_marked(op->t, leaf, &spear, 8, FAR_VERB_UNPROVEN);
    far_read_marked(op->t, dolphin_kword_addr(leaf, slot), &kword, 8, FAR_VERB_UNPROVEN);
    int err = read_and_wait(op, dolphin_vword_addr(leaf, op->st->slots, slot), &vword, 8, FAR_VERB_UNPROVEN);
    if (err < 0)
        return err;
    if (!dolphin_control_matches(spear, entry) || (spear & DOLPHIN_FROZEN) ||
        !dolphin_kword_is_live_key(op, dolphin_leaf_depth(location->depth), kword) ||
        (!op->st->raw_values && vword == 0))
        return 1;
    far_rdwc_done(op->t, op->last_mark);
    if (op->st->raw_values)
        return far_out_give(out, &vword, 8);
    dolphin_slot_hint_set_value(op, entry, slot, vword);
    if ((err = dolphin_batch_read_value(op, vword, &block)) < 0 || (block && (err = dolphin_wait(op)) < 0) ||
        (err = dolphin_decode_value(op, op->key, vword, block, &value)) < 0)
        return err;
    return far_out_give(out, value.data, value.length);
}


/* Returns the result of a get from this leaf. `mark` is the RDWC number of the batch that READ the leaf, or of an
 * earlier one; the get linearizes at or after the posting of that batch. */
static int get_as_of_batch(dolphin_op *op, uint32_t mark, const dolphin_leaf *leaf, far_out *out) {
    int err = dolphin_get_from_leaf(op, leaf, out);
    far_rdwc_done(op->t, mark);
    return err;
}


int dolphin_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    dolphin_op op;
    dolphin_location location;
    /* frozen_leaf is a copy of a leaf that was frozen when it was READ; its entry is 0 if there is none. */
    dolphin_leaf leaf = {0}, frozen_leaf = {0};
    uint32_t frozen_mark = 0;
    dolphin_begin_op(&op, t, index, key);
    far_scratch_mark here = far_scratch_here(t);
    for (bool fresh = false;; fresh = true) {
        unsigned renewed = op.attempt / op.st->attempts_per_pin;
        int err = dolphin_locate(&op, fresh, &location);
        if (err < 0)
            return err;
        if (location.outcome != DOLPHIN_AT_LEAF)
            return FAR_ERR_NOT_FOUND;
        if (op.attempt / op.st->attempts_per_pin != renewed)
            frozen_leaf.entry = 0;
        if (frozen_leaf.entry && dolphin_entries_match(frozen_leaf.entry, location.entry) &&
            dolphin_leaf_covers(&op, &frozen_leaf, frozen_leaf.image[1]))
            return get_as_of_batch(&op, frozen_mark, &frozen_leaf, out);
        int slot = op.st->slot_hints && !fresh ? dolphin_slot_hint_get(&op, location.entry) : -1;
        if (slot >= 0 && (err = get_by_hint(&op, &location, (unsigned)slot, out)) != 1)
            return err;
        if ((err = dolphin_read_leaf(&op, location.entry, &leaf)) < 0)
            return err;
        far_point(t, "dolphin:leaf_read");
        if ((err = dolphin_classify_leaf(&op, &leaf)) == 0)
            return get_as_of_batch(&op, op.last_mark, &leaf, out);
        frozen_leaf.entry = 0;
        frozen_mark = op.last_mark;
        if (err == DOLPHIN_LEAF_FROZEN)
            frozen_leaf = leaf;
        if (fresh && (err = dolphin_retry_inconsistent(&op, leaf.addr, "leaf")) < 0)
            return err;
        if (op.attempt && op.attempt % op.st->attempts_per_pin == 0) { /* the last back-off has renewed the pin */
            frozen_leaf.entry = 0;
            far_scratch_back(t, here);
        }
    }
}


#define MANY_BYTES (256u << 10) /* limit on the bytes of value blocks in one batch; gets beyond it run one by one */

typedef struct multi_get { /* the state of one key in dolphin_get_many */
    dolphin_leaf *leaf;    /* copy of the leaf that the cache names for this key; NULL: the cache names none */
    uint64_t vword;        /* value word of the key; 0: the key was not found, or is left to a get of its own */
    uint8_t *block;
} multi_get;


/* Looks up the key in the leaf that was READ for it. Sets *result if the leaf answers the get without further READs,
 * and appends the READ of the value block if there is one. Otherwise *result stays FAR_GET_ALONE. */
static int find_in_known_leaf(dolphin_op *op, multi_get *w, uint64_t *bytes, int *result) {
    unsigned found[DOLPHIN_SLOTS_MAX];
    if (!w->leaf || dolphin_classify_leaf(op, w->leaf) != 0)
        return 0;
    unsigned count = dolphin_find_candidates(op, w->leaf, DOLPHIN_STATE_BIT(DOLPHIN_SLOT_LIVE), found);
    uint64_t vword = count ? dolphin_vwords(op, w->leaf)[found[0]] : 0,
             missing = op->st->raw_values ? op->st->poison : 0;
    if (count == 0)
        *result = FAR_ERR_NOT_FOUND;
    if (count == 0 || dolphin_kword_is_block(dolphin_kwords(w->leaf)[found[0]]) || vword == missing)
        return 0;
    if (!op->st->raw_values && dolphin_value_is_block(vword) &&
        (*bytes += dolphin_value_block_bytes(vword)) > MANY_BYTES)
        return 0;
    *result = 0; /* This result becomes an error if the value block turns out to be invalid. */
    w->vword = vword;
    return dolphin_batch_read_value(op, vword, &w->block);
}


static int return_one_value(dolphin_op *op, const multi_get *w, far_out *out) {
    far_bytes value = {&w->vword, 8};
    int err = op->st->raw_values ? 0 : dolphin_decode_value(op, op->key, w->vword, w->block, &value);
    return err < 0 ? err : far_out_give(out, value.data, value.length);
}


/* Appends the READs of the leaves that the cache names for the keys. Each leaf is READ once, even if it covers several
 * keys. */
static int batch_read_known_leaves(dolphin_op *op, size_t count, const far_bytes keys[], multi_get *w,
                                   dolphin_leaf *leaves) {
    dolphin_cache_hit hit;
    size_t known = 0, k;
    for (size_t i = 0; i < count; i++) {
        w[i] = (multi_get){0};
        if (!dolphin_cache_probe(op->st->cache, keys[i], far_epoch(op->t), &hit) ||
            dolphin_entry_kind(hit.entry) != DOLPHIN_KIND_LEAF)
            continue;
        for (k = 0; k < known && !dolphin_entries_match(leaves[k].entry, hit.entry); k++)
            ;
        int err = k < known ? 0 : dolphin_batch_read_leaf(op, hit.entry, &leaves[known++]);
        if (err < 0)
            return err;
        w[i].leaf = &leaves[k];
    }
    return 0;
}


/* READs all leaves that the cache names for the keys in one batch, and their value blocks in a second batch. A key that
 * needs more keeps the result FAR_GET_ALONE, and the caller runs a get for it. If RDWC (read delegation and write
 * combining) can save READs in this handle, all keys are left to single gets, so that concurrent gets of one key share
 * a READ. */
int dolphin_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                     int results[]) {
    dolphin_op op;
    uint64_t bytes = 0;
    dolphin_begin_op(&op, t, index, keys[0]);
    for (size_t i = 0; i < count; i++)
        results[i] = FAR_GET_ALONE;
    if (!op.st->cache || far_rdwc_saves_reads(t))
        return 0;
    dolphin_leaf *leaves = far_scratch(t, count * sizeof(*leaves));
    multi_get *w = far_scratch(t, count * sizeof(*w));
    if (!leaves || !w)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for leaves");
    int err = batch_read_known_leaves(&op, count, keys, w, leaves);
    if (err == 0)
        err = dolphin_wait(&op);
    for (size_t i = 0; i < count && err == 0; i++) {
        op.key = keys[i];
        err = find_in_known_leaf(&op, &w[i], &bytes, &results[i]);
    }
    if (err == 0 && bytes)
        err = dolphin_wait(&op);
    if (err < 0)
        far_discard_batch(t);
    for (size_t i = 0; i < count && err == 0; i++) {
        far_count_cache(t, results[i] != FAR_GET_ALONE);
        op.key = keys[i];
        if (results[i] == 0)
            results[i] = return_one_value(&op, &w[i], outs[i]);
    }
    return err < 0 ? err : 0;
}
