/* Deleting a key, and cleaning up after deletes and updates.
 *
 * One CAS of the leaf's ctl word from LIVE to DEAD deletes the key. The slot that names the leaf, and nodes that are
 * left with one child or none, are cleaned up afterwards by a background task, or by any client that meets them. If all
 * values are words, no update ever replaces a leaf, so the slot can name no other object than the deleted leaf; then
 * the slot becomes a tombstone in the same batch as the CAS of the leaf. The kind calls smart_remove; find.c and
 * write_update.c call smart_tidy_later. */
#include "base/error.h"
#include "base/spin.h"
#include "index/smart/smart.h"
#include "pool/epoch/epoch.h"

#include <stdlib.h>
#include <string.h>

#define MERGES_MAX 1024 /* largest number of entries in the merge queue; if it is full, nodes are merged at once */
/* delay of a merge in round trips; a node that gets another child in that time is not merged */
#define MERGE_AFTER 1000
/* A node with more children than this is not examined after a delete, because it will hardly become empty. */
#define MANY_CHILDREN 4

typedef struct pending_merge {
    struct pending_merge *next;
    uint64_t due;
    size_t length;
    uint8_t key[];
} pending_merge;

struct smart_merge_queue {
    far_spin lock;
    unsigned count;
    pending_merge *first, *last;
    smart_cache *cache; /* cache from whose budget the entries take their memory; NULL if there is no cache */
};

typedef struct tidy_arg {
    far_index *index;
    bool merge_nodes;
    size_t length;
    uint8_t key[];
} tidy_arg;


smart_merge_queue *smart_merge_queue_new(void) {
    return calloc(1, sizeof(smart_merge_queue));
}


void smart_merge_queue_set_budget(smart_merge_queue *merges, smart_cache *cache) {
    merges->cache = cache;
}


static void free_pending_merge(smart_merge_queue *m, pending_merge *one) {
    smart_cache_return_budget(m->cache, sizeof(*one) + one->length);
    free(one);
}


void smart_merge_queue_free(smart_merge_queue *merges) {
    while (merges && merges->first) {
        pending_merge *one = merges->first;
        merges->first = one->next;
        free_pending_merge(merges, one);
    }
    free(merges);
}


/* Appends an entry; the caller holds the lock. Returns false if the queue is full. */
static bool append_merge(smart_merge_queue *m, pending_merge *one) {
    if (m->count == MERGES_MAX)
        return false;
    if (m->count++)
        m->last->next = one;
    else
        m->first = one;
    m->last = one;
    return true;
}


/* Queues the deciding node of the key for a merge. Returns false if the queue is full, so that the caller must merge
 * the node now. */
static bool queue_merge(smart_op *op) {
    smart_merge_queue *m = op->st->merge_queue;
    size_t bytes = sizeof(pending_merge) + op->key.length;
    if (!smart_cache_reserve_budget(m->cache, bytes))
        return false;
    pending_merge *one = malloc(bytes);
    if (!one) {
        smart_cache_return_budget(m->cache, bytes);
        return false;
    }
    *one = (pending_merge){.due = far_now(op->t) + MERGE_AFTER * far_rtt(op->t), .length = op->key.length};
    memcpy(one->key, op->key.data, op->key.length);
    far_spin_lock(&m->lock);
    bool room = append_merge(m, one);
    far_spin_unlock(&m->lock);
    if (!room)
        free_pending_merge(m, one);
    return room;
}


/* Takes the first entry out of the queue if it is due at the time `now`. Returns NULL if none is due. */
static pending_merge *take_due_merge(smart_merge_queue *m, uint64_t now) {
    far_spin_lock(&m->lock);
    pending_merge *one = m->first && m->first->due <= now ? m->first : NULL;
    if (one) {
        m->first = one->next;
        m->count--;
    }
    far_spin_unlock(&m->lock);
    return one;
}


/* Sets *live to the number of children that the deciding node has left: 0, 1, or 2 for more. An only child that may not
 * take the place of the node also counts as 2. For the DIR layout a few slots are READ first, because they usually show
 * more than one child. */
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
        if (smart_count_children(near, SMART_NEIGHBOURS) > 1)
            return 0;
    }
    unsigned type = smart_read_type_for(smart_layout_slots(s->layout), s->layout, op->st->node_types);
    if ((err = smart_read_node(op, smart_word(s->node, 0, SMART_NODE, type), true, &node)) < 0)
        return err;
    unsigned count = smart_node_children(&node);
    *live = count == 0 || smart_can_merge(op->st, &node) ? count : 2;
    return 0;
}


static int tidy_slot_and_nodes(far_task *t, far_index *index, far_bytes key, bool merge_nodes, bool eager) {
    smart_op op;
    smart_spot *s = far_scratch(t, sizeof(*s));
    if (!s)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    int err = smart_op_begin(&op, t, index, key);
    op.needs_proof = true;
    while (err >= 0) {
        unsigned live;
        far_scratch_mark here = far_scratch_here(t);
        if ((err = smart_find(&op, true, s)) < 0 || (err = smart_unlink_old_leaves(&op, s)) < 0 || !merge_nodes)
            break;
        if ((err = count_children(&op, s, &live)) < 0 || live > 1)
            break;
        if (live == 1 && !eager && queue_merge(&op))
            break;
        if (s->parent_slot) {
            far_point(t, "smart:merge");
            if ((err = smart_replace(&op, s->parent_slot, s->parent_word, s->layout, NULL, NULL)) < 0)
                break;
        }
        /* The next search begins at the root, because only that search finds the slot that names the deciding node. */
        op.bypass_cache = true;
        far_scratch_back(t, here);
    }
    return err < 0 ? err : 0;
}


static void run_tidy_task(far_task *t, void *arg) {
    const tidy_arg *a = arg;
    tidy_slot_and_nodes(t, a->index, (far_bytes){a->key, a->length}, a->merge_nodes,
                        smart_state_of(a->index)->merge_eagerly);
    far_index_unuse(a->index);
}


/* Starts the background task that tidies the slot of the key and the nodes above it. Errors of the task need no
 * handling, because other clients that meet the same slot or node, and every walk, do the same work. */
void smart_tidy_later(smart_op *op, bool merge_nodes) {
    size_t bytes = sizeof(tidy_arg) + op->key.length;
    if (far_task_is_unattended(op->t)) { /* no thread would run a background task, so do the work now */
        tidy_slot_and_nodes(op->t, op->index, op->key, merge_nodes, op->st->merge_eagerly);
        return;
    }
    tidy_arg *arg = far_scratch(op->t, bytes);
    if (!arg)
        return;
    *arg = (tidy_arg){op->index, merge_nodes, op->key.length};
    memcpy(arg->key, op->key.data, op->key.length);
    if (far_spawn(op->t, run_tidy_task, arg, bytes))
        far_index_use(op->index);
}


int smart_run_due_merge(far_task *t, far_index *index) {
    smart_state *st = smart_state_of(index);
    pending_merge *one = take_due_merge(st->merge_queue, far_now(t));
    if (!one)
        return 0;
    int err = tidy_slot_and_nodes(t, index, (far_bytes){one->key, one->length}, true, true);
    free_pending_merge(st->merge_queue, one);
    return err < 0 ? err : 1;
}


/* Adds the CAS that makes the slot a tombstone to the batch with the CAS of the leaf. Atomics to one memory node keep
 * their order, so the leaf is DEAD before the slot changes. Returns false if this is not possible, for example because
 * slot and leaf are on different memory nodes. */
static bool put_tombstone(smart_op *op, const smart_spot *s, uint64_t *seen) {
    *seen = ~s->word;
    if (!op->st->never_replaces || !s->proven || s->chain || far_addr_node(s->slot) != far_addr_node(s->leaf.addr))
        return false;
    far_cas(op->t, s->slot, s->word, smart_tombstone(smart_word_part(s->word)), seen);
    return true;
}


/* Deletes the leaf in the spot. Returns SMART_LOST if another client deleted or replaced it first, so that the caller
 * searches again. */
static int remove_leaf(smart_op *op, const smart_spot *s) {
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
    if (whole && slot_seen == s->word) { /* the leaf was deleted by the CAS of this operation or by an earlier one */
        smart_retire_leaf(op, s->leaf.addr, s->leaf.class);
        if (op->st->cache)
            smart_cache_store_word(op->st->cache, op->key, s->node, s->depth, s->layout,
                                   smart_tombstone(smart_word_part(s->word)), far_epoch(op->t));
    }
    if (seen != live)
        return SMART_LOST;
    if (!whole || slot_seen != s->word || s->children <= MANY_CHILDREN)
        smart_tidy_later(op, true);
    return SMART_DONE;
}


int smart_remove(far_task *t, far_index *index, far_bytes key) {
    smart_op op;
    smart_spot *s = far_scratch(t, sizeof(*s));
    if (!s)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    int err = smart_op_begin(&op, t, index, key);
    op.needs_proof = op.pairs_leaf = smart_state_of(index)->never_replaces;
    op.never_inserts = true;
    for (unsigned attempt = 0; err >= 0; attempt++) {
        far_scratch_mark here = far_scratch_here(t);
        if ((err = smart_find_leaf(&op, s)) < 0)
            return err;
        if (s->outcome != SMART_HIT) {
            if (s->outcome == SMART_DEAD_LEAF)
                smart_tidy_later(&op, true);
            return FAR_ERR_NOT_FOUND;
        }
        if ((err = remove_leaf(&op, s)) != SMART_LOST)
            return err < 0 ? err : 0;
        far_count_retry(t);
        far_scratch_back(t, here);
        far_back_off(t, attempt);
    }
    return err;
}
