/* Finding by the cache: from the deepest node that it knows, without a way down from the root. What it names may be
 * anything by now, so all that is READ here shows for itself what it is: a leaf certifies itself, a node is accepted
 * when it is LIVE and has the right prefix. What does not is STALE; then a shallower node is tried, and at last the
 * root (find.c). */
#include "base/error.h"
#include "index/smart/find.h"

#include <string.h>


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
int smart_forget(smart_op *op, int err) {
    far_forget(op->t);
    return err;
}


/* 0: the spot is a HIT; SMART_STALE: it is nothing that we can go by. first (or NULL): the leaf was READ once, with this
 * result. */
static int jump_to_leaf(smart_op *op, smart_spot *s, uint64_t word, const int *first) {
    far_addr addr = smart_word_addr(word);
    unsigned class = smart_leaf_class(op->st, word);
    bool recycled = word & SMART_CACHED_REC;
    uint64_t ctl = 0;
    word &= ~SMART_CACHED_REC;
    for (unsigned reads = 0; reads < SMART_CHAIN_MAX; reads++) {
        smart_leaf *leaf = &s->leaf;
        if (recycled)
            put_read_ctl(op, addr, &ctl);
        int err = reads == 0 && first ? *first : smart_fetch_leaf(op, addr, class, FAR_VERB_UNPROVEN, leaf);
        if (err < 0) /* CORRUPT: no such leaf can be, so the word is an old one */
            return smart_forget(op, err == FAR_ERR_CORRUPT ? SMART_STALE : err);
        if (!smart_take_leaf(leaf, class))
            return SMART_STALE;
        if (!far_bytes_equal(leaf->key, op->key)) {
            if (reads == 0 && certifies_itself(op, leaf)) { /* not what an old chain led to: the word names the first */
                op->other = word;
                op->other_key = leaf->key;
            }
            return SMART_STALE;
        }
        if (smart_ctl_state(leaf->ctl) == SMART_REPLACED) {
            addr = smart_ctl_forward(leaf->ctl);
            class = smart_ctl_forward_class(leaf->ctl);
            ctl = 0;
            continue;
        }
        if (!certifies_itself(op, leaf))
            return SMART_STALE;
        if (!value_is_of_its_life(op, leaf) && ctl != leaf->ctl) {
            op->recycled = recycled = true; /* once more, and from now on in one batch */
            continue;
        }
        s->outcome = SMART_HIT;
        s->mark = op->mark;
        return 0;
    }
    return SMART_STALE;
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


/* After the wait. 0: accepted; SMART_STALE: not; SMART_AGAIN: it lies in recycled memory, and was READ without its ctl word before.
 */
static int take_look(smart_op *op, look *l) {
    smart_node *node = &l->node;
    if (!smart_take_node(op, node) || smart_ctl_state(node->ctl) != SMART_LIVE || !smart_has_prefix_of(op, node) ||
        (l->depth && node->depth != l->depth) || (l->ctl_first && node->ctl != l->ctl))
        return SMART_STALE;
    return !l->ctl_first && smart_may_mix_lives(op, node->ctl, node->addr, l->bytes) ? SMART_AGAIN : 0;
}


static int try_looks(smart_op *op, look *looks, unsigned count) {
    int err = 0;
    for (unsigned i = 0; i < count && err >= 0; i++) {
        if (i > 0)
            far_mark(op->t, FAR_VERB_UNPROVEN);
        err = put_look(op, &looks[i]);
    }
    if (err < 0)
        return smart_forget(op, err);
    if ((err = wait_unproven(op)) < 0)
        return err;
    for (unsigned i = 0; i < count && err != SMART_STALE; i++) {
        int taken = take_look(op, &looks[i]);
        looks[i].ctl_first = looks[i].ctl_first || taken == SMART_AGAIN;
        err = taken ? taken : err;
    }
    return err;
}


/* In one batch. 0: all are accepted; SMART_STALE: one is not. The ctl word is READ first where the memory is known to be
 * recycled; who finds that out looks twice. */
static int read_looks(smart_op *op, look *looks, unsigned count) {
    int err = try_looks(op, looks, count);
    if (err != SMART_AGAIN)
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
        return SMART_STALE;
    s->at = l->part;
    s->children = smart_count_words(near, l->count);
    s->slot = smart_slot_addr(l->node.addr, l->part);
    s->word = word;
    s->mark = op->mark;
    if ((word & SMART_BOUND) && !(word & SMART_F))
        smart_cache_word(op->st->cache, op->key, l->node.addr, l->depth, SMART_DIR, word);
    return 0;
}


/* READs a node at an address from the cache. 0: accepted, and it is the owner; SMART_STALE: not. leaf (or NULL) is READ
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
        return SMART_STALE;
    if (l.slot && !l.ctl_first && l.first + l.count <= NEAR_HEADER)
        l.bytes = SMART_HEADER + 8 * (l.first + l.count);
    int err = read_looks(op, &l, 1);
    if (err != 0)
        return err;
    smart_spot_clear(s);
    smart_enter(s, &l.node, 0, 0);
    return l.slot ? take_slot(op, s, &l) : smart_look_up(op, s, &l.node);
}


static bool is_slot_alone(uint64_t word) { /* of a DIR node, one byte deeper: its header need not be READ */
    return smart_word_is(word) == SMART_NODE && smart_word_read_type(word) == SMART_READ_DIR && (word & SMART_GAP0);
}


/* Follows what the cache says, as far as it can be without proof. first: as of jump_to_leaf. */
static __attribute__((noinline)) int jump(smart_op *op, smart_spot *s, const smart_hint *hint, const int *first) {
    uint64_t word = hint->word;
    smart_hint from = *hint; /* the node that has the word */
    while (is_slot_alone(word)) {
        from = (smart_hint){.node = smart_word_addr(word), .depth = from.depth + 1, .layout = SMART_DIR};
        unsigned part = smart_part(op->key, from.depth);
        far_addr slot = smart_slot_addr(from.node, part);
        if (from.depth > op->key.length || !far_task_reaches(op->t, slot, 8))
            return SMART_STALE;
        op->mark = far_rdwc_mark(op->t);
        int err = far_read_now(op->t, slot, &word, 8, FAR_VERB_UNPROVEN);
        if (err < 0)
            return err;
        if ((word & SMART_F) || !smart_word_is_sound(word) || smart_word_is(word) == SMART_NONE ||
            smart_word_part(word) != part)
            return SMART_STALE;
        smart_cache_word(op->st->cache, op->key, from.node, from.depth, SMART_DIR, word);
    }
    bool leaf = smart_word_is(word) == SMART_LEAF;
    int err = leaf ? jump_to_leaf(op, s, word, first) : accept_node(op, s, word, 0, NULL);
    bool moved = err == 0 && leaf && s->leaf.addr != smart_word_addr(word); /* behind leaves that were replaced */
    if (moved)
        word = smart_leaf_word(op->st, &s->leaf, smart_word_part(word));
    if (err == 0 && (op->recycled || moved))
        smart_cache_word(op->st->cache, op->key, from.node, from.depth, from.layout,
                         op->recycled ? word | SMART_CACHED_REC : word);
    return err != 0 || leaf ? err : smart_descend(op, s);
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
        return smart_descend(op, s);
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


/* What the cache knows is the leaf, as nearly always, and nothing else is asked of it. */
static inline bool leads_to_leaf(const smart_op *op, const smart_hint *hint) {
    return smart_word_is(hint->word) == SMART_LEAF && !(hint->word & SMART_CACHED_REC) && !wants_owner(op, hint);
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
    return smart_descend(op, s);
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
        return SMART_STALE;
    int err = read_looks(op, looks, 2);
    if (err == 0 && looks[0].node.layout != SMART_DIR)
        err = SMART_STALE;
    if (err != 0)
        return err;
    smart_node *node = &looks[1].node;
    unsigned hint = smart_cache_hint(op->st->cache, op->key, node->addr, node->depth);
    smart_spot_clear(s);
    smart_enter(s, node, smart_slot_addr(above->node, part), smart_word(node->addr, part, SMART_NODE, hint));
    if ((err = smart_look_up(op, s, node)) != 0)
        return err;
    s->owner = *node;
    far_count_cache(op->t, false);
    return smart_descend(op, s);
}


typedef struct known { /* what the cache was asked first */
    smart_hint hint;
    bool found, read; /* read: the leaf that the hint names was READ, with the result err */
    int err;
} known;


static __attribute__((noinline)) int try_known(smart_op *op, smart_spot *s, const known *k) {
    smart_hint hint = k->hint;
    bool grows = false, read = k->read, found = k->found; /* grows: the node below is full */
    unsigned below = op->below ? op->below : SMART_DEPTH_ANY;
    for (unsigned tries = 0; tries < 4 && found; tries++) {
        if (!read && will_grow(op, &hint)) {
            smart_want_up(op, hint.node, hint.depth, hint.layout);
            op->below_recycled = hint.recycled;
            below = hint.depth;
            grows = true;
            found = smart_cache_probe(op->st->cache, op->key, below, &hint);
            continue;
        }
        smart_spot_unknown(s);
        bool jumps = read || !wants_owner(op, &hint);
        int err = jumps                                                 ? jump(op, s, &hint, read ? &k->err : NULL)
                  : grows && hint.layout == SMART_DIR && hint.node != 0 ? from_both(op, s, &hint)
                                                                        : SMART_STALE;
        grows = read = false;
        if (jumps && err == SMART_STALE)
            far_count_stale(op->t);
        if (err != SMART_STALE) {
            far_count_cache(op->t, !s->proven); /* a hit: straight to the leaf */
            return err;
        }
        if (!hint.node) { /* a word of the root */
            if (!op->owner && !op->below)
                smart_cache_drop(op->st->cache, op->key, 0, 0);
            break;
        }
        if ((err = from_owner(op, s, &hint)) != SMART_STALE)
            return err;
        far_count_stale(op->t);
        smart_cache_drop(op->st->cache, op->key, hint.node, hint.depth);
        below = hint.depth;
        found = smart_cache_probe(op->st->cache, op->key, below, &hint);
    }
    far_count_cache(op->t, false);
    return SMART_STALE;
}


/* The way of nearly all: one READ, and it is a hit. */
int smart_find_by_cache(smart_op *op, smart_spot *s) {
    known k;
    k.found = smart_cache_probe(op->st->cache, op->key, op->below ? op->below : SMART_DEPTH_ANY, &k.hint);
    k.read = k.found && leads_to_leaf(op, &k.hint);
    if (!k.read)
        return try_known(op, s, &k);
    uint64_t word = k.hint.word;
    smart_spot_unknown(s);
    k.err = smart_fetch_leaf(op, smart_word_addr(word), smart_leaf_class(op->st, word), FAR_VERB_UNPROVEN, &s->leaf);
    if (k.err < 0 || !smart_leaf_is_hit(op, &s->leaf))
        return try_known(op, s, &k);
    s->outcome = SMART_HIT;
    s->mark = op->mark;
    far_count_cache(op->t, true);
    return 0;
}
