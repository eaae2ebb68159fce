/* Finding: from the root, or from the deepest node that the cache knows.
 *
 * An object is proven when its address came from a word with F clear that was READ in this operation from a proven (or
 * accepted) node. A node at an address from the cache is accepted when it is LIVE and has the right prefix hash, a leaf
 * certifies itself when it is LIVE, has the key and its checksum holds. Only a hit may rest on a leaf that certified
 * itself; that the key is absent, and every change, needs a proven or accepted owner. */
#include "base/error.h"
#include "index/smart/smart.h"
#include "pool/epoch.h"

#include <string.h>

enum { AGAIN = 1, FROZEN = 2, STALE = 3 }; /* of one attempt; 0: the spot is set */

#define DEPTH_ANY (SMART_KEY_MAX + 1)


int smart_begin(smart_op *op, far_task *t, far_index *index, far_bytes key) {
    smart_state *st = smart_state_of(index);
    uint64_t *hash = far_scratch(t, (key.length + 1) * sizeof(*hash));
    if (!hash)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    *op = (smart_op){.t = t, .index = index, .st = st, .key = key, .hash = hash};
    hash[0] = 0;
    return 0;
}


int smart_wait(smart_op *op) {
    op->mark = far_rdwc_mark(op->t);
    return far_wait(op->t);
}


/* After a long wait: what was seen under the old pin says nothing any more, memory may have another life. */
int smart_renew_pin(smart_op *op) {
    op->other = 0;
    op->below_node = 0;
    far_pin_drop(op->t);
    return far_pin_take(op->t);
}


/* The owner is a node whose address came from `word` in the slot `up`. */
static void enter(smart_spot *s, const smart_node *node, far_addr up, uint64_t up_word) {
    s->node = node->addr;
    s->depth = node->depth;
    s->layout = node->layout;
    s->up = up;
    s->up_word = up_word;
}


/* The owner's word for the key; READs on in a list as long as no unbound slot was seen. */
static int look_up(smart_op *op, smart_spot *s, smart_node *node, unsigned type) {
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
        far_read(op->t, s->slot, &s->word, 8);
        err = smart_wait(op);
        s->mark = op->mark;
        if (err >= 0 && op->st->cache && (s->word & SMART_BOUND) && !(s->word & SMART_F))
            smart_cache_word(op->st->cache, op->key, s->node, s->depth, SMART_DIR, s->word);
        return err;
    }
    unsigned words = node->words;
    while (!smart_lookup(node, part, &s->at) && s->at == node->words &&
           node->words < smart_layout_slots(node->layout)) {
        if ((err = smart_read_more(op, node, 0)) < 0)
            return err;
        s->mark = op->mark;
    }
    if (node->words > words && s->up && s->at + 1 < smart_layout_slots(node->layout)) { /* the hint was too small */
        unsigned better = smart_read_type_for(node->words, node->layout, op->st->node_types);
        if (better != type) {
            uint64_t word = smart_word_with_read_type(s->up_word, better);
            far_cas(op->t, s->up, s->up_word, word, NULL);
            far_post(op->t);
            s->up_word = word;
        }
    }
    s->children = smart_live_children(node);
    s->slot = s->at < node->words ? smart_slot_addr(s->node, s->at) : 0;
    s->word = s->at < node->words ? smart_slots(node)[s->at] : 0;
    if (op->st->cache)
        smart_cache_node(op->st->cache, op->key, node);
    return 0;
}


/* The owner's word names a leaf. Its chain was followed; what is it to us? */
static int at_leaf(smart_op *op, smart_spot *s) {
    uint32_t mark = s->mark;
    if (s->word == op->other) { /* seen LIVE in this operation: it is still that leaf */
        s->outcome = SMART_OTHER_LEAF;
        s->leaf = (smart_leaf){.addr = smart_word_addr(s->word), .key = op->other_key};
        return 0;
    }
    int err = smart_read_leaf(op, smart_word_addr(s->word), smart_word_hint(s->word), &s->leaf, &s->chain, s->old);
    if (err != 0)
        return err < 0 ? err : AGAIN;
    smart_object_state state = smart_ctl_state(s->leaf.ctl);
    if (far_bytes_compare(s->leaf.key, op->key) != 0)
        s->outcome = state == SMART_DEAD ? SMART_GONE : SMART_OTHER_LEAF;
    else if (state == SMART_DEAD)
        s->outcome = SMART_GONE;
    else {
        s->outcome = SMART_HIT;
        mark = op->mark;
        if (state == SMART_PENDING)
            smart_flip(op, s->leaf.addr, s->leaf.ctl);
    }
    s->mark = mark;
    return 0;
}


/* One step down from a proven word that names a node. 0: the owner is that node now; AGAIN is no result here;
 * OTHER_NODE is told by *other. */
static int step_down(smart_op *op, smart_spot *s, bool *other) {
    far_addr up = s->slot;
    uint64_t word = s->word;
    unsigned type = smart_word_read_type(word);
    *other = false;
    if (type == SMART_READ_DIR && (word & SMART_GAP0)) { /* its prefix is ours: only the slot is READ */
        smart_node node = {.addr = smart_word_addr(word), .depth = s->depth + 1, .layout = SMART_DIR};
        enter(s, &node, up, word);
        return look_up(op, s, &node, type);
    }
    uint32_t mark = s->mark;
    smart_node node;
    bool all = op->below == s->depth + 1 && smart_word_addr(word) == op->below_node;
    int err = smart_read_node(op, all ? smart_word_for_all(word, op->below_layout) : word, false, &node);
    if (err < 0)
        return err;
    if (node.depth <= s->depth)
        return smart_broken(op->index, node.addr, "node");
    if (!smart_has_prefix_of(op, &node)) {
        *other = true;
        s->outcome = SMART_OTHER_NODE;
        s->child = node;
        s->mark = mark;
        return 0;
    }
    enter(s, &node, up, word);
    return look_up(op, s, &node, type);
}


/* From the owner in s and its word, down to where it ends. */
static int descend(smart_op *op, smart_spot *s) {
    s->proven = true;
    for (;;) {
        bool other;
        int err;
        if ((s->word & SMART_F) && !op->frozen_too)
            return FROZEN;
        s->word &= ~SMART_F;
        if (!smart_word_is_sound(s->word))
            return smart_broken(op->index, s->node, "node");
        switch (smart_word_is(s->word)) {
        case SMART_NONE:
            s->outcome = SMART_EMPTY;
            return 0;
        case SMART_LEAF:
            return at_leaf(op, s);
        case SMART_NODE:
            err = step_down(op, s, &other);
            if (err != 0 || other)
                return err;
        }
    }
}


static int from_root(smart_op *op, smart_spot *s) {
    unsigned first = smart_part(op->key, 0);
    smart_spot_clear(s);
    s->at = first;
    s->slot = smart_root_slot(op->st, first);
    s->layout = SMART_DIR;
    far_read(op->t, s->slot, &s->word, 8);
    int err = smart_wait(op);
    s->mark = op->mark;
    if (err >= 0 && op->st->cache && smart_word_is_sound(s->word) && smart_word_is(s->word) != SMART_NONE)
        smart_cache_word(op->st->cache, op->key, 0, 0, SMART_DIR, s->word);
    return err < 0 ? err : descend(op, s);
}


/* Something at an address from the cache: READs of it may meet any memory. */
static int wait_unproven(smart_op *op) {
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return smart_wait(op);
}


/* Memory that had an earlier life may be seen with words of both, when it is larger than what is READ at once. Seen
 * LIVE it stays in this life while we are pinned; so what is READ after that is whole. READs keep their order: the READ
 * of the ctl word goes first, in the same batch, where it is known that it is needed. */
static bool may_mix_lives(const smart_op *op, uint64_t ctl, far_addr addr, unsigned bytes) {
    unsigned unit = far_task_capabilities(op->t)->atomic_bytes;
    return smart_ctl_rec(ctl) && addr / unit != (addr + bytes - 1) / unit;
}


static void put_read_ctl(smart_op *op, far_addr addr, uint64_t *ctl) {
    far_read(op->t, addr, ctl, 8);
    far_mark(op->t, FAR_VERB_UNPROVEN);
}


static bool certifies_itself(const smart_op *op, const smart_leaf *leaf) {
    uint64_t chk;
    memcpy(&chk, leaf->image + smart_chk_at(leaf->kind), 8);
    return smart_ctl_state(leaf->ctl) == SMART_LIVE && chk == smart_leaf_chk(op->st, leaf);
}


/* READs were put whose words are the caller's. */
static int forget(smart_op *op, int err) {
    far_forget(op->t);
    return err;
}


/* 0: the spot is a HIT; STALE: it is nothing that we can go by. */
static int jump_to_leaf(smart_op *op, smart_spot *s, uint64_t word) {
    far_addr addr = smart_word_addr(word);
    unsigned class = smart_word_hint(word);
    bool recycled = word & SMART_CACHED_REC;
    uint64_t ctl = 0;
    word &= ~SMART_CACHED_REC;
    for (unsigned reads = 0; reads < SMART_CHAIN_MAX; reads++) {
        smart_leaf *leaf = &s->leaf;
        if (class >= SMART_CLASSES || !far_task_reaches(op->t, addr, smart_class_bytes(class)))
            return STALE;
        if (recycled)
            put_read_ctl(op, addr, &ctl);
        int err = smart_put_read_leaf(op, addr, class, leaf);
        if (err < 0)
            return forget(op, err);
        if ((err = wait_unproven(op)) < 0)
            return err;
        if (!smart_take_leaf(leaf, class))
            return STALE;
        if (far_bytes_compare(leaf->key, op->key) != 0) {
            if (reads == 0 && certifies_itself(op, leaf)) { /* not what an old chain led to: the word names the first */
                op->other = word;
                op->other_key = leaf->key;
            }
            return STALE;
        }
        if (smart_ctl_state(leaf->ctl) == SMART_REPLACED) {
            addr = smart_ctl_forward(leaf->ctl);
            class = smart_ctl_forward_class(leaf->ctl);
            ctl = 0;
            continue;
        }
        if (!certifies_itself(op, leaf))
            return STALE;
        bool value_is_checked =
            leaf->kind == SMART_VI || leaf->kind == SMART_VR; /* otherwise it lies in the first 32 bytes */
        if (!value_is_checked && may_mix_lives(op, leaf->ctl, addr, 32) && ctl != leaf->ctl) {
            op->recycled = recycled = true; /* once more, and from now on in one batch */
            continue;
        }
        s->outcome = SMART_HIT;
        s->proven = false;
        s->mark = op->mark;
        return 0;
    }
    return STALE;
}


/* READs a node at an address from the cache. 0: accepted, and it is the owner; STALE: not. With the depth known, the
 * slot of a DIR node comes in the same batch as its header. leaf (or NULL) is put behind all of it. */
static int accept_node(smart_op *op, smart_spot *s, uint64_t word, unsigned depth, smart_leaf *leaf) {
    smart_node node;
    uint64_t near[SMART_NEIGHBOURS] = {0}, ctl;
    unsigned type = smart_word_read_type(word), part = smart_part(op->key, depth);
    unsigned first = op->pair ? smart_first_neighbour(part) : part, count = op->pair ? SMART_NEIGHBOURS : 1;
    far_addr addr = smart_word_addr(word);
    unsigned most = type == SMART_READ_DIR ? smart_layout_bytes(SMART_DIR) : smart_read_bytes(type);
    if (!far_task_reaches(op->t, addr, most))
        return STALE;
    put_read_ctl(op, addr, &ctl);
    int err = smart_put_read_node(op, word, false, &node);
    if (err < 0)
        return forget(op, err);
    if (type == SMART_READ_DIR && depth) {
        far_mark(op->t, FAR_VERB_UNPROVEN);
        far_read(op->t, smart_slot_addr(addr, first), near, 8ull * count);
    }
    if (leaf) {
        far_mark(op->t, FAR_VERB_UNPROVEN);
        if ((err = smart_put_read_leaf(op, leaf->addr, leaf->class, leaf)) < 0)
            return forget(op, err);
    }
    if ((err = wait_unproven(op)) < 0)
        return err;
    if (smart_ctl_state(ctl) != SMART_LIVE || !smart_take_node(op, &node) || node.ctl != ctl ||
        !smart_has_prefix_of(op, &node) || (depth && node.depth != depth))
        return STALE;
    enter(s, &node, 0, 0);
    if (type == SMART_READ_DIR && depth) {
        uint64_t slot = near[part - first];
        if (node.layout != SMART_DIR || !smart_word_is_sound(slot))
            return STALE;
        s->at = part;
        s->children = smart_count_words(near, count);
        s->slot = smart_slot_addr(addr, part);
        s->word = slot;
        s->mark = op->mark;
        if ((slot & SMART_BOUND) && !(slot & SMART_F))
            smart_cache_word(op->st->cache, op->key, addr, depth, SMART_DIR, slot);
        return 0;
    }
    return look_up(op, s, &node, type);
}


/* Follows what the cache says, as far as it can be without proof. */
static int jump(smart_op *op, smart_spot *s, const smart_hint *hint) {
    uint64_t word = hint->word;
    unsigned depth = hint->depth;
    while (smart_word_is(word) == SMART_NODE && smart_word_read_type(word) == SMART_READ_DIR && (word & SMART_GAP0)) {
        far_addr node = smart_word_addr(word), slot = smart_slot_addr(node, smart_part(op->key, ++depth));
        if (depth > op->key.length || !far_task_reaches(op->t, slot, 8))
            return STALE;
        far_read(op->t, slot, &word, 8);
        int err = wait_unproven(op);
        if (err < 0)
            return err;
        if ((word & SMART_F) || !smart_word_is_sound(word) || smart_word_is(word) == SMART_NONE ||
            smart_word_part(word) != smart_part(op->key, depth))
            return STALE;
        smart_cache_word(op->st->cache, op->key, node, depth, SMART_DIR, word);
    }
    if (smart_word_is(word) == SMART_LEAF)
        return jump_to_leaf(op, s, word);
    int err = accept_node(op, s, word, 0, NULL);
    return err != 0 ? err : descend(op, s);
}


/* The leaf that the cache names, to be READ behind its owner. On one memory node READs keep their order: then it is the
 * leaf that the owner's word names, in this life. On another node it may be one that was there before: its ctl word
 * tells, when it comes to a CAS, and nothing else may go by it. */
static bool leaf_behind_owner(const smart_op *op, const smart_hint *hint, smart_leaf *leaf) {
    far_addr addr = smart_word_addr(hint->word);
    unsigned class = smart_word_hint(hint->word);
    *leaf = (smart_leaf){.addr = addr, .class = class};
    return op->pair && smart_word_is(hint->word) == SMART_LEAF && class < SMART_CLASSES &&
           far_task_reaches(op->t, addr, smart_class_bytes(class));
}


/* The owner was accepted, and its word names the leaf that was READ with it. */
static int take_pair(smart_op *op, smart_spot *s, smart_leaf *leaf) {
    bool same = s->word == smart_leaf_word(leaf, smart_part(op->key, s->depth));
    far_count_cache(op->t, same);
    if (!same || !smart_take_leaf(leaf, leaf->class) || far_bytes_compare(leaf->key, op->key) != 0 ||
        smart_ctl_state(leaf->ctl) > SMART_LIVE)
        return descend(op, s);
    s->proven = true;
    s->outcome = SMART_HIT;
    s->leaf = *leaf;
    s->mark = op->mark;
    return 0;
}


/* From the deepest node that the cache knows, then from shallower ones. STALE: nothing there helps. */
static int from_cache(smart_op *op, smart_spot *s) {
    smart_hint hint;
    unsigned below = op->below ? op->below : DEPTH_ANY;
    for (unsigned tries = 0; tries < 4 && smart_cache_probe(op->st->cache, op->key, below, &hint); tries++) {
        smart_spot_clear(s);
        int err = hint.word && !op->owner && !op->below ? jump(op, s, &hint) : STALE;
        if (err == 0 && op->recycled)
            smart_cache_word(op->st->cache, op->key, hint.node, hint.depth, hint.layout, hint.word | SMART_CACHED_REC);
        if (err != STALE) {
            far_count_cache(op->t, !s->proven); /* a hit: straight to the leaf */
            return err;
        }
        if (!hint.node) { /* a word of the root */
            if (!op->owner && !op->below)
                smart_cache_drop(op->st->cache, op->key, 0, 0);
            break;
        }
        unsigned type = smart_read_type_for(hint.words + 1, hint.layout, op->st->node_types);
        smart_leaf leaf;
        bool pair = leaf_behind_owner(op, &hint, &leaf);
        err = accept_node(op, s, smart_word(hint.node, 0, SMART_NODE, type), hint.depth, pair ? &leaf : NULL);
        if (err == 0 && pair)
            return take_pair(op, s, &leaf);
        if (err == 0) {
            far_count_cache(op->t, false);
            return descend(op, s);
        }
        if (err != STALE)
            return err;
        smart_cache_drop(op->st->cache, op->key, hint.node, hint.depth);
        below = hint.depth;
    }
    far_count_cache(op->t, false);
    return STALE;
}


/* cached: the cache may be asked; otherwise the owner's own slot is known afterwards. */
int smart_find(smart_op *op, bool cached, smart_spot *spot) {
    op->other = 0;
    op->recycled = false;
    for (unsigned attempt = 0;; attempt++) {
        int err = cached && !op->uncached && op->st->cache && attempt == 0 ? from_cache(op, spot) : STALE;
        if (err == STALE)
            err = from_root(op, spot);
        if (err <= 0)
            return err;
        far_count_retry(op->t);
        if (err == AGAIN || (err == FROZEN && !spot->up))
            continue; /* what came through the cache is frozen: again from the root */
        far_point(op->t, "smart:help");
        if ((err = smart_replace(op, spot->up, spot->up_word, spot->layout, NULL)) < 0)
            return err;
        if (err == 0)
            far_back_off(op->t, attempt);
    }
}


/* A frozen word was current when it was frozen, or when its node was seen linked if that came later: inside of the
 * operation. Who needs no slot can go by it. */
int smart_find_leaf(smart_op *op, smart_spot *spot) {
    int err = smart_find(op, true, spot);
    if (err != FAR_ERR_NO_MEMORY || op->frozen_too)
        return err;
    op->frozen_too = true;
    return smart_find(op, true, spot);
}


int smart_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    smart_op op;
    smart_spot *spot = far_scratch(t, sizeof(*spot));
    if (!spot)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    int err = smart_begin(&op, t, index, key);
    if (err < 0 || (err = smart_find_leaf(&op, spot)) < 0)
        return err;
    if (!op.frozen_too)
        far_rdwc_done(t, spot->mark);
    if (!op.frozen_too && spot->proven && (spot->outcome == SMART_GONE || (spot->outcome == SMART_HIT && spot->chain)))
        smart_tidy_later(&op, spot->outcome == SMART_GONE);
    if (spot->outcome != SMART_HIT)
        return FAR_ERR_NOT_FOUND;
    return far_out_give(out, spot->leaf.value.data, spot->leaf.value.length);
}


/* Puts the READ of the leaf that the cache knows for a key. 1: it did. */
static int put_read_cached(smart_op *op, far_bytes key, smart_leaf *leaf) {
    smart_hint hint;
    if (!smart_cache_probe(op->st->cache, key, DEPTH_ANY, &hint) || smart_word_is(hint.word) != SMART_LEAF)
        return 0;
    far_addr addr = smart_word_addr(hint.word);
    unsigned class = smart_word_hint(hint.word);
    if ((hint.word & SMART_CACHED_REC) || class >= SMART_CLASSES ||
        !far_task_reaches(op->t, addr, smart_class_bytes(class)))
        return 0;
    int err = smart_put_read_leaf(op, addr, class, leaf);
    if (err < 0)
        return err;
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return 1;
}


/* It is the leaf of the key, at once and beyond doubt. */
static bool is_hit(const smart_op *op, smart_leaf *leaf, far_bytes key) {
    return smart_take_leaf(leaf, leaf->class) && far_bytes_compare(leaf->key, key) == 0 && certifies_itself(op, leaf) &&
           (leaf->kind == SMART_VI || leaf->kind == SMART_VR || !may_mix_lives(op, leaf->ctl, leaf->addr, 32));
}


/* All leaves that the cache knows in one batch; what is more than that each get does for itself. In a handle with RDWC
 * all of them do: what others read at the same time is not read again, which saves more. */
int smart_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                   int results[]) {
    smart_op op = {.t = t, .index = index, .st = smart_state_of(index)};
    for (size_t i = 0; i < count; i++)
        results[i] = FAR_GET_ALONE;
    if (!op.st->cache || far_rdwc_is_on(t))
        return 0;
    smart_leaf *leaves = far_scratch(t, count * sizeof(*leaves));
    int err = leaves ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for leaves");
    size_t known = 0;
    for (size_t i = 0; i < count && err >= 0; i++) {
        leaves[i].addr = 0;
        err = put_read_cached(&op, keys[i], &leaves[i]);
        known += err == 1;
    }
    if (err < 0)
        return forget(&op, err);
    if (known && (err = far_wait(t)) < 0)
        return err;
    for (size_t i = 0; i < count; i++)
        if (leaves[i].addr && is_hit(&op, &leaves[i], keys[i])) {
            far_count_cache(t, true);
            results[i] = far_out_give(outs[i], leaves[i].value.data, leaves[i].value.length);
        }
    return 0;
}
