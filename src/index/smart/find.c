/* Finding: from the root, or from the deepest node that the cache knows.
 *
 * An object is proven when its address came from a word with F clear that was READ in this operation from a proven (or
 * accepted) node. A node at an address from the cache is accepted when it is LIVE and has the right prefix hash, a leaf
 * certifies itself when it is LIVE, has the key and its checksum holds. Only a hit may rest on a leaf that certified
 * itself; that the key is absent, and every change, needs a proven or accepted owner. */
#include "index/smart/find.h"
#include "base/error.h"
#include "pool/epoch.h"

#include <string.h>

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
void smart_enter(smart_spot *s, const smart_node *node, far_addr up, uint64_t up_word) {
    s->node = node->addr;
    s->depth = node->depth;
    s->layout = node->layout;
    s->up = up;
    s->up_word = up_word;
}


/* The owner's word for the key; READs on in a list as long as no unbound slot was seen. */
int smart_look_up(smart_op *op, smart_spot *s, smart_node *node) {
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
        return err < 0 ? err : SMART_AGAIN;
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


/* One step down from a proven word that names a node. 0: the owner is that node now; SMART_AGAIN is no result here;
 * OTHER_NODE is told by *other. */
static int step_down(smart_op *op, smart_spot *s, bool *other) {
    far_addr up = s->slot;
    uint64_t word = s->word;
    unsigned type = smart_word_read_type(word);
    *other = false;
    if (type == SMART_READ_DIR && (word & SMART_GAP0)) { /* its prefix is ours: only the slot is READ */
        smart_node node = {.addr = smart_word_addr(word), .depth = s->depth + 1, .layout = SMART_DIR};
        smart_enter(s, &node, up, word);
        return smart_look_up(op, s, &node);
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
    smart_enter(s, &node, up, word);
    err = smart_look_up(op, s, &node);
    s->owner = err == 0 && all ? node : (smart_node){0}; /* of the last node on the way, and of no other */
    return err;
}


/* From the owner in s and its word, down to where it ends. */
int smart_descend(smart_op *op, smart_spot *s) {
    s->proven = true;
    for (;;) {
        bool other;
        int err;
        if ((s->word & SMART_F) && !op->frozen_too)
            return SMART_MET_FROZEN;
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
    return smart_descend(op, s);
}


/* cached: the cache may be asked; otherwise the owner's own slot is known afterwards. */
int smart_find(smart_op *op, bool cached, smart_spot *spot) {
    op->other = 0;
    op->recycled = false;
    for (unsigned attempt = 0;; attempt++) {
        int err =
            cached && !op->uncached && op->st->cache && attempt == 0 ? smart_find_by_cache(op, spot) : SMART_STALE;
        if (err == FAR_ERR_CORRUPT) { /* damage may have unlinked what the cache knows, and a sweep freed it */
            far_forget(op->t);
            err = SMART_STALE;
        }
        if (err == SMART_STALE)
            err = from_root(op, spot);
        if (err <= 0)
            return err;
        far_count_retry(op->t);
        if (attempt >= RENEW_AFTER && attempt % op->st->patience == 0) { /* and nothing seen so far counts */
            if ((err = smart_renew_pin(op)) < 0)
                return err;
            continue;
        }
        if (err == SMART_AGAIN || (err == SMART_MET_FROZEN && !spot->up))
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
    if (!smart_cache_probe(op->st->cache, key, SMART_DEPTH_ANY, &hint) || smart_word_is(hint.word) != SMART_LEAF ||
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
        smart_cache_prefetch(m.op.st->cache, keys[i]);
    for (size_t i = 0; i < count && err >= 0; i++)
        err = put_read_cached(&m, i, keys[i]);
    if (err < 0)
        return smart_forget(&m.op, err);
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
