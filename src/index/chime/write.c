/* CHIME: insert, update, put and delete. A write locks the leaf, READs what the change needs, and then WRITEs the
 * change and the unlock in one batch. This takes three round trips, or two where one batch can lock and READ.
 * write_lock.c takes the lock and hands it over, restructure_split.c splits a full leaf. */
#include "index/chime/write.h"
#include "base/error.h"
#include "pool/epoch/epoch.h"
#include "task/latch.h"

#include <stdlib.h>

/* A leaf counts as contended after this number of handovers in a row, or with this number of tasks in its latch queue.
 */
#define CONTENDED_TURNS 4
/* A contended leaf is split early only if at least one in this number of its slots is occupied. */
#define CONTENDED_FILL 5

/* How the operation found the leaf: by a descent, by a sibling pointer, or by the absorber field of a merged leaf. */
typedef enum { ROUTE_DESCENT, ROUTE_SIBLING, ROUTE_ABSORBER } route_kind;


/* Preparing a pair block, which is done before the lock is taken. */

static bool needs_block(const chime_op *op, const chime_change *c) {
    return !op->st->inline_items && c->how != FAR_OP_DELETE;
}


static int build_block(chime_op *op, chime_change *c) {
    far_bytes key = op->key.bytes;
    if (!needs_block(op, c))
        return 0;
    far_rdwc_seal(op->t, &c->value);
    uint64_t bytes = CHIME_BLOCK_HEAD + key.length + c->value.length,
             head = chime_block_head(key.length, c->value.length);
    c->block_class = chime_class_for(bytes);
    if (!(c->block_image = far_scratch(op->t, chime_class_bytes(c->block_class))))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a pair block");
    memset(c->block_image + bytes / 8 * 8, 0, (bytes + 7) / 8 * 8 - bytes / 8 * 8);
    memcpy(c->block_image, &head, 8);
    memcpy(c->block_image + CHIME_BLOCK_HEAD, key.data, key.length);
    if (c->value.length)
        memcpy(c->block_image + CHIME_BLOCK_HEAD + key.length, c->value.data, c->value.length);
    return 0;
}


/* Allocates the pair block and adds its WRITE, unless a former attempt did so. The WRITE completes in the same wait as
 * the lock, so the pair block is complete before any slot refers to it. */
static int batch_write_block(chime_op *op, chime_change *c, chime_ptr leaf) {
    far_object object;
    if (!needs_block(op, c) || op->new_block)
        return 0;
    int err = far_alloc(op->t, op->index, CHIME_TYPE_BLOCK, chime_class_bytes(c->block_class),
                        far_addr_node(chime_ptr_addr(leaf)), 0, &object);
    if (err < 0)
        return err;
    op->new_block = object.addr;
    op->new_block_bytes = chime_class_bytes(c->block_class);
    c->slot_words[0] = chime_value_word(op->new_block, c->block_class, 0, (unsigned)op->key.hash & 1023);
    uint64_t bytes = (CHIME_BLOCK_HEAD + op->key.bytes.length + c->value.length + 7) / 8 * 8;
    far_write(op->t, op->new_block, c->block_image, bytes);
    return 0;
}


static void retire_block(chime_op *op, uint64_t word) {
    if (!op->st->inline_items)
        far_retire(op->t, op->index, CHIME_TYPE_BLOCK, chime_value_block(word),
                   chime_class_bytes(chime_value_class(word)));
}


/* Changing the leaf, while this task holds its lock. */

/* Returns how many slots from the home slot on the change must READ. If other tasks wait for the latch, the task READs
 * the whole leaf, because it can pass the image on to the next lock owner. */
static unsigned count_slots_needed(const chime_op *op, const chime_change *c, chime_ptr leaf, const chime_lock *lock) {
    const chime_state *st = op->st;
    if (!st->hopscotch || (chime_may_insert(c) && !st->vacancy) || chime_next_latch_waiter(op, c, leaf))
        return st->span;
    unsigned reach = chime_may_insert(c) ? chime_slots_up_to_free(st, lock->map, op->home_slot) : st->hop;
    if (reach == 0)
        return st->span;
    return reach > st->hop ? reach : st->hop;
}


/* Adds the READ of the slots. An insert also READs the remaining slots of their groups, because it must recompute the
 * bits of these groups in the occupancy map. */
static void batch_read_groups(chime_op *op, const chime_change *c, chime_node *n, unsigned slots) {
    const chime_state *st = op->st;
    unsigned group = chime_may_insert(c) ? st->group : 1, before = op->home_slot % group,
             last = chime_slot_after(st, op->home_slot, slots - 1), end = (last / group + 1) * group,
             behind = (end < st->span ? end : st->span) - 1 - last, count = before + slots + behind;
    chime_batch_read_slots(op, n, op->home_slot - before, count < st->span ? count : st->span);
}


void chime_batch_change_reads(chime_op *op, const chime_change *c, chime_node *n, unsigned slots) {
    if (slots == op->st->span) {
        chime_batch_read_node(op, n);
        return;
    }
    batch_read_groups(op, c, n, slots);
    chime_batch_read_tail(op, n);
}


static int validate_leaf(chime_op *op, chime_node *n, chime_ptr *leaf) {
    const chime_state *st = op->st;
    const uint64_t *tail = chime_tail(st, n->w);
    unsigned tag = chime_ptr_tag(n->ptr);
    if (chime_h0_tag(tail[CHIME_TAIL_H0]) != tag || !chime_h0_valid(tail[CHIME_TAIL_H0])) {
        op->absorber = chime_h0_tag(tail[CHIME_TAIL_H0]) == tag ? tail[CHIME_TAIL_ABSORBER] : 0;
        return CHIME_STALE;
    }
    int err = chime_check_range(op, tail);
    if (err == CHIME_RIGHT)
        *leaf = chime_h1_sibling(tail[CHIME_TAIL_H1]);
    for (unsigned i = 0; err == 0 && i < st->hop && (st->wrap || op->home_slot + i < st->span); i++)
        if (!chime_line_is_current(st, n->w, chime_line(st, chime_slot_after(st, op->home_slot, i)), tag))
            return chime_report_corrupt(op->index, n->ptr, "one of its lines is not valid");
    return err;
}


static void copy_inline_value(chime_op *op, chime_change *c) {
    far_rdwc_seal(op->t, &c->value);
    memcpy(c->slot_words, c->value.data, op->st->value_bytes);
}


static int update_item(chime_op *op, chime_change *c, chime_node *n, const chime_lock *lock, unsigned slot) {
    const chime_state *st = op->st;
    uint64_t *words = chime_slot(st, n->w, slot) + 1, old = *words, *lock_word = far_scratch(op->t, 8);
    if (!lock_word)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    if (st->inline_items)
        copy_inline_value(op, c);
    else
        c->slot_words[0] = chime_value_with_distance(c->slot_words[0], chime_distance(st, op->home_slot, slot));
    memcpy(words, c->slot_words, st->value_words * 8);
    far_point(op->t, "chime:update");
    chime_choose_next_owner(op, c, n->ptr);
    op->next_owner_map = lock->map;
    *lock_word = op->next_owner ? op->next_owner : lock->old_word;
    far_write(op->t, chime_ptr_addr(n->ptr) + chime_slot_offset(st->per_line, slot) + 8, words, st->value_words * 8);
    far_write(op->t, chime_tail_addr(st, n->ptr, CHIME_TAIL_L), lock_word, 8);
    c->locked = false;
    op->new_block = 0;
    int err = chime_wait(op);
    if (err >= 0)
        retire_block(op, old);
    return err;
}


/* Returns whether the leaf is a candidate for a merge after a delete. If each bit of the occupancy map stands for a
 * group of slots, the map does not show the number of items; in that case the leaf counts as sparse if no group is full
 * and the neighbourhood of the deleted key is empty. */
static bool leaf_is_sparse(const chime_op *op, chime_node *n, uint64_t map) {
    const chime_state *st = op->st;
    if (st->group > 1) {
        bool any = map != 0 || st->merge == CHIME_MERGE_OFF;
        for (unsigned i = 0; i < st->hop && !any && (st->wrap || op->home_slot + i < st->span); i++)
            any = chime_slot_is_occupied(st, n->w, chime_slot_after(st, op->home_slot, i));
        return !any;
    }
    return st->merge == CHIME_MERGE_SPARSE ? (unsigned)__builtin_popcountll(map) * 5 < st->span
                                           : st->merge == CHIME_MERGE_EMPTY && map == 0;
}


static int remove_item(chime_op *op, chime_change *c, chime_node *n, const chime_lock *lock, unsigned slot) {
    const chime_state *st = op->st;
    uint64_t old = chime_slot(st, n->w, slot)[1], map = lock->map & ~(1ull << slot / st->group),
             *before = chime_alloc_image(op);
    if (!before)
        return FAR_ERR_NO_MEMORY;
    memcpy(before, n->w, st->node_bytes);
    chime_clear_item(st, n->w, slot, op->home_slot);
    far_point(op->t, "chime:remove");
    chime_choose_next_owner(op, c, n->ptr);
    int err = chime_batch_set_busy(op, n->ptr);
    if (err < 0)
        return err;
    chime_batch_changed_lines(op, n, before, chime_line(st, op->home_slot));
    if ((err = chime_batch_unlock(op, n->ptr, map)) < 0) {
        far_discard_batch(op->t);
        return err;
    }
    c->locked = false;
    if ((err = chime_wait(op)) < 0)
        return err;
    retire_block(op, old);
    return leaf_is_sparse(op, n, map) ? chime_merge_in_background(op, 0) : 0;
}


static int commit_insert(chime_op *op, chime_change *c, chime_node *n, const chime_lock *lock, const uint64_t *before,
                         const chime_move *moves, unsigned hops, unsigned at) {
    const chime_state *st = op->st;
    unsigned filled = hops ? moves[0].to : at;
    bool combined = c->slots_read == st->span && chime_combine_inserts(op, n->ptr, n->w, &c->combined);
    uint64_t map = combined ? chime_occupancy_map(st, n->w) : chime_map_with_group_of(st, lock->map, n->w, filled);
    chime_choose_next_owner(op, c, n->ptr);
    int err = chime_batch_set_busy(op, n->ptr);
    if (err >= 0 && st->lines_can_tear)
        err = chime_batch_moves(op, n, before, moves, hops, at);
    else if (err >= 0)
        chime_batch_changed_lines(op, n, before, chime_line(st, op->home_slot));
    if (err >= 0)
        err = chime_batch_unlock(op, n->ptr, map);
    if (err < 0) {
        far_discard_batch(op->t);
        return err;
    }
    c->locked = false;
    op->new_block = 0;
    if (hops)
        atomic_fetch_add_explicit(&op->st->counts.hops, 1, memory_order_relaxed);
    return chime_wait(op);
}


static int split_locked_leaf(chime_op *op, chime_change *c, chime_node *n, bool early) {
    int err = 0;
    if (c->slots_read < op->st->span) {
        chime_batch_read_node(op, n);
        if ((err = chime_wait(op)) < 0)
            return err;
    }
    if (!chime_node_is_consistent(op->st, n->w, chime_ptr_tag(n->ptr)))
        return chime_report_corrupt(op->index, n->ptr, "its lines have different siblings or node versions");
    err = chime_split_leaf(op, n, c->slot_words, early, &c->combined);
    if (err == 0) {
        c->locked = false;
        op->new_block = 0;
    }
    return err;
}


/* Returns whether to split the leaf before it is full, because many tasks wait for it and the tree has few leaves. This
 * gives a load into an empty index enough leaves for all its clients after a short time. In a larger tree, early splits
 * would only produce half-empty leaves. */
static bool leaf_is_contended(const chime_op *op, const chime_change *c, chime_ptr leaf, const chime_lock *lock) {
    bool contended = c->attempts || c->handovers >= CONTENDED_TURNS ||
                     far_latch_waiting(op->t, chime_ptr_addr(leaf), CONTENDED_TURNS) == CONTENDED_TURNS;
    return contended && chime_tree_is_small(op) &&
           (unsigned)__builtin_popcountll(lock->map) * op->st->group * CONTENDED_FILL >= op->st->span;
}


/* Called if the neighbourhood of the key is full. Sets *free to the first free slot after the neighbourhood, READing
 * more slots if needed, or to -1 if the leaf has no free slot. */
static int find_free_slot_beyond(chime_op *op, chime_change *c, chime_node *n, const chime_lock *lock, int *free) {
    const chime_state *st = op->st;
    unsigned reach = chime_slots_up_to_free(st, lock->map, op->home_slot), slots = reach           ? reach
                                                                                   : st->group > 1 ? st->span
                                                                                                   : 0;
    if (slots > c->slots_read) {
        batch_read_groups(op, c, n, slots);
        int err = chime_wait(op);
        if (err < 0)
            return err;
    }
    *free = chime_find_free_slot(st, n->w, op->home_slot, slots);
    return reach && *free < 0
               ? chime_report_corrupt(op->index, n->ptr, "its occupancy map shows a free slot where there is none")
               : 0;
}


static int insert_item(chime_op *op, chime_change *c, chime_node *n, const chime_lock *lock) {
    const chime_state *st = op->st;
    chime_move moves[CHIME_SPAN_MAX];
    unsigned at;
    int err, free = chime_find_free_near_home(st, n->w, op->home_slot);
    if (st->inline_items)
        copy_inline_value(op, c);
    if (free < 0 && (err = find_free_slot_beyond(op, c, n, lock, &free)) < 0)
        return err;
    uint64_t *before = free < 0 ? NULL : chime_alloc_image(op);
    if (free < 0)
        return split_locked_leaf(op, c, n, false);
    if (!before)
        return FAR_ERR_NO_MEMORY;
    if (leaf_is_contended(op, c, n->ptr, lock))
        return split_locked_leaf(op, c, n, true);
    memcpy(before, n->w, st->node_bytes);
    int hops = chime_move_free_slot(st, n->w, op->home_slot, (unsigned)free, moves, &at);
    if (hops < 0) {
        /* restore the image as it was before the hops, because they did not free a slot near the home slot */
        memcpy(n->w, before, st->node_bytes);
        return split_locked_leaf(op, c, n, false);
    }
    chime_place_item(st, n->w, at, op->home_slot, op->key.first, c->slot_words);
    if (hops)
        far_point(op->t, "chime:hop");
    else
        far_point(op->t, "chime:insert");
    return commit_insert(op, c, n, lock, before, moves, (unsigned)hops, at);
}


/* Called when the operation's own key belongs to a leaf further right. Before the function frees the lock of this leaf,
 * it inserts the waiting inserts that belong to this leaf, so that their tasks need not lock the leaf again. If the
 * whole leaf was not READ, or no such insert waits, nothing is written. */
static int insert_for_waiters(chime_op *op, chime_change *c, chime_node *n) {
    const chime_state *st = op->st;
    uint64_t *before = c->slots_read == st->span && st->combine_inserts ? chime_alloc_image(op) : NULL;
    if (!before)
        return 0;
    memcpy(before, n->w, st->node_bytes);
    if (!chime_combine_inserts(op, n->ptr, n->w, &c->combined))
        return 0;
    chime_choose_next_owner(op, c, n->ptr);
    chime_batch_changed_lines(op, n, before, 0);
    int err = chime_batch_unlock(op, n->ptr, chime_occupancy_map(st, n->w));
    if (err < 0) {
        far_discard_batch(op->t);
        return err;
    }
    c->locked = false;
    return chime_wait(op);
}


static int change_locked_leaf(chime_op *op, chime_change *c, chime_node *n, chime_lock *lock, chime_ptr *leaf) {
    const chime_state *st = op->st;
    chime_block block;
    int err, slot;
    if (!c->slots_read) {
        c->slots_read = count_slots_needed(op, c, n->ptr, lock);
        chime_batch_change_reads(op, c, n, c->slots_read);
        if ((err = chime_wait(op)) < 0)
            return err;
    } else if (c->shared_image && op->new_block) {
        /* The lock was handed over by another task, so no batch was posted to take it. Therefore the operation waits
         * here for the WRITE of the new pair block, before a slot refers to the pair block. */
        if ((err = chime_wait(op)) < 0)
            return err;
    }
    if ((err = validate_leaf(op, n, leaf)) == CHIME_RIGHT)
        return (err = insert_for_waiters(op, c, n)) < 0 ? err : CHIME_RIGHT;
    if (err != 0 || (err = chime_find_item(op, n, &slot, st->key_fits_word ? NULL : &block)) < 0)
        return err;
    far_note_added(op->t, slot < 0);
    if (slot >= 0 && c->how == FAR_OP_INSERT)
        return FAR_ERR_EXISTS;
    if (slot < 0 && !chime_may_insert(c))
        return FAR_ERR_NOT_FOUND;
    if (slot < 0)
        return insert_item(op, c, n, lock);
    return c->how == FAR_OP_DELETE ? remove_item(op, c, n, lock, (unsigned)slot)
                                   : update_item(op, c, n, lock, (unsigned)slot);
}


/* Called if the lock of the leaf is dead. READs the leaf's tail, which names the node that absorbed the leaf, and
 * stores that node in op->absorber. Returns CHIME_STALE unless an error occurs. */
static int find_absorber(chime_op *op, chime_node *n) {
    const uint64_t *tail = chime_tail(op->st, n->w);
    chime_batch_read_tail(op, n);
    int err = chime_wait(op);
    op->absorber =
        err >= 0 && chime_h0_tag(tail[CHIME_TAIL_H0]) == chime_ptr_tag(n->ptr) ? tail[CHIME_TAIL_ABSORBER] : 0;
    return err < 0 ? err : CHIME_STALE;
}


/* Returns whether the leaf is still the right one for the key after the wait for its latch, because the leaf may have
 * been split meanwhile. Cached nodes and recorded half splits show this without a verb. Returns true if a lock was
 * handed over to this task, because the task must accept the lock in any case. */
static bool route_still_leads_here(chime_op *op, const chime_node *n, route_kind by) {
    uint64_t gift[FAR_HANDOVER_WORDS];
    chime_ptr leaf;
    if (by == ROUTE_ABSORBER || far_latch_take_handover(op->t, chime_ptr_addr(n->ptr), gift))
        return true;
    if (chime_follow_recent_splits(op, n->ptr) != n->ptr)
        return false;
    return by == ROUTE_SIBLING || !chime_find_cached_leaf(op, &leaf) || chime_follow_recent_splits(op, leaf) == n->ptr;
}


/* Takes the latch of the leaf. Returns true if another task did this task's insert while this task waited. */
static bool latch_leaf_or_be_served(chime_op *op, chime_change *c, chime_insert *mine, chime_ptr leaf) {
    if (!chime_may_be_combined(op, c)) {
        far_latch(op->t, chime_ptr_addr(leaf));
        return false;
    }
    copy_inline_value(op, c);
    *mine = (chime_insert){.key = op->key.first, .home_slot = op->home_slot, .value = c->slot_words};
    chime_latch_as_waiter(&op->st->inserts, op->t, &mine->waiter, leaf);
    return mine->waiter.served;
}


static int return_served_result(chime_op *op, const chime_insert *mine, chime_ptr leaf) {
    far_unlatch(op->t, chime_ptr_addr(leaf));
    chime_free_new_node(op);
    return mine->outcome_unknown ? far_fail(FAR_ERR_UNREACHABLE, "the session that wrote this pair with its own lost "
                                                                 "its connection; the pair may or may not be stored")
                                 : 0;
}


/* Performs the write on one leaf. Returns 0 or an error if the operation is finished; CHIME_RIGHT if the operation must
 * continue at *leaf, which is now the sibling; CHIME_STALE if the pointer is outdated; CHIME_AGAIN if another client
 * holds the lock. */
static int change_leaf(chime_op *op, chime_change *c, chime_ptr *leaf, route_kind by) {
    chime_node n = {.ptr = *leaf};
    chime_lock lock = {0};
    chime_insert mine = {0};
    if (!chime_ptr_is_in_pool(op, *leaf))
        return CHIME_STALE;
    if (!(n.w = chime_alloc_image(op)))
        return FAR_ERR_NO_MEMORY;
    int err = batch_write_block(op, c, *leaf);
    if (err < 0)
        return err;
    if (latch_leaf_or_be_served(op, c, &mine, n.ptr))
        return return_served_result(op, &mine, n.ptr);
    if (route_still_leads_here(op, &n, by))
        err = chime_lock_leaf(op, c, &n, &lock);
    else {
        /* drop the WRITE of the pair block from the open batch, because no lock attempt is posted with it now */
        far_discard_batch(op->t);
        err = CHIME_AGAIN;
    }
    if (err == 0) {
        c->locked = true;
        far_point(op->t, "chime:locked");
        err = change_locked_leaf(op, c, &n, &lock, leaf);
        chime_report_combined_inserts(op, &c->combined, err);
        if (c->locked && !chime_session_is_lost(err)) {
            far_discard_batch(op->t);
            int unlocked = chime_unlock_unchanged(op, n.ptr, &lock);
            err = unlocked < 0 ? unlocked : err;
            op->next_owner = 0;
        }
        c->locked = false;
    } else if (err == CHIME_STALE)
        err = find_absorber(op, &n);
    chime_release_latch(op, c, &n, &lock, err);
    return err;
}


static int write_key(chime_op *op, chime_change *c) {
    int err = build_block(op, c);
    while (err >= 0) {
        far_scratch_mark here = far_scratch_here(op->t);
        chime_ptr leaf = 0, from;
        unsigned moves = 0;
        op->absorber = 0;
        if ((err = chime_descend(op, 0, &leaf)) < 0)
            break;
        leaf = chime_follow_recent_splits(op, leaf);
        for (from = leaf; (err = change_leaf(op, c, &leaf, moves ? ROUTE_SIBLING : ROUTE_DESCENT)) == CHIME_RIGHT &&
                          (err = chime_move_right(op, 0, from, leaf, &moves)) == CHIME_RIGHT;)
            from = leaf;
        if (err == CHIME_STALE && op->absorber && chime_ptr_is_in_pool(op, op->absorber)) {
            /* The left neighbour has absorbed the leaf, so the operation continues there. */
            leaf = op->absorber;
            err = change_leaf(op, c, &leaf, ROUTE_ABSORBER);
            err = err == CHIME_RIGHT ? CHIME_STALE : err;
        }
        if (err <= 0)
            break;
        if (err == CHIME_STALE)
            err = chime_drop_stale_path(op, from, 0);
        if (err >= 0 && (err == CHIME_AGAIN || op->restarts % op->st->lock_attempts == op->st->lock_attempts - 1))
            err = chime_renew_pin(op);
        far_scratch_back(op->t, here);
    }
    if (err < 0 && !chime_session_is_lost(err))
        chime_free_new_block(op);
    far_rdwc_done(op->t, op->rdwc_mark);
    if (!chime_session_is_lost(err)) {
        chime_free_new_node(op);
        chime_finish_op(op);
    }
    return err;
}


int chime_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    chime_op op;
    chime_change c = {.how = how, .value = value};
    chime_begin_op(&op, t, index, key);
    return write_key(&op, &c);
}


int chime_remove(far_task *t, far_index *index, far_bytes key) {
    chime_op op;
    chime_change c = {.how = FAR_OP_DELETE};
    chime_begin_op(&op, t, index, key);
    return write_key(&op, &c);
}
