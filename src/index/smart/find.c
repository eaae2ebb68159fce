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

#define DEPTH_ANY   (SMART_KEY_MAX + 1)
#define RENEW_AFTER 12 /* attempts of one search, until new pins are taken */


static inline int begin(smart_op *op, far_task *t, far_index *index, far_bytes key) {
    smart_op_set(op, t, index);
    op->key = key;
    op->hash = key.length <= SMART_FEW ? op->few : far_scratch(t, (key.length + 1) * sizeof(*op->hash));
    if (!op->hash)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    op->hash[0] = 0;
    return 0;
}


int smart_begin(smart_op *op, far_task *t, far_index *index, far_bytes key) {
    return begin(op, t, index, key);
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


void smart_want_up(smart_op *op, far_addr node, unsigned depth, unsigned layout) {
    op->below = depth;
    op->below_node = node;
    op->below_layout = layout;
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
static int look_up(smart_op *op, smart_spot *s, smart_node *node) {
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
    if (node->words > words && s->up && s->at < smart_layout_slots(node->layout))
        s->up_word = smart_raise_hint(op, s->up, s->up_word, node);
    s->children = smart_live_children(node);
    if (s->at < node->words) {
        s->slot = smart_slot_addr(s->node, s->at);
        s->word = smart_slots(node)[s->at];
    } else { /* full: nothing is added any more, and any word of it with F clear says that it was linked */
        s->slot = 0;
        s->word = smart_slots(node)[s->at - 1] & SMART_F;
    }
    if (op->st->cache)
        smart_cache_node(op->st->cache, op->key, node);
    return 0;
}


/* The owner's word names a leaf. Its chain was followed; what is it to us? */
static int at_leaf(smart_op *op, smart_spot *s) {
    uint32_t mark = s->mark;
    bool seen = s->word == op->other; /* LIVE in this operation: it is still that leaf */
    if (seen || (op->only_present && smart_is_foreign(op, s->word))) {
        s->outcome = SMART_OTHER_LEAF;
        s->leaf = (smart_leaf){.addr = smart_word_addr(s->word), .key = seen ? op->other_key : (far_bytes){NULL, 0}};
        return 0;
    }
    unsigned class = smart_leaf_class(op->st, s->word);
    int err = smart_read_leaf(op, smart_word_addr(s->word), class, &s->leaf, &s->chain, s->old);
    if (err != 0)
        return err < 0 ? err : AGAIN;
    smart_object_state state = smart_ctl_state(s->leaf.ctl);
    if (!far_bytes_equal(s->leaf.key, op->key))
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
        return look_up(op, s, &node);
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
    err = look_up(op, s, &node);
    s->owner = err == 0 && all ? node : (smart_node){0}; /* of the last node on the way, and of no other */
    return err;
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
    s->mark = op->mark = far_rdwc_mark(op->t);
    int err = far_read_now(op->t, s->slot, &s->word, 8, 0);
    if (err < 0 || (err = smart_check_root(op, first, s->word)) < 0)
        return err;
    if (op->st->cache && smart_word_is(s->word) != SMART_NONE)
        smart_cache_word(op->st->cache, op->key, 0, 0, SMART_DIR, s->word);
    return descend(op, s);
}


/* Something at an address from the cache: READs of it may meet any memory. */
static int wait_unproven(smart_op *op) {
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return smart_wait(op);
}


/* Memory that had an earlier life may be seen with words of both, when it is larger than what is READ at once. Seen
 * LIVE it stays in this life while we are pinned; so what is READ after that is whole. READs keep their order: the READ
 * of the ctl word goes first, in the same batch, where it is known that it is needed. */
bool smart_may_mix_lives(const smart_op *op, uint64_t ctl, far_addr addr, unsigned bytes) {
    if (!smart_ctl_rec(ctl))
        return false;
    unsigned unit = far_task_capabilities(op->t)->atomic_bytes;
    return addr / unit != (addr + bytes - 1) / unit;
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


/* Its value belongs to the life that its checksum tells of: values of VI and VR are in the checksum, others in the first
 * 32 bytes. */
static bool value_is_of_its_life(const smart_op *op, const smart_leaf *leaf) {
    return leaf->kind == SMART_VI || leaf->kind == SMART_VR || !smart_may_mix_lives(op, leaf->ctl, leaf->addr, 32);
}


bool smart_leaf_is_certain(const smart_op *op, const smart_leaf *leaf) {
    return certifies_itself(op, leaf) && value_is_of_its_life(op, leaf);
}


/* READs were put whose words are the caller's. */
static int forget(smart_op *op, int err) {
    far_forget(op->t);
    return err;
}


/* 0: the spot is a HIT; STALE: it is nothing that we can go by. */
static int jump_to_leaf(smart_op *op, smart_spot *s, uint64_t word) {
    far_addr addr = smart_word_addr(word);
    unsigned class = smart_leaf_class(op->st, word);
    bool recycled = word & SMART_CACHED_REC;
    uint64_t ctl = 0;
    word &= ~SMART_CACHED_REC;
    for (unsigned reads = 0; reads < SMART_CHAIN_MAX; reads++) {
        smart_leaf *leaf = &s->leaf;
        if (recycled)
            put_read_ctl(op, addr, &ctl);
        int err = smart_fetch_leaf(op, addr, class, FAR_VERB_UNPROVEN, leaf);
        if (err < 0) /* CORRUPT: no such leaf can be, so the word is an old one */
            return forget(op, err == FAR_ERR_CORRUPT ? STALE : err);
        if (!smart_take_leaf(leaf, class))
            return STALE;
        if (!far_bytes_equal(leaf->key, op->key)) {
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
        if (!value_is_of_its_life(op, leaf) && ctl != leaf->ctl) {
            op->recycled = recycled = true; /* once more, and from now on in one batch */
            continue;
        }
        s->outcome = SMART_HIT;
        s->mark = op->mark;
        return 0;
    }
    return STALE;
}


/* What is READ of a node at an address from the cache, in one batch. */
typedef struct look {
    uint64_t word;
    unsigned depth; /* of the node; 0: not known. Known, the slot of a DIR node comes with its header */
    bool slot;      /* the slot comes with the header */
    bool ctl_first;
    unsigned bytes, part, first, count;
    uint64_t ctl, near[SMART_NEIGHBOURS]; /* the slots first .. of a DIR node */
    smart_node node;
    smart_leaf *leaf; /* behind all of it; may be NULL */
} look;


#define NEAR_HEADER 29u /* the first slots of a DIR node: 256 bytes in one READ take less than two READs do */


/* The slot lies near the header, and both are READ at once. */
static bool is_one_read(const look *l) {
    return l->slot && l->bytes > SMART_HEADER;
}


static int put_look(smart_op *op, look *l) {
    far_addr addr = smart_word_addr(l->word);
    if (l->ctl_first)
        put_read_ctl(op, addr, &l->ctl);
    int err = is_one_read(l) ? smart_put_read_bytes(op, addr, l->bytes, &l->node)
                             : smart_put_read_node(op, l->word, false, &l->node);
    if (err < 0)
        return err;
    if (l->slot && !is_one_read(l)) {
        far_mark(op->t, FAR_VERB_UNPROVEN);
        far_read(op->t, smart_slot_addr(addr, l->first), l->near, 8ull * l->count);
    }
    if (!l->leaf)
        return 0;
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return smart_put_read_leaf(op, l->leaf->addr, l->leaf->class, l->leaf);
}


/* After the wait. 0: accepted; STALE: not; AGAIN: it lies in recycled memory, and was READ without its ctl word before.
 */
static int take_look(smart_op *op, look *l) {
    smart_node *node = &l->node;
    if (!smart_take_node(op, node) || smart_ctl_state(node->ctl) != SMART_LIVE || !smart_has_prefix_of(op, node) ||
        (l->depth && node->depth != l->depth) || (l->ctl_first && node->ctl != l->ctl))
        return STALE;
    return !l->ctl_first && smart_may_mix_lives(op, node->ctl, node->addr, l->bytes) ? AGAIN : 0;
}


static int try_looks(smart_op *op, look *looks, unsigned count) {
    int err = 0;
    for (unsigned i = 0; i < count && err >= 0; i++) {
        if (i > 0)
            far_mark(op->t, FAR_VERB_UNPROVEN);
        err = put_look(op, &looks[i]);
    }
    if (err < 0)
        return forget(op, err);
    if ((err = wait_unproven(op)) < 0)
        return err;
    for (unsigned i = 0; i < count && err != STALE; i++) {
        int taken = take_look(op, &looks[i]);
        looks[i].ctl_first = looks[i].ctl_first || taken == AGAIN;
        err = taken ? taken : err;
    }
    return err;
}


/* In one batch. 0: all are accepted; STALE: one is not. The ctl word is READ first where the memory is known to be
 * recycled; who finds that out looks twice. */
static int read_looks(smart_op *op, look *looks, unsigned count) {
    int err = try_looks(op, looks, count);
    if (err != AGAIN)
        return err;
    op->recycled = true;
    for (unsigned i = 0; i < count; i++)
        if (looks[i].depth && looks[i].ctl_first)
            smart_cache_recycled(op->st->cache, op->key, looks[i].node.addr, looks[i].depth);
    return try_looks(op, looks, count);
}


/* The slot of a DIR node, which was READ with its header. */
static int take_slot(smart_op *op, smart_spot *s, const look *l) {
    const uint64_t *near = is_one_read(l) ? smart_slots(&l->node) + l->first : l->near;
    uint64_t word = near[l->part - l->first];
    if (l->node.layout != SMART_DIR || !smart_word_is_sound(word))
        return STALE;
    s->at = l->part;
    s->children = smart_count_words(near, l->count);
    s->slot = smart_slot_addr(l->node.addr, l->part);
    s->word = word;
    s->mark = op->mark;
    if ((word & SMART_BOUND) && !(word & SMART_F))
        smart_cache_word(op->st->cache, op->key, l->node.addr, l->depth, SMART_DIR, word);
    return 0;
}


/* READs a node at an address from the cache. 0: accepted, and it is the owner; STALE: not. leaf (or NULL) is READ
 * behind it. */
static int accept_node(smart_op *op, smart_spot *s, uint64_t word, unsigned depth, smart_leaf *leaf) {
    unsigned type = smart_word_read_type(word), part = smart_part(op->key, depth);
    bool dir = type == SMART_READ_DIR;
    look l = {.word = word & ~SMART_CACHED_REC,
              .depth = depth,
              .slot = dir && depth,
              .ctl_first = word & SMART_CACHED_REC,
              .bytes = dir ? SMART_HEADER : smart_read_bytes(type),
              .part = part,
              .first = op->pair ? smart_first_neighbour(part) : part,
              .count = op->pair ? SMART_NEIGHBOURS : 1,
              .leaf = leaf};
    if (!far_task_reaches(op->t, smart_word_addr(word), dir ? smart_layout_bytes(SMART_DIR) : l.bytes))
        return STALE;
    if (l.slot && !l.ctl_first && l.first + l.count <= NEAR_HEADER)
        l.bytes = SMART_HEADER + 8 * (l.first + l.count);
    int err = read_looks(op, &l, 1);
    if (err != 0)
        return err;
    smart_spot_clear(s);
    enter(s, &l.node, 0, 0);
    return l.slot ? take_slot(op, s, &l) : look_up(op, s, &l.node);
}


static bool is_slot_alone(uint64_t word) { /* of a DIR node, one byte deeper: its header need not be READ */
    return smart_word_is(word) == SMART_NODE && smart_word_read_type(word) == SMART_READ_DIR && (word & SMART_GAP0);
}


/* Follows what the cache says, as far as it can be without proof. */
static __attribute__((noinline)) int jump(smart_op *op, smart_spot *s, const smart_hint *hint) {
    uint64_t word = hint->word;
    smart_hint from = *hint; /* the node that has the word */
    while (is_slot_alone(word)) {
        from = (smart_hint){.node = smart_word_addr(word), .depth = from.depth + 1, .layout = SMART_DIR};
        unsigned part = smart_part(op->key, from.depth);
        far_addr slot = smart_slot_addr(from.node, part);
        if (from.depth > op->key.length || !far_task_reaches(op->t, slot, 8))
            return STALE;
        op->mark = far_rdwc_mark(op->t);
        int err = far_read_now(op->t, slot, &word, 8, FAR_VERB_UNPROVEN);
        if (err < 0)
            return err;
        if ((word & SMART_F) || !smart_word_is_sound(word) || smart_word_is(word) == SMART_NONE ||
            smart_word_part(word) != part)
            return STALE;
        smart_cache_word(op->st->cache, op->key, from.node, from.depth, SMART_DIR, word);
    }
    bool leaf = smart_word_is(word) == SMART_LEAF;
    int err = leaf ? jump_to_leaf(op, s, word) : accept_node(op, s, word, 0, NULL);
    bool moved = err == 0 && leaf && s->leaf.addr != smart_word_addr(word); /* behind leaves that were replaced */
    if (moved)
        word = smart_leaf_word(op->st, &s->leaf, smart_word_part(word));
    if (err == 0 && (op->recycled || moved))
        smart_cache_word(op->st->cache, op->key, from.node, from.depth, from.layout,
                         op->recycled ? word | SMART_CACHED_REC : word);
    return err != 0 || leaf ? err : descend(op, s);
}


/* The leaf that the cache names, to be READ behind its owner. On one memory node READs keep their order: then it is the
 * leaf that the owner's word names, in this life. On another node it may be one that was there before: its ctl word
 * tells, when it comes to a CAS, and nothing else may go by it. */
static bool leaf_behind_owner(const smart_op *op, const smart_hint *hint, smart_leaf *leaf) {
    far_addr addr = smart_word_addr(hint->word);
    unsigned class = smart_leaf_class(op->st, hint->word);
    *leaf = (smart_leaf){.addr = addr, .class = class};
    return smart_word_is(hint->word) == SMART_LEAF && class < SMART_CLASSES &&
           far_task_reaches(op->t, addr, smart_class_bytes(class));
}


/* The owner was accepted, and the leaf that the cache names was READ with it. Seen LIVE it stays in this life while we
 * are pinned: if the owner's word names it, it is that leaf. */
static int take_pair(smart_op *op, smart_spot *s, uint64_t word, smart_leaf *leaf) {
    bool same = s->word == word && smart_take_leaf(leaf, leaf->class);
    bool mine = same && far_bytes_equal(leaf->key, op->key);
    bool hit = mine && (op->pair ? smart_ctl_state(leaf->ctl) <= SMART_LIVE : smart_leaf_is_certain(op, leaf));
    far_count_cache(op->t, hit);
    if (same && !mine && certifies_itself(op, leaf)) {
        op->other = word;
        op->other_key = leaf->key;
    }
    if (!hit)
        return descend(op, s);
    s->proven = true;
    s->outcome = SMART_HIT;
    s->leaf = *leaf;
    s->mark = op->mark;
    return 0;
}


/* The leaf that the cache knows is likely to be another key's: a fingerprint would have told. */
static bool expects_other(const smart_op *op) {
    return op->absent && !op->st->prints;
}


/* What the cache knows of the key is not followed by itself: its owner is wanted, or it is another key's leaf. */
static bool wants_owner(const smart_op *op, const smart_hint *hint) {
    bool others = smart_is_foreign(op, hint->word) || (expects_other(op) && smart_word_is(hint->word) == SMART_LEAF);
    return !hint->word || op->owner || op->below || (hint->node && others);
}


/* What the cache knows is the leaf, as nearly always: nothing else is asked of it. */
static inline bool leads_to_leaf(const smart_op *op, const smart_hint *hint) {
    return smart_word_is(hint->word) == SMART_LEAF && !op->owner && !op->below && !op->absent && !op->st->prints;
}


/* From the node that the cache knows, with the leaf that it names where that is of use. */
static int from_owner(smart_op *op, smart_spot *s, const smart_hint *hint) {
    unsigned type = smart_read_type_for(hint->words + 1, hint->layout, op->st->node_types);
    uint64_t word = smart_word(hint->node, 0, SMART_NODE, type) | (hint->recycled ? SMART_CACHED_REC : 0);
    bool foreign = smart_is_foreign(op, hint->word);
    smart_leaf leaf;
    bool pair = (op->pair || expects_other(op) || foreign) && !(foreign && op->only_present) &&
                leaf_behind_owner(op, hint, &leaf);
    int err = accept_node(op, s, word, hint->depth, pair ? &leaf : NULL);
    if (err != 0)
        return err;
    if (pair)
        return take_pair(op, s, hint->word & ~SMART_CACHED_REC, &leaf);
    far_count_cache(op->t, false);
    return descend(op, s);
}


/* The owner is full, as the cache knows it: it will be replaced, for which the slot that names it is needed. */
static bool will_grow(const smart_op *op, const smart_hint *hint) {
    return hint->node && !hint->word && !op->below && !op->owner && !op->only_present && hint->layout != SMART_DIR &&
           hint->words >= smart_layout_slots(hint->layout);
}


/* The owner will be replaced, by a CAS in the DIR node above it. Of that one the header is READ, in one batch with the
 * owner, and not the slot: the CAS finds out what it says. The cache knows that, but for a hint that others changed. */
static int from_both(smart_op *op, smart_spot *s, const smart_hint *above) {
    unsigned part = smart_part(op->key, above->depth), bytes = smart_layout_bytes(op->below_layout);
    uint64_t whole = smart_word_for_all(smart_word(op->below_node, 0, SMART_NODE, 0), op->below_layout);
    look looks[] = {{.word = smart_word(above->node, 0, SMART_NODE, SMART_READ_DIR),
                     .depth = above->depth,
                     .bytes = SMART_HEADER,
                     .ctl_first = above->recycled},
                    {.word = whole, .depth = op->below, .bytes = bytes, .ctl_first = op->below_recycled}};
    if (!far_task_reaches(op->t, above->node, smart_layout_bytes(SMART_DIR)) ||
        !far_task_reaches(op->t, op->below_node, bytes))
        return STALE;
    int err = read_looks(op, looks, 2);
    if (err == 0 && looks[0].node.layout != SMART_DIR)
        err = STALE;
    if (err != 0)
        return err;
    smart_node *node = &looks[1].node;
    unsigned hint = smart_cache_hint(op->st->cache, op->key, node->addr, node->depth);
    smart_spot_clear(s);
    enter(s, node, smart_slot_addr(above->node, part), smart_word(node->addr, part, SMART_NODE, hint));
    if ((err = look_up(op, s, node)) != 0)
        return err;
    s->owner = *node;
    far_count_cache(op->t, false);
    return descend(op, s);
}


/* From the deepest node that the cache knows, then from shallower ones. STALE: nothing there helps. */
static int from_cache(smart_op *op, smart_spot *s) {
    smart_hint hint;
    bool grows = false; /* the node below is full */
    unsigned below = op->below ? op->below : DEPTH_ANY;
    for (unsigned tries = 0; tries < 4 && smart_cache_probe(op->st->cache, op->key, below, &hint); tries++) {
        bool leaf = leads_to_leaf(op, &hint);
        if (!leaf && will_grow(op, &hint)) {
            smart_want_up(op, hint.node, hint.depth, hint.layout);
            op->below_recycled = hint.recycled;
            below = hint.depth;
            grows = true;
            continue;
        }
        smart_spot_unknown(s);
        bool jumps = leaf || !wants_owner(op, &hint);
        int err = jumps                                                 ? jump(op, s, &hint)
                  : grows && hint.layout == SMART_DIR && hint.node != 0 ? from_both(op, s, &hint)
                                                                        : STALE;
        grows = false;
        if (jumps && err == STALE)
            far_count_stale(op->t);
        if (err != STALE) {
            far_count_cache(op->t, !s->proven); /* a hit: straight to the leaf */
            return err;
        }
        if (!hint.node) { /* a word of the root */
            if (!op->owner && !op->below)
                smart_cache_drop(op->st->cache, op->key, 0, 0);
            break;
        }
        if ((err = from_owner(op, s, &hint)) != STALE)
            return err;
        far_count_stale(op->t);
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
        if (err == FAR_ERR_CORRUPT) { /* damage may have unlinked what the cache knows, and a sweep freed it */
            far_forget(op->t);
            err = STALE;
        }
        if (err == STALE)
            err = from_root(op, spot);
        if (err <= 0)
            return err;
        far_count_retry(op->t);
        if (attempt >= RENEW_AFTER && attempt % op->st->patience == 0) { /* and nothing seen so far counts */
            if ((err = smart_renew_pin(op)) < 0)
                return err;
            continue;
        }
        if (err == AGAIN || (err == FROZEN && !spot->up))
            continue; /* what came through the cache is frozen: again from the root */
        far_point(op->t, "smart:help");
        if ((err = smart_replace(op, spot->up, spot->up_word, spot->layout, NULL, NULL)) < 0)
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


/* Where most gets end at another key's leaf, it is READ together with its owner: one READ more, one round trip less. */
#define MISSES_MAX 64u


static bool expects_misses(const smart_state *st) {
    return atomic_load_explicit(&st->misses, memory_order_relaxed) >= MISSES_MAX / 2;
}


/* By all threads, without care: a count that is lost now and then is as good. */
static void note_miss(smart_state *st, smart_outcome outcome) {
    unsigned misses = atomic_load_explicit(&st->misses, memory_order_relaxed);
    if (outcome == SMART_OTHER_LEAF && misses < MISSES_MAX)
        atomic_store_explicit(&st->misses, misses + 1, memory_order_relaxed);
    else if (outcome == SMART_HIT && misses > 0)
        atomic_store_explicit(&st->misses, misses - 1, memory_order_relaxed);
}


int smart_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    smart_op op;
    smart_spot found, *spot = &found;
    int err = begin(&op, t, index, key);
    op.only_present = true;
    op.absent = expects_misses(op.st);
    if (err < 0 || (err = smart_find_leaf(&op, spot)) < 0)
        return err;
    note_miss(op.st, spot->outcome);
    if (!op.frozen_too)
        far_rdwc_done(t, spot->mark);
    if (!op.frozen_too && spot->proven && (spot->outcome == SMART_GONE || (spot->outcome == SMART_HIT && spot->chain)))
        smart_tidy_later(&op, spot->outcome == SMART_GONE);
    if (spot->outcome != SMART_HIT)
        return FAR_ERR_NOT_FOUND;
    return far_out_give(out, spot->leaf.value.data, spot->leaf.value.length);
}


/* Gets that were submitted together: the leaves that the cache knows, each READ once. */
typedef struct many {
    smart_op op;
    smart_leaf *leaves; /* of each get; addr 0: none */
    uint32_t *same;     /* which get READs the leaf, by address: its number + 1; 0: none */
    size_t places;      /* of that table, a power of two */
} many;


/* The place of the leaf in the table, taken by the get that was there first. */
static uint32_t *place_of(const many *m, far_addr addr) {
    size_t at = (addr * 0x9e3779b97f4a7c15ull >> 40) & (m->places - 1);
    while (m->same[at] && m->leaves[m->same[at] - 1].addr != addr)
        at = (at + 1) & (m->places - 1);
    return &m->same[at];
}


/* Puts the READ of the leaf that the cache knows for the key of get `i`. */
static int put_read_cached(many *m, size_t i, far_bytes key) {
    smart_op *op = &m->op;
    smart_hint hint;
    op->key = key;
    if (!smart_cache_probe(op->st->cache, key, DEPTH_ANY, &hint) || smart_word_is(hint.word) != SMART_LEAF ||
        smart_is_foreign(op, hint.word))
        return 0;
    far_addr addr = smart_word_addr(hint.word);
    unsigned class = smart_leaf_class(op->st, hint.word);
    if ((hint.word & SMART_CACHED_REC) || class >= SMART_CLASSES ||
        !far_task_reaches(op->t, addr, smart_class_bytes(class)))
        return 0;
    uint32_t *first = place_of(m, addr);
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


static int begin_many(many *m, far_task *t, far_index *index, size_t count) {
    for (m->places = 16; m->places < 2 * count;)
        m->places *= 2;
    smart_op_set(&m->op, t, index);
    m->leaves = far_scratch(t, count * sizeof(*m->leaves));
    m->same = far_scratch(t, m->places * sizeof(*m->same));
    if (!m->leaves || !m->same)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for leaves");
    memset(m->leaves, 0, count * sizeof(*m->leaves));
    memset(m->same, 0, m->places * sizeof(*m->same));
    return 0;
}


/* All leaves that the cache knows in one batch; what is more than that each get does for itself. */
int smart_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                   int results[]) {
    many m;
    for (size_t i = 0; i < count; i++)
        results[i] = FAR_GET_ALONE;
    if (!smart_state_of(index)->cache)
        return 0;
    int err = begin_many(&m, t, index, count);
    for (size_t i = 0; i < count && err >= 0; i++)
        err = put_read_cached(&m, i, keys[i]);
    if (err < 0)
        return forget(&m.op, err);
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
