/* Searching for a key from the root, and gets.
 *
 * smart.h defines "deciding node", "proven", "accepted" and "certifies itself". Only a hit may rest on a leaf that
 * certified itself. The result that a key is absent, and every change, needs a deciding node that is proven or
 * accepted. A leaf or node at a stale address may be valid, although the key now belongs to another place. */
#include "index/smart/find.h"
#include "base/error.h"
#include "pool/epoch/epoch.h"

#include <string.h>

/* Number of attempts of one search before the search begins to renew its pin. It does not renew it earlier, because
 * after a renewal it cannot use what it has READ before. */
#define RENEW_AFTER 12


static inline int start_operation(smart_op *op, far_task *t, far_index *index, far_bytes key) {
    smart_op_init(op, t, index);
    op->key = key;
    op->hash = key.length <= SMART_SHORT_KEY ? op->short_hashes : far_scratch(t, (key.length + 1) * sizeof(*op->hash));
    if (!op->hash)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    op->hash[0] = 0;
    return 0;
}


int smart_op_begin(smart_op *op, far_task *t, far_index *index, far_bytes key) {
    return start_operation(op, t, index, key);
}


int smart_wait(smart_op *op) {
    op->mark = far_rdwc_mark(op->t);
    return far_wait(op->t);
}


/* Drops the pin and takes a new one, so that an operation that has waited for long does not delay the reuse of memory.
 * Results of READs under the old pin must not be used any more, because their memory may have a new incarnation. The
 * search must begin again. */
int smart_renew_pin(smart_op *op) {
    op->other_leaf_word = 0;
    op->target = 0;
    far_pin_drop(op->t);
    return far_pin_take(op->t);
}


void smart_set_target(smart_op *op, far_addr node, unsigned depth, unsigned layout) {
    op->target_depth = depth;
    op->target = node;
    op->target_layout = layout;
}


void smart_set_spot_node(smart_spot *s, const smart_node *node, far_addr parent_slot, uint64_t parent_word) {
    s->node = node->addr;
    s->depth = node->depth;
    s->layout = node->layout;
    s->parent_slot = parent_slot;
    s->parent_word = parent_word;
}


/* In a list an unbound slot proves that the key's byte is absent, because slots are bound in index order. So the list
 * is READ on until the slot of the key or an unbound slot is found. */
int smart_look_up_slot(smart_op *op, smart_spot *s, smart_node *node) {
    unsigned part = smart_part(op->key, s->depth);
    int err;
    s->mark = op->mark;
    if (node->layout == SMART_DIR) {
        s->at = part;
        s->slot = smart_slot_addr(s->node, part);
        if (node->words > part) {
            s->word = smart_slots(node)[part];
            return 0;
        }
        s->mark = op->mark = far_rdwc_mark(op->t);
        err = far_read_now(op->t, s->slot, &s->word, 8, 0);
        if (err >= 0 && op->st->cache && (s->word & SMART_BOUND) && !(s->word & SMART_FROZEN_BIT) &&
            smart_word_is_sound(s->word))
            smart_cache_store_word(op->st->cache, op->key, s->node, s->depth, SMART_DIR, s->word,
                                   op->accept_frozen ? 0 : far_epoch(op->t));
        return err;
    }
    unsigned words = node->words;
    while (!smart_find_slot(node, part, &s->at) && s->at == node->words &&
           node->words < smart_layout_slots(node->layout)) {
        if ((err = smart_read_more(op, node, 0)) < 0)
            return err;
        s->mark = op->mark;
    }
    if (node->words > words && s->parent_slot && s->at < smart_layout_slots(node->layout))
        s->parent_word = smart_raise_hint(op, s->parent_slot, s->parent_word, node);
    s->children = smart_node_children(node);
    if (s->at < node->words) {
        s->slot = smart_slot_addr(s->node, s->at);
        s->word = smart_slots(node)[s->at];
        /* The list is full and has no slot for the key. No slot can be added to a full list, so the key is absent if
         * the list was linked when it was READ. An unfrozen word proves that it was. The last word is taken for this:
         * s->word gets only its frozen bit, so s->word is 0 if the list was certainly linked. */
    } else {
        s->slot = 0;
        s->word = smart_slots(node)[s->at - 1] & SMART_FROZEN_BIT;
    }
    if (op->st->cache)
        smart_cache_store_node(op->st->cache, op->key, node);
    return 0;
}


/* Called when the slot in the spot names a leaf. READs the leaf unless the leaf is known to have another key, and sets
 * the outcome of the search. */
static int classify_leaf(smart_op *op, smart_spot *s) {
    uint32_t mark = s->mark;
    /* This operation has READ that leaf as LIVE before. Its address cannot have been reused since then, because the
     * operation is pinned. */
    bool seen = s->word == op->other_leaf_word;
    if (seen || (op->never_inserts && smart_fingerprint_differs(op, s->word))) {
        s->outcome = SMART_OTHER_LEAF;
        s->leaf =
            (smart_leaf){.addr = smart_word_addr(s->word), .key = seen ? op->other_leaf_key : (far_bytes){NULL, 0}};
        return 0;
    }
    unsigned class = smart_leaf_class(op->st, s->word);
    int err = smart_read_leaf(op, smart_word_addr(s->word), class, &s->leaf, &s->chain, s->old_leaves);
    if (err != 0)
        return err < 0 ? err : SMART_SEARCH_AGAIN;
    smart_object_state state = smart_ctl_state(s->leaf.ctl);
    if (!far_bytes_equal(s->leaf.key, op->key))
        s->outcome = state == SMART_DEAD ? SMART_DEAD_LEAF : SMART_OTHER_LEAF;
    else if (state == SMART_DEAD)
        s->outcome = SMART_DEAD_LEAF;
    else {
        s->outcome = SMART_HIT;
        mark = op->mark;
        if (state == SMART_PENDING)
            smart_mark_live(op, s->leaf.addr, s->leaf.ctl);
    }
    s->mark = mark;
    return 0;
}


/* Goes one step down from a proven word that names a node. If the node's prefix matches the key, it becomes the
 * deciding node in the spot. Otherwise sets *other and the outcome SMART_OTHER_NODE. Returns 0 or an error. */
static int step_down(smart_op *op, smart_spot *s, bool *other) {
    far_addr parent_slot = s->slot;
    uint64_t word = s->word;
    unsigned type = smart_word_read_type(word);
    *other = false;
    /* The child is one byte deeper than the node above it, so its prefix is that of the key: READ only the slot. */
    if (type == SMART_READ_DIR && (word & SMART_GAP0)) {
        smart_node node = {.addr = smart_word_addr(word), .depth = s->depth + 1, .layout = SMART_DIR};
        smart_set_spot_node(s, &node, parent_slot, word);
        return smart_look_up_slot(op, s, &node);
    }
    uint32_t mark = s->mark;
    smart_node node;
    bool all = op->target_depth == s->depth + 1 && smart_word_addr(word) == op->target;
    int err = smart_read_node(op, all ? smart_word_for_whole_node(word, op->target_layout) : word, false, &node);
    if (err < 0)
        return err;
    if (node.depth <= s->depth)
        return smart_fail_corrupt(op->index, node.addr, "node");
    if (!smart_prefix_matches(op, &node)) {
        *other = true;
        s->outcome = SMART_OTHER_NODE;
        s->child = node;
        s->mark = mark;
        return 0;
    }
    smart_set_spot_node(s, &node, parent_slot, word);
    err = smart_look_up_slot(op, s, &node);
    /* node_image is valid only for the last node on the way */
    s->node_image = err == 0 && all ? node : (smart_node){0};
    return err;
}


int smart_descend(smart_op *op, smart_spot *s) {
    s->proven = true;
    for (;;) {
        bool other;
        int err;
        if ((s->word & SMART_FROZEN_BIT) && !op->accept_frozen)
            return SMART_MET_FROZEN;
        s->word &= ~SMART_FROZEN_BIT;
        if (!smart_word_is_sound(s->word))
            return smart_fail_corrupt(op->index, s->node, "node");
        switch (smart_word_kind_of(s->word)) {
        case SMART_NONE:
            s->outcome = SMART_EMPTY;
            return 0;
        case SMART_LEAF:
            return classify_leaf(op, s);
        case SMART_NODE:
            err = step_down(op, s, &other);
            if (err != 0 || other)
                return err;
        }
    }
}


static int find_from_root(smart_op *op, smart_spot *s) {
    unsigned first = smart_part(op->key, 0);
    smart_spot_clear(s);
    s->at = first;
    s->slot = smart_root_slot(op->st, first);
    s->layout = SMART_DIR;
    s->mark = op->mark = far_rdwc_mark(op->t);
    int err = far_read_now(op->t, s->slot, &s->word, 8, 0);
    if (err < 0 || (err = smart_check_root_slot(op, first, s->word)) < 0)
        return err;
    if (op->st->cache && smart_word_kind_of(s->word) != SMART_NONE)
        smart_cache_store_word(op->st->cache, op->key, 0, 0, SMART_DIR, s->word, 0);
    return smart_descend(op, s);
}


int smart_find(smart_op *op, bool cached, smart_spot *spot) {
    op->other_leaf_word = 0;
    op->found_recycled = false;
    for (unsigned attempt = 0;; attempt++) {
        int err = cached && !op->bypass_cache && op->st->cache && attempt == 0 ? smart_find_through_cache(op, spot)
                                                                               : SMART_STALE;
        /* Corrupt far memory may have unlinked a node that is still in the cache, and a collection may then have freed
         * the node. So corrupt data at an address from the cache proves nothing, and the search begins again at the
         * root. */
        if (err == FAR_ERR_CORRUPT) {
            far_discard_batch(op->t);
            err = SMART_STALE;
        }
        if (err == SMART_STALE)
            err = find_from_root(op, spot);
        if (err <= 0)
            return err;
        far_count_retry(op->t);
        /* If the pin was renewed, the results of earlier READs must not be used any more. */
        if (attempt >= RENEW_AFTER && attempt % op->st->attempts_per_pin == 0) {
            if ((err = smart_renew_pin(op)) < 0)
                return err;
            continue;
        }
        if (err == SMART_SEARCH_AGAIN || (err == SMART_MET_FROZEN && !spot->parent_slot))
            /* This spot was found through the cache, so the slot that names its node is unknown. The replacement of the
             * node cannot be completed without that slot. The next attempt searches from the root, and finds the
             * slot. */
            continue;
        far_point(op->t, "smart:replace_frozen");
        if ((err = smart_replace(op, spot->parent_slot, spot->parent_word, spot->layout, NULL, NULL)) < 0)
            return err;
        if (err == 0)
            far_back_off(op->t, attempt);
    }
}


/* Searches for the leaf of the key, and may use frozen words. A frozen word was the current one at some time within the
 * operation, because the node was linked when the operation reached it: if the word was frozen before that time, it was
 * still current then; if the word was frozen later, it was current when it was frozen. This is enough for an operation
 * that changes no slot. */
int smart_find_leaf(smart_op *op, smart_spot *spot) {
    int err = smart_find(op, true, spot);
    if (err != FAR_ERR_NO_MEMORY || op->accept_frozen)
        return err;
    op->accept_frozen = true;
    return smart_find(op, true, spot);
}


/* Gets adapt to their workload. If most recent gets ended at another key's leaf, a get READs the leaf that the cache
 * names together with the deciding node. That costs one READ more, and saves a round trip whenever the key is
 * absent. */
#define MISSES_MAX 64u


static bool expects_misses(const smart_state *st) {
    return atomic_load_explicit(&st->recent_misses, memory_order_relaxed) >= MISSES_MAX / 2;
}


/* Called by all threads without synchronization. Lost updates of the count do no harm. */
static void update_miss_count(smart_state *st, smart_outcome outcome) {
    unsigned misses = atomic_load_explicit(&st->recent_misses, memory_order_relaxed);
    if (outcome == SMART_OTHER_LEAF && misses < MISSES_MAX)
        atomic_store_explicit(&st->recent_misses, misses + 1, memory_order_relaxed);
    else if (outcome == SMART_HIT && misses > 0)
        atomic_store_explicit(&st->recent_misses, misses - 1, memory_order_relaxed);
}


/* Returns whether the checksum of the leaf is correct. Only a salvage needs to know that: if nothing is damaged, a leaf
 * that was found on a proven path is correct. */
static bool leaf_is_undamaged(const smart_op *op, const smart_leaf *leaf) {
    uint64_t chk;
    memcpy(&chk, leaf->image + smart_chk_offset(leaf->kind), 8);
    return chk == smart_leaf_chk(op->st, leaf);
}


int smart_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    smart_op op;
    smart_spot found, *spot = &found;
    int err = start_operation(&op, t, index, key);
    op.never_inserts = true;
    op.accept_frozen = index->lenient; /* a damaged node must not be replaced */
    op.expects_absent = expects_misses(op.st);
    if (err < 0 || (err = smart_find_leaf(&op, spot)) < 0)
        return err;
    update_miss_count(op.st, spot->outcome);
    if (!op.accept_frozen) {
        far_rdwc_done(t, spot->mark);
        if (spot->proven && (spot->outcome == SMART_DEAD_LEAF || (spot->outcome == SMART_HIT && spot->chain)))
            smart_tidy_later(&op, spot->outcome == SMART_DEAD_LEAF);
    } else if (index->lenient && spot->outcome == SMART_HIT && !leaf_is_undamaged(&op, &spot->leaf)) {
        return smart_fail_corrupt(index, spot->leaf.addr, "leaf");
    }
    if (spot->outcome != SMART_HIT)
        return FAR_ERR_NOT_FOUND;
    return far_out_give(out, spot->leaf.value.data, spot->leaf.value.length);
}


/* Several gets that were submitted together. They READ the leaves that the cache names in one batch, each leaf once. */
typedef struct multi_get {
    smart_op op;
    smart_leaf *leaves; /* leaves[i] is the leaf that the cache names for get i; addr 0: the cache names none */
    /* hash table by leaf address, which contains the number + 1 of the get that READs the leaf; 0: empty */
    uint32_t *same;
    size_t places; /* size of the hash table `same`, a power of two */
} multi_get;


/* Returns the place of the leaf in the hash table. The place contains the number + 1 of the get that READs the leaf, or
 * 0 if no get does so yet. */
static uint32_t *find_table_place(const multi_get *m, far_addr addr) {
    size_t at = (addr * 0x9e3779b97f4a7c15ull >> 40) & (m->places - 1);
    while (m->same[at] && m->leaves[m->same[at] - 1].addr != addr)
        at = (at + 1) & (m->places - 1);
    return &m->same[at];
}


/* Adds a READ of the leaf that the cache names for the key of get `i`, unless an earlier get READs it already. */
static int put_read_of_cached_leaf(multi_get *m, size_t i, far_bytes key) {
    smart_op *op = &m->op;
    smart_cached cached;
    op->key = key;
    if (!smart_cache_probe(op->st->cache, key, SMART_DEPTH_ANY, &cached) ||
        smart_word_kind_of(cached.word) != SMART_LEAF || smart_fingerprint_differs(op, cached.word))
        return 0;
    far_addr addr = smart_word_addr(cached.word);
    unsigned class = smart_leaf_class(op->st, cached.word);
    if ((cached.word & SMART_CACHED_RECYCLED) || class >= SMART_CLASSES ||
        !far_task_reaches(op->t, addr, smart_class_bytes(class)))
        return 0;
    uint32_t *first = find_table_place(m, addr);
    if (*first) {
        m->leaves[i] = m->leaves[*first - 1];
        return 0;
    }
    *first = (uint32_t)i + 1;
    int err = smart_put_read_leaf(op, addr, class, &m->leaves[i]);
    if (err >= 0)
        far_mark(op->t, FAR_VERB_UNPROVEN | FAR_VERB_ANY_ORDER);
    return err;
}


static int begin_multi_get(multi_get *m, far_task *t, far_index *index, size_t count) {
    for (m->places = 16; m->places < 2 * count;)
        m->places *= 2;
    smart_op_init(&m->op, t, index);
    m->leaves = far_scratch(t, count * sizeof(*m->leaves));
    m->same = far_scratch(t, m->places * sizeof(*m->same));
    if (!m->leaves || !m->same)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for leaves");
    memset(m->leaves, 0, count * sizeof(*m->leaves));
    memset(m->same, 0, m->places * sizeof(*m->same));
    return 0;
}


/* READs all leaves that the cache names in one batch. A get whose leaf does not certify itself keeps the result
 * FAR_GET_ALONE, so the caller runs it as an operation of its own. */
int smart_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                   int results[]) {
    multi_get m;
    for (size_t i = 0; i < count; i++)
        results[i] = FAR_GET_ALONE;
    if (!smart_state_of(index)->cache)
        return 0;
    int err = begin_multi_get(&m, t, index, count);
    for (size_t i = 0; i < count && err >= 0; i++)
        smart_cache_prefetch(m.op.st->cache, keys[i]);
    for (size_t i = 0; i < count && err >= 0; i++)
        err = put_read_of_cached_leaf(&m, i, keys[i]);
    if (err < 0)
        return smart_abandon_batch(&m.op, err);
    if ((err = far_wait(t)) < 0)
        return err;
    for (size_t i = 0; i < count; i++) {
        smart_leaf *leaf = &m.leaves[i];
        if (leaf->addr && smart_take_leaf(leaf, leaf->class) && far_bytes_equal(leaf->key, keys[i]) &&
            smart_leaf_is_certain(&m.op, leaf)) {
            far_count_cache(t, true);
            results[i] = far_out_give(outs[i], leaf->value.data, leaf->value.length);
        }
    }
    return 0;
}
