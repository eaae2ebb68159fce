/* Deleting: the leaf becomes DEAD by one CAS, that is all. The slot, and nodes that are left with one child or none,
 * are tidied up afterwards, by a task of its own or whoever comes by. Where no leaf is ever replaced by another the
 * slot goes in the same batch: it cannot name anything then but the leaf that just died. */
#include "base/error.h"
#include "base/spin.h"
#include "index/smart/smart.h"

#include <stdlib.h>
#include <string.h>

#define MERGES_MAX  1024 /* nodes that wait for a merge; more are merged at once */
#define MERGE_AFTER 1000 /* round trips: one that fills up again until then is not merged */
#define MANY        4    /* children: so many deletes at once are not expected in one node, nobody needs to look */

typedef struct merge {
    struct merge *next;
    uint64_t at;
    size_t length;
    uint8_t key[];
} merge;

struct smart_merges {
    far_spin lock;
    unsigned count;
    merge *first, *last;
    smart_cache *cache; /* whose budget they take from; NULL: there is none */
};

typedef struct tidy_arg {
    far_index *index;
    bool merge;
    size_t length;
    uint8_t key[];
} tidy_arg;


smart_merges *smart_merges_new(void) {
    return calloc(1, sizeof(smart_merges));
}


void smart_merges_count_in(smart_merges *merges, smart_cache *cache) {
    merges->cache = cache;
}


static void free_merge(smart_merges *m, merge *one) {
    smart_cache_give_back(m->cache, sizeof(*one) + one->length);
    free(one);
}


void smart_merges_free(smart_merges *merges) {
    while (merges && merges->first) {
        merge *one = merges->first;
        merges->first = one->next;
        free_merge(merges, one);
    }
    free(merges);
}


/* With the lock. */
static bool append(smart_merges *m, merge *one) {
    if (m->count == MERGES_MAX)
        return false;
    if (m->count++)
        m->last->next = one;
    else
        m->first = one;
    m->last = one;
    return true;
}


/* False: no room; merge it now. */
static bool merge_later(smart_op *op) {
    smart_merges *m = op->st->merges;
    size_t bytes = sizeof(merge) + op->key.length;
    if (!smart_cache_lend(m->cache, bytes))
        return false;
    merge *one = malloc(bytes);
    if (!one) {
        smart_cache_give_back(m->cache, bytes);
        return false;
    }
    *one = (merge){.at = far_now(op->t) + MERGE_AFTER * far_rtt(op->t), .length = op->key.length};
    memcpy(one->key, op->key.data, op->key.length);
    far_spin_lock(&m->lock);
    bool room = append(m, one);
    far_spin_unlock(&m->lock);
    if (!room)
        free_merge(m, one);
    return room;
}


/* NULL: none is due. */
static merge *next_merge(smart_merges *m, uint64_t now) {
    far_spin_lock(&m->lock);
    merge *one = m->first && m->first->at <= now ? m->first : NULL;
    if (one) {
        m->first = one->next;
        m->count--;
    }
    far_spin_unlock(&m->lock);
    return one;
}


/* How many children the owner has left: 0, 1, or 2 for more, or one that stays below it. */
static int count_children(smart_op *op, const smart_spot *s, unsigned *live) {
    smart_node node;
    int err;
    *live = 2;
    if (!s->node)
        return 0;
    if (s->layout == SMART_DIR) {
        uint64_t near[SMART_NEIGHBOURS];
        far_read(op->t, smart_slot_addr(s->node, smart_first_neighbour(s->at)), near, sizeof(near));
        if ((err = smart_wait(op)) < 0)
            return err;
        if (smart_count_words(near, SMART_NEIGHBOURS) > 1)
            return 0;
    }
    unsigned type = smart_read_type_for(smart_layout_slots(s->layout), s->layout, op->st->node_types);
    if ((err = smart_read_node(op, smart_word(s->node, 0, SMART_NODE, type), true, &node)) < 0)
        return err;
    unsigned count = smart_live_children(&node);
    *live = count == 0 || smart_can_merge(op->st, &node) ? count : 2;
    return 0;
}


static int tidy(far_task *t, far_index *index, far_bytes key, bool merge, bool eager) {
    smart_op op;
    smart_spot *s = far_scratch(t, sizeof(*s));
    if (!s)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    int err = smart_begin(&op, t, index, key);
    op.owner = true;
    while (err >= 0) {
        unsigned live;
        far_scratch_mark here = far_scratch_here(t);
        if ((err = smart_find(&op, true, s)) < 0 || (err = smart_fix_slot(&op, s)) < 0 || !merge)
            break;
        if ((err = count_children(&op, s, &live)) < 0 || live > 1)
            break;
        if (live == 1 && !eager && merge_later(&op))
            break;
        if (s->up) {
            far_point(t, "smart:merge");
            if ((err = smart_replace(&op, s->up, s->up_word, s->layout, NULL, NULL)) < 0)
                break;
        }
        op.uncached = true; /* the way down to the owner is needed */
        far_scratch_back(t, here);
    }
    return err < 0 ? err : 0;
}


static void tidy_task(far_task *t, void *arg) {
    const tidy_arg *a = arg;
    tidy(t, a->index, (far_bytes){a->key, a->length}, a->merge, smart_state_of(a->index)->eager);
    far_index_unuse(a->index);
}


/* What goes wrong here is found again by the next who comes by, and by a walk. */
void smart_tidy_later(smart_op *op, bool merge) {
    size_t bytes = sizeof(tidy_arg) + op->key.length;
    if (far_task_is_unattended(op->t)) { /* nobody drives a task that is left behind */
        tidy(op->t, op->index, op->key, merge, op->st->eager);
        return;
    }
    tidy_arg *arg = far_scratch(op->t, bytes);
    if (!arg)
        return;
    *arg = (tidy_arg){op->index, merge, op->key.length};
    memcpy(arg->key, op->key.data, op->key.length);
    if (far_spawn(op->t, tidy_task, arg, bytes))
        far_index_use(op->index);
}


int smart_merge_some(far_task *t, far_index *index) {
    smart_state *st = smart_state_of(index);
    merge *one = next_merge(st->merges, far_now(t));
    if (!one)
        return 0;
    int err = tidy(t, index, (far_bytes){one->key, one->length}, true, true);
    free_merge(st->merges, one);
    return err < 0 ? err : 1;
}


/* The slot, in one batch with the CAS of the leaf: atomics to one memory node keep their order. */
static bool put_tombstone(smart_op *op, const smart_spot *s, uint64_t *seen) {
    *seen = ~s->word;
    if (!op->st->fixed || !s->proven || s->chain || far_addr_node(s->slot) != far_addr_node(s->leaf.addr))
        return false;
    far_cas(op->t, s->slot, s->word, smart_tombstone(smart_word_part(s->word)), seen);
    return true;
}


/* LOST: somebody else deleted it, or it was replaced: look again. */
static int remove_at(smart_op *op, const smart_spot *s) {
    uint64_t live = smart_ctl_with_state(s->leaf.ctl, SMART_LIVE), seen, slot_seen;
    far_point(op->t, "smart:remove");
    if (s->leaf.ctl != live)
        far_cas(op->t, s->leaf.addr, s->leaf.ctl, live, NULL);
    far_cas(op->t, s->leaf.addr, live, smart_ctl_with_state(live, SMART_DEAD), &seen);
    bool whole = put_tombstone(op, s, &slot_seen);
    int err = smart_wait(op);
    if (err < 0)
        return err;
    far_point(op->t, "smart:removed");
    if (whole && slot_seen == s->word) { /* dead by this CAS, or an earlier one */
        smart_retire_leaf(op, s->leaf.addr, s->leaf.class);
        if (op->st->cache)
            smart_cache_word(op->st->cache, op->key, s->node, s->depth, s->layout,
                             smart_tombstone(smart_word_part(s->word)));
    }
    if (seen != live)
        return SMART_LOST;
    if (!whole || slot_seen != s->word || s->children <= MANY)
        smart_tidy_later(op, true);
    return SMART_DONE;
}


int smart_remove(far_task *t, far_index *index, far_bytes key) {
    smart_op op;
    smart_spot *s = far_scratch(t, sizeof(*s));
    if (!s)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    int err = smart_begin(&op, t, index, key);
    op.owner = op.pair = smart_state_of(index)->fixed;
    op.only_present = true;
    for (unsigned attempt = 0; err >= 0; attempt++) {
        far_scratch_mark here = far_scratch_here(t);
        if ((err = smart_find_leaf(&op, s)) < 0)
            return err;
        if (s->outcome != SMART_HIT) {
            if (s->outcome == SMART_GONE)
                smart_tidy_later(&op, true);
            return FAR_ERR_NOT_FOUND;
        }
        if ((err = remove_at(&op, s)) != SMART_LOST)
            return err < 0 ? err : 0;
        far_count_retry(t);
        far_scratch_back(t, here);
        far_back_off(t, attempt);
    }
    return err;
}
