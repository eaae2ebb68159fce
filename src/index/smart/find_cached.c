/* Searching through the cache begins at the deepest node or leaf that the cache names, without a way down from the
 * root. Objects at addresses from the cache may be anything by now, because their memory may have been reused. So a
 * leaf must certify itself and a node must be accepted (smart.h). If the object does not pass, the cached information
 * is stale; the search then tries the next shallower cached node, and finally the root (find.c). find.c calls
 * smart_find_through_cache. */
#include "base/error.h"
#include "index/smart/find.h"
#include "pool/epoch/epoch.h"

#include <string.h>


/* Posts the batch and waits until it has completed. The last READ of the batch is at an address from the cache. The
 * flag FAR_VERB_UNPROVEN informs the memory checker of the simulator that this READ may return memory in any state. */
static int wait_unproven(smart_op *op) {
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return smart_wait(op);
}


/* Returns whether a READ that showed this ctl word may have returned words of two incarnations. A READ of recycled
 * memory may do so if it is larger than the tearing granule (atomic_bytes). An object that was LIVE in a READ stays in
 * its incarnation while the reader is pinned, so all later READs of the object return that incarnation. READs of one
 * batch keep their order. So if the memory is known to be recycled, the ctl word is READ first in the same batch. */
bool smart_may_mix_incarnations(const smart_op *op, uint64_t ctl, far_addr addr, unsigned bytes) {
    if (!smart_ctl_is_recycled(ctl))
        return false;
    unsigned unit = far_task_capabilities(op->t)->atomic_bytes;
    return addr / unit != (addr + bytes - 1) / unit;
}


static void put_read_ctl(smart_op *op, far_addr addr, uint64_t *ctl) {
    far_read(op->t, addr, ctl, 8);
    far_mark(op->t, FAR_VERB_UNPROVEN);
}


static bool leaf_certifies_itself(const smart_op *op, const smart_leaf *leaf) {
    uint64_t chk;
    memcpy(&chk, leaf->image + smart_chk_offset(leaf->kind), 8);
    return smart_ctl_state(leaf->ctl) == SMART_LIVE && chk == smart_leaf_chk(op->st, leaf);
}


/* Returns whether the value belongs to the incarnation for which the checksum is correct. The checksum of VI and VR
 * leaves covers the value. The checksum of C8 and VW leaves does not, but there ctl, checksum and value are in the
 * first 32 bytes. (layout.h describes the four kinds of leaves.) */
static bool value_matches_incarnation(const smart_op *op, const smart_leaf *leaf) {
    return leaf->kind == SMART_VI || leaf->kind == SMART_VR ||
           !smart_may_mix_incarnations(op, leaf->ctl, leaf->addr, 32);
}


bool smart_leaf_is_certain(const smart_op *op, const smart_leaf *leaf) {
    return leaf_certifies_itself(op, leaf) && value_matches_incarnation(op, leaf);
}


int smart_abandon_batch(smart_op *op, int err) {
    far_discard_batch(op->t);
    return err;
}


/* Follows a cached word that names a leaf. Returns 0 if the spot is a HIT, and SMART_STALE if the leaf does not certify
 * itself. If `first` is not NULL, the leaf was already READ into s->leaf, and *first is the result of that READ. */
static int follow_cached_leaf(smart_op *op, smart_spot *s, uint64_t word, const int *first) {
    far_addr addr = smart_word_addr(word);
    unsigned class = smart_leaf_class(op->st, word);
    bool recycled = word & SMART_CACHED_RECYCLED;
    uint64_t ctl = 0;
    word &= ~SMART_CACHED_RECYCLED;
    for (unsigned reads = 0; reads < SMART_CHAIN_MAX; reads++) {
        smart_leaf *leaf = &s->leaf;
        if (recycled)
            put_read_ctl(op, addr, &ctl);
        int err = reads == 0 && first ? *first : smart_fetch_leaf(op, addr, class, FAR_VERB_UNPROVEN, leaf);
        if (err < 0) /* FAR_ERR_CORRUPT means that no leaf can have this address or class, so the word is stale. */
            return smart_abandon_batch(op, err == FAR_ERR_CORRUPT ? SMART_STALE : err);
        if (!smart_take_leaf(leaf, class))
            return SMART_STALE;
        if (!far_bytes_equal(leaf->key, op->key)) {
            /* Remembered only if the word itself names this leaf. A leaf that was reached through a chain has another
             * address. */
            if (reads == 0 && leaf_certifies_itself(op, leaf)) {
                op->other_leaf_word = word;
                op->other_leaf_key = leaf->key;
            }
            return SMART_STALE;
        }
        if (smart_ctl_state(leaf->ctl) == SMART_REPLACED) {
            addr = smart_ctl_forward(leaf->ctl);
            class = smart_ctl_forward_class(leaf->ctl);
            ctl = 0;
            continue;
        }
        if (!leaf_certifies_itself(op, leaf))
            return SMART_STALE;
        if (!value_matches_incarnation(op, leaf) && ctl != leaf->ctl) {
            /* The checksum does not cover the value of this leaf, so the image may contain the value of another
             * incarnation. The next turn of the loop READs the leaf again, with its ctl word first in the same batch:
             * if that word equals the ctl word of the image, the value is valid. */
            op->found_recycled = recycled = true;
            continue;
        }
        s->outcome = SMART_HIT;
        s->mark = op->mark;
        return 0;
    }
    return SMART_STALE;
}


/* One READ of a node at an address from the cache. Several of them can be put into one batch. */
typedef struct node_read {
    uint64_t word;
    unsigned depth; /* expected depth of the node, in bytes; 0: not known */
    bool with_slot; /* the node is a DIR node, and the slot for the key is READ together with the header */
    bool ctl_first;
    /* the cache should record that the DIR node was seen linked, even if the slot for the key is unbound */
    bool records_linked;
    unsigned bytes, part, first, count;
    uint64_t ctl, slots[SMART_NEIGHBOURS]; /* the slots first .. first + count - 1 of a DIR node */
    smart_node node;
    smart_leaf *leaf; /* a leaf that is READ after the node in the same batch; may be NULL */
} node_read;


/* the first slots of a DIR node are READ with its header, because one READ of 256 bytes is cheaper than two READs */
#define NEAR_HEADER_SLOTS 29u


/* Returns whether the wanted slot is so near to the header that one READ covers both. */
static bool slot_is_in_header_read(const node_read *l) {
    return l->with_slot && l->bytes > SMART_HEADER;
}


static int put_node_read(smart_op *op, node_read *l) {
    far_addr addr = smart_word_addr(l->word);
    if (l->ctl_first)
        put_read_ctl(op, addr, &l->ctl);
    int err = slot_is_in_header_read(l) ? smart_put_read_bytes(op, addr, l->bytes, &l->node)
                                        : smart_put_read_node(op, l->word, false, &l->node);
    if (err < 0)
        return err;
    if (l->with_slot && !slot_is_in_header_read(l)) {
        far_mark(op->t, FAR_VERB_UNPROVEN);
        far_read(op->t, smart_slot_addr(addr, l->first), l->slots, 8ull * l->count);
    }
    if (!l->leaf)
        return 0;
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return smart_put_read_leaf(op, l->leaf->addr, l->leaf->class, l->leaf);
}


/* Interprets the READ of a node after the wait. Returns 0 if the node is accepted, SMART_STALE if not, and
 * SMART_SEARCH_AGAIN if it must be READ again with its ctl word first, because it is in recycled memory. */
static int take_node_read(smart_op *op, node_read *l) {
    smart_node *node = &l->node;
    if (!smart_take_node(op, node) || smart_ctl_state(node->ctl) != SMART_LIVE || !smart_prefix_matches(op, node) ||
        (l->depth && node->depth != l->depth) || (l->ctl_first && node->ctl != l->ctl))
        return SMART_STALE;
    return !l->ctl_first && smart_may_mix_incarnations(op, node->ctl, node->addr, l->bytes) ? SMART_SEARCH_AGAIN : 0;
}


static int try_node_reads(smart_op *op, node_read *reads, unsigned count) {
    int err = 0;
    for (unsigned i = 0; i < count && err >= 0; i++) {
        if (i > 0)
            far_mark(op->t, FAR_VERB_UNPROVEN);
        err = put_node_read(op, &reads[i]);
    }
    if (err < 0)
        return smart_abandon_batch(op, err);
    if ((err = wait_unproven(op)) < 0)
        return err;
    for (unsigned i = 0; i < count && err != SMART_STALE; i++) {
        int taken = take_node_read(op, &reads[i]);
        reads[i].ctl_first = reads[i].ctl_first || taken == SMART_SEARCH_AGAIN;
        err = taken ? taken : err;
    }
    return err;
}


/* READs nodes at addresses from the cache in one batch. Returns 0 if all are accepted, and SMART_STALE if a node is
 * not. If a node is found to be in recycled memory, it is READ once more with its ctl word first, and the cache records
 * that its memory is recycled. */
static int read_unproven_nodes(smart_op *op, node_read *reads, unsigned count) {
    int err = try_node_reads(op, reads, count);
    if (err != SMART_SEARCH_AGAIN)
        return err;
    op->found_recycled = true;
    for (unsigned i = 0; i < count; i++)
        if (reads[i].depth && reads[i].ctl_first)
            smart_cache_mark_recycled(op->st->cache, op->key, reads[i].node.addr, reads[i].depth);
    return try_node_reads(op, reads, count);
}


/* Sets the spot to the slot of a DIR node, which is the deciding node and is accepted if the slot is not frozen. */
static int take_dir_slot(smart_op *op, smart_spot *s, const node_read *l) {
    const uint64_t *near = slot_is_in_header_read(l) ? smart_slots(&l->node) + l->first : l->slots;
    uint64_t word = near[l->part - l->first];
    if (l->node.layout != SMART_DIR || !smart_word_is_sound(word))
        return SMART_STALE;
    smart_spot_clear(s);
    smart_set_spot_node(s, &l->node, 0, 0);
    s->at = l->part;
    s->children = smart_count_children(near, l->count);
    s->slot = smart_slot_addr(l->node.addr, l->part);
    s->word = word;
    s->mark = op->mark;
    if (((word & SMART_BOUND) || l->records_linked) && !(word & SMART_FROZEN_BIT))
        smart_cache_store_word(op->st->cache, op->key, l->node.addr, l->depth, SMART_DIR,
                               word ? word : smart_tombstone(l->part), far_epoch(op->t));
    return 0;
}


/* Returns how many epochs ago the handle last saw the cached node linked, if it is a DIR node; otherwise a large
 * number. */
static int64_t epochs_since_linked(const smart_op *op, const smart_cached *cached) {
    if (cached->layout != SMART_DIR || !cached->node)
        return INT64_MAX;
    return (int64_t)(far_epoch(op->t) - smart_cache_linked_in(op->st->cache, op->key, cached->node, cached->depth));
}


/* Returns whether the memory of a DIR node that the handle saw linked so many epochs ago cannot be reused while this
 * operation is pinned. Let the handle have seen the node linked under a pin at T. While that pin is held, all pins are
 * at T-1 or later. So the node is retired under a pin at T-1 or later, and its memory is reused when all pins are at
 * T+2+SMART_NODE_EPOCHS or later. An operation pinned at T+1+SMART_NODE_EPOCHS or earlier ends before that. */
static bool node_keeps_memory(int64_t epochs) {
    return epochs <= 1 + SMART_NODE_EPOCHS;
}


/* READs only the slot for the key, without the header, of a DIR node whose memory cannot be reused. The address still
 * belongs to the node that the cache describes, so its prefix and layout are known. If the slot is not frozen, the node
 * is linked, because all slots of a DIR node are frozen before the node is unlinked. If the slot is frozen, the node
 * may have been unlinked before this operation began, so the result is SMART_STALE. */
static int accept_by_slot(smart_op *op, smart_spot *s, const smart_cached *cached, int64_t epochs, smart_leaf *leaf) {
    unsigned part = smart_part(op->key, cached->depth);
    node_read l = {.depth = cached->depth,
                   .records_linked = epochs > SMART_NODE_EPOCHS / 2,
                   .part = part,
                   .first = op->pairs_leaf ? smart_first_neighbour(part) : part,
                   .count = op->pairs_leaf ? SMART_NEIGHBOURS : 1,
                   .node = {.addr = cached->node, .depth = cached->depth, .layout = SMART_DIR}};
    far_read(op->t, smart_slot_addr(cached->node, l.first), l.slots, 8ull * l.count);
    int err = leaf ? smart_put_read_leaf(op, leaf->addr, leaf->class, leaf) : 0;
    if (err < 0)
        return smart_abandon_batch(op, err);
    if ((err = leaf ? wait_unproven(op) : smart_wait(op)) < 0)
        return err;
    return l.slots[part - l.first] & SMART_FROZEN_BIT ? SMART_STALE : take_dir_slot(op, s, &l);
}


/* READs a node at an address from the cache. Returns 0 if the node is accepted and is now the deciding node in the
 * spot, and SMART_STALE if it is not accepted. `leaf` is NULL, or a leaf that is READ after the node in the same
 * batch. */
static int accept_node(smart_op *op, smart_spot *s, uint64_t word, unsigned depth, smart_leaf *leaf) {
    unsigned type = smart_word_read_type(word), part = smart_part(op->key, depth);
    bool dir = type == SMART_READ_DIR;
    node_read l = {.word = word & ~SMART_CACHED_RECYCLED,
                   .depth = depth,
                   .with_slot = dir && depth,
                   .records_linked = true,
                   .ctl_first = word & SMART_CACHED_RECYCLED,
                   .bytes = dir ? SMART_HEADER : smart_read_bytes(type),
                   .part = part,
                   .first = op->pairs_leaf ? smart_first_neighbour(part) : part,
                   .count = op->pairs_leaf ? SMART_NEIGHBOURS : 1,
                   .leaf = leaf};
    if (!far_task_reaches(op->t, smart_word_addr(word), dir ? smart_layout_bytes(SMART_DIR) : l.bytes))
        return SMART_STALE;
    if (l.with_slot && !l.ctl_first && l.first + l.count <= NEAR_HEADER_SLOTS)
        l.bytes = SMART_HEADER + 8 * (l.first + l.count);
    int err = read_unproven_nodes(op, &l, 1);
    if (err != 0)
        return err;
    if (l.with_slot)
        return take_dir_slot(op, s, &l);
    smart_spot_clear(s);
    smart_set_spot_node(s, &l.node, 0, 0);
    return smart_look_up_slot(op, s, &l.node);
}


/* Returns whether the word names a DIR node that is one byte deeper than the node with this word. Its prefix then
 * follows from the word, so it is enough to READ the key's slot, without the header. */
static bool word_needs_only_slot(uint64_t word) {
    return smart_word_kind_of(word) == SMART_NODE && smart_word_read_type(word) == SMART_READ_DIR &&
           (word & SMART_GAP0);
}


/* Follows a cached word as far as possible without proof, through slots of DIR nodes to a leaf, or to a node that must
 * be accepted. If `first` is not NULL, the leaf that the word names was already READ into s->leaf, and *first is the
 * result of that READ. */
static __attribute__((noinline)) int follow_cached_word(smart_op *op, smart_spot *s, const smart_cached *cached,
                                                        const int *first) {
    uint64_t word = cached->word;
    smart_cached from = *cached; /* the cached node that contains the word */
    while (word_needs_only_slot(word)) {
        from = (smart_cached){.node = smart_word_addr(word), .depth = from.depth + 1, .layout = SMART_DIR};
        unsigned part = smart_part(op->key, from.depth);
        far_addr slot = smart_slot_addr(from.node, part);
        if (from.depth > op->key.length || !far_task_reaches(op->t, slot, 8))
            return SMART_STALE;
        op->mark = far_rdwc_mark(op->t);
        int err = far_read_now(op->t, slot, &word, 8, FAR_VERB_UNPROVEN);
        if (err < 0)
            return err;
        if ((word & SMART_FROZEN_BIT) || !smart_word_is_sound(word) || smart_word_kind_of(word) == SMART_NONE ||
            smart_word_part(word) != part)
            return SMART_STALE;
        smart_cache_store_word(op->st->cache, op->key, from.node, from.depth, SMART_DIR, word, 0);
    }
    bool leaf = smart_word_kind_of(word) == SMART_LEAF;
    int err = leaf ? follow_cached_leaf(op, s, word, first) : accept_node(op, s, word, 0, NULL);
    /* true if the chain led from the cached leaf to a successor */
    bool moved = err == 0 && leaf && s->leaf.addr != smart_word_addr(word);
    if (moved)
        word = smart_leaf_word(op->st, &s->leaf, smart_word_part(word));
    if (err == 0 && (op->found_recycled || moved))
        smart_cache_store_word(op->st->cache, op->key, from.node, from.depth, from.layout,
                               op->found_recycled ? word | SMART_CACHED_RECYCLED : word, 0);
    return err != 0 || leaf ? err : smart_descend(op, s);
}


/* Prepares the READ of the leaf that the cache names, after the READ of the deciding node in the same batch. Returns
 * whether the cache names such a leaf. If both are on one memory node, the READs keep their order, so the leaf is the
 * one that the slot of the deciding node names, in its current incarnation. On another memory node the leaf may be READ
 * before the deciding node, and the READ may return an earlier object. In that case the leaf may only be used for a CAS
 * of its ctl word, which fails if the object was an earlier one. */
static bool prepare_paired_leaf(const smart_op *op, const smart_cached *cached, smart_leaf *leaf) {
    far_addr addr = smart_word_addr(cached->word);
    unsigned class = smart_leaf_class(op->st, cached->word);
    *leaf = (smart_leaf){.addr = addr, .class = class};
    return smart_word_kind_of(cached->word) == SMART_LEAF && class < SMART_CLASSES &&
           far_task_reaches(op->t, addr, smart_class_bytes(class));
}


/* Called after the deciding node was accepted, when the leaf that the cache names was READ together with it. If the
 * node's slot names that leaf, and the leaf was LIVE, the slot still names the same incarnation, because a LIVE leaf
 * keeps its incarnation while the reader is pinned. */
static int take_paired_leaf(smart_op *op, smart_spot *s, uint64_t word, smart_leaf *leaf) {
    bool same = s->word == word && smart_take_leaf(leaf, leaf->class);
    bool mine = same && far_bytes_equal(leaf->key, op->key);
    bool hit = mine && (op->pairs_leaf ? smart_ctl_state(leaf->ctl) <= SMART_LIVE : smart_leaf_is_certain(op, leaf));
    far_count_cache(op->t, hit);
    if (same && !mine && leaf_certifies_itself(op, leaf)) {
        op->other_leaf_word = word;
        op->other_leaf_key = leaf->key;
    }
    if (!hit)
        return smart_descend(op, s);
    s->proven = true;
    s->outcome = SMART_HIT;
    s->leaf = *leaf;
    s->mark = op->mark;
    return 0;
}


/* Returns whether the leaf that the cache names probably has another key. If slot words contain fingerprints of keys,
 * the word itself shows this. */
static bool expects_leaf_of_other_key(const smart_op *op) {
    return op->expects_absent && !op->st->has_fingerprints;
}


/* Returns whether the search must begin at the cached node instead of following the node's word for the key. This is so
 * if the operation needs a proven result, or if the word probably names another key's leaf. */
static bool must_read_node(const smart_op *op, const smart_cached *cached) {
    bool others = smart_fingerprint_differs(op, cached->word) ||
                  (expects_leaf_of_other_key(op) && smart_word_kind_of(cached->word) == SMART_LEAF);
    return !cached->word || op->needs_proof || op->target_depth || (cached->node && others);
}


/* Returns whether the cached word names a leaf, which is the usual case, and the operation needs only that leaf. */
static inline bool leads_straight_to_leaf(const smart_op *op, const smart_cached *cached) {
    return smart_word_kind_of(cached->word) == SMART_LEAF && !(cached->word & SMART_CACHED_RECYCLED) &&
           !must_read_node(op, cached);
}


/* Searches from the cached node. READs the leaf that the cache names in the same batch if that may save a round trip.
 */
static int find_from_cached_node(smart_op *op, smart_spot *s, const smart_cached *cached) {
    unsigned type = smart_read_type_for(cached->words + 1, cached->layout, op->st->node_types);
    uint64_t word = smart_word(cached->node, 0, SMART_NODE, type) | (cached->recycled ? SMART_CACHED_RECYCLED : 0);
    bool foreign = smart_fingerprint_differs(op, cached->word);
    smart_leaf leaf;
    bool pair = (op->pairs_leaf || expects_leaf_of_other_key(op) || foreign) && !(foreign && op->never_inserts) &&
                prepare_paired_leaf(op, cached, &leaf);
    int64_t epochs = epochs_since_linked(op, cached);
    int err = node_keeps_memory(epochs) ? accept_by_slot(op, s, cached, epochs, pair ? &leaf : NULL)
                                        : accept_node(op, s, word, cached->depth, pair ? &leaf : NULL);
    if (err != 0)
        return err;
    if (pair)
        return take_paired_leaf(op, s, cached->word & ~SMART_CACHED_RECYCLED, &leaf);
    far_count_cache(op->t, false);
    return smart_descend(op, s);
}


/* Returns whether the deciding node is a full list according to the cache. An insert will replace such a node, and for
 * that it needs the slot that names the node. */
static bool node_is_full_list(const smart_op *op, const smart_cached *cached) {
    return cached->node && !cached->word && !op->target_depth && !op->needs_proof && !op->never_inserts &&
           cached->layout != SMART_DIR && cached->words >= smart_layout_slots(cached->layout);
}


/* Called for an insert that will replace the deciding node by a CAS of a slot in the DIR node above it. READs the
 * header of that DIR node and the whole deciding node in one batch. The header is not READ if the memory of the DIR
 * node cannot be reused. The slot need not be READ, because the CAS compares it with the expected word, which is not
 * frozen. The expected word follows from the cache, except for the size hint, which other clients may have changed;
 * smart_replace handles that case. */
static int find_from_parent_and_node(smart_op *op, smart_spot *s, const smart_cached *above) {
    unsigned part = smart_part(op->key, above->depth), bytes = smart_layout_bytes(op->target_layout);
    uint64_t whole = smart_word_for_whole_node(smart_word(op->target, 0, SMART_NODE, 0), op->target_layout);
    node_read reads[] = {{.word = smart_word(above->node, 0, SMART_NODE, SMART_READ_DIR),
                          .depth = above->depth,
                          .bytes = SMART_HEADER,
                          .ctl_first = above->recycled},
                         {.word = whole, .depth = op->target_depth, .bytes = bytes, .ctl_first = op->target_recycled}};
    if (!far_task_reaches(op->t, above->node, smart_layout_bytes(SMART_DIR)) ||
        !far_task_reaches(op->t, op->target, bytes))
        return SMART_STALE;
    unsigned first = node_keeps_memory(epochs_since_linked(op, above));
    int err = read_unproven_nodes(op, reads + first, 2 - first);
    if (err == 0 && first == 0 && reads[0].node.layout != SMART_DIR)
        err = SMART_STALE;
    if (err != 0)
        return err;
    smart_node *node = &reads[1].node;
    unsigned size_hint = smart_cache_size_hint(op->st->cache, op->key, node->addr, node->depth);
    smart_spot_clear(s);
    smart_set_spot_node(s, node, smart_slot_addr(above->node, part),
                        smart_word(node->addr, part, SMART_NODE, size_hint));
    if ((err = smart_look_up_slot(op, s, node)) != 0)
        return err;
    s->node_image = *node;
    far_count_cache(op->t, false);
    return smart_descend(op, s);
}


typedef struct first_probe { /* The first probe of the cache for a key, and the READ of the leaf that it led to */
    smart_cached cached;
    bool found;         /* true if the cache contains a node or a root word for the key */
    bool leaf_was_read; /* true if the leaf that the cached word names was READ into the spot */
    int read_result;    /* result of the READ of that leaf */
} first_probe;


static __attribute__((noinline)) int follow_probes(smart_op *op, smart_spot *s, const first_probe *k) {
    smart_cached cached = k->cached;
    /* grows: the previous probe found a full list, which this insert must replace by a larger node; `cached` is then a
     * node above that list */
    bool grows = false, read = k->leaf_was_read, found = k->found;
    unsigned below = op->target_depth ? op->target_depth : SMART_DEPTH_ANY;
    for (unsigned tries = 0; tries < 4 && found; tries++) {
        if (!read && node_is_full_list(op, &cached)) {
            smart_set_target(op, cached.node, cached.depth, cached.layout);
            op->target_recycled = cached.recycled;
            below = cached.depth;
            grows = true;
            found = smart_cache_probe(op->st->cache, op->key, below, &cached);
            continue;
        }
        smart_spot_set_unproven(s);
        bool jumps = read || !must_read_node(op, &cached);
        int err = jumps ? follow_cached_word(op, s, &cached, read ? &k->read_result : NULL)
                  : grows && cached.layout == SMART_DIR && cached.node != 0 ? find_from_parent_and_node(op, s, &cached)
                                                                            : SMART_STALE;
        grows = read = false;
        if (jumps && err == SMART_STALE)
            far_count_stale(op->t);
        if (err != SMART_STALE) {
            /* Only a leaf that was reached without the deciding node counts as a hit. */
            far_count_cache(op->t, !s->proven);
            return err;
        }
        if (!cached.node) { /* the cache contains only the word of the root */
            if (!op->needs_proof && !op->target_depth)
                smart_cache_drop(op->st->cache, op->key, 0, 0);
            break;
        }
        if ((err = find_from_cached_node(op, s, &cached)) != SMART_STALE)
            return err;
        far_count_stale(op->t);
        smart_cache_drop(op->st->cache, op->key, cached.node, cached.depth);
        below = cached.depth;
        found = smart_cache_probe(op->st->cache, op->key, below, &cached);
    }
    far_count_cache(op->t, false);
    return SMART_STALE;
}


/* The fast path comes first, because in most searches one READ of the leaf that the cache names is a hit. */
int smart_find_through_cache(smart_op *op, smart_spot *s) {
    first_probe k;
    k.found =
        smart_cache_probe(op->st->cache, op->key, op->target_depth ? op->target_depth : SMART_DEPTH_ANY, &k.cached);
    k.leaf_was_read = k.found && leads_straight_to_leaf(op, &k.cached);
    if (!k.leaf_was_read)
        return follow_probes(op, s, &k);
    uint64_t word = k.cached.word;
    smart_spot_set_unproven(s);
    k.read_result =
        smart_fetch_leaf(op, smart_word_addr(word), smart_leaf_class(op->st, word), FAR_VERB_UNPROVEN, &s->leaf);
    if (k.read_result < 0 || !smart_take_hit(op, &s->leaf))
        return follow_probes(op, s, &k);
    s->outcome = SMART_HIT;
    s->mark = op->mark;
    far_count_cache(op->t, true);
    return 0;
}
